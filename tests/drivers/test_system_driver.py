"""Telemetry read from made-up machines: a Raspberry Pi, a PC, a container, and ones with dead servers."""

import os
from pathlib import Path

import pytest
from attrs import make_class

from hearth.drivers import system as sources
from hearth.drivers.base import Style
from hearth.drivers.system import MAX_ROWS, SystemDriver
from hearth.errors import DeviceError

STAT = "cpu  {0} 0 0 {1} 0 0 0 0 0 0\ncpu0 {0} 0 0 {1} 0 0 0 0 0 0\nintr 5 1 2\nctxt 9\nbtime 1776638881\n"


@pytest.fixture
def machine(tmp_path):
    """Write files of a made-up machine: `machine({"proc/stat": "…"})` returns its root."""

    def build(files):
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return build


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


# --- cpuinfo -----------------------------------------------------------------------------------------------------


def ticking(machine):
    clock = Clock()
    root = machine({"proc/stat": STAT.format(100, 900), "proc/cpuinfo": "processor\t: 0\n"})
    driver = SystemDriver(root=root, clock=clock)
    driver.open()
    return driver, clock, lambda busy, idle: machine({"proc/stat": STAT.format(busy, idle)})


def test_usage_is_that_of_the_time_since_the_last_call(machine):
    driver, clock, stat = ticking(machine)
    clock.now += 1
    stat(150, 950)
    first = driver.cpuinfo()
    clock.now += 2
    stat(350, 950)
    second = driver.cpuinfo()
    assert (first["usage_percent"], first["usage_window_ms"]) == (50.0, 1000)
    assert (second["usage_percent"], second["usage_window_ms"]) == (100.0, 2000)
    assert second["cores"][0]["usage_percent"] == 100.0


def test_calls_in_quick_succession_share_a_window_instead_of_measuring_noise(machine):
    driver, clock, stat = ticking(machine)
    clock.now += 0.05
    stat(105, 900)
    assert driver.cpuinfo()["usage_window_ms"] == 50
    clock.now += 0.05
    stat(105, 905)
    found = driver.cpuinfo()
    assert (found["usage_percent"], found["usage_window_ms"]) == (50.0, 100)


def test_usage_is_null_while_no_time_has_been_counted(machine):
    driver, _clock, _stat = ticking(machine)
    assert driver.cpuinfo()["usage_percent"] is None


def test_usage_before_the_bus_was_opened_is_null(machine):
    root = machine({"proc/stat": STAT.format(100, 900), "proc/cpuinfo": ""})
    found = SystemDriver(root=root).cpuinfo()
    assert (found["usage_percent"], found["usage_window_ms"], found["model"]) == (None, None, None)


def test_an_idle_counter_that_steps_back_gives_no_impossible_percentage(machine):
    driver, clock, stat = ticking(machine)
    clock.now += 1
    stat(110, 899)
    assert driver.cpuinfo()["usage_percent"] == 100.0


def test_a_core_that_came_online_meanwhile_has_no_usage_yet(machine):
    driver, clock, _stat = ticking(machine)
    clock.now += 1
    machine({"proc/stat": STAT.format(150, 950) + "cpu1 5 0 0 5 0 0 0 0 0 0\n"})
    assert [core["usage_percent"] for core in driver.cpuinfo()["cores"]] == [50.0, None]


PI_CPUINFO = """processor\t: 0
BogoMIPS\t: 108.00
CPU implementer\t: 0x41
CPU part\t: 0xd0b

processor\t: 10
CPU implementer\t: 0x41
CPU part\t: 0xd0b

Revision\t: c04170
Model\t\t: Raspberry Pi 5 Model B Rev 1.0
"""


