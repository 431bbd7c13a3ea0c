"""Whole conversations through the official SDKs over loopback sockets, in virtual time: the claims the lessons make."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from talks import talk

import voicekit as vk
from voicekit.runs import Run

GPT, GPT_WAITS, GPT_PARALLEL = "gpt-realtime", "gpt-4o-realtime-preview", "gpt-realtime-2.1"
GEMINI, GEMINI_WAITS = "gemini-3.8-live", "gemini-3.1-flash-live-preview"


def heard(run: Run) -> list[str]:
    """What the caller heard, sentence by sentence, in order."""
    return [event["text"] for event in run.event_rows if event["kind"] == "played" and event["text"]]


def first_heard(run: Run, words: str) -> float:
    return min(
        t
        for event in run.event_rows
        if event["kind"] == "played"
        for t, word in event["detail"]["words"]
        if words in event["text"] and word == words.split()[0]
    )


def until(scenario: str, lines: int) -> vk.Scenario:
    """The beginning of a scenario."""
    whole = vk.scenarios()[scenario]
    return dataclasses.replace(whole, lines=whole.lines[:lines])


def test_six_seconds_of_tool_are_more_than_six_seconds_of_silence() -> None:
    run = talk("order_status", GEMINI_WAITS)
    assert run.call_rows[0]["finished"] - run.call_rows[0]["started"] == pytest.approx(6.0)
    assert 6.5 < run.values["dead_air_longest"] < 9.5
    assert run.values["unanswered_calls"] == 0
    assert run.values["audio_check_ms"] <= 20


@pytest.mark.parametrize("model", [GPT, GEMINI])
def test_a_model_that_goes_on_talking_answers_the_second_question_before_the_result(model: str) -> None:
    run = talk("order_status_chatty", model)
    assert first_heard(run, "We are open") < first_heard(run, "Your order left")
    assert run.values["dead_air_longest"] < 2.5
    assert run.values["unanswered_calls"] == 0


# On either provider, on models that wait for their tools and on models that do not.
ENDS: dict[str, tuple[str, ...]] = {
    "order_status": (GEMINI_WAITS,),
    "order_status_chatty": (GPT, GEMINI),
    "quick_lookup": (GEMINI_WAITS,),
    "two_lookups": (GPT_PARALLEL, GEMINI),
    "place_then_weather": (GPT,),
    "barge_in": (GPT,),
    "backchannel": (GEMINI_WAITS,),
    "friday_thursday": (GEMINI,),
    "never_mind": (GPT,),
    "booking": (GPT_WAITS,),
    "cancellation": (GEMINI_WAITS,),
    "interrupted_lookup": (GEMINI,),
    "interrupted_booking": (GPT,),
    "interrupted_cancellation": (GPT_WAITS,),
}


def test_no_scenario_is_left_out() -> None:
    assert set(ENDS) == set(vk.scenarios())


@pytest.mark.parametrize(("scenario", "model"), [(name, model) for name, models in ENDS.items() for model in models])
def test_every_scenario_ends_by_itself_on_every_kind_of_model(scenario: str, model: str) -> None:
    run = talk(scenario, model)
    problems = [event["text"] for event in run.event_rows if event["kind"] == "problem"]
    missed = [event["text"] for event in run.event_rows if event["kind"] == "cue_missed"]
    assert problems == [] and missed == []
    assert run.values["unanswered_calls"] == 0
    assert run.values["duplicate_effects"] == 0
    assert run.values["audio_check_ms"] <= 20
    total = run.values["heard_seconds"] + run.values["flushed_seconds"]
    assert run.values["generated_seconds"] == pytest.approx(total, abs=1e-5)


def test_two_simulated_runs_do_not_share_a_ledger(tmp_path: Path) -> None:
    """The service numbers its calls anew each time: call_0001 of the second would have the answer of the first."""
    file = str(tmp_path / "ledger.sqlite")
    assert vk.run("quick_lookup", model="gpt-realtime", ledger=file).call_rows[0]["state"] == "done"
    with pytest.raises(ValueError, match=r"holds another run's calls.*give each run a file of its own"):
        vk.run("two_lookups", model="gpt-realtime", ledger=file)


@pytest.mark.parametrize("model", [GPT, GEMINI])
def test_the_same_run_twice_is_the_same_to_the_byte(model: str) -> None:
    first, second = talk("order_status_chatty", model), vk.run("order_status_chatty", model=model)
    assert json.dumps(first.event_rows) == json.dumps(second.event_rows)
    assert json.dumps(first.wire_rows) == json.dumps(second.wire_rows)


def test_another_seed_is_another_run() -> None:
    first, second = talk("quick_lookup", GPT), talk("quick_lookup", GPT, seed=1)
    assert first.values["time_to_result"] != second.values["time_to_result"]


def test_parallel_lookups_take_the_longer_one_and_dependent_ones_the_sum() -> None:
    parallel = talk("two_lookups", GPT_PARALLEL)  # 2 s and 3 s
    starts = sorted(call["started"] for call in parallel.call_rows)
    assert starts[1] - starts[0] < 0.1
    assert max(call["finished"] for call in parallel.call_rows) - starts[0] < 3.2
    dependent = talk("place_then_weather", GPT)  # 2 s, then 3 s
    assert [call["tool"] for call in dependent.call_rows] == ["find_place", "get_weather"]
    assert dependent.call_rows[1]["started"] > dependent.call_rows[0]["finished"]
    assert dependent.values["time_to_result"] > 5.0


def test_all_outputs_of_a_turn_come_before_one_request_for_speech() -> None:
    run = talk("two_lookups", GPT_PARALLEL)
    sent = [row["type"] for row in run.wire_rows if row["direction"] == "sent"]
    relevant = [type_ for type_ in sent if type_ in ("conversation.item.create", "response.create")]
    assert relevant == ["conversation.item.create", "conversation.item.create", "response.create"]


@pytest.mark.parametrize("model", [GPT, GEMINI])
def test_a_stale_lookup_is_not_spoken_and_thursday_is_booked(model: str) -> None:
    run = talk("friday_thursday", model)
    assert run.values["stale_dropped"] == 1 and run.values["stale_spoken"] == 0
    assert not any("Friday" in text for text in heard(run))
    booked = [json.loads(call["arguments"]) for call in run.call_rows if call["effect"] == "committed"]
    assert booked == [{"day": "thursday", "time": "14:00"}]


@pytest.mark.parametrize("model", [GPT, GEMINI])
def test_with_stale_speak_the_caller_hears_about_friday(model: str) -> None:
    run = talk(until("friday_thursday", 2), model, stale="speak")
    assert run.values["stale_spoken"] == 1
    assert any("On Friday" in text for text in heard(run))


@pytest.mark.parametrize("model", [GPT, GEMINI])
def test_a_withdrawn_question_is_answered_on_the_wire_but_not_aloud(model: str) -> None:
    run = talk("never_mind", model)
    assert run.values["unanswered_calls"] == 0
    assert run.values["stale_dropped"] == 1
    assert not any("Your order" in text for text in heard(run))


def test_barge_in_stops_the_speech_and_tells_the_provider_what_was_heard() -> None:
    run = talk("barge_in", GPT)
    assert run.values["yielded"] is True
    assert run.values["truncate_error_ms"] < 1
    assert run.values["flushed_seconds"] > 5
    truncates = [row["frame"] for row in run.wire_rows if row["type"] == "conversation.item.truncate"]
    assert len(truncates) == 1


@pytest.mark.parametrize("seconds", [0.3, 0.7, 0.9])  # before the caller speaks, and just after
def test_an_answer_the_caller_spoke_into_before_it_was_heard_is_asked_for_again(seconds: float) -> None:
    run = talk(until("order_status_chatty", 2), GPT, tool_seconds=seconds)
    assert run.values["time_to_result"] is not None
    assert sum("Your order left" in text for text in heard(run)) == 1


@vk.tool(effect="read")
def check_stock(item: str) -> dict[str, object]:
    """Return a whole file."""
    return vk.ok("kettle " * 30_000)


@pytest.mark.parametrize("model", ["gpt-realtime", "gemini-3.8-live"])
def test_a_result_of_200_kb_is_sent_whole_and_not_read_out_for_hours(model: str) -> None:
    run = vk.run("quick_lookup", model=model, tools=(check_stock,))
    generated = [len(e["text"] or "") for e in run.event_rows if e["kind"] == "generated"]
    assert len(run.call_rows[0]["result"]) > 200_000 and 600 < max(generated) < 710
    assert run.values["unanswered_calls"] == 0 and run.problem == ""
