"""What must hold of what needs an approval: it runs as a plan, approved by another, once, and as it was shown."""

from __future__ import annotations

from ..observer_reading import args_hash
from .base import SLACK, Broken, invariant


@invariant("what needs an approval runs only as a plan that another has approved, once, and as it was shown")
def approved(reading, judged):
    if reading.log.lost:
        return
    runs, of_task, approvals = {}, {}, {}
    for record in reading.log.records:
        if record.event == "plan.approve":
            approvals.setdefault(record.fields["plan_id"], []).append(record)
        elif record.event == "plan.execute":
            runs.setdefault(record.fields["plan_id"], []).append(record)
            of_task[record.fields["task_id"]] = record
    shown = _shown(reading)
    for plan_id, records in runs.items():
        judged()
        plan, author = shown.get(plan_id), records[0].fields["principal"]
        if plan is not None and plan["principal"] != author:
            expected = f"only {plan['principal']} executes plan {plan_id}"
            yield Broken((plan["number"], records[0].number), expected, f"{author} does")
        if len(records) > 1:
            yield Broken(tuple(one.number for one in records), f"one execution of plan {plan_id}", str(len(records)))
    yield from _approved_as_shown(reading, shown, judged)
    for task in reading.tasks.values():
        author = task.submits and task.submits[0].fields.get("principal")
        rule = author and author not in reading.changing and (reading.policy.get(author) or {}).get("approval")
        if rule and max(reading.risk(step.tool) or 0 for step in task.steps.values()) >= rule["from_risk"]:
            judged()
            yield from _run_as_plan(reading, task, of_task.get(task.id), rule, approvals, shown)


def _approved_as_shown(reading, shown, judged):
    for client in reading.clients.values():
        for request in client.requests:
            plan = shown.get(request.params.get("plan_id"))
            if request.method != "plan.approve" or not request.result or plan is None:
                continue
            judged()
            if request.params.get("hash") != plan["hash"]:
                expected = f"an approval of plan {request.params['plan_id']} with another hash is refused"
                yield Broken((plan["number"], request.answer.number), expected, "it is answered as given")


def _run_as_plan(reading, task, run, rule, approvals, shown):
    submit = task.submits[0]
    if run is None:
        yield Broken((submit.number,), f"task {task.id} runs as an approved plan", "no plan.execute has its id")
        return
    plan_id, author = run.fields["plan_id"], run.fields["principal"]
    by = {
        record.fields["principal"]
        for record in approvals.get(plan_id, ())
        if record.number <= run.number and record.fields["hash"] == run.fields["hash"]
    }
    if len(by - {author}) < rule["persons"]:
        yield Broken((run.number,), f"plan {plan_id} is approved by another than {author}", f"by {sorted(by)}")
    plan, ran = shown.get(plan_id), [step["args_hash"] for step in submit.fields["steps"]]
    ttl = reading.limits.get("plan_ttl_s")
    if plan is not None and ttl is not None and reading.log.reported(run) > plan["at"] + ttl + SLACK:
        expected = f"plan {plan_id} has expired at {plan['at'] + ttl:.3f} s"
        yield Broken((plan["number"], run.number), expected, f"it is executed at {reading.log.reported(run):.3f} s")
    if plan is not None and (plan["hash"], plan["args"]) != (run.fields["hash"], ran):
        yield Broken((run.number, submit.number), f"plan {plan_id} runs as it was shown", f"{ran}")


def _shown(reading):
    """By plan: who asked for it, when it was shown, its hash, and the hashes of its steps' args, as it was shown."""
    plans = {}
    for client in reading.clients.values():
        for request in client.requests:
            plan = request.result if request.method == "plan.prepare" else None
            if plan:
                args = [args_hash(step["args"]) for step in plan["steps"]]
                plans[plan["plan_id"]] = {
                    "hash": plan["hash"],
                    "args": args,
                    "principal": client.principal,
                    "number": request.answer.number,
                    "at": request.answer.at,
                }
    return plans
