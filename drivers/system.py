"""Telemetry of the machine: CPU, memory, temperatures, load, file systems, network, uptime.

Everything is read from /proc and /sys at the moment of the request; addresses and interface counters come from psutil.
A value that a machine does not have (sensors in a container, frequencies in a VM) is null or an empty list, never an
error. This driver never waits: it samples no interval, and asks nothing of a file system that a network or a FUSE
process could keep from answering.

The small readers of /proc and /sys return None, or nothing, for a value that this machine does not have. `SystemDriver`
decides which values make up an answer, and what is an error.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth.drivers.base import BaseDriver
from hearth.drivers.linux.machine import entries, text_of
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

LOCAL_FS = frozenset((
    "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "iso9660", "jffs2", "jfs",
    "msdos", "ntfs3", "overlay", "reiserfs", "squashfs", "ubifs", "udf", "ufs", "vfat", "xfs", "zfs",
))  # fmt: skip
"""File systems whose sizes come from this kernel alone."""
NO_DISK_FS = frozenset((
    "autofs", "bdev", "binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "cpuset", "debugfs",
    "devpts", "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs",
    "rootfs", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tmpfs", "tracefs",
))  # fmt: skip
"""Kernel interfaces, memory and mount triggers: no storage to report."""
_ARM_CORES = {
    "0xd03": "Cortex-A53", "0xd04": "Cortex-A35", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72", "0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76",
}  # fmt: skip
"""CPU part numbers of Arm Ltd. (implementer 0x41): arm64 kernels print no model name."""


def read_integer(path: Path) -> int | None:
    """Return the file's number, or None."""
    found = text_of(path)
    return int(found) if found is not None and re.fullmatch("-?[0-9]+", found) else None


def read_celsius(path: Path) -> float | None:
    """Return a sysfs temperature, which is in thousandths of a degree, in °C."""
    found = read_integer(path)
    return None if found is None else found / 1000


