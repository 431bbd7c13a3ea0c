"""What every provider's session looks like from the application: events in, a few commands out.

The adapters differ by `Capabilities`, not by inheritance. A command the model has no answer to raises `NotSupported`
before anything is sent.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self

Delivery = Literal["when_idle", "interrupt", "silent"]
Channel = Literal["commentary", "thinking", "instructions"]
TurnStatus = Literal["completed", "cancelled", "failed", "incomplete"]
WireTap = Callable[[Literal["sent", "received"], str, dict[str, Any]], None]


class NotSupported(Exception):
    """The model cannot do what was asked; nothing was sent. The message names what it can do instead."""


class SessionError(Exception):
    """The session could not be set up or broke; the message says what was waited for or what the provider said."""


@dataclass(frozen=True)
class Capabilities:
    """What a model can do, from data/models.csv. `behaviors` are the values its tool declarations accept."""

    owns_turns: bool  # the provider decides when the caller's turn has ended
    can_cancel: bool  # generation can be stopped by the client
    can_truncate: bool  # the provider can be told how much of an item was heard
    can_schedule: bool  # a result can carry when it is to be said
    implied_reply: bool  # a result starts speech by itself; otherwise `respond` must ask for it
    behaviors: frozenset[str] = frozenset()  # of "blocking", "non_blocking"; empty: the declaration has no such field
    default_behavior: str = "non_blocking"
    waits_for_result: bool = False  # the model says nothing while a call is open
    cancels_calls: bool = False  # the server may withdraw a call
    delegates: bool = False  # the voice has no tools, it hands work over
    parallel_calls: bool = True
    has_turns: bool = True  # what the model says comes in turns that begin and end; otherwise it is one stream
    reports_speech: bool = True  # the provider says when the caller begins and stops to speak


@dataclass(frozen=True)
class SessionConfig:
    """What a session starts with. `tools` are dicts with name, description, parameters (JSON Schema), behavior."""

    model: str
    instructions: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    language: str = "en"
    voice: str | None = None
    silence_ms: int = 500  # how long the caller must be silent for a turn to end
    delegation: Literal["client", "responses"] = "client"  # who does the work, where the model delegates
    backend_model: str = "gpt-6-sol"  # of the Responses backend


@dataclass(frozen=True)
class Endpoint:
    """Where a session goes: the vendor's own address (`base_url` None) or the simulator's."""

    api_key: str = field(repr=False)
    base_url: str | None = None
    tls: ssl.SSLContext | None = None


# Events. `item` is one stretch of agent speech (or one caller utterance), `turn` one response of the model.


@dataclass(frozen=True)
class TurnStarted:
    """The model has begun to answer. `call_ids`: the results it was asked to speak, when the provider echoes them."""

    turn: str
    call_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class TurnDone:
    turn: str
    status: TurnStatus = "completed"
    reason: str = ""


@dataclass(frozen=True)
class SpeechStarted:
    """The provider hears the caller. `at_ms`: position in the audio sent, where the provider gives one."""

    item: str | None = None
    at_ms: int | None = None


@dataclass(frozen=True)
class SpeechStopped:
    item: str | None = None
    at_ms: int | None = None


@dataclass(frozen=True)
class Heard:
    """What the provider understood the caller to say; arrives any time around the answer."""

    text: str
    item: str | None = None
    final: bool = True


@dataclass(frozen=True)
class Audio:
    """Agent speech: PCM16 mono little-endian at 24 kHz."""

    item: str
    pcm: bytes = field(repr=False)
    turn: str = ""


@dataclass(frozen=True)
class Said:
    """A piece of the transcript of agent speech, for the audio generated so far of `item`."""

    item: str
    text: str
    turn: str = ""
    final: bool = False  # True: `text` is the whole transcript of the item, nothing more follows


@dataclass(frozen=True)
class ToolCall:
    """A proposed call with complete arguments (the JSON text as received, not yet validated).

    `broken`: the turn ended before the arguments were complete; never to be run.
    """

    call_id: str
    name: str
    arguments: str
    turn: str = ""
    broken: bool = False


@dataclass(frozen=True)
class ToolCallCancelled:
    call_ids: tuple[str, ...]


@dataclass(frozen=True)
class Delegation:
    """GPT-Live hands work over; there is no task text in it."""

    id: str
    target: str
    offset_ms: int = 0


@dataclass(frozen=True)
class Appended:
    """Text given to the model is in its timeline: neither spoken nor heard. `id` is what `append` returned."""

    id: str
    channel: str
    end_ms: int = 0


@dataclass(frozen=True)
class Work:
    """The delegated backend has begun (`in_progress`) or ended a response. `text` is what it gave the voice to say."""

    response: str
    delegation: str = ""
    status: TurnStatus | Literal["in_progress"] = "in_progress"
    text: str = ""


@dataclass(frozen=True)
class Interrupted:
    """The provider has stopped the agent's speech; what is still queued for `turn` is not to be played."""

    turn: str = ""


@dataclass(frozen=True)
class Usage:
    tokens: dict[str, Any]


@dataclass(frozen=True)
class GoAway:
    seconds_left: float


@dataclass(frozen=True)
class Problem:
    """Something the provider refused or that went wrong. `recoverable`: the session goes on."""

    code: str
    message: str
    recoverable: bool = True


Event = (
    TurnStarted | TurnDone | SpeechStarted | SpeechStopped | Heard | Audio | Said | ToolCall | ToolCallCancelled
    | Delegation | Appended | Work | Interrupted | Usage | GoAway | Problem
)  # fmt: skip


class RealtimeSession(Protocol):
    """A spoken session: `async with session:` connects, iteration yields events across turns until it ends.

    A closed, stalled or nonsensical provider ends the iteration after a `Problem` with recoverable=False; iteration
    itself never raises for what the provider does.
    """

    capabilities: Capabilities
    resumption_handle: str | None

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def send_audio(self, pcm: bytes) -> None:
        """Send caller audio: PCM16 mono at 24 kHz, any length (an odd byte is carried over to the next call)."""

    async def send_result(
        self, call_id: str, result: dict[str, Any], *, delivery: Delivery | None = None, final: bool = True
    ) -> None:
        """Answer a call. `delivery` needs `can_schedule`, `final=False` announces that more will follow."""

    async def respond(self, call_ids: tuple[str, ...] = ()) -> None:
        """Ask for speech. Only where the reply is not implied; never while a turn is active (raises SessionError)."""

    async def tell(self, text: str) -> None:
        """Give the model a message of the application's. Where replies are implied it is answered at once."""

    async def stop_speaking(self) -> None:
        """Stop generating. Needs `can_cancel`; without an active turn it does nothing."""

    async def truncate(self, item: str, heard_ms: int) -> None:
        """Tell the provider how much of `item` was heard. Needs `can_truncate`."""

    async def close(self) -> None: ...


class DelegatingSession(RealtimeSession, Protocol):
    """A session whose model hands work over (`Capabilities.delegates`)."""

    session_id: str

    async def append(self, channel: Channel, text: str, delegation: str | None = None) -> str:
        """Give the model text and return the id under which it is acknowledged (see `Appended`).

        "commentary" is to be said, "thinking" only to be known, "instructions" to be followed. Whether and when words
        are spoken is the model's affair.
        """
