"""What a simulated service says, as sound: the recording of a sentence, or an audible stand-in of the right length.

The sentences of the kit were rendered beforehand (data/audio/agent.csv; synthetic speech). Any other sentence becomes a
babble of vowels at the pace of those recordings, so that every machine hears the same text for the same time, with
nothing to install. Real speech for free text is `Voice(free_text="pico")`, see there.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import soxr

from voicekit.audio import RATE, Clip, Samples, to_int16, to_pcm
from voicekit.models import data_path

QUIET_SECONDS = 0.03  # at both ends of a recording, and so of a stand-in
GAP_SECONDS = 0.06  # between two sentences: a pause of 0.12 s with the quiet ends, too short to be taken for the end
LEVEL_DBFS = -20.0  # of a stand-in, as of the recordings
SHORTEST_SECONDS = 0.3
# Seconds of a sentence = first + second * letters + third * commas, fitted to agent.csv (median error 6 %, a tenth are
# more than 17 % off). A digit is read as a word, which has about four letters.
PACE = {"en": (0.23, 0.0527, 0.24), "de": (0.05, 0.072, 0.14)}
LETTERS_IN_A_DIGIT = 4
VOWELS = {  # the two lowest formants in Hz (Peterson and Barney 1952, men, rounded)
    "a": (730, 1090),
    "e": (530, 1840),
    "i": (270, 2290),
    "o": (570, 840),
    "u": (300, 870),
}
ALIASES = str.maketrans("äöüyáàéèíóúâêîôû", "eeuiaaeeiouaeiou")

FreeText = Literal["stand-in", "pico"]


class Voice:
    """The voice of a service.

    language    "en" or "de": the pace of stand-ins, and the recording that is taken if both languages have the sentence
    free_text   "stand-in" (default) or "pico": real speech for sentences without a recording, in the installed package
                py-nanotts (8 MB, SVOX Pico). Not the default: another version of it, or a machine without it, would
                give the same text another length, and every number that depends on it would move.

    Raises ValueError for a language without a pace, or if "pico" is asked for and not installed.
    """

    def __init__(self, language: str = "en", free_text: FreeText = "stand-in") -> None:
        if language not in PACE:
            raise ValueError(f"a voice speaks {' or '.join(PACE)}, not {language!r}")
        if free_text == "pico":
            _pico()
        self.language, self.free_text = language, free_text

    def say(self, text: str) -> Samples:
        """The sound of `text`, int16 at 24 kHz, read-only; empty for a text without words. Same text, same samples."""
        return _say(text, self.language, self.free_text)[0]

    def pieces(self, text: str, lengths_ms: Sequence[int]) -> list[tuple[str, bytes]]:
        """`text` as it streams: for each piece the words that are complete by its end, and its PCM16.

        `lengths_ms` are the lengths of the pieces in milliseconds, the last one that of all further ones. The words of
        a sentence share its time by their length. The words of all pieces put together are `text` again; the last
        piece may be shorter. Empty for a text without words.
        """
        samples, word_ends = _say(text, self.language, self.free_text)
        sizes = [RATE * ms // 1000 for ms in lengths_ms]
        starts = [0, *accumulate(sizes)]
        starts += range(starts[-1] + sizes[-1], len(samples), sizes[-1])
        starts = starts[: bisect_left(starts, len(samples))]
        words = [""] * len(starts)
        for end, word in word_ends:
            words[max(0, bisect_left(starts, end) - 1)] += word
        return [(word, to_pcm(piece)) for word, piece in zip(words, np.split(samples, starts[1:]), strict=False)]


@lru_cache(maxsize=128)
def _say(text: str, language: str, free_text: FreeText) -> tuple[Samples, tuple[tuple[int, str], ...]]:
    """The sound, and for each word (with the space after it) the sample at which it has been said."""
    parts: list[Samples] = []
    word_ends: list[tuple[int, str]] = []
    at = 0
    for sentence in sentences(text):
        if parts:
            parts.append(np.zeros(round(RATE * GAP_SECONDS), np.int16))
            at += len(parts[-1])
        parts.append(_speak(sentence.strip(), language, free_text))
        quiet = round(RATE * QUIET_SECONDS)
        spoken = len(parts[-1]) - 2 * quiet
        words = re.findall(r"\s*\S+\s*", sentence)
        shares = list(accumulate(1 + _letters(word) for word in words))  # 1: a word of signs takes time too
        for word, share in zip(words, shares, strict=True):
            word_ends.append((at + quiet + spoken * share // shares[-1], word))
        at += len(parts[-1])
    samples = np.concatenate(parts) if parts else np.zeros(0, np.int16)
    samples.flags.writeable = False  # it is shared
    return samples, tuple(word_ends)


def sentences(text: str) -> list[str]:
    """`text` cut after the marks that end a sentence, with the spaces that follow them; nothing is lost."""
    return re.findall(r"\s*\S.*?(?:[.!?…]+[\"'”’)]*\s+|\n\s*|\s*\Z)", text, re.DOTALL) if text.strip() else []


def _speak(sentence: str, language: str, free_text: FreeText) -> Samples:
    recording = _recordings(language).get(_key(sentence))
    if recording is not None:
        return recording.samples
    return _real_speech(sentence, language) if free_text == "pico" else _babble(sentence, language)


def _key(sentence: str) -> str:
    """Case, spaces and signs do not make it another sentence."""
    return " ".join(re.findall(r"\w+", sentence.casefold()))


@cache
def _recordings(language: str) -> dict[str, Clip]:
    """The recorded sentences by key; where two languages share one, that of `language`."""
    path = data_path("audio", "agent.csv")
    with path.open(newline="", encoding="utf-8") as table:
        rows = sorted(csv.DictReader(table), key=lambda row: row["language"] == language)
    return {
        _key(row["text"]): Clip(name=row["text"], path=path.parent / row["file"], sha256=row["sha256"]) for row in rows
    }


def _letters(text: str) -> int:
    return sum(LETTERS_IN_A_DIGIT if c.isdigit() else c.isalpha() for c in text)


def seconds(sentence: str, language: str = "en") -> float:
    """How long a sentence without a recording takes, to 10 ms: a rule on its letters, so the same everywhere."""
    base, letter, comma = PACE[language]
    return max(SHORTEST_SECONDS, round(base + letter * _letters(sentence) + comma * sentence.count(","), 2))


def _babble(sentence: str, language: str) -> Samples:
    """The vowels of the sentence, one a syllable, sung on a falling tone (rising at the end of a question)."""
    vowels = [group[0] for group in re.findall("[aeiou]+", sentence.casefold().translate(ALIASES))] or ["e"]
    count = round(RATE * seconds(sentence, language)) - 2 * round(RATE * QUIET_SECONDS)
    syllable = np.arange(count) * len(vowels) / count  # which syllable, and how far into it
    progress = np.linspace(0, 1, count)
    pitch = 175 - 35 * progress + (200 * np.clip(progress - 0.7, 0, 1) if sentence.rstrip().endswith("?") else 0)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    # The mouth moves from vowel to vowel, and the lips never quite close: there is no pause inside a sentence.
    formants = np.array([VOWELS[vowel] for vowel in vowels], float)
    first, second = (np.interp(syllable, np.arange(len(vowels)) + 0.5, formants[:, i]) for i in (0, 1))
    sound = np.zeros(count)
    for harmonic in range(1, 16):
        tone = harmonic * pitch
        strength = np.exp(-(((tone - first) / 130) ** 2)) + 0.4 * np.exp(-(((tone - second) / 180) ** 2))
        sound += (strength + 0.3 / harmonic) * np.sin(harmonic * phase)
    sound *= 0.15 + 0.85 * np.sin(np.pi * syllable) ** 2
    sound *= np.clip(np.minimum(progress, 1 - progress) * count / (RATE * 0.02), 0, 1)
    sound *= 10 ** (LEVEL_DBFS / 20) / np.sqrt(np.mean(sound**2))
    quiet = np.zeros(round(RATE * QUIET_SECONDS))
    return to_int16(np.concatenate((quiet, sound, quiet)))


@cache
def _pico() -> Any:
    try:
        return import_module("py_nanotts").NanoTTS()
    except ImportError:
        raise ValueError('free_text="pico" needs the package py-nanotts: pip install py-nanotts') from None


def _real_speech(sentence: str, language: str) -> Samples:
    pcm = _pico().speak(sentence, voice={"en": "en-US", "de": "de-DE"}[language], volume=0.5)  # louder, it clips
    sound = soxr.resample(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, 16_000, RATE)
    return to_int16(sound)
