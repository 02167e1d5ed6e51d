"""hearthd, with the fixtures of the official conformance suite offered over MCP beside the tools of its board.

Everything is the daemon's own: its listener, its handshake, its entry at /mcp, its server object. Only the list of
what is offered is longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asking
import contents
import jobs

from hearth.actors import daemon
from hearth.actors.bridges.mcp import guidance, http
from hearth.actors.bridges.mcp.guidance import SEARCH, ShortList
from hearth.actors.bridges.mcp.provider import Provider
from hearth.actors.bridges.mcp.server import make_server
from hearth.actors.bridges.mcp.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    import mcp_types as types
    from mcp.server.lowlevel.server import Server

    from hearth.actors.bridges.mcp.provider import Clients, McpRequest, Outcome


class Trigger(Provider):
    """A tool by which the suite has the list of tools changed: a client's search, for another tool each time."""

    def __init__(self, search: Provider) -> None:
        self._search = search
        self._words = iter(("i2c_write", "uart_write", "pwm_set", "dac_set"))

    async def call(self, request: McpRequest, params: types.CallToolRequestParams) -> Outcome | None:
        """See Provider."""
        if params.name != "test_trigger_tool_change":
            return None
        search = {"name": SEARCH, "arguments": {"query": next(self._words)}}
        return await self._search.call(request, params.model_copy(update=search))


def make_longer_server(
    providers: Sequence[Provider], clients: AbstractAsyncContextManager[Clients], **others: Any
) -> Server[Clients]:
    """See make_server."""
    for provider in providers:
        if isinstance(provider, Tasks):
            # Which calls become tasks is said once for all tools: the fixtures' terms come before hearth's own.
            provider._terms = jobs.terms_or(provider._terms)
    (search,) = [provider for provider in providers if isinstance(provider, ShortList)]
    return make_server(
        [*providers, contents.Contents(), asking.Asking(), jobs.Jobs(), Trigger(search)], clients, **others
    )


if __name__ == "__main__":
    http.make_server = make_longer_server
    # The suite looks for some of its fixtures in the list of tools.
    guidance._FIRST = guidance._FIRST.union(asking.TABLE.tools, contents.TABLE.tools, jobs.TABLE.tools)
    daemon.main()
