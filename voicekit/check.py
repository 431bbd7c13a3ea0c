"""The checks of the exercises: each says what is still missing, in words, from numbers it measures itself.

    vk.check.silence(run, below=4.0)
    vk.check.empty_search(my_tool)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from voicekit.experiment import Target, run
from voicekit.lesson import loop
from voicekit.policy import Policy
from voicekit.results import problem
from voicekit.runs import Run


@dataclass(frozen=True)
class Verdict:
    """What a check found. True when nothing is missing; prints as one line per finding."""

    findings: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.findings

    def __repr__(self) -> str:
        return "Done: nothing is missing." if not self.findings else "\n".join(f"Still missing: {f}" for f in self.findings)


def silence(run: Run, below: float, above: float = 0.0) -> Verdict:
    """Notebook 00: is the longest silence of a run between `above` and `below` seconds, with the result still heard?"""
    findings = []
    longest, heard = run.values["dead_air_longest"], run.values["time_to_result"]
    source = run.meta["provenance"]
    if heard is None or longest is None:
        findings.append("the caller has to hear the result; a run without one has no wait to measure.")
    elif longest >= below:
        findings.append(f"the longest silence is {longest:.2f} s ({source}); it has to be below {below:g} s.")
    elif longest < above:
        findings.append(f"the longest silence is {longest:.2f} s ({source}); give the tool more time: {above:g} s.")
    return Verdict(tuple(findings))


def empty_search(tool: Any, model: str = "gemini-3.1-flash-live-preview", target: Target = "simulator") -> Verdict:
    """Notebook 01: does a model that gets this tool's empty answer stop searching and tell the caller?

    `tool` is called check_stock and is asked for the red kettle, which it does not find. What its function returns goes
    to the model as it is: the kit's own application would have replaced an answer that says nothing.
    """
    if getattr(tool, "name", "") != "check_stock":
        return Verdict((f"a Tool named check_stock, not {getattr(tool, 'name', type(tool).__name__)}.",))
    done = loop("stock_red", tool, model=model, target=target)
    if not done.calls:
        return Verdict(("a call: the model never used your tool.",))
    findings, (_, result) = [], done.answers[0]
    if len(done.calls) > 1:
        source = "live" if target == "live" else "simulated"
        tried = "; ".join(call.arguments for call in done.calls)
        findings.append(f"one call. The model searched {len(done.calls)} times ({source}): {tried}")
    if reason := problem(result):
        findings.append(f"a result ({reason}): say the status, a summary to read aloud, and whether to try again.")
    elif result["status"] not in ("no_results", "ok"):
        findings.append(f"the right status; {result['status']} says that something else happened.")
    elif not done.said:
        findings.append("a sentence for the caller, who heard nothing.")
    return Verdict(tuple(findings))


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
