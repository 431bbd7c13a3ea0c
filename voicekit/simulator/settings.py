"""What a simulated service is started with: seed, contradicting claims chosen, injected faults."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from voicekit.audio import Clip, clips
from voicekit.simulator.injection import check_faults
from voicekit.simulator.mishearing import Mishearing, rates_of
from voicekit.simulator.profile import Profile


@dataclass(frozen=True)
class Settings:
    """The same settings give the same session, to the microsecond.

    Raises ValueError for an unknown fault or an impossible value of one, and for a mishearing of an unknown clip.

    claims           which of two contradicting claims to follow, e.g. {"interrupt_while_caller_speaks": "speaks_over"}
    session_seconds  the service ends the session after this long (None: the vendor's limit)
    faults           misbehaviour to inject, by name; each endpoint documents those it knows, mishearing.py "mishear"
    clips            the sentences the ears know
    detector         what they tell speech from noise by: "speech" or "energy" (`vad.DETECTORS`)
    """

    seed: int = 0
    claims: Mapping[str, str] = field(default_factory=dict)
    language: str = "en"
    session_seconds: float | None = None
    faults: Mapping[str, Any] = field(default_factory=dict)
    clips: Mapping[str, Clip] = field(default_factory=clips)
    detector: str = "speech"

    def __post_init__(self) -> None:
        check_faults(self.faults)
        if "mishear" in self.faults:
            rates_of(self.faults["mishear"], self.clips)  # said now, not in the middle of a session

    def fit(self, ears: Callable[..., Any]) -> Callable[..., Any]:
        """The same ears, with the detector of these settings, and what they mishear in this session."""
        options: dict[str, Any] = {} if self.detector == "speech" else {"detector": self.detector}
        if "mishear" in self.faults:
            options["report"] = Mishearing(self.faults["mishear"], self.clips, self.random("mishear"))
        return functools.partial(ears, **options) if options else ears

    def profile(self, model: str) -> Profile:
        """The profile of `model`. Raises ValueError for an unknown model, or a claim that nobody makes of it."""
        return replace(Profile.load(model, self.claims), seed=self.seed)

    def random(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose, so that one more draw in one place moves nothing elsewhere."""
        return random.Random(f"{self.seed}/{purpose}")
