"""Rare states that a run of many worlds must come to: a promise about a state that never comes is kept by nobody.

One function for each, whose sentence is its name, over the same reading of a tape as the promises. The states are seen
by what is on the tape already; nothing in the runtime knows of them. A run of `WORLDS` worlds that never comes to one
of them fails and names it: then the worlds have changed, or what led to the state is gone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from .invariants.buses import holds
from .invariants.halts import ACTS
from .invariants.policy import reloads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WORLDS = 10_000
"""A run of at least so many worlds comes to each of these states."""


class Mark(NamedTuple):
    """A state, and whether a reading of a tape comes to it."""

    name: str
    reached: Callable[[Any], bool]


MARKS: list[Mark] = []


def sometimes(sentence):
    """Make a mark of a function."""

    def make(reached):
        MARKS.append(Mark(sentence, reached))
        return reached

    return make


def reached(reading) -> list[str]:
    """The names of the states that this world came to."""
    return [mark.name for mark in MARKS if mark.reached(reading)]


def missed(figures) -> list[str]:
    """The states that no world of a run came to, by the figures of the run; none if it was a small one."""
    return [mark.name for mark in MARKS if not figures[f"reached: {mark.name}"]] if figures["seeds"] >= WORLDS else []


# --- what several ask


def _during(transaction, number) -> bool:
    return transaction.begun < number < transaction.ended


def _requests(reading, *methods) -> Iterable[Any]:
    return (one for client in reading.clients.values() for one in client.requests if one.method in methods)


def _faults(reading, what) -> list[Any]:
    return [fault for fault in reading.faults if fault.what["what"] == what]


def _records(reading, event) -> list[Any]:
    return [record for record in reading.log.records if record.event == event]


def _acting(reading) -> list[Any]:
    return [one for one in reading.transactions if one.step is not None and one.step.tool in ACTS]


# --- cancellation


@sometimes("a cancel met a transfer that had begun")
def _(reading):
    cancels = [(one.params.get("task_id"), one.number) for one in _requests(reading, "task.cancel")]
    return any(
        one.step is not None and one.step.task.id == task and _during(one, number)
        for task, number in cancels
        for one in reading.transactions
    )


@sometimes("a cancel met a step that waited for its bus")
def _(reading):
    for request in _requests(reading, "task.cancel"):
        task = reading.tasks.get(request.params.get("task_id"))
        steps = () if task is None else task.steps.values()
        for step in steps:
            started = step.start is not None and step.start.number < request.number
            if started and step.finish is not None and step.finish.number > request.number and not step.transactions:
                return True
    return False


@sometimes("a session ended while its transfer was under way")
def _(reading):
    ends = [(session.id, close.number) for session in reading.sessions.values() for close in session.closes]
    by_session: dict[str, list[Any]] = {}
    for one in reading.transactions:
        if one.step is not None:
            by_session.setdefault(one.step.task.session, []).append(one)
    return any(_during(one, number) for session, number in ends for one in by_session.get(session, ()))


@sometimes("a lease kept another task waiting")
def _(reading):
    begun = [one for one in reading.transactions if one.step is not None]
    return any(
        one.bus == bus and one.step.task is not task and first < one.step.task.accepted < last < one.begun
        for bus, task, first, last in holds(reading)
        for one in begun
    )


# --- halts


@sometimes("a halt came while a transfer was under way")
def _(reading):
    return any(_during(one, halt.number) for halt in _faults(reading, "halt") for one in _acting(reading))


@sometimes("a halt came while a task waited for its record")
def _(reading):
    waits = [(one.number, one.answer.number) for one in _requests(reading, "task.submit") if one.answer is not None]
    return any(
        first < halt.number < last and reading.entries[last].at > reading.entries[first].at
        for halt in _faults(reading, "halt")
        for first, last in waits
    )


@sometimes("a halt came while the daemon was halted")
def _(reading):
    told = [fault.what["what"] for fault in reading.faults if fault.what["what"] in ("halt", "reset")]
    return any(pair == ("halt", "halt") for pair in pairwise(told))


@sometimes("a reset met a newer hold")
def _(reading):
    return bool(_faults(reading, "raced"))


@sometimes("a person halted without a session while the disk hung")
def _(reading):
    hangs = [
        (one.number, one.what["what"]) for one in reading.faults if one.what["what"] in ("disk.slow", "disk.heals")
    ]
    for request in _requests(reading, "halt"):
        before = [what for number, what in hangs if number < request.number]
        if before and before[-1] == "disk.slow":
            return True
    return False


@sometimes("a reset left the holds of others, and the daemon halted")
def _(reading):
    resets = _records(reading, "halt.reset")
    return any(record.fields.get("halted") is True for record in resets)


@sometimes("a halt came while the log could not be written")
def _(reading):
    return any(reading.log.fails_at(halt.number) for halt in _faults(reading, "halt"))


@sometimes("a daemon started halted")
def _(reading):
    halted = False
    for entry in sorted([*reading.faults, *(reading.entries[life.begun] for life in reading.lives)], key=_number):
        if entry.kind == "daemon.starts" and halted:
            return True
        if entry.kind == "fault" and entry.what["what"] in ("latched", "reset"):
            halted = entry.what["what"] == "latched"
    return False


def _number(entry) -> int:
    return entry.number


# --- the end of a daemon


@sometimes("the daemon was killed while a transfer was under way")
def _(reading):
    return any(life.killed and _during(one, life.told) for life in reading.lives for one in _acting(reading))


@sometimes("a second signal came while the daemon was ending")
def _(reading):
    return any(life.signals > 1 and not life.killed for life in reading.lives)


@sometimes("a submission came again to a later run of the daemon, and was known")
def _(reading):
    return any(
        reading.life_of(first.number) is not reading.life_of(second.number)
        for task in reading.tasks.values()
        for first, second in pairwise(task.asked)
    )


# --- the disk


@sometimes("the reserve was spent on the ends of running work")
def _(reading):
    return bool(_records(reading, "audit.reserve"))


@sometimes("an effect was taken back while the log could not be written")
def _(reading):
    return any(record.late for record in _records(reading, "task.step.rollback"))


# --- devices


@sometimes("a transfer returned after its bus was named as wedged")
def _(reading):
    wedged = [(record.fields.get("bus"), record.number) for record in _records(reading, "bus.wedged")]
    return any(
        one.bus == bus and _during(one, number) and one.outcome in ("done", "error")
        for bus, number in wedged
        for one in reading.transactions
    )


@sometimes("a device went away under a lease")
def _(reading):
    gone = [(fault.what.get("bus"), fault.number) for fault in _faults(reading, "vanish")]
    return any(here == bus and first < number < last for here, _, first, last in holds(reading) for bus, number in gone)


@sometimes("an interlock opened while its output was driven")
def _(reading):
    return bool(_records(reading, "interlock.open"))


# --- plans and policies


@sometimes("the right to approve was taken away between an approval and the execution")
def _(reading):
    prepared = {one.result["plan_id"] for one in _requests(reading, "plan.prepare") if one.result}
    tries = [one for one in _requests(reading, "plan.execute") if one.params.get("plan_id") in prepared]
    approvals = {record.fields["plan_id"]: record for record in _records(reading, "plan.approve")}
    ended = {record.fields.get("approval_id"): record for record in _records(reading, "approval.end")}
    return any(
        one.code is not None and approvals[plan].number < ended[plan].number < one.number
        for one in tries
        if (plan := one.params["plan_id"]) in approvals and plan in ended
    )


@sometimes("a policy that would have widened silently was refused")
def _(reading):
    return any(reload.silent and reload.taken is False for reload in reloads(reading))


@sometimes("a plan came to its execution after its time")
def _(reading):
    ttl = reading.limits.get("plan_ttl_s")
    made = {one.result["plan_id"]: one.answer.at for one in _requests(reading, "plan.prepare") if one.result}
    return any(
        one.params.get("plan_id") in made and one.code is not None and one.at > made[one.params["plan_id"]] + ttl
        for one in _requests(reading, "plan.execute")
    )
