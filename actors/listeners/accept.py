"""The accept loop and the limits that all listeners share, and the rules that identify the caller of an HTTP request.

`ConnectionLimiter` counts connections and their principals, leaves descriptors for other parts of the daemon, and
refuses peers that no policy entry matches. Root and the daemon's own user are refused only for want of descriptors.
`Places` bounds the connections whose peer has not authenticated yet, and those of the halt socket: at a bound the
oldest silent one goes, so that those who hold places cannot keep a person out. A `Handshake` authenticates the peer;
the daemon serves the connection after that.

`caller` has the rules that the WebSocket handshake and the HTTP listener share (docs/decisions/0045). It reads a
request's headers and asks the carrier for the certificate or the local user. It refuses with one HTTP status, which
discloses nothing else. It sends nothing. An offered token appears in no exception, log or record.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import resource
import socket
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import trio
from attrs import frozen

from hearth.errors import HearthError, PermissionDenied, QueueFull
from hearth.policy.principal import owns_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from hearth.actors.transport import Carrier
    from hearth.config.model import Config
    from hearth.policy.principal import Principal, Tokens
    from hearth.policy.rules import PolicyInForce

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
MOST_HALTING = 16
"""Connections to the halt socket, in total."""
MOST_HALTING_EACH = 4
"""Connections to the halt socket of one principal."""

_OF_THE_CONNECTION = (
    errno.ECONNABORTED, errno.EPERM, errno.ENETDOWN, errno.EPROTO, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET,
    errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNRESET,
)  # fmt: skip
"""Errors of a connection that ended before it was accepted, which Linux reports from accept (accept(2))."""

ConnectionHandler: TypeAlias = "Callable[[Carrier, Principal], Awaitable[None]]"
"""Serves an authenticated connection to its end."""


class SessionHandler(Protocol):
    """A ConnectionHandler that can also serve a connection for which there is no place: it may only halt."""

    def __call__(
        self, carrier: Carrier, principal: Principal, *, halts_only: QueueFull | None = None
    ) -> Awaitable[None]:
        """Serve it to its end; `halts_only` is the answer to all other methods."""
        ...


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

    async def accept_all(self, nursery: trio.Nursery, limiter: ConnectionLimiter, handler: SessionHandler) -> None:
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


@frozen
class Opening:
    """The things that a listener is made of. `runtime` returns the runtime, once there is one."""

    config: Config
    policy: PolicyInForce
    report: Callable[[str, str, str], None]
    """Called for each peer that failed to authenticate: carrier, peer's address, reason."""
    runtime: Callable[[], Any]


Strangers: TypeAlias = "Callable[[Principal], PermissionDenied | None]"
"""Returns the error for a principal that no policy entry matches, or None."""


class Places:
    """Places for connections, some for each owner. One that comes when they are taken gets that of another.

    Its own owner's place if that has its share, else one of the owner with the most; there the oldest connection that
    has sent nothing, else the oldest.
    """

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._held: dict[socket.socket, str] = {}
        """By connection, the oldest first: its owner."""

    def __len__(self) -> int:
        return len(self._held)

    def take(self, connected: socket.socket, owner: str) -> Callable[[], None]:
        """Take a place; return a function that gives it back, which is idempotent."""
        held = Counter(self._held.values())
        if held[owner] >= self._each:
            self._make_room(owner)
        elif held.total() >= self._most:
            self._make_room(held.most_common(1)[0][0])
        self._held[connected] = owner

        def leave() -> None:
            self._held.pop(connected, None)

        return leave

    def _make_room(self, owner: str) -> None:
        theirs = [connected for connected, other in self._held.items() if other == owner]
        oldest = next(filter(_silent, theirs), theirs[0])
        del self._held[oldest]
        # Its own task finds the end, and closes it.
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)


