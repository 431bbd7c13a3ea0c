"""The gate in front of the tools: a call that needs a person's yes does not run without one.

It stands in the tool backend, where every route ends, and not in the adapters: a way to the tools that nobody thought
of meets it all the same, and one that nobody has named is closed. A model cannot open it. A consent is issued by the
application, after a turn of the caller (see asking.py); it is for one tool with these arguments, holds for a while and
is used up by one call. Where a rule decides instead of a person (guardrails.py), it stands here as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from voicekit.guardrails import CallRule, Ruling, SpeechRule, judge_call
from voicekit.ledger import canonical
from voicekit.policy import Policy
from voicekit.results import Result, as_result, failed, needs_consent
from voicekit.tools import Tool
from voicekit.understanding import question

# How a call can come to the tools: proposed on OpenAI Realtime, on Gemini Live, handed over by GPT-Live, asked for by
# an MCP client, or made by a program that holds the backend.
ROUTES = ("realtime", "gemini", "delegation", "mcp", "direct")
# A yes older than this is asked for again: the caller may have forgotten what it was about. Our choice; nobody
# publishes one.
CONSENT_SECONDS = 60.0

Admission = Literal["open", "needs_consent", "expired", "unknown_route", "ruled_out", "repeat"]


@dataclass(frozen=True)
class Consent:
    """A person's yes to one call: this tool, exactly these (canonical) arguments, until `expires`, once."""

    tool: str
    arguments: str
    at: float
    expires: float


class Gate:
    """Decides whether a call may run. Times are seconds on the clock of whoever calls.

    without_asking   the tools that need no yes, fixed here for good; None: there is no list, and whoever proposes a
                     call is believed to have asked (known routes only)
    rules            asked before a call runs and about its result, in this order; none of them asks anybody
    expires_after    how long a consent holds, seconds
    ask              `(tool, arguments) -> the question` that a refused call is answered with
    """

    def __init__(
        self,
        without_asking: Iterable[str] | None = None,
        *,
        rules: Sequence[CallRule] = (),
        expires_after: float = CONSENT_SECONDS,
        ask: Callable[[str, Mapping[str, Any]], str] | None = None,
    ) -> None:
        self._without_asking = None if without_asking is None else frozenset(without_asking)
        self.aborted = ""
        """Why a rule wants the conversation to end, "" while none does."""
        self._rules = tuple(rules)
        self._expires_after = expires_after
        self._ask = ask or functools.partial(question, language="en")
        self._consents: dict[tuple[str, str], Consent] = {}

    @classmethod
    def of(cls, policy: Policy, language: str = "en") -> Gate:
        """The gate that a policy describes; it asks in `language`."""
        rules = [rule for rule in policy.guardrails if not isinstance(rule, SpeechRule)]
        return cls(policy.without_asking, rules=rules, ask=functools.partial(question, language=language))

    @property
    def without_asking(self) -> frozenset[str] | None:
        """The list. Raises AttributeError on assignment: a list that can be widened in a conversation is no list."""
        return self._without_asking

    @without_asking.setter
    def without_asking(self, value: object) -> None:
        raise AttributeError("without_asking is fixed before the session starts; start a new session with another list")

    def asks(self, tool: str) -> bool:
        """Whether a call of this tool needs a yes."""
        return self._without_asking is not None and tool not in self._without_asking

    def grant(self, tool: str, arguments: Mapping[str, Any], *, at: float) -> Consent:
        """Note a person's yes to this call. To be called by who has heard them say it, never by what a model wrote."""
        consent = Consent(tool, canonical(dict(arguments)), at, at + self._expires_after)
        self._consents[consent.tool, consent.arguments] = consent
        return consent

    def spend(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Use up the consent to a call: it runs now, or has its answer without running."""
        self._consents.pop((tool, canonical(dict(arguments))), None)

    def revoke(self) -> None:
        """Forget every consent that has not been used: the caller has changed their mind."""
        self._consents.clear()

    def admission(self, tool: Tool, arguments: Mapping[str, Any], *, route: str, at: float) -> Admission:
        """What the gate says to a call, without using up its consent."""
        if route not in ROUTES:
            return "unknown_route"
        if judge_call(self._rules, tool, arguments, None).action != "allow":
            return "ruled_out"
        if not self.asks(tool.name):
            return "open"
        consent = self._consents.get((tool.name, canonical(dict(arguments))))
        if consent is None:
            return "needs_consent"
        return "open" if at < consent.expires else "expired"

    def admit(self, tool: Tool, arguments: Mapping[str, Any], *, route: str, at: float) -> Result | None:
        """Let a call through (None), using up its consent, or return what it is answered with instead of running."""
        admission = self.admission(tool, arguments, route=route, at=at)
        if admission == "unknown_route":
            hint = f"Nobody has decided what may come this way; known: {', '.join(ROUTES)}."
            return failed("That is not possible this way.", reason="unknown_route", hint=hint)
        if admission == "ruled_out":
            return self._ruled(judge_call(self._rules, tool, arguments, None))
        self.spend(tool.name, arguments)
        return None if admission == "open" else needs_consent(self._ask(tool.name, arguments), reason=admission)

    def let_out(self, tool: Tool, arguments: Mapping[str, Any], result: Result) -> Result:
        """What the model is given of a result: itself, unless a rule replaces or withholds it."""
        ruling = judge_call(self._rules, tool, arguments, result)
        return result if ruling.action == "allow" else self._ruled(ruling)

    def _ruled(self, ruling: Ruling) -> Result:
        if ruling.action == "abort":
            self.aborted = ruling.why
        if ruling.action == "replace":
            return as_result(ruling.instead)
        return failed("That is not allowed.", reason="guardrail", hint=ruling.why)
