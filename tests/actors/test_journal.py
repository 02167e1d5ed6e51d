"""The journal: records in the order of posts, receipts that tell the truth, a log that recovers when the disk does."""

import errno
import gc
import json
import os
import threading

import pytest
import trio
import trio.testing
from support.faulty_disk import FaultyDisk

from hearth.actors import journal as module
from hearth.actors.journal import Journal, Receipt
from hearth.audit import AuditSettings, backlog, keys
from hearth.audit.verify import head, verify
from hearth.errors import AuditUnavailable, ConfigError

LIMIT_S = 20
LINE = 170  # a little more than one of the records below takes


class Clock:
    now = 1_776_638_881.0

    def __call__(self):
        return self.now


class JournalBench:
    """A journal's surroundings."""

    def __init__(self, directory):
        self.path = directory / "audit.log"
        self.key = directory / "audit.key"
        self.clock = Clock()

    def journal(self, disk=None, **changes):
        quiet = {"path": self.path, "key": self.key, "checkpoint_every": 10**9, "reserve_bytes": 0}
        settings = AuditSettings(**{**quiet, **changes})
        return Journal(settings, clock=self.clock, disk=disk)

    def records(self):
        files = [*sorted(self.path.parent.glob("audit.log.0*")), self.path]
        return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]

    def numbers(self):
        return [record["n"] for record in self.records() if "n" in record]

    def events(self):
        return [record["event"] for record in self.records()]


@pytest.fixture
def bench(tmp_path):
    return JournalBench(tmp_path)


def record(n, **fields):
    return {"event": "test.event", "n": n, **fields}


def no_space():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Running:
    """The journal open and running; afterwards cancelled and closed."""

    def __init__(self, journal):
        self.journal = journal
        self.manager = trio.open_nursery()

    async def __aenter__(self):
        self.notes = self.journal.open()
        self.nursery = await self.manager.__aenter__()
        await self.nursery.start(self.journal.run)
        return self.journal

    async def __aexit__(self, *exc_info):
        self.nursery.cancel_scope.cancel()
        await self.manager.__aexit__(*exc_info)
        with trio.fail_after(LIMIT_S):
            await self.journal.aclose()
        gc.collect()


async def refused(receipt, match="No space left"):
    with trio.fail_after(LIMIT_S), pytest.raises(AuditUnavailable, match=match) as caught:
        await receipt.get()
    assert caught.value.data["reason"] in caught.value.message
    return caught.value


DURABILITIES = pytest.mark.parametrize("durability", ["os", "fsync", "relaxed"])


# --- posting


@DURABILITIES
async def test_records_are_written_in_the_order_of_the_posts(bench, durability):
    async with Running(bench.journal(durability=durability)) as journal:
        receipts = [journal.post(record(2 * n), record(2 * n + 1)) for n in range(50)]
        for receipt in receipts:
            assert isinstance(receipt, Receipt)
            assert await receipt.get() is None
        await journal.write(record(100))
    assert bench.numbers() == list(range(101))
    assert verify(bench.path).ok
    assert journal.head == head(bench.path) == (101, verify(bench.path).head[1])
    assert journal.failure is None
    assert journal.warning is None


async def test_a_log_that_was_rolled_back_is_a_warning_of_health(bench):
    async with Running(bench.journal()) as journal:
        await journal.write(record(0))
    older = bench.path.read_bytes()
    async with Running(bench.journal()) as journal:
        await journal.write(record(1))
    bench.path.write_bytes(older)
    async with Running(bench.journal()) as journal:
        assert "its tree file says that record" in journal.warning
        await journal.write(record(2))
        assert journal.failure is None
    async with Running(bench.journal()) as journal:
        assert journal.warning is None
    assert verify(bench.path).ok


async def test_a_receipt_is_answered_once_the_record_can_be_read_by_others(bench):
    async with Running(bench.journal()) as journal:
        for n in range(20):
            await journal.write(record(n))
            assert bench.numbers() == list(range(n + 1))


