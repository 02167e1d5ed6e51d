"""Going on where something is on record that no checkpoint tells of: no step with an effect is done again."""

from __future__ import annotations

from contextlib import asynccontextmanager

import outcome
import pytest
from support.hcp import capability, hcp_world

from hearth.actors.bridges.hcp.book_rows import BookError


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@asynccontextmanager
async def killed(tmp_path, *capabilities, **more):
    """A world whose job store takes nothing any more from the end of the body on, as if the process had ended there."""
    async with hcp_world(tmp_path / "hcp", *capabilities, **more) as world:
        yield world
        await world.desk.services.book.aclose()


async def one_set(job):
    await job.run("bench.set", line=1, value=1, gate="g")


async def look_sleep_set(job):
    await job.run("bench.read", tag="look")
    await job.sleep(0)
    await job.random()
    await job.run("bench.set", line=1, value=1, gate="g")


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
        file = world.desk.services.book._file
        monkeypatch.setattr(file, "write", lambda operations: [outcome.Error(BookError("full")) for _ in operations])
        world.gate("g").open()
        await caller.closed(session_id)
        sequences = [event["sequence"] for event in caller.events_in(session_id)]
        assert sequences == list(range(1, len(sequences) + 1))
