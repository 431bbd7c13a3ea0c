"""Two backends for client delegation: rules for working offline, and the Responses API for the real thing.

A reader's own is any object with `async def work(request, tools) -> str`; see `delegation.Backend`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from voicekit.delegation import Replaced, Request, Toolbox
from voicekit.ledger import canonical
from voicekit.rules import Mind
from voicekit.steps import CallTool, Speak
from voicekit.understanding import understand, work_in

if TYPE_CHECKING:
    from openai import AsyncOpenAI

ROUNDS = 8  # of calls and results in one task
ADVICE = """
You work for a voice agent that hands requests over to you while it talks. The last user message is the request; if it
corrects or withdraws an earlier one, the earlier one is not wanted any more. Answer with one sentence that can be said
aloud and holds nothing you have not looked up. Ask before you do what a tool says must be confirmed.
"""


@dataclass(frozen=True)
class _Habits:
    preambles: bool = False  # the voice says those
    fillers: bool = False
    obeys_text: bool = False
    confusion: float = 0.0
    seed: int = 0


class Rules:
    """Maps the transcript to tools by the kit's rules (voicekit.rules), as the simulated models do with what they hear.

    It knows nothing of the simulator that may run beside it: only the words that came over the socket. With
    `obeys_text` it does what any text tells it to, as the simulated models do when told so.
    """

    def __init__(self, language: str = "en", *, obeys_text: bool = False) -> None:
        self._language = language
        self._mind = Mind(_Habits(obeys_text=obeys_text), language)

    async def work(self, request: Request, tools: Toolbox) -> str:
        self._mind.configure("", tools.declarations)
        for text in request.texts:
            utterance = understand(text, self._language)
            if utterance is not None and utterance.understood:
                utterance = work_in(utterance)
            if utterance is not None:
                self._mind.hear(utterance)
        said: list[str] = []
        for number in range(ROUNDS):
            steps = self._mind.next_steps()
            said += [step.text for step in steps if isinstance(step, Speak) and not step.commentary]
            calls = [step for step in steps if isinstance(step, CallTool)]
            if not calls:
                break
            names = " and ".join(dict.fromkeys(call.name for call in calls))
            await tools.note(f"Working on it: {names}. Nothing is known yet.")
            ids = [f"{request.delegation}/{number}/{index}" for index in range(len(calls))]
            for id_, call in zip(ids, calls, strict=True):
                self._mind.called(id_, call)
            results = await asyncio.gather(
                *(tools.call(call.name, call.arguments) for call in calls), return_exceptions=True
            )
            self._read(dict(zip(ids, results, strict=True)))
        return " ".join(said)

    def _read(self, results: dict[str, Any]) -> None:
        """Take the results in. Raises Replaced when one of them is not wanted any more."""
        for id_, result in results.items():
            if isinstance(result, BaseException):
                self._mind.cancelled(id_)
            else:
                self._mind.result(id_, result, owed=True)
        for result in results.values():
            if isinstance(result, BaseException):
                raise result


class Responses:
    """Lets a text model do the work, with the application's tools as function tools of the Responses API."""

    def __init__(self, client: AsyncOpenAI, model: str = "gpt-6-sol", instructions: str = "") -> None:
        self._client, self._model = client, model
        self._instructions = f"{instructions.strip()}\n{ADVICE}".strip()

    async def work(self, request: Request, tools: Toolbox) -> str:
        roles = {"caller": "user", "agent": "assistant"}
        items: list[Any] = [{"role": roles[who], "content": text} for who, text in request.history]
        items.append({"role": "user", "content": "\n".join(request.texts) or "(no words were understood)"})
        functions: list[Any] = [{"type": "function", "strict": False, **tool} for tool in tools.declarations]
        more: dict[str, Any] = {}
        for _ in range(ROUNDS):
            response = await self._client.responses.create(
                model=self._model, instructions=self._instructions, input=items, tools=functions, **more
            )
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return str(response.output_text)
            await tools.note(f"Working on it: {' and '.join(dict.fromkeys(call.name for call in calls))}.")
            results = await asyncio.gather(
                *(tools.call(call.name, call.arguments) for call in calls), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            items = [
                {"type": "function_call_output", "call_id": call.call_id, "output": canonical(result)}
                for call, result in zip(calls, results, strict=True)
            ]
            more = {"previous_response_id": response.id}
        raise RuntimeError(f"the backend called tools {ROUNDS} times in a row without an answer")

    async def close(self) -> None:
        await self._client.close()


__all__ = ["Replaced", "Request", "Responses", "Rules", "Toolbox"]
