"""Turn-taking of the simulated Gemini Live service, seen through the official SDK over TLS."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from gemini_talk import (
    ANSWER,
    BOTH,
    HOURS,
    HUM,
    LEGACY,
    LIVE,
    LONG,
    MM_HM,
    MUMBLE,
    NATIVE,
    NEWS,
    ORDER,
    PREAMBLES,
    STOP,
    THINKING,
    Log,
    at,
    converse,
    near,
    spoken_seconds,
)
from google.genai import types

# Turns


def test_a_turn_is_generated_faster_than_it_is_heard() -> None:
    log = converse(LIVE, [(1.0, HOURS, 1.0)], seconds=9)
    assert log.order() == ["inputTranscription", "modelTurn", "generationComplete", "turnComplete"]
    ((start, words),) = log.turns()
    assert words == "We are open from nine to six, Monday to Saturday."
    length = spoken_seconds(words)
    assert near(start, 2.7 + 0.83)  # 0.8 s of silence end the caller's turn at 2.7 s
    assert near(log.content("generation_complete")[0] - start, length / 5, 0.01)
    assert near(log.content("turn_complete")[0] - start, length, 0.01)
    usage = log.messages[-1][1].usage_metadata
    assert usage and usage.response_token_count == round(25 * length)
    assert usage.prompt_token_count and usage.total_token_count == usage.prompt_token_count + usage.response_token_count


def test_transcripts_come_only_when_asked_for() -> None:
    log = converse(
        LIVE,
        [(1.0, HOURS, 1.0)],
        seconds=8,
        config={"output_audio_transcription": None, "input_audio_transcription": None},
    )
    assert log.order() == ["modelTurn", "generationComplete", "turnComplete"]
    assert not any("outputTranscription" in frame.get("serverContent", {}) for frame in log.sent)


def test_the_same_seed_gives_the_same_session_and_another_seed_another() -> None:
    def times(seed: int) -> list[float]:
        log = converse(LIVE, [(1.0, ORDER, 1.0), (5.0, HOURS, 1.0)], seconds=12, tool=at(6.0), seed=seed)
        return [when for when, _ in log.messages]

    assert times(1) == times(1) != times(2)


def test_usage_counts_the_whole_conversation() -> None:
    log = converse(
        LIVE,
        [(1.0, HOURS, 1.0), (8.0, ORDER, 1.0)],
        seconds=18,
        tool=at(13.0, response={"summary": ANSWER, "detail": "x" * 400}),
    )
    first, _call, last = [m.usage_metadata for _, m in log.messages if m.usage_metadata]
    assert first and last and first.prompt_token_count and last.prompt_token_count and first.response_token_count
    heard, result = 25, 100  # tokens: a second of speech, 400 characters
    assert last.prompt_token_count >= first.prompt_token_count + first.response_token_count + heard + result
    details = {each.modality.name: each.token_count for each in last.prompt_tokens_details or [] if each.modality}
    assert sum(count or 0 for count in details.values()) == last.prompt_token_count and set(details) == {
        "TEXT",
        "AUDIO",
    }


# Results: what happens with one, by behavior, scheduling and who speaks when it comes


# The caller asks for an order at 1 s; the call goes out at about 3.7 s. In "caller" they speak from 6 to 8 s and the
# result comes at 7; in "model" they ask for the opening hours at 5 s, the answer is heard from 7.5 to 10 s, and the
# result comes at 9.
COLUMNS = {"nobody": ([], 7.0), "caller": ([(6.0, HOURS, 2.0)], 7.0), "model": ([(5.0, HOURS, 1.0)], 9.0)}
CELLS = {
    ("blocking", "nobody"): "at once",
    ("blocking", "caller"): "after caller",
    ("blocking", "model"): "at once",  # the model has waited in silence, and answers both
    ("when_idle", "nobody"): "at once",
    ("when_idle", "caller"): "after caller",
    ("when_idle", "model"): "after model",
    ("interrupt", "nobody"): "at once",
    ("interrupt", "caller"): "at once",  # it speaks over the caller
    ("interrupt", "model"): "at once, interrupting",
    ("silent", "nobody"): "never",
    ("silent", "caller"): "never",
    ("silent", "model"): "never",
}
DIFFERENT_ON_LIVE = {
    ("blocking", "model"): "never, cancelled",  # the question has withdrawn the call
    ("interrupt", "caller"): "after caller",
}


@pytest.mark.parametrize("who", COLUMNS)
@pytest.mark.parametrize("row", ["blocking", "when_idle", "interrupt", "silent"])
@pytest.mark.parametrize("model", [NATIVE, LIVE])
def test_a_result_by_behavior_scheduling_and_who_speaks(model: str, row: str, who: str) -> None:
    sayings, comes = COLUMNS[who]
    scheduling = {} if row == "blocking" else {"scheduling": row.upper()}
    log = converse(
        model,
        [(1.0, ORDER, 1.0), *sayings],
        seconds=16,
        behavior="BLOCKING" if row == "blocking" else "NON_BLOCKING",
        tool=at(comes, **scheduling),
    )
    assert log.answered_at == [comes] and log.error is None
    starts = [start for start, words in log.turns() if ANSWER in words]
    interrupted = [when for when in log.content("interrupted") if near(when, comes, 0.05)]
    complete = [when for when in log.content("turn_complete") if when > comes]
    if not starts:
        found = "never"
    elif near(starts[0], comes + 0.83):
        found = "at once"
    elif who == "caller" and near(starts[0], 8.7 + 0.83):
        found = "after caller"
    elif who == "model" and starts[0] > complete[0] > comes:
        found = "after model"
    else:
        found = f"at {starts[0]}"
    found += ", interrupting" if interrupted else ""
    found += ", cancelled" if log.cancelled() else ""
    expected = {**CELLS, **(DIFFERENT_ON_LIVE if model == LIVE else {})}
    assert found == expected[row, who]


@pytest.mark.parametrize(("model", "spoken_at"), [(NATIVE, 6.9 + 0.83), (LIVE, 9.4 + 0.83)])
def test_an_interrupting_result_just_before_the_caller_speaks(model: str, spoken_at: float) -> None:
    """The older model speaks over the caller, the newer one waits until they have been silent for 0.8 s."""
    result = at(6.9, scheduling="INTERRUPT")
    log = converse(model, [(1.0, ORDER, 1.0), (7.0, HOURS, 1.7)], seconds=16, behavior="NON_BLOCKING", tool=result)
    assert near(next(start for start, words in log.turns() if ANSWER in words), spoken_at)


@cache
def blocking_answer(**given: str) -> Log:
    return converse(NATIVE, [(1.0, ORDER, 1.0)], seconds=12, behavior="BLOCKING", tool=at(6.0, **given))


@pytest.mark.parametrize("scheduling", ["SILENT", "WHEN_IDLE", "INTERRUPT"])
def test_case_41_a_blocking_call_is_always_answered_aloud(scheduling: str) -> None:
    plain, scheduled = blocking_answer(), blocking_answer(scheduling=scheduling)
    assert plain.sent == scheduled.sent and plain.said() == [ANSWER]


def test_without_a_scheduling_a_result_waits_until_the_model_is_idle() -> None:
    sayings, comes = COLUMNS["model"]
    given = converse(LIVE, [(1.0, ORDER, 1.0), *sayings], seconds=16, tool=at(comes, scheduling="WHEN_IDLE"))
    omitted = converse(LIVE, [(1.0, ORDER, 1.0), *sayings], seconds=16, tool=at(comes))
    assert given.sent == omitted.sent


def test_a_silent_result_is_known_when_asked_for() -> None:
    log = converse(LIVE, [(1.0, ORDER, 1.0), (8.0, NEWS, 0.6)], seconds=14, tool=at(6.0, scheduling="SILENT"))
    ((start, words),) = log.turns()
    assert words == ANSWER and start > 9


def test_case_30_storing_something_silently_gives_one_reply() -> None:
    config = {"system_instruction": "# Preambles\n- any tool: Noted."}
    replies = {
        scheduling: converse(NATIVE, [(1.0, ORDER, 1.0)], seconds=12, behavior="NON_BLOCKING", config=config,
                             tool=at(6.0, scheduling=scheduling)).said()
        for scheduling in ("SILENT", "WHEN_IDLE", "INTERRUPT")
    }  # fmt: skip
    assert replies == {"SILENT": ["Noted."], "WHEN_IDLE": ["Noted.", ANSWER], "INTERRUPT": ["Noted.", ANSWER]}


def test_case_38_noise_does_not_hold_a_result_back() -> None:
    log = converse(LIVE, [(1.0, ORDER, 1.0), (2.0, HUM, 13.0)], seconds=14, tool=at(6.0, scheduling="WHEN_IDLE"))
    ((start, words),) = log.turns()
    assert words == ANSWER and near(start, 6.83)


def test_case_40_without_a_behavior_the_newer_model_goes_on_talking() -> None:
    """The three-second probe: speech while the tool runs means that the call does not block."""
    spoken = {}
    for model in (NATIVE, LEGACY, LIVE):
        log = converse(model, [(1.0, ORDER, 1.0), (5.0, HOURS, 1.0)], seconds=20, tool=at(11.0))
        spoken[model] = [words for start, words in log.turns() if start < 11.0]
    assert spoken[NATIVE] == spoken[LEGACY] == []
    assert len(spoken[LIVE]) == 1 and "nine to six" in spoken[LIVE][0]


def test_a_call_that_continues_is_spoken_of_more_than_once() -> None:
    def tool(_call: types.FunctionCall) -> list[tuple[float, dict[str, Any]]]:
        interim = {"response": {"status": "ok", "summary": "It is being packed."}, "will_continue": True}
        return [(5.0, interim), (9.0, {"will_continue": False})]

    log = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=14, tool=tool)
    assert log.said() == ["It is being packed.", ANSWER]


# Calls


def test_parallel_calls_come_in_one_frame() -> None:
    log = converse(LIVE, [(1.0, BOTH, 1.0)], seconds=6)
    assert [call.name for _, call in log.calls()] == ["check_stock", "get_shipping"]
    assert [len(frame["toolCall"]["functionCalls"]) for frame in log.sent if "toolCall" in frame] == [2]
    assert [call.id for _, call in log.calls()] == ["call_0001", "call_0002"]
    assert log.calls()[0][1].args == {"item": "kettle"}


def test_a_non_blocking_turn_ends_with_its_call() -> None:
    log = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=5)
    assert log.order()[1:] == ["toolCall", "generationComplete", "turnComplete"]
    assert log.calls()[0][0] == log.content("turn_complete")[0]
    log = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=9, config=PREAMBLES)
    assert log.order()[1:] == ["modelTurn", "toolCall", "generationComplete", "turnComplete"]
    (start, words), called = log.turns()[0], log.calls()[0][0]
    assert near(called - start, spoken_seconds(words) / 5, 0.01)  # out while the announcement is still being heard
    assert near(log.content("turn_complete")[0] - start, spoken_seconds(words), 0.01)


def test_a_blocking_turn_spans_its_call() -> None:
    log = converse(LEGACY, [(1.0, ORDER, 1.0)], seconds=14, config=PREAMBLES, tool=at(8.0))
    assert log.order()[1:] == ["modelTurn", "toolCall", "modelTurn", "generationComplete", "turnComplete"]
    assert len(log.content("turn_complete")) == 1


def test_a_blocking_turn_of_a_native_audio_model_ends_with_its_call() -> None:
    """So google-adk expects it: it runs the tools of these models when the turn is complete."""
    log = converse(NATIVE, [(1.0, ORDER, 1.0)], seconds=14, behavior="BLOCKING", tool=at(8.0))
    turn = ["generationComplete", "turnComplete"]
    assert log.order()[1:] == ["toolCall", *turn, "modelTurn", *turn]
    assert log.calls()[0][0] == log.content("turn_complete")[0]
    assert log.said() == [ANSWER]
    log = converse(NATIVE, [(1.0, ORDER, 1.0)], seconds=14, behavior="BLOCKING", config=PREAMBLES, tool=at(8.0))
    assert log.order()[1:] == ["modelTurn", "toolCall", *turn, "modelTurn", *turn]
    (start, words) = log.turns()[0]
    assert near(log.content("turn_complete")[0] - start, spoken_seconds(words), 0.01)  # once it has been heard


def test_case_05_nothing_is_said_until_a_blocking_call_is_answered() -> None:
    log = converse(LEGACY, [(1.0, ORDER, 1.0), (6.0, HOURS, 1.0), (12.0, NEWS, 1.0)], seconds=20)
    assert [call.id for _, call in log.calls()] == ["call_0001"] and log.turns() == []
    heard = [frame for frame in log.sent if "inputTranscription" in frame.get("serverContent", {})]
    assert len(heard) == 3  # it listens all the time
    answered = converse(
        LEGACY, [(1.0, ORDER, 1.0), (6.0, HOURS, 1.0)], seconds=20, tool=at(12.0, response={"error": "refused"})
    )
    ((start, words),) = answered.turns()
    assert near(start, 12.83) and "refused" in words and "nine to six" in words


def test_speech_withdraws_a_blocking_call_of_the_newer_model() -> None:
    log = converse(LIVE, [(1.0, ORDER, 1.0), (6.0, HOURS, 1.0)], seconds=16, behavior="BLOCKING", tool=at(10.0))
    assert log.cancelled() == ["call_0001"]
    assert near(log.times(lambda m: m.tool_call_cancellation)[0], 7.7, 0.05)
    assert log.order()[1:6] == ["toolCall", "inputTranscription", "toolCallCancellation", "interrupted", "turnComplete"]
    assert len(log.said()) == 1 and "nine to six" in log.said()[0]  # the late result is ignored
    assert log.error is None


@pytest.mark.parametrize("code", [0, HUM, MUMBLE])
def test_what_is_not_understood_withdraws_nothing(code: int) -> None:
    log = converse(LIVE, [(1.0, ORDER, 1.0), (6.0, code, 0.4)], seconds=16, behavior="BLOCKING", tool=at(10.0))
    assert log.cancelled() == [] and ANSWER in log.said()[0]


def test_case_42_an_answer_that_crosses_a_cancellation_is_ignored() -> None:
    log = converse(
        LIVE,
        [(1.0, ORDER, 1.0)],
        seconds=12,
        behavior="BLOCKING",
        actions=[(6.0, lambda session: session.send_realtime_input(text="And what are your opening hours?"))],
        tool=at(6.001),
    )
    assert log.cancelled() == ["call_0001"] and log.answered_at == [6.001] and log.error is None
    assert len(log.said()) == 1 and ANSWER not in log.said()[0]


# Barge-in


def interrupted_answer(at_: float, saying: int = STOP, *more: tuple[float, int, float], **options: Any) -> Log:
    result = at(5.0, response={"status": "ok", "summary": LONG})
    return converse(LIVE, [(1.0, ORDER, 1.0), (at_, saying, 0.4), *more], seconds=18, tool=result, **options)


def test_case_19_barge_in_stops_the_model_at_once() -> None:
    log = interrupted_answer(8.0)  # the answer is generated by 7 s and heard from 5.8 to 10.7 s
    assert log.content("interrupted") == [8.0]
    assert log.content("turn_complete")[-1] == 8.0
    assert log.order()[-4:] == ["generationComplete", "interrupted", "turnComplete", "inputTranscription"]


def test_barge_in_while_generating_leaves_no_generation_complete() -> None:
    log = interrupted_answer(6.2)
    assert log.content("interrupted") == [6.2]
    assert [when for when in log.content("generation_complete") if when > 5.0] == []
    assert log.said()[0] != LONG and LONG.startswith(log.said()[0])


def test_what_was_not_heard_was_not_said() -> None:
    """It was sent long ago, but "mm-hm" stopped the model in its second sentence: it begins that one again."""
    log = interrupted_answer(8.0, MM_HM)
    first, again = log.said()
    assert first == LONG and again == LONG.partition(". ")[2]


def test_activity_handling_can_forbid_barge_in() -> None:
    config = {"realtime_input_config": {"activity_handling": "NO_INTERRUPTION"}}
    log = interrupted_answer(8.0, STOP, (12.5, HOURS, 1.0), config=config)
    assert log.content("interrupted") == [] and log.said()[0] == LONG


def test_barge_in_leaves_a_non_blocking_call_alone() -> None:
    log = converse(LIVE, [(1.0, ORDER, 1.0), (3.9, STOP, 0.4)], seconds=14, config=PREAMBLES, tool=at(9.0))
    assert len(log.content("interrupted")) == 1 and log.cancelled() == [] and log.said()[-1] == ANSWER


@pytest.mark.parametrize(("model", "cancelled"), [(NATIVE, False), (LIVE, True)])
def test_case_23_barge_in_over_the_announcement_of_a_blocking_call(model: str, cancelled: bool) -> None:
    spoken = at(4.6) if model == NATIVE else at(9.0)
    log = converse(
        model, [(1.0, ORDER, 1.0), (4.2, HOURS, 0.5)], seconds=14, behavior="BLOCKING", config=PREAMBLES, tool=spoken
    )
    assert len(log.content("interrupted")) == 1
    assert bool(log.cancelled()) == cancelled
    assert (ANSWER in " ".join(log.said())) != cancelled, "a result owed at the interruption must not be lost"
    assert "nine to six" in log.said()[-1]


def test_a_second_question_before_the_answer_is_answered_with_it() -> None:
    log = converse(LIVE, [(1.0, HOURS, 1.0), (3.1, NEWS, 0.6)], seconds=12)
    assert log.content("interrupted") == [] and len(log.turns()) == 1
    assert "nine to six" in log.said()[0] and "no news" in log.said()[0]


# Extended thinking


def test_extended_thinking_tells_the_end_of_an_utterance_from_the_end() -> None:
    log = converse(THINKING, [(1.0, ORDER, 1.0)], seconds=14, config=PREAMBLES, tool=at(9.0))
    assert log.order()[1:] == [
        "modelTurn", "generationComplete", "turnComplete", "interactionStatus", "toolCall",
        "modelTurn", "generationComplete", "turnComplete", "interactionStatus",
    ]  # fmt: skip
    assert log.statuses() == ["IN_PROGRESS", "IDLE"]
    assert near(log.turns()[1][0], 9.0 + 1.2, 0.4)


def test_extended_thinking_without_an_announcement() -> None:
    no_preamble = {"system_instruction": "# Preambles\n- any tool: none"}
    log = converse(THINKING, [(1.0, ORDER, 1.0), (6.0, HOURS, 1.0)], seconds=18, config=no_preamble, tool=at(14.0))
    assert log.statuses() == ["IN_PROGRESS", "IN_PROGRESS", "IDLE"]


def test_extended_thinking_can_be_stopped_by_an_empty_message() -> None:
    async def stop(session: Any) -> None:
        await session.send_client_content(turn_complete=True)

    log = converse(THINKING, [(1.0, HOURS, 1.0)], seconds=8, actions=[(4.6, stop)])
    assert log.content("interrupted") == [4.6] and log.statuses() == ["IDLE"]


def test_other_models_never_send_a_status() -> None:
    for model in (NATIVE, LEGACY, LIVE):
        assert converse(model, [(1.0, ORDER, 1.0)], seconds=10, tool=at(6.0)).statuses() == []


# Other inputs


def test_push_to_talk() -> None:
    config = {"realtime_input_config": {"automatic_activity_detection": {"disabled": True}}}

    async def start(session: Any) -> None:
        await session.send_realtime_input(activity_start=types.ActivityStart())

    async def end(session: Any) -> None:
        await session.send_realtime_input(activity_end=types.ActivityEnd())

    log = converse(LIVE, [(1.0, HOURS, 1.0)], seconds=9, config=config, actions=[(0.95, start), (4.0, end)])
    ((start_of_answer, words),) = log.turns()
    assert "nine to six" in words and near(start_of_answer, 4.83)
    unmarked = converse(LIVE, [(1.0, HOURS, 1.0)], seconds=9, config=config)
    assert unmarked.order() == []
    early = converse(
        LIVE, [(1.0, HOURS, 1.0), (3.0, 0, 1.0)], seconds=9, config=config, actions=[(2.5, start), (4.0, end)]
    )
    assert early.order() == []  # nothing was said between the marks
    empty = converse(LIVE, [], seconds=5, config=config, streams=False, actions=[(1.0, start), (2.0, end)])
    assert empty.order() == []


def test_the_end_of_the_stream_ends_the_utterance() -> None:
    async def mute(session: Any) -> None:
        await session.send_realtime_input(audio_stream_end=True)

    log = converse(LIVE, [(1.0, HOURS, 1.0)], seconds=2.0, actions=[(1.95, mute)])
    assert log.order() == ["inputTranscription"]
    log = converse(LIVE, [(1.0, HOURS, 1.0)], seconds=8, actions=[(2.15, mute)])
    assert near(log.turns()[0][0], 2.15 + 0.83)


def test_typed_text_counts_as_activity() -> None:
    async def ask(session: Any) -> None:
        await session.send_realtime_input(text="And what are your opening hours?")

    log = converse(LIVE, [], seconds=8, streams=False, actions=[(1.0, ask)])
    ((start, words),) = log.turns()
    assert "nine to six" in words and near(start, 1.83)
    log = converse(LIVE, [(1.0, HOURS, 1.0)], seconds=12, actions=[(5.0, ask)])
    assert log.content("interrupted") == [5.0] and len(log.turns()) == 2


def test_an_opening_message_and_a_blank_are_one_turn() -> None:
    question = {"role": "user", "parts": [{"text": "And what are your opening hours?"}]}

    async def open_(session: Any) -> None:
        await session.send_client_content(turns=question, turn_complete=False)

    async def blank(session: Any) -> None:
        await session.send_realtime_input(text=" ")

    assert converse(LIVE, [], seconds=6, streams=False, actions=[(1.0, open_)]).order() == []
    log = converse(LIVE, [], seconds=8, streams=False, actions=[(1.0, open_), (2.0, blank)])
    assert len(log.turns()) == 1 and near(log.turns()[0][0], 2.83)


def test_a_blank_is_no_input() -> None:
    async def blank(session: Any) -> None:
        await session.send_realtime_input(text=" ")

    speaking = converse(LIVE, [(1.0, HOURS, 1.0)], seconds=9, actions=[(5.0, blank)])
    assert speaking.content("interrupted") == []
    calling = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=9, behavior="BLOCKING", actions=[(5.0, blank)])
    assert calling.cancelled() == []


def test_history_is_read_without_an_answer() -> None:
    history = [
        {"role": "user", "parts": [{"text": "And what are your opening hours?"}]},
        {"role": "model", "parts": [{"text": "From nine to six."}]},
        {"role": "user", "parts": [{"text": "Any news about my order?"}]},
    ]

    async def seed(session: Any) -> None:
        await session.send_client_content(turns=history, turn_complete=True)

    config = {"history_config": {"initial_history_in_client_content": True}}
    log = converse(LIVE, [(3.0, HOURS, 1.0)], seconds=10, config=config, actions=[(0.5, seed)])
    assert len(log.turns()) == 1 and log.turns()[0][0] > 4
    unseeded = converse(LIVE, [(3.0, HOURS, 1.0)], seconds=10, config=config)
    assert unseeded.turns() == []  # it still waits for the history
    answered = converse(LIVE, [], seconds=8, streams=False, actions=[(0.5, seed)])
    assert answered.said() == ["I have no news about that yet."]  # only what the model has not answered yet


def test_instructions_and_tools_can_change_during_a_session() -> None:
    async def change(session: Any) -> None:
        await session.send_context_update(tools=[])

    log = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=8, actions=[(0.2, change)])
    assert log.calls() == [] and log.said() == ["I cannot do that."]
