"""A session's tasks: those that live, those that have ended, and the idempotency keys that stand for them.

It belongs to one session and is as single-threaded as that. A task that ends is filed at once, since what it took while
it lived is free from then on. Ended tasks are kept as the bytes of their last state, up to the
history's bound, and give way where their principal's memory is needed; keys are never forgotten, because forgetting one
could actuate twice. Everything here is charged to the principal's account: a task's whole cost before it is accepted.
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
"""Is told that a submission is on record, or why it is not."""

MAX_KEYS = 10_000
"""Idempotency keys a session may use."""


@define(slots=True, eq=False)
class Finished:
    """What is kept of a task that has ended. Implements `memory_budget.Droppable`."""

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
    """An idempotency key's first submission."""

    task_id: str
    digest: bytes
    status: str
    """How the task has ended, once it has."""
    waiting: list[Settled] | None = field(factory=list)
    """Who repeats it before it is on record, and learns with it what became of it; None from then on."""


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
        """Of the live tasks, those that a key stands for."""

    # --- coming and going ---------------------------------------------------------------------------------------

    def check_room(self, submit: TaskSubmit, cost: int) -> None:
        """Refuse what there is no room for; `cost` is the memory that the task takes. Raises QueueFull."""
        if len(self._live) >= self._max_live:
            raise QueueFull(
                f"Queue full: the session has {len(self._live)} live tasks",
                data={"max_tasks_per_session": self._max_live},
            )
        if submit.idempotency_key is not None and len(self._keys) >= MAX_KEYS:
            raise QueueFull("Queue full: the session has used up its idempotency keys", data={"max_keys": MAX_KEYS})
        self._account.require(cost + _key_bytes(submit.idempotency_key))

    def enter(self, task: TaskActor, submit: TaskSubmit) -> None:
        """A task has been accepted, and its cost charged."""
        self._live[task.task_id] = task
        self._account.add(_key_bytes(submit.idempotency_key))
        if submit.idempotency_key is not None:
            remembered = IdempotencyEntry(task.task_id, digest(submit), "QUEUED")
            self._keys[submit.idempotency_key] = self._keyed[task.task_id] = remembered

    def settle_key(self, submit: TaskSubmit, error: RpcError | None) -> None:
        """The submission is on record; or, with the error, it came to nothing: then its key stands for nothing.

        Those that repeated it meanwhile are told so, in the order in which they came.
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
        """Called by the task as its last act, in its own turn."""
        assert task.snapshot is not None
        del self._live[task.task_id]
        self._account.release(task.charged)
        finished = Finished(task.task_id, task.status, task.snapshot, task.log, self)
        self._history[task.task_id] = finished
        self._account.offer(finished)
        self._account.add(_ended_bytes(finished))
        remembered = self._keyed.pop(task.task_id, None)
        if remembered is not None:
            remembered.status = task.status
        while len(self._history) > self._max_history:
            self.forget(next(iter(self._history)))

    def forget(self, task_id: str) -> None:
        """Remember a task that has ended no longer. Its events stay charged for as long as somebody is sent them."""
        finished = self._history.pop(task_id)
        self._account.withdraw(finished)
        self._account.release(_ended_bytes(finished))
        finished.log.let_go()

    def close(self) -> None:
        """The session has ended, and its tasks with it: let go of everything. Idempotent."""
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
        """What a submission repeats, or None if it is a new one. Raises InvalidParams if its key is another task's."""
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
        """The answer to a submission that repeats this one."""
        live = self._live.get(known.task_id)
        status = known.status if live is None else live.status
        return {"task_id": known.task_id, "status": status, "repeated": True}

    def get(self, task_id: str) -> Any:
        """The result of task.get. Raises TaskNotFound."""
        finished = self._history.get(task_id)
        return self.live(task_id).describe() if finished is None else orjson.Fragment(finished.snapshot)

    def cancel(self, task_id: str) -> dict[str, Any]:
        """Cancel a task; the result of task.cancel: a task that has ended says how. Raises TaskNotFound."""
        finished = self._history.get(task_id)
        if finished is not None:
            return {"task_id": task_id, "status": finished.status}
        task = self.live(task_id)
        if task.verdict is not None:
            return {"task_id": task_id, "status": task.verdict}
        task.cancel("cancelled")
        return {"task_id": task_id, "status": "CANCELLING"}

    def live(self, task_id: str) -> TaskActor:
        """A task that lives. Raises TaskNotFound."""
        task = self._live.get(task_id)
        if task is None:
            raise TaskNotFound(data={"task_id": task_id[:64]})
        return task

    def log_of(self, task_id: str) -> EventLog:
        """A task's history. Raises TaskNotFound."""
        finished = self._history.get(task_id)
        return self.live(task_id).log if finished is None else finished.log

    def has(self, task_id: str) -> bool:
        """True while the task lives or is remembered."""
        return task_id in self._live or task_id in self._history

    def logs(self) -> Iterator[EventLog]:
        """The histories of all tasks, oldest first."""
        for finished in self._history.values():
            yield finished.log
        for task in self._live.values():
            yield task.log

    def all_live(self) -> list[TaskActor]:
        """The tasks that live."""
        return list(self._live.values())


def digest(submit: TaskSubmit) -> bytes:
    """What makes two submissions the same: intent, constraints, and the steps with their args as they were written.

    The order of members and the white space between them do not count, but 1 and 1.0 are two (decision 0096).
    """
    steps = [(step.tool, step.args) for step in submit.steps]
    said = (submit.intent, repr(submit.constraints), steps)
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).digest()


def _key_bytes(key: str | None) -> int:
    return 0 if key is None else KEY_BYTES + text_bytes(key)


def _ended_bytes(finished: Finished) -> int:
    return ENDED_BYTES + len(finished.snapshot)
