"""The sys.* tools on the machine that runs the tests: what they return is what they declare."""

import jsonschema
import orjson
import pytest
import trio
from support.schemas import closed

from hearth.drivers.system import SystemDriver
from hearth.drivers.tools.system import system_tools

TOOLS = {tool.name: tool for tool in system_tools()}


class Step:
    """A step whose bus has a telemetry driver."""

    def __init__(self):
        self.driver = SystemDriver()
        self.driver.open()

    async def transact(self, op, *, limit_ms=None):
        assert limit_ms is None, "the tool's timeout is the limit"
        return await trio.to_thread.run_sync(op, self.driver)


def test_the_default_set_has_the_seven_of_them():
    assert list(TOOLS) == [
        "sys.cpuinfo",
        "sys.memory",
        "sys.thermal",
        "sys.load",
        "sys.disk",
        "sys.network",
        "sys.uptime",
    ]


@pytest.mark.parametrize("name", TOOLS)
async def test_a_result_from_this_machine_has_all_declared_fields_and_no_other(name):
    tool = TOOLS[name]
    result = await tool.run(Step(), {})
    orjson.dumps(result)
    jsonschema.Draft202012Validator(closed(tool.result_schema)).validate(result)


@pytest.mark.parametrize("name", TOOLS)
def test_a_telemetry_tool_is_a_pure_read_that_needs_no_arguments(name):
    tool = TOOLS[name]
    assert (tool.risk_level, tool.capability, tool.bus({}), tool.opt_in) == (0, "CAP_SYS_READ", "system", False)
    for schema in (tool.params_schema, tool.result_schema):
        jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(tool.params_schema).is_valid({})


@pytest.mark.parametrize("name", TOOLS)
def test_the_schema_refuses_an_empty_result(name):
    assert not jsonschema.Draft202012Validator(TOOLS[name].result_schema).is_valid({})


def test_the_bus_can_have_another_name():
    assert {tool.bus({}) for tool in system_tools("telemetry")} == {"telemetry"}


async def test_this_machine_is_told_plausibly():
    step = Step()
    memory = await TOOLS["sys.memory"].run(step, {})
    cpu = await TOOLS["sys.cpuinfo"].run(step, {})
    uptime = await TOOLS["sys.uptime"].run(step, {})
    assert 0 < memory["available_bytes"] <= memory["total_bytes"]
    assert cpu["logical_cores"] == len(cpu["cores"]) >= 1
    assert uptime["uptime_s"] > 0


async def test_two_of_them_may_ask_at_once():
    step, usages = Step(), []

    async def ask():
        usages.append((await TOOLS["sys.cpuinfo"].run(step, {}))["usage_window_ms"])

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(ask)
    assert len(usages) == 8
    assert all(window >= 0 for window in usages)
