"""A progress bar that leaves nothing behind: in a notebook it is removed when done, in a file it is not written."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def progress(things: Sequence[T], what: str = "runs") -> Iterator[T]:
    """Yield `things` one by one and show how many are done: as a bar in a notebook, as a line on a terminal."""
    total = len(things)
    handle = _notebook_bar(total)
    terminal = handle is None and sys.stderr.isatty()
    for done, thing in enumerate(things):
        if terminal:
            sys.stderr.write(f"\r{'#' * (30 * done // total):30} {done}/{total} {what}")
            sys.stderr.flush()
        if handle is not None:
            handle.progress = done
        yield thing
    if terminal:
        sys.stderr.write("\r" + " " * 60 + "\r")
    if handle is not None:
        from IPython.display import clear_output

        clear_output()


def _notebook_bar(total: int):  # type: ignore[no-untyped-def]
    """A displayed IPython progress bar, or None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import ProgressBar

    bar = ProgressBar(total)
    bar.display()
    return bar
