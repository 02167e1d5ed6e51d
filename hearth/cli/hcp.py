"""`hearth hcp …`: the commands for jobs (HCP): submit and follow them, list capabilities.

`submit`, `watch`, `abort` and `account` follow a job. This module checks a job's file before a daemon is contacted, and
decides the effect of Ctrl-C: a job that this command has submitted is aborted in an orderly way, any other job goes on.
"""

from __future__ import annotations

import base64
import sys
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
import trio

from hearth._util.exceptions import unwrapped
from hearth.cli import common, hcp_account, hcp_view
from hearth.cli.common import DONE, FAILED, Options, connected, interruptible, standard
from hearth.cli.hcp_new import new
from hearth.cli.tools import kind
from hearth.errors import HearthError, JobRejected, RpcError
from hearth.hcp import require
from hearth.hcp.codec import read_submission, write_message
from hearth.hcp.messages import Event, MessageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from hearth import Client
    from hearth.client.job_handle import ClientJob
    from hearth.hcp.api import JobResult
    from hearth.hcp.messages import Message


def job_command(work: Callable[..., int | Awaitable[int | None] | None]) -> Callable[..., None]:
    """Make a command's function, as `standard` does, from one that needs the packages for HCP."""

    @wraps(work)
    def checked(options: Options, **arguments: Any) -> int | Awaitable[int | None] | None:
        require("hearth hcp")
        return work(options, **arguments)

    return standard(checked)


NOTE_AFTER = 2.0
"""Seconds without an answer after which a note says what the job may wait for."""
ABORT_TIMEOUT = 15.0
"""Seconds that a job may take to end after Ctrl-C; then the command ends without it."""


@click.command()
@click.argument("file")
@click.option("--watch", "live", is_flag=True, help="Show what happens as it happens.")
@click.option("--detach", is_flag=True, help="Do not wait: print the SESSION once the job is accepted.")
@click.option("--message-id", metavar="ID", help="Submit it as this message: the same one is done once.")
@job_command
def submit(options: Options, file: str, live: bool, detach: bool, message_id: str | None) -> int:
    """Submit the job in FILE (- for stdin), and wait for its end.

    FILE is JSON: a task_submit message of HCP, or its payload alone. A message_id that was submitted before is answered
    with its job, and nothing is done twice.

    Exits with 1 if the job is rejected, fails or is aborted. Ctrl-C aborts it; with --detach it goes on.
    """
    if detach and live:
        raise click.UsageError("--detach does not wait, so there is nothing to watch; use `hearth hcp watch` later")
    document = read_job(file)
    return interruptible(lambda: _submit(options, document, message_id, live=live, detach=detach))


