"""A model of what a file system may have left after a power cut, and the states it allows at each point of a tape.

The tape (see `syscalls`) says which calls changed the files, which of them were synced, and in between what clients
were told and devices were made to do. `Storage` replays it up to a cut and keeps two things for every file and
directory: what is durable, and what has been done since. What a file holds is durable once the file was synced (fsync,
fdatasync); that a name exists, and which file it means, once its directory was. Nothing else promises anything, in
particular not the time that passes, a rename, or a sync of another file. A cut then leaves

- of each file: all that was done since, none of it, the first so many bytes of it, or any mixture of pages of 512 or
  4096 bytes, each of which has the new bytes, the old ones, zeros or garbage, with any length the file has had since
  the sync (a length beyond the pages that arrived reads as zeros; a file that was cut short may be as long as it was
  before);
- of each directory: its changes up to any one of them, or any subset of them (`loose`): a file system without a
  journal may write the second of two renames and not the first.

Its limits. What was durable stays: no bit rot, no disk that lies about a sync, no sector that is lost because its
neighbour was being written; bytes that are written again as they were are as durable as before. A directory entry is
written whole. A sync is taken to be over when the call returned, and to cover what was done before it began. What
SQLite does to the HCP job store is not on the tape. An order of writes between files that only some file systems
keep is not assumed.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

PAGES = (512, 4096)
STYLES = ("all", "none", "prefix", "pages", "garbage", "zeros")


@define(eq=False)
class File:
    """An inode: what is durable, what has been done since, and what a process reads now."""

    durable: bytes = b""
    now: bytes = b""
    sizes: list[int] = field(factory=lambda: [0])
    """The lengths it has had since the last sync."""
    since: list[tuple[int, bytes | None]] = field(factory=list)
    """Writes (offset, bytes) and truncations (size, None) since then."""

    def write(self, offset: int, data: bytes) -> None:
        self.now = _put(self.now, offset, data)
        self.since.append((offset, data))
        self.sizes.append(len(self.now))

    def truncate(self, size: int) -> None:
        self.now = _cut(self.now, size)
        self.since.append((size, None))
        self.sizes.append(size)

    def sync(self) -> None:
        self.durable, self.since, self.sizes = self.now, [], [len(self.now)]

    def left(self, style: str, rng: random.Random) -> bytes:
        """What a cut leaves of it."""
        if not self.since or style == "all":
            return self.now
        if style == "none":
            return self.durable
        if style == "prefix":
            return self._prefix(rng)
        return self._pages(style, rng)

    def _prefix(self, rng: random.Random) -> bytes:
        content = self.durable
        calls = rng.randrange(len(self.since) + 1)
        for offset, data in self.since[:calls]:
            content = _cut(content, offset) if data is None else _put(content, offset, data)
        if calls < len(self.since):
            offset, data = self.since[calls]
            if data:
                content = _put(content, offset, data[: rng.randrange(len(data) + 1)])
        return content

    def _pages(self, style: str, rng: random.Random) -> bytes:
        size, page = rng.choice(self.sizes), rng.choice(PAGES)
        # Between two lengths any other is possible too: a file grows page by page.
        if rng.random() < 0.3:
            size = rng.randrange(min(self.sizes), max(self.sizes) + 1)
        longest = max(size, len(self.durable), len(self.now))
        new, old = _cut(self.now, longest), _cut(self.durable, longest)
        safe = self._safe_bytes()
        content = bytearray(new)
        for start in range(0, longest, page):
            end = min(start + page, longest)
            fate = rng.choice(("new", "old", style if style in ("garbage", "zeros") else "old"))
            if fate == "old":
                content[start:end] = old[start:end]
            elif fate != "new":
                free = max(start, safe)
                if free < end:
                    content[free:end] = bytes(end - free) if fate == "zeros" else rng.randbytes(end - free)
        return bytes(content[:size]) if size >= safe else bytes(content[:safe])

    def _safe_bytes(self) -> int:
        """How many bytes from the start have been durable all the time: nothing since was done to them."""
        return min([len(self.durable), *(offset for offset, _ in self.since)])


def _put(content: bytes, offset: int, data: bytes) -> bytes:
    return _cut(content, max(offset, len(content)))[:offset] + data + content[offset + len(data) :]


def _cut(content: bytes, size: int) -> bytes:
    return content[:size].ljust(size, b"\0")


class Directory:
    """A directory's inode, as far as it is of interest: that it is one."""


