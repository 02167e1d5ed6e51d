"""What must hold at the devices: transactions are whole, one at a time, in turn; a lease keeps all others out."""

from __future__ import annotations

from itertools import pairwise

from .base import SLACK, Broken, invariant

RANKS = {"low": 0, "normal": 1, "high": 2, "urgent": 3}


@invariant("no two transactions overlap on a bus")
def overlap(reading, judged):
    running = {}
    for one in reading.transactions:
        judged()
        still = [
            other for other in running.get(one.bus, ()) if other.ended > one.begun and _same_life(reading, other, one)
        ]
        width = reading.width(one.bus)
        if len(still) >= width:
            expected = f"at most {width} at a time on {one.bus}"
            found = f"{one.what} began while {', '.join(other.what for other in still)} was under way"
            yield Broken((*(other.begun for other in still), one.begun), expected, found)
        running[one.bus] = [*still, one]


def _same_life(reading, one, other):
    return reading.life_of(one.begun) is reading.life_of(other.begun)


@invariant("no transaction reaches a device that is not open")
def opened(reading, judged):
    for one in reading.transactions:
        judged()
        if one.args.get("closed"):
            yield Broken((one.begun,), f"{one.bus} is open when {one.what} begins", "it is closed")


@invariant("a transaction that has begun is never cut")
def cut(reading, judged):
    """Only the end of the process may leave one: when its grace is over, on a second signal, or killed."""
    for one in reading.transactions:
        judged()
        if one.outcome in ("done", "error"):
            continue
        life = reading.life_of(one.begun)
        if life is None or life.killed or (life.ended_at is None and one.outcome is None):
            continue
        at = one.ended_at if one.outcome == "cut" else life.ended_at
        number = one.ended if one.outcome == "cut" else life.ended
        if life.signals > 1:
            continue
        grace = min(reading.limits.get("shutdown_grace_s", 5.0), 5.0)
        if life.told is not None and at >= life.told_at + grace - SLACK:
            continue
        yield Broken((one.begun, number), f"{one.what} on {one.bus} returns", "it was broken off")


@invariant("a transaction past its limit has its bus named as wedged")
def wedged(reading, judged):
    records = [record for record in reading.log.records if record.event == "bus.wedged"]
    for one in reading.transactions:
        limit = one.args.get("limit_ms")
        if limit is None or reading.width(one.bus) != 1 or one.what in ("end", "safe") or one.outcome == "cut":
            continue
        life = reading.life_of(one.begun)
        due = one.begun_at + limit / 1000
        over = min(one.ended_at, (life and life.ended_at) or reading.ends_at)
        if over <= due + 10 * SLACK or (life is not None and life.told is not None and due > life.told_at - SLACK):
            continue
        judged()
        if reading.log.failed_between(one.begun, min(one.ended, reading.last)):
            continue
        if life is not None and life.killed and not _wrote(reading, due, life):
            continue  # its disk was slow, and then it was gone
        here = [record for record in records if record.fields.get("bus") == one.bus and one.begun < record.number]
        if not any(reading.log.reported(record) <= due + 10 * SLACK for record in here):
            expected = f"bus.wedged for {one.bus} on record at {due:.3f} s, while {one.what} is under way"
            yield Broken((one.begun, min(one.ended, reading.last)), expected, "no such record")


def _wrote(reading, since, life):
    """Whether anything came to the log from some time on, while that life lasted."""
    return any(record.at >= since and life.begun < record.number < life.ended for record in reading.log.records)


def bus_of(reading, step):
    """The bus of a step that may never have started."""
    if step.bus is not None:
        return step.bus
    tool = reading.tools.get(step.tool) or {}
    if tool.get("bus") is not None:
        return tool["bus"]
    named = step.args.get(tool.get("arg"))
    return None if named is None else f"{tool.get('prefix', '')}{named}"


def holds(reading):
    """(bus, task, first entry, last entry) of each lease, as long as it is sure to have been held."""
    for task in reading.tasks.values():
        if task.constraints.get("exclusive") is not True:
            continue
        starts = [step.start for step in task.steps.values() if step.start is not None]
        done = [one.ended for step in task.steps.values() for one in step.transactions if one.outcome is not None]
        if not starts or any(record.late for record in starts):
            continue
        # Its last records are written together, and the lease is over by then.
        first = min(record.number for record in starts)
        last = max(done, default=first)
        if reading.durability == "os":
            # Elsewhere a record may be written when its task has ended, its time being over.
            last = max(last, *(record.number for record in starts))
        for bus in {bus_of(reading, step) for step in task.steps.values()}:
            if bus is not None and reading.width(bus) == 1:
                yield bus, task, first, last


@invariant("a lease is exclusive")
def leases(reading, judged):
    held = list(holds(reading))
    for bus, task, first, last in held:
        judged()
        for one in reading.transactions:
            there = one.bus == bus and first < one.begun < last and not one.must_run
            if there and one.step is not None and one.step.task is not task:
                expected = f"nothing but task {task.id} on {bus} until its lease ends"
                yield Broken((first, one.begun), expected, f"{one.what} of {one.step}")
    for (bus, task, first, _), (other_bus, other, begun, _) in _pairs(held):
        if bus == other_bus and _between(first, begun, held, bus, task):
            expected = f"task {other.id} waits for its lease on {bus} until that of task {task.id} ends"
            yield Broken((first, begun), expected, "it started")


def _pairs(held):
    ordered = sorted(held, key=lambda hold: (hold[0], hold[2]))
    return pairwise(ordered)


def _between(first, begun, held, bus, task):
    return any(hold[0] == bus and hold[1] is task and first < begun < hold[3] for hold in held)


