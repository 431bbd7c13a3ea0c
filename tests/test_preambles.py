"""Announcing a wait: what it does to the wait, and the faults that can be recognised in the journal."""

from __future__ import annotations

from typing import Any

import pytest
from fake_session import App, call
from talks import talk

import voicekit as vk
from voicekit.clock import run_blocking
from voicekit.results import Result, ok
from voicekit.runs import Run
from voicekit.spoken import FAULTS
from voicekit.tools import Tool
from voicekit.wording import promises

MODELS = ("gpt-realtime", "gemini-3.8-live")
ORDER = vk.Scenario("order", tools={"get_order_status": 6.0}, lines=(vk.Line("order_status", at=0.5),))
STOCK = vk.Scenario("stock", tools={"check_stock": 1.0}, lines=(vk.Line("stock", at=0.5),))
ANSWER = "There are twelve blue kettles in stock."
SAYS_IT_FIRST = f'You answer the phone.\n\n# Preambles\n- check_stock: "{ANSWER}"\n'


def order(model: str, preamble: str, seconds: float) -> Run:
    return talk(ORDER, model, preamble=preamble, tool_seconds=seconds)


def decided(run: Run | App) -> list[str]:
    events = run.event_rows if isinstance(run, Run) else run.journal.events
    return [event["kind"] for event in events if event["lane"] == "decision"]


def heard(run: Run) -> list[str]:
    return [event["text"] for event in run.event_rows if event["kind"] == "played" and event["text"]]


def sent(run: Run, type_: str) -> int:
    return sum(1 for row in run.wire_rows if row["direction"] == "sent" and row["type"] == type_)


def noting(seconds: float = 1.0, **data: Any) -> Tool:
    async def check_stock(item: str) -> Result:
        """Look up how many pieces of an item are in stock."""
        return ok(ANSWER, **data)

    return Tool.of(check_stock, effect="read", seconds=seconds)


