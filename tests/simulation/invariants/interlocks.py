"""What must hold of an output with an interlock: it is driven only while the door is closed, and not for long after."""

from __future__ import annotations

from .base import SLACK, Broken, invariant
from .sessions import _troubled


@invariant("an output is driven only while what its interlock requires holds")
def guarded(reading, judged):
    """Judged at the device: the level of the output when the door is opened, and when the output is driven."""
    for lock in reading.terms.get("interlocks") or ():
        doors = [fault for fault in reading.faults if fault.what["what"] == "door"]
        levels = [one for one in reading.levels if (one.what["bus"], one.what["line"]) == (lock["bus"], lock["line"])]
        told = sorted((*doors, *levels), key=lambda entry: entry.number)
        opened, driven = None, None
        for entry in told:
            if entry.kind == "fault":
                opened = None if entry.what["value"] == lock["closed"] else entry
            else:
                driven = entry if entry.what["value"] == lock["value"] else None
            if driven is None:
                continue
            if opened is not None and driven is entry:
                judged()
                expected = f"line {lock['line']} of {lock['bus']} not driven: the door is open"
                yield Broken((opened.number, entry.number), expected, f"it is driven to {lock['value']}")
            elif driven is entry:
                judged()
            elif opened is entry:
                yield from _left(reading, lock, told, entry, judged)


def _left(reading, lock, told, opened, judged):
    """The output was driven when the door was opened: it must leave that level within the time of a check."""
    due = opened.at + lock["check_s"] + lock["bound_s"] + SLACK
    life = reading.life_of(opened.number)
    over = reading.ends_at if life is None or life.ended_at is None else life.ended_at
    if life is None or life.ended < opened.number or due > over or (life.told_at is not None and due > life.told_at):
        return
    if _troubled(reading, lock["bus"], opened.at, due):
        return
    judged()
    if not any(opened.number < entry.number and entry.at <= due for entry in told):
        expected = f"line {lock['line']} of {lock['bus']} safe by {due:.3f} s: the door was opened at {opened.at:.3f} s"
        yield Broken((opened.number,), expected, f"it is still driven to {lock['value']}")
