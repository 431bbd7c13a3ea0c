"""Work handed over: whole conversations with GPT-Live in both delegation modes, and the application's desk alone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
from typing import Any

import httpx2
import openai
import pytest
import talks

import voicekit as vk
from voicekit.arguments import InvalidArguments
from voicekit.backend import ToolBackend
from voicekit.caller import Line
from voicekit.clock import run_blocking
from voicekit.delegation import Replaced, Request, Toolbox
from voicekit.delegation_backends import Responses, Rules
from voicekit.experiment import Plan, Scenario
from voicekit.results import ok
from voicekit.runs import Run
from voicekit.world import World

MODEL = "gpt-live-1"
HANDED_TO: dict[str, dict[str, Any]] = {"client": {}, "responses": {"delegation": "responses"}}
MODES = tuple(HANDED_TO)
ORDER_STATUS = "Your order left our warehouse this morning and arrives on Friday."


def talk(scenario: str | Scenario, delegation: str = "client", **options: Any) -> Run:
    return talks.talk(scenario, MODEL, **HANDED_TO[delegation], **options)


def new_talk(scenario: str | Scenario, delegation: str = "client", **options: Any) -> Run:
    """A conversation of its own, for what has a memory (a backend, tools, a supervisor)."""
    return vk.run(scenario, model=MODEL, delegation=delegation, **options)


def of(run: Run, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.event_rows if event["kind"] == kind]


def heard(run: Run) -> list[str]:
    return [event["text"] for event in of(run, "played") if event["text"]]


def conversation(*lines: Line, **tools: float) -> Scenario:
    return Scenario("test", "", tools, lines)


ASKS = conversation(Line("order_status", at=0.5), get_order_status=2.0)  # and that is all the caller says
CORRECTS = conversation(*vk.scenarios()["friday_thursday"].lines[:2], find_appointment=4.0)


# Conversations


ENDS = [
    *itertools.product(["order_status_chatty", "booking"], MODES),
    ("order_status", "client"),
    ("friday_thursday", "responses"),
    ("never_mind", "client"),
    ("two_lookups", "responses"),  # the service's backend makes both calls in one response
]


@pytest.mark.parametrize(("scenario", "delegation"), ENDS)
def test_conversations_end_by_themselves_and_owe_nothing(scenario: str, delegation: str) -> None:
    run = talk(scenario, delegation)
    assert of(run, "problem") == of(run, "cue_missed") == of(run, "unspoken") == []
    assert run.values["unanswered_calls"] == 0
    assert run.values["stale_spoken"] == 0
    assert run.values["duplicate_effects"] == 0
    assert run.values["audio_check_ms"] <= 20
    assert run.values["generated_seconds"] == pytest.approx(run.values["heard_seconds"])  # nothing is ever unheard
    assert run.meta["delegation"] == delegation
    sent = [row["type"] for row in run.wire_rows if row["direction"] == "sent"]
    received = [row["type"] for row in run.wire_rows if row["direction"] == "received" and row["type"] != "close"]
    assert (sent[0], received[0]) == ("session.start", "session.started")
    assert ("session.close" in sent, received[-1]) == (True, "session.closed")
    audio = [row["t"] for row in run.wire_rows if row["type"] == "session.input_audio.append"]
    assert max(b - a for a, b in itertools.pairwise(audio)) < 0.11  # silence included: the model's time depends on it


@pytest.mark.parametrize("delegation", MODES)
def test_it_goes_on_talking_while_the_work_runs(delegation: str) -> None:
    run = talk("order_status_chatty", delegation)
    assert heard(run) == [
        "I'll check that now.",
        "We are open from nine to six, Monday to Saturday.",
        ORDER_STATUS,
        "You're welcome. Goodbye.",
    ]
    assert run.values["dead_air_longest"] < 3.0


@pytest.mark.parametrize("delegation", MODES)
def test_finished_said_and_heard_are_three_records(delegation: str) -> None:
    run = talk("order_status", delegation)
    (finished,) = of(run, "done")
    speech = next(event for event in of(run, "generated") if event["text"] == ORDER_STATUS)
    played = next(event for event in of(run, "played") if event["text"] == ORDER_STATUS)
    began = next(event["t"] for event in of(run, "generating") if event["item"] == speech["item"])
    if delegation == "client":
        given = next(event for event in of(run, "append") if event["text"] == ORDER_STATUS)
        taken = next(event for event in of(run, "appended") if event["item"] == given["item"])
        assert finished["t"] <= given["t"] < taken["t"] < began
    else:
        written = next(event for event in of(run, "work_done") if event["text"])
        assert finished["t"] < written["t"] < began
    assert began < played["detail"]["stop"] <= played["t"]
    assert run.values["done_to_heard"] == pytest.approx(played["detail"]["audible"][0][0] - finished["t"], abs=0.11)
    assert 1.5 < run.values["done_to_heard"] < 4.0


def test_the_same_run_twice_is_the_same_to_the_byte() -> None:
    for delegation in MODES:
        first, second = (hold("order_status_chatty", delegation) for hold in (talk, new_talk))
        assert json.dumps(first.event_rows) == json.dumps(second.event_rows)  # the journal and every frame
        assert json.dumps(first.wire_rows) == json.dumps(second.wire_rows)


# With seed 2 the application is handed the work before the caller's last words; in the other mode it is not asked.
@pytest.mark.parametrize(("delegation", "seed"), [("client", 0), ("client", 2), ("responses", 0)])
def test_friday_is_never_spoken_of_and_thursday_is_booked(delegation: str, seed: int) -> None:
    run = talk("friday_thursday", delegation, **({"seed": seed} if seed else {}))
    assert run.values["stale_dropped"] == 1 and run.values["stale_spoken"] == 0
    assert not any("Friday" in text for text in heard(run))
    booked = [json.loads(call["arguments"]) for call in run.call_rows if call["effect"] == "committed"]
    assert booked == [{"day": "thursday", "time": "14:00"}]


@pytest.mark.parametrize(
    ("scenario", "delegation", "bookings"), [("friday_thursday", "client", 1), (CORRECTS, "responses", 0)]
)
def test_late_results_are_spoken_if_the_policy_says_so(scenario: Any, delegation: str, bookings: int) -> None:
    run = talk(scenario, delegation, stale="speak")
    assert any("On Friday" in text for text in heard(run)) and any("On Thursday" in text for text in heard(run))
    assert (run.values["stale_spoken"], run.values["stale_dropped"], run.values["unanswered_calls"]) == (1, 0, 0)
    booked = [call["arguments"] for call in run.call_rows if call["effect"] == "committed"]
    assert booked == ['{"day":"thursday","time":"14:00"}'] * bookings


@pytest.mark.parametrize("delegation", MODES)
def test_late_results_are_known_and_unsaid_if_the_policy_says_so(delegation: str) -> None:
    run = talk(CORRECTS, delegation, stale="silent")
    assert not any("On Friday" in text for text in heard(run)) and any("On Thursday" in text for text in heard(run))
    assert run.values["unanswered_calls"] == 0
    if delegation == "client":
        given = next(event for event in of(run, "append") if "On Friday" in event["text"])
        assert given["detail"]["channel"] == "thinking"


@pytest.mark.parametrize("delegation", MODES)
def test_a_silent_delivery_is_known_and_not_said(delegation: str) -> None:
    run = talk(ASKS, delegation, delivery="silent")
    assert ORDER_STATUS not in heard(run)
    assert run.values["unanswered_calls"] == 0


# One gate, one ledger (openclaw/openclaw#115562)


@pytest.mark.parametrize("delegation", MODES)
def test_both_ways_lead_through_one_ledger(delegation: str) -> None:
    run = talk("booking", delegation)
    (call,) = run.call_rows
    assert (call["tool"], call["state"], call["effect"]) == ("book_appointment", "done", "committed")
    assert call["route"] == "delegation"
    assert call["delivered"] is not None
    kinds = [event["kind"] for event in run.event_rows if event["lane"] == "tool"]
    assert kinds == ["proposed", "validated", "running", "committed", "done", "answered"]
    asked = next(i for i, text in enumerate(heard(run)) if text.startswith("Shall I book"))
    assert asked < next(i for i, text in enumerate(heard(run)) if "is booked" in text)


@pytest.mark.parametrize("delegation", MODES)
def test_a_gate_in_the_tool_backend_holds_for_both_ways(delegation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ToolBackend, call_id: str, name: str, arguments_json: str) -> dict[str, Any]:
        error = InvalidArguments("not_allowed", f"{name} is not allowed on the telephone")
        self.reject(call_id, error.result())
        raise error

    monkeypatch.setattr(ToolBackend, "validate", refuse)
    run = new_talk(booking(seconds=2.0), delegation)
    assert {call["state"] for call in run.call_rows} == {"rejected"}  # asked for once more, as a repair
    assert of(run, "running") == of(run, "committed") == []
    assert any("is not allowed on the telephone" in text for text in heard(run))
    assert not any("is booked" in text for text in heard(run))
    assert run.values["unanswered_calls"] == 0


class Calls:
    """A backend that makes the calls it was given and keeps what they answered."""

    def __init__(self, *calls: tuple[str, Any]) -> None:
        self.calls, self.answers = calls, []  # type: ignore[var-annotated]

    async def work(self, _request: Request, tools: Toolbox) -> str:
        for name, arguments in self.calls:
            self.answers.append(await tools.call(name, arguments))
        return "That is all."


def test_a_backend_cannot_get_past_the_gate() -> None:
    backend = Calls(("transfer_funds_v2", {}), ("get_order_status", "{broken"), ("get_order_status", {"order_id": 7}))
    run = new_talk(ASKS, backend=backend)
    assert [answer["reason"] for answer in backend.answers] == ["unknown_tool", "not_json", "invalid_value"]
    assert [call["state"] for call in run.call_rows] == ["rejected"] * 3
    assert run.values["unanswered_calls"] == 0
    assert "That is all." in heard(run)


# Rapid delegations (openclaw/openclaw#116211)


def test_case_28_a_thousand_delegations_are_one_task_at_a_time_and_the_last_one_speaks() -> None:
    active, most, begun = 0, 0, []

    class Stubborn:
        """Ignores cancellation for two seconds."""

        async def work(self, request: Request, _tools: Toolbox) -> str:
            nonlocal active, most
            active += 1
            most = max(most, active)
            begun.append(request.delegation)
            rest = asyncio.get_running_loop().time() + 2.0
            while (left := rest - asyncio.get_running_loop().time()) > 0:
                try:
                    await asyncio.sleep(left)
                except asyncio.CancelledError:
                    continue
            active -= 1
            return f"This is the answer to {request.delegation}."

    run = new_talk(ASKS, backend=Stubborn(), faults={"delegations": {"count": 1000, "seconds": 1.0}})
    created = [event["item"] for event in of(run, "delegated")]
    assert len(created) == 1000
    assert most == 1
    assert len(begun) <= 3
    assert begun[-1] == created[-1]
    assert len(of(run, "replaced")) == 1000 - len(begun)  # at most one ever waited: each but those begun was replaced
    given = [event["detail"]["delegation"] for event in of(run, "append")]
    assert given == [created[-1]]
    assert [text for text in heard(run) if "answer" in text] == [f"This is the answer to {created[-1]}."]


@pytest.mark.parametrize(("stale", "channel"), [("drop", None), ("silent", "thinking"), ("speak", "commentary")])
def test_a_backend_that_answers_although_it_was_replaced_follows_the_policy(stale: str, channel: str | None) -> None:
    class Unmoved:
        """Calls no tool and does not let itself be cancelled."""

        async def work(self, request: Request, _tools: Toolbox) -> str:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(2.0)
            return f"This is the answer to {request.delegation}."

    run = new_talk(ASKS, backend=Unmoved(), stale=stale, faults={"delegations": {"count": 2, "seconds": 1.0}})
    first, last = (event["item"] for event in of(run, "delegated"))
    answers = [event["detail"] for event in of(run, "append")]
    wanted = ([] if channel is None else [(first, channel)]) + [(last, "commentary")]
    assert [(each["delegation"], each["channel"]) for each in answers] == wanted
    told = " ".join(heard(run))
    assert (f"answer to {first}." in told) is (channel == "commentary") and f"answer to {last}." in told


def test_a_tool_that_cannot_be_stopped_is_waited_for_and_not_doubled() -> None:
    stubborn = [each for each in World().tools(seconds=2.0) if each.name == "get_order_status"]
    tools = tuple(dataclasses.replace(each, cancellable=False) for each in stubborn)
    run = new_talk(ASKS, tools=tools, faults={"delegations": {"count": 50, "seconds": 1.0}})
    started = sorted((call["started"], call["finished"]) for call in run.call_rows)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(started))
    assert heard(run).count(ORDER_STATUS) == 1
    assert run.values["unanswered_calls"] == 0


# Speech and work are two things


def test_interrupting_the_speech_leaves_the_work_running() -> None:
    """The service's backend works on; that the application does is shown by lesson 7, with a booking."""
    scenario = conversation(
        Line("order_status", at=0.5),
        Line("stop_talking", after="heard_text", text="check"),
        get_order_status=5.0,
    )
    run = talk(scenario, "responses")
    stopped = [event["t"] for event in of(run, "speech_stop")][-1]
    assert stopped < run.call_rows[0]["finished"]  # there was something left to stop
    assert [call["state"] for call in run.call_rows] == ["done"]
    assert ORDER_STATUS in heard(run)
    assert len(of(run, "delegated")) == 1


