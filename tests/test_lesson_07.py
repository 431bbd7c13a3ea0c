"""Notebook 07: stand still, talk on, hand over; and finished, acknowledged, generated and heard as four records."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from talks import talk

import voicekit as vk
from voicekit.metrics import played, utterances
from voicekit.runs import Run

MODEL = "gpt-live-1"
STANDS_STILL = ("gpt-4o-realtime-preview", "gemini-3.1-flash-live-preview")
TALKS_ON = ("gpt-realtime", "gemini-3.8-live")
ALL = (*STANDS_STILL, *TALKS_ON, MODEL)
STOP = vk.Scenario(
    "stop_please",
    tools={"book_appointment": 8.0},
    lines=(
        vk.Line("book_thursday", at=0.5),
        vk.Line("yes_please", after="agent_done", seconds=0.6),
        vk.Line("opening_hours", after="tool_starts", seconds=1.0),
        vk.Line("stop_talking", after="heard_text", text="We are open", seconds=0.2),
    ),
)


def call(model: str, **settings: Any) -> Run:
    return talk("order_status_chatty", model, **settings)


@cache
def unspoken() -> tuple[Run, list[dict[str, Any]]]:
    """The call whose answer is acknowledged and never spoken, and what a supervisor saw of it."""
    seen: list[dict[str, Any]] = []
    return vk.run("order_status_chatty", model=MODEL, faults={"unspoken": True}, supervisor=seen.append), seen


def column(name: str, models: tuple[str, ...]) -> list[float]:
    return [call(model).values[name] for model in models]


# The table of the three designs


@pytest.mark.parametrize("model", ALL)
def test_every_design_answers_both_questions_and_nobody_is_talked_over(model: str) -> None:
    run = call(model)
    assert not run.problem
    assert run.values["unanswered_calls"] == 0
    assert run.values["talk_over"] == 0.0
    heard = " ".join(word for each in played(run.event_rows) for _, word in each.words)
    assert "open" in heard and "Friday" in heard


@pytest.mark.parametrize("model", STANDS_STILL)
def test_a_model_that_waits_is_silent_until_the_result(model: str) -> None:
    run = call(model)
    before = [e for e in run.event_rows if e["kind"] == "playing" and e["t"] < run.call_rows[0]["delivered"]]
    assert before == []
    heard = " ".join(word for each in played(run.event_rows) for _, word in each.words)
    assert heard.index("Your order left") < heard.index("We are open")


def test_the_longest_silence_is_long_shorter_and_shortest() -> None:
    still, on, over = (column("dead_air_longest", models) for models in (STANDS_STILL, TALKS_ON, (MODEL,)))
    assert min(still) > 4.0
    assert 2.0 < min(on) <= max(on) < 2.5
    assert max(over) < 2.0


def test_the_result_of_the_one_that_hands_over_comes_last() -> None:
    for name in ("time_to_result", "done_to_heard"):
        still, on, over = (column(name, models) for models in (STANDS_STILL, TALKS_ON, (MODEL,)))
        assert max(still) < min(on) <= max(on) < min(over)
    assert 1.0 < min(column("done_to_heard", TALKS_ON)) <= max(column("done_to_heard", TALKS_ON)) < 2.0
    assert call(MODEL).values["done_to_heard"] > 2.0


def test_a_backend_of_the_service_takes_another_round() -> None:
    client, responses = call(MODEL), call(MODEL, delegation="responses")
    assert responses.values["done_to_heard"] > client.values["done_to_heard"] + 0.5
    assert responses.values["unanswered_calls"] == 0


# Three records


def test_acknowledged_is_not_heard() -> None:
    (lost, _), ordinary = unspoken(), call(MODEL)
    for kind in ("session.commentary.append", "session.commentary.appended"):
        times = [[row["t"] for row in run.wire_rows if row["type"] == kind] for run in (lost, ordinary)]
        assert times[0] == times[1] and len(times[0]) == 1
    assert lost.call_rows[0]["finished"] == ordinary.call_rows[0]["finished"]
    assert lost.call_rows[0]["delivered"] == ordinary.call_rows[0]["delivered"]
    assert lost.values["done_to_heard"] is None and lost.call_rows[0]["heard"] is None
    assert ordinary.call_rows[0]["heard"] is not None
    assert [event["text"] for event in lost.event_rows if event["kind"] == "unspoken"]


def test_the_delegation_has_no_task_and_comes_before_the_order_number() -> None:
    wire = call(MODEL).wire_rows
    at = next(n for n, row in enumerate(wire) if row["type"] == "session.delegation.created")
    assert set(wire[at]["frame"]) == {"type", "event_id", "offset_ms", "delegation"}
    assert set(wire[at]["frame"]["delegation"]) == {"id", "type", "target"}
    words = [
        (n, row["frame"]["delta"]) for n, row in enumerate(wire) if row["type"] == "session.input_transcript.delta"
    ]
    assert all(n > at for n, text in words if "OD-" in text) and any(n < at for n, _ in words)
    assert call(MODEL).call_rows[0]["arguments"] == '{"order_id":"OD-20260818-001"}'


# Speech and work


def test_stop_please_stops_the_speech_and_not_the_booking() -> None:
    run = vk.run(STOP, model=MODEL)
    stop = next(each.start for each in utterances(run.event_rows) if each.clip == "stop_talking")
    spoken = next(each for each in played(run.event_rows) if each.start < stop < each.end)
    assert spoken.end < stop + 1.0
    assert (run.call_rows[0]["state"], run.call_rows[0]["effect"]) == ("done", "committed")
    assert run.call_rows[0]["heard"] is not None


def test_a_supervisor_sees_that_commentary_was_taken_in_and_not_what_it_was() -> None:
    _, seen = unspoken()
    kinds = {frame["type"] for frame in seen}
    assert "session.commentary.appended" in kinds and "session.commentary.append" not in kinds
    assert not any("warehouse" in str(frame) for frame in seen)


# The exercise


def test_the_check_tells_an_acknowledgement_from_a_listener() -> None:
    def acknowledged(run: Run, word: str) -> bool:
        return "session.commentary.appended" in set(run.wire["type"])

    def began(run: Run, word: str) -> bool:
        return run.call_rows[0]["heard"] is not None

    def heard(run: Run, word: str) -> bool:
        return any(word in event["text"] for event in run.event_rows if event["kind"] == "played")

    def generated(run: Run, word: str) -> bool:
        return any(word in event["text"] for event in run.event_rows if event["kind"] == "generated")

    assert vk.check.told(heard)
    assert len(vk.check.told(acknowledged).findings) == 3
    talked_over = ["an answer the caller talks over", "the same on a model that is ahead of the loudspeaker"]
    assert [finding.split(":")[0] for finding in vk.check.told(began).findings] == talked_over
    assert [finding.split(":")[0] for finding in vk.check.told(generated).findings] == talked_over[1:]
    assert "raised ZeroDivisionError" in vk.check.told(lambda run, word: bool(1 / 0)).findings[0]
