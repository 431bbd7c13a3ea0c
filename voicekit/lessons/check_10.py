"""The check of notebook 10: does a booking survive a retry, a second process and a death at any statement?"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from voicekit.lessons.findings import Findings
from voicekit.results import problem

THURSDAY, FRIDAY = ("thursday", "14:00"), ("friday", "10:00")
Book = Callable[[Any, str, str, str], Any]
MOST_STATEMENTS = 20


class Died(BaseException):
    """The process is gone: no `except Exception` of the function under test may survive it."""


class Diary:
    """A diary as the exercise has it: the table `bookings` (day, time, key), in memory or in an open `database`.

    `before(number)` and `after(number)` are called around the `number`-th statement (from 1), and may raise Died or do
    something else.
    """

    def __init__(self, database: sqlite3.Connection | None = None) -> None:
        self._sql = database or sqlite3.connect(":memory:", isolation_level=None)
        if database is None:
            self._sql.execute("CREATE TABLE bookings (day TEXT, time TEXT, key TEXT)")
        self.statements = 0
        self.before: Callable[[int], None] = lambda number: None
        self.after: Callable[[int], None] = lambda number: None

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Carry out one statement of SQL; it is done when this returns."""
        self.statements += 1
        number = self.statements  # of this one: another may be carried out meanwhile
        self.before(number)
        done = self._sql.execute(statement, values)
        self.after(number)
        return done

    @property
    def bookings(self) -> list[tuple[str, str]]:
        """The appointments in it, as (day, time), oldest first."""
        return self._sql.execute("SELECT day, time FROM bookings ORDER BY rowid").fetchall()

    @property
    def in_transaction(self) -> bool:
        """Whether a BEGIN is waiting for its COMMIT."""
        return self._sql.in_transaction

    def restarted(self) -> Diary:
        """What a new process finds: the rows, without an open transaction of the dead one, and none of its memory."""
        if self.in_transaction:
            self._sql.rollback()
        database = sqlite3.connect(":memory:", isolation_level=None)
        self._sql.backup(database)
        return Diary(database)

    def elsewhere(self) -> Diary:
        """The same rows as another process that runs meanwhile has them."""
        return Diary(self._sql)


def idempotent(book: Book) -> Findings:
    """Notebook 10: is `book(diary, day, time, key)` one booking per key, whatever happens?

    It is given a `Diary` and returns a result as every tool does. Five things happen to it: an order, the same order
    again, two real orders, a death before and after each of its statements and a retry, and a second process with the
    same order in between. What a process remembers dies with it, so only the rows of the diary count. What is wrong is
    said in words.
    """
    try:
        return Findings(tuple(_findings(book)))
    except Exception as error:
        return Findings((f"an answer: the function raised {type(error).__name__}: {error}",))


def _findings(book: Book) -> Iterator[str]:
    diary = Diary()
    answers = [book(diary, *THURSDAY, "key 1")]
    length = diary.statements
    if reason := problem(answers[0]):
        yield f"a result ({reason}), such as vk.ok(…): the model is to read one."
        return
    if diary.bookings != [THURSDAY]:
        yield f"the booking: an order leaves {_counted(diary)} in the diary."
        return
    answers.append(book(diary, *THURSDAY, "key 1"))
    if len(diary.bookings) != 1:
        yield f"one booking: the same order, made twice, leaves {_counted(diary)}. Both have the same key."
    if answers[0] != answers[1]:
        yield "the same answer to the same order: a retry has to learn that it is booked, not that something is wrong."
    book(diary, *THURSDAY, "key 2")
    book(diary, *FRIDAY, "key 3")
    if sorted(diary.bookings)[-2:] != [THURSDAY, THURSDAY]:
        yield "two bookings of two callers: the keys differ, so Thursday at two was wanted twice."
    yield from _deaths(book, min(length, MOST_STATEMENTS))
    yield from _second_process(book, min(length, MOST_STATEMENTS))


def _deaths(book: Book, length: int) -> Iterator[str]:
    for point in range(length + 1):
        diary = Diary()

        def die(number: int, point: int = point) -> None:
            if number == max(point, 1):
                raise Died

        if point == 0:
            diary.before = die
        else:
            diary.after = die
        with contextlib.suppress(Died):
            book(diary, *THURSDAY, "key 1")
        diary = diary.restarted()
        book(diary, *THURSDAY, "key 1")
        if len(diary.bookings) != 1:
            where = f"after its statement {point}" if point else "before its first statement"
            yield f"one booking: killed {where} and ordered once more, it leaves {_counted(diary)}."
            return


def _second_process(book: Book, length: int) -> Iterator[str]:
    for point in range(1, length + 1):
        diary = Diary()

        def meanwhile(number: int, diary: Diary = diary, point: int = point) -> None:
            if number == point and not diary.in_transaction:  # within one the other process has to wait
                book(diary.elsewhere(), *THURSDAY, "key 1")

        diary.before = meanwhile
        book(diary, *THURSDAY, "key 1")
        if len(diary.bookings) != 1:
            yield (
                f"one booking: a second process with the same order, just before statement {point} of the first, "
                f"leaves {_counted(diary)}. Looking and writing have to be one statement."
            )
            return


def _counted(diary: Diary) -> str:
    number = len(diary.bookings)
    return f"{number} booking" if number == 1 else f"{number} bookings"
