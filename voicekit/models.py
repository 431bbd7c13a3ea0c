"""What is said of each model, and by whom: the rows of data/models.csv.

Both sides read the same table: the adapters to know what may be sent, the simulator to know how to behave. Where two
pages disagree there are two rows; `use` says which one is followed unless a run chooses the other one
(`claims={"interrupt_while_caller_speaks": "speaks_over"}`).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from voicekit.names import unknown

PROVIDERS = ("openai-realtime", "gemini-live", "gpt-live")


@dataclass(frozen=True)
class Claim:
    """One row: `value` of `property` for `model`, who says so, when, and how good the evidence is.

    evidence: vendor (a page of theirs), typed (in their SDK), third party, derived (computed from a published figure),
    inferred, assumed (nobody published one), measured (from saved live runs, see `lessons.calibrate.claim_line`).
    """

    model: str
    property: str
    value: str
    use: str
    claim: str
    source: str
    date: str
    evidence: str


def data_path(*parts: str) -> Path:
    """Path of a file that ships with the kit: in the checkout's data/, or in the installed package's."""
    here = Path(__file__).resolve().parent
    installed, checkout = here / "data", here.parent / "data"
    return (installed if installed.is_dir() else checkout).joinpath(*parts)


@cache
def claims() -> tuple[Claim, ...]:
    """All rows of data/models.csv."""
    with data_path("models.csv").open(newline="", encoding="utf-8") as file:
        return tuple(Claim(**row) for row in csv.DictReader(file))


def models() -> list[str]:
    """The names of the models the kit knows."""
    return list(dict.fromkeys(claim.model for claim in claims() if claim.model != "*"))


def facts(model: str, choose: Mapping[str, str] | None = None) -> dict[str, Claim]:
    """The claim followed for each property of `model`; `choose` picks another stated value for a property.

    Raises ValueError for an unknown model, property or value, naming the known ones.
    """
    if model not in models():
        raise ValueError(unknown("unknown model", model, models()))
    rows = [claim for claim in claims() if claim.model in ("*", model)]
    chosen = {claim.property: claim for claim in rows if claim.use == "default"}
    for property_, value in (choose or {}).items():
        stated = {claim.value: claim for claim in rows if claim.property == property_}
        if value not in stated:
            known = ", ".join(sorted(stated)) or f"nothing; known properties: {', '.join(sorted(chosen))}"
            raise ValueError(f"no claim says {property_}={value!r} of {model}; stated: {known}")
        chosen[property_] = stated[value]
    return chosen


def provider(model: str) -> str:
    """Which of `PROVIDERS` serves `model`. Raises ValueError for an unknown model."""
    return facts(model)["provider"].value
