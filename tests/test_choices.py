"""Functions of the reader's in a policy: one that raises, or answers nonsense, costs a line and not the run."""

from __future__ import annotations

from typing import Any

import pytest

import voicekit as vk
from voicekit.policy import chosen

MODELS = ("gpt-realtime", "gemini-3.8-live", "gpt-live-1")


def broken(*_about: Any) -> str:
    raise LookupError("no\nsuch day")


def nonsense(*_about: Any) -> Any:
    return ["later"]


FIELDS = {"delivery": "when_idle is used", "on_barge_in": "finish is used", "revision_key": "a wish of its own"}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_function_that_fails_is_named_and_the_run_goes_on(
    field: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # What is made of nonsense does not depend on the model.
    kinds = [(broken, "broken raised LookupError: no such day"), (nonsense, "returned ['later']")]
    for function, wrong in kinds if model == MODELS[0] else kinds[:1]:
        scenario = "order_status" if field == "delivery" else "interrupted_booking"
        run = vk.run(scenario, model=model, **{field: function})
        notes = [event["text"] for event in run.event_rows if event["kind"] == f"bad_{field}"]
        assert notes and all(wrong in note and FIELDS[field] in note and "\n" not in note for note in notes)
        assert run.problem == "" and run.values["unanswered_calls"] == 0
    assert "never retrieved" not in capsys.readouterr().err


def test_what_is_right_is_taken_and_what_is_wrong_says_what_would_be() -> None:
    assert chosen(lambda tool: "cancel", ("finish", "cancel"), None) == ("cancel", "")
    assert chosen(lambda: "any", None) == ("any", "")
    _, wrong = chosen(nonsense, ("finish", "cancel"))
    assert wrong == "nonsense returned ['later']; it is to return finish or cancel"


# Time limits


@pytest.mark.parametrize("model", MODELS)
def test_a_tool_that_takes_exactly_as_long_as_the_limit_has_answered_in_time(model: str) -> None:
    for limit in (7.1, 0.3):
        run = vk.run("order_status", model=model, tool_seconds=limit, tool_timeout=limit)
        assert [row["state"] for row in run.call_rows] == ["done"]
    run = vk.run("order_status", model=model, tool_seconds=7.2, tool_timeout=7.1)
    assert {row["state"] for row in run.call_rows} == {"failed"}


@pytest.mark.parametrize("model", [*MODELS, "gpt-4o-realtime-preview", "gemini-3.1-flash-live-preview"])
def test_two_time_outs_in_a_row_are_told_by_every_model(model: str) -> None:
    """Also by one that stands still, and has to answer a question and the news in the same turn."""
    run = vk.run("order_status", model=model, tool_seconds=31, tool_timeout=30.0)
    said = " ".join(event["text"] for event in run.event_rows if event["kind"] == "played")
    assert [row["state"] for row in run.call_rows] == ["failed", "failed"]
    assert said.count("did not answer in time") == 1 and "You're welcome" in said
