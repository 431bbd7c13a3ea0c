"""The pictures: what they say in words, that no words overlap, and that a copy is the same copy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from talks import talk

from voicekit.audio import RATE, clips
from voicekit.plot import sweep_plot, timeline, waveform
from voicekit.recording import audio_intervals, mix

Rows = list[dict[str, Any]]


def event(t: float, lane: str, kind: str, item: str | None = None, **rest: Any) -> dict[str, Any]:
    text, call_id = rest.pop("text", None), rest.pop("call_id", None)
    return {"t": t, "lane": lane, "kind": kind, "item": item, "call_id": call_id, "text": text, "detail": rest}


def caller(clip: str, start: float, stop: float, text: str) -> Rows:
    detail = {"text": text, "start": start, "stop": stop, "audible": [[start + 0.03, stop - 0.03]]}
    return [event(t, "caller", kind, clip, **detail) for t, kind in ((start, "speech_start"), (stop, "speech_stop"))]


def agent(item: str, arrives: float, start: float, stop: float, text: str, flushed: float = 0.0) -> Rows:
    """Speech heard from `start` to `stop` that arrived at five times its pace."""
    seconds = stop - start + flushed
    arrived = arrives + seconds / 5
    audible = [[start + 0.03, stop - 0.03]] if stop > start else []
    detail = {"heard": stop - start, "flushed": flushed, "unheard": "and so on" if flushed else "", "audible": audible}
    return [
        event(arrives, "agent", "generating", item),
        event(arrived, "agent", "generated", item, text=text, seconds=seconds, stop=arrived),
        event(start, "heard", "playing", item, start=start),
        event(stop, "heard", "played", item, text=text, start=start, stop=stop, **detail),
    ]


def call(
    call_id: str, tool: str, started: float | None, finished: float | None, state: str = "done", effect: str = "none",
    heard: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "call_id": call_id, "tool": tool, "state": state, "effect": effect, "started": started, "finished": finished,
        "delivered": finished, "heard": heard,
    }  # fmt: skip


def order_status() -> tuple[Rows, Rows]:
    """A model that stands still: one long silence."""
    events = [
        *caller("order_status", 0.5, 5.32, "Hi, where is my order OD-20260818-001?"),
        *agent("i1", 13.9, 14.1, 17.5, "Your order left our warehouse this morning and arrives on Friday."),
        *caller("thanks", 18.3, 19.34, "Thank you, goodbye."),
        *agent("i2", 20.3, 20.4, 21.3, "You're welcome. Goodbye."),
    ]
    return events, [call("c1", "get_order_status", 7.2, 13.2, heard=14.1)]


def friday_thursday() -> tuple[Rows, Rows]:
    """Barge-ins, a dropped result, a rejected call, an effect nobody knows of, many decisions."""
    events = [
        *caller("appointment_friday", 0.5, 3.9, "I need an appointment on Friday, please."),
        *agent("i0", 4.6, 4.7, 6.2, "I'll look for a free", 0.9),
        *caller("make_that_thursday", 5.9, 7.2, "No, make that Thursday."),
        *agent("i1", 12.9, 13.0, 15.2, "On Thursday there is a free appointment at", 1.4),
        *caller("book_it", 15.9, 17.0, "Please book it."),
        *agent("i2", 20.9, 21.2, 23.3, "Your appointment on Thursday", 3.1),
        *caller("thanks", 25.0, 26.0, "Great, thanks."),
        event(6.2, "decision", "truncate", "i0"),
        event(7.9, "decision", "superseded", call_id="c1", text="the caller now wants Thursday"),
        event(9.1, "decision", "dropped", call_id="c1", text="stale: the caller now wants Thursday, for $5"),
        event(9.15, "decision", "held", call_id="c2"),
        event(18.8, "decision", "consent_given", call_id="c3"),
        event(18.9, "decision", "deliver", call_id="c3"),
        event(19.0, "decision", "deliver", call_id="c4"),
        event(19.1, "decision", "rejected", call_id="c5"),
        event(24.1, "decision", "gave_up", call_id="c4"),
        event(19.1, "tool", "proposed", call_id="c5", text="cancel_apointment"),
    ]
    calls = [
        call("c1", "find_appointment", 5.1, 9.1),
        call("c2", "find_appointment", 8.2, 12.2, heard=13.0),
        call("c3", "book_appointment", 19.0, 20.0, effect="committed", heard=21.2),
        call("c4", "send_confirmation_mail", 19.1, 24.1, state="unknown", effect="unknown"),
        call("c5", "cancel_apointment", None, None, state="rejected"),
    ]
    return events, calls


def two_lookups() -> tuple[Rows, Rows]:
    events = [
        *caller("stock_and_shipping", 0.5, 3.0, "Is the blue kettle in stock, and how much is shipping?"),
        *agent("i0", 3.6, 3.7, 4.9, "I'll check that now."),
        *agent("i1", 7.6, 7.8, 12.7, "There are twelve blue kettles in stock. Shipping costs four euros ninety."),
    ]
    return events, [call("c1", "check_stock", 4.0, 4.2, heard=7.9), call("c2", "get_shipping", 4.0, 7.0, heard=9.9)]


def crowd() -> tuple[Rows, Rows]:
    """More of everything than a lesson has, for more than a minute."""
    events, calls = [], []
    for n in range(7):
        t = 10.0 * n
        events += caller("again", t + 0.5, t + 2.5, f"Question number {n}, which is rather a long one.")
        events += agent(f"i{n}", t + 3.2, t + 3.4, t + 6.0, "An answer that goes on for quite a while.", 0.7 * (n % 3))
        events += [event(t + 3 + k, "decision", kind) for k, kind in ((0.0, "deliver"), (0.2, "held"), (0.4, "asked"))]
        events += [event(t + 5.0, "decision", "dropped", call_id=f"b{n}", text="withdrawn by the caller")]
        calls += [call(f"a{n}", "get_order_status", t + 3.0, t + 9.0, heard=t + 9.9)]
        calls += [call(f"b{n}", "check_stock", t + 3.1, t + 3.3, effect="undone"), call(f"c{n}", "x", t + 4, t + 8)]
    return events, calls


RUNS = {"order_status": order_status, "friday_thursday": friday_thursday, "two_lookups": two_lookups, "crowd": crowd}


def drawn(figure: Figure) -> Iterator[tuple[Text, Bbox]]:
    """The visible texts of a figure with the box each takes."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for text in figure.findobj(Text):
        tick = text.get_position()[0] if text.get_text().isdigit() else 0  # ticks outside the axes are not drawn
        if text.get_visible() and text.get_text().strip() and 0 <= tick <= figure.axes[0].get_xlim()[1]:
            yield text, text.get_window_extent(renderer)


