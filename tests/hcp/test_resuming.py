"""Going on where something is on record that no checkpoint tells of: no step with an effect is done again."""

from __future__ import annotations

from contextlib import asynccontextmanager

import outcome
import pytest
import trio
from support.hcp import capability, hcp_world

from hearth.actors.bridges.hcp.store.queries import JobStoreError
from hearth.hcp.durable import CapabilityFailed, StepFailed


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@asynccontextmanager
async def killed(tmp_path, *capabilities, **more):
    """A world whose job store takes nothing any more from the end of the body on, as if the process had ended there."""
    async with hcp_world(tmp_path / "hcp", *capabilities, **more) as world:
        yield world
        await world.job_server.services.job_store.aclose()


async def one_set(job):
    await job.run("bench.set", line=1, value=1, gate="g")


async def look_sleep_set(job):
    await job.run("bench.read", tag="look", replay=True)
    await job.sleep(0)
    await job.random()
    await job.run("bench.set", line=1, value=1, gate="g")


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["killed", "aborted"])
async def test_a_job_whose_first_step_was_under_way_has_a_checkpoint_to_go_on_from_and_does_not_redo_it(
    tmp_path, stopped
):
    offered = capability(function=one_set)
    if stopped == "killed":
        async with killed(tmp_path, offered) as world:
            caller = world.caller()
            session_id = await caller.accepted(message_id="m")
            await world.gate("g").reached()
    async with hcp_world(tmp_path / "hcp", offered, settings={"abort_timeout_s": 0.05}, close_grace_s=0.05) as world:
        caller = world.caller()
        if stopped == "killed":
            world.gate("g").open()
            await caller.send(caller.submission(message_id="m"))
            failed = await caller.outcome(session_id)
        else:
            session_id = await caller.accepted(constraints={"max_duration": "PT0.2S"})
            failed = await caller.outcome(session_id)
            world.gate("g").open()
        checkpoint = failed["error_details"]["last_checkpoint"]
        assert checkpoint == f"ckpt-{session_id}-000000"
        again = await caller.outcome(await caller.accepted(context={"last_checkpoint": checkpoint}))
        assert again["error_details"]["reason"] == "outcome_unknown"
        assert "bench.set" in again["error_message"]
        assert world.observer.labels("begin").count("set") == (stopped == "aborted")


