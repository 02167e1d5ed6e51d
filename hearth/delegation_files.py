"""Fetching an artifact: slice by slice, and checked against the size and the checksum that its daemon names.

Owns that a file which is fetched is whole or not there. It asks through whatever calls hcp.artifact.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from attrs import frozen

from hearth.errors import ArtifactDamaged

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    Ask = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

KINDS = {"sha256": hashlib.sha256}
"""Kind of checksum -> how it is made."""


@frozen
class _Slice:
    """A part of an artifact, and what all of it should be."""

    data: bytes
    size: int
    checksum: str


async def read_slices(ask: Ask, uri: str) -> AsyncGenerator[bytes]:
    """The artifact's bytes, in order; the last comes only if all are what they should be.

    Raises ArtifactDamaged, InvalidParams (there is none of that URI for this caller) or CarrierError.
    """
    offset, promised, digest = 0, None, None
    held: bytes = b""
    while True:
        part = _read(await ask("hcp.artifact", {"uri": uri, "offset": offset}), uri)
        if promised is None:
            promised = (part.size, part.checksum)
            digest = _digest(part.checksum, uri)
        elif promised != (part.size, part.checksum):
            raise ArtifactDamaged(f"{uri}: it became another file while it was fetched")
        offset += len(part.data)
        if offset > part.size or (not part.data and offset < part.size):
            raise ArtifactDamaged(f"{uri}: {offset} bytes have come of a file of {part.size}")
        assert digest is not None
        digest.update(part.data)
        if held:
            yield held
        held = part.data
        if offset == part.size:
            break
    if digest.hexdigest() != promised[1].partition(":")[2].lower():
        raise ArtifactDamaged(f"{uri}: what has come is not what its checksum promises ({promised[1]})")
    yield held


def _digest(checksum: str, uri: str) -> Any:
    kind = KINDS.get(checksum.partition(":")[0])
    if kind is None:
        raise ArtifactDamaged(f"{uri}: a checksum of a kind that is not known here: {checksum[:80]!r}")
    return kind()


def _read(answer: Mapping[str, Any], uri: str) -> _Slice:
    data, size, checksum = (answer.get(name) for name in ("data", "size_bytes", "checksum"))
    if isinstance(data, str) and type(size) is int and isinstance(checksum, str):
        with suppress(ValueError):  # binascii.Error is one
            return _Slice(base64.b64decode(data, validate=True), size, checksum)
    raise ArtifactDamaged(f"{uri}: the server's answer is no part of a file")


async def fetch(ask: Ask, uri: str) -> bytes:
    """The artifact, whole. Raises as `read_slices`."""
    async with aclosing(read_slices(ask, uri)) as parts:
        return b"".join([part async for part in parts])


async def fetch_to(ask: Ask, uri: str, path: Path) -> int:
    """Put the artifact into a file, which is there whole or, if it was there before, as it was; returns its size.

    A file of that name is replaced; the new one is its owner's alone to read. Raises as `read_slices`, and OSError.
    """
    part = await trio.to_thread.run_sync(_Part.make, path)
    try:
        async with aclosing(read_slices(ask, uri)) as slices:
            async for data in slices:
                await trio.to_thread.run_sync(part.write, data)
        return await trio.to_thread.run_sync(part.finish)
    finally:
        # In its place by now, or of no use to anybody.
        part.discard()


class _Part:
    """A file on its way, beside the place where it is to be."""

    def __init__(self, path: Path, fd: int, name: str) -> None:
        self._path = path
        self._file = os.fdopen(fd, "wb")
        self._name = name

    @classmethod
    def make(cls, path: Path) -> _Part:
        if path.exists() and not path.is_file():
            raise FileExistsError(17, "there is something that is no file", str(path))
        return cls(path, *tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent))

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> int:
        size = self._file.tell()
        self._file.flush()
        os.fsync(self._file.fileno())
        Path(self._name).replace(self._path)
        return size

    def discard(self) -> None:
        self._file.close()
        Path(self._name).unlink(missing_ok=True)
