"""What must hold of sessions: they are their principal's, they end when they are silent, and leave nothing driven."""

from __future__ import annotations

from typing import NamedTuple

from .base import SLACK, Broken, invariant

SESSION_INVALID = -32000
GRACE = 2.0
"""Seconds that a session may take to close: its tasks yield, its outputs are made safe."""
PATIENCE = 3.0
"""Seconds beyond that within which a silent session is on record as closed: a bus may have to come back."""


@invariant("a session belongs to its principal")
def principal(reading, judged):
    for session in reading.sessions.values():
        if session.principal is None:
            continue
        for request in session.requests:
            who = reading.clients[request.client].principal
            if who == session.principal or request.answer is None or request.reused:
                continue
            judged()
            if request.code != SESSION_INVALID and not _malformed(request):
                expected = f"error {SESSION_INVALID} for {who}: session {session.id} is {session.principal}'s"
                found = f"error {request.code}" if request.code is not None else "a result"
                yield Broken((request.number, request.answer.number), expected, f"{request.method}: {found}")
    for client in reading.clients.values():
        for event in client.events:
            task = reading.tasks.get(event.params.get("task_id"))
            session = None if task is None else reading.sessions.get(task.session)
            if session is not None and session.principal not in (None, client.principal):
                yield Broken((event.number,), f"no events of {session.principal}'s for {client.principal}", event.phase)


def _malformed(request):
    """Refused before anybody looked for a session."""
    return request.code in (-32600, -32601)


@invariant("a session that was opened is on record as closed, once")
def closed(reading, judged):
    for session in reading.sessions.values():
        if not session.opens:
            continue
        life = reading.life_of(session.opens[0].number)
        judged()
        if len(session.closes) > 1:
            yield Broken(tuple(r.number for r in session.closes), f"one session.close of {session.id}", "two")
        over = life is not None and life.ended_at is not None and not life.killed
        if not session.closes and over and not reading.log.lost:
            yield Broken((session.opens[0].number, life.ended), f"session.close of {session.id}", "no such record")


@invariant("a silent session is closed in its time, and no other")
def silence(reading, judged):
    ttl = reading.limits.get("idle_ttl_s")
    for session in reading.sessions.values():
        if not session.opens or session.request is None or session.opens[0].late:
            continue
        heartbeat = session.request.params.get("heartbeat_ms")
        heartbeat = heartbeat / 1000 if type(heartbeat) is int else None
        record = session.closes[0] if session.closes and not session.closes[0].late else None
        reason = None if record is None else record.fields.get("reason", "")
        # A halt and its status are answered without a session, and so also when it is over.
        asked = [r for r in session.requests if r.answer is not None and r.method not in ("halt", "halt.status")]
        heard = [r for r in asked if r.code != SESSION_INVALID]
        before = [r.at for r in heard if record is None or r.answer.number < record.number]
        heard_at = max([session.request.at, *before])
        if record is not None and reason.startswith("no heartbeat") and heartbeat is not None:
            judged()
            if record.at < heard_at + heartbeat - SLACK:
                expected = (
                    f"session {session.id} lives until {heard_at + heartbeat:.3f} s: it was heard at {heard_at:.3f} s"
                )
                yield Broken((session.opens[0].number, record.number), expected, f"closed at {record.at:.3f} s")
        if record is not None and reason == "idle" and ttl is not None:
            judged()
            if record.at < heard_at + ttl - SLACK:
                expected = f"session {session.id} lives until {heard_at + ttl:.3f} s: it was heard at {heard_at:.3f} s"
                yield Broken((session.opens[0].number, record.number), expected, f"closed at {record.at:.3f} s")
        yield from _too_long(reading, session, record, heartbeat, ttl, judged)


