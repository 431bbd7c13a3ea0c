"""What became of a write whose answer nobody heard: the outside is asked, before anything is repeated or reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from voicekit.ledger import WAITING, Ledger
from voicekit.results import Result, as_result, cancelled, failed, unknown
from voicekit.tools import Tool


class Recovery:
    """Settles calls of `tools` in `ledger` whose end is not known; `notify` as in `ToolBackend`."""

    def __init__(self, tools: Mapping[str, Tool], ledger: Ledger, notify: Callable[..., object]) -> None:
        self._tools = tools
        self._ledger = ledger
        self._notify = notify

    def settle(self, at: float, alive: Collection[str] = ()) -> list[str]:
        """Settle what a process that ended has left in the ledger; return the call ids that stay unknown.

        What never ran is cancelled, what only read has failed. A write may have happened: the outside is asked.
        `alive`: the ids of calls that this process is running.
        """
        for row in self._ledger.rows():
            call_id, tool = row["call_id"], self._tools.get(row["tool"])
            if row["state"] in WAITING:
                self._ledger.move(call_id, "cancelled", at=at, result=cancelled())
            elif row["state"] == "running" and call_id not in alive:
                if tool is not None and tool.effect == "read":
                    self._ledger.move(call_id, "failed", at=at, result=failed(reason="process_ended", retryable=True))
                    continue
                self._ledger.move(call_id, "unknown", at=at, result=unknown(reason="process_ended"))
                if row["effect"] == "none":
                    self._ledger.set_effect(call_id, "unknown", at=at)
        unknowns = [row for row in self._ledger.rows() if row["state"] == "unknown"]
        unsure = [row["call_id"] for row in unknowns if row["repeats"] is None and self.look(row, at) is None]
        for row in unknowns:  # one that was to be given another's answer ends as that one did
            first = self._ledger.row(row["repeats"]) if row["repeats"] else None
            if first is not None and first["state"] in ("done", "failed"):
                result = json.loads(first["result"]) if first["result"] else None
                self._ledger.move(row["call_id"], first["state"], at=at, result=result)
        return unsure

    def look(self, row: Mapping[str, Any], at: float) -> Result | None:
        """Ask the outside whether the call of a ledger row was done; if so, write it down and return its result."""
        tool = self._tools.get(row["tool"])
        if tool is None or tool.find_effect is None or not row["key"]:
            return None
        found = tool.find_effect(row["key"], json.loads(row["arguments"]))
        if found is None:
            return None
        result = as_result(found)
        if row["effect"] != "committed":
            if self._ledger.set_effect(row["call_id"], "committed", at=at):
                self._notify("committed", call_id=row["call_id"], text=f"{tool.name}, found by looking")
            else:  # it is counted for another call with this key
                self._ledger.set_effect(row["call_id"], "none", at=at)
        self._ledger.move(row["call_id"], "done", at=at, result=result)
        return result
