"""Refusal by default: what a daemon will not start with, whom it does not let in, and how little they learn of why."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import socket
import ssl
import struct
import subprocess
import sys

import pytest
from support import dialing
from support.carriers import TOKENS, Papers
from support.dialing import POLICY, Messages, OpenHearthd, Refused, listeners, tcp, web_socket
from support.hearthd import BOUND, Hearthd, eventually, submission
from support.pki import SERVER, certify, name

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

OPEN = b'{"jsonrpc":"2.0","id":1,"method":"session.open"}\n'
WRONG_TOKEN = "hearth_" + "wrong-token-" * 3


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory, papers):
    """`daemon(secure=…)`: one for each kind of WebSocket, which the tests leave as they found it."""
    running = {}

    def get(*, secure: bool = False) -> OpenHearthd:
        if secure not in running:
            running[secure] = OpenHearthd(tmp_path_factory.mktemp("open"), papers, secure=secure).start()
        return running[secure]

    yield get
    for one in running.values():
        one.end()
        assert "crashed" not in one.said


def started(tmp_path, config: str, *options: str) -> subprocess.CompletedProcess:
    """A daemon with this configuration, which is not to be one: run it to its end."""
    file = tmp_path / "hearth.toml"
    file.write_text(f'[server]\nsocket = "{tmp_path}/hearth.sock"\n[audit]\npath = "{tmp_path}/audit.log"\n{config}\n')
    return subprocess.run(
        [sys.executable, "-m", "hearth.actors.daemon", "--config", str(file), *options],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )


# --- what a daemon does not start with ------------------------------------------------------------------------------

TOKEN_POLICY = f'[[policy]]\nname = "t"\nmatch = {{ token_sha256 = "{"0" * 64}" }}\n'
EVERYWHERE, HERE = '[websocket]\nlisten = "0.0.0.0:0"\n', '[websocket]\nlisten = "127.0.0.1:0"\n'
CERT = 'cert = "CERT"\nkey = "KEY"\n'
NOT_STARTED = {
    "a WebSocket for everybody": (EVERYWHERE, "[websocket]", "cert and key", "plaintext = true"),
    "one over IPv6": ('[websocket]\nlisten = "[::]:0"\n', "[websocket]", "cert and key", "plaintext = true"),
    "tokens in the clear": (EVERYWHERE + TOKEN_POLICY, "[websocket]", "cert and key", "plaintext = true"),
    "TLS and nobody to prove who they are": (EVERYWHERE + CERT, "[websocket]", "client_ca", "token_sha256"),
    "a proxy and nobody to prove who they are": (EVERYWHERE + "plaintext = true\n", "[websocket]", "token_sha256"),
    "[tls] and no client_ca": ('[tls]\nlisten = "127.0.0.1:0"\n' + CERT, "[tls]", "client_ca"),
    "[tls] and nothing else": ('[tls]\nlisten = "127.0.0.1:0"\n', "[tls]", "cert", "key", "client_ca"),
    "a cert without its key": (HERE + 'cert = "CERT"\n', "[websocket]", "key not set"),
    "client_ca without TLS": (HERE + 'client_ca = "CA"\n', "[websocket]", "client_ca", "cert"),
}


def filled_in(config: str, papers: Papers) -> str:
    """With the papers' files where their names stand."""
    files = {'"CERT"': papers.server_cert, '"KEY"': papers.server_key, '"CA"': papers.ca}
    for mark, file in files.items():
        config = config.replace(mark, f'"{file}"')
    return config


@pytest.mark.parametrize(("config", "places"), [(c, p) for c, *p in NOT_STARTED.values()], ids=NOT_STARTED)
def test_what_would_let_anybody_in_is_not_started_and_the_error_names_the_key(
    tmp_path, papers, config: str, places
) -> None:
    done = started(tmp_path, filled_in(config, papers))
    assert done.returncode == 2, done.stderr
    for place in places:
        assert place in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert "ready" not in done.stderr
    assert not (tmp_path / "hearth.sock").exists(), "the socket that it had opened already is gone again"
    assert not (tmp_path / "audit.log").exists()


