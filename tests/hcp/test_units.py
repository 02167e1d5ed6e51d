"""Units: conversions are right, and nothing that a caller hands in as a unit is evaluated."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from hearth.hcp.units import UnitError, check_units, convert


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (25, "celsius", "kelvin", 298.15),
        (32, "degF", "celsius", 0),
        (1, "bar", "hPa", 1000),
        (2, "mm/s**2", "m/s^2", 0.002),
        (50, "%", "dimensionless", 0.5),
        (1, "1/s", "Hz", 1),
        (3.5, "anything", "anything", 3.5),
        (1, "°C", "K", 274.15),
    ],
)
def test_a_value_is_converted(value: float, source: str, target: str, expected: float) -> None:
    assert convert(value, source, target) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "m**99999",
        "1e9 m",
        "m" * 65,
        "",
        "(m)",
        "m;m",
        "__import__('os')",
        "m m",
        "m**9**9",
        "5",
        "a.b",
        "m⁹⁹⁹⁹",
    ],
)
def test_what_is_no_plain_unit_is_refused_unread(text: str) -> None:
    with pytest.raises(UnitError, match="expected a unit"):
        convert(1, text, "kelvin")
    with pytest.raises(UnitError, match="expected a unit"):
        convert(1, "kelvin", text)


@pytest.mark.parametrize("unit", [None, 5, True, [], {}])
def test_what_is_no_text_is_no_unit(unit: Any) -> None:
    with pytest.raises(UnitError, match="expected a unit"):
        convert(1, unit, "kelvin")


def test_units_of_different_things_or_unknown_ones_say_so() -> None:
    with pytest.raises(UnitError, match="cannot be converted"):
        check_units("celsius", "metre")
    with pytest.raises(UnitError, match="not a unit that is known"):
        check_units("florp", "metre")


def test_a_result_that_is_no_finite_number_is_refused() -> None:
    with pytest.raises(UnitError, match=r"finite|cannot"):
        convert(1e308, "km", "nm")


@pytest.mark.slow
def test_the_library_is_loaded_by_reading_a_file_that_converts_and_not_before() -> None:
    program = """
import sys
import hearth.hcp.recipe
from hearth.hcp.expressions import Names, compile_expression
from hearth.hcp.units import convert
names = Names.of_inputs({"properties": {"a": {}, "u": {}}})
convert(1, "m", "m")
compile_expression("add(inputs.a, `1`)", names=names)
assert "pint" not in sys.modules
compile_expression("convert(inputs.a, inputs.u, inputs.u)", names=names)
assert "pint" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


_WORDS = ["m", "s", "degC", "degF", "dBm", "dB", "%", "if", "lambda", "None", "E", "e1", "x_", "byte", "mol", "pH", "_"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of decibels beyond what a double holds
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(_WORDS), min_size=1, max_size=5),
    st.lists(st.sampled_from(["*", "/", "**9*", "^-3/", " ", "**"]), min_size=5, max_size=5),
    st.sampled_from(_WORDS),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_whatever_a_unit_is_made_of_it_converts_or_is_refused(
    names: list[str], signs: list[str], target: str, value: float
) -> None:
    source = "".join(name + sign for name, sign in zip(names, signs, strict=False)).rstrip("*/ ")
    try:
        assert math.isfinite(convert(value, source, target))
    except UnitError:
        return
