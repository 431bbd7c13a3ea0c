"""Gemini Live's messages in our words: turns, items and calls, without a socket.

The provider names neither turns nor stretches of speech, so both get names here: a turn is "turn_3", its first item
"turn_3" as well, the next one (after a call in the middle of the turn) "turn_3_2".
"""

from __future__ import annotations

import json

from google.genai import types

from voicekit.sessions._common import Recent
from voicekit.sessions.base import (
    Audio,
    Event,
    GoAway,
    Heard,
    Interrupted,
    Said,
    SpeechStarted,
    SpeechStopped,
    ToolCall,
    ToolCallCancelled,
    TurnDone,
    TurnStarted,
    Usage,
)

NAMES_KEPT = 1000  # calls whose tool is remembered, for their answers


class Reader:
    """Turns messages into events. `spoken`: the model has gone on since `spoken` was last set to False."""

    def __init__(self) -> None:
        self.spoken = False
        self.handle: str | None = None
        self.open_calls: set[str] = set()
        self.cancelled = Recent()
        self._names: dict[str, str] = {}
        self._proposed = Recent()
        self._unnamed = 0
        self._turns = 0
        self._items = 0  # of this turn
        self._turn = ""  # the active turn
        self._last_turn = ""
        self._item = ""  # where audio and transcript belong now
        self._last_item = ""
        self._interrupted = False
        self._said = ""  # transcript of the item so far
        self._early = ""  # transcript that came before its audio
        self._heard = ""  # what the caller said so far

    def tool(self, call_id: str) -> str | None:
        """The name of the tool a call asked for; None for a call that never came."""
        return self._names.get(call_id)

    def answered(self, call_id: str) -> None:
        self.open_calls.discard(call_id)

    def translate(self, message: types.LiveServerMessage) -> list[Event]:
        events: list[Event] = []
        update = message.session_resumption_update
        if update is not None and update.resumable and update.new_handle:
            self.handle = update.new_handle
        if message.voice_activity is not None:
            events += self._voice_activity(message.voice_activity)
        if message.server_content is not None:
            events += self._content(message.server_content)
        if message.tool_call is not None:
            events += self._tool_call(message.tool_call.function_calls or [])
        if message.tool_call_cancellation is not None:
            events += self._cancel(message.tool_call_cancellation.ids or [])
        if message.go_away is not None:
            events.append(GoAway(seconds(message.go_away.time_left)))
        if message.usage_metadata is not None:
            events.append(Usage(message.usage_metadata.model_dump(mode="json", exclude_none=True)))
        return events

    def _voice_activity(self, activity: types.VoiceActivity) -> list[Event]:
        at_ms = None if activity.audio_offset is None else round(seconds(activity.audio_offset) * 1000)
        if activity.voice_activity_type == types.VoiceActivityType.ACTIVITY_START:
            return [SpeechStarted(at_ms=at_ms)]
        if activity.voice_activity_type == types.VoiceActivityType.ACTIVITY_END:
            return [SpeechStopped(at_ms=at_ms)]
        return []

    def _content(self, content: types.LiveServerContent) -> list[Event]:
        events: list[Event] = []
        heard, said = content.input_transcription, content.output_transcription
        if heard is not None and heard.text:
            self._heard += heard.text
            events.append(Heard(heard.text, final=False))
        if heard is not None and heard.finished:
            events += self._finish_heard()
        if content.interrupted:
            self.spoken = True
            events += self._interrupt()
        if content.model_turn is not None:
            for part in content.model_turn.parts or []:
                events += self._part(part)
        if said is not None and said.text and not self._interrupted:
            events += self._transcript(said.text)
        idle = content.interaction_status == types.InteractionStatus.IDLE
        if content.turn_complete or (idle and self._turn):
            self.spoken = True
            events += self._complete(content)
        return events

    def _part(self, part: types.Part) -> list[Event]:
        if part.function_call is not None:
            return self._tool_call([part.function_call])
        if part.inline_data is None or not part.inline_data.data or self._interrupted:
            return []
        self.spoken = True
        events = self._begin()
        if not self._item:
            self._items += 1
            self._item = self._last_item = self._turn if self._items == 1 else f"{self._turn}_{self._items}"
        events.append(Audio(self._item, part.inline_data.data, self._turn))
        if self._early:
            early, self._early = self._early, ""
            events += self._transcript(early)
        return events

    def _transcript(self, text: str) -> list[Event]:
        """Transcripts come in no order with the audio: one without an open item waits for the item."""
        if not self._item:
            self._early += text
            return []
        self._said += text
        return [Said(self._item, text, self._turn)]

    def _begin(self) -> list[Event]:
        if self._turn:
            return []
        self._turns += 1
        self._turn = self._last_turn = f"turn_{self._turns}"
        self._items = 0
        return [*self._finish_heard(), TurnStarted(self._turn)]

    def _finish_heard(self) -> list[Event]:
        heard, self._heard = self._heard, ""
        return [Heard(heard)] if heard.strip() else []

    def _finish_item(self) -> list[Event]:
        said, item = self._said, self._item
        self._said = self._item = ""
        return [Said(item, said, self._turn, final=True)] if item else []

    def _interrupt(self) -> list[Event]:
        self._interrupted = bool(self._turn)  # what is still under way of this turn is not handed on
        self._early = ""
        # A turn that has ended on the wire may still be playing.
        return [Interrupted(self._last_turn), *self._finish_item()]

    def _complete(self, content: types.LiveServerContent) -> list[Event]:
        events: list[Event] = []
        if self._early and not self._item and self._items:  # a transcript that came after its item had ended
            events.append(Said(self._last_item, self._early, self._turn))
        self._early = ""
        events += self._finish_item()
        events += self._finish_heard()
        if self._turn and not self._interrupted:
            events.append(self._turn_done(content))
            self._turn = ""
        return events + self._finish_interrupted()

    def _finish_interrupted(self) -> list[Event]:
        if not self._interrupted:
            return []
        turn, self._turn, self._interrupted = self._turn, "", False
        return [TurnDone(turn, "cancelled", "interrupted")]

    def _turn_done(self, content: types.LiveServerContent) -> TurnDone:
        reason = content.turn_complete_reason
        if reason is None or reason == types.TurnCompleteReason.TURN_COMPLETE_REASON_UNSPECIFIED:
            working = content.interaction_status == types.InteractionStatus.IN_PROGRESS
            return TurnDone(self._turn, "completed", "in_progress" if working else "")
        failed = reason != types.TurnCompleteReason.NEED_MORE_INPUT
        return TurnDone(self._turn, "failed" if failed else "completed", reason.value)

    def _tool_call(self, calls: list[types.FunctionCall]) -> list[Event]:
        """Each call once, however often it is sent; a call without an id is never taken for a repetition."""
        events: list[Event] = []
        for call in calls:
            call_id = call.id
            if not call_id:
                self._unnamed += 1
                call_id = f"call_without_id_{self._unnamed}"
            if call_id in self._proposed:
                continue
            if not events:
                self.spoken = True
                events += self._finish_interrupted() + self._begin() + self._finish_item()
            self._proposed.add(call_id)
            self.open_calls.add(call_id)
            self._names[call_id] = call.name or ""
            if len(self._names) > NAMES_KEPT:
                del self._names[next(iter(self._names))]
            arguments = json.dumps(call.args or {}, ensure_ascii=False)
            events.append(ToolCall(call_id, call.name or "", arguments, self._turn))
        return events

    def _cancel(self, call_ids: list[str]) -> list[Event]:
        for call_id in call_ids:
            self.open_calls.discard(call_id)
            self.cancelled.add(call_id)
        return [ToolCallCancelled(tuple(call_ids))] if call_ids else []


def seconds(duration: str | None) -> float:
    """Read a duration such as "60s" or "1.5s"; 0 when there is none."""
    return float((duration or "0").rstrip("s") or 0)
