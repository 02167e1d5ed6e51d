"""Artifacts: there whole or not at all, found again by their URI, and never more than there is room for."""

from __future__ import annotations

import hashlib
import os
import resource
from contextlib import asynccontextmanager

import pytest
import trio
from support.confinement import as_root
from support.hcp_job_store import ANN, BEN, begin, event, look, running, session_id

from hearth.actors.bridges.hcp.artifacts import ArtifactStore, NoSuchArtifact, StoreError
from hearth.actors.bridges.hcp.store import JobStore
from hearth.actors.bridges.hcp.store.queries import parse_uri
from hearth.errors import ConfigError
from hearth.hcp.messages import Artifact

ONE, TWO = session_id(1), session_id(2)
CSV = "text/csv"


@pytest.fixture
def place(tmp_path):
    return tmp_path / "audit.log.hcp"


@asynccontextmanager
async def stored(place, *, most_each=1 << 20, most_all=4 << 20, durability="os", sessions=(1,)):
    """A job store and its store at work, with sessions that run."""
    job_store = JobStore(place, durability=durability)
    async with running(job_store):
        store = ArtifactStore(place, job_store, most_each=most_each, most_all=most_all, durability=durability)
        store.open()
        for number in sessions:
            await begin(job_store, number)
        yield job_store, store


def files(place):
    """Everything below the artifacts' directory."""
    return sorted(str(path.relative_to(place / "artifacts")) for path in (place / "artifacts").rglob("*"))


# --- keeping and reading


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_an_artifact_is_kept_with_its_name_type_size_checksum_and_uri(place, durability):
    content = b"at_s,celsius\n0.0,21.5\n" * 100_000
    async with stored(place, durability=durability, most_each=4 << 20) as (job_store, store):
        artifact = await store.keep(ONE, "samples", "samples.csv", CSV, content)
        assert artifact == Artifact(
            name="samples",
            type=CSV,
            uri=f"hcp://{ONE}/artifacts/samples.csv",
            size_bytes=len(content),
            checksum="sha256:" + hashlib.sha256(content).hexdigest(),
        )
        assert await job_store.artifacts(ONE) == [artifact]
        read = await store.read(artifact.uri, 0, len(content) + 1)
        assert (read.artifact, read.offset, read.data) == (artifact, 0, content)
    file = place / "artifacts" / ONE / "samples.csv"
    assert file.read_bytes() == content
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent, file.parent.parent)] == [0o600, 0o700, 0o700]


async def test_it_is_read_in_slices_which_end_where_it_does(place):
    async with stored(place) as (_, store):
        uri = (await store.keep(ONE, "n", "n.bin", CSV, bytes(range(100)))).uri
        parts = [(await store.read(uri, offset, 30)).data for offset in (0, 30, 60, 90, 100, 2**64)]
        assert len((await store.read(uri, 99, 2**64)).data) == 1
    assert [len(part) for part in parts] == [30, 30, 30, 10, 0, 0]
    assert b"".join(parts) == bytes(range(100))


async def test_an_artifact_may_be_empty(place):
    async with stored(place) as (_, store):
        artifact = await store.keep(ONE, "n", "empty", CSV, b"")
        assert (await store.read(artifact.uri, 0, 10)).data == b""
        assert artifact.size_bytes == 0


async def test_it_is_read_after_a_restart_and_when_its_session_has_ended(place):
    async with stored(place) as (job_store, store):
        kept = [await store.keep(ONE, name, f"{name}.csv", CSV, name.encode()) for name in ("b", "a")]
        await job_store.end(ONE, "COMPLETED", [event(1)])
    async with stored(place, sessions=()) as (job_store, store):
        assert await job_store.artifacts(ONE) == kept
        assert [(await store.read(artifact.uri, 0, 9)).data for artifact in kept] == [b"b", b"a"]


async def test_a_file_is_kept_once(place):
    async with stored(place, sessions=(1, 2)) as (_, store):
        await store.keep(ONE, "n", "n.csv", CSV, b"first")
        with pytest.raises(StoreError, match=r"n\.csv of HCP session .* is there already"):
            await store.keep(ONE, "n", "n.csv", CSV, b"second")
        await store.keep(TWO, "n", "n.csv", CSV, b"another session's")
        assert (await store.read(f"hcp://{ONE}/artifacts/n.csv", 0, 99)).data == b"first"
    assert files(place) == [ONE, f"{ONE}/n.csv", TWO, f"{TWO}/n.csv"]


