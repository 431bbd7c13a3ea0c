"""What an announcement talks about: the caller's matter, or the machine's state. Words from data/preamble_words.csv.

The vendor's guide asks for a preamble to name the action, not the thinking ("I'll check that order now", not "One
moment while I process that"). This is a list of words, no understanding of the sentence: extend it for your trade.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from functools import cache

from voicekit.models import data_path

SENTENCES = 2  # "one short sentence, two at most"


@cache
def known_words(language: str | None = None) -> tuple[tuple[str, str], ...]:
    """(words, what they are about) of a language (None: of all), from data/preamble_words.csv. `*`: any letters.

    about: "caller" (their matter), "action" (what is done about it), "machine" (its state), "wait" (that there is one).
    Raises ValueError for a language the table does not have.
    """
    with data_path("preamble_words.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    languages = sorted({row["language"] for row in rows})
    if language not in (None, *languages):
        raise ValueError(f"language is one of {', '.join(languages)}, not {language!r}; add its words to the table")
    return tuple((row["words"], row["about"]) for row in rows if language in (None, row["language"]))


def words_about(text: str, language: str | None, more: Iterable[tuple[str, str]] = ()) -> dict[str, list[str]]:
    """The known words found in `text`, by what they are about."""
    found: dict[str, list[str]] = {}
    for words, about in (*known_words(language), *more):
        if hit := _pattern(words).search(text.lower()):
            found.setdefault(about, []).append(hit[0])
    return found


@cache
def _pattern(words: str) -> re.Pattern[str]:
    spelled = re.escape(words.lower()).replace(r"\*", r"\w*").replace(r"\ ", r"\s+")
    return re.compile(rf"\b{spelled}\b")


FIRST_PERSON = re.compile(r"\b(i'll|i will|let me|i'm going to|while i|ich)\b")


def promises(text: str) -> bool:
    """Whether a whole turn is nothing but the announcement that something will now be done: no question, no news."""
    if "?" in text or sentence_count(text) > SENTENCES or not text.strip():
        return False
    found = words_about(text, None)
    acts = "action" in found and FIRST_PERSON.search(text.lower().replace("\u2019", "'"))
    return bool(acts) or "wait" in found


def sentence_count(text: str) -> int:
    return len([each for each in re.split(r"[.!?]+", text) if each.strip()])
