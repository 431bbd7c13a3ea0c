"""What an announcement talks about: the caller's matter, or the machine's state. Words from data/preamble_words.csv.

The vendor's guide asks for a preamble to name the action, not the thinking ("I'll check that order now", not "One moment
while I process that"). This is a list of words, not an understanding of the sentence: extend the table for your trade.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from functools import cache

from voicekit.models import data_path

SENTENCES = 2  # "one short sentence, two at most"


@cache
def known_words(language: str) -> tuple[tuple[str, str], ...]:
    """(words, what they are about) of a language, from data/preamble_words.csv. A `*` stands for any letters.

    about: "caller" (their matter), "action" (what is done about it), "machine" (its state), "wait" (that there is one).
    """
    with data_path("preamble_words.csv").open(newline="", encoding="utf-8") as file:
        return tuple((row["words"], row["about"]) for row in csv.DictReader(file) if row["language"] == language)


def words_about(text: str, language: str, more: Iterable[tuple[str, str]] = ()) -> dict[str, list[str]]:
    """The known words found in `text`, by what they are about."""
    found: dict[str, list[str]] = {}
    for words, about in (*known_words(language), *more):
        pattern = re.escape(words.lower()).replace(r"\*", r"\w*").replace(r"\ ", r"\s+")
        if hit := re.search(rf"\b{pattern}\b", text.lower()):
            found.setdefault(about, []).append(hit[0])
    return found


def promises(text: str, language: str) -> bool:
    """Whether a whole turn is nothing but the announcement that something will now be done: no question, no news."""
    first_person = {"en": r"\b(i'll|i will|let me|i'm going to|while i)\b", "de": r"\bich\b"}
    if "?" in text or sentence_count(text) > SENTENCES or not text.strip():
        return False
    found = words_about(text, language)
    acts = "action" in found and re.search(first_person.get(language, r"\bi\b"), text.lower().replace("\u2019", "'"))
    return bool(acts) or "wait" in found


def sentence_count(text: str) -> int:
    return len([each for each in re.split(r"[.!?]+", text) if each.strip()])
