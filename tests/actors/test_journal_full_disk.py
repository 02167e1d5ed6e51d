"""A journal on a full disk: the reserve, the two classes of what is kept, the gap it admits to, and signing in time."""

import errno
import json

import pytest
import trio
import trio.testing
from support.faulty_disk import FaultyDisk
from support.waiting import until

from hearth.actors import journal as journal_module
from hearth.actors.journal import Journal
from hearth.audit import AuditSettings, backlog, keys
from hearth.audit.verify import verify
from hearth.errors import AuditUnavailable

LIMIT_S = 20
RESERVE = 8192
NOON = 1_776_638_881.0
DURABILITIES = pytest.mark.parametrize("durability", ["os", "fsync"])


class JournalBench:
    """A log in a directory, on a disk with little room."""

    def __init__(self, directory):
        self.path = directory / "audit.log"
        self.key = directory / "audit.key"
        self.reserve = directory / "audit.log.reserve"
        self.disk = FaultyDisk(room=2 * RESERVE)

    def journal(self, **changes):
        quiet = {"path": self.path, "key": self.key, "checkpoint_every": 10**9, "reserve_bytes": RESERVE}
        self.made = Journal(AuditSettings(**{**quiet, **changes}), clock=lambda: NOON, disk=self.disk)
        self.made.open()
        return self.made

    def fill(self):
        """Somebody else takes all the room there is."""
        self.disk.room = 0

    def records(self):
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def told(self):
        """What there is beside the log's own: (event, n)."""
        return [(one["event"], one.get("n")) for one in self.records()]


@pytest.fixture
def bench(tmp_path):
    return JournalBench(tmp_path)


class Running:
    """The journal of a bench, running; afterwards cancelled and closed."""

    def __init__(self, journal):
        self.journal = journal
        self.manager = trio.open_nursery()

    async def __aenter__(self):
        self.nursery = await self.manager.__aenter__()
        await self.nursery.start(self.journal.run)
        return self.journal

    async def __aexit__(self, *exc_info):
        self.nursery.cancel_scope.cancel()
        await self.manager.__aexit__(*exc_info)
        with trio.fail_after(LIMIT_S):
            await self.journal.aclose()


async def refused(receipt):
    with trio.fail_after(LIMIT_S), pytest.raises(AuditUnavailable, match="No space left") as caught:
        await receipt.get()
    assert caught.value.data["effect"] == "none"


async def seen(condition):
    with trio.fail_after(LIMIT_S):
        await until(condition)


def finish(n):
    return {"event": "task.finish", "n": n}


def read(n):
    return {"event": "test.read", "n": n}


@DURABILITIES
async def test_when_the_disk_is_full_the_reserve_is_given_up_for_the_end_of_what_runs(bench, durability):
    async with Running(bench.journal(durability=durability)) as journal:
        assert bench.reserve.stat().st_size == RESERVE
        await journal.write(finish(1))
        bench.fill()
        await refused(journal.post(read(2), minor=True))
        await refused(journal.post(finish(3)))
        await seen(lambda: ("task.finish", 3) in bench.told())
        assert bench.told() == [("task.finish", 1), ("audit.reserve", None), ("task.finish", 3)]
        assert bench.records()[-1]["late"] is True
        assert "No space left" in journal.failure, "it is for the end of what runs, and for nothing that begins"
        assert not bench.reserve.exists()
        await refused(journal.post(finish(4)))
        await seen(lambda: ("task.finish", 4) in bench.told())
        bench.disk.room = 2 * RESERVE - 1
        await refused(journal.post(finish(5)))
        await seen(lambda: ("task.finish", 5) in bench.told())
        assert not bench.reserve.exists(), "there is not yet room for it"
        bench.disk.room = 2 * RESERVE
        await journal.write(finish(6))
        assert journal.failure is None
        assert bench.reserve.stat().st_size == RESERVE
    tail = bench.told()[-4:]
    assert tail == [("task.finish", 5), ("audit.resume", None), ("test.read", 2), ("task.finish", 6)]
    report = verify(bench.path)
    assert (report.ok, report.lost, report.uncounted) == (True, {}, 0)


