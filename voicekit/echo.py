"""The caller's microphone: it hears the loudspeaker too, and what is only that is kept from the provider.

A fixed threshold cannot tell echo from a caller who speaks softly. What can: the echo is a fainter copy of what was
just played, and a caller is not. So each frame is compared with the last 400 ms of playout, and one that is mostly a
delayed copy of it is sent without that copy. One delay and one gain per frame are enough for a line; a room with
reflections needs an echo canceller.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Literal

import numpy as np

from voicekit.audio import RATE, Samples, from_pcm, to_pcm

DELAY_MS = 120  # from loudspeaker to microphone (as streamcoreai/streamcore-server#48)
LOOK_BACK_MS = 400  # the playout a frame is compared with (the same report)
COPY = 0.5  # share of a frame's energy that a copy of the playout explains, from which on it is taken out

Played = Callable[[int, int], Samples]
Guard = Literal["compare", "none"]


class Microphone:
    """Takes the caller's frames in order and sends what the microphone picks up; used in place of `send`.

    played    `Speaker.between`
    echo_db   level of the echo relative to the playout, in dB (0.2 of it is -14); None: there is none
    guard     "compare": echo is taken out as above. "none": everything is sent
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        played: Played,
        now: Callable[[], float],
        *,
        echo_db: float | None = None,
        guard: Guard = "compare",
    ) -> None:
        self._send, self._played, self._now = send, played, now
        self._gain = None if echo_db is None else 10.0 ** (echo_db / 20.0)
        self._guard = guard
        self._end: int | None = None  # session sample at which the last frame ended
        self.taken_out = 0
        """Frames from which echo was removed."""

    async def __call__(self, pcm: bytes) -> None:
        if self._gain is not None:
            pcm = self._pick_up(pcm, self._gain)
        await self._send(pcm)

    def _pick_up(self, pcm: bytes, gain: float) -> bytes:
        frame = from_pcm(pcm)
        start = round(self._now() * RATE) - len(frame) if self._end is None else self._end
        self._end = start + len(frame)
        delay = DELAY_MS * RATE // 1000
        echo = gain * self._played(start - delay, self._end - delay).astype(np.float64)
        heard = frame + echo
        if self._guard == "compare" and np.any(heard):
            back = LOOK_BACK_MS * RATE // 1000
            rest = without_copy(heard, self._played(start - back, self._end).astype(np.float64))
            self.taken_out += rest is not heard
            heard = rest
        return to_pcm(np.clip(np.round(heard), -32768, 32767).astype(np.int16))


def without_copy(frame: np.ndarray, played: np.ndarray) -> np.ndarray:
    """`frame` less its best copy of `played`, a longer stretch that ends with it; the frame itself if it is no copy."""
    n, lags = len(frame), len(played) - len(frame) + 1
    powers = np.concatenate(([0.0], np.cumsum(np.square(played))))
    power = powers[n:] - powers[:lags]  # of the n samples of `played` at each lag
    if power.max(initial=0.0) <= 0:
        return frame
    size = 2 ** math.ceil(math.log2(len(played) + n))
    spectrum = np.fft.rfft(played, size) * np.conj(np.fft.rfft(frame, size))
    products = np.fft.irfft(spectrum, size)[:lags]
    explained = np.where(power > 1e-6 * power.max(), np.square(products) / np.maximum(power, 1e-9), 0.0)
    lag = int(explained.argmax())
    if explained[lag] < COPY * float(frame @ frame):
        return frame
    rest: np.ndarray = frame - products[lag] / power[lag] * played[lag : lag + n]
    return rest
