"""Voice-activity detection: the network is the one it claims to be, and what it is good and bad at."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from voicekit import audio, vad
from voicekit.audio import Samples

RATE, FRAME = vad.RATE, vad.FRAME


def at_16_khz(name: str) -> Samples:
    return np.asarray(np.rint(soxr.resample(audio.clips()[name].samples.astype(float), audio.RATE, RATE)), np.int16)


def full_scale(samples: np.ndarray) -> vad.Floats:
    return np.asarray(samples / 32768, dtype=np.float32)


def pink(count: int, level: float, seed: int = 1) -> np.ndarray:
    """Noise with equal power in every octave above 20 Hz; `level` is its root mean square."""
    random = np.random.default_rng(seed)
    hz = np.fft.rfftfreq(count, 1 / RATE)
    noise = np.fft.irfft((random.normal(size=len(hz)) + 1j * random.normal(size=len(hz))) / np.sqrt(np.maximum(hz, 20)))
    return level * noise[:count] / np.std(noise)


def probabilities(detector: vad.Detector, samples: Samples) -> np.ndarray:
    """Of all whole frames, heard three at a time, as a tenth of a second brings them."""
    frames = samples[: len(samples) // detector.frame * detector.frame].reshape(-1, detector.frame)
    return np.array([found for i in range(0, len(frames), 3) for found in detector.probabilities(frames[i : i + 3])])


# What the original computes for 32 ms of silence, the clip yes_please and silence again (onnxruntime 1.32).
ORIGINAL = [
    *(0.002, 0.077, 0.525, 0.872, 0.989, 0.999, 1.0, 1.0, 1.0, 1.0, 0.997, 0.998, 0.995, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    *(1.0, 1.0, 1.0, 1.0, 1.0, 0.996, 0.994, 0.999, 0.999, 0.998, 0.999, 0.998, 0.953, 0.245, 0.052, 0.02, 0.011, 0.01),
]


def test_the_network_computes_what_the_original_computes() -> None:
    sound = full_scale(np.concatenate([np.zeros(FRAME), at_16_khz("yes_please"), np.zeros(4096)]))
    frames = sound[: len(ORIGINAL) * FRAME].reshape(-1, FRAME)
    assert vad.Network().probabilities(frames) == pytest.approx(ORIGINAL, abs=0.02)
    network = vad.Network()
    one_by_one = [found for i in range(len(frames)) for found in network.probabilities(frames[i : i + 1])]
    assert one_by_one == pytest.approx(vad.Network().probabilities(frames), abs=1e-5)


def test_forgetting_starts_a_new_stream() -> None:
    sound = full_scale(at_16_khz("yes")[:FRAME])[np.newaxis]
    network = vad.Network()
    first = network.probabilities(sound)
    assert network.probabilities(sound) != first
    network.forget()
    assert network.probabilities(sound) == first


@pytest.mark.parametrize("level", [0, 10, 100, 1000])
def test_it_does_not_hear_speech_in_a_minute_of_noise(level: int) -> None:
    noise = np.rint(pink(60 * RATE, level)).astype(np.int16)
    assert np.max(probabilities(vad.SpeechDetector(), noise)) < 0.5


def asked(monkeypatch: pytest.MonkeyPatch, samples: Samples) -> float:
    """The share of the frames that the network was asked about."""
    calls = 0
    original = vad.Network.probabilities

    def counted(network: vad.Network, sounds: vad.Floats) -> list[float]:
        nonlocal calls
        calls += len(sounds)
        return original(network, sounds)

    monkeypatch.setattr(vad.Network, "probabilities", counted)
    vad.Recall.known.clear()
    frames = len(probabilities(vad.SpeechDetector(), samples))
    return calls / frames


@pytest.mark.parametrize("level", [0, 20, 300])
def test_the_network_sleeps_while_nobody_speaks(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    """A fifth of this stream is speech; the network costs twenty times as much as looking at the level."""
    line = pink(30 * RATE, level)
    for second, name in ((5, "stock"), (15, "opening_hours"), (22, "weather_landmark")):
        clip = at_16_khz(name)
        line[second * RATE : second * RATE + len(clip)] += clip
    samples = np.rint(line).astype(np.int16)
    assert 0.15 < asked(monkeypatch, samples) < 0.3


def test_sleeping_changes_nothing_that_matters() -> None:
    """Speech after a long silence is found in the same frame as by a network that never slept."""
    for level in (0, 60):
        line = pink(6 * RATE, level)
        clip = at_16_khz("never_mind")
        line[4 * RATE : 4 * RATE + len(clip)] += clip
        samples = np.rint(line).astype(np.int16)
        frames = full_scale(samples[: 6 * RATE // FRAME * FRAME]).reshape(-1, FRAME)
        awake = np.array(vad.Network().probabilities(frames))
        found = probabilities(vad.SpeechDetector(), samples)[: len(awake)]
        assert np.argmax(found > 0.5) == pytest.approx(np.argmax(awake > 0.5), abs=1)
        assert np.sum(found > 0.5) == pytest.approx(np.sum(awake > 0.5), abs=2)


def test_a_sentence_is_computed_once_and_known_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a new sentence follows a known one without a pause: the network hears the known one then."""
    pause, first, second = np.zeros(50 * FRAME, np.int16), at_16_khz("stock"), at_16_khz("opening_hours")
    both = np.concatenate([pause, first, second])
    vad.Recall.known.clear()
    fresh = probabilities(vad.SpeechDetector(), both)
    vad.Recall.known.clear()
    probabilities(vad.SpeechDetector(), np.concatenate([pause, first]))
    assert np.array_equal(probabilities(vad.SpeechDetector(), both), fresh)
    monkeypatch.setattr(vad.Network, "probabilities", None)  # nothing is left to compute
    assert np.array_equal(probabilities(vad.SpeechDetector(), both), fresh)


