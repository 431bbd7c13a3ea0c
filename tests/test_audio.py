"""Audio inside the kit: reading any file, changing the rate of a stream, cutting frames, finding what is audible."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from voicekit import audio
from voicekit.audio import RATE, Resampler, framed, from_pcm, read, to_int16, to_pcm


def sine(seconds: float = 1.0, rate: int = RATE, hz: float = 440.0, level: float = 0.5) -> np.ndarray:
    return level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)


@pytest.mark.parametrize(("source", "target"), [(24_000, 16_000), (16_000, 24_000), (8_000, 24_000), (24_000, 24_000)])
@pytest.mark.parametrize("piece", [0.01, 0.02, 0.1])
def test_resampling_piece_by_piece_equals_one_pass(source: int, target: int, piece: float) -> None:
    pcm = to_pcm(to_int16(sine(rate=source)))
    resampler = Resampler(source, target)
    streamed = from_pcm(b"".join([*map(resampler.feed, framed(pcm, piece, source)), resampler.flush()]))
    whole = soxr.resample(from_pcm(pcm), source, target)
    assert len(streamed) == len(whole) == target
    assert np.max(np.abs(streamed.astype(int) - whole.astype(int))) <= 2


def test_a_stream_has_no_click_at_the_joints_and_separate_pieces_do() -> None:
    """Clicks every 10 ms show as lines 100, 200, ... Hz beside the tone."""
    pcm = to_pcm(to_int16(sine(seconds=2.0)))
    resampler = Resampler(RATE, 16_000)
    streamed = from_pcm(b"".join([*map(resampler.feed, framed(pcm, 0.01)), resampler.flush()]))
    separate = np.concatenate([soxr.resample(from_pcm(piece), RATE, 16_000) for piece in framed(pcm, 0.01)])

    def lines(sound: np.ndarray) -> float:
        """The strongest of these lines against the tone at 440 Hz, in dB."""
        middle = sound[8000:24_000].astype(float)
        spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
        return 20 * float(np.log10(max(spectrum[[40, 140, 240, 340, 540, 640, 740, 840]]) / spectrum[440]))

    assert lines(streamed) < -80
    assert lines(separate) > -70


@pytest.mark.parametrize("target", [24_000, 16_000])
def test_an_odd_byte_waits_for_the_next_piece(target: int) -> None:
    pcm = to_pcm(to_int16(sine(seconds=0.5)))
    even, odd = Resampler(RATE, target), Resampler(RATE, target)
    expected = even.feed(pcm) + even.flush()
    cut = b"".join(odd.feed(pcm[start : start + 479]) for start in range(0, len(pcm), 479)) + odd.flush()
    assert len(cut) == len(expected)
    assert np.max(np.abs(from_pcm(cut).astype(int) - from_pcm(expected))) <= 2


@settings(max_examples=60, deadline=None)
@given(
    rates=st.sampled_from([(24_000, 16_000), (16_000, 24_000), (24_000, 8_000), (44_100, 24_000)]),
    parts=st.lists(st.tuples(st.booleans(), st.sampled_from([1, 100, 240, 2400, 6000, 12_345, 20_000])), max_size=6),
    cuts=st.lists(st.sampled_from([479, 480, 1001, 4800, 100_000]), min_size=1, max_size=5),
)
def test_silence_between_sounds_is_as_long_as_it_was_however_it_is_cut(
    rates: tuple[int, int], parts: list[tuple[bool, int]], cuts: list[int]
) -> None:
    sound = [is_sound * np.hanning(size) * sine(1.0, size) for is_sound, size in parts]
    pcm = to_pcm(to_int16(np.concatenate([[], *sound])))
    resampler, at, out = Resampler(*rates), 0, b""
    for size in itertools.cycle(cuts):
        out += resampler.feed(pcm[at : at + size])
        at += size
        if at >= len(pcm):
            break
    streamed = from_pcm(out + resampler.flush())
    whole = soxr.resample(from_pcm(pcm), *rates)
    assert abs(len(streamed) - len(whole)) <= 1
    end = min(len(streamed), len(whole))
    assert not end or np.max(np.abs(streamed[:end].astype(int) - whole[:end])) <= 3


@pytest.mark.parametrize("rates", [(24_000, 16_000), (16_000, 24_000), (24_000, 8_000), (44_100, 16_000)])
@pytest.mark.parametrize("apart", [4002, 6001, 6004, 6010, 8001])  # it falls asleep after 6000 at 24 kHz
def test_what_comes_out_depends_on_the_sound_and_not_on_how_it_is_cut(rates: tuple[int, int], apart: int) -> None:
    clicks = np.zeros(3 * apart + 1, np.int16)
    clicks[1::apart] = 20_000

    def out(cut: int) -> bytes:
        resampler, pcm = Resampler(*rates), to_pcm(clicks)
        pieces = [resampler.feed(pcm[start : start + cut]) for start in range(0, len(pcm), cut)]
        return b"".join([*pieces, resampler.flush()])

    expected, whole = from_pcm(out(960)), soxr.resample(clicks, *rates)
    end = min(len(expected), len(whole))
    assert abs(len(expected) - len(whole)) <= 1 and np.max(np.abs(expected[:end].astype(int) - whole[:end])) <= 3
    for cut in (2 if apart == 6001 else 62, 481, 1_000_000):  # sample by sample is slow
        found = from_pcm(out(cut))
        assert len(found) == len(expected) and np.max(np.abs(found.astype(int) - expected)) <= 1


@pytest.mark.parametrize("quiet", [0, 100, 44_100])
def test_a_last_sound_too_short_for_a_group_comes_at_its_place(quiet: int) -> None:
    sound = np.concatenate([np.zeros(quiet), sine(1.0, 300)])  # 441 samples make a group at these rates
    pcm = to_pcm(to_int16(sound))
    resampler = Resampler(44_100, 16_000)
    streamed, whole = from_pcm(resampler.feed(pcm) + resampler.flush()), soxr.resample(from_pcm(pcm), 44_100, 16_000)
    assert len(streamed) == len(whole) and np.max(np.abs(streamed.astype(int) - whole)) <= 3
    assert resampler.flush() == b""


def test_no_noise_is_added_in_the_silence_after_a_sound() -> None:
    """soxr would dither, and not alike in every stream: the same conversation would not be the same twice."""
    resampler = Resampler(RATE, 16_000)
    silence = bytes(2 * 2400)
    resampler.feed(to_pcm(to_int16(sine(0.5))) + silence)  # the filter has let go of the sound, and does not sleep yet
    out = resampler.feed(silence)
    assert out == bytes(len(out)) and len(out) > 2000


def test_a_long_piece_full_of_clicks_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clicks = np.zeros(200_000, np.int16)
    clicks[::6240] = 20_000  # between any two of them it falls asleep
    looked: list[int] = []
    look = np.flatnonzero
    monkeypatch.setattr(np, "flatnonzero", lambda samples: looked.append(len(samples)) or look(samples))
    Resampler(RATE, 16_000).feed(to_pcm(clicks))
    assert sum(looked) < 1.1 * len(clicks)


def test_silence_comes_out_at_once_and_is_nothing_but_zeros() -> None:
    resampler = Resampler(RATE, 16_000)
    piece = bytes(2 * 2400)
    held_back = 160  # 10 ms that may turn out to lead a sound
    assert len(resampler.feed(piece)) == 2 * (1600 - held_back)
    out = [resampler.feed(to_pcm(to_int16(sine(0.1)))), *(resampler.feed(piece) for _ in range(5))]
    assert sum(map(len, out)) == 2 * 6 * 1600  # the same is held back again
    assert out[-1] == bytes(2 * 1600)


def test_an_empty_stream_stays_empty() -> None:
    resampler = Resampler(RATE, 16_000)
    assert resampler.feed(b"") + resampler.feed(b"\x01") + resampler.flush() == b""


@pytest.mark.parametrize(
    ("name", "rate", "channels", "options"),
    [
        ("a.wav", 24_000, 1, {"subtype": "PCM_16"}),
        ("a.wav", 44_100, 2, {"subtype": "PCM_24"}),
        ("a.wav", 8_000, 1, {"subtype": "ULAW"}),
        ("a.wav", 48_000, 6, {"subtype": "FLOAT"}),
        ("a.flac", 16_000, 2, {}),
        ("a.ogg", 48_000, 1, {"subtype": "OPUS"}),
        ("a.ogg", 44_100, 2, {"subtype": "VORBIS"}),
        ("a.mp3", 44_100, 1, {}),
    ],
)
def test_any_file_becomes_mono_at_24_khz(
    tmp_path: Path, name: str, rate: int, channels: int, options: dict[str, str]
) -> None:
    mono = sine(rate=rate)
    soundfile.write(tmp_path / name, np.stack([mono] * channels, axis=1), rate, **options)
    samples = read(tmp_path / name)
    assert samples.dtype == np.int16
    assert samples.ndim == 1
    assert len(samples) == pytest.approx(RATE, abs=RATE * 0.06)  # MP3 adds a lead-in
    middle = samples[6000:18_000].astype(float)
    assert np.argmax(np.abs(np.fft.rfft(middle))) == pytest.approx(440 * len(middle) / RATE, abs=1)
    assert audio.dbfs(middle) == pytest.approx(-9.0, abs=0.5)


def test_channels_are_mixed_not_dropped(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([np.zeros(RATE), sine()], axis=1), RATE)
    assert audio.dbfs(read(tmp_path / "a.wav")) == pytest.approx(-15.0, abs=0.1)


def _text(path: Path) -> None:
    path.write_text("this is no sound")


def _empty(path: Path) -> None:
    soundfile.write(path, np.zeros(0), RATE)


def _nothing(path: Path) -> None:
    path.write_bytes(b"")


def _silent(path: Path) -> None:
    soundfile.write(path, np.zeros(RATE), RATE)


def _faint(path: Path) -> None:
    soundfile.write(path, sine(level=0.001), RATE)


def _not_a_number(path: Path) -> None:
    soundfile.write(path, np.full(RATE, np.nan), RATE, subtype="FLOAT")


def _long(path: Path) -> None:
    soundfile.write(path, np.zeros(61 * 8000), 8000)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "cannot be read"),
        (Path.mkdir, "cannot be read"),
        (_text, "cannot be read"),
        (_nothing, "cannot be read"),
        (_empty, "holds no sound"),
        (_silent, "silent"),
        (_faint, "silent"),
        (_not_a_number, "no sound"),
        (_long, "lasts 61 s"),
    ],
)
def test_what_is_no_clip_is_refused_in_one_line(tmp_path: Path, make, says: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "mine.wav")
    with pytest.raises(ValueError, match=says) as error:
        read(tmp_path / "mine.wav")
    assert "mine.wav" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_cut_off_file_gives_what_is_there(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", sine(), RATE)
    whole = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "a.wav").write_bytes(whole[: len(whole) // 2])
    assert len(read(tmp_path / "a.wav")) == pytest.approx(RATE / 2, abs=100)


def test_full_scale_is_clipped_not_wrapped() -> None:
    assert to_int16(np.array([-2.0, -1.0, 0.0, 1.0, 2.0])).tolist() == [-32768, -32768, 0, 32767, 32767]


def test_levels() -> None:
    assert audio.dbfs(to_int16(sine(level=1.0))) == pytest.approx(-3.01, abs=0.02)
    assert audio.dbfs(np.zeros(100, np.int16)) == -120.0
    assert audio.dbfs(np.zeros(0, np.int16)) == -120.0
    assert audio.frame_levels(np.zeros(RATE + 239, np.int16)).tolist() == [-120.0] * 100


def test_audible_stretches() -> None:
    gap, tone = np.zeros(RATE // 10), sine(seconds=0.5)
    samples = to_int16(np.concatenate([gap, tone, gap, tone, gap, gap, gap, tone]))
    assert np.allclose(audio.audible(samples), [(0.1, 1.2), (1.5, 2.0)])
    assert np.allclose(audio.audible(samples, merge=0.0), [(0.1, 0.6), (0.7, 1.2), (1.5, 2.0)])
    assert audio.audible(np.zeros(100, np.int16)) == []


def test_frames_have_the_asked_length_and_nothing_is_lost() -> None:
    pcm = bytes(range(256)) * 10
    frames = list(framed(pcm, 0.02, 16_000))
    assert [len(frame) for frame in frames] == [640, 640, 640, 640]
    assert len(list(framed(pcm + b"\0\0", 0.02, 16_000))[-1]) == 2
    assert b"".join(frames) == pcm


def test_written_samples_are_read_back(tmp_path: Path) -> None:
    samples = to_int16(sine())
    for name in ("a.flac", "a.wav"):
        audio.write(tmp_path / name, samples)
        assert np.array_equal(read(tmp_path / name), samples)


def _manifest(folder: Path, *rows: dict[str, str], start: str = "") -> Path:
    audio.write(folder / "mine.flac", to_int16(sine()))
    with (folder / "manifest.csv").open("w", newline="", encoding="utf-8") as file:
        file.write(start)
        table = csv.DictWriter(file, sorted({key for row in rows for key in row}))
        table.writeheader()
        table.writerows(rows)
    return folder / "manifest.csv"


def test_a_row_needs_a_name_and_a_file_and_the_rest_has_defaults(tmp_path: Path) -> None:
    clip = audio.read_manifest(_manifest(tmp_path, {"clip": "mine", "file": "mine.flac"}))["mine"]
    assert (clip.language, clip.intent, clip.slots) == ("en", "", {})
    assert clip.seconds == 1.0
    with pytest.raises(ValueError, match=r"manifest.csv, line 2: .*columns clip and file"):
        audio.read_manifest(_manifest(tmp_path, {"clip": "mine", "file": ""}))


def test_a_manifest_saved_by_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = _manifest(tmp_path, {"clip": "mine", "file": "mine.flac", "slots": '{"day": "friday"}'}, start="\ufeff")
    assert audio.read_manifest(path)["mine"].slots == {"day": "friday"}


@pytest.mark.parametrize("slots", ["friday", "[1]", '"friday"', "{"])
def test_slots_are_a_json_object(tmp_path: Path, slots: str) -> None:
    with pytest.raises(ValueError, match="line 2: slots is a JSON object"):
        audio.read_manifest(_manifest(tmp_path, {"clip": "mine", "file": "mine.flac", "slots": slots}))


def test_a_missing_or_changed_file_is_named(tmp_path: Path) -> None:
    path = _manifest(
        tmp_path, {"clip": "gone", "file": "gone.flac"}, {"clip": "mine", "file": "mine.flac", "sha256": "0" * 64}
    )
    clips = audio.read_manifest(path)
    with pytest.raises(ValueError, match=r"clip 'gone': gone.flac is missing"):
        _ = clips["gone"].samples
    with pytest.raises(ValueError, match=r"clip 'mine': mine.flac is not the file"):
        _ = clips["mine"].samples


def test_the_clips_of_the_kit_are_what_the_manifest_says() -> None:
    assert len(audio.clips()) >= 60
    for clip in audio.clips().values():
        assert audio.audible(clip.samples), clip.name
        assert -24 < audio.dbfs(clip.samples) < -17, clip.name
