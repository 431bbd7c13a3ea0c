"""A simulated GPT-Live session: full duplex, in real time, with the work somewhere else.

The session has a timeline of its own, which moves on by the caller's audio and by nothing else: no audio, no time, no
speech and no acknowledgement. Each 100 ms of input give 100 ms of output, silence included, and never faster than real
time. What the voice cannot answer it delegates: to the client, or to a Responses backend that the session manages.

Where the vendor says nothing it is marked [inferred]; latencies are in the model's `Profile`, with their sources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from voicekit.audio import AUDIBLE_DBFS, RATE, Resampler, dbfs, from_pcm
from voicekit.frame_json import encoded
from voicekit.rules import Mind
from voicekit.simulator.ears import Ears, Ended, Utterance
from voicekit.simulator.gpt_live_backend import Backend
from voicekit.simulator.gpt_live_sideband import Observer, audio_event
from voicekit.simulator.gpt_live_voice import FRAME_MS, YIELD_MS, Line, Speech, Understanding
from voicekit.simulator.server import Connection
from voicekit.simulator.settings import Settings
from voicekit.simulator.voice import Voice
from voicekit.simulator.wire import g711
from voicekit.simulator.wire import gpt_live as wire

SESSION_SECONDS = 7200.0  # about two hours (a field report)
PAUSE_MS = 400  # the silence after which an utterance counts as over; the model's own way is not documented
USAGE_MS = 60_000  # about once a minute (Azure's reference)
SLACK_SECONDS = 0.2  # input that was late may catch up by this much
TOLERANCE = 1e-6
# The last words of a transcript come so long after the others, before or after the delegation: "may arrive before the
# sentence is fully transcribed" (guide). No published figure.
LAST_WORDS_MS = (250, 700)
GARBAGE = "<html>502 Bad Gateway</html>"


def serves(path: str) -> bool:
    """Whether a path is that of this service: /live/sessions or /live/sessions/{id}/attach, also below /v1."""
    match _parts(path):
        case ["live", "sessions"] | ["live", "sessions", _, "attach"]:
            return True
    return False


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    return parts[1:] if parts[:1] == ["v1"] else parts


class Endpoint:
    """One connection: a session's primary one, or a supervisor's sideband.

    Faults (`Settings.faults`):
        delegations           {"count": n, "seconds": s}: the first delegation comes n times within s seconds
                              (openclaw/openclaw#116211)
        unspoken              the first commentary is acknowledged and never spoken
        close                 {"after_s": s, "code": 1011, "reason": ""}: closes the socket after s seconds
        stall_after_s         after so many seconds nothing is sent or answered any more
        garbage_after_s       after so many seconds a frame that is no JSON
    """

    def __init__(self, connection: Connection, settings: Settings) -> None:
        parts = _parts(connection.path)
        role: Session | Observer = Session(connection, settings)
        if len(parts) > 2:
            role = Observer(connection, Session.of(connection.server).get(parts[2]))
        self.opened, self.received, self.closed = role.opened, role.received, role.closed


class Session:
    """The primary connection, and the session behind it. `ears`, `mind` and `voice` are for tests."""

    _of_server: ClassVar[WeakKeyDictionary[Any, dict[str, Session]]] = WeakKeyDictionary()

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        *,
        ears: Callable[..., Ears] = Ears,
        mind: Callable[..., Mind] = Mind,
        voice: Callable[..., Voice] = Voice,
    ) -> None:
        self._connection, self._settings, self._faults = connection, settings, dict(settings.faults)
        self._make_ears, self._make_mind, self._voice = settings.fit(ears), mind, voice(settings.language)
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_silent = False  # stalled, or closed
        self._is_muted = False
        self.observers: list[Observer] = []
        self._latencies = settings.random("gpt-live latency")
        self._transcription = settings.random("gpt-live transcription")
        # The timeline
        self.position_ms = 0
        self._input = b""
        self._due = 0.0  # loop time before which the next frame is not taken
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._appends: list[wire.Append] = []  # not acknowledged yet
        self._acknowledge_at = 0.0  # the latest automatic acknowledgement is asked for then
        self._closing_for: str | None = None
        # The caller
        self._speech_from = 0.0
        self._yield_at: float | None = None

    # The connection

    def opened(self) -> None:
        sessions = self.of(self._connection.server)
        seconds = self._settings.session_seconds or SESSION_SECONDS
        self.id = f"live_{len(sessions) + 1:04d}"
        sessions[self.id] = self
        self.wire = wire.Wire(
            self._send,
            session_id=self.id,
            expires_at=round(self._loop.time() + seconds),
            supports=self._model,
        )
        self._after(seconds, "expiry", self.finish, "expired")
        if "close" in self._faults:
            close = {"code": 1011, "reason": "", **self._faults["close"]}
            self._after(close["after_s"], "close", self._close, close["code"], close["reason"])
        if "stall_after_s" in self._faults:
            self._after(self._faults["stall_after_s"], "stall", self._fall_silent)
        if "garbage_after_s" in self._faults:
            self._after(self._faults["garbage_after_s"], "garbage", self._connection.send_text, GARBAGE)

    @classmethod
    def of(cls, server: Any) -> dict[str, Session]:
        """The sessions of a server, by id."""
        return cls._of_server.setdefault(server, {})

    def _model(self, name: str) -> None:
        if self._settings.profile(name).provider != "gpt-live":
            raise ValueError(f"'{name}' is no Live model")

    def received(self, frame: Any) -> None:
        self.take(frame)

    def take(self, frame: Any, send: wire.Send | None = None) -> None:
        """Handle an event of the primary client, or of a sideband whose refusals go to `send`."""
        if self._is_silent:
            return
        effect = self.wire.receive(frame, send)
        match effect:
            case bytes():
                self._hear(effect)
            case wire.Started():
                self._begin()
            case wire.Muted() | wire.Unmuted():
                self._is_muted = isinstance(effect, wire.Muted)
            case wire.Append():
                self._append(effect)
            case wire.ItemCreated():
                self._backend.take(effect.item)
            case wire.ResponseAsked():
                self._backend.go_on()
            case wire.CloseAsked():
                self._end(effect.event_id)

    def closed(self) -> None:
        """The primary socket is gone; who listens along hears of it."""
        if not self._is_silent and self.wire.is_started and not self.wire.is_closing:
            self.wire.close("connection_lost", self.position_ms / 1000)
        self._fall_silent()
        self._dismiss()

    def finish(self, reason: wire.CloseReason, event_id: str | None = None) -> None:
        """Send session.closed and hang up."""
        if self.wire.is_started:
            self.wire.close(reason, self.position_ms / 1000, event_id)
        self._close(1000)

    def _close(self, code: int, reason: str = "") -> None:
        self._fall_silent()
        self._connection.close(code, reason)
        self._dismiss()

    def _dismiss(self) -> None:
        for observer in self.observers:
            observer.connection.close(1000)
        self.observers.clear()

    def _fall_silent(self) -> None:
        self._is_silent = True
        for timer in self._timers.values():
            timer.cancel()
        if self.wire.is_started:
            self._backend.stop()

    def _send(self, frame: dict[str, Any]) -> None:
        text = encoded(frame).decode()
        for receiver in (self._connection, *(observer.connection for observer in self.observers)):
            receiver.send_text(text)

    def _after(self, seconds: float, purpose: str, action: Callable[..., None], *arguments: Any) -> None:
        self._timers[purpose] = self._loop.call_later(seconds, action, *arguments)

    # Start and end

    def _begin(self) -> None:
        session = self.wire.session
        self._profile = self._settings.profile(session["model"])
        self._ears = self._make_ears(self._settings.clips, self.wire.rate, silence_ms=PAUSE_MS, prefix_ms=0)
        self._to_24k = Resampler(self.wire.rate, RATE)
        self._speech = Speech(self._voice, self.wire.rate)
        self._understanding = Understanding(session["instructions"] or "", self._settings.language)
        self._backend = Backend(
            self.wire,
            self._make_mind(self._profile, self._settings.language),
            lambda: self._draw(self._profile.backend_latency),
            self._inject,
            self._backend_is_idle,
        )
        self._silence = self._encoded(bytes(self._speech.frame_bytes))
        self._later(USAGE_MS, self._report_usage)

    def _end(self, event_id: str | None) -> None:
        """What is queued is cancelled, what runs may end; appends that the timeline has not reached are errors."""
        for append in self._appends:
            self.wire.not_appended(append)
        self._appends.clear()
        self._closing_for = event_id
        self._backend.cancel()
        if not self._backend.is_running:
            self.finish("close_requested", event_id)

    def _backend_is_idle(self) -> None:
        if self.wire.is_closing and not self._is_silent:
            self.finish("close_requested", self._closing_for)

    def _report_usage(self) -> None:
        self.wire.usage(self.position_ms / 1000)
        self._later(USAGE_MS, self._report_usage)

    # The timeline

    def _hear(self, pcm: bytes) -> None:
        for observer in self.observers:
            observer.reflect(self._to_24k.feed(pcm))
        self._input += pcm
        self._advance()

    def _advance(self) -> None:
        """Take whole frames of input, none before its time: audio that comes in a burst does not speed the model up."""
        size, now = self._speech.frame_bytes, self._loop.time()
        while len(self._input) >= size and not self._is_silent:
            if now < self._due - TOLERANCE:
                if "frame" not in self._timers:
                    self._timers["frame"] = self._loop.call_at(self._due, self._on_frame_due)
                return
            frame, self._input = self._input[:size], self._input[size:]
            self._due = max(self._due, now - SLACK_SECONDS) + FRAME_MS / 1000
            self._step(bytes(size) if self._is_muted else frame)

    def _on_frame_due(self) -> None:
        self._timers.pop("frame", None)
        self._advance()

    def _step(self, frame: bytes) -> None:
        """100 ms of the session: hear them, do what is due, speak."""
        start, self.position_ms = self.position_ms, self.position_ms + FRAME_MS
        for event in self._ears.feed(frame):
            if isinstance(event, Ended):
                self._caller_ended(event)
            else:
                self._speech_from = event.at_ms
                self._yield_at = event.at_ms + YIELD_MS if self._speech.is_speaking else None
        if self._yield_at is not None and self.position_ms >= self._yield_at:
            self._yield_at = None
            if self._speech.is_speaking and dbfs(from_pcm(frame)) > AUDIBLE_DBFS:
                self._speech.stop()
        while self._agenda and self._agenda[0][0] <= self.position_ms:
            heappop(self._agenda)[2]()
        if self._is_silent:
            return
        spoken = self._speech.frame(self.position_ms, may_begin=not self._ears.speaking)
        self._connection.send_text(self._encoded(spoken[1]) if spoken else self._silence)
        for observer in self.observers:
            observer.hear(spoken[1] if spoken else bytes(self._speech.frame_bytes), start, FRAME_MS, self.wire.rate)
        if spoken and spoken[0]:
            self.wire.transcript("output", spoken[0], start, self.position_ms)

    def _later(self, ms: float, action: Callable[[], None]) -> None:
        """Do something when the timeline is so much further."""
        heappush(self._agenda, (self.position_ms + ms, next(self._numbers), action))

    def _encoded(self, pcm: bytes) -> str:
        kind = self.wire.format["type"]
        sound = pcm if kind == "audio/pcm" else g711.encode(pcm, kind)
        return audio_event(sound)

    def _draw(self, median: float) -> float:
        """A latency in seconds, spread as the profile says."""
        return round(median * max(0.5, self._latencies.gauss(1.0, self._profile.latency_spread)), 3)

    # The caller

    def _caller_ended(self, event: Ended) -> None:
        utterance = event.utterance
        self._yield_at = None
        self._transcribe(utterance, event.at_ms - PAUSE_MS)
        rest = self._speech.rest.text if self._speech.rest else ""
        answer = self._understanding.answer(utterance, self._speech.said, rest)
        if answer.stop:  # the speech, and nothing but the speech: work goes on, its result will be said
            self._speech.stop()
            self._speech.drop(lambda line: line.kind != "result")
        if answer.text:
            wait = 1000 * self._draw(self._profile.speech_latency)
            self._speech.add(Line(answer.text, event.at_ms + wait))
        if answer.delegate:
            wait = 1000 * self._draw(self._profile.call_latency)
            since = event.at_ms - self.position_ms  # it was over before this frame was
            self._later(since + wait, lambda: self._delegate(utterance, acknowledge=not answer.text))

    def _transcribe(self, utterance: Utterance, end_ms: float) -> None:
        """Send the transcript in two pieces; a service that hears words would send them while they are spoken."""
        words = utterance.transcript.split()
        if not words:
            return
        first, last = " ".join(words[:-1]), words[-1]
        start = round(min(self._speech_from, end_ms))
        middle = round(start + (end_ms - start) * len(first) / (len(first) + len(last) + 1))
        if first:
            self.wire.transcript("input", first, start, middle)
        wait = self._transcription.uniform(*LAST_WORDS_MS)
        text = f" {last}" if first else last
        self._later(wait, lambda: self.wire.transcript("input", text, middle, round(end_ms)))

    # Work

    def _delegate(self, utterance: Utterance, *, acknowledge: bool) -> None:
        many = self._faults.pop("delegations", {"count": 1, "seconds": 0.0})
        self._hand_over(utterance)
        for number in range(1, many["count"]):
            self._later(1000 * many["seconds"] * number / many["count"], lambda: self._hand_over(utterance))
        if acknowledge:
            delay = self.wire.session["delegation"]["acknowledgement_delay_ms"]
            wait = delay + 1000 * self._draw(self._profile.acknowledgement_latency)
            text = self._understanding.acknowledgement(utterance)
            self._speech.add(Line(text, self.position_ms + wait, "acknowledgement"))
            self._acknowledge_at = self.position_ms + delay

    def _hand_over(self, utterance: Utterance) -> None:
        if self.wire.target == "client":
            id_ = self.wire.delegate(self.position_ms)
        else:
            id_ = self._backend.delegate(self.position_ms, [utterance])
        self._understanding.delegated(id_, utterance)

    def _append(self, append: wire.Append) -> None:
        """Text from the client. Acknowledged when the timeline has taken it in; commentary is said some time later."""
        self._appends.append(append)
        start = self.position_ms
        wait = 1000 * self._draw(self._profile.injection_latency)
        if append.channel != "instructions" and self.position_ms < self._acknowledge_at:
            self._speech.drop(lambda line: line.kind == "acknowledgement")

        def take_in() -> None:
            self._appends.remove(append)
            self.wire.appended(append, start, self.position_ms)
            if append.channel != "commentary":
                return
            if append.delegation_id is not None:
                self._understanding.pending.discard(append.delegation_id)
            if not self._faults.pop("unspoken", False):
                self._say_result(append.content)

        self._later(wait, take_in)

    def _inject(self, text: str) -> None:
        """The Responses backend has an answer: into the timeline, then said."""
        self._understanding.pending.clear()
        self._later(1000 * self._draw(self._profile.injection_latency), lambda: self._say_result(text))

    def _say_result(self, text: str) -> None:
        wait = 1000 * self._draw(self._profile.injected_speech_latency)
        self._speech.add(Line(text, self.position_ms + wait, "result"))
