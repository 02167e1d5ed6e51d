"""What goes wrong on an I2C adapter: each fault by its errno, with what became of the world.

The adapter is an emulated MCP2221 under the kernel's own driver, so the errnos are the kernel's, and what was written
is what crossed the emulated wire.
"""

import errno
import os
import resource
import subprocess
import sys
import time

import pytest
from smbus2 import SMBus
from support.i2c_stub import kernel_driver, stub_bus
from support.mcp2221 import ADAPTER, Mcp2221
from support.mcp2221_chip import Memory

from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.registers import Read, Write
from hearth.errors import DeviceError, ResourceBusy, TimedOut

MEMORY = 0x50
COMMAND = [Write(b"\x10abcd")]
REGISTER = [Write(b"\x10"), Read(4)]
QUERY = [Write(b"\x10abcd"), Read(4)]


@pytest.fixture
def adapter():
    with Mcp2221({MEMORY: Memory(), 0x51: Memory(65536, pointer_bytes=2)}) as adapter:
        yield adapter
        assert not adapter.chip.strays


@pytest.fixture
def driver(adapter):
    driver = LinuxI2c(adapter.bus)
    driver.open()
    yield driver
    driver.close()


def failure(driver, messages, *, addr=MEMORY, kind=DeviceError):
    with pytest.raises(kind) as caught:
        driver.transfer(addr, messages)
    assert caught.value.data["bus"] == driver.bus
    assert caught.value.data["addr"] == addr
    return caught.value


@pytest.mark.parametrize("messages", [COMMAND, REGISTER, [Read(4)]], ids=["write", "register", "read"])
def test_an_address_that_no_device_acknowledges_is_enxio_without_effect(driver, adapter, messages):
    adapter.chip.nack()
    error = failure(driver, messages)
    assert (error.data["errno"], error.data["effect"]) == ("ENXIO", "none")
    assert not adapter.chip.log[-1].written + adapter.chip.log[-1].read
    assert "no device acknowledges" in error.message


def test_an_exchange_that_ends_at_one_of_two_addresses_after_a_command_may_have_had_an_effect(driver, adapter):
    adapter.chip.nack()
    assert failure(driver, QUERY).data["effect"] == "unknown"


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_byte_that_is_not_acknowledged_in_a_write_leaves_the_effect_unknown(driver, adapter, length):
    adapter.chip.nack(after=length)
    error = failure(driver, COMMAND)
    assert (error.data["errno"], error.data["effect"]) == ("EIO", "unknown")
    assert adapter.chip.log[-1].written == COMMAND[0].data[:length]


def test_a_byte_that_is_not_acknowledged_far_into_a_long_write_leaves_the_effect_unknown(driver, adapter):
    adapter.chip.nack(after=200)
    error = failure(driver, [Write(bytes(300))], addr=0x51)
    assert error.data["effect"] == "unknown"
    assert len(adapter.chip.log[-1].written) == 200


def test_a_device_that_holds_the_clock_is_a_timeout_with_unknown_effect(driver, adapter):
    adapter.chip.timeout(after=2)
    error = failure(driver, COMMAND, kind=TimedOut)
    assert (error.data["errno"], error.data["effect"]) == ("ETIMEDOUT", "unknown")
    assert adapter.chip.log[-1].written == b"\x10a"


def test_a_lost_arbitration_is_eagain_without_effect(driver, adapter):
    adapter.chip.busy()
    error = failure(driver, COMMAND)
    assert (error.data["errno"], error.data["effect"], error.data["retries"]) == ("EAGAIN", "none", 0)
    assert "arbitration" in error.message
    assert not adapter.chip.log


def test_the_next_exchange_after_any_of_these_is_whole(driver, adapter):
    for fault in (adapter.chip.nack, adapter.chip.busy, adapter.chip.timeout):
        fault()
        failure(driver, REGISTER)
        driver.transfer(MEMORY, COMMAND)
        assert driver.transfer(MEMORY, REGISTER) == b"abcd"
        assert adapter.chip.log[-1].whole


def test_an_adapter_that_does_not_take_a_list_of_messages_says_so_and_moves_nothing(driver, adapter):
    for messages in (REGISTER * 2, [Read(1), Read(1)], [Write(b"a"), Write(b"b")]):
        error = failure(driver, messages)
        assert (error.data["errno"], error.data["effect"]) == ("EOPNOTSUPP", "none")
        assert "as one exchange; it takes raw messages, but not such a list" in error.message
    assert not adapter.chip.log