def _too_long(reading, session, record, heartbeat, ttl, judged):
    if record is None and (session.closes or reading.log.failing):
        return
    if record is not None and record.fields.get("reason") == "internal error":
        # It has crashed, and is on record when its tasks have yielded; from its crash on nobody finds it.
        return
    limit = heartbeat if heartbeat is not None else ttl
    if heartbeat is None and any(r.params.get("subscribe") or "subscribe" in r.method for r in session.requests):
        return
    life = reading.life_of(session.opens[0].number)
    if limit is None or life is None:
        return
    # Whoever sent anything may have been heard then, or a little later: lines take their time.
    last = max(
        [
            session.request.answer.at,
            *((r.answer.at if r.answer is not None else r.at + PATIENCE) for r in session.requests),
        ]
    )
    due = last + limit + GRACE + PATIENCE
    over = life.told_at if life.told_at is not None else life.ended_at if life.ended_at is not None else reading.ends_at
    if due >= over:
        return
    judged()
    if record is None or reading.log.reported(record) > due:
        number = reading.last if record is None else record.number
        expected = f"session {session.id}, silent since {last:.3f} s, is closed by {due:.3f} s"
        yield Broken((session.opens[0].number, number), expected, "it was not")


@invariant("outputs that a session drove are safe when it has ended")
def safe(reading, judged):
    """Judged at the device: where its bus can be used, a line that the session drove last has its safe level."""
    driven = _drivers(reading)
    yield from _by_record(reading, driven, judged)
    yield from _at_the_end(reading, driven, judged)


@invariant("a session that ended owns no level that it set last")
def owned(reading, judged):
    """Judged at the device, while the daemon goes on: a pulse and a rollback of others leave a level its setter's."""
    yield from _in_time(reading, _drivers(reading), judged)


class _Level(NamedTuple):
    """What a line is from an entry on: at which level, who set that, and who else is to find it safe at its end."""

    number: int
    setter: str | None
    value: int | None
    deadmen: frozenset[str]


def _drivers(reading):
    """(bus, line) -> the levels of the line, in order.

    A level is of the session that set it, or pulsed a line that was nobody's; what the end of a pulse or a rollback
    restores is of the session that had set it before; a safe level is of none.
    """
    driven, undone = {}, {}
    deadmen = {session.id for session in reading.sessions.values() if _has_deadman(session)}
    levels = {}
    for level in reading.levels:
        levels.setdefault(level.what["bus"], []).append(level)
    for one in sorted(reading.transactions, key=lambda one: one.begun):
        told = [level for level in levels.get(one.bus, ()) if one.begun <= level.number <= one.ended]
        if one.what == "safe":
            changed = {level.what["line"]: level.what["value"] for level in told}
            for line in dict.fromkeys((*one.args.get("lines", ()), *changed)):
                history = driven.setdefault((one.bus, line), [])
                value = changed.get(line, history[-1].value if history else None)
                if one.outcome == "done":
                    history.append(_Level(one.begun, None, value, frozenset()))
            continue
        if "line" not in one.args or "value" not in one.args or one.step is None:
            continue
        if one.outcome != "done" and not told:
            continue
        history = driven.setdefault((one.bus, one.args["line"]), [])
        last = history[-1] if history else _Level(0, None, None, frozenset())
        who = one.step.task.session
        setter, held = last.setter, last.deadmen
        if one.outcome != "done":
            setter = who
        elif one.what == "undo":
            setter, held = undone.get(one.step, (who, held))
        elif one.what != "end" and (one.step.tool != "gpio.pulse" or setter is None):
            undone[one.step] = (who if setter is None else setter, held)
            setter, held = who, held | ({who} & deadmen)
        value = None if one.args["value"] == "input" else one.args["value"]
        history.append(_Level(one.begun, setter, value, held))
    return driven


def _has_deadman(session):
    opening = {} if session.request is None else session.request.params
    closed = session.closes[0].fields.get("reason") == "closed by the client" if session.closes else False
    return opening.get("heartbeat_ms") is not None or (opening.get("on_disconnect") == "close" and not closed)


def _safe_level(reading, bus, line):
    """(value the device must have, whether it is held as it is)."""
    lines = (reading.buses.get(bus) or {}).get("lines") or {}
    terms = lines.get(str(line)) or lines.get(line) or {}
    value = terms.get("safe")
    return (None if value == "input" else value), "safe" not in terms or terms.get("hold") == "keep"


