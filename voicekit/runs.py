"""A finished run: what happened, measured, shown, heard, saved and loaded."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from voicekit import audio, metrics, recording
from voicekit.journal import COLUMNS, read_jsonl, write_jsonl
from voicekit.ledger import QUEUE_COLUMNS
from voicekit.models import data_path
from voicekit.names import unknown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FILES = ("run.json", "events.jsonl", "wire.jsonl", "calls.jsonl", "metrics.json", "heard.flac")
WIRE_COLUMNS = ("t", "direction", "type", "frame")
CALL_COLUMNS = ("call_id", "tool", "arguments", "state", "effect", "started", "finished", "delivered", "heard")


@dataclass(frozen=True, eq=False)
class Run:
    """One conversation and its numbers.

    meta      scenario, model, policy, target, clock, seed, versions, started, provenance ("simulated" or "live")
    heard     int16 samples of shape (n, 2) at 24 kHz: left the caller, right what the caller heard of the agent
    """

    meta: dict[str, Any]
    event_rows: list[dict[str, Any]] = field(repr=False)
    wire_rows: list[dict[str, Any]] = field(repr=False)
    call_rows: list[dict[str, Any]] = field(repr=False)
    values: dict[str, metrics.Value] = field(repr=False)
    heard: npt.NDArray[np.int16] = field(repr=False)
    queue_rows: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def simulated(self) -> bool:
        return bool(self.meta["provenance"] == "simulated")

    @property
    def problem(self) -> str:
        """What ended the run before its time, in one line; empty when it ended by itself."""
        ends = [e for e in self.event_rows if e["kind"] == "problem" and not e["detail"].get("recoverable", True)]
        return str(ends[0]["text"]) if ends else ""

    @property
    def title(self) -> str:
        return f"{self.meta['scenario']} on {self.meta['model']} ({self.meta['provenance']})"

    @property
    def metrics(self) -> pd.Series:
        """The metrics by name, times in seconds; None where a run has no value. An unknown name raises KeyError."""
        found: pd.Series = _series()(self.values, dtype=object, name=self.title)
        return found

    @property
    def events(self) -> pd.DataFrame:
        """Columns t, lane, kind, item, call_id, text, detail."""
        import pandas as pd

        return pd.DataFrame(self.event_rows, columns=list(COLUMNS))

    @property
    def wire(self) -> pd.DataFrame:
        """Columns t, direction ("sent", "received"), type, frame (audio replaced by its length)."""
        import pandas as pd

        return pd.DataFrame(self.wire_rows, columns=list(WIRE_COLUMNS))

    @property
    def calls(self) -> pd.DataFrame:
        """One row per call, from the ledger; times in session seconds."""
        import pandas as pd

        return pd.DataFrame(self.call_rows).reindex(columns=list(CALL_COLUMNS)) if self.call_rows else pd.DataFrame(
            columns=list(CALL_COLUMNS)
        )  # fmt: skip

    @property
    def queue(self) -> pd.DataFrame:
        """What went to a person instead of a tool, open entries first; columns as `ledger.QUEUE_COLUMNS`."""
        import pandas as pd

        return pd.DataFrame(self.queue_rows, columns=list(QUEUE_COLUMNS))

    @property
    def undelivered(self) -> list[dict[str, Any]]:
        """Answers that came after the session had closed, so that nobody was told: t, call_id, text, why.

        `unanswered_calls` counts these calls too: they have no answer, although not by the application's fault.
        """
        events = [event for event in self.event_rows if event["kind"] == "undelivered"]
        return [
            {**{key: event[key] for key in ("t", "call_id", "text")}, "why": event["detail"]["why"]} for event in events
        ]

    def timeline(self, **options: Any) -> Figure:
        """The picture: who was audible when, tools, decisions, silences shaded."""
        from voicekit import plot

        return plot.timeline(self.event_rows, self.call_rows, title=self.title, simulated=self.simulated, **options)

    def waveform(self) -> Figure:
        """The two channels as sound waves."""
        from voicekit import plot

        return plot.waveform(self.heard, title=self.title, simulated=self.simulated)

    def listen(self) -> Any:
        """A player for notebooks: caller left, agent as heard right."""
        from voicekit import listen

        return listen.player(self.heard, simulated=self.simulated)

    def transcript(self) -> Any:
        """Who said what and when; what was generated but never heard is struck through."""
        from voicekit import listen

        return listen.transcript(self.event_rows, simulated=self.simulated)

    def save(self, folder: Path | str) -> Path:
        """Write the run as a folder of its own; an earlier run in it is replaced, other files beside it are kept.

        Raises ValueError when it cannot be written, or when the folder holds something else than a saved run.
        """
        if not isinstance(folder, (str, os.PathLike)):
            raise ValueError(f"save takes the name of a folder, not {folder!r}")
        folder = Path(folder)
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "run.json").is_file():
            raise ValueError(f"{folder} holds other files than a saved run; choose a new folder")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        except OSError as error:
            raise ValueError(
                f"cannot write to {folder.parent} ({error.strerror}); choose another folder"
            ) from None
        try:
            self._write(draft)
            folder.mkdir(exist_ok=True)
            for file in draft.iterdir():
                file.replace(folder / file.name)
        except OSError as error:
            raise ValueError(f"cannot write {folder} ({error.strerror}); choose another folder") from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return folder

    def _write(self, folder: Path) -> None:
        _write_json(folder / "run.json", self.meta)
        write_jsonl(folder / "events.jsonl", self.event_rows)
        write_jsonl(folder / "wire.jsonl", self.wire_rows)
        write_jsonl(folder / "calls.jsonl", self.call_rows)
        write_jsonl(folder / "queue.jsonl", self.queue_rows)
        _write_json(folder / "metrics.json", self.values)
        sound = self.heard if len(self.heard) else np.zeros((1, 2), np.int16)  # a FLAC of nothing cannot be read
        audio.write(folder / "heard.flac", sound)
        (folder / "labels.txt").write_text(recording.labels(self.event_rows, self.call_rows), "utf-8", "replace")
        (folder / "transcript.vtt").write_text(recording.vtt(self.event_rows), "utf-8", "replace")

    @classmethod
    def load(cls, folder: Path | str) -> Run:
        """Read a saved run. Raises ValueError naming the file that is missing or damaged."""
        if not isinstance(folder, (str, os.PathLike)):
            raise ValueError(f"load takes the name of a folder, not {folder!r}")
        folder = Path(folder)
        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder} is no saved run: {', '.join(missing)} missing; save one with run.save(folder)")
        try:
            return cls._read(folder)
        except (ValueError, OSError) as error:
            text = " ".join(str(error).split())
            raise ValueError(
                f"{folder}: damaged, {text}; hold the conversation again, or take the folder away"
            ) from None

    @classmethod
    def _read(cls, folder: Path) -> Run:
        queue = folder / "queue.jsonl"
        return cls(
            meta=_read_json(folder / "run.json", ("scenario", "model", "provenance")),
            event_rows=_read_rows(folder / "events.jsonl", COLUMNS),
            wire_rows=_read_rows(folder / "wire.jsonl", WIRE_COLUMNS),
            call_rows=_read_rows(folder / "calls.jsonl", CALL_COLUMNS),
            values=_read_json(folder / "metrics.json", ()),
            heard=audio.read_raw(folder / "heard.flac"),
            queue_rows=_read_rows(queue, QUEUE_COLUMNS) if queue.is_file() else [],
        )

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints: run, metrics, calls."""
        calls = [{name: row.get(name) for name in CALL_COLUMNS} for row in self.call_rows]
        return {"run": self.meta, "metrics": self.values, "calls": calls}

    def _repr_html_(self) -> str:
        rows = self.metrics.dropna().to_frame()
        return f"<b>{self.title}</b>{rows.to_html()}"


