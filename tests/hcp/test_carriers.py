"""Whole jobs are the same in the process and over every carrier: one contract, kept by a job server and its callers."""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import trio
from support.carriers import HERE, Papers, exposed, ssh_to_here
from support.hcp import capability, hcp_world, scripted, step, waiting
from support.waiting import passes
from support.world import ALICE

import hearth
from hearth import CarrierError, InvalidParams, JobRejected, SessionInvalid
from hearth.config.hcp import HcpConfig
from hearth.config.model import Config
from hearth.errors import MethodNotFound

pytestmark = pytest.mark.slow

CSV = b"at_s,celsius\n" + b"0.1,21.5\n" * 100_000
"""More than one slice of it."""


async def gated(job, gate):
    """Wait at the gate of a bus's name, then do one step more."""
    await job.run("bench.read", bus=gate, gate=gate)
    result = await job.run("bench.read", bus=gate, tag="x")
    return {"tag": result["tag"]}


sleeper = scripted(step("read", tag="a"), waiting(3600))
"""It waits for ever, without a step under way."""


async def keeping(job):
    await job.run("bench.read", tag="x")
    job.artifact("samples.csv", CSV, media_type="text/csv")
    return {}


class Served:
    """A world with a job server, and callers of it."""

    def __init__(self, world, caller):
        self.world = world
        self.caller = caller
        """A context manager: a caller on a connection of its own, each time."""


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def over(tmp_path, papers, monkeypatch):
    """`async with over(kind) as served`: a job server, in the process or behind a carrier."""
    monkeypatch.setenv("HEARTH_SSH", str(ssh_to_here(tmp_path)))
    monkeypatch.delenv("HEARTH_TOKEN", raising=False)
    offered = (
        capability("look"),
        capability("gated", gated, concurrent_limit=2),
        capability("sleeper", sleeper),
        capability("files", keeping),
    )

    @asynccontextmanager
    async def opened(kind):
        with trio.fail_after(60):
            async with hcp_world(tmp_path / "hcp", *offered, policy=(HERE,)) as world:
                if kind == "embedded":
                    yield Served(world, lambda: embedded(world))
                    return
                async with exposed(world, kind, directory=tmp_path, papers=papers) as carriers:
                    yield Served(world, lambda: carriers.connect(kind))

    return opened


@pytest.fixture(params=["embedded", "unix", "tls", "ws"])
async def served(request, over):
    async with over(request.param) as opened:
        yield opened


@asynccontextmanager
async def embedded(world):
    async with trio.open_nursery() as nursery:
        yield world.sessions(ALICE, nursery)
        nursery.cancel_scope.cancel()


async def test_a_job_is_accepted_followed_and_done(served):
    async with served.caller() as caller:
        job = await caller.delegate("look", "to see", {}, max_duration=timedelta(seconds=30))
        events = [event async for event in job.events()]
        result = (await job.wait()).raise_for_state()
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert (events[0].event_type, events[-1].event_type) == ("session_created", "session_closed")
        assert (result.outputs, result.summary.steps_executed) == ({"tag": "x"}, 1)
        assert job.accepted.constraints.max_duration == timedelta(seconds=30)


async def test_a_job_that_is_not_accepted_says_why_and_what_to_do(served):
    async with served.caller() as caller:
        with pytest.raises(JobRejected) as refused:
            await caller.delegate("loook", "to see", {})
    assert refused.value.reason_code == "unknown_capability"
    assert "look" in refused.value.suggestion


async def test_what_can_be_done_is_listed_and_so_are_the_jobs(served):
    async with served.caller() as caller:
        offered = [each["capability"]["name"] for each in await caller.capabilities()]
        assert set(offered) == {"look", "gated", "sleeper", "files"}
        first = await caller.delegate("look", "one", {}, message_id="msg-1")
        await first.wait()
        second = await caller.delegate("look", "two", {})
        await second.wait()
        listed = await caller.jobs()
    assert [(entry["session_id"], entry["intent"]) for entry in listed] == [
        (second.session_id, "two"),
        (first.session_id, "one"),
    ]
    assert listed[1]["message_id"] == "msg-1"
    assert listed[1]["state"] == "COMPLETED"


async def test_two_jobs_go_on_beside_each_other_and_beside_calls_of_a_session(served):
    gates = {name: served.world.gate(name) for name in ("a", "b")}
    async with served.caller() as caller, caller.open_session(client_name="arm") as session:
        jobs = {name: await caller.delegate("gated", name, {"gate": name}) for name in gates}
        for gate in gates.values():
            await gate.reached()
        gates["b"].open()
        assert (await jobs["b"].wait()).completed
        assert await session.run("bench.read", tag="mine", bus="b") == {"tag": "mine"}
        assert not jobs["a"].ended
        gates["a"].open()
        assert (await jobs["a"].wait()).completed
        for job in jobs.values():
            sequences = [event.sequence async for event in job.events()]
            assert sequences == list(range(1, len(sequences) + 1))


async def test_an_abort_ends_a_job_and_leaves_a_report_of_what_was_done(served):
    async with served.caller() as caller:
        job = await caller.delegate("sleeper", "to wait", {})
        async for event in job.events():
            if event.event_type == "checkpoint_created":
                break
        assert await job.abort("enough") in ("ABORTING", "ABORTED")
        result = await job.wait()
        assert (result.state, result.summary.steps_executed) == ("ABORTED", 1)
        states = [event.data["to_state"] async for event in job.events() if event.event_type == "state_changed"]
        assert states[-2:] == ["ABORTING", "ABORTED"]


