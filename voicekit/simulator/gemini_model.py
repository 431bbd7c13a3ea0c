"""What a simulated Gemini Live model does with its turn: think, speak, call, wait, be cut off.

The session (gemini_live.py) tells it what was heard, read and answered; the mind (rules.py) knows what there is to say.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

from voicekit.rules import Mind
from voicekit.simulator.gemini_turn import Turn
from voicekit.simulator.settings import Settings
from voicekit.simulator.voice import Voice
from voicekit.simulator.wire import gemini_frames as frames
from voicekit.simulator.wire import gemini_live as wire
from voicekit.steps import CallTool, Speak

ORPHAN_SECONDS = 0.05  # google/adk-python#4902: 1.4 ms after turnComplete was too late; tried up to 50 ms
TOKENS_PER_SECOND = 25  # of audio [FIELD 2026-09]
CHARACTERS_PER_TOKEN = 4  # of text; the vendor's rule of thumb


class Model:
    """The model of one session, with its context: `mind`, and `tokens` by modality.

    `may_begin(over_caller)` says whether the caller and the client let it begin a turn, with `over_caller` even while
    the caller speaks. `changed()` is told when it may have become idle or busy, `later` starts a timer of the session.
    """

    def __init__(
        self,
        session: wire.Wire,
        settings: Settings,
        setup: wire.Setup,
        voice: Voice,
        *,
        send: Callable[[dict[str, Any]], None],
        may_begin: Callable[[bool], bool],
        changed: Callable[[], None],
        later: Callable[..., None],
    ) -> None:
        self._wire, self._profile, self._setup, self._voice = session, session.profile, setup, voice
        self._faults, self._random = settings.faults, settings.random("gemini-live")
        self._send, self._may_begin, self._changed, self._later = send, may_begin, changed, later
        self._loop = asyncio.get_running_loop()
        self.mind = Mind(self._profile, settings.language)
        self.tokens = {"TEXT": 0, "AUDIO": 0}
        self._turn: Turn | None = None
        self._pending: asyncio.TimerHandle | None = None  # it thinks; its turn begins at the end
        self._pending_over_caller = False
        self._after_filler: list[Speak | CallTool] = []
        self._is_in_progress = False  # the last interactionStatus said so
        self._last_said = ""
        self._turn_ended = float("-inf")

    @property
    def is_speaking(self) -> bool:
        return self._turn is not None and self._turn.is_speaking

    @property
    def is_idle(self) -> bool:
        """It does nothing, and no call is open."""
        return self._turn is None and self._pending is None and not self._wire.open_calls and not self._after_filler

    def count_text(self, *texts: str) -> None:
        """Texts have come into the context."""
        self.tokens["TEXT"] += sum(len(text) for text in texts) // CHARACTERS_PER_TOKEN

    def count_speech(self, seconds: float) -> None:
        """Speech has come into the context."""
        self.tokens["AUDIO"] += round(seconds * TOKENS_PER_SECOND)

    def stop(self) -> None:
        """The session is over."""
        self._forget_pending()
        if self._turn is not None:
            self._turn.stop()

    def wait_for_caller(self) -> None:
        """The caller begins to speak: a turn that has not begun waits, and answers everything together."""
        if not self._pending_over_caller:
            self._forget_pending()

    def interrupt(self) -> None:
        """Cut it off: interrupted, then turnComplete, no generationComplete (google-genai types.py)."""
        self._after_filler = []
        if self._turn is None:
            return
        self.mind.cut_off(self._turn.stop())
        self._send(frames.content(interrupted=True))
        self._complete_turn()

    def consider(self, *, over_caller: bool = False) -> None:
        """Think about the next turn, if one is due and nothing stands in its way."""
        if self._pending is not None:
            self._pending_over_caller |= over_caller
            return
        if self._after_filler or self._wire.blocked_by or not self._may_begin(over_caller):
            return
        if self._turn is not None and not self._turn.waiting:
            return
        if "stall_after_call" in self._faults and self._wire.calls_made:
            return
        if not self.mind.has_something_to_say:
            if self._turn is not None:  # it waited for a call that was withdrawn or needs no words
                self._end_turn()
            self._changed()
            return
        # Looked up on a copy: the caller may speak before the turn begins, and then nothing must be consumed.
        steps = copy.deepcopy(self.mind).next_steps()
        self._pending_over_caller = over_caller
        self._think("call" if steps and isinstance(steps[0], CallTool) else "speech")

    # Calls

    def receive(self, result: wire.Result) -> None:
        """A result comes in, or a part of one."""
        orphaned = "orphan_late_result" in self._faults and self._comes_just_late(result)
        owed = result.when != "silent" and not orphaned
        self.mind.result(result.call_id, result.response, owed=owed, final=result.final)
        if orphaned and self._pending is None and self._last_said:
            self._think("speech", [Speak(self._last_said)])

    def _comes_just_late(self, result: wire.Result) -> bool:
        since = self._loop.time() - self._turn_ended
        return result.when not in (None, "silent") and self._turn is None and since <= ORPHAN_SECONDS

    def withdraw_blocking_calls(self) -> None:
        """New input cancels an open BLOCKING call, where the model does that."""
        call_ids = self._wire.blocked_by
        if call_ids and self._profile.input_during_blocking_call == "cancels":
            self._withdraw(call_ids)
            self.interrupt()

    def _withdraw(self, call_ids: list[str]) -> None:
        """Cancel those of the calls that are still open: the model waits for them no longer."""
        call_ids = [call_id for call_id in call_ids if call_id in self._wire.open_calls]
        if call_ids:
            self._send(frames.cancellation(call_ids))
        for call_id in call_ids:
            self._wire.settle(call_id)
            self.mind.cancelled(call_id)

    def _propose(self, calls: list[CallTool]) -> bool:
        """Send calls; returns whether the model must wait for them."""
        together = [calls] if self._profile.parallel_calls else [[call] for call in calls]
        if "second_id" in self._faults and not self._wire.calls_made:
            together[0] = together[0] * 2
        for group in together:
            entries = []
            for call in group:
                name = call.name
                if "unknown_tool" in self._faults and not self._wire.calls_made:
                    asked = self._faults["unknown_tool"]
                    name = asked if isinstance(asked, str) else "transfer_funds_v2"
                call_id = self._wire.open_call(name)
                self.mind.called(call_id, call)
                if "cancel_call_after_s" in self._faults:
                    self._later(float(self._faults["cancel_call_after_s"]), self._withdraw, [call_id])
                entries.append(frames.function_call(call_id, name, call.arguments))
            copies = [frames.tool_call(entries)]
            if "duplicate_call" in self._faults:
                copies.insert(self._faults["duplicate_call"] == "after", frames.calls_in_turn(entries))
            for each in copies:
                self._send(each)
        self._changed()
        return bool(self._wire.blocked_by)

    # Turns

    def _think(self, kind: str, steps: list[Speak | CallTool] | None = None) -> None:
        tokens = self.mind.context_tokens if self._profile.prefill else 0
        self._pending = self._loop.call_later(self._profile.latency(kind, self._random, tokens), self._begin, steps)
        self._changed()

    def _forget_pending(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
        self._pending, self._pending_over_caller = None, False

    def _begin(self, steps: list[Speak | CallTool] | None) -> None:
        """Begin with `steps`, or with what the mind decides now."""
        self._pending, self._pending_over_caller = None, False
        steps = self.mind.next_steps() if steps is None else steps
        filler = next(iter(steps), None)
        if self._profile.interaction_status and isinstance(filler, Speak) and filler.commentary:
            # Extended thinking closes the turn of its filler before it calls (order seen in field reports, 2026-09).
            steps, self._after_filler = steps[:1], steps[1:]
        if steps:
            self._begin_turn(steps)
        elif self._turn is not None:
            self._end_turn()
        elif self._is_in_progress and not self._wire.open_calls:
            self._complete_turn()  # nothing to say, but the client waits for IDLE
        else:
            self._changed()

    def _begin_turn(self, steps: list[Speak | CallTool]) -> None:
        first = next((index for index, step in enumerate(steps) if isinstance(step, CallTool)), len(steps))
        if "promise_without_call" in self._faults and first:
            steps, self._after_filler = steps[:first], []
        said = " ".join(step.text for step in steps if isinstance(step, Speak))
        self._last_said = said or self._last_said
        if self._turn is None:
            self._turn = Turn(
                self._send,
                self._voice,
                lengths_ms=self._profile.audio_pieces,
                speed=self._profile.audio_speed,
                transcribed=self._setup.transcribe_output,
                propose=self._propose,
                waits=self._wait_for_results,
                over=self._end_turn,
            )
        self._changed()
        self._turn.add(steps)

    def _wait_for_results(self) -> None:
        if self._profile.turn_ends_with_blocking_call:
            self._send(frames.content(generationComplete=True))
            self._complete_turn()

    def _end_turn(self) -> None:
        self._complete_turn()
        if self._after_filler:
            steps, self._after_filler = self._after_filler, []
            if self._propose([step for step in steps if isinstance(step, CallTool)]):
                return
        self.consider()

    def _complete_turn(self) -> None:
        seconds = self._turn.audio_seconds if self._turn is not None else 0.0
        self._turn, self._turn_ended = None, self._loop.time()
        spoken = {"AUDIO": round(seconds * TOKENS_PER_SECOND)}
        status: dict[str, Any] = {}
        if self._profile.interaction_status:
            # Without a status on every turnComplete the SDK would take the first one for the end (google-genai 3.6.1).
            more = self._after_filler or self._wire.open_calls or self.mind.has_something_to_say
            self._is_in_progress = bool(more)
            status = {"interactionStatus": "IN_PROGRESS" if more else "IDLE"}
        frame = frames.content(turnComplete=True, **status)
        self._send({**frame, "usageMetadata": frames.usage(self.tokens, spoken)})
        self.tokens["AUDIO"] += spoken["AUDIO"]
