"""Conversations that several tests look at: the same one is held once per process.

A run depends on nothing but its plan (tests/test_conversations.py holds one twice and compares the bytes), so tests
that only read it may share it. A test that changes what it is given, or hands in objects with a memory (a world, tools,
a function of its own), calls `vk.run` itself.
"""

from __future__ import annotations

from typing import Any

import voicekit as vk
from voicekit.experiment import Scenario
from voicekit.runs import Run

_held: dict[str, Run] = {}


def talk(scenario: str | Scenario, model: str, **settings: Any) -> Run:
    """The run of a scenario, as `vk.run`; not to be changed by the test."""
    key = repr((scenario, model, sorted(settings.items())))
    if key not in _held:
        _held[key] = vk.run(scenario, model=model, **settings)
    return _held[key]
