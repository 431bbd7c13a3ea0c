"""Guardrails: a rule decides, nobody is asked. On a call, before and after it runs; on speech, while it is spoken.

    def no_refunds_over_100(tool, arguments, result):
        if tool.name == "refund" and result is None and arguments["euros"] > 100:
            return vk.skip("refunds over 100 euros are for a person")

A rule on a call stands in the gate, so it holds for every route. A rule on speech comes too late by its nature: what
was heard before the verdict has leaked, and is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from voicekit.results import Result

if TYPE_CHECKING:
    from voicekit.tools import Tool


@dataclass(frozen=True)
class Ruling:
    """What a rule says: "allow", "skip" the call, "replace" its output or the speech by `instead`, "abort" the run."""

    action: Literal["allow", "skip", "replace", "abort"] = "allow"
    why: str = ""
    instead: Any = None


def skip(why: str) -> Ruling:
    """The call is not run; speech is cut off."""
    return Ruling("skip", why)


def replace(instead: Result | str, why: str = "") -> Ruling:
    """The model is given this result instead; speech is cut off, and this sentence is said instead."""
    return Ruling("replace", why, instead)


def abort(why: str) -> Ruling:
    """Nothing more is run or said: the conversation is over."""
    return Ruling("abort", why)


# `(tool, arguments, result)`; `result` is None before the call runs. None allows. A call may be asked about more than
# once, so a rule is to decide and to do nothing.
CallRule = Callable[["Tool", dict[str, Any], "Result | None"], "Ruling | None"]


@dataclass(frozen=True)
class SpeechRule:
    """A rule on what the agent says: `judge(text)` is given the words of one reply as they come in.

    `seconds`: how long a verdict takes. A rule in the same process has it at once, a second model takes its time.
    """

    judge: Callable[[str], Ruling | None]
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not callable(self.judge):
            raise ValueError(f"SpeechRule: judge is a function of the text, not {self.judge!r}")
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, (int, float)) or not 0 <= self.seconds < 60:
            raise ValueError(f"SpeechRule: seconds is a number from 0 to 60, not {self.seconds!r}")


Guardrail = CallRule | SpeechRule


def judge_speech(rule: SpeechRule, text: str) -> Ruling:
    """What a rule says of the words of a reply so far; a rule that raises does not allow."""
    try:
        return _ruling(rule.judge, rule.judge(text))
    except Exception as error:
        return skip(f"{_name(rule.judge)} raised {type(error).__name__}: {error}")


def judge_call(rules: Sequence[CallRule], tool: Tool, arguments: Mapping[str, Any], result: Result | None) -> Ruling:
    """What the first rule that does not allow says; a rule that raises does not allow."""
    for rule in rules:
        try:
            ruling = _ruling(rule, rule(tool, dict(arguments), result))
        except Exception as error:
            ruling = skip(f"{_name(rule)} raised {type(error).__name__}: {error}")
        if ruling.action != "allow":
            return ruling
    return Ruling()


def _ruling(rule: Any, said: Any) -> Ruling:
    if said is None or isinstance(said, Ruling):
        return said or Ruling()
    return skip(f"{_name(rule)} returned {said!r:.60}; return None, vk.skip(why), vk.replace(result) or vk.abort(why)")


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
