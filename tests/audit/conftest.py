"""Logs to work on: written record by record at a fixed time, without an actor."""

import hashlib
import json

import pytest

from hearth.audit import AuditSettings, keys
from hearth.audit.log import AuditLog

NOON = 1_776_638_881.234  # 2026-04-19T22:48:01.234Z


class Bench:
    """One log in a directory of its own, and what a test needs to look at it."""

    def __init__(self, directory):
        self.directory = directory
        self.path = directory / "audit.log"
        self.key = directory / "keys" / "audit.key"
        self.now = NOON

    def settings(self, **changes):
        quiet = {"path": self.path, "key": self.key, "checkpoint_every": 10**9, "reserve_bytes": 0}
        return AuditSettings(**{**quiet, **changes})

    def log(self, *, signed=False, disk=None, **changes):
        log = AuditLog(self.settings(**changes), disk=disk)
        self.found = log.open(self.now)
        if signed:
            log.signer = keys.load_or_create(self.key)
        return log

    def append(self, log, *records):
        log.append([(self.now, record) for record in records], self.now)

    def write(self, *records, signed=False, one_by_one=False, **changes):
        """A log that was opened, given these records and closed."""
        log = self.log(signed=signed, **changes)
        for batch in [[record] for record in records] if one_by_one else [records]:
            self.append(log, *batch)
        log.close()

    def files(self):
        return [*sorted(self.directory.glob("audit.log.[0-9]*")), self.path]

    def lines(self, file=None):
        return (file or self.path).read_bytes().split(b"\n")[:-1]

    def records(self):
        return [json.loads(line) for file in self.files() for line in self.lines(file)]

    def assert_chained(self, first_seq=1):
        """The chain, checked here once more, in the simplest way there is."""
        previous = "0" * 64 if first_seq == 1 else None
        for seq, line in enumerate((line for file in self.files() for line in self.lines(file)), first_seq):
            record = json.loads(line)
            assert record["seq"] == seq
            assert previous is None or record["prev"] == f"sha256:{previous}"
            assert list(record)[:3] == ["seq", "ts", "event"]
            assert list(record)[-1] == "prev"
            previous = hashlib.sha256(line).hexdigest()


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture(scope="session")
def bench_class():
    return Bench


def events(count, **fields):
    return [{"event": "test.event", "n": n, **fields} for n in range(count)]


@pytest.fixture(name="events")
def events_fixture():
    return events
