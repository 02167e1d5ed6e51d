"""Writers: each surface on which steps can be asked for, behind one function, for tests that write at random.

`async with WRITERS[surface](world) as write` opens it; then `await write(steps)` has all these steps tried and counts
those that were "done" and those that were "refused". With `rollback`, the last of the steps must be one that fails:
what the others have done is undone. With `give_up_s`, the caller changes its mind after so long. Cancel `write`, but
not the opening and the closing of a writer: they are a connection.

The job of HCP is one function that runs until its writer is closed, in one HACP session. `serving(world)` runs a world
that takes it.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import trio
from attrs import evolve
from support.hcp import capability
from support.mcp import mcp_client
from support.world import running

from hearth.actors.bridges.hcp.extra import HcpService
from hearth.actors.bridges.hcp.lazy import open_job_server, open_job_storage
from hearth.actors.embedded import job_sessions
from hearth.config.hcp import HcpConfig
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

    waiting = 0

    async def write(steps, *, rollback=False, give_up_s=None):
        nonlocal waiting
        tell, told = trio.open_memory_channel(1)
        await hand_over.send((steps, rollback, give_up_s, tell))
        waiting += 1
        count = await told.receive()
        waiting -= 1
        return count

    async with world.client() as client:
        job = await client.delegate("writer", "write at random", {"writer": number})
        try:
            yield write
        finally:
            hand_over.close()
            with trio.CancelScope(shield=True):
                if waiting:
                    await job.abort()
                result = await job.wait()
        assert result.state == "COMPLETED" or waiting, result


@asynccontextmanager
async def serving(world):
    """Run a world that takes the writers' jobs. They are kept in memory: a commit must not wait for a disk."""
    safety = {"risk_ceiling": "R3", "risk_floor": "R3"}
    offered = evolve(capability("writer", _function, safety=safety, max_duration=timedelta(days=300)), tools=TOOLS)
    settings = HcpConfig(serve=True, max_steps=10_000_000)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="hearth-writers-", dir=memory) as directory:
        jobs = HcpService(settings, CapabilitySet([offered]), Path(directory) / "jobs")
        world.parts = evolve(world.parts, extras={"hcp": jobs})
        storage = open_job_storage(world.parts)
        async with running(world), open_job_server(storage, world.runtime, job_sessions(world.runtime)):
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
