"""The Merkle tree over the records of a log (RFC 6962 §2.1), its file, and proofs from it.

A leaf is the bytes of one record's line, without the LF. So the root of a checkpoint commits to every record, and a
proof of a few hashes shows that a record is among them, or that one tree continues another.

`Tree` is what the writer keeps in memory: the roots of the complete subtrees, at most one for each power of two. Beside
the log, `audit.log.tree` has the hash of each complete subtree of TILE records, 32 bytes for each. It is derived: where
it is missing or damaged, it is made from the records. It makes a start and a proof cheap, and it is the only memory of
records whose files were removed: later roots still commit to them.

A tree has the records from its first one on, which is record 1, unless older files had been removed before the tree was
begun. `origin` is the name of the log in checkpoints: it follows from the first record alone.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final

from attrs import define, field

from hearth._util.formats import check_format
from hearth.audit.files import newest_records, open_files, real, records_from
from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

HEIGHT: Final = 8
TILE: Final = 1 << HEIGHT
"""Records of the smallest subtree whose hash is in the file."""
_HASH: Final = 32
_FORMAT: Final = 1
_NAME: Final = b"hearth tree "
_MAGIC: Final = b"%s%d\n\0\0" % (_NAME, _FORMAT)
_HEADER: Final = 64
"""Bytes before the first hash: the magic, the first record's number in 8 bytes, the last one known to be on the disk in
8 bytes (0: not known), the hash of the first one's line."""


class NotProven(HearthError):
    """The error for a proof that does not lead to the root, or that cannot be made."""


def leaf_hash(line: bytes) -> bytes:
    """Return the hash of a leaf: a record's line without its LF."""
    return sha256(b"\0" + line).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a subtree with these halves."""
    return sha256(b"\1" + left + right).digest()


def origin_of(first_line: bytes) -> str:
    """Return the origin of the log whose tree begins with this record."""
    return f"hearth-audit/{sha256(first_line).hexdigest()[:32]}"


class Tree:
    """The tree of `size` leaves, as the roots of its complete subtrees, the largest first.

    Its first leaf is record number `first`, whose line has the SHA-256 `first_hash` (empty: there is no leaf yet).
    """

    __slots__ = ("_roots", "first", "first_hash", "size", "tiles")

    def __init__(self, first: int = 1, first_hash: bytes = b"", size: int = 0, roots: Iterable[bytes] = ()) -> None:
        self.first, self.first_hash, self.size = first, first_hash, size
        self._roots = list(roots)
        self.tiles: list[bytes] = []
        """Hashes of subtrees of TILE leaves that have become complete and are not in the file yet."""

    @property
    def origin(self) -> str:
        """The name of the log in checkpoints."""
        return f"hearth-audit/{self.first_hash.hex()[:32]}"

    def add(self, line: bytes) -> None:
        """Append a leaf. HOT: once for each record."""
        size, roots, level = self.size, self._roots, 0
        if not size:
            self.first_hash = sha256(line).digest()
        node = sha256(b"\0" + line).digest()
        while size >> level & 1:
            node = sha256(b"\1" + roots.pop() + node).digest()
            level += 1
            if level == HEIGHT:
                self.tiles.append(node)
        roots.append(node)
        self.size = size + 1

    def add_tile(self, node: bytes) -> None:
        """Append TILE leaves by the hash of their subtree; `size` must be a multiple of TILE."""
        level = HEIGHT
        while self.size >> level & 1:
            node = node_hash(self._roots.pop(), node)
            level += 1
        self._roots.append(node)
        self.size += TILE

    def copy(self) -> Tree:
        """Return a copy, for a return to this state."""
        other = Tree(self.first, self.first_hash, self.size, self._roots)
        other.tiles = self.tiles.copy()
        return other

    def root(self) -> bytes:
        """Return the root hash."""
        if not self._roots:
            return sha256().digest()
        root = self._roots[-1]
        for left in reversed(self._roots[:-1]):
            root = node_hash(left, root)
        return root


def tree_path(log: Path) -> Path:
    """Return the path of the tree's file."""
    return log.with_name(f"{log.name}.tree")


def known(log: Path) -> tuple[int, int]:
    """Return the last record that was on the disk, and the last one there was, as the tree's file has it; 0: none.

    The first is written after the log's sync, so a log that ends before it was changed. The hashes are written after
    the log's records, but no sync is between them: a power cut may leave hashes of records that it took.
    """
    try:
        content = tree_path(log).read_bytes()
    except OSError:
        return 0, 0
    if len(content) < _HEADER or not content.startswith(_MAGIC):
        return 0, 0
    synced = int.from_bytes(content[24:32], "big")
    tiles = (len(content) - _HEADER) // _HASH
    return synced, max(synced, int.from_bytes(content[16:24], "big") + tiles * TILE - 1)


