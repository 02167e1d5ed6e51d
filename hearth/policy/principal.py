"""Principals, and the bearer tokens that prove one.

A principal is the peer's identity as the carrier proved it, never as the client claims it. This module owns the
identity and its stable key. Nothing that a client sends over HACP can change a principal. Rights belong to `rules`,
authentication to the carriers.

It also owns the form of a bearer token and the comparison of digests. It never stores tokens: a configuration, a log
and a principal hold a token's SHA-256 only, which cannot be inverted because a token has 256 random bits. It knows no
header, no file and no socket.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import hmac
import ipaddress
import os
import pwd
import secrets
import socket
import struct
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from attrs import Factory, field, frozen

from hearth.errors import PermissionDenied
from hearth.policy import loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Kind: TypeAlias = Literal["unix", "embedded", "tls", "token"]

_SO_PEERGROUPS = 59
"""Linux 4.13 and later; the socket module has no name for it."""
_MAX_GROUPS = 256
"""As many as fit into the 1,024 bytes that `socket.getsockopt` returns at most."""
_NOBODY_AT_ALL = 0xFFFFFFFF
"""The uid that the kernel reports for a socket without a peer."""
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "userId": "UID",
}
"""The attribute types that RFC 4514 §3 and OpenSSL shorten; others keep their long names."""
_SAN_KINDS = {
    "DNS": "DNS",
    "IP Address": "IP",
    "URI": "URI",
    "email": "email",
    "DirName": "dirName",
    "Registered ID": "RID",
}
"""From the `ssl` module's names for kinds of alternative names to those of a policy, which are OpenSSL's."""


class _Socket(Protocol):
    """The one method of a standard or Trio socket that is needed here."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def _key_of(who: Principal) -> str:
    if who.kind == "embedded":
        return "embedded"
    if who.kind == "tls" and who.cert_sans:
        # Two certificates with one subject are two principals. A subject has no bare ";", and neither has a name here.
        return ";".join([f"cert:{who.cert_subject or ''}", *sorted(map(_escaped, who.cert_sans))])
    prefix, value = {
        "unix": ("uid", who.uid),
        "tls": ("cert", who.cert_subject),
        "token": ("token", who.token_sha256),
    }[who.kind]
    if value is None or value == "":
        raise ValueError(f"a principal of kind {who.kind!r} needs its {prefix}")
    return f"{prefix}:{value}"


@frozen
class Principal:
    """The authenticated peer. `kind` says what is set: "unix", "embedded" ids, "tls" names, "token" a digest.

    `groups` holds supplementary group ids; `group_names` the names of all groups, the primary one included. `cert_sans`
    are a certificate's alternative names, each with its kind before it ("DNS:arm-7.local"). `key` identifies the owner
    of a session ("uid:1000", "cert:CN=arm-7;DNS:arm-7.local", "token:9f86…", "embedded"). It never contains a pid, so
    that a program's next process finds its sessions again. Raises ValueError when a field that the kind needs is
    missing.
    """

    kind: Kind
    uid: int | None = None
    gid: int | None = None
    pid: int | None = None
    user: str | None = None
    groups: frozenset[int] = frozenset()
    group_names: frozenset[str] = frozenset()
    cert_subject: str | None = None
    cert_sans: frozenset[str] = frozenset()
    token_sha256: str | None = None
    key: str = field(init=False, default=Factory(_key_of, takes_self=True))


def from_peercred(sock: _Socket) -> Principal:
    """Return the process that connected to a unix socket, as the kernel recorded it (SO_PEERCRED, SO_PEERGROUPS).

    Supplementary groups come from the kernel too, so a process that gave up a group does not get it back here. Only
    with a kernel without SO_PEERGROUPS, or for a process in more than 256 groups, they come from the user database.
    Names are looked up there: a read of a local file, unless the machine keeps its users elsewhere. Raises
    PermissionDenied for a socket without a peer.
    """
    pid, uid, gid = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid == _NOBODY_AT_ALL:
        raise PermissionDenied(data={"reason": "the kernel knows no peer for this socket"})
    user = _user_name(uid)
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
        groups = frozenset(group for (group,) in struct.iter_unpack("=I", raw))
    except OSError:
        groups = frozenset(os.getgrouplist(user, gid)) if user else frozenset()
    return _with_names("unix", uid, gid, pid, groups, user)


def embedded() -> Principal:
    """Return the principal of a program that embeds the runtime; rules match it by its own uid and groups."""
    uid = os.geteuid()
    return _with_names("embedded", uid, os.getegid(), os.getpid(), frozenset(os.getgroups()), _user_name(uid))


