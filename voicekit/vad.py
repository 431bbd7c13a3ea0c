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

    def probability(self, frame: Samples) -> float:
        """Probability (0 to 1) that there is speech in `frame`, int16 of shape (self.frame,)."""
        ...


class EnergyDetector:
    """Speech is what is much louder than the quietest moment so far. Fails as soon as the noise itself changes."""

    frame = FRAME

    def __init__(self) -> None:
        self.floor = 0.0  # dBFS, the level of the background

    def probability(self, frame: Samples) -> float:
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

    def probability(self, frame: Samples) -> float:
        if not self._awake and not frame.any():  # a line without noise, between sentences: most of a conversation
            self._powers.append(0.0)
            self._asleep_through.append(SILENCE)
            return 0.0
        sound = frame.astype(np.float32) / np.float32(32768)
        power = float(sound @ sound) / FRAME
        self._powers.append(power)
        quiet = power < SILENT_POWER or power < QUIET_RATIO * min(self._powers)
        if not self._awake:
            if quiet:
                self._asleep_through.append(sound)
                return 0.0
            self._network.forget()
            for earlier in self._asleep_through:
                self._network.probability(earlier)
            self._asleep_through.clear()
        probability = self._network.probability(sound)
        self._awake = self._awake - 1 if quiet and self._awake and probability < 0.1 else QUIET_FRAMES
        return probability


# By the name a run calls them by, as in `vk.run(..., detector="energy")`.
DETECTORS: dict[str, type[SpeechDetector] | type[EnergyDetector]] = {"speech": SpeechDetector, "energy": EnergyDetector}


class Network:
    """The Silero VAD 6.2 network for 16 kHz, written out: spectrum, four convolutions, one LSTM cell, one number.

    Network and weights: Silero Team, MIT License (data/vad/LICENSE). The weights come from the package silero-vad 6.2.3
    (data/vad/extract.py). In numpy, since the packages that run it weigh 10 to 80 MB, lack a wheel for some machines,
    and are not faster: here 0.1 ms a frame. Its probabilities differ from the original's by less than 0.01.
    """

    def __init__(self) -> None:
        self._weights = weights()
        # Buffers, and views of them in which neighbouring rows overlap: what a convolution multiplies by its weights.
        # The sound is 64 samples of the frame before, 512 of this one, and its last 64 mirrored.
        self._sound = np.zeros((5, 128), np.float32)
        self._spectrum = np.zeros((6, 129), np.float32)  # four columns, and zeros on both sides
        self._second = np.zeros((5, 128), np.float32)
        self._windows = _overlapping(self._sound, rows=4, hop=1, width=2)
        self._three_columns = _overlapping(self._spectrum, rows=4, hop=1, width=3)
        self._every_other = _overlapping(self._second, rows=2, hop=2, width=3)
        self.forget()

    def forget(self) -> None:
        """Start a new stream."""
        self._sound[:] = 0
        self._input_and_state = np.zeros(256, np.float32)  # of the LSTM cell: 128 features, 128 it gave out before
        self._cell = np.zeros(128, np.float32)

    def probability(self, sound: Floats) -> float:
        """Probability of speech in `sound`, float32 of shape (512,), full scale 1.0."""
        w, state, cell = self._weights, self._input_and_state, self._cell
        padded = self._sound.reshape(-1)
        padded[:64], padded[64:576], padded[576:] = padded[512:576], sound, sound[-2:-66:-1]
        np.abs(np.fft.rfft(self._windows * w["window"]), out=self._spectrum[1:5])
        np.maximum(self._three_columns @ w["conv1"] + w["conv1_bias"], 0, out=self._second[1:])
        third = np.maximum(self._every_other @ w["conv2"] + w["conv2_bias"], 0)
        fourth = np.maximum(third.ravel() @ w["conv3"] + w["conv3_bias"], 0)
        np.maximum(fourth @ w["conv4"] + w["conv4_bias"], 0, out=state[:128])
        # All four gates in one tanh: the rows of three of them are halved, and sigmoid(x) = (tanh(x / 2) + 1) / 2.
        take, keep, new, give = np.tanh(state @ w["lstm"] + w["lstm_bias"]).reshape(4, 128)
        self._cell = cell = ((keep + 1) * cell + (take + 1) * new) / 2
        state[128:] = (give + 1) * np.tanh(cell) / 2
        logit = float(np.maximum(state[128:], 0) @ w["out"]) + float(w["out_bias"][0])
        return 1 / (1 + exp(-logit))


class Recall:
    """A network that remembers what it found, in this process: the runs of a lesson share their sentences.

    What it finds depends on nothing but the frames since `forget`. A frame that is new after known ones has the network
    hear those first, so the answer is the same to the last bit.
    """

    known: ClassVar[dict[bytes, float]] = {}
    """Probability by a hash of all frames since `forget`; at most `most` of them, some 10 MB."""
    most = 100_000

    def __init__(self) -> None:
        self._network = Network()
        self.forget()

    def forget(self) -> None:
        """Start a new stream."""
        self._network.forget()
        self._heard = b""  # hash of all frames so far
        self._owed: list[Floats] = []  # frames that the network has not been asked about

    def probability(self, sound: Floats) -> float:
        """Probability of speech in `sound`, float32 of shape (512,), full scale 1.0."""
        self._heard = blake2b(self._heard + sound.tobytes(), digest_size=16).digest()
        self._owed.append(sound)
        probability = self.known.get(self._heard)
        if probability is None:
            for each in self._owed:
                probability = self._network.probability(each)
            assert probability is not None
            self._owed.clear()
            if len(self.known) >= self.most:
                self.known.clear()
            self.known[self._heard] = probability
        return probability


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
        "lstm": np.ascontiguousarray((lstm * halved).T),
        "lstm_bias": bias * halved[:, 0],
        "out": stored["out_weight"].ravel(),
        "out_bias": stored["out_bias"],
        **{f"{name}_bias": stored[f"{name}_bias"] for name in taps},
    }


def _overlapping(columns: Floats, rows: int, hop: int, width: int) -> Floats:
    """A view of `columns` in which row i holds the `width` columns from i * hop on, one after the other."""
    step, item = columns.strides
    return np.lib.stride_tricks.as_strided(columns, (rows, width * columns.shape[1]), (hop * step, item))