def words(figure: Figure) -> list[str]:
    return texts(drawn(figure))


def texts(boxes: Iterable[tuple[Text, Bbox]]) -> list[str]:
    return [text.get_text().replace("\n", " ") for text, _ in boxes]


@cache
def picture(name: str) -> tuple[Figure, list[tuple[Text, Bbox]]]:
    """The timeline of one of RUNS and what is written in it; drawn once, for all who only look at it."""
    figure = timeline(*RUNS[name](), title=f"{name} on gpt-realtime")
    return figure, list(drawn(figure))


def shown_in(name: str) -> list[str]:
    return texts(picture(name)[1])


def axes(figure: Figure) -> Axes:
    (found,) = figure.axes
    return found


@pytest.mark.parametrize("name", RUNS)
def test_no_words_overlap_or_leave_the_picture(name: str) -> None:
    figure, boxes = picture(name)
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        shared = min(min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0))
        assert shared < 2.0, f"{one.get_text()!r} lies over {other.get_text()!r}"
    assert_inside(figure, boxes)


def assert_inside(figure: Figure, boxes: list[tuple[Text, Bbox]]) -> None:
    for text, box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1, text.get_text()
        assert box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1, text.get_text()


def test_a_long_title_is_cut_and_simulated_still_said() -> None:
    figure = timeline(*order_status(), title=f"{'a very long name ' * 12} (simulated)")
    boxes = list(drawn(figure))
    assert_inside(figure, boxes)
    (title,) = [box for text, box in boxes if text.get_text().startswith("a very long name")]
    (simulated,) = [box for text, box in boxes if text.get_text() == "simulated"]
    assert title.x1 < simulated.x0


