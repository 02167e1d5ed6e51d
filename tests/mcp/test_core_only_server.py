"""The MCP bridge before a server that implements the HACP Core only, and says little of its tools (draft §3)."""

from __future__ import annotations

import pytest
from support.core_only import minimal_server, no_more_than_a_status, tools_of_few_members
from support.mcp import ERAS, stdio_mcp_client, text_of

pytestmark = pytest.mark.slow


@pytest.fixture
def anyio_backend():
    return "trio"


@pytest.mark.proof
@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("reply", [None, tools_of_few_members, no_more_than_a_status], ids=["bare", "tools", "status"])
async def test_tools_and_plans_run_on_a_server_that_sends_no_events(tmp_path, mode, reply):
    told = []

    async def progress(done, total, message):
        told.append((done, total, message))

    async with (
        minimal_server(tmp_path / "core.sock", reply=reply) as server,
        stdio_mcp_client(f"unix:{server.path}", mode) as client,
    ):
        assert "gpio_set" in [tool.name for tool in (await client.list_tools()).tools]
        args = {"line": 17, "value": 1}
        called = await client.call_tool("gpio_set", args, progress_callback=progress)
        assert not called.is_error
        assert called.structured_content == ({} if reply is no_more_than_a_status else args)
        assert told
        steps = [{"tool": "gpio_set", "args": args}] * 2
        planned = await client.call_tool("hacp_plan", {"intent": "two", "steps": steps})
        assert planned.structured_content["status"] == "SUCCESS"
        failed = await client.call_tool("gpio_set", {"fail": True})
        assert failed.is_error
        assert "gpio.set failed" in text_of(failed) or "gpio_set failed" in text_of(failed)
        beyond = {request["method"] for request in server.requests.beyond_the_core()}
        assert beyond <= {"mcp.info"}, "which is optional, and is done without where it is unknown"
