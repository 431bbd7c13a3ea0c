"""What a Realtime client may send: fields of events, sessions, items and responses (openai 3.57.0, types/realtime)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voicekit.simulator.wire.checks import (
    IDENTIFIER,
    Check,
    Refused,
    anything,
    array,
    boolean,
    by_type,
    decimal,
    identifier,
    integer,
    mapping,
    maybe,
    one_of,
    string,
    table,
    text,
    variant,
)


def _modalities(value: Any, path: str) -> None:
    array(one_of("text", "audio"))(value, path)
    if len(value) != 1:
        shown = ", ".join(f"'{each}'" for each in value)
        message = f"Invalid modalities: [{shown}]. Supported combinations are: ['text'] and ['audio']."
        raise Refused("invalid_value", message, path)


FORMAT = variant(
    "type",
    {
        "audio/pcm": table({"type!": anything, "rate": integer(24_000, 24_000)}),
        "audio/pcmu": table({"type!": anything}),
        "audio/pcma": table({"type!": anything}),
    },
)
VOICE = by_type("a string or an object", {str: string, dict: table({"id!": string})})
TURN_FLAGS = {"type!": anything, "create_response": boolean, "interrupt_response": boolean}
TURN_DETECTION = variant(
    "type",
    {
        "server_vad": table(
            TURN_FLAGS
            | {
                "threshold": decimal(0, 1),
                "prefix_padding_ms": integer(0),
                "silence_duration_ms": integer(0),
                # 5 to 30 s [inferred; the SDK gives no bounds]
                "idle_timeout_ms": maybe(integer(5_000, 30_000)),
            }
        ),
        "semantic_vad": table(TURN_FLAGS | {"eagerness": one_of("low", "medium", "high", "auto")}),
    },
)
TRANSCRIPTION = table(
    {
        "model": string,
        "language": maybe(string),
        "languages": maybe(array(string)),
        "keywords": maybe(array(string)),
        "prompt": maybe(string),
        "delay": maybe(one_of("minimal", "low", "medium", "high", "xhigh")),
    }
)
NOISE_REDUCTION = table({"type": one_of("near_field", "far_field"), "strength": decimal(0, 1)})
MAX_TOKENS = by_type("an integer or 'inf'", {int: integer(1, 4096), str: one_of("inf")})
REASONING = table({"effort": one_of("minimal", "low", "medium", "high", "xhigh")})
PROMPT = table({"id!": string, "version": maybe(string), "variables": maybe(mapping(anything, 1000))})
TOOL_NAME = text(IDENTIFIER, 64)
DATA_URI = text(r"data:image/(png|jpe?g);base64,[A-Za-z0-9+/=]+")
_TOOL_FILTER = table({"tool_names": array(string), "read_only": boolean})
TOOL = variant(
    "type",
    {
        "function": table(
            {"type!": anything, "name!": TOOL_NAME, "description": string, "parameters": mapping(anything, 10_000)}
        ),
        "mcp": table(
            {
                "type!": anything,
                "server_label!": string,
                "server_url": string,
                "connector_id": string,
                "tunnel_id": string,
                "authorization": string,
                "headers": maybe(mapping(string, 1000)),
                "allowed_tools": maybe(by_type("an array or an object", {list: array(string), dict: _TOOL_FILTER})),
                "allowed_callers": maybe(array(one_of("direct", "programmatic"))),
                "require_approval": maybe(
                    by_type(
                        "a string or an object",
                        {
                            str: one_of("always", "never"),
                            dict: table({"always": _TOOL_FILTER, "never": _TOOL_FILTER}),
                        },
                    )
                ),
                "server_description": string,
                "defer_loading": boolean,
            }
        ),
    },
)
TOOL_CHOICE = by_type(
    "a string or an object",
    {
        str: one_of("none", "auto", "required"),
        dict: variant(
            "type",
            {
                "function": table({"type!": anything, "name!": string}),
                "mcp": table({"type!": anything, "server_label!": string, "name": maybe(string)}),
            },
        ),
    },
)
TRACING = by_type(
    "a string or an object",
    {
        str: one_of("auto"),
        dict: table({"workflow_name": string, "group_id": string, "metadata": mapping(anything, 1000)}),
    },
)
TRUNCATION = by_type(
    "a string or an object",
    {
        str: one_of("auto", "disabled"),
        dict: variant(
            "type",
            {
                "retention_ratio": table(
                    {
                        "type!": anything,
                        "retention_ratio!": decimal(0, 1),
                        "token_limits": table({"post_instructions": integer(0)}),
                    }
                )
            },
        ),
    },
)

# What a session and a single response have in common
_MODEL_FIELDS: dict[str, Check] = {
    "instructions": string,
    "max_output_tokens": MAX_TOKENS,
    "output_modalities": _modalities,
    "parallel_tool_calls": boolean,
    "prompt": maybe(PROMPT),
    "reasoning": maybe(REASONING),
    "tool_choice": TOOL_CHOICE,
    "tools": array(TOOL),
}
SESSION = table(
    _MODEL_FIELDS
    | {
        "type!": one_of("realtime"),
        "model": string,
        "audio": table(
            {
                "input": table(
                    {
                        "format": FORMAT,
                        "noise_reduction": maybe(NOISE_REDUCTION),
                        "transcription": maybe(TRANSCRIPTION),
                        "turn_detection": maybe(TURN_DETECTION),
                    }
                ),
                "output": table({"format": FORMAT, "speed": decimal(0.25, 1.5), "voice": VOICE}),
            }
        ),
        "include": maybe(array(one_of("item.input_audio_transcription.logprobs"))),
        "tracing": maybe(TRACING),
        "truncation": TRUNCATION,
    }
)


_ITEM_FIELDS: dict[str, Check] = {
    "type!": anything,
    "id": identifier,
    "object": one_of("realtime.item"),
    "status": one_of("completed", "incomplete", "in_progress"),
}


def _message(**parts: dict[str, Check]) -> Check:
    cases = {name: table({"type!": anything} | fields) for name, fields in parts.items()}
    return table(_ITEM_FIELDS | {"role!": anything, "content!": array(variant("type", cases))})


ITEM_TYPES: dict[str, Check] = {
    "message": variant(
        "role",
        {
            "user": _message(
                input_text={"text!": string},
                input_audio={"audio!": string, "transcript": maybe(string)},
                input_image={"image_url!": DATA_URI, "detail": one_of("auto", "low", "high")},
            ),
            # Assistant speech cannot be seeded: the service asks for the missing text (agents-js#963)
            "assistant": _message(output_text={"text!": string}, output_audio={"text!": string}),
            "system": _message(input_text={"text!": string}),
        },
    ),
    "function_call": table(_ITEM_FIELDS | {"name!": string, "arguments!": string, "call_id": identifier}),
    "function_call_output": table(_ITEM_FIELDS | {"call_id!": identifier, "output!": string}),
    "mcp_approval_response": table(
        {
            "type!": anything,
            "id": identifier,
            "approval_request_id!": string,
            "approve!": boolean,
            "reason": maybe(string),
        }
    ),
}
ITEM = variant("type", ITEM_TYPES)
INPUT_ITEM = variant("type", ITEM_TYPES | {"item_reference": table({"type!": anything, "id!": string})})
RESPONSE = table(
    _MODEL_FIELDS
    | {
        "audio": table({"output": table({"format": FORMAT, "voice": VOICE})}),
        "conversation": one_of("auto", "none"),
        "input": array(INPUT_ITEM),
        "metadata": maybe(mapping(text(longest=512), 16)),
    }
)


def _event(fields: Mapping[str, Check]) -> Check:
    return table({"type!": anything, "event_id": text(longest=512), **fields})


CLIENT_EVENTS: dict[str, Check] = {
    "session.update": _event({"session!": SESSION}),
    "input_audio_buffer.append": _event({"audio!": string}),
    "input_audio_buffer.commit": _event({}),
    "input_audio_buffer.clear": _event({}),
    "conversation.item.create": _event({"item!": ITEM, "previous_item_id": maybe(string)}),
    "conversation.item.retrieve": _event({"item_id!": string}),
    "conversation.item.delete": _event({"item_id!": string}),
    "conversation.item.truncate": _event(
        {"item_id!": string, "content_index!": integer(0), "audio_end_ms!": integer(0)}
    ),
    "response.create": _event({"response": RESPONSE}),
    "response.cancel": _event({"response_id": string}),
    "output_audio_buffer.clear": _event({}),
}
_known_type = one_of(*CLIENT_EVENTS)


def check_event(frame: Any) -> None:
    """Raise `Refused` unless `frame` is a client event with known fields of the right types and values."""
    if frame is None:
        raise Refused("invalid_json", "Invalid event: failed to parse JSON value.")
    if not isinstance(frame, dict) or "type" not in frame:
        raise Refused("invalid_event", "The 'type' field is missing.")
    _known_type(frame["type"], "type")
    CLIENT_EVENTS[frame["type"]](frame, "")
