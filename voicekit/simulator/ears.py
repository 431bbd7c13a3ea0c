"""What a simulated service hears: when a caller's turn starts and ends, and which of the known clips was said.

Both are found in the PCM that really arrived. Turns come from voice-activity detection (voicekit.vad). An utterance is
recognised by its sound: it is compared with the known clips as a waveform, not as words, so that another rendering of the
same sentence, half a sentence or two sentences at once are "not understood", and never taken for something similar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from voicekit.audio import MAX_CLIP_SECONDS, RATE, Clip, Resampler, Samples, from_pcm
from voicekit.vad import RATE as VAD_RATE
from voicekit.vad import Detector, SpeechDetector

ONSET_MS = 60  # so long must speech be probable before a turn starts
HYSTERESIS = 0.15  # a turn goes on while the probability stays above threshold - HYSTERESIS (Silero's own margin)
LOOK_BACK_MS = 400  # the recogniser hears so much before the onset: detectors miss up to 0.25 s of a soft start in noise
EAGER_MS = 200  # with semantic detection: the pause after which a sentence known to be whole ends the turn
EAGERNESS_MS = {"low": 8000, "medium": 4000, "auto": 4000, "high": 2000}
"""How long semantic detection waits after a sentence that it does not know to be whole, in ms (data/models.csv)."""


@dataclass(frozen=True)
class Utterance:
    """What was made of one turn of the caller. Not understood: intent, transcript and slots are empty."""

    transcript: str = ""
    intent: str = ""
    slots: dict[str, Any] = field(default_factory=dict)
    language: str = "en"
    clip: str = ""  # the clip that was recognised; "" if none was
    understood: bool = False
    seconds: float = 0.0  # length of the speech, without the silence around it


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

    automatic    True: `feed` detects turns. False (push to talk): it only buffers, and `commit` makes the turn.
    fed_ms       milliseconds of audio fed so far
    buffered_ms  milliseconds fed since the last turn ended, was committed or cleared
    speaking     True between Started and Ended

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
        detector: Detector | None = None,
    ) -> None:
        self.rate = rate
        self.automatic = True
        self.speaking = False
        self._silence_ms, self._prefix_ms, self._threshold = silence_ms, prefix_ms, threshold
        self._semantic = False
        self._recogniser = Recogniser(clips)
        self._detector = detector or SpeechDetector()
        self._frame_ms = self._detector.frame * 1000 / VAD_RATE
        self._resampler = Resampler(rate, VAD_RATE)
        self._pending = b""  # audio for the detector that does not fill a frame yet
        self._fed = 0  # bytes
        self._buffer = bytearray()  # what may still become an utterance; ends at self._fed
        self._turn_from = 0  # byte position at which the last turn ended, was committed or cleared
        self._heard_ms = 0.0  # how far the detector has listened
        self._onset_ms = 0.0  # how long speech has been probable
        self._voice: tuple[float, float] | None = None  # first and last moment of speech in this turn
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

        `silence_ms` ends a turn after a fixed silence. `eagerness` (low, medium, high, auto) ends it 200 ms after a sentence
        known to be whole, and otherwise after the limit in `EAGERNESS_MS`. The later of the two calls decides.
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
    def fed_ms(self) -> int:
        return int(self._ms(self._fed))

    @property
    def buffered_ms(self) -> float:
        return self._ms(self._fed - self._turn_from)

    def feed(self, pcm: bytes) -> list[Started | Ended]:
        """Listen to the next piece of PCM16, of any length; returns the turns that started or ended in it, in order."""
        self._fed += len(pcm)
        self._buffer += pcm
        self._pending += self._resampler.feed(pcm)
        size = 2 * self._detector.frame
        events: list[Started | Ended] = []
        for start in range(0, len(self._pending) - size + 1, size):
            probability = self._detector.probability(from_pcm(self._pending[start : start + size]))
            self._heard_ms += self._frame_ms
            event = self._listen(probability)
            if event is not None:
                events.append(event)
        self._pending = self._pending[len(self._pending) // size * size :]
        self._drop_the_old()
        return events

    def commit(self) -> Utterance:
        """End the turn here: recognise what is buffered, and empty the buffer."""
        utterance = self._recognise()
        self.clear()
        return utterance

    def clear(self) -> None:
        """Forget what is buffered. A turn that has started never ends."""
        self._buffer.clear()
        self._turn_from = self._fed
        self.speaking, self._voice, self._onset_ms = False, None, 0.0

    def _listen(self, probability: float) -> Started | Ended | None:
        """One frame further. In push-to-talk mode this only notes where speech is."""
        if not self.speaking:
            self._onset_ms = self._onset_ms + self._frame_ms if probability > self._threshold else 0.0
            if self._onset_ms < ONSET_MS:
                return None
            onset = self._heard_ms - self._onset_ms
            if not self.automatic:
                self._voice = (self._voice[0] if self._voice else onset, self._heard_ms)
                return None
            self.speaking, self._voice, self._pause_judged = True, (onset, self._heard_ms), False
            return Started(round(max(onset - self._prefix_ms, self._ms(self._turn_from))))
        assert self._voice is not None
        first, last = self._voice
        if probability > self._threshold - HYSTERESIS:
            self._voice, self._pause_judged = (first, self._heard_ms), False
            return None
        pause = self._heard_ms - last
        if pause >= self._silence_ms:
            return self._end(last + self._silence_ms, self._recognise())
        if self._semantic and pause >= EAGER_MS and not self._pause_judged:
            self._pause_judged = True
            utterance = self._recognise()
            if utterance.clip:
                return self._end(last + EAGER_MS, utterance)
        return None

    def _end(self, at_ms: float, utterance: Utterance) -> Ended:
        self.clear()
        return Ended(round(at_ms), utterance)

    def _recognise(self) -> Utterance:
        if self._voice is None:
            return Utterance()
        first, last = self._voice
        seconds = (last - first) / 1000
        begin = self._bytes(max(0.0, first - LOOK_BACK_MS)) - (self._fed - len(self._buffer))
        sound = from_pcm(bytes(self._buffer[max(0, begin) : len(self._buffer) // 2 * 2]))
        clip = self._recogniser.match(sound, self.rate, seconds)
        if clip is None or not clip.intent:
            return Utterance(clip=clip.name if clip else "", seconds=seconds)
        return Utterance(clip.transcript, clip.intent, dict(clip.slots), clip.language, clip.name, True, seconds)

    def _drop_the_old(self) -> None:
        """Keep what an utterance may still need: the moment before its onset, or as much as the longest clip."""
        waiting = self.automatic and not self.speaking
        most = self._bytes(LOOK_BACK_MS + 200 if waiting else 2000 * MAX_CLIP_SECONDS)
        if len(self._buffer) > most + self._bytes(1000):
            del self._buffer[: len(self._buffer) - most]

    def _ms(self, size: int) -> float:
        return size / 2 / self.rate * 1000

    def _bytes(self, ms: float) -> int:
        return round(ms * self.rate / 1000) * 2


BAND_RATE = 4000  # Hz; sounds are compared up to 2 kHz, where the energy of speech is
LOWEST_HZ = 150.0  # and from here up: hum and rumble say nothing
LONGER, SHORTER = 0.6, 0.45  # a clip may be so much longer or shorter than the detected speech, in seconds
ALIKE = 0.5  # correlation from which it pays to look closer. Different clips reach 0.54, the same one at 10 dB noise 0.8
PRESENT = 0.6  # how much of the clip must be there, wherever it is not quiet: half a clip, or another last word, is not it
QUIET = 0.05  # of the clip's mean power
STRANGE = 0.35  # how loud the rest may be against the clip's mean power: noise may be there, somebody else may not
BLOCK = BAND_RATE // 20  # samples in 50 ms

Floats = npt.NDArray[np.float32]
Spectrum = npt.NDArray[np.complex64]


class Recogniser:
    """Finds the clip that a sound is a copy of, at any level, at any rate, with noise down to 10 dB below the speech.

    The sound is laid over each clip of plausible length where the two correlate best. It is that clip if the clip is there
    from its beginning to its end, and if nothing else as loud as speech is left when the clip is subtracted.
    """

    def __init__(self, clips: Mapping[str, Clip]) -> None:
        # Later rows first: of two equal sounds the one that a participant added counts.
        self._clips = list(clips.values())[::-1]

    def match(self, sound: Samples, rate: int, speech_seconds: float) -> Clip | None:
        """The clip that `sound` (int16 at `rate` Hz) contains and nothing else, or None.

        `speech_seconds` is the detected length of the speech in it. Raises ValueError for a clip whose file is missing or
        damaged.
        """
        plausible = [
            (abs(known.seconds - speech_seconds), known)
            for known in map(_known, self._clips)
            if speech_seconds - SHORTER < known.seconds < speech_seconds + LONGER
        ]
        if not plausible:
            return None
        heard = _band(sound, rate)
        size = _transform_size(len(heard) + BAND_RATE * max(known.seconds for _, known in plausible))
        spectrum = _spectrum(heard, size)
        for _, known in sorted(plausible, key=lambda pair: pair[0]):
            if _is_copy(spectrum, known.spectrum(size), len(known.sound), size):
                return known.clip
        return None


class _Known:
    """A clip with what is computed from it once. Its sound is decoded when it is first compared: most never are."""

    def __init__(self, clip: Clip) -> None:
        self.clip = clip
        self._spectra: dict[int, Spectrum] = {}

    @cached_property
    def seconds(self) -> float:
        try:
            return float(soundfile.info(self.clip.path).duration)
        except (soundfile.LibsndfileError, OSError):
            return self.clip.seconds  # its error says what is wrong

    @cached_property
    def sound(self) -> Floats:
        return _band(self.clip.samples, RATE)

    def spectrum(self, size: int) -> Spectrum:
        if size not in self._spectra:
            self._spectra[size] = _spectrum(self.sound, size)
        return self._spectra[size]


_all_known: dict[int, _Known] = {}


def _known(clip: Clip) -> _Known:
    """Shared by all sessions of a process. By identity: another clip of the same name may hold another sound."""
    return _all_known.setdefault(id(clip), _Known(clip))


def _is_copy(heard: Spectrum, clip: Spectrum, length: int, size: int) -> bool:
    """Whether the sound with the spectrum `heard` is `clip` (`length` samples long), shifted, scaled, and little else."""
    product = heard * clip.conj()
    energy = _energy(clip, size)
    peak = float(np.max(np.fft.irfft(product, size)))
    if peak < ALIKE * (energy * _energy(heard, size)) ** 0.5:
        return False
    # The same correlation on a grid four times as fine: a quarter of a sample off would leave too much over.
    fine = np.fft.irfft(product, 4 * size) * 4
    place = int(np.argmax(fine))
    gain = float(fine[place]) / energy
    shift = np.exp(-2j * np.pi * np.arange(size // 2 + 1) * (place / (4 * size))).astype(np.complex64)
    explained = clip * shift * np.float32(gain)
    clip_alone, rest = np.fft.irfft(explained, size), np.fft.irfft(heard - explained, size)
    power, mean = _moving(clip_alone * clip_alone), gain**2 * energy / length
    # Noise leaves the first sum alone, however loud it is in a quiet moment of the clip: it does not look like the clip.
    complete = _moving((clip_alone + rest) * clip_alone) > PRESENT * power
    alone = _moving(rest * rest) < STRANGE * mean + (1 - PRESENT) ** 2 * power
    return bool(np.all(complete | (power < QUIET * mean)) and np.all(alone))


def _moving(products: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
    """Mean over 0.2 s, in steps of 50 ms."""
    blocks = products[: len(products) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(axis=1)
    return np.convolve(blocks, np.full(4, 0.25), mode="same")


def _energy(spectrum: Spectrum, size: int) -> float:
    """Energy of the signal with this one-sided spectrum (Parseval); the lowest bin is empty."""
    return 2.0 * float(np.sum(np.square(np.abs(spectrum)), dtype=np.float64)) / size + 1e-9


def _spectrum(sound: Floats, size: int) -> Spectrum:
    spectrum = np.fft.rfft(sound, size)
    spectrum[: int(LOWEST_HZ * size / BAND_RATE)] = 0
    return np.asarray(spectrum, dtype=np.complex64)


def _band(sound: Samples, rate: int) -> Floats:
    return np.asarray(soxr.resample(sound.astype(np.float32), rate, BAND_RATE), dtype=np.float32)


def _transform_size(at_least: float) -> int:
    """A length that is quick to transform, and one of few, so that the spectra of the clips can be kept."""
    power = 1 << int(np.ceil(np.log2(at_least + 1)))
    return power * 3 // 4 if power * 3 // 4 > at_least else power