def test_words_of_speech_stay_inside_their_bars() -> None:
    figure, boxes = picture("order_status")
    right = axes(figure).transData.transform((17.5, 0))[0]
    (box,) = [box for text, box in boxes if text.get_text().startswith("Your order")]
    assert box.x1 <= right


def test_the_longest_silence_is_labelled_with_its_seconds() -> None:
    shown = shown_in("order_status")
    assert "silence 8.8 s" in shown  # from 5.29 to 14.13
    assert sum(text.startswith("silence") for text in shown) == 1


def test_simulated_is_said_when_it_is_so() -> None:
    stereo = np.zeros((RATE, 2), np.int16)
    assert "simulated" in shown_in("order_status")
    assert "simulated" in words(waveform(stereo))
    assert "simulated" not in words(timeline(*order_status(), simulated=False))
    assert "simulated" not in words(waveform(stereo, simulated=False))


def test_calls_show_effect_reason_and_when_the_result_was_heard() -> None:
    shown = shown_in("friday_thursday")
    assert "stale: the caller now wants Thursday, for $5" in shown
    for text in ("cancel_apointment (rejected)", "send_confirmation_mail (unknown)", "0.9 s flushed", "superseded"):
        assert text in shown
    legend = {"effect committed", "effect unknown", "result heard", "result dropped", "not run", "flushed, never heard"}
    assert legend <= set(shown) and "effect undone" not in shown
    assert "both audible" in shown and "both audible" not in shown_in("two_lookups")
    assert "3.7 s" in shown_in("two_lookups")  # check_stock: done to heard


def test_a_dropped_result_is_not_shown_as_heard() -> None:
    events, calls = order_status()
    reason = "dropped: the caller changed the request (call_0002)"
    shown = words(timeline([*events, event(13.3, "decision", "stale_dropped", call_id="c1", text=reason)], calls))
    assert "the caller changed the request (call_0002)" in shown and "result dropped" in shown
    assert "result heard" not in shown


def test_seconds_of_arriving_speech_are_left_out_where_the_next_begins() -> None:
    events = [*agent("i0", 1.0, 1.0, 4.0, "One."), *agent("i1", 1.6, 4.0, 8.0, "Two.")]
    shown = words(timeline(events))
    assert "4.0 s" in shown and "3.0 s" not in shown


def test_a_sentence_is_cut_between_words() -> None:
    events = caller("c", 0.5, 2.2, "And what are your opening hours on Sundays?")
    shown = words(timeline([*events, *agent("i", 19.0, 19.0, 20.0, "Closed.")]))
    assert "And what are your…" in shown


def test_bars_are_where_the_sound_was() -> None:
    figure, _ = picture("order_status")
    bars = [(round(p.get_x(), 3), round(p.get_x() + p.get_width(), 3)) for p in axes(figure).patches]
    for stretch in ((0.53, 5.29), (14.13, 17.47), (7.2, 13.2)):
        assert stretch in bars


def test_rows_and_tables_give_the_same_picture_and_every_copy_is_the_same() -> None:
    events, calls = friday_thursday()
    first, _ = picture("friday_thursday")
    table = timeline(pd.DataFrame(events), pd.DataFrame(calls), title="friday_thursday on gpt-realtime")
    shown = first._repr_png_()  # type: ignore[attr-defined]
    assert shown == table._repr_png_()  # type: ignore[attr-defined]
    assert shown[:4] == b"\x89PNG" and len(shown) < 50_000
    assert tuple(first.get_size_inches()) == (11, 4)


def test_an_empty_run_is_an_empty_picture() -> None:
    assert words(timeline([], [])).count("none") == 2


def test_several_runs_fit_into_one_figure() -> None:
    figure = Figure(figsize=(11, 8))
    both = figure.subplots(2)
    assert timeline(*order_status(), ax=both[0]) is figure
    timeline(*two_lookups(), ax=both[1])
    assert [ax.get_xlim()[1] for ax in both] == pytest.approx([21.3 * 1.01, 12.7 * 1.01], abs=0.05)


