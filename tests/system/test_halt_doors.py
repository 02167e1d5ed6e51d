"""Every load that could keep a halt out, by every door through which a person or a model halts: real processes.

One daemon for each load. Behind each door the output is safe, the halt is on record, and its answer has come, while the
load goes on. A session that was there before the load resets the halt for the next door.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.hearthd import BOUND, Hearthd, Wire, eventually, request, submission, unix_socket
from support.mcp import RawMcp
from support.mounts import Image, beside, mounted, need_root, seen_by
from support.users import ordinary_user

from hearth.config.model import halt_socket

HEARTH = Path(sys.executable).parent / "hearth"
BOARD = 'name = "bench"\ndescription = "x"\n[[gpio]]\nlabel = "sim"\ndriver = "sim"\nnames = ["LED"]\n'
SAFE = "[gpio.lines.LED]\nsafe = 0\n"
CONFIG = """
[board]
profile = "{board}"
[http]
listen = "127.0.0.1:0"
[[policy]]
name = "own"
match = {{ uid = {uid} }}
max_risk = 2
rights = ["observe", "reset_halt", "admin"]
"""


class Site:
    """A daemon, with the clients that are there before the load comes."""

    def __init__(self, daemon, stack, doors):
        self.daemon, self.stack = daemon, stack
        self.frozen = False
        self.operator = daemon.peer()
        self.session = self.operator.open(client_name="operator")
        assert self.operator.run(self.session, "gpio.set", line="LED", value=1)["status"] == "SUCCESS"
        if mcp_stdio in doors:
            self.bridge = stack.enter_context(RawMcp(f"unix:{daemon.socket}"))
            self.bridge.initialize()
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "0"}}
        self.mcp_session = self.post("initialize", hello).headers["mcp-session-id"]

    @property
    def port(self):
        return int(self.daemon.listening["http"].rpartition(":")[2])

    def post(self, method, params):
        """A request of MCP on a connection of its own."""
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if method != "initialize":
            headers |= {"mcp-session-id": self.mcp_session, "mcp-protocol-version": "2025-11-25"}
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()
        asked = urllib.request.Request(f"{self.daemon.listening['http']}/mcp", body, headers)
        answer = urllib.request.urlopen(asked, timeout=BOUND)
        self.stack.enter_context(answer)
        return answer

    def ask(self, method, **params):
        answer = self.operator.call(method, {"session_id": self.session, **params})
        assert "result" in answer, answer
        return answer["result"]

    def level(self):
        return next(one["value"] for one in self.ask("observe.state")["lines"] if one["name"] == "LED")


# --- doors: each halts with a reason, and returns once it is answered -------------------------------------------------


def terminal(site, reason):
    done = subprocess.run(
        [str(HEARTH), "halt", "by", "the", reason],
        env={**os.environ, "HEARTH_SOCKET": str(site.daemon.socket)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=4 * BOUND, check=False,
    )  # fmt: skip
    # 1 where the halt cannot be written to the disk.
    assert done.returncode == int(site.frozen), done.stderr
    assert "halted" in done.stdout
    return f"by the {reason}"


def line(site, reason):
    client = Wire(halt_socket(site.daemon.socket))
    client.send(request("stop", "halt", {"reason": reason}))
    assert client.line()["result"]["halted"]
    client.close()
    return reason


class Page:
    """What a page that is opened now does: read the page, open its WebSocket, ask there."""

    def __init__(self, site):
        with urllib.request.urlopen(f"{site.daemon.listening['http']}/ui/", timeout=BOUND) as answer:
            assert answer.status == 200
        self.wire = Wire(socket.create_connection(("127.0.0.1", site.port)))
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET /hacp HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.wire.send(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode())
        assert b" 101 " in self.wire.raw()
        while self.wire.raw() != b"\r\n":
            pass

    def call(self, method, **params):
        text = request(1, method, params)
        length = bytes([0x80 | len(text)]) if len(text) < 126 else bytes([0xFE]) + len(text).to_bytes(2, "big")
        self.wire.send(b"\x81" + length + bytes(4) + text)
        while True:
            length = self.wire._lines.read(2)[1]
            length = length if length < 126 else int.from_bytes(self.wire._lines.read(2), "big")
            answer = json.loads(self.wire._lines.read(length))
            if answer.get("id") == 1:
                return answer


def page(site, reason):
    opened = Page(site)
    assert opened.call("halt", reason=reason)["result"]["halted"]
    opened.wire.close()
    return reason


def mcp_http(site, reason):
    answer = json.load(site.post("tools/call", {"name": "hacp_halt", "arguments": {"reason": reason}}))
    assert answer["result"].get("structuredContent", {}).get("halted"), answer
    return reason


def mcp_stdio(site, reason):
    answer = site.bridge.call("tools/call", {"name": "hacp_halt", "arguments": {"reason": reason}})
    assert answer["result"].get("structuredContent", {}).get("halted"), answer
    return reason


DOORS = (terminal, line, page, mcp_http, mcp_stdio)


# --- loads: each is there while the doors are tried -------------------------------------------------------------------


@contextmanager
def kept(crowd):
    """Close these sockets when the block ends."""
    try:
        yield
    finally:
        for one in crowd:
            one.close()


@contextmanager
def sessions(site):
    """As many sessions of one's own as one may have."""
    peer = site.daemon.peer()
    while "result" in (answer := peer.call("session.open")):
        pass
    assert "sessions are open" in answer["error"]["message"], answer
    yield


