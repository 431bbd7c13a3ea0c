"""OpenAI Realtime's events in our words: turns, items and calls, without a socket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pybase64

from voicekit.sessions._common import Recent, one_line
from voicekit.sessions.base import (
    Audio,
    Event,
    Heard,
    Interrupted,
    Problem,
    Said,
    SpeechStarted,
    SpeechStopped,
    ToolCall,
    TurnDone,
    TurnStarted,
    TurnStatus,
    Usage,
)

BYTES_PER_MS = 48  # PCM16 mono at 24 kHz
CALLS_KEY = "voicekit_calls"
CALLS_PER_VALUE = 7  # a metadata value holds 512 characters, an id up to 64


@dataclass(frozen=True)
class Truncation:
    item: str
    audio_end_ms: int
    repeated: bool = False


@dataclass
class OpenCall:
    """A call whose arguments are still being written."""

    call_id: str
    name: str
    turn: str
    arguments: str = ""


@dataclass
class OpenItem:
    """A stretch of agent speech that has not ended."""

    turn: str
    said: str = ""  # the transcript handed on so far


def calls_to_metadata(call_ids: tuple[str, ...]) -> dict[str, str]:
    """The results a response is to speak, as metadata that the provider echoes in response.created."""
    groups = [call_ids[start : start + CALLS_PER_VALUE] for start in range(0, len(call_ids), CALLS_PER_VALUE)]
    return {CALLS_KEY + (f"_{n}" if n else ""): ",".join(group) for n, group in enumerate(groups)}


def metadata_to_calls(metadata: dict[str, str] | None) -> tuple[str, ...]:
    values = [value for key, value in (metadata or {}).items() if key.startswith(CALLS_KEY)]
    return tuple(call_id for value in values for call_id in value.split(",") if call_id)


class Reader:
    """Turns the provider's events into ours; knows turns, items and calls, but no socket."""

    def __init__(self, secret: str) -> None:
        self._secret = secret  # the API key, which a service may quote in a message
        self.active: str | None = None  # the response being generated
        self.refused: tuple[str, ...] | None = None
        self.truncations: dict[str, Truncation] = {}  # unconfirmed ones, by event id
        self._requested: tuple[str, tuple[str, ...]] | None = None  # event id and call ids of an unanswered request
        self._silenced = Recent(100)  # responses whose late audio is not to be heard
        self._received: dict[str, int] = {}  # bytes of audio, by item
        self._items: dict[str, OpenItem] = {}
        self._calls: dict[str, OpenCall] = {}
        self._proposed = Recent()
        self._retry: Truncation | None = None

    @property
    def busy(self) -> str:
        """What keeps the model from taking a request now, in words; empty when nothing does."""
        if self.active:
            return f"response {self.active}"
        return "the response asked for before" if self._requested else ""

    def request(self, event_id: str, call_ids: tuple[str, ...]) -> None:
        self._requested = (event_id, call_ids)
        self.refused = None

    def silence(self) -> None:
        """The active response has been cut off: what still arrives of it is not handed on."""
        if self.active:
            self._silenced.add(self.active)

    def received_ms(self, item: str) -> int | None:
        received = self._received.get(item)
        return None if received is None else received // BYTES_PER_MS

    def take_retry(self) -> Truncation | None:
        retry, self._retry = self._retry, None
        return retry

    def translate(self, event: Any) -> list[Event]:
        """Events for one message, told apart by its `type` alone: the SDK's class of an unknown type is arbitrary."""
        handler = HANDLERS.get(event.type)
        return handler(self, event) if handler else []

    def _speech_started(self, event: Any) -> list[Event]:
        self.silence()  # interrupt_response is on: the provider stops generating now
        return [SpeechStarted(event.item_id, event.audio_start_ms)]

    def _speech_stopped(self, event: Any) -> list[Event]:
        return [SpeechStopped(event.item_id, event.audio_end_ms)]

    def _heard_piece(self, event: Any) -> list[Event]:
        return [Heard(event.delta, event.item_id, final=False)] if event.delta else []

    def _heard(self, event: Any) -> list[Event]:
        return [Heard(event.transcript or "", event.item_id)]

    def _not_heard(self, event: Any) -> list[Event]:
        return [Problem(event.error.code or "transcription_failed", one_line(event.error.message, self._secret))]

    def _turn_started(self, event: Any) -> list[Event]:
        self.active = event.response.id
        call_ids = metadata_to_calls(event.response.metadata)
        if self._requested and self._requested[1] == call_ids:
            self._requested = None
        return [TurnStarted(event.response.id, call_ids)]

    def _audio(self, event: Any) -> list[Event]:
        pcm = pybase64.b64decode(event.delta, validate=True)
        if pcm:
            self._received[event.item_id] = self._received.get(event.item_id, 0) + len(pcm)
        if not pcm or event.response_id in self._silenced:
            return []
        self._item(event)
        return [Audio(event.item_id, pcm, event.response_id)]

    def _said_piece(self, event: Any) -> list[Event]:
        if not event.delta or event.response_id in self._silenced:
            return []
        self._item(event).said += event.delta
        return [Said(event.item_id, event.delta, event.response_id)]

    def _said_all(self, event: Any) -> list[Event]:
        if event.response_id not in self._silenced:  # the transcript of an item that was cut off ends with its audio
            self._item(event).said = event.transcript or ""
        return []

    def _item(self, event: Any) -> OpenItem:
        return self._items.setdefault(event.item_id, OpenItem(event.response_id))

    def _finish_item(self, item_id: str) -> list[Event]:
        item = self._items.pop(item_id, None)
        return [Said(item_id, item.said, item.turn, final=True)] if item else []

    def _item_added(self, event: Any) -> list[Event]:
        if event.item.type == "function_call":
            self._open_call(event.item.call_id, event.item.name, event.response_id)
        return []

    def _arguments_piece(self, event: Any) -> list[Event]:
        if call := self._calls.get(event.call_id):
            call.arguments += event.delta
        return []

    def _arguments_done(self, event: Any) -> list[Event]:
        """This event also ends arguments that were cut off, so only a whole JSON object is proof of completeness."""
        call = self._open_call(event.call_id, event.name, event.response_id)
        call.arguments = event.arguments or ""
        return self._propose(call) if is_object(call.arguments) else []

    def _item_done(self, event: Any) -> list[Event]:
        return self._finish_item(event.item.id) + self._call_item(event.item, event.response_id)

    def _call_item(self, item: Any, turn: str) -> list[Event]:
        if item.type != "function_call":
            return []
        call = self._open_call(item.call_id, item.name, turn)
        call.arguments = item.arguments or call.arguments
        if item.status == "in_progress":  # left to the end of the turn
            return []
        return self._propose(call, broken=item.status == "incomplete")

    def _turn_done(self, event: Any) -> list[Event]:
        response = event.response
        completed = response.status == "completed"
        events: list[Event] = []
        if response.status == "cancelled":
            self._silenced.add(response.id)
            if reason_of(response) == "turn_detected":
                events.append(Interrupted(response.id))
        for item_id in [id_ for id_, item in self._items.items() if item.turn == response.id]:
            events += self._finish_item(item_id)
        for item in response.output or ():
            events += self._call_item(item, response.id)
        for call in [call for call in self._calls.values() if call.turn == response.id]:
            events += self._propose(call, broken=not completed)
        if response.usage:
            events.append(Usage(response.usage.to_dict()))
        events.append(TurnDone(response.id, cast(TurnStatus, response.status), reason_of(response)))
        if self.active == response.id:
            self.active = None
        self._requested = None
        return events

    def _truncated(self, event: Any) -> list[Event]:
        self.truncations = {id_: each for id_, each in self.truncations.items() if each.item != event.item_id}
        return []

    def _error(self, event: Any) -> list[Event]:
        error = event.error
        code, message = error.code or error.type or "error", one_line(error.message, self._secret)
        if self._requested and (
            code == "conversation_already_has_active_response" or error.event_id == self._requested[0]
        ):
            self.refused, self._requested = self._requested[1], None
        if truncation := self._refused_truncation(error):
            stated = [int(ms) for ms in re.findall(r"(\d+) ?ms", message) if int(ms) < truncation.audio_end_ms]
            if stated and not truncation.repeated:
                self._retry = Truncation(truncation.item, max(stated), repeated=True)
                message += f" (repeated once with {max(stated)} ms)"
        return [Problem(code, message)]

    def _refused_truncation(self, error: Any) -> Truncation | None:
        if error.event_id is None and error.param == "audio_end_ms" and len(self.truncations) == 1:
            return self.truncations.popitem()[1]
        return self.truncations.pop(error.event_id, None)

    def _open_call(self, call_id: str, name: str | None, turn: str) -> OpenCall:
        if call_id in self._proposed:
            return OpenCall(call_id, name or "", turn)
        call = self._calls.setdefault(call_id, OpenCall(call_id, name or "", turn))
        call.name = call.name or name or ""
        return call

    def _propose(self, call: OpenCall, *, broken: bool = False) -> list[Event]:
        self._calls.pop(call.call_id, None)
        if not call.call_id:
            return [Problem("call_without_id", f"a call of {call.name!r} came without an id and cannot be answered")]
        if call.call_id in self._proposed:
            return []
        self._proposed.add(call.call_id)
        return [ToolCall(call.call_id, call.name, call.arguments, call.turn, broken)]


