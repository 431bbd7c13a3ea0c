"""What a run may be asked for: each wrong value is one ValueError that names the mend, before anything starts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from voicekit import audio
from voicekit.caller import Line
from voicekit.metrics import measure
from voicekit.models import provider
from voicekit.names import unknown
from voicekit.policy import Policy
from voicekit.simulator.injection import check_faults, is_number

if TYPE_CHECKING:
    from voicekit.experiment import Plan

# Settings that are numbers, with the range that makes sense; those of the second line may be left out (None).
NUMBERS = (("max_seconds", 1, 3600), ("caller_db", -40, 20))
LEVELS = (("echo_db", -60, 0), ("noise_db", -90, 0))
WHOLE_NUMBERS = (("frame_ms", 10, 200), ("silence_ms", 50, 5000))
TEXTS = (("echo_guard", ("compare", "none")), ("detector", ("speech", "energy")))


def check_kinds(scenario: Any, policy: Any, seed: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for what is not even of the right kind, so that everything after this can rely on it."""
    from voicekit.experiment import Scenario

    if not isinstance(scenario, (str, Scenario)):
        raise ValueError(f"scenario is a name (see `voicekit list`) or a vk.Scenario, not {scenario!r}")
    if isinstance(scenario, Scenario):
        if not isinstance(scenario.tools, Mapping):
            raise ValueError(f"scenario {scenario.name}: tools is a mapping of name to seconds, not {scenario.tools!r}")
        if isinstance(scenario.lines, Line):  # a comma forgotten
            raise ValueError(f"scenario {scenario.name}: lines is a tuple; a single line is written (vk.Line(...),)")
        if strange := [line for line in scenario.lines if not isinstance(line, Line)]:
            raise ValueError(f"scenario {scenario.name}: lines is a tuple of vk.Line(...), not of {strange[0]!r}")
    if policy is not None and not isinstance(policy, Policy):
        raise ValueError(f"policy is a vk.Policy(...), not {policy!r}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"seed is a whole number, not {seed!r}")
    languages = sorted({clip.language for clip in audio.clips().values()})
    language = settings.get("language", "en")
    if not isinstance(language, str) or not language:
        raise ValueError(f"language is one of {', '.join(languages)}, not {language!r}")
    claims = settings.get("claims", {})
    if not isinstance(claims, Mapping) or not all(isinstance(each, str) for pair in claims.items() for each in pair):
        example = 'such as {"fillers": "yes"} (--set claims.NAME=VALUE)'
        raise ValueError(f"claims is a mapping of property to value, {example}, not {claims!r}")
    ledger = settings.get("ledger", ":memory:")
    if not isinstance(ledger, (str, os.PathLike)) or not str(ledger).strip() or os.path.isdir(ledger):
        raise ValueError(f'ledger is the path of a file, or ":memory:", not {ledger!r}')


def check_plan(plan: Plan) -> None:
    """Raise ValueError for numbers no run can have, names nobody knows, and settings that would not be acted on."""
    for name, allowed in TEXTS:
        if getattr(plan, name) not in allowed:
            raise ValueError(f"{name} is one of {', '.join(allowed)}, not {getattr(plan, name)!r}")
    for name, low, high in (*NUMBERS, *LEVELS, *WHOLE_NUMBERS):
        value = getattr(plan, name)
        is_whole = (name, low, high) in WHOLE_NUMBERS
        if value is None and (name, low, high) in LEVELS:
            continue
        if not is_number(value, low, high) or (is_whole and not isinstance(value, int)):
            raise ValueError(f"{name} is a {'whole ' if is_whole else ''}number from {low} to {high}, not {value!r}")
    if plan.instructions is not None and not isinstance(plan.instructions, str):
        raise ValueError(f"instructions is a text, not {plan.instructions!r}")
    _check_tools(plan)
    _check_delegation(plan)
    check_faults(plan.faults, provider(plan.model))
    if "unspoken" in plan.faults and plan.delegation == "responses":
        raise ValueError('faults.unspoken is about commentary of the client; use it with delegation="client"')
    _check_earlier(plan.earlier)
    _check_clips(plan)


def _check_tools(plan: Plan) -> None:
    from voicekit.tools import Fault, Tool
    from voicekit.world import SECONDS

    own = plan.tools
    if own is not None and not (isinstance(own, (tuple, list)) and all(isinstance(each, Tool) for each in own)):
        raise ValueError(f"tools is a tuple of functions decorated with @vk.tool, not {own!r}")
    for name, value in plan.scenario.tools.items():
        if own is None and name not in SECONDS:
            known = ", ".join(SECONDS)
            raise ValueError(
                f"scenario {plan.scenario.name}: no tool {name!r}; known: {known}; or give your own, tools="
            )
        if not is_number(value, 0, 600):
            raise ValueError(f"scenario {plan.scenario.name}: {name} takes 0 to 600 seconds, not {value!r}")
    seconds, faults = plan.tool_seconds, plan.tool_faults
    if not isinstance(faults, Mapping):
        raise ValueError(f'tool_faults is a mapping such as {{"check_stock": "error"}}, not {faults!r}')
    by_name = seconds if isinstance(seconds, Mapping) else {}
    for setting, names in (("tool_seconds", by_name), ("tool_faults", faults)):
        if own is not None and (names or (setting == "tool_seconds" and seconds is not None)):
            mend = "set it in the tool, as in dataclasses.replace(my_tool, seconds=2.0, faults=...)"
            raise ValueError(f"{setting} does not reach tools of your own; {mend}")
        if strange := [name for name in names if name not in plan.scenario.tools]:
            known = ", ".join(plan.scenario.tools) or "none"
            raise ValueError(f"{setting}: {plan.scenario.name} has no tool {strange[0]!r}; it has {known}")
    for value in by_name.values() if isinstance(seconds, Mapping) else [] if seconds is None else [seconds]:
        if not is_number(value, 0, 600):
            raise ValueError(f"tool_seconds is a number from 0 to 600, not {value!r}")
    for name, fault in faults.items():
        if not isinstance(fault, (str, Fault, Mapping)):
            example = 'such as "error", "late_commit 3" or {2: "error"}'
            raise ValueError(
                f"tool_faults: the fault of {name} is a text or a mapping by call, {example}, not {fault!r}"
            )


def _check_delegation(plan: Plan) -> None:
    if provider(plan.model) != "gpt-live":
        given = [name for name in ("delegation", "backend", "supervisor") if getattr(plan, name) is not None]
        if given:
            raise ValueError(f"{plan.model} hands no work over; leave {given[0]} out, or take gpt-live-1")
    elif plan.delegation not in ("client", "responses"):
        raise ValueError(f'delegation is "client" or "responses", not {plan.delegation!r}')
    elif plan.backend is not None and plan.delegation == "responses":
        raise ValueError('a backend of your own works with delegation="client"; with "responses" the service has one')
    if plan.backend is not None and not callable(getattr(plan.backend, "work", None)):
        raise ValueError("backend is an object with `async def work(request, tools)`, see delegation.Backend")
    if plan.supervisor is not None and not callable(plan.supervisor):
        raise ValueError(f"supervisor is a function that takes an event, not {plan.supervisor!r}")


def _check_earlier(earlier: Any) -> None:
    from voicekit.runs import Run

    if earlier is not None and not isinstance(earlier, Run):
        raise ValueError(f"earlier is a run, as vk.run or vk.Run.load returns it, not {earlier!r}")


def _check_clips(plan: Plan) -> None:
    known = audio.clips()
    for line in plan.scenario.lines:
        if line.clip not in known:
            raise ValueError(f"scenario {plan.scenario.name}: unknown clip {line.clip!r}; see `voicekit list`")
        _ = known[line.clip].samples  # a damaged file is said here, in one line
    if plan.target == "simulator":
        _check_files()


@cache
def _check_files() -> None:
    """The simulated ears compare with any clip, so a damaged one that nobody says matters as well."""
    for clip in audio.clips().values():
        is_known = clip.sha256 and clip.path.is_file()
        if not is_known or hashlib.sha256(clip.path.read_bytes()).hexdigest() != clip.sha256:
            _ = clip.samples  # decoded only where the checksum does not say enough


def several(name: str, value: Any) -> list[Any]:
    """What a sweep goes through, as a list. Raises ValueError for a single one, and for none at all."""
    if isinstance(value, (str, Mapping, Policy)) or not isinstance(value, Iterable):
        raise ValueError(f"{name} is a list, also of one: [{value!r}]")
    found = list(value)
    if not found:
        raise ValueError(f"{name} is empty; a sweep needs at least one of each")
    return found


def check_sweep(n: Any, wanted: list[Any], policies: list[Any]) -> None:
    """Raise ValueError for a number of runs below one, a metric that no run has, and a policy that is none."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n is how often each combination is run, a whole number from 1 on, not {n!r}")
    known = [*measure([], []), "audio_check_ms"]
    if strange := [each for each in wanted if each not in known]:
        raise ValueError(unknown("metrics: no metric", strange[0], known))
    for policy in policies:
        if not isinstance(policy, Policy):
            raise ValueError(f"policies is a list of vk.Policy(...), not of {policy!r}")
