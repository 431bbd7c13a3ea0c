"""What the notebooks use: target, predictions, frames to read, and a smallest application to try answers out with."""

from __future__ import annotations

import asyncio
import html
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from voicekit.audio import RATE, clips
from voicekit.clock import run_blocking
from voicekit.experiment import Plan, Scenario, Target
from voicekit.instructions import instructions
from voicekit.journal import Journal
from voicekit.metrics import played, utterances
from voicekit.models import Claim, claims, facts
from voicekit.runs import Run
from voicekit.sessions.base import RealtimeSession, Said, SessionConfig, ToolCall, TurnDone
from voicekit.tools import Tool
from voicekit.world import World

if TYPE_CHECKING:
    import pandas as pd

# A service that has sent nothing for so long has nothing more to say.
QUIET_SECONDS = 6.0


class HasWire(Protocol):
    """What has frames to show: a `Run` or a `Loop`."""

    @property
    def wire_rows(self) -> list[dict[str, Any]]: ...


def target() -> Target:
    """Where the lessons run: VOICEKIT_TARGET, or "simulator". Raises ValueError for anything else than the three."""
    wanted = os.environ.get("VOICEKIT_TARGET", "simulator")
    if wanted not in ("simulator", "live", "replay"):
        raise ValueError(f"VOICEKIT_TARGET is simulator, live or replay, not {wanted!r}")
    return cast(Target, wanted)


def predicted(guess: float | None, measured: Any, what: str = "seconds", kind: str = "") -> str:
    """Put a prediction beside the measurement; `guess` None means that none was made.

    What is counted (`measured` is an int) is shown in whole numbers. `kind` is where the number comes from, such as
    "calculated"; by default what the lessons' target makes it, "simulated" or "live". Raises ValueError for a guess
    that is no number.
    """
    if guess is not None and (isinstance(guess, bool) or not isinstance(guess, Real)):
        raise ValueError(f"a prediction is a number, such as GUESS = 6.5, not {guess!r}")
    what += f" ({kind or provenance()})"
    if measured is None:
        return f"Nothing to measure: it did not happen in this run. You said {'so' if guess is None else guess}."
    if guess is None:
        return f"Measured: {_number(measured)} {what}. You made no prediction; go back and write a number first."
    if isinstance(measured, Integral) and float(guess).is_integer():
        guess = int(guess)
    off = f"{'+' if measured >= guess else ''}{_number(measured - guess)}"
    return f"You said {_number(guess, measured)}, measured {_number(measured)} {what}: {off}."


def _number(value: Any, like: Any = 0) -> str:
    is_counted = isinstance(value, Integral) and isinstance(like, Integral)
    return f"{value:d}" if is_counted else f"{value:.2f}"


def provenance(*runs: Run) -> str:
    """ "simulated" or "live": where the numbers of these runs come from.

    Without a run what the lessons' target makes it; "replayed" is then one more, for a recording may be either.
    """
    found = {run.meta["provenance"] for run in runs}
    return " and ".join(sorted(found)) or {"simulator": "simulated", "live": "live", "replay": "replayed"}[target()]


def frames(run: HasWire, *types: str, shorten: int = 90) -> pd.DataFrame:
    """The frames of a run as one table (t, direction, type, frame), only the `types` given, audio frames left out.

    `frame` is the JSON text cut to `shorten` characters; the whole frame is in `run.wire`.
    """
    rows = []
    for row in run.wire_rows:
        text = json.dumps(row["frame"], ensure_ascii=False)
        is_audio = "bytes of audio>" in text
        if (row["type"] in types) if types else not is_audio:
            cut = text if len(text) <= shorten else text[: shorten - 1] + "…"
            rows.append({"t": row["t"], "direction": row["direction"], "type": row["type"], "frame": cut})
    return _readable()(rows, columns=["t", "direction", "type", "frame"])


def decisions(run: Run) -> pd.DataFrame:
    """What happened to the calls and what the application decided, in order (t, lane, kind, call_id, text)."""
    rows = [event for event in run.event_rows if event["lane"] in ("tool", "decision")]
    return _readable()(rows, columns=["t", "lane", "kind", "call_id", "text"]).fillna("")


