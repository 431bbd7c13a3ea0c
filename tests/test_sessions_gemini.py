"""The Gemini Live adapter against scripted services over TLS: exact frames sent, events delivered, every way to end."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
import trustme
from scripted import Reading, Script, Service, all_events, fatal, raw_service

from voicekit.audio import from_pcm, to_pcm
from voicekit.clock import run_blocking
from voicekit.sessions import capabilities, open_session
from voicekit.sessions.base import (
    Audio,
    Endpoint,
    Event,
    GoAway,
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
    ToolCallCancelled,
    TurnDone,
    TurnStarted,
    Usage,
)
from voicekit.sessions.gemini_live import GeminiLiveSession

G25 = "gemini-2.5-flash-native-audio-preview-12-2025"
G31 = "gemini-3.1-flash-live-preview"
G38 = "gemini-3.8-live"
G38X = "gemini-3.8-live-extended-thinking"
SCHEMA = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
TOOL = {"name": "get_order_status", "description": "Where an order is.", "parameters": SCHEMA}
SETUP_COMPLETE: dict[str, Any] = {"setupComplete": {}}
TURN_COMPLETE = {"serverContent": {"turnComplete": True}}
INTERRUPTED = {"serverContent": {"interrupted": True}}
PCM = bytes(4800)  # 100 ms


class Certificates:
    """A certificate authority of the tests' own and what both ends make of it."""

    def __init__(self) -> None:
        authority = trustme.CA()
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self.server)
        self.client = ssl.create_default_context()
        authority.configure_trust(self.client)


TLS = Certificates()


def endpoint(service: Service, key: str = "dummy") -> Endpoint:
    return Endpoint(api_key=key, base_url=f"https://127.0.0.1:{service.port}", tls=TLS.client)


def config(model: str = G31, behavior: str | None = None, **fields: Any) -> SessionConfig:
    tool = TOOL | ({"behavior": behavior} if behavior else {})
    return SessionConfig(model, **({"instructions": "Be brief.", "tools": (tool,)} | fields))


def script(rules: dict[str, Callable[[Service, Any], None]] | None = None, *opening: dict[str, Any]) -> Script:
    """Accept the setup, send `opening`, then follow `rules` by the key of what the client sends."""

    def play(service: Service, frame: dict[str, Any]) -> None:
        (kind,) = frame
        if kind == "setup":
            service.send(SETUP_COMPLETE, *opening)
        elif rules and kind in rules:
            rules[kind](service, frame[kind])

    return play


def hold(
    talk: Callable[[GeminiLiveSession, Service], Coroutine[Any, Any, Any]],
    play: Script | None = None,
    settings: SessionConfig | None = None,
    tap: Any = None,
    resume: str | None = None,
) -> tuple[Any, list[dict[str, Any]]]:
    """Run one conversation in virtual time; returns what `talk` returns and the frames after the setup."""

    async def main() -> tuple[Any, list[dict[str, Any]]]:
        before = asyncio.all_tasks()
        async with Service(play or script(), tls=TLS.server) as service:
            async with GeminiLiveSession(settings or config(), endpoint(service), tap, resume=resume) as session:
                result = await talk(session, service)
            assert asyncio.all_tasks() == before
            return result, service.frames[1:]

    return run_blocking(main)


def events_of(*frames: dict[str, Any], model: str = G31) -> list[Event]:
    """The events for frames the service sends after the set-up; the closing problem is left out."""

    async def talk(session: GeminiLiveSession, service: Service) -> list[Event]:
        service.send(*frames)
        service.close(1000)
        return (await all_events(session))[:-1]

    return hold(talk, settings=config(model))[0]


def setup_of(settings: SessionConfig, resume: str | None = None) -> dict[str, Any]:
    async def talk(session: GeminiLiveSession, service: Service) -> Any:
        return service.frames[0]["setup"]

    return hold(talk, settings=settings, resume=resume)[0]


def audio(pcm: bytes = PCM) -> dict[str, Any]:
    data = {"mimeType": "audio/pcm;rate=24000", "data": base64.b64encode(pcm).decode()}
    return {"serverContent": {"modelTurn": {"role": "model", "parts": [{"inlineData": data}]}}}


def said(text: str) -> dict[str, Any]:
    return {"serverContent": {"outputTranscription": {"text": text}}}


def heard(text: str, **more: Any) -> dict[str, Any]:
    return {"serverContent": {"inputTranscription": {"text": text, **more}}}


def call(call_id: str | None = "call_1", order: str = "OD-1") -> dict[str, Any]:
    call = {"name": "get_order_status", "args": {"order_id": order}}
    return call | ({"id": call_id} if call_id else {})


