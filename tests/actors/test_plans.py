"""Plans: what is shown is what runs, once, by the one that prepared it, and only with the approvals it needs."""

from __future__ import annotations

import contextlib
import hashlib

import orjson
import pytest
import rfc8785
import trio
import trio.testing
from attrs import evolve
from hypothesis import given, settings, strategies as st
from support.doubles import Op
from support.world import ALICE, BOB, BenchWorld, reset_halt, running

from hearth import step
from hearth.actors.approval import plans
from hearth.audit.record import args_hash
from hearth.errors import (
    ApprovalRequired,
    AuditUnavailable,
    InvalidParams,
    PermissionDenied,
    PlanStale,
    QueueFull,
    RpcError,
    SessionInvalid,
)
from hearth.policy.principal import Principal
from hearth.policy.rules import ApprovalRule, Match, PolicyEntry
from hearth.tools import PathUse, Preview, Tool

CAROL = Principal(kind="unix", uid=1003, gid=1003)
DAN = Principal(kind="unix", uid=1004, gid=1004)
ARM = step("bench.arm", line=1, value=1)
SET = step("bench.set", line=1, value=1)


def policy(**rule):
    """ALICE's entry, with one rule for risk 3; BOB and CAROL may approve, DAN may not."""
    own = {"rights": ["approve", "reset_halt"]} if rule.pop("own", True) else {}
    return (
        PolicyEntry(
            name="agents", match=Match(uid=1001), max_risk=3, approval=[ApprovalRule(from_risk=3, **rule)], **own
        ),
        PolicyEntry(name="operators", match=[Match(uid=1002), Match(uid=1003)], rights=["approve"]),
        PolicyEntry(name="others", match=Match(any=True), max_risk=3),
    )


@pytest.fixture
async def governed(make_world):
    """A world in which what has risk 3 needs the approval of one principal, perhaps its own."""
    async with make_world(policy=policy(), plan_ttl_s=100) as world:
        yield world


def driven(world):
    """The labels of the transactions that have changed something."""
    return [label for label in world.observer.labels("begin") if label not in ("level", "read")]


# --- who may execute what, and when -----------------------------------------------------------------------------------


async def mutated(world, alice):
    plan = await alice.prepare("arm", [ARM])
    await alice.approve(plan)
    await alice.execute(evolve(plan, hash="sha256:" + "0" * 64))


async def mutated_when_approved(world, alice):
    plan = await alice.prepare("arm", [ARM])
    await alice.approve(evolve(plan, hash="sha256:" + "0" * 64))


async def replayed(world, alice):
    plan = await alice.prepare("read", [step("bench.read")])
    await (await alice.execute(plan)).wait()
    await alice.execute(plan)


async def approved_twice_for_two_runs(world, alice):
    plan = await alice.prepare("read", [step("bench.danger")])
    await alice.approve(plan)
    await (await alice.execute(plan)).wait()
    await alice.approve(plan)


async def stale(world, alice):
    plan = await alice.prepare("set", [SET])
    world.driver.levels[1] = 1
    await alice.execute(plan)


async def expired(world, alice):
    plan = await alice.prepare("set", [SET])
    await trio.sleep(101)
    await alice.execute(plan)


async def expired_when_approved(world, alice):
    plan = await alice.prepare("arm", [ARM])
    await trio.sleep(101)
    await alice.approve(plan)


async def prepared_before_a_halt(world, alice):
    plan = await alice.prepare("arm", [ARM])
    await alice.approve(plan)
    await alice.halt("smoke")
    await alice.reset_halt()
    await alice.execute(plan)


async def foreign(world, alice):
    plan = await alice.prepare("set", [SET])
    async with world.sessions(DAN).open_session() as dan:
        await dan.execute(plan)


async def unheard_of(world, alice):
    await alice.execute("01M808JH00KFNFV9TTJD188MQ9")