@contextmanager
def strangers(site):
    """Peers that no policy entry matches, on the socket and on the HTTP listener."""
    with ordinary_user():
        crowd = [unix_socket(site.daemon.socket) for _ in range(1024)]
        crowd += [socket.create_connection(("127.0.0.1", site.port)) for _ in range(40)]
    with kept(crowd):
        yield


@contextmanager
def descriptors(site):
    """One's own connections, until no descriptor is left for one more; some of them over HTTP."""
    crowd = [unix_socket(site.daemon.socket) for _ in range(200)]
    crowd[-1].settimeout(BOUND)
    assert b"descriptors the others are in use" in crowd[-1].recv(4096)
    crowd += [socket.create_connection(("127.0.0.1", site.port)) for _ in range(40)]
    with kept(crowd):
        yield


@contextmanager
def rate(site):
    """Sessions that are opened and closed, until no more may be opened for the moment."""
    peer = site.daemon.peer()
    while "result" in (answer := peer.call("session.open")):
        peer.call("session.close", {"session_id": answer["result"]["session_id"]})
    assert answer["error"]["code"] == -32006, answer
    yield


@contextmanager
def writer(site):
    """The audit log's disk is frozen, and tasks wait for their records."""
    pid, place = site.daemon.process.pid, str(site.daemon.audit.parent)
    beside(pid, "fsfreeze", "-f", place)
    site.frozen = True
    try:
        peer = site.daemon.peer()
        for _ in range(20):
            peer.start("task.submit", submission(site.session, ("gpio.get", {"line": "LED"})))
        site.daemon.peer().start("session.open")
        yield
    finally:
        command = ["nsenter", "-t", str(pid), "-m", "--", "fsfreeze", "-u", place]
        subprocess.run(command, check=False, capture_output=True)


@contextmanager
def pipelining(site):
    """Sixty sessions of one's own that ask without a pause: with the others, as many as one may have."""
    over, waiting = threading.Event(), {}
    for _ in range(60):
        peer = site.daemon.peer()
        waiting[peer.socket] = request(1, "tool.list", {"session_id": peer.open()}) * 100
        peer.socket.setblocking(False)
    bursts = dict(waiting)

    def flood():
        while not over.is_set():
            readable, writable, _ = select.select(waiting, waiting, [], 0.2)
            for one in readable:
                one.recv(1 << 20)
            for one in writable:
                sent = one.send(waiting[one])
                waiting[one] = waiting[one][sent:] or bursts[one]

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(BOUND)


LOADS = (sessions, strangers, descriptors, rate, writer, pipelining)


@contextmanager
def running(load, doors, directory):
    """A daemon under no load yet; its log on a disk of its own where that is to hang."""
    with ExitStack() as stack:
        board = directory / "board.toml"
        board.write_text(BOARD + SAFE)
        prefix, logs, server = (), None, ""
        if load is strangers:
            if os.geteuid() != 0:
                pytest.skip("only root can be somebody else")
            server = 'socket_mode = "0666"'
        if load is descriptors:
            prefix = ("prlimit", "--nofile=200:200")
        if load is writer:
            need_root()
            if shutil.which("fsfreeze") is None:
                pytest.skip("fsfreeze is not here (Debian: apt-get install util-linux)")
            image = Image(directory / "image")
            stack.callback(image.close)
            logs = directory / "disk"
            logs.mkdir()
            prefix = mounted(image.device, str(logs))
        config = CONFIG.format(board=board, uid=os.geteuid())
        daemon = Hearthd(directory, config, server=server, logs=logs, audit='durability = "os"')
        stack.callback(daemon.end)
        yield Site(daemon.start(prefix=prefix), stack, doors)
        assert "Traceback" not in daemon.said


def try_doors(load, doors, directory):
    with running(load, doors, directory) as site:
        with load(site):
            reasons = []
            for door in doors:
                reasons.append(door(site, door.__name__.replace("_", " ")))
                eventually(lambda: site.level() == 0, f"a safe output after {door.__name__}")
                status = site.ask("halt.status")
                assert [hold["last_reason"] for hold in status["holds"]] == reasons[-1:]
                if not site.frozen:
                    site.daemon.recorded(event="halt", reason=reasons[-1])
                    eventually(lambda: "result" in site.operator.call("halt.reset", {"session_id": site.session}))
                    # Where no task may be begun the output stays as it is.
                    site.operator.call(
                        "task.submit", submission(site.session, ("gpio.set", {"line": "LED", "value": 1}))
                    )
        if site.frozen:
            log = seen_by(site.daemon.process.pid, site.daemon.audit)
            eventually(lambda: f'"reason":"{reasons[0]}"'.encode() in log.read_bytes(), "the record of the first halt")


@pytest.mark.proof
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.__name__)
def test_no_load_keeps_a_halt_out_by_any_door(load, open_place):
    try_doors(load, DOORS, open_place)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "door"), [(sessions, page), (descriptors, mcp_http), (rate, line)], ids=lambda one: one.__name__
)
def test_a_halt_comes_in(load, door, open_place):
    try_doors(load, [door], open_place)
