"""Several runs in one table: side by side, or every combination of settings, measured."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import pickle
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from voicekit import inputs
from voicekit.experiment import Plan, Scenario, run_plan, told
from voicekit.policy import Policy
from voicekit.progress import progress
from voicekit.runs import Run

if TYPE_CHECKING:
    import pandas as pd


def compare(*runs: Run) -> pd.DataFrame:
    """One row per run: scenario, model, what else differs between them, provenance, then the metrics.

    A metric that is empty everywhere is left out.

    Raises ValueError for anything that is no run: a list of runs is given as `compare(*runs)`.
    """
    import pandas as pd

    for run in runs:
        if not isinstance(run, Run):
            what = type(run).__name__
            raise ValueError(f"compare takes runs, one by one: vk.compare(a, b) or vk.compare(*runs), not {what}")
    settings = [_settings(run) for run in runs]
    differ = [
        name for name in dict.fromkeys(itertools.chain(*settings)) if len({each.get(name, "") for each in settings}) > 1
    ]
    rows = [
        {
            "scenario": run.meta["scenario"],
            "model": run.meta["model"],
            **{name: changed.get(name, "") for name in differ},
            "provenance": run.meta["provenance"],
            **run.values,
        }
        for run, changed in zip(runs, settings, strict=True)
    ]
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def _settings(run: Run) -> dict[str, str]:
    """What a run was started with, besides its scenario and model."""
    meta = run.meta
    seconds = ", ".join(f"{name} {value}" for name, value in (meta.get("tool_seconds") or {}).items())
    policy = {name: "" if value is None else str(value) for name, value in (meta.get("policy") or {}).items()}
    rest = {name: str(meta.get(name) or "") for name in ("clock", "seed", "delegation")}
    return {"tool_seconds": seconds, **policy, **rest}


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
    result = told(run_plan(plan))
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
