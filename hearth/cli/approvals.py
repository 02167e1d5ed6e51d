"""`hearth approvals`: what waits for a person (plans and jobs), and what a person has approved in advance.

What a person decides about is shown in the daemon's words first. A plan is approved exactly as it was shown: the client
computes the hash from that.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click
import trio
from attrs import asdict, frozen

from hearth.cli import common
from hearth.cli.common import Options, session, standard
from hearth.cli.plan import STATES, plan_lines
from hearth.cli.standing_approvals import give
from hearth.errors import HearthError, InvalidParams, MethodNotFound, PermissionDenied, PlanStale, RpcError
from hearth.hcp import is_installed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hearth import Client
    from hearth.api import Plan
    from hearth.client.session import ClientSession

COLUMNS = ("approval", "left", "by", "permits")


@frozen
class Item:
    """A plan or a job that waits, or an approval in advance (`standing`): what a person can decide about."""

    kind: Literal["plan", "job", "standing"]
    id: str
    document: Mapping[str, Any]
    lines: Sequence[str]
    approve: Callable[..., Awaitable[int | None]] | None
    """Returns how many more persons must approve it."""
    reject: Callable[..., Awaitable[bool | None]]
    """Returns True if only the person's own approval was taken back."""

    @property
    def json(self) -> dict[str, Any]:
        """Return the item for a program: its kind, and the members that the daemon gives."""
        return {"kind": self.kind, "approval_id": self.id, **self.document}


def _plan(opened: ClientSession, plan: Plan) -> Item:
    decisions = partial(opened.approve, plan), partial(opened.reject, plan)
    return Item("plan", plan.plan_id, asdict(plan), plan_lines(plan), *decisions)


def _job(client: Client, approval_id: str, job: Mapping[str, Any]) -> Item:
    decisions = partial(client.decide, approval_id, approve=True), partial(client.decide, approval_id, approve=False)
    return Item("job", approval_id, job, job_lines(job), *decisions)


def _standing(opened: ClientSession, given: Mapping[str, Any]) -> Item:
    approval_id = given["approval_id"]

    async def revoke(*, reason: str | None) -> None:
        if reason is not None:
            raise click.UsageError("--reason is for plans and jobs, and this was approved in advance: leave it out")
        await opened.revoke_approval(approval_id)

    head = f"{click.style('approved in advance', fg='green', bold=True)}  {common.clean(approval_id)}"
    facts = {name: given.get(name) for name in ("by", "times", "left", "expires_at", "reason")}
    lines = [head, *common.fields(facts, indent="  "), "", common.clean(str(given["text"]))]
    return Item("standing", approval_id, given, lines, None, revoke)


def job_lines(job: Mapping[str, Any]) -> list[str]:
    """Return a job that waits as text: whose it is, until when, and the lines with which the daemon shows it."""
    facts = {"by": job.get("principal"), "expires": job.get("expires_at")}
    state = click.style("waiting", fg=STATES["waiting"], bold=True)
    head = [f"{state}  {common.clean(str(job.get('approval_id')))}", *common.fields(facts, indent="  "), ""]
    return head + [common.clean(str(line)) for line in job.get("shown", ())]


async def _plans(opened: ClientSession) -> list[Item]:
    found = []
    for each in await opened.plans():
        if each.may_approve:
            with suppress(PlanStale):  # it may have ended since
                found.append(_plan(opened, await opened.plan(each.plan_id)))
    return found


async def _jobs(client: Client) -> list[Item]:
    """Return the jobs that wait for this principal's approval; none where it may not approve, or no jobs are served."""
    if not is_installed():
        return []
    try:
        return [_job(client, str(job.get("approval_id")), job) for job in await client.pending_approvals()]
    except (MethodNotFound, PermissionDenied):
        return []


async def _in_advance(opened: ClientSession) -> list[Item]:
    return [_standing(opened, given) for given in await opened.standing_approvals()]


def _unseen(client: Client, approval_id: str) -> Item:
    """Return a job that is not shown here: the daemon's refusal of a decision says why it does not wait."""

    async def decide(*, approve: bool, reason: str | None) -> None:
        try:
            await client.decide(approval_id, approve=approve, reason=reason)
        except (InvalidParams, MethodNotFound, PermissionDenied) as error:
            raise _gone(approval_id, error) from None

    return Item("job", approval_id, {}, (), partial(decide, approve=True), partial(decide, approve=False))