def test_a_raspberry_pi_tells_its_cores_and_their_frequencies_in_mhz(machine):
    zeros = " 0 0 0 5 0 0 0 0 0 0\n"
    at = "sys/devices/system/cpu/cpu10/"
    root = machine(
        {
            "proc/cpuinfo": PI_CPUINFO,
            "proc/stat": f"cpu {zeros}cpu10{zeros}cpu0{zeros}",
            f"{at}cpufreq/scaling_cur_freq": "1500000\n",
            f"{at}cpufreq/cpuinfo_min_freq": "600000\n",
            f"{at}cpufreq/cpuinfo_max_freq": "2400000\n",
            f"{at}topology/physical_package_id": "0\n",
            f"{at}topology/core_id": "1\n",
        }
    )
    found = SystemDriver(root=root).cpuinfo()
    assert found["model"] == "ARM Cortex-A76"
    assert found["logical_cores"] == 2
    assert found["physical_cores"] is None, "the kernel told of one core only"
    assert [core["core"] for core in found["cores"]] == [0, 10]
    assert found["cores"][0]["mhz"] is None
    assert found["cores"][1] == {"core": 10, "usage_percent": None, "mhz": 1500, "min_mhz": 600, "max_mhz": 2400}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"sys/firmware/devicetree/base/model": "Raspberry Pi 5 Model B Rev 1.0\0"}, "Raspberry Pi 5 Model B Rev 1.0"),
        ({"sys/class/dmi/id/sys_vendor": "ACME\n", "sys/class/dmi/id/product_name": "Box 1\n"}, "ACME Box 1"),
        ({"sys/class/dmi/id/product_name": "Box 1\n"}, "Box 1"),
        ({}, None),
    ],
)
def test_the_machine_is_named_as_its_firmware_names_it(machine, files, told):
    found = SystemDriver(root=machine({"proc/stat": STAT.format(1, 1), "proc/cpuinfo": "", **files})).cpuinfo()
    assert found["machine"] == told
    assert found["kernel"] == os.uname().release


def test_a_pc_without_frequency_control_tells_the_frequency_of_its_cpuinfo(machine):
    block = "processor\t: {}\nmodel name\t: Fast CPU\ncpu MHz\t\t: 2299.998\n\n"
    zeros = " 0 0 0 5 0 0 0 0 0 0\n"
    files = {"proc/cpuinfo": block.format(0) + block.format(1), "proc/stat": f"cpu {zeros}cpu0{zeros}cpu1{zeros}"}
    for number in (0, 1):  # two threads of one core
        files[f"sys/devices/system/cpu/cpu{number}/topology/physical_package_id"] = "0"
        files[f"sys/devices/system/cpu/cpu{number}/topology/core_id"] = "0"
    found = SystemDriver(root=machine(files)).cpuinfo()
    assert (found["model"], found["logical_cores"], found["physical_cores"]) == ("Fast CPU", 2, 1)
    assert found["cores"][1]["mhz"] == 2299.998


# --- memory, load, uptime ----------------------------------------------------------------------------------------


def test_memory_is_told_in_bytes(machine):
    lines = "MemTotal: 1000 kB\nMemFree: 200 kB\nMemAvailable: 600 kB\nBuffers: 50 kB\nCached: 300 kB\n"
    lines += "SReclaimable: 20 kB\nSwapTotal: 400 kB\nSwapFree: 300 kB\nHugePages_Total: 7\n"
    found = SystemDriver(root=machine({"proc/meminfo": lines})).memory()
    assert found == {
        "total_bytes": 1_024_000,
        "available_bytes": 614_400,
        "used_bytes": 409_600,
        "used_percent": 40.0,
        "free_bytes": 204_800,
        "buffers_bytes": 51_200,
        "cached_bytes": 327_680,
        "oom_kills": None,
        "swap": {"total_bytes": 409_600, "used_bytes": 102_400, "free_bytes": 307_200, "used_percent": 25.0},
    }


def test_processes_that_the_kernel_killed_for_memory_are_counted(machine):
    root = machine({"proc/meminfo": "MemTotal: 10 kB\nMemFree: 4 kB\n", "proc/vmstat": "nr_free 7\noom_kill 3\n"})
    assert SystemDriver(root=root).memory()["oom_kills"] == 3


def test_an_old_kernel_without_swap_still_tells_its_memory(machine):
    found = SystemDriver(root=machine({"proc/meminfo": "MemTotal: 10 kB\nMemFree: 4 kB\nCached: 2 kB\n"})).memory()
    assert found["available_bytes"] == 6 * 1024
    assert found["swap"] == {"total_bytes": 0, "used_bytes": 0, "free_bytes": 0, "used_percent": None}


