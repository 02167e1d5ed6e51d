"""The caller's side against a callee that does as a test says: answers, events and outcomes find who waits for them."""

import logging
import sys
from datetime import timedelta

import pytest
import trio
from support.hcp_callee import OTHER, SESSION, accepted, delegated, joined, written
from support.steps import within_real_seconds

import hearth
from hearth import CarrierError, InvalidParams, JobFailed, JobRejected, SessionInvalid
from hearth.client import job_stream
from hearth.hcp.messages import (
    Artifact,
    ErrorDetails,
    ExecutionSummary,
    MessageError,
    TaskCompleted,
    TaskFailed,
)
from hearth.protocol.client import ProtocolViolation

DONE = TaskCompleted(
    outputs={"mean": 21.5},
    artifacts=(Artifact(name="samples", type="text/csv", uri=f"hcp://{SESSION}/artifacts/samples.csv"),),
    execution_summary=ExecutionSummary(duration=timedelta(seconds=2), steps_executed=4),
)


@pytest.fixture(autouse=True)
def bounded():
    """Break a test off that hangs. An async fixture that no test names ends before the test begins."""
    with within_real_seconds(60):
        yield


@pytest.fixture
async def ends():
    async with joined() as pair:
        yield pair


async def collected(events):
    return [event.sequence async for event in events]


# --- handing over ---------------------------------------------------------------------------------------------------


async def test_what_is_delegated_goes_out_as_the_task_submit_of_the_page(ends):
    client, callee = ends
    given = {
        "capability_version": "1.x",
        "caller_id": "harness-alpha-001",
        "max_duration": timedelta(hours=72),
        "confidence_threshold": 0.95,
        "data_classification": "T2",
        "priority": "high",
        "expected_output": {"format": "f", "required_fields": ["mean"], "schema": {"type": "object"}},
        "context": {"purpose": "to know", "references": ["doi:10.1021/nl903868w"], "last_checkpoint": "ckpt-1"},
        "message_id": "msg-001",
    }
    async with delegated(client, callee, "survey", "How warm?", {"sensor": "a"}, **given) as job:
        (sent,) = callee.messages("task_submit")
        assert sent == {
            "hcp_version": "1.0",
            "message_id": "msg-001",
            "timestamp": sent["timestamp"],
            "session_id": None,
            "type": "task_submit",
            "payload": {
                "capability": "survey",
                "capability_version": "1.x",
                "caller_id": "harness-alpha-001",
                "intent": "How warm?",
                "inputs": {"sensor": "a"},
                "constraints": {
                    "max_duration": "P3D",
                    "confidence_threshold": 0.95,
                    "data_classification": "T2",
                    "priority": "high",
                },
                "expected_output": {"format": "f", "required_fields": ["mean"], "schema": {"type": "object"}},
                "context": given["context"],
            },
        }
        assert (job.session_id, job.accepted.risk_level, job.state) == (SESSION, "R2", "PENDING")


async def test_a_duration_may_be_written_as_iso_8601(ends):
    client, callee = ends
    async with delegated(client, callee, "look", "to see", {}, max_duration="PT72H"):
        assert callee.messages("task_submit")[0]["payload"]["constraints"]["max_duration"] in ("PT72H", "P3D")


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"max_duration": "soon"}, "/payload/constraints/max_duration"),
        ({"data_classification": "T9"}, "/payload/constraints/data_classification"),
        ({"confidence_threshold": 2}, "/payload/constraints/confidence_threshold"),
        ({"expected_output": ["mean"]}, "/payload/expected_output"),
        ({"message_id": ""}, "/message_id"),
    ],
)
async def test_an_argument_that_hcp_does_not_have_is_refused_before_anything_is_sent(ends, wrong, pointer):
    client, callee = ends
    with pytest.raises(MessageError) as refused:
        await client.delegate("look", "to see", {}, **wrong)
    assert refused.value.pointer == pointer
    assert callee.heard == []


async def test_inputs_that_json_cannot_say_are_refused_before_anything_is_sent(ends):
    client, callee = ends
    with pytest.raises((InvalidParams, MessageError)):
        await client.delegate("look", "to see", {"when": {1, 2}})
    assert callee.heard == []


