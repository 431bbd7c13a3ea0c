"""The simulated Responses backend of a GPT-Live session: one delegated response after the other, event by event.

It runs beside the conversation, on the clock of the loop and not on the session's timeline: the caller's silence does
not slow it down. What it writes in the end is given to the voice, which says it in its own time.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from voicekit.rules import Mind
from voicekit.simulator.openai_talk import ARGUMENT_PIECE, PIECE_SECONDS
from voicekit.simulator.wire.gpt_live import Wire
from voicekit.simulator.wire.openai_response import text_tokens
from voicekit.steps import CallTool, Speak, Step
from voicekit.understanding import Utterance, work_in

REASONING_SHARE = 0.5  # of the latency before the first output; the first finished item is often the reasoning [O]


@dataclass(eq=False)
class Run:
    """One response on its way. `delegation` is known once it has begun."""

    id: str
    delegation: str | None
    heard: tuple[Utterance, ...] = ()  # what it is to work on; empty: what the client has given it
    sequence: int = 0
    items: int = 0
    calls: list[str] = field(default_factory=list)
    text: str = ""


class Backend:
    """Works on what is delegated. `said(text)` takes what the voice is to say, `idle()` is told when nothing runs.

    One response runs at a time, others queue. One that waits for a function's output does not run, so the next may
    begin [inferred: the guide speaks of queued responses and of those waiting for a result].
    """

    def __init__(
        self,
        wire: Wire,
        mind: Mind,
        latency: Callable[[], float],
        said: Callable[[str], None],
        idle: Callable[[], None],
    ) -> None:
        self._wire, self._mind, self._latency, self._said, self._idle = wire, mind, latency, said, idle
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Run] = deque()
        self._running: Iterator[float] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._owner: dict[str, str | None] = {}  # delegation of each call
        self._answered: list[str] = []  # calls whose outputs no response has been asked for yet
        self._calls_to_make: list[Step] = []  # with parallel_tool_calls off

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def delegate(self, offset_ms: int, heard: Sequence[Utterance]) -> str:
        """Take over work: announces the delegation and queues its response; returns the delegation's id."""
        run = Run(self._wire.new_id("resp"), None, tuple(heard))
        run.delegation = self._wire.delegate(offset_ms, run.id)
        self._start(run)
        return run.delegation

    def take(self, item: Mapping[str, Any]) -> None:
        """Read an item that the client gave. Nothing happens before `go_on`."""
        if item["type"] == "function_call_output":
            self._answered.append(item["call_id"])
            self._mind.result(item["call_id"], _text(item["output"]), owed=False)
        else:
            self._mind.read(item["role"], _text(item["content"]))

    def go_on(self) -> None:
        """response.create: use the outputs that have come, or answer what was typed."""
        owners = [self._owner.get(call_id) for call_id in self._answered]
        self._answered.clear()
        self._start(Run(self._wire.new_id("resp"), owners[-1] if owners else None))

    def cancel(self) -> None:
        """The session closes: what is queued will not run; what runs may end."""
        self._queue.clear()

    def stop(self) -> None:
        self._queue.clear()
        self._running = None
        if self._timer is not None:
            self._timer.cancel()

    # Running

    def _start(self, run: Run) -> None:
        self._queue.append(run)
        if self._running is None:
            self._next()

    def _next(self) -> None:
        if not self._queue:
            self._running = None
            self._idle()
            return
        self._running = self._respond(self._queue.popleft())
        self._advance(self._loop.time())

    def _advance(self, due: float) -> None:
        """Send what is due and set the timer for what comes next, by absolute times so that nothing drifts."""
        if self._running is None:
            return
        wait = next(self._running, None)
        if wait is None:
            self._next()
        else:
            self._timer = self._loop.call_at(due + wait, self._advance, due + wait)

    def _respond(self, run: Run) -> Iterator[float]:
        """One response; what lies between two waits (in seconds) is sent at one moment."""
        config = self._wire.session["delegation"]["responses"]
        self._emit(run, "response.created", response=self._snapshot(run, config, "in_progress"))
        latency = self._latency()
        yield latency * REASONING_SHARE
        reasoning = {"id": self._wire.new_id("rs"), "type": "reasoning", "summary": []}
        self._emit(run, "response.output_item.added", output_index=run.items, item=reasoning)
        self._emit(run, "response.output_item.done", output_index=run.items, item=reasoning)
        run.items += 1
        yield latency * (1 - REASONING_SHARE)
        steps = self._steps(run, config)
        for step in steps:
            yield from self._call(run, step) if isinstance(step, CallTool) else self._write(run, step)
        self._emit(run, "response.completed", response=self._snapshot(run, config, "completed"))
        if run.text:
            self._said(run.text)

    def _steps(self, run: Run, config: Mapping[str, Any]) -> list[Step]:
        """What this response holds. Preambles are the voice's business, small talk too."""
        choice = config.get("tool_choice", "auto")
        tools = [tool for tool in config.get("tools", ()) if tool["type"] == "function" and choice != "none"]
        if isinstance(choice, dict) and choice["type"] == "function":
            tools = [tool for tool in tools if tool["name"] == choice["name"]]
        self._mind.configure("", tools)
        for utterance in run.heard:
            work = work_in(utterance)
            if work is not None and not self._mind.takes_back(work):  # of that the application says how it ended
                self._mind.hear(work)
        if not run.heard:
            self._mind.owe_results()
        steps: list[Step] = [*self._calls_to_make, *self._mind.next_steps()]
        self._calls_to_make = []
        steps = [step for step in steps if not (isinstance(step, Speak) and step.commentary)]
        calls = [step for step in steps if isinstance(step, CallTool)]
        if config.get("parallel_tool_calls") is False and len(calls) > 1:
            self._calls_to_make = list(calls[1:])
            steps = [step for step in steps if step not in calls[1:]]
        return steps

    def _call(self, run: Run, step: CallTool) -> Iterator[float]:
        call_id, arguments = self._wire.new_id("call"), json.dumps(step.arguments, ensure_ascii=False)
        item = {
            "id": self._wire.new_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call_id,
            "name": step.name,
            "arguments": "",
        }
        place = {"item_id": item["id"], "output_index": run.items}
        self._emit(run, "response.output_item.added", output_index=run.items, item=dict(item))
        for start in range(0, len(arguments), ARGUMENT_PIECE):
            yield PIECE_SECONDS
            piece = arguments[start : start + ARGUMENT_PIECE]
            self._emit(run, "response.function_call_arguments.delta", **place, delta=piece)
        # Typed with the name, but the guide says that calls are complete in output_item.done only
        self._emit(run, "response.function_call_arguments.done", **place, name=step.name, arguments=arguments)
        item |= {"status": "completed", "arguments": arguments}
        self._wire.calls[call_id] = False
        self._owner[call_id] = run.delegation
        self._mind.called(call_id, step)
        self._emit(run, "response.output_item.done", output_index=run.items, item=dict(item))
        run.calls.append(call_id)
        run.items += 1

    def _write(self, run: Run, step: Speak) -> Iterator[float]:
        message: dict[str, Any] = {
            "id": self._wire.new_id("msg"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        place = {"item_id": message["id"], "output_index": run.items, "content_index": 0}
        self._emit(run, "response.output_item.added", output_index=run.items, item=dict(message))
        self._emit(run, "response.content_part.added", **place, part=dict(part))
        words = step.text.split(" ")
        for index, word in enumerate(words):
            piece = word if index == len(words) - 1 else f"{word} "
            self._emit(run, "response.output_text.delta", **place, delta=piece, logprobs=[])
        yield PIECE_SECONDS
        part |= {"text": step.text}
        self._emit(run, "response.output_text.done", **place, text=step.text, logprobs=[])
        self._emit(run, "response.content_part.done", **place, part=dict(part))
        message |= {"status": "completed", "content": [part]}
        self._emit(run, "response.output_item.done", output_index=run.items, item=message)
        run.items += 1
        run.text = f"{run.text} {step.text}".strip()

    def _emit(self, run: Run, type_: str, **fields: Any) -> None:
        self._wire.nested(run.delegation, {"type": type_, "sequence_number": run.sequence, **fields})
        run.sequence += 1

    def _snapshot(self, run: Run, config: Mapping[str, Any], status: str) -> dict[str, Any]:
        """A response as the nested lifecycle shows it: input left out, instructions, tools and output always empty."""
        read = text_tokens(str(config.get("instructions") or "")) + text_tokens(str(config.get("tools", "")))
        made = text_tokens(run.text) + 20 * len(run.calls)
        usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + made,
        }
        return {
            "id": run.id,
            "object": "response",
            "created_at": round(self._loop.time(), 3),
            "status": status,
            "model": config["model"],
            "output": [],
            "instructions": None,
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": config.get("parallel_tool_calls") is not False,
            "error": None,
            "incomplete_details": None,
            "metadata": {},
            "temperature": None,
            "top_p": None,
            "usage": usage if status == "completed" else None,
        }


def _text(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)
