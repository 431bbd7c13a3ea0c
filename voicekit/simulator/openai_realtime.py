"""A simulated OpenAI Realtime session: who speaks when, on top of the wire, the ears, the mind and the voice.

Turn-taking follows the vendor's Realtime guide and the docstrings of openai 3.57.0; what differs from model to model is
in its `Profile`, and what was never published is said where it is decided.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pybase64

from voicekit.audio import RATE
from voicekit.rules import Mind
from voicekit.simulator.ears import Ears, Ended, Started, Utterance
from voicekit.simulator.openai_talk import Step, Talk
from voicekit.simulator.server import Connection
from voicekit.simulator.settings import Settings
from voicekit.simulator.voice import Voice
from voicekit.simulator.wire import g711
from voicekit.simulator.wire import openai_realtime as wire
from voicekit.simulator.wire.checks import Refused
from voicekit.simulator.wire.openai_response import Response
from voicekit.steps import CallTool

SESSION_SECONDS = 3600.0  # the vendor's limit: 60 minutes
# From commit to transcript, before or after the answer's first audio. The service does not say; 1.2 s was seen once
TRANSCRIPTION_SECONDS = (0.3, 1.4)
GARBAGE = "<html>502 Bad Gateway</html>"


def serves(path: str) -> bool:
    """Whether a path is that of this service: /realtime or /v1/realtime, also with doubled slashes."""
    return [part for part in path.split("/") if part] in (["realtime"], ["v1", "realtime"])


class Endpoint:
    """One connection to the simulated service.

    Faults (`Settings.faults`), each imitating something reported of the real service; those about calls hit the first
    call of the session:
        late_response         when the first result arrives the server starts a response by itself, which says nothing
                              and lasts so many seconds: the client's response.create is refused
                              (pipecat-ai/pipecat#3960)
        short_by_ms           the server holds so much less audio of each item than it sent (pipecat-ai/pipecat#2106)
        truncate_arguments    the arguments break off and the response ends as incomplete
                              (open-webui/computer#252)
        duplicate_call        the call is delivered twice, under one id
        second_id             the call is made twice, under two ids
        second_message        the response goes on talking after the call (True: "I have no news about that yet.")
        promise_without_call  a response that announces a call ends with the announcement; the call is made when a
                              response is asked for, or, with "always", never (tinyhumansai/openhuman#5552)
        unknown_tool          the call names this tool instead of its own (openai/openai-agents-python#2204)
        extra_argument        {name: value, ...} nobody declared, added to the arguments
        close                 {"after_s": s, "code": 1011, "reason": ""}: closes the socket after s seconds
        stall_after_s         after so many seconds nothing is sent or answered any more
        garbage_after_s       after so many seconds a frame that is no JSON

    Times in the protocol: audio_start_ms and audio_end_ms count the audio appended; expires_at is in seconds of the
    event loop's clock, which a client in the same process shares. `ears`, `mind` and `voice` are for tests.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        *,
        ears: Callable[..., Ears] = Ears,
        mind: Callable[..., Mind] = Mind,
        voice: Callable[..., Voice] = Voice,
    ) -> None:
        self._connection, self._settings, self._faults = connection, settings, dict(settings.faults)
        self._make_ears, self._make_mind, self._voice = settings.fit(ears), mind, voice(settings.language)
        self._loop = asyncio.get_running_loop()
        self._transcription = settings.random("openai transcription")
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by purpose
        self._is_silent = False  # stalled, or closed
        # the caller
        self._rate = RATE
        self._ears = self._make_ears(settings.clips, RATE)
        self._fed_before_ms = 0  # by ears of another format
        self._utterances: dict[str, Utterance] = {}  # by item id
        # the model
        self._running: dict[str, Iterator[float]] = {}  # responses in the making, by id
        self._held: Response | None = None  # asked for while a call is open, on a model that stands still
        self._calls_to_make: list[Step] = []  # what did not fit into one response of a model without parallel calls

    # The connection

    def opened(self) -> None:
        try:
            model = self._model()
        except Refused as refusal:
            wire.Wire("", self._send).refuse(refusal)
            self._close(4000, f"invalid_request_error.{refusal.code}")
            return
        self._profile = self._settings.profile(model)
        self._mind = self._make_mind(self._profile, self._settings.language)
        seconds = self._settings.session_seconds or SESSION_SECONDS
        self._wire = wire.Wire(
            model,
            self._send,
            session_id=f"sess_{round(self._loop.time() * 1e6):012d}",  # another one after a reconnect
            expires_at=round(self._loop.time() + seconds),
            reasoning_model=self._profile.parallel_calls,  # both came with gpt-realtime-2
            short_by_ms=int(self._faults.get("short_by_ms", 0)),
        )
        self._talk = Talk(self._wire, self._settings, self._profile, self._voice, self._mind.called)
        self._listen()
        self._wire.open()
        self._after(seconds, "expiry", self._expire, seconds)
        if "close" in self._faults:
            close = {"code": 1011, "reason": "", **self._faults["close"]}
            self._after(close["after_s"], "close", self._close, close["code"], close["reason"])
        if "stall_after_s" in self._faults:
            self._after(self._faults["stall_after_s"], "stall", self.closed)
        if "garbage_after_s" in self._faults:
            self._after(self._faults["garbage_after_s"], "garbage", self._send_garbage)

    def _model(self) -> str:
        """The model asked for. What the real service says to a bad one: a capture of 2026-09-18."""
        if self._connection.headers.get("openai-beta"):
            message = "The Realtime Beta API is no longer supported. Leave the OpenAI-Beta header out."
            raise Refused("beta_api_shape_disabled", message)
        model = self._connection.query.get("model", [""])[0]
        if not model:
            example = f"{self._connection.path}?model=gpt-realtime"
            raise Refused("missing_model", f"You must provide a model parameter, for example {example}")
        try:
            if self._settings.profile(model).provider == "openai-realtime":
                return model
            raise ValueError("another provider's")
        except ValueError as error:
            raise Refused("invalid_model", f'Model "{model}" is not supported in realtime mode: {error}') from None

    def received(self, frame: Any) -> None:
        if self._is_silent:
            return
        effect = self._wire.receive(frame)
        if isinstance(effect, bytes):
            for event in self._ears.feed(effect):
                if isinstance(event, Started):
                    self._caller_started(event)
                else:
                    self._caller_ended(event)
        elif effect is not None:
            self._handle(effect)

    def closed(self) -> None:
        self._is_silent = True
        for timer in self._timers.values():
            timer.cancel()
        self._running.clear()

    def _close(self, code: int, reason: str) -> None:
        self._connection.close(code, reason)
        self.closed()

    def _expire(self, seconds: float) -> None:
        self._wire.expire(seconds / 60)
        self._close(1001, f"Your session hit the maximum duration of {seconds / 60:g} minutes.")

    def _send_garbage(self) -> None:
        self._connection.send_text(GARBAGE)

    def _send(self, frame: dict[str, Any]) -> None:
        if not self._is_silent:
            self._connection.send(frame)

    def _after(self, seconds: float, purpose: str, action: Callable[..., None], *arguments: Any) -> None:
        self._forget(purpose)
        self._timers[purpose] = self._loop.call_later(seconds, action, *arguments)

    def _forget(self, purpose: str) -> None:
        if purpose in self._timers:
            self._timers.pop(purpose).cancel()

    def _handle(self, effect: wire.Effect) -> None:
        match effect:
            case wire.ConfigChanged():
                self._listen()
            case wire.CommitAsked():
                self._take_turn(self._ears.commit())
            case wire.BufferCleared():
                self._ears.clear()
            case wire.ItemCreated(item):
                self._read(self._mind, item.shown)
                if item.shown["type"] == "function_call_output":
                    self._result_arrived()
            case wire.ItemDeleted(item):
                if item.shown["type"] == "function_call":
                    self._mind.cancelled(item.shown["call_id"])
            case wire.Truncated(item, text_heard):
                if item is self._talk.last_speech:
                    self._mind.cut_off(text_heard)
            case wire.ResponseAsked(response):
                if response.is_shared and self._stands_still:
                    self._held = response
                else:
                    self._generate(response)
            case wire.ResponseCancelled(response):
                self._silence(response)

    # The caller

    @property
    def _turn_detection(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._wire.session["audio"]["input"]["turn_detection"]
        return found

    def _listen(self) -> None:
        """Set the ears to the session's input format and turn detection."""
        kind = self._wire.session["audio"]["input"]["format"]["type"]
        rate = RATE if kind == "audio/pcm" else g711.RATE
        if rate != self._rate:
            self._fed_before_ms += self._ears.fed_ms
            self._rate, self._ears = rate, self._make_ears(self._settings.clips, rate)
        detection = self._turn_detection
        self._ears.automatic = detection is not None
        if detection is None:
            return
        if detection["type"] == "semantic_vad":
            self._ears.listen_for(eagerness=detection["eagerness"])
        else:
            self._ears.listen_for(
                silence_ms=detection["silence_duration_ms"],
                prefix_ms=detection["prefix_padding_ms"],
                threshold=detection["threshold"],
            )

    def _caller_started(self, event: Started) -> None:
        self._forget("idle")
        self._wire.speech_started(self._fed_before_ms + event.at_ms)
        active = self._wire.active
        if active is not None and self._turn_detection and self._turn_detection["interrupt_response"]:
            self._wire.finish(active, "cancelled", "turn_detected")
            self._silence(active)

    def _caller_ended(self, event: Ended) -> None:
        self._wire.speech_stopped(self._fed_before_ms + event.at_ms)
        self._take_turn(event.utterance)
        if self._turn_detection and self._turn_detection["create_response"]:
            self._answer()

    def _take_turn(self, utterance: Utterance) -> None:
        """Put what the caller said into the conversation, and its transcript a little later if one is wanted."""
        item = self._wire.commit_input(utterance.seconds)
        self._utterances[item.id] = utterance
        self._mind.hear(utterance)
        transcription = self._wire.session["audio"]["input"]["transcription"]
        if transcription:
            delay = round(self._transcription.uniform(*TRANSCRIPTION_SECONDS), 3)
            model = transcription["model"] or ""
            self._after(delay, item.id, self._wire.transcribed, item, utterance.transcript, model)

    def _nobody_spoke(self, start_ms: int) -> None:
        """idle_timeout_ms is over: the silence is committed and the model says something."""
        if self._wire.active is not None or self._ears.speaking or self._stands_still:
            return
        end_ms = self._fed_before_ms + self._ears.fed_ms
        self._wire.timeout_triggered(min(start_ms, end_ms), end_ms)
        self._ears.clear()
        seconds = max(0, end_ms - start_ms) / 1000
        self._take_turn(Utterance("", "nothing_to_say", {}, self._settings.language, "", True, seconds))
        self._answer()

    # The model

    @property
    def _stands_still(self) -> bool:
        """Whether the model says nothing now because it waits for a result."""
        return self._profile.waits_for_result and bool(self._mind.open_calls)

    def _answer(self) -> None:
        """Respond to the caller's turn without being asked, if the model has something to say."""
        if self._stands_still:
            return  # the turn stays in the conversation until a response is asked for
        if self._wire.active is not None:  # only with interrupt_response off; "may fail to create a response" (SDK)
            try:
                self._wire.begin_response({})
            except Refused as refusal:
                self._wire.refuse(refusal)
            return
        self._configure(self._mind, {})
        steps = self._mind.next_steps()
        if steps:
            response = self._wire.begin_response({})
            self._start(response, self._talk.respond(response, self._fitting(response, steps)))

    def _generate(self, response: Response) -> None:
        """Fill a response that the client asked for; all results not told so far are told in it."""
        options = response.options
        mind = self._mind
        if "input" in options:
            mind = self._make_mind(self._profile, self._settings.language)
            for given in options["input"]:
                self._read_input(mind, given)
        elif not response.is_shared:
            mind = copy.deepcopy(self._mind)  # it knows the conversation and leaves no trace in it
        self._configure(mind, options)
        left = self._calls_to_make if mind is self._mind else []
        has_calls = any(isinstance(step, CallTool) for step in left)
        if has_calls and not mind.has_something_to_say:
            steps, self._calls_to_make = left, []
        else:
            mind.owe_results()
            steps = mind.next_steps()
            if left and not has_calls:  # only words did not fit beside a call: they come after the news
                steps, self._calls_to_make = [*steps, *left], []
        self._start(response, self._talk.respond(response, self._fitting(response, steps)))

    def _configure(self, mind: Mind, options: Mapping[str, Any]) -> None:
        """Show the mind the instructions and tools that hold for one response."""
        effective = {**self._wire.session, **options}
        choice = effective["tool_choice"]
        tools = [] if choice == "none" else [tool for tool in effective["tools"] if tool["type"] == "function"]
        if isinstance(choice, dict):  # a forced tool; the mind calls it if that makes sense to it
            tools = [tool for tool in tools if tool["name"] == choice.get("name")]
        mind.configure(effective["instructions"], tools)
        self._talk.context_tokens = mind.context_tokens if self._profile.prefill else 0

    def _fitting(self, response: Response, steps: Sequence[Step]) -> list[Step]:
        """What goes into one response: one call at most, unless the model makes parallel calls."""
        allowed = response.options.get("parallel_tool_calls", self._wire.session.get("parallel_tool_calls", False))
        first = next((index for index, step in enumerate(steps) if isinstance(step, CallTool)), len(steps))
        if "promise_without_call" in self._faults and 0 < first < len(steps) and response.is_shared:
            if self._faults["promise_without_call"] != "always":
                self._calls_to_make += steps[first:]
                del self._faults["promise_without_call"]
            return list(steps[:first])
        if allowed or len(steps) <= first + 1:
            return list(steps)
        if response.is_shared:
            self._calls_to_make += steps[first + 1 :]
        return list(steps[: first + 1])

    def _start(self, response: Response, waits: Iterator[float]) -> None:
        if response.is_shared:
            self._forget("idle")
        self._running[response.id] = waits
        self._advance(response, self._loop.time())

    def _advance(self, response: Response, due: float) -> None:
        """Send what is due and set the timer for what comes next, by absolute times so that nothing drifts."""
        wait = next(self._running[response.id], None)
        if wait is not None:
            self._timers[response.id] = self._loop.call_at(due + wait, self._advance, response, due + wait)
            return
        self._running.pop(response.id, None)
        detection = self._turn_detection
        if response.is_shared and detection and detection.get("idle_timeout_ms"):
            silent_from = self._fed_before_ms + self._ears.fed_ms + round(response.audio_seconds * 1000)
            wait = response.audio_seconds + detection["idle_timeout_ms"] / 1000  # once the answer has been played
            self._after(wait, "idle", self._nobody_spoke, silent_from)

    def _silence(self, response: Response) -> None:
        """Stop generating a response that has been cancelled. The model believes that all it sent was heard."""
        self._running.pop(response.id, None)
        self._forget(response.id)
        if response is self._held:
            self._held = None
        if response.is_shared:
            spoken = [item for item in response.items if item.sounded]
            self._mind.cut_off("".join(text for _, text in spoken[-1].pieces) if spoken else "")

    # What the model reads

    def _read(self, mind: Mind, shown: Mapping[str, Any]) -> None:
        """Let a mind read an item that the client wrote."""
        if shown["type"] == "function_call":
            mind.called(shown["call_id"], CallTool(shown["name"], _parsed(shown["arguments"])))
        elif shown["type"] == "function_call_output":
            mind.result(shown["call_id"], shown["output"], owed=False)
        for part in shown.get("content", ()):
            if part["type"] == "input_audio":
                mind.hear(self._recognise(part["audio"]))
            elif "text" in part:
                mind.read("model" if shown["role"] == "assistant" else shown["role"], part["text"])

    def _read_input(self, mind: Mind, given: Mapping[str, Any]) -> None:
        """Let a mind read one entry of `response.input`."""
        if given["type"] != "item_reference":
            self._read(mind, {"call_id": "call", **given})
        elif given["id"] in self._utterances:
            mind.hear(self._utterances[given["id"]])
        else:
            self._read(mind, self._wire.conversation.items[given["id"]].shown)

    def _recognise(self, audio: str) -> Utterance:
        """What is said in an input_audio part of an item."""
        kind = self._wire.session["audio"]["input"]["format"]["type"]
        sound = pybase64.b64decode(audio)
        ears = self._make_ears(self._settings.clips, self._rate)
        ears.automatic = False
        ears.feed(sound if kind == "audio/pcm" else g711.decode(sound, kind))
        understood: Utterance = ears.commit()
        return understood

    def _result_arrived(self) -> None:
        """A result alone never makes the model speak; it only lets a response go on that waited for it."""
        if self._held is not None and not self._stands_still:
            held, self._held = self._held, None
            self._generate(held)
        elif "late_response" in self._faults and self._wire.active is None:
            seconds = float(self._faults.pop("late_response"))
            response = self._wire.begin_response({})
            self._start(response, self._talk.pause(response, seconds))


def _parsed(arguments: str) -> dict[str, Any]:
    """A call's arguments, or none if they are no JSON object."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
