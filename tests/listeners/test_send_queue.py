"""What waits to be sent on one connection: order, pieces, and what a reader that does not read costs."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from hearth.actors.events import EventLog
from hearth.actors.send_queue import CHUNK, HIGH_WATER, SendQueue


def events_in(data: bytes) -> list[int]:
    return [json.loads(line)["params"]["seq"] for line in data.splitlines()]


@pytest.mark.slow
async def test_a_follower_that_waits_for_a_far_event_costs_no_stack() -> None:
    queue, log = SendQueue(), EventLog("t")
    queue.follow(log, 1_000_000)
    sent = []

    async def write():
        while data := b"".join(await queue.batch()):
            sent.append(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for _ in range(3000):
            log.publish("progress", "", {})
            await trio.testing.wait_all_tasks_blocked()
        queue.push(b"last\n")
        queue.finish()
    assert sent == [b"last\n"]


async def test_long_events_are_taken_a_few_at_a_time() -> None:
    queue, log = SendQueue(), EventLog("t")
    for _ in range(100):
        log.publish("finish", "", {"result": "x" * 50_000})
    log.publish("task_finish", "", {})
    queue.follow(log, 1)
    seen = []
    while len(seen) < 101:
        data = b"".join(await queue.batch())
        assert len(data) <= 2 * CHUNK + 50_200
        seen += events_in(data)
    assert seen == list(range(1, 102))


async def test_many_short_events_go_out_as_one_piece() -> None:
    queue, log = SendQueue(), EventLog("t")
    for _ in range(200):
        log.publish("finish", "", {})
    queue.follow(log, 1)
    assert len(events_in(b"".join(await queue.batch()))) == 200


async def test_what_is_due_leaves_in_the_order_in_which_it_became_due() -> None:
    queue, log = SendQueue(), EventLog("t")
    queue.follow(log, 1)
    queue.push(b"one\n")
    log.publish("start", "", {})
    queue.push(b"two\n")
    lines = b"".join(await queue.batch()).splitlines()
    assert lines[0] == b"one"
    assert b'"start"' in lines[1]
    assert lines[2] == b"two"


async def test_a_history_that_is_followed_again_starts_again_and_comes_once() -> None:
    queue, log = SendQueue(), EventLog("t")
    for _ in range(3):
        log.publish("start", "", {})
    queue.follow(log, 1)
    queue.follow(log, 2)
    assert events_in(b"".join(await queue.batch())) == [2, 3]
    queue.unfollow(log)
    queue.unfollow(log)
    log.publish("start", "", {})
    queue.push(b'{"params":{"seq":0}}\n')
    assert events_in(b"".join(await queue.batch())) == [0]


async def test_histories_are_held_back_until_the_batch_that_asked_for_them_is_answered() -> None:
    queue, log = SendQueue(), EventLog("t")
    queue.hold()
    log.publish("start", "", {})
    queue.follow(log, 1)
    queue.push(b"answer to another\n")
    assert b"".join(await queue.batch()) == b"answer to another\n"
    queue.push(b"answer to the batch\n")
    queue.unhold()
    first, second = b"".join(await queue.batch()).splitlines()
    assert first == b"answer to the batch"
    assert b'"start"' in second


async def test_the_reader_waits_while_too_much_waits_to_be_sent() -> None:
    queue = SendQueue()
    queue.push(b"x" * (HIGH_WATER + 1))
    queue.push(b"y")
    with trio.move_on_after(0.01) as scope:
        await queue.room(HIGH_WATER)
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.room, HIGH_WATER)
        await trio.testing.wait_all_tasks_blocked()
        b"".join(await queue.batch())
    assert b"".join(await queue.batch()) == b"y"


async def test_after_the_connection_has_gone_nothing_is_kept_and_no_reader_is_notified() -> None:
    queue, log = SendQueue(), EventLog("t")
    queue.follow(log, 1)
    queue.push(b"x")
    queue.abandon()
    log.publish("start", "", {})
    assert not log.followed
    assert b"".join(await queue.batch()) == b""
