"""Functions of the reader's in a policy: one that raises, or answers nonsense, costs a line and not the run."""

from __future__ import annotations

from typing import Any

import pytest
from fake_session import App, call

import voicekit as vk
from voicekit.clock import run_blocking
from voicekit.policy import chosen
from voicekit.results import Result, ok
from voicekit.tools import Tool

MODELS = ("gpt-realtime", "gemini-3.8-live", "gpt-live-1")


def broken(*_about: Any) -> str:
    raise LookupError("no\nsuch day")


def nonsense(*_about: Any) -> Any:
    return ["later"]


FIELDS = {"delivery": "when_idle is used", "on_barge_in": "finish is used", "revision_key": "a wish of its own"}
ORDER = vk.Scenario("order", tools={"get_order_status": 1.0}, lines=(vk.Line("order_status", at=0.5),))


@pytest.mark.parametrize("model", MODELS)
def test_a_function_that_fails_is_named_and_the_run_goes_on(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    # What is made of nonsense does not depend on the model.
    kinds = [(broken, "broken raised LookupError: no such day"), (nonsense, "returned ['later']")]
    for function, wrong in kinds if model == MODELS[0] else kinds[:1]:
        run = vk.run(ORDER, model=model, **dict.fromkeys(FIELDS, function))
        for field, instead in FIELDS.items():
            notes = [event["text"] for event in run.event_rows if event["kind"] == f"bad_{field}"]
            assert notes and all(wrong in note and instead in note and "\n" not in note for note in notes), field
        assert run.problem == "" and run.values["unanswered_calls"] == 0
        assert [row["state"] for row in run.call_rows] == ["done"] and run.call_rows[0]["heard"] is not None
    assert "never retrieved" not in capsys.readouterr().err


@pytest.mark.parametrize("function", [broken, nonsense])
def test_a_function_that_fails_when_the_caller_interrupts_lets_the_call_finish(function: Any) -> None:
    async def look() -> Result:
        """Look it up."""
        return ok("It is there.")

    async def main() -> App:
        tools = [Tool.of(look, effect="read", seconds=3.0)]
        async with App("gpt-realtime", tools, vk.Policy(on_barge_in=function)) as app:
            app.session.speak("", calls=(call("c", "look"),))
            app.at(1.0, lambda: app.session.caller_says("Never mind.", 0.5))
            await app.rest()
            return app

    app = run_blocking(main)
    asked = [event["t"] for event in app.journal.events if event["kind"] == "bad_on_barge_in"]
    assert asked[-1] == 1.5 and app.calls()["c"]["state"] == "done"  # when it was taken back


def test_what_is_right_is_taken_and_what_is_wrong_says_what_would_be() -> None:
    assert chosen(lambda tool: "cancel", ("finish", "cancel"), None) == ("cancel", "")
    assert chosen(lambda: "any", None) == ("any", "")
    _, wrong = chosen(nonsense, ("finish", "cancel"))
    assert wrong == "nonsense returned ['later']; it is to return finish or cancel"


# Time limits


@pytest.mark.parametrize("model", MODELS)
def test_a_tool_that_takes_exactly_as_long_as_the_limit_has_answered_in_time(model: str) -> None:
    for limit in (7.1, 0.3) if model == MODELS[0] else (0.3,):
        run = vk.run(ORDER, model=model, tool_seconds=limit, tool_timeout=limit)
        assert [row["state"] for row in run.call_rows] == ["done"]
    run = vk.run(ORDER, model=model, tool_seconds=0.4, tool_timeout=0.3)
    assert {row["state"] for row in run.call_rows} == {"failed"}


@pytest.mark.parametrize("model", [*MODELS, "gpt-4o-realtime-preview", "gemini-3.1-flash-live-preview"])
def test_two_time_outs_in_a_row_are_told_by_every_model(model: str) -> None:
    """Also by one that stands still, and has to answer a question and the news in the same turn."""
    thanks = vk.Line("thanks", after="agent_done", seconds=0.8, patience=4.0)  # said while the first call is open
    impatient = vk.Scenario("impatient", tools={"get_order_status": 9.0}, lines=(*ORDER.lines, thanks))
    run = vk.run(impatient, model=model, tool_timeout=8.0)
    first = next(event["t"] for event in run.event_rows if event["kind"] == "timed_out")
    assert any(event["t"] < first for event in run.event_rows if event["item"] == "thanks")
    said = " ".join(event["text"] for event in run.event_rows if event["kind"] == "played")
    assert [row["state"] for row in run.call_rows] == ["failed", "failed"]
    assert said.count("did not answer in time") == 1 and "You're welcome" in said
