"""The command line: `voicekit demo`, `run`, `list`, `simulator`, `probe`, `report`, `doctor`, `workshop`.

Exit code 0 is success, 1 a run that failed, 2 bad usage. An error is one line on stderr that names the mend.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from voicekit import __version__
from voicekit.ledger import LedgerError

if TYPE_CHECKING:
    from voicekit.runs import Run

CORE = (
    ("order_status", "gemini-3.1-flash-live-preview"),
    ("order_status_chatty", "gpt-4o-realtime-preview"),
    ("order_status_chatty", "gemini-3.1-flash-live-preview"),
    ("order_status_chatty", "gpt-realtime"),
    ("order_status_chatty", "gemini-3.8-live"),
)
CORE_METRICS = ("response_latency", "dead_air_longest", "time_to_result", "talk_over", "unanswered_calls")
LEGEND = """The caller asks where an order is; in order_status_chatty also for the opening hours, while the tool runs.
Look at dead_air_longest, the longest silence before the result was heard: in the first three rows the model
waits for its tool, in the last two it goes on talking. time_to_result: from the end of the question to the result.
response_latency: from the end of a sentence to the agent's next word, the median. talk_over: both at once."""
# What has an option of its own, and what cannot be written on a command line.
OPTIONS = ("scenario", "model", "target", "clock", "seed")
FROM_PYTHON = ("policy", "tools", "guardrails", "revision_key", "backend", "supervisor", "earlier")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
    except ValueError as error:
        return _fail(error, 2)
    except SystemExit as end:  # after --help
        return int(end.code or 0)
    try:
        return int(options.call(options) or 0)
    except BrokenPipeError:  # `voicekit list | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted", 1)
    except ValueError as error:
        if options.debug:
            raise
        return _fail(error, 2)
    except LedgerError as error:  # a path that cannot be used is a wrong setting
        if options.debug:
            raise
        return _fail(error, 2)
    except Exception as error:  # whatever it is, the user gets one line, not a traceback
        if options.debug:
            raise
        return _fail(f"{type(error).__name__}: {error} (voicekit --debug {options.command} … shows where)", 1)