async def _find(client: Client, opened: ClientSession, approval_id: str) -> Item | None:
    with suppress(PlanStale):
        return _plan(opened, await opened.plan(approval_id))
    others = [*await _jobs(client), *await _in_advance(opened)]
    return next((item for item in others if item.id == approval_id), None)


def _gone(approval_id: str, error: RpcError | None = None) -> PlanStale:
    """Return the error for what does not wait, with the reason if the daemon's refusal of a decision has one."""
    given = (error.data or {}).get("reason") if isinstance(error, InvalidParams) else None
    why = f": {str(given).partition(': ')[2]}" if given is not None else ""
    return PlanStale(f"nothing that you may decide waits as {approval_id}{why}; `hearth approvals list` has the rest")


@click.group()
def approvals() -> None:
    """Show, approve and reject what waits for a person: plans and jobs; approve calls in advance, within bounds.

    `hearth approve ID` is short for `hearth approvals approve ID`.
    """


@approvals.command(name="list")
@standard
async def listed(options: Options) -> None:
    """List the plans and jobs that wait for you, and the approvals in advance: yours, for you, or yours to revoke."""
    async with session(options) as (client, opened):
        waiting = [*await _plans(opened), *await _jobs(client)]
        standing = await _in_advance(opened)
    if options.json:
        click.echo(common.compact([item.json for item in (*waiting, *standing)]))
        return
    given = [item.document for item in standing]
    rows = [(one["approval_id"], f"{one['left']} of {one['times']}", one["by"], one["text"]) for one in given]
    blocks = [*(item.lines for item in waiting), *([common.table(COLUMNS, rows)] if rows else [])]
    click.echo("\n\n".join("\n".join(lines) for lines in blocks) or "there is none")


@approvals.command()
@click.argument("approval_id", metavar="ID")
@standard
async def show(options: Options, approval_id: str) -> None:
    """Show the plan or job that waits as ID, or the approval in advance ID."""
    async with session(options) as (client, opened):
        item = await _find(client, opened, approval_id)
    if item is None:
        raise _gone(approval_id)
    click.echo(common.compact(item.json) if options.json else "\n".join(item.lines))


@approvals.command()
@click.argument("approval_id", metavar="[ID]", required=False)
@click.option("--yes", is_flag=True, help="Do not ask: for a plan, with the --hash of what was read.")
@click.option("--hash", "digest", metavar="HASH", help="Approve only if the plan has this hash.")
@click.option("--for", "call", metavar="CALL", help='In advance: a tool and its args: "servo.move ARM 0..90".')
@click.option("--times", type=click.IntRange(1, 1000), metavar="N", help="In advance: how many steps it permits.")
@click.option("--within", metavar="TIME", help="In advance, for how long: 90s, 10m, 2h; a day at most.")
@click.option("--principal", metavar="WHO", help="In advance, for whom, such as uid:1001; you by default.")
@click.option("--reason", metavar="TEXT", help="The reason of the approval, for the audit log.")
@click.option("--reject", metavar="REASON", hidden=True)
@standard
async def approve(options: Options, approval_id: str | None, **given: Any) -> None:
    """Show the plan or job that waits as ID, ask, and approve exactly what is shown. Without ID, show all that wait.

    With --for it approves calls in advance, and shows first what CALL would permit. In CALL, words without a name are
    the args that the tool requires, in their order. Each arg has a value, a range of numbers (0..90, 10.., ..5), or *
    for any. An arg that is not named may not be there.
    """
    _require_consistent(approval_id, **given)
    if approval_id is None and given["call"] is None:
        await _show_waiting(options)
    elif given["reject"] is not None:
        await _decide(options, str(approval_id), approve=False, reason=given["reject"])
    elif not given["yes"] and (options.json or not sys.stdin.isatty()):
        show = f"`hearth approvals show {common.clean(str(approval_id))}`"
        cure = f"read it with {show}, then approve with --yes, a plan also with its --hash"
        raise click.UsageError(
            f"there is no terminal to ask on: {cure if approval_id else '--yes stands for the answer'}"
        )
    elif approval_id is None:
        bounds = {name: given[name] for name in ("call", "within", "times", "principal", "reason")}
        await give(options, confirmed=partial(confirmed, yes=given["yes"]), **bounds)
    else:
        decision = {name: given[name] for name in ("yes", "digest", "reason")}
        await _decide(options, approval_id, approve=True, **decision)


_IN_ADVANCE = ("times", "within", "principal")


