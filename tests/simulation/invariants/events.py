"""What must hold for those who follow tasks: they are told everything, once, in order, and after they were answered."""

from __future__ import annotations

from .base import SLACK, Broken, invariant

KEPT = ("start", "finish", "task_finish")
FOR_EVER = 1 << 62
REST = 0
"""From the beginning, without what the client follows already."""


class Feed:
    """What a client was sent of one task between one answer that subscribed it and the next that changes that.

    `former` is the feed that it had until then, whose events do not come again; None: there was none.
    """

    __slots__ = ("events", "former", "from_seq", "since", "until")

    def __init__(self, since, from_seq, until, former=None):
        self.since = since
        self.from_seq = from_seq
        self.until = until
        self.former = former
        self.events = []

    def had(self):
        """The events that the client had already."""
        return () if self.former is None else (*self.former.had(), *self.former.events)


def _follows(reading, client):
    """(entry of the answer, task id or None for all of a session, session, from_seq, or REST, or None for its end)."""
    for request in client.requests:
        result, params = request.result, request.params
        if result is None:
            continue
        number = request.answer.number
        if request.method == "task.events.subscribe":
            given = params.get("from_seq")
            yield number, params.get("task_id"), params.get("session_id"), REST if given is None else max(given, 1)
        elif request.method == "task.events.unsubscribe":
            yield number, params.get("task_id"), params.get("session_id"), None
        elif params.get("subscribe") is True and (result.get("subscribed") or result.get("repeated")):
            yield number, result.get("task_id"), params.get("session_id"), REST


def _unclear(client):
    """Whether it changed what it follows in a way that is never answered, or that it cannot tell apart."""
    methods = ("task.events.subscribe", "task.events.unsubscribe", "task.submit")
    if any(request.method in methods for request in client.notifications):
        return True
    return any(request.reused and request.method in methods for request in client.requests)


def _unanswered(client):
    return any(r.answer is None and r.method.startswith(("task.events", "task.submit")) for r in client.requests)


def _feeds(changes, task_id, session, ends):
    """The spans of the tape in which a client follows a task, first to last; `ends` are entries of its task_finish."""
    feeds = []
    for number, of, where, from_seq in changes:
        if of != task_id and (of is not None or where != session):
            continue
        former = feeds[-1] if feeds and feeds[-1].until > number else None
        if former is not None and any(former.since < end < number for end in ends):
            former.until, former = number, None
        if former is not None and from_seq == REST and former.from_seq <= 1:
            continue
        if former is not None:
            former.until = number
        if from_seq is not None:
            feeds.append(Feed(number, from_seq or 1, FOR_EVER, former if from_seq == REST else None))
    return feeds


def _followed(reading, judged):
    """(client, task, feeds, events in none of them) for each task that a client was told of or follows."""
    for client in reading.clients.values():
        if _unclear(client):
            continue
        changes = sorted(_follows(reading, client), key=lambda change: change[0])
        sessions = {where for _, of, where, from_seq in changes if of is None and from_seq is not None}
        events = reading.events_of(client)
        tasks = set(events) | {of for _, of, _, _ in changes if of is not None}
        tasks |= {task.id for task in reading.tasks.values() if task.session in sessions}
        for task_id in sorted(tasks):
            task = reading.tasks.get(task_id)
            ends = [one.number for one in events.get(task_id, ()) if one.phase == "task_finish"]
            feeds = _feeds(changes, task_id, None if task is None else task.session, ends)
            outside = []
            for event in events.get(task_id, ()):
                feed = next((feed for feed in feeds if feed.since < event.number < feed.until), None)
                (outside if feed is None else feed.events).append(event)
            yield client, task, feeds, outside


@invariant("events come only after the answer that promised them, and to nobody else")
def promised(reading, judged):
    for client, task, feeds, outside in _followed(reading, judged):
        judged(len(feeds))
        for event in outside:
            if task is None or _just_left(client, event):
                continue
            expected = f"an answer that subscribes client {client.number} to task {task.id} before its events"
            yield Broken((*(feed.since for feed in feeds[:1]), event.number), expected, f"{event.phase} came without")
        if outside and task is None and not reading.log.lost:
            yield Broken((outside[0].number,), "events of tasks that exist", f"{outside[0].params.get('task_id')}")


def _just_left(client, event):
    """Its unsubscribing was answered in a batch's one line, which other answers and events may overtake."""
    return bool(client.batches)


def _expected(task):
    """(entry, phase, step) of all that must be told of a task, in order, as the log has it."""
    told = []
    for step in task.steps.values():
        if step.start is not None:
            told.append((step.start.number, step.start.fields["seq"], "start", step.index))
        if step.finish is not None:
            told.append((step.finish.number, step.finish.fields["seq"], "finish", step.index))
    told += [(record.number, record.fields["seq"], "task_finish", None) for record in task.finishes]
    told.sort(key=lambda one: one[1])
    return [(number, phase, index) for number, _, phase, index in told]


