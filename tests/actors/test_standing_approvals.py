"""A standing approval permits exactly what it says, so often, so long, and only while its giver may approve."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from attrs import evolve
from support.world import ALICE, BOB, BenchWorld, reset_halt, running, simulated

from hearth import step
from hearth.actors.approval import standing
from hearth.actors.embedded import LocalRequest
from hearth.errors import (
    ApprovalRequired,
    AuditUnavailable,
    Halted,
    InvalidParams,
    LimitViolated,
    PermissionDenied,
    PlanStale,
    QueueFull,
    RateLimited,
    ToolNotFound,
)
from hearth.policy.principal import Principal
from hearth.policy.rules import ApprovalRule, Match, PolicyEntry
from hearth.protocol.methods import METHODS

CAROL = Principal(kind="unix", uid=1003, gid=1003)
DAN = Principal(kind="unix", uid=1004, gid=1004)
ONE, ANY = {"equals": 1}, {"any": True}
LIGHT = {"line": ONE, "value": {"min": 0, "max": 1}}
SET = step("bench.set", line=1, value=1)


def policy(*, bob=("approve",), carol=("approve",), own=("reset_halt",), **rule):
    """ALICE's tasks need an approval from risk 2 on; BOB and CAROL may give it, DAN may not."""
    rules = [ApprovalRule(from_risk=2, **rule)]
    return (
        PolicyEntry(name="agents", match=Match(uid=1001), max_risk=3, approval=rules, rights=own),
        PolicyEntry(name="bob", match=Match(uid=1002), max_risk=3, rights=bob),
        PolicyEntry(name="carol", match=Match(uid=1003), max_risk=3, rights=carol),
        PolicyEntry(name="others", match=Match(any=True), max_risk=3, approval=rules),
    )


@pytest.fixture
async def governed(make_world):
    async with make_world(policy=policy()) as world:
        yield world


async def given(world, tool="bench.set", args=LIGHT, *, by=BOB, times=5, within_s=3600, principal=ALICE.key, **more):
    async with world.sessions(by).open_session() as session:
        return await session.grant_approval(tool, args, times=times, within_s=within_s, principal=principal, **more)


async def ran(session, *steps, **constraints):
    task = await session.submit("set", steps or [SET], **constraints)
    return (await task.wait()).status == "SUCCESS"


def driven(world):
    return [label for label in world.observer.labels("begin") if label not in ("level", "read")]


# --- it permits what it says ------------------------------------------------------------------------------------------


@pytest.mark.spec("design 8: approval.grant, approval.list, approval.revoke")
async def test_it_permits_as_many_calls_as_it_says_and_each_is_on_record_with_its_giver(governed):
    approval = await given(governed, times=2)
    async with governed.sessions(ALICE).open_session() as alice:
        for left in (1, 0):
            assert await ran(alice)
            shown = await alice.standing_approvals()
            assert [one["left"] for one in shown] == ([1] if left else [])
        with pytest.raises(ApprovalRequired):
            await alice.submit("set", [SET])
    events = governed.records("approval.grant", "approval.use", "task.submit")
    order = [(one["event"], one.get("uses")) for one in events]
    use = [{"step": 0, "approval_id": approval["approval_id"], "by": BOB.key}]
    assert order == [("approval.grant", None), *[("approval.use", use), ("task.submit", None)] * 2]
    (grant,) = governed.records("approval.grant")
    assert (grant["principal"], grant["for"], grant["args"], grant["times"]) == (BOB.key, ALICE.key, LIGHT, 2)
    used, submitted = governed.records("approval.use"), governed.records("task.submit")
    assert [one["task_id"] for one in used] == [one["task_id"] for one in submitted]


