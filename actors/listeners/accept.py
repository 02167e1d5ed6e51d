"""The accept loop and the limits that all listeners share, and the rules that identify the caller of an HTTP request.

`ConnectionLimiter` counts connections and their principals, leaves descriptors for other parts of the daemon, and
bounds the connections whose peer has not authenticated yet. A `Handshake` authenticates the peer; the daemon serves the
connection after that.

`caller` has the rules that the WebSocket handshake and the HTTP listener share (docs/decisions/0045). It reads a
request's headers and asks the carrier for the certificate or the local user. It refuses with one HTTP status, which
discloses nothing else. It sends nothing. An offered token appears in no exception, log or record.
"""

from __future__ import annotations

import errno
import logging
import resource
from collections import Counter
from typing import TYPE_CHECKING, Protocol, TypeAlias

import trio

from hearth.errors import HearthError, PermissionDenied, QueueFull

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from hearth.actors.transport import Carrier
    from hearth.policy.principal import Principal, Tokens

log = logging.getLogger("hearth.listeners")

BACKLOG = 512
"""Connections that may wait to be accepted; beyond them a client that does not wait gets EAGAIN."""
NO_DESCRIPTORS_PAUSE = 0.1
"""Seconds to wait for descriptors to come free when the process or the machine has none left."""
RESERVED = 32
"""Descriptors that connections leave free: the audit log must rotate, and tools must open files, at any time."""
FOR_OTHERS = 8
"""Connections beyond the limit for principals that have none: one principal must not lock the operator out."""
MOST_UNKNOWN_PEERS = 256
"""Connections whose peer has not authenticated yet, in total."""
MOST_UNKNOWN_PEERS_EACH = 16
"""Such connections from one origin (see `tcp`): a peer that opens them and stays silent must not keep others out."""

_OF_THE_CONNECTION = (
    errno.ECONNABORTED, errno.EPERM, errno.ENETDOWN, errno.EPROTO, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET,
    errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNRESET,
)  # fmt: skip
"""Errors of a connection that ended before it was accepted, which Linux reports from accept (accept(2))."""

ConnectionHandler: TypeAlias = "Callable[[Carrier, Principal], Awaitable[None]]"
"""Serves an authenticated connection to its end."""


class AuthenticationFailed(HearthError):
    """A peer failed to authenticate. It has had its answer; this reason is for the log and the audit log only."""


class Handshake(Protocol):
    """Authenticates a peer that has connected over TCP."""

    @property
    def scheme(self) -> str:
        """The scheme of this carrier's addresses: "tls", "ws" or "wss"."""
        ...

    async def authenticate(self, connected: socket.socket, peer: str, handler: ConnectionHandler) -> None:
        """Do the handshake, within its deadline, then `await handler(carrier, principal)`.

        Closes `connected` in any case. Raises AuthenticationFailed; nothing else that a peer or the network can cause.
        """


class Listener(Protocol):
    """One address at which peers connect."""

    @property
    def address(self) -> str:
        """The address to which clients connect, such as "tls://0.0.0.0:7117"."""
        ...

    async def accept_all(self, nursery: trio.Nursery, limiter: ConnectionLimiter, handler: ConnectionHandler) -> None:
        """Accept until cancelled; each connection is served in a task of `nursery`."""

    def reload(self) -> None:
        """Read certificates again. Raises ConfigError, and keeps the certificates it had."""

    def warnings(self) -> list[str]:
        """Return warnings for the operator, such as a certificate that expires soon."""
        ...

    def close(self) -> None:
        """Stop listening."""

    def finish(self) -> None:
        """End the connections that the listener keeps itself, once what is due is sent: all sessions have ended."""


