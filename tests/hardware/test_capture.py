"""Buffered capture with the kernel's own IIO devices and triggers: what comes, and what is left behind."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import smbus2
import trio
from support.hearthd import Hearthd, eventually
from support.i2c_stub import kernel_driver, stub_bus
from support.waiting import passes

import hearth
from hearth.drivers.boards import load_profile
from hearth.drivers.sandbox.plan import devices_of
from hearth.errors import DeviceError, InvalidParams, ResourceBusy

CONFIGFS = Path("/sys/kernel/config/iio")
IIO = Path("/sys/bus/iio/devices")
CONVERTER = 0x50
PROFILE = 'name = "cell"\ndescription = "the kernel\'s sensors"\n[discover]\nsensors = true\n'
VOLTAGE, DIFFERENCE, ACCEL = "iio/daq/voltage0", "iio/daq/voltage1-voltage2", "iio/daq/accel_x"
DUMMY = {VOLTAGE: (7 + 7) * 1.333e-6, DIFFERENCE: -33 * 1.344e-9, ACCEL: None}
"""What the kernel's dummy captures: always the same counts (drivers/iio/dummy/iio_simple_dummy_buffer.c)."""


def named(pattern, name):
    (found,) = [at for at in IIO.glob(pattern) if (at / "name").read_text().strip() == name]
    return found.resolve()


@contextmanager
def hrtimer(name, rate_hz=100):
    """A trigger that fires by a timer of the kernel."""
    at = CONFIGFS / "triggers/hrtimer" / name
    at.mkdir()
    try:
        trigger = named("trigger*", name)
        (trigger / "sampling_frequency").write_text(str(rate_hz))
        yield trigger
    finally:
        at.rmdir()


@contextmanager
def dummy(name="daq", trigger=None):
    """A converter that the kernel makes up."""
    at = CONFIGFS / "devices/dummy" / name
    at.mkdir()
    device = named("iio:device*", name)
    try:
        if trigger is not None:
            (device / "trigger/current_trigger").write_text(trigger)
        yield device
    finally:
        if at.exists():
            if (device / "trigger").exists():
                (device / "buffer/enable").write_text("0")
                (device / "trigger/current_trigger").write_text("\n")
            at.rmdir()


@pytest.fixture
def daq():
    """A converter with a timer of 100 Hz."""
    with hrtimer("t100"), dummy(trigger="t100") as device:
        yield device


@contextmanager
def converter():
    """An ADS1015 on the stub that samples when it is told: the device, a register's setter, and the trigger."""
    add = IIO / "iio_sysfs_trigger/add_trigger"
    add.write_text("7")
    try:
        with smbus2.SMBus(stub_bus()) as bus, kernel_driver(stub_bus(), CONVERTER, "ads1015") as at:
            (device,) = at.glob("iio:device*")
            (device / "trigger/current_trigger").write_text("sysfstrig7")
            now = named("trigger*", "sysfstrig7") / "trigger_now"

            def put(raw):
                bus.write_word_data(CONVERTER, 0, (raw << 4 & 0xFF) << 8 | raw >> 4, force=True)
                now.write_text("1")

            yield device, put
            (device / "buffer/enable").write_text("0")
            (device / "trigger/current_trigger").write_text("\n")
    finally:
        (add.parent / "remove_trigger").write_text("7")


def settings(device):
    """All that a capture may change."""
    paths = [*device.glob("scan_elements/*_en"), *device.glob("buffer/*"), device / "trigger/current_trigger"]
    kept = [path for path in paths if path.name in {"length", "enable", "watermark", "current_trigger"}]
    return {str(path): path.read_text() for path in [*kept, *device.glob("scan_elements/*_en")]}


def capturing(device):
    return (device / "buffer/enable").read_text().strip() == "1"


