"""The audit log as the disk under it saw it: bytes to records, and the spans in which it could not be written.

Knows the form of the log as the design page gives it (a line of JSON each, chained by SHA-256), and nothing of the
program that wrote it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from datetime import datetime
from typing import Any, NamedTuple

FOR_EVER = 1 << 62
"""The number of an entry that comes after all others."""


def _seconds(text) -> float:
    """Epoch seconds of a record's time."""
    return datetime.fromisoformat(text).timestamp()


class Record(NamedTuple):
    """One whole line of the log, and the entry of the tape by which it had become whole."""

    number: int
    at: float
    file: str
    line: bytes
    fields: dict[str, Any]

    @property
    def event(self) -> str:
        return self.fields.get("event", "")

    @property
    def late(self) -> bool:
        """Kept in memory while the log could not be written, and written afterwards."""
        return self.fields.get("late") is True


class Log:
    """All that was written, in the order of writing."""

    def __init__(self, entries):
        self.records: list[Record] = []
        self.unreadable: list[tuple[int, bytes]] = []
        self.failing: list[list[int]] = []
        """Spans of entries, first and last, in which the log could not be written."""
        self.syncs: list[tuple[int, str]] = []
        self.lost = False
        """Whether some records never came to it, by its own account or because it failed when a run ended."""
        self._files: dict[str, bytearray] = {}
        self._starts: dict[str, int] = {}
        self._epoch: float | None = None
        for entry in entries:
            kind, what = entry.kind, entry.what
            if kind == "disk.write":
                self._written(entry, what["file"], what["data"])
            elif kind == "disk.cut":
                self._cut(what["file"], what["size"])
            elif kind == "disk.fails":
                if not self.failing or self.failing[-1][1] != FOR_EVER:
                    self.failing.append([entry.number, FOR_EVER])
            elif kind == "disk.sync":
                self.syncs.append((entry.number, what["file"]))
            elif kind in ("daemon.starts", "daemon.ends"):
                self._stops(entry.number)
        self._stops(FOR_EVER)

    def fails_at(self, number: int) -> bool:
        """Whether the log was one that could not be written when this entry was told."""
        return any(first <= number <= last for first, last in self.failing)

    def failed_between(self, first: int, last: int) -> bool:
        """Whether the log could not be written at some time between two entries, whichever comes first."""
        first, last = min(first, last), max(first, last)
        return any(begin <= last and end >= first for begin, end in self.failing)

    def durable(self, record: Record, durability: str) -> int:
        """The entry from which on a record was as durable as promised."""
        if durability != "fsync":
            return record.number
        place = bisect_right(self.syncs, record.number, key=lambda sync: sync[0])
        return next((number for number, file in self.syncs[place:] if file == record.file), FOR_EVER)

    def reported(self, record: Record) -> float:
        """When a record was reported, by its own time, in seconds of the tape; a slow disk may write it much later."""
        if self._epoch is None:
            stamps = [_seconds(one.fields.get("ts")) - one.at for one in self.records if "ts" in one.fields]
            self._epoch = max(stamps, default=0.0)
        return _seconds(record.fields["ts"]) - self._epoch if "ts" in record.fields else record.at

    def _written(self, entry, file, data):
        content = self._files.setdefault(file, bytearray())
        content += data
        start = self._starts.setdefault(file, 0)
        while (end := content.find(b"\n", start)) >= 0:
            line = bytes(content[start:end])
            start = end + 1
            try:
                fields = json.loads(line)
            except ValueError:
                fields = None
            if type(fields) is not dict:
                self.unreadable.append((entry.number, line))
                continue
            record = Record(entry.number, entry.at, file, line, fields)
            self.records.append(record)
            if record.event == "audit.resume" and self.failing:
                self.failing[-1][1] = entry.number
                self.lost = self.lost or bool(fields.get("dropped"))
        self._starts[file] = start

    def _cut(self, file, size):
        """Bytes were taken back. What was whole before them was written, all the same: a cut into it is told."""
        content = self._files.setdefault(file, bytearray())
        if size < self._starts.get(file, 0):
            kept = content[:size].count(b"\n")
            here = [record for record in self.records if record.file == file]
            gone = {id(record) for record in here[kept:]}
            self.records = [record for record in self.records if id(record) not in gone]
            self._starts[file] = content.rfind(b"\n", 0, size) + 1
        del content[size:]

    def _stops(self, number):
        """A run of the daemon is over: what it kept in memory is lost, and the next one moves a torn line aside."""
        for file, content in self._files.items():
            del content[self._starts[file] :]
        if self.failing and self.failing[-1][1] == FOR_EVER and number != FOR_EVER:
            self.failing[-1][1] = number
            self.lost = True
        elif self.failing and self.failing[-1][1] == FOR_EVER:
            self.lost = True
