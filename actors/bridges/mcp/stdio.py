"""MCP over a pair of pipes: one MCP client, served over a connection to the daemon. `hearth.cli.mcp_bridge` runs it.

It owns the streams and their end: the end of stdin, a closed stdout, or a signal. Only the protocol goes to stdout;
messages for a person go to stderr. The providers and the daemon own the tools.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import mcp_types as types
import orjson
import trio
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from hearth.actors.bridges.mcp.provider import KEEP_ALIVE, Client, who
from hearth.actors.bridges.mcp.reading import batch_of, read_message
from hearth.actors.bridges.mcp.server import make_server
from hearth.client.connection import call_halt, connect
from hearth.errors import CarrierError, InvalidRequest, MethodNotFound, RpcError
from hearth.protocol.framing import MAX_VALUES
from hearth.protocol.jsonrpc import reply_id_in, reply_id_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

    from mcp.shared._stream_protocols import ReadStream

    from hearth.actors.bridges.mcp.provider import Context, Provider, SessionFactory
    from hearth.api import HaltStatus, Session
    from hearth.client.connection import Client as HearthClient
    from hearth.transport.address import Address

FLUSH_TIMEOUT: Final = 1.0
"""Seconds for the last answers to be read, once the client has closed its side."""

log = logging.getLogger("hearth.mcp")


class OnlyClient:
    """The single client of a pair of pipes. Implements `Clients`."""

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
    """Open the client, which lives as long as the pipes do."""
    async with trio.open_nursery() as nursery:
        client = Client(session_factory, nursery, name="mcp", keep_alive=keep_alive)
        try:
            yield OnlyClient(client)
        finally:
            # The client's background work ends with it; its session is still closed.
            client.close()
            nursery.cancel_scope.cancel()


class DaemonConnection:
    """A daemon's sessions, over the first connection or, once that has ended, over a new one.

    A daemon may restart while its clients' programs run on. Implements `SessionFactory`.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._first: HearthClient | None = None
        self.card: Mapping[str, Any] | None = None
        """The daemon's own AgentCard, once a session with it was opened."""

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[None]:
        """Connect to the daemon for as long as the block lasts. Raises CarrierError if it cannot be reached."""
        async with connect(self._address) as self._first:
            yield

    @asynccontextmanager
    async def open_session(
        self, *, client_name: str | None = None, client_version: str | None = None
    ) -> AsyncIterator[Session]:
        """See SessionFactory."""
        async with AsyncExitStack() as stack:

            async def opened(daemon: HearthClient) -> Session:
                opening = daemon.open_session(client_name=client_name, client_version=client_version)
                session = await stack.enter_async_context(opening)
                # An older daemon does not have the method: it has no card, and is served as well.
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

    async def halt(self, reason: str = "") -> HaltStatus:
        """See SessionFactory: on the first connection, on a new one, or at the halt socket."""
        if self._first is not None:
            with suppress(CarrierError):
                return await self._first.halt(reason)
        return await call_halt(self._address, "halt", {"reason": reason})


async def serve(
    session_factory: SessionFactory,
    stdin: trio.abc.ReceiveStream,
    stdout: trio.abc.SendStream,
    offers: Sequence[Provider],
    *,
    keep_alive: float | None = KEEP_ALIVE,
) -> None:
    """Serve MCP over these streams, one JSON document a line, until `stdin` ends.

    Raises BrokenPipeError if `stdout` is closed by its reader.
    """
    server = make_server(offers, one_client(session_factory, keep_alive=keep_alive))
    async with trio.open_nursery() as nursery:
        outgoing = Outgoing(stdout, nursery.cancel_scope)
        nursery.start_soon(outgoing.run)
        await server.run(Incoming(stdin, outgoing), outgoing, server.create_initialization_options())
        with trio.move_on_after(FLUSH_TIMEOUT):
            await outgoing.written.wait()
        nursery.cancel_scope.cancel()
    if outgoing.broken:
        raise BrokenPipeError


# --- Messages on a pair of pipes: one JSON document a line, in the SDK's stream interface -----------------------------
#
# This part owns the framing, its limits, and the answer to a line that is not a message. Data are read and written in
# the calling task where possible: each switch between two tasks costs a small call a tenth of its time.

