"""Consent in a conversation: what counts as a yes, what a pending call says of itself, and rules on speech."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import json
import re
from typing import Any

import pytest
from fake_session import App, call
from talks import talk

import voicekit as vk
from voicekit.clock import run_blocking
from voicekit.consent import verdict
from voicekit.models import data_path
from voicekit.results import Result, ok
from voicekit.runs import Run
from voicekit.sessions.base import (
    Audio,
    Event,
    Heard,
    Said,
    SpeechStarted,
    SpeechStopped,
    ToolCall,
    ToolCallCancelled,
    TurnDone,
    TurnStarted,
)
from voicekit.tools import IdempotencyKey, Tool
from voicekit.understanding import question
from voicekit.world import World

OPENAI, GEMINI, BLOCKING = "gpt-realtime", "gemini-3.8-live", "gemini-3.1-flash-live-preview"
FRIDAY = {"day": "friday", "time": "10:00"}
CANCEL = "cancel_appointment"
NOBODY = vk.Policy(without_asking=frozenset())
SAID = re.compile(r'the caller: "(.+)"', re.IGNORECASE)


def parked(model: str, policy: vk.Policy = NOBODY, tool: str = CANCEL, **options: Any) -> App:
    """An application in front of a model that says what it is asked to, in one second; the tool takes one too."""
    tools = [each for each in World(bookings=[("friday", "10:00")]).tools(seconds=1.0) if each.name == tool]
    app = App(model, tools, policy, **options)

    def answer(ids: tuple[str, ...]) -> None:
        told = [found[1] for each in app.session.of("tell") if (found := SAID.search(each))]
        results = " ".join(filter(None, (app.session.summaries.get(each, "") for each in ids)))
        about = () if app.session.capabilities.implied_reply else ids
        app.session.speak(results or (told or ["All right."])[-1], about)

    app.session.answer = answer
    return app


def decided(app: App) -> list[str]:
    return app.kinds("decision")


def hasty(name: str) -> tuple[Tool, ...]:
    """The world's tool with a description that does not tell the model to ask first."""
    tools = World(bookings=[("friday", "10:00")]).tools(seconds=1.0)
    (found,) = (each for each in tools if each.name == name)
    return (dataclasses.replace(found, description=found.description.split("\n")[0]),)


def agent(run: Run) -> list[str]:
    return [event["text"] for event in run.event_rows if event["kind"] == "played" and event["text"]]


# A cancellation by the service against a pending yes


@pytest.mark.parametrize("moment", [0.9, 3.0], ids=["while it is being asked", "after it was asked"])
def test_case_42_a_cancellation_while_consent_is_pending_wins_over_a_later_yes(moment: float) -> None:
    async def main() -> App:
        async with parked(GEMINI) as app:
            app.session.speak("", calls=(call("a", CANCEL, json.dumps(FRIDAY)),))
            app.at(moment, lambda: app.session.emit(ToolCallCancelled(("a", "zz"))))
            app.at(3.5, lambda: app.session.caller_says("Yes, please.", 0.3))
            app.at(4.5, lambda: app.session.speak("", calls=(call("b", CANCEL, json.dumps(FRIDAY)),)))
            await asyncio.sleep(8.0)
            app.dispatcher.asking.let_go("the end")
            await app.rest()
            return app

    app = run_blocking(main)
    assert app.calls()["a"]["state"] == "cancelled" and app.calls()["a"]["effect"] == "none"
    assert app.calls()["b"]["effect"] == "none"  # the yes was to a question that is off
    assert [final for call_id, _, _, final in app.session.of("result") if call_id == "a"] == [False]
    assert 'Tell the caller: "It was called off, and nothing was done."' in app.session.of("tell")[0]
    assert set(app.dispatcher.calls) == {"a", "b"}


