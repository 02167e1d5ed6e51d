"""`hearth plan`: prepare a plan, show it, approve or reject it, and execute it.

A plan is shown as it will run, with what each step changes. Approving reads the plan again, and approves exactly what
it has shown: the client computes the hash from that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import trio
from attrs import asdict

from hearth.cli import common
from hearth.cli.common import Options, interruptible, session, standard
from hearth.cli.tasks import Reference, brief, exit_code, get_task, hold, read_plan, task_lines
from hearth.errors import ApprovalRequired, PlanStale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.api import Plan
    from hearth.client.session import ClientSession

STEPS = ("#", "tool", "args", "before", "after")
PLANS = ("plan", "state", "risk", "by", "expires", "intent")
STATES = {"waiting": "yellow", "ready": "green", "rejected": "red"}


def plan_lines(plan: Plan) -> list[str]:
    """Return a plan as text: its facts, its steps with what they change, and what it waits for."""
    defaults = {"abort_on_step_failure": True, "on_busy": "wait", "priority": "normal"}
    constraints = {name: value for name, value in plan.constraints.items() if value != defaults.get(name, False)}
    state = click.style(common.clean(plan.state), fg=STATES.get(plan.state), bold=True)
    facts: dict[str, Any] = {"intent": plan.intent, "risk": plan.effective_risk, "by": plan.principal}
    if constraints:
        facts["constraints"] = brief(constraints)
    if plan.needs is not None:
        other = ", not its own" if plan.needs.get("other") else ""
        facts["needs"] = f"{plan.needs.get('persons')} with the right {plan.needs.get('right')!r}{other}"
        facts["approved by"] = ", ".join(plan.approved_by) or "none yet"
    if plan.rejected_by is not None:
        facts["rejected by"] = plan.rejected_by + (f": {plan.reason}" if plan.reason else "")
    if plan.task_id is not None:
        facts["task"] = plan.task_id
    facts |= {"expires": plan.expires_at, "hash": plan.hash}
    lines = [f"{state}  {common.clean(plan.plan_id)}", *common.fields(facts, indent="  "), ""]
    return lines + common.table(STEPS, _rows(plan), indent="  ")


def _rows(plan: Plan) -> list[tuple[str, ...]]:
    rows = []
    for index, step in enumerate(plan.steps):
        shown = [brief(each) if each is not None else "" for each in (step.args, step.before, step.after)]
        rows.append((str(index), step.tool, *shown))
        if step.expect is not None:
            rows.append(("", "expect", brief(step.expect), "", ""))
    return rows


def _show(options: Options, plan: Plan) -> None:
    click.echo(common.compact(asdict(plan)) if options.json else "\n".join(plan_lines(plan)))


async def _find(opened: ClientSession, plan_id: str) -> Plan:
    """Return a plan that this principal may see. Raises PlanStale."""
    for plan in await opened.plans():
        if plan.plan_id == plan_id:
            return plan
    raise PlanStale(f"there is no plan {plan_id}: it has expired, or is not shown to this user; see `hearth plan list`")


@click.group()
def plan() -> None:
    """Prepare what shall run, see what it would change, approve it, execute it.

    A plan runs at most once, and exactly as it was shown: not after its time, and not if what it changes has changed
    since. Whether it needs approval is said by `approval` in the daemon's [[policy]].
    """


@plan.command()
@click.argument("file", metavar="PLAN")
@standard
async def prepare(options: Options, file: str) -> None:
    """Check PLAN, a JSON file (- for stdin) as for `hearth submit`, and show what it would change."""
    task = read_plan(file)
    if "idempotency_key" in task:
        raise click.UsageError("a plan runs once and takes no idempotency_key: leave it out")
    async with session(options) as (_client, opened):
        prepared = await opened.prepare(task.get("intent", ""), task["steps"], **task.get("constraints", {}))
    _show(options, prepared)
    if not options.json:
        hint = "approve" if prepared.state == "waiting" else "execute"
        click.echo(f"next: hearth plan {hint} {prepared.plan_id}", err=True)


@plan.command(name="list")
@standard
async def listed(options: Options) -> None:
    """List your plans, and those of others that wait for your approval."""
    async with session(options) as (_client, opened):
        plans = await opened.plans()
    if options.json:
        click.echo(common.compact([asdict(each) for each in plans]))
    elif not plans:
        click.echo("there is none")
    else:
        click.echo("\n".join(common.table(PLANS, _plan_rows(plans))))


def _plan_rows(plans: Sequence[Plan]) -> list[tuple[str, ...]]:
    return [
        (each.plan_id, each.state, str(each.effective_risk), each.principal, each.expires_at, each.intent)
        for each in plans
    ]


@plan.command()
@click.argument("plan_id", metavar="ID")
@standard
async def show(options: Options, plan_id: str) -> None:
    """Show the plan ID: its steps, what they change, and what it waits for."""
    async with session(options) as (_client, opened):
        _show(options, await _find(opened, plan_id))


@plan.command()
@click.argument("plan_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--reason", metavar="TEXT", help="The reason, for the audit log.")
@standard
async def approve(options: Options, plan_id: str, yes: bool, reason: str | None) -> None:
    """Show the plan ID, ask, and approve exactly what is shown."""
    if not yes and (options.json or not sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask on: read `hearth plan show`, then approve with --yes")
    async with session(options) as (_client, opened):
        found = await _find(opened, plan_id)
        if not options.json:
            _show(options, found)
        if not yes and not await trio.to_thread.run_sync(click.confirm, "\nApprove this?", abandon_on_cancel=True):
            raise click.Abort
        missing = await opened.approve(found, reason=reason)
    rest = f"; {missing} more must approve it" if missing else ""
    answer = {"plan_id": plan_id, "approved": True, "missing": missing}
    click.echo(common.compact(answer) if options.json else f"approved{rest}")


@plan.command()
@click.argument("plan_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="The reason, which its author gets.")
@standard
async def reject(options: Options, plan_id: str, reason: str | None) -> None:
    """Reject the plan ID, or withdraw one of your own."""
    async with session(options) as (_client, opened):
        await opened.reject(plan_id, reason=reason)
    click.echo(common.compact({"plan_id": plan_id, "approved": False}) if options.json else "rejected")


@plan.command()
@click.argument("plan_id", metavar="ID")
@click.option("--wait", "wait_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait for its approval.")
@click.option("--hold", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Keep the session afterwards.")
@standard
def execute(options: Options, plan_id: str, wait_s: float | None, seconds: float | None) -> int:
    """Execute your plan ID, and wait for its task. Exits with 1 if that ends FAILED or CANCELLED."""
    return interruptible(lambda: _execute(options, plan_id, wait_s or 0, seconds))


async def _execute(options: Options, plan_id: str, wait_s: float, seconds: float | None) -> int:
    async with session(options) as (client, opened):
        until = trio.current_time() + wait_s
        while True:
            left_ms = max(0.0, until - trio.current_time()) * 1000
            try:
                task = await opened.execute(plan_id, wait_ms=min(60_000, int(left_ms)))
                break
            except ApprovalRequired:
                if trio.current_time() >= until:
                    raise
        await task.wait()
        reference = Reference(opened.session_id, task.task_id)
        done = await get_task(client, reference)
        click.echo(common.compact(done) if options.json else "\n".join(task_lines(done, str(reference))))
        if seconds is not None:
            await hold(client, reference, seconds)
    return exit_code(done)
