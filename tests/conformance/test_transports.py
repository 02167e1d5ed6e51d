"""HACP draft, sections 2.2, 10.3 and 12: other framings, and transports that leave the machine, against a hearthd."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from conformance.test_security import refuses_to_start
from conformance.wires import BINARY, CLOSE, FINAL, TEXT, NetworkPeer, Turned, WebSocketPeer, dial, wiretap
from support.hearthd import request
from support.pki import Bench

from hearth.policy.principal import from_token

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

FRAMINGS = (
    "Alternative framings (Content-Length headers, WebSocket frames) MAY be negotiated by transport binding documents "
    "(see Section 10)."
)
MULTI_HOST = "For multi-host deployments, HACP MAY be served over TCP wrapped in mutual TLS."
NETWORK = (
    "Operators deploying HACP over network transports MUST apply mutual TLS or an equivalent authentication mechanism, "
    "as the JSON-RPC envelope itself carries no confidentiality or integrity protection."
)
TOKEN = "hearth_of-the-conformance-tests"
POLICY = f"""
[[policy]]
name = "arm"
match = {{ cert_subject = "CN=arm-7,O=Acme" }}
tools = ["gpio.*"]
[[policy]]
name = "panel"
match = {{ token_sha256 = "{from_token(TOKEN).token_sha256}" }}
max_risk = 0
[[policy]]
name = "here"
match = {{ uid = %d }}
"""
NOTHING = request(1, "no.such")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "pki").mkdir()
    return Bench(tmp_path / "pki")


@pytest.fixture
def connect() -> Iterator[Callable[..., Any]]:
    """Makes clients that are closed at the end."""
    made: list[NetworkPeer] = []

    def make(kind: type[NetworkPeer], *arguments: Any, **headers: str) -> Any:
        made.append(kind(*arguments, **headers))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


@pytest.fixture
def open_to_all(hearthd, bench: Bench):
    """A daemon with all its listeners, on ports of the kernel's choice; returns it and the port of each."""
    pair = f'cert = "{bench.server_cert}"\nkey = "{bench.server_key}"\nclient_ca = "{bench.ca}"\n'
    running = hearthd(
        f'[tls]\nlisten = "127.0.0.1:0"\n{pair}'
        f'[websocket]\nlisten = "127.0.0.1:0"\n{pair}origins = ["https://bench.example"]\n' + POLICY % os.geteuid()
    )
    return running, ports(running)


def ports(running) -> dict[str, int]:
    found = re.findall(r"^hearthd: listening on (\w+)://127\.0\.0\.1:(\d+)$", running.said, re.MULTILINE)
    return {scheme: int(port) for scheme, port in found}


# --- 2.2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("2.2", "MAY", FRAMINGS)
def test_2_2_over_a_websocket_each_message_is_one_document(hearthd, connect) -> None:
    peer = connect(WebSocketPeer, ports(hearthd('[websocket]\nlisten = "127.0.0.1:0"'))["ws"])
    assert peer.headers["sec-websocket-protocol"] == "hacp.v0"
    assert "sec-websocket-extensions" not in peer.headers
    session = peer.open()
    task = peer.run(session, ("gpio.set", {"line": 3, "value": 1}), subscribe=True)
    assert task["status"] == "SUCCESS"
    assert [event["phase"] for event in peer.events_until("task_finish")] == ["start", "finish", "task_finish"]
    # Line feeds are white space like any other, and fragments are the transport's business.
    peer.frame(FINAL | TEXT, b'{"jsonrpc": "2.0",\n "id": 77,\r\n\n "method": "no.such"}\n')
    assert peer.answer(77)["error"]["code"] == -32601
    whole = request(78, "no.such")
    peer.frame(TEXT, whole[:10])
    peer.frame(0, whole[10:20])
    peer.frame(FINAL, whole[20:])
    assert peer.read() == (TEXT, peer_answer(78))


def peer_answer(id_: int) -> bytes:
    return (
        b'{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"Method not found: no.such",'
        b'"data":{"method":"no.such"}}}' % id_
    )


