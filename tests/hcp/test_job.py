"""The job: how it works, stops, and comes to exactly one end, whatever happens around it."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import trio
from support.hcp import Caller, as_if_failed, capability, failing, hcp_world, reading, scripted, step, waiting
from support.world import ALICE, BOB

from hearth.hcp.capability import Limit, SafetyEnvelope
from hearth.hcp.durable import CapabilityFailed, StepFailed
from hearth.hcp.rejections import session_ended
from hearth.policy.rules import Match, PolicyEntry
from hearth.tools import Resolved, Tool

TWO = reading(step("read", tag="first", gate="g"), step("read", tag="second"))


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@pytest.fixture
def look(tmp_path):
    """`async with look(...) as world`: a world with a job server over capabilities."""
    return lambda *capabilities, **more: hcp_world(tmp_path / "hcp", *capabilities, **more)


@asynccontextmanager
async def killed(tmp_path, *capabilities, **more):
    """A world whose job store stops taking anything at the end of the body, as if the process had been killed there."""
    async with hcp_world(tmp_path / "hcp", *capabilities, **more) as world:
        yield world
        await world.job_server.services.job_store.aclose()


# --- abort -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spec(
    "hcp L2 Abort Protocol",
    "MUST",
    "The callee MUST make a best-effort attempt at cleanup but is not required to guarantee resource release "
    "within any specific timeframe.",
)
async def test_a_jobs_in_flight_transaction_is_never_interrupted_by_abort(look):
    async with look(capability(function=TWO)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        await caller.send(Caller.abortion(session_id, reason="changed my mind"))
        aborting = await caller.told(session_id, "state_changed", 2)
        assert aborting == {"from_state": "RUNNING", "to_state": "ABORTING", "reason": "changed my mind"}
        assert world.observer.labels("end") == []
        world.gate("g").open()
        message_log = await caller.closed(session_id)
        assert world.observer.labels("end") == ["first"]
        world.observer.assert_whole()
        moves = [event["data"]["to_state"] for event in caller.events_in(session_id, "state_changed")]
        assert moves == ["RUNNING", "ABORTING", "ABORTED"]
        assert {one["type"] for one in message_log} == {"task_accepted", "event"}
        closed = message_log[-1]["payload"]["data"]
        assert closed["final_state"] == "ABORTED"
        assert closed["execution_summary"]["steps_executed"] == 1
        assert closed["execution_summary"]["checkpoints_created"] == 1


async def test_a_step_that_was_done_although_its_job_was_aborted_is_not_done_again(look):
    async with look(capability(function=TWO)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        await caller.send(Caller.abortion(session_id))
        await caller.told(session_id, "state_changed", 2)
        world.gate("g").open()
        await caller.closed(session_id)
        checkpoint = (await caller.told(session_id, "checkpoint_created"))["checkpoint_id"]
        again = await caller.accepted(context={"last_checkpoint": checkpoint})
        await caller.closed(again)
        assert world.observer.labels("begin") == ["first", "second"]


async def test_a_job_that_waits_stops_at_once_when_it_is_aborted(look):
    async with look(capability(function=scripted(waiting(3600)), max_duration=timedelta(hours=2))) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.told(session_id, "state_changed")
        token = caller.events_in(session_id, "session_created")[0]["data"]["session_token"]
        await caller.send(Caller.abortion(session_id, session_token=token))
        message_log = await caller.closed(session_id)
        assert message_log[-1]["payload"]["data"]["final_state"] == "ABORTED"
        (record,) = world.records("hcp.abort")
        assert record["hcp_session"] == session_id


@pytest.mark.slow
@pytest.mark.spec("hcp L2 Abort Protocol", "SHOULD", "Cleanup SHOULD be bounded by a callee-defined abort timeout.")
async def test_a_stuck_transaction_keeps_an_abort_no_longer_than_abort_timeout(look):
    async with look(capability(function=TWO), settings={"abort_timeout_s": 0.05}, close_grace_s=0.05) as world:
        caller = world.caller()
        answer = await caller.reply(Caller.submission())
        assert answer["payload"]["constraints"]["abort_timeout"] == "PT0.05S"
        session_id = answer["session_id"]
        await world.gate("g").reached()
        await caller.send(Caller.abortion(session_id))
        message_log = await caller.closed(session_id)
        assert message_log[-1]["payload"]["data"]["final_state"] == "ABORTED"
        assert world.observer.labels("end") == []


@pytest.mark.parametrize(
    ("who", "which", "token", "code"),
    [
        (ALICE, "not-there", None, "unknown_session"),
        (BOB, None, None, "unknown_session"),
        (ALICE, None, "forged", "unauthorized"),
    ],
)
async def test_who_may_not_abort_is_told_nothing_else_and_the_job_goes_on(look, who, which, token, code):
    async with look(capability(function=TWO)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        payload = {} if token is None else {"session_token": token}
        refused = await world.caller(who).rejected(Caller.abortion(which or session_id, **payload))
        assert refused["reason_code"] == code
        world.gate("g").open()
        assert (await caller.outcome(session_id))["outputs"] == {"tag": "second"}


async def test_anothers_session_is_not_told_apart_from_none(look):
    async with look() as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        session_id = await alice.accepted()
        await alice.closed(session_id)
        other = await bob.rejected(Caller.abortion(session_id))
        none = await bob.rejected(Caller.abortion("6b8f1f0e-0000-4000-8000-000000000000"))
        mask = {session_id: "S", "6b8f1f0e-0000-4000-8000-000000000000": "S"}
        for refused in (other, none):
            del refused["in_reply_to"]
            for found, masked in mask.items():
                refused["reason_message"] = refused["reason_message"].replace(found, masked)
        assert other == none


async def test_an_abort_of_a_session_that_has_ended_is_answered_with_how_and_changes_nothing(look):
    async with look() as world:
        caller = world.caller()
        session_id = await caller.accepted()
        message_log = await caller.closed(session_id)
        for _ in range(2):
            refused = await caller.rejected(Caller.abortion(session_id))
            assert (refused["reason_code"], refused["final_state"]) == ("session_ended", "COMPLETED")
            assert session_id in refused["reason_message"]
        assert await caller.closed(session_id) == message_log
        bob = await world.caller(BOB).rejected(Caller.abortion(session_id))
        assert (bob["reason_code"], "final_state" in bob) == ("unknown_session", False)
        assert world.carriers[0].connection._in_flight == 0


@pytest.mark.parametrize(("state", "final"), [("FAILED", "FAILED"), ("RUNNING", None)])
def test_a_session_whose_end_is_not_on_record_is_said_to_run_no_more_and_not_how_it_ended(state, final):
    refused = session_ended("S", state).payload("m")
    assert (refused.reason_code, refused.final_state) == ("session_ended", final)


# --- every end -------------------------------------------------------------------------------------------------------


async def crash(job):
    await job.run("bench.read")
    raise RuntimeError("a bug in the function")


async def leaving(_job):
    sys.exit(3)


ENDS = {
    "done": (scripted(step("read")), "COMPLETED", None),
    "the function says so": (scripted(failing("no", "input_error")), "FAILED", "input_error"),
    "a bug in the function": (crash, "FAILED", "internal_error"),
    "out of time": (scripted(waiting(60)), "FAILED", "timeout"),
    "an unsayable output": (scripted(outputs={"x": object()}), "FAILED", "internal_error"),
    "an output too large": (scripted(outputs={"x": "x" * 600_000}), "FAILED", "execution_error"),
    "it leaves Python": (scripted(leaving), "FAILED", "internal_error"),
    "a token that no longer holds": (scripted(step("read")), "FAILED", "internal_error"),
    "the HACP session ends": (scripted(step("wait", tag="w")), "FAILED", "internal_error"),
    "no audit log": (scripted(step("set", line=1, value=1)), "FAILED", "resource_unavailable"),
    "no job store": (scripted(step("read")), "FAILED", "resource_unavailable"),
}


@pytest.mark.parametrize("what", ENDS)
@pytest.mark.spec(
    "hcp L3 Session Token",
    "is",
    "Is validated by the callee's L1/L2 layers on each operation to ensure execution stays within approved scope",
)
async def test_the_messages_of_every_accepted_job_end_with_exactly_one_session_closed(look, what, monkeypatch):
    function, state, error_code = ENDS[what]

    async def gated(job):
        await job.run("bench.read", gate="g")
        return await function(job)

    limit = timedelta(seconds=0.2 if what == "out of time" else 60)
    async with look(capability(function=gated, max_duration=limit)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        if what == "a token that no longer holds":
            world.job_server.jobs.running[session_id].token = "x.y"
        elif what == "no audit log":
            world.journal.fail("disk full")
        elif what == "no job store":
            await world.job_server.services.job_store.aclose()
        world.gate("g").open()
        if what == "the HACP session ends":
            await caller.told(session_id, "checkpoint_created")
            await world.runtime.end_sessions()
        message_log = await caller.closed(session_id)
        closed = [one for one in message_log if one["payload"].get("event_type") == "session_closed"]
        assert closed == message_log[-1:]
        assert closed[0]["payload"]["data"]["final_state"] == state
        ends = [one for one in message_log if one["type"] in ("task_completed", "task_failed")]
        assert ends == message_log[-2:-1]
        assert ends[0]["payload"].get("error_code") == error_code
        sequences = [event["sequence"] for event in caller.events_in(session_id)]
        assert sequences == sorted(set(sequences))
        assert session_id not in world.job_server.jobs.running


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_callers_max_duration_counts_where_it_is_the_shorter_one(look):
    async def says_what_it_knows(job):
        job.partial(readings=1)

    async with look(capability(function=scripted(step("read"), says_what_it_knows, waiting(60)))) as world:
        caller = world.caller()
        session_id = await caller.accepted(constraints={"max_duration": "PT0.2S"})
        failed = await caller.outcome(session_id)
        assert failed["error_code"] == "timeout"
        assert failed["error_details"]["recoverable"] is True
        assert failed["error_details"]["last_checkpoint"] == f"ckpt-{session_id}-000001"
        assert failed["partial_outputs"] == {"readings": 1}


@pytest.mark.slow
async def test_a_long_wait_does_not_lose_the_hacp_session(look):
    script = scripted(waiting(0.4), step("read"), outputs={"fine": True})
    async with look(capability(function=script), idle_ttl_s=0.2) as world:
        caller = world.caller()
        assert (await caller.outcome(await caller.accepted()))["outputs"] == {"fine": True}


@pytest.mark.slow
async def test_a_job_waits_for_a_rate_limit_and_says_so(look):
    policy = (PolicyEntry(name="slow", match=Match(any=True), rate={"bench.read": "4/s"}),)
    script = scripted(*[step("read")] * 5)
    async with look(capability(function=script), policy=policy) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        summary = (await caller.outcome(session_id))["execution_summary"]
        assert summary["steps_executed"] == 5
        assert len(summary["warnings"]) == 1
        assert (await caller.told(session_id, "warning"))["code"] == "rate_limited"


@pytest.mark.slow
@pytest.mark.spec("hcp L4 Constraints", "is", "priority | enum (low/normal/high/urgent) | Relative priority hint")
async def test_priority_and_time_reach_the_bus(look):
    async def function(job, tag=None):
        return await (TWO if tag is None else reading(step("read", tag=tag)))(job)

    async with look(capability(function=function, concurrent_limit=3)) as world:
        caller = world.caller()
        low = await caller.accepted()
        await world.gate("g").reached()
        # The bus is taken: of the two that wait the urgent one comes first.
        script_of = {"normal": "n", "urgent": "u"}
        ids = [
            await caller.accepted(inputs={"tag": tag}, constraints={"priority": priority})
            for priority, tag in script_of.items()
        ]
        await trio.testing.wait_all_tasks_blocked(0.05)
        world.gate("g").open()
        for session_id in (low, *ids):
            await caller.closed(session_id)
        begun = world.observer.labels("begin")
        assert begun.index("u") < begun.index("n")


# --- what is told ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("hcp L2 Standard Event Types", "is", "warning | Non-fatal warning | code, message, details")
@pytest.mark.spec(
    "hcp L2 Standard Event Types",
    "is",
    "intermediate_result | Partial or interim result available | result_type, data, is_partial",
)
async def test_what_a_function_tells_is_told_and_its_warnings_are_in_the_summary(look):
    async def function(job):
        await job.report(mean=1)
        await job.warn("it is noisy", code="noisy")
        await job.report(text="x" * 300_000)
        return await job.run("bench.read")

    async with look(capability(function=function)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        summary = (await caller.outcome(session_id))["execution_summary"]
        interim = await caller.told(session_id, "intermediate_result")
        assert interim == {"result_type": "progress", "data": {"mean": 1}, "is_partial": True}
        codes = [event["data"]["code"] for event in caller.events_in(session_id, "warning")]
        assert codes == ["noisy", "event_too_large"]
        assert summary["warnings"][0] == "it is noisy"
        assert len(caller.events_in(session_id, "intermediate_result")) == 1


@pytest.mark.spec(
    "hcp L2 Standard Event Types",
    "is",
    "progress | Execution progress update | stage (string), percent (number, optional), message (string)",
)
async def test_how_far_a_function_says_it_is_is_told_with_its_stage(look):
    async def function(job):
        job.phase = "warming"
        await job.report(0.25, "a quarter")
        job.phase = "measuring"
        await job.report(0.5, "half")
        return {}

    async with look(capability(function=function)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.closed(session_id)
        told = [event["data"] for event in caller.events_in(session_id, "progress")]
        assert [(one["stage"], one["percent"], one["message"]) for one in told] == [
            ("warming", 25.0, "a quarter"),
            ("measuring", 50.0, "half"),
        ]


@pytest.mark.spec("hcp L3 Safety Envelope", "is", "Enforced locally by the callee during L1 tool execution")
async def test_a_value_beyond_a_limit_is_a_safety_violation_and_a_risk_event_in_the_summary(look):
    envelope = SafetyEnvelope(parameters={"heat": Limit(max=60, unit="celsius")})

    async def function(job):
        await job.run("bench.read")
        job.watch("heat", 59)
        job.watch("heat", 61)

    async with look(capability(function=function, envelope=envelope)) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted())
        assert failed["error_code"] == "safety_violation"
        assert "61" in failed["error_message"]
        assert failed["execution_summary"]["risk_events"] == ["safety_envelope.heat"]
        assert failed["error_details"]["recoverable"] is False


async def test_a_step_that_failed_without_effect_is_a_checkpoint_if_the_function_goes_on_and_none_if_it_ends_it(look):
    async def function(job):
        with pytest.raises(StepFailed) as failed:
            await job.run("bench.fail", effect="none")
        assert failed.value.code == -32009
        await job.run("bench.read")
        await job.run("bench.fail", effect="none")

    async with look(capability(function=function)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        failed = await caller.outcome(session_id)
        assert failed["error_details"]["last_checkpoint"] == f"ckpt-{session_id}-000002"
        assert failed["error_details"]["step"] == 3
        assert failed["execution_summary"]["checkpoints_created"] == 2
        first = await caller.told(session_id, "checkpoint_created")
        assert "the device said no" in first["description"]


@pytest.mark.parametrize(
    ("tool", "args", "word"),
    [
        ("bench.set", {"line": "seven", "value": 1}, "/line"),
        ("bench.big", {"n": 1_100_000}, "bytes"),
    ],
)
async def test_a_step_that_cannot_be_is_a_failure_that_can_be_handled(look, tool, args, word):
    async def function(job):
        with pytest.raises(StepFailed) as failed:
            await job.run(tool, **args)
        return {"error": f"{failed.value} {failed.value.data}"}

    async with look(capability(function=function)) as world:
        caller = world.caller()
        outputs = (await caller.outcome(await caller.accepted()))["outputs"]
        assert word in outputs["error"]


async def test_a_tool_that_is_not_declared_is_not_to_be_had_and_the_message_names_the_cure(look):
    async with look(capability(function=scripted(step("set", line=1, value=1)), tools=["read"])) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted())
        assert failed["error_code"] == "internal_error"
        assert "bench.set, which is not among the tools" in failed["error_message"]
        assert world.observer.labels("begin") == []


async def _never(_ctx, _args):
    raise AssertionError


NAMED = Tool(
    name="name.set",
    risk_level=2,
    timeout_ms=1000,
    description="set line 1",
    params_schema={"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]},
    result_schema={"type": "object"},
    capability="CAP_BENCH",
    bus=lambda _args: "a",
    run=_never,
    resolve=lambda args: Resolved("name.set", args, "bench.set", {"line": 1, **args}, lambda tool: tool),
    resolves_to=frozenset(("bench.set",)),
)


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        (("bench.set",), None),
        (("bench.set", "name.set"), None),
        (("bench.read",), "name.set, which is not among the tools"),
        (("name.set",), "bench.set"),
    ],
)
async def test_a_step_by_a_name_is_of_a_declared_tool_if_the_step_that_it_means_is(look, tools, reason):
    async def function(job):
        await job.run("name.set", value=1)
        return {}

    async with look(capability(function=function, tools=frozenset(tools)), extra_tools=[NAMED]) as world:
        caller = world.caller()
        ended = await caller.outcome(await caller.accepted())
        assert (reason is None) == ("error_message" not in ended)
        assert reason is None or reason in ended["error_message"]
        assert bool(world.observer.labels("begin")) == (reason is None)


async def test_outputs_that_fall_short_of_what_was_asked_are_a_failure_that_has_them(look):
    async with look() as world:
        caller = world.caller()
        session_id = await caller.accepted(expected_output={"required_fields": ["confidence"]})
        failed = await caller.outcome(session_id)
        assert failed["error_code"] == "execution_error"
        assert failed["error_details"]["reason"] == "required_fields_missing"
        assert failed["partial_outputs"] == {"tag": "x"}
        assert caller.events_in(session_id, "warning")


# --- files -----------------------------------------------------------------------------------------------------------


async def notes(job):
    job.artifact("note.txt", "it was fine", media_type="text/plain")


@pytest.mark.spec("hcp L4 Artifacts")
async def test_files_are_left_behind_with_size_and_checksum(look):
    async with look(capability(function=scripted(notes, step("read")))) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        (artifact,) = (await caller.outcome(session_id))["artifacts"]
        assert artifact["uri"] == f"hcp://{session_id}/artifacts/note.txt"
        assert artifact["size_bytes"] == 11
        (record,) = world.records("hcp.artifact")
        assert record["checksum"] == artifact["checksum"]


async def test_a_plot_that_cannot_be_drawn_is_a_warning(look):
    async def plots(job):
        job.plot("plot.png", series={"nothing": ["a word"]})

    async with look(capability(function=scripted(plots, notes))) as world:
        caller = world.caller()
        completed = await caller.outcome(await caller.accepted())
        assert [artifact["name"] for artifact in completed["artifacts"]] == ["note"]
        assert any("plot.png" in warning for warning in completed["execution_summary"]["warnings"])


async def test_a_file_that_cannot_be_kept_makes_the_job_fail_with_its_outputs(look):
    async with look(capability(function=scripted(notes)), settings={"max_artifact_bytes": 5}) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted())
        assert failed["error_code"] == "resource_unavailable"
        assert failed["error_details"]["reason"] == "artifact_lost"


# --- going on --------------------------------------------------------------------------------------------------------


def counting(n):
    """A function of n steps that reports which of them it has seen; it fails before one of them, the first time."""

    async def function(job, fail_at=None):
        seen = []
        for index in range(n):
            if index == fail_at and not job.context:
                raise CapabilityFailed("out of luck", recoverable=True)
            result = await job.run("bench.read", replay=True, tag=f"n{index}")
            seen.append(result["tag"])
        return {"seen": seen}

    return function


async def test_a_resubmission_goes_on_from_the_checkpoint_and_numbers_its_steps_on(look):
    async with look(capability(function=counting(5))) as world:
        caller = world.caller()
        first = await caller.accepted(inputs={"fail_at": 3})
        checkpoint = (await caller.outcome(first))["error_details"]["last_checkpoint"]
        second = await caller.accepted(inputs={"fail_at": 3}, context={"last_checkpoint": checkpoint})
        completed = await caller.outcome(second)
        assert completed["outputs"] == {"seen": ["n0", "n1", "n2", "n3", "n4"]}
        assert completed["execution_summary"]["steps_executed"] == 2
        assert world.observer.labels("begin") == ["n0", "n1", "n2", "n3", "n4"]
        reasons = [event["data"]["reason"] for event in caller.events_in(second, "state_changed")]
        assert reasons[0] == "recovered_from_checkpoint"
        ids = [event["data"]["checkpoint_id"] for event in caller.events_in(second, "checkpoint_created")]
        assert ids == [f"ckpt-{second}-000004", f"ckpt-{second}-000005"]
        refused = await caller.rejected(Caller.submission(inputs={"fail_at": 3}, context={"resume_from": ids[0]}))
        assert "is COMPLETED" in refused["reason_message"]
        await as_if_failed(world.job_server, second)
        third = await caller.accepted(inputs={"fail_at": 3}, context={"resume_from": ids[0]})
        assert (await caller.outcome(third))["outputs"] == completed["outputs"]
        assert world.observer.labels("begin")[5:] == ["n4"]
        accepted = world.records("hcp.accept")
        assert [one.get("resumed_from") for one in accepted] == [None, checkpoint, ids[0]]


REFUSED = {
    "no such checkpoint": ({"context": {"last_checkpoint": "ckpt-x-000001"}}, "no checkpoint of a session of yours"),
    "no checkpoint at all": ({"context": {"last_checkpoint": 7}}, "no checkpoint of a session of yours"),
    "beyond the last": ({"context": {"last_checkpoint": "ckpt-{}-000009"}}, "has 2 checkpoints"),
    "other inputs": ({"inputs": {"fail_at": 1}}, "the inputs are not those"),
    "data of a lower class": ({"constraints": {"data_classification": "T1"}}, "data of class T2"),
    "another capability": ({"name": "other"}, "is of look 1.0.0"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_not_the_same_work_does_not_go_on_from_a_checkpoint(look, what):
    change, word = REFUSED[what]
    async with look(capability(function=counting(5)), capability("other", counting(5))) as world:
        caller = world.caller()
        told = {"inputs": {"fail_at": 2}, "constraints": {"data_classification": "T2"}}
        session_id = await caller.accepted(**told)
        await caller.closed(session_id)
        named = change.get("context", {}).get("last_checkpoint", "ckpt-{}-000002")
        context = {"last_checkpoint": named.format(session_id) if isinstance(named, str) else named}
        refused = await caller.rejected(Caller.submission(**{**told, **change, "context": context}))
        assert refused["reason_code"] == "invalid_input"
        assert word in refused["reason_message"]
        assert refused["suggestion"]


async def test_anothers_checkpoint_is_none_and_a_running_jobs_is_not_to_be_had(look):
    async with look(capability(function=TWO, concurrent_limit=3)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        world.gate("g").open()
        await caller.closed(session_id)
        context = {"last_checkpoint": f"ckpt-{session_id}-000001"}
        refused = await world.caller(BOB).rejected(Caller.submission(context=context))
        assert "no checkpoint of a session of yours" in refused["reason_message"]


async def test_a_function_that_has_changed_does_not_follow_old_outcomes(look):
    async with look(capability(function=counting(5))) as world:
        caller = world.caller()
        session_id = await caller.accepted(inputs={"fail_at": 2})
        checkpoint = (await caller.outcome(session_id))["error_details"]["last_checkpoint"]
        changed = capability(function=scripted(step("set", line=1, value=1)))
        world.parts.extras["hcp"].capabilities._by_name["look"] = changed
        again = await caller.accepted(inputs={"fail_at": 2}, context={"last_checkpoint": checkpoint})
        failed = await caller.outcome(again)
        assert failed["error_code"] == "input_error"
        assert failed["error_details"]["reason"] == "checkpoint_does_not_fit"
        assert "operation 1 is bench.set" in failed["error_message"]
        assert "on record it is bench.read" in failed["error_message"]


# --- the daemon dies -------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "hcp L4 Partial Results",
    "is",
    "error_details.last_checkpoint: The last checkpoint ID, enabling the caller to potentially resubmit with "
    "recovery context",
)
async def test_a_daemon_that_was_killed_says_at_its_next_start_how_its_jobs_ended_and_they_can_go_on(look, tmp_path):
    document = Caller.submission()
    script = reading(*(step("read", tag=f"n{n}", **({"gate": "g"} if n == 2 else {})) for n in range(4)))
    async with killed(tmp_path, capability(function=script)) as world:
        caller = world.caller()
        session_id = (await caller.reply(document))["session_id"]
        await world.gate("g").reached()
    async with look(capability(function=script)) as world:
        world.gate("g").open()
        caller = world.caller()
        await caller.send(document)
        message_log = await caller.closed(session_id)
        failed = message_log[-2]["payload"]
        assert failed["error_code"] == "internal_error"
        checkpoint = f"ckpt-{session_id}-000002"
        assert failed["error_details"] == {
            "phase": "work",
            "step": 3,
            "last_checkpoint": checkpoint,
            "recoverable": True,
            "reason": "daemon_ended",
        }
        assert failed["execution_summary"]["steps_executed"] == 2
        sequences = [event["sequence"] for event in caller.events_in(session_id)]
        assert sequences == sorted(set(sequences))
        (record,) = world.records("hcp.recover")
        assert record["last_checkpoint"] == checkpoint
        again = await caller.accepted(context={"last_checkpoint": checkpoint})
        await caller.closed(again)
        assert world.observer.labels("begin") == ["n2", "n3"]


async def test_a_daemon_that_was_killed_while_a_job_was_aborted_says_that_it_was_aborted(look, tmp_path):
    async with killed(tmp_path, capability(function=TWO)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        await caller.send(Caller.abortion(session_id))
        await caller.told(session_id, "state_changed", 2)
    async with look(capability(function=TWO)) as world:
        caller = world.caller()
        await caller.call("hcp.attach", session_id=session_id, from_sequence=0)
        message_log = await caller.closed(session_id)
        assert message_log[-1]["payload"]["data"]["final_state"] == "ABORTED"
