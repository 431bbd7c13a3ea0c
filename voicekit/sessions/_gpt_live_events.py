"""GPT-Live's events in our words, without a socket: a stream cut into stretches of speech, and the work beside it.

The API has no turns, no items and no end of anything that is said. What the rest of the kit needs of these is made
here, and only here, from the one thing there is: the position in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pybase64

from voicekit.audio import AUDIBLE_DBFS, frame_levels, from_pcm
from voicekit.sessions._common import Recent, one_line
from voicekit.sessions.base import (
    Appended,
    Audio,
    Delegation,
    Event,
    Heard,
    Problem,
    Said,
    ToolCall,
    TurnStatus,
    Usage,
    Work,
)

BYTES_PER_MS = 48  # PCM16 mono at 24 kHz
PAUSE_MS = 300  # the model's silence after which its next word begins a new stretch of speech
HEARD_PAUSE_MS = 500  # the same for the caller's words: the SDK's transcript grouper separates turns by as much

# Events of the API that the adapter does not use, each with the reason.
NOT_USED = {
    "session.started": "read while the session is set up",
    "session.updated": "only answers what the application asked for itself",
    "session.input_audio.muted": "only answers what the application asked for itself",
    "session.input_audio.unmuted": "only answers what the application asked for itself",
    "session.output_audio.fixture.playing": "the kit plays no fixtures",
    "session.output_audio.fixture.played": "the kit plays no fixtures",
    "session.input_audio.append": "a supervisor's copy; see Sideband",
    "decision.event": "the kit has no Decisions delegation: no guide describes it",
    "decision.item.created": "the kit has no Decisions delegation: no guide describes it",
    "decision.item.deleted": "the kit has no Decisions delegation: no guide describes it",
    "info": "a notice that changes nothing; it is in the run's wire log",
    "session.paused": "WebRTC sessions only",
    "session.resumed": "WebRTC sessions only",
    "transport.dtmf.received": "telephone calls only (SIP)",
    "transport.dtmf.send": "telephone calls only (SIP)",
    "transport.dtmf.sent": "telephone calls only (SIP)",
    "transport.ringing": "telephone calls only (SIP)",
    "transport.answered": "telephone calls only (SIP)",
    "transport.failed": "telephone calls only (SIP)",
}


class Reader:
    """Turns the provider's events into ours; knows the stream and the backend's responses, but no socket."""

    def __init__(self, secret: str) -> None:
        self._secret = secret  # the API key, which a service may quote in a message
        self.closed = ""  # why the session ended
        self.working: dict[str, str] = {}  # responses of the backend under way: delegation by id
        # The model's stretches of speech
        self._position_ms = 0.0
        self._number = 1  # of the stretch that is open, or that comes next
        self._is_open = False
        self._silent_ms = 0.0
        self._stop_ms = 0.0  # where the stretch before ended
        self._said: dict[str, str] = {}
        # The caller's words
        self._hearing = 0
        self._heard = ""
        self._heard_end_ms = 0.0
        self._heard_at_ms: float | None = None  # position at which the latest words came; None: all of it told
        # The backend
        self._responses: dict[str | None, str] = {}  # the latest response by delegation
        self._texts: dict[str, list[str]] = {}
        self._proposed = Recent()

    def translate(self, event: Any) -> list[Event]:
        """Events for one message, told apart by its `type` alone: the SDK's class of an unknown type is arbitrary."""
        handler = HANDLERS.get(event.type)
        return handler(self, event) if handler else []

    def finish(self) -> list[Event]:
        """The stream is over: end what is open."""
        return [*self._close_stretch(), *self._close_heard()]

    # The stream

    def _audio(self, event: Any) -> list[Event]:
        pcm = pybase64.b64decode(event.delta, validate=True)
        ms = len(pcm) / BYTES_PER_MS
        self._position_ms += ms
        events: list[Event] = []
        if self._heard_at_ms is not None and self._position_ms - self._heard_at_ms >= HEARD_PAUSE_MS:
            events += self._close_heard()
        if is_silent(pcm):
            # Nothing to play; a pause inside a stretch comes about by itself, since the sound arrives as it is spoken.
            self._silent_ms += ms
            return events + self._close_stretch() if self._is_open and self._silent_ms >= PAUSE_MS else events
        self._is_open, self._silent_ms = True, 0.0
        return [*events, Audio(self._stretch, pcm)]

    @property
    def _stretch(self) -> str:
        return f"speech_{self._number:04d}"

    def _close_stretch(self) -> list[Event]:
        if not self._is_open:
            return []
        name = self._stretch
        self._stop_ms = self._position_ms - self._silent_ms
        self._is_open = False
        self._number += 1
        return [Said(name, self._said.get(name, ""), final=True)]

    def _said_piece(self, event: Any) -> list[Event]:
        """Words of the open stretch; else, by their place on the timeline, of the one before or the one to come."""
        if not event.delta:
            return []
        is_late = not self._is_open and self._number > 1 and event.start_ms < self._stop_ms
        name = f"speech_{self._number - 1:04d}" if is_late else self._stretch
        self._said[name] = self._said.get(name, "") + event.delta
        return [Said(name, event.delta)]

    def _heard_piece(self, event: Any) -> list[Event]:
        """Words of the caller. Late ones that go on where the last stopped belong to it, though it was told before."""
        events: list[Event] = []
        if event.start_ms - self._heard_end_ms >= HEARD_PAUSE_MS or not self._hearing:
            events += self._close_heard()
            self._hearing += 1
            self._heard = ""
        self._heard += event.delta
        self._heard_end_ms = max(self._heard_end_ms, event.end_ms)
        self._heard_at_ms = self._position_ms
        return [*events, Heard(event.delta, self._utterance, final=False)]

    @property
    def _utterance(self) -> str:
        return f"heard_{self._hearing:04d}"

    def _close_heard(self) -> list[Event]:
        if self._heard_at_ms is None:
            return []
        self._heard_at_ms = None
        return [Heard(self._heard.strip(), self._utterance)]

    # Work

    def _delegated(self, event: Any) -> list[Event]:
        return [Delegation(event.delegation.id, event.delegation.target, event.offset_ms)]

    def _appended(self, event: Any) -> list[Event]:
        return [Appended(event.client_event_id or "", event.type.split(".")[1], event.end_ms)]

    def _backend_event(self, event: Any) -> list[Event]:
        nested: Mapping[str, Any] = event.event
        handler = NESTED.get(str(nested.get("type")))
        return handler(self, event.delegation_id, nested) if handler else []

    def _work_started(self, delegation: str | None, event: Mapping[str, Any]) -> list[Event]:
        id_ = event["response"]["id"]
        self.working[id_] = delegation or ""
        self._responses[delegation] = id_
        self._texts[id_] = []
        return [Work(id_, delegation or "")]

    def _item_done(self, delegation: str | None, event: Mapping[str, Any]) -> list[Event]:
        """The only event that holds a call with all there is to it."""
        item = event["item"]
        if item["type"] != "function_call" or item["call_id"] in self._proposed:
            return []
        self._proposed.add(item["call_id"])
        turn = self._responses.get(delegation, "")
        broken = item.get("status") == "incomplete"
        return [ToolCall(item["call_id"], item["name"], item["arguments"], turn, broken)]

    def _text_done(self, delegation: str | None, event: Mapping[str, Any]) -> list[Event]:
        self._texts.setdefault(self._responses.get(delegation, ""), []).append(event["text"])
        return []

    def _work_done(self, delegation: str | None, event: Mapping[str, Any]) -> list[Event]:
        response = event["response"]
        self.working.pop(response["id"], None)
        text = " ".join(self._texts.pop(response["id"], []))
        status = cast(TurnStatus, response.get("status") or event["type"].removeprefix("response."))
        usage: list[Event] = [Usage(dict(response["usage"]))] if response.get("usage") else []
        error = response.get("error") or {}
        failed: list[Event] = []
        if status != "completed":
            code = error.get("code") or (response.get("incomplete_details") or {}).get("reason") or status
            message = one_line(error.get("message") or f"the backend's response ended as {status}", self._secret)
            failed = [Problem(code, message)]
        return [*usage, *failed, Work(response["id"], delegation or "", status, text)]

    def _work_error(self, _delegation: str | None, event: Mapping[str, Any]) -> list[Event]:
        return [Problem(event.get("code") or "backend_error", one_line(event.get("message") or "", self._secret))]

    # The session

    def _usage(self, event: Any) -> list[Event]:
        return [Usage(event.usage.to_dict())]

    def _error(self, event: Any) -> list[Event]:
        error = event.error
        return [Problem(error.code or error.type or "error", one_line(error.message, self._secret))]

    def _closed(self, event: Any) -> list[Event]:
        self.closed = event.reason
        usage: list[Event] = [Usage(event.usage.to_dict())] if event.usage else []
        return [*self.finish(), *usage]


