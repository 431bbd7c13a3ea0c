"""How much faster than real time a conversation runs, where the time goes, and whether real time measures the same.

    python tests/bench/bench_speed.py            # speed and profile, both providers
    python tests/bench/bench_speed.py --real     # also a minute in real time per provider
    python -m pytest tests/bench/bench_speed.py -s

The ratio is conversation seconds by wall seconds (and by processor seconds, which a busy machine spoils less): from
"session connected" to the finished run, journal, recording and metrics included, the set-up of the session (imports,
certificate, handshakes) not. The best of several runs counts: what else the machine does only ever adds.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import voicekit as vk
from voicekit import application, vad
from voicekit.runs import Run
from voicekit.simulator import recogniser

MODELS = ("gpt-realtime", "gemini-3.8-live")
TOLERANCE = 0.06  # seconds between real and virtual
TURNS = ("order_status", "opening_hours", "stock", "shipping", "returns", "thanks")
MINUTE = vk.Scenario(
    "a_minute",
    tools={"get_order_status": 6.0, "check_stock": 1.0, "get_shipping": 2.0},
    lines=(
        vk.Line(TURNS[0], at=0.5),
        *(vk.Line(clip, after="agent_done", seconds=1.0, patience=40) for clip in TURNS[1:]),
    ),
)


class Stopwatch(application.SessionClock):
    """The run's own clock, which also remembers the wall time at which the session was open."""

    begun = (0.0, 0.0)

    def start(self) -> None:
        super().start()
        Stopwatch.begun = (time.perf_counter(), time.process_time())


def timed(model: str) -> tuple[Run, float, float]:
    """A run, and the wall and processor seconds from the open session to its end; it hears all for the first time."""
    vad.Recall.known.clear()
    recogniser.answers.clear()
    gc.collect()
    run = vk.run(MINUTE, model=model, max_seconds=300.0)
    wall, processor = Stopwatch.begun
    return run, time.perf_counter() - wall, time.process_time() - processor


def seconds(run: Run) -> float:
    return float(run.event_rows[-1]["t"])


def best(model: str, tries: int) -> tuple[float, float, float]:
    """Conversation seconds, wall seconds, processor seconds: the least of `tries` runs after a first one."""
    run = timed(model)[0]
    assert not run.problem, run.problem
    measured = [timed(model)[1:] for _ in range(tries)]
    return seconds(run), min(wall for wall, _ in measured), min(processor for _, processor in measured)


def told(model: str, said: float, wall: float, processor: float) -> str:
    return (
        f"{model}: {said:.1f} s of conversation in {wall:.3f} s, {said / wall:.0f} times real time"
        f" ({processor:.3f} s of processor time, {said / processor:.0f} times)"
    )


def profile(model: str) -> Iterator[str]:
    """Where the processor time of one run goes, by module, and the dearest functions."""
    profiler = cProfile.Profile()
    work = application.converse

    async def profiled(plan: object) -> Run:
        profiler.enable()
        try:
            return await work(plan)  # type: ignore[arg-type]
        finally:
            profiler.disable()

    application.converse = profiled  # type: ignore[assignment]
    try:
        run = vk.run(MINUTE, model=model, max_seconds=300.0)
    finally:
        application.converse = work
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    total = sum(row[2] for row in stats.values())
    places: dict[str, float] = {}
    for (file, _, name), row in stats.items():
        places[place(file, name)] = places.get(place(file, name), 0.0) + row[2]
    yield f"  {seconds(run):.0f} s of conversation, {len(run.wire_rows)} frames; share of the (profiled) time:"
    for where, spent in sorted(places.items(), key=lambda pair: -pair[1])[:14]:
        yield f"  {100 * spent / total:5.1f} %  {where}"
    yield "  dearest functions:"
    for (file, line, name), row in sorted(stats.items(), key=lambda pair: -pair[1][2])[:14]:
        yield f"  {100 * row[2] / total:5.1f} %  {row[0]:6d} x  {Path(file).name}:{line} {name}"


def place(file: str, name: str) -> str:
    parts = Path(file).parts
    if "voicekit" in parts:
        inside = parts[len(parts) - parts[::-1].index("voicekit") :]
        return "voicekit/" + "/".join(inside)
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1]
    return "built in: " + name.split(" of ")[0][:50] if file == "~" else f"python: {Path(file).parent.name}"


def differences(model: str) -> dict[str, tuple[object, object]]:
    """Metrics of a minute that differ between virtual and real time by more than `TOLERANCE`."""
    virtual, real = (vk.run(MINUTE, model=model, clock=clock, max_seconds=300.0) for clock in ("virtual", "real"))
    found = {}
    for name, value in virtual.values.items():
        other = real.values[name]
        number = isinstance(value, float) and isinstance(other, float)
        if name != "audio_check_ms" and (abs(value - other) > TOLERANCE if number else value != other):  # type: ignore[operator]
            found[name] = (value, other)
    return found


@pytest.fixture(autouse=True)
def _stopwatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "SessionClock", Stopwatch)


@pytest.mark.parametrize("model", MODELS)
def test_a_minute_takes_less_than_a_hundredth_of_it(model: str) -> None:
    said, wall, processor = best(model, 5)
    print(f"\n{told(model, said, wall, processor)}")
    assert said > 55
    assert said / wall >= 100


@pytest.mark.parametrize("model", MODELS)
def test_a_minute_in_real_time_measures_the_same(model: str) -> None:
    assert differences(model) == {}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--real", action="store_true", help="compare with real time, a minute per provider")
    options.add_argument("--tries", type=int, default=7)
    chosen = options.parse_args()
    application.SessionClock = Stopwatch  # type: ignore[misc]
    for model in MODELS:
        print(told(model, *best(model, chosen.tries)))
        print("\n".join(profile(model)))
        if chosen.real:
            print(f"  real against virtual time, apart by more than {TOLERANCE} s: {differences(model) or 'nothing'}")


if __name__ == "__main__":
    main()