async def test_answers_find_their_submission_whatever_their_order(ends):
    client, callee = ends
    sessions = {}

    async def delegate(name):
        sessions[name] = (await client.delegate(name, "to see", {})).session_id

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delegate, "one")
        nursery.start_soon(delegate, "two")
        await callee.hears("task_submit", 2)
        by_name = {submit["payload"]["capability"]: submit for submit in callee.messages("task_submit")}
        await callee.accept(by_name["two"], OTHER)
        await callee.accept(by_name["one"], SESSION)
    assert sessions == {"one": SESSION, "two": OTHER}


async def test_an_answer_that_names_no_message_answers_the_oldest_submission(ends):
    client, callee = ends
    sessions = {}

    async def delegate(name):
        sessions[name] = (await client.delegate(name, "to see", {})).session_id

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delegate, "one")
        await callee.hears("task_submit")
        nursery.start_soon(delegate, "two")
        submit = await callee.hears("task_submit", 2)
        answer = written(accepted())
        # Sent again it answers nobody.
        await callee.say(answer, answer)
        await callee.accept(submit, OTHER)
    assert sessions == {"one": SESSION, "two": OTHER}


async def test_a_rejection_has_its_code_its_message_its_suggestion_and_the_risk(ends):
    client, callee = ends

    async def refuse():
        await callee.reject(
            await callee.hears("task_submit"),
            "risk_too_high",
            suggestion="cool it",
            assessed_risk_level="R4",
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        with pytest.raises(JobRejected) as refused:
            await client.delegate("look", "to see", {})
    error = refused.value
    assert (error.reason_code, error.message, error.suggestion, error.assessed_risk) == (
        "risk_too_high", "no", "cool it", "R4",
    )  # fmt: skip
    assert str(error) == "risk_too_high: no (cool it)"


@pytest.mark.spec(
    "hcp L1 Delivery Guarantees",
    "SHOULD",
    "If the caller does not receive a task_accepted or task_rejected within a configurable timeout, it SHOULD "
    "republish the task_submit with the same message_id.",
)
async def test_the_same_message_handed_over_twice_is_one_job_to_both(ends):
    client, callee = ends
    jobs = []

    async def delegate():
        jobs.append(await client.delegate("look", "to see", {}, message_id="msg-1"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delegate)
        nursery.start_soon(delegate)
        submit = await callee.hears("task_submit", 2)
        await callee.accept(submit)
    await callee.tell(DONE)
    assert [(await job.wait()).outputs for job in jobs] == [{"mean": 21.5}] * 2


@pytest.mark.parametrize("bare", [True, False])
async def test_a_file_may_have_a_whole_message_or_its_payload(ends, bare):
    client, callee = ends
    payload = {"capability": "look", "caller_id": "c", "intent": "to see", "inputs": {}}
    whole = {"hcp_version": "1.0", "message_id": "...", "timestamp": "...", "session_id": None, "type": "task_submit"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.hand_over, payload if bare else {**whole, "payload": payload})
        submit = await callee.hears("task_submit")
        await callee.accept(submit)
    assert submit["payload"] == payload
    assert len(submit["message_id"]) == 36, "an id that is elided is none"


async def test_a_file_keeps_its_message_id_unless_another_is_named(ends):
    client, callee = ends
    document = written_submit("msg-7")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.hand_over, document)
        await callee.accept(await callee.hears("task_submit"))
        nursery.start_soon(lambda: client.hand_over(document, message_id="msg-8"))
        await callee.accept(await callee.hears("task_submit", 2), OTHER)
    assert [submit["message_id"] for submit in callee.messages("task_submit")] == ["msg-7", "msg-8"]
    with pytest.raises(MessageError):
        await client.hand_over(document, message_id="\n")


def written_submit(message_id):
    payload = {"capability": "look", "caller_id": "c", "intent": "to see", "inputs": {}}
    return {
        "hcp_version": "1.0",
        "message_id": message_id,
        "timestamp": "2026-04-19T22:48:01.000Z",
        "session_id": None,
        "type": "task_submit",
        "payload": payload,
    }


# --- callers that go ------------------------------------------------------------------------------------------------


async def test_a_job_whose_caller_has_gone_is_aborted_as_soon_as_it_is_accepted():
    async with joined() as (client, callee):
        with trio.CancelScope() as gone:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.delegate, "look", "to see", {})
                submit = await callee.hears("task_submit")
                gone.cancel()
        assert callee.messages("abort") == []
        while not (withdrawn := callee.asked("hcp.withdraw")):
            await trio.lowlevel.checkpoint()
        assert withdrawn == [{"message_id": submit["message_id"], "reason": "its caller has gone"}]
        await callee.accept(submit)
        abort = await callee.hears("abort")
        assert (abort["session_id"], abort["payload"]["session_token"]) == (SESSION, "token-of-the-session")


