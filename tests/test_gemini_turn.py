"""One turn of the simulated Gemini model, without a socket: what is sent when, and what counts as heard."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from voicekit.clock import run_blocking
from voicekit.simulator.gemini_turn import Turn
from voicekit.steps import Speak

WORDS = ["One ", "two ", "three."]


class Voice:
    """A word a second."""

    def pieces(self, text: str, _lengths_ms: Any) -> list[tuple[str, bytes]]:
        return [(word, bytes(48_000)) for word in text.replace(" ", " |").split("|")]


def turn(sent: list[Any], over: Any = lambda: None) -> Turn:
    return Turn(
        sent.append,
        Voice(),  # type: ignore[arg-type]
        lengths_ms=(1000,),
        speed=5.0,
        transcribed=True,
        propose=lambda calls: False,
        waits=lambda: None,
        over=over,
    )


@pytest.mark.parametrize(
    ("seconds", "heard"), [(0.0, ""), (0.9, ""), (1.0, "One "), (2.9, "One two "), (3.0, "One two three.")]
)
def test_a_word_counts_as_heard_when_its_piece_has_been_heard(seconds: float, heard: str) -> None:
    async def main() -> str:
        talk = turn([])
        talk.add([Speak("".join(WORDS))])
        await asyncio.sleep(seconds)
        return talk.stop()

    assert run_blocking(main) == heard


def test_nothing_follows_a_stop_and_it_is_silent_at_once() -> None:
    async def main() -> list[Any]:
        sent: list[Any] = []
        talk = turn(sent, over=lambda: sent.append("over"))
        talk.add([Speak("".join(WORDS)), Speak("Four.")])
        await asyncio.sleep(0.3)
        assert talk.is_speaking
        talk.stop()
        assert not talk.is_speaking
        there = len(sent)
        await asyncio.sleep(10.0)
        assert len(sent) == there
        return sent

    assert run_blocking(main)


def test_sentences_are_kept_apart_and_the_end_comes_when_all_has_been_heard() -> None:
    async def main() -> tuple[list[str], float]:
        sent: list[Any] = []
        ended: list[float] = []
        loop = asyncio.get_running_loop()
        talk = turn(sent, over=lambda: ended.append(loop.time()))
        talk.add([Speak("One."), Speak("Two.")])
        await asyncio.sleep(10.0)
        contents = [frame["serverContent"] for frame in sent]
        return [each["outputTranscription"]["text"] for each in contents if "outputTranscription" in each], ended[0]

    words, end = run_blocking(main)
    assert words == ["One.", " Two."]
    assert end == pytest.approx(2.0)