def _queued(reading, bus):
    """The steps that asked this bus for a transaction at once when they started, and had it, in the order of asking."""
    steps = [
        step
        for task in reading.tasks.values()
        for step in task.steps.values()
        if step.bus == bus and step.start is not None and not step.start.late and _first(step) is not None
    ]
    return sorted(steps, key=lambda step: step.start.number)


def _first(step):
    first = min(step.transactions, key=lambda one: one.begun, default=None)
    return None if first is None or first.must_run else first


def _buses(reading):
    """Buses with one device, of kinds whose steps ask for their first transaction in the turn of their start."""
    for bus, terms in reading.buses.items():
        if terms.get("kind", "gpio") in ("gpio", "i2c", "uart") and reading.durability == "os":
            yield bus


@invariant("the higher priority goes first, and of equals who came first")
def turns(reading, judged):
    for bus in _buses(reading):
        if reading.width(bus) != 1:
            continue
        steps = _queued(reading, bus)
        for index, later in enumerate(steps):
            if later.task.constraints.get("exclusive"):
                continue
            begun = _first(later).begun
            for earlier in steps[:index]:
                if _first(earlier).begun < later.start.number:
                    continue
                if reading.life_of(earlier.start.number) is not reading.life_of(begun):
                    continue
                if _rank(earlier) < _rank(later):
                    continue
                if earlier.start.number == later.start.number and _rank(earlier) == _rank(later):
                    continue  # written in one go, which wakes both: which of them asked its bus first is Trio's to say
                judged()
                if _first(earlier).begun > begun:
                    expected = f"{earlier} ({_name(earlier)}) before {later} ({_name(later)}) on {bus}"
                    numbers = (earlier.start.number, later.start.number, begun)
                    yield Broken(numbers, expected, f"{later} began while the other waited")


def _name(step):
    return step.task.constraints.get("priority", "normal")


def _rank(step):
    return RANKS.get(_name(step), 1)


@invariant("a bus's queue holds no more than its bound")
def bound(reading, judged):
    most = reading.limits.get("bus_queue")
    for bus in _buses(reading) if most is not None else ():
        steps = [step for step in _queued(reading, bus) if not step.task.constraints.get("exclusive")]
        for index, step in enumerate(steps):
            number = step.start.number
            under_way = [one for one in reading.transactions if one.bus == bus and one.begun < number < one.ended]
            under_way = [one for one in under_way if reading.life_of(one.begun) is reading.life_of(number)]
            if len(under_way) < reading.width(bus):
                continue
            judged()
            # Those that did begin in the end: they did wait, whatever became of others.
            waiting = [other for other in steps[: index + 1] if _first(other).begun > number]
            if len(waiting) > most:
                expected = f"at most {most} wait for {bus}"
                found = f"{len(waiting)} wait when {step} has joined them"
                yield Broken((*(other.start.number for other in waiting),), expected, found)


@invariant("a queued step whose task was cancelled never begins")
def cancelled(reading, judged):
    for client in reading.clients.values():
        for request in client.requests:
            if request.method != "task.cancel" or (request.result or {}).get("status") not in (
                "CANCELLING",
                "CANCELLED",
            ):
                continue
            task = reading.tasks.get(request.params.get("task_id"))
            for step in () if task is None else task.steps.values():
                judged()
                for one in step.transactions:
                    # In the very moment of the answer the bus may have taken it already; the second exchange of a
                    # thermometer's reading is of the transaction that has begun before.
                    goes_on = any(
                        other.begun < request.answer.number < other.ended < one.begun and other.ended_at == one.begun_at
                        for other in step.transactions
                    )
                    if (
                        one.begun > request.answer.number
                        and one.begun_at > request.answer.at + SLACK
                        and not one.must_run
                        and not goes_on
                    ):
                        expected = f"nothing of task {task.id} begins any more: its cancellation was answered"
                        yield Broken((request.answer.number, one.begun), expected, f"{one.what} on {one.bus}")
    for step in _steps(reading):
        if step.status != "CANCELLED" or step.finish.late:
            continue
        judged()
        for one in step.transactions:
            if one.begun > step.finish.number and not one.must_run:
                expected = f"{step} is over: it is on record as cancelled"
                yield Broken((step.finish.number, one.begun), expected, f"{one.what} began on {one.bus}")


def _steps(reading):
    return (step for task in reading.tasks.values() for step in task.steps.values())


@invariant("what was refused or only rehearsed touches nothing")
def untouched(reading, judged):
    done = {}
    for one in reading.transactions:
        done.setdefault(one.args.get("mark"), one)
    accepted, refused = set(), {}
    for client in reading.clients.values():
        for request in (*client.requests, *client.notifications):
            if request.method != "task.submit":
                continue
            spec = request.params.get("task")
            marks = _marks(spec)
            rehearsal = type(spec) is dict and (spec.get("constraints") or {}).get("dry_run") is True
            if request.code is not None or rehearsal:
                refused.update(dict.fromkeys(marks, request))
            else:
                accepted.update(marks)
    for mark, request in refused.items():
        if mark in accepted:
            continue
        judged()
        if mark in done:
            one = done[mark]
            why = f"error {request.code}" if request.code is not None else "dry_run"
            yield Broken((request.number, one.begun), f"nothing of a submission with {why}", f"{one.what} on {one.bus}")


def _marks(spec):
    steps = spec.get("steps") if type(spec) is dict else None
    if type(steps) is not list:
        return []
    args = [step.get("args") for step in steps if type(step) is dict]
    return [arg["mark"] for arg in args if type(arg) is dict and type(arg.get("mark")) is str]
