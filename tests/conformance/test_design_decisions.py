"""The wire decisions that go beyond the HACP draft (design §8), against a running hearthd."""

from __future__ import annotations

import base64
import json
import os
import random
import signal

import pytest
from conformance.daemon import eventually
from support.users import ordinary_user

from hearth._util.ids import new_id
from hearth.config.model import LimitsConfig

READ = ("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2})
GET = ("gpio.get", {"line": 1})
WATCH = ("gpio.watch", {"line": 3, "timeout_ms": 60_000})
NOBODY = ("i2c.read", {"bus": 1, "addr": "0x23", "len": 1})
OPEN = b'{"jsonrpc":"2.0","id":%s,"method":"session.open","params":{}}'


def exchange(ms: int) -> tuple[str, dict[str, object]]:
    """A transaction that takes the serial port for that long: nobody answers to QUIET."""
    data = base64.b64encode(b"QUIET\n").decode()
    return ("uart.exchange", {"port": "uart0", "data": data, "until": "\n", "timeout_ms": ms})


def begun(peer, session: str, task_id: str, bus: str = "uart:uart0") -> None:
    """Wait until the bus is in use by the task."""

    def in_use() -> bool:
        refused = peer.call("task.submit", peer.submission(session, (
            "uart.read", {"port": "uart0", "timeout_ms": 0}), on_busy="fail"))  # fmt: skip
        task = peer.finished(session, refused["result"]["task_id"])
        return task["status"] == "FAILED" and task["steps"][0]["error_data"].get("holder_task") == task_id

    eventually(in_use, f"the transaction on {bus}")


@pytest.mark.spec("design 8: notification")
def test_notifications_are_executed_and_never_answered(peer, session, daemon) -> None:
    for id_ in ("", '"id":null,'):
        task_id = peer.submit(session, WATCH)
        params = json.dumps({"session_id": session, "task_id": task_id})
        peer.send(f'{{"jsonrpc":"2.0",{id_}"method":"task.cancel","params":{params}}}\n'.encode())
        assert peer.finished(session, task_id)["status"] == "CANCELLED"
    for wrong in (b'"method":"no.such"', b'"method":"task.get","params":{}', b'"method":"tool.list","params":[]'):
        peer.send(b'{"jsonrpc":"2.0",' + wrong + b"}\n")
    assert peer.is_silent(), "nor is one that fails"
    assert peer.ask(b'{"jsonrpc":"2.0","method":')["id"] is None
    assert peer.ask(b'{"method":"tool.list"}') == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32600, "message": "Invalid Request", "data": {"reason": 'member "jsonrpc" must be "2.0"'}},
    }
    submission = json.dumps(peer.submission(session, ("gpio.set", {"line": 2, "value": 1}), intent="unanswered"))
    peer.send(f'{{"jsonrpc":"2.0","method":"task.submit","params":{submission}}}\n'.encode())
    task_id = daemon.recorded(event="task.submit", intent="unanswered")["task_id"]
    assert peer.finished(session, task_id)["status"] == "SUCCESS"


@pytest.mark.spec("design 8: batch")
def test_a_batch_is_answered_with_one_array_line(peer, session) -> None:
    task = {"jsonrpc": "2.0", "method": "task.get", "params": {"session_id": session, "task_id": "none"}}
    tools = {"jsonrpc": "2.0", "method": "tool.list", "params": {"session_id": session}}
    peer.send(json.dumps([{**tools, "id": 1}, 7, {**task, "id": "t"}, tools, {**tools, "id": 2}]).encode() + b"\n")
    answers = json.loads(peer.raw())
    assert sorted(str(answer["id"]) for answer in answers) == ["1", "2", "None", "t"]
    assert {answer["error"]["code"] for answer in answers if "error" in answer} == {-32600, -32001}
    peer.send(json.dumps([tools, tools]).encode() + b"\n")
    assert peer.is_silent(), "a batch of notifications is not answered"
    assert peer.ask(b"[]")["error"]["code"] == -32600
    assert len(peer.ask(b"[" + b",".join(OPEN % str(n).encode() for n in range(64)) + b"]")) == 64
    too_many = peer.ask(b"[" + b",".join(OPEN % str(n).encode() for n in range(65)) + b"]")
    assert (too_many["id"], too_many["error"]["code"]) == (None, -32600)
    assert too_many["error"]["data"]["max_batch"] == 64


