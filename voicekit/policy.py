"""The knobs of the application under study, in one frozen dataclass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from voicekit.budget import check_limits
from voicekit.guardrails import Guardrail, SpeechRule
from voicekit.names import unknown

Behavior = Literal["blocking", "non_blocking"]
Delivery = Literal["when_idle", "interrupt", "silent"]
BargeIn = Literal["finish", "cancel", "hold_until_confirmed"]

CHOICES: dict[str, tuple[Any, ...]] = {
    "behavior": ("blocking", "non_blocking", None),
    "delivery": ("when_idle", "interrupt", "silent"),
    "preamble": ("none", "filler", "action"),
    "on_barge_in": ("finish", "cancel", "hold_until_confirmed"),
    "stale": ("drop", "silent", "speak"),
    "same_action": ("session", "turn", "call"),
}
TAKES_FUNCTION = ("delivery", "on_barge_in")


@dataclass(frozen=True)
class Policy:
    """What the application does. Raises ValueError for a value no field knows.

    behavior       "blocking", "non_blocking" or None (the model's default, sent explicitly where the model has it)
    delivery       when a result is said: "when_idle", "interrupt", "silent", or a function `(result, conversation)`
                   that returns one of them (see `calls.Moment`)
    preamble       what is announced before a call: "none", "filler" or "action"
    on_barge_in    what becomes of a running call when the caller interrupts: "finish", "cancel"; or
                   "hold_until_confirmed": it is not started before the caller has agreed, so there is nothing to
                   interrupt; or a function of the tool that returns one of them
    stale          a result whose request was changed or withdrawn: "drop", "silent" or "speak"
    revision_key   `(tool name, arguments) -> str`: calls with the same key are revisions of one wish; the latest
                   counts; "" for a wish of its own. None: the tool's own `wish`
    same_action    calls with the same tool and arguments are one intended action, with one effect, within the whole
                   "session", within one "turn" of the caller (asked for again, it is a new order), or never: "call"
    tool_timeout   limit of one tool run, seconds; a tool that takes exactly as long has answered in time
    keep_clear     seconds after the end of a turn in which no result is sent: some that came within 50 ms of it were
                   taken for new input, and lost (google/adk-python#4902)
    without_asking the names of the tools that need no yes from the caller, fixed before the session starts; every other
                   one does. None, the default: no list, nobody is asked, and a model that proposes a call is believed
                   to have asked. set() is the opposite: no tool is on the list, so all are asked about
    guardrails     rules that decide without asking: functions `(tool, arguments, result)` for calls (see guardrails.py)
                   and `SpeechRule`s for what the agent says
    budget         limits by name: "hops", "seconds", "tokens" (see `budget.Budget`); what exceeds them is left to a
                   person, in the ledger's queue
    """

    behavior: Behavior | None = None
    delivery: Delivery | Callable[[dict[str, Any], Any], Delivery] = "when_idle"
    preamble: Literal["none", "filler", "action"] = "none"
    on_barge_in: BargeIn | Callable[[Any], BargeIn] = "finish"
    stale: Literal["drop", "silent", "speak"] = "drop"
    same_action: Literal["session", "turn", "call"] = "session"
    revision_key: Callable[[str, dict[str, Any]], str] | None = None
    without_asking: frozenset[str] | None = None
    guardrails: tuple[Guardrail, ...] = ()
    tool_timeout: float = 30.0
    keep_clear: float = 0.06
    budget: dict[str, float] = dataclasses.field(default_factory=dict)

    def __new__(cls, *_values: Any, **fields: Any) -> Self:
        """Only to name the fields there are, where a misspelt one would get Python's own message."""
        known = [each.name for each in dataclasses.fields(cls)]
        if strange := sorted(set(fields) - set(known)):
            raise ValueError(unknown("policy: no field", strange[0], known))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if name in TAKES_FUNCTION and callable(value):
                continue
            if value not in allowed:
                raise ValueError(f"policy: {name} is one of {', '.join(map(str, allowed))}, not {value!r}")
        self._check_safety()
        if not _is_number(self.tool_timeout) or not 0 < self.tool_timeout < math.inf:
            raise ValueError(f"policy: tool_timeout is a number of seconds above 0, not {self.tool_timeout!r}")
        if not _is_number(self.keep_clear) or not 0 <= self.keep_clear <= 1:
            raise ValueError(f"policy: keep_clear is a number of seconds from 0 to 1, not {self.keep_clear!r}")
        if self.revision_key is not None and not callable(self.revision_key):
            raise ValueError(f"policy: revision_key is a function (tool name, arguments), not {self.revision_key!r}")

    def _check_safety(self) -> None:
        names, rules = self.without_asking, self.guardrails
        if names is not None:
            if not isinstance(names, (frozenset, set, list, tuple)) or not all(isinstance(name, str) for name in names):
                raise ValueError(f"policy: without_asking is a set of tool names, not {names!r}")
            object.__setattr__(self, "without_asking", frozenset(names))
        if not isinstance(rules, (tuple, list)) or not all(callable(r) or isinstance(r, SpeechRule) for r in rules):
            raise ValueError("policy: guardrails is a tuple of functions (tool, arguments, result) and SpeechRules")
        object.__setattr__(self, "guardrails", tuple(rules))
        check_limits(self.budget)

    def describe(self) -> dict[str, Any]:
        """Return the fields as JSON values; a function is given by its name."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def chosen(function: Callable[..., Any], allowed: tuple[str, ...] | None, *about: Any) -> tuple[Any, str]:
    """What a function of the reader's chooses, and what is wrong with that in one line ("" if nothing).

    `allowed`: what it may choose, None for any text. A function that raises has chosen None: the run goes on.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        value = function(*about)
    except Exception as error:
        return None, f"{name} raised {type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(value, str) if allowed is None else value in allowed:
        return value, ""
    return None, f"{name} returned {value!r}; it is to return {' or '.join(allowed or ('a text',))}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    if isinstance(value, SpeechRule):
        return _plain(value.judge)
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
