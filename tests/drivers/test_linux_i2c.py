"""The parts of the kernel's I2C driver that need no adapter: errnos in words, the choice of a call, names in sysfs.

What needs one is in tests/hardware, against the kernel itself.
"""

import errno
import os

import pytest

from hearth.drivers.i2c import linux_adapter as i2c_adapter
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.i2c.linux_adapter import adapters, failed, find_adapter, gone, owner_of
from hearth.drivers.i2c.smbus import CALLS, call_for
from hearth.drivers.linux.node import Presence, claim_node, errno_name
from hearth.drivers.registers import Read, Write
from hearth.errors import DeviceError, ResourceBusy, TimedOut

WRITE, READ, REGISTER, QUERY = [Write(b"\x00\x01")], [Read(2)], [Write(b"\x00"), Read(2)], [Write(b"abc"), Read(2)]
LISTS = {"write": WRITE, "read": READ, "register": REGISTER, "query": QUERY}


def failure(number, messages=WRITE, width=None, **more):
    return failed(OSError(number, os.strerror(number)), 3, 0x50, messages, width, **more)


@pytest.mark.parametrize(
    ("number", "name", "none_for"),
    [
        (errno.ENXIO, "ENXIO", {"write", "read", "register"}),
        (errno.ENODEV, "ENODEV", {"write", "read", "register"}),
        (errno.EREMOTEIO, "EREMOTEIO", {"read", "register"}),
        (errno.EAGAIN, "EAGAIN", {"write", "read", "register"}),
        (errno.EBUSY, "EBUSY", {"write", "read", "register"}),
        (errno.EINVAL, "EINVAL", {"write", "read", "register"}),
        (errno.EOPNOTSUPP, "EOPNOTSUPP", set(LISTS)),
        (errno.ENOSYS, "ENOSYS", set(LISTS)),
        (524, "ENOTSUPP", set(LISTS)),
        (errno.ETIMEDOUT, "ETIMEDOUT", {"read", "register"}),
        (errno.EIO, "EIO", {"read", "register"}),
        (errno.EPROTO, "EPROTO", {"read", "register"}),
        (errno.EBADMSG, "EBADMSG", {"read", "register"}),
        (errno.EOVERFLOW, "EOVERFLOW", {"read", "register"}),
        (errno.ESHUTDOWN, "ESHUTDOWN", {"read", "register"}),
        (errno.EPIPE, "EPIPE", {"read", "register"}),
        (errno.EFAULT, "EFAULT", {"read", "register"}),
        (9999, "9999", {"read", "register"}),
    ],
)
def test_an_errno_has_its_name_its_place_and_an_effect_that_can_be_proven(number, name, none_for):
    for kind, messages in LISTS.items():
        error = failure(number, messages)
        assert error.data["errno"] == name
        assert (error.data["bus"], error.data["addr"]) == (3, 0x50)
        assert "i2c bus 3" in error.message
        assert "0x50" in error.message
        assert error.data["effect"] == ("none" if kind in none_for else "unknown"), kind
        assert isinstance(error, TimedOut) == (number == errno.ETIMEDOUT)


@pytest.mark.parametrize(("width", "effect"), [(None, "unknown"), (8, "unknown"), (16, "none")])
def test_two_bytes_before_a_read_are_a_registers_number_only_where_the_profile_says_so(width, effect):
    error = failure(errno.EREMOTEIO, [Write(b"\x00\x01"), Read(2)], width)
    assert error.data["effect"] == effect


def test_different_causes_are_told_in_different_words():
    numbers = (errno.ENXIO, errno.EREMOTEIO, errno.EAGAIN, errno.EBUSY, errno.ETIMEDOUT, errno.EIO, errno.EPROTO)
    assert len({failure(number).message for number in numbers}) == len(numbers)


def test_a_lost_arbitration_tells_how_often_the_kernel_may_try_again():
    assert failure(errno.EAGAIN, retries=4).data["retries"] == 4


