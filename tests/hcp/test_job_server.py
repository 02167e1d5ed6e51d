"""The job server: what is handed in is answered once, and what has been answered is answered the same again."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio
from support.hcp import Caller, capability, hcp_world, open_policy, reading, step
from support.world import ALICE, BOB

from hearth.actors.bridges.hcp import service
from hearth.policy.principal import from_amqp
from hearth.policy.rules import Match, PolicyEntry

GATED = reading(step("read", tag="first", gate="g"))


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@pytest.fixture
def look(tmp_path):
    """`async with look(...) as world`: a world with a job server over capabilities."""
    return lambda *capabilities, **more: hcp_world(tmp_path / "hcp", *capabilities, **more)


def under_way(world):
    """Requests and messages that have not been answered, on all connections."""
    return sum(carrier.connection._in_flight for carrier in world.carriers)


async def test_messages_go_from_the_acceptance_over_the_events_to_the_result_and_the_close(look):
    async with look() as world:
        caller = world.caller()
        session_id = await caller.accepted()
        message_log = await caller.closed(session_id)
        types = [one["payload"].get("event_type", one["type"]) for one in message_log]
        assert types == [
            "task_accepted",
            "session_created",
            "state_changed",
            "checkpoint_created",
            "progress",
            "state_changed",
            "task_completed",
            "session_closed",
        ]
        assert [event["sequence"] for event in caller.events_in(session_id)] == [1, 2, 3, 4, 5, 6]
        assert {str(UUID(one["message_id"])) for one in message_log} == {one["message_id"] for one in message_log}
        assert (await caller.outcome(session_id))["outputs"] == {"tag": "x"}
        moves = [one["data"] for one in caller.events_in(session_id, "state_changed")]
        assert [(move["from_state"], move["to_state"]) for move in moves] == [
            ("PENDING", "RUNNING"),
            ("RUNNING", "COMPLETED"),
        ]
        token = caller.events_in(session_id, "session_created")[0]["data"]["session_token"]
        assert message_log[0]["payload"]["session_token"] == token
        assert message_log[-1]["payload"]["data"] == {"final_state": "COMPLETED", "reason": "completed"}
        assert under_way(world) == 0


# --- the same message again ------------------------------------------------------------------------------------------


async def test_a_repeated_submit_never_runs_twice(look):
    async with look(capability(function=GATED)) as world:
        first, second = world.caller(), world.caller()
        document = Caller.submission()
        await first.send(document)
        await second.send(document)
        await world.gate("g").reached()
        late = world.caller()
        await late.send(document)
        world.gate("g").open()
        logs = []
        for caller in (first, second, late):
            await caller.until(lambda caller=caller: caller.messages)
            logs.append(await caller.closed(caller.messages[0]["session_id"]))
        assert logs[0] == logs[1] == logs[2]
        after = world.caller()
        await after.send(document)
        await after.until(lambda: after.messages)
        assert await after.closed(after.messages[0]["session_id"]) == logs[0]
        assert world.observer.labels("begin") == ["first"]
        assert len(world.records("hcp.submit")) == 1
        assert under_way(world) == 0


async def test_a_repeated_submit_never_runs_twice_across_restarts_of_the_daemon(look):
    document = Caller.submission()
    async with look() as world:
        caller = world.caller()
        session_id = (await caller.reply(document))["session_id"]
        message_log = await caller.closed(session_id)
    async with look() as world:
        caller = world.caller()
        assert (await caller.reply(document))["session_id"] == session_id
        assert await caller.closed(session_id) == message_log
        assert world.observer.labels("begin") == []
        assert not world.records("hcp.submit", "hcp.accept")


async def test_a_message_id_belongs_to_its_principal(look):
    async with look() as world:
        document = Caller.submission()
        alice, bob = world.caller(ALICE), world.caller(BOB)
        ids = {(await caller.reply(document))["session_id"] for caller in (alice, bob)}
        assert len(ids) == 2


@pytest.mark.parametrize("when", ["while it runs", "afterwards"])
async def test_another_message_under_a_used_id_is_refused(look, when):
    async with look(capability(function=GATED)) as world:
        caller = world.caller()
        session_id = await caller.accepted(message_id="m-1")
        if when == "afterwards":
            world.gate("g").open()
            await caller.closed(session_id)
        other = world.caller()
        refused = await other.rejected(Caller.submission(message_id="m-1", intent="something else"))
        assert refused["reason_code"] == "message_id_reused"
        assert "fresh message_id" in refused["suggestion"]
        world.gate("g").open()
        await caller.outcome(session_id)


async def test_a_refusal_is_remembered_word_for_word(look):
    document = Caller.submission("lok")
    async with look() as world:
        caller = world.caller()
        first = await caller.reply(document)
        assert first["payload"]["reason_code"] == "unknown_capability"
    async with look(capability("lok")) as world:
        assert await world.caller().reply(document) == first


async def test_what_lacked_only_room_is_taken_when_it_is_sent_again(look):
    async with look(capability(function=GATED)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        again = Caller.submission()
        refused = await caller.rejected(again)
        assert refused["reason_code"] == "resource_unavailable"
        assert "concurrent_limit" in refused["reason_message"]
        assert "again" in refused["suggestion"]
        world.gate("g").open()
        await caller.closed(session_id)
        await caller.send(again)
        await caller.until(lambda: len(caller.replies(again["message_id"])) == 2)
        accepted = caller.replies(again["message_id"])[1]
        assert accepted["type"] == "task_accepted"
        await caller.closed(accepted["session_id"])


async def test_over_a_broker_what_lacked_only_room_stays_refused_since_a_copy_may_still_be_under_way(look):
    async with look(capability(function=GATED), policy=open_policy()) as world:
        caller = world.caller(from_amqp("harness-of-the-tests"))
        session_id = await caller.accepted()
        await world.gate("g").reached()
        order = Caller.submission()
        refused = await caller.rejected(order)
        assert refused["reason_code"] == "resource_unavailable"
        world.gate("g").open()
        await caller.closed(session_id)
        assert await caller.rejected(order) == refused
    async with look(capability(function=GATED), policy=open_policy()) as world:
        assert await world.caller(from_amqp("harness-of-the-tests")).rejected(order) == refused


# --- room ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "who", "word"),
    [({"max_jobs_per_principal": 1}, ALICE, "this principal"), ({"max_jobs": 1}, BOB, "jobs are under way")],
)
async def test_there_is_room_for_so_many_jobs(look, settings, who, word):
    async with look(capability(function=GATED, concurrent_limit=9), settings=settings) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        refused = await world.caller(who).rejected(Caller.submission())
        assert refused["reason_code"] == "resource_unavailable"
        assert word in refused["reason_message"]
        world.gate("g").open()
        await caller.closed(session_id)


async def test_a_job_without_a_hacp_session_is_refused_and_may_be_sent_again(look):
    async with look(max_sessions_per_principal=1) as world:
        caller = world.caller()
        session = await caller.open()
        document = Caller.submission()
        refused = await caller.rejected(document)
        assert refused["reason_code"] == "resource_unavailable"
        assert "session" in refused["reason_message"]
        await session.call("session.close")
        await caller.send(document)
        await caller.until(lambda: len(caller.replies(document["message_id"])) == 2)
        assert caller.replies(document["message_id"])[1]["type"] == "task_accepted"


async def test_without_an_audit_log_no_job_is_accepted(look):
    async with look() as world:
        caller = world.caller()
        world.journal.fail("disk full")
        document = Caller.submission()
        refused = await caller.rejected(document)
        assert refused["reason_code"] == "resource_unavailable"
        assert world.observer.labels("begin") == []
        world.journal.heal()
        await caller.send(document)
        await caller.until(lambda: len(caller.replies(document["message_id"])) == 2)
        assert caller.replies(document["message_id"])[1]["type"] == "task_accepted"


# --- messages that cannot be acted upon ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"payload": {}}, "invalid_message", "/payload"),
        ({"type": "task_compleat"}, "invalid_message", "/type"),
        ({"hcp_version": "2.0"}, "unsupported_version", "2.0"),
        (
            {"type": "event", "session_id": "s", "payload": {"event_type": "log", "sequence": 1}},
            "invalid_message",
            "/type",
        ),
    ],
)
async def test_a_message_that_cannot_be_acted_upon_is_refused_with_the_place_and_the_cure(look, change, code, word):
    async with look() as world:
        caller = world.caller()
        document = {**Caller.submission(), **change}
        refused = await caller.rejected(document)
        assert refused["reason_code"] == code
        assert word in refused["reason_message"]
        assert refused["suggestion"]
        await world.journal.post({"event": "test"}).get()
        (record,) = world.records("hcp.reject")
        assert record["reason_code"] == code
        assert under_way(world) == 0


async def test_refusals_do_not_fill_the_log(look):
    async with look() as world:
        caller = world.caller()
        for _ in range(100):
            await caller.send({**Caller.submission(), "payload": 1})
        await caller.until(lambda: len(caller.messages) == 100)
        assert len(world.records("hcp.reject")) == 60
    (rest,) = world.records("audit.refusals")
    assert (rest["of"], rest["count"], rest["codes"]) == ("hcp.reject", 40, {"invalid_message": 40})


async def test_who_matches_no_policy_entry_is_not_authorized_and_not_remembered(look):
    policy = (PolicyEntry(name="alice", match=Match(uid=ALICE.uid)),)
    async with look(policy=policy) as world:
        document = Caller.submission()
        refused = await world.caller(BOB).rejected(document)
        assert refused["reason_code"] == "unauthorized"
        assert not world.records("hcp.submit")
        answer = await world.caller(BOB).ask("hcp.sessions", {})
        assert answer["error"]["code"] == -32003


@pytest.mark.parametrize("type_", ["task_submit", "abort", "event", "task_completed", "none", ["task_submit"]])
async def test_what_comes_from_a_principal_without_a_policy_entry_is_not_looked_at(look, monkeypatch, type_):
    def looked(*_):
        raise AssertionError("somebody has looked at the message")

    monkeypatch.setattr(service, "read_message", looked)
    monkeypatch.setattr(service, "digest_of", looked)
    policy = (PolicyEntry(name="alice", match=Match(uid=ALICE.uid)),)
    async with look(policy=policy) as world:
        document = {**Caller.submission(), "type": type_, "session_id": "s"}
        refused = await world.caller(BOB).rejected(document)
        assert (refused["reason_code"], refused["in_reply_to"]) == ("unauthorized", document["message_id"])
        other = world.caller(BOB)
        await other.send({**document, "message_id": ["x"]})
        await other.until(lambda: other.messages)
        assert other.messages[0]["payload"]["reason_code"] == "unauthorized"
        assert "in_reply_to" not in other.messages[0]["payload"]


async def test_the_payload_of_a_message_that_no_caller_sends_is_not_read(look, monkeypatch):
    monkeypatch.setattr(service, "read_message", None)
    async with look() as world:
        document = {**Caller.submission(), "type": "task_completed", "session_id": "s", "payload": {"artifacts": [1]}}
        refused = await world.caller().rejected(document)
        assert refused["reason_code"] == "invalid_message"
        assert "only a callee sends task_completed" in refused["reason_message"]


async def test_without_a_job_server_an_hcp_message_is_no_request(look):
    async with look() as world:
        del world.runtime.extras["hcp"]
        caller = world.caller()
        await caller.send(Caller.submission())
        await caller.until(lambda: caller.documents)
        assert caller.documents[0]["error"]["code"] == -32600


# --- callers that go -------------------------------------------------------------------------------------------------


async def test_a_job_goes_on_when_its_caller_has_gone(look):
    function = reading(step("read", tag="first", gate="g"), step("read", tag="second"))
    async with look(capability(function=function)) as world:
        caller = world.caller()
        document = Caller.submission()
        session_id = (await caller.reply(document))["session_id"]
        await world.gate("g").reached()
        await caller.close()
        await caller.until_ended()
        world.gate("g").open()
        back = world.caller()
        await back.send(document)
        message_log = await back.closed(session_id)
        assert message_log[0]["type"] == "task_accepted"
        assert (await back.outcome(session_id))["outputs"] == {"tag": "second"}
        assert world.observer.labels("begin") == ["first", "second"]


# --- the end of the daemon -------------------------------------------------------------------------------------------


async def test_a_daemon_that_ends_takes_no_more_jobs_and_remembers_no_refusal(look):
    document = Caller.submission()
    async with look() as world:
        caller = world.caller()
        await world.job_server.end(trio.current_time() + 5)
        refused = await caller.rejected(document)
        assert refused["reason_code"] == "shutting_down"
        answer = await caller.ask("hcp.sessions", {})
        assert answer["error"]["code"] == -32007
    async with look() as world:
        assert (await world.caller().reply(document))["type"] == "task_accepted"


async def test_a_job_under_way_ends_with_the_daemon_as_failed_and_recoverable(look):
    function = reading(step("read", tag="first"), step("read", tag="second", gate="g"), step("read"))
    async with look(capability(function=function)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.job_server.end, trio.current_time() + 5)
            world.gate("g").open()
        failed = await caller.outcome(session_id)
        assert failed["error_code"] == "internal_error"
        details = failed["error_details"]
        assert details["reason"] == "daemon_ended"
        assert details["recoverable"] is True
        assert details["last_checkpoint"] == f"ckpt-{session_id}-000002"
        assert details["phase"] == "work"
        assert details["step"] == 2
        (finish,) = world.records("hcp.finish")
        assert finish["reason"] == "daemon_ended"
        assert world.runtime.sessions == 0
        assert world.observer.labels("end") == ["first", "second"]


async def test_what_a_bug_breaks_is_answered_and_nothing_else_ends(look, monkeypatch):
    async with look() as world:
        caller = world.caller()
        monkeypatch.setattr("hearth.actors.bridges.hcp.submission.assess", lambda *_args, **_more: 1 / 0)
        document = Caller.submission()
        refused = await caller.rejected(document)
        assert refused["reason_code"] == "internal_error"
        assert "ZeroDivisionError" in refused["reason_message"]
        monkeypatch.undo()
        assert (await caller.reply(Caller.submission()))["type"] == "task_accepted"
