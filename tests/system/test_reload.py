"""SIGHUP: certificates are read again and nobody is dropped; only a terminal that has gone makes it the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from support.carriers import Papers
from support.dialing import OpenHearthd, tls, web_socket
from support.hearthd import BOUND, Hearthd, Peer, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

WATCH = ("gpio.watch", {"line": 4, "timeout_ms": 60_000})
DONE = "certificates have been read again"


@pytest.fixture
def papers(tmp_path):
    (tmp_path / "papers").mkdir()
    return Papers(tmp_path / "papers")


@pytest.fixture
def running(tmp_path, papers):
    """A daemon on tls and wss, whose files the test may change."""
    daemon = OpenHearthd(tmp_path, papers, secure=True)
    yield daemon.start()
    daemon.end()
    assert "crashed" not in daemon.said


def hang_up(running: Hearthd) -> None:
    """SIGHUP, and wait until it has been obeyed."""
    before = running.said.count(DONE)
    running.signal(signal.SIGHUP)
    eventually(lambda: running.said.count(DONE) > before, f"the word of {DONE!r}")


def serial(running: OpenHearthd, scheme: str) -> str:
    """The number of the certificate that a listener shows to a new connection."""
    papers = running.papers
    with tls(running.listening[scheme], papers.client_context(papers.clients["arm-7"])) as connected:
        return connected.getpeercert()["serialNumber"]


def new_server_certificate(papers: Papers) -> None:
    papers.server_cert, papers.server_key = papers.server("server")


def test_a_new_connection_sees_the_new_certificate_and_an_open_session_goes_on(running, papers) -> None:
    peers = {kind: running.over(kind) for kind in ("tls", "wss", "unix")}
    sessions = {kind: peer.open(on_disconnect="close") for kind, peer in peers.items()}
    tasks = {kind: peer.submit(sessions[kind], WATCH) for kind, peer in peers.items()}
    before = {scheme: serial(running, scheme) for scheme in ("tls", "wss")}
    new_server_certificate(papers)
    assert {scheme: serial(running, scheme) for scheme in before} == before, "not before it is told"
    hang_up(running)
    after = {scheme: serial(running, scheme) for scheme in before}
    assert after["tls"] == after["wss"] != before["tls"]
    for kind, peer in peers.items():
        here = {"session_id": sessions[kind], "task_id": tasks[kind]}
        assert peer.call("task.get", here)["result"]["status"] == "RUNNING"
        assert peer.run(sessions[kind], "gpio.get", line=4)["status"] == "SUCCESS"
    assert running.over("tls").open()
    assert running.over("wss").open()
    assert not running.records(event="session.close")


BROKEN = ["is gone", "is cut short", "is for everybody to read", "is another's"]


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_cannot_be_used_leaves_what_there_was_and_the_log_says_why(running, papers, how: str) -> None:
    peer = running.over("tls")
    session = peer.open()
    before = serial(running, "tls")
    kept = papers.server_key.read_bytes()
    if how == "is gone":
        papers.server_key.unlink()
    elif how == "is cut short":
        os.truncate(papers.server_key, len(kept) // 2)
    elif how == "is for everybody to read":
        papers.server_key.chmod(0o644)
    else:
        shutil.copyfile(papers.clients["arm-7"].key, papers.server_key)
    running.signal(signal.SIGHUP)
    for section in ("tls", "websocket"):
        reason = f"keeps the certificates it had: [{section}] key: "
        eventually(lambda reason=reason: reason in running.said, reason)
    assert str(papers.server_key) in running.said
    assert "PRIVATE KEY" not in running.said
    assert "Traceback" not in running.said
    assert serial(running, "tls") == serial(running, "wss") == before
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    # The operator mends it.
    new_server_certificate(papers)
    hang_up(running)
    assert serial(running, "tls") != before
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"


def test_a_peer_no_longer_certified_cannot_connect_again_and_a_connected_one_stays(running, papers) -> None:
    inside = running.over("tls")
    session = inside.open()
    former = running.papers.client_context(papers.clients["arm-7"])
    successor = papers.make_authority("ca", "another CA")
    hang_up(running)
    connected = tls(running.listening["tls"], former)
    with connected, pytest.raises(OSError, match="alert"):
        # With TLS 1.3 a client hears of it when it reads.
        connected.recv(1)
    assert inside.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    welcome = papers.client_context(papers.client("arm-9", authority=successor))
    welcome.load_verify_locations(cadata=papers.authority.cert.public_bytes(Encoding.PEM).decode())
    assert running.peer(tls(running.listening["tls"], welcome)).open()


@pytest.mark.proof
def test_a_signal_that_comes_again_and_again_costs_nothing(running, papers) -> None:
    peer = running.over("wss")
    session = peer.open()
    descriptors = running.descriptors()
    for number in range(50):
        running.signal(signal.SIGHUP)
        if number % 10 == 0:
            new_server_certificate(papers)
        # New connections come while certificates change: each sees one or the other, and is served.
        running.peer(web_socket(running.listening["wss"], papers.client_context(papers.clients["arm-7"]))).open()
        running.peers.pop().close()
    hang_up(running)
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    eventually(lambda: running.descriptors() <= descriptors, "the end of those who came")


def test_without_a_terminal_and_without_certificates_it_is_no_end_either(tmp_path) -> None:
    running = Hearthd(tmp_path)
    try:
        running.start(prefix=["setsid"])
        peer = running.peer()
        session = peer.open()
        hang_up(running)
        assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
        assert running.stop() == 0
    finally:
        running.end()


def test_in_a_terminal_it_reloads_until_the_terminal_has_gone_and_then_ends_with_safe_states(tmp_path, papers) -> None:
    running = OpenHearthd(tmp_path, papers)
    ours, theirs = os.openpty()
    # A session of its own takes the first terminal that it opens for its own.
    command = [sys.executable, "-m", "hearth.actors.daemon", "--config", str(running.config)]
    process = subprocess.Popen(
        ["sh", "-c", f'exec 0<>{os.ttyname(theirs)} 1>&0 2>&0; exec "$@"', "sh", *command], start_new_session=True
    )
    said = b""

    def until(what: bytes) -> None:
        nonlocal said
        while what not in said:
            said += os.read(ours, 1000)

    try:
        until(b"ready on")
        os.close(theirs)
        peer = Peer(running.socket)
        session = peer.open()
        peer.run(session, "gpio.set", line=17, value=1)
        process.send_signal(signal.SIGHUP)
        until(DONE.encode())
        assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
        os.close(ours)
        assert process.wait(BOUND) == 0
        peer.close()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    [closed] = running.records(event="session.close")
    assert closed["reason"] == "shutting down"
    assert closed["safe"]