def booking(*words: str, seconds: float) -> Scenario:
    """A booking that takes effect half-way, and what the caller says one second after it has begun."""
    return conversation(
        Line("book_thursday", at=0.5),
        Line("yes_please", after="agent_done", seconds=0.5),
        *[Line(word, after="tool_starts" if word == words[0] else "agent_done", seconds=1.0) for word in words],
        book_appointment=seconds,
        cancel_appointment=1.0,
    )


BOOKED = "Your appointment on Thursday at two is booked."
TOO_LATE = "I could not stop it any more, but it can be undone."
PASSED_ON = "All right, I'll pass that on."


@pytest.mark.parametrize(("delegation", "choice"), [("client", "cancel"), ("responses", "finish")])
def test_a_booking_that_could_not_be_stopped_is_told(delegation: str, choice: str) -> None:
    run = talk(booking("never_mind", seconds=4.0), delegation, on_barge_in=choice)
    assert [call["effect"] for call in run.call_rows] == ["committed"]
    said = " ".join(heard(run))
    assert f"{BOOKED} {TOO_LATE}" in said
    assert "forget about that" not in said and "was cancelled" not in said
    assert run.values["unanswered_calls"] == run.values["stale_spoken"] == 0


@pytest.mark.parametrize("delegation", MODES)
def test_what_was_taken_back_too_late_stays_unsaid_if_stale_is_silent(delegation: str) -> None:
    run = talk(booking("never_mind", seconds=4.0), delegation, stale="silent")
    assert [call["effect"] for call in run.call_rows] == ["committed"]
    assert not any("is booked" in text for text in heard(run)) and of(run, "not_said")


