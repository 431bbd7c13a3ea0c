"""The checks of the exercises: each says what is still missing, in words, from numbers it measures itself.

    vk.check.silence(run, below=4.0)
    vk.check.empty_search(my_tool)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from voicekit.caller import Line
from voicekit.dispatcher import Moment
from voicekit.experiment import Scenario, Target, run
from voicekit.lesson import loop
from voicekit.metrics import utterances
from voicekit.policy import Policy
from voicekit.results import ok, problem
from voicekit.runs import Run
from voicekit.tools import Result
from voicekit.tools import tool as make_tool


@dataclass(frozen=True)
class Verdict:
    """What a check found. True when nothing is missing; prints as one line per finding."""

    findings: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.findings

    def __repr__(self) -> str:
        return "\n".join(f"Still missing: {f}" for f in self.findings) or "Done: nothing is missing."


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


def unannounced(
    names: Collection[str],
    seconds: Mapping[str, float | tuple[float, ...]],
    below: float = 4.0,
    model: str = "gemini-3.1-flash-live-preview",
    target: Target = "simulator",
) -> Verdict:
    """Notebook 02: are `names` the tools that a model which stands still may call without an announcement?

    `seconds` says by tool how long it takes; of several numbers the longest counts. The silence of each is measured in
    a conversation; one that stays below `below` seconds needs no announcement, and one would only lengthen it.
    """
    findings = [f"a tool named {name}: the list has {', '.join(seconds)}." for name in names if name not in seconds]
    source = "live" if target == "live" else "simulated"
    for name, times in seconds.items():
        slow = max(times) if isinstance(times, tuple) else times
        longest = _silence_of(slow, model, target)
        if longest is None:
            findings.append(f"{name} ({slow:g} s): the result was never heard.")
        elif longest >= below and name in names:
            findings.append(f"{name}: at {slow:g} s the silence is {longest:.2f} s ({source}); announce it.")
        elif longest < below and name not in names:
            findings.append(f"{name}: even at {slow:g} s the silence is {longest:.2f} s ({source}); just call it.")
    return Verdict(tuple(findings))


@cache
def _silence_of(seconds: float, model: str, target: Target) -> float | None:
    """The longest silence around one lookup that takes `seconds`. Kept, because a check is run again and again."""
    scenario = Scenario("one_lookup", tools={"check_stock": seconds}, lines=(Line("stock", at=0.5),))
    longest = run(scenario, model=model, target=target).values["dead_air_longest"]
    return None if longest is None else float(longest)


# What comes in when, what is going on, and what a good `delivery` function says to it.
SILENCE: dict[str, Any] = {"caller_speaking": False, "agent_speaking": False, "caller_turns_since": 0}
AGENT_TALKS = SILENCE | {"agent_speaking": True, "caller_turns_since": 1}
CALLER_TALKS = SILENCE | {"caller_speaking": True}
DELIVERY_CASES: tuple[tuple[str, dict[str, Any], dict[str, Any], str], ...] = (
    ("an urgent result while the agent talks", {"urgent": True}, AGENT_TALKS, "interrupt"),
    ("an urgent result in silence", {"urgent": True}, SILENCE, "interrupt"),
    ("an ordinary result while the agent talks about something else", {}, AGENT_TALKS, "when_idle"),
    ("an ordinary result while the caller talks", {}, CALLER_TALKS, "when_idle"),
    ("an ordinary result in silence", {}, SILENCE, "when_idle"),
    ("a result that is only stored", {"store_only": True}, SILENCE, "silent"),
    ("a result that is only stored, while the agent talks", {"store_only": True}, AGENT_TALKS, "silent"),
)
SUMMARY = "Your order left our warehouse this morning and arrives on Friday."
# Two seconds into the lookup the caller asks something else: the result comes while the agent answers that.
SMALL_TALK = (
    Line("order_status", at=0.5),
    Line("opening_hours", after="tool_starts", seconds=2.0),
    Line("any_news", after="agent_done", seconds=1.0),
)


def delivery(
    function: Callable[[dict[str, Any], Any], str], model: str = "gemini-3.8-live", target: Target = "simulator"
) -> Verdict:
    """Notebook 03: does `function(result, moment)` choose well, on a table of moments and in three conversations?"""
    findings = []
    for what, data, state, wanted in DELIVERY_CASES:
        moment = Moment(tool="get_order_status", seconds_since=6.0, **state)
        try:
            chosen = function(ok(SUMMARY, **data), moment)
        except Exception as error:
            findings.append(f"{what}: {wanted}; the function raised {type(error).__name__}: {error}")
            continue
        if chosen != wanted:
            findings.append(f"{what}: {wanted}, not {chosen}.")
    if not findings:
        findings = [f"in a conversation, {f}" for f in _talks(function, model, target)]
    return Verdict(tuple(findings))


def _talks(function: Callable[[dict[str, Any], Any], str], model: str, target: Target) -> list[str]:
    """The three kinds of result, each in a conversation in which it comes while the agent talks of something else."""
    kinds: tuple[dict[str, Any], ...] = ({"urgent": True}, {}, {"store_only": True})
    urgent, ordinary, stored = (_talk(data, function, model, target) for data in kinds)
    findings = []
    if not urgent.values["flushed_seconds"]:
        findings.append("the urgent result has to come before the end of the agent's own sentence.")
    if ordinary.values["flushed_seconds"]:
        findings.append("the agent's answer to the second question was cut off by an ordinary result.")
    if ordinary.values["time_to_result"] is None:
        findings.append("the ordinary result has to be heard.")
    asked = next((u.end for u in utterances(stored.event_rows) if u.clip == "any_news"), 0.0)
    heard = stored.call_rows[0]["heard"] if stored.call_rows else None
    if heard is None or heard < asked:
        findings.append("the stored result has to be heard when the caller asks for it, and not before.")
    return findings


def _talk(data: dict[str, Any], function: Callable[..., str], model: str, target: Target) -> Run:
    @make_tool(effect="read", seconds=6.0)
    async def get_order_status(order_id: str) -> Result:
        """Look up the status of an order. Never creates or cancels one."""
        return ok(SUMMARY, **data)

    scenario = Scenario("small_talk", lines=SMALL_TALK)
    policy = Policy(delivery=function)  # type: ignore[arg-type]
    return run(scenario, model=model, policy=policy, tools=(get_order_status,), target=target)
