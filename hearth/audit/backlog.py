"""Records that the audit log could not write: kept in their order, in bounded memory, until it can.

There are two classes, each with bounds of its own: records of effects, safe states and disclosures, and `minor` ones,
because nothing was changed or disclosed. However many minor records come, they displace none of the others. Past a
bound the oldest of the class are dropped, and counted, because the newest records matter most. This module knows no log
and no time.
"""

from __future__ import annotations

import itertools
from collections import deque
from heapq import merge
from typing import TYPE_CHECKING, Any, Final

from hearth.audit.record import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.audit.log import Stamped

MOST_KEPT: Final = 10_000
"""Records of each class that are kept in memory while the log cannot be written; beyond that the oldest are dropped."""
MOST_KEPT_BYTES: Final = 8 * 1024 * 1024
"""The same in bytes, as lines of the log: a caller may make its records long."""


class _Class:
    """The kept records of one class, oldest first, each with its number; `dropped` counts the dropped ones."""

    __slots__ = ("dropped", "kept", "size")

    def __init__(self) -> None:
        self.kept: deque[tuple[int, Stamped]] = deque()
        self.size = 0
        self.dropped = 0

    def keep(self, number: int, stamped: Stamped) -> None:
        self.kept.append((number, stamped))
        self.size += _weight(stamped)
        while len(self.kept) > MOST_KEPT or self.size > MOST_KEPT_BYTES:
            self.release()
            self.dropped += 1

    def release(self) -> None:
        self.size -= _weight(self.kept.popleft()[1])


class Backlog:
    """The kept records of both classes, in the order in which they came."""

    __slots__ = ("_major", "_minor", "_number")

    def __init__(self) -> None:
        self._major, self._minor = _Class(), _Class()
        self._number = 0

    def __len__(self) -> int:
        return len(self._major.kept) + len(self._minor.kept)

    @property
    def size(self) -> int:
        """Bytes that the kept records would take in the log."""
        return self._major.size + self._minor.size

    @property
    def dropped(self) -> int:
        """Return the number of records dropped since that was last on record."""
        return self._major.dropped + self._minor.dropped

    @property
    def has_major(self) -> bool:
        """Return True if any record is kept that is not minor."""
        return bool(self._major.kept)

    @property
    def lost(self) -> int:
        """Return the number of records that would be lost if the process ended now."""
        return len(self) + self.dropped

    def counts(self, *, all_of_them: bool = False) -> dict[str, Any]:
        """Return the counts of dropped records for a record, by class; with `all_of_them` also of the kept ones."""
        by_class = {
            name: one.dropped + (len(one.kept) if all_of_them else 0)
            for name, one in (("effects", self._major), ("reads", self._minor))
        }
        total = sum(by_class.values())
        return {"dropped": total, **({"lost": by_class} if total else {})}

    def mark_reported(self) -> None:
        """Reset the counts: the dropped ones are on record."""
        self._major.dropped = self._minor.dropped = 0

    def keep(self, at: float, record: Mapping[str, Any], *, minor: bool = False) -> None:
        """Keep a record, marked as late."""
        self._number += 1
        (self._minor if minor else self._major).keep(self._number, (at, {**record, "late": True}))

    def extend(self, younger: Backlog) -> None:
        """Add the records of another backlog, which are younger than all of these, and its counts."""
        for mine, other in ((self._major, younger._major), (self._minor, younger._minor)):
            mine.dropped += other.dropped
            for number, stamped in other.kept:
                mine.keep(self._number + number, stamped)
        self._number += younger._number

    def oldest(self, most: int, *, major: bool = False) -> list[Stamped]:
        """Return up to `most` records, oldest first, and keep them. With `major` only those that are not minor."""
        in_order: Iterable[tuple[int, Stamped]] = self._major.kept
        if not major:
            in_order = merge(self._major.kept, self._minor.kept, key=_number)
        return [stamped for _, stamped in itertools.islice(in_order, most)]

    def release(self, written: int, *, major: bool = False) -> None:
        """Remove the `written` oldest, as `oldest` gives them."""
        for _ in range(written):
            first = self._major
            if not major and self._minor.kept and not (first.kept and first.kept[0][0] < self._minor.kept[0][0]):
                first = self._minor
            first.release()


def _number(kept: tuple[int, Stamped]) -> int:
    return kept[0]


def _weight(stamped: Stamped) -> int:
    return len(encode(0, "", stamped[1], ""))
