"""Too much of everything: connections, requests, bytes nobody reads; the daemon bounds it and the others go on."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.hearthd import Peer, request, submission, unix_socket
from support.users import NOBODY, ordinary_user

if TYPE_CHECKING:
    from support.hearthd import Hearthd

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
ENTRIES = f"""
[[policy]]
name = "own"
match = {{ uid = {os.geteuid()} }}
[[policy]]
name = "guest"
match = {{ uid = {NOBODY} }}
"""
BIG = 256 * 1024
"""What file.read returns at most."""


def guests(running: Hearthd, count: int) -> list[Peer]:
    """Clients of another user, in the order in which they connected."""
    running.socket.chmod(0o666)
    with ordinary_user():
        return [running.peer(unix_socket(running.socket)) for _ in range(count)]


def limited(*limits: str) -> list[str]:
    """A command prefix that sets limits of the shell, such as "-n 64"."""
    return ["sh", "-c", "".join(f"ulimit {limit}; " for limit in limits) + 'exec "$@"', "sh"]


# --- connections ----------------------------------------------------------------------------------------------------


@needs_root
def test_max_connections_are_served_and_one_more_is_told_so(open_place, hearthd) -> None:
    running = hearthd(f"[limits]\nmax_connections = 3\n{ENTRIES}", directory=open_place).start()
    served = [running.peer() for _ in range(3)]
    for peer in served:
        peer.open()
    # One that holds none has a place; its second is refused.
    first, second = guests(running, 2)
    first.open()
    [refusal] = second.rest()
    assert (refusal["id"], refusal["error"]["code"]) == (None, -32005)
    assert refusal["error"]["data"] == {"max_connections": 3}
    # The daemon's own user gets in: it could end the daemon, too.
    running.peer().open()
    for peer in (first, *served):
        peer.close()
    # The daemon learns of it in its own time, and then there is room again.
    running.until(lambda: "result" in guests(running, 1)[0].answer_or_refusal("session.open"))


@needs_root
def test_1024_connections_are_served_where_the_shell_allows_1024_descriptors(open_place, hearthd) -> None:
    """1,024 is the limit that a login shell and systemd set for programs that do not ask for more."""
    running = hearthd(ENTRIES, directory=open_place).start(prefix=limited("-Sn 1024"))
    peers = [running.peer() for _ in range(1024)]
    peers[0].open()
    peers[-1].open()
    [refusal] = guests(running, 2)[1].rest()
    assert refusal["error"]["code"] == -32005
    running.peer().open()


def test_without_descriptors_accepting_pauses_and_recovers_while_the_others_go_on(hearthd, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("hello")
    running = hearthd(f'[files]\nread = ["{tmp_path}/data"]\n').start(prefix=limited("-n 64"))
    first = running.peer()
    session = first.open()
    crowd = [running.peer() for _ in range(100)]
    # A connection that was not accepted has no answer yet; those that were have theirs.
    for peer in crowd:
        with contextlib.suppress(BrokenPipeError):  # it has been turned away
            peer.send(request(1, "session.open"))
    # Whoever is in works as ever: its tools find descriptors of their own, and so does the audit log.
    assert first.run(session, "gpio.set", line=18, value=1)["status"] == "SUCCESS"
    assert first.run(session, "file.read", path=str(tmp_path / "data" / "x"))["status"] == "SUCCESS"
    assert first.run(session, "sys.load")["status"] == "SUCCESS"
    for peer in crowd:
        peer.close()
    running.until(lambda: "result" in running.peer().answer_or_refusal("session.open"))
    assert running.stop() == 0
    assert running.said.count("\n") < 20, running.said


def growth(running, work, most):
    """By how many MiB the daemon grew in each round of some work, until one is within `most`, or a sixth is not.

    What is imported beside the first requests, and what a busy machine lets pile up, is taken once.
    """
    grown = []
    while not grown or (grown[-1] > most and len(grown) < 6):
        memory = running.memory()
        work()
        grown.append(running.memory() - memory)
    return grown


@pytest.mark.proof
def test_connections_that_come_and_go_2000_times_leave_nothing(hearthd) -> None:
    # Who asks to keep a session and hangs up may have been answered by then: such a session lasts until it is idle.
    running = hearthd('[limits]\nidle_ttl_s = 1\nmax_sessions_per_principal = 1000\nsession_rate = "10000/s"\n').start()
    first = running.peer()

    def come_and_go(times: int) -> None:
        for n in range(times):
            peer = Peer(running.socket)
            if n % 4:
                keep = "keep" if n % 4 == 1 else "close"
                peer.send(request(1, "session.open", {"on_disconnect": keep}))
            if n % 4 > 1:
                peer.line()
            if n % 4 == 3:
                peer.send(b"{" * 1000)
            peer.close()

    def two_thousand() -> None:
        come_and_go(2000)
        running.until(lambda: first.health()["sessions"] == 1)

    two_thousand()
    descriptors, threads = running.descriptors(), running.threads()
    grown = growth(running, two_thousand, 12)
    running.until(lambda: running.descriptors() <= descriptors)
    assert running.threads() <= threads
    assert grown[-1] <= 12, f"2,000 connections may not cost more than 6 KiB each, and took {grown} MiB"


@pytest.mark.proof
def test_sessions_that_come_and_go_leave_nothing(hearthd) -> None:
    running = hearthd('[limits]\nsession_rate = "10000/s"\n').start()
    peer = running.peer()

    def come_and_go(times: int) -> None:
        for n in range(times):
            session = peer.open()
            peer.start("session.close", {"session_id": session})
            peer.line()
            del n

    grown = growth(running, lambda: come_and_go(1500), 2)
    assert grown[-1] <= 2, f"a session that has ended may cost nothing, and 1,500 took {grown} MiB"


# --- requests -------------------------------------------------------------------------------------------------------


def test_more_requests_at_once_than_may_be_outstanding_are_all_answered(shared, peer) -> None:
    session = peer.open()
    submit = submission(session, ("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2}))
    peer.send(*(request(n, "task.submit", submit) for n in range(60)))
    peer.send(*(request(n, "tool.list", {"session_id": session}) for n in range(60, 300)))
    assert {peer.line()["id"] for _ in range(300)} == set(range(300))


def test_a_flood_of_notifications_is_executed_in_bounded_memory(shared, peer) -> None:
    session = peer.open()
    memory = shared.memory()
    flood = request(None, "task.submit", submission(session, ("gpio.get", {"line": 4}))) * 200
    for _ in range(20):
        peer.send(flood)
    assert peer.call("tool.list", {"session_id": session})["result"]
    assert shared.memory() <= memory + 32


def test_a_flood_of_garbage_that_is_not_read_stops_being_read(shared) -> None:
    memory = shared.memory()
    peer = Peer(shared.socket)
    peer.socket.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 256 << 20:
            sent += peer.socket.send(b"x\n" * 32768)
    assert sent < 64 << 20, "the daemon went on reading what it could not answer"
    assert shared.memory() <= memory + 32
    peer.close()


def flood_without_reading(peer: Peer, document: bytes) -> None:
    """Send the same document until nobody takes any more."""
    peer.socket.settimeout(0.5)
    with contextlib.suppress(TimeoutError, ConnectionError):
        for _ in range(100_000):
            peer.send(document)


@pytest.fixture
def big(hearthd, tmp_path):
    """A daemon with short patience, a session, and a task of that session with a result as large as they get."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(os.urandom(BIG))
    config = f'[files]\nread = ["{tmp_path}/data"]\n[limits]\nsend_timeout_s = 2\nmax_connections = 50\n'
    running = hearthd(config).start()
    peer = running.peer()
    session = peer.open()
    return running, peer, session, ("file.read", {"path": str(tmp_path / "data" / "x")})


