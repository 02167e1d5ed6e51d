"""A Trio stream over a connected socket, for both ends of a connection: it calls the socket directly.

Protocol libraries (TLS, WebSocket) are built on it, and a client's lines go over it as they are.
"""

from __future__ import annotations

import operator
import socket
from contextlib import suppress

import trio

RECEIVE_SIZE = 1 << 16


class SocketTransport(trio.abc.HalfCloseableStream):
    """A Trio stream over a connected, non-blocking stream socket, without Trio's scheduling round per call.

    A call that succeeds at once does not wait, so `send_all` may be no checkpoint. `send_all` raises
    BrokenResourceError when the peer has read nothing for `send_timeout` seconds. After a send that was cut off
    (cancelled, or too slow) every further send raises BrokenResourceError. Several tasks may send; they take turns in
    the order of their calls.
    """

    def __init__(self, connected: socket.socket, *, send_timeout: float = 30.0) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._send_timeout = send_timeout
        self._turn = trio.StrictFIFOLock()
        self._closed = False
        self._torn = False

    @property
    def socket(self) -> socket.socket:
        """The socket itself, for its options and addresses."""
        return self._socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio.abc.SendStream. Raises BrokenResourceError or ClosedResourceError."""
        if self._turn.locked():
            await self._turn.acquire()
        else:
            self._turn.acquire_nowait()
        try:
            self._check()
            await self._send(data)
        finally:
            self._turn.release()

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Send as much as the kernel takes at once, nearly always everything; return the number of bytes.

        Returns 0 while another send waits. The caller must pass the rest to `send_all` at once. Raises
        BrokenResourceError or ClosedResourceError.
        """
        if self._turn.locked():
            return 0
        self._check()
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"connection lost while sending: {error}") from error

    async def send_eof(self) -> None:
        """See trio.abc.HalfCloseableStream."""
        async with self._turn:
            self._check()
            with suppress(OSError):  # the peer has gone
                self._socket.shutdown(socket.SHUT_WR)

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        async with self._turn:
            self._check()
            await trio.lowlevel.wait_writable(self._socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See trio.abc.ReceiveStream; at most RECEIVE_SIZE bytes where `max_bytes` is None."""
        size = RECEIVE_SIZE if max_bytes is None else operator.index(max_bytes)
        if size < 1:
            raise ValueError("max_bytes must be at least 1")
        while True:
            if self._closed:
                raise trio.ClosedResourceError("this stream is closed")
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(size)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"connection lost while receiving: {error}") from error

    async def aclose(self) -> None:
        """See `close`."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close at once; a task that sends or receives gets ClosedResourceError. Idempotent."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream is closed")
        if self._torn:
            raise trio.BrokenResourceError("an earlier send was cut short")

    async def _send(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        # Between the first byte and the last no other data may be sent on this stream.
        self._torn = True
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await self._room()
            except OSError as error:
                raise trio.BrokenResourceError(f"connection lost while sending: {error}") from error
        self._torn = False

    async def _room(self) -> None:
        try:
            with trio.fail_after(self._send_timeout):
                await trio.lowlevel.wait_writable(self._socket)
        except trio.TooSlowError:
            raise trio.BrokenResourceError(f"the peer has read nothing for {self._send_timeout:g} s") from None
