"""Work that a voice hands over: who takes it, what becomes of it, and what the voice is told.

A delegation holds no task text. The application makes its request from what it has heard so far, gives it to a backend
(an ordinary object, see `Backend`; delegation_backends.py has two) and hands the answer back as an append. So the
three records of one answer are apart: the tool has finished, the words were generated, the caller has heard them.

    at most one task running and one pending; newer speech replaces the one that waits, and outdates the one that runs
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from voicekit.calls import Call
from voicekit.dispatcher import Dispatcher
from voicekit.journal import Journal
from voicekit.metrics import words_of
from voicekit.policy import Delivery
from voicekit.results import WENT_WRONG, Result
from voicekit.sessions.base import (
    Appended,
    Channel,
    DelegatingSession,
    Event,
    Heard,
    Said,
    SessionError,
    ToolCall,
    Work,
)
from voicekit.sessions.base import Delegation as Delegated

# A delegation may come before the sentence is transcribed: so long nothing new must have been heard, and at most so
# long is waited for words at all. Nobody published how late they come.
SETTLE_SECONDS = 0.4
TRANSCRIPT_SECONDS = 1.5
LONGEST_ANSWER = 2000  # characters; an append takes 500 tokens


class Replaced(Exception):
    """The caller has said something newer: what this task would find is not wanted any more."""


@dataclass(frozen=True)
class Request:
    """What the application makes of a delegation.

    texts    what the caller said and no task has taken up, oldest first; the last is what was handed over
    history  (who, text) of the whole conversation so far, who being "caller" or "agent"
    """

    delegation: str
    texts: tuple[str, ...]
    history: tuple[tuple[str, str], ...] = ()


class Backend(Protocol):
    """Does delegated work: anything with this one method. If it has `async def close()`, that is called in the end."""

    async def work(self, request: Request, tools: Toolbox) -> str:
        """Return what the voice is to say, or "" for nothing. It may be cancelled when newer speech replaces it."""


@dataclass(eq=False)
class Task:
    """One delegation on its way."""

    delegation: str
    utterance: str  # the latest one heard when it came
    came: float = 0.0  # session seconds
    calls: list[Call] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    replaced: str = ""  # why its answer is not wanted any more
    must_tell: bool = False  # it had an effect, which is told whatever was said since
    work: asyncio.Task[str] | None = None


class Toolbox:
    """What a backend may do while it works on one task: call the application's tools, and note how far it is."""

    def __init__(self, desk: Desk, task: Task) -> None:
        self._desk, self._task = desk, task

    @property
    def declarations(self) -> tuple[dict[str, Any], ...]:
        """The tools: dicts with name, description and parameters (JSON Schema)."""
        return self._desk.dispatcher.backend.declarations()

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> Result:
        """Run a tool through the gate and the ledger that every call goes through. Invalid arguments are answered.

        Raises Replaced, once the tool has ended, when the caller does not want the result any more.
        """
        task, dispatcher = self._task, self._desk.dispatcher
        if task.replaced:
            raise Replaced(task.replaced)
        text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
        call_id = f"{task.delegation}_{len(task.calls) + 1}"
        call = dispatcher.enter(ToolCall(call_id, name, text, task.delegation))
        task.calls.append(call)
        told, delivery = dispatcher.settled(call, await dispatcher.carry_out(call))
        task.deliveries.append(delivery)
        if told["status"] == "superseded" and "result" in told:  # not to be said, but to be known
            summary = told["result"].get("summary", "")
            await self._desk.append("thinking", f"Not wanted any more: {summary}", task)
        if call.outdated and told["status"] == "cancelled" and delivery != "silent":
            # The ledger says that it was stopped: now, and not before, the caller is told.
            self._desk.confirmed = told["summary"]
            await self._desk.append("commentary", told["summary"], task)
        if told["status"] == "superseded" or (call.outdated and told["status"] == "cancelled"):
            raise Replaced(call.outdated)
        task.must_tell |= bool(task.replaced) and delivery != "silent"
        return told

    async def note(self, text: str) -> None:
        """Tell the voice how far the work is; it knows then, and need not say anything."""
        if not self._task.replaced:
            await self._desk.append("thinking", text, self._task)


