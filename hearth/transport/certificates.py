"""Certificates for a test bench, with their CA, and descriptions of certificates in the policy's terms.

This module takes the time as an argument, and reads and writes no files. Keys are ECDSA on P-256.
`hearth.cli.certificate_files` stores the files and sets their modes; the listeners use them.
"""

from __future__ import annotations

import _ssl
import contextlib
import datetime as dt
import ipaddress
import os
import re
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.principal import from_certificate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

AUTHORITY_DAYS: Final = 825
LEAF_DAYS: Final = 397
"""Validity of certificates, in days: LEAF_DAYS is the longest that browsers accept of a server."""
ORGANIZATION: Final = "hearth test bench"

_SKEW = dt.timedelta(hours=1)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_LONGEST_HOST, _LONGEST_COMMON_NAME = 253, 64
_PEM = serialization.Encoding.PEM
_PURPOSES = {ExtendedKeyUsageOID.SERVER_AUTH: "TLS server", ExtendedKeyUsageOID.CLIENT_AUTH: "TLS client"}
_LASTING = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.SubjectAlternativeName)
"""The extensions that a renewed certificate keeps."""


@frozen
class CertificateIdentity:
    """A certificate and its key, each in PEM; the key is not encrypted."""

    cert: bytes
    key: bytes


@frozen
class Description:
    """The content of a certificate. Names have the form of `[[policy]] match`; None if there is no name.

    `purposes` are "CA", "TLS server", "TLS client", the dotted numbers of others, or "any" if none is named.
    """

    subject: str | None
    sans: tuple[str, ...]
    issuer: str | None
    start: dt.datetime
    end: dt.datetime
    purposes: tuple[str, ...]
    key: str
    sha256: str


def new_authority(now: dt.datetime) -> CertificateIdentity:
    """Return a new CA for servers and clients; it cannot certify a further CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("hearth test bench CA")
    extensions = [(x509.BasicConstraints(ca=True, path_length=0), True), (_usage(authority=True), True)]
    return CertificateIdentity(
        _signed(name, name, key.public_key(), key, _from(now, AUTHORITY_DAYS), extensions), _dumped(key)
    )


def check_authority(authority: CertificateIdentity, now: dt.datetime) -> None:
    """Raise ConfigError for a CA that cannot certify: not a pair, not hearth's kind of key, or expired."""
    issuer, _ = _loaded(authority)
    if issuer.not_valid_after_utc <= now:
        raise ConfigError(f"the CA has expired on {issuer.not_valid_after_utc:%Y-%m-%d}; make a new set elsewhere")


def issue_server(
    authority: CertificateIdentity, hosts: Sequence[str], now: dt.datetime, days: int = LEAF_DAYS
) -> CertificateIdentity:
    """Return the identity of a server with these host names and addresses. Raises ConfigError for a bad host."""
    names = x509.SubjectAlternativeName([general_name(host) for host in dict.fromkeys(hosts)])
    more: list[tuple[x509.ExtensionType, bool]] = [(names, False)]
    return _issue(authority, "server", ExtendedKeyUsageOID.SERVER_AUTH, more, now, days)


def issue_client(
    authority: CertificateIdentity, name: str, now: dt.datetime, days: int = LEAF_DAYS
) -> CertificateIdentity:
    """Return the identity of a client with the subject CN=name,O=hearth test bench. Raises ConfigError."""
    if not 0 < len(name) <= _LONGEST_COMMON_NAME:
        raise ConfigError(f"{name!r} is no name for a client: it has from 1 to {_LONGEST_COMMON_NAME} characters")
    return _issue(authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, [], now, days)


def renew(authority: CertificateIdentity, cert: bytes, now: dt.datetime, days: int = LEAF_DAYS) -> bytes:
    """Return the certificate for the same key with a new validity. Raises ConfigError, also for another CA's."""
    issuer, issuer_key = _loaded(authority)
    former = _parsed(cert)[0]
    try:
        former.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        raise ConfigError("this CA did not issue it") from None
    extensions = [(each.value, each.critical) for each in former.extensions if isinstance(each.value, _LASTING)]
    key: Any = former.public_key()
    return _signed(former.subject, issuer.subject, key, issuer_key, _life(issuer, now, days), extensions)


def general_name(host: str) -> x509.GeneralName:
    """Return the name for a host name (its first label may be "*") or an IP address. Raises ConfigError."""
    # An address with a zone ("%eth0") means something on one machine only, so a certificate cannot hold it.
    if "%" not in host:
        with contextlib.suppress(ValueError):
            return x509.IPAddress(ipaddress.ip_address(host))
    try:
        name = host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        name = ""
    labels = name.removeprefix("*.").split(".")
    if len(name) > _LONGEST_HOST or labels[-1].isdigit() or not all(map(_LABEL.match, labels)):
        raise ConfigError(f"{host!r} is neither a host name nor an IP address")
    return x509.DNSName(name)


