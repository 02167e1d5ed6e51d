"""The task registry of a session: its live tasks, its ended tasks, and their idempotency keys.

It belongs to one session and runs in the Trio thread only. An ended task is kept as the bytes of its last state, up to
`max_history` tasks; older ones are dropped first, and earlier if their principal needs the memory. Keys are never
dropped while the session lives, because a dropped key could move the hardware twice. Everything here is charged to the
principal's account; a task's whole cost is charged before it is accepted.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
from attrs import define, field

from hearth.errors import InvalidParams, QueueFull, TaskNotFound
from hearth.policy.memory import ENDED_BYTES, KEY_BYTES, text_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hearth.actors.events import EventLog
    from hearth.actors.task import TaskActor
    from hearth.errors import RpcError
    from hearth.policy.memory import Account
    from hearth.protocol.methods import TaskSubmit

Settled: TypeAlias = "Callable[[RpcError | None], None]"
"""A callback: called with None when a submission is on record, or with the error that prevents it."""

MAX_KEYS = 10_000
"""Idempotency keys that a session may use."""


@define(slots=True, eq=False)
class Finished:
    """A task that has ended, as its last snapshot and its history. Implements `policy.memory.Droppable`."""

    task_id: str
    status: str
    snapshot: bytes
    log: EventLog
    task_registry: TaskRegistry

    def drop(self) -> None:
        """See Droppable."""
        self.task_registry.forget(self.task_id)


@define(slots=True, eq=False)
class IdempotencyEntry:
    """The first submission with an idempotency key."""

    task_id: str
    digest: bytes
    status: str
    """QUEUED, or the terminal status once the task has ended."""
    waiting: list[Settled] | None = field(factory=list)
    """Callbacks of repeats that came before the submission was on record; None once it is."""


class TaskRegistry:
    """One session's tasks."""

    __slots__ = ("_account", "_history", "_keyed", "_keys", "_live", "_max_history", "_max_live")

    def __init__(self, max_live: int, max_history: int, account: Account) -> None:
        self._account = account
        self._max_live = max_live
        self._max_history = max_history
        self._live: dict[str, TaskActor] = {}
        self._history: dict[str, Finished] = {}
        self._keys: dict[str, IdempotencyEntry] = {}
        self._keyed: dict[str, IdempotencyEntry] = {}
        """The entries of live tasks that have a key, by task id."""

    # --- adding and removing ------------------------------------------------------------------------------------

    def check_room(self, submit: TaskSubmit, cost: int) -> None:
        """Raise QueueFull if there is no room for a task that takes `cost` bytes of memory, or for its key."""
        if len(self._live) >= self._max_live:
            raise QueueFull(
                f"Queue full: the session has {len(self._live)} live tasks",
                data={"max_tasks_per_session": self._max_live},
            )
        if submit.idempotency_key is not None and len(self._keys) >= MAX_KEYS:
            raise QueueFull("Queue full: the session has used up its idempotency keys", data={"max_keys": MAX_KEYS})
        self._account.require(cost + _key_bytes(submit.idempotency_key))

    def enter(self, task: TaskActor, submit: TaskSubmit) -> None:
        """Add an accepted task, whose cost has been charged."""
        self._live[task.task_id] = task
        self._account.add(_key_bytes(submit.idempotency_key))
        if submit.idempotency_key is not None:
            entry = IdempotencyEntry(task.task_id, digest(submit), "QUEUED")
            self._keys[submit.idempotency_key] = self._keyed[task.task_id] = entry

    def settle_key(self, submit: TaskSubmit, error: RpcError | None) -> None:
        """Note that a submission is on record, or, with `error`, that it failed: its key is then free again.

        The repeats that came in between are answered, in their order.
        """
        if submit.idempotency_key is None:
            return
        known = self._keys[submit.idempotency_key]
        if error is not None:
            del self._keys[submit.idempotency_key]
            self._account.release(_key_bytes(submit.idempotency_key))
        waiting, known.waiting = known.waiting, None
        for settled in waiting or ():
            settled(error)

    def ended(self, task: TaskActor) -> None:
        """Move a task that has ended to the history; the task calls this last."""
        assert task.snapshot is not None
        del self._live[task.task_id]
        self._account.release(task.charged)
        finished = Finished(task.task_id, task.status, task.snapshot, task.log, self)
        self._history[task.task_id] = finished
        self._account.offer(finished)
        self._account.add(_ended_bytes(finished))
        entry = self._keyed.pop(task.task_id, None)
        if entry is not None:
            entry.status = task.status
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
        self._account.release(sum(map(_key_bytes, self._keys)))
        self._live.clear()
        self._keys.clear()
        self._keyed.clear()

    # --- looking up ---------------------------------------------------------------------------------------------

    def repeat(self, submit: TaskSubmit) -> IdempotencyEntry | None:
        """Return the first submission with this key, or None for a new one.

        Raises InvalidParams if the key was used for another task.
        """
        key = submit.idempotency_key
        known = None if key is None else self._keys.get(key)
        if known is None:
            return None
        if known.digest != digest(submit):
            reason = f"idempotency_key {key!r} was used in this session for another task"
            raise InvalidParams(
                f"Invalid params: {reason}",
                data={"path": "/task/idempotency_key", "reason": reason, "task_id": known.task_id},
            )
        return known

    def repeated(self, known: IdempotencyEntry) -> dict[str, Any]:
        """Return the answer to a submission that repeats this one."""
        live = self._live.get(known.task_id)
        status = known.status if live is None else live.status
        return {"task_id": known.task_id, "status": status, "repeated": True}

    def get(self, task_id: str) -> Any:
        """Return the result of task.get. Raises TaskNotFound."""
        finished = self._history.get(task_id)
        return self.live(task_id).describe() if finished is None else orjson.Fragment(finished.snapshot)

    def cancel(self, task_id: str) -> dict[str, Any]:
        """Cancel a task; return the result of task.cancel, with the status of a task that has ended.

        Raises TaskNotFound.
        """
        finished = self._history.get(task_id)
        if finished is not None:
            return {"task_id": task_id, "status": finished.status}
        task = self.live(task_id)
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
        finished = self._history.get(task_id)
        return self.live(task_id).log if finished is None else finished.log

    def has(self, task_id: str) -> bool:
        """Return True while the task lives or is kept as ended."""
        return task_id in self._live or task_id in self._history

    def logs(self) -> Iterator[EventLog]:
        """Yield the event histories of all tasks, oldest first."""
        for finished in self._history.values():
            yield finished.log
        for task in self._live.values():
            yield task.log

    def all_live(self) -> list[TaskActor]:
        """Return the live tasks."""
        return list(self._live.values())


def digest(submit: TaskSubmit) -> bytes:
    """Return a digest that two submissions share if intent, constraints and steps, with their args, are the same.

    The order of members and white space do not count, but 1 and 1.0 differ (docs/decisions/0096).
    """
    steps = [
        (step.tool, step.args) if step.expect is None else (step.tool, step.args, step.expect.to_wire())
        for step in submit.steps
    ]
    parts = (submit.intent, repr(submit.constraints), steps)
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).digest()


def _key_bytes(key: str | None) -> int:
    return 0 if key is None else KEY_BYTES + text_bytes(key)


def _ended_bytes(finished: Finished) -> int:
    return ENDED_BYTES + len(finished.snapshot)
