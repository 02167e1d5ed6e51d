"""Idempotency keys beyond their session: over restarts, with a damaged file, a full disk, and over MCP."""

from __future__ import annotations

import errno
import json
import os
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import evolve
from support.mcp import mcp_client, text_of
from support.session_contract import finished
from support.world import OPEN, running, simulated

from hearth import step
from hearth.actors.task_registry import DAY_S, IN_FLIGHT, IdempotencyKeys, KeysFile
from hearth.audit.recovery import Recovery
from hearth.config.model import TasksConfig
from hearth.errors import AuditUnavailable, ConfigError, InvalidParams, QueueFull
from hearth.mcp.names import META_ERROR, META_KEY, META_TASK
from hearth.policy.memory import KEY_BYTES, MemoryBudget

LIGHT = step("gpio.set", line="LED", value=1)


@asynccontextmanager
async def a_run(directory, **more):
    """One life of a runtime on these files, and a session in it."""
    world = simulated(directory, default_policy=(OPEN,), **more)
    async with running(world), world.sessions().open_session() as session:
        yield world, session


def keys_file(directory):
    return directory / "audit.log.idempotency"


def lines_of(directory):
    return [json.loads(line) for line in keys_file(directory).read_text().splitlines()]


async def lit(session, key="k", *steps, **more):
    return await session.submit("light", steps or [LIGHT], idempotency_key=key, **more)


@pytest.mark.spec("design 8: idempotency_key")
@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_repeat_after_a_restart_has_the_first_task_and_its_state_and_runs_nothing(tmp_path, durability):
    audit = {"durability": durability}
    async with a_run(tmp_path, audit=audit) as (_, session):
        first = await lit(session)
        assert (await finished(first)).status == "SUCCESS"
    async with a_run(tmp_path, audit=audit) as (world, session):
        again = await lit(session)
        assert again.task_id == first.task_id
        assert (await finished(again)).status == "SUCCESS"
        assert await again.cancel() == "SUCCESS"
        assert world.level(17) == 0
        with pytest.raises(InvalidParams) as refused:
            await lit(session, "k", step("gpio.set", line="LED", value=0))
        assert refused.value.data["task_id"] == first.task_id
        assert (await lit(session, "another")).task_id != first.task_id


@pytest.mark.spec("design 8: idempotency_key")
async def test_the_key_is_in_the_file_before_the_acknowledgement_and_its_owner_alone_can_read_it(tmp_path):
    async with a_run(tmp_path) as (_, session):
        task = await lit(session)
        assert [line["task_id"] for line in lines_of(tmp_path)[1:2]] == [task.task_id]
        assert keys_file(tmp_path).stat().st_mode & 0o777 == 0o600
        assert "k" not in {line.get("key") for line in lines_of(tmp_path)}


async def test_a_key_whose_time_is_over_is_free_again(tmp_path):
    async with a_run(tmp_path, tasks=TasksConfig(idempotency_days=0.5)) as (world, session):
        first = await lit(session)
        await finished(first)
        now = world.parts.uptime()
        world.runtime.keys._uptime = lambda: now + DAY_S / 2 - 1
        assert (await lit(session)).task_id == first.task_id
        world.runtime.keys._uptime = lambda: now + DAY_S / 2 + 1
        assert (await lit(session)).task_id != first.task_id


@pytest.mark.spec("design 8: idempotency_key")
async def test_a_principal_with_too_many_keys_is_refused_also_after_a_restart_and_nothing_moves(tmp_path):
    tasks = TasksConfig(max_idempotency_keys=1)
    async with a_run(tmp_path, tasks=tasks) as (_, session):
        await finished(await lit(session))
    async with a_run(tmp_path, tasks=tasks) as (world, session):
        with pytest.raises(QueueFull, match=r"\[tasks\] max_idempotency_keys"):
            await lit(session, "another")
        assert world.level(17) == 0
        assert await session.submit("no key", [LIGHT])


