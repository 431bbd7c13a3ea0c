"""The Realtime protocol without sockets: what is refused and how, the order of events, and that nothing breaks it."""

from __future__ import annotations

import base64
import json
import random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.realtime import RealtimeServerEvent

from voicekit.simulator.wire import g711
from voicekit.simulator.wire import openai_realtime as wire
from voicekit.simulator.wire.checks import Refused
from voicekit.simulator.wire.openai_schema import CLIENT_EVENTS

MS = bytes(48)  # one millisecond of PCM16 at 24 kHz


def b64(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


class Client:
    """Plays the client of a wire and keeps what the server sent, each frame as its JSON text would be read."""

    def __init__(self, **options: Any) -> None:
        self.frames: list[dict[str, Any]] = []
        self.wire = wire.Wire("gpt-realtime-2.1", self._received, reasoning_model=True, **options)

    def _received(self, frame: dict[str, Any]) -> None:
        self.frames.append(json.loads(json.dumps(frame)))

    def send(self, type_: Any, **fields: Any) -> Any:
        return self.wire.receive({"type": type_, **fields})

    def error(self, type_: Any, **fields: Any) -> dict[str, Any]:
        """Send what must be refused; returns the error."""
        before = len(self.frames)
        assert self.send(type_, **fields) is None
        (frame,) = self.frames[before:]
        assert frame["type"] == "error"
        error: dict[str, Any] = frame["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        return error

    def types(self, start: int = 0) -> list[str]:
        return [frame["type"] for frame in self.frames[start:]]

    def last(self, type_: str) -> dict[str, Any]:
        return next(frame for frame in reversed(self.frames) if frame["type"] == type_)

    def caller_says(self, text: str = "") -> Any:
        self.send("input_audio_buffer.append", audio=b64(MS * 500))
        self.wire.speech_started(0)
        self.wire.speech_stopped(500)
        item = self.wire.commit_input(0.5)
        if text:
            self.wire.transcribed(item, text, "whisper-1")
        return item

    def agent_says(self, *words: str, ms: int = 100) -> Any:
        """A complete spoken response, `ms` of audio for each word; returns its item."""
        response = self.wire.begin_response({})
        item = response.open_message()
        for word in words:
            response.say(word, MS * ms)
        self.wire.finish(response)
        return item

    def agent_calls(self, name: str = "check_stock", arguments: str = "{}") -> str:
        response = self.wire.begin_response({})
        call_id = self.wire.new_id("call")
        response.open_call(call_id, name)
        response.argue(arguments)
        self.wire.finish(response)
        return call_id

    def answer(self, call_id: str, output: str = "{}", **fields: Any) -> Any:
        item = {"type": "function_call_output", "call_id": call_id, "output": output, **fields}
        return self.send("conversation.item.create", item=item)


@pytest.fixture
def client() -> Client:
    return Client()


def user_text(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


# What is refused


def session(**fields: Any) -> dict[str, Any]:
    return {"session": {"type": "realtime", **fields}}


def heard(**fields: Any) -> dict[str, Any]:
    return session(audio={"input": fields})


REFUSALS: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("no.such.event", {}, "invalid_value", "type"),
    ("response.cancelled", {}, "invalid_value", "type"),
    ("transcription_session.update", {}, "invalid_value", "type"),
    ("session.update", {}, "missing_required_parameter", "session"),
    ("session.update", {"session": {"modalities": ["text"]}}, "missing_required_parameter", "session.type"),
    ("session.update", {"session": {"type": "transcription"}}, "invalid_value", "session.type"),
    ("session.update", session(temperature=0.8), "unknown_parameter", "session.temperature"),
    ("session.update", session(instructions=3), "invalid_type", "session.instructions"),
    ("session.update", session(instructions=None), "invalid_type", "session.instructions"),
    ("session.update", session(model="gpt-live-1"), "invalid_value", "session.model"),
    ("session.update", session(output_modalities=["text", "audio"]), "invalid_value", "session.output_modalities"),
    ("session.update", session(output_modalities=["video"]), "invalid_value", "session.output_modalities[0]"),
    ("session.update", session(max_output_tokens=0), "integer_below_min_value", "session.max_output_tokens"),
    ("session.update", session(max_output_tokens=9999), "integer_above_max_value", "session.max_output_tokens"),
    ("session.update", session(max_output_tokens=True), "invalid_type", "session.max_output_tokens"),
    ("session.update", session(max_output_tokens="many"), "invalid_value", "session.max_output_tokens"),
    ("session.update", session(tool_choice={"type": "allowed_tools"}), "invalid_value", "session.tool_choice.type"),
    ("session.update", session(tools=[{"name": "a"}]), "missing_required_parameter", "session.tools[0].type"),
    (
        "session.update",
        session(tools=[{"type": "function", "function": {"name": "a"}}]),
        "missing_required_parameter",
        "session.tools[0].name",
    ),
    (
        "session.update",
        session(tools=[{"type": "function", "name": "a", "strict": True}]),
        "unknown_parameter",
        "session.tools[0].strict",
    ),
    ("session.update", session(tools=[{"type": "function", "name": "a b"}]), "invalid_value", "session.tools[0].name"),
    (
        "session.update",
        session(audio={"output": {"speed": 2}}),
        "decimal_above_max_value",
        "session.audio.output.speed",
    ),
    ("session.update", heard(format="pcm16"), "invalid_type", "session.audio.input.format"),
    (
        "session.update",
        heard(format={"type": "audio/pcm", "rate": 16000}),
        "integer_below_min_value",
        "session.audio.input.format.rate",
    ),
    ("session.update", heard(noise_reduction="near_field"), "invalid_type", "session.audio.input.noise_reduction"),
    (
        "session.update",
        heard(turn_detection={"threshold": 0.5}),
        "missing_required_parameter",
        "session.audio.input.turn_detection.type",
    ),
    (
        "session.update",
        heard(turn_detection={"type": "server_vad", "threshold": 2}),
        "decimal_above_max_value",
        "session.audio.input.turn_detection.threshold",
    ),
    (
        "session.update",
        heard(turn_detection={"type": "server_vad", "threshold": float("nan")}),
        "invalid_type",
        "session.audio.input.turn_detection.threshold",
    ),
    (
        "session.update",
        heard(turn_detection={"type": "semantic_vad", "idle_timeout_ms": 6000}),
        "unknown_parameter",
        "session.audio.input.turn_detection.idle_timeout_ms",
    ),
    ("input_audio_buffer.append", {}, "missing_required_parameter", "audio"),
    ("input_audio_buffer.append", {"audio": "no base64"}, "invalid_value", "audio"),
    ("input_audio_buffer.append", {"audio": "äöü"}, "invalid_value", "audio"),
    ("input_audio_buffer.append", {"audio": ""}, "invalid_value", "audio"),
    ("input_audio_buffer.append", {"audio": b64(b"odd")}, "invalid_value", "audio"),
    ("input_audio_buffer.append", {"audio": b64(MS), "rate": 1}, "unknown_parameter", "rate"),
    ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty", None),
    ("conversation.item.create", {}, "missing_required_parameter", "item"),
    ("conversation.item.create", {"item": {}}, "missing_required_parameter", "item.type"),
    ("conversation.item.create", {"item": {"type": "mcp_call"}}, "invalid_value", "item.type"),
    ("conversation.item.create", {"item": user_text("x", phase="x")}, "unknown_parameter", "item.phase"),
    ("conversation.item.create", {"item": user_text("x"), "previous_item_id": 1}, "invalid_type", "previous_item_id"),
    (
        "conversation.item.create",
        {"item": user_text("x"), "previous_item_id": "item_9999"},
        "item_create_invalid_previous_item_id",
        "previous_item_id",
    ),
    (
        "conversation.item.create",
        {"item": {"type": "message", "role": "assistant", "content": [{"type": "output_audio", "transcript": "x"}]}},
        "missing_required_parameter",
        "item.content[0].text",
    ),
    (
        "conversation.item.create",
        {"item": {"type": "message", "role": "system", "content": [{"type": "text", "text": "x"}]}},
        "invalid_value",
        "item.content[0].type",
    ),
    (
        "conversation.item.create",
        {"item": {"type": "function_call_output", "output": "{}"}},
        "missing_required_parameter",
        "item.call_id",
    ),
    (
        "conversation.item.create",
        {"item": {"type": "function_call_output", "call_id": "c", "output": {"a": 1}}},
        "invalid_type",
        "item.output",
    ),
    ("conversation.item.retrieve", {"item_id": "item_9999"}, "item_retrieve_invalid_item_id", "item_id"),
    ("conversation.item.delete", {"item_id": "item_9999"}, "item_delete_invalid_item_id", "item_id"),
    (
        "conversation.item.truncate",
        {"item_id": "item_9999", "content_index": 0, "audio_end_ms": 0},
        "item_truncate_invalid_item_id",
        "item_id",
    ),
    ("conversation.item.truncate", {"item_id": "x", "audio_end_ms": 0}, "missing_required_parameter", "content_index"),
    (
        "conversation.item.truncate",
        {"item_id": "x", "content_index": 0, "audio_end_ms": 1.5},
        "invalid_type",
        "audio_end_ms",
    ),
    ("response.create", {"response": {"modalities": ["audio"]}}, "unknown_parameter", "response.modalities"),
    ("response.create", {"response": {"conversation": "conv_1"}}, "invalid_value", "response.conversation"),
    ("response.create", {"response": {"metadata": {"a": 1}}}, "invalid_type", "response.metadata.a"),
    (
        "response.create",
        {"response": {"metadata": {str(n): "" for n in range(17)}}},
        "object_above_max_properties",
        "response.metadata",
    ),
    (
        "response.create",
        {"response": {"input": [{"type": "item_reference", "id": "item_9999"}]}},
        "invalid_value",
        "response.input[0].id",
    ),
    ("response.cancel", {}, "response_cancel_not_active", None),
    ("response.cancel", {"response_id": "resp_0001"}, "response_cancel_not_active", None),
    ("output_audio_buffer.clear", {}, "invalid_value", "type"),
]


@pytest.mark.parametrize(("type_", "fields", "code", "param"), REFUSALS)
def test_a_bad_event_is_refused_with_the_vendors_code(
    client: Client, type_: str, fields: dict[str, Any], code: str, param: str | None
) -> None:
    before = json.dumps(client.wire.session)
    error = client.error(type_, event_id="mine", **fields)
    assert (error["code"], error["param"], error["event_id"]) == (code, param, "mine")
    assert json.dumps(client.wire.session) == before
    assert not client.wire.conversation.items
    client.send("session.update", session={"type": "realtime", "instructions": "still open"})
    assert client.last("session.updated")["session"]["instructions"] == "still open"


@pytest.mark.parametrize(
    ("frame", "code"),
    [(None, "invalid_json"), ([], "invalid_event"), ("session.update", "invalid_event"), ({}, "invalid_event")],
)
def test_what_is_no_event_is_refused(client: Client, frame: Any, code: str) -> None:
    assert client.wire.receive(frame) is None
    assert client.frames[-1]["error"]["code"] == code


def test_the_error_names_the_event_types_there_are(client: Client) -> None:
    message = client.error("no.such.event")["message"]
    assert all(f"'{type_}'" in message for type_ in CLIENT_EVENTS)


def test_event_id_of_a_wrong_type_is_not_echoed(client: Client) -> None:
    error = client.error("input_audio_buffer.clear", event_id=7)
    assert (error["code"], error["param"], error["event_id"]) == ("invalid_type", "event_id", None)


def test_a_schema_nested_without_end_is_refused(client: Client) -> None:
    parameters: dict[str, Any] = {}
    for _ in range(900):
        parameters = {"items": [parameters]}
    tool = {"type": "function", "name": "deep", "parameters": parameters}
    assert client.error("session.update", **session(tools=[tool]))["param"] == "session.tools[0].parameters.items"


def test_reasoning_options_are_refused_by_models_that_do_not_reason() -> None:
    plain = wire.Wire("gpt-realtime", lambda frame: frames.append(frame))
    frames: list[dict[str, Any]] = []
    for field in ({"reasoning": {"effort": "low"}}, {"parallel_tool_calls": False}):
        plain.receive({"type": "session.update", **session(**field)})
        assert frames[-1]["error"]["code"] == "invalid_value"
    plain.receive({"type": "response.create", "response": {"reasoning": {"effort": "low"}}})
    assert frames[-1]["error"]["param"] == "response.reasoning"
    assert "parallel_tool_calls" not in plain.session


# The session


def test_session_created_shows_defaults_and_says_simulated(client: Client) -> None:
    client.wire.open()
    (frame,) = client.frames
    shown = frame["session"]
    assert (frame["type"], shown["object"], shown["simulated"]) == ("session.created", "realtime.session", True)
    assert shown["model"] == "gpt-realtime-2.1"
    assert shown["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert shown["audio"]["input"]["transcription"] is None
    detection = shown["audio"]["input"]["turn_detection"]
    assert detection["type"] == "server_vad"
    assert detection["create_response"]
    assert detection["interrupt_response"]
    assert shown["parallel_tool_calls"] is True


def test_an_update_changes_what_it_names_and_echoes_the_effective_session(client: Client) -> None:
    tool = {"type": "function", "name": "check_stock", "description": "", "parameters": {"type": "object"}}
    client.send("session.update", **session(instructions="a", tools=[tool], model="gpt-realtime-2.1"))
    client.send(
        "session.update", **heard(turn_detection={"type": "semantic_vad"}, transcription={"model": "whisper-1"})
    )
    shown = client.last("session.updated")["session"]
    assert (shown["instructions"], shown["tools"]) == ("a", [tool])
    assert shown["audio"]["input"]["turn_detection"] == {
        "type": "semantic_vad",
        "eagerness": "auto",
        "create_response": True,
        "interrupt_response": True,
    }
    assert shown["audio"]["input"]["transcription"] == {"model": "whisper-1", "language": None, "prompt": None}
    client.send("session.update", **heard(turn_detection=None))
    client.send("session.update", **session(instructions="", tools=[]))
    shown = client.last("session.updated")["session"]
    assert (shown["instructions"], shown["tools"], shown["audio"]["input"]["turn_detection"]) == ("", [], None)
    assert shown["audio"]["input"]["transcription"]["model"] == "whisper-1"


def test_noise_reduction_keeps_the_strength_that_an_update_omits(client: Client) -> None:
    client.send("session.update", **heard(noise_reduction={"type": "near_field", "strength": 0.5}))
    client.send("session.update", **heard(noise_reduction={"type": "far_field"}))
    shown = client.last("session.updated")["session"]["audio"]["input"]["noise_reduction"]
    assert shown == {"type": "far_field", "strength": 0.5}


def test_the_voice_is_fixed_once_it_was_heard(client: Client) -> None:
    output = {"voice": "cedar"}
    assert isinstance(client.send("session.update", **session(audio={"output": output})), wire.ConfigChanged)
    response = client.wire.begin_response({})
    response.open_message()
    response.say("Hello.", MS * 100)
    assert (
        client.error("session.update", **session(audio={"output": {"voice": "ash"}}))["code"] == "cannot_update_voice"
    )
    client.wire.finish(response)
    error = client.error("session.update", **session(instructions="x", audio={"output": {"voice": "ash"}}))
    assert error["code"] == "cannot_update_voice"
    assert client.wire.session["instructions"] != "x"
    assert client.error("response.create", response={"audio": {"output": {"voice": "ash"}}})["code"] == (
        "cannot_update_voice"
    )
    assert isinstance(client.send("session.update", **session(audio={"output": output})), wire.ConfigChanged)


def test_a_declared_mcp_server_is_reported_as_out_of_reach(client: Client) -> None:
    tool = {"type": "mcp", "server_label": "shop", "server_url": "https://shop.example"}
    client.send("session.update", **session(tools=[tool]))
    assert client.types() == ["session.updated", "mcp_list_tools.in_progress", "mcp_list_tools.failed"]
    assert client.frames[1]["item_id"] == client.frames[2]["item_id"]


# Caller audio


def test_appended_audio_comes_out_as_pcm_and_is_not_acknowledged(client: Client) -> None:
    assert client.send("input_audio_buffer.append", audio=b64(MS * 20)) == MS * 20
    assert client.frames == []
    assert client.wire.buffered_ms == 20


@pytest.mark.parametrize("law", ["audio/pcmu", "audio/pcma"])
def test_g711_audio_is_decoded(client: Client, law: Any) -> None:
    client.send("session.update", **heard(format={"type": law}))
    silence = g711.encode(bytes(1600), law)
    assert len(silence) == 800
    pcm = client.send("input_audio_buffer.append", audio=b64(silence))
    assert len(pcm) == 1600
    assert set(pcm[1::2]) <= {0, 255}
    assert client.wire.buffered_ms == 100


@pytest.mark.parametrize(("law", "loudest"), [("audio/pcmu", 32124), ("audio/pcma", 32256)])
def test_g711_levels_are_the_standards(law: Any, loudest: int) -> None:
    codes = bytes(range(256))
    levels = [int.from_bytes(g711.decode(codes, law)[2 * n : 2 * n + 2], "little", signed=True) for n in range(256)]
    assert (max(levels), min(levels)) == (loudest, -loudest)
    again = g711.decode(g711.encode(g711.decode(codes, law), law), law)
    assert again == g711.decode(codes, law)
    assert sorted(levels) == sorted(-level for level in levels)


def test_case_59_commit_with_too_little_audio(client: Client) -> None:
    client.send("input_audio_buffer.append", audio=b64(MS * 60))
    error = client.error("input_audio_buffer.commit")
    assert error["code"] == "input_audio_buffer_commit_empty"
    assert "60.00ms" in error["message"]
    client.send("input_audio_buffer.append", audio=b64(MS * 40))
    assert isinstance(client.send("input_audio_buffer.commit"), wire.CommitAsked)
    client.wire.commit_input(0.1)
    assert client.error("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"


def test_clear_empties_the_buffer(client: Client) -> None:
    client.send("input_audio_buffer.append", audio=b64(MS * 200))
    assert isinstance(client.send("input_audio_buffer.clear"), wire.BufferCleared)
    assert client.types() == ["input_audio_buffer.cleared"]
    assert client.error("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"


def test_transcription_ends_in_the_whole_transcript_with_its_usage(client: Client) -> None:
    item = client.caller_says()
    start = len(client.frames)
    client.wire.transcribed(item, "where is it", "gpt-4o-transcribe")
    kind = "conversation.item.input_audio_transcription"
    assert client.types(start) == [f"{kind}.delta"] * 3 + [f"{kind}.completed"]
    assert "".join(frame["delta"] for frame in client.frames[start:-1]) == "where is it"
    assert client.frames[-1]["usage"]["type"] == "tokens"
    client.send("conversation.item.retrieve", item_id=item.id)
    assert client.frames[-1]["item"]["content"][0]["transcript"] == "where is it"
    client.wire.transcribed(item, "where is it", "whisper-1")
    assert client.frames[-1]["usage"] == {"type": "duration", "seconds": 0.5}
    client.send("conversation.item.delete", item_id=item.id)
    before = len(client.frames)
    client.wire.transcribed(item, "where is it", "whisper-1")
    assert len(client.frames) == before


# The conversation


def test_items_of_the_client_keep_their_ids_and_places(client: Client) -> None:
    def order() -> list[str | None]:
        return [frame["previous_item_id"] for frame in client.frames if frame["type"] == "conversation.item.added"]

    client.send("conversation.item.create", item=user_text("one", id="one"))
    client.send("conversation.item.create", item=user_text("two"))
    client.send("conversation.item.create", item=user_text("zero", id="zero"), previous_item_id="root")
    client.send("conversation.item.create", item=user_text("one and a half", id="half"), previous_item_id="one")
    assert order() == [None, "one", None, "one"]
    assert client.types() == ["conversation.item.added", "conversation.item.done"] * 4
    assert client.frames[0]["item"] == user_text("one", id="one", object="realtime.item", status="completed")
    error = client.error("conversation.item.create", item=user_text("again", id="one"))
    assert (error["code"], error["param"]) == ("invalid_value", "item.id")


def test_server_ids_avoid_those_a_client_has_used(client: Client) -> None:
    client.send("conversation.item.create", item=user_text("x", id="item_0001"))
    client.send("conversation.item.create", item=user_text("y"))
    assert client.last("conversation.item.added")["item"]["id"] == "item_0002"


def test_an_announced_id_is_not_free(client: Client) -> None:
    client.wire.speech_started(0)
    announced = client.last("input_audio_buffer.speech_started")["item_id"]
    assert client.error("conversation.item.create", item=user_text("x", id=announced))["param"] == "item.id"
    assert client.wire.commit_input(1.0).id == announced


def test_delete_removes_the_item_and_the_call_in_it(client: Client) -> None:
    call_id = client.agent_calls()
    item_id = client.last("conversation.item.done")["item"]["id"]
    assert isinstance(client.send("conversation.item.delete", item_id=item_id), wire.ItemDeleted)
    assert client.last("conversation.item.deleted")["item_id"] == item_id
    assert client.answer(call_id) is None
    assert client.last("error")["error"]["code"] == "invalid_tool_call_id"
    assert client.error("conversation.item.delete", item_id=item_id)["code"] == "item_delete_invalid_item_id"


def test_case_07_call_ids_have_allowed_characters_and_exist(client: Client) -> None:
    call_id = client.agent_calls()
    client.answer(f"{call_id}/finished")
    assert client.last("error")["error"]["code"] == "invalid_value"
    assert "[a-zA-Z0-9_-]" in client.last("error")["error"]["message"]
    client.answer(f"{call_id}_finished")
    assert client.last("error")["error"]["code"] == "invalid_tool_call_id"
    assert isinstance(client.answer(call_id), wire.ItemCreated)


def test_a_call_has_one_output(client: Client) -> None:
    call_id = client.agent_calls()
    effect = client.answer(call_id, '{"ok":true}', id="mine")
    assert effect.item.shown["output"] == '{"ok":true}'
    assert client.last("conversation.item.added")["item"]["id"] == "mine"
    client.answer(call_id)
    assert (client.last("error")["error"]["code"], client.types()[-1]) == ("invalid_value", "error")
    assert client.wire.active is None
    client.send("conversation.item.delete", item_id="mine")
    assert isinstance(client.answer(call_id), wire.ItemCreated)


def test_a_call_from_an_earlier_session_can_be_recreated_and_answered(client: Client) -> None:
    call = {"type": "function_call", "name": "check_stock", "call_id": "old_call", "arguments": "{}"}
    assert isinstance(client.send("conversation.item.create", item=call), wire.ItemCreated)
    assert isinstance(client.answer("old_call"), wire.ItemCreated)
    assert client.error("conversation.item.create", item=call)["param"] == "item.call_id"


def test_retrieve_gives_the_audio_that_other_events_leave_out(client: Client) -> None:
    item = client.agent_says("Hello.")
    assert all("audio" not in part for frame in client.frames for part in frame.get("item", {}).get("content", ()))
    client.send("conversation.item.retrieve", item_id=item.id)
    (part,) = client.last("conversation.item.retrieved")["item"]["content"]
    assert part == {"type": "output_audio", "transcript": "Hello.", "audio": b64(MS * 100)}


def test_audio_in_a_client_item_is_checked_and_not_echoed(client: Client) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "%%%"}]}
    assert client.error("conversation.item.create", item=item)["param"] == "item.content[0].audio"
    item["content"] = [{"type": "input_audio", "audio": b64(MS * 10)}]
    client.send("conversation.item.create", item=item)
    assert client.last("conversation.item.added")["item"]["content"] == [{"type": "input_audio", "transcript": None}]


# Truncation


def truncate(item: Any, end: int, **fields: Any) -> dict[str, Any]:
    return {"item_id": item.id, "content_index": 0, "audio_end_ms": end, **fields}


def test_truncate_drops_the_transcript_and_tells_what_was_heard(client: Client) -> None:
    item = client.agent_says("one ", "two ", "three ", ms=1000)
    effect = client.send("conversation.item.truncate", **truncate(item, 2000))
    assert effect == wire.Truncated(item, "one two ")
    assert client.frames[-1] == {
        "type": "conversation.item.truncated",
        "event_id": client.frames[-1]["event_id"],
        **truncate(item, 2000),
    }
    client.send("conversation.item.retrieve", item_id=item.id)
    (part,) = client.frames[-1]["item"]["content"]
    assert (part["transcript"], part["audio"]) == (None, b64(MS * 2000))
    # what has been cut off is gone
    error = client.error("conversation.item.truncate", **truncate(item, 2001))
    assert error["message"] == "Audio content of 2000ms is already shorter than 2001ms"
    assert client.send("conversation.item.truncate", **truncate(item, 1500)).text_heard == "one "


def test_case_14_truncate_beyond_the_audio_that_exists(client: Client) -> None:
    item = client.agent_says("two seconds", ms=2000)
    error = client.error("conversation.item.truncate", **truncate(item, 5000))
    assert (error["code"], "2000ms" in error["message"]) == ("invalid_value", True)
    assert isinstance(client.send("conversation.item.truncate", **truncate(item, 2000)), wire.Truncated)


def test_case_15_truncate_before_the_first_frame(client: Client) -> None:
    response = client.wire.begin_response({})
    item = response.open_message()
    error = client.error("conversation.item.truncate", **truncate(item, 0))
    assert error["message"].startswith("Only model output audio messages")
    response.say("Hello", MS * 100)
    assert client.send("conversation.item.truncate", **truncate(item, 0)).text_heard == ""
    assert isinstance(client.send("conversation.item.truncate", **truncate(item, 0)), wire.Truncated)


def test_case_17_the_server_holds_less_than_it_sent() -> None:
    client = Client(short_by_ms=85)
    item = client.agent_says("Hello.", ms=1000)
    assert "915ms" in client.error("conversation.item.truncate", **truncate(item, 1000))["message"]
    assert isinstance(client.send("conversation.item.truncate", **truncate(item, 915)), wire.Truncated)


def test_only_assistant_speech_can_be_truncated(client: Client) -> None:
    caller = client.caller_says()
    assert "Only model output" in client.error("conversation.item.truncate", **truncate(caller, 0))["message"]
    item = client.agent_says("Hello.")
    wrong = truncate(item, 50, content_index=1)
    assert client.error("conversation.item.truncate", **wrong)["param"] == "content_index"


# Order of events. Letters are those of the sequences in the vendor's guide

SPEECH = [
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
]
CALL = [
    "response.output_item.added",
    "conversation.item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "conversation.item.done",
]
END = ["response.done", "rate_limits.updated"]


def test_sequence_a_audio_turn_answered_in_speech(client: Client) -> None:
    caller = client.caller_says()
    assert client.types() == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert {frame.get("item_id", caller.id) for frame in client.frames} == {caller.id}
    assert client.frames[3]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    start = len(client.frames)
    agent = client.agent_says("Hello.")
    assert client.types(start) == ["response.created", *SPEECH, *END]
    created, added, *_ = client.frames[start:]
    assert created["response"]["status"] == "in_progress"
    assert created["response"]["output"] == []
    assert added["item"]["status"] == "in_progress"
    assert client.frames[start + 2]["previous_item_id"] == caller.id
    part = client.last("response.content_part.done")["part"]
    assert part == {"type": "audio", "transcript": "Hello."}
    done = client.last("response.done")["response"]
    assert (done["status"], done["status_details"]) == ("completed", None)
    assert done["output"] == [client.last("response.output_item.done")["item"]]
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hello."}]
    assert done["output"][0]["id"] == agent.id
    usage = done["usage"]
    assert usage["output_token_details"] == {"text_tokens": 2, "audio_tokens": 2}
    assert usage["input_token_details"]["audio_tokens"] == 5
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_sequence_b_turn_ending_in_a_call(client: Client) -> None:
    call_id = client.agent_calls("check_stock", '{"item":"kettle"}')
    assert client.types() == ["response.created", *CALL, *END]
    added, arguments = client.frames[1]["item"], client.last("response.function_call_arguments.done")
    assert (added["name"], added["call_id"], added["arguments"]) == ("check_stock", call_id, "")
    assert (arguments["name"], arguments["arguments"]) == ("check_stock", '{"item":"kettle"}')
    assert client.last("response.output_item.done")["item"]["arguments"] == '{"item":"kettle"}'
    start = len(client.frames)
    client.answer(call_id)
    assert client.types(start) == ["conversation.item.added", "conversation.item.done"]
    asked = client.send("response.create")
    assert asked.response is client.wire.active
    assert client.types(start)[2:] == ["response.created"]


def test_sequence_c_barge_in_closes_everything_and_says_so(client: Client) -> None:
    response = client.wire.begin_response({})
    item = response.open_message()
    response.say("Your order ", MS * 500)
    client.wire.speech_started(1000)
    start = len(client.frames)
    client.wire.finish(response, "cancelled", "turn_detected")
    assert client.types(start) == [*SPEECH[5:], *END]
    assert client.last("response.output_item.done")["item"]["status"] == "incomplete"
    done = client.last("response.done")["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert [each["status"] for each in done["output"]] == ["incomplete"]
    assert client.send("conversation.item.truncate", **truncate(item, 200)).text_heard == ""
    assert client.wire.active is None


def test_sequence_c_cancel_by_the_client(client: Client) -> None:
    response = client.wire.begin_response({})
    response.open_call("call_1", "check_stock")
    response.argue('{"ite')
    assert client.send("response.cancel", response_id=response.id) == wire.ResponseCancelled(response)
    assert client.types()[-5:] == [*CALL[3:], *END]
    assert client.last("response.function_call_arguments.done")["arguments"] == '{"ite'
    assert client.last("response.done")["response"]["status_details"]["reason"] == "client_cancelled"
    message = client.error("response.cancel")["message"]
    assert message.startswith("Cancellation failed")


def test_a_response_cancelled_before_any_output_costs_nothing(client: Client) -> None:
    client.send("response.create")
    client.send("response.cancel")
    done = client.last("response.done")["response"]
    assert (done["output"], done["usage"]["total_tokens"]) == ([], 0)
    assert client.types() == ["response.created", *END]


def test_sequence_d_the_conversation_goes_on_while_a_call_is_open(client: Client) -> None:
    call_id = client.agent_calls()
    client.caller_says()
    response = client.wire.begin_response({})
    response.open_message()
    start = len(client.frames)
    assert isinstance(client.answer(call_id), wire.ItemCreated)  # any time, also now
    assert client.types(start) == ["conversation.item.added", "conversation.item.done"]
    error = client.error("response.create")
    assert error["code"] == "conversation_already_has_active_response"
    assert response.id in error["message"]
    client.wire.finish(response)
    assert isinstance(client.send("response.create"), wire.ResponseAsked)


def test_sequence_e_preamble_and_call_in_one_response(client: Client) -> None:
    response = client.wire.begin_response({})
    response.open_message("commentary")
    response.say("I'll check that.", MS * 100)
    response.open_call("call_1", "check_stock")
    response.argue("{}")
    client.wire.finish(response)
    assert client.types() == ["response.created", *SPEECH, *CALL, *END]
    output = client.last("response.done")["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call"]
    assert output[0]["phase"] == "commentary"
    indexes = [frame["output_index"] for frame in client.frames if "output_index" in frame]
    assert indexes == sorted(indexes)
    assert set(indexes) == {0, 1}


def test_a_written_response(client: Client) -> None:
    effect = client.send("response.create", response={"output_modalities": ["text"]})
    effect.response.open_message()
    effect.response.write("Hel")
    effect.response.write("lo")
    client.wire.finish(effect.response)
    assert client.types()[3:-4] == [
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
    ]
    assert client.last("response.output_text.done")["text"] == "Hello"
    assert client.last("response.content_part.done")["part"] == {"type": "text", "text": "Hello"}
    output = client.last("response.done")["response"]["output"]
    assert output[0]["content"] == [{"type": "output_text", "text": "Hello"}]


def test_case_34_broken_arguments_end_an_incomplete_response(client: Client) -> None:
    response = client.wire.begin_response({})
    response.open_call("call_1", "book")
    response.argue('{"seat":"14C","dat')
    client.wire.finish(response, "incomplete", "max_output_tokens")
    done = client.last("response.done")["response"]
    assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert done["output"][0]["status"] == "incomplete"
    assert isinstance(client.answer("call_1", '{"error":"broken"}'), wire.ItemCreated)


def test_out_of_band_responses_run_beside_and_leave_no_items(client: Client) -> None:
    active = client.wire.begin_response({})
    metadata = {"topic": "classification"}
    beside = client.send("response.create", response={"conversation": "none", "metadata": metadata}).response
    assert client.last("response.created")["response"]["metadata"] == metadata
    assert client.last("response.created")["response"]["conversation_id"] is None
    beside.open_message()
    beside.say("Hm.", MS * 100)
    client.wire.finish(beside)
    assert not any(type_.startswith("conversation.") for type_ in client.types())
    assert client.wire.active is active
    client.send("response.create", response={"conversation": "none"})
    second = client.last("response.created")["response"]["id"]
    assert client.send("response.cancel", response_id=second).response.id == second
    assert client.wire.active is active


def test_response_options_override_the_session_for_one_response(client: Client) -> None:
    options = {"max_output_tokens": 20, "audio": {"output": {"format": {"type": "audio/pcmu"}}}}
    response = client.send("response.create", response=options).response
    shown = client.last("response.created")["response"]
    assert (shown["max_output_tokens"], shown["audio"]["output"]["format"]) == (20, {"type": "audio/pcmu"})
    item = response.open_message()
    response.say("Hello.", bytes(8 * 300))
    assert (item.audio_ms, response.audio_seconds, response.is_used_up) == (300, 0.3, False)
    response.say("", bytes(8 * 700))
    assert response.is_used_up


def test_expiry_and_idle_timeout(client: Client) -> None:
    client.wire.expire(60)
    assert client.frames[-1]["error"]["code"] == "session_expired"
    client.wire.timeout_triggered(1000, 7000)
    reserved = client.frames[-1]["item_id"]
    assert client.wire.commit_input(6.0).id == reserved


def test_every_frame_has_its_own_event_id(client: Client) -> None:
    client.caller_says("hello")
    client.agent_says("Hello.")
    client.error("nonsense")
    ids = [frame["event_id"] for frame in client.frames]
    assert len(set(ids)) == len(ids)


# Anything at all

VOCABULARY = """
realtime message user input_text function function_call function_call_output item_0001 resp_0001 call_0001 root auto
none inf audio/pcm server_vad semantic_vad AAAA type event_id session audio item item_id response response_id content
role id input output format turn_detection tools name parameters call_id arguments text content_index audio_end_ms
previous_item_id conversation metadata instructions max_output_tokens
"""
WORDS = VOCABULARY.split() + sorted(CLIENT_EVENTS)
GOOD: list[dict[str, Any]] = [
    {"type": "session.update", "session": {"type": "realtime", "instructions": "x"}},
    {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcmu"}}}}},
    {"type": "input_audio_buffer.append", "audio": b64(MS * 100)},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "conversation.item.create", "item": user_text("hello")},
    {
        "type": "conversation.item.create",
        "item": {"type": "function_call_output", "call_id": "call_0001", "output": "{}"},
    },
    {"type": "conversation.item.delete", "item_id": "item_0001"},
    {"type": "conversation.item.retrieve", "item_id": "item_0002"},
    {"type": "conversation.item.truncate", "item_id": "item_0001", "content_index": 0, "audio_end_ms": 40},
    {"type": "response.create"},
    {"type": "response.create", "response": {"conversation": "none", "metadata": {"a": "b"}}},
    {"type": "response.cancel"},
]


def anything(dice: random.Random, depth: int = 3) -> Any:
    """A random JSON value."""
    plain = [
        None,
        True,
        -1,
        0,
        7,
        10**30,
        0.5,
        float("nan"),
        "",
        "\ud800",
        "ä" * 9,
        dice.choice(WORDS),
        dice.choice(WORDS),
    ]
    if depth == 0 or dice.random() < 0.5:
        return dice.choice(plain)
    several = range(dice.randint(0, 3))
    if dice.random() < 0.3:
        return [anything(dice, depth - 1) for _ in several]
    return {dice.choice(WORDS): anything(dice, depth - 1) for _ in several}


def client_frame(dice: random.Random) -> Any:
    """A good event, a good event with something changed or added somewhere in it, or anything."""
    kind = dice.random()
    if kind < 0.1:
        return anything(dice)
    frame = json.loads(json.dumps(dice.choice(GOOD)))
    if kind < 0.55:
        return frame
    spot = frame
    while dice.random() < 0.6:
        inner = [value for value in spot.values() if isinstance(value, dict)]
        inner += [value[0] for value in spot.values() if isinstance(value, list) and value]
        if not inner:
            break
        spot = dice.choice(inner)
    spot[dice.choice(sorted(spot) + WORDS) if dice.random() < 0.3 else dice.choice(sorted(spot))] = anything(dice)
    return frame


EFFECTS = (*get_args(wire.Effect), bytes)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_no_client_frame_breaks_the_wire(seed: int) -> None:
    """Frames are drawn from a seed: ten times faster than hypothesis' own strategies for nested values."""
    client, dice = Client(), random.Random(seed)
    for _ in range(25):
        frame = client_frame(dice)
        before = len(client.frames)
        effect = client.wire.receive(frame)
        sent = client.frames[before:]
        refused = [each for each in sent if each["type"] == "error"]
        assert len(refused) <= 1
        assert (effect is None) == bool(refused) or sent[0]["type"] == "conversation.item.retrieved"
        assert effect is None or isinstance(effect, EFFECTS)
        if isinstance(effect, wire.CommitAsked):
            client.wire.commit_input(0.1)
        active = client.wire.active
        if active is not None and dice.random() < 0.5:
            if active.modality == "audio":
                active.open_message()
                active.say("Yes.", MS * 48)
            if dice.random() < 0.5:
                active.open_call(client.wire.new_id("call"), "check_stock")
                active.argue("{}")
            if dice.random() < 0.5:
                client.wire.finish(active)
    running: set[str] = set()
    for frame in client.frames:
        if frame["type"] == "response.created" and frame["response"]["conversation_id"]:
            running.add(frame["response"]["id"])
        elif frame["type"] == "response.done":
            running.discard(frame["response"]["id"])
        assert len(running) <= 1
        validate(frame)


# The SDK's own types

SDK_EVENTS = {
    get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(get_args(RealtimeServerEvent)[0])
}


def validate(frame: dict[str, Any]) -> None:
    """Check a frame against the SDK's class for its type: required fields, literals and types."""
    SDK_EVENTS[frame["type"]].model_validate(frame)


def test_the_check_against_the_sdk_can_fail(client: Client) -> None:
    client.agent_calls()
    frame = client.last("response.function_call_arguments.done")
    validate(frame)
    del frame["name"]
    with pytest.raises(ValueError, match="name"):
        validate(frame)


def test_begin_response_raises_while_one_is_active(client: Client) -> None:
    client.wire.begin_response({})
    with pytest.raises(Refused):
        client.wire.begin_response({})
    client.wire.begin_response({"conversation": "none"})