async def test_a_connection_is_not_closed_before_what_was_left_behind_is_taken_back():
    closed = trio.Event()
    async with joined() as (client, callee):
        with trio.CancelScope() as gone:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.delegate, "look", "to see", {})
                submit = await callee.hears("task_submit")
                gone.cancel()

        async def close():
            await client._settle()
            closed.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            await trio.testing.wait_all_tasks_blocked()
            assert not closed.is_set()
            await callee.accept(submit)
            await callee.hears("abort")
            await closed.wait()


@pytest.mark.parametrize("rejected", [True, False])
async def test_a_job_with_an_id_of_its_callers_goes_on_and_one_that_is_rejected_needs_nothing(ends, rejected):
    client, callee = ends
    with trio.CancelScope() as gone:
        async with trio.open_nursery() as nursery:
            more = {} if rejected else {"message_id": "msg-1"}
            nursery.start_soon(lambda: client.delegate("look", "to see", {}, **more))
            submit = await callee.hears("task_submit")
            gone.cancel()
    if rejected:
        await callee.reject(submit)
    else:
        await callee.accept(submit)
    # The next exchange is behind it.
    async with delegated(client, callee, session_id=OTHER):
        assert callee.messages("abort") == []
        assert client.job_router().abandoned == 0


async def test_of_two_who_asked_for_the_same_job_one_may_go(ends):
    client, callee = ends
    document = written_submit("msg-9")
    with trio.CancelScope() as gone:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.hand_over, document)
            await callee.hears("task_submit")
            gone.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.hand_over, document)
        await callee.accept(await callee.hears("task_submit", 2))
    assert callee.messages("abort") == []


# --- following ------------------------------------------------------------------------------------------------------


async def test_events_come_once_and_in_order_and_end_with_the_session(ends):
    client, callee = ends
    async with delegated(client, callee) as job:
        events = job.events()
        await callee.event(1, "session_created", state="PENDING", risk_level="R2", session_token="t")
        assert (await anext(events)).event_type == "session_created"
        await callee.event(3, "state_changed", from_state="PENDING", to_state="RUNNING")
        for sequence in (2, 2, 1, 4):
            await callee.event(sequence)
        await callee.tell(DONE)
        await callee.close(5)
        assert await collected(events) == [2, 3, 4, 5]
        assert (job.last_processed_sequence, job.state, job.ended) == (5, "COMPLETED", True)


async def test_a_timeout_around_one_event_loses_none(ends):
    client, callee = ends
    async with delegated(client, callee) as job:
        events = job.events()
        with trio.move_on_after(0):
            await anext(events)
        await callee.event(1)
        assert (await anext(events)).sequence == 1


async def test_events_of_two_jobs_on_one_connection_are_kept_apart(ends):
    client, callee = ends
    async with delegated(client, callee) as one, delegated(client, callee, session_id=OTHER) as two:
        await callee.event(1, session_id=OTHER)
        await callee.event(1)
        await callee.event(2, session_id=OTHER)
        await callee.close(2)
        await callee.close(3, session_id=OTHER)
        assert await collected(one.events()) == [1, 2]
        assert await collected(two.events()) == [1, 2, 3]


