"""The order of operations of the job store: together where it waits, never torn by cancelling, ended in time."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import trio
from support.hcp_job_store import ACCEPTED, ANN, begin, event, line, running, session_id
from support.waiting import until

from hearth.actors.bridges.hcp import store as book_module
from hearth.actors.bridges.hcp.store import Claim, JobStore, JobStoreError

ONE = session_id(1)
REJECTED = line("task_rejected", reason_code="forbidden")


@pytest.fixture
def place(tmp_path):
    return tmp_path / "audit.log.hcp"


class Gate:
    """Holds the job store's thread, as a slow disk would, until it is opened."""

    def __init__(self):
        self._reached, self._opened = threading.Event(), threading.Event()

    def stand(self, _connection):
        self._reached.set()
        self._opened.wait(30)

    async def holds(self, job_store, nursery):
        """Have the job store stand at the gate."""
        nursery.start_soon(job_store.read, self.stand)
        await trio.to_thread.run_sync(self._reached.wait, 30)

    def open(self):
        self._opened.set()


def waiting(job_store):
    """How many operations wait for their turn."""
    return job_store._mailbox._send.statistics().current_buffer_used


async def test_what_waits_is_committed_together(place):
    async with running(JobStore(place)) as job_store, trio.open_nursery() as nursery:
        await begin(job_store)
        statements = []
        job_store._file._connection.set_trace_callback(statements.append)
        gate = Gate()
        await gate.holds(job_store, nursery)
        for sequence in range(1, 21):
            nursery.start_soon(job_store.append, ONE, [event(sequence)])
        await until(lambda: waiting(job_store) == 20)
        gate.open()
    assert statements.count("COMMIT") == 1
    assert statements.count("BEGIN IMMEDIATE") == 1


async def test_what_is_read_is_what_was_asked_to_be_written_before_it_and_nothing_later(place):
    logs = {}
    async with running(JobStore(place)) as job_store, trio.open_nursery() as nursery:
        await begin(job_store)
        gate = Gate()
        await gate.holds(job_store, nursery)

        async def read(after):
            logs[after] = await job_store.message_log(ONE)

        append = partial(job_store.append, ONE)
        asks = [(read, 0), (append, [event(1)]), (read, 1), (append, [event(2)]), (read, 2)]
        for number, (ask, what) in enumerate(asks, 1):
            nursery.start_soon(ask, what)
            await until(lambda number=number: waiting(job_store) == number)
        gate.open()
    assert logs == {0: [ACCEPTED], 1: [ACCEPTED, event(1)], 2: [ACCEPTED, event(1), event(2)]}


async def test_who_is_cancelled_before_his_turn_has_asked_for_nothing(place):
    async with running(JobStore(place)) as job_store, trio.open_nursery() as nursery:
        await begin(job_store)
        gate = Gate()
        await gate.holds(job_store, nursery)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as asking:
                asking.start_soon(job_store.append, ONE, [event(1)])
                asking.start_soon(job_store.claim, ANN, "m", "digest")
                await until(lambda: waiting(job_store) == 2)
                scope.cancel()
        gate.open()
        assert scope.cancelled_caught
        assert await job_store.message_log(ONE) == [ACCEPTED]
        assert await job_store.claim(ANN, "m", "digest") == Claim("new")


async def test_who_is_cancelled_in_his_turn_waits_for_what_comes_of_it(place):
    done = []
    async with running(JobStore(place)) as job_store, trio.open_nursery() as nursery:
        await begin(job_store)
        await job_store.claim(ANN, "m", "digest")
        gate = Gate()
        reached = threading.Event()

        def stand(_connection):
            reached.set()
            gate.stand(_connection)

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as asking:

                async def answer():
                    await job_store.answer(ANN, "m", REJECTED)
                    done.append("answered")

                await gate.holds(job_store, nursery)
                asking.start_soon(job_store.write, stand)
                asking.start_soon(answer)
                await until(lambda: waiting(job_store) == 2)
                gate.open()
                await trio.to_thread.run_sync(reached.wait, 30)
                scope.cancel()
        assert done == ["answered"]
        assert await job_store.claim(ANN, "m", "digest") == Claim("answered", REJECTED)


