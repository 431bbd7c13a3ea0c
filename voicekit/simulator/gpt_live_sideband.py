"""The sideband of a simulated GPT-Live session: a second socket for a supervisor that listens along."""

from __future__ import annotations

import json
from typing import Any, Protocol

import pybase64

from voicekit.audio import RATE, Resampler
from voicekit.simulator.server import Connection
from voicekit.simulator.wire.checks import Refused
from voicekit.simulator.wire.gpt_live import Send, Wire


class Listened(Protocol):
    """The session a sideband is attached to."""

    wire: Wire
    observers: list[Observer]

    def take(self, frame: Any, send: Send | None = None) -> None: ...


class Observer:
    """A sideband: hears the session along and may steer it. Both sides' audio comes as PCM16 at 24 kHz."""

    def __init__(self, connection: Connection, session: Listened | None) -> None:
        self.connection = connection
        self._session = session
        self._from_rate: Resampler | None = None

    def opened(self) -> None:
        """Listen from now on. The short replay that the SDK's notes mention is not described, so there is none."""
        session = self._session
        if session is None or not session.wire.is_started or session.wire.is_closing:
            self._refuse_session()
            return
        session.observers.append(self)

    def _refuse_session(self) -> None:
        self._session = None
        refusal = Refused("session_not_found", "There is no such session, or it has ended.")  # [inferred]
        Wire(self.connection.send).refuse(refusal)
        self.connection.close(1008, "session_not_found")

    def received(self, frame: Any) -> None:
        if self._session is not None:
            self._session.take(frame, self.connection.send)

    def closed(self) -> None:
        if self._session is not None and self in self._session.observers:
            self._session.observers.remove(self)

    def reflect(self, pcm: bytes) -> None:
        """What the primary sent, before muting; without id and time, as the API has it."""
        if pcm:
            audio = pybase64.b64encode_as_string(pcm)
            self.connection.send({"type": "session.input_audio.append", "audio": audio})

    def hear(self, pcm: bytes, start_ms: int, ms: int, rate: int) -> None:
        """What the primary is sent, here with its place in the session."""
        if rate != RATE:
            self._from_rate = self._from_rate or Resampler(rate, RATE)
            pcm = self._from_rate.feed(pcm)
        self.connection.send_text(audio_event(pcm, start_ms=start_ms, end_ms=start_ms + ms))


def audio_event(sound: bytes, **times: int) -> str:
    """The text of an output delta; on a primary connection it has no id and no times."""
    event = {"type": "session.output_audio.delta", "delta": pybase64.b64encode_as_string(sound), **times}
    return json.dumps(event, separators=(",", ":"))