def test_load_is_told_per_core_too(machine):
    root = machine({"proc/loadavg": "3.00 2.50 0.25 4/321 999\n", "proc/stat": "cpu 1\ncpu0 1\ncpu1 1\n"})
    assert SystemDriver(root=root).load() == {
        "load_1m": 3.0,
        "load_5m": 2.5,
        "load_15m": 0.25,
        "logical_cores": 2,
        "load_1m_per_core": 1.5,
        "runnable_threads": 4,
        "threads": 321,
        "pressure": {"cpu": None, "memory": None, "io": None},
    }


def test_pressure_says_for_want_of_what_threads_stood_still(machine):
    line = "{} avg10={} avg60=0.50 avg300=0.00 total=123\n"
    root = machine(
        {
            "proc/loadavg": "0 0 0 1/2 3\n",
            "proc/stat": "cpu 1\ncpu0 1\n",
            "proc/pressure/cpu": line.format("some", "1.25"),
            "proc/pressure/io": line.format("some", "99.00") + line.format("full", "7.00"),
            "proc/pressure/memory": "",
        }
    )
    pressure = SystemDriver(root=root).load()["pressure"]
    assert pressure["cpu"] == {"some_10s_percent": 1.25, "some_60s_percent": 0.5, "some_300s_percent": 0.0}
    assert (pressure["io"]["some_10s_percent"], pressure["io"]["full_10s_percent"]) == (99.0, 7.0)
    assert pressure["memory"] is None


def test_uptime_tells_when_the_machine_was_booted(machine):
    root = machine({"proc/uptime": "2355.58 4000.00\n", "proc/stat": STAT.format(1, 1)})
    assert SystemDriver(root=root).uptime() == {"uptime_s": 2355.58, "boot_time": "2026-04-19T22:48:01Z"}


# --- thermal -----------------------------------------------------------------------------------------------------


def test_temperatures_come_in_degrees_and_in_the_order_of_their_numbers(machine):
    zone, chip = "sys/class/thermal/thermal_zone", "sys/class/hwmon/hwmon"
    root = machine(
        {
            f"{zone}10/type": "gpu-thermal\n",
            f"{zone}10/temp": "not now\n",
            f"{zone}2/type": "cpu-thermal\n",
            f"{zone}2/temp": "48312\n",
            f"{zone}2/trip_point_0_type": "passive\n",
            f"{zone}2/trip_point_0_temp": "80000\n",
            f"{zone}2/trip_point_1_type": "critical\n",
            f"{zone}2/trip_point_1_temp": "110000\n",
            f"{chip}0/name": "nvme\n",
            f"{chip}0/temp1_input": "-5000\n",
            f"{chip}0/temp1_label": "Composite\n",
            f"{chip}0/temp1_max": "81850\n",
            f"{chip}0/temp1_crit": "84850\n",
            f"{chip}1/temp1_input": "50500\n",
            f"{chip}1/fan1_input": "1200\n",
        }
    )
    found = SystemDriver(root=root).thermal()
    assert found["zones"] == [
        {
            "zone": "thermal_zone2",
            "type": "cpu-thermal",
            "celsius": 48.312,
            "critical_celsius": 110.0,
            "trips": [{"type": "passive", "celsius": 80.0}, {"type": "critical", "celsius": 110.0}],
        },
        {
            "zone": "thermal_zone10",
            "type": "gpu-thermal",
            "celsius": None,
            "critical_celsius": None,
            "trips": [],
        },
    ]
    assert found["hwmon"][0] == {
        "chip": "nvme",
        "sensor": "hwmon0/temp1",
        "label": "Composite",
        "celsius": -5.0,
        "max_celsius": 81.85,
        "critical_celsius": 84.85,
    }
    assert found["hwmon"][1]["chip"] is None
    assert found["hottest_celsius"] == 50.5


def test_a_machine_without_sensors_has_empty_lists(machine):
    assert SystemDriver(root=machine({})).thermal() == {
        "zones": [],
        "hwmon": [],
        "cooling": [],
        "throttling": {"now": None, "earlier": None, "events": None},
        "hottest_celsius": None,
    }


