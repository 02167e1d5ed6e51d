"""A confined hearthd: what was read before it confined itself runs, and what comes with hearth is still imported."""

from __future__ import annotations

import pytest
from hcp.capability_files import named
from support.confinement import needs_filters, needs_landlock
from support.hearthd import Hearthd

from hearth import connect

pytestmark = [pytest.mark.slow, needs_filters]

LATE = '''\
from pathlib import Path

from hearth import CapabilityFailed, Job, capability


@capability("line-blink", version="1.0.0", tools=["hw.sensor.list"], risk_ceiling="R1")
async def look(job: Job) -> dict[str, int]:
    """Count the sensors, with a module of the standard library that is imported only now."""
    import colorsys

    try:
        Path(__file__).read_text()
    except PermissionError:
        return {"sensors": len((await job.run("hw.sensor.list"))["sensors"]), "late": len(colorsys.__all__)}
    raise CapabilityFailed("its own file can be read")
'''
PLAN = """\
[capability]
name = "line-blink"
version = "1.0.0"
description = "Reads a sensor twice."

[capability.input_schema]
type = "object"
properties.sensor = { type = "string", default = "temperature" }

[capability.safety]
risk_ceiling = "R1"

[[steps]]
tool = "hw.sensor.read"
args = { sensor = "{sensor}" }

[[steps]]
tool = "hw.sensor.read"
args = { sensor = "temperature" }
"""


@pytest.fixture
def hearthd(tmp_path):
    """Starts a daemon whose [hcp] says this."""
    daemons = []

    def start(hcp=""):
        daemons.append(Hearthd(tmp_path, f'[hcp]\n{hcp}\n[board]\nprofile = "sim"\n').start())
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.end()


async def done(daemon, capability, inputs):
    """The outputs of a job."""
    async with connect(daemon.socket) as client:
        job = await client.delegate(capability, "a test", inputs)
        result = await job.wait()
        assert result.state == "COMPLETED", result
        return result.outputs


@pytest.mark.proof
@needs_landlock()
async def test_an_operators_capabilities_run_that_could_not_be_read_any_more(hearthd, reachable):
    (offered := reachable / "capabilities.d").mkdir()
    named(offered, "late", LATE)
    named(offered, "plan", PLAN)
    daemon = hearthd(f'capabilities = ["{offered}"]\nshipped = []')
    assert "hearthd: INFO: sandbox: in force: " in daemon.said
    assert (await done(daemon, "late", {}))["late"] == 6
    steps = (await done(daemon, "plan", {"sensor": "temperature"}))["steps"]
    assert [step["sensor"] for step in steps] == ["temperature", "temperature"]


@pytest.mark.proof
async def test_what_comes_with_hearth_is_imported_by_the_first_job(hearthd):
    daemon = hearthd()
    assert "hearthd: INFO: sandbox: in force: " in daemon.said
    outputs = await done(daemon, "bench-climate-survey", {"samples": 2, "interval_s": 0.1})
    assert outputs["samples"] == 2


@pytest.mark.proof
async def test_a_start_tells_what_an_operator_should_know_of_capabilities(hearthd, tmp_path):
    (empty := tmp_path / "capabilities.d").mkdir()
    daemon = hearthd(f'capabilities = ["{empty}"]\nshipped = []')
    assert f"hearthd: INFO: {empty} has no capability in it: there is no *.py and no *.toml\n" in daemon.said