def test_an_error_without_a_number_is_an_io_error():
    assert errno_name(OSError("strange")) == "EIO"
    assert failed(OSError("strange"), 1, 0x50, WRITE, None).data["errno"] == "EIO"


def test_an_adapter_that_has_gone_is_enodev_with_the_effect_that_is_known():
    error = gone(1, "/dev/i2c-7", effect="unknown")
    assert error.data == {"effect": "unknown", "bus": 1, "path": "/dev/i2c-7", "errno": "ENODEV"}


@pytest.mark.parametrize(
    ("messages", "name", "written", "length"),
    [
        ([Write(b"\x01")], "send byte", b"\x01", 0),
        ([Read(1)], "receive byte", b"", 1),
        ([Write(b"\x01\x02")], "write byte data", b"\x01\x02", 0),
        ([Write(b"\x01"), Read(1)], "read byte data", b"\x01", 1),
        ([Write(b"\x01\x02\x03")], "write word data", b"\x01\x02\x03", 0),
        ([Write(b"\x01"), Read(2)], "read word data", b"\x01", 2),
        ([Write(b"\x01\x02\x03"), Read(2)], "process call", b"\x01\x02\x03", 2),
        ([Write(bytes(4))], "write I2C block", bytes(4), 0),
        ([Write(bytes(33))], "write I2C block", bytes(33), 0),
        ([Write(b"\x01"), Read(3)], "read I2C block", b"\x01", 3),
        ([Write(b"\x01"), Read(32)], "read I2C block", b"\x01", 32),
    ],
)
def test_an_exchange_is_the_smallest_smbus_call_that_does_it(messages, name, written, length):
    everything = sum(call.needs for call in CALLS)
    call, data, wanted = call_for(messages, everything)
    assert (call.name, data, wanted) == (name, written, length)
    assert call_for(messages, 0) is None


@pytest.fixture
def sys(tmp_path, monkeypatch):
    """A /sys with two adapters of one name and another, one address of which has a driver."""
    monkeypatch.setattr(i2c_adapter, "SYS", tmp_path)
    for number, name in ((10, "left"), (2, "twin"), (11, "twin")):
        (tmp_path / f"class/i2c-dev/i2c-{number}").mkdir(parents=True)
        (tmp_path / f"class/i2c-dev/i2c-{number}/name").write_text(f"{name}\n")
    for device, driver in (("10-0048", "lm75"), ("10-a150", "wide"), ("10-0049", None)):
        (tmp_path / f"bus/i2c/devices/{device}").mkdir(parents=True)
        if driver is not None:
            (tmp_path / f"bus/i2c/drivers/{driver}").mkdir(parents=True)
            (tmp_path / f"bus/i2c/devices/{device}/driver").symlink_to(f"../../drivers/{driver}")
    return tmp_path


def test_adapters_are_listed_by_number_and_one_that_goes_meanwhile_is_left_out(sys):
    (sys / "class/i2c-dev/i2c-12").mkdir()
    assert list(adapters().items()) == [(2, "twin"), (10, "left"), (11, "twin")]


def test_an_adapter_is_found_by_its_number_or_its_name(sys):
    assert find_adapter(5, None) == 5
    assert find_adapter(5, "left") == 10
    assert find_adapter(11, "twin") == 11
    with pytest.raises(DeviceError, match="i2c-2 and i2c-11 are all called 'twin'"):
        find_adapter(5, "twin")
    with pytest.raises(DeviceError, match=r"there are: i2c-2 \(twin\), i2c-10 \(left\), i2c-11 \(twin\)"):
        find_adapter(5, "right")


