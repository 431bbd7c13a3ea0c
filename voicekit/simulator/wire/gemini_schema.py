"""The messages a Gemini Live client may send, as a table, and the check of a frame against it.

Field names and types are those of the google-genai SDK (3.6.1, types.py); the error texts are the vendor's. A frame may
spell a name in camelCase or in snake_case, as in every protobuf service: the SDK itself mixes the two.
"""

from __future__ import annotations

import re
from typing import Any

import pybase64

# Kinds: a scalar, an enum of `ENUMS`, a message of this table, `struct` (any object) or `value` (any JSON).
# `*` marks a list, `<>` a map with names of the client's own.
_MESSAGES = {
    "ClientMessage": (
        "setup Setup, clientContent ClientContent, realtimeInput RealtimeInput, toolResponse ToolResponse, "
        "contextUpdate ContextUpdate"
    ),
    "Setup": (
        "model string, generationConfig GenerationConfig, systemInstruction Content, tools *Tool, "
        "sessionResumption SessionResumption, contextWindowCompression ContextWindowCompression, "
        "inputAudioTranscription AudioTranscription, outputAudioTranscription AudioTranscription, "
        "realtimeInputConfig RealtimeInputConfig, proactivity Proactivity, explicitVadSignal bool, "
        "historyConfig HistoryConfig, avatarConfig struct, safetySettings *struct, labels struct"
    ),
    "GenerationConfig": (
        "modelConfig struct, responseJsonSchema value, audioTimestamp bool, candidateCount int32, "
        "enableAffectiveDialog bool, frequencyPenalty float, logprobs int32, maxOutputTokens int32, "
        "mediaResolution string, presencePenalty float, responseLogprobs bool, responseMimeType string, "
        "responseModalities *Modality, responseSchema struct, routingConfig struct, seed int32, "
        "speechConfig SpeechConfig, stopSequences *string, temperature float, thinkingConfig ThinkingConfig, "
        "topK float, topP float, enableEnhancedCivicAnswers bool, responseFormat *struct, "
        "translationConfig struct, audioTranscriptionConfig AudioTranscription"
    ),
    "SpeechConfig": "voiceConfig VoiceConfig, languageCode string, multiSpeakerVoiceConfig struct",
    "VoiceConfig": "replicatedVoiceConfig struct, prebuiltVoiceConfig PrebuiltVoiceConfig, voice string",
    "PrebuiltVoiceConfig": "voiceName string",
    "ThinkingConfig": "includeThoughts bool, thinkingBudget int32, thinkingLevel ThinkingLevel",
    "Content": "role string, parts *Part",
    "Part": (
        "text string, inlineData Blob, thought bool, thoughtSignature bytes, fileData struct, functionCall struct, "
        "functionResponse struct, executableCode struct, codeExecutionResult struct, videoMetadata struct, "
        "mediaResolution struct, toolCall struct, toolResponse struct, partMetadata struct, audioTranscription struct, "
        "mediaProcessing value, speechMetadata struct, documentMetadata struct, spreadsheetMetadata struct, "
        "audioMetadata struct"
    ),
    "Blob": "data bytes, mimeType string, displayName string",
    "Tool": (
        "functionDeclarations *FunctionDeclaration, googleSearch struct, googleSearchRetrieval struct, "
        "codeExecution struct, urlContext struct, googleMaps struct, computerUse struct, fileSearch struct, "
        "mcpServers *struct, retrieval struct, enterpriseWebSearch struct, parallelAiSearch struct, exaAiSearch struct"
    ),
    "FunctionDeclaration": (
        "name string, description string, parameters Schema, parametersJsonSchema value, response Schema, "
        "responseJsonSchema value, behavior Behavior"
    ),
    "Schema": (
        "type Type, format string, title string, description string, nullable bool, default value, example value, "
        "enum *string, items Schema, minItems int32, maxItems int32, properties <>Schema, required *string, "
        "minProperties int32, maxProperties int32, minLength int32, maxLength int32, pattern string, minimum float, "
        "maximum float, anyOf *Schema, propertyOrdering *string, additionalProperties value, defs <>Schema, ref string"
    ),
    "SessionResumption": "handle string, transparent bool",
    "AudioTranscription": (
        "languageCodes *string, languageAuto struct, languageHints struct, customVocabulary *string, "
        "adaptationPhrases *string, wordTimestamp bool, diarization bool, mode string, sourceText string"
    ),
    "RealtimeInputConfig": (
        "automaticActivityDetection ActivityDetection, activityHandling ActivityHandling, turnCoverage TurnCoverage, "
        "interimTranscriptTimestampEnabled bool"
    ),
    "ActivityDetection": (
        "disabled bool, startOfSpeechSensitivity StartSensitivity, endOfSpeechSensitivity EndSensitivity, "
        "prefixPaddingMs int32, silenceDurationMs int32"
    ),
    "ContextWindowCompression": "triggerTokens int32, slidingWindow SlidingWindow",
    "SlidingWindow": "targetTokens int32",
    "Proactivity": "proactiveAudio bool, proactiveVideo bool",
    "HistoryConfig": "initialHistoryInClientContent bool",
    "ClientContent": "turns *Content, turnComplete bool",
    "RealtimeInput": (
        "mediaChunks *Blob, audio Blob, audioStreamEnd bool, video Blob, text string, activityStart Empty, "
        "activityEnd Empty"
    ),
    "Empty": "",
    "ToolResponse": "functionResponses *FunctionResponse",
    "FunctionResponse": (
        "id string, name string, response struct, willContinue bool, scheduling Scheduling, parts *struct"
    ),
    "ContextUpdate": "systemInstruction Content, tools ToolList",
    "ToolList": "tools *Tool",
}  # fmt: skip