def test_a_trip_that_is_switched_off_or_silent_is_left_out(machine):
    zone = "sys/class/thermal/thermal_zone0/trip_point_"
    files = {f"{zone}0_type": "hot\n", f"{zone}0_temp": "-274000\n", f"{zone}1_type": "critical\n"}
    (row,) = SystemDriver(root=machine(files)).thermal()["zones"]
    assert (row["trips"], row["critical_celsius"]) == ([], None)


def test_cooling_devices_tell_how_hard_they_work(machine):
    fan = "sys/class/thermal/cooling_device0/"
    root = machine({f"{fan}type": "pwm-fan\n", f"{fan}cur_state": "2\n", f"{fan}max_state": "4\n"})
    assert SystemDriver(root=root).thermal()["cooling"] == [
        {"device": "cooling_device0", "type": "pwm-fan", "state": 2, "max_state": 4}
    ]


@pytest.mark.parametrize("place", ["soc/soc:firmware", "soc@107c000000/soc@107c000000:firmware"])
def test_a_raspberry_pi_tells_what_slows_it_down(machine, place):
    root = machine({f"sys/devices/platform/{place}/get_throttled": "50005\n"})
    assert SystemDriver(root=root).thermal()["throttling"] == {
        "now": ["undervoltage", "throttled"],
        "earlier": ["undervoltage", "throttled"],
        "events": None,
    }


@pytest.mark.parametrize(("alarm", "now"), [("1\n", ["undervoltage"]), ("0\n", []), ("", None)])
def test_the_undervoltage_alarm_of_the_kernel_counts_where_the_firmware_is_not_asked(machine, alarm, now):
    chip = "sys/class/hwmon/hwmon3/"
    root = machine({f"{chip}name": "rpi_volt\n", f"{chip}in0_lcrit_alarm": alarm})
    assert SystemDriver(root=root).thermal()["throttling"] == {"now": now, "earlier": None, "events": None}


def test_the_firmwares_flags_and_the_kernels_alarm_are_one_list(machine):
    chip, place = "sys/class/hwmon/hwmon3/", "sys/devices/platform/soc/soc:firmware/get_throttled"
    root = machine({f"{chip}name": "rpi_volt\n", f"{chip}in0_lcrit_alarm": "1\n", place: "2\n"})
    assert SystemDriver(root=root).thermal()["throttling"]["now"] == ["undervoltage", "frequency-capped"]


@pytest.mark.parametrize("odd", ["", "none\n"])
def test_firmware_flags_that_are_no_number_are_unknown(machine, odd):
    root = machine({"sys/devices/platform/soc/soc:firmware/get_throttled": odd})
    assert SystemDriver(root=root).thermal()["throttling"]["now"] is None


def test_cores_that_slowed_down_for_heat_are_counted_together(machine):
    at = "sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count"
    root = machine({at.format(0): "3\n", at.format(10): "4\n", "sys/devices/system/cpu/cpufreq/policy0/x": "1"})
    assert SystemDriver(root=root).thermal()["throttling"]["events"] == 7


# --- disk --------------------------------------------------------------------------------------------------------


class Disks:
    """A machine by its mountinfo lines; remembers which mount points were asked for their sizes."""

    def __init__(self, machine, *lines):
        self.asked = []
        self.root = machine({"proc/self/mountinfo": "".join(f"{line}\n" for line in lines)})

    def statvfs(self, path):
        self.asked.append(path)
        if path == "/forbidden":
            raise PermissionError(13, "Permission denied")
        return os.statvfs_result((4096, 1024, 1000, 400, 300, 50, 40, 40, 0, 255))

    def rows(self):
        found = SystemDriver(root=self.root, statvfs=self.statvfs).disk()
        assert not found["truncated"]
        return {row["mount"]: row for row in found["filesystems"]}


def mount(number, path, fs, *, options="rw,relatime", device="/dev/x"):
    return f"30 1 {number} / {path} {options} shared:1 - {fs} {device} rw"


def test_a_disk_tells_its_sizes_in_bytes(machine):
    disks = Disks(machine, mount("8:1", "/", "ext4", options="ro,relatime", device="/dev/mmcblk0p2"))
    assert disks.rows()["/"] == {
        "mount": "/",
        "device": "/dev/mmcblk0p2",
        "type": "ext4",
        "local": True,
        "read_only": True,
        "total_bytes": 1_024_000,
        "used_bytes": 614_400,
        "available_bytes": 307_200,
        "used_percent": 66.7,
        "inodes_total": 50,
        "inodes_free": 40,
        "read_bytes": None,
        "written_bytes": None,
        "busy_s": None,
    }


