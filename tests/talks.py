"""Conversations that several tests look at: the same one is held once per process.

A run depends on nothing but its plan (tests/test_conversations.py holds one twice and compares the bytes), so tests
that only read it may share it. A test that changes what it is given, or hands in objects with a memory (a world, tools,
a function of its own), calls `vk.run` itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import voicekit as vk
from voicekit.experiment import Scenario
from voicekit.runs import Run


def talk(scenario: str | Scenario, model: str, **settings: Any) -> Run:
    """The run of a scenario, as `vk.run`; not to be changed by the test."""
    return _held(_Key((scenario, model, settings)))


class _Key:
    """Settings are often mappings, which cannot be looked up; what they print as can."""

    def __init__(self, told: tuple[str | Scenario, str, dict[str, Any]]) -> None:
        self.told = told
        self._text = repr((*told[:2], sorted(told[2].items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@cache
def _held(key: _Key) -> Run:
    scenario, model, settings = key.told
    return vk.run(scenario, model=model, **settings)
