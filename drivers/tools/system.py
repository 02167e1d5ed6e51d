"""The sys.* tools: telemetry of the machine that hearth runs on, with descriptions and units for an agent.

They own their descriptions and result schemas; `hearth.drivers.system` does the reading. None takes an argument, none
has an effect, and a value that a machine does not have is null or an empty list.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hearth.drivers import schemas
from hearth.drivers.declare import tool, transacts
from hearth.drivers.system import THROTTLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.drivers.schemas import Schema
    from hearth.tools import Tool

_COUNT: Schema = {"type": "integer", "minimum": 0}
_BYTES: Schema = {**_COUNT, "description": "in bytes"}
_SINCE_UP = "since the interface came up"


def system_tools(bus: str = "system") -> list[Tool]:
    """Return the seven tools; `bus` is the id of the bus whose driver is a `SystemDriver`."""
    reads = partial(_tool, bus)
    filesystem = _row(
        mount={"type": "string", "description": "the mount point, a path"},
        device={"type": "string"},
        type={"type": "string", "description": 'such as "ext4"'},
        local=schemas.flag("false for network and FUSE file systems"),
        read_only=schemas.flag("true if mounted read-only"),
        total_bytes=_or_null(_COUNT, "in bytes; null if it was not asked"),
        used_bytes=_or_null(_COUNT, "in bytes"),
        available_bytes=_or_null(_COUNT, "in bytes, to others than root"),
        used_percent=_percent("of what others than root may use, 0 to 100"),
        inodes_total=_or_null(_COUNT, "files it can hold; 0 if it does not count them"),
        inodes_free=_or_null(_COUNT, "files it can still take"),
        read_bytes=_or_null(_COUNT, "read from the device since boot; null if it is no single one"),
        written_bytes=_or_null(_COUNT, "written to the device since boot"),
        busy_s=_or_null(_number(), "for how long the device was at work since boot, in seconds"),
    )
    return [
        reads(
            "sys.cpuinfo",
            "The processor: model, architecture, cores, and per core the frequency in MHz and the usage in percent. "
            "Usage covers the time since an earlier call (`usage_window_ms`); for a figure over a time of your choice, "
            "call, wait, call again.",
            lambda driver: driver.cpuinfo(),
            model={"type": ["string", "null"]},
            architecture={"type": "string", "description": 'such as "aarch64" or "x86_64"'},
            machine=_or_null({"type": "string"}, 'the board or computer, such as "Raspberry Pi 5 Model B Rev 1.0"'),
            kernel={"type": "string", "description": 'the release of the Linux kernel, such as "6.12.47"'},
            logical_cores=_described(_COUNT, "cores that are online"),
            physical_cores=_or_null(_COUNT, "without hyper-threads; null if unknown to the kernel"),
            usage_percent=_percent("of all cores together, 0 to 100; null if no time has been counted yet"),
            usage_window_ms=_or_null(_number(), "how long usage was counted for"),
            cores=schemas.listed(
                "the cores that are online",
                _row(
                    core=_COUNT,
                    usage_percent=_percent("0 to 100; null if no time has been counted yet"),
                    mhz=_or_null(_number(), "frequency now"),
                    min_mhz=_or_null(_number(), "lowest frequency"),
                    max_mhz=_or_null(_number(), "highest frequency"),
                ),
            ),
        ),
        reads(
            "sys.memory",
            "Main memory and swap, in bytes. `available_bytes` is what programs can still have without swapping: "
            "it, not `free_bytes`, tells whether memory is short.",
            lambda driver: driver.memory(),
            total_bytes=_BYTES,
            available_bytes=_BYTES,
            used_bytes=_described(_BYTES, "total less available"),
            used_percent=_percent("of the total, 0 to 100"),
            free_bytes=_described(_BYTES, "not used at all"),
            buffers_bytes=_BYTES,
            cached_bytes=_described(_BYTES, "copies of files, given up when memory is needed"),
            oom_kills=_or_null(_COUNT, "processes that the kernel killed for want of memory, since boot"),
            swap=_row(
                total_bytes=_described(_BYTES, "0 if there is no swap"),
                used_bytes=_BYTES,
                free_bytes=_BYTES,
                used_percent=_percent("null if there is no swap"),
            ),
        ),
        reads(
            "sys.thermal",
            "Temperatures in °C: the kernel's thermal zones and the chips' own sensors (hwmon), with the limits they "
            "declare; what cools the machine, and what slows its processor down. The lists are empty on a machine "
            "without sensors, such as a virtual one. For one sensor by a lasting name see hw.sensor.read.",
            lambda driver: driver.thermal(),
            zones=schemas.listed(
                "thermal zones",
                _row(
                    zone={"type": "string", "description": 'such as "thermal_zone0"'},
                    type=_or_null({"type": "string"}, 'what it watches, such as "cpu-thermal"'),
                    celsius=_or_null(_number(), "null if it does not answer now"),
                    critical_celsius=_or_null(_number(), "where the kernel shuts the machine down"),
                    trips=schemas.listed(
                        "temperatures at which the kernel does something",
                        _row(
                            type=_or_null({"type": "string"}, '"active", "passive", "hot" or "critical"'),
                            celsius=_number(),
                        ),
                    ),
                ),
            ),
            hwmon=schemas.listed(
                "sensors of chips",
                _row(
                    chip=_or_null({"type": "string"}, 'driver, such as "nvme"'),
                    sensor={"type": "string", "description": 'such as "hwmon0/temp1"'},
                    label={"type": ["string", "null"]},
                    celsius=_or_null(_number(), "null if it does not answer now"),
                    max_celsius=_or_null(_number(), "highest that the chip calls normal"),
                    critical_celsius=_or_null(_number(), "where the chip takes harm"),
                ),
            ),
            cooling=schemas.listed(
                "fans, and what else the kernel cools with",
                _row(
                    device={"type": "string", "description": 'such as "cooling_device0"'},
                    type=_or_null({"type": "string"}, 'such as "pwm-fan" or "cpufreq-cpu0"'),
                    state=_or_null(_COUNT, "how hard it cools: 0 is off"),
                    max_state=_or_null(_COUNT, "the hardest it can"),
                ),
            ),
            throttling=_row(
                now=_throttles("what slows the processor down, or starves it, right now"),
                earlier=_throttles("what did so since the kernel last asked the firmware, or since boot"),
                events=_or_null(_COUNT, "times that cores slowed themselves down for heat, since boot"),
            ),
            hottest_celsius=_or_null(_number(), "the highest of all; null without a reading"),
        ),
        reads(
            "sys.load",
            "Load averages over 1, 5 and 15 minutes: how many threads ran, wanted to run, or waited for a disk. More "
            "than 1 per core for long means the machine is overloaded; `pressure` says for want of what.",
            lambda driver: driver.load(),
            load_1m=_number(),
            load_5m=_number(),
            load_15m=_number(),
            logical_cores=_COUNT,
            load_1m_per_core=_number(),
            runnable_threads=_described(_COUNT, "right now"),
            threads=_described(_COUNT, "in all"),
            pressure=_row(cpu=_pressure("a processor"), memory=_pressure("memory"), io=_pressure("a disk")),
        ),
        reads(
            "sys.disk",
            "File systems with storage: mount point, device, type, how full they are, in bytes and inodes, and how "
            "much was read and written. Network and FUSE file systems are named but not asked (their numbers are "
            "null), since their server may be gone; memory file systems such as tmpfs are left out.",
            lambda driver: driver.disk(),
            filesystems=schemas.listed("each once, at its shortest mount point", filesystem),
            truncated=schemas.flag("true if file systems are missing from the list"),
        ),
        reads(
            "sys.network",
            "Network interfaces: state, and the bytes and packets they have carried. For a rate, call twice and divide "
            "the difference by the time between. Addresses are there only where the operator discloses them.",
            lambda driver: driver.network(),
            interfaces=schemas.listed(
                "by name",
                schemas.object_of(
                    {
                        "name": {"type": "string", "description": 'such as "eth0"'},
                        "up": schemas.flag("true if it is up and has a carrier"),
                        "loopback": schemas.flag("true for an interface that leads nowhere else"),
                        "mtu": _or_null(_COUNT, "largest packet, in bytes"),
                        "speed_mbit": _or_null(_COUNT, "in Mbit/s; null if it is unknown (down, virtual, wireless)"),
                        "mac?": _or_null(
                            {"type": "string"}, "hardware address; only where the operator discloses addresses"
                        ),
                        "addresses?": schemas.listed(
                            "IP addresses; only where the operator discloses them",
                            _row(
                                family={"enum": ["ipv4", "ipv6"]},
                                address={"type": "string"},
                                prefix=_or_null(_COUNT, "length of the network part, in bits"),
                            ),
                        ),
                        **{
                            f"{way}_{what}": _or_null(_COUNT, f"{word}, {_SINCE_UP}")
                            for way, word in (("rx", "received"), ("tx", "sent"))
                            for what in ("bytes", "packets", "errors", "dropped")
                        },
                    }
                ),
            ),
            truncated=schemas.flag("true if interfaces are missing from the list"),
        ),
        reads(
            "sys.uptime",
            "How long the machine has been up, in seconds, and when it was booted (UTC, by its own clock, which may "
            "be wrong on a board without a battery).",
            lambda driver: driver.uptime(),
            uptime_s=_number(),
            boot_time={"type": "string", "description": 'such as "2026-04-19T22:48:01Z"'},
        ),
    ]


def _tool(bus: str, name: str, description: str, read: Callable[[Any], Mapping[str, Any]], **results: Schema) -> Tool:
    return tool(
        name,
        description,
        {},
        results,
        capability="CAP_SYS_READ",
        risk_level=0,
        timeout_ms=5000,
        bus=lambda _args: bus,
        run=transacts(lambda _ctx, _args: read),
        discloses=name == "sys.network",
    )


def _row(**properties: Schema) -> Schema:
    return schemas.object_of(properties)


def _number() -> Schema:
    return {"type": "number"}


def _percent(description: str) -> Schema:
    return {"type": ["number", "null"], "minimum": 0, "maximum": 100, "description": description}


def _pressure(what: str) -> Schema:
    spans = {
        f"{who}_{span}_percent": _percent(f"of the last {span} in which {whom} waited for {what}")
        for who, whom in (("some", "some thread"), ("full", "all threads that had work"))
        for span in ("10s", "60s", "300s")
    }
    description = "pressure stall information; null if the kernel does not keep it"
    return {"type": ["object", "null"], "properties": spans, "description": description}


def _throttles(description: str) -> Schema:
    return {
        "type": ["array", "null"],
        "items": {"enum": list(THROTTLES)},
        "description": f"{description}; null on machines that do not report it (a Raspberry Pi does)",
    }


def _described(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


def _or_null(schema: Schema, description: str) -> Schema:
    return {**schema, "type": [schema["type"], "null"], "description": description}
