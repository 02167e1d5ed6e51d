"""Who may do what: a session is its principal's alone, policies cap it, nobody learns what is another's (design §6)."""

from __future__ import annotations

import os

import pytest
from support.hearthd import Wire, as_nobody, request, submission
from support.users import ordinary_user

pytestmark = pytest.mark.slow

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


# --- one principal, several connections -----------------------------------------------------------------------------


def test_a_session_is_used_from_any_connection_of_its_principal(shared) -> None:
    submitting, watching, cancelling = shared.peer(), shared.peer(), shared.peer()
    session = submitting.open()
    assert watching.call("task.events.subscribe", {"session_id": session})["result"] == {"ok": True}
    task = submitting.submit(session, ("gpio.watch", {"line": 4, "timeout_ms": 60_000}))
    start = watching.line()["params"]
    assert (start["task_id"], start["phase"], start["seq"]) == (task, "start", 1)
    here = {"session_id": session, "task_id": task}
    assert cancelling.call("task.cancel", here)["result"]["status"] == "CANCELLING"
    finish, end = watching.line()["params"], watching.line()["params"]
    assert (finish["phase"], finish["status"]) == ("finish", "CANCELLED")
    assert (end["phase"], end["status"], end.get("step_index")) == ("task_finish", "CANCELLED", None)
    # The one that submitted asked for no events, and got none.
    assert submitting.call("task.get", here)["result"]["status"] == "CANCELLED"


def test_a_session_outlives_the_connection_that_opened_it(shared) -> None:
    first = shared.peer()
    session = first.open()
    first.call("tool.list", {"session_id": session})
    task = first.submit(session, ("gpio.watch", {"line": 4, "timeout_ms": 60_000}))
    first.close()
    second = shared.peer()
    here = {"session_id": session, "task_id": task}
    assert second.call("task.get", here)["result"]["status"] == "RUNNING"
    assert second.call("session.close", {"session_id": session})["result"] == {"ok": True}


def test_a_task_of_another_session_is_not_found_even_by_its_owner(shared) -> None:
    peer = shared.peer()
    one, other = peer.open(), peer.open()
    task = peer.submit(one, ("gpio.get", {"line": 4}))
    for method in ("task.get", "task.cancel", "task.events.subscribe"):
        assert peer.refusal(method, {"session_id": other, "task_id": task})["code"] == -32001


def test_subscribers_that_come_and_go_leave_nothing_behind(shared) -> None:
    peer = shared.peer()
    session = peer.open()
    for _ in range(50):
        passing = shared.peer()
        passing.call("task.events.subscribe", {"session_id": session})
        passing.close()
    # 50 dead followers must not keep a live one from its events.
    watching = shared.peer()
    watching.call("task.events.subscribe", {"session_id": session})
    task = peer.submit(session, ("gpio.get", {"line": 4}))
    assert [watching.line()["params"]["task_id"] for _ in range(3)] == [task] * 3


# --- somebody else --------------------------------------------------------------------------------------------------


@as_root
def test_another_uids_session_is_not_told_apart_from_none(open_place, hearthd) -> None:
    running = hearthd(directory=open_place).start()
    peer = running.peer()
    session = peer.open()
    task = peer.submit(session, ("gpio.watch", {"line": 4, "timeout_ms": 60_000}))
    gid = running.socket.stat().st_gid
    params = [
        ("session.close", {}),
        ("tool.list", {}),
        ("task.get", {"task_id": task}),
        ("task.cancel", {"task_id": task}),
        ("task.events.subscribe", {}),
        ("task.events.subscribe", {"task_id": task}),
        ("task.submit", submission("", ("gpio.get", {"line": 4}))),
    ]
    made_up = session[:-1] + ("0" if session[-1] != "0" else "1")

    def ask(session_id: str) -> list:
        lines = [request(n, method, {**more, "session_id": session_id}) for n, (method, more) in enumerate(params)]
        return as_nobody(running.socket, *lines, groups=[gid])

    theirs, none = ask(session), ask(made_up)
    assert [answer["error"]["code"] for answer in theirs] == [-32000] * len(params)
    assert theirs == none, "the answers tell a session that exists from one that does not"
    # The session has noticed nothing.
    assert peer.call("task.get", {"session_id": session, "task_id": task})["result"]["status"] == "RUNNING"


