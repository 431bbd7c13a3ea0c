"""A call as the backend sees it while its tool runs, and what came of calling one off."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from voicekit.faults import Fault
from voicekit.results import Result
from voicekit.tools import Tool


@dataclass(frozen=True)
class Cancellation:
    """What came of calling a call off.

    cancelled   it had no effect and will have none
    committed   too late, the effect has happened; `compensation` names the tool that would undo it, if there is one
    running     it can not be stopped, and goes on
    over        it had ended, or was never known
    """

    outcome: Literal["cancelled", "committed", "running", "over"]
    compensation: str | None = None


@dataclass(eq=False)
class Running:
    """A call under way. `acting`: its function was called; `left`: nobody waits for its answer any more."""

    call_id: str
    tool: Tool
    arguments: dict[str, Any]
    key: str
    fault: Fault | None
    latency: float
    acting: bool = False
    committed: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)
    work: asyncio.Task[Any] = field(init=False)
    ending: asyncio.Task[Result] = field(init=False)
