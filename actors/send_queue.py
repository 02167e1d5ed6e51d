"""What waits to be sent on one connection: answers, and the histories that its client follows.

Everything leaves in the order it became due: an answer as the bytes it is, a history as a `Cursor` that is read only
when its turn comes. So a client that reads slowly costs the few bytes of a cursor per task it follows, and its
progress events coalesce by themselves. The outbox has one writer, which takes whatever is ready at once; it does
no I/O. Answers are charged to the principal until they are sent, and histories for as long as a feed has yet to read
of them, whoever else has forgotten them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from hearth.policy.memory import ANSWER_BYTES, FEED_BYTES, unlimited

if TYPE_CHECKING:
    from hearth.actors.events import History
    from hearth.policy.memory import Account

CHUNK = 1 << 16
"""Bytes to send at once, as a goal."""
HIGH_WATER = 1 << 20
"""Bytes of unsent answers past which the connection reads no more requests."""

MOST_EVENTS = 64
"""Events of one history to send at once."""


class Cursor:
    """One connection's place in one history."""

    __slots__ = ("_log", "_next", "_send_queue", "dropped", "queued")

    def __init__(self, send_queue: SendQueue, log: History, from_seq: int) -> None:
        self._send_queue = send_queue
        self._log: History | None = log
        self._next = from_seq
        self.queued = False
        self.dropped = False
        """True for one that is passed over where it stands in the queue."""

    @property
    def gone(self) -> bool:
        """See events.Reader."""
        return self._send_queue.gone

    def notify(self) -> None:
        """See events.Reader."""
        if not self.queued:
            self._send_queue.queue_feed(self)

    def due(self) -> tuple[list[bytes], int]:
        """The next events as lines, and the number to go on from once they are taken."""
        assert self._log is not None, "it has been dropped"
        most = MOST_EVENTS
        found, after = self._log.lines(self._next, most)
        while most > 1 and sum(map(len, found)) > CHUNK:
            # Rarely: events with results of many bytes. What is not taken now costs nothing until it is.
            most //= 4
            found, after = self._log.lines(self._next, most)
        return found, after

    def taken(self, found: list[bytes], after: int) -> bool:
        """These will be sent; returns whether there are more by now, and then it is to stay in the queue."""
        log = self._log
        assert log is not None, "it has been dropped"
        if (metrics := log.metrics) is not None:
            metrics.sent += len(found)
            # The numbers have no holes but where progress events have given way.
            metrics.skipped += after - self._next - len(found)
        self._next = after
        self.queued = self._next <= log.last_seq
        if log.ended and not self.queued:
            self._send_queue.finished(log)
        return self.queued

    def drop(self) -> None:
        """Send no more, and let the history go also where this stands in the queue yet."""
        self.dropped = True
        self._log = None