def test_with_tokens_or_certificates_it_starts_for_everybody(tmp_path, papers) -> None:
    everywhere = listeners(papers, secure=True, host="0.0.0.0")
    for number, config in enumerate(
        [everywhere, f'[websocket]\nlisten = "0.0.0.0:0"\nplaintext = true\n{TOKEN_POLICY}']
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        running = Hearthd(directory, config)
        try:
            running.start()
            assert {address.split("//")[1].rpartition(":")[0] for address in running.listening.values()} == {"0.0.0.0"}
            assert running.stop() == 0
        finally:
            running.end()


@pytest.mark.proof
@pytest.mark.parametrize(("section", "mode"), [("tls", 0o644), ("websocket", 0o660)])
def test_a_key_that_others_can_use_is_refused_and_the_error_says_what_to_do(
    tmp_path, papers, section: str, mode: int
) -> None:
    key = tmp_path / "server.key"
    key.write_bytes(papers.server_key.read_bytes())
    key.chmod(mode)
    config = f'[{section}]\nlisten = "127.0.0.1:0"\ncert = "CERT"\nkey = "{key}"\nclient_ca = "CA"\n'
    done = started(tmp_path, filled_in(config, papers))
    assert done.returncode == 2, done.stderr
    assert f"[{section}] key: {key}" in done.stderr
    assert f"mode {mode:04o}" in done.stderr
    [cure] = re.findall(rf"chmod (6[04]0) {key}", done.stderr)
    key.chmod(int(cure, 8))
    running = Hearthd(tmp_path, filled_in(config, papers))
    try:
        running.start()
    finally:
        running.end()


def test_a_key_that_is_not_the_certificates_is_refused_by_name(tmp_path, papers) -> None:
    other = papers.clients["arm-7"].key
    config = filled_in('[tls]\nlisten = "127.0.0.1:0"\ncert = "CERT"\nkey = "OTHER"\nclient_ca = "CA"\n', papers)
    done = started(tmp_path, config.replace("OTHER", str(other)))
    assert done.returncode == 2, done.stderr
    assert "[tls]" in done.stderr
    assert str(other) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.proof
def test_check_reads_the_certificates_and_takes_no_address(tmp_path, papers) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f'[tls]\nlisten = "127.0.0.1:{taken.getsockname()[1]}"\nclient_ca = "CA"\n'
        good = started(tmp_path, filled_in(where + CERT, papers), "--check")
        assert good.returncode == 0, good.stderr
        assert "configuration is good" in good.stdout
    missing = started(tmp_path, filled_in(where + CERT.replace("CERT", "/nonesuch.pem"), papers), "--check")
    assert missing.returncode == 2
    assert "[tls] cert: cannot read /nonesuch.pem" in missing.stderr
    cert, key = papers.server("soon", end=dt.timedelta(days=2, hours=1))
    soon = HERE + f'cert = "{cert}"\nkey = "{key}"\n'
    assert "expires in 2 days" in started(tmp_path, soon, "--check").stdout


def test_an_address_that_is_taken_is_an_error_and_what_was_open_is_closed(tmp_path, papers) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        host, port = other.getsockname()
        done = started(tmp_path, f'[websocket]\nlisten = "{host}:{port}"\n')
    assert done.returncode == 2
    assert f"[websocket] listen: cannot listen on {host}:{port}" in done.stderr
    assert not (tmp_path / "hearth.sock").exists()


# --- who is not let in ----------------------------------------------------------------------------------------------


def refused(connect) -> Refused:
    with pytest.raises(Refused) as caught:
        connect()
    return caught.value


@pytest.mark.parametrize("secure", [False, True], ids=["ws", "wss"])
def test_a_wrong_token_learns_nothing_but_401(daemon, papers, secure: bool) -> None:
    running = daemon(secure=secure)
    address = running.listening["wss" if secure else "ws"]
    context = papers.client_context(anonymous=True) if secure else None
    answers = []
    for token in (WRONG_TOKEN, TOKENS["alice"][:-1], TOKENS["alice"].upper(), "x" * 4000):
        answer = refused(lambda token=token: web_socket(address, context, token=token))
        answers.append((answer.status, answer.headers, answer.body))
    assert answers[0][0] == 401
    assert answers.count(answers[0]) == len(answers), "the answers tell one wrong token from another"
    assert len(str(answers[0])) < 200
    assert "hearth" not in str(answers[0])
    record = running.recorded(event="auth.reject", carrier="wss" if secure else "ws")
    assert record["peer"] == "127.0.0.1"
    assert "token" in record["reason"]
    assert WRONG_TOKEN not in running.audit.read_text()
    assert WRONG_TOKEN not in running.said


def test_an_origin_that_is_not_listed_learns_nothing_but_403_whatever_else_it_has(daemon) -> None:
    running = daemon()
    address = running.listening["ws"]
    for origin in ("http://evil.example", "null", "http://127.0.0.1", address.replace("ws:", "http:")):
        for token in (None, TOKENS["alice"], WRONG_TOKEN):
            answer = refused(lambda token=token, origin=origin: web_socket(address, token=token, origin=origin))
            assert answer.status == 403
            assert "evil" not in str((answer.headers, answer.body))


def test_a_certificate_that_is_wrong_learns_nothing_but_a_tls_alert(daemon, papers, tmp_path_factory) -> None:
    running = daemon()
    other = Papers(tmp_path_factory.mktemp("other"))
    for pair in (None, other.clients["arm-7"], papers.write("as-server", *server_purpose(papers))):
        context = papers.client_context(pair, anonymous=pair is None)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            said_over_tls(running.listening["tls"], context)
    assert running.recorded(event="auth.reject", carrier="tls")["peer"] == "127.0.0.1"
    assert running.over("tls").open(), "and whoever has a good one gets in"


def said_over_tls(address: str, context: ssl.SSLContext) -> bytes:
    """What a client is answered to a session.open. With TLS 1.3 it hears of a refusal when it reads."""
    with contextlib.closing(dialing.tls(address, context)) as connected:
        connected.sendall(OPEN)
        return connected.recv(1 << 16)


def server_purpose(papers):
    return certify(name("arm-7", "Acme"), papers.authority, purposes=(SERVER,), sans=("arm-7.local",))


def test_what_is_no_handshake_at_all_harms_no_other(daemon) -> None:
    running = daemon()
    for scheme in ("tls", "ws"):
        for said in (b"", b"\0" * 1000, OPEN, b"GET / HTTP/1.1\r\n\r\n"):
            with tcp(running.listening[scheme]) as connected:
                connected.sendall(said)
                connected.shutdown(socket.SHUT_WR)
                answer = b""
                with contextlib.suppress(ConnectionError):
                    while part := connected.recv(1 << 16):
                        answer += part
            assert b"session_id" not in answer
            assert len(answer) < 500
    assert running.over("ws").open()
    assert running.over("tls").open()


@pytest.mark.proof
def test_a_thousand_wrong_tokens_make_few_records_and_the_right_one_gets_in_meanwhile(daemon) -> None:
    running = daemon()
    address = running.listening["ws"]
    steady = running.over("ws", "token:bob")
    session = steady.open()
    rejected = len(running.records(event="auth.reject"))
    for number in range(1000):
        with pytest.raises(Refused):
            web_socket(address, token=f"hearth_guess-number-{number}")
        if number % 100 == 0:
            with contextlib.closing(web_socket(address, token=TOKENS["alice"])):
                assert steady.call("tool.list", {"session_id": session})["result"]["tools"]
    assert steady.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    made = len(running.records(event="auth.reject")) - rejected
    assert made <= 30, f"{made} records"
    assert running.records(event="auth.reject")
    assert "guess-number" not in running.audit.read_text()


@pytest.mark.proof
def test_a_peer_that_connects_and_says_nothing_is_disconnected_and_keeps_no_other_out(tmp_path, papers) -> None:
    running = OpenHearthd(tmp_path, papers, "[limits]\nhandshake_timeout_s = 1\n")
    running.start()
    silent = []
    try:
        before = running.descriptors()
        silent += [tcp(running.listening[scheme]) for scheme in ("tls", "ws") for _ in range(100)]
        # Some begin, and go on with a byte now and then.
        for number, connected in enumerate(silent):
            with contextlib.suppress(ConnectionError):
                connected.send(b"\x16" if number < 100 else b"G")
        assert running.peer().open(), "the Unix socket is not for unknown peers"
        assert running.descriptors() <= before + 40, "few may wait at once"
        if os.geteuid() == 0:
            # They keep the places of their own user only.
            other = tcp(running.listening["ws"], nobody=True)
            assert running.peer(Messages(other, running.listening["ws"])).open()
        eventually(lambda: running.descriptors() <= before + len(running.peers), "the end of those who say nothing")
        assert running.over("ws").open()
        assert running.over("tls").open()
    finally:
        for connected in silent:
            connected.close()
        running.end()


def test_a_crowd_that_resets_in_mid_handshake_leaves_the_listener_open(daemon) -> None:
    running = daemon()
    for scheme in ("tls", "ws"):
        for _ in range(50):
            with tcp(running.listening[scheme]) as connected:
                connected.sendall(b"\x16\x03\x01" if scheme == "tls" else b"GET / HT")
                # Reset instead of a close.
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert running.over(scheme).open()


def test_a_policy_decides_what_a_token_may_do(tmp_path, papers) -> None:
    narrow = POLICY.replace('name = "alice"\n', 'name = "alice"\nmax_risk = 0\n')
    running = OpenHearthd(tmp_path, papers)
    running.config.write_text(running.config.read_text().replace(POLICY, narrow))
    running.start()
    try:
        for who, code in (("alice", -32003), ("bob", None)):
            peer = running.over("ws", f"token:{who}")
            answer = peer.call("task.submit", submission(peer.open(), ("gpio.set", {"line": 17, "value": 1})))
            assert answer.get("error", {}).get("code") == code
    finally:
        running.end()
