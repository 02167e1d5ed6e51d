"""What every driver of every kind does: it describes itself, refuses what it cannot do, and can be opened again."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import trio
from attrs import frozen
from support import driver_benches as benches, guarded

from hearth.drivers.can.driver import Frame
from hearth.drivers.registers import Read
from hearth.errors import DeviceError


@frozen
class Face:
    """A kind: its benches, what its operations are, and those that it refuses."""

    benches: dict
    ops: tuple
    """Operations, of which the last one works on every bench that is open."""
    described: tuple = ()
    """Members of its description beside `kind`."""
    driver: object = lambda made: made.driver
    unknown: tuple = ()
    """Operations on an output that there is not."""
    safe: tuple = ()
    """Outputs that it leaves alone when it makes outputs safe."""
    closed_pump: bool = False
    """The pump of a driver that is not open returns."""


def far_end(made):
    driver, _far = made
    return driver


FACES = {
    "gpio": Face(
        benches.GPIO_BENCHES,
        (lambda d: d.get(3), lambda d: d.watch(3, "both"), lambda d: d.set(3, 1)),
        unknown=(lambda d: d.get(999), lambda d: d.set(999, 1), lambda d: d.watch(999, "both"), lambda d: d.set(-1, 1)),
    ),
    "pwm": Face(
        benches.PWM_BENCHES,
        (lambda d: d.set(0, 0), lambda d: d.value(0), lambda d: d.get(0)),
        unknown=(lambda d: d.get(9), lambda d: d.set(9, 0), lambda d: d.set(-1, 0)),
        safe=(77, "x"),
    ),
    "dac": Face(
        benches.DAC_BENCHES,
        (lambda d: d.set(0, 1), lambda d: d.value(0)),
        driver=lambda made: made.make(),
        unknown=(lambda d: d.value(9), lambda d: d.set(9, 0), lambda d: d.set(-1, 0)),
        safe=(5, "x"),
    ),
    "i2c": Face(
        benches.I2C_BENCHES,
        (lambda d: d.scan(), lambda d: d.transfer(0x50, [Read(1)])),
        ("bus",),
        safe=(1,),
    ),
    "spi": Face(
        {name: lambda make=make: make(chip=False) for name, make in benches.SPI_BENCHES.items()},
        (lambda d: d.transfer(b"again"),),
        ("device", "bits"),
        safe=(1,),
    ),
    "uart": Face(
        benches.UART_BENCHES,
        (
            lambda d: d.take(1, None),
            lambda d: d.exchange(b"x", length=1, until=None, timeout_s=1),
            lambda d: d.control(),
            lambda d: d.write(b"x", timeout_s=1),
        ),
        driver=far_end,
        closed_pump=True,
    ),
    "can": Face(
        benches.CAN_BENCHES,
        (
            lambda d: d.isotp(1, 2, b"x", timeout_s=1),
            lambda d: d.send(Frame(1, b"x"), timeout_s=1),
            lambda d: d.follow(),
        ),
        closed_pump=True,
    ),
    "modbus": Face(
        benches.MODBUS_BENCHES,
        (lambda d: d.write(3, "holding", 0, (1,)), lambda d: d.read(3, "input", 5, 1)),
        ("line", "driver"),
        driver=benches.modbus_line,
    ),
}
ALL = [(kind, name) for kind, face in FACES.items() for name in face.benches]
of_kinds = pytest.mark.parametrize(("kind", "name"), ALL, ids=[f"{kind}-{name}" for kind, name in ALL])


def some(**which):
    """Parameters for the benches of those kinds that have something to refuse or to leave alone."""
    (member,) = which
    found = [one for one in ALL if getattr(FACES[one[0]], member)]
    return pytest.mark.parametrize(("kind", "name"), found, ids=[f"{kind}-{name}" for kind, name in found])


@contextmanager
def opened(kind, name):
    with FACES[kind].benches[name]() as made:
        driver = FACES[kind].driver(made)
        driver.open()
        yield driver
        driver.close()
        if kind == "uart" and made[1] is not None:
            benches.hang_up(made[1])


@of_kinds
async def test_its_description_is_json_whether_it_is_open_or_not(kind, name):
    with opened(kind, name) as driver:
        described = json.loads(json.dumps(driver.describe()))
        driver.close()
        closed = json.loads(json.dumps(driver.describe()))
        for one in ("kind", *FACES[kind].described):
            assert described[one] == closed[one]
        assert described["kind"] == kind


@of_kinds
async def test_what_is_not_open_refuses_everything_without_effect_and_works_again_when_it_is_reopened(
    kind, name, transact, nursery
):
    with opened(kind, name) as driver:
        for _ in range(2):
            driver.close()
        for op in FACES[kind].ops:
            with trio.fail_after(30), pytest.raises(DeviceError, match="not open") as caught:
                await transact(driver, op)
            assert caught.value.data["effect"] == "none"
        if FACES[kind].closed_pump:
            await driver.pump()
        driver.open()
        nursery.start_soon(driver.pump)
        await transact(driver, FACES[kind].ops[-1])


@some(unknown=True)
async def test_an_output_that_there_is_not_is_refused_without_effect(kind, name, transact):
    with opened(kind, name) as driver:
        for op in FACES[kind].unknown:
            with pytest.raises(DeviceError, match=r"no (line|channel)") as caught:
                await transact(driver, op)
            assert caught.value.data["effect"] == "none"


@some(safe=True)
async def test_what_it_does_not_know_is_left_alone_when_outputs_are_made_safe(kind, name, transact):
    outputs = FACES[kind].safe
    with opened(kind, name) as driver:
        if kind in ("i2c", "spi"):
            assert await transact(driver, lambda d: d.make_safe(outputs)) == []
        else:
            done = await transact(driver, lambda d: guarded.channels(d).make_safe(outputs))
            assert [entry["note"] for entry in done] == ["left alone: not in this board's profile"] * len(outputs)
