"""What a simulated service hears: turns, their positions, and which clip was said, or that none was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from voicekit import audio
from voicekit.audio import Clip, framed
from voicekit.models import data_path
from voicekit.simulator.ears import EAGERNESS_MS, Ears, Ended, Started, Utterance

CLIPS = audio.clips()
SPEECH = sorted(CLIPS)
SOME_OF_ALL = [SPEECH[start::6] for start in range(6)]  # every sixth, others each time
SOME = ["yes", "no_de", "never_mind", "order_status", "order_second", "yes_please_de", "book_friday"]
Sound = np.ndarray


def sound(name: str) -> Sound:
    return CLIPS[name].samples.astype(float)


def silence(seconds: float, rate: int = audio.RATE) -> Sound:
    return np.zeros(round(seconds * rate))


def pcm(*parts: Sound) -> bytes:
    return audio.to_pcm(np.clip(np.rint(np.concatenate(parts)), -32768, 32767).astype(np.int16))


def noise(count: int, rms: float, seed: int = 1) -> Sound:
    """Pink noise: equal power in every octave above 20 Hz."""
    random = np.random.default_rng(seed)
    hz = np.fft.rfftfreq(count, 1 / audio.RATE)
    made = np.fft.irfft((random.normal(size=len(hz)) + 1j * random.normal(size=len(hz))) / np.sqrt(np.maximum(hz, 20)))
    return rms * np.resize(made, count) / np.std(made)


def hear(line: bytes, ears: Ears | None = None, chunk: float = 0.1, **settings: Any) -> list[Started | Ended]:
    ears = ears or Ears(CLIPS, audio.RATE)
    ears.listen_for(**settings)
    return [event for piece in framed(line, chunk, ears.rate) for event in ears.feed(piece)]


def utterances(events: list[Started | Ended]) -> list[Utterance]:
    return [event.utterance for event in events if isinstance(event, Ended)]


def turn(*parts: Sound, **settings: Any) -> Utterance:
    """The only utterance of a line with a second of silence on both sides of `parts`."""
    (utterance,) = utterances(hear(pcm(silence(1), *parts, silence(1)), **settings))
    return utterance


# --- every clip is recognised, whatever happens to it on the line


def direct(samples: Sound) -> tuple[bytes, int]:
    return pcm(silence(0.3), samples, silence(0.75)), 24_000


def at_16_khz(samples: Sound) -> tuple[bytes, int]:
    return pcm(silence(0.3, 16_000), soxr.resample(samples, audio.RATE, 16_000), silence(0.75, 16_000)), 16_000


def quiet(samples: Sound) -> tuple[bytes, int]:
    return pcm(silence(0.3), samples * 10 ** (-12 / 20), silence(0.75)), 24_000


def noisy(db: float) -> Callable[[Sound], tuple[bytes, int]]:
    def on_a_noisy_line(samples: Sound) -> tuple[bytes, int]:
        line = np.concatenate([silence(0.5), samples, silence(1.0)])
        return pcm(line + noise(len(line), float(np.std(samples)) * 10 ** (-db / 20))), 24_000

    return on_a_noisy_line


@pytest.mark.parametrize(
    ("line", "names"),
    [(direct, SPEECH), (at_16_khz, SOME_OF_ALL[0]), (quiet, SOME_OF_ALL[1]), (noisy(10), SOME_OF_ALL[2] + SOME)],
)
def test_every_clip_is_recognised(line: Callable[[Sound], tuple[bytes, int]], names: list[str]) -> None:
    for name in names:
        said, rate = line(sound(name))
        events = hear(said, Ears(CLIPS, rate))
        assert [type(event) for event in events] == [Started, Ended], name
        heard, clip = utterances(events)[0], CLIPS[name]
        assert heard.clip == name
        assert heard.understood == bool(clip.intent)
        assert (heard.intent, heard.slots) == (clip.intent, clip.slots)
        assert heard.transcript == (clip.transcript if clip.intent else "")
        assert heard.seconds == pytest.approx(clip.seconds, abs=0.35)


def test_every_clip_is_recognised_from_a_telephone() -> None:
    """8 kHz, and one companded to eight bits as G.711 does."""
    for name in SOME:
        narrow = soxr.resample(sound(name), audio.RATE, 8000)
        squeezed = np.sign(narrow) * np.rint(127 * np.log1p(255 * np.abs(narrow) / 32768) / np.log(256)) / 127
        back = np.sign(squeezed) * (256 ** np.abs(squeezed) - 1) / 255 * 32768
        events = hear(pcm(silence(0.7, 8000), back, silence(0.9, 8000)), Ears(CLIPS, 8000))
        assert utterances(events)[0].clip == name


def test_a_clip_without_an_intent_is_not_understood() -> None:
    heard = turn(sound("mumble"))
    assert heard.clip == "mumble"
    assert (heard.understood, heard.intent, heard.transcript, heard.slots) == (False, "", "", {})


# --- and nothing else is


def reversed_(name: str) -> Sound:
    return sound(name)[::-1]


def first_half(name: str) -> Sound:
    return sound(name)[: len(sound(name)) // 2]


def second_half(name: str) -> Sound:
    return sound(name)[len(sound(name)) // 2 :]


def with_another(name: str) -> Sound:
    other = sound(SPEECH[(SPEECH.index(name) + 7) % len(SPEECH)])
    both = np.zeros(max(len(sound(name)), len(other)))
    both[: len(sound(name))] += sound(name)
    both[: len(other)] += other
    return both


def before_another(name: str) -> Sound:
    return np.concatenate([sound(name), silence(0.1), sound(SPEECH[(SPEECH.index(name) + 7) % len(SPEECH)])])


def faster(name: str) -> Sound:
    return np.asarray(soxr.resample(sound(name), 11, 10))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (reversed_, SOME_OF_ALL[0]),
        (first_half, SOME_OF_ALL[4]),
        (second_half, SOME_OF_ALL[5]),
        (with_another, SPEECH[::3]),
        (before_another, SPEECH[::3]),
        (faster, SOME_OF_ALL[3]),
    ],
)
def test_what_is_no_whole_clip_is_not_understood(change: Callable[[str], Sound], names: list[str]) -> None:
    for name in names:
        for heard in utterances(hear(pcm(silence(0.3), change(name), silence(0.75)))):
            assert not heard.understood, (name, heard.clip)
            assert (heard.intent, heard.transcript, heard.slots, heard.clip) == ("", "", {}, "")


def test_another_last_word_is_not_understood() -> None:
    """Order number ...001 with the last digit of ...999: nobody may look up order 001."""
    said = np.concatenate([sound("order_status")[:-9600], sound("order_unknown")[-9600:]])
    assert not turn(said).understood


def test_a_speaker_who_is_not_in_the_manifest_is_not_understood() -> None:
    known = {name: clip for name, clip in CLIPS.items() if name != "yes_george"}
    (heard,) = utterances(hear(pcm(silence(0.7), sound("yes_george"), silence(0.9)), Ears(known, audio.RATE)))
    assert not heard.understood


@pytest.mark.parametrize("rms", [0, 30, 300, 3000])
def test_noise_starts_no_turn(rms: float) -> None:
    assert hear(pcm(noise(20 * audio.RATE, rms))) == []


def test_clicks_and_tones_are_no_caller() -> None:
    clicks = silence(10)
    clicks[:: audio.RATE] = 20_000
    tone = 5000 * np.sin(2 * np.pi * 440 * np.arange(3 * audio.RATE) / audio.RATE)
    assert not any(heard.understood for heard in utterances(hear(pcm(clicks, tone, silence(1)))))


# --- turns


def test_positions_are_those_of_the_audio() -> None:
    said = sound("stock")
    started, ended = hear(pcm(silence(2), said, silence(2)))
    end = 2000 + 1000 * len(said) / audio.RATE
    assert isinstance(started, Started)
    assert isinstance(ended, Ended)
    assert 2000 - 300 - 40 < started.at_ms < 2000 - 300 + 130
    assert end + 500 - 100 < ended.at_ms < end + 500 + 120


def test_prefix_and_silence_move_the_positions() -> None:
    line = pcm(silence(2), sound("stock"), silence(3))
    first, last = hear(line)
    earlier, later = hear(line, prefix_ms=500, silence_ms=1200)
    assert earlier.at_ms == first.at_ms - 200
    assert later.at_ms == last.at_ms + 700


def test_a_turn_starts_neither_before_the_stream_nor_before_the_end_of_the_last_one() -> None:
    events = hear(pcm(sound("stock"), silence(0.6), sound("stock"), silence(1)), prefix_ms=5000)
    assert [type(event) for event in events] == [Started, Ended, Started, Ended]
    assert events[0].at_ms == 0
    assert events[1].at_ms <= events[2].at_ms < events[1].at_ms + 64


def test_how_the_audio_is_cut_does_not_matter() -> None:
    line = pcm(silence(0.7), sound("order_status"), silence(0.9), sound("yes"), silence(0.9))
    expected = hear(line)
    assert [heard.clip for heard in utterances(expected)] == ["order_status", "yes"]
    for chunk in (0.02, 0.04, 1.0, 60.0):
        assert hear(line, chunk=chunk) == expected
    ears = Ears(CLIPS, audio.RATE)
    assert [event for i in range(0, len(line), 999) for event in ears.feed(line[i : i + 999])] == expected


def test_the_same_audio_gives_the_same_turns() -> None:
    line = noisy(8)(sound("make_that_thursday"))[0]
    assert hear(line) == hear(line)


def test_a_pause_longer_than_the_silence_splits_a_turn() -> None:
    line = pcm(silence(0.7), sound("yes"), silence(0.36), sound("okay"), silence(1.5))
    for chunk in (0.1, 60.0):  # what was fed after the pause is no part of what came before it
        assert [heard.clip for heard in utterances(hear(line, chunk=chunk, silence_ms=200))] == ["yes", "okay"]
    assert [heard.understood for heard in utterances(hear(line, silence_ms=800))] == [False]


def test_each_of_many_turns_is_heard() -> None:
    parts = [part for name in SOME for part in (sound(name), silence(0.9))]
    assert [heard.clip for heard in utterances(hear(pcm(silence(0.3), *parts)))] == SOME


def test_no_clip_is_split_by_a_short_silence() -> None:
    """The clips have no inner pause that a hangover of 300 ms takes for the end."""
    for name in SOME_OF_ALL[4]:
        assert turn(sound(name), silence_ms=300).clip == name


# --- semantic detection


@pytest.mark.parametrize("eagerness", EAGERNESS_MS)
def test_a_whole_sentence_ends_the_turn_early(eagerness: str) -> None:
    for name in (*SOME, "yes_de", "yes_please_de", "mumble"):
        said = sound(name)
        (ended,) = (e for e in hear(pcm(silence(1), said, silence(1)), eagerness=eagerness) if isinstance(e, Ended))
        assert ended.utterance.clip == name
        assert ended.at_ms == pytest.approx(1000 + 1000 * len(said) / audio.RATE + 200, abs=120)


@pytest.mark.parametrize(("eagerness", "limit"), [("low", 8000), ("medium", 4000), ("auto", 4000), ("high", 2000)])
def test_anything_else_is_waited_for_up_to_the_limit(eagerness: str, limit: int) -> None:
    said = first_half("weather_landmark")
    events = hear(pcm(silence(1), said, silence(limit / 1000 + 0.5)), eagerness=eagerness)
    assert not utterances(events)[0].understood
    assert events[-1].at_ms == pytest.approx(1000 + 1000 * len(said) / audio.RATE + limit, abs=150)


def test_a_pause_in_the_middle_of_a_sentence_is_waited_out() -> None:
    whole = sound("order_status")
    middle = len(whole) // 2
    assert len(utterances(hear(pcm(silence(1), whole[:middle], silence(1.2), whole[middle:], silence(1))))) == 2
    assert hear(pcm(silence(1), whole[:middle], silence(1.2), whole[middle:], silence(1)), eagerness="auto")[1:] == []


def test_silence_and_eagerness_replace_each_other() -> None:
    line = pcm(silence(1), first_half("weather_landmark"), silence(1.5))
    ears = Ears(CLIPS, audio.RATE)
    ears.listen_for(eagerness="high")
    ears.listen_for(silence_ms=500)
    assert len(utterances(hear(line, ears))) == 1
    with pytest.raises(ValueError, match="low, medium, auto, high, not 'highest'"):
        ears.listen_for(eagerness="highest")


# --- push to talk


def by_hand(*lines: bytes, rate: int = audio.RATE) -> Ears:
    ears = Ears(CLIPS, rate)
    ears.automatic = False
    for line in lines:
        assert hear(line, ears) == []
    return ears


def test_push_to_talk_makes_a_turn_of_what_is_buffered() -> None:
    for name in SOME_OF_ALL[5] + SOME:
        assert by_hand(pcm(sound(name))).commit().clip == name  # pressed and released with the first and last sample


def test_push_to_talk_hears_a_sentence_with_pauses_as_one() -> None:
    ears = by_hand(pcm(silence(3), sound("stock"), silence(3)))
    assert ears.commit().clip == "stock"
    ears = by_hand(pcm(sound("yes"), silence(2), sound("stock")))
    assert not ears.commit().understood


def test_a_buffer_is_recognised_once_and_can_be_cleared() -> None:
    ears = by_hand(pcm(sound("yes"), silence(0.2)))
    assert ears.buffered_ms == pytest.approx(1000 * CLIPS["yes"].seconds + 200, abs=0.1)
    assert ears.commit().clip == "yes"
    assert ears.buffered_ms == 0
    assert ears.commit() == Utterance()
    hear(pcm(sound("no")), ears)
    ears.clear()
    assert (ears.buffered_ms, ears.commit()) == (0, Utterance())
    hear(pcm(sound("stock")), ears)
    assert ears.commit().clip == "stock"
    assert ears.fed_ms == pytest.approx(1000 * sum(CLIPS[n].seconds for n in ("yes", "no", "stock")) + 200, abs=1)


def test_a_commit_ends_an_automatic_turn_early() -> None:
    ears = Ears(CLIPS, audio.RATE)
    hear(pcm(silence(1), sound("stock"), silence(0.1)), ears)
    assert ears.speaking
    assert ears.commit().clip == "stock"
    assert not ears.speaking
    assert hear(pcm(silence(2)), ears) == []


def test_the_silence_after_a_turn_is_no_turn() -> None:
    ears = Ears(CLIPS, audio.RATE)
    hear(pcm(silence(1), sound("stock"), silence(2)), ears)
    assert 1000 < ears.buffered_ms < 1600
    assert ears.commit() == Utterance()


def test_switching_to_push_to_talk_in_the_middle_of_a_turn() -> None:
    said = pcm(silence(0.5), sound("stock"))
    ears = Ears(CLIPS, audio.RATE)
    assert [type(event) for event in hear(said[: len(said) // 2], ears)] == [Started]
    ears.automatic = False
    assert hear(said[len(said) // 2 :] + pcm(silence(2)), ears) == []
    assert not ears.speaking
    assert ears.commit().clip == "stock"
    ears.automatic = True
    assert [heard.clip for heard in utterances(hear(pcm(silence(0.5), sound("yes"), silence(1)), ears))] == ["yes"]


def test_speaking_is_true_during_a_turn() -> None:
    ears = Ears(CLIPS, audio.RATE)
    hear(pcm(silence(1)), ears)
    assert not ears.speaking
    hear(pcm(sound("stock")), ears)
    assert ears.speaking
    hear(pcm(silence(1)), ears)
    assert not ears.speaking


# --- a participant's own clip


def own(folder: Path, source: str, **row: Any) -> Mapping[str, Clip]:
    """The kit's clips and one more: a recording made elsewhere, stereo at 44.1 kHz."""
    made = soxr.resample(audio.read(data_path("audio", "agent", source)).astype(float) / 32768, audio.RATE, 44_100)
    soundfile.write(folder / "mine.wav", np.stack([made, made], axis=1), 44_100)
    return {**CLIPS, "mine": Clip(name="mine", path=folder / "mine.wav", **row)}


