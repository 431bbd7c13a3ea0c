"""The GPT-Live adapter against scripted services: exact frames sent, events delivered, every way to end."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from typing import Any, get_args

import pytest
from openai.types.live import ServerEvent
from openai.types.live.connect_server_event import ConnectServerEvent
from scripted import Reading, Script, Service, all_events, endpoint, fatal, raw_service

from voicekit.clock import run_blocking
from voicekit.sessions import _gpt_live_events as events_module
from voicekit.sessions import capabilities, open_session
from voicekit.sessions.base import (
    Appended,
    Audio,
    Delegation,
    Endpoint,
    Event,
    Heard,
    NotSupported,
    Problem,
    Said,
    SessionConfig,
    SessionError,
    ToolCall,
    Usage,
    Work,
)
from voicekit.sessions.gpt_live import GptLiveSession, session_start
from voicekit.simulator.gpt_live_voice import read_tools
from voicekit.simulator.wire.gpt_live_schema import check_event

TOOL = {
    "name": "get_order_status",
    "description": "Where an order is.\n\nNever cancels anything.",
    "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
}
CLIENT = SessionConfig("gpt-live-1", instructions="Be brief.", tools=(TOOL,))
BACKEND = SessionConfig("gpt-live-1", instructions="Be brief.", tools=(TOOL,), delegation="responses")
STARTED = {"type": "session.started", "event_id": "event_1", "session": {"id": "live_1", "status": "active"}}
LOUD = b"\x00\x20" * 2400  # 100 ms
QUIET = bytes(4800)


def closed(reason: str = "close_requested") -> dict[str, Any]:
    return {"type": "session.closed", "reason": reason, "session": {"id": "live_1"}, "usage": {"seconds": 7.0}}


def script(
    rules: dict[str, Callable[[Service, dict[str, Any]], None]] | None = None, *opening: dict[str, Any]
) -> Script:
    """Accept session.start, send `opening`, then follow `rules`; session.close is answered unless those say how."""
    answers = {"session.close": lambda service, _frame: service.send(closed())} | (rules or {})

    def play(service: Service, frame: dict[str, Any]) -> None:
        check_event(frame)  # whatever the adapter sends passes the simulator's strict tables
        if frame["type"] == "session.start":
            service.send(STARTED, *opening)
        elif frame["type"] in answers:
            answers[frame["type"]](service, frame)

    return play


def hold(
    talk: Callable[[GptLiveSession, Service], Coroutine[Any, Any, Any]],
    play: Script | None = None,
    config: SessionConfig = CLIENT,
) -> tuple[Any, list[dict[str, Any]]]:
    """Run one conversation in virtual time; returns what `talk` returns and the frames after session.start."""

    async def main() -> tuple[Any, list[dict[str, Any]]]:
        before = asyncio.all_tasks()
        async with Service(play or script()) as service:
            async with GptLiveSession(config, endpoint(service)) as session:
                result = await talk(session, service)
            assert asyncio.all_tasks() == before
            return result, [{k: v for k, v in frame.items() if k != "event_id"} for frame in service.frames[1:]]

    return run_blocking(main)


def events_of(*frames: dict[str, Any], config: SessionConfig = CLIENT) -> list[Event]:
    """The events for frames the service sends after the set-up; the closing problem is left out."""

    async def talk(session: GptLiveSession, service: Service) -> list[Event]:
        service.send(*frames)
        service.close(1000)
        return (await all_events(session))[:-1]

    return hold(talk, script(), config)[0]


def audio(pcm: bytes = LOUD) -> dict[str, Any]:
    return {"type": "session.output_audio.delta", "delta": base64.b64encode(pcm).decode()}


def said(text: str, start_ms: int) -> dict[str, Any]:
    return {"type": "session.output_transcript.delta", "delta": text, "start_ms": start_ms, "end_ms": start_ms + 100}


def heard(text: str, start_ms: int, end_ms: int) -> dict[str, Any]:
    return {"type": "session.input_transcript.delta", "delta": text, "start_ms": start_ms, "end_ms": end_ms}


def nested(type_: str, delegation: str | None = "d1", **fields: Any) -> dict[str, Any]:
    return {"type": "response.event", "delegation_id": delegation, "event": {"type": f"response.{type_}", **fields}}


def function_call(call_id: str = "call_1", status: str = "completed") -> dict[str, Any]:
    item = {"type": "function_call", "call_id": call_id, "name": "get_order_status", "arguments": '{"order_id": "1"}'}
    return nested("output_item.done", item=item | {"status": status})


# The set-up


def test_session_start_comes_first_and_says_who_works() -> None:
    async def talk(_session: GptLiveSession, service: Service) -> Any:
        return service.frames[0]

    for config in (CLIENT, BACKEND):
        first, _ = hold(talk, config=config)
        assert first["type"] == "session.start"
        assert first["session"] == session_start(config)
        assert first["session"]["model"] == "gpt-live-1"
        assert first["session"]["audio"] == {"format": {"type": "audio/pcm", "rate": 24000}}
    assert session_start(CLIENT)["delegation"] == {"type": "client"}
    backend = session_start(BACKEND)["delegation"]["responses"]
    assert [tool["name"] for tool in backend["tools"]] == ["get_order_status"]
    assert backend["tools"][0]["description"] == TOOL["description"]
    assert backend["instructions"] == "Be brief."


def test_the_voice_is_told_in_the_guides_words_what_the_backend_is_for() -> None:
    for config in (CLIENT, BACKEND):
        text = session_start(config)["instructions"]
        for heading in ("# Backchannel", "# Interruption", "# Delegation policy"):
            assert f"\n{heading}\n" in text
        for label in ("Backend tools", "Delegate to the backend when", "Do not delegate to the backend when"):
            assert f"\n{label}\n" in text
        assert read_tools(text) == {"get_order_status"}
        assert "Never cancels" not in text  # procedures are the backend's
    assert session_start(SessionConfig("gpt-live-1", voice="cedar"))["audio"]["output"] == {"voice": "cedar"}


def test_nothing_goes_out_before_session_started() -> None:
    async def main() -> list[str]:
        async with Service(lambda service, frame: None) as service:
            session = GptLiveSession(CLIENT, endpoint(service))
            with pytest.raises(SessionError, match="not open"):
                await session.send_audio(LOUD)
            with pytest.raises(SessionError, match=r"waited 10 s for session\.started after session\.start"):
                async with session:
                    pass
            return [frame["type"] for frame in service.frames]

    assert run_blocking(main) == ["session.start"]


def test_a_startup_error_is_one_line() -> None:
    error = {"type": "invalid_request_error", "code": "unknown_parameter", "message": "Unknown parameter: 'x'."}

    async def main() -> None:
        async with Service(lambda service, frame: service.send({"type": "error", "error": error})) as service:
            with pytest.raises(SessionError, match=r"^no session with gpt-live-1: Unknown parameter: 'x'\.$"):
                async with GptLiveSession(CLIENT, endpoint(service)):
                    pass

    run_blocking(main)


@pytest.mark.parametrize("raw", ["<html>", "[]", "{}", '{"type": 1}'])
def test_nonsense_instead_of_session_started(raw: str) -> None:
    async def main() -> None:
        async with raw_service(raw, before=(), after=()) as port:
            with pytest.raises(SessionError, match="no session with gpt-live-1"):
                async with GptLiveSession(CLIENT, Endpoint("dummy", f"http://127.0.0.1:{port}/v1")):
                    pass

    run_blocking(main)


def test_bad_declarations_are_refused_before_connecting() -> None:
    with pytest.raises(SessionError, match="declared twice"):
        GptLiveSession(SessionConfig("gpt-live-1", tools=(TOOL, TOOL)), Endpoint("x"))
    with pytest.raises(NotSupported, match='"client" or "responses"'):
        GptLiveSession(SessionConfig("gpt-live-1", delegation="decisions"), Endpoint("x"))  # type: ignore[arg-type]
    assert isinstance(open_session(CLIENT, Endpoint("x")), GptLiveSession)


# What does not exist


def test_capabilities_say_what_does_not_exist() -> None:
    can = capabilities("gpt-live-1")
    assert can.delegates
    assert not (can.has_turns or can.owns_turns or can.can_cancel or can.can_truncate or can.reports_speech)


@pytest.mark.parametrize(
    ("config", "command", "instead"),
    [
        (CLIENT, lambda s: s.stop_speaking(), "no cancel"),
        (BACKEND, lambda s: s.stop_speaking(), "no cancel"),
        (CLIENT, lambda s: s.truncate("speech_0001", 100), "no truncate"),
        (CLIENT, lambda s: s.respond(), "no turns"),
        (CLIENT, lambda s: s.send_result("call_1", {}), "append"),
        (BACKEND, lambda s: s.send_result("call_1", {}, delivery="interrupt"), "cannot schedule"),
        (BACKEND, lambda s: s.send_result("call_1", {}, final=False), "one result per call"),
        (BACKEND, lambda s: s.append("commentary", "x", "d1"), "belongs to no delegation"),
        (CLIENT, lambda s: s.update({"instructions": "x"}), "instructions is fixed"),
        (CLIENT, lambda s: s.update({"model": "x"}), "model is fixed"),
        (CLIENT, lambda s: s.update({"tools": []}), "no setting"),
        (CLIENT, lambda s: s.update({"delegation": {"type": "responses"}}), "stays client"),
        (BACKEND, lambda s: s.update({"delegation": None}), "stays responses"),
    ],
)
def test_what_does_not_exist_is_refused_before_anything_is_sent(
    config: SessionConfig, command: Callable[[GptLiveSession], Any], instead: str
) -> None:
    async def talk(session: GptLiveSession, _service: Service) -> None:
        with pytest.raises(NotSupported, match=instead):
            await command(session)

    assert hold(talk, config=config)[1] == [{"type": "session.close"}]


def test_appends_of_no_text_or_too_much_are_refused() -> None:
    async def talk(session: GptLiveSession, _service: Service) -> None:
        for text in ("", "  ", "x" * 2001):
            with pytest.raises(SessionError, match="1 to 2000 characters"):
                await session.append("commentary", text)

    assert hold(talk)[1] == [{"type": "session.close"}]


# Commands


def test_commands_on_the_wire() -> None:
    async def talk(session: GptLiveSession, _service: Service) -> None:
        await session.send_audio(b"\x01")
        await session.send_audio(b"\x02\x03")  # an odd byte waits for the next call
        ids = [
            await session.append("thinking", "Looking.", "d1"),
            await session.append("commentary", "Found.", None),
            await session.append("instructions", "Speak slowly."),
        ]
        assert len(set(ids)) == 3
        await session.mute()
        await session.unmute()
        await session.update({"delegation": {"type": "client", "acknowledgement_delay_ms": 400}})

    assert hold(talk)[1] == [
        {"type": "session.input_audio.append", "audio": base64.b64encode(b"\x01\x02").decode()},
        {"type": "session.thinking.append", "content": "Looking.", "delegation_id": "d1"},
        {"type": "session.commentary.append", "content": "Found.", "delegation_id": None},
        {"type": "session.instructions.append", "content": "Speak slowly.", "delegation_id": None},
        {"type": "session.input_audio.mute"},
        {"type": "session.input_audio.unmute"},
        {"type": "session.update", "session": {"delegation": {"type": "client", "acknowledgement_delay_ms": 400}}},
        {"type": "session.close"},
    ]


def test_an_output_then_an_explicit_response_create() -> None:
    async def talk(session: GptLiveSession, _service: Service) -> None:
        await session.send_result("call_1", {"status": "ok", "summary": "Grüße"})
        await session.respond(("call_1",))

    item = {"type": "function_call_output", "call_id": "call_1", "output": '{"status": "ok", "summary": "Grüße"}'}
    assert hold(talk, config=BACKEND)[1] == [
        {"type": "response.item.create", "item": item},
        {"type": "response.create"},
        {"type": "session.close"},
    ]


def test_respond_waits_for_the_end_of_the_response_before() -> None:
    async def talk(session: GptLiveSession, service: Service) -> None:
        service.send(nested("created", response={"id": "resp_1"}))
        reading = Reading(session)
        await reading.until(Work)
        with pytest.raises(SessionError, match="resp_1 is not over"):
            await session.respond()
        service.send(nested("completed", response={"id": "resp_1", "status": "completed", "output": []}))
        await reading.until(Work, 2)
        await session.respond()

    assert [frame["type"] for frame in hold(talk, config=BACKEND)[1]] == ["response.create", "session.close"]


# Events


def test_a_stream_becomes_stretches_of_speech_and_silence_is_nothing() -> None:
    frames = [audio(QUIET), audio(), said("Let me", 100), audio(), said(" check.", 200)]
    frames += [audio(QUIET), audio(QUIET), audio(), said(" Now.", 500), audio(QUIET), audio(QUIET), audio(QUIET)]
    frames += [audio(), said(" Done.", 900)]
    assert events_of(*frames) == [
        Audio("speech_0001", LOUD),
        Said("speech_0001", "Let me"),
        Audio("speech_0001", LOUD),
        Said("speech_0001", " check."),
        Audio("speech_0001", LOUD),  # a pause of 0.2 s is inside the stretch, 0.3 s end it
        Said("speech_0001", " Now."),
        Said("speech_0001", "Let me check. Now.", final=True),
        Audio("speech_0002", LOUD),
        Said("speech_0002", " Done."),
    ]


def test_noise_that_nobody_hears_is_silence() -> None:
    assert events_of(audio(b"\x20\x00" * 2400)) == []  # -60 dBFS


def test_words_go_where_the_timeline_says() -> None:
    end = [audio(QUIET)] * 3
    late = [audio(), *end, said("late", 0), said("early", 500), audio(), *end]
    assert [(e.item, e.text) for e in events_of(*late) if isinstance(e, Said) and not e.final] == [
        ("speech_0001", "late"),
        ("speech_0002", "early"),
    ]


def test_the_callers_words_and_when_they_are_over() -> None:
    frames = [heard("Where is", 0, 500), heard(" it?", 500, 700), *[audio(QUIET)] * 5]
    frames += [heard(" Please", 700, 900), *[audio(QUIET)] * 5]  # late, but it goes on where the last stopped
    frames += [heard("Hello?", 5000, 5500), *[audio(QUIET)] * 5]
    assert events_of(*frames) == [
        Heard("Where is", "heard_0001", final=False),
        Heard(" it?", "heard_0001", final=False),
        Heard("Where is it?", "heard_0001"),
        Heard(" Please", "heard_0001", final=False),
        Heard("Where is it? Please", "heard_0001"),
        Heard("Hello?", "heard_0002", final=False),
        Heard("Hello?", "heard_0002"),
    ]


def test_delegations_and_acknowledgements() -> None:
    delegation = {"id": "d1", "type": "delegation", "target": "client"}
    created = {"type": "session.delegation.created", "offset_ms": 4600, "delegation": delegation}
    times = {"client_event_id": "a", "start_ms": 0, "end_ms": 800}
    acks = [{"type": f"session.{each}.appended", **times} for each in ("instructions", "thinking", "commentary")]
    assert events_of(created, *acks) == [
        Delegation("d1", "client", 4600),
        Appended("a", "instructions", 800),
        Appended("a", "thinking", 800),
        Appended("a", "commentary", 800),
    ]


def test_calls_are_taken_from_output_item_done_only_and_once() -> None:
    frames = [
        nested("created", response={"id": "resp_1", "output": []}),
        nested("output_item.done", item={"type": "reasoning", "id": "rs_1", "summary": []}),
        nested("output_item.added", item={"type": "function_call", "call_id": "call_1", "name": "x", "arguments": ""}),
        nested("function_call_arguments.done", item_id="fc_1", arguments="{}"),
        function_call(),
        function_call(),
        function_call("call_2", "incomplete"),
        nested("completed", response={"id": "resp_1", "status": "completed", "usage": {"total_tokens": 3}}),
    ]
    assert events_of(*frames, config=BACKEND) == [
        Work("resp_1", "d1"),
        ToolCall("call_1", "get_order_status", '{"order_id": "1"}', "resp_1"),
        ToolCall("call_2", "get_order_status", '{"order_id": "1"}', "resp_1", broken=True),
        Usage({"total_tokens": 3}),
        Work("resp_1", "d1", "completed"),
    ]


def test_what_the_backend_gives_the_voice_is_not_yet_said() -> None:
    frames = [
        nested("created", None, response={"id": "resp_1"}),
        nested("output_text.delta", None, delta="It is"),
        nested("output_text.done", None, text="It is there."),
        nested("completed", None, response={"id": "resp_1", "status": "completed"}),
    ]
    assert events_of(*frames, config=BACKEND) == [Work("resp_1"), Work("resp_1", "", "completed", "It is there.")]


def test_a_backend_that_fails_is_a_problem_and_no_end() -> None:
    failed = {"id": "resp_1", "status": "failed", "error": {"code": "server_error", "message": "No luck."}}
    cut = {"id": "resp_2", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    events = events_of(nested("failed", response=failed), nested("incomplete", response=cut), config=BACKEND)
    assert events == [
        Problem("server_error", "No luck."),
        Work("resp_1", "d1", "failed"),
        Problem("max_output_tokens", "the backend's response ended as incomplete"),
        Work("resp_2", "d1", "incomplete"),
    ]


def test_errors_and_usage() -> None:
    error = {"type": "invalid_request_error", "code": None, "message": "No such\ndelegation.", "client_event_id": "a"}
    frames = [{"type": "error", "error": error}, {"type": "session.usage.updated", "usage": {"seconds": 60.0}}]
    assert events_of(*frames) == [Problem("invalid_request_error", "No such delegation."), Usage({"seconds": 60.0})]


def test_events_nobody_knows_are_passed_over() -> None:
    unknown = {"type": "session.something.new", "x": 1}
    assert events_of(unknown, {"type": "response.event", "event": {"type": "new"}}) == []


def test_every_event_the_sdk_types_is_used_or_listed_with_a_reason() -> None:
    unions = (*get_args(get_args(ServerEvent)[0]), *get_args(get_args(ConnectServerEvent)[0]))
    typed = {get_args(each.model_fields["type"].annotation)[0] for each in unions}
    used, listed = set(events_module.HANDLERS), set(events_module.NOT_USED)
    assert used | listed == typed
    assert not used & listed
    assert all(len(reason.split()) > 2 for reason in events_module.NOT_USED.values())
    assert events_of(*({"type": type_} for type_ in sorted(listed))) == []


# The end


def test_close_reads_on_to_session_closed() -> None:
    def play(service: Service, _frame: dict[str, Any]) -> None:
        service.send(audio(), said("By", 0))
        service.later(1.0, audio(QUIET), closed())

    async def talk(session: GptLiveSession, _service: Service) -> list[Event]:
        await session.close()
        assert asyncio.get_running_loop().time() >= 1.0
        return await all_events(session)

    events, frames = hold(talk, script({"session.close": play}))
    assert [frame["type"] for frame in frames] == ["session.close"]
    assert events[-2:] == [Said("speech_0001", "By", final=True), Usage({"seconds": 7.0})]


def test_close_while_somebody_reads() -> None:
    def play(service: Service, _frame: dict[str, Any]) -> None:
        service.later(0.5, closed())

    async def talk(session: GptLiveSession, service: Service) -> list[Event]:
        service.send(audio())
        reading = Reading(session)
        await reading.until(Audio)
        await session.close()
        await reading.task
        return reading.events

    events, _ = hold(talk, script({"session.close": play}))
    assert fatal(events) == []
    assert events[-1] == Usage({"seconds": 7.0})


def test_a_service_that_never_confirms_does_not_keep_us() -> None:
    async def talk(session: GptLiveSession, _service: Service) -> float:
        await session.close()
        return asyncio.get_running_loop().time()

    assert 2.0 <= hold(talk, script({"session.close": lambda service, frame: None}))[0] < 3.0


@pytest.mark.parametrize("reason", ["expired", "content", "connection_lost"])
def test_a_session_that_the_service_ends(reason: str) -> None:
    async def talk(session: GptLiveSession, service: Service) -> list[Event]:
        service.send(closed(reason))
        events = await all_events(session)
        with pytest.raises(SessionError, match=reason):
            await session.append("commentary", "too late")
        return events

    events, frames = hold(talk)
    assert events == [Usage({"seconds": 7.0}), Problem(reason, f"OpenAI closed the session: {reason}", False)]
    assert frames == []  # nothing is sent into a session that is over, not even session.close


@pytest.mark.parametrize("code", [1008, 1011, 1012])
def test_a_socket_that_is_closed(code: int) -> None:
    async def talk(session: GptLiveSession, service: Service) -> list[Event]:
        service.close(code, "why")
        return await all_events(session)

    events, _ = hold(talk)
    assert events == [Problem(str(code), f"OpenAI closed the connection with code {code}: why", recoverable=False)]


def test_audio_that_is_never_answered_ends_the_session() -> None:
    async def talk(session: GptLiveSession, _service: Service) -> tuple[list[Event], float]:
        reading = Reading(session)
        for _ in range(400):
            try:
                await session.send_audio(QUIET)
            except SessionError:
                break
            await asyncio.sleep(0.1)
        await reading.task
        return reading.events, asyncio.get_running_loop().time()

    (events, at), _ = hold(talk)
    assert [event.code for event in fatal(events)] == ["stall"]
    assert 29.9 < at < 30.5


def test_no_audio_is_owed_while_none_is_sent() -> None:
    async def talk(session: GptLiveSession, service: Service) -> list[Event]:
        reading = Reading(session)
        await session.send_audio(QUIET)
        service.send(audio())
        await asyncio.sleep(100)
        return reading.events

    assert fatal(hold(talk)[0]) == []


def test_the_tap_sees_every_frame_and_no_sound() -> None:
    seen: list[tuple[str, str, str]] = []

    async def main() -> None:
        async with Service(script({}, audio())) as service:
            session = open_session(
                CLIENT, endpoint(service), tap=lambda *frame: seen.append((frame[0], frame[1], json.dumps(frame[2])))
            )
            async with session:
                await session.send_audio(LOUD)
                await asyncio.sleep(0.1)

    run_blocking(main)
    assert [(direction, type_) for direction, type_, _ in seen][:4] == [
        ("sent", "session.start"),
        ("received", "session.started"),
        ("sent", "session.input_audio.append"),
        ("sent", "session.close"),
    ]
    assert ("received", "session.closed") in [(direction, type_) for direction, type_, _ in seen]
    sound = next(text for _, type_, text in seen if type_ == "session.output_audio.delta")
    assert "<4800 bytes of audio>" in sound