def _silent(connected: socket.socket) -> bool:
    """Return True for a peer that has sent nothing, as far as the kernel counts that: it does for TCP."""
    try:
        # tcpi_bytes_received of struct tcp_info (linux/tcp.h).
        return not any(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)[128:])
    except OSError:
        return True


class Spares:
    """Descriptors that are held open, and given up one by one for an accept that has none."""

    def __init__(self, most: int, of: socket.socket) -> None:
        self._most, self._of = most, of
        self._held: list[int] = []
        self.refill()

    def refill(self) -> None:
        """Hold as many as the process may have, `most` at most."""
        with suppress(OSError):
            while len(self._held) < self._most:
                self._held.append(os.dup(self._of.fileno()))

    def give_up(self) -> bool:
        """Close one; return False if there is none."""
        if not self._held:
            return False
        os.close(self._held.pop())
        return True

    def close(self) -> None:
        """Close all."""
        self._most = 0
        while self.give_up():
            pass


class ConnectionLimiter:
    """Counts authenticated and unauthenticated connections over all listeners of a daemon, and limits both."""

    def __init__(self, max_connections: int, stranger: Strangers = lambda _principal: None) -> None:
        self._max_connections = max_connections
        self._stranger = stranger
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._inside = 0
        self._held: Counter[str] = Counter()
        self.unknown_peers = Places(MOST_UNKNOWN_PEERS, MOST_UNKNOWN_PEERS_EACH)
        """Connections whose peer has not authenticated, by origin."""

    def refusal(self, connected: socket.socket, principal: Principal) -> QueueFull | PermissionDenied | None:
        """Return the error if no entry matches `principal`, or a connection of it exceeds a limit, else None."""
        if (refusal := self._stranger(principal)) is not None:
            return refusal
        count, most = self._inside, self._max_connections
        if count >= most + (0 if self._held[principal.key] else FOR_OTHERS) and not owns_process(principal):
            return QueueFull(f"Queue full: {count} connections are open", data={"max_connections": most})
        if self.scarce(connected):
            reason = f"of {self._descriptors} descriptors the others are in use"
            return QueueFull(f"Queue full: {count} connections are open", data={"reason": reason})
        return None

    def scarce(self, connected: socket.socket, *, halting: bool = False) -> bool:
        """Return True if few descriptors are left: the kernel assigns the lowest free number first.

        A connection for a halt (`halting`) may use half of those that the others leave free.
        """
        kept = min(RESERVED, self._descriptors // 4)
        return connected.fileno() >= self._descriptors - (kept // 2 if halting else kept)

    def enter(self, principal: Principal) -> None:
        """Count a connection of this principal; call `leave` when it ends."""
        self._inside += 1
        self._held[principal.key] += 1

    def leave(self, principal: Principal) -> None:
        """Count the end of a connection."""
        self._inside -= 1
        _take_one(self._held, principal.key)


def _take_one(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


async def each_accepted(
    listening: socket.socket, arrived: Callable[[socket.socket], None], spares: Spares | None = None
) -> None:
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
                if spares is not None and spares.give_up():
                    continue
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


FOLDED = re.compile(rb"\n[ \t]")
"""Matches in a request's head a header that is continued on a second line (obs-fold, RFC 9112 §5.2): peers differ on
where it ends, so it is refused."""


def is_cross_site(headers: Headers) -> bool:
    """Return True if a browser says that a page of another site causes the request, and names no Origin."""
    return not values(headers, b"origin") and any("cross-site" in v.lower() for v in values(headers, b"sec-fetch-site"))


def has_body(headers: Headers) -> bool:
    """Return True if a request's headers, as h11 has checked them, announce a body."""
    return bool(values(headers, b"transfer-encoding")) or any(map(int, values(headers, b"content-length")))


def _bearing(headers: Headers) -> set[str]:
    found: set[str] = set()
    for value in values(headers, b"authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer":
            raise Refused(401, "its Authorization is not of the Bearer scheme")
        found.add(token.strip())
    return found