@pytest.mark.parametrize(
    ("delegation", "words", "choice"),  # what newer speech takes back is stopped, whatever an interruption does
    [
        ("client", "never_mind", "finish"),
        ("client", "cancel_booking", "cancel"),
        ("responses", "never_mind", "cancel"),
        ("responses", "cancel_booking", "finish"),
    ],
)
def test_that_it_was_cancelled_is_said_once_and_after_the_ledger_says_so(
    delegation: str, words: str, choice: str
) -> None:
    run = talk(booking(words, seconds=12.0), delegation, on_barge_in=choice)
    (call,) = run.call_rows
    assert (call["state"], call["effect"]) == ("cancelled", "none")
    assert " ".join(heard(run)).count("That was cancelled.") == 1 and PASSED_ON in " ".join(heard(run))
    words_heard = [(t, word) for each in of(run, "played") for t, word in each["detail"]["words"]]
    assert next(t for t, word in words_heard if "cancelled" in word) > call["finished"]
    assert not any("understand" in text or "forget" in text for text in heard(run))
    assert run.values["unanswered_calls"] == 0


@pytest.mark.parametrize("delegation", MODES)
def test_a_booking_that_is_made_is_told_and_its_cancellation_offered_and_done(delegation: str) -> None:
    run = talk(booking("cancel_booking", "yes_please", seconds=1.8), delegation)
    assert [(call["tool"], call["effect"]) for call in run.call_rows] == [
        ("book_appointment", "undone"),
        ("cancel_appointment", "committed"),
    ]
    said = " ".join(heard(run))
    parts = [BOOKED, "Shall I cancel your appointment on Thursday at two?", "Thursday at two is cancelled."]
    assert sorted(said.find(part) for part in parts) == [said.find(part) for part in parts] and BOOKED in said


