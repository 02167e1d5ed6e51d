"""What all subcommands share: where the daemon is, a session with it, signals, and how an error is told.

It owns the exit codes of failures and the form of an error. It knows no command, and prints no result.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
import trio
from attrs import frozen

from hearth._util.exceptions import unwrapped
from hearth._version import __version__
from hearth.cli import render
from hearth.client.connection import Client, connect
from hearth.errors import CarrierError, ConfigError, HearthError, RpcError
from hearth.transport.address import looked_up, named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from hearth.client.session import ClientSession
    from hearth.transport.address import Address, NamedBy

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3

CURES = {
    "RPC_SESSION_INVALID": "the session has ended (closed, or idle for too long), or it is another user's",
    "RPC_TASK_NOT_FOUND": "the session keeps its last tasks only; `hearth audit tail` has what became of older ones",
    "RPC_TOOL_NOT_FOUND": "`hearth tools` lists what there is",
    "INVALID_PARAMS": "`hearth tools NAME` shows what a tool takes",
}
"""By an error's symbol: what the daemon's own message does not say."""

JOB_CURES = {
    "RPC_SESSION_INVALID": "`hearth hcp jobs` lists yours that are still remembered",
    "RPC_PERMISSION_DENIED": "`hcp` in the daemon's [[policy]] says who may do what",
    "METHOD_NOT_FOUND": "it may be older than HCP, or have it turned off: [hcp] serve = false",
}
"""The same for the commands of `hearth hcp`, to whom a session is a job."""

DEVICE_EFFECTS = {
    "none": "nothing has happened to the hardware",
    "done": "it happened nonetheless",
    "unknown": "whether it happened is not known",
}


@frozen
class Options:
    """The global options, wherever on the command line they stood."""

    where: str
    named_by: NamedBy
    json: bool

    @property
    def address(self) -> Address:
        """Where the daemon is. Raises ConfigError; a command that needs no daemon does not care."""
        return named(self.where, self.named_by)


def _options(context: click.Context, to: str | None, socket: str | None, *, as_json: bool) -> Options:
    before = context.obj or {}
    as_json = as_json or before.get("json", False)
    to, socket = to or before.get("to"), socket or before.get("socket")
    if to and socket and not _same(to, socket):
        raise click.UsageError("--to and --socket name two daemons; leave one of them out")
    if to:
        return Options(to, "--to", as_json)
    if socket:
        return Options(socket, "--socket", as_json)
    return Options(*looked_up(os.environ, os.geteuid()), as_json)


def _same(to: str, socket: str) -> bool:
    try:
        return named(to, "--to") == named(socket, "--socket")
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def standard(work: Callable[..., int | Awaitable[int | None] | None]) -> Callable[..., None]:
    """Make a command's function out of one that takes Options first and returns its exit code (None: 0).

    An async function is run by `interruptible`.
    It gets --to, --socket and --json; an error that hearth or the system raised becomes a message and a code.
    """

    @click.option("--to", metavar="ADDRESS", help="The daemon's address, such as ssh://pi.")
    @click.option("--socket", metavar="PATH", help="The daemon's socket.")
    @click.option("--json", "as_json", is_flag=True, help="Answer with JSON.")
    @wraps(work)
    def run(to: str | None, socket: str | None, as_json: bool, **arguments: Any) -> None:
        context = click.get_current_context()
        options = _options(context, to, socket, as_json=as_json)
        try:
            done = work(options, **arguments)
            code = interruptible(lambda: done) if isinstance(done, Awaitable) else done
        except BrokenPipeError:
            code = nobody_reads()
        except (HearthError, OSError) as error:
            code = report(options, error)
        context.exit(code or DONE)

    return run


def nobody_reads() -> int:
    """Whoever read our output has gone, as in `hearth tools | head -1`: be silent; returns the exit code for it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + signal.SIGPIPE


def report(options: Options, error: HearthError | OSError) -> int:
    """Tell of a failure; returns the exit code that goes with it."""
    if options.json:
        click.echo(render.compact({"error": error_json(error)}))
    else:
        for line in error_lines(error):
            click.echo(line, err=True)
    if isinstance(error, CarrierError):
        return UNREACHABLE
    return USAGE if isinstance(error, ConfigError) else FAILED


def error_json(error: HearthError | OSError) -> dict[str, Any]:
    """An error for a program: the wire's code, message and data; without a code where there was no wire."""
    if isinstance(error, RpcError):
        return {**error.to_wire(), "symbol": error.symbol}
    return {"message": _message(error)}


def error_lines(error: HearthError | OSError) -> list[str]:
    """An error for a person: what and where, what became of the world, what to do."""
    first, *more = _message(error).splitlines() or [type(error).__name__]
    head = click.style("hearth:", fg="red", bold=True)
    lines = [f"{head} {render.clean(first)}", *(f"{head} {render.clean(line)}" for line in more)]
    if isinstance(error, RpcError):
        lines[0] += click.style(f"  ({error.symbol} {error.code})", dim=True)
        effect = DEVICE_EFFECTS.get(str((error.data or {}).get("effect")))
        if effect is not None:
            lines.append(f"        effect: {effect}")
        cure = _cures().get(error.symbol)
        if cure is not None:
            lines.append(f"        {cure}")
    return lines


def _cures() -> Mapping[str, str]:
    """Those of the command that is run."""
    context = click.get_current_context(silent=True)
    return JOB_CURES if context is not None and " hcp " in f"{context.command_path} " else CURES


def _message(error: HearthError | OSError) -> str:
    if isinstance(error, RpcError) and error.message == error.title and error.data:
        # A title says only what kind of error it is.
        reason = error.data.get("reason")
        return f"{error.message}: {reason}" if isinstance(reason, str) else error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def connected(options: Options) -> AbstractAsyncContextManager[Client]:
    """A connection. Raises CarrierError: nobody there."""
    return connect(options.address)


@asynccontextmanager
async def session(options: Options) -> AsyncIterator[tuple[Client, ClientSession]]:
    """A connection and a session on it, which ends with this context, or with this process if that is killed.

    Raises CarrierError (nobody there, or nobody who answers) and what session.open is answered with.
    """
    async with (
        connect(options.address) as client,
        client.open_session(client_name="hearth", client_version=__version__) as opened,
    ):
        yield client, opened


def interruptible(work: Callable[[], Awaitable[int | None]]) -> int:
    """Run `work`. Ctrl-C (SIGINT), SIGTERM and SIGHUP cancel it, and its session is closed; returns 128 + n then.

    A second signal ends the process at once: the daemon closes the session when it sees the connection end.
    """
    return trio.run(_interruptible, work)


async def _interruptible(work: Callable[[], Awaitable[int | None]]) -> int:
    got: list[int] = []
    scope = trio.CancelScope()

    async def listen() -> None:
        async for number in signals:
            if got:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            got.append(number)
            scope.cancel()

    code: int | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with unwrapped() as body, trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            async with body.watched():
                with scope:
                    code = await work()
            nursery.cancel_scope.cancel()
    return 128 + got[0] if got else code or DONE
