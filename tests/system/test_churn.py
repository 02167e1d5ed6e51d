"""Crowds: thousands that come and go at every moment of a handshake, and thousands that stay and say nothing."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import selectors
import socket
import ssl
import struct
import threading
from collections import Counter

import pytest
from support.carriers import TOKENS, Papers
from support.dialing import OpenHearthd, Refused, place, tcp, tls, web_socket
from support.hearthd import Peer, eventually, request

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("unmeasured")]

CYCLES = 10_000
PARTS = 5
WARM_UP = 900
DRIVERS = 3
IDLE = 5_000
OPEN = request(1, "session.open", {"on_disconnect": "close"})


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def daemon(tmp_path, papers):
    """`daemon(config)`: makes one, and ends it."""
    made = []

    def make(config: str, **more) -> OpenHearthd:
        made.append(OpenHearthd(tmp_path, papers, config, **more))
        return made[-1].start()

    yield make
    for running in made:
        running.end()
        assert "crashed" not in running.said
        assert "Traceback" not in running.said


def reset(connected: socket.socket) -> None:
    """Make its close a reset."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Driver(threading.Thread):
    """One of those who come and go: its visits are drawn from its seed."""

    def __init__(self, running: OpenHearthd, seed: int, visits: int) -> None:
        super().__init__(name=f"driver {seed}", daemon=True)
        self._running = running
        self._rng = random.Random(seed)
        self._visits = visits
        papers = running.papers
        self._certified = papers.client_context(papers.clients["arm-7"])
        self._anonymous = papers.client_context(anonymous=True)
        self.done: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        kinds = [
            *(self.unix_session, self.unix_half_a_line, self.unix_nothing),
            *(self.tls_session, self.tls_vanishes, self.tls_half_a_hello, self.tls_nothing, self.tls_anonymous),
            *(self.ws_session, self.ws_vanishes, self.ws_half_a_request, self.ws_nothing, self.ws_wrong_token),
        ]
        try:
            for _ in range(self._visits):
                visit = self._rng.choice(kinds)
                visit()
                self.done[visit.__name__] += 1
        except BaseException as error:  # noqa: BLE001  raised again by the test
            self.error = error

    # --- unix ---------------------------------------------------------------------------------------------------

    def unix_session(self) -> None:
        self._session(Peer(self._running.socket))

    def unix_half_a_line(self) -> None:
        self._say(self._running.dial("unix"), OPEN[:-20])

    def unix_nothing(self) -> None:
        self._running.dial("unix").close()

    # --- tls ----------------------------------------------------------------------------------------------------

    def tls_session(self) -> None:
        self._session(Peer(tls(self._running.listening["tls"], self._certified)))

    def tls_vanishes(self) -> None:
        connected = tls(self._running.listening["tls"], self._certified)
        reset(connected)
        self._say(connected, OPEN)

    def tls_half_a_hello(self) -> None:
        hello = bytes.fromhex("16030102000100") + os.urandom(self._rng.randrange(200))
        self._say(tcp(self._running.listening["tls"]), hello)

    def tls_nothing(self) -> None:
        connected = tcp(self._running.listening["tls"])
        reset(connected)
        connected.close()

    def tls_anonymous(self) -> None:
        # With TLS 1.3 the handshake is done before the client hears that it lacks a certificate.
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            self._say(tls(self._running.listening["tls"], self._anonymous), OPEN)

    # --- websocket ----------------------------------------------------------------------------------------------

    def ws_session(self) -> None:
        peer = Peer(web_socket(self._running.listening["ws"], token=TOKENS["alice"]))
        assert peer.open(on_disconnect="close")
        assert peer.socket.goodbye() == 1000
        peer.close()

    def ws_vanishes(self) -> None:
        messages = web_socket(self._running.listening["ws"])
        reset(messages.socket)
        self._say(messages, OPEN)

    def ws_half_a_request(self) -> None:
        whole = upgrade(self._running.listening["ws"])
        self._say(tcp(self._running.listening["ws"]), whole[: self._rng.randrange(len(whole) - 1)])

    def ws_nothing(self) -> None:
        tcp(self._running.listening["ws"]).close()

    def ws_wrong_token(self) -> None:
        try:
            web_socket(self._running.listening["ws"], token=f"hearth_{self._rng.random()}").close()
        except Refused as refused:
            assert refused.status == 401  # noqa: PT017  one of several ways of a visit
        else:
            raise AssertionError("a wrong token was let in")

    # --- what they have in common -------------------------------------------------------------------------------

    @staticmethod
    def _session(peer: Peer) -> None:
        assert peer.open(on_disconnect="close")
        peer.close()

    @staticmethod
    def _say(connected, data: bytes) -> None:
        """Say this, and be gone."""
        with contextlib.suppress(ConnectionError):
            connected.sendall(data)
        connected.close()


def upgrade(address: str) -> bytes:
    """A request for a WebSocket, by whoever owns the socket that it comes from."""
    host, port = place(address)
    return (
        f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: hacp.v0\r\n\r\n"
    ).encode()