def read_job(name: str) -> Any:
    """Return the task_submit, or its payload, from a file or stdin ("-"). Raises click.UsageError with the cure."""
    where = common.clean("stdin" if name == "-" else name)
    try:
        document = orjson.loads(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
        read_submission(document, now=0)
    except OSError as error:
        raise click.UsageError(f"{where}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"{where}: not JSON: {error}") from None
    except MessageError as error:
        raise click.UsageError(f"{where}: {_cured(error)}") from None
    return document


def _cured(error: MessageError) -> str:
    return common.clean(f"{error}; {error.suggestion}" if error.suggestion else str(error))


async def _submit(options: Options, document: Any, message_id: str | None, *, live: bool, detach: bool) -> int:
    async with connected(options) as client:
        try:
            job = await _handed_over(client, document, message_id)
        except JobRejected as rejected:
            return show_rejection(options, rejected)
        except MessageError as error:
            # The file itself was checked before, so only --message-id can be wrong.
            raise click.UsageError(f"--message-id: {_cured(error)}") from None
        if detach:
            click.echo(common.compact({"session_id": job.session_id}) if options.json else job.session_id)
            return DONE
        try:
            return await _followed(options, job, live=live)
        except BaseException:
            await _abort_quietly(job)
            raise


async def _handed_over(client: Client, document: Any, message_id: str | None) -> ClientJob:
    """Submit the job; if the answer takes more than NOTE_AFTER, print what the job may wait for."""

    async def note_wait() -> None:
        await trio.sleep(NOTE_AFTER)
        waiting: list[dict[str, Any]] = []
        click.echo("note: no answer yet", err=True)
        with suppress(RpcError):
            waiting = [each for each in await client.jobs() if each.get("session_id") is None]
        for each in waiting:
            name = common.clean(str(each.get("message_id")))
            click.echo(f"note: {name} {hcp_view.waits(each)}; `hearth hcp abort {name}` withdraws it", err=True)

    async with unwrapped() as body, trio.open_nursery() as nursery:
        nursery.start_soon(note_wait)
        async with body.watched():
            try:
                job = await client.hand_over(document, message_id=message_id)
            except trio.Cancelled:
                kept = message_id is not None or "message_id" in document
                then = "; `hearth hcp jobs` shows whether it still waits" if kept else ", and is withdrawn"
                click.echo(f"note: it was not accepted yet{then}", err=True)
                raise
        nursery.cancel_scope.cancel()
    return job


async def _abort_quietly(job: ClientJob) -> None:
    """Abort the job after an interruption, and print how it ended, or how to follow it again."""
    result: JobResult | None = None
    with trio.move_on_after(ABORT_TIMEOUT, shield=True), suppress(HearthError):
        # An error here is the end of the connection: the job goes on.
        await job.abort("its caller was interrupted")
        result = await job.wait()
    if result is not None:
        click.echo(f"note: the job has ended {result.state}; `hearth hcp account {job.session_id}` tells", err=True)
    else:
        click.echo(f"note: the job may go on; `hearth hcp watch {job.session_id}` comes back to it", err=True)


@click.command()
@click.argument("session")
@click.option("--from", "from_sequence", type=click.IntRange(min=1), default=1, help="The first event to show.")
@job_command
async def watch(options: Options, session: str, from_sequence: int) -> int:
    """Follow the job of SESSION to its end; exits with 1 if that is FAILED or ABORTED.

    Ctrl-C stops the watching, not the job.
    """
    async with connected(options) as client:
        return await _followed(options, await client.attach_job(session, from_sequence), live=True)


@click.command()
@click.argument("session")
@click.option("--reason", metavar="TEXT", help="The reason, which followers of the job get.")
@job_command
async def abort(options: Options, session: str, reason: str | None) -> int:
    """Abort the job of SESSION, and print ABORTING, or how it has ended already.

    No further step of it begins; a step that has begun on a bus finishes. `hearth hcp watch` waits for the end.

    A job that waits for an approval has no session yet: with its message id, as `hearth hcp jobs` shows it, it is
    withdrawn, and REJECTED is printed.
    """
    async with connected(options) as client:
        if any(each["session_id"] is None and each["message_id"] == session for each in await client.jobs()):
            await client.withdraw(session, reason)
            shown = {"message_id": session, "state": "REJECTED"}
            click.echo(common.compact(shown) if options.json else hcp_view.state("REJECTED"))
            return DONE
        job = await client.attach_job(session)
        try:
            state = await job.abort(reason)
        except JobRejected as rejected:
            return show_rejection(options, rejected)
    shown = {"session_id": job.session_id, "state": state}
    click.echo(common.compact(shown) if options.json else hcp_view.state(state))
    return DONE


@click.command()
@click.argument("session")
@job_command
async def account(options: Options, session: str) -> None:
    """Show the account of the job of SESSION: the request, the decision, what was done, and the outcome.

    For a job that is under way, it is the account so far.
    """
    async with connected(options) as client:
        job = await client.attach_job(session)
        messages = [message async for message in _on_record(job)]
        result = await job.wait() if job.ended else None
    if options.json:
        written = [write_message(message) for message in messages]
        ended = None if result is None else hcp_view.result_json(result)
        click.echo(common.compact({"job": job.entry, "messages": written, "result": ended}))
    else:
        hcp_account.show(job.entry, messages, result)


async def _on_record(job: ClientJob) -> AsyncIterator[Message]:
    """Yield the recorded messages, up to the newest event at the time of the attachment."""
    last = job.entry.get("last_sequence")
    if not isinstance(last, int) or last < 1:
        return
    async for message in job.messages():
        yield message
        # The outcome of an ended job comes before its last event, so it is included.
        if isinstance(message.payload, Event) and message.payload.sequence >= last:
            return


async def _followed(options: Options, job: ClientJob, *, live: bool) -> int:
    if live:
        await _show(job, as_json=options.json)
    result: JobResult = await job.wait()
    lines = [common.compact(hcp_view.result_json(result))] if options.json else hcp_view.result_lines(result)
    click.echo("\n".join(lines))
    return DONE if result.completed else FAILED


async def _show(job: ClientJob, *, as_json: bool) -> None:
    """Show a job's messages as they come: live on a terminal, else as lines or JSON."""
    if sys.stdout.isatty() and not as_json:
        await _show_live(job)
        return
    async for message in job.messages():
        click.echo(common.compact(write_message(message)) if as_json else hcp_view.message_line(message))


async def _show_live(job: ClientJob) -> None:
    # Imported here: rich takes 100 ms, and only watching on a terminal needs it.
    from rich.live import Live
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
    from rich.text import Text

    bar = Progress(SpinnerColumn(), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False))
    task = bar.add_task("", total=None)
    with Live(bar, transient=True, refresh_per_second=8) as shown:
        async for message in job.messages():
            event = message.payload
            if isinstance(event, Event) and event.event_type == "progress":
                percent = event.data.get("percent")
                _kind, words = hcp_view.said(message)
                described = common.clean("  ".join(words[1:] if percent is not None else words))
                bar.update(
                    task,
                    description=described,
                    total=None if percent is None else 100,
                    completed=percent or 0,
                )
            else:
                shown.console.print(Text(hcp_view.message_line(message)))


def show_rejection(options: Options, rejected: JobRejected) -> int:
    """Print why a job was not accepted; return the exit code for it."""
    if options.json:
        members = {
            "reason_code": rejected.reason_code,
            "message": rejected.message,
            "suggestion": rejected.suggestion,
            "assessed_risk_level": rejected.assessed_risk,
        }
        click.echo(common.compact({"error": {name: value for name, value in members.items() if value is not None}}))
        return FAILED
    head = click.style("hearth:", fg="red", bold=True)
    assessed = f", assessed {rejected.assessed_risk}" if rejected.assessed_risk else ""
    code = click.style(f"({rejected.reason_code}{assessed})", dim=True)
    click.echo(f"{head} rejected: {common.clean(rejected.message)}  {code}", err=True)
    if rejected.suggestion:
        click.echo(f"        {common.clean(rejected.suggestion)}", err=True)
    return FAILED


@click.group()
def hcp() -> None:
    """Submit jobs, follow them, and show their outcomes (HCP).

    A job names a capability of the daemon and its inputs, and the daemon does the steps. SESSION is what `submit` and
    `jobs` print.
    """


for each in (new, submit, watch, abort, account):
    hcp.add_command(each)


@hcp.command()
@click.argument("name", required=False)
@job_command
async def capabilities(options: Options, name: str | None) -> None:
    """List the capabilities of this daemon, or show the capability NAME with its schemas."""
    async with connected(options) as client:
        found = await client.capabilities()
    if name is None:
        lines = _overview([_capability(each) for each in found])
        click.echo(common.compact(found) if options.json else "\n".join(lines))
        return
    chosen = [each for each in found if _capability(each).get("name") == name]
    if not chosen:
        raise HearthError(f"there is no capability {name!r} for you here; `hearth hcp capabilities` lists them")
    click.echo(common.compact(chosen[0]) if options.json else "\n".join(_details(chosen[0])))


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
    return common.table(("name", "version", "risk", "approval", "description"), rows)


def _details(declaration: Mapping[str, Any]) -> list[str]:
    capability = _capability(declaration)
    safety, constraints = capability.get("safety") or {}, capability.get("constraints") or {}
    lines = [
        click.style(common.clean(f"{capability.get('name')} {capability.get('version')}"), bold=True),
        common.clean(str(capability.get("description", ""))),
        "",
        *common.fields({**safety, **constraints}),
    ]
    schema = capability.get("input_schema") or {}
    required = schema.get("required", ())
    rows = [
        (name, kind(each), _given(name, each, required), str(each.get("description", "")))
        for name, each in (schema.get("properties") or {}).items()
    ]
    lines += ["", *(common.table(("input", "type", "", "description"), rows) if rows else ["takes no inputs"])]
    outputs = (capability.get("output_schema") or {}).get("properties") or {}
    rows = [(name, kind(each), "", str(each.get("description", ""))) for name, each in outputs.items()]
    lines += ["", *(common.table(("output", "type", "", "description"), rows) if rows else [])]
    if envelope := declaration.get("safety_envelope"):
        facts = hcp_view.envelope_facts(envelope)
        lines += ["", click.style("safety envelope", bold=True), *common.fields(facts, indent="  ")]
    return lines


def _given(name: str, schema: Mapping[str, Any], required: Sequence[str]) -> str:
    if "default" in schema:
        return f"else {common.scalar(schema['default'])}"
    return "required" if name in required else ""


@hcp.command()
@job_command
async def jobs(options: Options) -> None:
    """List your jobs: first those that wait for an approval, then those that the daemon still has, newest first.

    A job that waits has no session yet: its message id is shown instead, and `hearth hcp abort` takes it.
    """
    async with connected(options) as client:
        found = await client.jobs()
    if options.json:
        click.echo(common.compact(found))
    elif found:
        click.echo("\n".join(common.table(hcp_view.JOBS, hcp_view.job_rows(found))))
    else:
        click.echo("there is none")


@hcp.command()
@click.argument("uri")
@click.option("-o", "--output", metavar="FILE", help="Write it to FILE, whole or not at all.")
@job_command
async def artifact(options: Options, uri: str, output: str | None) -> None:
    """Fetch the file at URI, which a job has made, and check it against its checksum.

    Without -o it goes to stdout as it is; with --json and no -o, in base64.
    """
    if output is None and not options.json and sys.stdout.isatty():
        raise click.UsageError("a file does not belong on a terminal: name one with -o FILE, or pipe it")

    async with connected(options) as client:
        if output is not None:
            size = await client.artifact_to(uri, output)
            written = {"uri": uri, "file": output, "size_bytes": size}
            click.echo(common.compact(written) if options.json else f"{common.clean(output)}  {size} bytes")
            return
        content = await client.artifact(uri)
    if options.json:
        data = base64.b64encode(content).decode()
        click.echo(common.compact({"uri": uri, "size_bytes": len(content), "data": data}))
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
