"""Drives wired outputs, one at a time, and reads which inputs follow."""

from datetime import datetime
from typing import Annotated

import orjson
from annotated_types import Ge, Le, Len, MinLen
from attrs import Factory, asdict, define, frozen

from hearth import Job, Limit, Line, OutcomeUnknown, StepFailed, capability


@frozen
class TestedWire:
    """An output and the input that it leads to."""

    out: Annotated[
        Line, 'the line that is driven: its offset on the chip (17) or its name ("GPIO17"), see hw.gpio.list'
    ]
    in_: Annotated[Line, "the line that should see it"]


@frozen
class Level:
    """One reading of an input: its level, or the error."""

    line: int | str
    level: int | None
    at_s: float
    error: str | None


@define
class Trial:
    """The test of one wire, as far as it is done."""

    wire: TestedWire
    low: list[Level] = Factory(list)
    """Every input while all outputs are low."""
    high: list[Level] = Factory(list)
    """Those inputs again while this output is high."""
    errors: list[str] = Factory(list)
    """Errors of driving the output."""


@frozen
class LineResult:
    """The result of one wire."""

    out: Annotated[int | str, "the line that was driven"]
    in_: Annotated[int | str, "the line that should see it"]
    passed: Annotated[bool, "true if `in` followed `out`, and no input that is not wired to it did"]
    driven: Annotated[bool, "false if `out` could not be driven"]
    seen_by: Annotated[list[int | str], "inputs that went from low to high with it"]
    unexpected: Annotated[list[int | str], "those of them that no wire of this test joins to it"]
    high_before: Annotated[list[int | str], "inputs that were high while all outputs were low"]
    error: Annotated[str | None, "why a line could not be driven or read; null if all could"]


@frozen
class SelfTest:
    """The outputs."""

    passed: Annotated[bool, "true if every wire passed"]
    wires: Annotated[int, Ge(1), "wires that were tested"]
    failed: Annotated[int, Ge(0), "how many of them did not pass"]
    lines: Annotated[list[LineResult], MinLen(1), "one for each wire, in their order"]


def inputs_of_two_outputs(wires: list[TestedWire]) -> int:
    """Count them: two outputs on one input are on each other, and with one of them high that is a short circuit."""
    return len(wires) - len({wire.in_ for wire in wires})


def inputs_that_are_also_outputs(wires: list[TestedWire]) -> int:
    """Count them: such a line would be driven against the output that is wired to it."""
    outputs = {wire.out for wire in wires}
    return sum(wire.in_ in outputs for wire in wires)


@capability(
    "gpio-self-test",
    version="2.0.0",
    tools=["gpio.set", "gpio.get"],
    risk_ceiling="R4",
    resource_types=["gpio"],
    hazard_categories=["unexpected_actuation", "short_circuit"],
    max_duration="PT30M",
    # Two at a time would see each other's levels.
    concurrent_limit=1,
    formats=["gpio-self-test"],
    limits={
        "inputs_of_two_outputs": Limit(inputs_of_two_outputs, max=0),
        "inputs_that_are_also_outputs": Limit(inputs_that_are_also_outputs, max=0),
    },
    prohibited_actions=["driving_a_line_that_another_wire_of_the_test_reads", "driving_two_outputs_onto_one_input"],
    emergency_procedures={"any_end_of_the_job": "every_output_goes_to_its_safe_state"},
)
async def self_test(
    job: Job,
    *,
    wires: Annotated[
        list[TestedWire], Len(1, 32), {"uniqueItems": True}, "the wires, in the order in which they are tested"
    ],
    settle_s: Annotated[
        float,
        Ge(0),
        Le(5),
        "seconds from driving an output to reading the inputs: a relay, a filter, an optocoupler needs its time",
    ] = 0.01,
) -> SelfTest:
    """Test wired pairs of GPIO lines.

    Puts every output low, then drives one after the other high and back, and reads all inputs each time. Reports,
    wire by wire, whether its input followed its output, and which inputs did instead or as well. A wire that fails
    the test is a result of it, not a failure of the job, and so is an output that cannot be driven. The outputs go
    to their safe state at the end, whatever the end is. Only name outputs that may go high and low with nothing at
    risk: what is connected to them moves.
    """
    trials: list[Trial] = []
    try:
        job.phase = "parking"
        for wire in wires:
            # All outputs low: an input that is high later is high because of the output under test.
            await drive(job, wire.out, 0, errors=[])
        job.phase = "testing"
        for number, wire in enumerate(wires, 1):
            await job.report((number - 1) / len(wires), f"wire {number} of {len(wires)}")
            trials.append(Trial(wire))
            await try_wire(job, trials[-1], [each.in_ for each in wires], settle_s)
    finally:
        job.artifact("levels.json", levels_file(job, wires, settle_s, trials), media_type="application/json")
        if trials:
            job.partial(**asdict(summary(wires, trials), recurse=False))
    return summary(wires, trials)