class SendQueue:
    """The sending side of a connection. Implements `session.Follower`."""

    __slots__ = (
        "_account",
        "_charged",
        "_dropped",
        "_feeds",
        "_finished",
        "_held",
        "_holds",
        "_items",
        "_room",
        "_sending",
        "_writer",
        "closing",
        "gone",
        "size",
    )

    def __init__(self, account: Account | None = None) -> None:
        self._account = unlimited() if account is None else account
        self._charged = 0
        self._sending = 0
        """Bytes that the writer has taken and not yet sent."""
        self._finished: list[History] = []
        """Histories whose end the writer has taken."""
        self._items: deque[bytes | Cursor] = deque()
        self._feeds: dict[History, Cursor] = {}
        self._dropped = 0
        self._holds = 0
        self._held: list[Cursor] = []
        self._writer: trio.lowlevel.Task | None = None
        self._room: trio.Event | None = None
        self.size = 0
        """Bytes of answers that wait."""
        self.closing = False
        self.gone = False

    # --- what is due --------------------------------------------------------------------------------------------

    def push(self, data: bytes) -> None:
        """An answer is due."""
        if self.gone:
            return
        self._items.append(data)
        self.size += len(data)
        self._charge(len(data) + ANSWER_BYTES)
        self._wake()

    def follow(self, log: History, from_seq: int) -> None:
        """Send a history from `from_seq` on; one that is followed already starts again from there."""
        if self.gone:
            # It would be held for ever.
            return
        old = self._feeds.pop(log, None)
        if old is not None:
            log.detach(old)
            self._drop(old)
        else:
            log.hold()
            self._charge(FEED_BYTES)
        cursor = self._feeds[log] = Cursor(self, log, from_seq)
        log.attach(cursor)

    def unfollow(self, log: History) -> None:
        """Send no more of a history."""
        cursor = self._feeds.pop(log, None)
        if cursor is not None:
            log.detach(cursor)
            self._drop(cursor)
            self._let_go(log)

    @property
    def follows(self) -> frozenset[History]:
        """The histories that its client is sent."""
        return frozenset(self._feeds)

    def finished(self, log: History) -> None:
        """A history has been sent to its end: the subscription ends by itself (draft §8)."""
        if self._feeds.pop(log, None) is not None:
            self._finished.append(log)

    def _let_go(self, log: History) -> None:
        log.let_go()
        self._charge(-FEED_BYTES)

    def _charge(self, size: int) -> None:
        self._charged += size
        if size > 0:
            self._account.add(size)
        else:
            self._account.release(-size)

    def _drop(self, cursor: Cursor) -> None:
        cursor.drop()
        if not cursor.queued:
            return
        self._dropped += 1
        if self._dropped > 64 and self._dropped > (len(self._items) + len(self._held)) // 2:
            # Now and then, because a client may drop hundreds with one short request.
            self._items = deque(item for item in self._items if not isinstance(item, Cursor) or not item.dropped)
            self._held = [held for held in self._held if not held.dropped]
            self._dropped = 0

    def queue_feed(self, cursor: Cursor) -> None:
        """A history has something new."""
        cursor.queued = True
        if self._holds:
            self._held.append(cursor)
            return
        self._items.append(cursor)
        self._wake()

    def hold(self) -> None:
        """Keep histories back until `unhold`: the answer to the batch that asked for them goes first."""
        self._holds += 1

    def unhold(self) -> None:
        """A batch is answered."""
        self._holds -= 1
        if not self._holds:
            self._items.extend(self._held)
            self._held.clear()
            self._wake()

    # --- the writer's side --------------------------------------------------------------------------------------

    async def batch(self) -> list[bytes]:
        """Wait until something is due; return the documents of one send. An empty list: closing, and all is sent."""
        while True:
            if self._sending:
                self._sent()
            while not self._items:
                if self.closing:
                    return []
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
            parts = self._take()
            if parts:
                return parts

    def _take(self) -> list[bytes]:
        """What is due, up to some CHUNK; nothing, where histories have nothing new for who follows them.

        Whatever is much longer is taken alone: then it is sent as it is, and the carrier makes no copy of it.
        """
        parts: list[bytes] = []
        size = 0
        items = self._items
        while items and size < CHUNK:
            item = items.popleft()
            if isinstance(item, Cursor):
                if item.dropped:
                    self._dropped -= 1
                    continue
                lines, after = item.due()
                length = sum(map(len, lines))
                if parts and size + length > 2 * CHUNK:
                    items.appendleft(item)
                    break
                if item.taken(lines, after):
                    items.append(item)
                parts += lines
                if length <= CHUNK:
                    # The copy that is sent; a longer one is the history's own.
                    self._charge(length)
                    self._sending += length
            else:
                length = len(item)
                if parts and size + length > 2 * CHUNK:
                    items.appendleft(item)
                    break
                parts.append(item)
                self.size -= length
                self._sending += length + ANSWER_BYTES
            size += length
        if self._room is not None:
            self._room.set()
        return parts

    def _sent(self) -> None:
        """What was taken has been sent: whoever asks for more says so."""
        self._charge(-self._sending)
        self._sending = 0
        for log in self._finished:
            self._let_go(log)
        self._finished.clear()

    def _abort_wait(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._writer = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    async def room(self, most: int) -> None:
        """Wait until no more than `most` bytes of answers wait: the reader's back-pressure."""
        while self.size > most:
            self._room = trio.Event()
            await self._room.wait()
        self._room = None

    def finish(self) -> None:
        """Nothing more will be pushed: the writer sends what is due and ends."""
        self.closing = True
        self._wake()

    def abandon(self) -> None:
        """The connection is gone: forget what waits and follow nothing."""
        self.gone = self.closing = True
        for log, cursor in self._feeds.items():
            log.detach(cursor)
        for log in (*self._feeds, *self._finished):
            log.let_go()
        self._charge(-self._charged)
        self._sending = 0
        self._finished.clear()
        self._feeds.clear()
        self._items.clear()
        self._held.clear()
        self._wake()
