"""Registers whose number means that there is no value: a code of `none`, or a value outside of `valid`.

A bus without its device, or a converter without its sensor, reads as zeros or ones.
"""

from __future__ import annotations

import pytest

import hearth
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.registers import Register
from hearth.errors import ConfigError

SPI = {"name": "ADC", "driver": "sim", "kind": "registers"}
I2C = {"addr": 0x50, "kind": "24c02", "reg_width": 8}


def board(**register):
    entry = {"reg": 6, "name": "LEVEL", "width": 16, "unit": "percent", "scale": 0.5, **register}
    tables = {
        "spi": [{**SPI, "registers": [entry]}],
        "i2c": [{"bus": 1, "driver": "sim", "device": [{**I2C, "increment": "byte", "registers": [entry]}]}],
    }
    return open_board(parse_profile({"name": "b", "description": "a board", **tables}, "a test"))


@pytest.mark.parametrize(
    ("codes", "none"),
    [({}, False), ({"none": [0, 0xFFFF]}, True), ({"valid": [1, 50]}, True), ({"valid": [0, 40_000]}, False)],
)
async def test_a_signal_has_no_value_where_its_register_says_so(codes, none) -> None:
    # The simulated chips read as 0 and, erased, as 0xffff.
    made = board(**codes)
    async with hearth.open_runtime(board=made) as runtime, runtime.open_session(client_name="c") as session:
        names = [one["name"] for one in (await session.run("signal.list"))["signals"] if "LEVEL" in one["name"]]
        assert len(names) == 2
        for name in names:
            read = await session.run("signal.read", name=name)
            assert (read["value"] is None, read["quality"], "why" in read) == (none, "none" if none else "good", none)
        read = await session.run("spi.read", device="ADC", register="LEVEL")
        assert (read["value"] is None, read["raw"]) == (none, 0)


def test_a_code_is_compared_with_the_bits_of_the_register() -> None:
    register = Register(0, 16, signed=True, none=(0x8000,))
    assert [register.is_none(number) for number in (-0x8000, 0x7FFF, 0)] == [True, False, False]
    unsigned = Register(0, 16, none=(-1,))
    assert [unsigned.is_none(number) for number in (0xFFFF, 1, 0xFFFE)] == [True, False, False]


def test_valid_has_the_lesser_number_first() -> None:
    with pytest.raises(ConfigError, match="exchange them"):
        board(valid=[5, 1])