def test_an_adapter_that_has_no_node_yet_is_told_from_one_that_is_not_there(sys, tmp_path, monkeypatch):
    monkeypatch.setattr("hearth.drivers.i2c.linux.DEV", tmp_path / "dev")
    for driver, told in (
        (LinuxI2c(1, adapter="left"), "i2c-10 is not there, though the kernel has the adapter"),
        (LinuxI2c(3), r"i2c-3 is not there; adapters: i2c-2 \(twin\)"),
    ):
        with pytest.raises(DeviceError, match=told) as caught:
            driver.open()
        assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "ENOENT")


def test_without_any_adapter_the_module_is_what_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(i2c_adapter, "SYS", tmp_path)
    with pytest.raises(DeviceError, match="is i2c-dev loaded"):
        find_adapter(1, "left")
    assert i2c_adapter.adapters() == {}


def test_an_address_is_owned_when_a_driver_is_bound_to_it_in_its_own_width(sys):
    assert owner_of(10, 0x48, ten_bit=False) == "lm75"
    assert owner_of(10, 0x150, ten_bit=True) == "wide"
    assert owner_of(10, 0x48, ten_bit=True) is None
    assert owner_of(10, 0x49, ten_bit=False) is None
    assert owner_of(2, 0x48, ten_bit=False) is None


def test_presence_ends_with_the_node_or_with_the_kernels_entry(sys, tmp_path):
    node = tmp_path / "node"
    node.touch()
    handle = os.open(node, os.O_RDWR)
    presence = Presence(handle, sys / "class/i2c-dev/i2c-10", str(node))
    assert not presence.gone()
    (sys / "class/i2c-dev/i2c-10/name").unlink()
    (sys / "class/i2c-dev/i2c-10").rmdir()
    assert presence.gone()
    assert not presence.unlinked()
    node.unlink()
    assert presence.unlinked()
    presence.drain()
    presence.close()
    presence.close()
    os.close(handle)


def test_without_a_watch_an_adapter_can_still_be_used(sys, tmp_path):
    # No node of that name, as with no watches left: the kernel gives none.
    handle = os.open(sys, os.O_RDONLY)
    presence = Presence(handle, sys / "class/i2c-dev/i2c-10", str(tmp_path / "nowhere"))
    assert presence.watch is None
    presence.close()
    os.close(handle)


async def test_a_driver_that_is_not_open_has_nothing_to_pump_and_closes_twice():
    driver = LinuxI2c(250)
    await driver.pump()
    driver.close()
    driver.close()
    assert driver.describe() == {
        "kind": "i2c",
        "driver": "i2c-dev",
        "bus": 250,
        "speed_hz": 100_000,
        "timeout_ms": 1000,
        "retries": 0,
        "path": "/dev/i2c-250",
    }
    assert LinuxI2c(250, adapter="left").describe()["adapter"] == "left"


def test_a_longer_timeout_and_retries_make_a_longer_limit():
    assert LinuxI2c(1, timeout_ms=5000).limit_ms(READ) > LinuxI2c(1).limit_ms(READ) + 3999
    assert LinuxI2c(1, retries=1).limit_ms(READ) > LinuxI2c(1).limit_ms(READ) + 999
    assert LinuxI2c(1, speed_hz=10_000).limit_ms([Read(4096)]) > LinuxI2c(1).limit_ms([Read(4096)]) * 3


def test_an_adapter_that_another_hearthd_has_is_refused_with_who_has_it_and_the_cure(tmp_path):
    node = tmp_path / "i2c-7"
    node.touch()
    with node.open() as first, node.open() as second:
        claim_node(first.fileno(), "i2c bus 7", str(node), bus=7)
        with pytest.raises(ResourceBusy) as caught:
            claim_node(second.fileno(), "i2c bus 7", str(node), bus=7)
        assert caught.value.message.startswith(f"i2c bus 7: {node} is in use by another hearthd (")
        assert "; stop that one, or take the device out of one of the two board profiles" in caught.value.message
        assert (caught.value.data["errno"], caught.value.data["effect"]) == ("EBUSY", "none")
        first.close()
        claim_node(second.fileno(), "i2c bus 7", str(node), bus=7)