@pytest.mark.spec("2.2", "MAY", FRAMINGS)
@pytest.mark.spec("design 8: WebSocket")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [(TEXT, NOTHING + NOTHING), (TEXT, NOTHING[:20]), (TEXT, b""), (TEXT, b" \n"), (BINARY, NOTHING)],
)
def test_2_2_a_message_that_is_not_one_document_is_a_parse_error_and_the_connection_goes_on(
    hearthd, connect, kind: int, payload: bytes
) -> None:
    peer = connect(WebSocketPeer, ports(hearthd('[websocket]\nlisten = "127.0.0.1:0"'))["ws"])
    peer.frame(FINAL | kind, payload)
    assert peer.line()["error"]["code"] == -32700
    assert peer.ask(NOTHING)["error"]["code"] == -32601


@pytest.mark.spec("design 8: WebSocket")
@pytest.mark.parametrize("pieces", [1, 8])
def test_2_2_a_message_that_is_too_long_closes_the_connection_with_1009(hearthd, connect, pieces: int) -> None:
    running = hearthd('[websocket]\nlisten = "127.0.0.1:0"\n[limits]\nmax_document_bytes = 1024')
    fits = b'{"jsonrpc":"2.0","id":1,"method":"no.such"}'
    peer = connect(WebSocketPeer, ports(running)["ws"])
    peer.frame(FINAL | TEXT, fits.ljust(1024))
    assert peer.line()["error"]["code"] == -32601
    for number in range(pieces):
        first = (0 if number else TEXT) | (FINAL if number == pieces - 1 else 0)
        peer.frame(first, fits.ljust(1032 // pieces))
    kind, payload = peer.read()
    assert (kind, payload[:2]) == (CLOSE, (1009).to_bytes(2))


@pytest.mark.spec("2.2", "MAY", FRAMINGS)
def test_2_2_a_framing_that_is_not_ours_is_not_negotiated(hearthd, connect) -> None:
    running = hearthd('[websocket]\nlisten = "127.0.0.1:0"')
    with pytest.raises(Turned) as turned:
        connect(WebSocketPeer, ports(running)["ws"], Sec_WebSocket_Protocol="hacp.v9")
    assert turned.value.status == 400
    peer = connect(WebSocketPeer, ports(running)["ws"])
    peer.frame(FINAL | CLOSE, b"\x03\xe8")
    assert peer.read()[0] == CLOSE


# --- 10.3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("10.3", "MAY", MULTI_HOST)
def test_10_3_over_tcp_with_mutual_tls_a_certificates_subject_is_mapped_to_a_policy(
    open_to_all, connect, bench: Bench
) -> None:
    running, port = open_to_all
    arm = connect(NetworkPeer, port["tls"], bench.client_context(bench.client("arm-7", "Acme")))
    other = connect(NetworkPeer, port["tls"], bench.client_context(bench.client("arm-8", "Acme")))
    session = arm.open()
    names = {tool["name"] for tool in arm.result("tool.list", {"session_id": session})["tools"]}
    assert {name for name in names if not name.startswith("signal.")} == {
        "gpio.get", "gpio.set", "gpio.pulse", "gpio.watch",
    }  # fmt: skip
    assert arm.value(session, "gpio.set", line=3, value=1)["value"] == 1
    assert arm.refused(session, ("hw.board", {}))["code"] == -32003
    assert running.records(event="session.open")[-1]["principal"] == "cert:CN=arm-7,O=Acme"
    # Of the same CA, and without a policy: it is told so, and is served nothing.
    assert other.line()["error"]["code"] == -32003
    assert other.line() is None


@pytest.mark.spec("10.3", "MAY", MULTI_HOST)
def test_10_3_the_same_line_delimited_framing_applies(open_to_all, connect, bench: Bench) -> None:
    _, port = open_to_all
    peer = connect(NetworkPeer, port["tls"], bench.client_context(bench.client("arm-7", "Acme")))
    for piece in (b"\r\n \n", NOTHING[:5], NOTHING[5:-1], b"\n" + NOTHING):
        peer.send(piece)
    assert [peer.raw() for _ in range(2)] == [peer_answer(1) + b"\n"] * 2


# --- 12 -------------------------------------------------------------------------------------------------------------


def talk_over_tls(port: int, context: ssl.SSLContext) -> bytes | OSError:
    """What a request is answered with, or the error that comes of it.

    With TLS 1.3 a client has finished its handshake before the server has looked at its certificate.
    """
    try:
        with dial(port, context) as connected:
            connected.sendall(NOTHING)
            return connected.recv(1 << 16)
    except OSError as error:
        return error


@pytest.mark.slow
@pytest.mark.spec("12", "MUST", NETWORK)
@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ('[websocket]\nlisten = "0.0.0.0:7118"', "cert and key not set"),
        ('[websocket]\nlisten = "0.0.0.0:7118"\nplaintext = true', "set client_ca"),
        ('[websocket]\nlisten = "[::]:7118"\ncert = "{0}/c"\nkey = "{0}/k"', "token_sha256"),
        ('[tls]\nlisten = "127.0.0.1:7117"\ncert = "{0}/c"\nkey = "{0}/k"', "client_ca"),
        ('[tls]\nlisten = "0.0.0.0:7117"\nclient_ca = "{0}/c"', "cert and key not set"),
    ],
)
def test_12_no_network_listener_starts_without_a_proof_of_who_calls_and_encryption(
    tmp_path: Path, config: str, missing: str
) -> None:
    assert missing in refuses_to_start(tmp_path, config.format(tmp_path))


