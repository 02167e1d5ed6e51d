"""A call that needs an approval: it is prepared as a plan, and runs only as that plan once a person has approved it."""

from __future__ import annotations

import mcp_types as types
import pytest
from attrs import evolve
from support.mcp import ERAS, mcp_client, text_of
from support.world import ALICE, BOB, BenchWorld, running

from hearth.mcp.names import META_ERROR, PLAN
from hearth.policy.principal import Principal
from hearth.policy.rules import ApprovalRule, Match, PolicyEntry

both_eras = pytest.mark.parametrize("mode", ERAS)
CAROL = Principal(kind="unix", uid=1003, gid=1003)
CALL = ("bench_set", {"line": 1, "value": 1})


class Person:
    def __init__(self, action="accept"):
        self.asked = []
        self._action = action

    async def __call__(self, _context, params):
        self.asked.append(params.message)
        return types.ElicitResult(action=self._action)


def world(**rule):
    own = {"rights": ["approve"]} if rule.pop("own", True) else {}
    rule = ApprovalRule(from_risk=2, **rule)
    return running(
        BenchWorld(
            policy=(
                PolicyEntry(name="agents", match=Match(uid=ALICE.uid), max_risk_ceiling=3, approval=[rule], **own),
                PolicyEntry(name="persons", match=Match(any=True), rights=["approve"]),
            )
        )
    )


def ran(w):
    return [label for label in w.observer.labels("begin") if label != "level"]


def waiting(result):
    """The error of a call that waits for an approval."""
    assert result.is_error
    return result.meta[META_ERROR]


@both_eras
@pytest.mark.parametrize("call", [CALL, ("bench_danger", {"tag": "set"})], ids=["risk 2", "risk 3"])
async def test_the_person_at_the_client_is_asked_once_with_what_changes_and_the_plan_runs(autojump_clock, mode, call):
    person = Person()
    async with world() as w, mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        result = await client.call_tool(*call)
        assert not result.is_error, text_of(result)
        assert ran(w) == ["set"]
        assert len(person.asked) == 1
        if call is CALL:
            assert "value: null -> 1" in person.asked[0]
        events = [record["event"] for record in w.journal.records if record["event"].startswith("plan.")]
        assert events == ["plan.prepare", "plan.approve", "plan.execute"]


@both_eras
async def test_the_person_at_the_client_reads_every_line_with_which_the_daemon_shows_the_plan(autojump_clock, mode):
    shown = []

    async def reads(_context, params):
        async with w.sessions(BOB).open_session() as session:
            (waits,) = await session.plans()
            shown.append((params.message.split("\n"), (await session.plan(waits.plan_id)).shown))
        return types.ElicitResult(action="decline")

    steps = [{"tool": "bench.set", "args": {"line": line, "value": 1}} for line in (1, 2)]
    arguments = {"intent": 'calm"\n0. bench.read', "steps": steps, "rollback_on_failure": True}
    async with world() as w, mcp_client(w.sessions(), mode, elicitation_callback=reads) as client:
        told = text_of(await client.call_tool(PLAN, arguments))
    assert shown, told
    ((asked, lines),) = shown
    assert asked[1:-1] == list(lines), "nothing in between, and nothing left out"
    assert [line.partition(" ")[0] for line in lines if line[0] != " "] == ["intent", "constraints", "0.", "1."]


@both_eras
async def test_a_person_who_declines_leaves_the_plan_where_it_is_and_nothing_runs(autojump_clock, mode):
    async with world() as w, mcp_client(w.sessions(), mode, elicitation_callback=Person("decline")) as client:
        result = await client.call_tool(*CALL)
        assert "does not allow it" in text_of(result)
        assert ran(w) == []


@both_eras
@pytest.mark.parametrize("rule", [{"own": False}, {"other": True}, {"persons": 2}], ids=["no right", "other", "two"])
async def test_where_this_user_may_not_approve_the_model_is_told_the_plan_and_no_person_is_asked(
    autojump_clock, mode, rule
):
    person = Person()
    approvals = rule.get("persons", 1)
    async with world(**rule) as w, mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        first = waiting(await client.call_tool(*CALL))
        assert first["code"] == -32016
        plan_id = first["data"]["plan_id"]
        again = await client.call_tool(*CALL)
        assert waiting(again)["data"]["plan_id"] == plan_id, "the same call finds its plan"
        assert f"hearth approvals approve {plan_id}" in text_of(again)
        assert "make this very call again" in text_of(again)
        assert waiting(await client.call_tool("bench_set", {"line": 1, "value": 0}))["data"]["plan_id"] != plan_id
        for number in range(approvals):
            assert ran(w) == []
            async with w.sessions(BOB if number == 0 else CAROL).open_session() as session:
                await session.approve(await session.plan(plan_id))
        assert not (await client.call_tool(*CALL)).is_error
        assert ran(w) == ["set"]
        assert person.asked == []
        assert waiting(await client.call_tool(*CALL))["data"]["plan_id"] != plan_id, "one approval, one run"