Change = tuple[str | None, str | None, Any]
"""A name that is gone, a name that means something now, and what it means."""


class Storage:
    """The files beneath a directory, as a tape has made them."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.names: dict[str, Any] = {}
        self.durable: dict[str, Any] = {}
        self.changes: dict[str, list[Change]] = {}
        """By directory: what has been done to its names since it was synced."""
        self.handles: dict[str, File] = {}

    def replay(self, entries: Iterable[dict[str, Any]]) -> Storage:
        for entry in entries:
            self.apply(entry)
        return self

    def apply(self, entry: dict[str, Any]) -> None:
        """Do what a line of the tape says; lines about something else are passed over."""
        kind = entry.get("op")
        if kind == "write":
            self.handles[entry["handle"]].write(entry["offset"], base64.b64decode(entry["data"]))
        elif kind == "truncate":
            self.handles[entry["handle"]].truncate(entry["size"])
        elif kind == "sync":
            self.handles[entry["handle"]].sync()
        elif kind == "sync directory":
            self._sync_directory(entry["path"])
        elif kind in ("open", "create"):
            self._open(entry)
        elif kind == "mkdir":
            self._change(None, entry["path"], Directory())
        elif kind == "unlink":
            self._change(entry["path"], None, self.names[entry["path"]])
        elif kind == "rename":
            self._change(entry["old"], entry["new"], self.names[entry["old"]])
        elif kind == "link":
            self._change(None, entry["new"], self.names[entry["old"]])

    def _open(self, entry: dict[str, Any]) -> None:
        path = entry["path"]
        if entry.get("new"):
            self._change(None, path, File())
        file = self.handles[entry["handle"]] = self.names[path]
        if entry.get("empty") and file.now:
            file.truncate(0)

    def _change(self, gone: str | None, new: str | None, what: Any) -> None:
        directory = str(Path(gone or new or "").parent)
        _do(self.names, (gone, new, what))
        self.changes.setdefault(directory, []).append((gone, new, what))

    def _sync_directory(self, path: str) -> None:
        for change in self.changes.pop(path, []):
            _do(self.durable, change)

    def left(self, rng: random.Random, style: str, *, loose: bool) -> dict[str, bytes | None]:
        """What a cut leaves: the files by their path, and directories (None)."""
        names = dict(self.durable)
        for changes in self.changes.values():
            if style == "all":
                kept = changes
            elif style == "none":
                kept = []
            elif loose:
                kept = [change for change in changes if rng.random() < 0.5]
            else:
                kept = changes[: rng.randrange(len(changes) + 1)]
            for change in kept:
                _do(names, change)
        found: dict[str, bytes | None] = {}
        contents: dict[int, bytes] = {}
        for path, what in sorted(names.items()):
            if not all(str(parent) in names for parent in Path(path).parents if _beneath(parent, self.root)):
                continue  # its directory's own name was lost
            if isinstance(what, File):
                found[path] = contents.setdefault(id(what), what.left(style, rng))
            else:
                found[path] = None
        return found


def _beneath(path: Path, root: str) -> bool:
    return str(path) == root or str(path).startswith(root + "/")


def _do(names: dict[str, Any], change: Change) -> None:
    gone, new, what = change
    if gone is not None and names.get(gone) is what:
        del names[gone]
    if new is not None:
        names[new] = what


def lay_out(found: dict[str, bytes | None], root: str, place: Path) -> None:
    """Put what a cut left into a directory of its own, which must not be there."""
    place.mkdir()
    for path, content in found.items():
        target = place / Path(path).relative_to(Path(root).parent)
        if content is None:
            target.mkdir(parents=True)
        else:
            target.write_bytes(content)
            target.chmod(0o600)
