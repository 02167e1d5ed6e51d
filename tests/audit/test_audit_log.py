"""Writing: exactly once, whole records only, rotation, checkpoints, and files that somebody else touched."""

import errno
import fcntl
import itertools
import json
import os
import pathlib
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings as limits, strategies as st
from support.faulty_disk import FaultyDisk

from hearth.audit import AuditSettings, keys
from hearth.audit.verify import head, verify
from hearth.audit.writer import LogFailed
from hearth.errors import ConfigError


def full():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- opening


def test_a_new_log_is_0640_in_a_directory_that_is_0750(bench):
    old = os.umask(0o022)
    try:
        bench.path = bench.directory / "var" / "log" / "audit.log"
        bench.write({"event": "e"})
    finally:
        os.umask(old)
    assert stat.S_IMODE(bench.path.stat().st_mode) == 0o640
    assert stat.S_IMODE(bench.path.parent.stat().st_mode) == 0o750


@pytest.mark.slow
def test_a_second_process_is_refused_and_told_which_file(bench):
    log = bench.log()
    code = (
        "import sys, pathlib; from hearth.audit import AuditSettings; from hearth.audit.log import AuditLog\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "AuditLog(AuditSettings(path=path, key=path.with_name('k'))).open(0.0)"
    )
    command = [sys.executable, "-c", code, str(bench.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"ConfigError: audit log {bench.path}: another process is writing it" in done.stderr
    log.close()
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_the_log_is_free_again_once_it_is_closed(bench):
    log = bench.log()
    with pytest.raises(ConfigError, match="another process"):
        bench.log()
    log.close()
    log.close()
    bench.log().close()


def test_the_descriptor_is_not_inherited(bench):
    log = bench.log()
    assert fcntl.fcntl(log._writer.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert fcntl.fcntl(log._writer.fd, fcntl.F_GETFL) & os.O_APPEND
    log.close()


def test_a_log_that_is_rotated_between_open_and_lock_is_opened_again(bench, monkeypatch):
    bench.write({"event": "old"})
    flock = fcntl.flock
    moves = []

    def slow_flock(fd, how):
        if not moves:
            moves.append(bench.path.rename(bench.directory / "audit.log.000000000001"))
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", slow_flock)
    log = bench.log()
    bench.append(log, {"event": "new"})
    log.close()
    assert [record["event"] for record in bench.records()] == ["old", "audit.rotate", "new"]


@pytest.mark.parametrize("content", ["root:x:0:0:\n", "{}\n", "text", "[1]\n"])
def test_a_file_that_is_no_audit_log_is_refused_and_left_alone(bench, content):
    bench.path.write_text(content)
    with pytest.raises(ConfigError, match=r"audit\.log: holds something else; move it away"):
        bench.log()
    assert bench.path.read_text() == content
    assert len(list(bench.directory.iterdir())) == 1


def test_a_directory_or_a_pipe_in_its_place_is_refused(bench):
    bench.path.mkdir()
    with pytest.raises(ConfigError, match=r"audit\.log: Is a directory; see \[audit\] path"):
        bench.log()
    bench.path.rmdir()
    os.mkfifo(bench.path)
    with pytest.raises(ConfigError, match="not a regular file"):
        bench.log()


def test_a_key_that_others_can_read_is_found_when_the_log_is_opened(bench):
    keys.load_or_create(bench.key)
    bench.key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        bench.log()


def test_a_link_is_followed_and_the_log_rotates_where_it_lies(bench, tmp_path_factory, events):
    elsewhere = tmp_path_factory.mktemp("disk2")
    bench.path.symlink_to(elsewhere / "real.log")
    bench.write(*events(20, pad="x" * 100), rotate_bytes=1024)
    assert bench.path.is_symlink()
    assert len(list(elsewhere.glob("real.log.0*"))) > 1
    assert verify(bench.path).ok
    assert verify(bench.path).records == len(list(open_lines(elsewhere)))


def open_lines(directory):
    for file in directory.glob("real.lo*[0-9g]"):
        yield from file.read_bytes().splitlines()


def test_records_of_several_runs_make_one_chain(bench, events):
    for _ in range(3):
        bench.write(*events(4))
    bench.assert_chained()
    assert len(bench.records()) == 12


def test_a_closed_log_takes_no_records(bench):
    log = bench.log()
    log.close()
    with pytest.raises(LogFailed, match=r"audit\.log: closed") as caught:
        bench.append(log, {"event": "e"})
    assert caught.value.written == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"durability": "always"}, r"audit\.durability: 'always' is none of os, fsync, relaxed"),
        ({"rotate_bytes": 10}, r"audit\.rotate_bytes: 10 is too small; the least is 1024"),
        ({"checkpoint_every": 0}, r"audit\.checkpoint_every: 0 is too small"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_their_key_path(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        AuditSettings(path=tmp_path / "l", key=tmp_path / "k", **change)


# --- writing


def test_a_batch_is_one_write(bench, events):
    disk = FaultyDisk()
    log = bench.log(disk=disk)
    bench.append(log, *events(50))
    assert disk.writes == 1
    assert log.head == head(bench.path)
    log.close()
    bench.assert_chained()


@pytest.mark.proof
@given(
    room=st.integers(0, 3000),
    durability=st.sampled_from(["os", "fsync"]),
    batches=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    every=st.integers(1, 8),
    rotate=st.sampled_from([1024, 10**9]),
)
@limits(deadline=None, max_examples=150)
def test_whatever_room_is_left_the_log_stays_whole_and_nothing_is_written_twice(
    tmp_path_factory, bench_class, room, durability, batches, every, rotate
):
    """The disk fills up at any byte; later there is room, and what was not written is given again."""
    bench = bench_class(tmp_path_factory.mktemp("full"))
    disk = FaultyDisk(room)
    log = bench.log(disk=disk, signed=True, durability=durability, checkpoint_every=every, rotate_bytes=rotate)
    pending = [{"event": "e", "n": n, "pad": "x" * (n * 37 % 200)} for n in range(sum(batches))]
    failures, reasons = 0, set()
    for size in [*batches, len(pending)]:
        batch, rest = pending[:size], pending[size:]
        if failures:
            disk.room = None
        try:
            bench.append(log, *batch)
        except LogFailed as failed:
            failures += 1
            reasons.add(failed.reason)
            batch = batch[failed.written :]
            report = verify(bench.path)
            assert report.ok, report.first_bad
            assert report.head in (log.head, None)
            pending = batch + rest
        else:
            pending = rest
    if pending:
        disk.room = None
        bench.append(log, *pending)
    log.close()
    assert reasons <= {f"audit log {bench.path}: No space left on device"}
    bench.assert_chained()
    numbers = [record["n"] for record in bench.records() if record["event"] == "e"]
    assert numbers == list(range(sum(batches)))
    report = verify(bench.path, keys.public_path(bench.key))
    assert report.ok, report.first_bad
    assert report.signed_to >= report.records - every - 2


def test_a_disk_that_refuses_every_write_leaves_the_log_as_it_was(bench, events):
    disk = FaultyDisk()
    log = bench.log(disk=disk)
    bench.append(log, *events(2))
    before = bench.path.read_bytes()
    disk.write_error = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(LogFailed, match="Input/output error") as caught:
        bench.append(log, *events(2))
    assert caught.value.written == 0
    assert bench.path.read_bytes() == before
    disk.write_error = None
    bench.append(log, *events(2))
    log.close()
    bench.assert_chained()
    assert len(bench.records()) == 4


def test_a_short_write_is_continued(bench, events, monkeypatch):
    log = bench.log()
    write = os.write
    monkeypatch.setattr(log._writer._disk, "write", lambda fd, data: write(fd, data[:7]), raising=False)
    bench.append(log, *events(5))
    log.close()
    bench.assert_chained()
    assert len(bench.records()) == 5


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("written", [0, 40, 10_000])
def test_an_interruption_at_the_write_leaves_a_chain(bench, events, monkeypatch, durability, written):
    """Ctrl-C before the system call, or after it and before anybody noted what it did."""
    log = bench.log(disk=FaultyDisk(), durability=durability)
    bench.append(log, *events(2))
    write = log._writer._disk.write

    def interrupted(fd, data):
        write(fd, data[:written])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(log._writer._disk, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.append(log, *events(3))
    assert log.head == head(bench.path)
    bench.append(log, *events(2))
    log.close()
    bench.assert_chained()
    assert len(bench.records()) == 4


def test_a_disk_that_takes_nothing_counts_as_full(bench, events, monkeypatch):
    log = bench.log()
    sizes = iter([9, 0])
    write = os.write
    monkeypatch.setattr(log._writer._disk, "write", lambda fd, data: write(fd, data[: next(sizes)]), raising=False)
    with pytest.raises(LogFailed, match="No space left"):
        bench.append(log, *events(2))
    log.close()
    assert bench.path.read_bytes() == b""


def test_whole_records_of_a_failed_write_stay_and_are_counted(bench, events):
    disk = FaultyDisk()
    log = bench.log(disk=disk)
    bench.append(log, *events(1))
    line = bench.path.stat().st_size
    disk.room = 2 * line + 50
    with pytest.raises(LogFailed) as caught:
        bench.append(log, *events(5))
    assert caught.value.written == 2
    assert [record["n"] for record in bench.records()] == [0, 0, 1]
    assert log.head == head(bench.path)
    log.close()


def test_half_a_record_that_cannot_be_cut_off_is_cut_off_before_the_next_write(bench, events):
    disk = FaultyDisk(100)
    disk.truncate_error = OSError(errno.EIO, "Input/output error")
    log = bench.log(disk=disk)
    with pytest.raises(LogFailed, match="No space left"):
        bench.append(log, *events(2))
    assert bench.path.stat().st_size == 100
    disk.room = None
    with pytest.raises(LogFailed, match="written in part and cannot be cut off"):
        bench.append(log, *events(2))
    disk.truncate_error = None
    bench.append(log, *events(2))
    log.close()
    bench.assert_chained()
    assert len(bench.records()) == 2


def test_a_failed_sync_takes_back_what_may_not_have_reached_the_disk(bench, events):
    disk = FaultyDisk()
    log = bench.log(disk=disk, durability="fsync", signed=True, checkpoint_every=4)
    bench.append(log, *events(3))
    before = (bench.path.read_bytes(), log.head)
    disk.sync_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogFailed, match="Input/output error") as caught:
        bench.append(log, *events(3))
    assert caught.value.written == 0
    assert (bench.path.read_bytes(), log.head) == before
    disk.sync_error = None
    bench.append(log, *events(3))
    log.close()
    bench.assert_chained()
    assert [record["event"] for record in bench.records()].count("audit.checkpoint") == 1
    assert verify(bench.path, keys.public_path(bench.key)).signed_to == 4


def test_a_checkpoint_whose_sync_failed_is_still_due(bench, events):
    disk = FaultyDisk()
    log = bench.log(disk=disk, durability="fsync", checkpoint_every=3)
    bench.append(log, *events(4))
    log.signer = keys.load_or_create(bench.key)
    disk.sync_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogFailed):
        log.append([], bench.now)
    disk.sync_error = None
    log.append([], bench.now)
    log.close()
    assert [record["event"] for record in bench.records()] == ["test.event"] * 4 + ["audit.checkpoint"]


def names_of_syncs(monkeypatch):
    """What is synced by fsync from now on, and what is renamed: names, in order."""
    done = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: done.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))) or fsync(fd)
    )
    monkeypatch.setattr(os, "rename", lambda old, new: done.append("rename") or rename(old, new))
    return done


