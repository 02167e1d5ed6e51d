"""The kernel's GPIO driver as far as it can be tested without the kernel's chips; the rest is in tests/hardware."""

import os
import struct
import time

import pytest
import trio
import trio.testing

from hearth.drivers.base import Style
from hearth.drivers.gpio.driver import Watch
from hearth.drivers.gpio.linux import EdgePump, Edges, LinuxGpio
from hearth.drivers.gpio.linux_chips import cannot_open, style_of, survey
from hearth.drivers.gpio.spec import LineSpec
from hearth.drivers.linux.device_users import shared_device
from hearth.errors import DeviceError

# --- what a chip hangs on ---------------------------------------------------------------------------------------------


@pytest.fixture
def make_sys(tmp_path):
    """A tree like /sys: `make(("pci", "pcieport"), ("platform", None))` is a chip below devices of these buses."""

    def make(*parents, chip="gpiochip0"):
        device = tmp_path / "devices"
        for number, (bus, driver) in enumerate(parents):
            device = device / f"device{number}"
            device.mkdir(parents=True)
            if bus is not None:
                (tmp_path / "bus" / bus).mkdir(parents=True, exist_ok=True)
                (device / "subsystem").symlink_to(tmp_path / "bus" / bus)
            if driver:
                (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
                (device / "driver").symlink_to(tmp_path / "drivers" / driver)
        node = device / chip
        (tmp_path / "bus/gpio/devices").mkdir(parents=True, exist_ok=True)
        node.mkdir(parents=True)
        (node / "subsystem").symlink_to(tmp_path / "bus/gpio")
        (tmp_path / "bus/gpio/devices" / chip).symlink_to(node)
        return tmp_path

    return make


@pytest.mark.parametrize(
    "parents",
    [
        [("platform", "pinctrl-bcm2835")],
        [("platform", "gpio-sim")],
        [("amba", "pl061_gpio")],
        [(None, None), ("platform", "brcm-pcie"), (None, None), ("pci", "pcieport"), ("pci", "rp1"), ("platform", "")],
    ],
    ids=["Raspberry Pi 4", "simulated", "primecell", "Raspberry Pi 5"],
)
def test_a_chip_that_is_memory_mapped_all_the_way_is_asked_in_place(make_sys, parents):
    assert style_of("gpiochip0", make_sys(*parents)) is Style.INLINE


@pytest.mark.parametrize(
    "parents",
    [
        [("platform", "i2c-bcm2835"), (None, None), ("i2c", "pca953x")],
        [("platform", "spi-bcm2835"), ("spi", "mcp23s08")],
        [("pci", "xhci_hcd"), ("usb", "usb"), ("usb", "usbhid"), ("hid", "mcp2221")],
        [("i2c", "pmic"), ("platform", "pmic-gpio")],
        [("pci", "virtio-pci"), ("virtio", "gpio_virtio")],
        [("platform", "firmware"), ("platform", "raspberrypi-exp-gpio")],
        [(None, None)],
    ],
    ids=["expander", "spi", "usb", "part of an i2c device", "virtual machine", "firmware mailbox", "unknown"],
)
def test_a_chip_behind_anything_that_may_sleep_is_asked_in_a_thread(make_sys, parents):
    assert style_of("gpiochip0", make_sys(*parents)) is Style.THREAD


def test_a_chip_that_sysfs_does_not_know_is_asked_in_a_thread(make_sys):
    assert style_of("gpiochip7", make_sys(("platform", None))) is Style.THREAD


# --- chips that cannot be used ----------------------------------------------------------------------------------------


def test_a_survey_leaves_out_what_is_no_device(tmp_path):
    (tmp_path / "gpiochip0").write_text("")
    (tmp_path / "gpiochip1").symlink_to(tmp_path / "gone")
    found = survey(tmp_path)
    assert (found.chips, found.refused) == ((), ())


def test_a_missing_chip_is_refused_with_what_to_look_for_and_stays_closed():
    driver = LinuxGpio("no such chip on any machine", [LineSpec(0, "A")])
    with pytest.raises(DeviceError, match=r"no chip has this label; there are: .*Is it plugged in") as caught:
        driver.open()
    assert caught.value.data["effect"] == "none"
    driver.close()
    with pytest.raises(DeviceError, match="not open"):
        driver.set(0, 1)


def test_an_unknown_chip_counts_as_one_that_may_sleep_unless_the_profile_knows_better():
    assert LinuxGpio("no such chip on any machine", []).style is Style.THREAD
    assert LinuxGpio("no such chip on any machine", [], blocking=False).style is Style.INLINE


def test_a_device_that_lets_no_group_in_names_the_rule_that_does(tmp_path):
    node = tmp_path / "gpiochip3"
    node.write_text("")
    node.chmod(0o600)
    error = cannot_open("relays", str(node), 13)
    assert error.data == {"effect": "none", "chip": "relays", "path": str(node), "errno": "EACCES"}
    assert f"no permission to use {node}" in error.message
    assert "(0600) alone: make a group with `sudo groupadd -f gpio`" in error.message
    assert 'the rule SUBSYSTEM=="gpio", KERNEL=="gpiochip*", GROUP="gpio", MODE="0660" in /etc/udev' in error.message


def test_a_device_that_vanished_or_that_the_system_cannot_open_says_so(tmp_path):
    gone = str(tmp_path / "gpiochip3")
    assert "is gone; is it still plugged in?" in cannot_open("relays", gone, 19).message
    assert "is no longer there" in cannot_open("relays", gone, 13).message
    assert "Too many open files" in cannot_open("relays", gone, 24).message


# --- edges ------------------------------------------------------------------------------------------------------------

RISING, FALLING = 1, 2


class Source:
    """A descriptor that delivers what the kernel's line requests do, and the edges read from it."""

    def __init__(self):
        self.fd, self.far = os.pipe2(os.O_NONBLOCK)
        self.edges = Edges()

    def add(self, *events):
        """Each is (seqno, kind) or (seqno, kind, timestamp)."""
        for seqno, kind, *stamp in events:
            os.write(self.far, struct.pack("@QIIII24x", *(stamp or [time.monotonic_ns()]), kind, 5, seqno, seqno))

    def watch(self, edge="both", *, asked="both"):
        watch = Watch(5, edge)
        self.edges.watches = (*self.edges.watches, watch)
        self.edges.asked = asked
        return watch

    def close(self):
        os.close(self.fd)
        os.close(self.far)


@pytest.fixture
def source():
    source = Source()
    yield source
    source.close()


async def take(watch, count):
    with trio.fail_after(60):
        return [await watch.receive() for _ in range(count)]


async def test_records_become_edges_with_the_kernels_time(source):
    watch = source.watch()
    source.add((1, RISING, 100), (2, FALLING, 250))
    source.edges.drain(source.fd)
    edges = await take(watch, 2)
    assert [(edge.line, edge.value, edge.edge, edge.timestamp_ns, edge.seq) for edge in edges] == [
        (5, 1, "rising", 100, 1),
        (5, 0, "falling", 250, 2),
    ]


@pytest.mark.parametrize(
    ("lost", "kind", "rising", "falling"),
    [(1, RISING, 0, 1), (2, RISING, 1, 1), (3, FALLING, 2, 1), (4, FALLING, 2, 2)],
)
async def test_lost_edges_are_shared_out_by_kind_since_they_alternate(source, lost, kind, rising, falling):
    watches = [source.watch(edge) for edge in ("rising", "falling", "both")]
    source.add((1 + lost, kind))
    source.edges.drain(source.fd)
    assert [watch.dropped for watch in watches] == [rising, falling, lost]


async def test_lost_edges_of_the_only_kind_that_was_asked_for_are_all_of_that_kind(source):
    watch = source.watch("rising", asked="rising")
    source.add((1, RISING), (5, RISING))
    source.edges.drain(source.fd)
    assert [edge.seq for edge in await take(watch, 2)] == [1, 5]
    assert watch.dropped == 3


async def test_the_kernels_count_may_wrap_around(source):
    watch = source.watch()
    source.add((0xFFFF_FFFF, RISING))
    source.edges.drain(source.fd)
    before = watch.dropped
    source.add((0, FALLING), (2, FALLING))
    source.edges.drain(source.fd)
    assert watch.dropped - before == 1


async def test_a_read_takes_one_batch_and_says_whether_more_may_be_there(source):
    watch = source.watch()
    source.add(*((n, RISING) for n in range(1, 71)))
    assert source.edges.read(source.fd) is True
    assert source.edges.read(source.fd) is False
    assert source.edges.read(source.fd) is False
    assert [edge.seq for edge in await take(watch, 70)] == list(range(1, 71))


async def test_a_change_of_our_own_is_an_edge_only_if_the_level_changed(source):
    watch = source.watch()
    for before, after in ((0, 1), (1, 1), (1, 0)):
        source.edges.before_change()
        source.edges.after_change(before, after)
    assert [edge.value for edge in await take(watch, 2)] == [1, 0]
    source.edges.end("test")
    with pytest.raises(DeviceError, match="ended: test"):
        await watch.receive()


async def test_an_edge_that_came_while_the_line_was_turned_round_is_not_told_twice(source):
    watch = source.watch()
    source.edges.before_change()
    # It rose by itself after we looked, and before we drove it high.
    source.add((1, RISING))
    source.edges.drain(source.fd)
    source.edges.after_change(0, 1)
    assert [edge.value for edge in await take(watch, 1)] == [1]
    source.edges.after_change(1, 0)
    # The kernel's record of what we did ourselves comes late.
    source.add((2, FALLING, 1))
    source.add((3, RISING))
    source.edges.drain(source.fd)
    source.edges.end("test")
    edges = await take(watch, 2)
    assert [edge.value for edge in edges] == [0, 1]
    assert watch.dropped == 0


# --- the pump ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def chip_fd():
    """Something that hangs up when its other end is closed, as a chip's descriptor does."""
    near, far = os.pipe()
    ends = [near, far]
    yield ends
    for fd in ends:
        os.close(fd)


async def test_a_pump_runs_until_it_is_closed_and_says_that_the_chip_is_not_gone(chip_fd, nursery):
    pump = EdgePump(chip_fd[0])
    answers = []

    async def run():
        answers.append(await pump.run())

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    pump.close()
    pump.close()
    await trio.testing.wait_all_tasks_blocked()
    assert answers == [False]
    assert await pump.run() is False
    pump.ring()


async def test_a_pump_ends_when_the_chip_hangs_up(chip_fd):
    pump = EdgePump(chip_fd[0])
    os.close(chip_fd.pop())
    assert await pump.run() is True
    pump.close()


async def test_a_pump_ends_when_an_operation_has_found_the_chip_gone(chip_fd):
    pump = EdgePump(chip_fd[0])
    await trio.to_thread.run_sync(pump.ring)
    assert await pump.run() is True
    pump.close()


async def test_a_pump_feeds_the_lines_that_are_watched_and_leaves_the_others_alone(chip_fd, source, nursery):
    pump = EdgePump(chip_fd[0])
    nursery.start_soon(pump.run)
    await trio.testing.wait_all_tasks_blocked()
    watch = Watch(5, "both")
    source.edges.asked = "both"
    await trio.to_thread.run_sync(pump.add, source.edges, source.fd, watch)
    source.add((1, RISING))
    assert [edge.seq for edge in await take(watch, 1)] == [1]
    await trio.to_thread.run_sync(pump.remove, source.edges, source.fd, watch)
    source.add((2, FALLING))
    await trio.testing.wait_all_tasks_blocked()
    assert os.read(source.fd, 48)
    pump.close()


async def test_a_pump_ends_when_a_watched_line_cannot_be_read_any_more(chip_fd):
    pump, edges, watch = EdgePump(chip_fd[0]), Edges(), Watch(5, "both")
    # A terminal refuses to be read, and does not just end, when its far end is closed: as a line does that is gone.
    line, far = os.openpty()
    os.set_blocking(line, False)
    pump.add(edges, line, watch)
    os.close(far)
    with pytest.raises(OSError, match="Input/output error"):
        pump.before_change(edges, line)
    assert await pump.run() is True
    pump.end("it is gone")
    with pytest.raises(DeviceError, match="it is gone"):
        await watch.receive()
    pump.close()
    os.close(line)


def test_a_chip_behind_an_hid_device_shares_it_and_others_share_nothing(tmp_path):
    hid = tmp_path / "devices/usb1/0003:04D8:00DD.0001"
    for device, subsystem in ((tmp_path / "devices/usb1", "usb"), (hid, "hid"), (hid / "gpiochip2", "gpio")):
        (tmp_path / "bus" / subsystem).mkdir(parents=True)
        device.mkdir(parents=True, exist_ok=True)
        (device / "subsystem").symlink_to(tmp_path / "bus" / subsystem)
    assert shared_device(hid / "gpiochip2") == str(hid)
    assert shared_device(hid) is None
    assert shared_device(tmp_path / "gone") is None
