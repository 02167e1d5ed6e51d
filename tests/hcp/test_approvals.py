"""A person's approval: a job that needs one waits for it, and nobody gives it to a job of their own (decision 0154)."""

from __future__ import annotations

import pytest
import trio
from support.hcp import Caller, capability, hcp_world, reading, step
from support.world import ALICE, BOB

from hearth.actors.approval import Decision
from hearth.errors import SessionInvalid
from hearth.policy.principal import Principal
from hearth.policy.rules import Match, PolicyEntry

CAROL = Principal(kind="unix", uid=1003, gid=1003)
POLICY = (
    PolicyEntry(name="approvers", match=[Match(uid=BOB.uid), Match(uid=ALICE.uid)], rights=["approve"]),
    PolicyEntry(name="rest", match=Match(any=True)),
)
GUARDED = {"requires_human_approval": True, "hazard_categories": ("high_temperature",)}


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@pytest.fixture
def guarded(tmp_path):
    """A world whose one capability needs a person's approval."""
    function = reading(step("read", tag="done"))

    def world(*capabilities, **more):
        heat = capability("heat", function, safety=GUARDED)
        return hcp_world(tmp_path / "hcp", heat, *capabilities, policy=POLICY, **more)

    return world


async def asked(approver, count=1):
    """Wait until so many jobs wait for approval; return what the approver is shown."""
    pending = []
    while len(pending) < count:
        pending = (await approver.call("hcp.pending"))["approvals"]
    return pending


@pytest.mark.slow
async def test_a_job_that_waits_for_approval_is_shown_to_its_caller_and_to_no_other(guarded):
    async with guarded() as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("heat")
        await alice.send(document)
        (asked_about,) = await asked(bob)
        (shown,) = (await alice.call("hcp.sessions"))["sessions"]
        assert (shown["session_id"], shown["message_id"]) == (None, document["message_id"])
        assert (shown["state"], shown["waits_for"]) == ("PENDING", "approval")
        assert (shown["capability"], shown["risk_level"], shown["intent"]) == ("heat", "R3", "look at the bench")
        assert (shown["approval_id"], shown["expires_at"]) == (asked_about["approval_id"], asked_about["expires_at"])
        assert (await bob.call("hcp.sessions"))["sessions"] == []
        await bob.call("hcp.decide", approval_id=shown["approval_id"], approve=True)
        answer = await alice.until_replied(document)
        await alice.closed(answer["session_id"])
        (shown,) = (await alice.call("hcp.sessions"))["sessions"]
        assert (shown["session_id"], shown["state"]) == (answer["session_id"], "COMPLETED")


@pytest.mark.slow
async def test_a_job_that_waits_for_approval_can_be_withdrawn_by_its_caller_and_by_no_other(guarded):
    async with guarded() as world:
        alice, other, bob = world.caller(ALICE), world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("heat")
        await alice.send(document)
        await asked(bob)
        params = {"message_id": document["message_id"], "reason": "it is late"}
        refused = await bob.ask("hcp.withdraw", params)
        assert (refused["error"]["code"], refused["error"]["data"]["path"]) == (-32602, "/message_id")
        assert len(await asked(bob)) == 1
        answer = await other.call("hcp.withdraw", **params)
        assert answer == {"message_id": document["message_id"], "state": "REJECTED"}
        told = await alice.until_replied(document)
        assert (told["type"], told["payload"]["reason_code"]) == ("task_rejected", "withdrawn")
        assert "it is late" in told["payload"]["reason_message"]
        assert (await bob.call("hcp.pending"))["approvals"] == []
        assert (await alice.call("hcp.sessions"))["sessions"] == []
        assert (await alice.ask("hcp.withdraw", params))["error"]["code"] == -32602
        assert (await alice.reply(document))["payload"]["reason_code"] == "withdrawn", "and it is not asked about again"
        assert (await bob.call("hcp.pending"))["approvals"] == []
        assert world.observer.labels("begin") == []
        assert [one["reason_code"] for one in world.records("hcp.reject")] == ["withdrawn"]


async def test_what_was_decided_before_it_was_withdrawn_is_not_done_either(guarded):
    async with guarded() as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("heat")
        await alice.send(document)
        (shown,) = await asked(bob)
        # In one turn: the submission has not looked at the decision yet.
        approvals = world.runtime.approvals
        approvals.decide(approvals.find(shown["approval_id"], "job"), Decision(approved=True, who=BOB))
        assert world.job_server.withdraw(ALICE, document["message_id"], None)
        assert world.job_server.withdraw(ALICE, document["message_id"], "once more")
        told = await alice.until_replied(document)
        assert told["payload"]["reason_code"] == "withdrawn"
        assert world.observer.labels("begin") == []