def _by_record(reading, driven, judged):
    """What the closing record says went to its safe state was there when the record was written."""
    for session in reading.sessions.values():
        for record in session.closes[:1]:
            if record.late:
                continue
            for report in record.fields.get("safe") or ():
                if type(report) is not dict or "error" in report or "line" not in report:
                    continue
                for (bus, line), levels in driven.items():
                    before = [level for level in levels if level.number < record.number]
                    value, held = _safe_level(reading, bus, line)
                    if (
                        str(line) != str(report["line"])
                        or held
                        or not before
                        or before[-1].setter not in (None, session.id)
                    ):
                        continue
                    judged()
                    if before[-1].value != value:
                        expected = f"line {line} of {bus} at {value}, as session {session.id}'s end on record has it"
                        yield Broken((before[-1].number, record.number), expected, f"it is at {before[-1].value}")


def _at_the_end(reading, driven, judged):
    """When a life has ended well, every line that a session of it drove is safe, unless its bus was lost or held."""
    for life in reading.lives:
        if life.killed or life.ended_at is None or life.signals > 1 or life.error is not None:
            continue
        for (bus, line), levels in driven.items():
            value, held = _safe_level(reading, bus, line)
            mine = [level for level in levels if level.number < life.ended]
            if held or not mine or _lost(reading, bus, life):
                continue
            judged()
            number, session, level, _ = mine[-1]
            if level != value and session is not None:
                expected = f"line {line} of {bus} at {value}: session {session}, which drove it, has ended"
                yield Broken((number, life.ended), expected, f"it is at {level}")


def _in_time(reading, driven, judged):
    """While the daemon goes on, a session that is on record as closed leaves no line driven for long."""
    for session in reading.sessions.values():
        record = session.closes[0] if session.closes else None
        if record is None or record.late:
            continue
        life = reading.life_of(record.number)
        due = record.at + PATIENCE
        over = reading.ends_at if life is None or life.ended_at is None else life.ended_at
        if due > over or (life is not None and life.told_at is not None and due > life.told_at):
            continue
        for (bus, line), levels in driven.items():
            value, held = _safe_level(reading, bus, line)
            hers = any(session.id == level.setter or session.id in level.deadmen for level in levels)
            if held or not hers or _troubled(reading, bus, record.at, due):
                continue
            until = [level for level in levels if reading.entries[level.number].at <= due]
            judged()
            if not until or until[-1].value == value:
                continue
            number, setter, level, deadmen = until[-1]
            if setter == session.id or session.id in deadmen:
                expected = f"line {line} of {bus} at {value} by {due:.3f} s: session {session.id} has ended"
                yield Broken((number, record.number), expected, f"it is at {level}")


def _troubled(reading, bus, since, until):
    """Whether the bus was not open, or busy throughout, or had a fault, around that time."""
    for fault in reading.faults:
        if fault.what.get("bus") == bus and fault.at <= until:
            return True
    for one in reading.transactions:
        if one.bus == bus and one.begun_at <= until and one.ended_at >= since and one.ended_at - one.begun_at > 0.5:
            return True
    return any(entry.what["bus"] == bus and entry.kind == "bus.close" and entry.at <= until for entry in reading.opened)


def _lost(reading, bus, life):
    """Whether the device was away, or a transaction held it, when the life ended; or it failed to be made safe."""
    faults = [fault for fault in reading.faults if fault.what.get("bus") == bus and fault.number < life.ended]
    if any(life.begun < fault.number for fault in faults):
        return True
    came_and_went = [fault.what["what"] for fault in faults if fault.what["what"] in ("vanish", "return")]
    if came_and_went and came_and_went[-1] == "vanish":
        return True  # it went in an earlier life, and all of this one was without it
    for one in reading.transactions:
        # A bug of the driver's in a safe state is not asked for again before the next run: the log says so.
        if one.bus == bus and one.what == "safe" and one.outcome == "error" and life.begun < one.begun < life.ended:
            return True
    return any(one.bus == bus and one.outcome in (None, "cut") for one in reading.transactions)
