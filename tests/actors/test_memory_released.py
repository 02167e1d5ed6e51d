"""What is charged to a principal is what is kept for it, whatever happens, and nothing once all of it has gone."""

from __future__ import annotations

import random

import pytest
import trio
from support.waiting import until
from support.world import ALICE

from hearth.policy import memory as memory_budget

MIB = 1 << 20
OVERHEAD = 160
"""Bytes of an event beside its line."""
TOOLS = [
    ("read", {}),
    ("wait", {"tag": "w"}),
    ("big", {"n": 30_000}),
    ("progress", {"n": 100}),
    ("nap", {"ms": 700}),
    ("fail", {}),
    ("bug", {}),
    ("read", {"junk": "x" * 60_000}),
    ("file", {"path": "/forbidden"}),
]


def recomputed(world):
    """What ought to be charged, counted anew from what is there."""
    total, logs = 0, {}
    for carrier in world.carriers:
        connection = carrier.connection
        if connection.send_queue.gone:
            continue
        send_queue = connection.send_queue
        total += memory_budget.CONNECTION_BYTES + connection._protocol.partial_bytes + send_queue._sending
        answers = [item for item in send_queue._items if isinstance(item, bytes)]
        total += sum(map(len, answers)) + memory_budget.ANSWER_BYTES * len(answers)
        followed = [*send_queue._feeds, *send_queue._finished]
        total += memory_budget.FEED_BYTES * len(followed)
        logs.update(dict.fromkeys(followed))
    for session in world.runtime._sessions.values():
        total += memory_budget.SESSION_BYTES
        registry = session._task_registry
        logs.update(dict.fromkeys(registry.logs()))
        total += sum(task.charged for task in registry.all_live())
        total += sum(memory_budget.ENDED_BYTES + len(each.snapshot) for each in registry._history.values())
    total += memory_budget.KEY_BYTES * len(world.runtime.keys._entries)
    for log in logs:
        total += _size(log) if log.ended else log._charged
    return total


def _size(log):
    return sum(len(line) + OVERHEAD for line in log.lines(1, 1000)[0])


class Crowd:
    """Clients that do at random what clients do."""

    def __init__(self, world, seed):
        self.chance = random.Random(seed)
        self.world = world
        self.clients = []
        self._ids = iter(range(1000, 100_000))

    async def step(self):
        """Somebody does something; what has gone by then does nothing."""
        doing = self.chance.choice(
            [self.connect, self.leave, self.open, self.close, self.follow, self.unfollow, self.wait, self.half]
            + [self.submit] * 6
        )
        self.clients = [client for client in self.clients if not client.ended]
        sessions = list(self.world.runtime._sessions)
        if not self.clients:
            await self.connect()
        elif doing in (self.connect, self.wait):
            await doing()
        elif not sessions:
            await self.open(self.chance.choice(self.clients), None)
        else:
            await doing(self.chance.choice(self.clients), self.chance.choice(sessions))

    async def connect(self):
        """One that reads, or is slow, or does not."""
        room = self.chance.choice([0, 2000, float("inf")])
        self.clients.append(self.world.connect(room=room, send_timeout=self.chance.choice([5, 1e6])))

    async def wait(self):
        """Tasks that wait go on, and time passes."""
        self.world.event("w").set()
        self.world._events.pop("w")
        await trio.sleep(self.chance.choice([0.1, 1, 6]))

    async def leave(self, client, _session):
        await client.close()
        self.clients.remove(client)

    async def open(self, client, _session):
        await self._send(client, "session.open", {"on_disconnect": self.chance.choice(["keep", "close"])})

    async def close(self, client, session):
        await self._send(client, "session.close", {"session_id": session})

    async def follow(self, client, session):
        await self._send(client, "task.events.subscribe", {"session_id": session})

    async def unfollow(self, client, session):
        await self._send(client, "task.events.unsubscribe", {"session_id": session})

    async def half(self, client, _session):
        """A part of a document, or the rest of one."""
        await client.stream.send_all(self.chance.choice([b'{"half', b'"}\n', b"\n"]))

    async def submit(self, client, session):
        tool, args = self.chance.choice(TOOLS)
        steps = [{"tool": f"bench.{tool}", "args": args}] * 2
        task = {"intent": "i" * self.chance.randrange(500), "steps": steps}
        if self.chance.random() < 0.4:
            task["idempotency_key"] = self.chance.choice("abcdefgh") * 30
        subscribe = self.chance.random() < 0.5
        await self._send(client, "task.submit", {"session_id": session, "task": task, "subscribe": subscribe})

    async def _send(self, client, method, params):
        line = client.request(method, params, next(self._ids))
        await client.send([line] if self.chance.random() < 0.2 else line)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_what_is_charged_is_what_is_kept_whatever_happens_and_only_idempotency_keys_when_all_have_gone(
    make_world, autojump_clock, seed
):
    async with make_world(max_retained_bytes=MIB, task_history=4, idle_ttl_s=1e6) as world:
        crowd = Crowd(world, seed)
        memory = world.runtime.memory
        for _ in range(150):
            try:
                await crowd.step()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                continue  # it was cut off, because it did not read
            await trio.testing.wait_all_tasks_blocked()
            assert memory.for_principal(ALICE.key).used == recomputed(world)
        assert len(world.journal.of("task.submit")) > 10
        await world.runtime.end_sessions()
        for client in crowd.clients:
            await client.close()
        kept = memory_budget.KEY_BYTES * len(world.runtime.keys._entries)
        await until(lambda: memory.used == kept)
        assert sum(account.used for account in memory.accounts()) == kept