def from_loopback(connected: loopback.Connected) -> Principal:
    """Return the user whose program connected over TCP from a loopback address; `connected` is our end.

    `loopback.peer_uid` explains why the uid is proof and of what. It is the same principal, with the same key, as over
    the Unix socket, so sessions may be used over both. But the kernel reports no groups and no pid here: the groups are
    those of the user database, a uid unknown to it has none, and there is no pid. Raises PermissionDenied.
    """
    uid = loopback.peer_uid(connected)
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Principal("unix", uid=uid)
    groups = frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return _with_names("unix", uid, entry.pw_gid, None, groups, entry.pw_name)


def from_certificate(peercert: Mapping[str, Any]) -> Principal:
    """Return the holder of a verified client certificate; `peercert` is the value of `SSLSocket.getpeercert()`.

    `cert_subject` is its RFC 4514 string, most specific part first ("CN=arm-7,O=Acme"): for such names the same as
    `openssl x509 -noout -subject -nameopt RFC2253` prints; None for an empty one. `cert_sans` are its alternative names
    as `alternative_name` writes them; those of kind otherName, which `ssl` cannot read, are left out. Raises
    PermissionDenied for a certificate without a subject and alternative names.
    """
    subject = _distinguished(peercert.get("subject", ()))
    sans = frozenset(
        alternative_name(_SAN_KINDS[kind], _distinguished(value) if kind == "DirName" else value)
        for kind, value in peercert.get("subjectAltName", ())
        if kind in _SAN_KINDS
    )
    if not subject and not sans:
        raise PermissionDenied(data={"reason": "the client certificate has an empty subject and no alternative name"})
    return Principal("tls", cert_subject=subject or None, cert_sans=sans)


def alternative_name(kind: str, value: str) -> str:
    """Return one form for each alternative name, so that equal ones compare equal: "DNS:arm-7.local", "IP:fe80::7".

    Host names are compared without regard to case (RFC 5280 §7.2), addresses by their value; other kinds as they are.
    """
    if kind == "DNS":
        value = value.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")  # ASCII letters only
    elif kind == "IP":
        # An address of a wrong length belongs to no host, and no condition can name the text that `ssl` gives for it.
        with contextlib.suppress(ValueError):
            value = str(ipaddress.ip_address(value.strip()))
    return f"{kind}:{value}"


def from_token(token: str | bytes) -> Principal:
    """Return the bearer of a token, known by its SHA-256 in hex: configuration and audit never hold the token."""
    raw = token.encode("utf-8") if isinstance(token, str) else token
    return Principal("token", token_sha256=hashlib.sha256(raw).hexdigest())


def _with_names(kind: Kind, uid: int, gid: int, pid: int | None, groups: frozenset[int], user: str | None) -> Principal:
    names = frozenset(name for name in map(_group_name, {gid, *groups}) if name is not None)
    return Principal(kind, uid=uid, gid=gid, pid=pid, user=user, groups=groups, group_names=names)


def _user_name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _group_name(gid: int) -> str | None:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return None


def _distinguished(name: Iterable[Iterable[tuple[str, str]]]) -> str:
    parts = ["+".join(f"{_SHORT.get(key, key)}={_escaped(value)}" for key, value in part) for part in name]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    # RFC 4514 §2.4. Without it a common name of "x,O=Acme" would pass for a member of that organisation.
    text = "".join("\\" + char if char in '"+,;<>\\' else char for char in value).replace("\0", "\\00")
    if text.endswith(" "):
        text = text[:-1] + "\\ "
    return "\\" + text if text.startswith(("#", " ")) else text


PREFIX = "hearth_"
"""Prefix of a token, so that people and secret scanners recognise one that was leaked."""
MAX_TOKEN = 1024
"""Longest token that is hashed, in characters. It bounds the work for an unauthenticated peer. No client sends a longer
one."""


class Tokens:
    """The accepted tokens, by their digests (64 hex digits of SHA-256 each); false when there are none."""

    __slots__ = ("_digests",)

    def __init__(self, digests: Iterable[str]) -> None:
        self._digests = tuple(digest.lower().encode("ascii") for digest in digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def bearer(self, token: str) -> Principal | None:
        """Return the principal of this token, or None for a token that is not accepted.

        The digest is compared with every configured one, each in constant time. So the time taken reveals neither how
        much of a digest was right nor which entry it was.
        """
        if not token or len(token) > MAX_TOKEN:
            return None
        try:
            who = from_token(token)
        except UnicodeEncodeError:  # lone surrogates: no accepted token has them
            return None
        assert who.token_sha256 is not None, "a principal of kind token has one"
        digest = who.token_sha256.encode("ascii")
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return who if found else None


def new_token() -> str:
    """Return a new token: 32 bytes from the system's CSPRNG in base64url after "hearth_", 50 characters in all.

    Its characters may stand in an HTTP header, a WebSocket subprotocol and a shell word without quoting.
    """
    return PREFIX + secrets.token_urlsafe(32)
