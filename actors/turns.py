"""A principal's turn: the time that all its connections and sessions together take of one round of the event loop.

Theory of operation. Connections and sessions note the time of their work in `used`, which takes it from `left`. Once
that is below 0 the turn is used up, and the next one begins in a later round of the loop. Until then further work waits
in `wait`, in a queue, oldest first. A turn lets as many tasks go as the last one had time for, at least one; a task
that finds the time used up goes back to the head of the queue. A quiet client never waits.

So one principal takes about TURN in a round of the loop, and one document more, however many connections and sessions
it has. Only requests wait here: a halt, a deadman's end, interlocks, buses and safe states do not.

Guarantees: while a task waits, a next turn is scheduled, so the wait ends; a wait that is cancelled leaves the queue.
All calls are made in the Trio thread; only `wait` waits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import trio

if TYPE_CHECKING:
    from hearth.policy.memory import Account

TURN = 0.002
"""Seconds of work of one principal after which other principals' tasks, buses and timers run."""


class Turns:
    """The turns of one principal. Made by `turns_of`."""

    __slots__ = ("__weakref__", "_due", "_waiting", "_went", "left")

    def __init__(self) -> None:
        self.left = TURN
        """Seconds that are left of this turn; work begins with `wait` while it is below 0."""
        self._due = False
        """True while the next turn is scheduled."""
        self._went = 0
        """Tasks that have waited and gone in this turn."""
        self._waiting: deque[trio.lowlevel.Task] = deque()

    def used(self, seconds: float) -> None:
        """Note the time of some work."""
        self.left -= seconds
        if self.left < 0:
            self._schedule()

    async def wait(self) -> None:
        """Wait until a turn has time for this task, which then goes on without a checkpoint."""
        task = trio.lowlevel.current_task()

        def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
            # A task that was let go is not in the queue, and Trio does not ask it.
            self._waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        self._schedule()
        self._waiting.append(task)
        await trio.lowlevel.wait_task_rescheduled(abort)
        while self._went and self.left < 0:
            self._waiting.appendleft(task)
            await trio.lowlevel.wait_task_rescheduled(abort)
        self._went += 1

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            trio.lowlevel.current_trio_token().run_sync_soon(self._begin)

    def _begin(self) -> None:
        """Begin a turn: let tasks go, and schedule the next turn if there were any."""
        spent, went = TURN - self.left, self._went
        self.left, self._went, self._due = TURN, 0, False
        if self._waiting:
            # Each takes as long as those of the last turn, it is assumed: with one at a time, many small requests would
            # pay a round of the loop each.
            most = max(1, int(went * TURN / spent)) if spent > 0 else 1
            for _ in range(min(most, len(self._waiting))):
                trio.lowlevel.reschedule(self._waiting.popleft())
            self._schedule()


_TURNS: Final[WeakKeyDictionary[Account, Turns]] = WeakKeyDictionary()


def turns_of(account: Account) -> Turns:
    """Return the turns of the principal whose memory account this is."""
    return _TURNS.setdefault(account, Turns())
