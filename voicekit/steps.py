"""What a model's turn is made of: words and proposed calls, and what became of each call."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from voicekit.models import data_path


class Habits(Protocol):
    """What the rules have to know of a model (see `simulator.profile.Profile`)."""

    @property
    def preambles(self) -> bool: ...

    @property
    def fillers(self) -> bool: ...

    @property
    def obeys_text(self) -> bool: ...

    @property
    def confusion(self) -> float: ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class Speak:
    """Say `text`. `commentary`: it announces a call that follows in the same turn (a preamble)."""

    text: str
    commentary: bool = False


@dataclass(frozen=True)
class CallTool:
    """Propose a call."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


Step = Speak | CallTool


@dataclass
class Request:
    """A call the model has proposed, and what has become of it."""

    call: CallTool
    then: tuple[str, dict[str, Any]] | None = None  # a tool that needs this one's result, and its slots
    output: Any = None
    state: str = "open"  # "answered", "cancelled"
    owed: bool = False  # the caller is to be told
    spoken: bool = False
    tries: int = 0


@cache
def default_preamble(tool: str, language: str, kind: str = "action") -> str:
    """The phrase a model that announces calls by itself uses for `tool` (data/preambles.csv, by `kind`)."""
    with data_path("preambles.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == kind]
    found = {row["tool"]: row["text"] for lang in ("en", language) for row in rows if row["language"] == lang}
    return found.get(tool, found["*"])


def read_earlier_results(instructions: str) -> list[tuple[CallTool, str]]:
    """Results an earlier call was too short for: lines `- tool {arguments}: summary` under their heading."""
    heading = r"^#+\s*Results that came after the last call\s*$(.*?)(?=^#|\Z)"
    section = re.search(heading, instructions, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    lines = re.findall(r"^-\s*(\w+)\s+(\{.*?\}):\s*(.+?)\s*$", section[1] if section else "", re.MULTILINE)
    return [(CallTool(tool, json.loads(arguments)), summary) for tool, arguments, summary in lines]


def is_ok(output: Any) -> bool:
    return output is not None and not (isinstance(output, dict) and output.get("status") not in ("ok", None))


def without_repeats(steps: list[Step]) -> list[Step]:
    return [step for index, step in enumerate(steps) if step not in steps[:index]]
