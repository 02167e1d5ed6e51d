"""The shipped capabilities, done as whole jobs on a simulated board and on this machine: what they report is so."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import pkgutil
import statistics
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from PIL import Image
from support.hcp import as_if_failed

import hearth
from hearth.config.model import load_config
from hearth.errors import JobRejected
from hearth.hcp import capabilities
from hearth.hcp.plot import COLOURS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hearth.actors.embedded import EmbeddedRuntime
    from hearth.hcp.api import JobResult

pytestmark = pytest.mark.slow

SURVEY, SELF_TEST, HEALTH = "bench-climate-survey", "gpio-self-test", "host-health-report"


@asynccontextmanager
async def runtime_of(path: Path, board: str = "sim", hcp: str = "") -> AsyncIterator[EmbeddedRuntime]:
    """A runtime whose audit log and job store are in this directory; `hcp` is what its policy says of jobs."""
    (path / "hearth.toml").write_text(
        f'[audit]\npath = "{path}/audit.log"\n'
        f'[[policy]]\nname = "test"\nmatch = {{ any = true }}\nmax_risk = 2\nhcp = {{ {hcp} }}\n'
    )
    config = load_config(path / "hearth.toml")
    with trio.fail_after(60):
        async with hearth.open_runtime(board=board, config=config) as runtime:
            yield runtime


def measures(runtime: EmbeddedRuntime, *celsius: float) -> None:
    """From now on the thermometer measures these, one after the other, and then again.

    It converts whenever it is addressed: to be told each of two registers, its configuration and its temperature, and
    to be read.
    """
    thermometer = runtime._runtime.parts.board.drivers["i2c:1"].devices[0x48]
    thermometer.temperature = itertools.cycle([each for each in celsius for _ in range(4)]).__next__


async def done(runtime: EmbeddedRuntime, capability: str, inputs: dict[str, Any], **more: Any) -> JobResult:
    job = await runtime.delegate(capability, "a test of it", inputs, **more)
    return await job.wait()


async def aborted(runtime: EmbeddedRuntime, capability: str, inputs: dict[str, Any], *, after: int) -> JobResult:
    """A job that is aborted when it has done so many steps."""
    job = await runtime.delegate(capability, "a test of it", inputs)
    made = 0
    async for event in job.events():
        if event.event_type == "checkpoint_created":
            made += 1
            if made == after:
                await job.abort("that is enough")
    result = await job.wait()
    assert result.state == "ABORTED"
    return result


async def files(runtime: EmbeddedRuntime, result: JobResult) -> dict[str, bytes]:
    return {artifact.name: await runtime.artifact(artifact.uri) for artifact in result.artifacts}


async def test_those_that_are_shipped_are_offered_on_the_simulated_board(tmp_path: Path) -> None:
    async with runtime_of(tmp_path) as runtime:
        offered = [one["capability"]["name"] for one in await runtime.capabilities()]
    modules = sorted(module.name for module in pkgutil.iter_modules(capabilities.__path__))
    assert sorted(offered) == [SURVEY, SELF_TEST, HEALTH] == [module.replace("_", "-") for module in modules]


async def test_every_input_and_output_that_a_model_reads_is_described(tmp_path: Path) -> None:
    async with runtime_of(tmp_path) as runtime:
        for one in await runtime.capabilities():
            declared = one["capability"]
            for name, schema in declared["input_schema"]["properties"].items():
                assert schema["description"], f"{declared['name']}: {name}"
                assert "default" in schema or name in declared["input_schema"]["required"]
            assert declared["input_schema"]["additionalProperties"] is False
            assert declared["output_schema"]["additionalProperties"] is False


# --- bench-climate-survey -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_survey_reports_the_statistics_of_the_readings_that_it_leaves_behind(tmp_path: Path) -> None:
    asked = {"sensor": "temperature", "samples": 8, "interval_s": 0.02, "unit": "kelvin", "tolerance": 0.5}
    async with runtime_of(tmp_path) as runtime:
        measures(runtime, 20.0, 20.25, 20.125, 20.5)
        result = (await done(runtime, SURVEY, asked)).raise_for_state()
        kept = await files(runtime, result)
    rows = list(csv.DictReader(io.StringIO(kept["readings"].decode())))
    kelvin = [float(row["value"]) + 273.15 for row in rows]
    seconds = [float(row["at_s"]) for row in rows]
    outputs = result.outputs
    assert {row["unit"] for row in rows} == {"celsius"}
    assert [float(row["value"]) for row in rows] == [20.0, 20.25, 20.125, 20.5] * 2
    assert len(rows) == outputs["samples"] == 8
    assert outputs["unit"] == "kelvin"
    assert outputs["mean"] == pytest.approx(statistics.fmean(kelvin), abs=1e-3)
    assert (outputs["min"], outputs["max"]) == pytest.approx((min(kelvin), max(kelvin)), abs=1e-3)
    assert outputs["stddev"] == pytest.approx(statistics.stdev(kelvin), abs=1e-3)
    slope = statistics.linear_regression(seconds, kelvin).slope
    assert outputs["trend_per_hour"] == pytest.approx(slope * 3600, abs=0.01 + abs(slope) * 36)
    assert outputs["confidence"] == pytest.approx(max(0, 1 - statistics.stdev(kelvin) / 0.5), abs=1e-3)
    assert (outputs["first_at"], outputs["last_at"]) == (rows[0]["at"], rows[-1]["at"])
    assert outputs["duration_s"] == pytest.approx(seconds[-1] - seconds[0], abs=0.01)


@pytest.mark.parametrize(("unit", "low", "high"), [("celsius", 10, 40), ("kelvin", 283, 313), ("fahrenheit", 50, 104)])
async def test_the_results_are_in_the_unit_that_was_asked_for(
    tmp_path: Path, unit: str, low: float, high: float
) -> None:
    async with runtime_of(tmp_path) as runtime:
        result = await done(runtime, SURVEY, {"samples": 2, "interval_s": 0, "unit": unit})
    assert low < result.raise_for_state().outputs["mean"] < high
    assert result.outputs["unit"] == unit
    assert result.outputs["max"] - result.outputs["min"] < 2, "a difference of degrees is no temperature"


async def test_a_survey_of_the_defaults_alone_is_one(tmp_path: Path) -> None:
    async with runtime_of(tmp_path) as runtime:
        job = await runtime.delegate(SURVEY, "as it comes", {})
        state = await job.abort("it was accepted, which is all that is asked here")
        result = await job.wait()
    assert state in ("ABORTING", "ABORTED")
    assert result.state == "ABORTED"


@pytest.mark.slow
async def test_readings_that_are_spread_too_widely_fail_a_caller_who_wants_to_be_sure(tmp_path: Path) -> None:
    asked = {"samples": 6, "interval_s": 0, "tolerance": 5}
    async with runtime_of(tmp_path) as runtime:
        measures(runtime, 20.0, 26.0)
        result = await done(runtime, SURVEY, asked, confidence_threshold=0.9)
        kept = await files(runtime, result)
    assert (result.state, result.error_code) == ("FAILED", "execution_error")
    assert result.details is not None
    assert result.details.reason == "confidence_below_threshold"
    assert result.outputs["confidence"] == pytest.approx(1 - statistics.stdev([20, 26] * 3) / 5, abs=1e-3)
    assert kept["readings"].count(b"\n") == 7, "what was read is not thrown away"


async def test_a_sensor_that_there_is_not_is_an_input_error_with_the_sensors_that_there_are(tmp_path: Path) -> None:
    async with runtime_of(tmp_path) as runtime:
        result = await done(runtime, SURVEY, {"sensor": "barometer", "samples": 2})
    assert (result.state, result.error_code) == ("FAILED", "input_error")
    assert "temperature" in (result.error_message or "")


@pytest.mark.slow
async def test_an_aborted_survey_keeps_its_readings_and_the_statistics_of_them(tmp_path: Path) -> None:
    async with runtime_of(tmp_path) as runtime:
        result = await aborted(runtime, SURVEY, {"samples": 1000, "interval_s": 0.01}, after=10)
        kept = await files(runtime, result)
    rows = list(csv.DictReader(io.StringIO(kept["readings"].decode())))
    assert 10 <= len(rows) < 1000
    assert result.outputs["samples"] == len(rows)
    assert result.outputs["mean"] == pytest.approx(statistics.fmean(float(row["value"]) for row in rows), abs=1e-3)


async def test_a_survey_says_how_far_it_is_and_what_it_has_read(tmp_path: Path) -> None:
    async with runtime_of(tmp_path) as runtime:
        job = await runtime.delegate(SURVEY, "watched", {"samples": 25, "interval_s": 0})
        events = [event async for event in job.events()]
    progress = [event.data for event in events if event.event_type == "progress"]
    assert ("reading 1 of 25", 0.0) in [(one["message"], one.get("percent")) for one in progress]
    assert {one["stage"] for one in progress} == {"sampling"}
    found = [event.data["data"] for event in events if event.event_type == "intermediate_result"]
    assert [one["samples"] for one in found] == [10, 20]
    assert all(one["unit"] == "celsius" and 10 < one["latest"] < 40 for one in found)


@pytest.mark.slow
async def test_a_survey_that_hogs_the_sensors_bus_is_more_risky_and_a_policy_may_stop_it(tmp_path: Path) -> None:
    hogging = {"samples": 501, "interval_s": 0}
    async with runtime_of(tmp_path, hcp='max_risk = "R1"') as runtime:
        with pytest.raises(JobRejected, match="bus busy for all other users") as refused:
            await runtime.delegate(SURVEY, "fast", hogging)
        result = await done(runtime, SURVEY, {**hogging, "samples": 10})
    assert (refused.value.reason_code, refused.value.assessed_risk) == ("risk_too_high", "R2")
    assert "interval_s" in (refused.value.suggestion or "")
    assert result.completed


async def test_a_survey_that_would_outlast_its_day_is_refused_at_once(tmp_path: Path) -> None:
    async with runtime_of(tmp_path) as runtime:
        with pytest.raises(JobRejected, match="sampling_time") as refused:
            await runtime.delegate(SURVEY, "for ever", {"samples": 5000, "interval_s": 3600})
    assert refused.value.reason_code == "safety_violation"
    assert refused.value.suggestion


# --- gpio-self-test -------------------------------------------------------------------------------------------------

BENCH = """
name = "test-bench"
description = "wires that are right, missing, crossed and stuck"

