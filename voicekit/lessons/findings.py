"""What a check of an exercise says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Findings:
    """What a check found. True when nothing is missing; prints as one line per finding."""

    findings: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.findings

    def __repr__(self) -> str:
        return "\n".join(f"Still missing: {f}" for f in self.findings) or "Done: nothing is missing."
