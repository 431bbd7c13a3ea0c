"""The scripted caller: what is said, and on which cue; and the microphone that never stops.

Frames leave on absolute deadlines (first + n * frame), silence included, each when its last sample has been "captured".
So a cue inside a frame still puts the first sample of the answer at the cue, whatever the length of the frames.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from voicekit.audio import RATE, Clip, Samples, from_pcm, to_int16, to_pcm
from voicekit.journal import Journal
from voicekit.names import unknown
from voicekit.recording import audible_from, noise_threshold

After = Literal["agent_starts", "agent_stops", "agent_done", "tool_starts", "tool_done", "heard_text"]
CUES: tuple[str, ...] = After.__args__  # type: ignore[attr-defined]
# The cues that are a single journal event: (lane, kind).
EVENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "agent_starts": (("heard", "playing"),),
    "tool_starts": (("tool", "running"),),
    "tool_done": (("tool", "done"), ("tool", "failed"), ("tool", "timed_out")),
}

NOISE_SECONDS = 10.0  # the background repeats after this long
TOLERANCE = 0.05  # of a sample; session time is kept to the microsecond

WhenHeard = Callable[[str, Callable[[], None]], Callable[[], None]]


@dataclass(frozen=True)
class Line:
    """One utterance and its cue. Raises ValueError for a cue that does not exist or lacks what it needs.

    clip      name of the recorded sentence
    at        said at this session time in seconds (or as soon as the line before has ended, if that is later)
    after     or said after a cue that follows the beginning of the line before:
              agent_starts   the agent begins to be heard
              agent_stops    the agent falls silent: nothing more is queued for the loudspeaker
              agent_done     the agent has spoken since the line before ended, is silent, and owes nothing
              tool_starts, tool_done   a tool begins to run, has ended (well or not)
              heard_text     agent speech that contains `text` has been heard
              With neither: after the end of the line before.
    seconds   how long after the cue
    patience  a cue that has not come this long after the end of the line before is not waited for any longer
    """

    clip: str
    at: float | None = None
    after: After | None = None
    seconds: float = 0.0
    text: str | None = None
    patience: float = 15.0

    def __post_init__(self) -> None:
        where = f"line {self.clip!r}:"
        if self.after is not None and self.after not in CUES:
            raise ValueError(f"{where} after is one of {', '.join(CUES)}, not {self.after!r}")
        if self.at is not None and self.after is not None:
            raise ValueError(f"{where} give at= (a time) or after= (a cue), not both")
        if (self.after == "heard_text") != bool(self.text):
            raise ValueError(f'{where} after="heard_text" and text="..." belong together')
        for name, value in (("at", self.at or 0.0), ("seconds", self.seconds), ("patience", self.patience)):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{where} {name} is a number of seconds from 0 on, not {value!r}")


class Caller:
    """Says `lines` in order and streams the microphone to `send`, PCM16 mono at 24 kHz, one frame at a time.

    lines       what is said; a line never begins before the one before has ended
    send        takes one frame; what it raises ends `run`
    frame_ms    length of a frame in ms
    level_db    how much louder (or, below 0, softer) than recorded the caller speaks, in dB
    noise_db    level of white background noise in dBFS, None for digital silence; the same `seed`, the same noise
    now         session time in seconds; by default counted from the start of `run`
    busy        whether the application still owes the caller something (an answer, a call that is open)
    when_heard  `Speaker.when_heard`; without it a text is only recognised when its item has ended

    Raises ValueError for a clip that is unknown or damaged.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        clips: Mapping[str, Clip],
        journal: Journal,
        send: Callable[[bytes], Awaitable[None]],
        *,
        frame_ms: int = 100,
        level_db: float = 0.0,
        noise_db: float | None = None,
        seed: int = 0,
        now: Callable[[], float] | None = None,
        busy: Callable[[], bool] = lambda: False,
        when_heard: WhenHeard | None = None,
    ) -> None:
        for line in lines:
            if line.clip not in clips:
                raise ValueError(unknown("unknown clip", line.clip, sorted(clips)))
        self._lines = [(line, clips[line.clip], _at_level(clips[line.clip].samples, level_db)) for line in lines]
        self._journal = journal
        self._send = send
        self._frame = round(RATE * frame_ms / 1000)
        self._noise_db = noise_db
        self._noise = _noise(self._frame, noise_db, seed)
        self._background = [to_pcm(frame) for frame in self._noise.reshape(-1, self._frame)]
        self._clock = now
        self.busy = busy
        self.when_heard = when_heard
        self.is_speaking = False
        self.finished = not lines
        """All lines have been said to their end; true before the last speech_stop is written."""
        self.last_speech_end: float | None = None
        """When the last utterance that is over ended, by its last audible frame."""
        self._stopped = False
        self._first = 0  # session sample at which the microphone was opened
        self._sent: list[bytes] = []
        self._next = 0  # index of the line that is to be said next
        self._free = 0  # session sample at which the line before has ended
        self._speech: list[tuple[int, Samples]] = []  # utterances not sent to their end: (session sample, sound)
        self._armed = False  # the next line waits for its cue
        self._talked = False  # the agent fell silent after the line before had ended
        self._sounding: set[str] = set()
        self._looking = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._cancel_watch: Callable[[], None] = lambda: None
        journal.listen(self._on_event)

    @property
    def samples_sent(self) -> int:
        return len(self._sent) * self._frame

    @property
    def recorded(self) -> list[tuple[int, Samples]]:
        """What was sent, as a track of `recording.mix`: (first session sample, samples)."""
        return [(self._first, from_pcm(b"".join(self._sent)))] if self._sent else []

    def stop(self) -> None:
        """Hang up: `run` returns within one frame, an utterance under way ends with what was sent of it."""
        self._stopped = True

    def look(self) -> None:
        """Look again whether nothing is owed; called by itself after every journal event."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    async def run(self) -> None:
        """Stream frames until `stop()`, or until `send` raises. Silence goes on after the last line."""
        loop = asyncio.get_running_loop()
        if self._clock is None:
            begin = loop.time()
            self._clock = lambda: loop.time() - begin
        self._first = self._free = math.ceil(self._clock() * RATE - TOLERANCE)
        try:
            self._arm()
            await self._stream(self._clock)
        finally:
            self._stopped = True
            self._disarm()
            if self.is_speaking:
                self._end(self._first + self.samples_sent)
            for timer in self._timers.values():
                timer.cancel()

    async def _stream(self, now: Callable[[], float]) -> None:
        sleep, send, frame, sent = asyncio.sleep, self._send, self._frame, self._sent
        background, cycle = self._background, len(self._background)
        start, count = self._first, 0
        while True:
            start += frame
            # A late frame follows at once and the next deadline stays where it was: nothing drifts.
            await sleep(max(0.0, start / RATE - now()))
            if self._stopped:
                return
            pcm = background[count % cycle]
            if self._speech and self._speech[0][0] < start:
                pcm = self._spoken(start - frame, pcm)
            count += 1
            sent.append(pcm)
            await send(pcm)

    def _spoken(self, start: int, pcm: bytes) -> bytes:
        """The frame that begins at session sample `start`, with the part of the utterance that falls into it."""
        frame = from_pcm(pcm).astype(np.int32)
        for begin, samples in self._speech:
            into, out_of = max(0, begin - start), max(0, start - begin)
            piece = samples[out_of : out_of + max(0, self._frame - into)]
            frame[into : into + len(piece)] += piece
        self._speech = [each for each in self._speech if each[0] + len(each[1]) > start + self._frame]
        return to_pcm(np.clip(frame, -32768, 32767).astype(np.int16))

    # Cues

    def _arm(self) -> None:
        """Wait for the cue of the next line; called at the very beginning of the line before."""
        self._talked = False
        if self._next == len(self._lines):
            return
        line = self._lines[self._next][0]
        if line.at is not None:
            self._say_at(line.at + line.seconds)
        elif line.after is None:
            self._say_at(self._free / RATE + line.seconds)
        else:
            self._armed = True
            self._later("cue", self._free / RATE + line.patience, self._miss)
            if line.text is not None and self.when_heard is not None:
                self._cancel_watch = self.when_heard(line.text, self._cue)

    def _on_event(self, event: dict[str, Any]) -> None:
        lane, kind = event["lane"], event["kind"]
        if lane == "caller" or self._stopped:
            return
        fell_silent = (lane, kind) == ("heard", "played") and bool((event["detail"] or {}).get("heard"))
        if lane == "heard":
            (self._sounding.add if kind == "playing" else self._sounding.discard)(event["item"])
        if not self._armed:
            return
        line = self._lines[self._next][0]
        words = (event["text"] or "").lower() if fell_silent and self.when_heard is None else ""
        if (lane, kind) in EVENTS.get(str(line.after), ()) or (line.text and line.text.lower() in words):
            self._cue()
        elif line.after in ("agent_stops", "agent_done"):
            if fell_silent and (line.after == "agent_stops" or self._now() >= self._free / RATE):
                self._talked = True
            self.look()

    def _look(self) -> None:
        """Decide on "the agent has stopped" once everything of this moment has been written."""
        self._looking = False
        if not self._armed or self._stopped or self._sounding or not self._talked:
            return
        after = self._lines[self._next][0].after
        if after == "agent_stops" or (after == "agent_done" and not self.is_speaking and not self.busy()):
            self._cue()

    def _cue(self) -> None:
        if self._armed:
            self._disarm()
            self._say_at(self._now() + self._lines[self._next][0].seconds)

    def _miss(self) -> None:
        if self._stopped:
            return
        line = self._lines[self._next][0]
        cue = f"{line.after} {line.text!r}" if line.text else str(line.after)
        self._disarm()
        text = f"{cue} did not come within {line.patience:g} s of the line before; said anyway"
        self._journal.add("decision", "cue_missed", item=line.clip, text=text)
        self._say_at(self._now())

    # Speech

    def _say_at(self, seconds: float) -> None:
        wanted = math.ceil(max(seconds, self._now()) * RATE - TOLERANCE)
        start = max(wanted, self._free, self._first + self.samples_sent)
        self._later("cue", start / RATE, lambda: self._begin(start))

    def _begin(self, start: int) -> None:
        if self._stopped:
            return
        if self.is_speaking:  # timers of one moment come in any order
            self._end(self._free)
        _, clip, samples = self._lines[self._next]
        start = max(start, self._first + self.samples_sent)  # in real time the microphone may have gone on meanwhile
        self._speech.append((start, samples))
        self._free = start + len(samples)
        self._next += 1
        self.is_speaking = True
        self._later("end", self._free / RATE, lambda: self._end(self._free))
        self._write("speech_start", clip, start, samples, self._audible(start, samples))
        self._arm()

    def _end(self, stop: int) -> None:
        self._timers.pop("end").cancel()
        _, clip, samples = self._lines[self._next - 1]
        start = self._free - len(samples)
        samples = samples[: max(0, stop - start)]
        self.is_speaking = False
        self.finished = self._next == len(self._lines) and stop >= self._free
        audible = self._audible(start, samples)
        self.last_speech_end = audible[-1][1] if audible else round(stop / RATE, 6)
        self._write("speech_stop", clip, start, samples, audible)

    def _write(self, kind: str, clip: Clip, start: int, samples: Samples, audible: list[list[float]]) -> None:
        stop = start + len(samples)
        self._journal.add(
            "caller",
            kind,
            item=clip.name,
            text=clip.transcript,
            start=round(start / RATE, 6),
            stop=round(stop / RATE, 6),
            audible=audible,
        )

    def _audible(self, start: int, samples: Samples) -> list[list[float]]:
        """Where the utterance is audible on the line, its noise included."""
        if self._noise_db is not None:
            noise = self._noise[np.arange(start - self._first, start - self._first + len(samples)) % len(self._noise)]
            samples = np.clip(noise.astype(np.int32) + samples, -32768, 32767).astype(np.int16)
        return audible_from(start, samples, noise_threshold(self._noise_db))

    # Time

    def _now(self) -> float:
        assert self._clock is not None, "the caller is run before it hears anything"
        return self._clock()

    def _later(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        """Call at session time `seconds`, instead of what `name` was to do; never inside the present event."""
        loop = asyncio.get_running_loop()
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = loop.call_at(loop.time() + round(seconds, 6) - self._now(), callback)

    def _disarm(self) -> None:
        self._armed = False
        self._cancel_watch()
        self._cancel_watch = lambda: None


def _at_level(samples: Samples, level_db: float) -> Samples:
    if not level_db:
        return samples
    louder: Samples = np.clip(np.round(samples * 10.0 ** (level_db / 20.0)), -32768, 32767).astype(np.int16)
    return louder


def _noise(frame: int, noise_db: float | None, seed: int) -> Samples:
    """What the microphone picks up while nobody speaks, repeated for ever: a silent frame, or 10 s of white noise."""
    if noise_db is None:
        return np.zeros(frame, np.int16)
    length = max(1, round(NOISE_SECONDS * RATE / frame)) * frame
    return to_int16(np.random.default_rng(seed).normal(0.0, 10.0 ** (noise_db / 20.0), length))
