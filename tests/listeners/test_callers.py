"""What callers may rely on over every carrier: being cancelled, being many, and what comes out when something fails."""

from __future__ import annotations

from contextlib import aclosing

import pytest
import trio
import trio.testing
from support.steps import within_real_seconds

from hearth import (
    DeviceError,
    InvalidParams,
    PermissionDenied,
    SessionInvalid,
    TaskFailed,
    step,
)
from hearth.errors import TaskNotFound

pytestmark = pytest.mark.slow

PATIENCE = 60
WATCH = step("gpio.watch", line=4, timeout_ms=60_000)


@pytest.fixture(autouse=True)
def bounded():
    """Break a test off that hangs. An async fixture that no test names ends before the test begins."""
    with within_real_seconds(60):
        yield


async def until(condition):
    """Wait for what happens in other tasks."""
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.001)


# --- cancelled callers ----------------------------------------------------------------------------------------------


async def test_a_cancelled_run_leaves_nothing_running(served) -> None:
    async with served.open_session() as session:
        with trio.move_on_after(0.05) as scope:
            await session.run("gpio.watch", line=4, timeout_ms=60_000)
        assert scope.cancelled_caught
        await until(lambda: len(served.records("task.finish")) == 1)
        assert served.records("task.finish")[0]["status"] == "CANCELLED"


async def test_a_cancelled_run_of_a_pulse_ends_the_pulse(served) -> None:
    async with served.open_session() as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: session.run("gpio.pulse", line=18, value=1, duration_ms=60_000))
            await until(lambda: served.level(18) == 1)
            nursery.cancel_scope.cancel()
        await until(lambda: served.level(18) == 0)


async def test_a_cancelled_wait_leaves_the_task_to_who_holds_it(served) -> None:
    async with served.open_session() as session:
        task = await session.submit("watch", [WATCH])
        with trio.move_on_after(0.05):
            await task.wait()
        assert (await task.get()).status == "RUNNING"
        assert await task.cancel() == "CANCELLING"
        assert (await task.wait()).status == "CANCELLED"


async def test_a_submit_that_is_cancelled_before_its_answer_leaves_nothing_running(served) -> None:
    """Nobody was told the task's id, so nobody could ever cancel it."""
    async with served.open_session() as session:
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.submit("watch", [WATCH])
        assert scope.cancelled_caught
        await session.tools()
        await until(lambda: len(served.records("task.finish")) == len(served.records("task.submit")))
        assert {record["status"] for record in served.records("task.finish")} <= {"CANCELLED"}


async def test_a_cancelled_submit_with_an_idempotency_key_is_left_to_who_repeats_it(served) -> None:
    """Its caller can come back for it: that is what a key is for."""
    async with served.open_session() as session:
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.submit("watch", [WATCH], idempotency_key="k")
        task = await session.submit("watch", [WATCH], idempotency_key="k")
        assert (await task.get()).status in ("QUEUED", "RUNNING")
        assert len(served.records("task.submit")) <= 1
        await task.cancel()
        assert (await task.wait()).status == "CANCELLED"


async def test_a_cancelled_open_leaves_no_session(served) -> None:
    before = served.sessions
    with trio.CancelScope() as scope:
        scope.cancel()
        async with served.open_session():
            await trio.lowlevel.checkpoint()
    await until(lambda: served.sessions == before)
    assert len(served.records("session.open")) == len(served.records("session.close"))


async def test_whatever_is_cancelled_the_session_goes_on(served) -> None:
    async with served.open_session() as session:
        task = await session.submit("watch", [WATCH])

        async def follow():
            async with aclosing(task.events()) as events:
                async for _event in events:
                    pass

        for call in (session.tools, task.get, task.wait, lambda: session.run("hw.board"), follow):
            for deadline in (0, 0.001, 0.01):
                with trio.move_on_after(deadline):
                    await call()
        assert (await session.run("gpio.get", line=4))["value"] == 0
        assert (await task.get()).status == "RUNNING"


async def test_a_body_that_is_cancelled_leaves_its_outputs_safe_and_no_session(served) -> None:
    with trio.move_on_after(0.05):
        async with served.open_session() as session:
            await session.run("gpio.set", line=17, value=1)
            await session.submit("watch", [WATCH])
            await trio.sleep_forever()
    assert served.level(17) == 0
    assert served.sessions == 0


# --- many callers ---------------------------------------------------------------------------------------------------