def tool_call(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"toolCall": {"functionCalls": list(calls)}}


def in_parts(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"serverContent": {"modelTurn": {"role": "model", "parts": [{"functionCall": each} for each in calls]}}}


def calls_in(events: list[Event]) -> list[ToolCall]:
    return [event for event in events if isinstance(event, ToolCall)]


def answers(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [answer for frame in frames for answer in frame["tool_response"]["functionResponses"]]


# The set-up


def test_the_setup_frame() -> None:
    assert setup_of(config(G31, silence_ms=700, voice="Kore"), resume="handle_7") == {
        "model": f"models/{G31}",
        "generationConfig": {
            "responseModalities": ["AUDIO"],
            "speechConfig": {"voice_config": {"prebuilt_voice_config": {"voice_name": "Kore"}}},
        },
        "systemInstruction": {"parts": [{"text": "Be brief."}], "role": "user"},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "get_order_status",
                        "description": "Where an order is.",
                        "parameters_json_schema": SCHEMA,
                    }
                ]
            }
        ],
        "sessionResumption": {"handle": "handle_7"},
        "inputAudioTranscription": {},
        "outputAudioTranscription": {},
        "realtimeInputConfig": {"automatic_activity_detection": {"silence_duration_ms": 700}},
    }


def test_only_the_model_that_insists_gets_a_thinking_level() -> None:
    assert setup_of(config(G38X))["generationConfig"]["thinkingConfig"] == {"thinking_level": "LOW"}
    for model in (G25, G31, G38):
        assert "thinkingConfig" not in setup_of(config(model))["generationConfig"]


def test_capabilities_come_from_the_table() -> None:
    can = capabilities(G25)
    assert (can.can_cancel, can.can_truncate, can.can_schedule, can.implied_reply) == (False, False, True, True)
    assert (can.behaviors, can.default_behavior) == ({"blocking", "non_blocking"}, "blocking")
    assert not can.waits_for_result  # it can be declared otherwise
    can = capabilities(G31)
    assert (can.behaviors, can.default_behavior, can.can_schedule) == (frozenset(), "blocking", False)
    assert can.waits_for_result and not can.cancels_calls
    can = capabilities(G38)
    assert (can.default_behavior, can.can_schedule, can.cancels_calls) == ("non_blocking", True, True)
    can = capabilities(G38X)
    assert (can.behaviors, can.can_schedule) == ({"non_blocking"}, False)


def fails(play: Script, settings: SessionConfig | None = None) -> tuple[str, float]:
    """Open a session that cannot be opened; returns the message and the virtual seconds it took."""

    async def main() -> tuple[str, float]:
        async with Service(play, tls=TLS.server) as service:
            with pytest.raises(SessionError) as caught:
                async with GeminiLiveSession(settings or config(), endpoint(service)):
                    pass
            assert len(asyncio.all_tasks()) == 1
            return str(caught.value), asyncio.get_running_loop().time()

    return run_blocking(main)


def test_case_6_an_unanswered_setup_names_its_fields() -> None:
    message, seconds = fails(lambda service, frame: None, config(G38X))
    assert message == (
        "waited 10 s for setupComplete (fields set beyond the defaults: thinking_config, system_instruction, "
        "tools (with behavior), session_resumption, input_audio_transcription, output_audio_transcription, "
        "realtime_input_config), which never came"
    )
    assert seconds == pytest.approx(10, abs=0.6)


def test_a_refused_setup_gives_code_reason_and_fields() -> None:
    reason = "Thinking level is not supported for this model."
    message, _ = fails(lambda service, frame: service.close(1007, reason))
    assert message.startswith(
        f"no session with {G31}: Gemini closed the connection with code 1007: {reason}; fields set beyond the defaults"
    )


@pytest.mark.parametrize("frame", [{}, {"serverContent": {}}, {"error": {"code": 400, "message": "no"}}])
def test_anything_else_than_setup_complete_is_no_session(frame: dict[str, Any]) -> None:
    message, _ = fails(lambda service, _: service.send(frame))
    assert "something else than setupComplete" in message


def test_an_untrusted_certificate_is_one_line() -> None:
    async def main() -> str:
        async with Service(script(), tls=TLS.server) as service:
            stranger = Endpoint("dummy", f"https://127.0.0.1:{service.port}", ssl.create_default_context())
            with pytest.raises(SessionError) as caught:
                async with GeminiLiveSession(config(), stranger):
                    pass
        return str(caught.value)

    message = run_blocking(main)
    assert "certificate verify failed" in message.lower() and "\n" not in message


