"""A provider whose tools are functions in a table: what the fixtures of the official suite are made of.

The suite says of every tool what it is called and what it answers; nothing here is part of hearth, and nothing of
hearth is imitated here: the fixtures are offered through the same server object and the same HTTP entry as the tools of
a board.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import mcp_types as types

from hearth.actors.bridges.mcp.provider import Provider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.actors.bridges.mcp.provider import McpRequest, Outcome

Fixture: TypeAlias = Callable[["McpRequest", types.CallToolRequestParams], Awaitable["Outcome | str"]]
"""Serves one tool; a string is a result of that text."""

NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


class Table:
    """Tools by name, in the order in which they were written down."""

    def __init__(self) -> None:
        self.tools: dict[str, types.Tool] = {}
        self.fixtures: dict[str, Fixture] = {}

    def tool(
        self, name: str, description: str, schema: Mapping[str, Any] = NO_ARGUMENTS
    ) -> Callable[[Fixture], Fixture]:
        """The function below serves the tool of this name."""

        def enter(fixture: Fixture) -> Fixture:
            self.tools[name] = types.Tool(name=name, description=description, input_schema=dict(schema))
            self.fixtures[name] = fixture
            return fixture

        return enter


class Fixtures(Provider):
    """Offers what is in a table."""

    table: Table

    async def tools(self, ask: McpRequest) -> Sequence[types.Tool]:
        """See Provider."""
        del ask
        return list(self.table.tools.values())

    async def call(self, ask: McpRequest, params: types.CallToolRequestParams) -> Outcome | None:
        """See Provider."""
        fixture = self.table.fixtures.get(params.name)
        if fixture is None:
            return None
        result = await fixture(ask, params)
        return text_result(result) if isinstance(result, str) else result


def text_result(text: str, *, is_error: bool = False) -> types.CallToolResult:
    """A result of one text."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)
