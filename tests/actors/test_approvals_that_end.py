"""An approval counts while the policy lets its principal approve, and until that principal takes it back."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from support.hcp import Caller, capability, hcp_world, reading, step as job_step
from support.world import ALICE, BOB

from hearth import step
from hearth.actors.approval import Decision
from hearth.actors.bridges.hcp.store import JobStore
from hearth.errors import ApprovalRequired, PermissionDenied, PlanStale
from hearth.policy.principal import Principal
from hearth.policy.rules import ApprovalRule, Match, PolicyEntry

CAROL = Principal(kind="unix", uid=1003, gid=1003)
ARM = step("bench.arm", line=1, value=1)


def policy(*, persons=1, right="approve", bob=("approve",), carol=("approve",), own=()):
    """ALICE's entry with one rule from risk 2 on, and an entry each for BOB and CAROL, unless its rights are None."""
    rule = ApprovalRule(from_risk=2, right=right, persons=persons)
    entries = [PolicyEntry(name="agents", match=Match(uid=1001), max_risk=3, approval=[rule], rights=own)]
    for name, uid, rights in (("bob", 1002, bob), ("carol", 1003, carol)):
        if rights is not None:
            entries.append(PolicyEntry(name=name, match=Match(uid=uid), max_risk=3, rights=rights))
    return tuple(entries)


async def approved(world, plan, *whom):
    for who in whom:
        async with world.sessions(who).open_session() as session:
            await session.approve(plan)


def driven(world):
    return [label for label in world.observer.labels("begin") if label not in ("level", "read")]


# --- the right is taken away ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("persons", "whom", "later"),
    [
        pytest.param(1, [BOB], {"bob": ()}, id="the right is gone"),
        pytest.param(1, [BOB], {"bob": None}, id="the entry is gone"),
        pytest.param(1, [BOB], {"bob": ("observe", "admin", "reset_halt")}, id="other rights"),
        pytest.param(2, [BOB, CAROL], {"carol": ()}, id="one of two"),
        pytest.param(2, [BOB], {"bob": ()}, id="of a plan that still waits"),
        pytest.param(1, [ALICE], {"own": ()}, id="the author's own"),
    ],
)
async def test_an_approval_of_a_principal_that_may_no_longer_approve_is_gone_and_the_plan_waits_again(
    make_world, persons, whom, later
):
    before = policy(persons=persons, own=("approve",) if ALICE in whom else ())
    async with make_world(policy=before) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        await approved(world, plan, *whom)
        world.runtime.replace_policy(policy(persons=persons, **later))
        (shown,) = await alice.plans()
        lost = {"bob": BOB, "carol": CAROL, "own": ALICE}[next(iter(later))]
        assert shown.state == "waiting"
        assert lost.key not in shown.approved_by
        assert len(shown.approved_by) == len(whom) - 1
        with pytest.raises(ApprovalRequired, match=f"waits for {persons - len(whom) + 1} of {persons} approvals"):
            await alice.execute(plan)
        assert driven(world) == []
        (ended,) = world.records("approval.end")
        assert (ended["kind"], ended["approval_id"], ended["principal"]) == ("plan", plan.plan_id, lost.key)
        assert ended["reason"] == "the policy gives this principal no right 'approve'"
        # The right comes back, the approval does not: the plan needs another one.
        world.runtime.replace_policy(before)
        with pytest.raises(ApprovalRequired):
            await alice.execute(plan)
        await approved(world, plan, *{BOB, CAROL, lost} if persons == 2 and len(whom) == 1 else {lost})
        assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"


async def test_a_rule_that_now_names_another_right_does_not_count_the_approvals_under_the_former_one(make_world):
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        await approved(world, plan, BOB)
        world.runtime.replace_policy(policy(right="admin"))
        with pytest.raises(ApprovalRequired):
            await alice.execute(plan)
        world.runtime.replace_policy(policy(right="admin", bob=("approve", "admin")))
        assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"


async def test_a_right_that_is_taken_away_while_the_plan_is_read_again_stops_its_execution(make_world):
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        await approved(world, plan, BOB)
        outcomes = []

        async def execute():
            with pytest.raises(ApprovalRequired) as refused:
                await alice.execute(plan)
            outcomes.append(refused.value)

        async with world.sessions(CAROL).open_session() as carol, trio.open_nursery() as nursery:
            # Its bus is held: the execution is on its way, between its first check and its start.
            holds = await carol.submit("hold", [step("bench.read", gate="g")])
            await world.gate("g").reached()
            nursery.start_soon(execute)
            await trio.testing.wait_all_tasks_blocked()
            world.runtime.replace_policy(policy(bob=()))
            world.gate("g").open()
            await holds.wait()
        assert len(outcomes) == 1
        assert driven(world) == []