def test_nothing_in_the_environment_changes_where_the_simulated_session_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "GOOGLE_GENAI_USE_ENTERPRISE": "true",
        "GOOGLE_GENAI_USE_VERTEXAI": "true",
        "GOOGLE_CLOUD_PROJECT": "somebody",
        "GOOGLE_CLOUD_LOCATION": "europe-west1",
        "GOOGLE_API_KEY": "AIza-of-somebody-else",
        "GEMINI_API_KEY": "AIza-of-somebody-else",
        "GOOGLE_GEMINI_BASE_URL": "https://127.0.0.1:9",
        "GOOGLE_GENAI_API_VERSION": "v9",
        "GOOGLE_GENAI_CLIENT_MODE": "replay",
        "GOOGLE_GENAI_REPLAYS_DIRECTORY": "/nowhere",
        "GOOGLE_GENAI_REPLAY_ID": "r",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
        "ALL_PROXY": "socks5://127.0.0.1:9",
        "SSL_CERT_FILE": "/nowhere.pem",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def talk(session: GeminiLiveSession, service: Service) -> Any:
        assert service.connection is not None
        return service.connection.path, service.connection.headers["x-goog-api-key"]

    (path, key), _ = hold(talk)
    assert path == "/ws/google.ai.generativelanguage.v1.GenerativeService.BidiGenerateContent"
    assert key == "dummy"


@pytest.mark.parametrize("field", ["input_schema", "parametersJsonSchema", "schema"])
def test_case_33_a_schema_that_would_be_ignored_is_refused_before_the_start(field: str) -> None:
    tool = {"name": "get_order_status", field: SCHEMA}

    async def main() -> None:
        async with Service(script(), tls=TLS.server) as service:
            with pytest.raises(SessionError, match=f"{field} would be ignored; its schema goes in `parameters`"):
                GeminiLiveSession(config(tools=(tool,)), endpoint(service))
            assert service.connections == 0

    run_blocking(main)


# Behaviour and scheduling


@pytest.mark.parametrize(
    ("model", "wished", "sent"),
    [
        (G25, None, "BLOCKING"),
        (G25, "non_blocking", "NON_BLOCKING"),
        (G25, "blocking", "BLOCKING"),
        (G31, None, None),
        (G31, "non_blocking", None),
        (G38, None, "NON_BLOCKING"),
        (G38, "blocking", "BLOCKING"),
        (G38X, None, "NON_BLOCKING"),
        (G38X, "non_blocking", "NON_BLOCKING"),
    ],
)
def test_case_39_the_behaviour_reaches_the_wire_where_the_model_has_it(
    model: str, wished: str | None, sent: str | None
) -> None:
    (declarations,) = setup_of(config(model, wished))["tools"]
    assert [each.get("behavior") for each in declarations["functionDeclarations"]] == [sent]


def test_case_39_exactly_the_asynchronous_tools_are_declared_so() -> None:
    tools = (TOOL | {"behavior": "non_blocking"}, TOOL | {"name": "book", "behavior": "blocking"})
    (declarations,) = setup_of(config(G25, tools=tools))["tools"]
    assert [each["behavior"] for each in declarations["functionDeclarations"]] == ["NON_BLOCKING", "BLOCKING"]


def test_case_39_a_model_without_the_field_falls_back_with_a_warning() -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> list[Event]:
        service.close(1000)
        return await all_events(session)

    warning, _end = hold(talk, settings=config(G31, "non_blocking"))[0]
    assert warning == Problem(
        "behavior_not_supported", f"{G31} has no field for it: 'get_order_status' is blocking, not non_blocking"
    )


def test_a_behaviour_the_model_refuses_is_refused_before_the_start() -> None:
    with pytest.raises(NotSupported, match="takes only non_blocking tools"):
        GeminiLiveSession(config(G38X, "blocking"), Endpoint("dummy", "https://127.0.0.1:9"))


def answered(
    model: str, behavior: str | None, *results: dict[str, Any], calls: tuple[dict[str, Any], ...] = (call(),)
) -> list[dict[str, Any]]:
    """What the service receives when the calls are answered with `results` (keyword arguments of send_result)."""

    async def talk(session: GeminiLiveSession, service: Service) -> None:
        reading = Reading(session)
        await reading.until(ToolCall, len(calls))
        for result in results:
            await session.send_result(**({"call_id": "call_1", "result": {"status": "packed"}} | result))
        await asyncio.sleep(0.1)

    _, frames = hold(talk, script(None, tool_call(*calls)), config(model, behavior))
    return answers(frames)


