"""HACP draft, section 3: the core methods, against a running hearthd."""

from __future__ import annotations

import base64
import re

import pytest
from conformance.daemon import eventually

CORE = ["session.open", "session.close", "tool.list", "task.submit", "task.get", "task.cancel"]
WATCH = ("gpio.watch", {"line": 3, "timeout_ms": 60_000})
"""A step that waits beside its bus, and is cancelled at once."""
READ = ("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2})
NOBODY = ("i2c.read", {"bus": 1, "addr": "0x23", "len": 1})
"""A step that fails: nobody has that address."""


def started(peer, session: str, task_id: str) -> None:
    """Wait until the first step of a task has begun."""
    eventually(lambda: peer.get(session, task_id)["steps"], "the first step")


# --- 3 --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "3", "MUST", "The following methods make up the HACP Core and MUST be implemented by every conformant server."
)
def test_3_every_core_method_is_implemented(peer) -> None:
    session = peer.open()
    task_id = peer.submit(session, READ)
    params = {
        "session.open": {},
        "tool.list": {"session_id": session},
        "task.submit": peer.submission(session, READ),
        "task.get": {"session_id": session, "task_id": task_id},
        "task.cancel": {"session_id": session, "task_id": task_id},
        "session.close": {"session_id": session},
    }
    assert set(params) == set(CORE)
    for method, given in params.items():
        assert "result" in peer.call(method, given), method


@pytest.mark.spec("3", "SHOULD", "task.events | SHOULD | Server-sent task progress (see Section 8)")
def test_3_task_events_is_implemented(peer, session) -> None:
    task_id = peer.submit(session, READ)
    assert peer.result("task.events.subscribe", {"session_id": session, "task_id": task_id})["ok"] is True
    assert [event["phase"] for event in peer.events_until("task_finish")] == ["start", "finish", "task_finish"]


# --- 3.1 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("3.1", "MUST", "The server MUST allocate a fresh session_id and MAY advertise capability flags.")
def test_3_1_every_session_id_is_fresh(peer) -> None:
    ids = [peer.open(client_name="same", client_version="1.0.0") for _ in range(50)]
    closed = ids[0]
    peer.result("session.close", {"session_id": closed})
    ids += [peer.open() for _ in range(50)]
    assert len(set(ids)) == 100


@pytest.mark.spec("3.1", "MAY", "The server MUST allocate a fresh session_id and MAY advertise capability flags.")
def test_3_1_capability_flags_are_advertised(peer) -> None:
    flags = peer.result("session.open")["capabilities"]
    assert {"CAP_GPIO_RW", "CAP_FILE_READ"} <= set(flags)
    assert all(re.fullmatch(r"CAP_[A-Z0-9_]+", flag) for flag in flags)
    assert len(flags) == len(set(flags))


@pytest.mark.spec("3.1", "SHOULD", 'client_name | string | SHOULD | Free-form e.g. "ai-shell"')
def test_3_1_the_clients_name_is_on_record_and_not_required(peer, daemon) -> None:
    named, nameless = peer.open(client_name="ai-shell"), peer.open()
    assert daemon.recorded(event="session.open", session_id=named)["client_name"] == "ai-shell"
    assert "client_name" not in daemon.recorded(event="session.open", session_id=nameless)


@pytest.mark.spec(
    "3.1", "MAY", "The server MAY reject session.open with RPC_PERMISSION_DENIED if authentication fails."
)
def test_3_1_whom_no_policy_matches_is_refused_at_session_open_and_that_is_on_record(hearthd) -> None:
    running = hearthd('[[policy]]\nname = "somebody else"\nmatch = { uid = 4294967293 }')
    refused = running.peer().error("session.open")
    assert refused["code"] == -32003
    assert refused["data"]["reason"]
    assert running.recorded(event="session.reject")["principal"].startswith("uid:")


