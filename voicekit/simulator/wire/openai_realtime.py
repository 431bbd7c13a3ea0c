"""The protocol of an OpenAI Realtime session (GA, WebSocket) without socket, clock or model.

`Wire.receive(frame)` checks a client event, keeps the session, the conversation and the responses, sends what the
service would send at once, and returns an effect for whoever does the talking. The other methods are the service's own
moves. Names are those of openai 3.57.0; orders and error texts follow the vendor's guides and reports of what the
service sent; where nothing is known it says [inferred].
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pybase64

from voicekit.simulator.wire import g711
from voicekit.simulator.wire.checks import Refused
from voicekit.simulator.wire.openai_conversation import Conversation
from voicekit.simulator.wire.openai_response import (
    INPUT_TOKENS_PER_SECOND,
    Item,
    Response,
    Status,
    bytes_per_ms,
    text_tokens,
    token_counts,
)
from voicekit.simulator.wire.openai_schema import check_event
from voicekit.simulator.wire.openai_session import default_session, merged

MAX_APPEND = 15 * 2**20  # bytes of audio in one append
MIN_COMMIT_MS = 100
TOKEN_LIMIT = 250_000  # per minute, as in rate_limits.updated; the simulator never enforces it


@dataclass(frozen=True)
class ConfigChanged:
    """session.update was accepted."""


@dataclass(frozen=True)
class CommitAsked:
    """The client ends the caller's turn; answer with `Wire.commit_input`."""


@dataclass(frozen=True)
class BufferCleared:
    """The audio not committed yet is forgotten."""


@dataclass(frozen=True)
class ItemCreated:
    """The client put an item into the conversation."""

    item: Item


@dataclass(frozen=True)
class ItemDeleted:
    item: Item


@dataclass(frozen=True)
class Truncated:
    """The client says how much of `item` was heard; `text_heard` is the part of the transcript in it."""

    item: Item
    text_heard: str


@dataclass(frozen=True)
class ResponseAsked:
    """response.create was accepted and response.created sent."""

    response: Response


@dataclass(frozen=True)
class ResponseCancelled:
    """response.cancel was accepted; all done events are out."""

    response: Response


Effect = (
    ConfigChanged
    | CommitAsked
    | BufferCleared
    | ItemCreated
    | ItemDeleted
    | Truncated
    | ResponseAsked
    | ResponseCancelled
)


