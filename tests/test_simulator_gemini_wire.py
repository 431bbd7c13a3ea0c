"""The Gemini Live protocol without sockets: casing, types, and what each model accepts."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from gemini_talk import ALL, LEGACY, LIVE, NATIVE, ORDER_TOOL, THINKING, answer_to, declared, setup_frame

from voicekit.models import models, provider
from voicekit.simulator.settings import Settings
from voicekit.simulator.wire.gemini_live import Activity, Audio, Content, ContextUpdate, Result, Setup, Text, Wire
from voicekit.simulator.wire.gemini_schema import Refused


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
            "realtime_input_config": {
                "automatic_activity_detection": {"silence_duration_ms": 500, "prefix_padding_ms": 20}
            },
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


@pytest.mark.parametrize(
    "name", ["models/{}", "publishers/google/models/{}", "projects/p/locations/l/publishers/google/models/{}"]
)
def test_every_spelling_of_a_model_name(name: str) -> None:
    (setup,) = Wire(Settings().profile).receive({"setup": {"model": name.format(LIVE)}})
    assert isinstance(setup, Setup) and setup.model == LIVE


UNKNOWN = "Invalid JSON payload received. Unknown name "


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"bogus": {}}, f'{UNKNOWN}"bogus": Cannot find field.'),
        ({"realtimeInput": {"sound": 1}}, f"{UNKNOWN}\"sound\" at 'realtime_input': Cannot find field."),
        (
            {"clientContent": {"turns": [{"parts": [{"txt": ""}]}]}},
            f"{UNKNOWN}\"txt\" at 'client_content.turns[0].parts[0]': Cannot find field.",
        ),
        (
            {"clientContent": {"turnComplete": "yes"}},
            "Invalid value at 'client_content.turn_complete' (TYPE_BOOL), \"yes\"",
        ),
        ({"realtimeInput": {"text": 7}}, "Invalid value at 'realtime_input.text' (TYPE_STRING), 7"),
        ({"clientContent": {"turns": {}}}, "Invalid value at 'client_content.turns' (list), {}"),
        (
            {"realtimeInput": {"audio": {"data": "?!"}}},
            "Invalid value at 'realtime_input.audio.data' (TYPE_BYTES), Base64 decoding failed",
        ),
        ({"realtimeInput": []}, "Invalid value at 'realtime_input' (RealtimeInput), []"),
        ({}, "Request contains an invalid argument."),
        (None, "Invalid JSON payload received. Unexpected token."),
        ([], "Invalid JSON payload received. Unexpected token."),
    ],
)
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


# The wire: what each model accepts


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
        assert wire.receive(answer_to(call_id, scheduling=scheduling)) == [
            Result(call_id, {"output": "fine"}, None, True)
        ]


@pytest.mark.parametrize("spelling", ["INTERRUPTED", "IMMEDIATELY", "interrupt"])
def test_case_38_a_scheduling_value_that_is_none(spelling: str) -> None:
    wire, call_id = with_call(LIVE)
    assert refusal(wire, answer_to(call_id, scheduling=spelling)) == (
        1007,
        f"Invalid value at 'tool_response.function_responses[0].scheduling' (Scheduling), \"{spelling}\"",
    )


def test_every_answer_needs_a_known_id_and_counts_once() -> None:
    wire, call_id = with_call(LIVE)
    assert (
        refusal(wire, {"toolResponse": {"functionResponses": [{"name": "get_order_status", "response": {}}]}})[0]
        == 1007
    )
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