def test_words_that_come_late_take_nothing_back_a_second_time() -> None:
    """The transcript pauses before its last word, counts as closed, and goes on under the same name."""
    scenario = vk.scenarios()["interrupted_booking"]
    run = talk(dataclasses.replace(scenario, lines=scenario.lines[:-1]), tool_seconds=7.0)
    closed = [event["text"] for event in of(run, "understood") if event["text"].startswith("Never mind")]
    assert len(closed) == 2
    assert len(of(run, "finish")) == 1


def test_cancel_my_booking_without_a_tool_for_it_stops_the_booking_all_the_same() -> None:
    for delegation in MODES:
        scenario = booking("cancel_booking", seconds=12.0)
        only = dataclasses.replace(scenario, tools={"book_appointment": 12.0})
        run = talk(only, delegation)
        assert [call["effect"] for call in run.call_rows] == ["none"]
        assert any("That was cancelled." in text for text in heard(run))
        assert not any("cannot do that" in text for text in heard(run))


def test_cancelled_is_said_only_when_it_is() -> None:
    scenario = conversation(
        Line("cancel_friday", at=0.5),
        Line("yes_please", after="agent_done", seconds=0.5),
        cancel_appointment=1.5,
    )
    for delegation in MODES:
        run = talk(scenario, delegation)
        (done,) = of(run, "done")
        told = [event for event in of(run, "generating") if event["t"] > done["t"]]
        claims = [event for event in of(run, "generated") if "is cancelled" in event["text"]]
        assert [event["item"] for event in claims] == [told[0]["item"]]


