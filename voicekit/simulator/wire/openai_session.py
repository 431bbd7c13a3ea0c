"""The configuration of a Realtime session: its defaults, and what an update makes of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

DEFAULT_INSTRUCTIONS = "You are a helpful voice assistant."
VAD_DEFAULTS: dict[str, dict[str, Any]] = {
    # silence_duration_ms: 500 is the SDK's word, 200 was seen in session.created
    "server_vad": {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "idle_timeout_ms": None,
        "create_response": True,
        "interrupt_response": True,
    },
    "semantic_vad": {
        "type": "semantic_vad",
        "eagerness": "auto",
        "create_response": True,
        "interrupt_response": True,
    },
}


def default_session(model: str, session_id: str, expires_at: int, *, reasoning_model: bool) -> dict[str, Any]:
    """The session as it is before any update; `simulated` is the one key the vendor does not have."""
    pcm = {"type": "audio/pcm", "rate": 24_000}
    session: dict[str, Any] = {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "simulated": True,
        "model": model,
        "output_modalities": ["audio"],
        "instructions": DEFAULT_INSTRUCTIONS,
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "tracing": None,
        "truncation": "auto",
        "prompt": None,
        "expires_at": expires_at,
        "include": None,
        "audio": {
            "input": {
                "format": dict(pcm),
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": dict(VAD_DEFAULTS["server_vad"]),
            },
            "output": {"format": dict(pcm), "voice": "marin", "speed": 1},
        },
    }
    if reasoning_model:
        session |= {"parallel_tool_calls": True, "reasoning": None}
    return session


def merged(session: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The effective session after an update: only the fields present change, and objects are filled with defaults."""
    new = copy.deepcopy(dict(patch))
    sides = new.pop("audio", {})
    audio = {side: {**session["audio"][side], **sides.get(side, {})} for side in ("input", "output")}
    for side in audio.values():
        if side["format"]["type"] == "audio/pcm":
            side["format"].setdefault("rate", 24_000)
    heard, before = audio["input"], session["audio"]["input"]
    if heard["turn_detection"]:
        heard["turn_detection"] = VAD_DEFAULTS[heard["turn_detection"]["type"]] | heard["turn_detection"]
    if heard["transcription"]:
        heard["transcription"] = {"model": None, "language": None, "prompt": None} | heard["transcription"]
    if heard["noise_reduction"]:
        heard["noise_reduction"] = (before["noise_reduction"] or {}) | heard["noise_reduction"]
    return {**session, **new, "audio": audio}
