"""How much may be set going before a person has to look: calls, seconds and tokens. What exceeds that is not run.

A model that goes round in circles does so in seconds, and every round costs money and waiting. The budget stands beside
the gate in the tool backend, where every route ends; a call it stops is put into the ledger's queue, for a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voicekit.results import Result, failed

# What is limited, and how that reads.
LIMITS = {
    "hops": "calls since the caller last spoke",
    "seconds": "seconds of tools since the caller last spoke",
    "tokens": "tokens in this session",
}
# How the services name the sum: OpenAI Realtime, Gemini Live.
TOTALS = ("total_tokens", "total_token_count")
HANDED_OVER = "I can not do that now. A colleague will see to it and get back to you."


def check_limits(limits: Any) -> None:
    """Raise ValueError, in one line, for what is no mapping of `LIMITS` to numbers above 0."""
    if not isinstance(limits, Mapping):
        raise ValueError(f"policy: budget is limits by name, as in {{'hops': 4}} or budget.hops=4, not {limits!r}")
    for name, limit in limits.items():
        if name not in LIMITS:
            raise ValueError(f"policy: budget has no {name!r}; it knows {', '.join(LIMITS)}")
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise ValueError(f"policy: {name} in the budget is a number above 0, not {limit!r}")


class Budget:
    """Counts what one session uses, and says when a limit is reached. Times are seconds on the caller's clock.

    hops      calls that were run since the caller last spoke; one that repeats an order is not run, and is free
    seconds   time in which at least one call was running since the caller last spoke: two at once take it once.
              A call that has begun is not cut short by it (`Policy.tool_timeout` does that)
    tokens    total tokens the service has reported in this session. GPT-Live reports seconds for the voice; there only
              those of a Responses backend are counted

    `limits` are fixed here; what is not among them is unlimited. `sentence` is what the caller is told. Raises
    ValueError for a limit that does not exist.
    """

    def __init__(self, limits: Mapping[str, float] | None = None, sentence: str = HANDED_OVER) -> None:
        check_limits(limits or {})
        self._limits = dict(limits or {})
        self._sentence = sentence
        self._turn: int | None = None
        self._hops = 0
        self._tokens = 0
        self._seconds = 0.0  # of the stretches that are over
        self._running = 0
        self._since = 0.0  # when the stretch began that is not over

    def turn(self, number: int, at: float) -> None:
        """The number of the caller's turn that calls now belong to; with a new one hops and seconds begin anew."""
        if number != self._turn:
            self._turn, self._hops, self._seconds, self._since = number, 0, 0.0, at

    def spend(self, usage: Mapping[str, Any]) -> None:
        """Count the tokens of a usage report; one that has none (it may be in seconds) costs nothing."""
        self._tokens += next((int(usage[name]) for name in TOTALS if usage.get(name)), 0)

    def begin(self, at: float) -> None:
        """A call is being run."""
        self._hops += 1
        self._since = at if self._running == 0 else self._since
        self._running += 1

    def end(self, at: float) -> None:
        """A call that was run has ended."""
        self._running -= 1
        self._seconds += at - self._since
        self._since = at

    def used(self, at: float) -> dict[str, float]:
        """What has been used, by the names of the limits."""
        seconds = self._seconds + (at - self._since if self._running else 0.0)
        return {"hops": self._hops, "seconds": round(seconds, 6), "tokens": self._tokens}

    def reached(self, at: float) -> str:
        """Which limit has been reached, in words; "" if none."""
        for name, used in self.used(at).items():
            if name in self._limits and used >= self._limits[name]:
                return f"{LIMITS[name]}: {used:g}, the limit is {self._limits[name]:g}"
        return ""

    def refusal(self, why: str) -> Result:
        """What a call is answered that is not run any more."""
        hint = "A person has it in their queue. Tell the caller, and do not call it again."
        return failed(self._sentence, reason="over_budget", hint=hint, why=why)