def describe(pem: bytes) -> list[Description]:
    """Return the certificates in a PEM file, in their order. Raises ConfigError if there is none."""
    return [_described(certificate) for certificate in _parsed(pem)]


# --- making ---------------------------------------------------------------------------------------------------------


def _issue(
    authority: CertificateIdentity,
    name: str,
    purpose: x509.ObjectIdentifier,
    more: Iterable[tuple[x509.ExtensionType, bool]],
    now: dt.datetime,
    days: int,
) -> CertificateIdentity:
    issuer, issuer_key = _loaded(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(authority=False), True),
        (x509.ExtendedKeyUsage([purpose]), False),
        *more,
    ]
    life = _life(issuer, now, days)
    return CertificateIdentity(
        _signed(_name(name), issuer.subject, key.public_key(), issuer_key, life, extensions), _dumped(key)
    )


def _life(issuer: x509.Certificate, now: dt.datetime, days: int) -> tuple[dt.datetime, dt.datetime]:
    """Return start and end, no later than the CA's end: clients differ on a certificate that outlives its CA."""
    start, end = _from(now, days)
    return start, min(end, issuer.not_valid_after_utc)


def _from(now: dt.datetime, days: int) -> tuple[dt.datetime, dt.datetime]:
    """Return start and end of `days` days that began an hour ago: the clocks of a bench may differ."""
    return now - _SKEW, now - _SKEW + dt.timedelta(days=days)


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    life: tuple[dt.datetime, dt.datetime],
    extensions: Iterable[tuple[x509.ExtensionType, bool]],
) -> bytes:
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(life[0])
        .not_valid_after(life[1])
    )
    identifiers = (
        x509.SubjectKeyIdentifier.from_public_key(public),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )
    for value, critical in (*extensions, *((identifier, False) for identifier in identifiers)):
        builder = builder.add_extension(value, critical=critical)
    return builder.sign(signer, hashes.SHA256()).public_bytes(_PEM)


def _name(common: str) -> x509.Name:
    parts = ((NameOID.ORGANIZATION_NAME, ORGANIZATION), (NameOID.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _dumped(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _loaded(authority: CertificateIdentity) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        key = serialization.load_pem_private_key(authority.key, None)
    except (ValueError, TypeError):
        raise ConfigError("the CA's key is not an unencrypted private key in PEM form") from None
    cert = _parsed(authority.cert)[0]
    if not isinstance(key, ec.EllipticCurvePrivateKey) or cert.public_key() != key.public_key():
        raise ConfigError("the CA's key and its certificate do not belong together, or hearth has not made them")
    return cert, key


# --- reading --------------------------------------------------------------------------------------------------------


def _parsed(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError("there is no certificate in PEM form in it") from None


def _described(certificate: x509.Certificate) -> Description:
    decoded = _decoded(certificate.public_bytes(_PEM))
    return Description(
        subject=_names({"subject": decoded.get("subject", ())})[0],
        sans=_names(decoded)[1],
        issuer=_names({"subject": decoded.get("issuer", ())})[0],
        start=certificate.not_valid_before_utc,
        end=certificate.not_valid_after_utc,
        purposes=_purposes(certificate.extensions),
        key=_kind(certificate.public_key()),
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def _names(peercert: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    try:
        principal = from_certificate(peercert)
    except PermissionDenied:
        return None, ()
    return principal.cert_subject, tuple(sorted(principal.cert_sans))


def _decoded(pem: bytes) -> Mapping[str, Any]:
    """Return the certificate in the form of `SSLSocket.getpeercert`.

    It uses the same function: the policy matches names in that form, and another implementation could write a name
    differently. Python offers the function only to its own tests, and only for a path.
    """
    descriptor = os.memfd_create("hearth-certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        decode: Any = vars(_ssl)["_test_decode_cert"]
        decoded: Mapping[str, Any] = decode(f"/proc/self/fd/{descriptor}")
        return decoded


def _purposes(extensions: x509.Extensions) -> tuple[str, ...]:
    values = [extension.value for extension in extensions]
    found: list[str] = []
    if any(isinstance(value, x509.BasicConstraints) and value.ca for value in values):
        found.append("CA")
    for value in values:
        if isinstance(value, x509.ExtendedKeyUsage):
            found += [_PURPOSES.get(oid) or str(oid.dotted_string) for oid in value]
    return tuple(found) or ("any",)


def _kind(key: object) -> str:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"ECDSA {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size}"
    return type(key).__name__.removesuffix("PublicKey").removeprefix("_")
