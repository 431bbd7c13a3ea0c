"""The check of notebook 14: may a row of claims be made from these runs, and is it the right one?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from voicekit.journal import COLUMNS
from voicekit.lessons.findings import Findings
from voicekit.runs import Run

AT_LEAST = 5  # runs with a value: below that, a median and a range say little
NOTICED, DAY = 6.0, "2001-01-01"
# Seconds from "the caller has stopped" to the call, made up for the check: nobody has measured them.
MADE_UP = (0.61, 0.95, 0.70, 0.66, 0.82)
KEYS = ("value", "low", "high", "n", "evidence", "date")
Row = Callable[[list[Run]], Mapping[str, Any]]


def made_up(latency: float | None, *, provenance: str = "live", model: str = "gpt-realtime", problem: str = "") -> Run:
    """A run that never took place: a caller stops, and `latency` seconds later there is a call (None: there is none).

    It has the journal of a run and nothing else. Its `provenance` is what it is to be taken for; it is for checks only.
    """
    events = [
        _event(5.44, "caller", "speech_stop", item="order_status", audible=[[0.5, 5.44]], start=0.5, stop=5.44),
        _event(NOTICED, "session", "speech_stopped"),
        _event(NOTICED, "session", "turn_started", item="resp_0001", calls=[]),
    ]
    if latency is not None:
        events.append(_event(NOTICED + latency, "tool", "proposed", call_id="call_0001", turn="resp_0001"))
    if problem:
        events.append(_event(9.0, "session", "problem", text=problem, recoverable=False))
    meta = {"scenario": "made_up", "model": model, "provenance": provenance, "started": f"{DAY}T12:00:00+00:00"}
    return Run(meta, events, [], [], {}, np.zeros((0, 2), np.int16))


def _event(t: float, lane: str, kind: str, **more: Any) -> dict[str, Any]:
    known = {name: more.pop(name, None) for name in ("item", "call_id", "text")}
    return dict(zip(COLUMNS, (t, lane, kind, *known.values(), more), strict=True))


def measured_row(function: Row) -> Findings:
    """Notebook 14: does `function(runs)` make the row of a call latency, and refuse runs that do not support one?

    A row is a mapping with value (the median), low, high (all in seconds), n (runs with a value), evidence and date
    (the day of the runs). To refuse is to raise ValueError. The runs are made up (`made_up`); none took place.
    """
    live = [made_up(each) for each in MADE_UP]
    try:
        row = function(live)
    except Exception as error:
        return Findings((f"a row from five live runs; the function raised {type(error).__name__}: {error}",))
    if not isinstance(row, Mapping) or (lacking := [name for name in KEYS if name not in row]):
        wanted = ", ".join(lacking if isinstance(row, Mapping) else KEYS)
        return Findings((f"a dict with {wanted}.",))
    wrong = _wrong(row)
    return Findings((*wrong, *_not_refused(function, live)))


def _wrong(row: Mapping[str, Any]) -> list[str]:
    """What is wrong with the row of five live runs."""
    low, *_, high = ordered = sorted(MADE_UP)
    right = {"value": ordered[2], "low": low, "high": high, "n": 5, "evidence": "measured", "date": DAY}
    words = {"value": "the median", "low": "the smallest", "high": "the largest", "date": "the day of the runs"}
    return [
        f"{name} {right[name]!r} ({words.get(name, 'of five live runs')}), not {row[name]!r}."
        for name in KEYS
        if (row[name] != right[name] if isinstance(right[name], str) else not _is_near(row[name], right[name]))
    ]


def _is_near(value: Any, right: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and abs(float(value) - right) < 0.005


def _not_refused(function: Row, live: Sequence[Run]) -> list[str]:
    """The runs that were taken although they do not support a row, and why not."""
    simulated = [made_up(each, provenance="simulated") for each in MADE_UP]
    findings = []
    row = _taken(function, simulated)
    if row is not None and row.get("evidence") != "simulated":
        findings.append(f"honesty: five simulated runs, and the row says {row.get('evidence')!r}.")
    row = _taken(function, [*live, made_up(None)])
    if row is not None and row.get("n") != 5:
        findings.append(f"a count of values: in one of six runs no call was made, and n is {row.get('n')!r}.")
    cases: tuple[tuple[str, list[Run]], ...] = (
        ("four runs; five are the least", [*live[:4]]),
        ("five runs, of which one made no call: four values", [*live[:4], made_up(None)]),
        ("live and simulated runs in one row", [*live, simulated[0]]),
        ("runs of two models in one row", [*live, made_up(0.7, model="gpt-realtime-2.1")]),
        ("a run that ended with a problem", [*live, made_up(0.7, problem="the service hung up")]),
        ("no runs at all", []),
    )
    return [*findings, *(f"a refusal: {what}." for what, runs in cases if _taken(function, runs) is not None)]


def _taken(function: Row, runs: list[Run]) -> Mapping[str, Any] | None:
    """The row that is made of runs; None if they are refused, as they are by ValueError and nothing else."""
    try:
        return function(runs)
    except ValueError:
        return None
    except Exception as error:
        return {"evidence": f"{type(error).__name__}: {error}", "n": None}
