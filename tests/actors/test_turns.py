"""One principal, however many sessions and connections, cannot delay a halt or a deadman: order and turns, no times."""

from __future__ import annotations

import pytest
import trio
from support.world import running, simulated

from hearth.actors.turns import Turns

CROWD = 60
LINE = 17
SHORT = {"task_id": "x"}
LONG = {"task_id": "x", "more": "x" * 20_000}
"""Longer than what a session handles in the turn of the connection."""
FEW = 20
"""Requests of the crowd that may be answered in the rounds of the loop which a halt or a deadman takes, about ten."""


class Rounds(trio.abc.Instrument):
    """How many requests of a crowd are answered: the most in one round of the loop, and all from `due` to `over`."""

    def __init__(self, world, due, over):
        self._world, self._due, self._over = world, due, over
        self._before = self.answered
        self._from = self._until = -1
        self.most = 0

    @property
    def answered(self):
        return sum(count for (method, _), count in self._world.journal.metrics.requests.items() if method == "task.get")

    def before_io_wait(self, timeout):
        now = self.answered
        self.most, self._before = max(self.most, now - self._before), now
        if self._from < 0 and self._due():
            self._from = now
        if self._until < 0 and self._over():
            self._until = now

    @property
    def between(self):
        return self._until - self._from


async def flooded(session, params, count):
    """Send so many requests as one piece of bytes."""
    params = {"session_id": session.session_id, **params}
    await session.client.send(*[session.client.request("task.get", params, f"flood {n}") for n in range(count)])


def answers(session):
    return [one for one in session.client.documents if str(one.get("id")).startswith("flood")]


class Crowd:
    """CROWD connections of one principal, each with a session, and more requests in the pipe than were read."""

    def __init__(self, sessions):
        self.sessions = sessions

    @classmethod
    async def open(cls, world):
        return cls([await world.connect().open() for _ in range(CROWD)])

    async def flood(self, params, each):
        async with trio.open_nursery() as nursery:
            for session in self.sessions:
                nursery.start_soon(flooded, session, params, each)

    async def end(self):
        for session in self.sessions:
            await session.client.stream.aclose()


@pytest.fixture
async def world(tmp_path, monkeypatch, mock_clock):
    # A turn has time for one document: time stands still here.
    monkeypatch.setattr("hearth.actors.turns.TURN", -1.0)
    async with running(simulated(tmp_path)) as made:
        yield made


async def driving(world, **opening):
    session = await world.connect().open(**opening)
    task = {"intent": "drive", "steps": [{"tool": "gpio.set", "args": {"line": LINE, "value": 1}}]}
    submitted = await session.client.call("task.submit", session_id=session.session_id, task=task, subscribe=True)
    await session.client.finished(submitted["task_id"])
    assert world.level(LINE) == 1
    return session


@pytest.mark.slow
@pytest.mark.parametrize("params", [SHORT, LONG], ids=["short", "long"])
async def test_a_deadman_does_not_wait_for_the_other_sessions_of_its_principal(world, mock_clock, params):
    crowd = await Crowd.open(world)
    await driving(world, heartbeat_ms=1000)
    await crowd.flood(params, 30)
    due = trio.current_time() + 1
    rounds = Rounds(world, lambda: trio.current_time() >= due, lambda: world.level(LINE) == 0)
    trio.lowlevel.add_instrument(rounds)
    while rounds.answered < 2 * CROWD:
        await trio.lowlevel.checkpoint()
    mock_clock.jump(1)
    while world.level(LINE):
        await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(rounds)
    assert rounds.answered < 30 * CROWD, "the crowd still has requests"
    assert rounds.most <= 4
    assert rounds.between <= FEW
    await crowd.end()


