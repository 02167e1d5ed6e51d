"""Principals, and the bearer tokens that prove one.

A principal is the peer's identity as the carrier proved it, never as the client claims it. This module owns the
identity and its stable key. Nothing that a client sends over HACP can change a principal. Rights belong to `rules`,
authentication to the carriers.

It also owns the form of a bearer token and the comparison of digests. It never stores tokens: a configuration, a log
and a principal hold a token's SHA-256 only, which cannot be inverted because a token has 256 random bits. It knows no
header and no file.

For a TCP connection over a loopback address, `peer_uid` asks the kernel for the owner of the other end
(NETLINK_SOCK_DIAG). It does not guess: unless the kernel reports exactly the socket in question, alive and owned, the
result is a refusal.
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
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

from attrs import Factory, field, frozen

from hearth._util import threads
from hearth._util.threads import Helper
from hearth.errors import PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hearth._util.threads import HelperCall

T = TypeVar("T")

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_End: TypeAlias = tuple[_Address, int]
"""Address and port of one end. An IPv4-mapped IPv6 address is written as IPv4."""

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR = 2
_NLM_F_REQUEST = 1
_SEQ = 1
_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence number, port id."""
_REQUEST = struct.Struct("=BBBxI")
"""inet_diag_req_v2 up to its socket id: family, protocol, extensions, states."""
_PORTS = struct.Struct("!HH")
"""inet_diag_sockid begins with source and destination port; 16 + 16 bytes of addresses follow."""
_REST_OF_ID = struct.pack("=I", 0) + b"\xff" * 8
"""No interface, no cookie: the four numbers are enough."""
_STATE = struct.Struct("=BBBB")
"""inet_diag_msg begins with family, state, timer, retransmissions; a socket id of 48 bytes follows."""
_ID_SIZE = 48
_COUNTS = struct.Struct("=IIIII")
"""inet_diag_msg ends with expires, rqueue, wqueue, uid, inode."""
_GONE = "the peer closed before its user was known"
_ANSWER_SIZE = _HEADER.size + _STATE.size + _ID_SIZE + _COUNTS.size


class ConnectedSocket(Protocol):
    """The methods of a connected TCP socket that this module uses."""

    def getpeername(self) -> Any:
        """Return address and port of the other end, and more for IPv6."""

    def getsockname(self) -> Any:
        """Return the same of our end."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Return a socket option's bytes."""
        ...


def peer_uid(connected: ConnectedSocket) -> int:
    """Return the uid that owns the peer's socket of a TCP connection over a loopback address.

    Why this is proof: the request names exactly the socket that has our two addresses and ports the other way round.
    While our end is open, no other socket can complete a connection with these four numbers. After the kernel's answer
    this function checks that our end is still ESTABLISHED, with no FIN or RST received. So the answer is about the
    socket that our bytes come from. A socket belongs to the user that created it, and only root can change that.

    Limits of the proof: it identifies the owner of the socket, not the origin of the bytes. A proxy, an SSH tunnel or a
    web service that fetches addresses on request connects as its own user. Use tokens where one is in front.

    The function asks once, without waiting, which takes a fraction of a millisecond. Raises PermissionDenied with the
    reason: not a loopback address, the peer has closed (the kernel then reports uid 0 and inode 0, which must never
    pass for root), or the kernel does not answer.
    """
    try:
        ours, peer = _end(connected.getsockname()), _end(connected.getpeername())
        if not peer[0].is_loopback:
            raise _refused(f"{peer[0]} is not a loopback address, so this machine does not know the caller's user")
        uid = uid_in(_ask(question(peer, ours)), peer, ours)
        state = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:  # ENOTCONN: it was reset
        raise _refused(_GONE) from None
    if state != _ESTABLISHED:
        raise _refused(_GONE)
    return uid


def question(source: _End, destination: _End) -> bytes:
    """Return the netlink message that asks about the TCP socket with this source and destination only."""
    family = socket.AF_INET if source[0].version == 4 else socket.AF_INET6
    body = b"".join(
        (
            _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF),
            _PORTS.pack(source[1], destination[1]),
            source[0].packed.ljust(16, b"\0"),
            destination[0].packed.ljust(16, b"\0"),
            _REST_OF_ID,
        )
    )
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _SEQ, 0) + body


