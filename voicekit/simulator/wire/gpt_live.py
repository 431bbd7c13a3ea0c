"""The protocol of a GPT-Live session (WebSocket, GA of 2026-09-10) without socket, clock or model.

`Wire.receive(frame)` checks a client event, keeps the session, the delegations and the calls of the backend, sends what
the service would send at once, and returns an effect for whoever does the talking. The other methods are the service's
own moves. Names and fields are those of openai 3.57.0 (types/live); where nothing is known it says [inferred].

There is no turn, no response of the voice, no speech_started, no interruption and no end of audio here, because the API
has none: what is heard is a stream.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pybase64

from voicekit.simulator.wire import g711
from voicekit.simulator.wire.checks import Refused
from voicekit.simulator.wire.gpt_live_schema import DEFAULT_VOICE, MAX_INPUT, check_event
from voicekit.simulator.wire.openai_response import text_tokens

Channel = Literal["instructions", "thinking", "commentary"]
CloseReason = Literal["close_requested", "expired", "content", "remote_hangup", "connection_lost"]
Send = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Started:
    """session.start was accepted and session.started sent."""


@dataclass(frozen=True)
class Updated:
    """session.update was accepted."""


@dataclass(frozen=True)
class Muted:
    """The model hears silence from now on, whatever arrives."""


@dataclass(frozen=True)
class Unmuted:
    pass


@dataclass(frozen=True)
class Append:
    """Text for the model's timeline; acknowledge it with `Wire.appended` once the timeline has reached its end."""

    channel: Channel
    content: str
    delegation_id: str | None
    event_id: str | None


@dataclass(frozen=True)
class ItemCreated:
    """The client gave the Responses backend an item."""

    item: Mapping[str, Any]


@dataclass(frozen=True)
class ResponseAsked:
    """The client asked the Responses backend to go on."""


@dataclass(frozen=True)
class CloseAsked:
    """Finish what is under way, then `Wire.close`."""

    event_id: str | None


Effect = Started | Updated | Muted | Unmuted | Append | ItemCreated | ResponseAsked | CloseAsked