def come_and_go(running: OpenHearthd, visits: int, seed: int) -> Counter[str]:
    """Let as many come and go, and wait until all have gone."""
    drivers = [Driver(running, seed + number, visits // DRIVERS) for number in range(DRIVERS)]
    for driver in drivers:
        driver.start()
    done: Counter[str] = Counter()
    for driver in drivers:
        driver.join()
        if driver.error is not None:
            raise driver.error
        done += driver.done
    return done


class Steady(threading.Thread):
    """Clients that are there all the time, one on each carrier: they work without pause, and watch a task of theirs."""

    def __init__(self, running: OpenHearthd) -> None:
        super().__init__(name="steady", daemon=True)
        self._over = threading.Event()
        self.peers = {kind: running.over(kind) for kind in ("unix", "tls", "ws")}
        self.sessions = {kind: peer.open() for kind, peer in self.peers.items()}
        watch = ("gpio.watch", {"line": 4, "timeout_ms": 600_000})
        self.tasks = {kind: peer.submit(self.sessions[kind], watch) for kind, peer in self.peers.items()}
        self.rounds = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(0.05):
                self.round()
        except BaseException as error:  # noqa: BLE001  raised again by the test
            self.error = error

    def round(self) -> None:
        """Each works as ever."""
        for kind, peer in self.peers.items():
            here = {"session_id": self.sessions[kind], "task_id": self.tasks[kind]}
            assert peer.run(self.sessions[kind], "gpio.get", line=4)["status"] == "SUCCESS"
            assert peer.call("task.get", here)["result"]["status"] == "RUNNING"
        self.rounds += 1

    def end(self) -> None:
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error


def test_10000_that_come_and_go_leave_nothing_and_a_client_that_stays_notices_nothing(daemon) -> None:
    running = daemon('[limits]\nmax_sessions_per_principal = 1000\nsession_rate = "10000/s"\n')
    steady = Steady(running)
    peer, session = running.peer(), next(iter(steady.sessions.values()))

    def nobody_else() -> bool:
        return peer.run(session, "hw.board")["result"]["health"]["sessions"] == len(steady.peers)

    # A task's history is bounded, but has first to be full.
    for _ in range(300):
        steady.round()
    steady.start()
    come_and_go(running, WARM_UP, seed=1)
    eventually(nobody_else, "the end of those who came")
    eventually(lambda: running.descriptors() <= 64, "the end of those who came")
    # The files are hashed once, for the first statement or soon after the start: that takes some MiB for good.
    peer.call("attest.quote", {"session_id": session, "nonce": "0f" * 16})
    descriptors, threads, rounds = running.descriptors(), running.threads(), steady.rounds

    done: Counter[str] = Counter()
    memory = [running.memory()]
    for part in range(PARTS):
        done += come_and_go(running, CYCLES // PARTS, seed=1000 + 10 * part)
        memory.append(running.memory())
    assert done.total() >= CYCLES - DRIVERS * PARTS
    assert min(done.values()) > CYCLES / 40, done
    eventually(nobody_else, "the end of those who came")
    eventually(lambda: running.descriptors() <= descriptors, "the end of those who came")
    eventually(lambda: running.threads() <= threads, "threads as before")
    assert memory[-1] <= memory[0] + 8, f"10,000 connections may not cost more than some bytes each: {memory}"
    steady.end()
    assert steady.rounds > rounds + 10


class Idle(threading.Thread):
    """Thousands of WebSockets that say nothing but what the protocol asks of them: a pong for a ping."""

    def __init__(self, address: str) -> None:
        super().__init__(name="idle", daemon=True)
        self._address = address
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self.sockets: list[socket.socket] = []
        self.pongs = 0
        self.lost = 0

    def connect(self) -> None:
        """One more."""
        connected = tcp(self._address)
        connected.sendall(upgrade(self._address))
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = connected.recv(4096)
            assert part, "the server closed in the handshake"
            answer += part
        assert answer.startswith(b"HTTP/1.1 101 ")
        self.sockets.append(connected)
        self._selector.register(connected, selectors.EVENT_READ)

    def run(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.1):
                said = key.fileobj.recv(4096)
                if not said:
                    self.lost += 1
                    self._selector.unregister(key.fileobj)
                for _ in range(said.count(b"\x89\x00")):
                    key.fileobj.sendall(b"\x8a\x80\0\0\0\0")
                    self.pongs += 1

    def end(self) -> None:
        """Close all of them without goodbye."""
        self._over.set()
        if self.ident is not None:
            self.join()
        self._selector.close()
        for connected in self.sockets:
            connected.close()


@pytest.fixture
def descriptors_enough():
    """Room for both ends' needs: each process has its own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} descriptors are allowed here: `ulimit -Hn` must be at least {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("descriptors_enough")
def test_5000_that_say_nothing_are_held_and_gone_when_they_go(daemon) -> None:
    limits = f"[limits]\nmax_connections = {IDLE + 100}\nmax_retained_bytes = {256 << 20}\n"
    running = daemon(limits, websocket="ping_interval_s = 5\nping_timeout_s = 300\n")
    peer = running.over("ws")
    session = peer.open()
    descriptors, threads = running.descriptors(), running.threads()
    crowd = Idle(running.listening["ws"])
    try:
        for _ in range(200):
            crowd.connect()
        first = running.memory()
        while len(crowd.sockets) < IDLE:
            crowd.connect()
            if len(crowd.sockets) == 1000:
                crowd.start()
        eventually(lambda: crowd.pongs >= IDLE, "a pong of each")
        assert crowd.lost == 0
        assert running.descriptors() > IDLE
        held = running.memory()
        assert (held - first) * 1024 / (IDLE - 200) <= 48, "KiB for each"
        assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
        assert running.over("ws").open(on_disconnect="close"), "one more is welcome"
        running.peers.pop().close()
    finally:
        crowd.end()
    eventually(lambda: running.descriptors() <= descriptors, "the end of the crowd")
    assert running.threads() <= threads
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    assert peer.health()["sessions"] == 2
