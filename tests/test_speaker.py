"""The playout buffer: what was heard, to the sample, and what the journal says of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicekit.alignment import Alignment
from voicekit.audio import RATE, to_pcm
from voicekit.clock import run_blocking
from voicekit.journal import Journal
from voicekit.simulator.profile import Profile
from voicekit.simulator.voice import Voice
from voicekit.speaker import Counts, Speaker

Test = Callable[[Speaker, Journal], Coroutine[Any, Any, None]]


def pcm(seconds: float, level: int = 8000) -> bytes:
    return to_pcm(np.full(round(seconds * RATE), level, np.int16))


def play(test: Test) -> Journal:
    async def main() -> Journal:
        now = asyncio.get_running_loop().time
        journal = Journal(now)
        await test(Speaker(journal, now), journal)
        return journal

    return run_blocking(main)


def events(journal: Journal, *kinds: str) -> list[tuple[float, str, str]]:
    return [(e["t"], e["kind"], e["item"]) for e in journal.events if e["kind"] in kinds]


def details(journal: Journal, kind: str) -> list[dict[str, Any]]:
    return [e["detail"] for e in journal.events if e["kind"] == kind]


def test_audio_is_heard_at_its_own_pace_however_fast_it_arrives() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        await asyncio.sleep(1.0)
        speaker.play("a", pcm(2.0))
        assert (speaker.is_playing, speaker.idle_since) == (True, None)
        assert speaker.counts("a") == Counts(48_000, 0, 0, 48_000)
        await asyncio.sleep(0.5)
        assert speaker.position == ("a", 12_000)
        assert speaker.heard_ms("a") == 500
        speaker.finish("a")
        await asyncio.sleep(2.0)
        assert (speaker.is_playing, speaker.idle_since, speaker.position) == (False, 3.0, None)
        assert speaker.open_items == ()

    journal = play(test)
    assert events(journal, "generating", "generated", "playing", "played") == [
        (1.0, "generating", "a"), (1.0, "playing", "a"), (1.5, "generated", "a"), (3.0, "played", "a"),
    ]  # fmt: skip
    (detail,) = details(journal, "played")
    assert (detail["start"], detail["stop"], detail["heard"], detail["flushed"]) == (1.0, 3.0, 2.0, 0.0)
    assert detail["audible"] == [[1.0, 3.0]]
    assert details(journal, "generated")[0]["seconds"] == 2.0


def test_heard_is_exact_to_the_sample() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        loop = asyncio.get_running_loop()
        speaker.play("a", pcm(1.0))
        for sample in (1, 7, 999, 1000, 12_345, 23_999, 24_000):
            await asyncio.sleep(sample / RATE - loop.time())
            assert speaker.counts("a").heard == sample

    play(test)


def test_running_dry_makes_a_gap_and_goes_on_when_more_comes() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        speaker.play("a", pcm(0.5))
        await asyncio.sleep(1.2)
        assert (speaker.is_playing, speaker.idle_since, speaker.heard_ms("a")) == (False, 0.5, 500)
        speaker.play("a", pcm(0.5))
        speaker.finish("a")
        await asyncio.sleep(1.0)
        assert [(start, len(samples)) for start, samples in speaker.recorded] == [(0, 12_000), (28_800, 12_000)]

    journal = play(test)
    assert details(journal, "played")[0]["audible"] == [[0.0, 0.5], [1.2, 1.7]]
    assert events(journal, "playing", "played") == [(0.0, "playing", "a"), (1.7, "played", "a")]


def test_a_queued_item_begins_when_the_one_before_has_ended() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        for item in ("a", "b"):
            speaker.play(item, to_pcm(np.full(10_001, 8000, np.int16)))
            speaker.finish(item)
        await asyncio.sleep(2.0)

    journal = play(test)
    assert events(journal, "playing", "played") == [
        (0.0, "playing", "a"), (0.416708, "played", "a"), (0.416708, "playing", "b"), (0.833417, "played", "b"),
    ]  # fmt: skip


def test_flush_cuts_at_the_present_sample_and_says_what_was_lost() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        speaker.play("a", pcm(2.0), "t1")
        speaker.play("b", pcm(1.0), "t1")
        await asyncio.sleep(0.75)
        assert speaker.flush() == [("a", 18_000, 30_000), ("b", 0, 24_000)]
        assert not speaker.is_playing
        speaker.play("a", pcm(0.1), "t1")
        speaker.play("c", pcm(0.1), "t1")
        assert speaker.late_samples == 4800
        assert speaker.totals == Counts(76_800, 18_000, 58_800, 0)
        speaker.play("d", pcm(0.1), "t2")
        assert speaker.is_playing

    journal = play(test)
    assert events(journal, "playing", "played") == [
        (0.0, "playing", "a"), (0.75, "played", "a"), (0.75, "played", "b"), (0.75, "played", "c"),
        (0.75, "playing", "d"),
    ]  # fmt: skip
    assert [(d["heard"], d["flushed"], d["start"], d["stop"]) for d in details(journal, "played")] == [
        (0.75, 1.35, 0.0, 0.75), (0.0, 1.0, 0.75, 0.75), (0.0, 0.1, 0.75, 0.75),
    ]  # fmt: skip


def test_flushing_one_item_moves_up_what_is_queued_behind_it() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        for item in ("a", "b", "c"):
            speaker.play(item, pcm(1.0), "t")
            speaker.finish(item)
        await asyncio.sleep(0.4)
        assert speaker.flush(item="a") == [("a", 9600, 14_400)]
        assert speaker.position == ("b", 0)
        await asyncio.sleep(0.1)
        assert speaker.flush(item="c") == [("c", 0, 24_000)]
        await asyncio.sleep(2.0)
        assert speaker.totals == Counts(72_000, 33_600, 38_400, 0)

    journal = play(test)
    assert events(journal, "playing", "played") == [
        (0.0, "playing", "a"), (0.4, "played", "a"), (0.4, "playing", "b"), (0.5, "played", "c"), (1.4, "played", "b"),
    ]  # fmt: skip


def test_flushing_a_turn_leaves_other_turns_and_drops_its_later_items() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        speaker.play("a", pcm(1.0), "t1")
        speaker.play("b", pcm(1.0), "t2")
        assert speaker.flush(turn="t1") == [("a", 0, 24_000)]
        speaker.play("a2", pcm(1.0), "t1")
        assert speaker.counts("a2") == Counts(24_000, 0, 24_000, 0)
        await asyncio.sleep(0.5)
        assert speaker.position == ("b", 12_000)

    play(test)


def test_case_14_truncate_position_beyond_the_audio_that_exists() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        for _ in range(20):  # 2 s of audio within 0.2 s
            speaker.play("a", pcm(0.1))
            await asyncio.sleep(0.01)
        await asyncio.sleep(4.8)
        assert speaker.heard_ms("a") == 2000
        assert speaker.flush() == [("a", 48_000, 0)]
        speaker.play("b", pcm(1.0))
        speaker.finish("b")
        await asyncio.sleep(2.0)
        assert speaker.flush() == []  # played to its end before the caller spoke: nothing to truncate

    play(test)


def test_case_15_truncate_before_the_first_frame_is_played() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        speaker.said("a", "Your ")
        assert speaker.flush() == []  # no audio yet: nothing to truncate
        speaker.play("a", pcm(0.1))
        assert speaker.counts("a").heard == 0 and not speaker.is_playing
        speaker.play("b", pcm(0.1))
        assert speaker.flush() == [("b", 0, 2400)]  # audio there, none heard: 0 is a position

    play(test)


def test_case_19_interrupted_empties_the_queue_at_once() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        speaker.play("a", pcm(10.0), "t")
        await asyncio.sleep(1.0)
        speaker.flush()
        speaker.play("a", pcm(1.0), "t")
        await asyncio.sleep(12.0)
        assert sum(len(samples) for _, samples in speaker.recorded) == RATE

    journal = play(test)
    assert details(journal, "played")[0]["flushed"] == 10.0


def test_events_keep_up_with_what_comes_late_and_the_sums_stay_exact() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        speaker.play("a", pcm(1.0))
        speaker.finish("a")
        await asyncio.sleep(1.5)
        speaker.said("a", "Hello there.")  # Gemini's transcripts come any time
        speaker.play("b", pcm(1.0))
        speaker.play("c", pcm(2.0))
        await asyncio.sleep(0.5)
        speaker.flush(item="b")
        speaker.play("b", pcm(0.25))
        await asyncio.sleep(1.0)
        speaker.close()
        await asyncio.sleep(5.0)  # nothing is heard after the end
        assert speaker.totals == Counts(102_000, 60_000, 18_000, 24_000)

    journal = play(test)
    assert next((e["item"], e["text"]) for e in journal.events if e["kind"] == "played") == ("a", "Hello there.")
    played = details(journal, "played")
    sums = [sum(d[name] for d in played) for name in ("heard", "flushed", "queued")]
    assert sums == [2.5, 0.75, 1.0]
    assert sum(d["seconds"] for d in details(journal, "generated")) == sum(sums)


def test_transcript_is_split_where_the_sound_was_cut() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        for word in ("One ", "two ", "three ", "four."):
            speaker.play("a", pcm(0.5))
            speaker.said("a", word)
        await asyncio.sleep(1.2)
        assert (speaker.text_heard("a"), speaker.text_unheard("a")) == ("One two ", "three four.")
        speaker.flush()

    journal = play(test)
    (event,) = [e for e in journal.events if e["kind"] == "played"]
    assert (event["text"], event["detail"]["unheard"]) == ("One two", "three four.")
    assert event["detail"]["words"] == [[0.0, "One"], [0.5, "two"]]


@pytest.mark.parametrize(
    ("pieces", "heard"),
    [
        ([(0, "One "), (100, "two "), (200, "three.")], "One "),  # text leads its audio
        ([(100, "One "), (200, "two "), (300, "three.")], "One "),  # text follows it
        ([(0, "One two three.")], "One "),  # all before
        ([(300, "One two three.")], "One "),  # all after
        ([(100, "One "), (200, "two "), (300, "three"), (300, ".")], "One "),
        ([(0, "One "), (100, "two "), (200, "three"), (300, ".")], "One "),
    ],
)
def test_words_are_found_however_text_and_audio_are_interleaved(pieces: list[tuple[int, str]], heard: str) -> None:
    words = Alignment()
    for mark, text in pieces:
        words.add(text, mark)
    assert words.heard(140, 300) == heard
    assert words.heard(300, 300) == words.text
    assert words.heard(0, 300) == ""


def test_a_words_end_is_found_to_within_a_piece_of_audio() -> None:
    """Against the voice, which knows when it has said a word: none is taken for heard a tenth of a second before."""
    off: list[float] = []
    for text in ("Hello there.", "Your second order was placed on the eighteenth of August.", "It costs nothing. Yes."):
        exact = Voice().pieces(text, [10])
        ends = [10.0 * number for number, (said, _) in enumerate(exact, 1) if said]
        words, there = Alignment(), 0
        for said, pcm_ in Voice().pieces(text, Profile.load("gpt-realtime").audio_pieces):
            there += len(pcm_) // 2
            if said:
                words.add(said, there)
        letters = list(itertools.accumulate(len(said) for said, _ in exact if said))
        heard = [len(words.heard(24 * ms, there)) for ms in range(there // 24 + 1)]
        times = [next(ms for ms, count in enumerate(heard) if count >= wanted - 1) for wanted in letters]
        off += [found - end for found, end in zip(times, ends, strict=True)]
    assert len(off) == 16 and min(off) > -70 and max(off) < 200 and 0 < sum(off) / len(off) < 80


def test_text_whose_audio_never_came_is_not_heard() -> None:
    words = Alignment()
    words.add("One ", 0)
    words.add("two.", 100)
    assert words.heard(100, 100) == "One "
    assert words.ends_of("two", 100) == []


def test_when_heard_calls_at_the_moment_the_words_have_been_heard() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        called: list[float] = []
        now = asyncio.get_running_loop().time
        speaker.when_heard("TWO", lambda: called.append(now()))
        cancel = speaker.when_heard("three", lambda: called.append(-1.0))
        speaker.when_heard("four", lambda: called.append(-2.0))
        for word in ("One ", "two ", "three ", "four."):
            speaker.play("a", pcm(0.5))
            speaker.said("a", word)
        cancel()
        await asyncio.sleep(1.7)
        speaker.flush()
        speaker.when_heard("one", lambda: called.append(-3.0))  # was heard before: not from now on
        await asyncio.sleep(3.0)
        assert called == [0.875]  # "two " takes four letters of 0.5 s

    play(test)


def test_an_odd_byte_waits_for_the_next_piece() -> None:
    async def test(speaker: Speaker, journal: Journal) -> None:
        sound = to_pcm(np.arange(1000, dtype=np.int16))
        for start in range(0, len(sound), 333):
            speaker.play("a", sound[start : start + 333])
        await asyncio.sleep(0.1)
        assert np.concatenate([samples for _, samples in speaker.recorded]).tolist() == list(range(1000))

    play(test)


def test_ten_minutes_of_speech_need_two_timers_per_item() -> None:
    """Nothing runs per frame: the loop is woken for the beginning and the end of an item only."""

    async def test(speaker: Speaker, journal: Journal) -> None:
        loop = asyncio.get_running_loop()
        wakes = 0
        call_at = loop.call_at

        def counting(*args: Any, **options: Any) -> asyncio.TimerHandle:
            nonlocal wakes
            wakes += 1
            return call_at(*args, **options)

        loop.call_at = counting  # type: ignore[method-assign]
        for number in range(10):
            speaker.play(str(number), pcm(60.0))
            speaker.finish(str(number))
        await asyncio.sleep(600.0)
        assert wakes < 40

    play(test)


# Everything at once, against a plain queue of samples

ITEMS = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 400)),
        st.tuples(st.just("play"), ITEMS, st.integers(1, 300)),
        st.tuples(st.just("finish"), ITEMS),
        st.tuples(st.just("said"), ITEMS, st.sampled_from(["One ", "two, ", "three. "])),
        st.tuples(st.just("flush"), st.none() | ITEMS),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(STEPS)
def test_heard_flushed_and_queued_are_what_a_plain_queue_gives(steps: list[tuple[Any, ...]]) -> None:
    queue: list[tuple[str, int]] = []  # (item, value of the sample)
    tape: list[int] = []  # one value per sample of the session, 0 where nothing played
    heard, flushed, generated = (dict.fromkeys("abc", 0) for _ in range(3))
    gone: set[str] = set()
    finished: set[str] = set()
    value = 0

    def ended(item: str) -> bool:
        return item in gone or (item in finished and not any(name == item for name, _ in queue))

    async def test(speaker: Speaker, journal: Journal) -> None:
        nonlocal value
        loop = asyncio.get_running_loop()
        for step, *arguments in steps:
            if step == "wait":
                for _ in range(arguments[0]):
                    item, sample = queue.pop(0) if queue else ("", 0)
                    tape.append(sample)
                    if item:
                        heard[item] += 1
                gone.update(item for item in finished if ended(item))
                await asyncio.sleep(len(tape) / RATE - loop.time())
            elif step == "play":
                item, count = arguments
                samples = [1 + (value + i) % 30_000 for i in range(count)]
                value += count
                generated[item] += count
                if ended(item):
                    flushed[item] += count
                else:
                    queue.extend((item, sample) for sample in samples)
                speaker.play(item, to_pcm(np.array(samples, np.int16)))
            elif step == "finish":
                if generated[arguments[0]] or arguments[0] in speaker.open_items:
                    finished.add(arguments[0])
                    gone.update(item for item in finished if ended(item))
                speaker.finish(arguments[0])
            elif step == "said":
                speaker.said(*arguments)
            else:
                for item in "abc" if arguments[0] is None else arguments[0]:
                    if item in speaker.open_items:
                        gone.add(item)
                        flushed[item] += sum(name == item for name, _ in queue)
                queue[:] = [(item, sample) for item, sample in queue if item not in gone]
                speaker.flush(arguments[0])
            for item in "abc":
                counts = speaker.counts(item)
                queued = sum(name == item for name, _ in queue)
                assert counts == Counts(generated[item], heard[item], flushed[item], queued)
                assert counts.generated == counts.heard + counts.flushed + counts.queued
        recorded = np.zeros(len(tape), np.int16)
        for start, samples in speaker.recorded:
            assert not recorded[start : start + len(samples)].any()
            recorded[start : start + len(samples)] = samples
        assert recorded.tolist() == tape
        speaker.close()
        total = speaker.totals
        played = details(journal, "played")
        assert round(sum(d["heard"] for d in played) * RATE) == total.heard
        assert round(sum(d["flushed"] for d in played) * RATE) == total.flushed
        assert round(sum(d["queued"] for d in played) * RATE) == total.queued
        assert round(sum(d["seconds"] for d in details(journal, "generated")) * RATE) == total.generated
        assert [e["t"] for e in journal.events] == sorted(e["t"] for e in journal.events)

    play(test)
