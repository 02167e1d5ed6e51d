"""What rarely happens to a job and its job server: two things at once, another's hand, a disk that says no."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import trio
from attrs import evolve
from support.hcp import LOOK_TWICE, Caller, capability, hcp_world, offering, reading, scripted, step, waiting
from support.world import ALICE, BOB

from hearth import open_runtime
from hearth.actors.approval import Decision
from hearth.actors.bridges.hcp.lazy import open_job_storage
from hearth.actors.bridges.hcp.steps import Steps
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.actors.build import build_parts
from hearth.actors.embedded import LocalRequest, job_sessions
from hearth.api import Step
from hearth.errors import MethodNotFound
from hearth.policy.rules import Match, PolicyEntry
from hearth.protocol.methods import METHODS

OFFERED = frozenset({"bench.wait"})
GATED = reading(step("read", tag="first", gate="g"), step("read", tag="second"))


async def notes(job):
    job.artifact("note.txt", "it was fine", media_type="text/plain")
    return {}


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@pytest.fixture
def look(tmp_path):
    """`async with look(...) as world`: a world with a job server over capabilities."""
    return lambda *capabilities, **more: hcp_world(tmp_path / "hcp", *capabilities, **more)


# --- stopping --------------------------------------------------------------------------------------------------------


async def test_a_jobs_in_flight_transaction_is_never_interrupted_by_max_duration(look):
    async with look(capability(function=GATED, max_duration=timedelta(seconds=0.05))) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        while (
            not world.records("task.finish") and world.job_server.jobs.running[session_id]._scope.cancel_called is False
        ):
            await trio.lowlevel.checkpoint()
        world.gate("g").open()
        failed = await caller.outcome(session_id)
        assert failed["error_code"] == "timeout"
        assert failed["error_details"]["last_checkpoint"] == f"ckpt-{session_id}-000001"
        world.observer.assert_whole()


@pytest.mark.slow
async def test_a_daemon_that_ends_waits_for_a_stuck_abort_no_longer_than_for_any_job(look):
    async with look(capability(function=GATED), settings={"abort_timeout_s": 3600}, close_grace_s=0.05) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        await caller.send(Caller.abortion(session_id))
        await caller.told(session_id, "state_changed", 2)
        await world.job_server.end(trio.current_time() + 0.1)
        message_log = await caller.closed(session_id)
        assert message_log[-1]["payload"]["data"]["final_state"] == "ABORTED"


async def test_a_job_whose_task_is_cancelled_under_it_ends_honestly(look):
    async with look(capability(function=reading(step("wait", tag="w")))) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        while not (begun := world.records("task.step.start")):
            await world.journal.post({"event": "test"}).get()
        # As the job's own session would be asked to; no connection reaches it.
        session = world.runtime.find_session(begun[0]["session_id"], ALICE.key, of_job=True)
        session.post(LocalRequest(METHODS["task.cancel"]({"task_id": begun[0]["task_id"]})))
        failed = await caller.outcome(session_id)
        assert failed["error_code"] == "internal_error"
        assert failed["error_details"]["reason"] == "hacp_session_ended"


async def test_a_job_that_waits_notices_that_its_hacp_session_has_ended(look):
    async with look(capability(function=scripted(waiting(60))), idle_ttl_s=0.15) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.told(session_id, "state_changed")
        await world.runtime.end_sessions()
        failed = await caller.outcome(session_id)
        assert failed["error_details"]["reason"] == "hacp_session_ended"


async def test_a_step_past_its_limit_is_a_failed_outcome(look):
    async with look() as world, job_sessions(world.runtime)(ALICE, "hcp:test", OFFERED, 0) as session:
        steps = Steps(
            session,
            priority="normal",
            intent="test",
            elapsed=lambda: 1.0,
            max_risk_level=2,
            deadline=lambda: trio.current_time() + 0.05,
            stopping=lambda: pytest.fail("nobody stopped it"),
            throttled=lambda _name: pytest.fail("there is no rate limit"),
        )
        outcome = await steps.do("never", [Step("bench.wait", {"tag": "never"})])
        assert (outcome.status, outcome.error_code, outcome.elapsed_s) == ("failed", -32010, 1.0)


async def test_a_plot_that_is_being_drawn_when_the_daemon_ends_is_kept(look, monkeypatch):
    began, done = threading.Event(), threading.Event()

    def slowly(_plot):
        began.set()
        assert done.wait(60)
        return b"drawn"

    monkeypatch.setattr("hearth.actors.bridges.hcp.finish.draw", slowly)

    async def plots(job):
        job.plot("plot.png", series={"level": [1, 2]})

    async with look(capability(function=reading(plots, notes, step("read", tag="x")))) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        assert await trio.to_thread.run_sync(began.wait, 5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.job_server.end, trio.current_time() + 5)
            await trio.testing.wait_all_tasks_blocked()
            done.set()
        completed = await caller.outcome(session_id)
        assert completed["outputs"] == {"tag": "x"}
        assert {one["name"] for one in completed["artifacts"]} == {"note", "plot"}


# --- the end of the daemon, in between -------------------------------------------------------------------------------


async def test_a_job_that_is_being_accepted_when_the_process_must_end_is_refused(look):
    async with look(shutdown_grace_s=0.1) as world:
        caller = world.caller()
        document = Caller.submission()
        world.journal.hold()
        await caller.send(document)
        while not world.job_server._underway:
            await trio.lowlevel.checkpoint()
        await world.lifetime.end()
        world.journal.release()
        await caller.until(lambda: caller.messages)
        assert caller.messages[0]["payload"]["reason_code"] == "shutting_down"


async def test_a_job_that_is_approved_in_the_moment_in_which_the_daemon_ends_is_refused(look):
    guarded = capability(safety={"requires_human_approval": True})
    policy = (PolicyEntry(name="all", match=Match(any=True), rights=["approve"]),)
    async with look(guarded, policy=policy) as world:
        caller, bob = world.caller(), world.caller(BOB)
        await caller.send(Caller.submission())
        shown = []
        while not shown:
            shown = (await bob.call("hcp.pending"))["approvals"]
        approvals = world.runtime.approvals
        approvals.decide(approvals.find(shown[0]["approval_id"], "job"), Decision(approved=True, who=BOB))
        await world.job_server.end(trio.current_time() + 5)
        await caller.until(lambda: caller.messages)
        assert caller.messages[0]["payload"]["reason_code"] == "shutting_down"


async def test_a_runtime_that_ends_its_sessions_opens_none_for_a_job(look):
    async with look() as world:
        world.runtime.closing = True
        refused = await world.caller().rejected(Caller.submission())
        assert refused["reason_code"] == "shutting_down"


# --- the job store says no ------------------------------------------------------------------------------------------


def disk_full(*_args, **_more):
    raise JobStoreError("the disk is full")


async def test_a_refusal_that_cannot_be_remembered_says_so_and_can_be_had_again(look, monkeypatch):
    async with look() as world:
        caller = world.caller()
        document = Caller.submission("lok")
        with monkeypatch.context() as patch:
            patch.setattr(world.job_server.services.job_store, "answer", disk_full)
            refused = await caller.rejected(document)
            assert refused["reason_code"] == "resource_unavailable"


async def test_a_session_whose_end_cannot_be_written_at_one_start_gets_it_at_the_next(look, tmp_path, monkeypatch):
    async with look(capability(function=GATED)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        await world.job_server.services.job_store.aclose()
    with monkeypatch.context() as patch:
        patch.setattr("hearth.actors.bridges.hcp.store.JobStore.message_log", disk_full)
        async with look() as world:
            listed = (await world.caller().call("hcp.sessions"))["sessions"]
            assert [one["state"] for one in listed] == ["RUNNING"]
    async with look() as world:
        listed = (await world.caller().call("hcp.sessions"))["sessions"]
        assert [(one["session_id"], one["state"]) for one in listed] == [(session_id, "FAILED")]


async def test_what_has_been_kept_for_long_enough_is_forgotten(look, monkeypatch):
    monkeypatch.setattr("hearth.actors.bridges.hcp.service.EXPIRY_S", 0.02)
    async with look(capability(function=notes), settings={"retention_s": 0.01}) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        (artifact,) = (await caller.outcome(session_id))["artifacts"]
        file = world.parts.extras["hcp"].directory / "artifacts" / session_id / "note.txt"
        while (await caller.call("hcp.sessions"))["sessions"] or file.exists():
            await trio.lowlevel.checkpoint()
        answer = await caller.ask("hcp.artifact", {"uri": artifact["uri"]})
        assert answer["error"]["code"] == -32602


# --- going on --------------------------------------------------------------------------------------------------------


async def talkative(job):
    seen = []
    for index in range(3):
        await job.report(index=index)
        await job.sleep(60 if index == 2 and not job.context else 0)
        result = await job.run("bench.read", replay=True, tag=f"n{index}")
        seen.append(result["tag"])
    return {"seen": seen}


async def test_what_was_told_and_waited_for_is_not_told_nor_waited_for_again(look):
    async with look(capability(function=talkative)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.told(session_id, "intermediate_result", 3)
        last = (await caller.told(session_id, "checkpoint_created", 2))["checkpoint_id"]
        running = await caller.rejected(Caller.submission(context={"last_checkpoint": last}))
        assert "still running" in running["reason_message"]
        await caller.send(Caller.abortion(session_id))
        await caller.closed(session_id)
        again = await caller.accepted(context={"last_checkpoint": last})
        assert (await caller.outcome(again))["outputs"] == {"seen": ["n0", "n1", "n2"]}
        assert [one["data"]["data"] for one in caller.events_in(again, "intermediate_result")] == [{"index": 2}]
        newest = (await caller.call("hcp.sessions"))["sessions"][0]
        assert newest["resumed_from"] == last


# --- and what there is no job server for ----------------------------------------------------------------------------


async def test_a_runtime_that_serves_no_jobs_has_no_job_server_and_no_job_store(tmp_path):
    config = offering(tmp_path)
    config = evolve(config, hcp=evolve(config.hcp, serve=False))
    async with open_runtime(config=config) as runtime:
        with pytest.raises(MethodNotFound):
            await runtime.capabilities()
    assert not (tmp_path / "audit.log.hcp").exists()


@pytest.mark.slow
async def test_an_embedding_program_that_is_cancelled_leaves_a_message_log_with_an_end(tmp_path):
    slow = LOOK_TWICE.replace("job.every(0, samples)", "job.every(60, samples)")
    config = offering(tmp_path, slow)
    with trio.CancelScope() as scope:
        async with open_runtime(config=config) as runtime:
            job = await runtime.delegate("look-twice", "look", {"samples": 5})
            async for event in job.events():
                if event.event_type == "checkpoint_created":
                    scope.cancel()
    async with open_runtime(config=config) as runtime:
        attached = await runtime.attach_job(job.session_id)
        ended = await attached.wait()
        assert (ended.state, ended.error_code) == ("FAILED", "internal_error")
        assert ended.details.reason == "daemon_ended"


async def test_many_readers_of_an_ended_session_share_its_message_log(look):
    async with look() as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.closed(session_id)
        first = await world.job_server.jobs.messages_of(session_id, ALICE)
        assert await world.job_server.jobs.messages_of(session_id, ALICE) is first
        assert await world.job_server.jobs.messages_of("6b8f1f0e-0000-4000-8000-000000000000", ALICE) is None


async def test_a_runtime_that_could_not_start_leaves_its_job_store_to_the_next(tmp_path, monkeypatch):
    config = offering(tmp_path, LOOK_TWICE)
    with monkeypatch.context() as patch:
        patch.setattr("hearth.actors.embedded.Runtime", lambda _parts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            async with open_runtime(config=config):
                pass
    parts = build_parts(config, default_policy=())
    open_job_storage(parts).close()


# --- the halt --------------------------------------------------------------------------------------------------------


async def test_a_halt_fails_a_job_that_acts_with_the_reason_and_refuses_the_next_until_it_is_reset(look):
    act = scripted(step("set", line=1, value=1), step("wait", tag="never"), step("set", line=2, value=1))
    async with look(capability(function=act)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        while not world.records("task.step.start", tool="bench.wait"):
            await world.journal.post({"event": "test"}).get()
        world.runtime.halt.halt("smoke", "a test")
        world.event("never").set()
        failed = await caller.outcome(session_id)
        assert failed["error_code"] == "safety_violation"
        assert failed["error_message"] == 'the daemon was halted: "smoke"'
        assert (failed["error_details"]["reason"], failed["error_details"]["effect"]) == ("halted", "none")
        assert world.driver.levels == {1: 0}
        rejected = await caller.rejected(Caller.submission())
        assert rejected["reason_code"] == "resource_unavailable"
        assert rejected["reason_message"].startswith("Halted since ")


@pytest.mark.slow
async def test_a_step_of_a_job_that_a_halt_cancels_fails_the_job_with_the_reason(look):
    act = capability(function=scripted(step("set", line=1, value=1)))
    async with look(act) as world, world.sessions().open_session() as session:
        await session.submit("holds the bus", [Step("bench.read", {"gate": "g"})])
        await world.gate("g").reached()
        caller = world.caller()
        session_id = await caller.accepted()
        while not world.records("task.step.start", tool="bench.set"):
            await world.journal.post({"event": "test"}).get()
        world.runtime.halt.halt("smoke", "a test")
        failed = await caller.outcome(session_id)
        assert failed["error_code"] == "safety_violation"
        assert 'the daemon was halted: "smoke"' in failed["error_message"]
        assert world.driver.levels == {}


async def test_a_job_that_only_reads_runs_while_the_daemon_is_halted(look):
    looks = capability(tools=("read",), safety={"risk_ceiling": "R1", "risk_floor": "R1"})
    async with look(looks) as world:
        world.runtime.halt.halt("smoke", "a test")
        caller = world.caller()
        done = await caller.outcome(await caller.accepted())
        assert done["outputs"] == {"tag": "x"}
