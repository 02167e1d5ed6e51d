"""What a caller can put on record without end: bounded, each kind by itself, and every refusal accounted for."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from support.world import ALICE, BOB, NOON, BenchWorld, running

from hearth.actors.admission import DRY_RUN_RATE
from hearth.actors.bridges.hcp.job import JobQuota
from hearth.actors.refusals import INTERVAL_S, Refusals
from hearth.audit.record import timestamp
from hearth.errors import AuditUnavailable, RateLimited, ToolNotFound
from hearth.hcp.messages import Rejection
from hearth.policy.principal import Principal
from hearth.policy.rules import MOST_NAMES, Buckets, Match, PolicyEntry, Rate


async def refuse(session, count, tool="none"):
    for _ in range(count):
        answer = await session.client.ask("task.submit", session.submission([(tool, {})]))
        assert "error" in answer


def accounted(world, event, field="principal", who=ALICE.key):
    """How many refusals the log accounts for: those recorded one by one, and those that were counted."""
    mine = {"of": event, field: who}
    counted = [one["count"] for one in world.journal.of("audit.refusals", **mine)]
    return len(world.journal.of(event, **{field: who})), counted


@pytest.mark.slow
async def test_a_flood_of_refused_tasks_is_as_many_records_as_its_rate_and_one_that_counts_the_rest(autojump_clock):
    world = BenchWorld()
    async with running(world):
        session = await world.connect().open()
        began = trio.current_time()
        await refuse(session, 500)
        assert trio.current_time() == began
        await trio.testing.wait_all_tasks_blocked()
        assert accounted(world, "task.reject") == (60, [])
        await trio.sleep(INTERVAL_S + 1)
        assert accounted(world, "task.reject") == (60, [440])
        (counted,) = world.journal.of("audit.refusals")
        assert counted["codes"] == {str(ToolNotFound.code): 440}
        assert counted["since"] == timestamp(NOON + began)
        # Nothing is counted any more, and nothing is written for it; the rate has recovered.
        await trio.sleep(2 * INTERVAL_S)
        await refuse(session, 2, "danger")
        await trio.sleep(2 * INTERVAL_S)
        assert accounted(world, "task.reject") == (62, [440])


@pytest.mark.slow
async def test_another_session_has_no_rate_of_its_own_and_another_principal_has(autojump_clock):
    world = BenchWorld()
    async with running(world):
        client = world.connect()
        for _ in range(4):
            await refuse(await client.open(), 40)
        await refuse(await world.connect(BOB).open(), 40)
        await trio.testing.wait_all_tasks_blocked()
        assert accounted(world, "task.reject") == (60, [])
        assert accounted(world, "task.reject", who=BOB.key) == (40, [])
    assert accounted(world, "task.reject") == (60, [100]), "at the end what was counted is told"
    events = [record["event"] for record in world.journal.records]
    assert events.index("audit.refusals") < events.index("daemon.stop")


async def test_what_is_refused_while_the_log_cannot_be_written_is_counted_and_told_when_it_can(autojump_clock):
    world = BenchWorld()
    async with running(world):
        session = await world.connect().open()
        world.journal.fail("disk full")
        answer = await session.client.ask("task.submit", session.submission([("set", {"line": 1, "value": 1})]))
        assert answer["error"]["code"] == AuditUnavailable.code
        await refuse(session, 2)
        await trio.sleep(3 * INTERVAL_S)
        assert accounted(world, "task.reject") == (0, [])
        assert world.journal.lost == [], "nothing of it takes up memory that effects may need"
        world.journal.heal()
        await trio.sleep(INTERVAL_S + 1)
        (counted,) = world.journal.of("audit.refusals")
        assert (counted["count"], counted["codes"]) == (3, {str(AuditUnavailable.code): 1, str(ToolNotFound.code): 2})


async def test_who_matches_no_policy_entry_cannot_fill_the_log_by_asking_again(autojump_clock):
    world = BenchWorld(policy=[PolicyEntry(name="root only", match=Match(uid=0))])
    async with running(world):
        client = world.connect()
        for _ in range(100):
            assert "error" in await client.ask("session.open", {})
        await trio.sleep(INTERVAL_S + 1)
        assert accounted(world, "session.reject") == (60, [40])


async def test_sessions_opened_and_closed_in_a_loop_are_limited_for_each_principal(autojump_clock):
    world = BenchWorld(session_rate="5/10s")
    async with running(world):
        client = world.connect()
        for _ in range(5):
            await (await client.open()).call("session.close")
        with pytest.raises(RateLimited) as caught:
            await client.open()
        assert caught.value.data["retry_after_ms"] == 2000
        assert len(world.journal.of("session.open")) == 5
        await world.connect(BOB).open()
        await trio.sleep(2)
        await client.open()


@pytest.mark.proof
async def test_dry_runs_are_limited_for_each_principal_and_use_up_no_tools_rate(autojump_clock):
    world = BenchWorld(max_tasks_per_session=10_000)
    async with running(world):
        session = await world.connect().open()
        for _ in range(DRY_RUN_RATE.count):
            await session.submit(("limited", {}), dry_run=True)
        with pytest.raises(RateLimited) as caught:
            await session.submit(("limited", {}), dry_run=True)
        assert caught.value.data["retry_after_ms"] == 10
        await session.submit(("limited", {}))
        await trio.sleep(0.01)
        await session.submit(("limited", {}), dry_run=True)


@pytest.mark.proof
async def test_rejected_peers_are_counted_by_carrier_whatever_their_addresses(autojump_clock):
    world = BenchWorld()
    async with running(world):
        for number in range(3 * MOST_NAMES):
            world.runtime.refused("ws", f"192.0.{number // 256}.{number % 256}", "unknown token")
        await trio.sleep(INTERVAL_S + 1)
        assert len(world.journal.of("auth.reject")) == 60
        (counted,) = world.journal.of("audit.refusals")
        assert (counted["of"], counted["carrier"], counted["count"]) == ("auth.reject", "ws", 3 * MOST_NAMES - 60)


async def test_more_principals_than_are_counted_one_by_one_share_a_bucket_and_a_count(autojump_clock):
    world = BenchWorld()
    async with running(world):
        refusals = Refusals(world.journal, Rate(1, 60), lambda: NOON)
        whom = [Principal(kind="unix", uid=uid, gid=uid).key for uid in range(MOST_NAMES + 10)]
        admitted = [refusals.admit("task.reject", key, -32002) for key in whom for _ in range(2)]
        assert sum(admitted) == MOST_NAMES + 1
        refusals.flush()
        await trio.testing.wait_all_tasks_blocked()
        records = world.journal.of("audit.refusals")
        assert len(records) == MOST_NAMES + 1
        assert [record["count"] for record in records if "principal" not in record] == [19]
        assert sum(record["count"] for record in records) == len(admitted) - sum(admitted)


def test_a_name_whose_bucket_is_full_again_is_forgotten_when_room_is_needed():
    buckets = Buckets(Rate(2, 1))
    for number in range(MOST_NAMES):
        assert not buckets.take(f"early {number}", 0.0)
    assert not buckets.take("late", 10.0)
    assert len(buckets) == 1
    assert not buckets.take("late", 10.0)
    assert buckets.take("late", 10.0) == pytest.approx(0.5)


# --- what must not be done unrecorded


async def test_a_read_that_discloses_is_refused_at_submit_while_the_log_cannot_be_written(autojump_clock):
    world = BenchWorld()
    async with running(world):
        session = await world.connect().open()
        world.journal.fail("disk full")
        answer = await session.client.ask("task.submit", session.submission([("read", {}), ("secret", {})]))
        assert (answer["error"]["code"], answer["error"]["data"]["effect"]) == (AuditUnavailable.code, "none")
        await session.client.finished(await session.start(("read", {"tag": "seen"}), subscribe=True))
        assert world.observer.labels("begin") == ["seen"], "other reads go on"


async def test_a_read_that_discloses_is_refused_when_its_turn_comes_while_the_log_cannot_be_written(autojump_clock):
    world = BenchWorld()
    async with running(world):
        session = await world.connect().open()
        task_id = await session.start(("wait", {"tag": "go"}), ("secret", {"tag": "never"}), subscribe=True)
        world.journal.fail("disk full")
        world.event("go").set()
        await session.client.finished(task_id)
        done = await session.get(task_id)
        assert [step["status"] for step in done["steps"]] == ["SUCCESS", "FAILED"]
        assert done["steps"][1]["error_code"] == AuditUnavailable.code
        assert world.observer.labels("begin") == []


async def test_jobs_that_one_principal_begins_are_limited_and_another_principals_are_not(autojump_clock):
    quota = JobQuota(16, 4, Rate(2, 10))
    for _ in range(2):
        with quota.for_principal(ALICE.key):
            pass
    with pytest.raises(Rejection, match="try again in 5000 ms") as caught, quota.for_principal(ALICE.key):
        pass
    assert caught.value.reason_code == "resource_unavailable"
    with quota.for_principal(BOB.key):
        await trio.sleep(5)
    with quota.for_principal(ALICE.key):
        pass
