"""The owner of the other end of a TCP connection on this machine, as the kernel reports it (NETLINK_SOCK_DIAG).

This module answers that one question. It knows no principals and no rights, and it does not guess: unless the kernel
reports exactly the socket in question, alive and owned, the result is a refusal.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Any, Protocol, TypeAlias

from hearth.errors import PermissionDenied

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
_GONE = "the peer closed before it was known who it is"
_ANSWER_SIZE = _HEADER.size + _STATE.size + _ID_SIZE + _COUNTS.size


class Connected(Protocol):
    """The methods of a connected TCP socket that this module uses."""

    def getpeername(self) -> Any:
        """Return address and port of the other end, and more for IPv6."""

    def getsockname(self) -> Any:
        """Return the same of our end."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Return a socket option's bytes."""
        ...


def peer_uid(connected: Connected) -> int:
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
            raise _refused(f"{peer[0]} is not a loopback address, so this machine does not know who calls")
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
    told = [answer[start : start + size] for start in (at + _PORTS.size, at + _PORTS.size + 16)]
    if ((_plain(told[0]), sport), (_plain(told[1]), dport)) != (source, destination):
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
        raise _refused(f"the kernel cannot be asked who the peer is: {error.strerror}") from None
    if sender[0] != 0:
        raise _refused("somebody else than the kernel answered who the peer is")
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
