"""How one simulated model behaves: typed values from the claims in data/models.csv, and its latencies."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from voicekit.models import facts


@dataclass(frozen=True)
class Profile:
    """The behaviours of a model. Times in seconds; each value's claim and source is the row of the same name."""

    model: str
    provider: str
    waits_for_result: bool = False  # says nothing while a call is open
    parallel_calls: bool = True
    preambles: bool = False  # announces calls without being asked to
    fillers: bool = False  # says something in a turn of its own before a call
    behaviors: frozenset[str] = frozenset()
    default_behavior: str = "non_blocking"
    scheduling: bool = False
    interrupt_while_caller_speaks: str = "waits"  # or "speaks_over"
    input_during_blocking_call: str = "waits"  # or "cancels"
    thinking: str = "none"  # "budget", "level", "level_required"
    proactive_audio: str = "unsupported"  # "opt_in", "always"
    affective_dialog: str = "unsupported"  # "opt_in", "closes"
    interaction_status: bool = False
    interrupt_after: float = 0.0  # seconds of speech that make the model stop; shorter speech it talks over
    turn_ends_with_blocking_call: bool = False  # turnComplete follows the call; else only what is said of the result
    call_latency: float = 0.7  # end of turn detected -> the call is out
    speech_latency: float = 1.0  # end of turn detected, or result in -> first audio
    audio_speed: float = 5.0  # seconds of audio generated per second
    audio_pieces: tuple[int, ...] = (100, 150, 250)  # its frames in milliseconds, the last for all further ones
    acknowledgement_latency: float = 0.3  # GPT-Live: an automatic acknowledgement is asked for -> its first audio
    injection_latency: float = 0.8  # GPT-Live: text is there -> it is in the model's timeline
    injected_speech_latency: float = 1.39  # GPT-Live: in the timeline -> its first audio
    backend_latency: float = 0.7  # GPT-Live: the Responses backend begins -> its first call or text
    latency_spread: float = 0.08
    prefill: float = 0.0  # seconds for every 1,000 tokens of instructions and tool declarations, before each response
    obeys_text: bool = False  # does what any text it reads tells it to
    confusion: float = 0.0  # probability that it takes one given tool that looks like the right one
    seed: int = 0  # of its confusion

    @classmethod
    def load(cls, model: str, choose: Mapping[str, str] | None = None) -> Profile:
        """Read a profile; `choose` follows the other of two contradicting claims. Raises ValueError as `facts` does."""
        values: dict[str, object] = {"model": model}
        for name, claim in facts(model, choose).items():
            kind = cls.__annotations__.get(name)
            if kind == "bool":
                values[name] = claim.value == "yes"
            elif kind == "float":
                values[name] = float(claim.value)
            elif kind == "frozenset[str]":
                values[name] = frozenset(claim.value.split())
            elif kind == "tuple[int, ...]":
                values[name] = tuple(int(each) for each in claim.value.split())
            elif kind == "str":
                values[name] = claim.value
        return cls(**values)  # type: ignore[arg-type]

    def latency(self, kind: str, random_: random.Random, context_tokens: int = 0) -> float:
        """Draw "call" or "speech" latency in seconds, rounded to the millisecond, with the reading of the context."""
        median = self.call_latency if kind == "call" else self.speech_latency
        drawn = median * max(0.5, random_.gauss(1.0, self.latency_spread))
        return round(drawn + self.prefill * context_tokens / 1000, 3)
