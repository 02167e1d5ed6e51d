"""What a connection needs of the thing that carries its documents, and the one for stream sockets.

A carrier moves documents and knows nothing of what they say. Most are streams of bytes in which lines are found; some,
such as a WebSocket, hand over each document whole. Whatever can go wrong between two ends comes out as `PeerGone`.
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
    """The other end closed, vanished, or does not read."""


class Unreadable(CarrierError):
    """What the peer sent is no document, and can be answered as such: the connection goes on."""


class Carrier(Protocol):
    """Both directions of one connection."""

    @property
    def whole_documents(self) -> bool:
        """True where it frames by itself: what `receive` returns is one document, not a piece of a stream."""
        ...

    async def receive(self) -> bytes | None:
        """Some bytes, or one document; None when the peer will send no more. Raises PeerGone or Unreadable."""
        ...

    async def send(self, documents: Sequence[bytes]) -> None:
        """Send documents, each of which ends with its LF.

        Raises PeerGone, also when the peer has taken nothing for too long.
        """

    async def aclose(self) -> None:
        """Close at once."""


class SocketCarrier:
    """A carrier over a connected, non-blocking stream socket.

    It calls the socket directly and waits only when the kernel says so. Trio's own SocketStream adds a scheduling
    round to every call that succeeds at once; here fairness is kept by the actors, each of which waits for its
    mailbox between two pieces of work.
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
            # Waiting first: a request-and-answer peer has sent nothing yet, and a busy one loses nothing by it.
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
