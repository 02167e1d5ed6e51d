"""What must hold at every instant of what a client may use: rates, room, steps, risk, sessions, connections, lines."""

from __future__ import annotations

from .base import SLACK, Broken, invariant
from .sessions import _troubled

CLOSED = "closed by the client"
SHUTDOWN = "shutting down"
FOR_OTHERS = 8
"""Connections beyond the bound that are kept for principals that have none."""


def _accepted(reading):
    """(task, when it was accepted, the policy of its session's principal) of tasks whose submission is known."""
    for task in reading.tasks.values():
        if task.asked and not task.constraints.get("dry_run"):
            principal = _principal(reading, task)
            yield task, reading.policy.get(principal) or {}


def _principal(reading, task):
    session = reading.sessions.get(task.session)
    return None if session is None else session.principal


def _moments(reading, task):
    """Not before, and not after: when the task was accepted. A slow disk writes the record much later than it is of."""
    record = task.submits[0] if task.submits and not task.submits[0].late else None
    first = task.asked[0]
    if record is None:
        return first.at, first.answer.at
    return (reading.log.reported(record),) * 2


@invariant("rates are kept at every instant")
def rates(reading, judged):
    uses = {}
    for task, policy in _accepted(reading):
        counts = {}
        for step in task.spec["steps"]:
            counts[step["tool"]] = counts.get(step["tool"], 0) + 1
        for tool, count in counts.items():
            if tool in (policy.get("rates") or {}):
                # All sessions of a principal together, and so each of them; a restart begins anew.
                key = (reading.life_of(task.accepted), _principal(reading, task), tool, *policy["rates"][tool])
                uses.setdefault(key, []).append((*_moments(reading, task), count, task))
    for (_, _, tool, burst, period), taken in uses.items():
        taken.sort(key=lambda use: use[1])
        for first in range(len(taken)):
            total = 0
            for last in range(first, len(taken)):
                total += taken[last][2]
                judged()
                begin = min(use[0] for use in taken[first : last + 1])
                allowed = burst + (taken[last][1] - begin + SLACK) * burst / period
                if total > allowed + SLACK:
                    numbers = tuple(use[3].accepted for use in (taken[first], taken[last]))
                    span = taken[last][1] - begin
                    expected = f"at most {allowed:.2f} uses of {tool} in {span:.3f} s ({burst} in {period} s)"
                    yield Broken(numbers, expected, f"{total} were accepted")


@invariant("a session has no more live tasks than it may")
def capacity(reading, judged):
    most = reading.limits.get("max_tasks_per_session")
    sessions = {}
    for task in reading.tasks.values():
        if task.submits and not task.submits[0].late:
            sessions.setdefault(task.session, []).append(task)
    for tasks in sessions.values() if most is not None else ():
        for task in tasks:
            number = _seq(task.submits)
            judged()
            live = [t for t in tasks if _seq(t.submits) <= number and not (t.finishes and _seq(t.finishes) < number)]
            if len(live) > most:
                numbers = tuple(sorted(other.submits[0].number for other in live))
                yield Broken(numbers, f"at most {most} live tasks in a session", f"{len(live)}")


@invariant("no task is accepted with more steps, risk or tools than it may have")
def risk(reading, judged):
    most = reading.limits.get("max_steps")
    for task in reading.tasks.values():
        if not task.asked:
            continue
        session = reading.sessions.get(task.session)
        policy = reading.policy.get(None if session is None else session.principal)
        steps = task.spec.get("steps") or ()
        number = task.asked[0].answer.number
        judged()
        if most is not None and len(steps) > most:
            yield Broken((task.asked[0].number, number), f"at most {most} steps in a task", f"{len(steps)}")
        if policy is None or session.principal in reading.changing:
            continue
        cap, wanted = policy.get("max_risk"), task.constraints.get("max_risk_level")
        if wanted is not None:
            if policy.get("ceiling") is not None and wanted > policy["ceiling"]:
                yield Broken((number,), f"no max_risk_level above {policy['ceiling']}", f"{wanted} was accepted")
            cap = wanted
        for step in steps:
            tool_risk = reading.risk(step["tool"])
            if tool_risk is None or (policy.get("tools") is not None and step["tool"] not in policy["tools"]):
                yield Broken((number,), f"only the tools of {session.principal}", f"{step['tool']} was accepted")
            elif cap is not None and tool_risk > cap:
                yield Broken((number,), f"no risk above {cap}", f"{step['tool']}, which has {tool_risk}, was accepted")


