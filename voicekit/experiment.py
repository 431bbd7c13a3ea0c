"""Scenarios and how they are run: once, or many times for a comparison.

run = vk.run("order_status", model="gemini-3.1-flash-live-preview", tool_seconds=6.0)
vk.sweep(["order_status"], ["gpt-realtime"], [vk.Policy()], n=5)
"""

from __future__ import annotations

import asyncio
import dataclasses
import tomllib
import warnings
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from voicekit import audio, inputs
from voicekit.caller import Line
from voicekit.clock import Clock, VirtualLoop, run_blocking
from voicekit.models import data_path, facts, provider
from voicekit.names import unknown
from voicekit.policy import Policy
from voicekit.runs import Run, recorded
from voicekit.translation import translated

if TYPE_CHECKING:
    pass

Target = Literal["simulator", "live", "replay"]
POLICY_FIELDS = frozenset(each.name for each in dataclasses.fields(Policy))


@dataclass(frozen=True)
class Scenario:
    """A conversation: the tools offered, with the seconds each takes, and what the caller says on which cue."""

    name: str
    about: str = ""
    tools: Mapping[str, float] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()

    def in_language(self, language: str) -> Scenario:
        """The same conversation with the clips of another language. Raises ValueError for a clip that has none."""
        if language == "en":
            return self
        lines, missing = translated(self.lines, language, audio.clips())
        if missing:
            languages = ", ".join(sorted({clip.language for clip in audio.clips().values()}))
            lacks = f"no clip {', '.join(missing)} (there are clips in {languages})"
            raise ValueError(f"scenario {self.name} cannot be run in {language!r}: {lacks}")
        return dataclasses.replace(self, lines=lines)


@cache
def scenarios() -> dict[str, Scenario]:
    """The scenarios of data/scenarios.toml by name."""
    table = tomllib.loads(data_path("scenarios.toml").read_text(encoding="utf-8"))
    return {
        name: Scenario(name, row["about"], dict(row["tools"]), tuple(Line(**line) for line in row["lines"]))
        for name, row in table.items()
    }


