"""One HTTP connection: the clock it is on, and what is known of the peer.

Until a request has come from a principal that the policy lets in, the peer is unknown: it has one of the few places for
unknown peers, the handshake's deadline for all it wants, and one answer. See docs/decisions/0061.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from hearth.actors.listeners.accept import nobody
from hearth.policy.principal import from_loopback

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from hearth.actors.listeners.accept import Certificate, ConnectionLimiter
    from hearth.errors import QueueFull
    from hearth.policy.principal import Principal

KEEP_ALIVE = 75.0
"""Seconds that a connection of somebody known may lie idle: longer than the minute after which proxies let go."""
GRACE = 10.0
"""Seconds that requests under way have to end once their peer has gone."""


class Visit:
    """A connection from accepting to its end. Times in seconds.

    `scope` is the whole connection's: what is to end it moves its deadline. `patience` is for a stranger's whole visit,
    and for the headers of each later request from their first byte on.
    """

    def __init__(
        self,
        connected: socket.socket,
        peer: str,
        settled: Callable[[], None],
        limiter: ConnectionLimiter,
        *,
        patience: float,
    ) -> None:
        self.connected = connected
        self.peer = peer
        self.certificate: Certificate = nobody
        self.scope = trio.CancelScope(deadline=trio.current_time() + patience)
        self.idle = True
        """Whether no request is under way."""
        self.sending: trio.CancelScope | None = None
        """A send that is under way, which nothing but `cut` cuts short."""
        self._settled = settled
        self._limiter = limiter
        self._patience = patience
        self._inside: Principal | None = None
        self._local: Principal | None = None
        self._finishing = False

    @property
    def unknown_peer(self) -> bool:
        """Whether nobody known has called on it yet."""
        return self._inside is None

    def local(self) -> Principal:
        """Whom the kernel names, asked once: a socket does not change hands. Raises PermissionDenied."""
        if self._local is None:
            self._local = from_loopback(self.connected)
        return self._local

    def let_in(self, principal: Principal) -> QueueFull | None:
        """A request of somebody whom the policy lets in; returns why there is no room, if there is none.

        The connection counts for the first one: behind a proxy, several share it.
        """
        if self._inside is not None:
            return None
        refusal = self._limiter.refusal(self.connected, principal)
        if refusal is None:
            self._settled()
            self._limiter.enter(principal)
            self._inside = principal
            self.scope.deadline = math.inf
        return refusal

    # --- the clock ----------------------------------------------------------------------------------------------

    def heard(self) -> None:
        """Something has come; a request has to follow."""
        if self.idle:
            self.hurry(self._patience)

    def begun(self) -> None:
        """A request's headers are here."""
        self.idle = False
        if not self.unknown_peer:
            self.scope.deadline = math.inf

    def answered(self) -> None:
        """No request is under way any more."""
        self.idle = True
        if self._finishing:
            self.scope.cancel()
        self.hurry(KEEP_ALIVE)

    def hurry(self, seconds: float) -> None:
        """It has this long at most."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + seconds)

    # --- the end ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End with the answer that is under way, if one is."""
        self._finishing = True
        if self.idle:
            self.scope.cancel()

    def cut(self) -> None:
        """End now."""
        self.scope.cancel()
        if self.sending is not None:
            self.sending.cancel()

    def over(self) -> None:
        """It has ended."""
        self._settled()
        if self._inside is not None:
            self._limiter.leave(self._inside)
