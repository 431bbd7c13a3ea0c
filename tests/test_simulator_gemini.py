"""The simulated Gemini Live service: its protocol without sockets, its turn-taking through the official SDK over TLS."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import trustme
from google import genai
from google.genai import errors, types
from hypothesis import given, settings, strategies

from voicekit.audio import Resampler, framed, from_pcm, to_pcm
from voicekit.clock import new_loop, run_blocking
from voicekit.models import models, provider
from voicekit.simulator import Simulator
from voicekit.simulator.ears import Ended, Started, Utterance
from voicekit.simulator.gemini_live import Endpoint, serves
from voicekit.simulator.gemini_store import Store
from voicekit.simulator.mind import Mind
from voicekit.simulator.server import Server
from voicekit.simulator.settings import Settings
from voicekit.simulator.wire import gemini_frames as frames
from voicekit.simulator.wire.gemini_live import (
    Activity,
    Audio,
    Content,
    ContextUpdate,
    Result,
    Setup,
    Text,
    Wire,
)
from voicekit.simulator.wire.gemini_schema import Refused

NATIVE = "gemini-2.5-flash-native-audio-preview-12-2025"
LEGACY = "gemini-3.1-flash-live-preview"
LIVE = "gemini-3.8-live"
THINKING = "gemini-3.8-live-extended-thinking"
ALL = [NATIVE, LEGACY, LIVE, THINKING]

ORDER_TOOL = {
    "name": "get_order_status",
    "description": "Look up an order.",
    "parameters": {"type": "OBJECT", "properties": {"order_id": {"type": "STRING"}}, "required": ["order_id"]},
}
STOCK_TOOL = {
    "name": "check_stock",
    "description": "Count an item.",
    "parameters": {"type": "OBJECT", "properties": {"item": {"type": "STRING"}}},
}
SHIPPING_TOOL = {**STOCK_TOOL, "name": "get_shipping"}
ANSWER = "Your order arrives on Friday."
LONG = "It was packed on the twentieth, waited two days for a missing lid, and left our warehouse today."


def setup_frame(model: str = LIVE, **fields: Any) -> dict[str, Any]:
    if model == THINKING:
        fields.setdefault("generationConfig", {"thinkingConfig": {"thinkingLevel": "LOW"}})
    return {"setup": {"model": f"models/{model}", **fields}}


def declared(behavior: str | None = None, tool: dict[str, Any] = ORDER_TOOL) -> list[dict[str, Any]]:
    return [{"functionDeclarations": [{**tool, **({"behavior": behavior} if behavior else {})}]}]


def ready(model: str = LIVE, **fields: Any) -> Wire:
    wire = Wire(Settings().profile)
    wire.receive(setup_frame(model, **fields))
    return wire


def refusal(wire: Wire, frame: Any) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        wire.receive(frame)
    return caught.value.code, caught.value.reason


def at_setup(model: str = LIVE, **fields: Any) -> tuple[int, str]:
    return refusal(Wire(Settings().profile), setup_frame(model, **fields))


# The wire: casing and types


def test_both_casings_mean_the_same() -> None:
    camel = setup_frame(
        systemInstruction={"parts": [{"text": "Be brief."}]},
        realtimeInputConfig={"automaticActivityDetection": {"silenceDurationMs": 500, "prefixPaddingMs": 20}},
        outputAudioTranscription={},
        sessionResumption={},
    )
    plain = {
        "setup": {
            "model": f"models/{LIVE}",
            "system_instruction": {"parts": [{"text": "Be brief."}]},
            "realtime_input_config": {"automatic_activity_detection": {"silence_duration_ms": 500, "prefix_padding_ms": 20}},
            "output_audio_transcription": {},
            "session_resumption": {},
        }
    }
    found = [Wire(Settings().profile).receive(frame) for frame in (camel, plain)]
    assert found[0] == found[1]
    setup = found[0][0]
    assert isinstance(setup, Setup)
    assert (setup.instructions, setup.silence_ms, setup.prefix_ms) == ("Be brief.", 500, 20)
    assert setup.transcribe_output and not setup.transcribe_input and setup.resumable


def test_defaults_of_activity_detection() -> None:
    setup = Wire(Settings().profile).receive(setup_frame())[0]
    assert isinstance(setup, Setup)
    assert (setup.automatic, setup.silence_ms, setup.interrupts, setup.threshold) == (True, 800, True, 0.5)
    config = {
        "automaticActivityDetection": {
            "startOfSpeechSensitivity": "START_SENSITIVITY_LOW",
            "endOfSpeechSensitivity": "END_SENSITIVITY_LOW",
        },
        "activityHandling": "NO_INTERRUPTION",
    }
    setup = Wire(Settings().profile).receive(setup_frame(realtimeInputConfig=config))[0]
    assert isinstance(setup, Setup)
    assert setup.silence_ms > 800 and setup.threshold > 0.5 and not setup.interrupts


@pytest.mark.parametrize("name", ["models/{}", "publishers/google/models/{}", "projects/p/locations/l/publishers/google/models/{}"])
def test_every_spelling_of_a_model_name(name: str) -> None:
    (setup,) = Wire(Settings().profile).receive({"setup": {"model": name.format(LIVE)}})
    assert isinstance(setup, Setup) and setup.model == LIVE


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"bogus": {}}, 'Invalid JSON payload received. Unknown name "bogus": Cannot find field.'),
        (
            {"realtimeInput": {"sound": 1}},
            "Invalid JSON payload received. Unknown name \"sound\" at 'realtime_input': Cannot find field.",
        ),
        (
            {"clientContent": {"turns": [{"parts": [{"txt": ""}]}]}},
            "Invalid JSON payload received. Unknown name \"txt\" at 'client_content.turns[0].parts[0]': Cannot find field.",
        ),
        ({"clientContent": {"turnComplete": "yes"}}, "Invalid value at 'client_content.turn_complete' (TYPE_BOOL), \"yes\""),
        ({"realtimeInput": {"text": 7}}, "Invalid value at 'realtime_input.text' (TYPE_STRING), 7"),
        ({"clientContent": {"turns": {}}}, "Invalid value at 'client_content.turns' (list), {}"),
        ({"realtimeInput": {"audio": {"data": "?!"}}}, "Invalid value at 'realtime_input.audio.data' (TYPE_BYTES), Base64 decoding failed"),
        ({"realtimeInput": []}, "Invalid value at 'realtime_input' (RealtimeInput), []"),
        ({}, "Request contains an invalid argument."),
        (None, "Invalid JSON payload received. Unexpected token."),
        ([], "Invalid JSON payload received. Unexpected token."),
    ],
)  # fmt: skip
def test_what_is_not_in_the_protocol_closes_1007(frame: Any, reason: str) -> None:
    assert refusal(ready(), frame) == (1007, reason)


def test_nothing_but_one_key_per_frame() -> None:
    assert refusal(ready(), {"realtimeInput": {"text": "a"}, "clientContent": {}})[0] == 1007


def test_setup_comes_first_and_once() -> None:
    reason = "setup must be the first message and only the first"
    assert refusal(Wire(Settings().profile), {"realtimeInput": {"text": "hello"}}) == (1007, reason)
    assert refusal(ready(), setup_frame()) == (1007, reason)


def test_realtime_input_in_all_its_forms() -> None:
    wire = ready(realtimeInputConfig={"automaticActivityDetection": {"disabled": True}})
    sound = b"\xff\xd8\xfb\xff"
    urlsafe = base64.urlsafe_b64encode(sound).decode()
    assert "_" in urlsafe or "-" in urlsafe
    assert wire.receive({"realtime_input": {"audio": {"data": urlsafe, "mime_type": "audio/pcm;rate=16000"}}}) == [
        Audio(sound, 16_000)
    ]
    standard = base64.b64encode(sound).decode()
    assert wire.receive({"realtimeInput": {"mediaChunks": [{"data": standard, "mimeType": "audio/pcm"}]}}) == [
        Audio(sound, 16_000)
    ]
    picture = {"data": standard, "mimeType": "image/jpeg"}
    assert wire.receive({"realtime_input": {"media_chunks": [picture]}}) == []
    assert wire.receive({"realtime_input": {"video": picture}}) == []
    assert wire.receive({"realtimeInput": {"text": "hello"}}) == [Text("hello")]
    assert wire.receive({"realtimeInput": {"activityStart": {}}}) == [Activity("start")]
    assert wire.receive({"realtimeInput": {"activityEnd": {}}}) == [Activity("end")]
    assert wire.receive({"realtimeInput": {"audioStreamEnd": True}}) == [Activity("stream_end")]


def test_the_declared_rate_counts_and_stays() -> None:
    wire = ready()
    (audio,) = wire.receive({"realtimeInput": {"audio": {"data": "", "mimeType": "audio/pcm;rate=24000"}}})
    assert audio == Audio(b"", 24_000)
    code, reason = refusal(wire, {"realtimeInput": {"audio": {"data": "", "mimeType": "audio/pcm;rate=16000"}}})
    assert code == 1007 and "Sample rate changed" in reason


@pytest.mark.parametrize("kind", ["audio/wav", "audio/pcm;rate=fast", "audio/pcm;rate=1", "image/png"])
def test_audio_that_is_no_pcm_is_refused(kind: str) -> None:
    assert refusal(ready(), {"realtimeInput": {"audio": {"data": "", "mimeType": kind}}})[0] == 1007


def test_activity_marks_need_the_detection_switched_off() -> None:
    frame = {"realtimeInput": {"activityStart": {}}}
    code, reason = refusal(ready(LIVE), frame)
    assert code == 1007 and reason.startswith("Explicit activity control is not supported")
    assert ready(THINKING).receive(frame) == []  # silently ignored there [FIELD 2026-09-19]


def test_client_content_keeps_roles_and_order() -> None:
    turns = [
        {"role": "user", "parts": [{"text": "one"}, {"text": "hidden", "thought": True}, {"text": "two"}]},
        {"role": "model", "parts": [{"text": "three"}]},
        {"parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]},
    ]
    assert ready().receive({"client_content": {"turns": turns, "turn_complete": True}}) == [
        Content((("user", "one\ntwo"), ("model", "three"), ("user", "")), True)
    ]
    assert ready().receive({"clientContent": {}}) == [Content((), False)]


def test_context_update_changes_only_what_is_there() -> None:
    wire = ready(tools=declared())
    assert wire.receive({"contextUpdate": {"systemInstruction": {"parts": [{"text": "New."}]}}}) == [
        ContextUpdate("New.", None)
    ]
    assert "get_order_status" in wire.tools
    assert wire.receive({"contextUpdate": {"tools": {"tools": []}}}) == [ContextUpdate(None, ())]
    assert wire.tools == {}
    assert refusal(ready(LEGACY), {"contextUpdate": {"tools": {"tools": declared("NON_BLOCKING")}}})[0] == 1007


# The wire: declarations


def test_declarations_come_out_as_json_schema_from_either_field() -> None:
    schema = {"type": "object", "properties": {"day": {"type": "string", "enum": ["MON"]}}, "required": ["day"]}
    one = ready(tools=[{"functionDeclarations": [{"name": "f", "parametersJsonSchema": schema}]}]).tools["f"]
    upper = {"type": "OBJECT", "properties": {"day": {"type": "STRING", "enum": ["MON"]}}, "required": ["day"]}
    two = ready(tools=[{"function_declarations": [{"name": "f", "parameters": upper}]}]).tools["f"]
    assert one == two and one.parameters == schema


@pytest.mark.parametrize(
    "declaration",
    [
        {},
        {"name": "9lives"},
        {"name": "f", "parameters": {"type": "OBJECT"}, "parametersJsonSchema": {}},
        {"name": "f", "parameters": {"type": "OBJECT", "$schema": "x"}},
        {"name": "f", "parameters": {"type": "STRING"}},
        {"name": "f", "parametersJsonSchema": {"properties": {"a": 1}}},
        {"name": "f", "parametersJsonSchema": [1]},
        {"name": "f", "behavior": "SOMETIMES"},
        {"name": "f", "strict": True},
    ],
)
def test_a_bad_declaration_closes_1007(declaration: dict[str, Any]) -> None:
    assert at_setup(tools=[{"functionDeclarations": [declaration]}])[0] == 1007


def test_a_function_is_declared_once_and_only_search_is_built_in() -> None:
    assert "Duplicate" in at_setup(tools=[{"functionDeclarations": [ORDER_TOOL, ORDER_TOOL]}])[1]
    assert "codeExecution" in at_setup(tools=[{"codeExecution": {}}])[1]
    assert ready(tools=[{"googleSearch": {}}]).tools == {}


# The wire: what each model accepts (google.md §2 and §5.9)


def test_an_unknown_model_is_named_the_known_ones() -> None:
    code, reason = at_setup("gemini-9-live")
    assert code == 1008 and len(reason.encode()) <= 123, "longer than a close frame can carry"
    for name in (each for each in models() if provider(each) == "gemini-live"):
        assert name.removeprefix("gemini-") in reason
    assert at_setup("gpt-realtime")[0] == 1008
    assert refusal(Wire(Settings().profile), {"setup": {}})[0] == 1008


@pytest.mark.parametrize(
    ("model", "behavior", "effective"),
    [
        (NATIVE, None, "blocking"),
        (NATIVE, "BLOCKING", "blocking"),
        (NATIVE, "NON_BLOCKING", "non_blocking"),
        (LEGACY, None, "blocking"),
        (LEGACY, "UNSPECIFIED", "blocking"),
        (LEGACY, "NON_BLOCKING", None),
        (LEGACY, "BLOCKING", None),
        (LIVE, None, "non_blocking"),
        (LIVE, "BLOCKING", "blocking"),
        (LIVE, "NON_BLOCKING", "non_blocking"),
        (THINKING, None, "non_blocking"),
        (THINKING, "NON_BLOCKING", "non_blocking"),
        (THINKING, "BLOCKING", None),
    ],
)
def test_case_39_behavior_in_declarations(model: str, behavior: str | None, effective: str | None) -> None:
    if effective is None:
        code, reason = at_setup(model, tools=declared(behavior))
        assert code == 1007 and "not supported for this model" in reason
    else:
        assert ready(model, tools=declared(behavior)).tools["get_order_status"].behavior == effective


def test_contradictory_claims_are_a_setting() -> None:
    wire = Wire(Settings(claims={"default_behavior": "blocking"}).profile)
    wire.receive(setup_frame(LIVE, tools=declared()))
    assert wire.tools["get_order_status"].behavior == "blocking"
    unfit = Wire(Settings(claims={"fillers": "sometimes"}).profile)
    assert refusal(unfit, setup_frame(LIVE))[0] == 1011


@pytest.mark.parametrize(
    ("model", "thinking", "reason"),
    [
        (NATIVE, {"thinkingBudget": 0}, None),
        (NATIVE, {"thinkingLevel": "LOW"}, "Thinking level is not supported for this model."),
        (LEGACY, {"thinkingLevel": "MINIMAL"}, None),
        (LEGACY, {"thinking_level": "HIGH", "include_thoughts": True}, None),
        (LEGACY, {"thinkingLevel": "XHIGH"}, "Thinking level XHIGH is not supported for this model."),
        (LIVE, {"thinkingLevel": "LOW"}, "Thinking level is not supported for this model."),
        (LIVE, {"includeThoughts": False}, "Thinking level is not supported for this model."),
        (THINKING, {"thinkingLevel": "LOW"}, None),
        (THINKING, {"thinkingLevel": "MINIMAL"}, "Thinking level MINIMAL is not supported for this model."),
        (THINKING, {"includeThoughts": True}, "Thinking level must be specified for this model"),
        (THINKING, None, "Thinking level must be specified for this model"),
    ],
)
def test_thinking(model: str, thinking: dict[str, Any] | None, reason: str | None) -> None:
    config = {} if thinking is None else {"thinkingConfig": thinking}
    if reason is None:
        ready(model, generationConfig=config)
    else:
        assert at_setup(model, generationConfig=config) == (1007, reason)


@pytest.mark.parametrize(
    ("model", "value", "accepted"),
    [
        (NATIVE, True, True), (NATIVE, False, True), (LEGACY, True, False), (LEGACY, False, True),
        (LIVE, True, True), (LIVE, False, False), (THINKING, True, True), (THINKING, False, False),
    ],
)  # fmt: skip
def test_proactive_audio(model: str, value: bool, accepted: bool) -> None:
    if accepted:
        ready(model, proactivity={"proactiveAudio": value})
    else:
        assert at_setup(model, proactivity={"proactiveAudio": value})[0] == 1007


def test_affective_dialog() -> None:
    wanted = {"enableAffectiveDialog": True}
    ready(NATIVE, generationConfig=wanted).receive({"realtimeInput": {"text": "hello"}})
    assert at_setup(LEGACY, generationConfig=wanted) == (1007, "Request contains an invalid argument.")
    opened = ready(LIVE, generationConfig=wanted)  # opens, and closes on the first send
    assert refusal(opened, {"realtimeInput": {"text": "hello"}})[0] == 1007


def test_native_audio_models_only_speak() -> None:
    for modalities in (["TEXT"], ["AUDIO", "TEXT"]):
        assert at_setup(generationConfig={"responseModalities": modalities}) == (
            1007,
            "Cannot extract voices from a non-audio request.",
        )


# The wire: results


def answer_to(call_id: str, **fields: Any) -> dict[str, Any]:
    response = {"id": call_id, "name": "get_order_status", "response": {"output": "fine"}, **fields}
    return {"toolResponse": {"functionResponses": [response]}}


def with_call(model: str, behavior: str | None = None) -> tuple[Wire, str]:
    wire = ready(model, tools=declared(behavior))
    return wire, wire.open_call("get_order_status")


@pytest.mark.parametrize("scheduling", ["SILENT", "WHEN_IDLE", "INTERRUPT"])
@pytest.mark.parametrize("model", ALL)
def test_scheduling_by_model(model: str, scheduling: str) -> None:
    wire, call_id = with_call(model, "NON_BLOCKING" if model == NATIVE else None)
    if model in (NATIVE, LIVE):
        assert wire.receive(answer_to(call_id, scheduling=scheduling)) == [
            Result(call_id, {"output": "fine"}, scheduling.lower(), True)  # type: ignore[arg-type]
        ]
    else:
        reason = "Function response scheduling is not supported for this model."
        assert refusal(wire, answer_to(call_id, scheduling=scheduling)) == (1007, reason)


def test_case_41_scheduling_is_ignored_on_blocking_calls() -> None:
    for scheduling in ("SILENT", "WHEN_IDLE", "INTERRUPT"):
        wire, call_id = with_call(NATIVE, "BLOCKING")
        assert wire.receive(answer_to(call_id, scheduling=scheduling)) == [Result(call_id, {"output": "fine"}, None, True)]


@pytest.mark.parametrize("spelling", ["INTERRUPTED", "IMMEDIATELY", "interrupt"])
def test_case_38_a_scheduling_value_that_is_none(spelling: str) -> None:
    wire, call_id = with_call(LIVE)
    assert refusal(wire, answer_to(call_id, scheduling=spelling)) == (
        1007,
        f"Invalid value at 'tool_response.function_responses[0].scheduling' (Scheduling), \"{spelling}\"",
    )


def test_every_answer_needs_a_known_id_and_counts_once() -> None:
    wire, call_id = with_call(LIVE)
    assert refusal(wire, {"toolResponse": {"functionResponses": [{"name": "get_order_status", "response": {}}]}})[0] == 1007
    assert refusal(wire, {"toolResponse": {}})[0] == 1007
    assert refusal(wire, answer_to("call_0099"))[0] == 1008
    assert len(wire.receive(answer_to(call_id))) == 1
    assert wire.receive(answer_to(call_id)) == []  # case 21: a second answer ends nothing
    cancelled = wire.open_call("get_order_status")
    wire.settle(cancelled)
    assert wire.receive(answer_to(cancelled)) == []


def test_a_call_that_continues_stays_open() -> None:
    wire, call_id = with_call(LIVE)
    (interim,) = wire.receive(answer_to(call_id, willContinue=True))
    (last,) = wire.receive(answer_to(call_id, will_continue=False))
    assert isinstance(interim, Result) and isinstance(last, Result)
    assert (interim.final, last.final) == (False, True)
    wire, call_id = with_call(NATIVE, "BLOCKING")
    (only,) = wire.receive(answer_to(call_id, willContinue=True))  # ignored on BLOCKING calls
    assert isinstance(only, Result) and only.final


# Doubles: what is said is written into the samples, so that the tests say when somebody speaks


RATE = 16_000
SAYINGS = {
    1: Utterance("Where is order OD-1?", "get_order_status", {"order_id": "OD-1"}, "en", "order", True, 1.0),
    2: Utterance("What are your opening hours?", "opening_hours", {}, "en", "hours", True, 1.0),
    3: Utterance("Mm-hm.", "backchannel", {}, "en", "mm_hm", True, 0.4),
    4: Utterance("", "", {}, "en", "", False, 0.4),  # noise the detector took for speech
    5: Utterance("Stock and shipping?", "check_stock+get_shipping", {"item": "kettle"}, "en", "both", True, 1.0),
    6: Utterance("Any news?", "any_news", {}, "en", "news", True, 0.6),
}
ORDER, HOURS, BACKCHANNEL, MUMBLE, BOTH, NEWS = SAYINGS
HUM = 100  # a sound that is no speech


class ScriptedEars:
    """Ears for audio whose samples name the utterance: 0 is silence, `HUM` is noise."""

    def __init__(self, _clips: Any, rate: int, *, silence_ms: int, prefix_ms: int, threshold: float) -> None:
        self.rate, self.silence_ms, self.automatic = rate, silence_ms, True
        self.fed_ms = self.buffered_ms = 0.0
        self._code = self._quiet_ms = 0

    @property
    def speaking(self) -> bool:
        return self._code > 0 and self.automatic

    def feed(self, pcm: bytes) -> list[Started | Ended]:
        step = len(pcm) / 2 / self.rate * 1000
        self.fed_ms += step
        self.buffered_ms += step
        code = int.from_bytes(pcm[:2], "little") if pcm else 0
        if not self.automatic:
            self._code = code or self._code
            return []
        if code in SAYINGS:
            was, self._code, self._quiet_ms = self._code, code, 0
            return [] if was else [Started(round(self.fed_ms))]
        self._quiet_ms += round(step)
        if self._code and self._quiet_ms >= self.silence_ms:
            return [Ended(round(self.fed_ms), self.commit())]
        return []

    def commit(self) -> Utterance:
        utterance, self._code, self.buffered_ms = SAYINGS[self._code], 0, 0.0
        return utterance

    def clear(self) -> None:
        self.buffered_ms = 0.0


class SpelledVoice:
    """Two characters every 100 ms."""

    def __init__(self, _language: str) -> None: ...

    def pieces(self, text: str, chunk_ms: int = 100) -> list[tuple[str, bytes]]:
        assert chunk_ms == 100
        return [(text[at : at + 2], bytes(4800)) for at in range(0, len(text), 2)]


def spoken_seconds(text: str) -> float:
    return len(SpelledVoice("en").pieces(text)) / 10


@cache
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client


@cache
def sdk() -> genai.Client:
    return genai.Client(api_key="x", http_options={"async_client_args": {"ssl": tls()[1]}})


@dataclass
class Log:
    """What the client of one conversation saw, by loop time."""

    messages: list[tuple[float, types.LiveServerMessage]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)  # the server's frames as they left
    answered_at: list[float] = field(default_factory=list)
    error: errors.APIError | None = None

    def times(self, wanted: Callable[[types.LiveServerMessage], Any]) -> list[float]:
        return [at for at, message in self.messages if wanted(message)]

    def content(self, name: str) -> list[float]:
        return self.times(lambda m: m.server_content and getattr(m.server_content, name))

    def calls(self) -> list[tuple[float, types.FunctionCall]]:
        return [
            (at, call) for at, m in self.messages if m.tool_call for call in m.tool_call.function_calls or []
        ]

    def cancelled(self) -> list[str]:
        return [each for _, m in self.messages if m.tool_call_cancellation for each in m.tool_call_cancellation.ids or []]

    def turns(self) -> list[tuple[float, str]]:
        """When each turn that had words was first heard of, and its words."""
        turns: list[tuple[float, str]] = []
        start, words = None, ""
        for at, message in self.messages:
            content = message.server_content
            start = at if message.data and start is None else start
            if content and content.output_transcription:
                words += content.output_transcription.text or ""
            if content and content.turn_complete:
                turns += [(start, words)] if start is not None else []
                start, words = None, ""
        return turns

    def said(self) -> list[str]:
        return [words for _, words in self.turns()]

    def order(self) -> list[str]:
        """The kinds of messages after the setup, runs of audio and transcripts as one."""
        kinds: list[str] = []
        for frame in self.sent[1:]:
            for key, body in frame.items():
                names = list(body) if key == "serverContent" else [key]
                for name in names:
                    if name not in ("outputTranscription", "usageMetadata") and (not kinds or kinds[-1] != name):
                        kinds.append(name)
        return kinds

    def statuses(self) -> list[str]:
        content = [frame["serverContent"] for frame in self.sent if "serverContent" in frame]
        return [each["interactionStatus"] for each in content if "interactionStatus" in each]


def converse(
    model: str,
    sayings: list[tuple[float, int, float]],
    *,
    seconds: float = 20.0,
    tool: Callable[[types.FunctionCall], list[tuple[float, dict[str, Any]]]] | None = None,
    actions: list[tuple[float, Callable[[Any], Any]]] | None = None,
    behavior: str | None = None,
    tools: tuple[dict[str, Any], ...] = (ORDER_TOOL, STOCK_TOOL, SHIPPING_TOOL),
    config: dict[str, Any] | None = None,
    streams: bool = True,
    **options: Any,
) -> Log:
    """Run one conversation through the SDK.

    `sayings`: (start, code, seconds); `tool` says when, in seconds from the start, a call gets which response.
    """
    log = Log()
    log_settings = Settings(**options)

    def make(connection: Any) -> Endpoint:
        send = connection.send

        def tapped(frame: dict[str, Any]) -> None:
            log.sent.append(frame)
            send(frame)

        connection.send = tapped
        return Endpoint(connection, log_settings, ears=ScriptedEars, mind=Mind, voice=SpelledVoice)  # type: ignore[arg-type]

    async def main() -> None:
        async with Server(lambda connection: make if serves(connection.path) else None, tls=lambda: tls()[0]) as server:
            declarations = [{**each, **({"behavior": behavior} if behavior else {})} for each in tools]
            wanted: dict[str, Any] = {
                "http_options": {"base_url": f"https://127.0.0.1:{server.port}"},
                "response_modalities": ["AUDIO"],
                "tools": [{"function_declarations": declarations}],
                "output_audio_transcription": {},
                "input_audio_transcription": {},
                **({"thinking_config": {"thinking_level": "LOW"}} if model == THINKING else {}),
                **(config or {}),
            }
            async with sdk().aio.live.connect(model=model, config=wanted) as session:
                await talk(session)

    async def talk(session: Any) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        tasks = [loop.create_task(read(session, start))]
        if streams:
            tasks.append(loop.create_task(speak(session, start)))
        tasks += [loop.create_task(act(session, start, at, action)) for at, action in actions or []]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, errors.APIError):
                log.error = result
            elif isinstance(result, Exception) and log.error is None:
                raise result

    async def read(session: Any, start: float) -> None:
        loop, answers = asyncio.get_running_loop(), set()
        while True:
            async for message in session.receive():
                log.messages.append((round(loop.time() - start, 3), message))
                for call in (message.tool_call.function_calls or []) if message.tool_call and tool else []:
                    for at, response in tool(call):  # type: ignore[misc]
                        answers.add(loop.create_task(answer(session, start, call, at, response)))

    async def answer(session: Any, start: float, call: types.FunctionCall, at: float, response: dict[str, Any]) -> None:
        await asyncio.sleep(start + at - asyncio.get_running_loop().time())
        log.answered_at.append(round(asyncio.get_running_loop().time() - start, 3))
        given = {"response": {"status": "ok", "summary": ANSWER}, **response}
        await session.send_tool_response(function_responses=types.FunctionResponse(id=call.id, name=call.name, **given))

    async def speak(session: Any, start: float) -> None:
        loop = asyncio.get_running_loop()
        last = max((at + length for at, _, length in sayings), default=0.0)
        for number in range(round((last + 1.2) * 10)):  # then the microphone is off; silence would change nothing
            now = number / 10
            code = next((code for at, code, length in sayings if at <= now < at + length), 0)
            pcm = code.to_bytes(2, "little") * (RATE // 10)
            await asyncio.sleep(start + now - loop.time())
            await session.send_realtime_input(audio=types.Blob(data=pcm, mime_type=f"audio/pcm;rate={RATE}"))

    async def act(session: Any, start: float, at: float, action: Callable[[Any], Any]) -> None:
        await asyncio.sleep(start + at - asyncio.get_running_loop().time())
        await action(session)

    run_blocking(main)
    return log




def at(when: float, **response: Any) -> Callable[[types.FunctionCall], list[tuple[float, dict[str, Any]]]]:
    """Every call is answered at the same moment."""
    return lambda _call: [(when, response)]


def near(value: float, wanted: float, by: float = 0.35) -> bool:
    return abs(value - wanted) <= by


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
    log = converse(LIVE, [(1.0, HOURS, 1.0)], seconds=8, config={"output_audio_transcription": None, "input_audio_transcription": None})
    assert log.order() == ["modelTurn", "generationComplete", "turnComplete"]
    assert not any("outputTranscription" in frame.get("serverContent", {}) for frame in log.sent)


def test_the_same_seed_gives_the_same_session_and_another_seed_another() -> None:
    def times(seed: int) -> list[float]:
        log = converse(LIVE, [(1.0, ORDER, 1.0), (5.0, HOURS, 1.0)], seconds=12, tool=at(6.0), seed=seed)
        return [when for when, _ in log.messages]

    assert times(1) == times(1) != times(2)


# Results: what happens with one, by behavior, scheduling and who speaks when it comes


# The caller asks for an order at 1 s; the call goes out at about 3.7 s. In "caller" they speak from 6 to 8 s and the result
# comes at 7; in "model" they ask for the opening hours at 5 s, the answer is heard from 7.5 to 10 s and the result comes at 9.
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


@pytest.mark.parametrize("scheduling", ["SILENT", "WHEN_IDLE", "INTERRUPT"])
def test_case_41_a_blocking_call_is_always_answered_aloud(scheduling: str) -> None:
    logs = [
        converse(NATIVE, [(1.0, ORDER, 1.0)], seconds=12, behavior="BLOCKING", tool=at(6.0, **given))
        for given in ({}, {"scheduling": scheduling})
    ]
    assert logs[0].sent == logs[1].sent and logs[0].said() == [ANSWER]


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


PREAMBLES = {"system_instruction": "# Preambles\n- get_order_status: I will look that up for you."}


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


def test_case_05_nothing_is_said_until_a_blocking_call_is_answered() -> None:
    log = converse(LEGACY, [(1.0, ORDER, 1.0), (6.0, HOURS, 1.0), (12.0, NEWS, 1.0)], seconds=20)
    assert [call.id for _, call in log.calls()] == ["call_0001"] and log.turns() == []
    heard = [frame for frame in log.sent if "inputTranscription" in frame.get("serverContent", {})]
    assert len(heard) == 3  # it listens all the time
    answered = converse(LEGACY, [(1.0, ORDER, 1.0), (6.0, HOURS, 1.0)], seconds=20, tool=at(12.0, response={"error": "refused"}))
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


def test_case_42_a_cancelled_call_is_not_answered_for() -> None:
    log = converse(
        LIVE,
        [(1.0, ORDER, 1.0)],
        seconds=12,
        behavior="BLOCKING",
        actions=[(6.0, lambda session: session.send_realtime_input(text="What are your opening hours?"))],
        tool=at(6.0),  # its answer crosses the cancellation
    )
    assert log.error is None and len(log.cancelled()) <= 1 and log.said()


# Barge-in


REPEAT = 7
SAYINGS[REPEAT] = Utterance("Say again?", "repeat", {}, "en", "repeat", True, 0.5)


def interrupted_answer(at_: float, *more: tuple[float, int, float], **options: Any) -> Log:
    result = at(5.0, response={"status": "ok", "summary": LONG})
    return converse(LIVE, [(1.0, ORDER, 1.0), (at_, BACKCHANNEL, 0.4), *more], seconds=18, tool=result, **options)


def test_case_19_barge_in_stops_the_model_at_once() -> None:
    log = interrupted_answer(8.0)  # the answer is generated by 7 s and heard from 5.8 to 10.6 s
    assert log.content("interrupted") == [8.0]
    assert log.content("turn_complete")[-1] == 8.0
    assert log.order()[-4:] == ["generationComplete", "interrupted", "turnComplete", "inputTranscription"]


def test_barge_in_while_generating_leaves_no_generation_complete() -> None:
    log = interrupted_answer(6.2)
    assert log.content("interrupted") == [6.2]
    before = [when for when in log.content("generation_complete") if when > 5.0]
    assert before == [] and LONG not in log.said()[0]


def test_what_was_not_heard_was_not_said() -> None:
    log = interrupted_answer(8.0, (10.0, REPEAT, 0.5))
    start = log.turns()[0][0]
    repeated = log.said()[-1]
    assert LONG.startswith(repeated) and near(spoken_seconds(repeated), 8.0 - start, 0.11)


def test_activity_handling_can_forbid_barge_in() -> None:
    config = {"realtime_input_config": {"activity_handling": "NO_INTERRUPTION"}}
    log = interrupted_answer(8.0, (12.5, HOURS, 1.0), config=config)
    assert log.content("interrupted") == [] and log.said()[0] == LONG


def test_barge_in_leaves_a_non_blocking_call_alone() -> None:
    log = converse(LIVE, [(1.0, ORDER, 1.0), (3.9, BACKCHANNEL, 0.4)], seconds=14, config=PREAMBLES, tool=at(9.0))
    assert len(log.content("interrupted")) == 1 and log.cancelled() == [] and log.said()[-1] == ANSWER


@pytest.mark.parametrize(("model", "cancelled"), [(NATIVE, False), (LIVE, True)])
def test_case_23_barge_in_over_the_announcement_of_a_blocking_call(model: str, cancelled: bool) -> None:
    spoken = at(4.6) if model == NATIVE else at(9.0)
    log = converse(model, [(1.0, ORDER, 1.0), (4.2, HOURS, 0.5)], seconds=14, behavior="BLOCKING", config=PREAMBLES, tool=spoken)
    assert len(log.content("interrupted")) >= 1
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
    assert len(answered.turns()) == 1 and "news" in answered.said()[0]  # only what the model has not answered yet


def test_instructions_and_tools_can_change_during_a_session() -> None:
    async def change(session: Any) -> None:
        await session.send_context_update(tools=[])

    log = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=8, actions=[(0.2, change)])
    assert log.calls() == [] and log.said() == ["I cannot do that."]


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
    log = converse(LIVE, [(1.0, HOURS, 1.0), (8.0, ORDER, 1.0)], seconds=20, config={"session_resumption": {}}, tool=at(14.0))
    assert resumptions(log) == [(True, "simulated-handle-0001"), (False, ""), (True, "simulated-handle-0002")]
    assert log.order()[-1] == "sessionResumptionUpdate"
    assert resumptions(converse(LIVE, [(1.0, HOURS, 1.0)], seconds=9)) == []


class Socket:
    """A connection without a socket: what the server sends and how it closes."""

    def __init__(self, server: Any) -> None:
        self.server, self.path, self.query, self.headers = server, "", {}, {}
        self.sent: list[dict[str, Any]] = []
        self.close_code: int | None = None
        self.reason = ""

    def send(self, frame: dict[str, Any]) -> None:
        if self.close_code is None:
            self.sent.append(json.loads(json.dumps(frame)))

    def close(self, code: int, reason: str = "") -> None:
        if self.close_code is None:
            self.close_code, self.reason = code, reason


class SomeServer: ...


def alone(scene: Callable[[Callable[..., tuple[Endpoint, Socket]]], Any], **options: Any) -> None:
    """Run `scene(connect)` on a virtual loop; `connect(frame)` opens an endpoint without a socket and sends the frame."""
    server = SomeServer()

    async def main() -> None:
        def connect(frame: Any = None) -> tuple[Endpoint, Socket]:
            socket = Socket(server)
            endpoint = Endpoint(socket, Settings(**options), ears=ScriptedEars, voice=SpelledVoice)  # type: ignore[arg-type]
            endpoint.opened()
            if frame is not None:
                endpoint.received(frame)
            return endpoint, socket

        await scene(connect)

    loop = new_loop("virtual")
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def resuming(handle: str = "", **fields: Any) -> dict[str, Any]:
    return setup_frame(LIVE, tools=declared(), sessionResumption={"handle": handle} if handle else {}, **fields)


def ask(text: str) -> dict[str, Any]:
    return {"realtimeInput": {"text": text}}


def calls_of(socket: Socket) -> list[dict[str, Any]]:
    return [call for frame in socket.sent if "toolCall" in frame for call in frame["toolCall"]["functionCalls"]]


def words_of(socket: Socket) -> str:
    texts = [frame["serverContent"].get("outputTranscription", {}) for frame in socket.sent if "serverContent" in frame]
    return "".join(each.get("text", "") for each in texts)


FIND_ORDER = "Hi, where is my order OD-20260818-001?"


def test_case_44_a_resumed_session_knows_what_was_said_and_its_calls_in_flight() -> None:
    async def scene(connect: Callable[..., tuple[Endpoint, Socket]]) -> None:
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
    async def scene(connect: Callable[..., tuple[Endpoint, Socket]]) -> None:
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
    async def scene(connect: Callable[..., tuple[Endpoint, Socket]]) -> None:
        for handle, expected in [
            ("simulated-handle-0009", (1008, "BidiGenerateContent session not found")),
            ("made up", (1007, "Invalid session handle")),
        ]:
            _, socket = connect(resuming(handle))
            assert (socket.close_code, socket.reason) == expected

    alone(scene)


def test_transparent_resumption_counts_the_frames_consumed() -> None:
    async def scene(connect: Callable[..., tuple[Endpoint, Socket]]) -> None:
        endpoint, socket = connect(setup_frame(LIVE, sessionResumption={"transparent": True}))
        endpoint.received(ask("And what are your opening hours?"))
        await asyncio.sleep(8)
        assert socket.sent[-1]["sessionResumptionUpdate"]["lastConsumedClientMessageIndex"] == "2"

    alone(scene)


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


@pytest.mark.parametrize("delay", [0.001, 0.005, 0.05])
def test_case_22_a_result_just_after_the_turn(delay: float) -> None:
    def tool(_call: types.FunctionCall) -> list[tuple[float, dict[str, Any]]]:
        return [(turn_complete + delay, {})]

    def silent(_call: types.FunctionCall) -> list[tuple[float, dict[str, Any]]]:
        return [(turn_complete + delay, {"scheduling": "SILENT"})]

    plain = converse(LIVE, [(1.0, ORDER, 1.0)], seconds=8, config=PREAMBLES)
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
    with pytest.raises(TypeError):  # what the SDK does with a lone unknown key (google.md §1.5)
        faulty([], garbage_after_s=1.0)


def test_case_13_one_pass_of_the_sdk_is_one_turn() -> None:
    log = converse(LIVE, [(1.0, HOURS, 1.0), (8.0, ORDER, 1.0)], seconds=14)
    completes = [index for index, (_, m) in enumerate(log.messages) if m.server_content and m.server_content.turn_complete]
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
                async for message in session.receive():
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
    ("LiveServerContent", "url_context_metadata"): "URL context is not supported by these models (google.md §2)",
    ("LiveServerContent", "turn_complete_reason"): "reports refusals and malformed calls, which the mind never makes",
    ("LiveServerContent", "waiting_for_input"): "no source says when the service sends it",
    ("LiveServerContent", "interim_input_transcription"): "utterances are recognised as a whole, at their end",
    ("LiveServerSetupComplete", "voice_consent_signature"): "replicated voices are not simulated",
    ("FunctionCall", "partial_args"): "Cloud only (google.md §1.4)",
    ("FunctionCall", "will_continue"): "Cloud only (google.md §1.4)",
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
    sent += converse(THINKING, [(1.0, HOURS, 1.0), (4.5, ORDER, 1.0)], seconds=12, tool=at(9.0), session_seconds=11).sent
    return [*sent, frames.resumption_update("handle", 7), frames.calls_in_turn([frames.function_call("a", "b", {"c": 1})])]


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


json_values = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats(allow_nan=False)
    | strategies.text(max_size=8),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
NAMES = [
    "setup", "client_content", "clientContent", "realtimeInput", "tool_response", "contextUpdate", "model", "tools",
    "functionDeclarations", "name", "behavior", "parameters", "parametersJsonSchema", "properties", "required", "turns",
    "turnComplete", "parts", "text", "role", "audio", "data", "mimeType", "activityStart", "activityEnd", "functionResponses",
    "id", "response", "scheduling", "willContinue", "systemInstruction", "sessionResumption", "handle", "generationConfig",
    "realtimeInputConfig", "automaticActivityDetection", "disabled", "silenceDurationMs", "audioStreamEnd", "status", "say",
]  # fmt: skip
VALUES = [
    f"models/{LIVE}", "NON_BLOCKING", "get_order_status", "user", "model", FIND_ORDER, " ", "audio/pcm;rate=16000", "AAEC",
    "call_0001", "WHEN_IDLE", "INTERRUPT", "superseded", "object", "OBJECT", True, False, 0, 500, -1, {}, [], None,
]  # fmt: skip
plausible = strategies.recursive(
    strategies.sampled_from(VALUES),
    lambda inner: strategies.lists(inner, max_size=2) | strategies.dictionaries(strategies.sampled_from(NAMES), inner, max_size=4),
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


@settings(deadline=None, max_examples=150)
@given(
    first=plausible | strategies.just(resuming()) | strategies.just(setup_frame(LIVE, tools=declared("BLOCKING"))),
    more=strategies.lists(json_values | plausible | a_result | valid, max_size=6),
)
def test_nothing_a_client_sends_breaks_the_server(first: Any, more: list[Any]) -> None:
    async def scene(connect: Callable[..., tuple[Endpoint, Socket]]) -> None:
        raised: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: raised.append(context))
        endpoint, socket = connect(first)
        for frame in more:
            endpoint.received(frame)
            await asyncio.sleep(1.5)
        await asyncio.sleep(20)
        endpoint.closed()
        assert raised == []
        assert socket.close_code in (None, 1007, 1008, 1011)
        assert socket.sent or socket.close_code is not None

    alone(scene)