async def test_what_is_asked_before_the_job_store_runs_waits_for_it(place):
    job_store = JobStore(place)
    job_store.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(job_store.claim, ANN, "m", "digest")
        await until(lambda: waiting(job_store) == 1)
        await nursery.start(job_store.run)
        assert await job_store.claim(ANN, "m", "digest") == Claim("pending")
        await job_store.aclose()


async def test_what_was_asked_is_done_when_the_job_store_is_told_to_end_and_nothing_afterwards(place):
    job_store = JobStore(place)
    job_store.open()
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(_running, job_store)
        await begin(job_store)
        gate = Gate()
        await gate.holds(job_store, nursery)
        nursery.start_soon(job_store.append, ONE, [event(1)])
        await until(lambda: waiting(job_store) == 1)
        scope.cancel()
        gate.open()
    for ask in (partial(job_store.append, ONE, [event(2)]), partial(job_store.claim, ANN, "m", "digest")):
        with pytest.raises(JobStoreError, match=f"HCP job store {place}/jobs.sqlite3: closed"):
            await ask()
    await job_store.aclose()
    await job_store.aclose()
    async with running(JobStore(place)) as job_store:
        assert await job_store.message_log(ONE) == [ACCEPTED, event(1)]


async def _running(job_store, *, task_status):
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(job_store.run)
            task_status.started(scope)


async def test_a_job_store_that_never_ran_is_closed_all_the_same(place):
    for _ in range(2):
        job_store = JobStore(place)
        job_store.open()
        await job_store.aclose()
        job_store = JobStore(place)
        job_store.open()
        job_store.close()
        job_store.close()


async def test_a_disk_that_does_not_answer_does_not_keep_the_end_and_no_caller_waits_for_ever(place, monkeypatch):
    monkeypatch.setattr(book_module, "FLUSH_LIMIT_S", 0.05)
    job_store = JobStore(place)
    job_store.open()
    gate = Gate()
    reasons = []
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(_running, job_store)
        await begin(job_store)

        async def ask(operation, *args):
            with pytest.raises(JobStoreError) as caught:
                await operation(*args)
            reasons.append(str(caught.value).rpartition(": ")[2])

        # Two that come together, of which the second cannot begin before the first has ended.
        for operation, writes in ((gate.stand, False), (lambda _connection: None, True)):
            nursery.start_soon(ask, job_store._post(operation, writes=writes).get)
        await trio.to_thread.run_sync(gate._reached.wait, 30)
        nursery.start_soon(ask, job_store.append, ONE, [event(1)])
        nursery.start_soon(ask, job_store.message_log, ONE)
        await until(lambda: waiting(job_store) == 2)
        scope.cancel()
    await job_store.aclose()
    assert sorted(reasons) == ["closed"] * 2 + ["it ended before this was safe"] * 2
    # The file was left to the thread that did not return. Now it does, and leaves its place to the next.
    gate.open()
    await trio.to_thread.run_sync(job_store._file.close, limiter=job_store._limiter)


async def test_a_bug_in_an_operation_ends_the_job_store_and_leaves_no_caller_waiting(place):
    job_store = JobStore(place)
    job_store.open()
    refused = []

    async def ask(operation):
        with pytest.raises(JobStoreError):
            await job_store.write(operation)
        refused.append(operation)

    with trio.fail_after(60), pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(job_store.run)
            nursery.start_soon(ask, lambda _connection: 1 / 0)
            nursery.start_soon(ask, lambda _connection: 2)
    assert len(refused) == 2
    with pytest.raises(JobStoreError, match="closed"):
        await job_store.message_log(ONE)
    await job_store.aclose()


async def test_an_answer_stands_although_its_job_is_not_tidied_up(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
    job_store.write_later(lambda _connection: None)
    assert waiting(job_store) == 0