async def test_once_begun_keeping_is_finished_whatever_is_cancelled(place):
    async with stored(place) as (job_store, store):
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.keep(ONE, "n", "n.csv", CSV, b"content")
        there = [artifact.uri for artifact in await job_store.artifacts(ONE)]
        assert there == [f"hcp://{name.replace('/', '/artifacts/')}" for name in files(place) if "/" in name]


# --- names


@pytest.mark.parametrize(
    "file", ["", ".", "..", ".hidden", "-rf", "_x", "a/b", "../x", "a\\b", "a b", "ä.csv", "x" * 65, "a\n", "a\0"]
)
async def test_what_could_mean_anything_to_a_file_system_is_no_name(place, file):
    async with stored(place) as (_, store):
        with pytest.raises(StoreError, match="cannot be called"):
            await store.keep(ONE, "n", file, CSV, b"")
        with pytest.raises(StoreError, match="expected hcp://SESSION/artifacts/FILE"):
            await store.read(f"hcp://{ONE}/artifacts/{file}", 0, 1)
    assert files(place) == []


@pytest.mark.parametrize("session", ["", "..", "session-abc", "../" + ONE, ONE.upper() + "/x", f"{ONE}/", f" {ONE}"])
async def test_what_is_no_id_of_ours_is_no_session(place, session):
    async with stored(place) as (_, store):
        with pytest.raises(StoreError):
            await store.keep(session, "n", "n.csv", CSV, b"")
        with pytest.raises(StoreError, match="expected hcp://SESSION/artifacts/FILE"):
            await store.read(f"hcp://{session}/artifacts/n.csv", 0, 1)
        await store.forget(session)


def test_a_uri_is_taken_apart_into_its_two_names():
    assert parse_uri(f"hcp://{ONE}/artifacts/report.json").session_id == ONE
    assert parse_uri(f"hcp://{ONE}/artifacts/report.json").file == "report.json"
    for uri in (
        "",
        "hcp://",
        f"http://{ONE}/artifacts/a",
        f"hcp://{ONE}/a",
        f"hcp://{ONE}/artifacts/a?x",
        f"hcp://{ONE}/artifacts/a\n",
    ):
        with pytest.raises(ValueError, match="expected hcp://SESSION/artifacts/FILE"):
            parse_uri(uri)


async def test_there_is_no_artifact_of_an_unknown_session_or_name(place):
    async with stored(place) as (_, store):
        await store.keep(ONE, "n", "n.csv", CSV, b"")
        for uri in (f"hcp://{TWO}/artifacts/n.csv", f"hcp://{ONE}/artifacts/N.csv"):
            with pytest.raises(NoSuchArtifact, match="there is no artifact"):
                await store.read(uri, 0, 1)
        with pytest.raises(StoreError, match=f"no session {TWO}"):
            await store.keep(TWO, "n", "n.csv", CSV, b"")
    assert files(place) == [ONE, f"{ONE}/n.csv"]


# --- what somebody else did to the files