@pytest.mark.spec("design 8: plan.execute")
@pytest.mark.parametrize(
    "attempt",
    [
        mutated, mutated_when_approved, replayed, approved_twice_for_two_runs, stale, expired, expired_when_approved,
        prepared_before_a_halt, foreign, unheard_of,
    ],
    ids=lambda attempt: attempt.__name__,
)  # fmt: skip
async def test_a_plan_that_is_not_what_it_was_when_it_was_shown_does_not_run(governed, attempt, autojump_clock):
    async with governed.sessions(ALICE).open_session() as alice:
        with pytest.raises(PlanStale) as refused:
            await attempt(governed, alice)
    assert refused.value.data["reason"]
    assert driven(governed) == []


@pytest.mark.spec("design 8: plan.execute")
async def test_the_plan_of_another_principal_is_no_different_from_one_that_does_not_exist(governed):
    async with governed.sessions(ALICE).open_session() as alice, governed.sessions(DAN).open_session() as dan:
        plan = await alice.prepare("arm", [ARM])
        told = []
        for plan_id in (plan.plan_id, "none"):
            approve = dan.approve(evolve(plan, plan_id=plan_id))
            for act in (dan.execute(plan_id), dan.reject(plan_id), dan.plan(plan_id), approve):
                with pytest.raises(RpcError) as refused:
                    await act
                told.append((type(refused.value), refused.value.message, refused.value.data))
        assert told[:4] == told[4:]
        assert await dan.plans() == []
        assert [one.state for one in await alice.plans()] == ["waiting"]


@pytest.mark.spec("design 8: plan.list, plan.get, plan.approve, plan.reject")
async def test_only_the_right_approves_and_a_plan_of_ones_own_is_withdrawn_without_it(make_world):
    async with make_world(policy=policy(own=False)) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        with pytest.raises(PermissionDenied, match="the right 'approve' is not given by policy 'agents'"):
            await alice.approve(plan)
        await alice.reject(plan, reason="no longer needed")
        with pytest.raises(PermissionDenied, match="no longer needed"):
            await alice.execute(plan)
        assert driven(world) == []


@pytest.mark.spec("design 8: plan.list, plan.get, plan.approve, plan.reject")
@pytest.mark.parametrize("rule", [{"persons": 2}, {"other": True}], ids=["two persons", "another person"])
async def test_a_plan_that_another_must_approve_cannot_be_approved_by_its_author(make_world, rule):
    async with make_world(policy=policy(**rule)) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        assert plan.needs == {"right": "approve", "persons": rule.get("persons", 1), "other": True}
        with pytest.raises(PermissionDenied, match="another principal than the one that asked for it"):
            await alice.approve(plan)
        with pytest.raises(ApprovalRequired):
            await alice.execute(plan)
        approvers = [BOB, CAROL][: rule.get("persons", 1)]
        for missing, who in zip(range(len(approvers) - 1, -1, -1), approvers, strict=True):
            async with world.sessions(who).open_session() as session:
                (listed,) = await session.plans()
                shown = await session.plan(listed.plan_id)
                assert (shown.own, shown.principal, shown.steps) == (False, ALICE.key, plan.steps)
                assert await session.approve(shown) == missing
                with pytest.raises((InvalidParams, PlanStale)):
                    await session.approve(shown)
        assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"
        (executed,) = [record for record in world.journal.records if record["event"] == "plan.execute"]
        assert executed["approved_by"] == [who.key for who in approvers]


@pytest.mark.spec("design 8: plan.list, plan.get, plan.approve, plan.reject")
async def test_one_rejection_ends_a_plan_that_one_of_two_has_approved(make_world):
    async with make_world(policy=policy(persons=2)) as world, world.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        async with world.sessions(BOB).open_session() as bob, world.sessions(CAROL).open_session() as carol:
            await bob.approve(plan)
            await carol.reject(plan.plan_id, reason="the cell is open")
            with pytest.raises(PlanStale):
                await bob.approve(plan)
        with pytest.raises(PermissionDenied, match='uid:1003 has rejected the plan: "the cell is open"'):
            await alice.execute(plan, wait_ms=60_000)
        (shown,) = await alice.plans()
        assert (shown.state, shown.rejected_by, shown.reason) == ("rejected", CAROL.key, "the cell is open")
        assert driven(world) == []


