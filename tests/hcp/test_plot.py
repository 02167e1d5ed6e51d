"""Plots: what is drawn is what was asked for, within bounds, and the caller is told what is not drawn."""

from __future__ import annotations

import io
import sys
from functools import cache
from typing import Any

import pytest
from PIL import Image

from hearth.hcp import plot
from hearth.hcp.plot import COLOURS, HEIGHT, WIDTH, PlotError, draw, read_plot

TWO: dict[str, Any] = {
    "title": "Two",
    "x_label": "s",
    "y_label": "%",
    "x": [0, 1, 2, 3],
    "series": {"rising": [0, 10, 20, 30], "falling": [30, 20, 10, 0]},
}
LEGEND = WIDTH * 3 // 4
"""The column of pixels from which the legend may be: lines are looked for left of it."""


@cache
def two() -> bytes:
    """The picture of TWO, drawn once."""
    return draw(TWO)


def opened(picture: bytes) -> Image.Image:
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "PNG"
        assert image.size == (WIDTH, HEIGHT)
        return image.convert("RGB")


def where(picture: bytes, colour: str, columns: range = range(LEGEND)) -> list[tuple[int, int]]:
    """The pixels (column, row) of a colour."""
    image, wanted = opened(picture).load(), tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
    assert image is not None
    return [(x, y) for x in columns for y in range(HEIGHT) if image[x, y] == wanted]


def mean_row(pixels: list[tuple[int, int]]) -> float:
    return sum(y for _, y in pixels) / len(pixels)


