"""A task's event history and its readers (draft §8; design §8), without a wire."""

from __future__ import annotations

import gc

import orjson
import pytest
import trio
from hypothesis import given, strategies as st

from hearth.actors.events import PROGRESS_KEPT, EventLog, EventReader
from hearth.actors.send_queue import Cursor, SendQueue

TS = "2026-04-19T22:48:01.234Z"


def publish(log, *phases):
    for phase in phases:
        log.publish(phase, TS, {} if phase == "task_finish" else {"step_index": 0})


def read(log, from_seq, most=64):
    """The params of a history's events, as JSON, and the number to go on from."""
    found, after = log.lines(from_seq, most)
    return [orjson.dumps(orjson.loads(line)["params"]) for line in found], after


def numbers(found):
    return [orjson.loads(params)["seq"] for params in found]


class CountingReader:
    """A reader that counts."""

    def __init__(self):
        self.gone = False
        self.notified = 0

    def notify(self):
        self.notified += 1


def test_events_are_numbered_from_one_and_carry_what_the_draft_asks_for():
    log = EventLog("task")
    log.publish("start", TS, {"step_index": 0, "tool": "gpio.set"})
    (params,), after = read(log, 1)
    assert orjson.loads(params) == {
        "task_id": "task",
        "seq": 1,
        "phase": "start",
        "ts": TS,
        "step_index": 0,
        "tool": "gpio.set",
    }
    assert (after, log.last_seq, log.ended) == (2, 1, False)


@pytest.mark.parametrize("from_seq", range(8))
@pytest.mark.parametrize("phases", [["start", "finish"] * 2, ["start", "progress", "progress", "finish"]])
def test_reading_begins_where_it_is_asked_to(from_seq, phases):
    log = EventLog("task")
    publish(log, *phases, "task_finish")
    found, after = read(log, from_seq)
    assert numbers(found) == [seq for seq in range(1, 6) if seq >= from_seq]
    assert after == max(6, from_seq)


def test_a_history_is_read_in_pieces_without_a_gap():
    log = EventLog("task")
    for _ in range(50):
        publish(log, "start", "progress", "finish")
    publish(log, "task_finish")
    seen, at = [], 1
    while at <= log.last_seq:
        found, at = read(log, at, 7)
        assert 1 <= len(found) <= 7
        seen += numbers(found)
    assert seen == list(range(1, 152))


def test_progress_coalesces_to_the_newest_and_nothing_else_is_ever_dropped():
    log = EventLog("task")
    publish(log, "start", *["progress"] * 1000, "finish", "start", "finish", "task_finish")
    seen, at = [], 1
    while at <= log.last_seq:
        found, at = read(log, at)
        seen += [orjson.loads(params) for params in found]
    kept = [event["seq"] for event in seen if event["phase"] == "progress"]
    assert kept == list(range(1002 - PROGRESS_KEPT, 1002))
    assert [event["phase"] for event in seen if event["phase"] != "progress"] == [
        "start",
        "finish",
        "start",
        "finish",
        "task_finish",
    ]
    assert [event["seq"] for event in seen] == sorted(event["seq"] for event in seen)


@pytest.mark.slow
@given(
    phases=st.lists(st.sampled_from(["start", "finish", "progress", "progress", "progress"]), max_size=200),
    pulls=st.lists(st.integers(1, 5), max_size=60),
)
def test_any_reader_at_any_pace_sees_everything_that_must_not_be_lost(phases, pulls):
    log = EventLog("task")
    pulls = iter(pulls)
    seen, at = [], 1
    for phase in [*phases, "task_finish"]:
        publish(log, phase)
        if next(pulls, 0) % 3 == 1:
            found, at = read(log, at, next(pulls, 4))
            seen += [orjson.loads(params) for params in found]
    while at <= log.last_seq:
        found, at = read(log, at, 3)
        assert found, "there is something to read, and it is not given out"
        seen += [orjson.loads(params) for params in found]
    assert [event["seq"] for event in seen] == sorted({event["seq"] for event in seen})
    must = [phase for phase in phases if phase != "progress"]
    assert [event["phase"] for event in seen if event["phase"] != "progress"] == [*must, "task_finish"]