def test_case_42_a_cancellation_after_the_commit_undoes_nothing_and_the_caller_is_told() -> None:
    async def main() -> App:
        policy = vk.Policy(without_asking=frozenset({"book_appointment"}))
        async with parked(GEMINI, policy, "book_appointment") as app:
            arguments = json.dumps({"day": "thursday", "time": "14:00"})
            app.session.speak("", calls=(call("a", "book_appointment", arguments),))
            app.at(0.9, lambda: app.session.emit(ToolCallCancelled(("a",))))  # it takes effect in the middle of its run
            await app.rest()
            return app

    app = run_blocking(main)
    assert app.calls()["a"]["effect"] == "committed" and not app.session.of("result")
    (told,) = app.session.of("tell")
    assert "is booked. I could not stop it any more, but it can be undone." in told


@pytest.mark.parametrize("model", [OPENAI, GEMINI, BLOCKING])
@pytest.mark.parametrize(("said", "effect"), [("Yes, cancel that.", "committed"), ("Cancel that.", "none")])
def test_a_yes_that_repeats_what_is_cancelled_takes_nothing_back(model: str, said: str, effect: str) -> None:
    async def main() -> App:
        async with parked(model) as app:
            app.session.speak("", calls=(call("a", CANCEL, json.dumps(FRIDAY)),))
            app.at(4.5, lambda: app.session.caller_says(said, 0.3))
            await asyncio.sleep(9.0)
            app.dispatcher.asking.let_go("the end")
            await app.rest()
            return app

    assert run_blocking(main).calls()["a"]["effect"] == effect


def test_case_42_a_yes_to_a_call_that_was_cancelled_meanwhile_is_not_kept_for_the_next() -> None:
    """The model acts before the transcript of the yes is there; until it comes, the service has cancelled the call."""

    async def main() -> App:
        async with parked(GEMINI) as app:
            app.session.speak("Shall I cancel your appointment on Friday at ten?")
            app.session.later(1.5, SpeechStarted())
            app.session.later(1.8, SpeechStopped())
            app.at(2.0, lambda: app.session.speak("", calls=(call("a", CANCEL, json.dumps(FRIDAY)),)))
            app.session.later(2.2, ToolCallCancelled(("a",)))
            app.session.later(2.4, Heard("Yes."))
            app.at(4.0, lambda: app.session.speak("", calls=(call("b", CANCEL, json.dumps(FRIDAY)),)))
            await asyncio.sleep(7.0)
            app.dispatcher.asking.let_go("the end")
            await app.rest()
            return app

    app = run_blocking(main)
    assert [row["effect"] for row in app.calls().values()] == ["none", "none"] and decided(app).count("hold") == 1


def test_case_42_on_the_wire_the_caller_hears_that_it_is_off() -> None:
    lines = (
        vk.Line("cancel_friday", at=0.5),
        vk.Line("yes_please", after="agent_done", seconds=5.0),
        vk.Line("did_it_work", after="agent_done", seconds=0.8),
    )
    run = vk.run(
        vk.Scenario("off", lines=lines), model=GEMINI, policy=NOBODY, tools=hasty(CANCEL),
        faults={"cancel_call_after_s": 4.0},
    )  # fmt: skip
    assert run.problem == "" and [row["effect"] for row in run.call_rows] == ["none"]
    assert agent(run)[1] == agent(run)[-1] == "It was called off, and nothing was done."
    assert run.values["unanswered_calls"] == 0


def test_case_42_the_service_cancels_only_calls_that_are_open() -> None:
    run = talk("booking", GEMINI, faults={"cancel_call_after_s": 5.0})  # answered after two seconds
    assert [row["effect"] for row in run.call_rows] == ["committed"] and run.values["unanswered_calls"] == 0
    assert "toolCallCancellation" not in {row["type"] for row in run.wire_rows}


# What is a yes


def test_case_72_the_first_word_is_not_the_answer() -> None:
    rows = list(csv.DictReader(data_path("consent.csv").open(newline="", encoding="utf-8")))
    tempting = [row for row in rows if re.match(r"(yes|sure|okay|ja)\b", row["answer"].lower())]
    assert len(rows) >= 60 and len(tempting) >= 15
    for row in tempting:
        assert verdict(row["answer"], row["language"]) == row["verdict"]
    assert {row["verdict"] for row in tempting} == {"yes", "no", "neither"}


