"""Watches the machine that hearth runs on for a while: load, memory, temperatures, disks, network, and any sensor."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from statistics import fmean
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from annotated_types import Ge, Le, Len, MaxLen
from attrs import asdict, frozen

from hearth import Job, Limit, StepFailed, capability

Result: TypeAlias = dict[str, Any]
"""The result of a tool, with `at` and `at_s`."""
Check: TypeAlias = Literal["cpu", "memory", "load", "disk", "temperature"]
Percent: TypeAlias = Annotated[float, Ge(0), Le(100)]


@frozen
class Course:
    """One quantity over all looks."""

    mean: float
    min: float
    max: float


@frozen
class Traffic:
    """Bytes per second from the first look to the last."""

    in_bytes_per_s: Annotated[float | None, "received, or read"]
    out_bytes_per_s: Annotated[float | None, "sent, or written"]


@frozen
class HealthFinding:
    """A quantity above its threshold."""

    check: Check
    subject: Annotated[str, "what it is about, such as a mount point"]
    value: Annotated[float, "what was measured"]
    limit: Annotated[float, "the threshold"]
    message: Annotated[str, "the same as a sentence"]


@frozen
class MachineReport:
    """The computer."""

    name: Annotated[str | None, "the board or computer, where it tells"]
    processor: str | None
    architecture: str
    kernel: Annotated[str, "release of the Linux kernel"]
    cores: Annotated[int, Ge(1)]


@frozen
class Filesystem:
    """One file system."""

    mount: str
    used_percent: float | None
    available_bytes: Annotated[int, Ge(0)]


@frozen
class SensorAnswer:
    """One answer of a sensor."""

    sensor: str
    value: Annotated[float | None, "null if it did not answer"]
    unit: str | None
    error: Annotated[str | None, "why it did not answer"]


@frozen
class Health:
    """The outputs."""

    healthy: Annotated[bool, "true if there are no findings"]
    findings: Annotated[list[HealthFinding], "what is beyond a threshold"]
    machine: MachineReport
    uptime_s: Annotated[float, Ge(0), "seconds since the machine was booted"]
    watched_s: Annotated[float, Ge(0), "seconds from the first look to the last"]
    samples: Annotated[int, Ge(1), "looks that were taken"]
    cpu_percent: Annotated[Course | None, "of all cores together, 0 to 100"]
    memory_percent: Annotated[Course | None, "in use, of all main memory"]
    load_per_core: Annotated[Course | None, "load average of a minute, for each core"]
    celsius: Annotated[Course | None, "the hottest sensor of the machine; null where it has none"]
    network: Annotated[Traffic, "over all interfaces that lead somewhere"]
    disk: Annotated[Traffic, "over all devices with file systems"]
    filesystems: Annotated[list[Filesystem], "file systems that were asked, as they were at the end"]
    sensors: Annotated[list[SensorAnswer], "the sensors that were asked for, as they were at the end"]


@frozen
class Look:
    """One look at the machine."""

    sample: Result
    """As in report.json."""
    heat: list[tuple[float, str]]
    """Temperatures in °C, each with the name of its sensor."""

    @property
    def hottest(self) -> float | None:
        """The highest temperature, if there is any."""
        return max((celsius for celsius, _ in self.heat), default=None)


@capability(
    "host-health-report",
    version="2.0.0",
    tools=[
        "sys.uptime", "sys.cpuinfo", "sys.network", "sys.disk", "sys.memory", "sys.load", "sys.thermal",
        "hw.sensor.read",
    ],
    risk_ceiling="R1",
    involves_physical_resources=False,
    resource_types=["host_telemetry"],
    max_duration="P1D",
    concurrent_limit=2,
    formats=["host-health"],
    limits={"watching_time": Limit(lambda samples, interval_s: samples * interval_s, max=82800, unit="second")},
)  # fmt: skip
async def report(
    job: Job,
    *,
    samples: Annotated[int, Ge(2), Le(2000), "how often to look"] = 10,
    interval_s: Annotated[float, Ge(0.05), Le(3600), "seconds from one look to the next"] = 1,
    sensors: Annotated[
        tuple[Annotated[str, Len(1, 256)], ...],
        MaxLen(8),
        {"uniqueItems": True},
        "sensors to look at too, by their names in hw.sensor.list",
    ] = (),
    max_cpu_percent: Annotated[Percent, "a finding, if the processor is busier than this on average"] = 90,
    max_memory_percent: Annotated[Percent, "a finding, if more of the memory than this is in use at any time"] = 90,
    max_disk_percent: Annotated[Percent, "a finding for each file system that is fuller than this"] = 90,
    max_celsius: Annotated[
        float, Ge(-50), Le(200), "a finding for each thermal zone that is hotter than this at any time"
    ] = 80,
    max_load_per_core: Annotated[
        float, Ge(0), Le(1000), "a finding, if the load average of a minute is above this for each core"
    ] = 1.5,
) -> Health:
    """Report on the health of the machine that hearth runs on.

    Watches processor, memory, load and temperatures for a while, then says what is out of bounds, with the figures
    of it, network and disk traffic, every sample in a JSON report and a plot over time. The machine's real
    telemetry on every board, simulated or not. Reads only.
    """
    inputs = {
        "samples": samples,
        "interval_s": interval_s,
        "sensors": sensors,
        "max_cpu_percent": max_cpu_percent,
        "max_memory_percent": max_memory_percent,
        "max_disk_percent": max_disk_percent,
        "max_celsius": max_celsius,
        "max_load_per_core": max_load_per_core,
    }
    job.phase = "first_look"
    uptime = await ask(job, "sys.uptime")
    # Usage is counted from the call before: this one begins the first sample.
    processor = await ask(job, "sys.cpuinfo")
    network = {"before": await ask(job, "sys.network")}
    disk = {"before": await ask(job, "sys.disk")}
    looks: list[Look] = []
    try:
        job.phase = "watching"
        await job.sleep(interval_s)
        async for number in job.every(interval_s, samples):
            await job.report((number - 1) / samples, f"look {number} of {samples}")
            looks.append(await look(job, sensors))
        job.phase = "last_look"
        network["after"] = await ask(job, "sys.network")
        disk["after"] = await ask(job, "sys.disk")
    finally:
        document = {
            "started_at": iso(job.started_at),
            "inputs": inputs,
            "machine": processor,
            "uptime": uptime,
            "samples": [look.sample for look in looks],
            "network": network,
            "disk": disk,
        }
        pretty = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        job.artifact(
            "report.json", orjson.dumps(document, default=asdict, option=pretty), media_type="application/json"
        )
        if looks:
            draw(job, looks)
            job.partial(uptime_s=uptime["uptime_s"], **watched(looks))
    filesystems = disk["after"]["filesystems"]
    found = findings(looks, filesystems, inputs)
    return Health(
        healthy=not found,
        findings=found,
        machine=MachineReport(
            name=processor["machine"],
            processor=processor["model"],
            architecture=processor["architecture"],
            kernel=processor["kernel"],
            cores=processor["logical_cores"],
        ),
        uptime_s=uptime["uptime_s"],
        **watched(looks),
        network=Traffic(rate(network, "interfaces", "rx_bytes"), rate(network, "interfaces", "tx_bytes")),
        disk=Traffic(rate(disk, "filesystems", "read_bytes"), rate(disk, "filesystems", "written_bytes")),
        filesystems=[
            Filesystem(one["mount"], one["used_percent"], one["available_bytes"])
            for one in filesystems
            if one["available_bytes"] is not None
        ],
    )


async def ask(job: Job, tool: str) -> Result:
    """Return the result of a tool, with its time."""
    result = await job.run(tool)
    return {"at": iso(job.at), "at_s": job.elapsed_s, **result}


async def look(job: Job, sensors: Iterable[str]) -> Look:
    """Ask for everything once."""
    cpu = await ask(job, "sys.cpuinfo")
    memory = await job.run("sys.memory")
    load = await job.run("sys.load")
    thermal = await job.run("sys.thermal")
    sample = {
        "at": cpu["at"],
        "at_s": cpu["at_s"],
        "cpu_percent": cpu["usage_percent"],
        "cores_percent": known(core["usage_percent"] for core in cpu["cores"]),
        "memory_percent": memory["used_percent"],
        "available_bytes": memory["available_bytes"],
        "swap_used_bytes": memory["swap"]["used_bytes"],
        "load_1m": load["load_1m"],
        "load_1m_per_core": load["load_1m_per_core"],
        "pressure": load["pressure"],
        "zones": [{key: zone[key] for key in ("zone", "type", "celsius")} for zone in thermal["zones"]],
        "chips": [{key: chip[key] for key in ("sensor", "chip", "celsius")} for chip in thermal["hwmon"]],
        "sensors": [await read(job, sensor) for sensor in sensors],
    }
    heat = [(zone["celsius"], zone["type"] or zone["zone"]) for zone in thermal["zones"]]
    heat += [(chip["celsius"], chip["label"] or chip["sensor"]) for chip in thermal["hwmon"]]
    return Look(sample, [(celsius, name) for celsius, name in heat if celsius is not None])


async def read(job: Job, sensor: str) -> SensorAnswer:
    """Read a sensor; one that does not answer is a warning."""
    try:
        result = await job.run("hw.sensor.read", sensor=sensor)
    except StepFailed as failed:
        await job.warn(f"{failed}; the report goes on", code="step_failed", error_code=failed.error_code)
        return SensorAnswer(sensor, None, None, str(failed))
    return SensorAnswer(sensor, result["value"], result["unit"], None)


def watched(looks: list[Look]) -> dict[str, Any]:
    """Return the outputs that one or more looks give."""
    first, last = looks[0].sample, looks[-1].sample
    return {
        "watched_s": round(last["at_s"] - first["at_s"], 3),
        "samples": len(looks),
        "cpu_percent": course(column(looks, "cpu_percent")),
        "memory_percent": course(column(looks, "memory_percent")),
        "load_per_core": course(column(looks, "load_1m_per_core"), digits=3),
        "celsius": course(known(look.hottest for look in looks)),
        "sensors": last["sensors"],
    }


def column(looks: list[Look], name: str) -> list[float]:
    """Return one quantity of all looks that have it."""
    return known(look.sample[name] for look in looks)


def known(values: Iterable[float | None]) -> list[float]:
    """Return the values without the gaps."""
    return [value for value in values if value is not None]


def course(values: list[float], digits: int = 2) -> Course | None:
    """Return mean, least and greatest, if there are any values."""
    return Course(round(fmean(values), digits), min(values), max(values)) if values else None


def rate(results: dict[str, Result], devices: str, counter: str) -> float | None:
    """Return the growth of a counter per second, over all devices but loopback."""

    def total(result: Result) -> int:
        return sum(one[counter] or 0 for one in result[devices] if not one.get("loopback"))

    before, after = results["before"], results["after"]
    seconds = after["at_s"] - before["at_s"]
    return round((total(after) - total(before)) / seconds, 1) if seconds else None


def findings(looks: list[Look], filesystems: list[Result], inputs: Mapping[str, Any]) -> list[HealthFinding]:
    """Return the quantities above their limits; of the temperatures the highest."""
    cpu, load = column(looks, "cpu_percent"), column(looks, "load_1m_per_core")
    memory = max(column(looks, "memory_percent"), default=None)
    heat = [each for look in looks for each in look.heat]
    celsius, place = max(heat, key=lambda each: each[0], default=(None, ""))
    measured: list[tuple[Check, str, float | None, float]] = [
        ("cpu", "processor, on average", fmean(cpu) if cpu else None, inputs["max_cpu_percent"]),
        ("memory", "main memory", memory, inputs["max_memory_percent"]),
        ("load", "load for each core", max(load), inputs["max_load_per_core"]),
        *(
            ("disk", one["mount"], one["used_percent"], inputs["max_disk_percent"])
            for one in filesystems
            if one["local"] and not one["read_only"]
        ),
        ("temperature", place, celsius, inputs["max_celsius"]),
    ]
    return [
        HealthFinding(check, subject, round(value, 2), limit, f"{subject}: {round(value, 2)} is above {limit:g}")
        for check, subject, value, limit in measured
        if value is not None and value > limit
    ]


def draw(job: Job, looks: list[Look]) -> None:
    """Plot the looks over time."""
    samples = [look.sample for look in looks]
    job.plot(
        "health.png",
        name="plot",
        title="Health of the machine",
        x=[sample["at_s"] for sample in samples],
        x_label="seconds since the job began",
        y_label="%, °C",
        series={
            "CPU %": [sample["cpu_percent"] for sample in samples],
            "memory %": [sample["memory_percent"] for sample in samples],
            "waiting for CPU %": [(sample["pressure"]["cpu"] or {}).get("some_10s_percent") for sample in samples],
            "hottest °C": [look.hottest for look in looks],
        },
    )


def iso(instant: datetime) -> str:
    """Return an instant in UTC as ISO 8601, to the millisecond."""
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
