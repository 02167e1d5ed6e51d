"""`hearth mcp`: one MCP client on stdin and stdout, over a connection to the daemon.

It owns the streams and when they end: at the end of stdin, when nobody reads stdout any more, or on Ctrl-C.
"""

from __future__ import annotations

import argparse
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types
import trio
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from hearth.actors.bridges.mcp.clients import Client
from hearth.actors.bridges.mcp.server import make_server
from hearth.actors.bridges.mcp.tools import HacpTools
from hearth.cli.connect import standard_streams
from hearth.client import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from hearth.actors.bridges.mcp.clients import Context, House


class OnlyClient:
    """The one client there is on a pair of pipes. Implements `Clients`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def of(self, ctx: Context) -> Client:
        """See Clients."""
        del ctx
        return self._client


@asynccontextmanager
async def one_client(house: House) -> AsyncIterator[OnlyClient]:
    """The client that lives as long as the pipes do."""
    async with trio.open_nursery() as nursery:
        client = Client(house, nursery, name="mcp", version=None)
        try:
            yield OnlyClient(client)
        finally:
            client.close()


async def serve(house: House, stdin: trio.abc.ReceiveStream, stdout: trio.abc.SendStream) -> None:
    """Speak MCP over these streams, one JSON document a line, until `stdin` ends."""
    server = make_server([HacpTools()], one_client(house))
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_server:
            async for line in _lines(stdin):
                try:
                    message: Any = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValidationError as error:
                    await to_server.send(error)
                else:
                    await to_server.send(SessionMessage(message))

    async def write() -> None:
        async with to_client:
            async for message in to_client:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await stdout.send_all(line.encode() + b"\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(write)
        await server.run(incoming, outgoing, server.create_initialization_options())
        nursery.cancel_scope.cancel()


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    pending = bytearray()
    while data := await stream.receive_some():
        pending += data
        *lines, rest = bytes(pending).split(b"\n")
        pending = bytearray(rest)
        for line in lines:
            if line.strip():
                yield line


async def _main(address: str) -> None:
    async with standard_streams() as (stdin, stdout), connect(address) as client:
        await serve(client, stdin, stdout)


def main(argv: Sequence[str] | None = None) -> None:
    """The bridge's process."""
    parser = argparse.ArgumentParser("hearth mcp")
    parser.add_argument("--to", required=True)
    trio.run(_main, parser.parse_args(argv).to)


if __name__ == "__main__":
    main()
