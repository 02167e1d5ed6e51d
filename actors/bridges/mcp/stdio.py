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
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import click
import mcp_types as types
import orjson
import trio
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from hearth.actors.bridges.mcp.provider import KEEP_ALIVE, Client, who
from hearth.actors.bridges.mcp.server import all_offers, make_server
from hearth.cli.common import Options, interruptible, standard
from hearth.cli.connect import standard_streams
from hearth.client.connection import connect
from hearth.errors import CarrierError, ConfigError, MethodNotFound
from hearth.policy.principal import Principal
from hearth.protocol.framing import MAX_VALUES, TOO_MANY, has_more_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

    from mcp.shared._stream_protocols import ReadStream

    from hearth.actors.bridges.mcp.provider import Context, Provider, SessionFactory
    from hearth.api import Session
    from hearth.client.connection import Client as HearthClient
    from hearth.transport.address import Address

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
async def one_client(
    session_factory: SessionFactory, *, keep_alive: float | None = KEEP_ALIVE
) -> AsyncIterator[OnlyClient]:
    """The client that lives as long as the pipes do."""
    async with trio.open_nursery() as nursery:
        client = Client(session_factory, nursery, name="mcp", keep_alive=keep_alive)
        try:
            yield OnlyClient(client)
        finally:
            # What runs for it beside its session ends with it; the session is closed in spite of that.
            client.close()
            nursery.cancel_scope.cancel()


class DaemonConnection:
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
    session_factory: SessionFactory,
    stdin: trio.abc.ReceiveStream,
    stdout: trio.abc.SendStream,
    offers: Sequence[Provider],
    *,
    keep_alive: float | None = KEEP_ALIVE,
) -> None:
    """Speak MCP over these streams, one JSON document a line, until `stdin` ends.

    Raises BrokenPipeError when nobody reads `stdout` any more.
    """
    server = make_server(offers, one_client(session_factory, keep_alive=keep_alive))
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


async def bridge(daemon: DaemonConnection, offers: Sequence[Provider]) -> None:
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
    daemon = DaemonConnection(options.address)
    offers = all_offers(state_directory(os.environ), principal=lambda _ask: whose, own_card=lambda: daemon.card)
    return interruptible(lambda: bridge(daemon, offers))


# --- Messages on a pair of pipes: one JSON document a line, as the SDK takes and gives them
#
# It owns the framing, its bounds, and what is answered to a line that is no message. Everything is read and written in
# the task that wants it, where that is possible: each hop between two tasks costs a small call a tenth of its time.

MOST_LINE: Final = 4 << 20
"""Bytes of one message: HACP takes 1 MiB, and JSON may be written longer. A longer line is refused and passed over."""
MOST_WAITING: Final = 64 << 20
"""Bytes that may wait to be read by the client before it is given up."""
PIECE: Final = 1 << 16


class _Stream:
    """What the SDK wants of a stream beside its direction."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close."""


class Outgoing(_Stream):
    """What the server says, to stdout: at once where stdout takes it, else in its turn.

    A message is written whole, whatever becomes of who says it; who says one waits until it is written. A client that
    does not read is given up when too much has piled up for it.
    """

    def __init__(self, stdout: trio.abc.SendStream, all_of_it: trio.CancelScope) -> None:
        self._stdout = stdout
        self._descriptor = stdout.fileno() if isinstance(stdout, trio.lowlevel.FdStream) else None
        self._all_of_it = all_of_it
        self._waiting = bytearray()
        self._ended = False
        self._something, self._drained = trio.Event(), trio.Event()
        self.written = trio.Event()
        """Set when all is written that ever will be."""
        self.broken = False
        """True when nobody reads stdout any more."""

    async def send(self, item: SessionMessage) -> None:
        """Say it. Raises anyio.BrokenResourceError when nobody reads any more."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.broken:
            raise anyio.BrokenResourceError
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        rest = line if self._waiting else line[self._write_now(line) :]
        if rest:
            if not self._waiting:
                self._drained = trio.Event()
            self._waiting += rest
            if len(self._waiting) > MOST_WAITING:
                self._break()
            self._something.set()
            await self._drained.wait()

    def _write_now(self, line: bytes) -> int:
        if self._descriptor is None:
            return 0
        try:
            return os.write(self._descriptor, line)
        except BlockingIOError:
            return 0
        except OSError:
            self._break()
            raise anyio.BrokenResourceError from None

    def _break(self) -> None:
        self.broken = True
        self._all_of_it.cancel()

    async def run(self) -> None:
        """Write what stdout has not taken at once, until no more is said, or until nobody reads."""
        try:
            while True:
                while self._waiting:
                    piece = bytes(self._waiting[:PIECE])
                    await self._stdout.send_all(piece)
                    del self._waiting[: len(piece)]
                self._drained.set()
                if self._ended:
                    break
                self._something = trio.Event()
                await self._something.wait()
        except trio.BrokenResourceError:
            self._break()
        self.written.set()

    async def aclose(self) -> None:
        """No more will be said."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._ended = True
        self._something.set()


