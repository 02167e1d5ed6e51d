"""The registers of a Modbus device: values in their units and back, and the accesses that a profile permits."""

from __future__ import annotations

import struct
from math import inf, nan

import pytest
from hypothesis import given, strategies as st

from hearth.drivers.modbus.driver import ModbusDevice, ModbusRegister
from hearth.errors import InvalidParams, PermissionDenied

TYPES = {"u16": (0, 0xFFFF), "s16": (-0x8000, 0x7FFF), "u32": (0, 2**32 - 1), "s32": (-(2**31), 2**31 - 1)}


@given(st.sampled_from(list(TYPES)).flatmap(lambda kind: st.tuples(st.just(kind), st.integers(*TYPES[kind]))))
def test_integers_of_each_type_and_order_come_back(one):
    kind, number = one
    for order in ("big", "little"):
        register = ModbusRegister(0, type=kind, order=order)
        values = register.values(number)
        assert len(values) == register.size == (2 if "32" in kind else 1)
        assert all(0 <= value <= 0xFFFF for value in values)
        assert register.shown(values) == number


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_are_shown_as_the_shortest_number_that_is_the_same_in_32_bits(number):
    register = ModbusRegister(0, type="f32")
    shown = register.shown(register.values(number))
    assert struct.pack(">f", shown) == struct.pack(">f", number) or shown == number == 0


@pytest.mark.parametrize(
    ("kind", "order", "number", "words"),
    [
        ("u32", "big", 0x12345678, (0x1234, 0x5678)),
        ("u32", "little", 0x12345678, (0x5678, 0x1234)),
        ("s32", "big", -2, (0xFFFF, 0xFFFE)),
        ("s16", "big", -2, (0xFFFE,)),
        ("f32", "big", 0.1, (0x3DCC, 0xCCCD)),
        ("f32", "little", 0.1, (0xCCCD, 0x3DCC)),
        ("bool", "big", 1, (1,)),
    ],
)
def test_words_are_in_the_order_that_the_profile_gives(kind, order, number, words):
    register = ModbusRegister(0, type=kind, order=order)
    assert register.values(number) == words
    assert register.shown(words) == number


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_what_is_no_number_is_shown_as_none(number):
    register = ModbusRegister(0, type="f32", scale=0.1)
    assert register.shown(register.values(number)) is None


def test_a_scaled_value_has_no_digits_of_floating_point():
    assert ModbusRegister(0, scale=0.1).shown((3,)) == 0.3
    assert ModbusRegister(0, scale=10).shown((3,)) == 30
    assert ModbusRegister(0, type="f32").shown((0x3DCC, 0xCCCD)) == 0.1


@pytest.mark.parametrize("kind", TYPES)
def test_a_number_beyond_the_type_is_refused(kind):
    low, high = TYPES[kind]
    register = ModbusRegister(0, type=kind)
    assert register.raw_bounds == (low, high)
    for number in (low - 1, high + 1):
        with pytest.raises(OverflowError):
            register.values(number)
    with pytest.raises(OverflowError):
        ModbusRegister(0, type="f32").values(1e39)


def test_bounds_of_a_float_are_those_that_32_bits_hold():
    register = ModbusRegister(0, type="f32", min=-0.1, max=0.1)
    low, high = register.raw_bounds
    assert low <= register.number(register.values(-0.1))
    assert register.number(register.values(0.1)) <= high
    assert ModbusRegister(0, type="bool").raw_bounds == (0, 1)


DEVICE = ModbusDevice(
    3,
    "FAN",
    (
        ModbusRegister(10, name="speed"),
        ModbusRegister(11, name="power", type="f32", access="r"),
        ModbusRegister(13, name="key", access="w"),
        ModbusRegister(10, name="run", table="coil", type="bool"),
    ),
)


def test_an_access_covers_whole_registers_of_one_table():
    assert [one.name for one in DEVICE.covered("holding", 10, 3)] == ["speed", "power"]
    assert [one.name for one in DEVICE.covered("coil", 10, 1, write=True)] == ["run"]


@pytest.mark.parametrize(
    ("table", "reg", "count", "write", "why"),
    [
        ("holding", 9, 2, False, "holding 9: the board profile does not declare it"),
        ("holding", 14, 1, False, "does not declare it"),
        ("coil", 11, 1, False, "does not declare it"),
        ("holding", 11, 1, False, "a part of power, which has 2 registers"),
        ("holding", 12, 1, False, "a part of power"),
        ("holding", 13, 1, False, r'key is only written \(access = "w"\)'),
        ("holding", 11, 2, True, "power is only read"),
        ("holding", 10, 4, False, "only written"),
    ],
)
def test_every_other_access_is_refused_without_effect(table, reg, count, write, why):
    with pytest.raises(PermissionDenied, match=why) as caught:
        DEVICE.covered(table, reg, count, write=write)
    assert caught.value.data["effect"] == "none"
    assert caught.value.data["device"] == "FAN"