@pytest.mark.parametrize(
    ("bounds", "call", "covered"),
    [
        pytest.param(LIGHT, {"line": 1, "value": 0}, True, id="the lower end"),
        pytest.param(LIGHT, {"line": 1, "value": 1}, True, id="the upper end"),
        pytest.param(LIGHT, {"line": 2, "value": 1}, False, id="another value"),
        pytest.param({"line": ONE, "value": {"max": 0}}, {"line": 1, "value": 1}, False, id="above the range"),
        pytest.param({"line": {"min": 2}, "value": ANY}, {"line": 1, "value": 1}, False, id="below the range"),
        pytest.param({"line": {"min": 1}, "value": ANY}, {"line": 7, "value": 1}, True, id="open above"),
        pytest.param({"line": ANY, "value": ANY}, {"line": 9, "value": 1}, True, id="any value"),
        pytest.param(LIGHT, {"line": 1, "value": 1, "ms": 5}, False, id="an arg that it does not name"),
        pytest.param({**LIGHT, "ms": {"max": 9}}, {"line": 1, "value": 1}, False, id="a bounded arg that is left out"),
        pytest.param({**LIGHT, "ms": ONE}, {"line": 1, "value": 1}, False, id="a named value that is left out"),
        pytest.param({**LIGHT, "ms": ANY}, {"line": 1, "value": 1}, True, id="any arg may be left out"),
        pytest.param({**LIGHT, "tag": {"min": 0}}, {"line": 1, "value": 1, "tag": "1"}, False, id="text in a range"),
        pytest.param({**LIGHT, "tag": {"equals": "x"}}, {"line": 1, "value": 1, "tag": "X"}, False, id="other case"),
        pytest.param({"line": {"equals": 1.0}, "value": ANY}, {"line": 1, "value": 1}, True, id="1.0 is 1"),
        pytest.param({"line": {"equals": True}, "value": ANY}, {"line": 1, "value": 1}, False, id="true is not 1"),
    ],
)
async def test_an_argument_outside_its_bounds_is_not_covered(governed, bounds, call, covered):
    await given(governed, args=bounds)
    async with governed.sessions(ALICE).open_session() as alice:
        if covered:
            assert await ran(alice, step("bench.set", **call))
        else:
            with pytest.raises(ApprovalRequired):
                await alice.submit("set", [step("bench.set", **call)])
            assert driven(governed) == []


def test_a_boolean_is_in_no_range_of_numbers():
    assert not standing._within({"min": 0, "max": 1}, "on", {"on": True})
    assert not standing._within({"min": 0}, "x", {"x": float("nan")})


async def test_every_step_that_does_more_than_read_needs_one_and_takes_one_use(governed):
    await given(governed, times=3)
    await given(governed, tool="bench.fail", args={"effect": ANY}, times=1)
    async with governed.sessions(ALICE).open_session() as alice:
        with pytest.raises(ApprovalRequired):
            await alice.submit("two", [SET, step("bench.danger")])
        assert await ran(alice, step("bench.read"), SET, step("bench.level", line=1), SET)
        assert [one["left"] for one in await alice.standing_approvals()] == [1, 1]
        with pytest.raises(ApprovalRequired):
            await alice.submit("more than are left", [SET, SET])
        assert [one["left"] for one in await alice.standing_approvals()] == [1, 1]


async def test_it_is_for_one_principal_and_one_tool(governed):
    await given(governed)
    async with governed.sessions(DAN).open_session() as dan, governed.sessions(ALICE).open_session() as alice:
        for session, one in ((dan, SET), (alice, step("bench.arm", line=1, value=1))):
            with pytest.raises(ApprovalRequired):
                await session.submit("set", [one])
        assert await dan.standing_approvals() == []


async def test_a_prepared_plan_that_waits_runs_on_it_and_takes_its_uses(governed):
    await given(governed, times=2)
    async with governed.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("set", [SET, step("bench.set", line=1, value=0)])
        assert plan.state == "waiting"
        assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"
        again = await alice.prepare("set", [SET])
        with pytest.raises(ApprovalRequired):
            await alice.execute(again)
    (record,) = governed.records("plan.execute")
    assert [use["step"] for use in record["uses"]] == [0, 1]
    assert record["approved_by"] == []
    assert governed.records("approval.use") == []


async def test_where_two_persons_must_approve_it_counts_as_one_of_them(make_world):
    async with make_world(policy=policy(persons=2)) as world, world.sessions(ALICE).open_session() as alice:
        await given(world)
        await given(world)
        with pytest.raises(ApprovalRequired):
            await alice.submit("two of one person", [SET])
        plan = await alice.prepare("one of each kind", [SET])
        async with world.sessions(BOB).open_session() as bob:
            await bob.approve(plan)
        with pytest.raises(ApprovalRequired):
            await alice.execute(plan)
        async with world.sessions(CAROL).open_session() as carol:
            await carol.approve(plan)
        assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"
        assert [one["left"] for one in await alice.standing_approvals()] == [5, 5], "the persons were enough"
        await given(world, by=CAROL)
        assert await ran(alice)
        assert [one["left"] for one in await alice.standing_approvals()] == [4, 5, 4]


async def test_the_rule_in_force_counts_it_by_its_own_right(make_world):
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        await given(world)
        world.runtime.replace_policy(policy(right="admin"))
        with pytest.raises(ApprovalRequired):
            await alice.submit("set", [SET])
        world.runtime.replace_policy(policy(right="admin", bob=("approve", "admin")))
        assert await ran(alice)


