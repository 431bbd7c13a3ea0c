"""Tools that an MCP server offers: read them, have them reviewed, and only then make tools of them.

    with mcp_client.connect([sys.executable, "-m", "voicekit.mcp_server", "weather"]) as weather:
        tools = weather.tools({"get_weather": "read"})

What a server says of its tools is its own word: name, description, schema and the hints beside them (annotations) are
data, not facts. So what a tool does to the world is said here, by whoever connects; a tool of which nobody has said it
counts as irreversible.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TextIO

from voicekit.clock import VirtualLoop
from voicekit.mcp_server import NOT_INSTALLED
from voicekit.results import WENT_WRONG, Result, as_result, failed, ok, problem, unknown
from voicekit.schemas import model_of_schema, named
from voicekit.tools import Effect, Tool

SECONDS = 30.0  # that a server may take for anything
SERVER_MAY_SAY = ("ok", "no_results", "failed")
NOTHING_DONE = ("failed", "invalid_argument", "cancelled", "needs_consent")


@dataclass(frozen=True)
class Offer:
    """A tool as its server describes it. `hint` is what the server says about its effect, for the reviewer to read."""

    name: str
    description: str
    parameters: dict[str, Any]
    hint: str = ""


class Connection:
    """A connected MCP server: `name`, `offers` (its tools, unreviewed) and `resources` (text by URI).

    The connection lives in a thread of its own, so that it can be used from a cell, a test and a running session alike.
    Close it, or use it as a context manager.
    """

    def __init__(self, target: str | Sequence[str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp client", daemon=True)
        self._thread.start()
        self._closing = asyncio.Event()
        ready: Future[None] = Future()
        self._session = asyncio.run_coroutine_threadsafe(self._hold(target, ready), self._loop)
        try:
            ready.result(SECONDS)
        except BaseException:
            self.close()
            raise

    def tools(self, effects: Mapping[str, Effect], *, seconds: float = 0.5) -> list[Tool]:
        """Tools of the offers named in `effects`, with the effect that you say they have.

        seconds   how long a call takes in a conversation on virtual time
        Raises ValueError for a name that is not offered and for a schema that a model would call with no arguments.
        """
        offered = {each.name: each for each in self.offers}
        if strange := sorted(set(effects) - set(offered)):
            raise ValueError(f"{self.name} offers no {strange[0]!r}; it offers {', '.join(offered)}")
        return [self._tool(offered[name], effect, seconds) for name, effect in effects.items()]

    def all_tools(self, effects: Mapping[str, Effect] | None = None, *, seconds: float = 0.5) -> list[Tool]:
        """Tools of all offers, whatever they say: irreversible unless `effects` knows better."""
        known = {each.name: "irreversible" for each in self.offers} | dict(effects or {})
        return self.tools(known, seconds=seconds)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the session, and with it the server's process if we started one."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            if not self._session.done():
                with contextlib.suppress(Exception):  # what went wrong was raised where it was asked for
                    self._session.result(SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(SECONDS)
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _hold(self, target: str | Sequence[str], ready: Future[None]) -> None:
        """Keep the session open; the SDK wants it entered and left by the same task."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
            try:
                async with _client(target, stderr) as self._client:
                    await self._read()
                    ready.set_result(None)
                    await self._closing.wait()
            except BaseException as error:
                if not ready.done():
                    ready.set_exception(_plain(error, target, stderr))
                elif not isinstance(error, Exception):
                    raise

    async def _read(self) -> None:
        client = self._client
        self.name = client.server_info.name if client.server_info else "unnamed"
        offers: list[Offer] = []
        cursor = "" if client.server_capabilities.tools else None
        while cursor is not None:  # a list may come in pages
            page = await client.list_tools(cursor=cursor or None)
            offers += [Offer(t.name, t.description or "", t.input_schema, _hint(t)) for t in page.tools]
            cursor = page.next_cursor
        self.offers = tuple(offers)
        self.resources: dict[str, str] = {}
        if client.server_capabilities.resources:
            for each in (await client.list_resources()).resources:
                contents = (await client.read_resource(str(each.uri))).contents
                self.resources[str(each.uri)] = "\n".join(getattr(part, "text", "") for part in contents)

    def _tool(self, offer: Offer, effect: Effect, seconds: float) -> Tool:
        model = model_of_schema(offer.name, offer.parameters)

        async def call(**values: Any) -> Result:
            return await self._wait(self._call(offer.name, named(model, values), effect))

        schema = {"properties": {}, **offer.parameters}
        return Tool(
            offer.name, offer.description, schema, effect, call, model, seconds=seconds, cancellable=effect == "read"
        )

    async def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        if isinstance(asyncio.get_running_loop(), VirtualLoop):
            return future.result(SECONDS)  # time stands still while another process works: `seconds` says how long
        return await asyncio.wrap_future(future)

    async def _call(self, name: str, arguments: dict[str, Any], effect: Effect) -> Result:
        answer = await self._client.call_tool(name, arguments)
        text = "\n".join(getattr(part, "text", "") for part in answer.content).strip()
        said = answer.structured_content if isinstance(answer.structured_content, dict) else {}
        return _result(said, text, bool(answer.is_error), effect)


def connect(target: str | Sequence[str]) -> Connection:
    """Connect to an MCP server: a command to start and talk to over stdio, or the URL of a streamable HTTP endpoint.

    Raises ImportError where the package mcp is missing, and ConnectionError naming the target when nobody answers.
    """
    return Connection(target)


def _result(said: dict[str, Any], text: str, is_error: bool, effect: Effect) -> Result:
    """What a server's answer comes to. It may say that it worked, found nothing or failed; the rest is ours to say.

    A question for consent, or a wish when a result is to be spoken, would steer the application. An error that speaks
    of success is one, and what a write has done before it went wrong is not known.
    """
    status, words = said.get("status"), said.get("summary")
    if not isinstance(words, str) or not words.strip() or (is_error and status not in NOTHING_DONE):
        words = text
    summary = words or WENT_WRONG
    if status in SERVER_MAY_SAY and problem(said) is None and not (is_error and status != "failed"):
        return as_result({key: value for key, value in said.items() if key != "delivery"})
    if status in NOTHING_DONE:
        return failed(summary, reason="error" if status == "failed" else "wrong_shape")
    if not is_error and status != "unknown" and (text or "status" not in said):
        return ok(text or "Done, without a word.")
    reason = "error" if is_error else "wrong_shape"
    return failed(summary, reason=reason) if effect == "read" else unknown(summary, reason=reason)


def _client(target: str | Sequence[str], stderr: TextIO) -> Any:
    try:
        from mcp import Client, StdioServerParameters, stdio_client
    except ImportError:
        raise ImportError(NOT_INSTALLED) from None
    if isinstance(target, str):
        return Client(target)
    # A file of our own: a notebook's stderr is none that a process could write to.
    return Client(stdio_client(StdioServerParameters(command=target[0], args=list(target[1:])), errlog=stderr))


def _hint(tool: Any) -> str:
    said = tool.annotations
    if said is None or said.read_only_hint is None:
        return ""
    return "read" if said.read_only_hint else "irreversible" if said.destructive_hint else "write"


def _plain(error: BaseException, target: str | Sequence[str], stderr: TextIO) -> BaseException:
    """The SDK reports through groups of errors; the reader gets the first one, in one line, and the server's last."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, (ImportError, KeyboardInterrupt)):
        return error
    what = target if isinstance(target, str) else " ".join(target)
    stderr.seek(0)
    why = [f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", *stderr.read().strip().splitlines()[-1:]]
    return ConnectionError(f"no MCP server at {what}: {'; it said: '.join(why)}")