@pytest.mark.parametrize("phase", ["progress", "finish"])
def test_what_is_not_json_leaves_no_hole(phase):
    log = EventLog("task")
    publish(log, "start")
    with pytest.raises(TypeError):
        log.publish(phase, TS, {"value": object()})
    publish(log, "finish", "task_finish")
    found, after = read(log, 1)
    assert numbers(found) == [1, 2, 3]
    assert after == 4 == log.last_seq + 1


def test_readers_are_notified_for_what_is_there_and_for_what_comes_until_the_end():
    log = EventLog("task")
    early, late, after = CountingReader(), CountingReader(), CountingReader()
    log.attach(early)
    assert early.notified == 0
    publish(log, "start")
    log.attach(late)
    assert (early.notified, late.notified) == (1, 1)
    assert log.followed
    publish(log, "finish", "task_finish")
    assert (early.notified, late.notified) == (3, 3)
    assert not log.followed
    assert log.was_followed
    log.attach(after)
    assert after.notified == 1
    assert not log.followed


def test_a_reader_that_has_gone_or_was_detached_is_notified_no_more():
    log = EventLog("task")
    gone, detached, stays = CountingReader(), CountingReader(), CountingReader()
    for reader in (gone, detached):
        log.attach(reader)
    gone.gone = True
    log.detach(detached)
    assert not log.followed
    log.attach(stays)
    log.attach(stays)
    publish(log, "start")
    assert (gone.notified, detached.notified, stays.notified) == (0, 0, 1)


def test_a_history_that_was_not_followed_says_so():
    log = EventLog("task")
    publish(log, "start", "task_finish")
    assert log.was_followed is False