@pytest.mark.slow
async def test_a_deadman_does_not_wait_for_the_requests_of_its_own_session(world, mock_clock):
    crowd = await Crowd.open(world)
    session = await driving(world, heartbeat_ms=1000)
    await crowd.flood(LONG, 10)
    await flooded(session, LONG, 10)
    rounds = Rounds(world, lambda: True, lambda: False)
    while rounds.answered < 2 * CROWD:
        await trio.lowlevel.checkpoint()
    before = len(answers(session))
    mock_clock.jump(1)
    while world.level(LINE):
        # A request that is read only now is a sign of life, and the deadman is due that much later.
        mock_clock.jump(0.1)
        await trio.lowlevel.checkpoint()
    assert before < 10
    assert rounds.answered < 10 * CROWD
    await session.client.until(lambda: len(answers(session)) == 10)
    assert answers(session)[-1]["error"]["code"] == -32000, "its session has ended"
    await crowd.end()


@pytest.mark.slow
@pytest.mark.parametrize("params", [SHORT, LONG], ids=["short", "long"])
async def test_a_halt_does_not_wait_for_the_other_sessions_of_its_principal(world, params):
    crowd = await Crowd.open(world)
    session = await driving(world)
    await crowd.flood(params, 30)
    asked = []
    rounds = Rounds(world, lambda: asked, lambda: world.level(LINE) == 0)
    trio.lowlevel.add_instrument(rounds)
    while rounds.answered < 2 * CROWD:
        await trio.lowlevel.checkpoint()
    asked.append(True)
    await session.client.send(session.client.request("halt", {"session_id": session.session_id}, 9))
    while world.level(LINE):
        await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(rounds)
    assert rounds.answered < 30 * CROWD, "the crowd still has requests"
    assert rounds.between <= FEW
    await crowd.end()


@pytest.mark.slow
async def test_a_halt_behind_requests_that_wait_for_their_turn_does_not_wait(world):
    crowd = await Crowd.open(world)
    session = await driving(world)
    await crowd.flood(SHORT, 30)
    await flooded(session, SHORT, 100)
    rounds = Rounds(world, lambda: True, lambda: world.level(LINE) == 0)
    while rounds.answered < 2 * CROWD:
        await trio.lowlevel.checkpoint()
    await session.client.send(session.client.request("halt", {}, 9))
    trio.lowlevel.add_instrument(rounds)
    while world.level(LINE):
        await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(rounds)
    assert len(answers(session)) < 100, "its connection still has requests"
    assert rounds.between <= FEW
    await crowd.end()


async def test_each_session_of_a_principal_gets_its_turn(world):
    crowd = await Crowd.open(world)
    await crowd.flood(SHORT, 4)
    first = crowd.sessions[0]
    await first.client.until(lambda: len(answers(first)) == 3)
    assert min(len(answers(session)) for session in crowd.sessions) >= 1
    await crowd.end()


class Visits:
    """Visits of one principal that take as many seconds as they say, in the order in which they went."""

    def __init__(self):
        self.turns, self.went = Turns(), []

    async def visit(self, name, seconds):
        if self.turns.left < 0:
            await self.turns.wait()
        self.went.append(name)
        self.turns.used(seconds)

    async def go(self, *visits):
        async with trio.open_nursery() as nursery:
            for name, seconds in visits:
                nursery.start_soon(self.visit, name, seconds)


async def test_visits_that_find_the_turn_used_up_go_first_in_the_next(monkeypatch):
    monkeypatch.setattr("hearth.actors.turns.TURN", 10)
    visits = Visits()
    for _ in range(6):
        visits.turns.used(2)
    assert visits.turns.left < 0
    await visits.go(*[("long", 20)] * 3, *[("short", 1)] * 3)
    assert sorted(visits.went) == ["long"] * 3 + ["short"] * 3


async def test_a_wait_that_is_cancelled_leaves_the_queue(monkeypatch):
    monkeypatch.setattr("hearth.actors.turns.TURN", -1.0)
    visits = Visits()
    await visits.visit("first", 0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await visits.visit("cancelled", 0)
    assert scope.cancelled_caught
    await visits.go(("second", 0))
    assert visits.went == ["first", "second"]
