"""The halt on the kernel's own chips: an e-stop input, the stop sequence, a chip that is unplugged, the heartbeat.

The observer reads the levels in sysfs, below the system calls that hearth makes.
"""

import pytest
import trio
from support.gpio_sim import gpio_sim
from support.waiting import passes

import hearth
from hearth import step
from hearth.errors import Halted

PROFILE = """
name = "cell"
description = "two chips of the kernel's"
[[gpio]]
label = "cell"
driver = "gpiod"
names = ["estop", "motor", "brake", "latch", "alive"]
{more}
[gpio.lines.estop]
direction = "input"
[gpio.lines.motor]
safe = 0
[gpio.lines.brake]
safe = 1
[gpio.lines.latch]
safe = 0
hold = "keep"
[gpio.lines.alive]
safe = 0
[[gpio]]
label = "pumps"
driver = "gpiod"
names = ["pump"]
[gpio.lines.pump]
safe = 0
[halt]
inputs = ["estop"]
heartbeat = {{ line = "alive", hz = 20 }}
[[halt.sequence]]
line = "brake"
value = 1
[[halt.sequence]]
line = "motor"
value = 0
after_ms = 100
"""


@pytest.fixture
def chips():
    with gpio_sim("cell", ["estop", "motor", "brake", "latch", "alive"]) as cell, gpio_sim("pumps", ["pump"]) as pumps:
        cell.pull("estop", 0)
        yield cell, pumps


@pytest.fixture(params=["inline", "thread"])
def profile(request, tmp_path):
    path = tmp_path / "cell.toml"
    path.write_text(PROFILE.format(more="blocking = true" if request.param == "thread" else ""))
    return str(path)


async def test_an_e_stop_input_stops_every_chip_and_has_to_be_clear_before_a_reset(chips, profile):
    cell, pumps = chips
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        for line, value in (("motor", 1), ("brake", 0), ("latch", 1)):
            await session.gpio.set(line, value)
        await session.gpio.set("pump", 1, chip="pumps")
        pulse = await session.submit("x", [step("gpio.pulse", line="latch", value=0, duration_ms=30_000)])
        await passes(lambda: cell.value("latch") == 0)
        cell.pull("estop", 1)
        await passes(lambda: pumps.value("pump") == 0)
        await passes(lambda: [cell.value(line) for line in ("motor", "brake", "latch")] == [0, 1, 0])
        assert (await pulse.wait()).status == "CANCELLED"
        status = await session.halt_status()
        assert (status.by, status.inputs) == ("input estop", {"estop": "is at its stop level"})
        with pytest.raises(Halted):
            await session.gpio.set("motor", 1)
        await passes(lambda: not runtime.health()["halt"]["stopping"])
        with pytest.raises(Halted, match="estop: is at its stop level"):
            await session.reset_halt()
        cell.pull("estop", 0)
        await session.reset_halt()
        assert [cell.value(line) for line in ("motor", "brake", "latch")] == [0, 1, 0], "a reset starts nothing"
        await session.gpio.set("motor", 1)
        assert cell.value("motor") == 1


async def test_a_chip_with_an_e_stop_that_is_unplugged_halts(chips, profile):
    cell, pumps = chips
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        await session.gpio.set("pump", 1, chip="pumps")
        cell.unplug()
        await passes(lambda: pumps.value("pump") == 0)
        assert "input estop cannot be read" in runtime.health()["halt"]["reason"]
        cell.plug()


async def test_the_heartbeat_toggles_on_the_wire_until_a_halt_and_no_session_drives_it(chips, profile):
    cell, _ = chips
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        for level in (1, 0, 1):
            await passes(lambda level=level: cell.value("alive") == level)
        with pytest.raises(hearth.PermissionDenied, match="heartbeat"):
            await session.gpio.set("alive", 1)
        await session.halt()
        await passes(lambda: cell.value("alive") == 0)
        for _ in range(20):
            await trio.sleep(0.01)
            assert cell.value("alive") == 0
        assert runtime.health()["halt"]["halted"]