@as_root
def test_the_sockets_group_may_connect_and_no_other_user(open_place, hearthd) -> None:
    running = hearthd(directory=open_place).start()
    gid = running.socket.stat().st_gid
    [opened] = as_nobody(running.socket, request(1, "session.open"), groups=[gid])
    assert opened["result"]["session_id"]
    with pytest.raises(PermissionError):
        as_nobody(running.socket, request(1, "session.open"))


@as_root
def test_a_principal_without_a_policy_is_refused_at_open_and_the_refusal_is_on_record(open_place, hearthd) -> None:
    policy = '[[policy]]\nname = "root only"\nmatch = { uid = 0 }\n'
    running = hearthd(policy, directory=open_place).start()
    running.socket.chmod(0o666)
    with ordinary_user():
        peer = running.peer()
    [refused] = peer.rest()
    assert refused["error"]["code"] == -32003
    assert "root only" not in str(refused), "what other policies there are is nobody's business"
    assert running.peer().open()
    [record] = [record for record in running.records() if record["event"] == "session.reject"]
    assert record["principal"] == f"uid:{NOBODY}"


@as_root
def test_a_principal_without_rights_cannot_fill_the_log_with_refusals(open_place, hearthd) -> None:
    policy = '[[policy]]\nname = "root only"\nmatch = { uid = 0 }\n'
    running = hearthd(policy, directory=open_place).start()
    running.socket.chmod(0o666)
    for _ in range(500):
        with ordinary_user():
            refused = Wire(running.socket)
        assert refused.line()["error"]["code"] == -32003
        refused.close()
    running.stop()
    told = running.records(event="session.reject")
    assert 60 <= len(told) < 65
    (counted,) = running.records(event="audit.refusals")
    assert (counted["of"], counted["principal"]) == ("session.reject", f"uid:{NOBODY}")
    assert counted["count"] == 500 - len(told)


@as_root
def test_a_principal_that_takes_all_connections_locks_no_other_out(open_place, hearthd) -> None:
    policy = '[[policy]]\nname = "all"\nmatch = { any = true }\n[limits]\nmax_connections = 5\n'
    running = hearthd(policy, directory=open_place).start()
    running.socket.chmod(0o666)
    with ordinary_user():
        greedy = [running.peer() for _ in range(5)]
        one_more = running.peer()
    for peer in greedy:
        peer.open()
    assert one_more.rest()[0]["error"]["data"] == {"max_connections": 5}
    assert running.peer().open()


@as_root
def test_each_principal_has_its_own_share_of_sessions(open_place, hearthd) -> None:
    running = hearthd("[limits]\nmax_sessions_per_principal = 2\n", directory=open_place).start()
    gid = running.socket.stat().st_gid
    peer = running.peer()
    peer.open()
    peer.open()
    assert peer.refusal("session.open")["code"] == -32005
    [opened] = as_nobody(running.socket, request(1, "session.open"), groups=[gid])
    assert "result" in opened


@as_root
def test_what_a_busy_bus_says_of_its_holder_is_said_to_the_same_principal_only(open_place, hearthd) -> None:
    running = hearthd(directory=open_place).start()
    gid = running.socket.stat().st_gid
    peer = running.peer()
    session = peer.open()
    exchange = ("uart.exchange", {"port": "uart0", "data": "aGk=", "len": 100, "timeout_ms": 1000})
    holder = peer.submit(session, exchange, exclusive=True)
    here = {"session_id": session, "task_id": holder}
    running.until(lambda: peer.call("task.get", here)["result"]["status"] == "RUNNING")
    other = peer.refusal("task.submit", submission(session, ("uart.read", {"port": "uart0"}), on_busy="fail"))
    assert (other["code"], other["data"]["holder_task"]) == (-32004, holder)

    # The other user opens a session and submits to it: its id is not known before, so two visits.
    opening = request(1, "session.open", {"on_disconnect": "keep"})
    [opened] = as_nobody(running.socket, opening, groups=[gid])
    theirs = opened["result"]["session_id"]
    submit = submission(theirs, ("uart.read", {"port": "uart0"}), on_busy="fail")
    [refused] = as_nobody(running.socket, request(1, "task.submit", submit), groups=[gid])
    if "error" in refused:  # else the exchange was over already on a very slow machine
        assert refused["error"]["code"] == -32004
        assert "holder_task" not in refused["error"]["data"]
        assert holder not in str(refused)


# --- policy ---------------------------------------------------------------------------------------------------------