# --- what is drawn --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_series_is_there_in_a_colour_of_its_own_and_goes_where_its_numbers_go() -> None:
    for number, sign in ((0, 1), (1, -1)):
        pixels = where(two(), COLOURS[number])
        first = mean_row([(x, y) for x, y in pixels if x < WIDTH // 4])
        last = mean_row([(x, y) for x, y in pixels if x > WIDTH // 2])
        assert sign * (first - last) > 100, "rows are counted from the top"


@pytest.mark.slow
def test_the_same_request_gives_the_same_picture() -> None:
    assert draw(TWO) == two()


@pytest.mark.slow
def test_none_is_a_gap_and_a_boolean_a_level() -> None:
    xs = list(range(90))
    levels = [x < 30 for x in xs]
    picture = draw({"x": xs, "series": {"gap": [None if 40 < x < 60 else 2 for x in xs], "level": levels}})
    columns = {x for x, _ in where(picture, COLOURS[0])}
    missing = [x for x in range(min(columns), max(columns)) if x not in columns]
    assert len(missing) > 100
    assert missing == list(range(missing[0], missing[-1] + 1)), "one gap, and no other"
    rows = {y for _, y in where(picture, COLOURS[1])}
    assert max(rows) - min(rows) > 100, "False is drawn below True"


@pytest.mark.slow
def test_a_number_between_two_gaps_is_a_visible_point() -> None:
    lonely = [None if number != 50 else 1 for number in range(100)]
    assert len(where(draw({"series": {"a": lonely}}), COLOURS[0])) > 10


@pytest.mark.slow
def test_very_many_gaps_that_no_pixel_could_show_do_not_take_the_line_apart() -> None:
    columns = {x for x, _ in where(draw({"series": {"a": [1, None] * 10_000}}), COLOURS[0])}
    assert len(columns) == max(columns) - min(columns) + 1 > 500


@pytest.mark.slow
def test_few_points_are_marked_and_many_are_not() -> None:
    marked, bare = (where(draw({"series": {"a": [5] * count}}), COLOURS[0]) for count in (plot.FEW, plot.FEW + 1))
    assert len({y for _, y in marked}) > len({y for _, y in bare})


def test_without_x_the_numbers_are_counted() -> None:
    assert read_plot({"series": {"a": [5, 6, 7]}}).x == (0.0, 1.0, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        pytest.param([3], id="one point"),
        pytest.param([0], id="zero"),
        pytest.param([7, 7, 7], id="all equal"),
        pytest.param([1e9, 1e9 + 1e-7], id="apart by less than a double has digits for"),
        pytest.param([1e-31, -1e-31], id="apart by next to nothing"),
        pytest.param([5e-324, 1e-320], id="denormal"),
        pytest.param([-plot.FARTHEST, plot.FARTHEST], id="as far apart as can be"),
        pytest.param([plot.FARTHEST] * 3, id="as great as can be"),
        pytest.param([1e-7, 3e-7], id="small"),
        pytest.param([1_700_000_000, 1_700_000_001], id="seconds since 1970"),
        pytest.param([-1000, None, 12.5, True], id="mixed"),
    ],
)  # fmt: skip
def test_any_numbers_are_drawn_between_the_axes(values: list[Any]) -> None:
    for request in ({"series": {"a": values}}, {"x": values, "series": {"a": values}}):
        picture = draw(request)
        drawn = where(picture, COLOURS[0], range(WIDTH))
        assert len(drawn) > 10
        axis = where(picture, plot.INK, range(WIDTH))
        bottom = max({y for _, y in axis}, key=[y for _, y in axis].count)
        left = max({x for x, _ in axis}, key=[x for x, _ in axis].count)
        assert all(left < x < WIDTH - plot.EM // plot.SCALE and 0 < y < bottom for x, y in drawn)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 30, "0 5 10 15 20 25 30"),
        (-1, 1, "-1.0 -0.8 -0.6 -0.4 -0.2 0.0 0.2 0.4 0.6 0.8 1.0"),
        (99.95, 100.05, "99.95 99.96 99.97 99.98 99.99 100.00 100.01 100.02 100.03 100.04 100.05"),
        (0, 3e-6, "0 5e-07 1e-06 1.5e-06 2e-06 2.5e-06 3e-06"),
        (0, 4e9, "0 500000000 1000000000 1500000000 2000000000 2500000000 3000000000 3500000000 4000000000"),
        (1_700_000_000, 1_700_000_001, " ".join(f"{1_700_000_000 + tenth / 10:.1f}" for tenth in range(11))),
        (-1e30, 1e30, "-1e+30 -8e+29 -6e+29 -4e+29 -2e+29 0 2e+29 4e+29 6e+29 8e+29 1e+30"),
    ],
)
def test_ticks_are_round_numbers_with_labels_that_can_be_told_apart(low: float, high: float, labels: str) -> None:
    beyond = (high - low) * 1e-6
    found = plot._ticks(low - beyond, high + beyond, 11)
    assert " ".join(label for _, label in found) == labels
    assert [value for value, _ in found] == pytest.approx([float(label) for label in labels.split()])


@pytest.mark.slow
@pytest.mark.parametrize("values", [[], [None, None]], ids=["no numbers", "nothing but gaps"])
def test_nothing_is_drawn_as_nothing_and_says_so(values: list[None]) -> None:
    picture = draw({"series": {"a": values}})
    assert where(picture, COLOURS[0]) == []
    written = draw({"series": {"a": [1e30]}})
    inside = (WIDTH // 3, HEIGHT // 2 - 8, WIDTH * 2 // 3, HEIGHT // 2 + 8)
    dark, nothing = (sum(opened(one).convert("L").crop(inside).histogram()[:160]) for one in (picture, written))
    assert dark > nothing + 200, "the words in the middle"


@pytest.mark.slow
def test_every_series_is_in_the_legend_and_a_long_name_does_not_push_the_lines_away() -> None:
    names = ["w" * 200, "$\\frac{", *"cdefgh"]
    picture = draw({"title": "t" * 200, "y_label": "y" * 200, "series": {name: [1, 2] for name in names}})
    for colour in COLOURS:
        assert where(picture, colour, range(WIDTH // 2, WIDTH)), f"{colour} is not in the legend"
    assert len({x for x, _ in where(picture, COLOURS[-1])}) > 300


@pytest.mark.proof
def test_a_peak_among_very_many_numbers_is_drawn_as_high_as_it_is() -> None:
    flat = [0.0] * plot.MOST_POINTS
    flat[123_456] = 1.0
    rows = [y for _, y in where(draw({"series": {"a": flat}}), COLOURS[0])]
    assert max(rows) - min(rows) > HEIGHT // 2


def test_letters_that_the_font_lacks_are_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "FONT", "/nonexistent")
    fields = {"series": {"a": [1, 2], "b": [2, 1]}, "x_label": "größer", "y_label": "m/s², °C"}
    assert draw({**fields, "title": "µT Ω 中"}) == draw({**fields, "title": "uT Ohm ?", "x_label": "grosser"})


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ([], "expected an object"),
        ({}, "series: expected an object"),
        ({"series": {}}, "at least one series"),
        ({"series": {str(number): [1] for number in range(9)}}, "9 are more than the 8 that can be told apart"),
        ({"series": {"a": 1}}, "series.a: expected an array"),
        ({"series": {1: [1]}}, "series: expected a string"),
        ({"series": {"a": ["1"]}}, r"series\.a\[0\]: expected a number or null"),
        ({"series": {"a": [1, 1e31]}}, r"series\.a\[1\]: expected a number between -1e\+30 and 1e\+30"),
        ({"series": {"a": [-(10**400)]}}, r"series\.a\[0\]: expected a number between"),
        ({"series": {"a": [float("nan")]}}, r"series\.a\[0\]: expected a number between"),
        ({"series": {"a": [float("inf")]}}, r"series\.a\[0\]: expected a number between"),
        ({"series": {"a": [1]}, "x": [1, 2]}, "series.a: 1 numbers, where x has 2"),
        ({"series": {"a": [1], "b": [1, 2]}}, "series.a: 1 numbers, where x has 2"),
        ({"series": {"a": [0] * 200_001}}, "200001 numbers are more than the 200000"),
        ({"series": {"a": [1]}, "title": 1}, "title: expected a string"),
        ({"series": {"a": [1]}, "y_label": "y" * 201}, "y_label: 201 characters are more than 200"),
        ({"series": {"n" * 201: [1]}}, "series: 201 characters"),
        ({"series": {"a": [1] * 5000}, "x": [0, 1] * 2500}, "series.a: x goes back and forth too often"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_with_its_place(request_: Any, said: str) -> None:
    with pytest.raises(PlotError, match=said):
        draw(request_)


def test_without_pillow_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PlotError, match=r"pip install 'hearthd\[plot\]'"):
        draw(TWO)


def test_a_pillow_that_is_too_old_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "FONT", "/nonexistent")
    monkeypatch.setattr("PIL.ImageFont.load_default", lambda: None)
    with pytest.raises(PlotError, match=r"no Pillow 10\.1 or newer .*pip install 'hearthd\[plot\]'"):
        draw(TWO)