def test_it_hears_the_same_in_whatever_pieces_the_frames_come() -> None:
    """The number of frames it is sure to hear before it may fall asleep limits what it hands on at once."""
    pause = np.zeros(30 * FRAME, np.int16)
    samples = np.concatenate([pause, at_16_khz("yes"), pause, at_16_khz("stock"), pause])
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    one_by_one = vad.SpeechDetector()
    wanted = [found for i in range(len(frames)) for found in one_by_one.probabilities(frames[i : i + 1])]
    for size in (2, 3, 7, len(frames)):
        detector = vad.SpeechDetector()
        found = [each for i in range(0, len(frames), size) for each in detector.probabilities(frames[i : i + size])]
        assert found == pytest.approx(wanted, abs=1e-4)
    assert vad.SpeechDetector().probabilities(frames[:0]) == []


def in_noise(name: str, db: float) -> tuple[Samples, float, float]:
    """A clip after a second of noise that is `db` below it; and where it begins and ends, in seconds."""
    clip = at_16_khz(name)
    line = pink(3 * RATE + len(clip), float(np.std(clip.astype(float))) * 10 ** (-db / 20))
    line[RATE : RATE + len(clip)] += clip
    return np.clip(np.rint(line), -32768, 32767).astype(np.int16), 1.0, 1.0 + len(clip) / RATE


@pytest.mark.parametrize("db", [40, 10, 5])
def test_the_speech_detector_is_good_in_noise(db: float) -> None:
    for name in ("yes", "no_de", "order_status", "mm_hm", "order_status_de"):
        samples, begin, end = in_noise(name, db)
        speech = np.flatnonzero(probabilities(vad.SpeechDetector(), samples) > 0.5) * FRAME / RATE
        assert begin - 0.05 < speech[0] < begin + 0.3, name
        assert end - 0.3 < speech[-1] < end + 0.3, name
        assert np.max(np.diff(speech)) < 0.5, name


def test_the_energy_detector_is_good_without_noise_and_bad_in_it() -> None:
    quiet, begin, end = in_noise("order_status", 60)
    speech = np.flatnonzero(probabilities(vad.EnergyDetector(), quiet) > 0.5) * FRAME / RATE
    assert begin - 0.05 < speech[0] < begin + 0.1
    assert end - 0.2 < speech[-1] < end + 0.1
    noisy, begin, end = in_noise("order_status", 5)
    loud = np.flatnonzero(probabilities(vad.EnergyDetector(), noisy) > 0.5) * FRAME / RATE
    assert np.max(np.diff(loud)) > 0.5  # one sentence, heard as two


def test_what_was_said_before_a_silence_does_not_matter() -> None:
    clip = at_16_khz("stock")
    clip = np.pad(clip, (0, -len(clip) % FRAME))
    pause = np.zeros(50 * FRAME, np.int16)
    heard = probabilities(vad.SpeechDetector(), np.concatenate([pause, clip, pause, clip]))
    assert np.array_equal(heard[50 : 50 + len(clip) // FRAME], heard[-len(clip) // FRAME :])
    assert np.max(heard) > 0.9