HANDLERS: dict[str, Callable[[Reader, Any], list[Event]]] = {
    "session.output_audio.delta": Reader._audio,
    "session.output_transcript.delta": Reader._said_piece,
    "session.input_transcript.delta": Reader._heard_piece,
    "session.delegation.created": Reader._delegated,
    "session.instructions.appended": Reader._appended,
    "session.thinking.appended": Reader._appended,
    "session.commentary.appended": Reader._appended,
    "response.event": Reader._backend_event,
    "session.usage.updated": Reader._usage,
    "session.closed": Reader._closed,
    "error": Reader._error,
}
NESTED: dict[str, Callable[[Reader, str | None, Mapping[str, Any]], list[Event]]] = {
    "response.created": Reader._work_started,
    "response.output_item.done": Reader._item_done,
    "response.output_text.done": Reader._text_done,
    "response.completed": Reader._work_done,
    "response.incomplete": Reader._work_done,
    "response.failed": Reader._work_done,
    "error": Reader._work_error,
}


def is_silent(pcm: bytes) -> bool:
    """Whether no 10 ms of it are audible, by the kit's own measure. Digital silence, the usual case, is quick."""
    if pcm == bytes(len(pcm)):
        return True
    levels = frame_levels(from_pcm(pcm[: len(pcm) // 2 * 2]))
    return not len(levels) or bool(levels.max() <= AUDIBLE_DBFS)
