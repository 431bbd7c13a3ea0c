"""The voice of a simulated service: recordings where there are some, else stand-ins of a fixed length."""

from __future__ import annotations

import csv
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicekit import audio
from voicekit.audio import RATE, from_pcm
from voicekit.models import data_path
from voicekit.simulator import voice as module
from voicekit.simulator.voice import QUIET_SECONDS, Voice, seconds, sentences

UNKNOWN = "Seventeen striped umbrellas, and a bicycle, are waiting."


def rows() -> list[dict[str, str]]:
    with data_path("audio", "agent.csv").open(newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))


def test_recorded_sentences_are_said_by_their_recordings() -> None:
    for row in rows():
        recording = audio.read(data_path("audio", row["file"]))
        assert np.array_equal(Voice(row["language"]).say(row["text"]), recording), row["text"]


@pytest.mark.parametrize("text", ["you're welcome", "You’re  welcome!", " You're\nwelcome. "])
def test_case_spaces_and_signs_do_not_make_another_sentence(text: str) -> None:
    assert len(Voice().say(text.strip().replace("\n", " "))) == len(Voice().say("You're welcome."))


def test_two_sentences_have_a_pause_between_them_that_ends_no_turn() -> None:
    for language, first, second in (
        ("en", "You're welcome.", "Goodbye."),
        ("en", "You're welcome.", UNKNOWN),
        ("en", UNKNOWN, UNKNOWN),
        ("de", "Gern geschehen.", "Auf Wiederhören."),
    ):
        voice = Voice(language)
        both = voice.say(f"{first} {second}")
        pause = len(both) - len(voice.say(first)) - len(voice.say(second))
        assert 0 < pause < 0.1 * RATE
        stretches = audio.audible(both, merge=0.1)
        gaps = [later[0] - earlier[1] for earlier, later in pairwise(stretches)]
        assert all(gap < 0.16 for gap in gaps), (first, gaps)


def test_the_length_of_any_other_sentence_is_a_rule_on_its_letters() -> None:
    assert len(Voice().say(UNKNOWN)) == round(RATE * seconds(UNKNOWN))
    assert seconds(UNKNOWN) == 3.13  # the same on every machine, or saved notebooks no longer compare equal
    assert seconds("Siebzehn gestreifte Schirme warten.", "de") == 2.28
    assert seconds("At 10:30.") > seconds("At.") + 0.5
    assert seconds("?") == 0.3


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_rule_has_the_pace_of_the_recordings(language: str) -> None:
    errors = [seconds(r["text"], language) / float(r["seconds"]) - 1 for r in rows() if r["language"] == language]
    assert np.median(np.abs(errors)) < 0.08
    assert np.max(np.abs(errors)) < 0.3
    assert abs(np.mean(errors)) < 0.03


@pytest.mark.parametrize(
    ("language", "text"), [("en", UNKNOWN), ("de", "Grüße aus Öderan, wie wäre es?"), ("en", "Hm")]
)
def test_a_stand_in_is_audible_from_end_to_end(language: str, text: str) -> None:
    samples = Voice(language).say(text)
    assert audio.dbfs(samples) == pytest.approx(-20, abs=1.5)
    assert np.max(np.abs(samples.astype(int))) < 0.7 * 32768
    (stretch,) = audio.audible(samples)
    assert stretch[0] < 0.06
    assert stretch[1] > len(samples) / RATE - 0.06


