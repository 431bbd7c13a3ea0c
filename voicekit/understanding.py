"""What an utterance is taken to mean: the words, the intent and its slots. Known sentences only; nothing is guessed.

Shared by the simulated models (which hear) and by the offline backend of client delegation (which reads): two sides
that meet on the socket only, and have to agree on what "make that Thursday" means.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from voicekit.audio import clips
from voicekit.models import data_path

# What a voice answers from its instructions or from what has been said, without a tool and without a backend.
SMALL_TALK = {
    "opening_hours", "return_policy", "thanks", "still_there", "hold_on", "human", "never_mind", "repeat",
    "backchannel", "stop_talking",
}  # fmt: skip


@dataclass(frozen=True)
class Utterance:
    """What was made of one turn of the caller. If it was not understood, transcript, intent and slots are empty."""

    transcript: str = ""
    intent: str = ""
    slots: dict[str, Any] = field(default_factory=dict)
    language: str = "en"
    clip: str = ""  # the clip that was recognised; "" if none was
    understood: bool = False
    seconds: float = 0.0  # length of the speech, without the silence around it

    @property
    def intents(self) -> tuple[str, ...]:
        return tuple(self.intent.split("+")) if self.intent else ()


def understand(text: str, language: str) -> Utterance | None:
    """Typed text as an utterance: understood when it is the transcript of a known clip. None for no words at all."""
    wanted = _plain(text)
    for clip in clips().values():
        if clip.language == language and _plain(clip.transcript) == wanted and clip.intent:
            return Utterance(text, clip.intent, clip.slots, clip.language, clip.name, True, 0.0)
    return Utterance(text, "", {}, language, "", False, 0.0) if wanted else None


def work_in(utterance: Utterance) -> Utterance | None:
    """The part of an understood utterance that is no small talk: what a backend is for. None if there is none."""
    intents = [intent for intent in utterance.intents if intent not in SMALL_TALK]
    return replace(utterance, intent="+".join(intents)) if intents else None


@cache
def sentences(language: str) -> dict[str, str]:
    """data/sentences.csv for a language; English fills the gaps."""
    with data_path("sentences.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {row["key"]: row["text"] for lang in ("en", language) for row in rows if row["language"] == lang}


def question(tool: str, arguments: Mapping[str, Any], language: str) -> str:
    """The question that asks the caller for a yes to a call (data/sentences.csv, `ask.` and the tool)."""
    known = sentences(language)
    words = {key: known.get(f"word.{value}", str(value)) for key, value in arguments.items()}
    try:
        return known[f"ask.{tool}"].format_map(words)
    except KeyError:  # no sentence of its own, or an argument the sentence has no place for
        return known["ask.*"].format(call=", ".join([tool.replace("_", " "), *words.values()]))


def named_in_question(tool: str, arguments: Mapping[str, Any], language: str) -> set[str]:
    """The words of `question` without which it would be about something else: what is done, and every value.

    What is done is the tool's verb (data/sentences.csv, `verb.` and the tool), else the words of its name.
    """
    known = sentences(language)
    texts = [known.get(f"word.{value}", str(value)) for value in arguments.values() if not isinstance(value, bool)]
    texts.append(known.get(f"verb.{tool}", tool.replace("_", " ")))
    return {word for text in texts for word in re.findall(r"\w+", text.lower())}


def _plain(text: str) -> str:
    return re.sub(r"[^\w]+", " ", text).strip().lower()
