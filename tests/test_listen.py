"""The player and the transcript of a saved notebook."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
import soundfile

from voicekit import listen
from voicekit.audio import RATE, clips
from voicekit.listen import player, transcript


def conversation(seconds: float) -> np.ndarray[Any, np.dtype[np.int16]]:
    """The two sides by turns, hardly a pause between them."""
    stereo = np.zeros((round(seconds * RATE), 2), np.int16)
    for channel, name in ((0, "order_status"), (1, "order_details")):
        turn = np.concatenate((clips()[name].samples, np.zeros(len(clips()[name].samples), np.int16)))
        stereo[:, channel] = np.roll(np.resize(turn, len(stereo)), channel * len(turn) // 2)
    return stereo


def decoded(shown: listen.Player) -> np.ndarray[Any, Any]:
    sound, rate = soundfile.read(io.BytesIO(shown.encoded), always_2d=True)
    assert rate == RATE
    return np.asarray(sound)


def rms(sound: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(np.square(sound.astype(np.float64)))))


def test_half_a_minute_of_stereo_is_below_200_kb_in_the_page() -> None:
    shown = player(conversation(30.0))
    page = shown._repr_html_()
    assert len(page) < 200_000
    assert page.count("data:audio/ogg;base64,") == 1 and "<audio controls" in page
    assert "autoplay" not in page
    assert "simulated" in page and "30.0 s" in page and "KB" in page and "left: caller" in page
    assert not re.search(r"(/home|/tmp|/usr|[A-Z]:\\)", re.sub(r"base64,[^\"]*", "", page))
    assert "base64" not in repr(shown) and "30.0 s" in repr(shown)
    assert decoded(shown).shape == (30 * RATE, 2)


def test_the_sides_are_not_mixed_up() -> None:
    stereo = conversation(2.0)
    stereo[:, 0] = 0
    left, right = decoded(player(stereo)).T
    assert rms(left) < 0.05 * rms(right)


def test_case_68_the_player_does_not_change_the_loudness() -> None:
    quiet = conversation(3.0) // 8
    assert rms(decoded(player(quiet))) == pytest.approx(rms(quiet / 32768), rel=0.12)  # 1 dB: the codec
    tone = 0.5 * np.sin(np.arange(RATE) * 2 * np.pi * 440 / RATE)
    assert rms(decoded(player(tone - tone))) < 1e-3  # tone and antitone: silence, not noise made loud
    loud = player(tone * 2.4)
    assert loud.clipped_db == pytest.approx(20 * np.log10(1.2), abs=0.01)
    assert "clipped, it was 1.6 dB above full scale" in loud._repr_html_()
    assert "clipped" not in player(tone).caption
    assert player(np.full(RATE, 32767, np.int16)).clipped_db == 0.0
    tone[7] = np.nan
    with pytest.raises(ValueError, match=r"1 of the samples are no sound \(NaN"):
        player(tone)


@pytest.mark.parametrize("sound", [np.zeros((5, 3)), np.zeros((2, 2, 2)), np.zeros(5, np.int32), np.array([1 + 2j])])
def test_other_things_are_refused(sound: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ValueError, match="a player takes"):
        player(sound)
    with pytest.raises(ValueError, match="resample it first"):
        player(np.zeros(10), rate=44_100)


def test_without_a_codec_the_words_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise soundfile.LibsndfileError(1)

    monkeypatch.setattr(soundfile, "write", broken)
    page = player(conversation(1.0))._repr_html_()
    assert "<audio" not in page and "cannot be encoded" in page and "transcript" in page


def test_an_empty_recording_has_no_sound_and_no_error() -> None:
    assert player(np.zeros((0, 2), np.int16)).seconds == 0.0


EVENTS = [
    {"t": 3.5, "lane": "caller", "kind": "speech_stop", "item": "c", "call_id": None, "text": "Where is <b>it</b>?",
     "detail": {"start": 0.5, "stop": 3.5, "audible": [[0.53, 3.47]]}},
    {"t": 7.25, "lane": "heard", "kind": "played", "item": "i", "call_id": None, "text": "It left our",
     "detail": {"start": 5.0, "stop": 7.25, "unheard": "warehouse & arrives.", "audible": [[5.03, 7.25]]}},
    {"t": 7.25, "lane": "heard", "kind": "played", "item": "j", "call_id": None, "text": "",
     "detail": {"start": 7.25, "stop": 7.25, "unheard": "Anything else?", "audible": []}},
    {"t": 4.5, "lane": "caller", "kind": "speech_start", "item": "d", "call_id": None, "text": "cut", "detail": {}},
]  # fmt: skip


def test_transcript_strikes_out_what_nobody_heard() -> None:
    assert str(transcript(EVENTS)).splitlines() == [
        "seconds (simulated); struck through: generated, never heard",
        "   0.50  caller  Where is <b>it</b>?",
        "   5.00  agent   It left our ~~warehouse & arrives.~~",
        "   7.25  agent   ~~Anything else?~~",
    ]
    page = transcript(EVENTS, simulated=False)._repr_html_()
    assert "It left our <del>warehouse &amp; arrives.</del>" in page
    assert "&lt;b&gt;it&lt;/b&gt;" in page and "<b>it" not in page
    assert "simulated" not in page
