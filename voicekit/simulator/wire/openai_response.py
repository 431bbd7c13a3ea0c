"""Conversation items and the life of one response: which events a Realtime service sends, in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pybase64

Emit = Callable[..., None]  # emit(type, **fields): adds the event_id and sends
Status = Literal["completed", "cancelled", "incomplete", "failed"]

# Tokens per second of sound that a caller's and the agent's audio count for (vendor's guide on Realtime costs)
INPUT_TOKENS_PER_SECOND = 10
OUTPUT_TOKENS_PER_SECOND = 20


def bytes_per_ms(audio_format: dict[str, Any]) -> int:
    """48 for PCM16 at 24 kHz, 8 for G.711."""
    return 48 if audio_format["type"] == "audio/pcm" else 8


def text_tokens(text: str) -> int:
    """About four characters make a token."""
    return -(-len(text) // 4)


def token_counts(read: tuple[int, int], cached: tuple[int, int], made: tuple[int, int]) -> dict[str, Any]:
    """The `usage` of a response from (text, audio) tokens read, of those cached, and made."""
    return {
        "total_tokens": sum(read) + sum(made),
        "input_tokens": sum(read),
        "output_tokens": sum(made),
        "input_token_details": {
            "text_tokens": read[0],
            "audio_tokens": read[1],
            "image_tokens": 0,
            "cached_tokens": sum(cached),
            "cached_tokens_details": {"text_tokens": cached[0], "audio_tokens": cached[1], "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": made[0], "audio_tokens": made[1]},
    }


@dataclass
class Item:
    """A conversation item: `shown` is what clients see of it, the rest is the server's own knowledge.

    pieces     agent speech as generated: (bytes of audio up to and with the piece, its text)
    sounded    whether audio has been sent: only then can it be truncated, to nothing at the least
    seconds    caller speech: its length
    """

    shown: dict[str, Any]
    per_ms: int = 48
    audio: bytearray = field(default_factory=bytearray)
    pieces: list[tuple[int, str]] = field(default_factory=list)
    sounded: bool = False
    seconds: float = 0.0

    @property
    def id(self) -> str:
        return str(self.shown["id"])

    @property
    def audio_ms(self) -> int:
        return len(self.audio) // self.per_ms

    def view(self) -> dict[str, Any]:
        """A copy to be sent; audio bytes are never in it."""
        shown = dict(self.shown)
        if "content" in shown:
            shown["content"] = [{key: part[key] for key in part if key != "audio"} for part in shown["content"]]
        return shown

    def heard(self, audio_end_ms: int) -> str:
        """The text whose sound lies before `audio_end_ms`."""
        return "".join(text for end, text in self.pieces if end <= audio_end_ms * self.per_ms)

    def truncate(self, audio_end_ms: int) -> None:
        """Forget sound and transcript after `audio_end_ms`; no part of the transcript is shown any more."""
        end = audio_end_ms * self.per_ms
        del self.audio[end:]
        self.pieces = [piece for piece in self.pieces if piece[0] <= end]
        self.shown["content"][0]["transcript"] = None

    def tokens(self) -> tuple[int, int]:
        """(text, audio) tokens this item is worth as context."""
        shown = self.shown
        words = [str(shown.get(key) or "") for key in ("arguments", "output", "name")]
        words += [str(part.get("text") or "") for part in shown.get("content", ())]
        spoken = self.audio_ms / 1000 * OUTPUT_TOKENS_PER_SECOND + self.seconds * INPUT_TOKENS_PER_SECOND
        return sum(map(text_tokens, words)), round(spoken)


class Response:
    """One response from response.created to response.done; the caller decides what is said and when.

    Only one item is open at a time; starting the next one or finishing closes it. `shared`: the default conversation
    the items go to, None for an out-of-band response ("conversation": "none").
    """

    def __init__(
        self,
        id_: str,
        options: dict[str, Any],
        session: dict[str, Any],
        emit: Emit,
        new_id: Callable[[str], str],
        shared: Callable[[Item], str | None] | None,
        conversation_id: str | None,
    ) -> None:
        self.id = id_
        self.options = options
        self.items: list[Item] = []
        self.status: str = "in_progress"
        self.usage: dict[str, Any] | None = None
        self.audio_seconds = 0.0
        self.output_tokens = [0, 0]  # text, audio
        output = session["audio"]["output"] | (options.get("audio") or {}).get("output", {})
        self.audio_format: dict[str, Any] = output["format"]
        self.voice = output["voice"]
        self.modality: str = (options.get("output_modalities") or session["output_modalities"])[0]
        self.max_output_tokens: int | str = options.get("max_output_tokens", session["max_output_tokens"])
        self._emit, self._new_id, self._shared = emit, new_id, shared
        self._conversation_id = conversation_id if shared else None
        self._open: Item | None = None
        self._details: dict[str, Any] | None = None

    @property
    def is_shared(self) -> bool:
        """Whether its items go to the default conversation."""
        return self._shared is not None

    @property
    def is_over(self) -> bool:
        return self.status != "in_progress"

    @property
    def is_used_up(self) -> bool:
        """Whether max_output_tokens is reached."""
        return not isinstance(self.max_output_tokens, str) and sum(self.output_tokens) >= self.max_output_tokens

    def view(self) -> dict[str, Any]:
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": self.status,
            "status_details": self._details,
            "output": [item.view() for item in self.items],
            "conversation_id": self._conversation_id,
            "output_modalities": [self.modality],
            "max_output_tokens": self.max_output_tokens,
            "audio": {"output": {"format": self.audio_format, "voice": self.voice}},
            "usage": self.usage,
            "metadata": self.options.get("metadata"),
        }

    def open_message(self, phase: str | None = None) -> Item:
        """Start a spoken (or written) message; `phase` is "commentary" or "final_answer" where the model tells."""
        kind = "output_audio" if self.modality == "audio" else "output_text"
        shown = {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
        if phase:
            shown["phase"] = phase
        item = self._add(shown)
        self._emit("response.content_part.added", **self._part_ids(item), part=self._part(""))
        key = "transcript" if self.modality == "audio" else "text"
        item.shown["content"] = [{"type": kind, key: ""}]
        return item

    def say(self, text: str, audio: bytes) -> None:
        """Send a piece of sound (coded in the response's audio format) and the transcript that ends in it."""
        item, ids = self._message()
        if audio:
            item.audio += audio
            item.sounded = True
            seconds = len(audio) / item.per_ms / 1000
            self.audio_seconds += seconds
            self.output_tokens[1] += round(seconds * OUTPUT_TOKENS_PER_SECOND)
            self._emit("response.output_audio.delta", **ids, delta=pybase64.b64encode_as_string(audio))
        if text:
            content = item.shown["content"][0]
            content["transcript"] = (content["transcript"] or "") + text  # None after a truncation in full flow
            self.output_tokens[0] += text_tokens(text)
            self._emit("response.output_audio_transcript.delta", **ids, delta=text)
        item.pieces.append((len(item.audio), text))

    def write(self, text: str) -> None:
        """Send a piece of a written message."""
        item, ids = self._message()
        item.shown["content"][0]["text"] += text
        self.output_tokens[0] += text_tokens(text)
        self._emit("response.output_text.delta", **ids, delta=text)

    def open_call(self, call_id: str, name: str) -> Item:
        shown = {"type": "function_call", "status": "in_progress", "name": name, "call_id": call_id, "arguments": ""}
        return self._add(shown)

    def argue(self, piece: str) -> None:
        """Send a piece of the open call's arguments."""
        item = self._open
        assert item is not None
        item.shown["arguments"] += piece
        self.output_tokens[0] += text_tokens(piece)
        call_id = item.shown["call_id"]
        self._emit("response.function_call_arguments.delta", **self._item_ids(item), call_id=call_id, delta=piece)

    def close_item(self, status: str = "completed") -> None:
        """End the open item with all its done events; they are sent on an interruption too."""
        item, self._open = self._open, None
        if item is None:
            return
        item.shown["status"] = status
        self.announce_done(item)

    def announce_done(self, item: Item) -> None:
        """Send the done events of an item, from its content to the item itself."""
        if item.shown["type"] == "function_call":
            call = {key: item.shown[key] for key in ("call_id", "name", "arguments")}
            self._emit("response.function_call_arguments.done", **self._item_ids(item), **call)
        else:
            ids, content = self._part_ids(item), item.shown["content"][0]
            if self.modality == "audio":
                self._emit("response.output_audio.done", **ids)
                self._emit("response.output_audio_transcript.done", **ids, transcript=content["transcript"] or "")
            else:
                self._emit("response.output_text.done", **ids, text=content["text"])
            part = self._part(content.get("transcript") or content.get("text") or "")
            self._emit("response.content_part.done", **ids, part=part)
        index = self.items.index(item)
        self._emit("response.output_item.done", response_id=self.id, output_index=index, item=item.view())
        if self.is_shared:
            self._emit("conversation.item.done", item=item.view())

    def end(self, status: Status, reason: str | None, usage: dict[str, Any]) -> None:
        """Close what is open and send response.done; `Wire.finish` calls this."""
        self.close_item("completed" if status == "completed" else "incomplete")
        self.status = status
        self._details = None if status == "completed" else {"type": status, "reason": reason}
        self.usage = usage
        self._emit("response.done", response=self.view())

    def _add(self, shown: dict[str, Any]) -> Item:
        self.close_item()
        item = Item({"id": self._new_id("item"), "object": "realtime.item"} | shown, bytes_per_ms(self.audio_format))
        self.items.append(item)
        self._open = item
        previous = self._shared(item) if self._shared else None
        index = len(self.items) - 1
        self._emit("response.output_item.added", response_id=self.id, output_index=index, item=item.view())
        if self.is_shared:
            self._emit("conversation.item.added", previous_item_id=previous, item=item.view())
        return item

    def _message(self) -> tuple[Item, dict[str, Any]]:
        assert self._open is not None
        return self._open, self._part_ids(self._open)

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "audio", "transcript": text} if self.modality == "audio" else {"type": "text", "text": text}

    def _item_ids(self, item: Item) -> dict[str, Any]:
        return {"response_id": self.id, "item_id": item.id, "output_index": self.items.index(item)}

    def _part_ids(self, item: Item) -> dict[str, Any]:
        return self._item_ids(item) | {"content_index": 0}