@both_eras
async def test_a_rejected_call_is_told_by_whom_and_why(autojump_clock, mode):
    async with world(other=True) as w, mcp_client(w.sessions(), mode) as client:
        plan_id = waiting(await client.call_tool(*CALL))["data"]["plan_id"]
        async with w.sessions(BOB).open_session() as session:
            await session.reject(plan_id, reason="the door is open")
        told = text_of(await client.call_tool(*CALL))
        assert f'{BOB.key} has rejected it: "the door is open"' in told
        assert ran(w) == []


@both_eras
async def test_an_approved_call_whose_state_has_changed_is_prepared_again_and_waits_again(autojump_clock, mode):
    async with world(other=True) as w, mcp_client(w.sessions(), mode) as client:
        plan_id = waiting(await client.call_tool(*CALL))["data"]["plan_id"]
        async with w.sessions(BOB).open_session() as session:
            await session.approve(await session.plan((await session.plans())[0].plan_id))
        w.driver.levels[1] = 1
        told = waiting(await client.call_tool(*CALL))
        assert told["data"]["plan_id"] != plan_id
        assert "not as it was when the plan was prepared" in told["message"]
        assert ran(w) == []


@both_eras
async def test_a_plan_of_several_steps_is_approved_as_a_whole(autojump_clock, mode):
    person = Person()
    steps = [{"tool": "bench_read", "args": {}}, {"tool": CALL[0], "args": CALL[1]}]
    async with world() as w, mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        result = await client.call_tool(PLAN, {"intent": "look, then set", "steps": steps})
        assert not result.is_error, text_of(result)
        assert ran(w) == ["read", "set"]
        assert len(person.asked) == 1


@both_eras
@pytest.mark.parametrize(
    ("approved", "asked"),
    [({}, {"dry_run": True}), ({"dry_run": True}, {}), ({"abort_on_step_failure": False}, {})],
    ids=["a dry run after a run", "a run after a dry run", "with another constraint"],
)
async def test_an_approval_is_for_a_call_with_the_same_constraints_alone(autojump_clock, mode, approved, asked):
    plan = {"intent": "set", "steps": [{"tool": CALL[0], "args": CALL[1]}]}
    async with world(other=True) as w, mcp_client(w.sessions(), mode) as client:
        first = waiting(await client.call_tool(PLAN, {**plan, **approved}))["data"]["plan_id"]
        async with w.sessions(BOB).open_session() as session:
            await session.approve(await session.plan((await session.plans())[0].plan_id))
        assert waiting(await client.call_tool(PLAN, {**plan, **asked}))["data"]["plan_id"] != first
        assert ran(w) == []
        assert not (await client.call_tool(PLAN, {**plan, **approved})).is_error


@both_eras
@pytest.mark.parametrize("left", ["no right", "no entry"])
async def test_a_person_who_may_no_longer_approve_when_they_accept_approves_nothing(autojump_clock, mode, left):
    async with world() as w:

        class Late(Person):
            async def __call__(self, context, params):
                entries = [evolve(one, rights=()) for one in w.parts.policy if one.name == "agents"]
                w.runtime.replace_policy([] if left == "no entry" else entries)
                return await super().__call__(context, params)

        person = Late()
        async with mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
            result = await client.call_tool(*CALL)
            assert result.is_error
            assert len(person.asked) == 1
            assert ran(w) == []
            assert w.records("plan.approve") == []


@both_eras
async def test_an_approval_elicited_before_the_right_was_taken_away_is_not_used(autojump_clock, mode):
    async with world(persons=2) as w, mcp_client(w.sessions(), mode) as client:
        plan_id = waiting(await client.call_tool(*CALL))["data"]["plan_id"]
        for who in (BOB, CAROL):
            async with w.sessions(who).open_session() as session:
                (plan,) = [one for one in await session.plans() if one.plan_id == plan_id]
                await session.approve(plan)
        persons = PolicyEntry(name="persons", match=Match(uid=BOB.uid), rights=["approve"])
        w.runtime.replace_policy([*(one for one in w.parts.policy if one.name == "agents"), persons])
        assert waiting(await client.call_tool(*CALL))["data"]["plan_id"] == plan_id, "it waits for another approval"
        assert ran(w) == []