def uid_in(answer: bytes, source: _End, destination: _End) -> int:
    """Return the owner in the kernel's answer to `question(source, destination)`. Raises PermissionDenied."""
    if len(answer) < _HEADER.size:
        raise _refused("the kernel's answer about the peer is too short")
    length, kind, _flags, seq, _port = _HEADER.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        raise _refused("the kernel knows no such peer on this machine")
    if kind != _SOCK_DIAG_BY_FAMILY or seq != _SEQ or not _ANSWER_SIZE <= length <= len(answer):
        raise _refused("the kernel's answer about the peer is not of the form that was asked for")
    family, state, _timer, _retransmissions = _STATE.unpack_from(answer, _HEADER.size)
    at = _HEADER.size + _STATE.size
    sport, dport = _PORTS.unpack_from(answer, at)
    size = 4 if family == socket.AF_INET else 16
    addresses = [answer[start : start + size] for start in (at + _PORTS.size, at + _PORTS.size + 16)]
    if ((_plain(addresses[0]), sport), (_plain(addresses[1]), dport)) != (source, destination):
        raise _refused("the kernel's answer is about another socket")
    _expires, _rqueue, _wqueue, uid, inode = _COUNTS.unpack_from(answer, at + _ID_SIZE)
    if state != _ESTABLISHED or inode == 0:
        raise _refused(_GONE)
    return int(uid)


def _ask(message: bytes) -> bytes:
    # The kernel puts its answer into our queue before `send` returns, so nothing here ever waits. A netlink message
    # without an address goes to the kernel. A confined daemon may send to no address.
    try:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as netlink:
            netlink.send(message)
            answer, sender = netlink.recvfrom(8192)
    except OSError as error:
        raise _refused(f"the kernel cannot be asked for the peer's user: {error.strerror}") from None
    if sender[0] != 0:
        raise _refused("the answer about the peer's user did not come from the kernel")
    return answer


def _end(name: Any) -> _End:
    """Return an end from the address that a socket reports; a loopback address has no zone."""
    host, port = name[0], name[1]
    return _plain(ipaddress.ip_address(host.partition("%")[0]).packed), port


def _plain(packed: bytes) -> _Address:
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _refused(reason: str) -> PermissionDenied:
    return PermissionDenied(data={"reason": reason})


Kind: TypeAlias = Literal["unix", "embedded", "tls", "token", "amqp"]

_SO_PEERGROUPS = 59
"""Linux 4.13 and later; the socket module has no name for it."""
_MAX_GROUPS = 256
"""As many as fit into the 1,024 bytes that `socket.getsockopt` returns at most."""
_NO_PEER = 0xFFFFFFFF
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
        "amqp": ("amqp", who.amqp_user),
    }[who.kind]
    if value is None or value == "":
        raise ValueError(f"a principal of kind {who.kind!r} needs its {prefix}")
    return f"{prefix}:{value}"


