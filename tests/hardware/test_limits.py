"""Limits on the kernel's own chips and adapters, watched by a process that shares no code with hearth.

The lines have an initial level, because one that gpio-sim makes an input keeps its last level.

The observer samples the lines in sysfs and a register over another descriptor. A change lies between two samples, so a
span is at least as long as from the first sample within it to the last, and at most from the sample before to the one
after: only what no sampling could explain is a violation.
"""

import json
import random
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack, contextmanager

import pytest
import trio
from support.gpio_sim import gpio_sim
from support.i2c_stub import stub_bus
from support.waiting import passes
from support.world import simulated
from support.writers import WRITERS, serving

import hearth
from hearth import step
from hearth.config.model import BoardConfig, PolicyConfig
from hearth.errors import LimitViolated

pytestmark = pytest.mark.slow

WRITES = 100_000

PROFILE = """
name = "cell"
description = "a chip and an adapter of the kernel's"
[[gpio]]
label = "cell"
driver = "gpiod"
names = ["heater", "motor", "lamp"]
{more}
[gpio.lines.heater]
safe = 0
initial = 0
limit = {{ {heater}, min_off_ms = 60 }}
[gpio.lines.motor]
safe = 0
initial = 0
limit = {{ max_on_ms = 200, min_off_ms = 40, max_rate_hz = 5 }}
[[i2c]]
bus = {bus}
driver = "i2c-dev"
[[i2c.device]]
addr = 0x48
kind = "converter"
reg_width = 8
registers = [{{ reg = 0x10, min = 10, max = 200 }}, {{ reg = 0x11, max_step = 9 }}]
"""

UNHURRIED = PolicyConfig("all", {"any": True}, rate={"gpio.*": "100000/s", "i2c.*": "100000/s"})

OBSERVER = """
import json, os, sys, time
lines, bus = sys.argv[1:-1], int(sys.argv[-1])
from smbus2 import SMBus
files = [open(path, "rb", buffering=0) for path in lines]
spans = [[] for _ in lines]
state = [(0, None, None)] * len(lines)  # level, latest time before it, earliest time within it
last = [0.0] * len(lines)
samples, values = 0, set()
levels = [0] * len(lines)
print("ready", flush=True)
with SMBus(bus) as wire:
    os.set_blocking(0, False)
    while True:
        for number, file in enumerate(files):
            # Between two readings of the clock: the kernel may run another process at any point.
            early = time.monotonic()
            file.seek(0)
            level = int(file.read())
            late = time.monotonic()
            if level != levels[number]:
                old, before, first = state[number]
                if before is not None:
                    spans[number].append((old, last[number] - first, late - before))
                state[number] = (level, last[number] if samples else None, late)
                levels[number] = level
            last[number] = early
        samples += 1
        if samples % 4 == 0:
            values.add(wire.read_byte_data(0x48, 0x10))
        if samples % 64 == 0:
            try:
                if os.read(0, 1) == b"":
                    break
            except BlockingIOError:
                pass
print(json.dumps({"spans": spans, "samples": samples, "values": sorted(values)}))
"""


@pytest.fixture
def outside():
    with gpio_sim("cell", ["heater", "motor", "lamp"]) as cell:
        yield cell, stub_bus()


@pytest.fixture(params=["inline", "thread"])
def profile(request, tmp_path, outside, heater):
    path = tmp_path / "cell.toml"
    more = "blocking = true" if request.param == "thread" else ""
    path.write_text(PROFILE.format(more=more, heater=heater, bus=outside[1]))
    return str(path)


@pytest.fixture
def heater():
    """How long the heater must and may be on; a test that must come in time on a busy machine has its own."""
    return "min_on_ms = 60, max_on_ms = 400"


