"""The gate: the same irreversible tool over every route, and what opens it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_session import App, call

import voicekit as vk
from voicekit.backend import ToolBackend
from voicekit.clock import run_blocking
from voicekit.gate import CONSENT_SECONDS, ROUTES, Gate
from voicekit.guardrails import Ruling, judge_call
from voicekit.ledger import Ledger
from voicekit.results import ok
from voicekit.sessions.base import Heard, ToolCall, ToolCallCancelled
from voicekit.tools import IdempotencyKey, Tool
from voicekit.world import World

MODELS = {
    "realtime": "gpt-realtime", "gemini": "gemini-3.8-live", "delegation": "gpt-live-1", "mcp": "gpt-realtime",
    "direct": "gpt-realtime",
}  # fmt: skip
FRIDAY, THURSDAY = {"day": "friday", "time": "10:00"}, {"day": "thursday", "time": "14:00"}
QUESTION = "Shall I cancel your appointment on Friday at ten?"
CANCEL = "cancel_appointment"


class Route:
    """One conversation in which the tool can be reached by one route."""

    def __init__(self, name: str, without_asking: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.world = World(bookings=[("friday", "10:00"), ("thursday", "14:00"), ("friday", "10:00")])
        policy = vk.Policy(without_asking=without_asking, same_action="call")
        self.app = App(MODELS[name], self.world.tools(seconds=0.5), policy)
        self.app.session.answer = lambda ids: None  # the model does not ask by itself
        self.number = 0

    async def call(self, arguments: dict[str, str] = FRIDAY, tool: str = CANCEL) -> str:
        """Reach for the tool, and let all that comes of it come to its end; returns the call's id."""
        self.number += 1
        call_id, app = f"call_{self.number}", self.app
        proposal = ToolCall(call_id, tool, json.dumps(arguments))
        if self.name in ("realtime", "gemini"):
            app.session.speak("", calls=(proposal,))
        elif self.name == "delegation":
            await app.dispatcher.carry_out(app.dispatcher.enter(proposal))
        else:
            entered = app.dispatcher.enter(call(f"asked_{self.number}", tool, json.dumps(arguments)))
            entered.arguments = dict(arguments)
            await app.dispatcher.asking.has_agreed(entered)
            await app.dispatcher.backend.call(tool, arguments, call_id=call_id, route=self.name)
        await asyncio.sleep(2.0)
        return call_id

    async def ask(self, question: str = QUESTION, listen: float = 1.5) -> None:
        """The agent asks, which takes one second."""
        self.app.session.speak(question)
        await asyncio.sleep(listen)

    async def say(self, text: str) -> None:
        self.app.session.caller_says(text, 0.3)
        await asyncio.sleep(1.0)

    @property
    def cancelled(self) -> int:
        return 3 - len(self.world.bookings)


async def nobody_asked(route: Route) -> None:
    await route.call()


async def asked_and_agreed(route: Route) -> None:
    await route.ask()
    await route.say("Yes, please.")
    await route.call()


async def refused(route: Route) -> None:
    await route.ask()
    await route.say("No, thank you.")
    await route.call()


async def yes_but_wait(route: Route) -> None:
    await route.ask()
    await route.say("Okay, wait, don't do that.")
    await route.call()


async def near_miss(route: Route) -> None:
    await route.ask()
    await route.say("Sure, but what does it cost?")
    await route.call()


async def answered_before_it_was_heard(route: Route) -> None:
    await route.ask(listen=0.4)
    await route.say("Yes, please.")
    await route.call()


async def answered_into_the_question(route: Route) -> None:
    """On a line where a short word does not stop the agent, the question is heard to its end all the same."""
    session = route.app.session
    session.speak(QUESTION)
    await asyncio.sleep(0.4)
    session.emit(Heard("Yes, ", "u", final=False))
    await asyncio.sleep(1.0)
    session.emit(Heard("Yes, please.", "u"))
    await route.call()


async def granted_and_taken_back(route: Route) -> None:
    route.app.dispatcher.backend.gate.grant(CANCEL, FRIDAY, at=route.app.now())
    await route.say("Never mind.")
    await route.call()


async def yes_to_nothing(route: Route) -> None:
    await route.ask("Your appointment is on Friday at ten.")
    await route.say("Yes.")
    await route.call()


async def other_arguments(route: Route) -> None:
    await route.ask()
    await route.say("Yes, please.")
    await route.call(THURSDAY)


async def other_tool(route: Route) -> None:
    await route.ask("Shall I book Friday at ten?")
    await route.say("Yes, please.")
    await route.call()


async def expired(route: Route) -> None:
    await route.ask()
    await route.say("Yes, please.")
    await asyncio.sleep(CONSENT_SECONDS + 1)
    await route.call()


async def used_twice(route: Route) -> None:
    await asked_and_agreed(route)
    await route.call()


async def taken_back(route: Route) -> None:
    await route.ask()
    await route.say("Yes, please.")
    await route.say("Never mind.")
    await route.call()


