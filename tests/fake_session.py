"""A scripted `RealtimeSession` for tests of the application alone: no socket, no SDK, virtual time.

It has no mind. What it says is what the test lets it say; what it is told is in `sent`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Self

from voicekit.backend import ToolBackend
from voicekit.budget import Budget
from voicekit.conversation import Conversation
from voicekit.dispatcher import Dispatcher
from voicekit.gate import Gate
from voicekit.journal import Journal
from voicekit.ledger import Ledger
from voicekit.policy import Policy
from voicekit.sessions._common import capabilities
from voicekit.sessions.base import (
    Audio,
    Capabilities,
    Delivery,
    Event,
    Heard,
    Said,
    SessionError,
    SpeechStarted,
    SpeechStopped,
    ToolCall,
    TurnDone,
    TurnStarted,
)
from voicekit.speaker import Speaker
from voicekit.tools import Tool


class FakeSession:
    """Events are put in with `emit`; a request for speech, or a result that implies it, is answered by `answer`.

    lag       seconds from a request to the turn that answers it
    seconds   length of what is then said; all of it arrives at once
    """

    def __init__(self, can: Capabilities, *, lag: float = 0.5, seconds: float = 1.0) -> None:
        self.capabilities, self.lag, self.seconds = can, lag, seconds
        self.resumption_handle: str | None = None
        self.sent: list[tuple[float, str, Any]] = []
        self.summaries: dict[str, str] = {}
        self.is_open = True
        self.active: str | None = None
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._turns = 0
        self._due: list[asyncio.TimerHandle] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            yield event

    def emit(self, *events: Event) -> None:
        for event in events:
            if isinstance(event, TurnStarted):
                self.active = event.turn
            elif isinstance(event, TurnDone) and self.active == event.turn:
                self.active = None
            self._events.put_nowait(event)

    def end(self) -> None:
        self.is_open = False
        self._events.put_nowait(None)

    def speak(self, text: str, call_ids: tuple[str, ...] = (), calls: tuple[ToolCall, ...] = ()) -> str:
        """A whole turn in one moment; returns its id."""
        self._turns += 1
        turn = f"turn_{self._turns}"
        self.emit(TurnStarted(turn, call_ids))
        if text:
            item = f"item_{self._turns}"
            pcm = bytes(round(self.seconds * 24_000) * 2)
            self.emit(Audio(item, pcm, turn), Said(item, text, turn), Said(item, text, turn, final=True))
        self.emit(*(replace(call, turn=turn) for call in calls), TurnDone(turn))
        return turn

    def caller_says(self, text: str, seconds: float = 1.0) -> None:
        """The provider hears the caller, from now on and for so long; the transcript comes with the end."""
        self.emit(SpeechStarted())
        self.later(seconds, SpeechStopped(), Heard(text))

    def later(self, seconds: float, *events: Event) -> None:
        self.after(seconds, lambda: self.emit(*events))

    def after(self, seconds: float, action: Any) -> None:
        self._due.append(asyncio.get_running_loop().call_later(seconds, action))

    def answer(self, call_ids: tuple[str, ...]) -> None:
        if self.is_open and self.active is None:
            text = " ".join(self.summaries.get(call_id, "") for call_id in call_ids) or "Yes."
            self.speak(text, call_ids if not self.capabilities.implied_reply else ())

    # Commands

    async def send_audio(self, pcm: bytes) -> None: ...

    async def send_result(
        self, call_id: str, result: dict[str, Any], *, delivery: Delivery | None = None, final: bool = True
    ) -> None:
        self._log("result", (call_id, result, delivery, final))
        self.summaries[call_id] = str(result.get("say") or result.get("summary") or "")
        speaks = result.get("status") != "superseded" and delivery != "silent"
        if self.capabilities.implied_reply and speaks:
            self.after(self.lag, lambda: self.answer((call_id,)))

    async def respond(self, call_ids: tuple[str, ...] = ()) -> None:
        if self.active:
            raise SessionError(f"{self.active} is active")
        self._log("respond", call_ids)
        self.after(self.lag, lambda: self.answer(call_ids))

    async def tell(self, text: str) -> None:
        self._log("tell", text)

    async def stop_speaking(self) -> None:
        self._log("cancel", self.active)

    async def truncate(self, item: str, heard_ms: int) -> None:
        self._log("truncate", (item, heard_ms))

    async def close(self) -> None:
        self.is_open = False
        for timer in self._due:
            timer.cancel()

    def _log(self, kind: str, what: Any) -> None:
        if not self.is_open:
            raise SessionError("the session is closed")
        self.sent.append((asyncio.get_running_loop().time(), kind, what))

    def of(self, kind: str) -> list[Any]:
        return [what for _, each, what in self.sent if each == kind]


class App:
    """The application around a fake session, with the tools given; `async with` reads its events."""

    def __init__(
        self, model: str, tools: list[Tool], policy: Policy | None = None, *, seed: int = 0, lag: float = 0.5,
        seconds: float = 1.0,
    ) -> None:  # fmt: skip
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self.now = lambda: loop.time() - begin
        self.journal = Journal(self.now)
        self.session = FakeSession(capabilities(model), lag=lag, seconds=seconds)
        self.speaker = Speaker(self.journal, self.now)
        self.conversation = Conversation(self.session, self.speaker, self.journal, self.now)
        self.ledger = Ledger()
        policy = policy or Policy()
        gate = Gate.of(policy)
        draw, budget = random.Random(seed), Budget(policy.budget)
        about: dict[str, Any] = {"now": self.now, "notify": self._notify, "gate": gate, "budget": budget}
        backend = ToolBackend(tools, self.ledger, draw, **about)
        self.dispatcher = Dispatcher(self.conversation, backend, policy, self.journal, self.now, model)
        self._reading: asyncio.Task[None] | None = None

    def _notify(self, kind: str, **detail: Any) -> None:
        self.journal.add("tool", kind, **detail)

    async def __aenter__(self) -> Self:
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.dispatcher.close()
        await self.session.close()
        self.session.end()
        assert self._reading is not None
        await self._reading
        self.speaker.close()
        if self.dispatcher.failure is not None:
            raise self.dispatcher.failure

    async def _read(self) -> None:
        async for event in self.session:
            await self.conversation.on(event)
            await self.dispatcher.on(event)

    def at(self, seconds: float, action: Any) -> None:
        """Do `action()` so many seconds from now."""
        self.session.after(seconds, action)

    async def rest(self, seconds: float = 60.0) -> None:
        """Wait until nothing is under way, at most `seconds`."""
        await asyncio.sleep(0.1)
        await self.conversation.until(
            lambda: not self.dispatcher.busy and self.conversation.quiet, seconds, "the conversation to come to rest"
        )

    def kinds(self, *lanes: str) -> list[str]:
        return [event["kind"] for event in self.journal.events if event["lane"] in lanes]

    def calls(self) -> dict[str, dict[str, Any]]:
        return {row["call_id"]: row for row in self.ledger.rows()}


def call(call_id: str, name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id, name, arguments)
