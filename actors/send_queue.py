"""The send queue of one connection: answers that wait, and cursors into the histories that its client follows.

It does no I/O and encodes nothing. The connection's writer task takes batches and sends them; sessions and histories
add to the queue.

Theory of operation. The queue holds two kinds of items, in the order in which they became due:

- *Answers*: the bytes of one document each. All of them are sent, unless the connection ends.
- *Cursors*: one for each history (`events.EventLog`, or the messages of an HCP session) that the client follows. A
  cursor holds the number of the next event to send, and no event. When its turn comes, it reads up to MOST_EVENTS
  events, or about CHUNK bytes, from the history; if the history has more, it goes to the end of the queue again.

States of a cursor: idle (nothing new) -> queued (`notify`, at most once in the queue) -> idle or queued (`taken`);
finished, when the writer has taken the end of its history; or dropped (`unfollow`), and then passed over in the queue.

*Coalescing.* A slow client costs one cursor per history, however many events happen. A history keeps only its newest
progress events, so a cursor that comes late skips the older ones and reads every other event.

*Back-pressure.* `size` counts the bytes of answers that wait. Above HIGH_WATER the connection's reader waits in `room`
and takes no more requests, so a client that does not read cannot make answers pile up. Cursors need no bound in bytes.

*Order.* The answer to a request leaves before the events that it asked for. For a batch, whose answers leave as one
document at its end, `hold` keeps cursors back in `_held` until `unhold`.

*Memory.* Answers are charged to the principal's account until the send that took them has returned, which the writer
reports by its next call of `batch`. A history stays charged, by `History.hold`, until this queue has sent its end or
dropped it, also if the task registry has forgotten the task. `abandon` releases everything at once.

*Corked.* While the connection's reader handles requests (`corked`), what becomes due does not wake the writer. At the
end the reader takes it and sends it itself, if the writer is idle (`writable`, `take`, `sent`); what the kernel did not
take is the first that the writer gets.

Who calls what, all in the Trio thread: one writer task calls `batch`; one reader task calls `room`, and without a
checkpoint in between sets `corked`, clears it, and calls `take` and `sent`; sessions call `push`, `follow` and
`unfollow`; histories call `Cursor.notify`. Only `batch` and `room` wait.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field

from hearth.policy.memory import ANSWER_BYTES, FEED_BYTES, unlimited

if TYPE_CHECKING:
    from hearth.actors.events import History
    from hearth.policy.memory import Account

CHUNK = 1 << 16
"""Bytes that one send should have."""
HIGH_WATER = 1 << 20
"""Bytes of unsent answers past which the connection reads no more requests."""

MOST_EVENTS = 64
"""Events of one history to send at once."""


class Cursor:
    """The place of one connection in one history; the numbers in `sent` are passed over."""

    __slots__ = ("_first", "_log", "_next", "_send_queue", "_sent", "dropped", "gone", "queued")

    def __init__(self, send_queue: SendQueue, log: History, from_seq: int, sent: range = range(0)) -> None:
        self._send_queue = send_queue
        self._log: History | None = log
        self._first = self._next = from_seq
        self._sent = sent
        self.queued = False
        self.dropped = False
        """True for a cursor that the writer passes over when it comes to it in the queue."""
        self.gone = False
        """See events.Reader: that of the queue, which has abandoned it."""

    def notify(self) -> None:
        """See events.Reader."""
        if not self.queued:
            self._send_queue.queue_feed(self)

    def due(self) -> tuple[list[bytes], int]:
        """Return the next events as lines, and the number to continue from once they are taken."""
        assert self._log is not None, "it has been dropped"
        sent = self._sent
        if self._next in sent:
            self._next = sent.stop
        most = min(MOST_EVENTS, sent.start - self._next) if self._next < sent.start else MOST_EVENTS
        # Reads only: if there is no room in this send, `_take` puts the cursor back, and nothing is lost.
        found, after = self._log.lines(self._next, most)
        while self._next < sent.start < after:
            # Progress that was coalesced leaves holes in the numbers.
            most -= 1
            found, after = self._log.lines(self._next, most) if most else ([], sent.start)
        while most > 1 and sum(map(len, found)) > CHUNK:
            # Rare: events with long results. The events that are left out stay in the history.
            most //= 4
            found, after = self._log.lines(self._next, most)
        return found, after

    def taken(self, found: list[bytes], after: int) -> bool:
        """Note that these lines will be sent; return True if there are more, and the cursor must stay in the queue."""
        log = self._log
        assert log is not None, "it has been dropped"
        if (metrics := log.metrics) is not None:
            metrics.sent += len(found)
            # A hole in the numbers is progress events that newer ones have replaced.
            metrics.skipped += after - self._next - len(found)
        self._next = after
        self.queued = self._next <= log.last_seq
        # The history has ended, and its last lines are in this batch. One that goes on leaves the cursor idle.
        if log.ended and not self.queued:
            queue = self._send_queue
            # The subscription ends (draft §8). It is let go in `_sent`, not here: its last lines are still to be sent.
            if queue._feeds.pop(log, None) is not None:
                queue._finished.append(log)
        return self.queued

    @property
    def sent(self) -> range:
        """The numbers that were sent, if it has passed over none."""
        return range(self._first, self._next)

    def drop(self) -> None:
        """Send no more, and release the history although this cursor may still be in the queue."""
        self.dropped = True
        self._log = None


@define(eq=False)
class SendQueue:
    """The sending side of a connection. Implements `messages.EventSink` and `messages.MessageSink`."""

    _account: Account = field(factory=unlimited)
    _charged: int = field(default=0, init=False)
    _sending: int = field(default=0, init=False)
    """Bytes that the writer has taken and not yet sent."""
    _finished: list[History] = field(factory=list, init=False)
    """Histories whose end the writer has taken and not yet sent."""
    # Answers, and cursors that are queued. A cursor stands here at most once.
    _items: deque[bytes | Cursor] = field(factory=deque, init=False)
    _feeds: dict[History, Cursor] = field(factory=dict, init=False)
    _dropped: int = field(default=0, init=False)
    _holds: int = field(default=0, init=False)
    _held: list[Cursor] = field(factory=list, init=False)
    _writer: trio.lowlevel.Task | None = field(default=None, init=False)
    _room: trio.Event | None = field(default=None, init=False)
    size: int = field(default=0, init=False)
    """Bytes of the answers that wait."""
    closing: bool = field(default=False, init=False)
    gone: bool = field(default=False, init=False)
    corked: bool = field(default=False, init=False)
    """True while the reader handles requests: it sends what they make due, or wakes the writer, afterwards."""
    _unsent: bytes = field(default=b"", init=False)
    """The rest of what the reader sent, which the kernel did not take at once."""

    def push(self, data: bytes, released: int = 0) -> None:
        """Add an answer; does nothing when the connection has gone. `released`: bytes that its request had charged."""
        if self.gone:
            return
        size = len(data)
        self._items.append(data)
        self.size += size
        self._charged += size + ANSWER_BYTES
        self._account.add(size + ANSWER_BYTES - released)
        if not self.corked:
            self._wake()

    def follow(self, log: History, from_seq: int | None) -> None:
        """Send a history from event `from_seq` on; one that is followed already starts again from there.

        None: from its beginning, without the events that this subscription has sent already.
        """
        if self.gone:
            # The history would be held for ever.
            return
        old = self._feeds.get(log)
        sent = range(0)
        if old is not None and from_seq is None:
            sent = old.sent
            if sent.start <= 1:
                return
        # A new cursor replaces the old one; the history is held, and charged, once.
        if old is not None:
            log.detach(old)
            self._drop(old)
        else:
            log.hold()
            self._charged += FEED_BYTES
            self._account.add(FEED_BYTES)
        cursor = self._feeds[log] = Cursor(self, log, 1 if from_seq is None else from_seq, sent)
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
        """The histories that the client follows."""
        return frozenset(self._feeds)

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
            # Sweep only now and then, because a client may drop hundreds with one short request.
            self._items = deque(item for item in self._items if not isinstance(item, Cursor) or not item.dropped)
            self._held = [held for held in self._held if not held.dropped]
            self._dropped = 0

    def queue_feed(self, cursor: Cursor) -> None:
        """Queue a cursor whose history has something new; held back while a batch is being answered."""
        cursor.queued = True
        if self._holds:
            self._held.append(cursor)
            return
        self._items.append(cursor)
        if not self.corked:
            self._wake()

    def hold(self) -> None:
        """Keep histories back until `unhold`: the answer to the batch that asked for them goes first."""
        self._holds += 1

    def unhold(self) -> None:
        """Release the histories that were kept back, once the last batch is answered."""
        self._holds -= 1
        if not self._holds:
            # In the order in which they became due.
            self._items.extend(self._held)
            self._held.clear()
            self._wake()

    # --- the writer's side --------------------------------------------------------------------------------------

    async def batch(self) -> list[bytes]:
        """Wait until something is due; return the documents of one send, or an empty list when closing and all is sent.

        The call also reports that the documents of the last batch have been sent.
        """
        while True:
            if self._unsent:
                # Charged already, and still being sent.
                rest, self._unsent = self._unsent, b""
                return [rest]
            if self._sending:
                self._sent()
            while not self._items and not self._unsent:
                if self.closing:
                    return []
                # Not an event: one writer, woken at most once per wait, on the path of every answer.
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
            # Empty if only dropped cursors were queued, or ones without news: then wait again.
            if parts := self._next():
                return parts

    def _next(self) -> list[bytes]:
        # What the reader could not send goes before what is due: the next turn of `batch` returns it.
        return [] if self._unsent else self.take()

    def take(self) -> list[bytes]:
        """Remove and return the documents that are due, about CHUNK bytes; none if all cursors have nothing new.

        A document that is much longer is taken alone: it is then sent as it is, and the carrier makes no copy of it.
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
                    # It keeps its turn, and is taken alone next time.
                    items.appendleft(item)
                    break
                # A history with more events goes to the end: a long one must not delay answers and other histories.
                if item.taken(lines, after):
                    items.append(item)
                parts += lines
                if length <= CHUNK:
                    # The carrier makes a copy of short lines to send them together. A long line is the history's own.
                    self._charged += length
                    self._account.add(length)
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
        # Taken, not sent: while the send waits, the reader may go on up to the high-water mark.
        if self._room is not None:
            self._room.set()
        return parts

    def _sent(self) -> None:
        """Release the charges of the last batch: the writer has sent it, since it asks for the next one."""
        size, self._sending = self._sending, 0
        if self._finished:
            size += FEED_BYTES * len(self._finished)
            for log in self._finished:
                log.let_go()
            self._finished.clear()
        self._charged -= size
        self._account.release(size)

    def _abort_wait(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._writer = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        if self._writer is not None and not self.corked:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    # --- the reader's side --------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """True while the writer waits for something to send, so that the reader may send instead."""
        return self._writer is not None

    def wake(self) -> None:
        """Have the writer send what is due."""
        if self._items or self._unsent:
            self._wake()

    def sent(self, data: bytes, count: int) -> bool:
        """Note that the kernel took `count` bytes of what `take` returned; return True if that was all."""
        if count == len(data):
            self._sent()
        else:
            self._unsent = data[count:]
        if self._items or self._unsent:
            self._wake()
        return not self._unsent

    async def room(self, most: int) -> None:
        """Wait until no more than `most` bytes of answers wait: the reader's back-pressure."""
        while self.size > most:
            # One event is enough: only the connection's reader waits here.
            self._room = trio.Event()
            await self._room.wait()
        self._room = None

    def finish(self) -> None:
        """Let the writer send what is due and then end; no answer is pushed after this."""
        self.closing = True
        self._wake()

    def abandon(self) -> None:
        """Note that the connection has gone: drop everything that waits, follow nothing, release all charges."""
        # First: from here on `push` and `follow` do nothing, and histories pass over the cursors (`Cursor.gone`).
        self.gone = self.closing = True
        for log, cursor in self._feeds.items():
            cursor.gone = True
            log.detach(cursor)
        for log in (*self._feeds, *self._finished):
            log.let_go()
        # Answers, cursors, and what the writer has taken but not sent: all in one sum.
        self._charge(-self._charged)
        self._sending = 0
        self._unsent = b""
        self._finished.clear()
        self._feeds.clear()
        self._items.clear()
        self._held.clear()
        self._wake()
