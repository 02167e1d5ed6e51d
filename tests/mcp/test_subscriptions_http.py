"""Who watches over HTTP, where all clients share a server: what is told, and that nobody looks for one who has left."""

from __future__ import annotations

import gc
from contextlib import asynccontextmanager

import httpx2
import mcp_types as types
import pytest
import trio
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.subscriptions import ResourceUpdated
from support.http import passes, served
from support.mcp import pollers

TEMPERATURE = "hearth://sensors/temperature"

pytestmark = [
    pytest.mark.usefixtures("unmeasured"),
    pytest.mark.slow,
    # The client's HTTP library leaves generators to the collector.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:resources/.*subscribe is removed as of 2026-07-28"),
]


@asynccontextmanager
async def official(server, mode, **options):
    """The official client, as somebody's program uses it."""
    async with httpx2.AsyncClient(timeout=60) as http:
        with trio.fail_after(60):
            transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
            async with Client(transport, mode=mode, **options) as client:
                yield client
    gc.collect()


@pytest.mark.proof
async def test_clients_of_both_eras_are_told_each_on_its_own_way_and_leave_no_poll(tmp_path):
    send, receive = trio.open_memory_channel(100)

    async def handler(message):
        if isinstance(message, types.ResourceUpdatedNotification):
            send.send_nowait(message.params.uri)

    async with served(tmp_path) as server, official(server, "auto") as new:
        async with official(server, "legacy", message_handler=handler) as old:
            await old.subscribe_resource(TEMPERATURE)
            async with new.listen(resource_subscriptions=[TEMPERATURE]) as stream:
                assert stream.honored.resource_subscriptions == [TEMPERATURE]
                assert pollers() == 2
                server.runtime.parts.board.drivers["i2c:1"].devices[0x48].temperature = lambda: 55.0
                assert await anext(stream) == ResourceUpdated(TEMPERATURE)
                assert await receive.receive() == TEMPERATURE
            await passes(lambda: pollers() == 1)
        await server.recorded(event="session.close")
        await passes(lambda: pollers() == 0)
        assert (await new.read_resource(TEMPERATURE)).contents
        assert len(server.world.records(event="session.open")) == 2, "nobody has opened another session to look in"
