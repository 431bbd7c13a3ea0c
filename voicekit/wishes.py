"""Whether the caller still wants a call: interruptions, corrections, withdrawals, and the yes that some calls need.

    outdated    the request was changed or withdrawn: the result is dropped, a write that has not happened is stopped
    called off  an interruption stops a call under way, where it can be stopped, if `Policy.on_barge_in` says so
    held        not begun before the caller has heard a question and said a plain yes to it
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from voicekit.backend import ToolBackend
from voicekit.calls import Call, withdraws
from voicekit.consent import verdict
from voicekit.conversation import Conversation
from voicekit.journal import Journal
from voicekit.metrics import words_of
from voicekit.policy import BargeIn, Policy
from voicekit.replies import Replies
from voicekit.results import cancelled
from voicekit.sessions.base import NotSupported
from voicekit.understanding import question

# A question that the caller leaves unanswered for this long is answered with no.
HOLD_SECONDS = 30.0


class Wishes:
    """Looks after the calls of one session (`calls`, shared with the dispatcher)."""

    def __init__(
        self,
        conversation: Conversation,
        replies: Replies,
        backend: ToolBackend,
        policy: Policy,
        calls: Mapping[str, Call],
        journal: Journal,
        language: str = "en",
    ) -> None:
        self.conversation, self.replies, self.session = conversation, replies, conversation.session
        self.backend, self.policy, self.calls, self.journal = backend, policy, calls, journal
        self.language = language
        self._so_far = ""  # of the utterance that the provider is still transcribing
        self._questions: dict[str, set[str]] = {}  # words of the questions that held calls wait for, until heard
        journal.listen(self._on_journal)

    # What the caller says

    def heard(self, piece: str, *, final: bool) -> None:
        """What the provider understood of an utterance so far.

        A withdrawal is acted on at once: a model that stands still closes the utterance only when it answers it. A yes
        has to be the whole of it.
        """
        text = piece if final else self._so_far + piece
        already, self._so_far = withdraws(self._so_far), "" if final else text
        if withdraws(text):
            if not already:
                self._call_off(text.strip())
            return
        if not final:
            return
        answer = verdict(text, self.language)
        for call in [call for call in self._undecided() if call.held is not None and answer != "neither"]:
            if call.id in self._questions:
                self._decide("not_yet", call.id, f'"{text}" came before the question was heard; it is no answer to it')
            else:
                self._release(call, "yes" if answer == "yes" else "no", f'the caller said "{text}"')

    def _call_off(self, text: str) -> None:
        for call in self._undecided():
            self._mark_outdated(call, f'the caller said "{text}"')
            call.called_off = True
        self.interrupted("the caller withdrew the request")

    def interrupted(self, why: str) -> None:
        """The caller took the floor: what becomes of the calls under way is `Policy.on_barge_in`'s to say."""
        for call in self._undecided():
            if call.held is not None:
                self._release(call, "no", f"{why}; the call was never begun")
            elif self.on_barge_in(call) == "cancel":
                self._stop(call, why)
            else:
                self._decide("finish", call.id, f"{why}; the call runs on")

    def on_barge_in(self, call: Call) -> BargeIn:
        choice = self.policy.on_barge_in
        return choice(self.backend.tool(call.name)) if callable(choice) else choice

    def _stop(self, call: Call, why: str) -> None:
        """Call it off. An effect that can not be stopped any more is never passed over in silence."""
        outcome = self.backend.cancel(call.id)
        if outcome.outcome == "cancelled":
            self._decide("cancel", call.id, f"{why}; the call was stopped before it had an effect")
            return
        happened = (self.backend.ledger.row(call.id) or {}).get("effect") == "committed"
        undo = self.backend.tool(call.name).compensation
        way_back = f"offer to undo it with {undo}" if undo else "it can not be undone"
        call.too_late = f"The caller wanted to stop this, but it could not be stopped. Say so; {way_back}."
        state = "it has happened already" if happened else "the call cannot be stopped and runs on"
        self._decide("too_late", call.id, f"{why}; {state}, {way_back}")

    # Corrections

    def revised(self, newer: Call) -> None:
        """A newer call for the same wish, with other arguments, makes the results of earlier ones out of date."""
        wish = self._wish(newer)
        for call in self._undecided():
            if call is not newer and wish and self._wish(call) == wish and call.arguments != newer.arguments:
                self.outdate(call, f"the caller changed the request ({newer.id})")

    def outdate(self, call: Call, why: str) -> None:
        """The result is not wanted any more; a write that has not happened yet is not to happen."""
        self._mark_outdated(call, why)
        if self.backend.tool(call.name).effect != "read":
            self.backend.cancel(call.id)
        if call.held is not None:
            self._release(call, "no", why)

    def withdrawn(self, call: Call) -> None:
        """The provider cancels a call: stop it if that is still possible; it gets no answer either way."""
        call.withdrawn = True
        self.journal.add("tool", "withdrawn", call_id=call.id, text="cancelled by the provider", tool=call.name)
        self.backend.cancel(call.id)
        if call.held is not None:
            self._release(call, "no", "cancelled by the provider")

    def _mark_outdated(self, call: Call, why: str) -> None:
        if not call.outdated:
            call.outdated = why
            self._decide("outdated", call.id, why)

    def _wish(self, call: Call) -> str:
        key = self.policy.revision_key
        return key(call.name, call.arguments) if key else self.backend.tool(call.name).wish

    # The yes that a call waits for

    async def confirm(self, call: Call) -> dict[str, Any] | None:
        """Ask the caller and wait. Returns None when they said yes, otherwise the result of a call that never ran."""
        asked = question(call.name, call.arguments, self.language)
        call.held = asyncio.get_running_loop().create_future()
        self._questions[call.id] = words_of(asked)
        self._decide("hold", call.id, f"not begun before the caller agrees: {asked}")
        asking = asyncio.get_running_loop().create_task(self._ask(call, asked), name=f"question about {call.id}")
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen: asyncio need not warn
        try:
            waiting: list[asyncio.Future[Any]] = [asking, call.held]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not call.held.done():
                asking.result()
            async with asyncio.timeout(HOLD_SECONDS):
                answer = await call.held
        except TimeoutError:
            answer = "no"
            self._decide("not_confirmed", call.id, f"no answer within {HOLD_SECONDS:g} s")
        except NotSupported as error:
            answer = "no"
            self._decide("not_confirmed", call.id, f"the caller cannot be asked: {error}")
        finally:
            asking.cancel()
            call.held = None
            self._questions.pop(call.id, None)
        if answer == "yes":
            return None
        self.backend.cancel(call.id)
        return cancelled("That was not done.", reason="not_confirmed")

    async def _ask(self, call: Call, asked: str) -> None:
        """Let the model ask, by whatever way it has while a call is open."""
        can = self.session.capabilities
        message = {"status": "pending", "say": asked, "summary": asked, "next_hint": "Not done yet. Ask the caller."}
        if can.delegates:
            raise NotSupported("a call of the backend cannot wait for the voice")
        if can.can_schedule and self.replies.behavior == "non_blocking":
            await self.session.send_result(call.id, message, delivery="when_idle", final=False)
        elif can.implied_reply or can.waits_for_result:  # an open call would keep it from asking
            call.answered = call.pending = True
            await self.session.send_result(call.id, message)
            self.backend.deliver(call.id)
            about: dict[str, Any] = {"tool": call.name, "delivery": "when_idle", "final": True}
            self.journal.add("tool", "answered", call_id=call.id, text=asked, **about)
            if not can.implied_reply:
                await self.replies.ask("to ask the caller", call.id)
        else:
            await self.session.tell(f'Do not say that it is done. Ask the caller: "{asked}"')
            await self.replies.ask("to ask the caller", call.id)

    def let_go(self, why: str) -> None:
        """Give up waiting: no answer will come any more."""
        for call in self._undecided():
            if call.held is not None:
                self._release(call, "no", why)

    @property
    def waits_for_caller(self) -> bool:
        """Whether the caller has heard a question and it is theirs to answer."""
        return any(call.held is not None and call.id not in self._questions for call in self.calls.values())

    def _release(self, call: Call, answer: Literal["yes", "no"], why: str) -> None:
        if call.held is not None and not call.held.done():
            self._decide("confirmed" if answer == "yes" else "refused", call.id, why)
            call.held.set_result(answer)

    def _on_journal(self, event: dict[str, Any]) -> None:
        """A question counts as asked when speech with half of its words has been heard to its end."""
        if self._questions and event["lane"] == "heard" and event["kind"] == "played":
            spoken = words_of(event["text"] or "")
            for call_id, words in list(self._questions.items()):
                if len(words & spoken) * 2 >= len(words):
                    del self._questions[call_id]

    def _undecided(self) -> list[Call]:
        return [call for call in self.calls.values() if call.undecided and call.valid]

    def _decide(self, kind: str, call_id: str, text: str) -> None:
        self.journal.add("decision", kind, call_id=call_id, text=text)


