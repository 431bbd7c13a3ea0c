"""OpenAI Realtime as a `RealtimeSession`, on the official SDK (`client.realtime.connect`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, NoReturn, Self, cast

import openai
import pybase64
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import InputAudioBufferAppendEvent, RealtimeServerEvent
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
from voicekit.sessions._openai_client import client_for, receive
from voicekit.sessions._openai_events import Reader, Truncation, calls_to_metadata
from voicekit.sessions._wiretap import connect_options
from voicekit.sessions.base import (
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
LARGEST_APPEND = 10 * 2**20  # bytes of audio in one event: 15 MiB at most, once in base64
TRANSCRIBER = "gpt-transcribe"  # the gpt-4o-*-transcribe models and whisper-1 end on 2027-02-26


def session_update(config: SessionConfig) -> dict[str, Any]:
    """The `session` of the opening session.update."""
    pcm = {"type": "audio/pcm", "rate": 24000}
    return {
        "type": "realtime",
        "output_modalities": ["audio"],
        "instructions": config.instructions,
        "tools": [
            {
                "type": "function",
                "name": tool["name"],
                "description": tool.get("description", ""),
                "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
            }
            for tool in config.tools
        ],
        "tool_choice": "auto",
        "audio": {
            "input": {
                "format": pcm,
                "transcription": {"model": TRANSCRIBER, "language": config.language},
                "turn_detection": {
                    "type": "server_vad",
                    "silence_duration_ms": config.silence_ms,
                    "create_response": True,
                    "interrupt_response": True,
                },
            },
            "output": {"format": pcm} | ({"voice": config.voice} if config.voice else {}),
        },
    }


class OpenAIRealtimeSession:
    """A call with an OpenAI Realtime model. See `RealtimeSession` for the commands.

    `refused`: call ids of the last `respond` that the provider turned down because a turn of its own was active (None
    when there is nothing to repeat). Ask again after that turn's `TurnDone`.

    Raises SessionError for tool declarations that would be ignored; nothing is sent before `async with`.
    """

    def __init__(self, config: SessionConfig, endpoint: Endpoint, tap: WireTap | None = None) -> None:
        self.config = config
        self.capabilities = capabilities(config.model)
        self.resumption_handle: str | None = None  # the provider has none
        check_tools(config, self.capabilities)
        self._endpoint = endpoint
        self._tap = tap
        self._client: openai.AsyncOpenAI | None = None
        self._connection: AsyncRealtimeConnection | None = None
        self._reader = Reader(endpoint.api_key)
        self._incoming = Incoming(self._receive, self._translate, endpoint.api_key)
        for note in behavior_notes(config, self.capabilities):
            self._incoming.note(note)
        self._odd = b""
        self._sent = 0

    @property
    def refused(self) -> tuple[str, ...] | None:
        return self._reader.refused

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

    async def send_audio(self, pcm: bytes) -> None:
        connection = self._open()
        pcm = self._odd + pcm
        even = len(pcm) // 2 * 2
        self._odd = pcm[even:]
        try:
            for start in range(0, even, LARGEST_APPEND):
                audio = pybase64.b64encode_as_string(pcm[start : min(even, start + LARGEST_APPEND)])
                # A model rather than a dict: this SDK checks a dict field by field, five times as slow.
                await connection.send(InputAudioBufferAppendEvent(type="input_audio_buffer.append", audio=audio))
        except ConnectionClosed as closed:
            self._broken(closed)

    async def send_result(
        self, call_id: str, result: dict[str, Any], *, delivery: Delivery | None = None, final: bool = True
    ) -> None:
        connection = self._open()
        check_call_id(call_id)
        if delivery is not None:
            raise NotSupported(f"{self.config.model} cannot schedule a result; choose when to call `respond` instead")
        if not final:
            raise NotSupported(f"{self.config.model} takes one result per call; send the final one only")
        item = {"type": "function_call_output", "call_id": call_id, "output": json.dumps(result, ensure_ascii=False)}
        await self._send(connection.conversation.item.create, item=item)

    async def respond(self, call_ids: tuple[str, ...] = ()) -> None:
        connection = self._open()
        if busy := self._reader.busy:
            raise SessionError(f"{busy} is active; wait for its TurnDone, then call `respond` again")
        event_id = self._event_id()
        self._reader.request(event_id, call_ids)
        options = {"response": {"metadata": calls_to_metadata(call_ids)}} if call_ids else {}
        await self._send(connection.response.create, event_id=event_id, **options)
        self._incoming.expect("response.created after response.create")

    async def tell(self, text: str) -> None:
        """A system message in the conversation; `respond` asks the model to act on it."""
        content: list[Any] = [{"type": "input_text", "text": text}]
        item: Any = {"type": "message", "role": "system", "content": content}
        await self._send(self._open().conversation.item.create, item=item)

    async def stop_speaking(self) -> None:
        connection = self._open()
        if self._reader.busy:
            self._reader.silence()
            options = {"response_id": self._reader.active} if self._reader.active else {}
            await self._send(connection.response.cancel, event_id=self._event_id(), **options)

    async def truncate(self, item: str, heard_ms: int) -> None:
        """Tell the provider how much of `item` was heard.

        Never more than the audio received (a `Problem` says when it was less than asked); for an item of which nothing
        was received there is nothing to take back, so nothing is sent. When the provider holds less audio than it
        sent, the length it states is tried once.
        """
        self._open()
        received = self._reader.received_ms(item)
        if received is None:
            return
        position = min(max(heard_ms, 0), received)
        if position != heard_ms:
            note = f"{item}: heard {heard_ms} ms of {received} ms received; truncated at {position} ms"
            self._incoming.note(Problem("truncate_clamped", note))
        await self._truncate(Truncation(item, position))

    async def close(self) -> None:
        self._incoming.finish("the session is closed; open a new one")
        connection, self._connection = self._connection, None
        client, self._client = self._client, None
        if connection is not None:
            await connection.close()
        if client is not None:
            await client.close()
        await asyncio.sleep(0)  # lets the connection's keepalive task see that it was cancelled

    async def _set_up(self) -> None:
        async with within(SETUP_SECONDS, f"the connection to {self.config.model}"):
            self._connection = await self._connect()
        async with within(SETUP_SECONDS, "session.created after connecting"):
            await self._wait_for("session.created")
        await self._send(self._connection.session.update, session=session_update(self.config))
        async with within(SETUP_SECONDS, "session.updated after session.update"):
            await self._wait_for("session.updated")

    async def _connect(self) -> AsyncRealtimeConnection:
        self._client = client = client_for(self._endpoint)
        options = connect_options(self._endpoint, str(client.base_url), self._tap)
        return await client.realtime.connect(
            model=self.config.model, websocket_connection_options=cast(Any, options)
        ).enter()

    async def _wait_for(self, type_: str) -> None:
        while (event := await self._receive()).type != type_:
            if event.type == "error":
                raise Ended("error", event.error.message)

    async def _receive(self) -> Any:
        if self._connection is None:
            raise Ended("closed", "the session is closed")
        try:
            event = await receive(self._connection, RealtimeServerEvent)
        except ConnectionClosed as closed:
            raise closing(closed, PROVIDER) from None
        except (ValueError, RecursionError) as error:
            raise Ended("not_json", f"{PROVIDER} sent a frame that is not JSON ({error})") from None
        if not isinstance(getattr(event, "type", None), str):
            raise Ended("garbage", f"{PROVIDER} sent a frame that is no event")
        return event

    async def _translate(self, message: Any) -> list[Event]:
        events = self._reader.translate(message)
        if retry := self._reader.take_retry():
            await self._truncate(retry)
        if busy := self._reader.busy:
            self._incoming.expect(f"the end of {busy}")
        else:
            self._incoming.settle()
        return events

    async def _truncate(self, truncation: Truncation) -> None:
        event_id = self._event_id()
        self._reader.truncations[event_id] = truncation
        await self._send(
            self._open().conversation.item.truncate,
            event_id=event_id,
            item_id=truncation.item,
            content_index=0,
            audio_end_ms=truncation.audio_end_ms,
        )

    async def _send(self, command: Callable[..., Awaitable[None]], **fields: Any) -> None:
        try:
            await command(**fields)
        except ConnectionClosed as closed:
            self._broken(closed)

    def _open(self) -> AsyncRealtimeConnection:
        if self._incoming.end is not None or self._connection is None:
            raise SessionError(self._incoming.end or "the session is not open; use it with `async with`")
        return self._connection

    def _broken(self, closed: ConnectionClosed) -> NoReturn:
        raise SessionError(one_line(closing(closed, PROVIDER), self._endpoint.api_key)) from None

    def _event_id(self) -> str:
        self._sent += 1
        return f"voicekit_{self._sent}"
