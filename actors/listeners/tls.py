"""TLS: a listener's certificates, the server's side of a handshake, and the principal of a client certificate.

`Certificates` reads the files, requires that no other user can use the key, and builds the context of the handshakes:
the TLS versions and the trusted CA. `TlsHandshake` authenticates a peer over TCP with mutual TLS. A peer that is
refused sees a TLS alert or a closed connection, and learns no reason beyond that; the reason is for the log.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import ssl
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import trio
from attrs import define, field

from hearth._util.files import read_file
from hearth.actors.listeners.accept import AuthenticationFailed
from hearth.actors.transport import PeerGone, StreamCarrier, reason_of
from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.principal import from_certificate
from hearth.transport.sockets import SocketTransport

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from cryptography.x509 import Certificate

    from hearth.actors.listeners.accept import ConnectionHandler
    from hearth.config.model import Config
    from hearth.policy.principal import Principal

# --- certificates -----------------------------------------------------------------------------------------------------

SOON = dt.timedelta(days=30)
"""The time before a certificate expires from which on the operator is warned."""
LARGEST = 4 << 20
"""Bytes of a PEM file at most; all public CAs together take a quarter of a megabyte."""
SESSIONS = 256
"""TLS 1.2 sessions that a context caches before it is replaced."""

Client = Literal["required", "optional", "none"]

_VERIFY = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
_CERTIFICATE = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----")
_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----")
_ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: 4,ENCRYPTED")
_MISMATCH = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_CRL = b"-----BEGIN X509 CRL-----"


class _Files(NamedTuple):
    """The content of the files when they were read."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """A listener's certificates: the SSLContext for the next handshake, replaced whole by `reload`.

    `section` is the configuration's ("tls", "websocket"): errors and warnings name `[section] key`, the file and the
    cure. `client` decides if a client's certificate is requested; with "none", `client_ca` is not read. Certificate
    revocation lists in `client_ca` are applied.

    The key must belong to the daemon's user, without access for others (0600 or less); or to root, and at most readable
    by its group (0640), as distributions give a key to services that do not run as root. Raises ConfigError for files
    that cannot be used. Blocking, for small local files.
    """

    def __init__(self, section: str, cert: Path, key: Path, client_ca: Path | None, *, client: Client) -> None:
        self._section = section
        self._cert = cert
        self._key = key
        self._client_ca = client_ca if client != "none" else None
        self._client = client
        if client != "none" and client_ca is None:
            raise ConfigError(f"[{section}] client_ca: not set; name the PEM file of the CA that certified the clients")
        if client != "none":
            # It parses each client's certificate. Its import takes 70 ms, which the first handshake would wait for.
            import_module("cryptography.x509")
        self._files = self._read()
        self._context = self._build(self._files)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the next handshake."""
        # The cache of TLS 1.2 sessions cannot be turned off from Python, and holds 20,480 with their certificates.
        if self._context.session_stats()["number"] >= SESSIONS:
            # Without a free descriptor, keep the old context for now.
            with contextlib.suppress(ConfigError):
                self._context = self._build(self._files)
        return self._context

    def reload(self) -> None:
        """Read the files again. Raises ConfigError, and keeps the old context.

        Handshakes in progress and connections are not affected.
        """
        files = self._read()
        self._context = self._build(files)
        self._files = files

    def warnings(self) -> list[str]:
        """Return the faults, present or soon, of the certificates in use; each names key, file and cure.

        Imports `cryptography` (70 ms).
        """
        found = self._about("cert", self._cert, self._files.cert, _server_faults)
        if self._files.client_ca is not None and self._client_ca is not None:
            found += self._about("client_ca", self._client_ca, self._files.client_ca, _faults)
        return found

    # --- the files ----------------------------------------------------------------------------------------------

    def _read(self) -> _Files:
        cert = self._read_file("cert", self._cert)
        if not _CERTIFICATE.search(cert):
            raise self._error(
                "cert", f"{self._cert} holds no certificate in PEM form; `openssl x509 -inform der -in {self._cert}` "
                "converts one from DER"
            )  # fmt: skip
        key = self._read_file("key", self._key, private=True)
        if _ENCRYPTED.search(key):
            # OpenSSL would ask for the password on a terminal, which a daemon does not have.
            raise self._error(
                "key", f"{self._key} is encrypted, and a daemon cannot ask for the password; `umask 077; openssl "
                f"pkey -in {self._key} -out NEW` writes it without one"
            )  # fmt: skip
        if not _KEY.search(key):
            raise self._error("key", f"{self._key} holds no private key in PEM form; give the one made with the cert")
        client_ca = None
        if self._client_ca is not None:
            client_ca = self._read_file("client_ca", self._client_ca)
            if not _CERTIFICATE.search(client_ca):
                raise self._error("client_ca", f"{self._client_ca} holds no certificate in PEM form; give the CA's")
        return _Files(cert, key, client_ca)

    def _read_file(self, key: str, path: Path, *, private: bool = False) -> bytes:
        try:
            # A user who can write into client_ca can become any principal.
            return read_file(path, trusted={os.geteuid()}, most=LARGEST, private=private)[0]
        except ConfigError as error:
            raise self._error(key, str(error)) from None
        except OSError as error:
            cure = "create it (`hearth admin tls init` makes a set for a test bench)"
            if isinstance(error, PermissionError):
                cure = f"let uid {os.geteuid()} read it"
            raise self._error(key, f"cannot read {path}: {error.strerror}; {cure}") from None

    def _error(self, key: str, text: str) -> ConfigError:
        return ConfigError(f"[{self._section}] {key}: {text}")

    # --- the context --------------------------------------------------------------------------------------------

    def _build(self, files: _Files) -> ssl.SSLContext:
        try:
            return self._filled(files)
        except OSError as error:
            cure = "it takes a free descriptor and /proc"
            raise self._error("cert", f"{self._cert} cannot be passed to OpenSSL: {error.strerror}; {cure}") from None

    def _filled(self, files: _Files) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # With renegotiation a peer can make the server compute without end at little cost; compression leaks plaintext.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        # With a ticket a client could resume for hours without its certificate, also after a reload that no longer
        # trusts it. Connections are long here, so tickets would save nothing.
        context.options |= ssl.OP_NO_TICKET
        # Python up to 3.11.3 sets it, and would take a connection that was cut off for one that was closed.
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        context.num_tickets = 0
        try:
            # From memory: the content that was checked is used, and stays the same until the next reload.
            with _as_file(files.cert) as cert, _as_file(files.key) as key:
                context.load_cert_chain(cert, key, password=_no_password)
        except ssl.SSLError as error:
            raise self._unusable(files, error) from None
        if files.client_ca is not None:
            try:
                with _as_file(files.client_ca) as client_ca:
                    context.load_verify_locations(client_ca)
            except ssl.SSLError as error:
                text = f"{self._client_ca} cannot be used: {_words(error)}; get a new copy"
                raise self._error("client_ca", text) from None
            # Every CA in client_ca is trusted, also an intermediate one whose root is missing.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if _CRL in files.client_ca:
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        context.verify_mode = _VERIFY[self._client]
        return context

    def _unusable(self, files: _Files, error: ssl.SSLError) -> ConfigError:
        if error.reason in _MISMATCH:
            return self._error("key", f"{self._key} is not the key of {self._cert}; give two that were made together")
        # Without a reason from OpenSSL one of the files is damaged; find out which one.
        if not error.reason and _is_whole(files.cert):
            return self._error("key", f"{self._key} is damaged: {_words(error)}; give the key made with the cert")
        return self._error("cert", f"{self._cert} cannot be used: {_words(error)}; have a new one made")

    # --- warnings -----------------------------------------------------------------------------------------------

    def _about(
        self, key: str, path: Path, pem: bytes, faults_of: Callable[[Sequence[Certificate]], Iterator[str]]
    ) -> list[str]:
        place = f"[{self._section}] {key}: {path}"
        try:
            return [f"{place}: {text}" for text in faults_of(_parsed(pem))]
        except ValueError as error:
            # OpenSSL accepts it, so it is in use; only its expiry is unknown.
            return [f"{place}: cannot tell how long it is valid: {error}"]


