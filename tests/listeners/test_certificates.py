"""What a listener's certificate files must be like, what is said of those that are not, and what TLS comes of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import ssl
import subprocess
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from support.pki import DAY, Bench, needs_openssl

from hearth._util import files
from hearth.actors.listeners import tls
from hearth.actors.listeners.tls import Certificates
from hearth.errors import ConfigError
from hearth.transport import tls as dial_tls
from hearth.transport.address import TlsAddress


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture
def load(bench):
    """Certificates of the bench's files, or of others."""

    def make(cert=None, key=None, client_ca=None, client="required"):
        paths = (cert or bench.server_cert, key or bench.server_key, client_ca or bench.ca)
        return Certificates("tls", *paths, client=client)

    return make


def shake(server, client):
    """A handshake in memory; returns the server's and the client's SSLObject."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(3):
        for end in (theirs, ours):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours, theirs


# --- which TLS ------------------------------------------------------------------------------------------------------


def test_a_client_that_the_ca_certified_is_known_by_its_certificate(load, bench) -> None:
    ours, _ = shake(load().context, bench.client_context())
    assert (("commonName", "bench-client"),) in ours.getpeercert()["subject"]
    assert ours.version() == "TLSv1.3"


def test_a_client_without_a_certificate_is_refused_where_one_is_required(load, bench) -> None:
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake(load().context, bench.client_context(anonymous=True))


@pytest.mark.parametrize("client", ["optional", "none"])
def test_a_client_without_a_certificate_is_served_where_none_is_required(load, bench, client) -> None:
    ours, _ = shake(load(client=client).context, bench.client_context(anonymous=True))
    assert ours.getpeercert() is None


def test_an_optional_certificate_of_another_ca_is_refused(load, bench) -> None:
    alien = bench.client("alien", authority=bench.other_authority)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(load(client="optional").context, bench.client_context(alien))


def test_where_none_is_asked_for_the_ca_is_not_even_read(bench) -> None:
    Certificates("websocket", bench.server_cert, bench.server_key, bench.folder / "none.pem", client="none")


def test_tls_is_1_2_at_least_without_renegotiation_compression_and_tickets(load) -> None:
    context = load().context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    for option in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION, ssl.OP_NO_TICKET):
        assert context.options & option
    assert context.num_tickets == 0


def test_an_end_without_a_farewell_is_told_from_one_with_it_by_every_python(load, bench, monkeypatch) -> None:
    def as_python_3_11_3(protocol):
        context = ssl.SSLContext(protocol)
        context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
        return context

    for module in (tls, dial_tls):
        monkeypatch.setattr(module, "ssl", SimpleNamespace(**{**vars(ssl), "SSLContext": as_python_3_11_3}))
    for context in (load().context, dial_tls.context_for(TlsAddress("localhost", ca=bench.ca))):
        assert not context.options & ssl.OP_IGNORE_UNEXPECTED_EOF
    # What these Pythons then raise, and what later ones do.
    cut = ssl.SSLError(1, "…")
    cut.reason = "UNEXPECTED_EOF_WHILE_READING"
    here = TlsAddress("localhost")
    lost = "the connection ended without a close message"
    assert dial_tls.connect_failure(cut, here) == dial_tls.connect_failure(ssl.SSLEOFError(), here) == lost


def test_a_tls_1_3_client_gets_nothing_to_come_back_with(load, bench) -> None:
    ours, theirs = shake(load().context, bench.client_context())
    ours.write(b"x")
    assert theirs.read(1) == b"x"
    assert not theirs.session.has_ticket


def test_tls_1_2_sessions_are_remembered_for_few_clients_only(load, bench, monkeypatch) -> None:
    monkeypatch.setattr(tls, "SESSIONS", 5)
    loaded = load()
    client = bench.client_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    contexts = []
    for _ in range(20):
        contexts.append(loaded.context)
        ours, theirs = shake(contexts[-1], client)
        # Only of a connection that was closed in order is the session kept.
        for end in (theirs, ours):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.unwrap()
    assert [context.session_stats()["number"] for context in contexts] == [5] * 20
    assert len(set(contexts)) == 4


def test_without_a_free_descriptor_the_former_context_does(load, monkeypatch) -> None:
    loaded = load()
    monkeypatch.setattr(tls, "SESSIONS", 0)
    monkeypatch.setattr(tls.os, "memfd_create", full)
    context = loaded.context
    assert context is loaded.context
    with pytest.raises(ConfigError, match="cannot be passed to OpenSSL: Too many open files; it takes a free"):
        loaded.reload()


def full(*_args):
    raise OSError(24, "Too many open files")


def test_a_ca_below_the_root_may_be_the_one_that_is_trusted(load, bench) -> None:
    middle = bench.make_authority("middle", "middle CA", issuer=bench.authority)
    client = bench.client("below", authority=middle)
    ours, _ = shake(load(client_ca=middle.path).context, bench.client_context(client))
    assert ours.getpeercert()


def test_a_revocation_list_in_client_ca_is_heeded(load, bench) -> None:
    lost = bench.client("lost")
    serial = x509.load_pem_x509_certificate(lost.cert.read_bytes()).serial_number
    now = dt.datetime.now(dt.UTC)
    revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
    crl = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(bench.authority.cert.subject)
        .last_update(now - DAY)
        .next_update(now + DAY)
        .add_revoked_certificate(revoked)
        .sign(bench.authority.key, hashes.SHA256())
    )
    both = bench.folder / "ca-and-crl.pem"
    both.write_bytes(bench.ca.read_bytes() + crl.public_bytes(serialization.Encoding.PEM))
    context = load(client_ca=both).context
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        shake(context, bench.client_context(lost))
    shake(context, bench.client_context())


# --- files that cannot be used --------------------------------------------------------------------------------------


def refused(load, *words, **paths):
    """Loading raises a ConfigError that says all these words; each file's error names the file."""
    with pytest.raises(ConfigError) as caught:
        load(**paths)
    for word in words:
        assert str(word) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("key", ["cert", "key", "client_ca"])
