"""HACP draft, sections 1.1, 4, 5 and 6: terms, names, lifecycle and errors, against a running hearthd."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from conformance.daemon import eventually

from hearth.config.model import LimitsConfig
from hearth.drivers.boards import load_profile, open_board

WATCH = ("gpio.watch", {"line": 3, "timeout_ms": 60_000})
READ = ("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2})
NOBODY = ("i2c.read", {"bus": 1, "addr": "0x23", "len": 1})
TERMINAL = {"SUCCESS", "FAILED", "CANCELLED"}


# --- 1.1 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("1.1", "is", "Task: An intent plus an ordered list of steps. Each step invokes a single tool.")
@pytest.mark.spec("1.1", "is", "A task has exactly one identifier and one terminal status.")
def test_1_1_every_task_ends_once_and_stays_as_it_ended(peer, session, daemon) -> None:
    good, bad = peer.submit(session, READ, subscribe=True), peer.submit(session, NOBODY, subscribe=True)
    stopped = peer.submit(session, WATCH, subscribe=True)
    late = peer.submit(session, WATCH, max_duration_ms=20, subscribe=True)
    peer.result("task.cancel", {"session_id": session, "task_id": stopped})
    assert len({good, bad, stopped, late}) == 4
    ends: dict[str, list[str]] = {}
    while len(ends) < 4:
        event = peer.event()
        if event["phase"] == "task_finish":
            ends.setdefault(event["task_id"], []).append(event["status"])
    for task_id, statuses in ends.items():
        peer.result("task.cancel", {"session_id": session, "task_id": task_id})
        assert [peer.get(session, task_id)["status"] for _ in range(2)] == statuses * 2
        assert [record["status"] for record in daemon.records(event="task.finish", task_id=task_id)] == statuses
    assert {ends[good][0], ends[bad][0], ends[stopped][0], ends[late][0]} == TERMINAL
    assert peer.is_silent()


# --- 4 --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("4", "is", "Tool names are dot-separated.")
def test_4_tool_names_are_dot_separated_and_ours_keep_to_the_reserved_namespaces(hearthd) -> None:
    peer = hearthd().peer()
    names = [tool["name"] for tool in peer.result("tool.list", {"session_id": peer.open()})["tools"]]
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+", name) for name in names)
    reserved = {"hw", "gpio", "i2c", "uart", "file", "sys", "proc"}
    assert {name.partition(".")[0] for name in names} == reserved | {
        "signal",
        "pwm",
        "servo",
        "dac",
        "can",
        "spi",
        "modbus",
    }


@pytest.mark.spec(
    "4",
    "SHOULD",
    "Vendors SHOULD prefix custom namespaces with their reverse-DNS, for example com.acme.modbus.read, to avoid "
    "collisions.",
)
def test_4_the_example_for_vendors_has_its_prefix() -> None:
    example = Path(__file__).parents[2] / "examples" / "acme_blink"
    spec = importlib.util.spec_from_file_location("acme_blink_example", example / "acme_blink" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        names = [tool.name for tool in module.tools(open_board(load_profile("sim")))]
    finally:
        del sys.modules[spec.name]
    assert names
    assert all(name.startswith("com.acme.") for name in names)
    assert '"com.acme" = ' in (example / "pyproject.toml").read_text()


@pytest.mark.spec(
    "4",
    "SHOULD",
    "Vendors SHOULD prefix custom namespaces with their reverse-DNS, for example com.acme.modbus.read, to avoid "
    "collisions.",
)
def test_4_a_vendors_tool_works_under_its_prefix(peer, session) -> None:
    assert peer.value(session, "com.example.chatter", count=2) == {"count": 2}


# --- 5 --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("5", "is", "A session begins with session.open and ends with session.close or an idle timeout.")
def test_5_a_session_begins_with_session_open_and_ends_with_session_close(peer, daemon) -> None:
    assert peer.error("tool.list", {"session_id": "01J9ZZZZZZZZZZZZZZZZZZZZZZ"})["code"] == -32000
    session = peer.open()
    assert peer.result("tool.list", {"session_id": session})
    peer.result("session.close", {"session_id": session})
    assert peer.error("tool.list", {"session_id": session})["code"] == -32000
    assert daemon.recorded(event="session.close", session_id=session)["reason"] == "closed by the client"


@pytest.mark.spec("5", "MAY", "While a session is active, an agent MAY submit any number of tasks.")
def test_5_a_session_takes_any_number_of_tasks(peer, session) -> None:
    for number in range(400):
        task_id = peer.submit(session, ("gpio.get", {"line": 1}), intent=f"number {number}")
    assert peer.finished(session, task_id)["status"] == "SUCCESS"


@pytest.mark.spec("5", "is", "Each task progresses through: QUEUED -> RUNNING -> { SUCCESS | FAILED | CANCELLED }")
@pytest.mark.parametrize(("step", "end"), [(READ, "SUCCESS"), (NOBODY, "FAILED"), (WATCH, "CANCELLED")])
def test_5_a_task_is_queued_then_running_then_at_its_end(peer, session, step, end: str) -> None:
    wait = ("uart.read", {"port": "uart0", "timeout_ms": 0})
    answer = peer.result("task.submit", peer.submission(session, wait, step))
    seen = [answer["status"]]
    task = {"session_id": session, "task_id": answer["task_id"]}
    if step is WATCH:
        eventually(lambda: peer.get(session, answer["task_id"])["status"] == "RUNNING", "RUNNING")
        assert peer.result("task.cancel", task)["status"] == "CANCELLING"

    def at_its_end() -> bool:
        status = peer.get(session, answer["task_id"])["status"]
        if status != seen[-1]:
            seen.append(status)
        return status in TERMINAL

    eventually(at_its_end, "the end")
    order = ["QUEUED", "RUNNING", end]
    assert seen == [status for status in order if status in seen], "never back, never astray"
    assert seen[0] == "QUEUED"
    assert seen[-1] == end


@pytest.mark.spec(
    "5", "SHOULD", "Idle sessions SHOULD be reaped after a server-defined time-to-live (default 300 seconds);"
)
@pytest.mark.spec("5", "is", "A session begins with session.open and ends with session.close or an idle timeout.")
@pytest.mark.spec("5", "MUST", "reaping MUST run session.close semantics, including cancelling any in-flight tasks.")
def test_5_an_idle_session_is_reaped_with_all_that_closing_means(hearthd) -> None:
    assert LimitsConfig().idle_ttl_s == 300
    running = hearthd("[limits]\nidle_ttl_s = 1")
    peer = running.peer()
    session = peer.open()
    peer.value(session, "gpio.set", line="RELAY", value=1)
    task_id = peer.submit(session, WATCH)
    closed = running.recorded(event="session.close", session_id=session)
    assert closed["reason"] == "idle"
    finish = running.recorded(event="task.finish", task_id=task_id)
    assert (finish["status"], finish["reason"]) == ("CANCELLED", "session closed")
    assert finish["seq"] < closed["seq"]
    assert peer.error("task.get", {"session_id": session, "task_id": task_id})["code"] == -32000
    assert peer.value(peer.open(), "gpio.get", line="RELAY")["value"] == 0, "its outputs are in their safe state"


@pytest.mark.spec(
    "5",
    "MUST",
    "A server MUST reject any post-close request that uses the closed session identifier with RPC_SESSION_INVALID.",
)
def test_5_every_request_with_a_closed_sessions_id_is_refused_on_any_connection(peer, daemon) -> None:
    session = peer.open()
    task_id = peer.submit(session, READ)
    assert peer.result("session.close", {"session_id": session}) == {"ok": True}
    for connection in (peer, daemon.peer()):
        for method in ("session.close", "tool.list", "task.get", "task.cancel", "task.events.subscribe",
                       "task.events.unsubscribe"):  # fmt: skip
            refused = connection.error(method, {"session_id": session, "task_id": task_id})
            assert (method, refused["code"]) == (method, -32000)
        assert connection.error("task.submit", connection.submission(session, READ))["code"] == -32000
        assert connection.error("task.submit", {"session_id": session, "task": "no task"})["code"] == -32000


# --- 6 --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("6", "is", "HACP reuses the JSON-RPC 2.0 standard codes:")
def test_6_the_standard_codes_are_answered_where_the_table_says(peer, session) -> None:
    assert peer.ask(b'{"jsonrpc": "2.0", "id": 1, "meth')["error"]["code"] == -32700
    assert peer.ask(b'{"id": 1}')["error"]["code"] == -32600
    assert peer.error("session.reopen")["code"] == -32601
    assert peer.error("session.reopen", {"session_id": session})["code"] == -32601
    assert peer.error("task.get", {"session_id": session})["code"] == -32602
    task = peer.run(session, ("com.example.bug", {}))
    assert task["steps"][0]["error_code"] == -32603
    assert "ZeroDivisionError" in task["steps"][0]["error"]
    assert peer.run(session, READ)["status"] == "SUCCESS", "a bug in a tool takes nobody along"


@pytest.mark.spec("6", "is", "Plus HACP-specific codes (range -32099 to -32000):")
def test_6_the_protocols_own_codes_are_answered_where_the_table_says(peer, session) -> None:
    assert peer.error("tool.list", {"session_id": "nobody's"})["code"] == -32000
    for method in ("task.get", "task.cancel", "task.events.subscribe"):
        assert peer.error(method, {"session_id": session, "task_id": "nobody's"})["code"] == -32001
    other = peer.open()
    task_id = peer.submit(other, READ)
    assert peer.error("task.get", {"session_id": session, "task_id": task_id})["code"] == -32001, "for session"
    assert peer.refused(session, ("gpio.toggle", {}))["code"] == -32002
    assert peer.refused(session, ("file.read", {"path": "/etc/passwd"}))["code"] == -32003
    holder = peer.submit(session, WATCH, READ, exclusive=True)
    eventually(lambda: peer.get(session, holder)["steps"], "the lease")
    busy = peer.refused(session, READ, on_busy="fail")
    assert (busy["code"], busy["data"]["bus"], busy["data"]["holder_task"]) == (-32004, "i2c:1", holder)


@pytest.mark.spec("6", "MAY", "The optional error.data field MAY carry a structured detail object:")
def test_6_error_data_is_an_object_as_in_the_drafts_example(peer, session) -> None:
    refused = peer.refused(session, ("gpio.set", {"line": 1, "value": 1}), max_risk_level=1)
    assert refused["code"] == -32003
    assert refused["message"].startswith("Permission denied")
    assert refused["data"] == {"step_index": 0, "tool": "gpio.set", "reason": "max_risk_level=1 < tool=2"}