def test_a_new_file_is_synced_together_with_its_name(bench, events, monkeypatch):
    disk = FaultyDisk()
    log = bench.log(disk=disk, durability="fsync", rotate_bytes=1024)
    done, directory = names_of_syncs(monkeypatch), bench.directory.name
    bench.append(log, *events(1))
    bench.append(log, *events(1))
    assert done == [directory]
    bench.append(log, *events(1, pad="x" * 1024))
    bench.append(log, *events(1))
    # The old file has its new name before another one takes its place: also where a disk does things in its own order.
    assert done == [directory, "rename", directory, "rename", directory]
    assert disk.syncs == 5  # four commits, and the old file before it is left
    log.close()


def test_a_log_that_is_opened_for_fsync_is_on_the_disk_as_it_was_found_and_so_are_the_names_on_the_way(
    bench, events, monkeypatch
):
    bench.path = bench.directory / "new" / "deep" / "audit.log"
    done = names_of_syncs(monkeypatch)
    bench.log(durability="fsync").close()
    # First of all, before a new file may take the place of one that was being rotated when a life was killed.
    assert done == ["deep", "audit.log", "deep", "new", bench.directory.name, "deep"]
    bench.write(*events(2))
    del done[:]
    bench.log(durability="fsync").close()
    assert done == ["audit.log", "deep", "new"]
    del done[:]
    bench.log().close()
    assert done == []