class Wire:
    """One session's protocol state. `send(frame)` takes each frame that goes to the client.

    supports     whether a model may be started; what it raises (ValueError) goes into the error
    expires_at   seconds, for session.expires_at
    """

    def __init__(
        self,
        send: Send,
        *,
        session_id: str = "live_0001",
        expires_at: int = 7200,
        supports: Callable[[str], object] = lambda model: None,
    ) -> None:
        self.session: dict[str, Any] = {}
        self.is_started = False
        self.is_closing = False
        self.delegations: dict[str, str] = {}  # target by id
        self.calls: dict[str, bool] = {}  # the backend's calls: whether an output has come
        self._send, self._supports = send, supports
        self._id, self._expires_at = session_id, expires_at
        self._counts: dict[str, int] = {}

    @property
    def target(self) -> str:
        """Who does the work: "client" or "responses"."""
        return str(self.session["delegation"]["type"])

    @property
    def format(self) -> dict[str, Any]:
        found: dict[str, Any] = self.session["audio"]["format"]
        return found

    @property
    def rate(self) -> int:
        """Samples per second of the PCM that `receive` returns and the client is sent."""
        return int(self.format["rate"])

    # The client's events

    def receive(self, frame: Any, send: Send | None = None) -> Effect | bytes | None:
        """Handle a client event (None: not JSON). Bytes are caller audio: PCM16 at `rate` Hz.

        `send` is for a sideband: refusals go to whom they concern, everything else to everybody.
        """
        try:
            check_event(frame)
            type_ = frame["type"]
            if self.is_closing:
                raise Refused("session_closing", "The session is closing.", "type")  # [inferred] code
            if send is not None and type_ in ("session.start", "session.input_audio.append"):
                message = f"'{type_}' is only supported on a session's primary connection."  # [inferred] wording
                raise Refused("invalid_value", message, "type")
            if not self.is_started and type_ != "session.start":  # [inferred] code
                raise Refused("session_not_started", f"'session.start' comes first, not '{type_}'.", "type")
            return _HANDLERS[type_](self, frame)
        except Refused as refusal:
            given = frame.get("event_id") if isinstance(frame, dict) else None
            self.refuse(refusal, given if isinstance(given, str) else None, send)
            return None

    def refuse(self, refusal: Refused, event_id: str | None = None, send: Send | None = None) -> None:
        """Send an `error`; `event_id` is the client event's."""
        error: dict[str, Any] = {
            "type": "invalid_request_error",
            "code": refusal.code,
            "message": refusal.message,
            "param": refusal.param,
            "client_event_id": event_id,
        }
        (send or self._send)(self._frame("error", error=error))

    def _on_start(self, frame: Mapping[str, Any]) -> Effect:
        if self.is_started:  # [inferred] code
            raise Refused("session_already_started", "The session has already started.", "type")
        config = copy.deepcopy(dict(frame["session"]))
        try:
            self._supports(config["model"])
        except ValueError as error:  # [inferred] code
            raise Refused("invalid_model", f"Invalid 'session.model': {error}.", "session.model") from None
        text = " ".join(part["text"] for item in config.get("input", ()) for part in item["content"])
        if text_tokens(text) > MAX_INPUT:  # [inferred] code
            message = f"Invalid 'session.input': expected at most {MAX_INPUT} tokens."
            raise Refused("invalid_value", message, "session.input")
        self.session = self._resolved(config)
        self.is_started = True
        self._answer(frame, "session.started", session=self.shown())
        return Started()

    def _resolved(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with the service's defaults; `simulated` is the one key the vendor does not have."""
        audio = config.pop("audio", {})
        delegation = config.pop("delegation", None) or {"type": "client"}
        return {
            "id": self._id,
            "status": "active",
            "simulated": True,
            "expires_at": self._expires_at,
            "instructions": None,
            "input": [],
            "store": False,
            **config,
            "audio": {
                "format": audio.get("format", {"type": "audio/pcm", "rate": 24_000}),
                "output": {"voice": DEFAULT_VOICE} | audio.get("output", {}),
            },
            "delegation": {"acknowledgement_delay_ms": 0} | delegation,
        }

    def shown(self) -> dict[str, Any]:
        return copy.deepcopy(self.session)

    def _on_update(self, frame: Mapping[str, Any]) -> Effect:
        if "delegation" in frame["session"]:
            patch, now = frame["session"]["delegation"] or {"type": "client"}, self.session["delegation"]
            if patch["type"] != now["type"]:
                param = "session.delegation.type"
                message = f"'{param}' cannot be changed after the session has started."
                raise Refused("immutable_field_update", message, param)
            changed = {**now, **copy.deepcopy(patch)}
            if "responses" in now:
                changed["responses"] = {**now["responses"], **copy.deepcopy(patch.get("responses", {}))}
            self.session["delegation"] = changed
        self._answer(frame, "session.updated", session=self.shown())
        return Updated()

    def _on_append_audio(self, frame: Mapping[str, Any]) -> bytes:
        try:
            audio = pybase64.b64decode(frame["audio"], validate=True)
        except ValueError:
            raise Refused("invalid_audio", "Invalid 'audio': expected base64-encoded audio.", "audio") from None
        kind = self.format["type"]
        if not audio or (kind == "audio/pcm" and len(audio) % 2):
            problem = "an odd number of bytes" if audio else "no audio"
            raise Refused("invalid_audio", f"Invalid 'audio': expected whole samples, but got {problem}.", "audio")
        return audio if kind == "audio/pcm" else g711.decode(audio, kind)

    def _on_mute(self, frame: Mapping[str, Any]) -> Effect:
        self._answer(frame, "session.input_audio.muted")
        return Muted()

    def _on_unmute(self, frame: Mapping[str, Any]) -> Effect:
        self._answer(frame, "session.input_audio.unmuted")
        return Unmuted()

    def _on_append_text(self, frame: Mapping[str, Any]) -> Effect:
        delegation = frame["delegation_id"]
        if delegation is not None and self.target != "client":  # [inferred] code
            message = "'delegation_id' must be null with Responses delegation."
            raise Refused("invalid_value", message, "delegation_id")
        if delegation is not None and delegation not in self.delegations:  # [inferred] code
            raise Refused("invalid_value", f"Delegation '{delegation}' not found.", "delegation_id")
        channel: Channel = frame["type"].split(".")[1]
        return Append(channel, frame["content"], delegation, frame.get("event_id"))

    def _on_item_create(self, frame: Mapping[str, Any]) -> Effect:
        self._needs_backend(frame)
        item = frame["item"]
        if item["type"] == "function_call_output":
            call_id = item["call_id"]
            if self.calls.get(call_id) is not False:  # [inferred] code; the wording is the Responses API's
                known = "already has an output" if call_id in self.calls else "not found"
                message = f"No tool call found for function call output with call_id {call_id}: {known}."
                raise Refused("invalid_value", message, "item.call_id")
            self.calls[call_id] = True
        return ItemCreated(copy.deepcopy(item))

    def _on_response_create(self, frame: Mapping[str, Any]) -> Effect:
        self._needs_backend(frame)
        return ResponseAsked()

    def _needs_backend(self, frame: Mapping[str, Any]) -> None:
        if self.target != "responses":  # the text is from a field report; its code is not known
            raise Refused("invalid_value", f"{frame['type']} requires Responses delegation.", "type")

    def _on_close(self, frame: Mapping[str, Any]) -> Effect:
        self.is_closing = True
        return CloseAsked(frame.get("event_id"))

    # The service's own moves. Positions are milliseconds of the session's timeline.

    def delegate(self, offset_ms: int, response_id: str | None = None) -> str:
        """Announce work for whoever the session delegates to; returns its id. There is no task text in it."""
        delegation = {"id": self.new_id("item"), "type": "delegation", "target": self.target}
        self.delegations[delegation["id"]] = delegation["target"]
        if response_id is not None:
            delegation["response_id"] = response_id
        self._emit("session.delegation.created", offset_ms=offset_ms, delegation=delegation)
        return delegation["id"]

    def transcript(self, side: Literal["input", "output"], text: str, start_ms: int, end_ms: int) -> None:
        self._emit(f"session.{side}_transcript.delta", delta=text, start_ms=start_ms, end_ms=end_ms)

    def appended(self, append: Append, start_ms: int, end_ms: int) -> None:
        """Acknowledge text: it is in the timeline. Not that it was spoken, let alone heard."""
        self._emit(f"session.{append.channel}.appended", append.event_id, start_ms=start_ms, end_ms=end_ms)

    def not_appended(self, append: Append) -> None:
        """The session closes before the timeline has reached the end of an append."""
        message = f"The session closed before '{append.channel}' was appended."  # [inferred] code and wording
        self.refuse(Refused("session_closed", message), append.event_id)

    def nested(self, delegation_id: str | None, event: dict[str, Any]) -> None:
        """Hand on an event of the Responses backend."""
        self._emit("response.event", delegation_id=delegation_id, event=event)

    def usage(self, seconds: float) -> None:
        self._emit("session.usage.updated", usage={"seconds": float(int(seconds))})

    def close(self, reason: CloseReason, seconds: float, event_id: str | None = None) -> None:
        """Send session.closed, the last event; the snapshot in it still says "active", as the API has it."""
        self.is_closing = True
        usage = {"seconds": float(int(seconds))}
        self._emit("session.closed", event_id, reason=reason, session=self.shown(), usage=usage)

    # Bookkeeping

    def new_id(self, prefix: str) -> str:
        """The next free id: item_0001, item_0002, ..."""
        self._counts[prefix] = number = self._counts.get(prefix, 0) + 1
        return f"{prefix}_{number:04d}"

    def _answer(self, frame: Mapping[str, Any], type_: str, **fields: Any) -> None:
        self._emit(type_, frame.get("event_id"), **fields)

    def _emit(self, type_: str, client_event_id: str | None = None, **fields: Any) -> None:
        self._send(self._frame(type_, client_event_id, **fields))

    def _frame(self, type_: str, client_event_id: str | None = None, **fields: Any) -> dict[str, Any]:
        self._counts["event"] = number = self._counts.get("event", 0) + 1
        echo = {} if client_event_id is None else {"client_event_id": client_event_id}
        return {"type": type_, "event_id": f"event_{number:06d}", **echo, **fields}


_HANDLERS: dict[str, Callable[[Wire, Any], Effect | bytes]] = {
    "session.start": Wire._on_start,
    "session.update": Wire._on_update,
    "session.close": Wire._on_close,
    "session.input_audio.append": Wire._on_append_audio,
    "session.input_audio.mute": Wire._on_mute,
    "session.input_audio.unmute": Wire._on_unmute,
    "session.instructions.append": Wire._on_append_text,
    "session.thinking.append": Wire._on_append_text,
    "session.commentary.append": Wire._on_append_text,
    "response.item.create": Wire._on_item_create,
    "response.create": Wire._on_response_create,
}
