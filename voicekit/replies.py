"""Step 5 of a call: that the model says what it was given, once, and in a moment in which it does not collide.

Where a provider speaks by itself, this only keeps account of what the caller may still expect to hear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from voicekit.calls import Call
from voicekit.conversation import PATIENCE_SECONDS, Conversation
from voicekit.journal import Journal
from voicekit.metrics import words_of
from voicekit.policy import Policy
from voicekit.sessions.base import SessionError

# A conversation that leaves no pause for a result within this many seconds is a problem worth noting.
SPEECH_WAIT_SECONDS = 60.0
# How long a model may take to begin a turn that was asked for.
TURN_WAIT_SECONDS = 10.0
# Requests for the same speech: a provider's own turn may win the race, but not again and again.
ATTEMPTS = 5


class Replies:
    """Asks for speech, one request at a time, and knows which results have not been heard yet."""

    def __init__(
        self,
        conversation: Conversation,
        calls: Mapping[str, Call],
        policy: Policy,
        journal: Journal,
        now: Callable[[], float],
    ) -> None:
        self.conversation, self.session = conversation, conversation.session
        self.calls, self.policy, self.journal, self.now = calls, policy, journal, now
        self._asking = asyncio.Lock()  # one request for speech at a time
        self._owed: dict[str, tuple[float, set[str]]] = {}  # results the model is to say: since when, their words
        self._sounded: list[str] = []  # the turns of which something was heard, in order
        self._nudge: asyncio.Task[None] | None = None
        self._nudged_at = -1  # caller turns when the model was last reminded of a promise
        journal.listen(self._on_journal)

    @property
    def behavior(self) -> str:
        return self.policy.behavior or self.session.capabilities.default_behavior

    @property
    def can_be_silent(self) -> bool:
        """Whether a result can be given to the model without its being said."""
        can = self.session.capabilities
        return not can.implied_reply or (can.can_schedule and self.behavior == "non_blocking")

    @property
    def busy(self) -> bool:
        """Whether the caller may still expect to hear something that was handed over."""
        asking = self._nudge is not None and not self._nudge.done()
        return asking or any(self.conversation.may_still_answer(since) for since, _ in self._owed.values())

    # What is owed

    def owe(self, key: str, text: str) -> None:
        """From now on the caller may expect to hear `text`: until it was spoken, or nobody can expect it any more."""
        self._owed[key] = (self.now(), words_of(text))
        asyncio.get_running_loop().call_later(PATIENCE_SECONDS + 1e-3, self.conversation.wake)

    def taken_up(self) -> None:
        """The model has read what it was given, and goes on from there."""
        for call_id in self.calls:
            self._owed.pop(call_id, None)

    def _on_journal(self, event: dict[str, Any]) -> None:
        """A result is owed until speech with its words has been heard, or was begun and cut off by the caller."""
        if event["lane"] == "heard" and event["kind"] == "playing":
            self._sounded.append(event["detail"]["turn"])
        if self._owed and event["lane"] == "heard" and event["kind"] == "played":
            heard = words_of(f"{event['text']} {event['detail']['unheard']}")
            for call_id, (_, words) in list(self._owed.items()):
                if len(words & heard) * 2 >= len(words):
                    del self._owed[call_id]

    # Asking

    async def say_results(self, turn: str) -> None:
        """Once all calls of a turn have their answers: ask once for all results that are to be said."""
        siblings = [call for call in self.calls.values() if call.turn == turn]
        if any(call.open and call.held is None for call in siblings):
            return  # the last of them asks for all
        wanted = [call for call in siblings if call.delivery is not None]
        if not wanted:
            return
        cut = any(call.delivery == "interrupt" for call in wanted)
        for call in wanted:
            call.delivery = None
        ids = tuple(call.id for call in siblings if call.answered)
        await self.ask("to speak", wanted[-1].id, ids, cut=cut)

    async def ask(self, what: str, call_id: str | None, ids: tuple[str, ...] = (), *, cut: bool = False) -> None:
        """Have the model speak when nothing else is being said, or (`cut`) instead of what it is saying now.

        A result that is just being asked for is not cut off by the next one: both are to be heard. Raises TimeoutError
        when there is no pause, or no answer.
        """
        talk = self.conversation
        cut = cut and not self._asking.locked()
        async with self._asking:
            if cut and (talk.agent_speaking or talk.turn):
                self._decide("interrupt", call_id, "the agent's own sentence is cut off for the result")
                await talk.stop_speaking()
            for _ in range(ATTEMPTS):
                await talk.until(lambda: talk.quiet, SPEECH_WAIT_SECONDS, "a pause in which a result can be said")
                collisions, turns = talk.collisions, len(talk.begun)

                def has_begun_or_collided(collisions: int = collisions, turns: int = turns) -> bool:
                    return ids in talk.begun[turns:] or talk.collisions > collisions

                self._decide("respond", call_id, f"asks the model {what}")
                await self.session.respond(ids)
                what_for = "the model to begin the answer it was asked for"
                await talk.until(has_begun_or_collided, TURN_WAIT_SECONDS, what_for)
                if ids in talk.begun[turns:] and not (ids and await self._came_to_nothing()):
                    return
            raise TimeoutError(f"the provider was busy {ATTEMPTS} times in a row when it was asked {what}")

    async def _came_to_nothing(self) -> bool:
        """Whether the turn that has just begun was cancelled before a word of it was heard: the caller spoke first."""
        talk, turn = self.conversation, self.conversation.turn
        if turn is None:
            return False
        heard = len(self._sounded)

        def is_decided() -> bool:
            return talk.turn != turn or turn in self._sounded[heard:]

        await talk.until(is_decided, SPEECH_WAIT_SECONDS, "the answer that was asked for, or its end")
        if turn in self._sounded[heard:] or talk.ended.get(turn) != "cancelled":
            return False
        self._decide(
            "ask_again", None, "the caller spoke before the answer was heard; it is asked for once more", item=turn
        )
        return True

    # A promise without a call

    def remind(self, turn: str, text: str) -> None:
        """The model has announced something and done nothing. It is reminded once; then that is the answer."""
        if any(call.open or call.held is not None for call in self.calls.values()):
            return  # it is waiting for something: no empty promise
        self._decide("promise_without_call", None, text, item=turn)
        if self.session.capabilities.implied_reply or self._nudged_at == self.conversation.caller_turns:
            why = "reminded already" if self._nudged_at >= 0 else "this model cannot be asked to go on"
            self._decide("promise_broken", None, f"nothing was done ({why}); the caller has to ask again", item=turn)
            return
        self._nudged_at = self.conversation.caller_turns
        self._nudge = asyncio.get_running_loop().create_task(self._remind(), name="nudge")
        self._nudge.add_done_callback(lambda _task: self.conversation.wake())

    async def _remind(self) -> None:
        calls = len(self.calls)
        try:
            await self.ask("to keep its promise", None)
            await self.conversation.until(lambda: self.conversation.turn is None, SPEECH_WAIT_SECONDS, "its end")
        except (TimeoutError, SessionError):
            pass
        if len(self.calls) == calls:
            self._decide(
                "promise_broken", None, "nothing was done, though it was reminded; the caller has to ask again"
            )

    async def close(self) -> None:
        if self._nudge is not None and not self._nudge.done():
            self._nudge.cancel()
            await asyncio.gather(self._nudge, return_exceptions=True)

    def _decide(self, kind: str, call_id: str | None, text: str, *, item: str | None = None) -> None:
        self.journal.add("decision", kind, item=item, call_id=call_id, text=text)
