"""A simulated Gemini Live session: who speaks when, on top of the wire, the ears, the mind and the voice.

The rules of turn-taking are those of the vendor's Live API pages (ai.google.dev, live-api, September 2026) and of the
docstrings of google-genai 3.6.1; what a model does differently from another is in its `Profile` (data/models.csv), what
was never published is said where it is decided.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

from voicekit.rules import Mind
from voicekit.simulator.ears import Ears
from voicekit.simulator.gemini_caller import Caller
from voicekit.simulator.gemini_store import Store, Thread
from voicekit.simulator.gemini_turn import Turn
from voicekit.simulator.server import Connection
from voicekit.simulator.settings import Settings
from voicekit.simulator.voice import Voice
from voicekit.simulator.wire import gemini_frames as frames
from voicekit.simulator.wire import gemini_live as wire
from voicekit.simulator.wire.gemini_schema import Refused
from voicekit.steps import CallTool, Speak
from voicekit.understanding import Utterance

CONNECTION_SECONDS = 600.0  # "connection about 10 min, GoAway about 60 s before" (ai.google.dev, 2026)
NOTICE_SECONDS = 60.0
FAULT_NOTICE_SECONDS = 3.0  # of the fault goaway_after_s, as in google/adk-python#4996
ORPHAN_SECONDS = 0.05  # google/adk-python#4902: 1.4 ms after turnComplete was too late; tried up to 50 ms
GARBAGE = "simulated garbage"
TOKENS_PER_SECOND = 25  # of audio [FIELD 2026-09]
CHARACTERS_PER_TOKEN = 4  # of text; the vendor's rule of thumb


def serves(path: str) -> bool:
    """Whether a path is that of this service: any version, either method, also with a doubled slash."""
    return "BidiGenerateContent" in path  # ...Constrained too


class Endpoint:
    """One connection to the simulated service.

    Faults (`Settings.faults`), each imitating something reported of the real service:
        no_setup_complete                 the setup is never answered (PatterAI/Patter#210)
        stall_after_call                  nothing follows a call, whatever the answer (the same)
        duplicate_call                    a call comes also as a part of the model's turn: "before" (or True) or "after"
                                          the toolCall frame (mastra-ai/mastra#22969)
        second_id                         the first call is made twice, under two ids
        promise_without_call              a turn that announces a call ends with the announcement
                                          (tinyhumansai/openhuman#5552)
        unknown_tool                      the first call names this tool (True: "transfer_funds_v2") instead of its own
        orphan_late_result                a NON_BLOCKING result that comes within 50 ms after turnComplete is taken for
                                          new input: the last answer is said again, the result is not
                                          (google/adk-python#4902)
        close_1008_on_audio_during_call   audio that arrives while a call is open closes the session
                                          (google/adk-python#4679)
        cancel_call_after_s               a call that is still open after so many seconds is cancelled
        close                             {"after_s": s, "code": 1011, "reason": ""}: closes s seconds after the setup
        goaway_after_s                    goAway with 3 s left after so many seconds, then the close
                                          (google/adk-python#4996)
        garbage_after_s                   after so many seconds a frame that is no JSON

    Resumption: a handle restores the context of the moment it was issued; handles are issued when the model is idle
    and no call is open. What was said after it is lost, which the vendor calls "some data loss". A call in flight
    stays known to the resumed session (assumed; not documented). `ears` and `voice` are for tests.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        *,
        ears: Callable[..., Ears] = Ears,
        voice: Callable[..., Voice] = Voice,
    ) -> None:
        self._connection, self._settings, self._faults = connection, settings, settings.faults
        self._make_ears, self._voice = settings.fit(ears), voice(settings.language)
        self._wire = wire.Wire(settings.profile)
        self._loop = asyncio.get_running_loop()
        self._random = settings.random("gemini-live")
        self._store = Store.of(connection.server)
        self._is_over = False
        self._frames_received = 0
        self._session_timers: list[asyncio.TimerHandle] = []
        # the session, from the setup on
        self._setup = wire.Setup(model="")
        self._profile = self._wire.profile
        self._thread = Thread()
        self._mind = Mind(self._profile, settings.language)
        self._tokens = {"TEXT": 0, "AUDIO": 0}  # the context, by modality
        self._is_resumable = False
        # the caller
        self._caller = self._make_caller()
        self._talked_over = False  # the caller began to speak while the model spoke, and has not stopped it yet
        self._content_open = False  # clientContent without turnComplete: more will follow
        self._history_open = False
        # the model
        self._turn: Turn | None = None
        self._pending: asyncio.TimerHandle | None = None  # the model thinks; its turn begins at the end
        self._pending_over_caller = False
        self._after_filler: list[Speak | CallTool] = []
        self._is_in_progress = False  # the last interactionStatus said so
        self._last_said = ""
        self._turn_ended = float("-inf")

    # The connection

    def opened(self) -> None:
        pass  # the client begins

    def received(self, frame: Any) -> None:
        if self._is_over or "no_setup_complete" in self._faults:
            return
        self._frames_received += 1
        try:
            for effect in self._wire.receive(frame):
                self._handle(effect)
        except Refused as refusal:
            self._close(refusal.code, refusal.reason)
        except RecursionError:
            self._close(1007, "Invalid JSON payload received. Message too deep.")

    def closed(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        for timer in self._session_timers:
            timer.cancel()
        self._forget_pending()
        if self._turn is not None:
            self._turn.stop()
        thread, open_calls = self._thread, self._mind.open_calls
        thread.connected = False
        thread.calls = {call_id: open_calls[call_id] for call_id in self._wire.open_calls if call_id in open_calls}
        thread.behaviors, thread.calls_made = dict(self._wire.open_calls), self._wire.calls_made

    def _close(self, code: int, reason: str = "") -> None:
        self._connection.close(code, reason)
        self.closed()

    def _later(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        self._session_timers.append(self._loop.call_later(max(0.0, seconds), action, *arguments))

    def _handle(self, effect: wire.Effect) -> None:
        match effect:
            case wire.Audio():
                self._on_audio(effect)
            case wire.Setup():
                self._on_setup(effect)
            case wire.Text():
                self._on_text(effect.text)
            case wire.Activity():
                self._caller.mark(effect.kind)
            case wire.Content():
                self._on_content(effect)
            case wire.Result():
                self._on_result(effect)
            case wire.ContextUpdate():
                self._on_update(effect)

    # The session

    def _make_caller(self) -> Caller:
        return Caller(
            self._settings.clips,
            self._setup,
            ears=self._make_ears,
            started=self._on_speech_started,
            ended=self._on_utterance,
        )

    def _on_setup(self, setup: wire.Setup) -> None:
        self._setup, self._profile = setup, self._wire.profile
        self._caller = self._make_caller()
        self._mind = Mind(self._profile, self._settings.language)
        if setup.handle:
            self._resume(setup.handle)
        self._mind.configure(setup.instructions, [tool.as_dict() for tool in setup.tools])
        self._count_text(setup.instructions, *(tool.description for tool in setup.tools))
        self._history_open = setup.history_first
        self._connection.send(frames.setup_complete(self._store.new_session_id()))
        self._set_timers()
        if setup.handle:
            self._consider()  # it may still owe something

    def _set_timers(self) -> None:
        limit = CONNECTION_SECONDS if self._settings.session_seconds is None else self._settings.session_seconds
        self._leave(limit, min(NOTICE_SECONDS, limit / 2))
        if "goaway_after_s" in self._faults:
            self._leave(float(self._faults["goaway_after_s"]) + FAULT_NOTICE_SECONDS, FAULT_NOTICE_SECONDS)
        if "garbage_after_s" in self._faults:
            self._later(float(self._faults["garbage_after_s"]), self._connection.send_text, GARBAGE)
        if "close" in self._faults:
            close = self._faults["close"]
            self._later(float(close["after_s"]), self._close, int(close.get("code", 1011)), close.get("reason", ""))

    def _leave(self, seconds: float, notice: float) -> None:
        """Announce the end `notice` seconds before it. The code: Google Cloud's troubleshooting page."""
        self._later(seconds - notice, self._connection.send, frames.go_away(round(notice, 3)))
        self._later(seconds, self._close, 1000)

    def _resume(self, handle: str) -> None:
        saved = self._store.resume(handle)
        self._mind, self._tokens, self._thread = saved.mind, saved.tokens, saved.thread
        self._wire.calls_made = self._thread.calls_made
        for call_id, call in self._thread.calls.items():
            self._wire.open_calls[call_id] = self._thread.behaviors[call_id]
            self._mind.called(call_id, call)

    def _report_resumption(self) -> None:
        """Tell the client whether the session could be resumed from here, when that has changed."""
        idle = self._turn is None and self._pending is None and not self._wire.open_calls and not self._after_filler
        if not self._setup.resumable or idle == self._is_resumable:
            return
        self._is_resumable = idle
        handle = self._store.save(self._mind, self._tokens, self._thread) if idle else ""
        consumed = self._frames_received if self._setup.transparent else None
        self._connection.send(frames.resumption_update(handle, consumed))

    def _on_update(self, update: wire.ContextUpdate) -> None:
        instructions = self._mind.instructions if update.instructions is None else update.instructions
        self._mind.configure(instructions, [tool.as_dict() for tool in self._wire.tools.values()])
        self._count_text(update.instructions or "")

    def _count_text(self, *texts: str) -> None:
        self._tokens["TEXT"] += sum(len(text) for text in texts) // CHARACTERS_PER_TOKEN

    # The caller

    def _on_audio(self, audio: wire.Audio) -> None:
        if self._wire.open_calls and "close_1008_on_audio_during_call" in self._faults:
            raise Refused(1008, wire.UNSUPPORTED_OPERATION)
        self._caller.hear(audio)
        self._yield_to_caller()

    def _on_speech_started(self) -> None:
        self._content_open = False
        if not self._pending_over_caller:
            self._forget_pending()  # the model waits and answers everything together
        self._talked_over = self._is_speaking
        self._yield_to_caller()

    def _yield_to_caller(self) -> None:
        """Stop talking once the caller, who has talked over it, has gone on for so long that it is no mere "mm-hm"."""
        if not (self._talked_over and self._caller.is_speaking):
            return
        if self._caller.spoken_seconds >= self._profile.interrupt_after:
            self._talked_over = False
            if self._setup.interrupts and self._is_speaking:
                self._interrupt()

    def _on_utterance(self, utterance: Utterance | None) -> None:
        if utterance is None:
            self._consider()
            return
        self._tokens["AUDIO"] += round(utterance.seconds * TOKENS_PER_SECOND)
        if self._setup.transcribe_input and utterance.transcript:
            self._connection.send(frames.content(inputTranscription={"text": utterance.transcript}))
        if utterance.understood:  # clients stream silence all through a call: only speech withdraws it
            self._withdraw_blocking_calls()
        self._mind.hear(utterance)
        self._consider()

    def _on_text(self, text: str) -> None:
        self._content_open = False
        if text.strip():  # a blank only asks for the turn that is due anyway
            if self._setup.interrupts and self._is_speaking:
                self._interrupt()
            self._withdraw_blocking_calls()
            self._count_text(text)
            self._mind.read("user", text)
        self._consider()

    def _on_content(self, content: wire.Content) -> None:
        """Turns of a written conversation. Those of the user after the model's last one are still to be answered."""
        answered = max((index for index, (role, _) in enumerate(content.turns) if role == "model"), default=-1)
        if not self._history_open:
            if self._is_speaking:  # "a message here will interrupt any current model generation" (types.py)
                self._interrupt()
            self._withdraw_blocking_calls()
        for index, (role, text) in enumerate(content.turns):
            self._count_text(text)
            if role == "model" or (index > answered and not self._history_open):
                self._mind.read(role, text)
        self._content_open = not content.complete
        if content.complete:
            self._history_open = False
        self._consider()

    # Results and calls

    def _on_result(self, result: wire.Result) -> None:
        self._count_text(json.dumps(result.response))
        orphaned = "orphan_late_result" in self._faults and self._comes_just_late(result)
        owed = result.when != "silent" and not orphaned
        self._mind.result(result.call_id, result.response, owed=owed, final=result.final)
        if orphaned and self._pending is None and self._last_said:
            self._think("speech", [Speak(self._last_said)])
        speaks_over = False
        if result.when == "interrupt":
            speaks_over = self._profile.interrupt_while_caller_speaks == "speaks_over"
            if self._is_speaking and (speaks_over or not self._caller.is_speaking):
                self._interrupt()
        self._consider(over_caller=speaks_over)

    def _comes_just_late(self, result: wire.Result) -> bool:
        since = self._loop.time() - self._turn_ended
        return result.when not in (None, "silent") and self._turn is None and since <= ORPHAN_SECONDS

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
                self._mind.called(call_id, call)
                if "cancel_call_after_s" in self._faults:
                    self._later(float(self._faults["cancel_call_after_s"]), self._withdraw, [call_id])
                entries.append(frames.function_call(call_id, name, call.arguments))
            copies = [frames.tool_call(entries)]
            if "duplicate_call" in self._faults:
                copies.insert(self._faults["duplicate_call"] == "after", frames.calls_in_turn(entries))
            for each in copies:
                self._connection.send(each)
        self._report_resumption()
        return bool(self._wire.blocked_by)

    def _withdraw_blocking_calls(self) -> None:
        """New input cancels an open BLOCKING call, where the model does that."""
        call_ids = self._wire.blocked_by
        if call_ids and self._profile.input_during_blocking_call == "cancels":
            self._withdraw(call_ids)
            self._interrupt()

    def _withdraw(self, call_ids: list[str]) -> None:
        """Cancel those of the calls that are still open: the model waits for them no longer."""
        call_ids = [call_id for call_id in call_ids if call_id in self._wire.open_calls]
        if call_ids:
            self._connection.send(frames.cancellation(call_ids))
        for call_id in call_ids:
            self._wire.settle(call_id)
            self._mind.cancelled(call_id)

    # The model

    @property
    def _is_speaking(self) -> bool:
        return self._turn is not None and self._turn.is_speaking

    def _consider(self, *, over_caller: bool = False) -> None:
        """Let the model think about its next turn, if one is due and nothing stands in its way."""
        if self._pending is not None:
            self._pending_over_caller |= over_caller
            return
        if self._is_over or self._history_open or self._content_open or self._after_filler or self._wire.blocked_by:
            return
        if self._turn is not None and not self._turn.waiting:
            return
        if self._caller.is_speaking and not over_caller:
            return
        if "stall_after_call" in self._faults and self._wire.calls_made:
            return
        if not self._mind.has_something_to_say:
            if self._turn is not None:  # it waited for a call that was withdrawn or needs no words
                self._end_turn()
            self._report_resumption()
            return
        # Looked up on a copy: the caller may speak before the turn begins, and then nothing must be consumed.
        steps = copy.deepcopy(self._mind).next_steps()
        self._pending_over_caller = over_caller
        self._think("call" if steps and isinstance(steps[0], CallTool) else "speech")

    def _think(self, kind: str, steps: list[Speak | CallTool] | None = None) -> None:
        tokens = self._mind.context_tokens if self._profile.prefill else 0
        self._pending = self._loop.call_later(self._profile.latency(kind, self._random, tokens), self._begin, steps)
        self._report_resumption()

    def _forget_pending(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
        self._pending, self._pending_over_caller = None, False

    def _begin(self, steps: list[Speak | CallTool] | None) -> None:
        """Begin with `steps`, or with what the mind decides now."""
        self._pending, self._pending_over_caller = None, False
        steps = self._mind.next_steps() if steps is None else steps
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
            self._report_resumption()

    def _begin_turn(self, steps: list[Speak | CallTool]) -> None:
        first = next((index for index, step in enumerate(steps) if isinstance(step, CallTool)), len(steps))
        if "promise_without_call" in self._faults and first:
            steps, self._after_filler = steps[:first], []
        said = " ".join(step.text for step in steps if isinstance(step, Speak))
        self._last_said = said or self._last_said
        if self._turn is None:
            self._turn = Turn(
                self._connection.send,
                self._voice,
                speed=self._profile.audio_speed,
                transcribed=self._setup.transcribe_output,
                propose=self._propose,
                waits=self._wait_for_results,
                over=self._end_turn,
            )
        self._report_resumption()
        self._turn.add(steps)

    def _interrupt(self) -> None:
        """Cut the model off: interrupted, then turnComplete, no generationComplete (google-genai types.py)."""
        self._after_filler = []
        if self._turn is None:
            return
        self._mind.cut_off(self._turn.stop())
        self._connection.send(frames.content(interrupted=True))
        self._complete_turn()

    def _wait_for_results(self) -> None:
        if self._profile.turn_ends_with_blocking_call:
            self._connection.send(frames.content(generationComplete=True))
            self._complete_turn()

    def _end_turn(self) -> None:
        self._complete_turn()
        if self._after_filler:
            steps, self._after_filler = self._after_filler, []
            if self._propose([step for step in steps if isinstance(step, CallTool)]):
                return
        self._consider()

    def _complete_turn(self) -> None:
        seconds = self._turn.audio_seconds if self._turn is not None else 0.0
        self._turn, self._turn_ended = None, self._loop.time()
        spoken = {"AUDIO": round(seconds * TOKENS_PER_SECOND)}
        status: dict[str, Any] = {}
        if self._profile.interaction_status:
            # Without a status on every turnComplete the SDK would take the first one for the end (google-genai 3.6.1).
            more = self._after_filler or self._wire.open_calls or self._mind.has_something_to_say
            self._is_in_progress = bool(more)
            status = {"interactionStatus": "IN_PROGRESS" if more else "IDLE"}
        frame = frames.content(turnComplete=True, **status)
        self._connection.send({**frame, "usageMetadata": frames.usage(self._tokens, spoken)})
        self._tokens["AUDIO"] += spoken["AUDIO"]