def test_a_device_that_is_raw_still_keeps_the_rules_of_the_registers_that_it_lists():
    for raw, write in (("r", False), ("rw", True), ("rw", False)):
        device = ModbusDevice(3, "FAN", DEVICE.registers, raw=raw)
        assert device.covered("holding", 100, 5, write=write) == []
        with pytest.raises(PermissionDenied, match="a part of power"):
            device.covered("holding", 12, 5, write=write)
    with pytest.raises(PermissionDenied, match="does not declare"):
        ModbusDevice(3, "FAN", DEVICE.registers, raw="r").covered("holding", 100, 1, write=True)


def test_a_request_is_within_the_address_space():
    with pytest.raises(InvalidParams, match="only read"):
        DEVICE.covered("input", 0, 1, write=True)
    with pytest.raises(InvalidParams, match="1 to 125"):
        DEVICE.covered("holding", 0xFFFF, 2)


@pytest.mark.parametrize(
    ("more", "words", "value"),
    [
        ({"type": "f32", "byte_order": "little"}, (0x6643, 0x0080), 230.5),
        ({"type": "f32", "order": "little", "byte_order": "little"}, (0x0080, 0x6643), 230.5),
        ({"type": "u16", "byte_order": "little"}, (0x3412,), 0x1234),
        ({"type": "u64"}, (0, 1, 0, 5), 4294967301),
        ({"type": "u64"}, (0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF), 2**64 - 1),
        ({"type": "u64", "order": "little"}, (5, 0, 1, 0), 4294967301),
        ({"type": "u64", "scale": 10}, (0x1999, 0x9999, 0x9999, 0x9999), 18446744073709551610),
        ({"type": "s64"}, (0xFFFF, 0xFFFF, 0xFFFF, 0xFF85), -123),
        ({"type": "s64"}, (0x8000, 0, 0, 1), 1 - 2**63),
        ({"type": "f64"}, struct.unpack(">4H", struct.pack(">d", 1234.0625)), 1234.0625),
        ({"type": "f64", "order": "little"}, struct.unpack(">4H", struct.pack(">d", 0.1))[::-1], 0.1),
        ({"scale": 0.1, "offset": -40}, (250,), -15.0),
        ({"type": "s16", "offset": 100}, (0xFFFF,), 99),
    ],
)
def test_each_type_and_order_of_bytes_is_read_and_written(more, words, value):
    register = ModbusRegister(0, **more)
    shown = register.shown(words)
    assert (shown, type(shown)) == (value, type(value))
    assert register.encode(value) == tuple(words)
    assert register.number_of(value) == register.number(words)


def test_bounds_are_in_the_unit_of_a_register_with_an_offset():
    register = ModbusRegister(0, scale=0.1, offset=-40, min=-15, max=60)
    assert register.raw_bounds == (250, 1000)
    assert ModbusRegister(0, type="u64", max=10**18).raw_bounds == (0, 10**18)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"SN-0042\0", "SN-0042"),
        (b"SN\0rubbi", "SN"),
        (b"\xff\xfe\x1b[2J A", "\ufffd\ufffd\ufffd[2J A"),
        (b"\0" * 8, ""),
    ],
)
def test_a_text_ends_at_its_first_zero_byte_and_has_no_control_characters(data, text):
    register = ModbusRegister(0, type="text", length=4, access="r")
    assert register.shown(struct.unpack(">4H", data)) == text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"none": (0x8000,)}, (0x8000,)),
        ({"type": "s16", "none": (0x8000,)}, (0x8000,)),
        ({"type": "s16", "none": (-32768,)}, (0x8000,)),
        ({"type": "u32", "none": (0xFFFFFFFF, 0)}, (0, 0)),
        ({"type": "f32"}, (0x7FC0, 0)),
        ({"type": "f64"}, (0x7FF8, 0, 0, 0)),
        ({"scale": 0.1, "valid": (-50, 150)}, (1501,)),
        ({"scale": 0.1, "offset": -40, "valid": (0, 150)}, (399,)),
    ],
)
def test_a_number_that_means_no_value_is_no_value(more, words):
    register = ModbusRegister(0, **more)
    assert register.shown(words) is None
    assert register.is_none(register.number(words))
    assert register.shown(tuple(0x0100 for _ in words)) is not None or "valid" in more
