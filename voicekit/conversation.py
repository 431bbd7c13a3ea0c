"""Who is speaking and what was heard: the half of the application that plays speech and yields the floor.

A model's audio arrives faster than it is spoken, so "generated" and "heard" are different things; this is where they
are kept apart. What becomes of tool calls is `dispatcher`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from voicekit.clock import wait_for
from voicekit.journal import Journal
from voicekit.sessions.base import (
    Appended,
    Audio,
    Delegation,
    Event,
    GoAway,
    Heard,
    Interrupted,
    NotSupported,
    Problem,
    RealtimeSession,
    Said,
    SessionError,
    SpeechStarted,
    SpeechStopped,
    TurnDone,
    TurnStarted,
    Usage,
    Work,
)  # fmt: skip
from voicekit.speaker import Speaker

# After the caller's turn has ended the provider starts to answer by itself; asking for speech in between collides.
EXPECTED_TURN_SECONDS = 3.0
# A model that has been spoken to, or was given a result, and says nothing for this long in silence, will not.
PATIENCE_SECONDS = 4.0


class Conversation:
    """The state both sides of the application look at. Times in session seconds.

    caller_speaking    the provider hears the caller
    turn               id of the turn the model is generating, or None
    working            responses of a delegated backend that are under way
    caller_turns       utterances the provider has heard so far
    begun              of every turn so far: the call ids it was asked to speak about
    turn_ended         when the latest turn ended (minus infinity before)
    ended              how each turn ended, by its id
    quiet_since        since when nobody has spoken or generated (0 before)
    """

    def __init__(self, session: RealtimeSession, speaker: Speaker, journal: Journal, now: Callable[[], float]) -> None:
        self.session = session
        self.speaker = speaker
        self.journal = journal
        self.now = now
        self.caller_speaking = False
        self.turn: str | None = None
        self.working: set[str] = set()
        self.caller_turns = 0
        self.begun: list[tuple[str, ...]] = []
        self.turn_ended = float("-inf")
        self.ended: dict[str, str] = {}
        self.quiet_since = 0.0
        self._was_quiet = True
        self.collisions = 0
        self.last_understood = ""
        self._turns_are_reported = False  # the provider says when the caller stops; else a transcript is the only sign
        self._last_heard: str | None = None
        self.problem: Problem | None = None
        self._turn_expected_until = 0.0
        self.calls_open: Callable[[], bool] = lambda: False
        """Whether a call is unanswered; the dispatcher replaces this."""
        self.on_barge_in: Callable[[str], None] = lambda why: None
        """Called when the caller talks over the agent; the dispatcher replaces it."""
        self.on_wake: Callable[[], None] = lambda: None
        """Called when something may have changed; the scripted caller replaces it by its own look."""
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        journal.listen(lambda event: self.wake() if event["lane"] == "heard" else None)

    @property
    def agent_speaking(self) -> bool:
        """Whether the caller hears the agent now (not whether the model is generating)."""
        return self.speaker.is_playing

    @property
    def answer_is_due(self) -> bool:
        """Whether the caller's turn has ended and the provider is about to answer it by itself."""
        return self.turn is None and self.now() < self._turn_expected_until

    @property
    def quiet(self) -> bool:
        """Nobody speaks, nothing is being generated and no answer is about to start."""
        return not (self.caller_speaking or self.agent_speaking or self.turn is not None or self.answer_is_due)

    def may_still_answer(self, since: float) -> bool:
        """Whether something said or sent at `since` may still be answered: it has not been quiet for long."""
        return not self.quiet or self.now() - max(since, self.quiet_since) < PATIENCE_SECONDS

    async def on(self, event: Event) -> None:
        """Take in one event of the session."""
        journal = self.journal
        match event:
            case Audio():
                self.speaker.play(event.item, event.pcm, event.turn)
                return  # the frequent one: nothing else changes with it
            case Said():
                if event.final:
                    self.speaker.finish(event.item)
                else:
                    self.speaker.said(event.item, event.text)
                return
            case TurnStarted():
                self.turn, self._turn_expected_until = event.turn, 0.0
                self.begun.append(event.call_ids)
                journal.add("session", "turn_started", item=event.turn, calls=list(event.call_ids))
            case TurnDone():
                self.turn = None if self.turn == event.turn else self.turn
                self.turn_ended = self.now()
                self.ended[event.turn] = event.status
                journal.add("session", "turn_done", item=event.turn, status=event.status, reason=event.reason)
            case SpeechStarted():
                self.caller_speaking = True
                journal.add("session", "speech_started", item=event.item, at_ms=event.at_ms)
                await self._yield_floor()
            case SpeechStopped():
                self.caller_speaking = False
                self._turns_are_reported = True
                self.caller_turns += 1
                if not (self.session.capabilities.waits_for_result and self.calls_open()):
                    self._turn_expected_until = self.now() + EXPECTED_TURN_SECONDS
                    asyncio.get_running_loop().call_later(EXPECTED_TURN_SECONDS + 1e-3, self.wake)
                journal.add("session", "speech_stopped", item=event.item, at_ms=event.at_ms)
            case Heard():
                if not event.final:
                    return
                self.last_understood = event.text
                is_new = event.item is None or event.item != self._last_heard
                self.caller_turns += is_new and not self._turns_are_reported
                self._last_heard = event.item
                journal.add("session", "understood", item=event.item, text=event.text)
            case Delegation():
                journal.add("session", "delegated", item=event.id, target=event.target, offset_ms=event.offset_ms)
            case Appended():
                journal.add("session", "appended", item=event.id, channel=event.channel, end_ms=event.end_ms)
            case Work():
                self._note_work(event)
            case Interrupted():
                journal.add("session", "interrupted", item=event.turn)
                await self._yield_floor(event.turn)
            case Problem():
                self._note(event)
            case GoAway():
                journal.add("session", "go_away", seconds_left=event.seconds_left)
            case Usage():
                journal.add("session", "usage", **event.tokens)
            case _:
                return
        self.wake()

    def _note(self, problem: Problem) -> None:
        self.journal.add("session", "problem", text=problem.message, code=problem.code, recoverable=problem.recoverable)
        if problem.code == "conversation_already_has_active_response":
            self.collisions += 1
        if not problem.recoverable:
            self.problem = problem

    def _note_work(self, work: Work) -> None:
        began = work.status == "in_progress"
        (self.working.add if began else self.working.discard)(work.response)
        kind = "work_started" if began else "work_done"
        about = {"delegation": work.delegation, "status": work.status}
        self.journal.add("session", kind, item=work.response, text=work.text or None, **about)

    async def _yield_floor(self, turn: str = "") -> None:
        """The caller has begun to speak. In this order: silence, the calls, and what the provider has to know.

        A call under way is touched by none of it, unless `on_barge_in` does. What still arrives of `turn` is dropped.
        """
        was_speaking, cut = self.agent_speaking, self.speaker.flush()
        if turn:
            self.speaker.flush(turn=turn)
        if was_speaking:
            self.on_barge_in("the caller talked over the agent")
        await self._report(cut)

    async def _report(self, cut: list[tuple[str, int, int]]) -> None:
        """Tell the provider what was heard of each item that was cut off, where it can be told.

        The position is the player's, never the wall clock's: at most the audio received, and no item that was played to
        its end or of which nothing had arrived.
        """
        for item, heard_samples, flushed_samples in cut:
            heard_ms = heard_samples * 1000 // 24_000
            if not flushed_samples:
                continue  # played to its end: the provider is right to believe that all of it was heard
            if self.session.capabilities.can_truncate:
                self.journal.add("decision", "truncate", item=item, reported_ms=heard_ms, heard_ms=heard_samples / 24.0)
                try:
                    await self.session.truncate(item, heard_ms)
                except (SessionError, NotSupported) as error:
                    self.journal.add("session", "problem", text=str(error), code="truncate", recoverable=True)

    async def stop_turn(self, turn: str, cut: list[tuple[str, int, int]]) -> None:
        """Stop the generation of one turn whose playout was `cut` already; what has been begun since goes on."""
        if turn and self.turn == turn and self.session.capabilities.can_cancel:
            await self.session.stop_speaking()
        await self._report(cut)

    async def stop_speaking(self) -> None:
        """Interrupt the agent's own speech: playout first, then generation, if there still is any to cancel."""
        cut = self.speaker.flush()
        if self.turn is not None and self.session.capabilities.can_cancel:
            await self.session.stop_speaking()
        await self._report(cut)

    def wake(self) -> None:
        """Let those who wait for a state look again."""
        quiet = self.quiet
        if quiet and not self._was_quiet:
            self.quiet_since = self.now()
            asyncio.get_running_loop().call_later(PATIENCE_SECONDS + 1e-3, self.wake)  # see `may_still_answer`
        self._was_quiet = quiet
        self.on_wake()
        for state, reached in self._waiting:
            if not reached.done() and state():
                reached.set_result(None)

    async def until(self, state: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `state()` holds. Raises TimeoutError naming `what` after `seconds`."""
        deadline = self.now() + seconds
        while not state():
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (state, reached)
            self._waiting.append(entry)
            try:
                await wait_for(reached, max(0.0, deadline - self.now()), what)
            finally:
                self._waiting.remove(entry)
