"""A TCP connection, and why there is none, in words. TLS and WebSocket stand on it."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from hearth.errors import CarrierError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.address import TlsAddress, WebSocketAddress

DEADLINE = 10.0
"""Seconds for a connection to be made: name, TCP, TLS and WebSocket together."""
SILENCE = 30
"""Seconds after which a peer whose machine or network is gone counts as gone, whether or not we are sending."""
_PROBE = 10
"""Seconds between two of the kernel's keep-alive probes."""
_NO_WAY = frozenset((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN))


@contextmanager
def in_time(address: TlsAddress | WebSocketAddress) -> Iterator[None]:
    """Around all that makes the connection. Raises CarrierError when that takes too long."""
    try:
        with trio.fail_after(DEADLINE):
            yield
    except trio.TooSlowError:
        cure = f"is {address.host} on, does a firewall let port {address.port} through, is it hearthd that listens?"
        raise CarrierError(f"no connection to {address.place} within {DEADLINE:g} s: {cure}") from None


async def open_tcp(address: TlsAddress | WebSocketAddress) -> trio.SocketStream:
    """Connect, within `in_time`. Raises CarrierError."""
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        raise CarrierError(f"cannot connect to {address.place}: {_why(address, error)}") from None
    try:
        # The kernel's own probes: a client that waits for events sends nothing, and must learn of a dead link too.
        for option, value in (
            (socket.TCP_KEEPIDLE, _PROBE),
            (socket.TCP_KEEPINTVL, _PROBE),
            (socket.TCP_KEEPCNT, SILENCE // _PROBE),
            (socket.TCP_USER_TIMEOUT, SILENCE * 1000),
        ):
            stream.setsockopt(socket.IPPROTO_TCP, option, value)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except OSError as error:  # it was reset meanwhile
        await trio.aclose_forcefully(stream)
        raise CarrierError(f"cannot connect to {address.place}: {_why(address, error)}") from None
    return stream


def _why(address: TlsAddress | WebSocketAddress, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"there is no host {address.host} ({error.strerror}); look at the name, or write its IP address"
    numbers = _numbers(error)
    if errno.ECONNREFUSED in numbers:
        section = "tls" if address.scheme == "tls" else "websocket"
        return f"nobody listens on that port; is hearthd running there, with [{section}] listen for that address?"
    if numbers & _NO_WAY:
        return f"there is no way to {address.host} from here; is it on, and on this network?"
    told = sorted(os.strerror(number) for number in numbers)
    return "; ".join(told) or str(error)


def _numbers(error: BaseException) -> set[int]:
    """The errno of each attempt: a host may have several addresses, and Trio tells of each."""
    found = {error.errno} if isinstance(error, OSError) and error.errno is not None else set[int]()
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            found |= _numbers(each)
    if error.__cause__ is not None:
        found |= _numbers(error.__cause__)
    return found
