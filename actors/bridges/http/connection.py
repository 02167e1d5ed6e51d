"""One HTTP connection: its deadlines, and its peer.

A peer is unknown until a request of a principal that the policy admits has come. An unknown peer holds one of the few
slots for unknown peers, has the handshake's deadline for everything, and gets one answer. A peer that the policy admits
and for which no connection is left stays unknown: it may only halt. See docs/decisions/0061.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from hearth.actors.listeners.accept import no_certificate
from hearth.policy.principal import from_loopback

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from hearth.actors.listeners.accept import Certificate, ConnectionLimiter
    from hearth.errors import PermissionDenied, QueueFull
    from hearth.policy.principal import Principal

KEEP_ALIVE = 75.0
"""Seconds that an admitted peer's connection may be idle: longer than the minute after which proxies close one."""
GRACE = 10.0
"""Seconds that requests under way have to end once their peer has gone."""


class PeerConnection:
    """A connection, from `accept` to its end. Times in seconds.

    `scope` is the whole connection's: its deadline is what ends the connection. `timeout` bounds an unknown peer's
    whole connection; later, the headers of each request from their first byte on.
    """

    def __init__(
        self,
        connected: socket.socket,
        peer: str,
        settled: Callable[[], None],
        limiter: ConnectionLimiter,
        *,
        timeout: float,
    ) -> None:
        self.connected = connected
        self.peer = peer
        self.certificate: Certificate = no_certificate
        self.scope = trio.CancelScope(deadline=trio.current_time() + timeout)
        self.idle = True
        """True while no request is under way."""
        self.sending: trio.CancelScope | None = None
        """The scope of the last send; only `cut` and its deadline cancel it."""
        self._settled = settled
        self._limiter = limiter
        self._timeout = timeout
        self._inside: Principal | None = None
        self._local: Principal | None = None
        self._finishing = False
        self._latest = math.inf
        """The time at which it ends, whatever is under way: its peer has gone."""

    @property
    def unknown_peer(self) -> bool:
        """True until a request of an admitted principal has come."""
        return self._inside is None

    def local(self) -> Principal:
        """Return the local principal that the kernel names. Raises PermissionDenied.

        The kernel is asked once: a socket does not change its owner.
        """
        if self._local is None:
            self._local = from_loopback(self.connected)
        return self._local

    def let_in(self, principal: Principal) -> QueueFull | PermissionDenied | None:
        """Admit a principal's first request; return the reason if there is no room for the connection.

        The connection counts for the first admitted principal: behind a proxy, several share it.
        """
        if self._inside is not None:
            return None
        refusal = self._limiter.refusal(self.connected, principal)
        if refusal is None:
            # The connection moves from the slots for unknown peers to the principal's own.
            self._settled()
            self._limiter.enter(principal)
            self._inside = principal
            self.scope.deadline = self._latest
        return refusal

    def stay(self) -> None:
        """Keep a WebSocket in its slot for unknown peers: no connection is left for its principal."""
        self.scope.deadline = math.inf

    # --- the clock ----------------------------------------------------------------------------------------------

    def note_data(self) -> None:
        """Start the deadline for a request's headers: its first bytes have come."""
        if self.idle:
            self.close_within(self._timeout)

    def begun(self) -> None:
        """Note that a request's headers are complete."""
        self.idle = False
        if not self.unknown_peer:
            self.scope.deadline = self._latest

    def gone(self) -> None:
        """Note that the peer has gone: requests under way, and those that it has sent, have GRACE for all together."""
        self._latest = min(self._latest, trio.current_time() + GRACE)
        self.close_within(GRACE)

    def shielded(self) -> trio.CancelScope:
        """Return a scope for a send, which its request does not end; an unknown peer has no more time for that either.

        A peer that reads a byte now and then would keep its slot otherwise: each byte begins the send timeout again.
        """
        deadline = self.scope.deadline if self.unknown_peer else math.inf
        self.sending = trio.CancelScope(shield=True, deadline=deadline)
        return self.sending

    def answered(self) -> None:
        """Note that no request is under way any more."""
        self.idle = True
        if self._finishing:
            self.scope.cancel()
        self.close_within(KEEP_ALIVE)

    def close_within(self, seconds: float) -> None:
        """End the connection after this many seconds, or at its earlier deadline."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + seconds)

    # --- the end ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End once the answer under way is sent; at once if there is none."""
        self._finishing = True
        if self.idle:
            self.scope.cancel()

    def cut(self) -> None:
        """End now, also in the middle of a send."""
        self.scope.cancel()
        if self.sending is not None:
            self.sending.cancel()

    def over(self) -> None:
        """Release the connection's slot: it has ended."""
        self._settled()
        if self._inside is not None:
            self._limiter.leave(self._inside)
