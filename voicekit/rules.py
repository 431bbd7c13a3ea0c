"""What is done about an utterance: rules over intents, declared tools and results.

They are no language model. They read what a real one would read (the declared tools, the sample phrases under a
`# Preambles` heading, the status and summary of a result) and answer from data/sentences.csv, so that every run can be
repeated and every decision can be looked up. Protocol and timing are not their business. The simulated models decide by
them, and so does the offline backend of client delegation: each holds a `Mind` of its own.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from voicekit.reading import (
    FOR_THE_CALLER,
    HOW_IT_ENDED,
    MARK,
    is_empty,
    orders,
    parse_output,
    read_preambles,
    rivals,
    texts,
    tokens_of,
    vary,
)  # fmt: skip
from voicekit.steps import (
    CallTool,
    Habits,
    Request,
    Speak,
    Step,
    default_preamble,
    is_ok,
    read_earlier_results,
    without_repeats,
)  # fmt: skip
from voicekit.understanding import Utterance, question, sentences, understand

# A model says a long result in short. A script can only stop; this is three quarters of a minute of speech.
LONGEST_RESULT = 700
SWEEP_LIMIT = 5  # calls a model makes after empty results (Google Cloud's 3.8 migration page reports 2 to 5)
ASK_FIRST = re.compile(r"\b(ask|confirm)\w*\b.*\bbefore\b|\bconfirm with the caller\b", re.IGNORECASE)


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
        self._has_news = False  # this turn began with results
        self._for_the_caller: list[str] = []  # sentences the application asked it to say
        self._orders: list[CallTool] = []  # calls that some text told it to make
        self._obeyed: set[str] = set()  # texts whose orders were taken
        self._random = random.Random(f"{profile.seed}/confusion")

    # What the model reads

    def configure(self, instructions: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """Take over instructions and tool declarations (name, description, parameters as JSON Schema)."""
        self.instructions = instructions
        self.tools = {str(tool["name"]): tool for tool in tools if tool.get("name")}
        self._preambles = read_preambles(instructions)
        for number, (call, summary) in enumerate(read_earlier_results(instructions), 1):
            known = Request(call, output={"status": "ok", "summary": summary}, state="answered")
            self._requests.setdefault(f"earlier_{number}", known)
        self._obey([instructions, *tools])

    def hear(self, utterance: Utterance) -> None:
        self._waiting.append(utterance)
        self._obey(utterance.transcript)

    @property
    def context_tokens(self) -> int:
        """About how many tokens of instructions and tool declarations it reads before each turn."""
        return tokens_of([self.instructions, *self.tools.values()])

    def _obey(self, value: Any) -> None:
        """A model that obeys whatever it reads cannot tell data from an order: it does the one like the other."""
        for text in texts(value) if self.profile.obeys_text else ():
            if text not in self._obeyed:
                self._obeyed.add(text)
                self._orders += [CallTool(name, found) for name, found in orders(text) if name in self.tools]
                self._for_the_caller += FOR_THE_CALLER.findall(text)

    def read(self, role: str, text: str) -> None:
        """Typed text. The caller's is understood when it is the transcript of a known clip.

        Of an application's message only what it is to say or to ask is taken (`FOR_THE_CALLER`), in whichever role.
        """
        if role != "model" and (sentence := FOR_THE_CALLER.search(text)):
            self._for_the_caller.append(sentence[1])
            if ended := HOW_IT_ENDED.search(text):
                self._ended(ended[1], sentence[1])
            return
        self._obey(text)
        if role != "user":
            return
        utterance = understand(text, self.language)
        if utterance is not None:
            self.hear(utterance)

    def _ended(self, tool: str, news: str) -> None:
        """A call whose answer was "pending" is over; its id could not be used again to say so."""
        for request in self._requests.values():
            output = request.output if isinstance(request.output, dict) else {}
            if request.call.name == tool and output.get("status") == "pending":
                request.output = {"status": "ended", "summary": news}

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
        self._obey(request.output)
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
        given, self._for_the_caller = self._for_the_caller, []
        steps: list[Step] = [Speak(sentence) for sentence in given if not sentence.endswith("?")]
        told = [request for request in self._requests.values() if request.owed]
        for request in told:
            request.owed = False
            steps += self._tell(request)
        self._has_news = bool(steps)
        waiting, self._waiting = self._waiting, []
        for utterance in waiting:
            steps += self._answer(utterance)
        steps += [Speak(sentence) for sentence in given if sentence.endswith("?")]  # what is to be answered comes last
        steps += self._orders
        self._orders = []
        steps = self._with_preamble(without_repeats(steps))
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
        if status == "needs_consent":  # asked by the application; after a yes the same call is made again
            self._question = request.call
            return [Speak(self._summary(output))]
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
                    return _short(MARK.sub("", output[key]).strip())
                if isinstance(output.get(key), dict):
                    return self._summary(output[key])
            return self._say("went_wrong") if output.get("status") == "failed" else _short(json.dumps(output))
        return _short(str(output))

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
        tool = self._choice(tool, slots)
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

    def _choice(self, tool: str, slots: Mapping[str, Any]) -> str:
        """The tool itself, or, the more often the more of them there are, one that looks like it."""
        others = rivals(tool, self.tools, slots) if self.profile.confusion else []
        if self._random.random() < (1 - self.profile.confusion) ** len(others):
            return tool
        return self._random.choice(others)

    def _once(self, call: CallTool) -> list[Step]:
        """Call, unless the same call is open or its result is known already."""
        for request in reversed(self._requests.values()):
            if request.call == call and request.state == "open":
                return [Speak(self._say("still_waiting"))]
            if request.call == call and request.state == "answered" and is_ok(request.output) and not request.then:
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

    def _on_never_mind(self, _slots: Mapping[str, Any]) -> list[Step]:
        """Put aside what was asked for; not after the news, in the same breath, that it has happened."""
        return [] if self._has_news else [Speak(self._say("never_mind"))]

    def _on_stop_talking(self, _slots: Mapping[str, Any]) -> list[Step]:
        return []

    def _on_still_there(self, _slots: Mapping[str, Any]) -> list[Step]:
        text = self._say("still_there")
        return [Speak(f"{text} {self._say('still_waiting')}" if self.open_calls else text)]

    def _on_repeat(self, _slots: Mapping[str, Any]) -> list[Step]:
        return [Speak(self._last_said or self._say("nothing_to_say"))]

    def _on_any_news(self, _slots: Mapping[str, Any]) -> list[Step]:
        answered = [each for each in self._requests.values() if each.state == "answered" and is_ok(each.output)]
        if answered and (not self.open_calls or not answered[-1].spoken):
            answered[-1].spoken = True
            return [Speak(self._summary(answered[-1].output))]
        return [Speak(self._say("still_waiting" if self.open_calls else "no_news"))]

    def _on_did_it_work(self, _slots: Mapping[str, Any]) -> list[Step]:
        last = next(reversed(self._requests.values()), None)
        if last is not None and last.state == "cancelled":
            return [Speak(self._say("called_off"))]
        output = last.output if last is not None and isinstance(last.output, dict) else {}
        if output.get("status") == "pending" or self._question is not None:
            return [Speak(self._say("waiting_for_you"))]
        if output.get("status") == "ended":
            return [Speak(self._summary(output))]
        return [Speak(self._say("done" if last is not None and is_ok(last.output) else "not_done"))]

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
            if request.call.name == "find_appointment" and request.spoken and is_ok(found) and found.get("time"):
                return self._call("book_appointment", found) if "book_appointment" in self.tools else []
        return [Speak(self._say("still_waiting" if self.open_calls else "no_news"))]

    def _on_cancel_appointment(self, slots: Mapping[str, Any]) -> list[Step]:
        """ "Cancel my booking" names no appointment: what was booked last is meant, or is just being booked."""
        booking = None if slots else self._last("book_appointment")
        if booking is not None and booking.state == "open":
            return [Speak(self._say("never_mind"))]
        if booking is not None and not is_ok(booking.output):
            return [Speak(self._say("withdrawn"))]
        if "cancel_appointment" not in self.tools:
            return [Speak(self._say("cannot"))]
        return self._call("cancel_appointment", booking.call.arguments if booking is not None else slots)

    def takes_back(self, utterance: Utterance) -> bool:
        """Whether an utterance calls off a booking that is under way."""
        booking = self._last("book_appointment")
        is_meant = utterance.intent == "cancel_appointment" and not utterance.slots
        return is_meant and booking is not None and booking.state == "open"

    def _last(self, tool: str) -> Request | None:
        return next((each for each in reversed(self._requests.values()) if each.call.name == tool), None)

    def _on_consent(self, _slots: Mapping[str, Any]) -> list[Step]:
        if self._question is None:  # "Okay." to a call that is off would be taken for "done"
            last = next(reversed(self._requests.values()), None)
            output = last.output if last is not None and isinstance(last.output, dict) else {}
            is_off = output.get("reason") == "guardrail" or (last is not None and last.state == "cancelled")
            return [Speak(self._say("not_confirmed" if is_off else "okay"))]
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


def _short(text: str) -> str:
    """The text, or as many whole words of it as are said of a long one."""
    return text if len(text) <= LONGEST_RESULT else f"{text[:LONGEST_RESULT].rsplit(' ', 1)[0]} ..."
