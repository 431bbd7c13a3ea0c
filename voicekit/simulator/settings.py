"""What a simulated service is started with: seed, contradicting claims chosen, injected faults."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from voicekit.audio import Clip, clips
from voicekit.simulator.profile import Profile


@dataclass(frozen=True)
class Settings:
    """The same settings give the same session, to the microsecond.

    claims           which of two contradicting claims to follow, e.g. {"interrupt_while_caller_speaks": "speaks_over"}
    chunk_ms         length of one piece of agent audio
    session_seconds  the service ends the session after this long (None: the vendor's limit)
    faults           misbehaviour to inject, by name; each endpoint documents those it knows
    clips            the sentences the ears know
    """

    seed: int = 0
    claims: Mapping[str, str] = field(default_factory=dict)
    chunk_ms: int = 100
    language: str = "en"
    session_seconds: float | None = None
    faults: Mapping[str, Any] = field(default_factory=dict)
    clips: Mapping[str, Clip] = field(default_factory=clips)

    def profile(self, model: str) -> Profile:
        """The profile of `model`. Raises ValueError for an unknown model, or a claim that nobody makes of it."""
        return Profile.load(model, self.claims)

    def random(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose, so that one more draw in one place moves nothing elsewhere."""
        return random.Random(f"{self.seed}/{purpose}")
