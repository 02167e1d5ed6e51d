"""ws:// and wss:// against real servers: lines there and back, who is let in, and how a refusal or a close is told."""

from __future__ import annotations

import json
import ssl
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
import trio_websocket
import trustme
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Pong, Request, TextMessage

import hearth
from hearth import CarrierError, ConfigError
from hearth.transport import open_stream, tls, websocket
from hearth.transport.address import parse
from hearth.transport.websocket import WebSocketStream

PATIENCE = 60
OPENED = {"session_id": "S1", "capabilities": [], "protocol_version": "0.1.0"}


@pytest.fixture(autouse=True)
async def bounded(monkeypatch):
    monkeypatch.delenv("HEARTH_TOKEN", raising=False)
    with trio.fail_after(PATIENCE):
        yield


class Server:
    """A server of trio-websocket's, which does what it is told; `requests` are the handshakes."""

    def __init__(self, handler, reject=None):
        self.handler = handler
        self.reject = reject or {}
        self.requests = []
        self.closed = trio.Event()
        self.reason = None

    def header(self, name):
        return dict(self.requests[-1].headers).get(name)

    async def serve(self, request):
        self.requests.append(request)
        if self.reject:
            await request.reject(**self.reject)
            return
        subprotocol = "hacp.v0" if "hacp.v0" in request.proposed_subprotocols else None
        connection = await request.accept(subprotocol=subprotocol)
        try:
            await self.handler(connection)
        except trio_websocket.ConnectionClosed as closed:
            self.reason = closed.reason
        self.closed.set()


async def answer(connection):
    """Answer every request with the same."""
    while True:
        request = json.loads(await connection.get_message())
        await connection.send_message(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": OPENED}))


async def echo(connection):
    while True:
        await connection.send_message(await connection.get_message())


@asynccontextmanager
async def serving(handler=answer, reject=None, context=None):
    """`async with serving() as (server, address)`."""
    server = Server(handler, reject)
    async with trio.open_nursery() as nursery:
        serve = partial(trio_websocket.serve_websocket, server.serve, "127.0.0.1", 0, context, max_message_size=1 << 26)
        started = await nursery.start(serve)
        yield server, f"{'ws' if context is None else 'wss'}://127.0.0.1:{started.port}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def raw(handler):
    """A server that need not be one: `handler` has the TCP stream. Gives its address."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, handler, [listener], handler_nursery=nursery))
        yield address
        nursery.cancel_scope.cancel()


async def accepted(stream, *more):
    """The server's side of a handshake on a bare stream, and what it says together with its consent."""
    protocol = WSConnection(ConnectionType.SERVER)
    while True:
        protocol.receive_data(await stream.receive_some())
        for event in protocol.events():
            if isinstance(event, Request):
                said = [protocol.send(each) for each in (AcceptConnection(subprotocol="hacp.v0"), *more)]
                await stream.send_all(b"".join(said))
                return protocol


async def use(address, **options):
    async with hearth.connect(address, **options) as client, client.open_session() as session:
        return session.session_id


async def lines(stream, count):
    data = b""
    while data.count(b"\n") < count:
        data += await stream.receive_some()
    return data


# --- lines and messages ---------------------------------------------------------------------------------------------


async def test_a_session_is_opened_over_a_websocket_that_speaks_hacp() -> None:
    async with serving() as (server, address):
        assert await use(address) == "S1"
        await server.closed.wait()
    assert server.requests[0].proposed_subprotocols == ("hacp.v0",)
    assert server.requests[0].path == "/"
    assert server.header(b"authorization") is None
    assert server.header(b"origin") is None
    assert server.reason.code == 1000


async def test_what_stands_after_the_host_is_the_path() -> None:
    async with serving() as (server, address):
        await use(f"{address}/robots/7")
    assert server.requests[0].path == "/robots/7"


async def test_each_line_is_a_message_however_it_is_cut() -> None:
    got = []

    async def keep(connection):
        while True:
            got.append(await connection.get_message())

    async with serving(keep) as (server, address):
        async with open_stream(parse(address)) as stream:
            await stream.wait_send_all_might_not_block()
            for piece in (b'{"a":', b"1}", b"\n[2", b"]\n\n \n\xc3", b"\xbc\n\xff\n", b"rest", b""):
                await stream.send_all(piece)
        await server.closed.wait()
    assert got == ['{"a":1}', "[2]", "ü", b"\xff"]


async def test_each_message_is_a_line_however_it_is_formatted_and_read() -> None:
    async def say(connection):
        for message in ('{"a": 1}', '{\n  "b": 2\r\n}', b'{"c": 3}', "ü" * 100_000):
            await connection.send_message(message)
        await connection.get_message()

    async with serving(say) as (_, address), open_stream(parse(address)) as stream:
        first = await stream.receive_some(3)
        assert first == b'{"a'
        said = (first + await lines(stream, 4)).split(b"\n")
    assert [json.loads(line) for line in said[:3]] == [{"a": 1}, {"b": 2}, {"c": 3}]
    assert said[3:] == ["ü".encode() * 100_000, b""]


@pytest.mark.slow
async def test_much_goes_both_ways_at_once() -> None:
    line = b'"' + b"x" * (1 << 20) + b'"\n'

    async with serving(echo) as (_, address), open_stream(parse(address)) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, line * 5)
        assert await lines(stream, 5) == line * 5


