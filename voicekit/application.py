"""One conversation put together: caller, session, tools and the application between them; what comes out is a `Run`."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import importlib.metadata
import os
import platform
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, cast
from urllib.parse import urlsplit

from voicekit import audio, metrics, recording
from voicekit.backend import ToolBackend
from voicekit.budget import Budget
from voicekit.caller import Caller
from voicekit.conversation import Conversation
from voicekit.delegation import Backend, Desk
from voicekit.delegation_backends import Responses, Rules
from voicekit.dispatcher import Dispatcher
from voicekit.echo import Microphone
from voicekit.experiment import Plan
from voicekit.gate import Gate
from voicekit.instructions import instructions
from voicekit.journal import Journal
from voicekit.ledger import Ledger
from voicekit.models import provider
from voicekit.runs import Run
from voicekit.sessions import open_session
from voicekit.sessions.base import (
    DelegatingSession,
    Endpoint,
    RealtimeSession,
    SessionConfig,
    SessionError,
    WireTap,
)
from voicekit.simulator import Settings, Simulator
from voicekit.speaker import Speaker
from voicekit.tools import Tool
from voicekit.understanding import sentences
from voicekit.world import SECONDS, World

KEYS = {
    "openai-realtime": ("OPENAI_API_KEY",),
    "gpt-live": ("OPENAI_API_KEY",),
    "gemini-live": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
# The variable that leads an SDK elsewhere (to `voicekit simulator`, for instance), and where the vendor's service is.
ADDRESSES = {
    "openai-realtime": ("OPENAI_BASE_URL", "openai.com"),
    "gpt-live": ("OPENAI_BASE_URL", "openai.com"),
    "gemini-live": ("GOOGLE_GEMINI_BASE_URL", "googleapis.com"),
}
# Nothing is owed and nobody speaks for this long: the conversation is over.
ENDING_SECONDS = 1.0

Connect = Callable[[SessionConfig, Endpoint, WireTap], RealtimeSession]


class SessionClock:
    """Seconds since the session was open; 0 before. Everything in a run is told in it."""

    def __init__(self) -> None:
        self._time: Callable[[], float] | None = None
        self._zero = 0.0

    def start(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._zero = self._time()

    def __call__(self) -> float:
        return 0.0 if self._time is None else self._time() - self._zero


async def converse(plan: Plan, connect: Connect = open_session) -> Run:
    """Hold the planned conversation on the running loop and return it, whatever the provider does.

    `connect` makes the session, for an application that says other things on the wire than the kit's own adapters.
    Raises ValueError before anything starts, for a missing key or a ledger that cannot be opened.
    """
    now = SessionClock()
    journal = Journal(now)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with Ledger(plan.ledger) as ledger:
        if plan.target != "live" and ledger.rows():
            why = "holds another run's calls, and the simulated service numbers them from 1 each time"
            raise ValueError(f"ledger {plan.ledger} {why}; give each run a file of its own")
        async with service(plan) as endpoint:
            talk = _Talk(plan, endpoint, journal, ledger, now, connect)
            await talk.hold()
        calls = [row for row in ledger.rows() if row["call_id"] in talk.dispatcher.calls]
        queue = ledger.queue()
    return _finish(plan, talk, calls, queue, started)


@contextlib.asynccontextmanager
async def service(plan: Plan) -> AsyncIterator[Endpoint]:
    """Where the session goes: the vendor, or a simulator that lives as long as the run."""
    if plan.target == "live":
        yield live_endpoint(plan.model)
        return
    settings = Settings(
        seed=plan.seed, claims=plan.claims, faults=plan.faults, language=plan.language, detector=plan.detector
    )
    async with Simulator(settings) as simulator:
        if provider(plan.model) == "gemini-live":
            url = simulator.url.replace("http:", "https:")
            yield Endpoint(api_key="simulated", base_url=url, tls=simulator.client_tls)
        else:
            yield Endpoint(api_key="simulated", base_url=f"{simulator.url}/v1")


def live_endpoint(model: str) -> Endpoint:
    """The vendor's own address, with the key from the environment.

    Raises ValueError without a key, and when a variable would lead the SDK elsewhere: such a run would not be live.
    """
    variable, home = ADDRESSES[provider(model)]
    address = os.environ.get(variable, "").strip()
    host = urlsplit(address).hostname or address
    if address and host != home and not host.endswith(f".{home}"):
        raise ValueError(f"{variable} leads to {host}, so {model} would not be live; unset {variable}")
    names = KEYS[provider(model)]
    # Without the line end that a key read from a file has: it must be told apart from a text that quotes it.
    key = next((key for name in names if (key := os.environ.get(name, "").strip())), "")
    if not key:
        raise ValueError(f"{model} live needs a key: set {' or '.join(names)} in the environment")
    return Endpoint(api_key=key)


class _Talk:
    """The parts of one conversation and the tasks that run them."""

    def __init__(
        self,
        plan: Plan,
        endpoint: Endpoint,
        journal: Journal,
        ledger: Ledger,
        now: SessionClock,
        connect: Connect,
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.now = now
        self.tools = _tools(plan)
        config = _config(plan, self.tools)
        session = connect(config, endpoint, journal.add_wire)
        self.session: RealtimeSession = session
        self.endpoint = endpoint
        self.speaker = Speaker(journal, now)
        self.conversation = Conversation(session, self.speaker, journal, now)
        notify = functools.partial(journal.add, "tool")
        _check_names(plan, self.tools)
        gate = Gate.of(plan.policy, plan.language)
        budget = Budget(plan.policy.budget, sentences(plan.language)["over_budget"])
        backend = ToolBackend(
            self.tools, ledger, random.Random(f"{plan.seed}/tools"), now=now, notify=notify, gate=gate, budget=budget
        )
        self.dispatcher = Dispatcher(self.conversation, backend, plan.policy, journal, now, plan.model, plan.language)
        self.desk: Desk | None = None
        if session.capabilities.delegates:
            worker = plan.backend or _backend(plan, config, endpoint)
            self.desk = Desk(cast(DelegatingSession, session), self.dispatcher, worker, journal, now)
        self.microphone = Microphone(
            session.send_audio, self.speaker.between, now, echo_db=plan.echo_db, guard=plan.echo_guard
        )
        self.caller = Caller(
            plan.scenario.lines,
            audio.clips(),
            journal,
            session.send_audio if plan.echo_db is None else self.microphone,
            frame_ms=plan.frame_ms,
            level_db=plan.caller_db,
            noise_db=plan.noise_db,
            seed=plan.seed,
            now=now,
            busy=lambda: self.busy,
            when_heard=self.speaker.when_heard,
        )
        self.conversation.on_wake = self.caller.look

    @property
    def busy(self) -> bool:
        """Whether the caller may still expect something: an answer, a result, the rest of a sentence."""
        works = self.desk is not None and self.desk.busy
        return works or self.dispatcher.busy or not self.conversation.quiet or self._reply_is_due

    @property
    def _reply_is_due(self) -> bool:
        """The caller has spoken, the agent not since: the model may still be thinking."""
        end, idle = self.caller.last_speech_end, self.speaker.idle_since
        return end is not None and idle is not None and idle < end and self.conversation.may_still_answer(end)

    def _is_over(self) -> bool:
        return bool(self.dispatcher.aborted) or (self.caller.finished and not self.busy)

    async def hold(self) -> None:
        """Run until all is said, the provider ends it, or `max_seconds` are over."""
        journal = self.journal
        try:
            async with self.session:
                self.now.start()
                journal.add("session", "connected", text=self.plan.model)
                await self._run_tasks()
        except SessionError as error:
            journal.add("session", "problem", text=str(error), code="session", recoverable=False)
        self.speaker.close()
        journal.add("session", "closed")

    async def _run_tasks(self) -> None:
        reading = asyncio.create_task(self._read(), name="session events")
        talking = asyncio.create_task(self.caller.run(), name="caller")
        ending = asyncio.create_task(self._wait_for_the_end(), name="end of the conversation")
        tasks = {reading, talking, ending}
        listening = [asyncio.create_task(self._supervise(), name="supervisor")] if self.plan.supervisor else []
        try:
            done, _ = await asyncio.wait(tasks, timeout=self.plan.max_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                text = f"not over after {self.plan.max_seconds:g} s; raise max_seconds or look for what it waits for"
                self.journal.add("session", "problem", text=text, code="max_seconds", recoverable=False)
            if talking in done and isinstance(talking.exception(), SessionError):
                await asyncio.wait({reading}, timeout=1.0)  # the reader knows why
            if reading.done():  # the provider hung up: what was being worked on is not thrown away
                self.conversation.working.clear()
                if self.desk is not None:
                    await self.desk.settle()
                await self.dispatcher.settle()
        finally:
            self.caller.stop()
            await self.dispatcher.close()
            if self.desk is not None:
                await self.desk.close()
            await self.session.close()
            for task in [*tasks, *listening]:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, *listening, return_exceptions=True)
        for outcome in [*outcomes, self.dispatcher.failure]:
            if isinstance(outcome, Exception) and not isinstance(outcome, SessionError):
                raise outcome

    async def _read(self) -> None:
        async for event in self.session:
            await self.conversation.on(event)
            await self.dispatcher.on(event)
            if self.desk is not None:
                await self.desk.on(event)

    async def _supervise(self) -> None:
        """A second socket that listens along, where the provider has one."""
        from voicekit.sessions.gpt_live_sideband import Sideband

        assert self.plan.supervisor is not None
        async with Sideband(self.endpoint, cast(DelegatingSession, self.session).session_id) as sideband:
            async for frame in sideband:
                self.plan.supervisor({"t": round(self.now(), 6), **frame})

    async def _wait_for_the_end(self) -> None:
        """The caller has said everything, nothing is owed, and it stays so for a moment."""
        while True:
            await self.conversation.until(self._is_over, float("inf"), "the end")
            if why := self.dispatcher.aborted:
                self.journal.add("session", "problem", text=why, code="guardrail", recoverable=False)
                return
            since = self.now()
            await asyncio.sleep(ENDING_SECONDS)
            idle = self.speaker.idle_since
            if not self.busy and idle is not None and max(idle, self.caller.last_speech_end or 0.0) <= since:
                if not self.dispatcher.asking.waits_for_caller:
                    return
                self.dispatcher.asking.let_go("the caller has said everything, and not yes")


def _tools(plan: Plan) -> list[Tool]:
    if plan.tools is not None:
        return list(plan.tools)
    world = World(language=plan.language, bookings=[("friday", "10:00")])
    seconds = {name: plan.seconds_of(name) for name in plan.scenario.tools}
    return [tool for tool in world.tools(seconds=seconds, faults=plan.tool_faults) if tool.name in plan.scenario.tools]


def _check_names(plan: Plan, tools: list[Tool]) -> None:
    """Raise ValueError for a name on the list that no tool has: a misspelled one would be asked about every time."""
    known = {*SECONDS, *(tool.name for tool in tools)}
    if strange := sorted((plan.policy.without_asking or frozenset()) - known):
        raise ValueError(f"without_asking: no tool is called {strange[0]!r}; known: {', '.join(sorted(known))}")


def _config(plan: Plan, tools: list[Tool]) -> SessionConfig:
    text = plan.instructions
    if text is None:
        text = instructions(plan.policy, [tool.name for tool in tools], plan.language, _left_over(plan.earlier))
    return SessionConfig(
        model=plan.model,
        instructions=text,
        tools=tuple(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            | ({"behavior": plan.policy.behavior} if plan.policy.behavior else {})
            for tool in tools
        ),
        language=plan.language,
        silence_ms=plan.silence_ms,
        delegation=plan.delegation or "client",
    )


def _left_over(earlier: Run | None) -> list[tuple[str, str, str]]:
    """The results of a run that came when nobody was left to tell."""
    if earlier is None:
        return []
    calls = {row["call_id"]: row for row in earlier.call_rows}
    known = [row for row in earlier.undelivered if row["call_id"] in calls]
    return [(calls[row["call_id"]]["tool"], calls[row["call_id"]]["arguments"], row["text"]) for row in known]


def _backend(plan: Plan, config: SessionConfig, endpoint: Endpoint) -> Backend:
    """Who does delegated work when the reader gave nobody: a text model with a live key, rules without one."""
    if plan.target != "live":
        return Rules(plan.language, obeys_text=plan.claims.get("obeys_text") == "yes")
    from openai import AsyncOpenAI

    return Responses(AsyncOpenAI(api_key=endpoint.api_key), config.backend_model, config.instructions)


def _finish(
    plan: Plan, talk: _Talk, calls: list[dict[str, Any]], queue: list[dict[str, Any]], started: str
) -> Run:
    events = talk.journal.events
    metrics.mark_heard(calls, events)
    stereo = recording.mix(talk.caller.recorded, talk.speaker.recorded)
    values = metrics.measure(events, calls)
    values["audio_check_ms"] = max(recording.audio_check(events, stereo).values())
    return Run(_meta(plan, started), events, talk.journal.wire, calls, values, stereo, queue)


def _tool_seconds(plan: Plan) -> dict[str, Any]:
    """By tool; a distribution is written out. The reader's own tools take the time that they say themselves."""
    if plan.tools is None:
        return {name: plan.seconds_of(name) for name in plan.scenario.tools}
    return {t.name: t.seconds if isinstance(t.seconds, (int, float)) else repr(t.seconds) for t in plan.tools}


def _meta(plan: Plan, started: str) -> dict[str, Any]:
    return {
        "scenario": plan.scenario.name,
        "model": plan.model,
        "policy": plan.policy.describe(),
        "target": plan.target,
        "clock": plan.clock,
        "seed": plan.seed,
        "tool_seconds": _tool_seconds(plan),
        "claims": dict(plan.claims),
        "versions": dict(_versions()),
        "started": started,
        "provenance": "live" if plan.target == "live" else "simulated",
        **({"delegation": plan.delegation} if plan.delegation else {}),
    }


@functools.cache  # the files it is read from are found anew each time, which takes longer than a short run's audio
def _versions() -> dict[str, str]:
    packages = ("voicekit", "openai", "google-genai", "websockets", "looptime")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in packages}
