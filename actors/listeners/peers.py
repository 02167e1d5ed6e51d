"""Who is calling over HTTP, from what a request's headers say and what the carrier below knows (docs/decisions/0045).

The one place for the rules that WebSocket's handshake and the HTTP listener share. It refuses with one HTTP status,
from which a stranger learns nothing else. It sends nothing; and a token that was offered appears in no exception, log
or record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hearth.actors.listeners.accept import AuthenticationFailed
from hearth.errors import PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hearth.policy.principal import Principal, Tokens

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
    except AuthenticationFailed as stranger:
        raise Refused(401, str(stranger)) from None
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