POLICY = """
[[policy]]
name = "here"
match = { any = true }
max_risk = 1
max_risk_ceiling = 2
tools = ["gpio.*", "hw.board", "i2c.scan", "file.delete"]
rate = { "gpio.get" = "3/h", "gpio.set" = "5/h", "i2c.scan" = "3/h" }
"""


@pytest.fixture(scope="module")
def capped(tmp_path_factory):
    """A daemon with a narrow policy."""
    from support.hearthd import Hearthd

    running = Hearthd(tmp_path_factory.mktemp("capped"), POLICY).start()
    yield running
    for peer in running.peers:
        peer.close()
    assert running.stop() == 0


def test_tools_outside_the_allowlist_are_neither_listed_nor_run(capped) -> None:
    peer = capped.peer()
    session = peer.open()
    listed = {tool["name"] for tool in peer.call("tool.list", {"session_id": session})["result"]["tools"]}
    signals = {"signal.list", "signal.read", "signal.watch", "signal.set"}
    assert {
        "gpio.get",
        "gpio.set",
        "gpio.watch",
        "gpio.pulse",
        "hw.board",
        "i2c.scan",
        "file.delete",
    } == listed - signals
    assert signals < listed, "those of the lines"
    error = peer.refusal("task.submit", submission(session, ("sys.load", {})))
    assert error["code"] == -32003
    assert error["data"]["tool"] == "sys.load"
    assert peer.refusal("task.submit", submission(session, ("no.such", {})))["code"] == -32002


def test_the_risk_cap_holds_and_can_be_raised_to_the_ceiling_and_no_further(capped) -> None:
    peer = capped.peer()
    session = peer.open()
    set_line = ("gpio.set", {"line": 18, "value": 1})
    error = peer.refusal("task.submit", submission(session, set_line))
    assert (error["code"], error["data"]["reason"]) == (-32003, "max_risk_level=1 < tool=2")
    assert peer.wait(session, peer.submit(session, set_line, max_risk_level=2))["status"] == "SUCCESS"
    error = peer.refusal("task.submit", submission(session, set_line, max_risk_level=3))
    assert (error["code"], error["data"]["reason"]) == (-32003, "max_risk_level=3 > ceiling=2")
    scan = ("i2c.scan", {"bus": 1})
    assert peer.wait(session, peer.submit(session, scan))["status"] == "SUCCESS"
    error = peer.refusal("task.submit", submission(session, scan, max_risk_level=0))
    assert (error["code"], error["data"]["reason"]) == (-32003, "max_risk_level=0 < tool=1")


def test_a_rate_limit_says_when_to_come_back_and_what_is_refused_uses_nothing(capped) -> None:
    peer = capped.peer()
    session = peer.open()
    get = ("gpio.get", {"line": 4})
    error = peer.refusal("task.submit", submission(session, *[get] * 4))
    assert error["code"] == -32006
    assert "retry_after_ms" not in error["data"], "no waiting helps"
    peer.submit(session, get, get)
    for _ in range(3):
        error = peer.refusal("task.submit", submission(session, get, get))
        assert error["code"] == -32006
        assert 0 < error["data"]["retry_after_ms"] <= 3_600_000
    # A submission that is refused for another reason has not used the rate up either.
    assert peer.refusal("task.submit", submission(session, get, ("gpio.set", {"line": 4})))["code"] == -32602
    assert peer.wait(session, peer.submit(session, get))["status"] == "SUCCESS"
    assert peer.refusal("task.submit", submission(session, get))["code"] == -32006


def test_opening_sessions_gives_no_more_uses_than_the_rate(capped) -> None:
    scan = ("i2c.scan", {"bus": 1})
    accepted = 0
    for _ in range(6):
        # Another connection, from another process as far as the daemon can tell, of the same user.
        peer = capped.peer()
        answer = peer.call("task.submit", submission(peer.open(), scan))
        accepted += "result" in answer
    assert answer["error"]["code"] == -32006
    assert accepted <= 3


def test_capabilities_are_what_the_session_may_really_do(capped) -> None:
    flags = set(capped.peer().call("session.open")["result"]["capabilities"])
    assert {"CAP_GPIO_READ", "CAP_GPIO_RW", "CAP_STREAMING_TASK_EVENTS"} <= flags
    assert not flags & {"CAP_UART_RW", "CAP_UART_READ", "CAP_FILE_WRITE", "CAP_PROC"}
