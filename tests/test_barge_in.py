"""Talking over the agent: what stops, in which order, what the provider is told, and what becomes of the call."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_session import App, call
from talks import talk

import voicekit as vk
from voicekit.audio import clips
from voicekit.clock import run_blocking
from voicekit.echo import Microphone, without_copy
from voicekit.experiment import scenarios
from voicekit.metrics import measure
from voicekit.results import Result, ok
from voicekit.runs import Run
from voicekit.sessions.base import (
    Audio,
    Heard,
    Interrupted,
    Said,
    SpeechStarted,
    SpeechStopped,
    TurnDone,
    TurnStarted,
)
from voicekit.tools import Tool

SECOND = bytes(48_000)
OPENAI, GEMINI = "gpt-realtime", "gemini-3.8-live"
LONG_ANSWER = vk.Scenario(
    "long_answer",
    tools={"get_order_status": 1.0},
    lines=(vk.Line("order_details", at=0.5), vk.Line("thanks", after="agent_done", seconds=0.8, patience=40)),
)


def without_thanks(scenario: vk.Scenario) -> vk.Scenario:
    return replace(scenario, lines=scenario.lines[:-1])


def decided(run: Run | App) -> list[str]:
    events = run.event_rows if isinstance(run, Run) else run.journal.events
    return [event["kind"] for event in events if event["lane"] == "decision"]


def heard(run: Run) -> list[str]:
    return [event["text"] for event in run.event_rows if event["kind"] == "played" and event["text"]]


def tool(name: str, effect: str = "read", seconds: float = 2.0, log: list[str] | None = None, **options: Any) -> Tool:
    async def act() -> Result:
        """Do it."""
        if log is not None:
            log.append(name)
        return ok(f"The {name} is done.")

    return Tool.of(act, effect=effect, name=name, seconds=seconds, **options)  # type: ignore[arg-type]


def played(app: App, item: str) -> dict[str, Any]:
    return next(e["detail"] for e in app.journal.events if e["kind"] == "played" and e["item"] == item)


# The order of things


def test_silence_first_then_the_calls_then_the_provider() -> None:
    async def main() -> App:
        async with App(OPENAI, [tool("lookup")]) as app:
            app.session.emit(TurnStarted("t"), Audio("i", SECOND * 3, "t"), Said("i", "One two.", "t", final=True))
            app.session.emit(call("c", "lookup"), TurnDone("t"))
            app.at(1.0, lambda: app.session.emit(SpeechStarted()))
            await asyncio.sleep(1.5)
            return app

    app = run_blocking(main)
    order = ("speech_started", "played", "finish", "truncate")
    events = [(e["t"], e["kind"]) for e in app.journal.events if e["kind"] in order]
    assert events == [(1.0, "speech_started"), (1.0, "played"), (1.0, "finish"), (1.0, "truncate")]
    assert app.session.of("truncate") == [("i", 1000)]
    assert played(app, "i")["heard"] == 1.0 and played(app, "i")["flushed"] == 2.0


def test_the_transcript_keeps_what_was_heard_and_what_was_not() -> None:
    run = talk("barge_in", OPENAI)
    cut = next(e for e in run.event_rows if e["kind"] == "played" and e["detail"]["flushed"])
    said = next(e["text"] for e in run.event_rows if e["kind"] == "generated" and e["item"] == cut["item"])
    assert cut["text"] and cut["detail"]["unheard"] and f"{cut['text']} {cut['detail']['unheard']}" == said


def test_a_running_call_is_not_touched_by_a_barge_in() -> None:
    async def main() -> App:
        async with App(OPENAI, [tool("lookup")]) as app:
            app.session.speak("I'll check that now.", calls=(call("c", "lookup"),))
            app.at(0.5, lambda: app.session.caller_says("And another thing."))
            app.at(2.0, lambda: app.session.speak("Yes?"))
            await app.rest()
            return app

    app = run_blocking(main)
    assert app.calls()["c"]["state"] == "done" and app.session.of("respond") == [("c",)]


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_the_position_reported_is_the_position_heard_at_200_points(clock: str) -> None:
    """Turns of up to three items that arrive in bursts, cut off anywhere; `heard_of` works out anew what was heard.

    In real time a busy machine may spoil two tries of three: it can stop this process between the two clock readings.
    """
    longest = 40_000 if clock == "virtual" else 10_000  # samples of an item; all of them talk at the same time

    async def one(seed: int, ready: asyncio.Barrier) -> tuple[float, int]:
        draw = random.Random(seed)
        lengths = [draw.randint(1, longest) for _ in range(draw.randint(1, 3))]
        async with App(OPENAI, []) as app:
            arrived = watch(app)
            await ready.wait()
            app.session.emit(TurnStarted("t"))
            at = 0.0
            for number, length in enumerate(lengths):
                pcm = bytes(2 * length)
                for start in range(0, len(pcm), 9600):
                    app.session.later(at, Audio(f"i{number}", pcm[start : start + 9600], "t"))
                    at += 0.04  # five times faster than it is spoken
            await asyncio.sleep(draw.uniform(0.0, sum(lengths) / 24_000))
            app.session.emit(SpeechStarted())
            await asyncio.sleep(0.05)
        cut = next(e["t"] for e in app.journal.events if e["kind"] == "speech_started")
        truth = heard_of(arrived, cut)
        reported = app.session.of("truncate")
        total = app.speaker.totals
        assert total.generated == sum(len(pcm) // 2 for _, _, pcm in arrived)
        assert total.generated == total.heard + total.flushed + total.queued
        assert measure(app.journal.events, [])["truncate_error_ms"] in (None, pytest.approx(0, abs=1))
        return max((abs(ms - truth[item] / 24) for item, ms in reported), default=0.0), len(reported)

    async def main() -> list[tuple[float, int]]:
        ready = asyncio.Barrier(200)
        return await asyncio.gather(*(one(seed, ready) for seed in range(200)))

    for _ in range(1 if clock == "virtual" else 3):
        results = run_blocking(main, clock)  # type: ignore[arg-type]
        if max(worst for worst, _ in results) <= 20:
            break
    assert max(worst for worst, _ in results) <= 20
    # They were really cut off, some within several items; a busy machine lets some play to their end in real time.
    assert sum(count for _, count in results) > (200 if clock == "virtual" else 60)


def watch(app: App) -> list[tuple[float, str, bytes]]:
    """When each piece of audio reached the loudspeaker: (session seconds, item, PCM)."""
    arrived: list[tuple[float, str, bytes]] = []
    play = app.speaker.play

    def note(item: str, pcm: bytes, turn: str = "") -> None:
        arrived.append((app.now(), item, pcm))
        play(item, pcm, turn)

    app.speaker.play = note  # type: ignore[method-assign]
    return arrived


def heard_of(arrived: list[tuple[float, str, bytes]], cut: float) -> dict[str, float]:
    """Samples of each item that have left a loudspeaker at `cut`: in order, from the moment they are there."""
    heard: dict[str, float] = {}
    free = 0.0
    for at, item, pcm in arrived:
        start, seconds = max(free, at), len(pcm) / 48_000
        free = start + seconds
        heard[item] = heard.get(item, 0.0) + 24_000 * min(max(cut - start, 0.0), seconds)
    return heard


@pytest.mark.parametrize("seconds", [0.3, 2.5, 4.9])
def test_the_simulated_provider_accepts_every_position(seconds: float) -> None:
    lines = (vk.Line("order_details", at=0.5), vk.Line("opening_hours", after="agent_starts", seconds=seconds))
    cut_off = vk.Scenario("cut", tools={"get_order_status": 1.0}, lines=lines)
    run = talk("barge_in" if seconds == 2.5 else cut_off, OPENAI)
    answers = [row["frame"] for row in run.wire_rows if row["type"] == "conversation.item.truncated"]
    acknowledged = [frame["audio_end_ms"] for frame in answers]
    cut = [e["detail"]["heard"] * 1000 for e in run.event_rows if e["kind"] == "played" and e["detail"]["flushed"]]
    assert len(acknowledged) == len(cut) == 1 and 0 <= cut[0] - acknowledged[0] < 1
    assert run.values["truncate_error_ms"] < 1
    assert [e for e in run.event_rows if e["kind"] == "problem"] == []


# Cases


def test_case_14_the_position_is_the_players_not_the_clocks() -> None:
    async def main() -> App:
        async with App(OPENAI, []) as app:
            app.session.emit(TurnStarted("t"), Audio("i", SECOND * 2, "t"))  # the turn stays open, the player runs dry
            app.at(5.0, lambda: app.session.emit(SpeechStarted()))
            await asyncio.sleep(6.0)
            return app

    assert run_blocking(main).session.of("truncate") == []  # all that came was heard: nothing to take back


def test_case_14_what_is_still_queued_is_clamped_to_what_came() -> None:
    async def main() -> App:
        async with App(OPENAI, []) as app:
            app.session.emit(TurnStarted("t"), Audio("i", SECOND, "t"))
            app.at(3.0, lambda: app.session.emit(Audio("i", SECOND, "t")))
            app.at(3.5, lambda: app.session.emit(SpeechStarted()))
            await asyncio.sleep(4.0)
            return app

    assert run_blocking(main).session.of("truncate") == [("i", 1500)]  # not 3500: for two seconds nothing was played


def test_case_15_nothing_is_truncated_before_the_first_audio_and_zero_after_it() -> None:
    async def main(with_audio: bool) -> App:
        async with App(OPENAI, []) as app:
            app.session.emit(TurnStarted("before"), Audio("before", SECOND, "before"), TurnStarted("t"))
            if with_audio:
                app.session.emit(Audio("i", SECOND, "t"))
            app.session.emit(SpeechStarted())
            await asyncio.sleep(0.1)
            return app

    assert [item for item, _ in run_blocking(lambda: main(False)).session.of("truncate")] == ["before"]
    assert run_blocking(lambda: main(True)).session.of("truncate") == [("before", 0), ("i", 0)]


def test_case_17_a_server_that_holds_less_is_told_its_own_length_once() -> None:
    lines = (vk.Line("order_status", at=0.5), vk.Line("opening_hours", after="agent_starts", seconds=3.15))
    late = vk.Scenario("late", tools={"get_order_status": 1.0}, lines=lines)  # the answer lasts 3.41 s
    run = vk.run(late, model=OPENAI, faults={"short_by_ms": 400})
    sent = [row["frame"]["audio_end_ms"] for row in run.wire_rows if row["type"] == "conversation.item.truncate"]
    problems = [e["detail"] for e in run.event_rows if e["kind"] == "problem"]
    assert len(sent) == 2 and sent[1] < sent[0] and run.problem == ""
    assert all(problem["recoverable"] for problem in problems)
    assert run.values["unanswered_calls"] == 0


def test_case_19_interrupted_empties_the_queue_before_anything_is_sent() -> None:
    async def main() -> App:
        async with App(GEMINI, []) as app:
            app.session.emit(TurnStarted("t"), Audio("t", SECOND * 10, "t"))
            app.at(1.0, lambda: app.session.emit(Interrupted("t"), Audio("t", SECOND, "t"), Audio("t_2", SECOND, "t")))
            app.at(1.1, lambda: app.session.emit(TurnDone("t", "cancelled", "interrupted")))
            await asyncio.sleep(12.0)
            return app

    app = run_blocking(main)
    assert app.speaker.totals.heard == 24_000 and app.speaker.totals.flushed == 11 * 24_000
    assert app.session.sent == []


def test_case_23_a_result_owed_at_the_moment_of_an_interruption_is_delivered() -> None:
    async def main() -> App:
        async with App("gemini-3.1-flash-live-preview", [tool("lookup", seconds=1.0)]) as app:
            app.session.emit(TurnStarted("t"), Audio("t", SECOND * 3, "t"), call("c", "lookup"))
            app.at(1.0, lambda: app.session.emit(Interrupted("t"), TurnDone("t", "cancelled")))
            await app.rest()
            return app

    app = run_blocking(main)
    assert [what[0] for what in app.session.of("result")] == ["c"]
    assert measure(app.journal.events, [])["unanswered_calls"] == 0


@pytest.mark.parametrize("stale", ["drop", "silent"])
def test_case_25_the_booking_stays_the_words_go_and_the_question_is_answered(stale: Any) -> None:
    booked: list[str] = []

    async def main() -> App:
        book = tool("booking", "write", 2.0, booked, commits_at=0.4, compensation="undo")
        async with App(OPENAI, [book], vk.Policy(stale=stale)) as app:
            app.session.speak("", calls=(call("c", "booking"),))
            app.at(0.9, lambda: app.session.caller_says("Never mind. What time is it?", 0.3))
            app.at(1.5, lambda: app.session.speak("It is noon."))
            await app.rest()
            return app

    app = run_blocking(main)
    assert booked == ["booking"] and app.calls()["c"]["effect"] == "committed"
    (_, told, _, _) = app.session.of("result")[0]
    assert told["result"]["status"] == "ok" and app.session.of("respond") == []
    text = next(e["text"] for e in app.journal.events if e["kind"] == "not_said")
    assert "undo can undo it" in text


def test_case_27_after_the_end_of_a_call_nothing_new_begins() -> None:
    done: list[str] = []

    async def main() -> App:
        async with App(OPENAI, [tool("booking", "write", 1.0, done)]) as app:
            app.at(0.2, lambda: app.session.emit(call("c", "booking")))
            await asyncio.sleep(0.3)
            await app.dispatcher.close()
            await asyncio.sleep(5.0)
            return app

    app = run_blocking(main)
    assert done == [] and app.calls()["c"]["state"] == "cancelled"


def test_case_10_a_plain_function_that_sleeps_does_not_delay_the_barge_in() -> None:
    import time

    def slow() -> Result:
        """Takes its time."""
        time.sleep(0.6)
        return ok("Done at last.")

    async def main() -> tuple[App, float]:
        async with App(OPENAI, [Tool.of(slow, effect="read", seconds=0.0)]) as app:
            app.session.emit(TurnStarted("t"), Audio("i", SECOND, "t"), call("c", "slow"), TurnDone("t"))
            app.at(0.2, lambda: app.session.emit(SpeechStarted()))
            worst, last = 0.0, asyncio.get_running_loop().time()
            for _ in range(40):
                await asyncio.sleep(0.02)
                worst = max(worst, asyncio.get_running_loop().time() - last - 0.02)
                last = asyncio.get_running_loop().time()
            return app, worst

    app, lag = run_blocking(main, "real")
    assert lag < 0.5  # on the loop it would have been 0.6
    assert app.session.of("truncate")[0][1] < 500


# Three answers and three kinds of effect

SCENES = {"read": "interrupted_lookup", "write": "interrupted_booking", "irreversible": "interrupted_cancellation"}
# What the ledger says, whether the tool was begun, and whether the caller hears of the result.
CELLS = {
    ("read", "finish"): ("done", "none", True, False),
    ("read", "cancel"): ("cancelled", "none", True, False),
    ("read", "hold_until_confirmed"): ("cancelled", "none", False, False),
    ("write", "finish"): ("done", "committed", True, False),
    ("write", "cancel"): ("cancelled", "none", True, False),
    ("write", "hold_until_confirmed"): ("cancelled", "none", False, False),
    ("irreversible", "finish"): ("done", "committed", True, False),
    ("irreversible", "cancel"): ("done", "committed", True, True),
    ("irreversible", "hold_until_confirmed"): ("cancelled", "none", False, False),
}


@pytest.mark.parametrize("effect, choice", CELLS)
def test_nine_cells(effect: str, choice: str) -> None:
    check_cell(interrupted(effect, OPENAI, choice), effect, choice)


@pytest.mark.parametrize(
    "model, effect, choice",
    [
        (GEMINI, "write", "finish"),
        (GEMINI, "irreversible", "cancel"),
        (GEMINI, "write", "hold_until_confirmed"),
        ("gemini-3.1-flash-live-preview", "write", "finish"),
        ("gemini-3.1-flash-live-preview", "irreversible", "cancel"),
    ],
)
def test_the_cells_are_the_same_on_the_other_provider(model: str, effect: str, choice: str) -> None:
    check_cell(interrupted(effect, model, choice), effect, choice)


def interrupted(effect: str, model: str, choice: str) -> Run:
    return talk(without_thanks(scenarios()[SCENES[effect]]), model, on_barge_in=choice)


def check_cell(run: Run, effect: str, choice: str) -> None:
    (row,) = run.call_rows
    found = (row["state"], row["effect"], row["started"] is not None, row["heard"] is not None)
    assert found == CELLS[effect, choice]
    assert run.values["unanswered_calls"] == 0 and run.problem == ""
    assert any("We are open" in text for text in heard(run))


def test_a_function_of_the_tool_gives_each_effect_its_own_answer() -> None:
    def by_effect(tool: Any) -> str:
        return {"read": "cancel", "write": "finish", "irreversible": "hold_until_confirmed"}[tool.effect]

    for effect, choice in (("read", "cancel"), ("irreversible", "hold_until_confirmed")):
        scenario = without_thanks(scenarios()[SCENES[effect]])
        check_cell(vk.run(scenario, model=OPENAI, on_barge_in=by_effect), effect, choice)


def test_what_can_not_be_stopped_is_never_passed_over_in_silence() -> None:
    run = interrupted("irreversible", OPENAI, "cancel")
    items = [row["frame"].get("item", {}) for row in run.wire_rows if row["direction"] == "sent"]
    told = next(item["output"] for item in items if item.get("type") == "function_call_output")
    assert "it can not be undone" in told and "too_late" in decided(run)
    said = "Your appointment on Friday at ten is cancelled. I could not stop it any more, and it can not be undone."
    assert said in heard(run)


# Held until confirmed

ASKED_TWICE = vk.Scenario(
    "confirmed",
    tools={"book_appointment": 0.5},
    lines=(
        vk.Line("book_thursday", at=0.5),
        vk.Line("yes_please", after="agent_done", seconds=0.6),  # to the model's own question
        vk.Line("yes", after="agent_done", seconds=0.6),  # to the application's
    ),
)


WAYS_TO_ASK = (
    OPENAI, "gpt-4o-realtime-preview", GEMINI, "gemini-3.1-flash-live-preview", "gemini-3.8-live-extended-thinking",
)  # fmt: skip


@pytest.mark.parametrize("model", WAYS_TO_ASK)
def test_a_held_call_begins_with_the_callers_yes_and_not_before(model: str) -> None:
    run = vk.run(ASKED_TWICE, model=model, on_barge_in="hold_until_confirmed", tool_seconds=1.0)
    (row,) = run.call_rows
    said = [e["t"] for e in run.event_rows if e["kind"] == "confirmed"]
    assert row["effect"] == "committed" and row["started"] == said[0]
    assert heard(run)[1] == "Shall I book Thursday at two?"
    assert "Your appointment on Thursday at two is booked." in heard(run)
    assert row["heard"] > row["finished"] and run.values["unanswered_calls"] == 0


def held(seconds: float = 1.0) -> Any:
    policy = vk.Policy(on_barge_in="hold_until_confirmed")
    return App(OPENAI, [tool("booking", "write", seconds)], policy)


def run_held(*says: tuple[float, str]) -> App:
    async def main() -> App:
        async with held() as app:
            app.session.speak("", calls=(call("c", "booking"),))
            app.session.summaries = {}
            asked, told = "Shall I do this: booking?", "It is done."
            app.session.answer = lambda ids: app.session.speak(told if ids else asked, ids)
            for at, text in says:
                app.at(at, lambda text=text: app.session.caller_says(text, 0.3))
            await asyncio.sleep(12.0)
            app.dispatcher.asking.let_go("the end")
            await app.rest()
            return app

    return run_blocking(main)


def test_a_yes_before_the_question_was_heard_is_no_yes() -> None:
    app = run_held((0.1, "Yes."))
    assert "not_yet" in decided(app) and app.calls()["c"]["started"] is None


def test_only_a_plain_yes_counts() -> None:
    for words in ("Sure, but what does it cost?", "Okay, wait, don't do that.", "No, thank you."):
        assert run_held((6.0, words)).calls()["c"]["started"] is None, words
    assert run_held((6.0, "Yes, please.")).calls()["c"]["state"] == "done"


def test_the_model_is_told_what_it_waits_for_and_the_call_stays_open() -> None:
    app = run_held((6.0, "Yes."))
    kinds = [kind for _, kind, _ in app.session.sent]
    assert kinds == ["tell", "respond", "result", "respond"]
    assert 'Ask the caller: "Shall I do this: booking?"' in app.session.of("tell")[0]


# Backchannels


def test_a_backchannel_stops_one_provider_and_not_the_other() -> None:
    stopped, ridden_out = talk("backchannel", OPENAI), talk("backchannel", GEMINI)
    assert stopped.values["yielded"] is True and stopped.values["flushed_seconds"] > 5
    assert stopped.values["yield_latency"] < 0.5
    assert ridden_out.values["yielded"] is False and ridden_out.values["flushed_seconds"] == 0
    assert ridden_out.values["yield_latency"] is None


def test_an_interruption_stops_both_and_one_of_them_later() -> None:
    first, second = talk("barge_in", OPENAI), talk("barge_in", GEMINI)
    assert first.values["yielded"] and second.values["yielded"]
    assert first.values["yield_latency"] < 0.5 < second.values["yield_latency"] < 1.2


# Echo


def test_case_60_the_agents_own_echo_is_no_barge_in_a_caller_is() -> None:
    cut_off = without_thanks(scenarios()["barge_in"])
    for model in (OPENAI, GEMINI):
        echo = vk.run(without_thanks(LONG_ANSWER), model=model, echo_db=-14)
        assert echo.values["flushed_seconds"] == 0 and echo.values["audio_check_ms"] <= 20
        quiet = vk.run(cut_off, model=model, echo_db=-14, caller_db=-14)
        assert quiet.values["yielded"] and quiet.values["flushed_seconds"] > 5


def test_case_60_without_the_comparison_the_agent_interrupts_itself() -> None:
    run = vk.run(LONG_ANSWER, model=OPENAI, echo_db=-14, echo_guard="none", max_seconds=20)
    assert run.values["flushed_seconds"] > 5 and len(run.event_rows) > 0
    starts = [e["t"] for e in run.event_rows if e["kind"] == "speech_started"]
    assert len(starts) > 2  # the caller spoke once


def test_what_is_a_copy_of_the_playout_is_taken_out_and_what_is_not_stays() -> None:
    played = clips()["order_details"].samples[:48_000].astype(np.float64)
    voice = clips()["opening_hours"].samples[4_800:7_200].astype(np.float64)
    back = played[24_000 : 24_000 + 12_000]  # 400 ms and the frame
    echo = 0.2 * back[12_000 - 2_400 - 2_880 : 12_000 - 2_880]
    assert np.abs(without_copy(echo, back)).max() < 1e-6 * np.abs(echo).max() + 1e-9
    assert without_copy(0.2 * voice, back) is not None
    assert np.array_equal(without_copy(0.2 * voice, back), 0.2 * voice)
    rest = without_copy(voice + echo, back)
    assert np.square(rest - voice).sum() <= np.square(echo).sum() * 1.01


def test_the_microphone_counts_its_frames_in_session_samples() -> None:
    asked: list[tuple[int, int]] = []

    def between(start: int, stop: int) -> Any:
        asked.append((start, stop))
        return np.zeros(stop - start, np.int16)

    async def main() -> None:
        async def send(_pcm: bytes) -> None: ...

        microphone = Microphone(send, between, lambda: 0.1, echo_db=-14)
        for _ in range(2):
            await microphone(bytes(4800))

    run_blocking(main)
    assert asked == [(-2880, -480), (-480, 1920)]


# The detector


def test_the_twelve_line_detector_can_be_chosen_and_does_worse_in_noise() -> None:
    def turns(detector: str) -> int:
        run = vk.run(without_thanks(LONG_ANSWER), model=OPENAI, detector=detector, noise_db=-30)
        return sum(1 for event in run.event_rows if event["kind"] == "speech_started")

    assert turns("speech") == 1  # as often as the caller spoke
    assert turns("energy") > 1  # one sentence is heard as several


def test_a_longer_hangover_costs_as_much_latency() -> None:
    asks = vk.Scenario("asks", tools={"get_order_status": 0.3}, lines=(vk.Line("order_status", at=0.5),))
    short, long = (vk.run(asks, model=OPENAI, silence_ms=ms) for ms in (500, 900))
    assert long.values["response_latency"] - short.values["response_latency"] == pytest.approx(0.4, abs=0.11)


def test_speech_events_in_any_order_leave_the_conversation_usable() -> None:
    async def main() -> App:
        async with App(OPENAI, []) as app:
            app.session.emit(SpeechStopped(), Heard("Hello?"), SpeechStarted(), SpeechStarted(), SpeechStopped())
            await asyncio.sleep(4.0)
            assert app.conversation.quiet
            return app

    assert run_blocking(main).conversation.caller_turns == 2
