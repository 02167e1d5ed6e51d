"""Commands under their old names, for this release: where the new one asks for more, or answers otherwise.

See `renamed`.
"""

from __future__ import annotations

import sys

import click

from hearth.cli import common, hcp_view
from hearth.cli.approvals import confirmed
from hearth.cli.common import Options, connected, session, standard
from hearth.cli.hcp import job_command
from hearth.cli.plan import find, show_plan


@click.command()
@click.argument("plan_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--reason", metavar="TEXT", help="The reason, for the audit log.")
@standard
async def approve_plan(options: Options, plan_id: str, yes: bool, reason: str | None) -> None:
    """Show the plan ID, ask, and approve exactly what is shown."""
    if not yes and (options.json or not sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask on: read `hearth plan show`, then approve with --yes")
    async with session(options) as (_client, opened):
        found = await find(opened, plan_id)
        if not options.json:
            show_plan(options, found)
        await confirmed(yes=yes)
        missing = await opened.approve(found, reason=reason)
    rest = f"; {missing} more must approve it" if missing else ""
    answer = {"plan_id": plan_id, "approved": True, "missing": missing}
    click.echo(common.compact(answer) if options.json else f"approved{rest}")


@click.command()
@click.argument("plan_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="The reason, which its author gets.")
@standard
async def reject_plan(options: Options, plan_id: str, reason: str | None) -> None:
    """Reject the plan ID, withdraw one of your own, or take back your approval of it."""
    async with session(options) as (_client, opened):
        taken_back = await opened.reject(plan_id, reason=reason)
    answer = {"plan_id": plan_id, "approved": False, "taken_back": taken_back}
    click.echo(common.compact(answer) if options.json else "approval taken back" if taken_back else "rejected")


@click.command()
@click.argument("approval_id", metavar="ID")
@standard
async def revoke(options: Options, approval_id: str) -> None:
    """Revoke the approval ID: it is not used from now on. What it has let begin goes on."""
    async with session(options) as (_client, opened):
        await opened.revoke_approval(approval_id)
    click.echo(common.compact({"approval_id": approval_id, "revoked": True}) if options.json else "revoked")


@click.command()
@job_command
async def pending_jobs(options: Options) -> None:
    """List the jobs that wait for a person's approval, with inputs and hazards; for principals that may approve."""
    async with connected(options) as client:
        found = await client.pending_approvals()
    if options.json:
        click.echo(common.compact(found))
        return
    if not found:
        click.echo("there is none")
    else:
        click.echo("\n".join(common.table(hcp_view.APPROVALS, hcp_view.approval_rows(found))))
        for each in found:
            name = click.style(common.clean(str(each.get("approval_id"))), bold=True)
            click.echo("\n".join(["", name, *(f"  {common.clean(str(line))}" for line in each.get("shown", ()))]))


@click.command()
@click.argument("approval")
@click.option("--reason", metavar="TEXT", help="The reason, for the audit log.")
@job_command
async def approve_job(options: Options, approval: str, reason: str | None) -> None:
    """Approve the job that waits for APPROVAL."""
    await _decide(options, approval, approve=True, reason=reason)


@click.command()
@click.argument("approval")
@click.option("--reason", metavar="TEXT", help="The reason, which its caller gets.")
@job_command
async def deny_job(options: Options, approval: str, reason: str | None) -> None:
    """Reject the job that waits for APPROVAL."""
    await _decide(options, approval, approve=False, reason=reason)


async def _decide(options: Options, approval: str, *, approve: bool, reason: str | None) -> None:
    async with connected(options) as client:
        if not options.json:
            # What is decided on, as the daemon shows it: a person reads what was answered, also afterwards.
            found = [one for one in await client.pending_approvals() if one.get("approval_id") == approval]
            for line in (str(line) for one in found for line in one.get("shown", ())):
                click.echo(common.clean(line))
        await client.decide(approval, approve=approve, reason=reason)
    word = "approved" if approve else "denied"
    click.echo(common.compact({"approval_id": approval, "approved": approve}) if options.json else word)
