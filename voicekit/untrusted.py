"""Texts that nobody of ours has written: marking them, and holding what was said against what was done.

Everything a developer has not typed is data: results, transcripts, resources, notes. Marking says so to the model and
is cheap; it is a request, not a control. A model that obeys the text all the same is stopped by the gate, or by nobody.
"""

from __future__ import annotations

import csv
import fnmatch
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any

from voicekit.metrics import played
from voicekit.models import data_path
from voicekit.reading import MARK as MARK
from voicekit.runs import Run


def mark(text: str, source: str) -> str:
    """The text between marks that say where it comes from. A mark inside it, of whatever spelling, is made harmless."""
    folded = unicodedata.normalize("NFKC", text)
    looks_like_a_mark = re.search(r"<\s*/?\s*untrusted", folded, re.IGNORECASE) is not None
    inside = re.sub(r"<(?=\s*/?\s*untrusted)", "‹", folded, flags=re.IGNORECASE) if looks_like_a_mark else text
    label = re.sub(r"[^\w ./:-]", "", source)
    return f'<untrusted source="{label}">\n{inside}\n</untrusted>'


@dataclass(frozen=True)
class EmptyClaim:
    """The agent said that something is done, and the ledger knows of no such effect by then."""

    t: float
    said: str
    phrase: str
    tools: str


@cache
def _phrases() -> tuple[tuple[re.Pattern[str], str, str], ...]:
    with data_path("spoken_claims.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return tuple((_pattern(row["phrase"]), row["phrase"], row["tools"]) for row in rows)


def claims_without_effect(run: Run) -> list[EmptyClaim]:
    """What the caller heard the agent claim to have done without an effect in the ledger (data/spoken_claims.csv).

    A phrase names the tools whose effect would make it true; their call has to be over when the agent begins to say so.
    A list of words: other words for the same claim are missed, so extend it for your trade.
    """
    found = []
    for item in played(run.event_rows):
        said = " ".join(word for _, word in item.words)
        for sentence in re.findall(r"[^.!?]+[.!?]?", said):
            for pattern, phrase, tools in _phrases():
                if not pattern.search(sentence.lower().replace("\u2019", "'")) or "?" in sentence:
                    continue
                if not any(_makes_true(row, tools, item.start) for row in run.call_rows):
                    found.append(EmptyClaim(item.start, sentence.strip(), phrase, tools))
    return found


def _makes_true(row: dict[str, Any], tools: str, t: float) -> bool:
    done = row["effect"] in ("committed", "undone") and row["finished"] is not None and row["finished"] <= t
    return done and any(fnmatch.fnmatch(row["tool"], each) for each in tools.split())


def _pattern(phrase: str) -> re.Pattern[str]:
    """A phrase as it may stand in a sentence; `…` is any few words."""
    before, few, after = (re.escape(part.strip()).replace(r"\ ", r"\s+") for part in phrase.lower().partition("…"))
    return re.compile(rf"\b{before}\s+(?:\S+\s+){{0,6}}?{after}\b" if few else rf"\b{before}\b")
