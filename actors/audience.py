"""Who is told of a session's tasks: subscriptions to one task and to all of them, those to come included (draft §8).

Owns the list of those who follow the whole session. Who follows one task is that task's log's business, and what is
sent to whom, and when, the follower's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.actors.memory_budget import FEED_BYTES
from hearth.errors import PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Collection

    from hearth.actors.asks import Ask, Follower
    from hearth.actors.events import EventLog, History
    from hearth.actors.memory_budget import Account
    from hearth.actors.taskbook import TaskBook
    from hearth.protocol.methods import EventsSubscribe, EventsUnsubscribe


class Audience:
    """One session's followers."""

    __slots__ = ("_account", "_book", "_followers")

    def __init__(self, book: TaskBook, account: Account) -> None:
        self._account = account
        self._book = book
        self._followers: list[Follower] = []

    def __len__(self) -> int:
        """How many follow the whole session."""
        return len(self._followers)

    @property
    def listening(self) -> bool:
        """True while anybody can be told of anything that still happens."""
        return any(not follower.gone for follower in self._followers) or any(
            task.log.followed for task in self._book.all_live()
        )

    def had(self, follower: Follower, followed: Collection[History]) -> bool:
        """Whether one that has gone, and was following these histories, followed the session or a task of it."""
        return any(other is follower for other in self._followers) or any(log in followed for log in self._book.logs())

    def follow(self, log: EventLog) -> None:
        """A new task: let all who follow the session follow it."""
        for follower in self._followers:
            if not follower.gone:
                follower.follow(log, 1)

    def forget(self, follower: Follower) -> None:
        """A follower has gone, or wants no more of the session."""
        self._followers = [other for other in self._followers if other is not follower]

    def subscribe(self, ask: Ask, params: EventsSubscribe) -> None:
        """Answer first, then send from the history on. Raises TaskNotFound, PermissionDenied, QueueFull."""
        follower = ask.follower
        if follower is None:
            raise PermissionDenied("this carrier takes no notifications")
        if params.task_id is not None:
            log = self._book.log_of(params.task_id)
            self._account.require(FEED_BYTES)
            ask.result({"ok": True, "task_id": params.task_id, "last_seq": log.last_seq})
            follower.follow(log, params.from_seq)
            return
        logs = list(self._book.logs())
        self._account.require(FEED_BYTES * (1 + len(logs)))
        ask.result({"ok": True})
        self._followers = [other for other in self._followers if other is not follower and not other.gone]
        self._followers.append(follower)
        for log in logs:
            follower.follow(log, 1)

    def unsubscribe(self, ask: Ask, params: EventsUnsubscribe) -> None:
        """Send no more, then answer. Raises TaskNotFound."""
        follower = ask.follower
        if follower is not None:
            if params.task_id is not None:
                follower.unfollow(self._book.log_of(params.task_id))
            else:
                self.forget(follower)
                for log in self._book.logs():
                    follower.unfollow(log)
        ask.result({"ok": True})