class Wire:
    """One session's protocol state. `send(frame)` takes each frame that goes to the client.

    reasoning_model    whether the model knows `reasoning` and `parallel_tool_calls`
    expires_at         seconds, for session.expires_at
    short_by_ms        the server holds this much less audio of each item than it sent (pipecat-ai/pipecat#2106)
    """

    def __init__(
        self,
        model: str,
        send: Callable[[dict[str, Any]], None],
        *,
        session_id: str = "sess_0001",
        expires_at: int = 3600,
        reasoning_model: bool = False,
        short_by_ms: int = 0,
    ) -> None:
        self.session = default_session(model, session_id, expires_at, reasoning_model=reasoning_model)
        self.conversation = Conversation(self.new_id)
        self.active: Response | None = None  # the one response of the default conversation
        self.out_of_band: dict[str, Response] = {}
        self.buffered_ms = 0.0
        self._send = send
        self._reasoning = reasoning_model
        self._short_by_ms = short_by_ms
        self._counts: dict[str, int] = {}
        self._coming: str | None = None  # id the caller's next item will have, announced by speech_started
        self._spoke = False
        self._context = (0, 0)  # tokens of the response before, which a cache would still hold

    # The client's events

    def receive(self, frame: Any) -> Effect | bytes | None:
        """Handle a client event (None: not JSON). Bytes are caller audio: PCM16, 24 kHz, or 8 kHz for G.711."""
        try:
            check_event(frame)
            return _HANDLERS[frame["type"]](self, frame)
        except Refused as refusal:
            given = frame.get("event_id") if isinstance(frame, dict) else None
            self.refuse(refusal, given if isinstance(given, str) else None)
            return None

    def refuse(self, refusal: Refused, event_id: str | None = None) -> None:
        """Send an `error`; `event_id` is the client event's."""
        error = {
            "type": "invalid_request_error",
            "code": refusal.code,
            "message": refusal.message,
            "param": refusal.param,
            "event_id": event_id,
        }
        self._emit("error", error=error)

    def _on_session_update(self, frame: Mapping[str, Any]) -> Effect:
        patch = frame["session"]
        if patch.get("model", self.session["model"]) != self.session["model"]:
            raise Refused("invalid_value", "The model of a session cannot be changed.", "session.model")  # [inferred]
        self._check_model_options(patch, "session")
        self.session = merged(self.session, patch)
        self._emit("session.updated", session=copy.deepcopy(self.session))
        for tool in patch.get("tools", ()):
            if tool["type"] == "mcp":  # the simulator reaches no other host, so no list ever arrives
                item_id = self.new_id("mcpl")
                self._emit("mcp_list_tools.in_progress", item_id=item_id)
                self._emit("mcp_list_tools.failed", item_id=item_id)
        return ConfigChanged()

    def _check_model_options(self, options: Mapping[str, Any], path: str) -> None:
        voice = options.get("audio", {}).get("output", {}).get("voice")
        has_spoken = self._spoke or (self.active is not None and self.active.audio_seconds > 0)
        if has_spoken and voice not in (None, self.session["audio"]["output"]["voice"]):
            message = "Cannot update a conversation's voice if assistant audio is present."
            raise Refused("cannot_update_voice", message, f"{path}.audio.output.voice")
        for name in ("reasoning", "parallel_tool_calls"):
            if options.get(name) is not None and not self._reasoning:  # [inferred] code; the rule is the SDK's
                message = f"'{name}' is only supported by reasoning models, not by '{self.session['model']}'."
                raise Refused("invalid_value", message, f"{path}.{name}")

    def _on_append(self, frame: Mapping[str, Any]) -> bytes:
        audio = self._decoded(frame["audio"], "audio")
        self.buffered_ms += len(audio) / bytes_per_ms(self._input_format)
        kind = self._input_format["type"]
        return audio if kind == "audio/pcm" else g711.decode(audio, kind)

    @property
    def _input_format(self) -> dict[str, Any]:
        found: dict[str, Any] = self.session["audio"]["input"]["format"]
        return found

    def _decoded(self, audio: str, path: str) -> bytes:
        try:
            decoded = pybase64.b64decode(audio, validate=True)
        except ValueError:
            problem = "an invalid value"
        else:
            # Half a sample: refused, since a stream that goes on one byte off is nothing but noise [inferred]
            odd = self._input_format["type"] == "audio/pcm" and len(decoded) % 2
            problem = "an odd number of bytes" if odd else "" if decoded else "empty bytes"
            problem = "more than 15 MiB" if len(decoded) > MAX_APPEND else problem
        if problem:
            expected = "Expected base64-encoded audio bytes (mono PCM16 at 24kHz, or as in the session's format)"
            raise Refused("invalid_value", f"Invalid '{path}'. {expected} but got {problem}.", path)
        return decoded

    def _on_commit(self, _frame: Mapping[str, Any]) -> Effect:
        if self.buffered_ms < MIN_COMMIT_MS:
            message = (
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{MIN_COMMIT_MS}ms of audio, but buffer only has {self.buffered_ms:.2f}ms of audio."
            )
            raise Refused("input_audio_buffer_commit_empty", message)
        return CommitAsked()

    def _on_clear(self, _frame: Mapping[str, Any]) -> Effect:
        self.buffered_ms, self._coming = 0.0, None
        self._emit("input_audio_buffer.cleared")
        return BufferCleared()

    def _on_item_create(self, frame: Mapping[str, Any]) -> Effect:
        if frame["item"].get("id") == self._coming is not None:  # announced to the client, so not free any more
            raise Refused("invalid_value", f"Item id '{self._coming}' is reserved.", "item.id")
        item = self.conversation.build(frame["item"])
        for index, part in enumerate(item.shown.get("content", ())):
            if part["type"] == "input_audio":
                sound = self._decoded(part["audio"], f"item.content[{index}].audio")
                item.seconds += len(sound) / bytes_per_ms(self._input_format) / 1000
                part.setdefault("transcript", None)
        self._add(item, frame.get("previous_item_id"))
        return ItemCreated(item)

    def _add(self, item: Item, after: str | None = None) -> None:
        """Put a finished item into the conversation and announce it."""
        previous = self.conversation.insert(item, after)
        self._emit("conversation.item.added", previous_item_id=previous, item=item.view())
        self._emit("conversation.item.done", previous_item_id=previous, item=item.view())

    def _on_item_retrieve(self, frame: Mapping[str, Any]) -> None:
        item = self.conversation.find(frame["item_id"], "retriev")
        shown = copy.deepcopy(item.shown)
        if item.sounded:
            shown["content"][0]["audio"] = pybase64.b64encode_as_string(item.audio)
        self._emit("conversation.item.retrieved", item=shown)

    def _on_item_delete(self, frame: Mapping[str, Any]) -> Effect:
        item = self.conversation.remove(frame["item_id"])
        self._emit("conversation.item.deleted", item_id=item.id)
        return ItemDeleted(item)

    def _on_item_truncate(self, frame: Mapping[str, Any]) -> Effect:
        ids = {key: frame[key] for key in ("item_id", "content_index", "audio_end_ms")}
        item, heard = self.conversation.truncate(**ids, short_by_ms=self._short_by_ms)
        self._emit("conversation.item.truncated", **ids)
        return Truncated(item, heard)

    def _on_response_create(self, frame: Mapping[str, Any]) -> Effect:
        options = frame.get("response", {})
        self._check_model_options(options, "response")
        for index, given in enumerate(options.get("input", ())):
            if given["type"] == "item_reference" and given["id"] not in self.conversation.items:  # [inferred] code
                message = f"Item with item_id not found: {given['id']}"
                raise Refused("invalid_value", message, f"response.input[{index}].id")
        return ResponseAsked(self.begin_response(options))

    def _on_response_cancel(self, frame: Mapping[str, Any]) -> Effect:
        wanted = frame.get("response_id")
        found = self.active if wanted in (None, self.active and self.active.id) else self.out_of_band.get(wanted or "")
        if found is None:
            raise Refused("response_cancel_not_active", "Cancellation failed: no active response found")
        self.finish(found, "cancelled", "client_cancelled")
        return ResponseCancelled(found)

    def _on_output_clear(self, _frame: Mapping[str, Any]) -> None:
        message = "'output_audio_buffer.clear' is only available over WebRTC and SIP."  # [inferred] wording
        raise Refused("invalid_value", message, "type")

    # The service's own moves

    def open(self) -> None:
        """Greet the client: session.created, unprompted."""
        self._emit("session.created", session=copy.deepcopy(self.session))

    def expire(self, minutes: float) -> None:
        """Send the error that comes before the close at the end of a session's longest life."""
        message = f"Your session hit the maximum duration of {minutes:g} minutes."
        self.refuse(Refused("session_expired", message))

    def speech_started(self, at_ms: int) -> None:
        """Announce caller speech; `at_ms` counts the audio appended in this session."""
        self._coming = self.new_id("item")
        self._emit("input_audio_buffer.speech_started", audio_start_ms=at_ms, item_id=self._coming)

    def speech_stopped(self, at_ms: int) -> None:
        self._emit("input_audio_buffer.speech_stopped", audio_end_ms=at_ms, item_id=self._reserved())

    def timeout_triggered(self, start_ms: int, end_ms: int) -> None:
        """Announce that nobody spoke for idle_timeout_ms; commit the silence next."""
        ids = {"audio_start_ms": start_ms, "audio_end_ms": end_ms, "item_id": self._reserved()}
        self._emit("input_audio_buffer.timeout_triggered", **ids)

    def commit_input(self, seconds: float) -> Item:
        """Make a user item of the audio so far, under the id that speech_started announced."""
        item_id, self._coming = self._reserved(), None
        self.buffered_ms = 0.0
        content = [{"type": "input_audio", "transcript": None}]
        shown = {"id": item_id, "object": "realtime.item", "type": "message", "status": "completed", "role": "user"}
        item = Item(shown | {"content": content}, seconds=seconds)
        self._emit("input_audio_buffer.committed", previous_item_id=self.conversation.last, item_id=item_id)
        self._add(item)
        return item

    def transcribed(self, item: Item, text: str, model: str) -> None:
        """Send the transcript of a caller item, word by word and then whole; nothing if the item is deleted."""
        if self.conversation.items.get(item.id) is not item:
            return
        item.shown["content"][0]["transcript"] = text
        kind = "conversation.item.input_audio_transcription"
        ids = {"item_id": item.id, "content_index": 0}
        for index, word in enumerate(text.split()):
            self._emit(f"{kind}.delta", **ids, delta=f" {word}" if index else word)
        heard, written = round(item.seconds * INPUT_TOKENS_PER_SECOND), text_tokens(text)
        usage: dict[str, Any] = {
            "type": "tokens",
            "total_tokens": heard + written,
            "input_tokens": heard,
            "input_token_details": {"text_tokens": 0, "audio_tokens": heard},
            "output_tokens": written,
        }
        if model == "whisper-1":  # billed by the minute
            usage = {"type": "duration", "seconds": round(item.seconds, 3)}
        self._emit(f"{kind}.completed", **ids, transcript=text, usage=usage)

    def begin_response(self, options: Mapping[str, Any]) -> Response:
        """Start a response and send response.created. Raises `Refused` while another one is active."""
        shared = options.get("conversation") != "none"
        if shared and self.active is not None:
            message = (
                f"Conversation already has an active response in progress: {self.active.id}. "
                "Wait until the response is finished before creating a new one."
            )
            raise Refused("conversation_already_has_active_response", message)
        response = Response(
            self.new_id("resp"),
            dict(options),
            self.session,
            self._emit,
            self.new_id,
            self.conversation.insert if shared else None,
            self.session["id"].replace("sess", "conv"),
        )
        if shared:
            self.active = response
        else:
            self.out_of_band[response.id] = response
        self._emit("response.created", response=response.view())
        return response

    def finish(self, response: Response, status: Status = "completed", reason: str | None = None) -> None:
        """End a response: done events, response.done, rate limits.

        reason: "turn_detected" or "client_cancelled" (cancelled), "max_output_tokens" (incomplete).
        """
        if response is self.active:
            self.active = None
        self.out_of_band.pop(response.id, None)
        self._spoke = self._spoke or response.audio_seconds > 0
        usage = self._usage(response)
        response.end(status, reason, usage)
        # After response.done, as the guide's table has it and a capture of 2026-09-18 shows; the SDK's text says before
        left = TOKEN_LIMIT - usage["total_tokens"]
        limit = {"name": "tokens", "limit": TOKEN_LIMIT, "remaining": left, "reset_seconds": 0.0}
        self._emit("rate_limits.updated", rate_limits=[limit])

    # Bookkeeping

    def new_id(self, prefix: str) -> str:
        """The next free id: item_0001, item_0002, ..."""
        while True:
            self._counts[prefix] = self._counts.get(prefix, 0) + 1
            new = f"{prefix}_{self._counts[prefix]:04d}"
            if not self.conversation.knows(new):  # a client may have used it
                return new

    def _emit(self, type_: str, **fields: Any) -> None:
        self._counts["event"] = number = self._counts.get("event", 0) + 1
        self._send({"type": type_, "event_id": f"event_{number:06d}", **fields})

    def _reserved(self) -> str:
        if self._coming is None:
            self._coming = self.new_id("item")
        return self._coming

    def _usage(self, response: Response) -> dict[str, Any]:
        """Token counts by rule of thumb; zeros for a response that produced nothing."""
        if not response.items:
            return token_counts((0, 0), (0, 0), (0, 0))
        text, audio = self.conversation.tokens(without=response.items)
        text += text_tokens(self.session["instructions"]) + text_tokens(str(self.session["tools"]))
        cached = (min(text, self._context[0]) // 64 * 64, min(audio, self._context[1]) // 64 * 64)
        self._context = (text, audio)
        return token_counts((text, audio), cached, (response.output_tokens[0], response.output_tokens[1]))


_HANDLERS: dict[str, Callable[[Wire, Any], Effect | bytes | None]] = {
    "session.update": Wire._on_session_update,
    "input_audio_buffer.append": Wire._on_append,
    "input_audio_buffer.commit": Wire._on_commit,
    "input_audio_buffer.clear": Wire._on_clear,
    "conversation.item.create": Wire._on_item_create,
    "conversation.item.retrieve": Wire._on_item_retrieve,
    "conversation.item.delete": Wire._on_item_delete,
    "conversation.item.truncate": Wire._on_item_truncate,
    "response.create": Wire._on_response_create,
    "response.cancel": Wire._on_response_cancel,
    "output_audio_buffer.clear": Wire._on_output_clear,
}
