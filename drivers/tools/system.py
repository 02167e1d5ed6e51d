"""The sys.* tools: telemetry of the machine that hearth runs on, with descriptions and units for an agent.

They own their descriptions and result schemas; `hearth.drivers.system` does the reading. None takes an argument, none
has an effect, and a value that a machine does not have is null or an empty list.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict

from annotated_types import Ge, Le

from hearth.annotations import schema_of
from hearth.drivers.declare import Planned, asking
from hearth.drivers.system import THROTTLES
from hearth.drivers.typed_tools import reads, tools_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.tools import Tool

Count: TypeAlias = Annotated[int, Ge(0)]
Bytes: TypeAlias = Annotated[int, Ge(0), "in bytes"]
Percent: TypeAlias = Annotated[float, Ge(0), Le(100)]
Throttles: TypeAlias = Annotated[list[Any] | None, {"items": {"enum": list(THROTTLES)}}]


class _FilesystemUsage(TypedDict):
    mount: Annotated[str, "the mount point, a path"]
    device: str
    type: Annotated[str, 'such as "ext4"']
    local: Annotated[bool, "false for network and FUSE file systems"]
    read_only: Annotated[bool, "true if mounted read-only"]
    total_bytes: Annotated[Count | None, "in bytes; null if it was not asked"]
    used_bytes: Annotated[Count | None, "in bytes"]
    available_bytes: Annotated[Count | None, "in bytes, to others than root"]
    used_percent: Annotated[Percent | None, "of what others than root may use, 0 to 100"]
    inodes_total: Annotated[Count | None, "files it can hold; 0 if it does not count them"]
    inodes_free: Annotated[Count | None, "files it can still take"]
    read_bytes: Annotated[Count | None, "read from the device since boot; null if it is no single one"]
    written_bytes: Annotated[Count | None, "written to the device since boot"]
    busy_s: Annotated[float | None, "for how long the device was at work since boot, in seconds"]


class _DiskUsage(TypedDict):
    filesystems: Annotated[list[_FilesystemUsage], "each once, at its shortest mount point"]
    truncated: Annotated[bool, "true if file systems are missing from the list"]


class _Core(TypedDict):
    core: Count
    usage_percent: Annotated[Percent | None, "0 to 100; null if no time has been counted yet"]
    mhz: Annotated[float | None, "frequency now"]
    min_mhz: Annotated[float | None, "lowest frequency"]
    max_mhz: Annotated[float | None, "highest frequency"]


class _Processor(TypedDict):
    model: str | None
    architecture: Annotated[str, 'such as "aarch64" or "x86_64"']
    machine: Annotated[str | None, 'the board or computer, such as "Raspberry Pi 5 Model B Rev 1.0"']
    kernel: Annotated[str, 'the release of the Linux kernel, such as "6.12.47"']
    logical_cores: Annotated[Count, "cores that are online"]
    physical_cores: Annotated[Count | None, "without hyper-threads; null if unknown to the kernel"]
    usage_percent: Annotated[Percent | None, "of all cores together, 0 to 100; null if no time has been counted yet"]
    usage_window_ms: Annotated[float | None, "how long usage was counted for"]
    cores: Annotated[list[_Core], "the cores that are online"]


class _Swap(TypedDict):
    total_bytes: Annotated[Bytes, "0 if there is no swap"]
    used_bytes: Bytes
    free_bytes: Bytes
    used_percent: Annotated[Percent | None, "null if there is no swap"]


class _MemoryUsage(TypedDict):
    total_bytes: Bytes
    available_bytes: Bytes
    used_bytes: Annotated[Bytes, "total less available"]
    used_percent: Annotated[Percent | None, "of the total, 0 to 100"]
    free_bytes: Annotated[Bytes, "not used at all"]
    buffers_bytes: Bytes
    cached_bytes: Annotated[Bytes, "copies of files, given up when memory is needed"]
    oom_kills: Annotated[Count | None, "processes that the kernel killed for want of memory, since boot"]
    swap: _Swap


class _Trip(TypedDict):
    type: Annotated[str | None, '"active", "passive", "hot" or "critical"']
    celsius: float


class _Zone(TypedDict):
    zone: Annotated[str, 'such as "thermal_zone0"']
    type: Annotated[str | None, 'what it watches, such as "cpu-thermal"']
    celsius: Annotated[float | None, "null if it does not answer now"]
    critical_celsius: Annotated[float | None, "where the kernel shuts the machine down"]
    trips: Annotated[list[_Trip], "temperatures at which the kernel does something"]


class _ChipSensor(TypedDict):
    chip: Annotated[str | None, 'driver, such as "nvme"']
    sensor: Annotated[str, 'such as "hwmon0/temp1"']
    label: str | None
    celsius: Annotated[float | None, "null if it does not answer now"]
    max_celsius: Annotated[float | None, "highest that the chip calls normal"]
    critical_celsius: Annotated[float | None, "where the chip takes harm"]


class _Cooling(TypedDict):
    device: Annotated[str, 'such as "cooling_device0"']
    type: Annotated[str | None, 'such as "pwm-fan" or "cpufreq-cpu0"']
    state: Annotated[Count | None, "how hard it cools: 0 is off"]
    max_state: Annotated[Count | None, "the hardest it can"]


class _Throttling(TypedDict):
    now: Annotated[
        Throttles,
        "what slows the processor down, or starves it, right now; null on machines that do not report it (a Raspberry "
        "Pi does)",
    ]
    earlier: Annotated[
        Throttles,
        "what did so since the kernel last asked the firmware, or since boot; null on machines that do not report it "
        "(a Raspberry Pi does)",
    ]
    events: Annotated[Count | None, "times that cores slowed themselves down for heat, since boot"]


class _Thermal(TypedDict):
    zones: Annotated[list[_Zone], "thermal zones"]
    hwmon: Annotated[list[_ChipSensor], "sensors of chips"]
    cooling: Annotated[list[_Cooling], "fans, and what else the kernel cools with"]
    throttling: _Throttling
    hottest_celsius: Annotated[float | None, "the highest of all; null without a reading"]


def _pressure(what: str) -> Mapping[str, Any]:
    spans = {
        f"{who}_{span}_percent": {
            **schema_of(Percent | None),
            "description": f"of the last {span} in which {whom} waited for {what}",
        }
        for who, whom in (("some", "some thread"), ("full", "all threads that had work"))
        for span in ("10s", "60s", "300s")
    }
    described = "pressure stall information; null if the kernel does not keep it"
    return {"type": ["object", "null"], "properties": spans, "description": described}


class _Pressure(TypedDict):
    cpu: Annotated[Any, _pressure("a processor")]
    memory: Annotated[Any, _pressure("memory")]
    io: Annotated[Any, _pressure("a disk")]


class _Load(TypedDict):
    load_1m: float
    load_5m: float
    load_15m: float
    logical_cores: Count
    load_1m_per_core: float
    runnable_threads: Annotated[Count, "right now"]
    threads: Annotated[Count, "in all"]
    pressure: _Pressure


class _Address(TypedDict):
    family: Literal["ipv4", "ipv6"]
    address: str
    prefix: Annotated[Count | None, "length of the network part, in bits"]


class _NetworkInterface(TypedDict):
    name: Annotated[str, 'such as "eth0"']
    up: Annotated[bool, "true if it is up and has a carrier"]
    loopback: Annotated[bool, "true for an interface that leads nowhere else"]
    mtu: Annotated[Count | None, "largest packet, in bytes"]
    speed_mbit: Annotated[Count | None, "in Mbit/s; null if it is unknown (down, virtual, wireless)"]
    mac: NotRequired[Annotated[str | None, "hardware address; only where the operator discloses addresses"]]
    addresses: NotRequired[Annotated[list[_Address], "IP addresses; only where the operator discloses them"]]
    rx_bytes: Annotated[Count | None, "received, since the interface came up"]
    rx_packets: Annotated[Count | None, "received, since the interface came up"]
    rx_errors: Annotated[Count | None, "received, since the interface came up"]
    rx_dropped: Annotated[Count | None, "received, since the interface came up"]
    tx_bytes: Annotated[Count | None, "sent, since the interface came up"]
    tx_packets: Annotated[Count | None, "sent, since the interface came up"]
    tx_errors: Annotated[Count | None, "sent, since the interface came up"]
    tx_dropped: Annotated[Count | None, "sent, since the interface came up"]


class _Network(TypedDict):
    interfaces: Annotated[list[_NetworkInterface], "by name"]
    truncated: Annotated[bool, "true if interfaces are missing from the list"]


class _Uptime(TypedDict):
    uptime_s: float
    boot_time: Annotated[str, 'such as "2026-04-19T22:48:01Z"']


_reads = partial(reads, capability="CAP_SYS_READ", timeout_ms=5000)


class _System:
    def __init__(self, bus: str) -> None:
        self._bus = bus

    @_reads("sys.cpuinfo")
    def cpuinfo(self) -> Planned[_Processor]:
        """The processor: model, architecture, cores, and per core the frequency in MHz and the usage in percent.

        Usage covers the time since an earlier call (`usage_window_ms`); for a figure over a time of your choice, call,
        wait, call again.
        """
        return asking(self._bus, lambda _, driver: driver.cpuinfo())

    @_reads("sys.memory")
    def memory(self) -> Planned[_MemoryUsage]:
        """Main memory and swap, in bytes.

        `available_bytes` is what programs can still have without swapping: it, not `free_bytes`, tells whether memory
        is short.
        """
        return asking(self._bus, lambda _, driver: driver.memory())

    @_reads("sys.thermal")
    def thermal(self) -> Planned[_Thermal]:
        """Temperatures in °C: the kernel's thermal zones and the chips' own sensors (hwmon), with their limits.

        Also what cools the machine, and what slows its processor down. The lists are empty on a machine without
        sensors, such as a virtual one. For one sensor by a lasting name see hw.sensor.read.
        """
        return asking(self._bus, lambda _, driver: driver.thermal())

    @_reads("sys.load")
    def load(self) -> Planned[_Load]:
        """Load averages over 1, 5 and 15 minutes: how many threads ran, wanted to run, or waited for a disk.

        More than 1 per core for long means the machine is overloaded; `pressure` says for want of what.
        """
        return asking(self._bus, lambda _, driver: driver.load())

    @_reads("sys.disk")
    def disk(self) -> Planned[_DiskUsage]:
        """File systems with storage: mount point, device, type, how full they are, and how much was read and written.

        In bytes and inodes. Network and FUSE file systems are named but not asked (their numbers are null), since their
        server may be gone; memory file systems such as tmpfs are left out.
        """
        return asking(self._bus, lambda _, driver: driver.disk())

    @_reads("sys.network", discloses=True)
    def network(self) -> Planned[_Network]:
        """Network interfaces: state, and the bytes and packets they have carried.

        For a rate, call twice and divide the difference by the time between. Addresses are there only where the
        operator discloses them.
        """
        return asking(self._bus, lambda _, driver: driver.network())

    @_reads("sys.uptime")
    def uptime(self) -> Planned[_Uptime]:
        """How long the machine has been up, in seconds, and when it was booted (UTC).

        By its own clock, which may be wrong on a board without a battery.
        """
        return asking(self._bus, lambda _, driver: driver.uptime())


def system_tools(bus: str = "system") -> list[Tool]:
    """Return the seven tools; `bus` is the id of the bus whose driver is a `SystemDriver`."""
    return tools_of(_System(bus))
