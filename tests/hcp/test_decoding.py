"""Declared decodings: raw bytes become the numbers that a data sheet says they are, or an error that says why not."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from hearth.hcp.decoding import Decoding, DecodingError, read_decoding
from hearth.hcp.tables import Table

RESULT = {
    "type": "object",
    "properties": {
        "data": {"type": "string"},
        "count": {"type": "integer"},
        "reads": {"type": "array", "items": {"type": "string"}},
    },
}


def read(content: dict[str, Any]) -> tuple[Decoding | None, dict[str, str]]:
    faults: list[Any] = []
    found = read_decoding(Table(content, "decode.t", faults), "t", RESULT)
    return found, {fault.key: fault.reason for fault in faults}


def decode(raw: bytes, **content: Any) -> Any:
    found, faults = read({"from": "data", **content})
    assert found is not None, faults
    return found.decode({"data": base64.b64encode(raw).decode()})["t"]


@pytest.mark.parametrize(
    ("raw", "content", "expected"),
    [
        (b"\x19\x80", {"format": ">h", "scale": 0.00390625}, 25.5),  # an LM75: 1/256 of a degree
        (b"\xe7\x00", {"format": ">h", "scale": 0.00390625}, -25.0),
        (b"\x19\x00", {"format": ">h", "shift": 4, "scale": 0.0625}, 25.0),  # a TMP102: twelve bits, at the left
        (b"\xe7\x00", {"format": ">h", "shift": 4, "scale": 0.0625}, -25.0),
        (b"\xab\xcd", {"format": ">H", "shift": 4, "mask": 0xFF}, 0xBC),
        (b"\x00\x01\x02", {"format": "<H", "at": 1}, 0x0201),
        (b"\x05", {"format": "B"}, 5),
        (b"\x01\x02\x03\x04", {"format": ">HH"}, [0x0102, 0x0304]),
        (b"\x01\xff\x02", {"format": "BxB"}, [1, 2]),
        (b"\x00\x00\x80\x3f", {"format": "<f", "offset": 1}, 2.0),
        (b"\xff" * 8, {"format": "<Q"}, 2**64 - 1),
    ],
)
def test_bytes_become_the_numbers_that_are_declared(raw: bytes, content: Any, expected: Any) -> None:
    assert decode(raw, **content) == expected


def test_a_whole_number_to_which_nothing_is_done_stays_whole() -> None:
    assert type(decode(b"\x05", format="B")) is int


def test_the_unit_goes_along_with_the_number() -> None:
    found, _ = read({"from": "data", "format": "b", "unit": "celsius"})
    assert found is not None
    assert found.decode({"data": "BQ=="}) == {"t": 5, "t_unit": "celsius"}
    assert found.shape() == {"t": {"type": "number"}, "t_unit": {"type": "string"}}


def test_the_source_may_be_an_expression_over_the_result() -> None:
    found, _ = read({"from": "reads[1]", "format": "BB"})
    assert found is not None
    assert found.decode({"reads": ["", "AQI="]}) == {"t": [1, 2]}
    assert found.shape() == {"t": {"type": "array", "items": {"type": "number"}}}


@pytest.mark.parametrize(
    ("result", "content", "said"),
    [
        ({"data": "GQ=="}, {"format": ">h"}, "has 1 bytes, '>h' takes 2"),
        ({"data": "GQ=="}, {"format": "b", "at": 3}, "takes 1 from 3 on"),
        ({"data": "G"}, {"format": "b"}, "no base64"),
        ({"data": "G-=="}, {"format": "b"}, "no base64"),
        ({"data": 5}, {"format": "b"}, "no string"),
        ({}, {"format": "b"}, "no string"),
        ({"data": base64.b64encode(struct.pack("<f", float("nan"))).decode()}, {"format": "<f"}, "no finite number"),
        ({"data": base64.b64encode(struct.pack("<d", 1e308)).decode()}, {"format": "<d", "scale": 10}, "finite"),
        ({"data": []}, {"format": "b", "from": "to_number(data)"}, "no string"),
        ({"data": "QQ=="}, {"format": "b", "from": "to_string(div(count, `0`))"}, "has no value"),
    ],
)
def test_bytes_that_are_not_what_was_declared_are_an_error(result: Any, content: Any, said: str) -> None:
    found, faults = read({"from": "data", **content})
    if found is None:
        assert "use it as it is" in faults["decode.t.from"]
        return
    with pytest.raises(DecodingError, match="t: ") as caught:
        found.decode(result)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "key", "said"),
    [
        ({"format": "b"}, "from", "missing"),
        ({"from": "dta", "format": "b"}, "from", "did you mean 'data'?"),
        ({"from": "count", "format": "b"}, "from", "no base64"),
        ({"from": "data"}, "format", "missing"),
        ({"from": "data", "format": "h"}, "format", "say the byte order"),
        ({"from": "data", "format": "=h"}, "format", "codes of struct"),
        ({"from": "data", "format": "s"}, "format", "codes of struct"),
        ({"from": "data", "format": "99999999b"}, "format", "codes of struct"),
        ({"from": "data", "format": "x"}, "format", "codes of struct"),
        ({"from": "data", "format": "<f", "shift": 1}, "shift", "whole numbers"),
        ({"from": "data", "format": "<f", "mask": 1}, "mask", "whole numbers"),
        ({"from": "data", "format": "b", "scale": float("nan")}, "scale", "expected a number"),
        ({"from": "data", "format": "b", "scale": True}, "scale", "expected a number"),
        ({"from": "data", "format": "b", "at": -1}, "at", "expected an integer"),
        ({"from": "data", "format": "b", "unit": "florp"}, "unit", "not a unit"),
        ({"from": "data", "format": "b", "formt": "b"}, "formt", "format"),
    ],
)
def test_a_declaration_that_cannot_be_right_is_a_fault_at_its_key(content: Any, key: str, said: str) -> None:
    _, faults = read(content)
    assert said in faults[f"decode.t.{key}"]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=12), st.sampled_from([">h", "<I", "bb", "<d", "<e", "<Q"]), st.integers(0, 4))
def test_any_bytes_are_numbers_or_an_error(raw: bytes, form: str, at: int) -> None:
    try:
        found = decode(raw, format=form, at=at)
    except DecodingError:
        return
    assert len(raw) >= at + struct.calcsize(f"<{form.strip('<>')}")
    assert found is not None
