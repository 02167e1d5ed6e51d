"""Mutual TLS over TCP: who gets in and as whom, who does not and what each side learns of it."""

from __future__ import annotations

import ssl
import subprocess
import time
from contextlib import closing

import pytest
import trio
import trio.testing
from support.pki import CLIENT, DAY, Bench, certify, name, needs_openssl
from support.tls import TlsServer, echoed, opened
from support.waiting import passes

from hearth.actors.listeners import tls
from hearth.errors import ConfigError


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"))


# --- who gets in ----------------------------------------------------------------------------------------------------


async def test_a_client_with_a_certificate_of_the_ca_is_served_as_its_subject(bench) -> None:
    async with opened(bench) as server:
        async with await server.client() as stream:
            assert await echoed(stream)
        (principal,) = server.principals
    assert principal.kind == "tls"
    assert principal.cert_subject == "CN=bench-client,O=hearth tests"
    assert principal.key == "cert:CN=bench-client,O=hearth tests"
    assert server.rejected == []


async def test_alternative_names_are_part_of_who_it_is(bench) -> None:
    pair = bench.client("named", None, sans=["arm-7.local", "10.0.0.7", "URI:urn:arm-7"])
    async with opened(bench) as server, await server.client(bench.client_context(pair)) as stream:
        assert await echoed(stream)
        (principal,) = server.principals
    assert principal.cert_sans == {"DNS:arm-7.local", "IP:10.0.0.7", "URI:urn:arm-7"}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_of_tls_are_served(bench, version) -> None:
    context = bench.client_context()
    context.minimum_version = context.maximum_version = version
    async with opened(bench) as server, await server.client(context) as stream:
        assert await echoed(stream)
        assert stream.version() == version.name.replace("_", ".")


@pytest.mark.slow
async def test_much_goes_through_whole(bench) -> None:
    data = bytes(range(256)) * 20_000
    async with opened(bench) as server, await server.client() as stream:
        received = bytearray()

        async def read():
            while len(received) < len(data):
                received.extend(await stream.receive_some())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await stream.send_all(data)
    assert received == data


async def test_a_certificate_without_a_purpose_is_good_for_any(bench) -> None:
    pair = bench.client("any-purpose", purposes=())
    async with opened(bench) as server, await server.client(bench.client_context(pair)) as stream:
        assert await echoed(stream)


async def test_a_certificate_without_any_extension_is_no_cas(bench) -> None:
    pair = bench.client("plain", purposes=(), plain=True)
    async with opened(bench) as server, await server.client(bench.client_context(pair)) as stream:
        assert await echoed(stream)


@needs_openssl
async def test_openssls_own_client_gets_in(bench) -> None:
    async with opened(bench) as server:
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-quiet", "-verify_return_error"]
        command += ["-CAfile", bench.ca, "-cert", bench.client_cert, "-key", bench.client_key]
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-3)
        await process.stdin.send_all(b"hello\n")
        assert await process.stdout.receive_some() == b"hello\n"
        await process.stdin.aclose()
        process.kill()
        await process.wait()
        await process.stdout.aclose()


# --- who does not ---------------------------------------------------------------------------------------------------


def bad_clients(bench):
    """Name -> (a client's certificate, or None), what the log says, what the peer learns."""
    unnamed = bench.write("unnamed", *certify(name(None), bench.authority, purposes=(CLIENT,)))
    signing = bench.write("signing", *certify(name("sub"), bench.authority, ca=True, purposes=(CLIENT,)))
    authority, key = bench.authority.cert, bench.authority.key
    return {
        "none": (None, "no certificate", "CERTIFICATE_REQUIRED"),
        "expired": (bench.client("expired", end=-DAY / 2), "its certificate has expired", "CERTIFICATE_EXPIRED"),
        "early": (bench.client("early", start=DAY), "its certificate is not valid yet", "BAD_CERTIFICATE"),
        "other-ca": (bench.client("alien", authority=bench.other_authority), "is of an unknown CA", "ALERT"),
        "own-ca": (bench.write("own", *certify(name("own"), None)), "of an unknown CA", "UNKNOWN_CA"),
        "server": (bench.server("srv"), "wrong purpose: not for TLS clients", "UNSUPPORTED_CERTIFICATE"),
        "ca": (bench.write("the-ca", authority, key), "wrong purpose: not for TLS clients", "ALERT"),
        "sub-ca": (signing, "wrong purpose: not for TLS clients", "ALERT"),
        "unnamed": (unnamed, "empty subject", ""),
    }


BAD = ["none", "expired", "early", "other-ca", "own-ca", "server", "ca", "sub-ca"]


@pytest.fixture(scope="module")
def clients(bench):
    return bad_clients(bench)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_certificate_is_refused_with_a_reason_here_and_an_alert(bench, clients, kind, version) -> None:
    pair, reason, alert = clients[kind]
    context = bench.client_context(pair, anonymous=pair is None)
    context.minimum_version = context.maximum_version = version
    if version is ssl.TLSVersion.TLSv1_2 and kind == "none":
        # TLS 1.2 has no alert of its own for it.
        alert = "HANDSHAKE_FAILURE"
    async with opened(bench) as server:
        error = await server.refusal(context)
        await server.quiet()
        (said,) = server.rejected
        assert reason in said
        assert alert in error.reason
        assert "ALERT" in error.reason
        async with await server.client() as stream:
            assert await echoed(stream)
    assert len(server.principals) == 1


async def test_a_certificate_without_a_name_is_refused(bench, clients) -> None:
    async with opened(bench) as server:
        stream = await server.client(bench.client_context(clients["unnamed"][0]))
        assert await stream.receive_some() == b""
        await server.quiet()
    (said,) = server.rejected
    assert "empty subject" in said
    assert server.principals == []