@DURABILITIES
async def test_a_log_that_never_gets_room_again_ends_with_how_many_records_of_which_class_it_lacks(bench, durability):
    async with Running(bench.journal(durability=durability)) as journal:
        bench.fill()
        for n in range(5):
            await refused(journal.post(read(n), minor=True))
        await refused(journal.post({"event": "daemon.stop", "n": 9}))
    assert bench.told() == [("audit.reserve", None), ("daemon.stop", 9), ("audit.gap", None)]
    gap = bench.records()[-1]
    assert (gap["dropped"], gap["lost"]) == (5, {"effects": 0, "reads": 5})
    report = verify(bench.path)
    assert (report.ok, report.lost, report.uncounted) == (True, {"reads": 5}, 0)


async def test_a_run_that_was_killed_on_a_full_disk_is_told_by_verify_as_one_that_did_not_count(bench):
    async with Running(bench.journal()) as journal:
        bench.fill()
        await refused(journal.post(finish(1)))
        await seen(lambda: ("task.finish", 1) in bench.told())
        assert verify(bench.path).uncounted == 1
        killed = bench.path.read_bytes()
    bench.disk.room = None
    bench.path.write_bytes(killed)
    async with Running(bench.journal()) as journal:
        await journal.write({"event": "daemon.start"})
    report = verify(bench.path)
    assert (report.ok, report.uncounted) == (True, 1)


async def test_the_reserve_of_the_run_before_is_taken_over_on_a_disk_that_is_full(bench):
    async with Running(bench.journal()):
        pass
    assert bench.reserve.stat().st_size == RESERVE
    bench.fill()
    async with Running(bench.journal()) as journal:
        assert journal.warning is None
        await refused(journal.post({"event": "daemon.start"}))
        await seen(lambda: bench.told() == [("audit.reserve", None), ("daemon.start", None)])


async def test_without_room_for_a_reserve_the_log_is_written_and_health_warns(bench):
    bench.disk.room = 2 * RESERVE - 1
    async with Running(bench.journal()) as journal:
        assert "audit.log.reserve: cannot be kept: No space left" in journal.warning
        await journal.write(finish(1))
        bench.fill()
        await refused(journal.post(finish(2)))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.told() == [("task.finish", 1)]
        bench.disk.room = 4096
        await journal.write(finish(3))
    assert [n for event, n in bench.told() if n] == [1, 2, 3], "what is not there cannot be waited for"


async def test_a_size_of_zero_is_no_reserve_and_takes_an_old_one_away(bench):
    bench.reserve.write_bytes(b"\0" * 100)
    async with Running(bench.journal(reserve_bytes=0)) as journal:
        assert not bench.reserve.exists()
        bench.fill()
        await refused(journal.post(finish(1)))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.told() == []


async def test_a_disk_that_is_broken_and_not_full_keeps_its_reserve(bench):
    async with Running(bench.journal()) as journal:
        bench.disk.write_error = OSError(5, "Input/output error")
        with pytest.raises(AuditUnavailable, match="Input/output error"):
            await journal.post(finish(1)).get()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.reserve.exists()
        bench.disk.write_error = None


async def test_a_reserve_that_is_used_up_loses_nothing_while_the_journal_lives(bench):
    async with Running(bench.journal(reserve_bytes=1000)) as journal:
        bench.fill()
        for n in range(50):
            await refused(journal.post(finish(n)))
        bench.disk.room = None
        await journal.write()
    assert [n for event, n in bench.told() if event == "task.finish"] == list(range(50))
    assert verify(bench.path).ok