def test_case_72_a_yes_before_the_question_is_heard_opens_nothing() -> None:
    app = ask_and_say((0.3, "Yes."))
    assert app.calls()["a"]["effect"] == "none" and "not_yet" in decided(app)


def test_case_72_a_question_that_was_talked_over_is_not_answered_by_the_next_yes() -> None:
    app = ask_and_say((1.0, "Hello? Are you still there?"), (2.0, "Yes, what's the weather?"))
    assert app.calls()["a"]["effect"] == "none" and "confirmed" not in decided(app)
    unheard = [event["detail"]["unheard"] for event in app.journal.events if event["kind"] == "played"]
    assert "appointment on Friday" in unheard[0] and unheard[1] == ""  # it was asked again, as a whole


def test_case_72_a_yes_to_another_question_is_no_yes_to_this_one() -> None:
    """It was talked over; then the model asks something else, which is heard to its end and agreed to."""
    app = ask_and_say((1.0, "Hello?"), (6.5, "Yes, please."), instead="Would you like to hear the weather?")
    assert app.calls()["a"]["effect"] == "none" and "confirmed" not in decided(app)


@pytest.mark.parametrize(
    ("question", "effect"),
    [
        ("Shall I keep your appointment on Friday at ten?", "none"),
        ("Shall I cancel your appointment on Thursday at two?", "none"),
        ("Shall I cancel your appointment on Friday at ten, or keep it?", "none"),
        ("Do you want me to cancel the appointment on Friday at ten?", "none"),
        ("So I shall not cancel your appointment on Friday at ten?", "none"),
        ("Very well. Shall I cancel your appointment on Friday at ten?", "committed"),
    ],
)
def test_the_question_has_to_be_the_one_about_this_call_word_for_word(question: str, effect: str) -> None:
    app = ask_and_say((1.0, "Hello?"), (8.5, "Yes, please."), instead=question)
    assert app.calls()["a"]["effect"] == effect


def test_an_answer_to_the_second_question_counts_and_one_between_the_two_does_not() -> None:
    between = ask_and_say((2.5, "What was that?"), (3.2, "Yes, please."))
    assert between.calls()["a"]["effect"] == "none"
    second = ask_and_say((2.5, "What was that?"), (8.5, "Yes, please."))
    assert second.calls()["a"]["effect"] == "committed"


def ask_and_say(*says: tuple[float, str], instead: str = "") -> App:
    """A call is proposed and asked about (heard from 0.5 s to 1.5 s); what the caller says when. The model asks
    something else `instead` of the second question, if that is given."""

    async def main() -> App:
        async with parked(OPENAI) as app:
            plain, asked = app.session.answer, []

            def answer(ids: tuple[str, ...]) -> None:
                asked.append(ids)
                app.session.speak(instead) if instead and len(asked) > 1 else plain(ids)

            app.session.answer = answer
            app.session.speak("", calls=(call("a", CANCEL, json.dumps(FRIDAY)),))
            for at, text in says:
                app.at(at, lambda text=text: app.session.caller_says(text, 0.3))
            await asyncio.sleep(12.0)
            app.dispatcher.asking.let_go("the end")
            await app.rest()
            return app

    return run_blocking(main)


# While it is pending


