"""The tool backend: takes a call through its states, with latency, faults and effects, and writes each step down.

    propose -> validate -> run -> deliver

Every step is in the ledger before the next one begins, so that after a crash it says what may have happened. A write
has an idempotency key (tool, arguments, request): an order that comes in twice is carried out once.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from voicekit.arguments import InvalidArguments
from voicekit.budget import Budget
from voicekit.gate import Admission, Gate
from voicekit.ledger import WAITING, Ledger, LedgerError, State, canonical
from voicekit.recovery import Recovery
from voicekit.results import Result, as_result, cancelled, failed, problem, unknown
from voicekit.running import Cancellation as Cancellation
from voicekit.running import Running
from voicekit.tools import Tool

# A tool that takes exactly as long as the limit has answered in time; a latency in two parts may add up to a hair more.
TIE_SECONDS = 1e-6
# The state of a call after a result with this status.
STATE_AFTER: dict[str, State] = {
    "ok": "done", "no_results": "done", "invalid_argument": "failed", "failed": "failed", "unknown": "unknown",
    "cancelled": "cancelled", "needs_consent": "cancelled",
}  # fmt: skip


class ToolBackend:
    """Runs calls of `tools` and writes them into `ledger`.

    random_  where latencies are drawn from: same seed, same run
    now      the seconds that go into the ledger; default: the running loop's time
    notify   called as `notify(kind, call_id=..., text=...)` for what only the backend sees: an effect "committed" or
             "undone", an error a tool "raised" (its text is for the developer, never for the model)
    gate     what a call has to pass before it runs, whatever way it came; default: open on every known route
    budget   how much may be run; a call beyond it goes to the ledger's queue, for a person; default: no limit

    Raises ValueError for two tools of one name.
    """

    def __init__(
        self, tools: Iterable[Tool], ledger: Ledger, random_: random.Random | None = None, *,
        now: Callable[[], float] | None = None, notify: Callable[..., object] | None = None,
        gate: Gate | None = None, budget: Budget | None = None,
    ) -> None:  # fmt: skip
        self._tools: dict[str, Tool] = {}
        for each in tools:
            if each.name in self._tools:
                raise ValueError(f"two tools are called {each.name}; the model could not tell them apart")
            self._tools[each.name] = each
        self.ledger = ledger
        self.gate = gate or Gate()
        self.budget = budget or Budget()
        self._random = random_ or random.Random(0)
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._notify = notify or (lambda kind, **detail: None)
        self._recovery = Recovery(self._tools, ledger, self._notify)
        self._runs: Counter[str] = Counter()
        self._running: dict[str, Running] = {}
        self._closed = False
        self._late: set[asyncio.Task[Any]] = set()  # writes that go on after their time-out

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools, in the order they were given."""
        return tuple(self._tools)

    def declarations(self, behavior: str | None = None) -> tuple[dict[str, Any], ...]:
        """What a session is told: dicts with name, description, parameters and, if given, behavior."""
        extra = {"behavior": behavior} if behavior else {}
        return tuple(
            {"name": each.name, "description": each.description, "parameters": copy.deepcopy(each.parameters)} | extra
            for each in self._tools.values()
        )

    def tool(self, name: str) -> Tool:
        """The tool of that name. Raises InvalidArguments naming the known ones."""
        if name not in self._tools:
            known = ", ".join(self.names) or "none"
            raise InvalidArguments("unknown_tool", f"there is no tool {name[:64]!r}; known: {known}", self.names)
        return self._tools[name]

    # --- the steps of a call -----------------------------------------------------------------------------------------

    def propose(
        self, call_id: str, name: str, arguments_json: str, *, request: str = "", model: str = "", route: str = "direct"
    ) -> bool:
        """Enter a call as it came in, by one of `gate.ROUTES`. False if its id is known: it was delivered twice.

        `request` names the caller's wish that the call serves; without one, every call id is a wish of its own.
        """
        version = self._tools[name].schema_version if name in self._tools else ""  # of what the model has read
        about = {"request": request, "model": model, "route": route, "schema_version": version}
        return self.ledger.propose(call_id, name, arguments_json, at=self._at(), **about)

    def validate(self, call_id: str, name: str, arguments_json: str) -> dict[str, Any]:
        """Check a proposed call and return its arguments. Raises InvalidArguments after entering it as rejected."""
        try:
            tool = self.tool(name)
            arguments = tool.validate(arguments_json)
        except InvalidArguments as error:
            self.reject(call_id, error.result())
            raise
        self.ledger.move(call_id, "validated", at=self._at(), arguments=canonical(arguments))
        return arguments

    def reject(self, call_id: str, result: Result) -> bool:
        """Refuse a call that has not been run. False if it has."""
        return self.ledger.move(call_id, "rejected", at=self._at(), result=result)

    def admission(self, call_id: str) -> Admission:
        """What the gate says to a validated call.

        Nobody has to be asked about one that will not run: the "repeat" of an order has its answer, and one beyond the
        budget is left to a person ("ruled_out"). An order whose end is unknown is no repeat: it may be run again.
        """
        row = self.ledger.row(call_id) or {}
        first = self.ledger.find(key) if (key := self._key(row)) else None
        if first is not None and (first["effect"] == "committed" or first["state"] == "running"):
            return "repeat"
        if self.budget.reached(self._at()):
            return "ruled_out"
        tool, arguments = self.tool(row["tool"]), json.loads(row["arguments"])
        return self.gate.admission(tool, arguments, route=row["route"], at=self._at())

    async def run(self, call_id: str, timeout: float = 30.0) -> Result:  # noqa: ASYNC109 - see `_give_up`
        """Run a validated call, at most `timeout` seconds, and return its result, whatever the tool does.

        A call id runs once: asked again, it gives the same result. So does a second call with the key of a write that
        is done; when nobody knows how the first one ended, the outside is asked before anything is repeated. Beyond
        the budget nothing runs, nor without what the gate wants, which has a say in the result as well. A write that
        does not answer in time is "unknown", a read "failed". Raises ValueError for a call not validated.
        """
        row = self.ledger.row(call_id)
        if row is None or row["state"] in ("proposed", "arguments_complete"):
            raise ValueError(f"call {call_id!r} is {row['state'] if row else 'not in the ledger'}; validate it first")
        result = await self._run_once(row, timeout)
        if (self.ledger.row(call_id) or row)["state"] == "rejected":
            return result  # it has been ruled on
        return self.gate.let_out(self.tool(row["tool"]), json.loads(row["arguments"]), result)

    async def _run_once(self, row: dict[str, Any], timeout: float) -> Result:  # noqa: ASYNC109 - as above
        call_id: str = row["call_id"]
        if call_id in self._running:
            return await asyncio.shield(self._running[call_id].ending)
        if row["state"] != "validated":
            return self._not_started(call_id)
        tool, arguments = self.tool(row["tool"]), json.loads(row["arguments"])
        if self._closed:
            self.cancel(call_id)
            return cancelled(reason="closed")
        key = self._key(row)
        if key and (answer := await self._answer_of_first(call_id, tool, key, timeout)) is not None:
            self.gate.spend(tool.name, arguments)
            return answer
        if why := self.budget.reached(self._at()):
            self.gate.spend(tool.name, arguments)  # a yes to it is none to the next one
            return self._hand_over(call_id, why)
        refused = self.gate.admit(tool, arguments, route=row["route"], at=self._at())
        if refused is not None:
            self.reject(call_id, refused)
            return refused
        if not self.ledger.start(call_id, at=self._at(), key=key or None):
            return self._not_started(call_id)
        self.budget.begin(self._at())
        self._runs[tool.name] += 1
        fault, latency = tool.fault(self._runs[tool.name]), tool.latency(self._random)
        running = self._running[call_id] = Running(call_id, tool, arguments, key, fault, latency)
        running.work = asyncio.create_task(self._work(running), name=f"tool call {call_id}")
        running.ending = asyncio.create_task(self._end(running, timeout), name=f"end of tool call {call_id}")
        try:
            return await asyncio.shield(running.ending)
        except asyncio.CancelledError:  # who waited has gone; what can not be stopped goes on, and is written down
            self.cancel(call_id)
            raise

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str = "", request: str = "", route: str = "direct",
        timeout: float = 30.0,  # noqa: ASYNC109 - as above
    ) -> Result:  # fmt: skip
        """All steps at once, for a program that is no model. Invalid arguments are answered as a model would see it."""
        call_id = call_id or f"call_{len(self.ledger.rows()) + 1:04}"
        self.propose(call_id, name, json.dumps(dict(arguments)), request=request, route=route)
        try:
            self.validate(call_id, name, json.dumps(dict(arguments)))
        except InvalidArguments as error:
            return error.result()
        return await self.run(call_id, timeout)

    def cancel(self, call_id: str) -> Cancellation:
        """Call a call off, whether it runs or still waits to be run. An unknown id is ignored (outcome "over")."""
        running = self._running.get(call_id)
        if running is None:
            row = self.ledger.row(call_id)
            if row is None or row["state"] not in WAITING:
                return Cancellation("over")
            self.ledger.move(call_id, "cancelled", at=self._at(), result=cancelled())
            return Cancellation("cancelled")
        if running.committed:
            return Cancellation("committed", running.tool.compensation)
        if not running.tool.cancellable or (running.acting and running.tool.effect != "read"):
            return Cancellation("running")
        running.work.cancel()
        return Cancellation("cancelled")

    def deliver(self, call_id: str) -> bool:
        """Note that the answer goes out to the model. False if one did before."""
        return self.ledger.deliver(call_id, at=self._at())

    # --- after trouble -----------------------------------------------------------------------------------------------

    def recover(self, at: float) -> list[str]:
        """Settle what a process that ended has left in the ledger; return the call ids that stay unknown.

        What never ran is cancelled, what only read has failed. A write may have happened: the outside is asked.
        """
        return self._recovery.settle(at, self._running)

    async def settle(self) -> None:
        """Wait for the effects that come after their time-out."""
        if self._late:
            await asyncio.wait(self._late)

    async def close(self) -> None:
        """Stop all that is under way and write down how it ended; from now on nothing starts."""
        self._closed = True
        tasks = [*(running.ending for running in self._running.values()), *self._late]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- at the other end of the line --------------------------------------------------------------------------------

    async def _work(self, running: Running) -> Any:
        tool, fault = running.tool, running.fault
        if fault and fault.kind in ("time_out", "late_commit"):
            if fault.seconds is not None:
                await asyncio.sleep(fault.seconds)
                await self._act(running)
            await running.left.wait()
            return None
        way_there = running.latency * tool.commits_at
        await asyncio.sleep(way_there)
        if fault and fault.kind == "error":
            value: Any = failed(tool.sentences["error"], retryable=True)
        else:
            value = await self._act(running)
        await asyncio.sleep(running.latency - way_there)
        if fault and fault.kind == "empty":
            return {}
        return [value] if fault and fault.kind == "wrong_shape" else value

    async def _act(self, running: Running) -> Any:
        """Call the function. From here on a write can not be called off; once it has returned "ok", it is committed."""
        running.acting = True
        value = await running.tool.call(running.arguments, running.key)
        happened = running.tool.effect != "read" and problem(value) is None and value["status"] == "ok"
        if happened and not running.left.is_set():  # after a time-out nobody here hears of it
            self._commit(running)
        return value

    def _commit(self, running: Running) -> None:
        running.committed = True
        if not self.ledger.set_effect(running.call_id, "committed", at=self._at()):
            return  # the other side recognised the key: the effect is that of an earlier call
        self._notify("committed", call_id=running.call_id, text=running.tool.name)
        undoes = [each.name for each in self._tools.values() if each.compensation == running.tool.name]
        undone = self.ledger.undo(undoes, canonical(running.arguments), at=self._at())
        if undone is not None:
            self._notify("undone", call_id=undone, text=f"by {running.call_id}")

    # --- how a call ends ---------------------------------------------------------------------------------------------

    async def _end(self, running: Running, limit: float) -> Result:
        """Wait for the work, at most `limit` seconds, and write down how it ended."""
        work, sentences = running.work, running.tool.sentences
        try:
            is_tie = running.latency == limit and running.fault is None
            await asyncio.wait({work}, timeout=limit + TIE_SECONDS if is_tie else limit)
            if not work.done():
                state, result = self._give_up(running)
            elif work.cancelled():
                state, result = "cancelled", cancelled(sentences["cancelled"])
            else:
                state, result = self._judge(running)
            self._write_end(running, state, result)
        except asyncio.CancelledError:  # the run is being closed
            work.cancel()
            if running.acting and running.tool.effect != "read":
                self._write_end(running, "unknown", unknown(sentences["time_out"], reason="closed"))
            else:
                self._write_end(running, "cancelled", cancelled(sentences["cancelled"], reason="closed"))
            raise
        finally:
            self.budget.end(self._at())
            del self._running[running.call_id]
        return result

    def _give_up(self, running: Running) -> tuple[State, Result]:
        """The time limit. A read can be dropped; a write goes on without us, to an end that nobody here will see."""
        running.left.set()
        sentence = running.tool.sentences["time_out"]
        if running.tool.effect == "read":
            running.work.cancel()
            return "failed", failed(sentence, reason="time_out", retryable=True)
        self._late.add(running.work)
        running.work.add_done_callback(self._late.discard)
        running.work.add_done_callback(lambda work: work.cancelled() or work.exception())  # seen: asyncio need not warn
        return "unknown", unknown(sentence, reason="time_out", retryable=running.tool.can_be_asked)

    def _judge(self, running: Running) -> tuple[State, Result]:
        """What an answer, or the lack of a usable one, says of the call."""
        tool, sentence, error = running.tool, running.tool.sentences["error"], running.work.exception()
        if isinstance(error, LedgerError):
            raise error  # what can not be written down is no tool's fault, and nothing to go on after
        if error is None and problem(running.work.result()) is None:
            result = as_result(running.work.result())
            return STATE_AFTER[result["status"]], result
        if error is not None:
            self._notify("raised", call_id=running.call_id, text=f"{type(error).__name__}: {error}")
        elif running.fault is None:
            returned = f"{tool.name} returned {running.work.result()!r:.60}"
            self._notify("raised", call_id=running.call_id, text=f"{returned}, which is no result: return vk.ok(...)")
        result = failed(sentence) if error else as_result(running.work.result(), sentence)
        if tool.effect == "read":
            return "failed", result
        found = tool.find_effect(running.key, running.arguments) if tool.find_effect else None
        if found is not None:
            if not running.committed:
                self._commit(running)
            return "done", as_result(found)
        not_done = tool.find_effect is not None and not running.committed
        if error is not None and not_done and not isinstance(error, OSError):  # TimeoutError is one: it may happen yet
            return "failed", result
        return "unknown", unknown(sentence, reason=result["reason"], retryable=tool.can_be_asked)

    def _write_end(self, running: Running, state: State, result: Result) -> None:
        self.ledger.move(running.call_id, state, at=self._at(), result=result)
        if state == "unknown" and not running.committed:
            self.ledger.set_effect(running.call_id, "unknown", at=self._at())

    # --- the same order again ----------------------------------------------------------------------------------------

    async def _answer_of_first(self, call_id: str, tool: Tool, key: str, limit: float) -> Result | None:
        """The answer of an earlier call with the same key; None if there was none, or if repeating it is safe."""
        while (first := self.ledger.find(key)) is not None:
            if (running := self._running.get(first["call_id"])) is not None:
                ended, _ = await asyncio.wait({running.ending}, timeout=limit)
                if ended:
                    continue  # look again, how
                late = unknown(tool.sentences["time_out"], reason="time_out", retryable=True)
                return self._repeat(call_id, first, "unknown", late)
            known = first["state"] == "done" and first["effect"] == "committed"
            answer = self.ledger.result(first["call_id"]) if known else self._recovery.look(first, self._at())
            if answer is not None:
                return self._repeat(call_id, first, "done", answer)
            if tool.key_parameter is None or first["effect"] == "committed":
                return self._repeat(call_id, first, "unknown", unknown(tool.sentences["time_out"], reason="not_known"))
            # The other side knows the key: done again, it has no second effect. A row of a dead process gives way.
            self.ledger.move(first["call_id"], "unknown", at=self._at())
            return None
        return None

    def _key(self, row: Mapping[str, Any]) -> str:
        """The idempotency key of a validated call; "" for one that changes nothing."""
        tool = self.tool(row["tool"])
        return "" if tool.effect == "read" else tool.key(json.loads(row["arguments"]), row["request"] or row["call_id"])

    def _repeat(self, call_id: str, first: dict[str, Any], state: State, result: Result) -> Result:
        """Give a call the answer of the `first` with the same key."""
        self.ledger.move(call_id, state, at=self._at(), result=result, key=first["key"], repeats=first["call_id"])
        return result

    def _hand_over(self, call_id: str, why: str) -> Result:
        """The answer of a call that a person is to see to."""
        result = self.budget.refusal(why)
        if not self.ledger.hand_over(call_id, why, at=self._at(), result=result):
            return self._not_started(call_id)
        self._notify("queued", call_id=call_id, text=why)
        return result

    def _not_started(self, call_id: str) -> Result:
        """The answer of a call that ran, was called off or refused before, or that another process is running."""
        if (result := self.ledger.result(call_id)) is not None:
            return result
        row = self.ledger.row(call_id) or {}
        if row.get("state") in ("cancelled", "rejected"):
            return cancelled(reason=row["state"])
        return unknown(reason="in_progress", retryable=True)

    def _at(self) -> float:
        return round(self._now(), 6)