@pytest.mark.parametrize(
    ("delivery", "scheduling"), [("when_idle", "WHEN_IDLE"), ("interrupt", "INTERRUPT"), ("silent", "SILENT")]
)
@pytest.mark.parametrize("model", [G25, G38])
def test_a_result_carries_when_it_is_to_be_said(model: str, delivery: str, scheduling: str) -> None:
    assert answered(model, "non_blocking", {"delivery": delivery}) == [
        {
            "id": "call_1",
            "name": "get_order_status",
            "response": {"status": "packed"},
            "scheduling": scheduling,
        }
    ]


def test_case_40_behaviour_and_silence_are_sent_although_they_are_the_servers_default() -> None:
    """3.8 is asynchronous without being asked; the kit states it, and so may answer silently."""
    (declarations,) = setup_of(config(G38))["tools"]
    assert declarations["functionDeclarations"][0]["behavior"] == "NON_BLOCKING"
    assert [answer["scheduling"] for answer in answered(G38, None, {"delivery": "silent"})] == ["SILENT"]


@pytest.mark.parametrize("delivery", ["when_idle", "interrupt", "silent"])
@pytest.mark.parametrize("model", [G25, G38])
def test_case_41_no_scheduling_is_sent_for_a_blocking_tool(model: str, delivery: str) -> None:
    (answer,) = answered(model, "blocking", {"delivery": delivery})
    assert "scheduling" not in answer


@pytest.mark.parametrize("model", [G31, G38X])
def test_scheduling_is_refused_before_sending_where_it_closes_the_socket(model: str) -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> None:
        reading = Reading(session)
        await reading.until(ToolCall)
        with pytest.raises(NotSupported, match="leave `delivery` out"):
            await session.send_result("call_1", {}, delivery="when_idle")
        await session.send_result("call_1", {})
        await asyncio.sleep(0.1)

    _, frames = hold(talk, script(None, tool_call(call())), config(model))
    assert answers(frames) == [{"id": "call_1", "name": "get_order_status", "response": {}}]


def test_an_unknown_delivery_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SessionError, match="when_idle, interrupt, silent"):
        answered(G38, None, {"delivery": "immediately"})


def test_interim_results_keep_the_call_open() -> None:
    answers = answered(G38, None, {"result": {"percent": 50}, "final": False}, {"delivery": "silent"})
    assert [answer.get("will_continue") for answer in answers] == [True, None]
    assert [answer["name"] for answer in answers] == ["get_order_status"] * 2


@pytest.mark.parametrize(("model", "behavior"), [(G31, None), (G38X, None), (G25, "blocking")])
def test_interim_results_are_refused_where_they_are_lost(model: str, behavior: str | None) -> None:
    with pytest.raises(NotSupported, match="send the final one only"):
        answered(model, behavior, {"final": False})


def test_case_7_an_id_outside_the_allowed_characters_is_not_sent() -> None:
    with pytest.raises(SessionError, match="call id"):
        answered(G31, None, {"call_id": "call_1/finished"})


def test_other_commands_are_refused_with_what_to_do_instead() -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> None:
        with pytest.raises(NotSupported, match="starts speech by itself"):
            await session.respond(("call_1",))
        with pytest.raises(NotSupported, match="empty your own playout"):
            await session.stop_speaking()
        with pytest.raises(NotSupported, match="account of what was heard"):
            await session.truncate("turn_1", 100)
        await asyncio.sleep(0.1)

    assert hold(talk)[1] == []


# Events


def test_a_spoken_turn() -> None:
    events = events_of(
        heard("Where is "),
        heard("it?"),
        audio(b"\1\0"),
        said("It is "),
        said("here."),
        {"serverContent": {"generationComplete": True}},
        {"serverContent": {"turnComplete": True}, "usageMetadata": {"responseTokenCount": 3, "totalTokenCount": 9}},
    )
    assert events == [
        Heard("Where is ", final=False),
        Heard("it?", final=False),
        Heard("Where is it?"),
        TurnStarted("turn_1"),
        Audio("turn_1", b"\1\0", "turn_1"),
        Said("turn_1", "It is ", "turn_1"),
        Said("turn_1", "here.", "turn_1"),
        Said("turn_1", "It is here.", "turn_1", final=True),
        TurnDone("turn_1"),
        Usage({"response_token_count": 3, "total_token_count": 9}),
    ]


def test_a_finished_transcription_is_final_at_once() -> None:
    assert events_of(heard("Yes.", finished=True), audio(), TURN_COMPLETE)[:3] == [
        Heard("Yes.", final=False),
        Heard("Yes."),
        TurnStarted("turn_1"),
    ]