async def test_a_ca_that_may_also_sign_as_a_client_is_refused(bench) -> None:
    # OpenSSL lets it pass: its key usage permits it.
    pair = bench.write("dual", *certify(name("dual"), bench.authority, ca=True, signs=True))
    async with opened(bench) as server:
        stream = await server.client(bench.client_context(pair))
        assert await stream.receive_some() == b""
        await server.quiet()
    assert server.rejected == ["its certificate is of the wrong purpose: a CA's"]


async def test_a_resumed_session_ends_with_its_certificate(bench, monkeypatch) -> None:
    context = bench.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with opened(bench) as server:
        async with await server.client(context) as first:
            assert await echoed(first)
            session = first.session
        await server.quiet()

        async with await server.client(context, session) as stream:
            assert stream.session_reused
            assert await echoed(stream)
        later = time.time() + 500 * DAY.total_seconds()
        monkeypatch.setattr(tls.time, "time", lambda: later)
        stream = await server.client(context, session)
        assert stream.session_reused
        assert await stream.receive_some() == b""
        await server.quiet()
    assert server.rejected == ["its certificate has expired"]


async def test_a_client_that_does_not_trust_us_is_told_apart(bench) -> None:
    context = ssl.create_default_context(cafile=str(bench.other_authority.path))
    async with opened(bench) as server:
        # Trio's client would send no alert.
        with pytest.raises(ssl.SSLCertVerificationError):
            await trio.to_thread.run_sync(lambda: context.wrap_socket(server.connect(), server_hostname="localhost"))
        await server.quiet()
    assert server.rejected == ["it refused the daemon with the TLS alert 'unknown ca'"]


async def test_where_certificates_are_optional_a_peer_without_one_is_no_principal(bench) -> None:
    async with opened(bench, client="optional") as server:
        stream = await server.client(bench.client_context(anonymous=True))
        assert await stream.receive_some() == b""
        await server.quiet()
    assert server.rejected == ["no certificate"]


async def test_a_certificate_that_cannot_be_read_is_refused(bench, monkeypatch) -> None:
    def odd(_peercert):
        raise ValueError("an oddity")

    monkeypatch.setattr(tls, "from_certificate", odd)
    async with opened(bench) as server:
        stream = await server.client()
        assert await stream.receive_some() == b""
        await server.quiet()
    assert server.rejected == ["its certificate cannot be read: an oddity"]


# --- how it ends ----------------------------------------------------------------------------------------------------


async def test_a_clean_close_and_a_bare_one_both_end_the_connection_and_leave_no_trace(bench) -> None:
    async with opened(bench) as server:
        clean, bare = await server.client(), await server.client()
        assert await echoed(clean)
        assert await echoed(bare)
        await clean.aclose()
        await trio.aclose_forcefully(bare)
        await server.quiet()
    assert server.rejected == []


async def test_what_a_connection_raises_when_its_peer_has_gone_stays_inside(bench) -> None:
    async with opened(bench) as server:
        server.echo = lambda carrier, _principal: carrier.send([b"x" * (16 << 20)])
        stream = await server.client()
        await trio.aclose_forcefully(stream)
        await server.quiet()
    assert server.rejected == []


async def test_when_the_connection_is_over_the_client_reads_its_end(bench) -> None:
    async with opened(bench) as server:

        async def welcome(carrier, _principal):
            await carrier.send([b"bye\n"])

        server.echo = welcome
        stream = await server.client()
        assert await stream.receive_some() == b"bye\n"
        assert await stream.receive_some() == b""
        await trio.aclose_forcefully(stream)


async def test_ending_the_server_closes_handshakes_and_connections(bench) -> None:
    with closing(TlsServer(bench)) as server, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            half, whole = server.connect(), await server.client()
            assert await echoed(whole)
            await passes(lambda: server.open_sockets == 2)
            nursery.cancel_scope.cancel()
        assert half.recv(1) == b""
        with pytest.raises(trio.BrokenResourceError):
            await whole.receive_some()
    assert server.rejected == []


async def test_a_reload_takes_effect_for_the_next_and_keeps_who_is_inside(tmp_path) -> None:
    bench = Bench(tmp_path)
    async with opened(bench) as server, await server.client() as inside:
        assert await echoed(inside)
        other = bench.make_authority("ca", "another CA")
        bench.server("server", authority=other)
        newcomer = bench.client("newcomer", authority=other)
        server.certificates.reload()
        async with await server.client(bench.client_context(newcomer)) as stream:
            assert await echoed(stream)
        error = await server.refusal(bench.client_context())
        assert "ALERT" in error.reason
        assert await echoed(inside)
        bench.server_key.unlink()
        with pytest.raises(ConfigError):
            server.certificates.reload()
        async with await server.client(bench.client_context(newcomer)) as stream:
            assert await echoed(stream)


def test_every_reason_is_in_words() -> None:
    def why(cause):
        error = trio.BrokenResourceError()
        error.__cause__ = cause
        return tls._why(error)

    def ssl_error(reason):
        error = ssl.SSLError(1, "…")
        error.reason = reason
        return error

    assert why(ssl_error("HTTP_REQUEST")) == "not TLS, but plain HTTP"
    assert why(ssl_error("TLSV1_ALERT_UNKNOWN_CA")) == "it refused the daemon with the TLS alert 'unknown ca'"
    assert why(ssl_error("SOME_NEW_THING")) == "the TLS handshake failed: some new thing"
    assert why(ssl_error("UNEXPECTED_EOF_WHILE_READING")) == why(ssl.SSLEOFError())
    assert why(ssl_error(None)) == "the TLS handshake failed: unreadable"
    assert why(ConnectionResetError(104, "reset")) == "[Errno 104] reset"
