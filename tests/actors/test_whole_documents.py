"""A carrier that frames by itself: each message one document, what is none is answered and the connection goes on."""

from __future__ import annotations

import itertools
from collections import deque

import orjson
import pytest
import trio
import trio.testing
from support.world import ALICE, BenchWorld, running

from hearth.actors.connection import Connection
from hearth.actors.transport import PeerGone, Unreadable


class Messages:
    """A carrier of whole documents, in memory: bytes come as they are, exceptions are raised, None is the end."""

    whole_documents = True

    def __init__(self):
        self.sent = []
        self._to_receive = deque()
        self._arrived = trio.Event()
        self._changed = trio.Event()
        self.closed = False

    def put(self, *messages):
        self._to_receive += messages
        self._arrived.set()

    async def receive(self):
        await trio.lowlevel.checkpoint()
        while not self._to_receive:
            self._arrived = trio.Event()
            await self._arrived.wait()
        message = self._to_receive.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    async def send(self, documents):
        self.sent += documents
        self._changed.set()
        await trio.lowlevel.checkpoint()

    async def aclose(self):
        self.closed = True
        await trio.lowlevel.checkpoint()

    async def answers(self, count):
        with trio.fail_after(60):
            while len(self.sent) < count:
                self._changed = trio.Event()
                await self._changed.wait()
        return [orjson.loads(document) for document in self.sent]


@pytest.fixture
async def messages():
    world = BenchWorld()
    async with running(world), trio.open_nursery() as nursery:
        carrier = Messages()
        nursery.start_soon(Connection(carrier, ALICE, world.runtime, max_document_bytes=1000).run)
        yield carrier
        carrier.put(None)
    assert carrier.closed


def call(id_, method="no.such", **params):
    return orjson.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})


async def test_a_message_is_a_document_whatever_lines_are_in_it(messages) -> None:
    messages.put(call(1).replace(b",", b",\n"), call(2) + b"\n")
    assert [answer["id"] for answer in await messages.answers(2)] == [1, 2]
    assert all(document.endswith(b"\n") and document.count(b"\n") == 1 for document in messages.sent)


async def test_two_documents_in_one_message_and_an_empty_message_are_parse_errors(messages) -> None:
    messages.put(call(1) + b"\n" + call(2), b"", call(3))
    answers = await messages.answers(3)
    assert [answer["error"]["code"] for answer in answers] == [-32700, -32700, -32601]


async def test_what_is_no_document_is_answered_with_the_reason_and_the_connection_goes_on(messages) -> None:
    messages.put(Unreadable("a binary message; send text"), call(2))
    first, second = await messages.answers(2)
    assert first["id"] is None
    assert first["error"]["code"] == -32700
    assert first["error"]["data"] == {"reason": "a binary message; send text"}
    assert second["id"] == 2


async def test_too_long_a_document_is_answered_and_ends_the_connection(messages) -> None:
    messages.put(call(1, padding="x" * 1000), call(2))
    [answer] = await messages.answers(1)
    assert answer["error"]["code"] == -32600
    assert answer["error"]["data"]["max_document_bytes"] == 1000


@pytest.mark.parametrize("end", [None, PeerGone("lost")], ids=["closed", "lost"])
async def test_a_peer_that_takes_no_answers_any_more_is_not_waited_for(end, autojump_clock) -> None:
    world, carrier = BenchWorld(), Messages()
    async with running(world):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Connection(carrier, ALICE, world.runtime).run)
            carrier.put(call(1, "session.open", on_disconnect="close"))
            [opened] = await carrier.answers(1)
            world.journal.hold()
            task = {"intent": "look", "steps": [{"tool": "bench.read", "args": {}}]}
            carrier.put(call(2, "task.submit", session_id=opened["result"]["session_id"], task=task))
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            carrier.put(end)
        assert trio.current_time() == began
        assert len(carrier.sent) == 1
        world.journal.release()


async def test_between_documents_that_came_together_others_have_their_turn(monkeypatch) -> None:
    monkeypatch.setattr("hearth.actors.turns.TURN", -1.0)
    world, carrier, seen = BenchWorld(), Messages(), []
    carrier.whole_documents = False

    async def other():
        while True:
            seen.append(world.journal.metrics.refused_documents)
            await trio.lowlevel.checkpoint()

    async with running(world), trio.open_nursery() as nursery:
        nursery.start_soon(Connection(carrier, ALICE, world.runtime, metrics=world.journal.metrics).run)
        nursery.start_soon(other)
        carrier.put(b"1\n" * 100)
        await carrier.answers(100)
        nursery.cancel_scope.cancel()
    # Trio lets tasks run in any order, so two documents may be read between two turns of another.
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= 2


async def test_who_sends_no_documents_and_reads_no_answers_is_read_no_more(messages) -> None:
    # Past the high water of answers; each is some 100 bytes.
    held = trio.Event()

    async def never(_documents):
        await held.wait()
        raise PeerGone("gone")

    messages.send = never
    messages.put(*[Unreadable("x" * 1000)] * 3000)
    while len(messages._to_receive) == 3000:
        await trio.lowlevel.checkpoint()
    before = -1
    while before != len(messages._to_receive):
        before = len(messages._to_receive)
        await trio.testing.wait_all_tasks_blocked()
    assert before > 1000
    held.set()