def test_a_log_that_cannot_be_synced_when_it_is_opened_is_refused(bench, monkeypatch):
    def broken(fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(ConfigError, match=r"audit\.log: Input/output error; see \[audit\] path"):
        bench.log(durability="fsync")


def test_a_sync_that_fails_at_the_end_is_reported_and_the_file_is_closed(bench, events):
    disk = FaultyDisk()
    log = bench.log(disk=disk)
    bench.append(log, *events(1))
    disk.sync_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogFailed, match="Input/output error"):
        log.close()
    assert not log.is_open
    bench.assert_chained()
    assert len(bench.records()) == 1


# --- rotation


def test_a_full_file_is_rotated_to_a_name_that_sorts_and_the_chain_goes_on(bench, events):
    bench.write(*events(40, pad="x" * 90), rotate_bytes=2048)
    files = bench.files()
    assert len(files) > 3
    bench.assert_chained()
    for older, file in itertools.pairwise(files):
        first = json.loads(bench.lines(file)[0])
        last = json.loads(bench.lines(older)[-1])
        begin = json.loads(bench.lines(older)[0])
        assert first["event"] == "audit.rotate"
        assert first["reason"] == "size"
        assert first["previous"] == older.name == f"audit.log.{begin['seq']:012d}"
        assert (first["previous_first_seq"], first["previous_last_seq"]) == (begin["seq"], last["seq"])
        assert 2048 <= older.stat().st_size < 2048 + 400
        assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(older.stat().st_mode)
    assert [record["n"] for record in bench.records() if record["event"] == "test.event"] == list(range(40))