@frozen
class Principal:
    """The authenticated peer. `kind` says what is set: ids, names of a certificate, a digest, or the user of a broker.

    `groups` holds supplementary group ids; `group_names` the names of all groups, the primary one included. `cert_sans`
    are a certificate's alternative names, each with its kind before it ("DNS:arm-7.local"). `amqp_user` is what the
    broker has checked (the property user-id). `key` identifies the owner of a session ("uid:1000", "cert:CN=arm-7",
    "cert:CN=arm-7;DNS:arm-7.local", "token:9f86…", "amqp:alpha", "embedded"). It never contains a pid, so that a
    program's next process finds its sessions again. Raises ValueError when a field that the kind needs is
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
    amqp_user: str | None = None
    key: str = field(init=False, default=Factory(_key_of, takes_self=True))


def owns_process(principal: Principal) -> bool:
    """Return True for root and for the user that this process runs as: they could end the process, too."""
    return principal.kind in ("unix", "embedded") and principal.uid in (0, os.geteuid())


def from_peercred(sock: _Socket) -> Principal:
    """Return the process that connected to a unix socket, as the kernel recorded it (SO_PEERCRED, SO_PEERGROUPS).

    Supplementary groups come from the kernel too, so a process that gave up a group does not get it back here. Only
    with a kernel without SO_PEERGROUPS, or for a process in more than 256 groups, they come from the user database.
    Names are looked up there: see `_looked_up`. Raises PermissionDenied for a socket without a peer.
    """
    pid, uid, gid = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid == _NO_PEER:
        raise PermissionDenied(data={"reason": "the kernel knows no peer for this socket"})
    user = _looked_up(_user_name, uid)
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
        groups = frozenset(group for (group,) in struct.iter_unpack("=I", raw))
    except OSError:
        groups = frozenset(_looked_up(os.getgrouplist, user, gid)) if user else frozenset()
    return _with_names("unix", uid, gid, pid, groups, user)


def embedded() -> Principal:
    """Return the principal of a program that embeds the runtime; rules match it by its own uid and groups."""
    uid = os.geteuid()
    return _with_names(
        "embedded", uid, os.getegid(), os.getpid(), frozenset(os.getgroups()), _looked_up(_user_name, uid)
    )


def from_loopback(connected: ConnectedSocket) -> Principal:
    """Return the user whose program connected over TCP from a loopback address; `connected` is our end.

    `peer_uid` explains why the uid is proof and of what. It is the same principal, with the same key, as over
    the Unix socket, so sessions may be used over both. But the kernel reports no groups and no pid here: the groups are
    those of the user database, a uid unknown to it has none, and there is no pid. Raises PermissionDenied.
    """
    return from_uid(peer_uid(connected))


_users: WeakValueDictionary[int, Principal] = WeakValueDictionary()
"""By uid: one object for all connections of a user that are there."""


def from_uid(uid: int) -> Principal:
    """Return the user of this uid as the user database has it, with the groups that it names."""
    account = _looked_up(_account, uid)
    if account is None:
        return Principal("unix", uid=uid)
    name, gid, groups = account
    principal = _with_names("unix", uid, gid, None, groups, name)
    known = _users.get(uid)
    if known is not None and known == principal:
        return known
    # It is new, or the user database says something else of it now.
    _users[uid] = principal
    return principal


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


def from_amqp(user: str) -> Principal:
    """Return the user that a broker has found in a message: it refuses a user-id that is not the sender's login."""
    return Principal("amqp", amqp_user=user)


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
    names = _looked_up(_group_names, groups | {gid})
    return Principal(kind, uid=uid, gid=gid, pid=pid, user=user, groups=groups, group_names=names)


# A lookup reads a file, or asks a server. It is made in a helper's thread, for which the event loop waits an instant.
# While an earlier lookup has not returned, the last answer to the same question holds.

FIRST_ANSWER_S: Final = 0.5
"""Seconds that the first lookup of a user or of a set of groups may take."""
REMEMBER_S: Final = 10.0
"""The same before the daemon serves: nothing else waits then."""
_MOST_ANSWERS: Final = 1024
_helper = Helper("hearth-users")
_answers: dict[tuple[object, ...], Any] = {}
_asking: deque[tuple[float, HelperCall[Any]]] = deque()
"""The lookups that have not returned, the oldest first, each with the time at which it was made."""
# A fork has no helper's thread, which would end them.
os.register_at_fork(after_in_child=_asking.clear)
_first_answer_s = [FIRST_ANSWER_S]


def _looked_up(look_up: Callable[..., T], *args: object) -> T:
    """Return `look_up(*args)`. Raises PermissionDenied if the user database does not answer and never has."""
    question, now = (look_up, *args), time.monotonic()
    known = question in _answers
    while _asking and _asking[0][1].done:
        _asking.popleft()
    # A new question waits behind one that has just been asked, and behind none that hangs.
    patience = max(_first_answer_s[-1], threads.PATIENCE_S)
    if not _asking or (not known and now - _asking[0][0] < patience):
        call = _helper.call(partial(look_up, *args), None if known else patience)
        if call.done:
            if not known and len(_answers) >= _MOST_ANSWERS:
                del _answers[next(iter(_answers))]
            _answers[question] = call.get()
            known = True
        else:
            _asking.append((now, call))
    if not known:
        raise PermissionDenied(data={"reason": "the user database of this machine does not answer"})
    return cast("T", _answers[question])


def remember(*uids: int) -> None:
    """Look users up, so that they are known while the user database does not answer; for the time before serving.

    A database that does not answer for REMEMBER_S is left alone: it is asked again when a user connects.
    """
    _first_answer_s.append(REMEMBER_S)
    try:
        with contextlib.suppress(PermissionDenied):
            for uid in uids:
                from_uid(uid)
                _looked_up(_user_name, uid)
    finally:
        _first_answer_s.pop()


def _account(uid: int) -> tuple[str, int, frozenset[int]] | None:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    return entry.pw_name, entry.pw_gid, frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))


def _group_names(gids: frozenset[int]) -> frozenset[str]:
    return frozenset(name for name in map(_group_name, gids) if name is not None)


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
        self.replace(digests)

    def replace(self, digests: Iterable[str]) -> None:
        """Accept these from now on, and no others."""
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
