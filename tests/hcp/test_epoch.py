"""Nothing older than a reset acts, and a person's answer is for one run: jobs, questions, resumptions."""

from __future__ import annotations

import orjson
import pytest
import trio
from support.hcp import Caller, capability, failing, hcp_world, scripted, step, waiting
from support.world import BOB

from hearth.actors.bridges.hcp.event_stream import EventWriter
from hearth.actors.embedded import LocalRequest
from hearth.api import Step
from hearth.cli.approvals import job_lines
from hearth.errors import Halted
from hearth.policy.rules import Match, PolicyEntry
from hearth.protocol.methods import METHODS

POLICY = (
    PolicyEntry(name="approvers", match=Match(uid=BOB.uid), rights=["approve", "reset_halt"], max_risk=3),
    PolicyEntry(name="rest", match=Match(any=True), max_risk=3),
)
RELAY = step("set", line=1, value=1)
CLOSED = "Is the cover closed?"


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@pytest.fixture
def world_of(tmp_path):
    """A world with one capability, whose function has these parts, and BOB as the person who decides."""

    def world(*parts, safety=None, **more):
        return hcp_world(
            tmp_path / "hcp", capability(function=scripted(*parts), safety=safety or {}), policy=POLICY, **more
        )

    return world


async def asks(job):
    """A part that asks a person, and drives the relay if that is approved."""
    answer = await job.ask_person(CLOSED)
    if answer.approved:
        await RELAY(job)


def halted(world, reason="smoke"):
    world.runtime.halt.halt(reason, "a test")


async def reset(world):
    """End the halt as the person does, from a session."""
    async with world.sessions(BOB).open_session() as session:
        await session.reset_halt()
        assert not (await session.halt_status()).halted


async def pending(world, count=1):
    """What the person is shown, once so many questions wait."""
    bob, found = world.caller(BOB), []
    while len(found) < count:
        found = (await bob.call("hcp.pending"))["approvals"]
    return found


def driven(world):
    """The labels of what drove a line."""
    return [label for label in world.observer.labels("begin") if label == "set"]


# --- rule 1: the epoch ------------------------------------------------------------------------------------------------


async def test_a_job_that_sleeps_when_the_daemon_is_halted_closes_no_relay_after_the_reset(world_of):
    async with world_of(waiting(3600), RELAY) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.told(session_id, "state_changed")
        halted(world)
        await reset(world)
        failed = await caller.outcome(session_id)
        assert (failed["error_code"], failed["error_message"]) == ("safety_violation", 'the daemon was halted: "smoke"')
        details = failed["error_details"]
        assert (details["reason"], details["effect"]) == ("halted", "none")
        assert driven(world) == []


async def test_a_halt_ends_a_job_that_waits_for_a_person_and_its_question(world_of):
    async with world_of(asks) as world:
        caller, bob = world.caller(), world.caller(BOB)
        session_id = await caller.accepted()
        (question,) = await pending(world)
        halted(world)
        failed = await caller.outcome(session_id)
        assert failed["error_details"]["reason"] == "halted"
        await reset(world)
        assert (await bob.call("hcp.pending"))["approvals"] == []
        late = await bob.ask("hcp.decide", {"approval_id": question["approval_id"], "approve": True})
        assert 'the daemon was halted after it was asked ("smoke")' in late["error"]["data"]["reason"]
        assert driven(world) == []


async def test_the_step_that_a_halt_meets_is_reported_with_its_effect(world_of):
    async with world_of(step("set", line=1, value=1, gate="g")) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        halted(world)
        world.gate("g").open()
        failed = await caller.outcome(session_id)
        # The transaction was in flight, and is never torn: it was done, and the halt has made the line safe since.
        assert failed["error_details"]["effect"] == "done"
        assert world.driver.levels == {1: 0}


async def test_a_job_that_only_reads_outlives_a_halt(tmp_path):
    reads = capability(
        function=scripted(step("read", gate="g")),
        tools=("read",),
        safety={"risk_ceiling": "R1", "risk_floor": "R1", "involves_physical_resources": False},
    )
    async with hcp_world(tmp_path / "hcp", reads, policy=POLICY) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        halted(world)
        world.gate("g").open()
        messages = await caller.closed(session_id)
        assert messages[-1]["type"] == "task_completed" or any(one["type"] == "task_completed" for one in messages)


async def test_a_submission_that_waits_for_approval_when_the_daemon_is_halted_never_starts(world_of):
    async with world_of(RELAY, safety={"requires_human_approval": True}) as world:
        alice, bob = world.caller(), world.caller(BOB)
        document = Caller.submission()
        await alice.send(document)
        (question,) = await pending(world)
        halted(world)
        refused = (await alice.until_replied(document))["payload"]
        assert refused["reason_code"] == "resource_unavailable"
        await reset(world)
        late = await bob.ask("hcp.decide", {"approval_id": question["approval_id"], "approve": True})
        assert late["error"]["code"] == -32602
        assert driven(world) == []