def test_rotation_goes_on_after_a_restart(bench, events):
    for _ in range(30):
        bench.write(*events(2, pad="x" * 100), rotate_bytes=1024)
    assert len(bench.files()) > 3
    assert verify(bench.path).ok
    bench.assert_chained()


def test_a_file_that_has_the_rotated_name_already_is_never_overwritten(bench, events):
    taken = bench.directory / "audit.log.000000000001"
    log = bench.log(rotate_bytes=1024)
    taken.write_text("precious")
    bench.append(log, *events(30, pad="x" * 100))
    assert taken.read_text() == "precious"
    assert "cannot be rotated: " in log.warning
    assert len(bench.lines()) == 30
    taken.unlink()
    bench.append(log, *events(30, pad="x" * 100))
    log.close()
    assert taken.exists()
    assert all(file.stat().st_size < 1024 + 300 for file in bench.files()[1:])
    bench.assert_chained()


def test_a_log_that_cannot_begin_a_new_file_goes_on_in_the_old_one(bench, events):
    (bench.directory / "audit.log.next").mkdir()
    log = bench.log(rotate_bytes=1024)
    bench.append(log, *events(30, pad="x" * 100))
    log.close()
    assert "cannot be rotated: Is a directory" in log.warning
    assert bench.files() == [bench.path]
    bench.assert_chained()


