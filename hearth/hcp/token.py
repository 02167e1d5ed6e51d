"""The token that authorizes an HCP session (L3, Session Token): claims, and an HMAC-SHA256 over them.

To a caller it is an opaque string. A holder of the key can verify its issuer, its session, its approval and its end.
The token alone grants no access: the principal that a carrier proves must also be the session's own.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Any

import orjson
from attrs import field, frozen

from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from hearth.policy.levels import Classification, Risk

KEY_BYTES = 32
"""Length of the key: as many bytes as its hash has, from a CSPRNG."""
MOST_CHARACTERS = 16_384
"""Longest token that is verified, in characters."""
_PURPOSE = b"hearth hcp session token v1\0"
"""Signed before the claims, so that no other signature of the key is a valid token."""


class TokenError(HearthError):
    """Not a token of this key, or not one for this session or this moment. Says which, and repeats no part of it."""


@frozen(kw_only=True)
class Claims:
    """The claims of a token (L3, Session Token Properties). Instants are epoch seconds."""

    session_id: str
    issued_at: float
    expires_at: float
    approved_risk_level: Risk
    approved_data_classification: Classification
    constraints: Mapping[str, Any] = field(factory=dict)
    """Approved safety envelope and operational constraints."""


def issue(
    key: bytes,
    *,
    session_id: str,
    now: float,
    max_duration: timedelta,
    risk: Risk,
    classification: Classification,
    constraints: Mapping[str, Any] | None = None,
) -> str:
    """A token from now on for as long as the task may last, and no longer (L3: expires_at ≤ max_duration)."""
    claims = {
        "session_id": session_id,
        "issued_at": now,
        "expires_at": now + max_duration.total_seconds(),
        "approved_risk_level": risk,
        "approved_data_classification": classification,
        "constraints": dict(constraints or {}),
    }
    said = _encode(orjson.dumps(claims, option=orjson.OPT_SORT_KEYS))
    return f"{said}.{_signature(key, said)}"


def verify(key: bytes, token: str, now: float, *, session_id: str) -> Claims:
    """Return the claims of a token of this session. Raises TokenError for a foreign, a forged and an expired one."""
    said, dot, signature = token.partition(".") if len(token) <= MOST_CHARACTERS else ("", "", "")
    # Compare as bytes: text that is not ASCII would raise. Nothing is decoded before it is known to be ours.
    if not dot or not hmac.compare_digest(_signature(key, said).encode(), signature.encode("utf-8", "replace")):
        raise TokenError("this is no session token that was issued here")
    claims = _claims(said)
    if claims.session_id != session_id:
        raise TokenError("this session token is another session's")
    # Not compared with issued_at: a clock that is set back by a second while a job runs does not invalidate a token.
    if now >= claims.expires_at:
        raise TokenError("this session token has expired")
    return claims


def _claims(said: str) -> Claims:
    return Claims(**orjson.loads(urlsafe_b64decode(said + "=" * (-len(said) % 4))))


def _signature(key: bytes, said: str) -> str:
    return _encode(hmac.digest(key, _PURPOSE + said.encode("utf-8", "replace"), "sha256"))


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
