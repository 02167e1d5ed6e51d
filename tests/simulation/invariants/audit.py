"""What must hold of the log: it is whole, it comes before what it tells of, and in the same order."""

from __future__ import annotations

import hashlib

from .base import Broken, invariant

PATIENT = 5 - 2e-3
"""Seconds that a task waits for its disk, all in all, before it undoes what is not on record; stamps are of ms."""
GENESIS = "sha256:" + "0" * 64


@invariant("the chain of the log is whole")
def chain(reading, judged):
    for number, line in reading.log.unreadable:
        yield Broken((number,), "a JSON object in each line of the log", repr(line[:80]))
    seq, prev, before = 0, GENESIS, None
    for record in reading.log.records:
        judged()
        numbers = (record.number,) if before is None else (before, record.number)
        if record.fields.get("prev") != prev:
            yield Broken(numbers, f"prev = {prev}", f"prev = {record.fields.get('prev')} in record {seq + 1}")
        if record.fields.get("seq") != seq + 1:
            yield Broken(numbers, f"seq = {seq + 1}", f"seq = {record.fields.get('seq')}")
        seq, before = seq + 1, record.number
        prev = "sha256:" + hashlib.sha256(record.line).hexdigest()


@invariant("no step begins unrecorded")
def recorded(reading, judged):
    """While the log cannot be written reads go on, and what was done is undone."""
    if reading.durability == "relaxed":
        return
    submitted = _tools_by_mark(reading)
    for one in reading.transactions:
        mark = one.args.get("mark")
        step = one.step
        if mark not in submitted or one.what == "safe":
            continue
        judged()
        failing = reading.log.fails_at(one.begun)
        if one.what == "undo":
            records = step.rollbacks if step else ()
            on_record = any(record.number < one.begun for record in records)
            undone = [record for other in step.task.steps.values() for record in other.rollbacks] if step else []
            if not on_record and not failing and not _gave_up(reading, undone, one.begun_at):
                yield Broken((one.begun,), "task.step.rollback is on record before", f"undo on {one.bus}")
            continue
        start = step.start if step else None
        if start is not None and reading.log.durable(start, reading.durability) < one.begun:
            continue
        if failing and (reading.risk(submitted[mark]) == 0 or one.what == "end"):
            continue
        numbers = (one.begun,) if start is None else (one.begun, start.number)
        found = f"{one.what} of {submitted[mark]} began on {one.bus}" + (" first" if start is not None else "")
        yield Broken(numbers, f"task.step.start for {mark} is on record before", found)


@invariant("while the log cannot be written nothing is disclosed")
def disclosed(reading, judged):
    """Of reads that disclose something the start is on record, whether or not others go on."""
    if reading.durability == "relaxed":
        return
    submitted = _tools_by_mark(reading)
    for one in reading.transactions:
        tool = submitted.get(one.args.get("mark"))
        if not reading.discloses(tool):
            continue
        judged()
        start = one.step.start if one.step else None
        if start is not None and reading.log.durable(start, reading.durability) < one.begun:
            continue
        numbers = (one.begun,) if start is None else (one.begun, start.number)
        yield Broken(numbers, f"task.step.start of {tool} is on record before", f"{one.what} began on {one.bus}")


def _gave_up(reading, records, now):
    """Whether a task has waited for these records, on a disk that does not answer, for as long as it may."""
    return any(reading.log.reported(record) <= now - PATIENT for record in records)


def _tools_by_mark(reading):
    tools = {}
    for client in reading.clients.values():
        for request in (*client.requests, *client.notifications):
            spec = request.params.get("task") if request.method == "task.submit" else None
            steps = spec.get("steps") if type(spec) is dict else None
            for step in steps if type(steps) is list else ():
                args = step.get("args") if type(step) is dict else None
                if type(args) is dict and type(args.get("mark")) is str:
                    tools[args["mark"]] = step.get("tool")
    return tools


@invariant("audit order agrees with bus order")
def order(reading, judged):
    """What a step did to its bus lies between its start and its finish on record, an undo before its outcome's."""
    for one in reading.transactions:
        step = one.step
        if step is None or one.outcome not in ("done", "error"):
            continue
        if one.what == "undo":
            told = next((record for record in step.rollbacks if "rolled_back" in record.fields), None)
        else:
            told = step.finish
            known = step.start is not None and not step.start.late and reading.durability != "relaxed"
            if known and not reading.log.fails_at(one.begun):
                judged()
                if step.start.number > one.begun:
                    yield Broken((one.begun, step.start.number), f"{step} is on record as started first", "it is not")
        if told is None or told.late:
            continue
        judged()
        if told.number < one.ended:
            expected = f"{one.what} on {one.bus} ends before {step} is on record as over"
            yield Broken((told.number, one.ended), expected, "the record came first")


