"""The job store's file: whose it is, what becomes of one that cannot be used, and a disk that fails under it."""

from __future__ import annotations

import os
import resource
import sqlite3
import sys
from contextlib import closing, contextmanager, suppress

import pytest
import trio
from support.confinement import as_root
from support.hcp_job_store import ACCEPTED, ANN, begin, event, line, look, running, session_id

from hearth.actors.bridges.hcp.store import JobStore, JobStoreError
from hearth.errors import ConfigError

ONE = session_id(1)
REJECTED = line("task_rejected", reason_code="forbidden")


@pytest.fixture
def place(tmp_path):
    return tmp_path / "audit.log.hcp"


def refused(place):
    """What is said to who opens a job store that cannot be used; it leaves nothing open."""
    before = descriptors(place)
    with pytest.raises(ConfigError) as caught:
        JobStore(place).open()
    assert descriptors(place) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def descriptors(place):
    """The files of a job store that this process has open."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(name for name in names if name.startswith(str(place)))


async def made(place, durability="os"):
    """A job store that has ended in order, with one session in it."""
    async with running(JobStore(place, durability=durability)) as job_store:
        await begin(job_store)


# --- whose it is


async def test_the_job_store_is_its_owners_alone(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        modes = {path.name: path.stat().st_mode & 0o777 for path in (place, *place.iterdir())}
    assert modes == {place.name: 0o700, "jobs.sqlite3": 0o600, "jobs.sqlite3-wal": 0o600}
    assert [path.name for path in place.iterdir()] == ["jobs.sqlite3"], "an end in order leaves one file"


async def test_two_cannot_have_it_open_and_the_second_is_told_the_place_and_the_cure(place):
    async with running(JobStore(place)):
        said = refused(place)
    assert f"{place}/jobs.sqlite3: another process is using it" in said
    assert "[audit] path" in said
    job_store = JobStore(place)
    assert job_store.open() == []
    job_store.close()


@pytest.mark.parametrize("cut_short", [False, True])
async def test_the_file_of_an_older_release_is_taken_over_with_its_log(place, cut_short):
    await made(place)
    former = place / "book.sqlite3"
    async with running(JobStore(place)) as job_store:
        await begin(job_store, 2)
        # As a process leaves it that is killed: the last transactions are in the log alone.
        copies = {path.name: path.read_bytes() for path in place.iterdir()}
    assert len(copies["jobs.sqlite3-wal"]) > 0
    (place / "jobs.sqlite3").unlink()
    for name, content in copies.items():
        taken = cut_short and name.endswith("-wal")
        at = place / (name if taken else name.replace("jobs", "book"))
        at.write_bytes(content)
        at.chmod(0o600)
    async with running(JobStore(place)) as job_store:
        assert len(await job_store.sessions(ANN, 10)) == 2
    assert [path.name for path in place.iterdir()] == ["jobs.sqlite3"]
    assert not former.exists()


OPEN = """
import sys
from pathlib import Path
from hearth.actors.bridges.hcp.store import JobStore
JobStore(Path(sys.argv[1])).open()
"""


@pytest.mark.slow
async def test_another_process_cannot_have_it_open_either(place, unmeasured):
    async with running(JobStore(place)):
        done = await trio.run_process([sys.executable, "-c", OPEN, str(place)], capture_stderr=True, check=False)
    assert b"another process is using it" in done.stderr


def test_a_path_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").touch()
    said = refused(tmp_path / "file" / "hcp")
    assert f"HCP job store {tmp_path}/file/hcp/jobs.sqlite3: Not a directory; see [audit] path" in said
    assert "File exists" in refused(tmp_path / "file")


@pytest.mark.parametrize("name", ["", "jobs.sqlite3"])
async def test_what_others_can_read_is_not_used(place, name):
    await made(place)
    (place / name).chmod(0o755)
    assert "others can read or write it; chmod" in refused(place)


@as_root
@pytest.mark.parametrize("name", ["", "jobs.sqlite3"])
async def test_what_belongs_to_another_user_is_not_used(place, name):
    await made(place)
    os.chown(place / name, 65534, 65534)
    assert "belongs to uid 65534; chown it to uid 0" in refused(place)


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
async def test_what_is_no_file_is_not_used(place, tmp_path, kind):
    await made(place)
    (place / "jobs.sqlite3").rename(tmp_path / "elsewhere")
    if kind == "link":
        (place / "jobs.sqlite3").symlink_to(tmp_path / "elsewhere")
    elif kind == "directory":
        (place / "jobs.sqlite3").mkdir(mode=0o700)
    else:
        os.mkfifo(place / "jobs.sqlite3", 0o600)
    assert "not a regular file; move it away" in refused(place)


# --- what is in it


def change(place, *statements):
    with closing(sqlite3.connect(place / "jobs.sqlite3")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


async def test_another_programs_database_is_left_as_it_is(place):
    place.mkdir(mode=0o700)
    (place / "jobs.sqlite3").touch(0o600)
    change(place, "CREATE TABLE recipes (name TEXT)")
    before = (place / "jobs.sqlite3").read_bytes()
    assert "it is another program's database; move it away" in refused(place)
    assert (place / "jobs.sqlite3").read_bytes() == before


async def test_a_newer_releases_job_store_is_refused_and_left_as_it_is(place):
    await made(place)
    change(place, "PRAGMA user_version = 99")
    before = (place / "jobs.sqlite3").read_bytes()
    said = refused(place)
    assert "a newer hearth wrote it, in format 99, and this one reads formats up to 4" in said
    assert (place / "jobs.sqlite3").read_bytes() == before


async def test_an_older_releases_job_store_is_brought_up_to_this_one_and_its_checkpoints_are_not_gone_on_from(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        await job_store.record(ONE, 1, {"ok": True, "result": {"value": 1.5}}, [event(1)])
    change(
        place,
        "ALTER TABLE sessions DROP COLUMN resumed_by",
        "DROP INDEX sessions_to_publish",
        "ALTER TABLE sessions DROP COLUMN published",
        "ALTER TABLE sessions DROP COLUMN rewinds",
        "DROP TABLE begun",
        "PRAGMA user_version = 1",
    )
    async with running(JobStore(place)) as job_store:
        assert (await job_store.claim(ANN, "message-1", "digest")).kind == "answered"
        assert await job_store.message_log(ONE) == [ACCEPTED, event(1)]
        found = await job_store.session(ONE)
        assert (found.checkpoints, found.resumable, found.sequence) == (0, False, 1)
        await job_store.begin(ONE, "1", {"position": "1"})
        await job_store.record(ONE, 1, {"position": "1"}, [event(2)])
        assert await job_store.outcomes(ONE, 1) == [{"position": "1"}]
    assert look(place, "PRAGMA user_version") == [(4,)]


async def test_an_empty_file_becomes_a_job_store(place):
    place.mkdir(mode=0o700)
    (place / "jobs.sqlite3").touch(0o600)
    job_store = JobStore(place)
    async with running(job_store):
        await begin(job_store)
    assert job_store.aside is None


def torn(content):
    """Return a job store whose second half is random bytes."""
    half = len(content) // 2
    return content[:half] + os.urandom(len(content) - half)


@pytest.mark.parametrize("damage", [torn, lambda content: content[:8000], lambda _: b"no database at all" * 99])
async def test_a_damaged_job_store_is_moved_aside_and_said_to_be(place, damage):
    await made(place)
    before = (place / "jobs.sqlite3").read_bytes()
    (place / "jobs.sqlite3").write_bytes(damage(before))
    damaged = (place / "jobs.sqlite3").read_bytes()
    job_store = JobStore(place, clock=lambda: 0.0)
    (note,) = job_store.open()
    aside = place / f"jobs.sqlite3{job_store.aside}"
    assert aside.name == "jobs.sqlite3.found-19700101T000000.000Z"
    assert f"it is now {aside}" in note
    assert "a message that is sent again counts as new" in note
    assert aside.read_bytes() == damaged
    await job_store.aclose()
    async with running(JobStore(place)) as job_store:
        assert (await job_store.claim(ANN, "message-1", "digest")).kind == "new"
        assert job_store.aside is None


async def test_a_job_store_that_has_lost_its_key_is_damaged(place):
    await made(place)
    change(place, "DELETE FROM facts")
    job_store = JobStore(place)
    (note,) = job_store.open()
    assert "it is damaged" in note
    await job_store.aclose()


async def test_an_opening_that_was_killed_half_way_is_made_up_for(place):
    """The tables are made in one transaction: what a kill leaves of it is an empty job store."""
    await made(place)
    for name in ("jobs.sqlite3-wal", "jobs.sqlite3-journal"):
        (place / name).write_bytes(b"half a header")
    async with running(JobStore(place)) as job_store:
        assert (await job_store.claim(ANN, "message-1", "digest")).kind == "answered"


@pytest.mark.parametrize(("durability", "level"), [("os", 1), ("relaxed", 1), ("fsync", 2)])
async def test_durability_says_when_sqlite_syncs(place, durability, level):
    job_store = JobStore(place, durability=durability)
    async with running(job_store):
        await begin(job_store)
        assert job_store._file._connection.execute("PRAGMA synchronous").fetchone() == (level,)
        # In memory: a confined daemon may make no temporary file.
        assert job_store._file._connection.execute("PRAGMA temp_store").fetchone() == (2,)


# --- a disk that fails


@contextmanager
def full_disk(more=0):
    """Files of this process can grow to where the job store is and `more` bytes, and no further."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_is_one_clear_line_and_the_job_store_goes_on_when_there_is_room(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        await job_store.append(ONE, [event(1)])
        await job_store.claim(ANN, "m", "digest")
        size = (place / "jobs.sqlite3-wal").stat().st_size
        with full_disk(size):
            for attempt in (
                lambda: job_store.append(ONE, [event(2, text="x" * 1_000_000)]),
                lambda: job_store.record(ONE, 1, {"n": 1}, [event(2, text="x" * 1_000_000)]),
                lambda: job_store.answer(ANN, "m", line("task_rejected", text="x" * 1_000_000)),
            ):
                with pytest.raises(JobStoreError) as caught:
                    await attempt()
                assert str(caught.value).startswith(f"HCP job store {place}/jobs.sqlite3: ")
                assert "\n" not in str(caught.value)
                assert await job_store.message_log(ONE) == [ACCEPTED, event(1)], "what is there can be read"
            assert (await job_store.claim(ANN, "m", "digest")).kind == "pending"
            await job_store.release(ANN, "m")
        await job_store.append(ONE, [event(2)])
        assert (await job_store.claim(ANN, "m", "digest")).kind == "new"
        await job_store.answer(ANN, "m", REJECTED)
    async with running(JobStore(place)) as job_store:
        assert await job_store.message_log(ONE) == [ACCEPTED, event(1), event(2)]
    assert look(place, "PRAGMA integrity_check") == [("ok",)]