async def try_wire(job: Job, trial: Trial, inputs: list[int | str], settle_s: float) -> None:
    """Read all inputs with the output low, then those that answered with the output high."""
    out = trial.wire.out
    if not await drive(job, out, 0, trial.errors):
        return
    await job.sleep(settle_s)
    await read(job, inputs, trial.low)
    if await drive(job, out, 1, trial.errors):
        await job.sleep(settle_s)
        await read(job, [level.line for level in trial.low if level.error is None], trial.high)
    await drive(job, out, 0, trial.errors)


async def drive(job: Job, line: int | str, value: int, errors: list[str]) -> bool:
    """Set an output; if that fails, add the reason to `errors` and return False."""
    try:
        await job.run("gpio.set", line=line, value=value)
    except OutcomeUnknown:
        # Under way when the daemon crashed. Setting an output to the same value again does no harm.
        return await drive(job, line, value, errors)
    except StepFailed as failed:
        errors.append(await warned(job, failed))
        return False
    return True


async def read(job: Job, lines: list[int | str], levels: list[Level]) -> None:
    """Read inputs one after the other, and add them to `levels`."""
    for line in lines:
        try:
            level, error = (await job.run("gpio.get", line=line, replay=True))["value"], None
        except StepFailed as failed:
            level, error = None, await warned(job, failed)
        levels.append(Level(line, level, job.elapsed_s, error))


async def warned(job: Job, failed: StepFailed) -> str:
    """Warn that a step failed and that the test goes on; return the reason."""
    await job.warn(f"{failed}; the test goes on", code="step_failed", error_code=failed.error_code)
    return str(failed)


def summary(wires: list[TestedWire], trials: list[Trial]) -> SelfTest:
    """Return the outputs for one or more tested wires."""
    lines = [judged(trial, wires) for trial in trials]
    failed = sum(not line.passed for line in lines)
    return SelfTest(passed=not failed, wires=len(lines), failed=failed, lines=lines)


def lines_at(value: int, levels: list[Level]) -> list[int | str]:
    """Return the lines that had this level."""
    return [level.line for level in levels if level.level == value]


def judged(trial: Trial, wires: list[TestedWire]) -> LineResult:
    """Report if the right inputs, and no others, went from low to high with the output."""
    wire = trial.wire
    wired = [other.in_ for other in wires if other.out == wire.out]
    low_before = lines_at(0, trial.low)
    seen_by = [line for line in lines_at(1, trial.high) if line in low_before]
    unexpected = [line for line in seen_by if line not in wired]
    errors = [*trial.errors, *(level.error for level in (*trial.low, *trial.high) if level.error is not None)]
    return LineResult(
        out=wire.out,
        in_=wire.in_,
        passed=wire.in_ in seen_by and not unexpected,
        driven=not trial.errors,
        seen_by=seen_by,
        unexpected=unexpected,
        high_before=lines_at(1, trial.low),
        error=errors[0] if errors else None,
    )


def levels_file(job: Job, wires: list[TestedWire], settle_s: float, trials: list[Trial]) -> bytes:
    """Return every level that was read, as JSON."""
    document = {
        "started_at": iso(job.started_at),
        "wires": [{"out": wire.out, "in": wire.in_} for wire in wires],
        "settle_s": settle_s,
        "lines": [
            {
                "out": trial.wire.out,
                "in": trial.wire.in_,
                "low": trial.low,
                "high": trial.high,
                "errors": trial.errors,
            }
            for trial in trials
        ],
    }
    return orjson.dumps(document, default=asdict, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def iso(instant: datetime) -> str:
    """Return an instant in UTC as ISO 8601, to the millisecond."""
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
