"""The latch file: what it keeps of a halt, on a disk that is full too, and what it is when it cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hearth.actors.bus.latch import SPARE_BYTES, Hold, Latch, spare_of

VINTAGES = Path(__file__).parents[1] / "vintages"
PERSON = Hold("person", "uid:1000", "smoke", "2026-11-28T12:00:00.000Z", "fire", "2026-11-28T12:00:01.000Z", 2, 3)
FLEET = Hold("fleet", "amqp:boss", "x", "2026-11-28T12:00:02.000Z", "x", "2026-11-28T12:00:02.000Z", 1, 4)


def opened(path):
    latch = Latch(path)
    latch.notes = latch.open(0)
    return latch


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB, and the function that fills it."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")

    def fill():
        disk = os.statvfs(tmp_path)
        (tmp_path / "ballast").write_bytes(bytes(disk.f_bavail * disk.f_frsize))

    yield tmp_path, fill
    subprocess.run(["umount", str(tmp_path)], check=True)


async def test_all_holds_come_back_with_their_reasons_times_counts_and_generations(tmp_path):
    path = tmp_path / "log.halt"
    latch = opened(path)
    assert (latch.found, latch.notes) == ((), [])
    assert await latch.save((PERSON, FLEET))
    again = opened(path)
    assert again.found == (PERSON, FLEET)
    assert [note.partition("; ")[0] for note in again.notes] == [
        "starting halted, since 2026-11-28T12:00:00.000Z by uid:1000: fire",
        "starting halted, since 2026-11-28T12:00:02.000Z by amqp:boss: x",
    ]
    await again.remove()
    assert opened(path).found == ()


@pytest.mark.parametrize(("by", "source"), [("uid:1000", "person"), ("input ESTOP", "input"), ("amqp:boss", "fleet")])
async def test_a_latch_of_version_1_is_read_as_one_hold(tmp_path, by, source):
    since, path = "2026-11-23T16:58:45.303Z", tmp_path / "log.halt"
    path.write_text(json.dumps({"version": 1, "since": since, "reason": "smoke", "by": by}) + "\n")
    assert opened(path).found == (Hold(source, by, "smoke", since, "smoke", since, 1, 1),)


async def test_a_latch_of_version_2_is_read_with_all_its_holds(tmp_path):
    path = tmp_path / "log.halt"
    path.write_bytes((VINTAGES / "0.1/latch-2/audit.log.halt").read_bytes())
    assert [(one.by, one.last_reason, one.count, one.generation) for one in opened(path).found] == [
        ("amqp:boss", "the fleet: fire", 8, 9), ("uid:1000", "a hand in the machine", 1, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(("content", "why"), [
    ("", "it is empty, as a full disk leaves it"),
    ('{"version":2,"holds":[]}', "its content is damaged"),
    ('{"version":2,"holds":[{"source":"fleet","by":"x"}]}', "its content is damaged"),
    ('{"version":1,"since":"x","reason":7,"by":"x"}', "its content is damaged"),
])  # fmt: skip
async def test_a_latch_that_does_not_tell_who_holds_is_a_halt_that_the_fleet_cannot_end(tmp_path, content, why):
    path = tmp_path / "log.halt"
    path.write_text(content)
    (hold,) = opened(path).found
    assert (hold.source, hold.by, hold.reason) == ("hearthd", "hearthd", f"the latch {path} cannot be read: {why}")


async def test_on_a_full_disk_a_latch_takes_the_place_of_the_spare_and_is_whole(small_disk):
    directory, fill = small_disk
    latch = opened(directory / "log.halt")
    fill()
    assert await latch.save((PERSON,))
    assert await latch.save((PERSON, FLEET)), "the spare has its blocks again from the latch that was replaced"
    assert opened(latch.path).found == (PERSON, FLEET)


@pytest.mark.parametrize("before", [(), (FLEET,)], ids=["the first", "another before"])
async def test_on_a_full_disk_without_a_spare_an_empty_file_is_the_latch(small_disk, before):
    directory, fill = small_disk
    path = directory / "log.halt"
    latch = opened(path)
    if before:
        await latch.save(before)
    spare_of(path).unlink()
    fill()
    assert await latch.save((*before, PERSON)) is False
    assert path.stat().st_size == 0
    (hold,) = opened(path).found
    assert hold.source == "hearthd"
    (directory / "ballast").unlink()
    assert await latch.save((*before, PERSON))
    assert opened(path).found == (*before, PERSON)


async def test_without_room_for_a_spare_the_start_says_so(small_disk):
    directory, fill = small_disk
    fill()
    (note,) = opened(directory / "log.halt").notes
    assert note == (
        f"no spare latch {directory}/log.halt.spare: No space left on device; on a full disk a halt loses its reason"
    )


async def test_a_spare_has_its_blocks_and_is_made_again_after_each_latch(tmp_path):
    path = tmp_path / "log.halt"
    latch = opened(path)
    for change in (lambda: latch.save((PERSON,)), lambda: latch.save((PERSON, FLEET)), latch.remove):
        await change()
        status = spare_of(path).stat()
        assert (status.st_size, status.st_mode & 0o777) == (SPARE_BYTES, 0o600)
        assert status.st_blocks * 512 >= SPARE_BYTES


@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("elsewhere"), lambda path: path.mkdir()])
async def test_a_spare_that_is_not_a_file_of_its_own_is_never_written_nor_taken_for_the_latch(tmp_path, plant):
    path = tmp_path / "log.halt"
    plant(spare_of(path))
    latch = opened(path)
    assert latch.notes[0].startswith("no spare latch ")
    assert await latch.save((PERSON,))
    assert path.is_file()
    assert not path.is_symlink()
    assert opened(path).found == (PERSON,)
    assert not (tmp_path / "elsewhere").exists()