@dataclass(frozen=True)
class Plan:
    """Everything a run depends on, checked before anything starts.

    tool_seconds  seconds every tool takes, or a mapping by tool name; None: as the scenario says
    language      "en" or "de"
    frame_ms      length of a caller audio frame
    caller_db     how much louder (or, below 0, softer) than recorded the caller speaks, dB
    echo_db       the caller's microphone picks up the agent at this level relative to the playout, 120 ms later, dB
    echo_guard    "compare": what is only a copy of the playout is not sent (see echo.py); "none": all is sent
    detector      what the simulated service tells speech from noise by: "speech" or "energy" (see vad.py)
    silence_ms    how long the caller must be silent for a turn to end
    noise_db      level of background noise on the caller's line in dBFS; None: none
    max_seconds   the run is ended after this long, in session seconds
    claims        which of two contradicting claims the simulated model follows (data/models.csv)
    faults        misbehaviour injected into the simulated service
    tool_faults   faults of tools, by name (see `tools.Fault`)
    tools         the reader's own tools, instead of the scenario's
    instructions  replaces the instructions composed from the policy
    earlier       an earlier run: the results it could tell nobody are given to the model as context
    delegation    who works for a model that hands work over: "client" (the application), "responses" (a backend of the
                  service, which calls the application's tools); None for other models
    backend       the reader's own worker for client delegation (see `delegation.Backend`)
    supervisor    called with each event that a second socket hears along (GPT-Live): a dict with its time `t`
    """

    scenario: Scenario
    model: str
    policy: Policy
    target: Target = "simulator"
    clock: Clock = "virtual"
    seed: int = 0
    tool_seconds: float | Mapping[str, float] | None = None
    language: str = "en"
    frame_ms: int = 100  # vendors advise 20 to 100; each frame costs both sides the same work whatever its length
    caller_db: float = 0.0
    echo_db: float | None = None
    echo_guard: Literal["compare", "none"] = "compare"
    detector: Literal["speech", "energy"] = "speech"
    silence_ms: int = 500
    noise_db: float | None = None
    max_seconds: float = 180.0
    claims: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Any] = field(default_factory=dict)
    tool_faults: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Any, ...] | None = None
    instructions: str | None = None
    earlier: Run | None = None
    delegation: Literal["client", "responses"] | None = None
    backend: Any = None
    supervisor: Callable[[dict[str, Any]], object] | None = None
    ledger: str = ":memory:"

    @classmethod
    def of(
        cls,
        scenario: str | Scenario,
        *,
        model: str,
        policy: Policy | None = None,
        target: Target = "simulator",
        clock: Clock | None = None,
        seed: int = 0,
        **overrides: Any,
    ) -> Plan:
        """Check and collect. Raises ValueError with one line that names what is unknown or impossible."""
        settings = {each.name for each in dataclasses.fields(cls)} - {
            "scenario",
            "model",
            "policy",
            "target",
            "clock",
            "seed",
        }
        if strange := sorted(set(overrides) - settings - POLICY_FIELDS):
            raise ValueError(unknown("unknown setting", strange[0], sorted(settings | POLICY_FIELDS)))
        if target not in ("simulator", "live", "replay"):
            raise ValueError(f'target is "simulator", "live" or "replay", not {target!r}')
        if isinstance(scenario, str):
            if scenario not in scenarios():
                raise ValueError(unknown("unknown scenario", scenario, scenarios()))
            scenario = scenarios()[scenario]
        inputs.check_kinds(scenario, policy, seed, overrides)
        if clock not in (None, "virtual", "real"):
            raise ValueError(f'clock is "virtual" or "real", not {clock!r}')
        if target == "replay" and (changed := ["policy"] * (policy is not None) + sorted(overrides)):
            raise ValueError(f"a recorded run is what it was; leave {changed[0]} out")
        if target == "live" and clock == "virtual":
            raise ValueError('a live service keeps its own time; use clock="real" with target="live"')
        if target == "live" and (unreal := [name for name in ("claims", "faults") if overrides.get(name)]):
            raise ValueError(f"{unreal[0]} change the simulated service; a live one is what it is, leave them out")
        policy = dataclasses.replace(policy or Policy(), **{k: v for k, v in overrides.items() if k in POLICY_FIELDS})
        chosen = {key: value for key, value in overrides.items() if key in settings}
        facts(model, chosen.get("claims"))  # an unknown model or claim is said here
        check_policy(policy, model)
        if provider(model) == "gpt-live":
            chosen.setdefault("delegation", "client")  # as the service does
        plan = cls(
            scenario=scenario.in_language(chosen.get("language", "en")),
            model=model,
            policy=policy,
            target=target,
            clock=clock or ("real" if target == "live" else "virtual"),
            seed=seed,
            **chosen,
        )
        inputs.check_plan(plan)
        return plan

    def seconds_of(self, tool: str) -> float:
        if isinstance(self.tool_seconds, Mapping):
            return float(self.tool_seconds.get(tool, self.scenario.tools.get(tool, 1.0)))
        return float(self.scenario.tools.get(tool, 1.0) if self.tool_seconds is None else self.tool_seconds)


def check_policy(policy: Policy, model: str) -> None:
    """Raise ValueError for a policy the model cannot follow, naming what it can."""
    known = facts(model)
    behaviors = known["behaviors"].value.split() if "behaviors" in known else []
    waits = "waits_for_result" in known and known["waits_for_result"].value == "yes"
    default = (
        known["default_behavior"].value if "default_behavior" in known else ("blocking" if waits else "non_blocking")
    )
    if policy.behavior is not None and policy.behavior not in (behaviors or [default]):
        raise ValueError(
            f"{model} has no {policy.behavior} calls; it takes behavior={', '.join(behaviors or [default])}"
        )
    scheduling = "scheduling" in known and known["scheduling"].value == "yes"
    if provider(model) == "gemini-live" and not scheduling and policy.delivery != "when_idle":
        raise ValueError(f"{model} takes no scheduling, it says a result when it wants; use delivery=when_idle")
    if provider(model) == "gpt-live" and policy.delivery == "interrupt":
        raise ValueError(f"{model} cannot be interrupted by its application; use delivery=when_idle or silent")