@pytest.mark.spec("3.1", "is", "Authentication is transport-bound (see Section 10).")
def test_3_1_what_a_client_says_of_itself_changes_nothing(peer, daemon) -> None:
    honest = daemon.recorded(event="session.open", session_id=peer.open())
    liar = peer.open(uid=0, gid=0, user="root", principal="embedded", token="t", client_name="root")
    assert daemon.recorded(event="session.open", session_id=liar)["principal"] == honest["principal"]


# --- 3.2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("3.2", "is", 'Result: { "ok": true }')
def test_3_2_closing_answers_ok(peer) -> None:
    assert peer.result("session.close", {"session_id": peer.open()}) == {"ok": True}


@pytest.mark.spec("3.2", "MUST", "Closing a session MUST cancel any tasks still owned by it.")
def test_3_2_closing_a_session_cancels_the_tasks_it_still_owns(peer, daemon) -> None:
    session, other = peer.open(), peer.open()
    tasks = [peer.submit(session, WATCH) for _ in range(3)]
    kept = peer.submit(other, WATCH)
    for task_id in tasks:
        started(peer, session, task_id)
    assert peer.result("session.close", {"session_id": session}) == {"ok": True}
    for task_id in tasks:
        record = daemon.recorded(event="task.finish", task_id=task_id)
        assert (record["status"], record["reason"]) == ("CANCELLED", "session closed")
    assert peer.get(other, kept)["status"] in ("QUEUED", "RUNNING"), "nobody else's task is touched"
    peer.result("session.close", {"session_id": other})


# --- 3.3 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "1.1",
    "is",
    "Tool: A single named capability registered at server startup. A tool has a name, a risk level, a JSON Schema for "
    "its arguments, and a validate/execute pair on the server side.",
)
@pytest.mark.spec(
    "3.3",
    "is",
    'Result: { "tools": [ { "name": "gpio.set", "version": 1, "risk_level": 2, "timeout_ms": 1000, '
    '"supports_rollback": true, "description": "Set a GPIO line to 0 or 1.", "params_schema": { "type": "object" } } '
    "] }",
)
@pytest.mark.spec("3.3", "is", "risk_level is one of:")
@pytest.mark.spec("3.3", "is", "0 | safe | Pure read; no side effects")
@pytest.mark.spec("3.3", "is", "1 | low | Local mutation, easily reversible")
@pytest.mark.spec("3.3", "is", "2 | medium | Physical actuation or cross-process effect")
@pytest.mark.spec("3.3", "is", "3 | high | Irreversible, destructive, or safety-critical")
def test_3_3_tools_have_the_drafts_fields_and_a_risk_level_from_0_to_3(peer, session) -> None:
    tools = peer.result("tool.list", {"session_id": session})["tools"]
    for tool in tools:
        assert tool["risk_level"] in (0, 1, 2, 3)
        assert type(tool["risk_level"]) is int
        assert type(tool["version"]) is int
        assert type(tool["timeout_ms"]) is int
        assert type(tool["supports_rollback"]) is bool
        assert tool["description"]
        assert tool["params_schema"]["type"] == "object"
    risk = {tool["name"]: tool["risk_level"] for tool in tools}
    assert risk["gpio.get"] == 0, "a pure read"
    assert risk["file.write"] == 1, "a local mutation"
    assert risk["gpio.set"] == 2, "physical actuation"
    assert risk["file.delete"] == 3, "irreversible"


