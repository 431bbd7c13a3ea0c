"""What a Live client may send: fields of events and sessions (openai 3.57.0, types/live), and what is not simulated.

The configuration is strict: the service refuses unknown fields (Azure's reference, and a field report).
"""

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
from voicekit.simulator.wire.openai_response import text_tokens

VOICES = (
    "alloy", "ash", "ballad", "beacon", "bossa", "cedar", "cinder", "coral", "delta", "echo", "gleam", "marin",
    "meridian", "quartz", "ripple", "sage", "shida", "shimmer", "stone", "tempo", "verse", "vesper", "willow",
)  # fmt: skip
DEFAULT_VOICE = "marin"
IMMUTABLE = ("model", "instructions", "input", "audio", "store", "client", "safety_identifier")
MAX_INSTRUCTIONS, MAX_INPUT, MAX_APPEND = 16_384, 8_192, 500  # tokens, about four characters each

# Events of the API that this service does not play, each with the reason. The first are a client's, the others its own.
NOT_SIMULATED_COMMANDS = {
    "session.output_audio.fixture.play": "an application's own recording, which is no model's speech",
    "decision.create": "Decisions delegation is typed in the SDK but described by no guide",
    "decision.item.create": "Decisions delegation is typed in the SDK but described by no guide",
    "decision.item.delete": "Decisions delegation is typed in the SDK but described by no guide",
    "transport.dtmf.send": "telephone calls only (SIP)",
}
NOT_SIMULATED_EVENTS = {
    "session.output_audio.fixture.playing": "an application's own recording, which is no model's speech",
    "session.output_audio.fixture.played": "an application's own recording, which is no model's speech",
    "decision.event": "Decisions delegation is typed in the SDK but described by no guide",
    "decision.item.created": "Decisions delegation is typed in the SDK but described by no guide",
    "decision.item.deleted": "Decisions delegation is typed in the SDK but described by no guide",
    "info": "notices; the one that is documented is about a WebRTC data channel",
    "session.paused": "WebRTC sessions only",
    "session.resumed": "WebRTC sessions only",
    "transport.dtmf.received": "telephone calls only (SIP)",
    "transport.dtmf.send": "telephone calls only (SIP), and kept for old servers",
    "transport.dtmf.sent": "telephone calls only (SIP)",
    "transport.ringing": "telephone calls only (SIP)",
    "transport.answered": "telephone calls only (SIP)",
    "transport.failed": "telephone calls only (SIP)",
}


def tokens(most: int) -> Check:
    def check(value: Any, path: str) -> None:
        string(value, path)
        if text_tokens(value) > most:
            message = f"Invalid '{path}': too long. Expected at most {most} tokens."
            raise Refused("string_above_max_length", message, path)

    return check


def _never(code: str, why: str) -> Check:
    """A field the API has but not here; `why` follows its quoted path."""

    def check(_value: Any, path: str) -> None:
        raise Refused(code, f"'{path}' {why}", path)

    return check


def _pcm_rate(value: Any, path: str) -> None:
    integer(1)(value, path)
    if value not in (16_000, 24_000):
        message = f"Invalid value: {value}. Supported values are: 16000 and 24000."
        raise Refused("invalid_value", message, path)


G711 = table({"type!": anything, "rate!": integer(8_000, 8_000)})
FORMAT = variant(
    "type",
    {"audio/pcm": table({"type!": anything, "rate!": _pcm_rate}), "audio/pcmu": G711, "audio/pcma": G711},
)
VOICE = by_type("a string or an object", {str: one_of(*VOICES), dict: table({"id!": string})})
NAMED = table({"type!": anything, "name!": string})
OPEN = mapping(anything, 10_000)  # a tool that runs at the vendor's: taken as it is, never used here
HOSTED = (
    "web_search", "file_search", "code_interpreter", "shell", "image_generation", "mcp", "custom", "namespace",
    "tool_search", "programmatic_tool_calling", "computer", "apply_patch",
)  # fmt: skip
FUNCTION = table(
    {
        "type!": anything,
        "name!": text(IDENTIFIER, 64),
        "description": maybe(string),
        "parameters": maybe(OPEN),
        "strict": maybe(boolean),
    }
)
TOOL = variant("type", {"function": FUNCTION} | dict.fromkeys(HOSTED, OPEN))
TOOL_CHOICE = by_type(
    "a string or an object",
    {
        str: one_of("none", "auto", "required"),
        dict: variant(
            "type",
            {"function": NAMED, "custom": NAMED, "mcp": OPEN, "allowed_tools": OPEN}
            | dict.fromkeys((*HOSTED, "web_search_preview"), OPEN),
        ),
    },
)
_RESPONSES: dict[str, Check] = {
    "model": string,
    "instructions": maybe(string),
    "max_output_tokens": maybe(integer(16)),
    "parallel_tool_calls": maybe(boolean),
    "reasoning": maybe(
        table(
            {
                "effort": maybe(one_of("none", "minimal", "low", "medium", "high", "xhigh")),
                "summary": maybe(one_of("concise", "detailed", "auto")),
            }
        )
    ),
    "service_tier": maybe(one_of("auto", "default", "fast_tier_temp_pilot", "flex", "priority", "ultrafast")),
    "text": maybe(table({"verbosity": maybe(one_of("low", "medium", "high"))})),
    "tool_choice": TOOL_CHOICE,
    "tools": array(TOOL),
}
RESPONSES_UPDATE = table(_RESPONSES)
RESPONSES = table({"model!": string} | {name: check for name, check in _RESPONSES.items() if name != "model"})
_DELEGATION: dict[str, Check] = {"type!": anything, "acknowledgement_delay_ms": integer(0)}
_DECISIONS = _never("invalid_value", f"is not simulated: {NOT_SIMULATED_COMMANDS['decision.create']}.")