@define
class TreeFile:
    """The file of the tree of the log at `log`, as the log's writer keeps it."""

    log: Path
    problem: str | None = field(default=None, init=False)
    """The reason why the file is out of date. The next start makes it from the records."""
    synced: int = field(default=0, init=False)
    """The last record known to be on the disk: it goes into the file with the next hashes."""
    _has_header: bool = field(default=False, init=False)

    @property
    def path(self) -> Path:
        """The file's path."""
        return tree_path(self.log)

    def open(self, head: int) -> Tree:
        """Return the tree of the log, whose last record is number `head`, from the file and the newest records.

        Blocking. If the file is missing or does not fit, the tree is made from all records that are there. If some
        of those are missing or cannot be read, a new tree begins after `head`. Raises ConfigError only for the file of
        a newer release.
        """
        try:
            tree = self._found(head)
        except OSError:
            tree = Tree()
        self.truncate(tree.size)
        if tree.size != head - tree.first + 1:
            self.truncate(0)
            self.problem = f"audit tree {self.path}: records cannot be read; a new tree begins after record {head}"
            return Tree(head + 1)
        return tree

    def _found(self, head: int) -> Tree:
        """Return the tree of the records that are there. Raises OSError."""
        oldest = _oldest(self.log) if head else None
        read = _read(self.path) if head else None
        if read is not None and (oldest is None or oldest[0] != read[0] or sha256(oldest[1]).digest() == read[1]):
            tree = self._from_file(head, *read)
            if tree is not None:
                self._has_header = True
                return tree
        tree = Tree(1 if oldest is None else oldest[0])
        for line in _lines(self.log, tree.first):
            tree.add(line)
        return tree

    def _from_file(self, head: int, first: int, first_hash: bytes, tiles: Sequence[bytes]) -> Tree | None:
        size = head - first + 1
        if size <= 0 or len(tiles) < size // TILE:
            return None
        tree = Tree(first, first_hash)
        for tile in tiles[: size // TILE]:
            tree.add_tile(tile)
        rest = [line for line, _ in islice(newest_records(self.log), size % TILE)]
        if len(rest) < size % TILE:
            return None
        for line in reversed(rest):
            tree.add(line[:-1])
        tree.first_hash = first_hash
        return tree

    def flush(self, tree: Tree) -> None:
        """Write the hashes of subtrees that have become complete; they stay in memory if that fails. Never raises."""
        if not tree.size or (self._has_header and not tree.tiles):
            return
        start = tree.size // TILE - len(tree.tiles)
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
            try:
                numbers = tree.first.to_bytes(8, "big") + self.synced.to_bytes(8, "big")
                os.pwrite(fd, _MAGIC + numbers + tree.first_hash, 0)
                os.pwrite(fd, b"".join(tree.tiles), _HEADER + start * _HASH)
            finally:
                os.close(fd)
        except OSError as error:
            self.problem = f"audit tree {self.path}: cannot be written: {error.strerror}; see [audit] path"
            return
        self.problem, self._has_header = None, True
        tree.tiles.clear()

    def settle(self, tree: Tree, seq: int) -> None:
        """Write that the log was synced up to record `seq`. Never raises."""
        self.synced, self._has_header = seq, False
        self.flush(tree)

    def truncate(self, size: int) -> None:
        """Remove hashes of records beyond a tree of `size` leaves: those records were taken back. Never raises."""
        length = _HEADER + size // TILE * _HASH
        self._has_header = self._has_header and size > 0
        try:
            if self.path.exists() and self.path.stat().st_size > length:
                os.truncate(self.path, length)
        except OSError as error:
            self.problem = f"audit tree {self.path}: cannot be cut: {error.strerror}; see [audit] path"


def _read(path: Path) -> tuple[int, bytes, list[bytes]] | None:
    """Return the first record's number, the hash of its line, and the hashes; None if it is no such file.

    Raises ConfigError for the file of a newer release.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return None
    number = content[len(_NAME) : _HEADER].partition(b"\n")[0]
    if content.startswith(_NAME) and number.isdigit():
        # Made again from the records, it would forget those whose files were removed.
        check_format(f"audit tree {path}", int(number), _FORMAT, "move it away")
    if len(content) < _HEADER or not content.startswith(_MAGIC):
        return None
    tiles = [content[at : at + _HASH] for at in range(_HEADER, len(content) - _HASH + 1, _HASH)]
    if bytes(_HASH) in tiles:  # what a power cut may leave of a page that was never written
        tiles = tiles[: tiles.index(bytes(_HASH))]
    return int.from_bytes(content[16:24], "big"), content[32:64], tiles


def _lines(log: Path, seq: int) -> Iterator[bytes]:
    """Yield the lines of a log, without their LF, from the record with this number on; none if it is not there."""
    with ExitStack() as stack:
        files = open_files(stack, log)
        for number, (line, record) in enumerate(records_from(files, seq), seq):
            if record["seq"] != number:
                return
            yield line[:-1]


def _oldest(log: Path) -> tuple[int, bytes] | None:
    """Return number and line of the oldest record that is there."""
    with ExitStack() as stack:
        for line, record in records_from(open_files(stack, log), 0):
            return record["seq"], line[:-1]
    return None


@define
class Prover:
    """Proofs from the files of the log at `path`: its records, and its tree's file if that is there.

    Blocking. Reads the file of hashes, and at most a few hundred records for each proof. Raises OSError, and NotProven
    for records that are not there.
    """

    path: Path
    first: int = field(init=False, default=1)
    origin: str = field(init=False, default="")
    _tiles: list[bytes] = field(init=False, factory=list)
    _leaves: dict[int, list[bytes]] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.path = real(self.path)
        oldest = _oldest(self.path)
        if oldest is None:
            raise NotProven(f"{self.path}: there is no record in it yet")
        read = _read(tree_path(self.path))
        if read is not None and (oldest[0] != read[0] or sha256(oldest[1]).digest() == read[1]):
            self.first, first_hash, self._tiles = read
            self.origin = f"hearth-audit/{first_hash.hex()[:32]}"
        else:
            # A copy of a log without its tree, or one with fewer records than a tile.
            self.first, self.origin = oldest[0], origin_of(oldest[1])

    def line(self, index: int) -> bytes:
        """Return the line of a leaf, without its LF."""
        for line in _lines(self.path, self.first + index):
            return line
        raise NotProven(f"{self.path}: record {self.first + index} is not in its files")

    def root(self, size: int) -> bytes:
        """Return the root of the tree of the first `size` records."""
        return self._hash(0, size) if size else sha256().digest()

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """Return the audit path of a leaf (RFC 6962 §2.1.1), from the leaf to the root."""
        if not 0 <= index < size:
            raise NotProven(f"record {self.first + index} is not among the {size} records of the checkpoint")
        low, high, path = 0, size, []
        while high - low > 1:
            middle = low + _split(high - low)
            if index < middle:
                path.append(self._hash(middle, high))
                high = middle
            else:
                path.append(self._hash(low, middle))
                low = middle
        return path[::-1]

    def consistency(self, old: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `size` leaves begins with that of `old` leaves (RFC 6962 §2.1.2)."""
        if not 0 <= old <= size:
            raise NotProven(f"a tree of {size} records does not continue one of {old}")
        if old in (0, size):
            return []
        low, high, proof, whole = 0, size, list[bytes](), True
        while old < high:
            middle = low + _split(high - low)
            if old <= middle:
                proof.append(self._hash(middle, high))
                high = middle
            else:
                proof.append(self._hash(low, middle))
                low, whole = middle, False
        return [*([] if whole else [self._hash(low, high)]), *proof[::-1]]

    def _hash(self, low: int, high: int) -> bytes:
        """Return the hash of the leaves from `low` up to `high`, which are a subtree of some tree."""
        if high - low == TILE and low // TILE < len(self._tiles):
            return self._tiles[low // TILE]
        if high - low == 1:
            return self._leaf(low)
        middle = low + _split(high - low)
        return node_hash(self._hash(low, middle), self._hash(middle, high))

    def _leaf(self, index: int) -> bytes:
        tile = index // TILE
        if tile not in self._leaves:
            lines = islice(_lines(self.path, self.first + tile * TILE), TILE)
            self._leaves[tile] = [leaf_hash(line) for line in lines]
        if index % TILE >= len(self._leaves[tile]):
            raise NotProven(f"{self.path}: record {self.first + index} is not in its files")
        return self._leaves[tile][index % TILE]


def _split(count: int) -> int:
    """Return the largest power of two that is smaller than `count`, which is 2 or more."""
    return 1 << (count - 1).bit_length() - 1


def check_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Check that `leaf`, a hash, is number `index` of the tree with this root (RFC 9162 §2.1.3.2). Raises NotProven."""
    if not 0 <= index < size:
        raise NotProven(f"there is no leaf {index} in a tree of {size}")
    node = leaf
    for step, is_left in _steps(index, size - 1, path):
        node = node_hash(step, node) if is_left else node_hash(node, step)
    if node != root:
        raise NotProven("the proof does not lead to the root: the record is not in this tree")


def check_consistency(old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> None:
    """Check that a tree begins with an older one (RFC 9162 §2.1.4.2). Raises NotProven."""
    wrong = NotProven("the proof does not lead from the older root to the newer one")
    if old in (0, size):
        if proof or (old and old_root != root):
            raise wrong
        return
    hashes = [old_root, *proof] if old.bit_count() == 1 else [*proof]
    if old > size or not hashes:
        raise wrong
    shared = (old ^ (old - 1)).bit_length() - 1  # levels on which the older tree is complete
    first = second = hashes[0]
    for step, is_left in _steps((old - 1) >> shared, (size - 1) >> shared, hashes[1:]):
        first = node_hash(step, first) if is_left else first
        second = node_hash(step, second) if is_left else node_hash(second, step)
    if (first, second) != (old_root, root):
        raise wrong


def _steps(at: int, last: int, proof: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield the hashes of a proof from node `at` of a level to the root, each with True if it is the left half.

    `last` is the last node of that level. Raises NotProven if the proof is longer or shorter than the way.
    """
    for step in proof:
        if not last:
            raise NotProven("the proof has more hashes than the tree has levels")
        is_left = bool(at & 1) or at == last
        while is_left and at and not at & 1:
            at, last = at >> 1, last >> 1
        yield step, is_left
        at, last = at >> 1, last >> 1
    if last:
        raise NotProven("the proof has fewer hashes than the tree has levels")