# --- 3.4 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("3.4", "is", "Steps run sequentially within a task.")
def test_3_4_each_step_begins_after_the_one_before_has_finished(peer, session, daemon) -> None:
    task_id = peer.submit(
        session,
        READ,
        ("gpio.get", {"line": 1}),
        READ,
        ("uart.exchange", {"port": "uart0", "data": base64.b64encode(b"DELAY 30 x\n").decode(), "until": "\n"}),
        subscribe=True,
    )
    events = peer.events_until("task_finish")
    assert [(event["phase"], event.get("step_index")) for event in events] == [
        ("start", 0), ("finish", 0), ("start", 1), ("finish", 1), ("start", 2), ("finish", 2), ("start", 3),
        ("finish", 3), ("task_finish", None),
    ]  # fmt: skip
    records = [r for r in daemon.records(task_id=task_id) if r["event"].startswith("task.step")]
    assert [(r["event"], r["step_index"]) for r in records] == [
        (f"task.step.{what}", index) for index in range(4) for what in ("start", "finish")
    ]


@pytest.mark.spec("3.4", "MAY", "Two tasks in the same session MAY run concurrently if the server supports it.")
def test_3_4_a_task_runs_to_its_end_while_another_of_the_session_is_running(peer, session) -> None:
    waiting = peer.submit(session, WATCH)
    started(peer, session, waiting)
    assert peer.run(session, READ)["status"] == "SUCCESS"
    assert peer.get(session, waiting)["status"] == "RUNNING"


@pytest.mark.spec(
    "3.4", "MUST", "The server MUST validate every step's tool name and argument schema before returning."
)
@pytest.mark.spec(
    "3.4",
    "is",
    "If any step fails validation, the entire submission is rejected with RPC_INVALID_PARAMS and no step is executed.",
)
@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (("gpio.set", {"line": 1, "value": 2}), -32602),
        (("gpio.set", {"line": 1}), -32602),
        (("gpio.set", {"line": 999, "value": 1}), -32602),
        (("i2c.read", {"bus": 1, "addr": "0x999", "len": 1}), -32602),
        (("i2c.read", {"bus": 7, "addr": "0x48", "len": 1}), -32602),
        (("no.such", {}), -32002),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_3_4_one_step_that_is_not_valid_keeps_all_from_being_executed(peer, session, daemon, bad, code, place) -> None:
    before = peer.value(session, "gpio.get", line=1)["value"]
    steps = [("gpio.set", {"line": 1, "value": 1 - before})] * 3
    steps[place] = bad
    refused = peer.refused(session, *steps, abort_on_step_failure=False)
    assert refused["code"] == code
    assert refused["data"]["step_index"] == place
    assert refused["data"]["tool"] == bad[0]
    assert peer.value(session, "gpio.get", line=1)["value"] == before
    assert not [r for r in daemon.records(event="task.step.start", session_id=session) if r["tool"] == "gpio.set"]


@pytest.mark.spec(
    "3.4",
    "MUST",
    "The server MUST reject any step whose tool's risk_level exceeds the session's permitted maximum (default 2; "
    "configurable via constraints.max_risk_level only if the session is permitted to relax it).",
)
def test_3_4_the_default_maximum_is_2_and_a_task_may_only_lower_it(hearthd) -> None:
    peer = hearthd().peer()  # no [[policy]]: the default one
    session = peer.open()
    assert peer.run(session, ("gpio.set", {"line": 1, "value": 1}))["status"] == "SUCCESS"
    delete = ("file.delete", {"path": "/tmp/x"})
    for more in ({}, {"max_risk_level": 2}, {"max_risk_level": 3}):
        refused = peer.refused(session, ("gpio.get", {"line": 1}), delete, **more)
        assert refused["code"] == -32003, more
    lowered = peer.refused(session, ("gpio.set", {"line": 1, "value": 1}), max_risk_level=1)
    assert (lowered["code"], lowered["data"]["reason"]) == (-32003, "max_risk_level=1 < tool=2")


@pytest.mark.spec(
    "3.4",
    "MUST",
    "The server MUST reject any step whose tool's risk_level exceeds the session's permitted maximum (default 2; "
    "configurable via constraints.max_risk_level only if the session is permitted to relax it).",
)
def test_3_4_a_session_that_is_permitted_to_relax_it_may_do_so_task_by_task(peer, session, daemon) -> None:
    path = daemon.directory / "files" / "delete-me"
    path.write_text("x")
    delete = ("file.delete", {"path": str(path)})
    assert peer.refused(session, delete)["code"] == -32003
    assert path.exists()
    assert peer.run(session, delete, max_risk_level=3)["status"] == "SUCCESS"
    assert not path.exists()
    assert peer.refused(session, delete)["code"] == -32003, "for that task only"


