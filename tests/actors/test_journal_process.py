"""The journal against the real world: a process that is killed, a disk that is full, a file size limit."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest
import trio

from hearth.actors.journal import Journal
from hearth.audit import AuditSettings, keys
from hearth.audit.verify import verify
from hearth.errors import AuditUnavailable

pytestmark = pytest.mark.slow

LIMIT_S = 60

PREAMBLE = """
    import itertools, os, pathlib, sys
    import trio
    from hearth.actors.journal import Journal
    from hearth.audit import AuditSettings
    from hearth.errors import AuditUnavailable

    path = pathlib.Path(sys.argv[1])
    settings = AuditSettings(
        path=path, key=path.with_name("audit.key"), durability=sys.argv[2], rotate_bytes=50_000, checkpoint_every=100
    )
"""

WRITER = """
    async def ask(journal, numbers):
        for n in numbers:
            await journal.write({"event": "test.event", "n": n}, {"event": "test.more", "n": n})
            os.write(1, b"%d\\n" % n)

    async def main():
        journal = Journal(settings)
        journal.open()
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            numbers = itertools.count(int(sys.argv[3]))
            for _ in range(5):
                nursery.start_soon(ask, journal, numbers)

    trio.run(main)
"""

LIMITED = """
    import resource

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    async def main():
        limit(10_000)
        journal = Journal(settings)
        journal.open()
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            refused = []
            for n in range(100):
                try:
                    await journal.write({"event": "test.event", "n": n})
                except AuditUnavailable as error:
                    refused.append(n)
                    print(n, error.data["reason"], flush=True)
                    if len(refused) == 5:
                        break
            assert len(refused) == 5 and journal.failure
            limit(1_000_000)
            await journal.write({"event": "test.event", "n": n + 1})
            assert journal.failure is None
            nursery.cancel_scope.cancel()
        await journal.aclose()

    trio.run(main)
"""


def script(body):
    return [sys.executable, "-c", textwrap.dedent(PREAMBLE) + textwrap.dedent(body)]


def records(path):
    files = [*sorted(path.parent.glob("audit.log.0*")), path]
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


@pytest.mark.proof
@pytest.mark.parametrize(("durability", "enough"), [("os", 3000), ("fsync", 300)])
def test_after_kill_9_every_record_whose_receipt_was_answered_is_there(tmp_path, durability, enough):
    path = tmp_path / "audit.log"
    keys.load_or_create(path.with_name("audit.key"))
    answered = set()
    for run in range(3):
        first = run * 1_000_000
        with subprocess.Popen([*script(WRITER), str(path), durability, str(first)], stdout=subprocess.PIPE) as process:
            for _ in range(enough):
                line = process.stdout.readline()
                assert line, "the writer ended by itself"
                answered.add(int(line))
            process.send_signal(signal.SIGKILL)
            rest, _ = process.communicate(timeout=LIMIT_S)
            answered.update(int(line) for line in rest.split(b"\n")[:-1])
        assert process.returncode == -signal.SIGKILL
    journal = Journal(AuditSettings(path=path, key=path.with_name("audit.key"), checkpoint_every=1))
    journal.open()
    journal.post({"event": "the end"})
    trio.run(journal.aclose)
    report = verify(path, keys.public_path(path.with_name("audit.key")))
    assert report.ok, report.first_bad
    assert report.signed_to == report.head[0] - 1
    assert len(report.files) > 2
    for event in ("test.event", "test.more"):
        numbers = [record["n"] for record in records(path) if record["event"] == event]
        assert answered <= set(numbers)
        assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_file_size_limit_is_a_log_that_cannot_be_written_and_can_be_again(tmp_path, durability):
    path = tmp_path / "audit.log"
    done = subprocess.run(
        [*script(LIMITED), str(path), durability], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    refused = [int(line.split()[0]) for line in done.stdout.splitlines()]
    assert all("File too large" in line for line in done.stdout.splitlines())
    assert verify(path).ok
    tests = [record for record in records(path) if record["event"] == "test.event"]
    assert [record["n"] for record in tests] == list(range(refused[-1] + 2))
    assert [record["n"] for record in tests if record.get("late")] == refused


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    target = tmp_path / "small"
    target.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(target)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield target
    subprocess.run(["umount", str(target)], check=True)


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_on_a_disk_that_is_really_full_nothing_is_torn_and_nothing_is_lost(small_disk, durability):
    path = small_disk / "log" / "audit.log"
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 30_000)
    journal = Journal(
        AuditSettings(path=path, key=small_disk / "key", durability=durability, rotate_bytes=9000, checkpoint_every=20)
    )
    journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        posted = 0
        refused, reasons, whole = set(), set(), []
        while len(refused) < 20:
            posted += 1
            try:
                await journal.write({"event": "test.event", "n": posted, "pad": "x" * (posted % 100)})
            except AuditUnavailable as error:
                reasons.add(error.data["reason"])
                refused.add(posted)
                whole.append(verify(path).ok)
        assert all(whole)
        assert reasons == {journal.failure} == {f"audit log {path}: No space left on device"}
        ballast.unlink()
        for _ in range(5):
            posted += 1
            await journal.write({"event": "test.event", "n": posted})
        assert journal.failure is None
        nursery.cancel_scope.cancel()
    await journal.aclose()
    report = verify(path)
    assert report.ok, report.first_bad
    tests = [record for record in records(path) if record["event"] == "test.event"]
    assert [record["n"] for record in tests] == list(range(1, posted + 1))
    assert {record["n"] for record in tests if record.get("late")} == refused


def test_dev_full_is_refused_as_a_log():
    if not pathlib.Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    from hearth.errors import ConfigError

    journal = Journal(AuditSettings(path=pathlib.Path("/dev/full"), key=pathlib.Path("/nonexistent/key")))
    with pytest.raises(ConfigError, match="not a regular file"):
        journal.open()