def _require_consistent(approval_id: str | None, call: str | None, **given: Any) -> None:
    """Raise click.UsageError for options of `approve` that exclude each other, or lack one."""
    named = {name for name, value in given.items() if value not in (None, False)}
    if call is not None and (approval_id is not None or named & {"digest", "reject"}):
        cure = "leave one out (a time is --within)"
        raise click.UsageError(f"--for names a CALL to approve in advance, and takes no ID, --hash or --reject: {cure}")
    if call is not None and not named >= {"times", "within"}:
        raise click.UsageError("--for needs --times N and --within TIME: an approval in advance has bounds")
    if call is None and named & set(_IN_ADVANCE):
        raise click.UsageError("--times, --within and --principal are of an approval in advance: say --for which CALL")
    if "reject" in named and named != {"reject"}:
        raise click.UsageError("--reject has its own reason, and takes no --yes, --hash or --reason")
    if approval_id is None and call is None and named:
        cure = "`hearth approvals list` shows it, `hearth approvals approve ID` decides it"
        raise click.UsageError(f"name what to decide: {cure}")


@approvals.command()
@click.argument("approval_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="The reason, which its author gets.")
@standard
async def reject(options: Options, approval_id: str, reason: str | None) -> None:
    """Reject the plan or job ID, withdraw a plan of yours, take back your approval, or revoke one given in advance.

    What a revoked approval has let begin goes on.
    """
    await _decide(options, approval_id, approve=False, reason=reason)


async def _show_waiting(options: Options) -> None:
    async with session(options) as (client, opened):
        plans, jobs = await _plans(opened), await _jobs(client)
    if options.json:
        click.echo(common.compact({"plans": [one.document for one in plans], "jobs": [one.document for one in jobs]}))
    else:
        click.echo("\n\n".join("\n".join(one.lines) for one in (*plans, *jobs)) or "nothing waits for you")


async def _decide(
    options: Options,
    approval_id: str,
    *,
    approve: bool,
    reason: str | None,
    yes: bool = False,
    digest: str | None = None,
) -> None:
    async with session(options) as (client, opened):
        item = await _find(client, opened, approval_id)
        if item is None and approve and not yes:
            raise _gone(approval_id)
        item = item or _unseen(client, approval_id)
        decide = _approval(item, yes=yes, digest=digest) if approve else item.reject
        for line in () if options.json else item.lines:
            click.echo(line)
        await confirmed(yes=yes or not approve)
        answer = await decide(reason=reason)
    told: dict[str, Any] = {"id": approval_id, "kind": item.kind, "approved": approve, "missing": 0}
    if approve:
        told["missing"] = answer or 0
        words = f"approved; {answer} more must approve it" if answer else "approved"
    else:
        told["taken_back"] = bool(answer)
        words = "approval taken back" if answer else "revoked" if item.kind == "standing" else "rejected"
    click.echo(common.compact(told) if options.json else words)


def _require_waiting(item: Item) -> None:
    """Raise PlanStale and PermissionDenied for a plan about which to ask this person would be in vain."""
    if item.document["state"] != "waiting":
        raise PlanStale(f"the plan {item.id} is {item.document['state']}, and waits for no approval")
    if not item.document["may_approve"]:
        reason = "others must give it, you have given it already, or a halt came"
        raise PermissionDenied(f"the plan {item.id} waits, and your approval does not count: {reason}")


def _approval(item: Item, *, yes: bool, digest: str | None) -> Callable[..., Awaitable[int | None]]:
    """Return what approves the item. Raises click.UsageError, and PlanStale if a plan is not the one that was read."""
    if item.approve is None:
        raise click.UsageError(f"{item.id} was approved in advance; `hearth approvals reject {item.id}` revokes it")
    if item.kind == "plan" and not yes:
        _require_waiting(item)
    if item.kind == "plan" and yes and digest is None:
        cure = f"`hearth approvals show {item.id}` prints it"
        raise click.UsageError(f"--yes approves a plan unseen: say with --hash which content you have read; {cure}")
    if digest is not None and item.kind == "job" and item.document:
        raise click.UsageError("--hash is for plans, and this is a job: leave it out")
    if digest is not None and digest != item.document.get("hash", digest):
        raise PlanStale(f"the plan {item.id} has the hash {item.document['hash']}, not that of --hash: read it again")
    return item.approve


async def confirmed(*, yes: bool) -> None:
    """Ask the person, unless `yes`. Raises HearthError if the answer is no."""
    if not yes and not await trio.to_thread.run_sync(click.confirm, "\nApprove this?", abandon_on_cancel=True):
        raise HearthError("the answer was no: nothing was approved, and nothing was rejected")
