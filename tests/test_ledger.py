"""The ledger: one row per call, states that only go forward, one effect per key, and nothing lost in a kill."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicekit.ledger import COLUMNS, ENDED, REACHED_FROM, Ledger, LedgerError, canonical

KEY = 'book_appointment {"day":"thursday","time":"14:00"} r1'


def running(ledger: Ledger, call_id: str, *, at: float = 1.0, key: str | None = None) -> bool:
    ledger.propose(call_id, "book_appointment", "{}", at=at)
    ledger.move(call_id, "validated", at=at, arguments='{"day":"thursday","time":"14:00"}')
    return ledger.start(call_id, at=at, key=key)


def test_a_call_from_proposal_to_being_heard() -> None:
    ledger = Ledger()
    assert ledger.propose("c1", "check_stock", '{"item": "x"}', at=1.0, model="m", request="r1", route="realtime")
    ledger.move("c1", "arguments_complete", at=1.1)
    ledger.move("c1", "validated", at=1.2, arguments='{"item":"x"}', schema_version="abc")
    assert ledger.start("c1", at=1.3)
    result = {"status": "ok", "summary": "Zwölf.", "next_hint": ""}
    ledger.move("c1", "done", at=2.3, result=result)
    ledger.deliver("c1", at=2.4)
    ledger.hear("c1", at=3.5)
    row = ledger.row("c1")
    assert row is not None
    assert (row["state"], row["effect"]) == ("done", "none")
    times = [row[name] for name in ("proposed", "started", "finished", "delivered", "heard")]
    assert times == [1.0, 1.3, 2.3, 2.4, 3.5]
    assert (row["arguments"], row["model"], row["request"], row["route"]) == ('{"item":"x"}', "m", "r1", "realtime")
    assert row["schema_version"] == "abc"
    assert ledger.result("c1") == result
    assert row["result_sha256"] == hashlib.sha256(row["result"].encode()).hexdigest()
    assert ledger.history("c1") == [
        ("proposed", 1.0), ("arguments_complete", 1.1), ("validated", 1.2), ("running", 1.3), ("done", 2.3),
        ("delivered", 2.4), ("heard", 3.5),
    ]  # fmt: skip


def test_case_21_an_id_is_entered_once() -> None:
    ledger = Ledger()
    assert ledger.propose("a", "check_stock", "{}", at=1.0)
    assert not ledger.propose("a", "check_stock", '{"other":1}', at=2.0)
    assert [row["arguments"] for row in ledger.rows()] == ["{}"]
    assert ledger.history("a") == [("proposed", 1.0)]


def test_an_answer_is_delivered_once_and_heard_once() -> None:
    ledger = Ledger()
    ledger.propose("a", "check_stock", "{}", at=1.0)
    assert ledger.deliver("a", at=2.0)
    assert not ledger.deliver("a", at=3.0)
    assert ledger.hear("a", at=4.0)
    assert not ledger.hear("a", at=5.0)
    row = ledger.row("a")
    assert row is not None and (row["delivered"], row["heard"]) == (2.0, 4.0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(sorted(REACHED_FROM)), max_size=8))
def test_states_only_go_forward(wanted: list[str]) -> None:
    ledger = Ledger()
    ledger.propose("a", "t", "{}", at=0.0)
    state = "proposed"
    for at, next_state in enumerate(wanted, 1):
        allowed = state in REACHED_FROM[next_state]
        assert ledger.move("a", next_state, at=float(at)) is allowed  # type: ignore[arg-type]
        state = next_state if allowed else state
        row = ledger.row("a")
        assert row is not None and row["state"] == state
        assert (row["finished"] is not None) is (state in ENDED)
    ledger.close()


def test_an_unknown_end_keeps_its_time_when_it_is_resolved() -> None:
    ledger = Ledger()
    running(ledger, "a", key=KEY)
    ledger.move("a", "unknown", at=5.0)
    ledger.move("a", "done", at=9.0, result={"status": "ok"})
    row = ledger.row("a")
    assert row is not None and (row["state"], row["finished"]) == ("done", 5.0)
    assert ledger.history("a")[-1] == ("done", 9.0)


def test_unknown_calls_and_states_are_named() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="call 'zz' is not in the ledger"):
        ledger.move("zz", "done", at=1.0)
    with pytest.raises(ValueError, match="call 'zz' is not in the ledger"):
        ledger.set_effect("zz", "committed", at=1.0)
    with pytest.raises(ValueError, match="call 'zz' is not in the ledger"):
        ledger.deliver("zz", at=1.0)
    ledger.propose("a", "t", "{}", at=0.0)
    with pytest.raises(ValueError, match="unknown state 'finished'; known: "):
        ledger.move("a", "finished", at=1.0)  # type: ignore[arg-type]
    assert ledger.row("zz") is None
    assert ledger.result("zz") is None


def test_one_committed_effect_per_key() -> None:
    ledger = Ledger()
    assert running(ledger, "a", key=KEY)
    ledger.move("a", "unknown", at=2.0)
    assert running(ledger, "b", key=KEY)  # an unknown one does not hold the key, or nothing could be tried again
    assert ledger.set_effect("a", "committed", at=3.0)
    assert not ledger.set_effect("b", "committed", at=4.0)
    assert [(row["call_id"], row["effect"]) for row in ledger.rows()] == [("a", "committed"), ("b", "none")]
    assert ("committed", 4.0) not in ledger.history("b")


def test_a_key_is_held_while_running_and_after_its_effect() -> None:
    ledger = Ledger()
    assert running(ledger, "a", key=KEY)
    assert not running(ledger, "b", key=KEY)
    ledger.set_effect("a", "committed", at=2.0)
    ledger.move("a", "done", at=2.0)
    assert not ledger.start("b", at=3.0, key=KEY)
    assert ledger.start("b", at=3.0, key=KEY + "2")


def test_a_key_whose_call_had_no_effect_is_free_again() -> None:
    ledger = Ledger()
    running(ledger, "a", key=KEY)
    ledger.move("a", "failed", at=2.0)
    assert ledger.find(KEY) is None
    assert running(ledger, "b", key=KEY)


def test_find_prefers_the_call_that_has_the_effect() -> None:
    ledger = Ledger()
    assert ledger.find(KEY) is None
    running(ledger, "a", key=KEY)
    ledger.move("a", "unknown", at=2.0)
    found = ledger.find(KEY)
    assert found is not None and found["call_id"] == "a"
    running(ledger, "b", key=KEY)
    found = ledger.find(KEY)
    assert found is not None and found["call_id"] == "b"  # running beats unknown
    ledger.set_effect("a", "committed", at=3.0)
    found = ledger.find(KEY)
    assert found is not None and found["call_id"] == "a"  # committed beats all


def test_a_call_that_repeats_another_is_not_found_for_it() -> None:
    ledger = Ledger()
    running(ledger, "a", key=KEY)
    ledger.propose("b", "book_appointment", "{}", at=2.0)
    ledger.move("b", "validated", at=2.0)
    ledger.move("b", "unknown", at=3.0, key=KEY, repeats="a")
    ledger.move("a", "failed", at=4.0)
    assert ledger.find(KEY) is None


def test_undo_marks_the_newest_of_equal_bookings_only() -> None:
    ledger = Ledger()
    for at, call_id in enumerate("ab", 1):
        running(ledger, call_id, at=float(at), key=f"{KEY}{call_id}")
        ledger.set_effect(call_id, "committed", at=float(at))
    arguments = '{"day":"thursday","time":"14:00"}'
    assert ledger.undo(["other_tool"], arguments, at=5.0) is None
    assert ledger.undo([], arguments, at=5.0) is None
    assert ledger.undo(["book_appointment"], '{"day":"friday"}', at=5.0) is None
    assert ledger.undo(["book_appointment"], arguments, at=5.0) == "b"
    assert [row["effect"] for row in ledger.rows()] == ["committed", "undone"]
    ledger.move("b", "done", at=6.0)
    assert running(ledger, "c", key=f"{KEY}b")  # what was undone may be ordered again


def test_frame_has_the_columns_in_order_and_times_as_numbers() -> None:
    ledger = Ledger()
    empty = ledger.frame()
    first = ["call_id", "tool", "arguments", "state", "effect", "started", "finished", "delivered", "heard"]
    assert list(empty.columns)[:9] == first
    assert list(empty.columns) == list(COLUMNS)
    assert len(empty) == 0
    ledger.propose("a", "t", "{}", at=1.0)
    frame = ledger.frame()
    assert frame.dtypes[["started", "finished", "delivered", "heard"]].tolist() == [float] * 4
    assert math.isnan(frame.started[0])
    assert frame.tool[0] == "t"


def test_a_file_keeps_everything_and_may_be_open_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as one, Ledger(path) as two:
        one.propose("a", "t", "{}", at=1.0)
        assert not two.propose("a", "t", "{}", at=2.0)
        two.move("a", "validated", at=2.0)
        assert one.start("a", at=3.0)
        assert not two.start("a", at=3.0)
    with Ledger(path) as again:
        assert [row["state"] for row in again.rows()] == ["running"]
    with sqlite3.connect(path) as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_two_ledgers_race_for_one_key(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledgers = [Ledger(path) for _ in range(4)]
    for number, ledger in enumerate(ledgers):
        ledger.propose(f"c{number}", "t", "{}", at=0.0)
        ledger.move(f"c{number}", "validated", at=0.0)
    started: list[bool] = []
    gate = threading.Barrier(len(ledgers))

    def start(number: int) -> None:
        gate.wait()
        started.append(ledgers[number].start(f"c{number}", at=1.0, key=KEY))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(len(ledgers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [False, False, False, True]
    for ledger in ledgers:
        ledger.close()


def test_one_ledger_used_from_many_threads() -> None:
    ledger = Ledger()

    def write(name: str) -> None:
        for number in range(20):
            ledger.propose(f"{name}{number}", "t", "{}", at=0.0)
            ledger.move(f"{name}{number}", "validated", at=0.0)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row["state"] for row in ledger.rows()] == ["validated"] * 60


WRITER = """
import sys
from voicekit.ledger import Ledger
with Ledger(sys.argv[1]) as ledger:
    for number in range(100000):
        call_id, key = f"c{number}", f"k{number}"
        ledger.propose(call_id, "t", "{}", at=number)
        ledger.move(call_id, "validated", at=number)
        ledger.start(call_id, at=number, key=key)
        ledger.set_effect(call_id, "committed", at=number)
        ledger.move(call_id, "done", at=number, result={"status": "ok"})
        print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 17])
