"""What the adapters share: capabilities from the table, checks before the start, and one way for a session to end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Self

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from voicekit.models import facts
from voicekit.schemas import flaw
from voicekit.sessions._wiretap import hidden
from voicekit.sessions.base import Capabilities, Event, NotSupported, Problem, SessionConfig, SessionError

SETUP_SECONDS = 10.0  # limit of each step of the set-up
STALL_SECONDS = 30.0  # silence on the wire after which an answer the provider owes is given up
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
TOOL_KEYS = {"name", "description", "parameters", "behavior"}


def capabilities(model: str) -> Capabilities:
    """What `model` can do, from data/models.csv. Raises ValueError for an unknown model."""
    claims = facts(model)

    def says(property_: str, value: str) -> bool:
        return property_ in claims and claims[property_].value == value

    provider = claims["provider"].value
    waits = says("waits_for_result", "yes")
    if provider == "openai-realtime":
        return Capabilities(
            owns_turns=True,
            can_cancel=True,
            can_truncate=True,
            can_schedule=False,
            implied_reply=False,
            default_behavior="blocking" if waits else "non_blocking",
            waits_for_result=waits,
            parallel_calls=not says("parallel_calls", "no"),
        )
    if provider == "gemini-live":
        behaviors = frozenset(claims["behaviors"].value.split())
        default = claims["default_behavior"].value
        return Capabilities(
            owns_turns=True,
            can_cancel=False,
            can_truncate=False,
            can_schedule=says("scheduling", "yes"),
            implied_reply=True,
            behaviors=behaviors,
            default_behavior=default,
            waits_for_result=waits or (not behaviors and default == "blocking"),
            cancels_calls=says("input_during_blocking_call", "cancels"),
            parallel_calls=not says("parallel_calls", "no"),
        )
    if provider == "gpt-live":
        return Capabilities(
            owns_turns=False,
            can_cancel=False,
            can_truncate=False,
            can_schedule=False,
            implied_reply=False,
            delegates=True,
            parallel_calls=not says("parallel_calls", "no"),
            has_turns=False,
            reports_speech=False,
        )
    raise NotSupported(f"there is no session adapter for {provider} ({model}) yet; `voicekit list` shows the models")


def check_tools(config: SessionConfig, can: Capabilities) -> dict[str, str]:
    """Return the behaviour of each tool by name: as declared, or the model's default where none can be chosen.

    Raises SessionError for a declaration a provider would ignore or misread (a model then calls with empty arguments)
    and NotSupported for a behaviour the model refuses.
    """
    behaviors: dict[str, str] = {}
    for tool in config.tools:
        name = tool.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise SessionError(f"tool {name!r}: a name is 1 to 64 letters, digits, _ or -")
        if name in behaviors:
            raise SessionError(f"tool {name!r} is declared twice; a model calls tools by name")
        if unknown := sorted(set(tool) - TOOL_KEYS):
            raise SessionError(f"tool {name!r}: {', '.join(unknown)} would be ignored; its schema goes in `parameters`")
        parameters = tool.get("parameters")
        if parameters and (not isinstance(parameters, dict) or parameters.get("type") != "object"):
            raise SessionError(f'tool {name!r}: `parameters` is a JSON Schema with "type": "object"')
        if parameters and (problem := flaw(parameters)):
            raise SessionError(f"tool {name!r}: {problem}")
        behavior = tool.get("behavior") or can.default_behavior
        if behavior not in ("blocking", "non_blocking"):
            raise SessionError(f'tool {name!r}: behavior is "blocking" or "non_blocking", not {behavior!r}')
        if can.behaviors and behavior not in can.behaviors:
            accepted = ", ".join(sorted(can.behaviors))
            raise NotSupported(f"{config.model} takes only {accepted} tools; {name!r} is declared {behavior}")
        behaviors[name] = behavior if can.behaviors else can.default_behavior
    return behaviors


def behavior_notes(config: SessionConfig, can: Capabilities) -> list[Problem]:
    """A warning for each tool whose wished behaviour the model has no field for: it falls back to the default."""
    return [
        Problem(
            "behavior_not_supported",
            f"{config.model} has no field for it: {tool['name']!r} is {can.default_behavior}, not {tool['behavior']}",
        )
        for tool in config.tools
        if not can.behaviors and tool.get("behavior") not in (None, can.default_behavior)
    ]


def check_call_id(call_id: str) -> None:
    """Raise SessionError for an id the providers refuse: they know letters, digits, _ and - only."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", call_id):
        raise SessionError(f"call id {call_id!r}: ids have letters, digits, _ and - only; answer under the proposed id")


