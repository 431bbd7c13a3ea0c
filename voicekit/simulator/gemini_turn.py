"""One turn of a simulated Gemini Live model: generated faster than real time, heard by the caller in real time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from voicekit.audio import RATE
from voicekit.simulator.voice import Voice
from voicekit.simulator.wire import gemini_frames as frames
from voicekit.steps import CallTool, Speak


class Turn:
    """Sends the audio, transcript and calls of the model's steps, then `generationComplete`, then calls `over`.

    `propose(calls)` sends calls made together and says whether the turn must wait for their results; `waits()` comes
    when it does so and the audio sent so far would have been played, `over()` when all of it would have been ("when the
    model assumes realtime playback there will be delay between generation_complete and turn_complete", google-genai
    types.py). `lengths_ms` are those of the pieces of audio, the last for all further ones; `speed` is seconds of audio
    generated per second. `waiting`: suspended until `add` brings the steps that follow the results.
    """

    def __init__(
        self,
        send: Callable[[frames.Frame], None],
        voice: Voice,
        *,
        lengths_ms: Sequence[int],
        speed: float,
        transcribed: bool,
        propose: Callable[[list[CallTool]], bool],
        waits: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self._send, self._voice, self._propose = send, voice, propose
        self._waits, self._over = waits, over
        self._lengths_ms, self._speed, self._transcribed = lengths_ms, speed, transcribed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._steps: deque[Speak | CallTool] = deque()
        self._pieces: deque[tuple[str, bytes]] = deque()
        self._sent: list[tuple[float, str]] = []  # when each piece has been heard, and its words
        self._due = 0.0  # when the next piece is generated
        self._heard_until = 0.0  # when the audio sent so far has been played
        self._samples = 0
        self.waiting = False

    @property
    def is_speaking(self) -> bool:
        """Whether the caller hears the model now, or is about to."""
        return bool(self._pieces) or self._loop.time() < self._heard_until

    @property
    def audio_seconds(self) -> float:
        """Length of all audio sent in this turn."""
        return self._samples / RATE

    def add(self, steps: Iterable[Speak | CallTool]) -> None:
        """Take (further) steps and begin with them at once."""
        self.waiting = False
        if self._timer is not None:
            self._timer.cancel()
        self._sent.clear()
        self._steps.extend(steps)
        self._advance()

    def stop(self) -> str:
        """Stop for good. Returns the words heard so far of what was last said."""
        if self._timer is not None:
            self._timer.cancel()
        self._steps.clear()
        self._pieces.clear()
        now = self._loop.time()
        self._heard_until = min(self._heard_until, now)
        return "".join(words for end, words in self._sent if end <= now + 1e-6)

    def _advance(self) -> None:
        while not self._pieces and self._steps:
            step = self._steps.popleft()
            if isinstance(step, Speak):
                pieces = self._voice.pieces(step.text, self._lengths_ms)
                if self._samples and pieces:  # one transcript per turn: sentences are kept apart
                    pieces[0] = (f" {pieces[0][0]}", pieces[0][1])
                self._pieces.extend(pieces)
                self._due = self._loop.time()
            elif self._propose([step, *self._calls_beside()]):
                self.waiting = True  # what is left to say comes when the results are in
                self._once_played(self._waits)
                return
        if self._pieces:
            self._say(*self._pieces.popleft())
            self._timer = self._loop.call_at(self._due, self._advance)
            return
        self._send(frames.content(generationComplete=True))
        self._once_played(self._over)

    def _once_played(self, action: Callable[[], None]) -> None:
        if self.is_speaking:
            self._timer = self._loop.call_at(self._heard_until, action)
        else:
            action()

    def _calls_beside(self) -> list[CallTool]:
        calls = []
        while self._steps and isinstance(self._steps[0], CallTool):
            calls.append(self._steps.popleft())
        return calls  # type: ignore[return-value]

    def _say(self, words: str, pcm: bytes) -> None:
        self._send(frames.audio(pcm))
        if words and self._transcribed:
            self._send(frames.content(outputTranscription={"text": words}))
        seconds = len(pcm) / 2 / RATE
        start = max(self._heard_until, self._loop.time())
        self._heard_until = start + seconds
        self._sent.append((self._heard_until, words))
        self._due += seconds / self._speed
        self._samples += len(pcm) // 2
