"""`hearth approvals`: approve calls of one tool in advance, within bounds; list and revoke what was approved so.

What a person gives is shown in the daemon's words before it is given. An arg that is not named is not permitted.
"""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click
import trio

from hearth.cli import common
from hearth.cli.common import Options, session, standard
from hearth.cli.tasks import parse_value
from hearth.cli.tools import entry_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS = ("approval", "left", "by", "permits")
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)?\.\.(-?\d+(?:\.\d+)?)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@click.group()
def approvals() -> None:
    """Approve calls in advance, within bounds: so often, for so long; list and revoke that.

    Plans and jobs that wait for you: `hearth approve`.
    """


@approvals.command()
@click.option("--for", "call", required=True, metavar="CALL", help='A tool and its args: "servo.move ARM 0..90".')
@click.option("--times", type=click.IntRange(1, 1000), required=True, metavar="N", help="How many steps it permits.")
@click.option("--within", required=True, metavar="TIME", help="For how long: 90s, 10m, 2h; a day at most.")
@click.option("--principal", metavar="WHO", help="The principal that it is for, such as uid:1001; you by default.")
@click.option("--reason", metavar="TEXT", help="The reason, for the audit log.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@standard
async def approve(
    options: Options, call: str, times: int, within: str, principal: str | None, reason: str | None, yes: bool
) -> None:
    """Show what CALL would permit, ask, and approve it in advance.

    In CALL, words without a name are the args that the tool requires, in their order. Each arg has a value, a range of
    numbers (0..90, 10.., ..5), or * for any. An arg that is not named may not be there.
    """
    if not yes and (options.json or not sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask on: approve with --yes")
    found = re.fullmatch(r"(\d+)([smh])", within)
    if found is None:
        raise click.UsageError(f"--within {common.clean(within)!r}: expected a time such as 90s, 10m or 2h")
    try:
        tool, *words = shlex.split(call)
    except ValueError as error:
        raise click.UsageError(f"--for: {error}: name a tool and its args, such as 'servo.move ARM 0..90'") from None
    async with session(options) as (_client, opened):
        entry = entry_of(await opened.tools(), tool) or {}
        given: dict[str, Any] = {
            "args": read_bounds(words, entry.get("params_schema", {})),
            "times": times,
            "within_s": int(found[1]) * _SECONDS[found[2]],
            "principal": principal,
            "reason": reason,
        }
        shown = await opened.grant_approval(tool, **given, dry_run=True)
        if not options.json:
            click.echo(f"{common.clean(str(shown['text']))}\nLimits, interlocks and the halt hold for each.")
        if not yes and not await trio.to_thread.run_sync(click.confirm, "\nApprove this?", abandon_on_cancel=True):
            raise click.Abort
        approval = await opened.grant_approval(tool, **given)
    approval_id = common.clean(str(approval["approval_id"]))
    hint = f"approved; `hearth approvals revoke {approval_id}` ends it"
    click.echo(common.compact(approval) if options.json else hint)


def read_bounds(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the bounds of args in words; those without a name are the required ones. Raises click.UsageError."""
    properties = schema.get("properties", {})
    bounds: dict[str, dict[str, Any]] = {}
    unnamed = iter(schema.get("required", ()))
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            name, text = next(unnamed, ""), word
        if not name or name in bounds:
            cure = f"say which arg it is, once: KEY={common.clean(text)}"
            raise click.UsageError(f"--for: {common.clean(word)!r}: {cure}")
        only_string = properties.get(name, {}).get("type") == "string"
        span = None if only_string else _RANGE.fullmatch(text)
        if text == "*":
            bounds[name] = {"any": True}
        elif span is not None and text != "..":
            ends = zip(("min", "max"), span.groups(), strict=True)
            bounds[name] = {end: parse_value(number) for end, number in ends if number is not None}
        else:
            bounds[name] = {"equals": parse_value(text, only_string=only_string)}
    return bounds


@approvals.command(name="list")
@standard
async def listed(options: Options) -> None:
    """List the approvals that were given in advance and are in force: yours, for you, or yours to revoke."""
    async with session(options) as (_client, opened):
        given = await opened.standing_approvals()
    if options.json:
        click.echo(common.compact(given))
        return
    rows = [(one["approval_id"], f"{one['left']} of {one['times']}", one["by"], one["text"]) for one in given]
    click.echo("\n".join(common.table(COLUMNS, rows)) if rows else "there is none")


@approvals.command()
@click.argument("approval_id", metavar="ID")
@standard
async def revoke(options: Options, approval_id: str) -> None:
    """Revoke the approval ID: it is not used from now on. What it has let begin goes on."""
    async with session(options) as (_client, opened):
        await opened.revoke_approval(approval_id)
    click.echo(common.compact({"approval_id": approval_id, "revoked": True}) if options.json else "revoked")
