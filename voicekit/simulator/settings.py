"""What a simulated service is started with: seed, contradicting claims chosen, injected faults."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from voicekit.audio import Clip, clips
from voicekit.simulator.profile import Profile

# What can be made to go wrong; the endpoint of each provider says what it means there.
FAULTS = (
    "close", "close_1008_on_audio_during_call", "delegations", "duplicate_call", "extra_argument", "garbage_after_s",
    "goaway_after_s", "late_response", "no_setup_complete", "orphan_late_result", "promise_without_call", "second_id",
    "second_message", "short_by_ms", "stall_after_call", "stall_after_s", "truncate_arguments", "unknown_tool",
    "unspoken",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The same settings give the same session, to the microsecond. Raises ValueError for a fault nobody knows.

    claims           which of two contradicting claims to follow, e.g. {"interrupt_while_caller_speaks": "speaks_over"}
    chunk_ms         length of one piece of agent audio
    session_seconds  the service ends the session after this long (None: the vendor's limit)
    faults           misbehaviour to inject, by name; each endpoint documents those it knows
    clips            the sentences the ears know
    detector         what they tell speech from noise by: "speech" or "energy" (`vad.DETECTORS`)
    """

    seed: int = 0
    claims: Mapping[str, str] = field(default_factory=dict)
    chunk_ms: int = 100
    language: str = "en"
    session_seconds: float | None = None
    faults: Mapping[str, Any] = field(default_factory=dict)
    clips: Mapping[str, Clip] = field(default_factory=clips)
    detector: str = "speech"

    def __post_init__(self) -> None:
        unknown = sorted(set(self.faults) - set(FAULTS))
        if unknown:
            raise ValueError(f"unknown fault {unknown[0]!r}; known: {', '.join(FAULTS)}")

    def fit(self, ears: Callable[..., Any]) -> Callable[..., Any]:
        """The same ears, with the detector of these settings."""
        return ears if self.detector == "speech" else functools.partial(ears, detector=self.detector)

    def profile(self, model: str) -> Profile:
        """The profile of `model`. Raises ValueError for an unknown model, or a claim that nobody makes of it."""
        return Profile.load(model, self.claims)

    def random(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose, so that one more draw in one place moves nothing elsewhere."""
        return random.Random(f"{self.seed}/{purpose}")
