"""What one `hearth mcp` process was told of an agent, another one of the same user knows."""

from __future__ import annotations

import os
import stat

import pytest
import trio
from support.hearthd import Hearthd
from support.mcp import stdio_mcp_client

CARD = {
    "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C1",
    "name": "Rover",
    "version": "2.1.0",
    "capabilities": [{"id": "tool.drive"}],
    "endpoint": {"protocol": "https", "url": "https://rover.example/a"},
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]


@pytest.mark.proof
async def test_a_card_declared_over_one_pipe_is_known_over_the_next_in_the_other_era(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hearthd = Hearthd(tmp_path).start()
    try:
        with trio.fail_after(40):
            async with (
                stdio_mcp_client(f"unix:{hearthd.socket}", "legacy") as old,
                stdio_mcp_client(f"unix:{hearthd.socket}", "auto") as new,
            ):
                declared = await old.call_tool("agentcard_declare", {"card_json": CARD})
                assert not declared.is_error, declared.content
                found = await new.call_tool("agentcard_resolve", {"query": "rover"})
                await new.call_tool("hw_board")  # a session has been opened: now the daemon's own card is known
                listed = await new.call_tool("agentcard_list")
    finally:
        hearthd.end()
    assert found.structured_content["match"]["card"] == CARD
    assert found.structured_content["match"]["declared_by"] == f"uid:{os.geteuid()}"
    kept = tmp_path / "hearth" / "agentcards"
    assert [path.name for path in kept.iterdir()] == [f"{CARD['agent_id']}.json"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    own, *others = listed.structured_content["agents"]
    assert own["own"] is True
    assert [agent["name"] for agent in others] == ["Rover"]