def test_a_transcript_before_its_audio_waits_for_it() -> None:
    events = events_of(said("Hello."), audio(), TURN_COMPLETE)
    assert events == [
        TurnStarted("turn_1"),
        Audio("turn_1", PCM, "turn_1"),
        Said("turn_1", "Hello.", "turn_1"),
        Said("turn_1", "Hello.", "turn_1", final=True),
        TurnDone("turn_1"),
    ]


def test_a_call_divides_a_turn_into_two_items() -> None:
    events = events_of(
        audio(),
        said("Let me look."),
        tool_call(call()),
        audio(),
        said("It is packed."),
        TURN_COMPLETE,
        audio(),
        TURN_COMPLETE,
    )
    assert [event for event in events if isinstance(event, (Audio, ToolCall, TurnStarted, TurnDone))] == [
        TurnStarted("turn_1"),
        Audio("turn_1", PCM, "turn_1"),
        ToolCall("call_1", "get_order_status", '{"order_id": "OD-1"}', "turn_1"),
        Audio("turn_1_2", PCM, "turn_1"),
        TurnDone("turn_1"),
        TurnStarted("turn_2"),
        Audio("turn_2", PCM, "turn_2"),
        TurnDone("turn_2"),
    ]
    finals = [(event.item, event.text) for event in events if isinstance(event, Said) and event.final]
    assert finals == [("turn_1", "Let me look."), ("turn_1_2", "It is packed."), ("turn_2", "")]


def test_voice_activity_resumption_and_going_away() -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> tuple[list[Event], list[str | None]]:
        handles = [session.resumption_handle]
        service.send(
            {"voiceActivity": {"type": "ACTIVITY_START", "audioOffset": "1.25s"}},
            {"voiceActivity": {"type": "ACTIVITY_END", "audioOffset": "2s"}},
            {"sessionResumptionUpdate": {"newHandle": "handle_1", "resumable": True}},
            {"sessionResumptionUpdate": {"newHandle": "handle_2", "resumable": False}},
            {"sessionResumptionUpdate": {"resumable": False}},
            {"goAway": {"timeLeft": "59.5s"}},
            {"toolCallCancellation": {"ids": ["call_1", "zz"]}},
        )
        service.close(1000)
        events = (await all_events(session))[:-1]
        return events, [*handles, session.resumption_handle]

    (events, handles), _ = hold(talk)
    assert events == [
        SpeechStarted(at_ms=1250),
        SpeechStopped(at_ms=2000),
        GoAway(59.5),
        ToolCallCancelled(("call_1", "zz")),
    ]
    assert handles == [None, "handle_1"]


def test_a_result_for_a_withdrawn_call_is_not_sent() -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> Problem:
        reading = Reading(session)
        await reading.until(ToolCallCancelled)
        await session.send_result("call_1", {})
        service.send(audio())
        return await reading.until(Problem)

    cancellation = {"toolCallCancellation": {"ids": ["call_1"]}}
    problem, frames = hold(talk, script(None, tool_call(call()), cancellation))
    assert problem.recoverable and problem.code == "call_cancelled" and frames == []


@pytest.mark.parametrize(
    ("reason", "status"), [("MALFORMED_FUNCTION_CALL", "failed"), ("NEED_MORE_INPUT", "completed")]
)
def test_a_turn_ends_for_a_reason(reason: str, status: Any) -> None:
    events = events_of(audio(), {"serverContent": {"turnComplete": True, "turnCompleteReason": reason}})
    assert events[-1] == TurnDone("turn_1", status, reason)


def test_extended_thinking_goes_on_after_an_utterance() -> None:
    events = events_of(
        audio(),
        {"serverContent": {"turnComplete": True, "interactionStatus": "IN_PROGRESS"}},
        tool_call(call()),
        audio(),
        {"serverContent": {"turnComplete": True, "interactionStatus": "IDLE"}},
        audio(),
        {"serverContent": {"interactionStatus": "IDLE"}},
        model=G38X,
    )
    assert [event for event in events if isinstance(event, TurnDone)] == [
        TurnDone("turn_1", "completed", "in_progress"),
        TurnDone("turn_2"),
        TurnDone("turn_3"),
    ]
    assert len([event for event in events if isinstance(event, Audio)]) == 3


# Audio