async def test_a_job_store_is_made_by_the_first_who_asks_it_something_and_not_before(place):
    job_store = JobStore(place)
    key = job_store.key
    async with running(job_store):
        assert list(place.iterdir()) == []
        assert await job_store.session(ONE) is None
        assert (place / "jobs.sqlite3").exists()
        assert job_store.key == key
    async with running(JobStore(place)) as job_store:
        assert job_store.key == key


async def test_a_job_store_that_cannot_be_made_leaves_nothing_behind_and_is_made_when_it_can_be(place):
    async with running(JobStore(place)) as job_store:
        for room in (0, 5000):
            with full_disk(room), pytest.raises(JobStoreError) as caught:
                await job_store.claim(ANN, "m", "digest")
            assert str(caught.value).startswith(f"HCP job store {place}/jobs.sqlite3: ")
            assert list(place.iterdir()) == []
        assert (await job_store.claim(ANN, "m", "digest")).kind == "new"


async def test_what_another_puts_in_its_place_before_it_is_made_is_left_alone(place):
    async with running(JobStore(place)) as job_store:
        (place / "jobs.sqlite3").write_text("mine")
        with pytest.raises(JobStoreError, match="cannot be made: File exists"):
            await job_store.session(ONE)
        assert (place / "jobs.sqlite3").read_text() == "mine"