async def test_an_execution_that_waits_goes_on_waiting_when_the_last_approval_ends_before_it_wakes(make_world):
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        done = []

        async def execute():
            done.append(await (await alice.execute(plan, wait_ms=60_000)).wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(execute)
            await trio.testing.wait_all_tasks_blocked()
            async with world.sessions(BOB).open_session() as bob:
                await bob.approve(plan)
                world.runtime.replace_policy(policy(bob=()))
            await trio.testing.wait_all_tasks_blocked()
            assert done == []
            await approved(world, plan, CAROL)
        assert [one.status for one in done] == ["SUCCESS"]


async def test_what_has_begun_goes_on_when_its_approver_loses_the_right(make_world):
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [step("bench.danger", gate="g")])
        await approved(world, plan, BOB)
        task = await alice.execute(plan)
        await world.gate("g").reached()
        world.runtime.replace_policy(policy(bob=()))
        world.gate("g").open()
        assert (await task.wait()).status == "SUCCESS"
        assert world.records("approval.end") == []


# --- jobs -------------------------------------------------------------------------------------------------------------


def jobs(tmp_path, *, persons=2):
    heat = capability("heat", reading(job_step("read", tag="done")), safety={"risk_floor": "R3"})
    return hcp_world(tmp_path / "hcp", heat, policy=policy(persons=persons))


async def question(approver):
    pending = []
    with trio.fail_after(30):
        while not pending:
            pending = (await approver.call("hcp.pending"))["approvals"]
    return {"approval_id": pending[0]["approval_id"]}


async def test_a_job_counts_no_approval_of_a_principal_that_may_no_longer_approve(tmp_path):
    async with jobs(tmp_path) as world:
        alice, bob, carol = world.caller(ALICE), world.caller(BOB), world.caller(CAROL)
        await alice.send(Caller.submission("heat"))
        asked = await question(bob)
        await bob.call("hcp.decide", approve=True, **asked)
        world.runtime.replace_policy(policy(persons=2, bob=()))
        await carol.call("hcp.decide", approve=True, **asked)
        (open_one,) = [*world.runtime.approvals]
        assert [*open_one.approved_by] == [CAROL.key]
        assert [one["kind"] for one in world.records("approval.end")] == ["job"]
        assert alice.messages == []


@pytest.mark.parametrize("wakes", [False, True], ids=["before it wakes", "before it is accepted"])
async def test_an_approved_job_does_not_start_when_its_approver_has_lost_the_right_by_then(tmp_path, wakes):
    async with jobs(tmp_path, persons=1) as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("heat")
        await alice.send(document)
        asked = await question(bob)
        if wakes:
            world.journal.hold()
            await bob.call("hcp.decide", approve=True, **asked)
            await trio.testing.wait_all_tasks_blocked()
        else:
            approvals = world.runtime.approvals
            approvals.decide(approvals.find(asked["approval_id"], "job"), Decision(approved=True, who=BOB))
        world.runtime.replace_policy(policy(bob=()))
        if wakes:
            world.journal.release()
            refused = await alice.until_replied(document)
            assert refused["payload"]["reason_code"] == "approval_denied"
            assert "may no longer" in refused["payload"]["reason_message"]
        else:
            await trio.testing.wait_all_tasks_blocked()
            assert [*world.runtime.approvals] != [], "it waits again"
        assert world.observer.labels("begin") == []
        assert [one["principal"] for one in world.records("approval.end")] == [BOB.key]


async def test_a_job_whose_approver_loses_the_right_while_its_acceptance_is_stored_ends_without_a_step(
    tmp_path, monkeypatch
):
    answer = JobStore.answer

    async def stored(*args, **named):
        await answer(*args, **named)
        world.runtime.replace_policy(policy(bob=()))

    monkeypatch.setattr(JobStore, "answer", stored)
    async with jobs(tmp_path, persons=1) as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("heat")
        await alice.send(document)
        await bob.call("hcp.decide", approve=True, **await question(bob))
        messages = await alice.closed((await alice.until_replied(document))["session_id"])
        assert "may no longer" in str(messages[-2:])
        assert world.observer.labels("begin") == []
        assert [one["principal"] for one in world.records("approval.end")] == [BOB.key]


async def test_a_principal_takes_its_approval_of_a_job_back_while_the_job_waits_for_others(tmp_path):
    async with jobs(tmp_path) as world:
        alice, bob, carol = world.caller(ALICE), world.caller(BOB), world.caller(CAROL)
        await alice.send(Caller.submission("heat"))
        asked = await question(bob)
        await bob.call("hcp.decide", approve=True, **asked)
        answer = await bob.call("hcp.decide", approve=False, **asked)
        assert answer == {**asked, "approved": False, "taken_back": True}
        await carol.call("hcp.decide", approve=True, **asked)
        assert [[*one.approved_by] for one in world.runtime.approvals] == [[CAROL.key]]
        assert [(one["by"], one["taken_back"]) for one in world.records("hcp.deny")] == [(BOB.key, True)]
        assert alice.messages == []


