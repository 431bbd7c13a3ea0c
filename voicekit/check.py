"""The checks of the exercises: each says what is still missing, in words, from numbers it measures itself.

    vk.check.silence(run, below=4.0)
    vk.check.empty_search(my_tool)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from voicekit.experiment import Scenario, run
from voicekit.policy import Policy
from voicekit.run import Run


@dataclass(frozen=True)
class Verdict:
    """What a check found. True when nothing is missing; prints as one line per finding."""

    findings: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.findings

    def __repr__(self) -> str:
        return "Done: nothing is missing." if not self.findings else "\n".join(f"Still missing: {f}" for f in self.findings)


def silence(run: Run, below: float) -> Verdict:
    """Notebook 00: is the longest silence of a run below `below` seconds, with the result still heard?"""
    findings = []
    longest, heard = run.values["dead_air_longest"], run.values["time_to_result"]
    if heard is None:
        findings.append("the caller has to hear the result; a run without one has no wait to measure.")
    elif longest is not None and longest >= below:
        findings.append(f"the longest silence is {longest:.2f} s; it has to be below {below:g} s.")
    return Verdict(tuple(findings))


def empty_search(tool: Any, model: str = "gemini-3.1-flash-live-preview") -> Verdict:
    """Notebook 01: does a model that gets this tool's empty answer stop searching and tell the caller?

    `tool` is called check_stock and is asked for the red kettle, which it does not find.
    """
    if getattr(tool, "name", "") != "check_stock":
        return Verdict((f"a Tool named check_stock, not {getattr(tool, 'name', type(tool).__name__)}.",))
    scenario = Scenario("empty_search", tools={"check_stock": 0.5}, lines=_lines("stock_red"))
    result = run(scenario, model=model, tools=(tool,))
    findings = []
    if result.values["tool_calls"] != 1:
        findings.append(f"one call; the model searched {result.values['tool_calls']} times: tell it that retrying is useless.")
    if result.values["time_to_result"] is None:
        findings.append("a sentence for the caller: the summary of your result was never heard.")
    return Verdict(tuple(findings))


def _lines(*clips: str) -> tuple[Any, ...]:
    from voicekit.caller import Line

    return (Line(clips[0], at=0.5), *(Line(clip, after="agent_done", seconds=0.8) for clip in clips[1:]))


def unannounced(names: Collection[str], seconds: dict[str, float], bearable: float = 2.5) -> Verdict:
    """Notebook 02: are these the tools that may be called without an announcement on a model that stands still?

    For each tool of `seconds` the silence is measured; one that stays below `bearable` seconds needs no announcement.
    """
    findings = []
    for name, duration in seconds.items():
        longest = run("quick_lookup", model="gemini-3.1-flash-live-preview", tool_seconds=duration).values["dead_air_longest"]
        short = longest is not None and longest < bearable
        if short and name not in names:
            findings.append(f"{name} ({duration:g} s): {longest:.2f} s of silence; an announcement would only lengthen it.")
        if not short and name in names:
            findings.append(f"{name} ({duration:g} s): {longest:.2f} s of silence is more than {bearable:g} s.")
    return Verdict(tuple(findings))


DELIVERY_CASES = (
    ("an urgent result while the agent talks", {"urgent": True}, {"agent_speaking": True}, "interrupt"),
    ("an urgent result in silence", {"urgent": True}, {}, "interrupt"),
    ("an ordinary result while the caller talks about something else", {}, {"caller_turns_since": 1, "caller_speaking": True}, "when_idle"),
    ("an ordinary result in silence", {}, {}, "when_idle"),
    ("a result that is only stored", {"store_only": True}, {}, "silent"),
    ("a result that is only stored, while the agent talks", {"store_only": True}, {"agent_speaking": True}, "silent"),
)  # fmt: skip


def delivery(function: Callable[[dict[str, Any], Any], str], model: str = "gemini-3.8-live") -> Verdict:
    """Notebook 03: does `function(result, moment)` choose well, on a table of moments and in a conversation?"""
    from voicekit.dispatcher import Moment

    findings = []
    for what, data, state, wanted in DELIVERY_CASES:
        moment = Moment(
            tool="get_order_status",
            caller_speaking=state.get("caller_speaking", False),
            agent_speaking=state.get("agent_speaking", False),
            caller_turns_since=state.get("caller_turns_since", 0),
            seconds_since=6.0,
        )
        chosen = function({"status": "ok", "summary": "Your order is here.", **data}, moment)
        if chosen != wanted:
            findings.append(f"{what}: {wanted}, not {chosen}.")
    if findings:
        return Verdict(tuple(findings))
    result = run("order_status_chatty", model=model, policy=Policy(delivery=function))  # type: ignore[arg-type]
    if result.values["time_to_result"] is None:
        findings.append("in a conversation the ordinary result has to be heard.")
    elif result.values["flushed_seconds"]:
        findings.append("in a conversation the answer about the opening hours was cut off.")
    return Verdict(tuple(findings))
