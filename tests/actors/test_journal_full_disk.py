"""A journal on a full disk: the reserve, the two classes of what is kept, the gap it admits to, and signing in time."""

import json

import pytest
import trio
import trio.testing
from support.faulty_disk import FaultyDisk
from support.waiting import until

from hearth.actors.journal import Journal
from hearth.audit import AuditSettings, backlog, keys
from hearth.audit.verify import verify
from hearth.errors import AuditUnavailable

LIMIT_S = 20
RESERVE = 8192
NOON = 1_776_638_881.0
DURABILITIES = pytest.mark.parametrize("durability", ["os", "fsync"])


class Desk:
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
def desk(tmp_path):
    return Desk(tmp_path)


class Running:
    """The journal of a desk, running; afterwards cancelled and closed."""

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
async def test_when_the_disk_is_full_the_reserve_is_given_up_for_the_end_of_what_runs(desk, durability):
    async with Running(desk.journal(durability=durability)) as journal:
        assert desk.reserve.stat().st_size == RESERVE
        await journal.write(finish(1))
        desk.fill()
        await refused(journal.post(read(2), minor=True))
        await refused(journal.post(finish(3)))
        await seen(lambda: ("task.finish", 3) in desk.told())
        assert desk.told() == [("task.finish", 1), ("audit.reserve", None), ("task.finish", 3)]
        assert desk.records()[-1]["late"] is True
        assert "No space left" in journal.failure, "it is for the end of what runs, and for nothing that begins"
        assert not desk.reserve.exists()
        await refused(journal.post(finish(4)))
        await seen(lambda: ("task.finish", 4) in desk.told())
        desk.disk.room = 2 * RESERVE - 1
        await refused(journal.post(finish(5)))
        await seen(lambda: ("task.finish", 5) in desk.told())
        assert not desk.reserve.exists(), "there is not yet room for it"
        desk.disk.room = 2 * RESERVE
        with trio.fail_after(LIMIT_S):
            await journal.write(finish(6))
        assert journal.failure is None
        assert desk.reserve.stat().st_size == RESERVE
    tail = desk.told()[-4:]
    assert tail == [("task.finish", 5), ("audit.resume", None), ("test.read", 2), ("task.finish", 6)]
    report = verify(desk.path)
    assert (report.ok, report.lost, report.uncounted) == (True, {}, 0)


@DURABILITIES
async def test_a_log_that_never_gets_room_again_ends_with_how_many_records_of_which_class_it_lacks(desk, durability):
    async with Running(desk.journal(durability=durability)) as journal:
        desk.fill()
        for n in range(5):
            await refused(journal.post(read(n), minor=True))
        await refused(journal.post({"event": "daemon.stop", "n": 9}))
    assert desk.told() == [("audit.reserve", None), ("daemon.stop", 9), ("audit.gap", None)]
    gap = desk.records()[-1]
    assert (gap["dropped"], gap["lost"]) == (5, {"effects": 0, "reads": 5})
    report = verify(desk.path)
    assert (report.ok, report.lost, report.uncounted) == (True, {"reads": 5}, 0)


async def test_a_run_that_was_killed_on_a_full_disk_is_told_by_verify_as_one_that_did_not_count(desk):
    async with Running(desk.journal()) as journal:
        desk.fill()
        await refused(journal.post(finish(1)))
        await seen(lambda: ("task.finish", 1) in desk.told())
        assert verify(desk.path).uncounted == 1
        killed = desk.path.read_bytes()
    desk.disk.room = None
    desk.path.write_bytes(killed)
    async with Running(desk.journal()) as journal:
        await journal.write({"event": "daemon.start"})
    report = verify(desk.path)
    assert (report.ok, report.uncounted) == (True, 1)


async def test_the_reserve_of_the_run_before_is_taken_over_on_a_disk_that_is_full(desk):
    async with Running(desk.journal()):
        pass
    assert desk.reserve.stat().st_size == RESERVE
    desk.fill()
    async with Running(desk.journal()) as journal:
        assert journal.warning is None
        await refused(journal.post({"event": "daemon.start"}))
        await seen(lambda: desk.told() == [("audit.reserve", None), ("daemon.start", None)])