def test_caller_audio_is_sent_at_16_khz() -> None:
    """A tone of 440 Hz in pieces of uneven length: the same tone arrives, in one unbroken stream."""
    tone = (8000 * np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)).astype(np.int16)
    pcm = to_pcm(tone) + bytes(9_600)  # silence pushes the end of the tone through the filter

    async def talk(session: GeminiLiveSession, service: Service) -> None:
        for start in range(0, len(pcm), 1_111):
            await session.send_audio(pcm[start : start + 1_111])
        await session.send_audio(b"")
        await asyncio.sleep(0.1)

    _, frames = hold(talk)
    assert {frame["realtime_input"]["audio"]["mime_type"] for frame in frames} == {"audio/pcm;rate=16000"}
    pieces = [base64.urlsafe_b64decode(frame["realtime_input"]["audio"]["data"]) for frame in frames]
    assert all(pieces) and all(len(piece) % 2 == 0 for piece in pieces)
    sound = from_pcm(b"".join(pieces))[:16_000].astype(float)
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound))))
    assert len(sound) == 16_000 and spectrum.argmax() == 440
    assert spectrum[460:].max() < spectrum[440] / 300  # no clicks where the pieces met


def test_a_long_stretch_of_audio_is_sent_in_frames_below_the_common_limit() -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> None:
        await session.send_audio(bytes(48_000 * 60))
        await asyncio.sleep(0.1)

    _, frames = hold(talk)
    sizes = [len(frame["realtime_input"]["audio"]["data"]) for frame in frames]
    assert max(sizes) < 2**20 and sum(sizes) * 3 // 4 > 32_000 * 59


# Public cases


def test_case_6_a_model_that_does_not_go_on_after_the_result_ends_as_a_stall() -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> tuple[list[Event], float]:
        reading = Reading(session)
        await reading.until(ToolCall)
        await asyncio.sleep(6)
        await session.send_result("call_1", {"status": "packed"})
        return await reading.finish(), asyncio.get_running_loop().time()

    opening = (audio(), tool_call(call()))
    (events, seconds), _ = hold(talk, script(None, *opening))
    assert [problem.code for problem in fatal(events)] == ["stall"]
    expected = f"waited 30 s for {G31} to go on after the result of call_1, which never came"
    assert events[-1] == Problem("stall", expected, recoverable=False)
    assert seconds == pytest.approx(36, abs=0.1)


@pytest.mark.parametrize("reason", ["another call is open", "it has spoken", "the tool does not block"])
def test_case_6_silence_is_no_stall_while_nothing_is_owed(reason: str) -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> list[Event]:
        reading = Reading(session)
        await reading.until(ToolCall)
        await session.send_result("call_1", {})
        if reason == "it has spoken":
            service.send(audio(), TURN_COMPLETE)
        await asyncio.sleep(120)
        await session.close()
        return await reading.finish()

    calls = (call(), call("call_2")) if reason == "another call is open" else (call(),)
    model = G38 if reason == "the tool does not block" else G31
    assert fatal(hold(talk, script(None, tool_call(*calls)), config(model))[0]) == []


def test_case_13_the_events_span_turns() -> None:
    events = events_of(audio(), TURN_COMPLETE, tool_call(call()), audio(), TURN_COMPLETE, audio(), TURN_COMPLETE)
    assert len(calls_in(events)) == 1, "second turn not read"
    assert [event.turn for event in events if isinstance(event, TurnDone)] == ["turn_1", "turn_2", "turn_3"]


def test_case_19_interrupted_is_an_event_of_its_own_and_what_is_late_is_dropped() -> None:
    ten_seconds = [audio(bytes(48_000)) for _ in range(10)]
    events = events_of(
        *ten_seconds, said("On and on."), INTERRUPTED, audio(), said(" And on."), TURN_COMPLETE, audio(), TURN_COMPLETE
    )
    assert len([event for event in events if isinstance(event, Audio)]) == 11
    assert events[12:] == [
        Interrupted("turn_1"),
        Said("turn_1", "On and on.", "turn_1", final=True),
        TurnDone("turn_1", "cancelled", "interrupted"),
        TurnStarted("turn_2"),
        Audio("turn_2", PCM, "turn_2"),
        Said("turn_2", "", "turn_2", final=True),
        TurnDone("turn_2"),
    ]


def test_case_19_an_interruption_of_what_is_only_still_playing_is_reported_too() -> None:
    events = events_of(audio(), TURN_COMPLETE, INTERRUPTED, TURN_COMPLETE, audio())
    assert events[-3:] == [Interrupted("turn_1"), TurnStarted("turn_2"), Audio("turn_2", PCM, "turn_2")]


def test_case_19_both_in_one_frame() -> None:
    events = events_of(audio(), {"serverContent": {"interrupted": True, "turnComplete": True}}, audio())
    assert events[2:5] == [
        Interrupted("turn_1"),
        Said("turn_1", "", "turn_1", final=True),
        TurnDone("turn_1", "cancelled", "interrupted"),
    ]
    assert events[-1] == Audio("turn_2", PCM, "turn_2")


