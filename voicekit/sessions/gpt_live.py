"""OpenAI GPT-Live as a `RealtimeSession`, on the official SDK (`client.live.connect`).

The model's time is the caller's audio: it moves on only while audio is sent, silence included, so the microphone must
never pause. Work is done by the application ("client" delegation) or by a Responses backend that the service runs and
that calls the application's tools ("responses").
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self, cast

import openai
import pybase64
from openai.resources.live.live import AsyncLiveConnection
from openai.types.live import InputAudioAppendEvent, ServerEvent
from websockets.exceptions import ConnectionClosed

from voicekit.sessions._common import (
    SETUP_SECONDS,
    Ended,
    Incoming,
    behavior_notes,
    capabilities,
    check_call_id,
    check_tools,
    closing,
    one_line,
    refusal,
    within,
)
from voicekit.sessions._gpt_live_events import Reader
from voicekit.sessions._openai_client import client_for, receive
from voicekit.sessions._wiretap import connect_options
from voicekit.sessions.base import (
    Channel,
    Delivery,
    Endpoint,
    Event,
    NotSupported,
    Problem,
    SessionConfig,
    SessionError,
    WireTap,
)

PROVIDER = "OpenAI"
CLOSE_SECONDS = 2.0  # how long the service may take from session.close to session.closed
LONGEST_APPEND = 2000  # characters: 500 tokens, about four characters each
LARGEST_AUDIO = 2**20  # bytes in one append; the service states no limit
IMMUTABLE = ("model", "instructions", "input", "audio", "store", "client", "safety_identifier")

# The prompting guide's headings and labels, with the kit's own words.
POLICY = """
# Backchannel
Answer "mm-hm" and the like with nothing, and go on.

# Interruption
Stop when the caller talks over you. That you stop speaking stops no work.

# Delegation policy
Backend tools
{tools}
Delegate to the backend when
- the caller asks for something that one of its tools is for
- the caller confirms, corrects or withdraws something the backend works on
Do not delegate to the backend when
- the answer is in these instructions
- the caller only greets you, thanks you, asks you to repeat something or to be quiet
While you wait, do not guess. Say a price, a booking, or that something was done or cancelled, only after the backend
has said so.
"""


def session_start(config: SessionConfig) -> dict[str, Any]:
    """The `session` of session.start: the voice's instructions, and who does the work."""
    tools = "\n".join(f"- {tool['name']}: {_first_line(tool)}" for tool in config.tools) or "- none"
    return {
        "model": config.model,
        "instructions": f"{config.instructions.strip()}\n{POLICY.format(tools=tools)}",
        "audio": {"format": {"type": "audio/pcm", "rate": 24000}}
        | ({"output": {"voice": config.voice}} if config.voice else {}),
        "delegation": {"type": "client"} if config.delegation == "client" else _responses(config),
        "store": False,
    }


def _first_line(tool: Mapping[str, Any]) -> str:
    return str(tool.get("description") or "no description").split("\n")[0]


def _responses(config: SessionConfig) -> dict[str, Any]:
    """The backend's half: procedures and confirmations are its business, not the voice's."""
    functions = [
        {
            "type": "function",
            "name": tool["name"],
            "description": tool.get("description", ""),
            "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
            "strict": False,
        }
        for tool in config.tools
    ]
    responses = {
        "model": config.backend_model,
        "instructions": config.instructions,
        "tools": functions,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }
    return {"type": "responses", "responses": responses}


def check_update(changes: Mapping[str, Any], delegation: str) -> None:
    """Raise NotSupported for a change that the service refuses once the session has started."""
    for name in changes:
        if name not in ("delegation", "triggers"):
            kind = "is fixed once the session has started" if name in IMMUTABLE else "is no setting of a session"
            raise NotSupported(f"{name} {kind}; open a new session for it, or change delegation")
    if "delegation" in changes:
        wanted = (changes["delegation"] or {}).get("type", "client")
        if wanted != delegation:
            raise NotSupported(f"delegation stays {delegation} for the whole session; open a new one for {wanted}")