async def test_what_is_posted_together_is_one_write(bench):
    disk = FaultyDisk()
    async with Running(bench.journal(disk)) as journal:
        await journal.post(*map(record, range(64))).get()
        assert disk.writes == 1
    assert len(bench.records()) == 64


async def test_receipts_are_answered_in_the_order_of_the_posts(bench):
    answered = []

    async def ask(receipt, n):
        await receipt.get()
        answered.append(n)

    async with Running(bench.journal()) as journal, trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(ask, journal.post(record(n)), n)
    assert sorted(answered) == list(range(20))


async def test_an_asker_that_is_cancelled_does_not_withdraw_its_record(bench):
    async with Running(bench.journal(durability="fsync")) as journal:
        receipt = journal.post(record(1))
        with trio.CancelScope() as scope:
            scope.cancel()
            await receipt.get()
        assert scope.cancelled_caught
        await journal.write(record(2))
    assert bench.numbers() == [1, 2]


async def test_a_post_of_nothing_is_a_barrier(bench):
    async with Running(bench.journal()) as journal:
        journal.post(record(1))
        await journal.write()
        assert bench.numbers() == [1]


async def test_a_record_carries_the_time_of_its_post(bench):
    journal = bench.journal()
    journal.open()
    journal.post(record(1))
    bench.clock.now += 5
    journal.post(record(2))
    bench.clock.now += 5
    await journal.aclose()
    assert [r["ts"][17:19] for r in bench.records()] == ["01", "06"]


