"""An adapter that is pulled out while it is open, and comes back: noticed at once, let go at once, opened again."""

import os
import time

import pytest
import trio
import trio.testing
from support.mcp2221 import ADAPTER, Mcp2221, Mcp2221Process
from support.mcp2221_chip import Memory
from support.waiting import passes

import hearth
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.registers import Read, Write
from hearth.errors import DeviceError

MEMORY = 0x50
PROFILE = f"""
name = "cell"
description = "one adapter of the kernel's"
[[i2c]]
bus = 1
driver = "i2c-dev"
adapter = "{ADAPTER}"
"""


@pytest.fixture
def adapter():
    with Mcp2221({MEMORY: Memory()}) as adapter:
        yield adapter


@pytest.fixture
def driver(adapter):
    driver = LinuxI2c(1, adapter=ADAPTER)
    driver.open()
    yield driver
    driver.close()


def gone(path):
    return not os.path.exists(path)


async def unplugged(adapter):
    """Pull it out, and wait until nobody can open it any more; the kernel is not done with it while it is held open."""
    path = f"/dev/i2c-{adapter.bus}"
    adapter.begin_unplug()
    with trio.fail_after(60):
        await passes(lambda: gone(path))


async def test_an_operation_on_an_adapter_that_is_gone_says_so_at_once_without_effect(adapter, driver):
    await unplugged(adapter)
    begun = time.monotonic()
    for operation in (lambda: driver.transfer(MEMORY, [Read(1)]), driver.scan):
        with pytest.raises(DeviceError, match="is gone") as caught:
            operation()
        assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "ENODEV")
    # The kernel's driver would have waited seconds for an answer.
    assert time.monotonic() - begun < 2
    driver.close()
    adapter.wait_unplugged()


async def test_the_pump_raises_when_the_adapter_goes_though_it_is_not_in_use(adapter, driver):
    path = driver.describe()["path"]
    async with trio.open_nursery() as nursery:

        async def pump():
            with pytest.raises(DeviceError, match="is gone") as caught:
                await driver.pump()
            assert caught.value.data["path"] == path

        nursery.start_soon(pump)
        await trio.testing.wait_all_tasks_blocked()
        adapter.begin_unplug()
    driver.close()
    await trio.to_thread.run_sync(adapter.wait_unplugged)


async def test_an_operation_that_finds_the_adapter_gone_wakes_the_pump(adapter, driver, monkeypatch):
    """As where the node in /dev is not the kernel's own and stays: nothing tells, so the operation's word has to do."""
    monkeypatch.setattr("hearth.drivers.linux.node.watch_file", lambda _path: None)
    driver.close()
    driver.open()
    async with trio.open_nursery() as nursery:

        async def pump():
            with pytest.raises(DeviceError, match="is gone"):
                await driver.pump()

        nursery.start_soon(pump)
        await unplugged(adapter)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(DeviceError):
            await trio.to_thread.run_sync(driver.transfer, MEMORY, [Read(1)])
    driver.close()
    adapter.wait_unplugged()


async def test_an_exchange_that_the_adapter_leaves_in_the_middle_has_an_unknown_effect(adapter, driver):
    adapter.chip.wedge(after=3)
    async with trio.open_nursery() as nursery:

        async def write():
            with pytest.raises(DeviceError, match="is gone") as caught:
                await trio.to_thread.run_sync(driver.transfer, MEMORY, [Write(b"\x10abcdef")])
            assert (caught.value.data["effect"], caught.value.data["errno"]) == ("unknown", "ENODEV")

        nursery.start_soon(write)
        await trio.to_thread.run_sync(adapter.chip.wait_held)
        adapter.begin_unplug()
    driver.close()
    adapter.chip.release()
    await trio.to_thread.run_sync(adapter.wait_unplugged)
    assert adapter.chip.log[-1].written.startswith(b"\x10ab")


async def test_a_change_of_the_nodes_permissions_is_not_taken_for_its_end(adapter, driver):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.pump)
        await trio.testing.wait_all_tasks_blocked()
        os.chmod(driver.describe()["path"], 0o666)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert driver.transfer(MEMORY, [Read(1)]) == b"\0"
        nursery.cancel_scope.cancel()


async def test_the_pump_ends_when_the_driver_is_closed(adapter, driver):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.pump)
        await trio.testing.wait_all_tasks_blocked()
        driver.close()
    await driver.pump()


async def test_an_adapter_that_returns_is_found_by_its_name_whatever_its_number(adapter, driver):
    await unplugged(adapter)
    with Mcp2221() as squatter:
        # The old number is taken for as long as somebody has the old adapter open.
        assert squatter.bus != adapter.bus
        driver.close()
        adapter.wait_unplugged()
    with pytest.raises(DeviceError, match=f"no adapter is called {ADAPTER!r}"):
        driver.open()
    adapter.replug()
    driver.open()
    assert driver.describe()["path"] == f"/dev/i2c-{adapter.bus}"
    assert driver.transfer(MEMORY, [Read(1)]) == b"\0"
    driver.close()


async def test_an_unplugged_adapter_leaves_no_descriptor_behind(adapter, driver):
    driver.close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        driver.open()
        driver.transfer(MEMORY, [Read(1)])
        await unplugged(adapter)
        driver.close()
        adapter.wait_unplugged()
        adapter.replug()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_the_bus_lets_go_of_an_adapter_that_goes_and_is_reopened_when_it_returns(tmp_path):
    profile = tmp_path / "cell.toml"
    profile.write_text(PROFILE)
    with trio.fail_after(60), Mcp2221Process([MEMORY]) as adapter:
        async with hearth.open_runtime(board=str(profile)) as runtime, runtime.open_session() as session:
            await session.run("i2c.write", bus=1, addr=MEMORY, reg=0x10, data="YWJj")
            # Done only when nobody holds it: nobody uses the bus, and it is let go all the same.
            await trio.to_thread.run_sync(adapter.unplug)
            await passes(lambda: runtime.health()["buses"]["i2c:1"]["state"] == "down")
            with pytest.raises(DeviceError, match="bus i2c:1 is down") as caught:
                await session.run("i2c.read", bus=1, addr=MEMORY, reg=0x10, len=3)
            assert caught.value.data["effect"] == "none"
            await trio.to_thread.run_sync(adapter.replug)
            await passes(lambda: runtime.health()["buses"]["i2c:1"]["state"] == "ready")
            read = await session.run("i2c.read", bus=1, addr=MEMORY, reg=0x10, len=3)
            assert read["data"] == "YWJj"


async def test_an_idle_bus_wakes_no_task(adapter, driver):
    class Counter(trio.abc.Instrument):
        steps = 0

        def before_task_step(self, _task):
            self.steps += 1

    counter = Counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.pump)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(counter)
        await trio.sleep(2)
        trio.lowlevel.remove_instrument(counter)
        nursery.cancel_scope.cancel()
    # Its own sleep's end, and the steps around it.
    assert counter.steps <= 2