@pytest.mark.parametrize(("model", "pending"), [(OPENAI, 20.0), (GEMINI, 5.0), (BLOCKING, 5.0)])
def test_case_74_did_it_go_through_is_answered_truthfully_while_consent_is_pending(model: str, pending: float) -> None:
    lines = (
        vk.Line("cancel_friday", at=0.5),
        vk.Line("did_it_work", after="agent_done", seconds=pending, patience=40),
        vk.Line("yes_please", after="agent_done", seconds=0.8),
        vk.Line("did_it_work", after="agent_done", seconds=0.8),
    )
    run = vk.run(vk.Scenario("pending", lines=lines), model=model, policy=NOBODY, tools=hasty(CANCEL))
    said = agent(run)
    asked = next(event["t"] for event in run.event_rows if event["kind"] == "unclear")
    (row,) = run.call_rows
    assert row["effect"] == "committed" and row["started"] > asked > pending
    before = " ".join(said[: said.index("Okay.")])
    assert re.search("No, it is not done yet|I'm waiting for your confirmation", before)
    assert "is cancelled" not in before and "Yes, it is done" not in before
    assert run.problem == "" and run.values["unanswered_calls"] == 0


def test_case_74_a_yes_to_fifty_is_no_yes_to_five_hundred() -> None:
    async def refund(euros: int, key: IdempotencyKey) -> Result:
        """Pay back."""
        return ok(f"{euros} euros are paid back.")

    async def main() -> App:
        async with App(OPENAI, [Tool.of(refund, effect="irreversible", seconds=1.0)], NOBODY) as app:
            app.session.answer = lambda ids: None
            app.session.speak("Shall I do this: refund, euros 50?")
            app.at(1.5, lambda: app.session.caller_says("Yes.", 0.3))
            app.at(2.5, lambda: app.session.speak("", calls=(call("a", "refund", '{"euros": 500}'),)))
            app.at(4.0, lambda: app.session.speak("", calls=(call("b", "refund", '{"euros": 50}'),)))
            await asyncio.sleep(45.0)  # the other one is asked about first, and nobody says anything to that
            app.dispatcher.asking.let_go("the end")
            return app

    app = run_blocking(main)
    assert app.calls()["a"]["effect"] == "none"
    assert app.calls()["b"]["effect"] == "committed"  # the one that was named


def test_case_74_a_barge_in_that_cancels_the_call_leaves_it_cancelled() -> None:
    async def main() -> App:
        async with parked(BLOCKING) as app:
            app.session.speak("", calls=(call("a", CANCEL, json.dumps(FRIDAY)),))
            app.at(0.8, lambda: app.session.caller_says("And what are your opening hours?", 0.5))
            app.at(0.9, lambda: app.session.emit(ToolCallCancelled(("a",))))
            app.at(3.0, lambda: app.session.caller_says("Yes.", 0.3))
            await asyncio.sleep(8.0)
            await app.rest()
            return app

    app = run_blocking(main)
    assert (app.calls()["a"]["state"], app.calls()["a"]["effect"]) == ("cancelled", "none")


def test_nobody_answers_and_silence_is_no() -> None:
    async def main() -> App:
        async with parked(OPENAI) as app:
            app.session.speak("", calls=(call("a", CANCEL, json.dumps(FRIDAY)),))
            await asyncio.sleep(60.0)
            return app

    app = run_blocking(main)
    assert app.calls()["a"]["state"] == "cancelled" and "not_confirmed" in decided(app)


# Rules on speech

BLOCKED = vk.SpeechRule(lambda text: vk.skip("no prices") if "ninety" in text else None, seconds=0.8)


def guarded(rule: vk.SpeechRule, lag: float, seconds: float, *, second_at: float, done_at: float) -> App:
    """r1 says the blocked word in `seconds` of sound, its transcript comes `lag` later; r2 follows at `second_at`."""

    async def main() -> App:
        async with App(OPENAI, [], vk.Policy(guardrails=(rule,))) as app:
            session = app.session
            session.emit(TurnStarted("r1"), Audio("i1", bytes(round(seconds * 48_000)), "r1"))
            session.later(lag, Said("i1", "It costs ninety.", "r1"))
            session.later(done_at, TurnDone("r1"))
            sound, words = Audio("i2", bytes(96_000), "r2"), Said("i2", "Anything else?", "r2", final=True)
            session.later(second_at, TurnStarted("r2"), sound, words, TurnDone("r2"))
            await asyncio.sleep(8.0)
            await app.rest()
            return app

    return run_blocking(main)


