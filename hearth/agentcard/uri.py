"""What is a URI: the grammar of RFC 3986, Appendix A, whole and nothing beside it.

This module owns the grammar; it refuses to know schemes, hosts that exist, and what a card wants of a URI.
"""

from __future__ import annotations

import ipaddress
import re

from attrs import frozen

_PCT = r"%[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9\-._~"
_SUB_DELIMS = r"!$&'()*+,;="
_PCHAR = rf"(?:[{_UNRESERVED}{_SUB_DELIMS}:@]|{_PCT})"
_REG_NAME = rf"(?:[{_UNRESERVED}{_SUB_DELIMS}]|{_PCT})*"
_USERINFO = rf"(?:[{_UNRESERVED}{_SUB_DELIMS}:]|{_PCT})*"

_URI = re.compile(
    rf"""
    (?P<scheme> [A-Za-z][A-Za-z0-9+\-.]* ) :
    (?: // (?: {_USERINFO} @ )?
           (?P<host> \[ (?: (?P<ipv6> [0-9A-Fa-f:.]+ ) | [vV][0-9A-Fa-f]+\.[{_UNRESERVED}{_SUB_DELIMS}:]+ ) \]
                   | {_REG_NAME} )
           (?: : (?P<port> [0-9]* ) )?
           (?: / {_PCHAR}* )*
      | / (?: {_PCHAR}+ (?: / {_PCHAR}* )* )?
      | (?: {_PCHAR}+ (?: / {_PCHAR}* )* )?
    )
    (?: \? (?: {_PCHAR} | [/?] )* )?
    (?: \# (?: {_PCHAR} | [/?] )* )?
    """,
    re.VERBOSE,
)


@frozen
class Uri:
    """The parts of a URI that decide where it leads. `host` is None without an authority, "" where that names none."""

    scheme: str
    """In lower case: schemes are compared without it (§3.1)."""
    host: str | None
    port: str | None


def parse(text: str) -> Uri | None:
    """The URI that `text` is, or None: a relative reference is none either."""
    match = _URI.fullmatch(text)
    if match is None:
        return None
    if match["ipv6"] is not None:
        try:
            ipaddress.IPv6Address(match["ipv6"])
        except ValueError:
            return None
    return Uri(match["scheme"].lower(), match["host"], match["port"])
