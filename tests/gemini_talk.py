"""What the tests of the simulated Gemini Live service share: a scripted caller behind the official SDK, and doubles.

Ears and voice are doubles that spell out in the audio what is said, so that a test says who speaks when; wire,
turn-taking, mind, sockets, TLS and SDK are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import trustme
from google import genai
from google.genai import errors, types
from websockets.exceptions import ConnectionClosed

from voicekit.clock import new_loop, run_blocking
from voicekit.simulator.ears import Ended, Started
from voicekit.simulator.gemini_live import Endpoint, serves
from voicekit.simulator.server import Server
from voicekit.simulator.settings import Settings
from voicekit.understanding import Utterance

NATIVE = "gemini-2.5-flash-native-audio-preview-12-2025"
LEGACY = "gemini-3.1-flash-live-preview"
LIVE = "gemini-3.8-live"
THINKING = "gemini-3.8-live-extended-thinking"
ALL = [NATIVE, LEGACY, LIVE, THINKING]

ORDER_TOOL = {
    "name": "get_order_status",
    "description": "Look up an order.",
    "parameters": {"type": "OBJECT", "properties": {"order_id": {"type": "STRING"}}, "required": ["order_id"]},
}
STOCK_TOOL = {
    "name": "check_stock",
    "description": "Count an item.",
    "parameters": {"type": "OBJECT", "properties": {"item": {"type": "STRING"}}},
}
SHIPPING_TOOL = {**STOCK_TOOL, "name": "get_shipping"}
ANSWER = "Your order arrives on Friday."
LONG = "It was packed on the twentieth. It waited two days for a lid. It left our warehouse this morning."


def setup_frame(model: str = LIVE, **fields: Any) -> dict[str, Any]:
    if model == THINKING:
        fields.setdefault("generationConfig", {"thinkingConfig": {"thinkingLevel": "LOW"}})
    return {"setup": {"model": f"models/{model}", **fields}}


def declared(behavior: str | None = None, tool: dict[str, Any] = ORDER_TOOL) -> list[dict[str, Any]]:
    return [{"functionDeclarations": [{**tool, **({"behavior": behavior} if behavior else {})}]}]


def answer_to(call_id: str, **fields: Any) -> dict[str, Any]:
    response = {"id": call_id, "name": "get_order_status", "response": {"output": "fine"}, **fields}
    return {"toolResponse": {"functionResponses": [response]}}


PREAMBLES = {"system_instruction": "# Preambles\n- get_order_status: I will look that up for you."}


# Doubles: what is said is written into the samples, so that the tests say when somebody speaks


RATE = 16_000
SAYINGS = {
    1: Utterance("Where is order OD-1?", "get_order_status", {"order_id": "OD-1"}, "en", "order", True, 1.0),
    2: Utterance("What are your opening hours?", "opening_hours", {}, "en", "hours", True, 1.0),
    3: Utterance("Stop, please.", "stop_talking", {}, "en", "stop", True, 0.4),  # nothing is said to that
    4: Utterance("", "", {}, "en", "", False, 0.4),  # noise the detector took for speech
    5: Utterance("Stock and shipping?", "check_stock+get_shipping", {"item": "kettle"}, "en", "both", True, 1.0),
    6: Utterance("Any news?", "any_news", {}, "en", "news", True, 0.6),
    7: Utterance("Mm-hm.", "backchannel", {}, "en", "mm_hm", True, 0.4),  # the model goes on where it was cut off
}
ORDER, HOURS, STOP, MUMBLE, BOTH, NEWS, MM_HM = SAYINGS
HUM = 100  # a sound that is no speech


class ScriptedEars:
    """Ears for audio whose samples name the utterance: 0 is silence, `HUM` is noise."""

    def __init__(self, _clips: Any, rate: int, *, silence_ms: int, prefix_ms: int, threshold: float) -> None:
        self.rate, self.silence_ms, self.automatic = rate, silence_ms, True
        self.fed_ms = self.buffered_ms = 0.0
        self._code = self._quiet_ms = 0

    @property
    def speaking(self) -> bool:
        return self._code > 0 and self.automatic

    @property
    def spoken_ms(self) -> float:
        return 1000.0 if self.speaking else 0.0  # whatever is said interrupts; what does not is tested elsewhere

    def feed(self, pcm: bytes) -> list[Started | Ended]:
        step = len(pcm) / 2 / self.rate * 1000
        self.fed_ms += step
        self.buffered_ms += step
        code = int.from_bytes(pcm[:2], "little") if pcm else 0
        if not self.automatic:
            self._code = code or self._code
            return []
        if code in SAYINGS:
            was, self._code, self._quiet_ms = self._code, code, 0
            return [] if was else [Started(round(self.fed_ms))]
        self._quiet_ms += round(step)
        if self._code and self._quiet_ms >= self.silence_ms:
            return [Ended(round(self.fed_ms), self.commit())]
        return []

    def commit(self) -> Utterance:
        utterance, self._code, self.buffered_ms = SAYINGS.get(self._code, Utterance()), 0, 0.0
        return utterance

    def clear(self) -> None:
        self.buffered_ms = 0.0


class SpelledVoice:
    """Two characters every 100 ms."""

    def __init__(self, _language: str) -> None: ...

    def pieces(self, text: str, _lengths_ms: Sequence[int] = ()) -> list[tuple[str, bytes]]:
        return [(text[at : at + 2], bytes(4800)) for at in range(0, len(text), 2)]


def spoken_seconds(text: str) -> float:
    return len(SpelledVoice("en").pieces(text)) / 10


@cache
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client


@cache
def sdk() -> genai.Client:
    client = tls()[1]
    return genai.Client(
        api_key="x", http_options={"async_client_args": {"ssl": client}, "client_args": {"verify": client}}
    )


@dataclass
class Log:
    """What the client of one conversation saw, by loop time."""

    messages: list[tuple[float, types.LiveServerMessage]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)  # the server's frames as they left
    answered_at: list[float] = field(default_factory=list)
    error: errors.APIError | None = None

    def times(self, wanted: Callable[[types.LiveServerMessage], Any]) -> list[float]:
        return [at for at, message in self.messages if wanted(message)]

    def content(self, name: str) -> list[float]:
        return self.times(lambda m: m.server_content and getattr(m.server_content, name))

    def calls(self) -> list[tuple[float, types.FunctionCall]]:
        return [(at, call) for at, m in self.messages if m.tool_call for call in m.tool_call.function_calls or []]

    def cancelled(self) -> list[str]:
        return [
            each for _, m in self.messages if m.tool_call_cancellation for each in m.tool_call_cancellation.ids or []
        ]

    def turns(self) -> list[tuple[float, str]]:
        """When each turn that had words was first heard of, and its words."""
        turns: list[tuple[float, str]] = []
        start, words = None, ""
        for at, message in self.messages:
            content = message.server_content
            start = at if message.data and start is None else start
            if content and content.output_transcription:
                words += content.output_transcription.text or ""
            if content and content.turn_complete:
                turns += [(start, words)] if start is not None else []
                start, words = None, ""
        return turns

    def said(self) -> list[str]:
        return [words for _, words in self.turns()]

    def order(self) -> list[str]:
        """The kinds of messages after the setup, runs of audio and transcripts as one."""
        kinds: list[str] = []
        for frame in self.sent[1:]:
            for key, body in frame.items():
                names = list(body) if key == "serverContent" else [key]
                for name in names:
                    if name not in ("outputTranscription", "usageMetadata") and (not kinds or kinds[-1] != name):
                        kinds.append(name)
        return kinds

    def statuses(self) -> list[str]:
        content = [frame["serverContent"] for frame in self.sent if "serverContent" in frame]
        return [each["interactionStatus"] for each in content if "interactionStatus" in each]


def converse(
    model: str,
    sayings: list[tuple[float, int, float]],
    *,
    seconds: float = 20.0,
    tool: Callable[[types.FunctionCall], list[tuple[float, dict[str, Any]]]] | None = None,
    actions: list[tuple[float, Callable[[Any], Any]]] | None = None,
    behavior: str | None = None,
    tools: tuple[dict[str, Any], ...] = (ORDER_TOOL, STOCK_TOOL, SHIPPING_TOOL),
    config: dict[str, Any] | None = None,
    streams: bool = True,
    **options: Any,
) -> Log:
    """Run one conversation through the SDK.

    `sayings`: (start, code, seconds); `tool` says when, in seconds from the start, a call gets which response.
    """
    log = Log()
    log_settings = Settings(**options)

    def make(connection: Any) -> Endpoint:
        send = connection.send

        def tapped(frame: dict[str, Any]) -> None:
            log.sent.append(frame)
            send(frame)

        connection.send = tapped
        return Endpoint(connection, log_settings, ears=ScriptedEars, voice=SpelledVoice)  # type: ignore[arg-type]

    async def main() -> None:
        async with Server(lambda connection: make if serves(connection.path) else None, tls=lambda: tls()[0]) as server:
            declarations = [{**each, **({"behavior": behavior} if behavior else {})} for each in tools]
            wanted: dict[str, Any] = {
                "http_options": {"base_url": f"https://127.0.0.1:{server.port}"},
                "response_modalities": ["AUDIO"],
                "tools": [{"function_declarations": declarations}],
                "output_audio_transcription": {},
                "input_audio_transcription": {},
                **({"thinking_config": {"thinking_level": "LOW"}} if model == THINKING else {}),
                **(config or {}),
            }
            async with sdk().aio.live.connect(model=model, config=wanted) as session:
                await talk(session)

    async def talk(session: Any) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        tasks = [loop.create_task(read(session, start))]
        if streams:
            tasks.append(loop.create_task(speak(session, start)))
        tasks += [loop.create_task(act(session, start, at, action)) for at, action in actions or []]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, errors.APIError):
                log.error = result
            elif isinstance(result, Exception) and log.error is None:
                raise result

    async def read(session: Any, start: float) -> None:
        loop, answers = asyncio.get_running_loop(), set()
        while True:
            async for message in session.receive():
                log.messages.append((round(loop.time() - start, 3), message))
                for call in (message.tool_call.function_calls or []) if message.tool_call and tool else []:
                    for at, response in tool(call):  # type: ignore[misc]
                        answers.add(loop.create_task(answer(session, start, call, at, response)))

    async def answer(session: Any, start: float, call: types.FunctionCall, at: float, response: dict[str, Any]) -> None:
        await asyncio.sleep(start + at - asyncio.get_running_loop().time())
        log.answered_at.append(round(asyncio.get_running_loop().time() - start, 3))
        given = {"response": {"status": "ok", "summary": ANSWER}, **response}
        with contextlib.suppress(ConnectionClosed):
            await session.send_tool_response(
                function_responses=types.FunctionResponse(id=call.id, name=call.name, **given)
            )

    async def speak(session: Any, start: float) -> None:
        loop = asyncio.get_running_loop()
        last = max((at + length for at, _, length in sayings), default=0.0)
        for number in range(round((last + 1.2) * 10)):
            now = number / 10
            if not any(at <= now < at + length + 1.2 for at, _, length in sayings):
                continue  # the microphone is off; more silence would change nothing
            code = next((code for at, code, length in sayings if at <= now < at + length), 0)
            pcm = code.to_bytes(2, "little") * (RATE // 10)
            await asyncio.sleep(start + now - loop.time())
            await session.send_realtime_input(audio=types.Blob(data=pcm, mime_type=f"audio/pcm;rate={RATE}"))

    async def act(session: Any, start: float, at: float, action: Callable[[Any], Any]) -> None:
        await asyncio.sleep(start + at - asyncio.get_running_loop().time())
        await action(session)

    run_blocking(main)
    return log


def at(when: float, **response: Any) -> Callable[[types.FunctionCall], list[tuple[float, dict[str, Any]]]]:
    """Every call is answered at the same moment."""
    return lambda _call: [(when, response)]


def near(value: float, wanted: float, by: float = 0.35) -> bool:
    return abs(value - wanted) <= by


class Socket:
    """A connection without a socket: what the server sends and how it closes."""

    def __init__(self, server: Any) -> None:
        self.server, self.path, self.query, self.headers = server, "", {}, {}
        self.sent: list[dict[str, Any]] = []
        self.close_code: int | None = None
        self.reason = ""

    def send(self, frame: dict[str, Any]) -> None:
        if self.close_code is None:
            self.sent.append(json.loads(json.dumps(frame)))

    def close(self, code: int, reason: str = "") -> None:
        if self.close_code is None:
            self.close_code, self.reason = code, reason


class SomeServer: ...


FIND_ORDER = "Hi, where is my order OD-20260818-001?"
Connect = Callable[..., tuple[Endpoint, Socket]]


def alone(scene: Callable[[Connect], Any], chosen: Settings | None = None) -> None:
    """Run `scene(connect)` on a virtual loop; `connect(frame)` opens an endpoint without a socket and sends a frame."""
    server = SomeServer()

    async def main() -> None:
        def connect(frame: Any = None) -> tuple[Endpoint, Socket]:
            socket = Socket(server)
            endpoint = Endpoint(socket, chosen or Settings(), ears=ScriptedEars, voice=SpelledVoice)  # type: ignore[arg-type]
            endpoint.opened()
            if frame is not None:
                endpoint.received(frame)
            return endpoint, socket

        await scene(connect)

    loop = new_loop("virtual")
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def resuming(handle: str = "", **fields: Any) -> dict[str, Any]:
    return setup_frame(LIVE, tools=declared(), sessionResumption={"handle": handle} if handle else {}, **fields)


def ask(text: str) -> dict[str, Any]:
    return {"realtimeInput": {"text": text}}


def calls_of(socket: Socket) -> list[dict[str, Any]]:
    return [call for frame in socket.sent if "toolCall" in frame for call in frame["toolCall"]["functionCalls"]]


def words_of(socket: Socket) -> str:
    texts = [frame["serverContent"].get("outputTranscription", {}) for frame in socket.sent if "serverContent" in frame]
    return "".join(each.get("text", "") for each in texts)