def _server_faults(chain: Sequence[Certificate]) -> Iterator[str]:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

    yield from _faults(chain)
    own = {type(extension.value): extension.value for extension in chain[0].extensions}
    purposes = own.get(x509.ExtendedKeyUsage)
    fit = {Purpose.SERVER_AUTH, Purpose.ANY_EXTENDED_KEY_USAGE}
    if isinstance(purposes, x509.ExtendedKeyUsage) and fit.isdisjoint(purposes):
        yield "it is not for servers, and clients will refuse it; have one made with the usage serverAuth"
    if x509.SubjectAlternativeName not in own:
        yield "it names no host (subjectAltName), and clients will refuse it; have one made with its host names"


def _faults(certificates: Sequence[Certificate]) -> Iterator[str]:
    for certificate in certificates:
        yield from _untimely(certificate)


def _untimely(certificate: Certificate) -> Iterator[str]:
    now = dt.datetime.now(dt.UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    who = certificate.subject.rfc4514_string() or "the certificate"
    if now < start:
        yield f"{who} is not valid before {start:%Y-%m-%d %H:%M} UTC; is this machine's clock right?"
    elif end < now:
        yield f"{who} has expired on {end:%Y-%m-%d}; have it renewed, then send SIGHUP"
    elif end - now < SOON:
        left = (end - now).days
        days = "today" if left == 0 else f"in {left} day{'s' if left > 1 else ''}"
        yield f"{who} expires {days} ({end:%Y-%m-%d}); have it renewed, then send SIGHUP"


def _parsed(pem: bytes) -> list[Certificate]:
    from cryptography import x509

    return x509.load_pem_x509_certificates(pem)


def _is_whole(pem: bytes) -> bool:
    try:
        return bool(_parsed(pem))
    except ValueError:
        return False


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path under which only this process finds `content`: OpenSSL loads a key from a path only."""
    descriptor = os.memfd_create("hearth-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _no_password() -> bytes:
    """Return an empty password: otherwise OpenSSL would ask on the terminal, should an encrypted key go unnoticed."""
    return b""


def _words(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason as text; it gives none for data that it cannot decode."""
    return error.reason.replace("_", " ").lower() if error.reason else "not a whole PEM block"


# --- tls --------------------------------------------------------------------------------------------------------------

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
"""Reasons by X509_V_ERR_* (openssl-verify(1))."""
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
    "NO_SHARED_CIPHER": "it has no cipher in common with the daemon",
    # Python from 3.11.4 on raises SSLEOFError for it.
    "UNEXPECTED_EOF_WHILE_READING": _CUT,
}
"""Reasons by OpenSSL's name."""