class GptLiveSession:
    """A call with a GPT-Live model. See `RealtimeSession` for the commands; `DelegatingSession.append` comes on top.

    There are no turns here, nothing to cancel, nothing to truncate and no sign that the caller began to speak: those
    commands raise NotSupported. `respond` continues the Responses backend, and exists with that delegation only.

    Raises SessionError for tool declarations that would be ignored; nothing is sent before `async with`.
    """

    def __init__(self, config: SessionConfig, endpoint: Endpoint, tap: WireTap | None = None) -> None:
        if config.delegation not in ("client", "responses"):
            raise NotSupported(f'delegation is "client" or "responses", not {config.delegation!r}')
        self.config = config
        self.capabilities = capabilities(config.model)
        self.resumption_handle: str | None = None  # the provider has none
        self.session_id = ""
        check_tools(config, self.capabilities)
        self._endpoint = endpoint
        self._tap = tap
        self._client: openai.AsyncOpenAI | None = None
        self._connection: AsyncLiveConnection | None = None
        self._reader = Reader(endpoint.api_key)
        self._incoming = Incoming(self._receive, self._translate, endpoint.api_key)
        for note in behavior_notes(config, self.capabilities):
            self._incoming.note(note)
        self._receiving = asyncio.Lock()
        self._closing = False
        self._is_owed_audio = False
        self._odd = b""
        self._sent = 0

    async def __aenter__(self) -> Self:
        try:
            await self._set_up()
        except SessionError:
            await self.close()
            raise
        except Exception as error:
            await self.close()
            raise refusal(self.config.model, error, self._endpoint.api_key) from None
        except BaseException:  # cancelled: leave no socket behind
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._incoming

    # Commands

    async def send_audio(self, pcm: bytes) -> None:
        """Send caller audio, silence included: without it the model's time stands still."""
        connection = self._open()
        pcm = self._odd + pcm
        even = len(pcm) // 2 * 2
        self._odd = pcm[even:]
        if not self._is_owed_audio:  # every piece of input gives a piece of output
            self._is_owed_audio = True
            self._incoming.expect("audio for the audio sent")
        try:
            for start in range(0, even, LARGEST_AUDIO):
                audio = pybase64.b64encode_as_string(pcm[start : min(even, start + LARGEST_AUDIO)])
                # A model rather than a dict: this SDK checks a dict field by field, five times as slow.
                await connection.send(InputAudioAppendEvent(type="session.input_audio.append", audio=audio))
        except ConnectionClosed as closed:
            self._broken(closed)

    async def append(self, channel: Channel, text: str, delegation: str | None = None) -> str:
        """Give the model text; returns the id of its acknowledgement. See `DelegatingSession`.

        Raises SessionError for an empty text or one above 500 tokens, and for a delegation with Responses delegation.
        """
        connection = self._open()
        if not text.strip() or len(text) > LONGEST_APPEND:
            raise SessionError(f"an append has 1 to {LONGEST_APPEND} characters (500 tokens), not {len(text)}; cut it")
        if delegation is not None and self.config.delegation != "client":
            raise NotSupported("with Responses delegation an append belongs to no delegation; leave it out")
        appends: dict[Channel, Callable[..., Awaitable[None]]] = {
            "commentary": connection.session.commentary.append,
            "thinking": connection.session.thinking.append,
            "instructions": connection.session.instructions.append,
        }
        event_id = self._event_id()
        await self._send(appends[channel], content=text, delegation_id=delegation, event_id=event_id)
        return event_id

    async def send_result(
        self, call_id: str, result: dict[str, Any], *, delivery: Delivery | None = None, final: bool = True
    ) -> None:
        """Answer a call of the Responses backend. It goes on when `respond` asks it to."""
        connection = self._with_backend("calls nothing by itself: run the tool and `append` what is to be said")
        check_call_id(call_id)
        if delivery is not None:
            raise NotSupported(f"{self.config.model} cannot schedule a result; it speaks when it can")
        if not final:
            raise NotSupported(f"{self.config.model} takes one result per call; send the final one only")
        item = {"type": "function_call_output", "call_id": call_id, "output": json.dumps(result, ensure_ascii=False)}
        await self._send(connection.response.item.create, item=item, event_id=self._event_id())

    async def respond(self, call_ids: tuple[str, ...] = ()) -> None:
        """Let the Responses backend go on with what it was given. Raises SessionError while it still works."""
        connection = self._with_backend("has no turns to ask for: `append` commentary, and it says it when it can")
        if self._reader.working:
            raise SessionError(f"response {next(iter(self._reader.working))} is not over; wait for its Work event")
        await self._send(connection.response.create, event_id=self._event_id())

    async def tell(self, text: str) -> None:
        """An append to the instructions; for words that are to be said use `append`."""
        await self.append("instructions", text)

    async def stop_speaking(self) -> None:
        raise NotSupported(
            f"{self.config.model} has no cancel: it stops by itself when talked over; flush the loudspeaker"
        )

    async def truncate(self, item: str, heard_ms: int) -> None:
        raise NotSupported(
            f"{self.config.model} has no truncate: its speech comes in real time, so that little is ever unheard"
        )

    async def update(self, changes: Mapping[str, Any]) -> None:
        """Change `delegation` (sparse, same type) or `triggers`; everything else is fixed (NotSupported)."""
        connection = self._open()
        check_update(changes, self.config.delegation)
        await self._send(connection.session.update, session=dict(changes), event_id=self._event_id())

    async def mute(self) -> None:
        """Let the model hear silence, whatever is sent. Stops neither its speech nor any work."""
        await self._send(self._open().session.input_audio.mute, event_id=self._event_id())

    async def unmute(self) -> None:
        await self._send(self._open().session.input_audio.unmute, event_id=self._event_id())

    async def close(self) -> None:
        """Ask the service to close and read on to session.closed, which alone confirms the usage."""
        connection, self._closing = self._connection, True
        if connection is not None and self.session_id and self._incoming.end is None:
            with contextlib.suppress(ConnectionClosed, Ended, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await connection.session.close(event_id=self._event_id())
                    while not self._reader.closed:
                        for event in await self._translate(await self._receive()):
                            self._incoming.note(event)
        self._incoming.finish("the session is closed")
        if connection is not None:
            await connection.close()
            self._connection = None
        if self._client is not None:
            await self._client.close()
            self._client = None
        await asyncio.sleep(0)  # lets the connection's keepalive task see that it was cancelled

    # How it works

    async def _set_up(self) -> None:
        async with within(SETUP_SECONDS, f"the connection to {self.config.model}"):
            self._client = client_for(self._endpoint)
            options = connect_options(self._endpoint, str(self._client.base_url), self._tap)
            manager = self._client.live.connect(websocket_connection_options=cast(Any, options))
            self._connection = await manager.enter()
        await self._send(self._connection.session.start, session=session_start(self.config), event_id=self._event_id())
        async with within(SETUP_SECONDS, "session.started after session.start"):
            while (event := await self._receive()).type != "session.started":
                if event.type == "error":
                    raise Ended("error", event.error.message)
        self.session_id = event.session.id

    async def _receive(self) -> Any:
        async with self._receiving:  # `close` reads too
            if self._connection is None or self._reader.closed:
                raise Ended("closed", "the session is closed")
            try:
                event = await receive(self._connection, ServerEvent)
            except ConnectionClosed as closed:
                raise closing(closed, PROVIDER) from None
            except (ValueError, RecursionError) as error:
                raise Ended("not_json", f"{PROVIDER} sent a frame that is not JSON ({error})") from None
        if not isinstance(getattr(event, "type", None), str):
            raise Ended("garbage", f"{PROVIDER} sent a frame that is no event")
        return event

    async def _translate(self, message: Any) -> list[Event]:
        events = self._reader.translate(message)
        if self._is_owed_audio:
            self._is_owed_audio = False
            self._incoming.settle()
        if reason := self._reader.closed:
            if not self._closing:
                events.append(Problem(reason, f"{PROVIDER} closed the session: {reason}", recoverable=False))
            self._incoming.finish(f"the session was closed ({reason})")
        return events

    async def _send(self, command: Callable[..., Awaitable[None]], **fields: Any) -> None:
        try:
            await command(**fields)
        except ConnectionClosed as closed:
            self._broken(closed)

    def _open(self) -> AsyncLiveConnection:
        if self._incoming.end is not None or self._connection is None or not self.session_id:
            raise SessionError(self._incoming.end or "the session is not open; use it with `async with`")
        return self._connection

    def _with_backend(self, otherwise: str) -> AsyncLiveConnection:
        if self.config.delegation != "responses":
            raise NotSupported(f"{self.config.model} with client delegation {otherwise}")
        return self._open()

    def _broken(self, closed: ConnectionClosed) -> NoReturn:
        raise SessionError(one_line(closing(closed, PROVIDER), self._endpoint.api_key)) from None

    def _event_id(self) -> str:
        self._sent += 1
        return f"voicekit_{self._sent}"