@pytest.mark.parametrize("messages", [[Read(2)], [Write(b"\x00")], REGISTER], ids=["read", "write", "register"])
def test_a_driver_of_the_kernels_that_comes_later_owns_its_address_on_a_raw_adapter(driver, adapter, messages):
    driver.transfer(0x51, [Read(1)])
    driver.transfer(MEMORY, [Read(1)])
    with kernel_driver(driver.bus, MEMORY, "lm75") as device:
        assert (device / "driver").exists()
        adapter.chip.log.clear()
        error = failure(driver, messages, kind=ResourceBusy)
        assert error.data == {
            "effect": "none",
            "bus": driver.bus,
            "addr": MEMORY,
            "errno": "EBUSY",
            "reason": "held",
            "owner": "lm75",
        }
        assert "'lm75'" in error.message
        assert not adapter.chip.log
        driver.transfer(0x51, [Read(1)])  # the others are free
    assert len(driver.transfer(MEMORY, [Read(2)])) == 2


def test_a_driver_of_the_kernels_that_comes_later_owns_its_address_on_an_smbus_adapter():
    driver = LinuxI2c(stub_bus())
    driver.open()
    # The library that talks to the kernel remembers the address of its last call, and does not ask again.
    driver.transfer(MEMORY, [Write(b"\x00"), Read(1)])
    with kernel_driver(driver.bus, MEMORY, "lm75"):
        assert failure(driver, [Write(b"\x00"), Read(1)], kind=ResourceBusy).data["owner"] == "lm75"
    assert len(driver.transfer(MEMORY, [Write(b"\x00"), Read(1)])) == 1
    driver.close()


def test_an_entry_that_no_driver_of_the_kernels_has_taken_is_free(driver):
    with kernel_driver(driver.bus, MEMORY, "nobodys-chip") as device:
        assert device.exists()
        assert len(driver.transfer(MEMORY, [Read(1)])) == 1


def test_a_lost_arbitration_is_tried_again_by_the_kernel_as_often_as_the_board_says(adapter):
    driver = LinuxI2c(adapter.bus, retries=3)
    driver.open()
    adapter.chip.busy(3)
    driver.transfer(MEMORY, COMMAND)
    adapter.chip.busy(4)
    assert failure(driver, COMMAND).data["retries"] == 3
    driver.transfer(MEMORY, COMMAND)
    driver.close()


def test_the_kernel_stops_trying_again_when_the_boards_timeout_is_over(adapter):
    # The adapter's own driver keeps times of its own; what the kernel's core does with the timeout is this.
    driver = LinuxI2c(adapter.bus, retries=1_000_000, timeout_ms=150)
    driver.open()
    adapter.chip.busy(float("inf"))
    begun = time.monotonic()
    assert failure(driver, COMMAND).data["errno"] == "EAGAIN"
    assert 0.14 <= time.monotonic() - begun < 5
    driver.close()


def test_the_boards_numbers_replace_those_of_the_adapters_driver(adapter):
    # The kernel's driver of this adapter begins with one retry.
    with SMBus(adapter.bus) as other:
        adapter.chip.busy(1)
        other.write_byte(MEMORY, 0)
    driver = LinuxI2c(adapter.bus, retries=0)
    driver.open()
    adapter.chip.busy(1)
    assert failure(driver, COMMAND).data["errno"] == "EAGAIN"
    driver.close()


def test_an_adapter_that_does_not_answer_is_given_up_by_the_kernel_and_answers_again(driver, adapter):
    adapter.chip.wedge(after=2)
    error = failure(driver, COMMAND, kind=TimedOut)
    assert error.data["effect"] == "unknown"
    adapter.chip.release()
    driver.transfer(MEMORY, COMMAND)
    assert driver.transfer(MEMORY, REGISTER) == b"abcd"


# --- opening ---------------------------------------------------------------------------------------------------------


def unopened(driver):
    with pytest.raises(DeviceError) as caught:
        driver.open()
    driver.close()
    assert caught.value.data["effect"] == "none"
    return caught.value