async def test_records_posted_before_run_are_written_first(bench):
    journal = bench.journal()
    journal.open()
    early = journal.post(record(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await journal.write(record(2))
        assert early.filled
        nursery.cancel_scope.cancel()
    await journal.aclose()
    assert bench.numbers() == [1, 2]


# --- durability


async def test_relaxed_receipts_are_answered_at_the_post(bench):
    async with Running(bench.journal(durability="relaxed")) as journal:
        receipt = journal.post(record(1))
        assert receipt.filled
        await receipt.get()
        assert bench.records() == []
    assert bench.numbers() == [1]


async def test_os_receipts_are_answered_with_the_write_and_nothing_is_synced(bench):
    disk = FaultyDisk()
    async with Running(bench.journal(disk)) as journal:
        receipt = journal.post(record(1))
        assert (disk.writes, disk.syncs) == (1, 0)
        assert receipt.filled
    assert disk.syncs == 1  # at the end


async def test_while_a_sync_runs_what_arrives_forms_the_next_commit(bench):
    disk = FaultyDisk()
    async with Running(bench.journal(disk, durability="fsync")) as journal:
        disk.gate.clear()
        first = journal.post(record(0))
        await trio.to_thread.run_sync(disk.syncing.wait)
        later = [journal.post(record(n)) for n in range(1, 100)]
        await trio.testing.wait_all_tasks_blocked()
        assert not any(receipt.filled for receipt in [first, *later])
        disk.gate.set()
        for receipt in [first, *later]:
            await receipt.get()
        assert (disk.writes, disk.syncs) == (2, 2)
    assert bench.numbers() == list(range(100))


async def test_the_event_loop_goes_on_while_a_sync_hangs(bench):
    disk = FaultyDisk()
    async with Running(bench.journal(disk, durability="fsync")) as journal:
        disk.gate.clear()
        receipt = journal.post(record(0))
        await trio.to_thread.run_sync(disk.syncing.wait)
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        assert journal.post(record(1)).filled is False
        disk.gate.set()
        await receipt.get()


async def test_the_lag_is_what_was_posted_and_is_not_as_durable_as_configured(bench):
    disk = FaultyDisk()
    async with Running(bench.journal(disk, durability="fsync")) as journal:
        assert journal.lag == 0
        disk.gate.clear()
        first = journal.post(record(0), record(1))
        await trio.to_thread.run_sync(disk.syncing.wait)
        second = journal.post(record(2))
        assert journal.lag == 3
        disk.gate.set()
        await first.get()
        await second.get()
        assert journal.lag == 0
        assert journal.metrics.records == {"test.event": 3}


@pytest.mark.parametrize("durability", ["os", "fsync", "relaxed"])
async def test_what_is_kept_for_later_lags_and_a_log_that_fails_twice_has_failed_twice(bench, durability):
    disk = FaultyDisk()
    async with Running(bench.journal(disk, durability=durability)) as journal:
        for failures in (1, 2):
            disk.room = 0
            receipts = [journal.post(record(n)) for n in range(3)]
            while journal.failures < failures or journal._queued:
                await trio.lowlevel.checkpoint()
            assert (journal.failures, journal.lag) == (failures, 3)
            disk.room = None
            await journal.write(record(3))
            assert journal.lag == 0
            assert all(receipt.filled for receipt in receipts)
        assert journal.failures == 2


# --- when the log cannot be written


@DURABILITIES
async def test_a_full_disk_refuses_and_what_was_posted_is_written_later_behind_a_resume_record(bench, durability):
    disk = FaultyDisk()
    async with Running(bench.journal(disk, durability=durability)) as journal:
        await journal.write(record(0))
        await trio.testing.wait_all_tasks_blocked()
        disk.room = 0
        first = journal.post(record(1))
        if durability == "relaxed":  # accepted before anybody could know
            await trio.testing.wait_all_tasks_blocked()
            assert first.filled
        else:
            error = await refused(first)
            assert error.code == -32011
        assert journal.failure == f"audit log {bench.path}: No space left on device"
        bench.clock.now += 3
        await refused(journal.post(record(2), record(3)))
        disk.room = None
        bench.clock.now += 3
        await journal.write(record(4))
        assert journal.failure is None
    assert verify(bench.path).ok
    assert bench.numbers() == [0, 1, 2, 3, 4]
    resume = bench.records()[1]
    del resume["prev"]
    assert resume == {
        "seq": 2,
        "ts": "2026-04-19T22:48:07.000Z",
        "event": "audit.resume",
        "reason": f"audit log {bench.path}: No space left on device",
        "since": "2026-04-19T22:48:01.000Z",
        "kept": 3,
        "dropped": 0,
    }
    assert [r.get("late") for r in bench.records()] == [None, None, True, True, True, None]
    assert [r["ts"][17:19] for r in bench.records() if "n" in r] == ["01", "01", "04", "04", "07"]


async def test_a_receipt_that_failed_stays_failed(bench):
    disk = FaultyDisk(room=0)
    async with Running(bench.journal(disk)) as journal:
        receipt = journal.post(record(1))
        await refused(receipt)
        disk.room = None
        await journal.write()
        await refused(receipt)
        assert bench.numbers() == [1]


async def test_of_a_batch_that_was_written_in_part_only_the_rest_is_refused(bench):
    disk = FaultyDisk()
    async with Running(bench.journal(disk)) as journal:
        await journal.write(record(0))
        disk.room = bench.path.stat().st_size * 3 + 20
        posts = [journal.post(record(1)), journal.post(record(2), record(3), record(4)), journal.post(record(5))]
        await posts[0].get()
        await refused(posts[1])
        await refused(posts[2])
        assert bench.numbers() == [0, 1, 2, 3]
        disk.room = None
        await journal.write()
    assert bench.numbers() == [0, 1, 2, 3, 4, 5]
    assert [r["n"] for r in bench.records() if r.get("late")] == [4, 5]
    assert [r["kept"] for r in bench.records() if "kept" in r] == [2]


async def test_the_log_is_tried_again_by_itself(bench, autojump_clock):
    disk = FaultyDisk(room=0)
    async with Running(bench.journal(disk)) as journal:
        await refused(journal.post(record(1)))
        await trio.sleep(10 * module.RETRY_S)
        assert journal.failure is not None
        disk.room = None
        await trio.sleep(2 * module.RETRY_S)
        assert journal.failure is None
        assert bench.events() == ["audit.resume", "test.event"]


async def test_only_so_many_records_are_kept_and_the_dropped_ones_are_counted(bench, monkeypatch):
    monkeypatch.setattr(backlog, "MOST_KEPT", 10)
    disk = FaultyDisk(room=0)
    async with Running(bench.journal(disk)) as journal:
        for n in range(25):
            await refused(journal.post(record(n)))
        disk.room = None
        await journal.write(record(25))
    assert bench.numbers() == [*range(15, 26)]
    resume = bench.records()[0]
    assert (resume["kept"], resume["dropped"]) == (10, 15)


async def test_long_records_are_kept_only_as_far_as_memory_allows(bench, monkeypatch):
    monkeypatch.setattr(backlog, "MOST_KEPT_BYTES", 10_000)
    disk = FaultyDisk(room=0)
    async with Running(bench.journal(disk)) as journal:
        for n in range(30):
            await refused(journal.post(record(n, pad="x" * 920)))
        disk.room = None
        await journal.write()
        assert journal._backlog.size == 0
    resume = bench.records()[0]
    assert (resume["kept"], resume["dropped"]) == (10, 20)
    assert bench.numbers() == list(range(20, 30))


@pytest.mark.slow
async def test_a_key_that_takes_too_long_is_a_warning(bench, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_LIMIT_S", 0.05)
    gate = threading.Event()
    monkeypatch.setattr(keys, "load_or_create", lambda _path: gate.wait(LIMIT_S))
    async with Running(bench.journal(checkpoint_every=1)) as journal:
        await journal.write(record(0))
        while journal.warning is None:
            await trio.lowlevel.checkpoint()
        assert journal.warning == "audit checkpoints are not signed: the disk does not answer"
    gate.set()


@pytest.mark.slow
async def test_thousands_of_kept_records_are_written_in_pieces_and_in_order(bench):
    disk = FaultyDisk(room=0)
    async with Running(bench.journal(disk)) as journal:
        await refused(journal.post(*(record(n) for n in range(3500))))
        disk.room = None
        await journal.write(record(3500))
        assert disk.writes == 6  # resume and the first 64, 1000, 1000, 1000, the rest, the new one
    assert bench.numbers() == list(range(3501))


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_disk_that_fills_up_again_while_catching_up_loses_nothing(bench, durability):
    disk = FaultyDisk(room=0)
    async with Running(bench.journal(disk, durability=durability)) as journal:
        await refused(journal.post(*(record(n) for n in range(300))))
        late = 300
        for n in range(300, 330):
            disk.room = (n % 7) * 900
            try:
                await journal.write(record(n))
            except AuditUnavailable:
                late += 1
                assert journal.failure is not None
        assert late > 310
        disk.room = None
        await journal.write(record(330))
    assert bench.numbers() == list(range(331))
    assert verify(bench.path).ok
    assert sum(r.get("late", False) for r in bench.records()) == late
    assert all(r["dropped"] == 0 for r in bench.records() if r["event"] == "audit.resume")


async def test_dropped_records_are_told_once(bench, monkeypatch):
    monkeypatch.setattr(backlog, "MOST_KEPT", 3)
    disk = FaultyDisk(room=0)
    async with Running(bench.journal(disk)) as journal:
        await refused(journal.post(*(record(n) for n in range(5))))
        disk.room = 420  # the resume record, and not much more
        await refused(journal.post(record(5)))
        disk.room = None
        await journal.write()
    resumes = [r for r in bench.records() if r["event"] == "audit.resume"]
    assert len(resumes) == 2
    assert sum(r["dropped"] for r in resumes) + len(bench.numbers()) == 6
    assert bench.numbers()[-1] == 5


async def test_a_failed_sync_refuses_and_the_records_are_written_once(bench):
    disk = FaultyDisk()
    async with Running(bench.journal(disk, durability="fsync")) as journal:
        await journal.write(record(0))
        disk.sync_error = OSError(errno.EIO, "Input/output error")
        await refused(journal.post(record(1)), "Input/output error")
        disk.sync_error = None
        await journal.write(record(2))
    assert bench.numbers() == [0, 1, 2]
    assert verify(bench.path).ok


@pytest.mark.slow
async def test_a_checkpoint_that_cannot_be_written_refuses_no_request_but_is_a_failure(bench, autojump_clock):
    """The records before it are in the log; what comes next would not be, and is told so."""
    keys.load_or_create(bench.key)
    disk = FaultyDisk()
    journal = bench.journal(disk, checkpoint_every=2)
    journal._log.signer = keys.load_or_create(bench.key)
    async with Running(journal):
        await journal.write(record(0))
        disk.room = bench.path.stat().st_size + 10
        await journal.write(record(1))
        assert "No space left" in journal.failure
        disk.room = None
        await trio.sleep(2 * module.RETRY_S)
        assert journal.failure is None
    assert bench.events() == ["test.event", "test.event", "audit.resume", "audit.checkpoint"]
    assert verify(bench.path, keys.public_path(bench.key)).ok


async def test_records_that_cannot_be_written_until_the_end_are_counted_in_the_failure(bench):
    disk = FaultyDisk(room=0)
    async with Running(bench.journal(disk)) as journal:
        receipt = journal.post(record(1))
        await refused(receipt)
        late = journal.post(record(2))
    await refused(late)
    assert journal.failure == f"audit log {bench.path}: No space left on device; 2 records were never written"
    assert bench.records() == []


# --- ending


@DURABILITIES
async def test_what_was_posted_when_the_journal_is_cancelled_is_written(bench, durability):
    journal = bench.journal(durability=durability)
    journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        receipts = [journal.post(record(n)) for n in range(10)]
        nursery.cancel_scope.cancel()
    assert all(receipt.filled for receipt in receipts)
    assert bench.numbers() == list(range(10))
    late = journal.post(record(10))
    await journal.aclose()
    await late.get()
    assert bench.numbers() == list(range(11))


async def test_what_is_posted_during_the_last_sync_is_written_too(bench):
    disk = FaultyDisk()
    journal = bench.journal(disk, durability="fsync")
    journal.open()

    async def open_the_gate():
        await trio.testing.wait_all_tasks_blocked()
        disk.gate.set()

    async with trio.open_nursery() as helpers:
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            disk.gate.clear()
            first = journal.post(record(0))
            await trio.to_thread.run_sync(disk.syncing.wait)
            second = journal.post(record(1))
            helpers.start_soon(open_the_gate)
            nursery.cancel_scope.cancel()
        assert first.filled
        assert second.filled
        assert bench.numbers() == [0, 1]
    await journal.aclose()


async def test_aclose_ends_a_journal_that_runs_and_writes_what_was_posted(bench):
    journal = bench.journal()
    journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        receipt = journal.post(record(1))
        await journal.aclose()
        assert receipt.filled
    assert bench.numbers() == [1]


async def test_aclose_needs_no_run_is_idempotent_and_is_not_cut_short(bench):
    journal = bench.journal()
    journal.open()
    receipt = journal.post(record(1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.aclose()
    assert receipt.filled
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.aclose)
        nursery.start_soon(journal.aclose)
    assert bench.numbers() == [1]
    reopened = bench.journal()
    reopened.open()
    await reopened.aclose()


async def test_two_that_close_at_once_close_once(bench):
    disk = FaultyDisk()
    journal = bench.journal(disk)
    journal.open()
    journal.post(record(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.aclose)
        nursery.start_soon(journal.aclose)
    assert disk.syncs == 1


async def test_a_closed_journal_refuses_at_once(bench):
    journal = bench.journal()
    journal.open()
    await journal.aclose()
    receipt = journal.post(record(1))
    assert receipt.filled
    await refused(receipt, "closed")
    assert bench.records() == []


async def test_a_journal_that_was_never_opened_closes_and_refuses(bench):
    journal = bench.journal()
    receipt = journal.post(record(1))
    await journal.aclose()
    await refused(receipt, "closed")
    assert not bench.path.exists()


async def test_a_journal_runs_again_after_it_ended(bench):
    journal = bench.journal()
    journal.open()
    for n in range(3):
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            await journal.write(record(n))
            nursery.cancel_scope.cancel()
    await journal.aclose()
    assert bench.numbers() == [0, 1, 2]


async def test_a_bug_refuses_the_receipts_and_is_raised(bench, monkeypatch):
    journal = bench.journal()
    journal.open()
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            monkeypatch.setattr(journal._log, "append", lambda *_, **__: 1 / 0)
            receipt = journal.post(record(1))
            await trio.sleep_forever()
    await refused(receipt, "ended before the record was safe")
    monkeypatch.undo()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await journal.write(record(2))
        nursery.cancel_scope.cancel()
    await journal.aclose()
    assert bench.numbers() == [2]


async def test_a_bug_that_does_not_come_again_ends_the_journal_all_the_same(bench, monkeypatch):
    """Whoever posted is refused and goes on; the journal is the one that ends on it."""
    journal = bench.journal()
    journal.open()
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            with monkeypatch.context() as patch:
                patch.setattr(journal._log, "append", lambda *_: 1 / 0)
                receipt = journal.post(record(1))
            await refused(receipt, "ended before the record was safe")
            await trio.sleep_forever()
    journal.post(record(2))
    await journal.aclose()
    assert bench.numbers() == [2]
    assert verify(bench.path).ok


async def test_a_disk_that_hangs_does_not_keep_the_process(bench, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_LIMIT_S", 0.05)
    disk = FaultyDisk()
    journal = bench.journal(disk, durability="fsync")
    journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        disk.gate.clear()
        stuck = journal.post(record(1))
        await trio.to_thread.run_sync(disk.syncing.wait)
        waiting = journal.post(record(2))
        nursery.cancel_scope.cancel()
    await refused(stuck, "ended before the record was safe")
    await refused(waiting, "the disk does not answer")
    await refused(journal.post(record(3)), "the disk does not answer")
    await journal.aclose()
    assert journal.failure == f"audit log {bench.path}: the disk does not answer"
    disk.gate.set()


async def test_a_disk_that_hangs_when_the_log_is_closed_is_left_to_itself(bench, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_LIMIT_S", 0.05)
    disk = FaultyDisk()
    disk.gate.clear()
    journal = bench.journal(disk)
    journal.open()
    receipt = journal.post(record(1))
    await journal.aclose()
    await receipt.get()
    assert "the disk does not answer" in journal.failure
    disk.gate.set()


async def test_a_disk_that_hangs_in_the_last_commit_of_aclose_is_left_to_itself(bench, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_LIMIT_S", 0.05)
    disk = FaultyDisk()
    disk.gate.clear()
    journal = bench.journal(disk, durability="fsync")
    journal.open()
    receipt = journal.post(record(1))
    await journal.aclose()
    await refused(receipt, "ended before the record was safe")
    disk.gate.set()


async def test_a_sync_that_fails_at_the_end_is_a_failure(bench):
    disk = FaultyDisk()
    journal = bench.journal(disk)
    journal.open()
    disk.sync_error = OSError(errno.EIO, "Input/output error")
    await journal.aclose()
    assert journal.failure == f"audit log {bench.path}: Input/output error"


# --- recovery


async def test_a_crash_is_the_first_thing_the_next_run_records(bench):
    journal = bench.journal()
    journal.open()
    journal.post({"event": "daemon.start"}, {"event": "task.submit", "session_id": "s", "task_id": "t"})
    await journal.aclose()
    with bench.path.open("ab") as file:
        file.write(b'{"seq":3,"ts":"')
    async with Running(bench.journal()) as journal:
        await journal.write({"event": "daemon.start"})
    recover, start = bench.records()[2:]
    assert recover["event"] == "daemon.recover"
    assert recover["in_flight"] == [{"session_id": "s", "task_id": "t", "steps": []}]
    assert (bench.path.parent / recover["torn"]["file"]).read_bytes() == b'{"seq":3,"ts":"'
    assert start["event"] == "daemon.start"
    assert verify(bench.path).ok


async def test_open_tells_a_person_what_it_found(bench):
    bench.path.write_bytes(b"\0")
    journal = bench.journal()
    (note,) = journal.open()
    assert note.startswith("the audit log ended in 1 bytes that are no record; moved to ")
    await journal.aclose()
    assert bench.events() == ["daemon.recover"]


async def test_a_log_in_use_is_refused(bench):
    first = bench.journal()
    first.open()
    second = bench.journal()
    with pytest.raises(ConfigError, match="another process is writing it"):
        second.open()
    await second.aclose()
    await first.aclose()


# --- checkpoints and the key


async def test_the_key_is_made_when_the_first_checkpoint_is_due_and_not_before(bench):
    async with Running(bench.journal(checkpoint_every=10)) as journal:
        for n in range(9):
            await journal.write(record(n))
        assert not bench.key.exists()
        await journal.write(record(9))
    report = verify(bench.path, keys.public_path(bench.key))
    assert report.ok
    assert report.signed_to >= 10
    assert bench.key.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
async def test_the_checkpoint_comes_by_itself_once_the_key_is_there(bench, monkeypatch):
    made = threading.Event()
    load = keys.load_or_create
    monkeypatch.setattr(keys, "load_or_create", lambda path: made.wait(LIMIT_S) and load(path))
    async with Running(bench.journal(checkpoint_every=3)) as journal:
        for n in range(8):
            await journal.write(record(n))
        made.set()
        while journal.head[0] < 9:
            await trio.lowlevel.checkpoint()
    assert bench.events() == ["test.event"] * 8 + ["audit.checkpoint"]


async def test_a_checkpoint_that_is_due_at_the_end_is_written_at_the_end(bench):
    journal = bench.journal(checkpoint_every=2)
    journal.open()
    journal.post(record(0), record(1))
    await journal.aclose()
    assert bench.events() == ["test.event", "test.event", "audit.checkpoint"]


async def test_a_key_that_cannot_be_made_is_a_warning_and_is_tried_at_the_next_checkpoint(bench):
    bench.key.mkdir()
    journal = bench.journal(checkpoint_every=5)
    (bench.key / "x").touch()
    tries = []
    load = keys.load_or_create

    def counted(path):
        tries.append(path)
        return load(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "load_or_create", counted)
        patch.setattr(keys, "inspect", lambda path: path.is_file())
        async with Running(journal):
            for n in range(5):
                await journal.write(record(n))
            while journal.warning is None:
                await trio.lowlevel.checkpoint()
            assert journal.warning.startswith("audit checkpoints are not signed: ")
            assert journal.failure is None
            for n in range(5, 9):
                await journal.write(record(n))
            assert len(tries) == 1
            (bench.key / "x").unlink()
            bench.key.rmdir()
            await journal.write(record(9))
            while journal.warning is not None:
                await trio.lowlevel.checkpoint()
    assert len(tries) == 2
    assert verify(bench.path, keys.public_path(bench.key)).signed_to == 10


async def test_a_log_removed_under_the_journal_is_a_warning(bench):
    async with Running(bench.journal()) as journal:
        await journal.write(record(0))
        bench.path.unlink()
        bench.clock.now += 2
        await journal.write(record(1))
        assert "removed by another program" in journal.warning
        assert journal.failure is None
    assert bench.events()[:2] == ["audit.rotate", "test.event"]


async def test_rotation_goes_on_under_the_actor(bench):
    async with Running(bench.journal(rotate_bytes=1024, checkpoint_every=7)) as journal:
        for n in range(60):
            await journal.write(record(n, pad="x" * (n % 50)))
    report = verify(bench.path, keys.public_path(bench.key))
    assert report.ok
    assert len(report.files) > 4
    assert bench.numbers() == list(range(60))