@pytest.mark.slow
async def test_a_ping_does_not_stop_us_reading_while_the_peer_reads_nothing() -> None:
    """Else both would wait for the other for ever: the server to be read, before it reads our pong."""
    much = "x" * (1 << 21)

    async def talk_first(stream):
        protocol = await accepted(stream)
        for payload in (b"1", b"2", b"3"):
            await stream.send_all(protocol.send(Ping(payload)) + protocol.send(TextMessage(much)))
        received = 0
        async for data in stream:
            protocol.receive_data(data)
            for event in protocol.events():
                if isinstance(event, TextMessage):
                    received += len(event.data)
                elif isinstance(event, Pong):
                    pongs.append(bytes(event.payload))
            if received >= len(much) and b"3" in pongs:
                break
        await stream.send_all(protocol.send(CloseConnection(1000)))

    pongs = []
    async with raw(talk_first) as address, open_stream(parse(address)) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, much.encode() + b"\n")
        assert len(await lines(stream, 3)) == 3 * (len(much) + 1)
        assert await stream.receive_some() == b""
    assert pongs[-1] == b"3"


async def test_pings_are_answered_while_we_wait_for_something_to_be_said() -> None:
    pongs = trio.Event()

    async def ping(connection):
        for _ in range(100):
            await connection.ping()
        pongs.set()

    async with serving(ping) as (_, address), open_stream(parse(address)) as stream:
        assert await stream.receive_some() == b""
    assert pongs.is_set()


@pytest.mark.slow
async def test_what_comes_together_with_the_consent_is_not_lost(monkeypatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 0.1)

    async def eager(stream):
        await accepted(stream, TextMessage('{"early":1}'))
        await trio.sleep_forever()

    async with raw(eager) as address, open_stream(parse(address)) as stream:
        assert await stream.receive_some() == b'{"early":1}\n'


async def test_a_message_without_end_ends_the_connection(monkeypatch) -> None:
    monkeypatch.setattr(websocket, "WebSocketStream", partial(WebSocketStream, limit=1000))

    async def endless(connection):
        await connection.send_message("x" * 1001)
        await connection.get_message()

    async with serving(endless) as (server, address), open_stream(parse(address)) as stream:
        with pytest.raises(trio.BrokenResourceError, match="a message of more than 1000 bytes"):  # noqa: PT012
            while await stream.receive_some():
                pass
        await server.closed.wait()
        assert server.reason.code == 1009


