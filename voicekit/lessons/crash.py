"""A booking in a process of its own, which can be killed at any point: what is left in the ledger and in the diary.

What lasts is changed by statements of SQL and by nothing else. So the points at which a kill can make a difference are
the beginnings of the statements, in the ledger's file and in the diary's. They are counted, and the process kills
itself with SIGKILL as it reaches the wanted one: it can tidy nothing up.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from voicekit.backend import ToolBackend
from voicekit.clock import run_blocking
from voicekit.ledger import Ledger
from voicekit.results import Result
from voicekit.world import World

ORDER = '{"day": "thursday", "time": "14:00"}'
REQUEST = "Thursday at two"  # the caller's; whoever carries it out, under whatever call id, has the same key
LEDGER, DIARY = "ledger.sqlite", "diary.sqlite"
# Windows has no SIGKILL; any other signal ends the process there, as hard.
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
# A fork server starts a process in some 20 ms, a fresh interpreter in 800. Windows has only the latter.
START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"

Job = Callable[[Path, Callable[[str], object]], object]


@dataclass(frozen=True)
class End:
    """How a process ended.

    statements   what it began in the two files, in order; of a killed one the last was not carried out any more
    told         what it had told before, such as "call_1 proposed"
    killed       whether it was killed; if not, it came to its end by itself
    """

    statements: tuple[str, ...]
    told: tuple[str, ...]
    killed: bool


@contextlib.contextmanager
def shop(folder: Path | str) -> Iterator[tuple[World, ToolBackend]]:
    """Open the diary and the ledger in `folder`, as a process does that starts."""
    folder = Path(folder)
    with Ledger(folder / LEDGER) as ledger:
        world = World(path=folder / DIARY)
        try:
            yield world, ToolBackend(world.tools(), ledger)
        finally:
            world.close()


def book(folder: Path | str, tell: Callable[[str], object] = lambda text: None) -> list[Result]:
    """Look for the hour and book it: a call that reads and one that writes, all steps. Returns their results."""
    with shop(folder) as (_, backend):
        look = functools.partial(_carry_out, backend, "call_1", "find_appointment", '{"day": "thursday"}', tell)
        order = functools.partial(_carry_out, backend, "call_2", "book_appointment", ORDER, tell)
        return [run_blocking(look), run_blocking(order)]


def come_back(folder: Path | str, tell: Callable[[str], object] = lambda text: None) -> tuple[list[str], Result]:
    """What the next process does: settle what is left, then the caller's same order under a new call id.

    Returns the ids of the calls that stayed unknown, because the diary did not know them either, and the answer to the
    order. At the end it looks once more: what was unknown is settled by what the diary holds now.
    """
    with shop(folder) as (_, backend):
        unsure = backend.recover(at=0.0)
        call_id = f"call_{len(backend.ledger.rows()) + 1}_again"
        answer = run_blocking(functools.partial(_carry_out, backend, call_id, "book_appointment", ORDER, tell))
        backend.recover(at=2.0)
        return unsure, answer


async def _carry_out(
    backend: ToolBackend, call_id: str, name: str, arguments: str, tell: Callable[[str], object]
) -> Result:
    backend.propose(call_id, name, arguments, request=REQUEST)
    tell(f"{call_id} proposed")
    backend.validate(call_id, name, arguments)
    result = await backend.run(call_id)
    backend.deliver(call_id)
    tell(f"{call_id} {result['status']}")
    return result


def run_and_kill(job: Job, folder: Path | str, point: int | None = None) -> End:
    """Run `job(folder, tell)` in a process of its own; it dies as it begins its `point`-th statement (from 1).

    `job` is `book`, `come_back` or a function of a module of yours. Without a point, or with one beyond the last
    statement, it comes to its end.
    """
    context: Any = multiprocessing.get_context(START)
    if START == "forkserver":
        context.set_forkserver_preload([__name__])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_live, args=(job, Path(folder), point, there), daemon=True)
    process.start()
    there.close()
    heard: dict[str, list[str]] = {"statement": [], "told": []}
    with contextlib.suppress(EOFError):  # the other end closes when the process ends, however it does
        while True:
            kind, text = here.recv()
            heard[kind].append(text)
    process.join()
    if process.exitcode not in (0, -KILL, KILL):
        raise RuntimeError(f"the process was to be killed and failed before (exit code {process.exitcode})")
    return End(tuple(heard["statement"]), tuple(heard["told"]), killed=process.exitcode != 0)


def _live(job: Job, folder: Path, point: int | None, pipe: Connection) -> None:
    numbers = itertools.count(1)

    def begin(statement: str) -> None:
        pipe.send(("statement", " ".join(statement.split())))
        if next(numbers) == point:
            os.kill(os.getpid(), KILL)

    class Counted(sqlite3.Connection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.set_trace_callback(begin)

    # In this process only, which is thrown away: ledger and diary are to know nothing of being watched.
    vars(sqlite3)["connect"] = functools.partial(sqlite3.connect, factory=Counted)
    job(folder, lambda text: pipe.send(("told", text)))
