"""The simulated GPT-Live service: its protocol alone, then over a loopback socket with the unmodified openai SDK."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, get_args

import numpy as np
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.live import (
    ClientEvent,
    FunctionTool,
    ResponsesDelegationConfig,
    ServerEvent,
    SessionConfig,
    SessionUpdateConfig,
)
from openai.types.live.built_in_voice import BuiltInVoice
from openai.types.live.connect_client_event import ConnectClientEvent
from openai.types.live.connect_server_event import ConnectServerEvent
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed

from voicekit.audio import RATE, audible, clips, from_pcm, to_pcm
from voicekit.clock import run_blocking, wait_for
from voicekit.sessions.base import SessionConfig as KitConfig
from voicekit.sessions.gpt_live import session_start
from voicekit.simulator import Settings, Simulator
from voicekit.simulator.gpt_live import serves
from voicekit.simulator.wire import g711
from voicekit.simulator.wire import gpt_live as wire
from voicekit.simulator.wire import gpt_live_schema as schema
from voicekit.simulator.wire.checks import Refused


def by_type(*unions: Any) -> dict[str, Any]:
    classes = [each for union in unions for each in get_args(get_args(union)[0])]
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in classes}


SDK_EVENTS = by_type(ServerEvent, ConnectServerEvent)
SDK_COMMANDS = by_type(ClientEvent, ConnectClientEvent)
NESTED: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

ORDER = {
    "name": "get_order_status",
    "description": "Look up where an order is.",
    "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
}
CLIENT = session_start(KitConfig("gpt-live-1", "You answer the telephone.", (ORDER,)))
RESPONSES = session_start(KitConfig("gpt-live-1", "You answer the telephone.", (ORDER,), delegation="responses"))
LONG = "It was packed on the twentieth, waited two days for a missing lid, and left our warehouse on the twenty-third."


# The protocol, without a socket


class Wired:
    """Plays the client of a wire and keeps what the server sent."""

    def __init__(self, session: dict[str, Any] | None = None) -> None:
        self.frames: list[dict[str, Any]] = []
        self.wire = wire.Wire(self.frames.append)
        if session is not None:
            self.send("session.start", session=session)

    def send(self, type_: str, **fields: Any) -> Any:
        return self.wire.receive({"type": type_, **fields})

    def error(self, type_: str, **fields: Any) -> dict[str, Any]:
        before = len(self.frames)
        assert self.send(type_, event_id="e1", **fields) is None
        (frame,) = self.frames[before:]
        SDK_EVENTS["error"].model_validate(frame)
        assert frame["error"]["client_event_id"] == "e1"
        return dict(frame["error"])


def test_nothing_is_sent_and_nothing_accepted_before_session_start() -> None:
    client = Wired()
    assert client.frames == []
    for type_, fields in (
        ("session.input_audio.append", {"audio": "AAAA"}),
        ("session.commentary.append", {"content": "x", "delegation_id": None}),
        ("session.update", {"session": {}}),
        ("session.close", {}),
    ):
        assert client.error(type_, **fields)["code"] == "session_not_started"
    assert client.send("session.start", event_id="s1", session={"model": "gpt-live-1"}) == wire.Started()
    started = client.frames[-1]
    assert started["client_event_id"] == "s1"
    assert started["session"]["status"] == "active"
    assert started["session"]["delegation"] == {"acknowledgement_delay_ms": 0, "type": "client"}
    assert started["session"]["audio"] == {
        "format": {"type": "audio/pcm", "rate": 24000},
        "output": {"voice": "marin"},
    }
    assert client.error("session.start", session={"model": "gpt-live-1"})["code"] == "session_already_started"


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({}, "missing_required_parameter", "session.model"),
        ({"model": 1}, "invalid_type", "session.model"),
        ({"model": "gpt-live-1", "tools": []}, "unknown_parameter", "session.tools"),
        ({"model": "gpt-live-1", "voice": "marin"}, "unknown_parameter", "session.voice"),
        ({"model": "gpt-live-1", "client": {}}, "invalid_value", "session.client"),
        ({"model": "m", "audio": {"format": {"type": "audio/pcm", "rate": 8000}}}, "invalid_value", None),
        ({"model": "m", "audio": {"format": {"type": "audio/pcm"}}}, "missing_required_parameter", None),
        ({"model": "m", "audio": {"output": {"voice": "nobody"}}}, "invalid_value", "session.audio.output.voice"),
        ({"model": "m", "delegation": {"type": "responses"}}, "missing_required_parameter", None),
        ({"model": "m", "delegation": {"type": "decisions"}}, "invalid_value", "session.delegation"),
        ({"model": "m", "instructions": "x" * 65_540}, "string_above_max_length", "session.instructions"),
        ({"model": "m", "input": [{"role": "system", "content": []}]}, "invalid_value", "session.input[0].role"),
        ({"model": "m", "input": [{"role": "user", "content": []}]}, "invalid_value", "session.input[0].content"),
    ],
)
def test_a_strict_configuration(session: dict[str, Any], code: str, param: str | None) -> None:
    error = Wired().error("session.start", session=session)
    assert error["code"] == code
    assert param is None or error["param"] == param


def test_what_the_kit_starts_with_passes() -> None:
    for session in (CLIENT, RESPONSES):
        client = Wired(session)
        assert [frame["type"] for frame in client.frames] == ["session.started"]
        SDK_EVENTS["session.started"].model_validate(client.frames[0])


def test_what_is_fixed_after_the_start() -> None:
    client = Wired(RESPONSES)
    for name in ("model", "instructions", "input", "audio", "store"):
        error = client.error("session.update", session={name: CLIENT.get(name, [])})
        assert (error["code"], error["param"]) == ("immutable_field_update", f"session.{name}")
    for delegation in (None, {"type": "client"}):
        error = client.error("session.update", session={"delegation": delegation})
        assert (error["code"], error["param"]) == ("immutable_field_update", "session.delegation.type")
    patch = {"type": "responses", "responses": {"tools": [], "model": "other"}}
    assert client.send("session.update", event_id="u", session={"delegation": patch}) == wire.Updated()
    updated = client.frames[-1]
    SDK_EVENTS["session.updated"].model_validate(updated)
    backend = updated["session"]["delegation"]["responses"]
    assert (backend["tools"], backend["model"]) == ([], "other")
    assert backend["instructions"] == "You answer the telephone."  # sparse: what is left out stays


def test_audio_is_whole_samples_in_the_format_of_the_session() -> None:
    client = Wired(CLIENT)
    for audio in ("", "AA==", "AAAA", "?", "AAA", "AA A=", "AA-_AA=="):
        error = client.error("session.input_audio.append", audio=audio)
        assert (error["code"], error["param"]) == ("invalid_audio", "audio"), audio
    assert client.send("session.input_audio.append", audio="AAAA" * 2) == bytes(6)
    coded = Wired(CLIENT | {"audio": {"format": {"type": "audio/pcmu", "rate": 8000}}})
    assert coded.send("session.input_audio.append", audio="AAAA") == g711.decode(bytes(3), "audio/pcmu")


def test_appends_name_a_known_delegation_or_none() -> None:
    client = Wired(CLIENT)
    known = client.wire.delegate(100)
    for channel in ("instructions", "thinking", "commentary"):
        type_ = f"session.{channel}.append"
        assert client.error(type_, content="x")["param"] == "delegation_id"  # required, null or not
        assert client.error(type_, content="x", delegation_id="other")["param"] == "delegation_id"
        assert client.error(type_, content="x" * 2004, delegation_id=None)["code"] == "string_above_max_length"
        for delegation in (None, known):
            append = client.send(type_, content="x", delegation_id=delegation, event_id="a")
            assert append == wire.Append(channel, "x", delegation, "a")  # type: ignore[arg-type]
    assert len(client.frames) == 11  # started, delegation, nine errors: the acknowledgement is the timeline's affair
    backend = Wired(RESPONSES)
    known = backend.wire.delegate(100, "resp_1")
    assert backend.error("session.thinking.append", content="x", delegation_id=known)["param"] == "delegation_id"


def test_the_backend_is_there_with_responses_delegation_only() -> None:
    item = {"type": "function_call_output", "call_id": "call_1", "output": "{}"}
    for type_, fields in (("response.item.create", {"item": item}), ("response.create", {})):
        error = Wired(CLIENT).error(type_, **fields)
        assert error["message"] == f"{type_} requires Responses delegation."
    backend = Wired(RESPONSES)
    assert "not found" in backend.error("response.item.create", item=item)["message"]
    backend.wire.calls["call_1"] = False
    assert isinstance(backend.send("response.item.create", item=item), wire.ItemCreated)
    assert "already has" in backend.error("response.item.create", item=item)["message"]
    assert backend.error("response.create", response={})["code"] == "unknown_parameter"  # nothing else is allowed


def test_a_closing_session_takes_nothing_more() -> None:
    client = Wired(CLIENT)
    assert client.send("session.close", event_id="c") == wire.CloseAsked("c")
    assert client.error("session.commentary.append", content="x", delegation_id=None)["code"] == "session_closing"


def test_no_nonsense_breaks_the_wire() -> None:
    client = Wired(CLIENT)
    for frame in (None, [], 1, "x", {}, {"type": None}, {"type": []}, {"type": "session.start"}, {"type": "nope"}):
        assert client.wire.receive(frame) is None
    assert {frame["type"] for frame in client.frames[1:]} == {"error"}


def test_every_command_the_sdk_types_is_taken_or_listed_with_a_reason() -> None:
    taken, listed = set(schema.CLIENT_EVENTS), set(schema.NOT_SIMULATED_COMMANDS)
    assert taken | listed == set(SDK_COMMANDS)
    assert not taken & listed
    assert all(len(reason.split()) > 2 for reason in schema.NOT_SIMULATED_COMMANDS.values())
    for type_ in listed:
        assert Wired(CLIENT).error(type_)["code"] == "not_simulated"


@pytest.mark.parametrize(
    ("check", "fields"),
    [
        (schema.SESSION, set(SessionConfig.model_fields)),
        (schema.SESSION_UPDATE, set(SessionUpdateConfig.model_fields)),
        (schema.RESPONSES, set(ResponsesDelegationConfig.model_fields)),
        (schema.FUNCTION, set(FunctionTool.model_fields)),
        *((schema.CLIENT_EVENTS[type_], set(SDK_COMMANDS[type_].model_fields)) for type_ in schema.CLIENT_EVENTS),
    ],
)
def test_the_tables_know_the_fields_of_the_sdk_and_no_others(check: Any, fields: set[str]) -> None:
    for name in [*fields, "surely_not"]:
        with pytest.raises(Refused) as refused:  # of the first field: it is unknown, or its value is nonsense
            check({name: ..., **dict.fromkeys(fields, ...)}, "it")
        unknown = refused.value.code == "unknown_parameter" and refused.value.param == f"it.{name}"
        assert unknown == (name not in fields), (name, refused.value.message)


def test_the_voices_are_the_sdks() -> None:
    assert set(schema.VOICES) == set(get_args(BuiltInVoice))


def test_paths() -> None:
    assert all(map(serves, ("/live/sessions", "/v1/live/sessions", "//v1/live/sessions/", "/live/sessions/x/attach")))
    assert not any(map(serves, ("/live", "/v1/live/sessions/x", "/v1/live/sessions/x/fork", "/v1/realtime")))


# Over the socket


class Phone:
    """A client of the service: the SDK's connection, what came over it and when. Every frame is checked."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.frames: list[tuple[float, dict[str, Any]]] = []
        self.ended: BaseException | None = None
        self._came = asyncio.Event()
        self._used: dict[str, int] = {}
        self._appended = 0

    async def read(self) -> None:
        try:
            while True:
                data = await self.connection.recv_bytes()
                frame = json.loads(data)
                if len(self.frames) < 30 or "audio" not in frame["type"]:  # the sound is a thousand times the same
                    SDK_EVENTS[frame["type"]].model_validate(frame)
                    assert type(self.connection.parse_event(data)).__name__ == SDK_EVENTS[frame["type"]].__name__
                if frame["type"] == "response.event":
                    NESTED.validate_python(frame["event"])
                self.frames.append((asyncio.get_running_loop().time(), frame))
                self._came.set()
        except Exception as error:
            self.ended = error
            self._came.set()

    def all(self, type_: str) -> list[dict[str, Any]]:
        return [frame for _, frame in self.frames if frame["type"] == type_]

    def times(self, type_: str) -> list[float]:
        return [at for at, frame in self.frames if frame["type"] == type_]

    def nested(self) -> list[str]:
        return [frame["event"]["type"] for frame in self.all("response.event")]

    async def until(self, type_: str, seconds: float = 60) -> dict[str, Any]:
        """The next frame of this type that `until` has not returned yet."""
        index = self._used.get(type_, 0)
        self._used[type_] = index + 1

        async def found() -> dict[str, Any]:
            while len(self.all(type_)) <= index:
                if self.ended is not None:
                    raise self.ended
                self._came.clear()
                await self._came.wait()
            return self.all(type_)[index]

        return await wait_for(found(), seconds, type_)

    async def send(self, type_: str, **fields: Any) -> None:
        await self.connection.send({"type": type_, **fields})

    async def start(self, session: dict[str, Any]) -> dict[str, Any]:
        await self.send("session.start", session=session)
        started = await self.until("session.started")
        return dict(started["session"])

    async def append(self, pcm: bytes) -> None:
        fields = {"type": "session.input_audio.append", "audio": base64.b64encode(pcm).decode()}
        self._appended += 1
        if self._appended <= 10:
            await self.connection.send(fields)
        else:  # the SDK's check of the frame is dear, and the sound is a thousand times the same
            await self.connection.send_raw(json.dumps(fields))

    async def stream(self, pcm: bytes, rate: int = RATE) -> None:
        """Send sound in real time, 100 ms at once; the last piece is filled up with silence."""
        size = rate // 10 * 2
        for start in range(0, len(pcm), size):
            await asyncio.sleep(0.1)
            await self.append(pcm[start : start + size].ljust(size, b"\0"))
        await asyncio.sleep(0.001)  # what answers the last piece is there

    async def say(self, clip: str) -> None:
        await self.stream(to_pcm(clips()[clip].samples))

    async def wait(self, seconds: float) -> None:
        await self.stream(bytes(round(RATE * seconds) * 2))

    async def wait_long(self, seconds: int) -> None:
        """As `wait`, with a second of silence at once: a tenth of the frames to send."""
        for _ in range(seconds):
            await asyncio.sleep(1.0)
            await self.append(bytes(RATE * 2))

    async def wait_until(self, type_: str, seconds: float = 20) -> dict[str, Any]:
        """Send silence until a frame of this type is there."""
        index = self._used.get(type_, 0)
        for _ in range(round(seconds * 10)):
            if len(self.all(type_)) > index:
                break
            await self.wait(0.1)
        return await self.until(type_, 1)

    @property
    def words(self) -> str:
        return "".join(frame["delta"] for frame in self.all("session.output_transcript.delta"))

    def heard(self) -> list[tuple[float, float]]:
        """Where the output was audible, in seconds of the stream."""
        pcm = b"".join(base64.b64decode(frame["delta"]) for frame in self.all("session.output_audio.delta"))
        return audible(from_pcm(pcm))