def test_the_waveform_marks_the_silence_found_in_the_sound() -> None:
    known = clips()
    stereo = mix([(12_000, known["order_status"].samples)], [(10 * RATE, known["returns"].samples)])
    figure = waveform(stereo, title="a title")
    boxes = list(drawn(figure))
    assert_inside(figure, boxes)
    shown = texts(boxes)
    (_, stop), (start, _) = audio_intervals(stereo)[0][-1], audio_intervals(stereo)[1][0]
    assert {f"silence {start - stop:.1f} s", "caller", "agent as heard", "a title"} <= set(shown)


def sweep() -> pd.DataFrame:
    rows = [
        {"model": model, "tool_seconds": seconds, "metric": metric, "n": 5, "median": base + seconds, "p10": base,
         "p90": base + 2 * seconds, "provenance": "simulated"}
        for model, base in (("gpt-realtime", 0.5), ("gemini-3.1-flash-live-preview", 1.0))
        for seconds in (6.0, 0.5, 2.0)
        for metric in ("dead_air_longest", "preamble_rate")
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_a_sweep_shows_medians_in_order_with_n_and_spread() -> None:
    figure = sweep_plot(sweep(), "tool_seconds", "dead_air_longest", "model")
    boxes = list(drawn(figure))
    assert_inside(figure, boxes)
    first, second = axes(figure).lines
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([0.5, 2.0, 6.0], [1.0, 2.5, 6.5])
    assert (first.get_marker(), first.get_linestyle()) != (second.get_marker(), second.get_linestyle())
    shown = texts(boxes)
    assert "simulated; median, shaded p10 to p90, n = 5 runs a point" in shown
    assert {"gpt-realtime", "gemini-3.1-flash-live-preview", "tool seconds", "dead air longest (s)"} <= set(shown)


def test_a_sweep_over_names_puts_them_side_by_side_and_live_numbers_are_not_called_simulated() -> None:
    frame = sweep()
    frame["provenance"] = "live"
    frame.loc[0, "n"] = 3
    figure = sweep_plot(frame[frame["tool_seconds"] == 6.0], "model", "dead_air_longest", "tool_seconds")
    boxes = list(drawn(figure))
    assert_inside(figure, boxes)
    shown = texts(boxes)
    assert {"gpt-realtime", "gemini-3.1- flash-live- preview"} <= set(shown)
    assert "median, bars p10 to p90, n = 3 to 5 runs a point" in shown
    assert not [line for line in axes(figure).lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 1]


def test_a_sweep_names_what_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="no column 'speed'; it has model, tool_seconds"):
        sweep_plot(sweep(), "speed", "dead_air_longest", "model")
    with pytest.raises(ValueError, match="no values of 'talk_over'; it has dead_air_longest, preamble_rate"):
        sweep_plot(sweep(), "tool_seconds", "talk_over", "model")


def test_an_effect_after_a_time_out_is_marked_beside_no_other_call() -> None:
    late = event(9.0, "tool", "committed", call_id="a")
    calls = [
        call("a", "book_appointment", 1.0, 3.0, state="unknown", effect="committed"),
        call("b", "send_mail", 8.0, 12.0, effect="committed"),
    ]
    figure = timeline([late, event(12.0, "tool", "committed", call_id="b")], calls)
    marks = {line.get_xdata()[0]: line.get_ydata()[0] for line in axes(figure).lines if line.get_marker() == "D"}
    assert set(marks) == {9.0, 12.0} and marks[9.0] != marks[12.0]


def test_an_effect_is_marked_when_it_takes_place_and_not_when_the_tool_is_done() -> None:
    run = talk("interrupted_booking", "gpt-realtime")
    committed = next(event["t"] for event in run.event_rows if event["kind"] == "committed")
    (marked,) = [line for line in run.timeline().axes[0].lines if line.get_marker() == "D"]
    assert marked.get_xdata()[0] == committed < run.call_rows[0]["finished"]