@pytest.mark.spec("design 8: plan.list, plan.get, plan.approve, plan.reject")
async def test_an_approval_in_one_client_releases_the_plan_of_another(governed):
    async with (
        governed.client(ALICE) as ours, ours.open_session() as alice,
        governed.client(BOB) as theirs, theirs.open_session() as bob,
    ):  # fmt: skip
        ran = []

        async def execute():
            ran.append(await (await alice.execute(plan, wait_ms=60_000)).wait())

        seq = (await bob.call("plan.list"))["seq"]
        async with trio.open_nursery() as nursery:

            async def watch():
                listed = await bob.call("plan.list", after_seq=seq, wait_ms=60_000)
                (shown,) = listed["plans"]
                await bob.call("plan.approve", plan_id=shown["plan_id"], hash=shown["hash"])

            nursery.start_soon(watch)
            plan = await alice.prepare("arm", [ARM])
            nursery.start_soon(execute)
        assert [one.status for one in ran] == ["SUCCESS"]


async def test_who_waits_for_an_approval_that_does_not_come_is_refused_and_may_ask_again(governed, autojump_clock):
    with trio.fail_after(10_000):
        async with governed.sessions(ALICE).open_session() as alice:
            plan = await alice.prepare("arm", [ARM])
            began = trio.current_time()
            with pytest.raises(ApprovalRequired, match=f"hearth approvals approve {plan.plan_id}"):
                await alice.execute(plan, wait_ms=60_000)
            assert trio.current_time() - began == pytest.approx(60)
            await alice.approve(plan)
            assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"


async def test_a_plan_that_expires_while_its_execution_waits_is_stale(make_world, autojump_clock):
    with trio.fail_after(10_000):
        async with make_world(policy=policy(), plan_ttl_s=5) as world, world.sessions(ALICE).open_session() as alice:
            plan = await alice.prepare("arm", [ARM])
            with pytest.raises(PlanStale, match="it has expired"):
                await alice.execute(plan, wait_ms=60_000)