def machine_name(sys: Path) -> str | None:
    """Return the machine's model, from its device tree or its firmware (DMI)."""
    model = text_of(sys / "firmware/devicetree/base/model")
    dmi = [text_of(sys / "class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    return model or " ".join(filter(None, dmi)) or None


def count_of(table: str | None, key: str) -> int | None:
    """Return the number in a line "key number", as in /proc/vmstat; None without one."""
    found = re.search(rf"^{key} ([0-9]+)$", table or "", re.MULTILINE)
    return int(found[1]) if found else None


def pressure(table: str | None) -> dict[str, float] | None:
    """Read a file of /proc/pressure: percent of the time in which some, or all, threads stood still, or None."""
    found = re.findall(r"^(some|full) avg10=([0-9.]+) avg60=([0-9.]+) avg300=([0-9.]+)", table or "", re.MULTILINE)
    rows = {
        f"{who}_{span}_percent": float(value)
        for who, *values in found
        for span, value in zip(("10s", "60s", "300s"), values, strict=True)
    }
    return rows or None


def pairs(block: str) -> dict[str, str]:
    """Return lines of "key : value"; of a repeated key the last."""
    split = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, colon, value in split if colon}


def cpu_model(blocks: Iterable[Mapping[str, str]]) -> str | None:
    """Return the processor's name from the blocks of /proc/cpuinfo, whose keys differ by architecture."""
    for block in blocks:
        for key in ("model name", "cpu model", "uarch", "cpu"):
            if key in block:
                return block[key]
        if block.get("CPU implementer") == "0x41" and block.get("CPU part") in _ARM_CORES:
            return f"ARM {_ARM_CORES[block['CPU part']]}"
    return None


def percent(part: int, whole: int) -> float | None:
    """Return `part` of `whole` in percent with one decimal; None of nothing."""
    return round(part / whole * 100, 1) if whole else None


class Mount(NamedTuple):
    """A line of /proc/self/mountinfo; `number` is the file system's, the same for all its mounts."""

    number: str
    mount: str
    options: str
    device: str
    fs: str


def read_mounts(mountinfo: str) -> Iterator[Mount]:
    """Yield the lines of /proc/self/mountinfo, octal escapes resolved."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        number, _, mount, options = left.split()[2:6]
        fs, device = right.split()[:2]
        yield Mount(number, _unescape(mount), options, _unescape(device), fs)


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def blocking_mounts(found: Sequence[Mount]) -> list[str]:
    """Return mount points whose path may block for ever: a network, a FUSE process, a mount yet to be made."""
    topmost = {one.mount: one for one in found}
    known = LOCAL_FS | NO_DISK_FS
    return [one.mount for one in found if one.fs not in known or (one.fs == "autofs" and topmost[one.mount] is one)]


def beneath(path: str, other: str) -> bool:
    """Return True if the path to `path` leads through `other`, or ends there."""
    return path == other or path.startswith(other.rstrip("/") + "/")


def disk_space(found: os.statvfs_result) -> dict[str, Any]:
    """Return sizes in bytes; space that only root may use counts as neither used nor available."""
    used = found.f_blocks - found.f_bfree
    return {
        "total_bytes": found.f_blocks * found.f_frsize,
        "used_bytes": used * found.f_frsize,
        "available_bytes": found.f_bavail * found.f_frsize,
        "used_percent": percent(used, used + found.f_bavail),
        "inodes_total": found.f_files,
        "inodes_free": found.f_ffree,
    }


NO_SPACE: Mapping[str, None] = dict.fromkeys(
    ("total_bytes", "used_bytes", "available_bytes", "used_percent", "inodes_total", "inodes_free")
)
"""`space` of a file system that was not asked."""


NO_TRAFFIC: Mapping[str, int | float | None] = dict.fromkeys(("read_bytes", "written_bytes", "busy_s"))
"""`traffic` of a file system that is no single block device."""


def disk_traffic(diskstats: str | None) -> Mapping[str, Mapping[str, int | float | None]]:
    """Return by device number ("8:1"): bytes read and written, and seconds busy, since boot."""
    rows = (line.split() for line in (diskstats or "").splitlines())
    return {
        f"{row[0]}:{row[1]}": {
            "read_bytes": int(row[5]) * 512,
            "written_bytes": int(row[9]) * 512,
            "busy_s": int(row[12]) / 1000,
        }
        for row in rows
        if len(row) >= 14
    }


def network_interfaces() -> list[dict[str, Any]]:
    """Return every network interface, by name. Raises OSError when the kernel does not list them."""
    import psutil  # 55 ms, and only for the network

    states, counters = psutil.net_if_stats(), psutil.net_io_counters(pernic=True, nowrap=False)
    rows = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        state, count_of = states.get(name), counters.get(name)
        macs = [one.address for one in addresses if one.family == psutil.AF_LINK and one.address.strip("0:")]
        counts = (getattr(count_of, source, None) for source in _COUNTERS.values())
        rows.append(
            {
                "name": name,
                "up": state is not None and state.isup,
                "loopback": state is not None and "loopback" in state.flags.split(","),
                "mtu": state.mtu if state else None,
                "speed_mbit": (state.speed or None) if state else None,
                "mac": macs[0] if macs else None,
                "addresses": [found for one in addresses if (found := _address(one.address, one.netmask))],
                **dict(zip(_COUNTERS, counts, strict=True)),
            }
        )
    return rows


_COUNTERS = {
    "rx_bytes": "bytes_recv", "tx_bytes": "bytes_sent",
    "rx_packets": "packets_recv", "tx_packets": "packets_sent",
    "rx_errors": "errin", "tx_errors": "errout", "rx_dropped": "dropin", "tx_dropped": "dropout",
}  # fmt: skip


def _address(address: str, netmask: str | None) -> dict[str, Any] | None:
    """Return an IP address without its scope, and its prefix length; None for a link-layer address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    bits = None if netmask is None else int(ipaddress.ip_address(netmask)).bit_count()
    return {"family": f"ipv{found.version}", "address": str(found), "prefix": bits}


# Temperatures and the machine's reactions to them, from /sys: zones, chips' temperatures, cooling devices, and
# throttling of the processor. It sets nothing, and reads no alarm that reading would clear. Single quantities by
# lasting names are in `hearth.drivers.iio.kernel`.

THROTTLES = ("undervoltage", "frequency-capped", "throttled", "soft-temperature-limit")
"""The firmware's flags of a Raspberry Pi, bits 0 to 3: true now. The same 16 bits further up: was true earlier."""


def thermal(sys: Path) -> dict[str, Any]:
    """Return temperatures in °C, cooling and throttling; lists are empty and values null on a machine that has none."""
    zones = [_zone(at) for at in entries(sys / "class/thermal", "thermal_zone*")]
    chips = entries(sys / "class/hwmon", "hwmon*")
    sensors = [
        {
            "chip": text_of(chip / "name"),
            "sensor": f"{chip.name}/{name}",
            "label": text_of(chip / f"{name}_label"),
            "celsius": read_celsius(chip / f"{name}_input"),
            "max_celsius": read_celsius(chip / f"{name}_max"),
            "critical_celsius": read_celsius(chip / f"{name}_crit"),
        }
        for chip in chips
        for name in (at.name.removesuffix("_input") for at in entries(chip, "temp*_input"))
    ]
    measured = [row["celsius"] for row in (*zones, *sensors) if row["celsius"] is not None]
    return {
        "zones": zones,
        "hwmon": sensors,
        "cooling": [_cooling(at) for at in entries(sys / "class/thermal", "cooling_device*")],
        "throttling": _throttling(sys, chips),
        "hottest_celsius": max(measured, default=None),
    }


def _zone(at: Path) -> dict[str, Any]:
    trips = []
    for kind in entries(at, "trip_point_*_type"):
        point = kind.name.removesuffix("_type")
        celsius = read_celsius(at / f"{point}_temp")
        if celsius is not None and celsius > -273:  # a trip that is switched off lies beneath
            trips.append({"type": text_of(kind), "celsius": celsius})
    critical = [trip["celsius"] for trip in trips if trip["type"] == "critical"]
    return {
        "zone": at.name,
        "type": text_of(at / "type"),
        "celsius": read_celsius(at / "temp"),
        "critical_celsius": critical[0] if critical else None,
        "trips": trips,
    }


def _cooling(at: Path) -> dict[str, Any]:
    return {
        "device": at.name,
        "type": text_of(at / "type"),
        "state": read_integer(at / "cur_state"),
        "max_state": read_integer(at / "max_state"),
    }


def _throttling(sys: Path, chips: list[Path]) -> dict[str, Any]:
    flags = _firmware_flags(sys)
    now, earlier = (
        (None, None)
        if flags is None
        else ([name for bit, name in enumerate(THROTTLES) if flags >> base + bit & 1] for base in (0, 16))
    )
    for chip in chips:
        if text_of(chip / "name") == "rpi_volt":
            low = read_integer(chip / "in0_lcrit_alarm")
            if low is not None:
                now = sorted({*(now or ()), *(["undervoltage"] if low else ())}, key=THROTTLES.index)
    cores = entries(sys / "devices/system/cpu", "cpu[0-9]*")
    counts = (read_integer(core / "thermal_throttle/core_throttle_count") for core in cores)
    events = [count for count in counts if count is not None]
    return {"now": now, "earlier": earlier, "events": sum(events) if events else None}


def _firmware_flags(sys: Path) -> int | None:
    """Return the flags of a Raspberry Pi's firmware, or None.

    Newer kernels log once that this attribute is outdated; three of its four flags are offered nowhere else.
    """
    for at in entries(sys / "devices/platform", "soc*/soc*firmware/get_throttled"):
        found = text_of(at)
        try:
            return None if found is None else int(found, 16)
        except ValueError:
            return None
    return None


MAX_ROWS = 256
"""Most interfaces or file systems in one answer; a container host can have thousands."""
_FRESH_S = 0.1
"""CPU time is counted in ticks of 10 ms: over a shorter window than this, usage would be noise."""
_FREQUENCIES = {"mhz": "scaling_cur_freq", "min_mhz": "cpuinfo_min_freq", "max_mhz": "cpuinfo_max_freq"}

_Ticks = dict[str, tuple[int, int]]
"""Per cpu line of /proc/stat ("cpu" is the sum of all): ticks spent busy, ticks in all."""


class SystemDriver(BaseDriver):
    """Telemetry of the machine. Sizes are in bytes, times in seconds, temperatures in °C, frequencies in MHz.

    `root` is the directory of proc and sys; `clock` (seconds, monotonic) times the window of CPU usage; `statvfs` asks
    a file system for its sizes; `show_addresses` lists hardware and IP addresses (draft §13). Methods raise DeviceError
    with effect "none" when /proc cannot be read.
    """

    width = 2

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
        show_addresses: bool = False,
    ) -> None:
        self._show_addresses = show_addresses
        self._proc, self._sys = root / "proc", root / "sys"
        self._clock, self._statvfs = clock, statvfs
        self._lock = threading.Lock()  # the bus runs two transactions at once, and both may ask for CPU usage
        self._since: tuple[float, _Ticks] | None = None

    def open(self) -> None:
        """Begin the window of the first CPU usage. Raises DeviceError where there is no /proc."""
        with self._lock:
            self._since = (self._clock(), self._ticks())

    def describe(self) -> Mapping[str, Any]:
        """Return the description of this bus, for health."""
        return {"kind": "telemetry", "architecture": platform.machine()}

    def cpuinfo(self) -> dict[str, Any]:
        """Return model, the cores that are online, their frequencies, and usage since an earlier call or opening.

        The window is `usage_window_ms` long; a call that comes at least 0.1 s after its beginning begins a new one.
        Usage is null when no time has been counted yet.
        """
        usage, window = self._usage()
        blocks = [pairs(block) for block in self._text("cpuinfo").split("\n\n")]
        by_number = {block["processor"]: block for block in blocks if "processor" in block}
        numbers = sorted(int(name[3:]) for name in usage if name != "cpu")
        places = {self._place(number) for number in numbers}
        return {
            "model": cpu_model(blocks),
            "architecture": platform.machine(),
            "machine": machine_name(self._sys),
            "kernel": platform.release(),
            "logical_cores": len(numbers),
            "physical_cores": None if any(None in place for place in places) else len(places),
            "usage_percent": usage["cpu"],
            "usage_window_ms": window,
            "cores": [
                {
                    "core": number,
                    "usage_percent": usage[f"cpu{number}"],
                    **self._frequencies(number, by_number.get(str(number), {})),
                }
                for number in numbers
            ],
        }

    def _place(self, number: int) -> tuple[int | None, int | None]:
        at = self._sys / f"devices/system/cpu/cpu{number}/topology"
        return read_integer(at / "physical_package_id"), read_integer(at / "core_id")

    def _frequencies(self, number: int, block: Mapping[str, str]) -> dict[str, float | None]:
        at = self._sys / f"devices/system/cpu/cpu{number}/cpufreq"
        khz = {key: read_integer(at / name) for key, name in _FREQUENCIES.items()}
        mhz = {key: None if value is None else value / 1000 for key, value in khz.items()}
        if mhz["mhz"] is None and "cpu MHz" in block:  # x86 without a cpufreq driver
            mhz["mhz"] = float(block["cpu MHz"])
        return mhz

    def _usage(self) -> tuple[dict[str, float | None], float | None]:
        with self._lock:
            now, ticks = self._clock(), self._ticks()
            since, before = self._since or (now, {})
            if self._since is None or now - since >= _FRESH_S:
                self._since = (now, ticks)
        usage: dict[str, float | None] = {}
        for name, (busy, total) in ticks.items():
            busy_then, total_then = before.get(name, (busy, total))
            spent = total - total_then
            # The kernel's idle and steal counters may step back, so the quotient is held to its range.
            usage[name] = round(min(max((busy - busy_then) / spent, 0), 1) * 100, 1) if spent > 0 else None
        return usage, round((now - since) * 1000, 3) if before else None

    def _ticks(self) -> _Ticks:
        found: _Ticks = {}
        for line in self._text("stat").splitlines():
            name, *fields = line.split()
            if name.startswith("cpu"):
                ticks = [int(field) for field in fields[:8]]  # guest time, behind those, is in user time too
                found[name] = (sum(ticks) - sum(ticks[3:5]), sum(ticks))  # less idle and waiting for a disk
        return found

    def memory(self) -> dict[str, Any]:
        """Return main memory and swap. `available_bytes` is the memory that programs can get without swapping."""
        lines = pairs(self._text("meminfo")).items()
        found = {key: int(value[:-3]) * 1024 for key, value in lines if value.endswith(" kB")}
        total, free = found["MemTotal"], found["MemFree"]
        cached = found.get("Cached", 0) + found.get("SReclaimable", 0)
        available = found.get("MemAvailable", free + cached)
        swap_total, swap_free = found.get("SwapTotal", 0), found.get("SwapFree", 0)
        return {
            "total_bytes": total,
            "available_bytes": available,
            "used_bytes": total - available,
            "used_percent": percent(total - available, total),
            "free_bytes": free,
            "buffers_bytes": found.get("Buffers", 0),
            "cached_bytes": cached,
            "oom_kills": count_of(text_of(self._proc / "vmstat"), "oom_kill"),
            "swap": {
                "total_bytes": swap_total,
                "used_bytes": swap_total - swap_free,
                "free_bytes": swap_free,
                "used_percent": percent(swap_total - swap_free, swap_total),
            },
        }

    def thermal(self) -> dict[str, Any]:
        """Return thermal zones, chips' temperatures, cooling and throttling, see `thermal`."""
        return thermal(self._sys)

    def load(self) -> dict[str, Any]:
        """Return the load averages: threads that run, want to, or wait for a disk, over 1, 5 and 15 minutes.

        Beside them the pressure: the part of the time in which threads stood still for lack of a resource.
        """
        one, five, fifteen, threads, *_ = self._text("loadavg").split()
        runnable, total = threads.split("/")
        cores = len(self._ticks()) - 1
        return {
            "load_1m": float(one),
            "load_5m": float(five),
            "load_15m": float(fifteen),
            "logical_cores": cores,
            "load_1m_per_core": round(float(one) / cores, 3),
            "runnable_threads": int(runnable),
            "threads": int(total),
            "pressure": {what: pressure(text_of(self._proc / "pressure" / what)) for what in ("cpu", "memory", "io")},
        }

    def disk(self) -> dict[str, Any]:
        """Return file systems with storage, each once, at its shortest mount point.

        File systems that are not local, and local ones mounted at or beneath such a one, come without sizes: a dead
        server would block the call for ever. Bytes read and written are the whole device's, since boot.
        """
        mounts = list(read_mounts(self._text("self/mountinfo")))
        blocking = blocking_mounts(mounts)
        traffic = disk_traffic(text_of(self._proc / "diskstats"))

        def rank(one: Mount) -> tuple[bool, int]:
            return any(beneath(one.mount, at) for at in blocking), len(one.mount)

        chosen: dict[str, Mount] = {}
        for one in mounts:
            if one.fs not in NO_DISK_FS:
                chosen[one.number] = min(chosen.get(one.number, one), one, key=rank)
        rows = [
            {
                "mount": one.mount,
                "device": one.device,
                "type": one.fs,
                "local": one.fs in LOCAL_FS,
                "read_only": "ro" in one.options.split(","),
                **(NO_SPACE if rank(one)[0] else self._space(one)),
                **traffic.get(one.number, NO_TRAFFIC),
            }
            for one in sorted(chosen.values(), key=lambda one: one.mount)[:MAX_ROWS]
        ]
        return {"filesystems": rows, "truncated": len(chosen) > MAX_ROWS}

    def _space(self, one: Mount) -> Mapping[str, Any]:
        try:
            return disk_space(self._statvfs(one.mount))
        except OSError:  # not permitted, or unmounted since
            return NO_SPACE

    def network(self) -> dict[str, Any]:
        """Return interfaces, their addresses where those are shown, and their counters since they came up."""
        try:
            found = network_interfaces()
        except OSError as error:
            raise DeviceError(f"the network interfaces cannot be listed: {error}", effect="none") from error
        shown = found[:MAX_ROWS]
        if not self._show_addresses:
            shown = [{key: value for key, value in row.items() if key not in ("mac", "addresses")} for row in shown]
        return {"interfaces": shown, "truncated": len(found) > MAX_ROWS}

    def uptime(self) -> dict[str, Any]:
        """Return how long the machine has been up, and when it was booted by its own clock."""
        booted = pairs(self._text("stat").replace("btime ", "btime: "))["btime"]
        return {
            "uptime_s": float(self._text("uptime").split()[0]),
            "boot_time": datetime.fromtimestamp(int(booted), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(errors="replace")
        except OSError as error:
            reason = f"{self._proc / name}: {error.strerror}; is /proc mounted and readable by this user?"
            raise DeviceError(reason, effect="none") from error
