"""Peers of the TLS listener that mean harm, or nothing at all: it stays open for the others and loses no descriptor."""

from __future__ import annotations

import contextlib
import gc
import random
import re
import socket
import ssl
import struct
import subprocess
import warnings

import pytest
import trio
from support.pki import Bench, needs_openssl
from support.tls import descriptors, echoed, opened
from support.waiting import passes

from hearth.actors.transport import PeerGone
from hearth.transport.sockets import SocketTransport

pytestmark = pytest.mark.slow

TIMED_OUT = "timed out: no TLS handshake within 0.4 s"
MIDWAY = "closed before the TLS handshake was done"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def besieged(bench):
    """`async with besieged(…) as server`: somebody is inside before, during and after, and a newcomer gets in after."""

    @contextlib.asynccontextmanager
    async def make(**options):
        gc.collect()  # what earlier tests left open is closed now, not while this one counts
        before = descriptors()
        async with opened(bench, **options) as server:
            async with await server.client() as inside:
                assert await echoed(inside)
                yield server
                assert await echoed(inside)
                async with await server.client() as newcomer:
                    assert await echoed(newcomer)
            await server.quiet()
            server.close()
        await passes(lambda: descriptors() <= before)

    return make


def client_hello(context=None):
    """The first bytes that a client sends."""
    to_server = ssl.MemoryBIO()
    client = (context or ssl.create_default_context()).wrap_bio(ssl.MemoryBIO(), to_server, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return to_server.read()


async def closed(peer):
    """What a plain socket reads until the server has closed it; a reset is a close too."""

    def read():
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := peer.recv(65536):
                received += piece
        return received

    return await trio.to_thread.run_sync(read)


# --- those who never finish -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_who_connects_and_says_nothing_is_closed_at_the_deadline(besieged) -> None:
    async with besieged(handshake_timeout=0.4) as server:
        silent = [server.connect() for _ in range(50)]
        await passes(lambda: len(server.rejected) == len(silent))
        assert set(server.rejected) == {TIMED_OUT}
        for peer in silent:
            assert await closed(peer) == b""


@pytest.mark.slow
async def test_who_stops_in_the_middle_is_closed_at_the_deadline(besieged) -> None:
    hello = client_hello()
    async with besieged(handshake_timeout=0.4) as server:
        peers = [server.connect() for _ in range(3)]
        for peer, said in zip(peers, (hello[:3], hello[: len(hello) // 2], hello), strict=True):
            peer.sendall(said)
        await passes(lambda: len(server.rejected) == len(peers))
        assert set(server.rejected) == {TIMED_OUT}
        # The third has our half of the handshake, and then the end.
        assert [bool(await closed(peer)) for peer in peers] == [False, False, True]


@pytest.mark.slow
async def test_bytes_that_drip_in_do_not_move_the_deadline(besieged) -> None:
    hello = client_hello()
    async with besieged(handshake_timeout=0.4) as server:
        peer = await trio.open_tcp_stream("127.0.0.1", server.port)
        sent = 0
        async with peer:
            with contextlib.suppress(trio.BrokenResourceError):
                for byte in hello:
                    await peer.send_all(bytes([byte]))
                    sent += 1
                    await trio.sleep(0.01)
        await passes(lambda: server.rejected)
        assert server.rejected == [TIMED_OUT]
        assert 10 < sent < len(hello)


@pytest.mark.slow
async def test_who_leaves_in_the_middle_is_gone_at_once(besieged) -> None:
    hello = client_hello()
    async with besieged() as server:
        for said in (b"", hello[:3], hello[: len(hello) // 2], hello):
            peer = server.connect()
            peer.sendall(said)
            peer.close()
        await passes(lambda: len(server.rejected) == 4)
        assert set(server.rejected) <= {MIDWAY, "connection lost while receiving: [Errno 104] Connection reset by peer"}


async def test_who_resets_in_the_middle_is_gone_at_once(besieged) -> None:
    async with besieged() as server:
        peer = server.connect()
        await passes(lambda: server.open_sockets == 2)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await passes(lambda: server.rejected)
        (said,) = server.rejected
        assert said.startswith("connection lost while receiving")


def damaged(chance, data):
    """`data` as a bad line or a bad mind delivers it."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        how = chance.randrange(4)
        if how == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            data[at] = chance.choice((0, 1, 127, 128, 255))
        elif how == 2:
            del data[at : at + chance.randint(1, 8)]
        else:
            data[at:at] = data[at : at + chance.randint(1, 40)]
        if not data:
            return b"x"
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_damaged_handshake_authenticates_no_peer(besieged, bench, version) -> None:
    context = bench.client_context()
    context.minimum_version = context.maximum_version = version
    chance = random.Random(7)
    async with besieged(handshake_timeout=5) as server:
        for turn in range(60):
            stream = await trio.open_tcp_stream("127.0.0.1", server.port)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            async with stream:
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                hello = outgoing.read()
                await stream.send_all(damaged(chance, hello) if turn % 2 else hello)
                if turn % 2 == 0:
                    # The flight in which the client shows its certificate.
                    while not outgoing.pending:
                        incoming.write(await stream.receive_some())
                        with contextlib.suppress(ssl.SSLWantReadError):
                            client.do_handshake()
                    await stream.send_all(damaged(chance, outgoing.read()))
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.send_eof()
            await passes(lambda: server.open_sockets == 1)
        # Now and then only a byte beyond what counts is hit, and the client gets in.
        assert len(server.rejected) >= 55
        assert len(server.rejected) + len(server.principals) == 61


# --- those who speak something else ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not TLS, but plain HTTP"),
        (b"CONNECT x:443 HTTP/1.1\r\n\r\n", "not TLS, but plain HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not TLS"),
        (b'{"jsonrpc":"2.0","id":1,"method":"session.open"}\n', "not TLS"),
        (b"\x00" * 100, "not TLS"),
        (b"\xff" * 100, "not TLS"),
        (bytes(range(256)) * 300, "not TLS"),
    ],
    ids=["http", "proxy", "ssh", "hacp", "zeros", "ones", "much"],
)
async def test_what_is_not_tls_is_refused_with_an_alert_or_a_close(besieged, said, reason) -> None:
    async with besieged() as server:
        peer = server.connect()
        peer.sendall(said)
        answer = await closed(peer)
        # An alert record (21), or nothing.
        assert answer == b"" or (answer[0] == 21 and len(answer) < 20)
        await passes(lambda: server.rejected)
        assert server.rejected == [reason]


async def test_a_hello_that_never_ends_is_cut_short(besieged) -> None:
    # A handshake message that says it has 16 MiB, in records as long as there are.
    record = struct.pack(">BHH", 22, 0x0301, 16384)
    first = record + b"\x01\xff\xff\xff\x03\x03" + b"x" * 16378
    async with besieged() as server:
        peer = await trio.open_tcp_stream("127.0.0.1", server.port)
        sent = 0
        async with peer:
            with contextlib.suppress(trio.BrokenResourceError):
                await peer.send_all(first)
                for _ in range(1000):
                    await peer.send_all(record + b"x" * 16384)
                    sent += 1
        assert sent < 1000
        await passes(lambda: server.rejected)
        (said,) = server.rejected
        assert said.startswith("the TLS handshake failed: excessive message size")


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
async def test_tls_before_1_2_is_refused(besieged, version) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion[version]
    async with besieged() as server:
        peer = server.connect()
        peer.sendall(client_hello(context))
        # A fatal alert: protocol_version (70).
        assert (await closed(peer))[5:7] == b"\x02\x46"
        await passes(lambda: server.rejected)
        assert server.rejected == ["it speaks no TLS as new as 1.2"]


async def test_who_has_no_cipher_in_common_is_refused(besieged) -> None:
    context = ssl.create_default_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    # The server's key is no RSA key.
    context.set_ciphers("ECDHE-RSA-AES256-GCM-SHA384")
    async with besieged() as server:
        peer = server.connect()
        peer.sendall(client_hello(context))
        assert (await closed(peer))[5:7] == b"\x02\x28"
        await passes(lambda: server.rejected)
        assert server.rejected == ["it has no cipher in common with the daemon"]


# --- those who got in -----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def s_client(bench, server, *options):
    """OpenSSL's client with its interactive commands: "R" renegotiates, "K" changes keys."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-CAfile", bench.ca, *options]
    command += ["-cert", bench.client_cert, "-key", bench.client_key]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        async with process.stdin, process.stdout:
            yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def until_said(process, words):
    """Read what the program says until it has said this."""
    said = b""
    while not re.search(words, said):
        piece = await process.stdout.receive_some()
        assert piece, said.decode()
        said += piece
    return said


@needs_openssl
async def test_renegotiation_is_not_done(besieged, bench) -> None:
    async with besieged() as server, s_client(bench, server, "-tls1_2") as process:
        await process.stdin.send_all(b"hello\n")
        await until_said(process, rb"(?m)^hello$")
        handshakes = server.certificates.context.session_stats()["accept_good"]
        await process.stdin.send_all(b"R\n")
        await until_said(process, rb"no renegotiation")
        assert server.certificates.context.session_stats()["accept_good"] == handshakes
        process.kill()
        await passes(lambda: server.connections == 1)


@pytest.mark.slow
@needs_openssl
async def test_a_flood_of_new_keys_harms_no_other(besieged, bench) -> None:
    async with besieged() as server, s_client(bench, server, "-tls1_3") as process:
        await process.stdin.send_all(b"hello\n")
        await until_said(process, rb"(?m)^hello$")
        for _ in range(200):
            await process.stdin.send_all(b"K\n")
            await until_said(process, rb"KEYUPDATE")
        await process.stdin.send_all(b"still here\n")
        await until_said(process, rb"(?m)^still here$")
        assert server.connections == 2
        process.kill()
        await passes(lambda: server.connections == 1)


@pytest.mark.slow
async def test_who_never_reads_is_cut_after_the_bound(besieged) -> None:
    async with besieged(send_timeout=0.4) as server:
        gone = []
        usual = server.echo

        async def welcome(carrier, principal):
            del principal
            try:
                await carrier.send([b"x" * (32 << 20)])
            except PeerGone as error:
                gone.append(str(error))
                raise

        server.echo = welcome
        await server.client()
        server.echo = usual
        await passes(lambda: gone)
        assert gone == ["the peer has read nothing for 0.4 s"]
        await passes(lambda: server.open_sockets == 1)


async def test_who_speaks_something_else_after_the_handshake_is_cut(besieged) -> None:
    async with besieged() as server:
        stream = await server.client()
        assert await echoed(stream)
        await stream.transport_stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await passes(lambda: server.open_sockets == 1)


async def test_who_changes_a_byte_on_the_way_is_cut(besieged) -> None:
    async with besieged() as server:
        stream = await server.client()
        assert await echoed(stream)
        stream._ssl_object.write(b"hello\n")
        record = bytearray(stream._outgoing.read())
        record[-1] ^= 1
        await stream.transport_stream.send_all(record)
        await passes(lambda: server.open_sockets == 1)


@pytest.mark.proof
async def test_hundreds_who_come_and_go_leave_nothing_behind(besieged, bench) -> None:
    async with besieged() as server:
        gc.collect()
        before = alive()
        good, bad = bench.client_context(), bench.client_context(anonymous=True)
        for turn in range(100):
            async with await server.client(good) as stream:
                assert await echoed(stream)
            await trio.aclose_forcefully(await server.client(good))
            await server.refusal(bad)
            server.connect().close()
            if turn % 10 == 0:
                await passes(lambda: server.open_sockets == 1)
        await passes(lambda: len(server.rejected) == 200 and server.open_sockets == 1)
        gc.collect()
        assert alive() <= before + 1


def alive():
    """Transports that nobody has let go of."""
    return sum(isinstance(each, SocketTransport) for each in gc.get_objects())