def _delegation(responses: dict[str, Check]) -> Check:
    return maybe(
        variant(
            "type",
            {"client": table(_DELEGATION), "responses": table(_DELEGATION | responses), "decisions": _DECISIONS},
        )
    )


def _triggers(value: Any, path: str) -> None:
    array(_DECISIONS)(value, path)


def _message(*parts: str) -> Check:
    part = table({"text!": string, "type": one_of(*parts)})

    def one_part(value: Any, path: str) -> None:
        array(part, 1)(value, path)
        if not value:
            raise Refused("invalid_value", f"Invalid '{path}': expected exactly one text part.", path)

    return table(
        {
            "role!": anything,
            "content!": one_part,
            "id": maybe(string),
            "status": maybe(one_of("incomplete", "completed")),
            "type": one_of("message"),
        }
    )


INITIAL_ITEM = variant(
    "role",
    {"developer": _message("input_text"), "user": _message("input_text"), "assistant": _message("text", "output_text")},
)
SESSION = table(
    {
        "model!": string,
        "audio": table({"format": FORMAT, "output": table({"voice": VOICE})}),
        "client": _never("invalid_value", "is for WebRTC sessions only."),  # [inferred] code
        "delegation": _delegation({"responses!": RESPONSES}),
        "input": array(INITIAL_ITEM, 128),
        "instructions": maybe(tokens(MAX_INSTRUCTIONS)),
        "safety_identifier": maybe(string),
        "store": boolean,
        "triggers": _triggers,
    }
)
SESSION_UPDATE = table({"delegation": _delegation({"responses": RESPONSES_UPDATE}), "triggers": _triggers})

_TEXT = table({"type!": one_of("input_text"), "text!": string})
# Of the Responses API's input items, the two that the Live guides use.
RESPONSE_ITEM = variant(
    "type",
    {
        "message": table(
            {
                "type!": anything,
                "role!": one_of("user", "system", "developer"),
                "content!": by_type("a string or an array", {str: string, list: array(_TEXT)}),
                "status": one_of("in_progress", "completed", "incomplete"),
            }
        ),
        "function_call_output": table(
            {
                "type!": anything,
                "call_id!": identifier,
                "output!": by_type("a string or an array", {str: string, list: array(_TEXT)}),
                "id": maybe(string),
                "status": maybe(one_of("in_progress", "completed", "incomplete")),
            }
        ),
    },
)


def _event(fields: Mapping[str, Check]) -> Check:
    return table({"type!": anything, "event_id": maybe(text(longest=512)), **fields})


_APPEND = _event({"content!": tokens(MAX_APPEND), "delegation_id!": maybe(string)})
CLIENT_EVENTS: dict[str, Check] = {
    "session.start": _event({"session!": SESSION}),
    "session.update": _event({"session!": SESSION_UPDATE}),
    "session.close": _event({}),
    "session.input_audio.append": _event({"audio!": string}),
    "session.input_audio.mute": _event({}),
    "session.input_audio.unmute": _event({}),
    "session.instructions.append": _APPEND,
    "session.thinking.append": _APPEND,
    "session.commentary.append": _APPEND,
    "response.item.create": _event({"item!": RESPONSE_ITEM}),
    "response.create": _event({}),
}
_known_type = one_of(*CLIENT_EVENTS)


def check_event(frame: Any) -> None:
    """Raise `Refused` unless `frame` is a client event with known fields of the right types and values."""
    if frame is None:
        raise Refused("invalid_json", "Invalid event: failed to parse JSON value.")
    if not isinstance(frame, dict) or "type" not in frame:
        raise Refused("missing_required_parameter", "Missing required parameter: 'type'.", "type")
    type_ = frame["type"]
    if isinstance(type_, str) and type_ in NOT_SIMULATED_COMMANDS:
        why = NOT_SIMULATED_COMMANDS[type_]
        raise Refused("not_simulated", f"The simulator does not play '{type_}': {why}.", "type")
    _known_type(type_, "type")
    if type_ == "session.update" and isinstance(frame.get("session"), dict):
        check_mutable(frame["session"])
    CLIENT_EVENTS[type_](frame, "")


def check_mutable(session: Mapping[str, Any]) -> None:
    """Raise `Refused` for a field that is fixed once the session has started."""
    for name in IMMUTABLE:
        if name in session:
            param = f"session.{name}"
            message = f"'{param}' cannot be changed after the session has started."
            raise Refused("immutable_field_update", message, param)
