"""The Gemini Live protocol (BidiGenerateContent) as a state machine without sockets, time or opinions.

`Wire.receive` turns a client frame into effects or raises `Refused`, the close the vendor answers with (the server's
frames are in gemini_frames.py). What a model accepts comes from its `Profile`. The frames are
those of google-genai 3.6.1, the rules those of the vendor's Live API pages (September 2026) and of field reports; where
a text was never published, the comment says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from voicekit.models import models, provider
from voicekit.simulator.profile import Profile
from voicekit.simulator.wire.gemini_schema import Refused, check, wrong_value

INPUT_RATE = 16_000
RATES = range(8_000, 48_001)
SILENCE_MS = 800  # ai.google.dev live-api/capabilities, 2026-09-19: "about 800"
PREFIX_MS = 300  # no published default
SHORT_SILENCE_MS = 1200  # END_SENSITIVITY_LOW without a duration of its own; no published figure
THRESHOLDS = {"START_SENSITIVITY_LOW": 0.7}  # of the voice-activity detector; no published figure
FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
INVALID = "Request contains an invalid argument."
UNSUPPORTED_OPERATION = "Operation is not implemented, or supported, or enabled."

When = Literal["when_idle", "interrupt", "silent"]


@dataclass(frozen=True)
class Tool:
    """A declared function. `parameters` is JSON Schema, whichever of the two fields it came in."""

    name: str
    description: str
    parameters: dict[str, Any]
    behavior: str  # effective: declared, or the model's default

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True)
class Setup:
    """What the first frame asked for."""

    model: str
    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    transcribe_input: bool = False
    transcribe_output: bool = False
    resumable: bool = False
    handle: str = ""
    transparent: bool = False
    automatic: bool = True  # the server detects the caller's activity
    silence_ms: int = SILENCE_MS
    prefix_ms: int = PREFIX_MS
    threshold: float = 0.5
    interrupts: bool = True  # the caller's activity cuts the model off
    history_first: bool = False


@dataclass(frozen=True)
class Audio:
    pcm: bytes
    rate: int


@dataclass(frozen=True)
class Text:
    """Typed text in the realtime stream; counts as activity of the caller."""

    text: str


@dataclass(frozen=True)
class Activity:
    kind: Literal["start", "end", "stream_end"]


@dataclass(frozen=True)
class Content:
    """`turns` as (role, text), oldest first; role is "user" or "model"."""

    turns: tuple[tuple[str, str], ...]
    complete: bool


@dataclass(frozen=True)
class Result:
    """An answer to an open call. `when` is None for a BLOCKING call, whose scheduling is ignored."""

    call_id: str
    response: dict[str, Any]
    when: When | None
    final: bool


@dataclass(frozen=True)
class ContextUpdate:
    """What changed; None: unchanged."""

    instructions: str | None
    tools: tuple[Tool, ...] | None


Effect = Setup | Audio | Text | Activity | Content | Result | ContextUpdate


class Wire:
    """One connection's protocol state.

    `load_profile(model)` returns the model's behaviours, ValueError for a model that has none.
    """

    def __init__(self, load_profile: Callable[[str], Profile]) -> None:
        self._load_profile = load_profile
        self.profile = Profile(model="", provider="gemini-live")
        self.setup: Setup | None = None
        self.tools: dict[str, Tool] = {}
        self.open_calls: dict[str, str] = {}  # call id -> effective behavior
        self._settled: set[str] = set()  # answered or cancelled
        self.calls_made = 0
        self._breaks_on_next = False
        self._rate = 0

    @property
    def blocked_by(self) -> list[str]:
        """The open BLOCKING calls: while there is one the model begins nothing."""
        return [call_id for call_id, behavior in self.open_calls.items() if behavior == "blocking"]

    # Client frames

    def receive(self, frame: Any) -> list[Effect]:
        """The effects of a client frame, in order. `None` stands for text that is not JSON. Raises `Refused`."""
        if not isinstance(frame, dict):
            raise Refused(1007, "Invalid JSON payload received. Unexpected token.")
        try:
            message = check("ClientMessage", frame)
        except RecursionError:
            raise Refused(1007, "Invalid JSON payload received. Message too deep.") from None
        if len(message) > 1:
            raise Refused(1007, f"Invalid value (oneof), oneof field 'message_type' is already set: {list(message)}")
        if not message:
            raise Refused(1007, INVALID)
        kind, body = next(iter(message.items()))
        if (kind == "setup") != (self.setup is None):
            raise Refused(1007, "setup must be the first message and only the first")
        if self._breaks_on_next:
            raise Refused(1007, INVALID)  # [FIELD pydantic-ai]: the session opens, the first send closes it
        if kind == "setup":
            self.setup = self._read_setup(body)
            return [self.setup]
        if kind == "realtimeInput":
            return self._read_realtime(body)
        if kind == "clientContent":
            turns = tuple((turn.get("role", "user"), _text(turn)) for turn in body.get("turns", []))
            return [Content(turns, body.get("turnComplete", False))]
        if kind == "toolResponse":
            return self._read_results(body.get("functionResponses", []))
        return [self._read_update(body)]

    def _read_setup(self, body: dict[str, Any]) -> Setup:
        model = body.get("model", "").rsplit("/", 1)[-1]
        known = [name for name in models() if provider(name) == "gemini-live"]
        if model not in known:
            raise Refused(1008, f"not found; try {_shortened(known)}")
        try:
            self.profile = self._load_profile(model)
        except ValueError as error:  # a claim was chosen that nobody makes of this model
            raise Refused(1011, str(error)) from None
        config = body.get("generationConfig", {})
        self._gate_generation(config)
        self._gate_proactivity(body.get("proactivity", {}))
        self.tools = self._read_tools(body.get("tools", []))
        realtime = body.get("realtimeInputConfig", {})
        detection = realtime.get("automaticActivityDetection", {})
        end_low = detection.get("endOfSpeechSensitivity") == "END_SENSITIVITY_LOW"
        resumption = body.get("sessionResumption")
        for name in ("silenceDurationMs", "prefixPaddingMs"):
            if not 0 <= detection.get(name, 0) <= 60_000:
                raise Refused(1007, INVALID)
        return Setup(
            model=model,
            instructions=_text(body.get("systemInstruction", {})),
            tools=tuple(self.tools.values()),
            transcribe_input="inputAudioTranscription" in body,
            transcribe_output="outputAudioTranscription" in body,
            resumable=resumption is not None,
            handle=(resumption or {}).get("handle", ""),
            transparent=(resumption or {}).get("transparent", False),
            automatic=not detection.get("disabled", False),
            silence_ms=detection.get("silenceDurationMs") or (SHORT_SILENCE_MS if end_low else SILENCE_MS),
            prefix_ms=detection.get("prefixPaddingMs", PREFIX_MS),
            threshold=THRESHOLDS.get(detection.get("startOfSpeechSensitivity", ""), 0.5),
            interrupts=realtime.get("activityHandling") != "NO_INTERRUPTION",
            history_first=body.get("historyConfig", {}).get("initialHistoryInClientContent", False),
        )

    def _gate_generation(self, config: Mapping[str, Any]) -> None:
        """What the model accepts in generationConfig (see data/models.csv)."""
        if config.get("responseModalities", ["AUDIO"]) != ["AUDIO"]:
            raise Refused(1007, "Cannot extract voices from a non-audio request.")
        thinking = config.get("thinkingConfig")
        level = (thinking or {}).get("thinkingLevel", "THINKING_LEVEL_UNSPECIFIED")
        has_level = level != "THINKING_LEVEL_UNSPECIFIED"
        kind = self.profile.thinking
        if (kind == "none" and thinking is not None) or (kind == "budget" and has_level):
            raise Refused(1007, "Thinking level is not supported for this model.")
        if kind == "level_required" and not has_level:
            raise Refused(1007, "Thinking level must be specified for this model")
        # The two texts below are modelled on the others; the vendor's were not found.
        if has_level and level not in {"LOW", "MEDIUM", "HIGH"} | ({"MINIMAL"} if kind == "level" else set()):
            raise Refused(1007, f"Thinking level {level} is not supported for this model.")
        if kind != "budget" and "thinkingBudget" in (thinking or {}):
            raise Refused(1007, "Thinking budget is not supported for this model.")
        if config.get("enableAffectiveDialog", False):
            if self.profile.affective_dialog == "unsupported":
                raise Refused(1007, INVALID)
            self._breaks_on_next = self.profile.affective_dialog == "closes"

    def _gate_proactivity(self, proactivity: Mapping[str, Any]) -> None:
        wanted = proactivity.get("proactiveAudio")
        if wanted and self.profile.proactive_audio == "unsupported":
            raise Refused(1007, INVALID)
        if wanted is False and self.profile.proactive_audio == "always":  # the vendor's text was not found
            raise Refused(1007, "Proactive audio cannot be disabled for this model.")

    def _read_tools(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Tool]:
        tools: dict[str, Tool] = {}
        for entry in entries:
            for kind in entry:
                if kind not in ("functionDeclarations", "googleSearch", "googleSearchRetrieval"):
                    raise Refused(1007, f"Tool {kind} is not supported for this model.")  # ai.google.dev
            for declaration in entry.get("functionDeclarations", []):
                tool = self._read_declaration(declaration)
                if tool.name in tools:
                    raise Refused(1007, f"Duplicate function declaration found: {tool.name}")
                tools[tool.name] = tool
        return tools

    def _read_declaration(self, declaration: Mapping[str, Any]) -> Tool:
        name = declaration.get("name", "")
        if not FUNCTION_NAME.fullmatch(name):
            raise Refused(1007, f"Invalid function name {name[:30]!r}. Must start with a letter or an underscore.")
        if "parameters" in declaration and "parametersJsonSchema" in declaration:
            raise Refused(1007, f"{name}: parameters and parametersJsonSchema are mutually exclusive.")
        schema = declaration.get("parametersJsonSchema", declaration.get("parameters"))
        declared = declaration.get("behavior", "UNSPECIFIED").lower()
        if declared != "unspecified" and declared not in self.profile.behaviors:
            # That it is an error is the vendor's word (models/gemini-3.8-live-extended-thinking) or follows from "not
            # supported" (live-api/tools, 3.1); the text of the error was not found.
            raise Refused(1007, f"Function behavior {declared.upper()} is not supported for this model.")
        behavior = self.profile.default_behavior if declared == "unspecified" else declared
        parameters = {} if schema is None else _json_schema(schema)
        if not _is_object_schema(parameters):
            raise Refused(1007, f"{name}: parameters must be a schema of an object")
        return Tool(name, declaration.get("description", ""), parameters, behavior)

    def _read_realtime(self, body: dict[str, Any]) -> list[Effect]:
        effects: list[Effect] = []
        for name, value in body.items():
            if name == "audio":
                effects.append(self._read_audio(value))
            elif name == "mediaChunks":
                effects += [self._read_audio(blob) for blob in value if not _is_picture(blob)]
            elif name == "text":
                effects.append(Text(value))
            elif name in ("activityStart", "activityEnd"):
                effects += self._read_activity("start" if name == "activityStart" else "end")
            elif name == "audioStreamEnd" and value:
                effects.append(Activity("stream_end"))
            # video is accepted and not looked at
        return effects

    def _read_audio(self, blob: Mapping[str, Any]) -> Audio:
        kind, _, parameters = blob.get("mimeType", "audio/pcm").partition(";")
        match = re.fullmatch(r"\s*rate=(\d{1,6})\s*", parameters) if parameters else None
        rate = int(match[1]) if match else INPUT_RATE
        if kind.strip() != "audio/pcm" or (parameters and not match) or rate not in RATES:
            raise wrong_value("realtime_input.audio.mime_type", "audio/pcm;rate=16000", blob.get("mimeType", ""))
        if self._rate and rate != self._rate:  # undocumented; one stream has one rate
            raise Refused(1007, f"Sample rate changed from {self._rate} to {rate}, which is not supported.")
        self._rate = rate
        return Audio(blob.get("data", b""), rate)

    def _read_activity(self, kind: Literal["start", "end"]) -> list[Effect]:
        assert self.setup is not None
        if not self.setup.automatic:
            return [Activity(kind)]
        if self.profile.interaction_status:
            return []  # extended thinking ignores it silently [FIELD 2026-09-19]
        raise Refused(1007, "Explicit activity control is not supported when automatic activity detection is enabled.")

    def _read_results(self, responses: Sequence[Mapping[str, Any]]) -> list[Effect]:
        if not responses:
            raise Refused(1007, INVALID)
        return [effect for response in responses for effect in self._read_result(response)]

    def _read_result(self, response: Mapping[str, Any]) -> list[Effect]:
        call_id = response.get("id", "")
        scheduling = response.get("scheduling", "SCHEDULING_UNSPECIFIED")
        if not call_id:
            raise Refused(1007, "function_responses.id is required: answer a call with the id it came with")
        if scheduling != "SCHEDULING_UNSPECIFIED" and not self.profile.scheduling:
            raise Refused(1007, "Function response scheduling is not supported for this model.")
        if call_id in self._settled:
            # A second answer does not end a session (mastra-ai/mastra#22969); nothing is known of answers to cancelled
            # calls, but one may be under way when the cancellation is sent.
            return []
        if call_id not in self.open_calls:
            # An id that was never issued is a mistake of the client. 1008 with this text is what has been reported
            # after tool responses (google-gemini/deprecated-generative-ai-js#487); the cause was not confirmed.
            raise Refused(1008, "Requested entity was not found.")
        blocking = self.open_calls[call_id] == "blocking"
        final = blocking or not response.get("willContinue", False)  # willContinue is ignored on BLOCKING calls
        if final:
            self.settle(call_id)
        # Without a value: WHEN_IDLE, as the SDK's docstring says. The Cloud page speaks of "legacy handling" without
        # describing it. On a BLOCKING call scheduling is ignored (livekit/agents#6600).
        spelled: dict[str, When] = {"INTERRUPT": "interrupt", "SILENT": "silent"}
        when = None if blocking else spelled.get(scheduling, "when_idle")
        return [Result(call_id, response.get("response", {}), when, final)]

    def _read_update(self, body: dict[str, Any]) -> ContextUpdate:
        tools = None
        if "tools" in body:
            self.tools = self._read_tools(body["tools"].get("tools", []))
            tools = tuple(self.tools.values())
        return ContextUpdate(_text(body["systemInstruction"]) if "systemInstruction" in body else None, tools)

    # Calls

    def open_call(self, name: str) -> str:
        """Register a proposed call of `name` and return its id."""
        self.calls_made += 1
        call_id = f"call_{self.calls_made:04d}"
        tool = self.tools.get(name)
        self.open_calls[call_id] = tool.behavior if tool else self.profile.default_behavior
        return call_id

    def settle(self, call_id: str) -> None:
        """The call is answered or cancelled: further answers to it are ignored."""
        self.open_calls.pop(call_id, None)
        self._settled.add(call_id)


# Helpers


def _text(content_: Mapping[str, Any]) -> str:
    """The text parts of a Content, thoughts left out; other parts are accepted and not looked at."""
    parts = content_.get("parts", [])
    return "\n".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))


def _is_picture(blob: Mapping[str, Any]) -> bool:
    return str(blob.get("mimeType", "")).startswith(("image/", "video/"))


def _json_schema(schema: Any) -> Any:
    """The vendor's schema dialect as JSON Schema: type names in lower case."""
    if isinstance(schema, list):
        return [_json_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _json_schema(value)
        for key, value in schema.items()
    }


def _is_object_schema(schema: Any) -> bool:
    """Whether what a tool call is built from has the right shape; the rest of a JSON Schema is the client's affair."""
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return (
        isinstance(properties, dict)
        and all(isinstance(each, dict) for each in properties.values())
        and isinstance(required, list)
        and all(isinstance(each, str) for each in required)
    )


def _shortened(names: Sequence[str]) -> str:
    """Several names within the 123 bytes of a close reason: their common start once."""
    start = "gemini-" if all(name.startswith("gemini-") for name in names) else ""
    return f"{start}{{{','.join(sorted(name[len(start) :] for name in names))}}}"
