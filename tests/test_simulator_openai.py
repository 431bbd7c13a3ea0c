"""The simulated Realtime service over a real loopback socket: the unmodified openai SDK calls it in virtual time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, get_args

import numpy as np
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.realtime import RealtimeServerEvent
from websockets.exceptions import ConnectionClosedError

from voicekit.audio import RATE, clips, to_pcm
from voicekit.clock import run_blocking, wait_for
from voicekit.frame_json import encoded, parsed
from voicekit.simulator.ears import Ended, Started, Utterance
from voicekit.simulator.openai_realtime import Endpoint, serves
from voicekit.simulator.server import Server
from voicekit.simulator.settings import Settings
from voicekit.simulator.voice import Voice
from voicekit.simulator.wire import g711
from voicekit.steps import CallTool, Speak

SDK_EVENTS = {
    get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(get_args(RealtimeServerEvent)[0])
}
TOOLS = [
    {
        "type": "function",
        "name": name,
        "description": "",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    }
    for name in ("check_stock", "get_shipping")
]
LOUD = 4000  # sample value of the first thing the fake ears understand; the others are its multiples
FIRST, SECOND = CallTool("check_stock", {"item": "blue kettle"}), CallTool("get_shipping", {"item": "blue kettle"})
LONG = "It was packed on the twentieth, waited two days for a missing lid, and left our warehouse on the twenty-third."


class FakeEars:
    """Hears a turn in samples of one value, which says what was said. Silence ends it after `silence_ms`."""

    def __init__(self, _clips: Any, rate: int) -> None:
        self.rate, self.automatic, self.speaking, self.fed_ms = rate, True, False, 0
        self.heard, self.silence, self.options = 0, 0.0, {"silence_ms": 500}

    def listen_for(self, **options: Any) -> None:
        self.options = options

    def feed(self, pcm: bytes) -> list[Started | Ended]:
        value = round(float(np.abs(np.frombuffer(pcm, "<i2").astype(int)).max()) / LOUD)
        ms = len(pcm) // 2 * 1000 // self.rate
        events: list[Started | Ended] = []
        if value and self.automatic and not self.speaking:
            events.append(Started(max(0, self.fed_ms - 300)))
            self.speaking = True
        self.heard = value or self.heard
        self.fed_ms += ms
        self.silence = 0.0 if value else self.silence + ms
        if self.speaking and self.silence >= self.options.get("silence_ms", 200):
            events.append(Ended(self.fed_ms, self.commit()))
        return events

    def commit(self) -> Utterance:
        heard = self.heard
        self.clear()
        return Utterance(f"words {heard}", str(heard), {}, "en", "", bool(heard), 0.4)

    def clear(self) -> None:
        self.heard, self.silence, self.speaking = 0, 0.0, False


class FakeMind:
    """Answers by the table `script`: intent (or typed text) -> steps. Tells results as they are."""

    def __init__(self, script: dict[str, list[Any]]) -> None:
        self.script = script
        self.waiting: list[str] = []
        self.open_calls: dict[str, CallTool] = {}
        self.results: dict[str, str] = {}
        self.owed: list[str] = []
        self.cut_offs: list[str] = []
        self.configured: list[tuple[str, list[str]]] = []

    def configure(self, instructions: str, tools: Any) -> None:
        self.configured.append((instructions, [tool["name"] for tool in tools]))

    def hear(self, utterance: Utterance) -> None:
        self.waiting.append(utterance.intent)

    def read(self, _role: str, text: str) -> None:
        self.waiting.append(text)

    def called(self, call_id: str, call: CallTool) -> None:
        self.open_calls[call_id] = call

    def result(self, call_id: str, output: Any, *, owed: bool, final: bool = True) -> None:
        assert not owed
        assert final
        if self.open_calls.pop(call_id, None):
            self.results[call_id] = output

    def owe_results(self) -> None:
        self.owed += self.results.values()
        self.results.clear()

    def cancelled(self, call_id: str) -> None:
        self.open_calls.pop(call_id, None)

    def cut_off(self, text_heard: str) -> None:
        self.cut_offs.append(text_heard)

    @property
    def has_something_to_say(self) -> bool:
        return bool(self.waiting or self.owed)

    def next_steps(self) -> list[Any]:
        steps: list[Any] = [Speak(text) for text in self.owed]
        for intent in self.waiting:
            steps += self.script.get(intent, [Speak(f"Answer to {intent}.")])
        self.owed, self.waiting = [], []
        return steps


class Phone:
    """A client of the service: the SDK's connection, what came over it and when."""

    def __init__(self, connection: Any, minds: list[FakeMind]) -> None:
        self.connection, self.minds = connection, minds
        self.frames: list[tuple[float, dict[str, Any]]] = []
        self.ended: BaseException | None = None
        self._came = asyncio.Event()
        self._used: dict[str, int] = {}

    @property
    def mind(self) -> FakeMind:
        return self.minds[0]

    async def read(self) -> None:
        """Read until the end, checking each frame against the SDK's class of its type."""
        try:
            while True:
                data = await self.connection.recv_bytes()
                frame = json.loads(data)
                SDK_EVENTS[frame["type"]].model_validate(frame)
                assert type(self.connection.parse_event(data)) is SDK_EVENTS[frame["type"]]
                self.frames.append((asyncio.get_running_loop().time(), frame))
                self._came.set()
        except Exception as error:
            self.ended = error
            self._came.set()

    def types(self) -> list[str]:
        return [frame["type"] for _, frame in self.frames]

    def all(self, type_: str) -> list[dict[str, Any]]:
        return [frame for _, frame in self.frames if frame["type"] == type_]

    def time(self, type_: str, index: int = 0) -> float:
        return [at for at, frame in self.frames if frame["type"] == type_][index]

    async def until(self, type_: str) -> dict[str, Any]:
        """The next frame of this type that `until` has not returned yet."""
        index = self._used.get(type_, 0)
        self._used[type_] = index + 1

        async def found() -> dict[str, Any]:
            while True:
                if len(self.all(type_)) > index:
                    return self.all(type_)[index]
                if self.ended is not None:
                    raise self.ended
                self._came.clear()
                await self._came.wait()

        return await wait_for(found(), 60, type_)

    async def send(self, type_: str, **fields: Any) -> None:
        await self.connection.send({"type": type_, **fields})

    async def update(self, **fields: Any) -> None:
        await self.send("session.update", session={"type": "realtime", **fields})
        await self.until("session.updated")

    async def append(self, pcm: bytes) -> None:
        await self.connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())

    async def talk(self, number: int = 1, ms: int = 400) -> None:
        """Say the thing with this number, in 100 ms frames in real time, and leave silence until the turn is over."""
        for index in range(ms // 100 + 5):
            await self.append(sound(number if index < ms // 100 else 0))
            await asyncio.sleep(0.1)

    async def answer(self, call_id: str, output: str) -> None:
        item = {"type": "function_call_output", "call_id": call_id, "output": output}
        await self.connection.conversation.item.create(item=item)


def sound(number: int, ms: int = 100) -> bytes:
    return to_pcm(np.full(RATE * ms // 1000, number * LOUD, np.int16))


def sdk(server: Server, path: str = "/v1") -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(verify=False)  # nothing goes over it, and loading certificates takes long
    return AsyncOpenAI(api_key="x", base_url=f"http://127.0.0.1:{server.port}{path}", http_client=http)


@contextlib.asynccontextmanager
async def phone(
    model: str = "gpt-realtime", *, script: dict[str, list[Any]] | None = None, path: str = "/v1", **options: Any
) -> AsyncIterator[Phone]:
    """A call to a service with fake ears and mind and the real voice."""
    minds: list[FakeMind] = []

    def mind(*_: Any) -> FakeMind:
        minds.append(FakeMind(script or {}))
        return minds[-1]

    def endpoint(connection: Any) -> Endpoint:
        return Endpoint(connection, Settings(**options), ears=FakeEars, mind=mind)  # type: ignore[arg-type]

    async with Server(lambda connection: endpoint if serves(connection.path) else None) as server:
        client = sdk(server, path)
        async with client.realtime.connect(model=model) as connection:
            call = Phone(connection, minds)
            reader = asyncio.create_task(call.read())
            yield call
            await connection.close()
            await reader


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a plain test of an async one, in virtual time."""

    def plain() -> None:
        run_blocking(test)

    plain.__name__, plain.__doc__ = test.__name__, test.__doc__
    return plain


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


def heard_audio(call: Phone) -> bytes:
    return b"".join(base64.b64decode(frame["delta"]) for frame in call.all("response.output_audio.delta"))


# The connection


def test_paths() -> None:
    assert all(map(serves, ("/realtime", "/v1/realtime", "//v1//realtime", "/v1/realtime/")))
    assert not any(map(serves, ("/", "/v1", "/v1/realtime/calls", "/v1/live/sessions", "/v2/realtime")))


@run
async def test_session_created_comes_unprompted() -> None:
    for path in ("/v1", "", "//v1"):
        async with phone(path=path) as call:
            session = (await call.until("session.created"))["session"]
            assert session["simulated"] is True
            assert session["model"] == "gpt-realtime"
            assert session["expires_at"] == 3600
            assert session["id"].startswith("sess_")


@run
async def test_what_is_no_realtime_model_is_refused_and_closed() -> None:
    for model, code in (("gpt-nope", "invalid_model"), ("gemini-3.8-live", "invalid_model"), ("", "missing_model")):
        async with phone(model) as call:
            assert (await call.until("error"))["error"]["code"] == code
            with pytest.raises(ConnectionClosedError) as closed:
                await call.until("session.created")
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4000, f"invalid_request_error.{code}")


@run
async def test_the_beta_header_is_refused() -> None:
    async with Server(lambda _connection: lambda each: Endpoint(each, Settings())) as server:
        client = sdk(server)
        beta = {"OpenAI-Beta": "realtime=v1"}
        async with client.realtime.connect(model="gpt-realtime", extra_headers=beta) as connection:
            assert json.loads(await connection.recv_bytes())["error"]["code"] == "beta_api_shape_disabled"


@run
async def test_the_session_expires() -> None:
    async with phone(session_seconds=90) as call:
        assert (await call.until("session.created"))["session"]["expires_at"] == 90
        await asyncio.sleep(91)
        assert (await call.until("error"))["error"]["code"] == "session_expired"
        assert call.time("error") == 90
        assert call.ended.rcvd.code == 1001  # type: ignore[union-attr]
        assert call.ended.rcvd.reason == "Your session hit the maximum duration of 1.5 minutes."  # type: ignore[union-attr]


@run
async def test_a_reconnected_client_gets_another_session() -> None:
    ids = []
    async with Server(lambda _connection: lambda each: Endpoint(each, Settings())) as server:
        client = sdk(server)
        for _ in range(2):
            async with client.realtime.connect(model="gpt-realtime") as connection:
                ids.append(json.loads(await connection.recv_bytes())["session"]["id"])
            await asyncio.sleep(1)
    assert len(set(ids)) == 2


# Turns


@run
async def test_sequence_a_over_the_socket() -> None:
    async with phone(script={"1": [Speak(LONG)]}) as call:
        await call.talk(1)
        done = (await call.until("response.done"))["response"]
        assert [type_ for type_ in call.types() if not type_.endswith(".delta")] == [
            "session.created",
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
            "rate_limits.updated",
        ]
        assert call.time("response.created") == call.time("input_audio_buffer.speech_stopped")
        settings = Settings()
        latency = settings.profile("gpt-realtime").latency("speech", settings.random("openai latency"))
        first = call.time("response.output_audio.delta")
        assert first - call.time("response.created") == pytest.approx(latency)
        # the sound is the voice's, five times faster than it lasts, the words along with it
        sent = heard_audio(call)
        assert sent == to_pcm(Voice().say(LONG))
        chunks = call.all("response.output_audio.delta")
        sizes = [len(base64.b64decode(chunk["delta"])) for chunk in chunks]
        assert sizes[:4] == [4800, 7200, 12_000, 12_000]
        assert call.time("response.done") - first == pytest.approx(sum(sizes[1:]) / 2 / RATE / 5)
        words = call.all("response.output_audio_transcript.delta")
        assert "".join(frame["delta"] for frame in words) == LONG
        assert len(words) > 5
        assert call.time("response.output_audio_transcript.delta", -1) > call.time("response.output_audio.delta", 5)
        assert done["output"][0]["content"][0]["transcript"] == LONG


@run
async def test_the_caller_item_is_announced_before_it_exists() -> None:
    async with phone() as call:
        await call.append(sound(0, 1000))
        await call.talk()
        started, stopped = await call.until("input_audio_buffer.speech_started"), None
        stopped = await call.until("input_audio_buffer.speech_stopped")
        committed = await call.until("input_audio_buffer.committed")
        assert started["item_id"] == stopped["item_id"] == committed["item_id"]
        assert (started["audio_start_ms"], stopped["audio_end_ms"]) == (700, 1900)


@run
async def test_a_model_that_stays_silent_creates_no_response() -> None:
    async with phone(script={"1": []}) as call:
        await call.talk(1)
        await asyncio.sleep(10)
        assert call.types()[-1] == "conversation.item.done"
        await call.send("response.create")
        assert (await call.until("response.done"))["response"]["output"] == []


@run
async def test_transcription_only_where_asked_for_and_any_time_around_the_answer() -> None:
    async with phone(seed=1) as call:
        await call.talk()
        await call.until("response.done")
        await asyncio.sleep(3)
        assert not any("transcription" in type_ for type_ in call.types())
        await call.update(audio={"input": {"transcription": {"model": "whisper-1"}}})
        before_audio = set()
        for turn in (1, 2, 3):
            await call.talk(turn)
            done = await call.until("conversation.item.input_audio_transcription.completed")
            assert done["transcript"] == f"words {turn}"
            assert done["item_id"] == call.all("input_audio_buffer.committed")[turn]["item_id"]
            at = call.time("conversation.item.input_audio_transcription.completed", -1)
            assert 0.3 <= at - call.time("input_audio_buffer.committed", turn) <= 1.4
            await call.until("response.done")
            before_audio.add(at < call.time("response.content_part.added", turn))
        assert before_audio == {True, False}


@run
async def test_push_to_talk() -> None:
    async with phone() as call:
        await call.update(audio={"input": {"turn_detection": None}})
        await call.talk(3)
        await asyncio.sleep(5)
        assert not any(type_.startswith("input_audio_buffer") for type_ in call.types())
        await call.send("input_audio_buffer.commit")
        await call.until("input_audio_buffer.committed")
        await asyncio.sleep(5)
        assert "response.created" not in call.types()
        await call.send("response.create")
        done = await call.until("response.done")
        assert done["response"]["output"][0]["content"][0]["transcript"] == "Answer to 3."
        await call.send("input_audio_buffer.commit", event_id="late")
        error = (await call.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "late")


@run
async def test_clear_forgets_what_was_said() -> None:
    async with phone() as call:
        await call.append(sound(1, 300))
        await call.send("input_audio_buffer.clear")
        await call.until("input_audio_buffer.cleared")
        await call.append(sound(0, 2000))
        await asyncio.sleep(5)
        assert "input_audio_buffer.speech_stopped" not in call.types()


@run
async def test_turn_detection_settings_reach_the_ears() -> None:
    async with phone() as call:
        await call.update(audio={"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 200}}})
        await call.append(sound(1, 300))
        await call.append(sound(0, 200))
        assert (await call.until("input_audio_buffer.speech_stopped"))["audio_end_ms"] == 500
        await call.update(audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}})
        await call.append(sound(1, 300))
        await call.append(sound(0, 200))
        assert (await call.until("input_audio_buffer.speech_stopped"))["audio_end_ms"] == 1000


@run
async def test_detection_without_responses() -> None:
    detection = {"type": "server_vad", "create_response": False, "interrupt_response": False}
    async with phone() as call:
        await call.update(audio={"input": {"turn_detection": detection}})
        await call.talk()
        await call.until("input_audio_buffer.committed")
        await asyncio.sleep(5)
        assert "response.created" not in call.types()


# Barge-in


@run
async def test_sequence_c_over_the_socket() -> None:
    async with phone(script={"1": [Speak(LONG)]}) as call:
        await call.talk(1)
        await call.until("response.output_audio.delta")
        await asyncio.sleep(0.3)
        await call.append(sound(2))
        done = (await call.until("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert done["output"][0]["status"] == "incomplete"
        index = call.types().index("input_audio_buffer.speech_started", 5)
        assert call.types()[index:][:8] == [
            "input_audio_buffer.speech_started",
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
            "rate_limits.updated",
        ]
        item = done["output"][0]
        # until told otherwise the model believes that all it sent was heard
        assert call.mind.cut_offs == [item["content"][0]["transcript"]]
        sent_ms = len(heard_audio(call)) // 48
        truncate = {"item_id": item["id"], "content_index": 0}
        await call.connection.conversation.item.truncate(**truncate, audio_end_ms=sent_ms + 1, event_id="too far")
        error = (await call.until("error"))["error"]
        assert (error["event_id"], f"{sent_ms}ms" in error["message"]) == ("too far", True)
        await call.connection.conversation.item.truncate(**truncate, audio_end_ms=700)
        await call.until("conversation.item.truncated")
        heard = call.mind.cut_offs[-1]
        assert 0 < len(heard) < len(item["content"][0]["transcript"])
        assert LONG.startswith(heard)
        await call.append(sound(0, 600))
        await call.until("response.done")
        assert call.all("response.done")[1]["response"]["output"][0]["content"][0]["transcript"] == "Answer to 2."


@run
async def test_nothing_comes_after_a_cancelled_response() -> None:
    async with phone(script={"1": [Speak(LONG)]}) as call:
        await call.talk(1)
        await call.until("response.output_audio.delta")
        await call.send("response.cancel")
        done = await call.until("response.done")
        assert done["response"]["status_details"]["reason"] == "client_cancelled"
        await asyncio.sleep(10)
        assert call.types()[-2:] == ["response.done", "rate_limits.updated"]
        await call.send("response.cancel")
        error = (await call.until("error"))["error"]
        assert (error["code"], error["message"][:19]) == ("response_cancel_not_active", "Cancellation failed")


@run
async def test_barge_in_before_the_first_sound_and_after_the_last() -> None:
    async with phone() as call:
        await call.talk(1)
        await call.until("response.created")
        await call.append(sound(2))  # the model still thinks
        done = (await call.until("response.done"))["response"]
        assert (done["status"], done["output"], done["usage"]["total_tokens"]) == ("cancelled", [], 0)
        await call.append(sound(0, 600))
        done = (await call.until("response.done"))["response"]
        assert done["status"] == "completed"
        await call.append(sound(3))  # all is sent, but not played yet
        await call.until("input_audio_buffer.speech_started")
        assert len(call.all("response.done")) == 2
        item_id = done["output"][0]["id"]
        await call.connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=0)
        await call.until("conversation.item.truncated")
        assert call.mind.cut_offs[-1] == ""


@run
async def test_without_interruption_the_answer_goes_on_and_no_other_starts() -> None:
    async with phone(script={"1": [Speak(f"{LONG} {LONG} {LONG}")]}) as call:
        await call.update(audio={"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}})
        await call.talk(1)
        await call.until("response.output_audio.delta")
        await call.append(sound(2))
        await call.append(sound(0, 600))
        assert (await call.until("error"))["error"]["code"] == "conversation_already_has_active_response"
        assert (await call.until("response.done"))["response"]["status"] == "completed"
        await call.send("response.create")  # what was said meanwhile is not lost
        done = (await call.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["transcript"] == "Answer to 2."


# Calls


@run
async def test_sequence_b_over_the_socket() -> None:
    async with phone(script={"1": [FIRST]}) as call:
        await call.update(tools=TOOLS, instructions="Be brief.")
        await call.talk(1)
        done = (await call.until("response.done"))["response"]
        assert call.mind.configured[-1] == ("Be brief.", ["check_stock", "get_shipping"])
        deltas = call.all("response.function_call_arguments.delta")
        assert len(deltas) > 1
        assert json.loads("".join(frame["delta"] for frame in deltas)) == FIRST.arguments
        (item,) = done["output"]
        assert (item["type"], item["name"], json.loads(item["arguments"])) == (
            "function_call",
            FIRST.name,
            FIRST.arguments,
        )
        settings = Settings()
        latency = settings.profile("gpt-realtime").latency("call", settings.random("openai latency"))
        out = call.time("response.function_call_arguments.done")
        assert out - call.time("response.created") == pytest.approx(latency)
        # a result alone is no request for speech
        await call.answer(item["call_id"], "Twelve.")
        await asyncio.sleep(10)
        assert call.types()[-2:] == ["conversation.item.added", "conversation.item.done"]
        await call.connection.response.create(response={"metadata": {"call": item["call_id"]}})
        created = call.all("response.created")
        done = (await call.until("response.done"))["response"]
        created = call.all("response.created")[-1]["response"]
        assert created["metadata"] == done["metadata"] == {"call": item["call_id"]}
        assert done["output"][0]["content"][0]["transcript"] == "Twelve."


@run
async def test_sequence_d_a_model_that_does_not_wait_answers_with_the_call_open() -> None:
    async with phone(script={"1": [FIRST]}) as call:
        await call.talk(1)
        call_id = (await call.until("response.done"))["response"]["output"][0]["call_id"]
        await call.talk(2)
        done = (await call.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["transcript"] == "Answer to 2."
        assert list(call.mind.open_calls) == [call_id]


@run
async def test_a_model_that_waits_says_nothing_until_the_result_is_asked_for() -> None:
    async with phone("gpt-4o-realtime-preview", script={"1": [FIRST]}) as call:
        await call.talk(1)
        call_id = (await call.until("response.done"))["response"]["output"][0]["call_id"]
        await call.talk(2)
        await call.until("input_audio_buffer.committed")
        await call.until("input_audio_buffer.committed")
        await asyncio.sleep(20)
        await call.answer(call_id, "Twelve.")
        await asyncio.sleep(20)
        assert len(call.all("response.created")) == 1
        await call.send("response.create")
        done = (await call.until("response.done"))["response"]
        said = [item["content"][0]["transcript"] for item in done["output"]]
        assert said == ["Twelve.", "Answer to 2."]


@run
async def test_a_model_that_waits_holds_a_response_asked_for_too_early() -> None:
    async with phone("gpt-4o-realtime-preview", script={"1": [FIRST]}) as call:
        await call.talk(1)
        call_id = (await call.until("response.done"))["response"]["output"][0]["call_id"]
        await call.send("response.create")
        await asyncio.sleep(20)
        assert len(call.all("response.created")) == 2
        assert call.types()[-1] == "response.created"
        await call.answer(call_id, "Twelve.")
        done = (await call.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["transcript"] == "Twelve."


@run
async def test_sequence_e_preamble_and_call_in_one_response() -> None:
    preamble = Speak("I'll check the stock now.", commentary=True)
    async with phone("gpt-realtime-2.1", script={"1": [preamble, FIRST]}) as call:
        await call.talk(1)
        done = (await call.until("response.done"))["response"]
        assert [item["type"] for item in done["output"]] == ["message", "function_call"]
        assert done["output"][0]["phase"] == "commentary"
        seconds = len(heard_audio(call)) / 48000
        spoken, called = call.time("response.output_audio.delta"), call.time("response.function_call_arguments.done")
        assert called - spoken < seconds  # generated faster than it is heard, so the tool may run while it is said
        await call.answer(done["output"][1]["call_id"], "Twelve.")
        await call.send("response.create")
        assert (await call.until("response.done"))["response"]["output"][0]["phase"] == "final_answer"


@run
async def test_parallel_calls_on_models_that_make_them() -> None:
    async with phone("gpt-realtime-2.1", script={"1": [FIRST, SECOND]}) as call:
        await call.talk(1)
        done = (await call.until("response.done"))["response"]
        assert [item["name"] for item in done["output"]] == ["check_stock", "get_shipping"]
        for item in done["output"]:
            await call.answer(item["call_id"], f"{item['name']}.")
        await call.send("response.create")
        done = (await call.until("response.done"))["response"]
        assert [item["content"][0]["transcript"] for item in done["output"]] == ["check_stock.", "get_shipping."]


@run
async def test_one_call_after_the_other_on_the_others() -> None:
    for model, options in (("gpt-realtime", {}), ("gpt-realtime-2.1", {"parallel_tool_calls": False})):
        async with phone(model, script={"1": [FIRST, SECOND]}) as call:
            await call.update(**options)
            await call.talk(1)
            for name in ("check_stock", "get_shipping"):
                (item,) = (await call.until("response.done"))["response"]["output"]
                assert item["name"] == name
                await call.answer(item["call_id"], f"{name}.")
                await call.send("response.create")
            done = (await call.until("response.done"))["response"]
            assert [item["content"][0]["transcript"] for item in done["output"]] == ["check_stock.", "get_shipping."]


@run
async def test_tool_choice_none_hides_the_tools() -> None:
    async with phone() as call:
        await call.update(tools=TOOLS)
        await call.send("response.create", response={"tool_choice": "none", "instructions": "Only talk."})
        await call.until("response.done")
        assert call.mind.configured[-1] == ("Only talk.", [])
        await call.send("response.create", response={"tool_choice": {"type": "function", "name": "get_shipping"}})
        await call.until("response.done")
        assert call.mind.configured[-1][1] == ["get_shipping"]


@run
async def test_a_deleted_call_is_no_longer_open() -> None:
    async with phone(script={"1": [FIRST]}) as call:
        await call.talk(1)
        item = (await call.until("response.done"))["response"]["output"][0]
        await call.connection.conversation.item.delete(item_id=item["id"])
        await call.until("conversation.item.deleted")
        assert call.mind.open_calls == {}


# Other kinds of response


@run
async def test_typed_text_in_and_out() -> None:
    async with phone() as call:
        content = [{"type": "input_text", "text": "hello"}]
        await call.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await call.connection.response.create(response={"output_modalities": ["text"]})
        done = (await call.until("response.done"))["response"]
        assert done["output"][0]["content"] == [{"type": "output_text", "text": "Answer to hello."}]
        assert "".join(frame["delta"] for frame in call.all("response.output_text.delta")) == "Answer to hello."
        assert not call.all("response.output_audio.delta")


@run
async def test_audio_in_a_typed_item_is_heard() -> None:
    async with phone() as call:
        content = [{"type": "input_audio", "audio": base64.b64encode(sound(3, 300)).decode()}]
        await call.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await call.send("response.create")
        done = (await call.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["transcript"] == "Answer to 3."


@run
async def test_out_of_band_responses_leave_the_conversation_alone() -> None:
    async with phone(script={"1": [Speak(LONG)]}) as call:
        await call.talk(1)
        await call.until("response.output_audio.delta")
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "classify"}]}
        beside = {"conversation": "none", "metadata": {"a": "b"}, "output_modalities": ["text"], "input": [item]}
        await call.connection.response.create(response=beside)
        reference = {"type": "item_reference", "id": call.all("input_audio_buffer.committed")[0]["item_id"]}
        await call.connection.response.create(response={"conversation": "none", "input": [reference]})
        done = {
            frame["response"]["id"]: frame["response"] for frame in [await call.until("response.done") for _ in "123"]
        }
        texts = {key: each["output"][0]["content"][0] for key, each in done.items()}
        assert texts["resp_0001"]["transcript"] == texts["resp_0003"]["transcript"] == LONG
        assert texts["resp_0002"]["text"] == "Answer to classify."
        assert done["resp_0001"]["status"] == "completed"
        assert [done[key]["conversation_id"] is None for key in sorted(done)] == [False, True, True]
        assert len(call.all("conversation.item.added")) == 2


@run
async def test_an_out_of_band_response_knows_what_was_said_and_answers_nothing_by_it() -> None:
    async with phone() as call:
        await call.update(audio={"input": {"turn_detection": {"type": "server_vad", "create_response": False}}})
        await call.talk(1)
        await call.until("input_audio_buffer.committed")
        for options in ({"conversation": "none"}, {}):
            await call.send("response.create", response=options)
            done = (await call.until("response.done"))["response"]
            assert done["output"][0]["content"][0]["transcript"] == "Answer to 1."


@run
async def test_a_response_stops_at_max_output_tokens() -> None:
    async with phone(script={"1": [Speak(LONG), FIRST]}) as call:
        await call.update(max_output_tokens=30)
        await call.talk(1)
        done = (await call.until("response.done"))["response"]
        assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert [item["status"] for item in done["output"]] == ["incomplete"]
        assert 30 <= done["usage"]["output_tokens"] <= 36


@run
async def test_a_written_answer_that_just_fits_is_complete() -> None:
    needed = 0
    for short_by, status in ((None, "completed"), (0, "completed"), (1, "incomplete")):
        async with phone() as call:
            limit = "inf" if short_by is None else needed - short_by
            await call.update(output_modalities=["text"], max_output_tokens=limit)
            await call.talk(1)
            done = (await call.until("response.done"))["response"]
            assert done["status"] == status
            needed = needed or done["usage"]["output_tokens"]


@run
async def test_the_model_speaks_up_after_a_long_silence() -> None:
    async with phone(script={"nothing_to_say": [Speak("Yes?")]}) as call:
        detection = {"type": "server_vad", "idle_timeout_ms": 6000}
        await call.update(audio={"input": {"turn_detection": detection}})
        await call.talk(1)
        await call.until("response.done")
        seconds = len(heard_audio(call)) / 48000
        for _ in range(100):
            await call.append(sound(0))
            await asyncio.sleep(0.1)
        triggered = await call.until("input_audio_buffer.timeout_triggered")
        assert call.time("input_audio_buffer.timeout_triggered") - call.time("response.done") == pytest.approx(
            6 + seconds
        )
        assert triggered["audio_end_ms"] - triggered["audio_start_ms"] == pytest.approx(6000, abs=200)
        assert (await call.until("input_audio_buffer.committed"))["item_id"] != triggered["item_id"]
        assert (await call.until("input_audio_buffer.committed"))["item_id"] == triggered["item_id"]
        done = (await call.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["transcript"] == "Yes?"


@run
async def test_g711_both_ways() -> None:
    laws: list[g711.Law] = ["audio/pcmu", "audio/pcma"]
    for law in laws:
        async with phone() as call:
            side = {"format": {"type": law}}
            await call.update(audio={"input": side, "output": side})
            for value, ms in ((2, 400), (0, 600)):
                pcm = to_pcm(np.full(8 * ms, value * LOUD, np.int16))
                await call.append(g711.encode(pcm, law))
            assert (await call.until("input_audio_buffer.speech_stopped"))["audio_end_ms"] == 1000
            done = (await call.until("response.done"))["response"]
            assert done["output"][0]["content"][0]["transcript"] == "Answer to 2."
            seconds = len(Voice().say("Answer to 2.")) / RATE
            assert len(heard_audio(call)) / 8000 == pytest.approx(seconds, abs=0.001)
            deltas = call.all("response.output_audio.delta")
            sizes = [len(base64.b64decode(delta["delta"])) for delta in deltas]
            assert sizes[:-1] == [800, 1200, *[2000] * (len(sizes) - 3)] and 0 < sizes[-1] <= 2000
            lasted = call.time("response.output_audio.delta", -1) - call.time("response.output_audio.delta")
            assert lasted == pytest.approx(sum(sizes[1:]) / 8000 / 5)


# Faults


@run
async def test_case_01_a_response_of_the_servers_own_wins_the_race() -> None:
    async with phone(script={"1": [FIRST]}, faults={"late_response": 2.0}) as call:
        await call.talk(1)
        call_id = (await call.until("response.done"))["response"]["output"][0]["call_id"]
        await call.answer(call_id, "Twelve.")
        await call.send("response.create", event_id="mine")
        error = (await call.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "mine")
        await call.until("response.done")
        assert call.time("response.done", 1) - call.time("error") == pytest.approx(2.0)
        await call.send("response.create")
        done = (await call.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["transcript"] == "Twelve."


@run
async def test_case_17_over_the_socket() -> None:
    async with phone(faults={"short_by_ms": 85}) as call:
        await call.talk(1)
        item = (await call.until("response.done"))["response"]["output"][0]
        ms = len(heard_audio(call)) // 48
        await call.connection.conversation.item.truncate(item_id=item["id"], content_index=0, audio_end_ms=ms)
        assert f"{ms - 85}ms" in (await call.until("error"))["error"]["message"]


@run
async def test_case_34_over_the_socket() -> None:
    async with phone(script={"1": [FIRST], "2": [FIRST]}, faults={"truncate_arguments": True}) as call:
        await call.talk(1)
        done = (await call.until("response.done"))["response"]
        assert (done["status"], done["output"][0]["status"]) == ("incomplete", "incomplete")
        with pytest.raises(json.JSONDecodeError):
            json.loads(done["output"][0]["arguments"])
        assert list(call.mind.open_calls) == ["call_0001"]  # it waits to be told what was wrong with it
        await call.answer(done["output"][0]["call_id"], '{"error":"broken arguments"}')
        await call.talk(2)
        done = (await call.until("response.done"))["response"]
        assert (done["status"], json.loads(done["output"][0]["arguments"])) == ("completed", FIRST.arguments)


@run
async def test_faults_of_the_first_call() -> None:
    faults = {"duplicate_call": True, "unknown_tool": "transfer_funds_v2", "extra_argument": {"gift": True}}
    async with phone(script={"1": [FIRST], "2": [SECOND]}, faults=faults) as call:
        await call.talk(1)
        (item,) = (await call.until("response.done"))["response"]["output"]
        assert item["name"] == "transfer_funds_v2"
        assert json.loads(item["arguments"]) == {**FIRST.arguments, "gift": True}
        first, second = call.all("response.function_call_arguments.done")
        assert first | {"event_id": ""} == second | {"event_id": ""}
        await call.talk(2)
        (item,) = (await call.until("response.done"))["response"]["output"]
        assert (item["name"], json.loads(item["arguments"])) == (SECOND.name, SECOND.arguments)
        assert len(call.all("response.function_call_arguments.done")) == 3


@run
async def test_fault_close() -> None:
    async with phone(faults={"close": {"after_s": 2, "code": 1012, "reason": "restart"}}) as call:
        await asyncio.sleep(3)
        assert isinstance(call.ended, ConnectionClosedError)
        assert (call.ended.rcvd.code, call.ended.rcvd.reason) == (1012, "restart")  # type: ignore[union-attr]


@run
async def test_fault_stall() -> None:
    async with phone(script={"1": [Speak(LONG)]}, faults={"stall_after_s": 2.0}) as call:
        await call.talk(1)
        await asyncio.sleep(30)
        assert call.frames[-1][0] <= 2.0
        assert "response.done" not in call.types()
        await call.send("response.cancel")
        await asyncio.sleep(5)
        assert call.ended is None


def test_fault_garbage() -> None:
    class Line:
        path, query, headers = "/v1/realtime", {"model": ["gpt-realtime"]}, {}
        sent: list[Any] = []  # noqa: RUF012

        def send(self, frame: dict[str, Any]) -> None:
            self.sent.append(frame)

        send_text = send

    async def main() -> None:
        endpoint = Endpoint(Line(), Settings(faults={"garbage_after_s": 1.0}))  # type: ignore[arg-type]
        endpoint.opened()
        await asyncio.sleep(1.5)
        endpoint.closed()

    run_blocking(main)
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(Line.sent[-1])


# All of it


async def trace(seed: int) -> list[tuple[float, str]]:
    script: dict[str, list[Any]] = {"1": [Speak("One moment.", True), FIRST], "2": [Speak(LONG)]}
    async with phone("gpt-realtime-2.1", script=script, seed=seed) as call:
        await call.update(audio={"input": {"transcription": {"model": "whisper-1"}}})
        for number in (1, 2, 3):
            await call.talk(number)
            await call.until("response.done")
        await asyncio.sleep(3)
        return [(at, json.dumps(frame, sort_keys=True)) for at, frame in call.frames]


def test_the_same_seed_gives_the_same_session_to_the_microsecond() -> None:
    first, again, other = (run_blocking(lambda seed=seed: trace(seed)) for seed in (1, 1, 2))
    assert first == again
    assert [at for at, _ in first] != [at for at, _ in other]


NOT_PRODUCED = {
    "conversation.created": "typed, but in no lifecycle table of the guides; item.added and item.done suffice",
    "conversation.item.created": "the beta's name for conversation.item.added",
    "conversation.item.input_audio_transcription.failed": "the simulated transcription does not fail",
    "conversation.item.input_audio_transcription.segment": "diarizing transcription models only",
    "input_audio_buffer.dtmf_event_received": "SIP only",
    "output_audio_buffer.started": "WebRTC and SIP only",
    "output_audio_buffer.stopped": "WebRTC and SIP only",
    "output_audio_buffer.cleared": "WebRTC and SIP only",
    "mcp_list_tools.completed": "the simulator reaches no MCP server",
    "response.mcp_call_arguments.delta": "the simulator reaches no MCP server",
    "response.mcp_call_arguments.done": "the simulator reaches no MCP server",
    "response.mcp_call.in_progress": "the simulator reaches no MCP server",
    "response.mcp_call.completed": "the simulator reaches no MCP server",
    "response.mcp_call.failed": "the simulator reaches no MCP server",
}


@run
async def test_every_event_of_the_sdk_is_produced_or_has_a_reason_not_to_be() -> None:
    async with phone(script={"1": [Speak("One moment."), FIRST]}) as call:
        detection = {"type": "server_vad", "idle_timeout_ms": 5000}
        mcp = {"type": "mcp", "server_label": "shop", "server_url": "https://shop.example"}
        await call.update(
            tools=[*TOOLS, mcp], audio={"input": {"transcription": {"model": "whisper-1"}, "turn_detection": detection}}
        )
        await call.talk(1)
        item = (await call.until("response.done"))["response"]["output"][0]
        await call.connection.conversation.item.truncate(item_id=item["id"], content_index=0, audio_end_ms=100)
        await call.connection.conversation.item.retrieve(item_id=item["id"])
        await call.connection.conversation.item.delete(item_id=item["id"])
        await call.connection.input_audio_buffer.clear()
        await call.connection.output_audio_buffer.clear()
        typed = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
        written = {"output_modalities": ["text"], "conversation": "none", "input": [typed]}
        await call.connection.response.create(response=written)
        await call.until("input_audio_buffer.timeout_triggered")
        await call.until("response.output_text.done")
        produced = set(call.types())
    assert produced | set(NOT_PRODUCED) == set(SDK_EVENTS)
    assert not produced & set(NOT_PRODUCED)


@run
async def test_with_real_ears_mind_and_voice() -> None:
    """A caller's clip, in real time, becomes a call with the order number in it; the result is said."""
    tool = {
        "type": "function",
        "name": "get_order_status",
        "description": "Where an order is.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
    }
    async with Server(lambda _connection: lambda each: Endpoint(each, Settings())) as server:
        client = sdk(server)
        async with client.realtime.connect(model="gpt-realtime") as connection:
            call = Phone(connection, [])
            reader = asyncio.create_task(call.read())
            await call.update(tools=[tool], audio={"input": {"transcription": {"model": "whisper-1"}}})
            pcm = to_pcm(clips()["order_status"].samples) + bytes(48 * 1000)
            for start in range(0, len(pcm), 4800):
                await call.append(pcm[start : start + 4800])
                await asyncio.sleep(0.1)
            (item,) = (await call.until("response.done"))["response"]["output"]
            assert (item["name"], json.loads(item["arguments"])) == (
                "get_order_status",
                {"order_id": "OD-20260818-001"},
            )
            heard = await call.until("conversation.item.input_audio_transcription.completed")
            assert heard["transcript"] == clips()["order_status"].transcript
            await call.answer(item["call_id"], json.dumps({"status": "ok", "summary": "It arrives on Friday."}))
            await call.send("response.create")
            done = (await call.until("response.done"))["response"]
            assert done["output"][0]["content"][0]["transcript"] == "It arrives on Friday."
            await connection.close()
            await reader


def test_half_a_character_crosses_the_wire_and_what_is_no_json_is_none() -> None:
    half = {"output": "hi \ud800"}
    assert json.loads(encoded(half)) == half == parsed(json.dumps(half).encode())
    assert encoded({"text": "größer"}) == '{"text":"größer"}'.encode()
    for rubbish in (b"<html>", b"[" * 100_000, b"\xff", b""):
        assert parsed(rubbish) is None
