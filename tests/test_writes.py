"""Writes that survive: killed anywhere, doubled, late, lost: one booking, and a ledger that says how it came about."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
from collections.abc import Awaitable, Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from fake_session import App, call
from hypothesis import given, settings
from hypothesis import strategies as st
from talks import talk

import voicekit as vk
from voicekit.backend import ToolBackend
from voicekit.budget import Budget
from voicekit.clock import run_blocking
from voicekit.gate import Gate
from voicekit.ledger import Ledger
from voicekit.lessons import crash
from voicekit.policy import Policy
from voicekit.results import STATUSES, ok
from voicekit.tools import IdempotencyKey, Tool
from voicekit.world import World

THURSDAY = {"day": "thursday", "time": "14:00"}
ONE = [("thursday", "14:00")]


def virtual(main: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await main()

    return run_blocking(run)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    with Ledger(folder / crash.LEDGER) as ledger:
        return ledger.rows()


def bookings_in(folder: Path) -> list[tuple[str, str]]:
    world = World(path=folder / crash.DIARY)
    try:
        return world.bookings
    finally:
        world.close()


# --- killed anywhere -------------------------------------------------------------------------------------------------

POINTS = 60  # a booking has more statements than that; each is a point at which the process is killed


@pytest.fixture(scope="module", autouse=True)
def _warm_processes() -> None:
    """Each killed process is a copy of one that has imported everything: a third of the price."""
    if crash.START == "forkserver":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
            multiprocessing.get_context("forkserver").set_forkserver_preload(["warm_shop"])
            forkserver.ensure_running()


@pytest.fixture(scope="module")
def statements(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """What an undisturbed booking begins, in order."""
    end = crash.run_and_kill(crash.book, tmp_path_factory.mktemp("undisturbed"))
    assert not end.killed
    assert end.told == ("call_1 proposed", "call_1 ok", "call_2 proposed", "call_2 ok")
    return end.statements


def test_the_points_are_the_statements_of_both_files(statements: tuple[str, ...]) -> None:
    assert len(statements) >= POINTS
    assert sum(each.startswith("INSERT INTO bookings") for each in statements) == 1
    assert sum(each == "COMMIT" for each in statements) >= 10


@pytest.mark.parametrize("part", range(4))
def test_a_booking_killed_at_any_point_is_one_booking_after_the_restart(
    part: int, statements: tuple[str, ...], tmp_path: Path
) -> None:
    died = 0
    for point in range(1 + part, len(statements) + 1, 4):
        folder = tmp_path / str(point)
        folder.mkdir()
        end = crash.run_and_kill(crash.book, folder, point)
        assert end.killed and len(end.statements) == point and end.statements == statements[:point]
        died += 1
        left = {row["call_id"]: row["state"] for row in rows_of(folder)}
        proposed = {text.split()[0] for text in end.told if text.endswith("proposed")}
        assert proposed <= set(left), f"point {point}: a row that was there is lost"
        booked = bookings_in(folder)
        assert booked in ([], ONE)

        unsure, answer = crash.come_back(folder)
        assert bookings_in(folder) == ONE, f"point {point}: {statements[point - 1]}"
        assert answer["status"] == "ok"
        rows = {row["call_id"]: row for row in rows_of(folder)}
        assert set(left) < set(rows)
        assert {row["state"] for row in rows.values()} <= {"done", "failed", "cancelled"}, "all unknowns are resolved"
        assert {row["effect"] for row in rows.values()} <= {"none", "committed"}
        # Looking finds what the diary holds, and only what it does not hold stays unknown.
        assert unsure == (["call_2"] if left.get("call_2") == "running" and not booked else []), f"point {point}"
        committed = [row["call_id"] for row in rows.values() if row["effect"] == "committed"]
        again = next(call_id for call_id in rows if call_id.endswith("again"))
        assert committed == (["call_2"] if booked else [again])
        assert rows[again]["repeats"] == ("call_2" if booked else None)
    assert died >= POINTS // 4


@pytest.mark.parametrize("moment", ["INSERT INTO bookings", "UPDATE calls SET effect = 'committed'"])
def test_a_restart_that_is_killed_too_makes_no_second_booking(
    moment: str, statements: tuple[str, ...], tmp_path: Path
) -> None:
    """Before the diary has the booking, and after it, when the ledger does not know yet."""
    point = next(number for number, each in enumerate(statements, 1) if each.startswith(moment))
    whole = tmp_path / "whole"
    whole.mkdir()
    crash.run_and_kill(crash.book, whole, point)
    length = len(crash.run_and_kill(crash.come_back, whole).statements)
    for second in range(12, length + 1, 6):
        folder = tmp_path / str(second)
        folder.mkdir()
        crash.run_and_kill(crash.book, folder, point)
        assert crash.run_and_kill(crash.come_back, folder, second).killed
        _, answer = crash.come_back(folder)
        assert (answer["status"], bookings_in(folder)) == ("ok", ONE), f"point {second} of the restart"
        rows = rows_of(folder)
        assert [row["effect"] for row in rows].count("committed") == 1
        assert {row["state"] for row in rows} <= {"done", "failed", "cancelled"}


def test_a_process_that_fails_by_itself_is_not_taken_for_a_killed_one(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="failed before"):
        crash.run_and_kill(crash.book, tmp_path / "nowhere")


# --- any mixture of retries, faults, time-outs and deaths ------------------------------------------------------------


class Shop:
    """The diary a tool writes into; `world` is replaced as processes come and go."""

    world: World


async def book_appointment(day: str, time: str, key: IdempotencyKey) -> Any:
    """Book an appointment."""
    return await Shop.world.book_appointment(day, time, key)  # type: ignore[arg-type]


def find(key: str, arguments: dict[str, Any]) -> Any:
    return Shop.world.find_booking(key, arguments)


FAULTS = st.sampled_from([None, "error", "time_out", "empty", "wrong_shape", "late_commit 0.7", "late_commit 3"])
ORDERS = st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.5, 1.3]), st.sampled_from([0.3, 0.8, 9.0])), max_size=3)
DEATHS = st.sampled_from([None, 0.1, 0.5, 0.6, 2.0])
LIVES = st.lists(st.tuples(st.lists(FAULTS, max_size=3), ORDERS, DEATHS), max_size=3)


@settings(deadline=None, max_examples=25)
@given(LIVES)
def test_whatever_happens_it_is_one_booking(lives: list[Any]) -> None:
    """Each life of the process has its faults, its orders (when, time limit), and perhaps a moment of sudden death."""
    book = Tool.of(book_appointment, effect="write", seconds=1.0, find_effect=find)
    with tempfile.TemporaryDirectory() as name:
        folder, answers, proposed = Path(name), [], []
        for number, (faults, orders, death) in enumerate([*lives, ([], [(0.0, 9.0)], None)]):
            ledger = Ledger(folder / crash.LEDGER)
            Shop.world = World(path=folder / crash.DIARY)
            by_number = {each: fault for each, fault in enumerate(faults, 1) if fault is not None}
            tool = Tool(**{**vars(book), "faults": by_number or None})
            answers += run_blocking(_life(ledger, tool, number, orders, death, proposed))
            ledger.close()
            Shop.world.close()
        booked, rows = bookings_in(folder), rows_of(folder)
    assert booked == ONE
    assert sum(row["effect"] == "committed" for row in rows) == 1
    assert [row["call_id"] for row in rows] == proposed, "no row is lost"
    assert {row["state"] for row in rows} <= {"done", "failed", "cancelled"}
    assert answers[-1]["status"] == "ok"
    assert all(each["summary"] for each in answers)


def _life(
    ledger: Ledger, tool: Tool, number: int, orders: list[tuple[float, float]], death: float | None, proposed: list[str]
) -> Callable[[], Any]:
    async def live() -> list[Any]:
        backend = ToolBackend([tool], ledger)
        backend.recover(at=0.0)

        async def order(place: int, delay: float, limit: float) -> Any:
            await asyncio.sleep(delay)
            call_id = f"{number}.{place}"
            backend.propose(call_id, tool.name, json.dumps(THURSDAY), request="r1")
            proposed.append(call_id)
            backend.validate(call_id, tool.name, json.dumps(THURSDAY))
            return await backend.run(call_id, limit)

        calls = [asyncio.create_task(order(place, *each)) for place, each in enumerate(orders)]
        if death is None:
            answers = await asyncio.gather(*calls)
            await backend.settle()
            backend.recover(at=99.0)
            return list(answers)
        await asyncio.sleep(death)
        answered = [call.result() for call in calls if call.done()]
        ledger.close()  # from here on nothing is written any more, neither here nor there
        Shop.world.close()
        await asyncio.gather(*calls, return_exceptions=True)
        return answered

    return live


# --- one by one ------------------------------------------------------------------------------------------------------


def backend_of(world: World, **options: Any) -> ToolBackend:
    return ToolBackend(world.tools(**options), Ledger())


async def ordered(backend: ToolBackend, call_id: str, **options: Any) -> dict[str, Any]:
    return await backend.call("book_appointment", THURSDAY, call_id=call_id, request="r1", **options)


@pytest.mark.parametrize("fault", ["empty", "wrong_shape", "late_commit 0.2", "late_commit 3", "time_out", "error"])
def test_a_lost_or_broken_answer_and_a_retry_are_one_booking(fault: str) -> None:
    world = World()
    backend = backend_of(world, faults={"book_appointment": {1: fault}})

    async def main() -> list[dict[str, Any]]:
        answers = [await ordered(backend, "a", timeout=1.5), await ordered(backend, "b")]
        await backend.settle()
        return answers

    first, second = virtual(main)
    assert second["status"] == "ok"
    assert world.bookings == ONE
    assert first["status"] == {"error": "failed", "empty": "ok", "wrong_shape": "ok"}.get(fault, "unknown")


@pytest.mark.parametrize("model", ["gpt-realtime", "gemini-3.8-live"])
def test_case_27_after_a_cancel_no_tool_starts(model: str) -> None:
    """The application is closed at 0.5 s, in the middle of a lookup; the call that books arrives at 1.2 s."""
    world = World()

    async def main() -> App:
        app = App(model, world.tools(seconds=2.0))
        async with app:
            app.session.emit(call("a", "check_stock", '{"item":"blue kettle"}'))
            app.at(1.2, lambda: app.session.emit(call("b", "book_appointment", json.dumps(THURSDAY))))
            await asyncio.sleep(0.5)
            assert app.calls()["a"]["state"] == "running"
            await app.dispatcher.close()
            await asyncio.sleep(9.5)
            assert app.now() == pytest.approx(10.0)
        return app

    app = virtual(main)
    assert world.bookings == []
    assert app.calls()["a"]["state"] == "cancelled"
    assert app.calls().get("b", {}).get("started") is None
    assert "committed" not in app.kinds("tool")


def test_case_27_a_call_that_was_called_off_is_not_run_later() -> None:
    """Proposed at 0 s, called off at 0.5 s, and at 1.2 s it would be its turn."""
    world = World()
    backend = backend_of(world)

    async def main() -> dict[str, Any]:
        backend.propose("a", "book_appointment", json.dumps(THURSDAY))
        backend.validate("a", "book_appointment", json.dumps(THURSDAY))
        await asyncio.sleep(0.5)
        assert backend.cancel("a").outcome == "cancelled"
        await asyncio.sleep(0.7)
        return await backend.run("a")

    assert virtual(main)["status"] == "cancelled"
    assert world.bookings == []
    assert (backend.ledger.row("a") or {})["started"] is None


@pytest.mark.parametrize("model", ["gpt-realtime", "gemini-3.8-live"])
def test_case_32_an_unknown_tool_ends_no_session(model: str) -> None:
    """It is answered with the names that there are, and speech is asked for once where the provider waits for that.

    The public case wants no speech after it by default. Here the model gets one round to repair the call, and uses it:
    it calls the right tool instead of saying anything about the wrong one.
    """
    run = talk("order_status_chatty", model, faults={"unknown_tool": "transfer_funds_v2"})
    assert run.problem == "" and run.values["unanswered_calls"] == 0
    rejected = next(row for row in run.call_rows if row["tool"] == "transfer_funds_v2")
    answer = json.loads(rejected["result"])
    assert (rejected["state"], rejected["started"], answer["reason"]) == ("rejected", None, "unknown_tool")
    assert "get_order_status" in answer["valid_options"]
    (noted,) = [e["text"] for e in run.event_rows if e["kind"] == "rejected" and e["call_id"] == rejected["call_id"]]
    assert "there is no tool 'transfer_funds_v2'; known: " in noted
    of_it = [e for e in run.event_rows if e["call_id"] == rejected["call_id"] and e["lane"] in ("tool", "decision")]
    asked = [e["kind"] for e in of_it if e["kind"] == "respond"]
    assert asked == (["respond"] if model == "gpt-realtime" else [])  # Gemini goes on by itself after a response
    assert [e["kind"] for e in of_it if e["lane"] == "tool"] == ["proposed", "rejected", "answered"]
    (repaired,) = [row for row in run.call_rows if row["call_id"] != rejected["call_id"]]
    assert (repaired["tool"], repaired["state"]) == ("get_order_status", "done")
    after = [e for e in run.event_rows if e["kind"] == "played" and e["t"] > rejected["finished"]]
    assert not any("transfer" in (event["text"] or "") for event in after)
    assert any("left our warehouse" in (event["text"] or "") for event in after)
    assert any("nine to six" in (event["text"] or "") for event in after)  # the next turn works


# --- what exceeds the budget -----------------------------------------------------------------------------------------


def within(world: World, **limits: float) -> ToolBackend:
    return ToolBackend(world.tools(seconds=1.0), Ledger(), budget=Budget(limits))


async def stock(backend: ToolBackend, call_id: str) -> dict[str, Any]:
    return await backend.call("check_stock", {"item": "blue kettle"}, call_id=call_id, request="r1")


def test_the_call_beyond_the_hops_is_not_run_and_a_person_gets_it() -> None:
    backend = within(World(), hops=2)
    backend.budget.turn(1, at=0.0)

    async def main() -> list[dict[str, Any]]:
        return [await stock(backend, each) for each in "ab"] + [await ordered(backend, "c")]

    *answered, refused = virtual(main)
    assert [each["status"] for each in answered] == ["ok", "ok"]
    assert (refused["status"], refused["reason"], refused["retryable"]) == ("failed", "over_budget", False)
    assert "colleague" in refused["summary"] and "person" in refused["next_hint"]
    row = backend.ledger.row("c") or {}
    assert (row["state"], row["effect"], row["started"]) == ("rejected", "none", None)
    (entry,) = backend.ledger.queue()
    assert {name: entry[name] for name in ("number", "call_id", "tool", "arguments", "at", "done_at", "note")} == {
        "number": 1, "call_id": "c", "tool": "book_appointment", "arguments": '{"day":"thursday","time":"14:00"}',
        "at": 2.0, "done_at": None, "note": None,
    }  # fmt: skip
    assert entry["why"] == "calls since the caller last spoke: 2, the limit is 2"


def test_hops_and_seconds_begin_anew_when_the_caller_speaks_and_tokens_do_not() -> None:
    backend = within(World(), hops=1)

    async def main() -> list[str]:
        statuses = []
        for turn in (1, 2):
            backend.budget.turn(turn, at=asyncio.get_running_loop().time())
            statuses += [(await stock(backend, f"{turn}{each}"))["status"] for each in "ab"]
        return statuses

    assert virtual(main) == ["ok", "failed", "ok", "failed"]
    budget = Budget({"tokens": 100, "seconds": 5})
    budget.spend({"total_tokens": 60})
    budget.begin(0.0)
    budget.end(4.0)
    budget.turn(1, at=9.0)
    budget.spend({"total_token_count": 39})
    assert budget.used(9.0) == {"hops": 0, "seconds": 0.0, "tokens": 99}
    assert budget.reached(9.0) == ""
    budget.spend({"total_tokens": 1})
    assert budget.reached(9.0) == "tokens in this session: 100, the limit is 100"


def test_a_usage_report_in_seconds_costs_no_tokens() -> None:
    budget = Budget({"tokens": 1})
    budget.spend({"seconds": 60.0})
    budget.spend({})
    assert budget.reached(0.0) == ""


def test_two_tools_at_once_take_their_time_once() -> None:
    budget = Budget({"seconds": 10})
    budget.begin(0.0)
    budget.begin(1.0)
    budget.end(3.0)
    assert budget.used(4.0)["seconds"] == 4.0
    budget.end(5.0)
    assert budget.used(100.0)["seconds"] == 5.0
    budget.begin(100.0)
    budget.turn(2, at=101.0)  # the caller speaks while a tool runs: from then on
    assert budget.used(103.0) == {"hops": 0, "seconds": 2.0, "tokens": 0}


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=6))
def test_the_seconds_are_those_in_which_something_ran(calls: list[tuple[float, float]]) -> None:
    budget = Budget()
    moments = sorted([(start, 0) for start, _ in calls] + [(start + length, 1) for start, length in calls])
    for at, is_end in moments:
        (budget.end if is_end else budget.begin)(at)
    covered, end = 0.0, float("-inf")
    for start, stop in sorted((start, start + length) for start, length in calls):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    assert budget.used(300.0)["seconds"] == pytest.approx(covered, abs=1e-4)


def test_an_order_that_is_repeated_costs_nothing() -> None:
    world = World()
    backend = within(world, hops=1)

    async def main() -> list[dict[str, Any]]:
        return [await ordered(backend, each) for each in "ab"]

    first, second = virtual(main)
    assert first == second and first["status"] == "ok"
    assert backend.ledger.queue() == []
    assert world.bookings == ONE


def test_nobody_is_asked_about_what_is_beyond_the_budget_and_a_yes_to_it_is_used_up() -> None:
    world = World()
    gate = Gate(["check_stock"])
    backend = ToolBackend(world.tools(seconds=1.0), Ledger(), gate=gate, budget=Budget({"hops": 1}))

    async def main() -> list[Any]:
        backend.budget.turn(1, at=0.0)
        await stock(backend, "a")
        gate.grant("book_appointment", THURSDAY, at=1.0)
        backend.propose("b", "book_appointment", json.dumps(THURSDAY), request="r1")
        backend.validate("b", "book_appointment", json.dumps(THURSDAY))
        found: list[Any] = [backend.admission("b"), (await backend.run("b"))["reason"]]
        backend.budget.turn(2, at=2.0)
        return [*found, (await ordered(backend, "c"))["status"]]

    assert virtual(main) == ["ruled_out", "over_budget", "needs_consent"]


def test_an_order_stands_in_the_queue_once_and_leaves_it_when_the_machine_has_done_it() -> None:
    world = World()
    backend = within(world, hops=1)

    async def main() -> list[int]:
        backend.budget.turn(1, at=0.0)
        await stock(backend, "a")
        for each in "bc":
            await ordered(backend, each)
        counts = [len(backend.ledger.queue())]
        backend.budget.turn(2, at=5.0)
        await ordered(backend, "d")
        return counts

    assert virtual(main) == [1]
    (entry,) = backend.ledger.queue()
    assert (entry["call_id"], entry["note"], entry["done_at"]) == ("b", "answered by d", 2.0)
    assert world.bookings == ONE


def test_a_person_works_the_queue_off() -> None:
    ledger = Ledger()
    for call_id in "abc":
        ledger.propose(call_id, "check_stock", "{}", at=0.0)
        assert ledger.hand_over(call_id, "too much", at=1.0, result=ok("x"))
    assert not ledger.hand_over("a", "again", at=2.0, result=ok("x"))
    assert ledger.work_off(2, "called back, all is well", at=5.0)
    assert not ledger.work_off(2, "me too", at=6.0)
    assert [(each["number"], each["done_at"], each["note"]) for each in ledger.queue()] == [
        (1, None, None), (3, None, None), (2, 5.0, "called back, all is well"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="the queue has no entry 9"):
        ledger.work_off(9, "done", at=7.0)
    with pytest.raises(ValueError, match="a note says what was done"):
        ledger.work_off(1, " ", at=7.0)


def test_a_call_that_ran_is_not_handed_over() -> None:
    backend = within(World())
    virtual(lambda: stock(backend, "a"))
    assert not backend.ledger.hand_over("a", "too late", at=9.0, result=ok("x"))
    assert backend.ledger.queue() == []


def test_the_queue_outlives_the_process(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.propose("a", "t", "{}", at=0.0)
        ledger.hand_over("a", "too much", at=1.0, result=ok("x"))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert [each["call_id"] for each in ledger.queue()] == ["a"]


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"hop": 1}, "budget has no 'hop'; it knows hops, seconds, tokens"),
        ({"hops": 0}, "hops in the budget is a number above 0, not 0"),
        ({"tokens": "many"}, "tokens in the budget is a number above 0, not 'many'"),
        ({"seconds": float("nan")}, "seconds in the budget is a number above 0, not nan"),
        ({"hops": True}, "hops in the budget is a number above 0, not True"),
        (4, "budget is limits by name, as in {'hops': 4} or budget.hops=4, not 4"),
    ],
)
def test_a_budget_that_limits_nothing_is_refused_in_one_line(budget: Any, message: str) -> None:
    with pytest.raises(ValueError, match="policy: ") as error:
        Policy(budget=budget)
    assert str(error.value) == f"policy: {message}"


@pytest.mark.parametrize("model", ["gpt-realtime", "gemini-3.8-live", "gpt-live-1"])
def test_in_a_conversation_the_caller_hears_that_a_person_takes_over(model: str, tmp_path: Path) -> None:
    run = talk("place_then_weather", model, budget={"hops": 1})
    assert {row["tool"]: row["state"] for row in run.call_rows} == {"find_place": "done", "get_weather": "rejected"}
    heard = [event["text"] or "" for event in run.event_rows if event["kind"] == "played"]
    assert any("A colleague will see to it" in text for text in heard)
    assert run.values["unanswered_calls"] == 0
    loaded = vk.Run.load(run.save(tmp_path / "run"))
    assert loaded.queue["tool"].tolist() == run.queue["tool"].tolist() == ["get_weather"]


# --- made again against other tools ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> vk.Run:
    folder = tmp_path_factory.mktemp("saved") / "run"
    return vk.Run.load(talk("friday_thursday", "gpt-realtime").save(folder))


def only(frame: Any, tool: str) -> dict[str, Any]:
    (row,) = frame[frame["tool"] == tool].to_dict("records")
    return dict(row)


def test_the_record_says_what_a_call_was_made_with(saved: vk.Run) -> None:
    versions = {tool.name: tool.schema_version for tool in World().tools()}
    for row in saved.call_rows:
        assert row["schema_version"] == versions[row["tool"]]
        assert row["model"] == "gpt-realtime"
        assert row["arguments"] and row["result_sha256"]


def test_with_the_same_tools_nothing_is_different(saved: vk.Run) -> None:
    found = vk.replay(saved, World(bookings=[("friday", "10:00")]).tools())
    assert found["tool"].tolist() == [row["tool"] for row in saved.call_rows]
    assert (found["schema"] == "same").all() and found["accepted_now"].all()
    made = found[found["result"].notna()]
    assert (made["result"] == "same").all() and made["difference"].isna().all() and len(made) >= 2
    assert (found["then"] == found["now"]).all()


def test_another_answer_names_the_first_field_that_differs(saved: vk.Run) -> None:
    row = only(vk.replay(saved, World("de").tools()), "book_appointment")
    assert (row["schema"], row["result"], row["then"]) == ("same", "changed", row["now"])
    assert row["difference"] == (
        'summary: "Your appointment on Thursday at two is booked." -> "Ihr Termin am Donnerstag um zwei ist gebucht."'
    )


def replacing(name: str, function: Callable[..., Any], **options: Any) -> list[Tool]:
    return [each for each in World().tools() if each.name != name] + [Tool.of(function, name=name, **options)]


def test_a_stricter_tool_no_longer_takes_the_arguments(saved: vk.Run) -> None:
    async def book_appointment(day: str, time: str, people: int) -> Any:
        """Book an appointment for some people."""
        raise AssertionError("it is not run")

    row = only(vk.replay(saved, replacing("book_appointment", book_appointment, effect="write")), "book_appointment")
    assert (row["schema"], row["accepted_then"], row["accepted_now"]) == ("changed", True, False)
    assert (row["now"], row["difference"]) == ("rejected, missing_field", 'status: "ok" -> "invalid_argument"')


def test_a_tool_that_is_gone_is_named_as_gone(saved: vk.Run) -> None:
    found = vk.replay(saved, [each for each in World().tools() if each.name != "book_appointment"])
    row = only(found, "book_appointment")
    assert (row["schema"], row["now"]) == ("gone", "rejected, unknown_tool")


def test_an_empty_answer_of_a_changed_tool_is_a_typed_error(saved: vk.Run) -> None:
    async def book_appointment(day: str, time: str) -> Any:
        """Book an appointment."""
        return ""

    row = only(vk.replay(saved, replacing("book_appointment", book_appointment, effect="write")), "book_appointment")
    assert (row["now"], row["difference"]) == ("unknown, unknown", 'status: "ok" -> "unknown"')


def test_consents_are_taken_from_the_record() -> None:
    """What was agreed to is made again; what was refused is not, whatever the tools are."""
    agreed = talk("booking", "gpt-realtime", without_asking=frozenset())
    assert [row["effect"] for row in agreed.call_rows].count("committed") == 1
    world = World()
    found = vk.replay(agreed, world.tools())
    assert (found["then"] == found["now"]).all() and world.bookings == ONE

    unanswered = talk("booking", "gpt-realtime", on_barge_in="hold_until_confirmed")
    assert unanswered.call_rows and all(row["started"] is None for row in unanswered.call_rows)
    diary = World()
    found = vk.replay(unanswered, diary.tools())
    assert diary.bookings == []
    assert found["result"].isna().all() and (found["now"] == "not run").all()


def test_what_went_to_a_person_is_not_made_again() -> None:
    run = talk("place_then_weather", "gpt-realtime", budget={"hops": 1})
    row = only(vk.replay(run, World().tools()), "get_weather")
    assert (row["then"], row["now"], row["result"]) == ("rejected, over_budget", "not run", None)


def test_a_run_without_calls_and_tools_that_are_none(saved: vk.Run) -> None:
    quiet = vk.Run(saved.meta, [], [], [], {}, saved.heard)
    assert vk.replay(quiet, World().tools()).empty
    with pytest.raises(ValueError, match="tools to replay with are Tool objects"):
        vk.replay(saved, ["check_stock"])  # type: ignore[list-item]


def test_every_answer_of_the_shop_has_a_status_and_a_sentence() -> None:
    for fault in [None, "error", "time_out", "empty", "wrong_shape", "late_commit 1"]:
        for tool in World().tools(seconds=0.1):
            backend = ToolBackend([Tool(**{**vars(tool), "faults": fault})], Ledger())
            arguments: dict[str, Any] = dict.fromkeys(tool.parameters.get("required", ()), "thursday")
            result = virtual(lambda b=backend, n=tool.name, a=arguments: b.call(n, a, timeout=0.5))  # type: ignore[misc]
            assert result["status"] in STATUSES and result["summary"].strip()


# --- the exercise ----------------------------------------------------------------------------------------------------

BOOKED = ok("It is booked.")


def never_looks(diary: Any, day: str, time: str, key: str) -> Any:
    diary.execute("INSERT INTO bookings VALUES (?, ?, ?)", (day, time, key))
    return BOOKED


def looks_then_writes(diary: Any, day: str, time: str, key: str) -> Any:
    if diary.execute("SELECT 1 FROM bookings WHERE key = ?", (key,)).fetchone() is None:
        diary.execute("INSERT INTO bookings VALUES (?, ?, ?)", (day, time, key))
    return BOOKED


def takes_the_hour_for_the_key(diary: Any, day: str, time: str, key: str) -> Any:
    hour = (day, time, key, day, time)
    diary.execute("INSERT INTO bookings SELECT ?, ?, ? WHERE NOT EXISTS"
                  " (SELECT 1 FROM bookings WHERE day = ? AND time = ?)", hour)  # fmt: skip
    return BOOKED


def notes_the_key_afterwards(diary: Any, day: str, time: str, key: str) -> Any:
    if diary.execute("SELECT 1 FROM bookings WHERE key = ?", (key,)).fetchone() is None:
        diary.execute("INSERT INTO bookings VALUES (?, ?, '')", (day, time))
        diary.execute("UPDATE bookings SET key = ? WHERE key = ''", (key,))
    return BOOKED


def in_one_statement(diary: Any, day: str, time: str, key: str) -> Any:
    values = (day, time, key, key)
    diary.execute("INSERT INTO bookings SELECT ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM bookings WHERE key = ?)", values)
    return BOOKED


def in_a_transaction(diary: Any, day: str, time: str, key: str) -> Any:
    diary.execute("BEGIN IMMEDIATE")
    looks_then_writes(diary, day, time, key)
    diary.execute("COMMIT")
    return BOOKED


class Remembering:
    """Books what it has not seen, and remembers in the process what it has seen: beside the diary, or on it."""

    def __init__(self, where: str) -> None:
        self.where, self.beside = where, WeakKeyDictionary[Any, set[str]]()

    def __call__(self, diary: Any, day: str, time: str, key: str) -> Any:
        seen = diary.__dict__.setdefault("seen", set())
        if self.where == "beside":
            seen = self.beside.setdefault(diary, set())
        if key not in seen:
            seen.add(key)
            diary.execute("INSERT INTO bookings VALUES (?, ?, ?)", (day, time, key))
        return BOOKED


@pytest.mark.parametrize(
    ("book", "findings"),
    [
        (Remembering("on it"), ["killed after its statement 1", "a second process"]),
        (Remembering("beside"), ["killed after its statement 1", "a second process"]),
        (in_one_statement, []),
        (in_a_transaction, []),
        (never_looks, ["the same order, made twice", "killed after its statement 1", "a second process"]),
        (looks_then_writes, ["a second process with the same order, just before statement 2"]),
        (notes_the_key_afterwards, ["killed after its statement 2", "a second process"]),
        (takes_the_hour_for_the_key, ["two bookings of two callers"]),
        (lambda diary, day, time, key: {}, ["a result (empty)"]),
        (lambda diary, day, time, key: BOOKED, ["an order leaves 0 bookings"]),
        (lambda diary, day, time: BOOKED, ["the function raised TypeError"]),
    ],
)
def test_the_check_finds_what_is_missing(book: Any, findings: list[str]) -> None:
    verdict = vk.check.idempotent(book)
    assert bool(verdict) is not bool(findings)
    assert len(verdict.findings) == len(findings)
    for finding, expected in zip(verdict.findings, findings, strict=True):
        assert expected in finding