# --- an approval is taken back ----------------------------------------------------------------------------------------

GOES_ON, WITHDRAWN, REJECTED, TAKEN_BACK = "as it was", "withdrawn", "rejected", "taken back"


@pytest.mark.spec("design 8: plan.list, plan.get, plan.approve, plan.reject")
@pytest.mark.parametrize(
    ("by", "persons", "whom", "run", "outcome"),
    [
        pytest.param(ALICE, 1, [], False, REJECTED, id="own, waiting"),
        pytest.param(ALICE, 2, [BOB], False, REJECTED, id="own, waiting, approved by another"),
        pytest.param(ALICE, 1, [BOB], False, WITHDRAWN, id="own, ready, approved by another"),
        pytest.param(ALICE, 1, [ALICE], False, WITHDRAWN, id="own, ready, approved by its author"),
        pytest.param(ALICE, 1, [BOB], True, GOES_ON, id="own, executed"),
        pytest.param(BOB, 1, [], False, REJECTED, id="another's, waiting"),
        pytest.param(BOB, 2, [CAROL], False, REJECTED, id="another's, waiting, approved by a third"),
        pytest.param(BOB, 2, [BOB], False, TAKEN_BACK, id="another's, waiting, approved by me"),
        pytest.param(BOB, 1, [BOB], False, TAKEN_BACK, id="another's, ready, approved by me"),
        pytest.param(BOB, 2, [BOB, CAROL], False, TAKEN_BACK, id="another's, ready, approved by me and a third"),
        pytest.param(BOB, 1, [CAROL], False, GOES_ON, id="another's, ready, approved by a third"),
        pytest.param(BOB, 1, [BOB], True, GOES_ON, id="another's, executed, approved by me"),
        pytest.param(BOB, 1, [CAROL], True, GOES_ON, id="another's, executed, approved by a third"),
    ],
)
async def test_rejecting_a_plan_means(make_world, by, persons, whom, run, outcome):
    rules = policy(persons=persons, own=("approve",) if ALICE in whom else ())
    async with (
        make_world(policy=rules) as world,
        world.sessions(ALICE).open_session() as alice,
        world.sessions(by).open_session() as rejects,
    ):
        plan = await alice.prepare("arm", [ARM])
        await approved(world, plan, *whom)
        if run:
            assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"
        if outcome == GOES_ON:
            with pytest.raises(PlanStale):
                await rejects.reject(plan, reason="no")
            assert world.records("plan.reject") == []
        else:
            assert await rejects.reject(plan, reason="no") is (outcome == TAKEN_BACK)
            (record,) = world.records("plan.reject")
            assert (record["principal"], record.get("taken_back")) == (by.key, True if outcome == TAKEN_BACK else None)
        left = {one.plan_id: one for one in await alice.plans()}.get(plan.plan_id)
        if outcome == WITHDRAWN:
            assert left is None
        elif outcome == TAKEN_BACK:
            assert record["reason"] == "no"
            assert (left.state, [*left.approved_by]) == ("waiting", [who.key for who in whom if who != by])
            with pytest.raises(ApprovalRequired):
                await alice.execute(plan)
            # The one that took it back may approve it again.
            await approved(world, plan, by)
        if outcome in (REJECTED, WITHDRAWN):
            with pytest.raises((PermissionDenied, PlanStale)):
                await alice.execute(plan)
            assert driven(world) == []
        elif not run and persons == len({*whom, by} - {ALICE}):
            assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"


async def test_an_approver_sees_the_plan_until_it_runs_and_no_other_principal_does(make_world):
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        async with world.sessions(BOB).open_session() as bob, world.sessions(CAROL).open_session() as carol:
            await bob.approve(plan)
            assert [(one.state, one.may_approve) for one in await bob.plans()] == [("ready", False)]
            assert await carol.plans() == []
            await (await alice.execute(plan)).wait()
            assert await bob.plans() == []


async def test_what_is_taken_back_does_not_run_although_the_record_of_that_has_not_been_written_yet(make_world):
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        async with world.sessions(BOB).open_session() as bob, trio.open_nursery() as nursery:
            await bob.approve(plan)
            world.journal.hold()
            nursery.start_soon(bob.reject, plan)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ApprovalRequired):
                await alice.execute(plan)
            world.journal.release()
        assert driven(world) == []


async def test_the_conversation_of_a_model_takes_back_no_approval_of_its_person(make_world):
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        await approved(world, plan, BOB)
        async with world.sessions(BOB).open_session(conversation=True) as model:
            with pytest.raises(PermissionDenied, match="a conversation has no rights"):
                await model.reject(plan)
        assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"
