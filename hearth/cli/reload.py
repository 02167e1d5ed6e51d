"""`hearth admin reload`: the daemon reads its policy, tokens and certificates again."""

from __future__ import annotations

import click

from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, session, standard
from hearth.errors import HearthError, InvalidParams


@click.command()
@click.option("--yes", is_flag=True, help="Also if something was removed and by that principals may do more.")
@standard
async def reload(options: Options, yes: bool) -> int:
    """Have the daemon read policy, tokens and certificates again; it needs the right `admin`.

    Sessions whose principal keeps a policy entry go on; the others are closed. A configuration with a fault changes
    nothing, and neither does a policy in which something was removed or changed so that principals may do more, unless
    you say --yes. Exits with 1 if a listener keeps the certificates it had.
    """
    async with session(options) as (_client, opened):
        try:
            answer = await opened.call("policy.reload", **({"yes": True} if yes else {}))
        except InvalidParams as error:
            # The fault is in the daemon's file, not in what was typed here.
            raise HearthError(error.message) from None
    if options.json:
        click.echo(common.compact(dict(answer)))
    else:
        sessions = "1 session" if answer["closed"] == 1 else f"{answer['closed']} sessions"
        click.echo(f"policy entries: {', '.join(answer['entries'])}; {sessions} closed")
        for line in answer.get("allows", ()):
            click.echo(common.clean(f"newly allowed: {line}"))
        for warning in answer.get("warnings", ()):
            click.echo(common.clean(f"warning: {warning}"))
        for section in answer["restart"]:
            click.echo(f"[{section}] has changed, which takes a restart")
        for address in answer.get("certificates_kept", ()):
            click.echo(f"{address} keeps the certificates it had; the daemon's log says why")
    return FAILED if answer.get("certificates_kept") else DONE
