"""A long answer is made piece by piece: no turn of the loop encodes more than about 64 KiB of it."""

from __future__ import annotations

from contextlib import contextmanager

import orjson
import pytest
import trio
from attrs import evolve
from hypothesis import given, strategies as st
from support.world import OPEN, running, simulated

from hearth.actors.session import Session
from hearth.protocol import jsonrpc
from hearth.protocol.jsonrpc import PIECE, dump_result, pieces

LONG = {
    "records": [{"seq": n, "event": "x", "text": "é" * 300, "args": [n, None, 1.5]} for n in range(2000)],
    "one text": "x" * (1 << 20),
    "escaped": {"text": "é\u2028\N{GRINNING FACE}" * 100_000},
    "many members": {f"name {n}": n for n in range(60_000)},
    "nested": {"a": [{"b": {"c": [list(range(30_000)), "x" * 100_000]}}]},
    "long names": {"x" * 70_000 + str(n): n for n in range(8)},
}


class Turns(trio.abc.Instrument):
    """The bytes of JSON that are encoded: the most in one step of a task. A copy of JSON does not count."""

    def __init__(self, monkeypatch):
        self.now = self.most = self.all = 0
        self._dumps = orjson.dumps
        monkeypatch.setattr(orjson, "dumps", self._counted)

    def _counted(self, value, *more, **options):
        made = self._dumps(value, *more, **options)
        if type(value) is not orjson.Fragment:
            self.now += len(made)
            self.all += len(made)
            self.most = max(self.most, self.now)
        return made

    def before_task_step(self, task):
        self.now = 0


@contextmanager
def encoding(monkeypatch):
    turns = Turns(monkeypatch)
    trio.lowlevel.add_instrument(turns)
    try:
        yield turns
    finally:
        trio.lowlevel.remove_instrument(turns)


@pytest.fixture
async def client(make_world, autojump_clock):
    async with make_world(policy=(evolve(OPEN, rights=["observe"]),), max_tasks_per_session=200) as world:
        yield world.connect()


@pytest.mark.parametrize("shape", LONG)
async def test_a_long_answer_is_encoded_in_several_turns(client, monkeypatch, shape):
    session = await client.open()
    monkeypatch.setattr(Session, "_execute", lambda _self, request, _verdicts: request.result(LONG[shape]))
    with encoding(monkeypatch) as turns:
        assert await client.call("task.get", session_id=session.session_id, task_id="x") == LONG[shape]
    assert turns.all > 4 * PIECE
    assert turns.most <= 2 * PIECE


async def running_task(client):
    """A live task with results of more than 64 KiB."""
    session = await client.open()
    task = await session.start(*[("big", {"n": 50_000})] * 8, ("wait", {}))
    await trio.testing.wait_all_tasks_blocked()
    return {"session_id": session.session_id, "task_id": task}


async def ended_task(client):
    session = await client.open()
    task = (await session.run(*[("big", {"n": 50_000})] * 8))["task_id"]
    return {"session_id": session.session_id, "task_id": task}


async def many_tasks(client):
    """More live tasks than fit in 64 KiB."""
    session = await client.open()
    for _ in range(200):
        await session.start(("wait", {}), intent="x" * 250)
    return {"session_id": session.session_id}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "prepared"), [("task.get", running_task), ("task.get", ended_task), ("observe.state", many_tasks)]
)
async def test_the_longest_answers_are_encoded_in_several_turns(client, monkeypatch, method, prepared):
    params = await prepared(client)
    with encoding(monkeypatch) as turns:
        await client.call(method, **params)
    assert turns.most <= 2 * PIECE


@pytest.mark.slow
async def test_audit_records_are_encoded_in_several_turns(tmp_path, monkeypatch):
    async with running(simulated(tmp_path)) as world:
        client = world.connect()
        session = await client.open()
        for _ in range(400):
            await world.journal.post({"event": "test", "text": "x" * 2000}).get()
        with encoding(monkeypatch) as turns:
            found = await client.call("observe.audit", session_id=session.session_id, limit=500)
        assert len(found["records"]) > 300
        assert turns.all > 4 * PIECE
        assert turns.most <= 2 * PIECE


async def test_a_long_answer_that_is_not_json_is_an_internal_error(client, monkeypatch):
    session = await client.open()
    wrong = {"more": "x" * PIECE, "wrong": {1}}
    monkeypatch.setattr(Session, "_execute", lambda _self, request, _verdicts: request.result(wrong))
    await client.send(client.request("task.get", {"session_id": session.session_id, "task_id": "x"}, 9))
    await client.until(lambda: client.answers(9))
    assert client.answers(9)[0]["error"]["code"] == -32603


async def test_a_long_answer_is_settled_when_its_client_has_gone(make_world, autojump_clock, monkeypatch):
    async with make_world() as world:
        client = world.connect()
        session = await client.open()
        monkeypatch.setattr(Session, "_execute", lambda _self, request, _verdicts: request.result(LONG["records"]))
        begun = []
        monkeypatch.setattr("hearth.actors.connection.pieces", lambda value: begun.append(1) or pieces(value))
        await client.send(client.request("task.get", {"session_id": session.session_id, "task_id": "x"}, 9))
        with trio.fail_after(60):
            while not begun:
                await trio.lowlevel.checkpoint()
        [connection] = world.connections
        await client.close()
        await trio.testing.wait_all_tasks_blocked()
        assert connection._in_flight == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=40),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=15,
)


@given(VALUES, st.integers(4, 60))
def test_the_pieces_of_a_value_are_its_json(value, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonrpc, "PIECE", size)
        made = list(pieces(value))
    assert b"".join(made) == orjson.dumps(value)


def test_json_that_is_made_already_is_copied_into_a_response():
    assert dump_result("a\n", b'{"x":1}') == dump_result("a\n", {"x": 1})
