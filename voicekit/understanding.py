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
    own = known.get(f"ask.{tool}", "")
    if own and set(re.findall(r"{(\w+)}", own)) == set(words):
        return own.format_map(words)
    # No sentence of its own, or one that would leave an argument out: all of them are named, in an order of their own.
    values = [f"{key.replace('_', ' ')} {words[key]}" for key in sorted(words)]
    return known["ask.*"].format(call=", ".join([tool.replace("_", " "), *values]))


def asks(text: str, wanted: str) -> bool:
    """Whether what was heard ends with the question `wanted`: the same words in the same order, and nothing after it.

    Whole sentences before it do not matter unless they ask something too: of two questions in one breath nobody knows
    which one is answered. Other words in its own sentence do matter ("Shall I not ..."). Numbers count with their sign
    and their point: 0.5 is not 5.0.
    """
    pieces = re.split(r"(?<=[.!?])\s+", text.strip())
    return any(
        _tokens(" ".join(pieces[start:])) == _tokens(wanted) and "?" not in " ".join(pieces[:start])
        for start in range(len(pieces))
    )


def _tokens(text: str) -> list[str]:
    return re.findall(r"[-+]?\d+(?:[.,:]\d+)*|\w+", text.lower())


def _plain(text: str) -> str:
    return re.sub(r"[^\w]+", " ", text).strip().lower()