class Incoming(_Stream):
    """What the client says; what is no message is answered here, and passed over."""

    def __init__(self, stdin: trio.abc.ReceiveStream, outgoing: Outgoing) -> None:
        self._lines = lines(stdin)
        self._outgoing = outgoing

    def __aiter__(self) -> ReadStream[SessionMessage | Exception]:
        return self

    async def __anext__(self) -> SessionMessage:
        async for line in self._lines:
            if line is None:
                await self._refuse(None, types.INVALID_REQUEST, f"a message has at most {MOST_LINE} bytes")
                continue
            if has_more_values(line, MAX_VALUES):
                await self._refuse(None, types.INVALID_REQUEST, TOO_MANY.format(MAX_VALUES))
                continue
            try:
                message: Any = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError:
                await self._refuse(*fault(line))
            else:
                return SessionMessage(message)
        raise StopAsyncIteration

    async def receive(self) -> SessionMessage:
        """The next message. Raises anyio.EndOfStream after the last."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _refuse(self, id_: types.RequestId | None, code: int, reason: str) -> None:
        error = types.ErrorData(code=code, message=reason)
        await self._outgoing.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=id_, error=error)))


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes | None]:
    """The lines of a stream, blank ones left out, the last one whether or not it is ended; None for one too long."""
    pending = bytearray()
    passing_over = False
    while data := await _some(stream):
        *ended, rest = data.split(b"\n")
        for piece in ended:
            pending += piece
            if len(pending) > MOST_LINE and not passing_over:
                yield None
            elif pending.strip() and not passing_over:
                yield bytes(pending)
            pending.clear()
            passing_over = False
        pending += rest
        if len(pending) > MOST_LINE:
            pending.clear()
            if not passing_over:
                passing_over = True
                yield None
    if pending.strip() and not passing_over:
        yield bytes(pending)


async def _some(stream: trio.abc.ReceiveStream) -> bytes:
    """What has come, as soon as something has; nothing at the end."""
    if not isinstance(stream, trio.lowlevel.FdStream):
        return bytes(await stream.receive_some(PIECE))
    descriptor = stream.fileno()
    waited = False
    while True:
        try:
            data = os.read(descriptor, PIECE)
            break
        except BlockingIOError:
            # As the stream itself would, but for a turn that it gives to others before it looks.
            await trio.lowlevel.wait_readable(descriptor)
            waited = True
        except OSError:
            # A terminal that has gone is an end as well.
            return b""
    if not waited:
        await trio.lowlevel.checkpoint()
    return data


def fault(line: bytes) -> tuple[types.RequestId | None, int, str]:
    """What is wrong with a line that is no message: whose request it was, if that can be told, a code and a reason."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return None, types.PARSE_ERROR, f"Parse error: {error}"
    if not isinstance(value, dict):
        batch = (
            "MCP has no batches; send each message by itself" if isinstance(value, list) else "a message is an object"
        )
        return None, types.INVALID_REQUEST, f"Invalid Request: {batch}"
    id_ = value.get("id")
    known = id_ if isinstance(id_, (str, int)) and not isinstance(id_, bool) else None
    return known, types.INVALID_REQUEST, "Invalid Request: not a JSON-RPC 2.0 request, notification or response"


if __name__ == "__main__":
    main(prog_name="hearth mcp")