def detail(app: App, kind: str, item: str) -> dict[str, Any]:
    return next(dict(event["detail"]) for event in app.journal.events if (event["kind"], event["item"]) == (kind, item))


@pytest.mark.parametrize("lag", [0.0, 1.0])
def test_case_79_what_was_heard_before_the_verdict_is_measured(lag: float) -> None:
    app = guarded(BLOCKED, lag, 3.0, second_at=3.5, done_at=0.1)
    assert detail(app, "guardrail", "i1")["leak_ms"] == pytest.approx(1000 * (lag + 0.8), abs=20)
    assert detail(app, "played", "i1")["heard"] == pytest.approx(lag + 0.8, abs=0.02)


def test_case_79_a_late_verdict_does_not_touch_the_next_reply() -> None:
    app = guarded(BLOCKED, 0.0, 0.5, second_at=0.6, done_at=0.1)
    assert detail(app, "guardrail", "i1")["leak_ms"] == pytest.approx(500, abs=20)  # all of it
    played = detail(app, "played", "i2")
    assert played["heard"] == pytest.approx(2.0) and played["flushed"] == 0 and not app.session.of("cancel")


def test_case_79_the_safe_sentence_waits_for_the_end_of_the_reply_it_replaces() -> None:
    rule = vk.SpeechRule(lambda text: vk.replace("I can not talk about prices.") if "ninety" in text else None)
    app = guarded(rule, 0.2, 3.0, second_at=6.0, done_at=1.5)
    (cancelled,) = (at for at, kind, _ in app.session.sent if kind == "cancel")
    (told,) = ((at, text) for at, kind, text in app.session.sent if kind == "tell")
    begin = app.session.sent[0][0] - 0.2
    assert cancelled == pytest.approx(begin + 0.2) and told[0] == pytest.approx(begin + 1.5)
    assert "I can not talk about prices." in told[1]


@pytest.mark.parametrize("model", [OPENAI, GEMINI])
def test_case_79_the_safe_sentence_is_heard_and_nothing_else_of_the_reply(model: str) -> None:
    rule = vk.SpeechRule(lambda text: vk.replace("I can not tell you that.") if "waited" in text else None)
    scenario = vk.Scenario("guarded", tools={"get_order_status": 1.0}, lines=(vk.Line("order_details", at=0.5),))
    run = vk.run(scenario, model=model, guardrails=(rule,))
    assert "waited" not in " ".join(agent(run)) and agent(run)[-1] == "I can not tell you that."
    assert run.problem == "" and "unspoken" not in [event["kind"] for event in run.event_rows]


def test_case_79_a_reply_of_words_only_is_judged_too() -> None:
    async def main() -> App:
        async with App(OPENAI, [], vk.Policy(guardrails=(BLOCKED,))) as app:
            app.session.emit(TurnStarted("r1"), Said("i1", "It costs ninety.", "r1", final=True), TurnDone("r1"))
            await asyncio.sleep(2.0)
            return app

    assert detail(run_blocking(main), "guardrail", "i1")["leak_ms"] == 0


def test_heard_pieces_of_one_utterance_are_judged_as_one() -> None:
    async def main() -> App:
        async with parked(OPENAI) as app:
            app.session.speak("", calls=(call("a", CANCEL, json.dumps(FRIDAY)),))
            pieces = (Heard("Yes, ", "u", final=False), Heard("Yes, no, actually don't.", "u"))
            app.session.later(3.0, *pieces)
            await asyncio.sleep(6.0)
            return app

    assert run_blocking(main).calls()["a"]["effect"] == "none"


# One question, one yes, one call


async def transfer(sender: str, receiver: str, key: IdempotencyKey) -> Result:
    """Move money."""
    return ok("Moved.")


async def clear(customer: str, key: IdempotencyKey, year: int | None = None) -> Result:
    """Delete orders."""
    return ok("Deleted.")


