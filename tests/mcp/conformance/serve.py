"""hearthd, with the fixtures of the official conformance suite offered over MCP beside the tools of its board.

Everything is the daemon's own: its listener, its handshake, its entry at /mcp, its server object. Only the list of
what is offered is longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asking import Asking
from contents import Contents
from jobs import Jobs, terms_or

from hearth.actors import daemon
from hearth.actors.bridges.mcp import guidance, http
from hearth.actors.bridges.mcp.server import make_server
from hearth.actors.bridges.mcp.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from mcp.server.lowlevel.server import Server

    from hearth.actors.bridges.mcp.provider import Clients, Provider


def make_longer_server(
    providers: Sequence[Provider], clients: AbstractAsyncContextManager[Clients], **others: Any
) -> Server[Clients]:
    """See make_server."""
    for provider in providers:
        if isinstance(provider, Tasks):
            # Which calls become tasks is said once for all tools: the fixtures' terms come before hearth's own.
            provider._terms = terms_or(provider._terms)
    return make_server([*providers, Contents(), Asking(), Jobs()], clients, **others)


if __name__ == "__main__":
    http.make_server = make_longer_server
    # The suite looks for its fixtures in the list of tools.
    guidance.MOST_TOOLS = 1000
    daemon.main()