def test_a_file_that_is_missing_is_named_with_its_key_and_the_cure(load, bench, key) -> None:
    path = bench.folder / "none.pem"
    refused(load, f"[tls] {key}: cannot read {path}: No such file", "hearth admin tls init", **{key: path})


@pytest.mark.parametrize("key", ["cert", "key", "client_ca"])
def test_a_directory_in_place_of_a_file_is_named(load, bench, key) -> None:
    refused(load, f"[tls] {key}: {bench.folder} is not a regular file", **{key: bench.folder})


@pytest.mark.parametrize("key", ["cert", "key", "client_ca"])
def test_a_fifo_does_not_hold_up_the_start(load, bench, key) -> None:
    path = bench.folder / "fifo"
    os.mkfifo(path, 0o600)
    refused(load, f"[tls] {key}: {path} is not a regular file", **{key: path})


@pytest.mark.parametrize("key", ["cert", "key", "client_ca"])
def test_what_is_not_pem_is_named(load, bench, key) -> None:
    path = bench.folder / "der"
    path.write_bytes(ssl.PEM_cert_to_DER_cert(bench.ca.read_text()))
    path.chmod(0o600)
    refused(load, f"[tls] {key}: {path} holds no", "in PEM form", **{key: path})


@pytest.mark.parametrize("key", ["cert", "key", "client_ca"])
def test_a_file_that_is_far_too_large_is_not_read(load, bench, key) -> None:
    path = bench.folder / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)
    refused(load, f"[tls] {key}: {path} has more than {tls.LARGEST} bytes", **{key: path})


@pytest.mark.parametrize("key", ["cert", "key", "client_ca"])
def test_a_damaged_file_is_named(load, bench, key) -> None:
    whole = {"cert": bench.server_cert, "key": bench.server_key, "client_ca": bench.ca}[key]
    first, second, *_, last = whole.read_text().splitlines()
    path = bench.folder / "damaged"
    path.write_text(f"{first}\n{second}\n{last}\n")
    path.chmod(0o600)
    refused(load, f"[tls] {key}: {path}", "not a whole PEM block", **{key: path})


def test_a_file_that_may_not_be_read_is_named(load, bench, monkeypatch) -> None:
    # The tests may run as root, whom no mode stops.
    def denied(path, flags):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(tls.os, "open", denied)
    refused(load, f"[tls] cert: cannot read {bench.server_cert}: Permission denied; let uid {os.geteuid()} read it")


