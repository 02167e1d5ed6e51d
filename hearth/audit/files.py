"""The names of a log's files, and reading them from their end. Writes nothing.

A log at `/var/log/hearth/audit.log` consists of that file, which is being written, and of the files it was rotated to:
`audit.log.000000000001`, `audit.log.000000048213`, … named after the seq of their first record, so that they sort.
Files that recovery moved aside (`audit.log.torn-…`, `audit.log.found-…`) are no part of the log, nor are other files
beside it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from hearth._util.files import ownership_fault
from hearth.audit.record import Record, digest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from contextlib import ExitStack
    from typing import IO

    from hearth.audit.record import Head

CHUNK = 256 * 1024
FORMAT = 1
"""The format of a log: the first record of each of its files names it, and a file without one has format 1."""

_ROTATED = re.compile(r"\.([0-9]{12,})\Z")
_ASIDE = re.compile(r"\.(?:(?:torn|found)-[^/]+|next|reserve|key|key\.[0-9]+\.new|pub|outputs|hcp|tree|attest)\Z")
_FIRST_SEQ = re.compile(rb'\{"seq":([0-9]{1,18}),')


def real(path: str | os.PathLike[str]) -> Path:
    """Return the file that `path` names, links followed: a log is rotated in its real directory."""
    return Path(os.path.realpath(path))


def directory_fault(log: Path, key: Path, trusted: Collection[int]) -> str | None:
    """Return why users that are not `trusted` could replace the log, the halt's latch beside it or the key, or None.

    The directories may be missing: the daemon makes them. See `hearth._util.files`.
    """
    try:
        for directory in dict.fromkeys((log.parent, real(log).parent, key.parent)):
            if (fault := ownership_fault(directory, trusted, may_be_missing=True)) is not None:
                return fault
    except OSError as error:
        return f"{error.filename} cannot be examined: {error.strerror}; see [audit] path and key"
    return None


def rotated_name(path: Path, first_seq: int) -> Path:
    """Return the rotated name of the file at `path`."""
    return path.with_name(f"{path.name}.{first_seq:012d}")


def rotated_seq(path: Path) -> int | None:
    """Return the seq of the first record of a rotated file, by its name; None for another kind of name."""
    match = _ROTATED.search(path.name)
    return int(match[1]) if match else None


def rotated_files(path: Path) -> list[Path]:
    """Return the files that the log at `path` was rotated to, oldest first."""
    try:
        names = os.listdir(path.parent)  # noqa: PTH208 - names only, not a Path for each
    except OSError:
        return []
    found = []
    for name in names:
        match = _ROTATED.search(name)
        if match and name[: match.start()] == path.name:
            found.append((int(match[1]), path.with_name(name)))
    return [file for _, file in sorted(found)]


def is_aside(path: Path) -> bool:
    """True for the names of files beside a log that are no part of it: moved aside, the key, driven outputs."""
    return _ASIDE.search(path.name) is not None


def first_seq(fd: int, offset: int = 0) -> int | None:
    """Return the seq of the record at an offset of a file, or None if no record begins there."""
    match = _FIRST_SEQ.match(os.pread(fd, 64, offset))
    return int(match[1]) if match else None


def format_of(fd: int) -> object:
    """Return the format that the first record of a file names; 1 if it names none."""
    line, _, _ = os.pread(fd, CHUNK, 0).partition(b"\n")
    return (parse(line + b"\n") or {}).get("format", 1)


def read_exactly(fd: int, size: int, offset: int) -> bytes:
    """Return `size` bytes from `offset`, fewer only where the file ends."""
    parts = []
    while size > 0:
        part = os.pread(fd, size, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def backward(fd: int, end: int, floor: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file from `end` back to `floor`, newest first, as (offset, line with its LF).

    Only the newest may lack its LF. A line that begins before `floor` is omitted. A line longer than the chunk that is
    read at a time costs twice its length, not its square.
    """
    position, rest, chunk = end, b"", CHUNK
    while position > floor:
        start = max(floor, position - chunk)
        block = read_exactly(fd, position - start, start) + rest
        position = start
        cut = block.rfind(b"\n", 0, len(block) - 1) + 1
        if not cut:
            rest, chunk = block, chunk * 2
            continue
        chunk = CHUNK
        stop = len(block)
        while cut:
            yield position + cut, block[cut:stop]
            stop, cut = cut, block.rfind(b"\n", 0, cut - 1) + 1
        rest = block[:stop]
    if rest and (floor == 0 or os.pread(fd, 1, floor - 1) == b"\n"):
        yield floor, rest


def parse(line: bytes) -> Record | None:
    """Return the record on a line that has its LF, or None if this is no whole record."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("prev"), str):
        return None
    seq = record.get("seq")
    return record if type(seq) is int and 0 < seq < 2**53 else None


def head_of(line: bytes, record: Record) -> Head:
    """Return the head of a log whose last line is this one."""
    return (record["seq"], digest(line[:-1]))


def newest_records(path: str | os.PathLike[str]) -> Iterator[tuple[bytes, Record]]:
    """Yield the whole records of the log at `path` with their lines, newest first. Raises OSError."""
    base = real(path)
    older = rotated_files(base)[::-1]
    if not older or base.exists():
        older.insert(0, base)
    for file in older:
        with file.open("rb") as opened:
            fd = opened.fileno()
            for _, line in backward(fd, os.fstat(fd).st_size):
                record = parse(line)
                if record is not None:
                    yield line, record


def open_files(stack: ExitStack, path: str | os.PathLike[str]) -> list[tuple[int, IO[bytes]]]:
    """Open the files of the log at `path` until `stack` ends; return each with its first record's number, oldest first.

    A file without a record is left out. Raises OSError.
    """
    base = real(path)
    # The current file first: if it is rotated in between, the open file is still the newest one.
    current = [stack.enter_context(base.open("rb"))] if base.exists() else []
    ends = {os.fstat(file.fileno()).st_ino for file in current}
    older = [file for file in rotated_files(base) if file.stat().st_ino not in ends]
    files = [*(stack.enter_context(file.open("rb")) for file in older), *current]
    begins = [(first_seq(file.fileno()), file) for file in files]
    return [(seq, file) for seq, file in begins if seq is not None]


def records_from(files: Sequence[tuple[int, IO[bytes]]], seq: int) -> Iterator[tuple[bytes, Record]]:
    """Yield the whole records of the log with these files, as `open_files` returns them, from number `seq` on."""
    for place, (_, file) in enumerate(files):
        if place + 1 == len(files) or files[place + 1][0] > seq:
            yield from _forward(file, seq)


def _forward(file: IO[bytes], seq: int) -> Iterator[tuple[bytes, Record]]:
    """Yield the whole records of a file from number `seq` on; lines begin with their number, so it is halved."""
    fd = file.fileno()
    low, high = 0, os.fstat(fd).st_size
    while high - low > CHUNK:
        middle = (low + high) // 2
        block = os.pread(fd, CHUNK, middle)
        start = block.find(b"\n") + 1
        found = first_seq(fd, middle + start) if start else None
        if found is None or found > seq:
            high = middle
        else:
            low = middle + start
    file.seek(low)
    for line in file:
        record = parse(line)
        if record is not None and record["seq"] >= seq:
            yield line, record
