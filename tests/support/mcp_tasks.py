"""An MCP server over memory streams, and clients that speak the raw wire of 2026-07-28, for tests of MCP tasks.

`serving` runs the real server object; who a client is goes by the name it gives. `Errands` offers what a test scripts.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from itertools import count

import anyio
import mcp_types as types
import trio
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from hearth.actors.bridges.mcp.provider import Client, Provider
from hearth.actors.bridges.mcp.server import make_server

VERSION = "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"
DECLARED = {"elicitation": {}, "extensions": {EXTENSION: {}}}


class Errands(Provider):
    """Tools by name: async functions of the ask and the params."""

    def __init__(self, **errands):
        self._errands = errands

    async def tools(self, ask):
        return [types.Tool(name=name, input_schema={"type": "object"}) for name in self._errands]

    async def call(self, ask, params):
        errand = self._errands.get(params.name)
        return None if errand is None else await errand(ask, params)


def text(said, *, is_error=False):
    """A result of one text."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=said)], is_error=is_error)


def form(message, *names):
    """A question to a person."""
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def accepted(**content):
    """A person's answer."""
    return {"action": "accept", "content": content}


def envelope(name, capabilities):
    """What each request of 2026-07-28 says of its client."""
    return {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }


class ByName:
    """One client for each name that requests give. Implements `Clients`."""

    def __init__(self, sessions, nursery):
        self._sessions = sessions
        self._nursery = nursery
        self.clients = {}

    async def of(self, ctx):
        params = ctx.session.client_params
        name = "" if params is None else params.client_info.name
        if name not in self.clients:
            self.clients[name] = Client(self._sessions, self._nursery, name=name, version="1")
        return self.clients[name]


class Serving:
    """A server that runs; `clients` while it does."""

    def __init__(self, providers, sessions, nursery):
        self.clients = None
        self.nursery = nursery
        self._sessions = sessions
        self.server = make_server(providers, self._lifespan())

    @asynccontextmanager
    async def _lifespan(self):
        async with trio.open_nursery() as nursery:
            self.clients = ByName(self._sessions, nursery)
            try:
                yield self.clients
            finally:
                for client in self.clients.clients.values():
                    client.close()
                nursery.cancel_scope.cancel()

    async def run(self, read, write):
        await self.server.run(read, write, self.server.create_initialization_options())


class Wire:
    """What one connection says and hears; several clients may speak over it, each under its name."""

    def __init__(self, read, write):
        self.notifications = []
        self._read, self._write = read, write
        self._ids = count(1)
        self._answers = {}
        self._changed = trio.Event()

    async def hear(self):
        with suppress(anyio.ClosedResourceError):
            async for item in self._read:
                message = item.message
                if isinstance(message, types.JSONRPCNotification):
                    self.notifications.append((message.method, message.params))
                else:
                    self._answers[message.id] = message
                self._changed.set()
                self._changed = trio.Event()

    async def until(self, ready):
        """Wait until `ready()` is true; it is looked at after everything that comes."""
        with trio.fail_after(1000):
            while not (found := ready()):
                await self._changed.wait()
        return found

    def said(self, method):
        """The params of the notifications of this method so far."""
        return [params for name, params in self.notifications if name == method]

    async def send(self, method, params, *, name="a", capabilities=DECLARED, meta=None):
        """Send a request; returns its id."""
        id_ = next(self._ids)
        meta = {**envelope(name, capabilities), **(meta or {})}
        request = types.JSONRPCRequest(jsonrpc="2.0", id=id_, method=method, params={**params, "_meta": meta})
        await self._write.send(SessionMessage(request))
        return id_

    async def notify(self, method, params):
        await self._write.send(SessionMessage(types.JSONRPCNotification(jsonrpc="2.0", method=method, params=params)))

    async def answer(self, id_):
        """The result a request was answered with; raises MCPError for an error."""
        message = await self.until(lambda: self._answers.get(id_))
        if isinstance(message, types.JSONRPCError):
            raise MCPError.from_jsonrpc_error(message)
        return message.result

    async def ask(self, method, params, **more):
        return await self.answer(await self.send(method, params, **more))

    async def call(self, tool, arguments=None, **more):
        """tools/call."""
        return await self.ask("tools/call", {"name": tool, "arguments": arguments or {}}, **more)

    async def get(self, task, **more):
        """tasks/get of what tools/call was answered with."""
        return await self.ask("tasks/get", {"taskId": task["taskId"]}, **more)

    async def update(self, task, responses, **more):
        return await self.ask("tasks/update", {"taskId": task["taskId"], "inputResponses": responses}, **more)

    async def cancel(self, task, **more):
        return await self.ask("tasks/cancel", {"taskId": task["taskId"]}, **more)

    async def reaches(self, task, *statuses, **more):
        """tasks/get until its status is one of these."""
        for _ in range(2000):
            state = await self.get(task, **more)
            if state["status"] in statuses:
                return state
            await trio.sleep(0.05)
        raise AssertionError(f"it was never {statuses}: {state}")

    async def ends(self, task, **more):
        """tasks/get until it is over."""
        return await self.reaches(task, "completed", "failed", "cancelled", **more)


@asynccontextmanager
async def serving(*providers, sessions=None):
    """A server over these providers, and one raw connection to it."""
    async with trio.open_nursery() as nursery:
        server = Serving(providers, sessions, nursery)
        async with create_client_server_memory_streams() as ((read, write), server_streams):
            wire = Wire(read, write)
            nursery.start_soon(server.run, *server_streams)
            nursery.start_soon(wire.hear)
            wire.serving = server
            yield wire
            nursery.cancel_scope.cancel()