@pytest.mark.proof
def test_a_client_that_asks_and_never_reads_costs_bounded_memory_and_no_other_notices(big) -> None:
    running, peer, session, read = big
    task = peer.submit(session, read, read, read)
    assert peer.wait(session, task)["status"] == "SUCCESS"
    memory = running.memory()
    asking = request("a", "task.get", {"session_id": session, "task_id": task})
    descriptors = running.descriptors()
    mute = [running.peer() for _ in range(3)]
    for n, flooder in enumerate(mute):
        ids = (asking.replace(b'"a"', str(number).encode()) for number in range(400))
        flood_without_reading(flooder, b"".join(ids) if n else asking)
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    assert running.memory() <= memory + 3 * 24
    # They are cut off after the bound, and their answers are forgotten.
    for flooder in mute:
        flooder.until_cut_off()
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    running.until(lambda: running.descriptors() <= descriptors)


def test_a_batch_that_asks_for_too_much_at_once_is_refused_the_rest(big) -> None:
    running, peer, session, read = big
    task = peer.submit(session, *[read] * 8)
    assert peer.wait(session, task)["status"] == "SUCCESS"
    memory = running.memory()
    ask = {"jsonrpc": "2.0", "method": "task.get", "params": {"session_id": session, "task_id": task}}
    peer.send(json.dumps([{**ask, "id": n} for n in range(64)]).encode() + b"\n")
    answers = peer.line()
    assert {answer["id"] for answer in answers} == set(range(64))
    assert "result" in answers[0]
    refused = [answer["error"] for answer in answers if "error" in answer]
    assert refused
    assert {error["code"] for error in refused} == {-32005}
    assert running.memory() <= memory + 96