class ConnectionLimiter:
    """Counts authenticated and unauthenticated connections over all listeners of a daemon, and limits both."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._inside = 0
        self._held: Counter[str] = Counter()
        self._unknown_peers: Counter[str] = Counter()

    def refusal(self, connected: socket.socket, principal: Principal) -> QueueFull | None:
        """Return the error if a connection of `principal` exceeds a limit, else None."""
        count, most = self._inside, self._max_connections
        if count >= most + (0 if self._held[principal.key] else FOR_OTHERS):
            return QueueFull(f"Queue full: {count} connections are open", data={"max_connections": most})
        if self.scarce(connected):
            reason = f"of {self._descriptors} descriptors the others are in use"
            return QueueFull(f"Queue full: {count} connections are open", data={"reason": reason})
        return None

    def scarce(self, connected: socket.socket) -> bool:
        """Return True if few descriptors are left: the kernel assigns the lowest free number first."""
        return connected.fileno() >= self._descriptors - min(RESERVED, self._descriptors // 4)

    def enter(self, principal: Principal) -> None:
        """Count a connection of this principal; call `leave` when it ends."""
        self._inside += 1
        self._held[principal.key] += 1

    def leave(self, principal: Principal) -> None:
        """Count the end of a connection."""
        self._inside -= 1
        _take_one(self._held, principal.key)

    def at_limit(self, origin: str) -> bool:
        """Return True if no further unauthenticated connection from this origin is allowed."""
        waiting = self._unknown_peers
        return waiting[origin] >= MOST_UNKNOWN_PEERS_EACH or waiting.total() >= MOST_UNKNOWN_PEERS

    def arrived(self, origin: str) -> Callable[[], None]:
        """Count an unauthenticated connection; return a function to call when it is authenticated or has gone.

        That function is idempotent.
        """
        self._unknown_peers[origin] += 1
        waiting = True

        def settled() -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                _take_one(self._unknown_peers, origin)

        return settled


def _take_one(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


async def each_accepted(listening: socket.socket, arrived: Callable[[socket.socket], None]) -> None:
    """Pass every accepted connection to `arrived`, which must not block, until cancelled."""
    starved = False
    while True:
        await trio.lowlevel.wait_readable(listening)
        try:
            connected, _ = listening.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                if not starved:
                    # Log it once: a peer that causes this must not fill the disk with messages.
                    log.error("cannot accept connections at the moment: %s", error.strerror)
                starved = True
                await trio.sleep(NO_DESCRIPTORS_PAUSE)
                continue
            if error.errno in _OF_THE_CONNECTION:
                continue
            raise
        starved = False
        connected.setblocking(False)
        arrived(connected)


Headers: TypeAlias = "Sequence[tuple[bytes, bytes]]"
"""A request's headers in order, names in lower case."""
Certificate: TypeAlias = "Callable[[], Principal | None]"
"""Returns the principal of the peer's verified certificate, or None if it has none. Raises AuthenticationFailed."""
Local: TypeAlias = "Callable[[], Principal]"
"""Returns the local user who owns the peer's socket, on loopback, as the kernel knows. Raises PermissionDenied."""

_PROXIED = (b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip")
"""Headers by which a proxy shows that it forwards the request of another peer."""


class Refused(AuthenticationFailed):
    """A request that is refused with this HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the answer."""
        challenge = [(b"WWW-Authenticate", b"Bearer")] if self.status == 401 else []
        return [*challenge, (b"Connection", b"close")]


def no_certificate() -> Principal | None:
    """Return None: without TLS there is no certificate."""
    return None


def caller(
    headers: Headers,
    tokens: Tokens,
    certificate: Certificate,
    local: Local,
    *,
    offered: Iterable[str] = (),
    behind_proxy: bool = False,
) -> Principal:
    """Return the principal of a caller: the bearer of a token, else the holder of a certificate, else a local user.

    A token decides alone if one is offered; so does a certificate if there is no token. The local user does not count
    if the operator has configured a proxy (`behind_proxy`), or a header shows that the request came through one.
    `offered`: tokens that came by another way than the Authorization header. Raises Refused.
    """
    bearing = {*offered, *_bearing(headers)}
    if len(bearing) > 1:
        raise Refused(400, "it offers two different tokens")
    if bearing:
        known = tokens.bearer(bearing.pop())
        if known is None:
            raise Refused(401, "its bearer token is unknown")
        return known
    try:
        holder = certificate()
    except AuthenticationFailed as failure:
        raise Refused(401, str(failure)) from None
    if holder is not None:
        return holder
    if behind_proxy or any(name in _PROXIED for name, _ in headers):
        # The kernel would name the user that the proxy runs as, and not the caller.
        raise Refused(401, "it comes through a proxy and offers no bearer token")
    try:
        return local()
    except PermissionDenied as error:
        reason = (error.data or {}).get("reason", error.message)
        raise Refused(401, f"it offers no bearer token, and {reason}") from None


def values(headers: Headers, name: bytes) -> list[str]:
    """Return the value of each header of this name."""
    return [value.decode("ascii", "replace") for key, value in headers if key == name]


def _bearing(headers: Headers) -> set[str]:
    found: set[str] = set()
    for value in values(headers, b"authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer":
            raise Refused(401, "its Authorization is not of the Bearer scheme")
        found.add(token.strip())
    return found
