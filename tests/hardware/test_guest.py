"""What the guest gives its tests: the devices they find when it has booted, and that nothing they do stays."""

import os
import subprocess
from pathlib import Path

import serial
from support.sysfs import named


def test_the_guest_says_that_it_is_one():
    assert os.environ["HEARTH_GUEST"] == "1"
    assert os.uname().nodename == "guest"


def test_the_i2c_stub_has_devices_at_the_addresses_the_tests_rely_on():
    assert any("SMBus stub" in name for name in named("/sys/class/i2c-dev").values())
    loaded = Path("/sys/module/i2c_stub/parameters/chip_addr").read_text().strip().split(",")
    assert [int(address) for address in loaded if int(address)] == [0x40, 0x48, 0x50]


def test_the_null_modem_carries_bytes_both_ways(null_modem):
    near, far = (serial.Serial(path, timeout=60) for path in null_modem)
    with near, far:
        near.write(b"there\n")
        assert far.readline() == b"there\n"
        far.write(b"and back\n")
        assert near.readline() == b"and back\n"


def test_the_instrument_outside_answers_in_upper_case(upper_caser):
    with serial.Serial(upper_caser, timeout=60) as port:
        port.write(b"one\ntwo\n")
        assert port.readline() == b"ONE\n"
        assert port.readline() == b"TWO\n"


def test_the_root_is_the_hosts_and_what_is_written_stays_in_memory(tmp_path):
    mounted = Path("/proc/mounts").read_text().splitlines()
    assert any(line.startswith("root / overlay") for line in mounted)
    assert str(tmp_path).startswith("/run/tmp/")


def test_a_user_without_privileges_exists_for_tests_of_permissions():
    """The guest's root may become anybody, as tests of who may open what need."""
    shown = subprocess.run(["id", "-u"], user=65534, group=65534, extra_groups=[], capture_output=True, check=True)
    assert shown.stdout.strip() == b"65534"
