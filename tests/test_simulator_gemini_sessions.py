"""Sessions of the simulated Gemini Live service: limits, resumption, faults, and the agreement with the SDK's types."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from gemini_talk import (
    ANSWER,
    FIND_ORDER,
    HOURS,
    LIVE,
    NATIVE,
    ORDER,
    ORDER_TOOL,
    PREAMBLES,
    SHIPPING_TOOL,
    STOCK_TOOL,
    THINKING,
    Connect,
    Log,
    SomeServer,
    alone,
    answer_to,
    ask,
    at,
    calls_of,
    converse,
    declared,
    near,
    resuming,
    sdk,
    setup_frame,
    tls,
    words_of,
)
from google import genai
from google.genai import types
from hypothesis import given, settings, strategies

from voicekit.audio import Resampler, framed, from_pcm, to_pcm
from voicekit.clock import run_blocking
from voicekit.simulator import Simulator
from voicekit.simulator.gemini_live import Endpoint, serves
from voicekit.simulator.gemini_store import Store
from voicekit.simulator.profile import Profile
from voicekit.simulator.server import Server
from voicekit.simulator.settings import Settings
from voicekit.simulator.wire import gemini_frames as frames
from voicekit.simulator.wire.gemini_schema import MESSAGES

# Sessions: limits, resumption, faults


def test_go_away_comes_before_the_end() -> None:
    log = converse(LIVE, [], seconds=12, session_seconds=10.0)
    ((at_, message),) = [(when, m) for when, m in log.messages if m.go_away]
    assert (at_, message.go_away.time_left) == (5.0, "5s")  # type: ignore[union-attr]
    assert log.error is not None and log.error.code == 1000


def test_the_vendors_limit_is_ten_minutes() -> None:
    log = converse(LIVE, [], seconds=601, streams=False)
    assert log.times(lambda m: m.go_away) == [540.0] and log.error is not None


def resumptions(log: Log) -> list[tuple[bool, str]]:
    updates = [frame["sessionResumptionUpdate"] for frame in log.sent if "sessionResumptionUpdate" in frame]
    return [(each["resumable"], each["newHandle"]) for each in updates]


def test_a_session_is_resumable_between_turns_only() -> None:
    log = converse(
        LIVE, [(1.0, HOURS, 1.0), (8.0, ORDER, 1.0)], seconds=20, config={"session_resumption": {}}, tool=at(14.0)
    )
    assert resumptions(log) == [(True, "simulated-handle-0001"), (False, ""), (True, "simulated-handle-0002")]
    assert log.order()[-1] == "sessionResumptionUpdate"
    assert resumptions(converse(LIVE, [(1.0, HOURS, 1.0)], seconds=9)) == []


def test_case_44_a_resumed_session_knows_what_was_said_and_its_calls_in_flight() -> None:
    async def scene(connect: Connect) -> None:
        first, socket = connect(resuming(outputAudioTranscription={}))
        first.received(ask(FIND_ORDER))
        await asyncio.sleep(3)
        first.received(answer_to("call_0001", response={"status": "ok", "summary": ANSWER}))
        await asyncio.sleep(6)
        handle = socket.sent[-1]["sessionResumptionUpdate"]["newHandle"]
        first.received(ask("And where is order OD-20260818-002?"))
        await asyncio.sleep(3)
        assert len(calls_of(socket)) == 2 and socket.sent[-1] != handle
        first.closed()

        second, resumed = connect(resuming(handle, outputAudioTranscription={}))
        assert list(resumed.sent[0]) == ["setupComplete"]
        second.received(answer_to("call_0002", response={"status": "ok", "summary": "Number two comes on Monday."}))
        await asyncio.sleep(6)
        assert words_of(resumed) == "Number two comes on Monday."
        second.received(ask("Any news about my order?"))
        await asyncio.sleep(6)
        second.received(ask(FIND_ORDER))  # known from before: no second call
        await asyncio.sleep(6)
        assert calls_of(resumed) == [] and ANSWER in words_of(resumed) and resumed.close_code is None

    alone(scene)


def test_case_46_a_session_cannot_be_resumed_while_its_socket_is_open() -> None:
    async def scene(connect: Connect) -> None:
        first, socket = connect(resuming())
        first.received(ask("And what are your opening hours?"))
        await asyncio.sleep(8)
        handle = socket.sent[-1]["sessionResumptionUpdate"]["newHandle"]
        early, refused = connect(resuming(handle))
        assert (refused.close_code, refused.sent) == (1011, [])
        early.closed()
        first.closed()
        second, accepted = connect(resuming(handle))
        first.closed()  # reported twice, by the close and by the transport
        assert accepted.close_code is None and connect(resuming(handle))[1].close_code == 1011
        second.closed()
        third, again = connect(resuming(handle))  # a handle may be used more than once
        assert again.close_code is None
        third.closed()

    alone(scene)


def test_unknown_handles_are_refused() -> None:
    async def scene(connect: Connect) -> None:
        for handle, expected in [
            ("simulated-handle-0009", (1008, "BidiGenerateContent session not found")),
            ("made up", (1007, "Invalid session handle")),
        ]:
            _, socket = connect(resuming(handle))
            assert (socket.close_code, socket.reason) == expected

    alone(scene)


def test_transparent_resumption_counts_the_frames_consumed() -> None:
    async def scene(connect: Connect) -> None:
        endpoint, socket = connect(setup_frame(LIVE, sessionResumption={"transparent": True}))
        endpoint.received(ask("And what are your opening hours?"))
        await asyncio.sleep(8)
        assert socket.sent[-1]["sessionResumptionUpdate"]["lastConsumedClientMessageIndex"] == "2"

    alone(scene)


def test_a_model_without_parallel_calls_makes_one_call_a_frame() -> None:
    class OneByOne(Settings):
        def profile(self, model: str) -> Profile:
            return replace(super().profile(model), parallel_calls=False)

    async def scene(connect: Connect) -> None:
        tools = [{"functionDeclarations": [STOCK_TOOL, SHIPPING_TOOL]}]
        endpoint, socket = connect(setup_frame(LIVE, tools=tools))
        endpoint.received(ask("Is the blue kettle in stock, and how much is shipping?"))
        await asyncio.sleep(3)
        assert [len(frame["toolCall"]["functionCalls"]) for frame in socket.sent if "toolCall" in frame] == [1, 1]

    alone(scene, OneByOne())


def test_handles_belong_to_one_server() -> None:
    assert Store.of(SomeServer()) is not Store.of(SomeServer())


def faulty(sayings: list[tuple[float, int, float]], **faults: Any) -> Log:
    return converse(LIVE, sayings, seconds=12, tool=at(6.0), faults=faults)


def test_case_06_a_session_that_stalls() -> None:
    log = faulty([(1.0, ORDER, 1.0), (8.0, HOURS, 0.5)], stall_after_call=True)
    assert log.calls() and log.turns() == [] and log.error is None
    with pytest.raises(TimeoutError):  # the handshake has no limit of its own
        run_blocking(lambda: asyncio.wait_for(connect_only({"no_setup_complete": True}), 10))


async def connect_only(faults: dict[str, Any]) -> None:
    chosen = Settings(faults=faults)
    async with Server(lambda _connection: lambda each: Endpoint(each, chosen), tls=lambda: tls()[0]) as server:
        config = {"http_options": {"base_url": f"https://127.0.0.1:{server.port}"}}
        async with sdk().aio.live.connect(model=LIVE, config=config):  # type: ignore[arg-type]
            pass


def test_case_09_audio_during_a_call_closes_the_session() -> None:
    log = faulty([(1.0, ORDER, 1.0), (4.0, 0, 1.0)], close_1008_on_audio_during_call=True)
    assert log.error is not None and log.error.code == 1008 and "not implemented" in str(log.error)
    assert near(log.calls()[0][0], log.messages[-1][0], 0.2)


def test_case_21_same_call_in_two_frames() -> None:
    for where, order in [("before", ["modelTurn", "toolCall"]), ("after", ["toolCall", "modelTurn"])]:
        log = faulty([(1.0, ORDER, 1.0)], duplicate_call=where)
        assert log.order()[1:3] == order
        copies = [
            part.function_call
            for _, m in log.messages
            if m.server_content and m.server_content.model_turn
            for part in m.server_content.model_turn.parts or []
            if part.function_call
        ]
        assert [call.id for call in copies] == [call.id for _, call in log.calls()] == ["call_0001"]


@cache
def announcement_alone() -> Log:
    return converse(LIVE, [(1.0, ORDER, 1.0)], seconds=8, config=PREAMBLES)


@pytest.mark.parametrize("delay", [0.001, 0.005, 0.05])
def test_case_22_a_result_just_after_the_turn(delay: float) -> None:
    def tool(_call: types.FunctionCall) -> list[tuple[float, dict[str, Any]]]:
        return [(turn_complete + delay, {})]

    def silent(_call: types.FunctionCall) -> list[tuple[float, dict[str, Any]]]:
        return [(turn_complete + delay, {"scheduling": "SILENT"})]

    plain = announcement_alone()
    turn_complete, announcement = plain.content("turn_complete")[0], plain.said()[0]
    heard = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=14, config=PREAMBLES, tool=tool)
    assert heard.said() == [announcement, ANSWER]
    faults = {"orphan_late_result": True}
    orphaned = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=14, config=PREAMBLES, tool=tool, faults=faults)
    assert orphaned.said() == [announcement, announcement]  # a second greeting, and the result is lost
    held = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=14, config=PREAMBLES, tool=silent, faults=faults)
    assert held.said() == [announcement]


def test_case_32_a_call_to_an_unknown_tool() -> None:
    log = faulty([(1.0, ORDER, 1.0)], unknown_tool=True)
    assert log.calls()[0][1].name == "transfer_funds_v2"
    assert faulty([(1.0, ORDER, 1.0)], unknown_tool="wire_money").calls()[0][1].name == "wire_money"


def test_the_remaining_faults() -> None:
    log = faulty([], close={"after_s": 3.0, "code": 1011, "reason": "Internal error encountered."})
    assert log.error is not None and log.error.code == 1011 and "Internal error" in str(log.error)
    log = faulty([], goaway_after_s=2.0)
    assert log.times(lambda m: m.go_away) == [2.0] and log.error is not None
    with pytest.raises(ValueError, match="Failed to parse"):  # what the SDK does with it
        faulty([], garbage_after_s=1.0)


def test_case_13_one_pass_of_the_sdk_is_one_turn() -> None:
    log = converse(LIVE, [(1.0, HOURS, 1.0), (8.0, ORDER, 1.0)], seconds=14)
    completes = [
        index for index, (_, m) in enumerate(log.messages) if m.server_content and m.server_content.turn_complete
    ]
    assert len(completes) == 2 and any(m.tool_call for _, m in log.messages[completes[0] :])


def test_a_call_from_beginning_to_end_with_real_ears_and_a_real_voice() -> None:
    chosen = Settings(seed=3)
    sound = resampled(chosen.clips["order_status"].samples, 24_000, 16_000)

    async def main() -> tuple[list[str], str, bytes]:
        async with Simulator(chosen) as simulator:
            config = types.LiveConnectConfig(
                http_options=types.HttpOptions(base_url=simulator.url.replace("http", "https")),
                input_audio_transcription=types.AudioTranscriptionConfig(),
                output_audio_transcription=types.AudioTranscriptionConfig(),
                tools=[types.Tool(function_declarations=[types.FunctionDeclaration(**ORDER_TOOL)])],
            )
            client = genai.Client(api_key="x", http_options={"async_client_args": {"ssl": simulator.client_tls}})
            async with client.aio.live.connect(model=NATIVE, config=config) as session:
                speaking = asyncio.ensure_future(speak(session))
                heard, said, spoken = [], "", b""
                async for message in both_turns(session):
                    spoken += message.data or b""
                    content = message.server_content
                    if content and content.input_transcription:
                        heard.append(content.input_transcription.text or "")
                    if content and content.output_transcription:
                        said += content.output_transcription.text or ""
                    for call in (message.tool_call.function_calls or []) if message.tool_call else []:
                        assert call.args == {"order_id": "OD-20260818-001"}
                        answer = {"status": "ok", "summary": ANSWER}
                        await session.send_tool_response(
                            function_responses=types.FunctionResponse(id=call.id, name=call.name, response=answer)
                        )
                await speaking
                return heard, said, spoken

    async def both_turns(session: Any) -> AsyncIterator[types.LiveServerMessage]:
        """The one that ends with the call, and the one of the answer; `receive` stops after each."""
        for _ in range(2):
            async for message in session.receive():
                yield message

    async def speak(session: Any) -> None:
        for piece in framed(sound + bytes(2 * 16_000 * 2), 0.1, 16_000):
            await session.send_realtime_input(audio=types.Blob(data=piece, mime_type="audio/pcm;rate=16000"))
            await asyncio.sleep(0.1)

    heard, said, spoken = run_blocking(main)
    assert heard == ["Hi, where is my order OD-20260818-001?"] and said == ANSWER
    assert from_pcm(spoken).any()


def resampled(samples: Any, source: int, target: int) -> bytes:
    resampler = Resampler(source, target)
    return resampler.feed(to_pcm(samples)) + resampler.flush()


# Against the SDK: every frame is one it knows, and nothing in it gets lost

NOT_PRODUCED = {
    ("LiveServerMessage", "voice_activity_detection_signal"): "for allow-listed projects only (types.py)",
    ("LiveServerMessage", "voice_activity"): "no source says when the service sends it",
    ("LiveServerContent", "grounding_metadata"): "there is no search behind the simulator",
    ("LiveServerContent", "url_context_metadata"): "URL context is not supported by these models",
    ("LiveServerContent", "turn_complete_reason"): "reports refusals and malformed calls, which the mind never makes",
    ("LiveServerContent", "waiting_for_input"): "no source says when the service sends it",
    ("LiveServerContent", "interim_input_transcription"): "utterances are recognised as a whole, at their end",
    ("LiveServerSetupComplete", "voice_consent_signature"): "replicated voices are not simulated",
    ("FunctionCall", "partial_args"): "Cloud only",
    ("FunctionCall", "will_continue"): "Cloud only",
    ("Transcription", "finished"): "the SDK's docstring calls it optional; no source says that it comes",
    ("Transcription", "language_code"): "as finished",
    ("Transcription", "speaker_label"): "diarization is not simulated",
    ("Transcription", "words"): "word times are not simulated",
    ("Transcription", "start_offset"): "word times are not simulated",
    ("Transcription", "end_offset"): "word times are not simulated",
    ("UsageMetadata", "cached_content_token_count"): "nothing is cached",
    ("UsageMetadata", "cache_tokens_details"): "nothing is cached",
    ("UsageMetadata", "tool_use_prompt_token_count"): "for tools the service runs itself",
    ("UsageMetadata", "tool_use_prompt_tokens_details"): "for tools the service runs itself",
    ("UsageMetadata", "thoughts_token_count"): "the mind has no thoughts that could be counted",
    ("UsageMetadata", "traffic_type"): "Cloud only (types.py)",
    ("UsageMetadata", "service_tier"): "there are no tiers",
}
MESSAGE_TYPES: list[Any] = [
    types.LiveServerMessage, types.LiveServerContent, types.LiveServerSetupComplete, types.LiveServerToolCall,
    types.LiveServerToolCallCancellation, types.LiveServerGoAway, types.LiveServerSessionResumptionUpdate,
    types.FunctionCall, types.Transcription, types.UsageMetadata,
]  # fmt: skip


@cache
def many_frames() -> list[dict[str, Any]]:
    """Frames of every kind the simulator sends."""
    resume = {"session_resumption": {}}
    sent = converse(LIVE, [(1.0, ORDER, 1.0), (6.0, HOURS, 1.0)], seconds=12, behavior="BLOCKING", config=resume).sent
    sent += converse(
        THINKING, [(1.0, HOURS, 1.0), (4.5, ORDER, 1.0)], seconds=12, tool=at(9.0), session_seconds=11
    ).sent
    return [
        *sent,
        frames.resumption_update("handle", 7),
        frames.calls_in_turn([frames.function_call("a", "b", {"c": 1})]),
    ]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def comparable(value: Any, key: str = "") -> Any:
    """Bytes as bytes and int64 as int, so that the SDK's spelling and the wire's compare equal."""
    if isinstance(value, dict):
        return {name: comparable(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if key == "data":
        return base64.urlsafe_b64decode(value.replace("+", "-").replace("/", "_"))
    return int(value) if key == "lastConsumedClientMessageIndex" else value


def test_the_sdk_reads_every_frame_without_losing_anything() -> None:
    for frame in many_frames():
        parsed = types.LiveServerMessage.model_validate(frame)
        again = without_nulls(parsed.model_dump(mode="json", by_alias=True))
        assert comparable(again) == comparable(frame)


def test_every_field_of_the_sdk_is_produced_or_explained() -> None:
    produced: set[tuple[str, str]] = set()

    def visit(model: Any) -> None:
        for name in type(model).model_fields:
            value = getattr(model, name)
            if value is not None:
                produced.add((type(model).__name__, name))
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, types.LiveServerMessage.__base__):  # type: ignore[arg-type]
                    visit(each)

    for frame in many_frames():
        visit(types.LiveServerMessage.model_validate(frame))
    known = {(kind.__name__, name) for kind in MESSAGE_TYPES for name in kind.model_fields}
    assert known - produced == set(NOT_PRODUCED)


@pytest.mark.parametrize(
    "path",
    [
        "/ws/google.ai.generativelanguage.v1.GenerativeService.BidiGenerateContent",
        "//ws/google.ai.generativelanguage.v1alpha.GenerativeService.BidiGenerateContent",
        "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContentConstrained",
    ],
)
def test_every_path_of_the_service(path: str) -> None:
    assert serves(path) and not serves("/v1/realtime")


# Anything at all


text = strategies.text(alphabet='aZ07 _-/.:"\\{\n\0äß中🙂\u2028', max_size=8)
json_values = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats(allow_nan=False) | text,
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
NAMES = sorted({name for fields in MESSAGES.values() for name in fields})  # in both casings
VALUES = [
    f"models/{LIVE}", "NON_BLOCKING", "get_order_status", "user", "model", "audio/pcm;rate=16000", "AAEC", "call_0001",
    "INTERRUPT", "OBJECT", FIND_ORDER, " ", True, False, 0, 500, -1, {}, [], None,
]  # fmt: skip
plausible = strategies.recursive(
    strategies.sampled_from(VALUES),
    lambda inner: (
        strategies.lists(inner, max_size=2) | strategies.dictionaries(strategies.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)
a_result = strategies.builds(
    lambda response, scheduling: answer_to("call_0001", response=response, **scheduling),
    strategies.dictionaries(strategies.sampled_from(NAMES), json_values, max_size=3),
    strategies.sampled_from([{}, {"scheduling": "INTERRUPT"}, {"scheduling": "SILENT"}, {"willContinue": True}]),
)
valid = strategies.sampled_from(
    [
        ask(FIND_ORDER),
        ask("And what are your opening hours?"),
        {"realtimeInput": {"audio": {"data": base64.b64encode(b"\1\0" * 800).decode(), "mimeType": "audio/pcm"}}},
        {"realtimeInput": {"audioStreamEnd": True}},
        {"clientContent": {"turns": [{"role": "user", "parts": [{"text": FIND_ORDER}]}], "turnComplete": True}},
        {"contextUpdate": {"tools": {"tools": declared("BLOCKING")}}},
    ]
)


@settings(deadline=None, max_examples=100)
@given(
    first=plausible | strategies.just(resuming()) | strategies.just(setup_frame(LIVE, tools=declared("BLOCKING"))),
    more=strategies.lists(json_values | plausible | a_result | valid, max_size=6),
)
def test_nothing_a_client_sends_breaks_the_server(first: Any, more: list[Any]) -> None:
    async def scene(connect: Connect) -> None:
        raised: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: raised.append(context))
        endpoint, socket = connect()
        for frame in (first, *more):
            endpoint.received(frame)
            await asyncio.sleep(1.5)
        await asyncio.sleep(20)
        endpoint.closed()
        assert raised == []
        assert socket.close_code in (None, 1007, 1008, 1011)
        assert socket.sent or socket.close_code is not None

    alone(scene)