# Answers nobody hears


@pytest.mark.parametrize("delegation", MODES)
def test_an_answer_after_the_session_is_kept_for_the_reader(delegation: str) -> None:
    run = talk("order_status", delegation, faults={"close": {"after_s": 9.0}})
    (kept,) = run.undelivered
    assert kept["text"] == ORDER_STATUS
    assert kept["t"] > 9.0
    assert kept["call_id"] == run.call_rows[0]["call_id"]
    assert "1011" in kept["why"]
    assert run.call_rows[0]["state"] == "done"
    assert run.call_rows[0]["delivered"] is None
    assert ORDER_STATUS not in heard(run)


def test_acknowledged_and_never_spoken() -> None:
    run = talk(ASKS, faults={"unspoken": True})
    given = next(event for event in of(run, "append") if event["text"] == ORDER_STATUS)
    assert given["item"] in [event["item"] for event in of(run, "appended")]
    (unspoken,) = of(run, "unspoken")
    assert unspoken["item"] == given["item"]
    assert unspoken["detail"]["why"] == "acknowledged, but nobody heard it"
    assert run.values["done_to_heard"] is None


# Backends


def test_a_backend_is_any_object_with_work() -> None:
    seen: list[Request] = []

    class Mine:
        async def work(self, request: Request, tools: Toolbox) -> str:
            seen.append(request)
            await tools.note("Thinking about it.")
            result = await tools.call("get_order_status", {"order_id": "OD-20260818-001"})
            return f"I looked: {result['summary']}"

    run = new_talk(ASKS, backend=Mine())
    assert f"I looked: {ORDER_STATUS}" in heard(run)
    assert [(request.delegation, request.texts) for request in seen] == [
        ("item_0001", ("Hi, where is my order OD-20260818-001?",))
    ]
    assert ("caller", "Hi, where is my order OD-20260818-001?") in seen[0].history


def test_a_backend_that_breaks_does_not_break_the_call() -> None:
    class Broken:
        async def work(self, _request: Request, _tools: Toolbox) -> str:
            raise ZeroDivisionError("by zero")

    run = new_talk(ASKS, backend=Broken())
    assert [event["text"] for event in of(run, "backend_failed")] == ["ZeroDivisionError: by zero"]
    assert "Something went wrong." in heard(run)


def test_a_request_is_made_when_the_sentence_is_whole() -> None:
    for seed in (0, 2):  # the last words come before the delegation or after it
        run = talk("quick_lookup", seed=seed)
        assert [event["text"] for event in of(run, "took_up")] == ["Do you have the blue kettle in stock?"]


class Tools:
    """A toolbox for a backend alone: answers by name, and may have been replaced."""

    def __init__(self, replaced: bool = False) -> None:
        self.replaced, self.calls, self.notes = replaced, [], []  # type: ignore[var-annotated]
        self.declarations = tuple(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in World().tools()
        )

    async def call(self, name: str, arguments: Any) -> dict[str, Any]:
        self.calls.append((name, json.loads(arguments) if isinstance(arguments, str) else arguments))
        if self.replaced:
            raise Replaced("newer speech")
        return ok(f"Result of {name}.", time="14:00", **({"day": arguments["day"]} if "day" in arguments else {}))

    async def note(self, text: str) -> None:
        self.notes.append(text)


def work(backend: Any, tools: Tools, *texts: str, delegation: str = "d1") -> str:
    return str(run_blocking(lambda: backend.work(Request(delegation, texts), tools)))