# --- it ends ----------------------------------------------------------------------------------------------------------


async def after_its_count(world, alice):
    assert await ran(alice, SET, SET)


async def after_its_time(world, alice):
    await trio.sleep(60)


async def after_its_giver_lost_the_right(world, alice):
    world.runtime.replace_policy(policy(bob=()))


async def after_the_right_came_back(world, alice):
    world.runtime.replace_policy(policy(bob=()))
    world.runtime.replace_policy(policy())


async def after_a_halt(world, alice):
    await alice.halt("smoke")
    await alice.reset_halt()


async def after_its_giver_revoked_it(world, alice):
    async with world.sessions(BOB).open_session() as bob:
        (one,) = await bob.standing_approvals()
        await bob.revoke_approval(one["approval_id"])


async def after_another_approver_revoked_it(world, alice):
    async with world.sessions(CAROL).open_session() as carol:
        (one,) = await carol.standing_approvals()
        await carol.revoke_approval(one["approval_id"])


@pytest.mark.spec("design 8: approval.grant, approval.list, approval.revoke")
@pytest.mark.parametrize(
    "ended",
    [
        after_its_count, after_its_time, after_its_giver_lost_the_right, after_the_right_came_back, after_a_halt,
        after_its_giver_revoked_it, after_another_approver_revoked_it,
    ],
    ids=lambda ended: ended.__name__,
)  # fmt: skip
async def test_it_is_not_used(governed, ended, autojump_clock):
    async with governed.sessions(ALICE).open_session() as alice:
        account = governed.runtime.memory.for_principal(BOB.key)
        before = account.used
        await given(governed, times=2, within_s=60)
        assert account.used > before
        await ended(governed, alice)
        with pytest.raises(ApprovalRequired):
            await alice.submit("set", [SET])
        assert await alice.standing_approvals() == []
        assert account.used == before
        plan = await alice.prepare("set", [SET])
        with pytest.raises(ApprovalRequired):
            await alice.execute(plan)


async def test_one_that_was_asked_for_before_a_reset_is_not_given(governed):
    async with governed.sessions(BOB).open_session() as session:
        own = governed.runtime.find_session(session.session_id, BOB.key)
        asked = {"tool": "bench.set", "args": LIGHT, "times": 1, "within_s": 60, "principal": ALICE.key}
        late = LocalRequest(METHODS["approval.grant"]({"session_id": session.session_id, **asked}))
        own.post(late)
        governed.runtime.halt.halt("smoke", "a test")
        with pytest.raises(Halted):
            await given(governed)
        await reset_halt(governed.runtime)
        with pytest.raises(Halted):
            await late.slot.get()
        assert await session.standing_approvals() == []
    await given(governed)


async def test_it_ends_when_its_time_is_over_also_where_the_machine_has_slept_or_the_clock_was_set():
    wall, up = [1_776_638_881.0], [7.0]
    made = BenchWorld(policy=policy())
    made.parts = evolve(made.parts, clock=lambda: wall[0], uptime=lambda: up[0])
    async with running(made) as world, world.sessions(ALICE).open_session() as alice:
        await given(world, within_s=60)
        wall[0] += 1e9
        await (await alice.submit("set", [SET])).wait()
        wall[0] -= 2e9
        up[0] += 60
        with pytest.raises(ApprovalRequired):
            await alice.submit("set", [SET])


async def test_it_lives_in_the_process_alone_so_none_outlives_a_change_of_the_profile(make_world):
    async with make_world(policy=policy()) as world:
        await given(world)
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        assert await alice.standing_approvals() == []
        with pytest.raises(ApprovalRequired):
            await alice.submit("set", [SET])


async def test_of_two_tasks_that_race_for_the_last_use_one_is_admitted(governed):
    await given(governed, times=1)
    outcomes = []

    async def race(session):
        try:
            outcomes.append(await ran(session))
        except ApprovalRequired:
            outcomes.append("refused")

    async with governed.sessions(ALICE).open_session() as one, governed.sessions(ALICE).open_session() as other:
        plan = await one.prepare("set", [SET])

        async def execute():
            try:
                outcomes.append((await (await other.execute(plan)).wait()).status == "SUCCESS")
            except (ApprovalRequired, PlanStale):  # stale: the one that was admitted has changed the line already
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            for session in (one, other, one):
                nursery.start_soon(race, session)
            nursery.start_soon(execute)
    assert sorted(outcomes, key=str) == [True, "refused", "refused", "refused"]
    assert driven(governed).count("set") == 1


