"""Tools, backend and world: what a model may send, what happens to the world, and what a caller is told about it."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import datetime
import json
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from voicekit.backend import Cancellation, ToolBackend
from voicekit.clock import run_blocking
from voicekit.ledger import Ledger, LedgerError, canonical
from voicekit.results import (
    STATUSES,
    as_result,
    cancelled,
    failed,
    invalid_argument,
    needs_consent,
    no_results,
    ok,
    problem,
    unknown,
)  # fmt: skip
from voicekit.tools import Fault, IdempotencyKey, InvalidArguments, Latency, Tool, tool
from voicekit.world import ORDERS, World, sentences

THURSDAY = {"day": "thursday", "time": "14:00"}
FRIDAY = {"day": "friday", "time": "10:00"}
BOOKED = "Your appointment on Thursday at two is booked."


def backend_of(world: World, ledger: Ledger | None = None, **kwargs: Any) -> ToolBackend:
    return ToolBackend(world.tools(**kwargs), ledger or Ledger(), random.Random(0))


def row(backend: ToolBackend, call_id: str) -> dict[str, Any]:
    found = backend.ledger.row(call_id)
    assert found is not None
    return found


def virtual(main: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await main()

    return run_blocking(run)


def of(function: Callable[..., Any], **options: Any) -> Tool:
    return Tool.of(function, **({"effect": "read"} | options))


# --- declaring -------------------------------------------------------------------------------------------------------


def test_the_schema_comes_from_the_signature() -> None:
    @tool(effect="read")
    async def find(
        city: Annotated[str, Field(description="name of a city", pattern="^[A-Z]")],
        days: int = 3,
        unit: Literal["celsius", "kelvin"] = "celsius",
        title: str | None = None,
    ) -> dict[str, Any]:
        """Look up the weather. Never changes it."""
        return ok("Fine.")

    assert (find.name, find.description) == ("find", "Look up the weather. Never changes it.")
    assert find.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "city": {"type": "string", "description": "name of a city", "pattern": "^[A-Z]"},
            "days": {"type": "integer", "default": 3},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"], "default": "celsius"},
            "title": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["city"],
    }


def test_a_tool_without_parameters_still_declares_an_object() -> None:
    def hours() -> dict[str, Any]:
        """Say the opening hours."""
        return ok("Nine to six.")

    assert of(hours).parameters == {"type": "object", "additionalProperties": False, "properties": {}}


def test_the_idempotency_key_is_not_shown_to_the_model() -> None:
    tools = {each.name: each for each in World().tools()}
    assert set(tools["book_appointment"].parameters["properties"]) == {"day", "time"}
    assert tools["book_appointment"].key_parameter == "key"
    with pytest.raises(InvalidArguments, match="unknown field 'key'"):
        tools["book_appointment"].validate('{"day":"friday","time":"10:00","key":"mine"}')


def test_the_schema_version_changes_with_every_word_a_model_reads() -> None:
    def first(item: str) -> dict[str, Any]:
        """Look it up."""
        return ok("x")

    def second(item: str) -> dict[str, Any]:
        """Look it up!"""
        return ok("x")

    def third(item: str, amount: int = 1) -> dict[str, Any]:
        """Look it up."""
        return ok("x")

    versions = [of(each, name="t").schema_version for each in (first, second, third)]
    assert len(set(versions)) == 3
    assert versions[0] == of(first, name="t", seconds=9.0).schema_version
    assert all(len(version) == 12 for version in versions)


def no_docstring(item: str) -> None: ...


def untyped(item) -> None:  # type: ignore[no-untyped-def]
    """Text."""


def starred(*items: str) -> None:
    """Text."""


def positional(item: str, /) -> None:
    """Text."""


def clash(model_dump: str) -> None:
    """Text."""


def lost(item: Nowhere) -> None:  # type: ignore[name-defined] # noqa: F821
    """Text."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_docstring, "needs a docstring"),
        (untyped, "parameter item needs a type"),
        (starred, "can not be filled by name"),
        (positional, "can not be filled by name"),
        (clash, "model_dump can not be the name of a parameter"),
        (lost, "'Nowhere' is not defined"),
    ],
)
def test_case_33_a_function_no_schema_fits_is_refused_before_the_start(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of(function)


def works(item: str = "x") -> dict[str, Any]:
    """Text."""
    return ok("Fine.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effect": "delete"}, "effect is one of read, write, irreversible, not 'delete'"),
        ({"name": "no spaces"}, "begins with a letter"),
        ({"name": "x" * 65}, "up to 64"),
        ({"compensation": "undo"}, "only a write can be compensated"),
        ({"effect": "irreversible", "compensation": "undo"}, "only a write can be compensated"),
        ({"commits_at": 1.5}, "a share between 0 and 1"),
        ({"seconds": -1.0}, "a number from 0"),
        ({"seconds": float("nan")}, "a number from 0"),
        ({"faults": "late"}, "a fault is one of error, time_out, late_commit, empty, wrong_shape, not 'late'"),
        ({"faults": {2: "late"}}, "a fault is one of"),
        ({"faults": {"1": "error"}}, "faults go by the number of the call"),
        ({"faults": {0: "error"}}, "faults go by the number of the call"),
        ({"faults": "error 3"}, "only a late commit has seconds"),
        ({"faults": "late_commit"}, "only a late commit has seconds, and needs them"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of(works, **options)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools are called works"):
        ToolBackend([of(works), of(works)], Ledger())


def test_declarations_are_copies_and_carry_the_behavior() -> None:
    backend = ToolBackend([of(works)], Ledger())
    (plain,) = backend.declarations()
    assert set(plain) == {"name", "description", "parameters"}
    plain["parameters"]["properties"].clear()
    (again,) = backend.declarations("non_blocking")
    assert again["behavior"] == "non_blocking"
    assert again["parameters"]["properties"]
    assert backend.names == ("works",)


# --- arguments -------------------------------------------------------------------------------------------------------


async def order(number: int, weight: float = 1.0, gift: bool = False, tags: list[str] = []) -> dict[str, Any]:  # noqa: B006
    """Order something."""
    return ok("Ordered.", number=number)


ORDER = of(order)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ('{"number": 3, "dat', "not_json", "order: the arguments are not one complete JSON object"),
        ("", "not_json", "complete JSON object"),
        ('{"number": 3} {}', "not_json", "complete JSON object"),
        ('```json\n{"number": 3}\n```', "not_json", "complete JSON object"),
        ('{"number": NaN}', "not_json", "NaN is not JSON"),
        ('{"number": 1e999}', "not_json", "complete JSON object"),
        ('{"number": 3, "tags": ["\\ud800"]}', "not_json", "complete JSON object"),
        ('{"number": 3, "number": 4}', "not_json", "a field is given twice"),
        ("[" * 100_000, "not_json", "complete JSON object"),
        ("null", "not_an_object", "a JSON object, not None"),
        ("[]", "not_an_object", "a JSON object, not []"),
        ('"{}"', "not_an_object", "a JSON object, not '{}'"),
        ("{}", "missing_field", "order: number missing"),
        ('{"numbr": 3}', "unknown_field", "unknown field 'numbr'; known: number, weight, gift, tags"),
        ('{"number": 3.5}', "invalid_value", "number should be a valid integer, not 3.5"),
        ('{"number": "3"}', "invalid_value", "number should be a valid integer, not '3'"),
        ('{"number": true}', "invalid_value", "number should be a valid integer, not True"),
        ('{"number": 3, "gift": 1}', "invalid_value", "gift should be a valid boolean, not 1"),
        ('{"number": 3, "tags": ["a", 1]}', "invalid_value", "tags.1 should be a valid string, not 1"),
        ('{"number": 3, "tags": null}', "invalid_value", "tags should be a valid array, not None"),
    ],
)
def test_case_34_wrong_arguments_are_named_in_one_line(text: str, code: str, message: str) -> None:
    with pytest.raises(InvalidArguments) as error:
        ORDER.validate(text)
    assert error.value.reason_code == code
    assert message in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


