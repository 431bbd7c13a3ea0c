"""The append-only log of one run: what happened when, in session seconds, and every frame on the wire.

An event is a flat dict with the keys t, lane, kind, item, call_id, text, detail:

lane      kinds
caller    speech_start, speech_stop (item: clip, text: transcript, detail.audible: [[start, stop], ...])
agent     generating (first audio of an item arrived), generated (text: transcript, detail.seconds)
heard     playing (first sample of an item leaves the loudspeaker), played (text: what was heard, detail: audible,
          heard, flushed (seconds), unheard (text never played))
tool      proposed, validated, rejected, running, done, failed, timed_out, committed, cancelled, answered
decision  what the application decided, in a word (kind) and a sentence (text); faults it noticed (`spoken.FAULTS`)
session   connected, turn_started, turn_done, speech_started, speech_stopped, understood, interrupted, problem,
          go_away, usage, closed; where work is handed over also delegated (item: its id), appended (item: the append),
          work_started, work_done (item: the backend's response)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

LANES = ("caller", "agent", "heard", "tool", "decision", "session")
COLUMNS = ("t", "lane", "kind", "item", "call_id", "text", "detail")


class Journal:
    """Collects the events of a run; times come from `now`, in seconds, and are kept to the microsecond."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._listeners: list[Callable[[dict[str, Any]], None]] = []
        self.events: list[dict[str, Any]] = []
        self.wire: list[dict[str, Any]] = []

    def add(
        self,
        lane: str,
        kind: str,
        *,
        item: str | None = None,
        call_id: str | None = None,
        text: str | None = None,
        **detail: Any,
    ) -> dict[str, Any]:
        """Append an event at the present time and tell those who `listen`."""
        event = {
            "t": round(self._now(), 6),
            "lane": lane,
            "kind": kind,
            "item": item,
            "call_id": call_id,
            "text": text,
            "detail": detail,
        }
        self.events.append(event)
        for listener in self._listeners:
            listener(event)
        return event

    def add_wire(self, direction: str, type_: str, frame: dict[str, Any]) -> None:
        """Append a frame as it crossed the socket; the caller has replaced audio by its length."""
        self.wire.append({"t": round(self._now(), 6), "direction": direction, "type": type_, "frame": frame})

    def listen(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """Call `listener(event)` for each event from now on: the scripted caller takes its cues this way."""
        self._listeners.append(listener)


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON lines: sorted by nothing, one key order, "\\n" on every platform, so that bytes compare."""
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    path.write_bytes(text.encode(errors="backslashreplace"))  # half a character, which UTF-8 has no bytes for


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines. Raises ValueError naming file and line for one that is damaged."""
    rows = []
    # By "\n" alone: a text may hold other line ends (U+2028), which JSON need not escape.
    for number, line in enumerate(path.read_bytes().decode("utf-8-sig").split("\n"), 1):
        if not line.strip():  # after the last line, or what an editor has put there, as it may have put the BOM
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: not JSON ({error}); the saved run is damaged") from None
    return rows
