"""Bearer tokens: how one is made, and whose it is.

This module owns the form of a token and the comparison of digests. It refuses to hold tokens: a configuration, a log
and a principal know a token's SHA-256 only, which nobody who reads it can turn back, since a token has 256 bits of
chance. It knows no header, no file and no socket.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from hearth.policy.principal import from_token

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.policy.principal import Principal

PREFIX = "hearth_"
"""What a token begins with, so that people and scanners of repositories recognise one that was left lying about."""
MAX_TOKEN = 1024
"""Longest token that is looked at, in characters: what a stranger offers is hashed. No client sends a longer one."""


class Tokens:
    """The tokens that are accepted, by their digests (64 hex digits of SHA-256 each); false when there are none."""

    __slots__ = ("_digests",)

    def __init__(self, digests: Iterable[str]) -> None:
        self._digests = tuple(digest.lower().encode("ascii") for digest in digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def bearer(self, token: str) -> Principal | None:
        """Who offers this token, or None for one that nobody was given.

        The digest is compared with every configured one, each in constant time, so that the time it takes tells
        neither how much of a digest was right nor which entry it was.
        """
        if not token or len(token) > MAX_TOKEN:
            return None
        try:
            who = from_token(token)
        except UnicodeEncodeError:  # lone surrogates: no bytes that anybody could have been given
            return None
        assert who.token_sha256 is not None, "a principal of kind token has one"
        digest = who.token_sha256.encode("ascii")
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return who if found else None


def new_token() -> str:
    """A new token: 32 bytes from the system's CSPRNG in base64url after "hearth_", 50 characters in all.

    Its characters may stand in an HTTP header, a WebSocket subprotocol and a shell word without quoting.
    """
    return PREFIX + secrets.token_urlsafe(32)
