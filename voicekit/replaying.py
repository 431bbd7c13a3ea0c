"""A finished run's calls, made once more against changed tools: what would be different, call by call."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from voicekit.arguments import InvalidArguments
from voicekit.backend import ToolBackend
from voicekit.clock import run_blocking
from voicekit.gate import ROUTES, Gate
from voicekit.ledger import Ledger
from voicekit.runs import Run
from voicekit.tools import Tool

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "call_id", "tool", "arguments", "schema", "accepted_then", "accepted_now", "then", "now", "result", "difference",
)  # fmt: skip
MISSING = object()
Row = dict[str, Any]


def replay(run: Run, tools: Iterable[Tool]) -> pd.DataFrame:
    """Make the calls of a run (also a loaded one) again with `tools`, and return what is different, one row per call.

    schema          "same", "changed" or "gone": what the model read of the tool then, and what it would read now;
                    "not recorded" for a run that was saved without it
    accepted_then, accepted_now   whether the arguments were valid
    then, now       the state the call ended in, and its effect if it had one; "not run" for one that is left alone
    result          "same" or "changed", by the hash; None where it did not end in a result both times
    difference      the first field that differs, as "field: then -> now"; None if none does

    The calls are made in the order of their proposals, each to its end before the next, in a fresh ledger, with no
    model and in virtual time; so what is different comes from the tools. Consents are taken from the record: a call
    that ran then had passed the gate, and is granted the same yes, for the same arguments, just before it is made. One
    that was not run then, because nobody agreed, a rule or the budget stopped it, or it was called off, is checked and
    not run now either; only where its arguments were at fault it is tried. Guardrails are functions and are not saved
    with a run; none is applied. Raises ValueError for what is no Tool.
    """
    import pandas as pd

    given = tuple(tools)
    if strange := [each for each in given if not isinstance(each, Tool)]:
        raise ValueError(f"tools to replay with are Tool objects (vk.tool makes them), not {strange[0]!r}")
    rows = run_blocking(lambda: _replay(run, given))
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


async def _replay(run: Run, tools: tuple[Tool, ...]) -> list[Row]:
    policy: Mapping[str, Any] = run.meta.get("policy", {})
    listed = policy.get("without_asking")
    with Ledger() as ledger:
        seeded = random.Random(f"{run.meta.get('seed', 0)}/tools")
        backend = ToolBackend(tools, ledger, seeded, gate=Gate(listed))
        for then in run.call_rows:
            await _again(backend, then, float(policy.get("tool_timeout", 30.0)))
        await backend.settle()
        return [_compared(then, ledger.row(then["call_id"]) or {}, backend.names) for then in run.call_rows]


async def _again(backend: ToolBackend, then: Row, limit: float) -> None:
    call_id, name, text = then["call_id"], then["tool"], then["arguments"]
    route = then.get("route") if then.get("route") in ROUTES else "direct"
    about = {"request": then.get("request") or "", "model": then.get("model") or "", "route": str(route)}
    backend.propose(call_id, name, text, **about)
    try:
        arguments = backend.validate(call_id, name, text)
    except InvalidArguments:
        return  # it is in the ledger as rejected
    ran = then["started"] is not None
    if not (ran or then.get("repeats") or not _accepted(then)):
        backend.cancel(call_id)
        return
    if ran:
        backend.gate.grant(name, arguments, at=backend.ledger.history(call_id)[-1][1])
    await backend.run(call_id, limit)


def _compared(then: Row, now: Row, names: tuple[str, ...]) -> Row:
    before, after = _result(then), _result(now)
    was_made = then["started"] is not None or then.get("repeats") or not _accepted(then)
    ended = bool(before and after and was_made)
    differs = then.get("result_sha256") != now.get("result_sha256")
    version = then.get("schema_version")
    schema = "same" if version == now["schema_version"] else "changed" if version else "not recorded"
    return {
        "call_id": then["call_id"],
        "tool": then["tool"],
        "arguments": then["arguments"],
        "schema": schema if then["tool"] in names else "gone",
        "accepted_then": _accepted(then),
        "accepted_now": _accepted(now),
        "then": _ended(then),
        "now": _ended(now) if was_made or not _accepted(now) else "not run",
        "result": ("changed" if differs else "same") if ended else None,
        "difference": _first_difference(before, after) if ended and differs else None,
    }


def _accepted(row: Row) -> bool:
    """Whether the arguments were valid: only what was wrong with them is answered in this way."""
    return not (row["state"] == "rejected" and _result(row).get("status") == "invalid_argument")


def _result(row: Row) -> dict[str, Any]:
    return json.loads(row["result"]) if row.get("result") else {}


def _ended(row: Row) -> str:
    why = _result(row).get("reason") if row["state"] == "rejected" else None
    return ", ".join([row["state"], *([why] if why else []), *([row["effect"]] if row["effect"] != "none" else [])])


def _first_difference(then: Any, now: Any, where: str = "") -> str | None:
    """The first place in which two JSON values differ, the status before all else; None if they are equal."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys(["status", *then, *now]):
            place = f"{where}.{key}" if where else key
            if found := _first_difference(then.get(key, MISSING), now.get(key, MISSING), place):
                return found
        return None
    return None if then == now else f"{where}: {_short(then)} -> {_short(now)}"


def _short(value: Any) -> str:
    text = "nothing" if value is MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 70 else text[:69] + "…"