async def pay(euros: float, key: IdempotencyKey) -> Result:
    """Pay."""
    return ok("Paid.")


async def send(text: str, key: IdempotencyKey) -> Result:
    """Send a message."""
    return ok("Sent.")


async def look() -> Result:
    """Look something up."""
    return ok("Found.")


OTHERS = [Tool.of(each, effect="irreversible", seconds=0.5) for each in (transfer, clear, pay, send)]
OTHERS.append(Tool.of(look, effect="read", seconds=0.1))


def agreed(asked: str, name: str, arguments: dict[str, Any], *, wait: float = 1.5, model: str = OPENAI) -> str:
    """The model asks, hears a yes `wait` seconds after it began, and calls: what became of the call."""

    async def main() -> App:
        async with App(model, OTHERS, NOBODY) as app:
            app.session.answer = lambda ids: None
            app.session.speak(asked)
            app.at(wait, lambda: app.session.caller_says("Yes, please.", 0.3))
            app.at(wait + 1.0, lambda: app.session.speak("", calls=(call("c", name, json.dumps(arguments)),)))
            await asyncio.sleep(wait + 4.0)
            app.dispatcher.asking.let_go("the end")
            await asyncio.sleep(0.1)
            return app

    return str(run_blocking(main).calls()["c"]["effect"])


@pytest.mark.parametrize("model", [OPENAI, GEMINI])
@pytest.mark.parametrize(
    ("name", "asked", "called"),
    [
        ("transfer", {"sender": "Anna", "receiver": "Ben"}, {"sender": "Ben", "receiver": "Anna"}),
        ("clear", {"customer": "Anna", "year": 2019}, {"customer": "Anna"}),
        ("clear", {"customer": "Anna"}, {"customer": "Anna", "year": 2019}),
        ("pay", {"euros": 0.5}, {"euros": 5.0}),
        ("pay", {"euros": -50}, {"euros": 50}),
        ("send", {"text": "10:12"}, {"text": "12:10"}),
    ],
)
def test_a_yes_is_for_these_arguments_and_no_others(
    name: str, asked: dict[str, Any], called: dict[str, Any], model: str
) -> None:
    words = question(name, asked, "en")
    assert agreed(words, name, asked, model=model) == "committed"
    assert agreed(words, name, called, model=model) == "none"


@pytest.mark.parametrize("text", ["I will be late. Sorry.", "Ask Dr. Miller", "now or never", "Frankfurt (Oder)?"])
def test_any_value_can_be_agreed_to(text: str) -> None:
    assert agreed(question("send", {"text": text}, "en"), "send", {"text": text}) == "committed"


def test_a_question_that_was_left_standing_is_no_question_any_more() -> None:
    words = question("pay", {"euros": 50}, "en")
    assert agreed(words, "pay", {"euros": 50}, wait=25.0) == "committed"
    assert agreed(words, "pay", {"euros": 50}, wait=40.0) == "none"


@pytest.mark.parametrize("model", [OPENAI, GEMINI])
def test_a_yes_that_goes_on_is_waited_for(model: str) -> None:
    """The model acts on "Okay"; the utterance is "Okay, wait, please don't"."""

    async def main() -> App:
        async with App(model, OTHERS, NOBODY) as app:
            app.session.answer = lambda ids: None
            app.session.speak(question("pay", {"euros": 50}, "en"))
            await asyncio.sleep(1.5)
            app.session.emit(Heard("Okay", "u", final=False))
            app.at(0.05, lambda: app.session.speak("", calls=(call("c", "pay", '{"euros": 50}'),)))
            app.at(0.25, lambda: app.session.emit(Heard(", wait, please don't.", "u", final=False)))
            app.at(0.6, lambda: app.session.emit(Heard("Okay, wait, please don't.", "u")))
            await asyncio.sleep(3.0)
            app.dispatcher.asking.let_go("the end")
            await asyncio.sleep(0.1)
            return app

    assert run_blocking(main).calls()["c"]["effect"] == "none"