# --- 3.5 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("3.5", "is", "Task status is one of: QUEUED, RUNNING, SUCCESS, FAILED, CANCELLED.")
@pytest.mark.spec("3.5", "is", "Step status uses the same enum (without QUEUED).")
def test_3_5_tasks_and_steps_have_these_statuses_and_no_others(peer, session) -> None:
    answer = peer.result("task.submit", peer.submission(session, READ))
    assert answer["status"] == "QUEUED"
    good = peer.finished(session, answer["task_id"])
    bad = peer.run(session, NOBODY)
    running_id = peer.submit(session, READ, WATCH, READ)
    running = eventually(lambda: (task := peer.get(session, running_id))["steps"][1:] and task, "the second step")
    peer.result("task.cancel", {"session_id": session, "task_id": running_id})
    cancelled = peer.finished(session, running_id)
    assert [task["status"] for task in (good, bad, running, cancelled)] == ["SUCCESS", "FAILED", "RUNNING", "CANCELLED"]
    assert [step["status"] for step in good["steps"]] == ["SUCCESS"]
    assert [step["status"] for step in bad["steps"]] == ["FAILED"]
    assert [step["status"] for step in running["steps"]] == ["SUCCESS", "RUNNING"]
    assert [step["status"] for step in cancelled["steps"]] == ["SUCCESS", "CANCELLED", "CANCELLED"]


@pytest.mark.spec("3.5", "MUST", 'A failed step MUST include an "error" string.')
@pytest.mark.parametrize("step", [NOBODY, ("com.example.bug", {}), ("com.example.slow", {"len": 10})])
def test_3_5_a_failed_step_has_an_error_string_in_task_get_and_in_its_event(peer, session, step) -> None:
    task_id = peer.submit(session, step, subscribe=True)
    finish = peer.events_until("task_finish")[-2]
    (failed,) = peer.get(session, task_id)["steps"]
    assert failed["status"] == finish["status"] == "FAILED"
    assert isinstance(failed["error"], str)
    assert failed["error"]
    assert finish["error"] == failed["error"]
    assert "result" not in failed


@pytest.mark.spec("3.5", "is", "The whole task fails fast unless abort_on_step_failure: false was set.")
def test_3_5_a_task_fails_fast(peer, session) -> None:
    task = peer.run(session, READ, NOBODY, READ)
    assert task["status"] == "FAILED"
    assert [step["status"] for step in task["steps"]] == ["SUCCESS", "FAILED", "CANCELLED"]


@pytest.mark.spec("3.5", "is", "The whole task fails fast unless abort_on_step_failure: false was set.")
@pytest.mark.spec("design 8: failed steps with abort_on_step_failure: false")
def test_3_5_with_abort_on_step_failure_false_all_steps_run_and_the_task_failed(peer, session) -> None:
    task = peer.run(session, READ, NOBODY, READ, abort_on_step_failure=False)
    assert task["status"] == "FAILED"
    assert [step["status"] for step in task["steps"]] == ["SUCCESS", "FAILED", "SUCCESS"]
    assert peer.run(session, READ, READ, abort_on_step_failure=False)["status"] == "SUCCESS"


# --- 3.6 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("3.6", "is", 'Result: { "task_id": "...", "status": "CANCELLING" }')
def test_3_6_cancel_answers_cancelling(peer, session) -> None:
    task_id = peer.submit(session, WATCH)
    cancel = {"session_id": session, "task_id": task_id}
    assert peer.result("task.cancel", cancel) == {"task_id": task_id, "status": "CANCELLING"}
    assert peer.finished(session, task_id)["status"] == "CANCELLED"