def one_line(value: object, secret: str = "") -> str:
    """Text for a message: one line of at most 300 characters without the API key."""
    return str(hidden(" ".join(str(value).split()), secret))[:300]


def closing(closed: ConnectionClosed, provider: str) -> Ended:
    """The end of a session whose socket was closed, by whomever."""
    if closed.rcvd is not None:
        reason = f": {closed.rcvd.reason}" if closed.rcvd.reason else ""
        return Ended(str(closed.rcvd.code), f"{provider} closed the connection with code {closed.rcvd.code}{reason}")
    return Ended("1006", f"the connection to {provider} broke off ({closed})")


def refusal(model: str, error: Exception, secret: str, hint: str = "") -> SessionError:
    """What to raise when the set-up failed with `error`; `hint` says what the reader can look at."""
    if isinstance(error, InvalidStatus) and error.response.status_code in (401, 403):
        hint = "; check the API key"
    name = "" if isinstance(error, (Ended, OSError, WebSocketException)) else f"{type(error).__name__}: "
    return SessionError(f"no session with {model}: {name}{one_line(error, secret)}{hint}")


@contextlib.asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Limit a step of the set-up; raises SessionError naming what was waited for."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if limit.expired():
            raise SessionError(f"waited {seconds:g} s for {what}, which never came") from None
        raise SessionError(f"could not connect: {one_line(error) or 'timed out'}") from None


class Recent:
    """The last `size` values seen: a set that cannot grow without bound."""

    def __init__(self, size: int = 1000) -> None:
        self._order: deque[str] = deque()
        self._values: set[str] = set()
        self._size = size

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def add(self, value: str) -> None:
        if value not in self._values:
            self._values.add(value)
            self._order.append(value)
            if len(self._order) > self._size:
                self._values.discard(self._order.popleft())


class Ended(Exception):
    """Why no further event will come."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def without(secret: str, event: Event) -> Event:
    """The event with "<key>" for the API key in any of its texts."""
    texts = {name: value for name, value in vars(event).items() if isinstance(value, str)}
    changed = {name: shown for name, value in texts.items() if (shown := hidden(value, secret)) != value}
    return dataclasses.replace(event, **changed) if changed else event


class Incoming:
    """The receiving half of a session: messages in, events out, until the provider ends it in whatever way.

    `receive` waits for the next message of the SDK, `translate` turns it into events. Whatever either raises becomes
    one unrecoverable `Problem`, after which the iteration ends. An iterator rather than a generator, so that an
    application may leave its loop and come back, and nothing is left to be finalised.
    """

    def __init__(
        self,
        receive: Callable[[], Awaitable[Any]],
        translate: Callable[[Any], Awaitable[Iterable[Event]]],
        secret: str,
    ) -> None:
        self._receive = receive
        self._translate = translate
        self._secret = secret
        self._pending: deque[Event] = deque()
        self._owed = ""
        self._deadline: float | None = None
        self._limit: asyncio.Timeout | None = None
        self.end: str | None = None  # why there is no session any more

    def note(self, event: Event) -> None:
        """Deliver an event of the adapter's own with the next one of the provider."""
        self._pending.append(event)

    def expect(self, what: str) -> None:
        """From now on the provider owes `what`; its silence of `STALL_SECONDS` ends the session."""
        self._owed = what
        self._deadline = asyncio.get_running_loop().time() + STALL_SECONDS
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._deadline)  # the application is already waiting for the next message

    def settle(self) -> None:
        """Nothing is owed any more."""
        self._deadline = None

    def finish(self, why: str) -> None:
        """End without a problem: the application closed the session."""
        if self.end is None:
            self.end = why

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._pending:
            if self.end is not None:
                raise StopAsyncIteration
            try:
                message = await self._next()
                self._pending.extend(without(self._secret, event) for event in await self._translate(message))
            except Ended as end:
                self._fail(end.code, str(end))
            except Exception as error:  # a nonsensical frame may raise anything in the SDK or here
                name = type(error).__name__
                self._fail(name, f"a message of the provider could not be read ({name}: {error})")
        return self._pending.popleft()

    async def _next(self) -> Any:
        try:
            async with asyncio.timeout_at(self._deadline) as self._limit:
                return await self._receive()
        except TimeoutError:
            if self._limit is None or not self._limit.expired():
                raise
            raise Ended("stall", f"waited {STALL_SECONDS:g} s for {self._owed}, which never came") from None
        finally:
            self._limit = None

    def _fail(self, code: str, message: str) -> None:
        if self.end is None:  # otherwise the application closed the session itself
            message = one_line(message, self._secret)
            self.end = message
            self._pending.append(Problem(code, message, recoverable=False))
