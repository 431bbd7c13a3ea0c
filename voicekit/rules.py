"""What is done about an utterance: rules over intents, declared tools and results.

They are no language model. They read what a real one would read (the declared tools, the sample phrases under a
`# Preambles` heading, the status and summary of a result) and answer from data/sentences.csv, so that every run can be
repeated and every decision can be looked up. Protocol and timing are not their business. The simulated models decide by
them, and so does the offline backend of client delegation: each holds a `Mind` of its own.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from voicekit.models import data_path
from voicekit.reading import is_empty as is_empty
from voicekit.reading import parse_output as parse_output
from voicekit.reading import read_preambles as read_preambles
from voicekit.reading import vary as vary
from voicekit.understanding import Utterance, question, sentences, understand

SWEEP_LIMIT = 5  # calls a model makes after empty results (Google Cloud's 3.8 migration page reports 2 to 5)
ASK_FIRST = re.compile(r"\b(ask|confirm)\w*\b.*\bbefore\b|\bconfirm with the caller\b", re.IGNORECASE)


class Habits(Protocol):
    """What the rules have to know of a model (see `simulator.profile.Profile`)."""

    @property
    def preambles(self) -> bool: ...

    @property
    def fillers(self) -> bool: ...


@dataclass(frozen=True)
class Speak:
    """Say `text`. `commentary`: it announces a call that follows in the same turn (a preamble)."""

    text: str
    commentary: bool = False


@dataclass(frozen=True)
class CallTool:
    """Propose a call."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


Step = Speak | CallTool


@dataclass
class Request:
    """A call the model has proposed, and what has become of it."""

    call: CallTool
    then: tuple[str, dict[str, Any]] | None = None  # a tool that needs this one's result, and its slots
    output: Any = None
    state: str = "open"  # "answered", "cancelled"
    owed: bool = False  # the caller is to be told
    spoken: bool = False
    tries: int = 0


# How an application gives a model a sentence for the caller; live models understand the same words.
FOR_THE_CALLER = re.compile(r'\b(?:ask|tell) the caller: "(.+)"', re.IGNORECASE | re.DOTALL)


