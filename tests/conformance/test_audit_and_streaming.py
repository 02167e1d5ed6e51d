"""HACP draft, sections 7 to 10: audit, streaming, versions and the Unix socket, against a running hearthd."""

from __future__ import annotations

import grp
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.audit.verify import verify
from hearth.config.model import default_socket
from hearth.policy.principal import Principal
from hearth.policy.rules import decide, default_policy

READ = ("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2})
WATCH = ("gpio.watch", {"line": 3, "timeout_ms": 60_000})
NOBODY = ("i2c.read", {"bus": 1, "addr": "0x23", "len": 1})


# --- 7 --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "7",
    "MUST",
    "Every accepted task.submit, every step start, every step finish, and every session.open and session.close MUST "
    "generate an audit event.",
)
@pytest.mark.spec(
    "13",
    "is",
    "The audit log records the full sequence of operations performed on behalf of an agent, including a hash of "
    "arguments.",
)
def test_7_sessions_tasks_and_steps_are_all_on_record_in_the_order_they_happened(peer, daemon) -> None:
    session = peer.open()
    task_id = peer.submit(session, ("gpio.set", {"line": 1, "value": 1}), NOBODY, READ)
    peer.finished(session, task_id)
    peer.result("session.close", {"session_id": session})
    records = daemon.records(session_id=session)
    assert [(record["event"], record.get("step_index"), record.get("status")) for record in records] == [
        ("session.open", None, None),
        ("task.submit", None, None),
        ("task.step.start", 0, None),
        ("task.step.finish", 0, "SUCCESS"),
        ("task.step.start", 1, None),
        ("task.step.finish", 1, "FAILED"),
        ("task.finish", None, "FAILED"),
        ("session.close", None, None),
    ]
    finish = records[3]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", finish["ts"])
    assert (finish["task_id"], finish["tool"]) == (task_id, "gpio.set")
    assert finish["latency_ms"] >= 0
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", finish["args_hash"])


@pytest.mark.spec("7", "SHOULD", "Audit logs SHOULD be append-only and rotation-friendly (newline-delimited JSON).")
def test_7_the_log_is_only_ever_appended_to(peer, session, daemon) -> None:
    before = daemon.audit.read_bytes()
    peer.run(session, ("gpio.set", {"line": 1, "value": 0}))
    after = daemon.audit.read_bytes()
    assert len(after) > len(before)
    assert after.startswith(before)
    assert after.endswith(b"\n")
    assert all(isinstance(json.loads(line), dict) for line in after.splitlines())
    assert daemon.process is not None
    links = Path(f"/proc/{daemon.process.pid}/fd").iterdir()
    (number,) = [link.name for link in links if link.exists() and link.readlink() == daemon.audit]
    flags = re.search(r"flags:\s*(\d+)", Path(f"/proc/{daemon.process.pid}/fdinfo/{number}").read_text())
    assert flags is not None
    assert int(flags[1], 8) & os.O_APPEND, "the kernel, too, lets it write at the end only"


@pytest.mark.spec("13", "is", "Standard log retention, access control, and minimization practices apply.")
@pytest.mark.spec("7", "SHOULD", "Audit logs SHOULD be append-only and rotation-friendly (newline-delimited JSON).")
def test_7_rotated_files_are_whole_lines_and_one_chain(hearthd) -> None:
    running = hearthd(audit="rotate_bytes = 4096\ncheckpoint_every = 20")
    peer = running.peer()
    session = peer.open()
    for _ in range(20):
        peer.run(session, ("gpio.get", {"line": 1}))
    assert running.stop() == 0
    files = [*sorted(running.directory.glob("audit.log.0*")), running.audit]
    assert len(files) > 2
    seqs = []
    for file in files:
        assert file.read_bytes().endswith(b"\n")
        seqs += [json.loads(line)["seq"] for line in file.read_bytes().splitlines()]
    assert seqs == list(range(1, len(seqs) + 1))
    report = verify(running.audit)
    assert report.ok, report.first_bad


@pytest.mark.spec(
    "7",
    "MAY",
    "Implementations MAY chain consecutive records cryptographically (for example, by including the SHA-256 hash of "
    "the previous record in the next record) to provide tamper evidence.",
)
@pytest.mark.spec(
    "12",
    "SHOULD",
    "Operators SHOULD store audit logs on append-only media or use cryptographic chaining (Section 7) to detect "
    "tampering after the fact.",
)
def test_7_each_record_has_the_hash_of_the_line_before_and_tampering_shows(hearthd, tmp_path: Path) -> None:
    running = hearthd()
    peer = running.peer()
    peer.run(peer.open(), ("gpio.set", {"line": 1, "value": 1}))
    assert running.stop() == 0
    lines = running.audit.read_bytes().splitlines()
    previous = "sha256:" + "0" * 64
    for line in lines:
        assert json.loads(line)["prev"] == previous
        previous = "sha256:" + hashlib.sha256(line).hexdigest()
    assert verify(running.audit).ok
    forged = tmp_path / "forged.log"
    forged.write_bytes(running.audit.read_bytes().replace(b'"gpio.set"', b'"gpio.get"', 1))
    assert not verify(forged).ok
    assert not verify(_without(lines, 2, forged)).ok, "nor can a record be taken out"


def _without(lines: list[bytes], index: int, path: Path) -> Path:
    path.write_bytes(b"".join(line + b"\n" for number, line in enumerate(lines) if number != index))
    return path


# --- 8 --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("8", "MAY", "A server MAY advertise the CAP_STREAMING_TASK_EVENTS capability in session.open.")
def test_8_streaming_is_advertised(peer) -> None:
    assert "CAP_STREAMING_TASK_EVENTS" in peer.result("session.open")["capabilities"]