async def test_a_line_without_end_is_not_kept(monkeypatch) -> None:
    monkeypatch.setattr(websocket, "WebSocketStream", partial(WebSocketStream, limit=1000))
    async with serving() as (_, address), open_stream(parse(address)) as stream:
        with pytest.raises(trio.BrokenResourceError, match="a line of more than 1000 bytes"):
            await stream.send_all(b"x" * 1001)


# --- who calls ------------------------------------------------------------------------------------------------------


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("hearth_from-file\n")
    path.chmod(0o600)
    return path


async def test_the_token_is_the_callers_or_that_of_the_file_or_of_the_environment(monkeypatch, token_file) -> None:
    async with serving() as (server, address):
        await use(address, token="hearth_given")
        assert server.header(b"authorization") == b"Bearer hearth_given"
        monkeypatch.setenv("HEARTH_TOKEN", "hearth_from-environment")
        await use(address)
        assert server.header(b"authorization") == b"Bearer hearth_from-environment"
        await use(f"{address}?token_file={token_file}")
        assert server.header(b"authorization") == b"Bearer hearth_from-file"


async def test_tokens_that_cannot_be_used_are_a_config_error_that_does_not_tell_them(monkeypatch, token_file) -> None:
    address = "ws://127.0.0.1:1"
    with pytest.raises(ConfigError, match="leave one of them out"):
        await use(f"{address}?token_file={token_file}", token="x")
    with pytest.raises(ConfigError, match="a token is one word") as caught:
        await use(address, token="two words\r\nX: y")
    assert "two words" not in str(caught.value)
    monkeypatch.setenv("HEARTH_TOKEN", "sécret")
    with pytest.raises(ConfigError, match="HEARTH_TOKEN") as caught:
        await use(address)
    assert "cret" not in str(caught.value)
    for content in (b"", b"\xff", b"a b"):
        token_file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"token_file .*hearth admin token new"):
            await use(f"{address}?token_file={token_file}")
    token_file.chmod(0o604)
    with pytest.raises(ConfigError, match=r"can be used by others \(mode 0604\); chmod 600"):
        await use(f"{address}?token_file={token_file}")


@pytest.mark.parametrize("address", ["/tmp/x.sock", "tls://arm", "ssh://arm"])
async def test_a_token_goes_with_no_other_carrier(address) -> None:
    with pytest.raises(ConfigError, match="a token is for ws:// and wss://"):
        await use(address, token="hearth_x")


@pytest.mark.parametrize(
    ("reject", "words"),
    [
        ({"status_code": 401}, "it cannot identify the caller .*token_file=FILE"),
        ({"status_code": 403}, "it refuses this client"),
        ({"status_code": 404}, "there is no WebSocket at /"),
        ({"status_code": 503, "body": b"busy"}, ".*has too much to do"),
        ({"status_code": 301, "extra_headers": [(b"Location", b"https://arm/\x01")]}, r"it sends us to https://arm/ "),
        ({"status_code": 307}, "it sends us to elsewhere"),
        ({"status_code": 400, "body": b"no"}, r"it refuses a WebSocket \(HTTP 400\); is it hearthd"),
    ],
)
async def test_a_refused_handshake_is_told_in_words_with_the_cure(reject, words) -> None:
    async with serving(reject=reject) as (_, address):
        with pytest.raises(CarrierError, match=f"cannot connect to {address}: {words}"):
            await use(address)


async def test_a_token_that_is_not_known_is_told_by_where_it_is_from(monkeypatch, token_file) -> None:
    async with serving(reject={"status_code": 401}) as (_, address):
        with pytest.raises(CarrierError, match=f"the token in {token_file} .*policy"):
            await use(f"{address}?token_file={token_file}")
        with pytest.raises(CarrierError, match="the token that was given"):
            await use(address, token="hearth_secret")
        monkeypatch.setenv("HEARTH_TOKEN", "hearth_secret")
        with pytest.raises(CarrierError, match="the token in HEARTH_TOKEN") as caught:
            await use(address)
    assert "secret" not in str(caught.value)


