"""The `Carrier` protocol, which moves a connection's documents, and its implementation for stream sockets.

A carrier does not read documents. Most carriers are byte streams in which the protocol finds lines; some, such as a
WebSocket, deliver each document whole. Every failure between the two ends is raised as `PeerGone`.

This module also has a carrier over any Trio stream, such as TLS over a `hearth.transport.sockets.SocketTransport`. It
moves bytes and bounds the time in which a peer reads none of them. It does not know what the bytes mean, encrypted or
framed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from hearth.errors import CarrierError

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

RECEIVE_SIZE = 1 << 16


class PeerGone(CarrierError):
    """The peer closed the connection, vanished, or does not read."""


class PeerClosed(PeerGone):
    """The peer closed the connection in order: nothing can be sent, but what it had sent is still to be received."""


class Unreadable(CarrierError):
    """The peer sent data that is no document; it can be answered with an error, and the connection goes on."""


class Carrier(Protocol):
    """Both directions of one connection.

    One that can send without waiting also has `send_nowait`, as `SocketCarrier` has it.
    """

    @property
    def whole_documents(self) -> bool:
        """True if the carrier frames: `receive` returns one document, not a piece of a stream."""
        ...

    async def receive(self) -> bytes | None:
        """Return some bytes, or one document; None when the peer will send no more. Raises PeerGone or Unreadable."""
        ...

    async def send(self, documents: Sequence[bytes]) -> None:
        """Send documents, each of which ends with its LF.

        Raises PeerGone, also when the peer has read nothing for too long; PeerClosed only where `receive` tells the end
        after all that came before it.
        """

    async def aclose(self) -> None:
        """Close at once."""


class SocketCarrier:
    """A carrier over a connected, non-blocking stream socket.

    It calls the socket directly, and waits only when the kernel has no data or no room. Trio's own SocketStream adds a
    scheduling round to every call that succeeds at once. Here the actors keep fairness: each one waits for its mailbox
    between two pieces of work.
    """

    __slots__ = ("_send_timeout", "_socket")

    whole_documents = False

    def __init__(self, connected: socket.socket, *, send_timeout: float = 30.0) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._send_timeout = send_timeout

    async def receive(self) -> bytes | None:
        """See Carrier."""
        while True:
            # Wait first: a peer that waits for answers has sent nothing yet, and for a busy one the wait is short.
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(RECEIVE_SIZE) or None
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError) as error:
                raise PeerGone(f"connection lost while receiving: {error}") from None

    async def send(self, documents: Sequence[bytes]) -> None:
        """See Carrier."""
        data = documents[0] if len(documents) == 1 else b"".join(documents)
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise PeerGone(f"connection lost while sending: {error}") from None
        if sent < len(data):
            await self._send_rest(memoryview(data)[sent:])

    def send_nowait(self, data: bytes) -> int:
        """Send as much as the kernel takes at once; return the number of bytes. No other send may be under way.

        Returns 0 for a connection that is lost: the next `send` raises PeerGone.
        """
        try:
            return self._socket.send(data)
        except OSError:
            return 0

    async def _send_rest(self, rest: memoryview) -> None:
        while rest:
            try:
                with trio.fail_after(self._send_timeout):
                    await trio.lowlevel.wait_writable(self._socket)
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                continue
            except trio.TooSlowError:
                raise PeerGone(f"the peer has read nothing for {self._send_timeout:g} s") from None
            except (OSError, trio.ClosedResourceError) as error:
                raise PeerGone(f"connection lost while sending: {error}") from None

    async def aclose(self) -> None:
        """See Carrier."""
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        await trio.lowlevel.checkpoint()


CLOSING = 1.0
"""Seconds that the closing message of a protocol (TLS: close_notify) may take when a carrier closes."""


class StreamCarrier:
    """A carrier over a Trio stream of bytes. The stream must bound the time of a send itself."""

    __slots__ = ("_stream",)

    whole_documents = False

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self) -> bytes | None:
        """See Carrier."""
        try:
            return bytes(await self._stream.receive_some()) or None
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerGone(reason_of(error)) from None

    async def send(self, documents: Sequence[bytes]) -> None:
        """See Carrier."""
        try:
            await self._stream.send_all(documents[0] if len(documents) == 1 else b"".join(documents))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerGone(reason_of(error)) from None

    async def aclose(self) -> None:
        """Close the stream in order, within `CLOSING` seconds: a peer that stalls must not hold up the close."""
        with trio.move_on_after(CLOSING):
            await self._stream.aclose()


def reason_of(error: BaseException) -> str:
    """Return the text of a stream's error, or of its cause if it has none."""
    return str(error) or str(error.__cause__ or "") or "connection lost"
