"""What can be made to go wrong in a simulated service: which provider imitates it, and the values it takes.

What a fault does is said by the endpoint of each provider (`simulator/openai_realtime.py` and so on), "mishear" by
mishearing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

OPENAI, LIVE, GEMINI = ("openai-realtime",), ("gpt-live",), ("gemini-live",)
ALL = OPENAI + LIVE + GEMINI
CLOSE_CODES = (*range(1000, 1004), *range(1007, 1015), *range(3000, 5000))  # that a server may send (RFC 6455, IANA)

# Returns what a value would have to be, "" if it is.
Check = Callable[[Any], str]


def is_number(value: Any, low: float, high: float) -> bool:
    """Whether a value is a number in a range; true and false, infinity and NaN are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _seconds(value: Any) -> str:
    return "" if is_number(value, 0, 3600) else "a number of seconds from 0 to 3600"


def _milliseconds(value: Any) -> str:
    return "" if is_number(value, 0, 60_000) else "a number of milliseconds from 0 to 60000"


def _on(value: Any) -> str:
    return "" if value is True else "true, or left out"


def _one_of(*words: str) -> Check:
    return lambda value: "" if value is True or value in words else f"true or {' or '.join(map(repr, words))}"


def _text(value: Any) -> str:
    return "" if value is True or (isinstance(value, str) and value) else "true or a text"


def _arguments(value: Any) -> str:
    is_object = isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value)
    return "" if is_object else 'the arguments that are added, such as {"gift": true}'


def _delegations(value: Any) -> str:
    known = isinstance(value, Mapping) and set(value) == {"count", "seconds"}
    if known and isinstance(value["count"], int) and is_number(value["count"], 1, 10_000):
        return _seconds(value["seconds"]) and f"with seconds as {_seconds(value['seconds'])}"
    return 'such as {"count": 3, "seconds": 1.0}, with a count from 1 to 10000'


def _close(value: Any) -> str:
    usual = 'such as {"after_s": 2.5, "code": 1011, "reason": ""}'
    if not isinstance(value, Mapping) or "after_s" not in value or set(value) - {"after_s", "code", "reason"}:
        return usual
    if _seconds(value["after_s"]):
        return f"{usual}: after_s is {_seconds(value['after_s'])}"
    if value.get("code", 1011) not in CLOSE_CODES or isinstance(value.get("code"), (bool, float)):
        return f"{usual}: code is one that a server may send (1000 to 1003, 1007 to 1014, 3000 to 4999)"
    return "" if isinstance(value.get("reason", ""), str) else f"{usual}: reason is a text"


FAULTS: dict[str, tuple[tuple[str, ...], Check]] = {
    "cancel_call_after_s": (GEMINI, _seconds),
    "close": (ALL, _close),
    "close_1008_on_audio_during_call": (GEMINI, _on),
    "delegations": (LIVE, _delegations),
    "duplicate_call": (OPENAI + GEMINI, _one_of("before", "after")),
    "extra_argument": (OPENAI, _arguments),
    "garbage_after_s": (ALL, _seconds),
    "goaway_after_s": (GEMINI, _seconds),
    "late_response": (OPENAI, _seconds),
    "mishear": (ALL, lambda value: ""),  # by `mishearing.rates_of`, which knows the clips
    "no_setup_complete": (GEMINI, _on),
    "orphan_late_result": (GEMINI, _on),
    "promise_without_call": (OPENAI + GEMINI, _one_of("always")),
    "second_id": (OPENAI + GEMINI, _on),
    "second_message": (OPENAI, _text),
    "short_by_ms": (OPENAI, _milliseconds),
    "stall_after_call": (GEMINI, _on),
    "stall_after_s": (OPENAI + LIVE, _seconds),
    "truncate_arguments": (OPENAI, _on),
    "unknown_tool": (OPENAI + GEMINI, _text),
    "unspoken": (LIVE, _on),
}


def check_faults(faults: Any, provider: str = "") -> None:
    """Raise ValueError for a fault that nobody knows, that `provider` does not imitate, or with an impossible value."""
    if not isinstance(faults, Mapping):
        example = 'such as {"garbage_after_s": 5} (--set faults.NAME=VALUE)'
        raise ValueError(f"faults is a mapping {example}, not {faults!r}")
    known = [name for name, (providers, _) in FAULTS.items() if provider in ("", *providers)]
    for name, value in faults.items():
        if name not in FAULTS:
            raise ValueError(f"unknown fault {name!r}; known: {', '.join(known)}")
        if name not in known:
            raise ValueError(f"faults.{name}: not of the simulated {provider}; it has {', '.join(known)}")
        if wanted := FAULTS[name][1](value):
            raise ValueError(f"faults.{name} is {wanted}, not {value!r}")
