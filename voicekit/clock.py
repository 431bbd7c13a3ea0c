"""One time for everything: `loop.time()` of a run's own event loop, virtual or real.

A run always gets a fresh loop in a thread of its own, so that the same call works in a script, in a test and in a
notebook cell (where another loop is already running). With the virtual clock the loop jumps to the next timer as soon
as nothing is ready to be read or run; sockets, TLS and SDKs are the real ones in both cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

import looptime

Clock = Literal["virtual", "real"]
T = TypeVar("T")

# Empty polls before time jumps, besides the two of looptime's own. Loopback delivery is done when `send` returns on
# Linux, so a few are enough there; the margin is for kernels that deliver a little later. Repeated runs on a loaded
# machine are compared in the tests.
POLLS = 4
# How long an interrupted or failed run may take to close its sockets, in real seconds.
CLOSING_SECONDS = 0.8


class VirtualLoop(looptime.LoopTimeEventLoop, asyncio.SelectorEventLoop):
    """A selector loop whose time jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        poll = selector.select
        super().__init__(selector, start=0, noop_cycles=0)
        jump = selector.select  # looptime's, which polls once and then moves the time

        def select(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            # Here and not by turning the whole loop (`noop_cycles`), which does the same for five times the price.
            # looptime is asked only when time may have to move.
            if timeout is not None:
                for _ in range(POLLS if timeout > 0 else 1):
                    if ready := poll(0):
                        return ready
                if timeout <= 0:
                    return []
            return jump(timeout) or jump(timeout)  # the first of the two is the empty cycle it insists on

        selector.select = select  # type: ignore[method-assign]


def new_loop(clock: Clock) -> asyncio.AbstractEventLoop:
    """Return a fresh event loop. `clock` is "virtual" (starts at 0 s) or "real"; anything else raises ValueError.

    Always a selector loop: the simulator watches plain sockets, which Windows' default loop can not.
    """
    if clock == "virtual":
        return VirtualLoop()
    if clock == "real":
        return asyncio.SelectorEventLoop()
    raise ValueError(f'clock is "virtual" or "real", not {clock!r}')


def run_blocking(main: Callable[[], Coroutine[Any, Any, T]], clock: Clock = "virtual") -> T:
    """Run `main()` on a new loop in a new thread and return its result (or raise its error).

    An interrupt (Ctrl-C, or a notebook's stop button) cancels the run, waits at most `CLOSING_SECONDS` for it to
    close its sockets, and raises KeyboardInterrupt.
    """
    loop = new_loop(clock)
    outcome: list[T] = []
    failure: list[BaseException] = []
    done = threading.Event()
    task: list[asyncio.Task[T]] = []

    def work() -> None:
        try:
            asyncio.set_event_loop(loop)
            task.append(loop.create_task(main(), name="voicekit run"))
            outcome.append(loop.run_until_complete(task[0]))
        except BaseException as error:
            failure.append(error)
        finally:
            with contextlib.suppress(Exception):
                _cancel_leftovers(loop)
            asyncio.set_event_loop(None)
            loop.close()
            done.set()

    thread = threading.Thread(target=work, name=f"voicekit {clock} loop", daemon=True)
    thread.start()
    try:
        while not done.wait(0.1):  # a timed wait lets the main thread see an interrupt on every platform
            pass
    except KeyboardInterrupt:
        with contextlib.suppress(RuntimeError):  # the loop may have closed in this very moment
            loop.call_soon_threadsafe(lambda: [t.cancel() for t in task])
        done.wait(CLOSING_SECONDS)
        raise
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _cancel_leftovers(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what a run left behind and let the cancellations happen, so that no task or socket outlives it."""
    tasks = asyncio.all_tasks(loop)
    for leftover in tasks:
        leftover.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())


async def wait_for(awaitable: Awaitable[T], seconds: float, what: str) -> T:
    """Await with a limit in loop seconds; raises TimeoutError that names what was waited for."""
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except TimeoutError:
        raise TimeoutError(f"waited {seconds:g} s for {what}, which never came") from None