@pytest.mark.spec("8", "MAY", "If present, clients MAY call:")
@pytest.mark.spec("8", "is", "The server then sends one or more notifications (JSON-RPC objects with no id):")
@pytest.mark.spec("8", "is", "Phases: start, progress, finish, task_finish.")
def test_8_a_subscription_is_sent_notifications_of_all_four_phases(peer, session) -> None:
    task_id = peer.submit(session, ("com.example.chatter", {"count": 3}))
    assert peer.result("task.events.subscribe", {"session_id": session, "task_id": task_id})
    said = [*peer.notifications]
    while not said or said[-1]["params"]["phase"] != "task_finish":
        said.append(peer.line())
    for notification in said:
        assert set(notification) == {"jsonrpc", "method", "params"}, "no id"
        assert (notification["jsonrpc"], notification["method"]) == ("2.0", "task.event")
        assert notification["params"]["task_id"] == task_id
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", notification["params"]["ts"])
    assert [(n["params"]["phase"], n["params"].get("step_index")) for n in said] == [
        ("start", 0), ("progress", 0), ("progress", 0), ("progress", 0), ("finish", 0), ("task_finish", None),
    ]  # fmt: skip


@pytest.mark.spec("8", "is", "The subscription ends implicitly when the task reaches a terminal status.")
def test_8_after_task_finish_the_subscription_has_ended(peer, session) -> None:
    task_id = peer.submit(session, READ, subscribe=True)
    peer.events_until("task_finish")
    peer.run(session, READ)
    assert peer.is_silent()
    assert not peer.notifications, "neither of that task nor of a later one"
    peer.result("task.events.subscribe", {"session_id": session, "task_id": task_id})
    assert peer.events_until("task_finish")[0]["seq"] == 1, "who subscribes afterwards is told all of it"
    assert peer.is_silent()


# --- 9 --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("9", "is", "The protocol uses Semantic Versioning [SEMVER] as MAJOR.MINOR.PATCH:")
@pytest.mark.spec("9", "MUST", "Servers MUST advertise their highest supported version in the session.open result.")
@pytest.mark.parametrize("asked", [None, "0.1.0", "0.0.9", "0.7.3", "0.1.0-rc.1+build.5"])
def test_9_the_highest_supported_version_is_in_the_result_whatever_the_client_speaks(peer, asked) -> None:
    version = peer.result("session.open", {} if asked is None else {"protocol_version": asked})["protocol_version"]
    assert version == "0.1.0"


# --- 10.1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "10.1",
    "is",
    "Default path: implementation-defined; the reference implementation uses /run/hearth/hearth.sock when started as a "
    "system service or /tmp/hearth/hearth.sock for unprivileged use.",
)
def test_10_1_the_default_socket_is_where_the_reference_has_it() -> None:
    assert default_socket({}, 0) == Path("/run/hearth/hearth.sock")
    assert default_socket({"RUNTIME_DIRECTORY": "/run/hearth"}, 990) == Path("/run/hearth/hearth.sock")
    assert default_socket({}, 1000) == Path("/tmp/hearth/hearth.sock")


PERMISSIONS = (
    "Permissions: 0660 owned by the server's user, with a dedicated group. Adding a user to that group is the "
    "authentication act."
)


@pytest.mark.spec(
    "12", "is", "The default Unix Domain Socket transport relies on filesystem permissions for authentication."
)
@pytest.mark.spec("10.1", "is", PERMISSIONS)
def test_10_1_the_socket_is_0660_and_has_the_group_it_is_given(hearthd) -> None:
    ours = {*os.getgroups(), os.getegid()} if os.geteuid() else {entry.gr_gid for entry in grp.getgrall()}
    group = grp.getgrgid(max(ours))
    status = hearthd(server=f'socket_group = "{group.gr_name}"').socket.stat()
    assert stat.S_IMODE(status.st_mode) == 0o660
    assert (status.st_uid, status.st_gid) == (os.geteuid(), group.gr_gid)


@pytest.mark.spec("10.1", "is", PERMISSIONS)
def test_10_1_by_default_the_group_is_what_lets_a_user_in() -> None:
    policy = default_policy(own_uid=990, socket_gid=600)
    assert decide(policy, Principal("unix", uid=1000, gid=1000, groups=frozenset((1000, 600))), {}) is not None
    assert decide(policy, Principal("unix", uid=1000, gid=1000, groups=frozenset((1000,))), {}) is None
    assert decide(policy, Principal("unix", uid=990, gid=990), {}) is not None


ASK = """
import os, socket, sys
path, *groups = sys.argv[1:]
client = socket.socket(socket.AF_UNIX)
client.settimeout(60)
os.setgroups([int(group) for group in groups])
os.setresgid(61234, 61234, 61234)
os.setresuid(61234, 61234, 61234)
try:
    client.connect(path)
except PermissionError:
    print("no connection")
else:
    client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"session.open"}\\n')
    print("a session" if b'"result"' in client.makefile("rb").readline() else "a refusal")
"""
"""A client that becomes another user first."""


@pytest.mark.spec("10.1", "is", PERMISSIONS)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the users this is about")
@pytest.mark.parametrize(("member", "expected"), [(True, "a session"), (False, "no connection")])
def test_10_1_a_user_in_the_group_gets_a_session_and_another_not_even_a_connection(
    open_place,
    hearthd,
    member,
    expected,  # the daemon ends before its directory goes
) -> None:
    group = max(grp.getgrall(), key=lambda entry: entry.gr_gid)
    running = hearthd(server=f'socket_group = "{group.gr_name}"', directory=open_place)
    asked = subprocess.run(
        [sys.executable, "-c", ASK, str(running.socket), *([str(group.gr_gid)] if member else [])],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert asked.stdout == f"{expected}\n"