def _read_json(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Read a JSON object that has the `keys`. Raises ValueError naming the file, when it is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON ({error})") from None
    if not isinstance(value, dict) or not set(keys) <= set(value):
        raise ValueError(f"{path.name} is no object with {', '.join(keys) or 'names and values'}")
    return value


def _read_rows(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Read JSON lines, each an object that has the `keys`. Raises ValueError naming file and line."""
    try:
        rows = read_jsonl(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8 ({error.reason} at byte {error.start})") from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not set(keys) <= set(row):
            raise ValueError(f"{path.name}, line {number}: no object with {', '.join(keys)}")
    return rows


@cache
def _series() -> Any:
    """A pandas Series that names the names there are, made when it is needed: pandas takes long to load."""
    import pandas as pd

    class Metrics(pd.Series):  # type: ignore[misc]
        @property
        def _constructor(self) -> Any:  # what is made of it is a plain one: pandas' way to say so
            return pd.Series

        def __getitem__(self, key: Any) -> Any:
            try:
                return super().__getitem__(key)
            except KeyError:
                wanted = key if isinstance(key, list) else [key]
                missing = next((each for each in wanted if each not in self.index), key)
                raise KeyError(unknown("no metric", missing, self.index)) from None

    return Metrics


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8", "backslashreplace")


def recorded(scenario: str, model: str) -> Run:
    """The run of `scenario` on `model` that was saved in data/runs, or in the folder VOICEKIT_RUNS names.

    A folder there is called scenario--model, as in `run.save("runs/order_status--gpt-realtime")`. Raises ValueError
    naming those that exist.
    """
    folder = Path(os.environ.get("VOICEKIT_RUNS") or data_path("runs"))
    if not (folder / f"{scenario}--{model}").is_dir():
        known = ", ".join(sorted(each.name for each in folder.glob("*--*"))) or "nothing"
        raise ValueError(f"no recorded run of {scenario} on {model}; recorded: {known}")
    return Run.load(folder / f"{scenario}--{model}")