MOST_LINE: Final = 4 << 20
"""Bytes of one message: HACP accepts 1 MiB, and JSON may be written longer. A longer line is refused and skipped."""
MOST_WAITING: Final = 64 << 20
"""Bytes that may wait for the client to read them before it is disconnected."""
PIECE: Final = 1 << 16
NOT_A_MESSAGE: Final = "Invalid Request: not a JSON-RPC 2.0 request, notification or response"


class _StdioStream:
    """The SDK's stream interface, beside the direction."""

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
        """Close the stream."""


class Outgoing(_StdioStream):
    """The stream of the server's messages to stdout: written at once if stdout accepts them, else in their order.

    A message is written whole, even if its sender is cancelled; a sender waits until its message is written. A client
    that does not read is disconnected when `MOST_WAITING` bytes wait for it.
    """

    def __init__(self, stdout: trio.abc.SendStream, all_of_it: trio.CancelScope) -> None:
        self._stdout = stdout
        self._descriptor = stdout.fileno() if isinstance(stdout, trio.lowlevel.FdStream) else None
        self._all_of_it = all_of_it
        self._waiting = bytearray()
        self._ended = False
        self._something, self._drained = trio.Event(), trio.Event()
        self.written = trio.Event()
        """Set when the last byte is written."""
        self.broken = False
        """True once stdout is closed by its reader."""
        self.revision = ""
        """The revision of the protocol that the server has agreed to."""

    async def send(self, item: SessionMessage) -> None:
        """Write a message. Raises anyio.BrokenResourceError once stdout is closed by its reader."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.broken:
            raise anyio.BrokenResourceError
        if not self.revision and isinstance(item.message, types.JSONRPCResponse):
            self.revision = str(item.message.result.get("protocolVersion", ""))
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        # Directly only if no earlier message waits: the order must hold.
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
        """Write the bytes that stdout did not accept at once, until the stream is closed or broken."""
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
        """Close the stream: no more messages follow."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._ended = True
        self._something.set()


class Incoming(_StdioStream):
    """The stream of the client's messages; lines that are not messages are answered here and skipped."""

    def __init__(self, stdin: trio.abc.ReceiveStream, outgoing: Outgoing) -> None:
        self._lines = lines(stdin)
        self._outgoing = outgoing
        self._batch: deque[bytes] = deque()
        """The messages of a batch that are still to be read; each is answered by itself."""

    def __aiter__(self) -> ReadStream[SessionMessage | Exception]:
        return self

    async def __anext__(self) -> SessionMessage:
        while True:
            batched, value = bool(self._batch), None
            line = self._batch.popleft() if batched else await anext(self._lines)
            if line is None:
                await self._refuse(None, types.INVALID_REQUEST, f"a message has at most {MOST_LINE} bytes")
                continue
            try:
                value = read_message(line, MAX_VALUES)
                if type(value) is list and not batched:
                    self._batch.extend(map(orjson.dumps, batch_of(value, self._outgoing.revision)))
                    continue
                message: Any = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except RpcError as error:
                known = reply_id_in(line) if isinstance(error, InvalidRequest) else None
                await self._refuse(known, error.code, f"{error}")
            except ValidationError:
                await self._refuse(reply_id_of(value), types.INVALID_REQUEST, NOT_A_MESSAGE)
            else:
                return SessionMessage(message)

    async def receive(self) -> SessionMessage:
        """Return the next message. Raises anyio.EndOfStream after the last."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _refuse(self, id_: types.RequestId | None, code: int, reason: str) -> None:
        error = types.ErrorData(code=code, message=reason)
        await self._outgoing.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=id_, error=error)))


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes | None]:
    """Iterate over a stream's lines without blank ones, the last one also if unterminated; None for one too long."""
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
    """Return received bytes as soon as there are some; empty at the end."""
    if not isinstance(stream, trio.lowlevel.FdStream):
        return bytes(await stream.receive_some(PIECE))
    descriptor = stream.fileno()
    waited = False
    while True:
        try:
            data = os.read(descriptor, PIECE)
            break
        except BlockingIOError:
            # Like the stream itself, but without a checkpoint before the first read.
            await trio.lowlevel.wait_readable(descriptor)
            waited = True
        except OSError:
            # A terminal that has gone is an end as well.
            return b""
    if not waited:
        await trio.lowlevel.checkpoint()
    return data