async def test_what_is_revoked_is_not_used_although_the_record_of_that_has_not_been_written_yet(governed):
    approval = await given(governed)
    async with (
        governed.sessions(ALICE).open_session() as alice,
        governed.sessions(BOB).open_session() as bob,
        trio.open_nursery() as nursery,
    ):
        governed.journal.hold()
        nursery.start_soon(bob.revoke_approval, approval["approval_id"])
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ApprovalRequired):
            await alice.submit("set", [SET])
        governed.journal.release()


async def test_one_that_cannot_be_recorded_is_not_given(governed):
    governed.journal.fail("the disk is full")
    with pytest.raises(AuditUnavailable):
        await given(governed)
    governed.journal.heal()
    async with governed.sessions(ALICE).open_session() as alice:
        assert await alice.standing_approvals() == []


# --- it is not used for -----------------------------------------------------------------------------------------------


async def test_a_task_that_is_refused_and_a_dry_run_take_no_use(governed):
    await given(governed)
    await given(governed, tool="bench.rates", args={"tag": ANY})
    async with governed.sessions(ALICE).open_session() as alice:
        done = await (await alice.submit("set", [SET], dry_run=True)).wait()
        assert done.status == "SUCCESS"
        with pytest.raises(RateLimited):
            await alice.submit("often", [SET, *[step("bench.rates")] * 2])
        assert [one["left"] for one in await alice.standing_approvals()] == [5, 5]
        assert driven(governed) == []


async def test_a_rollback_is_not_covered_for_it_drives_what_has_no_bounds(governed):
    await given(governed)
    async with governed.sessions(ALICE).open_session() as alice:
        with pytest.raises(ApprovalRequired):
            await alice.submit("set", [SET], rollback_on_failure=True)
        plan = await alice.prepare("set", [SET], rollback_on_failure=True)
        with pytest.raises(ApprovalRequired):
            await alice.execute(plan)


async def test_the_plan_of_a_tainted_conversation_waits_for_a_person(governed):
    await given(governed)
    async with governed.sessions(ALICE).open_session(conversation=True) as model:
        plan = await model.prepare("set", [SET])
        await model.run("bench.level", line=1)
        for one in (plan, await model.prepare("set", [SET])):
            with pytest.raises(ApprovalRequired):
                await model.execute(one)
        async with governed.sessions(ALICE).open_session() as alice:
            with pytest.raises(ApprovalRequired):
                await alice.execute(next(one.plan_id for one in await alice.plans() if one.tainted_by is not None))


# --- who may give, see and revoke it ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "by", "principal", "match"),
    [
        ({}, DAN, ALICE.key, "the right 'approve' is not given by policy 'others'"),
        ({"right": "admin"}, BOB, ALICE.key, "the right 'admin' is not given by policy 'bob'"),
        ({"other": True, "own": ("approve",)}, ALICE, ALICE.key, "another principal than the one that it is for"),
        ({"persons": 2, "own": ("approve",)}, ALICE, ALICE.key, "another principal than the one that it is for"),
    ],
    ids=["no right", "not the right that the rule names", "one's own where another must", "one's own where two must"],
)
async def test_it_is_given_only_by_a_principal_whose_approval_would_count(make_world, rule, by, principal, match):
    async with make_world(policy=policy(**rule)) as world, world.sessions(ALICE).open_session():
        with pytest.raises(PermissionDenied, match=match):
            await given(world, by=by, principal=principal)


async def test_one_for_oneself_is_given_where_ones_own_approval_counts(make_world):
    async with make_world(policy=policy(own=("approve",))) as world, world.sessions(ALICE).open_session() as alice:
        await alice.grant_approval("bench.set", LIGHT, times=1, within_s=60)
        assert await ran(alice)


async def test_a_model_gives_none_and_no_other_principal_revokes_one(governed):
    approval = await given(governed)
    async with (
        governed.sessions(BOB).open_session(conversation=True) as model,
        governed.sessions(ALICE).open_session() as alice,
        governed.sessions(DAN).open_session() as dan,
    ):
        with pytest.raises(PermissionDenied, match="a conversation has no rights"):
            await model.grant_approval("bench.set", LIGHT, times=1, within_s=60)
        (seen,) = await alice.standing_approvals()
        assert (seen["text"], seen["may_revoke"]) == (approval["text"], False)
        for session in (alice, dan):
            with pytest.raises(PermissionDenied):
                await session.revoke_approval(approval["approval_id"])
        assert await ran(alice)


