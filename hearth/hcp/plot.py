"""Line plots: named series over one axis, as a PNG of a fixed size, drawn by Pillow in this process.

A request is an object: `series` (name -> numbers, with None where there is none), `x` (as many numbers; without it they
are counted from 0), `title`, `x_label`, `y_label`. `draw` takes some tens of milliseconds, so a job calls it in a
thread. Everything is drawn SCALE times too large and reduced at the end, which smooths it.

Pillow holds the interpreter's lock while it draws, so one call draws at most 102 points: with 8 series of 25,000 random
numbers the event loop waits for at most 53 ms at a time. Of the points of a series in one column of pixels the first,
the lowest, the highest and the last are drawn, so a peak is never lost. The font is DejaVu Sans where it is installed,
else Pillow's own, which has little more than ASCII ("µT" becomes "uT"). matplotlib, which drew plots before, takes a
second of processor time and 77 MiB, and would need a process of its own; most clients of agents show no SVG.
"""

from __future__ import annotations

import io
import math
import unicodedata
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import frozen

from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from PIL import Image as Images, ImageDraw as Pens, ImageFont as Fonts

    Font: TypeAlias = Fonts.FreeTypeFont | Fonts.ImageFont
    Scale: TypeAlias = Callable[[float], float]

WIDTH, HEIGHT = 960, 540
"""Size of the picture in pixels."""
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#f0e442", "#000000")
"""Colours of the series, in order; colour-blind people can distinguish them too (Okabe and Ito). Yellow is late."""
MOST_POINTS: Final = 200_000
"""Numbers in all."""
MOST_TEXT: Final = 200
"""Characters of a title, a label, a name."""
LONGEST_NAME: Final = 32
"""Characters of a name that the legend shows."""
FARTHEST: Final = 1e30
"""The greatest number that can be drawn."""
NEAREST: Final = 1e-30
"""Numbers that are less than this apart are drawn as equal."""
FEW: Final = 60
"""Up to so many points in a series, each is marked."""
MOST_STROKES: Final = 4 * WIDTH
"""Points of a series after thinning; only an x that goes back and forth has more."""
AT_ONCE: Final = 100
"""Points in one call of Pillow. During a call no other thread runs."""
FONT: Final = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"
"""Preferred, where it is installed: Pillow's own font has ASCII and little more."""
SPELT: Final = {"µ": "u", "μ": "u", "Ω": "Ohm", "×": "x", "–": "-", "—": "-", "→": "->", "ß": "ss"}
"""Replacements for characters that Pillow's own font lacks; an accent is dropped, anything else is a "?"."""
CURE: Final = "pip install 'hearthd[plot]'"
SCALE: Final = 2
EM: Final = 13 * SCALE
"""Height of the characters, in pixels before the picture is reduced. All other distances are given in it."""
INK, GRID = "#222222", "#e5e5e5"


class PlotError(HearthError):
    """A request that cannot be drawn; the message is one line."""


@frozen(kw_only=True)
class Plot:
    """A request that can be drawn. NaN is a gap."""

    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]


def read_plot(request: object) -> Plot:
    """Check a request. Raises PlotError with the member that is wrong."""
    if not isinstance(request, dict):
        raise PlotError("expected an object with `series`")
    named = request.get("series")
    if not isinstance(named, dict) or not named:
        raise PlotError("series: expected an object with at least one series in it")
    if len(named) > len(COLOURS):
        raise PlotError(f"series: {len(named)} are more than the {len(COLOURS)} that can be told apart")
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
    """Return the PNG of a request. Blocking. Raises PlotError, also where Pillow is not installed."""
    plot = read_plot(request)
    try:
        from PIL import Image, ImageFont

        try:
            font: Font = ImageFont.truetype(FONT, EM)
        except OSError:
            font, plot = ImageFont.load_default(EM), _spelt(plot)
    except (ImportError, TypeError) as error:  # TypeError: before 10.1 its own font has one size
        raise PlotError(f"there is no Pillow 10.1 or newer to draw with ({error}): {CURE}") from None
    picture = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), "white")
    _draw_into(picture, plot, font)
    written = io.BytesIO()
    picture.reduce(SCALE).save(written, "PNG")
    return written.getvalue()


