"""What must hold of tasks: one end each, said alike everywhere; done once; undone in reverse."""

from __future__ import annotations

from itertools import pairwise

from .base import SLACK, Broken, invariant

TERMINAL = ("SUCCESS", "FAILED", "CANCELLED")


@invariant("each accepted task reaches exactly one terminal status")
def terminal(reading, judged):
    heard = _heard(reading)
    for task in reading.tasks.values():
        if task.accepted == 1 << 62:
            continue
        judged()
        if len(task.finishes) > 1:
            yield Broken(tuple(r.number for r in task.finishes), f"one task.finish of {task.id}", "two")
        life = reading.life_of(task.accepted)
        over = life is not None and life.ended_at is not None and not life.killed
        if not task.finishes and over and not reading.log.lost:
            yield Broken((task.accepted, life.ended), f"task {task.id} ends before the daemon does", "no task.finish")
        said = [(r.number, r.fields.get("status"), "the log") for r in task.finishes] + heard.get(task.id, [])
        said.sort()
        for number, status, where in said:
            if status not in TERMINAL:
                yield Broken((number,), f"a terminal status of task {task.id}", f"{status} in {where}")
            if status != said[0][1]:
                expected = f"{said[0][1]} for task {task.id}, as {said[0][2]} has it"
                yield Broken((said[0][0], number), expected, f"{status} in {where}")


def _heard(reading):
    """By task: (entry, status, by whom) of each terminal status that a client was told."""
    heard = {}
    for client in reading.clients.values():
        for event in client.events:
            if event.phase == "task_finish":
                entry = (event.number, event.params.get("status"), f"an event for client {client.number}")
                heard.setdefault(event.params.get("task_id"), []).append(entry)
        for request in client.requests:
            result = request.result
            if request.method == "task.get" and result and result.get("status") in TERMINAL:
                entry = (request.answer.number, result["status"], f"task.get of client {client.number}")
                heard.setdefault(request.params.get("task_id"), []).append(entry)
    return heard


@invariant("a task that is over stays as it was")
def settled(reading, judged):
    """Once anybody has been told of the end, whoever asks then is told the same, step by step."""
    first = {}
    for task_id, said in _heard(reading).items():
        first[task_id] = min(number for number, _, _ in said)
    for client in reading.clients.values():
        for request in client.requests:
            task_id = request.params.get("task_id")
            result = request.result
            if request.method != "task.get" or not result or type(task_id) is not str:
                continue
            if task_id in first and request.number > first[task_id]:
                judged()
                if result.get("status") not in TERMINAL:
                    expected = f"the terminal status of task {task_id}, which was told before"
                    yield Broken((first[task_id], request.answer.number), expected, str(result.get("status")))
            if result.get("status") in TERMINAL:
                yield from _steps_agree(reading, request, result, task_id, judged)


def _steps_agree(reading, request, result, task_id, judged):
    task = reading.tasks.get(task_id)
    if task is None or not task.asked or not task.finishes:
        return
    for index, told in enumerate(result.get("steps") or ()):
        step = task.steps.get(index)
        if step is None or task.constraints.get("dry_run") or any(r.late for r in (step.start, step.finish) if r):
            continue
        judged()
        recorded = step.status if step.start is not None else "CANCELLED"
        if told.get("status") != recorded:
            expected = f"{recorded} for {step}, as the log has it"
            yield Broken((request.answer.number,), expected, str(told.get("status")))


