"""Telemetry of the machine: CPU, memory, temperatures, load, file systems, network, uptime.

Everything is read from /proc and /sys at the moment it is asked for; addresses and interface counters come
from psutil. What a machine does not have (sensors in a container, frequencies in a VM) is null or an empty
list, never an error. This driver refuses to wait: it samples no interval, and asks nothing of a file system
that a network or a FUSE process could keep from answering.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.drivers import system_sources as sources
from hearth.drivers.base import BaseDriver
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# --- system thermal ---------------------------------------------------------------------------------------------------
# How warm the machine is and what it does about it, from /sys: for `hearth.drivers.system`.
#
# Owns zones, chips' temperatures, cooling devices and what slows the processor down. It sets nothing, and asks no chip
# for an alarm that asking would clear. Single quantities by lasting names are `hearth.drivers.linux.sensors`'.

THROTTLES = ("undervoltage", "frequency-capped", "throttled", "soft-temperature-limit")
"""The firmware's flags of a Raspberry Pi, bits 0 to 3: true now. The same 16 bits further up: was true earlier."""


def thermal(sys: Path) -> dict[str, Any]:
    """Temperatures in °C, cooling and throttling; lists are empty and values null on a machine that has none."""
    zones = [_zone(at) for at in sources.numbered(sys / "class/thermal", "thermal_zone*")]
    chips = sources.numbered(sys / "class/hwmon", "hwmon*")
    sensors = [
        {
            "chip": sources.text(chip / "name"),
            "sensor": f"{chip.name}/{name}",
            "label": sources.text(chip / f"{name}_label"),
            "celsius": sources.celsius(chip / f"{name}_input"),
            "max_celsius": sources.celsius(chip / f"{name}_max"),
            "critical_celsius": sources.celsius(chip / f"{name}_crit"),
        }
        for chip in chips
        for name in (at.name.removesuffix("_input") for at in sources.numbered(chip, "temp*_input"))
    ]
    measured = [row["celsius"] for row in (*zones, *sensors) if row["celsius"] is not None]
    return {
        "zones": zones,
        "hwmon": sensors,
        "cooling": [_cooling(at) for at in sources.numbered(sys / "class/thermal", "cooling_device*")],
        "throttling": _throttling(sys, chips),
        "hottest_celsius": max(measured, default=None),
    }


def _zone(at: Path) -> dict[str, Any]:
    trips = []
    for kind in sources.numbered(at, "trip_point_*_type"):
        point = kind.name.removesuffix("_type")
        celsius = sources.celsius(at / f"{point}_temp")
        if celsius is not None and celsius > -273:  # a trip that is switched off lies beneath
            trips.append({"type": sources.text(kind), "celsius": celsius})
    critical = [trip["celsius"] for trip in trips if trip["type"] == "critical"]
    return {
        "zone": at.name,
        "type": sources.text(at / "type"),
        "celsius": sources.celsius(at / "temp"),
        "critical_celsius": critical[0] if critical else None,
        "trips": trips,
    }


def _cooling(at: Path) -> dict[str, Any]:
    return {
        "device": at.name,
        "type": sources.text(at / "type"),
        "state": sources.integer(at / "cur_state"),
        "max_state": sources.integer(at / "max_state"),
    }


def _throttling(sys: Path, chips: list[Path]) -> dict[str, Any]:
    flags = _firmware_flags(sys)
    now, earlier = (
        (None, None)
        if flags is None
        else ([name for bit, name in enumerate(THROTTLES) if flags >> base + bit & 1] for base in (0, 16))
    )
    for chip in chips:
        if sources.text(chip / "name") == "rpi_volt":
            low = sources.integer(chip / "in0_lcrit_alarm")
            if low is not None:
                now = sorted({*(now or ()), *(["undervoltage"] if low else ())}, key=THROTTLES.index)
    cores = sources.numbered(sys / "devices/system/cpu", "cpu[0-9]*")
    counts = (sources.integer(core / "thermal_throttle/core_throttle_count") for core in cores)
    events = [count for count in counts if count is not None]
    return {"now": now, "earlier": earlier, "events": sum(events) if events else None}


def _firmware_flags(sys: Path) -> int | None:
    """The flags of a Raspberry Pi's firmware, or None.

    Newer kernels log once that this attribute is outdated; three of its four flags they offer nowhere else.
    """
    for at in sources.numbered(sys / "devices/platform", "soc*/soc*firmware/get_throttled"):
        found = sources.text(at)
        try:
            return None if found is None else int(found, 16)
        except ValueError:
            return None
    return None


# --- system -----------------------------------------------------------------------------------------------------------

MAX_ROWS = 256
"""Most interfaces or file systems in one answer; a container host can have thousands."""
_FRESH_S = 0.1
"""CPU time is counted in ticks of 10 ms: over a shorter window than this, usage would be noise."""
_FREQUENCIES = {"mhz": "scaling_cur_freq", "min_mhz": "cpuinfo_min_freq", "max_mhz": "cpuinfo_max_freq"}

_Ticks = dict[str, tuple[int, int]]
"""Per cpu line of /proc/stat ("cpu" is the sum of all): ticks spent busy, ticks in all."""


