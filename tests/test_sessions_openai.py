"""The OpenAI Realtime adapter against scripted services: exact frames sent, events delivered, every way to end."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from openai.resources.live.live import AsyncLiveConnection
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.live import ServerEvent
from openai.types.realtime import RealtimeServerEvent
from scripted import Reading, Script, Service, all_events, endpoint, fatal, raw_service
from talks import talk

from voicekit.clock import run_blocking
from voicekit.sessions import capabilities, open_session
from voicekit.sessions._openai_client import receive
from voicekit.sessions.base import (
    Audio,
    Endpoint,
    Event,
    Heard,
    Interrupted,
    NotSupported,
    Problem,
    Said,
    SessionConfig,
    SessionError,
    SpeechStarted,
    SpeechStopped,
    ToolCall,
    TurnDone,
    TurnStarted,
    Usage,
)
from voicekit.sessions.openai_realtime import OpenAIRealtimeSession

MODEL = "gpt-realtime"
TOOL = {
    "name": "get_order_status",
    "description": "Where an order is.",
    "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
}
CONFIG = SessionConfig(MODEL, instructions="Be brief.", tools=(TOOL,))
CREATED = {"type": "session.created", "event_id": "event_1", "session": {"type": "realtime"}}
UPDATED = {"type": "session.updated", "event_id": "event_2", "session": {"type": "realtime"}}
HALF_SECOND = bytes(24_000)


def script(
    rules: dict[str, Callable[[Service, dict[str, Any]], None]] | None = None, *opening: dict[str, Any]
) -> Script:
    """Accept the session.update, send `opening`, then follow `rules` by the type of what the client sends."""

    def play(service: Service, frame: dict[str, Any]) -> None:
        if frame["type"] == "session.update":
            service.send(UPDATED, *opening)
        elif rules and frame["type"] in rules:
            rules[frame["type"]](service, frame)

    return play


def hold(
    talk: Callable[[OpenAIRealtimeSession, Service], Coroutine[Any, Any, Any]],
    play: Script,
    config: SessionConfig = CONFIG,
    tap: Any = None,
) -> tuple[Any, list[dict[str, Any]]]:
    """Run one conversation in virtual time; returns what `talk` returns and the frames after session.update."""

    async def main() -> tuple[Any, list[dict[str, Any]]]:
        before = asyncio.all_tasks()
        async with Service(play, CREATED) as service:
            async with OpenAIRealtimeSession(config, endpoint(service), tap) as session:
                result = await talk(session, service)
            assert asyncio.all_tasks() == before
            return result, [{k: v for k, v in frame.items() if k != "event_id"} for frame in service.frames[1:]]

    return run_blocking(main)


def events_of(*frames: dict[str, Any]) -> list[Event]:
    """The events for frames the service sends after the set-up; the closing problem is left out."""

    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        service.send(*frames)
        service.close(1000)
        return (await all_events(session))[:-1]

    return hold(talk, script())[0]


def created(turn: str = "resp_1", **response: Any) -> dict[str, Any]:
    return {"type": "response.created", "response": {"id": turn, "status": "in_progress", **response}}


def done(turn: str = "resp_1", status: str = "completed", **response: Any) -> dict[str, Any]:
    return {"type": "response.done", "response": {"id": turn, "status": status, "output": [], **response}}


def cancelled(turn: str = "resp_1", reason: str = "turn_detected") -> dict[str, Any]:
    return done(turn, "cancelled", status_details={"type": "cancelled", "reason": reason})


def audio(pcm: bytes = HALF_SECOND, turn: str = "resp_1", item: str = "item_1") -> dict[str, Any]:
    return {
        "type": "response.output_audio.delta",
        "response_id": turn,
        "item_id": item,
        "output_index": 0,
        "content_index": 0,
        "delta": base64.b64encode(pcm).decode(),
    }


def words(kind: str, text: str, turn: str = "resp_1", item: str = "item_1") -> dict[str, Any]:
    field = "delta" if kind == "delta" else "transcript"
    return {"type": f"response.output_audio_transcript.{kind}", "response_id": turn, "item_id": item, field: text}


def call_item(arguments: str, status: str, call_id: str = "call_1", name: str = "get_order_status") -> dict[str, Any]:
    item = {"type": "function_call", "id": "item_9", "call_id": call_id, "name": name}
    return {**item, "arguments": arguments, "status": status}


def item_event(kind: str, item: dict[str, Any], turn: str = "resp_1") -> dict[str, Any]:
    return {"type": f"response.output_item.{kind}", "response_id": turn, "output_index": 0, "item": item}


def arguments(kind: str, text: str, call_id: str = "call_1") -> dict[str, Any]:
    frame = {"type": f"response.function_call_arguments.{kind}", "response_id": "resp_1", "call_id": call_id}
    return frame | ({"delta": text} if kind == "delta" else {"arguments": text, "name": "get_order_status"})


def refusal(code: str, message: str, event_id: str | None = None, param: str | None = None) -> dict[str, Any]:
    error = {"type": "invalid_request_error", "code": code, "message": message, "event_id": event_id, "param": param}
    return {"type": "error", "error": error}


# The set-up


def test_the_opening_session_update() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> Any:
        assert service.connection is not None
        return service.frames[0], service.connection.path, service.connection.query

    (frame, path, query), later = hold(talk, script(), SessionConfig(MODEL, "Be brief.", (TOOL,), "de", "marin", 700))
    assert (path, query) == ("/v1/realtime", {"model": [MODEL]})
    assert frame == {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "output_modalities": ["audio"],
            "instructions": "Be brief.",
            "tools": [{"type": "function", **TOOL}],
            "tool_choice": "auto",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "gpt-transcribe", "language": "de"},
                    "turn_detection": {
                        "type": "server_vad",
                        "silence_duration_ms": 700,
                        "create_response": True,
                        "interrupt_response": True,
                    },
                },
                "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "marin"},
            },
        },
    }
    assert later == []


def fails(play: Script, greeting: dict[str, Any] | None = CREATED) -> tuple[str, float]:
    """Open a session that cannot be opened; returns the message and the virtual seconds it took."""

    async def main() -> tuple[str, float]:
        async with Service(play, greeting) as service:
            with pytest.raises(SessionError) as caught:
                async with OpenAIRealtimeSession(CONFIG, endpoint(service)):
                    pass
            assert len(asyncio.all_tasks()) == 1
            return str(caught.value), asyncio.get_running_loop().time()

    return run_blocking(main)


@pytest.mark.parametrize(
    ("greeting", "play", "awaited"),
    [
        (None, lambda service, frame: None, "session.created"),
        (CREATED, lambda service, frame: None, "session.updated"),
    ],
)
def test_a_silent_set_up_names_what_it_waited_for(greeting: Any, play: Script, awaited: str) -> None:
    message, seconds = fails(play, greeting)
    assert message.startswith(f"waited 10 s for {awaited}")
    assert seconds == pytest.approx(10, abs=0.6)


def test_a_refused_set_up_says_what_the_provider_said() -> None:
    message, _ = fails(lambda service, frame: service.send(refusal("invalid_value", "Invalid\nvalue: 'voice'.")))
    assert message == "no session with gpt-realtime: Invalid value: 'voice'."


def test_a_close_during_the_set_up_gives_code_and_reason() -> None:
    message, _ = fails(lambda service, frame: service.close(1008, "no such model"))
    assert message == "no session with gpt-realtime: OpenAI closed the connection with code 1008: no such model"


def test_nobody_listening_is_one_line() -> None:
    async def main() -> str:
        async with Service(script()) as service:
            address = endpoint(service)
        with pytest.raises(SessionError) as caught:
            async with OpenAIRealtimeSession(CONFIG, address):
                pass
        return str(caught.value)

    message = run_blocking(main)
    assert message.startswith("no session with gpt-realtime: ") and "\n" not in message


def test_a_proxy_in_the_environment_is_not_asked_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert events_of(created(), done()) == [TurnStarted("resp_1"), TurnDone("resp_1")]


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "a b"},
        {"name": "x", "input_schema": {"type": "object"}},
        {"name": "x", "parameters": {"order_id": {"type": "string"}}},
        {"name": "x", "behavior": "asynchronous"},
    ],
)
def test_a_declaration_that_would_be_ignored_is_refused_before_the_start(tool: dict[str, Any]) -> None:
    async def main() -> None:
        async with Service(script()) as service:
            with pytest.raises(SessionError, match="tool"):
                OpenAIRealtimeSession(SessionConfig(MODEL, tools=(tool,)), endpoint(service))
            assert service.connections == 0

    run_blocking(main)


def test_capabilities_come_from_the_table() -> None:
    can = capabilities(MODEL)
    assert (can.can_cancel, can.can_truncate, can.can_schedule, can.implied_reply) == (True, True, False, False)
    assert (can.behaviors, can.default_behavior, can.waits_for_result) == (frozenset(), "non_blocking", False)
    assert capabilities("gpt-4o-realtime-preview").waits_for_result
    assert not can.parallel_calls and capabilities("gpt-realtime-2.1").parallel_calls


def test_a_behaviour_the_model_has_no_field_for_is_a_warning() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> tuple[Any, list[Event]]:
        service.close(1000)
        return service.frames[0]["session"]["tools"], await all_events(session)

    blocking = SessionConfig(MODEL, tools=({**TOOL, "behavior": "blocking"},))
    (tools, events), _ = hold(talk, script(), blocking)
    assert "behavior" not in tools[0]
    assert isinstance(events[0], Problem) and events[0].code == "behavior_not_supported" and events[0].recoverable


# Events


def test_a_spoken_turn() -> None:
    assert events_of(
        {"type": "input_audio_buffer.speech_started", "item_id": "item_0", "audio_start_ms": 120},
        {"type": "input_audio_buffer.speech_stopped", "item_id": "item_0", "audio_end_ms": 900},
        created(),
        {"type": "conversation.item.input_audio_transcription.delta", "item_id": "item_0", "delta": "Where is"},
        words("delta", "It is "),
        audio(b"\1\0\2\0"),
        {
            "type": "conversation.item.input_audio_transcription.completed",
            "item_id": "item_0",
            "transcript": "Where is it?",
        },
        words("delta", "here."),
        words("done", "It is here."),
        {"type": "rate_limits.updated", "rate_limits": []},
        {"type": "an.event.of.next.year", "response_id": "resp_1"},
        done(usage={"total_tokens": 7, "input_tokens": 4, "output_tokens": 3}),
    ) == [
        SpeechStarted("item_0", 120),
        SpeechStopped("item_0", 900),
        TurnStarted("resp_1"),
        Heard("Where is", "item_0", final=False),
        Said("item_1", "It is ", "resp_1"),
        Audio("item_1", b"\1\0\2\0", "resp_1"),
        Heard("Where is it?", "item_0"),
        Said("item_1", "here.", "resp_1"),
        Said("item_1", "It is here.", "resp_1", final=True),
        Usage({"total_tokens": 7, "input_tokens": 4, "output_tokens": 3}),
        TurnDone("resp_1"),
    ]


def test_an_item_ends_once_and_after_all_its_audio() -> None:
    message = {"type": "message", "id": "item_1", "role": "assistant", "status": "completed", "content": []}
    events = events_of(
        created(), audio(), words("done", "Hi."), audio(), item_event("done", message), audio(item="item_2"), done()
    )
    assert events[1:] == [
        Audio("item_1", HALF_SECOND, "resp_1"),
        Audio("item_1", HALF_SECOND, "resp_1"),
        Said("item_1", "Hi.", "resp_1", final=True),
        Audio("item_2", HALF_SECOND, "resp_1"),
        Said("item_2", "", "resp_1", final=True),
        TurnDone("resp_1"),
    ]


def test_a_call_is_delivered_once_and_complete() -> None:
    text = '{"order_id": "OD-1"}'
    events = events_of(
        created(),
        item_event("added", call_item("", "in_progress")),
        arguments("delta", text[:9]),
        arguments("delta", text[9:]),
        arguments("done", text),
        item_event("done", call_item(text, "completed")),
        done(output=[call_item(text, "completed")]),
    )
    assert [e for e in events if isinstance(e, ToolCall)] == [ToolCall("call_1", "get_order_status", text, "resp_1")]


@pytest.mark.parametrize("sparse", ["item done", "response done", "arguments done"])
def test_one_message_with_the_whole_call_is_enough(sparse: str) -> None:
    frame = {
        "item done": item_event("done", call_item("{}", "completed")),
        "response done": done(output=[call_item("{}", "completed")]),
        "arguments done": arguments("done", "{}"),
    }[sparse]
    events = events_of(created(), frame, done())
    assert [e for e in events if isinstance(e, ToolCall)] == [ToolCall("call_1", "get_order_status", "{}", "resp_1")]


@pytest.mark.parametrize("spelling", ["", "null", "{}"])
def test_case_34_a_call_without_arguments_is_whole_in_every_spelling(spelling: str) -> None:
    events = events_of(
        created(), arguments("done", spelling), item_event("done", call_item(spelling, "completed")), done()
    )
    assert [e for e in events if isinstance(e, ToolCall)] == [
        ToolCall("call_1", "get_order_status", spelling, "resp_1")
    ]


@pytest.mark.parametrize("status", ["incomplete", "cancelled", "failed"])
@pytest.mark.parametrize("ending", ["bare", "arguments done", "item done"])
def test_case_34_cut_off_arguments_are_marked_broken(status: str, ending: str) -> None:
    text = '{"seat":"14C","dat'
    endings = {
        "bare": [],
        "arguments done": [arguments("done", text)],
        "item done": [arguments("done", text), item_event("done", call_item(text, "incomplete"))],
    }
    events = events_of(
        created(),
        item_event("added", call_item("", "in_progress")),
        arguments("delta", text),
        *endings[ending],
        done(status=status, status_details={"type": status, "reason": "max_output_tokens"}),
        created("resp_2"),
        done("resp_2"),
    )
    assert [e for e in events if isinstance(e, ToolCall)] == [
        ToolCall("call_1", "get_order_status", text, "resp_1", broken=True)
    ]
    assert events[-1] == TurnDone("resp_2")


def test_a_failed_turn_says_why() -> None:
    details = {"type": "failed", "error": {"type": "server_error", "code": "rate_limit_exceeded", "message": "Slow."}}
    assert events_of(created(), done(status="failed", status_details=details))[-1] == TurnDone(
        "resp_1", "failed", "rate_limit_exceeded"
    )


def test_barge_in_drops_what_still_arrives_of_the_turn() -> None:
    events = events_of(
        created(),
        words("delta", "One two "),
        audio(),
        {"type": "input_audio_buffer.speech_started", "item_id": "item_2", "audio_start_ms": 1},
        words("delta", "three"),
        audio(),
        words("done", "One two three"),
        cancelled(),
        audio(),
        created("resp_2"),
        audio(turn="resp_2", item="item_3"),
        done("resp_2"),
    )
    assert events[3:] == [
        SpeechStarted("item_2", 1),
        Interrupted("resp_1"),
        Said("item_1", "One two ", "resp_1", final=True),
        TurnDone("resp_1", "cancelled", "turn_detected"),
        TurnStarted("resp_2"),
        Audio("item_3", HALF_SECOND, "resp_2"),
        Said("item_3", "", "resp_2", final=True),
        TurnDone("resp_2"),
    ]


def test_audio_after_the_end_of_a_cancelled_turn_is_dropped() -> None:
    assert events_of(created(), cancelled(), audio())[1:] == [
        Interrupted("resp_1"),
        TurnDone("resp_1", "cancelled", "turn_detected"),
    ]


def test_a_cancel_of_our_own_is_not_an_interruption() -> None:
    events = events_of(created(), cancelled(reason="client_cancelled"))
    assert events == [TurnStarted("resp_1"), TurnDone("resp_1", "cancelled", "client_cancelled")]


# Commands


def test_audio_of_any_length_arrives_whole() -> None:
    pcm = bytes(range(251)) * 5

    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        for start in range(0, len(pcm), 333):
            await session.send_audio(pcm[start : start + 333])
        await session.send_audio(b"")
        await asyncio.sleep(0.1)

    _, frames = hold(talk, script())
    assert {frame["type"] for frame in frames} == {"input_audio_buffer.append"}
    pieces = [base64.b64decode(frame["audio"]) for frame in frames]
    assert all(len(piece) % 2 == 0 and piece for piece in pieces)
    assert b"".join(pieces) == pcm[: len(pcm) // 2 * 2]


def test_a_result_and_the_request_to_speak_it() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        reading = Reading(session)
        await session.send_result("call_1", {"status": "übergeben"})
        await session.respond(("call_1", "call_2"))
        await reading.until(TurnDone)
        await session.respond()
        await reading.until(TurnDone, 2)
        await session.close()
        return await reading.finish()

    def speak(service: Service, frame: dict[str, Any]) -> None:
        turn = f"resp_{len(service.frames)}"
        service.send(created(turn, metadata=frame.get("response", {}).get("metadata")), done(turn))

    events, frames = hold(talk, script({"response.create": speak}))
    assert frames == [
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": "call_1", "output": '{"status": "übergeben"}'},
        },
        {"type": "response.create", "response": {"metadata": {"voicekit_calls": "call_1,call_2"}}},
        {"type": "response.create"},
    ]
    started = [event for event in events if isinstance(event, TurnStarted)]
    assert [event.call_ids for event in started] == [("call_1", "call_2"), ()]


def test_many_call_ids_fit_the_limits_of_metadata() -> None:
    ids = tuple(f"call_{'x' * 55}_{n:03d}" for n in range(20))

    async def talk(session: OpenAIRealtimeSession, service: Service) -> TurnStarted:
        reading = Reading(session)
        await session.respond(ids)
        return await reading.until(TurnStarted)

    def speak(service: Service, frame: dict[str, Any]) -> None:
        service.send(created(metadata=frame["response"]["metadata"]))

    started, frames = hold(talk, script({"response.create": speak}))
    metadata = frames[0]["response"]["metadata"]
    assert len(metadata) <= 16 and all(len(value) <= 512 and len(key) <= 64 for key, value in metadata.items())
    assert started.call_ids == ids


def test_asking_for_speech_while_a_turn_is_active_is_refused_before_sending() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        reading = Reading(session)
        await reading.until(TurnStarted)
        with pytest.raises(SessionError, match="resp_1"):
            await session.respond()
        service.send(done())
        await reading.until(TurnDone)
        await session.respond()
        with pytest.raises(SessionError, match="asked for before"):
            await session.respond()
        await asyncio.sleep(0.1)

    _, frames = hold(talk, script(None, created()))
    assert [frame["type"] for frame in frames] == ["response.create"]


@pytest.mark.parametrize("code", ["conversation_already_has_active_response", None])
def test_case_1_a_collision_is_recoverable_and_can_be_repeated(code: str | None) -> None:
    """The provider started a turn by itself just before our request arrived."""

    def collide(service: Service, frame: dict[str, Any]) -> None:
        if len(service.frames) == 2:
            event_id = None if code else frame["event_id"]
            service.send(created("resp_vad"), refusal(code or "", "already has an active response", event_id))
            service.later(2, done("resp_vad"))
        else:
            service.send(created("resp_2", metadata=frame["response"]["metadata"]), done("resp_2"))

    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        reading = Reading(session)
        await session.respond(("call_1",))
        problem = await reading.until(Problem)
        assert problem.recoverable and session.refused == ("call_1",)
        await reading.until(TurnDone)
        await session.respond(session.refused)
        assert session.refused is None
        await reading.until(TurnDone, 2)
        return reading.events

    events, frames = hold(talk, script({"response.create": collide}))
    assert [frame["type"] for frame in frames] == ["response.create", "response.create"]
    assert TurnStarted("resp_2", ("call_1",)) in events and not fatal(events)


def test_a_refused_request_can_be_made_again_at_once() -> None:
    def refuse_first(service: Service, frame: dict[str, Any]) -> None:
        if len(service.frames) == 2:
            service.send(refusal("invalid_value", "Invalid value.", frame["event_id"]))
        else:
            service.send(created(), done())

    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        reading = Reading(session)
        await session.respond()
        await reading.until(Problem)
        assert session.refused == ()
        await session.respond()
        await reading.until(TurnDone)

    hold(talk, script({"response.create": refuse_first}))


def test_stop_speaking_cancels_the_active_turn_only() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        reading = Reading(session)
        await session.stop_speaking()
        service.send(created(), audio())
        await reading.until(Audio)
        await session.stop_speaking()
        await reading.until(TurnDone)
        return reading.events

    def cancel(service: Service, frame: dict[str, Any]) -> None:
        service.send(audio(), cancelled(reason="client_cancelled"))

    events, frames = hold(talk, script({"response.cancel": cancel}))
    assert frames == [{"type": "response.cancel", "response_id": "resp_1"}]
    assert len([event for event in events if isinstance(event, Audio)]) == 1


def test_a_needless_cancel_is_a_recoverable_problem() -> None:
    message = "Cancellation failed: no active response found"
    assert events_of(refusal("response_cancel_not_active", message), created()) == [
        Problem("response_cancel_not_active", message),
        TurnStarted("resp_1"),
    ]


def test_what_the_model_cannot_do_is_refused_before_sending() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        with pytest.raises(NotSupported, match="cannot schedule"):
            await session.send_result("call_1", {}, delivery="silent")
        with pytest.raises(NotSupported, match="one result per call"):
            await session.send_result("call_1", {}, final=False)
        await asyncio.sleep(0.1)

    assert hold(talk, script())[1] == []


# Public cases


@pytest.mark.parametrize("call_id", ["call_1/finished", "", "call 1", "cäll"])
def test_case_7_an_id_outside_the_allowed_characters_is_not_sent(call_id: str) -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        with pytest.raises(SessionError, match="call id"):
            await session.send_result(call_id, {})
        await asyncio.sleep(0.1)

    assert hold(talk, script())[1] == []


def test_case_7_an_unknown_id_is_the_providers_refusal_and_the_session_goes_on() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> Problem:
        reading = Reading(session)
        await session.send_result("call_1_finished", {})
        problem = await reading.until(Problem)
        await session.send_audio(bytes(960))
        await asyncio.sleep(0.1)
        return problem

    unknown = refusal("invalid_value", "Tool call ID 'call_1_finished' not found in conversation.")
    problem, frames = hold(talk, script({"conversation.item.create": lambda service, frame: service.send(unknown)}))
    assert problem.recoverable and problem.code == "invalid_value"
    assert [frame["type"] for frame in frames] == ["conversation.item.create", "input_audio_buffer.append"]


def truncations(
    play_back: Callable[[OpenAIRealtimeSession], Coroutine[Any, Any, None]], *opening: Any, **rules: Any
) -> Any:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        reading = Reading(session)
        service.send(*opening)
        await asyncio.sleep(0.2)
        await play_back(session)
        await asyncio.sleep(5)
        service.close(1000)
        return (await reading.finish())[:-1]

    events, frames = hold(talk, script({"conversation.item.truncate": rules["answer"]} if rules else None))
    return events, frames


def test_case_14_truncation_never_exceeds_the_audio_received() -> None:
    """2,000 ms of audio came in a burst; wall clock says 5,000 ms, the player 1,250 ms."""
    burst = [created(), *[audio() for _ in range(4)]]

    async def by_the_player(session: OpenAIRealtimeSession) -> None:
        await session.truncate("item_1", 1250)

    async def by_the_wall_clock(session: OpenAIRealtimeSession) -> None:
        await session.truncate("item_1", 5000)

    truncate = {"type": "conversation.item.truncate", "item_id": "item_1", "content_index": 0}
    assert truncations(by_the_player, *burst)[1] == [truncate | {"audio_end_ms": 1250}]
    events, frames = truncations(by_the_wall_clock, *burst)
    assert frames == [truncate | {"audio_end_ms": 2000}]
    # Not silently: whoever asked for too much is told.
    assert any(isinstance(e, Problem) and e.code == "truncate_clamped" and "5000" in e.message for e in events)


def test_case_14_without_an_interruption_nothing_is_truncated() -> None:
    async def played_to_the_end(session: OpenAIRealtimeSession) -> None:
        pass

    speech = {"type": "input_audio_buffer.speech_started", "item_id": "item_2", "audio_start_ms": 1}
    assert truncations(played_to_the_end, created(), audio(), done(), speech)[1] == []


def test_case_15_no_truncation_before_the_first_audio() -> None:
    part = {"type": "response.content_part.added", "item_id": "item_1", "part": {"type": "audio", "transcript": ""}}

    async def at_zero(session: OpenAIRealtimeSession) -> None:
        await session.truncate("item_1", 0)

    assert truncations(at_zero, created(), part)[1] == []


def test_case_15_zero_is_a_position_once_audio_has_arrived() -> None:
    async def at_zero(session: OpenAIRealtimeSession) -> None:
        await session.truncate("item_1", 0)

    frames = truncations(at_zero, created(), audio())[1]
    assert [frame["audio_end_ms"] for frame in frames] == [0]


@pytest.mark.parametrize("names_our_event", [True, False])
def test_case_17_a_refused_length_is_repeated_once_with_the_stated_one(names_our_event: bool) -> None:
    held = 2000 - 85

    def answer(service: Service, frame: dict[str, Any]) -> None:
        asked = frame["audio_end_ms"]
        if asked > held:
            message = f"Audio content of {held}ms is already shorter than {asked}ms"
            event_id = frame["event_id"] if names_our_event else None
            service.send(refusal("invalid_value", message, event_id, "audio_end_ms"))
        else:
            service.send({"type": "conversation.item.truncated", "item_id": "item_1", "audio_end_ms": asked})

    async def whole(session: OpenAIRealtimeSession) -> None:
        await session.truncate("item_1", 2000)

    events, frames = truncations(whole, created(), *[audio() for _ in range(4)], answer=answer)
    assert [frame["audio_end_ms"] for frame in frames] == [2000, held]
    problems = [event for event in events if isinstance(event, Problem)]
    assert len(problems) == 1 and problems[0].recoverable and f"repeated once with {held} ms" in problems[0].message


def test_case_17_never_loops() -> None:
    def always_shorter(service: Service, frame: dict[str, Any]) -> None:
        asked = frame["audio_end_ms"]
        message = f"Audio content of {asked - 85}ms is already shorter than {asked}ms"
        service.send(refusal("invalid_value", message, frame["event_id"], "audio_end_ms"))

    async def whole(session: OpenAIRealtimeSession) -> None:
        await session.truncate("item_1", 500)

    events, frames = truncations(whole, created(), audio(), answer=always_shorter)
    assert [frame["audio_end_ms"] for frame in frames] == [500, 415]
    assert len([event for event in events if isinstance(event, Problem)]) == 2


# The end


@pytest.mark.parametrize("code", [1000, 1001, 1008, 1011, 1012, 3000])
def test_every_close_code_ends_the_iteration_with_one_problem(code: int) -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        service.send(created())
        service.close(code, "because")
        events = await all_events(session)
        for send in (session.send_audio(b"\0\0"), session.send_result("call_1", {}), session.respond()):
            with pytest.raises(SessionError, match=str(code)):
                await send
        assert await all_events(session) == []
        return events

    events, _ = hold(talk, script())
    message = f"OpenAI closed the connection with code {code}: because"
    assert events == [TurnStarted("resp_1"), Problem(str(code), message, recoverable=False)]


def test_a_lost_connection_ends_the_iteration() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        assert service.connection is not None
        service.connection.abort()
        return await all_events(session)

    (problem,) = hold(talk, script())[0]
    assert (problem.code, problem.recoverable) == ("1006", False)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"event_id": "event_7"}, "garbage"),
        ({"type": "response.created"}, "AttributeError"),
        (audio() | {"delta": "%%%"}, "Error"),
    ],
)
def test_nonsense_ends_the_iteration(frame: dict[str, Any], code: str) -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        service.send(frame)
        return await all_events(session)

    (problem,) = hold(talk, script())[0]
    assert (problem.code, problem.recoverable) == (code, False) and "\n" not in problem.message


@pytest.mark.parametrize("raw", ["<html>", "[1, 2]", '"text"', b"\xff\xfe", "", "[" * 100_000])
def test_frames_that_are_no_events_end_the_iteration(raw: str | bytes) -> None:
    async def main() -> list[Event]:
        async with raw_service(raw, before=(CREATED,), after=(UPDATED,)) as port:
            address = Endpoint(api_key="dummy", base_url=f"http://127.0.0.1:{port}/v1")
            async with OpenAIRealtimeSession(CONFIG, address, lambda *row: None) as session:
                return await all_events(session)

    (problem,) = run_blocking(main)
    assert isinstance(problem, Problem) and not problem.recoverable and "\n" not in problem.message


def test_a_request_that_is_never_answered_ends_as_a_stall() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> tuple[list[Event], float]:
        reading = Reading(session)
        await asyncio.sleep(1)
        await session.respond()
        return await reading.finish(), asyncio.get_running_loop().time()

    ((problem,), seconds), _ = hold(talk, script())
    assert (problem.code, problem.recoverable) == ("stall", False)
    assert problem.message == "waited 30 s for response.created after response.create, which never came"
    assert seconds == pytest.approx(31, abs=0.1)


def test_a_turn_that_stops_in_the_middle_ends_as_a_stall() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> tuple[list[Event], float]:
        service.send(created())
        service.later(20, audio())
        events = await all_events(session)
        return events, asyncio.get_running_loop().time()

    (events, seconds), _ = hold(talk, script())
    assert events[-1].code == "stall" and "resp_1" in events[-1].message
    assert seconds == pytest.approx(50, abs=0.1)


def test_an_idle_session_is_not_a_stall() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        service.send(created(), done())
        service.after(600, lambda: service.close(1000))
        return [event async for event in session]

    assert [problem.code for problem in fatal(hold(talk, script())[0])] == ["1000"]


def test_closing_is_idempotent_quick_and_quiet() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        reading = Reading(session)
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        start = loop.time()
        await session.close()
        await session.close()
        await reading.finish()
        assert loop.time() - start < 1 and reading.events == []
        for send in (session.send_audio(b"\0\0"), session.send_result("call_1", {}), session.stop_speaking()):
            with pytest.raises(SessionError, match="closed"):
                await send

    hold(talk, script())


def test_closing_takes_less_than_a_second_when_the_service_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> float:
        assert service.connection is not None
        monkeypatch.setattr(service.connection, "data_received", lambda data: None)
        start = asyncio.get_running_loop().time()
        await session.close()
        return asyncio.get_running_loop().time() - start

    assert hold(talk, script())[0] < 1


def test_leaving_early_and_coming_back_loses_no_event() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> list[Event]:
        service.send(created(), done(usage={"total_tokens": 1}))
        seen = []
        for _ in range(3):
            async for event in session:
                seen.append(event)
                break
        return seen

    assert hold(talk, script())[0] == [TurnStarted("resp_1"), Usage({"total_tokens": 1}), TurnDone("resp_1")]


def test_the_applications_own_error_passes_through_the_iteration() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        service.send(created())
        async for _event in session:
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        hold(talk, script())


# The wire


def test_the_tap_sees_the_frames_that_crossed_the_socket() -> None:
    wire: list[tuple[str, str, dict[str, Any]]] = []

    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        await session.send_audio(bytes(1921))
        await session.send_result("call_1", {"data": "QUJD" * 100, "audio": "QUJD"})
        await session.send_audio(bytes(1))
        service.send(created(), audio(bytes(961)), item_event("done", call_item('{"delta": "QUJD"}', "completed")))
        service.close(1011, "going away")
        await all_events(session)

    _, frames = hold(talk, script(), tap=lambda *row: wire.append(row))
    sent = [(type_, frame) for direction, type_, frame in wire if direction == "sent"]
    assert [type_ for type_, _ in sent] == ["session.update"] + [frame["type"] for frame in frames]
    assert sent[1][1] == {"audio": "<1920 bytes of audio>", "type": "input_audio_buffer.append"}
    assert sent[2][1] == frames[1]  # a result keeps its text, whatever its keys are called
    assert sent[3][1]["audio"] == "<2 bytes of audio>"
    received = [(type_, frame) for direction, type_, frame in wire if direction == "received"]
    assert [type_ for type_, _ in received] == [
        "session.created",
        "session.updated",
        "response.created",
        "response.output_audio.delta",
        "response.output_item.done",
        "close",
    ]
    assert received[3][1] == audio() | {"delta": "<961 bytes of audio>"}
    assert received[4][1]["item"]["arguments"] == '{"delta": "QUJD"}'
    assert received[5][1] == {"code": 1011, "reason": "going away"}


def test_what_could_not_be_sent_is_not_on_the_wire() -> None:
    wire: list[str] = []

    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        service.close(1011)
        await asyncio.sleep(0.1)
        with pytest.raises(SessionError, match="1011"):
            await session.send_audio(b"\0\0")

    hold(talk, script(), tap=lambda direction, type_, frame: wire.append(type_))
    assert wire == ["session.created", "session.update", "session.updated"]


def test_the_key_is_nowhere_to_be_seen() -> None:
    key = "sk-proj-0123456789abcdef"
    wire: list[Any] = []

    async def main() -> tuple[list[Event], str]:
        quoted = refusal("invalid_api_key", f"Incorrect API key provided: {key}.")

        async with Service(script(None, quoted), CREATED) as service:
            session = open_session(CONFIG, endpoint(service, key=key), lambda *row: wire.append(row))
            async with session:
                service.close(1008, f"bad key {key}")
                events = await all_events(session)
                with pytest.raises(SessionError) as caught:
                    await session.send_audio(b"\0\0")
        return events, repr(session) + repr(caught.value) + repr(endpoint(service, key=key))

    events, other = run_blocking(main)
    assert "Authorization" not in repr(wire) and len(wire) >= 4 and len(events) == 2
    assert key not in repr(wire) + repr(events) + other


def test_the_key_is_hidden_however_it_is_written_and_wherever_it_stands() -> None:
    key, wire = "sk-proj-0123456789abcdef/x", []
    failed = {"type": "failed", "error": {"type": key, "code": key}}
    ended = {"id": "response_1", "status": "failed", "status_details": failed, "output": []}
    frames = [
        json.dumps(refusal(key, f"no such key: {key}")).replace("sk-", "\\u0073k-").replace("/x", "\\/x"),
        json.dumps({"type": "response.done", "event_id": "event_9", "response": ended}),
        f"not json: {key}",
        '{"type":"deep","a":' + '[{"a":' * 250 + "1" + "}]" * 250 + "}",
    ]

    async def main() -> list[Event]:
        async with Service(script(), CREATED) as service:
            session = open_session(CONFIG, endpoint(service, key=key), lambda *row: wire.append(row))
            async with session:
                for frame in frames:
                    assert service.connection is not None
                    service.connection.send_text(frame)
                return await all_events(session)

    events = run_blocking(main)
    assert len(wire) >= 6 and any(isinstance(event, Problem) and event.code == "<key>" for event in events)
    assert key not in repr(wire) + repr(events) and key not in json.dumps(wire, default=str)


def test_the_recording_class_is_used_by_the_sdk() -> None:
    """The option goes through the SDK to websockets; an SDK that drops it would record nothing."""
    seen: list[str] = []
    hold(lambda session, service: asyncio.sleep(0), script(), tap=lambda direction, type_, frame: seen.append(type_))
    assert seen == ["session.created", "session.update", "session.updated", "close"]


ODD = [
    {"type": "response.imagined", "event_id": "event_1"},
    {"type": "response.output_audio.delta", "delta": 7},
    {"type": "response.output_audio.delta", "delta": "AAAA", "added_next_year": {"a": 1}},
    {"event_id": "event_1"},
    ["response.done"],
    None,
]


@pytest.mark.parametrize("model", ["gpt-realtime", "gpt-live-1"])
def test_an_event_is_what_the_sdk_itself_makes_of_the_frame(model: str) -> None:
    sdk: Any = AsyncRealtimeConnection if model == "gpt-realtime" else AsyncLiveConnection
    union: Any = RealtimeServerEvent if model == "gpt-realtime" else ServerEvent
    frames = [row["frame"] for row in talk("order_status_chatty", model).wire_rows if row["direction"] == "received"]
    parse = functools.partial(sdk.parse_event, None)  # it looks at nothing but the frame

    async def received(text: str) -> Any:
        line: Any = SimpleNamespace(recv_bytes=lambda: asyncio.sleep(0, text.encode()), parse_event=parse)
        return await receive(line, union)

    for frame in frames[:-1] + ODD:
        ours, theirs = asyncio.run(received(json.dumps(frame))), parse(json.dumps(frame))
        assert type(ours) is type(theirs) and ours == theirs
    with pytest.raises(ValueError):
        asyncio.run(received("<html>502 Bad Gateway</html>"))


def test_the_same_conversation_takes_the_same_time_to_the_microsecond() -> None:
    def talk_once() -> list[float]:
        async def talk(session: OpenAIRealtimeSession, service: Service) -> list[float]:
            reading = Reading(session)
            for n in range(20):
                await session.send_audio(bytes(4800))
                await asyncio.sleep(0.1)
                service.send(created(f"resp_{n}"), audio(turn=f"resp_{n}"), done(f"resp_{n}"))
            await reading.until(TurnDone, 20)
            return reading.times

        return hold(talk, script())[0]

    assert talk_once() == talk_once()


def test_results_are_json_text() -> None:
    async def talk(session: OpenAIRealtimeSession, service: Service) -> None:
        with pytest.raises(TypeError):
            await session.send_result("call_1", {"when": object()})
        await session.send_result("call_1", {"ok": True})
        await asyncio.sleep(0.1)

    _, frames = hold(talk, script())
    assert [json.loads(frame["item"]["output"]) for frame in frames] == [{"ok": True}]