def test_a_key_of_another_certificate_is_named(load, bench) -> None:
    refused(load, f"[tls] key: {bench.client_key} is not the key of {bench.server_cert}", key=bench.client_key)


@pytest.mark.slow
def test_a_key_of_another_kind_is_named(load, bench) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pair = bench.write("other", bench.authority.cert, other)
    refused(load, f"[tls] key: {pair.key} is not the key of", key=pair.key)


@needs_openssl
def test_a_certificate_that_openssl_finds_too_weak_is_named(load, bench) -> None:
    weak = bench.folder / "weak.pem"
    subprocess.run(
        ["openssl", *"req -x509 -newkey rsa:1024 -nodes -subj /CN=x -out weak.pem -keyout weak.key".split()],  # noqa: SIM905
        cwd=bench.folder,
        check=True,
        capture_output=True,
    )
    (bench.folder / "weak.key").chmod(0o600)
    refused(load, f"[tls] cert: {weak} cannot be used: ee key too small", cert=weak, key=bench.folder / "weak.key")


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_an_encrypted_key_is_refused_and_no_password_is_asked_for(load, bench, form) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    password = serialization.BestAvailableEncryption(b"secret")
    path = bench.folder / "encrypted.key"
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, password))
    path.chmod(0o600)
    refused(load, f"[tls] key: {path} is encrypted", f"openssl pkey -in {path} -out NEW", key=path)


def test_an_encrypted_key_in_a_form_that_only_openssl_knows_asks_for_no_password_either(load, bench) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    password = serialization.BestAvailableEncryption(b"secret")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, password)
    path = bench.folder / "encrypted.key"
    path.write_bytes(pem.replace(b"Proc-Type: 4", b"Proc-Type:  4"))
    path.chmod(0o600)
    refused(load, f"[tls] key: {path}", key=path)


def test_the_ca_must_be_named_where_clients_are_to_show_a_certificate(bench) -> None:
    with pytest.raises(ConfigError, match=r"^\[websocket\] client_ca: not set; name the PEM file"):
        Certificates("websocket", bench.server_cert, bench.server_key, None, client="optional")


# --- whose files they are -------------------------------------------------------------------------------------------


@pytest.fixture
def as_uid(monkeypatch):
    """What `os.fstat` says of the owner, and who we are."""

    def pretend(owner, ours):
        real = os.fstat

        def fstat(descriptor):
            status = list(real(descriptor))
            status[4] = owner
            return os.stat_result(status)

        monkeypatch.setattr(tls.os, "fstat", fstat)
        monkeypatch.setattr(tls.os, "geteuid", lambda: ours)
        # The directories on the way are really those of whoever runs the tests.
        monkeypatch.setattr(files, "_file_fault", lambda *_args: None)

    return pretend


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o610, 0o602])
def test_a_key_of_ours_that_others_can_use_is_refused(load, bench, as_uid, mode) -> None:
    as_uid(1000, 1000)
    bench.server_key.chmod(mode)
    refused(load, f"[tls] key: {bench.server_key} lets others use the key (mode {mode:04o}); `chmod 600 ")


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_that_its_owner_alone_can_use_is_taken(load, bench, as_uid, mode) -> None:
    as_uid(1000, 1000)
    bench.server_key.chmod(mode)
    load()


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_key_of_roots_may_be_readable_by_its_group(load, bench, as_uid, mode) -> None:
    as_uid(0, 1000)
    bench.server_key.chmod(mode)
    load()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o650, 0o604])