class Desk:
    """The application's side of delegation; feed it the session's events with `on`.

    undelivered   answers that came when nobody was left to tell: {"t", "delegation", "text", "why"}
    """

    def __init__(
        self,
        session: DelegatingSession,
        dispatcher: Dispatcher,
        backend: Backend,
        journal: Journal,
        now: Callable[[], float],
    ) -> None:
        self.session, self.dispatcher, self.backend = session, dispatcher, backend
        self.policy = dispatcher.policy
        self.undelivered: list[dict[str, Any]] = []
        self.confirmed = ""  # what the caller was told of a write that was stopped; a task that says the same is done
        self._journal, self._now = journal, now
        self._running: Task | None = None
        self._pending: Task | None = None
        self._worker: asyncio.Task[None] | None = None
        self._seen: set[str] = set()
        self._heard: dict[str, str] = {}  # utterances of the caller, by item
        self._history: dict[str, tuple[str, str]] = {}
        self._heard_at = float("-inf")
        self._taken_up = ""  # the latest utterance that a task was begun for
        self._carried: list[str] = []  # utterances of tasks that were replaced before they began
        self._to_be_said: dict[str, tuple[str, set[str]]] = {}  # commentary nobody has heard yet: text and its words
        self._acknowledged: set[str] = set()
        self._elsewhere: set[str] = set()  # delegations that the Responses backend has not ended
        journal.listen(self._on_journal)

    @property
    def busy(self) -> bool:
        """Whether work is under way whose answer the caller may expect."""
        return self._running is not None or self._pending is not None or bool(self._elsewhere)

    async def on(self, event: Event) -> None:
        """Take in one event of the session."""
        match event:
            case Heard():
                self._hear(event)
            case Said():
                if not event.final:
                    self._history[event.item] = ("agent", self._history.get(event.item, ("", ""))[1] + event.text)
            case Delegated():
                self._take(event)
            case Appended():
                self._acknowledged.add(event.id)
            case Work():
                if event.status != "in_progress":
                    self._note_work(event)

    async def settle(self) -> None:
        """The session is gone: let what runs come to its end, so that its answer is not lost; begin nothing new."""
        self._replace_pending("the session has ended")
        if self._worker is not None:
            await asyncio.wait({self._worker}, timeout=self.policy.tool_timeout)

    async def close(self) -> None:
        """Stop what still runs, and write down what was acknowledged but never spoken."""
        self._replace_pending("the session was closed")
        if self._worker is not None and not self._worker.done():
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        for id_, (text, _) in self._to_be_said.items():
            told = "acknowledged" if id_ in self._acknowledged else "not even acknowledged"
            if id_.startswith("resp"):
                told = "given to the voice by the backend"
            self._journal.add("decision", "unspoken", item=id_, text=text, why=f"{told}, but nobody heard it")

        if close := getattr(self.backend, "close", None):
            await close()

    def _note_work(self, work: Work) -> None:
        """The Responses backend has ended a response; one it could not assign to a delegation may be any."""
        ended = {work.delegation} if work.delegation else set(self._elsewhere)
        self._elsewhere -= ended
        if work.text:
            self._expect(work.response, work.text)
        self.dispatcher.conversation.wake()

    # What is heard

    def _hear(self, event: Heard) -> None:
        item = event.item or ""
        text = event.text if event.final else self._heard.get(item, "") + event.text
        if text != self._heard.get(item):
            self._heard_at = self._now()
        self._heard[item] = text
        self._history[item] = ("caller", text.strip())

    @property
    def _latest(self) -> str:
        return next(reversed(self._heard), "")

    async def _transcribed(self) -> None:
        """Wait until the caller's words are there: there are new ones, and none have come for a moment."""
        while self._pending is not None:
            waited = self._now() - self._pending.came
            has_new_words = self._latest != self._taken_up or self._carried
            rest = max(self._pending.came, self._heard_at) + SETTLE_SECONDS - self._now()
            if waited >= TRANSCRIPT_SECONDS:
                return
            if has_new_words and rest <= 0:
                return
            await asyncio.sleep(min(max(rest, 0.05), TRANSCRIPT_SECONDS - waited + 1e-3))

    def _request(self, task: Task) -> Request:
        wanted = dict.fromkeys([*self._carried, self._latest])
        self._carried, self._taken_up = [], self._latest
        texts = tuple(self._heard[item].strip() for item in wanted if self._heard.get(item, "").strip())
        return Request(task.delegation, texts, tuple(each for each in self._history.values() if each[1].strip()))

    # Tasks

    def _take(self, event: Delegated) -> None:
        """One handler per delegation; what waits is replaced, what runs is outdated."""
        if event.id in self._seen:
            return
        self._seen.add(event.id)
        if event.target != "client":
            self._elsewhere.add(event.id)
            return
        why = f"newer speech was handed over ({event.id})"
        self._replace_pending(why)
        if self._running is not None:
            self._outdate(self._running, why)
        self._pending = Task(event.id, self._latest, self._now())
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work_off(), name="delegated work")

    def _replace_pending(self, why: str) -> None:
        task, self._pending = self._pending, None
        if task is not None:
            self._journal.add("decision", "replaced", item=task.delegation, text=why)
            if task.utterance and task.utterance != self._taken_up:
                self._carried.append(task.utterance)

    def _outdate(self, task: Task, why: str) -> None:
        """The answer of a running task comes too late. With `stale` "drop" it is stopped, if it can be."""
        if task.replaced:
            return
        task.replaced = why
        open_calls = [call for call in task.calls if call.open]
        for call in open_calls:
            self.dispatcher.wishes.outdate(call, why)
            if self.policy.stale == "drop":
                self.dispatcher.backend.cancel(call.id)
        if self.policy.stale == "drop" and not open_calls and task.work is not None:
            task.work.cancel()

    async def _work_off(self) -> None:
        while self._pending is not None:
            await self._transcribed()
            task, self._pending = self._pending, None
            if task is None:
                return
            self._running = task
            try:
                await self._perform(task)
            finally:
                self._running = None
                self.dispatcher.conversation.wake()

    async def _perform(self, task: Task) -> None:
        request = self._request(task)
        self._journal.add("decision", "took_up", item=task.delegation, text=" / ".join(request.texts))
        task.work = asyncio.ensure_future(self.backend.work(request, Toolbox(self, task)))
        try:
            await asyncio.wait({task.work})
        finally:
            task.work.cancel()  # the session is being closed; without effect on what is done
        if task.work.cancelled():
            return
        error = task.work.exception()
        if isinstance(error, Replaced | SessionError):
            return
        if error is not None:
            self._journal.add(
                "decision", "backend_failed", item=task.delegation, text=f"{type(error).__name__}: {error}"
            )
        await self._tell(task, WENT_WRONG if error is not None else task.work.result())

    # Answers

    async def _tell(self, task: Task, answer: str) -> None:
        text = answer.strip()[:LONGEST_ANSWER]
        channel: Channel = "commentary"
        if task.deliveries and all(delivery == "silent" for delivery in task.deliveries):
            channel = "thinking"
        if task.replaced and not task.must_tell:
            if self.policy.stale == "drop":
                self._journal.add("decision", "stale_dropped", item=task.delegation, text=f"dropped: {task.replaced}")
                return
            channel = "commentary" if self.policy.stale == "speak" else "thinking"
        is_known, self.confirmed = text == self.confirmed, ""
        if not text or is_known:
            channel, text = "thinking", "That is dealt with; there is nothing to say about it."
        if await self.append(channel, text, task):
            for call in task.calls:
                self.dispatcher.backend.deliver(call.id)

    async def append(self, channel: Channel, text: str, task: Task) -> bool:
        """Hand the voice text. False when the session is gone; commentary then goes to `undelivered`."""
        try:
            id_ = await self.session.append(channel, text, task.delegation)
        except SessionError as error:
            if channel == "commentary":
                entry = {"t": self._now(), "delegation": task.delegation, "text": text, "why": str(error)}
                self.undelivered.append(entry)
                call_id = task.calls[-1].id if task.calls else None
                self._journal.add(
                    "decision", "undelivered", item=task.delegation, call_id=call_id, text=text, why=str(error)
                )
            return False
        self._journal.add("decision", "append", item=id_, text=text, channel=channel, delegation=task.delegation)
        if channel == "commentary":
            self._expect(id_, text)
        return True

    def _expect(self, id_: str, text: str) -> None:
        self._to_be_said[id_] = (text, words_of(text))
        self.dispatcher.replies.owe(id_, text)

    def _on_journal(self, event: dict[str, Any]) -> None:
        """An answer counts as spoken when speech with half of its words was generated, heard to its end or not."""
        if self._to_be_said and event["lane"] == "heard" and event["kind"] == "played":
            spoken = words_of(f"{event['text']} {event['detail']['unheard']}")
            for id_, (_, words) in list(self._to_be_said.items()):
                if len(words & spoken) * 2 >= len(words):
                    del self._to_be_said[id_]
