"""`scope` and `reserved` of an adapter: refused at submit, and by the driver where a tool does not ask."""

from __future__ import annotations

import base64
from contextlib import asynccontextmanager

import pytest
import trio

import hearth
from hearth import step
from hearth.config.model import AuditConfig, Config
from hearth.drivers.base import Style
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.i2c.driver import Addresses
from hearth.drivers.registers import Read
from hearth.errors import InvalidParams, PermissionDenied

BOARD = """
name = "bench"
description = "One adapter."

[[i2c]]
bus = 1
driver = "sim"
{rules}

[[i2c.device]]
addr = 0x48
kind = "tmp102"

[[i2c.device]]
addr = 0x50
kind = "24c02"

[sensors.temperature]
kind = "tmp102"
bus = 1
addr = 0x48
"""


@asynccontextmanager
async def session(path, rules):
    file = path / "bench.toml"
    file.write_text(BOARD.format(rules=rules))
    board = open_board(load_profile(str(file)), style=Style.INLINE)
    config = Config(audit=AuditConfig(path=path / "audit.log"))
    with trio.fail_after(30):
        async with hearth.open_runtime(board=board, config=config) as runtime, runtime.open_session() as opened:
            yield opened, board.drivers["i2c:1"]


@pytest.mark.parametrize(
    ("rules", "addr", "reason"),
    [
        ("reserved = [0x68]", 0x68, "the board profile reserves it ([[i2c]] reserved)"),
        (
            'scope = "declared"',
            0x23,
            'the board profile declares no device there (scope = "declared"); add an [[i2c.device]] with this addr',
        ),
    ],
)
@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("i2c.read", {"len": 1}),
        ("i2c.read", {"len": 1, "ten_bit": True}),
        ("i2c.read", {"len": 1, "reg": 0}),
        ("i2c.write", {"data": "AA=="}),
        ("i2c.transfer", {"write": "AA=="}),
        ("i2c.transfer", {"messages": [{"read": 1}]}),
    ],
)
async def test_an_address_that_the_profile_refuses_is_refused_at_submit(tmp_path, rules, addr, reason, tool, args):
    async with session(tmp_path, rules) as (opened, driver):
        for constraints in ({}, {"dry_run": True}):
            with pytest.raises(PermissionDenied) as caught:
                await opened.submit("look", [step(tool, bus=1, addr=addr, **args)], **constraints)
            assert caught.value.data == {
                "step_index": 0, "tool": tool, "bus": 1, "addr": addr, "reason": reason, "effect": "none",
            }  # fmt: skip
        assert f"i2c bus 1, address {addr:#04x}: {reason}" in caught.value.message
        assert not driver.log


async def test_args_that_a_flat_schema_cannot_refuse_get_the_same_answer_as_from_a_schema(tmp_path):
    async with session(tmp_path, "") as (opened, driver):
        for path, args in (("/addr", {"addr": 0x78, "len": 1}), ("/len", {"addr": 0x50, "len": 0})):
            with pytest.raises(InvalidParams) as caught:
                await opened.submit("look", [step("i2c.read", bus=1, **args)])
            assert caught.value.data.keys() == {"step_index", "tool", "path", "reason"}
            assert (caught.value.data["step_index"], caught.value.data["tool"]) == (0, "i2c.read")
            assert caught.value.data["path"] == path
            reason = caught.value.data["reason"]
            assert caught.value.message == f"Invalid params: step 0 (i2c.read): {path}: {reason}"
        assert not driver.log


async def test_a_declared_device_is_used_as_before_and_a_scan_asks_no_other(tmp_path):
    async with session(tmp_path, 'scope = "declared"\nreserved = [0x68]') as (opened, _driver):
        await opened.run("i2c.write", bus=1, addr=0x50, reg=0, data=base64.b64encode(b"x").decode())
        assert await opened.run("i2c.read", bus=1, addr=0x50, reg=0, len=1) == {
            "data": "eA==",
            "hex": "78",
            "text": "x",
        }
        assert (await opened.run("hw.sensor.read", sensor="temperature"))["unit"] == "celsius"
        scan = await opened.run("i2c.scan", bus=1, include=[0x68, 0x23])
        (bus,) = (await opened.run("hw.i2c.list"))["buses"]
    assert scan["addresses"] == [0x48, 0x50]
    skipped = {entry["addr"]: entry["reason"] for entry in scan["skipped"]}
    assert len(skipped) == 110
    assert "reserves it" in skipped[0x68]
    assert "declares no device" in skipped[0x23]
    assert (bus["scope"], bus["reserved"]) == ("declared", [0x68])
    assert [device["reg_width"] for device in bus["devices"]] == [8, 8]


async def test_what_asks_the_driver_itself_is_refused_there(tmp_path):
    async with session(tmp_path, "reserved = [0x68]") as (_opened, driver):
        with pytest.raises(PermissionDenied, match="reserves it"):
            driver.transfer(0x68, [Read(1)])
        assert not driver.log


@pytest.mark.parametrize("ten_bit", [True, False])
def test_a_reserved_number_is_reserved_in_both_widths_and_a_declared_one_is_a_device_of_its_own_width(ten_bit):
    rules = Addresses({0x48: 16, 0x150: 8}, "declared", frozenset({0x68}))
    assert rules.refusal(0x68, ten_bit=ten_bit) is not None
    assert (rules.refusal(0x48, ten_bit=ten_bit) is None) is not ten_bit
    assert rules.refusal(0x150, ten_bit=ten_bit) is None
    assert rules.reg_width(0x48, ten_bit=ten_bit) == (None if ten_bit else 16)
    assert rules.reg_width(0x150, ten_bit=ten_bit) == 8