async def test_a_submission_that_was_approved_in_the_turn_of_a_halt_does_not_start(world_of):
    async with world_of(RELAY, safety={"requires_human_approval": True}) as world:
        alice, bob = world.caller(), world.caller(BOB)
        document = Caller.submission()
        await alice.send(document)
        (question,) = await pending(world)
        await bob.call("hcp.decide", approval_id=question["approval_id"], approve=True)
        halted(world)
        await reset(world)
        answer = await alice.until_replied(document)
        if answer["type"] == "task_accepted":
            failed = await alice.outcome(answer["session_id"])
            assert failed["error_details"]["reason"] == "halted"
        assert driven(world) == []


async def test_what_a_function_still_does_when_its_job_was_halted_counts_as_older_than_the_reset(world_of):
    async def cleans_late(job):
        try:
            await job.sleep(60)
        finally:
            with trio.CancelScope(shield=True):
                await world.event("reset").wait()
            async with job.clean_up():
                await RELAY(job)

    async with world_of(cleans_late, settings={"abort_timeout_s": 30}) as world:
        world.runtime.parts.extras["hcp"].capabilities["look"]
        caller = world.caller()
        session_id = await caller.accepted()
        await caller.told(session_id, "state_changed")
        halted(world)
        await reset(world)
        world.event("reset").set()
        failed = await caller.outcome(session_id)
        assert failed["error_code"] in ("safety_violation", "internal_error")
        assert driven(world) == []


async def test_a_request_that_waited_for_its_turn_over_a_halt_and_its_reset_drives_nothing(world_of):
    async with world_of() as world, world.sessions(BOB).open_session() as session:
        own = world.runtime.find_session(session.session_id, BOB.key)
        steps = [{"tool": "bench.set", "args": {"line": 1, "value": 1}}]
        task = {"session_id": session.session_id, "task": {"intent": "late", "steps": steps}}
        late = LocalRequest(METHODS["task.submit"](task))
        # The turn of its session comes after the halt and the reset of another session.
        own.post(late)
        halted(world)
        world.runtime.halt._holds.clear()
        world.runtime.halt._describe()
        with pytest.raises(Halted, match="accepted before the daemon was halted"):
            await late.slot.get()
        assert driven(world) == []


# --- what a person is shown -------------------------------------------------------------------------------------------

OF_THE_LIST = {"approval_id", "principal", "submitted_at", "expires_at", "own", "shown"}
"""Members of an entry that are not about the job: every client shows them on lines of their own."""


@pytest.mark.parametrize("what", ["a job to start", "a job to resume", "a question", "the question of a resumed job"])
async def test_every_member_of_what_waits_is_in_the_lines_that_terminal_and_page_print_and_the_question_is_first(
    world_of, what
):
    asked_first = "to" in what
    safety = {"requires_human_approval": True, "hazard_categories": ("moving_parts",)} if asked_first else {}
    told = {"context": {"shift": "night"}, "constraints": {"max_duration": "PT30S"}}
    async with world_of(*([] if asked_first else [asks]), failing("no more"), safety=safety) as world:
        caller = world.caller()
        document = Caller.submission(**told)
        await caller.send(document)
        (entry,) = await pending(world)
        if "resume" in what:
            await answered(world)
            session_id = (await caller.until_replied(document))["session_id"]
            failed = await caller.outcome(session_id)
            checkpoint = failed["error_details"].get("last_checkpoint") or f"ckpt-{session_id}-000001"
            if asked_first:
                # It has done nothing yet; let it have done something.
                await world.job_server.services.job_store.write(_with_a_step, session_id)
            halted(world)
            await reset(world)
            await caller.send(Caller.submission(**{**told, "context": {**told["context"], "resume_from": checkpoint}}))
            (entry,) = await pending(world)
            assert {"resumed_from", "checkpoint_age", "done_before", "replayed_readings"} <= entry.keys()
        shown = entry["shown"]
        for member in entry.keys() - OF_THE_LIST:
            assert any(line.startswith(f"{member} ") for line in shown), f"{member} is not shown"
        assert ("question" in entry) is not asked_first
        assert asked_first or shown[0] == f'question "{CLOSED}"'
        assert 'intent "look at the bench"' in shown, "as the quoted words of its caller"
        assert any(line.startswith('context {shift="night"') for line in shown)
        assert 'max_duration "PT30S"' in shown
        # The terminal prints these lines and nothing of its own in between; the page puts them into one element.
        printed = job_lines(entry)
        assert printed[-len(shown) :] == shown