@pytest.mark.proof
@pytest.mark.parametrize("limit", ["max_retained_bytes", "max_retained_total_bytes"])
async def test_keys_take_half_of_a_memory_quota_and_leave_the_other_half_to_work_without_keys(tmp_path, limit):
    quota = 1 << 20
    async with a_run(tmp_path, limits={limit: quota}) as (world, session):
        for number in range(quota // 2 // KEY_BYTES):
            await finished(await lit(session, f"k{number}", step("hw.board")))
        with pytest.raises(QueueFull, match=rf"submit without a key, or change \[limits\] {limit}") as refused:
            await lit(session, "another")
        assert refused.value.data[limit] == quota
        assert world.level(17) == 0
        assert (await lit(session, "k0", step("hw.board"))).task_id
        assert (await finished(await session.submit("no key", [LIGHT]))).status == "SUCCESS"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_key_that_cannot_be_kept_refuses_the_submission_before_anything_moves(tmp_path, monkeypatch, number):
    async with a_run(tmp_path) as (world, session):
        real = os.write

        def write(fd, data):
            if os.readlink(f"/proc/self/fd/{fd}").endswith(".idempotency"):
                real(fd, bytes(data)[:7])
                raise OSError(number, os.strerror(number))
            return real(fd, data)

        with monkeypatch.context() as broken:
            broken.setattr("os.write", write)
            with pytest.raises(AuditUnavailable, match="nothing was done") as refused:
                await lit(session)
            assert refused.value.data["effect"] == "none"
            assert world.level(17) == 0
            assert (await finished(await session.submit("read", [step("gpio.get", line=1)]))).status == "SUCCESS"
        # The same key, once there is room again; the torn line is gone.
        first = await lit(session)
        assert (await finished(first)).status == "SUCCESS"
    assert [line["task_id"] for line in lines_of(tmp_path) if "task_id" in line] == [first.task_id]
    async with a_run(tmp_path) as (_, session):
        assert (await lit(session)).task_id == first.task_id


def found(directory, recovery=None):
    file = KeysFile(keys_file(directory))
    return file.open(recovery), [*file.found.values()]


def entry(task_id, *, after=5, **more):
    members = {"key": "ab" * 32, "principal": "p", "task_id": task_id, "digest": "d", "at": 1.0, "after": after, **more}
    return json.dumps(members) + "\n"


HEAD = '{"version":1}\n'


@pytest.mark.parametrize(
    ("content", "tasks", "notes"),
    [
        ("", [], 0),
        (HEAD, [], 0),
        (HEAD + entry("t") + '{"key":"abab', ["t"], 0),
        (HEAD + "garbage\n" + entry("t"), ["t"], 1),
        (HEAD + entry("t") + entry("u").replace('"at": 1.0', '"at": "x"'), ["t"], 1),
        (HEAD + '{"key": 1}\n[]\n{"key": "zz", "status": "SUCCESS"}\n' + entry("t"), ["t"], 1),
        (HEAD + entry("t") + '{"key": "' + "ab" * 32 + '"}\n', [], 0),
        (HEAD + entry("t") + '{"key": "' + "ab" * 32 + '"}\n' + entry("u"), ["u"], 0),
        (HEAD + '{"key": "' + "ab" * 32 + '", "status": "SUCCESS"}\n', [], 0),
    ],
)
def test_what_a_crash_or_a_bad_disk_leaves_of_the_file_costs_only_what_is_damaged(tmp_path, content, tasks, notes):
    keys_file(tmp_path).write_text(content)
    said, entries = found(tmp_path)
    assert [one.task_id for one in entries] == tasks
    assert len(said) == notes


@pytest.mark.parametrize("content", ['{"version":2}\n', entry("t")])
def test_a_file_of_another_release_is_refused_with_place_and_cure(tmp_path, content):
    keys_file(tmp_path).write_text(content)
    with pytest.raises(ConfigError, match=r"idempotency.*move it away"):
        found(tmp_path)


def test_a_file_that_cannot_be_read_is_refused_with_place_and_cure(tmp_path):
    keys_file(tmp_path).mkdir()
    with pytest.raises(ConfigError, match=r"audit\.log\.idempotency.*move it away"):
        found(tmp_path)


LOG = Recovery(head=(100, ""), began=50)
STATES = {
    "its end is in the log": (evolve(LOG, finished={"t": "CANCELLED"}), 60, "CANCELLED"),
    "in flight": (evolve(LOG, in_flight=({"task_id": "t"},)), 60, "FAILED"),
    "not in the log of its run, which is whole: it has not begun": (LOG, 60, None),
    "of an earlier run": (LOG, 40, "FAILED"),
    "newer than the log, which has lost its end": (LOG, 101, "FAILED"),
    "the log was not searched to the run's begin": (evolve(LOG, complete=False), 60, "FAILED"),
    "there is no log": (None, 60, "FAILED"),
}


@pytest.mark.parametrize("case", STATES)
def test_a_task_whose_end_is_not_in_the_file_has_ended_as_the_audit_log_says_and_never_runs_again(tmp_path, case):
    recovery, after, status = STATES[case]
    keys_file(tmp_path).write_text(HEAD + entry("t", after=after))
    _, entries = found(tmp_path, recovery)
    assert [one.status for one in entries] == ([] if status is None else [status])
    assert all(one.reason == (IN_FLIGHT if status == "FAILED" else None) for one in entries)
    # A file that is made anew says no more.
    assert all(("status" in one.line()) == (one.reason is None) for one in entries)
    # The run after the next one has another part of the log, and gives the same answer.
    _, later = found(tmp_path, evolve(LOG, head=(200, ""), began=150))
    assert [(one.status, one.reason) for one in later] == [(one.status, one.reason) for one in entries]


def test_ends_that_cannot_be_written_down_are_noted_and_hold_for_this_run(tmp_path, monkeypatch):
    keys_file(tmp_path).write_text(HEAD + entry("t", after=60))

    def write(_fd, _data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", write)
    (note,), (one,) = found(tmp_path, STATES["its end is in the log"][0])
    assert "No space left on device" in note
    assert one.status == "CANCELLED"


@pytest.mark.parametrize("written", [False, True], ids=["the write had not begun", "the write was under way"])
async def test_the_end_of_a_task_in_the_moment_of_the_runtimes_end_is_kept(tmp_path, written):
    memory = MemoryBudget(1 << 20, 1 << 20)
    file = KeysFile(keys_file(tmp_path))
    keys = IdempotencyKeys(file, days=7, most=9, clock=lambda: 1.0, uptime=lambda: 1.0, head=lambda: 5, memory=memory)
    async with trio.open_nursery() as nursery:
        await nursery.start(keys.run)
        first, receipt = keys.enter("p", "k", "d", "t", None, memory.for_principal("p"))
        await receipt.get()
        keys.ended(first, "SUCCESS")
        if written:
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    (one,) = found(tmp_path)[1]
    assert one.status == "SUCCESS"


async def test_a_key_of_a_boot_whose_clock_was_not_set_has_its_time_from_when_the_clock_is_set(tmp_path):
    keys_file(tmp_path).write_text(HEAD + entry("t", at=100.0, status="SUCCESS"))
    memory, now = MemoryBudget(1 << 20, 1 << 20), [50.0]

    async def kept(seconds):
        """If a run that is at this time since the beginning of 2026 still knows the key; the run writes its file."""
        file = KeysFile(keys_file(tmp_path))
        file.open(None)
        more = {"uptime": lambda: 1.0, "head": lambda: 5, "memory": memory}
        keys = IdempotencyKeys(file, days=7, most=9, clock=lambda: now[0], **more)
        for now[0] in (50.0, 1_767_225_600 + seconds):
            keys.check_room("p")
        async with trio.open_nursery() as nursery:
            await nursery.start(keys.run)
            nursery.cancel_scope.cancel()
        return bool(keys._entries)

    assert [await kept(days * DAY_S) for days in (0, 6, 8)] == [True, True, False]


async def test_a_task_that_was_in_flight_is_shown_as_failed_with_an_unknown_effect(tmp_path):
    async with a_run(tmp_path) as (_, session):
        first = await lit(session)
        await finished(first)
    whole = keys_file(tmp_path).read_text().splitlines(keepends=True)
    keys_file(tmp_path).write_text("".join(line for line in whole if '"status"' not in line))
    # A log that knows nothing of it, as after a power cut.
    (tmp_path / "audit.log").unlink()
    async with a_run(tmp_path) as (_, session):
        again = await lit(session)
        done = await finished(again)
        assert (again.task_id, done.status, done.error) == (first.task_id, "FAILED", IN_FLIGHT)


async def test_the_file_is_written_anew_when_most_of_it_says_nothing_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr("hearth.actors.task_registry._SPARE", 4)
    async with a_run(tmp_path, tasks=TasksConfig(idempotency_days=1)) as (world, session):
        for number in range(6):
            await finished(await lit(session, f"k{number}"))
        now = world.parts.uptime()
        world.runtime.keys._uptime = lambda: now + 2 * DAY_S
        last = await lit(session, "last")
        await finished(last)
    tasks = [line["task_id"] for line in lines_of(tmp_path) if "task_id" in line]
    assert last.task_id in tasks
    assert len(tasks) <= 2
    async with a_run(tmp_path) as (world, _):
        assert len(world.runtime.keys._entries) <= 2


async def test_keys_of_earlier_runs_are_charged_to_their_principal(tmp_path):
    async with a_run(tmp_path) as (_, session):
        await finished(await lit(session))
    async with running(simulated(tmp_path, default_policy=(OPEN,))) as world:
        assert world.runtime.memory.used > 0


async def test_an_mcp_call_with_a_key_is_answered_from_the_first_one_also_after_a_restart(tmp_path):
    lamp = {"line": "LED", "value": 1}

    async def call(client, key="k", **more):
        return await client.call_tool("gpio_set", {**lamp, **more}, meta={META_KEY: key})

    async with running(simulated(tmp_path, default_policy=(OPEN,))) as world:
        async with mcp_client(world.sessions(), "legacy") as client:
            first = await call(client)
            assert (await call(client)).meta[META_TASK]["task_id"] == first.meta[META_TASK]["task_id"]
            other = await call(client, value=0)
            assert (other.is_error, other.meta[META_ERROR]["code"]) == (True, InvalidParams.code)
            for wrong in ("", 5, "x" * 257):
                assert (await call(client, wrong)).is_error
        async with mcp_client(world.sessions(), "legacy") as client:
            assert (await call(client)).meta[META_TASK]["task_id"] == first.meta[META_TASK]["task_id"]
    async with running(simulated(tmp_path, default_policy=(OPEN,))) as world:
        async with mcp_client(world.sessions(), "legacy") as client:
            again = await call(client)
            assert again.meta[META_TASK] == {"task_id": first.meta[META_TASK]["task_id"], "status": "SUCCESS"}
            assert "do not repeat it" in text_of(again)
        assert world.level(17) == 0
        assert not world.records("task.step.start")[1:]


async def test_a_lost_answer_is_found_again_from_another_session_while_the_task_runs(tmp_path):
    async with a_run(tmp_path) as (world, session):
        watch = step("gpio.watch", line=1, count=1, timeout_ms=60_000)
        first = await lit(session, "k", watch)
        async with world.sessions().open_session() as other:
            again = await lit(other, "k", watch, follow=True)
            assert again.task_id == first.task_id
            async for event in again.events():
                if event.phase == "start":
                    await again.cancel()
        assert (await finished(first)).status == "CANCELLED"
