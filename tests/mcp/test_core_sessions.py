"""The one HACP session of an MCP client: when it is opened, how it is kept, what a lost one costs, and its end."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from mcp.shared.exceptions import MCPError
from support.mcp import ERAS, mcp_client, text_of
from support.waiting import passes
from support.world import BenchWorld, running

from hearth.actors.bridges.mcp.provider import KEEP_ALIVE, Client
from hearth.actors.messages import CloseSession
from hearth.errors import CarrierError, DeviceError, QueueFull, RateLimited, SessionInvalid, TaskNotFound
from hearth.mcp.names import META_TASK
from hearth.tools import Tool

both_eras = pytest.mark.parametrize("mode", ERAS)


def records(w, **like):
    """The audit records with these members."""
    return [record for record in w.journal.records if like.items() <= record.items()]


class Counting:
    """What opens sessions, counts them, and can be made to hang or to fail."""

    def __init__(self, inner):
        self._inner = inner
        self.opened = 0
        self.sessions = []
        self.wait = None
        self.fails = []

    @asynccontextmanager
    async def open_session(self, **named):
        self.opened += 1
        if self.wait is not None:
            await self.wait.wait()
        if self.fails:
            raise self.fails.pop(0)
        async with self._inner.open_session(**named) as session:
            self.sessions.append(session)
            yield session


@pytest.fixture
async def w():
    async with running(BenchWorld(idle_ttl_s=300)) as world:
        yield world


def end_sessions(w):
    for session in list(w.runtime._sessions.values()):
        session.post(CloseSession("the operator ended it"))


@both_eras
async def test_a_session_is_opened_when_it_is_first_needed_and_there_is_one(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        assert not records(w, event="session.open")
        await client.list_tools()
        for _ in range(3):
            await client.call_tool("bench_read", {})
        assert len(records(w, event="session.open")) == 1


@both_eras
async def test_the_session_bears_the_clients_name(autojump_clock, w, mode):
    from mcp_types import Implementation

    who = Implementation(name="claude-" + "x" * 400, version="9")
    async with mcp_client(w.sessions(), mode, client_info=who) as client:
        await client.call_tool("bench_read", {})
    [opened] = records(w, event="session.open")
    assert opened["client_name"] == ("claude-" + "x" * 400)[:256]


@both_eras
async def test_when_the_client_goes_its_session_is_closed_and_what_it_drove_is_safe(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        await client.call_tool("bench_set", {"line": 4, "value": 1})
        assert w.driver.levels[4] == 1
    assert w.driver.levels[4] == 0
    [closed] = records(w, event="session.close")
    assert closed["reason"] == "closed by the client"


async def test_a_session_outlives_the_idle_time_while_its_client_is_there(autojump_clock, w):
    async with mcp_client(w.sessions(), "auto", keep_alive=KEEP_ALIVE) as client:
        await client.call_tool("bench_set", {"line": 4, "value": 1})
        await trio.sleep(1000)
        again = await client.call_tool("bench_read", {})
        assert w.driver.levels[4] == 1
    assert len(records(w, event="session.open")) == 1
    assert "session" not in text_of(again)


@both_eras
async def test_a_client_whose_presence_is_not_known_loses_its_session_and_is_told(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode, keep_alive=None) as client:
        await client.call_tool("bench_set", {"line": 4, "value": 1})
        await trio.sleep(400)
        assert w.driver.levels[4] == 0
        told = await client.call_tool("bench_read", {})
        after = await client.call_tool("bench_read", {})
    assert not told.is_error
    assert "safe state" in text_of(told)
    assert "safe state" not in text_of(after), "it is said once"
    assert len(records(w, event="session.open")) == 2


@both_eras
async def test_a_step_whose_session_had_ended_runs_once_in_a_new_one(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        await client.list_tools()
        await client.call_tool("bench_read", {})
        end_sessions(w)
        await passes(lambda: records(w, event="session.close"))
        result = await client.call_tool("bench_set", {"line": 4, "value": 1})
    assert not result.is_error
    assert "safe state" in text_of(result)
    assert w.observer.labels("begin").count("set") == 1


async def test_a_list_is_had_from_a_new_session_when_the_old_one_has_ended(autojump_clock, w):
    counting = Counting(w.sessions())
    async with trio.open_nursery() as nursery:
        client = Client(counting, nursery)
        await client.session()
        end_sessions(w)
        await passes(lambda: records(w, event="session.close"))
        assert len(await client.view())
        assert counting.opened == 2
        client.close()


class Gone:
    """A session that has ended, whatever is asked of it."""

    def __init__(self, error):
        self._error = error

    async def tools(self):
        await trio.lowlevel.checkpoint()
        raise self._error

    async def submit(self, *_args, **_more):
        await trio.lowlevel.checkpoint()
        raise self._error


class Ghost:
    """What opens sessions that have ended before they are used; `lists`: but for tool.list."""

    def __init__(self, inner, error, *, lists=True):
        self._inner, self._error, self._lists = inner, error, lists
        self.opened = 0

    @asynccontextmanager
    async def open_session(self, **named):
        self.opened += 1
        async with self._inner.open_session(**named) as session:
            gone = Gone(self._error)
            if self._lists:
                gone.tools = session.tools
            yield gone


@both_eras
async def test_a_step_is_tried_again_exactly_once(autojump_clock, w, mode):
    ghost = Ghost(w.sessions(), SessionInvalid())
    async with mcp_client(ghost, mode) as client:
        result = await client.call_tool("bench_set", {"line": 4, "value": 1})
    assert result.is_error
    assert ghost.opened == 2


@both_eras
async def test_a_step_is_not_tried_again_when_the_daemon_may_have_taken_it(autojump_clock, w, mode):
    ghost = Ghost(w.sessions(), CarrierError("the connection ended before task.submit was answered"))
    async with mcp_client(ghost, mode) as client:
        result = await client.call_tool("bench_set", {"line": 4, "value": 1})
        assert result.is_error
        assert "not known" in text_of(result)
        assert ghost.opened == 1
        await client.call_tool("bench_set", {"line": 4, "value": 1})
        assert ghost.opened == 2, "the next request does not use a session that cannot be reached"


async def test_two_requests_at_once_open_one_session(autojump_clock, w):
    counting = Counting(w.sessions())
    counting.wait = trio.Event()
    async with mcp_client(counting, "auto") as client, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(client.call_tool, "bench_read", {})
        await trio.testing.wait_all_tasks_blocked()
        counting.wait.set()
    assert counting.opened == 1


@both_eras
async def test_a_request_that_is_cancelled_while_its_session_is_opened_leaves_it_to_the_next(autojump_clock, w, mode):
    counting = Counting(w.sessions())
    counting.wait = trio.Event()
    async with mcp_client(counting, mode) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "bench_read", {})
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        counting.wait.set()
        assert not (await client.call_tool("bench_read", {})).is_error
        assert counting.opened == 1
    assert len(records(w, event="session.close")) == 1


async def test_a_session_that_is_opened_after_its_client_has_gone_is_closed_at_once(autojump_clock, w):
    counting = Counting(w.sessions())
    counting.wait = trio.Event()
    async with trio.open_nursery() as nursery:
        client = Client(counting, nursery)
        with trio.move_on_after(1):
            await client.session()
        client.close()
        counting.wait.set()
    assert len(records(w, event="session.open")) == len(records(w, event="session.close")) == 1
    with pytest.raises(CarrierError):
        await client.session()


@both_eras
async def test_a_session_that_was_refused_is_asked_for_again_by_the_next_request(autojump_clock, w, mode):
    counting = Counting(w.sessions())
    counting.fails = [QueueFull("Queue full: too many sessions")]
    async with mcp_client(counting, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_tools()
        assert "too many sessions" in caught.value.message
        assert not (await client.call_tool("bench_read", {})).is_error
        assert counting.opened == 2


async def test_a_bridge_that_is_cancelled_closes_its_sessions(autojump_clock, w):
    with trio.move_on_after(10):
        async with mcp_client(w.sessions(), "auto") as client:
            await client.call_tool("bench_set", {"line": 4, "value": 1})
            await trio.sleep_forever()
    assert w.driver.levels[4] == 0
    assert len(records(w, event="session.close")) == 1


async def test_a_session_that_ends_while_its_task_runs_leaves_the_outcome_told_as_cancelled(autojump_clock, w):
    results = []
    async with mcp_client(w.sessions(), "auto") as client, trio.open_nursery() as nursery:

        async def call():
            results.append(await client.call_tool("bench_nap", {"ms": 60_000}))

        nursery.start_soon(call)
        await passes(lambda: records(w, event="task.step.start"))
        end_sessions(w)
    assert results[0].is_error
    assert "cancelled" in text_of(results[0])


async def test_a_session_that_cannot_be_kept_awake_for_a_moment_goes_on(autojump_clock, w):
    async with mcp_client(Refusing(w.sessions()), "auto", keep_alive=10) as client:
        await client.call_tool("bench_set", {"line": 4, "value": 1})
        await trio.sleep(100)
        assert not (await client.call_tool("bench_read", {})).is_error
    assert len(records(w, event="session.open")) == 1


class Refusing:
    """What opens sessions that refuse every second tool.list."""

    def __init__(self, inner):
        self._inner = inner
        self._asked = 0

    @asynccontextmanager
    async def open_session(self, **named):
        async with self._inner.open_session(**named) as session:
            tools = session.tools

            async def sometimes():
                self._asked += 1
                if self._asked % 2 == 0:
                    raise RateLimited
                return await tools()

            session.tools = sometimes
            yield session


async def test_the_boards_name_is_not_asked_for_where_that_is_not_allowed(autojump_clock, w):
    async with trio.open_nursery() as nursery:
        client = Client(w.sessions(), nursery)
        assert await client.board() is None, "this world has no hw.board"
        assert not records(w, event="task.submit")
        client.close()


def hw_board(run):
    return Tool(
        name="hw.board",
        risk_level=0,
        timeout_ms=1000,
        description="x",
        params_schema={"type": "object"},
        result_schema={"type": "object"},
        capability="CAP_SYS_READ",
        bus=lambda _args: "a",
        run=run,
    )


async def test_the_boards_name_is_asked_for_once(autojump_clock):
    async def run(_ctx, _args):
        await trio.lowlevel.checkpoint()
        return {"name": "arm-3"}

    async with running(BenchWorld(extra_tools=[hw_board(run)])) as w, trio.open_nursery() as nursery:
        client = Client(w.sessions(), nursery)
        assert [await client.board(), await client.board()] == ["arm-3", "arm-3"]
        assert len(records(w, event="task.submit")) == 1
        client.close()


async def test_a_board_that_does_not_tell_its_name_has_none(autojump_clock):
    async def run(_ctx, _args):
        await trio.lowlevel.checkpoint()
        raise DeviceError("it is silent", effect="none")

    async with running(BenchWorld(extra_tools=[hw_board(run)])) as w, trio.open_nursery() as nursery:
        client = Client(w.sessions(), nursery)
        assert await client.board() is None
        client.close()


@both_eras
@pytest.mark.parametrize("error", [SessionInvalid(), CarrierError("the connection ended")])
async def test_a_session_that_is_always_lost_is_opened_no_more_than_twice_for_a_list(autojump_clock, w, mode, error):
    ghost = Ghost(w.sessions(), error, lists=False)
    async with mcp_client(ghost, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_tools()
    assert caught.value.code == -32603
    assert ghost.opened == (2 if isinstance(error, SessionInvalid) else 1)


async def test_nothing_is_said_of_lines_while_no_daemon_answers(autojump_clock, w):
    counting = Counting(w.sessions())
    async with mcp_client(counting, "auto") as client:
        await client.call_tool("bench_set", {"line": 4, "value": 1})
        end_sessions(w)
        await passes(lambda: records(w, event="session.close"))
        counting.fails = [CarrierError("nobody answers")]
        unreachable = await client.call_tool("bench_read", {})
        back = await client.call_tool("bench_read", {})
    assert unreachable.is_error
    assert "safe state" not in text_of(unreachable)
    assert "safe state" in text_of(back)


async def test_a_session_that_is_lost_while_it_is_kept_awake_is_opened_again_when_it_is_needed(autojump_clock, w):
    async with mcp_client(w.sessions(), "auto", keep_alive=10) as client:
        await client.call_tool("bench_read", {})
        end_sessions(w)
        await trio.sleep(11)
        assert len(records(w, event="session.open")) == 1
        assert "safe state" in text_of(await client.call_tool("bench_read", {}))
    assert len(records(w, event="session.open")) == 2


class Breaking:
    """What opens sessions that cannot be closed as they should be."""

    def __init__(self, inner):
        self._inner = inner

    @asynccontextmanager
    async def open_session(self, **named):
        async with self._inner.open_session(**named) as session:
            yield session
        raise CarrierError("the connection ended before session.close was answered")


async def test_a_session_that_ends_badly_ends_no_other(autojump_clock, w, caplog):
    async with mcp_client(Breaking(w.sessions()), "auto") as client:
        await client.call_tool("bench_read", {})
        end_sessions(w)
        await passes(lambda: records(w, event="session.close"))
        assert not (await client.call_tool("bench_read", {})).is_error
    assert "ended with an error" in caplog.text


@pytest.mark.parametrize("error", [SessionInvalid(), CarrierError("the connection ended"), TaskNotFound()])
async def test_a_task_of_which_nothing_more_can_be_learned_is_told_as_that(autojump_clock, w, error):
    async with mcp_client(Forgetful(w.sessions(), error), "auto") as client:
        lost = await client.call_tool("bench_set", {"line": 4, "value": 1})
        await client.call_tool("bench_read", {})
    assert lost.is_error
    assert "is not known" in text_of(lost)
    [submitted, *_] = records(w, event="task.submit")
    assert lost.meta[META_TASK] == {"task_id": submitted["task_id"]}
    assert len(records(w, event="session.open")) == (1 if isinstance(error, TaskNotFound) else 2)


class Forgetful:
    """What opens sessions that forget each task as soon as they have accepted it."""

    def __init__(self, inner, error):
        self._inner, self._error = inner, error

    @asynccontextmanager
    async def open_session(self, **named):
        async with self._inner.open_session(**named) as session:
            submit = session.submit

            async def accept(*args, **more):
                return Lost((await submit(*args, **more)).task_id, self._error)

            session.submit = accept
            yield session


class Lost:
    """A task that cannot be followed."""

    def __init__(self, task_id, error):
        self.task_id, self._error = task_id, error

    async def wait(self):
        await trio.lowlevel.checkpoint()
        raise self._error