def _spelt(plot: Plot) -> Plot:
    """Return the same plot, in characters that Pillow's own font has."""

    def plain(text: str) -> str:
        apart = unicodedata.normalize("NFKD", "".join(SPELT.get(letter, letter) for letter in text))
        kept = (letter for letter in apart if not unicodedata.combining(letter))
        return "".join(letter if letter.isascii() or letter in "°±…" else "?" for letter in kept)

    series = tuple((plain(name), values) for name, values in plot.series)
    labels = plain(plot.title), plain(plot.x_label), plain(plot.y_label)
    return Plot(title=labels[0], x_label=labels[1], y_label=labels[2], x=plot.x, series=series)


def _scale(low: float, high: float, begin: float, end: float) -> Scale:
    """Return the map from a number between `low` and `high` to its pixel between `begin` and `end`."""
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def _span(values: Iterable[float], margin: float) -> tuple[float, float]:
    """Return the least and the greatest of these numbers, with a margin: a part of their distance."""
    known = [value for value in values if not math.isnan(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    largest = max(-low, high)
    if high - low <= max(1e-9 * largest, NEAREST):
        more = 0.05 * largest if largest > 100 * NEAREST else 0.5
    else:
        more = margin * (high - low)
    return low - more, high + more


def _ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Return round numbers within a range, at most `most` and one more, and their labels."""
    rough = (high - low) / most
    exponent = math.floor(math.log10(rough))
    factor = next((each for each in (1, 2, 5) if each * 10.0**exponent >= rough), 10)
    exponent, factor = (exponent + 1, 1) if factor == 10 else (exponent, factor)
    step = factor * 10.0**exponent
    largest = max(-low, high)
    form = f".{max(0, -exponent)}f"
    if largest >= 1e10 or exponent < -4:
        form = f".{math.floor(math.log10(largest)) - exponent + 1}g"
    return [
        (number * step, format(number * step, form)) for number in range(math.ceil(low / step), int(high // step) + 1)
    ]


@frozen
class _Area:
    """The place of the series within the picture, in its pixels."""

    left: int
    right: int
    top: int
    bottom: int
    across: Scale
    up: Scale


def _draw_into(picture: Images.Image, plot: Plot, font: Font) -> None:
    from PIL import ImageDraw

    pen = ImageDraw.Draw(picture)
    pen.font = font
    several = len(plot.series) > 1
    shown = [_shown(name, values) for name, values in plot.series] if several else []
    y_label = plot.y_label or ("" if shown else plot.series[0][0])
    low, high = _span(chain.from_iterable(values for _, values in plot.series), 0.05)
    rows = _ticks(low, high, 10)
    left = (3 if y_label else 1) * EM + int(max(font.getlength(label) for _, label in rows)) // SCALE * SCALE
    right = picture.width - EM - (int(max(map(font.getlength, shown))) + 3 * EM if shown else 0)
    top, bottom = (3 if plot.title else 1) * EM, picture.height - (4 if plot.x_label else 2) * EM
    begin, end = _span(plot.x, 0.02)
    area = _Area(left, right, top, bottom, _scale(begin, end, left, right), _scale(low, high, bottom, top))
    columns = _ticks(begin, end, 10)
    if sum(font.getlength(label) + EM for _, label in columns) > right - left:
        columns = _ticks(begin, end, 4)
    _draw_grid(pen, area, rows, columns)
    middle = (left + right) / 2
    pen.text((picture.width / 2, 1.5 * EM), _fitting(plot.title, font, picture.width - 2 * EM), INK, anchor="mm")
    pen.text((middle, picture.height - EM), _fitting(plot.x_label, font, right - left), INK, anchor="mm")
    if y_label:
        _draw_upright(picture, area, y_label, font)
    _draw_all_series(pen, area, plot, shown)


def _draw_grid(
    pen: Pens.ImageDraw, area: _Area, rows: list[tuple[float, str]], columns: list[tuple[float, str]]
) -> None:
    left, right, top, bottom = area.left, area.right, area.top, area.bottom
    for value, label in rows:
        y = area.up(value)
        pen.line([(left, y), (right, y)], GRID, SCALE)
        pen.text((left - EM / 2, y), label, INK, anchor="rm")
    for value, label in columns:
        x = area.across(value)
        pen.line([(x, top), (x, bottom)], GRID, SCALE)
        pen.text((x, bottom + EM / 2), label, INK, anchor="mt")
    pen.line([(left, top), (left, bottom), (right, bottom)], INK, SCALE)


def _draw_upright(picture: Images.Image, area: _Area, label: str, font: Font) -> None:
    from PIL import Image, ImageDraw

    strip = Image.new("RGB", (area.bottom - area.top, 2 * EM), "white")
    words = _fitting(label, font, strip.width)
    ImageDraw.Draw(strip).text((strip.width / 2, EM), words, INK, font, anchor="mm")
    picture.paste(strip.rotate(90, expand=True), (0, area.top))


def _draw_all_series(pen: Pens.ImageDraw, area: _Area, plot: Plot, shown: list[str]) -> None:
    for number in range(len(plot.series)):
        _draw_series(pen, plot, number, area)
    if all(_is_gap(values) for _, values in plot.series):
        middle = (area.left + area.right) / 2, (area.top + area.bottom) / 2
        pen.text(middle, "nothing was measured", INK, anchor="mm")
    for number, name in enumerate(shown):
        y = (1.5 + 1.5 * number) * EM + (area.top - EM)
        pen.line([(area.right + EM, y), (area.right + 2 * EM, y)], COLOURS[number], 3 * SCALE)
        pen.text((area.right + 2.5 * EM, y), name, INK, anchor="lm")


def _draw_series(pen: Pens.ImageDraw, plot: Plot, number: int, area: _Area) -> None:
    name, values = plot.series[number]
    strokes = 0
    for points in _runs((area.across(x), area.up(y)) for x, y in zip(plot.x, values, strict=True)):
        if (strokes := strokes + len(points)) > MOST_STROKES:
            raise PlotError(f"series.{name}: x goes back and forth too often")
        for first in range(0, len(points), AT_ONCE):
            # One stroke is in two calls, so that the corner between them is rounded too.
            pen.line(points[first : first + AT_ONCE + 2], COLOURS[number], 2 * SCALE, joint="curve")
        if len(values) <= FEW or len(points) == 1:
            for point in points:
                pen.circle(point, 3 * SCALE, COLOURS[number])


def _is_gap(values: tuple[float, ...]) -> bool:
    return all(map(math.isnan, values))


def _shown(name: str, values: tuple[float, ...]) -> str:
    """Return a series' text in the legend."""
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    return f"{short} (none)" if _is_gap(values) else short


def _fitting(text: str, font: Font, width: float) -> str:
    """Return the part of a text that fits."""
    kept = text
    while kept and font.getlength(kept) > width:
        kept = f"{kept[:-2]}…"
    return kept


def _runs(points: Iterable[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """The points between the gaps; of those in one column of pixels the first, the lowest, the highest and the last.

    A gap within a column of pixels cannot be seen, and is none.
    """
    run: list[tuple[float, float]] = []
    for _, column in groupby(points, key=lambda point: point[0] // SCALE):
        some = [point for point in column if not math.isnan(sum(point))]
        if some:
            heights = [y for _, y in some]
            telling = {0, heights.index(min(heights)), heights.index(max(heights)), len(some) - 1}
            run += (some[index] for index in sorted(telling))
        elif run:
            yield run
            run = []
    if run:
        yield run