[[gpio]]
label = "bench"
driver = "sim"
names = ["A", "B", "C", "D", "E", "F", "G", "H", "IN_A", "IN_B", "IN_C", "IN_D", "IN_E", "SENSE"]
wires = [["A", "IN_A"], ["B", "IN_C"], ["C", "IN_B"], ["E", "IN_E"], ["G", "SENSE"]]

[gpio.lines.A]
safe = 0

[gpio.lines.IN_D]
pull = "up"

[gpio.lines.F]
direction = "input"

[gpio.lines.H]
reserved = "the watchdog"
"""


@pytest.fixture
def bench(tmp_path: Path) -> str:
    (tmp_path / "bench.toml").write_text(BENCH)
    return str(tmp_path / "bench.toml")


async def test_a_wire_that_is_there_passes_and_its_line_is_low_again_afterwards(tmp_path: Path) -> None:
    async with runtime_of(tmp_path) as runtime:
        result = (await done(runtime, SELF_TEST, {"wires": [{"out": 17, "in": "GPIO27"}], "settle_s": 0})).outputs
        async with runtime.open_session(client_name="test") as session:
            assert (await session.run("gpio.get", line=27))["value"] == 0
    assert (result["passed"], result["wires"], result["failed"]) == (True, 1, 0)
    assert result["lines"] == [
        {
            "out": "GPIO17", "in": "GPIO27", "passed": True, "driven": True, "seen_by": ["GPIO27"], "unexpected": [],
            "high_before": [], "error": None,
        }
    ]  # fmt: skip


async def test_each_wire_is_told_for_itself_and_what_is_wrong_is_a_result_and_no_failure(
    tmp_path: Path, bench: str
) -> None:
    """One that is right, two that are crossed, one that is missing with its input stuck, two that cannot be driven."""
    pairs = [("A", "IN_A"), ("B", "IN_B"), ("C", "IN_C"), ("D", "IN_D"), ("F", "IN_E"), ("H", "SENSE")]
    wires = [{"out": out, "in": into} for out, into in pairs]
    async with runtime_of(tmp_path, bench) as runtime:
        result = await done(runtime, SELF_TEST, {"wires": wires, "settle_s": 0})
        kept = await files(runtime, result)
    outputs = result.raise_for_state().outputs
    told = {line["out"]: line for line in outputs["lines"]}
    assert [line["passed"] for line in outputs["lines"]] == [True, False, False, False, False, False]
    assert (outputs["passed"], outputs["wires"], outputs["failed"]) == (False, 6, 5)
    assert (told["B"]["seen_by"], told["B"]["unexpected"]) == (["IN_C"], ["IN_C"])
    assert (told["C"]["seen_by"], told["C"]["unexpected"]) == (["IN_B"], ["IN_B"])
    assert (told["D"]["seen_by"], told["D"]["high_before"]) == ([], ["IN_D"])
    assert told["A"]["high_before"] == ["IN_D"]
    assert [line["driven"] for line in outputs["lines"]] == [True, True, True, True, False, False]
    assert "input" in told["F"]["error"]
    assert "watchdog" in told["H"]["error"]
    assert [told[out]["error"] for out in "ABCD"] == [None] * 4
    levels = {line["out"]: line for line in json.loads(kept["levels"])["lines"]}
    assert [each["level"] for each in levels["B"]["high"]] == [0, 0, 1, 1, 0, 0]


@pytest.mark.slow
async def test_an_aborted_self_test_keeps_the_levels_that_it_has_read(tmp_path: Path, bench: str) -> None:
    wires = [{"out": out, "in": into} for out, into in (("A", "IN_A"), ("B", "IN_B"), ("C", "IN_C"), ("D", "IN_D"))]
    async with runtime_of(tmp_path, bench) as runtime:
        result = await aborted(runtime, SELF_TEST, {"wires": wires, "settle_s": 0.05}, after=16)
        kept = await files(runtime, result)
        async with runtime.open_session(client_name="test") as session:
            assert (await session.run("gpio.get", line="IN_A"))["value"] == 0
    lines = json.loads(kept["levels"])["lines"]
    assert 1 <= len(lines) < 4
    assert [each["level"] for each in lines[0]["high"]] == [1, 0, 0, 1]
    assert result.outputs["lines"][0]["passed"] is True
    assert result.outputs["wires"] == len(lines)


@pytest.mark.proof
async def test_one_output_that_two_inputs_see_is_two_wires_that_pass(tmp_path: Path, bench: str) -> None:
    text = BENCH.replace('["A", "IN_A"]', '["A", "IN_A"], ["A", "IN_D"]').replace('pull = "up"', 'pull = "down"')
    (tmp_path / "bench.toml").write_text(text)
    wires = [{"out": "A", "in": "IN_A"}, {"out": "A", "in": "IN_D"}]
    async with runtime_of(tmp_path, bench) as runtime:
        outputs = (await done(runtime, SELF_TEST, {"wires": wires, "settle_s": 0})).raise_for_state().outputs
        alone = (await done(runtime, SELF_TEST, {"wires": [*wires[:1], {"out": "B", "in": "IN_D"}]})).outputs
    assert outputs["passed"] is True
    assert [line["seen_by"] for line in outputs["lines"]] == [["IN_A", "IN_D"], ["IN_A", "IN_D"]]
    assert [line["passed"] for line in alone["lines"]] == [False, False]
    assert alone["lines"][0]["unexpected"] == ["IN_D"], "a wire that nobody told of"


@pytest.mark.parametrize(
    ("wires", "parameter"),
    [
        ([(17, 27), (27, 4)], "inputs_that_are_also_outputs"),
        ([(17, 27), (5, 27)], "inputs_of_two_outputs"),
        ([(17, 27), ("GPIO27", 4)], "inputs_that_are_also_outputs"),
        ([(17, 27), (5, "GPIO27")], "inputs_of_two_outputs"),
        ([(17, "BUTTON"), (5, 4.0)], "inputs_of_two_outputs"),
        ([("LED", 27), (5, 17)], "inputs_that_are_also_outputs"),
    ],
    ids=[
        "an output that is also to be read",
        "two outputs on one input, a short circuit",
        "that output by its name",
        "that input by its name",
        "that input by an alias",
        "that output by an alias",
    ],
)
async def test_what_would_drive_a_line_against_another_is_refused_before_anything_moves(
    tmp_path: Path, wires: list[tuple[int | str, int | str]], parameter: str
) -> None:
    asked = {"wires": [{"out": out, "in": into} for out, into in wires]}
    async with runtime_of(tmp_path) as runtime:
        with pytest.raises(JobRejected, match=parameter) as refused:
            await runtime.delegate(SELF_TEST, "not like this", asked)
    assert (refused.value.reason_code, refused.value.assessed_risk) == ("safety_violation", "R4")


async def test_one_wire_by_two_spellings_is_one_wire(tmp_path: Path) -> None:
    wires = [{"out": 17, "in": 27}, {"out": "LED", "in": "GPIO27"}]
    async with runtime_of(tmp_path) as runtime:
        with pytest.raises(JobRejected, match="/payload/inputs/wires") as refused:
            await runtime.delegate(SELF_TEST, "twice", {"wires": wires})
    assert refused.value.reason_code == "invalid_input"


async def test_a_self_test_is_accepted_as_r4_and_its_safety_envelope_is_told(tmp_path: Path) -> None:
    async with runtime_of(tmp_path) as runtime:
        job = await runtime.delegate(SELF_TEST, "see", {"wires": [{"out": 17, "in": 27}], "settle_s": 0})
        await job.wait()
    assert job.accepted is not None
    assert job.accepted.risk_level == "R4"
    assert job.accepted.safety_envelope["parameters"]["inputs_that_are_also_outputs"]["max"] == 0


# --- host-health-report ---------------------------------------------------------------------------------------------

QUICK = {"samples": 3, "interval_s": 0.05}


def machine() -> dict[str, int]:
    with open("/proc/meminfo", encoding="ascii") as lines:
        return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}


async def test_a_health_report_is_of_this_machine_with_a_report_and_a_plot(tmp_path: Path, unmeasured: None) -> None:
    async with runtime_of(tmp_path) as runtime:
        result = await done(runtime, HEALTH, {**QUICK, "sensors": ["temperature", "thermometer"]})
        kept = await files(runtime, result)
    outputs = result.raise_for_state().outputs
    total, available = (machine()[name] for name in ("MemTotal", "MemAvailable"))
    assert outputs["memory_percent"]["mean"] == pytest.approx(100 * (1 - available / total), abs=15)
    assert 0 <= outputs["cpu_percent"]["min"] <= outputs["cpu_percent"]["mean"] <= outputs["cpu_percent"]["max"] <= 100
    assert outputs["uptime_s"] == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60)
    assert outputs["watched_s"] > 0
    assert outputs["network"]["in_bytes_per_s"] is None or outputs["network"]["in_bytes_per_s"] >= 0
    temperature, unknown = outputs["sensors"]
    assert (temperature["unit"], temperature["error"]) == ("celsius", None)
    assert unknown["value"] is None
    assert "temperature" in unknown["error"]
    assert any("thermometer" in warning for warning in result.summary.warnings)
    report = json.loads(kept["report"])
    assert len(report["samples"]) == outputs["samples"] == 3
    memory = [sample["memory_percent"] for sample in report["samples"]]
    assert outputs["memory_percent"]["mean"] == pytest.approx(statistics.fmean(memory), abs=0.01)
    with Image.open(io.BytesIO(kept["plot"])) as image:
        within = image.convert("RGB").crop((0, 0, image.width * 3 // 4, image.height))
        colours = {colour for _, colour in within.getcolors(1 << 20)}
    for series in COLOURS[:2]:
        drawn = tuple(int(series[at : at + 2], 16) for at in (1, 3, 5))
        # Near it: on a busy machine one line may lie under another, whose colour is mixed with its own at the edge.
        assert any(math.dist(drawn, colour) < 40 for colour in colours), "processor and memory, beside the legend"


async def test_what_is_beyond_a_threshold_is_a_finding_and_what_is_not_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_can_be_drawn(monkeypatch)
    strict = {"max_cpu_percent": 0, "max_memory_percent": 0, "max_disk_percent": 0, "max_load_per_core": 0}
    lenient = {"max_cpu_percent": 100, "max_memory_percent": 100, "max_disk_percent": 100, "max_load_per_core": 1000}
    async with runtime_of(tmp_path) as runtime:
        ill = (await done(runtime, HEALTH, {**QUICK, **strict})).raise_for_state().outputs
        well = (await done(runtime, HEALTH, {**QUICK, **lenient, "max_celsius": 200})).raise_for_state().outputs
    assert (well["healthy"], well["findings"]) == (True, [])
    assert ill["healthy"] is False
    by_check = {finding["check"]: finding for finding in ill["findings"]}
    assert {"memory", "disk"} <= set(by_check)
    assert by_check["memory"]["value"] == pytest.approx(ill["memory_percent"]["max"], abs=0.01)
    assert by_check["memory"]["message"] == f"main memory: {by_check['memory']['value']} is above 0"
    fuller = {each["mount"] for each in ill["filesystems"] if each["used_percent"]}
    assert {finding["subject"] for finding in ill["findings"] if finding["check"] == "disk"} <= fuller


@pytest.mark.slow
async def test_an_aborted_health_report_keeps_what_it_has_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_can_be_drawn(monkeypatch)
    asked = {"samples": 2000, "interval_s": 0.05}
    async with runtime_of(tmp_path) as runtime:
        result = await aborted(runtime, HEALTH, asked, after=10)
        kept = await files(runtime, result)
    report = json.loads(kept["report"])
    assert len(report["samples"]) == result.outputs["samples"] >= 1
    assert result.outputs["uptime_s"] == report["uptime"]["uptime_s"]
    assert list(report["network"]) == ["before"]


@pytest.mark.slow
async def test_a_plot_that_cannot_be_drawn_is_a_warning_and_the_report_is_complete_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_can_be_drawn(monkeypatch)
    async with runtime_of(tmp_path) as runtime:
        job = await runtime.delegate(HEALTH, "no picture", QUICK)
        warnings = [event.data async for event in job.events() if event.event_type == "warning"]
        result = (await job.wait()).raise_for_state()
    assert [artifact.name for artifact in result.artifacts] == ["report"]
    (warning,) = result.summary.warnings
    assert "health.png: the plot was not drawn: " in warning
    assert any("health.png" in told["message"] for told in warnings), "and it was told before the end"


def nothing_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)


# --- going on from a checkpoint -------------------------------------------------------------------------------------


async def twice(
    runtime: EmbeddedRuntime, capability: str, inputs: dict[str, Any], part: float
) -> tuple[JobResult, JobResult, int]:
    """A whole job, one that goes on from a checkpoint of it, and the number of steps before that checkpoint."""
    job = await runtime.delegate(capability, "whole", inputs)
    made = [event.data["checkpoint_id"] async for event in job.events() if event.event_type == "checkpoint_created"]
    whole = (await job.wait()).raise_for_state()
    before = int(len(made) * part)
    await as_if_failed(await runtime._runtime.server("hcp").real(), job.session_id)
    resumed = await done(runtime, capability, inputs, context={"resume_from": made[before - 1]})
    assert resumed.raise_for_state().summary.steps_executed == len(made) - before
    return whole, resumed, before


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.5, 1])
async def test_a_survey_that_goes_on_keeps_the_readings_on_record_and_takes_the_others(
    tmp_path: Path, part: float
) -> None:
    asked = {"samples": 8, "interval_s": 0.01, "unit": "fahrenheit"}
    async with runtime_of(tmp_path) as runtime:
        measures(runtime, 20.0, 20.25, 20.125, 20.5)
        whole, resumed, before = await twice(runtime, SURVEY, asked, part)
        first, second = [(await files(runtime, one))["readings"].splitlines()[1:] for one in (whole, resumed)]
    assert before == 8 * part
    assert [one == other for one, other in zip(first, second, strict=True)] == [True] * before + [False] * (8 - before)
    assert resumed.outputs["first_at"] == whole.outputs["first_at"]
    assert (resumed.outputs == whole.outputs) is (part == 1)


@pytest.mark.parametrize("part", [0.5, 1])
async def test_a_self_test_that_goes_on_comes_to_the_same_result(tmp_path: Path, bench: str, part: float) -> None:
    pairs = [("A", "IN_A"), ("F", "IN_E"), ("B", "IN_B"), ("C", "IN_C")]
    asked = {"wires": [{"out": out, "in": into} for out, into in pairs], "settle_s": 0.001}
    async with runtime_of(tmp_path, bench) as runtime:
        whole, resumed, _ = await twice(runtime, SELF_TEST, asked, part)
        first, second = [json.loads((await files(runtime, one))["levels"]) for one in (whole, resumed)]
    assert resumed.outputs == whole.outputs
    assert first["lines"][0] == second["lines"][0], "with the times at which they were read"
    assert (first == second) is (part == 1)


@pytest.mark.parametrize("part", [0.5, 1])
async def test_a_health_report_that_goes_on_keeps_the_looks_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    nothing_can_be_drawn(monkeypatch)
    asked = {"samples": 4, "interval_s": 0.05, "sensors": ["temperature", "thermometer"]}
    async with runtime_of(tmp_path) as runtime:
        measures(runtime, 20.0)
        whole, resumed, _ = await twice(runtime, HEALTH, asked, part)
        first, second = [json.loads((await files(runtime, one))["report"]) for one in (whole, resumed)]
    same = [one == other for one, other in zip(first["samples"], second["samples"], strict=True)]
    assert same == ([True] * 4 if part == 1 else [True, True, False, False])
    assert [first[name] for name in ("started_at", "machine", "uptime")] == [
        second[name] for name in ("started_at", "machine", "uptime")
    ]
    assert (resumed.outputs == whole.outputs) is (part == 1)
