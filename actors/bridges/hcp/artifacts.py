"""The artifacts of HCP jobs: kept whole or not at all, read in slices, within bounds.

It owns the order of writes: a file is written before the job store lists it, and the job store forgets it before it is
removed. So a listed artifact has its file, and a file that a kill leaves in between is removed at the next start.
`ArtifactFiles` owns the files. The job store owns an artifact's name, size and checksum, and chooses which ones are
deleted when there is no room. The caller checks who may read one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import trio
from attrs import frozen

from hearth.actors.bridges.hcp.store.queries import (
    ArtifactUri,
    JobStoreError,
    is_file,
    is_session,
    parse_uri,
    write_uri,
)
from hearth.errors import ConfigError, HearthError
from hearth.hcp.messages import Artifact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from hearth.actors.bridges.hcp.store import JobStore
    from hearth.audit.log import Durability

DIRECTORY: Final = "artifacts"

T = TypeVar("T")


@frozen
class Slice:
    """A part of an artifact; shorter than requested only at the artifact's end."""

    artifact: Artifact
    offset: int
    data: bytes


class ArtifactStore:
    """The artifacts of one job store. `open` it once the job store is open; keep and read while the job store runs.

    One artifact has at most `most_each` bytes, all together at most `most_all`; past that the job store chooses which
    ones to delete.
    """

    def __init__(
        self, directory: Path, job_store: JobStore, *, most_each: int, most_all: int, durability: Durability = "os"
    ) -> None:
        self._files = ArtifactFiles(directory / DIRECTORY, sync=durability == "fsync")
        self._job_store = job_store
        self._most_each = most_each
        self._most_all = most_all
        self._limiter = trio.CapacityLimiter(1)

    def open(self) -> list[str]:
        """Make the directory and remove the leftovers of a killed run; return notes for the operator, one line each.

        Blocking. If the job store had to start empty, the artifacts of the damaged one are moved aside with it. Raises
        ConfigError.
        """
        try:
            note = self._files.open(self._job_store.aside)
            there = self._files.everything()
            self._files.remove(there - self._job_store.settle_artifacts(there))
        except OSError as error:
            raise ConfigError(f"HCP artifacts {self._files.path}: {error.strerror}; see [audit] path") from error
        except JobStoreError as error:
            raise ConfigError(str(error)) from error
        return [] if note is None else [note]

    async def keep(self, session_id: str, name: str, file: str, type_: str, content: bytes) -> Artifact:
        """Write an artifact of a session that the job store has. Once begun it is completed, even when cancelled.

        With durability "fsync" it is on the disk when this returns. Raises StoreError; then nothing of it is left.
        """
        if not is_session(session_id) or not is_file(file):
            raise StoreError(f"an artifact cannot be called {file[:80]!r}: letters, digits, '.', '_', '-', 64 at most")
        if len(content) > self._most_each:
            raise StoreError(
                f"artifact {file} has {len(content)} bytes, {self._most_each} are allowed: see [hcp] max_artifact_bytes"
            )
        checksum = await self._in_thread(self._files.write, session_id, file, content)
        uri = write_uri(session_id, file)
        artifact = Artifact(name=name, type=type_, uri=uri, size_bytes=len(content), checksum=checksum)
        # The file exists by now: cancellation must not leave it without a row.
        with trio.CancelScope(shield=True):
            try:
                gone = await self._job_store.admit(session_id, file, artifact, self._most_all)
            except JobStoreError as error:
                await self._in_thread(self._files.remove, {(session_id, file)})
                raise StoreError(f"artifact {file} cannot be kept: {error}") from error
            if gone:
                await self._in_thread(self._files.remove, set(gone))
        return artifact

    async def read(self, uri: str, offset: int, length: int) -> Slice:
        """Return up to `length` bytes of an artifact from `offset` on; none past its end.

        The whole file's checksum is verified once in each run, and again after the file has changed. Raises
        NoSuchArtifact, StoreError.
        """
        try:
            names = parse_uri(uri)
            artifact = await self._job_store.artifact(names.session_id, names.file)
        except (ValueError, JobStoreError) as error:
            raise StoreError(str(error)) from error
        if artifact is None:
            raise NoSuchArtifact(f"there is no artifact {uri}, or it is not kept any more")
        return Slice(artifact, offset, await self._in_thread(self._files.read, names, artifact, offset, length))

    async def forget(self, session_id: str) -> None:
        """Remove the files of a session that the job store has forgotten. Raises StoreError."""
        await self._in_thread(self._files.remove_session, session_id)

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run work in a thread. Raises StoreError for an OSError."""
        try:
            return await trio.to_thread.run_sync(work, *args, limiter=self._limiter)
        except OSError as error:
            raise StoreError(f"HCP artifacts {self._files.path}: {error.strerror}") from error


# --- The files of artifacts: `artifacts/SESSION/FILE`, modes 0700 and 0600 -------------------------------------------
#
# Each file is written under a temporary name and renamed. No name leads out of the directory and no link is followed: a
# session's directory is opened by itself, and a file by its name in it. Blocking; raises OSError.

_CHUNK: Final = 1 << 20
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_Print: TypeAlias = tuple[int, int, int, int]
"""The fingerprint of an unchanged file: device, inode, size, time of the last write."""


class StoreError(HearthError):
    """An artifact cannot be kept or read; the message is one line with the reason."""


class NoSuchArtifact(StoreError):
    """There is no artifact of that name, or none any more."""


class ArtifactFiles:
    """The directory at `path`. With `sync`, every write is on the disk when it returns."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        self.path = path
        self._sync = sync
        self._sound: dict[tuple[str, str], _Print] = {}
        """Files whose checksum has been verified."""

    def open(self, aside: str | None) -> str | None:
        """Make the directory if there is none; with `aside`, rename an existing one and return a note about it.

        Raises ConfigError if the directory is not the daemon's own.
        """
        note = None
        if aside is not None:
            with suppress(FileNotFoundError):
                self.path.rename(self.path.with_name(self.path.name + aside))
                renamed = f"{self.path.name}{aside}"
                note = f"HCP artifacts {self.path}: they belong to the damaged job store, and are now {renamed}"
        self.path.mkdir(mode=0o700, exist_ok=True)
        status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"HCP artifacts {self.path}: not a directory; move it away")
        if status.st_uid != os.geteuid():
            raise ConfigError(f"HCP artifacts {self.path}: belongs to uid {status.st_uid}; chown it to {os.geteuid()}")
        if status.st_mode & 0o077:
            raise ConfigError(f"HCP artifacts {self.path}: others can read or write in it; chmod 700 it")
        return note

    def everything(self) -> set[tuple[str, str]]:
        """Return every (session_id, file) there is, drafts included; remove empty directories."""
        found: set[tuple[str, str]] = set()
        for path in self.path.iterdir():
            if is_session(path.name):
                with suppress(NotADirectoryError), self._within(path.name) as fd:
                    found.update((path.name, name) for name in _names(fd))
                self._remove_if_empty(path.name)
        return found

    def write(self, session_id: str, file: str, content: bytes) -> str:
        """Write a new file; return its checksum, "sha256:…". Raises StoreError, OSError."""
        with suppress(FileExistsError):
            self.path.joinpath(session_id).mkdir(mode=0o700)
        with self._within(session_id) as fd:
            if file in _names(fd):
                raise StoreError(f"artifact {file} of HCP session {session_id} is there already")
            draft = f".{secrets.token_hex(8)}"
            try:
                checksum = self._write_draft(fd, draft, content)
                os.rename(draft, file, src_dir_fd=fd, dst_dir_fd=fd)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=fd)
                raise
            if self._sync:
                os.fsync(fd)
                self._sync_directory()
            self._sound[session_id, file] = _print(os.stat(file, dir_fd=fd, follow_symlinks=False))
        return checksum

    def _write_draft(self, directory: int, draft: str, content: bytes) -> str:
        checksum = hashlib.sha256()
        rest = memoryview(content)
        with os.fdopen(os.open(draft, _NEW, 0o600, dir_fd=directory), "wb", buffering=0) as target:
            while rest:
                written = target.write(rest[:_CHUNK])
                checksum.update(rest[:written])
                rest = rest[written:]
            if self._sync:
                os.fsync(target.fileno())
        return f"sha256:{checksum.hexdigest()}"

    def _sync_directory(self) -> None:
        fd = os.open(self.path, _DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, names: ArtifactUri, artifact: Artifact, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` on, of a file that matches the job store's size and checksum.

        Raises NoSuchArtifact, StoreError, OSError.
        """
        try:
            with self._within(names.session_id) as directory:
                fd = os.open(names.file, _OLD, dir_fd=directory)
        except OSError as error:
            raise NoSuchArtifact(f"the file of artifact {artifact.uri} is gone: {error.strerror}") from error
        try:
            size = self._must_be_sound(fd, names, artifact)
            # A caller's numbers may be larger than any offset the system accepts.
            return os.pread(fd, min(length, size - offset), offset) if offset < size else b""
        finally:
            os.close(fd)

    def _must_be_sound(self, fd: int, names: ArtifactUri, artifact: Artifact) -> int:
        """Return the file's size in bytes. Raises StoreError if its content is not the artifact's."""
        status = os.fstat(fd)
        key = names.session_id, names.file
        if self._sound.get(key) == _print(status):
            return status.st_size
        checksum = hashlib.sha256()
        if stat.S_ISREG(status.st_mode) and status.st_size == artifact.size_bytes:
            at = 0
            while part := os.pread(fd, _CHUNK, at):
                checksum.update(part)
                at += len(part)
        if f"sha256:{checksum.hexdigest()}" != artifact.checksum:
            raise StoreError(f"artifact {artifact.uri} is damaged: its file is not what was kept")
        self._sound[key] = _print(status)
        return status.st_size

    def remove(self, files: Iterable[tuple[str, str]]) -> None:
        """Remove files, if they exist, and directories that have become empty. Raises OSError."""
        for session_id, file in files:
            self._sound.pop((session_id, file), None)
            with suppress(FileNotFoundError), self._within(session_id) as fd:
                os.unlink(file, dir_fd=fd)
            self._remove_if_empty(session_id)

    def remove_session(self, session_id: str) -> None:
        """Remove all files of a session. Raises OSError."""
        if not is_session(session_id):
            return
        with suppress(FileNotFoundError):
            with self._within(session_id) as fd:
                names = _names(fd)
            self.remove((session_id, name) for name in names)

    def _remove_if_empty(self, session_id: str) -> None:
        with suppress(OSError):
            self.path.joinpath(session_id).rmdir()

    @contextmanager
    def _within(self, session_id: str) -> Iterator[int]:
        """Open a session's directory; a link in its place is not followed."""
        fd = os.open(self.path / session_id, _DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)


def _names(directory: int) -> list[str]:
    """Return the names in a directory; directories in it are not the daemon's, and are left alone."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]


def _print(status: os.stat_result) -> _Print:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
