"""Every call and every effect, durable: one row per call in sqlite, and one row for each change of its state.

    proposed -> arguments_complete -> validated -> running -> done | failed | cancelled | unknown
    any of the first three -> rejected | cancelled;  unknown -> done | failed, once somebody has looked

Beside them stands the queue: calls that the machine did not carry out and a person is to look after.

What a call did to the world is kept apart from how it ended: `effect` is none, committed, undone or unknown. A call can
be "unknown" and its effect "committed" (the answer was lost), and one that was never heard of again is both "unknown".
Times are seconds on the clock of whoever calls; the ledger has none of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    import pandas as pd

State = Literal[
    "proposed", "arguments_complete", "validated", "running", "done", "failed", "cancelled", "unknown", "rejected"
]
Effect = Literal["none", "committed", "undone", "unknown"]

# The states each state may be reached from.
REACHED_FROM: dict[str, tuple[str, ...]] = {
    "arguments_complete": ("proposed",),
    "validated": ("proposed", "arguments_complete"),
    "running": ("validated",),
    "done": ("validated", "running", "unknown"),  # from validated: the answer of an earlier call is given again
    "failed": ("running", "unknown"),
    "cancelled": ("proposed", "arguments_complete", "validated", "running"),
    "unknown": ("validated", "running"),
    "rejected": ("proposed", "arguments_complete", "validated"),
}
WAITING = ("proposed", "arguments_complete", "validated")  # states of a call that has not been run
ENDED = ("done", "failed", "cancelled", "unknown", "rejected")

FIRST_COLUMNS = ("call_id", "tool", "arguments", "state", "effect", "started", "finished", "delivered", "heard")
LAST_COLUMNS = ("proposed", "effect_at", "request", "key", "repeats", "schema_version", "model", "route")
COLUMNS = FIRST_COLUMNS + LAST_COLUMNS + ("result", "result_sha256")
TIMES = ("started", "finished", "delivered", "heard", "proposed", "effect_at")
QUEUE_COLUMNS = ("number", "call_id", "tool", "arguments", "why", "at", "done_at", "note")

DAMAGED = "the file is damaged; move it away, and a new one is made"
MENDS = {  # by the beginning of sqlite's name for the error
    "SQLITE_CANTOPEN": "give a file in a folder that exists and may be written to",
    "SQLITE_READONLY": "give a file in a folder that may be written to",
    "SQLITE_NOTADB": DAMAGED,
    "SQLITE_CORRUPT": DAMAGED,
    "SQLITE_BUSY": "another process is writing to it; end that one",
    "SQLITE_FULL": "free some space",
}

# Marks the file as ours ("vkit"), so that a wrong path never writes into another program's database.
APPLICATION_ID = 0x766B6974
SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    call_id TEXT PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, state TEXT NOT NULL,
    effect TEXT NOT NULL DEFAULT 'none', started REAL, finished REAL, delivered REAL, heard REAL,
    proposed REAL NOT NULL, effect_at REAL, request TEXT, key TEXT, repeats TEXT, schema_version TEXT, model TEXT,
    route TEXT, result TEXT, result_sha256 TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS one_effect_per_key ON calls (key) WHERE effect = 'committed';
CREATE INDEX IF NOT EXISTS calls_by_key ON calls (key);
CREATE TABLE IF NOT EXISTS states (
    number INTEGER PRIMARY KEY, call_id TEXT NOT NULL REFERENCES calls, state TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS queue (
    number INTEGER PRIMARY KEY, call_id TEXT NOT NULL REFERENCES calls, why TEXT NOT NULL, at REAL NOT NULL,
    done_at REAL, note TEXT);
"""
# The calls that serve the same request with the same tool and arguments as one call, itself included.
SAME_ORDER = """
SELECT other.call_id FROM calls AS one JOIN calls AS other ON other.call_id = one.call_id OR (one.request != ''
    AND other.request = one.request AND other.tool = one.tool AND other.arguments = one.arguments)
WHERE one.call_id = ?"""


