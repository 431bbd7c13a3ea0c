"""A simulated Gemini Live session: who speaks when, on top of the wire, the ears, the mind and the voice.

The rules of turn-taking are those of the vendor's Live API pages (ai.google.dev, live-api, September 2026) and of the
docstrings of google-genai 3.6.1; what a model does differently from another is in its `Profile` (data/models.csv), what
was never published is said where it is decided.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from voicekit.simulator.ears import Ears
from voicekit.simulator.gemini_caller import Caller
from voicekit.simulator.gemini_model import Model
from voicekit.simulator.gemini_store import Store, Thread
from voicekit.simulator.server import Connection
from voicekit.simulator.settings import Settings
from voicekit.simulator.voice import Voice
from voicekit.simulator.wire import gemini_frames as frames
from voicekit.simulator.wire import gemini_live as wire
from voicekit.simulator.wire.gemini_schema import Refused
from voicekit.understanding import Utterance

CONNECTION_SECONDS = 600.0  # "connection about 10 min, GoAway about 60 s before" (ai.google.dev, 2026)
NOTICE_SECONDS = 60.0
FAULT_NOTICE_SECONDS = 3.0  # of the fault goaway_after_s, as in google/adk-python#4996
GARBAGE = "simulated garbage"


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
        self._store = Store.of(connection.server)
        self._is_over = False
        self._frames_received = 0
        self._session_timers: list[asyncio.TimerHandle] = []
        # the session, from the setup on
        self._setup = wire.Setup(model="")
        self._profile = self._wire.profile
        self._thread = Thread()
        self._is_resumable = False
        self._model = self._make_model()
        # the caller
        self._caller = self._make_caller()
        self._talked_over = False  # the caller began to speak while the model spoke, and has not stopped it yet
        self._content_open = False  # clientContent without turnComplete: more will follow
        self._history_open = False

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
        self._model.stop()
        thread, open_calls = self._thread, self._model.mind.open_calls
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

    def _make_model(self) -> Model:
        return Model(
            self._wire,
            self._settings,
            self._setup,
            self._voice,
            send=self._connection.send,
            may_begin=self._may_begin,
            changed=self._report_resumption,
            later=self._later,
        )

    def _may_begin(self, over_caller: bool) -> bool:
        if self._is_over or self._history_open or self._content_open:
            return False
        return over_caller or not self._caller.is_speaking

    def _on_setup(self, setup: wire.Setup) -> None:
        self._setup, self._profile = setup, self._wire.profile
        self._caller = self._make_caller()
        self._model = self._make_model()
        if setup.handle:
            self._resume(setup.handle)
        self._model.mind.configure(setup.instructions, [tool.as_dict() for tool in setup.tools])
        self._model.count_text(setup.instructions, *(tool.description for tool in setup.tools))
        self._history_open = setup.history_first
        self._connection.send(frames.setup_complete(self._store.new_session_id()))
        self._set_timers()
        if setup.handle:
            self._model.consider()  # it may still owe something

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
        self._model.mind, self._model.tokens, self._thread = saved.mind, saved.tokens, saved.thread
        self._wire.calls_made = self._thread.calls_made
        for call_id, call in self._thread.calls.items():
            self._wire.open_calls[call_id] = self._thread.behaviors[call_id]
            self._model.mind.called(call_id, call)

    def _report_resumption(self) -> None:
        """Tell the client whether the session could be resumed from here, when that has changed."""
        idle = self._model.is_idle
        if not self._setup.resumable or idle == self._is_resumable:
            return
        self._is_resumable = idle
        handle = self._store.save(self._model.mind, self._model.tokens, self._thread) if idle else ""
        consumed = self._frames_received if self._setup.transparent else None
        self._connection.send(frames.resumption_update(handle, consumed))

    def _on_update(self, update: wire.ContextUpdate) -> None:
        mind = self._model.mind
        instructions = mind.instructions if update.instructions is None else update.instructions
        mind.configure(instructions, [tool.as_dict() for tool in self._wire.tools.values()])
        self._model.count_text(update.instructions or "")

    # The caller

    def _on_audio(self, audio: wire.Audio) -> None:
        if self._wire.open_calls and "close_1008_on_audio_during_call" in self._faults:
            raise Refused(1008, wire.UNSUPPORTED_OPERATION)
        self._caller.hear(audio)
        self._yield_to_caller()

    def _on_speech_started(self) -> None:
        self._content_open = False
        self._model.wait_for_caller()
        self._talked_over = self._model.is_speaking
        self._yield_to_caller()

    def _yield_to_caller(self) -> None:
        """Stop talking once the caller, who has talked over it, has gone on for so long that it is no mere "mm-hm"."""
        if not (self._talked_over and self._caller.is_speaking):
            return
        if self._caller.spoken_seconds >= self._profile.interrupt_after:
            self._talked_over = False
            if self._setup.interrupts and self._model.is_speaking:
                self._model.interrupt()

    def _on_utterance(self, utterance: Utterance | None) -> None:
        if utterance is None:
            self._model.consider()
            return
        self._model.count_speech(utterance.seconds)
        if self._setup.transcribe_input and utterance.transcript:
            self._connection.send(frames.content(inputTranscription={"text": utterance.transcript}))
        if utterance.understood:  # clients stream silence all through a call: only speech withdraws it
            self._model.withdraw_blocking_calls()
        self._model.mind.hear(utterance)
        self._model.consider()

    def _on_text(self, text: str) -> None:
        self._content_open = False
        if text.strip():  # a blank only asks for the turn that is due anyway
            if self._setup.interrupts and self._model.is_speaking:
                self._model.interrupt()
            self._model.withdraw_blocking_calls()
            self._model.count_text(text)
            self._model.mind.read("user", text)
        self._model.consider()

    def _on_content(self, content: wire.Content) -> None:
        """Turns of a written conversation. Those of the user after the model's last one are still to be answered."""
        answered = max((index for index, (role, _) in enumerate(content.turns) if role == "model"), default=-1)
        if not self._history_open:
            if self._model.is_speaking:  # "a message here will interrupt any current model generation" (types.py)
                self._model.interrupt()
            self._model.withdraw_blocking_calls()
        for index, (role, text) in enumerate(content.turns):
            self._model.count_text(text)
            if role == "model" or (index > answered and not self._history_open):
                self._model.mind.read(role, text)
        self._content_open = not content.complete
        if content.complete:
            self._history_open = False
        self._model.consider()

    # Results and calls

    def _on_result(self, result: wire.Result) -> None:
        self._model.count_text(json.dumps(result.response))
        self._model.receive(result)
        speaks_over = False
        if result.when == "interrupt":
            speaks_over = self._profile.interrupt_while_caller_speaks == "speaks_over"
            if self._model.is_speaking and (speaks_over or not self._caller.is_speaking):
                self._model.interrupt()
        self._model.consider(over_caller=speaks_over)