def test_allowed_values_are_listed() -> None:
    tools = {each.name: each for each in World().tools()}
    with pytest.raises(InvalidArguments, match="day is one of monday, tuesday") as error:
        tools["find_appointment"].validate('{"day": "Friday"}')
    assert error.value.allowed == ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    result = error.value.result()
    assert (result["status"], result["reason"], result["retryable"]) == ("invalid_argument", "invalid_value", False)
    assert result["valid_options"][4] == "friday"


@pytest.mark.parametrize("text", ["", "null", "{}", " {} ", "\n"])
def test_case_34_a_tool_without_parameters_takes_all_three_spellings(text: str) -> None:
    def hours() -> dict[str, Any]:
        """Say the opening hours."""
        return ok("Nine to six.")

    assert of(hours).validate(text) == {}


def test_a_tool_without_parameters_takes_nothing_else() -> None:
    def hours() -> dict[str, Any]:
        """Say the opening hours."""
        return ok("Nine to six.")

    with pytest.raises(InvalidArguments, match="unknown field 'x'; known: none"):
        of(hours).validate('{"x": 1}')


def test_whole_numbers_become_integers_everywhere() -> None:
    assert repr(ORDER.validate('{"number": 3.0, "weight": 2.0}')) == "{'number': 3, 'weight': 2}"
    assert repr(ORDER.validate('{"number": -0.0, "weight": 2.5}')) == "{'number': 0, 'weight': 2.5}"
    assert ORDER.key({"number": 3}, "r") == ORDER.key(ORDER.validate('{"number": 3.0}'), "r")


def test_the_end_of_a_pattern_is_the_end_of_the_text() -> None:
    tools = {each.name: each for each in World().tools()}
    assert tools["get_order_status"].validate('{"order_id": "OD-20260818-001"}')
    for wrong in ("OD-20260818-001\\n", "OD-1", "xOD-20260818-001", "od-20260818-001"):
        with pytest.raises(InvalidArguments, match="order_id"):
            tools["get_order_status"].validate(f'{{"order_id": "{wrong}"}}')


def test_python_types_are_checked_and_handed_over() -> None:
    @tool(effect="read")
    def age(born: datetime.date) -> dict[str, Any]:
        """Say the year of birth."""
        return ok("Said.", year=born.year)

    arguments = age.validate('{"born": "2001-02-03"}')
    assert virtual(lambda: age.call(arguments))["year"] == 2001
    with pytest.raises(InvalidArguments, match=r"born .* not 'yesterday'"):
        age.validate('{"born": "yesterday"}')


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=30))
def test_any_text_is_an_object_or_a_named_mistake(text: str) -> None:
    try:
        arguments = ORDER.validate(text)
    except InvalidArguments as error:
        assert str(error).startswith("order: ") and "\n" not in str(error)
    else:
        assert isinstance(arguments, dict)


@settings(deadline=None, max_examples=60)
@given(
    st.fixed_dictionaries(
        {"number": st.integers(-(10**12), 10**12)},
        optional={
            "weight": st.floats(allow_nan=False, allow_infinity=False),
            "gift": st.booleans(),
            "tags": st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3),
        },
    )
)
def test_right_arguments_keep_their_value_and_have_one_spelling(arguments: dict[str, Any]) -> None:
    checked = ORDER.validate(json.dumps(arguments))
    assert checked == arguments
    assert ORDER.validate(canonical(checked)) == checked
    assert canonical(ORDER.validate(canonical(checked))) == canonical(checked)
    as_floats = arguments | {"number": float(arguments["number"])}
    assert canonical(ORDER.validate(json.dumps(as_floats))) == canonical(checked)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["number", "weight", "gift", "tags", "other"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.text(max_size=2)),
    )
)
def test_what_is_accepted_can_be_called(arguments: dict[str, Any]) -> None:
    try:
        checked = ORDER.validate(json.dumps(arguments))
    except InvalidArguments:
        return
    assert type(checked["number"]) is int
    assert set(checked) <= {"number", "weight", "gift", "tags"}
    ORDER.arguments.model_validate(checked)


def test_case_32_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    backend = backend_of(World())

    async def main() -> None:
        assert backend.propose("c1", "transfer_funds_v2", "{}")
        with pytest.raises(InvalidArguments, match="no tool 'transfer_funds_v2'; known: get_order_status") as error:
            backend.validate("c1", "transfer_funds_v2", "{}")
        assert error.value.reason_code == "unknown_tool"
        assert error.value.allowed == backend.names

    virtual(main)
    assert (row(backend, "c1")["state"], row(backend, "c1")["effect"]) == ("rejected", "none")
    assert json.loads(row(backend, "c1")["result"])["status"] == "invalid_argument"


def test_case_34_a_cut_off_call_is_kept_as_it_came_and_never_run() -> None:
    backend = backend_of(World())

    async def main() -> None:
        backend.propose("c1", "book_appointment", '{"day":"thur')
        with pytest.raises(InvalidArguments):
            backend.validate("c1", "book_appointment", '{"day":"thur')
        assert (await backend.run("c1"))["status"] == "invalid_argument"  # the answer it got; nothing runs

    virtual(main)
    assert row(backend, "c1")["arguments"] == '{"day":"thur'
    assert row(backend, "c1")["started"] is None


def test_a_call_that_was_not_validated_is_not_run() -> None:
    backend = backend_of(World())

    async def main() -> None:
        backend.propose("c1", "check_stock", '{"item":"blue kettle"}')
        with pytest.raises(ValueError, match="call 'c1' is proposed; validate it first"):
            await backend.run("c1")
        with pytest.raises(ValueError, match="call 'zz' is not in the ledger; validate it first"):
            await backend.run("zz")

    virtual(main)


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "empty"), (None, "empty"), ("", "empty"), ([], "empty"), ((), "empty"),
        ("Twelve.", "wrong_shape"), ([ok("Fine.")], "wrong_shape"), (0, "wrong_shape"), (False, "wrong_shape"),
        ({"results": [], "total": 0}, "wrong_shape"), ({"status": "ok"}, "wrong_shape"),
        ({"status": "ok", "summary": " "}, "wrong_shape"), ({"status": "great", "summary": "x"}, "wrong_shape"),
        ({"status": ["ok"], "summary": "x"}, "wrong_shape"), ({"status": "failed", "summary": "x"}, "wrong_shape"),
        ({"status": "no_results", "summary": "x", "retryable": "no", "reason": "y"}, "wrong_shape"),
        ({"status": "ok", "summary": "x", "value": float("nan")}, "wrong_shape"),
        ({"status": "ok", "summary": "x", "value": datetime.date(2026, 8, 18)}, "wrong_shape"),
    ],
)  # fmt: skip
def test_a_model_never_sees_an_empty_or_shapeless_answer(value: Any, reason: str) -> None:
    result = as_result(value)
    assert (result["status"], result["reason"], result["retryable"]) == ("failed", reason, False)
    assert result["summary"] == "Something went wrong."
    assert problem(result) is None


