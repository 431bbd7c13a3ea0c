"""The items of a session's default conversation, in order, and the calls among them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from voicekit.simulator.wire.checks import Refused
from voicekit.simulator.wire.openai_response import Item


class Conversation:
    """Keeps order, ids, and which call has its output. Whatever breaks a rule raises `Refused`."""

    def __init__(self, new_id: Callable[[str], str]) -> None:
        self.items: dict[str, Item] = {}
        self._order: list[str] = []
        self._calls: dict[str, Item] = {}  # by call id
        self._answered: set[str] = set()
        self._new_id = new_id

    @property
    def last(self) -> str | None:
        """The id of the last item."""
        return self._order[-1] if self._order else None

    def knows(self, id_: str) -> bool:
        return id_ in self.items or id_ in self._calls

    def insert(self, item: Item, after: str | None = None) -> str | None:
        """Put an item at the end, or behind the item `after` ("root": in front); returns the id of the one before."""
        if after is not None and after != "root" and after not in self.items:
            message = f"Error adding item: the previous item with id '{after}' does not exist."
            raise Refused("item_create_invalid_previous_item_id", message, "previous_item_id")
        at = len(self._order) if after is None else 0 if after == "root" else self._order.index(after) + 1
        self._order.insert(at, item.id)
        self.items[item.id] = item
        if item.shown["type"] == "function_call":
            self._calls[item.shown["call_id"]] = item
        elif item.shown["type"] == "function_call_output":
            self._answered.add(item.shown["call_id"])
        return self._order[at - 1] if at else None

    def remove(self, item_id: str) -> Item:
        item = self.find(item_id, "delet")
        del self.items[item.id]
        self._order.remove(item.id)
        if item.shown["type"] == "function_call":
            del self._calls[item.shown["call_id"]]
        elif item.shown["type"] == "function_call_output":
            self._answered.discard(item.shown["call_id"])
        return item

    def find(self, item_id: str, verb: str) -> Item:
        """The item, or the refusal of an attempt to `verb`: "retriev", "delet" it."""
        if item_id not in self.items:
            message = f"Error {verb}ing item: the item with id '{item_id}' does not exist."
            raise Refused(f"item_{verb}e_invalid_item_id", message, "item_id")
        return self.items[item_id]

    def build(self, given: Mapping[str, Any]) -> Item:
        """Make an item of what a client sent, under its id; nothing is inserted yet."""
        kind, call_id = given["type"], given.get("call_id")
        if given.get("id") in self.items:  # [inferred] code
            message = f"Error adding item: an item with id '{given['id']}' already exists in the conversation."
            raise Refused("invalid_value", message, "item.id")
        if kind == "mcp_approval_response":
            wanted = given["approval_request_id"]
            raise Refused("invalid_value", f"Approval request '{wanted}' not found.", "item.approval_request_id")
        if kind == "function_call_output" and call_id not in self._calls:
            raise Refused("invalid_tool_call_id", f"Tool call ID '{call_id}' not found in conversation.")
        if kind == "function_call_output" and call_id in self._answered:
            # [inferred]: what the service does with a second output is not known
            message = f"Tool call ID '{call_id}' already has an output in the conversation."
            raise Refused("invalid_value", message, "item.call_id")
        if kind == "function_call" and call_id in self._calls:  # [inferred]
            raise Refused("invalid_value", f"Tool call ID '{call_id}' already exists.", "item.call_id")
        shown = {"object": "realtime.item", "status": "completed"} | copy.deepcopy(dict(given))
        shown.setdefault("id", self._new_id("item"))
        if kind == "function_call":
            shown.setdefault("call_id", self._new_id("call"))
        return Item(shown)

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int, short_by_ms: int) -> tuple[Item, str]:
        """Cut an agent's speech; returns the item and the text that was heard of it."""
        item = self.items.get(item_id)
        if item is None:
            raise Refused("item_truncate_invalid_item_id", f"Item with item_id not found: {item_id}", "item_id")
        if not item.sounded:  # the caller's items, written messages, and speech of which no audio is out
            raise Refused("invalid_value", "Only model output audio messages can be truncated", "item_id")
        if content_index != 0:  # [inferred] wording
            message = f"Content index {content_index} does not exist in item '{item_id}'."
            raise Refused("invalid_value", message, "content_index")
        held = max(0, item.audio_ms - short_by_ms)
        if audio_end_ms > held:
            message = f"Audio content of {held}ms is already shorter than {audio_end_ms}ms"
            raise Refused("invalid_value", message, "audio_end_ms")
        heard = item.heard(audio_end_ms)
        item.truncate(audio_end_ms)
        return item, heard

    def tokens(self, without: list[Item]) -> tuple[int, int]:
        """(text, audio) tokens of the items, but not of those in `without`."""
        counts = [item.tokens() for item in self.items.values() if item not in without]
        return sum(text for text, _ in counts), sum(audio for _, audio in counts)