# --- wss ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ca():
    return trustme.CA()


@pytest.fixture
def secure(ca):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def test_wss_checks_the_servers_certificate(ca, secure, tmp_path) -> None:
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with serving(context=secure) as (server, address):
        assert await use(f"{address}?ca={tmp_path}/ca.pem", token="hearth_x") == "S1"
        await server.closed.wait()
        assert server.reason.code == 1000
        with pytest.raises(CarrierError, match="not signed by the system's CAs"):
            await use(address)
    assert len(server.requests) == 1


async def test_wss_shows_our_certificate_and_is_told_if_it_is_refused(ca, secure, tmp_path) -> None:
    secure.verify_mode = ssl.CERT_REQUIRED
    ca.configure_trust(secure)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    ours = ca.issue_cert("arm-7.local")
    ours.cert_chain_pems[0].write_to_path(tmp_path / "me.pem")
    ours.private_key_pem.write_to_path(tmp_path / "me.key")
    (tmp_path / "me.key").chmod(0o600)

    async def strict(stream):
        tls = trio.SSLStream(stream, secure, server_side=True)
        with pytest.raises(trio.BrokenResourceError):
            await tls.do_handshake()
        await stream.send_all(tls._outgoing.read())

    async with serving(context=secure) as (_, address):
        credentials = f"ca={tmp_path}/ca.pem&cert={tmp_path}/me.pem&key={tmp_path}/me.key"
        assert await use(f"{address}?{credentials}") == "S1"
    async with raw(strict) as address:
        with pytest.raises(CarrierError, match=r"cannot connect to wss:.*wants a certificate of ours"):
            await use(f"{address.replace('ws:', 'wss:')}?ca={tmp_path}/ca.pem")


async def test_each_of_the_two_is_told_when_it_meets_the_other() -> None:
    async def alert(stream):
        await stream.receive_some()
        await stream.send_all(b"\x15\x03\x01\x00\x02\x02\x46")  # what OpenSSL says to HTTP
        await trio.sleep_forever()

    async with serving() as (_, address):
        with pytest.raises(CarrierError, match="does not speak TLS"):
            await use(address.replace("ws:", "wss:"))
    async with raw(alert) as address:
        with pytest.raises(CarrierError, match=r"is no WebSocket .* should it be wss://"):
            await use(address)


# --- what is no WebSocket -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"220 mail.example ESMTP\r\n", "what listens there is no WebSocket"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", r"it refuses a WebSocket \(HTTP 200\)"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "is no WebSocket"),
        (b"x" * 100_000, "is no WebSocket"),
        (b"HTTP/1.1 101 OK\r\nX: " + b"x" * 100_000, "is no WebSocket"),
        (b"", "it closed the connection instead of answering"),
    ],
)
async def test_a_server_that_answers_something_else_is_told(said, words) -> None:
    async def other(stream):
        await stream.receive_some()
        await stream.send_all(said)
        if not said:
            await stream.send_eof()
        await trio.sleep_forever()

    async with raw(other) as address:
        with pytest.raises(CarrierError, match=words):
            await use(address)


async def test_a_server_that_does_not_speak_hacp_is_told() -> None:
    async def other(stream):
        protocol = WSConnection(ConnectionType.SERVER)
        protocol.receive_data(await stream.receive_some())
        list(protocol.events())
        await stream.send_all(protocol.send(AcceptConnection()))
        await trio.sleep_forever()

    async with raw(other) as address:
        with pytest.raises(CarrierError, match=r"does not speak hacp\.v0; is it hearthd"):
            await use(address)


@pytest.mark.slow
async def test_a_server_that_does_not_answer_is_waited_for_only_so_long(monkeypatch) -> None:
    monkeypatch.setattr(tls, "DEADLINE", 0.2)

    async def silent(_stream):
        await trio.sleep_forever()

    async with raw(silent) as address:
        with pytest.raises(CarrierError, match=r"within 0\.2 s"):
            await use(address)