@pytest.mark.spec("design 8: too long a line")
@pytest.mark.parametrize("end", [b"\n", b""], ids=["whole", "without end"])
def test_too_long_a_line_is_refused_with_the_reason_and_ends_the_connection(daemon, end: bytes) -> None:
    peer = daemon.peer()
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"x":"', b'"}}'
    fits = head + b"x" * ((1 << 20) - len(head) - len(tail)) + tail
    assert len(fits) == 1 << 20
    assert "result" in peer.ask(fits)
    peer.send(OPEN % b"2" + b"\n" + head + b"x" * (1 << 20) + (tail + end if end else b""))
    answers = [peer.line(), peer.line()]
    assert sorted(answer["id"] is None for answer in answers) == [False, True], "what came before it is answered"
    (refused,) = [answer for answer in answers if answer["id"] is None]
    assert refused["error"]["code"] == -32600
    assert refused["error"]["data"]["max_document_bytes"] == 1 << 20
    assert refused["error"]["data"]["reason"]
    assert peer.line() is None, "closed"
    assert "result" in daemon.peer().call("session.open"), "and nobody else noticed"


@pytest.mark.spec("design 8: values in one document")
def test_a_document_of_too_many_values_is_refused_and_the_connection_goes_on(peer) -> None:
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"x":[', b"]}}"
    # The document, its members, params' one member, and the items.
    assert "result" in peer.ask(head + b",".join([b"0"] * (20_000 - 6)) + tail)
    refused = peer.ask(head + b",".join([b"0"] * (20_001 - 6)) + tail)
    assert (refused["id"], refused["error"]["code"]) == (1, -32600)
    assert refused["error"]["data"]["max_values"] == 20_000
    assert refused["error"]["data"]["reason"]
    assert "result" in peer.call("session.open")


@pytest.mark.spec("design 8: what is not JSON")
@pytest.mark.parametrize(
    "value",
    [b'"\xff"', b'"\xc0\xaf"', b"NaN", b"-Infinity", b"1e999", b"9" * 400, rb'"\ud800"', b"[" * 5000 + b"]" * 5000],
    ids=["invalid UTF-8", "overlong", "NaN", "-Infinity", "1e999", "400 digits", "lone surrogate", "nesting"],
)
def test_what_is_not_json_is_a_parse_error_and_the_connection_goes_on(peer, value: bytes) -> None:
    answer = peer.ask(b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"x":' + value + b"}}")
    assert (answer["id"], answer["error"]["code"]) == (None, -32700)
    assert answer["error"]["data"]["reason"]
    assert "result" in peer.ask(OPEN % b"2")


@pytest.mark.spec("design 8: what is not JSON")
def test_a_name_that_is_repeated_is_an_invalid_request_and_nothing_runs(peer, session, daemon) -> None:
    submission = json.dumps(peer.submission(session, ("gpio.set", {"line": 2, "value": 1})))
    submission = submission.replace('"value": 1', '"value": 0, "value": 9, "value": 1')
    answer = peer.ask(b'{"jsonrpc":"2.0","id":1,"method":"task.submit","params":' + submission.encode() + b"}")
    assert (answer["id"], answer["error"]["code"]) == (1, -32600)
    peer.value(session, "gpio.get", line=2)
    started = daemon.records(event="task.step.start", session_id=session)
    assert [one["tool"] for one in started] == ["gpio.get"]


@pytest.mark.spec("design 8: params")
def test_params_are_an_object_and_unknown_fields_are_ignored_in_args_too(peer, session) -> None:
    for wrong in (b"[]", b'["x"]', b"1", b'"x"', b"true", b"null"):
        answer = peer.ask(b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":' + wrong + b"}")
        assert answer["error"]["code"] == -32602, wrong
    assert peer.value(session, "gpio.get", line=1, unknown={"x": [1]})["line"] == 1


@pytest.mark.spec("design 8: params")
def test_what_is_ignored_is_named_in_the_answer_or_refused_for_who_is_strict(peer, session) -> None:
    submission = peer.submission(session, ("gpio.set", {"line": 3, "value": 1, "activelow": True}), dryrun=True)
    misspelt = ["/task/constraints/dryrun", "/task/steps/0/args/activelow"]
    for more, ignored in ({}, misspelt), ({"subscribe": True, "x/y~": 1}, ["/x~1y~0", *misspelt]):
        answer = peer.result("task.submit", {**submission, **more})
        assert answer["ignored"] == ignored
        assert peer.finished(session, answer["task_id"])["status"] == "SUCCESS"
    keyed = {**submission, "task": {**submission["task"], "idempotency_key": "k"}}
    first, again = peer.result("task.submit", keyed), peer.result("task.submit", keyed)
    assert (again["repeated"], again["task_id"], again["ignored"]) == (True, first["task_id"], misspelt)
    rehearsal = peer.submission(session, ("gpio.get", {"line": 3, "x": 1}), dry_run=True)
    assert peer.result("task.submit", rehearsal)["ignored"] == ["/task/steps/0/args/x"]
    tools = peer.result("tool.list", {"session_id": session, "X": 1})
    assert (tools.pop("ignored"), tools) == (["/X"], peer.result("tool.list", {"session_id": session}))
    assert peer.result("session.open", {"heartbeats": 7})["ignored"] == ["/heartbeats"]
    assert "ignored" not in peer.result("session.open", {"client_name": "x", "strict": True})

    for wrong in (1, "true", []):
        refused = peer.error("tool.list", {"session_id": session, "strict": wrong})
        assert (refused["code"], refused["data"]["path"]) == (-32602, "/strict")
    refused = peer.error("task.submit", {**submission, "strict": True})
    assert (refused["code"], refused["data"]["path"]) == (-32602, "/task/constraints/dryrun")
    assert refused["data"]["reason"] == "unknown key; did you mean dry_run?"
    peer.value(session, "gpio.set", line=3, value=0)
    refused = peer.error(
        "task.submit", {**peer.submission(session, ("gpio.set", {"lin": 3, "value": 1})), "strict": True}
    )
    assert refused["code"] == -32602
    assert refused["data"] == {
        "step_index": 0,
        "tool": "gpio.set",
        "path": "/lin",
        "reason": "unknown key; did you mean line?",
        "unknown": ["/lin"],
    }
    assert peer.value(session, "gpio.get", line=3)["value"] == 0


def test_an_unknown_tool_is_refused_with_the_nearest_that_the_session_may_use(hearthd) -> None:
    running = hearthd('[[policy]]\nname = "test"\nmatch = { any = true }\ntools = ["gpio.*"]\n')
    peer = running.peer()
    session = peer.open()
    refused = peer.error("task.submit", peer.submission(session, ("gpio.sett", {"line": 1, "value": 1})))
    assert refused["code"] == -32002
    assert refused["data"]["suggestions"][0] == "gpio.set"
    assert refused["message"].startswith("Tool not found: gpio.sett; did you mean gpio.set")
    for unknown in ("i2c.raed", "i2c.read" * 1000):
        refused = peer.error("task.submit", peer.submission(session, (unknown, {})))
        assert refused["data"] == {"step_index": 0, "tool": unknown[:100]}
    refused = peer.error("task.submit", peer.submission(session, ("gpio.set", {"line": "LDE", "value": 1})))
    assert (refused["code"], refused["data"]["suggestions"]) == (-32602, ["LED"])


@pytest.mark.spec("design 8: submit checks, in order")
def test_a_submission_that_is_wrong_in_every_way_is_told_so_in_the_order_of_the_checks(hearthd, tmp_path) -> None:
    (tmp_path / "shared").mkdir()
    running = hearthd(
        f'[files]\nread = ["{tmp_path}/shared"]\n[limits]\nmax_tasks_per_session = 1\n'
        '[[policy]]\nname = "test"\nmatch = { any = true }\ntools = ["gpio.*", "file.*", "i2c.*"]\n'
        'rate = { "gpio.get" = "1/h" }\n'
    )
    peer = running.peer()
    session = peer.open()
    peer.submit(session, WATCH)
    wrong = {
        "tool": ("no.such", {}),
        "allowed": ("uart.read", {"port": "uart0"}),
        "schema": ("gpio.get", {"line": [], "x": 1}),
        "risk": ("file.delete", {"path": "/etc/passwd"}),
        "path": ("file.read", {"path": "/etc/passwd"}),
        "rate": GET,
        "rate, again": GET,
    }
    submission = peer.submission("nobody's", *wrong.values())
    submission["task"]["constraints"] = {"dry_run": 1}

    def refusal() -> dict[str, object]:
        return peer.error("task.submit", submission)

    def without(name: str) -> None:
        submission["task"]["steps"] = [
            step for step in submission["task"]["steps"] if (step["tool"], step["args"]) != wrong[name]
        ]

    assert refusal()["code"] == -32000
    submission["session_id"] = session
    refused = refusal()
    assert (refused["code"], refused["data"]["path"]) == (-32602, "/task/constraints/dry_run")
    submission["task"]["constraints"] = {}
    refused = refusal()
    assert (refused["code"], refused["data"]["tool"]) == (-32002, "no.such")
    without("tool")
    refused = refusal()
    assert (refused["code"], refused["data"]["tool"]) == (-32003, "uart.read")
    without("allowed")
    refused = refusal()
    assert refused["code"] == -32602
    assert (refused["data"]["step_index"], refused["data"]["tool"], refused["data"]["path"]) == (0, "gpio.get", "/line")
    assert refused["data"]["reason"]
    without("schema")
    refused = refusal()
    assert (refused["code"], refused["data"]["reason"]) == (-32003, "max_risk_level=2 < tool=3")
    without("risk")
    refused = refusal()
    assert (refused["code"], refused["data"]["path"]) == (-32003, "/etc/passwd")
    without("path")
    refused = refusal()
    assert refused["code"] == -32006, "two uses where one is let through at once"
    submission["task"]["steps"] = submission["task"]["steps"][:1]
    refused = refusal()
    assert (refused["code"], refused["data"]["max_tasks_per_session"]) == (-32005, 1)
    assert not [record for record in running.records(event="task.step.start") if record["tool"] != "gpio.watch"]


@pytest.mark.spec("design 8: limits")
def test_the_limits_have_these_defaults() -> None:
    limits = LimitsConfig()
    assert (limits.max_steps, limits.max_tasks_per_session, limits.max_sessions_per_principal) == (256, 64, 64)
    assert (limits.max_connections, limits.max_outstanding, limits.bus_queue) == (1024, 256, 128)


@pytest.mark.spec("design 8: limits")
def test_the_default_limits_hold_on_the_wire(hearthd) -> None:
    peer = hearthd().peer()
    session = peer.open()
    assert len(peer.run(session, *[GET] * 256)["steps"]) == 256
    refused = peer.refused(session, *[GET] * 257)
    assert (refused["code"], refused["data"]["path"]) == (-32602, "/task/steps")
    for _ in range(64):
        peer.submit(session, WATCH)
    assert peer.refused(session, GET)["code"] == -32005
    for _ in range(63):
        peer.open()
    refused = peer.error("session.open")
    assert (refused["code"], refused["data"]["max_sessions_per_principal"]) == (-32005, 64)


@pytest.mark.proof
@pytest.mark.spec("design 8: limits")
def test_connections_outstanding_requests_and_bus_queues_are_bounded_as_configured(hearthd, open_place) -> None:
    config = "[limits]\nmax_connections = 2\nmax_outstanding = 2\nbus_queue = 1\nmax_tasks_per_session = 500\n"
    config += '[[policy]]\nname = "all"\nmatch = { any = true }\nmax_risk = 3\n'
    running = hearthd(config, server='socket_mode = "0666"', directory=open_place)
    peer, second = running.peer(), running.peer()
    session = peer.open()
    assert second.open()
    if os.geteuid() == 0:
        # The daemon's own user is not refused; another one has a first place, and no second.
        with ordinary_user():
            _, third = running.peer(), running.peer()
        refused = third.line()
        assert (refused["id"], refused["error"]["code"]) == (None, -32005)
        assert refused["error"]["data"] == {"max_connections": 2}
        assert third.line() is None
    assert running.peer().open()

    ids = [peer.start("task.get", {"session_id": session, "task_id": "x"}) for _ in range(300)]
    assert sorted(peer.answer(id_)["id"] for id_ in ids) == ids, "more than may be outstanding wait, and are answered"

    holder = peer.submit(session, exchange(2000))
    begun(peer, session, holder)
    queued = peer.submit(session, exchange(1))

    def full() -> bool:
        health = peer.value(session, "hw.board")["health"]["buses"]["uart:uart0"]
        return int(health["queued"]) == 1

    eventually(full, "the queued transaction")
    refused = peer.refused(session, exchange(1), on_busy="fail")
    assert (refused["code"], refused["data"]["reason"]) == (-32004, "queue full")
    failed = peer.run(session, exchange(1))
    assert (failed["status"], failed["steps"][0]["error_code"]) == ("FAILED", -32004)
    assert peer.finished(session, queued)["status"] == "SUCCESS"


@pytest.mark.spec("design 8: step list in task.get")
def test_task_get_shows_the_steps_that_have_started_and_at_the_end_all(peer, session) -> None:
    task_id = peer.submit(session, GET, WATCH, GET, GET)
    task = eventually(lambda: len((task := peer.get(session, task_id))["steps"]) == 2 and task, "the second step")
    assert [step["tool"] for step in task["steps"]] == ["gpio.get", "gpio.watch"]
    peer.result("task.cancel", {"session_id": session, "task_id": task_id})
    steps = peer.finished(session, task_id)["steps"]
    assert [step["status"] for step in steps] == ["SUCCESS", "CANCELLED", "CANCELLED", "CANCELLED"]


@pytest.mark.spec("design 8: latency_ms")
def test_latency_is_a_number_of_microseconds_resolution(peer, session) -> None:
    task = peer.run(session, *[GET] * 20, READ)
    latencies = [step["latency_ms"] for step in task["steps"]]
    assert all(latency >= 0 for latency in latencies)
    assert all(round(latency, 3) == latency for latency in latencies)
    assert any(latency != round(latency, 1) for latency in latencies), "finer than a tenth of a millisecond"
    # Five bytes on the wire, the addresses among them, at 9 ms each.
    assert latencies[-1] >= 36


@pytest.mark.spec("design 8: history")
def test_a_session_remembers_its_last_256_tasks(peer, session) -> None:
    tasks = [peer.submit(session, GET) for _ in range(260)]
    for task_id in tasks[-5:]:
        peer.finished(session, task_id)
    assert peer.error("task.get", {"session_id": session, "task_id": tasks[0]})["code"] == -32001
    assert peer.error("task.get", {"session_id": session, "task_id": tasks[3]})["code"] == -32001
    assert peer.get(session, tasks[4])["status"] == "SUCCESS"


@pytest.mark.spec("design 8: cancel of a terminal task")
def test_cancelling_a_task_that_has_ended_tells_how(peer, session) -> None:
    for step, status in ((GET, "SUCCESS"), (NOBODY, "FAILED")):
        task_id = peer.run(session, step)["task_id"]
        cancel = {"session_id": session, "task_id": task_id}
        assert peer.result("task.cancel", cancel) == {"task_id": task_id, "status": status}


@pytest.mark.spec("design 8: step results")
def test_a_failed_step_has_its_code_and_data(peer, session) -> None:
    (step,) = peer.run(session, NOBODY)["steps"]
    assert isinstance(step["error"], str)
    assert step["error_code"] == -32009
    assert step["error_data"]["effect"] == "none"
    assert step["error_data"]["addr"] == 0x23


@pytest.mark.spec("design 8: task.events.subscribe")
def test_a_subscription_answers_first_then_replays_then_goes_on_live(peer, session) -> None:
    task_id = peer.submit(session, GET, WATCH)
    eventually(lambda: len(peer.get(session, task_id)["steps"]) == 2, "the second step")
    for from_seq, replayed in ((None, [1, 2, 3]), (2, [2, 3]), (0, [1, 2, 3])):
        params = {"session_id": session, "task_id": task_id, "from_seq": from_seq}
        assert peer.result("task.events.subscribe", params) == {"ok": True, "task_id": task_id, "last_seq": 3}
        assert not peer.notifications, "the answer comes first"
        assert [peer.event()["seq"] for _ in replayed] == replayed
    peer.result("task.cancel", {"session_id": session, "task_id": task_id})
    finish, end = peer.events_until("task_finish")
    assert (finish["seq"], finish["phase"], finish["step_index"]) == (4, "finish", 1)
    assert (end["seq"], end["status"]) == (5, "CANCELLED")
    assert "step_index" not in end
    peer.result("task.events.subscribe", {"session_id": session, "task_id": task_id, "from_seq": 6})
    assert peer.is_silent()


@pytest.mark.spec("design 8: task.events.subscribe")
def test_without_a_task_id_all_tasks_are_followed_until_unsubscribed(peer, session) -> None:
    before = peer.run(session, GET)["task_id"]
    assert peer.result("task.events.subscribe", {"session_id": session}) == {"ok": True}
    assert {event["task_id"] for event in peer.events_until("task_finish")} == {before}
    later = peer.submit(session, GET)
    assert {event["task_id"] for event in peer.events_until("task_finish")} == {later}
    assert peer.result("task.events.unsubscribe", {"session_id": session}) == {"ok": True}
    peer.run(session, GET)
    assert peer.is_silent()
    assert not peer.notifications
    followed = peer.submit(session, GET, subscribe=True)
    assert [event["task_id"] for event in peer.events_until("task_finish")] == [followed] * 3


@pytest.mark.spec("design 8: back-pressure")
def test_a_subscriber_that_comes_late_to_a_flood_gets_the_frame_and_the_newest(peer, session) -> None:
    count = 5000
    task_id = peer.submit(session, ("com.example.chatter", {"count": count}), GET)
    peer.finished(session, task_id)
    peer.result("task.events.subscribe", {"session_id": session, "task_id": task_id})
    events = peer.events_until("task_finish")
    progress = [event for event in events if event["phase"] == "progress"]
    assert 1 <= len(progress) < 200
    assert progress[-1]["data"] == {"number": count - 1}
    others = [(event["phase"], event.get("step_index")) for event in events if event["phase"] != "progress"]
    assert others == [("start", 0), ("finish", 0), ("start", 1), ("finish", 1), ("task_finish", None)]
    seqs = [event["seq"] for event in events]
    assert seqs == sorted(set(seqs))
    assert seqs[-1] == count + 5, "a gap in seq shows what was left out"


@pytest.mark.proof
@pytest.mark.spec("design 8: idle TTL")
def test_a_live_subscription_keeps_a_session_and_a_running_task_alone_does_not(hearthd) -> None:
    assert LimitsConfig().idle_ttl_s == 300
    running = hearthd("[limits]\nidle_ttl_s = 1")
    peer = running.peer()
    followed, alone = peer.open(), peer.open()
    task_id = peer.submit(followed, WATCH, subscribe=True)
    peer.submit(alone, WATCH)  # the last request: were it not for the subscription, `followed` would be idle first
    assert running.recorded(event="session.close")["session_id"] == alone
    assert running.recorded(event="session.close")["reason"] == "idle"
    assert peer.get(followed, task_id)["status"] == "RUNNING"


@pytest.mark.proof
@pytest.mark.spec("design 8: session.close")
def test_session_close_waits_for_its_tasks_but_not_for_ever(hearthd) -> None:
    assert LimitsConfig().close_grace_s == 2
    running = hearthd("[limits]\nclose_grace_s = 0.2")
    peer = running.peer()
    session = peer.open()
    task_id = peer.submit(session, exchange(3000))
    begun(peer, session, task_id)
    assert peer.result("session.close", {"session_id": session}) == {"ok": True, "yielding": 1}
    finish = running.recorded(event="task.step.finish", task_id=task_id)
    assert finish["status"] == "SUCCESS", "the transaction was left to finish all the same"
    waiting = peer.open()
    peer.submit(waiting, WATCH)
    assert peer.result("session.close", {"session_id": waiting}) == {"ok": True}


@pytest.mark.spec("design 8: versions")
def test_versions(peer) -> None:
    assert peer.result("session.open", {"protocol_version": "0.9.9"})["protocol_version"] == "0.1.0"
    for higher in ("1.0.0", "2.3.4-beta", "10.0.0"):
        refused = peer.error("session.open", {"protocol_version": higher})
        assert (refused["code"], refused["data"]["supported"]) == (-32008, ["0.1.0"])
    for malformed in ("0.1", "v0.1.0", "0.1.0.0", "01.0.0", "0.1.0 ", "", "one"):
        assert peer.error("session.open", {"protocol_version": malformed})["code"] == -32602, malformed


@pytest.mark.spec("design 8: ids")
def test_ids_are_ulids(peer, session) -> None:
    ids = [session, peer.open(), peer.submit(session, GET), peer.submit(session, GET)]
    assert all(len(id_) == 26 and set(id_) <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ") for id_ in ids)
    assert ids[1][:10] >= ids[0][:10], "the first ten characters are the time"
    assert len({id_[10:] for id_ in ids}) == len(ids)


@pytest.mark.spec("design 8: ids")
def test_the_randomness_of_ids_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    state = random.getstate()
    try:
        random.seed(1)
        first = new_id()
        random.seed(1)
        assert new_id()[10:] != first[10:], "not from the seeded generator"
    finally:
        random.setstate(state)
    monkeypatch.setattr(os, "urandom", lambda count: b"\x00" * count)
    assert new_id()[10:] == "0" * 16


@pytest.mark.spec("design 8: max_risk_level")
def test_a_task_may_raise_its_cap_up_to_the_ceiling_only(hearthd) -> None:
    peer = hearthd('[[policy]]\nname = "test"\nmatch = { any = true }\nmax_risk = 1\nmax_risk_ceiling = 2').peer()
    session = peer.open()
    set_line = ("gpio.set", {"line": 1, "value": 1})
    assert peer.refused(session, set_line)["code"] == -32003
    assert peer.run(session, set_line, max_risk_level=2)["status"] == "SUCCESS"
    refused = peer.refused(session, set_line, max_risk_level=3)
    assert (refused["code"], refused["data"]["reason"]) == (-32003, "max_risk_level=3 > ceiling=2")
    refused = peer.refused(session, ("i2c.scan", {"bus": 1}), max_risk_level=0)
    assert (refused["code"], refused["data"]["reason"]) == (-32003, "max_risk_level=0 < tool=1")


@pytest.mark.proof
@pytest.mark.spec("design 8: added codes")
def test_a_daemon_that_is_ending_says_so(hearthd) -> None:
    running = hearthd("[limits]\nclose_grace_s = 20")
    peer = running.peer()
    session = peer.open()
    begun(peer, session, peer.submit(session, exchange(3000)))
    running.process.send_signal(signal.SIGTERM)
    # Nothing says when the signal has arrived but the answers themselves.
    refused = eventually(lambda: peer.call("session.open").get("error"), "SHUTTING_DOWN")
    assert refused["code"] == -32007
    assert running.process.wait(30) == 0


@pytest.mark.spec("design 8: capability flags")
@pytest.mark.parametrize(
    ("policy", "flags"),
    [
        ('tools = ["gpio.get"]', {"CAP_GPIO_READ", "CAP_SIGNAL_READ"}),
        ('tools = ["gpio.*"]\nmax_risk = 0', {"CAP_GPIO_READ", "CAP_SIGNAL_READ"}),
        (
            'tools = ["gpio.*"]',
            {"CAP_GPIO_READ", "CAP_GPIO_RW", "CAP_SIGNAL_READ", "CAP_SIGNAL_RW", "CAP_ROLLBACK"},
        ),
        ('tools = ["i2c.read", "sys.*", "file.read"]', {"CAP_I2C_READ", "CAP_SYS_READ", "CAP_FILE_READ"}),
        ("tools = []", set()),
    ],
)
def test_capabilities_are_those_of_the_tools_that_the_session_may_use(hearthd, policy: str, flags: set[str]) -> None:
    peer = hearthd(f'[[policy]]\nname = "test"\nmatch = {{ any = true }}\n{policy}').peer()
    capabilities = set(peer.result("session.open")["capabilities"])
    assert capabilities - {"CAP_STREAMING_TASK_EVENTS", "CAP_LEASE", "CAP_ATTEST"} == flags
