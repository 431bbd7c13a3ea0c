"""Gemini Live as a `RealtimeSession`, on the official SDK (`client.aio.live.connect`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Any, NoReturn, Self, cast

from google import genai
from google.genai import errors, types
from google.genai.live import AsyncSession
from websockets.exceptions import ConnectionClosed

from voicekit.audio import RATE, Resampler
from voicekit.models import facts
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
from voicekit.sessions._gemini_events import Reader
from voicekit.sessions._wiretap import connect_options, is_loopback
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

PROVIDER = "Gemini"
INPUT_RATE = 16_000
MIME = f"audio/pcm;rate={INPUT_RATE}"
LARGEST_INPUT = 512 * 1024  # bytes of audio in one frame, below the 1 MiB of common frame limits once in base64
SCHEDULING = {
    "when_idle": types.FunctionResponseScheduling.WHEN_IDLE,
    "interrupt": types.FunctionResponseScheduling.INTERRUPT,
    "silent": types.FunctionResponseScheduling.SILENT,
}
BEHAVIORS = {"blocking": types.Behavior.BLOCKING, "non_blocking": types.Behavior.NON_BLOCKING}


def live_config(
    config: SessionConfig, behaviors: dict[str, str], *, explicit: bool, thinking: bool, resume: str | None
) -> types.LiveConnectConfig:
    """The set-up of a session. `explicit`: the model accepts a behaviour; `thinking`: it insists on a level."""
    declarations = [
        types.FunctionDeclaration(
            name=tool["name"],
            description=tool.get("description", ""),
            parameters_json_schema=tool.get("parameters") or {"type": "object", "properties": {}},
            # Never left to the server: its default differs between models, pages and dates.
            behavior=BEHAVIORS[behaviors[tool["name"]]] if explicit else None,
        )
        for tool in config.tools
    ]
    voice = types.VoiceConfig(prebuilt_voice_config=types.PrebuiltVoiceConfig(voice_name=config.voice))
    return types.LiveConnectConfig(
        response_modalities=[types.Modality.AUDIO],
        system_instruction=config.instructions or None,
        tools=[types.Tool(function_declarations=declarations)] if declarations else None,
        speech_config=types.SpeechConfig(voice_config=voice) if config.voice else None,
        thinking_config=types.ThinkingConfig(thinking_level=types.ThinkingLevel.LOW) if thinking else None,
        input_audio_transcription=types.AudioTranscriptionConfig(),
        output_audio_transcription=types.AudioTranscriptionConfig(),
        realtime_input_config=types.RealtimeInputConfig(
            automatic_activity_detection=types.AutomaticActivityDetection(silence_duration_ms=config.silence_ms)
        ),
        session_resumption=types.SessionResumptionConfig(handle=resume),
    )


class GeminiLiveSession:
    """A call with a Gemini Live model. See `RealtimeSession` for the commands.

    `resume` continues the session that gave this `resumption_handle`. Raises SessionError for tool declarations that
    would be ignored and NotSupported for a behaviour the model refuses; nothing is sent before `async with`.
    """

    def __init__(
        self, config: SessionConfig, endpoint: Endpoint, tap: WireTap | None = None, *, resume: str | None = None
    ) -> None:
        self.config = config
        self.capabilities = capabilities(config.model)
        self.resumption_handle: str | None = resume  # the last one the provider gave
        self._behaviors = check_tools(config, self.capabilities)
        self._endpoint = endpoint
        self._tap = tap
        self._setup = live_config(
            config,
            self._behaviors,
            explicit=bool(self.capabilities.behaviors),
            thinking=needs_thinking_level(config.model),
            resume=resume,
        )
        self._client: genai.Client | None = None
        self._manager: contextlib.AbstractAsyncContextManager[AsyncSession] | None = None
        self._session: AsyncSession | None = None
        self._messages: AsyncGenerator[types.LiveServerMessage, None] | None = None  # of one turn
        self._reader = Reader()
        self._incoming = Incoming(self._receive, self._translate, endpoint.api_key)
        for note in behavior_notes(config, self.capabilities):
            self._incoming.note(note)
        self._resampler = Resampler(RATE, INPUT_RATE)

    async def __aenter__(self) -> Self:
        try:
            await self._set_up()
        except SessionError:
            await self.close()
            raise
        except Exception as error:
            await self.close()
            reason = api_error(error) if isinstance(error, errors.APIError) else error
            hint = f"; {self._setup_fields()}" if isinstance(reason, Ended) else ""
            raise refusal(self.config.model, reason, self._endpoint.api_key, hint) from None
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
        session = self._open()
        pcm = self._resampler.feed(pcm)
        try:
            for start in range(0, len(pcm), LARGEST_INPUT):
                piece = types.Blob(data=pcm[start : start + LARGEST_INPUT], mime_type=MIME)
                await session.send_realtime_input(audio=piece)
        except ConnectionClosed as closed:
            self._broken(closed)

    async def send_result(
        self, call_id: str, result: dict[str, Any], *, delivery: Delivery | None = None, final: bool = True
    ) -> None:
        """Answer a call. A `delivery` for a blocking tool is not sent: the model waits for it and speaks at once.

        Nothing is sent for a call the provider has withdrawn; a `Problem` says so. After the last result a standing
        model waits for, it owes an answer: its silence ends the session (`Problem` "stall").
        """
        session = self._open()
        check_call_id(call_id)
        name = self._reader.tool(call_id)
        behavior = self._behaviors.get(name or "", self.capabilities.default_behavior)
        schedulable = self.capabilities.can_schedule and behavior == "non_blocking"
        if delivery is not None and not self.capabilities.can_schedule:
            raise NotSupported(f"{self.config.model} cannot schedule a result; leave `delivery` out")
        if delivery is not None and delivery not in SCHEDULING:
            raise SessionError(f"delivery is one of {', '.join(SCHEDULING)}, not {delivery!r}")
        if not final and not schedulable:
            raise NotSupported(f"{name or call_id} on {self.config.model} takes one result; send the final one only")
        if call_id in self._reader.cancelled:
            self._incoming.note(Problem("call_cancelled", f"{call_id} was withdrawn by the provider; result not sent"))
            return
        response = types.FunctionResponse(
            id=call_id,
            name=name,
            response=result,
            scheduling=SCHEDULING[delivery] if delivery is not None and schedulable else None,
            will_continue=None if final else True,
        )
        if final:
            self._reader.answered(call_id)
        self._reader.spoken = False  # before sending: the answer may be there before the SDK returns
        try:
            await session.send_tool_response(function_responses=[response])
        except ConnectionClosed as closed:
            self._broken(closed)
        if final and behavior == "blocking" and not self._reader.open_calls and not self._reader.spoken:
            self._incoming.expect(f"{self.config.model} to go on after the result of {call_id}")

    async def respond(self, call_ids: tuple[str, ...] = ()) -> None:
        raise NotSupported(f"on {self.config.model} a result starts speech by itself; do not call `respond`")

    async def tell(self, text: str) -> None:
        """Typed input: this API has no system messages in mid-session. The model answers it, and may stop talking."""
        try:
            await self._open().send_realtime_input(text=text)
        except ConnectionClosed as closed:
            self._broken(closed)

    async def stop_speaking(self) -> None:
        raise NotSupported(f"{self.config.model} cannot be stopped by the client; empty your own playout instead")

    async def truncate(self, item: str, heard_ms: int) -> None:
        raise NotSupported(f"{self.config.model} keeps its own account of what was heard; empty the playout only")

    async def close(self) -> None:
        self._incoming.finish("the session is closed; open a new one")
        self._session = None
        manager, self._manager = self._manager, None
        client, self._client = self._client, None
        if manager is not None:
            await manager.__aexit__(None, None, None)
        messages, self._messages = self._messages, None
        if messages is not None:
            with contextlib.suppress(RuntimeError):  # a reader is about to end it
                await messages.aclose()
        if client is not None:
            await client.aio.aclose()
            client.close()
        await asyncio.sleep(0)  # lets the connection's keepalive task see that it was cancelled

    async def _set_up(self) -> None:
        self._client = self._make_client()
        manager = self._client.aio.live.connect(model=self.config.model, config=self._setup)
        async with within(SETUP_SECONDS, f"setupComplete ({self._setup_fields()})"):
            session = await manager.__aenter__()
        self._manager = manager
        if session.setup_complete is None:
            raise Ended("no_setup", f"{PROVIDER} answered the setup with something else than setupComplete")
        self._session = session

    def _make_client(self) -> genai.Client:
        base_url = self._endpoint.base_url
        address = base_url or os.environ.get("GOOGLE_GEMINI_BASE_URL")
        options = connect_options(self._endpoint, address, self._tap)
        if not is_loopback(base_url):
            # The key decides that this is the Developer API, whatever GOOGLE_GENAI_USE_ENTERPRISE says.
            http = types.HttpOptions(base_url=base_url, async_client_args=options)
            return genai.Client(api_key=self._endpoint.api_key, vertexai=False, http_options=http)
        # Nothing in the environment (API version, proxies) may change what the simulator is asked. The SDK's HTTP
        # clients are never used here; an empty trust store spares them 50 ms of reading certificates.
        unused = {"verify": self._endpoint.tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "trust_env": False}
        return genai.Client(
            api_key=self._endpoint.api_key,
            vertexai=False,
            http_options=types.HttpOptions(
                base_url=base_url, api_version="v1", client_args=unused, async_client_args=unused | options
            ),
        )

    def _setup_fields(self) -> str:
        """What the set-up holds beyond a bare one: an option a model does not know can leave it unanswered."""
        fields = [name for name in self._setup.model_dump(exclude_none=True) if name != "response_modalities"]
        if self.config.tools and self.capabilities.behaviors:
            fields[fields.index("tools")] = "tools (with behavior)"
        return f"fields set beyond the defaults: {', '.join(fields)}"

    async def _receive(self) -> types.LiveServerMessage:
        while True:
            if self._session is None:
                raise Ended("closed", "the session is closed")
            if self._messages is None:
                self._messages = cast(AsyncGenerator[types.LiveServerMessage, None], self._session.receive())
            try:
                return await anext(self._messages)
            except StopAsyncIteration:  # the turn is over, the call goes on
                self._messages = None
            except ConnectionClosed as closed:
                raise closing(closed, PROVIDER) from None
            except errors.APIError as error:
                raise api_error(error) from None

    async def _translate(self, message: types.LiveServerMessage) -> list[Event]:
        events = self._reader.translate(message)
        self.resumption_handle = self._reader.handle or self.resumption_handle
        if self._reader.spoken:
            self._incoming.settle()
        return events

    def _open(self) -> AsyncSession:
        if self._incoming.end is not None or self._session is None:
            raise SessionError(self._incoming.end or "the session is not open; use it with `async with`")
        return self._session

    def _broken(self, closed: ConnectionClosed) -> NoReturn:
        raise SessionError(one_line(closing(closed, PROVIDER), self._endpoint.api_key)) from None


def api_error(error: errors.APIError) -> Ended:
    """The end the SDK reports as an API error: a close code with its reason, or an error object on the wire."""
    reason = error.message or error.details or ""
    return Ended(str(error.code), f"{PROVIDER} closed the connection with code {error.code}: {reason}")


def needs_thinking_level(model: str) -> bool:
    thinking = facts(model).get("thinking")
    return thinking is not None and thinking.value == "level_required"
