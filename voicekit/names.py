"""What to say of a name that does not exist: it was mistyped, and the right one is what the reader wants."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """One line such as "unknown model 'gpt-realtim'; did you mean gpt-realtime? known: ..."; `what` begins it."""
    names = list(known)
    like = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    meant = f"did you mean {' or '.join(like)}? " if like else ""
    return f"{what} {name!r}; {meant}known: {', '.join(names)}"