class _Parser(argparse.ArgumentParser):
    """argparse, with its errors as ValueErrors: one line instead of the usage and a line."""

    def error(self, message: str) -> NoReturn:
        hint = " (a setting is given by --set NAME=VALUE)" if "unrecognized" in message else ""
        raise ValueError(f"{message}{hint}; `{self.prog} --help` shows what there is")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="voicekit", description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--version", action="version", version=f"voicekit {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    def command(name: str, call: Any, about: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        sub.set_defaults(call=call)
        return sub

    demo = command("demo", _demo, "run the core experiments: a table, pictures and heard audio in a folder")
    demo.add_argument("--out", type=Path, default=Path("voicekit-out"), help="where to (default: %(default)s)")
    demo.add_argument("--json", action="store_true", help="print one JSON object instead of the table")

    run = command("run", _run, "run one scenario on one model")
    run.add_argument("scenario")
    run.add_argument("--model", required=True)
    run.add_argument("--target", default="simulator", help="simulator, live or replay")
    run.add_argument("--clock", default=None, choices=("virtual", "real"), help="default: virtual; real for live")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--set", action="append", default=[], metavar="K=V", help="any setting or policy field")
    run.add_argument("--json", action="store_true", help="print run, metrics and calls as one JSON object")
    run.add_argument("--out", type=Path, default=None, help="save the run in this folder")

    command("list", _list, "scenarios, models and clips")

    simulator = command("simulator", _simulator, "serve the simulated providers to any stock client")
    simulator.add_argument("--port", type=int, default=8765, help="default: %(default)s; 0 takes a free one")
    simulator.add_argument("--tls-port", type=int, default=None, help="a second port, for clients that want two")
    simulator.add_argument("--seed", type=int, default=0)
    simulator.add_argument(
        "--set", action="append", default=[], metavar="K=V", help="language=de, claims.NAME=VALUE, faults.NAME=VALUE"
    )

    probe = command("probe", _probe, "find out by conversation what a model does while a tool runs")
    probe.add_argument("model")
    probe.add_argument("--target", default="simulator", help="simulator or live")

    report = command("report", _report, "one table of the runs saved below a folder")
    report.add_argument("folder", type=Path)
    report.add_argument("--json", action="store_true", help="print one JSON object instead of the table")

    doctor = command("doctor", _doctor, "check versions, keys, ports, audio and write access")
    doctor.add_argument("--out", type=Path, default=Path("voicekit-out"), help="the folder runs are to be saved in")

    command("workshop", _workshop, "open the notebooks in JupyterLab")
    return parser


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn K=V pairs into settings: V is JSON where it parses, else text; `a.b=v` sets one entry of a mapping.

    Raises ValueError for a pair without "=".
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        outer, dot, inner = key.partition(".")
        if not separator or not outer or bool(dot) != bool(inner):
            raise ValueError(f"--set takes NAME=VALUE or NAME.ENTRY=VALUE, not {pair!r}")
        try:
            value = json.loads(text)
        except ValueError:
            value = None if text == "None" else text
        if not dot:
            settings[key] = value
        elif isinstance(settings.setdefault(outer, {}), dict):
            settings[outer][inner] = value
        else:
            raise ValueError(f"--set {pair}: {outer} has a value already; set the one or the other")
    if isinstance(settings.get("without_asking"), (list, str)):
        names = settings["without_asking"]
        names = names.split(",") if isinstance(names, str) else names
        settings["without_asking"] = frozenset(name for name in names if name != "")  # nothing after "=": none
    return settings


def _run(options: argparse.Namespace) -> int:
    from voicekit.experiment import Plan, run_plan

    settings = parse_settings(options.set)
    for name in settings:
        if name in OPTIONS:
            raise ValueError(f"{name} has an option of its own, not --set: see `voicekit run --help`")
        if name in FROM_PYTHON:
            raise ValueError(f"{name} takes Python objects; set it in a program or notebook: vk.run(…, {name}=…)")
    if options.out is not None:
        check_folder(options.out)
    choices = {"model": options.model, "target": options.target, "clock": options.clock, "seed": options.seed}
    try:
        plan = Plan.of(options.scenario, **choices, **settings)
    except (TypeError, AttributeError) as error:  # a number where a name belongs, a name where a mapping belongs
        raise ValueError(f"--set {' '.join(options.set)}: a value of the wrong kind ({error})") from None
    result = run_plan(plan)
    if options.out is not None:
        _save(result, options.out)
    if options.json:
        _print_json(result.to_json())
    else:
        print(result.title)
        for name, value in result.values.items():
            if value is not None:
                print(f"  {name:20} {value:.3f}" if isinstance(value, float) else f"  {name:20} {value}")
        for owed in result.undelivered:
            print(f"  undelivered: {owed['text']} ({owed['why']})")
        if options.out is not None:
            print(f"saved in {options.out}")
    if result.problem:
        return _fail(f"the run failed: {result.problem}", 1)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from voicekit.experiment import run
    from voicekit.progress import progress
    from voicekit.sweeps import compare

    out: Path = options.out
    for scenario, model in CORE:
        check_folder(out / f"{scenario}--{model}")
    runs = []
    for scenario, model in progress(CORE, "conversations"):
        result = run(scenario, model=model)
        _save(result, out / f"{scenario}--{model}")
        runs.append(result)
    table = compare(*runs)
    table.to_csv(out / "table.csv", index=False)
    if options.json:
        _print_json({"runs": [each.to_json() for each in runs]})
    else:
        shown = table[["scenario", "model", *CORE_METRICS]]
        print("Seconds, measured on simulated models (six-second tool):\n")
        print(shown.to_string(index=False, float_format=lambda value: f"{value:.2f}"))
        print(f"\n{LEGEND}")
        print(f"\nPictures (timeline.png) and what the caller heard (heard.flac): {out}")
        print("Next: `voicekit workshop` opens the lessons; `voicekit run order_status --model gpt-realtime` runs one.")
    problems = [f"{each.title}: {each.problem}" for each in runs if each.problem]
    return _fail(problems[0], 1) if problems else 0


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

    settings = {"claims": {}, "faults": {}, "language": "en", **parse_settings(options.set)}
    if unknown := sorted(set(settings) - {"claims", "faults", "language"}):
        raise ValueError(f"--set {unknown[0]}: the simulator takes language, claims.NAME and faults.NAME")
    return serve.forever(options.port, options.tls_port, seed=options.seed, **settings)


def _probe(options: argparse.Namespace) -> int:
    from voicekit.experiment import probe

    for line in probe(options.model, target=options.target):
        print(line)
    return 0


def _report(options: argparse.Namespace) -> int:
    from voicekit.runs import Run
    from voicekit.sweeps import compare

    folders = sorted(path.parent for path in options.folder.glob("**/run.json")) if options.folder.is_dir() else []
    if not folders:
        raise ValueError(f"no saved run below {options.folder}; `voicekit run … --out {options.folder}/name` saves one")
    runs, damaged = [], []
    for folder in folders:
        try:
            runs.append(Run.load(folder))
        except ValueError as error:
            damaged.append(str(error))
    if damaged and not runs:
        raise ValueError("; ".join(damaged))
    if options.json:
        _print_json({"runs": [each.to_json() for each in runs]})
    else:
        print(compare(*runs).T.to_string(header=False))
    return _fail(f"left out {len(damaged)} of {len(folders)} runs: {'; '.join(damaged)}", 1) if damaged else 0


def _doctor(options: argparse.Namespace) -> int:
    from voicekit.doctor import checks

    failed = 0
    for name, mend, text in checks(options.out):
        print(f"{'MEND' if mend else 'ok  '} {name:22} {text}{f' -> {mend}' if mend else ''}")
        failed += bool(mend)
    return 1 if failed else 0


def _workshop(_options: argparse.Namespace) -> int:
    from voicekit.doctor import open_workshop

    return open_workshop()


def check_folder(folder: Path) -> None:
    """Find out before the work whether a run can be saved as `folder`.

    Raises ValueError when it cannot be written, or holds something else: saving replaces the whole folder.
    """
    existing = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{existing} is a file, not a folder; choose another --out")
    if existing == folder and any(folder.iterdir()) and not (folder / "run.json").is_file():
        raise ValueError(f"{folder} holds other files than a saved run; choose a new folder with --out")
    trial = existing / f".voicekit-{os.getpid()}"
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ValueError(f"cannot write to {existing} ({error.strerror}); choose another --out") from None


def _save(run: Run, folder: Path) -> None:
    """Save a run, and then its picture: whatever becomes of the picture, the run is kept."""
    run.save(folder)
    run.timeline().savefig(folder / "timeline.png", dpi=110)


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fail(error: object, code: int) -> int:
    print(f"voicekit: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
