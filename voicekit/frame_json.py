"""The JSON of a frame, read and written quickly: most of it is one long text of audio.

pydantic's parser takes a sixth of the standard library's time for such a frame. It refuses half a character, which JSON
may hold ("\\ud800") and UTF-8 may not; those frames, and what is no JSON at all, are the standard library's.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from pydantic_core import from_json, to_json


def parsed(message: str | bytes) -> Any:
    """What a frame says; None for what is no JSON, or nested absurdly deep."""
    with contextlib.suppress(ValueError):
        return from_json(message)
    try:
        return json.loads(message)
    except (ValueError, RecursionError):
        return None


def encoded(frame: dict[str, Any]) -> bytes:
    try:
        return to_json(frame)
    except ValueError:
        return json.dumps(frame, separators=(",", ":")).encode()
