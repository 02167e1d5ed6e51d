"""Certificates for tests: a bench's CA with good ones, and every bad one that somebody might come with.

`Bench(folder)` writes what it gives out into that folder, keys with mode 0600. It shares no code with `hearth admin tls
init`, so that each can find the other wrong.
"""

from __future__ import annotations

import datetime as dt
import functools
import ipaddress
import os
import shutil
import ssl
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAY = dt.timedelta(days=1)
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
SERVER, CLIENT = Purpose.SERVER_AUTH, Purpose.CLIENT_AUTH


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority(NamedTuple):
    """Who signs certificates."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    path: Path


def name(common: str | None, organization: str | None = None) -> x509.Name:
    """CN=common,O=organization, as RFC 4514 writes it; what is None is left out."""
    parts = ((NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts if value is not None])


def general_name(san: str) -> x509.GeneralName:
    """A SAN: "URI:…", "email:…", an IP address, or else a DNS name."""
    kind, _, rest = san.partition(":")
    if kind in ("URI", "email"):
        return x509.UniformResourceIdentifier(rest) if kind == "URI" else x509.RFC822Name(rest)
    try:
        return x509.IPAddress(ipaddress.ip_address(san))
    except ValueError:
        return x509.DNSName(san)


def certify(
    subject: x509.Name,
    issuer: Authority | None,
    *,
    ca: bool = False,
    signs: bool | None = None,
    plain: bool = False,
    purposes: Sequence[x509.ObjectIdentifier] = (),
    sans: Sequence[str] = (),
    start: dt.timedelta = -DAY,
    end: dt.timedelta = 400 * DAY,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate (self-signed where there is no issuer) that is valid from now + start to now + end.

    `signs` is the key usage digitalSignature, which is not a CA's business; `plain` leaves out all extensions that
    need not be there.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    signs = not ca if signs is None else signs
    signer = key if issuer is None else issuer.key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.cert.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start)
        .not_valid_after(now + end)
    )
    if not plain:
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .add_extension(x509.KeyUsage(*(signs, False, False, False, False, ca, ca, False, False)), critical=True)
        )
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if sans:
        builder = builder.add_extension(x509.SubjectAlternativeName(map(general_name, sans)), critical=False)
    return builder.sign(signer, hashes.SHA256()), key


class Bench:
    """A CA, a server it certified for localhost, 127.0.0.1 and ::1, and a client: CN=bench-client,O=hearth tests.

    Attributes, all paths: `ca`, `server_cert`, `server_key`, `client_cert`, `client_key`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = self.make_authority("ca")
        self.ca = self.authority.path
        self.server_cert, self.server_key = self.server("server")
        self.client_cert, self.client_key = self.client("bench-client")

    @functools.cached_property
    def other_authority(self) -> Authority:
        """A CA that has the same name as the bench's, and is another."""
        return self.make_authority("other-ca")

    def make_authority(self, file: str, common: str = "bench CA", issuer: Authority | None = None, **more) -> Authority:
        """A CA, as FILE.pem; self-signed where there is no issuer."""
        cert, key = certify(name(common, "hearth tests"), issuer, ca=True, **more)
        path = self.folder / f"{file}.pem"
        path.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        return Authority(cert, key, path)

    def server(self, file: str, *sans: str, authority: Authority | None = None, **more) -> Pair:
        """A server's certificate; `more` goes to `certify`."""
        sans = sans or ("localhost", "127.0.0.1", "::1")
        return self.write(
            file, *certify(name(sans[0]), authority or self.authority, purposes=(SERVER,), sans=sans, **more)
        )

    def client(self, common: str, organization: str | None = "hearth tests", authority=None, **more) -> Pair:
        """The certificate of a client, CN=common,O=organization, as COMMON.pem; `more` goes to `certify`."""
        more.setdefault("purposes", (CLIENT,))
        return self.write(common, *certify(name(common, organization), authority or self.authority, **more))

    def write(self, file: str, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
        """FILE.pem and FILE.key, the latter with mode 0600 from the start; what was there is replaced."""
        pair = Pair(self.folder / f"{file}.pem", self.folder / f"{file}.key")
        pair.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pair.key.unlink(missing_ok=True)
        with open(os.open(pair.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file_object:
            file_object.write(pem)
        return pair

    def client_context(self, pair: Pair | None = None, *, anonymous: bool = False) -> ssl.SSLContext:
        """What a client needs to speak to the bench's server: as the bench's client, as `pair`, or as nobody."""
        context = ssl.create_default_context(cafile=str(self.ca))
        # Pythons up to 3.11.3 set it: a connection that was cut would look as if it had been closed.
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        if not anonymous:
            cert, key = pair or (self.client_cert, self.client_key)
            context.load_cert_chain(cert, key)
        return context

    def server_context(self, *, client_ca: Path | None = None) -> ssl.SSLContext:
        """What a plain TLS server with the bench's certificate needs; with `client_ca` it demands a client's."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        context.load_cert_chain(self.server_cert, self.server_key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