def test_a_disk_tells_what_was_read_and_written_since_boot(machine):
    disks = Disks(machine, mount("179:2", "/", "ext4"), mount("0:31", "/data", "btrfs"))
    machine({"proc/diskstats": " 179 2 mmcblk0p2 9 0 20 7 5 0 30 6 0 1500 13 0 0\n 7 0 loop0\n"})
    rows = disks.rows()
    assert (rows["/"]["read_bytes"], rows["/"]["written_bytes"], rows["/"]["busy_s"]) == (10_240, 15_360, 1.5)
    assert rows["/data"]["read_bytes"] is None, "it spans devices of its own"


def test_a_file_system_mounted_in_several_places_is_told_once_at_the_shortest(machine):
    disks = Disks(
        machine, mount("8:1", "/etc/hosts", "ext4"), mount("8:1", "/etc", "ext4"), mount("8:1", "/etc/host", "ext4")
    )
    assert list(disks.rows()) == ["/etc"]
    assert disks.asked == ["/etc"]


def test_kernel_interfaces_and_memory_are_no_disks(machine):
    names = ("proc", "sysfs", "tmpfs", "cgroup2", "devpts", "autofs")
    assert Disks(machine, *(mount(f"0:{i}", f"/{name}", name) for i, name in enumerate(names))).rows() == {}


def test_a_network_file_system_is_named_but_never_asked(machine):
    names = ("nfs4", "cifs", "fuse.sshfs", "9p", "ceph", "something-new")
    disks = Disks(machine, *(mount(f"0:{i}", f"/mnt/{i}", name) for i, name in enumerate(names)))
    rows = disks.rows()
    assert disks.asked == []
    assert [row["type"] for row in rows.values()] == list(names)
    assert not any(row["local"] for row in rows.values())
    assert all(row[key] is None for row in rows.values() for key in sources.NO_SPACE)


def test_a_disk_whose_mount_point_lies_beneath_or_under_a_network_is_not_asked(machine):
    disks = Disks(
        machine,
        mount("8:1", "/", "ext4"),
        mount("0:9", "/net", "nfs"),
        mount("8:2", "/net/disk", "ext4"),
        mount("8:3", "/covered", "ext4"),
        mount("0:10", "/covered", "nfs"),
        mount("8:4", "/network", "ext4"),
    )
    rows = disks.rows()
    assert sorted(disks.asked) == ["/", "/network"]
    assert rows["/net/disk"]["local"]
    assert rows["/net/disk"]["total_bytes"] is None


def test_a_safe_mount_point_is_preferred_to_a_shorter_one_beneath_a_network(machine):
    disks = Disks(machine, mount("0:9", "/n", "nfs"), mount("8:2", "/n/d", "ext4"), mount("8:2", "/srv/disk", "ext4"))
    assert disks.rows()["/srv/disk"]["total_bytes"] == 1_024_000
    assert disks.asked == ["/srv/disk"]


def test_a_mount_that_is_yet_to_be_made_is_not_waited_for_but_a_made_one_is_asked(machine):
    disks = Disks(
        machine,
        mount("0:8", "/boot", "autofs"),
        mount("8:1", "/boot", "vfat"),
        mount("0:9", "/auto", "autofs"),
        mount("8:2", "/auto/disk", "ext4"),
    )
    disks.rows()
    assert disks.asked == ["/boot"]


def test_a_disk_that_may_not_be_asked_has_no_numbers(machine):
    assert Disks(machine, mount("8:1", "/forbidden", "xfs")).rows()["/forbidden"]["used_percent"] is None


def test_spaces_in_mount_points_are_told_as_spaces(machine):
    assert list(Disks(machine, mount("8:1", r"/media/my\040disk", "vfat")).rows()) == ["/media/my disk"]


def test_a_file_system_without_room_for_anybody_has_no_percentage():
    assert sources.disk_space(os.statvfs_result((512, 512, 0, 0, 0, 0, 0, 0, 0, 0)))["used_percent"] is None