def _seq(records):
    return records[0].fields["seq"]


def _spans(reading):
    """(principal, entry of the opening, entry until which it was surely open) of each session."""
    for session in reading.sessions.values():
        if not session.opens or session.principal is None:
            continue
        opened = session.opens[0].number
        if session.opens[0].late:
            if session.request is None:
                continue
            # A client that reads slowly may hear of it when it is long over.
            opened = min(opened, session.request.answer.number)
        alive = opened
        for request in session.requests:
            if request.answer is not None and request.code is None and request.method != "session.close":
                alive = max(alive, request.number)
        if session.closes:
            reason = session.closes[0].fields.get("reason")
            life = reading.life_of(opened)
            if reason == SHUTDOWN and life is not None and life.told is not None:
                alive = max(alive, life.told)
            elif reason == CLOSED:
                closing = [r.number for r in session.requests if r.method == "session.close"]
                alive = max([alive, *closing[:1]])
        if session.opens[0].late and alive == opened:
            # Its client has read late of the opening too, and done nothing since: it may have been over by then.
            continue
        yield session.principal, opened, alive


@invariant("a principal has no more sessions than it may")
def sessions(reading, judged):
    spans = sorted(_spans(reading), key=lambda span: span[1])
    for index, (principal, opened, _) in enumerate(spans):
        most = (reading.policy.get(principal) or {}).get("max_sessions")
        most = reading.limits.get("max_sessions_per_principal") if most is None else most
        if most is None:
            continue
        judged()
        open_ = [
            begun
            for who, begun, alive in spans[: index + 1]
            if who == principal and (alive > opened or begun == opened)
        ]
        if len(open_) > most:
            yield Broken(tuple(open_), f"at most {most} sessions of {principal}", f"{len(open_)}")


def _served_at(other, client):
    """Whether it is sure to have been served when the client came: what it asked after that was executed."""
    return any(request.result is not None and request.number > client.opened for request in other.requests)


@invariant("there are no more connections than there may be")
def connections(reading, judged):
    most = reading.limits.get("max_connections")
    clients = sorted(reading.clients.values(), key=lambda client: client.opened)
    for index, client in enumerate(clients) if most is not None else ():
        judged()
        served = [other for other in clients[: index + 1] if _served_at(other, client)]
        # A few more are taken of principals that have none, so that nobody can keep everybody else out.
        alone = sum(other.principal == client.principal for other in served) <= 1
        if len(served) > most + (FOR_OTHERS if alone or client not in served else 0):
            numbers = tuple(other.opened for other in served)
            yield Broken(numbers, f"at most {most} connections are served", f"{len(served)}")


@invariant("a line is on no longer, and off no shorter, than its limit says")
def times(reading, judged):
    """Judged at the device: the moments at which the level of a line has changed."""
    for limit in reading.terms.get("times") or ():
        off, on = None, None
        for entry in reading.levels:
            if (entry.what["bus"], entry.what["line"]) != (limit["bus"], limit["line"]):
                continue
            if entry.what["value"] != 1:
                if on is not None:
                    yield from _too_long(reading, limit, on, entry.at, judged)
                    off, on = entry, None
            elif on is None:
                on = entry
                judged()
                if off is not None and entry.at - off.at < limit["min_off_s"] - SLACK:
                    expected = f"line {limit['line']} of {limit['bus']} off for {limit['min_off_s']} s"
                    yield Broken(
                        (off.number, entry.number), expected, f"it is on again after {entry.at - off.at:.3f} s"
                    )
        if on is not None:
            yield from _too_long(reading, limit, on, reading.ends_at, judged)


def _too_long(reading, limit, on, until, judged):
    """The line was on until then: that must be no longer than it may, unless there was no daemon, or no device."""
    due = on.at + limit["max_on_s"] + limit["bound_s"] + SLACK
    life = reading.life_of(on.number)
    ended = None if life is None else life.ended_at if life.told_at is None else life.told_at
    if life is None or (ended is not None and ended <= due) or _troubled(reading, limit["bus"], on.at, due):
        return
    judged()
    if until > due:
        expected = f"line {limit['line']} of {limit['bus']} on for {limit['max_on_s']} s at most"
        yield Broken((on.number,), expected, f"it was on for {until - on.at:.3f} s")
