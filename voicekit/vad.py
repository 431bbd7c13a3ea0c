"""Voice-activity detection: how probable is it that somebody speaks in these 32 ms?

Two detectors with one shape. `SpeechDetector` is the one the simulated services listen with; `EnergyDetector` is the
twelve-line one everybody writes first, here to be beaten in a lesson. Both take mono int16 frames at 16 kHz.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from hashlib import blake2b
from math import exp, log10
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from voicekit.audio import Samples
from voicekit.models import data_path

RATE = 16_000  # of the frames, in Hz
FRAME = 512  # samples: 32 ms

Floats = npt.NDArray[np.float32]


class Detector(Protocol):
    """Anything that says how probable speech is, frame after frame. It may remember earlier frames; one per stream."""

    frame: int
    """Samples in a frame, at 16 kHz."""

    def probabilities(self, frames: Samples) -> list[float]:
        """Probability (0 to 1) that there is speech, for each of the next frames, int16 of shape (n, self.frame)."""
        ...


class EnergyDetector:
    """Speech is what is much louder than the quietest moment so far. Fails as soon as the noise itself changes."""

    frame = FRAME

    def __init__(self) -> None:
        self.floor = 0.0  # dBFS, the level of the background

    def probabilities(self, frames: Samples) -> list[float]:
        return [self._probability(frame) for frame in frames]

    def _probability(self, frame: Samples) -> float:
        level = max(-70.0, 10 * log10(float(np.mean(np.square(frame / 32768.0))) + 1e-12))
        self.floor = min(level, self.floor + 0.15)  # falls at once, rises by 5 dB a second
        return 1 / (1 + exp(self.floor + 9 - level))  # even chances at 9 dB above the background


SILENT_POWER = 1e-6  # mean square of a frame at -60 dBFS: nobody speaks below it
QUIET_RATIO = 4.0  # a frame is quiet up to 6 dB above the quietest of the last two seconds (3 to 5 dB above their mean)
QUIET_FRAMES = 10  # so many quiet frames (0.32 s) without speech, and the network sleeps
SILENCE: Floats = np.zeros(FRAME, np.float32)
WARM_UP_FRAMES = 8  # frames before the wake-up that it is shown first (its memory is empty then)


class SpeechDetector:
    """Silero's network, asleep while the background is all there is.

    On the kit's clips with pink or white noise it starts no false turn, misses none and splits no sentence, down to
    5 dB signal-to-noise ratio. The network costs about 4 ms of processor time for a second of sound; so it is not asked
    about frames that are no louder than the background, which would slow a minute of virtual time down for nothing.
    """

    frame = FRAME

    def __init__(self) -> None:
        self._network = Recall()
        self._powers: deque[float] = deque(maxlen=2 * RATE // FRAME)
        self._asleep_through: deque[Floats] = deque(maxlen=WARM_UP_FRAMES)
        self._awake = 0  # frames until it falls asleep

    def probabilities(self, frames: Samples) -> list[float]:
        # A line without noise, between sentences: most of a conversation.
        if not self._awake and not np.count_nonzero(frames):
            self._powers.extend([0.0] * len(frames))
            self._asleep_through.extend([SILENCE] * len(frames))
            return [0.0] * len(frames)
        sounds = frames.astype(np.float32) / np.float32(32768)
        quiet = [self._is_quiet(power / FRAME) for power in np.einsum("ij,ij->i", sounds, sounds).tolist()]
        found: list[float] = []
        while (at := len(found)) < len(sounds):
            if quiet[at] and not self._awake:
                self._asleep_through.append(sounds[at])
                found.append(0.0)
                continue
            earlier = np.array([] if self._awake else self._wake_up(), np.float32).reshape(-1, FRAME)
            sure = sounds[at : at + (self._awake or QUIET_FRAMES)]  # it will not fall asleep before the last of these
            heard = self._network.probabilities(np.concatenate((earlier, sure)))[len(earlier) :]
            for probability, is_quiet in zip(heard, quiet[at:], strict=False):
                self._awake = self._awake - 1 if is_quiet and self._awake and probability < 0.1 else QUIET_FRAMES
            found += heard
        return found

    def _is_quiet(self, power: float) -> bool:
        self._powers.append(power)
        return power < SILENT_POWER or power < QUIET_RATIO * min(self._powers)

    def _wake_up(self) -> list[Floats]:
        """Start the network anew; returns the frames it has to hear first."""
        self._network.forget()
        earlier = list(self._asleep_through)
        self._asleep_through.clear()
        return earlier


# By the name a run calls them by, as in `vk.run(..., detector="energy")`.
DETECTORS: dict[str, type[SpeechDetector] | type[EnergyDetector]] = {"speech": SpeechDetector, "energy": EnergyDetector}


class Network:
    """The Silero VAD 6.2 network for 16 kHz, written out: spectrum, four convolutions, one LSTM cell, one number.

    Network and weights: Silero Team, MIT License (data/vad/LICENSE). The weights come from the package silero-vad 6.2.3
    (data/vad/extract.py). In numpy, since the packages that run it weigh 10 to 80 MB, lack a wheel for some machines,
    and are not faster: here 0.1 ms a frame, two thirds of it where three come together. Its probabilities differ from
    the original's by less than 0.01.
    """

    def __init__(self) -> None:
        self._weights = weights()
        self.forget()

    def forget(self) -> None:
        """Start a new stream."""
        self._before: Floats = np.zeros(64, np.float32)  # the last samples of the frame before
        self._state: Floats = np.zeros(128, np.float32)  # what the LSTM cell gave out last
        self._cell: Floats = np.zeros(128, np.float32)

    def probabilities(self, sounds: Floats) -> list[float]:
        """Probability of speech in each of `sounds`, float32 of shape (n, 512), full scale 1.0.

        Frames heard together cost less than frames heard one by one; their numbers differ in the last bits.
        """
        w, count = self._weights, len(sounds)
        # 64 samples of the frame before, 512 of this one, and its last 64 mirrored: five blocks, four windows of two.
        before = np.concatenate((self._before[np.newaxis], sounds[:-1, -64:]))
        self._before = sounds[-1, -64:]
        blocks = np.concatenate((before, sounds, sounds[:, -2:-66:-1]), axis=1).reshape(count, 5, 128)
        columns = np.zeros((count, 6, 129), np.float32)  # four columns of the spectrum, and zeros on both sides
        columns[:, 1:5] = np.abs(np.fft.rfft(np.concatenate((blocks[:, :4], blocks[:, 1:]), axis=2) * w["window"]))
        threes = np.concatenate((columns[:, :4], columns[:, 1:5], columns[:, 2:]), axis=2)
        second = np.zeros((count, 5, 128), np.float32)  # zeros in front
        np.maximum(threes @ w["conv1"] + w["conv1_bias"], 0, out=second[:, 1:])
        every_other = np.concatenate((second[:, 0:3:2], second[:, 1:4:2], second[:, 2::2]), axis=2)
        third = np.maximum(every_other @ w["conv2"] + w["conv2_bias"], 0).reshape(count, 128)
        fourth = np.maximum(third @ w["conv3"] + w["conv3_bias"], 0)
        features = np.maximum(fourth @ w["conv4"] + w["conv4_bias"], 0)
        # Row by row: at this size a product of matrices would be spread over threads, which costs more than it saves.
        gates = (features[:, np.newaxis] @ w["lstm_input"])[:, 0] + w["lstm_bias"]
        given = np.array([self._remember(each) for each in gates])
        logits = np.maximum(given, 0) @ w["out"] + w["out_bias"]
        return [1 / (1 + exp(-logit)) for logit in logits.tolist()]

    def _remember(self, gates: Floats) -> Floats:
        """One step of the LSTM cell; returns what it gives out, shape (128,)."""
        # All four gates in one tanh: the rows of three of them are halved, and sigmoid(x) = (tanh(x / 2) + 1) / 2.
        take, keep, new, give = np.tanh(gates + self._state @ self._weights["lstm_state"]).reshape(4, 128)
        self._cell = np.asarray(((keep + 1) * self._cell + (take + 1) * new) / 2, np.float32)
        self._state = np.asarray((give + 1) * np.tanh(self._cell) / 2, np.float32)
        return self._state


class Recall:
    """A network that remembers what it found, in this process: the runs of a lesson share their sentences.

    What it finds depends on nothing but the frames since `forget`, and on which of them came together. Frames that are
    new after known ones have the network hear those first, so the answer is the same to the last bit.
    """

    known: ClassVar[dict[bytes, list[float]]] = {}
    """Probabilities by a hash of all frames since `forget`; at most `most` of them, some 10 MB."""
    most = 30_000

    def __init__(self) -> None:
        self._network = Network()
        self.forget()

    def forget(self) -> None:
        """Start a new stream."""
        self._network.forget()
        self._heard = b""  # hash of all frames so far
        self._owed: list[Floats] = []  # frames that the network has not been asked about

    def probabilities(self, sounds: Floats) -> list[float]:
        """Probability of speech in each of `sounds`, float32 of shape (n, 512), full scale 1.0."""
        self._heard = blake2b(self._heard + sounds.tobytes(), digest_size=16).digest()
        self._owed.append(sounds)
        found = self.known.get(self._heard)
        if found is None:
            for each in self._owed:
                found = self._network.probabilities(each)
            assert found is not None
            self._owed.clear()
            if len(self.known) >= self.most:
                self.known.clear()
            self.known[self._heard] = found
        return found


@cache
def weights() -> dict[str, Floats]:
    """The network's weights, laid out for `features @ weights`."""
    with np.load(data_path("vad", "silero_vad_16k.npz")) as file:
        stored = {name: file[name].astype(np.float32) for name in file.files}
    # Taps that only ever meet padding are left out: one of three in the third layer, two of three in the fourth.
    taps = {"conv1": slice(0, 3), "conv2": slice(0, 3), "conv3": slice(1, 3), "conv4": slice(1, 2)}
    laid_out = {
        name: np.ascontiguousarray(stored[f"{name}_weight"][:, :, used].transpose(2, 1, 0).reshape(-1, size))
        for (name, used), size in zip(taps.items(), (128, 64, 64, 128), strict=True)
    }
    halved = np.full((512, 1), 0.5, np.float32)
    halved[256:384] = 1
    lstm = np.concatenate((stored["lstm_weight_ih"], stored["lstm_weight_hh"]), axis=1)
    bias = stored["lstm_bias_ih"] + stored["lstm_bias_hh"]
    return laid_out | {
        "window": np.hanning(257)[:256].astype(np.float32),
        "lstm_input": np.ascontiguousarray((lstm * halved).T[:128]),
        "lstm_state": np.ascontiguousarray((lstm * halved).T[128:]),
        "lstm_bias": bias * halved[:, 0],
        "out": stored["out_weight"].ravel(),
        "out_bias": stored["out_bias"],
        **{f"{name}_bias": stored[f"{name}_bias"] for name in taps},
    }