async def cancelled_by_the_server(route: Route) -> None:
    call_id = await route.call()
    route.app.session.emit(ToolCallCancelled((call_id, "nobody_knows_this")))
    await asyncio.sleep(0.1)
    route.app.dispatcher.backend.cancel(call_id)
    await route.ask()
    await route.say("Yes, please.")


Story = Callable[[Route], Awaitable[None]]
STORIES: dict[Story, int] = {
    nobody_asked: 0, asked_and_agreed: 1, refused: 0, yes_but_wait: 0, near_miss: 0, answered_before_it_was_heard: 0,
    answered_into_the_question: 0, granted_and_taken_back: 0, yes_to_nothing: 0, other_arguments: 0, other_tool: 0,
    expired: 0, used_twice: 1, taken_back: 0, cancelled_by_the_server: 0,
}  # fmt: skip


def tell(name: str, story: Story, without_asking: frozenset[str] = frozenset()) -> Route:
    async def main() -> Route:
        route = Route(name, without_asking)
        async with route.app as app:
            await story(route)
            app.dispatcher.asking.let_go("the end")
            await asyncio.sleep(0.1)
        return route

    return run_blocking(main)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
@pytest.mark.parametrize("name", ROUTES)
def test_case_75_one_gate_in_front_of_every_route(name: str, story: Story) -> None:
    route = tell(name, story)
    assert route.cancelled == STORIES[story]
    rows = [row for row in route.app.ledger.rows() if not row["call_id"].startswith("asked")]
    assert sum(row["effect"] == "committed" for row in rows) == STORIES[story]
    assert {row["state"] for row in rows if row["effect"] == "none"} <= {"rejected", "cancelled"}
    assert all(row["route"] == name for row in rows)


@pytest.mark.parametrize("name", ROUTES)
def test_what_is_on_the_list_runs_without_a_question(name: str) -> None:
    route = tell(name, nobody_asked, frozenset({CANCEL}))
    assert route.cancelled == 1 and "hold" not in route.app.kinds("decision")


def backend(gate: Gate, *tools: Tool) -> ToolBackend:
    return ToolBackend(tools or World(bookings=[("friday", "10:00")]).tools(seconds=0.1), Ledger(), gate=gate)


@pytest.mark.parametrize("without_asking", [None, frozenset({CANCEL}), frozenset()])
def test_an_unknown_route_is_closed_whatever_the_list_says(without_asking: frozenset[str] | None) -> None:
    async def main() -> Any:
        tools = backend(Gate(without_asking))
        tools.gate.grant(CANCEL, FRIDAY, at=0.0)
        return await tools.call(CANCEL, FRIDAY, route="carrier pigeon"), tools.ledger.rows()

    result, (row,) = run_blocking(main)
    assert (result["status"], result["reason"], row["state"], row["effect"]) == (
        "failed", "unknown_route", "rejected", "none",
    )  # fmt: skip


def test_a_consent_is_for_one_call_with_these_arguments_until_it_expires() -> None:
    async def main() -> list[str]:
        tools = backend(Gate(frozenset(), expires_after=10.0))
        loop = asyncio.get_running_loop()
        tools.gate.grant(CANCEL, dict(reversed(FRIDAY.items())), at=loop.time())  # the order of keys is no difference
        found = [(await tools.call(CANCEL, arguments))["status"] for arguments in (THURSDAY, FRIDAY, FRIDAY)]
        tools.gate.grant(CANCEL, FRIDAY, at=loop.time())
        await asyncio.sleep(10.0)
        result = await tools.call(CANCEL, FRIDAY)
        return [*found, result["reason"]]

    assert run_blocking(main) == ["needs_consent", "ok", "needs_consent", "expired"]


def test_the_list_cannot_be_changed_once_it_is_there() -> None:
    gate = Gate({"check_stock"})
    with pytest.raises(AttributeError, match="fixed before the session starts"):
        gate.without_asking = frozenset({CANCEL})  # type: ignore[misc]
    assert gate.without_asking == {"check_stock"}
    names = {"check_stock"}
    policy = vk.Policy(without_asking=names)  # type: ignore[arg-type]
    names.add(CANCEL)
    assert policy.without_asking == {"check_stock"}


def test_a_misspelled_name_on_the_list_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match=r"no tool is called 'find_apointment'; known: .*find_appointment"):
        vk.run("booking", model="gpt-realtime", without_asking={"find_apointment"})
    with pytest.raises(ValueError, match="without_asking is a set of tool names, not 'find_appointment'"):
        vk.Policy(without_asking="find_appointment")  # type: ignore[arg-type]


# A model is no gatekeeper


def refund() -> tuple[Tool, list[int]]:
    paid: list[int] = []

    async def refund(euros: int, confirm: bool, key: IdempotencyKey) -> dict[str, Any]:
        """Pay money back. `confirm` is true once the caller has agreed."""
        paid.append(euros)
        return ok(f"{euros} euros are on their way.")

    return Tool.of(refund, effect="irreversible", seconds=0.2), paid


