"""A disk that hangs: what acts on the machine waits for none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.hearthd import Hearthd, eventually, submission
from support.loop_tracer import LoopTracer
from support.mounts import Image, beside, mounted, need_root, seen_by
from vintages.make import run_job

from hearth.audit.verify import verify

BOARD = """
name = "bench"
description = "A simulated bench."
[[gpio]]
label = "sim"
driver = "sim"
names = ["LED", "PUMP", "DOOR", "RELAY", "BURNER", "SPARE", "OTHER", "LAST"]
wires = [["OTHER", "DOOR"]]
[gpio.lines.LED]
safe = 0
[gpio.lines.PUMP]
safe = 0
[gpio.lines.RELAY]
safe = 0
[gpio.lines.SPARE]
safe = 0
[gpio.lines.OTHER]
safe = 0
[gpio.lines.LAST]
safe = 0
[gpio.lines.BURNER]
safe = 0
limit = { max_on_ms = 300 }
[[interlock]]
drives = "LAST"
value = 1
requires = [{ line = "DOOR", value = 1 }]
"""

EVERYTHING = """
[http]
listen = "127.0.0.1:0"
[files]
read = ["{files}"]
write = ["{files}"]
[[policy]]
name = "me"
match = {{ uid = {uid} }}
max_risk = 3
rights = ["observe", "approve", "reset_halt", "admin"]
tools = ["*"]
approval = [{{ from_risk = 3, right = "approve", persons = 1 }}]
"""


def call(peer, method, **params):
    """The result of a call, which must have one."""
    answer = peer.call(method, params)
    assert "result" in answer, answer
    return answer["result"]


def get(address, path, body=None, **headers):
    request = urllib.request.Request(f"{address}{path}", None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=50) as answer:
        return answer.headers, answer.read()


def mcp(address, **headers):
    """A tool's call over MCP, with the handshake before it."""
    headers |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "0"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    answered, _ = get(address, "/mcp", hello, **headers)
    headers["mcp-session-id"] = answered["mcp-session-id"]
    get(address, "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, **headers)
    for number, (name, args) in enumerate((("gpio_set", {"line": "LED", "value": 1}), ("hw_board", {}))):
        asked = {"name": name, "arguments": args}
        get(address, "/mcp", {"jsonrpc": "2.0", "id": number + 2, "method": "tools/call", "params": asked}, **headers)
    get(address, "/mcp", {"jsonrpc": "2.0", "id": 9, "method": "tools/list"}, **headers)


def everything_once(daemon, files):
    """Every kind of request, each for the first time since the daemon is ready."""
    peer = daemon.peer()
    session = peer.open()
    call(peer, "tool.list", session_id=session)
    assert peer.run(session, "gpio.set", line="LED", value=1)["status"] == "SUCCESS"
    assert peer.run(session, "gpio.pulse", line="RELAY", value=1, duration_ms=5)["status"] == "SUCCESS"
    assert "error" in peer.call("task.submit", submission(session, ("gpio.set", {"line": "NONE", "value": 1})))
    keyed = submission(session, ("gpio.set", {"line": "LED", "value": 0}))
    keyed["task"]["idempotency_key"] = "one"
    task_id = call(peer, "task.submit", **keyed)["task_id"]
    peer.wait(session, task_id)
    call(peer, "task.get", session_id=session, task_id=task_id)
    for tool, args in (
        ("hw.board", {}),
        ("hw.gpio.list", {}),
        ("file.write", {"path": f"{files}/a", "text": "a"}),
        ("file.read", {"path": f"{files}/a"}),
        ("file.list", {"path": str(files)}),
        ("file.stat", {"path": f"{files}/a"}),
        ("sys.cpuinfo", {}),
        ("sys.memory", {}),
        ("sys.disk", {}),
        ("sys.load", {}),
        ("sys.network", {}),
        ("sys.uptime", {}),
        ("proc.list", {}),
        ("i2c.scan", {"bus": 1}),
        ("i2c.read", {"bus": 1, "addr": 0x48, "reg": 0, "len": 2}),
        ("i2c.write", {"bus": 1, "addr": 0x50, "data": "AAE="}),
        ("uart.write", {"port": "uart0", "text": "a"}),
        ("uart.read", {"port": "uart0", "timeout_ms": 5}),
        ("pwm.set", {"channel": "FAN", "duty": 0.2}),
        ("servo.move", {"servo": "ARM", "angle": 91}),
        ("dac.set", {"channel": "VALVE", "value": 1}),
        # It reads the shipped DBC file, in a thread. One of a profile's own is read before the daemon is ready.
        ("hw.can.list", {}),
        ("can.send", {"bus": "can0", "id": 291, "data": "AAE="}),
        ("can.read", {"bus": "can0", "count": 1, "timeout_ms": 1}),
        ("can.watch", {"bus": "can0", "count": 1, "timeout_ms": 5}),
        ("spi.transfer", {"device": "LOOP", "write": "AAE="}),
        ("spi.read", {"device": "MOTOR", "register": "SPEED"}),
        ("modbus.read", {"device": "FAN", "name": "run"}),
        ("modbus.write", {"device": "FAN", "name": "speed", "value": 5}),
        ("hw.sensor.read", {"sensor": "tank"}),
    ):
        step = peer.run(session, tool, **args)
        assert step["status"] == "SUCCESS", step
    task = submission(session, ("file.delete", {"path": f"{files}/a"}))["task"]
    plan = call(peer, "plan.prepare", session_id=session, task=task)
    call(peer, "plan.list", session_id=session)
    call(peer, "plan.get", session_id=session, plan_id=plan["plan_id"])
    call(peer, "plan.approve", session_id=session, plan_id=plan["plan_id"], hash=plan["hash"])
    peer.wait(session, call(peer, "plan.execute", session_id=session, plan_id=plan["plan_id"])["task_id"])
    other = submission(session, ("gpio.set", {"line": "LED", "value": 1}))["task"]
    rejected = call(peer, "plan.prepare", session_id=session, task=other)
    call(peer, "plan.reject", session_id=session, plan_id=rejected["plan_id"])
    bounds = {"path": {"equals": f"{files}/b"}, "text": {"any": True}}
    given = call(peer, "approval.grant", session_id=session, tool="file.write", args=bounds, times=1, within_s=60)
    call(peer, "approval.list", session_id=session)
    call(peer, "approval.revoke", session_id=session, approval_id=given["approval_id"])
    call(peer, "observe.subscribe", session_id=session)
    call(peer, "observe.unsubscribe", session_id=session)
    call(peer, "observe.audit", session_id=session, from_seq=1)
    # The first job of a daemon makes its files.
    run_job(daemon)
    for method in ("hcp.capabilities", "hcp.pending", "hcp.sessions"):
        call(peer, method)
    call(peer, "task.events.subscribe", session_id=session, task_id=task_id)
    call(peer, "mcp.info", session_id=session)
    call(peer, "mcp.tools", session_id=session)
    watch = peer.submit(session, ("gpio.watch", {"line": "DOOR", "timeout_ms": 30_000}))
    call(peer, "task.cancel", session_id=session, task_id=watch)
    call(peer, "halt", session_id=session, reason="a test")
    call(peer, "halt.status", session_id=session)
    eventually(lambda: "result" in peer.call("halt.reset", {"session_id": session}), "the reset")
    call(peer, "attest.key", session_id=session)
    call(peer, "attest.quote", session_id=session, nonce="000102030405060708090a0b0c0d0e0f")
    call(peer, "policy.reload", session_id=session)
    daemon.signal(signal.SIGHUP)
    eventually(lambda: len(daemon.records(event="policy.reload")) == 2, "the second reload")
    # Enough records for a new file of the log, and for a signature.
    for turn in range(30):
        peer.run(session, "gpio.set", line="LED", value=turn % 2)
    call(peer, "session.close", session_id=session)
    dying = daemon.peer()
    lost = dying.open(on_disconnect="close")
    dying.run(lost, "gpio.set", line="PUMP", value=1)
    dying.close()
    eventually(lambda: daemon.records(event="session.close", session_id=lost), "the deadman")
    address = daemon.listening["http"]
    assets = ["", *(name for name in ("app.js", "style.css"))]
    for path in (*(f"/ui/{name}" for name in assets), "/healthz", "/metrics", "/.well-known/agentcard"):
        with suppress(urllib.error.HTTPError):
            get(address, path)
    mcp(address)


@contextmanager
def running(directory, config="", **more):
    daemon = Hearthd(directory, config, **more)
    try:
        yield daemon
    finally:
        daemon.end()


@pytest.mark.proof
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_after_ready_the_event_loop_makes_no_call_that_a_disk_can_hold_up(tmp_path, durability):
    files = tmp_path / "files"
    files.mkdir()
    audit = f'durability = "{durability}"\ncheckpoint_every = 50\nrotate_bytes = 20000'
    with running(tmp_path, EVERYTHING.format(files=files, uid=os.getuid()), audit=audit) as daemon:
        daemon.start("--board", "sim")
        assert daemon.process is not None
        with LoopTracer(daemon.process.pid, tmp_path) as tracer:
            everything_once(daemon, files)
    assert tracer.on_disk() == []


@pytest.fixture
def frozen_disk(tmp_path):
    """A daemon whose log is on an ext4 of its own, on a loop device; `freeze` and `thaw` it."""
    need_root()
    if shutil.which("fsfreeze") is None:
        pytest.skip("fsfreeze is not here (Debian: apt-get install util-linux)")
    image = Image(tmp_path / "image")
    place = tmp_path / "disk"
    place.mkdir()
    board = tmp_path / "board.toml"
    board.write_text(BOARD)
    try:
        with running(tmp_path, f'[board]\nprofile = "{board}"\n', logs=place, audit='durability = "os"') as daemon:
            daemon.start(prefix=mounted(image.device, str(place)))
            try:
                yield daemon, Frozen(daemon, place)
            finally:
                Frozen(daemon, place).thaw(check=False)
    finally:
        image.close()


class Frozen:
    """The file system of a daemon's log."""

    def __init__(self, daemon, place):
        self._pid, self._place = daemon.process.pid, place

    def freeze(self):
        beside(self._pid, "fsfreeze", "-f", str(self._place))

    def thaw(self, *, check=True):
        command = ["nsenter", "-t", str(self._pid), "-m", "--", "fsfreeze", "-u", str(self._place)]
        subprocess.run(command, check=check, capture_output=True)


@pytest.mark.proof
def test_with_a_frozen_disk_halt_deadman_and_limits_act_and_the_log_is_whole_after_the_thaw(frozen_disk):
    daemon, disk = frozen_disk
    watcher = daemon.peer()
    observed = watcher.open()

    def levels():
        """The driven lines, as a dashboard sees them: a request that needs no record."""
        state = call(watcher, "observe.state", session_id=observed)
        return {line["name"]: line["value"] for line in state["lines"]}

    peer, dying = daemon.peer(), daemon.peer()
    session, lost = peer.open(), dying.open(on_disconnect="close")
    peer.run(session, "gpio.set", line="RELAY", value=1)
    peer.run(session, "gpio.set", line="PUMP", value=1)
    dying.run(lost, "gpio.set", line="OTHER", value=1)
    peer.run(session, "gpio.set", line="LAST", value=1)
    peer.run(session, "gpio.set", line="BURNER", value=1)
    disk.freeze()
    # A set of a new output, whose wait must hold up nothing.
    asked = peer.start("task.submit", submission(session, ("gpio.set", {"line": "SPARE", "value": 1})))
    eventually(lambda: levels()["BURNER"] == 0, "the end of what has been on for long enough")
    dying.close()
    eventually(lambda: levels()["OTHER"] == 0, "the deadman")
    eventually(lambda: levels()["LAST"] == 0, "the interlock, which the deadman has opened")
    assert levels()["PUMP"] == levels()["RELAY"] == 1
    answer = peer.line()
    assert answer["id"] == asked
    assert answer["error"]["code"] == -32011, answer
    assert answer["error"]["data"]["effect"] == "none"
    # From then on the log counts as one that cannot be written: reads go on.
    assert peer.run(session, "gpio.get", line="DOOR")["status"] == "SUCCESS"
    assert levels()["SPARE"] != 1
    halting = daemon.peer()
    halting.start("halt", {"session_id": session, "reason": "a test"})
    eventually(lambda: levels()["PUMP"] == levels()["RELAY"] == 0, "the halt")
    disk.thaw()
    assert daemon.process is not None
    log = seen_by(daemon.process.pid, daemon.audit)
    eventually(lambda: b'"event":"halt"' in log.read_bytes(), "the record of the halt")
    # What ended first is on record first, and the log says since when it was not written.
    events = [json.loads(line)["event"] for line in log.read_bytes().splitlines()]
    assert [event for event in events if event in ("limit.max_on", "halt")] == ["limit.max_on", "halt"]
    assert {"audit.resume", "interlock.open"} <= {*events}
    report = verify(Path(shutil.copy(log, daemon.directory / "copy.log")))
    assert report.ok, report.first_bad
    assert daemon.stop() == 0


@pytest.mark.proof
def test_with_a_disk_that_hangs_hearth_halt_is_answered_and_says_that_the_halt_is_not_on_the_disk(frozen_disk):
    daemon, disk = frozen_disk
    disk.freeze()
    try:
        command = [sys.executable, "-m", "hearth.cli.main", "halt", "smoke", "--to", f"unix:{daemon.socket}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    finally:
        disk.thaw()
    assert ended.returncode == 1, ended.stderr
    assert "the disk does not answer" in ended.stdout
