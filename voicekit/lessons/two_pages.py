"""An application that leaves to the service what the kit's own always states, for lesson 13: then a default shows.

The kit writes `behavior` into every declaration and `scheduling` onto every result, where the model is said to have
the field. So it behaves the same whichever page is right about a default, and cannot find out which one is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Coroutine
from typing import Any

from voicekit.clock import run_blocking
from voicekit.experiment import Plan, Scenario
from voicekit.models import provider
from voicekit.runs import Run
from voicekit.sessions.base import Delivery, Endpoint, RealtimeSession, SessionConfig, WireTap

FIELDS = ("behavior", "scheduling")


def unstated(
    scenario: str | Scenario, *, model: str, leave_out: Collection[str] = ("behavior",), **options: Any
) -> Run:
    """Run a scenario as `vk.run` does, by an application that leaves fields out of its frames.

    leave_out   "behavior" of the tools' declarations, "scheduling" of the results, or both
    options     as of `vk.run`, `target` and `claims` among them

    `run.meta["left_out"]` names them. Raises ValueError for an unknown field, and for a model of a vendor without them.
    """
    if isinstance(leave_out, str) or (strange := sorted(set(leave_out) - set(FIELDS))):
        wrong = leave_out if isinstance(leave_out, str) else strange[0]
        raise ValueError(f"leave_out is a list of fields from {', '.join(FIELDS)}, not {wrong!r}")
    if provider(model) != "gemini-live":
        raise ValueError(f"{model} has no {' or '.join(FIELDS)} to leave out; Gemini Live models do")
    plan = Plan.of(scenario, model=model, **options)
    if plan.target == "replay":
        raise ValueError("a recorded run is what it was; run it on the simulator or live")
    from voicekit.application import converse

    def connect(config: SessionConfig, endpoint: Endpoint, tap: WireTap) -> RealtimeSession:
        return _session(config, endpoint, tap, leave_out)

    def main() -> Coroutine[Any, Any, Run]:
        return converse(plan, connect)

    run = run_blocking(main, plan.clock)
    return dataclasses.replace(run, meta={**run.meta, "left_out": sorted(leave_out)})


def _session(config: SessionConfig, endpoint: Endpoint, tap: WireTap, leave_out: Collection[str]) -> RealtimeSession:
    from voicekit.sessions.gemini_live import GeminiLiveSession  # made late: the SDK takes a second to load

    class Unstated(GeminiLiveSession):
        def __init__(self) -> None:
            super().__init__(config, endpoint, tap)
            if "behavior" in leave_out:
                for tool in self._setup.tools or []:
                    for declaration in getattr(tool, "function_declarations", None) or []:
                        declaration.behavior = None

        async def send_result(
            self, call_id: str, result: dict[str, Any], *, delivery: Delivery | None = None, final: bool = True
        ) -> None:
            said = None if "scheduling" in leave_out else delivery
            await super().send_result(call_id, result, delivery=said, final=final)

    return Unstated()