class LedgerError(Exception):
    """The ledger can not be opened, read or written; the message names the file and the mend."""


def canonical(value: Any) -> str:
    """The one spelling of a JSON value: keys sorted, no spaces. Equal arguments have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Ledger:
    """The calls of a run (or of many) in the sqlite file `path`; ":memory:" keeps them in memory.

    Every method that writes is one transaction: after a kill at any point the file holds all of it or nothing. The same
    file may be open twice, also in two processes. Raises LedgerError when the file can not be used.
    """

    def __init__(self, path: str | Path = ":memory:") -> None:
        self.path = str(path)
        self._lock = threading.RLock()  # a run writes from its own thread, a notebook reads from another
        with self._clear_errors():
            # Autocommit: transactions are ours alone, opened in `_transaction`.
            self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._clear_errors():
            health = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            owner = self._connection.execute("PRAGMA application_id").fetchone()[0]
            tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if health != "ok":
            raise LedgerError(f"ledger {self.path}: {DAMAGED}")
        if owner != APPLICATION_ID and tables:
            raise LedgerError(f"ledger {self.path}: the database of another program; choose another path")
        with self._clear_errors():
            self._connection.execute("PRAGMA journal_mode = WAL")
        with self._transaction() as sql:
            sql.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            for statement in SCHEMA.split(";"):  # not executescript, which would commit in between
                sql.execute(statement)

    # --- writing -----------------------------------------------------------------------------------------------------

    def propose(
        self, call_id: str, tool: str, arguments: str, *, at: float, schema_version: str = "", model: str = "",
        request: str = "", route: str = "",
    ) -> bool:  # fmt: skip
        """Enter a call with its arguments as received. False if the id is known: the same call came in twice."""
        with self._transaction() as sql:
            added = sql.execute(
                "INSERT OR IGNORE INTO calls (call_id, tool, arguments, state, proposed, schema_version, model,"
                " request, route) VALUES (?, ?, ?, 'proposed', ?, ?, ?, ?, ?)",
                (call_id, tool, arguments, at, schema_version, model, request, route),
            ).rowcount
            if added:
                self._note(sql, call_id, "proposed", at)
        return bool(added)

    def move(
        self, call_id: str, state: State, *, at: float, arguments: str | None = None,
        result: dict[str, Any] | None = None, key: str | None = None, repeats: str | None = None,
        schema_version: str | None = None,
    ) -> bool:  # fmt: skip
        """Bring a call to `state`. False, and nothing written, if it is past that already (see `REACHED_FROM`).

        `arguments`: their canonical text, known once they are validated. `key`: the idempotency key. `repeats`: the
        call whose answer this one was given. What is None stays as it was. Raises ValueError for an unknown call or
        state.
        """
        with self._transaction() as sql:
            return self._move(sql, call_id, state, at, arguments, result, key, repeats, schema_version)

    def start(self, call_id: str, *, at: float, key: str | None = None) -> bool:
        """Bring a validated call to "running". False if it is past that, or if another call holds its `key`.

        A key is held by a call that is running or whose effect is committed. Looking and starting are one transaction,
        so that of two processes with the same order only one starts.
        """
        with self._transaction() as sql:
            held = sql.execute(
                "SELECT 1 FROM calls WHERE key = ? AND call_id != ? AND (state = 'running' OR effect = 'committed')",
                (key, call_id),
            ).fetchone()
            return held is None and self._move(sql, call_id, "running", at, key=key)

    def set_effect(self, call_id: str, effect: Effect, *, at: float) -> bool:
        """Note what the call did to the world. False if it would be a second committed effect of one key."""
        try:
            with self._transaction() as sql:
                self._known(sql, call_id)
                sql.execute("UPDATE calls SET effect = ?, effect_at = ? WHERE call_id = ?", (effect, at, call_id))
                self._note(sql, call_id, effect, at)
        except sqlite3.IntegrityError:
            return False
        return True

    def undo(self, tools: Iterable[str], arguments: str, *, at: float) -> str | None:
        """Mark the newest committed effect of one of `tools` with these canonical arguments as undone; its call id."""
        names = tuple(tools)
        marks = ", ".join("?" * len(names))
        with self._transaction() as sql:
            row = sql.execute(
                f"SELECT call_id FROM calls WHERE effect = 'committed' AND arguments = ? AND tool IN ({marks})"
                " ORDER BY effect_at DESC, rowid DESC LIMIT 1",
                (arguments, *names),
            ).fetchone()
            if row is None:
                return None
            call_id: str = row["call_id"]
            sql.execute("UPDATE calls SET effect = 'undone', effect_at = ? WHERE call_id = ?", (at, call_id))
            self._note(sql, call_id, "undone", at)
            return call_id

    def deliver(self, call_id: str, *, at: float) -> bool:
        """The answer went out to the model. False if it did before: a call id gets one answer."""
        return self._mark(call_id, "delivered", at)

    def hear(self, call_id: str, *, at: float) -> bool:
        """The caller began to hear the result. False if that was noted before."""
        return self._mark(call_id, "heard", at)

    # --- what a person is to do --------------------------------------------------------------------------------------

    def hand_over(self, call_id: str, why: str, *, at: float, result: dict[str, Any]) -> bool:
        """Refuse a call that has not been run and put it into the queue. False, and nothing written, if it has.

        The same order stands in the queue once, however often it is made; it leaves the queue by `work_off`, or when
        the machine has answered it after all.
        """
        with self._transaction() as sql:
            if not self._move(sql, call_id, "rejected", at, result=result):
                return False
            sql.execute(
                "INSERT INTO queue (call_id, why, at) SELECT ?, ?, ? WHERE NOT EXISTS"
                f" (SELECT 1 FROM queue WHERE done_at IS NULL AND call_id IN ({SAME_ORDER}))",
                (call_id, why, at, call_id),
            )
        return True

    def queue(self) -> list[dict[str, Any]]:
        """What people have to do, and have done: open entries first, then oldest first; columns as `QUEUE_COLUMNS`."""
        found = self._query(
            f"SELECT {', '.join(QUEUE_COLUMNS)} FROM queue JOIN calls USING (call_id)"
            " ORDER BY done_at IS NOT NULL, number"
        )
        return [dict(row) for row in found]

    def work_off(self, number: int, note: str, *, at: float) -> bool:
        """A person has looked after entry `number`. False, and the first note stays, if somebody had before.

        Raises ValueError for a number that is not in the queue, and for an empty note: the next one has to know.
        """
        if not note.strip():
            raise ValueError("a note says what was done, so that nobody does it again; write one")
        with self._transaction() as sql:
            if sql.execute("SELECT 1 FROM queue WHERE number = ?", (number,)).fetchone() is None:
                raise ValueError(f"the queue has no entry {number!r}; see ledger.queue()")
            statement = "UPDATE queue SET done_at = ?, note = ? WHERE number = ? AND done_at IS NULL"
            return bool(sql.execute(statement, (at, note, number)).rowcount)

    # --- reading -----------------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """All calls, oldest first; columns as in `COLUMNS`, `arguments` and `result` as JSON text."""
        return [dict(row) for row in self._query(f"SELECT {', '.join(COLUMNS)} FROM calls ORDER BY rowid")]

    def row(self, call_id: str) -> dict[str, Any] | None:
        """One call, or None if its id is unknown."""
        found = self._query(f"SELECT {', '.join(COLUMNS)} FROM calls WHERE call_id = ?", call_id)
        return dict(found[0]) if found else None

    def find(self, key: str) -> dict[str, Any] | None:
        """The call that carries the effect of `key`: committed, else running, else unknown; None if none may have."""
        found = self._query(
            f"SELECT {', '.join(COLUMNS)} FROM calls WHERE key = ? AND repeats IS NULL AND (effect = 'committed' OR"
            " state IN ('running', 'unknown')) ORDER BY effect = 'committed' DESC, state = 'running' DESC, rowid DESC",
            key,
        )
        return dict(found[0]) if found else None

    def result(self, call_id: str) -> dict[str, Any] | None:
        """The result a call ended with, or None."""
        row = self.row(call_id)
        return json.loads(row["result"]) if row and row["result"] else None

    def history(self, call_id: str) -> list[tuple[str, float]]:
        """Every state and effect the call went through, with its time."""
        found = self._query("SELECT state, at FROM states WHERE call_id = ? ORDER BY number", call_id)
        return [(row["state"], row["at"]) for row in found]

    def frame(self) -> pd.DataFrame:
        """`rows` as a table; times are floats in seconds, NaN where there is none."""
        import pandas as pd  # here: a process that only writes must not wait for it

        return pd.DataFrame(self.rows(), columns=list(COLUMNS)).astype(dict.fromkeys(TIMES, float))

    def close(self) -> None:
        """Close the file. What was written stays."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _move(
        self, sql: sqlite3.Connection, call_id: str, state: str, at: float, arguments: str | None = None,
        result: dict[str, Any] | None = None, key: str | None = None, repeats: str | None = None,
        schema_version: str | None = None,
    ) -> bool:  # fmt: skip
        if state not in REACHED_FROM:
            raise ValueError(f"unknown state {state!r}; known: {', '.join(REACHED_FROM)}")
        text = None if result is None else canonical(result)
        sources = REACHED_FROM[state]
        new = {
            "started": at if state == "running" else None,
            "finished": at if state in ENDED else None,
            "arguments": arguments,
            "result": text,
            "result_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
            "key": key,
            "repeats": repeats,
            "schema_version": schema_version,
        }
        # The time a call first ended is kept when an unknown end is resolved later; the states table has both.
        kept = ", ".join(f"{name} = coalesce({name}, ?)" for name in ("started", "finished"))
        replaced = ", ".join(f"{name} = coalesce(?, {name})" for name in list(new)[2:])
        changed = sql.execute(
            f"UPDATE calls SET state = ?, {kept}, {replaced}"
            f" WHERE call_id = ? AND state IN ({', '.join('?' * len(sources))})",
            (state, *new.values(), call_id, *sources),
        ).rowcount
        if changed:
            self._note(sql, call_id, state, at)
        else:
            self._known(sql, call_id)
        if changed and state == "done":  # also an order that a person was to see to: nobody must do it twice
            sql.execute(
                f"UPDATE queue SET done_at = ?, note = ? WHERE done_at IS NULL AND call_id IN ({SAME_ORDER})",
                (at, f"answered by {call_id}", call_id),
            )
        return bool(changed)

    def _mark(self, call_id: str, column: str, at: float) -> bool:
        with self._transaction() as sql:
            changed = sql.execute(
                f"UPDATE calls SET {column} = ? WHERE call_id = ? AND {column} IS NULL", (at, call_id)
            ).rowcount
            if changed:
                self._note(sql, call_id, column, at)
            else:
                self._known(sql, call_id)
        return bool(changed)

    @staticmethod
    def _note(sql: sqlite3.Connection, call_id: str, state: str, at: float) -> None:
        sql.execute("INSERT INTO states (call_id, state, at) VALUES (?, ?, ?)", (call_id, state, at))

    @staticmethod
    def _known(sql: sqlite3.Connection, call_id: str) -> None:
        if sql.execute("SELECT 1 FROM calls WHERE call_id = ?", (call_id,)).fetchone() is None:
            raise ValueError(f"call {call_id!r} is not in the ledger; propose it first")

    def _query(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock, self._clear_errors():
            return self._connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._clear_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Turn sqlite's errors into one line with the mend; a broken constraint stays what it is."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            mend = next((mend for kind, mend in MENDS.items() if name.startswith(kind)), "use another file")
            raise LedgerError(f"ledger {self.path}: {error}; {mend}") from None
