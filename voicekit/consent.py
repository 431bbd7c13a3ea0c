"""What a spoken answer to "shall I?" is worth: a yes, a no, or neither.

An answer is a recognition result, so the rules lean to one side: a refusal anywhere wins, and only a short, plain yes
counts. Everything else leaves the question open. The words are in data/consent_words.csv; data/consent.csv holds
answers with the right verdict, which the tests go through.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from typing import Literal

from voicekit.models import data_path

Verdict = Literal["yes", "no", "neither"]

# A yes with more words than this around it answers something else as well.
LONGEST_YES = 6

# Between two sentences: not after a title ("Dr. Vogel") or before a number ("Dec. 5"), and after "10 a.m." only where
# the next word begins a sentence.
BETWEEN = re.compile(
    r"(?<=[.!?])(?<!\b[DdMm]r\.)(?<!\b[Mm]rs\.)(?<!\b[Mm]s\.)"
    r"(?:(?<!\b[ap]\.m\.)\s+(?!\d)|(?<=\b[ap]\.m\.)\s+(?=[A-ZÄÖÜ]|(?:shall|should|do|would|may|can)\b))"
)


@cache
def words(language: str) -> dict[str, tuple[str, ...]]:
    """Phrases by kind, longest first, for a language; {} for an unknown one.

    Kinds: "yes", "no", "hold", "filler" for what may stand beside a yes, "start" for what may stand before it,
    "harmless" for a filler that sounds like a refusal ("no problem"); "repeats cancel" for what repeats a question that
    has "cancel" in it, and so on; "choice" for what makes a question one of this or that.
    """
    found: dict[str, list[str]] = {}
    with data_path("consent_words.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["language"] == language:
                found.setdefault(row["kind"], []).append(row["phrase"])
    return {kind: tuple(sorted(phrases, key=len, reverse=True)) for kind, phrases in found.items()}


def verdict(answer: str, language: str = "en", question: str = "") -> Verdict:
    """Judge an answer to `question`, which was asked and heard; the caller of this function sees to both.

    "no" if a refusal is anywhere in it, "yes" if it begins with a yes and has nothing else in it but politeness,
    "neither" for the rest: silence, a question, "wait", "maybe", a yes to something else. "Cancel that" is a refusal,
    but after a yes to "shall I cancel ...?" it only repeats the question; alone it could be either.
    """
    known = words(language)
    # The ends of sentences stay: "No. Problem ..." is not "no problem".
    text = " ".join(re.findall(r"[\w']+|[.!;]", answer.lower().replace("\u2019", "'")))
    if not re.search(r"\w", text) or not known:
        return "neither"
    asked, other = _repetitions(known, question)
    text = _without(text, asked)
    # "I'm not sure" holds off, "no problem" does not even that: the "not" and the "no" in them refuse nothing.
    meant = _without(text, known["harmless"] + _long(known["yes"]))
    if _contains(_without(meant, _long(known["hold"])), known["no"]):
        return "no"
    if _contains(meant, known["hold"]) or _contains(text, other) or len(re.findall(r"[\w']+", text)) > LONGEST_YES:
        return "neither"
    if re.search(r"[?？]|(?:\.\.|[…–—-])\s*$", answer):  # asked, or broken off
        return "neither"
    begun = re.sub(rf"^(?:(?:{'|'.join(known['start'])})\b[\s.!;]*)+", "", text)
    if not any(f"{begun} ".startswith(f"{phrase} ") for phrase in known["yes"]):
        return "neither"
    rest = _without(begun, known["yes"] + known["filler"] + known["harmless"])
    return "neither" if re.search(r"\w", rest) else "yes"


def _repetitions(known: dict[str, tuple[str, ...]], question: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Phrases that repeat what the question asks, and those that would repeat another one; none without a question."""
    # What was said before it in the same breath ("You can cancel until Monday.") is not what is asked.
    asked = BETWEEN.split(question.strip())[-1].lower()
    if not asked or _contains(asked, known["choice"]):
        return (), ()
    found: dict[bool, tuple[str, ...]] = {True: (), False: ()}
    for kind, phrases in known.items():
        if kind.startswith("repeats "):
            found[_contains(asked, (kind.removeprefix("repeats "),))] += phrases
    return found[True], found[False]


def _long(phrases: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(phrase for phrase in phrases if " " in phrase)


def _without(text: str, phrases: tuple[str, ...]) -> str:
    for phrase in sorted(phrases, key=len, reverse=True):
        text = re.sub(rf"\b{re.escape(phrase)}\b", " ", text)
    return " ".join(text.split())


def _contains(text: str, phrases: tuple[str, ...]) -> bool:
    return any(re.search(rf"\b{re.escape(phrase)}\b", text) for phrase in phrases)