def in_flight(peer, session: str, step, **more) -> str:
    """Submit a step on the slow I2C bus, and return when its transaction has begun."""
    before = peer.transactions(session, "i2c:1")
    task_id = peer.submit(session, step, READ, subscribe=True, **more)
    eventually(lambda: peer.transactions(session, "i2c:1") > before, "the transaction's beginning")
    return task_id


@pytest.mark.spec(
    "3.6", "is", "Steps in progress are signaled; the task moves to CANCELLED only after the current step yields."
)
def test_3_6_a_waiting_step_is_signaled_and_yields_before_the_task_is_cancelled(peer, session) -> None:
    task_id = peer.submit(session, WATCH, READ, subscribe=True)
    started(peer, session, task_id)
    peer.result("task.cancel", {"session_id": session, "task_id": task_id})
    events = peer.events_until("task_finish")
    assert [(event["phase"], event.get("status")) for event in events] == [
        ("start", None), ("finish", "CANCELLED"), ("task_finish", "CANCELLED"),
    ]  # fmt: skip


@pytest.mark.spec(
    "3.6", "is", "Steps in progress are signaled; the task moves to CANCELLED only after the current step yields."
)
def test_3_6_a_task_whose_step_does_not_yield_is_not_cancelled_before_it_does(peer, session) -> None:
    # 100 bytes at 9 ms each: the cancellation meets it in the middle, and has to wait for the rest.
    task_id = in_flight(peer, session, ("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 100}))
    assert peer.result("task.cancel", {"session_id": session, "task_id": task_id})["status"] == "CANCELLING"
    assert peer.get(session, task_id)["status"] == "RUNNING"
    finish, end = peer.events_until("task_finish")[-2:]
    assert (finish["phase"], finish["step_index"], finish["status"]) == ("finish", 0, "SUCCESS")
    assert len(base64.b64decode(finish["result"]["data"])) == 100, "it yielded when it was done, not before"
    assert end["status"] == "CANCELLED"
    assert [step["status"] for step in peer.get(session, task_id)["steps"]] == ["SUCCESS", "CANCELLED"]


@pytest.mark.spec(
    "3.6",
    "MUST NOT",
    "Servers MUST NOT force-kill a step that has begun a hardware transaction (for example, an in-flight I2C write) "
    "just because cancel arrived.",
)
@pytest.mark.parametrize("how", ["task.cancel", "session.close", "max_duration_ms", "disconnect"])
def test_3_6_an_i2c_write_in_flight_is_never_cut_short(peer, daemon, how: str) -> None:
    session, observer = peer.open(on_disconnect="close"), daemon.peer()
    watching = observer.open()
    # The EEPROM stores what has come when the transaction ends. These 128 bytes wrap in its page 16 times: were the
    # transaction torn anywhere, the page would hold other values than the last eight.
    data = bytes(range(128))
    step = ("i2c.write", {"bus": 1, "addr": "0x50", "reg": 0, "data": base64.b64encode(data).decode()})
    more = {"max_duration_ms": 300} if how == "max_duration_ms" else {}
    task_id = in_flight(peer, session, step, **more)
    if how == "disconnect":
        peer.close()
    elif how != "max_duration_ms":
        assert "result" in peer.call(how, {"session_id": session, "task_id": task_id})
    finish = daemon.recorded(event="task.step.finish", task_id=task_id)
    assert finish["status"] == "SUCCESS"
    assert daemon.recorded(event="task.finish", task_id=task_id)["status"] in ("CANCELLED", "FAILED")
    stored = observer.value(watching, "i2c.read", bus=1, addr="0x50", reg=0, len=8)["data"]
    assert base64.b64decode(stored) == data[-8:]
    assert len(daemon.records(event="task.step.start", task_id=task_id)) == 1, "and nothing began after it"
