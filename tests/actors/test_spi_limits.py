"""Limits of an SPI device's registers: by name or in raw bytes, what may not be written does not reach the device."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from support.world import BoardWorld, running

from hearth import step
from hearth.errors import DeviceError, Halted, LimitViolated

REGISTERS = [
    {"reg": 0x10, "name": "SPEED", "width": 16, "max": 3000, "max_step": 500, "unit": "rpm"},
    {"reg": 0x12, "name": "CURRENT", "scale": 0.1, "min": 0.5, "max": 2.0, "on_limit": "clamp", "unit": "ampere"},
    {"reg": 0x14, "name": "ID", "access": "r"},
    {"reg": 0x15, "name": "RESET", "access": "w"},
    {"reg": 0x20, "name": "FAULTS", "access": "r", "read_effect": True},
]


@asynccontextmanager
async def cell(*, registers=REGISTERS, **device):
    """A session on a board with one device, and the simulated device."""
    given = {"name": "MOTOR", "driver": "sim", "kind": "registers", "registers": registers, "increment": "byte"}
    world = BoardWorld({"name": "b", "description": "b", "spi": [given | device]})
    with trio.fail_after(30):
        async with running(world), world.sessions().open_session() as session:
            yield session, world.parts.board.drivers["spi:MOTOR"]


async def refused(session, device, tool, **args):
    before = len(device.log)
    with pytest.raises(LimitViolated) as caught:
        await session.run(tool, device="MOTOR", **args)
    assert caught.value.data["effect"] == "none"
    assert len(device.log) == before
    return caught.value


async def test_a_value_beyond_its_bound_is_refused_by_name_and_in_bytes(autojump_clock):
    async with cell() as (session, device):
        for tool, args in (
            ("spi.write", {"register": "SPEED", "value": 3001}),
            ("spi.transfer", {"hex": "10 0b b9"}),
        ):
            error = await refused(session, device, tool, **args)
            assert error.data["bus"] == "spi:MOTOR"
            assert (error.data["device"], error.data["reg"], error.data["limit"]) == ("MOTOR", 0x10, "max")
            assert error.message == (
                "Limit violated: spi device 'MOTOR', register 0x10 (SPEED): 3001 rpm is beyond max = 3000; "
                "nothing was written"
            )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("30 00", "the board profile does not list it; to be written are: 0x10, 0x12, 0x15"),
        ("14 00", 'it is only read (access = "r")'),
        ("95 00", 'it is only written (access = "w")'),
        ("10 00", "it has 2 bytes; write it whole"),
        ("12 0a 00", "the board profile does not list it"),
    ],
)
async def test_bytes_that_reach_another_register_or_a_part_of_one_are_refused(autojump_clock, data, why):
    async with cell() as (session, device):
        assert why in (await refused(session, device, "spi.transfer", hex=data)).message


async def test_bytes_that_begin_with_no_command_are_refused(autojump_clock):
    masks = {"read_mask": 0x40, "write_mask": 0x80}
    async with cell(registers=[{"reg": 1}], **masks) as (session, device):
        error = await refused(session, device, "spi.transfer", hex="01 00")
        assert "a transfer begins with a command that reads or writes a register" in error.message
        await session.run("spi.transfer", device="MOTOR", hex="81 05")
        assert (await session.run("spi.read", device="MOTOR", register=1))["raw"] == 5


async def test_a_value_that_is_clamped_is_reported_by_both_tools(autojump_clock):
    async with cell() as (session, device):
        report = {"device": "MOTOR", "reg": 0x12, "name": "CURRENT", "asked": 2.4000000000000004, "written": 2.0}
        report["unit"] = "ampere"
        wrote = await session.run("spi.write", device="MOTOR", register="CURRENT", value=2.4)
        assert (wrote["value"], wrote["raw"], wrote["clamped"]) == (2.0, 20, [report])
        assert (await session.run("spi.transfer", device="MOTOR", hex="12 18"))["clamped"] == [report]
        assert [transfer.sent for transfer in device.log] == [b"\x12\x14"] * 2
        assert "clamped" not in await session.run("spi.write", device="MOTOR", register="CURRENT", value=1)


async def test_a_step_is_counted_from_the_value_that_was_read_or_written(autojump_clock):
    async with cell() as (session, device):
        error = await refused(session, device, "spi.write", register="SPEED", value=100)
        assert "its present value is not known; read the register first" in error.message
        await session.run("spi.read", device="MOTOR", register="SPEED")
        await session.run("spi.write", device="MOTOR", register="SPEED", value=500)
        assert (await refused(session, device, "spi.write", register="SPEED", value=1001)).data["limit"] == "max_step"
        await session.run("spi.write", device="MOTOR", register="SPEED", value=1000)
        device.faults.fail()
        with pytest.raises(DeviceError):
            await session.run("spi.write", device="MOTOR", register="SPEED", value=1200)
        assert "not known" in (await refused(session, device, "spi.write", register="SPEED", value=1200)).message


async def test_a_write_of_several_registers_is_checked_whole(autojump_clock):
    registers = [{"reg": 1, "max": 9}, {"reg": 2, "max": 9}]
    async with cell(registers=registers) as (session, device):
        assert (await refused(session, device, "spi.transfer", hex="01 05 0a")).data["reg"] == 2
        await session.run("spi.transfer", device="MOTOR", hex="01 05 09")
        assert device.chip.cells[1:3] == b"\x05\x09"


async def test_a_dry_run_and_a_plan_refuse_what_could_never_be_written(autojump_clock):
    async with cell() as (session, device):
        wrong = [step("spi.write", device="MOTOR", register="SPEED", value=3001)]
        with pytest.raises(LimitViolated):
            await session.submit("x", wrong, dry_run=True)
        with pytest.raises(LimitViolated):
            await session.prepare("x", wrong)
        assert not device.log


async def test_a_plan_shows_the_register_before_and_after(autojump_clock):
    async with cell() as (session, device):
        device.chip.cells[0x12] = 10
        plan = await session.prepare("x", [step("spi.write", device="MOTOR", register="CURRENT", value=1.5)])
        (shown,) = plan.steps
        assert (shown.before, shown.after) == ({"value": 1.0}, {"value": 1.5})


async def test_during_a_halt_registers_are_read_and_nothing_else(autojump_clock):
    async with cell() as (session, device):
        await session.halt("smoke")
        await session.run("spi.read", device="MOTOR", register="ID")
        before = len(device.log)
        for tool, args in (
            ("spi.write", {"register": "CURRENT", "value": 1}),
            ("spi.transfer", {"hex": "94 00"}),
            ("spi.read", {"register": "FAULTS"}),
        ):
            with pytest.raises(Halted):
                await session.run(tool, device="MOTOR", **args)
        assert len(device.log) == before