def disputes(*models: str) -> list[tuple[Claim, ...]]:
    """Where two claims about one property of one of the `models` differ: all claims about it, oldest date first.

    Words only: what is disputed in figures, such as a latency, is left out. A date without a day comes before the days
    of its month, although it may be any of them. Raises ValueError for an unknown model.
    """
    found: dict[tuple[str, str], list[Claim]] = {}
    for model in models:
        facts(model)
        for claim in (each for each in claims() if each.model == model):
            found.setdefault((claim.property, model), []).append(claim)
    differ = [rows for rows in found.values() if len({row.value for row in rows}) > 1]
    words = [rows for rows in differ if not any(row.value.replace(".", "", 1).isdigit() for row in rows)]
    return [tuple(sorted(rows, key=lambda row: row.date)) for rows in words]


def claims_table(rows: Iterable[Claim]) -> pd.DataFrame:
    """Claims as a table (property, model, date, value, claim, evidence, source), in the order given, texts whole."""
    columns = ["property", "model", "date", "value", "claim", "evidence", "source"]
    return _readable()([[getattr(row, name) for name in columns] for row in rows], columns=columns)


def table(rows: Sequence[tuple[str, Run]], *metrics: str) -> pd.DataFrame:
    """The named metrics of several runs, one row each, with a label of your own."""
    import pandas as pd

    if not metrics:
        raise ValueError('table shows the metrics you name: vk.table([("a label", run)], "dead_air_longest")')
    values = {label: run.metrics[list(metrics)].tolist() for label, run in _pairs(rows)}
    found = pd.DataFrame.from_dict(values, orient="index", columns=list(metrics))
    return found.rename_axis(columns=provenance(*(run for _, run in rows)))


def _pairs(rows: Any) -> list[tuple[str, Run]]:
    """Raises ValueError for what is no list of labels with runs."""
    pairs = [] if isinstance(rows, Run) else list(rows)
    if not pairs or not all(isinstance(each, (tuple, list)) and isinstance(each[-1], Run) for each in pairs):
        raise ValueError('give a list of runs with a label each: [("a label", run), ("another", other)]')
    named: dict[str, Run] = {}
    for label, run in pairs:
        name = str(label)
        while name in named:
            name += " (again)"  # of two runs with one label both are shown
        named[name] = run
    return list(named.items())


def moments(run: Run) -> pd.Series:
    """When what happened around a caller's first question that led to a tool call, in session seconds.

    "caller stops", "service notices", "model calls the tool", "tool is done", "caller hears the answer"; None for a
    moment the run does not have. OpenAI says when it notices. Gemini does not: the first frame after the caller's last
    sound is taken for it, which on the simulator is the transcript, sent in that moment.
    """
    import pandas as pd

    end = next((each.audible[-1][1] for each in utterances(run.event_rows) if each.audible), float("inf"))
    events = [event for event in run.event_rows if event["t"] > end]
    heard = (start for each in played(run.event_rows) for start, _ in each.audible if start > end)
    said = (event["t"] for event in events if event["kind"] == "speech_stopped")
    seen = (row["t"] for row in run.wire_rows if row["direction"] == "received" and row["t"] > end)
    found = {
        "caller stops": end if end < float("inf") else None,
        "service notices": next(said, next(seen, None)),
        "model calls the tool": next((event["t"] for event in events if event["kind"] == "proposed"), None),
        "tool is done": next((event["t"] for event in events if event["kind"] == "done"), None),
        "caller hears the answer": next(heard, None),
    }
    return pd.Series(found, name=f"seconds, {provenance(run)}", dtype=float)


def waits(rows: Sequence[tuple[str, Run]]) -> pd.DataFrame:
    """The silence before the first answer, cut at its `moments`: one column per run, seconds, the sum below.

    It is one silence only where nobody speaks between the question and the answer. Of a run in which somebody does, or
    in which no tool was done, the column is empty, and a line says so.
    """
    import pandas as pd

    names = ["detection", "model, before the tool", "tool", "model, after the tool"]
    found = pd.DataFrame(index=[*names, "the silence"])
    for label, run in _pairs(rows):
        cut = moments(run)
        waits = cut.diff().iloc[1:].set_axis(names)
        spoken = any(cut.iloc[0] < each.start < cut.iloc[-1] for each in utterances(run.event_rows)[1:])
        if spoken or not (waits >= 0).all():
            print(f"{label}: this is not one silence; look at run.timeline() and run.metrics['dead_air_longest']")
            waits = waits * float("nan")
        found[label] = [*waits, waits.sum(skipna=False)]
    return found.rename_axis(columns=provenance(*(run for _, run in rows)))