@contextlib.asynccontextmanager
async def service(**options: Any) -> AsyncIterator[AsyncOpenAI]:
    async with Simulator(Settings(**options)) as simulator:
        http = DefaultAsyncHttpxClient(verify=False)  # nothing goes over it, and loading certificates takes long
        yield AsyncOpenAI(api_key="x", base_url=f"{simulator.url}/v1", http_client=http)


@contextlib.asynccontextmanager
async def calling(manager: Any) -> AsyncIterator[Phone]:
    async with manager as connection:
        call = Phone(connection)
        reader = asyncio.create_task(call.read())
        yield call
        await connection.close()
        await reader


@contextlib.asynccontextmanager
async def phone(session: dict[str, Any] | None = CLIENT, **options: Any) -> AsyncIterator[Phone]:
    async with service(**options) as client, calling(client.live.connect()) as call:
        if session is not None:
            await call.start(session)
        yield call


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a plain test of an async one, in virtual time."""

    def plain() -> None:
        run_blocking(test)

    plain.__name__, plain.__doc__ = test.__name__, test.__doc__
    return plain


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@run
async def test_a_socket_that_sends_nothing_receives_nothing() -> None:
    async with phone(None) as call:
        await asyncio.sleep(30)
        assert call.frames == []
        assert call.ended is None


@run
async def test_a_startup_error_is_no_session() -> None:
    async with phone(None) as call:
        for model in ("gpt-realtime", "gpt-nope"):
            await call.send("session.start", event_id="s", session={"model": model})
            error = (await call.until("error"))["error"]
            assert (error["code"], error["param"], error["client_event_id"]) == ("invalid_model", "session.model", "s")
        assert call.all("session.started") == []


@run
async def test_the_models_time_is_the_callers_audio() -> None:
    async with phone() as call:
        await call.wait(1.0)
        assert len(call.all("session.output_audio.delta")) == 10
        await asyncio.sleep(20)  # no audio, no time
        assert len(call.all("session.output_audio.delta")) == 10
        await call.wait(0.5)
        assert len(call.all("session.output_audio.delta")) == 15
        assert set(call.all("session.output_audio.delta")[0]) == {"type", "delta"}  # no id, no times


@run
async def test_a_burst_of_audio_is_answered_in_real_time_all_the_same() -> None:
    async with phone() as call:
        began = asyncio.get_running_loop().time()
        await call.append(bytes(RATE * 3 * 2))
        await asyncio.sleep(5)
        times = call.times("session.output_audio.delta")
        assert len(times) == 30
        assert times[-1] - began > 2.5
        assert max(b - a for a, b in itertools.pairwise(times)) < 0.11


@run
async def test_client_delegation_without_a_word_about_the_task() -> None:
    async with phone() as call:
        await call.say("order_status")
        created = await call.wait_until("session.delegation.created")
        assert created["delegation"] == {"id": "item_0001", "type": "delegation", "target": "client"}
        assert 5000 < created["offset_ms"] < 7000
        await call.wait(2.0)  # the acknowledgement comes by itself
        assert call.words == "I'll check that now."
        assert "".join(frame["delta"] for frame in call.all("session.input_transcript.delta")) == (
            "Hi, where is my order OD-20260818-001?"
        )
        answer = {"content": "It is on its way.", "delegation_id": "item_0001"}
        await call.send("session.commentary.append", event_id="c", **answer)
        appended = await call.wait_until("session.commentary.appended")
        assert appended["client_event_id"] == "c"
        assert 500 <= appended["end_ms"] - appended["start_ms"] <= 1200
        assert "way" not in call.words  # acknowledged is not spoken
        await call.wait(4.0)
        assert call.words == "I'll check that now. It is on its way."
        spoken = call.all("session.output_transcript.delta")[-1]
        assert spoken["start_ms"] > appended["end_ms"]
        assert spoken["end_ms"] - spoken["start_ms"] == 100


@run
async def test_an_append_waits_for_the_timeline_and_fails_when_the_session_closes_before() -> None:
    async with phone() as call:
        await call.wait(1.0)
        await call.send("session.thinking.append", event_id="t", content="Still looking.", delegation_id=None)
        await asyncio.sleep(30)  # frames have stopped, so the acknowledgement stays pending
        assert call.all("session.thinking.appended") == []
        await call.send("session.close", event_id="bye")
        error = (await call.until("error"))["error"]
        assert error["client_event_id"] == "t"
        closed = await call.until("session.closed")
        assert (closed["reason"], closed["client_event_id"]) == ("close_requested", "bye")
        assert closed["session"]["status"] == "active"
        assert closed["usage"] == {"seconds": 1.0}
        with pytest.raises(ConnectionClosed) as ended:
            await call.until("session.closed")
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1000


@run
async def test_an_early_append_cancels_an_acknowledgement_that_is_still_to_be_asked_for() -> None:
    delayed = CLIENT | {"delegation": {"type": "client", "acknowledgement_delay_ms": 800}}
    for append, words in ((True, ""), (False, "I'll check that now.")):
        async with phone(delayed) as call:
            await call.say("order_status")
            await call.wait_until("session.delegation.created")
            if append:
                await call.send("session.thinking.append", content="Looking.", delegation_id="item_0001")
            await call.wait(3.0)
            assert call.words == words


@run
async def test_the_sample_phrase_of_the_instructions_is_the_acknowledgement() -> None:
    text = CLIENT["instructions"] + "\n# Preambles\n- get_order_status: \"I'll check that order now.\"\n"
    async with phone(CLIENT | {"instructions": text}) as call:
        await call.say("order_status")
        await call.wait(3.0)
        assert call.words == "I'll check that order now."


@run
async def test_what_the_instructions_answer_is_not_delegated() -> None:
    async with phone() as call:
        await call.say("opening_hours")
        await call.wait(5.0)
        assert call.words == "We are open from nine to six, Monday to Saturday."
        await call.say("stock")  # no such tool in this backend
        await call.wait(4.0)
        assert call.words.endswith("I cannot do that.")
        assert call.all("session.delegation.created") == []


@run
async def test_responses_delegation_event_by_event() -> None:
    async with phone(RESPONSES) as call:
        await call.say("order_status")
        created = await call.wait_until("session.delegation.created")
        assert created["delegation"]["target"] == "responses"
        response_id = created["delegation"]["response_id"]
        await call.wait(2.0)
        first = call.all("response.event")
        assert {frame["delegation_id"] for frame in first} == {"item_0001"}
        types = [type_ for type_ in call.nested() if not type_.endswith(".delta")]
        assert types == [
            "response.created",
            "response.output_item.added",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [frame["event"]["sequence_number"] for frame in first] == list(range(len(first)))
        done = [frame["event"]["item"] for frame in first if frame["event"]["type"] == "response.output_item.done"]
        assert [item["type"] for item in done] == ["reasoning", "function_call"]  # the first done is no call
        assert done[1]["status"] == "completed"
        assert json.loads(done[1]["arguments"]) == {"order_id": "OD-20260818-001"}
        for frame in (first[0], first[-1]):
            response = frame["event"]["response"]
            assert response["id"] == response_id
            assert (response["output"], response["tools"], response["instructions"]) == ([], [], None)
            assert "input" not in response
        output = json.dumps({"status": "ok", "summary": "Your order arrives on Friday."})
        item = {"type": "function_call_output", "call_id": done[1]["call_id"], "output": output}
        await call.send("response.item.create", item=item)
        await call.wait(5.0)
        assert len(call.all("response.event")) == len(first)  # an output alone starts nothing
        assert call.words == "I'll check that now."
        await call.send("response.create")
        await call.wait(6.0)
        rest = call.nested()[len(first) :]
        assert (rest[0], rest[-1]) == ("response.created", "response.completed")
        assert "response.output_text.done" in rest
        assert call.words == "I'll check that now. Your order arrives on Friday."


@run
async def test_typed_text_goes_to_the_backend() -> None:
    async with phone(RESPONSES) as call:
        text = {"type": "input_text", "text": "Where is my order OD-20260818-001?"}
        await call.send("response.item.create", item={"type": "message", "role": "user", "content": [text]})
        await call.send("response.create")
        await call.wait(2.0)
        assert call.nested().count("response.function_call_arguments.done") == 1
        assert call.all("response.event")[0]["delegation_id"] is None


@run
async def test_without_parallel_calls_one_response_holds_one() -> None:
    tools = [{"type": "function", **ORDER, "name": name} for name in ("check_stock", "get_shipping")]
    for tool in tools:
        tool["parameters"] = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
    voice = session_start(KitConfig("gpt-live-1", "", tuple({**ORDER, "name": tool["name"]} for tool in tools)))
    for parallel in (True, False):
        backend = {"model": "gpt-6-sol", "tools": tools, "parallel_tool_calls": parallel}
        async with phone(voice | {"delegation": {"type": "responses", "responses": backend}}) as call:
            await call.say("stock_and_shipping")
            await call.wait(3.0)
            assert call.nested().count("response.function_call_arguments.done") == (2 if parallel else 1)


@run
async def test_talking_over_it_makes_it_stop_and_mm_hm_does_not() -> None:
    for clip, stops, rest in (("opening_hours", True, 2.0), ("mm_hm", False, 6.0)):
        async with phone() as call:
            await call.send("session.commentary.append", content=LONG, delegation_id=None)
            await call.wait(4.0)
            assert call.heard()
            await call.say(clip)
            await call.wait(rest)
            ((_, stop), *_) = call.heard()
            assert (stop < 5.0) == stops, clip  # 0.6 s after the caller began, at 4.0
            assert (LONG in call.words) != stops


@run
async def test_stop_talking_is_not_cancel_my_order() -> None:
    async with phone() as call:
        await call.say("order_status")
        await call.wait_until("session.delegation.created")
        await call.send("session.commentary.append", content=LONG, delegation_id=None)
        await call.wait(4.0)
        await call.say("stop_talking")
        await call.wait(2.0)
        assert LONG not in call.words
        assert len(call.all("session.delegation.created")) == 1  # nothing about it went to the backend
        await call.send("session.commentary.append", content="It arrives on Friday.", delegation_id="item_0001")
        await call.wait(5.0)
        assert call.words.endswith("It arrives on Friday.")


@run
async def test_a_withdrawal_goes_to_who_does_the_work_and_claims_nothing() -> None:
    async with phone() as call:
        await call.say("order_status")
        await call.wait_until("session.delegation.created")
        await call.wait(1.5)
        await call.say("never_mind")
        await call.wait(4.0)
        assert len(call.all("session.delegation.created")) == 2
        assert call.words.endswith("All right, I'll pass that on.")
        assert "forget" not in call.words and "cancel" not in call.words


@run
async def test_muting_stops_hearing_and_nothing_else() -> None:
    async with phone() as call:
        await call.send("session.input_audio.mute", event_id="m")
        assert (await call.until("session.input_audio.muted"))["client_event_id"] == "m"
        await call.say("opening_hours")
        await call.wait(4.0)
        assert call.words == ""
        await call.send("session.input_audio.unmute")
        await call.until("session.input_audio.unmuted")
        await call.say("opening_hours")
        await call.wait(4.0)
        assert call.words


@run
async def test_a_supervisor_listens_along() -> None:
    async with service() as client, calling(client.live.connect()) as call:
        session = await call.start(CLIENT)
        await call.wait(1.0)
        async with calling(client.live.sideband.connect(session_id=session["id"])) as supervisor:
            await call.say("opening_hours")
            await call.wait(5.0)
            assert supervisor.all("session.started") == []  # an attachment is no start
            inputs = supervisor.all("session.input_audio.append")
            assert set(inputs[0]) == {"type", "audio"}
            assert len(inputs) == len(call.all("session.output_audio.delta")) - 10
            outputs = supervisor.all("session.output_audio.delta")
            assert (outputs[0]["start_ms"], outputs[0]["end_ms"]) == (1000, 1100)
            assert [each["delta"] for each in outputs] == [
                each["delta"] for each in call.all("session.output_audio.delta")[10:]
            ]
            assert supervisor.words == call.words == "We are open from nine to six, Monday to Saturday."
            await supervisor.send("session.thinking.append", content="A supervisor listens.", delegation_id=None)
            await call.wait_until("session.thinking.appended")
            await supervisor.send("session.start", session=CLIENT)
            await supervisor.until("error")
            assert call.all("error") == []  # refused to who asked, and to nobody else
            await supervisor.send("session.close")
            assert (await call.until("session.closed"))["reason"] == "close_requested"
            await supervisor.until("session.closed")


@run
async def test_a_lost_primary_ends_the_session_for_who_listens_along() -> None:
    async with service() as client, calling(client.live.connect()) as call:
        session = await call.start(CLIENT)
        async with calling(client.live.sideband.connect(session_id=session["id"])) as supervisor:
            await call.wait(0.5)
            await call.connection.close()
            assert (await supervisor.until("session.closed"))["reason"] == "connection_lost"
        async with calling(client.live.sideband.connect(session_id=session["id"])) as late:
            assert (await late.until("error"))["error"]["code"] == "session_not_found"


@run
async def test_usage_every_minute_and_the_end_after_the_longest_life() -> None:
    async with phone(session_seconds=70) as call:
        await call.wait_long(62)
        await asyncio.sleep(1.0)  # the last second of it is answered in real time
        assert [frame["usage"]["seconds"] for frame in call.all("session.usage.updated")] == [60.0]
        closed = await call.until("session.closed")
        assert (closed["reason"], closed["usage"]["seconds"]) == ("expired", 62.0)
        assert closed["session"]["expires_at"] == 70


@run
async def test_other_formats_sound_the_same() -> None:
    for kind, rate in (("audio/pcm", 16_000), ("audio/pcmu", 8_000), ("audio/pcma", 8_000)):
        async with phone(CLIENT | {"audio": {"format": {"type": kind, "rate": rate}}}) as call:
            caller = clips()["opening_hours"].samples
            slow = np.interp(np.arange(0, len(caller), RATE / rate), np.arange(len(caller)), caller).astype(np.int16)
            sound = to_pcm(slow) + bytes(rate * 5 * 2)
            size = rate // 10 * 2
            for start in range(0, len(sound), size):
                await asyncio.sleep(0.1)
                piece = sound[start : start + size].ljust(size, b"\0")
                await call.append(piece if kind == "audio/pcm" else g711.encode(piece, kind))  # type: ignore[arg-type]
            assert call.words == "We are open from nine to six, Monday to Saturday.", kind
            frames = [base64.b64decode(frame["delta"]) for frame in call.all("session.output_audio.delta")]
            assert {len(frame) for frame in frames} == {rate // 10 * (2 if kind == "audio/pcm" else 1)}


@run
async def test_closing_lets_the_running_response_end_and_cancels_the_queued() -> None:
    async with phone(RESPONSES) as call:
        for _ in range(2):
            await call.send("response.create")
        await call.send("session.close")
        await call.until("session.closed")
        assert call.nested().count("response.created") == call.nested().count("response.completed") == 1


@run
async def test_a_thousand_delegations_in_a_second() -> None:
    async with phone(faults={"delegations": {"count": 1000, "seconds": 1.0}}) as call:
        await call.say("order_status")
        await call.wait(2.5)
        created = call.all("session.delegation.created")
        assert len({frame["delegation"]["id"] for frame in created}) == 1000
        assert created[-1]["offset_ms"] - created[0]["offset_ms"] == 1000


@run
async def test_faults_of_the_line() -> None:
    async with phone(faults={"close": {"after_s": 2.0, "code": 1012}}) as call:
        with pytest.raises(ConnectionClosed) as closed:
            await call.until("session.closed")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    async with phone(faults={"stall_after_s": 1.0}) as call:
        await call.wait(3.0)
        assert len(call.all("session.output_audio.delta")) < 11
    async with phone(faults={"garbage_after_s": 1.0}) as call:
        await asyncio.sleep(2.0)
        assert isinstance(call.ended, ValueError)


def test_every_event_the_sdk_types_is_played_or_listed_with_a_reason() -> None:
    played: set[str] = set()

    async def play() -> None:
        for session in (CLIENT, RESPONSES):
            async with service() as client, calling(client.live.connect()) as call:
                started = await call.start(session)
                async with calling(client.live.sideband.connect(session_id=started["id"])) as supervisor:
                    await call.say("order_status")
                    await call.wait_until("session.delegation.created")
                    for channel in ("instructions", "thinking", "commentary"):
                        await call.send(f"session.{channel}.append", content="Soon.", delegation_id=None)
                    for type_ in ("session.input_audio.mute", "session.input_audio.unmute", "nonsense"):
                        await call.send(type_)
                    await call.send("session.update", session={})
                    await call.wait_long(5 if session is RESPONSES else 55)
                    await call.send("session.close")
                    await call.until("session.closed")
                    played.update(frame["type"] for each in (call, supervisor) for _, frame in each.frames)

    run_blocking(play)
    listed = set(schema.NOT_SIMULATED_EVENTS)
    assert not played & listed
    assert played | listed == set(SDK_EVENTS)