def test_every_kind_of_result_is_well_formed() -> None:
    made = [
        ok("Fine.", place="Berlin"), no_results("None.", retryable=True, reason="r"), failed(), unknown(reason="r"),
        cancelled(), needs_consent("Shall I?"),
        invalid_argument("x: y missing", reason="missing_field", valid_options=["y"]),
    ]  # fmt: skip
    assert sorted(each["status"] for each in made) == sorted(STATUSES)
    for each in made:
        assert problem(each) is None
        assert as_result(each) == each
        assert as_result(each) is not each
        assert list(each)[:3] == ["status", "summary", "next_hint"]
    assert made[0]["place"] == "Berlin"
    assert unknown(reason="r")["next_hint"]


def test_data_can_not_hide_the_status() -> None:
    with pytest.raises(ValueError, match="a result has status already"):
        ok("Fine.", status="failed")


# --- latency and faults ----------------------------------------------------------------------------------------------


def test_latency_is_drawn_from_the_runs_own_random() -> None:
    latency = Latency(2.0, 0.25)
    drawn = [latency.draw(random.Random(7)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    source = random.Random(1)
    many = sorted(latency.draw(source) for _ in range(2000))
    assert many[0] > 0
    assert 1.9 < many[1000] < 2.1
    assert 0.6 < sum(1.5 < each < 2.5 for each in many) / 2000 < 0.76
    assert Latency(2.0).draw(random.Random(1)) == 2.0
    with pytest.raises(ValueError, match="at least 0"):
        Latency(-1.0)


def test_a_tool_takes_its_seconds_of_loop_time() -> None:
    backend = backend_of(World(), seconds={"check_stock": 3.25, "get_weather": Latency(2.0, 0.3)})

    async def main() -> list[float]:
        await backend.call("check_stock", {"item": "blue kettle"}, call_id="a")
        await backend.call("get_weather", {"place": "Berlin"}, call_id="b")
        return [row(backend, each)["finished"] - row(backend, each)["started"] for each in "ab"]

    first, second = virtual(main)
    assert first == 3.25
    assert round(second, 6) == Latency(2.0, 0.3).draw(random.Random(0))


def test_parallel_calls_run_at_the_same_time() -> None:
    backend = backend_of(World(), seconds=2.0)

    async def main() -> float:
        await asyncio.gather(
            backend.call("check_stock", {"item": "blue kettle"}, call_id="a"),
            backend.call("get_shipping", {"item": "blue kettle"}, call_id="b"),
        )
        return asyncio.get_running_loop().time()

    assert virtual(main) == 2.0


def test_a_fault_as_text() -> None:
    assert Fault.of("late_commit 3") == Fault("late_commit", 3.0)
    assert of(works, faults={2: "late_commit 0.5"}).fault(2) == Fault("late_commit", 0.5)
    assert of(works, faults={2: "empty"}).fault(1) is None


def test_a_fault_can_be_that_of_the_nth_call() -> None:
    backend = backend_of(World(), faults={"check_stock": {2: "error"}})

    async def main() -> list[str]:
        results = [await backend.call("check_stock", {"item": "blue kettle"}) for _ in range(3)]
        return [result["status"] for result in results]

    assert virtual(main) == ["ok", "failed", "ok"]


@pytest.mark.parametrize(
    ("fault", "reason", "retryable", "summary"),
    [
        ("error", "error", True, "The order system reported an error."),
        ("time_out", "time_out", True, "The order system did not answer in time."),
        (Fault("late_commit", 3.0), "time_out", True, "The order system did not answer in time."),
        ("empty", "empty", False, "The order system reported an error."),
        ("wrong_shape", "wrong_shape", False, "The order system reported an error."),
    ],
)
def test_every_fault_of_a_read_is_a_typed_failure(fault: Any, reason: str, retryable: bool, summary: str) -> None:
    backend = backend_of(World(), faults={"get_order_status": fault})

    async def main() -> dict[str, Any]:
        return await backend.call("get_order_status", {"order_id": "OD-20260818-001"}, call_id="a", timeout=10.0)

    result = virtual(main)
    assert (result["status"], result["reason"], result["retryable"]) == ("failed", reason, retryable)
    assert result["summary"] == summary
    assert (row(backend, "a")["state"], row(backend, "a")["effect"]) == ("failed", "none")


def test_an_exception_is_told_to_the_developer_and_not_to_the_model() -> None:
    told: list[tuple[str, str]] = []

    async def broken() -> dict[str, Any]:
        """Break."""
        raise RuntimeError("password is 1234")

    backend = ToolBackend(
        [of(broken)], Ledger(), notify=lambda kind, *, call_id, text: told.append((kind, f"{call_id} {text}"))
    )
    result = virtual(lambda: backend.call("broken", {}, call_id="a"))
    assert (result["status"], result["reason"]) == ("failed", "error")
    assert "1234" not in json.dumps(result) and "1234" not in json.dumps(backend.ledger.rows())
    assert told == [("raised", "a RuntimeError: password is 1234")]


def _next_of_nothing() -> dict[str, Any]:
    """Take what is not there."""
    return next(iter(()))


def _exit() -> dict[str, Any]:
    """Leave."""
    sys.exit("bye")


async def _exit_later() -> dict[str, Any]:
    """Leave."""
    sys.exit("bye")


@pytest.mark.parametrize(
    ("function", "words"),
    [(_next_of_nothing, "give next() a default"), (_exit, "sys.exit('bye')"), (_exit_later, "sys.exit('bye')")],
)
def test_what_would_end_the_loop_or_never_reach_it_fails_the_call(function: Any, words: str) -> None:
    told: list[str] = []
    backend = ToolBackend([of(function)], Ledger(), notify=lambda kind, *, call_id, text: told.append(text))

    async def main() -> tuple[dict[str, Any], float]:
        begin = asyncio.get_running_loop().time()
        return await backend.call(function.__name__, {}, call_id="a"), asyncio.get_running_loop().time() - begin

    result, took = virtual(main)
    assert (result["status"], result["reason"], took) == ("failed", "error", 0.25)
    assert len(told) == 1 and words in told[0]


# --- plain functions -------------------------------------------------------------------------------------------------


def test_case_10_a_slow_plain_function_does_not_stop_the_loop() -> None:
    def slow() -> dict[str, Any]:
        """Block its thread."""
        time.sleep(0.3)  # on purpose: what a tool must be allowed to do
        return ok("Fine.", thread=threading.current_thread().name)

    async def main() -> tuple[float, dict[str, Any]]:
        loop, lags = asyncio.get_running_loop(), [0.0]

        async def tick() -> None:
            while True:
                before = loop.time()
                await asyncio.sleep(0.01)
                lags.append(loop.time() - before - 0.01)

        ticking = asyncio.create_task(tick())
        result = await ToolBackend([of(slow, seconds=0.0)], Ledger()).call("slow", {})
        ticking.cancel()
        assert len(lags) > 3
        return max(lags), result

    lag, result = run_blocking(main, clock="real")
    assert lag < 0.2
    assert result["thread"] != "voicekit real loop"


def test_a_plain_function_that_computes_takes_no_virtual_time() -> None:
    def compute() -> dict[str, Any]:
        """Work for four real milliseconds."""
        time.sleep(0.004)
        return ok("Counted.")

    backend = ToolBackend([of(compute, seconds=0.05)], Ledger())

    async def main() -> list[float]:
        async def tick() -> None:  # as a conversation does: there is always a next timer for time to jump to
            for _ in range(10_000):
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        for number in range(5):
            await backend.call("compute", {}, call_id=f"c{number}")
        ticking.cancel()
        return [each["finished"] - each["started"] for each in backend.ledger.rows()]

    assert {round(each, 6) for each in virtual(main)} == {0.05}


def test_a_plain_function_that_waits_can_be_interrupted_meanwhile() -> None:
    let_go = threading.Event()

    def waits() -> dict[str, Any]:
        """Wait for the test."""
        let_go.wait(10.0)
        return ok("Fine.")

    backend = ToolBackend([of(waits, seconds=0.0)], Ledger())

    async def main() -> dict[str, Any]:
        call = asyncio.create_task(backend.call("waits", {}, call_id="a"))
        await asyncio.sleep(0.1)
        assert backend.cancel("a") == Cancellation("cancelled")  # a read: nothing to lose
        return await call

    try:
        assert virtual(main)["status"] == "cancelled"
    finally:
        let_go.set()


# --- effects ---------------------------------------------------------------------------------------------------------


def test_an_effect_happens_at_a_definite_moment() -> None:
    told: list[tuple[str, str, float]] = []
    world, ledger = World(), Ledger()
    backend = ToolBackend(
        world.tools(seconds={"book_appointment": 4.0}), ledger,
        notify=lambda kind, *, call_id, text: told.append((kind, call_id, asyncio.get_running_loop().time())),
    )  # fmt: skip

    async def main() -> dict[str, Any]:
        call = asyncio.create_task(backend.call("book_appointment", THURSDAY, call_id="a"))
        await asyncio.sleep(1.999)
        assert (world.bookings, row(backend, "a")["effect"]) == ([], "none")
        await asyncio.sleep(0.002)
        assert (world.bookings, row(backend, "a")["effect"]) == ([("thursday", "14:00")], "committed")
        assert row(backend, "a")["state"] == "running"
        return await call

    assert virtual(main)["summary"] == BOOKED
    assert ledger.history("a") == [
        ("proposed", 0.0), ("validated", 0.0), ("running", 0.0), ("committed", 2.0), ("done", 4.0),
    ]  # fmt: skip
    assert told == [("committed", "a", 2.0)]


def test_a_read_has_no_effect_and_no_key() -> None:
    backend = backend_of(World())
    virtual(lambda: backend.call("check_stock", {"item": "blue kettle"}, call_id="a"))
    assert (row(backend, "a")["effect"], row(backend, "a")["key"]) == ("none", None)


def test_a_write_that_finds_nothing_to_do_has_no_effect() -> None:
    world = World()
    backend = backend_of(world)
    result = virtual(lambda: backend.call("book_appointment", {"day": "monday", "time": "09:00"}, call_id="a"))
    assert (result["status"], result["reason"]) == ("no_results", "not_free")
    assert (row(backend, "a")["state"], row(backend, "a")["effect"], world.bookings) == ("done", "none", [])


def test_cancelled_before_the_commit_there_is_no_effect() -> None:
    world = World()
    backend = backend_of(world, seconds=4.0)

    async def main() -> dict[str, Any]:
        call = asyncio.create_task(backend.call("book_appointment", THURSDAY, call_id="a"))
        await asyncio.sleep(1.9)
        assert backend.cancel("a") == Cancellation("cancelled")
        result = await call
        assert asyncio.get_running_loop().time() == 1.9
        await asyncio.sleep(10.0)
        return result

    result = virtual(main)
    assert (result["status"], result["summary"]) == ("cancelled", "That was cancelled.")
    assert (row(backend, "a")["state"], row(backend, "a")["effect"], world.bookings) == ("cancelled", "none", [])


def test_cancelled_in_the_very_moment_of_the_commit_it_is_one_or_the_other() -> None:
    world = World()
    backend = backend_of(world, seconds=4.0)

    async def main() -> Cancellation:
        call = asyncio.create_task(backend.call("book_appointment", THURSDAY, call_id="a"))
        await asyncio.sleep(2.0)
        outcome = backend.cancel("a")
        await call
        return outcome

    outcome = virtual(main)
    assert (outcome.outcome, len(world.bookings), row(backend, "a")["effect"]) in [
        ("cancelled", 0, "none"), ("committed", 1, "committed"),
    ]  # fmt: skip


def test_case_42_after_the_commit_nothing_is_undone_but_the_way_back_is_named() -> None:
    world = World()
    backend = backend_of(world, seconds=4.0)

    async def main() -> dict[str, Any]:
        call = asyncio.create_task(backend.call("book_appointment", THURSDAY, call_id="a"))
        await asyncio.sleep(2.1)
        assert backend.cancel("a") == Cancellation("committed", "cancel_appointment")
        result = await call
        assert world.bookings == [("thursday", "14:00")]
        await backend.call("cancel_appointment", THURSDAY, call_id="b")
        assert backend.cancel("a") == Cancellation("over")
        return result

    assert virtual(main)["status"] == "ok"
    assert world.bookings == []
    assert [row(backend, each)["effect"] for each in "ab"] == ["undone", "committed"]
    assert backend.ledger.history("a")[-1][0] == "undone"


def test_case_42_cancelled_while_it_waits_for_consent_it_never_runs() -> None:
    world = World()
    backend = backend_of(world)

    async def main() -> dict[str, Any]:
        backend.propose("a", "book_appointment", json.dumps(THURSDAY))
        backend.validate("a", "book_appointment", json.dumps(THURSDAY))
        assert backend.cancel("a") == Cancellation("cancelled")
        assert backend.cancel("zz") == Cancellation("over")
        return await backend.run("a")  # the late "yes"

    assert virtual(main)["status"] == "cancelled"
    assert (row(backend, "a")["state"], row(backend, "a")["started"], world.bookings) == ("cancelled", None, [])
    assert [each["call_id"] for each in backend.ledger.rows()] == ["a"]


def test_what_can_not_be_cancelled_goes_on() -> None:
    world = World(bookings=[("friday", "10:00")])
    backend = backend_of(world, seconds=4.0)

    async def main() -> dict[str, Any]:
        call = asyncio.create_task(backend.call("cancel_appointment", FRIDAY, call_id="a"))
        await asyncio.sleep(0.5)
        assert backend.cancel("a") == Cancellation("running")
        await asyncio.sleep(2.0)
        assert backend.cancel("a") == Cancellation("committed", None)
        return await call

    assert virtual(main)["summary"] == "Your appointment on Friday at ten is cancelled."
    assert world.bookings == []


def test_a_write_whose_function_was_called_can_not_be_called_off() -> None:
    done: list[str] = []

    async def send(to: str) -> dict[str, Any]:
        """Send a letter."""
        await asyncio.sleep(2.0)
        done.append(to)
        return ok("Sent.")

    backend = ToolBackend([of(send, effect="write", seconds=0.0)], Ledger())

    async def main() -> dict[str, Any]:
        call = asyncio.create_task(backend.call("send", {"to": "Ada"}, call_id="a"))
        await asyncio.sleep(1.0)
        assert backend.cancel("a") == Cancellation("running")
        return await call

    assert virtual(main)["status"] == "ok"
    assert (done, row(backend, "a")["effect"]) == (["Ada"], "committed")


def test_case_25_who_stops_waiting_does_not_stop_what_has_happened() -> None:
    world = World()
    backend = backend_of(world, seconds=2.0)

    async def main() -> None:
        call = asyncio.create_task(backend.call("book_appointment", THURSDAY, call_id="a"))
        await asyncio.sleep(1.5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(5.0)

    virtual(main)
    assert world.bookings == [("thursday", "14:00")]
    assert (row(backend, "a")["state"], row(backend, "a")["effect"]) == ("done", "committed")


def test_who_stops_waiting_early_calls_it_off() -> None:
    world = World()
    backend = backend_of(world, seconds=2.0)

    async def main() -> None:
        call = asyncio.create_task(backend.call("book_appointment", THURSDAY, call_id="a"))
        await asyncio.sleep(0.5)
        call.cancel()
        await asyncio.sleep(5.0)

    virtual(main)
    assert (row(backend, "a")["state"], row(backend, "a")["effect"], world.bookings) == ("cancelled", "none", [])


# --- time limits -----------------------------------------------------------------------------------------------------


def test_a_read_that_is_too_slow_has_failed() -> None:
    backend = backend_of(World())

    async def main() -> dict[str, Any]:
        return await backend.call("get_order_status", {"order_id": "OD-20260818-001"}, call_id="a", timeout=5.0)

    result = virtual(main)
    assert (result["status"], result["reason"], result["retryable"]) == ("failed", "time_out", True)
    assert (row(backend, "a")["finished"], row(backend, "a")["effect"]) == (5.0, "none")


def test_case_27_a_write_that_times_out_is_unknown_and_a_retry_gets_the_first_booking() -> None:
    world = World()
    backend = backend_of(world, faults={"book_appointment": {1: Fault("late_commit", 3.0)}})

    async def main() -> tuple[dict[str, Any], dict[str, Any]]:
        first = await backend.call("book_appointment", THURSDAY, call_id="a", request="r1", timeout=1.0)
        assert (row(backend, "a")["state"], row(backend, "a")["effect"]) == ("unknown", "unknown")
        assert world.bookings == []
        await backend.settle()
        assert asyncio.get_running_loop().time() == 3.0
        assert len(world.bookings) == 1
        assert row(backend, "a")["effect"] == "unknown"  # it happened, and nobody here has heard of it
        return first, await backend.call("book_appointment", THURSDAY, call_id="b", request="r1")

    first, second = virtual(main)
    assert (first["status"], first["reason"], first["retryable"]) == ("unknown", "time_out", True)
    assert first["summary"] == "The order system did not answer in time."
    assert (second["status"], second["summary"]) == ("ok", BOOKED)
    assert world.bookings == [("thursday", "14:00")]
    assert [row(backend, each)["effect"] for each in "ab"] == ["committed", "none"]
    assert row(backend, "b")["repeats"] == "a"
    assert row(backend, "b")["started"] is None


def test_case_27_a_retry_before_the_late_commit_still_makes_one_booking() -> None:
    world = World()
    backend = backend_of(world, faults={"book_appointment": {1: Fault("late_commit", 3.0)}})

    async def main() -> dict[str, Any]:
        await backend.call("book_appointment", THURSDAY, call_id="a", request="r1", timeout=1.0)
        result = await backend.call("book_appointment", THURSDAY, call_id="b", request="r1")
        assert asyncio.get_running_loop().time() == 2.0
        await backend.settle()
        return result

    assert virtual(main)["summary"] == BOOKED
    assert world.bookings == [("thursday", "14:00")]
    assert row(backend, "b")["effect"] == "committed"


def test_case_27_after_closing_nothing_starts_and_nothing_commits() -> None:
    world = World()
    backend = backend_of(world, faults={"book_appointment": Fault("late_commit", 3.0)})

    async def main() -> None:
        await backend.call("book_appointment", THURSDAY, call_id="a", timeout=1.0)
        await backend.close()
        await asyncio.sleep(10.0)

    virtual(main)
    assert world.bookings == []
    assert row(backend, "a")["state"] == "unknown"


def test_a_tool_that_never_answers_did_nothing_and_may_be_tried_again() -> None:
    world = World()
    backend = backend_of(world, faults={"book_appointment": {1: "time_out"}})

    async def main() -> dict[str, Any]:
        await backend.call("book_appointment", THURSDAY, call_id="a", request="r1", timeout=1.0)
        assert row(backend, "a")["state"] == "unknown"
        return await backend.call("book_appointment", THURSDAY, call_id="b", request="r1")

    assert virtual(main)["summary"] == BOOKED
    assert world.bookings == [("thursday", "14:00")]


def test_a_time_out_after_the_commit_has_an_effect_and_no_answer() -> None:
    world = World()
    backend = backend_of(world, seconds=4.0)

    async def main() -> dict[str, Any]:
        result = await backend.call("book_appointment", THURSDAY, call_id="a", request="r1", timeout=3.0)
        assert (row(backend, "a")["state"], row(backend, "a")["effect"]) == ("unknown", "committed")
        assert (await backend.call("book_appointment", THURSDAY, call_id="b", request="r1"))["summary"] == BOOKED
        return result

    assert virtual(main)["status"] == "unknown"
    assert world.bookings == [("thursday", "14:00")]
    assert row(backend, "a")["state"] == "done"


@pytest.mark.parametrize("fault", ["empty", "wrong_shape"])
def test_a_write_with_an_unusable_answer_is_looked_for(fault: str) -> None:
    world = World()
    backend = backend_of(world, faults={"book_appointment": fault})
    result = virtual(lambda: backend.call("book_appointment", THURSDAY, call_id="a"))
    assert (result["status"], result["summary"]) == ("ok", BOOKED)
    assert [state for state, _ in backend.ledger.history("a")][-2:] == ["committed", "done"]
    assert (row(backend, "a")["effect_at"], row(backend, "a")["finished"]) == (0.5, 1.0)


def sending(sent: list[str], error: Exception | None, find: bool) -> Tool:
    async def send(to: str) -> Any:
        """Send a letter."""
        sent.append(to)
        if error:
            raise error

    return of(send, effect="write", find_effect=(lambda key, arguments: None) if find else None)


@pytest.mark.parametrize(
    ("error", "find", "status"),
    [
        (None, False, "unknown"),  # returned None: who knows
        (RuntimeError(), False, "unknown"),
        (RuntimeError(), True, "failed"),  # looked for, and not there
        (TimeoutError(), True, "unknown"),  # not there yet; it may still come
        (ConnectionResetError(), True, "unknown"),
    ],
)
def test_a_write_that_breaks_is_failed_only_if_that_is_known(error: Exception | None, find: bool, status: str) -> None:
    sent: list[str] = []
    backend = ToolBackend([sending(sent, error, find)], Ledger())

    async def main() -> list[dict[str, Any]]:
        return [await backend.call("send", {"to": "Ada"}, call_id=each, request="r1") for each in "ab"]

    first, second = virtual(main)
    assert first["status"] == status
    assert row(backend, "a")["effect"] == ("unknown" if status == "unknown" else "none")
    if status == "unknown":  # nobody can be asked, and the other side knows no key: it is not repeated
        assert (second["status"], second["retryable"]) == ("unknown", False)
        assert sent == ["Ada"]
    else:
        assert sent == ["Ada", "Ada"]


# --- the same order again --------------------------------------------------------------------------------------------


def test_the_same_order_twice_is_one_booking_and_two_equal_answers() -> None:
    world = World()
    backend = backend_of(world)

    async def main() -> list[dict[str, Any]]:
        return [await backend.call("book_appointment", THURSDAY, call_id=each, request="r1") for each in "ab"]

    first, second = virtual(main)
    assert first == second
    assert world.bookings == [("thursday", "14:00")]
    assert [each["effect"] for each in backend.ledger.rows()] == ["committed", "none"]


def test_the_same_order_twice_at_once_is_one_booking() -> None:
    world = World()
    backend = backend_of(world, seconds=2.0)

    async def main() -> list[dict[str, Any]]:
        return await asyncio.gather(
            *(backend.call("book_appointment", THURSDAY, call_id=each, request="r1") for each in "abc")
        )

    results = virtual(main)
    assert [each["summary"] for each in results] == [BOOKED] * 3
    assert world.bookings == [("thursday", "14:00")]
    assert [row(backend, each)["repeats"] for each in "abc"] == [None, "a", "a"]
    assert [row(backend, each)["finished"] for each in "abc"] == [2.0] * 3


def test_a_second_order_takes_over_when_the_first_is_cancelled() -> None:
    world = World()
    backend = backend_of(world, seconds=2.0)

    async def main() -> list[dict[str, Any]]:
        both = asyncio.gather(
            *(backend.call("book_appointment", THURSDAY, call_id=each, request="r1") for each in "ab")
        )
        await asyncio.sleep(0.5)
        backend.cancel("a")
        return await both

    first, second = virtual(main)
    assert (first["status"], second["status"]) == ("cancelled", "ok")
    assert world.bookings == [("thursday", "14:00")]
    assert row(backend, "b")["finished"] == 2.5


def test_an_effect_that_turns_out_to_be_an_earlier_calls_is_not_counted_twice() -> None:
    told: list[tuple[str, str]] = []
    world = World()
    backend = ToolBackend(
        world.tools(faults={"book_appointment": {1: "time_out"}}), Ledger(),
        notify=lambda kind, *, call_id, text: told.append((kind, call_id)),
    )  # fmt: skip

    async def main() -> None:
        await backend.call("book_appointment", THURSDAY, call_id="a", request="r1", timeout=1.0)
        second = asyncio.create_task(backend.call("book_appointment", THURSDAY, call_id="b", request="r1"))
        await asyncio.sleep(0.1)
        backend.ledger.set_effect("a", "committed", at=1.1)  # somebody else has looked, and found it
        assert (await second)["summary"] == BOOKED

    virtual(main)
    assert [row(backend, each)["effect"] for each in "ab"] == ["committed", "none"]
    assert told == []


def test_two_real_orders_are_two_bookings() -> None:
    world = World()
    backend = backend_of(world)

    async def main() -> None:
        await backend.call("book_appointment", THURSDAY, call_id="a", request="r1")
        await backend.call("book_appointment", THURSDAY, call_id="b", request="r2")
        await backend.call("book_appointment", THURSDAY, call_id="c")  # without a request, an id is a wish of its own
        await backend.call("book_appointment", THURSDAY, call_id="d")
        await backend.call("book_appointment", FRIDAY, call_id="e", request="r1")

    virtual(main)
    assert world.bookings == [("thursday", "14:00")] * 4 + [("friday", "10:00")]


def test_case_21_one_call_id_runs_once_however_often_it_is_asked_for() -> None:
    world = World()
    backend = backend_of(world, seconds=2.0)

    async def main() -> list[dict[str, Any]]:
        assert backend.propose("a", "book_appointment", json.dumps(THURSDAY))
        backend.validate("a", "book_appointment", json.dumps(THURSDAY))
        assert not backend.propose("a", "book_appointment", json.dumps(THURSDAY))
        both = await asyncio.gather(backend.run("a"), backend.run("a"))
        return [*both, await backend.run("a")]

    results = virtual(main)
    assert [each["summary"] for each in results] == [BOOKED] * 3
    assert world.bookings == [("thursday", "14:00")]
    assert len(backend.ledger.rows()) == 1


def test_case_21_equal_reads_with_two_ids_both_run() -> None:
    backend = backend_of(World())

    async def main() -> None:
        for each in "ab":
            await backend.call("check_stock", {"item": "blue kettle"}, call_id=each, request="r1")

    virtual(main)
    assert [each["started"] for each in backend.ledger.rows()] == [0.0, 0.2]


def test_a_default_spelled_out_is_the_same_order() -> None:
    def place(item: str, amount: int = 1) -> dict[str, Any]:
        """Order something."""
        return ok("Ordered.")

    each = of(place, effect="write")
    assert each.key({"item": "x"}, "r") == each.key({"amount": 1, "item": "x"}, "r")
    assert each.key({"item": "x"}, "r") != each.key({"item": "x", "amount": 2}, "r")
    assert each.key({"item": "x"}, "r") != each.key({"item": "x"}, "s")


def test_booked_cancelled_and_booked_again_is_booked() -> None:
    world = World()
    backend = backend_of(world)

    async def main() -> list[dict[str, Any]]:
        return [
            await backend.call("book_appointment", THURSDAY, call_id="a", request="r1"),
            await backend.call("cancel_appointment", THURSDAY, call_id="b", request="r2"),
            await backend.call("book_appointment", THURSDAY, call_id="c", request="r1"),
        ]

    assert [each["status"] for each in virtual(main)] == ["ok", "ok", "ok"]
    assert world.bookings == [("thursday", "14:00")]
    assert [each["effect"] for each in backend.ledger.rows()] == ["undone", "committed", "committed"]


# --- trouble ---------------------------------------------------------------------------------------------------------


def test_closing_writes_down_how_everything_ended() -> None:
    world = World(bookings=[("friday", "10:00")])
    backend = backend_of(world, seconds={"book_appointment": 2.0, "cancel_appointment": 9.0, "check_stock": 5.0})

    async def main() -> None:
        calls = [
            asyncio.create_task(backend.call(name, arguments, call_id=call_id))
            for call_id, name, arguments in [
                ("read", "check_stock", {"item": "blue kettle"}),
                ("early", "cancel_appointment", FRIDAY),
                ("late", "book_appointment", THURSDAY),
            ]
        ]
        await asyncio.sleep(1.5)
        await backend.close()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(20.0)
        assert len(asyncio.all_tasks()) == 1

    virtual(main)
    assert [(each["call_id"], each["state"], each["effect"]) for each in backend.ledger.rows()] == [
        ("read", "cancelled", "none"), ("early", "cancelled", "none"), ("late", "unknown", "committed"),
    ]  # fmt: skip
    assert world.bookings == [("friday", "10:00"), ("thursday", "14:00")]


def test_a_ledger_that_can_not_write_stops_the_call_before_it_acts() -> None:
    world, ledger = World(), Ledger()
    backend = backend_of(world, ledger)

    async def main() -> None:
        backend.propose("a", "book_appointment", json.dumps(THURSDAY))
        backend.validate("a", "book_appointment", json.dumps(THURSDAY))
        ledger.close()
        with pytest.raises(LedgerError):
            await backend.run("a")
        await asyncio.sleep(5.0)

    virtual(main)
    assert world.bookings == []


def test_an_effect_that_can_not_be_written_down_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world, ledger = World(), Ledger()
    backend = backend_of(world, ledger)

    def full(*_: Any, **__: Any) -> bool:
        raise LedgerError("ledger x: database or disk is full; free some space")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ledger, "set_effect", full)
            with pytest.raises(LedgerError, match="disk is full"):
                await backend.call("book_appointment", THURSDAY, call_id="a", request="r1")

    virtual(main)
    assert (row(backend, "a")["state"], row(backend, "a")["effect"], len(world.bookings)) == ("running", "none", 1)
    assert backend.recover(9.0) == []
    assert (row(backend, "a")["state"], row(backend, "a")["effect"]) == ("done", "committed")


def test_recovery_keeps_an_effect_that_is_known_where_nobody_can_be_asked() -> None:
    ledger = Ledger()
    for call_id, effect in (("a", "committed"), ("b", "none")):
        ledger.propose(call_id, "send", '{"to":"Ada"}', at=0.0)
        ledger.move(call_id, "validated", at=0.0)
        ledger.start(call_id, at=0.0, key=call_id)
        ledger.set_effect(call_id, effect, at=0.0)  # type: ignore[arg-type]
    backend = ToolBackend([sending([], None, find=False)], ledger)
    assert backend.recover(9.0) == ["a", "b"]
    assert [(each["state"], each["effect"]) for each in ledger.rows()] == [
        ("unknown", "committed"), ("unknown", "unknown"),
    ]  # fmt: skip


@pytest.mark.parametrize(("when", "unsure"), [("before", ["a"]), ("between", []), ("after", [])])
def test_a_process_that_dies_anywhere_leaves_one_booking(tmp_path: Path, when: str, unsure: list[str]) -> None:
    """Its end is that nothing is written any more; real processes are killed at every statement in test_writes.py."""
    diary, file = tmp_path / "diary.sqlite", tmp_path / "ledger.sqlite"
    dying, left = World(path=diary), Ledger(file)

    async def live() -> None:
        end = asyncio.Event()

        async def book_appointment(day: str, time: str, key: IdempotencyKey) -> Any:
            """Book, and die."""
            if when == "before":
                end.set()
                await asyncio.sleep(99)
            result = await dying.book_appointment(day, time, key)  # type: ignore[arg-type]
            if when == "between":  # the diary has it, the ledger does not know yet
                end.set()
                await asyncio.sleep(99)
            asyncio.get_running_loop().call_later(0.1, end.set)
            return result

        backend = ToolBackend([Tool.of(book_appointment, effect="write", seconds=2.0)], left)
        order = asyncio.create_task(backend.call("book_appointment", THURSDAY, call_id="a", request="r1"))
        await end.wait()
        assert not order.done()
        left.close()
        dying.close()
        order.cancel()
        await asyncio.gather(order, return_exceptions=True)

    virtual(live)
    world, ledger = World(path=diary), Ledger(file)
    backend = backend_of(world, ledger)
    assert row(backend, "a")["state"] == "running"
    assert backend.recover(100.0) == unsure
    assert row(backend, "a")["state"] == ("unknown" if unsure else "done")
    assert row(backend, "a")["effect"] == ("unknown" if unsure else "committed")

    async def main() -> dict[str, Any]:
        return await backend.call("book_appointment", THURSDAY, call_id="b", request="r1")

    assert virtual(main)["summary"] == BOOKED
    assert world.bookings == [("thursday", "14:00")]
    ledger.close()


def test_a_retry_without_recovery_finds_the_dead_process_too(tmp_path: Path) -> None:
    world, ledger = World(), Ledger()
    ledger.propose("dead", "book_appointment", canonical(THURSDAY), at=0.0)
    ledger.move("dead", "validated", at=0.0, arguments=canonical(THURSDAY))
    backend = backend_of(world, ledger)
    ledger.start("dead", at=0.0, key=backend.tool("book_appointment").key(THURSDAY, "r1"))
    result = virtual(lambda: backend.call("book_appointment", THURSDAY, call_id="b", request="r1"))
    assert result["summary"] == BOOKED
    assert world.bookings == [("thursday", "14:00")]
    assert row(backend, "dead")["state"] == "unknown"


def test_recovery_cancels_what_never_ran_and_leaves_what_ended() -> None:
    backend = backend_of(World())

    async def main() -> None:
        backend.propose("waiting", "check_stock", "{}")
        await backend.call("check_stock", {"item": "blue kettle"}, call_id="done")
        backend.ledger.propose("reading", "check_stock", "{}", at=0.0)
        backend.ledger.move("reading", "validated", at=0.0)
        backend.ledger.start("reading", at=0.0)

    virtual(main)
    assert backend.recover(9.0) == []
    assert {each["call_id"]: each["state"] for each in backend.ledger.rows()} == {
        "waiting": "cancelled", "done": "done", "reading": "failed",
    }  # fmt: skip


def test_the_ledger_knows_which_schema_a_call_was_made_with() -> None:
    backend = backend_of(World())
    virtual(lambda: backend.call("check_stock", {"item": "blue kettle"}, call_id="a"))
    assert row(backend, "a")["schema_version"] == backend.tool("check_stock").schema_version


# --- the world -------------------------------------------------------------------------------------------------------

ON_ITS_WAY = "Your order left our warehouse this morning and arrives on Friday."
SAID = [
    ("get_order_status", {"order_id": "OD-20260818-001"}, ON_ITS_WAY),
    ("get_order_status", {"order_id": "OD-20260818-999"}, "There is no order with that number."),
    ("check_stock", {"item": "blue kettle"}, "There are twelve blue kettles in stock."),
    ("check_stock", {"item": "The Blue  Kettle"}, "There are twelve blue kettles in stock."),
    ("check_stock", {"item": "red kettle"}, "The red kettle is sold out."),
    ("check_stock", {"item": "teapot"}, "I found nothing for that."),
    ("get_shipping", {"item": "blue kettle"}, "Shipping a blue kettle costs four euros ninety and takes two days."),
    ("get_shipping", {"item": "red kettle"}, "I found nothing for that."),
    ("find_place", {"landmark": "Brandenburg Gate"}, "The Brandenburg Gate is in Berlin."),
    ("find_place", {"landmark": "Eiffel Tower"}, "I found nothing for that."),
    ("get_weather", {"place": "Berlin"}, "In Berlin it is eleven degrees with light rain."),
    ("get_weather", {"place": "Hamburg"}, "In Hamburg it is nine degrees and windy."),
    ("get_weather", {"place": "Brandenburg Gate"}, "I found nothing for that."),
    ("find_appointment", {"day": "friday"}, "On Friday there is a free appointment at ten."),
    ("find_appointment", {"day": "thursday", "time": "14:00"}, "On Thursday there is a free appointment at two."),
    ("find_appointment", {"day": "thursday", "time": None}, "On Thursday there is a free appointment at two."),
    ("find_appointment", {"day": "monday"}, "There is no free appointment on Monday."),
    ("find_appointment", {"day": "sunday"}, "I found nothing for that."),
    ("find_appointment", {"day": "thursday", "time": "09:00"}, "I found nothing for that."),
    ("book_appointment", THURSDAY, BOOKED),
    ("book_appointment", FRIDAY, "Your appointment on Friday at ten is booked."),
    ("cancel_appointment", FRIDAY, "Your appointment on Friday at ten is cancelled."),
    ("cancel_appointment", THURSDAY, "I found nothing for that."),
]


@pytest.mark.parametrize(("name", "arguments", "summary"), SAID)
def test_what_the_tools_say(name: str, arguments: dict[str, Any], summary: str) -> None:
    backend = backend_of(World(bookings=[("friday", "10:00")]))
    result = virtual(lambda: backend.call(name, arguments))
    assert result["summary"] == summary
    assert result["status"] in ("ok", "no_results")
    if result["status"] == "no_results":  # only where one more try, as the hint says, can help
        assert result["retryable"] is (arguments.get("time") == "09:00")


def test_results_carry_the_machine_values() -> None:
    backend = backend_of(World())

    async def main() -> list[dict[str, Any]]:
        return [
            await backend.call("find_place", {"landmark": "brandenburg gate"}),
            await backend.call("find_appointment", {"day": "thursday"}),
            await backend.call("check_stock", {"item": "red kettle"}),
            await backend.call("get_order_status", {"order_id": "OD-20260818-002"}),
            await backend.call("get_order_status", {"order_id": "OD-20260818-002", "details": True}),
        ]

    place, free, stock, short, long = virtual(main)
    assert (place["place"], free["day"], free["time"], stock["pieces"]) == ("Berlin", "thursday", "14:00", 0)
    assert short["order_id"] == "OD-20260818-002" and "history" not in short
    assert len(long["history"]) == 3 and long["summary"] == short["summary"]
    assert ORDERS["OD-20260818-002"]["history"] == long["history"]


def test_every_english_sentence_exists_as_a_recording() -> None:
    lines = Path(__file__).parents[1] / "data" / "audio" / "agent_lines.csv"
    with lines.open(newline="", encoding="utf-8") as file:
        recorded = {line["text"] for line in csv.DictReader(file)}
    said = set(sentences("en").values())
    long = next(text for text in said if text.startswith("Your second order"))  # recorded sentence by sentence
    pieces = [piece if piece.endswith(".") else piece + "." for piece in long.split(". ")]
    assert (said - {long}) | set(pieces) <= recorded


def test_german() -> None:
    backend = backend_of(World("de", bookings=[("friday", "10:00")]))

    async def main() -> list[str]:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("get_order_status", {"order_id": "OD-20260818-001"}),
            ("check_stock", {"item": "blauer Wasserkocher"}),
            ("find_appointment", {"day": "friday"}),
            ("find_appointment", {"day": "thursday"}),
            ("book_appointment", THURSDAY),
            ("book_appointment", FRIDAY),
            ("cancel_appointment", FRIDAY),
        ]
        return [(await backend.call(name, arguments))["summary"] for name, arguments in calls]

    assert virtual(main) == [
        "Ihre Bestellung hat heute Morgen unser Lager verlassen und kommt am Freitag an.",
        "Es sind zwölf blaue Wasserkocher auf Lager.",
        "Am Freitag um zehn ist ein Termin frei.",
        "Am Donnerstag um zwei ist ein Termin frei.",
        "Ihr Termin am Donnerstag um zwei ist gebucht.",
        "Ihr Termin am Freitag um zehn ist gebucht.",
        "Ihr Termin am Freitag um zehn ist abgesagt.",
    ]
    assert all(sentences("de").values())
    with pytest.raises(ValueError, match='language is "en" or "de"'):
        World("fr")


def test_cancelling_removes_one_of_two_equal_bookings() -> None:
    world = World(bookings=[("friday", "10:00"), ("friday", "10:00")])
    backend = backend_of(world)
    virtual(lambda: backend.call("cancel_appointment", FRIDAY))
    assert world.bookings == [("friday", "10:00")]


def test_ledger_and_diary_undo_the_same_one_of_two_equal_bookings() -> None:
    world = World()
    backend = backend_of(world)

    async def main() -> None:
        await backend.call("book_appointment", THURSDAY, call_id="a")
        await backend.call("book_appointment", THURSDAY, call_id="b")
        await backend.call("cancel_appointment", THURSDAY, call_id="c")

    virtual(main)
    assert [row(backend, each)["effect"] for each in "ab"] == ["committed", "undone"]
    assert [world.find_booking(row(backend, each)["key"]) is not None for each in "ab"] == [True, False]


def test_the_diary_knows_a_key_it_has_seen() -> None:
    world = World(bookings=[("friday", "10:00"), ("friday", "10:00")])

    async def main() -> None:
        for _ in range(2):
            booked = await world.book_appointment("thursday", "14:00", IdempotencyKey("k"))
            assert booked["summary"] == BOOKED
            assert (await world.cancel_appointment("friday", "10:00", IdempotencyKey("k2")))["status"] == "ok"

    virtual(main)
    assert world.bookings == [("friday", "10:00"), ("thursday", "14:00")]


def test_effects_carry_the_key_so_that_one_can_look() -> None:
    world = World(bookings=[("friday", "10:00")])
    backend = backend_of(world)

    async def main() -> None:
        await backend.call("book_appointment", THURSDAY, call_id="a")
        await backend.call("cancel_appointment", FRIDAY, call_id="b")

    virtual(main)
    booked = world.find_booking(row(backend, "a")["key"])
    assert booked is not None and booked["summary"] == BOOKED
    assert world.find_cancellation(row(backend, "b")["key"]) is not None
    assert world.find_booking("another key") is None
    assert world.find_cancellation("another key") is None


def test_a_world_per_run_knows_nothing_of_another_run() -> None:
    first, second = World(), World()
    virtual(lambda: backend_of(first).call("book_appointment", THURSDAY))
    assert (len(first.bookings), len(second.bookings)) == (1, 0)


def test_the_tools_of_the_world_and_their_seconds() -> None:
    tools = {each.name: each for each in World().tools(seconds={"check_stock": 3.0}, faults={"check_stock": "error"})}
    assert list(tools) == [
        "get_order_status", "check_stock", "get_shipping", "find_place", "get_weather", "find_appointment",
        "book_appointment", "cancel_appointment",
    ]  # fmt: skip
    assert (tools["check_stock"].seconds, tools["get_order_status"].seconds) == (3.0, 6.0)
    assert tools["check_stock"].fault(5) == Fault("error")
    effects = {name: each.effect for name, each in tools.items() if each.effect != "read"}
    assert effects == {"book_appointment": "write", "cancel_appointment": "irreversible"}
    assert tools["book_appointment"].compensation == "cancel_appointment"
    assert {each.seconds for each in World().tools(seconds=0.0)} == {0.0}
    with pytest.raises(ValueError, match=r"unknown tool 'check_stok'; did you mean check_stock\? known: "):
        World().tools(seconds={"check_stok": 1.0})


def test_a_changed_copy_of_a_tool() -> None:
    (stock,) = [each for each in World().tools() if each.name == "check_stock"]
    slow = dataclasses.replace(stock, seconds=9.0)
    backend = ToolBackend([slow], Ledger())
    virtual(lambda: backend.call("check_stock", {"item": "blue kettle"}, call_id="a"))
    assert row(backend, "a")["finished"] == 9.0


def test_two_runs_with_one_seed_write_the_same_ledger() -> None:
    def once() -> list[dict[str, Any]]:
        world = World()
        backend = ToolBackend(world.tools(seconds=Latency(2.0, 0.4)), Ledger(), random.Random(3))

        async def main() -> None:
            await asyncio.gather(
                backend.call("check_stock", {"item": "blue kettle"}, call_id="a"),
                backend.call("book_appointment", THURSDAY, call_id="b"),
                backend.call("get_shipping", {"item": "blue kettle"}, call_id="c"),
            )

        virtual(main)
        return backend.ledger.rows()

    assert once() == once()


def test_an_injected_key_reaches_a_readers_own_tool() -> None:
    seen: list[str] = []

    def pay(euros: int, key: IdempotencyKey) -> dict[str, Any]:
        """Pay."""
        seen.append(key)
        return ok("Paid.")

    backend = ToolBackend([of(pay, effect="irreversible")], Ledger())
    virtual(lambda: backend.call("pay", {"euros": 5}, request="r1"))
    assert seen == ['pay {"euros":5} r1']


def test_a_tool_that_returns_no_result_is_told_what_to_return() -> None:
    async def check_stock(item: str) -> str:
        """Look up a stock."""
        return "There are three left."

    told: list[str] = []
    backend = ToolBackend(
        [Tool.of(check_stock, effect="read")], Ledger(), notify=lambda kind, **about: told.append(about["text"])
    )
    result = run_blocking(lambda: backend.call("check_stock", {"item": "kettle"}))
    assert result["reason"] == "wrong_shape"
    assert told == ["check_stock returned 'There are three left.', which is no result: return vk.ok(...)"]