def test_a_question_rises() -> None:
    def pitch_at_the_end(mark: str) -> int:
        end = Voice().say(f"Umbrellas are waiting{mark}")[-RATE // 4 :].astype(float)
        return 120 + 4 * int(np.argmax(np.abs(np.fft.rfft(end * np.hanning(len(end))))[30:60]))

    assert pitch_at_the_end(".") + 20 < pitch_at_the_end("?")


def test_the_same_text_is_the_same_sound_and_other_text_another() -> None:
    first = Voice().say(UNKNOWN).copy()
    module._say.cache_clear()
    assert np.array_equal(Voice().say(UNKNOWN), first)
    assert not np.array_equal(Voice().say(UNKNOWN.replace("umbrellas", "armadillo")), first)


def test_nobody_can_change_the_shared_sound() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Voice().say("Goodbye.")[0] = 1


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_nothing_to_say(text: str) -> None:
    assert len(Voice().say(text)) == 0
    assert Voice().pieces(text, [100]) == []


@pytest.mark.parametrize("lengths_ms", [(20,), (100, 150, 250), (1000,), (10_000, 20)])
def test_pieces_put_together_are_the_text_and_the_sound(lengths_ms: tuple[int, ...]) -> None:
    text = f"You're welcome. {UNKNOWN}  Goodbye."
    pieces = Voice().pieces(text, lengths_ms)
    assert "".join(words for words, _ in pieces) == text
    assert b"".join(pcm for _, pcm in pieces) == Voice().say(text).tobytes()
    expected = [*lengths_ms, *[lengths_ms[-1]] * len(pieces)]
    *whole, last = [1000 * len(pcm) / 2 / RATE for _, pcm in pieces]
    assert whole == expected[: len(whole)] and 0 < last <= expected[len(whole)]


def test_words_come_when_they_have_been_said() -> None:
    first, second = "Your order left our warehouse this morning and arrives on Friday.", "It costs nothing."
    pieces = Voice().pieces(f"{first} {second}", [10])
    ends = {}
    for index, (words, _) in enumerate(pieces):
        ends.update(dict.fromkeys(words.split(), (index + 1) * 0.01))
    length, whole = len(Voice().say(first)) / RATE, len(Voice().say(f"{first} {second}")) / RATE
    assert ends["Friday."] == pytest.approx(length - QUIET_SECONDS, abs=0.011)
    assert ends["nothing."] == pytest.approx(whole - QUIET_SECONDS, abs=0.011)
    assert ends["warehouse"] == pytest.approx(length * 26 / 54, abs=0.25)  # half of the letters, half of the time
    assert length < ends["It"] < ends["costs"] < ends["nothing."]
    assert not pieces[0][0]
    there = 0.0
    for words, pcm in Voice().pieces(f"{first} {second}", [100, 150, 250]):
        begin, there = there, there + len(pcm) / 2 / RATE
        assert all(begin - 0.011 < ends[word] <= there + 0.011 for word in words.split())


def test_the_words_said_grow_with_the_time() -> None:
    pieces = Voice("de").pieces("Ihr Termin am Freitag um zehn ist gebucht.", [50])
    heard = np.cumsum([len(words) for words, _ in pieces])
    assert heard[len(heard) // 2] == pytest.approx(heard[-1] / 2, rel=0.35)


@settings(deadline=None, max_examples=40)
@given(
    st.text(st.sampled_from("ab cdefg.!?,\n\t\"'’ 19äß€…-"), max_size=30),
    st.sampled_from([[7], [20], [100, 150, 250]]),
)
def test_no_text_loses_a_letter(text: str, lengths_ms: list[int]) -> None:
    assert "".join(sentences(text)) == (text if text.strip() else "")
    pieces = Voice("de").pieces(text, lengths_ms)
    assert "".join(words for words, _ in pieces) == (text if text.strip() else "")
    assert sum(len(from_pcm(pcm)) for _, pcm in pieces) == len(Voice("de").say(text))


def test_where_sentences_end() -> None:
    text = 'He said "no." Then ... what?! It costs 4.90 euros\nOkay'
    assert sentences(text) == ['He said "no." ', "Then ... ", "what?! ", "It costs 4.90 euros\n", "Okay"]


def test_a_voice_has_one_of_two_languages() -> None:
    with pytest.raises(ValueError, match="en or de, not 'fr'"):
        Voice("fr")


def test_real_speech_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    module._pico.cache_clear()
    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(ValueError, match="pip install py-nanotts"):
        Voice(free_text="pico")


@pytest.mark.parametrize("language", ["en", "de"])
def test_real_speech_for_free_text(language: str) -> None:
    pytest.importorskip("py_nanotts")
    module._pico.cache_clear()
    samples = Voice(language, free_text="pico").say("Siebzehn Armadillos.")
    assert 0.5 < len(samples) / RATE < 4
    assert audio.audible(samples)
    assert np.max(np.abs(samples.astype(int))) < 32767
    assert np.array_equal(Voice(language, free_text="pico").say("Okay."), Voice(language).say("Okay."))
