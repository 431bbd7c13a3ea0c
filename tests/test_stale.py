"""Results of a request that was changed or withdrawn, orders that come twice, and 1,000 schedules that go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fake_session import App, call
from talks import talk

import voicekit as vk
from voicekit import metrics
from voicekit.clock import run_blocking
from voicekit.results import Result, ok
from voicekit.runs import Run
from voicekit.sessions.base import (
    Audio,
    Event,
    Heard,
    Interrupted,
    Problem,
    SpeechStarted,
    SpeechStopped,
    ToolCall,
    ToolCallCancelled,
    TurnDone,
)
from voicekit.tools import Fault, Tool
from voicekit.world import World

OPENAI, GEMINI, NO_SCHEDULING = "gpt-realtime", "gemini-3.8-live", "gemini-3.8-live-extended-thinking"
MODELS = (OPENAI, GEMINI, NO_SCHEDULING)
FRIDAY, THURSDAY = '{"day": "friday"}', '{"day": "thursday"}'
TWO_O_CLOCK = '{"day": "thursday", "time": "14:00"}'


def decided(run: Run | App) -> list[str]:
    events = run.event_rows if isinstance(run, Run) else run.journal.events
    return [event["kind"] for event in events if event["lane"] == "decision"]


def heard(run: Run) -> list[str]:
    return [event["text"] for event in run.event_rows if event["kind"] == "played" and event["text"]]


def shop(seconds: float = 1.0, world: World | None = None, **faults: Any) -> list[Tool]:
    return (world or World(bookings=[("friday", "10:00")])).tools(seconds=seconds, faults=faults)


# Friday becomes Thursday


CORRECTED = (vk.Line("appointment_friday", at=0.5), vk.Line("make_that_thursday", after="tool_starts", seconds=0.8))
BOOKED = (vk.Line("book_it", after="agent_done", seconds=0.8), vk.Line("yes_please", after="agent_done", seconds=0.6))
# A thinking model takes its time to correct itself.
TAKE = {"find_appointment": 6.0, "book_appointment": 0.5}


def goes_on_to_book(model: str, stale: str) -> bool:
    return model == OPENAI or stale == "drop"


def friday_thursday(model: str, stale: str) -> Run:
    lines = CORRECTED + BOOKED if goes_on_to_book(model, stale) else CORRECTED
    return talk(vk.Scenario("friday_thursday", tools=TAKE, lines=lines), model, stale=stale)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stale, spoken", [("drop", 0), ("silent", 0), ("speak", 1)])
def test_what_is_made_of_an_old_result(model: str, stale: str, spoken: int) -> None:
    run = friday_thursday(model, stale)
    assert (run.values["stale_spoken"], run.values["stale_dropped"]) == (spoken, 1 - spoken)
    assert any("On Friday" in text for text in heard(run)) == bool(spoken)
    assert any("On Thursday" in text for text in heard(run))
    booked = [json.loads(row["arguments"]) for row in run.call_rows if row["effect"] == "committed"]
    assert booked == ([{"day": "thursday", "time": "14:00"}] if goes_on_to_book(model, stale) else [])
    assert run.values["unanswered_calls"] == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_silent_result_is_on_the_wire_and_a_dropped_one_is_not(model: str) -> None:
    for stale, known in (("silent", True), ("drop", False)):
        rows = friday_thursday(model, stale).wire_rows
        sent = json.dumps([row["frame"] for row in rows if row["direction"] == "sent"])
        assert ("On Friday there is" in sent) == known


def test_a_write_of_an_old_revision_is_not_made() -> None:
    """The booking for Friday is under way, not committed, when the one for Thursday comes."""

    async def main() -> tuple[App, World]:
        world = World(bookings=[])
        policy = vk.Policy(revision_key=lambda tool, arguments: "the appointment")
        async with App(OPENAI, shop(4.0, world), policy) as app:
            app.session.speak("", calls=(call("c1", "book_appointment", '{"day": "friday", "time": "10:00"}'),))
            app.at(1.0, lambda: app.session.speak("", calls=(call("c2", "book_appointment", TWO_O_CLOCK),)))
            await app.rest()
            return app, world

    app, world = run_blocking(main)
    assert world.bookings == [("thursday", "14:00")]
    assert [row["effect"] for row in app.calls().values()] == ["none", "committed"]


def test_a_write_that_has_happened_is_told_although_it_is_outdated() -> None:
    async def main() -> App:
        policy = vk.Policy(revision_key=lambda tool, arguments: "the appointment")
        async with App(OPENAI, shop(2.0), policy) as app:
            app.session.speak("", calls=(call("c1", "book_appointment", '{"day": "friday", "time": "10:00"}'),))
            app.at(1.5, lambda: app.session.speak("", calls=(call("c2", "book_appointment", TWO_O_CLOCK),)))
            await app.rest()
            return app

    app = run_blocking(main)
    results = {what[0]: what[1]["status"] for what in app.session.of("result")}
    assert results == {"c1": "ok", "c2": "ok"} and "outdated" in decided(app)
    values = measured(app)
    assert values["stale_spoken"] == 0  # an effect is news, never stale


def test_another_topic_makes_no_result_stale() -> None:
    for model in MODELS:
        run = talk("order_status_chatty", model)
        assert any("Your order left" in text for text in heard(run))
        assert run.values["stale_dropped"] == 0


@pytest.mark.parametrize("model", [OPENAI, GEMINI, "gemini-3.1-flash-live-preview"])
def test_a_withdrawn_question_is_answered_on_the_wire_only(model: str) -> None:
    """Also on a model that stands still: it transcribes, although it does not answer."""
    run = talk("never_mind", model)
    assert run.values["stale_dropped"] == 1 and run.values["unanswered_calls"] == 0
    assert not any("Your order" in text for text in heard(run)) and any("We are open" in text for text in heard(run))


def test_a_result_waits_for_its_siblings_even_if_the_last_of_them_is_dropped() -> None:
    async def main() -> App:
        policy = vk.Policy(delivery=lambda result, moment: "silent" if moment.tool == "get_shipping" else "when_idle")
        kettle = '{"item": "blue kettle"}'
        tools = World().tools(seconds={"check_stock": 1.0, "get_shipping": 3.0})
        async with App("gpt-realtime-2.1", tools, policy) as app:
            app.session.speak("", calls=(call("c1", "check_stock", kettle), call("c2", "get_shipping", kettle)))
            await app.rest()
            return app

    assert run_blocking(main).session.of("respond") == [("c1", "c2")]


def test_an_interrupting_result_does_not_cut_off_one_that_is_just_being_said() -> None:
    async def main() -> App:
        kettle = '{"item": "blue kettle"}'
        async with App(OPENAI, shop(1.0), vk.Policy(delivery="interrupt")) as app:
            app.session.speak("", calls=(call("c1", "check_stock", kettle),))
            app.session.speak("", calls=(call("c2", "get_shipping", kettle),))
            await app.rest()
            return app

    app = run_blocking(main)
    assert sorted(app.session.of("respond")) == [("c1",), ("c2",)] and app.speaker.totals.flushed == 0


# The same order twice

BOOKING = vk.Scenario(
    "booking",
    tools={"book_appointment": 0.5},
    lines=(vk.Line("book_thursday", at=0.5), vk.Line("yes_please", after="agent_done", seconds=0.6)),
)


@pytest.mark.parametrize("model", [OPENAI, GEMINI])
def test_case_21_one_intended_action_under_two_ids_is_one_effect(model: str) -> None:
    run = vk.run(BOOKING, model="gpt-realtime-2.1" if model == OPENAI else model, faults={"second_id": True})
    assert [row["effect"] for row in run.call_rows] == ["committed", "none"]
    assert run.values["duplicate_effects"] == 0 and run.values["unanswered_calls"] == 0


def test_without_a_common_request_it_is_booked_twice() -> None:
    run = vk.run(BOOKING, model="gpt-realtime-2.1", faults={"second_id": True}, same_action="call")
    assert run.values["duplicate_effects"] == 1


@pytest.mark.parametrize("order", ["before", "after"])
def test_case_21_the_same_call_in_two_frames_runs_once(order: str) -> None:
    run = vk.run(BOOKING, model=GEMINI, faults={"duplicate_call": order})
    assert len(run.call_rows) == 1
    answers = [row for row in run.wire_rows if row["direction"] == "sent" and row["type"] == "tool_response"]
    assert len(answers) == 1


@pytest.mark.parametrize("same_action, booked", [("session", 1), ("turn", 2), ("call", 2)])
def test_an_order_given_again_is_one_or_two(same_action: str, booked: int) -> None:
    world = World(bookings=[])

    async def main() -> None:
        async with App(OPENAI, shop(0.5, world), vk.Policy(same_action=same_action)) as app:  # type: ignore[arg-type]
            for number in (1, 2):
                app.session.caller_says("Please book an appointment on Thursday at two.", 0.5)
                await asyncio.sleep(1.0)
                app.session.speak("", calls=(call(f"c{number}", "book_appointment", TWO_O_CLOCK),))
                await app.rest()

    run_blocking(main)
    assert len(world.bookings) == booked


def test_two_different_orders_are_two() -> None:
    world = World(bookings=[])

    async def main() -> None:
        async with App("gpt-realtime-2.1", shop(0.5, world)) as app:
            friday = call("c2", "book_appointment", '{"day": "friday", "time": "10:00"}')
            app.session.speak("", calls=(call("c1", "book_appointment", TWO_O_CLOCK), friday))
            await app.rest()

    run_blocking(main)
    assert world.bookings == [("thursday", "14:00"), ("friday", "10:00")]


# Unknown, and too late

AGAIN = vk.Scenario(
    "again",
    tools={"book_appointment": 1.0},
    lines=(
        vk.Line("book_thursday", at=0.5),
        vk.Line("yes_please", after="agent_done", seconds=0.6),
        vk.Line("book_thursday", after="agent_done", seconds=2.0),
        vk.Line("yes_please", after="agent_done", seconds=0.6),
    ),
)


def test_case_27_a_time_out_is_unknown_and_before_a_retry_the_application_looks() -> None:
    late = {"book_appointment": {1: Fault("late_commit", 3.0)}}
    run = vk.run(AGAIN, model=GEMINI, tool_timeout=1.0, tool_faults=late)
    first, second = run.call_rows
    assert (second["repeats"], second["effect"]) == (first["call_id"], "none")
    assert first["effect"] == "committed" and run.values["duplicate_effects"] == 0
    of_first = [event for event in run.event_rows if event["call_id"] == first["call_id"]]
    ended = [event["kind"] for event in of_first if event["lane"] == "tool"]
    assert ended[:4] == ["proposed", "validated", "running", "timed_out"]
    assert "did not answer in time" in heard(run)[1] and "is booked" in heard(run)[3]


@pytest.mark.parametrize("model", [OPENAI, GEMINI])
def test_what_comes_after_the_session_is_kept_and_known_in_the_next(model: str) -> None:
    gone = talk("order_status", model, faults={"close": {"after_s": 9.0}})
    (late,) = gone.undelivered
    assert late["t"] > 9.0 and late["call_id"] == "call_0001" and "Your order left" in late["text"]
    assert gone.calls.iloc[0]["delivered"] is None or gone.calls["delivered"].isna().all()
    asks = vk.Scenario("asks", tools={"get_order_status": 6.0}, lines=(vk.Line("any_news", at=0.5),))
    assert heard(vk.run(asks, model=model, earlier=gone)) == [late["text"]]
    assert heard(vk.run(asks, model=model)) == ["I have no news about that yet."]


def test_done_said_and_heard_are_three_times() -> None:
    run = talk("booking", OPENAI)
    (row,) = run.call_rows
    said = next(e["t"] for e in run.event_rows if e["kind"] == "generating" and e["t"] > row["finished"])
    assert row["finished"] < said <= row["heard"]
    assert run.values["done_to_heard"] == pytest.approx(row["heard"] - row["finished"], abs=1e-6)
    assert row["effect_at"] < row["finished"]  # and the effect itself is a fourth


# Collisions and malformed calls, seen from the application


def test_case_01_a_response_of_the_servers_own_wins_once_and_the_result_is_said_once() -> None:
    run = vk.run("quick_lookup", model=OPENAI, faults={"late_response": 1.0})
    problems = [e["detail"]["code"] for e in run.event_rows if e["kind"] == "problem"]
    assert problems in ([], ["conversation_already_has_active_response"]) and run.problem == ""
    assert sum("in stock" in text for text in heard(run)) == 1 and len(run.call_rows) == 1


def test_case_01_a_provider_that_is_always_busy_is_not_asked_for_ever() -> None:
    async def main() -> App:
        async with App(OPENAI, shop()) as app:
            busy = Problem("conversation_already_has_active_response", "busy")
            app.session.answer = lambda ids: app.session.emit(busy)
            app.session.speak("", calls=(call("c", "check_stock", '{"item": "blue kettle"}'),))
            await app.rest(120)
            return app

    app = run_blocking(main)
    assert len(app.session.of("respond")) == 5 and "unspoken" in decided(app)


def test_case_07_a_result_goes_out_under_the_very_id_it_was_proposed_under() -> None:
    async def main() -> App:
        async with App(GEMINI, shop()) as app:
            app.session.speak("", calls=(call("call-1_X", "check_stock", '{"item": "blue kettle"}'),))
            await app.rest()
            return app

    assert [what[0] for what in run_blocking(main).session.of("result")] == ["call-1_X"]


def test_case_34_a_cut_off_call_is_answered_not_run_and_the_next_turn_works() -> None:
    run = vk.run("booking", model=OPENAI, faults={"truncate_arguments": True})
    assert run.call_rows[0]["state"] == "rejected" and run.call_rows[0]["started"] is None
    assert run.values["unanswered_calls"] == 0 and heard(run)[-1] == "You're welcome. Goodbye."


def measured(app: App) -> dict[str, Any]:
    rows = app.ledger.rows()
    metrics.mark_heard(rows, app.journal.events)
    return metrics.measure(app.journal.events, rows)


# 1,000 schedules

SAYINGS = (
    "Never mind.", "Never mind.", "Yes.", "Yes, please.", "No.", "And what are your opening hours?",
    "No, make that Thursday.", "Mm-hm.", "Forget it, please.",
)  # fmt: skip
CALLS = (
    ("find", FRIDAY), ("find", THURSDAY), ("find", FRIDAY), ("find", THURSDAY), ("book", THURSDAY), ("book", FRIDAY),
    ("cancel", FRIDAY), ("check", "{}"),
    ("find", '{"day": "fri'), ("transfer_funds", "{}"),
)  # fmt: skip
SCHEDULED = (*MODELS, "gpt-4o-realtime-preview", "gpt-realtime-2.1", "gemini-3.1-flash-live-preview")


async def find(day: str) -> Result:
    """Look for a free hour."""
    return ok({"friday": "Amber hour, seven.", "thursday": "Violet space, nine."}[day])


async def book(day: str) -> Result:
    """Book an hour."""
    return ok({"friday": "Oak entry made.", "thursday": "Pine record written."}[day])


async def cancel(day: str) -> Result:
    """Cancel an hour."""
    return ok("Gone for good.")


async def check() -> Result:
    """Look into the store."""
    return ok("Twelve kettles.")


TOOLS = (
    Tool.of(find, effect="read", wish="hour"),
    Tool.of(book, effect="write", compensation="cancel"),
    Tool.of(cancel, effect="irreversible", cancellable=False),
    Tool.of(check, effect="read"),
)


def a_policy(draw: random.Random, model: str) -> vk.Policy:
    free = model.startswith("gpt") or model == GEMINI
    return vk.Policy(
        delivery=draw.choice(("when_idle", "interrupt", "silent")) if free else "when_idle",  # type: ignore[arg-type]
        on_barge_in=draw.choice(("finish", "cancel", "hold_until_confirmed", by_effect)),  # type: ignore[arg-type]
        tool_timeout=draw.choice((2.0, 30.0)),
    )


def by_effect(tool: Tool) -> str:
    return {"read": "finish", "write": "cancel", "irreversible": "hold_until_confirmed"}[tool.effect]


def a_turn(draw: random.Random, number: int, cancels: bool) -> list[tuple[float, tuple[Event, ...]]]:
    """A call or two, late, doubled, in any order, cancelled or talked into."""
    turn, frames = f"model_{number}", []
    for place in range(draw.randint(1, 2)):
        name, arguments = draw.choice(CALLS)
        proposed = ToolCall(f"c{number}_{place}", name, arguments, turn, broken=draw.random() < 0.05)
        frames += [(draw.uniform(0, 0.5), (proposed,))] * draw.choice((1, 1, 1, 2, 3))
        if cancels and draw.random() < 0.3:
            frames.append((draw.uniform(0, 4.0), (ToolCallCancelled((proposed.call_id, "unknown")),)))
    if draw.random() < 0.3:
        frames.append((draw.uniform(0, 0.5), (Audio(f"preamble_{number}", bytes(48_000), turn),)))
    frames.append((draw.uniform(0, 1.0), (TurnDone(turn),)))
    if draw.random() < 0.3:
        frames.append((draw.uniform(0, 2.0), (Interrupted(turn), Audio(f"late_{number}", bytes(4_800), turn))))
    return frames


def an_utterance(draw: random.Random) -> list[tuple[float, tuple[Event, ...]]]:
    frames: list[tuple[Event, ...]] = [(SpeechStarted(),), (SpeechStopped(),), (Heard(draw.choice(SAYINGS)),)]
    if draw.random() < 0.1:
        draw.shuffle(frames)
    times = sorted(draw.uniform(0, 1.5) for _ in frames)
    return list(zip(times, frames, strict=True)) * draw.choice((1, 1, 1, 2))


async def one_schedule(seed: int, **changes: Any) -> App:
    draw = random.Random(seed)
    model = draw.choice(SCHEDULED)
    latency = vk.Latency(draw.choice((0.0, 1.0, 3.0)), 0.5)
    faults = (None,) * 8 + ("error", "time_out", "empty", "late_commit 3")
    tools = [replace(each, seconds=latency, faults=draw.choice(faults)) for each in TOOLS]
    policy = replace(a_policy(draw, model), **changes)
    async with App(model, tools, policy, seed=seed, lag=draw.uniform(0.0, 1.5)) as app:
        for number in range(draw.choice((1, 1, 1, 2, 2, 4))):
            for at, events in a_turn(draw, number, app.session.capabilities.implied_reply):
                app.session.later(number * draw.uniform(0.2, 3.0) + at, *events)
        for _ in range(draw.choice((0, 0, 1, 1, 2, 4))):
            begin = draw.uniform(0, 6.0)
            for at, events in an_utterance(draw):
                app.session.later(begin + at, *events)
        if draw.random() < 0.3:
            app.session.later(draw.uniform(0, 6.0), Problem("conversation_already_has_active_response", "busy"))
        await asyncio.sleep(14.0)
        app.session.emit(SpeechStarted(), SpeechStopped())  # whatever order they came in: the caller is silent now
        await app.rest(300.0)
        app.dispatcher.asking.let_go("the end")
        await app.rest(300.0)
    return app


def test_a_thousand_schedules_leave_nothing_unanswered_doubled_stale_or_hanging() -> None:
    async def main() -> list[str]:
        wrong: list[str] = []
        for first in range(0, 1000, 100):  # a hundred at a time: virtual time passes for all of them at once
            apps = await asyncio.gather(*(one_schedule(seed) for seed in range(first, first + 100)))
            wrong += [fault for seed, app in enumerate(apps, first) for fault in faults_of(seed, app)]
            del apps
            gc.collect()
            if left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
                wrong.append(f"seeds from {first}: still running: {left}")
        return wrong

    with collecting_by_hand():
        assert run_blocking(main) == []


@contextlib.contextmanager
def collecting_by_hand() -> Iterator[None]:
    """Among a thousand conversations the collector would go through all modules of the SDKs again and again."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_the_schedules_would_show_it() -> None:
    """The same schedules with the old results spoken and every id an order of its own."""

    async def main() -> tuple[int, int]:
        apps = await asyncio.gather(*(one_schedule(seed, stale="speak", same_action="call") for seed in range(100)))
        values = [measured(app) for app in apps]
        return sum(each["stale_spoken"] for each in values), sum(each["duplicate_effects"] for each in values)

    stale_spoken, duplicate_effects = run_blocking(main)
    assert stale_spoken > 3 and duplicate_effects > 3


def faults_of(seed: int, app: App) -> list[str]:
    values, total = measured(app), app.speaker.totals
    found = {name: values[name] for name in ("unanswered_calls", "duplicate_effects", "stale_spoken")}
    answers = [what[0] for what in app.session.of("result") if what[3]]
    sound = total.generated == total.heard + total.flushed + total.queued
    right = not any(found.values()) and len(answers) == len(set(answers)) and sound
    return [] if right else [f"seed {seed}: {found}, answers {answers}, sound {sound}"]
