"""A bench world with a job server, callers that speak HCP to it, and capabilities whose functions are short.

`HcpWorld` keeps its job store in a directory of the test's; `Caller` sends documents on a connection of its own and
keeps what comes.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

from attrs import evolve
from support.world import ALICE, BenchWorld, RawClient, running

from hearth.actors.bridges.hcp.extra import HcpService
from hearth.actors.bridges.hcp.lazy import JobServerLifetime, open_job_storage
from hearth.actors.embedded import job_sessions
from hearth.config.hcp import HcpConfig
from hearth.config.model import Config
from hearth.hcp.capability import Capability, CapabilitySet, Safety, SafetyEnvelope
from hearth.hcp.durable import CapabilityFailed
from hearth.policy.rules import JobRules, Match, PolicyEntry
from hearth.schema import Validator

ANY = {"type": "object"}
LOOK_TWICE = '''\
"""A capability of the simulated board."""

from __future__ import annotations

import csv
import io
import statistics
from typing import Annotated, Any

from annotated_types import Ge, Le

from hearth import Job, capability


@capability(
    "look-twice",
    version="1.2.0",
    tools=["hw.sensor.read"],
    risk_ceiling="R1",
    involves_physical_resources=True,
    max_duration="PT1M",
    concurrent_limit=4,
    output_schema={"type": "object", "required": ["mean"], "properties": {"mean": {"type": "number"}}},
)
async def look_twice(job: Job, *, samples: Annotated[int, Ge(1), Le(100)] = 2) -> dict[str, Any]:
    """Reads the room\'s temperature some times, and says what it was on average."""
    rows: list[tuple[float, float]] = []
    try:
        async for _ in job.every(0, samples):
            reading = await job.run("hw.sensor.read", sensor="temperature")
            rows.append((job.elapsed_s, reading["value"]))
    finally:
        text = io.StringIO()
        csv.writer(text).writerows([("at_s", "value"), *rows])
        job.artifact("samples.csv", text.getvalue(), media_type="text/csv")
    return {"mean": statistics.fmean(value for _, value in rows)}
