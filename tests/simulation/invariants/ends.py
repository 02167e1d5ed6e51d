"""What must hold at the end: the daemon ends when it is told to, and nothing of anybody is left in it."""

from __future__ import annotations

from .base import SLACK, Broken, invariant


@invariant("the daemon always ends on SIGTERM, in time and well")
def ends(reading, judged):
    most = reading.terms.get("end_bound")
    for life in reading.lives:
        if life.told is None or life.killed:
            continue
        judged()
        if life.ended_at is None:
            yield Broken((life.told,), f"an end after {life.signal}", "none")
        elif most is not None and life.ended_at > life.told_at + most + SLACK:
            expected = f"an end by {life.told_at + most:.3f} s"
            yield Broken((life.told, life.ended), expected, f"at {life.ended_at:.3f} s")
    for life in reading.lives:
        if life.error is not None and not life.killed:
            yield Broken((life.begun, life.ended), "an end without an error", str(life.error)[:200])


@invariant("nothing leaks")
def leaks(reading, judged):
    before = None
    for baseline in reading.baselines:
        counts = baseline.what["counts"]
        if baseline.what["when"] == "before":
            before = baseline
            continue
        if before is None:
            continue
        for name, count in counts.items():
            if name not in before.what["counts"]:
                continue
            judged()
            if count != before.what["counts"][name]:
                expected = f"{name} = {before.what['counts'][name]}, as before the first client"
                yield Broken((before.number, baseline.number), expected, f"{name} = {count}")
