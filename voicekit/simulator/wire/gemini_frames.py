"""The frames a Gemini Live server sends; the SDK ignores a top level that is not in camelCase (3.6.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pybase64

OUTPUT_RATE = 24_000

Frame = dict[str, Any]


def setup_complete(session_id: str) -> Frame:
    return {"setupComplete": {"sessionId": session_id}}


def content(**fields: Any) -> Frame:
    return {"serverContent": fields}


def audio(pcm: bytes) -> Frame:
    blob = {"mimeType": f"audio/pcm;rate={OUTPUT_RATE}", "data": pybase64.b64encode_as_string(pcm)}
    return content(modelTurn={"role": "model", "parts": [{"inlineData": blob}]})


def function_call(call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": call_id, "name": name, "args": dict(arguments)}


def tool_call(calls: Sequence[dict[str, Any]]) -> Frame:
    return {"toolCall": {"functionCalls": list(calls)}}


def calls_in_turn(calls: Sequence[dict[str, Any]]) -> Frame:
    """The same calls as parts of the model's turn: the second copy of mastra-ai/mastra#22969."""
    return content(modelTurn={"role": "model", "parts": [{"functionCall": call} for call in calls]})


def cancellation(call_ids: Sequence[str]) -> Frame:
    return {"toolCallCancellation": {"ids": list(call_ids)}}


def go_away(seconds_left: float) -> Frame:
    return {"goAway": {"timeLeft": f"{seconds_left:g}s"}}


def resumption_update(handle: str, consumed: int | None) -> Frame:
    """An empty handle says that the session cannot be resumed from this point."""
    update: dict[str, Any] = {"newHandle": handle, "resumable": bool(handle)}
    if consumed is not None:
        update["lastConsumedClientMessageIndex"] = str(consumed)  # int64 is a string in protobuf's JSON
    return {"sessionResumptionUpdate": update}


def usage(prompt: Mapping[str, int], response: Mapping[str, int]) -> dict[str, Any]:
    """usageMetadata from tokens by modality ("TEXT", "AUDIO")."""
    prompt_total, response_total = sum(prompt.values()), sum(response.values())
    return {
        "promptTokenCount": prompt_total,
        "responseTokenCount": response_total,
        "totalTokenCount": prompt_total + response_total,
        "promptTokensDetails": [{"modality": kind, "tokenCount": count} for kind, count in prompt.items() if count],
        "responseTokensDetails": [{"modality": kind, "tokenCount": count} for kind, count in response.items() if count],
    }