async def test_a_job_store_that_has_no_room_to_grow_keeps_its_connection_and_says_so(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        connection = job_store._file._connection
        connection.execute("PRAGMA max_page_count = 1")  # no fewer than it has: the least that SQLite takes
        with pytest.raises(JobStoreError, match=f"^HCP job store {place}/jobs.sqlite3: no space is left on the disk$"):
            await job_store.append(ONE, [event(1, text="x" * 1_000_000)])
        assert job_store._file._connection is connection
        connection.execute("PRAGMA max_page_count = 1000000")
        await job_store.append(ONE, [event(1)])
        assert await job_store.message_log(ONE) == [ACCEPTED, event(1)]


async def test_what_sqlite_refuses_undoes_all_that_was_to_be_committed_with_it(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)

        async def ask(operation, *args):
            with pytest.raises(JobStoreError, match="no such table: nonsense"):
                await operation(*args)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, job_store.append, ONE, [event(1)])
            nursery.start_soon(ask, job_store.write, lambda connection: connection.execute("SELECT * FROM nonsense"))
        await job_store.append(ONE, [event(2)])
        assert await job_store.message_log(ONE) == [ACCEPTED, event(2)]


@pytest.mark.slow
async def test_a_job_store_that_another_program_holds_is_refused_for_that(place):
    await made(place)
    with closing(sqlite3.connect(place / "jobs.sqlite3")) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("SELECT count(*) FROM sessions").fetchone()
        with pytest.raises(ConfigError, match=f"HCP job store {place}/jobs.sqlite3: another program is using it"):
            JobStore(place).open()
    async with running(JobStore(place)) as job_store:
        assert await job_store.message_log(ONE) == [ACCEPTED]


