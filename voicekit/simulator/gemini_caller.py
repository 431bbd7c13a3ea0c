"""The caller's side of a simulated Gemini Live session: audio in, beginnings and ends of their speech out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from voicekit.audio import Clip
from voicekit.simulator.ears import Ears, Ended, Started
from voicekit.simulator.wire.gemini_live import INPUT_RATE, Audio, Setup
from voicekit.understanding import Utterance

STEP_MS = 100
DETECTOR_LAG_MS = 1000


class Caller:
    """Feeds the ears and calls `started()` when speech begins and `ended(utterance)` when it is over.

    With automatic detection disabled the client marks its activity; `utterance` is None when it marked one in which
    nothing was said.
    """

    def __init__(
        self,
        clips: Mapping[str, Clip],
        setup: Setup,
        *,
        ears: Callable[..., Ears],
        started: Callable[[], None],
        ended: Callable[[Utterance | None], None],
    ) -> None:
        self._clips, self._setup, self._make_ears = clips, setup, ears
        self._started, self._ended = started, ended
        self._ears: Ears | None = None
        self._rate = INPUT_RATE
        self._odd_byte = b""
        self._marked = False  # between activityStart and activityEnd

    @property
    def is_speaking(self) -> bool:
        return self._marked or (self._setup.automatic and self._ears is not None and self._ears.speaking)

    @property
    def spoken_seconds(self) -> float:
        """How long the caller has been speaking; endless when the client said so itself."""
        if self._marked or self._ears is None:
            return float("inf") if self._marked else 0.0
        return self._ears.spoken_ms / 1000

    def hear(self, audio: Audio) -> None:
        if not (self._setup.automatic or self._marked):
            return  # what is not marked as activity is not part of a turn
        ears = self._ears or self._open_ears(audio.rate)
        pcm = self._odd_byte + audio.pcm
        cut = len(pcm) // 2 * 2
        pcm, self._odd_byte = pcm[:cut], pcm[cut:]
        self._report(ears.feed(pcm))

    def mark(self, kind: str) -> None:
        """activityStart, activityEnd or audioStreamEnd, as far as it applies to the way activity is detected."""
        if kind == "start" and not self._marked:
            self._marked = True
            self._started()
        elif kind == "end" and self._marked:
            self._marked = False
            utterance = self._ears.commit() if self._ears is not None else Utterance()
            self._ended(utterance if utterance.seconds else None)
        elif kind == "stream_end" and self._setup.automatic and self._ears is not None and self._ears.speaking:
            # The microphone is off: the silence that would have ended the utterance is taken as heard. Some more than
            # that, because a detector notices silence a little late.
            for _ in range((self._setup.silence_ms + DETECTOR_LAG_MS) // STEP_MS):
                if self._ears.speaking:
                    self._report(self._ears.feed(bytes(2 * (self._rate * STEP_MS // 1000))))

    def _open_ears(self, rate: int) -> Ears:
        setup, self._rate = self._setup, rate
        self._ears = self._make_ears(
            self._clips, rate, silence_ms=setup.silence_ms, prefix_ms=setup.prefix_ms, threshold=setup.threshold
        )
        self._ears.automatic = setup.automatic
        return self._ears

    def _report(self, events: list[Started | Ended]) -> None:
        for event in events:
            if isinstance(event, Started):
                self._started()
            else:
                self._ended(event.utterance)