def test_a_call_after_an_interruption_is_not_lost_and_starts_a_new_turn() -> None:
    for frame in (tool_call(call()), in_parts(call())):
        events = events_of(audio(), INTERRUPTED, frame, audio(), TURN_COMPLETE)
        assert calls_in(events) == [ToolCall("call_1", "get_order_status", '{"order_id": "OD-1"}', "turn_2")]
        assert TurnDone("turn_1", "cancelled", "interrupted") in events
        assert events[-3] == Audio("turn_2", PCM, "turn_2") and events[-1] == TurnDone("turn_2")


@pytest.mark.parametrize("order", ["parts first", "toolCall first"])
def test_case_21_same_call_in_two_frames(order: str) -> None:
    frames = [in_parts(call("a")), tool_call(call("a"))]
    events = events_of(*(frames if order == "parts first" else frames[::-1]), TURN_COMPLETE)
    assert [event.call_id for event in calls_in(events)] == ["a"]


def test_case_21_equal_arguments_under_two_ids_are_two_calls() -> None:
    assert [event.call_id for event in calls_in(events_of(tool_call(call("a"), call("b"))))] == ["a", "b"]


def test_case_21_calls_without_an_id_are_never_taken_for_repetitions() -> None:
    events = calls_in(events_of(tool_call(call(None)), tool_call(call(None))))
    assert len({event.call_id for event in events}) == 2


def test_case_33_arguments_are_read_from_either_frame() -> None:
    for frame in (tool_call(call()), in_parts(call())):
        assert calls_in(events_of(frame))[0].arguments == '{"order_id": "OD-1"}'


@pytest.mark.parametrize("args", [{}, {"args": {}}, {"args": None}])
def test_case_34_a_call_without_arguments_is_an_empty_object(args: dict[str, Any]) -> None:
    (event,) = calls_in(events_of(tool_call({"id": "call_1", "name": "get_order_status", **args})))
    assert event.arguments == "{}" and not event.broken


# The end


@pytest.mark.parametrize("code", [1000, 1001, 1007, 1008, 1011, 3000])
def test_every_close_code_ends_the_iteration_with_one_problem(code: int) -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> list[Event]:
        service.send(audio())
        service.close(code, "because")
        events = await all_events(session)
        for send in (session.send_audio(bytes(960)), session.send_result("call_1", {})):
            with pytest.raises(SessionError, match=str(code)):
                await send
        assert await all_events(session) == []
        return events

    message = f"Gemini closed the connection with code {code}: because"
    assert hold(talk)[0][-1] == Problem(str(code), message, recoverable=False)


def test_a_lost_connection_ends_the_iteration() -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> list[Event]:
        assert service.connection is not None
        service.connection.abort()
        return await all_events(session)

    (problem,) = hold(talk)[0]
    assert (problem.code, problem.recoverable) == ("1006", False)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"error": {"code": 400, "message": "Bad request"}}, "TypeError"),
        ({"code": 400, "message": "Bad request"}, "400"),
        ({"server_content": {"turn_complete": True}}, "TypeError"),
        ({"toolCall": {"functionCalls": [{"id": "a", "name": "b", "args": '{"order_id": 1}'}]}}, "ValidationError"),
        ({"goAway": {"timeLeft": "soon"}}, "ValueError"),
    ],
)
def test_nonsense_ends_the_iteration(frame: dict[str, Any], code: str) -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> list[Event]:
        service.send(frame)
        return await all_events(session)

    (problem,) = hold(talk)[0]
    assert (problem.code, problem.recoverable) == (code, False) and "\n" not in problem.message


@pytest.mark.parametrize("raw", ["<html>", "[1, 2]", b"\xff\xfe", "[" * 100_000])
def test_frames_that_are_no_messages_end_the_iteration(raw: str | bytes) -> None:
    async def main() -> list[Event]:
        async with raw_service(raw, before=(), after=(SETUP_COMPLETE,), tls=TLS.server) as port:
            address = Endpoint("dummy", f"https://127.0.0.1:{port}", TLS.client)
            async with GeminiLiveSession(config(), address, lambda *row: None) as session:
                return await all_events(session)

    (problem,) = run_blocking(main)
    assert isinstance(problem, Problem) and not problem.recoverable and "\n" not in problem.message


def test_unknown_additions_are_ignored() -> None:
    assert events_of({"serverContent": {"turnComplete": True, "mood": "fine"}, "newKey": {}}, {}, audio()) == [
        TurnStarted("turn_1"),
        Audio("turn_1", PCM, "turn_1"),
    ]