async def test_a_job_that_was_accepted_is_not_withdrawn(guarded):
    async with guarded(capability("look", reading(step("read", gate="g")))) as world:
        alice = world.caller(ALICE)
        document = Caller.submission("look")
        session_id = (await alice.reply(document))["session_id"]
        await world.gate("g").reached()
        refused = await alice.ask("hcp.withdraw", {"message_id": document["message_id"]})
        assert "abort" in refused["error"]["data"]["reason"]
        world.gate("g").open()
        await alice.outcome(session_id)


@pytest.mark.slow
@pytest.mark.spec(
    "hcp L3 Approval Flow",
    "is",
    "requires_human_approval and risk_level >= R3? Yes: Queue for human review (async approval flow)",
)
async def test_a_job_of_risk_r3_that_requires_it_waits_until_a_person_has_approved_it(guarded):
    async with guarded() as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("heat", inputs={"celsius": 90})
        await alice.send(document)
        (shown,) = await asked(bob)
        assert world.observer.labels("begin") == []
        assert alice.messages == []
        assert shown["inputs"] == {"celsius": 90}
        assert (shown["capability"], shown["capability_version"], shown["risk_level"]) == ("heat", "1.0.0", "R3")
        assert shown["principal"] == ALICE.key
        assert shown["hazard_categories"] == ["high_temperature"]
        assert shown["own"] is False
        assert shown["submitted_at"] < shown["expires_at"]
        answer = await bob.call("hcp.decide", approval_id=shown["approval_id"], approve=True, reason="I am at the oven")
        assert answer == {"approval_id": shown["approval_id"], "approved": True}
        await alice.until(lambda: alice.messages)
        session_id = alice.messages[0]["session_id"]
        await alice.closed(session_id)
        events = [one["event"] for one in world.records("hcp.submit", "hcp.approve", "hcp.accept")]
        assert events == ["hcp.submit", "hcp.approve", "hcp.accept"]
        (record,) = world.records("hcp.approve")
        assert record["by"] == BOB.key
        assert (await bob.call("hcp.pending"))["approvals"] == []


@pytest.mark.slow
async def test_a_job_that_is_not_approved_is_rejected_with_what_the_person_said(guarded):
    async with guarded() as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("heat")
        await alice.send(document)
        (shown,) = await asked(bob)
        await bob.call("hcp.decide", approval_id=shown["approval_id"], approve=False, reason="the oven is open")
        refused = await alice.rejected(document)
        assert refused["reason_code"] == "approval_denied"
        assert "the oven is open" in refused["reason_message"]
        assert refused["assessed_risk_level"] == "R3"
        assert world.observer.labels("begin") == []
        assert [one["by"] for one in world.records("hcp.deny")] == [BOB.key]


@pytest.mark.slow
async def test_no_principal_approves_its_own_job(guarded):
    async with guarded() as world:
        alice = world.caller(ALICE)
        await alice.send(Caller.submission("heat"))
        (shown,) = await asked(alice)
        assert shown["own"] is True
        answer = await alice.ask("hcp.decide", {"approval_id": shown["approval_id"], "approve": True})
        assert answer["error"]["code"] == -32003
        assert alice.messages == []


async def test_who_may_not_approve_sees_nothing_and_decides_nothing(guarded):
    async with guarded() as world:
        alice, bob, carol = world.caller(ALICE), world.caller(BOB), world.caller(CAROL)
        await alice.send(Caller.submission("heat"))
        (shown,) = await asked(bob)
        for method, params in (
            ("hcp.pending", {}),
            ("hcp.decide", {"approval_id": shown["approval_id"], "approve": True}),
        ):
            answer = await carol.ask(method, params)
            assert answer["error"]["code"] == -32003
        assert alice.messages == []


async def test_an_approval_is_given_once(guarded):
    async with guarded() as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        await alice.send(Caller.submission("heat"))
        (shown,) = await asked(bob)
        decision = {"approval_id": shown["approval_id"], "approve": False}
        answers = [await bob.ask("hcp.decide", decision) for _ in range(2)]
        assert "result" in answers[0]
        assert answers[1]["error"]["code"] == -32602
        assert answers[1]["error"]["data"]["path"] == "/approval_id"
        assert len(world.records("hcp.deny")) == 1


async def test_a_job_that_is_not_approved_in_time_is_rejected(guarded):
    async with guarded(settings={"approval_timeout_s": 0.05}) as world:
        alice = world.caller(ALICE)
        refused = await alice.rejected(Caller.submission("heat"))
        assert refused["reason_code"] == "approval_timeout"
        assert refused["suggestion"]


async def test_a_message_that_is_repeated_while_it_waits_is_asked_about_once_and_answered_to_all(guarded):
    async with guarded() as world:
        first, second, bob = world.caller(ALICE), world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("heat")
        await first.send(document)
        await asked(bob)
        await second.send(document)
        await second.call("hcp.sessions")
        (shown,) = await asked(bob)
        await first.close()
        await bob.call("hcp.decide", approval_id=shown["approval_id"], approve=True)
        await second.until(lambda: second.messages)
        await second.closed(second.messages[0]["session_id"])
        assert world.observer.labels("begin") == ["done"]


