"""The scripted caller: exact positions in the stream, cues, and a microphone that keeps its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voicekit import audio
from voicekit.audio import RATE, Clip, from_pcm
from voicekit.caller import Caller, Line
from voicekit.clock import run_blocking
from voicekit.journal import Journal
from voicekit.speaker import Speaker

Send = Callable[[bytes], Awaitable[None]]


@pytest.fixture
def clips(tmp_path: Path) -> dict[str, Clip]:
    """Sentences that are ramps: every sample is different, none is silent. a: 1 s, b: 0.5 s, c: 10 001 samples."""
    found = {}
    for name, length in (("a", RATE), ("b", RATE // 2), ("c", 10_001)):
        audio.write(tmp_path / f"{name}.flac", (np.arange(length) % 20_000 + 5000).astype(np.int16))
        found[name] = Clip(name, tmp_path / f"{name}.flac", transcript=f"This is {name}.")
    return found


class Talk:
    """A caller, a loudspeaker and what was sent: (time, frame)."""

    def __init__(self, lines: list[Line], clips: dict[str, Clip], **options: Any) -> None:
        self.now = asyncio.get_running_loop().time
        self.journal = Journal(self.now)
        self.speaker = Speaker(self.journal, self.now)
        self.sent: list[tuple[float, bytes]] = []
        options = {"frame_ms": 20, "now": self.now, "when_heard": self.speaker.when_heard, **options}
        self.caller = Caller(lines, clips, self.journal, self.send, **options)

    async def send(self, pcm: bytes) -> None:
        self.sent.append((self.now(), pcm))

    async def run(self, seconds: float) -> None:
        asyncio.get_running_loop().call_at(seconds, self.caller.stop)
        await self.caller.run()

    def at(self, seconds: float, action: Callable[..., Any], *arguments: Any) -> None:
        asyncio.get_running_loop().call_at(seconds, action, *arguments)

    def say(self, seconds: float, item: str, length: float, text: str = "") -> None:
        """The agent's speech `item` arrives whole at `seconds`."""

        def arrive() -> None:
            self.speaker.play(item, np.full(round(length * RATE), 8000, np.int16).tobytes())
            self.speaker.said(item, text)
            self.speaker.finish(item)

        self.at(seconds, arrive)

    def tool(self, seconds: float, kind: str) -> None:
        self.at(seconds, lambda: self.journal.add("tool", kind, call_id="call_1"))

    @property
    def starts(self) -> list[tuple[str, float]]:
        return [(e["item"], e["t"]) for e in self.journal.events if e["kind"] == "speech_start"]

    @property
    def stream(self) -> np.ndarray[Any, Any]:
        return from_pcm(b"".join(pcm for _, pcm in self.sent))


def talk(
    lines: list[Line],
    clips: dict[str, Clip],
    prepare: Callable[[Talk], None] = lambda talk: None,
    seconds: float = 20.0,
    **options: Any,
) -> Talk:
    async def main() -> Talk:
        held = Talk(lines, clips, **options)
        prepare(held)
        await held.run(seconds)
        return held

    return run_blocking(main)


@pytest.mark.parametrize("frame_ms", [10, 20, 50, 100])
def test_an_utterance_begins_at_its_very_sample_whatever_the_frames(clips: dict[str, Clip], frame_ms: int) -> None:
    held = talk([Line("a", at=0.5), Line("c", at=2.0121)], clips, seconds=4.0, frame_ms=frame_ms)
    expected = np.zeros(4 * RATE, np.int16)
    expected[12_000 : 12_000 + RATE] = clips["a"].samples
    expected[48_291 : 48_291 + 10_001] = clips["c"].samples  # 2.0121 s is inside sample 48 290
    assert held.stream.tolist() == expected[: len(held.stream)].tolist()
    assert len(held.stream) >= 4 * RATE - RATE * frame_ms // 1000
    assert held.starts == [("a", 0.5), ("c", 2.012125)]


