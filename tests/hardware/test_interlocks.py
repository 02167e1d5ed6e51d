"""Interlocks on the kernel's own chips and adapters: a door on the pump's chip, a lid on another one, a thermometer.

The observer reads the levels in sysfs, below the system calls that hearth makes.
"""

import random
import threading

import pytest
import trio
from smbus2 import SMBus
from support.gpio_sim import gpio_sim
from support.i2c_stub import stub_bus
from support.waiting import passes

import hearth
from hearth import step
from hearth.config.model import Config, PolicyConfig
from hearth.errors import InterlockOpen

pytestmark = pytest.mark.slow

PROFILE = """
name = "cell"
description = "two chips and an adapter of the kernel's"
[[gpio]]
label = "cell"
driver = "gpiod"
names = ["pump", "door", "lamp"]
{more}
[gpio.lines.pump]
safe = 0
[gpio.lines.lamp]
safe = 0
[[gpio]]
label = "lids"
driver = "gpiod"
names = ["", "lid"]
[[i2c]]
bus = {bus}
driver = "i2c-dev"
[sensors.air]
kind = "lm75"
bus = {bus}
addr = 0x48
[[interlock]]
drives = "pump"
value = 1
requires = [
    {{ line = "door", value = 0 }},
    {{ line = "lid", value = 0 }},
    {{ sensor = "air", max = 40 }},
]
max_age_ms = 200
check_ms = 50
"""

UNHURRIED = PolicyConfig("all", {"any": True}, rate={"gpio.*": "100000/s"})

SETTLED_S = 1.0
"""Seconds after which an open door has stopped the pump, on a machine with much to do: twenty periods."""


class Outside:
    """The cell as a person at it sees it."""

    def __init__(self, cell, lids, bus) -> None:
        self.cell, self.lids, self._bus = cell, lids, bus

    def air(self, celsius) -> None:
        """Warm the thermometer: its register holds half degrees in the upper nine bits, high byte first on the wire."""
        word = int(celsius * 2) << 7
        with SMBus(self._bus) as smbus:
            smbus.write_word_data(0x48, 0, (word & 0xFF) << 8 | word >> 8)

    @property
    def pumping(self):
        return self.cell.value("pump") == 1


@pytest.fixture
def outside():
    bus = stub_bus()
    with gpio_sim("cell", ["pump", "door", "lamp"]) as cell, gpio_sim("lids", ["", "lid"]) as lids:
        made = Outside(cell, lids, bus)
        for chip, line in ((cell, "door"), (lids, "lid")):
            chip.pull(line, 0)
        made.air(20)
        yield made


@pytest.fixture(params=["inline", "thread"])
def profile(request, tmp_path, outside):
    path = tmp_path / "cell.toml"
    path.write_text(PROFILE.format(more="blocking = true" if request.param == "thread" else "", bus=outside._bus))
    return str(path)


OPENS = {
    "a line of the same chip": (lambda cell: cell.cell.pull("door", 1), lambda cell: cell.cell.pull("door", 0)),
    "a line of another chip": (lambda cell: cell.lids.pull("lid", 1), lambda cell: cell.lids.pull("lid", 0)),
    "a sensor": (lambda cell: cell.air(50), lambda cell: cell.air(20)),
}


@pytest.mark.parametrize("what", OPENS)
async def test_a_line_of_the_kernels_is_driven_only_while_what_it_requires_holds(outside, profile, what):
    opens, closes = OPENS[what]
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        for _ in range(3):
            opens(outside)
            with pytest.raises(InterlockOpen):
                await session.run("gpio.set", line="pump", value=1)
            assert not outside.pumping
            closes(outside)
            await session.run("gpio.set", line="pump", value=1)
            assert outside.pumping
            opens(outside)
            await passes(lambda: not outside.pumping)
        closes(outside)
        # What it shows is what was read last, and nothing asks for a reading of another chip or a sensor here.
        while (shown := (await session.run("hw.board"))["interlocks"][0])["open"]:
            pass
        assert not shown["driven"]


async def test_a_sensor_whose_adapter_refuses_it_stops_the_line(outside, profile):
    """The kernel's driver takes the address for itself: hearth may no longer read there."""
    from support.i2c_stub import kernel_driver

    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        await session.run("gpio.set", line="pump", value=1)
        with kernel_driver(outside._bus, 0x48, "lm75"):
            await passes(lambda: not outside.pumping)
            with pytest.raises(InterlockOpen, match="air counts as open"):
                await session.run("gpio.set", line="pump", value=1)


async def test_an_observer_of_sysfs_sees_no_pump_behind_an_open_door_in_random_writes(outside, profile):
    dice = random.Random(7)
    seen = {"open": 0, "closed": 0, "violations": 0, "writes": 0}
    state, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.is_set():
            was_open = state.is_set()
            level = outside.pumping
            if was_open and state.is_set():
                seen["open"] += 1
                seen["violations"] += level
            else:
                seen["closed"] += level

    async def people() -> None:
        for opens, closes in OPENS.values():
            await trio.sleep(dice.random())
            opens(outside)
            await trio.sleep(SETTLED_S)
            looks = seen["open"]
            state.set()
            await trio.sleep(0.5)
            await passes(lambda before=looks: seen["open"] > before + 100)
            state.clear()
            closes(outside)
        await passes(lambda: min(seen["closed"], seen["writes"]) > 100)
        writing.cancel()

    async def write(session) -> None:
        while True:
            steps = [
                step("gpio.pulse", line="pump", value=dice.getrandbits(1), duration_ms=1)
                if dice.random() < 0.1
                else step("gpio.set", line=dice.choice(["pump", "pump", "lamp"]), value=dice.getrandbits(1))
                for _ in range(dice.randint(1, 16))
            ]
            seen["writes"] += len(steps)
            try:
                task = await session.submit("x", steps, abort_on_step_failure=False, rollback_on_failure=True)
            except InterlockOpen:
                await trio.sleep(0.001)
                continue
            await task.wait()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        async with (
            hearth.open_runtime(board=profile, config=Config(policy=(UNHURRIED,))) as runtime,
            runtime.open_session() as one,
            runtime.open_session() as other,
            trio.open_nursery() as nursery,
        ):
            with trio.CancelScope() as writing:
                async with trio.open_nursery() as writers:
                    nursery.start_soon(people)
                    writers.start_soon(write, one)
                    writers.start_soon(write, other)
    finally:
        ended.set()
        watcher.join()
    assert seen["violations"] == 0
    assert seen["open"] > 100
    assert seen["closed"] > 100
    assert seen["writes"] > 100