HANDLERS: dict[str, Callable[[Reader, Any], list[Event]]] = {
    "input_audio_buffer.speech_started": Reader._speech_started,
    "input_audio_buffer.speech_stopped": Reader._speech_stopped,
    "conversation.item.input_audio_transcription.delta": Reader._heard_piece,
    "conversation.item.input_audio_transcription.completed": Reader._heard,
    "conversation.item.input_audio_transcription.failed": Reader._not_heard,
    "response.created": Reader._turn_started,
    "response.output_audio.delta": Reader._audio,
    "response.output_audio_transcript.delta": Reader._said_piece,
    "response.output_audio_transcript.done": Reader._said_all,
    "response.output_item.added": Reader._item_added,
    "response.function_call_arguments.delta": Reader._arguments_piece,
    "response.function_call_arguments.done": Reader._arguments_done,
    "response.output_item.done": Reader._item_done,
    "response.done": Reader._turn_done,
    "conversation.item.truncated": Reader._truncated,
    "error": Reader._error,
}


def reason_of(response: Any) -> str:
    """Why a response ended otherwise than completed; empty when it was completed."""
    details = response.status_details
    error = details and details.error
    return (details and (details.reason or (error and (error.code or error.type)))) or ""


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError, RecursionError):  # the last: nested thousands deep
        return False
