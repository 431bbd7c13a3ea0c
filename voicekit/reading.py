"""What a model makes of what it is given to read: sections of its instructions, and the answers of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

# An order as it stands in somebody else's text: call cancel_appointment with {"day": "friday", "time": "10:00"}.
ORDER = re.compile(r"\bcall `?(\w+)`?(?:\s+with\s+(\{[^{}]*\}))?", re.IGNORECASE)
MARK = re.compile(r"</?untrusted[^>]*>\s*")  # what `untrusted.mark` puts around a text; nobody reads it aloud
# Words of tools' names that say what is done, not what it is done to: two tools that share one are no rivals.
VERBS = frozenset([
    "get", "find", "check", "list", "search", "book", "cancel", "send", "create", "update", "delete", "add", "read",
    "set", "look", "show",
])  # fmt: skip

# How an application gives a model a sentence for the caller; live models understand the same words.
FOR_THE_CALLER = re.compile(r'\b(?:ask|tell) the caller: "(.+)"', re.IGNORECASE | re.DOTALL)
HOW_IT_ENDED = re.compile(r"\bknown how (\w+) ended\b")


def read_preambles(instructions: str) -> dict[str, str]:
    """Sample phrases under a `# Preambles` heading: lines `- tool: phrase`; `any tool` is "*", `none` no phrase."""
    found: dict[str, str] = {}
    section = re.search(r"^#+\s*Preambles\s*$(.*?)(?=^#|\Z)", instructions, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    for name, phrase in re.findall(r"^-\s*([\w ]+?)\s*:\s*(.+?)\s*$", section[1] if section else "", re.MULTILINE):
        key = "*" if name.lower() in ("any tool", "other tools") else name
        found[key] = "" if phrase.lower().rstrip(".") == "none" else phrase.strip('"')
    return found


def parse_output(output: Any) -> Any:
    """A tool's answer as the model reads it: JSON where it is JSON, else the text itself."""
    if isinstance(output, str):
        try:
            return json.loads(output)
        except ValueError:
            return output
    return output


def is_empty(output: Any) -> bool:
    """Whether an answer says nothing: `{}`, null, "", [] or an empty list of results without a status."""
    if isinstance(output, dict) and "status" not in output:
        return all(is_empty(value) or value == 0 for value in output.values())
    return output in (None, "", [], ())


def vary(arguments: Mapping[str, Any], tries: int) -> dict[str, Any] | None:
    """The n-th variation of a search that a model tries after an empty answer; None when nothing can be varied."""
    for key, value in arguments.items():
        if isinstance(value, str) and value:
            words = value.split()
            options = [value.title(), f"{value}s", words[-1], value.upper(), " ".join(reversed(words))]
            return {**arguments, key: options[tries % len(options)]}
    return None


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, as deep as it lies."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from texts(each)


def orders(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls that a text tells its reader to make, as (tool, arguments); arguments that are no JSON are left out."""
    found = []
    for name, written in ORDER.findall(text):
        arguments = parse_output(written) if written else {}
        found.append((name, arguments if isinstance(arguments, dict) else {}))
    return found


def rivals(name: str, tools: Mapping[str, Mapping[str, Any]], slots: Mapping[str, Any]) -> list[str]:
    """The other tools that look as if they would do: they share a word of the name and can be called with `slots`."""
    words = set(name.split("_")) - VERBS
    return [
        other
        for other, tool in tools.items()
        if other != name
        and words & set(other.split("_"))
        and set((tool.get("parameters") or {}).get("required", [])) <= set(slots)
    ]


def tokens_of(value: Any) -> int:
    """About how many tokens a model reads: four characters of JSON each. An estimate (OpenAI's rule of thumb for
    English text); `costs.tokens` counts with a vocabulary."""
    return -(-len(json.dumps(value, ensure_ascii=False)) // 4)
