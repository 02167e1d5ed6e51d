"""Providers of the MCP bridge alone, served to the official client in the same process, by messages, in either era."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio
from mcp.client._memory import InMemoryTransport
from mcp.client.client import Client

from hearth.actors.bridges.mcp.provider import Client as HearthClient
from hearth.actors.bridges.mcp.server import make_server

ERAS = {"2025-11-25": "legacy", "2026-07-28": "auto"}
"""The protocol version that is spoken, and how the official client is told to."""


class Only:
    """The one client there is. Implements `Clients`."""

    def __init__(self, client):
        self.client = client

    async def of(self, _ctx):
        return self.client


@asynccontextmanager
async def serving(providers, era, *, house=None, within=600, **more):
    """The official client, and the bridge's own side of it; nothing of ours may go on when the client has gone.

    `within`: seconds, which virtual time makes short.
    """
    with trio.fail_after(within):
        async with trio.open_nursery() as nursery:
            ours = HearthClient(house, nursery, name="test")

            @asynccontextmanager
            async def only():
                try:
                    yield Only(ours)
                finally:
                    ours.close()

            server = make_server(providers, only())
            async with Client(InMemoryTransport(server), mode=ERAS[era], **more) as client:
                assert client.protocol_version == era
                yield client, ours


def pollers():
    """How many tasks of this process look at a resource again and again."""
    waiting, found = [trio.lowlevel.current_root_task()], 0
    while waiting:
        task = waiting.pop()
        found += task.name.endswith("Changes._poll")
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found
