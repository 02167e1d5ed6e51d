"""What HCP's pages promise of messages and sessions (L1, L2): each test is a sentence or a few of theirs."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID

import pytest
import trio
from support.hcp import Caller, capability, gated, hcp_world, reading, scripted, sequences, step
from support.world import ALICE, NOON

from hearth.hcp.codec import read_message
from hearth.hcp.messages import read_duration, read_instant

pytestmark = pytest.mark.usefixtures("bounded")

ENVELOPE = "hcp L1 Message Envelope"
DELIVERY = "hcp L1 Delivery Guarantees"
STREAM = "hcp L1 Stream Continuity"
ENCODING = "hcp L1 Encoding"
STATE = "hcp L2 State Definitions"
ORDER = "hcp L2 Event Ordering"
CHECKPOINT = "hcp L2 Checkpoint & Recovery"
TIMEOUT = "hcp L2 Session Timeout"
ABORT = "hcp L2 Abort Protocol"
CODES = "hcp L4 Standard Error Codes"
PARTIAL = "hcp L4 Partial Results"


@pytest.fixture
def place(tmp_path):
    return tmp_path / "hcp"


# --- L1: messages and their delivery ----------------------------------------------------------------------------------


@pytest.mark.spec(
    ENVELOPE, "is", "Every HCP message is wrapped in a standard envelope, carried as the AMQP message body:"
)
@pytest.mark.spec(
    ENVELOPE,
    "MUST",
    "null only in the initial task_submit message. All subsequent messages MUST include a valid session ID",
)
@pytest.mark.spec(DELIVERY, "is", "Each event carries a unique message_id.")
@pytest.mark.spec(ENCODING, "MUST", "Timestamps MUST use ISO 8601 format in UTC (e.g., 2025-01-15T08:30:00.000Z).")
async def test_every_message_of_a_job_has_the_whole_envelope_and_ids_of_its_own(place) -> None:
    async with hcp_world(place) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        message_log = await caller.closed(session_id)
    assert UUID(session_id).version == 4
    for one in message_log:
        assert set(one) == {"hcp_version", "message_id", "timestamp", "session_id", "type", "payload"}
        assert one["session_id"] == session_id
        assert UUID(one["message_id"]).version == 4
        assert read_instant(one["timestamp"]).timestamp() >= NOON
        read_message(one)
    assert len({one["message_id"] for one in message_log}) == len(message_log)


@pytest.mark.spec("hcp L1 Message Types")
@pytest.mark.spec("hcp L4 Task Completion")
@pytest.mark.spec("hcp L4 Task Failure")
async def test_a_job_is_accepted_or_rejected_told_of_and_completed_failed_or_aborted(place) -> None:
    offered = capability(), capability("broken", reading(step("fail"))), gated(name="held")
    async with hcp_world(place, *offered) as world:
        caller = world.caller()
        done = await caller.closed(await caller.accepted())
        failed = await caller.closed(await caller.accepted("broken"))
        held = await caller.accepted("held")
        await caller.send(caller.abortion(held))
        world.gate("g").open()
        aborted = await caller.closed(held)
        await caller.rejected(caller.submission("nothing"))
    for message_log, *rest in ((done, "task_completed"), (failed, "task_failed"), (aborted,)):
        assert [one["type"] for one in message_log if one["type"] != "event"] == ["task_accepted", *rest]
        assert (message_log[0]["type"], message_log[-1]["type"]) == ("task_accepted", "event")


@pytest.mark.spec(ENCODING, "MUST", "All message bodies MUST be encoded as UTF-8 JSON.")
async def test_a_message_is_one_line_of_json_in_utf_8(place) -> None:
    async with hcp_world(place, capability(function=reading(step("read", tag="Größe 𝔘")))) as world:
        caller = world.caller()
        document = caller.submission(inputs={"ü": "Größe 𝔘\n"})
        await caller.send(json.dumps(document, ensure_ascii=False).encode())
        await caller.until(lambda: caller.replies(document["message_id"]))
        completed = await caller.outcome(caller.replies(document["message_id"])[0]["session_id"])
        assert completed["outputs"]["tag"] == "Größe 𝔘"
        await caller.send(json.dumps(document, ensure_ascii=False).encode("latin-1", "replace"))
        await caller.until(lambda: any("error" in one for one in caller.documents))
    assert [one["error"]["code"] for one in caller.documents if "error" in one] == [-32700]


@pytest.mark.spec(DELIVERY, "MUST", "The callee MUST deduplicate on message_id.")
async def test_a_repeated_submit_gets_the_first_answer_and_runs_nothing_again(place) -> None:
    async with hcp_world(place) as world:
        caller = world.caller()
        document = caller.submission(message_id="msg-001")
        first = await caller.reply(document)
        await caller.closed(first["session_id"])
        other = world.caller()
        assert await other.reply(document) == first
        assert [one["event"] for one in world.records("hcp.accept")] == ["hcp.accept"]
        other = world.caller()
        refusal = await other.rejected({**document, "payload": {**document["payload"], "intent": "another"}})
    assert refusal["reason_code"] == "message_id_reused"
    async with hcp_world(place) as world:
        caller = world.caller()
        assert await caller.reply(document) == first
        assert (await caller.closed(first["session_id"]))[-1]["payload"]["event_type"] == "session_closed"
        assert world.records("hcp.accept") == []


@pytest.mark.spec(
    DELIVERY,
    "is",
    "Events published while the caller is disconnected are retained in the queue until the caller reconnects and "
    "consumes them.",
)
@pytest.mark.spec(
    STREAM,
    "is",
    "A core requirement of HCP is that the event stream between callee and caller remains stable and lossless even "
    "when the caller crashes, restarts, or experiences network interruption.",
)
@pytest.mark.spec(
    STREAM,
    "is",
    "In all cases, the event stream must resume from exactly where it left off — no lost events, no gaps, no duplicate "
    "processing.",
)
@pytest.mark.spec(STREAM, "is", "The callee's execution is completely decoupled from the caller's connection state")
async def test_a_caller_that_goes_and_comes_back_reads_on_where_it_was(place) -> None:
    async with hcp_world(place, gated()) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        read = list(caller.message_log(session_id))
        await caller.close()
        world.gate("g").open()
        watcher = world.caller()
        await watcher.call("hcp.attach", session_id=session_id, from_sequence=0)
        whole = await watcher.closed(session_id)
        back = world.caller()
        await back.call("hcp.attach", session_id=session_id, from_sequence=sequences(read)[-1] + 1)
        assert read + await back.closed(session_id) == whole
    async with hcp_world(place, gated()) as world:
        back = world.caller()
        await back.call("hcp.attach", session_id=session_id, from_sequence=sequences(read)[-1] + 1)
        assert read + await back.closed(session_id) == whole


@pytest.mark.spec(STREAM, "is", "the callee never blocks or pauses because of the caller.")
async def test_a_caller_that_does_not_read_holds_up_no_job(place) -> None:
    async with hcp_world(place) as world:
        deaf = Caller(world.pipes(ALICE, room=1))
        await deaf.send(deaf.submission())
        watcher = world.caller()
        while not (found := (await watcher.call("hcp.sessions"))["sessions"]):
            await trio.lowlevel.checkpoint()
        await watcher.call("hcp.attach", session_id=found[0]["session_id"], from_sequence=0)
        assert "outputs" in await watcher.outcome(found[0]["session_id"])


@pytest.mark.spec(STREAM, "is", "Each session's sequence numbers are independent.")
@pytest.mark.spec(ORDER, "MUST", "Events MUST be emitted with strictly increasing sequence numbers within a session.")
@pytest.mark.spec(DELIVERY, "is", "Events for a session are published sequentially by the callee.")
@pytest.mark.spec(
    "hcp L2 Session",
    "is",
    "It is created when a task passes L3 safety validation and destroyed when the task reaches a terminal state.",
)
async def test_events_are_numbered_from_one_in_each_session_by_itself(place) -> None:
    async with hcp_world(place, capability(concurrent_limit=2)) as world:
        caller = world.caller()
        one, other = await caller.accepted(), await caller.accepted()
        for session_id in (one, other):
            message_log = await caller.closed(session_id)
            assert sequences(message_log) == list(range(1, len(sequences(message_log)) + 1))
            assert message_log[1]["payload"]["event_type"] == "session_created"
            assert message_log[-1]["payload"]["event_type"] == "session_closed"


@pytest.mark.spec(DELIVERY, "is", "Since all commands to a callee go to a single queue, ordering is preserved.")
async def test_an_abort_that_follows_its_submit_finds_the_session(place) -> None:
    async with hcp_world(place, gated()) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.send(caller.abortion(session_id))
        world.gate("g").open()
        assert (await caller.closed(session_id))[-1]["payload"]["data"]["final_state"] == "ABORTED"


@pytest.mark.spec(
    ENCODING, "MUST", "Binary data (files, images, large datasets) MUST be referenced by URI, not embedded inline."
)
@pytest.mark.spec("hcp L4 Artifacts")
async def test_files_are_named_by_a_uri_with_their_size_and_checksum_and_fetched_by_it(place) -> None:
    content = bytes(range(256))

    async def leaves(job):
        job.artifact("raw.bin", content, media_type="application/octet-stream")

    async with hcp_world(place, capability(function=scripted(leaves))) as world:
        caller = world.caller()
        (artifact,) = (await caller.outcome(await caller.accepted()))["artifacts"]
        found = await caller.call("hcp.artifact", uri=artifact["uri"])
    assert artifact["uri"].startswith("hcp://")
    assert (artifact["name"], artifact["type"], artifact["size_bytes"]) == ("raw", "application/octet-stream", 256)
    assert artifact["checksum"].startswith("sha256:")
    assert found["data"].startswith("AAECAwQF")


@pytest.mark.spec(ENCODING, "MUST", "Durations MUST use ISO 8601 duration format (e.g., PT72H, PT2H15M).")
async def test_durations_are_iso_8601_in_both_directions(place) -> None:
    async with hcp_world(place) as world:
        caller = world.caller()
        answer = await caller.reply(caller.submission(constraints={"max_duration": "PT0H0M30S"}))
        completed = await caller.outcome(answer["session_id"])
    assert answer["payload"]["constraints"]["max_duration"] == "PT30S"
    assert read_duration(completed["execution_summary"]["duration"], least=timedelta(0)) < timedelta(seconds=30)


# --- L2: sessions -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("hcp L2 Session Properties")
async def test_a_session_has_the_properties_of_the_page(place) -> None:
    async with hcp_world(place, gated()) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        created = await caller.told(session_id, "session_created")
        (running,) = (await caller.call("hcp.sessions"))["sessions"]
        world.gate("g").open()
        await caller.closed(session_id)
        (ended,) = (await caller.call("hcp.sessions"))["sessions"]
        token = caller.message_log(session_id)[0]["payload"]["session_token"]
    assert UUID(session_id).version == 4
    assert running["session_id"] == session_id
    assert (running["state"], ended["state"]) == ("RUNNING", "COMPLETED")
    assert read_instant(running["created_at"]) <= read_instant(ended["updated_at"])
    assert created["session_token"] == token
    assert created["risk_level"] == ended["risk_level"] == "R3"
    assert (ended["caller_id"], ended["intent"]) == ("harness-of-the-tests", "look at the bench")


@pytest.mark.spec(STATE, "is", "PENDING | Task received, awaiting L3 safety check | task_submit received")
@pytest.mark.spec(STATE, "is", "REJECTED | Task failed L3 safety check (terminal) | L3 rejects task")
@pytest.mark.spec(STATE, "is", "RUNNING | Task is actively being executed by the callee harness | L3 approves task")
@pytest.mark.spec(STATE, "is", "COMPLETED | Task finished successfully (terminal) | Callee reports success")
@pytest.mark.spec(
    STATE, "is", "FAILED | Task terminated due to unrecoverable error (terminal) | Callee reports failure"
)
async def test_the_states_a_session_goes_through_are_told(place) -> None:
    async with hcp_world(place, capability(), capability("broken", reading(step("fail")))) as world:
        caller = world.caller()
        for name, end in (("look", "COMPLETED"), ("broken", "FAILED")):
            session_id = await caller.accepted(name)
            message_log = [one["payload"] for one in await caller.closed(session_id) if one["type"] == "event"]
            moves = [one["data"] for one in message_log if one["event_type"] == "state_changed"]
            assert [(move["from_state"], move["to_state"]) for move in moves] == [
                ("PENDING", "RUNNING"),
                ("RUNNING", end),
            ]
            assert message_log[-1]["data"]["final_state"] == end
        refusal = await caller.rejected(caller.submission("nothing"))
    assert refusal["reason_code"] == "unknown_capability"


@pytest.mark.spec(CHECKPOINT, "is", "When a checkpoint is created, the callee emits a checkpoint_created event.")
@pytest.mark.spec(
    CHECKPOINT,
    "SHOULD",
    'The callee SHOULD emit a state_changed event with reason: "recovered_from_checkpoint" upon recovery.',
)
@pytest.mark.spec(
    PARTIAL,
    "is",
    "error_details.last_checkpoint: The last checkpoint ID, enabling the caller to potentially resubmit with recovery "
    "context",
)
@pytest.mark.spec(PARTIAL, "SHOULD", "When a task fails after producing some results, the callee SHOULD include:")
@pytest.mark.spec(PARTIAL, "is", "partial_outputs: Whatever structured results were produced before failure")
@pytest.mark.spec(PARTIAL, "is", "artifacts: Any artifacts generated before failure")
async def test_a_failed_job_leaves_what_it_has_and_is_gone_on_with_from_its_last_checkpoint(place) -> None:
    failing = [True]

    async def function(job):
        await job.run("bench.set", line=1, value=1)
        job.partial(moves=1)
        job.artifact("log.csv", "moves\n1\n", media_type="text/csv")
        result = await job.run("bench.read", tag="x", **({"bus": "nowhere"} if failing[0] else {}))
        return {"tag": result["tag"]}

    async with hcp_world(place, capability(function=function)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        failed = await caller.outcome(session_id)
        told = await caller.told(session_id, "checkpoint_created")
        failing[0] = False
        last = failed["error_details"]["last_checkpoint"]
        again = await caller.accepted(context={"last_checkpoint": last})
        completed = await caller.outcome(again)
        recovered, _ = caller.events_in(again, "state_changed")
        assert [one["tool"] for one in world.records("task.step.start")] == ["bench.set", "bench.read"]
    assert told["checkpoint_id"] == last
    assert told["resumable"] is True
    assert failed["partial_outputs"] == {"moves": 1}
    assert [artifact["name"] for artifact in failed["artifacts"]] == ["log"]
    assert recovered["data"]["reason"] == "recovered_from_checkpoint"
    assert completed["execution_summary"]["steps_executed"] == 1


@pytest.mark.spec(
    TIMEOUT,
    "SHOULD",
    "The callee SHOULD enforce a maximum session duration, derived from the task's max_duration constraint (L4) or a "
    "system default.",
)
@pytest.mark.spec(
    TIMEOUT, "is", 'If execution exceeds the timeout, the callee transitions to FAILED with reason "timeout".'
)
@pytest.mark.spec(CODES, "is", "timeout | Task exceeded max_duration")
async def test_a_job_past_its_time_has_failed_by_timeout(place) -> None:
    async with hcp_world(place, capability(function=reading(step("nap", ms=900)), tools=["nap"])) as world:
        caller = world.caller()
        session_id = await caller.accepted(constraints={"max_duration": "PT0.05S"})
        failed = await caller.outcome(session_id)
        closed = await caller.told(session_id, "session_closed")
    assert failed["error_code"] == "timeout"
    assert closed == {"final_state": "FAILED", "reason": "timeout"}


@pytest.mark.spec(ABORT, "is", "The session transitions to ABORTING.")
@pytest.mark.spec(
    ABORT, "is", "The callee begins cleanup: stops LLM calls, terminates running tools, releases resources."
)
@pytest.mark.spec(ABORT, "is", "Upon completion, the session transitions to ABORTED.")
@pytest.mark.spec(ABORT, "is", 'The callee emits session_closed with final_state: "ABORTED".')
@pytest.mark.spec(
    ABORT,
    "MUST",
    "The callee MUST make a best-effort attempt at cleanup but is not required to guarantee resource release within "
    "any specific timeframe.",
)
@pytest.mark.spec(STATE, "is", "ABORTING | Abort requested, callee is cleaning up | Caller sends abort")
@pytest.mark.spec(
    STATE, "is", "ABORTED | Execution aborted, cleanup complete (terminal) | Callee finishes abort cleanup"
)
async def test_an_abort_is_told_then_awaited_and_nothing_further_is_done(place) -> None:
    async with hcp_world(place, gated()) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        await caller.send(caller.abortion(session_id, reason="enough"))
        aborting = await caller.told(session_id, "state_changed", 2)
        assert aborting == {"from_state": "RUNNING", "to_state": "ABORTING", "reason": "enough"}
        assert not caller.events_in(session_id, "session_closed")
        world.gate("g").open()
        message_log = await caller.closed(session_id)
        (ended,) = (await caller.call("hcp.sessions"))["sessions"]
    assert caller.events_in(session_id, "state_changed")[-1]["data"]["to_state"] == "ABORTED"
    assert message_log[-1]["payload"]["data"]["final_state"] == "ABORTED"
    assert ended["state"] == "ABORTED"
    assert not [one for one in message_log if one["type"] in ("task_completed", "task_failed")]


@pytest.mark.slow
@pytest.mark.spec(ABORT, "SHOULD", "Cleanup SHOULD be bounded by a callee-defined abort timeout.")
async def test_an_abort_waits_for_a_step_no_longer_than_it_said(place) -> None:
    async with hcp_world(place, gated(), settings={"abort_timeout_s": 0.05}, close_grace_s=0.05) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        await caller.send(caller.abortion(session_id))
        assert (await caller.closed(session_id))[-1]["payload"]["data"]["final_state"] == "ABORTED"
        accepted = caller.message_log(session_id)[0]["payload"]
    assert accepted["constraints"]["abort_timeout"] == "PT0.05S"
