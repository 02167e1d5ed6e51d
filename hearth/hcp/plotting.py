"""Draws a plot of named series over one axis, as a PNG of a fixed size; needs no display, no files, no home directory.

    python -m hearth.hcp.plotting < REQUEST.json > PLOT.png

The request is one JSON object: `series` (name -> numbers, with null where there is none), `x` (as many numbers; without
it they are counted from 0), `title`, `x_label`, `y_label`. What cannot be drawn is one line on stderr and exit code 1.

It is a program because drawing takes a second of a processor and 60 MB that nobody who waits for a bus should pay for
(decision 0079); `hearth.actors.bridges.hcp.drawing` is who starts it. It refuses to guess: a request is drawn as it is,
or not at all.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

WIDTH, HEIGHT, DPI = 960, 540, 100
"""Of the picture, in pixels, and how many of them the fonts take for an inch."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#f0e442", "#000000")
"""Of the series, in their order; told apart by colour-blind people too (Okabe and Ito), the yellow late."""
STYLES = ("-", "--", ":")
"""When the colours are used up, they come again in the next of these."""
MOST_SERIES = len(COLOURS) * len(STYLES)
MOST_POINTS = 200_000
"""Numbers in all; more of them would be drawn on top of each other, for minutes."""
MOST_TEXT = 200
"""Characters of a title, a label, a name."""
LONGEST_NAME = 32
"""Characters of a name that the legend shows."""
FARTHEST = 1e30
"""The greatest number that can be drawn: the renderer reckons in single precision."""
FEW = 60
"""Up to so many points in a series, each is marked."""
LIFETIME = 60
"""Seconds after which the program is ended by the kernel, when whoever started it can no longer do so."""
CURE = "pip install 'hearth[plot]'"


class PlotError(HearthError):
    """What cannot be drawn, and why, in one line."""


@frozen(kw_only=True)
class Plot:
    """A request that can be drawn. NaN is a gap."""

    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]


def read_plot(request: object) -> Plot:
    """A request, checked. Raises PlotError with the member that is wrong."""
    if not isinstance(request, dict):
        raise PlotError("expected an object with `series`")
    named = request.get("series")
    if not isinstance(named, dict) or not named:
        raise PlotError("series: expected an object with at least one series in it")
    if len(named) > MOST_SERIES:
        raise PlotError(f"series: {len(named)} are more than the {MOST_SERIES} that can be told apart")
    series = tuple((_text(name, "series"), _numbers(values, f"series.{name}")) for name, values in named.items())
    longest = max(len(values) for _, values in series)
    given = request.get("x")
    x = tuple(map(float, range(longest))) if given is None else _numbers(given, "x")
    for name, values in series:
        if len(values) != len(x):
            raise PlotError(f"series.{name}: {len(values)} numbers, where x has {len(x)}")
    if len(x) * len(series) > MOST_POINTS:
        raise PlotError(f"series: {len(x) * len(series)} numbers are more than the {MOST_POINTS} that can be drawn")
    labels = {member: _text(request.get(member, ""), member) for member in ("title", "x_label", "y_label")}
    return Plot(**labels, x=x, series=series)


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise PlotError(f"{place}: expected a string")
    if len(value) > MOST_TEXT:
        raise PlotError(f"{place}: {len(value)} characters are more than {MOST_TEXT}")
    return " ".join(value.split())


def _numbers(values: object, place: str) -> tuple[float, ...]:
    if not isinstance(values, (list, tuple)):
        raise PlotError(f"{place}: expected an array of numbers")
    return tuple(math.nan if value is None else _number(value, place, index) for index, value in enumerate(values))


def _number(value: object, place: str, index: int) -> float:
    # A boolean is a level, of a line or of an alarm: 0 or 1.
    if not isinstance(value, (int, float)):
        raise PlotError(f"{place}[{index}]: expected a number or null")
    if not -FARTHEST <= value <= FARTHEST:
        raise PlotError(f"{place}[{index}]: expected a number between -{FARTHEST:g} and {FARTHEST:g}")
    return float(value)


def draw(request: Mapping[str, Any]) -> bytes:
    """The PNG of a request. Raises PlotError, also where matplotlib is not installed.

    The same request gives the same picture: no time and no version is written into it, and what the machine or its
    user prefer (matplotlibrc) does not count.
    """
    plot = read_plot(request)
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError(f"there is no matplotlib to draw with ({error}): {CURE}") from None
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["agg.path.chunksize"] = 10_000
        figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, layout="constrained", facecolor="white")
        _draw_into(figure, plot)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def _draw_into(figure: Figure, plot: Plot) -> None:
    axes = figure.add_subplot()
    lines = []
    for number, (_, values) in enumerate(plot.series):
        (line,) = axes.plot(
            plot.x,
            values,
            color=COLOURS[number % len(COLOURS)],
            linestyle=STYLES[number // len(COLOURS)],
            linewidth=1.8,
            marker="o" if len(values) <= FEW else "",
            markersize=4,
        )
        lines.append(line)
    axes.grid(visible=True, color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)
    axes.ticklabel_format(useOffset=False)
    # Names are anybody's: a "$" in them begins no formula, a "_" at their beginning hides them from no legend.
    names = [name for name, _ in plot.series]
    axes.set_title(plot.title, parse_math=False, wrap=True)
    axes.set_xlabel(plot.x_label, parse_math=False)
    axes.set_ylabel(plot.y_label or (names[0] if len(names) == 1 else ""), parse_math=False)
    if len(names) > 1:
        # Beside the axes, where it can cover nothing.
        legend = figure.legend(lines, list(map(str, range(len(lines)))), loc="outside right upper", frameon=False)
        for text, name, values in zip(legend.get_texts(), names, (each[1] for each in plot.series), strict=True):
            text.set_parse_math(False)
            shown = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
            text.set_text(f"{shown} (none)" if _is_gap(values) else shown)
    if all(_is_gap(values) for _, values in plot.series):
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", va="center", color="#666666")


def _is_gap(values: tuple[float, ...]) -> bool:
    return all(map(math.isnan, values))


def main() -> int:
    """Draw what is asked on stdin; the exit code."""
    import orjson

    signal.alarm(LIFETIME)
    with contextlib.suppress(PermissionError):  # a service manager's filter may keep priorities out of reach
        os.nice(10)
    try:
        with tempfile.TemporaryDirectory(prefix="hearth-plot-") as folder:
            # What matplotlib wants to keep has a place, whatever HOME is; who starts us may have named a lasting one.
            os.environ.setdefault("MPLCONFIGDIR", folder)
            picture = draw(orjson.loads(sys.stdin.buffer.read()))
    except (PlotError, orjson.JSONDecodeError) as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 1
    sys.stdout.buffer.write(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
