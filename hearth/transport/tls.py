"""TCP, TLS and credentials: each side proves its identity by a certificate; errors are explained in words.

This module owns the client's TLS settings, which `wss` shares: TLS 1.2 at least, and the server's name is always
checked against its certificate.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
import stat
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import trio

from hearth.errors import CarrierError, ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from hearth.transport.address import TlsAddress, WebSocketAddress


# --- TCP ------------------------------------------------------------------------------------------------------------
#
# TLS and WebSocket use these connections.

DEADLINE = 10.0
"""Seconds for the whole set-up of a connection: name, TCP, TLS and WebSocket together."""
DEAD_PEER_TIMEOUT = 30
"""Seconds after which a peer whose machine or network is down counts as lost, also if this side sends nothing."""
_PROBE = 10
"""Seconds between two of the kernel's keep-alive probes."""
_NO_WAY = frozenset((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN))


@contextmanager
def in_time(address: TlsAddress | WebSocketAddress) -> Iterator[None]:
    """Limit the set-up of the connection in the block to DEADLINE. Raises CarrierError after that."""
    try:
        with trio.fail_after(DEADLINE):
            yield
    except trio.TooSlowError:
        cure = f"is {address.host} on, does a firewall let port {address.port} through, is it hearthd that listens?"
        raise CarrierError(f"no connection to {address.place} within {DEADLINE:g} s: {cure}") from None


async def open_tcp(address: TlsAddress | WebSocketAddress) -> trio.SocketStream:
    """Open a TCP connection; call it within `in_time`. Raises CarrierError."""
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        raise CarrierError(f"cannot connect to {address.place}: {_why(address, error)}") from None
    try:
        # The kernel's keep-alive probes: a client that only waits for events sends nothing, but must detect a dead link
        # too.
        for option, value in (
            (socket.TCP_KEEPIDLE, _PROBE),
            (socket.TCP_KEEPINTVL, _PROBE),
            (socket.TCP_KEEPCNT, DEAD_PEER_TIMEOUT // _PROBE),
            (socket.TCP_USER_TIMEOUT, DEAD_PEER_TIMEOUT * 1000),
        ):
            stream.setsockopt(socket.IPPROTO_TCP, option, value)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except OSError as error:  # the peer has reset the connection by now
        await trio.aclose_forcefully(stream)
        raise CarrierError(f"cannot connect to {address.place}: {_why(address, error)}") from None
    return stream


def _why(address: TlsAddress | WebSocketAddress, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"there is no host {address.host} ({error.strerror}); look at the name, or write its IP address"
    numbers = error_numbers(error)
    if errno.ECONNREFUSED in numbers:
        section = "tls" if address.scheme == "tls" else "websocket"
        return f"no process listens on that port; is hearthd running there, with [{section}] listen for that address?"
    if numbers & _NO_WAY:
        return f"there is no way to {address.host} from here; is it on, and on this network?"
    reasons = sorted(os.strerror(number) for number in numbers)
    return "; ".join(reasons) or str(error)


def error_numbers(error: BaseException) -> set[int]:
    """Return the errno of each attempt: a host may have several addresses, and Trio reports an error for each."""
    found = {error.errno} if isinstance(error, OSError) and error.errno is not None else set[int]()
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            found |= error_numbers(each)
    if error.__cause__ is not None:
        found |= error_numbers(error.__cause__)
    return found


# --- credentials in files -------------------------------------------------------------------------------------------
#
# Tokens and private keys. A secret file that other users can read is refused.

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,1024}\Z")
"""The form of a token in an Authorization header (RFC 6750 §2.1), of a length below every limit of headers."""


def readable(path: Path, what: str, *, private: bool) -> Path:
    """Return the path with ~ expanded, if it is a readable file and, if `private`, other users cannot read it.

    Otherwise raises ConfigError, which begins with `what`. A group may read a key of root's, such as Debian's ssl-cert:
    root chose its members.
    """
    try:
        path = path.expanduser()
    except RuntimeError:
        raise ConfigError(f"{what} {path}: its home directory is unknown; write the whole path") from None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{what} {path} is not a file")
    others = 0o037 if status.st_uid == 0 else 0o077
    if private and status.st_mode & others:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"{what} {path} can be used by others (mode {mode:04o}); chmod 600 {path}")
    return path