def _with_a_step(store, session_id):
    store.execute("UPDATE sessions SET checkpoints = 1 WHERE session_id = ?", (session_id,))
    outcome = {"status": "done", "elapsed_s": 0.1, "acted": True}
    record = {"position": "1", "kind": "run", "what": "bench.set", "digest": "sha256:0", "outcome": outcome}
    number = store.execute("SELECT no FROM sessions WHERE session_id = ?", (session_id,)).fetchone()[0]
    store.execute("INSERT INTO outcomes (session, n, outcome) VALUES (?, 1, ?)", (number, orjson.dumps(record)))


# --- rule 2: an answer belongs to one run -----------------------------------------------------------------------------


async def checkpoint_of(caller, session_id):
    """The newest checkpoint of a job that has ended."""
    await caller.closed(session_id)
    return caller.events_in(session_id, "checkpoint_created")[-1]["data"]["checkpoint_id"]


async def answered(world, *, approve=True, count=1):
    """Decide on the one question that waits; return it as it was shown."""
    (question,) = await pending(world, count)
    await world.caller(BOB).call("hcp.decide", approval_id=question["approval_id"], approve=approve)
    return question


async def answered_and_ended(world):
    """A job whose question was answered with yes, and which has ended: its caller, and its newest checkpoint."""
    caller = world.caller()
    session_id = await caller.accepted()
    await answered(world)
    return caller, await checkpoint_of(caller, session_id)


async def test_a_job_that_completed_is_not_resumed(world_of):
    async with world_of(asks) as world:
        caller, checkpoint = await answered_and_ended(world)
        refused = await caller.rejected(Caller.submission(context={"resume_from": checkpoint}))
        assert "is COMPLETED" in refused["reason_message"]
        assert "only one that failed or was aborted goes on" in refused["suggestion"]
        assert driven(world) == ["set"]


async def test_a_job_is_resumed_once_and_a_second_time_is_told_of_the_first(world_of):
    async with world_of(asks, failing("no more")) as world:
        caller, checkpoint = await answered_and_ended(world)
        again = await caller.accepted(context={"resume_from": checkpoint})
        await caller.closed(again)
        refused = await caller.rejected(Caller.submission(context={"resume_from": checkpoint}))
        assert f"was resumed by session {again}" in refused["reason_message"]
        assert driven(world) == ["set"], "the relay was closed once, by the run that was approved"


async def test_of_two_submissions_that_resume_a_job_at_once_one_is_refused(world_of):
    async with world_of(step("read", tag="x"), failing("no more"), safety={"requires_human_approval": True}) as world:
        caller = world.caller()
        document = Caller.submission()
        await caller.send(document)
        await answered(world)
        session_id = (await caller.until_replied(document))["session_id"]
        checkpoint = await checkpoint_of(caller, session_id)
        first, second = (Caller.submission(context={"resume_from": checkpoint}) for _ in range(2))
        await caller.send(first, second)
        await caller.until(lambda: caller.replies(first["message_id"]) or caller.replies(second["message_id"]))
        (refused,) = caller.replies(first["message_id"]) + caller.replies(second["message_id"])
        assert "is being resumed" in refused["payload"]["reason_message"]


CHANGES = ["nothing", "a halt", "the policy was read again", "the time for an answer"]


@pytest.mark.parametrize("between", CHANGES)
async def test_an_answer_is_replayed_only_if_nothing_that_it_may_rest_on_has_changed(world_of, between):
    async def asks_twice(job):
        assert (await job.ask_person(CLOSED)).approved
        await job.run("bench.fail", effect="none") if job.context.get("fail") else await RELAY(job)

    clock = [1_776_638_881.0]
    async with world_of(asks_twice, clock=lambda: clock[0]) as world:
        caller = world.caller()
        session_id = await caller.accepted(context={"fail": True})
        await answered(world)
        failed = await caller.outcome(session_id)
        checkpoint = failed["error_details"]["last_checkpoint"]
        if between == "a halt":
            halted(world)
            await reset(world)
        elif between == "the policy was read again":
            world.runtime.replace_policy(POLICY)
        elif between == "the time for an answer":
            clock[0] += 100_000
        again = await caller.accepted(context={"resume_from": checkpoint})
        if between != "nothing":
            await answered(world, approve=True)
        await caller.closed(again)
        assert [one["event"] for one in world.records("hcp.approve")] == ["hcp.approve"] * (1 + (between != "nothing"))
        assert driven(world) == ["set"]


