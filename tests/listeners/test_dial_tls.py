"""tls:// against real TLS servers: who is let in, and what is told when somebody is not, on either side."""

from __future__ import annotations

import json
import ssl
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import trio
import trustme

import hearth
from hearth import CarrierError, ConfigError
from hearth.transport import open_stream, tls
from hearth.transport.address import parse

PATIENCE = 60
OPENED = {"session_id": "S1", "capabilities": [], "protocol_version": "0.1.0"}


@pytest.fixture
async def bounded():
    with trio.fail_after(PATIENCE):
        yield


async def serve(stream):
    """Answer every request with the same."""
    rest = b""
    try:
        async with stream:
            if isinstance(stream, trio.SSLStream):
                await shake_hands(stream)
            while data := await stream.receive_some():
                *lines, rest = (rest + data).split(b"\n")
                for line in filter(None, lines):
                    answer = {"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": OPENED}
                    await stream.send_all(json.dumps(answer).encode() + b"\n")
    except trio.BrokenResourceError:
        return


async def shake_hands(stream):
    """As hearthd does it: Trio by itself keeps the alert that says why."""
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError:
        if alert := stream._outgoing.read():
            await stream.transport_stream.send_all(alert)
        raise


@asynccontextmanager
async def listening(handler, context=None):
    """A server of one's own; gives its port."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    if context is not None:
        listener = trio.SSLListener(listener, context)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, handler, [listener], handler_nursery=nursery))
        yield port
        nursery.cancel_scope.cancel()


class Certificates:
    """A CA with a server and a client, and another CA; as files, too."""

    def __init__(self, folder):
        self.folder = folder
        self.ca, self.other = trustme.CA(), trustme.CA()
        self.server = self.ca.issue_cert("localhost", "127.0.0.1")
        self.client = self.ca.issue_cert("arm-7.local")
        self.ca.cert_pem.write_to_path(folder / "ca.pem")
        self.other.cert_pem.write_to_path(folder / "other-ca.pem")
        self.write("client", self.client)
        self.write("other", self.other.issue_cert("arm-8.local"))

    def write(self, name, cert):
        cert.cert_chain_pems[0].write_to_path(self.folder / f"{name}.pem")
        cert.private_key_pem.write_to_path(self.folder / f"{name}.key")
        (self.folder / f"{name}.key").chmod(0o600)

    def context(self, cert=None, *, client="required", **versions):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (cert or self.server).configure_cert(context)
        if client == "required":
            context.verify_mode = ssl.CERT_REQUIRED
            self.ca.configure_trust(context)
        for name, version in versions.items():
            setattr(context, name, version)
        return context

    def address(self, port, *, host="127.0.0.1", ca="ca.pem", client="client"):
        parameters = [f"ca={self.folder}/{ca}"] if ca else []
        parameters += [f"cert={self.folder}/{client}.pem", f"key={self.folder}/{client}.key"] if client else []
        return f"tls://{host}:{port}?{'&'.join(parameters)}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def told(*words, kind=CarrierError):
    """An error that says all of this."""
    with pytest.raises(kind) as caught:
        yield caught
    for word in words:
        assert word in str(caught.value)


async def use(address):
    async with hearth.connect(address) as client, client.open_session() as session:
        return session.session_id


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.usefixtures("bounded")
async def test_with_the_right_certificates_on_both_sides_a_session_is_opened(certificates, version) -> None:
    async with listening(serve, certificates.context(maximum_version=version)) as port:
        assert await use(certificates.address(port)) == "S1"
        assert await use(certificates.address(port, host="localhost")) == "S1"


@pytest.mark.usefixtures("bounded")
async def test_the_connection_is_closed_with_a_farewell(certificates) -> None:
    ended = trio.Event()

    async def until_farewell(stream):
        while await stream.receive_some():
            pass  # without a farewell, this would raise
        ended.set()

    async with listening(until_farewell, certificates.context()) as port:
        async with open_stream(parse(certificates.address(port))) as stream:
            await stream.wait_send_all_might_not_block()
            await stream.send_all(b"{}\n")
        await ended.wait()


# --- their certificate ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bounded")
async def test_a_certificate_of_another_ca_is_refused_and_the_cure_is_ca(certificates) -> None:
    async with listening(serve, certificates.context()) as port:
        with told(f"tls://127.0.0.1:{port}", "not signed by the CA in", "other-ca.pem", "?ca=FILE"):
            await use(certificates.address(port, ca="other-ca.pem"))
        with told("not signed by the system's CAs", "?ca=FILE"):
            await use(certificates.address(port, ca=None))


@pytest.mark.usefixtures("bounded")
async def test_a_certificate_for_another_name_is_refused(certificates) -> None:
    other = certificates.context(certificates.ca.issue_cert("leg.local"))
    async with listening(serve, other) as port:
        for host in ("localhost", "127.0.0.1"):
            with told(f"its certificate is not for {host}", "write the name it has"):
                await use(certificates.address(port, host=host))


@pytest.mark.parametrize(
    ("days", "words"), [(-1, "has expired; renew it, or set the clock"), (+1, "is not valid yet; renew it, or set")]
)
@pytest.mark.usefixtures("bounded")
async def test_a_certificate_whose_time_is_over_or_has_not_come_is_refused(certificates, days, words) -> None:
    middle = datetime.now(UTC) + timedelta(days=days)
    hours = timedelta(hours=1)
    past = certificates.ca.issue_cert("127.0.0.1", not_before=middle - hours, not_after=middle + hours)
    async with listening(serve, certificates.context(past)) as port:
        with told(words):
            await use(certificates.address(port))


@pytest.mark.usefixtures("bounded")
async def test_a_server_with_an_old_tls_is_refused(certificates) -> None:
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old = certificates.context(minimum_version=ssl.TLSVersion.TLSv1_1, maximum_version=ssl.TLSVersion.TLSv1_1)
    old.set_ciphers("ALL:@SECLEVEL=0")
    async with listening(serve, old) as port:
        with told(f"tls://127.0.0.1:{port}"):
            await use(certificates.address(port))


# --- our certificate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.usefixtures("bounded")
async def test_a_server_that_refuses_our_certificate_is_told_with_the_cure(certificates, version) -> None:
    async with listening(serve, certificates.context(maximum_version=version)) as port:
        with told("it does not know the CA that signed our certificate", "other.pem", "client_ca"):
            await use(certificates.address(port, client="other"))
        with told("certificate", "?cert=FILE&key=FILE"):
            await use(certificates.address(port, client=None))


@pytest.mark.usefixtures("bounded")
async def test_every_call_of_a_refused_connection_is_told_why(certificates) -> None:
    async with (
        listening(serve, certificates.context(maximum_version=ssl.TLSVersion.TLSv1_3)) as port,
        open_stream(parse(certificates.address(port, client="other"))) as stream,
    ):
        for _ in range(2):
            with pytest.raises(trio.BrokenResourceError, match="client_ca"):
                await stream.receive_some(100)
        with pytest.raises(trio.BrokenResourceError, match="client_ca"):
            await stream.send_all(b"x")


@pytest.mark.slow
@pytest.mark.usefixtures("bounded")
async def test_files_that_cannot_be_used_are_a_config_error_with_the_cure(certificates, tmp_path) -> None:
    folder = certificates.folder
    open_key = tmp_path / "open.key"
    open_key.write_bytes((folder / "client.key").read_bytes())
    open_key.chmod(0o644)
    (tmp_path / "words.pem").write_text("no certificate\n")
    (tmp_path / "words.key").write_text("no key\n")
    (tmp_path / "words.key").chmod(0o600)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(ENCRYPTED)
    encrypted.chmod(0o600)
    for query, words in {
        f"ca={tmp_path}/none.pem": "none.pem: No such file or directory",
        f"ca={tmp_path}": "is not a file",
        f"ca={tmp_path}/words.pem": "words.pem holds no certificate in PEM form",
        f"cert={folder}/client.pem&key={open_key}": f"mode 0644); chmod 600 {open_key}",
        f"cert={folder}/other.pem&key={folder}/client.key": "is not the key of the certificate",
        f"cert={tmp_path}/words.pem&key={tmp_path}/words.key": "not a certificate and its key in PEM form",
        f"cert={folder}/client.pem&key={encrypted}": "is encrypted; `openssl pkey",
        "ca=~nobody-has-this-name/ca.pem": "write the whole path",
    }.items():
        with told(words, kind=ConfigError):
            await use(f"tls://127.0.0.1:1?{query}")


ENCRYPTED = b"""-----BEGIN ENCRYPTED PRIVATE KEY-----
MIH0MF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAkBBCpKp0vGdF43WtInokW
QGhRAgIIADAMBggqhkiG9w0CCQUAMB0GCWCGSAFlAwQBKgQQTPPmNpYt3loxL1Wh
V4Z2rASBkIHQB5PajrYCP3mlTnU4PyGVp+RANfEYsrhqN/Rs6BSniSjp9d1VmhZS
tOGpxCNR7gBMJ/MhPk/CfZIqMhRD+QQp1CI2w8e/ZMFf2lsEEL9bm8S0iqfII1jl
Voq/9h7wb1hbk4gJGYt83gcgD4oDFrSktRMmYvWJM2MQpmt2gMXTyuBt4+yvMkJO
BJatmE4BVQ==
-----END ENCRYPTED PRIVATE KEY-----
"""


# --- no TLS at all --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bounded")
async def test_no_server_listening_is_reported(certificates) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with told("cannot connect to", "no process listens on that port", "[tls] listen"):
        await use(certificates.address(port))


@pytest.mark.usefixtures("bounded")
async def test_an_unknown_name_is_reported(certificates) -> None:
    with told("there is no host nobody.invalid", "IP address"):
        await use(certificates.address(7117, host="nobody.invalid"))


@pytest.mark.usefixtures("bounded")
async def test_a_server_that_speaks_something_else_is_told(certificates) -> None:
    async def greet(stream):
        await stream.send_all(b"220 mail.example ESMTP\r\n")
        await stream.receive_some()

    async with listening(greet) as port:
        with told("does not speak TLS", "the right port"):
            await use(certificates.address(port))


@pytest.mark.usefixtures("bounded")
async def test_a_server_that_hangs_up_in_the_handshake_is_told(certificates) -> None:
    async def hang_up(stream):
        await stream.receive_some()
        await stream.aclose()

    async with listening(hang_up) as port:
        with told("the connection ended without a close message"):
            await use(certificates.address(port))


@pytest.mark.slow
@pytest.mark.usefixtures("bounded")
async def test_a_server_that_says_nothing_is_waited_for_only_so_long(certificates, monkeypatch) -> None:
    monkeypatch.setattr(tls, "DEADLINE", 0.2)

    async def silent(_stream):
        await trio.sleep_forever()

    async with listening(silent) as port:
        with told(f"no connection to tls://127.0.0.1:{port} within 0.2 s", "firewall"):
            await use(certificates.address(port))


@pytest.mark.usefixtures("bounded")
async def test_a_server_that_is_gone_in_the_middle_is_told(certificates) -> None:
    async def vanish(stream):
        await stream.receive_some()
        await trio.aclose_forcefully(stream.transport_stream)

    async with listening(vanish, certificates.context()) as port:
        with told("connection lost", "without a close message"):
            await use(certificates.address(port))


@pytest.mark.slow
@pytest.mark.usefixtures("bounded")
async def test_a_peer_that_reads_nothing_does_not_keep_us_from_closing(certificates, monkeypatch) -> None:
    monkeypatch.setattr(tls, "CLOSE_TIMEOUT_S", 0.1)

    async def deaf(stream):
        await stream.do_handshake()
        await trio.sleep_forever()

    async with (
        listening(deaf, certificates.context()) as port,
        open_stream(parse(certificates.address(port))) as stream,
    ):
        with trio.move_on_after(0.3) as patience:
            await stream.send_all(b"x" * (1 << 26))
        assert patience.cancelled_caught


@pytest.mark.slow
@pytest.mark.usefixtures("bounded")
async def test_cancelling_while_it_connects_closes_everything(certificates) -> None:
    """An open socket that nobody holds would be a ResourceWarning, which is an error here."""
    async with listening(serve, certificates.context()) as port:
        for turns in range(0, 60, 3):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def cancel_soon(scope=scope, turns=turns):
                        for _ in range(turns):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel_soon)
                    await use(certificates.address(port))


# --- what is told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "has expired, by its clock"),
        ("SSLV3_ALERT_CERTIFICATE_REVOKED", "is revoked"),
        ("SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "is not for clients"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "it does not take our certificate (me.pem)"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "1.2 is the oldest"),
        ("SOMETHING_ELSE", "TLS failed: something else"),
    ],
)
def test_what_openssl_says_is_told_in_words(reason, words) -> None:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    assert words in tls.connect_failure(error, parse("tls://arm?cert=me.pem&key=me.key"))


def test_a_certificate_that_is_refused_for_another_reason_is_told_in_openssls_words() -> None:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_code, error.verify_message = 24, "invalid CA certificate"
    assert "not accepted: invalid CA certificate" in tls.connect_failure(error, parse("tls://arm"))
    error.verify_code = 26
    assert "serverAuth" in tls.connect_failure(error, parse("tls://arm"))
