"""Does the fan cool? docs/capabilities.md explains this file part by part."""

import csv
import io
from functools import partial
from typing import Annotated

from annotated_types import Ge, Le, MinLen
from attrs import frozen

from hearth import Escalation, Job, Limit, capability


@frozen
class Cooling:
    """The outputs."""

    cool_enough: bool
    celsius: Annotated[float, "the last reading"]
    cooler_by: Annotated[float, "kelvin from before the fan ran to the last reading"]
    looks: int


@capability(
    "cooling-check",
    version="1.0.0",
    tools=["i2c.read", "gpio.set"],
    risk_floor="R3",
    risk_ceiling="R4",
    resource_types=["fan", "thermometer"],
    hazard_categories=["moving_parts"],
    escalate=[
        Escalation(
            when=lambda fan: fan != "RELAY",
            risk="R4",
            because="another line than the fan's relay is driven",
            cure='leave out fan, or send "RELAY"',
        )
    ],
    limits={
        "temperature": Limit(max=85, unit="celsius"),
        "running_time": Limit(lambda looks, every_s: looks * every_s, max=1800, unit="second"),
    },
)
async def check(
    job: Job,
    *,
    fan: Annotated[str, MinLen(1), "the line that switches the fan"] = "RELAY",
    target: Annotated[float, Ge(-40), Le(80), "°C at which it is cool enough"] = 30,
    looks: Annotated[int, Ge(1), Le(600), "how often to look at most"] = 20,
    every_s: Annotated[float, Ge(0.1), Le(60), "seconds between two looks"] = 0.5,
) -> Cooling:
    """Check whether the fan cools.

    Switches it on and watches the thermometer beside it until it is cool enough, or for as long as you say; reports by
    how much it got cooler. The fan is off again afterwards.
    """
    rows: list[tuple[str, float, float]] = []
    job.phase = "before"
    before = celsius = await read(job)
    job.phase = "cooling"
    try:
        async for _ in job.every(every_s, looks):
            # In each round: after a crash the outputs are in their safe state, and the fan is off.
            await job.run("gpio.set", line=fan, value=1)
            celsius = await read(job)
            rows.append((job.at.isoformat(), job.elapsed_s, celsius))
            job.watch("temperature", celsius)
            if celsius <= target:
                break
    finally:
        job.artifact("temperatures.csv", csv_file(rows), media_type="text/csv")
    return Cooling(
        cool_enough=celsius <= target, celsius=celsius, cooler_by=round(before - celsius, 4), looks=len(rows)
    )


async def read(job: Job) -> float:
    """Return the temperature in °C: the TMP102 at 0x48 gives it in the upper twelve bits, in sixteenths."""
    # A job that resumes keeps the temperatures that it has collected; before it does more, it looks again.
    read = partial(job.run, "i2c.read", bus=1, addr="0x48", reg=0, len=2, replay=True)
    result = await job.retry(read, times=2, after_s=0.1)
    return (int.from_bytes(bytes.fromhex(result["hex"]), "big", signed=True) >> 4) * 0.0625


def csv_file(rows: list[tuple[str, float, float]]) -> str:
    """Return the rows as CSV, with a header."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(("at", "seconds", "celsius"))
    writer.writerows(rows)
    return file.getvalue()