def test_a_host_of_thousands_of_mounts_tells_the_first_and_says_so(machine):
    disks = Disks(machine, *(mount(f"0:{i}", f"/{i:04}", "overlay") for i in range(MAX_ROWS + 1)))
    found = SystemDriver(root=disks.root, statvfs=disks.statvfs).disk()
    assert found["truncated"]
    assert len(found["filesystems"]) == MAX_ROWS


# --- network -----------------------------------------------------------------------------------------------------

Address = make_class("Address", ["family", "address", "netmask"])
State = make_class("State", ["isup", "speed", "mtu", "flags"])
Count = make_class("Count", list(sources._COUNTERS.values()))


def test_an_interface_tells_its_addresses_state_and_counters(monkeypatch):
    import psutil

    link = psutil.AF_LINK
    addresses = {
        "wlan0": [Address(link, "aa:bb:cc:dd:ee:ff", None)],
        "eth0": [
            Address(2, "192.0.2.7", "255.255.255.0"),
            Address(10, "fe80::1%eth0", "ffff:ffff:ffff:ffff::"),
            Address(2, "192.0.2.8", None),
            Address(link, "02:00:00:00:00:01", None),
        ],
        "lo": [Address(link, "00:00:00:00:00:00", None)],
    }
    states = {"eth0": State(True, 1000, 1500, "up,running"), "lo": State(True, 0, 65536, "up,loopback")}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    counters = {"eth0": Count(2, 1, 4, 3, 5, 6, 7, 8)}
    monkeypatch.setattr(psutil, "net_io_counters", lambda *, pernic, nowrap: counters if pernic and not nowrap else {})
    eth0, lo, wlan0 = SystemDriver(show_addresses=True).network()["interfaces"]
    assert eth0 == {
        "name": "eth0",
        "up": True,
        "loopback": False,
        "mtu": 1500,
        "speed_mbit": 1000,
        "mac": "02:00:00:00:00:01",
        "addresses": [
            {"family": "ipv4", "address": "192.0.2.7", "prefix": 24},
            {"family": "ipv6", "address": "fe80::1", "prefix": 64},
            {"family": "ipv4", "address": "192.0.2.8", "prefix": None},
        ],
        "rx_bytes": 2,
        "tx_bytes": 1,
        "rx_packets": 4,
        "tx_packets": 3,
        "rx_errors": 5,
        "tx_errors": 6,
        "rx_dropped": 7,
        "tx_dropped": 8,
    }
    assert (lo["loopback"], lo["mac"], lo["speed_mbit"]) == (True, None, None)
    assert (wlan0["up"], wlan0["mtu"], wlan0["speed_mbit"], wlan0["rx_bytes"]) == (False, None, None, None)


def test_a_kernel_that_lists_no_interfaces_is_a_device_error_without_effect(monkeypatch):
    def refuse():
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(sources, "network_interfaces", refuse)
    with pytest.raises(DeviceError, match="Address family not supported") as caught:
        SystemDriver().network()
    assert caught.value.data["effect"] == "none"


# --- the driver itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["open", "cpuinfo", "memory", "load", "disk", "uptime"])
def test_without_proc_the_error_names_the_file_and_the_cure(tmp_path, method):
    with pytest.raises(DeviceError, match=r"proc/.* is /proc mounted and readable") as caught:
        getattr(SystemDriver(root=tmp_path), method)()
    assert caught.value.data["effect"] == "none"


def test_telemetry_runs_in_two_threads_and_touches_nothing():
    driver = SystemDriver()
    assert (driver.style, driver.width) == (Style.THREAD, 2)
    assert driver.describe()["kind"] == "telemetry"
    assert driver.make_safe(["x"]) == []
    driver.close()


def test_a_line_that_is_no_pair_and_a_processor_without_a_name_are_passed_over():
    assert sources.pairs("a : 1\nnonsense\nb: 2") == {"a": "1", "b": "2"}
    assert sources.cpu_model([{"flags": "fpu"}, {"CPU implementer": "0x51", "CPU part": "0x1"}]) is None


def test_an_empty_attribute_counts_as_absent(tmp_path):
    (tmp_path / "label").write_text("\n")
    assert sources.text_of(tmp_path / "label") is None
    assert sources.read_integer(Path("/nonexistent")) is None
