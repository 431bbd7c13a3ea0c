"""What tools cost a model that has to read them all: tokens, and wrong choices among those that look alike."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from voicekit.descriptions import Described
from voicekit.rules import Mind
from voicekit.simulator.profile import Profile
from voicekit.steps import CallTool
from voicekit.understanding import Utterance

VOCABULARY = "o200k_base"  # of OpenAI's models since gpt-4o; what the voice models use is not published


@cache
def _encoding() -> Any:
    try:
        import quicktok
    except ImportError:
        mend = "pip install 'voicekit[notebooks]', or estimate with reading.tokens_of"
        raise ImportError(f"counting tokens needs the package quicktok-v1; {mend}") from None
    return quicktok.get_encoding(VOCABULARY)


def tokens(tools: Iterable[Described]) -> dict[str, int]:
    """Tokens of each tool's declaration as it goes over the wire, by name, in OpenAI's vocabulary `VOCABULARY`.

    How a service writes declarations into the context is its own affair, so the true number differs somewhat. Raises
    ImportError naming the mend without the package; its vocabulary ships with it, nothing is downloaded.
    """
    return {tool.name: len(_encoding().encode(json.dumps(_declared(tool), ensure_ascii=False))) for tool in tools}


def wrong_choices(
    tools: Sequence[Described], wanted: str, slots: Mapping[str, Any], *, confusion: float, n: int = 200
) -> float:
    """The share of `n` requests (seeds 0 to n-1) in which a simulated model takes another tool than `wanted`.

    confusion   probability that it takes one given tool that looks like the right one; see the claims of that name
    slots       what the caller said, such as an order number: a tool that needs anything else is no rival
    """
    declared = [_declared(tool) for tool in tools]
    request = Utterance(intent=wanted, slots=dict(slots), understood=True)
    wrong = 0
    for seed in range(n):
        mind = Mind(Profile("any", "any", confusion=confusion, seed=seed))
        mind.configure("", declared)
        mind.hear(request)
        wrong += not any(isinstance(step, CallTool) and step.name == wanted for step in mind.next_steps())
    return wrong / n


def _declared(tool: Described) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