@pytest.mark.proof
def test_the_results_of_a_task_are_bounded_and_what_no_longer_fits_fails(big) -> None:
    running, peer, session, read = big
    memory = running.memory()
    for _ in range(8):
        task = peer.submit(session, *[read] * 64, abort_on_step_failure=False)
        done = peer.wait(session, task)
        assert done["status"] == "FAILED"
        assert len(json.dumps(done)) < 8 << 20
        statuses = [step["status"] for step in done["steps"]]
        assert statuses[:8] == ["SUCCESS"] * 8, "two MiB fit"
        failed = done["steps"][-1]
        assert failed["status"] == "FAILED"
        assert failed["error_code"] == -32005
        assert failed["error_data"]["effect"] == "none"
    assert running.memory() <= memory + 128, "the history is bounded by what it weighs, too"


@pytest.mark.proof
def test_the_history_of_a_session_costs_what_it_weighs(hearthd) -> None:
    running = hearthd('[[policy]]\nname = "all"\nmatch = { any = true }\nrate = { "gpio.get" = "99999/s" }\n').start()
    peer = running.peer()
    session = peer.open()
    steps = [("gpio.get", {"line": 4})] * 64
    peer.wait(session, peer.submit(session, *steps))
    memory = running.memory()
    for _ in range(150):
        peer.wait(session, peer.submit(session, *steps))
    # 150 tasks of 129 events of some 220 bytes each, and their snapshots.
    assert running.memory() <= memory + 16


@pytest.mark.proof
def test_a_slow_reader_of_a_long_history_costs_a_cursor_and_is_cut_off(big) -> None:
    running, peer, session, read = big
    tasks = []
    for _ in range(6):
        tasks.append(peer.submit(session, *[read] * 8))
        assert peer.wait(session, tasks[-1])["status"] == "SUCCESS"
    memory = running.memory()
    slow = [running.peer() for _ in range(10)]
    for reader in slow:
        reader.send(request(1, "task.events.subscribe", {"session_id": session}))
        # It reads its answer and no more.
        assert reader.socket.recv(1)
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    assert running.memory() <= memory + 10 * 3
    for reader in slow:
        reader.until_cut_off()
    # Whoever reads gets everything.
    fast = running.peer()
    fast.call("task.events.subscribe", {"session_id": session, "task_id": tasks[0]})
    events = [fast.line()["params"] for _ in range(17)]
    assert [event["seq"] for event in events] == list(range(1, 18))
    assert events[-1]["phase"] == "task_finish"


@pytest.mark.proof
def test_a_reader_that_reads_slowly_but_reads_is_not_cut_off(big) -> None:
    running, peer, session, read = big
    task = peer.submit(session, *[read] * 4)
    peer.wait(session, task)
    slow = running.peer()
    slow.start("task.events.subscribe", {"session_id": session, "task_id": task})
    # A little at a time, until more time has passed than it may spend without reading.
    begun = time.monotonic()
    received = b""
    while b'"task_finish"' not in received:
        part = slow.socket.recv(65536)
        assert part, "it was cut off although it read"
        received += part
        if time.monotonic() < begun + 3:
            time.sleep(0.2)
    assert time.monotonic() > begun + 2


def test_half_closed_connections_get_their_answers(shared) -> None:
    peer = Peer(shared.socket)
    batch = b"[" + request("c", "session.open").strip() + b"]\n"
    peer.send(request("a", "session.open"), request("b", "no.such"), batch)
    peer.finish_sending()
    said = peer.rest()
    flat = [answer for document in said for answer in (document if isinstance(document, list) else [document])]
    assert {answer["id"] for answer in flat} == {"a", "b", "c"}
    peer.close()


