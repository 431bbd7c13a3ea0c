"""Whether the caller still wants a call: interruptions, corrections, withdrawals.

    outdated    the request was changed or withdrawn: the result is dropped, a write that has not happened is stopped
    called off  an interruption stops a call under way, where it can be stopped, if `Policy.on_barge_in` says so
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from voicekit.asking import Asking
from voicekit.backend import ToolBackend
from voicekit.calls import Call, withdraws
from voicekit.journal import Journal
from voicekit.policy import CHOICES, BargeIn, Policy, chosen
from voicekit.understanding import sentences


class Wishes:
    """Looks after the calls of one session (`calls`, shared with the dispatcher)."""

    def __init__(
        self,
        asking: Asking,
        backend: ToolBackend,
        policy: Policy,
        calls: Mapping[str, Call],
        journal: Journal,
        language: str = "en",
    ) -> None:
        self.asking = asking
        self.backend, self.policy, self.calls, self.journal = backend, policy, calls, journal
        self.language = language
        self._so_far = ""  # of the utterance that the provider is still transcribing
        self._taken_back: str | None = None  # the latest utterance that took something back

    # What the caller says

    def heard(self, piece: str, *, final: bool, item: str | None = None) -> None:
        """What the provider understood of an utterance (`item`, where it has a name) so far.

        A withdrawal is acted on at once: a model that stands still closes the utterance only when it answers it. It is
        acted on once, also if the utterance is closed and then goes on: what was begun since is another wish.
        """
        text = piece if final else self._so_far + piece
        already, self._so_far = withdraws(self._so_far, self.language), "" if final else text
        what = withdraws(text, self.language)
        if what and not already and (item is None or item != self._taken_back) and not self.asking.is_agreed(text):
            self._taken_back = item
            self._call_off(text.strip(), what)
        self.asking.heard(piece, final=final, item=item)

    def _call_off(self, text: str, what: Literal["all", "orders"]) -> None:
        why = f'the caller said "{text}"'
        for call in self._undecided():
            is_order = self.backend.tool(call.name).effect != "read" and call.held is None
            if what == "all" or is_order:
                self._mark_outdated(call, why)
                call.called_off = True
            if what == "orders" and is_order:
                self._stop(call, why)  # not only interrupted: this is the wish that it should not happen
        self.asking.forget()
        if what == "all":
            for call in self._undecided():
                self.asking.release(call, "no", f"{why}; the call was never begun")
            self.interrupted("the caller withdrew the request")

    def interrupted(self, why: str) -> None:
        """The caller took the floor: what becomes of the calls under way is `Policy.on_barge_in`'s to say."""
        for call in self._undecided():
            if call.held is not None:
                continue  # not under way; whether its question was heard is for `asking` to judge
            if self.on_barge_in(call) == "cancel":
                self._stop(call, why)
            else:
                self._decide("finish", call.id, f"{why}; that does not stop the call")

    def on_barge_in(self, call: Call) -> BargeIn:
        if not callable(self.policy.on_barge_in):
            return self.policy.on_barge_in
        choice: BargeIn
        choice, wrong = chosen(self.policy.on_barge_in, CHOICES["on_barge_in"], self.backend.tool(call.name))
        if wrong:
            self._decide("bad_on_barge_in", call.id, f"on_barge_in: {wrong}; finish is used")
            return "finish"
        return choice

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

    def told_all_the_same(self, call: Call, result: dict[str, Any]) -> dict[str, Any]:
        """The result of a call that was taken back and has happened: it also says so, and whether it can be undone."""
        undo = self.backend.tool(call.name).compensation
        words = sentences(self.language)["not_stopped.undo" if undo else "not_stopped"]
        way_back = f"Offer to undo it with {undo}." if undo else "It can not be undone."
        hint = call.too_late or f"The caller has taken this back, but it has happened. Say so. {way_back}"
        return result | {"summary": f"{result['summary']} {words}", "next_hint": hint}

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
        self.asking.release(call, "no", why)

    def withdrawn(self, call: Call) -> None:
        """The provider cancels a call: stop it if that is still possible; it gets no answer either way.

        If the caller is being asked about it, a yes that comes now is for nothing that is still to be had.
        """
        call.withdrawn = True
        self.journal.add("tool", "withdrawn", call_id=call.id, text="cancelled by the provider", tool=call.name)
        self.backend.cancel(call.id)
        if call.held is not None:
            self.asking.release(call, "no", "cancelled by the provider")
            self.asking.forget()

    def news_of_withdrawn(self, call: Call, result: dict[str, Any]) -> str:
        """What the caller has to be told of a call that the provider has cancelled: that it happened all the same, or
        that what they were asked about is off; "" for nothing."""
        if (self.backend.ledger.row(call.id) or {}).get("effect") == "committed":
            return str(self.told_all_the_same(call, result)["summary"])
        return sentences(self.language)["called_off"] if result.get("reason") == "not_confirmed" else ""

    def _mark_outdated(self, call: Call, why: str) -> None:
        if not call.outdated:
            call.outdated = why
            self._decide("outdated", call.id, why)

    def _wish(self, call: Call) -> str:
        if self.policy.revision_key is None:
            return self.backend.tool(call.name).wish
        key, wrong = chosen(self.policy.revision_key, None, call.name, call.arguments)
        if wrong:
            self._decide("bad_revision_key", call.id, f"revision_key: {wrong}; the call counts as a wish of its own")
        return key or ""

    def _undecided(self) -> list[Call]:
        return [call for call in self.calls.values() if call.undecided and call.valid]

    def _decide(self, kind: str, call_id: str, text: str) -> None:
        self.journal.add("decision", kind, call_id=call_id, text=text)