# What it does to the wait


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind, seconds", [("filler", 1.8), ("action", 1.1)])
def test_an_announcement_before_a_fast_tool_makes_the_wait_longer(model: str, kind: str, seconds: float) -> None:
    without, with_it = order(model, "none", 0.2), order(model, kind, 0.2)
    assert without.values["preamble_rate"] == 0.0 and without.values["preamble_seconds"] == 0.0
    assert with_it.values["preamble_rate"] == 1.0 and with_it.values["preamble_seconds"] == seconds
    added = with_it.values["time_to_result"] - without.values["time_to_result"]
    expected = {("gpt-realtime", "filler"): 1.99, ("gpt-realtime", "action"): 1.29,
                ("gemini-3.8-live", "filler"): 1.69, ("gemini-3.8-live", "action"): 0.99}  # fmt: skip
    assert added == pytest.approx(expected[model, kind], abs=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_a_filler_names_a_long_wait_without_shortening_it(model: str) -> None:
    without, with_it = order(model, "none", 6.0), order(model, "filler", 6.0)
    assert with_it.values["time_to_result"] > without.values["time_to_result"]
    assert with_it.values["dead_air_longest"] < without.values["dead_air_longest"] - 2
    assert with_it.values["response_latency"] < without.values["response_latency"]


def test_preamble_and_call_come_in_one_response_and_the_journal_says_so() -> None:
    for model in MODELS:
        run = order(model, "action", 6.0)
        proposed = next(event for event in run.event_rows if event["kind"] == "proposed")
        said = next(event for event in run.event_rows if event["kind"] == "generating")
        assert proposed["detail"]["turn"] == said["detail"]["turn"] and said["t"] < proposed["t"]
        assert decided(run).count("preamble_heard") == 1


def test_a_thinking_model_fills_the_wait_unasked_in_a_turn_of_its_own() -> None:
    run = vk.run(ORDER, model="gemini-3.8-live-extended-thinking", instructions="You answer the phone.")
    assert heard(run)[0] == "One moment while I process that."
    assert run.values["preamble_rate"] == 1.0 and run.values["preamble_seconds"] == 1.8
    quiet = order("gemini-3.8-live-extended-thinking", "none", 6.0)
    assert quiet.values["preamble_rate"] == 0.0


# Faults


def test_case_11_a_promise_without_a_call_is_followed_by_one_nudge() -> None:
    run = promising("gpt-realtime", True)
    assert decided(run) == ["promise_without_call", "respond", "respond"]
    assert len(run.call_rows) == 1 and heard(run)[-1].startswith("Your order left")


def test_case_11_a_promise_broken_again_is_an_honest_failure_and_no_loop() -> None:
    run = promising("gpt-realtime", "always")
    assert decided(run) == ["promise_without_call", "respond", "promise_broken"]
    assert sent(run, "response.create") == 1 and run.problem == ""


def test_case_11_a_model_that_cannot_be_asked_is_not_nudged() -> None:
    run = promising("gemini-3.8-live", True)
    assert decided(run) == ["promise_without_call", "promise_broken"]


def promising(model: str, how_often: bool | str) -> Run:
    faults = {"promise_without_call": how_often}
    return vk.run(ORDER, model=model, preamble="action", tool_seconds=1.0, faults=faults)


def test_a_promise_while_a_call_is_open_is_none() -> None:
    async def main() -> App:
        async with App("gpt-realtime", [noting(3.0)]) as app:
            app.session.speak("", calls=(call("c1", "check_stock", '{"item": "x"}'),))
            app.at(1.0, lambda: app.session.speak("I'll check that now."))
            await app.rest()
            return app

    assert "promise_without_call" not in decided(run_blocking(main))


def test_the_same_phrase_twice_is_marked() -> None:
    async def main() -> App:
        async with App("gpt-realtime", [noting()]) as app:
            for number, words in enumerate(("I'll check that now.", "I'll look again.", "I'll check that now.")):
                arguments = f'{{"item": "{number}"}}'
                app.session.speak(words, calls=(call(f"c{number}", "check_stock", arguments),))
                await app.rest()
            return app

    app = run_blocking(main)
    marked = [event["call_id"] for event in app.journal.events if event["kind"] == "phrase_repeated"]
    assert marked == ["c2"]


@pytest.mark.parametrize("model", MODELS)
def test_a_result_that_comes_during_its_announcement_is_said_after_it(model: str) -> None:
    run = order(model, "filler", 0.2)
    assert "result_during_preamble" in decided(run)
    first, second = (event["detail"] for event in run.event_rows if event["kind"] == "played")
    assert first["flushed"] == 0 and second["start"] >= first["stop"]
    assert "result_during_preamble" not in decided(order(model, "filler", 6.0))


def test_two_spoken_messages_in_one_response_are_marked() -> None:
    run = vk.run(ORDER, model="gpt-realtime", preamble="action", faults={"second_message": True}, tool_seconds=3)
    assert decided(run).count("two_messages") == 1
    assert "two_messages" not in decided(order("gpt-realtime", "action", 6.0))


def test_case_02_without_a_reply_policy_the_caller_hears_two_answers() -> None:
    run = vk.run(STOCK, model="gpt-realtime", instructions=SAYS_IT_FIRST)
    assert heard(run) == [ANSWER, ANSWER]
    assert sent(run, "response.create") == 1 and sent(run, "response.cancel") == 0
    assert decided(run) == ["result_during_preamble", "preamble_heard", "answered_twice", "respond"]


def test_case_02_a_policy_that_looks_at_what_was_said_gives_one_answer() -> None:
    def once(result: dict[str, Any], moment: Any) -> str:
        return "silent" if result["summary"] in moment.said else "when_idle"

    run = vk.run(STOCK, model="gpt-realtime", instructions=SAYS_IT_FIRST, delivery=once)
    assert heard(run) == [ANSWER]
    assert sent(run, "response.create") == 0 and sent(run, "response.cancel") == 0
    assert sent(run, "conversation.item.create") == 1 and run.values["unanswered_calls"] == 0


@pytest.mark.parametrize("model", MODELS)
def test_case_02_a_result_may_say_itself_that_no_reply_is_needed(model: str) -> None:
    run = vk.run(STOCK, model=model, instructions=SAYS_IT_FIRST, tools=(noting(delivery="silent"),))
    assert heard(run) == [ANSWER]


@pytest.mark.parametrize("delivery, answers", [("silent", 1), ("when_idle", 2), ("interrupt", 2)])
def test_case_30_a_tool_that_only_stores_gives_one_reply_when_silent(delivery: str, answers: int) -> None:
    noted = 'You answer the phone.\n\n# Preambles\n- check_stock: "Noted."\n'
    run = vk.run(STOCK, model="gemini-3.8-live", instructions=noted, delivery=delivery, tools=(noting(2.0),))
    assert len(heard(run)) == answers and heard(run)[0] == "Noted."


@pytest.mark.parametrize("late", [0.001, 0.005, 0.05])
def test_case_22_a_result_just_after_the_turn_is_kept_clear_of_its_end(late: float) -> None:
    """The service loses a result that comes within 50 ms after a turn; the application waits that long."""
    first = talk(STOCK, "gemini-3.8-live", instructions=SAYS_IT_FIRST, tool_seconds=5.0)
    ends = [event["t"] for event in first.event_rows if event["kind"] == "turn_done"]
    started = first.call_rows[0]["started"]
    run = vk.run(STOCK, model="gemini-3.8-live", instructions=SAYS_IT_FIRST, tool_seconds=ends[0] - started + late,
                 faults={"orphan_late_result": True})  # fmt: skip
    assert decided(run).count("kept_clear") == 1
    assert heard(run) == [ANSWER, ANSWER]  # the result itself, not the last answer said again: it was not orphaned
    answered = next(event["t"] for event in run.event_rows if event["kind"] == "answered")
    assert answered - ends[0] == pytest.approx(0.06, abs=1e-3)
    if late == 0.005:
        silent = vk.run(STOCK, model="gemini-3.8-live", instructions=SAYS_IT_FIRST, delivery="silent",
                        tool_seconds=ends[0] - started + late, faults={"orphan_late_result": True})  # fmt: skip
        assert heard(silent) == [ANSWER]


# Words


@pytest.mark.parametrize(
    "text, about",
    [
        ("I'll check that order now.", "caller"),
        ("I'll verify that before we make any changes.", "caller"),
        ("Ich suche einen freien Termin.", "caller"),
        ("One moment while I process that.", "machine"),
        ("I'm going to use my tools now.", "machine"),
        ("Einen Moment, ich verarbeite das.", "machine"),
        ("One moment while I check your order.", "both"),
        ("All right.", "neither"),
    ],
)
def test_the_lint_tells_the_machines_state_from_the_callers_matter(text: str, about: str) -> None:
    verdict = vk.check.preamble(text)
    assert verdict.about == about and bool(verdict) == (about == "caller")


def test_the_lint_names_the_word_and_knows_more_words_when_given_some() -> None:
    assert "process" in repr(vk.check.preamble("One moment while I process that.", language="en"))
    assert vk.check.preamble("I'll fetch the parrot.").about == "neither"
    assert vk.check.preamble("I'll fetch the parrot.", words=[("parrot*", "caller")])
    assert not vk.check.preamble("I'll check. I'll look. I'll find that order.")
    with pytest.raises(ValueError, match="language is one of de, en"):
        vk.check.preamble("Je regarde.", language="fr")


def test_a_promise_is_an_announcement_and_nothing_else() -> None:
    assert promises("Let me check Thursday instead.") and promises("Einen Moment, ich verarbeite das.")
    for text in ("Shall I book Thursday at two?", "I'm still waiting for the result.", "I found nothing for that.", ""):
        assert not promises(text)
    assert set(FAULTS) >= {"promise_without_call", "phrase_repeated", "two_messages"}


@pytest.mark.parametrize(("delivery", "asks"), [("silent", []), ("when_idle", [("c",)])])
def test_case_2_an_answer_that_was_spoken_with_the_call_is_followed_only_if_a_reply_is_wanted(
    delivery: Any, asks: list[tuple[str, ...]]
) -> None:
    """Six seconds of speech and a call in one response; the tool has "saved" when most of it is still to be heard."""

    async def main() -> App:
        async with App("gpt-realtime", [noting(0.5)], vk.Policy(delivery=delivery), seconds=6.0) as app:
            app.session.speak("I have written that down for you.", calls=(call("c", "check_stock", '{"item": "x"}'),))
            await app.rest()
            return app

    app = run_blocking(main)
    assert len(app.session.of("result")) == 1 and app.session.of("cancel") == []
    assert app.session.of("respond") == asks
    assert ("preamble_heard" in decided(app)) == bool(asks)
    assert app.speaker.totals.flushed == 0
