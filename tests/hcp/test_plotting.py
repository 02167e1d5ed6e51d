"""Plots: what is drawn is what was asked for, by a process of its own that nothing can make late, large or lasting."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest
import trio
from PIL import Image

from hearth.actors.bridges.hcp import drawing
from hearth.actors.bridges.hcp.drawer import COMMAND, start_drawer
from hearth.actors.bridges.hcp.drawing import DrawingError
from hearth.hcp import plotting
from hearth.hcp.plotting import COLOURS, HEIGHT, WIDTH, PlotError, draw, read_plot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TWO: dict[str, Any] = {
    "title": "Two",
    "x_label": "s",
    "y_label": "%",
    "x": [0, 1, 2, 3],
    "series": {"rising": [0, 10, 20, 30], "falling": [30, 20, 10, 0]},
}


@cache
def two() -> bytes:
    """The picture of these, drawn once."""
    return draw(TWO)


def pixels(picture: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "PNG"
        assert image.size == (WIDTH, HEIGHT)
        return np.asarray(image.convert("RGB")).astype(int)


def where(picture: bytes, colour: str, within: int = WIDTH * 3 // 4) -> tuple[np.ndarray, np.ndarray]:
    """The columns and rows that have a colour, left of the legend."""
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    rows, columns = np.nonzero(np.abs(pixels(picture)[:, :within] - wanted).max(axis=2) < 12)
    return columns, rows


def slope(picture: bytes, colour: str) -> float:
    """How a series of this colour goes, in pixels up for each pixel to the right."""
    columns, rows = where(picture, colour)
    assert len(columns) > 300, "there is no line of this colour"
    return -float(np.polyfit(columns, rows, 1)[0])


# --- what is drawn --------------------------------------------------------------------------------------------------


def test_every_series_is_there_in_a_colour_of_its_own_and_goes_where_its_numbers_go() -> None:
    assert slope(two(), COLOURS[0]) > 0.3
    assert slope(two(), COLOURS[1]) < -0.3


def test_the_same_request_gives_the_same_picture() -> None:
    assert draw(TWO) == two()


def test_what_the_machine_or_its_user_prefer_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    expected = two()
    with mpl.rc_context({"lines.linewidth": 30, "savefig.dpi": 10, "axes.facecolor": "black", "text.usetex": True}):
        assert draw(TWO) == expected
        assert mpl.rcParams["savefig.dpi"] == 10, "what it is set to is left as it was"


def test_null_is_a_gap_and_a_boolean_a_level() -> None:
    xs = list(range(90))
    levels = [x < 30 for x in xs]
    picture = draw({"x": xs, "series": {"gap": [None if x > 60 else True for x in xs], "level": levels}})
    whole, gap = (set(where(picture, COLOURS[number])[0]) for number in (1, 0))
    assert len(gap) < 0.75 * len(whole)
    assert len(set(where(picture, COLOURS[1])[1])) > 100, "False is drawn below True"


def test_without_x_the_numbers_are_counted() -> None:
    assert read_plot({"series": {"a": [5, 6, 7]}}).x == (0.0, 1.0, 2.0)


def test_a_single_number_is_a_visible_point() -> None:
    assert len(where(draw({"series": {"a": [3]}}), COLOURS[0])[0]) > 10


@pytest.mark.parametrize("values", [[], [None, None]], ids=["no numbers", "nothing but gaps"])
def test_nothing_is_drawn_as_nothing_and_says_so(values: list[None]) -> None:
    picture = draw({"series": {"a": values}})
    assert len(where(picture, COLOURS[0])[0]) == 0
    middle = pixels(picture)[HEIGHT // 2 - 30 : HEIGHT // 2 + 30, WIDTH // 4 : WIDTH * 3 // 4]
    assert (middle < 160).all(axis=2).sum() > 200, "the words in the middle"


def test_names_are_text_and_no_formulas_and_every_series_is_in_the_legend() -> None:
    plain = {"title": "cost in $", "series": {"_a$": [1, 2], "$\\frac{": [2, 1], "c" * 200: [2, 2]}}
    picture = draw(plain)
    legend = pixels(picture)[:120, WIDTH * 2 // 3 :]
    for colour in COLOURS[:3]:
        wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        assert (np.abs(legend - wanted).max(axis=2) < 12).any(), f"{colour} is not in the legend"


def test_as_many_series_as_can_be_told_apart_are_drawn_and_no_more() -> None:
    many = {f"s{number}": [number, number] for number in range(plotting.MOST_SERIES)}
    assert len(where(draw({"series": many}), COLOURS[-1])[0]) > 100
    with pytest.raises(PlotError, match="more than the 24 that can be told apart"):
        draw({"series": {**many, "one more": [1, 2]}})


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ([], "expected an object"),
        ({}, "series: expected an object"),
        ({"series": {}}, "at least one series"),
        ({"series": {"a": 1}}, "series.a: expected an array"),
        ({"series": {"a": ["1"]}}, r"series\.a\[0\]: expected a number or null"),
        ({"series": {"a": [1, 1e31]}}, r"series\.a\[1\]: expected a number between -1e\+30 and 1e\+30"),
        ({"series": {"a": [-(10**400)]}}, r"series\.a\[0\]: expected a number between"),
        ({"series": {"a": [float("nan")]}}, r"series\.a\[0\]: expected a number between"),
        ({"series": {"a": [1]}, "x": [1, 2]}, "series.a: 1 numbers, where x has 2"),
        ({"series": {"a": [1], "b": [1, 2]}}, "series.a: 1 numbers, where x has 2"),
        ({"series": {"a": [0] * 200_001}}, "200001 numbers are more than the 200000"),
        ({"series": {"a": [1]}, "title": 1}, "title: expected a string"),
        ({"series": {"a": [1]}, "y_label": "y" * 201}, "y_label: 201 characters are more than 200"),
        ({"series": {"n" * 201: [1]}}, "series: 201 characters"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_with_its_place(request_: Any, said: str) -> None:
    with pytest.raises(PlotError, match=said):
        read_plot(request_)


def test_the_greatest_number_of_the_greatest_size_is_drawn() -> None:
    most = [plotting.FARTHEST if number % 2 else -plotting.FARTHEST for number in range(plotting.MOST_POINTS)]
    columns, rows = where(draw({"series": {"a": most}}), COLOURS[0])
    assert min(len(set(columns)), len(set(rows))) > 400


def test_without_matplotlib_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match=r"pip install 'hearth\[plot\]'"):
        draw(TWO)


# --- the process that draws -----------------------------------------------------------------------------------------


Draw = Any


@pytest.fixture(params=["here", "by the drawer"])
def way(request: pytest.FixtureRequest) -> str:
    """Who starts the program: this process, or one that was forked from it while it still could."""
    return request.param


@pytest.fixture
def drawn(way: str, monkeypatch: pytest.MonkeyPatch, unmeasured: None) -> Iterator[Draw]:
    """Has a plot drawn that way, by this program if one is named."""
    with contextlib.ExitStack() as stack:

        def drawn(plot: Any, *program: str) -> Any:
            if way == "here":
                monkeypatch.setattr(drawing, "COMMAND", program or COMMAND)
                return drawing.draw(plot)
            drawer = start_drawer(command=program or COMMAND)
            stack.callback(drawer.close)
            return drawing.draw(plot, partial(drawing.by, drawer))

        yield drawn


def python(text: str) -> tuple[str, ...]:
    """A program to put in the place of the one that draws."""
    return (sys.executable, "-c", text)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert [path.name for path in tmp_path.glob("hearth-plot-*")] == []


@pytest.mark.slow
async def test_a_plot_is_drawn_by_a_process_of_its_own_wherever_home_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Draw
) -> None:
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 30\n")
    for name, value in (("HOME", "/nonexistent"), ("MPLCONFIGDIR", "/nonexistent"), ("MPLBACKEND", "nonsense")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path))
    monkeypatch.delenv("DISPLAY", raising=False)
    with trio.fail_after(60):
        picture = await drawn(TWO)
    assert slope(picture, COLOURS[0]) > 0.3
    assert slope(picture, COLOURS[1]) < -0.3


@pytest.mark.slow
async def test_what_cannot_be_drawn_comes_back_as_the_one_line_that_says_why(drawn: Draw) -> None:
    expected = r"^the plot was not drawn: series\.a: expected an array of numbers$"
    with trio.fail_after(60), pytest.raises(DrawingError, match=expected):
        await drawn({"series": {"a": 1}})


@pytest.mark.slow
async def test_without_matplotlib_the_drawing_names_the_cure(
    drawn: Draw,
) -> None:
    without = "import sys; sys.modules['matplotlib'] = None; from hearth.hcp.plotting import main; sys.exit(main())"
    with trio.fail_after(60), pytest.raises(DrawingError, match=r"pip install 'hearth\[plot\]'"):
        await drawn(TWO, *python(without))


async def test_what_is_no_json_is_not_even_asked_for() -> None:
    with pytest.raises(DrawingError, match="not JSON serializable"):
        await drawing.draw({"series": object()})


@pytest.mark.slow
async def test_a_drawing_that_takes_too_long_is_ended(drawn: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "TIME_LIMIT", 0.3)
    with trio.fail_after(30), pytest.raises(DrawingError, match=r"not drawn within 0\.3 s"):
        await drawn({"series": {"a": [1] * 100_000}}, *python("import time; time.sleep(60)"))


@pytest.mark.slow
async def test_a_picture_without_end_is_refused(drawn: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MOST_BYTES", 1 << 20)
    endless = python("import sys\nwhile True: sys.stdout.buffer.write(bytes(1 << 16))")
    with trio.fail_after(30), pytest.raises(DrawingError, match="larger than 1 MiB"):
        await drawn(TWO, *endless)


@pytest.mark.slow
async def test_a_process_that_dies_without_a_word_is_told_by_its_exit_code(drawn: Draw) -> None:
    with trio.fail_after(30), pytest.raises(DrawingError, match="exit code 7"):
        await drawn({"series": {"a": [1] * 100_000}}, *python("import os; os._exit(7)"))


@pytest.mark.slow
async def test_what_it_says_is_kept_to_the_last_line(drawn: Draw) -> None:
    talkative = python("import sys; sys.stderr.write('noise\\n' * 100_000 + 'the last word\\n'); sys.exit(1)")
    with trio.fail_after(30), pytest.raises(DrawingError, match=r"^the plot was not drawn: the last word$"):
        await drawn(TWO, *talkative)


async def test_a_program_that_cannot_be_started_is_an_error_and_no_more(drawn: Draw) -> None:
    with pytest.raises(DrawingError, match="/nonexistent/python cannot be started: No such file"):
        await drawn(TWO, "/nonexistent/python")


@pytest.mark.slow
async def test_a_cancel_ends_the_process(tmp_path: Path, drawn: Draw) -> None:
    os.mkfifo(tmp_path / "started")
    waiting = python(
        f"import os, time; open({str(tmp_path / 'started')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drawn, TWO, *waiting)
            pid = int(await trio.to_thread.run_sync((tmp_path / "started").read_text, abandon_on_cancel=True))
            os.kill(pid, 0)
            nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_one_plot_is_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawing.AT_ONCE.total_tokens == 1
    await drawing.AT_ONCE.acquire()
    try:
        with trio.move_on_after(0) as scope:
            await drawing.draw(TWO)
        assert scope.cancelled_caught
    finally:
        drawing.AT_ONCE.release()


# --- as a program ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "said"), [(b"{", "unexpected end of data"), (b"[]", "expected an object")])
def test_the_program_says_in_one_line_what_it_cannot_draw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: bytes, said: str
) -> None:
    assert run_main(monkeypatch, text) == (1, b"")
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_program_writes_the_picture_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    code, picture = run_main(monkeypatch, orjson.dumps(TWO))
    assert code == 0
    assert slope(picture, COLOURS[0]) > 0.3


def run_main(monkeypatch: pytest.MonkeyPatch, text: bytes) -> tuple[int, bytes]:
    """`main` in this process, which neither becomes nicer nor is ended for it."""
    told = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    monkeypatch.setattr(sys, "stdout", told)
    monkeypatch.setattr(plotting.os, "nice", lambda _: None)
    monkeypatch.setattr(plotting.signal, "alarm", lambda _: None)
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    code = plotting.main()
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    return code, told.buffer.getvalue()
