"""The fault "mishear": one clip is recognised and another reported, as a recogniser takes one short word for another.

    faults={"mishear": {"no_de": "yes_de"}}            always
    faults={"mishear": {"no_de": {"yes_de": 0.2}}}     one time in five, drawn with the seed of the settings
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from voicekit.audio import Clip

Rates = dict[str, dict[str, float]]


class Mishearing:
    """Called with the clip that was said, returns the one that is reported. Raises ValueError as `rates_of` does."""

    def __init__(self, fault: Any, clips: Mapping[str, Clip], random_: random.Random) -> None:
        self._rates, self._clips, self._random = rates_of(fault, clips), clips, random_

    def __call__(self, said: Clip) -> Clip:
        others = self._rates.get(said.name, {})
        drawn = self._random.random() if others else 0.0
        for name, rate in others.items():
            if drawn < rate:
                return self._clips[name]
            drawn -= rate
        return said


def rates_of(fault: Any, clips: Mapping[str, Clip]) -> Rates:
    """The rates by clip said and clip heard.

    Raises ValueError for an unknown clip, and for rates that are no probabilities.
    """
    if not isinstance(fault, Mapping) or not all(isinstance(heard, (str, Mapping)) for heard in fault.values()):
        raise ValueError(f'mishear is a mapping such as {{"no": "yes"}} or {{"no": {{"yes": 0.2}}}}, not {fault!r}')
    rates = {said: dict(heard) if isinstance(heard, Mapping) else {heard: 1.0} for said, heard in fault.items()}
    named = [*rates, *(name for others in rates.values() for name in others)]
    if unknown := [name for name in named if name not in clips]:
        raise ValueError(f"mishear: unknown clip {unknown[0]!r}; see `voicekit list`")
    for said, others in rates.items():
        is_rate = all(isinstance(rate, (int, float)) and 0 <= rate <= 1 for rate in others.values())
        if not is_rate or sum(others.values()) > 1 + 1e-9:
            raise ValueError(f"mishear: the rates of {said!r} are numbers from 0 to 1, together at most 1")
    return rates