def test_frames_leave_on_absolute_deadlines_and_silence_is_one_object(clips: dict[str, Clip]) -> None:
    held = talk([Line("b", at=1.0)], clips, seconds=10.001)
    assert [t for t, _ in held.sent] == [round(0.02 * (n + 1), 6) for n in range(500)]
    assert held.caller.samples_sent == 240_000
    silent = {id(pcm) for t, pcm in held.sent if t <= 1.0 or t > 1.52}
    assert len(silent) == 1
    ((start, samples),) = held.caller.recorded
    assert start == 0 and samples.tolist() == held.stream.tolist()


def test_a_late_frame_catches_up_without_drift(clips: dict[str, Clip]) -> None:
    async def main() -> Talk:
        held = Talk([Line("a", at=0.5)], clips)
        plain = held.send

        async def send(pcm: bytes) -> None:
            await plain(pcm)
            if len(held.sent) == 10:
                await asyncio.sleep(0.33)

        held.caller._send = send
        await held.run(2.001)
        return held

    held = run_blocking(main)
    times = [t for t, _ in held.sent]
    assert times[9:28] == pytest.approx([0.2] + [0.53] * 16 + [0.54, 0.56])  # 0.22 to 0.52 come at once
    assert len(times) == 100
    assert held.stream[12_000 : 12_000 + RATE].tolist() == clips["a"].samples.tolist()


@pytest.mark.parametrize(
    ("line", "said_at"),
    [
        (Line("b", after="agent_starts", seconds=0.25), 3.25),
        (Line("b", after="agent_stops", seconds=0.25), 6.25),  # the second item follows the first without a gap
        (Line("b", after="agent_done", seconds=0.25), 9.25),
        (Line("b", after="tool_starts", seconds=0.8), 2.8),
        (Line("b", after="tool_done"), 2.505),
        (Line("b", after="heard_text", text="two"), 3.0 + 2.0 * 7 / 19),
        (Line("b", after="heard_text", text="FIVE."), 6.0),
        (Line("b", seconds=0.1), 1.6),
        (Line("b", at=1.0), 1.5),  # not before the line before has ended
    ],
)
def test_cues(clips: dict[str, Clip], line: Line, said_at: float) -> None:
    def prepare(held: Talk) -> None:
        held.tool(0.2, "running")  # before the first line: no cue for the second
        held.tool(0.3, "done")
        held.say(0.1, "early", 0.3, "two five.")
        held.tool(2.0, "running")
        held.tool(2.505, "done")
        held.say(3.0, "item_1", 2.0, "One two three four.")
        held.say(3.5, "item_2", 1.0, "Five.")
        held.say(8.0, "item_3", 1.0, "Six.")
        held.caller.busy = lambda: held.now() < 8.5

    held = talk([Line("a", at=0.5), line], clips, prepare, seconds=12.0)
    assert held.starts == [("a", 0.5), ("b", pytest.approx(said_at, abs=5e-5))]


