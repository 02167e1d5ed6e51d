"""What is between clients and daemon, and between an operator and the daemon: pipes, a listener, signals, in memory.

Each stands where a socket or the system would, and does no more than they: bytes in order, room that is bounded, an end
that both sides see.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import trio

from hearth.actors.daemon.process import RELOAD
from hearth.actors.transport import PeerGone
from hearth.protocol.jsonrpc import dump_error


def line_of(document) -> bytes:
    """A document as a client sends it."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


class Pipe:
    """One direction of bytes; with a `room`, whoever writes waits until the other end has read."""

    __slots__ = ("changed", "data", "ended", "room")

    def __init__(self, room=None) -> None:
        self.room = room
        self.data = bytearray()
        self.ended = False
        self.changed: trio.Event | None = None

    def wake(self) -> None:
        """Somebody has changed something."""
        if self.changed is not None:
            changed, self.changed = self.changed, None
            changed.set()

    async def wait(self) -> None:
        """Until something has changed."""
        if self.changed is None:
            self.changed = trio.Event()
        await self.changed.wait()

    def end(self) -> None:
        """No more comes, and none is taken."""
        self.ended = True
        self.wake()

    async def write(self, data) -> None:
        """All of it. Raises BrokenResourceError once the pipe has ended."""
        rest = memoryview(data)
        while True:
            if self.ended:
                raise trio.BrokenResourceError
            size = len(rest) if self.room is None else self.room - len(self.data)
            if size > 0:
                self.data += rest[:size]
                rest = rest[size:]
                self.wake()
            if not rest:
                return
            await self.wait()

    def write_nowait(self, data) -> int:
        """As much as there is room for; nothing once the pipe has ended."""
        size = 0 if self.ended else len(data)
        if self.room is not None:
            size = max(0, min(size, self.room - len(self.data)))
        if size:
            self.data += data[:size]
            self.wake()
        return size

    async def read(self) -> bytes:
        """What is there, at least a byte; nothing at the end."""
        while not self.data:
            if self.ended:
                return b""
            await self.wait()
        data = bytes(self.data)
        self.data.clear()
        self.wake()
        return data


class MemoryCarrier:
    """The daemon's end of a connection; see `hearth.actors.transport.Carrier`."""

    whole_documents = False

    def __init__(self, to_daemon, to_client, send_timeout) -> None:
        self._in, self._out = to_daemon, to_client
        self._send_timeout = send_timeout

    async def receive(self):
        """See Carrier."""
        await trio.lowlevel.checkpoint()
        return await self._in.read() or None

    async def send(self, documents):
        """See Carrier."""
        data = b"".join(documents)
        try:
            with trio.fail_after(self._send_timeout):
                await self._out.write(data)
        except trio.TooSlowError:
            raise PeerGone(f"the peer has read nothing for {self._send_timeout:g} s") from None
        except trio.BrokenResourceError:
            raise PeerGone("the peer has closed") from None

    def send_nowait(self, data):
        """See SocketCarrier."""
        return self._out.write_nowait(data)

    async def aclose(self):
        """See Carrier."""
        self._in.end()
        self._out.end()
        await trio.lowlevel.checkpoint()


class MemoryListener:
    """Where clients come in; see `hearth.actors.listeners.accept.Listener`."""

    address = "unix:/run/world.sock"

    def __init__(self, send_timeout) -> None:
        self._send_timeout = send_timeout
        self._send, self._receive = trio.open_memory_channel(64)
        self.listening = True

    def connect(self, principal, to_daemon, to_client) -> bool:
        """A client's side; False when nobody listens."""
        if not self.listening:
            return False
        try:
            self._send.send_nowait((principal, to_daemon, to_client))
        except trio.WouldBlock:
            return False
        return True

    async def accept_all(self, nursery, limiter, welcome):
        """See Listener; what the Unix socket's does, without a socket."""

        async def serve(carrier, principal):
            try:
                await welcome(carrier, principal)
            finally:
                limiter.leave(principal)

        async for principal, to_daemon, to_client in self._receive:
            refusal = limiter.refusal(SimpleNamespace(fileno=int), principal)
            if refusal is not None:
                to_client.data += dump_error(None, refusal)
                to_client.end()
                to_daemon.end()
                continue
            limiter.enter(principal)
            nursery.start_soon(serve, MemoryCarrier(to_daemon, to_client, self._send_timeout), principal)

    def reload(self):
        """See Listener."""

    def warnings(self):
        """See Listener."""
        return []

    def close(self):
        """Listen no more; who waits to be accepted is sent away."""
        self.listening = False
        while True:
            try:
                _, to_daemon, to_client = self._receive.receive_nowait()
            except trio.WouldBlock:
                return
            to_daemon.end()
            to_client.end()

    def finish(self):
        """See Listener."""


class MemorySignals:
    """What the daemon is told from outside; see `hearth.actors.daemon.process.Signals`."""

    def __init__(self) -> None:
        self._arrived: list[str] = []
        self._changed = trio.Event()

    def send(self, name) -> None:
        """Send a signal."""
        self._arrived.append(name)
        self._changed.set()

    async def next(self) -> str:
        """See Signals."""
        while not self._arrived:
            self._changed = trio.Event()
            await self._changed.wait()
        return self._arrived.pop(0)

    async def end(self) -> str:
        """See Signals."""
        while (name := await self.next()) is RELOAD:
            pass
        return name
