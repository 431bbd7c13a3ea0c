"""Pictures of a run: the timeline, the two channels as waves, and one metric over a sweep.

A picture of simulated numbers says "simulated". How it looks is `canvas`' business.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from voicekit.audio import FRAME, RATE
from voicekit.canvas import (
    BLUE,
    CYCLE,
    DARK,
    DASHES,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PAD,
    PURPLE,
    RED,
    SILENT,
    SIZE,
    SMALL,
    Canvas,
    Picture,
    clean,
)  # fmt: skip
from voicekit.metrics import Event, Interval
from voicekit.recording import audio_intervals, conversation_silences, journal_intervals, speech

if TYPE_CHECKING:
    import pandas as pd

# What became of a call's effect, as a marker beside its bar: (symbol, filled, word).
EFFECTS = {
    "committed": ("D", True, "effect committed"),
    "undone": ("D", False, "effect undone"),
    "unknown": ("$?$", True, "effect unknown"),
}
IN_SECONDS = frozenset(
    ("response_latency", "time_to_result", "dead_air_total", "dead_air_longest", "done_to_heard", "yield_latency",
     "talk_over")
)  # fmt: skip
# Decisions after which a result is not heard.
KEPT_BACK = ("dropped", "stale_dropped", "stale_silent", "not_said", "undelivered", "unspoken")


def timeline(
    events: Any, calls: Any = (), *, title: str = "", simulated: bool = True, ax: Axes | None = None
) -> Figure:
    """Draw who was audible when, what the tools did and what the application decided; silences are shaded.

    events     rows of the journal, as dicts or as the DataFrame of `run.events`
    calls      rows of the ledger: call_id, tool, state, effect, started, finished, delivered, heard
    simulated  whether the numbers come from the simulator; the picture then says so
    ax         draw into these axes of your own instead of a new figure of 11 x 4 inches
    """
    events, calls = _records(events), _records(calls)
    shown = _shown_calls(events, calls)
    caller, agent = journal_intervals(events)
    silences = conversation_silences(caller, agent)
    end = max([1.0, *(stop for _, stop in [*caller, *agent]), *_last_times(events, calls)])
    if ax is None:
        figure: Figure = Picture(figsize=(11, 4))
        ax = figure.add_axes((0.085, 0.215, 0.9, 0.68))
    else:
        found = ax.get_figure(root=True)
        assert found is not None
        figure = found
    canvas = Canvas(ax, end)
    rows = _place_calls(canvas, shown)
    lanes = {"caller": 0.0, "generated": 1.0, "heard": 2.0, "tools": 3.1}
    decisions = lanes["tools"] + max(rows, 1) * 0.8 + 0.15
    ax.set_ylim(decisions + 1.1, -1.0)
    if rows > 3 and isinstance(figure, Picture):
        height = 4 + 0.4 * (rows - 3)
        figure.set_figheight(height)
        ax.set_position((0.085, 0.86 / height, 0.9, 1 - 1.28 / height))
    _draw_silences(canvas, silences, decisions - 0.2)
    _draw_speech(canvas, events, lanes)
    _draw_overlaps(canvas, caller, agent)
    _draw_calls(canvas, shown, lanes["tools"])
    _draw_decisions(canvas, events, decisions)
    middle = lanes["tools"] + max(rows, 1) * 0.4 - 0.4
    ax.set_yticks([0, 1, 2, middle, decisions + 0.25])
    ax.set_yticklabels(["caller", "agent\ngenerated", "agent\nheard", "tools", "decisions"], fontsize=SIZE)
    for y in (0.5, 1.5, 2.6, decisions - 0.25):
        ax.axhline(y, color="#CCCCCC", linewidth=0.6, zorder=0.5)
    canvas.finish(title, simulated)
    return figure


def waveform(stereo: npt.NDArray[np.int16], *, title: str = "", simulated: bool = True) -> Figure:
    """Draw a recording of shape (n, 2): caller above, agent as heard below, on one scale; silences shaded."""
    figure = Picture(figsize=(11, 3.2))
    ax = figure.add_axes((0.085, 0.25, 0.9, 0.63))
    canvas = Canvas(ax, max(len(stereo) / RATE, 0.1))
    loudest = max(int(np.abs(stereo.astype(np.int32)).max(initial=0)), 1)
    step = max(FRAME // 4, -(-len(stereo) // 2200))
    whole = stereo[: len(stereo) // step * step].reshape(-1, step, 2).astype(np.float64) / loudest
    times = (np.arange(len(whole)) + 0.5) * step / RATE
    for channel, colour in enumerate((BLUE, GREEN)):
        lane = channel * 2.2
        ax.fill_between(times, lane - whole[:, :, channel].max(axis=1), lane - whole[:, :, channel].min(axis=1),
                        color=colour, linewidth=0.4)  # fmt: skip
    ax.set_ylim(3.4, -1.9)
    _draw_silences(canvas, conversation_silences(*audio_intervals(stereo)), 3.4, label=-1.45)
    ax.set_yticks([0, 2.2])
    ax.set_yticklabels(["caller", "agent\nas heard"], fontsize=SIZE)
    canvas.finish(title, simulated)
    return figure


def sweep_plot(frame: pd.DataFrame, x: str, y: str, by: str) -> Figure:
    """Draw a metric over a setting, one line per value of `by`: median, with the span from p10 to p90.

    frame  what `sweep` returns: columns metric, n, median, p10, p90, provenance and the settings
    x, y   name of a setting (column) and of a metric, e.g. "tool_seconds", "dead_air_longest"

    Raises ValueError for a name the frame does not have.
    """
    for name in (x, by):
        if name not in frame.columns:
            raise ValueError(f"the sweep has no column {name!r}; it has {', '.join(map(str, frame.columns))}")
    rows = frame[(frame["metric"] == y) & frame["median"].notna()]
    if rows.empty:
        known = ", ".join(map(str, frame["metric"].unique()))
        raise ValueError(f"the sweep has no values of {y!r}; it has {known}")
    simulated = "provenance" not in rows or "simulated" in set(rows["provenance"])
    figure = Picture(figsize=(7.5, 4.2))
    ax = figure.add_axes((0.1, 0.2, 0.86, 0.7))
    places = {value: number for number, value in enumerate(dict.fromkeys(rows[x]))}
    numeric = all(isinstance(value, (int, float)) for value in places)
    for number, (name, group) in enumerate(rows.groupby(by, sort=False)):
        group = group.sort_values(x) if numeric else group
        at = np.array([float(value) if numeric else places[value] for value in group[x]])
        median, low, high = (group[column].astype(float) for column in ("median", "p10", "p90"))
        colour, marker, dashes = CYCLE[number % 7], MARKERS[number % 7], DASHES[number % 7]
        if numeric:
            ax.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
            ax.plot(at, median, color=colour, linestyle=dashes, marker=marker, linewidth=1.8, ms=5.5, label=str(name))
        else:
            beside, spread = at + 0.12 * (number - (rows[by].nunique() - 1) / 2), (median - low, high - median)
            ax.errorbar(beside, median, spread, color=colour, fmt=marker, capsize=4, label=str(name))
    if not numeric:
        ax.set_xticks(list(places.values()), [textwrap.fill(str(value), 16) for value in places])
        ax.set_xlim(-0.5, len(places) - 0.5)
    counts = sorted({int(count) for count in rows["n"]})
    runs = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
    clean(ax)
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.set_ylim(bottom=min(0.0, float(rows["p10"].min())))
    ax.set_xlabel(_words(x), fontsize=SIZE)
    ax.set_ylabel(_words(y) + (" (s)" if y in IN_SECONDS else ""), fontsize=SIZE)
    ax.legend(frameon=False, fontsize=SIZE, title=_words(by), title_fontsize=SIZE, alignment="left")
    span = "shaded" if numeric else "bars"
    note = f"{'simulated; ' if simulated else ''}median, {span} p10 to p90, {runs} runs a point"
    figure.text(0.96, 0.025, note, ha="right", fontsize=SMALL, color=GREY)
    return figure


@dataclass
class _Shown:
    """A call as it is drawn: its label, its bar (start, stop), what happened when, and its place."""

    call: dict[str, Any]
    label: str
    start: float
    stop: float
    dropped: tuple[float, str] | None
    effect_at: float  # when it took effect, which may be long before it is done; or the end of the bar
    row: int = 0
    label_at: float = 0.0
    reason: str = ""


def _records(rows: Any) -> list[dict[str, Any]]:
    """Rows as dicts, whether they came as dicts or as a DataFrame; a missing value is None."""
    records = rows.to_dict("records") if hasattr(rows, "to_dict") else [dict(row) for row in rows]
    return [{key: None if value != value else value for key, value in row.items()} for row in records]


def _last_times(events: Sequence[Event], calls: Sequence[Event]) -> list[float]:
    times = [event["t"] for event in events if event["lane"] in ("agent", "tool", "decision", "heard")]
    return times + [call[name] for call in calls for name in ("finished", "heard") if call.get(name) is not None]


def _shown_calls(events: Sequence[Event], calls: Sequence[Event]) -> list[_Shown]:
    proposed = {event["call_id"]: event["t"] for event in events if event["kind"] == "proposed"}
    last = max((event["t"] for event in events), default=0.0)
    kept_back = {
        event["call_id"]: (event["t"], (event["text"] or _words(event["kind"])).removeprefix("dropped: "))
        for event in events
        if event["lane"] == "decision" and event["call_id"] and event["kind"] in KEPT_BACK
    }
    committed = {event["call_id"]: event["t"] for event in events if event["kind"] == "committed"}
    shown = []
    for call in calls:
        start = call.get("started")
        start = proposed.get(call["call_id"], 0.0) if start is None else start
        stop = call.get("finished")
        stop = (start if call.get("started") is None else last) if stop is None else stop
        state = call.get("state") or ""
        label = str(call["tool"]) + ("" if state == "done" else f" ({_words(state)})")
        effect_at = committed.get(call["call_id"]) if call.get("effect") == "committed" else None
        dropped = kept_back.get(call["call_id"])
        shown.append(_Shown(call, label, start, stop, dropped, stop if effect_at is None else effect_at))
    return sorted(shown, key=lambda each: each.start)


def _place_calls(canvas: Canvas, shown: list[_Shown]) -> int:
    """Give each call a row in which its bar, its label and what follows it overlap with nothing. Returns the rows."""
    free: list[float] = []
    gap = 8 * canvas.second_per_point
    for each in shown:
        left = each.start
        then = each.dropped[0] if each.dropped else each.call.get("heard") or 0.0
        right = max(each.stop, each.effect_at, then) + gap  # an effect may come after a time-out
        width = canvas.width(each.label)
        if width <= each.stop - each.start:
            each.label_at = each.start
        elif right + width <= canvas.end and right - gap == each.stop:
            each.label_at, right = right, right + width
        elif width <= each.start:
            each.label_at = left = each.start - width - gap / 4
        else:
            each.label = canvas.fit(each.label, max(each.stop - each.start, canvas.end - right))
            each.label_at = each.start if canvas.width(each.label) <= each.stop - each.start else right
            right = max(right, each.label_at + canvas.width(each.label))
        if each.dropped:
            each.reason = canvas.fit(each.dropped[1], canvas.end - right, SMALL)
            right += canvas.width(each.reason, SMALL)
        each.row = next((row for row, until in enumerate(free) if until <= left), len(free))
        free[each.row : each.row + 1] = [right]
    return len(free)


def _draw_silences(canvas: Canvas, silences: Sequence[Interval], bottom: float, label: float = -0.72) -> None:
    """Shade each; the longest gets its seconds in bold, others where they fit."""
    longest = max(silences, key=lambda gap: gap[1] - gap[0], default=None)
    low, high = canvas.ax.get_ylim()
    for gap in silences:
        canvas.ax.axvspan(*gap, ymin=(low - bottom) / (low - high), color=SILENT, linewidth=0, zorder=0)
        seconds, middle = gap[1] - gap[0], sum(gap) / 2
        if gap == longest:
            words = f"silence {seconds:.1f} s"
            half = canvas.width(words, SIZE) / 2
            place = min(max(middle, half), canvas.end - half)
            canvas.text(place, label, words, ha="center", weight="bold", color=DARK)
        elif canvas.width(f"{seconds:.1f} s", SMALL) <= seconds:
            canvas.text(middle, label, f"{seconds:.1f} s", SMALL, ha="center", color=GREY)
    if silences:
        canvas.explain("nobody audible", Patch(color=SILENT))


def _draw_overlaps(canvas: Canvas, caller: Sequence[Interval], agent: Sequence[Interval]) -> None:
    """A strip under the caller's lane while both are audible."""
    both = [(max(a, c), min(b, d)) for a, b in caller for c, d in agent if min(b, d) > max(a, c)]
    for start, stop in both:
        canvas.bar(start, stop, 0.45, 0.1, "both audible", color=RED)