@invariant("one idempotency key, one task, done once")
def idempotent(reading, judged):
    keys = {}
    for client in reading.clients.values():
        for request in client.requests:
            spec = request.params.get("task")
            if request.method == "task.submit" and type(spec) is dict and type(spec.get("idempotency_key")) is str:
                keys.setdefault((client.principal, spec["idempotency_key"]), []).append(request)
    for (_, key), requests in keys.items():
        answered = [request for request in requests if (request.result or {}).get("task_id")]
        answered.sort(key=lambda request: request.answer.number)
        if len(requests) > 1:
            judged()
        for request in answered[1:]:
            if request.result["task_id"] != answered[0].result["task_id"]:
                if _came_to_nothing(reading, answered[0].result["task_id"]):
                    continue
                expected = f"task {answered[0].result['task_id']} for every submission with key {key!r}"
                yield Broken(
                    (answered[0].answer.number, request.answer.number), expected, f"task {request.result['task_id']}"
                )
        for marks in {tuple(_marks(request)) for request in requests}:
            for mark in marks:
                steps = reading.steps_by_mark.get(mark, ())
                done = {step.task.id: step for step in steps if _begun(step)}
                if len(done) > 1:
                    numbers = tuple(sorted(step.start.number for step in done.values()))
                    yield Broken(numbers, f"the step with {mark} is done once, by key {key!r}", f"{len(done)} times")


def _came_to_nothing(reading, task_id):
    """The submission could not be recorded, so that its key stands for nothing."""
    task = reading.tasks.get(task_id)
    return task is not None and not any(_begun(step) for step in task.steps.values())


def _begun(step):
    """Its start is on record; one that came late to a log that failed may be of a step that was refused for it."""
    if step.start is None:
        return False
    return not (step.start.late and step.status == "CANCELLED")


def _marks(request):
    steps = request.params["task"].get("steps")
    args = [step.get("args") for step in (steps if type(steps) is list else ()) if type(step) is dict]
    return [arg["mark"] for arg in args if type(arg) is dict and type(arg.get("mark")) is str]


@invariant("what was done is undone in reverse order, on record")
def rollback(reading, judged):
    for task in reading.tasks.values():
        begun = sorted(
            (record.fields["seq"], step.index, record.number)
            for step in task.steps.values()
            for record in step.rollbacks
            if "rolled_back" not in record.fields
        )
        undos = [
            (one.begun, step.index) for step in task.steps.values() for one in step.transactions if one.what == "undo"
        ]
        undone = sorted((number, index, number) for number, index in undos)
        for seen in (begun, undone):
            for (_, one, earlier), (_, other, later) in pairwise(seen):
                judged()
                if other >= one:
                    expected = f"step {other} of task {task.id} is undone before step {one}"
                    yield Broken((earlier, later), expected, "it was undone after it")
        if task.constraints.get("rollback_on_failure") is not True or not task.finishes:
            continue
        finish = task.finishes[0]
        if finish.fields.get("status") == "SUCCESS" or reading.log.failed_between(task.accepted, finish.number):
            continue
        yield from _all_undone(reading, task, finish, judged)


def _all_undone(reading, task, finish, judged):
    for step in task.steps.values():
        if step.status != "SUCCESS" or not _can_be_undone(reading, step):
            continue
        judged()
        outcome = [record for record in step.rollbacks if "rolled_back" in record.fields]
        if len(outcome) != 1 or len(step.rollbacks) != 2:
            expected = f"the undoing of {step} on record, begun and ended, before the task's end"
            yield Broken((step.finish.number, finish.number), expected, f"{len(step.rollbacks)} records of it")


def _can_be_undone(reading, step):
    """gpio.set has a way back in any case; what others did may have none (a register that could not be read)."""
    return step.tool == "gpio.set" and (reading.tools.get("gpio.set") or {}).get("undo") is True


@invariant("no step starts after its task's time is over")
def deadline(reading, judged):
    for task in reading.tasks.values():
        limit = task.constraints.get("max_duration_ms")
        if type(limit) not in (int, float) or not task.asked:
            continue
        # Its time began when its submission was heard, which was before it was answered.
        over = task.asked[0].answer.at + limit / 1000
        for step in task.steps.values():
            # Elsewhere a record may be written long after it was reported.
            if step.start is None or step.start.late or reading.durability != "os":
                continue
            judged()
            if step.start.at > over + SLACK:
                expected = f"nothing of task {task.id} starts after {over:.3f} s"
                yield Broken((task.asked[0].answer.number, step.start.number), expected, f"{step} started")
