"""A fake service for the session tests: a socket and the script of one test, nothing that knows a protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from voicekit.sessions.base import Endpoint, Event, Problem, RealtimeSession
from voicekit.simulator.server import Connection, Server

Script = Callable[["Service", Any], None]


class Service:
    """Answers one client by calling `script(service, frame)` for each message; `frames` are those received."""

    def __init__(
        self, script: Script, greeting: dict[str, Any] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.script, self.greeting = script, greeting
        self.frames: list[Any] = []
        self.connection: Connection | None = None
        self.connections = 0
        self.ended = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []
        self._server = Server(lambda connection: self._answer, tls=(lambda: tls) if tls is not None else None)

    async def __aenter__(self) -> Service:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.__aexit__(*error)

    @property
    def port(self) -> int:
        return self._server.port

    def _answer(self, connection: Connection) -> Service:
        self.connection = connection
        self.connections += 1
        return self

    def opened(self) -> None:
        if self.greeting is not None:
            self.send(self.greeting)

    def received(self, frame: Any) -> None:
        self.frames.append(frame)
        self.script(self, frame)

    def closed(self) -> None:
        self.ended.set()
        for timer in self._timers:
            timer.cancel()

    def send(self, *frames: dict[str, Any]) -> None:
        assert self.connection is not None
        for frame in frames:
            self.connection.send(frame)

    def later(self, seconds: float, *frames: dict[str, Any]) -> None:
        self.after(seconds, lambda: self.send(*frames))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, action))

    def close(self, code: int, reason: str = "") -> None:
        assert self.connection is not None
        self.connection.close(code, reason)


@contextlib.asynccontextmanager
async def raw_service(
    raw: str | bytes, *, before: tuple[Any, ...], after: tuple[Any, ...], tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Complete a set-up (frames sent `before` and `after` the client's first message), then send `raw` as it is."""

    async def answer(connection: ServerConnection) -> None:
        for frame in before:
            await connection.send(json.dumps(frame))
        await connection.recv()
        for frame in after:
            await connection.send(json.dumps(frame))
        await connection.send(raw)
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0, ssl=tls) as server:
        yield next(iter(server.sockets)).getsockname()[1]


class Reading:
    """Collects a session's events in a task, so that a test can send meanwhile."""

    def __init__(self, session: RealtimeSession) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []
        self._arrived = asyncio.Condition()
        self.task = asyncio.create_task(self._read(session))

    async def _read(self, session: RealtimeSession) -> None:
        async for event in session:
            async with self._arrived:
                self.events.append(event)
                self.times.append(asyncio.get_running_loop().time())
                self._arrived.notify_all()

    async def until(self, kind: type[Event], count: int = 1) -> Any:
        """Wait (10 s at most) for the `count`-th event of a kind and return it."""

        def found() -> list[Event]:
            return [event for event in self.events if isinstance(event, kind)]

        async with asyncio.timeout(10), self._arrived:
            await self._arrived.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]

    async def finish(self) -> list[Event]:
        """Read to the end (two virtual minutes at most) and return all events."""
        async with asyncio.timeout(120):
            await self.task
        return self.events


async def all_events(session: RealtimeSession) -> list[Event]:
    """Read to the end; a session that does not end in a virtual minute fails the test."""
    async with asyncio.timeout(60):
        return [event async for event in session]


def fatal(events: list[Event]) -> list[Problem]:
    return [event for event in events if isinstance(event, Problem) and not event.recoverable]


def endpoint(service: Service, path: str = "/v1", key: str = "dummy") -> Endpoint:
    return Endpoint(api_key=key, base_url=f"http://127.0.0.1:{service.port}{path}")
