"""From the journal to numbers, where the definitions are easily got wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from talks import talk

import voicekit as vk
from voicekit import metrics
from voicekit.experiment import scenarios
from voicekit.metrics import measure, open_waits, played, utterances
from voicekit.runs import Run

MODELS = ("gpt-realtime", "gemini-3.8-live", "gemini-3.1-flash-live-preview", "gpt-live-1")


def test_every_metric_is_defined_in_the_docstring() -> None:
    text = measure.__doc__ or ""
    assert [name for name in [*measure([], []), "audio_check_ms"] if name not in text] == []


# Preambles


@pytest.mark.parametrize("seconds", [2.5, 3.0])
def test_telling_an_earlier_result_is_no_announcement_of_the_next_call(seconds: float) -> None:
    """The result for Friday is said at the beginning of the turn in which the model then calls for Thursday."""
    run = vk.run(corrected(), model="gemini-3.8-live", stale="speak", tool_seconds=seconds)
    turns = {e["detail"]["turn"] for e in run.event_rows if e["kind"] == "proposed"}
    told = next(each for each in played(run.event_rows) if each.item and "On Friday" in said(each))
    assert told.turn in turns  # the same turn, before the later call's result
    assert (run.values["preamble_rate"], run.values["preamble_seconds"]) == (0.0, 0.0)


def test_the_announcement_beside_a_result_counts_by_its_own_seconds() -> None:
    stretch = metrics.Played(
        "i", "t", 1.0, 5.0, ((1.0, 5.0),), 4.0, 0.0, ((1.0, "On Friday at ten. "), (3.0, "I'll look "), (3.5, "again."))
    )
    told = {"result": '{"summary": "On Friday at ten."}', "heard": 1.0}
    assert metrics._announcing(stretch, [told]) == [(3.0, 5.0)]
    assert metrics._announcing(stretch, [told | {"heard": None}]) == [(1.0, 5.0)]
    wordless = dataclasses.replace(stretch, words=())
    assert metrics._announcing(wordless, [told]) == [(1.0, 5.0)]


def corrected() -> vk.Scenario:
    """Friday becomes Thursday; nothing is booked."""
    whole = scenarios()["friday_thursday"]
    return dataclasses.replace(whole, lines=whole.lines[:2])


def said(stretch: metrics.Played) -> str:
    return " ".join(word for _, word in stretch.words)


# Waiting in vain


@pytest.mark.parametrize("model", ["gpt-realtime", "gemini-3.8-live", "gpt-live-1"])
def test_a_caller_who_waited_in_vain_sat_through_silence(model: str) -> None:
    run = vk.run("order_status", model=model, faults={"close": {"after_s": 11.0}})
    assert run.values["time_to_result"] is None
    ((begin, end),) = open_waits(run.call_rows, run.event_rows)
    assert begin == utterances(run.event_rows)[0].end and end == run.event_rows[-1]["t"]
    assert 4.0 < run.values["dead_air_longest"] <= end - begin + 1e-6  # type: ignore[operator]


def test_an_answer_that_was_acknowledged_and_never_spoken_was_waited_for() -> None:
    run = vk.run("order_status", model="gpt-live-1", faults={"unspoken": True})
    begin, end = open_waits(run.call_rows, run.event_rows)[0]
    assert (begin, end) == (utterances(run.event_rows)[0].end, utterances(run.event_rows)[1].start)  # they went on
    assert run.values["dead_air_longest"] > 8.0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("scenario", "model", "options"),
    [
        ("order_status", "gemini-3.8-live", {"delivery": "silent"}),
        ("never_mind", "gpt-realtime", {}),
        ("never_mind", "gemini-3.8-live", {}),
        ("corrected", "gemini-3.8-live", {"stale": "silent"}),
        ("interrupted_booking", "gpt-realtime", {"on_barge_in": "cancel"}),
        ("order_status", "gpt-realtime", {}),
    ],
    ids=str,
)
def test_nobody_waits_for_what_was_heard_withdrawn_changed_or_not_to_be_said(
    scenario: str, model: str, options: Any
) -> None:
    run = talk(corrected() if scenario == "corrected" else scenario, model, **options)
    assert run.call_rows and open_waits(run.call_rows, run.event_rows) == []


# A provider that hangs up


@pytest.mark.parametrize("model", MODELS)
def test_what_nobody_could_answer_is_unanswered_and_the_run_says_what_it_was(model: str) -> None:
    run = talk("order_status", model, faults={"close": {"after_s": 9.0}})
    assert unanswered(run) == {each["call_id"] for each in run.undelivered if each["call_id"]}
    if model != "gpt-live-1":  # there the application answers its own call; what it could not do is tell the voice
        assert run.values["unanswered_calls"] == len(unanswered(run)) == 1
    assert all("1011" in each["why"] for each in run.undelivered) and len(run.undelivered) == 1


def unanswered(run: Run) -> set[str]:
    return {row["call_id"] for row in run.call_rows if row["delivered"] is None}