async def test_a_job_that_waits_when_the_daemon_ends_may_be_sent_again(guarded):
    document = Caller.submission("heat")
    async with guarded() as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        await alice.send(document)
        await asked(bob)
        await world.job_server.end(trio.current_time() + 5)
        refused = await alice.rejected(document) if not alice.messages else alice.messages[0]["payload"]
        assert refused["reason_code"] == "shutting_down"
    async with guarded() as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        await alice.send(document)
        assert len(await asked(bob)) == 1


async def test_an_approved_job_whose_capability_is_taken_meanwhile_is_refused_and_may_be_sent_again(guarded):
    async with guarded() as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("heat")
        await alice.send(document)
        (shown,) = await asked(bob)
        with world.job_server.jobs.quota.for_capability(world.parts.extras["hcp"].capabilities["heat"]):
            await bob.call("hcp.decide", approval_id=shown["approval_id"], approve=True)
            refused = await alice.rejected(document) if not alice.messages else alice.messages[0]["payload"]
            assert refused["reason_code"] == "resource_unavailable"
        await asked(bob, 0)
        await alice.send(document)
        assert len(await asked(bob)) == 1


async def test_below_r3_no_person_is_asked(tmp_path):
    low = capability("heat", safety={**GUARDED, "risk_floor": "R2"})
    async with hcp_world(tmp_path / "hcp", low, policy=POLICY) as world:
        alice = world.caller(ALICE)
        await alice.closed(await alice.accepted("heat"))


async def test_a_job_whose_risk_the_policy_lets_run_only_when_approved_waits_and_its_steps_do_not(tmp_path):
    rule = {"from_risk": 2, "persons": 2}
    policy = (
        PolicyEntry(name="agents", match=Match(uid=ALICE.uid), rights=["approve"], approval=[rule]),
        PolicyEntry(name="persons", match=Match(any=True), rights=["approve"]),
    )
    drives = capability("drive", reading(step("set", line=1, value=1)), safety={"risk_floor": "R3"})
    async with hcp_world(tmp_path / "hcp", drives, policy=policy) as world:
        alice, bob, carol = world.caller(ALICE), world.caller(BOB), world.caller(CAROL)
        document = Caller.submission("drive")
        await alice.send(document)
        (shown,) = await asked(bob)
        decision = {"approval_id": shown["approval_id"], "approve": True}
        refused = await alice.ask("hcp.decide", decision)
        assert refused["error"]["code"] == -32003
        await bob.call("hcp.decide", **decision)
        assert (await bob.ask("hcp.decide", decision))["error"]["code"] == -32602, "one person counts once"
        assert world.observer.labels("begin") == []
        await carol.call("hcp.decide", **decision)
        answer = await alice.until_replied(document)
        await alice.closed(answer["session_id"])
        assert "set" in world.observer.labels("begin")
        (record,) = world.records("hcp.approve")
        assert (record["by"], record["approved_by"]) == (CAROL.key, [BOB.key, CAROL.key])


async def test_the_session_of_an_approved_job_takes_nothing_from_its_caller_beside_the_job(tmp_path):
    # Its steps need no approvals of their own, and its id is in the audit log.
    policy = (
        PolicyEntry(name="agents", match=Match(uid=ALICE.uid), approval=[{"from_risk": 2, "other": True}]),
        PolicyEntry(name="persons", match=Match(any=True), rights=["approve"]),
    )
    holds = capability(
        "hold", reading(step("set", line=1, value=1), step("read", gate="g")), safety={"risk_floor": "R3"}
    )
    async with hcp_world(tmp_path / "hcp", holds, policy=policy) as world:
        alice, bob = world.caller(ALICE), world.caller(BOB)
        document = Caller.submission("hold")
        await alice.send(document)
        (shown,) = await asked(bob)
        await bob.call("hcp.decide", approval_id=shown["approval_id"], approve=True)
        answer = await alice.until_replied(document)
        await world.gate("g").reached()
        (accepted,) = world.records("hcp.accept")
        more = {"intent": "more", "steps": [{"tool": "bench.set", "args": {"line": 2, "value": 1}}]}
        for speaks in (alice, world.caller(ALICE)):
            refused = await speaks.ask("task.submit", {"session_id": accepted["session_id"], "task": more})
            assert refused["error"]["code"] == SessionInvalid.code
        with pytest.raises(SessionInvalid):
            await world.sessions(ALICE).attach(accepted["session_id"]).run("bench.set", line=2, value=1)
        world.gate("g").open()
        await alice.closed(answer["session_id"])
        assert 2 not in world.driver.levels
