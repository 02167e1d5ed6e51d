"""Reads one thermometer at even intervals; reports statistics, a confidence, and every reading as a CSV file."""

import csv
import io
import statistics
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Len
from attrs import asdict, astuple, fields, frozen

from hearth import CapabilityFailed, Escalation, Job, Limit, capability

Unit: TypeAlias = Literal["celsius", "kelvin", "fahrenheit"]

REPORT_EVERY = 10
"""Readings from one intermediate result to the next."""


@frozen
class Reading:
    """One row of readings.csv."""

    at: str
    at_s: float
    value: float
    unit: str


@frozen
class Survey:
    """The outputs."""

    sensor: Annotated[str, "the sensor that was read"]
    unit: Annotated[Unit, "of mean, min, max, stddev and trend"]
    samples: Annotated[int, Ge(2), "readings, of which all of this is made"]
    mean: float
    min: float
    max: float
    stddev: Annotated[float, Ge(0), "standard deviation of the readings, as of a sample"]
    trend_per_hour: Annotated[float | None, "slope of the line that fits best; null if all were read at one time"]
    first_at: Annotated[str, "when the first reading was taken: ISO 8601, UTC"]
    last_at: Annotated[str, "when the last one was"]
    duration_s: Annotated[float, Ge(0), "seconds from the first reading to the last"]
    confidence: Annotated[float, Ge(0), Le(1), "1 - stddev / tolerance, and 0 where that is less"]


@capability(
    "bench-climate-survey",
    version="2.0.0",
    tools=["hw.sensor.read"],
    risk_floor="R1",
    risk_ceiling="R2",
    involves_physical_resources=False,
    resource_types=["temperature_sensor"],
    max_duration="P1D",
    concurrent_limit=4,
    formats=["climate-survey"],
    escalate=[
        Escalation(
            when=lambda samples, interval_s: interval_s < 0.05 and samples > 500,
            risk="R2",
            because="many readings without a pause between them keep the sensor's bus busy for all other users",
            cure="send an interval_s of 0.05 or more, or at most 500 samples",
        )
    ],
    # Refused at once, instead of after a day: what cannot be done within max_duration.
    limits={
        "sampling_time": Limit(lambda samples, interval_s: samples * interval_s, max=82800, unit="second"),
    },
)
async def survey(
    job: Job,
    *,
    sensor: Annotated[
        str, Len(1, 256), "the sensor, by its name in hw.sensor.list; it must measure a temperature"
    ] = "temperature",
    samples: Annotated[int, Ge(2), Le(5000), "how many readings to take"] = 20,
    interval_s: Annotated[
        float, Ge(0), Le(3600), "seconds from one reading to the next; 0 is as fast as the sensor answers"
    ] = 1,
    unit: Annotated[Unit, "the unit of the results, whatever the sensor's own is"] = "celsius",
    tolerance: Annotated[
        float,
        Gt(0),
        Le(1000),
        "the standard deviation, in `unit`, at which the readings say nothing any more (confidence 0)",
    ] = 2,
) -> Survey:
    """Survey the climate of a bench, a rack or a room.

    Reads one temperature sensor at even intervals for a while, and reports mean, least, greatest, spread and trend,
    with every reading as a CSV file. The confidence is 1 where all readings are the same and falls to 0 as their
    standard deviation reaches `tolerance`. Reads only; hw.sensor.list names the sensors.
    """
    readings: list[Reading] = []
    job.phase = "sampling"
    try:
        async for number in job.every(interval_s, samples):
            await job.report((number - 1) / samples, f"reading {number} of {samples}")
            reading = await read(job, sensor)
            readings.append(reading)
            if number % REPORT_EVERY == 0:
                await job.report(result_type="sample", samples=number, latest=reading.value, unit=reading.unit)
    finally:
        # Also where the job fails or is aborted: these readings are kept, with the statistics of them.
        if readings:
            job.artifact("readings.csv", csv_file(readings), media_type="text/csv")
        if len(readings) > 1:
            job.partial(**asdict(summary(readings, sensor, unit, tolerance)))
    return summary(readings, sensor, unit, tolerance)


async def read(job: Job, sensor: str) -> Reading:
    """Read the thermometer; twice again if something that passes stands in the way."""
    found = await job.retry(lambda: job.run("hw.sensor.read", sensor=sensor), times=2, after_s=0.2)
    if found["unit"] not in ("celsius", "kelvin", "fahrenheit"):
        raise CapabilityFailed(f"{sensor} measures {found['unit']}, which is not a temperature; name a thermometer")
    return Reading(iso(job.at), round(job.elapsed_s, 6), found["value"], found["unit"])


def summary(readings: list[Reading], sensor: str, unit: Unit, tolerance: float) -> Survey:
    """Return the statistics of two or more readings."""
    values = [converted(reading.value, reading.unit, unit) for reading in readings]
    seconds = [reading.at_s for reading in readings]
    stddev = statistics.stdev(values)
    moved = len(set(seconds)) > 1
    return Survey(
        sensor=sensor,
        unit=unit,
        samples=len(values),
        mean=round(statistics.fmean(values), 4),
        min=round(min(values), 4),
        max=round(max(values), 4),
        stddev=round(stddev, 4),
        trend_per_hour=round(statistics.linear_regression(seconds, values).slope * 3600, 4) if moved else None,
        first_at=readings[0].at,
        last_at=readings[-1].at,
        duration_s=round(seconds[-1] - seconds[0], 3),
        confidence=round(max(0.0, 1 - stddev / tolerance), 4),
    )


def converted(value: float, source: str, target: Unit) -> float:
    """Return a temperature in another unit."""
    celsius = {"celsius": value, "kelvin": value - 273.15, "fahrenheit": (value - 32) / 1.8}[source]
    return {"celsius": celsius, "kelvin": celsius + 273.15, "fahrenheit": celsius * 1.8 + 32}[target]


def csv_file(readings: list[Reading]) -> str:
    """Return the readings as CSV (RFC 4180), with a header."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(column.name for column in fields(Reading))
    writer.writerows(astuple(reading) for reading in readings)
    return file.getvalue()


def iso(instant: datetime) -> str:
    """Return an instant in UTC as ISO 8601, to the millisecond."""
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
