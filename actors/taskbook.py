"""A session's tasks: those that live, those that have ended, and the idempotency keys that stand for them.

It belongs to one session and is as single-threaded as that. A task that ends puts itself into a box here; the
session files it on its own next turn. Ended tasks are kept as the bytes of their last state, up to the
history's bound; keys are never forgotten, because forgetting one could actuate twice.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
from attrs import define, field

from hearth.errors import InvalidParams, QueueFull, TaskNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hearth.actors.events import EventLog
    from hearth.actors.task import TaskActor
    from hearth.errors import RpcError
    from hearth.protocol.methods import TaskSubmit

Settled: TypeAlias = "Callable[[RpcError | None], None]"
"""Is told that a submission is on record, or why it is not."""

MAX_KEYS = 10_000
"""Idempotency keys a session may use."""
MOST_HISTORY_BYTES = 32 << 20
"""Bytes of snapshots that a session keeps, however few tasks they are: results may be long."""


@define(slots=True, eq=False)
class Finished:
    """What is kept of a task that has ended."""

    status: str
    snapshot: bytes
    log: EventLog


@define(slots=True, eq=False)
class Remembered:
    """An idempotency key's first submission."""

    task_id: str
    digest: bytes
    status: str
    """How the task has ended, once it has."""
    waiting: list[Settled] | None = field(factory=list)
    """Who repeats it before it is on record, and learns with it what became of it; None from then on."""


class TaskBook:
    """One session's tasks."""

    __slots__ = ("_ended", "_history", "_history_bytes", "_keyed", "_keys", "_live", "_max_history", "_max_live")

    def __init__(self, max_live: int, max_history: int) -> None:
        self._max_live = max_live
        self._max_history = max_history
        self._live: dict[str, TaskActor] = {}
        self._history: dict[str, Finished] = {}
        self._history_bytes = 0
        self._ended: list[TaskActor] = []
        self._keys: dict[str, Remembered] = {}
        self._keyed: dict[str, Remembered] = {}
        """Of the live tasks, those that a key stands for."""

    # --- coming and going ---------------------------------------------------------------------------------------

    def check_room(self, submit: TaskSubmit) -> None:
        """Refuse what there is no room for. Raises QueueFull."""
        if len(self._live) >= self._max_live:
            raise QueueFull(
                f"Queue full: the session has {len(self._live)} live tasks",
                data={"max_tasks_per_session": self._max_live},
            )
        if submit.idempotency_key is not None and len(self._keys) >= MAX_KEYS:
            raise QueueFull("Queue full: the session has used up its idempotency keys", data={"max_keys": MAX_KEYS})

    def enter(self, task: TaskActor, submit: TaskSubmit) -> None:
        """A task has been accepted."""
        self._live[task.task_id] = task
        if submit.idempotency_key is not None:
            remembered = Remembered(task.task_id, digest(submit), "QUEUED")
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
        waiting, known.waiting = known.waiting, None
        for settled in waiting or ():
            settled(error)

    def ended(self, task: TaskActor) -> None:
        """Called by the task as its last act, in its own turn: a letter in a box."""
        self._ended.append(task)

    def sweep(self) -> None:
        """File the tasks that have ended since the last turn."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        for task in ended:
            assert task.snapshot is not None
            del self._live[task.task_id]
            self._history[task.task_id] = Finished(task.status, task.snapshot, task.log)
            remembered = self._keyed.pop(task.task_id, None)
            if remembered is not None:
                remembered.status = task.status
            self._history_bytes += len(task.snapshot)
        while len(self._history) > self._max_history or self._history_bytes > MOST_HISTORY_BYTES:
            oldest = self._history.pop(next(iter(self._history)))
            self._history_bytes -= len(oldest.snapshot)

    # --- looking up ---------------------------------------------------------------------------------------------

    def repeat(self, submit: TaskSubmit) -> Remembered | None:
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

    def repeated(self, known: Remembered) -> dict[str, Any]:
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