@pytest.mark.parametrize(("same_action", "effects"), [("session", 1), ("turn", 1), ("call", 1)])
def test_one_yes_releases_one_of_two_calls(same_action: Any, effects: int) -> None:
    """The same call under two ids in one turn; where each id is an order of its own, the second needs its own yes."""

    async def main() -> App:
        async with App(OPENAI, OTHERS, vk.Policy(without_asking=frozenset(), same_action=same_action)) as app:
            words = question("pay", {"euros": 50}, "en")
            app.session.answer = lambda ids: app.session.speak(words if not ids else "Done.", ids)
            app.session.speak("", calls=tuple(call(each, "pay", '{"euros": 50}') for each in ("a", "b")))
            app.at(3.0, lambda: app.session.caller_says("Yes, please.", 0.3))
            await asyncio.sleep(8.0)
            app.dispatcher.asking.let_go("the end")
            await app.rest()
            return app

    app = run_blocking(main)
    assert sum(row["effect"] == "committed" for row in app.ledger.rows()) == effects
    if same_action != "call":  # a repeat has its answer: nobody is asked again, and nobody is told that it failed
        assert decided(app).count("hold") == 1 and {row["state"] for row in app.ledger.rows()} == {"done"}


def test_after_a_time_out_a_new_yes_lets_the_order_run_again() -> None:
    lines = (
        vk.Line("book_thursday", at=0.5),
        vk.Line("yes_please", after="agent_done", seconds=0.6),
        vk.Line("book_thursday", after="agent_done", seconds=0.8, patience=60),
        vk.Line("yes_please", after="agent_done", seconds=0.6),
        vk.Line("thanks_michael", after="agent_done", seconds=0.8, patience=60),
    )
    scenario = vk.Scenario("again", tools={"find_appointment": 1.0, "book_appointment": 1.0}, lines=lines)
    faults = {"book_appointment": {1: "time_out"}}
    run = vk.run(scenario, model=OPENAI, policy=NOBODY, tool_faults=faults, tool_timeout=4.0)
    assert [row["effect"] for row in run.call_rows].count("committed") == 1
    assert "Your appointment on Thursday at two is booked." in agent(run)


def test_a_transcript_that_is_closed_and_goes_on_is_one_answer() -> None:
    async def main() -> App:
        async with App("gpt-live-1", OTHERS, NOBODY) as app:
            app.session.answer = lambda ids: None
            app.session.speak(question("pay", {"euros": 50}, "en"))
            await asyncio.sleep(1.5)
            for piece, final in (("Yes,", False), ("Yes,", True), (" please.", False), ("Yes, please.", True)):
                app.session.emit(Heard(piece, "u", final=final))
                await asyncio.sleep(0.1)
            for call_id in ("a", "b"):  # one yes, however often it was closed
                proposal = call(call_id, "pay", '{"euros": 50}')
                await app.dispatcher.carry_out(app.dispatcher.enter(proposal))
            return app

    app = run_blocking(main)
    assert app.calls()["a"]["effect"] == "committed"


# Which question a yes is to


def story(*steps: tuple[float, Any], model: str = OPENAI, policy: vk.Policy = NOBODY) -> App:
    """`steps`: (seconds after the one before, what happens): events that are emitted, or a text that the agent says."""

    async def main() -> App:
        async with App(model, OTHERS, policy) as app:
            app.session.answer = lambda ids: None
            for seconds, step in steps:
                await asyncio.sleep(seconds)
                app.session.speak(step) if isinstance(step, str) else app.session.emit(*step)
            await asyncio.sleep(3.0)
            app.dispatcher.asking.let_go("the end")
            await asyncio.sleep(0.1)
            return app

    return run_blocking(main)


FIFTY, SIXTY = (question("pay", {"euros": euros}, "en") for euros in (50, 60))