async def test_without_room_for_a_reserve_the_log_is_written_and_health_warns(desk):
    desk.disk.room = 2 * RESERVE - 1
    async with Running(desk.journal()) as journal:
        assert "audit.log.reserve: cannot be kept: No space left" in journal.warning
        await journal.write(finish(1))
        desk.fill()
        await refused(journal.post(finish(2)))
        await trio.testing.wait_all_tasks_blocked()
        assert desk.told() == [("task.finish", 1)]
        desk.disk.room = 4096
        with trio.fail_after(LIMIT_S):
            await journal.write(finish(3))
    assert [n for event, n in desk.told() if n] == [1, 2, 3], "what is not there cannot be waited for"


async def test_a_size_of_zero_is_no_reserve_and_takes_an_old_one_away(desk):
    desk.reserve.write_bytes(b"\0" * 100)
    async with Running(desk.journal(reserve_bytes=0)) as journal:
        assert not desk.reserve.exists()
        desk.fill()
        await refused(journal.post(finish(1)))
        await trio.testing.wait_all_tasks_blocked()
        assert desk.told() == []


async def test_a_disk_that_is_broken_and_not_full_keeps_its_reserve(desk):
    async with Running(desk.journal()) as journal:
        desk.disk.write_error = OSError(5, "Input/output error")
        with pytest.raises(AuditUnavailable, match="Input/output error"):
            await journal.post(finish(1)).get()
        await trio.testing.wait_all_tasks_blocked()
        assert desk.reserve.exists()
        desk.disk.write_error = None


async def test_a_reserve_that_is_used_up_loses_nothing_while_the_journal_lives(desk):
    async with Running(desk.journal(reserve_bytes=1000)) as journal:
        desk.fill()
        for n in range(50):
            await refused(journal.post(finish(n)))
        desk.disk.room = None
        with trio.fail_after(LIMIT_S):
            await journal.write()
    assert [n for event, n in desk.told() if event == "task.finish"] == list(range(50))
    assert verify(desk.path).ok


async def test_no_number_of_minor_records_displaces_one_that_is_not(desk, monkeypatch):
    monkeypatch.setattr(backlog, "MOST_KEPT", 10)
    async with Running(desk.journal(reserve_bytes=0)) as journal:
        desk.fill()
        for n in range(5):
            await refused(journal.post(finish(n)))
            for minor in range(20):
                await refused(journal.post(read(100 * n + minor), minor=True))
        desk.disk.room = None
        with trio.fail_after(LIMIT_S):
            await journal.write()
    assert [n for event, n in desk.told() if event == "task.finish"] == list(range(5))
    assert [n for event, n in desk.told() if event == "test.read"] == list(range(410, 420))
    resume = desk.records()[0]
    assert (resume["kept"], resume["dropped"], resume["lost"]) == (15, 90, {"effects": 0, "reads": 90})
    assert verify(desk.path).lost == {"reads": 90}


# --- signing


def checkpoints(desk):
    return [one for one in desk.records() if one["event"] == "audit.checkpoint"]


async def test_no_record_stays_unsigned_for_longer_than_the_interval(desk, autojump_clock, monkeypatch):
    monkeypatch.setattr(keys, "load_or_create", signer := keys.load_or_create)
    journal = desk.journal(checkpoint_interval_s=3600)
    journal._log.signer = signer(desk.key)  # no thread: the clock is virtual
    async with Running(journal):
        await trio.sleep(2 * 3600)
        assert checkpoints_or_none(desk) == [], "there is nothing to sign"
        await journal.write(finish(1))
        await trio.sleep(3601)
        assert [one["head"]["seq"] for one in checkpoints(desk)] == [1]
        await trio.sleep(10 * 3600)
        assert len(checkpoints(desk)) == 1, "a checkpoint is signed by the next one, when there is something else"
        await journal.write(finish(2))
        await trio.sleep(3601)
        assert [one["head"]["seq"] for one in checkpoints(desk)] == [1, 3]
    report = verify(desk.path, keys.public_path(desk.key))
    assert (report.ok, report.signed_to, report.unsigned) == (True, 3, 0)


def checkpoints_or_none(desk):
    return checkpoints(desk) if desk.path.exists() else []


async def test_asked_for_a_checkpoint_a_log_that_is_signed_writes_none(desk):
    journal = desk.journal()
    async with Running(journal):
        await journal.write(finish(1))
        journal.checkpoint()
        await seen(lambda: checkpoints(desk))
        journal.checkpoint()
        await journal.write(finish(2))
    assert desk.told() == [("task.finish", 1), ("audit.checkpoint", None), ("task.finish", 2)]
    assert verify(desk.path).unsigned == 1