async def test_a_job_that_failed_before_it_began_anything_names_no_checkpoint(tmp_path):
    async def nothing(_job):
        raise LookupError

    async with hcp_world(tmp_path / "hcp", capability(function=nothing)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        failed = await caller.outcome(session_id)
        assert "last_checkpoint" not in failed["error_details"]
        context = {"last_checkpoint": f"ckpt-{session_id}-000000"}
        refused = await caller.rejected(caller.submission(context=context))
        assert refused["reason_code"] == "invalid_input"


async def test_the_last_checkpoint_that_was_told_is_as_good_as_the_last_record(tmp_path):
    offered = capability(function=look_sleep_set)
    async with killed(tmp_path, offered) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        told = (await caller.told(session_id, "checkpoint_created"))["checkpoint_id"]
    async with hcp_world(tmp_path / "hcp", offered) as world:
        caller = world.caller()
        again = await caller.outcome(await caller.accepted(context={"last_checkpoint": told}))
        assert again["error_details"]["reason"] == "outcome_unknown"
        assert world.observer.labels("begin") == []


async def test_the_events_of_a_session_are_numbered_without_gap_although_the_job_store_failed_between(
    tmp_path, monkeypatch
):
    async def function(job):
        await job.run("bench.read", gate="g")
        await job.report(value=1)

    async with hcp_world(tmp_path / "hcp", capability(function=function)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        file = world.job_server.services.job_store._file
        monkeypatch.setattr(
            file, "write", lambda operations: [outcome.Error(JobStoreError("full")) for _ in operations]
        )
        world.gate("g").open()
        await caller.closed(session_id)
        sequences = [event["sequence"] for event in caller.events_in(session_id)]
        assert sequences == list(range(1, len(sequences) + 1))


# --- parts side by side, of which one has failed ---------------------------------------------------------------------


def begun(world):
    """The steps that began in this run, without those that make lines safe."""
    return [label for label in world.observer.labels("begin") if not label.startswith("safe")]


async def resumed(tmp_path, function, **more):
    """Run a function that fails at its end, and again from its last checkpoint; the steps that each run began."""
    tools = ("read", "set", "fail", "nap")
    offered = capability(function=function, tools=tools, clean_up=frozenset(("bench.set", "bench.read")), **more)
    steps, context = [], {}
    for _ in range(2):
        async with hcp_world(tmp_path / "hcp", offered) as world:
            caller = world.caller()
            failed = await caller.outcome(await caller.accepted(context=context))
            assert failed["error_code"] == "execution_error", failed
            context = {"last_checkpoint": failed["error_details"]["last_checkpoint"]}
            steps.append(begun(world))
    return steps


@pytest.mark.proof
async def test_a_part_that_was_cancelled_before_its_next_step_does_not_do_that_step_when_the_job_is_replayed(tmp_path):
    async def function(job):
        async def fails_in_the_end():
            for _ in range(300):
                await job.random()
            await job.run("bench.fail", tag="fail", effect="done")

        async def opens_a_valve_later():
            await job.run("bench.read", tag="valve", bus="b", replay=True)
            await job.sleep(1.5)
            await job.run("bench.set", tag="open", line=1, value=1, bus="b")

        with pytest.raises(StepFailed):
            await job.gather(fails_in_the_end, opens_a_valve_later)
        await job.run("bench.set", tag="shut", line=1, value=0, bus="b")
        # Past the end of the sleep that was broken off.
        await job.sleep(1.5)
        raise CapabilityFailed("once more")

    first, second = await resumed(tmp_path, function)
    assert "open" not in first
    assert first[-1] == "shut"
    assert second == []


@pytest.mark.slow
async def test_a_part_that_was_cancelled_is_cleaned_up_after_in_the_same_order_when_the_job_is_replayed(tmp_path):
    async def function(job):
        async def fails():
            await job.run("bench.nap", ms=50, replay=True)
            await job.run("bench.fail", tag="fail", effect="done", bus="b")

        async def works():
            try:
                await job.run("bench.read", tag="outer", replay=True)
                await job.run("bench.read", tag="outer again", replay=True)
                try:
                    await job.run("bench.read", tag="inner", replay=True)
                    await job.sleep(60)
                finally:
                    async with job.clean_up():
                        await job.run("bench.read", tag="clean inner", replay=True)
            finally:
                async with job.clean_up():
                    await job.run("bench.read", tag="clean outer", replay=True)

        with pytest.raises(StepFailed):
            await job.gather(fails, works)
        raise CapabilityFailed("once more")

    first, second = await resumed(tmp_path, function)
    assert first == ["outer", "outer again", "inner", "fail", "clean inner", "clean outer"]
    assert second == []


@pytest.mark.slow
async def test_a_step_that_its_cancelled_part_was_not_told_of_is_not_told_when_the_job_is_replayed(tmp_path):
    worlds = []

    async def function(job):
        async def fails():
            await worlds[0].gate("g").reached()
            await job.run("bench.fail", tag="fail", effect="done", bus="b")

        async def works():
            try:
                await job.run("bench.set", tag="held", line=1, value=1, gate="g")
            finally:
                async with job.clean_up():
                    await job.run("bench.set", tag="clean", line=2, value=0)

        with pytest.raises(StepFailed):
            await job.gather(fails, works)
        raise CapabilityFailed("once more")

    offered = capability(function=function, clean_up=frozenset(("bench.set",)))
    steps, context = [], {}
    for _ in range(2):
        async with hcp_world(tmp_path / "hcp", offered) as world:
            worlds.append(world)
            caller = world.caller()
            session_id = await caller.accepted(context=context)
            if len(worlds) == 1:
                await world.gate("g").reached()
                # The record of the failure, which cancels the other part.
                await caller.told(session_id, "checkpoint_created")
                await trio.testing.wait_all_tasks_blocked(0.05)
                world.gate("g").open()
            failed = await caller.outcome(session_id)
            context = {"last_checkpoint": failed["error_details"]["last_checkpoint"]}
            steps.append(begun(world))
    assert steps == [["held", "fail", "clean"], []]


@pytest.mark.slow
async def test_parts_that_wait_for_each_other_do_not_wait_for_ever_when_the_job_is_replayed(tmp_path):
    async def function(job):
        ready = trio.Event()

        async def one():
            await job.run("bench.read", tag="one", replay=True)
            await ready.wait()
            await job.run("bench.read", tag="one again", replay=True)

        async def other():
            await job.run("bench.read", tag="other", replay=True)
            if not job.context:
                raise CapabilityFailed("the first time")
            await job.run("bench.read", tag="other again", replay=True)
            ready.set()

        await job.gather(one, other)
        raise CapabilityFailed("done")

    _, second = await resumed(tmp_path, function)
    assert second == ["other again", "one again"]