def test_a_cue_may_come_while_the_line_before_is_still_said(clips: dict[str, Clip]) -> None:
    held = talk([Line("a", at=0.5), Line("b", after="tool_starts")], clips, lambda held: held.tool(1.0, "running"))
    assert held.starts == [("a", 0.5), ("b", 1.5)]
    assert held.stream[36_000 : 36_000 + RATE // 2].tolist() == clips["b"].samples.tolist()


def test_lines_that_meet_inside_a_frame_lose_no_sample(clips: dict[str, Clip]) -> None:
    held = talk([Line("c"), Line("c"), Line("b")], clips, seconds=2.0, frame_ms=100)
    expected = [*clips["c"].samples, *clips["c"].samples, *clips["b"].samples]
    assert held.stream[: len(expected)].tolist() == expected
    kinds = [(e["kind"], e["item"]) for e in held.journal.events]
    assert kinds == [(kind, item) for item in "ccb" for kind in ("speech_start", "speech_stop")]


def test_agent_done_waits_for_an_answer_not_for_the_end_of_what_was_interrupted(clips: dict[str, Clip]) -> None:
    def prepare(held: Talk) -> None:
        held.say(2.0, "item_1", 10.0)
        held.at(3.3, held.speaker.flush)  # "b" is said from 3.0 to 3.5 and interrupts
        held.at(4.0, lambda: held.journal.add("session", "speech_stopped"))
        held.say(4.5, "item_2", 1.0)

    lines = [Line("a", at=0.5), Line("b", at=3.0), Line("c", after="agent_done", seconds=0.5)]
    assert talk(lines, clips, prepare).starts == [("a", 0.5), ("b", 3.0), ("c", 6.0)]


def test_agent_done_looks_again_when_something_happens_and_when_asked(clips: dict[str, Clip]) -> None:
    def prepare(held: Talk) -> None:
        held.caller.busy = lambda: held.now() < 4.0
        held.say(2.0, "item_1", 1.0)
        held.at(5.0, held.caller.look)

    assert talk([Line("a", at=0.5), Line("b", after="agent_done")], clips, prepare).starts[1] == ("b", 5.0)


def test_speech_that_was_never_audible_is_no_stop(clips: dict[str, Clip]) -> None:
    def prepare(held: Talk) -> None:
        held.at(2.0, lambda: (held.speaker.play("item_1", bytes(4800)), held.speaker.flush()))
        held.say(4.0, "item_2", 1.0)

    assert talk([Line("a", at=0.5), Line("b", after="agent_stops")], clips, prepare).starts[1] == ("b", 5.0)


def test_a_cue_that_never_comes_is_not_waited_for(clips: dict[str, Clip]) -> None:
    held = talk([Line("a", at=0.5), Line("b", after="tool_starts", seconds=9.0, patience=4.0)], clips)
    assert held.starts == [("a", 0.5), ("b", 5.5)]
    (event,) = [e for e in held.journal.events if e["lane"] == "decision"]
    assert (event["t"], event["kind"], event["item"]) == (5.5, "cue_missed", "b")
    assert "tool_starts" in event["text"] and "4 s" in event["text"]


def test_a_text_is_recognised_without_a_speaker_when_its_item_has_ended(clips: dict[str, Clip]) -> None:
    lines = [Line("a", at=0.5), Line("b", after="heard_text", text="two")]
    held = talk(lines, clips, lambda held: held.say(2.0, "item_1", 2.0, "One two three."), when_heard=None)
    assert held.starts[1] == ("b", 4.0)


def test_words_heard_before_the_line_before_are_no_cue(clips: dict[str, Clip]) -> None:
    def prepare(held: Talk) -> None:
        held.say(1.0, "item_1", 4.0, "One two three four.")
        held.say(8.0, "item_2", 1.0, "Two.")

    lines = [Line("a", after="heard_text", text="two"), Line("b", after="heard_text", text="two")]
    assert [t for _, t in talk(lines, clips, prepare).starts] == pytest.approx([1.0 + 4.0 * 7 / 19, 8.75], abs=5e-5)


def test_nothing_begins_after_hanging_up(clips: dict[str, Clip]) -> None:
    held = talk([Line("a", at=1.05)], clips, seconds=1.01, frame_ms=100)
    assert held.starts == []


def test_journal_and_state(clips: dict[str, Clip]) -> None:
    def prepare(held: Talk) -> None:
        held.at(1.0, lambda: states.append((held.caller.is_speaking, held.caller.finished)))
        held.at(1.6, lambda: states.append((held.caller.is_speaking, held.caller.finished)))
        held.journal.listen(lambda event: seen.append((event["kind"], held.caller.finished)))

    states: list[tuple[bool, bool]] = []
    seen: list[tuple[str, bool]] = []
    held = talk([Line("a", at=0.5)], clips, prepare, seconds=3.0)
    assert states == [(True, False), (False, True)]
    assert seen == [("speech_start", False), ("speech_stop", True)]
    start, stop = held.journal.events
    assert (start["item"], start["text"], stop["t"]) == ("a", "This is a.", 1.5)
    assert start["detail"] == stop["detail"] == {"start": 0.5, "stop": 1.5, "audible": [[0.5, 1.5]]}
    assert held.caller.last_speech_end == 1.5


def test_hanging_up_ends_the_utterance_with_what_was_sent(clips: dict[str, Clip]) -> None:
    held = talk([Line("a", at=0.5), Line("b", after="agent_done")], clips, seconds=1.01)
    (stop,) = [e for e in held.journal.events if e["kind"] == "speech_stop"]
    assert stop["detail"]["stop"] == 1.0 and stop["detail"]["audible"] == [[0.5, 1.0]]
    assert len(held.stream) == RATE
    assert not held.caller.is_speaking and not held.caller.finished


def test_an_error_of_the_connection_ends_the_run_and_leaves_no_timer(clips: dict[str, Clip]) -> None:
    async def main() -> list[tuple[str, float]]:
        held = Talk([Line("a", at=0.5), Line("b", after="tool_starts", patience=2.0)], clips)

        async def send(pcm: bytes) -> None:
            if held.now() > 0.9:
                raise ConnectionError("gone")

        held.caller._send = send
        with pytest.raises(ConnectionError):
            await held.caller.run()
        await asyncio.sleep(10.0)
        assert not held.caller.is_speaking
        return held.starts

    assert run_blocking(main) == [("a", 0.5)]


def test_the_microphone_may_be_opened_later_than_the_session(clips: dict[str, Clip]) -> None:
    async def main() -> Talk:
        held = Talk([Line("b", at=2.0)], clips)
        await asyncio.sleep(1.2345)
        await held.run(3.0)
        return held

    held = run_blocking(main)
    ((start, samples),) = held.caller.recorded
    assert start == 29_628
    assert samples[48_000 - start : 60_000 - start].tolist() == clips["b"].samples.tolist()
    assert held.starts == [("b", 2.0)]


def test_in_real_time_the_stream_is_as_exact(clips: dict[str, Clip]) -> None:
    async def main() -> Talk:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        held = Talk([Line("c", at=0.07)], clips, now=lambda: loop.time() - begin)
        loop.call_later(0.6, held.caller.stop)
        await held.caller.run()
        return held

    held = run_blocking(main, "real")
    ((first, samples),) = held.caller.recorded
    (stop,) = [e for e in held.journal.events if e["kind"] == "speech_stop"]
    start = round(stop["detail"]["start"] * RATE)
    assert start >= 1680
    assert samples[start - first : start - first + 10_001].tolist() == clips["c"].samples.tolist()


def test_noise_has_the_level_asked_for_and_is_the_same_for_a_seed(clips: dict[str, Clip]) -> None:
    line = Line("b", at=1.0)
    first, again, other = (talk([line], clips, seconds=3.0, noise_db=-40.0, seed=seed) for seed in (1, 1, 2))
    assert first.sent == again.sent
    assert first.sent != other.sent
    assert audio.dbfs(first.stream[36_000:]) == pytest.approx(-40.0, abs=0.2)
    speech = first.stream[24_000:36_000].astype(int) - clips["b"].samples
    assert audio.dbfs(speech) == pytest.approx(-40.0, abs=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"after": "agent_sings"}, "after is one of agent_starts"),
        ({"at": 1.0, "after": "tool_done"}, "not both"),
        ({"after": "heard_text"}, "belong together"),
        ({"text": "hello"}, "belong together"),
        ({"at": -1.0}, "at is a number of seconds from 0 on"),
        ({"seconds": float("nan")}, "seconds is a number of seconds from 0 on"),
        ({"after": "tool_done", "patience": float("inf")}, "patience is a number of seconds from 0 on"),
    ],
)
def test_a_line_that_cannot_be_said_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"line 'a': .*{message}"):
        Line("a", **arguments)


def test_an_unknown_clip_is_refused_before_anything_is_sent(clips: dict[str, Clip]) -> None:
    with pytest.raises(ValueError, match="unknown clip 'z'; known: a, b, c"):
        talk([Line("z")], clips)
