"""Small things the notebooks use: which target to run against, a prediction beside its measurement, shapes of frames."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from voicekit.experiment import Target
from voicekit.run import Run

if TYPE_CHECKING:
    import pandas as pd


def target() -> Target:
    """Where the lessons run: VOICEKIT_TARGET, or "simulator". Raises ValueError for anything else than the three."""
    wanted = os.environ.get("VOICEKIT_TARGET", "simulator")
    if wanted not in ("simulator", "live", "replay"):
        raise ValueError(f"VOICEKIT_TARGET is simulator, live or replay, not {wanted!r}")
    return cast(Target, wanted)


def predicted(guess: float | None, measured: Any, what: str = "seconds") -> str:
    """Put a prediction beside the measurement; `guess` None means that none was made."""
    if measured is None:
        return f"No measurement: this run has no value for it. You said {guess}."
    if guess is None:
        return f"Measured: {measured:.2f} {what}. You made no prediction; go back and write a number first."
    return f"You said {guess:.2f}, measured {measured:.2f} {what}: {measured - guess:+.2f}."


def frames(run: Run, *types: str, shorten: int = 90) -> pd.DataFrame:
    """The frames of a run as one table (t, direction, type, frame), only the `types` given, audio frames left out.

    `frame` is the JSON text cut to `shorten` characters; the whole frame is in `run.wire`.
    """
    import pandas as pd

    rows = []
    for row in run.wire_rows:
        text = json.dumps(row["frame"], ensure_ascii=False)
        is_audio = "bytes of audio>" in text
        if (row["type"] in types) if types else not is_audio:
            cut = text if len(text) <= shorten else text[: shorten - 1] + "…"
            rows.append({"t": row["t"], "direction": row["direction"], "type": row["type"], "frame": cut})
    return pd.DataFrame(rows, columns=["t", "direction", "type", "frame"])


def decisions(run: Run) -> pd.DataFrame:
    """What happened to the calls and what the application decided, in order (t, lane, kind, call_id, text)."""
    import pandas as pd

    rows = [event for event in run.event_rows if event["lane"] in ("tool", "decision")]
    return pd.DataFrame(rows, columns=["t", "lane", "kind", "call_id", "text"]).fillna("")


def table(rows: Sequence[tuple[str, Run]], *metrics: str) -> pd.DataFrame:
    """The named metrics of several runs, one row each, with a label of your own."""
    import pandas as pd

    return pd.DataFrame({label: {name: run.values[name] for name in metrics} for label, run in rows}).T
