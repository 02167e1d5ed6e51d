"""The task registry of a session: its live tasks, its ended tasks, and those that it has adopted.

It belongs to one session and runs in the Trio thread only. An ended task is kept as the bytes of its last state, up to
`max_history` tasks; older ones are dropped first, and earlier if their principal needs the memory. Everything here is
charged to the principal's account; a task's whole cost is charged before it is accepted.

A submission that repeats an idempotency key (`idempotency`) may mean a task of another session of the principal: it is
adopted. While that session has the task, requests about it are passed on; after that only its status is known. It stays
a task of its first session: a subscription to all tasks of a session leaves out those that it has adopted.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, cast

import orjson
from attrs import define

from hearth.actors.events import EventLog
from hearth.audit.record import timestamp
from hearth.errors import QueueFull, TaskNotFound
from hearth.policy.memory import ENDED_BYTES, EVENT_BYTES, KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.actors.idempotency import IdempotencyEntry, IdempotencyKeys
    from hearth.actors.mailbox import Slot
    from hearth.actors.task import TaskActor
    from hearth.errors import RpcError
    from hearth.policy.memory import Account
    from hearth.protocol.methods import TaskSubmit


@define(slots=True, eq=False)
class Finished:
    """A task that has ended, as its last snapshot and its history. Implements `policy.memory.Droppable`."""

    task_id: str
    status: str
    snapshot: bytes
    log: EventLog
    task_registry: TaskRegistry
    adopted: bool = False
    """True for a task of another session."""

    def drop(self) -> None:
        """See Droppable."""
        self.task_registry.forget(self.task_id)


class TaskRegistry:
    """One session's tasks."""

    __slots__ = (
        "_account",
        "_adopted",
        "_history",
        "_keyed",
        "_keys",
        "_live",
        "_max_history",
        "_max_live",
        "_principal",
    )

    def __init__(
        self, principal: str, max_live: int, max_history: int, account: Account, keys: IdempotencyKeys
    ) -> None:
        self._principal = principal
        self._account = account
        self._max_live = max_live
        self._max_history = max_history
        self._live: dict[str, TaskActor] = {}
        self._history: dict[str, Finished] = {}
        self._keys = keys
        self._keyed: dict[str, IdempotencyEntry] = {}
        """The entries of live tasks that have a key, by task id."""
        self._adopted: dict[str, IdempotencyEntry] = {}
        """The entries of tasks of other sessions, by task id."""

    # --- adding and removing ------------------------------------------------------------------------------------

    def check_room(self, submit: TaskSubmit, cost: int) -> None:
        """Raise QueueFull if there is no room for a task that takes `cost` bytes of memory, or for its key."""
        if len(self._live) >= self._max_live:
            raise QueueFull(
                f"Queue full: the session has {len(self._live)} live tasks",
                data={"max_tasks_per_session": self._max_live},
            )
        if submit.idempotency_key is not None:
            self._keys.check_room(self._principal)
            cost += KEY_BYTES
        self._account.require(cost)

    def enter_key(self, task_id: str, submit: TaskSubmit) -> Slot[None] | None:
        """Enter the key of an accepted submission; return the receipt that its task waits for. None without a key."""
        if submit.idempotency_key is None:
            return None
        entry, receipt = self._keys.enter(
            self._principal, submit.idempotency_key, digest(submit), task_id, self, self._account
        )
        self._keyed[task_id] = entry
        return receipt

    def enter(self, task: TaskActor) -> None:
        """Add an accepted task, whose cost has been charged."""
        self._live[task.task_id] = task

    def settle_key(self, task_id: str, error: RpcError | None) -> None:
        """Note that a submission is on record, or, with `error`, that it failed: its key is then free again.

        The repeats that came in between are answered, in their order.
        """
        known = self._keyed.get(task_id)
        if known is None:
            return
        if error is not None:
            del self._keyed[task_id]
            self._keys.free(known)
        waiting, known.waiting = known.waiting, None
        for settled in waiting or ():
            settled(error)

    def ended(self, task: TaskActor) -> None:
        """Move a task that has ended to the history; the task calls this last."""
        assert task.snapshot is not None
        del self._live[task.task_id]
        self._account.release(task.charged)
        self._keep(Finished(task.task_id, task.status, task.snapshot, task.log, self))
        entry = self._keyed.pop(task.task_id, None)
        if entry is not None:
            self._keys.ended(entry, task.status)

    def _keep(self, finished: Finished) -> None:
        self._history[finished.task_id] = finished
        self._account.offer(finished)
        self._account.add(_ended_bytes(finished))
        while len(self._history) > self._max_history:
            self.forget(next(iter(self._history)))

    def forget(self, task_id: str) -> None:
        """Drop an ended task. Its events stay charged while a send queue still holds them."""
        finished = self._history.pop(task_id)
        self._account.withdraw(finished)
        self._account.release(_ended_bytes(finished))
        finished.log.let_go()

    def close(self) -> None:
        """Drop everything, because the session and its tasks have ended. Idempotent."""
        for task_id in list(self._history):
            self.forget(task_id)
        for task in self._live.values():
            self._account.release(task.charged)
            task.log.let_go()
        self._live.clear()
        self._keyed.clear()
        self._adopted.clear()

    # --- looking up ---------------------------------------------------------------------------------------------

    def repeat(self, submit: TaskSubmit) -> IdempotencyEntry | None:
        """Return the first submission with this key, or None for a new one.

        Raises InvalidParams if the key was used for another task.
        """
        key = submit.idempotency_key
        return None if key is None else self._keys.find(self._principal, key, digest(submit))

    def repeated(self, known: IdempotencyEntry) -> dict[str, Any]:
        """Return the answer to a submission that repeats this one, whose task is then known here too."""
        if not self.has(known.task_id):
            self._adopted[known.task_id] = known
        live = self._home(known.task_id)._live.get(known.task_id)
        status = known.status if live is None else live.status
        return {"task_id": known.task_id, "status": status, "repeated": True}

    def _home(self, task_id: str) -> TaskRegistry:
        """Return the registry that has a task: this one, or for an adopted task that of its session."""
        entry = self._adopted.get(task_id)
        if entry is None:
            return self
        if entry.home is not None and entry.home.holds(task_id):
            return cast("TaskRegistry", entry.home)
        # Its session has ended, or has forgotten it: what is left is its status.
        del self._adopted[task_id]
        reason = {} if entry.reason is None else {"error": entry.reason, "error_data": {"effect": "unknown"}}
        snapshot = orjson.dumps({"task_id": task_id, "status": entry.status, "intent": "", "steps": [], **reason})
        log = EventLog(task_id, None, self._account, EVENT_BYTES)
        self._account.add(EVENT_BYTES)
        log.publish("task_finish", timestamp(entry.at), {"status": entry.status, **reason})
        self._keep(Finished(task_id, entry.status, snapshot, log, self, adopted=entry.home is not self))
        return self

    def get(self, task_id: str) -> Any:
        """Return the result of task.get. Raises TaskNotFound."""
        home = self._home(task_id)
        finished = home._history.get(task_id)
        return home.live(task_id).describe() if finished is None else orjson.Fragment(finished.snapshot)

    def cancel(self, task_id: str) -> dict[str, Any]:
        """Cancel a task; return the result of task.cancel, with the status of a task that has ended.

        Raises TaskNotFound.
        """
        home = self._home(task_id)
        finished = home._history.get(task_id)
        if finished is not None:
            return {"task_id": task_id, "status": finished.status}
        task = home.live(task_id)
        if task.verdict is not None:
            return {"task_id": task_id, "status": task.verdict}
        task.cancel("cancelled")
        return {"task_id": task_id, "status": "CANCELLING"}

    def live(self, task_id: str) -> TaskActor:
        """Return a live task. Raises TaskNotFound."""
        task = self._live.get(task_id)
        if task is None:
            raise TaskNotFound(data={"task_id": task_id[:64]})
        return task

    def log_of(self, task_id: str) -> EventLog:
        """Return a task's event history. Raises TaskNotFound."""
        home = self._home(task_id)
        finished = home._history.get(task_id)
        return home.live(task_id).log if finished is None else finished.log

    def has(self, task_id: str) -> bool:
        """Return True while the task lives, is kept as ended, or is adopted."""
        return self.holds(task_id) or task_id in self._adopted

    def holds(self, task_id: str) -> bool:
        """See `idempotency.Home`: this session's own tasks."""
        return task_id in self._live or task_id in self._history

    def logs(self) -> Iterator[EventLog]:
        """Yield the event histories of the session's own tasks, oldest first."""
        for finished in self._history.values():
            if not finished.adopted:
                yield finished.log
        for task in self._live.values():
            yield task.log

    def all_live(self) -> list[TaskActor]:
        """Return the live tasks."""
        return list(self._live.values())


def digest(submit: TaskSubmit) -> str:
    """Return a digest that two submissions share if intent, constraints and steps, with their args, are the same.

    The order of members and white space do not count, but 1 and 1.0 differ (docs/decisions/0096).
    """
    steps = [
        (step.tool, step.args) if step.expect is None else (step.tool, step.args, step.expect.to_wire())
        for step in submit.steps
    ]
    parts = (submit.intent, repr(submit.constraints), steps)
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _ended_bytes(finished: Finished) -> int:
    return ENDED_BYTES + len(finished.snapshot)