def _draw_speech(canvas: Canvas, events: Sequence[Event], lanes: dict[str, float]) -> None:
    """Bars of caller and agent with the words that fit, what arrived when, and what was flushed."""
    rows = speech(events)
    starts = [row["start"] for row in rows if row["who"] == "agent"]
    for row in rows:
        lane, colour = ("caller", BLUE) if row["who"] == "caller" else ("heard", GREEN)
        name = "caller audible" if lane == "caller" else "agent heard"
        if row["stop"] > row["start"]:
            canvas.bar(row["start"], row["stop"], lanes[lane], 0.7, color=colour, alpha=0.3)
            for start, stop in row["audible"]:
                canvas.bar(start, stop, lanes[lane], 0.7, name, color=colour)
            canvas.sentence(row["start"], row["stop"], lanes[lane], row["text"])
        if row["flushed"]:
            until = min((start for start in starts if start > row["stop"]), default=canvas.end)
            canvas.bar(row["stop"], min(row["stop"] + row["flushed"], canvas.end), lanes["heard"] + 0.46, 0.16,
                       "flushed, never heard", fc="white", ec=RED, hatch="//////", linewidth=0.8)  # fmt: skip
            words = f"{row['flushed']:.1f} s flushed"
            if canvas.width(words, SMALL) <= until - row["stop"]:
                canvas.text(row["stop"] + PAD * canvas.second_per_point, lanes["heard"] + 0.1, words, SMALL, color=RED)
    _draw_arrivals(canvas, events, lanes["generated"])