@pytest.mark.spec(
    "hcp L1 Delivery Guarantees",
    "is",
    "Events published while the caller is disconnected are retained in the queue until the caller reconnects "
    "and consumes them.",
)
async def test_a_caller_that_was_away_comes_back_to_the_rest_of_its_job(served):
    gate = served.world.gate("a")
    async with served.caller() as caller:
        job = await caller.delegate("gated", "to go on", {"gate": "a"}, message_id="msg-1")
        await gate.reached()
        seen = job.last_processed_sequence
    gate.open()
    async with served.caller() as caller:
        again = await caller.attach_job(job.session_id, seen + 1)
        assert (await again.wait()).outputs == {"tag": "x"}
        sequences = [event.sequence async for event in again.events()]
        assert sequences == list(range(seen + 1, sequences[-1] + 1))
    async with served.caller() as caller:
        repeated = await caller.delegate("gated", "to go on", {"gate": "a"}, message_id="msg-1")
        assert repeated.session_id == job.session_id
        assert (await repeated.wait()).completed
        # Who has processed all of it finds the outcome all the same.
        late = await caller.attach_job(job.session_id, sequences[-1] + 1)
        assert (await late.wait()).completed
    assert len(served.world.records("hcp.accept")) == 1


async def test_a_second_reader_begins_at_the_beginning_while_the_first_goes_on(served):
    gate = served.world.gate("a")
    async with served.caller() as caller:
        job = await caller.delegate("gated", "to go on", {"gate": "a"})
        first, second = job.events(), job.events(from_sequence=1)
        begun = [await anext(first), await anext(first)]
        assert (await anext(second)).sequence == 1
        gate.open()
        assert [event.sequence for event in begun] + [event.sequence async for event in first] == [
            1,
            *[event.sequence async for event in second],
        ]


async def test_the_connection_ending_is_reported_to_every_waiter_and_the_job_goes_on(served):
    gate = served.world.gate("a")
    async with served.caller() as caller:
        job = await caller.delegate("gated", "to go on", {"gate": "a"})
        await gate.reached()
    with pytest.raises(CarrierError):
        await job.wait()
    gate.open()
    async with served.caller() as caller:
        assert (await (await caller.attach_job(job.session_id)).wait()).completed


async def test_a_caller_that_has_gone_before_the_answer_leaves_no_job_running(served):
    async with served.caller() as caller:
        with trio.CancelScope() as gone:
            gone.cancel()
            await caller.delegate("sleeper", "to wait", {})
        await passes(lambda: served.world.records("hcp.finish", "hcp.reject"))
        # Withdrawn, unless it had been accepted by then.
        assert [entry["state"] for entry in await caller.jobs()] in ([], ["ABORTED"])


async def test_an_artifact_comes_whole_and_is_what_was_promised(served, tmp_path):
    async with served.caller() as caller:
        job = await caller.delegate("files", "to keep", {})
        (artifact,) = (await job.wait()).artifacts
        assert (artifact.size_bytes, artifact.checksum) == (len(CSV), f"sha256:{hashlib.sha256(CSV).hexdigest()}")
        assert await caller.artifact(artifact.uri) == CSV
        assert await caller.artifact_to(artifact.uri, tmp_path / "samples.csv") == len(CSV)
        assert (tmp_path / "samples.csv").read_bytes() == CSV
        with pytest.raises(InvalidParams):
            await caller.artifact(artifact.uri + "x")
    assert [path.name for path in tmp_path.glob(".samples*")] == []


async def test_a_job_that_does_not_exist_is_not_found(served):
    async with served.caller() as caller:
        with pytest.raises(SessionInvalid):
            await caller.attach_job("6a1b3f9e-9f0e-4a57-8f5c-2d7c0a5b1e42")


@pytest.mark.proof
@pytest.mark.parametrize(
    "promise",
    [
        test_a_job_is_accepted_followed_and_done,
        test_a_caller_that_was_away_comes_back_to_the_rest_of_its_job,
        test_an_abort_ends_a_job_and_leaves_a_report_of_what_was_done,
    ],
)
async def test_over_stdio_it_is_no_other(over, promise):
    async with over("stdio") as served:
        await promise(served)


@pytest.mark.slow
async def test_a_program_with_a_runtime_of_its_own_has_its_jobs_done_by_it():
    async with hearth.open_runtime(board="sim") as runtime:
        job = await runtime.delegate("bench-climate-survey", "look", {"samples": 3, "interval_s": 0.01})
        result = (await job.wait()).raise_for_state()
        assert result.outputs["samples"] == 3
        assert (await runtime.artifact(result.artifacts[0].uri)).startswith(b"at,at_s,value,unit")
        with pytest.raises(InvalidParams, match="not JSON"):
            await runtime.artifact({1, 2})
    with pytest.raises(CarrierError, match="the runtime ended"):
        await runtime.delegate("bench-climate-survey", "look", {})
    async with hearth.open_runtime(board="sim") as unused:
        pass
    with pytest.raises(CarrierError, match="the runtime ended"):
        await unused.delegate("bench-climate-survey", "look", {})


async def test_a_runtime_that_takes_no_jobs_says_so():
    async with hearth.open_runtime(board="sim", config=Config(hcp=HcpConfig(serve=False))) as runtime:
        with pytest.raises(MethodNotFound, match="serve = false"):
            await runtime.delegate("bench-climate-survey", "look", {})
        with pytest.raises(MethodNotFound):
            await runtime.capabilities()