def test_an_adapter_is_found_by_the_name_that_the_kernel_gives_it(adapter):
    driver = LinuxI2c(1000, adapter=ADAPTER)
    assert "path" not in driver.describe()
    driver.open()
    described = driver.describe()
    assert (described["bus"], described["path"]) == (1000, f"/dev/i2c-{adapter.bus}")
    assert (described["adapter"], described["mode"]) == (ADAPTER, "raw")
    assert {"i2c", "quick", "read-i2c-block"} <= set(described["functionality"])
    assert "10bit" not in described["functionality"]
    driver.close()


def test_an_adapter_is_described_with_what_the_board_says_of_it():
    driver = LinuxI2c(stub_bus(), timeout_ms=250, retries=2, speed_hz=400_000)
    driver.open()
    described = driver.describe()
    driver.close()
    assert described["mode"] == "smbus"
    assert "i2c" not in described["functionality"]
    assert (described["timeout_ms"], described["retries"], described["speed_hz"]) == (250, 2, 400_000)


def test_a_name_that_no_adapter_has_is_refused_naming_those_that_are_there(adapter):
    error = unopened(LinuxI2c(1, adapter="bcm2835 (i2c@7e804000)"))
    assert error.data["errno"] == "ENODEV"
    assert f"i2c-{adapter.bus} ({ADAPTER})" in error.message


def test_a_name_that_two_adapters_have_needs_the_number_too(adapter):
    with Mcp2221() as second:
        error = unopened(LinuxI2c(1000, adapter=ADAPTER))
        assert f"i2c-{adapter.bus} and i2c-{second.bus} are all called" in error.message
        driver = LinuxI2c(second.bus, adapter=ADAPTER)
        driver.open()
        assert driver.describe()["path"] == f"/dev/i2c-{second.bus}"
        driver.close()


def test_an_adapter_that_is_not_there_is_refused_naming_those_that_are(adapter):
    error = unopened(LinuxI2c(200))
    assert error.data["errno"] == "ENOENT"
    assert "/dev/i2c-200 is not there" in error.message
    assert ADAPTER in error.message


def test_a_node_that_is_no_adapter_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("hearth.drivers.i2c.linux.DEV", tmp_path)
    (tmp_path / "i2c-5").write_bytes(b"")
    error = unopened(LinuxI2c(5))
    assert error.data["errno"] == "ENOTTY"
    assert "is not an I2C adapter" in error.message


OPEN_AS_NOBODY = """
import os, sys
import smbus2
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.errors import DeviceError
os.setgroups([]); os.setgid(65534); os.setuid(65534)  # who may not read the host's Python
try:
    LinuxI2c(int(sys.argv[1])).open()
except DeviceError as error:
    print(error.data["errno"], error.message)
"""


@pytest.mark.parametrize(
    ("group", "mode", "cure"), [(0, 0o600, "hearth doctor"), (12, 0o660, "usermod -aG man USER")], ids=["root", "group"]
)
def test_a_user_who_may_not_open_an_adapter_is_told_what_lets_him_in(adapter, group, mode, cure):
    path = f"/dev/i2c-{adapter.bus}"
    os.chown(path, 0, group)
    os.chmod(path, mode)
    answer = subprocess.run(
        [sys.executable, "-c", OPEN_AS_NOBODY, str(adapter.bus)], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.startswith(f"EACCES i2c bus {adapter.bus}: no permission for {path}")
    assert cure in answer.stdout


def test_a_process_without_descriptors_left_is_told_so_and_one_without_watches_works_on(adapter):
    driver = LinuxI2c(adapter.bus)
    driver.open()  # what is imported at the first time wants descriptors too
    driver.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, limits[1]))
        for one in (driver, LinuxI2c(adapter.bus, adapter=ADAPTER)):
            error = unopened(one)
            assert error.data["errno"] == "EMFILE"
            assert "cannot be opened: Too many open files" in error.message
        os.close(held.pop())  # room for the adapter, and for nothing else
        driver.open()
        assert driver._presence.watch is None
        assert len(driver.transfer(MEMORY, [Read(1)])) == 1
        driver.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


def test_opening_in_vain_leaves_no_descriptor_behind(adapter, tmp_path, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("hearth.drivers.i2c.linux.DEV", tmp_path)
    for number in (5, 6):
        (tmp_path / "i2c-5").write_bytes(b"")
        unopened(LinuxI2c(number))
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_errnos_of_this_kernel_have_the_names_that_are_told():
    # EOPNOTSUPP has two names on Linux; which one a table of the C library lists first is chance.
    assert errno.EOPNOTSUPP == errno.ENOTSUP == 95