def find_token(address: WebSocketAddress, given: str | None, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the bearer token to offer, with its source in words; None if there is none.

    The sources are, in this order: `given`, token_file, HEARTH_TOKEN. Raises ConfigError, which never holds the token.
    """
    if given is not None:
        if address.token_file is not None:
            raise ConfigError(f"{address.place}: a token and token_file are given; leave one of them out")
        return checked(given, "the token that was given"), "that was given"
    if address.token_file is not None:
        path = readable(address.token_file, "token_file", private=True)
        try:
            text = path.read_text("ascii")
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"token_file {path} holds no token; `hearth admin token new` makes one") from None
        return checked(text.strip(), f"token_file {path}"), f"in {path}"
    if environ.get("HEARTH_TOKEN"):
        return checked(environ["HEARTH_TOKEN"].strip(), "HEARTH_TOKEN"), "in HEARTH_TOKEN"
    return None


def checked(token: str, where: str) -> str:
    """Return a well-formed token. Raises ConfigError, which begins with `where` and never holds the token."""
    if not _TOKEN.match(token):
        cure = "`hearth admin token new` makes one"
        raise ConfigError(f"{where}: a token is one word of letters, digits and -._~+/=; {cure}")
    return token


CLOSE_TIMEOUT_S = 1.0
"""Seconds for sending close_notify before the connection is closed."""

_UNTRUSTED = frozenset((2, 18, 19, 20, 21, 27))
"""The X509_V_ERR_… codes of OpenSSL for a missing or untrusted issuer (x509_vfy.h)."""
_NOT_YET, _EXPIRED, _PURPOSE, _HOSTNAME, _IP = 9, 10, 26, 62, 64
_LOST = "the connection ended without a close message"
_CUT = "UNEXPECTED_EOF_WHILE_READING"
"""OpenSSL's reason for the error that Python 3.11.4 and later raise as SSLEOFError."""
_OURS = {
    "CERTIFICATE_REQUIRED": "it wants a certificate of ours: give ?cert=FILE&key=FILE",
    "UNKNOWN_CA": "it does not know the CA that signed our certificate ({cert}); it must be in its client_ca",
    "CERTIFICATE_EXPIRED": "our certificate ({cert}) has expired, by its clock; make a new one",
    "CERTIFICATE_REVOKED": "our certificate ({cert}) is revoked; make a new one",
    "UNSUPPORTED_CERTIFICATE": "our certificate ({cert}) is not for clients; make one with the usage clientAuth",
    "BAD_CERTIFICATE": "it does not take our certificate ({cert}); is it for clients, and of its client_ca?",
    "CERTIFICATE_UNKNOWN": "it does not take our certificate ({cert}); is it for clients, and of its client_ca?",
    "ACCESS_DENIED": "our certificate ({cert}) is valid, but the server refuses its subject",
    "PROTOCOL_VERSION": "it speaks no TLS version that we take; 1.2 is the oldest",
    "HANDSHAKE_FAILURE": "it refuses the handshake; if it wants a certificate of ours, give ?cert=FILE&key=FILE",
}
"""End of an alert's name -> the meaning of the server's refusal."""


def context_for(address: TlsAddress | WebSocketAddress) -> ssl.SSLContext:
    """Return the TLS settings for one address. Raises ConfigError for files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python up to 3.11.3 sets this option, and would take a cut connection for a closed one.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    if address.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        ca = readable(address.ca, "ca", private=False)
        try:
            context.load_verify_locations(ca)
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"ca {ca} holds no certificate in PEM form") from None
    if address.cert is not None and address.key is not None:
        _load_pair(context, readable(address.cert, "cert", private=False), readable(address.key, "key", private=True))
    return context


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    def encrypted() -> str:
        # Without this callback OpenSSL would prompt on the terminal and block the event loop.
        raise ConfigError(f"key {key} is encrypted; `openssl pkey -in {key} -out plain.key` (chmod 600) decrypts it")

    try:
        context.load_cert_chain(cert, key, encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"key {key} is not the key of the certificate {cert}") from None
        raise ConfigError(f"cert {cert} and key {key}: not a certificate and its key in PEM form") from None


async def secure(
    stream: trio.SocketStream, address: TlsAddress | WebSocketAddress, context: ssl.SSLContext, *, https: bool
) -> trio.SSLStream[trio.SocketStream]:
    """Do the TLS handshake and return the stream; call it within `in_time`. Closes `stream` and raises CarrierError.

    `https` is for peers that may close without close_notify because their protocol has its own closing handshake.
    """
    secured = trio.SSLStream(stream, context, server_hostname=address.host, https_compatible=https)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise CarrierError(f"cannot connect to {address.place}: {connect_failure(error, address)}") from None
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


def connect_failure(error: BaseException, address: TlsAddress | WebSocketAddress, *, silent: bool = False) -> str:
    """Return the reason of a TLS failure and its cure, in words; `error` is Trio's exception.

    `silent` is True after the handshake if the server has sent nothing since.
    """
    words = _failure(error, address)
    if words == _LOST and silent:
        # The server's alert may be lost: TCP drops unread data if the server closes before it has read all.
        words += ", before it said anything; if it always does, it may not take our certificate"
    return words


def _failure(error: BaseException, address: TlsAddress | WebSocketAddress) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _unverified(cause, address)
    if isinstance(cause, ssl.SSLEOFError) or not isinstance(cause, ssl.SSLError):
        return _LOST
    reason = (cause.reason or "").upper()
    if reason == _CUT:
        return _LOST
    for name, words in _OURS.items():
        if "ALERT" in reason and reason.endswith(name):
            return words.format(cert=address.cert or "there is none")
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"):
        return "what listens there does not speak TLS; is it the right port?"
    return f"TLS failed: {reason.replace('_', ' ').lower() or cause}"


def _unverified(error: ssl.SSLCertVerificationError, address: TlsAddress | WebSocketAddress) -> str:
    code = error.verify_code
    if code in (_HOSTNAME, _IP):
        cure = "write the name it has, or make it a certificate with this one"
        return f"its certificate is not for {address.host}; {cure}"
    if code in _UNTRUSTED:
        given = "the system's CAs" if address.ca is None else f"the CA in {address.ca}"
        return f"its certificate is not signed by {given}; name the CA that signed it with ?ca=FILE"
    if code in (_EXPIRED, _NOT_YET):
        which = "has expired" if code == _EXPIRED else "is not valid yet"
        return f"its certificate {which}; renew it, or set the clock if that is wrong"
    if code == _PURPOSE:
        return "its certificate is not for servers; make one with the usage serverAuth"
    return f"its certificate is not accepted: {error.verify_message}"


class TlsStream(trio.abc.Stream):
    """An SSLStream that explains in words why it broke.

    In TLS 1.3 a server's refusal of the client's certificate arrives only after the handshake, with the first data.
    """

    def __init__(self, stream: trio.SSLStream[trio.SocketStream], address: TlsAddress | WebSocketAddress) -> None:
        self._stream = stream
        self._address = address
        self._why: str | None = None
        self._received = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio.abc.SendStream."""
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise self._broken(error) from None

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See trio.abc.ReceiveStream."""
        try:
            data = bytes(await self._stream.receive_some(max_bytes))
        except trio.BrokenResourceError as error:
            raise self._broken(error) from None
        self._received = True
        return data

    def _broken(self, error: trio.BrokenResourceError) -> trio.BrokenResourceError:
        # Trio gives the cause only with its first error; keep it for later calls.
        if self._why is None and error.__cause__ is not None:
            self._why = connect_failure(error, self._address, silent=not self._received)
        return trio.BrokenResourceError(f"{self._address.place}: {self._why or 'the connection ended'}")

    async def aclose(self) -> None:
        """Send close_notify if that is possible within CLOSE_TIMEOUT_S seconds, and close."""
        try:
            with trio.move_on_after(CLOSE_TIMEOUT_S):
                await self._stream.aclose()
        finally:
            await trio.aclose_forcefully(self._stream.transport_stream)


@asynccontextmanager
async def open_tls(address: TlsAddress) -> AsyncIterator[TlsStream]:
    """Connect by TLS. Raises CarrierError if there is no answer or a wrong server, ConfigError for unusable files."""
    context = context_for(address)
    with in_time(address):
        stream = await secure(await open_tcp(address), address, context, https=False)
    async with TlsStream(stream, address) as secured:
        yield secured
