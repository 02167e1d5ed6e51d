"""The edges of a transaction: a bus that reopens, a write that fails, a call that outlives its session."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from kinds.board import VENDOR_BUS, Op, Raw, call, i2c, output, stepper
from support.waiting import passes
from support.world import embedded, reset_halt

from hearth.actors.bus.outputs import DrivenOutputs
from hearth.drivers.registers import Write
from hearth.errors import Halted, HearthError, InternalError, LimitViolated, RpcError

_RELAY = Raw("gpio:sim", "set", (2, 1))


async def ready(world, bus):
    """Wait until a bus serves again."""
    await trio.sleep(0.1)
    with trio.fail_after(60):
        await passes(lambda: world.runtime.buses[bus].state == "ready")


# --- a bus that is opened again ---------------------------------------------------------------------------------------

STEPS = {
    "can": (stepper(0), stepper(500)),
    "i2c": (i2c([0x41, 0]), i2c([0x41, 50])),
    "pwm": (Raw("pwm:sim", "set", (1, 0.0)), Raw("pwm:sim", "set", (1, 180.0))),
}
"""By kind: a level of an output that cannot be read, and one that is too far from it."""


@pytest.mark.parametrize("kind", ["can", "i2c", "pwm"])
async def test_a_bus_that_crashes_forgets_no_level(open_world, promise, kind):
    promise(kind, "a crash of the bus forgets no level")
    first, far = STEPS[kind]

    def bug(_driver):
        raise ValueError("a bug in a vendor's tool")

    async with open_world() as world, embedded(world) as session:
        await call(session, world, first)
        if kind == "pwm":
            await call(session, world, Raw("pwm:sim", "set", (1, "off")))
        with pytest.raises(InternalError):
            await call(session, world, Op(first.bus, bug))
        await ready(world, first.bus)
        await trio.sleep(10)
        with pytest.raises(LimitViolated):
            await call(session, world, far)


async def test_a_can_interface_that_was_unplugged_forgets_no_level(open_world, promise):
    promise("can", "an interface that was unplugged forgets no level")
    async with open_world() as world, embedded(world) as session:
        driver = world.drivers["can:can0"]
        await call(session, world, stepper(0))
        driver.unplug()
        await trio.sleep(0.1)
        driver.plugged = True
        await ready(world, "can:can0")
        with pytest.raises(LimitViolated):
            await call(session, world, stepper(500))


# --- a write that fails -----------------------------------------------------------------------------------------------


async def test_a_write_that_fails_does_not_free_the_step_of_a_register_that_cannot_be_read(open_world, promise):
    promise("i2c", "a failed write frees no step")
    async with open_world() as world, embedded(world) as session:
        await call(session, world, i2c([0x41, 0]))
        world.drivers["i2c:1"].faults.nack(addr=0x50, after=1)
        with pytest.raises(RpcError) as caught:
            await call(session, world, i2c([0x41, 5]))
        assert caught.value.data["effect"] == "unknown"
        with pytest.raises(LimitViolated):
            await call(session, world, i2c([0x41, 50]))


async def test_a_write_that_fails_makes_a_register_that_can_be_read_be_read_first(open_world, promise):
    promise("i2c", "after a failed write a register is read first")
    async with open_world() as world, embedded(world) as session:
        await call(session, world, i2c([0x11], 1))
        await call(session, world, i2c([0x11, 5]))
        world.drivers["i2c:1"].faults.nack(addr=0x50, after=1)
        with pytest.raises(RpcError):
            await call(session, world, i2c([0x11, 10]))
        with suppress(HearthError):
            await call(session, world, i2c([0x11, 60]))
        assert output("i2c:1", "current").level(world) <= 20


# --- operations that wait ---------------------------------------------------------------------------------------------


async def test_two_operations_of_one_transaction_are_checked_one_after_the_other(open_world, promise):
    promise("i2c", "an operation is checked when it runs")

    async def op(driver):
        up, down = driver.transfer(0x50, [Write(b"\x11\x14")]), driver.transfer(0x50, [Write(b"\x11\x00")])
        await up
        await down

    async with open_world() as world, embedded(world) as session:
        await call(session, world, i2c([0x11], 1))
        await call(session, world, i2c([0x11, 10]))
        with suppress(HearthError):
            await call(session, world, Op("i2c:1", op))
        assert output("i2c:1", "current").level(world) in (10, 20), "20 to 0 is more than a step of 10"


@pytest.mark.parametrize(
    "raw",
    [
        _RELAY,
        *(Raw(f"{kind}:sim", "set", one) for kind, one in (("pwm", (0, 0.5)), ("dac", (1, 2.0)), ("lamp", (1, 5)))),
    ],
    ids=["gpio", "pwm", "dac", "lamp"],
)
async def test_a_guarded_driver_is_of_no_use_after_its_transaction(open_world, promise, raw):
    promise(raw.bus.partition(":")[0], "a guarded driver is dead after its transaction")
    kept = []
    async with open_world() as world:
        async with embedded(world) as session:
            await call(session, world, Op(raw.bus, kept.append))
        before = len(world.recorder.operations)
        with suppress(RpcError, RuntimeError):
            raw(kept[0])
        assert not world.recorder.since(before)


async def test_a_guarded_driver_is_of_no_use_after_its_transaction_where_it_waits(open_world, promise):
    promise("i2c", "a guarded driver is dead after its transaction")
    kept = []

    async def keep(driver):
        kept.append(driver)

    async with open_world() as world:
        async with embedded(world) as session:
            await call(session, world, Op("i2c:1", keep))
        with suppress(RpcError, RuntimeError):
            await i2c([0x10, 50])(kept[0])
        assert output("i2c:1", "speed").level(world) == 0


# --- a call that outlives its session, or meets a halt ----------------------------------------------------------------


def slow(unit, reg, *values):
    """A call that drives half-way, waits, and drives again."""

    async def op(driver):
        await driver.write(unit, "holding", reg, (values[0],))
        await trio.sleep(2)
        await driver.write(unit, "holding", reg, (values[1],))

    return Op("modbus:plant", op, (unit, "holding", reg))


DECLARED = pytest.mark.parametrize("tool", ["com.acme.call", "com.acme.declared"], ids=["raw", "declared"])


@DECLARED
async def test_what_a_call_drives_while_its_session_ends_is_safe_in_the_end(open_world, promise, tool):
    promise("modbus", "a call that its session's end meets is safe in the end")
    async with open_world() as world:
        async with trio.open_nursery() as nursery, embedded(world) as session:
            world.raw.append(slow(5, 100, 10, 20))

            async def run():
                with suppress(HearthError):
                    await session.run(tool, number=0)

            nursery.start_soon(run)
            await trio.sleep(1)
            assert output("modbus:plant", "power").level(world) == 10
        await trio.sleep(5)
        assert output("modbus:plant", "power").level(world) == 0


@DECLARED
async def test_a_call_that_a_halt_meets_half_way_drives_nothing_more_and_is_made_safe(open_world, promise, tool):
    promise("modbus", "a call that a halt meets is made safe")
    async with open_world() as world, embedded(world) as session:
        world.raw.append(slow(5, 100, 10, 20))
        async with trio.open_nursery() as nursery:

            async def run():
                with suppress(HearthError):
                    await session.run(tool, number=0)

            nursery.start_soon(run)
            await trio.sleep(1)
            world.runtime.halt.halt("a test", "a person")
            await trio.sleep(5)
        driven = [one.args[3] for one in world.recorder.operations if one.op == "write"]
        assert (20,) not in driven
        assert output("modbus:plant", "power").level(world) == 0


async def test_a_call_that_a_halt_meets_half_way_drives_nothing_more(open_world, promise):
    promise("modbus", "a call that a halt meets drives nothing more")
    async with open_world() as world, embedded(world) as session:
        world.raw.append(slow(5, 100, 10, 20))
        async with trio.open_nursery() as nursery:

            async def run():
                with suppress(HearthError):
                    await session.run("com.acme.call", number=0)

            nursery.start_soon(run)
            await trio.sleep(1)
            world.runtime.halt.halt("a test", "a person")
            await trio.sleep(5)
        assert output("modbus:plant", "power").level(world) != 20


async def test_a_call_that_was_accepted_before_a_halt_drives_nothing_after_its_reset(open_world, promise):
    promise("all", "what is older than a halt drives nothing after it")
    async with open_world() as world, embedded(world) as session:
        world.raw.append(slow(5, 100, 10, 20))
        relay = world.step_of(Raw("modbus:plant", "write", (3, "coil", 0, (1,))))
        async with trio.open_nursery() as nursery:

            async def run(**args):
                with suppress(HearthError):
                    await session.run("com.acme.call", **args)

            nursery.start_soon(lambda: run(number=0))
            await trio.sleep(0.5)
            nursery.start_soon(lambda: run(**relay))
            await trio.sleep(0.5)
            world.runtime.halt.halt("a test", "a person")
            await trio.sleep(5)
            await reset_halt(world.runtime)
            await trio.sleep(5)
        assert output("modbus:plant", "run").level(world) == 0


@DECLARED
async def test_a_call_that_a_halt_and_its_reset_meet_before_it_drives_drives_nothing(open_world, promise, tool):
    promise("all", "a transaction that began before a halt drives nothing after its reset")

    async def late(driver):
        await trio.sleep(2)
        await driver.write(5, "holding", 100, (20,))

    async with open_world() as world, embedded(world) as session:
        world.raw.append(Op("modbus:plant", late, None))
        async with trio.open_nursery() as nursery:

            async def run():
                with suppress(HearthError):
                    await session.run(tool, number=0)

            nursery.start_soon(run)
            await trio.sleep(1)
            world.runtime.halt.halt("a test", "a person")
            await reset_halt(world.runtime)
            await trio.sleep(5)
        assert not [one for one in world.recorder.operations if one.op == "write"]


@pytest.mark.parametrize("what", ["made safe", "written down"])
async def test_a_call_that_a_halt_meets_while_its_output_is_prepared_drives_nothing(
    open_world, promise, monkeypatch, dbc, what
):
    """An output may have to be made safe, since its level is not known, or be written down, before it is driven."""
    promise("can", "a halt is asked again by a call that had to wait")
    announce = DrivenOutputs.announce

    async def slowly(driven, found):
        await trio.sleep(2)
        return await announce(driven, found)

    position = {"limit": {"max_step": 10}, "safe": 0}
    fields = {"signals": {"STEPPER_COMMAND.Position": position, "STEPPER_COMMAND.Hold": {"idle": 0}}}
    can = [{"bus": "can0", "driver": "sim", "dbc": str(dbc), **fields}]
    async with open_world(tables={"can": can}) as world, embedded(world) as session:
        driver, sent = world.drivers["can:can0"], []
        send = driver.send

        async def slow(wanted, **more):
            sent.append(wanted.data)
            await trio.sleep(2 if what == "made safe" else 0)
            return await send(wanted, **more)

        monkeypatch.setattr(driver, "send", slow)
        if what == "written down":
            monkeypatch.setattr(DrivenOutputs, "announce", slowly)
        async with trio.open_nursery() as nursery:

            async def run():
                with pytest.raises(Halted) as refused:
                    await call(session, world, stepper(5))
                assert refused.value.data["effect"] == "none"

            nursery.start_soon(run)
            await trio.sleep(1)
            world.runtime.halt.halt("a test", "a person")
        assert stepper(5).args[0].data not in sent
        assert sent or what == "written down"


# --- pulses -----------------------------------------------------------------------------------------------------------


async def test_the_end_of_a_pulse_leaves_the_level_that_another_session_has_set_since(open_world, promise):
    promise("gpio", "the end of a pulse leaves what a raw call has set since")
    async with open_world() as world, embedded(world) as one, embedded(world) as other:
        await one.run("gpio.set", line="BRAKE", value=1)
        async with trio.open_nursery() as nursery:

            async def pulse():
                with suppress(HearthError):
                    await one.run("gpio.pulse", line="BRAKE", value=0, duration_ms=3_000)

            nursery.start_soon(pulse)
            await trio.sleep(1)
            await call(other, world, Raw("gpio:sim", "set", (3, "input")))
        assert world.drivers["gpio:sim"].state(3) == "input"


# --- a vendor's driver ------------------------------------------------------------------------------------------------


async def test_a_vendors_driver_answers_reads_of_risk_0_while_halted(open_world, promise):
    promise("vendor", "reads go on while halted")
    async with open_world() as world, embedded(world) as session:
        world.runtime.halt.halt("a test", "a person")
        await call(session, world, Raw(VENDOR_BUS, "get", ("red",)), tool="com.acme.peek")
