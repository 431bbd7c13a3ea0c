"""The playout buffer: what of the agent's speech was really heard, to the sample.

A model's audio arrives faster than it is spoken. It is queued here and leaves at 24 000 samples a second from the
moment it is there; where it runs dry there is a gap. Nothing runs per frame: the time at which each sample leaves is
known when it is queued, so a question is arithmetic and only the beginning and the end of an item need a timer.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from voicekit.alignment import Alignment
from voicekit.audio import RATE, Samples, from_pcm
from voicekit.journal import Journal
from voicekit.recording import audible_from

# Session time is kept to the microsecond, a sample lasts 42 of them: a tolerance of two decides no sample wrongly.
TOLERANCE = 0.05


class Counts(NamedTuple):
    """Samples of an item (or of all): generated == heard + flushed + queued, always."""

    generated: int
    heard: int
    flushed: int
    queued: int


@dataclass(eq=False)
class _Span:
    """Contiguous samples of one item and when they leave: session samples `start` to `stop`."""

    entry: _Entry
    start: int
    samples: Samples

    @property
    def stop(self) -> int:
        return self.start + len(self.samples)


@dataclass(eq=False)
class _Entry:
    """One item. `ended`: its `played` is written, whatever still comes for it is never heard."""

    name: str
    turn: str
    words: Alignment = field(default_factory=Alignment)
    spans: list[_Span] = field(default_factory=list)
    generated: int = 0
    flushed: int = 0
    odd: bytes = b""
    arrived: float = 0.0
    announced: bool = False
    finished: bool = False
    ended: bool = False
    ended_at: int = 0
    generated_event: dict[str, Any] | None = None
    played_event: dict[str, Any] | None = None

    def heard(self, now: int) -> int:
        return sum(min(max(now - span.start, 0), len(span.samples)) for span in self.spans)

    def index_of(self, sample: int) -> int | None:
        """Session sample at which the first `sample` samples of the item have been heard; None: not scheduled."""
        for span in self.spans:
            if sample <= len(span.samples):
                return span.start + sample
            sample -= len(span.samples)
        return None


@dataclass(eq=False)
class _Watch:
    text: str
    since: int
    callback: Callable[[], None]


class Speaker:
    """Plays queued PCM and writes the `agent` and `heard` lanes of the journal. `now` gives session seconds.

    An item's `generated` and `played` events keep up with what arrives late for it (a transcript after its sound,
    audio after a flush), so that the sums of a finished run are exact. Needs a running event loop.
    """

    def __init__(self, journal: Journal, now: Callable[[], float]) -> None:
        self._journal = journal
        self._now = now
        self._items: dict[str, _Entry] = {}
        self._open: list[_Entry] = []  # not ended, in order of arrival
        self._spans: list[_Span] = []  # everything heard or queued, in order of time
        self._flushed_turns: set[str] = set()
        self._watches: list[_Watch] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due: int | None = None
        self._closed_at: int | None = None
        self.late_samples = 0
        """Samples that arrived for an item or turn already flushed: dropped, counted as generated and flushed."""

    # What arrives

    def play(self, item: str, pcm: bytes, turn: str = "") -> None:
        """Queue agent audio: PCM16 mono at 24 kHz, any length (an odd byte waits for the item's next piece)."""
        self._advance()
        entry = self._entry(item, turn)
        pcm = entry.odd + pcm
        entry.odd = pcm[len(pcm) // 2 * 2 :]
        samples = from_pcm(pcm[: len(pcm) // 2 * 2])
        if not len(samples):
            return
        if not entry.generated:
            self._journal.add("agent", "generating", item=item, turn=entry.turn)
        entry.generated += len(samples)
        entry.arrived = self._now()
        if entry.ended or self._closed_at is not None or entry.turn in self._flushed_turns:
            entry.flushed += len(samples)
            self.late_samples += len(samples)
            if not entry.ended:
                self._end(entry)
        else:
            span = _Span(entry, max(self._stop, math.ceil(self._now() * RATE - TOLERANCE)), samples)
            self._spans.append(span)
            entry.spans.append(span)
        self._refresh(entry)
        self._settle()

    def said(self, item: str, text: str) -> None:
        """Attach a piece of transcript to the audio generated so far of `item`."""
        if not text:
            return
        self._advance()
        entry = self._entry(item, "")
        entry.words.add(text, entry.generated)
        self._refresh(entry)
        self._settle()

    def finish(self, item: str) -> None:
        """No more audio is expected for `item`: it ends when what is queued has been heard. Unknown: ignored."""
        self._advance()
        entry = self._items.get(item)
        if entry is not None and not entry.finished:
            entry.finished = True
            self._note_generated(entry)
            self._settle()

    def flush(self, item: str | None = None, turn: str | None = None) -> list[tuple[str, int, int]]:
        """Cut at the present sample and drop the rest: of everything, of one item or of one turn.

        Returns (item, heard_samples, flushed_samples) of each item that had audio and had not ended; (item, 0, n) when
        none of it was heard, (item, n, 0) when more of it was still expected. What comes later for these items, or for
        their turns, is dropped; flushing one item leaves the others of its turn alone.
        """
        self._advance()
        chosen = [e for e in self._open if (item is None or e.name == item) and (turn is None or e.turn == turn)]
        if item is None:
            self._flushed_turns.update(e.turn for e in chosen if e.turn)
            self._flushed_turns.update([turn] if turn else [])
        now = self._index()
        self._cut({id(entry) for entry in chosen}, now)
        for entry in chosen:
            entry.flushed = entry.generated - entry.heard(now)
            self._end(entry)
        self._settle()
        return [(e.name, e.generated - e.flushed, e.flushed) for e in chosen if e.generated]

    def close(self) -> None:
        """End of the session: write the events of items still open (what they hold is `queued`) and stop the timer."""
        self._advance()
        self._closed_at = self._index()
        if self._timer is not None:
            self._timer.cancel()
        self._watches.clear()
        for entry in list(self._items.values()):
            self._note_generated(entry)
            if not entry.ended:
                self._end(entry)

    # What is known

    @property
    def is_playing(self) -> bool:
        """Whether sound is leaving now (also: is about to, at the next sample)."""
        return self._index() < self._stop

    @property
    def idle_since(self) -> float | None:
        """Session time at which the last sound ended (0.0 when there was none); None while playing."""
        return None if self.is_playing else self._stop / RATE

    @property
    def open_items(self) -> tuple[str, ...]:
        """Items neither heard to their end nor flushed, in order; an unfinished one may still get audio."""
        self._advance()
        return tuple(entry.name for entry in self._open)

    @property
    def position(self) -> tuple[str, int] | None:
        """The item being heard and how many of its samples have been; None while nothing plays."""
        now = self._index()
        place = bisect_right(self._spans, now, key=lambda span: span.start) - 1
        if place < 0 or now >= self._spans[place].stop:
            return None
        entry = self._spans[place].entry
        return entry.name, entry.heard(now)

    def counts(self, item: str) -> Counts:
        """Samples of `item` generated, heard, flushed and still queued; all 0 for an unknown item."""
        entry = self._items.get(item)
        if entry is None:
            return Counts(0, 0, 0, 0)
        heard = entry.heard(self._index())
        return Counts(entry.generated, heard, entry.flushed, entry.generated - heard - entry.flushed)

    @property
    def totals(self) -> Counts:
        """Samples of all items together."""
        return Counts(*(sum(column) for column in zip((0, 0, 0, 0), *map(self.counts, self._items), strict=True)))

    def heard_ms(self, item: str) -> int:
        """Whole milliseconds of `item` heard: never more than arrived, never the wall clock."""
        return self.counts(item).heard * 1000 // RATE

    def text_heard(self, item: str) -> str:
        """The part of the transcript whose words have been heard to their end; + `text_unheard` = all of it."""
        entry = self._items.get(item)
        return entry.words.heard(entry.heard(self._index()), entry.generated) if entry else ""

    def text_unheard(self, item: str) -> str:
        """The rest of the transcript: not heard yet, or never to be."""
        entry = self._items.get(item)
        return entry.words.text[len(self.text_heard(item)) :] if entry else ""

    def when_heard(self, text: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once, at the moment agent speech containing `text` has been heard from now on.

        Upper and lower case are the same. Returns a function that withdraws the wish.
        """
        watch = _Watch(text.lower(), self._index(), callback)
        self._watches.append(watch)
        self._settle()
        return lambda: self._watches.remove(watch) if watch in self._watches else None

    def between(self, start: int, stop: int) -> Samples:
        """What left the loudspeaker from session sample `start` to `stop` (both past); 0 where nothing did."""
        sound, now = np.zeros(stop - start, np.int16), self._index()
        place = max(0, bisect_right(self._spans, start, key=lambda span: span.start) - 1)
        for span in self._spans[place:]:
            if span.start >= stop:
                break
            first, last = max(start, span.start), min(stop, span.stop, now)
            if first < last:
                sound[first - start : last - start] = span.samples[first - span.start : last - span.start]
        return sound

    @property
    def recorded(self) -> list[tuple[int, Samples]]:
        """What has been heard, as a track of `recording.mix`: (first session sample, samples), in order."""
        now = self._index()
        return [(span.start, span.samples[: now - span.start]) for span in self._spans if span.start < now]

    # How it works

    def _index(self) -> int:
        """How many samples of the session have passed; stands still after `close`."""
        if self._closed_at is not None:
            return self._closed_at
        return math.floor(self._now() * RATE + TOLERANCE)

    @property
    def _stop(self) -> int:
        return self._spans[-1].stop if self._spans else 0

    def _entry(self, item: str, turn: str) -> _Entry:
        entry = self._items.get(item)
        if entry is None:
            entry = self._items[item] = _Entry(item, turn)
            self._open.append(entry)
        entry.turn = entry.turn or turn  # a transcript may come first and without its turn
        return entry

    def _cut(self, chosen: set[int], now: int) -> None:
        """Drop what `chosen` still hold after `now`; what is queued behind them moves up."""
        place = len(self._spans)
        while place and self._spans[place - 1].stop > now:
            place -= 1
        following, self._spans[place:] = self._spans[place:], []
        start = math.ceil(self._now() * RATE - TOLERANCE)
        for span in following:
            if id(span.entry) in chosen:
                span.samples = span.samples[: max(0, now - span.start)]
                if not len(span.samples):
                    span.entry.spans.remove(span)
                    continue
            elif span.start >= now:
                span.start = start
                start = span.stop
            else:
                start = span.stop
            self._spans.append(span)

    def _settle(self) -> None:
        """Write what is due and set the timer for what is due next."""
        self._advance()
        due = min((index for index, _, _ in self._upcoming()), default=None)
        if due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, due
        if due is not None and self._closed_at is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(loop.time() + _s(due) - self._now(), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._settle()

    def _upcoming(self) -> list[tuple[int, int, Callable[[], None]]]:
        """(session sample, rank, what to do) of all that is to happen; an end comes before the next beginning."""
        events: list[tuple[int, int, Callable[[], None]]] = []
        for entry in self._open:
            if entry.spans and not entry.announced:
                events.append((entry.spans[0].start, 1, partial(self._begin, entry)))
            elif entry.finished:
                stop = entry.spans[-1].stop if entry.spans else 0
                events.append((stop, 0, partial(self._end, entry)))
        for watch in self._watches:
            times = [self._time_of(watch, entry) for entry in self._items.values() if entry.words.text]
            due = min((t for t in times if t is not None), default=None)
            if due is not None:
                events.append((due, 2, partial(self._fulfil, watch)))
        return events

    def _advance(self) -> None:
        """Do one by one what was due by now: each may change what is due next."""
        while due := [event for event in self._upcoming() if event[0] <= self._index()]:
            min(due, key=lambda event: event[:2])[2]()

    def _begin(self, entry: _Entry) -> None:
        entry.announced = True
        self._journal.add("heard", "playing", item=entry.name, turn=entry.turn, start=_s(entry.spans[0].start))

    def _end(self, entry: _Entry) -> None:
        entry.ended, entry.ended_at = True, self._index()
        self._open.remove(entry)
        text, detail = self._played(entry)
        entry.played_event = self._journal.add("heard", "played", item=entry.name, text=text, **detail)

    def _note_generated(self, entry: _Entry) -> None:
        if entry.generated_event is None:
            entry.generated_event = self._journal.add("agent", "generated", item=entry.name)
            self._refresh(entry)

    def _refresh(self, entry: _Entry) -> None:
        """Let the item's events say what is known by now."""
        if entry.generated_event is not None:
            entry.generated_event["text"] = entry.words.text.strip()
            entry.generated_event["detail"] = {
                "seconds": _s(entry.generated), "stop": round(entry.arrived, 6), "turn": entry.turn
            }  # fmt: skip
        if entry.played_event is not None:
            entry.played_event["text"], entry.played_event["detail"] = self._played(entry)

    def _played(self, entry: _Entry) -> tuple[str, dict[str, Any]]:
        """Text and detail of `played`. An item of which nothing was heard is an empty stretch at the present time."""
        now = self._index()
        heard = entry.heard(now)
        spans = [span for span in entry.spans if span.start < now]
        start, stop = (spans[0].start, min(spans[-1].stop, now)) if spans else (entry.ended_at, entry.ended_at)
        sound = np.zeros(stop - start, np.int16)
        for span in spans:
            sound[span.start - start : span.stop - start] = span.samples[: stop - span.start]
        text = entry.words.heard(heard, entry.generated)
        words = [(entry.index_of(sample + 1), word) for sample, word in entry.words.words(text, entry.generated)]
        return text.strip(), {
            "start": _s(start),
            "stop": _s(stop),
            "heard": _s(heard),
            "flushed": _s(entry.flushed),
            "queued": _s(entry.generated - heard - entry.flushed),
            "audible": audible_from(start, sound),
            "words": [[_s(index - 1), word] for index, word in words if index is not None],
            "unheard": entry.words.text[len(text) :].strip(),
            "turn": entry.turn,
        }

    def _time_of(self, watch: _Watch, entry: _Entry) -> int | None:
        """Session sample at which the watched text has been heard in `entry`, by the present plan."""
        for sample in entry.words.ends_of(watch.text, entry.generated):
            index = entry.index_of(sample)
            if index is not None and index > watch.since:
                return index
        return None

    def _fulfil(self, watch: _Watch) -> None:
        self._watches.remove(watch)
        watch.callback()


def _s(samples: int) -> float:
    return round(samples / RATE, 6)
