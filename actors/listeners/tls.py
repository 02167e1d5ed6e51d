"""TCP with mutual TLS: the handshake within its deadline, and who the client's certificate makes it.

It owns what is said of a peer that failed; which TLS is spoken, and which CA is trusted, is decided in `certificates`.
A peer that is refused sees a TLS alert or a closed connection, and nothing of why beyond that.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import TYPE_CHECKING

import trio

from hearth.actors.carrier import PeerGone
from hearth.actors.listeners.accepting import Stranger
from hearth.actors.listeners.streams import SocketTransport, StreamCarrier, reason_of
from hearth.errors import PermissionDenied
from hearth.policy.principal import from_certificate

if TYPE_CHECKING:
    import socket

    from hearth.actors.listeners.accepting import Welcome
    from hearth.actors.listeners.certificates import Certificates
    from hearth.policy.principal import Principal

_CUT = "closed before the TLS handshake was done"
_UNKNOWN_CA = "its certificate is of an unknown CA"
_VERIFICATION = {
    2: _UNKNOWN_CA,
    7: _UNKNOWN_CA,
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    18: _UNKNOWN_CA,
    19: _UNKNOWN_CA,
    20: _UNKNOWN_CA,
    21: _UNKNOWN_CA,
    23: "its certificate has been revoked",
    26: "its certificate is of the wrong purpose: not for TLS clients",
}
"""By X509_V_ERR_* (openssl-verify(1))."""
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "HTTP_REQUEST": "not TLS, but plain HTTP",
    "HTTPS_PROXY_REQUEST": "not TLS, but plain HTTP",
    "WRONG_VERSION_NUMBER": "not TLS",
    "UNKNOWN_PROTOCOL": "not TLS",
    "BAD_PACKET_LENGTH": "not TLS",
    "LENGTH_TOO_SHORT": "not TLS",
    "PACKET_LENGTH_TOO_LONG": "not TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks no TLS as new as 1.2",
    "VERSION_TOO_LOW": "it speaks no TLS as new as 1.2",
    "NO_SHARED_CIPHER": "it has no cipher in common with us",
    # Pythons from 3.11.4 on raise SSLEOFError for it.
    "UNEXPECTED_EOF_WHILE_READING": _CUT,
}
"""By OpenSSL's name of the reason."""


class TlsGreeter:
    """Lets in who has a certificate of the CA. See Greeter; times in seconds."""

    scheme = "tls"

    def __init__(self, certificates: Certificates, *, handshake_timeout: float, send_timeout: float) -> None:
        self._certificates = certificates
        self._handshake_timeout = handshake_timeout
        self._send_timeout = send_timeout

    async def greet(self, connected: socket.socket, peer: str, welcome: Welcome) -> None:
        """See Greeter."""
        del peer
        stream = await handshake(connected, self._certificates, self._handshake_timeout, self._send_timeout)
        carrier = TlsCarrier(stream)
        try:
            principal = certificate_of(stream)
            if principal is None:
                raise Stranger("no certificate")
            with contextlib.suppress(PeerGone):
                await welcome(carrier, principal)
        finally:
            await carrier.aclose()


class TlsCarrier(StreamCarrier):
    """A carrier over TLS, which tells its peer of the end also where not all was read that the peer has sent."""

    __slots__ = ("_secure",)

    def __init__(self, stream: trio.SSLStream[SocketTransport]) -> None:
        super().__init__(stream)
        self._secure = stream

    async def aclose(self) -> None:
        """See Carrier."""
        # What came and was not read is forgotten: OpenSSL would object to it after it has written its close_notify, and
        # Trio's stream would take that for a broken connection and drop the close_notify.
        self._secure._incoming.read()
        await super().aclose()


async def handshake(
    connected: socket.socket, certificates: Certificates, timeout: float, send_timeout: float  # noqa: ASYNC109
) -> trio.SSLStream[SocketTransport]:
    """Do the server's side of a TLS handshake within `timeout` seconds; `send_timeout` bounds the stream's sends.

    Raises Stranger, with `connected` closed and an alert sent where TLS has one.
    """
    transport = SocketTransport(connected, send_timeout=send_timeout)
    stream = trio.SSLStream(transport, certificates.context, server_side=True)
    done = False
    try:
        with trio.fail_after(timeout):
            await stream.do_handshake()
        done = True
    except trio.TooSlowError:
        raise Stranger(f"timed out: no TLS handshake within {timeout:g} s") from None
    except trio.BrokenResourceError as error:
        _send_alert(connected, stream)
        raise Stranger(_why(error)) from None
    finally:
        if not done:
            transport.close()
        _let_go(stream)
    return stream


def _let_go(stream: trio.SSLStream[SocketTransport]) -> None:
    """Make the stream free to go when its connection does.

    Trio's stream holds a method of its own, for the handshake, which is over now. Unless it lets go of that, what
    OpenSSL has for a connection (some 30 KiB) stays until the collector comes by: tens of megabytes, where many come
    and go.
    """

    async def done(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    with contextlib.suppress(AttributeError):  # Trio's own affair, which it may arrange otherwise
        stream._handshook._afn = done


def certificate_of(stream: trio.SSLStream[SocketTransport]) -> Principal | None:
    """Who the client's verified certificate makes it, or None where it showed none. Raises Stranger."""
    try:
        certificate = stream.getpeercert()
        if not certificate:
            return None
        # A TLS 1.2 client that resumes a session is not verified again.
        if ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time():
            raise Stranger("its certificate has expired")
        if _is_authority(stream.getpeercert(binary_form=True)):
            raise Stranger("its certificate is of the wrong purpose: a CA's")
        return from_certificate(certificate)
    except PermissionDenied as error:
        raise Stranger(str((error.data or {}).get("reason", error))) from None
    except ValueError as error:
        # Both ssl and cryptography: an oddity in what the CA has signed.
        raise Stranger(f"its certificate cannot be read: {error}") from None


def _is_authority(der: bytes) -> bool:
    from cryptography import x509

    with contextlib.suppress(x509.ExtensionNotFound):
        return x509.load_der_x509_certificate(der).extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    return False


def _send_alert(connected: socket.socket, stream: trio.SSLStream[SocketTransport]) -> None:
    """Trio leaves the alert that says why where OpenSSL wrote it: a client would see a closed connection only."""
    alert = stream._outgoing.read()
    if alert:
        with contextlib.suppress(OSError):
            connected.send(alert)


def _why(error: trio.BrokenResourceError) -> str:
    """What a failed handshake says of the peer, for the log."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _VERIFICATION.get(cause.verify_code, f"its certificate is refused: {cause.verify_message}")
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return _CUT
    if not isinstance(cause, ssl.SSLError):
        return reason_of(error)
    reason = cause.reason or ""
    _, alert, about = reason.partition("_ALERT_")
    if alert:
        return f"it refuses us, with the TLS alert {about.replace('_', ' ').lower()!r}"
    # Where OpenSSL names none, it could not decode what came.
    return _REASONS.get(reason, f"the TLS handshake failed: {reason.replace('_', ' ').lower() or 'unreadable'}")