async def test_an_answer_is_older_than_what_changes_while_the_job_goes_on_from_its_pause(world_of, monkeypatch):
    moved = EventWriter.move

    async def while_it_is_stored(self, to, reason, *entries):
        await moved(self, to, reason, *entries)
        if reason == "asks a person no longer" and not world.records("test.changed"):
            await world.journal.post({"event": "test.changed"}).get()
            world.runtime.replace_policy(POLICY)

    async with world_of(asks) as world:
        monkeypatch.setattr(EventWriter, "move", while_it_is_stored)
        caller = world.caller()
        session_id = await caller.accepted()
        await answered(world)
        # The policy that was read meanwhile may not know the person any more: the answer is asked for again.
        await answered(world, approve=False)
        await caller.closed(session_id)
        assert driven(world) == []


async def test_a_job_that_was_resumed_is_not_resumed_again_when_the_one_that_did_is_forgotten(world_of):
    async with world_of(asks, failing("no more")) as world:
        caller, checkpoint = await answered_and_ended(world)
        again = await caller.accepted(context={"resume_from": checkpoint})
        await caller.closed(again)
        # As by its retention, if the clock was wrong while it ran.
        await world.job_server.services.job_store.write(
            lambda store: store.execute("DELETE FROM sessions WHERE session_id = ?", (again,)) and None
        )
        refused = await caller.rejected(Caller.submission(context={"resume_from": checkpoint}))
        assert f"was resumed by session {again}" in refused["reason_message"]


async def test_an_answer_that_is_asked_again_may_be_no_and_nothing_moves(world_of):
    async with world_of(asks, failing("no more")) as world:
        caller, checkpoint = await answered_and_ended(world)
        halted(world)
        await reset(world)
        again = await caller.accepted(context={"resume_from": checkpoint})
        shown = await answered(world, approve=False)
        assert (shown["question"], shown["resumed_from"]) == (CLOSED, checkpoint)
        await caller.closed(again)
        assert driven(world) == ["set"], "of the first run"


async def test_the_question_about_a_resumed_job_names_the_checkpoint_its_age_what_was_done_and_what_is_replayed(
    world_of,
):
    clock = [1_776_638_881.0]

    async def works(job):
        await job.run("bench.read", tag="collected", replay=True)
        await job.run("bench.read", tag="looked at")
        await RELAY(job)
        raise LookupError

    async with world_of(works, safety={"requires_human_approval": True}, clock=lambda: clock[0]) as world:
        caller = world.caller()
        document = Caller.submission()
        await caller.send(document)
        shown = await answered(world)
        assert not any(one.startswith("resumed_from") for one in shown["shown"])
        session_id = (await caller.until_replied(document))["session_id"]
        checkpoint = await checkpoint_of(caller, session_id)
        clock[0] += 90
        await caller.send(Caller.submission(context={"resume_from": checkpoint}))
        (shown,) = await pending(world)
        assert shown["resumed_from"] == checkpoint
        assert shown["checkpoint_age"] == "PT1M30S"
        (done,), (read,) = shown["done_before"], shown["replayed_readings"]
        assert done.startswith("bench.set")
        assert '"tag":"collected"' in read
        lines = "\n".join(shown["shown"])
        for word in ("resumed_from", "checkpoint_age", "done_before", "replayed_readings", "context", "max_duration"):
            assert f"\n{word} " in f"\n{lines}"


async def test_a_reading_that_was_made_in_one_task_with_what_moves_is_named_among_what_is_replayed(world_of):
    async def works(job):
        await job.submit([Step("bench.read", {"tag": "the cover"}), Step("bench.set", {"line": 1, "value": 1})])
        await RELAY(job)
        raise LookupError

    async with world_of(works, safety={"requires_human_approval": True}) as world:
        caller = world.caller()
        document = Caller.submission()
        await caller.send(document)
        await answered(world)
        checkpoint = await checkpoint_of(caller, (await caller.until_replied(document))["session_id"])
        await caller.send(Caller.submission(context={"resume_from": checkpoint}))
        (shown,) = await pending(world)
        assert len(shown["done_before"]) == 2
        (read,) = shown["replayed_readings"]
        assert '"tag":"the cover"' in read, "it is not made again: that would move the relay again"


async def test_a_reading_is_made_again_when_a_job_that_acts_is_resumed_and_a_collected_one_is_not(world_of):
    async def works(job):
        await job.run("bench.read", tag="collected", replay=True)
        await job.run("bench.read", tag="is the cover closed")
        await RELAY(job)
        raise LookupError

    async with world_of(works) as world:
        caller = world.caller()
        checkpoint = await checkpoint_of(caller, await caller.accepted())
        await caller.closed(await caller.accepted(context={"resume_from": checkpoint}))
        done = [one for one in world.observer.labels("begin") if not one.startswith("safe")]
        assert done == ["collected", "is the cover closed", "set", "is the cover closed"]