@invariant("every subscriber got each start, finish and task_finish once and in order")
def complete(reading, judged):
    for client, task, feeds, _ in _followed(reading, judged):
        if task is None or not task.submits or task.submits[0].late:
            continue
        killed = any(life.killed for life in reading.lives)
        for feed in feeds:
            judged()
            got = [(event, event.phase, event.params.get("step_index")) for event in feed.events if event.phase in KEPT]
            if _only_its_end(task, got):
                continue
            had = {(event.phase, event.params.get("step_index")) for event in feed.had()}
            expected = [one for one in _expected(task) if one[1:] not in had]
            yield from _run(task, client, feed, expected, got, holes=reading.log.lost or killed)
            if not got and _forgotten_before_it_was_written(reading):
                continue
            if not reading.log.failing:
                # Where a task waits for its disk and is ended meanwhile, what is on record is told with its end.
                at_once = reading.durability == "os"
                by = -1.0 if at_once else _told_by(reading, task)
                yield from _nothing_missing(client, task, feed, expected, got, by)


def _forgotten_before_it_was_written(reading):
    """A relaxed log has the end of a task later than it happens: by then a session without a history forgot it."""
    return reading.durability == "relaxed" and reading.terms["limits"]["task_history"] == 0


def _only_its_end(task, got):
    """A repeat by its key, when its session's history of the task was no longer there: the end alone, as number 1."""
    again = any(request.result.get("repeated") for request in task.asked)
    return again and [phase for _, phase, _ in got] == ["task_finish"] and got[0][0].params.get("seq") == 1


def _told_by(reading, task):
    """When all of a task was on record, as durable as promised."""
    number = reading.log.durable(task.finishes[0], reading.durability) if task.finishes else FOR_EVER
    return float("inf") if number == FOR_EVER else reading.entries[number].at + SLACK


def _acknowledged(task):
    """The entry that answers its submission: with a key it comes when the disk has that, and before all events."""
    first = task.unheard or next(iter(task.asked), None)
    if first is None or "idempotency_key" not in first.params["task"]:
        return -1
    return task.asked[0].answer.number if task.asked else FOR_EVER


def _run(task, client, feed, expected, got, *, holes):
    """What came is what was due, from some place on, without a gap."""
    if not got:
        return
    due = [(phase, index) for _, phase, index in expected]
    came = [(phase, index) for _, phase, index in got]
    if came[0] in due:
        place = due.index(came[0])
    elif holes:
        return
    else:
        place = 0
    if feed.from_seq <= 1 and not holes:
        place = 0
    for offset, one in enumerate(came):
        should = due[place + offset] if place + offset < len(due) else None
        if one != should and not (should is None and holes):
            wanted = "nothing more" if should is None else _say(should)
            expected_text = (
                f"{wanted} as number {place + offset + 1} of what client {client.number} hears of task {task.id}"
            )
            yield Broken((feed.since, got[offset][0].number), expected_text, _say(one))
            return


def _nothing_missing(client, task, feed, expected, got, by):
    """Whoever heard the answer to what they asked later has heard all that was due before."""
    if client.batches:
        return
    # From when it asks for no more, or for all of it again, what has not been sent yet may stay away.
    changes = ("task.events.subscribe", "task.events.unsubscribe")
    until = min([feed.until, *(r.number for r in client.requests if r.method in changes and r.number > feed.since)])
    asked = [r for r in client.requests if r.answer is not None and feed.since < r.answer.number < until]
    latest = max(asked, key=lambda request: request.number, default=None)
    if latest is None or latest.at < by or latest.number < _acknowledged(task):
        return
    due = [one for one in expected if feed.since < one[0] < latest.number]
    have = {(phase, index) for event, phase, index in got if event.number < latest.answer.number}
    skipped = feed.from_seq - 1
    for number, phase, index in due:
        if (phase, index) not in have and expected.index((number, phase, index)) >= skipped:
            text = f"{_say((phase, index))} of task {task.id} reaches client {client.number} before a later answer"
            yield Broken((feed.since, number, latest.answer.number), text, "it did not")
            return


def _say(one):
    phase, index = one
    return phase if index is None else f"{phase} of step {index}"


@invariant("a subscriber's events are numbered upwards from where it asked")
def numbered(reading, judged):
    for client, task, feeds, _ in _followed(reading, judged):
        if task is None:
            continue
        for feed in feeds:
            before, number = feed.from_seq - 1, feed.since
            had = {event.params.get("seq") for event in feed.had()}
            for event in feed.events:
                judged()
                while before + 1 in had:
                    before += 1
                seq = event.params.get("seq")
                if type(seq) is not int or seq <= before:
                    expected = f"seq above {before} of task {task.id} for client {client.number}"
                    yield Broken((number, event.number), expected, f"seq {seq}")
                    return
                if seq > before + 1 and not _gap_is_progress(task):
                    expected = f"seq {before + 1} of task {task.id} for client {client.number}"
                    yield Broken((number, event.number), expected, f"seq {seq}, and nothing of it is progress")
                    return
                before, number = seq, event.number


def _gap_is_progress(task):
    """Only progress may give way under back-pressure: watches and undone steps tell of some."""
    if task.constraints.get("rollback_on_failure") or not task.asked:
        return True
    return any(step.tool == "gpio.watch" for step in task.steps.values())
