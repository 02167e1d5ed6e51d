"""A TCP proxy on loopback that fails on demand: cuts, half-open connections, a delay, one byte at a time."""

from __future__ import annotations

import math
import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from support.waiting import passes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PIECE = 65_536


class TcpProxy:
    """Forwards what arrives on `port` to another port of loopback; the attributes may be changed at any time.

    `delay` is in seconds, each way, and costs no throughput. `byte_every` is the time from one byte to the next,
    towards the client. `connections` counts those that were accepted.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay = 0.0
        self.byte_every = 0.0
        self.connections = 0
        self.refuses = False
        self._flows = trio.Event()
        self._flows.set()
        self._streams: set[trio.SocketStream] = set()

    def freeze(self) -> None:
        """Forward nothing more, and leave the connections as they are: half-open, as after a pulled cable."""
        self._flows = trio.Event()

    def thaw(self) -> None:
        """Forward again, what has waited first."""
        self._flows.set()

    def cut(self) -> None:
        """Reset all connections."""
        # One may be closing by itself.
        for stream in [one for one in self._streams if one.socket.fileno() >= 0]:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.socket.close()

    async def accepted(self, count: int) -> None:
        """Wait until so many connections have come."""
        await passes(lambda: self.connections >= count)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept and forward until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        await trio.serve_listeners(self._forward, [listener], task_status=task_status)  # type: ignore[arg-type]

    async def _forward(self, client: trio.SocketStream) -> None:
        self.connections += 1
        if self.refuses:
            return
        server = await trio.open_tcp_stream("127.0.0.1", self.target)
        self._streams |= {client, server}
        try:
            async with client, server, trio.open_nursery() as nursery:
                for source, sink in ((client, server), (server, client)):
                    send, receive = trio.open_memory_channel[tuple[float, bytes]](math.inf)
                    nursery.start_soon(self._read, source, send, nursery.cancel_scope)
                    nursery.start_soon(self._write, receive, sink, sink is client)
        finally:
            self._streams -= {client, server}

    async def _read(
        self, source: trio.SocketStream, send: trio.MemorySendChannel[tuple[float, bytes]], scope: trio.CancelScope
    ) -> None:
        try:
            async with send:
                while data := await source.receive_some(PIECE):
                    send.send_nowait((trio.current_time(), bytes(data)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()

    async def _write(
        self, receive: trio.MemoryReceiveChannel[tuple[float, bytes]], sink: trio.SocketStream, to_client: bool
    ) -> None:
        try:
            async for arrived, data in receive:
                await trio.sleep_until(arrived + self.delay)
                step = 1 if to_client and self.byte_every else PIECE
                for start in range(0, len(data), step):
                    await self._flows.wait()
                    await sink.send_all(data[start : start + step])
                    if step == 1:
                        await trio.sleep(self.byte_every)
            await self._flows.wait()
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


@asynccontextmanager
async def proxied(target: int) -> AsyncIterator[TcpProxy]:
    """`async with proxied(port) as proxy`; clients connect to `proxy.port`."""
    proxy = TcpProxy(target)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        yield proxy
        nursery.cancel_scope.cancel()