async def test_an_event_of_a_kind_that_is_not_known_here_is_passed_on(ends):
    client, callee = ends
    async with delegated(client, callee) as job:
        new = written(DONE) | {"type": "event"}
        await callee.say({**new, "payload": {"event_type": "tool_start", "sequence": 1, "data": {"tool": "x"}}})
        await callee.close(2)
        events = [event async for event in job.events()]
        assert (events[0].event_type, events[0].data) == ("tool_start", {"tool": "x"})
        assert [event.sequence for event in events] == [1, 2]


async def test_a_message_that_cannot_be_read_is_passed_over_with_a_warning(ends, caplog):
    client, callee = ends
    async with delegated(client, callee) as job:
        with caplog.at_level(logging.WARNING, "hearth.client.jobs"):
            whole = written(DONE)
            await callee.say({**whole, "type": "event", "payload": {"event_type": "progress"}})
            await callee.say({"hcp_version": "1.0"}, {**whole, "type": "gossip"}, {**whole, "session_id": 7})
            await callee.tell(accepted())
            await callee.tell(DONE, OTHER)
            await callee.tell(DONE)
            assert (await job.wait()).completed
    assert len(caplog.records) == 4
    assert all("cannot be read" in record.getMessage() for record in caplog.records)


async def test_an_outcome_that_cannot_be_read_ends_the_waiting_for_it_and_nothing_else(ends):
    client, callee = ends
    async with delegated(client, callee) as job, delegated(client, callee, session_id=OTHER) as other:
        broken = written(DONE)
        await callee.say({**broken, "payload": {"outputs": "many"}})
        with pytest.raises(ProtocolViolation, match="outputs"):
            await job.wait()
        with pytest.raises(ProtocolViolation):
            await anext(job.events())
        await callee.tell(DONE, OTHER)
        assert (await other.wait()).completed


async def test_an_answer_that_cannot_be_read_ends_the_waiting_for_it(ends):
    client, callee = ends

    async def answer():
        submit = await callee.hears("task_submit")
        payload = {"session_token": "t", "risk_level": "R9", "in_reply_to": submit["message_id"]}
        await callee.say({**written(accepted()), "payload": payload})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with pytest.raises(ProtocolViolation, match="risk_level"):
            await client.delegate("look", "to see", {})


