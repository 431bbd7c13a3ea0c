"""What the application does with a tool call: the code the workshop is about.

The model executes nothing. It proposes a call, and then the five steps are the application's:

    1 propose    complete arguments have arrived (a cut-off call is never run)
    2 validate   name, types, schema; what is wrong goes back to the model, which may repair it once
    3 run        with a time limit, and off the loop where it must be; an effect is in the ledger before it is told
    4 answer     with the same id, exactly once
    5 speak      ask for speech, if the provider does not start by itself, in a moment in which it does not collide
"""

from __future__ import annotations

import asyncio
import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from voicekit.arguments import InvalidArguments
from voicekit.backend import ToolBackend
from voicekit.conversation import PATIENCE_SECONDS, Conversation
from voicekit.journal import Journal
from voicekit.metrics import words_of
from voicekit.models import data_path
from voicekit.policy import Delivery, Policy
from voicekit.sessions.base import Event, Heard, NotSupported, SessionError, ToolCall, ToolCallCancelled, Work

# A conversation that leaves no pause for a result within this many seconds is a problem worth noting.
SPEECH_WAIT_SECONDS = 60.0
# How long a model may take to begin a turn that was asked for.
TURN_WAIT_SECONDS = 10.0
# Within one session the same tool with the same arguments is the same intended action, whatever ids it comes under.
REQUEST = "session"
# What a model is told instead of a result that is dropped: a call id has to be answered all the same.
SUPERSEDED = {
    "status": "superseded",
    "summary": "The caller has changed or withdrawn this request.",
    "next_hint": "Say nothing about it.",
}
REPAIRS = 1  # a model may repair a call once; the second time it is told to stop


@cache
def withdrawals() -> tuple[str, ...]:
    """Phrases that withdraw a request, in lower case, from data/withdrawals.csv."""
    with data_path("withdrawals.csv").open(newline="", encoding="utf-8") as file:
        return tuple(row["phrase"].lower() for row in csv.DictReader(file))


def withdraws(text: str) -> bool:
    """Whether an utterance takes back what was asked for: a phrase of data/withdrawals.csv anywhere in it."""
    plain = text.lower().replace("\u2019", "'")
    return any(phrase in plain for phrase in withdrawals())


@dataclass(eq=False)
class Call:
    """One call on its way through the five steps. Times in session seconds."""

    id: str
    name: str
    arguments_json: str
    turn: str
    proposed: float
    caller_turn: int  # utterances the provider had heard when the call was proposed
    broken: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    answered: bool = False
    withdrawn: bool = False  # by the provider; it expects no answer any more
    outdated: str = ""  # why the result is not wanted any more: changed or withdrawn by the caller
    task: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        return not self.answered and not self.withdrawn


@dataclass(frozen=True)
class Moment:
    """What a `delivery` function may look at when a result comes in."""

    tool: str
    caller_speaking: bool
    agent_speaking: bool
    caller_turns_since: int  # utterances heard since the call was proposed
    seconds_since: float


