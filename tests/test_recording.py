"""The mixed recording, its labels, and the second measurement from the sound alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talks import talk

import voicekit as vk
from voicekit import recording
from voicekit.audio import RATE, clips, to_pcm
from voicekit.caller import Caller, Line
from voicekit.clock import run_blocking
from voicekit.journal import Journal, read_jsonl, write_jsonl
from voicekit.recording import audible_from, audio_check, audio_intervals, journal_intervals, mix
from voicekit.speaker import Speaker


def sound(seconds: float, level: int = 8000) -> np.ndarray[Any, np.dtype[np.int16]]:
    return np.full(round(seconds * RATE), level, np.int16)


Held = tuple[list[dict[str, Any]], np.ndarray[Any, Any]]


def conversation(noise_db: float | None = None, offset: float = 0.0) -> Held:
    """A question, an answer that is interrupted, a second question, a second answer; shipped clips on both sides."""
    known = clips()

    async def main() -> Held:
        now = asyncio.get_running_loop().time
        journal = Journal(now)
        speaker = Speaker(journal, now)

        async def send(pcm: bytes) -> None:
            pass

        lines = [Line("order_status", at=0.5), Line("opening_hours", at=8.0 + offset)]
        caller = Caller(lines, known, journal, send, now=now, noise_db=noise_db)
        running = asyncio.create_task(caller.run())
        for item, at, clip in (("item_1", 6.0 + offset, "order_details"), ("item_2", 10.5 + offset, "returns")):
            await asyncio.sleep(at - now())
            speaker.play(item, to_pcm(known[clip].samples))
            speaker.said(item, known[clip].transcript)
            speaker.finish(item)
            if item == "item_1":
                await asyncio.sleep(2.4)
                speaker.flush()
        await asyncio.sleep(3.0)
        caller.stop()
        await running
        speaker.close()
        return journal.events, mix(caller.recorded, speaker.recorded)

    return run_blocking(main)


def test_tracks_lie_at_their_samples() -> None:
    stereo = mix([(2, np.array([1, 2, 3], np.int16))], [(0, np.array([7], np.int16)), (4, np.array([8, 9], np.int16))])
    assert stereo.tolist() == [[0, 7], [0, 0], [1, 0], [2, 0], [3, 8], [0, 9]]
    assert mix([(1, sound(1.0))], [], 0.5).shape == (12_000, 2)
    assert mix([], [], 0.5).tolist() == [[0, 0]] * 12_000


def test_any_text_in_a_run_can_be_saved_and_read_again(tmp_path: Path) -> None:
    odd = "line\u2028paragraph\u2029next\x85half \ud800 a character\r\n"
    path = tmp_path / "events.jsonl"
    for rows in ([], [{"text": odd}, {"text": "and on"}]):
        write_jsonl(path, rows)
        assert read_jsonl(path) == rows
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="line 2: not JSON"):
        read_jsonl(path)
    run = vk.Run.load(talk("quick_lookup", "gpt-realtime").save(tmp_path / "run"))
    run.event_rows[-1]["text"] = run.meta["scenario"] = odd
    assert vk.Run.load(run.save(tmp_path / "odd")).event_rows == run.event_rows


@given(st.integers(0, 100_000), st.lists(st.tuples(st.integers(1, 9000), st.booleans()), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_stretches_of_a_sound_are_those_found_in_the_recording(start: int, parts: list[tuple[int, bool]]) -> None:
    samples = np.concatenate([np.full(length, 9000 if loud else 0, np.int16) for length, loud in parts])
    _, agent = audio_intervals(mix([], [(start, samples)]))
    assert [tuple(stretch) for stretch in audible_from(start, samples)] == agent


@pytest.mark.parametrize("offset", [0.0, 0.00377])
def test_the_recording_says_what_the_journal_says(offset: float) -> None:
    events, stereo = conversation(offset=offset)
    assert set(audio_check(events, stereo).values()) == {0.0}
    assert journal_intervals(events) == audio_intervals(stereo)
    caller, agent = audio_intervals(stereo)
    assert caller[-1][0] < agent[0][1] < caller[-1][1]  # they do overlap, and it is measured
    both = min(agent[0][1], caller[-1][1]) - caller[-1][0]
    assert audio_check(events, np.zeros_like(stereo))["talk_over"] == pytest.approx(1000 * both)


def test_a_pause_between_two_items_is_a_pause_inside_speech() -> None:
    async def main() -> Held:
        now = asyncio.get_running_loop().time
        journal = Journal(now)
        speaker = Speaker(journal, now)
        for item, at in (("a", 1.0), ("b", 1.6), ("c", 2.4)):  # gaps of 0.1 and 0.3 s
            await asyncio.sleep(at - now())
            speaker.play(item, to_pcm(sound(0.5)))
            speaker.finish(item)
        await asyncio.sleep(1.0)
        return journal.events, mix([], speaker.recorded)

    events, stereo = run_blocking(main)
    assert journal_intervals(events)[1] == audio_intervals(stereo)[1] == [(1.0, 2.1), (2.4, 2.9)]


@pytest.mark.parametrize("noise_db", [-60.0, -50.0, -42.0])
def test_noise_on_the_line_moves_the_second_measurement_by_less_than_20_ms(noise_db: float) -> None:
    assert max(audio_check(*conversation(noise_db)).values()) <= 20.0


@pytest.mark.parametrize("milliseconds", [40, -60, 300])
def test_a_track_out_of_place_is_noticed(milliseconds: int) -> None:
    events, stereo = conversation()
    stereo[:, 1] = np.roll(stereo[:, 1], milliseconds * RATE // 1000)
    assert audio_check(events, stereo)["response_latency"] == pytest.approx(abs(milliseconds), abs=10)


def test_a_missing_answer_counts_in_full() -> None:
    events, stereo = conversation()
    stereo[round(10.4 * RATE) :, 1] = 0
    assert audio_check(events, stereo)["response_latency"] > 900


def test_labels_are_an_audacity_track() -> None:
    events, _ = conversation()
    events.append({**events[0], "t": 8.4, "lane": "decision", "kind": "truncate"})
    calls = [
        {"tool": "get_order_status", "state": "done", "started": 5.5, "finished": 5.9},
        {"tool": "never_run", "state": "rejected", "started": None, "finished": None},
    ]
    lines = [line.split("\t") for line in recording.labels(events, calls).splitlines()]
    assert [line[2].split(" (")[0].rsplit(" me")[0] for line in lines] == [
        f"caller: {clips()['order_status'].transcript}", "tool: get_order_status", "agent: Please tell",
        f"caller: {clips()['opening_hours'].transcript}", "decision: truncate",
        f"agent: {clips()['returns'].transcript}",
    ]  # fmt: skip
    assert lines[0][:2] == ["0.500000", f"{0.5 + clips()['order_status'].seconds:.6f}"]
    assert all(float(start) <= float(stop) for start, stop, _ in lines)


def test_captions_hold_what_was_heard_and_are_safe() -> None:
    events = [
        {"t": 3661.5, "lane": "heard", "kind": "played", "item": "i", "call_id": None, "text": "a < b & c\n--> d",
         "detail": {"start": 3660.25, "stop": 3661.5, "unheard": "secret", "audible": []}},
        {"t": 2.0, "lane": "heard", "kind": "played", "item": "j", "call_id": None, "text": "",
         "detail": {"start": 2.0, "stop": 2.0, "unheard": "never", "audible": []}},
    ]  # fmt: skip
    assert recording.vtt(events) == (
        "WEBVTT\n\n01:01:00.250 --> 01:01:01.500\n<v agent>a &lt; b &amp; c --&gt; d\n"
    )


def test_an_empty_run_has_no_stretches() -> None:
    assert audio_intervals(np.zeros((0, 2), np.int16)) == ([], [])
    assert recording.conversation_silences([], []) == []
    assert set(audio_check([], np.zeros((RATE, 2), np.int16)).values()) == {0.0}


def test_a_recorded_run_is_given_again_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = vk.run("quick_lookup", model="gpt-realtime", seed=5)
    run.save(tmp_path / "quick_lookup--gpt-realtime")
    monkeypatch.setenv("VOICEKIT_RUNS", str(tmp_path))
    again = vk.run("quick_lookup", model="gpt-realtime", target="replay")
    assert again.event_rows == run.event_rows and again.values == run.values and again.meta["seed"] == 5
    with pytest.raises(ValueError, match="no recorded run of booking on gpt-realtime; recorded: quick_lookup--gpt"):
        vk.run("booking", model="gpt-realtime", target="replay")
    for changed in ({"tool_seconds": 2.0}, {"policy": vk.Policy()}):
        with pytest.raises(ValueError, match=f"a recorded run is what it was; leave {next(iter(changed))} out"):
            vk.run("quick_lookup", model="gpt-realtime", target="replay", **changed)  # type: ignore[arg-type]
