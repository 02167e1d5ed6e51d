"""HACP draft, sections 12 and 13: security and privacy, against a running hearthd."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conformance.daemon import Hearthd, eventually
from support.confinement import needs_filters

READ = ("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2})
WATCH = ("gpio.watch", {"line": 3, "timeout_ms": 60_000})

ANY = '[[policy]]\nname = "test"\nmatch = { any = true }\n'
EXEC = """
[tools]
enable = ["proc.exec"]
[tools.exec.show]
argv = ["/bin/cat", "{file}"]
params.file = { pattern = "/.*", path = "read" }
"""


def tools_of(peer, session: str) -> dict[str, Any]:
    return {tool["name"]: tool for tool in peer.result("tool.list", {"session_id": session})["tools"]}


def refuses_to_start(directory: Path, config: str) -> str:
    """Run hearthd with a configuration that it must not accept; returns what it says."""
    file = directory / "refused.toml"
    file.write_text(f'[server]\nsocket = "{directory}/s.sock"\n[audit]\npath = "{directory}/a.log"\n{config}\n')
    done = subprocess.run(
        [sys.executable, "-m", "hearth.actors.daemon", "--config", str(file), "--check"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout
    return done.stderr


# --- 12: a conformant server MUST ------------------------------------------------------------------------------------


@pytest.mark.spec("12", "MUST", "A conformant server MUST: Allowlist tools at startup.")
def test_12_the_tools_are_those_of_the_configuration_and_no_others_can_be_called(hearthd) -> None:
    peer = hearthd('[tools]\ndisable = ["uart.*", "gpio.set"]\n' + ANY + 'tools = ["gpio.*", "uart.*"]').peer()
    session = peer.open()
    signals = {"signal.list", "signal.read", "signal.watch", "signal.set"}
    assert set(tools_of(peer, session)) == {"gpio.get", "gpio.watch", "gpio.pulse", *signals}
    assert peer.refused(session, ("gpio.set", {"line": 1, "value": 1}))["code"] == -32002
    assert peer.refused(session, ("uart.read", {"port": "uart0"}))["code"] == -32002
    assert peer.refused(session, READ)["code"] == -32003, "registered, but not on this session's allowlist"


@pytest.mark.slow
@pytest.mark.spec("12", "MUST", "A conformant server MUST: Allowlist tools at startup.")
def test_12_a_tool_that_does_not_exist_cannot_be_enabled(tmp_path: Path) -> None:
    assert "gpio.sett" in refuses_to_start(tmp_path, '[tools]\nenable = ["gpio.sett"]')
    assert "proc.*" in refuses_to_start(tmp_path, '[tools]\nenable = ["proc.*"]')


@pytest.mark.spec(
    "12",
    "MUST",
    "The set of registered tools is fixed per process; agents cannot install new tools at runtime over HACP.",
)
@pytest.mark.spec(
    "12",
    "is",
    "A malicious or compromised agent that gains a HACP session is limited by the configured tool allowlist, risk cap, "
    "and path guard.",
)
def test_12_no_method_and_no_argument_adds_a_tool(peer, session) -> None:
    before = tools_of(peer, session)
    for method in ("tool.register", "tool.install", "tool.add", "tool.list.set", "tools.install", "rpc.discover"):
        assert peer.error(method, {"session_id": session, "name": "x.y", "tool": {}})["code"] == -32601
    peer.result("tool.list", {"session_id": session, "tools": [{"name": "x.y"}]})
    submission = peer.submission(session, READ)
    submission["tools"] = submission["task"]["tools"] = [{"name": "x.y", "run": "sh"}]
    peer.result("task.submit", submission)
    assert tools_of(peer, session) == before
    assert tools_of(peer, peer.open(tools=["x.y"], capabilities=["CAP_SHELL"])) == before


@pytest.mark.spec("12", "MUST", "A conformant server MUST: Path-guard every filesystem operation.")
@pytest.mark.spec(
    "12",
    "MUST",
    "file.* and any tool that accepts a path MUST consult a configured read/write allowlist; reject with "
    "RPC_PERMISSION_DENIED on miss.",
)
@pytest.mark.spec(
    "12",
    "is",
    "A malicious or compromised agent that gains a HACP session is limited by the configured tool allowlist, risk cap, "
    "and path guard.",
)
def test_12_every_tool_that_accepts_a_path_refuses_one_outside_the_allowlist(peer, session, daemon) -> None:
    inside = daemon.directory / "files" / "inside"
    inside.write_text("inside")
    (daemon.directory / "files" / "link").symlink_to("/etc")
    tools = tools_of(peer, session).values()
    with_path = [tool for tool in tools if "path" in tool["params_schema"].get("properties", ())]
    assert {tool["name"].removeprefix("file.") for tool in with_path} == {"list", "stat", "read", "write", "delete"}
    outside = ["/etc/passwd", "/etc", f"{daemon.directory}/files/../hearth.toml", f"{daemon.directory}/filesystem",
               f"{daemon.directory}/files/link/passwd", "/proc/self/environ"]  # fmt: skip
    for tool in with_path:
        args = {"data": ""} if tool["name"] == "file.write" else {}
        for path in outside:
            refused = peer.refused(session, (tool["name"], {"path": path, **args}), max_risk_level=3)
            assert refused["code"] == -32003, (tool["name"], path)
            assert refused["data"]["reason"]
    for relative in ("inside", "files/inside", ""):
        assert peer.refused(session, ("file.read", {"path": relative}))["code"] in (-32003, -32602)
    assert peer.value(session, "file.read", path=str(inside))["size"] == 6
    assert Path("/etc/passwd").exists()


@pytest.mark.spec(
    "12",
    "MUST",
    "file.* and any tool that accepts a path MUST consult a configured read/write allowlist; reject with "
    "RPC_PERMISSION_DENIED on miss.",
)
def test_12_reading_and_writing_have_lists_of_their_own_and_both_are_empty_by_default(hearthd, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "w").mkdir()
    (tmp_path / "r" / "f").write_text("x")
    (tmp_path / "w" / "f").write_text("x")
    some = hearthd(f'[files]\nread = ["{tmp_path}/r"]\nwrite = ["{tmp_path}/w"]').peer()
    session = some.open()
    write = {"data": base64.b64encode(b"y").decode()}
    assert some.refused(session, ("file.write", {"path": f"{tmp_path}/r/f", **write}))["code"] == -32003
    assert some.refused(session, ("file.read", {"path": f"{tmp_path}/w/f"}))["code"] == -32003
    assert some.value(session, "file.read", path=f"{tmp_path}/r/f")
    assert some.value(session, "file.write", path=f"{tmp_path}/w/f", **write)
    none = hearthd().peer()
    assert none.refused(none.open(), ("file.read", {"path": f"{tmp_path}/r/f"}))["code"] == -32003


@pytest.mark.spec(
    "12",
    "MUST",
    "file.* and any tool that accepts a path MUST consult a configured read/write allowlist; reject with "
    "RPC_PERMISSION_DENIED on miss.",
)
def test_12_a_program_that_takes_a_path_is_held_to_the_same_list(hearthd, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "f").write_text("inside")
    peer = hearthd(f'[files]\nread = ["{tmp_path}/r"]\n{EXEC}{ANY}max_risk = 3').peer()
    session = peer.open()
    show = {"template": "show"}
    refused = peer.refused(session, ("proc.exec", {**show, "params": {"file": "/etc/passwd"}}))
    assert refused["code"] == -32003
    shown = peer.value(session, "proc.exec", **show, params={"file": f"{tmp_path}/r/f"})
    assert shown["stdout"]["text"] == "inside"


@pytest.mark.spec("12", "MUST", "A conformant server MUST: Enforce per-tool risk caps.")
@pytest.mark.spec(
    "12", "MUST NOT", "A session MUST NOT execute a tool whose risk_level exceeds the session's configured maximum."
)
@pytest.mark.parametrize("cap", [0, 1, 2])
@pytest.mark.spec(
    "12",
    "is",
    "A malicious or compromised agent that gains a HACP session is limited by the configured tool allowlist, risk cap, "
    "and path guard.",
)
def test_12_no_tool_above_the_sessions_maximum_is_executed(hearthd, cap: int) -> None:
    running = hearthd(f'[tools]\nenable = ["proc.signal"]\n{ANY}max_risk = {cap}')
    peer = running.peer()
    session = peer.open()
    args = {
        "signal.set": {"name": "LED", "value": 1},
        "gpio.set": {"line": 1, "value": 1},
        "gpio.pulse": {"line": 1, "value": 1, "duration_ms": 1},
        "i2c.read": {"bus": 1, "addr": "0x50", "reg": 0xBEEF, "reg_width": 16, "len": 1},
        "i2c.write": {"bus": 1, "addr": "0x50", "reg": 0, "data": "AAAA"},
        "i2c.transfer": {"bus": 1, "addr": "0x48", "write": "AA=="},
        "i2c.scan": {"bus": 1},
        "uart.read": {"port": "uart0"},
        "uart.write": {"port": "uart0", "data": "AA=="},
        "uart.exchange": {"port": "uart0", "data": "AA=="},
        "uart.control": {"port": "uart0", "rts": True},
        "pwm.set": {"channel": "FAN", "duty": 0},
        "pwm.off": {"channel": "FAN"},
        "servo.move": {"servo": "ARM", "angle": 0},
        "dac.set": {"channel": "BIAS", "value": 1},
        "can.send": {"bus": "can0", "id": 1, "hex": "00"},
        "can.read": {"bus": "can0", "count": 1, "timeout_ms": 10},
        "can.watch": {"bus": "can0", "count": 1, "timeout_ms": 10},
        "hw.sensor.capture": {"sensors": ["vibration"], "samples": 1},
        "can.isotp": {"bus": "can0", "tx": 1, "rx": 2, "hex": "00", "timeout_ms": 10},
        "spi.transfer": {"device": "LOOP", "text": "x"},
        "spi.read": {"device": "MOTOR", "register": "FAULTS"},
        "spi.write": {"device": "MOTOR", "register": "SPEED", "value": 0},
        "modbus.write": {"device": "FAN", "name": "speed", "value": 0},
        "file.write": {"path": "/x", "data": ""},
        "file.delete": {"path": "/x"},
        "proc.signal": {"pid": 1, "signal": "SIGTERM"},
    }
    risky = {name: tool["risk_level"] for name, tool in tools_of(peer, session).items() if tool["risk_level"]}
    assert set(risky) == set(args)
    for name, risk in risky.items():
        if risk <= cap:
            continue
        for constraints in ({}, {"max_risk_level": risk}, {"max_risk_level": 3}, {"dry_run": True}):
            refused = peer.refused(session, (name, args[name]), **constraints)
            assert refused["code"] == -32003, (name, constraints)
    executed = {record["tool"] for record in running.records(event="task.step.start")}
    assert not executed


@pytest.mark.spec("12", "MUST", "A conformant server MUST: Audit every accepted task (Section 7).")
def test_12_an_accepted_task_is_on_record_before_its_acceptance_is_answered(peer, session, daemon) -> None:
    for constraints in ({}, {"dry_run": True}, {"exclusive": True}):
        task_id = peer.submit(session, READ, ("gpio.set", {"line": 1, "value": 1}), intent="to be seen", **constraints)
        (record,) = daemon.records(event="task.submit", task_id=task_id)  # at once: nothing is waited for
        assert record["intent"] == "to be seen"
        assert [step["tool"] for step in record["steps"]] == ["i2c.read", "gpio.set"]
    peer.refused(session, ("no.such", {}))
    assert daemon.recorded(event="task.reject", session_id=session)["error_code"] == -32002


@pytest.mark.spec("12", "MUST", "A conformant server MUST: Bound resource use.")
@pytest.mark.spec("12", "MUST", "Server MUST reject task.submit when internal queues are full.")
def test_12_submissions_past_the_bound_are_rejected_and_taken_again_when_there_is_room(hearthd) -> None:
    peer = hearthd("[limits]\nmax_tasks_per_session = 3").peer()
    session = peer.open()
    tasks = [peer.submit(session, WATCH) for _ in range(3)]
    refused = peer.refused(session, READ)
    assert (refused["code"], refused["data"]["max_tasks_per_session"]) == (-32005, 3)
    peer.result("task.cancel", {"session_id": session, "task_id": tasks[0]})
    peer.finished(session, tasks[0])
    assert peer.run(session, READ)["status"] == "SUCCESS"


# --- 12: a conformant server SHOULD ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spec(
    "12",
    "SHOULD",
    "A conformant server SHOULD: Run as an unprivileged user, joining only the groups required for the buses it "
    "exposes.",
)
def test_12_it_needs_no_privileges(open_place: Path) -> None:
    running = Hearthd(open_place)
    if os.geteuid() == 0:
        os.chown(open_place, 61234, 61234)
    try:
        peer = running.start(user=61234 if os.geteuid() == 0 else None).peer()
        assert running.process is not None
        status = Path(f"/proc/{running.process.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        if os.geteuid() != 0:
            assert peer.value(peer.open(), "gpio.set", line=17, value=1) == {"line": 17, "value": 1}
        else:
            # Root is not the daemon's user, and so is refused: that, too, is an answer to read a whole policy from.
            assert peer.error("session.open")["code"] == -32003
        assert running.stop() == 0
        assert [record["event"] for record in running.records()][-2:] == ["daemon.stop", "audit.checkpoint"]
    finally:
        running.end()


@needs_filters
@pytest.mark.spec(
    "12", "SHOULD", "A conformant server SHOULD: Drop privileges and apply syscall filtering before serving."
)
def test_12_it_drops_privileges_and_filters_its_system_calls_before_it_serves(hearthd) -> None:
    daemon = hearthd()
    daemon.peer().open()
    assert daemon.process is not None
    threads = []
    for task in Path(f"/proc/{daemon.process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends while it is looked at
            threads.append((task / "status").read_text())
    assert threads
    for text in threads:
        status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), "every thread, and nothing undoes it"
        assert int(status["CapEff"], 16) & 1 << 21 == 0, "not even root's own has CAP_SYS_ADMIN"
    start, opened = [record for record in daemon.records() if record["event"] in ("daemon.start", "session.open")]
    assert {"capabilities", "no_new_privs", "syscalls"} <= set(start["sandbox"]["in_force"])
    assert start["seq"] < opened["seq"]


@pytest.mark.spec("12", "SHOULD", "A conformant server SHOULD: Apply rate limits per (session_id, tool) pair.")
def test_12_rates_hold_for_each_session_and_tool_and_for_a_principals_sessions_together(peer, session) -> None:
    # The policy says "uart.write" = "2/h".
    write = ("uart.write", {"port": "uart0", "data": base64.b64encode(b"QUIET\n").decode()})
    assert peer.run(session, write, write)["status"] == "SUCCESS"
    refused = peer.refused(session, write)
    assert refused["code"] == -32006
    assert refused["data"]["tool"] == "uart.write"
    assert 0 < refused["data"]["retry_after_ms"] <= 1_800_000
    assert peer.run(session, READ)["status"] == "SUCCESS", "another tool of the session"
    for _ in range(3):
        other = peer.open()
        assert peer.refused(other, write)["code"] == -32006, "another session of the principal"
        peer.result("session.close", {"session_id": other})


@pytest.mark.spec("12", "SHOULD", "A conformant server SHOULD: Apply per-tool timeouts.")
def test_12_a_step_past_its_tools_timeout_fails_with_timed_out(peer, session, daemon) -> None:
    # 60 bytes take 540 ms on this bus. The one tool has a timeout of 50 ms, the other one of 5 s.
    slow = peer.run(session, ("com.example.slow", {"len": 60}))
    assert slow["status"] == "FAILED"
    (step,) = slow["steps"]
    assert step["error_code"] == -32010
    assert step["error_data"]["limit_ms"] == 50
    assert step["error_data"]["effect"] == "done", "it was waited for, since nothing may kill it"
    assert daemon.recorded(event="bus.wedged", task_id=slow["task_id"])["bus"] == "i2c:1"
    again = ("com.example.slow.v2", {"len": 60})
    eventually(lambda: peer.run(session, again)["status"] == "SUCCESS", "the bus's return")


# --- 12: the rest ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("12", "MUST NOT", "Servers MUST NOT expose a proc.exec-style escape hatch in the default tool set.")
def test_12_the_default_tool_set_runs_no_program(hearthd) -> None:
    peer = hearthd(ANY + "max_risk = 3").peer()
    session = peer.open()
    names = set(tools_of(peer, session))
    assert names
    assert not names & {"proc.exec", "proc.signal"}
    assert {name for name in names if name.startswith("proc.")} == {"proc.list"}
    for name in ("proc.exec", "proc.signal", "sh", "shell.run", "sys.exec"):
        assert peer.refused(session, (name, {"template": "x", "argv": ["id"]}))["code"] == -32002


@pytest.mark.slow
@pytest.mark.spec(
    "12", "MUST", "Operators that need shell access MUST opt in explicitly and MUST flag such tools as risk_level: 3."
)
def test_12_proc_exec_has_to_be_enabled_by_name_with_programs_to_run(tmp_path: Path) -> None:
    assert "proc.exec" in refuses_to_start(tmp_path, '[tools]\nenable = ["proc.exec"]')


@pytest.mark.spec(
    "12", "MUST", "Operators that need shell access MUST opt in explicitly and MUST flag such tools as risk_level: 3."
)
def test_12_a_program_that_the_operator_opted_into_has_risk_3(hearthd) -> None:
    peer = hearthd('[tools]\nenable = ["proc.exec", "proc.signal"]\n[tools.exec]\nid = ["/usr/bin/id"]').peer()
    session = peer.open()
    assert {name: tools_of(peer, session)[name]["risk_level"] for name in ("proc.exec", "proc.signal")} == {
        "proc.exec": 3,
        "proc.signal": 3,
    }
    refused = peer.refused(session, ("proc.exec", {"template": "id"}))
    assert refused["code"] == -32003, "and by default a session may do no more than risk 2"


# --- 13 -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "13",
    "SHOULD",
    "Operators SHOULD treat audit logs as sensitive: they may incidentally correlate hardware events with user "
    "activity (for example, motion sensor reads taken at specific times).",
)
@pytest.mark.spec("13", "is", "Standard log retention, access control, and minimization practices apply.")
@pytest.mark.parametrize("arguments", ["declared", "hash"])
def test_13_the_log_is_not_for_everybody_and_holds_neither_payload_nor_results(
    hearthd, tmp_path: Path, arguments: str
) -> None:
    (tmp_path / "w").mkdir()
    files = f'[files]\nread = ["{tmp_path}/w"]\nwrite = ["{tmp_path}/w"]'
    running = hearthd(files, audit=f'arguments = "{arguments}"')
    peer = running.peer()
    session = peer.open()
    secret = base64.b64encode(b"attack at dawn").decode()
    path = f"{tmp_path}/w/a-telling-name"
    peer.value(session, "file.write", path=path, data=secret)
    assert peer.value(session, "file.read", path=path)["data"] == secret
    log = running.audit.read_bytes()
    assert b"file.write" in log
    assert secret.encode() not in log
    assert b"attack at dawn" not in log
    # Which file it was is an argument that may be told, unless the operator wants hashes alone.
    assert (b"a-telling-name" in log) == (arguments == "declared")
    assert stat.S_IMODE(running.audit.stat().st_mode) & 0o027 == 0


PERSONAL = (
    "Implementations that expose tools returning personal data (for example, a microphone capture tool) MUST classify "
    "those tools at an appropriate risk_level and SHOULD require explicit operator opt-in."
)


@pytest.mark.spec("13", "SHOULD", PERSONAL)
@pytest.mark.parametrize("disclosed", [[], ["addresses"], ["users"], ["addresses", "users"]])
def test_13_addresses_and_user_names_are_told_only_where_the_operator_opts_in(hearthd, disclosed: list[str]) -> None:
    peer = hearthd(f"[tools]\ndisclose = {json.dumps(disclosed)}").peer()
    session = peer.open()
    (loopback,) = [one for one in peer.value(session, "sys.network")["interfaces"] if one["name"] == "lo"]
    assert ("addresses" in loopback, "mac" in loopback) == ("addresses" in disclosed,) * 2
    processes = peer.value(session, "proc.list", limit=3)["processes"]
    assert [("user" in entry) for entry in processes] == ["users" in disclosed] * 3
    asked = peer.run(session, ("proc.list", {"user": "root"}))
    assert [step.get("error_code") for step in asked["steps"]] == [None if "users" in disclosed else -32003]


@pytest.mark.proof
@pytest.mark.spec("13", "MUST", PERSONAL)
@pytest.mark.spec("13", "SHOULD", PERSONAL)
def test_13_what_may_be_personal_is_shown_only_where_the_operator_opts_in(hearthd) -> None:
    """No shipped tool captures sound or pictures; command lines are what comes nearest."""
    marker = f"hearth-conformance-{time.monotonic_ns()}"
    with subprocess.Popen([sys.executable, "-c", "input()", marker], stdin=subprocess.PIPE) as process:
        try:
            for config, shown in (("", False), ("[tools]\nproc_argv = true", True)):
                peer = hearthd(config).peer()
                session = peer.open()
                tools = tools_of(peer, session)
                assert not [name for name in tools if any(word in name for word in ("mic", "audio", "camera", "video"))]
                found = peer.value(session, "proc.list", name="python", sort="pid", limit=500)["processes"]
                (ours,) = [entry for entry in found if entry["pid"] == process.pid]
                assert ("argv" in ours) is shown
                assert (marker in json.dumps(found)) is shown
                assert not [entry for entry in found if "user" in entry]
        finally:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