def paying(euros: int, call_id: str = "c") -> list[Event]:
    return [ToolCall(call_id, "pay", json.dumps({"euros": euros}), f"turn {call_id}"), TurnDone(f"turn {call_id}")]


@pytest.mark.parametrize(("euros", "effect"), [(50, "none"), (60, "committed")])
def test_a_transcript_that_is_closed_late_brings_no_old_question_back(euros: int, effect: str) -> None:
    app = story(
        (0.0, FIFTY), (1.5, [Heard("Hm,", "i1")]), (0.5, SIXTY), (1.5, [Heard("Hm, well.", "i1")]),
        (0.5, [Heard("Yes.", "i2")]), (0.3, paying(euros)),
    )  # fmt: skip
    assert app.calls()["c"]["effect"] == effect


def test_what_the_agent_says_while_the_caller_answers_takes_no_question_back() -> None:
    yes = [SpeechStopped(), Heard("Yes.", "i")]
    app = story((0.0, FIFTY), (1.2, [SpeechStarted()]), (0.1, "One moment."), (1.4, yes), (0.2, paying(50)))
    assert app.calls()["c"]["effect"] == "committed"


def test_two_questions_in_one_breath_are_answered_by_no_single_yes() -> None:
    yes = [SpeechStarted(), SpeechStopped(), Heard("Yes.", "i")]
    app = story((0.0, f"{SIXTY} {FIFTY}"), (1.5, yes), (0.2, paying(50)))
    assert app.calls()["c"]["effect"] == "none"


def test_a_yes_to_a_call_that_was_left_to_a_person_is_none_to_the_next_one() -> None:
    """While "a" waits for its yes, a lookup uses up the budget; "c" is the same call in the caller's next turn."""
    policy = vk.Policy(without_asking=frozenset({"look"}), budget={"hops": 1})
    yes = [SpeechStarted(), SpeechStopped(), Heard("Yes.", "i")]
    more = [SpeechStarted(), SpeechStopped(), Heard("And what are your opening hours?", "j")]
    look = [ToolCall("b", "look", "{}", "turn b"), TurnDone("turn b")]
    app = story(
        (0.0, paying(50, "a")), (0.2, look), (1.0, FIFTY), (1.5, yes), (1.0, more), (0.5, paying(50, "c")),
        policy=policy,
    )  # fmt: skip
    assert [row["call_id"] for row in app.ledger.queue()] == ["a"]
    assert app.calls()["c"]["effect"] == "none" and decided(app).count("hold") == 2


def test_a_worker_that_never_ends_with_the_question_does_not_ask_for_ever() -> None:
    async def main() -> App:
        async with App("gpt-live-1", OTHERS, NOBODY) as app:
            app.session.answer = lambda ids: None
            for number in range(5):
                proposal = call(f"c{number}", "pay", '{"euros": 50}')
                await app.dispatcher.carry_out(app.dispatcher.enter(proposal))
                app.session.speak(f"{FIFTY} Take your time.")
                await asyncio.sleep(1.5)
                app.session.emit(Heard("Yes, please.", f"i{number}"))
                await asyncio.sleep(0.5)
            return app

    app = run_blocking(main)
    assert decided(app).count("hold") == 2 and decided(app).count("not_confirmed") == 3
    assert {row["effect"] for row in app.ledger.rows()} == {"none"}


def test_while_one_call_waits_for_the_caller_the_next_one_keeps_nobody_busy() -> None:
    app_busy: list[bool] = []

    async def main() -> None:
        async with App(OPENAI, OTHERS, NOBODY) as app:
            app.session.answer = lambda ids: app.session.speak(FIFTY) if not ids else None
            app.session.speak("", calls=tuple(call(c, "pay", f'{{"euros": {e}}}') for c, e in (("a", 50), ("b", 60))))
            await asyncio.sleep(3.0)
            app_busy.append(app.dispatcher.busy)
            app.dispatcher.asking.let_go("the end")
            await asyncio.sleep(0.1)

    run_blocking(main)
    assert app_busy == [False]
