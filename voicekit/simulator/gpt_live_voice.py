"""The voice of a simulated GPT-Live session: what it answers, what it hands over, and its stream of 100 ms frames.

It has no tools. From its instructions it reads what the backend is for (the list under `Backend tools`) and what to say
when it hands work over (`# Preambles`). Everything here is counted in milliseconds of the session's timeline, which
moves on with the caller's audio.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import soxr

from voicekit.audio import RATE, from_pcm, to_pcm
from voicekit.reading import read_preambles
from voicekit.simulator.voice import Voice
from voicekit.understanding import SMALL_TALK, Utterance, sentences

FRAME_MS = 100  # of one output delta, as in a field report
# A caller who talks over the voice for this long makes it stop; a shorter "mm-hm" does not. No published figure.
YIELD_MS = 600
# What only makes sense when work was handed over before.
FOLLOW_UPS = frozenset(["correction", "book_it", "consent", "refusal", "question", "any_news", "did_it_work"])
# Questions about work under way: the voice knows that there is no result yet.
ABOUT_WORK = frozenset(("any_news", "did_it_work"))
# What takes back work under way, whatever tools there are.
TAKE_BACK = frozenset(("never_mind", "cancel_appointment"))


@dataclass(frozen=True)
class Line:
    """Something to be said from `ready_ms` on, as soon as nobody speaks."""

    text: str
    ready_ms: float
    kind: Literal["reply", "acknowledgement", "result"] = "reply"


@dataclass(frozen=True)
class Answer:
    """What is made of an utterance: sentences the voice says itself, and whether there is work to hand over."""

    text: str = ""
    delegate: bool = False
    stop: bool = False


class Speech:
    """The lines to be said and the frame that is due. Frames hold PCM16 at `rate` Hz."""

    def __init__(self, voice: Voice, rate: int) -> None:
        self._voice, self._rate = voice, rate
        self._lines: list[Line] = []
        self._saying: Iterator[tuple[str, bytes]] | None = None
        self._has_spoken = False
        self._line: Line | None = None
        self._said = ""
        self.rest: Line | None = None  # what the caller cut off

    @property
    def is_speaking(self) -> bool:
        return self._saying is not None

    @property
    def said(self) -> str:
        """The latest line as far as it was said."""
        return self._said.strip()

    def add(self, line: Line) -> None:
        self._lines.append(line)

    def drop(self, drop: Callable[[Line], bool]) -> None:
        """Forget lines that have not begun."""
        self._lines = [line for line in self._lines if not drop(line)]

    def stop(self) -> None:
        """Break off. What has been sent cannot be taken back; it was sent no faster than it is heard."""
        if self._line is not None:
            text = self._line.text[len(self.said) :].strip()
            self.rest = Line(text, 0.0, self._line.kind) if text else None
        self._saying = self._line = None

    def frame(self, now_ms: float, may_begin: bool) -> tuple[str, bytes] | None:
        """The frame that ends at `now_ms`: words complete in it, and its sound. None is silence."""
        if self._saying is None and may_begin:
            self._begin(now_ms)
        if self._saying is None:
            return None
        piece = next(self._saying, None)
        if piece is None:
            self._saying = self._line = None
            return self.frame(now_ms, may_begin)
        self._said += piece[0]
        return piece

    def _begin(self, now_ms: float) -> None:
        ready = [line for line in self._lines if line.ready_ms <= now_ms]
        if ready:
            line = min(ready, key=lambda line: line.ready_ms)
            self._lines.remove(line)
            self._line, self._said, self.rest = line, "", None
            self._saying = iter(self._pieces(line.text))

    def _pieces(self, text: str) -> list[tuple[str, bytes]]:
        """The line in frames; the last one is filled up with silence."""
        pieces = self._voice.pieces(text, [FRAME_MS])
        if self._has_spoken and pieces:  # a transcript is read by joining its pieces
            first = next(n for n, (words, _) in enumerate(pieces) if words)
            pieces[first] = (f" {pieces[first][0]}", pieces[first][1])
        self._has_spoken = True
        if self._rate != RATE:
            sound = from_pcm(b"".join(pcm for _, pcm in pieces))
            pcm = to_pcm(soxr.resample(sound, RATE, self._rate))
            size = self.frame_bytes
            pieces = [(words, pcm[n * size : (n + 1) * size]) for n, (words, _) in enumerate(pieces)]
        return [(words, pcm.ljust(self.frame_bytes, b"\0")) for words, pcm in pieces]

    @property
    def frame_bytes(self) -> int:
        return 2 * self._rate * FRAME_MS // 1000


class Understanding:
    """Decides what the voice answers itself. `instructions` are those of the session (the frontend's)."""

    def __init__(self, instructions: str, language: str) -> None:
        self._known = sentences(language)
        self._tools = read_tools(instructions)
        self._preambles = read_preambles(instructions)
        self.pending: set[str] = set()  # delegations nobody has answered
        self._has_delegated = False

    def answer(self, utterance: Utterance, last_said: str, rest: str) -> Answer:
        if not utterance.understood or not utterance.intents:
            return Answer(self._known["not_understood"])
        said: list[str] = []
        delegate = False
        for intent in utterance.intents:
            if intent == "repeat":
                said.append(last_said or self._known["nothing_to_say"])
            elif intent == "backchannel":
                said.append(rest)
            elif intent == "still_there":
                waiting = f" {self._known['still_waiting']}" if self.pending else ""
                said.append(self._known[intent] + waiting)
            elif intent in ABOUT_WORK and self.pending:
                said.append(self._known["still_waiting"])
            elif intent in TAKE_BACK and self.pending and not (utterance.slots and intent in self._tools):
                said.append(self._known["passed_on"])  # who does the work knows whether it could be stopped
                delegate = True
            elif intent in SMALL_TALK:
                said.append(self._known.get(intent, ""))
            elif intent in self._tools or (intent in FOLLOW_UPS and self._has_delegated):
                delegate = True
            else:
                said.append(self._known.get(intent, self._known["cannot"]))
        return Answer(" ".join(filter(None, said)), delegate, "stop_talking" in utterance.intents)

    def delegated(self, id_: str, utterance: Utterance) -> None:
        self._has_delegated = True
        if "never_mind" in utterance.intents:
            self.pending.clear()
        else:
            self.pending.add(id_)

    def acknowledgement(self, utterance: Utterance) -> str:
        """What is said while work begins: the sample phrase from the instructions, or the general one."""
        general = self._known["acknowledgement"]
        tool = next((intent for intent in utterance.intents if intent in self._tools), "*")
        return self._preambles.get(tool) or self._preambles.get("*") or general


def read_tools(instructions: str) -> set[str]:
    """The names in the list under a `Backend tools` label: lines `- name: what it is for`."""
    section = re.search(r"^\W*Backend tools\W*$\n((?:^-.*\n?)*)", instructions, re.MULTILINE | re.IGNORECASE)
    return set(re.findall(r"^-\s*([\w-]+)", section[1], re.MULTILINE)) if section else set()