async def test_a_local_reader_waits_for_what_comes_and_ends_with_the_task():
    log = EventLog("task")
    seen = []

    async def read():
        seen.extend([params["phase"] async for params in EventReader(log)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for phase in ("start", "progress", "finish", "task_finish"):
            await trio.testing.wait_all_tasks_blocked()
            publish(log, phase)
    assert seen == ["start", "progress", "finish", "task_finish"]


async def test_a_local_reader_that_is_closed_is_followed_no_more():
    log = EventLog("task")
    reader = EventReader(log, 1)
    assert log.followed
    reader.close()
    assert not log.followed
    publish(log, "start")


# --- the sending side ---------------------------------------------------------------------------------------------


async def drained(send_queue):
    send_queue.finish()
    lines = []
    with trio.fail_after(60):
        while data := b"".join(await send_queue.batch()):
            lines += data.splitlines()
    return lines


def told(lines):
    return [orjson.loads(line)["params"]["seq"] for line in lines if b"task.event" in line]


async def test_what_is_ready_leaves_as_one_piece_in_the_order_it_became_due():
    send_queue, log = SendQueue(), EventLog("task")
    publish(log, "start")
    send_queue.push(b"first\n")
    send_queue.follow(log, 1)
    send_queue.push(b"second\n")
    publish(log, "finish")
    data = b"".join(await send_queue.batch())
    lines = data.splitlines()
    assert (lines[0], lines[-1]) == (b"first", b"second")
    assert told(lines) == [1, 2]


async def test_a_piece_is_not_much_longer_than_a_chunk():
    send_queue = SendQueue()
    for _ in range(100):
        send_queue.push(b"x" * 10_000)
    sizes = []
    send_queue.finish()
    while data := b"".join(await send_queue.batch()):
        sizes.append(len(data))
    assert sum(sizes) == 1_000_000
    assert max(sizes) < 80_000
    assert send_queue.size == 0


async def test_two_histories_are_sent_side_by_side():
    send_queue = SendQueue()
    logs = [EventLog(name) for name in "ab"]
    for log in logs:
        for _ in range(500):
            log.publish("finish", TS, {"result": "x" * 500})
        publish(log, "task_finish")
        send_queue.follow(log, 1)
    first = b"".join(await send_queue.batch())
    assert b'"task_id":"a"' in first
    assert b'"task_id":"b"' in first
    lines = [*first.splitlines(), *await drained(send_queue)]
    for name in "ab":
        of_one = [line for line in lines if f'"task_id":"{name}"'.encode() in line]
        assert told(of_one) == list(range(1, 502))


async def test_a_slow_reader_of_progress_gets_the_newest_and_costs_no_memory():
    send_queue, log = SendQueue(), EventLog("task")
    send_queue.follow(log, 1)
    publish(log, "start", *["progress"] * 10_000, "finish", "task_finish")
    assert send_queue.size == 0
    lines = await drained(send_queue)
    assert told(lines) == [1, *range(10_002 - PROGRESS_KEPT, 10_002), 10_002, 10_003]


async def test_following_again_starts_again_and_tells_nothing_twice():
    send_queue, log = SendQueue(), EventLog("task")
    publish(log, "start", "finish")
    send_queue.follow(log, 1)
    send_queue.follow(log, 2)
    publish(log, "task_finish")
    assert told(await drained(send_queue)) == [2, 3]


@pytest.mark.parametrize(
    ("first", "events", "again", "told_twice"),
    [
        pytest.param(1, ["start", "finish"], None, [1, 2, 3], id="from the start: it goes on"),
        pytest.param(3, ["start", "finish", "start"], None, [3, 1, 2, 4], id="from within: what is missing, then on"),
        pytest.param(9, ["start", "finish"], None, [1, 2, 3], id="from beyond the end"),
        pytest.param(
            70, ["start", *["progress"] * 67, "finish", "start"], None, [70, 1, *range(5, 70), 71], id="holes"
        ),
        pytest.param(1, ["start", "finish"], 1, [1, 2, 1, 2, 3], id="a number asks for a replay"),
    ],
)
async def test_two_subscriptions_of_one_connection_that_overlap_deliver_an_event_once(first, events, again, told_twice):
    """Draft §8: a notification reports one event; a client that counts them must not count one twice."""
    send_queue, log = SendQueue(), EventLog("task")
    publish(log, *events)
    send_queue.follow(log, first)
    sent = b"".join(send_queue.take()).splitlines()
    send_queue.follow(log, again)
    publish(log, "task_finish")
    assert told(sent + await drained(send_queue)) == told_twice


async def test_what_is_followed_no_more_is_not_sent_even_if_it_was_due():
    send_queue, log, other = SendQueue(), EventLog("task"), EventLog("other")
    publish(log, "start")
    send_queue.follow(log, 1)
    send_queue.hold()
    send_queue.follow(other, 1)
    publish(other, "start")
    send_queue.unfollow(log)
    send_queue.unfollow(other)
    send_queue.unfollow(other)
    send_queue.unhold()
    publish(log, "finish")
    publish(other, "finish")
    assert await drained(send_queue) == []
    assert not log.followed


async def test_while_a_batch_waits_for_its_answer_no_history_is_sent():
    send_queue, log = SendQueue(), EventLog("task")
    publish(log, "start")
    send_queue.hold()
    send_queue.hold()
    send_queue.follow(log, 1)
    send_queue.push(b"another answer\n")
    assert b"".join(await send_queue.batch()) == b"another answer\n"
    send_queue.unhold()
    send_queue.push(b"[the batch]\n")
    send_queue.unhold()
    lines = await drained(send_queue)
    assert lines[0] == b"[the batch]"
    assert told(lines) == [1]


@pytest.mark.slow
async def test_a_subscription_ends_with_the_task_and_leaves_nothing_behind():
    send_queue, log = SendQueue(), EventLog("task")
    send_queue.follow(log, 1)
    publish(log, "start", "task_finish")
    assert told(await drained(send_queue)) == [1, 2]
    assert not log.followed
    gc.collect()
    assert not [feed for feed in gc.get_objects() if type(feed) is Cursor and feed._log is log]


async def test_a_history_asked_for_from_beyond_its_end_sends_nothing_and_ends():
    send_queue, log = SendQueue(), EventLog("task")
    publish(log, "start", "task_finish")
    send_queue.follow(log, 10)
    assert await drained(send_queue) == []


async def test_an_abandoned_send_queue_follows_nothing_and_wakes_its_writer():
    send_queue, log = SendQueue(), EventLog("task")
    send_queue.follow(log, 1)
    ended = []

    async def write():
        ended.append(b"".join(await send_queue.batch()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        send_queue.abandon()
    assert ended == [b""]
    assert not log.followed
    send_queue.follow(log, 1)
    publish(log, "start")
    assert not log.followed


async def test_a_writer_that_is_cancelled_while_it_waits_can_be_followed_by_another():
    send_queue = SendQueue()
    with trio.move_on_after(0.01):
        b"".join(await send_queue.batch())
    send_queue.push(b"x\n")
    assert b"".join(await send_queue.batch()) == b"x\n"
