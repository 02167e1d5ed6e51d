"""What must hold of a policy that is read again: no approval outlives the right to it, and nothing widens silently.

The policies are on the tape, each with the moments between which the daemon was asked to read it. Which of them is in
force follows from that and from the rule for reloads, as the design page has it. In between it may be either.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .base import SLACK, Broken, invariant
from .limits import _moments

AGAIN = ("patterns", "rights", "patterns_rates", "approval")
"""What an entry states, and worlds change."""


class Reload(NamedTuple):
    """One reload, and whether it was taken: True, False, or None for what cannot be told."""

    begins: Any
    ends: Any
    former: dict[str, Any] | None
    taken: bool | None
    silent: bool
    """It takes something away, allows something, and was not asked to do so."""


def _stated(value):
    if type(value) is dict:
        return {(name, str(one)) for name, one in value.items()}
    return set(value or ())


def removes(former, new) -> bool:
    """Whether something is in a policy that the other one no longer has."""
    return any(
        key not in new or any(not _stated(entry[name]) <= _stated(new[key][name]) for name in AGAIN)
        for key, entry in former.items()
    )


def allows(former, new) -> bool:
    """Whether a principal may do more by another policy."""
    return any(key not in former or _allows(former[key], entry) for key, entry in new.items())


def _allows(former, entry) -> bool:
    rule, now = former["approval"], entry["approval"]
    less = rule is not None and (
        now is None
        or now["from_risk"] > rule["from_risk"]
        or now["persons"] < rule["persons"]
        or now["other"] < rule["other"]
    )
    more = any(set(entry[name]) - set(former[name]) for name in ("tools", "rights"))
    return less or more or bool(set(former["patterns_rates"]) - set(entry["patterns_rates"]))


def _told(reading):
    """(first entry, last entry, policies one of which is in force between them), and the reloads, in order."""
    spans: list[Any] = []
    reloads = []
    base, force, begun = reading.policy, [reading.policy], None
    starts = [reading.entries[life.begun] for life in reading.lives]
    for entry in sorted([*reading.reloads, *starts], key=lambda one: one.number):
        if entry.kind == "daemon.starts":
            force, begun = [base], None
        elif entry.what["what"] == "begins":
            begun = entry
            force = [*force, entry.what["policy"]]
        elif begun is not None:
            reload = _judged_by_rule(reading, begun, entry, force[:-1])
            reloads.append(reload)
            force = force[:-1] if reload.taken is False or reload.silent else force
            force = [begun.what["policy"]] if reload.taken and not reload.silent else force
            begun = None
        else:
            continue
        spans.append((entry, force))
    return spans, reloads


def _judged_by_rule(reading, begins, ends, force) -> Reload:
    new, former = begins.what["policy"], force[0] if len(force) == 1 else None
    silent = former is not None and not begins.what["yes"] and removes(former, new) and allows(former, new)
    records = [
        record
        for record in reading.log.records
        if record.event == "policy.reload"
        and begins.number < record.number
        and begins.at - SLACK <= reading.log.reported(record) <= ends.at + SLACK
    ]
    asked = [
        request
        for client in reading.clients.values()
        for request in client.requests
        if request.method == "policy.reload" and begins.number < request.number < ends.number
    ]
    answers = [request.answer for request in asked if request.answer is not None]
    taken = True if records or any(answer.error is None for answer in answers) else False if answers else None
    return Reload(begins, ends, former, taken, silent)


def reloads(reading) -> list[Reload]:
    """The reloads of a world, in order."""
    return _told(reading)[1]


def _between(spans, first, last):
    """For each span of time in these, the policies one of which is in force."""
    for at, (entry, force) in enumerate(spans):
        until = spans[at + 1][0].at if at + 1 < len(spans) else float("inf")
        if entry.at <= last + SLACK and until >= first - SLACK:
            yield force


def _has_right(spans, key, first, last) -> bool:
    """Whether this principal could approve at all times from the first to the last."""
    return all(
        any("approve" in (policy.get(key) or {}).get("rights", ()) for policy in force)
        for force in _between(spans, first, last)
    )


def _rules(spans, author, at, risk):
    """The rules for approvals of this principal, one of which is in force; None where it needs none."""
    for force in _between(spans, at, at):
        for policy in force:
            rule = (policy.get(author) or {}).get("approval")
            yield rule if rule is not None and risk >= rule["from_risk"] else None


def lost_rights(reading):
    """(approval, execution, whether its principal could approve all the time) of all approvals of plans that ran."""
    spans, approvals = _told(reading)[0], {}
    for record in reading.log.records:
        if record.event == "plan.approve":
            approvals.setdefault(record.fields["plan_id"], []).append(record)
        elif record.event == "plan.execute":
            at = reading.log.reported(record)
            for one in approvals.get(record.fields["plan_id"], ()):
                yield one, record, _has_right(spans, one.fields["principal"], reading.log.reported(one), at)


def grants(reading, author):
    """Requests that gave this principal an approval in advance."""
    for client in reading.clients.values():
        for request in client.requests:
            given = request.method == "approval.grant" and request.result
            if given and request.params.get("principal") == author:
                yield client.principal, request


def _direct(reading, spans):
    """(task, author, first moment, last moment, rules) of what was submitted without a plan where policies change."""
    for task in reading.tasks.values():
        session = reading.sessions.get(task.session)
        author = None if session is None else session.principal
        if task.asked and author in reading.changing:
            first, last = _moments(reading, task)
            risk = max((reading.risk(step.tool) or 0 for step in task.steps.values()), default=0)
            rules = [rule for at in {first, last} for rule in _rules(spans, author, at, risk)]
            yield task, author, first, last, rules


@invariant("no approval of a person without the right is used")
def rights(reading, judged):
    spans, _ = _told(reading)
    runs: dict[str, tuple[Any, set[str]]] = {}
    for approval, run, has_right in () if reading.log.lost else lost_rights(reading):
        judged()
        _, by = runs.setdefault(run.fields["plan_id"], (run, set()))
        if has_right and approval.fields["principal"] != run.fields["principal"]:
            by.add(approval.fields["principal"])
    for run, by in runs.values():
        risk = max((reading.risk(step.tool) or 0 for step in _steps(reading, run)), default=0)
        rules = [*_rules(spans, run.fields["principal"], reading.log.reported(run), risk)]
        if rules and all(rule is not None and len(by) < rule["persons"] for rule in rules):
            expected = f"plan {run.fields['plan_id']} runs by approvals of principals that may approve until it runs"
            yield Broken((run.number,), expected, f"of those that approved it, only {sorted(by)} may")
    for task, author, _, last, rules in _direct(reading, spans):
        given = [(who, one) for who, one in grants(reading, author) if one.number < task.accepted]
        if given and None not in rules:
            judged()
            if not any(_has_right(spans, who, one.at, last) for who, one in given):
                expected = f"task {task.id} is refused: whoever approved it in advance may not approve any more"
                yield Broken((given[0][1].number, task.accepted), expected, "it is accepted")


def _steps(reading, run):
    task = reading.tasks.get(run.fields["task_id"])
    return () if task is None else task.steps.values()


@invariant("a reload never widens silently")
def widens(reading, judged):
    spans, reloads = _told(reading)
    for reload in reloads:
        judged()
        if reload.silent and reload.taken:
            expected = "a policy that takes something away, and by which a principal may do more, is refused"
            yield Broken((reload.begins.number, reload.ends.number), expected, "it is taken without a yes")
    for task, author, first, last, rules in _direct(reading, spans):
        judged()
        allowed = [policy.get(author, {"tools": ()})["tools"] for at in {first, last}
                   for force in _between(spans, at, at) for policy in force]  # fmt: skip
        tools = {step.tool for step in task.steps.values()}
        given = any(one.number < task.accepted for _, one in grants(reading, author))
        if not any(tools <= set(names) for names in allowed) or (None not in rules and not given):
            expected = f"task {task.id} is refused: no policy that can be in force permits it to {author}"
            yield Broken((task.accepted,), expected, "it is accepted")