def test_a_killed_process_leaves_a_whole_ledger(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "ledger.sqlite"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(lines)][-1]
    writer.kill()
    writer.wait()
    writer.stdout.close()
    with Ledger(path) as ledger:
        rows = ledger.rows()
        assert len(rows) > told
        assert all(row["state"] == "done" and row["effect"] == "committed" for row in rows[: told + 1])
        for row in rows:  # what a row says and what its history says were written together, or not at all
            history = [state for state, _ in ledger.history(row["call_id"])]
            assert [state for state in history if state != "committed"][-1] == row["state"]
            assert ("committed" in history) is (row["effect"] == "committed")
        assert ledger.propose("after", "t", "{}", at=1.0)


@pytest.mark.parametrize("content", [b"not a database, but a text that somebody saved here\n" * 50, b"\x00" * 4096])
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(LedgerError) as error:
        Ledger(path)
    assert str(path) in str(error.value) and "damaged; move it away" in str(error.value)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == content


def test_a_page_damaged_in_the_middle_is_noticed_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.propose("c", "t", json.dumps({"text": "x" * 50_000}), at=0.0)
    content = bytearray(path.read_bytes())
    content[8192:12288] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="damaged"):
        Ledger(path)


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE calls (id)")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="another program; choose another path"):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_folder_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"ledger .*nowhere.*: .*; give a file in a folder that exists") as error:
        Ledger(tmp_path / "nowhere" / "ledger.sqlite")
    assert "\n" not in str(error.value)
    with pytest.raises(LedgerError, match="folder"):
        Ledger(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_one_clear_line(tmp_path: Path) -> None:
    with Ledger(tmp_path / "old.sqlite"):
        pass
    (tmp_path / "old.sqlite").chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        for name in ("new.sqlite", "old.sqlite"):
            with pytest.raises(LedgerError, match="folder"):
                Ledger(tmp_path / name)
    finally:
        tmp_path.chmod(0o755)


def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.rows()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=4))
def test_canonical_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    text = canonical(value)
    assert text == canonical(dict(reversed(value.items())))
    assert json.loads(text) == value
    assert canonical(json.loads(text)) == text
