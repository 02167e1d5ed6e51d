"""Every tool of the session as an MCP tool: tools/list is tool.list, tools/call a task of one step (draft §10.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mcp_types as types

from hearth.actors.bridges.mcp.calls import run_step
from hearth.actors.bridges.mcp.providers import Ask, Provider

if TYPE_CHECKING:
    from collections.abc import Sequence


class HacpTools(Provider):
    """See the module."""

    async def tools(self, ask: Ask) -> Sequence[types.Tool]:
        """See Provider."""
        view = await ask.client.view()
        return [types.Tool.model_validate(definition) for definition in view.definitions()]

    async def call(
        self, ask: Ask, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | None:
        """See Provider."""
        entry = (await ask.client.view()).hacp(params.name)
        return None if entry is None else await run_step(ask, entry, params.arguments or {})
