"""`hearth mcp`: one MCP client on stdin and stdout, over a connection to the daemon.

It owns the streams and when they end: at the end of stdin, when nobody reads stdout any more, or on a signal. Nothing
but the protocol goes to stdout, and what is said to a person goes to stderr. Which tools there are, and what they do,
is the providers' and the daemon's.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import trio

from hearth.actors.bridges.mcp.clients import KEEP_ALIVE, Client, who
from hearth.actors.bridges.mcp.offers import all_offers
from hearth.actors.bridges.mcp.pipes import Incoming, Outgoing
from hearth.actors.bridges.mcp.server import make_server
from hearth.cli.common import Options, interruptible, standard
from hearth.cli.connect import standard_streams
from hearth.client import connect
from hearth.errors import CarrierError, ConfigError, MethodNotFound
from hearth.policy.principal import Principal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from hearth.actors.bridges.mcp.clients import Context, House
    from hearth.actors.bridges.mcp.providers import Provider
    from hearth.address import Address
    from hearth.api import Session
    from hearth.client import Client as HearthClient

LAST_WORDS: Final = 1.0
"""Seconds that the answers to what was under way may take to be read, once the client has ended its side."""

log = logging.getLogger("hearth.mcp")


class OnlyClient:
    """The one client there is on a pair of pipes. Implements `Clients`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def of(self, ctx: Context) -> Client:
        """See Clients."""
        self._client.introduce(*who(ctx))
        return self._client


@asynccontextmanager
async def one_client(house: House, *, keep_alive: float | None = KEEP_ALIVE) -> AsyncIterator[OnlyClient]:
    """The client that lives as long as the pipes do."""
    async with trio.open_nursery() as nursery:
        client = Client(house, nursery, name="mcp", keep_alive=keep_alive)
        try:
            yield OnlyClient(client)
        finally:
            # What runs for it beside its session ends with it; the session is closed in spite of that.
            client.close()
            nursery.cancel_scope.cancel()


class Daemon:
    """A daemon's sessions: over the connection that there was at the start, or, when that has ended, over a new one.

    A daemon may be started again while its clients' programs run on. Implements `House`.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._first: HearthClient | None = None
        self.card: Mapping[str, Any] | None = None
        """The daemon's own AgentCard, once a session with it has been opened."""

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[None]:
        """It is there now. Raises CarrierError if it cannot be reached."""
        async with connect(self._address) as self._first:
            yield

    @asynccontextmanager
    async def open_session(
        self, *, client_name: str | None = None, client_version: str | None = None
    ) -> AsyncIterator[Session]:
        """See House."""
        async with AsyncExitStack() as stack:

            async def opened(daemon: HearthClient) -> Session:
                opening = daemon.open_session(client_name=client_name, client_version=client_version)
                session = await stack.enter_async_context(opening)
                # A daemon that is older than the method has no card, and is served all the same.
                with suppress(MethodNotFound):
                    info = await daemon.call("mcp.info", {"session_id": session.session_id})
                    self.card = info.get("agent_card")
                return session

            try:
                if self._first is None:
                    raise CarrierError("there is no connection yet")
                session = await opened(self._first)
            except CarrierError as error:
                log.warning("%s; connecting again", error)
                session = await opened(await stack.enter_async_context(connect(self._address)))
            yield session


async def serve(
    house: House,
    stdin: trio.abc.ReceiveStream,
    stdout: trio.abc.SendStream,
    offers: Sequence[Provider],
    *,
    keep_alive: float | None = KEEP_ALIVE,
) -> None:
    """Speak MCP over these streams, one JSON document a line, until `stdin` ends.

    Raises BrokenPipeError when nobody reads `stdout` any more.
    """
    server = make_server(offers, one_client(house, keep_alive=keep_alive))
    async with trio.open_nursery() as nursery:
        outgoing = Outgoing(stdout, nursery.cancel_scope)
        nursery.start_soon(outgoing.run)
        await server.run(Incoming(stdin, outgoing), outgoing, server.create_initialization_options())
        with trio.move_on_after(LAST_WORDS):
            await outgoing.written.wait()
        nursery.cancel_scope.cancel()
    if outgoing.broken:
        raise BrokenPipeError


# --- the process ----------------------------------------------------------------------------------------------------


async def bridge(daemon: Daemon, offers: Sequence[Provider]) -> None:
    """Serve MCP on our stdin and stdout. Raises CarrierError if the daemon cannot be reached now."""
    # What is imported stays, and is most of what there is: to look through it again and again costs each call a tenth.
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    async with standard_streams() as (stdin, stdout), daemon.reached():
        await serve(daemon, stdin, stdout, offers)


def state_directory(environ: Mapping[str, str]) -> Path:
    """Where what a bridge keeps lies, on the machine that it runs on: the user's own (XDG Base Directory)."""
    named = environ.get("XDG_STATE_HOME", "")
    # A relative one is to be ignored, says the specification.
    base = Path(named) if named.startswith("/") else Path.home() / ".local" / "state"
    return base / "hearth"


@click.command("mcp")
@standard
def main(options: Options) -> int:
    """Serve MCP on stdin and stdout, over a connection to the daemon."""
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise ConfigError("stdin or stdout is closed; `hearth mcp` speaks MCP over them, to the program that starts it")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="hearth mcp: %(message)s")
    whose = Principal(kind="unix", uid=os.geteuid(), gid=os.getegid()).key
    daemon = Daemon(options.address)
    offers = all_offers(state_directory(os.environ), principal=lambda _ask: whose, own_card=lambda: daemon.card)
    return interruptible(lambda: bridge(daemon, offers))


if __name__ == "__main__":
    main(prog_name="hearth mcp")
