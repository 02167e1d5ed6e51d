"""`hearth status`, `sessions`, `tasks`, `top --plain` and `approve`, against a daemon that asks for approvals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime, timedelta

import orjson
import pytest

from hearth.cli import observing, watching
from hearth.cli.common import Options

pytestmark = pytest.mark.slow

CONFIG = """
[[policy]]
name = "bench"
match = { any = true }
max_risk = 3
rights = ["observe", "approve", "reset_halt"]
approval = [{ from_risk = 2 }]
"""
PLAN = {"intent": "Light", "steps": [{"tool": "gpio.set", "args": {"line": "LED", "value": 1}}]}


@pytest.fixture
def prepared(local_cli):
    return local_cli("plan", "prepare", "-", "--json", stdin=orjson.dumps(PLAN)).json


def test_status_exits_with_0_while_healthy_and_with_1_while_halted(local_cli, daemon):
    well = local_cli("status")
    assert (well.code, well.out.split()[0]) == (0, "healthy")
    assert "hearth 0.1.0 on" in well.out
    assert "gpio:sim" in well.out
    told = local_cli("status", "--json").json
    assert (told["healthy"], told["faults"], told["you"]["policy"]) == (True, [], "bench")
    assert str(told["health"]["audit"]["head"]).startswith("sha256:")
    local_cli("halt", "smoke")
    halted = local_cli("status")
    assert (halted.code, halted.out.split()[0]) == (1, "halted")
    assert "smoke" in halted.out.splitlines()[0]
    daemon.until(lambda: local_cli("halt", "--reset").code == 0)  # not before the stop sequence has ended
    assert local_cli("status").code == 0


def test_a_log_that_was_rolled_back_is_in_status_and_in_doctor(cli, own_daemon):
    daemon = own_daemon()
    older = daemon.audit.read_bytes()
    daemon.stop()
    daemon.audit.write_bytes(older)
    daemon.start()
    told = cli("--socket", daemon.socket, "status")
    first, *lines = told.out.splitlines()
    assert (told.code, first) == (0, "healthy  no bus and no halt needs attention, but the audit log has a warning")
    assert any("its tree file says that record" in line for line in lines if line.startswith("  audit"))
    checks = cli("--socket", daemon.socket, "doctor", "--json").json["checks"]
    (warned,) = [one for one in checks if one["name"] == "audit" and one["state"] == "WARN"]
    assert "its tree file says that record" in warned["finding"]


def test_status_names_each_driven_line_with_its_owner_and_each_approval(local_cli, daemon, prepared):
    peer = daemon.peer()
    session = peer.open(client_name="bench")
    local_cli("approve", prepared["plan_id"], "--yes", "--hash", prepared["hash"])
    again = local_cli("plan", "prepare", "-", "--json", stdin=orjson.dumps(PLAN)).json
    task = peer.call("plan.execute", {"session_id": session, "plan_id": prepared["plan_id"]})["result"]["task_id"]
    peer.wait(session, task)
    shown = local_cli("status").out
    driven = next(line for line in shown.splitlines() if "GPIO17" in line)
    assert session in driven
    named = next(line.split() for line in shown.splitlines() if line.split()[:2] == ["LED", "gpio:sim"])
    assert named[2:5] == ["1", "good", "0"]
    (waiting,) = [line for line in shown.splitlines() if again["plan_id"] in line]
    assert waiting.split()[-1] == again["expires_at"]
    (seen,) = [one for one in local_cli("status", "--json").json["approvals"] if one["approval_id"] == again["plan_id"]]
    assert seen["expires_at"] == again["expires_at"]
    waits = datetime.fromisoformat(seen["expires_at"]) - datetime.fromisoformat(seen["asked_at"])
    assert waits == timedelta(minutes=15)
    listed = [line.split() for line in local_cli("admin", "sessions").out.splitlines() if session in line]
    assert [tuple(line[1:4]) for line in listed] == [("bench", "bench", "1")]
    peer.call("session.close", {"session_id": session})
    assert session not in local_cli("admin", "sessions").out


def test_tasks_of_all_sessions_are_listed_with_their_steps(local_cli, daemon):
    assert local_cli("tasks", "list").out == "there is none\n"
    peer = daemon.peer()
    session = peer.open()
    task = peer.submit(session, ("gpio.watch", {"line": 5, "timeout_ms": 60_000}))
    daemon.recorded(event="task.step.start", task_id=task)
    shown = local_cli("tasks", "list").out
    assert f"{session}/{task}" in shown
    assert "line=" in shown
    assert local_cli("tasks", "list", "--json").json[0]["steps"][0]["status"] == "RUNNING"
    peer.call("task.cancel", {"session_id": session, "task_id": task})
    peer.wait(session, task)


def test_without_a_daemon_each_exits_with_3(cli, tmp_path):
    for command in (["status"], ["admin", "sessions"], ["tasks", "list"], ["top", "--plain"], ["approvals", "list"]):
        gone = cli(*command, "--socket", tmp_path / "none.sock")
        assert (gone.code, len(gone.err.splitlines())) == (3, 1), command


def test_without_the_right_to_observe_one_line_says_so(cli, own_daemon):
    other = own_daemon('[[policy]]\nname = "blind"\nmatch = { any = true }\n')
    for command in (["status"], ["admin", "sessions"], ["tasks", "list"], ["top", "--plain"]):
        refused = cli(*command, "--socket", other.socket)
        assert refused.code == 1
        assert "the right 'observe' is not given by policy 'blind'" in refused.err


@pytest.mark.proof
def test_top_plain_prints_a_line_for_each_event_and_follows_a_daemon_that_restarts(hearth_process, own_daemon):
    daemon = own_daemon(CONFIG)
    with hearth_process("top", "--plain", "--socket", daemon.socket) as running:
        assert "snapshot" in running.stdout.readline()
        peer = daemon.peer()
        session = peer.open()
        assert any(session in line and "session.open" in line for line in running.stdout)
        daemon.hang_up()
        daemon.stop()
        daemon.start()
        assert any("snapshot" in line for line in running.stdout)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        said = running.stderr.read()
        assert said.count("hearth: connected to") == 2
        assert "hearth: connection lost: " in said


def test_top_plain_ends_with_the_reader_of_its_pipe(hearth_process, own_daemon):
    with hearth_process("top", "--plain", "--socket", own_daemon(CONFIG).socket) as running:
        assert "snapshot" in running.stdout.readline()
        running.stdout.close()
        assert running.wait(60) == 128 + signal.SIGPIPE
        assert "Traceback" not in running.stderr.read()


def test_top_plain_ends_with_the_reader_of_its_pipe_although_no_event_comes(monkeypatch, tmp_path):
    async def silence(_address, _connected):
        os.close(reader)
        await asyncio.Event().wait()
        yield

    async def printed():
        async with asyncio.timeout(60):
            await watching._print_events(Options(f"unix:{tmp_path}/hearth.sock", "--to", json=False))

    monkeypatch.setattr(observing, "follow", silence)
    reader, writer = os.pipe()
    stdout = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    try:
        with pytest.raises(BrokenPipeError):
            asyncio.run(printed())
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def test_top_without_textual_names_the_extra_and_plain(local_cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "textual.app", None)
    monkeypatch.delitem(sys.modules, "hearth.cli.top", raising=False)
    missing = local_cli("top")
    assert (missing.code, len(missing.err.splitlines())) == (2, 1)
    assert "pip install 'hearthd[tui]'" in missing.err
    assert "--plain" in missing.err


def test_every_kind_of_event_is_one_line_without_control_characters():
    event = {"ts": "2026-01-02T03:04:05.678Z", "seq": 1, "stream": "s"}
    record = {"event": "task.submit", "intent": "a\nb\x1b[2J", "steps": [{"tool": "gpio.get", "args": {"line": 1}}]}
    (line,) = observing.event_lines({**event, "kind": "records", "records": [{"ts": event["ts"], **record}]})
    assert line.startswith("03:04:05.678  task.submit")
    assert ("\n" in line, "\x1b" in line, "steps=gpio.get line=1" in line) == (False, False, True)
    halt = {"halted": True, "since": "now", "reason": "smoke", "by": "uid:1"}
    assert "halted since now by uid:1: smoke" in observing.event_lines({**event, "kind": "halt", "halt": halt})[0]
    changed = [{"bus": "gpio:sim", "line": 17, "value": 1, "owner": {"principal": "uid:1", "session_id": "S"}}]
    (line,) = observing.event_lines({**event, "kind": "lines", "lines": changed})
    assert line.endswith("gpio:sim 17=1 (uid:1)")


# --- approve --------------------------------------------------------------------------------------------------------


def test_approve_lists_what_waits_with_its_before_and_after(local_cli, prepared):
    shown = local_cli("approve")
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert f"waiting {prepared['plan_id']}" in lines
    assert any(line.startswith('0. gpio.set line="LED" value=1') for line in lines)
    assert any(line.startswith("value: 0 -> 1") for line in lines)
    assert prepared["plan_id"] in [one["plan_id"] for one in local_cli("approve", "--json").json["plans"]]
    assert local_cli("approve", prepared["plan_id"], "--reject", "no").code == 0


def test_a_script_approves_exactly_the_hash_that_it_has_read(local_cli, prepared):
    plan_id = prepared["plan_id"]
    unseen = local_cli("approve", plan_id, "--yes")
    assert (unseen.code, "--hash" in unseen.err) == (2, True)
    other = local_cli("approve", plan_id, "--yes", "--hash", "sha256:00", "--json")
    assert (other.code, other.json["error"]["symbol"]) == (1, "PLAN_STALE")
    done = local_cli("approve", plan_id, "--yes", "--hash", prepared["hash"], "--json")
    assert done.json == {"id": plan_id, "kind": "plan", "approved": True, "missing": 0}
    assert local_cli("approve").out.find(plan_id) == -1


def test_a_rejection_has_its_reason_and_an_unknown_id_is_an_error(local_cli, prepared):
    plan_id = prepared["plan_id"]
    assert local_cli("approve", plan_id, "--reject", "not now").out.endswith("rejected\n")
    assert "not now" in local_cli("plan", "show", plan_id).out
    unknown = local_cli("approve", "none", "--reject", "x")
    assert (unknown.code, "`hearth approvals list` has the rest" in unknown.err) == (1, True)
    assert local_cli("approve", plan_id, stdin=b"").code == 2
    assert local_cli("approve", "--yes").code == 2
    assert local_cli("approve", plan_id, "--yes", "--reject", "x").code == 2
