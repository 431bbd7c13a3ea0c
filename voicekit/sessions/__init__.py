"""Spoken sessions with a model: one adapter per provider, each on the provider's own SDK."""

from __future__ import annotations

from voicekit.models import provider
from voicekit.sessions._common import capabilities
from voicekit.sessions.base import Endpoint, NotSupported, RealtimeSession, SessionConfig, WireTap

__all__ = ["capabilities", "open_session"]


def open_session(config: SessionConfig, endpoint: Endpoint, tap: WireTap | None = None) -> RealtimeSession:
    """Return the session for `config.model`, not yet connected: use it with `async with`.

    `tap(direction, type, frame)` is told of every frame, audio replaced by its length. Raises ValueError for an unknown
    model, NotSupported or SessionError for a configuration the model would refuse or ignore.
    """
    # Imported here because each SDK takes about a second to load, and most programs need one of them.
    match provider(config.model):
        case "openai-realtime":
            from voicekit.sessions.openai_realtime import OpenAIRealtimeSession

            return OpenAIRealtimeSession(config, endpoint, tap)
        case "gemini-live":
            from voicekit.sessions.gemini_live import GeminiLiveSession

            return GeminiLiveSession(config, endpoint, tap)
        case "gpt-live":
            from voicekit.sessions.gpt_live import GptLiveSession

            return GptLiveSession(config, endpoint, tap)
        case other:
            raise NotSupported(f"there is no session adapter for {other} ({config.model}) yet")
