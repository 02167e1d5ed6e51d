"""`hearth plan`: prepare a plan, show it as it will run, with what each step changes, and execute it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import trio
from attrs import asdict

from hearth.cli import common
from hearth.cli.common import Options, interruptible, session, standard
from hearth.cli.submit import read_plan, submit
from hearth.cli.task_view import exit_code, task_lines
from hearth.cli.tasks import Reference, hold
from hearth.errors import ApprovalRequired, PlanStale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.api import Plan, PlanSummary
    from hearth.client.session import ClientSession

PLANS = ("plan", "state", "risk", "by", "expires", "intent")
STATES = {"waiting": "yellow", "ready": "green", "rejected": "red"}


def plan_lines(plan: Plan) -> list[str]:
    """Return a plan as text: its facts, what it waits for, and the lines with which the daemon shows its contents."""
    state = click.style(common.clean(plan.state), fg=STATES.get(plan.state), bold=True)
    facts: dict[str, Any] = {"risk": plan.effective_risk, "by": plan.principal}
    if plan.needs is not None:
        other = ", not its own" if plan.needs.get("other") else ""
        facts["needs"] = f"{plan.needs.get('persons')} with the right {plan.needs.get('right')!r}{other}"
        facts["approved by"] = ", ".join(plan.approved_by) or "none yet"
    if plan.rejected_by is not None:
        facts["rejected by"] = plan.rejected_by + (f": {plan.reason}" if plan.reason else "")
    if plan.task_id is not None:
        facts["task"] = plan.task_id
    facts |= {"expires": plan.expires_at, "hash": plan.hash}
    head = [f"{state}  {common.clean(plan.plan_id)}", *common.fields(facts, indent="  "), ""]
    return head + [common.clean(line) for line in plan.shown]


def show_plan(options: Options, plan: Plan) -> None:
    """Print a plan."""
    click.echo(common.compact(asdict(plan)) if options.json else "\n".join(plan_lines(plan)))


async def find(opened: ClientSession, plan_id: str) -> Plan:
    """Return a plan that this principal may see. Raises PlanStale."""
    try:
        return await opened.plan(plan_id)
    except PlanStale:
        reason = "it has expired, or is not shown to this user; see `hearth plan list`"
        raise PlanStale(f"there is no plan {plan_id}: {reason}") from None


@click.group()
def plan() -> None:
    """Prepare a plan, see what it would change, execute it; or submit it at once.

    A plan runs at most once, and exactly as it was shown: not after its time, and not if what it changes has changed
    since. `approval` in the daemon's [[policy]] decides which plans need approval; `hearth approvals approve ID` gives
    it.
    """


@plan.command()
@click.argument("file", metavar="PLAN")
@standard
async def prepare(options: Options, file: str) -> None:
    """Check PLAN, a JSON file (- for stdin) as for `hearth plan submit`, and show what it would change."""
    task = read_plan(file)
    if "idempotency_key" in task:
        raise click.UsageError("a plan runs once and takes no idempotency_key: leave it out")
    async with session(options) as (_client, opened):
        prepared = await opened.prepare(task.get("intent", ""), task["steps"], **task.get("constraints", {}))
    show_plan(options, prepared)
    if not options.json:
        hint = "approvals approve" if prepared.state == "waiting" else "plan execute"
        click.echo(f"next: hearth {hint} {prepared.plan_id}", err=True)


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


def _plan_rows(plans: Sequence[PlanSummary]) -> list[tuple[str, ...]]:
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
        show_plan(options, await find(opened, plan_id))


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
        reference = Reference(opened.session_id, task.task_id)
        done = await task.show()
        click.echo(common.compact(done) if options.json else "\n".join(task_lines(done, str(reference))))
        if seconds is not None:
            await hold(client, reference, seconds)
    return exit_code(done)


plan.add_command(submit)
