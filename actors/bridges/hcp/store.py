"""The artifacts of HCP's jobs: kept whole or not at all, read in slices, within bounds.

Owns the order of things: a file is written before the book knows it, and the book forgets it before it is removed. So
what the book tells of is there, and what a kill leaves between the two is removed at the next start. The files are
`store_files`'s. What an artifact is called and is, its size and checksum, and which ones give way when there is no
room, is the book's; who may read one is decided by whoever asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio
from attrs import frozen

from hearth.actors.bridges.hcp.artifact_uri import (
    ArtifactUri as ArtifactUri,
    is_file,
    is_session,
    parse_uri as parse_uri,
    write_uri,
)
from hearth.actors.bridges.hcp.book_rows import BookError
from hearth.actors.bridges.hcp.store_files import (
    ArtifactFiles,
    NoSuchArtifact as NoSuchArtifact,
    StoreError as StoreError,
)
from hearth.errors import ConfigError
from hearth.hcp.messages import Artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hearth.actors.bridges.hcp.book import Book
    from hearth.audit.settings import Durability

DIRECTORY: Final = "artifacts"

T = TypeVar("T")


@frozen
class Slice:
    """A part of an artifact; shorter than what was asked for only at its end."""

    artifact: Artifact
    offset: int
    data: bytes


class ArtifactStore:
    """The artifacts of one book. `open` it once the book is open; keep and read while the book runs.

    One artifact has at most `most_each` bytes, all together have `most_all`; past that the book decides which give way.
    """

    def __init__(
        self, directory: Path, book: Book, *, most_each: int, most_all: int, durability: Durability = "os"
    ) -> None:
        self._files = ArtifactFiles(directory / DIRECTORY, sync=durability == "fsync")
        self._book = book
        self._most_each = most_each
        self._most_all = most_all
        self._limiter = trio.CapacityLimiter(1)

    def open(self) -> list[str]:
        """Make the directory, and remove what a run that was killed left in it; notes for a person, one line each.

        Blocking. Where the book had to begin anew, what belongs to the former one is moved aside like that. Raises
        ConfigError.
        """
        try:
            note = self._files.open(self._book.aside)
            there = self._files.everything()
            self._files.remove(there - self._book.settle_artifacts(there))
        except OSError as error:
            raise ConfigError(f"HCP artifacts {self._files.path}: {error.strerror}; see [audit] path") from error
        except BookError as error:
            raise ConfigError(str(error)) from error
        return [] if note is None else [note]

    async def keep(self, session_id: str, name: str, file: str, type_: str, content: bytes) -> Artifact:
        """Write an artifact of a session that the book has. Once begun it is done, whatever is cancelled.

        With durability "fsync" it is on the disk when this returns. Raises StoreError, and then there is nothing of it.
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
        with trio.CancelScope(shield=True):
            try:
                gone = await self._book.admit(session_id, file, artifact, self._most_all)
            except BookError as error:
                await self._in_thread(self._files.remove, {(session_id, file)})
                raise StoreError(f"artifact {file} cannot be kept: {error}") from error
            if gone:
                await self._in_thread(self._files.remove, set(gone))
        return artifact

    async def read(self, uri: str, offset: int, length: int) -> Slice:
        """Up to `length` bytes of an artifact from `offset` on; none past its end.

        The whole of it has been found to have its checksum, in this run and since the file last changed. Raises
        NoSuchArtifact, StoreError.
        """
        try:
            names = parse_uri(uri)
            artifact = await self._book.artifact(names.session_id, names.file)
        except (ValueError, BookError) as error:
            raise StoreError(str(error)) from error
        if artifact is None:
            raise NoSuchArtifact(f"there is no artifact {uri}, or it is not kept any more")
        return Slice(artifact, offset, await self._in_thread(self._files.read, names, artifact, offset, length))

    async def forget(self, session_id: str) -> None:
        """Remove the files of a session that the book has forgotten. Raises StoreError."""
        await self._in_thread(self._files.remove_session, session_id)

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Do it in a thread; what the system refuses is a StoreError."""
        try:
            return await trio.to_thread.run_sync(work, *args, limiter=self._limiter)
        except OSError as error:
            raise StoreError(f"HCP artifacts {self._files.path}: {error.strerror}") from error