@cache
def default_preamble(tool: str, language: str, kind: str = "action") -> str:
    """The phrase a model that announces calls by itself uses for `tool` (data/preambles.csv, by `kind`)."""
    with data_path("preambles.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == kind]
    found = {row["tool"]: row["text"] for lang in ("en", language) for row in rows if row["language"] == lang}
    return found.get(tool, found["*"])


class Mind:
    """The decisions of one simulated session. `next_steps()` is the model's next turn."""

    def __init__(self, profile: Habits, language: str = "en") -> None:
        self.profile = profile
        self.language = language
        self.tools: dict[str, Mapping[str, Any]] = {}
        self.instructions = ""
        self._preambles: dict[str, str] = {}
        self._waiting: list[Utterance] = []  # heard, not answered yet
        self._requests: dict[str, Request] = {}  # by call id, in the order proposed
        self._proposed: list[Request] = []  # proposed, without an id so far
        self._question: CallTool | None = None  # what the caller was asked to confirm
        self._last_said = ""
        self._rest = ""  # what the caller cut off
        self._turn: tuple[list[Request], list[Utterance]] = ([], [])  # the results and questions of the last turn
        self._for_the_caller: list[str] = []  # sentences the application asked it to say

    # What the model reads

    def configure(self, instructions: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """Take over instructions and tool declarations (name, description, parameters as JSON Schema)."""
        self.instructions = instructions
        self.tools = {str(tool["name"]): tool for tool in tools if tool.get("name")}
        self._preambles = read_preambles(instructions)
        for number, (call, summary) in enumerate(read_earlier_results(instructions), 1):
            known = Request(call, output={"status": "ok", "summary": summary}, state="answered")
            self._requests.setdefault(f"earlier_{number}", known)

    def hear(self, utterance: Utterance) -> None:
        self._waiting.append(utterance)

    def read(self, role: str, text: str) -> None:
        """Typed text. The caller's is understood when it is the transcript of a known clip.

        Of an application's message only what it is to say or to ask is taken (`FOR_THE_CALLER`), in whichever role.
        """
        if role != "model" and (sentence := FOR_THE_CALLER.search(text)):
            self._for_the_caller.append(sentence[1])
            return
        if role != "user":
            return
        utterance = understand(text, self.language)
        if utterance is not None:
            self.hear(utterance)

    def called(self, call_id: str, call: CallTool) -> None:
        """The session gave a proposed call its id."""
        request = next((each for each in self._proposed if each.call == call), None)
        if request is None:
            request = Request(call)
        else:
            self._proposed.remove(request)
        self._requests[call_id] = request

    def result(self, call_id: str, output: Any, *, owed: bool, final: bool = True) -> None:
        """A result came in. `owed`: the caller is to be told about it without being asked again."""
        request = self._requests.get(call_id)
        if request is None or request.state == "cancelled":
            return
        request.output = parse_output(output)
        request.owed, request.spoken = owed, False
        if final:
            request.state = "answered"

    def owe_results(self) -> None:
        """The application asks for speech: every result not told so far is to be told."""
        for request in self._requests.values():
            if request.state == "answered" and not request.spoken:
                request.owed = True

    def cancelled(self, call_id: str) -> None:
        if call_id in self._requests:
            self._requests[call_id].state = "cancelled"

    def cut_off(self, text_heard: str) -> None:
        """The last speech was interrupted after `text_heard`; the sentence it broke off in counts as not said.

        A turn of which nothing was said at all is still to be had: its questions wait, its results are not told.
        """
        if not text_heard.strip():
            told, asked = self._turn
            for request in told:
                request.spoken = False
            self._waiting = [each for each in asked if each not in self._waiting] + self._waiting
            self._turn = ([], [])
        whole = re.findall(r"[^.!?]+[.!?]?\s*", self._last_said)
        heard = 0
        while whole and heard + len(whole[0].strip()) <= len(text_heard.strip()):
            heard += len(whole.pop(0))
        self._rest = "".join(whole).strip()

    @property
    def open_calls(self) -> dict[str, CallTool]:
        return {call_id: each.call for call_id, each in self._requests.items() if each.state == "open"}

    @property
    def has_something_to_say(self) -> bool:
        return bool(self._waiting or self._for_the_caller) or any(each.owed for each in self._requests.values())

    # What the model does

    def next_steps(self) -> list[Step]:
        """The model's next turn: first the results it owes, then the questions it has not answered.

        An empty list means that it stays silent (a backchannel needs no answer).
        """
        steps: list[Step] = [Speak(sentence) for sentence in self._for_the_caller]
        self._for_the_caller.clear()
        told = [request for request in self._requests.values() if request.owed]
        for request in told:
            request.owed = False
            steps += self._tell(request)
        waiting, self._waiting = self._waiting, []
        for utterance in waiting:
            steps += self._answer(utterance)
        steps = self._with_preamble(_without_repeats(steps))
        calls = any(isinstance(step, CallTool) for step in steps)
        self._turn = ([], []) if calls else (told, waiting)  # a call that is out is not taken back by a cut-off
        self._proposed += [
            Request(step) for step in steps if isinstance(step, CallTool) and not self._is_proposed(step)
        ]
        said = " ".join(step.text for step in steps if isinstance(step, Speak))
        self._last_said, self._rest = (said, "") if said else (self._last_said, self._rest)
        return steps

    def _is_proposed(self, call: CallTool) -> bool:
        return any(each.call == call for each in self._proposed)

    def _with_preamble(self, steps: list[Step]) -> list[Step]:
        first = next((index for index, step in enumerate(steps) if isinstance(step, CallTool)), None)
        if first is None or any(isinstance(step, Speak) for step in steps[:first]):
            return steps
        name = steps[first].name  # type: ignore[union-attr]
        text = self._preambles.get(name, self._preambles.get("*", ""))
        if not self._preambles and (self.profile.preambles or self.profile.fillers):
            text = default_preamble(name, self.language, "filler" if self.profile.fillers else "action")
        return [*steps[:first], Speak(text, commentary=True), *steps[first:]] if text else steps

    # Results

    def _tell(self, request: Request) -> list[Step]:
        output, request.spoken = request.output, True
        status = output.get("status", "") if isinstance(output, dict) else ""
        if status in ("superseded", "withdrawn", "pending"):
            return [Speak(str(output["say"]))] if output.get("say") else []
        if is_empty(output):
            return self._sweep(request)
        if status == "invalid_argument" and request.tries == 0:
            return [self._again(request, request.call)]
        if status in ("no_results", "no_results_in_range", "failed") and output.get("retryable") and not request.tries:
            return [self._again(request, request.call)]
        if request.then is not None and status in ("ok", ""):
            tool, slots = request.then
            return self._call(tool, {**slots, **(output if isinstance(output, dict) else {})})
        return [Speak(self._summary(output))]

    def _again(self, request: Request, call: CallTool) -> CallTool:
        self._proposed.append(Request(call, then=request.then, tries=request.tries + 1))
        return call

    def _sweep(self, request: Request) -> list[Step]:
        """An empty answer says neither yes nor no, so the model tries variations of the same search."""
        variation = vary(request.call.arguments, request.tries)
        if request.tries + 1 >= SWEEP_LIMIT or variation is None:
            return [Speak(self._say("nothing_found"))]
        return [self._again(request, CallTool(request.call.name, variation))]

    def _summary(self, output: Any) -> str:
        if isinstance(output, dict):
            for key in ("summary", "message", "error", "output", "result"):
                if isinstance(output.get(key), str):
                    return str(output[key])
                if isinstance(output.get(key), dict):
                    return self._summary(output[key])
            return self._say("went_wrong") if output.get("status") == "failed" else json.dumps(output)
        return str(output)

    # Utterances

    def _answer(self, utterance: Utterance) -> list[Step]:
        if not utterance.understood or not utterance.intent:
            return [Speak(self._say("not_understood"))]
        steps: list[Step] = []
        for intent in utterance.intents:
            steps += self._answer_intent(intent, utterance.slots)
        return steps

    def _answer_intent(self, intent: str, slots: Mapping[str, Any]) -> list[Step]:
        handler = getattr(self, f"_on_{intent}", None)
        if handler is not None:
            return list(handler(slots))
        if intent in self.tools:
            return self._call(intent, slots)
        return [Speak(self._say(intent) if intent in sentences(self.language) else self._say("cannot"))]

    def _call(self, tool: str, slots: Mapping[str, Any]) -> list[Step]:
        """Propose `tool` with the slots it takes; look up first what it lacks; ask first where it says so."""
        schema = self.tools[tool].get("parameters") or {}
        arguments = {key: value for key, value in slots.items() if key in schema.get("properties", {})}
        missing = [key for key in schema.get("required", []) if key not in arguments]
        for key in missing:
            finder = self._finder(key, slots)
            if finder is not None:
                self._proposed.append(Request(finder, then=(tool, dict(slots))))
                return [finder]
        if missing:
            return [Speak(self._say("not_understood"))]
        call = CallTool(tool, arguments)
        if ASK_FIRST.search(str(self.tools[tool].get("description", ""))) and self._question != call:
            self._question = call
            return [Speak(self._ask(call))]
        self._question = None
        return self._once(call)

    def _once(self, call: CallTool) -> list[Step]:
        """Call, unless the same call is open or its result is known already."""
        for request in reversed(self._requests.values()):
            if request.call == call and request.state == "open":
                return [Speak(self._say("still_waiting"))]
            if request.call == call and request.state == "answered" and _is_ok(request.output) and not request.then:
                request.spoken = True
                return [Speak(self._summary(request.output))]
        return [call]

    def _finder(self, key: str, slots: Mapping[str, Any]) -> CallTool | None:
        """A declared tool that supplies `key`: one named `..._key` whose own required arguments are all known."""
        for name, tool in self.tools.items():
            schema = tool.get("parameters") or {}
            required = schema.get("required", [])
            if name.endswith(f"_{key}") and required and all(each in slots for each in required):
                return CallTool(name, {each: slots[each] for each in required})
        return None

    def _on_backchannel(self, _slots: Mapping[str, Any]) -> list[Step]:
        """ "Mm-hm" needs no answer; if it made the model stop, the model goes on with what it had not said."""
        return [Speak(self._rest)] if self._rest else []

    def _on_stop_talking(self, _slots: Mapping[str, Any]) -> list[Step]:
        return []

    def _on_still_there(self, _slots: Mapping[str, Any]) -> list[Step]:
        text = self._say("still_there")
        return [Speak(f"{text} {self._say('still_waiting')}" if self.open_calls else text)]

    def _on_repeat(self, _slots: Mapping[str, Any]) -> list[Step]:
        return [Speak(self._last_said or self._say("nothing_to_say"))]

    def _on_any_news(self, _slots: Mapping[str, Any]) -> list[Step]:
        answered = [each for each in self._requests.values() if each.state == "answered" and _is_ok(each.output)]
        if answered and (not self.open_calls or not answered[-1].spoken):
            answered[-1].spoken = True
            return [Speak(self._summary(answered[-1].output))]
        return [Speak(self._say("still_waiting" if self.open_calls else "no_news"))]

    def _on_did_it_work(self, _slots: Mapping[str, Any]) -> list[Step]:
        last = next(reversed(self._requests.values()), None)
        pending = isinstance(getattr(last, "output", None), dict) and last.output.get("status") == "pending"  # type: ignore[union-attr]
        if pending or self._question is not None:
            return [Speak(self._say("waiting_for_you"))]
        if last is not None and last.state == "cancelled":
            return [Speak(self._say("withdrawn"))]
        return [Speak(self._say("done" if last is not None and _is_ok(last.output) else "not_done"))]

    def _on_correction(self, slots: Mapping[str, Any]) -> list[Step]:
        """ "No, make that Thursday": the latest lookup again, with what was corrected."""
        for request in [*self._proposed[::-1], *reversed(self._requests.values())]:
            properties = (self.tools.get(request.call.name, {}).get("parameters") or {}).get("properties", {})
            if any(key in properties for key in slots):
                self._question = None
                return self._call(request.call.name, {**request.call.arguments, **slots})
        return [Speak(self._say("not_understood"))]

    def _on_book_it(self, _slots: Mapping[str, Any]) -> list[Step]:
        """Book what was told last: the latest appointment that came back as a result."""
        for request in reversed(self._requests.values()):
            found = request.output if isinstance(request.output, dict) else {}
            if request.call.name == "find_appointment" and request.spoken and _is_ok(found) and found.get("time"):
                return self._call("book_appointment", found) if "book_appointment" in self.tools else []
        return [Speak(self._say("still_waiting" if self.open_calls else "no_news"))]

    def _on_consent(self, _slots: Mapping[str, Any]) -> list[Step]:
        if self._question is None:
            return [Speak(self._say("okay"))]
        call, self._question = self._question, None
        return [call]

    def _on_refusal(self, _slots: Mapping[str, Any]) -> list[Step]:
        self._question = None
        return [Speak(self._say("refused"))]

    def _on_question(self, _slots: Mapping[str, Any]) -> list[Step]:
        again = f" {self._ask(self._question)}" if self._question is not None else ""
        return [Speak(self._say("question") + again)]

    # Words

    def _say(self, key: str) -> str:
        return sentences(self.language).get(key, key)

    def _ask(self, call: CallTool) -> str:
        return question(call.name, call.arguments, self.language)


def read_earlier_results(instructions: str) -> list[tuple[CallTool, str]]:
    """Results an earlier call was too short for: lines `- tool {arguments}: summary` under their heading."""
    heading = r"^#+\s*Results that came after the last call\s*$(.*?)(?=^#|\Z)"
    section = re.search(heading, instructions, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    lines = re.findall(r"^-\s*(\w+)\s+(\{.*?\}):\s*(.+?)\s*$", section[1] if section else "", re.MULTILINE)
    return [(CallTool(tool, json.loads(arguments)), summary) for tool, arguments, summary in lines]


def _is_ok(output: Any) -> bool:
    return output is not None and not (isinstance(output, dict) and output.get("status") not in ("ok", None))


def _without_repeats(steps: list[Step]) -> list[Step]:
    return [step for index, step in enumerate(steps) if step not in steps[:index]]