async def test_a_second_reader_has_everything_sent_again_and_the_first_sees_nothing_of_it(ends):
    client, callee = ends
    callee.answers["hcp.attach"] = {"session_id": SESSION, "state": "RUNNING", "last_sequence": 2}
    async with delegated(client, callee) as job:
        first = job.events()
        await callee.event(1)
        await callee.event(2)
        assert [(await anext(first)).sequence for _ in range(2)] == [1, 2]
        got = []

        async def second():
            got.extend(await collected(job.events()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(second)
            await trio.testing.wait_all_tasks_blocked()
            for sequence in (1, 2, 3):
                await callee.event(sequence)
            await callee.close(4)
            assert await collected(first) == [3, 4]
        assert got == [1, 2, 3, 4]
        assert callee.asked("hcp.attach") == [{"session_id": SESSION, "from_sequence": 0}]


async def test_a_reader_that_falls_behind_has_the_rest_sent_again(ends, monkeypatch):
    monkeypatch.setattr(job_stream, "MESSAGES_KEPT", 4)
    client, callee = ends
    told = [*range(1, 11)]

    def attached(params):
        first = params["from_sequence"]

        async def again():
            for sequence in told[first - 1 :]:
                await callee.event(sequence)
            await callee.close(11)

        nursery.start_soon(again)
        return {"session_id": SESSION, "state": "COMPLETED", "last_sequence": 11}

    callee.answers["hcp.attach"] = attached
    async with delegated(client, callee) as job, trio.open_nursery() as nursery:
        for sequence in told:
            await callee.event(sequence)
        await callee.close(11)
        # All has been heard when the job has.
        assert (await job.wait()).completed
        assert await collected(job.events()) == [*told, 11]
        assert callee.asked("hcp.attach")[0] == {"session_id": SESSION, "from_sequence": 4}


# --- how it ends ----------------------------------------------------------------------------------------------------


async def test_a_job_that_completed_has_its_outputs_its_artifacts_and_its_summary(ends):
    client, callee = ends
    async with delegated(client, callee) as job:
        await callee.tell(DONE)
        result = await job.wait()
    assert result.raise_for_state() is result
    assert (result.state, result.outputs, result.artifacts, result.summary) == (
        "COMPLETED", DONE.outputs, DONE.artifacts, DONE.execution_summary,
    )  # fmt: skip


async def test_a_job_that_failed_says_where_why_and_what_there_is_of_it(ends):
    client, callee = ends
    failed = TaskFailed(
        error_code="timeout",
        error_message="too late",
        error_details=ErrorDetails(phase="sampling", step=3, last_checkpoint="ckpt-3", recoverable=True, reason="slow"),
        partial_outputs={"n": 3},
        artifacts=DONE.artifacts,
        execution_summary=DONE.execution_summary,
    )
    async with delegated(client, callee) as job:
        await callee.tell(failed)
        result = await job.wait()
    assert (result.state, result.error_code, result.outputs, result.details) == (
        "FAILED", "timeout", {"n": 3}, failed.error_details,
    )  # fmt: skip
    with pytest.raises(JobFailed, match=rf"job {SESSION} FAILED \(timeout\): too late") as raised:
        result.raise_for_state()
    assert raised.value.error_code == "timeout"


@pytest.mark.parametrize("readable", [True, False])
async def test_a_job_that_was_aborted_has_what_its_last_event_says_of_it(ends, readable):
    client, callee = ends
    whole = written(DONE)["payload"]
    async with delegated(client, callee) as job:
        await callee.close(
            1,
            "ABORTED",
            reason="enough",
            partial_outputs={"n": 3},
            artifacts=whole["artifacts"] if readable else "none",
            execution_summary=whole["execution_summary"],
        )
        result = await job.wait()
    assert (result.state, result.reason) == ("ABORTED", "enough")
    assert result.outputs == ({"n": 3} if readable else {})
    assert result.artifacts == (DONE.artifacts if readable else ())
    with pytest.raises(JobFailed, match="ABORTED: enough"):
        result.raise_for_state()


@pytest.mark.spec(
    "hcp L2 Abort Protocol",
    "SHOULD",
    "The caller SHOULD treat ABORTING as a transient state that will resolve to ABORTED.",
)
async def test_abort_returns_when_the_job_is_ending(ends):
    client, callee = ends
    states = []
    async with delegated(client, callee) as job:

        async def abort():
            states.append(await job.abort("enough"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(abort)
            sent = await callee.hears("abort")
            assert sent["session_id"] == SESSION
            assert sent["payload"] == {"reason": "enough", "session_token": "token-of-the-session"}
            await callee.event(1)
            await trio.testing.wait_all_tasks_blocked()
            assert states == []
            await callee.event(2, "state_changed", from_state="RUNNING", to_state="ABORTING")
        assert states == ["ABORTING"]
        await callee.close(3, "ABORTED")
        assert (await job.wait()).state == "ABORTED"
        assert await job.abort() == "ABORTED"
    assert len(callee.messages("abort")) == 1, "what has ended needs no abort"


async def test_an_abort_that_is_refused_raises_why(ends):
    client, callee = ends
    async with delegated(client, callee) as job:

        async def refuse():
            await callee.reject(await callee.hears("abort"), "unauthorized")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse)
            with pytest.raises(JobRejected) as refused:
                await job.abort()
    assert refused.value.reason_code == "unauthorized"


async def test_the_refusal_of_an_abort_that_came_too_late_is_how_the_job_ended(ends):
    client, callee = ends
    async with delegated(client, callee) as job:

        async def refuse():
            abort = await callee.hears("abort")
            await callee.tell(DONE)
            await callee.reject(abort, "unknown_session")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse)
            assert await job.abort() == "COMPLETED"


@pytest.mark.parametrize("final_state", ["COMPLETED", "ABORTED"])
async def test_an_abort_that_is_answered_with_how_the_job_has_ended_returns_that(ends, final_state):
    client, callee = ends
    async with delegated(client, callee) as job:

        async def answer():
            await callee.reject(await callee.hears("abort"), "session_ended", final_state=final_state)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            assert await job.abort() == final_state


# --- a callee that leaves its session open --------------------------------------------------------------------------


async def test_a_callee_that_never_closes_its_session_keeps_no_reader(ends, monkeypatch, caplog):
    monkeypatch.setattr(job_stream, "CLOSING_TIMEOUT", 0.05)
    client, callee = ends
    async with delegated(client, callee) as job:
        await callee.event(1)
        await callee.tell(DONE)
        assert await collected(job.events()) == [1]
        assert (await job.wait()).outputs == {"mean": 21.5}
        assert await job.abort() == "COMPLETED"
    assert "no session_closed has come" in caplog.text


@pytest.mark.parametrize("state", ["ABORTED", "FAILED"])
async def test_a_callee_that_ends_in_a_state_and_tells_no_outcome_keeps_no_caller(ends, monkeypatch, caplog, state):
    monkeypatch.setattr(job_stream, "CLOSING_TIMEOUT", 0.05)
    client, callee = ends
    async with delegated(client, callee) as job:
        await callee.event(1, "state_changed", from_state="ABORTING", to_state=state)
        assert await collected(job.events()) == [1]
        assert (await job.wait()).state == state
    assert "no outcome has come" in caplog.text


async def test_an_outcome_is_told_once_however_often_a_callee_sends_one(ends):
    client, callee = ends
    async with delegated(client, callee) as job:
        await callee.tell(DONE)
        await callee.tell(TaskFailed(error_code="internal_error", error_message="after all"))
        await callee.close(1)
        kinds = [message.type async for message in job.messages()]
        assert kinds == ["task_accepted", "task_completed", "event"]
        assert (await job.wait()).completed


# --- connections that end -------------------------------------------------------------------------------------------


async def test_a_waiter_is_told_when_the_connection_ends(ends):
    client, callee = ends
    async with delegated(client, callee) as job:

        async def raises(work):
            with pytest.raises(CarrierError, match="the connection ended"):
                await work()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(raises, job.wait)
            nursery.start_soon(raises, job.events().__anext__)
            nursery.start_soon(raises, job.abort)
            nursery.start_soon(raises, lambda: client.delegate("look", "to see", {}))
            await callee.hears("task_submit", 2)
            await callee.hears("abort")
            await trio.testing.wait_all_tasks_blocked()
            await callee.stream.aclose()
        await raises(lambda: client.delegate("look", "to see", {}))
        await raises(lambda: client.attach_job(SESSION))


async def test_an_outcome_that_has_come_outlives_the_connection(ends):
    client, callee = ends
    async with delegated(client, callee) as job:
        await callee.event(1)
        await callee.tell(DONE)
        await callee.stream.aclose()
        while not job.ended:
            await trio.lowlevel.checkpoint()
        assert (await job.wait()).completed
        events = job.events()
        assert (await anext(events)).sequence == 1
        with pytest.raises(CarrierError):
            await anext(events)


async def test_a_client_that_was_used_for_nothing_else_when_its_connection_ended_says_so(ends):
    client, callee = ends
    await callee.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(CarrierError, match="the connection ended"):
        await client.delegate("look", "to see", {})


async def test_hcp_messages_for_a_client_that_has_handed_nothing_over_are_passed_over(ends):
    client, callee = ends
    await callee.tell(DONE)
    callee.answers["hcp.capabilities"] = {"capabilities": []}
    assert await client.capabilities() == []


# --- coming back ----------------------------------------------------------------------------------------------------


async def attached(client, callee, from_sequence, *, state="RUNNING", last_sequence, then):
    async def again():
        for payload in then:
            await (callee.event(payload) if isinstance(payload, int) else callee.tell(payload))

    def answer(_params):
        nursery.start_soon(again)
        return {"session_id": SESSION, "state": state, "last_sequence": last_sequence}

    callee.answers["hcp.attach"] = answer
    async with trio.open_nursery() as nursery:
        return await client.attach_job(SESSION, from_sequence)


async def test_a_caller_that_comes_back_goes_on_behind_what_it_has_processed(ends):
    client, callee = ends
    job = await attached(client, callee, 4, last_sequence=4, then=[4, DONE])
    await callee.close(5)
    assert callee.asked("hcp.attach") == [{"session_id": SESSION, "from_sequence": 4}]
    assert await collected(job.events()) == [4, 5]
    assert (await job.wait()).outputs == {"mean": 21.5}
    assert (job.accepted, job.entry["last_sequence"]) == (None, 4)
    assert repr(job) == f"<job {SESSION} COMPLETED>"


async def test_a_caller_that_comes_back_to_the_beginning_has_the_acceptance_too(ends):
    client, callee = ends
    job = await attached(client, callee, 1, last_sequence=1, then=[accepted(), 1])
    assert callee.asked("hcp.attach") == [{"session_id": SESSION, "from_sequence": 0}]
    messages = job.messages()
    assert [(await anext(messages)).type for _ in range(2)] == ["task_accepted", "event"]
    assert job.accepted.session_token == "token-of-the-session"


@pytest.mark.parametrize("state", ["COMPLETED", "ABORTED"])
async def test_a_caller_that_has_processed_everything_still_finds_the_outcome(ends, state):
    client, callee = ends
    asked = []

    def answer(params):
        asked.append(params["from_sequence"])
        if params["from_sequence"] <= 5:
            nursery.start_soon(again)
        return {"session_id": SESSION, "state": state, "last_sequence": 5}

    async def again():
        if state == "COMPLETED":
            await callee.tell(DONE)
        await callee.close(5, state)

    callee.answers["hcp.attach"] = answer
    async with trio.open_nursery() as nursery:
        job = await client.attach_job(SESSION, 6)
        assert (await job.wait()).state == state
        assert await collected(job.events()) == []
    assert asked == [6, 5]


async def test_an_unknown_job_raises_what_the_daemon_says(ends):
    client, callee = ends
    callee.answers["hcp.attach"] = {"code": -32000, "message": "no such job"}
    with pytest.raises(SessionInvalid, match="no such job"):
        await client.attach_job(SESSION)
    async with delegated(client, callee) as job:
        again = job.events(from_sequence=5)
        with pytest.raises(SessionInvalid):
            await anext(again)


# --- the short questions --------------------------------------------------------------------------------------------


async def test_the_lists_are_what_the_daemon_answers(ends):
    client, callee = ends
    callee.answers = {
        "hcp.capabilities": {"capabilities": [{"capability": {"name": "look"}}]},
        "hcp.sessions": {"sessions": [{"session_id": SESSION}]},
        "hcp.pending": {"approvals": [{"approval_id": "A1"}]},
    }
    assert await client.capabilities() == [{"capability": {"name": "look"}}]
    assert await client.jobs() == [{"session_id": SESSION}]
    assert await client.pending_approvals() == [{"approval_id": "A1"}]
    await client.decide("A1", approve=False, reason="too hot")
    assert callee.asked("hcp.decide") == [{"approval_id": "A1", "approve": False, "reason": "too hot"}]
    callee.answers["hcp.sessions"] = {}
    with pytest.raises(ProtocolViolation, match=r"hcp\.sessions"):
        await client.jobs()


@pytest.mark.slow
async def test_a_client_that_hands_nothing_over_imports_nothing_for_it():
    heavy = {"hearth.hcp", "isodate", "hearth.client.job_stream"}
    code = f"import hearth.client.connection, sys; print({heavy} & set(sys.modules))"
    done = await trio.run_process([sys.executable, "-c", code], capture_stdout=True)
    assert done.stdout == b"set()\n"


async def test_the_names_of_a_caller_are_public():
    for name in ("ArtifactDamaged", "JobHandle", "JobEvent", "JobFailed", "JobRejected", "JobResult"):
        assert name in hearth.__all__
        assert getattr(hearth, name).__name__ == name