@pytest.mark.parametrize("which", ["audit.log", "audit.log.next"])
def test_a_rename_that_fails_leaves_the_log_as_it_was(bench, events, monkeypatch, which):
    log = bench.log(rotate_bytes=1024)
    rename = pathlib.Path.rename

    def failing(source, target):
        if source.name == which:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return rename(source, target)

    monkeypatch.setattr(pathlib.Path, "rename", failing)
    bench.append(log, *events(8, pad="x" * 100))
    assert "cannot be rotated: Read-only file system" in log.warning
    assert len(bench.lines()) == 8
    monkeypatch.undo()
    bench.append(log, *events(8, pad="x" * 100))
    log.close()
    assert len(bench.files()) > 1
    bench.assert_chained()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_disk_that_is_full_at_rotation_leaves_a_chain(bench, events, durability):
    disk = FaultyDisk()
    log = bench.log(disk=disk, rotate_bytes=1024, durability=durability)
    bench.append(log, *events(1, pad="x" * 1024))
    disk.room = 30
    with pytest.raises(LogFailed) as caught:
        bench.append(log, *events(1))
    assert caught.value.written == 0
    disk.room = None
    bench.append(log, *events(1))
    log.close()
    bench.assert_chained()
    assert [record["event"] for record in bench.records()] == ["test.event", "audit.rotate", "test.event"]


# --- checkpoints


def test_a_checkpoint_follows_every_nth_record_and_every_rotation(bench, events):
    bench.write(*events(30, pad="x" * 90), signed=True, checkpoint_every=5, rotate_bytes=2048)
    records = bench.records()
    previous = None
    for record in records:
        if record["event"] == "audit.checkpoint":
            assert record["head"] == {"seq": previous["seq"], "hash": record["prev"]}
            assert previous["event"] == "audit.rotate" or previous["seq"] % 5 == 0
        elif previous is not None and (previous["event"] == "audit.rotate" or previous["seq"] % 5 == 0):
            assert previous["event"] == "audit.checkpoint" or record["event"] == "audit.rotate"
        previous = record
    report = verify(bench.path, keys.public_path(bench.key))
    assert report.ok
    assert report.checkpoints == sum(record["event"] == "audit.checkpoint" for record in records) > 6


def test_the_nth_record_is_counted_over_restarts(bench, events):
    for _ in range(10):
        bench.write(*events(1), signed=True, checkpoint_every=4)
    assert [r["seq"] for r in bench.records() if r["event"] == "audit.checkpoint"] == [5, 9, 13]


def test_a_checkpoint_that_is_due_waits_for_the_key(bench, events):
    log = bench.log(checkpoint_every=3)
    bench.append(log, *events(4))
    assert log.checkpoint_due
    log.signer = keys.load_or_create(bench.key)
    log.append([], bench.now)
    assert not log.checkpoint_due
    log.close()
    assert bench.records()[-1]["head"]["seq"] == 4
    assert verify(bench.path, keys.public_path(bench.key)).signed_to == 4


def test_a_checkpoint_that_cannot_be_written_does_not_unwrite_the_records(bench, events):
    disk = FaultyDisk()
    log = bench.log(disk=disk, signed=True, checkpoint_every=3)
    bench.append(log, *events(2))
    disk.room = bench.path.stat().st_size // 2
    with pytest.raises(LogFailed) as caught:
        bench.append(log, *events(1))
    assert caught.value.written == 1
    disk.room = None
    log.append([], bench.now)
    log.close()
    assert [record["seq"] for record in bench.records() if record["event"] == "audit.checkpoint"] == [4]


