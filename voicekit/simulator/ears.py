"""What a simulated service hears: when a caller's turn starts and ends, and which of the known clips was said.

Both are found in the PCM that really arrived: turns by voice-activity detection (voicekit.vad), sentences by their
sound (voicekit.simulator.recogniser). An utterance that is no known clip is "not understood", never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from voicekit.audio import MAX_CLIP_SECONDS, Clip, Resampler, from_pcm
from voicekit.simulator.recogniser import Recogniser
from voicekit.understanding import Utterance as Utterance
from voicekit.vad import DETECTORS, Detector
from voicekit.vad import RATE as VAD_RATE

ONSET_MS = 60  # so long must speech be probable before a turn starts
HYSTERESIS = 0.15  # a turn goes on while the probability stays above threshold - HYSTERESIS (Silero's own margin)
# The recogniser hears so much before and after the detected speech: in noise a soft start is found up to 0.25 s late.
MARGIN_MS = 400
EAGER_MS = 200  # with semantic detection: the pause after which a sentence known to be whole ends the turn
# And the longest pause it waits for, after anything else: OpenAI's maximum timeouts (realtime VAD guide).
EAGERNESS_MS = {"low": 8000, "medium": 4000, "auto": 4000, "high": 2000}


@dataclass(frozen=True)
class Started:
    """A turn began. `at_ms` is a position in the audio fed, with the prefix padding already subtracted."""

    at_ms: int


@dataclass(frozen=True)
class Ended:
    """A turn ended. `at_ms` is a position in the audio fed, and includes the silence that was waited for."""

    at_ms: int
    utterance: Utterance


class Ears:
    """Listens to one caller: PCM16 at `rate` Hz goes in, turns come out.

    automatic   True: `feed` detects turns. False (push to talk): it only buffers, and `commit` makes the turn
    speaking    True between Started and Ended
    report      what is reported of a clip that was recognised: itself, or the one it is mistaken for

    Positions count audio, not time: what is fed late is heard late, at the same position.
    """

    def __init__(
        self,
        clips: Mapping[str, Clip],
        rate: int,
        *,
        silence_ms: int = 500,
        prefix_ms: int = 300,
        threshold: float = 0.5,
        detector: Detector | str = "speech",
        report: Callable[[Clip], Clip] = lambda clip: clip,
    ) -> None:
        self.rate = rate
        self.automatic = True
        self.speaking = False
        self._silence_ms, self._prefix_ms, self._threshold = silence_ms, prefix_ms, threshold
        self._semantic = False
        self._recogniser, self._report = Recogniser(clips), report
        self._detector: Detector = DETECTORS[detector]() if isinstance(detector, str) else detector
        self._frame_ms = self._detector.frame * 1000 / VAD_RATE
        self._resampler = Resampler(rate, VAD_RATE)
        self._odd = b""  # half a sample that waits for the other half
        self._unheard = b""  # audio for the detector that does not fill a frame yet
        self._heard_ms = 0.0  # how far the detector has listened
        self._buffer = bytearray()  # what may still become part of an utterance
        self._buffer_from = 0  # where it begins, in bytes of audio fed
        self._turn_from = 0  # where the last turn ended, was committed or cleared, in bytes of audio fed
        self._onset_ms = 0.0  # how long speech has been probable
        self._voice: tuple[float, float] | None = None  # from where to where there is speech in this turn, in ms
        self._pause_judged = False

    def listen_for(
        self,
        *,
        silence_ms: int | None = None,
        prefix_ms: int | None = None,
        threshold: float | None = None,
        eagerness: str | None = None,
    ) -> None:
        """Change how turns are detected; what is None stays.

        `silence_ms` ends a turn after a fixed silence. `eagerness` (low, medium, high, auto) ends it 200 ms after a
        sentence known to be whole, and otherwise after the limit in `EAGERNESS_MS`. Whichever was set last decides.
        Raises ValueError for another eagerness.
        """
        if eagerness is not None:
            if eagerness not in EAGERNESS_MS:
                raise ValueError(f"eagerness is one of {', '.join(EAGERNESS_MS)}, not {eagerness!r}")
            self._silence_ms, self._semantic = EAGERNESS_MS[eagerness], True
        if silence_ms is not None:
            self._silence_ms, self._semantic = silence_ms, False
        self._prefix_ms = self._prefix_ms if prefix_ms is None else prefix_ms
        self._threshold = self._threshold if threshold is None else threshold

    @property
    def spoken_ms(self) -> float:
        """How long the turn under way has been spoken so far, from its first sound to its last; 0 between turns."""
        return self._voice[1] - self._voice[0] if self.speaking and self._voice else 0.0

    @property
    def fed_ms(self) -> int:
        """Milliseconds of audio fed so far."""
        return int(self._ms(self._fed))

    @property
    def buffered_ms(self) -> float:
        """Milliseconds fed since the last turn ended, was committed or cleared."""
        return self._ms(self._fed - self._turn_from)

    def feed(self, pcm: bytes) -> list[Started | Ended]:
        """Listen to the next piece of PCM16, of any length; returns the turns that started or ended in it, in order."""
        pcm = self._odd + pcm
        cut = len(pcm) // 2 * 2
        pcm, self._odd = pcm[:cut], pcm[cut:]
        self._buffer += pcm
        self._unheard += self._resampler.feed(pcm)
        size = self._detector.frame
        whole = len(self._unheard) // (2 * size) * size
        frames, self._unheard = from_pcm(self._unheard[: 2 * whole]), self._unheard[2 * whole :]
        events: list[Started | Ended] = []
        for probability in self._detector.probabilities(frames.reshape(-1, size)):
            self._heard_ms += self._frame_ms
            event = self._listen(probability)
            if event is not None:
                events.append(event)
        self._drop_the_old()
        return events

    def commit(self) -> Utterance:
        """End the turn here: recognise what is buffered, and empty the buffer."""
        utterance = self._recognise(self._fed)
        self.clear()
        return utterance

    def clear(self) -> None:
        """Forget what is buffered; a turn that has started is over without an Ended."""
        self._begin_anew(self._fed)

    def _listen(self, probability: float) -> Started | Ended | None:
        """One frame further. Without automatic turns it only notes where speech is."""
        self.speaking = self.speaking and self.automatic
        if self.speaking:
            return self._listen_for_the_end(probability)
        self._onset_ms = self._onset_ms + self._frame_ms if probability > self._threshold else 0.0
        if self._onset_ms < ONSET_MS:
            return None
        onset = self._heard_ms - self._onset_ms
        if not self.automatic:
            self._voice = (self._voice[0] if self._voice else onset, self._heard_ms)
            return None
        self._voice, self._pause_judged, self.speaking = (onset, self._heard_ms), False, True
        return Started(round(max(onset - self._prefix_ms, self._ms(self._turn_from))))

    def _listen_for_the_end(self, probability: float) -> Ended | None:
        first, last = self._voice or (self._heard_ms, self._heard_ms)
        if probability > self._threshold - HYSTERESIS:
            self._voice, self._pause_judged = (first, self._heard_ms), False
            return None
        pause = self._heard_ms - last
        if pause >= self._silence_ms:
            return self._end(last + self._silence_ms, self._recognise(self._heard))
        if self._semantic and pause >= EAGER_MS and not self._pause_judged:
            self._pause_judged = True
            utterance = self._recognise(self._heard)
            if utterance.clip:
                return self._end(last + EAGER_MS, utterance)
        return None

    def _end(self, at_ms: float, utterance: Utterance) -> Ended:
        self._begin_anew(self._heard)
        return Ended(round(at_ms), utterance)

    def _begin_anew(self, position: int) -> None:
        """A turn is over at `position`, in bytes of audio fed. What was fed beyond it belongs to the next one."""
        self._drop_up_to(position)
        self._turn_from = position
        self.speaking, self._voice, self._onset_ms = False, None, 0.0

    def _recognise(self, end: int) -> Utterance:
        """Make what can be made of the speech in the buffer, up to byte `end` of the audio fed."""
        if self._voice is None:
            return Utterance()
        first, last = self._voice
        seconds = (last - first) / 1000
        start = max(0, self._bytes(first - MARGIN_MS) - self._buffer_from)
        end = min(end, self._bytes(last + MARGIN_MS)) - self._buffer_from
        sound = from_pcm(bytes(self._buffer[start:end]))
        said = self._recogniser.match(sound, self.rate, seconds)
        clip = None if said is None else self._report(said)
        if clip is None or not clip.intent:
            return Utterance(clip=clip.name if clip else "", seconds=seconds)
        return Utterance(clip.transcript, clip.intent, dict(clip.slots), clip.language, clip.name, True, seconds)

    def _drop_the_old(self) -> None:
        """Keep what an utterance may still need: the moment before its onset, or as much as the longest clip."""
        waiting = self.automatic and not self.speaking
        keep = self._bytes(2 * MARGIN_MS if waiting else 2000 * MAX_CLIP_SECONDS)
        if self._heard - self._buffer_from > keep + self._bytes(1000):  # seldom: it copies the rest
            self._drop_up_to(self._heard - keep)

    def _drop_up_to(self, position: int) -> None:
        del self._buffer[: position - self._buffer_from]
        self._buffer_from = position

    @property
    def _fed(self) -> int:
        return self._buffer_from + len(self._buffer)

    @property
    def _heard(self) -> int:
        """How far the detector has listened, in bytes of audio fed: up to a frame and the resampler's delay behind."""
        return min(self._bytes(self._heard_ms), self._fed)

    def _ms(self, size: int) -> float:
        return size / 2 / self.rate * 1000

    def _bytes(self, ms: float) -> int:
        return round(ms * self.rate / 1000) * 2
