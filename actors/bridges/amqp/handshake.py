"""A stream to a broker that has let this client in: TCP, TLS, and the handshake of AMQP.

The log-in follows from the address: the client certificate, or a password from a file. The password is sent only to a
peer whose address is loopback, whatever name led there. Every failure names the address, the reason and the cure.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

import trio

from hearth.amqp.address import is_loopback
from hearth.amqp.connection import ConnectionEnded, ConnectionOpened, Login
from hearth.amqp.errors import BrokerConnectionLost, BrokerUnreachable
from hearth.errors import ConfigError
from hearth.transport.tls import connect_failure, error_numbers, readable

if TYPE_CHECKING:
    import ssl

    from hearth.amqp.address import BrokerAddress
    from hearth.amqp.connection import AmqpConnection, Event
    from hearth.transport.address import TlsAddress

PIECE: Final = 65_536
"""Bytes of one read, and of one write."""


def why_broken(error: BaseException) -> str:
    """Return the reason of a broken stream, as the kernel gives it."""
    reasons = sorted(os.strerror(number) for number in error_numbers(error))
    return "; ".join(reasons) or "the connection broke"


def login_for(address: BrokerAddress) -> Login:
    """Return how to log in. Raises ConfigError for a password file that cannot be used."""
    if address.user is None or address.password_file is None:
        return Login.external()
    file = readable(address.password_file, "password_file", private=True)
    try:
        return Login.plain(address.user, file.read_text("utf-8").rstrip("\r\n"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"password_file {file} cannot be read: {error}") from None


async def open_stream(address: BrokerAddress, context: ssl.SSLContext | None, tls: TlsAddress) -> trio.abc.Stream:
    """Open TCP, and TLS if there is a context. Raises BrokerUnreachable."""
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        if isinstance(error, socket.gaierror):
            reason = f"there is no host {address.host} ({error.strerror})"
        elif errno.ECONNREFUSED in error_numbers(error):
            reason = "no process listens on that port; is the broker running there?"
        else:
            reason = why_broken(error)
        raise BrokerUnreachable(f"cannot connect to {address.place}: {reason}") from None
    if context is None:
        try:
            peer = stream.socket.getpeername()[0]
        except OSError as error:
            # It was reset right after it was made, as by a broker that is killed.
            await trio.aclose_forcefully(stream)
            raise BrokerUnreachable(f"cannot connect to {address.place}: {why_broken(error)}") from None
        if is_loopback(peer):
            return stream
        await trio.aclose_forcefully(stream)
        raise BrokerUnreachable(
            f"{address.place} is {peer}, which is not loopback: no password goes there in the clear"
        )
    secured = trio.SSLStream(stream, context, server_hostname=address.host, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if not isinstance(error, trio.BrokenResourceError):
            raise
        raise BrokerUnreachable(f"cannot connect to {address.place}: {connect_failure(error, tls)}") from None
    return secured


async def shake_hands(stream: trio.abc.Stream, machine: AmqpConnection, tls: TlsAddress, place: str) -> list[Event]:
    """Do the AMQP handshake and return the events that came right behind it. Raises the error that ended it."""
    while True:
        try:
            if data := machine.data_to_send():
                await stream.send_all(data)
            received = await stream.receive_some(PIECE)
        except trio.BrokenResourceError as error:
            # In TLS 1.3 a server's refusal of the client's certificate arrives with the first data.
            secured = isinstance(stream, trio.SSLStream)
            reason = connect_failure(error, tls, silent=machine.frames == 0) if secured else why_broken(error)
            raise BrokerUnreachable(f"cannot connect to {place}: {reason}") from None
        events = machine.receive(bytes(received))
        if events and isinstance(events[0], ConnectionOpened):
            return events[1:]
        for event in events:
            if isinstance(event, ConnectionEnded):
                raise event.error or BrokerConnectionLost(f"{place} ended the log-in")