@define(eq=False)
class TlsHandshake:
    """Authenticates peers by a client certificate of the CA. Implements `accept.Handshake`; times in seconds."""

    scheme = "tls"

    _certificates: Certificates
    handshake_timeout: float = field(kw_only=True)
    send_timeout: float = field(kw_only=True)

    async def authenticate(self, connected: socket.socket, peer: str, handler: ConnectionHandler) -> None:
        """See Handshake."""
        del peer
        stream = await handshake(connected, self._certificates, self.handshake_timeout, self.send_timeout)
        carrier = TlsCarrier(stream)
        try:
            principal = certificate_of(stream)
            if principal is None:
                raise AuthenticationFailed("no certificate")
            with contextlib.suppress(PeerGone):
                await handler(carrier, principal)
        finally:
            await carrier.aclose()


class TlsCarrier(StreamCarrier):
    """A carrier over TLS, which sends close_notify even if data of the peer is unread."""

    __slots__ = ("_secure",)

    def __init__(self, stream: trio.SSLStream[SocketTransport]) -> None:
        super().__init__(stream)
        self._secure = stream

    async def aclose(self) -> None:
        """See Carrier."""
        # Drop the data that was not read: OpenSSL would reject it after it has written its close_notify, and Trio's
        # stream would take that for a broken connection and drop the close_notify.
        self._secure._incoming.read()
        await super().aclose()


