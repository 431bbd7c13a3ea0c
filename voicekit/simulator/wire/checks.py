"""Checks of client frames written as tables: one per object, refusals in the words OpenAI's services use.

A table maps field names to checks; a name that ends in "!" must be there. A check is called with the value and its path
("session.audio.input.format.rate") and raises `Refused`. Codes and wordings are those seen from the service; as there,
a missing field is reported before an unknown one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Check = Callable[[Any, str], None]
MAX_DEPTH = 100
IDENTIFIER = r"[a-zA-Z0-9_-]+"


class Refused(Exception):
    """A client event that is not accepted; becomes an `error` event, and the session stays open."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array"}
    return kinds.get(type(value), "an object")


def _wrong_type(path: str, expected: str, value: Any) -> Refused:
    message = f"Invalid type for '{path}': expected {expected}, but got {_kind(value)} instead."
    return Refused("invalid_type", message, path)


def listed(values: tuple[str, ...]) -> str:
    """'a', 'b', and 'c': how the service enumerates."""
    quoted = [f"'{value}'" for value in values]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def anything(value: Any, path: str) -> None:
    """Any value that is not nested so deeply that reading it again would exhaust the stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return
    raise Refused("invalid_value", f"Invalid '{path}': nested more than {MAX_DEPTH} levels deep.", path)


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def boolean(value: Any, path: str) -> None:
    if not isinstance(value, bool):
        raise _wrong_type(path, "a boolean", value)


def text(pattern: str = "", longest: int = 0) -> Check:
    def check(value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise _wrong_type(path, "a string", value)
        if pattern and not re.fullmatch(pattern, value):
            message = f"Invalid '{path}': string does not match pattern. Expected a string that matches '^{pattern}$'."
            raise Refused("invalid_value", message, path)
        if longest and len(value) > longest:
            message = f"Invalid '{path}': string too long. Expected a string with maximum length {longest}."
            raise Refused("string_above_max_length", message, path)

    return check


string = text()
identifier = text(IDENTIFIER)


def one_of(*values: str) -> Check:
    def check(value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise _wrong_type(path, f"one of {listed(values)}", value)
        if value not in values:
            raise Refused("invalid_value", f"Invalid value: '{value}'. Supported values are: {listed(values)}.", path)

    return check


def _within(value: float, low: float, high: float, path: str, kind: str) -> None:
    if low <= value <= high:
        return
    word, sign, bound = ("below min", ">=", low) if value < low else ("above max", "<=", high)
    message = f"Invalid '{path}': {kind} {word}imum value. Expected a value {sign} {bound:g}, but got {value} instead."
    raise Refused(f"{kind}_{word.replace(' ', '_')}_value", message, path)


def integer(low: int, high: float = math.inf) -> Check:
    def check(value: Any, path: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong_type(path, "an integer", value)
        _within(value, low, high, path, "integer")

    return check


def decimal(low: float, high: float) -> Check:
    def check(value: Any, path: str) -> None:
        # Python's JSON reader lets NaN and Infinity through; they are no JSON
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise _wrong_type(path, "a decimal", value)
        _within(value, low, high, path, "decimal")

    return check


def maybe(check: Check) -> Check:
    """`check`, or null."""
    return lambda value, path: None if value is None else check(value, path)


def by_type(expected: str, checks: Mapping[type, Check]) -> Check:
    """One check per JSON type, for fields such as `"inf"` or a number."""

    def check(value: Any, path: str) -> None:
        chosen = checks.get(type(value))
        if chosen is None:
            raise _wrong_type(path, expected, value)
        chosen(value, path)

    return check


def array(check_each: Check, longest: float = math.inf) -> Check:
    def check(value: Any, path: str) -> None:
        if not isinstance(value, list):
            raise _wrong_type(path, "an array", value)
        if len(value) > longest:
            message = f"Invalid '{path}': array too long. Expected an array with maximum length {longest:g}."
            raise Refused("array_above_max_length", message, path)
        for index, each in enumerate(value):
            check_each(each, f"{path}[{index}]")

    return check


def table(fields: Mapping[str, Check]) -> Check:
    checks = {name.rstrip("!"): check for name, check in fields.items()}
    required = [name.rstrip("!") for name in fields if name.endswith("!")]

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise _wrong_type(path, "an object", value)
        prefix = f"{path}." if path else ""
        for name in required:
            if name not in value:
                param = prefix + name
                raise Refused("missing_required_parameter", f"Missing required parameter: '{param}'.", param)
        for name, each in value.items():
            if name not in checks:
                raise Refused("unknown_parameter", f"Unknown parameter: '{prefix}{name}'.", prefix + name)
            checks[name](each, prefix + name)

    return check


def variant(tag: str, cases: Mapping[str, Check]) -> Check:
    """An object whose `tag` field says which table it follows."""
    choice = one_of(*cases)

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise _wrong_type(path, "an object", value)
        param = f"{path}.{tag}"
        if tag not in value:
            raise Refused("missing_required_parameter", f"Missing required parameter: '{param}'.", param)
        choice(value[tag], param)
        cases[value[tag]](value, path)

    return check


def mapping(check_value: Check, most: int) -> Check:
    """An object with free keys of at most 64 characters (metadata)."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise _wrong_type(path, "an object", value)
        if len(value) > most:
            raise Refused("object_above_max_properties", f"Invalid '{path}': at most {most} properties.", path)
        for name, each in value.items():
            if len(name) > 64:
                raise Refused("string_above_max_length", f"Invalid '{path}': key longer than 64 characters.", path)
            check_value(each, f"{path}.{name}")

    return check
