"""TCP listeners: bind an address, accept, and have a `Handshake` authenticate the peer.

A peer that has not authenticated costs one descriptor and one task, until the handshake's deadline at most. The number
of such connections is limited, in total and for each origin. The `Handshake` owns the authentication itself.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from hearth.actors.listeners.accept import BACKLOG, AuthenticationFailed, each_accepted
from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.principal import peer_uid
from hearth.protocol.jsonrpc import dump_error

if TYPE_CHECKING:
    from collections.abc import Callable

    import trio

    from hearth.actors.listeners.accept import (
        ConnectionHandler,
        ConnectionLimiter,
        Handshake,
        Listener,
        Opening,
        Places,
        SessionHandler,
    )
    from hearth.actors.listeners.tls import Certificates
    from hearth.actors.transport import Carrier
    from hearth.config.listen import Endpoint
    from hearth.policy.principal import Principal

Report: TypeAlias = "Callable[[str, str, str], None]"
"""Called for each peer that failed to authenticate: carrier, peer's address, reason."""

KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds of silence, seconds between probes, probes: a machine without power is noticed within a minute."""


def bind(section: str, endpoint: Endpoint) -> socket.socket:
    """Return a listening socket. Raises ConfigError with the section, the address and the cause."""
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted daemon must not wait for the connections of the former one to be forgotten.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((endpoint.host, endpoint.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        why = error.strerror or error
        raise ConfigError(f"[{section}] listen: cannot listen on {endpoint}: {why}; choose another address") from None
    listening.setblocking(False)
    return listening


def address_of(scheme: str, listening: socket.socket) -> str:
    """Return the address to which clients connect, such as "tls://[::1]:7117"."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def each_unknown_peer(
    listening: socket.socket,
    limiter: ConnectionLimiter,
    send_timeout: float,
    begin: Callable[[socket.socket, str, Callable[[], None]], None],
    last: Places | None = None,
) -> None:
    """Pass accepted connections to `begin`, until cancelled; where a limit is reached, an older one ends.

    `begin` gets the socket, which it must close, the peer's address, and a function that it must call when the peer has
    authenticated or gone. `last` has the places for connections that come when few descriptors are left; without it
    they are closed.
    """

    def arrived(connected: socket.socket) -> None:
        peer = _prepared(connected, send_timeout)
        places = last if limiter.scarce(connected) else limiter.unknown_peers
        if peer is None or places is None or limiter.scarce(connected, halting=True):
            connected.close()
            return
        begin(connected, peer, places.take(connected, _origin(peer, connected)))

    await each_accepted(listening, arrived)


class Listening:
    """The base of listeners on TCP: one bound address, and its certificates, if any."""

    def __init__(self, scheme: str, listening: socket.socket, certificates: Certificates | None) -> None:
        self._listening = listening
        self._certificates = certificates
        self.address = address_of(scheme, listening)

    def reload(self) -> None:
        """See Listener."""
        if self._certificates is not None:
            self._certificates.reload()

    def warnings(self) -> list[str]:
        """See Listener."""
        return [] if self._certificates is None else self._certificates.warnings()

    def close(self) -> None:
        """See Listener."""
        self._listening.close()


class TcpListener(Listening):
    """One TCP address, and the handshake that authenticates its peers."""

    def __init__(
        self,
        listening: socket.socket,
        handshake: Handshake,
        certificates: Certificates | None,
        *,
        send_timeout: float,
        report: Report,
    ) -> None:
        super().__init__(handshake.scheme, listening, certificates)
        self._handshake = handshake
        self._send_timeout = send_timeout
        self._report = report

    async def accept_all(self, nursery: trio.Nursery, limiter: ConnectionLimiter, handler: SessionHandler) -> None:
        """See Listener."""

        def begin(connected: socket.socket, peer: str, settled: Callable[[], None]) -> None:
            nursery.start_soon(self._authenticate, connected, peer, limiter, settled, handler)

        await each_unknown_peer(self._listening, limiter, self._send_timeout, begin)

    async def _authenticate(
        self,
        connected: socket.socket,
        peer: str,
        limiter: ConnectionLimiter,
        settled: Callable[[], None],
        handler: ConnectionHandler,
    ) -> None:
        async def let_in(carrier: Carrier, principal: Principal) -> None:
            settled()
            refusal = limiter.refusal(connected, principal)
            if refusal is not None:
                await carrier.send([dump_error(None, refusal)])
                await carrier.aclose()
                return
            limiter.enter(principal)
            try:
                await handler(carrier, principal)
            finally:
                limiter.leave(principal)

        try:
            await self._handshake.authenticate(connected, peer, let_in)
        except AuthenticationFailed as failure:
            self._report(self._handshake.scheme, peer, str(failure))
        finally:
            settled()

    def finish(self) -> None:
        """Do nothing: the daemon ends these connections. See Listener."""


def _prepared(connected: socket.socket, send_timeout: float) -> str | None:
    """Set a connection's options; return the peer's address, or None if it has gone."""
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        # Data that is not acknowledged within the time in which a peer must read is lost.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(send_timeout * 1000))
        host: str = connected.getpeername()[0]
    except OSError:
        return None
    return host.removeprefix("::ffff:") if "." in host else host


def _origin(peer: str, connected: socket.socket) -> str:
    """Return the origin of a peer, for the limit of unauthenticated connections.

    Of IPv6 it is the whole /64, which one peer may have to itself; on this machine it is the user, so that one user
    cannot keep the others out.
    """
    address = ipaddress.ip_address(peer.partition("%")[0])
    if address.is_loopback:
        with suppress(PermissionDenied):
            return f"uid:{peer_uid(connected)}"
    return peer if address.version == 4 else str(ipaddress.IPv6Network((address, 64), strict=False))


def open_tls(opening: Opening) -> Listener:
    """Open the listener of [tls]. See Extra."""
    from hearth.actors.listeners.tls import TlsHandshake, certificates_of

    section, limits = opening.config.tls, opening.config.limits
    certificates = certificates_of("tls", section)
    assert certificates is not None, "[tls] has all of its keys or none"
    handshaker = TlsHandshake(
        certificates, handshake_timeout=limits.handshake_timeout_s, send_timeout=limits.send_timeout_s
    )
    listening = bind("tls", section.listen)
    return TcpListener(listening, handshaker, certificates, send_timeout=limits.send_timeout_s, report=opening.report)