@dataclass(frozen=True)
class Loop:
    """What a `loop` did: the calls and the answers to them (call id, result), what was said, and every frame."""

    calls: list[ToolCall]
    answers: list[tuple[str, Any]]
    said: list[str]
    wire_rows: list[dict[str, Any]] = field(repr=False)


def loop(
    clip: str,
    answer: Tool | Callable[[ToolCall], Any],
    *,
    model: str,
    tools: Sequence[str] = (),
    target: Target = "simulator",
) -> Loop:
    """The smallest application there is: say `clip`, answer every call at once, ask for speech. It checks nothing.

    answer   a Tool, what its function returns is sent as it is; or a function of the call that gives the result, or a
             list of pairs (call id, result) to answer under ids of your choice
    tools    names of the tools of the kit's shop that the model is offered, if `answer` is no Tool
    """
    from voicekit.application import SessionClock, service
    from voicekit.sessions import open_session

    offered = [answer] if isinstance(answer, Tool) else [each for each in World().tools() if each.name in tools]
    plan = Plan.of(Scenario("loop"), model=model, target=target)
    journal = Journal(now := SessionClock())
    config = SessionConfig(
        model=model,
        instructions=instructions(plan.policy, [each.name for each in offered]),
        tools=tuple({"name": t.name, "description": t.description, "parameters": t.parameters} for t in offered),
    )

    async def main() -> Loop:
        done = Loop([], [], [], journal.wire)
        async with service(plan) as endpoint, open_session(config, endpoint, tap=journal.add_wire) as session:
            now.start()
            sound = clips()[clip].samples
            await session.send_audio(np.concatenate([sound, np.zeros(RATE, sound.dtype)]).tobytes())
            await _answer_all(session, answer, done)
        return done

    return run_blocking(main, plan.clock)


async def _answer_all(session: RealtimeSession, answer: Tool | Callable[[ToolCall], Any], done: Loop) -> None:
    unspoken = False
    events = aiter(session)
    while True:
        try:
            event = await asyncio.wait_for(anext(events), QUIET_SECONDS)
        except (TimeoutError, StopAsyncIteration):
            return
        if isinstance(event, ToolCall):
            done.calls.append(event)
            for call_id, result in await _answers(event, answer):
                done.answers.append((call_id, result))
                await session.send_result(call_id, result)
            unspoken = not session.capabilities.implied_reply
        elif isinstance(event, Said) and event.final:
            done.said.append(event.text)
        elif isinstance(event, TurnDone) and unspoken:
            unspoken = False
            await session.respond()


async def _answers(call: ToolCall, answer: Tool | Callable[[ToolCall], Any]) -> list[tuple[str, Any]]:
    if isinstance(answer, Tool):
        result = await answer.call(answer.validate(call.arguments))
        return [(call.call_id, result if isinstance(result, dict) else {"result": result})]
    result = answer(call)
    return result if isinstance(result, list) else [(call.call_id, result)]


@cache
def _readable() -> type[pd.DataFrame]:
    """A DataFrame that a notebook shows with whole, left-aligned texts. Made late: pandas takes its time to load."""
    import pandas as pd

    class Readable(pd.DataFrame):  # type: ignore[misc]
        @property
        def _constructor(self) -> type[pd.DataFrame]:
            return Readable

        def _repr_html_(self) -> str:
            head = "".join(f'<th style="text-align:left">{html.escape(str(name))}</th>' for name in self.columns)
            rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.itertuples(index=False))
            return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    return Readable


def _cell(value: Any) -> str:
    text = html.escape(f"{value:.3f}" if isinstance(value, float) else str(value))
    shown = f"<code>{text}</code>" if text.startswith("{") else text
    return f'<td style="text-align:left;vertical-align:top">{shown}</td>'