async def test_a_link_is_not_followed_wherever_it_lies(place, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret!")
    async with stored(place, sessions=(1, 2)) as (_, store):
        one = (await store.keep(ONE, "n", "n.csv", CSV, b"content")).uri
        two = (await store.keep(TWO, "n", "n.csv", CSV, b"content")).uri
        (place / "artifacts" / ONE / "n.csv").unlink()
        (place / "artifacts" / ONE / "n.csv").symlink_to(secret)
        (place / "artifacts" / TWO).rename(tmp_path / "elsewhere")
        (place / "artifacts" / TWO).symlink_to(tmp_path / "elsewhere")
        for uri in (one, two):
            with pytest.raises(NoSuchArtifact, match="is gone"):
                await store.read(uri, 0, 9)
        with pytest.raises(StoreError):
            await store.keep(TWO, "m", "m.csv", CSV, b"content")
        await store.forget(ONE)
        with pytest.raises(StoreError):
            await store.forget(TWO)
    assert secret.read_bytes() == b"secret!"
    assert (tmp_path / "elsewhere" / "n.csv").read_bytes() == b"content"


async def test_an_artifact_that_was_changed_is_not_given_out_even_in_a_part_that_was_not(place):
    async with stored(place) as (_, store):
        uri = (await store.keep(ONE, "n", "n.csv", CSV, b"a" * 100)).uri
        assert (await store.read(uri, 0, 10)).data == b"a" * 10
        file = place / "artifacts" / ONE / "n.csv"
        file.write_bytes(b"a" * 99 + b"b")
        with pytest.raises(StoreError, match="is damaged"):
            await store.read(uri, 0, 10)
        file.write_bytes(b"a" * 101)
        with pytest.raises(StoreError, match="is damaged"):
            await store.read(uri, 0, 10)
        file.write_bytes(b"a" * 100)
        assert (await store.read(uri, 0, 10)).data == b"a" * 10
    (place / "artifacts" / ONE / "n.csv").write_bytes(b"b" * 100)
    async with stored(place, sessions=()) as (_, store):
        with pytest.raises(StoreError, match="is damaged"):
            await store.read(uri, 0, 10)


async def test_a_pipe_in_the_place_of_an_artifact_is_no_artifact(place):
    async with stored(place) as (_, store):
        uri = (await store.keep(ONE, "n", "n.csv", CSV, b"a")).uri
        (place / "artifacts" / ONE / "n.csv").unlink()
        os.mkfifo(place / "artifacts" / ONE / "n.csv")
        with trio.fail_after(60), pytest.raises(StoreError, match="is damaged"):
            await store.read(uri, 0, 10)


# --- bounds


async def test_one_that_is_too_large_is_not_kept(place):
    async with stored(place, most_each=10) as (_, store):
        with pytest.raises(StoreError, match=r"11 bytes, 10 are allowed: see \[hcp\] max_artifact_bytes"):
            await store.keep(ONE, "n", "n.csv", CSV, b"x" * 11)
        await store.keep(ONE, "n", "n.csv", CSV, b"x" * 10)


async def ended(job_store, store, number, principal=ANN, size=40):
    await begin(job_store, number, principal)
    await store.keep(session_id(number), "n", "n.csv", CSV, b"x" * size)
    await job_store.end(session_id(number), "COMPLETED", [event(1, number)])


async def test_where_there_is_no_room_the_oldest_of_the_principal_with_most_give_way(place):
    async with stored(place, most_all=200, sessions=()) as (job_store, store):
        await ended(job_store, store, 1, BEN)
        for number in (2, 3, 4):
            await ended(job_store, store, number)
        await ended(job_store, store, 5, BEN)
        assert files(place) == sorted(name for n in range(1, 6) for name in (session_id(n), f"{session_id(n)}/n.csv"))
        await ended(job_store, store, 6, size=80)
        left = [number for number in range(1, 7) if await job_store.artifacts(session_id(number))]
        assert left == [1, 4, 5, 6]
        with pytest.raises(NoSuchArtifact, match="not kept any more"):
            await store.read(f"hcp://{session_id(2)}/artifacts/n.csv", 0, 1)
        assert await job_store.session(session_id(2)) is not None, "only its artifacts are gone"
    assert files(place) == sorted(name for n in left for name in (session_id(n), f"{session_id(n)}/n.csv"))


async def test_what_a_running_session_has_kept_does_not_give_way(place):
    async with stored(place, most_all=100, sessions=(1, 2)) as (job_store, store):
        await store.keep(ONE, "n", "n.csv", CSV, b"x" * 60)
        with pytest.raises(StoreError, match=r"artifact m\.csv cannot be kept: artifacts may have 100 bytes together"):
            await store.keep(TWO, "m", "m.csv", CSV, b"x" * 41)
        await store.keep(TWO, "m", "m.csv", CSV, b"x" * 40)
        assert len(await job_store.artifacts(ONE)) == 1
    assert files(place) == [ONE, f"{ONE}/n.csv", TWO, f"{TWO}/m.csv"]


async def test_one_for_which_everything_would_not_make_room_removes_nothing(place):
    async with stored(place, most_all=100, sessions=()) as (job_store, store):
        await ended(job_store, store, 1)
        await begin(job_store, 2)
        with pytest.raises(StoreError, match="cannot be kept"):
            await store.keep(TWO, "n", "n.csv", CSV, b"x" * 101)
        assert len(await job_store.artifacts(ONE)) == 1
    assert files(place) == [ONE, f"{ONE}/n.csv"]


async def test_what_the_job_store_has_forgotten_is_removed(place):
    async with stored(place) as (job_store, store):
        await store.keep(ONE, "n", "n.csv", CSV, b"x")
        await store.keep(ONE, "m", "m.csv", CSV, b"x")
        await job_store.end(ONE, "COMPLETED", [event(1)])
        for gone in await job_store.expire(1e12, 0.0):
            await store.forget(gone)
            await store.forget(gone)
        assert files(place) == []
        with pytest.raises(NoSuchArtifact):
            await store.read(f"hcp://{ONE}/artifacts/n.csv", 0, 1)


# --- after a kill, and on a disk that fails


async def test_what_a_kill_leaves_half_done_is_gone_after_the_next_start(place):
    async with stored(place, sessions=(1, 2)) as (job_store, store):
        kept = await store.keep(ONE, "n", "n.csv", CSV, b"x")
        await store.keep(ONE, "lost", "lost.csv", CSV, b"x")
    artifacts = place / "artifacts"
    (artifacts / ONE / "lost.csv").unlink()
    (artifacts / ONE / ".0123456789abcdef").write_bytes(b"a draft")
    (artifacts / ONE / "unknown.csv").write_bytes(b"written, and the job store was never told")
    (artifacts / TWO).mkdir()
    (artifacts / session_id(3)).mkdir()
    (artifacts / session_id(3) / "n.csv").write_bytes(b"of a session that is forgotten")
    (artifacts / "notes").mkdir()
    (artifacts / ONE / "mine").mkdir()
    (artifacts / session_id(4)).symlink_to(artifacts / ONE)
    async with stored(place, sessions=()) as (job_store, store):
        assert await job_store.artifacts(ONE) == [kept]
        assert (await store.read(kept.uri, 0, 1)).data == b"x"
    assert files(place) == sorted([ONE, f"{ONE}/mine", f"{ONE}/n.csv", session_id(4), "notes"]), "others' stay"
    assert look(place, "SELECT file FROM artifacts") == [("n.csv",)]


async def test_artifacts_follow_a_job_store_that_is_moved_aside(place):
    async with stored(place) as (_, store):
        await store.keep(ONE, "n", "n.csv", CSV, b"x")
    (place / "jobs.sqlite3").write_bytes(b"rubbish" * 1000)
    job_store = JobStore(place)
    job_store.open()
    store = ArtifactStore(place, job_store, most_each=10, most_all=10)
    (note,) = store.open()
    assert f"are now artifacts{job_store.aside}" in note
    assert (place / f"artifacts{job_store.aside}" / ONE / "n.csv").read_bytes() == b"x"
    assert files(place) == []
    await job_store.aclose()


async def test_a_store_without_its_job_store_is_not_opened(place, tmp_path):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        (place / "jobs.sqlite3").rename(tmp_path / "elsewhere")
        with pytest.raises(ConfigError, match="it was removed or replaced"):
            ArtifactStore(place, job_store, most_each=1, most_all=1).open()


@pytest.mark.parametrize("kind", ["file", "link", "open", pytest.param("given away", marks=as_root)])
async def test_a_directory_that_is_not_ours_alone_is_refused(place, tmp_path, kind):
    async with stored(place):
        pass
    artifacts = place / "artifacts"
    if kind == "open":
        artifacts.chmod(0o755)
    elif kind == "given away":
        os.chown(artifacts, 65534, 65534)
    else:
        artifacts.rmdir()
        if kind == "file":
            artifacts.touch()
        else:
            artifacts.symlink_to(tmp_path)
    async with running(JobStore(place)) as job_store:
        with pytest.raises(ConfigError, match=f"HCP artifacts {artifacts}: "):
            ArtifactStore(place, job_store, most_each=1, most_all=1).open()


async def test_a_full_disk_leaves_nothing_of_an_artifact(place):
    async with stored(place) as (job_store, store):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        try:
            with pytest.raises(StoreError, match=f"HCP artifacts {place}/artifacts: "):
                await store.keep(ONE, "n", "n.csv", CSV, b"x" * 60_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert files(place) == [ONE]
        artifact = await store.keep(ONE, "n", "n.csv", CSV, b"x" * 60_000)
        assert await job_store.artifacts(ONE) == [artifact]


async def test_a_job_store_that_fails_is_an_error_of_the_store_and_leaves_no_file(place, tmp_path):
    async with stored(place) as (_, store):
        uri = (await store.keep(ONE, "n", "n.csv", CSV, b"x")).uri
        (place / "jobs.sqlite3").rename(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match="it was removed or replaced"):
            await store.read(uri, 0, 1)
        with pytest.raises(StoreError, match=r"artifact m\.csv cannot be kept: .* it was removed or replaced"):
            await store.keep(ONE, "m", "m.csv", CSV, b"x")
    assert files(place) == [ONE, f"{ONE}/n.csv"]
