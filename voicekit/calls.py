"""A call as the application sees it: proposed, wanted or not any more, answered; and what its fate is decided by."""

from __future__ import annotations

import asyncio
import csv
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from voicekit.consent import Verdict
from voicekit.models import data_path
from voicekit.policy import Delivery

# What a model is told instead of a result that is dropped: a call id has to be answered all the same.
SUPERSEDED = {
    "status": "superseded",
    "summary": "The caller has changed or withdrawn this request.",
    "next_hint": "Say nothing about it.",
}


@dataclass(eq=False)
class Call:
    """One call on its way through the five steps. Times in session seconds."""

    id: str
    name: str
    arguments_json: str
    turn: str
    proposed: float
    caller_turn: int  # utterances the provider had heard when the call was proposed
    broken: bool = False
    is_new: bool = True  # its id was not in the ledger before
    arguments: dict[str, Any] = field(default_factory=dict)
    valid: bool = False
    answered: bool = False
    withdrawn: bool = False  # by the provider; it expects no answer any more
    outdated: str = ""  # why the result is not wanted any more: changed or withdrawn by the caller
    called_off: bool = False  # the caller withdrew the request (outdated for that reason)
    too_late: str = ""  # what to tell the caller of a call that was to be stopped and could not be
    held: asyncio.Future[Verdict] | None = None  # waits for the caller's yes, not begun
    pending: bool = False  # its answer was "pending"; how it ended is told apart from it
    delivery: Delivery | None = None  # a result that is in the conversation and still has to be asked for
    task: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        """Whether the provider still waits for an answer."""
        return not self.answered and not self.withdrawn

    @property
    def undecided(self) -> bool:
        """Whether it may still be stopped, or its result dropped."""
        return self.open or self.held is not None


@dataclass(frozen=True)
class Moment:
    """What a `delivery` function may look at when a result comes in."""

    tool: str
    caller_speaking: bool
    agent_speaking: bool
    caller_turns_since: int  # utterances heard since the call was proposed
    seconds_since: float
    said: str = ""  # what the agent said in the same turn before the call
    said_seconds: float = 0.0


def withdraws(text: str, language: str = "en") -> Literal["", "all", "orders"]:
    """What an utterance takes back, by the phrases of data/withdrawals.csv as whole words of it; "" is nothing.

    "all" that was asked for, or only the "orders": what would change something ("cancel my booking").
    """
    plain = " ".join(re.findall(r"[\w']+", text.lower().replace("\u2019", "'")))
    found = {what for phrase, what in _withdrawals(language) if phrase.search(plain)}
    return "all" if "all" in found else "orders" if found else ""


@cache
def _withdrawals(language: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    with data_path("withdrawals.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["language"] == language]
    return tuple((re.compile(rf"\b{re.escape(row['phrase'].lower())}\b"), row["what"]) for row in rows)
