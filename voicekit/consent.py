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
LONGEST_YES = 5


@cache
def words(language: str) -> dict[str, tuple[str, ...]]:
    """Phrases by kind ("yes", "no", "hold", "filler"), longest first, for a language; {} for an unknown one."""
    found: dict[str, list[str]] = {}
    with data_path("consent_words.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["language"] == language:
                found.setdefault(row["kind"], []).append(row["phrase"])
    return {kind: tuple(sorted(phrases, key=len, reverse=True)) for kind, phrases in found.items()}


def verdict(answer: str, language: str = "en") -> Verdict:
    """Judge an answer to a question that was asked and heard; the caller of this function sees to both.

    "no" if a refusal is anywhere in it, "yes" if it begins with a yes and has nothing else in it but politeness,
    "neither" for the rest: silence, a question, "wait", "maybe", a yes to something else.
    """
    known = words(language)
    text = " ".join(re.findall(r"[\w']+", answer.lower().replace("\u2019", "'")))
    if not text or not known:
        return "neither"
    # "I'm not sure" holds off; the "not" in it refuses nothing.
    plain = re.sub("|".join(rf"\b{re.escape(phrase)}\b" for phrase in known["hold"] if " " in phrase), " ", text)
    if _contains(plain, known["no"]):
        return "no"
    if _contains(text, known["hold"]) or "?" in answer or len(text.split()) > LONGEST_YES:
        return "neither"
    begins = next((phrase for phrase in known["yes"] if f"{text} ".startswith(f"{phrase} ")), None)
    if begins is None:
        return "neither"
    rest = text[len(begins) :]
    for phrase in sorted(known["yes"] + known["filler"], key=len, reverse=True):
        rest = re.sub(rf"\b{re.escape(phrase)}\b", " ", rest)
    return "neither" if rest.strip() else "yes"


def _contains(text: str, phrases: tuple[str, ...]) -> bool:
    return any(re.search(rf"\b{re.escape(phrase)}\b", text) for phrase in phrases)
