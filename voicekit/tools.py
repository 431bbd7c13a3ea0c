"""A tool is a typed function, with what it does to the world and how long that takes; backend.py runs the calls.

    @tool(effect="read", seconds=0.2)
    async def check_stock(item: Annotated[str, Field(description="name of the item")]) -> Result:
        \"\"\"Say how many pieces of an item are in stock.\"\"\"
        return ok("There are twelve blue kettles in stock.", item=item, pieces=12)
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pydantic import BaseModel

from voicekit import arguments as arguments_
from voicekit.arguments import IdempotencyKey as IdempotencyKey
from voicekit.arguments import InvalidArguments as InvalidArguments
from voicekit.clock import VirtualLoop
from voicekit.faults import Fault as Fault
from voicekit.faults import Latency as Latency
from voicekit.ledger import canonical as canonical
from voicekit.results import WENT_WRONG
from voicekit.results import Result as Result
from voicekit.results import as_result as as_result
from voicekit.results import failed as failed
from voicekit.results import no_results as no_results
from voicekit.results import ok as ok
from voicekit.schemas import flaw

Effect = Literal["read", "write", "irreversible"]
Faults = Fault | str | Mapping[int, Fault | str]

# What is said when a tool has no answer of its own.
SENTENCES = {"error": WENT_WRONG, "time_out": "I have no news about that yet.", "cancelled": "That was cancelled."}

# How often the virtual loop turns, its time standing still, while a plain function works (some 10 ms in all): one that
# computes takes no time then, whatever the machine's load. One that really waits takes the time it waits.
HOLD_CYCLES = 2000


@dataclass(frozen=True, eq=False)
class Tool:
    """What can be called. Made by `Tool.of` or `@tool`; `dataclasses.replace(tool, seconds=2.0)` makes a changed copy.

    name, description, parameters   what the model reads; `parameters` is the JSON Schema of the arguments
    effect        "read" changes nothing, a "write" is undone by `compensation`, "irreversible" by nothing
    seconds       how long a call takes
    commits_at    share of that time after which the function is called and its effect happens; the rest is the way back
    cancellable   a call can be called off, until its function is called
    compensation  name of the tool that undoes the effect when called with the same arguments
    faults        a fault of every call, or of the n-th: {1: "time_out"}; also as text, see `Fault.of`
    wish          calls with the same wish are revisions of one request: the latest counts; "": each stands alone
    find_effect   `(key, arguments) -> result or None`: asks the outside whether it was done
    sentences     what is said after an "error", a "time_out", when "cancelled"
    """

    name: str
    description: str
    parameters: dict[str, Any]
    effect: Effect
    function: Callable[..., Any] = field(repr=False)
    arguments: type[BaseModel] = field(repr=False)
    key_parameter: str | None = None
    seconds: float | Latency = 0.5
    commits_at: float = 0.5
    cancellable: bool = True
    compensation: str | None = None
    faults: Faults | None = None
    wish: str = ""
    find_effect: Callable[[str, dict[str, Any]], Result | None] | None = field(default=None, repr=False)
    sentences: Mapping[str, str] = field(default_factory=lambda: SENTENCES, repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", self.name):
            raise ValueError(f"tool {self.name!r}: a name is up to 64 of A-Z a-z 0-9 _ - and begins with a letter or _")
        if problem := flaw(self.parameters):
            raise ValueError(f"tool {self.name}: {problem}")
        if self.effect not in get_args(Effect):
            raise ValueError(f"tool {self.name}: effect is one of {', '.join(get_args(Effect))}, not {self.effect!r}")
        if self.compensation and self.effect != "write":
            raise ValueError(f"tool {self.name}: only a write can be compensated, this one is {self.effect}")
        if not 0 <= self.commits_at <= 1:
            raise ValueError(f"tool {self.name}: commits_at is a share between 0 and 1, not {self.commits_at!r}")
        if not isinstance(self.seconds, Latency) and not self.seconds >= 0:
            raise ValueError(f"tool {self.name}: seconds is a number from 0, not {self.seconds!r}")
        numbers = tuple(self.faults) if isinstance(self.faults, Mapping) else (1,)
        if not all(isinstance(number, int) and number > 0 for number in numbers):
            raise ValueError(f"tool {self.name}: faults go by the number of the call, 1, 2, …, not {numbers!r}")
        for number in numbers:
            self.fault(number)  # a misspelled one is reported here, not in the middle of a call

    @classmethod
    def of(cls, function: Callable[..., Any], *, effect: Effect, name: str | None = None, **options: Any) -> Tool:
        """Make a tool of a function; `options` are the fields above.

        Raises ValueError if the function has no docstring, or a parameter that no JSON object could fill.
        """
        name = name or function.__name__
        description = inspect.getdoc(function) or ""
        if not description:
            raise ValueError(f"tool {name} needs a docstring: it is what the model chooses by")
        model, key_parameter = arguments_.model_of(name, function)
        schema = arguments_.schema_of(model)
        return cls(name, description, schema, effect, function, model, key_parameter, **options)

    @property
    def schema_version(self) -> str:
        """Short hash of all the model reads of the tool; it changes when a word of a description does."""
        text = canonical([self.name, self.description, self.parameters])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def can_be_asked(self) -> bool:
        """Whether a call whose end is unknown may be repeated: one can look for it, or the other side knows its key."""
        return self.find_effect is not None or self.key_parameter is not None

    def validate(self, arguments_json: str) -> dict[str, Any]:
        """Return the arguments as a dict, whole numbers as int. Raises InvalidArguments; nothing is ever repaired.

        A tool without parameters takes "", "null" and "{}"; any other needs a complete JSON object.
        """
        return arguments_.check(self.name, self.parameters, self.arguments, arguments_json)

    def key(self, arguments: Mapping[str, Any], request: str) -> str:
        """The idempotency key: the same tool with the same arguments for the same request is the same order."""
        spelled_out = self._model(arguments).model_dump(mode="json")  # defaults included
        return f"{self.name} {canonical(spelled_out)} {request}"

    def latency(self, random_: random.Random) -> float:
        """Draw how long a call takes, in seconds."""
        return self.seconds.draw(random_) if isinstance(self.seconds, Latency) else self.seconds

    def fault(self, number: int) -> Fault | None:
        """What goes wrong in the `number`-th call (from 1)."""
        fault = self.faults.get(number) if isinstance(self.faults, Mapping) else self.faults
        return Fault.of(fault) if isinstance(fault, str) else fault

    async def call(self, arguments: Mapping[str, Any], key: str = "") -> Any:
        """Call the function with validated arguments: on the loop if it is async, in a worker thread if it is plain."""
        model = self._model(arguments)
        values = {name: getattr(model, name) for name in model.model_fields_set}
        if self.key_parameter:
            values[self.key_parameter] = IdempotencyKey(key)
        try:
            if inspect.iscoroutinefunction(self.function):
                return await self.function(**values)
            value = await _in_thread(functools.partial(self.function, **values))
            return await value if inspect.isawaitable(value) else value
        except SystemExit as error:  # it would end the conversation, and with it every other call
            raise RuntimeError(f"the tool called sys.exit({error.code!r})") from error

    def _model(self, arguments: Mapping[str, Any]) -> BaseModel:
        return self.arguments.model_validate_json(canonical(dict(arguments)))


def tool(*bare: Any, effect: Effect | None = None, **options: Any) -> Callable[[Callable[..., Any]], Tool]:
    """Make the decorated function a Tool; `options` are the fields of `Tool`."""
    if bare or effect is None:
        raise ValueError('a tool says what it does: @vk.tool(effect="read"), or "write", or "irreversible"')
    return lambda function: Tool.of(function, effect=effect, **options)


async def _in_thread(work: Callable[[], Any]) -> Any:
    def run() -> Any:
        try:
            return work()
        except StopIteration as error:  # of a `next(...)`; asyncio cannot hand it on, and would wait for ever
            raise RuntimeError("the tool let a StopIteration escape; give next() a default") from error

    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(None, run)
    try:
        for _ in range(HOLD_CYCLES if isinstance(loop, VirtualLoop) else 0):
            if future.done():
                break
            await asyncio.sleep(0)
        return await future
    finally:
        future.cancel()  # a thread can not be stopped, but nobody waits for it any more
