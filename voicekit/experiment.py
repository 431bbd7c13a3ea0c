"""Scenarios and how they are run: once, or many times for a comparison.

run = vk.run("order_status", model="gemini-3.1-flash-live-preview", tool_seconds=6.0)
vk.sweep(["order_status"], ["gpt-realtime"], [vk.Policy()], n=5)
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import pickle
import tomllib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from voicekit import audio, inputs
from voicekit.caller import Line
from voicekit.clock import Clock, run_blocking
from voicekit.models import data_path, facts, provider
from voicekit.policy import Policy
from voicekit.progress import progress
from voicekit.runs import Run, recorded
from voicekit.translation import translated

if TYPE_CHECKING:
    import pandas as pd

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
        unknown = sorted(set(overrides) - settings - POLICY_FIELDS)
        if unknown:
            raise ValueError(f"unknown setting {unknown[0]!r}; known: {', '.join(sorted(settings | POLICY_FIELDS))}")
        if target not in ("simulator", "live", "replay"):
            raise ValueError(f'target is "simulator", "live" or "replay", not {target!r}')
        if isinstance(scenario, str):
            if scenario not in scenarios():
                raise ValueError(f"unknown scenario {scenario!r}; known: {', '.join(scenarios())}")
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
    """Run a scenario on the running loop (for programs that have one). Arguments as `run`."""
    from voicekit.application import converse

    plan = Plan.of(scenario, model=model, policy=policy, **options)
    return await converse(plan)


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
    return run_plan(plan)


def run_plan(plan: Plan) -> Run:
    """Run a checked plan in a loop and thread of its own."""
    if plan.target == "replay":
        return recorded(plan.scenario.name, plan.model)
    from voicekit.application import converse

    def main() -> Coroutine[Any, Any, Run]:
        return converse(plan)

    return run_blocking(main, plan.clock)


def compare(*runs: Run) -> pd.DataFrame:
    """One row per run: scenario, model, provenance, then the metrics; a metric that is empty everywhere is left out.

    Raises ValueError for anything that is no run: a list of runs is given as `compare(*runs)`.
    """
    import pandas as pd

    for run in runs:
        if not isinstance(run, Run):
            raise ValueError(f"compare takes runs, one by one: vk.compare(a, b) or vk.compare(*runs), not {type(run)}")
    rows = [
        {
            "scenario": run.meta["scenario"],
            "model": run.meta["model"],
            "provenance": run.meta["provenance"],
            **run.values,
        }
        for run in runs
    ]
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def sweep(
    scenarios: Iterable[str | Scenario],
    models: Iterable[str],
    policies: Sequence[Policy] = (Policy(),),
    n: int = 5,
    executor: Executor | None = None,
    *,
    metrics: Sequence[str] = ("response_latency", "dead_air_longest", "time_to_result"),
    **overrides: Any,
) -> pd.DataFrame:
    """Run every combination `n` times (seeds 0 to n-1) and return n, median, p10 and p90 of each metric.

    An override given as a list is varied too: `tool_seconds=[0.5, 2, 6]`. `executor` is any
    `concurrent.futures.Executor`; the default is a pool of processes from 40 runs on (fewer, and runs that cannot be
    sent to one because a policy holds a function of the notebook, are done here). One row per combination and metric; n
    counts the runs that have a value for it. A field in which the policies differ from the default is a column, in
    every row.

    Raises ValueError before the first run for an empty list, an unknown metric, and what `run` refuses.
    """
    import pandas as pd

    scenarios, models = inputs.several("scenarios", scenarios), inputs.several("models", models)
    policies, wanted = inputs.several("policies", policies), inputs.several("metrics", metrics)
    inputs.check_sweep(n, wanted, policies)
    varied = {name: inputs.several(name, value) for name, value in overrides.items() if isinstance(value, list)}
    fixed = {name: value for name, value in overrides.items() if name not in varied}
    described, default = [policy.describe() for policy in policies], Policy().describe()
    changed = [key for key in default if any(each[key] != default[key] for each in described)]
    groups, plans = [], []
    for scenario, model, policy, *values in itertools.product(scenarios, models, policies, *varied.values()):
        settings = dict(zip(varied, values, strict=True))
        name = scenario if isinstance(scenario, str) else scenario.name
        shown = {key: "default" if (value := policy.describe()[key]) is None else value for key in changed}
        group = {key: _cell(value) for key, value in {**shown, **settings}.items()}
        for seed in range(n):
            plans.append(Plan.of(scenario, model=model, policy=policy, seed=seed, **{**fixed, **settings}))
            groups.append({"scenario": name, "model": model, **group})
    measured = _run_all(plans, executor)
    rows = pd.DataFrame([{**group, **values} for group, values in zip(groups, measured, strict=True)])
    by = [*dict.fromkeys(key for group in groups for key in group), "provenance"]
    table = rows.melt(id_vars=by, value_vars=wanted, var_name="metric")
    table["value"] = pd.to_numeric(table["value"])
    grouped = table.groupby([*by, "metric"], sort=False, dropna=False)["value"]
    return grouped.agg(n="count", median="median", p10=_tenth, p90=_ninetieth).reset_index()


def _cell(value: Any) -> Any:
    """A value as it can stand in a table and be grouped by: mappings, sets and objects as text."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or "none"
    if isinstance(value, (list, tuple, frozenset, set)):
        return ", ".join(map(str, value)) or "none"
    return getattr(value, "__name__", str(value))


def _tenth(values: pd.Series) -> float:
    return float(values.quantile(0.1))


def _ninetieth(values: pd.Series) -> float:
    return float(values.quantile(0.9))


def measure_plan(plan: Plan) -> dict[str, Any]:
    """Run a plan and return its metrics and provenance: what a worker process sends back."""
    result = run_plan(plan)
    return {**result.values, "provenance": result.meta["provenance"]}


# Fewer runs are sooner done here: a process started afresh loads the SDKs for as long as ten runs take.
WORTH_A_POOL = 40


def _run_all(plans: Sequence[Plan], executor: Executor | None) -> list[dict[str, Any]]:
    """Measure all plans in order, with a progress bar; live runs one after the other (the vendor limits the rate)."""
    few = len(plans) < WORTH_A_POOL
    if executor is None and (few or plans[0].target == "live" or not _can_travel(plans)):
        return [measure_plan(plan) for plan in progress(plans)]
    with contextlib.ExitStack() as stack:
        pool = executor or stack.enter_context(_pool())
        futures = [pool.submit(measure_plan, plan) for plan in plans]
        return [future.result() for future in progress(futures)]


def _pool() -> Executor:
    """Processes started afresh: a copy of a notebook's kernel would take its threads and sockets along."""
    return ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))


def _can_travel(plans: Sequence[Plan]) -> bool:
    try:
        pickle.dumps(plans)
    except Exception:
        return False
    return True


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
    declared = (
        facts(model)["default_behavior"].value if "default_behavior" in facts(model) else "not a documented switch"
    )
    return [
        f"{model} ({result.meta['provenance']}), a six-second tool and a second question while it runs:",
        f"  while the tool ran it {'spoke, so it does not wait for results' if spoken else 'said nothing'}",
        f"  longest silence {longest:.2f} s" if longest is not None else "  no silence to measure",
        *([] if result.values["time_to_result"] is not None else ["  the result was never heard"]),
        f"  calls left unanswered: {result.values['unanswered_calls']}",
        f"  documented default: {declared}",
    ]