def test_a_key_of_roots_that_everybody_can_use_is_refused(load, bench, as_uid, mode) -> None:
    as_uid(0, 1000)
    bench.server_key.chmod(mode)
    refused(load, f"[tls] key: {bench.server_key} lets others use the key (mode {mode:04o}); `chmod 640 ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_key_is_refused(load, bench) -> None:
    os.chown(bench.server_key, 4_000_001, -1)
    cure = f"`chown root {bench.server_key}`"
    refused(load, f"[tls] key: {bench.server_key} belongs to uid 4000001, who could change it; {cure}")


@pytest.mark.parametrize("key", ["cert", "client_ca"])
def test_a_certificate_that_everybody_can_change_is_refused(load, bench, key) -> None:
    path = {"cert": bench.server_cert, "client_ca": bench.ca}[key]
    path.chmod(0o666)
    refused(load, f"[tls] {key}: {path} is writable by every user; `chmod o-w {path}`")


# --- reloading ------------------------------------------------------------------------------------------------------


def test_a_reload_serves_the_new_certificate_to_the_next_client(load, bench) -> None:
    loaded = load()
    ours, theirs = shake(loaded.context, bench.client_context())
    before = theirs.getpeercert(binary_form=True)
    bench.server("server")
    loaded.reload()
    _, later = shake(loaded.context, bench.client_context())
    assert later.getpeercert(binary_form=True) != before
    ours.write(b"still here")
    assert theirs.read() == b"still here"


def test_a_reload_that_fails_keeps_what_was(load, bench) -> None:
    loaded = load()
    context = loaded.context
    bench.server_cert.write_bytes(bench.client_cert.read_bytes())
    with pytest.raises(ConfigError, match="is not the key of"):
        loaded.reload()
    bench.server_cert.write_text("nothing")
    with pytest.raises(ConfigError, match="no certificate in PEM form"):
        loaded.reload()
    assert loaded.context is context
    shake(context, bench.client_context())


def test_what_is_on_disk_counts_at_a_reload_only(load, bench, monkeypatch) -> None:
    monkeypatch.setattr(tls, "SESSIONS", 0)
    loaded = load()
    former = bench.client_context()
    for path in (bench.server_cert, bench.server_key, bench.ca):
        path.unlink()
    shake(loaded.context, former)


def test_no_descriptor_is_left_open(load, bench) -> None:
    before = len(os.listdir("/proc/self/fd"))
    loaded = load()
    bench.server_key.chmod(0o604)
    for _ in range(5):
        with pytest.raises(ConfigError):
            loaded.reload()
    assert len(os.listdir("/proc/self/fd")) == before


# --- what the operator is told --------------------------------------------------------------------------------------


def test_good_certificates_cause_no_warning(load, bench) -> None:
    bench.server("server", end=31 * DAY)
    assert load(client_ca=bench.make_authority("long", end=31 * DAY).path).warnings() == []


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (-DAY, 12.5 * DAY, r"expires in 12 days \(20..-..-..\); have it renewed, then send SIGHUP"),
        (-DAY, 1.5 * DAY, r"expires in 1 day \("),
        (-DAY, 0.5 * DAY, r"expires today \("),
        (-9 * DAY, -DAY, r"has expired on 20..-..-..; have it renewed"),
        (DAY, 40 * DAY, r"is not valid before 20..-..-.. ..:.. UTC; is this machine's clock right\?"),
    ],
)
def test_a_certificate_that_is_not_valid_for_long_is_used_and_told_of(load, bench, start, end, words) -> None:
    server = bench.server("short", start=start, end=end)
    ca = bench.make_authority("short-ca", "short CA", start=start, end=end)
    of_server, of_ca = load(*server, client_ca=ca.path).warnings()
    assert re.search(rf"^\[tls\] cert: {server.cert}: CN=localhost {words}", of_server)
    assert re.search(rf"^\[tls\] client_ca: {ca.path}: CN=short CA,O=hearth tests {words}", of_ca)


def test_a_servers_certificate_that_clients_will_refuse_is_told_of(load, bench) -> None:
    usage, host = load(*bench.client("client", end=40 * DAY)).warnings()[:2]
    assert "it is not for servers, and clients will refuse it" in usage
    assert "it names no host (subjectAltName), and clients will refuse it" in host


def test_a_servers_certificate_without_a_purpose_is_good_for_any(load, bench) -> None:
    pair = bench.client("any", purposes=(), sans=["localhost"], end=40 * DAY)
    ca = bench.make_authority("long", end=40 * DAY)
    assert load(*pair, client_ca=ca.path).warnings() == []


def test_without_client_certificates_the_ca_is_not_told_of(load, bench) -> None:
    ca = bench.make_authority("old", end=-0.5 * DAY)
    bench.server("server", end=31 * DAY)
    assert load(client_ca=ca.path, client="none").warnings() == []


def test_a_certificate_whose_dates_cannot_be_read_is_used_and_told_of(load, bench, monkeypatch) -> None:
    loaded = load()

    def unreadable(_pem):
        raise ValueError("an oddity")

    monkeypatch.setattr(tls, "_parsed", unreadable)
    assert "cannot tell how long it is valid: an oddity" in loaded.warnings()[0]
