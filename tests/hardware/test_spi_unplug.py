"""An SPI controller that is pulled out while its device is open, and comes back: noticed at once, and opened again."""

import os

import pytest
import trio
import trio.testing
from support.virtio_spi import DEAD, HEADER, LOOPBACK, Header, Wire, plug, spidev, unplug
from support.waiting import passes

import hearth
from hearth.drivers.spi.linux import LinuxSpi
from hearth.errors import DeviceError


@pytest.fixture(autouse=True)
def plugged():
    yield
    Wire().release()
    if not any(name.startswith("virtio") for name in os.listdir("/sys/bus/virtio/devices")):
        plug()
    spidev(LOOPBACK)


@pytest.fixture
def driver():
    driver = LinuxSpi("bench", spidev(LOOPBACK))
    driver.open()
    yield driver
    driver.close()


def pulled_out(path):
    unplug()
    assert not os.path.exists(path)


async def test_a_transfer_to_a_device_that_is_gone_says_so_without_effect(driver):
    pulled_out(driver.path)
    with pytest.raises(DeviceError, match=r"spidev\d\.0 is gone; it is opened again when it returns") as caught:
        driver.transfer(b"x")
    assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "ENODEV")


async def test_the_pump_raises_when_the_device_goes_though_it_is_not_in_use(driver):
    async with trio.open_nursery() as nursery:

        async def pump():
            with pytest.raises(DeviceError, match="is gone") as caught:
                await driver.pump()
            assert caught.value.data["effect"] == "none"

        nursery.start_soon(pump)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(pulled_out, driver.path)


async def test_a_transfer_that_finds_the_device_gone_wakes_the_pump(driver, monkeypatch):
    """As where the node in /dev is not the kernel's own and stays: the transfer's report has to do."""
    monkeypatch.setattr("hearth.drivers.linux.node.watch_file", lambda _path: None)
    driver.close()
    driver.open()
    async with trio.open_nursery() as nursery:

        async def pump():
            with pytest.raises(DeviceError, match="is gone"):
                await driver.pump()

        nursery.start_soon(pump)
        await trio.testing.wait_all_tasks_blocked()
        pulled_out(driver.path)
        with pytest.raises(DeviceError):
            await trio.to_thread.run_sync(driver.transfer, b"x")


@pytest.mark.parametrize("chip_select", [HEADER, DEAD], ids=["it ends", "it fails"])
async def test_a_controller_that_goes_during_a_transfer_waits_for_its_end_and_takes_no_other(chip_select):
    driver, wire, ends = LinuxSpi("bench", spidev(chip_select)), Wire(), []
    first = spidev(LOOPBACK)
    driver.open()
    wire.hold()
    async with trio.open_nursery() as nursery:

        async def transfer():
            try:
                ends.append(await trio.to_thread.run_sync(driver.transfer, bytes(32)))
            except DeviceError as error:
                ends.append(error)

        nursery.start_soon(transfer)
        await trio.to_thread.run_sync(wire.wait_held)
        nursery.start_soon(trio.to_thread.run_sync, unplug)
        # The kernel takes the devices away one by one, and stands at the one whose transfer stands.
        await passes(lambda: not os.path.exists(first))
        assert os.path.basename(driver.path) in os.listdir("/sys/class/spidev")
        assert ends == []
        wire.release()
    (end,) = ends
    if chip_select == HEADER:
        assert Header.read(end).chip_select == HEADER
    else:
        # As it happens to see the controller gone already, or not yet.
        assert (end.data["effect"], end.data["errno"] in ("EIO", "ENODEV")) == ("unknown", True)
    with pytest.raises(DeviceError, match="is gone") as caught:
        driver.transfer(b"x")
    assert caught.value.data["effect"] == "none"
    driver.close()


async def test_the_pump_ends_when_the_driver_is_closed(driver):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.pump)
        await trio.testing.wait_all_tasks_blocked()
        driver.close()


async def test_a_bus_goes_down_with_its_controller_and_is_opened_again_when_that_returns(tmp_path):
    profile = tmp_path / "cell.toml"
    path = spidev(LOOPBACK)
    profile.write_text(
        f'name = "cell"\ndescription = "one device"\n[[spi]]\nname = "LOOP"\ndriver = "spidev"\npath = "{path}"\n'
    )
    async with hearth.open_runtime(board=str(profile)) as runtime, runtime.open_session() as session:

        def state():
            return runtime.health()["buses"]["spi:LOOP"]["state"]

        assert (await session.run("spi.transfer", device="LOOP", text="a"))["text"] == "a"
        await trio.to_thread.run_sync(pulled_out, path)
        await passes(lambda: state() == "down")
        with pytest.raises(DeviceError, match="is down"):
            await session.run("spi.transfer", device="LOOP", text="b")
        await trio.to_thread.run_sync(plug)
        await passes(lambda: state() == "ready")
        assert (await session.run("spi.transfer", device="LOOP", text="c"))["text"] == "c"