async def arun(scenario: str | Scenario, *, model: str, policy: Policy | None = None, **options: Any) -> Run:
    """Run a scenario on the running loop (for programs that have one): on its clock, so in real time on any but ours.

    Arguments as `run`, but for `clock`.
    """
    from voicekit.application import converse

    clock: Clock = "virtual" if isinstance(asyncio.get_running_loop(), VirtualLoop) else "real"
    if options.pop("clock", clock) != clock:
        raise ValueError(f"arun runs on the clock of the running loop, which is {clock}; vk.run has a choice")
    return told(await converse(Plan.of(scenario, model=model, policy=policy, clock=clock, **options)))


def run(
    scenario: str | Scenario,
    *,
    model: str,
    policy: Policy | None = None,
    target: Target = "simulator",
    clock: Clock | None = None,
    seed: int = 0,
    **overrides: Any,
) -> Run:
    """Run a scenario and return what happened, measured.

    scenario   a name from `scenarios()` or a Scenario
    model      a name from data/models.csv
    target     "simulator", "live" (needs the vendor's key in the environment) or "replay" (a recorded run, as it is:
               see `recorded`)
    clock      "virtual" (the default but for live) or "real"
    overrides  fields of `Plan` and of `Policy`

    Raises ValueError, before anything starts, for what is unknown or impossible. What the provider does wrong later is
    a problem in the run's journal; the run is returned all the same.
    """
    plan = Plan.of(scenario, model=model, policy=policy, target=target, clock=clock, seed=seed, **overrides)
    return told(run_plan(plan))


def told(run: Run) -> Run:
    """Warn of what a function of the reader's own returned that nothing could be done with; `run.events` has it too."""
    wrong = {event["text"] for event in run.event_rows if event["kind"].startswith("bad_")}
    for text in sorted(wrong):
        warnings.warn(f"policy: {text}", stacklevel=3)
    return run


def run_plan(plan: Plan) -> Run:
    """Run a checked plan in a loop and thread of its own."""
    if plan.target == "replay":
        return recorded(plan.scenario.name, plan.model)
    from voicekit.application import converse

    def main() -> Coroutine[Any, Any, Run]:
        return converse(plan)

    return run_blocking(main, plan.clock)


def probe(model: str, target: Target = "simulator") -> list[str]:
    """Find out by conversation what `model` does while a tool runs; returns one sentence per finding.

    A six-second tool, a second question while it runs: whoever talks before the result does not wait. Documentation
    says that a capability exists; this says which model has it.
    """
    result = run("order_status_chatty", model=model, target=target, tool_seconds=6.0)
    if not result.call_rows:
        return [f"{model}: proposed no call; problem: {result.problem or 'none reported'}"]
    call = result.call_rows[0]
    running = (call["started"], call["finished"])
    spoken = [e["t"] for e in result.event_rows if e["kind"] == "playing" and running[0] < e["t"] < running[1]]
    longest = result.values["dead_air_longest"]
    known = facts(model)
    declared = known["default_behavior"].value if "default_behavior" in known else "not a documented switch"
    if "behaviors" in known and known["behaviors"].value:
        declared += " (not tried: this application tells the model of each tool which it is)"
    return [
        f"{model} ({result.meta['provenance']}), a six-second tool and a second question while it runs:",
        f"  while the tool ran it {'spoke, so it does not wait for results' if spoken else 'said nothing'}",
        f"  longest silence {longest:.2f} s" if longest is not None else "  no silence to measure",
        *([] if result.values["time_to_result"] is not None else ["  the result was never heard"]),
        f"  calls left unanswered: {result.values['unanswered_calls']}",
        f"  documented default: {declared}",
    ]