# --- a file that somebody else touched


@pytest.fixture
def touched(bench, events):
    """A log of three records, and a clock that has gone on since the file was last looked at."""
    log = bench.log(signed=True)
    bench.append(log, *events(3))
    bench.now += 2
    yield log
    log.close()


def test_a_log_that_is_deleted_under_the_daemon_is_begun_anew_and_reported(bench, touched):
    bench.path.unlink()
    bench.append(touched, {"event": "after"})
    rotate, checkpoint, after = map(json.loads, [*bench.lines()[:1], *bench.lines()[2:3], *bench.lines()[1:2]])
    assert rotate["event"] == "audit.rotate"
    assert rotate["reason"] == "removed"
    assert rotate["previous"] is None
    assert (rotate["previous_first_seq"], rotate["previous_last_seq"]) == (1, 3)
    assert {after["event"], checkpoint["event"]} == {"after", "audit.checkpoint"}
    assert "removed by another program while it was being written; records 1 to 3 may be lost" in touched.warning
    bench.assert_chained(first_seq=4)


def test_the_new_file_is_locked_too(bench, touched):
    bench.path.unlink()
    bench.append(touched, {"event": "after"})
    with pytest.raises(ConfigError, match="another process"):
        bench.log()


def test_what_was_put_in_its_place_becomes_evidence_and_verification_points_at_it(bench, touched):
    forged = bench.path.read_bytes().replace(b'"n":1', b'"n":7')
    other = bench.directory / "other"
    other.write_bytes(forged)
    other.rename(bench.path)
    bench.append(touched, {"event": "after"})
    assert "replaced by another program" in touched.warning
    evidence = bench.directory / "audit.log.000000000001"
    assert evidence.read_bytes() == forged
    assert verify(bench.path).first_bad[:2] == (evidence, 3)


@pytest.mark.parametrize("touch", ["truncate", "append"])
def test_bytes_that_were_cut_or_added_are_noticed(bench, touched, touch):
    if touch == "truncate":
        os.truncate(bench.path, 0)
    else:
        with bench.path.open("a") as file:
            file.write("an intruder was here\n")
    bench.append(touched, {"event": "after"})
    assert "changed by another program" in touched.warning
    assert json.loads(bench.lines()[0])["reason"] == "changed"
    assert not verify(bench.path).ok


def test_evidence_never_overwrites_a_rotated_file(bench, touched):
    kept = bench.directory / "audit.log.000000000001"
    kept.write_bytes(b"kept")
    os.truncate(bench.path, 1)
    bench.append(touched, {"event": "after"})
    assert kept.read_bytes() == b"kept"
    assert [file.name for file in bench.directory.glob("*.found-*")] == ["audit.log.found-20260419T224803.234Z"]


def test_a_log_that_was_only_moved_is_still_one_chain(bench, touched):
    bench.path.rename(bench.directory / "audit.log.000000000001")
    bench.append(touched, {"event": "after"})
    bench.assert_chained()
    assert verify(bench.path).ok


def test_a_file_that_cannot_be_begun_anew_fails_until_it_can(bench, touched):
    bench.path.unlink()
    (bench.directory / "audit.log.next").mkdir()
    for _ in range(2):
        with pytest.raises(LogFailed, match="Is a directory"):
            bench.append(touched, {"event": "lost"})
    (bench.directory / "audit.log.next").rmdir()
    bench.append(touched, {"event": "after"})
    assert json.loads(bench.lines()[0])["reason"] == "removed"


def test_the_file_is_looked_at_once_a_second_and_when_the_clock_goes_back(bench, touched, events):
    bench.append(touched, *events(1))
    bench.now += 0.5
    bench.path.unlink()
    bench.append(touched, *events(1))
    assert touched.warning is None
    bench.now -= 3600
    bench.append(touched, *events(1))
    assert "removed" in touched.warning
