"""MCP clients for tests: the official one over memory or over a real `hearth mcp`, and one that speaks raw lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.memory import create_client_server_memory_streams
from support.hearthd import BOUND

from hearth.actors.bridges.mcp.provider import Client as HearthClient
from hearth.actors.bridges.mcp.server import HacpTools, HaltTool, PlanTool, make_server
from hearth.actors.bridges.mcp.stdio import one_client

ERAS = ("legacy", "auto")
"""The client's modes: the handshake of 2025-11-25, and 2026-07-28."""
VERSIONS = {"2025-11-25": "legacy", "2026-07-28": "auto"}
"""The protocol version that is spoken, by the client's mode for it."""
BRIDGE = (sys.executable, "-m", "hearth.cli.mcp_bridge")


def memory(server):
    """A transport to a server in this process, over the same loop that stdio has."""

    @asynccontextmanager
    async def transport():
        async with (
            create_client_server_memory_streams() as (client, (incoming, outgoing)),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(server.run, incoming, outgoing, server.create_initialization_options())
            yield client
            nursery.cancel_scope.cancel()

    return transport()


@asynccontextmanager
async def mcp_client(sessions, mode, *, offers=None, keep_alive=None, beat=5.0, **options):
    """The official client of a server over a world's `sessions()`. `options` are the client's."""
    offers = [HacpTools(beat=beat), PlanTool(beat=beat), HaltTool()] if offers is None else offers
    server = make_server(offers, one_client(sessions, keep_alive=keep_alive))
    async with Client(memory(server), mode=mode, **options) as client:
        yield client


class Only:
    """The one client there is. Implements `Clients`."""

    def __init__(self, client):
        self.client = client

    async def of(self, _ctx):
        return self.client


@asynccontextmanager
async def serving(providers, era, *, sessions=None, within=600, **more):
    """The official client, and the bridge's own side of it; nothing of ours may go on when the client has gone.

    `within`: seconds, which virtual time makes short.
    """
    with trio.fail_after(within):
        async with trio.open_nursery() as nursery:
            ours = HearthClient(sessions, nursery, name="test")

            @asynccontextmanager
            async def only():
                try:
                    yield Only(ours)
                finally:
                    ours.close()

            server = make_server(providers, only())
            async with Client(memory(server), mode=VERSIONS[era], **more) as client:
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


@asynccontextmanager
async def stdio_mcp_client(address, mode, *, command=None, **options):
    """The official client of a real `hearth mcp` process, or of one that is started by this command."""
    program, *arguments = command or (*BRIDGE, "--to", str(address))
    parameters = StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
    async with Client(stdio_client(parameters), mode=mode, **options) as client:
        yield client


def impatient(address, state, seconds):
    """The command of a bridge whose tasks give a sign of life each so many seconds."""
    # Without its own directory on the path, where this very module would stand in the way of the SDK of its name.
    script = Path(__file__).with_name("mcp_bridge.py")
    return (sys.executable, "-P", str(script), str(address), str(state), str(seconds))


def text_of(result):
    """All that a result says in words."""
    return "\n".join(part.text for part in result.content if part.type == "text")


class RawMcp:
    """A bridge process, and lines to and from it."""

    def __init__(self, address, *, arguments=(), **options):
        where = () if address is None else ("--to", str(address))
        self.process = subprocess.Popen(
            [*BRIDGE, *where, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        self._ids = 0

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        self.process.wait(BOUND)

    def send(self, document):
        """A line, as it is or as JSON."""
        line = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def start(self, method, params=None):
        """A request; returns its id."""
        self._ids += 1
        self.send({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params or {}})
        return self._ids

    def line(self):
        """The next line; None at the end."""
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def answer(self, id_):
        """The answer to a request; what comes before it is passed over."""
        while (said := self.line()) is not None:
            if said.get("id") == id_ and "method" not in said:
                return said
        raise EOFError(f"the bridge ended before it answered {id_}")

    def call(self, method, params=None):
        return self.answer(self.start(method, params))

    def initialize(self, **capabilities):
        """The handshake of 2025-11-25."""
        said = self.call(
            "initialize",
            {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "clientInfo": {"name": "raw", "version": "1"},
            },
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return said["result"]

    def tool(self, name, /, **arguments):
        return self.call("tools/call", {"name": name, "arguments": arguments})

    def end(self):
        """Close stdin and wait; the exit code and what was said on stderr."""
        self.process.stdin.close()
        return self.wait()

    def wait(self):
        code = self.process.wait(BOUND)
        return code, self.process.stderr.read().decode()