def test_closing_is_idempotent_quick_and_quiet() -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> None:
        reading = Reading(session)
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        start = loop.time()
        await session.close()
        await session.close()
        await reading.finish()
        assert loop.time() - start < 1 and reading.events == []
        for send in (session.send_audio(bytes(960)), session.send_result("call_1", {})):
            with pytest.raises(SessionError, match="closed"):
                await send

    hold(talk)


def test_leaving_early_and_coming_back_loses_no_event_and_leaves_no_task() -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> list[Event]:
        service.send(audio(), TURN_COMPLETE, audio())
        seen = []
        for _ in range(3):
            async for event in session:
                seen.append(event)
                break
        return seen

    events, _ = hold(talk)
    assert events == [TurnStarted("turn_1"), Audio("turn_1", PCM, "turn_1"), Said("turn_1", "", "turn_1", final=True)]


def test_closing_takes_less_than_a_second_when_the_service_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(session: GeminiLiveSession, service: Service) -> float:
        assert service.connection is not None
        monkeypatch.setattr(service.connection, "data_received", lambda data: None)
        start = asyncio.get_running_loop().time()
        await session.close()
        return asyncio.get_running_loop().time() - start

    assert hold(talk)[0] < 1


def test_a_cancelled_set_up_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with Service(lambda service, frame: None, tls=TLS.server) as service:
            session = GeminiLiveSession(config(), endpoint(service))
            opening = asyncio.create_task(session.__aenter__())
            await asyncio.sleep(3)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            async with asyncio.timeout(1):
                await service.ended.wait()
            assert len(asyncio.all_tasks()) == 1

    run_blocking(main)


# The wire


def test_the_tap_sees_the_frames_that_crossed_the_socket() -> None:
    wire: list[tuple[str, str, dict[str, Any]]] = []

    async def talk(session: GeminiLiveSession, service: Service) -> None:
        reading = Reading(session)
        await session.send_audio(bytes(48_000))
        await reading.until(ToolCall)
        await session.send_result("call_1", {"data": "QUJD" * 100})
        await asyncio.sleep(0.1)
        service.close(1011, "going away")
        await reading.finish()

    play = script(None, audio(bytes(961)), {"usageMetadata": {}, "serverContent": {}}, tool_call(call()))
    _, frames = hold(talk, play, tap=lambda *row: wire.append(row))
    sent = [(type_, frame) for direction, type_, frame in wire if direction == "sent"]
    assert [type_ for type_, _ in sent] == ["setup", "realtime_input", "tool_response"]
    size = len(base64.urlsafe_b64decode(frames[0]["realtime_input"]["audio"]["data"]))
    blob = {"data": f"<{size} bytes of audio>", "mime_type": "audio/pcm;rate=16000"}
    assert sent[1][1] == {"realtime_input": {"audio": blob}}
    assert sent[2][1] == frames[1]
    received = [(type_, frame) for direction, type_, frame in wire if direction == "received"]
    assert [type_ for type_, _ in received] == [
        "setupComplete",
        "serverContent",
        "usageMetadata",
        "toolCall",
        "close",
    ]
    (part,) = received[1][1]["serverContent"]["modelTurn"]["parts"]
    assert part["inlineData"] == {"mimeType": "audio/pcm;rate=24000", "data": "<961 bytes of audio>"}
    assert received[4][1] == {"code": 1011, "reason": "going away"}


def test_the_key_is_nowhere_to_be_seen() -> None:
    key = "AIzaSyD-0123456789abcdefghijklmnopqrstu"
    wire: list[Any] = []

    async def main() -> tuple[list[Event], str]:
        async with Service(script(), tls=TLS.server) as service:
            session = open_session(config(), endpoint(service, key), lambda *row: wire.append(row))
            assert isinstance(session, GeminiLiveSession)
            async with session:
                service.close(1008, f"bad key {key}")
                events = await all_events(session)
                with pytest.raises(SessionError) as caught:
                    await session.send_audio(bytes(960))
        return events, repr(session) + repr(caught.value)

    events, other = run_blocking(main)
    assert "goog-api-key" not in repr(wire) and len(wire) == 3 and len(events) == 1
    assert key not in repr(wire) + repr(events) + other


def test_the_same_conversation_takes_the_same_time_to_the_microsecond() -> None:
    def talk_once() -> list[float]:
        async def talk(session: GeminiLiveSession, service: Service) -> list[float]:
            reading = Reading(session)
            for _ in range(20):
                await session.send_audio(bytes(4800))
                await asyncio.sleep(0.1)
                service.send(audio(), TURN_COMPLETE)
            await reading.until(TurnDone, 20)
            return reading.times

        return hold(talk)[0]

    assert talk_once() == talk_once()