@pytest.mark.parametrize("model", ["gpt-realtime", "gemini-3.8-live", "gpt-live-1"])
def test_case_76_a_flag_the_model_sets_is_no_consent(model: str) -> None:
    tool, paid = refund()

    async def main() -> App:
        app = App(model, [tool], vk.Policy(without_asking=frozenset()))
        app.session.answer = lambda ids: None
        async with app:
            app.session.caller_says("The limit is one thousand now. Refund five hundred.", 1.0)
            await asyncio.sleep(1.5)
            proposal = call("c", "refund", '{"euros": 500, "confirm": true}')
            if model == "gpt-live-1":
                await app.dispatcher.carry_out(app.dispatcher.enter(proposal))
            else:
                app.session.speak("", calls=(proposal,))
            await asyncio.sleep(3.0)
            app.dispatcher.asking.let_go("the end")
            await asyncio.sleep(0.1)
        return app

    app = run_blocking(main)
    assert paid == [] and app.calls()["c"]["effect"] == "none"
    assert "hold" in app.kinds("decision")


def test_an_id_of_an_earlier_session_is_not_answered_with_its_result() -> None:
    tool, paid = refund()

    async def main() -> App:
        app = App("gpt-realtime", [tool])
        app.ledger.propose("c", "refund", "{}", at=0.0)
        async with app:
            app.session.speak("", calls=(call("c", "refund", '{"euros": 5, "confirm": true}'),))
            await app.rest()
        return app

    app = run_blocking(main)
    ((_, told, _, _),) = app.session.of("result")
    assert told["reason"] == "call_id_taken" and paid == []


# Rules that decide without asking


def over_100(tool: Tool, arguments: dict[str, Any], result: dict[str, Any] | None) -> Ruling | None:
    if result is None and arguments["euros"] > 100:
        return vk.skip("refunds over 100 euros are for a person")
    return None


@pytest.mark.parametrize("route", ROUTES)
def test_a_rule_holds_for_every_route_and_comes_before_consent(route: str) -> None:
    tool, paid = refund()

    async def main() -> list[str]:
        tools = backend(Gate(frozenset(), rules=[over_100]), tool)
        found = []
        for euros in (500, 50):
            arguments = {"euros": euros, "confirm": True}
            tools.gate.grant("refund", arguments, at=asyncio.get_running_loop().time())
            result = await tools.call("refund", arguments, route=route)
            found.append(result.get("reason", result["status"]))
        return found

    assert run_blocking(main) == ["guardrail", "ok"] and paid == [50]


def test_a_rule_may_replace_the_output_or_end_the_run_and_a_broken_one_lets_nothing_through() -> None:
    def replaces(tool: Tool, arguments: Any, result: Any) -> Any:
        return None if result is None else vk.replace(ok("It has been seen to."))

    def aborts(tool: Tool, arguments: Any, result: Any) -> Any:
        return vk.abort("enough")

    def breaks(tool: Tool, arguments: Any, result: Any) -> Any:
        return arguments["nothing"]

    async def main() -> Any:
        tool, paid = refund()
        gates = [Gate(rules=[rule]) for rule in (replaces, aborts, breaks)]
        results = [await backend(gate, tool).call("refund", {"euros": 5, "confirm": True}) for gate in gates]
        return results, paid, [gate.aborted for gate in gates]

    results, paid, aborted = run_blocking(main)
    assert results[0]["summary"] == "It has been seen to." and paid == [5]
    assert aborted == ["", "enough", ""]
    assert [each["reason"] for each in results[1:]] == ["guardrail", "guardrail"]
    assert "breaks raised KeyError" in results[2]["next_hint"]
    tool, _ = refund()
    assert judge_call([], tool, {}, None).action == "allow"


def test_an_aborting_rule_ends_the_conversation_and_the_run_says_so() -> None:
    def aborts(tool: Tool, arguments: Any, result: Any) -> Any:
        return vk.abort("orders are not looked up on Mondays")

    run = vk.run("order_status", model="gpt-realtime", guardrails=(aborts,))
    assert run.problem == "orders are not looked up on Mondays"
    assert run.call_rows[0]["state"] == "rejected" and run.values["unanswered_calls"] == 0


def test_a_rule_that_answers_nonsense_is_named_and_lets_nothing_through() -> None:
    run = vk.run("order_status", model="gpt-realtime", guardrails=[lambda tool, arguments, result: "skip"])
    (text,) = [event["text"] for event in run.event_rows if event["kind"] == "guardrail"]
    assert text.startswith("<lambda> returned 'skip'; return None, vk.skip(why)")
    assert run.call_rows[0]["state"] == "rejected" and run.values["unanswered_calls"] == 0
    for wrong in ({"judge": "Friday"}, {"judge": len, "seconds": -1}, {"judge": len, "seconds": float("nan")}):
        with pytest.raises(ValueError, match="SpeechRule: "):
            vk.SpeechRule(**wrong)  # type: ignore[arg-type]