def _draw_arrivals(canvas: Canvas, events: Sequence[Event], y: float) -> None:
    """When each item's audio arrived, and how many seconds of it, where there is room for the number."""
    began = {event["item"]: event["t"] for event in events if event["kind"] == "generating"}
    for event in events:
        if event["kind"] != "generated" or event["item"] not in began:
            continue
        start, detail = began[event["item"]], event["detail"] or {}
        stop = max(detail.get("stop", event["t"]), start + 1.5 * canvas.second_per_point)
        canvas.bar(start, stop, y, 0.42, "speech arriving", fc="#B9E0D4", ec=GREEN, hatch="....", linewidth=0.8)
        words = f"{detail['seconds']:.1f} s"
        if stop + canvas.width(words, SMALL) <= min((t for t in began.values() if t > start), default=canvas.end):
            canvas.text(stop + PAD * canvas.second_per_point, y, words, SMALL, color=DARK)


def _draw_calls(canvas: Canvas, shown: Sequence[_Shown], top: float) -> None:
    if not shown:
        canvas.text(PAD * canvas.second_per_point, top, "none", SMALL, color=GREY)
    for each in shown:
        y, call = top + each.row * 0.8, each.call
        if call.get("started") is not None:
            canvas.bar(each.start, each.stop, y, 0.5, "tool running", color=ORANGE)
        else:
            canvas.mark(each.start, y, "not run", marker="|", color=RED, markersize=11, markeredgewidth=2)
        heard = call.get("heard")
        if call.get("effect") in EFFECTS:
            symbol, filled, name = EFFECTS[call["effect"]]
            canvas.mark(each.effect_at, y + 0.25, name, marker=symbol, color="black", markersize=6.5,
                        markerfacecolor="black" if filled else "white")  # fmt: skip
        right = each.stop
        if heard is not None and not each.dropped:
            canvas.line(each.stop, heard, y, DARK)
            canvas.mark(heard, y, "result heard", marker=">", color=GREEN, markeredgecolor="black", markersize=7)
            waited = f"{heard - each.stop:.1f} s"
            if canvas.width(waited, SMALL) + 12 * canvas.second_per_point <= heard - each.stop:
                canvas.text((each.stop + heard) / 2, y - 0.17, waited, SMALL, ha="center", color=DARK)
            right = max(right, heard)
        if each.dropped:
            right = max(right, each.dropped[0])
            canvas.line(each.stop, right, y, RED)
            canvas.mark(right, y, "result dropped", marker="X", color=RED, markeredgecolor="white", markersize=8.5)
        canvas.text(each.label_at + PAD * canvas.second_per_point, y, each.label, color="black")
        after = right if each.label_at <= right else each.label_at + canvas.width(each.label)
        canvas.text(after + 8 * canvas.second_per_point, y, each.reason, SMALL, color=RED, style="italic")


def _draw_decisions(canvas: Canvas, events: Sequence[Event], y: float) -> None:
    """A marker for each; its word on the first of three levels where it overlaps with nothing, if there is one."""
    levels = [-1.0, -1.0, -1.0]
    if not any(event["lane"] == "decision" for event in events):
        canvas.text(PAD * canvas.second_per_point, y + 0.25, "none", SMALL, color=GREY)
    for event in events:
        if event["lane"] != "decision":
            continue
        word = _words(event["kind"])
        canvas.mark(event["t"], y, marker="v", color=PURPLE, markeredgecolor="black", markersize=6)
        width = canvas.width(word, SMALL)
        left = min(event["t"] - 4 * canvas.second_per_point, canvas.end - width)
        for level, until in enumerate(levels):
            if until <= left:
                levels[level] = left + width
                canvas.text(left, y + 0.36 + 0.3 * level, word, SMALL, color=DARK)
                break


def _words(name: str) -> str:
    return str(name).replace("_", " ")
