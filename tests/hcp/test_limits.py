"""The limits on whole jobs under a flood of submissions: they hold, they refuse at once, and every place comes back."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
import trio
from support.hcp import Caller, capability, failing, hcp_world, reading, scripted, step, waiting
from support.waiting import passes
from support.world import ALICE, BOB, OPEN

from hearth.policy.memory import CONNECTION_BYTES, JOB_BYTES, SESSION_BYTES
from hearth.policy.principal import Principal
from hearth.policy.rules import Match, PolicyEntry

CAROL = Principal(kind="unix", uid=1003, gid=1003)
WHO = (ALICE, BOB, CAROL)
EACH = 60
"""Submissions of each principal, on two connections."""


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


class Held:
    """Jobs of `run` do nothing until `go` is set. `most` is how many there were at once."""

    def __init__(self):
        self.go = trio.Event()
        self.running = 0
        self.most = 0

    async def run(self, _job):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return {}


def nothing_is_held(world):
    """Whether no place, no job and no HACP session of a job is left."""
    jobs = world.job_server.jobs
    return not (jobs.running or jobs.quota._by_principal or jobs.quota._by_capability or world.runtime.sessions)


@pytest.mark.slow
async def test_a_flood_of_submissions_gets_as_many_jobs_as_there_are_places_and_a_refusal_each_for_the_rest(tmp_path):
    held = {name: Held() for name in ("narrow", "wide")}
    narrow = capability("narrow", function=held["narrow"].run, concurrent_limit=2)
    wide = capability("wide", function=held["wide"].run, concurrent_limit=50)
    settings = {"max_jobs": 7, "max_jobs_per_principal": 4}
    async with hcp_world(tmp_path / "hcp", narrow, wide, settings=settings) as world:
        flood = {}
        callers = [world.caller(who) for who in WHO for _ in range(2)]
        for number in range(EACH // 2):
            for index, caller in enumerate(callers):
                document = Caller.submission("narrow" if (number + index) % 3 == 0 else "wide")
                flood[document["message_id"]] = (caller, document)
                await caller.send(document)
        for message_id, (caller, _document) in flood.items():
            await caller.until(lambda caller=caller, message_id=message_id: caller.replies(message_id))
        answers = {message_id: caller.replies(message_id) for message_id, (caller, _) in flood.items()}
        assert {len(each) for each in answers.values()} == {1}
        accepted = [one for one in answers if answers[one][0]["type"] == "task_accepted"]
        refused = [one for one in answers if one not in accepted]
        assert {answers[one][0]["payload"]["reason_code"] for one in refused} == {"resource_unavailable"}
        assert all("same message_id" in answers[one][0]["payload"]["suggestion"] for one in refused)
        # All places are taken, and no limit is passed.
        assert len(accepted) == 7
        by_caller = Counter(callers.index(flood[one][0]) // 2 for one in accepted)
        assert max(by_caller.values()) <= 4
        assert Counter(flood[one][1]["payload"]["capability"] for one in accepted)["narrow"] <= 2
        assert len(world.records("hcp.accept")) == 7
        for function in held.values():
            function.go.set()
        for one in accepted:
            message_log = await flood[one][0].closed(answers[one][0]["session_id"])
            assert message_log[-2]["type"] == "task_completed"
        assert held["narrow"].most <= 2
        assert held["narrow"].most + held["wide"].most <= 7
        # The places are free again, and a refusal for lack of one has left no trace: the same messages are taken now.
        assert nothing_is_held(world)
        for one in refused[:3]:
            caller, document = flood[one]
            await caller.send(document)
            await caller.until(lambda caller=caller, one=one: len(caller.replies(one)) == 2)
            again = caller.replies(one)[1]
            assert again["type"] == "task_accepted"
            await caller.closed(again["session_id"])


async def test_one_principals_flood_leaves_room_for_the_others(tmp_path):
    held = Held()
    settings = {"max_jobs": 5, "max_jobs_per_principal": 4}
    async with hcp_world(
        tmp_path / "hcp", capability("wide", function=held.run, concurrent_limit=9), settings=settings
    ) as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        documents = [Caller.submission("wide") for _ in range(40)]
        await alice.send(*documents)
        for document in documents:
            await alice.until(lambda document=document: alice.replies(document["message_id"]))
        types = Counter(alice.replies(document["message_id"])[0]["type"] for document in documents)
        assert types == {"task_accepted": 4, "task_rejected": 36}
        session_id = await bob.accepted("wide")
        held.go.set()
        await bob.closed(session_id)


async def bug(job):
    await job.run("bench.read", tag="x")
    raise RuntimeError("a bug in the function")


ENDS = {
    "completed": (scripted(), {}, "COMPLETED"),
    "failed": (scripted(failing("it is no use")), {}, "FAILED"),
    "by a bug": (bug, {}, "FAILED"),
    "out of time": (scripted(waiting(3600)), {"max_duration": timedelta(milliseconds=50)}, "FAILED"),
    "aborted": (scripted(waiting(3600)), {}, "ABORTED"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_who_has_read_session_closed_finds_the_place_free_however_the_job_ended(tmp_path, end):
    function, more, state = ENDS[end]
    settings = {"max_jobs": 1}
    async with hcp_world(tmp_path / "hcp", capability(function=function, **more), settings=settings) as world:
        caller = world.caller()
        for _ in range(3):
            session_id = await caller.accepted()
            if state == "ABORTED":
                await caller.send(Caller.abortion(session_id))
            message_log = await caller.closed(session_id)
            assert message_log[-1]["payload"]["data"]["final_state"] == state
            assert nothing_is_held(world)


@pytest.mark.parametrize(
    ("inputs", "code"),
    [({"n": "x"}, "invalid_input"), ({}, "forbidden")],
)
async def test_what_the_gate_refuses_has_never_had_a_place(tmp_path, inputs, code):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    one = capability(input_schema=schema, tools=("read", "danger") if code == "forbidden" else ("read",))
    async with hcp_world(tmp_path / "hcp", one, settings={"max_jobs": 1}) as world:
        caller = world.caller()
        for _ in range(3):
            assert (await caller.rejected(Caller.submission(inputs=inputs)))["reason_code"] == code
            assert nothing_is_held(world)
        assert not world.records("hcp.accept")


@pytest.mark.slow
async def test_a_job_that_waits_for_a_person_has_a_place_until_it_is_decided(tmp_path):
    entries = (
        PolicyEntry(name="approver", match=Match(uid=BOB.uid), rights=["approve"]),
        OPEN,
    )
    one = capability(function=scripted(), safety={"requires_human_approval": True}, concurrent_limit=9)
    async with hcp_world(tmp_path / "hcp", one, settings={"max_jobs": 1}, policy=entries) as world:
        caller, approver = world.caller(ALICE), world.caller(BOB)
        for approve in (False, True):
            document = Caller.submission()
            await caller.send(document)
            pending = []
            while not pending:
                pending = (await approver.call("hcp.pending"))["approvals"]
            refused = await world.caller(CAROL).rejected(Caller.submission())
            assert refused["reason_code"] == "resource_unavailable"
            await approver.call("hcp.decide", approval_id=pending[0]["approval_id"], approve=approve)
            await caller.until(lambda document=document: caller.replies(document["message_id"]))
            answer = caller.replies(document["message_id"])[0]
            if approve:
                await caller.closed(answer["session_id"])
            else:
                assert answer["payload"]["reason_code"] == "approval_denied"
            assert nothing_is_held(world)


async def test_a_job_is_charged_for_its_memory_refused_without_room_and_released_with_its_messages(tmp_path):
    gated = capability("gated", reading(step("read", tag="first", gate="g")))
    async with hcp_world(tmp_path / "hcp", gated) as world:
        memory = world.runtime.memory
        account = memory.for_principal(ALICE.key)
        caller = world.caller(ALICE)
        session = await caller.accepted("gated")
        running = account.used
        assert running > JOB_BYTES + SESSION_BYTES + CONNECTION_BYTES
        each, memory.each = memory.each, running + JOB_BYTES // 2
        refused = await caller.rejected(caller.submission("gated", message_id="m-2"))
        assert refused["reason_code"] == "resource_unavailable"
        assert "max_retained_bytes" in str(refused)
        memory.each = each
        world.gate("g").open()
        await caller.closed(session)
        await passes(lambda: account.used < running - JOB_BYTES - SESSION_BYTES)
        # A follower of an ended job that was read from the job store is charged for it until it is sent.
        again = world.caller(ALICE)
        await again.call("hcp.attach", session_id=session)
        await again.closed(session)
        await again.close()
        await caller.close()
        await passes(lambda: memory.used == 0)