@pytest.mark.spec("12", "MUST", NETWORK)
def test_12_over_a_network_every_peer_proves_who_it_is(open_to_all, connect, bench: Bench) -> None:
    running, port = open_to_all
    stranger = bench.client("stranger", authority=bench.other_authority)
    for shown in (None, stranger):
        came = talk_over_tls(port["tls"], bench.client_context(shown, anonymous=shown is None))
        assert isinstance(came, OSError) or came == b"", "an alert, unless the reset that follows overtakes it"
    with dial(port["tls"]) as plain:
        plain.sendall(request(1, "session.open"))
        assert b"jsonrpc" not in plain.recv(1 << 16)
    trusting = bench.client_context(anonymous=True)
    with pytest.raises(Turned) as turned:
        connect(WebSocketPeer, port["wss"], trusting, Authorization="Bearer hearth_guessed")
    assert turned.value.status == 401
    with pytest.raises(Turned) as turned:
        connect(WebSocketPeer, port["wss"], trusting, Authorization=f"Bearer {TOKEN}", Origin="https://evil.example")
    assert turned.value.status == 403
    refused = {(record["carrier"], record["peer"]) for record in running.records(event="auth.reject")}
    assert refused == {("tls", "127.0.0.1"), ("wss", "127.0.0.1")}
    assert not running.records(event="session.open")
    for header in ({"Authorization": f"Bearer {TOKEN}"}, {"Sec_WebSocket_Protocol": f"hacp.v0, bearer.{TOKEN}"}):
        peer = connect(WebSocketPeer, port["wss"], trusting, **header)
        session = peer.open()
        assert peer.refused(session, ("gpio.set", {"line": 3, "value": 1}))["code"] == -32003, "max_risk = 0"
        assert TOKEN.encode() not in running.audit.read_bytes()


@pytest.mark.spec("12", "MUST", NETWORK)
@pytest.mark.parametrize("scheme", ["tls", "wss"])
def test_12_who_is_on_the_way_reads_nothing_and_changes_nothing(
    open_to_all, connect, bench: Bench, scheme: str
) -> None:
    running, port = open_to_all
    context = bench.client_context(bench.client("arm-7", "Acme"))
    kind = NetworkPeer if scheme == "tls" else WebSocketPeer
    with wiretap(port[scheme]) as (tapped, seen):
        peer = connect(kind, tapped, context)
        session = peer.open(client_name="a-telling-name")
        assert running.records(event="session.open")[-1]["session_id"] == session
        peer.close()
    passed = b"".join(seen)
    for secret in (session.encode(), b"a-telling-name", b"session", b"jsonrpc"):
        assert secret not in passed

    flip = False

    def change(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if flip else data

    opened = len(running.records(event="session.open"))
    with wiretap(port[scheme], change) as (tapped, _):
        peer = connect(kind, tapped, context)
        flip = True
        peer.start("session.open")
        try:
            said = peer.raw()
        except (OSError, ValueError):  # reset, or closed without a close frame
            said = b""
        assert said == b""
        peer.close()
    assert len(running.records(event="session.open")) == opened