def test_a_clip_of_ones_own_is_recognised_like_the_others(tmp_path: Path) -> None:
    clips = own(tmp_path, "let-me-think.flac", intent="hold_on", transcript="Let me think.", slots={"x": 1})
    for said, rate in (direct(clips["mine"].samples.astype(float)), noisy(10)(clips["mine"].samples.astype(float))):
        (heard,) = utterances(hear(said, Ears(clips, rate)))
        assert (heard.clip, heard.intent, heard.slots, heard.understood) == ("mine", "hold_on", {"x": 1}, True)
    (heard,) = utterances(hear(direct(sound("yes"))[0], Ears(clips, audio.RATE)))
    assert heard.clip == "yes"


def test_of_two_equal_sounds_the_one_added_last_counts() -> None:
    mine = Clip(name="mine", path=CLIPS["yes"].path, intent="other")
    (heard,) = utterances(hear(direct(sound("yes"))[0], Ears({**CLIPS, "mine": mine}, audio.RATE)))
    assert heard.clip == "mine"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    clips = {"gone": Clip(name="gone", path=tmp_path / "gone.flac", intent="x")}
    with pytest.raises(ValueError, match=r"clip 'gone': gone.flac is missing"):
        hear(direct(sound("yes"))[0], Ears(clips, audio.RATE))


def test_ears_that_know_nothing_understand_nothing() -> None:
    (heard,) = utterances(hear(direct(sound("yes"))[0], Ears({}, audio.RATE)))
    assert not heard.understood


def test_another_detector_can_be_put_in() -> None:
    class Always:
        frame = 160

        def probabilities(self, frames: np.ndarray) -> list[float]:
            return [1.0] * len(frames)

    ears = Ears(CLIPS, audio.RATE, detector=Always())
    assert hear(pcm(silence(1)), ears) == [Started(0)]
