"""How long a mock tool takes, and what goes wrong in it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal, get_args

FaultKind = Literal["error", "time_out", "late_commit", "empty", "wrong_shape"]


@dataclass(frozen=True)
class Latency:
    """Seconds a tool takes: log-normal around `median`; about two thirds lie within a factor of 1 ± `spread`.

    A log-normal has no negative values and a long tail, which is what response times of services look like.
    """

    median: float
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not (self.median >= 0 and self.spread >= 0):
            raise ValueError(f"a latency has a median and a spread of at least 0, not {self.median!r}, {self.spread!r}")

    def draw(self, random_: random.Random) -> float:
        """Draw seconds, rounded to the millisecond."""
        return round(self.median * math.exp(random_.gauss(0.0, self.spread)), 3)


@dataclass(frozen=True)
class Fault:
    """What goes wrong in a call.

    error         the tool reports an error; nothing was done
    time_out      it never answers; nothing was done
    late_commit   it never answers, and does it all the same, `seconds` after the start
    empty         it does it and answers {}
    wrong_shape   it does it and answers with a list
    """

    kind: FaultKind
    seconds: float | None = None

    @classmethod
    def of(cls, text: str) -> Fault:
        """Read a fault from text: "error", "late_commit 3". Raises ValueError for one that does not exist."""
        kind, _, seconds = text.partition(" ")
        return cls(kind, float(seconds) if seconds else None)  # type: ignore[arg-type] # `__post_init__` looks at it

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise ValueError(f"a fault is one of {', '.join(get_args(FaultKind))}, not {self.kind!r}")
        if (self.kind == "late_commit") != (self.seconds is not None):
            raise ValueError('only a late commit has seconds, and needs them, as in "late_commit 3"')
