"""What a simulated Gemini Live service remembers beyond a connection, so that a session can be resumed."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

from voicekit.rules import Mind
from voicekit.simulator.wire.gemini_schema import Refused
from voicekit.steps import CallTool

HANDLE = "simulated-handle-"


@dataclass
class Thread:
    """A conversation over one or more connections. Calls in flight outlive the connection they were made on."""

    connected: bool = True
    calls: dict[str, CallTool] = field(default_factory=dict)  # by call id
    behaviors: dict[str, str] = field(default_factory=dict)  # by call id
    calls_made: int = 0


@dataclass(frozen=True)
class Saved:
    """What a handle stands for: the context at the moment it was issued."""

    mind: Mind
    tokens: dict[str, int]
    thread: Thread


class Store:
    """The sessions and handles of one server. Handles live as long as the server (the vendor's: two hours)."""

    _of_server: ClassVar[WeakKeyDictionary[Any, Store]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._sessions = 0
        self._saved: dict[str, Saved] = {}

    @classmethod
    def of(cls, server: Any) -> Self:
        return cls._of_server.setdefault(server, cls())  # type: ignore[return-value]

    def new_session_id(self) -> str:
        self._sessions += 1
        return f"simulated-session-{self._sessions:04d}"

    def save(self, mind: Mind, tokens: dict[str, int], thread: Thread) -> str:
        """Keep a copy of the context and return its handle."""
        handle = f"{HANDLE}{len(self._saved) + 1:04d}"
        self._saved[handle] = Saved(copy.deepcopy(mind), dict(tokens), thread)
        return handle

    def resume(self, handle: str) -> Saved:
        """A copy of what `handle` stands for; its thread counts as connected from now on.

        Raises `Refused` for a handle that is unknown (texts: field reports, 2026-09) or whose connection is still open
        (aicc2025/sip-to-ai#14).
        """
        saved = self._saved.get(handle)
        if saved is None and handle.startswith(HANDLE):
            raise Refused(1008, "BidiGenerateContent session not found")
        if saved is None:
            raise Refused(1007, "Invalid session handle")
        if saved.thread.connected:
            raise Refused(1011, "Internal error encountered.")
        saved.thread.connected = True
        return Saved(copy.deepcopy(saved.mind), dict(saved.tokens), saved.thread)
