"""`hearth hcp new NAME`: the skeleton of a capability and of its test, for an author to change. Needs no daemon."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

import click

from hearth.cli import render
from hearth.cli.common import DONE, Options, standard
from hearth.errors import HearthError

LONGEST_NAME = 64
"""Characters; the bound of a capability's name."""

CAPABILITY = '''\
"""The capability CAPABILITY-NAME. hearthd loads this file when it starts, if [hcp] capabilities names it."""

from typing import Annotated

from annotated_types import Ge, Le
from attrs import frozen

from hearth import Job, capability


@frozen
class Result:
    """The outputs of a job. Each field becomes a member of the output schema; a text in Annotated describes it."""

    mean: Annotated[float, "mean of all readings, in the unit of the sensor"]
    readings: Annotated[list[float], "every reading, in order"]


@capability(
    "CAPABILITY-NAME",
    version="0.1.0",
    # Every tool that the function may call; another one is refused. `hearth tools` lists what there is.
    tools=["hw.sensor.read"],
    # The highest risk of a job. R1 only reads; a capability that drives hardware needs R3 or more.
    risk_ceiling="R1",
    # The longest that a job may take: hours, days or weeks are no problem.
    max_duration="PT1H",
)
async def FUNCTION_NAME(
    job: Job,
    *,
    # Each keyword argument is an input of the job. Bounds are checked before the job is accepted.
    sensor: Annotated[str, "the sensor, by its name in hw.sensor.list"] = "temperature",
    samples: Annotated[int, Ge(1), Le(1000), "how many readings to take"] = 5,
    interval_s: Annotated[float, Ge(0), Le(3600), "seconds from one reading to the next"] = 1.0,
) -> Result:
    """Read a sensor at even intervals and return the mean.

    The whole docstring is the description of the capability. Callers, and their models, choose by it.
    """
    # Everything that takes time or touches the world goes through `job`: hearth records each outcome, and after a crash
    # the job goes on from there. Do not read a clock, a file, a socket or a random number in any other way.
    readings = []
    async for number in job.every(interval_s, samples):
        reading = await job.run("hw.sensor.read", sensor=sensor)
        readings.append(reading["value"])
        await job.report(progress=number / samples, message=f"{number} of {samples} readings")
    job.artifact("readings.csv", "value\\n" + "".join(f"{value}\\n" for value in readings), media_type="text/csv")
    return Result(mean=sum(readings) / len(readings), readings=readings)
'''

TEST = '''\
"""Tests of CAPABILITY-NAME: pytest test_MODULE_NAME.py. They need no hardware and no daemon, and no time goes by."""

from MODULE_NAME import FUNCTION_NAME

from hearth.testing import run_capability


def test_the_mean_of_all_readings_is_returned():
    result = run_capability(FUNCTION_NAME, {"samples": 10, "interval_s": 60}, prepare=warm_room)

    assert result.state == "COMPLETED", result.error_message
    assert result.outputs == {"mean": 21.5, "readings": [21.5] * 10}
    assert result.artifacts["readings.csv"].startswith(b"value\\n21.5\\n")
    assert result.duration_s > 9 * 60  # of the job's own time


def test_a_job_that_crashes_goes_on_and_reads_nothing_twice():
    result = run_capability(FUNCTION_NAME, {"samples": 10, "interval_s": 60}, crash_at=5)

    assert result.state == "COMPLETED", result.error_message
    assert [step.tool for step in result.steps] == ["hw.sensor.read"] * 10


def warm_room(board):
    """Set what the simulated thermometer measures."""
    board.drivers["i2c:1"].devices[0x48].temperature = lambda: 21.5
'''


@click.command()
@click.argument("name")
@click.option("-d", "--directory", metavar="DIRECTORY", default=".", help="Where to write them; else here.")
@standard
def new(options: Options, name: str, directory: str) -> int:
    """Write the skeleton of the capability NAME, such as fan-check, and a test that passes. Overwrites nothing."""
    function = _function_name(name)
    folder = Path(directory)
    files = {folder / f"{function}.py": CAPABILITY, folder / f"test_{function}.py": TEST}
    for file in files:
        if file.exists():
            raise HearthError(f"{file} exists, and nothing was written; choose another name, or remove it")
    for file, text in files.items():
        filled = text.replace("CAPABILITY-NAME", name)
        filled = filled.replace("FUNCTION_NAME", function).replace("MODULE_NAME", function)
        # "x": one that has come in the meantime is not overwritten either.
        with file.open("x", encoding="utf-8") as opened:
            opened.write(filled)
    code, test = files
    if options.json:
        click.echo(render.compact({"name": name, "capability": str(code), "test": str(test)}))
    else:
        click.echo("\n".join(_next_steps(code, test)))
    return DONE


def _function_name(name: str) -> str:
    """The name of the function and of its module. Raises UsageError for what is no name of a capability."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > LONGEST_NAME:
        raise click.UsageError(
            f"{name!r} is no name of a capability: expected lower-case letters and digits, in words joined by hyphens, "
            f'such as "bench-climate-survey", at most {LONGEST_NAME} characters, a letter first'
        )
    function = name.replace("-", "_")
    if keyword.iskeyword(function) or function in sys.stdlib_module_names:
        raise click.UsageError(f"{name!r} would hide a module of Python's own; add a word, such as {name}-check")
    return function


def _next_steps(code: Path, test: Path) -> list[str]:
    return [
        f"{code}  the capability",
        f"{test}  its test",
        "",
        "Next:",
        f"  1. change {code.name} to what you need",
        f"  2. pytest {test}",
        f'  3. in hearth.toml, under [hcp]: capabilities = ["{code.resolve()}"]',
        "  4. hearthd --check, and restart hearthd",
    ]
