"""What a model makes of what it is given to read: sections of its instructions, and the answers of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


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
