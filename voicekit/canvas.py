"""What the pictures are drawn with: colours, axes that know how wide a text is, a figure that shows itself.

Colours are Okabe and Ito's, told apart by colour-blind readers; what matters is also told by place, hatch or a word,
so that a black-and-white print still works.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from PIL import Image

BLUE, GREEN, ORANGE, RED, PURPLE = "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
DARK, GREY, SILENT = "#222222", "#666666", "#E6E6E6"
CYCLE = ("#0072B2", RED, GREEN, PURPLE, ORANGE, BLUE, "#000000")
MARKERS, DASHES = "osD^vPX", ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
SIZE, SMALL, TWO_LINES = 8.5, 7.5, 7.0  # points; the last one goes twice into a bar
TITLE = 96  # letters there is room for, with "simulated" beside them
PAD = 3.0  # points between a text and what is around it
HINTING = 1.07  # small text is drawn wider than its outline by the rounding to whole pixels

LEGEND = (
    "caller audible", "agent heard", "speech arriving", "flushed, never heard", "nobody audible", "both audible",
    "tool running", "not run", "effect committed", "effect undone", "effect unknown", "result heard", "result dropped",
)  # fmt: skip


class Picture(Figure):
    """A figure that a notebook shows by itself, once and always with the same bytes; few colours keep it small."""

    def draw(self, renderer: Any) -> None:
        # Letters that are not fitted to pixels look as good here, and take a third less time.
        with rc_context({"text.hinting": "no_hinting"}):
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110, pil_kwargs={"compress_level": 0})  # it is packed below
        image, small = Image.open(buffer).convert("RGB"), io.BytesIO()
        image = image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        image.save(small, format="png", optimize=True)
        return small.getvalue()


class Canvas:
    """Axes of which the width of a text is known in seconds, and which remember what the legend must explain."""

    def __init__(self, ax: Axes, end: float) -> None:
        self.ax = ax
        ax.set_xlim(0, end * 1.01)
        figure = ax.get_figure(root=True)
        assert figure is not None
        self._figure = figure
        width = ax.get_position().width * figure.get_figwidth() * 72.0  # in points
        self.second_per_point = end * 1.01 / width
        self.end = end * 1.01
        self._legend: dict[str, Any] = {}

    def width(self, text: str, size: float = SIZE) -> float:
        """Seconds that `text` takes, with a little air on both sides."""
        return (_points(text, size) * HINTING + 2 * PAD) * self.second_per_point

    def fit(self, text: str, seconds: float, size: float = SIZE) -> str:
        """`text`, cut with an ellipsis where it is longer than `seconds`; empty when less than a word would be left."""
        if self.width(text, size) <= seconds:
            return text
        whole = text
        while text and self.width(text + "…", size) > seconds:
            text = text[:-1]
        at_word = text if whole[len(text)] == " " else text.rpartition(" ")[0]  # "are you" is not "are your opening"
        text = at_word if len(at_word) > 3 else text
        return text.rstrip(" ,.") + "…" if len(text) > 3 else ""

    def sentence(self, start: float, stop: float, y: float, text: str) -> None:
        """Write as much of `text` into a bar as fits: on one line, or smaller on two."""
        text, seconds = " ".join(text.split()), stop - start
        lines, size = [text], SIZE
        if self.width(text) > seconds:
            words, first, size = text.split(), "", TWO_LINES
            while words and self.width(f"{first} {words[0]}".strip(), size) <= seconds:
                first = f"{first} {words.pop(0)}".strip()
            second = self.fit(" ".join(words), seconds, size)
            lines = [first, second] if first and second else [self.fit(text, seconds, size)]
        self.text(start + PAD * self.second_per_point, y, "\n".join(lines), size, color="black", linespacing=1.15)

    def text(self, x: float, y: float, text: str, size: float = SIZE, **options: Any) -> None:
        if text:
            self.ax.text(x, y, text, fontsize=size, parse_math=False, va="center", zorder=5, **options)

    def bar(self, start: float, stop: float, y: float, height: float, name: str = "", **style: Any) -> None:
        """A bar at least one point wide; `name` is what it is called in the legend."""
        width = max(stop - start, 1.5 * self.second_per_point)
        self.ax.barh(y, width, height, left=start, **{"linewidth": 0, "zorder": 2, **style})
        if name:
            self.explain(name, Patch(**{"linewidth": 0, **style}))

    def mark(self, x: float, y: float, name: str = "", **style: Any) -> None:
        options = {"linestyle": "none", "markersize": 6, **style}
        self.ax.plot([x], [y], zorder=6, clip_on=False, **options)
        if name:
            self.explain(name, Line2D([], [], **options))

    def line(self, start: float, stop: float, y: float, colour: str) -> None:
        self.ax.plot([start, stop], [y, y], zorder=1.5, color=colour, linestyle=(0, (1, 1.2)), linewidth=1.2)

    def explain(self, name: str, handle: Any) -> None:
        """Have the legend show `handle` as `name`."""
        self._legend.setdefault(name, handle)

    def _legend_below(self) -> None:
        names = [name for name in LEGEND if name in self._legend]
        if names:
            below = self.ax.get_position().height * self._figure.get_figheight()
            self.ax.legend(
                [self._legend[name] for name in names], names, loc="upper center", bbox_to_anchor=(0.5, -0.34 / below),
                ncols=len(names) if len(names) <= 8 else -(-len(names) // 2), fontsize=SMALL, frameon=False,
                handlelength=1.5, handletextpad=0.5, columnspacing=1.3,
            )  # fmt: skip

    def finish(self, title: str, simulated: bool) -> None:
        """Time axis, title, legend, and the word "simulated" where it is due."""
        ax = self.ax
        clean(ax)
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=14, steps=[1, 2, 5, 10], integer=self.end > 6))
        ax.set_xlabel("session time in seconds", fontsize=SMALL, labelpad=1)
        title = title if len(title) <= TITLE else title[: TITLE - 1] + "…"
        if title:
            ax.set_title(title, loc="left", fontsize=10.5, weight="bold", color=DARK, parse_math=False)
        if simulated and "simulated" not in title:
            ax.set_title("simulated", loc="right", fontsize=9, style="italic", color=GREY)
        self._legend_below()


@lru_cache(maxsize=10_000)  # a text is tried at many lengths, and the pictures of a lesson share their sentences
def _points(text: str, size: float) -> float:
    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0])


def clean(ax: Axes) -> None:
    """Axes without a frame."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=SIZE)
