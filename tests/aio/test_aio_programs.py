"""Programs on `hearth.aio`: opening, cancellation, ends, and the errors for a function of the wrong face."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
import trio
from support.world import BenchWorld, running

import hearth
from hearth._util.portal import Portal, _PortalCall


def test_a_client_may_be_awaited_and_closed_by_hand() -> None:
    async def main():
        runtime = await hearth.aio.open_runtime()
        session = await runtime.open_session(client_name="by hand")
        await session.gpio.set("LED", 1)
        again = await runtime.attach(session.session_id)
        assert await again.gpio.get("LED") == 1
        assert await session.close() == 0
        with pytest.raises(hearth.SessionInvalid):
            await session.close()
        assert (await runtime.health())["ok"]
        assert runtime.audit_path.exists()
        await runtime.close()
        with pytest.raises(hearth.CarrierError, match=r"is closed; call hearth.aio.open_runtime ag"):
            await runtime.health()

    asyncio.run(main())


@pytest.mark.slow
def test_a_timeout_cancels_the_wait_and_the_task_and_never_a_pulse_that_has_begun() -> None:
    async def main():
        async with hearth.aio.open_runtime() as runtime, runtime.open_session() as session:
            task = await session.submit("pulse", [hearth.step("gpio.pulse", line="LED", value=1, duration_ms=200)])
            async for event in task.events():
                if event.phase == "start":
                    break
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await task.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await session.gpio.watch("BUTTON", timeout_ms=600_000)
            assert (await task.wait()).status == "SUCCESS"
        records = runtime.audit_path.read_text()
        assert records.count('"status":"CANCELLED"') >= 1

    asyncio.run(main())


def test_a_cancelled_opening_leaves_no_runtime_behind() -> None:
    async def main():
        opening = asyncio.ensure_future(_opened())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    async def _opened():
        return await hearth.aio.open_runtime()

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name == "hearth-portal":
            thread.join(60)
            assert not thread.is_alive()


def test_a_body_that_is_cancelled_twice_still_leaves_its_outputs_safe() -> None:
    async def main():
        async with hearth.aio.open_runtime() as runtime:
            inside = asyncio.Event()

            async def body():
                async with runtime.open_session() as session:
                    await session.gpio.set("LED", 1)
                    inside.set()
                    await asyncio.Event().wait()

            working = asyncio.create_task(body())
            await inside.wait()
            working.cancel()
            await asyncio.sleep(0)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            async with runtime.open_session() as session:
                assert await session.gpio.get("LED") == 0

    asyncio.run(main())


async def test_a_submission_whose_answer_is_lost_is_cancelled() -> None:
    """The answer comes, but its caller was cancelled in the same moment."""
    async with running(BenchWorld()) as world, world.client() as client, client.open_session() as session:
        portal = Portal("a test")
        submitted = []

        async def submit():
            task = await session.submit("x", [hearth.step("bench.wait", tag="never")])
            submitted.append(task)
            return task

        async with trio.open_nursery() as nursery:
            portal._nursery = nursery
            portal._token = trio.lowlevel.current_trio_token()
            call = _PortalCall(portal, submit, lambda task: task.cancel())
            await call.run()
            call.wait.abandon()
            assert (await submitted[0].wait()).status == "CANCELLED"


@pytest.mark.slow
def test_events_that_are_dropped_end_their_subscription() -> None:
    async def main():
        async with hearth.aio.open_runtime() as runtime, runtime.open_session() as session:
            task = await session.submit("wait", [hearth.step("gpio.watch", line="BUTTON", timeout_ms=600_000)])
            events = task.events()
            assert (await anext(events)).phase == "start"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(events)
            del events
            gc.collect()
            other = task.events()
            await task.cancel()
            assert [event.seq async for event in other] == [1, 2, 3]
            await other.aclose()

    asyncio.run(main())


# --- the wrong face ------------------------------------------------------------------------------------------------


def test_a_trio_function_in_asyncio_says_what_to_use_instead() -> None:
    async def main():
        for function in ("connect", "open_runtime"):
            with pytest.raises(RuntimeError) as refused:
                getattr(hearth, function)()
            assert str(refused.value) == (
                f"hearth.{function} runs on Trio, and this is asyncio: use hearth.aio.{function}"
            )

    asyncio.run(main())


def test_a_trio_function_without_an_event_loop_says_what_to_use_instead() -> None:
    for function in ("connect", "open_runtime"):
        with pytest.raises(RuntimeError) as refused:
            getattr(hearth, function)()
        assert str(refused.value) == (
            f"hearth.{function} runs on Trio, and no event loop runs here: use hearth.sync.{function}, or trio.run"
        )


@pytest.mark.parametrize("how", ["embedded", "client"])
async def test_a_trio_session_in_asyncio_sends_nothing_and_says_what_to_use(how, tmp_path) -> None:
    async def in_asyncio(session, opener):
        for refused in (session.tools(), session.submit("x", []), session.gpio.set("LED", 1)):
            with pytest.raises(RuntimeError, match=r"belongs to Trio, and this is asyncio: use hearth.aio$"):
                await refused
        with pytest.raises(RuntimeError, match=r"belongs to Trio, and this is asyncio: use hearth.aio$"):
            async with opener.open_session():
                raise AssertionError

    async def elsewhere(session):
        with pytest.raises(RuntimeError, match=r"belongs to Trio in another thread: open one here, or use trio.from_"):
            await session.tools()

    async with trio.open_nursery() as nursery:
        if how == "embedded":
            opening = hearth.open_runtime()
        else:
            world = BenchWorld()
            running_world = running(world)
            await running_world.__aenter__()
            opening = world.client()
        async with opening as opener, opener.open_session() as session:
            await trio.to_thread.run_sync(asyncio.run, in_asyncio(session, opener))
            await trio.to_thread.run_sync(trio.run, elsewhere, session)
            assert isinstance(await session.tools(), list), "and the connection is whole"
        if how == "client":
            await running_world.__aexit__(None, None, None)
        nursery.cancel_scope.cancel()


# --- control loops ----------------------------------------------------------------------------------------------------


def stepping(io):
    io.write("LED", 1)
    io.emit(io.time)
    if io.time > 0.1:
        io.stop("done")


def test_a_control_loop_runs_beside_asyncio_and_its_telemetry_is_read_there() -> None:
    async def main():
        async with hearth.aio.open_runtime() as runtime:
            opening = runtime.loop(200, stepping, lines=["LED"], name="led")
            loop = await opening.__aenter__()
            seen = [sample.seq async for sample in loop.telemetry()]
            stats = await loop.wait()
            with pytest.raises(hearth.LoopStopped, match="done"):
                await opening.__aexit__(None, None, None)
            assert (loop.name, loop.ended) == ("led", "done")
            assert seen == list(range(1, stats.runs + 1))
            assert loop.stats().writes == {"LED": stats.runs}

    asyncio.run(main())


def test_a_control_loop_in_asyncio_may_be_awaited_and_stopped_by_hand() -> None:
    async def main():
        runtime = await hearth.aio.open_runtime()
        loop = await runtime.loop(200, lambda io: io.write("LED", 1), lines=["LED"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await loop.wait()
        assert loop.ended is None, "a timeout ends the wait, not the loop"
        assert (await loop.stop()).ended == "its owner stopped it"
        forgotten = await runtime.loop(200, lambda io: io.write("LED", 1), lines=["LED"])
        await runtime.close()
        assert forgotten.ended == "its owner stopped it", "it ends with its runtime"
        assert '"event":"loop.stop"' in runtime.audit_path.read_text()

    asyncio.run(main())


def test_a_control_loop_that_is_refused_raises_in_asyncio() -> None:
    async def main():
        async with hearth.aio.open_runtime() as runtime:
            with pytest.raises(hearth.PermissionDenied, match="never driven"):
                await runtime.loop(200, stepping, lines=["DOOR"])

    asyncio.run(main())
