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
from collections import Counter
from collections.abc import Callable
from typing import Any

from voicekit.arguments import InvalidArguments
from voicekit.asking import Asking
from voicekit.backend import ToolBackend
from voicekit.calls import SUPERSEDED as SUPERSEDED
from voicekit.calls import Call as Call
from voicekit.calls import Moment as Moment
from voicekit.conversation import Conversation
from voicekit.guardrails import SpeechRule
from voicekit.journal import Journal
from voicekit.models import provider
from voicekit.policy import CHOICES, Delivery, Policy, chosen
from voicekit.replies import TURN_WAIT_SECONDS, Replies
from voicekit.results import failed
from voicekit.sessions.base import (
    Event,
    Heard,
    NotSupported,
    Said,
    SessionError,
    ToolCall,
    ToolCallCancelled,
    Usage,
    Work,
)  # fmt: skip
from voicekit.speech_guard import SpeechGuard
from voicekit.spoken import Spoken
from voicekit.wishes import Wishes

ROUTE_OF = {"openai-realtime": "realtime", "gemini-live": "gemini", "gpt-live": "delegation"}
REPAIRS = 1  # a model may repair a call once; the second time it is told to stop


class Dispatcher:
    """Handles the calls of one session: feed it the session's events with `on`.

    Whether a call is still wanted is the business of `wishes`, whether the caller agrees to it that of `asking`, that
    its result is said that of `replies`. The gate itself is the backend's.
    """

    def __init__(
        self,
        conversation: Conversation,
        backend: ToolBackend,
        policy: Policy,
        journal: Journal,
        now: Callable[[], float],
        model: str = "",
        language: str = "en",
    ) -> None:
        if backend.gate.without_asking != policy.without_asking:
            raise ValueError("the backend's gate has another list than the policy; make it with Gate.of(policy)")
        self.model = model
        self.conversation = conversation
        self.session = conversation.session
        self.backend = backend
        self.policy = policy
        self.journal = journal
        self.now = now
        self.route = ROUTE_OF[provider(model)] if model else "realtime"
        # A ledger may hold the calls of earlier callers: what they ordered is not what this one orders.
        earlier = len(backend.ledger.rows())
        self.request = f"session after {earlier} calls" if earlier else "session"
        self.calls: dict[str, Call] = {}
        self.failure: Exception | None = None
        self._closed = False
        self.spoken = Spoken(journal)
        self.replies = Replies(conversation, self.calls, policy, journal, now)
        self.asking = Asking(conversation, self.replies, backend, self.calls, journal, now, language)
        rules = [rule for rule in policy.guardrails if isinstance(rule, SpeechRule)]
        self.speech_guard = SpeechGuard(rules, conversation, self.replies, journal)
        self.wishes = Wishes(self.asking, backend, policy, self.calls, journal, language)
        self._repairs: Counter[str] = Counter()
        conversation.calls_open = lambda: any(call.open for call in self.calls.values())
        conversation.on_barge_in = self.wishes.interrupted
        self.spoken.on_promise = self.replies.remind

    @property
    def busy(self) -> bool:
        """Whether a call is on its way or a result was handed over that the caller has not heard yet.

        A call that waits for the caller's yes is on its way no longer once they have heard the question.
        """
        tasks = [call for call in self.calls.values() if call.task is not None and not call.task.done()]
        waiting = [call for call in tasks if call.held is not None or call.id in self.asking.waiting]
        if len(tasks) > len(waiting) or (waiting and not self.asking.waits_for_caller):
            return True
        return self.replies.busy or self.speech_guard.busy

    @property
    def aborted(self) -> str:
        """Why a guardrail wants the conversation to end; "" while none does."""
        return self.backend.gate.aborted or self.speech_guard.aborted

    async def on(self, event: Event) -> None:
        """Take in one event of the session."""
        if isinstance(event, ToolCall):
            self._propose(event)
        elif isinstance(event, ToolCallCancelled):
            for call in [self.calls[call_id] for call_id in event.call_ids if call_id in self.calls]:
                if call.open:
                    self.wishes.withdrawn(call)
        elif isinstance(event, Work) and event.status != "in_progress":
            self.replies.taken_up()  # the backend has read what it was given, and says what comes of it
        elif isinstance(event, Said):
            self.speech_guard.on(event)
        elif isinstance(event, Usage):
            self.backend.budget.spend(event.tokens)
        elif isinstance(event, Heard):
            self.wishes.heard(event.text, final=event.final, item=event.item)

    async def settle(self) -> None:
        """The session is gone: let what runs come to its end, so that its answer is not lost."""
        self.asking.let_go("the session ended before the caller agreed")
        if tasks := [call.task for call in self.calls.values() if call.task is not None and not call.task.done()]:
            await asyncio.wait(tasks, timeout=self.policy.tool_timeout)

    async def close(self) -> None:
        """The session is over: stop what still runs; a call that cannot be stopped is left to the ledger."""
        self._closed = True  # first of all: a call that still arrives starts nothing
        await self.replies.close()
        await self.speech_guard.close()
        tasks = [call.task for call in self.calls.values() if call.task is not None and not call.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.backend.close()

    # 1 propose

    def _propose(self, event: ToolCall) -> None:
        """Register the call before anything is awaited, so that a cancellation finds it; an id is taken once."""
        if self._closed or event.call_id in self.calls:
            why = "the application is closed" if self._closed else "the same call id arrived twice; it runs once"
            self._decide("ignored", event.call_id, why)
            return
        if not self.session.capabilities.delegates:
            self.replies.taken_up()
        call = self.enter(event)
        call.task = asyncio.get_running_loop().create_task(self._handle(call), name=f"call {call.id}")
        call.task.add_done_callback(lambda _task: self.conversation.wake())

    def enter(self, event: ToolCall) -> Call:
        """Step 1 for a call from wherever in the session it comes."""
        turns = self.conversation.caller_turns
        call = Call(event.call_id, event.name, event.arguments, event.turn, self.now(), turns, event.broken)
        self.backend.budget.turn(turns, call.proposed)
        self.calls[call.id] = call
        self._note(call, "proposed", text=call.name, arguments=call.arguments_json, turn=call.turn)
        # Within one request the same tool with the same arguments is the same intended action, under whatever ids.
        requests = {"session": self.request, "turn": f"{self.request}, turn {call.caller_turn}", "call": ""}
        about = {"request": requests[self.policy.same_action], "model": self.model, "route": self.route}
        call.is_new = self.backend.propose(call.id, call.name, call.arguments_json, **about)
        return call

    async def carry_out(self, call: Call) -> dict[str, Any]:
        """Steps 2 and 3, the same for every route."""
        result = self._validate(call)
        if result is None:
            result = await self._consent(call)
        return await self._run(call) if result is None else result

    async def _handle(self, call: Call) -> None:
        result: dict[str, Any] = {}
        try:
            result = await self.carry_out(call)
            await (self._report(call, result) if call.pending else self._answer(call, result))
            await self.replies.say_results(call.turn)
        except (SessionError, NotSupported) as error:
            text = str(result.get("summary") or error)
            self.journal.add("decision", "undelivered", call_id=call.id, text=text, why=str(error))
        except TimeoutError as error:
            self._decide("unspoken", call.id, str(error))
        except Exception as error:
            self.failure = error
            raise

    # 2 validate

    def _validate(self, call: Call) -> dict[str, Any] | None:
        """Check name and arguments. Returns None, or the answer that tells the model what is wrong."""
        if not call.is_new:
            self._decide("ignored", call.id, "the ledger has a call of an earlier session under this id; it is not run")
            return failed(reason="call_id_taken", hint="Do not call it again; tell the caller that it did not work.")
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
        call.valid = True
        self._note(call, "validated", arguments=call.arguments)
        self.wishes.revised(call)
        return None

    async def _consent(self, call: Call) -> dict[str, Any] | None:
        """See that the caller has agreed where they have to. Returns None, or the answer of a call that is not run.

        "hold_until_confirmed" asks whatever the model has asked before: at this moment, about this call. A voice that
        handed the work over cannot be kept waiting, so there the yes it has heard counts.
        """
        admission = self.backend.admission(call.id)
        if admission in ("unknown_route", "ruled_out", "repeat"):
            return None  # nobody is asked for what will not run; the backend has an answer
        is_held = self.wishes.on_barge_in(call) == "hold_until_confirmed"
        if admission == "open" and not is_held:
            if self.backend.tool(call.name).effect != "read":
                self.asking.notice(call)
            return None
        self.asking.waiting.add(call.id)
        async with self.asking.one_at_a_time:
            self.asking.waiting.discard(call.id)
            # Meanwhile the request may have been taken back, or a twin of this call may have been begun.
            if call.outdated or call.withdrawn or self.backend.admission(call.id) == "repeat":
                return None
            counts = self.session.capabilities.delegates or not is_held
            if counts and await self.asking.has_agreed(call):
                return None
            return await self.asking.confirm(call)

    # 3 run

    async def _run(self, call: Call) -> dict[str, Any]:
        """The backend keeps the ledger up to date while it runs; what it returns always says how it ended."""
        if (call.outdated or call.withdrawn) and self.backend.tool(call.name).effect != "read":
            self.backend.cancel(call.id)  # checked before the write is made, and again before it is announced
            self.backend.gate.revoke()  # a yes to it opens no later one
        self._note(call, "running", text=call.name)
        result = await self.backend.run(call.id, timeout=self.policy.tool_timeout)
        row = self.backend.ledger.row(call.id) or {}
        if result.get("reason") == "guardrail":
            self._decide("guardrail", call.id, str(result["next_hint"]))
        kind = "timed_out" if result.get("reason") == "time_out" else row["state"]
        self._note(call, kind, text=result["summary"], status=result["status"], effect=row["effect"])
        return result

    # 4 answer

    async def _answer(self, call: Call, result: dict[str, Any]) -> None:
        if call.withdrawn:
            self._decide("dropped", call.id, "the provider withdrew the call and expects no answer")
            if news := self.wishes.news_of_withdrawn(call, result):
                await self._tell(call, news)
            return
        can = self.session.capabilities
        if can.delegates:
            await self._until_backend_rests()
        result, delivery = self._settle(call, result)
        scheduled = delivery if can.can_schedule and self.replies.behavior == "non_blocking" else None
        if scheduled not in (None, "silent"):
            await self._clear_of_turn_end(call)
        call.answered = True
        await self.session.send_result(call.id, result, delivery=scheduled)
        self._note_answer(call, result, delivery)
        if can.delegates:
            await self._let_backend_go_on(call, result, delivery)
            return
        if delivery == "silent" and self.replies.can_be_silent and not self._waits_for_more(call):
            return
        if not can.implied_reply:
            call.delivery = delivery
            return
        self.replies.owe(call.id, str(result.get("summary", "")))

    def settled(self, call: Call, result: dict[str, Any]) -> tuple[dict[str, Any], Delivery]:
        """Step 4 for a call that the application made itself: what it is to be told, and when that is to be said."""
        result, delivery = self._settle(call, result)
        call.answered = True
        self._note(call, "answered", text=str(result.get("summary", "")), delivery=delivery, final=True)
        return result, delivery

    def _settle(self, call: Call, result: dict[str, Any]) -> tuple[dict[str, Any], Delivery]:
        """What the model is told, and when it is to say so.

        An effect that has happened is always told to the model. The caller hears of it too, unless they took back the
        request and `on_barge_in` lets calls finish: that drops the words. A voice that hands work over says nothing of
        its own about the end of a call, so there the caller is told nevertheless.
        """
        told, delivery = self._decided(call, result)
        if delivery == "silent" and not self.replies.can_be_silent and told["status"] == "ok":
            self._decide("cannot_be_silent", call.id, f"{self.model} says every result")
        self.spoken.check_result(call.id, str(told.get("summary", "")), is_said=delivery != "silent")
        return told, delivery

    def _decided(self, call: Call, result: dict[str, Any]) -> tuple[dict[str, Any], Delivery]:
        happened = (self.backend.ledger.row(call.id) or {}).get("effect") == "committed"
        if result["status"] == "cancelled" and call.outdated:
            # The caller knows, it was their wish; but who hands work over has so far only said that it is passed on.
            is_news = self.session.capabilities.delegates and self.backend.tool(call.name).effect != "read"
            return result, self._delivery(call, result) if is_news and self.policy.stale != "silent" else "silent"
        drops_words = not self.session.capabilities.delegates or self.policy.stale == "silent"
        if happened and call.called_off and not call.too_late and self.policy.stale != "speak" and drops_words:
            undo = self.backend.tool(call.name).compensation or "nothing"
            self._decide("not_said", call.id, f"it has happened and the model knows; {undo} can undo it")
            return SUPERSEDED | {"result": result}, "silent"
        if happened and (call.called_off or call.too_late):
            return self.wishes.told_all_the_same(call, result), self._delivery(call, result)
        if happened or not call.outdated or self.policy.stale == "speak":
            return result, self._delivery(call, result)
        if self.policy.stale == "silent":
            self._decide("stale_silent", call.id, f"kept as context only: {call.outdated}")
            return SUPERSEDED | {"result": result}, "silent"
        self._decide("stale_dropped", call.id, f"dropped: {call.outdated}")
        return SUPERSEDED, "silent"

    def _delivery(self, call: Call, result: dict[str, Any]) -> Delivery:
        """The result's own wish ("delivery" among its data), else the policy's."""
        if result.get("delivery") in CHOICES["delivery"]:
            wish: Delivery = result["delivery"]
            self._decide("deliver", call.id, f"{wish}: the tool asked for it")
            return wish
        if not callable(self.policy.delivery):
            return self.policy.delivery
        said, said_seconds = self.spoken.before(call.id)
        moment = Moment(
            tool=call.name,
            caller_speaking=self.conversation.caller_speaking,
            agent_speaking=self.conversation.agent_speaking,
            caller_turns_since=self.conversation.caller_turns - call.caller_turn,
            seconds_since=self.now() - call.proposed,
            said=said,
            said_seconds=said_seconds,
        )
        choice: Delivery
        choice, wrong = chosen(self.policy.delivery, CHOICES["delivery"], result, moment)
        if wrong:
            self._decide("bad_delivery", call.id, f"delivery: {wrong}; when_idle is used")
            return "when_idle"
        self._decide("deliver", call.id, choice)
        return choice

    def _note_answer(self, call: Call, result: dict[str, Any], delivery: Delivery) -> None:
        self.backend.deliver(call.id)
        self._note(call, "answered", text=str(result.get("summary", "")), delivery=delivery, final=True)

    def _waits_for_more(self, call: Call) -> bool:
        """A model that stood still has the caller's next question to answer, whatever the result is worth."""
        can = self.session.capabilities
        return can.waits_for_result and not can.implied_reply and self.conversation.caller_turns > call.caller_turn

    async def _clear_of_turn_end(self, call: Call) -> None:
        wait = self.conversation.turn_ended + self.policy.keep_clear - self.now()
        if wait > 0:
            self._decide("kept_clear", call.id, f"a turn has just ended; the result is sent {wait * 1000:.0f} ms later")
            await asyncio.sleep(wait)

    async def _report(self, call: Call, result: dict[str, Any]) -> None:
        """How a call ended whose answer was "pending": its id is used up, so the model is told in words."""
        told, delivery = self._decided(call, result)
        if delivery == "silent":
            return
        await self._tell(call, str(told["summary"]))

    async def _tell(self, call: Call, news: str) -> None:
        """Have the caller told how a call ended that can not be answered any more."""
        self._decide("told", call.id, news)
        await self.session.tell(f'It is known how {call.name} ended. Tell the caller: "{news}"')
        self.replies.owe(call.id, news)
        if not self.session.capabilities.implied_reply:
            await self.replies.ask("to say how it ended", call.id)

    # 5 speak: see `replies`

    async def _let_backend_go_on(self, call: Call, result: dict[str, Any], delivery: Delivery) -> None:
        """A backend that works beside the conversation waits for its outputs only, not for a pause in the talk."""
        if delivery != "silent":
            call.delivery = delivery
            self.replies.owe(call.id, str(result.get("summary", "")))
        siblings = [each for each in self.calls.values() if each.turn == call.turn]
        wanted = [each for each in siblings if each.delivery is not None]
        if not wanted or any(each.open for each in siblings):
            return  # the last of them lets it go on
        for each in wanted:
            each.delivery = None
        await self._until_backend_rests()
        self._decide("respond", wanted[-1].id, "lets the backend go on")
        await self.session.respond()

    async def _until_backend_rests(self) -> None:
        """What it works on may be a correction: only then is it known whether an earlier result is still wanted."""
        working = self.conversation.working
        await self.conversation.until(lambda: not working, TURN_WAIT_SECONDS, "the backend to end its response")

    def _note(self, call: Call, kind: str, *, text: str | None = None, **detail: Any) -> None:
        self.journal.add("tool", kind, call_id=call.id, text=text, tool=call.name, **detail)

    def _decide(self, kind: str, call_id: str, text: str) -> None:
        self.journal.add("decision", kind, call_id=call_id, text=text)
