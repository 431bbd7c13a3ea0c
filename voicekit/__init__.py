"""voicekit: experience, measure and change what a voice agent does while a tool runs.

    import voicekit as vk
    run = vk.run("order_status", model="gemini-3.1-flash-live-preview", tool_seconds=6.0)
    run.metrics["dead_air_longest"]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voicekit.audio import Clip, clips
    from voicekit.caller import Line
    from voicekit.experiment import Scenario, arun, probe, run, scenarios
    from voicekit.guardrails import SpeechRule, abort, replace, skip
    from voicekit.lesson import decisions, frames, predicted, table, target
    from voicekit.lessons import check
    from voicekit.models import claims
    from voicekit.policy import Policy
    from voicekit.replaying import replay
    from voicekit.runs import Run
    from voicekit.sweeps import compare, sweep
    from voicekit.tools import Fault, Latency, Tool, failed, no_results, ok, tool
    from voicekit.widgets import panel

# Loaded on first use: `import voicekit` alone must not wait for two SDKs, pandas and matplotlib.
_HOMES = {
    "audio": ("Clip", "clips"),
    "caller": ("Line",),
    "experiment": ("Scenario", "arun", "probe", "run", "scenarios"),
    "sweeps": ("compare", "sweep"),
    "guardrails": ("SpeechRule", "abort", "replace", "skip"),
    "lesson": ("decisions", "frames", "predicted", "table", "target"),
    "models": ("claims",),
    "policy": ("Policy",),
    "replaying": ("replay",),
    "runs": ("Run",),
    "widgets": ("panel",),
    "tools": ("Fault", "Latency", "Tool", "failed", "no_results", "ok", "tool"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Clip", "Fault", "Latency", "Line", "Policy", "Run", "Scenario", "SpeechRule", "Tool", "abort", "arun", "check",
    "claims", "clips", "compare", "decisions", "failed", "frames", "no_results", "ok", "panel", "predicted", "probe",
    "replace", "replay", "run", "scenarios", "skip", "sweep", "table", "target", "tool",
]  # fmt: skip
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"voicekit.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name == "check":
        return importlib.import_module("voicekit.lessons.check")
    raise AttributeError(f"voicekit has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
