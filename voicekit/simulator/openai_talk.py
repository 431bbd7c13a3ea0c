"""How a simulated Realtime model's decisions become the events of a response, piece by piece over time."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate
from typing import Any

from voicekit.audio import RATE, Resampler
from voicekit.simulator.profile import Profile
from voicekit.simulator.settings import Settings
from voicekit.simulator.voice import Voice
from voicekit.simulator.wire import g711
from voicekit.simulator.wire.openai_realtime import Wire
from voicekit.simulator.wire.openai_response import Item, Response, Status
from voicekit.steps import CallTool, Speak

Step = Speak | CallTool

ARGUMENT_PIECE = 16  # characters of a call's arguments in one delta; no published figure
PIECE_SECONDS = 0.02  # between two deltas of arguments or written text; no published figure
BYTES_PER_SECOND = {"audio/pcm": 2 * RATE, "audio/pcmu": g711.RATE, "audio/pcma": g711.RATE}


class Talk:
    """Generates responses. `called(call_id, call)` is told of each complete call in the default conversation.

    A response is a generator of waits in seconds; what lies between two waits is sent at one moment. Breaking it off is
    forgetting the generator. Audio comes in pieces, `Profile.audio_speed` times faster than real time.
    """

    def __init__(
        self, wire: Wire, settings: Settings, profile: Profile, voice: Voice, called: Callable[[str, CallTool], None]
    ) -> None:
        self._wire, self._profile, self._voice, self._called = wire, profile, voice, called
        self._latencies = settings.random("openai latency")
        self._faults = dict(settings.faults)  # those of calls are used up by the first call
        self.last_speech: Item | None = None  # of the default conversation
        self.context_tokens = 0  # what the model reads before each response

    def respond(self, response: Response, steps: Sequence[Step]) -> Iterator[float]:
        """Say and call what is in `steps`, after the model's latency, and finish the response."""
        first = steps[0] if steps else None
        kind = "call" if isinstance(first, CallTool) else "speech"
        latency = self._profile.latency(kind, self._latencies, self.context_tokens)
        if isinstance(first, CallTool):  # the latency is that of the complete call
            latency -= PIECE_SECONDS * len(_cut(json.dumps(first.arguments)))
        yield max(0.0, latency)
        end: tuple[Status, str | None] = ("completed", None)
        for step in steps:
            complete = yield from self._say(response, step) if isinstance(step, Speak) else self._call(response, step)
            if not complete:
                end = ("incomplete", "max_output_tokens")
                break
            response.close_item()
            if isinstance(step, CallTool) and (more := self._fault("second_message", "I have no news about that yet.")):
                yield from self._say(response, Speak(more))
                response.close_item()
        self._wire.finish(response, *end)

    def pause(self, response: Response, seconds: float) -> Iterator[float]:
        """A response that says nothing, and takes its time."""
        yield seconds
        self._wire.finish(response)

    def _say(self, response: Response, step: Speak) -> Generator[float, None, bool]:
        """Returns whether all of it could be said."""
        # Only reasoning models tell the phase of a message (guide to gpt-realtime-2): those that make parallel calls
        phase = "commentary" if step.commentary else "final_answer"
        item = response.open_message(phase if self._profile.parallel_calls else None)
        pieces = self._voice.pieces(step.text, self._profile.audio_pieces)
        if response.modality == "text":
            for text in [text for text, _ in pieces if text]:
                if response.is_used_up:
                    return False
                response.write(text)
                yield PIECE_SECONDS
            return True
        if response.is_shared:
            self.last_speech = item
        kind = response.audio_format["type"]
        for index, (text, audio) in enumerate(_coded(pieces, kind)):
            if index:
                yield len(audio) / BYTES_PER_SECOND[kind] / self._profile.audio_speed
            if response.is_used_up:
                return False
            response.say(text, audio)
        return True

    def _call(self, response: Response, step: CallTool) -> Generator[float, None, bool]:
        """Returns whether the call is complete."""
        name = self._fault("unknown_tool", "transfer_funds_v2") or step.name
        arguments = {**step.arguments, **(self._fault("extra_argument", {"priority": "high"}) or {})}
        call_id = self._wire.new_id("call")
        item = response.open_call(call_id, name)
        text = json.dumps(arguments, ensure_ascii=False)
        is_broken = self._fault("truncate_arguments", True)
        for piece in _cut(text[: len(text) // 2] if is_broken else text):
            yield PIECE_SECONDS
            response.argue(piece)
        if response.is_shared:
            self._called(call_id, step)
        if is_broken:
            return False
        response.close_item()
        if self._fault("duplicate_call", True):
            response.announce_done(item)
        if self._fault("second_id", True):
            return (yield from self._call(response, step))
        return True

    def _fault(self, name: str, usual: Any) -> Any:
        """The value of a fault that is due now, else None; `usual` stands for a fault given as True."""
        value = self._faults.pop(name, None)
        return usual if value is True else value


def _cut(text: str) -> list[str]:
    return [text[start : start + ARGUMENT_PIECE] for start in range(0, len(text), ARGUMENT_PIECE)]


def _coded(pieces: list[tuple[str, bytes]], kind: Any) -> list[tuple[str, bytes]]:
    """Pieces of speech in an output format: as they are for PCM16 at 24 kHz, resampled and coded for G.711."""
    if kind == "audio/pcm" or not pieces:
        return pieces
    resampler = Resampler(RATE, g711.RATE)
    coded = g711.encode(resampler.feed(b"".join(pcm for _, pcm in pieces)) + resampler.flush(), kind)
    ends = [end // 2 * g711.RATE // RATE for end in accumulate(len(pcm) for _, pcm in pieces)]
    starts = [0, *ends[:-1]]
    return [(text, coded[start:end]) for (text, _), start, end in zip(pieces, starts, [*starts[1:], None], strict=True)]
