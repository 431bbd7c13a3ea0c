"""Notebook 03: what becomes of a result, by behaviour, scheduling and speaker, on two generations of one vendor."""

from __future__ import annotations

from functools import cache

import pytest

import voicekit as vk
from voicekit.metrics import played, utterances
from voicekit.runs import Run

OLDER, NEWER = "gemini-2.5-flash-native-audio-preview-12-2025", "gemini-3.8-live"
MODELS = (OLDER, NEWER)

# The second question, by who is speaking when the result of the six-second tool comes in.
CUES = {
    "caller silent": {"after": "tool_done", "seconds": 5.0},
    "caller speaks": {"after": "tool_starts", "seconds": 5.7},
    "agent speaks": {"after": "tool_starts", "seconds": 2.0},
}
HOW = {
    "blocking": vk.Policy(behavior="blocking"),
    "WHEN_IDLE": vk.Policy(behavior="non_blocking", delivery="when_idle"),
    "INTERRUPT": vk.Policy(behavior="non_blocking", delivery="interrupt"),
    "SILENT": vk.Policy(behavior="non_blocking", delivery="silent"),
}
# When the result is heard on the older and on the newer model: "at once" is the model's own reaction and nothing else,
# "later" is after whoever was speaking.
EXPECTED = {
    ("blocking", "caller silent"): ("at once", "at once"),
    ("blocking", "caller speaks"): ("later", "later"),
    ("blocking", "agent speaks"): ("at once", "never"),  # 2.5 stays silent; 3.8 cancels the call for the question
    ("WHEN_IDLE", "caller silent"): ("at once", "at once"),
    ("WHEN_IDLE", "caller speaks"): ("later", "later"),
    ("WHEN_IDLE", "agent speaks"): ("later", "later"),
    ("INTERRUPT", "caller silent"): ("at once", "at once"),
    ("INTERRUPT", "caller speaks"): ("at once", "later"),  # 2.5 talks over the caller, 3.8 waits
    ("INTERRUPT", "agent speaks"): ("at once", "at once"),
    ("SILENT", "caller silent"): ("never", "never"),
    ("SILENT", "caller speaks"): ("never", "never"),
    ("SILENT", "agent speaks"): ("never", "never"),
}
CELLS = [(model, how, who) for how, who in EXPECTED for model in MODELS]


@cache
def cell(model: str, how: str, who: str) -> Run:
    lines = (vk.Line("order_status", at=0.5), vk.Line("opening_hours", **CUES[who]))
    scenario = vk.Scenario(who, tools={"get_order_status": 6.0}, lines=lines)
    return vk.run(scenario, model=model, policy=HOW[how])


def heard(run: Run) -> str:
    """When the result was heard, in the words of EXPECTED."""
    seconds = run.values["done_to_heard"]
    if seconds is None:
        return "never"
    return "at once" if seconds < 1.2 else "later"


@pytest.mark.parametrize(("model", "how", "who"), CELLS)
def test_when_the_result_is_heard(model: str, how: str, who: str) -> None:
    run = cell(model, how, who)
    assert heard(run) == EXPECTED[how, who][MODELS.index(model)]
    assert run.values["unanswered_calls"] == 0
    assert run.values["audio_check_ms"] <= 20
    assert not run.problem


@pytest.mark.parametrize(("model", "how", "who"), CELLS)
def test_the_result_comes_in_while_the_one_speaks_who_should(model: str, how: str, who: str) -> None:
    run = cell(model, how, who)
    done = run.call_rows[0]["finished"]
    caller = any(a <= done < b for each in utterances(run.event_rows) for a, b in each.audible)
    agent = any(each.start < done <= each.end for each in played(run.event_rows))
    assert caller == (who == "caller speaks")
    assert agent == (who == "agent speaks" and how != "blocking")


@pytest.mark.parametrize(("model", "how", "who"), CELLS)
def test_only_an_interruption_costs_somebody_words(model: str, how: str, who: str) -> None:
    run = cell(model, how, who)
    assert (run.values["flushed_seconds"] > 1.0) == ((how, who) == ("INTERRUPT", "agent speaks"))
    assert (run.values["talk_over"] > 0.1) == ((model, how, who) == (OLDER, "INTERRUPT", "caller speaks"))


@pytest.mark.parametrize(("model", "how", "who"), CELLS)
def test_the_second_question_is_answered_whatever_the_result_does(model: str, how: str, who: str) -> None:
    run = cell(model, how, who)
    end = next(each.end for each in utterances(run.event_rows) if each.clip == "opening_hours")
    assert any(word.strip() == "open" and t > end for each in played(run.event_rows) for t, word in each.words)


def test_the_two_generations_differ_in_two_cells() -> None:
    differ = [key for key in EXPECTED if heard(cell(OLDER, *key)) != heard(cell(NEWER, *key))]
    assert differ == [("blocking", "agent speaks"), ("INTERRUPT", "caller speaks")]


def test_the_newer_model_cancels_a_blocking_call_and_expects_no_answer() -> None:
    run = cell(NEWER, "blocking", "agent speaks")
    assert [row["type"] for row in run.wire_rows].count("toolCallCancellation") == 1
    assert "tool_response" not in [row["type"] for row in run.wire_rows]
    assert run.call_rows[0]["state"] == "cancelled"


def test_a_silent_result_is_known_when_it_is_asked_for() -> None:
    lines = (
        vk.Line("order_status", at=0.5),
        vk.Line("opening_hours", **CUES["agent speaks"]),
        vk.Line("any_news", after="agent_done", seconds=1.0),
    )
    scenario = vk.Scenario("any_news", tools={"get_order_status": 6.0}, lines=lines)
    run = vk.run(scenario, model=NEWER, policy=HOW["SILENT"])
    asked = next(each.end for each in utterances(run.event_rows) if each.clip == "any_news")
    assert run.values["tool_calls"] == 1
    assert run.call_rows[0]["heard"] > asked


def test_a_result_a_millisecond_after_a_turn_is_lost_unless_it_is_kept_clear_of_it() -> None:
    asks = vk.Scenario("asks", tools={"get_order_status": 6.0}, lines=(
        vk.Line("order_status", at=0.5), vk.Line("opening_hours", after="tool_starts", seconds=2.0),
    ))  # fmt: skip
    first = vk.run(asks, model="gemini-3.8-live")
    left = played(first.event_rows)[0].end - first.call_rows[0]["started"]

    def heard(after: float, keep_clear: float) -> bool:
        run = vk.run(asks, model="gemini-3.8-live", tool_seconds=left + after, keep_clear=keep_clear,
                     faults={"orphan_late_result": True})  # fmt: skip
        assert run.values["unanswered_calls"] == 0
        return run.call_rows[0]["heard"] is not None

    assert (heard(-0.001, 0.0), heard(0.001, 0.0), heard(0.001, 0.06)) == (True, False, True)