def test_a_half_closed_connection_waits_for_an_answer_that_takes_time(shared, peer) -> None:
    session = peer.open()
    # A transaction that is not to be interrupted: the close is answered when it has ended.
    peer.submit(session, ("uart.exchange", {"port": "uart0", "data": "aGk=", "len": 9, "timeout_ms": 700}))
    closer = Peer(shared.socket)
    closer.send(request("close", "session.close", {"session_id": session}))
    closer.finish_sending()
    assert closer.rest() == [{"jsonrpc": "2.0", "id": "close", "result": {"ok": True}}]
    closer.close()


def test_shutting_down_the_reading_side_is_as_good_as_closing(shared, peer) -> None:
    peer.open()
    before = shared.descriptors()
    deaf = Peer(shared.socket)
    deaf.socket.shutdown(socket.SHUT_RD)
    with contextlib.suppress(BrokenPipeError):
        for _ in range(100):
            deaf.send(request(1, "session.open"))
    shared.until(lambda: shared.descriptors() <= before)
    deaf.close()
    assert peer.open()


def test_more_sessions_than_a_principal_may_have_are_refused_until_one_ends(hearthd) -> None:
    running = hearthd("[limits]\nmax_sessions_per_principal = 4\n").start()
    peer, other = running.peer(), running.peer()
    sessions = [peer.open() for _ in range(4)]
    error = other.refusal("session.open")
    assert (error["code"], error["data"]) == (-32005, {"max_sessions_per_principal": 4})
    # Also those that nobody knows: a notification opens a session, and is never told which.
    peer.call("session.close", {"session_id": sessions[0]})
    peer.send(b'{"jsonrpc":"2.0","method":"session.open"}\n' * 10)
    assert peer.refusal("session.open")["code"] == -32005


def test_more_live_tasks_than_a_session_may_have_are_refused(hearthd) -> None:
    running = hearthd("[limits]\nmax_tasks_per_session = 3\n").start()
    peer = running.peer()
    session = peer.open()
    watch = ("gpio.watch", {"line": 4, "timeout_ms": 60_000})
    tasks = [peer.submit(session, watch) for _ in range(3)]
    assert peer.refusal("task.submit", submission(session, watch))["code"] == -32005
    here = {"session_id": session, "task_id": tasks[0]}
    assert peer.call("task.cancel", here)["result"]["status"] == "CANCELLING"
    assert peer.wait(session, tasks[0])["status"] == "CANCELLED"
    assert peer.submit(session, watch)


def test_more_steps_than_a_task_may_have_are_invalid_params(peer) -> None:
    session = peer.open()
    get = ("gpio.get", {"line": 4})
    assert peer.wait(session, peer.submit(session, *[get] * 256))["status"] == "SUCCESS"
    for many in (257, 4000):
        assert peer.refusal("task.submit", submission(session, *[get] * many))["code"] == -32602


def test_clients_that_give_up_before_they_are_answered_do_not_use_up_their_share_of_sessions(hearthd) -> None:
    running = hearthd("[limits]\nmax_sessions_per_principal = 8\n").start()
    for _ in range(200):
        hasty = Peer(running.socket)
        hasty.send(request(1, "session.open"))
        hasty.close()
    peer = running.peer()
    running.until(lambda: "result" in peer.call("session.open"))
    running.until(lambda: peer.call("session.open").get("error", {}).get("code") == -32005)
    closes = [record["reason"] for record in running.records() if record["event"] == "session.close"]
    assert set(closes) == {"its client never learned of it"}


def test_a_session_whose_client_was_told_of_it_stays_when_the_client_goes(hearthd) -> None:
    running = hearthd().start()
    first = Peer(running.socket)
    session = first.open()
    first.close()
    peer = running.peer()
    running.until(lambda: peer.run(session, "hw.board")["result"]["health"]["sessions"] == 1)
    assert peer.call("tool.list", {"session_id": session})["result"]


def test_what_explains_the_first_refusal_is_loaded_before_it(hearthd) -> None:
    """It takes a fifth of a second to import, and all other clients would wait for it."""
    running = hearthd().start()
    running.until(lambda: "/rpds/" in Path(f"/proc/{running.pid}/maps").read_text())
    peer = running.peer()
    assert peer.refusal("task.submit", submission(peer.open(), ("gpio.get", {"line": []})))["data"]["path"] == "/line"