@contextmanager
def opened(device):
    """Another program that captures."""
    fd = os.open(f"/dev/{device.name}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "cell.toml"
    path.write_text(PROFILE)
    return path


@pytest.fixture
async def session(profile):
    with trio.fail_after(120):
        async with hearth.open_runtime(board=str(profile)) as runtime, runtime.open_session() as session:
            yield session


def told(caught):
    data = caught.value.data
    return data["errno"], data["effect"]


async def capture(session, *sensors, samples=10, **more):
    return await session.run("hw.sensor.capture", sensors=list(sensors), samples=samples, **more)


# --- samples ----------------------------------------------------------------------------------------------------------


async def test_samples_of_all_channels_come_in_their_units_at_the_triggers_rate(session, daq):
    before = settings(daq)
    taken = await capture(session, VOLTAGE, DIFFERENCE, ACCEL, samples=20, timestamps=True)
    assert (taken["kernel"], taken["rate_hz"], taken["timed_out"]) == ("daq", 100, False)
    voltage, difference, accel = taken["sensors"]
    assert (voltage["sensor"], voltage["unit"], len(voltage["samples"])) == (VOLTAGE, "volt", 20)
    assert voltage["samples"] == pytest.approx([DUMMY[VOLTAGE]] * 20)
    assert difference["samples"] == pytest.approx([DUMMY[DIFFERENCE]] * 20)
    entry = {one["sensor"]: one for one in (await session.run("hw.sensor.list"))["sensors"]}[ACCEL]
    assert accel["samples"] == pytest.approx([(344 + entry.get("offset", 0)) * entry["scale"]] * 20)
    assert entry["capture"] is True
    times = taken["timestamps_us"]
    assert times == sorted(set(times))
    assert times[-1] - times[0] >= 19 * 10_000 * 0.9
    assert settings(daq) == before


async def test_a_part_of_the_channels_in_another_order_leaves_the_others_out(session, daq):
    (daq / "scan_elements/in_voltage3-voltage4_en").write_text("1")
    before = settings(daq)
    taken = await capture(session, ACCEL, DIFFERENCE, samples=3)
    assert [one["sensor"] for one in taken["sensors"]] == [ACCEL, DIFFERENCE]
    assert taken["sensors"][1]["samples"] == pytest.approx([DUMMY[DIFFERENCE]] * 3)
    assert "timestamps_us" not in taken
    assert settings(daq) == before


async def test_each_sample_has_the_registers_value_and_sign_when_the_trigger_fires(session):
    with converter() as (device, put):
        name, counts = f"iio/ads1015-i2c-{stub_bus()}-50/voltage1", [1, 0x7FF, 0xFFF, 0x800]
        entry = {one["sensor"]: one for one in (await session.run("hw.sensor.list"))["sensors"]}[name]
        taken = []
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _():
                taken.append(await capture(session, name, samples=4))

            await passes(lambda: capturing(device))
            for raw in counts:
                put(raw)
                await trio.sleep(0.02)  # the kernel takes the sample in a thread, after the write has returned
        [answer] = taken
        signed = [1, 0x7FF, -1, -0x800]
        assert answer["sensors"][0]["samples"] == pytest.approx([raw * entry["scale"] for raw in signed])
        assert "rate_hz" not in answer


async def test_samples_that_came_before_the_timeout_are_there(session):
    with converter() as (device, put):
        taken = []
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _():
                name = f"iio/ads1015-i2c-{stub_bus()}-50/voltage1"
                taken.append(await capture(session, name, samples=5, timeout_ms=1_000))

            await passes(lambda: capturing(device))
            put(100)
        [answer] = taken
        assert (len(answer["sensors"][0]["samples"]), answer["timed_out"]) == (1, True)
        assert not capturing(device)


async def test_a_rate_that_is_asked_for_is_the_triggers_for_the_capture(session, daq):
    trigger = named("trigger*", "t100")
    taken = await capture(session, VOLTAGE, samples=30, rate_hz=50.5, timestamps=True)
    assert taken["rate_hz"] == 50.5
    times = taken["timestamps_us"]
    # A sample may come late on a busy machine, and never early.
    assert times[-1] - times[0] >= 29 / 50.5 * 1e6 * 0.9
    assert float((trigger / "sampling_frequency").read_text()) == 100


# --- refusals ---------------------------------------------------------------------------------------------------------


async def test_a_device_without_a_trigger_is_refused_with_the_cure(session):
    with dummy() as device:
        before = settings(device)
        with pytest.raises(DeviceError, match=r"it has no trigger.*\[\[iio\]\] in the board profile") as caught:
            await capture(session, VOLTAGE)
        assert told(caught) == ("EINVAL", "none")
        assert settings(device) == before


async def test_a_rate_cannot_be_set_where_a_program_fires_the_trigger(session):
    with converter(), pytest.raises(DeviceError, match="a program fires its trigger 'sysfstrig7'; leave `rate_hz` out"):
        await capture(session, f"iio/ads1015-i2c-{stub_bus()}-50/voltage1", rate_hz=10)


async def test_a_device_that_another_program_captures_from_is_busy_and_left_alone(session, daq):
    with opened(daq):
        (daq / "scan_elements/in_accel_x_en").write_text("1")
        (daq / "buffer/enable").write_text("1")
        before = settings(daq)
        with pytest.raises(ResourceBusy, match="another program or session captures from it"):
            await capture(session, VOLTAGE)
        assert settings(daq) == before
        (daq / "buffer/enable").write_text("0")
    assert not (await capture(session, VOLTAGE, samples=2))["timed_out"]


async def test_the_rate_of_a_trigger_that_another_device_captures_by_stays(session, daq):
    with dummy("other", trigger="t100") as other, opened(other):
        (other / "scan_elements/in_voltage0_en").write_text("1")
        (other / "buffer/enable").write_text("1")
        with pytest.raises(ResourceBusy, match=f"{other.name} captures by the same trigger 't100'"):
            await capture(session, VOLTAGE, rate_hz=50)
        assert (await capture(session, VOLTAGE, samples=2))["rate_hz"] == 100


async def test_captures_by_one_trigger_at_once_leave_its_rate_as_it_was(session, daq):
    trigger = named("trigger*", "t100")
    with dummy("other", trigger="t100"):

        async def some(name, rate_hz):
            for _ in range(15):
                try:
                    taken = await capture(session, f"iio/{name}/voltage0", samples=1, rate_hz=rate_hz)
                except ResourceBusy as error:
                    refused.append(str(error))
                else:
                    assert taken["rate_hz"] == rate_hz
                    done.add(name)

        done, refused = set(), []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(some, "daq", 400)
            nursery.start_soon(some, "other", 250)
        assert done
        assert all("same trigger" in text for text in refused)
        assert float((trigger / "sampling_frequency").read_text()) == 100


async def test_sensors_of_two_devices_are_refused(session, daq):
    with dummy("other"), pytest.raises(InvalidParams, match="is of another device than 'iio/daq/voltage0'"):
        await capture(session, VOLTAGE, "iio/other/voltage0")


# --- ends -------------------------------------------------------------------------------------------------------------


async def test_a_cancelled_capture_leaves_the_device_as_it_was(session):
    with converter() as (device, _put):
        before = settings(device)
        asked = hearth.step(
            "hw.sensor.capture", sensors=[f"iio/ads1015-i2c-{stub_bus()}-50/voltage1"], samples=9, timeout_ms=60_000
        )
        task = await session.submit("capture", [asked])
        await passes(lambda: capturing(device))
        with trio.fail_after(10):
            await task.cancel()
            assert (await task.wait()).status == "CANCELLED"
        assert settings(device) == before


async def test_a_device_that_is_unplugged_during_a_capture_ends_it_with_an_error(session):
    with ExitStack() as stack:
        stack.enter_context(hrtimer("t1", 1))
        device = stack.enter_context(dummy(trigger="t1"))
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _():
                with pytest.raises(DeviceError, match="has gone") as caught, trio.fail_after(20):
                    await capture(session, VOLTAGE, samples=1_000, timeout_ms=60_000)
                assert told(caught) == ("ENODEV", "none")

            await passes(lambda: capturing(device))
            await trio.to_thread.run_sync((CONFIGFS / "devices/dummy/daq").rmdir)
    with hrtimer("t100"), dummy(trigger="t100"):
        assert not (await capture(session, VOLTAGE, samples=2))["timed_out"]


async def test_other_sensors_are_read_while_as_many_captures_run_as_may(session):
    with hrtimer("t1", 1), ExitStack() as stack:
        devices = [stack.enter_context(dummy(name, "t1")) for name in ("one", "two", "three")]
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(lambda name=name: capture(session, f"iio/{name}/voltage0", samples=3))
            await passes(lambda: all(map(capturing, devices[:2])))
            with pytest.raises(ResourceBusy, match="2 captures are running"):
                await capture(session, "iio/three/voltage0")
            for _ in range(20):
                assert (await session.run("hw.sensor.read", sensor="iio/three/steps"))["unit"] == "count"
            assert all(map(capturing, devices[:2]))


# --- the daemon -------------------------------------------------------------------------------------------------------


def test_a_daemon_that_is_killed_leaves_a_buffer_that_the_next_one_captures_from(tmp_path, profile, daq):
    daemon = Hearthd(tmp_path, f'[board]\nprofile = "{profile}"\n')
    try:
        peer = daemon.start().peer()
        asked = {"sensors": [VOLTAGE], "samples": 9_000, "timeout_ms": 60_000}
        peer.submit(peer.open(), ("hw.sensor.capture", asked))
        # A kill while the kernel is still starting the trigger's thread would undo the start.
        eventually(lambda: int((daq / "buffer/data_available").read_text()), "the first sample")
        daemon.kill()
        assert capturing(daq)
        peer = daemon.start().peer()
        taken = peer.run(peer.open(), "hw.sensor.capture", sensors=[VOLTAGE], samples=5)["result"]
        assert taken["sensors"][0]["samples"] == pytest.approx([DUMMY[VOLTAGE]] * 5)
        assert not capturing(daq)
        assert (daq / "buffer/watermark").read_text().strip() == "1"
        assert daemon.stop() == 0
    finally:
        daemon.end()


def test_a_daemon_that_stops_ends_its_capture(tmp_path, profile, daq):
    daemon = Hearthd(tmp_path, f'[board]\nprofile = "{profile}"\n')
    before = settings(daq)
    try:
        peer = daemon.start().peer()
        asked = {"sensors": [VOLTAGE], "samples": 9_000, "timeout_ms": 60_000}
        peer.submit(peer.open(), ("hw.sensor.capture", asked))
        eventually(lambda: capturing(daq), "the capture")
        assert daemon.stop() == 0
        assert settings(daq) == before
    finally:
        daemon.end()


TABLE = '[[iio]]\nlabel = "daq"\ndriver = "iio"\ntrigger = "t100"\n'


async def test_the_trigger_of_the_profile_is_set_for_the_capture(profile):
    profile.write_text(PROFILE + TABLE)
    async with hearth.open_runtime(board=str(profile)) as runtime, runtime.open_session() as session:
        with dummy() as device:
            before = settings(device)
            with pytest.raises(DeviceError, match="there is no trigger 't100' now"):
                await capture(session, VOLTAGE)
            with hrtimer("t100"):
                assert (await capture(session, VOLTAGE, samples=3))["rate_hz"] == 100
            assert settings(device) == before


def test_the_sandbox_grants_the_node_and_the_settings_of_a_device_in_the_profile(profile, daq):
    profile.write_text(PROFILE + TABLE)
    paths = [path for path, _access, _why in devices_of(load_profile(str(profile)), None).grants]
    assert {Path(f"/dev/{daq.name}"), daq, named("trigger*", "t100")} <= set(paths)