'''
"""A capability of the simulated board, as its file."""


def offering(directory, *files, **hcp):
    """A configuration that keeps everything in this directory and offers the capabilities of these files' text."""
    paths = []
    for number, text in enumerate(files):
        paths.append(directory / f"capability_{number}.py")
        paths[-1].write_text(text)
        paths[-1].chmod(0o644)
    config = Config()
    return evolve(
        config,
        audit=evolve(config.audit, path=directory / "audit.log"),
        hcp=evolve(config.hcp, capabilities=tuple(map(str, paths)), shipped=(), **hcp),
    )


async def as_if_failed(job_server, session_id):
    """Let a job that has completed, or was resumed, count as one that failed and was not: it may be resumed again."""

    def change(store):
        store.execute("UPDATE sessions SET state = 'FAILED' WHERE session_id = ?", (session_id,))
        store.execute("UPDATE sessions SET resumed_by = NULL")

    await job_server.services.job_store.write(change)


def step(tool, phase="work", **args):
    """A step of a bench tool, as a part of a function: `await part(job)` has it done."""

    async def part(job):
        job.phase = phase
        return await job.run(f"bench.{tool}", replay=True, **args)

    return part


def waiting(seconds):
    """A part that lets time pass."""
    return lambda job: job.sleep(seconds)


def failing(message, error_code="execution_error", **more):
    """A part that ends the job."""

    async def part(_job):
        raise CapabilityFailed(message, error_code, **more)

    return part


def reading(*parts):
    """A function: these parts, then outputs of what the last of them gave."""

    async def function(job, **_inputs):
        result = {}
        for part in parts:
            result = await part(job)
        return {"tag": result["tag"]}

    return function


def scripted(*parts, outputs=None):
    """A function: these parts, then these outputs."""

    async def function(job, **_inputs):
        for part in parts:
            await part(job)
        return outputs or {}

    return function


def capability(name="look", function=None, *, tools=("read", "set", "wait", "fail", "big"), **more):
    """A capability of risk R3 over the bench tools."""
    safety = {
        "risk_ceiling": "R3",
        "risk_floor": "R3",
        "requires_human_approval": False,
        "involves_physical_resources": True,
        **more.pop("safety", {}),
    }
    function = function or reading(step("read", tag="x"))
    schemas = {"input_schema": more.pop("input_schema", ANY), "output_schema": more.pop("output_schema", ANY)}
    return Capability(
        **{
            "name": name,
            "version": "1.0.0",
            "description": f"{name} at the bench",
            **schemas,
            "safety": Safety(**safety),
            "envelope": SafetyEnvelope(),
            "tools": tools if isinstance(tools, frozenset) else frozenset(f"bench.{tool}" for tool in tools),
            "function": function,
            "place": f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}",
            "inputs": Validator(schemas["input_schema"]),
            "outputs": Validator(schemas["output_schema"]),
            "max_duration": timedelta(minutes=1),
            **more,
        }
    )


def gated(**more):
    """A capability that waits in its first step until the gate "g" opens, then does another."""
    return capability(function=reading(step("read", gate="g"), step("read", tag="x")), **more)


def open_policy(**rules):
    """Any principal may, within these rules."""
    return (PolicyEntry(name="bench", match=Match(any=True), max_risk=3, hcp=JobRules(**rules)),)


def sequences(message_log):
    """The numbers of its events."""
    return [one["payload"]["sequence"] for one in message_log if one["type"] == "event"]


class HcpWorld(BenchWorld):
    """A bench world that serves jobs. Use `async with hcp_world(...) as w`."""

    def __init__(self, directory, capabilities, *, settings=None, clock=None, latch=None, **more):
        super().__init__(**more)
        self.parts = evolve(
            self.parts,
            clock=clock or self.parts.clock,
            latch=latch or self.parts.latch,
            extras={
                "hcp": HcpService(
                    HcpConfig(**{"serve": True, **(settings or {})}), CapabilitySet(capabilities), directory
                )
            },
        )
        self.job_server = None
        self.lifetime = None

    def caller(self, principal=ALICE, **more):
        """A caller on a connection of its own."""
        caller = Caller(self.pipes(principal, **more))
        self.nursery.start_soon(caller.run)
        return caller


@asynccontextmanager
async def hcp_world(directory, *capabilities, opened=True, **more):
    """A running world with a job server, which is lazy unless `opened`."""
    world = HcpWorld(directory, capabilities or [capability()], **more)
    storage = open_job_storage(world.parts)
    async with running(world):
        world.lifetime = JobServerLifetime(storage, world.runtime, job_sessions(world.runtime))
        world.nursery.start_soon(world.lifetime.run)
        lazy = world.parts.extras["hcp"].server = await world.lifetime.ready()
        if opened:
            world.job_server = await lazy.real()
        try:
            yield world
        finally:
            world.release()
            await world.lifetime.end()


class Caller(RawClient):
    """Speaks HCP on a connection."""

    @staticmethod
    def submission(name="look", *, message_id=None, inputs=None, **payload):
        """A task_submit as a document."""
        return {
            "hcp_version": "1.0",
            "message_id": message_id or str(uuid4()),
            "timestamp": "2026-04-19T22:48:01.000Z",
            "session_id": None,
            "type": "task_submit",
            "payload": {
                "capability": name,
                "caller_id": "harness-of-the-tests",
                "intent": "look at the bench",
                "inputs": inputs or {},
                **payload,
            },
        }

    @staticmethod
    def abortion(session_id, **payload):
        """An abort as a document."""
        return {
            "hcp_version": "1.0",
            "message_id": str(uuid4()),
            "timestamp": "2026-04-19T22:48:02.000Z",
            "session_id": session_id,
            "type": "abort",
            "payload": payload,
        }

    @property
    def messages(self):
        """Every HCP message so far."""
        return [one for one in self.documents if isinstance(one, dict) and "hcp_version" in one]

    def replies(self, message_id):
        """The answers to a message."""
        return [one for one in self.messages if one["payload"].get("in_reply_to") == message_id]

    async def reply(self, document):
        """Send a message; return its answer, which it may have had before."""
        had = len(self.replies(document["message_id"]))
        await self.send(document)
        await self.until(lambda: len(self.replies(document["message_id"])) > had)
        return self.replies(document["message_id"])[had]

    async def until_replied(self, document):
        """Wait for the answer to a message that was sent; return it."""
        await self.until(lambda: self.replies(document["message_id"]))
        return self.replies(document["message_id"])[0]

    async def accepted(self, name="look", **more):
        """Submit a job that is accepted; return its session's id."""
        answer = await self.reply(self.submission(name, **more))
        assert answer["type"] == "task_accepted", answer["payload"]
        return answer["session_id"]

    async def rejected(self, document):
        """Send a message that is refused; return the payload of the refusal."""
        answer = await self.reply(document)
        assert answer["type"] == "task_rejected", answer
        assert answer["session_id"] is None
        return answer["payload"]

    def message_log(self, session_id):
        """What has come of a session."""
        return [one for one in self.messages if one["session_id"] == session_id]

    def events_in(self, session_id, *types):
        """The payloads of its events, of these types."""
        payloads = [one["payload"] for one in self.message_log(session_id) if one["type"] == "event"]
        return [one for one in payloads if not types or one["event_type"] in types]

    async def told(self, session_id, event_type, count=1):
        """Wait for so many events of a type; return the data of the last."""
        await self.until(lambda: len(self.events_in(session_id, event_type)) >= count)
        return self.events_in(session_id, event_type)[count - 1]["data"]

    async def closed(self, session_id):
        """Wait for session_closed; return the session's messages."""
        await self.until(lambda: self.events_in(session_id, "session_closed"))
        return self.message_log(session_id)

    async def outcome(self, session_id):
        """Wait for the end; return the payload of task_completed or task_failed."""
        messages = await self.closed(session_id)
        return next(one["payload"] for one in messages if one["type"] in ("task_completed", "task_failed"))
