"""What the agent says around its calls, and the faults in it that a reader should recognise in the journal.

Each fault is a decision event of the kind below, with the words in `text`; nothing is decided by it but the one nudge
after a promise (see `replies`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from voicekit.journal import Journal
from voicekit.metrics import words_of
from voicekit.wording import promises

FAULTS = {
    "promise_without_call": "the whole answer was the announcement of something that was then not done",
    "phrase_repeated": "the same announcement as before, word by word",
    "two_messages": "two spoken messages in one response",
    "result_during_preamble": "the result came while its announcement was still being heard",
    "answered_twice": "what was said before the call holds the result already, and it is said again",
}


@dataclass(eq=False)
class _Turn:
    """One turn of the model, together with the turns it goes on from without a new beginning."""

    items: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)  # calls whose results are in
    before_results: int = 0  # messages begun while no result was in
    is_over: bool = False


class Spoken:
    """Listens to the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.on_promise: Callable[[str, str], None] = lambda turn, text: None
        """Called with turn and text for a promise without a call; replaced by who can do something about it."""
        self._turns: dict[str, _Turn] = {}
        self._goes_on: _Turn | None = None  # a turn that ended "in_progress": the next one belongs to it
        self._generated: dict[str, dict[str, Any]] = {}  # the event of each item; its text may still grow
        self._turn_of: dict[str, _Turn] = {}  # by call id and item
        self._playing: set[str] = set()
        self._phrases: set[str] = set()
        self._before: dict[str, tuple[str, ...]] = {}  # items said before a call, by call id
        journal.listen(self._on)

    def before(self, call_id: str) -> tuple[str, float]:
        """What was said in the same turn before a call: the words, and their length in seconds."""
        events = [self._generated[item] for item in self._before.get(call_id, ()) if item in self._generated]
        return " ".join(event["text"] or "" for event in events).strip(), sum(e["detail"]["seconds"] for e in events)

    def check_result(self, call_id: str, summary: str, is_said: bool) -> None:
        """Note what is wrong, or worth knowing, about a result that is now handed over."""
        text, seconds = self.before(call_id)
        if not text:
            return
        if self._playing.intersection(self._before[call_id]):
            self._note("result_during_preamble", text, call_id=call_id)
        if is_said:
            self._note("preamble_heard", f"said before the call ({seconds:.1f} s): {text}", call_id=call_id)
            wanted = words_of(summary)
            if wanted and len(wanted & words_of(text)) * 2 >= len(wanted):
                self._note("answered_twice", summary, call_id=call_id)

    def _on(self, event: dict[str, Any]) -> None:
        kind, item = event["kind"], event["item"]
        match event["lane"], kind:
            case "session", "turn_started":
                self._turns[item] = self._goes_on or _Turn()
                self._goes_on = None
            case "agent", "generating":
                self._begin(item, self._turn(event["detail"]["turn"]))
            case "agent", "generated":
                self._generated[item] = event
            case "heard", "playing":
                self._playing.add(item)
            case "heard", "played":
                self._playing.discard(item)
            case "tool", "proposed":
                self._propose(event["call_id"], self._turn(event["detail"]["turn"]))
            case "tool", "answered":
                if event["call_id"] in self._turn_of:
                    self._turn_of[event["call_id"]].answered.add(event["call_id"])
            case "session", "turn_done":
                self._end(item, event["detail"])

    def _turn(self, name: str) -> _Turn:
        return self._turns.setdefault(name, _Turn()) if name else _Turn()

    def _begin(self, item: str, turn: _Turn) -> None:
        turn.before_results += not turn.answered
        turn.items.append(item)
        self._turn_of[item] = turn

    def _propose(self, call_id: str, turn: _Turn) -> None:
        first = not turn.calls
        turn.calls.append(call_id)
        self._turn_of[call_id] = turn
        self._before[call_id] = tuple(turn.items)
        text, _ = self.before(call_id)
        if first and text:
            if text in self._phrases:
                self._note("phrase_repeated", text, call_id=call_id)
            self._phrases.add(text)

    def _end(self, name: str, detail: dict[str, Any]) -> None:
        turn = self._turn(name)
        if detail["reason"] == "in_progress":
            self._goes_on = turn
            return
        text = " ".join(self._generated[item]["text"] or "" for item in turn.items if item in self._generated)
        if turn.calls and turn.before_results > 1 and not turn.is_over:
            self._note("two_messages", text, item=name)
        if detail["status"] == "completed" and not turn.calls and not turn.is_over and promises(text):
            self.on_promise(name, text)
        turn.is_over = True

    def _note(self, kind: str, text: str, *, call_id: str | None = None, item: str | None = None) -> None:
        self._journal.add("decision", kind, item=item, call_id=call_id, text=text)