RANKS = {"task.submit": 0, "task.step.start": 1, "task.step.finish": 2, "task.step.rollback": 3, "task.finish": 4}


@invariant("a task's records are in the order of its life")
def lives(reading, judged):
    """Its submission, each step's start and finish one after the other, what was undone, its end."""
    last = {}
    for record in reading.log.records:
        rank = RANKS.get(record.event)
        if rank is None:
            continue
        fields = record.fields
        # Starts and finishes alternate, step after step: 0.1, 0.2, 1.1, 1.2.
        place = (1, fields["step_index"], rank) if rank in (1, 2) else (rank, 0, 0)
        judged()
        before = last.get(fields["task_id"])
        if before is not None and before[0] > place:
            expected = f"{record.event} of task {fields['task_id']} before {before[1].event}"
            yield Broken((before[1].number, record.number), expected, "it comes after it in the log")
        if before is None and rank and not reading.log.lost:
            yield Broken((record.number,), f"task.submit of {fields['task_id']} first", record.event)
        last[fields["task_id"]] = (place, record)


@invariant("a submission is acknowledged after it is on record")
def acknowledged(reading, judged):
    for task in reading.tasks.values():
        if not task.asked or reading.durability == "relaxed":
            continue
        answers = [request.answer for request in task.asked]
        first = min(answer.number for answer in answers)
        record = task.submits[0] if task.submits else None
        judged()
        if record is not None and reading.log.durable(record, reading.durability) < first:
            continue
        risks = [reading.risk(step.get("tool")) for step in task.spec.get("steps") or ()]
        asked = min(request.number for request in task.asked)
        if reading.log.failed_between(asked, first) and not any(risks):
            continue
        found = "no such record" if record is None else "the record came later"
        numbers = (first,) if record is None else (first, record.number)
        yield Broken(numbers, f"task.submit of {task.id} on record before its answer", found)


@invariant("nothing is told before it is on record")
def told(reading, judged):
    """Events of a task come after the records of what they tell."""
    for client in reading.clients.values():
        for event in client.events:
            task = reading.tasks.get(event.params.get("task_id"))
            if task is None:
                continue
            if event.phase == "task_finish":
                # Of a task that was in flight, a later run tells a repeat by its key what its recovery has found.
                record = next(iter((*task.finishes, *task.recovered)), None)
            elif event.phase in ("start", "finish"):
                step = task.steps.get(event.params.get("step_index"))
                record = None if step is None else step.start if event.phase == "start" else step.finish
            else:
                continue
            judged()
            if reading.durability == "relaxed":
                continue
            if record is not None and reading.log.durable(record, reading.durability) < event.number:
                continue
            known = [one for step in task.steps.values() for one in (step.start, step.finish) if one is not None]
            if _gave_up(reading, [one for one in (*known, *task.finishes) if one.number > event.number], event.at):
                continue
            if reading.log.failed_between(task.accepted, event.number) or (record is None and reading.log.lost):
                # Or it was sent while the log failed, and read when those who knew of it were gone.
                continue
            numbers = (event.number,) if record is None else (event.number, record.number)
            found = f"client {event.client} was told of {event.phase} " + ("without" if record is None else "before")
            yield Broken(numbers, f"the record of {event.phase} of task {task.id} first", found)


@invariant("what is on record as started is on record as ended or named by a recovery")
def ended(reading, judged):
    for task in reading.tasks.values():
        for record in task.submits[:1]:
            life = reading.life_of(record.number)
            if life is None or life.ended_at is None:
                continue
            judged()
            over = next((later for later in reading.lives if later.begun > life.ended), None)
            named = bool(task.recovered)
            if life.killed:
                if task.finishes or named or over is None:
                    continue
                if _recovers(reading, over) is None and over.ended_at is None:
                    continue
                yield Broken((record.number, over.begun), f"daemon.recover names task {task.id}", "it does not")
                continue
            for step in task.steps.values():
                if step.start is not None and step.finish is None and not named and not reading.log.lost:
                    yield Broken((step.start.number,), f"{step} is on record as ended", "it is not")
        for recovery in task.recovered:
            judged()
            finish = task.finishes[0] if task.finishes else None
            if finish is not None and finish.number < recovery.number:
                numbers = (finish.number, recovery.number)
                yield Broken(numbers, f"task {task.id}, which is over, is not named as in flight", "it is named")


def _recovers(reading, life):
    for record in reading.log.records:
        if record.event == "daemon.recover" and life.begun < record.number < life.ended:
            return record
    return None
