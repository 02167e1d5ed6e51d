"""A capability function's operations: each is done once, is on record before the function goes on, and is replayed."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import pytest
import trio
from support.hcp import Caller, as_if_failed, capability, hcp_world, scripted, step, waiting
from support.world import BOB

import hearth
from hearth.annotations import unstructure
from hearth.hcp.durable import CapabilityFailed, OutcomeUnknown, StepFailed
from hearth.hcp.messages import write_instant
from hearth.policy.rules import Match, PolicyEntry

pytestmark = pytest.mark.slow

SAFE = {"tools": ("read", "set", "wait", "fail", "big", "many"), "clean_up": frozenset({"bench.set"})}


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@pytest.fixture
def look(tmp_path):
    """`async with look(function, ...) as world`: a world that offers one capability, "look"."""

    @asynccontextmanager
    async def make(function, *, killed=False, settings=None, **more):
        offered = capability(function=function, **{**SAFE, **more})
        async with hcp_world(tmp_path / "hcp", offered, settings=settings) as world:
            yield world
            if killed:
                # The job store takes nothing more, as if the process had been killed here.
                await world.job_server.services.job_store.aclose()

    return make


async def last_checkpoint(world, session_id):
    """The newest one of a session that has ended."""
    row = await world.job_server.services.job_store.session(session_id)
    return f"ckpt-{session_id}-{row.checkpoints:06d}"


async def resumed(world, session_id, **more):
    """Go on from a session's newest checkpoint; the new session's id and its outcome."""
    caller = world.caller()
    context = {"resume_from": await last_checkpoint(world, session_id)}
    await as_if_failed(world.job_server, session_id)
    again = await caller.accepted(context=context, **more)
    return again, await caller.outcome(again)


# --- every operation is replayed -------------------------------------------------------------------------------------


async def chance(job):
    """Ask everything that could be different the next time; end the first time, after all of it."""
    seen = [await job.random(), write_instant(await job.now()), job.elapsed_s]
    seen += [
        [number, (await job.run("bench.read", tag=f"n{number}", replay=True))["tag"], job.elapsed_s]
        async for number in job.every(0.01, 3)
    ]
    await job.sleep(0.01)
    results = await job.submit([hearth.step("bench.read", tag="a"), hearth.step("bench.read", tag="b")], replay=True)
    seen.append([result["tag"] for result in results])
    seen.append(await job.gather(job.random, partial(job.run, "bench.read", tag="c", replay=True), job.random))
    seen.append(write_instant(job.at))
    if "resume_from" not in job.context:
        job.partial(seen=seen)
        raise CapabilityFailed("once more", recoverable=True)
    return {"seen": seen}


async def test_a_function_that_runs_again_gets_every_outcome_that_is_on_record_and_nothing_is_done_twice(look):
    async with look(chance) as world:
        caller = world.caller()
        first = await caller.accepted()
        failed = await caller.outcome(first)
        assert world.observer.labels("begin") == ["n1", "n2", "n3", "a", "b", "c"]
        _, completed = await resumed(world, first)
        assert completed["outputs"] == failed["partial_outputs"]
        assert completed["execution_summary"]["steps_executed"] == 0
        assert len(world.observer.labels("begin")) == 6


async def test_any_checkpoint_is_good_to_go_on_from(look):
    async with look(chance) as world:
        caller = world.caller()
        first = await caller.accepted()
        seen = (await caller.outcome(first))["partial_outputs"]["seen"]
        done = int((await last_checkpoint(world, first))[-6:])
        for number in range(1, done):
            await as_if_failed(world.job_server, first)
            again = await caller.accepted(context={"resume_from": f"ckpt-{first}-{number:06d}"})
            outputs = (await caller.outcome(again))["outputs"]["seen"]
            assert outputs[0] == seen[0], "the first random number is on record from the first checkpoint on"
            assert [one[1] for one in outputs[3:6]] == ["n1", "n2", "n3"]
            row = await world.job_server.services.job_store.session(again)
            assert row.checkpoints == done


async def test_the_clock_of_a_function_is_that_of_its_record(look):
    async def function(job):
        assert job.at == job.started_at
        before = job.elapsed_s
        await job.sleep(0.05)
        assert job.elapsed_s - before >= 0.05
        now = await job.now()
        return {"apart_s": abs((job.at - now).total_seconds())}

    async with look(function) as world:
        caller = world.caller()
        assert (await caller.outcome(await caller.accepted()))["outputs"]["apart_s"] < 1


@pytest.mark.proof
async def test_time_that_passed_while_the_daemon_was_down_counts_for_a_sleep(look):
    async def function(job):
        await job.run("bench.read", tag="before", replay=True)
        await job.sleep(3)
        return await job.run("bench.read", tag="after")

    async with look(function, killed=True) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.told(session_id, "checkpoint_created")
    await trio.sleep(3)
    async with look(function) as world:
        began = trio.current_time()
        _, completed = await resumed(world, session_id)
        assert completed["outputs"] == {"tag": "after"}
        assert trio.current_time() - began < 3
        assert world.observer.labels("begin") == ["after"]


@pytest.mark.slow
async def test_rounds_that_were_missed_are_not_made_up_for(look):
    async def function(job):
        times = []
        async for number in job.every(0.05, 4):
            if number == 2:
                await job.sleep(0.3)
            times.append(job.elapsed_s)
        return {"gaps": [later - earlier for earlier, later in itertools.pairwise(times)]}

    async with look(function) as world:
        caller = world.caller()
        gaps = (await caller.outcome(await caller.accepted()))["outputs"]["gaps"]
        assert gaps[0] >= 0.3
        assert gaps[2] >= 0.04, "after the late round the interval holds again"


@pytest.mark.parametrize(("call", "word"), [("sleep", "job.sleep takes 0 to"), ("every", "job.every takes")])
async def test_a_time_that_is_none_is_told_with_the_bounds(look, call, word):
    async def function(job):
        with pytest.raises(ValueError, match=word):
            await getattr(job, call)(-1)
        with pytest.raises(ValueError, match=word):
            await getattr(job, call)(float("nan"))
        return {}

    async with look(function) as world:
        caller = world.caller()
        assert (await caller.outcome(await caller.accepted()))["outputs"] == {}


# --- what does not match its record ----------------------------------------------------------------------------------

CHANGES = {
    "another tool": (scripted(step("read", tag="a"), step("many", n=1)), ["bench.many", "on record it is bench.read"]),
    "other args": (scripted(step("read", tag="a"), step("read", tag="z")), ['"tag":"z"', '"tag":"b"']),
    "a sleep": (scripted(step("read", tag="a"), waiting(1)), ["job.sleep(1)", "bench.read"]),
    "too little": (scripted(step("read", tag="a")), ["returned before operation 2", "bench.read"]),
    "something between": (scripted(step("read", tag="a"), lambda job: job.random()), ["job.random()", "bench.read"]),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_a_function_that_asks_something_else_than_is_on_record_ends_its_job_and_both_are_named(look, what):
    changed, words = CHANGES[what]

    async def function(job):
        if job.context:
            return await changed(job)
        await scripted(step("read", tag="a"), step("read", tag="b"))(job)
        raise CapabilityFailed("later", recoverable=True)

    async with look(function) as world:
        caller = world.caller()
        first = await caller.accepted()
        await caller.closed(first)
        _, failed = await resumed(world, first)
        assert (failed["error_code"], failed["error_details"]["reason"]) == ("input_error", "checkpoint_does_not_fit")
        for word in words:
            assert word in failed["error_message"]


async def test_a_mismatch_ends_the_job_even_if_the_function_handles_every_exception(look):
    async def function(job):
        for _ in range(3):
            try:
                await job.run("bench.read", tag="old" if not job.context else "new")
            except hearth.HearthError:
                continue
        if not job.context:
            raise CapabilityFailed("later", recoverable=True)
        return {}

    async with look(function) as world:
        caller = world.caller()
        first = await caller.accepted()
        await caller.closed(first)
        _, failed = await resumed(world, first)
        assert failed["error_details"]["reason"] == "checkpoint_does_not_fit"
        assert world.observer.labels("begin") == ["old"] * 3


# --- a step that was under way when the daemon died -------------------------------------------------------------------


@pytest.mark.slow
async def test_a_step_with_an_effect_that_was_under_way_at_a_crash_is_unknown_and_is_never_done_again_by_itself(look):
    function = scripted(step("read", tag="first"), step("set", line=1, value=1, gate="g"))
    async with look(function, killed=True) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
    async with look(function) as world:
        caller = world.caller()
        await caller.call("hcp.attach", session_id=session_id, from_sequence=0)
        message_log = await caller.closed(session_id)
        shown = 'bench.set {"gate":"g","line":1,"value":1}'
        assert f"outcome unknown: {shown}" in message_log[-2]["payload"]["error_message"]
        (record,) = world.records("hcp.recover")
        assert record["unknown"] == [shown]
        second, failed = await resumed(world, session_id)
        assert (failed["error_code"], failed["error_details"]["reason"]) == ("execution_error", "outcome_unknown")
        assert failed["error_details"]["recoverable"] is False
        assert "bench.set" in failed["error_message"]
        _, again = await resumed(world, second)
        assert again["error_details"]["reason"] == "outcome_unknown", "and so it stays"
        assert world.observer.labels("begin") == []


async def test_a_function_may_look_what_became_of_an_unknown_step_and_go_on(look):
    async def function(job):
        try:
            await job.run("bench.set", line=1, value=1, gate="g")
        except OutcomeUnknown:
            await job.run("bench.read", tag="what is it now", replay=True)
            return {"handled": True}
        return {"handled": False}

    async with look(function, killed=True) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
    async with look(function) as world:
        second, completed = await resumed(world, session_id)
        assert completed["outputs"] == {"handled": True}
        _, again = await resumed(world, second)
        assert again["outputs"] == {"handled": True}
        assert world.observer.labels("begin") == ["what is it now"]


async def test_a_step_that_only_looks_is_simply_done_again(look):
    function = scripted(step("read", tag="first"), step("read", tag="second", gate="g"), outputs={"fine": True})
    async with look(function, killed=True) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
    async with look(function) as world:
        world.gate("g").open()
        _, completed = await resumed(world, session_id)
        assert completed["outputs"] == {"fine": True}
        assert world.observer.labels("begin") == ["second"]


@pytest.mark.parametrize(("effect", "tried_again"), [("none", True), ("done", False), ("unknown", False)])
async def test_a_failed_step_is_tried_again_by_the_next_session_only_if_it_had_no_effect(look, effect, tried_again):
    async with look(scripted(step("fail", effect=effect, tag="it"))) as world:
        caller = world.caller()
        first = await caller.accepted()
        failed = await caller.outcome(first)
        assert ("last_checkpoint" in failed["error_details"]) is not tried_again
        if not tried_again:
            _, again = await resumed(world, first)
            assert again["error_message"] == failed["error_message"]
        assert world.observer.labels("begin") == ["it"]


# --- side by side ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_parts_run_side_by_side_and_each_has_numbers_of_its_own(look):
    async def function(job):
        async def part(name):
            first = await job.run("bench.read", tag=f"{name}1", replay=True)
            second = await job.run("bench.read", tag=f"{name}2", replay=True)
            return [first["tag"], second["tag"]]

        found = await job.gather(partial(part, "x"), partial(part, "y"))
        if not job.context:
            raise CapabilityFailed("later", recoverable=True)
        return {"found": found}

    async with look(function) as world:
        caller = world.caller()
        first = await caller.accepted()
        await caller.closed(first)
        begun = len(world.observer.labels("begin"))
        assert begun == 4
        _, completed = await resumed(world, first)
        assert completed["outputs"] == {"found": [["x1", "x2"], ["y1", "y2"]]}
        assert len(world.observer.labels("begin")) == begun


async def test_the_first_failure_of_parts_cancels_the_others_and_is_raised_as_it_is(look):
    async def function(job):
        async def waits():
            await job.sleep(3600)

        with pytest.raises(StepFailed) as failed:
            await job.gather(waits, partial(job.run, "bench.fail"), waits)
        await job.run("bench.read", tag="on")
        return {"error": str(failed.value)}

    async with look(function) as world:
        caller = world.caller()
        outputs = (await caller.outcome(await caller.accepted()))["outputs"]
        assert "the device said no" in outputs["error"]


async def test_a_job_may_stop_the_steps_of_its_parts_again_and_again(look):
    async def function(job):
        async def fails():
            await job.run("bench.set", line=1, value=1)
            raise CapabilityFailed("of its own")

        for _ in range(2):
            waits = [partial(job.run, "bench.wait", tag=name) for name in ("x", "y")]
            with pytest.raises(CapabilityFailed, match="of its own"):
                await job.gather(*waits, fails)
        return {"fine": True}

    async with look(function) as world:
        caller = world.caller()
        assert (await caller.outcome(await caller.accepted()))["outputs"] == {"fine": True}


async def test_a_part_that_is_cancelled_while_its_step_is_put_on_record_does_not_begin_it(look, monkeypatch):
    recording = trio.Event()

    async def function(job):
        async def fails():
            await recording.wait()
            raise CapabilityFailed("of its own")

        with pytest.raises(CapabilityFailed, match="of its own"):
            await job.gather(partial(job.run, "bench.set", line=1, value=1, tag="high"), fails)
        return {"fine": True}

    async with look(function) as world:
        job_store = world.job_server.services.job_store
        begin = job_store.begin

        async def begins(*operation):
            recording.set()
            await begin(*operation)

        monkeypatch.setattr(job_store, "begin", begins)
        caller = world.caller()
        assert (await caller.outcome(await caller.accepted()))["outputs"] == {"fine": True}
        assert "high" not in world.observer.labels("begin")


async def test_parts_within_parts_and_no_parts_at_all(look):
    async def function(job):
        async def inner(name):
            return await job.gather(*(partial(job.run, "bench.read", tag=f"{name}{n}") for n in range(2)))

        found = await job.gather(partial(inner, "a"), partial(inner, "b"))
        return {"tags": [[one["tag"] for one in part] for part in found], "none": await job.gather()}

    async with look(function) as world:
        caller = world.caller()
        outputs = (await caller.outcome(await caller.accepted()))["outputs"]
        assert outputs == {"tags": [["a0", "a1"], ["b0", "b1"]], "none": []}


# --- what a job may use ---------------------------------------------------------------------------------------------


async def test_the_hacp_session_of_a_job_may_use_the_declared_tools_and_no_others_of_its_callers(look):
    async def function(job):
        # Around the job's own check, as a bug in it would go.
        session = job._execution.steps._session
        with pytest.raises(hearth.PermissionDenied):
            await session.submit("another way", [hearth.step("bench.set", line=1, value=1)])
        listed = {tool["name"] for tool in await session.tools()}
        return {"set": "bench.set" in listed, "read": "bench.read" in listed}

    async with look(function, tools=("read",)) as world:
        caller = world.caller()
        outputs = (await caller.outcome(await caller.accepted()))["outputs"]
        assert outputs == {"set": False, "read": True}
        assert world.observer.labels("begin") == []
        own = await caller.open()
        assert (await own.run(("set", {"line": 1, "value": 1})))["status"] == "SUCCESS", "the caller's own may"


# --- clean-up --------------------------------------------------------------------------------------------------------


def cleaned(*parts):
    """These parts, then line 1 low whatever happens."""

    async def function(job):
        try:
            for part in parts:
                await part(job)
        finally:
            async with job.clean_up():
                await job.run("bench.set", line=1, value=0, tag="clean")
        return {"fine": True}

    return function


HIGH = step("set", line=1, value=1, tag="high")


async def test_an_abort_reaches_finally_blocks_and_their_clean_up_steps_are_done(look):
    async with look(cleaned(HIGH, waiting(3600)), max_duration=timedelta(hours=2)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.told(session_id, "checkpoint_created")
        await caller.send(Caller.abortion(session_id))
        message_log = await caller.closed(session_id)
        assert message_log[-1]["payload"]["data"]["final_state"] == "ABORTED"
        assert world.observer.labels("end")[:2] == ["high", "clean"]


async def test_a_job_that_was_cleaned_up_after_goes_on_where_it_was_stopped(look):
    async def waits(job):
        if not job.context:
            await job.sleep(3600)

    async with look(cleaned(HIGH, waits), max_duration=timedelta(hours=2)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.told(session_id, "checkpoint_created")
        await caller.send(Caller.abortion(session_id))
        await caller.closed(session_id)
        _, completed = await resumed(world, session_id)
        assert completed["outputs"] == {"fine": True}
        ends = [label for label in world.observer.labels("end") if label != "safe 1"]
        assert ends == ["high", "clean", "clean"], "the second one is the new job's"


async def test_clean_up_of_a_job_that_ends_by_itself_is_part_of_its_record(look):
    async with look(cleaned(HIGH, step("fail", effect="done"))) as world:
        caller = world.caller()
        first = await caller.accepted()
        await caller.closed(first)
        _, again = await resumed(world, first)
        assert "the device said no" in again["error_message"]
        assert world.observer.labels("end").count("clean") == 1


async def test_clean_up_may_use_only_what_is_declared_for_it(look):
    async with look(cleaned(HIGH), clean_up=frozenset()) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted())
        assert "bench.set, which is not among the clean_up" in failed["error_message"]


async def test_clean_up_is_bounded_in_time_and_the_job_comes_to_its_end(look):
    async def function(job):
        try:
            await job.sleep(3600)
        finally:
            async with job.clean_up():
                await job.sleep(3600)

    async with look(function, clean_up_s=0.05, max_duration=timedelta(hours=2)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.told(session_id, "state_changed")
        await caller.send(Caller.abortion(session_id))
        message_log = await caller.closed(session_id)
        assert message_log[-1]["payload"]["data"]["final_state"] == "ABORTED"


@pytest.mark.slow
async def test_clean_up_of_a_part_whose_neighbour_failed_is_not_done_again_when_the_job_goes_on(look):
    async def function(job):
        async def drives():
            try:
                await job.run("bench.set", line=1, value=1, tag="high")
                await job.sleep(3600)
            finally:
                async with job.clean_up():
                    await job.run("bench.set", line=1, value=0, tag="clean")

        async def fails():
            await job.sleep(0.1)
            await job.run("bench.fail", effect="done")

        with pytest.raises(StepFailed):
            await job.gather(drives, fails)
        await job.run("bench.read", tag="on")
        if not job.context:
            raise CapabilityFailed("later", recoverable=True)
        return {"fine": True}

    async with look(function) as world:
        caller = world.caller()
        first = await caller.accepted()
        await caller.closed(first)
        assert world.observer.labels("end").count("clean") == 1
        _, completed = await resumed(world, first)
        assert completed["outputs"] == {"fine": True}
        assert world.observer.labels("end").count("clean") == 1


# --- a person --------------------------------------------------------------------------------------------------------


async def asks(job):
    answer = await job.ask_person("Is the oven empty?")
    return {"approved": answer.approved, "by": answer.by, "reason": answer.reason}


async def question_for(approver):
    """What an approver is shown, once there is something."""
    pending = []
    while not pending:
        pending = (await approver.call("hcp.pending"))["approvals"]
    return pending[0]


@pytest.fixture
def asking(tmp_path):
    policy = (PolicyEntry(name="approvers", match=Match(any=True), rights=["approve"]),)
    return lambda **settings: hcp_world(tmp_path / "hcp", capability(function=asks), policy=policy, settings=settings)


@pytest.mark.spec(
    "hcp L2 State Definitions",
    "is",
    "PAUSED | Execution temporarily suspended, session preserved | Callee decision or checkpoint",
)
@pytest.mark.spec("hcp L2 Valid State Transitions", "is", "RUNNING | PAUSED | Callee pauses execution")
@pytest.mark.spec("hcp L2 Valid State Transitions", "is", "PAUSED | RUNNING | Callee resumes execution")
async def test_a_person_is_asked_while_the_job_is_paused_and_the_answer_is_on_record(asking):
    async with asking() as world:
        caller, bob = world.caller(), world.caller(BOB)
        session_id = await caller.accepted()
        shown = await question_for(bob)
        assert (shown["question"], shown["session_id"]) == ("Is the oven empty?", session_id)
        (row,) = (await caller.call("hcp.sessions"))["sessions"]
        assert row["state"] == "PAUSED"
        await bob.call("hcp.decide", approval_id=shown["approval_id"], approve=True, reason="I looked")
        outputs = (await caller.outcome(session_id))["outputs"]
        assert outputs == {"approved": True, "by": BOB.key, "reason": "I looked"}
        moves = [event["data"]["to_state"] for event in caller.events_in(session_id, "state_changed")]
        assert moves == ["RUNNING", "PAUSED", "RUNNING", "COMPLETED"]
        (record,) = world.records("hcp.approve")
        assert (record["by"], record["hcp_session"]) == (BOB.key, session_id)
        _, again = await resumed(world, session_id)
        assert again["outputs"] == outputs


@pytest.mark.slow
async def test_no_answer_in_time_is_a_no(asking):
    async with asking(approval_timeout_s=0.05) as world:
        caller = world.caller()
        outputs = (await caller.outcome(await caller.accepted()))["outputs"]
        assert (outputs["approved"], outputs["by"]) == (False, "")
        assert "within 0.05 s" in outputs["reason"]


@pytest.mark.spec("hcp L2 Valid State Transitions", "is", "PAUSED | ABORTING | Caller sends abort while paused")
async def test_a_job_that_waits_for_a_person_can_be_aborted(asking):
    async with asking() as world:
        caller, bob = world.caller(), world.caller(BOB)
        session_id = await caller.accepted()
        await question_for(bob)
        await caller.send(Caller.abortion(session_id))
        message_log = await caller.closed(session_id)
        assert message_log[-1]["payload"]["data"]["final_state"] == "ABORTED"
        moves = [event["data"]["to_state"] for event in caller.events_in(session_id, "state_changed")]
        assert moves == ["RUNNING", "PAUSED", "ABORTING", "ABORTED"]
        assert (await bob.call("hcp.pending"))["approvals"] == []


@pytest.mark.slow
async def test_a_job_that_runs_out_of_time_while_a_person_is_asked_fails_by_way_of_running(tmp_path):
    offered = capability(function=asks, max_duration=timedelta(seconds=0.2))
    async with hcp_world(tmp_path / "hcp", offered) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        assert (await caller.outcome(session_id))["error_code"] == "timeout"
        moves = [event["data"]["to_state"] for event in caller.events_in(session_id, "state_changed")]
        assert moves == ["RUNNING", "PAUSED", "RUNNING", "FAILED"]


async def test_a_daemon_that_dies_while_a_person_is_asked_asks_again_when_the_job_goes_on(asking):
    async with asking() as world:
        caller, bob = world.caller(), world.caller(BOB)
        session_id = await caller.accepted()
        await question_for(bob)
        await world.job_server.services.job_store.aclose()
    async with asking() as world:
        caller, bob = world.caller(), world.caller(BOB)
        await caller.call("hcp.attach", session_id=session_id, from_sequence=0)
        message_log = await caller.closed(session_id)
        assert message_log[-1]["payload"]["data"]["final_state"] == "FAILED"


# --- bounds ----------------------------------------------------------------------------------------------------------


async def endless_steps(job):
    while True:
        await job.run("bench.read")


async def endless_numbers(job):
    while True:
        await job.random()


async def stubborn(job):
    while True:
        try:
            await job.run("bench.read")
        except hearth.HearthError:
            await trio.lowlevel.checkpoint()
            return {"stopped": False}


async def many_files(job):
    for number in range(100):
        job.artifact(f"{number}.txt", "x", media_type="text/plain")


async def large_files(job):
    for number in range(10):
        job.artifact(f"{number}.txt", "x" * 1000, media_type="text/plain")


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (endless_steps, "would be step 6, and a job may do 5"),
        (endless_numbers, "would be operation 21, and a job may do 20"),
        (many_files, "one artifact too many"),
        (large_files, "more than 5000 bytes"),
    ],
)
async def test_a_function_that_asks_without_end_ends_at_its_bound(look, function, word):
    bounds = {"max_steps": 5, "max_artifact_bytes": 5000, "max_artifacts_bytes": 5000}
    async with look(function, settings=bounds) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted())
        assert failed["error_code"] == "execution_error"
        assert word in failed["error_message"]


async def test_what_a_function_says_is_bounded_and_the_rest_is_left_out(look):
    async def function(job):
        for number in range(100):
            await job.report(number=number)
        return {}

    async with look(function, settings={"max_steps": 5}) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.closed(session_id)
        assert len(caller.events_in(session_id, "intermediate_result")) == 5


@pytest.mark.parametrize("file", ["../x", "", ".hidden", "a/b", "x" * 200, "a\0b"])
async def test_a_file_name_that_is_none_is_the_capabilitys_bug(look, file):
    async def function(job):
        with pytest.raises(ValueError, match="file name takes letters"):
            job.artifact(file, "x", media_type="text/plain")
        return {}

    async with look(function) as world:
        caller = world.caller()
        assert "outputs" in await caller.outcome(await caller.accepted())


# --- an exception is no crash ----------------------------------------------------------------------------------------


async def test_an_exception_is_a_failed_job_whose_line_is_in_the_audit_log(look):
    async def function(job):
        await job.run("bench.read")
        return 1 / 0

    line = function.__code__.co_firstlineno + 2
    async with look(function) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted())
        assert failed["error_code"] == "internal_error"
        assert failed["error_message"] == "internal error: ZeroDivisionError"
        (record,) = world.records("hcp.finish")
        assert record["place"].endswith(f":{line}")


async def test_what_cannot_be_outputs_is_a_failed_job(look):
    async def function(_job):
        return [1, 2]

    async with look(function) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted())
        assert failed["error_message"] == "internal error: TypeError"


async def test_an_output_that_json_cannot_say_is_named_with_its_place(look):
    async def function(_job):
        return {"mean": float("nan")}

    async with look(function, unstructure=unstructure) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted())
        assert failed["error_code"] == "internal_error"
        assert "/outputs: .mean: nan has no JSON form" in failed["error_message"]
        assert failed["error_details"]["reason"] == "outputs_not_json"


async def test_a_retry_asks_again_only_for_what_may_pass(look):
    async def function(job):
        with pytest.raises(StepFailed, match="the device said no"):
            await job.retry(partial(job.run, "bench.fail", tag="f"), times=2, after_s=0.01)
        with pytest.raises(StepFailed, match="/line"):
            await job.retry(partial(job.run, "bench.set", line="x", value=1), times=2)
        return {}

    async with look(function) as world:
        caller = world.caller()
        completed = await caller.outcome(await caller.accepted())
        assert world.observer.labels("begin") == ["f"] * 3
        (warning,) = completed["execution_summary"]["warnings"]
        assert warning == "bench.fail failed: the device said no; it is tried again (2 times)"
