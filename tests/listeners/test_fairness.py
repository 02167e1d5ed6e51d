"""One client's haste is nobody else's delay."""

from __future__ import annotations

import pytest
import trio
from support.world import BenchWorld, running


@pytest.mark.slow
async def test_requests_that_come_together_are_worked_off_in_turns(monkeypatch) -> None:
    monkeypatch.setattr("hearth.actors.turns.TURN", -1.0)
    async with running(BenchWorld()) as world:
        client = world.connect()
        session = await client.open()
        turns = 0

        async def somebody_else():
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(somebody_else)
            before = turns
            params = {"session_id": session.session_id, "task_id": "x"}
            requests = [client.request("task.cancel", params) for _ in range(200)]
            await client.send(*requests)
            await client.until(lambda: all(client.answers(request["id"]) for request in requests))
            assert turns - before >= 200
            nursery.cancel_scope.cancel()


async def test_subscribing_again_and_again_costs_no_more_each_time() -> None:
    """Each subscription to all of a session drops the hundreds of cursors of the one before."""
    from hearth.actors.events import EventLog
    from hearth.actors.send_queue import SendQueue

    queue = SendQueue()
    logs = [EventLog(f"task {n}") for n in range(300)]
    for log in logs:
        log.publish("start", "", {})
    for _ in range(50):
        for log in logs:
            queue.follow(log, 1)
    assert len(queue._items) <= 2 * len(logs) + 65
    lines = b""
    while lines.count(b"\n") < len(logs):
        lines += b"".join(await queue.batch())
    assert lines.count(b"\n") == len(logs), "each history is told once"
