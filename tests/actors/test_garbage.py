"""What has ended is freed at once, by its reference count: the collector, which seldom runs, finds next to nothing."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from support.world import BenchWorld, running
from trio.testing import wait_all_tasks_blocked

from hearth.actors.bus.queue import Ticket
from hearth.actors.connection import Connection
from hearth.actors.events import EventLog
from hearth.actors.send_queue import SendQueue
from hearth.actors.session import Session
from hearth.actors.step import StepRun, StepScope
from hearth.actors.task import TaskActor
from hearth.actors.task_registry import Finished, TaskRegistry

ROUNDS = 10


@pytest.fixture
def uncollected():
    """`found()` is what only the collector could free since it was made, by type."""
    gc.collect()
    gc.disable()

    def found():
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        types = Counter(type(each) for each in gc.garbage)
        gc.set_debug(0)
        gc.garbage.clear()
        return types

    yield found
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.collect()


async def in_sessions(world, *steps, **constraints):
    """Run tasks of these steps, one in each session of a client of its own."""
    for _ in range(ROUNDS):
        client = world.connect()
        session = await client.open()
        await session.run(*steps, **constraints)
        await session.close()
        await client.close()
        await client.until_ended()
    await wait_all_tasks_blocked()


OURS = (TaskActor, StepRun, StepScope, Ticket, Session, TaskRegistry, EventLog, Finished, Connection, SendQueue)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["read", "fail"])
async def test_a_session_that_has_ended_leaves_nothing_for_the_collector(uncollected, tool) -> None:
    async with running(BenchWorld()) as world:
        await in_sessions(world, (tool, {}), (tool, {}), abort_on_step_failure=False)
        uncollected()
        await in_sessions(world, (tool, {}), (tool, {}), abort_on_step_failure=False)
        found = uncollected()
    assert not {kind: found[kind] for kind in OURS if found[kind]}, found.most_common(30)
