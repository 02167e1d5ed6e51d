"""Every tool of the session as an MCP tool: tools/list is tool.list, tools/call a task of one step (draft §10.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mcp_types as types

from hearth.actors.bridges.mcp.calls import TaskProvider
from hearth.actors.bridges.mcp.jobs import Job, arguments_of
from hearth.api import Step
from hearth.mcp.names import mcp_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.actors.bridges.mcp.providers import Ask


class HacpTools(TaskProvider):
    """See the module."""

    async def tools(self, ask: Ask) -> Sequence[types.Tool]:
        """See Provider."""
        view = await ask.client.view()
        return [types.Tool.model_validate(definition) for definition in view.definitions()]

    async def job(self, ask: Ask, params: types.CallToolRequestParams) -> Job | None:
        """See TaskProvider."""
        entry = (await ask.client.view()).find(params.name)
        if entry is None:
            return None
        name = entry["name"]
        return Job(mcp_name(name), f"tools/call {name}", (Step(name, arguments_of(params)),), (entry,))