async def test_one_session_is_used_by_many_tasks_at_once(served) -> None:
    values = []

    async def use(session, n):
        for _ in range(5):
            values.append((await session.run("gpio.get", line=n % 16))["line"])
            done = await (await session.submit("two", [step("sys.load"), step("gpio.get", line=n % 16)])).wait()
            assert done.status == "SUCCESS"
            assert len(await session.tools()) > 10

    async with served.open_session() as session, trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(use, session, n)
    assert sorted(values) == sorted(n % 16 for n in range(20) for _ in range(5))


async def test_many_sessions_live_side_by_side(served) -> None:
    async def live(n):
        async with served.open_session(client_name=f"client {n}") as session:
            await session.run("gpio.set", line=n % 16, value=1)
            await session.run("i2c.read", bus=1, addr=0x48, reg=0, len=2)

    async with trio.open_nursery() as nursery:
        for n in range(40):
            nursery.start_soon(live, n)
    assert served.sessions == 0


# --- what comes out -------------------------------------------------------------------------------------------------


async def test_an_exception_of_the_body_comes_out_as_it_is(serve) -> None:
    class Mine(Exception):
        pass

    for error in (Mine("x"), ExceptionGroup("mine", [Mine("y")]), KeyError(3)):
        with pytest.raises(type(error)) as caught:  # noqa: PT012  all that serves it is what it comes through
            async with serve() as served, served.open_session() as session:
                await session.run("gpio.set", line=17, value=1)
                raise error
        assert caught.value is error
        assert caught.value.__context__ is None


async def test_every_refusal_is_of_its_class_with_its_data(served) -> None:
    async with served.open_session() as session:
        with pytest.raises(InvalidParams) as params:
            await session.run("gpio.set", line=17, value=5)
        assert params.value.data["path"] == "/value"
        with pytest.raises(PermissionDenied) as denied:
            await session.run("file.delete", path="/etc/passwd")
        assert "max_risk_level=2 < tool=3" in denied.value.data["reason"]
        with pytest.raises(DeviceError) as failed:
            await session.run("i2c.read", bus=1, addr="0x10", len=1)
        assert failed.value.data["effect"] == "none"
        with pytest.raises(TaskNotFound):
            await session.task("nonesuch")
        task = await session.submit("no such device", [step("i2c.read", bus=1, addr="0x10", len=1)])
        with pytest.raises(TaskFailed, match=r"step 0 \(i2c.read\)"):
            (await task.wait()).raise_for_status()
        await session.close()
        with pytest.raises(SessionInvalid):
            await session.tools()


async def test_text_of_every_kind_survives_the_carrier(served) -> None:
    async with served.open_session(client_name="Zoë ☃\u0000\u2028") as session:
        intent = 'é ☃ \u2028 \n \\ " 𝄞' * 50
        task = await session.submit(intent, [step("gpio.get", line=4)])
        assert (await task.wait()).intent == intent
        with pytest.raises(InvalidParams):
            await session.submit("\ud800", [step("gpio.get", line=4)])
        with pytest.raises(InvalidParams):
            await session.submit("x", [step("gpio.get", line=2**70)])
        assert await session.tools(), "what cannot be said harms nobody"


# --- from elsewhere -------------------------------------------------------------------------------------------------


async def test_a_session_is_used_and_a_task_is_followed_from_elsewhere(served) -> None:
    async with served.open_session() as session, served.attach(session) as other:
        task = await session.submit("watch", [WATCH])
        seen = []

        async def follow():
            theirs = await other.task(task.task_id)
            async for event in theirs.events():
                seen.append(event.phase)  # noqa: PERF401  what was seen by then counts

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await until(lambda: seen == ["start"])
            assert (await other.run("gpio.get", line=4))["value"] == 0
            await task.cancel()
        assert seen == ["start", "finish", "task_finish"]


async def test_leaving_an_attached_session_does_not_close_it(served) -> None:
    async with served.open_session() as session:
        async with served.attach(session) as other:
            await other.run("gpio.set", line=17, value=1)
        assert served.level(17) == 1
        assert await session.tools()
    assert served.level(17) == 0


async def test_a_session_that_another_closed_ends_for_all(served) -> None:
    async with served.open_session() as session, served.attach(session) as other:
        task = await session.submit("watch", [WATCH])
        ended = []

        async def wait():
            ended.append((await task.wait()).status)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until(lambda: served.records("task.step.start"))
            await other.close()
        assert ended == ["CANCELLED"]
        with pytest.raises(SessionInvalid):
            await session.run("gpio.get", line=4)
