"""The command line: `voicekit demo`, `run`, `list`, `simulator`, `probe`, `report`, `doctor`, `workshop`.

Exit code 0 is success, 1 a run that failed, 2 bad usage. An error is one line on stderr that names the mend.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CORE = (
    ("order_status", "gemini-3.1-flash-live-preview"),
    ("order_status_chatty", "gpt-4o-realtime-preview"),
    ("order_status_chatty", "gemini-3.1-flash-live-preview"),
    ("order_status_chatty", "gpt-realtime"),
    ("order_status_chatty", "gemini-3.8-live"),
)
CORE_METRICS = ("response_latency", "dead_air_longest", "time_to_result", "talk_over", "unanswered_calls")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        return int(options.call(options) or 0)
    except (ValueError, OSError) as error:
        _say(f"voicekit: {_one_line(error)}")
        return 2
    except KeyboardInterrupt:
        _say("voicekit: interrupted")
        return 1
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets one line, not a traceback
        if options.debug:
            raise
        _say(f"voicekit: {type(error).__name__}: {_one_line(error)} (--debug shows where)")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="voicekit", description=__doc__.split("\n")[0])
    parser.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, call: Any, about: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(call=call)
        return sub

    demo = command("demo", _demo, "run the core experiments: a table, pictures and heard audio in a folder")
    demo.add_argument("--out", type=Path, default=Path("voicekit-out"), help="where to (default: %(default)s)")
    demo.add_argument("--json", action="store_true", help="print one JSON object instead of the table")

    run = command("run", _run, "run one scenario on one model")
    run.add_argument("scenario")
    run.add_argument("--model", required=True)
    run.add_argument("--target", default="simulator", help="simulator, live or replay")
    run.add_argument("--clock", default=None, help="virtual or real (default: virtual; real for live)")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--set", action="append", default=[], metavar="K=V", help="any setting or policy field")
    run.add_argument("--json", action="store_true", help="print run, metrics and calls as one JSON object")
    run.add_argument("--out", type=Path, default=None, help="save the run in this folder")

    command("list", _list, "scenarios, models and clips")

    simulator = command("simulator", _simulator, "serve the simulated providers to any stock client")
    simulator.add_argument("--port", type=int, default=8765, help="one port for everything (default: %(default)s)")
    simulator.add_argument("--tls-port", type=int, default=None, help="a second port, for clients that want two")
    simulator.add_argument("--seed", type=int, default=0)
    simulator.add_argument("--set", action="append", default=[], metavar="K=V", help="claims.NAME=VALUE, faults.NAME=VALUE")

    probe = command("probe", _probe, "find out by conversation what a model does while a tool runs")
    probe.add_argument("model")
    probe.add_argument("--target", default="simulator", help="simulator or live")

    report = command("report", _report, "one table of the runs saved below a folder")
    report.add_argument("folder", type=Path)
    report.add_argument("--json", action="store_true")

    doctor = command("doctor", _doctor, "check versions, keys, ports, audio and write access")
    doctor.add_argument("--out", type=Path, default=Path("voicekit-out"))

    command("workshop", _workshop, "open the notebooks in JupyterLab")
    return parser


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn K=V pairs into settings: V is JSON where it parses, else text; `a.b=v` sets one entry of a mapping.

    Raises ValueError for a pair without "=".
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise ValueError(f"--set takes NAME=VALUE, not {pair!r}")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        outer, dot, inner = key.partition(".")
        if dot:
            settings.setdefault(outer, {})[inner] = value
        else:
            settings[key] = value
    for name in ("behavior",):
        if settings.get(name) in ("none", "None", ""):
            settings[name] = None
    if isinstance(settings.get("without_asking"), (list, str)):
        names = settings["without_asking"]
        settings["without_asking"] = frozenset(names.split(",") if isinstance(names, str) else names)
    return settings


def _run(options: argparse.Namespace) -> int:
    from voicekit.experiment import run

    settings = parse_settings(options.set)
    if options.out is not None:
        _writable(options.out)
    result = run(
        options.scenario,
        model=options.model,
        target=options.target,
        clock=options.clock,
        seed=options.seed,
        **settings,
    )
    if options.out is not None:
        result.save(options.out)
    if options.json:
        print(json.dumps(result.to_json(), ensure_ascii=False))
    else:
        print(result.title)
        for name, value in result.values.items():
            if value is not None:
                print(f"  {name:20} {value:.3f}" if isinstance(value, float) else f"  {name:20} {value}")
        if options.out is not None:
            print(f"saved in {options.out}")
    if result.problem:
        _say(f"voicekit: the run failed: {result.problem}")
        return 1
    return 0


def _demo(options: argparse.Namespace) -> int:
    from voicekit.experiment import compare, run
    from voicekit.progress import progress

    out: Path = options.out
    _writable(out)
    runs = []
    for scenario, model in progress(CORE, "conversations"):
        result = run(scenario, model=model)
        folder = result.save(out / f"{scenario}--{model}")
        result.timeline().savefig(folder / "timeline.png", dpi=110)
        runs.append(result)
    table = compare(*runs)
    table.to_csv(out / "table.csv", index=False)
    if options.json:
        print(json.dumps({"runs": [each.to_json() for each in runs]}, ensure_ascii=False))
        return 0
    shown = table[["scenario", "model", *CORE_METRICS]]
    print("Seconds, measured on simulated models (six-second tool):\n")
    print(shown.to_string(index=False, float_format=lambda value: f"{value:.2f}"))
    print(f"\nPictures (timeline.png) and what the caller heard (heard.flac): {out}")
    print("Next: `voicekit workshop` opens the lessons; `voicekit run order_status --model gpt-realtime` runs one alone.")
    return 0


def _list(_options: argparse.Namespace) -> int:
    from voicekit import audio, models
    from voicekit.experiment import scenarios

    print("Scenarios")
    for scenario in scenarios().values():
        print(f"  {scenario.name:22} {scenario.about} [{', '.join(scenario.tools)}]")
    print("Models (simulated; live with a key)")
    for model in models.models():
        print(f"  {model:50} {models.provider(model)}")
    print("Clips (synthetic speech)")
    for clip in audio.clips().values():
        print(f"  {clip.name:22} {clip.language} {clip.speaker:12} {clip.transcript}")
    return 0


def _simulator(options: argparse.Namespace) -> int:
    from voicekit import serve

    return serve.forever(options.port, options.tls_port, seed=options.seed, **parse_settings(options.set))


def _probe(options: argparse.Namespace) -> int:
    from voicekit.experiment import probe

    for line in probe(options.model, target=options.target):
        print(line)
    return 0


def _report(options: argparse.Namespace) -> int:
    from voicekit.experiment import compare
    from voicekit.runs import Run

    folders = sorted(path.parent for path in options.folder.glob("**/run.json")) if options.folder.is_dir() else []
    if not folders:
        raise ValueError(f"no saved run below {options.folder}; save one with `voicekit run … --out {options.folder}/name`")
    runs = [Run.load(folder) for folder in folders]
    if options.json:
        print(json.dumps({"runs": [each.to_json() for each in runs]}, ensure_ascii=False))
    else:
        print(compare(*runs).T.to_string(header=False))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from voicekit.doctor import checks

    failed = 0
    for name, mend, text in checks(options.out):
        print(f"{'ok  ' if not mend else 'MEND'} {name:12} {text}{f' -> {mend}' if mend else ''}")
        failed += bool(mend)
    return 1 if failed else 0


def _workshop(_options: argparse.Namespace) -> int:
    from voicekit.doctor import open_workshop

    return open_workshop()


def _writable(folder: Path) -> None:
    """Find out before the work whether its result can be kept. Raises ValueError."""
    existing = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{existing} is a file, not a folder; choose another --out")
    probe = existing / ".voicekit-probe"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"cannot write to {existing} ({error.strerror}); choose another --out") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
