"""Whatever is asked at random, on every path: an observer at the simulated devices finds no level outside the limits.

The observer shares no code with the guard. It records the electrical level of each line, and the bytes that a device
gets, with the virtual time of each, and compares them with the limits as this file has them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from itertools import pairwise

import pytest
import trio
from support.amounts import amount
from support.steps import within_real_seconds
from support.world import BoardWorld
from support.writers import WRITERS, no_threads, serving

from hearth import step
from hearth.errors import RpcError

WRITES = amount("HEARTH_WRITES", 100_000)
SLACK = 1e-3
"""Seconds between the moment of a switching and the one at which a bus counts it."""

HEATER, MOTOR, FREE = range(3)
HEATER_LIMIT = {"min_on_ms": 40, "max_on_ms": 250, "min_off_ms": 30}
MOTOR_LIMIT = {"max_on_ms": 100, "min_off_ms": 20, "max_rate_hz": 5}

DUTY, WORD, ANGLE, STATUS = 0x10, 0x20, 0x30, 0x40
WORD_MOST, ANGLE_STEP, ANGLE_SLEW = 0x1234, 12, 40
DUTY_LEAST, DUTY_MOST = 10, 200
CHIP = 0x50
ERASED = 0xFF
"""What each byte of the device is before it is first written: writing the same again is no change."""

PROFILE = {
    "name": "bench",
    "description": "a bench",
    "gpio": [
        {
            "label": "sim",
            "driver": "sim",
            "names": ["HEATER", "MOTOR", "FREE"],
            "lines": {
                "HEATER": {"safe": 0, "limit": HEATER_LIMIT},
                "MOTOR": {"safe": "input", "limit": MOTOR_LIMIT},
            },
        }
    ],
    "i2c": [
        {
            "bus": 1,
            "driver": "sim",
            "device": [
                {
                    "addr": CHIP,
                    "kind": "24c02",
                    "increment": "byte",
                    "registers": [
                        {"reg": DUTY, "min": DUTY_LEAST, "max": DUTY_MOST, "on_limit": "clamp"},
                        {"reg": WORD, "width": 16, "max": WORD_MOST},
                        {"reg": ANGLE, "max_step": ANGLE_STEP, "slew_per_s": ANGLE_SLEW},
                        {"reg": STATUS, "access": "r"},
                    ],
                }
            ],
        }
    ],
}


class LineObserver:
    """The levels of a line, as a logic analyser has them."""

    def __init__(self, driver, line):
        self.edges = []
        driver._all[line].watches = (self,)

    def feed(self, value, at_ns):
        self.edges.append((value, at_ns / 1e9))

    def close(self, _reason):
        """The chip was closed."""

    def spans(self, value):
        """Seconds of each span at a level that has begun and ended."""
        return [end - at for (level, at), (_, end) in pairwise(self.edges) if level == value]

    @property
    def risings(self):
        return [at for value, at in self.edges if value]


class DeviceObserver:
    """A device on the bus, and every message that was written to it."""

    def __init__(self, device):
        self._device = device
        self.kind = device.kind
        self.written = []

    def start(self, *, reading):
        if not reading:
            self.written.append((trio.current_time(), []))
        return self._device.start(reading=reading)

    def write(self, byte):
        self.written[-1][1].append(byte)
        return self._device.write(byte)

    def read(self):
        return self._device.read()

    def stop(self):
        self._device.stop()


def judge_lines(heater, motor):
    """Assert the limits of the lines."""
    assert min(heater.spans(1)) >= HEATER_LIMIT["min_on_ms"] / 1000 - SLACK
    assert max(heater.spans(1)) <= HEATER_LIMIT["max_on_ms"] / 1000 + SLACK
    assert min(heater.spans(0)) >= HEATER_LIMIT["min_off_ms"] / 1000 - SLACK
    assert max(motor.spans(1)) <= MOTOR_LIMIT["max_on_ms"] / 1000 + SLACK
    assert min(motor.spans(0)) >= MOTOR_LIMIT["min_off_ms"] / 1000 - SLACK
    period = 1 / MOTOR_LIMIT["max_rate_hz"]
    assert min(later - at for at, later in pairwise(motor.risings)) >= period - SLACK


def judge_registers(written):
    """Assert the limits of the registers, for each message on the wire; return how many values there were."""
    angle = (-math.inf, ERASED)
    values = 0
    for at, message in written:
        reg, *data = message
        while data:
            values += 1
            if reg == DUTY:
                assert DUTY_LEAST <= data[0] <= DUTY_MOST
                data, reg = data[1:], reg + 1
            elif reg == WORD:
                assert len(data) >= 2
                assert data[0] << 8 | data[1] <= WORD_MOST
                data, reg = data[2:], reg + 2
            elif reg == ANGLE:
                if angle[1] != data[0]:
                    assert abs(data[0] - angle[1]) <= ANGLE_STEP
                    assert abs(data[0] - angle[1]) <= ANGLE_SLEW * (at - angle[0]) + SLACK
                    angle = (at, data[0])
                data, reg = data[1:], reg + 1
            else:
                raise AssertionError(f"register {reg:#04x} was written, which no one may write")
    return values


def a_step(rng):
    """A step on one of the outputs, about half of which are within the limits."""
    kind = rng.random()
    if kind < 0.45:
        return step("gpio.set", line=rng.choice(["HEATER", "MOTOR", "FREE"]), value=rng.randint(0, 1))
    if kind < 0.55:
        line = rng.choice(["HEATER", "MOTOR"])
        return step("gpio.pulse", line=line, value=rng.randint(0, 1), duration_ms=rng.randint(40, 90))
    if rng.random() < 0.05:
        # Mostly refused at submit, and with it the whole task.
        reg, size = rng.choice([STATUS, rng.randrange(256)]), rng.choice([1, 2, 3])
    else:
        reg = rng.choice([DUTY, WORD, ANGLE, ANGLE])
        size = 2 if reg == WORD else 1
    data = bytes(rng.randrange(0x12 if reg == WORD else 256) for _ in range(size))
    if kind < 0.75:
        return step("i2c.write", bus=1, addr=CHIP, reg=reg, hex=data.hex())
    if kind < 0.85:
        messages = [{"hex": bytes([reg]).hex()}, {"read": 1}]
        messages += [{"hex": (bytes([reg]) + data).hex()}] * rng.randint(0, 1)
        return step("i2c.transfer", bus=1, addr=CHIP, messages=messages)
    return step("i2c.read", bus=1, addr=CHIP, reg=ANGLE, len=1)


NO_DEVICE = step("i2c.read", bus=1, addr=0x20, len=1)
"""It fails, and so its task is rolled back."""


class Storm:
    """Writers on every surface that write at random until enough has been asked."""

    def __init__(self, seed, count):
        self._rng = random.Random(seed)
        self._left = count
        self.ran = {surface: Counter() for surface in WRITERS}

    async def write(self, surface, write):
        """Many steps at a time, of which each is tried; some rolled back, some given up."""
        rng, ran = self._rng, self.ran[surface]
        while self._left > 0:
            steps = [a_step(rng) for _ in range(rng.randint(1, 20))]
            self._left -= len(steps)
            rollback = rng.random() < 0.2
            give_up_s = rng.random() * 0.1 if rng.random() > 0.9 else None
            ran += await write([*steps, NO_DEVICE] if rollback else steps, rollback=rollback, give_up_s=give_up_s)
            ran["rolled back"] += rollback
            ran["pulses"] += sum(one.tool == "gpio.pulse" for one in steps)
            if rng.random() < 0.5:
                await trio.sleep(rng.random() * 0.3)

    async def bystander(self, open_session):
        """Sessions that drive the motor and end, so that it goes to its safe state at any moment."""
        while self._left > 0:
            async with open_session() as session:
                for value in (1, 0, 1):
                    with suppress(RpcError):
                        await session.run("gpio.set", line="MOTOR", value=value)
                    await trio.sleep(self._rng.random() * 0.05)


async def play(seed, count):
    """Run a storm of that many steps; return what was done, by surface, and what the observers have seen."""
    with no_threads():
        async with serving(BoardWorld(PROFILE, max_retained_bytes=1 << 26)) as world:
            drivers = world.parts.drivers
            heater, motor = (LineObserver(world.gpio, line) for line in (HEATER, MOTOR))
            chip = drivers["i2c:1"].devices[CHIP] = DeviceObserver(drivers["i2c:1"].devices[CHIP])
            storm = Storm(seed, count)
            async with AsyncExitStack() as opened:
                writers = [(one, await opened.enter_async_context(WRITERS[one](world))) for one in WRITERS]
                async with trio.open_nursery() as nursery:
                    for surface, write in writers:
                        nursery.start_soon(storm.write, surface, write)
                    nursery.start_soon(storm.bystander, world.sessions().open_session)
                # The heater's sessions have not ended yet: no safe state has cut its time short.
                judge_lines(heater, motor)
                values = judge_registers(chip.written)
    return storm.ran, len(heater.edges), len(motor.edges), values


@pytest.mark.spec("design 8: limits of outputs")
@pytest.mark.proof
async def test_whatever_is_asked_on_every_path_no_line_and_no_register_leaves_its_limits(autojump_clock):
    ran, *seen = await play(1, 3_000)
    # It was no quiet day.
    assert min(seen) > 50
    for surface, count in ran.items():
        assert min(count["done"], count["refused"]) > 100, (surface, count)
        assert min(count["rolled back"], count["pulses"]) > 5, (surface, count)


@pytest.mark.proof
async def test_the_same_many_more_times(autojump_clock):
    with within_real_seconds(max(3_600, WRITES // 100)):
        for seed in range(max(1, WRITES // 50_000)):
            ran, *seen = await play(seed, min(WRITES, 50_000))
            print(f"seed {seed}: {ran}, {seen}")
