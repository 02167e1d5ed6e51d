"""While a disk does not answer, what makes a machine safe acts in its time; only a set of a new output waits for it."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from attrs import evolve
from support.waiting import passes
from support.world import ALICE, BOB, BoardWorld, embedded, running

from hearth._util import threads
from hearth.actors import journal as journal_module
from hearth.actors.bus import outputs_file as outputs_module
from hearth.actors.bus.outputs_file import LIST_LIMIT_S, OutputsFile
from hearth.actors.journal import Journal
from hearth.audit import AuditSettings
from hearth.audit.writer import Disk
from hearth.errors import AuditUnavailable, HearthError

PUMP, DOOR, BURNER, SPARE = range(4)
PROFILE = {
    "name": "bench",
    "description": "a bench",
    "gpio": [
        {
            "label": "sim",
            "driver": "sim",
            "names": ["PUMP", "DOOR", "BURNER", "SPARE"],
            "lines": {
                "PUMP": {"safe": 0},
                "DOOR": {"direction": "input", "pull": "down"},
                "BURNER": {"safe": 0, "limit": {"max_on_ms": 500}},
                "SPARE": {"safe": 0},
            },
        }
    ],
    "interlock": [
        {
            "drives": "PUMP",
            "value": 1,
            "requires": [{"line": "DOOR", "value": 0}],
            "max_age_ms": 500,
            "check_ms": 100,
        }
    ],
}


class HungDisk:
    """A file function that does not return while the disk is `frozen`."""

    def __init__(self, work):
        self._work = work
        self._open = threading.Event()
        self._open.set()

    def __call__(self, *args):
        assert self._open.wait(60), "the test has left the disk frozen"
        return self._work(*args)

    def freeze(self):
        self._open.clear()

    def thaw(self):
        self._open.set()


@pytest.fixture
def disk(monkeypatch):
    disk = HungDisk(outputs_module._replace)
    monkeypatch.setattr(outputs_module, "_replace", disk)
    monkeypatch.setattr(threads, "PATIENCE_S", 0.2)
    yield disk
    disk.thaw()


@asynccontextmanager
async def a_cell(path):
    world = BoardWorld(PROFILE)
    world.parts = evolve(world.parts, outputs_file=OutputsFile(path))
    async with running(world), embedded(world, ALICE) as session:
        yield world, session


def listed(path):
    return sorted(orjson.loads(path.read_bytes())["outputs"]["gpio:sim"]) if path.exists() else []


async def by_a_halt(world, _nursery):
    world.runtime.halt.halt("a test", "me")


async def by_the_end_of_its_session(world, nursery):
    nursery.cancel_scope.cancel()


async def by_an_interlock(world, _nursery):
    world.gpio.push(DOOR, 1)


async def by_its_own_limit(_world, _nursery):
    await trio.sleep(0.5)


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        (PUMP, by_a_halt),
        (PUMP, by_the_end_of_its_session),
        (PUMP, by_an_interlock),
        (BURNER, by_its_own_limit),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_an_output_is_made_safe_while_a_set_of_a_new_output_waits_for_the_disk(
    tmp_path, disk, autojump_clock, line, ends
):
    outcome = []
    async with a_cell(tmp_path / "outputs") as (world, session), trio.open_nursery() as nursery:
        other = await nursery.start(_driving, world, line)
        disk.freeze()

        async def add():
            with pytest.raises(HearthError) as caught:
                await session.run("gpio.set", line="SPARE", value=1)
            outcome.append(caught.value)

        nursery.start_soon(add)
        await passes(lambda: world.parts.outputs_file._writing is not None)
        await ends(world, other)
        with trio.fail_after(1):
            await passes(lambda: world.gpio.state(line) == 0)
        # A halt ends its wait.
        assert not outcome or ends is by_a_halt
        disk.thaw()
        nursery.cancel_scope.cancel()


async def _driving(world, line, *, task_status):
    """A session of another principal that has driven a line, until its nursery is cancelled."""
    async with trio.open_nursery() as nursery, embedded(world, BOB) as session:
        await session.run("gpio.set", line=line, value=1)
        task_status.started(nursery)
        await trio.sleep_forever()


async def test_a_set_of_a_new_output_is_refused_when_the_disk_does_not_answer_in_time(tmp_path, disk, autojump_clock):
    path = tmp_path / "outputs"
    async with a_cell(path) as (world, session):
        await session.run("gpio.set", line="PUMP", value=1)
        disk.freeze()
        began = trio.current_time()
        with pytest.raises(AuditUnavailable) as caught:
            await session.run("gpio.set", line="SPARE", value=1)
        assert trio.current_time() - began == pytest.approx(LIST_LIMIT_S)
        assert caught.value.data["effect"] == "none"
        assert "the disk does not answer" in caught.value.message
        assert world.gpio.state(SPARE) != 1
        # One that is listed waits for no disk, and reads go on.
        await session.run("gpio.set", line="PUMP", value=0)
        assert world.gpio.state(PUMP) == 0
        await session.run("gpio.get", line="DOOR")
        disk.thaw()
        await passes(lambda: world.parts.outputs_file._writing is None)
        assert listed(path) == [PUMP]
        await session.run("gpio.set", line="SPARE", value=1)
        assert listed(path) == [PUMP, SPARE]


async def test_a_set_that_waits_for_the_disk_can_be_cancelled_and_drives_nothing(tmp_path, disk, autojump_clock):
    path = tmp_path / "outputs"
    async with a_cell(path) as (world, session):
        disk.freeze()
        with trio.move_on_after(0.5) as scope:
            await session.run("gpio.set", line="SPARE", value=1)
        assert scope.cancelled_caught
        disk.thaw()
        # The write that hung has listed it; another one takes it from the list.
        await passes(lambda: world.parts.outputs_file._writing is None and not listed(path))
        assert world.gpio.state(SPARE) != 1


class HungLog(Disk):
    """The disk of an audit log that takes no write while it is frozen."""

    def __init__(self):
        self.gate = HungDisk(Disk.write)

    def write(self, fd, data, /):
        return self.gate(fd, data)


def a_journal(place, durability):
    """An open journal, and its disk."""
    disk = HungLog()
    journal = Journal(AuditSettings(path=place / "audit.log", durability=durability, key=place / "key"), disk=disk)
    journal.open()
    return disk, journal


@pytest.mark.parametrize("durability", ["os", "fsync", "relaxed"])
async def test_a_post_never_waits_for_a_disk_and_records_keep_their_order(tmp_path, monkeypatch, durability):
    monkeypatch.setattr(threads, "PATIENCE_S", 0.002)
    disk, journal = a_journal(tmp_path, durability)
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        disk.gate.freeze()
        receipts = []
        for number in range(5):
            receipts.append(journal.post({"event": "test", "n": number}))
            # The actor waits for the first one when the others come.
            await trio.sleep(0.01)
        if durability != "relaxed":
            assert not any(receipt.filled for receipt in receipts)
        assert journal.lag == 5
        disk.gate.thaw()
        for receipt in receipts:
            await receipt.get()
        await journal.write({"event": "last"})
        nursery.cancel_scope.cancel()
    await journal.aclose()
    text = (tmp_path / "audit.log").read_bytes()
    assert [record["n"] for record in map(orjson.loads, text.splitlines()) if record["event"] == "test"] == [*range(5)]


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_disk_that_stays_silent_counts_as_one_that_cannot_be_written_until_it_answers(
    tmp_path, monkeypatch, durability
):
    monkeypatch.setattr(threads, "PATIENCE_S", 0.002)
    monkeypatch.setattr(journal_module, "SILENT_S", 0.05)
    monkeypatch.setattr(journal_module, "RETRY_S", 0.01)
    disk, journal = a_journal(tmp_path, durability)
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        disk.gate.freeze()
        for number in range(3):
            # The first one is being written; the others wait for it.
            with pytest.raises(AuditUnavailable, match="the disk does not answer"):
                await journal.write({"event": "test", "n": number})
        assert journal.failures == 1
        disk.gate.thaw()
        await passes(lambda: journal.failure is None)
        await journal.write({"event": "last"})
        nursery.cancel_scope.cancel()
    await journal.aclose()
    records = [orjson.loads(line) for line in (tmp_path / "audit.log").read_bytes().splitlines()]
    assert [record["n"] for record in records if record["event"] == "test"] == [0, 1, 2]
    (resume,) = [record for record in records if record["event"] == "audit.resume"]
    assert "the disk does not answer" in resume["reason"]
    assert [record["n"] for record in records if record.get("late")] == [1, 2]