async def test_no_server_listening_names_the_key_to_set() -> None:
    async with raw(echo) as address:
        pass
    with pytest.raises(CarrierError, match=r"no process listens on that port; .*\[websocket\] listen"):
        await use(address)


# --- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1008, r"it does not let us go on \(close code 1008: so there\)"),
        (1009, ".*max_document_bytes"),
        (1011, ".*see its log"),
        (4000, r"it closed the connection \(close code 4000: so there\)"),
    ],
)
async def test_a_close_code_is_told_in_words(code, words) -> None:
    async def close(connection):
        await connection.get_message()
        await connection.aclose(code, "so \x1bthere")

    async with serving(close) as (_, address):
        with pytest.raises(CarrierError, match=f"session.open was answered: connection lost: {address}: {words}"):
            await use(address)


async def test_a_close_that_says_nothing_is_the_end_and_no_error() -> None:
    async def close(connection):
        await connection.send_message('"last"')
        await connection.aclose()

    async with serving(close) as (_, address), open_stream(parse(address)) as stream:
        assert await lines(stream, 1) == b'"last"\n'
        assert await stream.receive_some() == b""
        assert await stream.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError, match="it is being closed"):
            await stream.send_all(b"{}\n")


async def test_the_peers_close_is_answered_while_we_are_busy_with_something_else() -> None:
    answered = trio.Event()

    async def close(connection):
        await connection.aclose()
        answered.set()

    async with serving(close) as (_, address), open_stream(parse(address)) as stream:
        assert await stream.receive_some() == b""
        await answered.wait()


async def test_a_connection_that_ends_without_a_close_is_told() -> None:
    async def vanish(stream):
        await accepted(stream)
        await stream.receive_some()
        await stream.aclose()

    async with raw(vanish) as address:
        with pytest.raises(CarrierError, match="ended without a close message"):
            await use(address)


async def test_a_server_that_breaks_the_protocol_is_told_so() -> None:
    said = []

    async def break_it(stream):
        protocol = await accepted(stream)
        await stream.send_all(b"\xff\xff\xff")
        protocol.receive_data(await stream.receive_some())
        said.extend(protocol.events())

    async with raw(break_it) as address, open_stream(parse(address)) as stream:
        with pytest.raises(trio.BrokenResourceError, match="it broke the protocol of WebSockets"):
            await stream.receive_some()
    assert said[0].code == 1002


@pytest.mark.slow
async def test_a_server_that_does_not_say_goodbye_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 0.1)

    async def deaf(stream):
        await accepted(stream)
        await trio.sleep_forever()

    async with raw(deaf) as address:
        async with open_stream(parse(address)) as stream:
            with trio.move_on_after(0.2):
                await stream.send_all(b"x" * (1 << 25) + b"\n")
        for call in (stream.receive_some, partial(stream.send_all, b"\n")):
            with pytest.raises(trio.ClosedResourceError):
                await call()
        await stream.aclose()
        async with open_stream(parse(address)):
            pass


async def test_cancelling_at_any_point_closes_everything() -> None:
    """An open socket that nobody holds would be a ResourceWarning, which is an error here."""
    async with serving() as (_, address):
        for turns in range(0, 60, 3):
            async with trio.open_nursery() as nursery:

                async def cancel_soon(nursery=nursery, turns=turns):
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(cancel_soon)
                await use(address)


async def test_what_the_body_raises_comes_out_as_it_is() -> None:
    class Mine(Exception):
        pass

    async with serving() as (_, address):
        with pytest.raises(Mine):
            async with open_stream(parse(address)):
                raise Mine


async def test_closing_interrupts_who_reads() -> None:
    async with serving() as (_, address), open_stream(parse(address)) as stream, trio.open_nursery() as nursery:

        async def read():
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_some()
            read_on.set()

        read_on = trio.Event()
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
        await read_on.wait()