@pytest.mark.parametrize("heater", ["min_on_ms = 2000, max_on_ms = 3000"], ids=["unhurried"])
async def test_the_limits_of_a_kernels_line_hold_and_its_longest_time_on_ends_it(outside, profile):
    cell, _ = outside
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        await trio.sleep(0.1)
        await session.run("gpio.set", line="heater", value=1)
        with pytest.raises(LimitViolated):
            await session.run("gpio.set", line="heater", value=0)
        assert cell.value("heater") == 1
        await passes(lambda: cell.value("heater") == 0)
        with pytest.raises(LimitViolated):
            await session.run("i2c.write", bus=outside[1], addr=0x48, reg=0x10, hex="ff")
        with pytest.raises(LimitViolated):
            await session.run("i2c.write", bus=outside[1], addr=0x48, reg=0x00, hex="00")
        await session.run("i2c.write", bus=outside[1], addr=0x48, reg=0x10, hex="c8")


@contextmanager
def observing(bus, paths):
    """The observer, once it samples; it ends when its input is closed."""
    command = [sys.executable, "-c", OBSERVER, *paths, str(bus)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as observer:
        assert observer.stdout.readline() == b"ready\n"
        yield observer


def a_step(dice, bus):
    kind = dice.random()
    if kind < 0.7:
        return step("gpio.set", line=dice.choice(["heater", "motor", "lamp"]), value=dice.getrandbits(1))
    if kind < 0.72:
        line = dice.choice(["heater", "motor"])
        return step("gpio.pulse", line=line, value=1, duration_ms=dice.randint(60, 200))
    return step("i2c.write", bus=bus, addr=0x48, reg=0x10, hex=f"{dice.randint(0, 230):02x}")


async def storm(write, ran, dice, bus, left):
    while left[0] > 0:
        steps = [a_step(dice, bus) for _ in range(dice.randint(1, 16))]
        left[0] -= len(steps)
        if rollback := dice.random() < 0.2:
            steps.append(step("i2c.read", bus=bus, addr=0x20, len=1))
        ran += await write(steps, rollback=rollback, give_up_s=dice.random() * 0.05 if dice.random() < 0.1 else None)
        ran["rolled back"] += rollback
        ran["pulses"] += sum(one.tool == "gpio.pulse" for one in steps)
        if dice.random() < 0.3:
            # Else the time between two switchings would all be spent on refusals.
            await trio.sleep(dice.random() * 0.1)


@pytest.mark.parametrize("count", [2_000, pytest.param(WRITES, marks=pytest.mark.proof)], ids=["some", "many"])
async def test_an_observer_of_the_kernels_lines_sees_no_level_outside_the_limits(outside, profile, tmp_path, count):
    cell, bus = outside
    dice, left = random.Random(count), [count]
    ran = {surface: Counter() for surface in WRITERS}
    world = simulated(tmp_path, board=BoardConfig(profile=profile), policy=(UNHURRIED,))
    with trio.fail_after(120 + count / 50):
        async with serving(world), AsyncExitStack() as opened:
            writers = {surface: await opened.enter_async_context(WRITERS[surface](world)) for surface in WRITERS}
            await writers["in process"]([step("i2c.write", bus=bus, addr=0x48, reg=0x10, hex="64")])
            with observing(bus, [str(cell._attribute(line, "value")) for line in ("heater", "motor")]) as observer:
                async with trio.open_nursery() as nursery:
                    for surface, write in writers.items():
                        nursery.start_soon(storm, write, ran[surface], dice, bus, left)
                observer.stdin.close()
                seen = json.loads(await trio.to_thread.run_sync(observer.stdout.read))
    heater, motor = ([(level, least, most) for level, least, most in spans] for spans in seen["spans"])
    print(ran, len(heater), len(motor), seen["samples"], seen["values"][:1], seen["values"][-1:])
    late = 1.0
    """Seconds by which a busy machine's timer may be late."""
    assert [span for span in heater if span[2] < 0.06] == []
    assert [span for span in heater if span[0] and span[1] > 0.4 + late] == []
    assert [span for span in motor if span[0] and span[1] > 0.2 + late] == []
    assert [span for span in motor if not span[0] and span[2] < 0.04] == []
    assert 10 <= seen["values"][0] <= seen["values"][-1] <= 200
    assert min(len(heater), len(motor), len(seen["values"])) > 5
    assert all(min(counted["done"], counted["refused"]) > 10 for counted in ran.values()), ran
    assert min(sum(counted[what] for counted in ran.values()) for what in ("rolled back", "pulses")) > 5, ran