ENUMS = {
    "Behavior": {"UNSPECIFIED", "BLOCKING", "NON_BLOCKING"},
    # "INTERRUPTED" is how some of the vendor's pages spell the third value (ai.google.dev). It is refused here:
    # the SDK's enum and the Cloud page agree on INTERRUPT, a protobuf enum takes no other spelling, and code that
    # sends INTERRUPT is right whichever page is.
    "Scheduling": {"SCHEDULING_UNSPECIFIED", "SILENT", "WHEN_IDLE", "INTERRUPT"},
    "Modality": {"MODALITY_UNSPECIFIED", "TEXT", "IMAGE", "AUDIO", "VIDEO"},
    "ThinkingLevel": {"THINKING_LEVEL_UNSPECIFIED", "MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH"},
    "StartSensitivity": {"START_SENSITIVITY_UNSPECIFIED", "START_SENSITIVITY_HIGH", "START_SENSITIVITY_LOW"},
    "EndSensitivity": {"END_SENSITIVITY_UNSPECIFIED", "END_SENSITIVITY_HIGH", "END_SENSITIVITY_LOW"},
    "ActivityHandling": {"ACTIVITY_HANDLING_UNSPECIFIED", "START_OF_ACTIVITY_INTERRUPTS", "NO_INTERRUPTION"},
    "TurnCoverage": {
        "TURN_COVERAGE_UNSPECIFIED", "TURN_INCLUDES_ONLY_ACTIVITY", "TURN_INCLUDES_ALL_INPUT",
        "TURN_INCLUDES_AUDIO_ACTIVITY_AND_ALL_VIDEO",
    },
    "Type": {"TYPE_UNSPECIFIED", "STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"},
}  # fmt: skip
ENUMS["Type"] |= {name.lower() for name in ENUMS["Type"]}  # the vendor's own REST examples write "object"

_SCALARS = {"string": "TYPE_STRING", "bool": "TYPE_BOOL", "int32": "TYPE_INT32", "float": "TYPE_FLOAT"}


class Refused(Exception):
    """The service closes the connection: a WebSocket close code and the vendor's reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)


def _fields(text: str) -> dict[str, tuple[str, str, str]]:
    """Both spellings of each field's name -> (camelCase, snake_case, kind)."""
    found = {}
    for each in filter(None, text.split(", ")):
        name, kind = each.split(" ")
        found[name] = found[snake(name)] = (name, snake(name), kind)
    return found


MESSAGES = {name: _fields(text) for name, text in _MESSAGES.items()}


def check(message: str, value: Any, path: str = "") -> dict[str, Any]:
    """Return `value` with known names in camelCase, bytes decoded and nulls left out.

    Raises `Refused` (1007) for a field the message does not have or a value of another type; `path` is where the
    message stands in the frame.
    """
    if not isinstance(value, dict):
        raise wrong_value(path, message, value)
    fields, clean = MESSAGES[message], {}
    for name, item in value.items():
        if name not in fields:
            place = f" at '{path}'" if path else ""
            raise Refused(1007, f'Invalid JSON payload received. Unknown name "{name}"{place}: Cannot find field.')
        if item is not None:  # in protobuf's JSON null is the same as absent
            camel, plain, kind = fields[name]
            clean[camel] = _field(kind, item, f"{path}.{plain}" if path else plain)
    return clean


def wrong_value(path: str, kind: str, value: Any) -> Refused:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Refused(1007, f"Invalid value at '{path}' ({_SCALARS.get(kind, kind)}), {shown[:40]}")


def _field(kind: str, value: Any, path: str) -> Any:
    if kind.startswith("*"):
        if not isinstance(value, list):
            raise wrong_value(path, "list", value)
        return [_field(kind[1:], item, f"{path}[{index}]") for index, item in enumerate(value)]
    if kind.startswith("<>"):
        if not isinstance(value, dict):
            raise wrong_value(path, "map", value)
        return {name: _field(kind[2:], item, f"{path}.{name}") for name, item in value.items()}
    if kind in MESSAGES:
        return check(kind, value, path)
    if kind == "bytes":
        return _bytes(value, path)
    if kind in ENUMS:
        fits = isinstance(value, str) and value in ENUMS[kind]
    elif kind == "string":
        fits = isinstance(value, str)
    elif kind == "bool":
        fits = isinstance(value, bool)
    elif kind == "int32":
        fits = isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31
    elif kind == "float":
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        fits = kind == "value" or isinstance(value, dict)
    if not fits:
        raise wrong_value(path, kind, value)
    return value


def _bytes(value: Any, path: str) -> bytes:
    """Base64 in either alphabet (the SDK sends the URL-safe one), padded."""
    if not isinstance(value, str):
        raise wrong_value(path, "TYPE_BYTES", value)
    try:
        return pybase64.b64decode(value.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        raise Refused(1007, f"Invalid value at '{path}' (TYPE_BYTES), Base64 decoding failed") from None