async def test_no_number_of_minor_records_displaces_one_that_is_not(bench, monkeypatch):
    monkeypatch.setattr(backlog, "MOST_KEPT", 10)
    async with Running(bench.journal(reserve_bytes=0)) as journal:
        bench.fill()
        for n in range(5):
            await refused(journal.post(finish(n)))
            for minor in range(20):
                await refused(journal.post(read(100 * n + minor), minor=True))
        bench.disk.room = None
        await journal.write()
    assert [n for event, n in bench.told() if event == "task.finish"] == list(range(5))
    assert [n for event, n in bench.told() if event == "test.read"] == list(range(410, 420))
    resume = bench.records()[0]
    assert (resume["kept"], resume["dropped"], resume["lost"]) == (15, 90, {"effects": 0, "reads": 90})
    assert verify(bench.path).lost == {"reads": 90}


# --- signing


def checkpoints(bench):
    return [one for one in bench.records() if one["event"] == "audit.checkpoint"]


async def test_no_record_stays_unsigned_for_longer_than_the_interval(bench, autojump_clock, monkeypatch):
    monkeypatch.setattr(keys, "load_or_create", signer := keys.load_or_create)
    journal = bench.journal(checkpoint_interval_s=3600)
    journal._log.signer = signer(bench.key)  # no thread: the clock is virtual
    async with Running(journal):
        await trio.sleep(2 * 3600)
        assert checkpoints_or_none(bench) == [], "there is nothing to sign"
        await journal.write(finish(1))
        await trio.sleep(3601)
        assert [one["head"]["seq"] for one in checkpoints(bench)] == [1]
        await trio.sleep(10 * 3600)
        assert len(checkpoints(bench)) == 1, "a checkpoint is signed by the next one, when there is something else"
        await journal.write(finish(2))
        await trio.sleep(3601)
        assert [one["head"]["seq"] for one in checkpoints(bench)] == [1, 3]
    report = verify(bench.path, keys.public_path(bench.key))
    assert (report.ok, report.signed_to, report.unsigned) == (True, 3, 0)


def checkpoints_or_none(bench):
    return checkpoints(bench) if bench.path.exists() else []


async def test_asked_for_a_checkpoint_a_log_that_is_signed_writes_none(bench):
    journal = bench.journal()
    async with Running(journal):
        await journal.write(finish(1))
        journal.checkpoint()
        await seen(lambda: checkpoints(bench))
        journal.checkpoint()
        await journal.write(finish(2))
    assert bench.told() == [("task.finish", 1), ("audit.checkpoint", None), ("task.finish", 2)]
    assert verify(bench.path).unsigned == 1


# --- a disk that hangs and fails --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hangs_in", ["its own commit", "the retry before it"])
async def test_what_was_in_hand_when_the_disk_went_silent_stays_before_what_came_later(bench, monkeypatch, hangs_in):
    monkeypatch.setattr(journal_module, "SILENT_S", 0.05)
    monkeypatch.setattr(journal_module, "RETRY_S", 0.01)
    failed, disk = OSError(errno.EIO, "Input/output error"), bench.disk
    disk.room = None

    async def refused_by(receipt, why):
        with trio.fail_after(LIMIT_S), pytest.raises(AuditUnavailable, match=why):
            await receipt.get()

    async with Running(bench.journal(durability="fsync")) as journal:
        await journal.write(finish(0))
        if hangs_in != "its own commit":
            disk.sync_error = failed
            await refused_by(journal.post(finish(1)), "Input/output")
        disk.gate.clear()
        disk.sync_error = None
        in_hand = journal.post(finish(2))
        await refused_by(in_hand, "does not answer")
        for number in (3, 4):
            await refused_by(journal.post(finish(number)), "does not answer")
        if hangs_in == "its own commit":
            # What was in hand is then not on the disk.
            disk.sync_error = failed
        disk.gate.set()
        if hangs_in == "its own commit":
            await seen(lambda: "Input/output" in journal.failure)
            disk.sync_error = None
        await seen(lambda: journal.failure is None)
        told = [one["n"] for one in bench.records() if one["event"] == "task.finish"]
        assert told == [0, *([] if hangs_in == "its own commit" else [1]), 2, 3, 4]
        assert all(one["late"] for one in bench.records() if one.get("n", 0) > 1)