async def test_a_job_store_that_is_removed_says_so_until_it_is_put_back(place, tmp_path):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        place.rename(tmp_path / "elsewhere")
        for _ in range(2):
            with pytest.raises(JobStoreError, match="it was removed or replaced while it was in use"):
                await job_store.append(ONE, [event(1)])
            with pytest.raises(JobStoreError, match="it was removed or replaced"):
                await job_store.message_log(ONE)
        (tmp_path / "elsewhere").rename(place)
        await job_store.append(ONE, [event(1)])
        assert await job_store.message_log(ONE) == [ACCEPTED, event(1)]


async def test_a_job_store_that_is_replaced_is_not_written(place, tmp_path):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        (place / "jobs.sqlite3").rename(tmp_path / "elsewhere")
        (place / "jobs.sqlite3").touch(0o600)
        with pytest.raises(JobStoreError, match="it was removed or replaced"):
            await job_store.append(ONE, [event(1)])
        assert (place / "jobs.sqlite3").stat().st_size == 0


async def test_a_directory_that_may_not_be_looked_into_is_an_error_of_the_job_store(place, tmp_path):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        place.rename(tmp_path / "elsewhere")
        place.touch()
        with pytest.raises(JobStoreError, match="Not a directory"):
            await job_store.message_log(ONE)


async def test_a_connection_that_broke_is_opened_anew(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        job_store._file._connection.close()
        with pytest.raises(JobStoreError, match=f"HCP job store {place}/jobs.sqlite3: "):
            await job_store.append(ONE, [event(1)])
        await job_store.append(ONE, [event(1)])
        assert await job_store.message_log(ONE) == [ACCEPTED, event(1)]


async def test_a_broken_connection_is_not_mended_with_a_job_store_that_became_another_releases(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        job_store._file._connection.close()
        change(place, "PRAGMA user_version = 99")
        for said in ("closed database", "a newer hearth wrote it"):
            with pytest.raises(JobStoreError, match=said):
                await job_store.append(ONE, [event(1)])


async def test_what_is_refused_leaves_the_others_of_its_commit_alone(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        refusals = []

        async def append(wanted, sequence):
            try:
                await job_store.append(wanted, [event(sequence)])
            except JobStoreError as error:
                refusals.append(str(error))

        async with trio.open_nursery() as nursery:
            for sequence in range(1, 9):
                nursery.start_soon(append, ONE if sequence % 2 else session_id(9), sequence)
        assert len(refusals) == 4
        assert sorted(await job_store.message_log(ONE)) == sorted([ACCEPTED, *map(event, (1, 3, 5, 7))])
