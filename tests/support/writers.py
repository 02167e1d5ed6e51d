"""Writers: each surface on which steps can be asked for, behind one function, for tests that write at random.

`async with WRITERS[surface](world) as write` opens it; then `await write(steps)` has all these steps tried and counts
those that were "done" and those that were "refused". With `rollback`, the last of the steps must be one that fails:
what the others have done is undone. With `give_up_s`, the caller changes its mind after so long.

The job of HCP is one function that runs until its writer is closed, in one HACP session: `with_jobs` offers it in a
world, and `serving_jobs` accepts it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from unittest.mock import patch

import trio
from attrs import evolve
from support.hcp import capability
from support.mcp import mcp_client

from hearth.actors.bridges.hcp.lazy import open_job_server, open_job_storage
from hearth.actors.embedded import job_sessions
from hearth.config.model import HcpConfig
from hearth.errors import RpcError
from hearth.hcp.capability import CapabilitySet
from hearth.hcp.durable import StepFailed
from hearth.mcp.names import PLAN, mcp_name

TOOLS = frozenset({"gpio.set", "gpio.pulse", "i2c.write", "i2c.transfer", "i2c.read"})
"""The tools of which a writer's steps may be."""


# --- a session, in this process or over a connection


@asynccontextmanager
async def in_process(world):
    async with world.sessions().open_session() as session:
        yield partial(_submit, session)


@asynccontextmanager
async def over_hacp(world):
    async with world.client() as client, client.open_session() as session:
        yield partial(_submit, session)


async def _submit(session, steps, *, rollback=False, give_up_s=None):
    constraints = {"abort_on_step_failure": False, "rollback_on_failure": rollback}
    try:
        task = await session.submit("write", steps, **constraints)
    except RpcError:
        # One step that can never pass refuses the task.
        return Counter(refused=len(steps))
    if give_up_s is not None:
        await trio.sleep(give_up_s)
        await task.cancel()
    result = await task.wait()
    return Counter("done" if one.status == "SUCCESS" else "refused" for one in result.steps)


# --- the official client of MCP: a call for each step, or a plan


@asynccontextmanager
async def over_mcp(world):
    async with mcp_client(world.sessions(), "auto") as client:
        yield partial(_call, client)


async def _call(client, steps, *, rollback=False, give_up_s=None):
    count = Counter()
    with trio.move_on_after(float("inf") if give_up_s is None else give_up_s):
        if rollback:
            plan = {"intent": "write", "steps": [one.to_wire() for one in steps], "rollback_on_failure": True}
            result = await client.call_tool(PLAN, plan)
            tried = (result.structured_content or {}).get("steps", steps)
            done = sum(one["status"] == "SUCCESS" for one in tried) if result.structured_content else 0
            return Counter(done=done, refused=len(steps) - done)
        for one in steps:
            result = await client.call_tool(mcp_name(one.tool), dict(one.args))
            count["refused" if result.is_error else "done"] += 1
    return count


# --- a job of HCP, handed over on a connection


class _GaveUp(Exception):
    """The caller has changed its mind."""


_due = {}
"""The steps that are due, by the number of the writer; the job's function asks for them here."""


async def _function(job, *, writer):
    async with _due[writer] as due:
        async for steps, rollback, give_up_s, counted in due:
            count = Counter()
            work = partial(_run, job, steps, count, rollback=rollback)
            with counted:
                with suppress(_GaveUp):
                    await (work() if give_up_s is None else job.gather(work, partial(_give_up, job, give_up_s)))
                counted.send_nowait(count)
    return {}


async def _give_up(job, seconds):
    await job.sleep(seconds)
    raise _GaveUp


async def _run(job, steps, count, *, rollback):
    for part in [steps] if rollback else [[one] for one in steps]:
        try:
            await job.submit(part, rollback_on_failure=rollback)
            count["done"] += len(part)
        except StepFailed:
            count["refused"] += len(part)


@asynccontextmanager
async def over_hcp(world):
    number = len(_due)
    hand_over, _due[number] = trio.open_memory_channel(0)

    async def write(steps, *, rollback=False, give_up_s=None):
        tell, told = trio.open_memory_channel(1)
        await hand_over.send((steps, rollback, give_up_s, tell))
        return await told.receive()

    async with world.client() as client:
        job = await client.delegate("writer", "write at random", {"writer": number})
        try:
            yield write
        except BaseException:
            with trio.CancelScope(shield=True):
                await job.abort()
            raise
        finally:
            hand_over.close()
            with trio.CancelScope(shield=True):
                result = await job.wait()
        assert result.state == "COMPLETED", result


def with_jobs(world, directory):
    """The world, which offers the writers' job and keeps its jobs in this directory."""
    safety = {"risk_ceiling": "R3", "risk_floor": "R3"}
    offered = evolve(capability("writer", _function, safety=safety, max_duration=timedelta(days=300)), tools=TOOLS)
    settings = HcpConfig(serve=True, max_steps=10_000_000)
    world.parts = evolve(world.parts, capabilities=CapabilitySet([offered]), hcp=settings, hcp_directory=directory)
    return world


@asynccontextmanager
async def serving_jobs(world):
    """Accept jobs in a world that runs."""
    async with open_job_server(open_job_storage(world.parts), world.runtime, job_sessions(world.runtime)):
        yield world


@contextmanager
def no_threads():
    """Have the job store do its work at once: a virtual clock does not wait for a thread."""

    async def run_sync(work, *args, **_more):
        await trio.lowlevel.checkpoint()
        return work(*args)

    with patch.object(trio.to_thread, "run_sync", run_sync):
        yield


WRITERS = {"in process": in_process, "HACP": over_hacp, "MCP": over_mcp, "HCP": over_hcp}
