"""A task's event history: one writer, any number of readers, each at its own pace (draft §8).

The task publishes; each reader keeps the number of the next event it wants, and pulls. So a slow reader delays no other
one, a late reader starts at the beginning, and no event is lost between the two: there is only one history. `start`,
`finish` and `task_finish` are kept for as long as the task is. Only the newest `progress` events are kept, so progress
coalesces for a reader that falls behind. A history is kept as the lines that are sent, so that a thousand subscribers
share one copy of a long event. This module does not know connections.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import trio

from hearth.policy.memory import Retained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hearth.actors.metrics import Metrics
    from hearth.policy.memory import Account

PROGRESS_KEPT = 64
"""Progress events that a history holds: enough for a burst between two wake-ups of a healthy reader."""
MOST_READ = 64
"""Events that a reader in the same process takes at once."""
PROGRESS_BYTES = 64 << 10
"""Bytes of progress events that a history holds; it holds the newest one even if that alone is longer."""

_HEAD = b'{"jsonrpc":"2.0","method":"task.event","params":'
_TAIL = b"}\n"
_OVERHEAD = 160
"""Bytes of an entry in a history besides its line: the tuple, the number, the head of the bytes object, the list."""


def to_keep(value: Any) -> bytes:
    """Return a value's JSON as bytes that take no more memory than their length.

    The bytes that orjson returns keep the 4 KiB buffer they were written into; a copy does not.
    """
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)[:-1]


_LINE: Callable[[tuple[int, bytes]], bytes] = itemgetter(1)


class Reader(Protocol):
    """A component that follows a history, such as a cursor of a connection."""

    @property
    def gone(self) -> bool:
        """True when the reader will never read again."""
        ...

    def notify(self) -> None:
        """Note that there is something to read, or that the history has ended. Must not block or publish."""


class History(Protocol):
    """A sequence of lines numbered from 1, with one writer and any number of readers."""

    @property
    def metrics(self) -> Metrics | None:
        """The counters of sent events, or None."""
        ...

    @property
    def last_seq(self) -> int:
        """The number of the newest line."""
        ...

    @property
    def ended(self) -> bool:
        """True when no line will come after `last_seq`."""
        ...

    def attach(self, reader: Reader) -> None:
        """Notify `reader` of each new line from now on, and at once if there are lines already."""

    def detach(self, reader: Reader) -> None:
        """Stop notifying `reader`."""

    def hold(self) -> None:
        """Keep the history charged to its principal, because a reader has yet to send it."""

    def let_go(self) -> None:
        """Undo one `hold`: the reader has sent the history, or will not."""

    def lines(self, from_seq: int, most: int) -> tuple[list[bytes], int]:
        """Return up to `most` lines numbered `from_seq` or higher, and the number to read from next."""
        ...


class EventLog(Retained):
    """The history of one task, as the notification of each event, numbered from 1.

    It is charged to `account` for as long as the task registry keeps it or a reader holds it; `reserved` bytes are
    charged for it already.
    """

    __slots__ = (
        "_kept",
        "_progress",
        "_progress_bytes",
        "_readers",
        "ended",
        "last_seq",
        "metrics",
        "task_id",
        "was_followed",
    )

    def __init__(
        self, task_id: str, metrics: Metrics | None = None, account: Account | None = None, reserved: int = 0
    ) -> None:
        super().__init__(account, reserved)
        self.task_id = task_id
        self.metrics = metrics
        """The counters of published events, or None."""
        self.last_seq = 0
        self.ended = False
        self.was_followed = False
        """True if a reader was following when the history ended."""
        self._kept: list[tuple[int, bytes]] = []
        self._progress: deque[tuple[int, bytes]] | None = None
        self._progress_bytes = 0
        self._readers: dict[Reader, None] = {}

    def publish(self, phase: str, ts: str, members: Mapping[str, Any]) -> None:
        """Add an event and notify the readers. After `task_finish` the history has ended.

        Raises orjson.JSONEncodeError, and adds nothing, if `members` are not JSON.
        """
        self.publish_all([(phase, members)], ts)

    def publish_all(self, events: Sequence[tuple[str, Mapping[str, Any]]], ts: str) -> None:
        """Add some events, and notify the readers once; see `publish`."""
        grown = 0
        for phase, members in events:
            seq = self.last_seq + 1
            params = orjson.dumps({"task_id": self.task_id, "seq": seq, "phase": phase, "ts": ts, **members})
            entry = (seq, _HEAD + params + _TAIL)
            # Only now: members that are not JSON have raised above, and must leave no hole in the numbers.
            self.last_seq = seq
            if self.metrics is not None:
                self.metrics.events[phase] += 1
            size = len(entry[1]) + _OVERHEAD
            if phase == "progress":
                self._keep_progress(entry, size)
            else:
                self._kept.append(entry)
                grown += size
                self.ended = phase == "task_finish"
        # As `grow` has it, which is for what was not reserved.
        self._grown += grown
        if self._grown > self._charged:
            self.grow(0)
        followed = False
        for reader in self._readers:
            if not reader.gone:
                followed = True
                reader.notify()
        if self.ended:
            self.was_followed = followed
            self._readers = {}
            self.settle()

    def _keep_progress(self, entry: tuple[int, bytes], size: int) -> None:
        progress = self._progress
        if progress is None:
            progress = self._progress = deque()
        before = self._progress_bytes
        while progress and (len(progress) >= PROGRESS_KEPT or self._progress_bytes + size > PROGRESS_BYTES):
            self._progress_bytes -= len(progress.popleft()[1]) + _OVERHEAD
        progress.append(entry)
        self._progress_bytes += size
        self.grow(self._progress_bytes - before)

    def attach(self, reader: Reader) -> None:
        """Notify `reader` of each new event from now on, and at once if there are events already."""
        if not self.ended:
            # A dict, for constant time: all followers of a session attach to each new task, in one turn.
            self._readers[reader] = None
        if self.last_seq:
            reader.notify()

    def detach(self, reader: Reader) -> None:
        """Stop notifying `reader`."""
        self._readers.pop(reader, None)

    @property
    def followed(self) -> bool:
        """True while the history goes on and a reader that has not gone follows it."""
        return any(not reader.gone for reader in self._readers)

    def lines(self, from_seq: int, most: int) -> tuple[list[bytes], int]:
        """Return the notifications of these events; see History."""
        kept = self._kept
        if self._progress is None:
            # No progress events: event n is at n - 1.
            start = max(from_seq, 1) - 1
            found = list(map(_LINE, kept[start : start + most]))
            return found, start + 1 + len(found)
        merged = kept[bisect_left(kept, (from_seq,)) :][:most]
        merged += [entry for entry in self._progress if entry[0] >= from_seq]
        merged.sort()
        del merged[most:]
        return [line for _, line in merged], (merged[-1][0] + 1 if merged else from_seq)


class EventReader:
    """A reader of one history in the same process: `async for params in reader` until the history ends."""

    def __init__(self, log: History, from_seq: int = 1) -> None:
        self._log = log
        self._next = from_seq
        self._ready: deque[bytes] = deque()
        self._event = trio.Event()
        self.gone = False
        log.attach(self)

    def notify(self) -> None:
        """See Reader."""
        self._event.set()

    def __aiter__(self) -> EventReader:
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        while not self._ready:
            self._event = trio.Event()
            found, self._next = self._log.lines(self._next, MOST_READ)
            if found:
                self._ready.extend(found)
                break
            if self._log.ended:
                self.close()
                raise StopAsyncIteration
            await self._event.wait()
        params: Mapping[str, Any] = orjson.loads(self._ready.popleft())["params"]
        return params

    def close(self) -> None:
        """Stop following."""
        self.gone = True
        self._log.detach(self)


class HistoryEnd:
    """A wait in the same process for the end of a history, which no earlier line wakes. Implements `Reader`."""

    def __init__(self, log: History) -> None:
        self._log = log
        self._ended = trio.Event()
        self.gone = False

    def notify(self) -> None:
        """See Reader."""
        if self._log.ended:
            self._ended.set()

    async def wait(self) -> None:
        """Wait until no further line will come."""
        self._log.attach(self)
        try:
            await self._ended.wait()
        finally:
            self.gone = True
            self._log.detach(self)