async def handshake(
    connected: socket.socket,
    certificates: Certificates,
    timeout: float,  # noqa: ASYNC109
    send_timeout: float,
) -> trio.SSLStream[SocketTransport]:
    """Do the server's side of a TLS handshake within `timeout` seconds; `send_timeout` bounds the stream's sends.

    Raises AuthenticationFailed, after closing `connected` and sending the alert that TLS has for the cause, if any.
    """
    transport = SocketTransport(connected, send_timeout=send_timeout)
    stream = trio.SSLStream(transport, certificates.context, server_side=True)
    done = False
    try:
        with trio.fail_after(timeout):
            await stream.do_handshake()
        done = True
    except trio.TooSlowError:
        raise AuthenticationFailed(f"timed out: no TLS handshake within {timeout:g} s") from None
    except trio.BrokenResourceError as error:
        _send_alert(connected, stream)
        raise AuthenticationFailed(_why(error)) from None
    finally:
        if not done:
            transport.close()
        _break_cycle(stream)
    return stream


def _break_cycle(stream: trio.SSLStream[SocketTransport]) -> None:
    """Break the stream's reference cycle, so that its memory is freed with the connection.

    Trio's stream holds a bound method of itself for the handshake, which is over. As long as it does, OpenSSL's state
    of a connection (some 30 KiB) stays until a garbage collection: tens of megabytes, if many connections come and go.
    """

    async def done(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    with contextlib.suppress(AttributeError):  # a private attribute of Trio, which another release may not have
        stream._handshook._afn = done


def certificate_of(stream: trio.SSLStream[SocketTransport]) -> Principal | None:
    """Return the principal of the client's verified certificate, or None if there is none.

    Raises AuthenticationFailed.
    """
    try:
        certificate = stream.getpeercert()
        if not certificate:
            return None
        # A TLS 1.2 client that resumes a session is not verified again.
        if ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time():
            raise AuthenticationFailed("its certificate has expired")
        if _is_authority(stream.getpeercert(binary_form=True)):
            raise AuthenticationFailed("its certificate is of the wrong purpose: a CA's")
        return from_certificate(certificate)
    except PermissionDenied as error:
        raise AuthenticationFailed(str((error.data or {}).get("reason", error))) from None
    except ValueError as error:
        # From ssl or from cryptography: the CA has signed a certificate that they cannot read.
        raise AuthenticationFailed(f"its certificate cannot be read: {error}") from None


def _is_authority(der: bytes) -> bool:
    from cryptography import x509

    with contextlib.suppress(x509.ExtensionNotFound):
        return x509.load_der_x509_certificate(der).extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    return False


def _send_alert(connected: socket.socket, stream: trio.SSLStream[SocketTransport]) -> None:
    """Send the TLS alert that names the cause: Trio leaves it in OpenSSL's buffer, and would only close."""
    alert = stream._outgoing.read()
    if alert:
        with contextlib.suppress(OSError):
            connected.send(alert)


def _why(error: trio.BrokenResourceError) -> str:
    """Return the reason of a failed handshake, for the log."""
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
        return f"it refused the daemon with the TLS alert {about.replace('_', ' ').lower()!r}"
    # Without a reason OpenSSL could not decode the data.
    return _REASONS.get(reason, f"the TLS handshake failed: {reason.replace('_', ' ').lower() or 'unreadable'}")


# --- the certificates of a section


def certificates_of(name: str, section: Any) -> Certificates | None:
    """Return the certificates of a section, if it has some. Reads files, binds nothing. Raises ConfigError."""
    if section.listen is None or section.cert is None or section.key is None:
        return None
    client: Client = "required" if name == "tls" else "none" if section.client_ca is None else "optional"
    return Certificates(name, section.cert, section.key, section.client_ca, client=client)


def check(name: str, config: Config, _parts: object) -> Iterator[tuple[str, str]]:
    """Check the certificates of a listener. See Extra."""
    certificates = certificates_of(name, getattr(config, name))
    yield from (("warning", line) for line in ([] if certificates is None else certificates.warnings()))
