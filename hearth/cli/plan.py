"""`hearth plan`: prepare a plan, show it, approve or reject it, and execute it. `hearth approve`: decide what waits.

A plan is shown as it will run, with what each step changes. Approving reads the plan again, and approves exactly what
it has shown: the client computes the hash from that.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import trio
from attrs import asdict

from hearth.cli import common
from hearth.cli.common import Options, interruptible, session, standard
from hearth.cli.tasks import Reference, exit_code, hold, read_plan, task_lines
from hearth.errors import ApprovalRequired, InvalidParams, MethodNotFound, PermissionDenied, PlanStale
from hearth.hcp import is_installed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth import Client
    from hearth.api import Plan, PlanSummary
    from hearth.client.session import ClientSession
    from hearth.errors import RpcError

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


def _show(options: Options, plan: Plan) -> None:
    click.echo(common.compact(asdict(plan)) if options.json else "\n".join(plan_lines(plan)))


async def _find(opened: ClientSession, plan_id: str) -> Plan:
    """Return a plan that this principal may see. Raises PlanStale."""
    try:
        return await opened.plan(plan_id)
    except PlanStale:
        reason = "it has expired, or is not shown to this user; see `hearth plan list`"
        raise PlanStale(f"there is no plan {plan_id}: {reason}") from None


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
    """Reject the plan ID, withdraw one of your own, or take back your approval of it."""
    async with session(options) as (_client, opened):
        taken_back = await opened.reject(plan_id, reason=reason)
    answer = {"plan_id": plan_id, "approved": False, "taken_back": taken_back}
    click.echo(common.compact(answer) if options.json else "approval taken back" if taken_back else "rejected")


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


# --- the command approve: plans and jobs ------------------------------------------------------------------------------


@click.command(name="approve")
@click.argument("approval_id", metavar="[ID]", required=False)
@click.option("--yes", is_flag=True, help="Do not ask: for a plan, with the --hash of what was read.")
@click.option("--hash", "digest", metavar="HASH", help="Approve only if the plan has this hash.")
@click.option("--reason", metavar="TEXT", help="The reason of the approval, for the audit log.")
@click.option("--reject", metavar="REASON", help="Reject it instead; its author gets the reason.")
@standard
async def approve_waiting(
    options: Options, approval_id: str | None, yes: bool, digest: str | None, reason: str | None, reject: str | None
) -> None:
    """Show the plans and jobs that wait for your approval; with an ID show that one, ask, and approve it.

    A plan is shown with what each step changes, before and after, and exactly what is shown is approved.

    `hearth approvals approve` approves calls in advance, within bounds.
    """
    if reject is not None and (yes or digest is not None or reason is not None):
        raise click.UsageError("--reject has its own reason, and takes no --yes, --hash or --reason")
    if approval_id is None:
        if yes or digest is not None or reason is not None or reject is not None:
            raise click.UsageError("name what to decide: `hearth approve` lists it, `hearth approve ID` decides it")
        await _list_waiting(options)
        return
    if reject is None and not yes and (options.json or not sys.stdin.isatty()):
        raise click.UsageError(
            "there is no terminal to ask on: read it, then approve with --yes, a plan also with --hash"
        )
    async with session(options) as (client, opened):
        found = None
        with suppress(PlanStale):
            found = await opened.plan(approval_id)
        job = None if found is not None else await _waiting_job(client, approval_id, unseen=yes or reject is not None)
        if found is not None and reject is None:
            _require_hash(found, yes=yes, digest=digest)
        elif job is not None and digest is not None:
            raise click.UsageError("--hash is for plans, and this is a job: leave it out")
        if not options.json:
            shown = plan_lines(found) if found is not None else _job_lines(job)
            click.echo("\n".join(shown), nl=bool(shown))
        if reject is None and not yes:
            answer = await trio.to_thread.run_sync(click.confirm, "\nApprove this?", abandon_on_cancel=True)
            if not answer:
                raise click.Abort
        missing = 0
        if found is None:
            await _decide_job(client, approval_id, job, approve=reject is None, reason=reject or reason)
        elif reject is not None:
            await opened.reject(found, reason=reject)
        else:
            missing = await opened.approve(found, reason=reason)
    told = {"id": approval_id, "kind": "job" if found is None else "plan", "approved": reject is None}
    rest = f"; {missing} more must approve it" if missing else ""
    words = f"approved{rest}" if reject is None else "rejected"
    click.echo(common.compact({**told, "missing": missing}) if options.json else words)


def _require_hash(found: Plan, *, yes: bool, digest: str | None) -> None:
    """Raise unless a plan is what was read: click.UsageError without its hash, PlanStale with another one."""
    if yes and digest is None:
        cure = f"`hearth plan show {found.plan_id}` prints it"
        raise click.UsageError(f"--yes approves a plan unseen: say with --hash which content you have read; {cure}")
    if digest is not None and digest != found.hash:
        raise PlanStale(f"the plan {found.plan_id} has the hash {found.hash}, not that of --hash: read it again")


async def _waiting_jobs(client: Client) -> Sequence[Mapping[str, Any]]:
    """Return the jobs that wait for this principal's approval; none where it may not approve, or no jobs are served."""
    if not is_installed():
        return []
    try:
        return await client.pending_approvals()
    except (MethodNotFound, PermissionDenied):
        return []


async def _waiting_job(client: Client, approval_id: str, *, unseen: bool) -> Mapping[str, Any] | None:
    """Return a job that waits; None for another one that is decided `unseen`. Raises PlanStale."""
    for each in await _waiting_jobs(client):
        if each.get("approval_id") == approval_id:
            return each
    if not unseen:
        raise _gone(approval_id)
    return None


async def _decide_job(
    client: Client, approval_id: str, job: Mapping[str, Any] | None, *, approve: bool, reason: str | None
) -> None:
    try:
        await client.decide(approval_id, approve=approve, reason=reason)
    except (InvalidParams, MethodNotFound, PermissionDenied) as error:
        if job is not None:
            raise
        raise _gone(approval_id, error) from None


def _gone(approval_id: str, error: RpcError | None = None) -> PlanStale:
    """Return the error for what does not wait, with the reason if the daemon's refusal of a decision has one."""
    given = (error.data or {}).get("reason") if isinstance(error, InvalidParams) else None
    why = f": {str(given).partition(': ')[2]}" if given is not None else ""
    return PlanStale(f"nothing that you may decide waits as {approval_id}{why}; `hearth approve` lists what does")


def _job_lines(job: Mapping[str, Any] | None) -> list[str]:
    """Return a job that waits as text: whose it is, until when, and the lines with which the daemon shows it."""
    if job is None:
        return []
    facts = {"by": job.get("principal"), "expires": job.get("expires_at")}
    state = click.style("waiting", fg=STATES["waiting"], bold=True)
    head = [f"{state}  {common.clean(str(job.get('approval_id')))}", *common.fields(facts, indent="  "), ""]
    return head + [common.clean(str(line)) for line in job.get("shown", ())]


async def _list_waiting(options: Options) -> None:
    async with session(options) as (client, opened):
        plans = []
        for each in await opened.plans():
            if each.may_approve:
                with suppress(PlanStale):  # it may have ended since
                    plans.append(await opened.plan(each.plan_id))
        jobs = await _waiting_jobs(client)
    if options.json:
        click.echo(common.compact({"plans": [asdict(each) for each in plans], "jobs": list(jobs)}))
        return
    shown = [plan_lines(each) for each in plans] + [_job_lines(each) for each in jobs]
    click.echo("\n\n".join("\n".join(lines) for lines in shown) or "nothing waits for you")