def test_rules_read_the_transcript_as_the_simulated_models_hear_it() -> None:
    backend, tools = Rules(), Tools()
    assert work(backend, tools, "Is the blue kettle in stock, and how much is shipping?") == (
        "Result of check_stock. Result of get_shipping."
    )
    assert work(backend, tools, "Please book an appointment on Thursday at two.") == "Shall I book Thursday at two?"
    assert work(backend, tools, "Yes, please.", delegation="d2") == "Result of book_appointment."
    assert tools.calls[-1] == ("book_appointment", {"day": "thursday", "time": "14:00"})
    assert work(backend, tools, "Never mind. What time do you close today?") == ""  # the voice has answered that
    assert work(backend, tools, "Wibble wobble the purple tangent.").startswith("Sorry, I did not understand")


def test_rules_take_up_what_was_replaced_before_it_began() -> None:
    tools = Tools()
    texts = ("Do you have the blue kettle in stock?", "And where is order OD-20260818-002?")
    work(Rules(), tools, *texts)
    assert {name for name, _ in tools.calls} == {"check_stock", "get_order_status"}


def test_rules_know_what_a_correction_corrects_after_they_were_replaced() -> None:
    backend = Rules()
    with pytest.raises(Replaced):
        work(backend, Tools(replaced=True), "I need an appointment on Friday, please.")
    tools = Tools()
    assert work(backend, tools, "No, make that Thursday.", delegation="d2") == "Result of find_appointment."
    assert tools.calls == [("find_appointment", {"day": "thursday"})]


def test_the_responses_backend_calls_function_tools_until_there_is_an_answer() -> None:
    asked: list[dict[str, Any]] = []
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "check_stock", "status": "completed"}
    text = {"type": "output_text", "text": "There are twelve.", "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content))
        output = [call | {"arguments": '{"item": "blue kettle"}'}] if len(asked) == 1 else [message]
        return httpx2.Response(200, json={"id": f"resp_{len(asked)}", "object": "response", "output": output})

    tools = Tools()

    async def main() -> str:
        http = openai.DefaultAsyncHttpxClient(transport=httpx2.MockTransport(answer))
        async with openai.AsyncOpenAI(api_key="x", base_url="http://127.0.0.1/v1", http_client=http) as client:
            history = (("caller", "Hello."), ("agent", "Hello!"))
            request = Request("d1", ("Do you have the blue kettle in stock?",), history)
            return await Responses(client, "gpt-6-sol", "Be brief.").work(request, tools)  # type: ignore[arg-type]

    assert run_blocking(main) == "There are twelve."
    assert tools.calls == [("check_stock", {"item": "blue kettle"})]
    assert [item["role"] for item in asked[0]["input"]] == ["user", "assistant", "user"]
    assert asked[0]["tools"][0]["type"] == "function"
    assert asked[0]["instructions"].startswith("Be brief.")
    assert asked[1]["previous_response_id"] == "resp_1"
    assert [item["call_id"] for item in asked[1]["input"]] == ["call_1"]
    assert json.loads(asked[1]["input"][0]["output"])["summary"] == "Result of check_stock."


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "gpt-realtime", "delegation": "client"}, "hands no work over"),
        ({"model": "gpt-live-1", "delegation": "decisions"}, '"client" or "responses"'),
        ({"model": "gpt-live-1", "delegation": "responses", "backend": Rules()}, "the service has one"),
        ({"model": "gpt-live-1", "delivery": "interrupt"}, "cannot be interrupted"),
        ({"model": "gpt-live-1", "behavior": "blocking"}, "has no blocking calls"),
        ({"model": "gpt-live-1", "target": "live"}, "OPENAI_API_KEY"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match=message):
        vk.run("order_status", **options)


def test_the_service_delegates_to_the_client_unless_told_otherwise() -> None:
    assert Plan.of("order_status", model="gpt-live-1").delegation == "client"
    assert Plan.of("order_status", model="gpt-realtime").delegation is None


def test_a_supervisor_hears_both_sides_and_no_task_text() -> None:
    seen: list[dict[str, Any]] = []
    run = new_talk(ASKS, supervisor=seen.append)
    assert ORDER_STATUS in heard(run)
    types = {frame["type"] for frame in seen}
    assert {"session.input_audio.append", "session.output_audio.delta", "session.delegation.created"} <= types
    assert "session.closed" in types
    delegation = next(frame for frame in seen if frame["type"] == "session.delegation.created")
    assert set(delegation["delegation"]) == {"id", "type", "target"}
    assert "bytes of audio" in next(frame for frame in seen if frame["type"] == "session.output_audio.delta")["delta"]


def test_a_preamble_needs_a_turn() -> None:
    run = talk("order_status")
    assert run.values["preamble_rate"] is None  # there are no turns, so none is "in the same turn"
