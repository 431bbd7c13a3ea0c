"""The knobs of the application under study, in one frozen dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

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
    tool_timeout   limit of one tool run, seconds
    without_asking, guardrails, budget   reserved for consent, rules and limits; refused until something acts on them
    """

    behavior: Behavior | None = None
    delivery: Delivery | Callable[[dict[str, Any], Any], Delivery] = "when_idle"
    preamble: Literal["none", "filler", "action"] = "none"
    on_barge_in: BargeIn | Callable[[Any], BargeIn] = "finish"
    stale: Literal["drop", "silent", "speak"] = "drop"
    same_action: Literal["session", "turn", "call"] = "session"
    revision_key: Callable[[str, dict[str, Any]], str] | None = None
    without_asking: frozenset[str] | None = None
    guardrails: tuple[Callable[[Any], Any], ...] = ()
    tool_timeout: float = 30.0
    budget: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if name in TAKES_FUNCTION and callable(value):
                continue
            if value not in allowed:
                raise ValueError(f"policy: {name} is one of {', '.join(map(str, allowed))}, not {value!r}")
        for name, unset in (("without_asking", None), ("guardrails", ()), ("budget", {})):
            if getattr(self, name) != unset:
                raise ValueError(f"policy: {name} is not acted on yet, so it is refused; leave it out")
        if not self.tool_timeout > 0:
            raise ValueError(f"policy: tool_timeout is a number of seconds above 0, not {self.tool_timeout!r}")

    def describe(self) -> dict[str, Any]:
        """Return the fields as JSON values; a function is given by its name."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _plain(value: Any) -> Any:
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
