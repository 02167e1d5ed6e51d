"""`hearth hcp …`: whole jobs, handed over to a daemon in HCP; what it can do, what came of it, and who allows it.

It owns the short questions: capabilities, jobs, artifacts, approvals. What follows a job is in `hcpjobs`.
"""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any

import click

from hearth.cli import hcpview, render
from hearth.cli.common import Options, connected, standard
from hearth.cli.hcp_new import new
from hearth.cli.hcpjobs import abort, account, submit, watch
from hearth.cli.tools import kind
from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@click.group()
def hcp() -> None:
    """Hand whole jobs over, follow them, and see what came of them (HCP).

    A job names a capability of the daemon and says what is wanted; how it is done is the daemon's business. SESSION is
    what `submit` and `jobs` print.
    """


for command in (new, submit, watch, abort, account):
    hcp.add_command(command)


@hcp.command()
@click.argument("name", required=False)
@standard
async def capabilities(options: Options, name: str | None) -> None:
    """List what this daemon does as a whole job, or show the capability NAME with its schemas."""
    async with connected(options) as client:
        found = await client.capabilities()
    if name is None:
        lines = _overview([_capability(each) for each in found])
        click.echo(render.compact(found) if options.json else "\n".join(lines))
        return
    chosen = [each for each in found if _capability(each).get("name") == name]
    if not chosen:
        raise HearthError(f"there is no capability {name!r} for you here; `hearth hcp capabilities` lists them")
    click.echo(render.compact(chosen[0]) if options.json else "\n".join(_details(chosen[0])))


def _capability(declaration: Mapping[str, Any]) -> Mapping[str, Any]:
    capability: Mapping[str, Any] = declaration.get("capability") or {}
    return capability


def _overview(found: Sequence[Mapping[str, Any]]) -> list[str]:
    if not found:
        return ["there is none that you may use"]
    rows = [
        (
            str(each.get("name")),
            str(each.get("version")),
            str((each.get("safety") or {}).get("risk_ceiling")),
            "asks a person" if (each.get("safety") or {}).get("requires_human_approval") else "-",
            " ".join(str(each.get("description", "")).split()).partition(". ")[0].removesuffix("."),
        )
        for each in found
    ]
    return render.table(("name", "version", "risk", "approval", "description"), rows)


def _details(declaration: Mapping[str, Any]) -> list[str]:
    capability = _capability(declaration)
    safety, constraints = capability.get("safety") or {}, capability.get("constraints") or {}
    lines = [
        click.style(render.clean(f"{capability.get('name')} {capability.get('version')}"), bold=True),
        render.clean(str(capability.get("description", ""))),
        "",
        *render.fields({**safety, **constraints}),
    ]
    schema = capability.get("input_schema") or {}
    required = schema.get("required", ())
    rows = [
        (name, kind(each), _given(name, each, required), str(each.get("description", "")))
        for name, each in (schema.get("properties") or {}).items()
    ]
    lines += ["", *(render.table(("input", "type", "", "description"), rows) if rows else ["takes no inputs"])]
    outputs = (capability.get("output_schema") or {}).get("properties") or {}
    rows = [(name, kind(each), "", str(each.get("description", ""))) for name, each in outputs.items()]
    lines += ["", *(render.table(("output", "type", "", "description"), rows) if rows else [])]
    if envelope := declaration.get("safety_envelope"):
        facts = hcpview.envelope_facts(envelope)
        lines += ["", click.style("safety envelope", bold=True), *render.fields(facts, indent="  ")]
    return lines


def _given(name: str, schema: Mapping[str, Any], required: Sequence[str]) -> str:
    if "default" in schema:
        return f"else {render.scalar(schema['default'])}"
    return "required" if name in required else ""


@hcp.command()
@standard
async def jobs(options: Options) -> None:
    """List your jobs that the daemon still remembers, the newest first; before them those that wait for an approval.

    One that waits has no session yet: its message id stands there, and `hearth hcp abort` takes it.
    """
    async with connected(options) as client:
        found = await client.jobs()
    if options.json:
        click.echo(render.compact(found))
    elif found:
        click.echo("\n".join(render.table(hcpview.JOBS, hcpview.job_rows(found))))
    else:
        click.echo("there is none")


@hcp.command()
@click.argument("uri")
@click.option("-o", "--output", metavar="FILE", help="Put it there: whole, or not at all.")
@standard
async def artifact(options: Options, uri: str, output: str | None) -> None:
    """Fetch the file at URI, which a job has left behind, and check it against its checksum.

    Without -o it goes to stdout as it is; with --json and no -o, in base64.
    """
    if output is None and not options.json and sys.stdout.isatty():
        raise click.UsageError("a file does not belong on a terminal: name one with -o FILE, or pipe it")

    async with connected(options) as client:
        if output is not None:
            size = await client.artifact_to(uri, output)
            told = {"uri": uri, "file": output, "size_bytes": size}
            click.echo(render.compact(told) if options.json else f"{render.clean(output)}  {size} bytes")
            return
        content = await client.artifact(uri)
    if options.json:
        data = base64.b64encode(content).decode()
        click.echo(render.compact({"uri": uri, "size_bytes": len(content), "data": data}))
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


@hcp.command()
@standard
async def pending(options: Options) -> None:
    """List the jobs that wait for a person's approval, with what they would do; for who may give it."""
    async with connected(options) as client:
        found = await client.pending_approvals()
    if options.json:
        click.echo(render.compact(found))
        return
    if not found:
        click.echo("there is none")
    else:
        click.echo("\n".join(render.table(hcpview.APPROVALS, hcpview.approval_rows(found))))
        for each in found:
            shown = {"inputs": each.get("inputs"), "hazards": each.get("hazard_categories")}
            facts = {name: value for name, value in shown.items() if value}
            name = click.style(render.clean(str(each.get("approval_id"))), bold=True)
            click.echo("\n".join(["", name, *render.fields(facts, indent="  ")]))


@hcp.command()
@click.argument("approval")
@click.option("--reason", metavar="TEXT", help="Why; it stands in the audit log.")
@standard
async def approve(options: Options, approval: str, reason: str | None) -> None:
    """Let the job that waits for APPROVAL be done."""
    await _decide(options, approval, approve=True, reason=reason)


@hcp.command()
@click.argument("approval")
@click.option("--reason", metavar="TEXT", help="Why; its caller is told.")
@standard
async def deny(options: Options, approval: str, reason: str | None) -> None:
    """Have the job that waits for APPROVAL rejected."""
    await _decide(options, approval, approve=False, reason=reason)


async def _decide(options: Options, approval: str, *, approve: bool, reason: str | None) -> None:


    async with connected(options) as client:
        await client.decide(approval, approve=approve, reason=reason)
    word = "approved" if approve else "denied"
    click.echo(render.compact({"approval_id": approval, "approved": approve}) if options.json else word)
