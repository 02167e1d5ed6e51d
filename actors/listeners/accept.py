"""Who may come in: the accept loop of every listener, and the bounds that all listeners share.

It counts connections and whose they are, leaves descriptors for what else the daemon does, and bounds how many may
stand at the door without having proved who they are. How a peer proves it is a greeter's business; what happens to a
connection that is let in is the connection's.

Who is calling over HTTP, from what a request's headers say and what the carrier below knows (docs/decisions/0045).

The one place for the rules that WebSocket's handshake and the HTTP listener share. It refuses with one HTTP status,
from which a stranger learns nothing else. It sends nothing; and a token that was offered appears in no exception, log
or record.
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
"""Descriptors that connections leave free: the audit log must rotate and tools must open files whoever connects."""
FOR_OTHERS = 8
"""Connections beyond the limit for principals who have none: one who takes them all must not lock the operator out."""
MOST_UNKNOWN_PEERS = 256
"""Connections in all whose peer has not yet proved who it is."""
MOST_UNKNOWN_PEERS_EACH = 16
"""Such connections from one place (see `tcp`): who opens them and says nothing must not keep the others out."""

_OF_THE_CONNECTION = (
    errno.ECONNABORTED, errno.EPERM, errno.ENETDOWN, errno.EPROTO, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET,
    errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNRESET,
)  # fmt: skip
"""Errors of a connection that ended before it was accepted, which Linux reports from accept (accept(2))."""

ConnectionHandler: TypeAlias = "Callable[[Carrier, Principal], Awaitable[None]]"
"""Serves a connection to its end."""


class AuthenticationFailed(HearthError):
    """A peer could not prove who it is. It has its answer; this reason is for the log and the audit alone."""


class Handshake(Protocol):
    """Finds out who has connected over TCP."""

    @property
    def scheme(self) -> str:
        """How addresses of this carrier begin: "tls", "ws" or "wss"."""
        ...

    async def greet(self, connected: socket.socket, peer: str, welcome: ConnectionHandler) -> None:
        """Do the handshake, within its deadline, then `await welcome(carrier, principal)`.

        Closes `connected` in any case, and lets out nothing that a peer or the network can cause but Stranger.
        """


class Listener(Protocol):
    """One place at which peers connect."""

    @property
    def address(self) -> str:
        """What clients connect to, such as "tls://0.0.0.0:7117"."""
        ...

    async def accept_all(self, nursery: trio.Nursery, limiter: ConnectionLimiter, welcome: ConnectionHandler) -> None:
        """Accept until cancelled; each connection is served in a task of `nursery`."""

    def reload(self) -> None:
        """Read certificates again. Raises ConfigError and goes on with what there was."""

    def warnings(self) -> list[str]:
        """What the operator should know of what is in use, such as a certificate that expires soon."""
        ...

    def close(self) -> None:
        """Listen no more."""

    def finish(self) -> None:
        """All sessions have ended: end what connections it keeps itself, once they have taken what is due to them."""


class ConnectionLimiter:
    """Counts who is inside and who waits at the door, over all listeners of a daemon."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._inside = 0
        self._held: Counter[str] = Counter()
        self._unknown_peers: Counter[str] = Counter()

    def refusal(self, connected: socket.socket, principal: Principal) -> QueueFull | None:
        """Why a connection of `principal` cannot be let in, if it cannot."""
        count, most = self._inside, self._max_connections
        if count >= most + (0 if self._held[principal.key] else FOR_OTHERS):
            return QueueFull(f"Queue full: {count} connections are open", data={"max_connections": most})
        if self.scarce(connected):
            reason = f"of {self._descriptors} descriptors the others are in use"
            return QueueFull(f"Queue full: {count} connections are open", data={"reason": reason})
        return None

    def scarce(self, connected: socket.socket) -> bool:
        """Whether few descriptors are left: the kernel gives out the lowest free number, so a high one says so."""
        return connected.fileno() >= self._descriptors - min(RESERVED, self._descriptors // 4)

    def enter(self, principal: Principal) -> None:
        """A connection of this principal is let in; `leave` is owed."""
        self._inside += 1
        self._held[principal.key] += 1

    def leave(self, principal: Principal) -> None:
        """A connection has ended."""
        self._inside -= 1
        _take_one(self._held, principal.key)

    def crowded(self, place: str) -> bool:
        """Whether nobody else from this place, or nobody at all, may wait at the door."""
        return (
            self._unknown_peers[place] >= MOST_UNKNOWN_PEERS_EACH or self._unknown_peers.total() >= MOST_UNKNOWN_PEERS
        )

    def arrived(self, place: str) -> Callable[[], None]:
        """A stranger stands at the door; returns what is to be called when it is known who it is, or it has gone."""
        self._unknown_peers[place] += 1
        waiting = True

        def settled() -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                _take_one(self._unknown_peers, place)

        return settled


def _take_one(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


async def each_accepted(listening: socket.socket, arrived: Callable[[socket.socket], None]) -> None:
    """Hand every connection that comes to `arrived`, which must not block, until cancelled."""
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
                    # Once: whoever causes this must not fill a disk with complaints about it.
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
"""Whom the peer's verified certificate names, if it showed one. Raises Stranger."""
Local: TypeAlias = "Callable[[], Principal]"
"""Whom the kernel names as the owner of the peer's end, on loopback. Raises PermissionDenied."""

_PROXIED = (b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip")
"""Headers by which a proxy says that it speaks for somebody else."""


class Refused(AuthenticationFailed):
    """The request is answered with this HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the answer says beside its status."""
        challenge = [(b"WWW-Authenticate", b"Bearer")] if self.status == 401 else []
        return [*challenge, (b"Connection", b"close")]


def nobody() -> Principal | None:
    """The holder of the certificate where there is no TLS."""
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
    """Who is calling: the bearer of a token, else the holder of a certificate, else a user of this machine.

    The last not where the operator says that a proxy stands in front, or the request says that it came through one.
    `offered` are tokens that came by another way than the Authorization header. Raises Refused. Whoever offers a token
    or a certificate is judged by that alone.
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
        # The kernel would name the user that the proxy runs as, whoever has come through it.
        raise Refused(401, "it comes through a proxy and offers no bearer token")
    try:
        return local()
    except PermissionDenied as error:
        reason = (error.data or {}).get("reason", error.message)
        raise Refused(401, f"it offers no bearer token, and {reason}") from None


def values(headers: Headers, name: bytes) -> list[str]:
    """What each header of this name says."""
    return [value.decode("ascii", "replace") for key, value in headers if key == name]


def _bearing(headers: Headers) -> set[str]:
    found: set[str] = set()
    for value in values(headers, b"authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer":
            raise Refused(401, "its Authorization is not of the Bearer scheme")
        found.add(token.strip())
    return found