class SystemDriver(BaseDriver):
    """Reads the machine. Sizes are in bytes, times in seconds, temperatures in °C, frequencies in MHz.

    `root` is where proc and sys are looked for; `clock` (seconds, monotonic) times the window of CPU usage;
    `statvfs` asks a file system for its sizes; `show_addresses` lists hardware and IP addresses
    (draft §13). Methods raise DeviceError with effect "none" when /proc cannot be read.
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
        """What this bus is, for health."""
        return {"kind": "telemetry", "architecture": platform.machine()}

    def cpuinfo(self) -> dict[str, Any]:
        """Model, the cores that are online, their frequencies, and usage since an earlier call or opening.

        The window is `usage_window_ms` long; a call that comes at least 0.1 s after its beginning begins a
        new one. Usage is null when no time has been counted yet.
        """
        usage, window = self._usage()
        blocks = [sources.pairs(block) for block in self._text("cpuinfo").split("\n\n")]
        by_number = {block["processor"]: block for block in blocks if "processor" in block}
        numbers = sorted(int(name[3:]) for name in usage if name != "cpu")
        places = {self._place(number) for number in numbers}
        return {
            "model": sources.cpu_model(blocks),
            "architecture": platform.machine(),
            "machine": sources.machine(self._sys),
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
        return sources.integer(at / "physical_package_id"), sources.integer(at / "core_id")

    def _frequencies(self, number: int, block: Mapping[str, str]) -> dict[str, float | None]:
        at = self._sys / f"devices/system/cpu/cpu{number}/cpufreq"
        khz = {key: sources.integer(at / name) for key, name in _FREQUENCIES.items()}
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
        """Main memory and swap. `available_bytes` is what programs can have without swapping."""
        lines = sources.pairs(self._text("meminfo")).items()
        found = {key: int(value[:-3]) * 1024 for key, value in lines if value.endswith(" kB")}
        total, free = found["MemTotal"], found["MemFree"]
        cached = found.get("Cached", 0) + found.get("SReclaimable", 0)
        available = found.get("MemAvailable", free + cached)
        swap_total, swap_free = found.get("SwapTotal", 0), found.get("SwapFree", 0)
        return {
            "total_bytes": total,
            "available_bytes": available,
            "used_bytes": total - available,
            "used_percent": sources.percent(total - available, total),
            "free_bytes": free,
            "buffers_bytes": found.get("Buffers", 0),
            "cached_bytes": cached,
            "oom_kills": sources.count(sources.text(self._proc / "vmstat"), "oom_kill"),
            "swap": {
                "total_bytes": swap_total,
                "used_bytes": swap_total - swap_free,
                "free_bytes": swap_free,
                "used_percent": sources.percent(swap_total - swap_free, swap_total),
            },
        }

    def thermal(self) -> dict[str, Any]:
        """Thermal zones, chips' temperatures, cooling and throttling, see `thermal`."""
        return thermal(self._sys)

    def load(self) -> dict[str, Any]:
        """The load averages: threads that run or want to, or wait for a disk, over 1, 5 and 15 minutes.

        Beside them the pressure: for how much of the time threads stood still for want of something.
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
            "pressure": {
                what: sources.pressure(sources.text(self._proc / "pressure" / what)) for what in ("cpu", "memory", "io")
            },
        }

    def disk(self) -> dict[str, Any]:
        """File systems with storage, each once, at its shortest mount point.

        Those that are not local, and local ones whose mount point lies at or beneath such a one, come without
        sizes: a server that is gone would keep the question for ever. What was read and written is the whole
        device's, since boot.
        """
        mounts = list(sources.mounts(self._text("self/mountinfo")))
        doubtful = sources.doubtful(mounts)
        traffic = sources.traffic(sources.text(self._proc / "diskstats"))

        def rank(one: sources.Mount) -> tuple[bool, int]:
            return any(sources.beneath(one.mount, at) for at in doubtful), len(one.mount)

        chosen: dict[str, sources.Mount] = {}
        for one in mounts:
            if one.fs not in sources.NO_DISK_FS:
                chosen[one.number] = min(chosen.get(one.number, one), one, key=rank)
        rows = [
            {
                "mount": one.mount,
                "device": one.device,
                "type": one.fs,
                "local": one.fs in sources.LOCAL_FS,
                "read_only": "ro" in one.options.split(","),
                **(sources.NO_SPACE if rank(one)[0] else self._space(one)),
                **traffic.get(one.number, sources.NO_TRAFFIC),
            }
            for one in sorted(chosen.values(), key=lambda one: one.mount)[:MAX_ROWS]
        ]
        return {"filesystems": rows, "truncated": len(chosen) > MAX_ROWS}

    def _space(self, one: sources.Mount) -> Mapping[str, Any]:
        try:
            return sources.space(self._statvfs(one.mount))
        except OSError:  # not permitted, or unmounted since
            return sources.NO_SPACE

    def network(self) -> dict[str, Any]:
        """Interfaces, their addresses where those are shown, and their counters since they came up."""
        try:
            found = sources.interfaces()
        except OSError as error:
            raise DeviceError(f"the network interfaces cannot be listed: {error}", effect="none") from error
        shown = found[:MAX_ROWS]
        if not self._show_addresses:
            shown = [{key: value for key, value in row.items() if key not in ("mac", "addresses")} for row in shown]
        return {"interfaces": shown, "truncated": len(found) > MAX_ROWS}

    def uptime(self) -> dict[str, Any]:
        """How long the machine has been up, and when it was booted by its own clock."""
        booted = sources.pairs(self._text("stat").replace("btime ", "btime: "))["btime"]
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
