"""Which of the known clips a sound is, if it is one.

A sound is compared with the clips as a waveform, not as words. So another rendering of the same sentence, half a
sentence or two sentences at once are not recognised, and nothing is ever taken for something similar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from voicekit.audio import RATE, Clip, Samples

BAND_RATE = 4000  # Hz; sounds are compared up to 2 kHz, where the energy of speech is
LOWEST_HZ = 150.0  # and from here up: hum and rumble say nothing
LONGER, SHORTER = 0.6, 0.45  # a clip may be so much longer or shorter than the detected speech, in seconds
# Correlation from which it pays to look closer: different clips reach 0.54, the same one in noise at 10 dB over 0.8.
ALIKE = 0.5
# So much of the clip must be there, wherever it is louder than QUIET times its mean power: half a clip is not the clip,
# nor is the clip with another last word.
PRESENT = 0.6
QUIET = 0.02
# So loud may the rest be, against the clip's mean power: noise may be there, a second voice as loud as the first not.
STRANGE = 0.35
BLOCK = BAND_RATE // 20  # samples in 50 ms

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Spectrum:
    """The one-sided spectrum of a sound that was made `size` samples long, and the sound's energy."""

    bins: npt.NDArray[np.complex64]
    energy: float
    size: int


class Recogniser:
    """Finds the clip that a sound is a copy of, at any level, at any rate, with noise down to 10 dB below the speech.

    The sound is laid over each clip of plausible length where the two correlate best. It is that clip if the clip is
    there from beginning to end, and if nothing else as loud as speech is left when the clip is subtracted.
    """

    def __init__(self, clips: Mapping[str, Clip]) -> None:
        # Later rows first: of two equal sounds the one that a participant added counts.
        self._known = [_known(clip) for clip in reversed(list(clips.values()))]

    def check(self) -> None:
        """Raise ValueError for a clip whose file is missing or is no sound."""
        for known in self._known:
            _ = known.seconds

    def match(self, sound: Samples, rate: int, speech_seconds: float) -> Clip | None:
        """The clip that `sound` (int16 at `rate` Hz) contains and nothing else, or None.

        `speech_seconds` is the detected length of the speech in it. Raises ValueError for a clip whose file is missing
        or damaged.
        """
        plausible = [
            (abs(known.seconds - speech_seconds), known)
            for known in self._known
            if speech_seconds - SHORTER < known.seconds < speech_seconds + LONGER
        ]
        if not plausible:
            return None
        question = sound.tobytes(), rate, speech_seconds, *(id(known) for _, known in plausible)
        if question not in answers:
            if len(answers) >= MOST_ANSWERS:
                answers.clear()
            answers[question] = self._compare(sound, rate, plausible)
        return answers[question]

    def _compare(self, sound: Samples, rate: int, plausible: list[tuple[float, _Known]]) -> Clip | None:
        heard = _band(sound, rate)
        size = _transform_size(len(heard) + BAND_RATE * max(known.seconds for _, known in plausible))
        spectrum = _spectrum(heard, size)
        for _, known in sorted(plausible, key=lambda pair: pair[0]):
            if _is_copy(spectrum, known.spectrum(size), len(known.sound)):
                return known.clip
        return None


class _Known:
    """A clip with what is computed from it once. Its sound is decoded when it is first compared: most never are."""

    def __init__(self, clip: Clip) -> None:
        self.clip = clip
        self._spectra: dict[int, _Spectrum] = {}

    @cached_property
    def seconds(self) -> float:
        try:
            return float(soundfile.info(self.clip.path).duration)
        except (soundfile.LibsndfileError, OSError):
            return self.clip.seconds  # its error says what is wrong

    @cached_property
    def sound(self) -> Floats:
        return _band(self.clip.samples, RATE)

    def spectrum(self, size: int) -> _Spectrum:
        if size not in self._spectra:
            self._spectra[size] = _spectrum(self.sound, size)
        return self._spectra[size]


_all_known: dict[int, _Known] = {}
# What sounds turned out to be: the runs of a lesson share their sentences. Keeps the sounds, some 100 kB each.
answers: dict[tuple[Any, ...], Clip | None] = {}
MOST_ANSWERS = 200


def _known(clip: Clip) -> _Known:
    """Shared by all sessions of a process. By identity: another clip of the same name may hold another sound."""
    if id(clip) not in _all_known:
        _all_known[id(clip)] = _Known(clip)
    return _all_known[id(clip)]


def _is_copy(heard: _Spectrum, clip: _Spectrum, length: int) -> bool:
    """Whether the sound with the spectrum `heard` is `clip` (`length` samples), shifted and scaled, and little else."""
    size = clip.size
    product = heard.bins * clip.bins.conj()
    peak = float(np.max(np.fft.irfft(product, size)))
    if peak < ALIKE * (clip.energy * heard.energy) ** 0.5:
        return False
    # The same correlation on a grid four times as fine: a quarter of a sample off would leave too much over.
    fine = np.fft.irfft(product, 4 * size) * 4
    place = int(np.argmax(fine))
    gain = float(fine[place]) / clip.energy
    shift = np.exp(-2j * np.pi * np.arange(size // 2 + 1) * (place / (4 * size))).astype(np.complex64)
    explained = clip.bins * shift * np.float32(gain)
    clip_alone, rest = np.fft.irfft(explained, size), np.fft.irfft(heard.bins - explained, size)
    power, mean = _moving(clip_alone * clip_alone), gain**2 * clip.energy / length
    # Noise hardly moves this sum, however loud it is in a quiet moment of the clip: it does not look like the clip.
    complete = _moving((clip_alone + rest) * clip_alone) > PRESENT * power
    alone = _moving(rest * rest) < STRANGE * mean + (1 - PRESENT) ** 2 * power
    return bool(np.all(complete | (power < QUIET * mean)) and np.all(alone))


def _moving(products: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
    """Mean over 0.2 s, in steps of 50 ms."""
    blocks = products[: len(products) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(axis=1)
    return np.convolve(blocks, np.full(4, 0.25), mode="same")


def _spectrum(sound: Floats, size: int) -> _Spectrum:
    bins = np.fft.rfft(sound, size).astype(np.complex64)
    bins[: int(LOWEST_HZ * size / BAND_RATE)] = 0
    energy = 2.0 * float(np.sum(np.square(np.abs(bins)), dtype=np.float64)) / size  # Parseval; the lowest bin is empty
    return _Spectrum(bins, energy + 1e-9, size)


def _band(sound: Samples, rate: int) -> Floats:
    return np.asarray(soxr.resample(sound.astype(np.float32), rate, BAND_RATE), dtype=np.float32)


def _transform_size(at_least: float) -> int:
    """A length that is quick to transform, and one of few, so that the spectra of the clips can be kept."""
    power = 1 << int(np.ceil(np.log2(at_least + 1)))
    return power * 3 // 4 if power * 3 // 4 > at_least else power