async def test_a_right_that_is_lost_while_it_is_recorded_gives_none(governed):
    async with governed.sessions(ALICE).open_session() as alice, governed.sessions(BOB).open_session() as bob:
        refused = []

        async def give():
            with pytest.raises(PermissionDenied) as error:
                await bob.grant_approval("bench.set", LIGHT, times=1, within_s=60, principal=ALICE.key)
            refused.append(error.value)

        async with trio.open_nursery() as nursery:
            governed.journal.hold()
            nursery.start_soon(give)
            await trio.testing.wait_all_tasks_blocked()
            governed.runtime.replace_policy(policy(bob=()))
            governed.journal.release()
        assert len(refused) == 1
        assert await alice.standing_approvals() == []


@pytest.mark.parametrize(
    ("tool", "args", "error", "match"),
    [
        ("bench.sett", LIGHT, ToolNotFound, "bench.set"),
        ("bench.set", {"line": ONE}, InvalidParams, "bench.set needs value: bound it by equals, by min and max, or"),
        ("bench.set", {**LIGHT, "line": 1}, InvalidParams, "/args/line"),
        ("bench.set", {**LIGHT, "line": {"equals": 1, "max": 2}}, InvalidParams, "/args/line"),
        ("bench.set", {**LIGHT, "line": {"min": 2, "max": 1}}, InvalidParams, "min not above max"),
        ("bench.set", {**LIGHT, "line": {"min": "a"}}, InvalidParams, "numbers"),
        ("bench.set", {**LIGHT, "line": {"any": False}}, InvalidParams, "/args/line/any"),
        ("bench.set", {**LIGHT, "line": {"equals": "x" * 5000}}, InvalidParams, "bytes, and 4096 are the most"),
    ],
)
async def test_what_it_would_permit_must_be_said_in_full(governed, tool, args, error, match):
    with pytest.raises(error, match=match):
        await given(governed, tool, args)


async def test_a_dry_run_says_in_words_what_it_would_permit_and_gives_nothing(governed):
    args = {"line": {"equals": "ARM\u202e"}, "value": {"min": 0, "max": 90}}
    args |= {"ms": ANY, "n": {"max": 3}, "tag": {"min": 1}}
    told = await given(governed, args=args, dry_run=True)
    assert told["text"].startswith("uid:1001 may run bench.set 5 times until 20")
    assert told["text"].endswith(
        'with line "ARM\\u202e", value from 0 to 90, any ms, n 3 or less, tag 1 or more, and no other args'
    )
    assert "approval_id" not in told
    assert (await given(governed, "bench.read", {}, times=1, dry_run=True))["text"].endswith(", without args")
    async with governed.sessions(BOB).open_session() as bob:
        assert await bob.standing_approvals() == []
    assert governed.records("approval.grant") == []


async def test_the_standing_approvals_of_one_principal_are_bounded(governed, monkeypatch):
    monkeypatch.setattr(standing, "MOST_GIVEN", 2)
    first, _ = [await given(governed) for _ in range(2)]
    with pytest.raises(QueueFull, match="2 standing approvals of yours"):
        await given(governed)
    await given(governed, by=CAROL)
    async with governed.sessions(BOB).open_session() as bob:
        await bob.revoke_approval(first["approval_id"])
    await given(governed)


@pytest.fixture
async def simulator(tmp_path):
    """The simulated board, where ALICE approves her own tasks from risk 2 on."""
    rules = [ApprovalRule(from_risk=2)]
    entry = PolicyEntry(name="all", match=Match(any=True), max_risk=3, rights=["approve"], approval=rules)
    async with running(simulated(tmp_path, default_policy=(entry,))) as world:
        yield world


@pytest.mark.slow
async def test_a_control_loop_is_not_covered(simulator):
    async with simulator.sessions().open_session() as alice:
        await alice.grant_approval("gpio.set", {"line": ANY, "value": ANY, "chip": ANY}, times=1000, within_s=60)
        assert await ran(alice, step("gpio.set", line="LED", value=1))
        with pytest.raises(ApprovalRequired):
            async with simulator.sessions().loop(100, print, lines=["LED"]):
                pytest.fail("it was granted its lines")


@pytest.mark.slow
async def test_the_limits_of_the_profile_hold_as_ever(simulator):
    async with simulator.sessions().open_session() as alice:
        await alice.grant_approval("gpio.set", {"line": ANY, "value": ANY}, times=100, within_s=60)
        task = await alice.submit("often", [step("gpio.set", line="PUMP", value=at % 2) for at in range(50)])
        codes = [one.error_code for one in (await task.wait()).steps]
        assert LimitViolated.code in codes