@pytest.mark.spec("design 8: plan.execute")
async def test_of_two_that_execute_one_plan_at_once_one_does(governed):
    async with governed.sessions(ALICE).open_session() as one, governed.sessions(ALICE).open_session() as other:
        plan = await one.prepare("arm", [ARM])
        await one.approve(plan)
        outcomes = []

        async def execute(session):
            try:
                outcomes.append((await (await session.execute(plan)).wait()).status)
            except PlanStale as error:
                outcomes.append(error.data["task_id"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(execute, one)
            nursery.start_soon(execute, other)
        assert len(outcomes) == 2
        assert outcomes.count("SUCCESS") == 1
        assert driven(governed).count("set") == 1


async def test_a_session_that_ends_while_its_plan_waits_is_answered_and_the_plan_stays(governed):
    async with governed.sessions(ALICE).open_session() as keeps:
        async with trio.open_nursery() as nursery:
            refused = []

            async def execute(session, plan):
                with pytest.raises(SessionInvalid) as ended:
                    await session.execute(plan, wait_ms=60_000)
                refused.append(ended.value)

            async with governed.sessions(ALICE).open_session() as session:
                plan = await session.prepare("arm", [ARM])
                nursery.start_soon(execute, session, plan)
                await trio.testing.wait_all_tasks_blocked()
        assert len(refused) == 1
        await keeps.approve(plan)
        assert (await (await keeps.execute(plan)).wait()).status == "SUCCESS"


@pytest.mark.spec("design 8: plan.execute")
async def test_a_dry_run_and_a_repeat_with_a_key_need_the_approval_too(governed):
    async with governed.sessions(ALICE).open_session() as alice:
        for more in ({"dry_run": True}, {"idempotency_key": "k"}, {"max_risk_level": 3}):
            with pytest.raises(ApprovalRequired) as refused:
                await alice.submit("arm", [SET, ARM], **more)
            assert refused.value.data["step_index"] == 1
        with pytest.raises(PermissionDenied, match="max_risk_level=2 < tool=3"):
            await alice.prepare("arm", [ARM], max_risk_level=2)
        assert driven(governed) == []
    rejected = [record for record in governed.journal.records if record["event"] == "task.reject"]
    assert [record["error_code"] for record in rejected] == [-32016, -32016, -32016, -32003]


# --- what a plan shows ------------------------------------------------------------------------------------------------


@pytest.mark.spec("design 8: plan.prepare")
async def test_preparing_a_plan_touches_nothing_and_refuses_what_a_submission_would_be_refused_for(world):
    async with world.sessions(ALICE).open_session() as session:
        await session.prepare("x", [SET, step("bench.big", n=1), step("bench.many", n=3)], exclusive=True)
        assert world.observer.labels("begin") == ["level"]
        for steps, error in (
            ([step("bench.none")], "Tool not found"),
            ([step("bench.set", line="x", value=1)], "Invalid params"),
            ([step("bench.file", path="/etc/shadow")], "Permission denied"),
            ([SET] * 300, "at most 256 steps"),
            ([step("bench.limited")] * 3, "at most 2 times"),
        ):
            with pytest.raises(RpcError, match=error):
                await session.prepare("x", steps)
        assert world.observer.labels("begin") == ["level"]


async def test_paths_of_a_plan_are_checked_before_it_is_shown_and_before_it_runs(world):
    async with world.sessions(ALICE).open_session() as session:
        world.paths.spin_up()
        plan = await session.prepare("x", [step("bench.file", path="/allowed/slow")])
        with pytest.raises(PermissionDenied):
            await session.prepare("x", [step("bench.file", path="/slow")])
        looked = world.paths.looking
        assert (await (await session.execute(plan)).wait()).status == "SUCCESS"
        assert world.paths.looking > looked


async def test_what_cannot_be_read_before_is_an_error_that_says_so(world):
    async with world.sessions(ALICE).open_session() as session:
        world.driver.levels = None
        with pytest.raises(RpcError):
            await session.prepare("x", [SET])
        assert await session.plans() == []


async def test_without_a_read_that_is_permitted_nothing_is_shown_and_nothing_is_relied_on(make_world):
    blind = PolicyEntry(name="blind", match=Match(any=True), tools=["bench.set"])
    async with make_world(policy=(blind,)) as world, world.sessions(ALICE).open_session() as session:
        plan = await session.prepare("x", [SET])
        assert [(one.before, one.after) for one in plan.steps] == [(None, None)]
        world.driver.levels[1] = 1
        assert (await (await session.execute(plan)).wait()).status == "SUCCESS"
        assert "level" not in world.observer.labels("begin")


ARGS = st.dictionaries(
    st.sampled_from(["tag", "x", "é", "\U0001f600", "10", "2"]),
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    max_size=3,
)


async def _acts(ctx, _args):
    return {"tag": await ctx.transact(Op("t"))}


FREE = Tool(
    name="vendor.free", risk_level=3, timeout_ms=1000, description="takes any args", params_schema={"type": "object"},
    result_schema={"type": "object"}, capability="CAP_GPIO_RW", default_rate="100/s", bus=lambda _args: "a", run=_acts,
)  # fmt: skip
STEPS = st.lists(
    st.builds(lambda args: step("vendor.free", **args), ARGS)
    | st.builds(lambda line, value: step("bench.arm", line=line, value=value), st.integers(0, 2), st.integers(0, 1)),
    min_size=1,
    max_size=5,
)


@pytest.mark.spec("design 8: plan.prepare")
@pytest.mark.parametrize(
    ("change", "pointer", "cure"),
    [
        ({"steps": [{"tool": "bench.set", "args": {"line": 1, "value": 1, "valeu": 0}}]}, "/valeu", "value"),
        (
            {"steps": [{"tool": "bench.set", "args": {"line": 1, "value": 1}, "dry_run": "yes"}]},
            "/task/steps/0/dry_run",
            "",
        ),
        ({"constraints": {"dryrun": True}}, "/task/constraints/dryrun", "dry_run"),
        ({"intents": "x"}, "/task/intents", "intent"),
    ],
    ids=["an arg", "a member of a step", "a constraint", "a member of the task"],
)
async def test_a_word_that_would_do_nothing_is_not_put_to_a_person(governed, change, pointer, cure):
    task = {"intent": "set", "steps": [SET.to_wire()], **change}
    async with governed.sessions(ALICE).open_session() as alice:
        with pytest.raises(InvalidParams) as refused:
            # As a client of another make sends it, which does not ask for `strict`.
            await alice._link.call("plan.prepare", {"session_id": alice.session_id, "task": task})
        assert refused.value.data["path"] == pointer
        assert cure in refused.value.message
        assert await alice.plans() == []
        if "constraints" not in change:
            done = await alice._link.call("task.submit", {"session_id": alice.session_id, "task": task})
            assert len(done["ignored"]) == 1, "a task that needs no person is as forgiving as ever"


@pytest.mark.spec("design 8: plan.prepare")
async def test_a_plan_is_shown_with_the_same_lines_when_it_is_prepared_and_when_it_is_read(governed):
    async with governed.sessions(ALICE).open_session() as alice, governed.sessions(BOB).open_session() as bob:
        await alice.run("bench.set", line=1, value=0)
        plan = await alice.prepare('arm"\n0. bench.read', [ARM, step("bench.read", tag="a b=1")])
        assert list(plan.shown) == [
            r'intent "arm\"\n0. bench.read"',
            "0. bench.arm line=1 value=1",
            "   value: 0 -> 1  [risk 3, high; cannot be rolled back]",
            '1. bench.read tag="a b=1"',
            "   [risk 0, safe]",
        ]
        assert (await bob.plan(plan.plan_id)).shown == plan.shown


@pytest.mark.spec("design 8: plan.prepare")
@settings(max_examples=60, deadline=None)
@given(STEPS, st.text(max_size=20).filter(lambda text: text.isprintable()), st.booleans())
def test_what_is_shown_is_what_is_hashed_and_what_runs(steps, intent, rollback):
    async def main():
        made = BenchWorld(policy=policy(), extra_tools=(FREE,))
        async with running(made) as world, world.sessions(ALICE).open_session() as alice:
            shown = await alice._link.call(
                "plan.prepare",
                {
                    "session_id": alice.session_id,
                    "task": {
                        "intent": intent,
                        "steps": [one.to_wire() for one in steps],
                        "constraints": {"rollback_on_failure": rollback},
                    },
                },
            )
            document = {name: shown[name] for name in ("intent", "constraints", "steps")}
            assert shown["hash"] == args_hash(document)
            with contextlib.suppress(rfc8785.IntegerDomainError):  # RFC 8785 knows no integers beyond 2^53
                assert shown["hash"] == "sha256:" + hashlib.sha256(rfc8785.dumps(document)).hexdigest()
            plan = {"plan_id": shown["plan_id"], "hash": shown["hash"]}
            await alice.call("plan.approve", **plan)
            executed = await alice.call("plan.execute", **plan)
            task = await alice.task(executed["task_id"])
            assert (await task.wait()).status == "SUCCESS"
            submitted = next(
                record
                for record in world.journal.records
                if record["event"] == "task.submit" and record["task_id"] == executed["task_id"]
            )
            assert submitted["intent"] == shown["intent"]
            assert submitted["steps"] == [
                {"tool": one["tool"], "args_hash": args_hash(one["args"])} for one in shown["steps"]
            ]
            levels = dict.fromkeys(range(3))
            for one in shown["steps"]:
                if one["tool"] == "bench.arm":
                    assert one["before"] == {"value": levels[one["args"]["line"]]}
                    levels[one["args"]["line"]] = one["args"]["value"]
                    assert one["after"] == {"value": one["args"]["value"]}
            assert {line: level for line, level in levels.items() if level is not None} == world.driver.levels

    trio.run(main)


# --- bounds and records -----------------------------------------------------------------------------------------------


async def test_a_principal_has_a_bounded_number_of_plans_and_ended_ones_make_room(make_world):
    limits = {"policy": policy(), "max_plans_per_principal": 3}
    async with make_world(**limits) as world, world.sessions(ALICE).open_session() as alice:
        plans = [await alice.prepare("x", [ARM]) for _ in range(3)]
        with pytest.raises(QueueFull, match="3 plans are prepared"):
            await alice.prepare("x", [ARM])
        async with world.sessions(DAN).open_session() as dan:
            await dan.prepare("x", [ARM])
        await alice.reject(plans[1])
        await alice.prepare("x", [ARM])
        assert plans[1].plan_id not in [one.plan_id for one in await alice.plans()]


async def test_a_plan_too_long_to_be_read_is_refused(world):
    async with world.sessions(ALICE).open_session() as alice:
        with pytest.raises(InvalidParams, match="at most 63488 bytes as it is shown"):
            await alice.prepare("x", [step("bench.read", tag="x" * 70_000)])


async def test_the_memory_of_plans_is_charged_and_comes_back_when_they_expire(governed, autojump_clock):
    with trio.fail_after(10_000):
        async with governed.sessions(ALICE).open_session(heartbeat_ms=86_000_000) as alice:
            account = governed.runtime.memory.for_principal(ALICE.key)
            await alice.run("bench.read")
            plan = await alice.prepare("x", [step("bench.danger", tag="x" * 10_000)])
            charged = account.used
            assert charged > 12_000
            await trio.sleep(101)
            assert account.used <= charged - 12_000
            assert [*governed.runtime.approvals] == []
            with pytest.raises(PlanStale):
                await alice.execute(plan)


@pytest.mark.spec("design 8: plan.list, plan.get, plan.approve, plan.reject")
async def test_an_approval_that_cannot_be_recorded_does_not_count(governed):
    async with governed.sessions(ALICE).open_session() as alice:
        plan = await alice.prepare("arm", [ARM])
        governed.journal.fail("the disk is full")
        with pytest.raises(AuditUnavailable):
            await alice.approve(plan)
        with pytest.raises(AuditUnavailable):
            await alice.prepare("arm", [step("bench.danger")])
        governed.journal.heal()
        assert [one.state for one in await alice.plans()] == ["waiting"]


async def test_every_step_of_a_plans_life_is_on_record_before_it_counts(governed):
    async with governed.sessions(ALICE).open_session() as alice, governed.sessions(BOB).open_session() as bob:
        plan = await alice.prepare("arm", [ARM])
        await bob.approve(plan, reason="I stand beside it")
        done = await (await alice.execute(plan)).wait()
        other = await alice.prepare("arm", [ARM])
        await bob.reject(other, reason="once is enough")
    records = [record for record in governed.journal.records if record["event"].startswith("plan.")]
    assert [(record["event"], record["principal"], record["plan_id"]) for record in records] == [
        ("plan.prepare", ALICE.key, plan.plan_id),
        ("plan.approve", BOB.key, plan.plan_id),
        ("plan.execute", ALICE.key, plan.plan_id),
        ("plan.prepare", ALICE.key, other.plan_id),
        ("plan.reject", BOB.key, other.plan_id),
    ]
    assert {record["hash"] for record in records[:3]} == {plan.hash}
    assert [record.get("reason") for record in records] == [None, "I stand beside it", None, None, "once is enough"]
    assert records[2]["task_id"] == done.task_id
    order = [record["event"] for record in governed.journal.records]
    at = order.index("plan.execute")
    assert order[at : at + 3] == ["plan.execute", "task.submit", "task.step.start"]


async def test_plans_that_have_ended_leave_no_timer_behind(make_world):
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        before = len(world.runtime._timers._heap)
        for _ in range(200):
            await alice.reject(await alice.prepare("arm", [ARM]))
        assert len(world.runtime._timers._heap) < before + 150


async def test_plans_of_others_that_have_ended_make_room_for_all(make_world, monkeypatch):
    monkeypatch.setattr(plans, "MOST_PLANS", 4)
    async with make_world(policy=policy()) as world, world.sessions(ALICE).open_session() as alice:
        for _ in range(4):
            await (await alice.execute(await alice.prepare("read", [step("bench.read")]))).wait()
        async with world.sessions(DAN).open_session() as dan:
            for _ in range(4):
                await dan.prepare("read", [step("bench.read")])
            with pytest.raises(QueueFull, match="too many plans are prepared"):
                await alice.prepare("read", [step("bench.read")])


@pytest.mark.parametrize("step_s", [1_776_638_881.0 - 1000, -86_400.0], ids=["from 1970 to today", "back by a day"])
async def test_no_step_of_the_wall_clock_changes_the_age_of_a_plan_an_approval_or_a_key(step_s):
    """clock_gettime(2): CLOCK_BOOTTIME has no such steps; OctoPrint 3266: a board without a clock begins in 1970."""
    wall, up = [1000.0 if step_s > 0 else 1_776_638_881.0], [7.0]
    made = BenchWorld(policy=policy(), plan_ttl_s=100)
    made.parts = evolve(made.parts, clock=lambda: wall[0], uptime=lambda: up[0])
    async with running(made) as world:
        raw = await world.connect(ALICE).open()
        first = await raw.submit(("read", {}), key="k")
        async with world.sessions(ALICE).open_session() as alice:
            plan, late = await alice.prepare("set", [SET]), await alice.prepare("set", [SET])
            wall[0] += step_s
            up[0] += 1
            assert (await (await alice.execute(plan)).wait()).status == "SUCCESS"
            assert await raw.submit(("read", {}), key="k") == {**first, "status": "SUCCESS", "repeated": True}
            up[0] += 99
            with pytest.raises(PlanStale, match="has expired"):
                await alice.execute(late)
            up[0] += 7 * 86_400
            assert "repeated" not in await raw.submit(("read", {}), key="k")


async def test_a_plan_is_stale_when_its_time_is_over_also_where_the_machine_has_slept():
    # Trio's clock stands still while a machine sleeps, and its uptime goes on.
    up = [7.0]
    made = BenchWorld(policy=policy(), plan_ttl_s=100)
    made.parts = evolve(made.parts, uptime=lambda: up[0])
    async with running(made) as world:
        async with world.sessions(ALICE).open_session() as alice, world.sessions(BOB).open_session() as bob:
            ready, waiting = await alice.prepare("set", [SET]), await alice.prepare("arm", [ARM])
            up[0] += 100
            with pytest.raises(PlanStale, match="has expired"):
                await alice.execute(ready)
            with pytest.raises(PlanStale, match="has expired"):
                await bob.approve(waiting)
            assert await alice.plans() == await bob.plans() == []
        assert driven(world) == []


@pytest.mark.spec("design 8: plan.list, plan.get, plan.approve, plan.reject")
async def test_a_list_of_plans_has_no_contents_stays_below_64_kib_and_counts_what_it_leaves_out(make_world):
    # 255 plans of 60 KiB each were one answer of 15 MiB, in one turn of the event loop.
    entries = tuple(
        PolicyEntry(
            name=f"entry {number}", match=Match(uid=2000 + number), max_risk=3, approval=[ApprovalRule(from_risk=3)]
        )
        for number in range(16)
    )
    others = [Principal(kind="unix", uid=2000 + number, gid=2000) for number in range(16)]
    async with make_world(policy=(*entries, *policy()), plan_ttl_s=10_000) as world:
        async with world.sessions(BOB).open_session() as bob:
            own = await bob.prepare("read", [step("bench.read")])
        waiting = []
        for principal in others:
            async with world.sessions(principal).open_session() as session:
                waiting += [await session.prepare("€" * 3000, [ARM]) for _ in range(15)]
        async with world.sessions(BOB).open_session() as bob:
            answer = await bob.call("plan.list")
            assert len(orjson.dumps(answer)) < 64 << 10
            listed = answer["plans"]
            assert len(listed) > 50
            oldest_first = [own.plan_id, *[one.plan_id for one in waiting]]
            assert [one["plan_id"] for one in listed] == oldest_first[: len(listed)]
            assert answer["more"] == 1 + len(waiting) - len(listed)
            assert not any({"steps", "constraints"} & one.keys() for one in listed)
            assert listed[1]["intent"] == "€" * 119 + "…"
            hidden = await bob.plan(waiting[-1].plan_id)
            assert (hidden.intent, hidden.steps) == ("€" * 3000, waiting[-1].steps), "by its id it is to be had"


async def test_what_a_preview_reads_may_take_time_to_check(make_world):
    looks = []

    async def run(_ctx, _args):
        looks.append("look")
        return {"tag": "x"}

    common = {
        "timeout_ms": 1000,
        "description": "x",
        "params_schema": {"type": "object"},
        "run": run,
        "bus": lambda _args: "a",
    }
    common |= {"result_schema": {"type": "object"}, "capability": "CAP_GPIO_READ"}
    look = Tool(name="bench.look", risk_level=0, paths=lambda _args: [PathUse("/allowed/slow", "read")], **common)
    write = Tool(name="bench.write", risk_level=2, preview=lambda _args: Preview("bench.look", {}, ("tag",)), **common)
    async with make_world(extra_tools=(look, write)) as world, world.sessions(ALICE).open_session() as alice:
        world.paths.spin_up()
        plan = await alice.prepare("write", [step("bench.write")])
        assert plan.steps[0].before == {"tag": "x"}
        await (await alice.execute(plan)).wait()


async def test_ones_own_plan_that_waits_for_nobody_is_withdrawn_by_rejecting_it(governed):
    async with governed.sessions(ALICE).open_session() as alice, governed.sessions(DAN).open_session() as dan:
        plan = await alice.prepare("read", [step("bench.read")])
        assert plan.state == "ready"
        with pytest.raises((PermissionDenied, PlanStale)):
            await dan.reject(plan)
        assert [one.plan_id for one in await alice.plans()] == [plan.plan_id]
        await alice.reject(plan)
        assert await alice.plans() == []
        with pytest.raises(PlanStale):
            await alice.execute(plan)
        assert [one["plan_id"] for one in governed.records("plan.reject")] == [plan.plan_id]
        # One that has run is not withdrawn.
        ran = await alice.prepare("read", [step("bench.read")])
        await (await alice.execute(ran)).wait()
        with pytest.raises((PermissionDenied, PlanStale)):
            await alice.reject(ran)


async def test_plans_that_a_halt_has_ended_make_room_and_can_be_withdrawn(make_world):
    async with (
        make_world(policy=policy(), max_plans_per_principal=2) as world,
        world.sessions(ALICE).open_session() as alice,
        world.sessions(BOB).open_session() as bob,
    ):
        first, second = [await alice.prepare("arm", [ARM]) for _ in range(2)]
        world.runtime.halt.halt("smoke", "a test")
        await reset_halt(world.runtime)
        assert [one.may_approve for one in await bob.plans()] == []
        with pytest.raises(PlanStale, match="the daemon was halted after it was asked"):
            await bob.approve(first)
        await alice.reject(first)
        await alice.prepare("arm", [ARM])
        await alice.prepare("arm", [ARM])
        with pytest.raises(PlanStale):
            await alice.execute(second)
        assert driven(world) == []