class Dispatcher:
    """Handles the calls of one session: feed it the session's events with `on`."""

    def __init__(
        self,
        conversation: Conversation,
        backend: ToolBackend,
        policy: Policy,
        journal: Journal,
        now: Callable[[], float],
        model: str = "",
    ) -> None:
        self.model = model
        self.conversation = conversation
        self.session = conversation.session
        self.backend = backend
        self.policy = policy
        self.journal = journal
        self.now = now
        self.calls: dict[str, Call] = {}
        self.failure: Exception | None = None
        self._repairs: Counter[str] = Counter()
        self._asking = asyncio.Lock()  # one request for speech at a time
        self._owed: dict[str, tuple[float, set[str]]] = {}  # results the model is to say: since when, their words
        conversation.calls_open = lambda: any(call.open for call in self.calls.values())
        conversation.on_barge_in = self.interrupted
        journal.listen(self._on_journal)

    @property
    def busy(self) -> bool:
        """Whether a call is on its way or a result was handed over that the caller has not heard yet."""
        if any(call.task is not None and not call.task.done() for call in self.calls.values()):
            return True
        return any(self.conversation.may_still_answer(since) for since, _ in self._owed.values())

    async def on(self, event: Event) -> None:
        """Take in one event of the session."""
        if isinstance(event, ToolCall):
            self._propose(event)
        elif isinstance(event, ToolCallCancelled):
            for call_id in event.call_ids:
                self._withdraw(call_id)
        elif isinstance(event, Work) and event.status != "in_progress":
            for call_id in self.calls:  # the backend has read what it was given, and says what comes of it
                self._owed.pop(call_id, None)
        elif isinstance(event, Heard) and event.final and withdraws(event.text):
            for call in self._open_calls():
                self.outdate(call, f'the caller said "{event.text}"')
            self.interrupted("the caller withdrew the request")

    async def settle(self) -> None:
        """The session is gone: let what runs come to its end, so that its answer is not lost."""
        if tasks := [call.task for call in self.calls.values() if call.task is not None and not call.task.done()]:
            await asyncio.wait(tasks, timeout=self.policy.tool_timeout)

    async def close(self) -> None:
        """The session is over: stop what still runs; a call that cannot be stopped is left to the ledger."""
        tasks = [call.task for call in self.calls.values() if call.task is not None and not call.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.backend.close()

    # 1 propose

    def _propose(self, event: ToolCall) -> None:
        """Register the call before anything is awaited, so that a cancellation finds it; an id is taken once."""
        if event.call_id in self.calls:
            self._decide("ignored", event.call_id, "the same call id arrived twice; it runs once")
            return
        if not self.session.capabilities.delegates:
            self._owed.clear()  # the model has read what it was given, and goes on from there
        call = self.enter(event)
        call.task = asyncio.get_running_loop().create_task(self._handle(call), name=f"call {call.id}")
        call.task.add_done_callback(lambda _task: self.conversation.wake())

    def enter(self, event: ToolCall, route: str = "") -> Call:
        """Step 1 for a call from wherever; `route` names a way other than the session's."""
        call = Call(
            event.call_id, event.name, event.arguments, event.turn, self.now(), self.conversation.caller_turns, event.broken
        )
        self.calls[call.id] = call
        self._note(call, "proposed", text=call.name, arguments=call.arguments_json, turn=call.turn)
        about = {"request": REQUEST, "model": self.model, "route": route}
        self.backend.propose(call.id, call.name, call.arguments_json, **about)
        return call

    async def carry_out(self, call: Call) -> dict[str, Any]:
        """Steps 2 and 3, the same for every route."""
        return self._validate(call) or await self._run(call)

    async def _handle(self, call: Call) -> None:
        result: dict[str, Any] = {}
        try:
            result = await self.carry_out(call)
            await self._answer(call, result)
        except (SessionError, NotSupported) as error:
            text = str(result.get("summary") or error)
            self.journal.add("decision", "undelivered", call_id=call.id, text=text, why=str(error))
        except TimeoutError as error:
            self._decide("unspoken", call.id, str(error))
        except Exception as error:  # noqa: BLE001 - a fault of the kit: the run is kept, and says so
            self.failure = error
            raise

    # 2 validate

    def _validate(self, call: Call) -> dict[str, Any] | None:
        """Check name and arguments. Returns None, or the answer that tells the model what is wrong."""
        try:
            if call.broken:
                error = InvalidArguments("incomplete", f"{call.name}: the arguments were cut off; send them complete")
                self.backend.reject(call.id, error.result())
                raise error
            call.arguments = self.backend.validate(call.id, call.name, call.arguments_json)
        except InvalidArguments as error:
            self._repairs[call.name] += 1
            self._note(call, "rejected", text=str(error), reason=error.reason_code)
            if self._repairs[call.name] > REPAIRS:
                return error.result() | {"next_hint": "Do not call it again; tell the caller that it did not work."}
            return error.result()
        self._note(call, "validated", arguments=call.arguments)
        self._outdate_earlier(call)
        return None

    # 3 run

    async def _run(self, call: Call) -> dict[str, Any]:
        """The backend keeps the ledger up to date while it runs; what it returns always says how it ended."""
        if call.outdated and self.backend.tool(call.name).effect != "read":
            self.backend.cancel(call.id)  # checked before the write is made, and again before it is announced
        self._note(call, "running", text=call.name)
        result = await self.backend.run(call.id, timeout=self.policy.tool_timeout)
        row = self.backend.ledger.row(call.id) or {}
        kind = "timed_out" if result.get("reason") == "time_out" else row["state"]
        self._note(call, kind, text=result["summary"], status=result["status"], effect=row["effect"])
        return result

    # 4 answer

    async def _answer(self, call: Call, result: dict[str, Any]) -> None:
        if call.withdrawn:
            self._decide("dropped", call.id, "the provider withdrew the call and expects no answer")
            return
        can = self.session.capabilities
        if can.delegates:
            await self._until_backend_rests()
        result, delivery = self._settle(call, result)
        scheduled = delivery if can.can_schedule and self.behavior == "non_blocking" else None
        call.answered = True
        await self.session.send_result(call.id, result, delivery=scheduled)
        self.backend.deliver(call.id)
        summary = str(result.get("summary", ""))
        self._note(call, "answered", text=summary, delivery=delivery, final=True)
        waits = can.waits_for_result and self.conversation.caller_turns > call.caller_turn
        if delivery == "silent" and not waits:
            return  # a model that waited has the caller's next question to answer all the same
        if can.delegates:
            await self._let_backend_go_on(call)
        elif not can.implied_reply:
            await self._ask_for_speech(call, delivery)
            return
        self.owe(call.id, summary)

    def settled(self, call: Call, result: dict[str, Any]) -> tuple[dict[str, Any], Delivery]:
        """Step 4 for a call that the application made itself: what it is to be told, and when that is to be said."""
        result, delivery = self._settle(call, result)
        call.answered = True
        self._note(call, "answered", text=str(result.get("summary", "")), delivery=delivery, final=True)
        return result, delivery

    def owe(self, key: str, text: str) -> None:
        """From now on the caller may expect to hear `text`: until it was spoken, or nobody can expect it any more."""
        self._owed[key] = (self.now(), words_of(text))
        asyncio.get_running_loop().call_later(PATIENCE_SECONDS + 1e-3, self.conversation.wake)

    def _settle(self, call: Call, result: dict[str, Any]) -> tuple[dict[str, Any], Delivery]:
        """What the model is told, and when it is to say so. An effect that has happened is always told."""
        happened = (self.backend.ledger.row(call.id) or {}).get("effect") == "committed"
        if result["status"] == "cancelled" and call.outdated:
            return result, "silent"  # the caller knows: it was their wish
        if not call.outdated or happened or self.policy.stale == "speak":
            return result, self._delivery(call, result)
        if self.policy.stale == "silent":
            self._decide("stale_silent", call.id, f"kept as context only: {call.outdated}")
            return result, "silent"
        self._decide("stale_dropped", call.id, f"dropped: {call.outdated}")
        return SUPERSEDED, "silent"

    @property
    def behavior(self) -> str:
        return self.policy.behavior or self.session.capabilities.default_behavior

    def _delivery(self, call: Call, result: dict[str, Any]) -> Delivery:
        if not callable(self.policy.delivery):
            return self.policy.delivery
        moment = Moment(
            tool=call.name,
            caller_speaking=self.conversation.caller_speaking,
            agent_speaking=self.conversation.agent_speaking,
            caller_turns_since=self.conversation.caller_turns - call.caller_turn,
            seconds_since=self.now() - call.proposed,
        )
        chosen = self.policy.delivery(result, moment)
        self._decide("deliver", call.id, chosen)
        return chosen

    # 5 speak

    async def _ask_for_speech(self, call: Call, delivery: Delivery) -> None:
        """Ask once for all results of a turn, when nothing else is being said. "interrupt" makes that moment."""
        siblings = [each for each in self.calls.values() if each.turn == call.turn]
        if any(each.open for each in siblings):
            return  # the last of them asks for all
        ids = tuple(each.id for each in siblings if each.answered)
        async with self._asking:
            if delivery == "interrupt" and (self.conversation.agent_speaking or self.conversation.turn):
                self._decide("interrupt", call.id, "the agent's own sentence is cut off for the result")
                await self.conversation.stop_speaking()
            while True:
                await self.conversation.until(
                    lambda: self.conversation.quiet, SPEECH_WAIT_SECONDS, "a pause in which a result can be said"
                )
                before = self.conversation.collisions
                self._decide("respond", call.id, "asks the model to speak")
                await self.session.respond(ids)
                await self.conversation.until(
                    lambda before=before: self.conversation.started == ids or self.conversation.collisions > before,
                    TURN_WAIT_SECONDS,
                    "the model to begin the answer it was asked for",
                )
                if self.conversation.started == ids:
                    return

    async def _let_backend_go_on(self, call: Call) -> None:
        """A backend that works beside the conversation waits for its outputs only, not for a pause in the talk."""
        if any(each.open for each in self.calls.values() if each.turn == call.turn):
            return  # the last of them lets it go on
        await self._until_backend_rests()
        self._decide("respond", call.id, "lets the backend go on")
        await self.session.respond()

    async def _until_backend_rests(self) -> None:
        """What it works on may be a correction: only then is it known whether an earlier result is still wanted."""
        working = self.conversation.working
        await self.conversation.until(lambda: not working, TURN_WAIT_SECONDS, "the backend to end its response")

    # What else happens to a call

    def interrupted(self, why: str) -> None:
        """The caller took the floor: what becomes of the calls under way is `Policy.on_barge_in`'s to say."""
        for call in self._open_calls():
            tool = self.backend.tool(call.name)
            choice = self.policy.on_barge_in
            action = choice(tool) if callable(choice) else choice
            if action == "finish":
                self._decide("finish", call.id, f"{why}; the call runs on")
                continue
            outcome = self.backend.cancel(call.id)
            if outcome.outcome == "cancelled":
                self._decide("cancel", call.id, f"{why}; the call was stopped before it had an effect")
            elif outcome.outcome == "committed":
                undo = outcome.compensation or "nothing"
                self._decide("too_late", call.id, f"{why}; it has happened already, {undo} can undo it")
            else:
                self._decide("too_late", call.id, f"{why}; the call cannot be stopped and runs on")

    def _open_calls(self) -> list[Call]:
        return [call for call in self.calls.values() if call.open and call.arguments and call.name in self.backend.names]

    def _outdate_earlier(self, newer: Call) -> None:
        """A newer call for the same wish, with other arguments, makes the results of earlier ones out of date."""
        wish = self._wish(newer)
        for call in self._open_calls():
            if call is not newer and wish and self._wish(call) == wish and call.arguments != newer.arguments:
                self.outdate(call, f"the caller changed the request ({newer.id})")

    def _wish(self, call: Call) -> str:
        key = self.policy.revision_key
        return key(call.name, call.arguments) if key else self.backend.tool(call.name).wish

    def outdate(self, call: Call, why: str) -> None:
        """The result is not wanted any more; a write that has not begun is not begun."""
        if not call.outdated:
            call.outdated = why
            self._decide("outdated", call.id, why)
            if self.backend.tool(call.name).effect != "read":
                self.backend.cancel(call.id)

    def _withdraw(self, call_id: str) -> None:
        """The provider cancels a call: stop it if that is still possible; it gets no answer either way."""
        call = self.calls.get(call_id)
        if call is None or not call.open:
            return  # an id nobody proposed, or one that is answered: nothing to stop
        call.withdrawn = True
        self._note(call, "withdrawn", text="cancelled by the provider")
        self.backend.cancel(call.id)

    def _on_journal(self, event: dict[str, Any]) -> None:
        """A result is owed until speech with its words has been heard, or was begun and cut off by the caller."""
        if self._owed and event["lane"] == "heard" and event["kind"] == "played":
            heard = words_of(f"{event['text']} {event['detail']['unheard']}")
            for call_id, (_, words) in list(self._owed.items()):
                if len(words & heard) * 2 >= len(words):
                    del self._owed[call_id]

    def _note(self, call: Call, kind: str, *, text: str | None = None, **detail: Any) -> None:
        self.journal.add("tool", kind, call_id=call.id, text=text, tool=call.name, **detail)

    def _decide(self, kind: str, call_id: str, text: str) -> None:
        self.journal.add("decision", kind, call_id=call_id, text=text)
