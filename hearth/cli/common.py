"""Shared parts of all subcommands: the daemon's address, a session with it, signals, errors, and values as text.

This module owns the exit codes of failures, the form of an error message, and the layout of values: aligned columns,
lines of name and value, and bytes for a person; JSON for a program. It knows no command.

Text from elsewhere is always shown with its control characters escaped (`clean`), so that no tool's answer and no
file's content can move the cursor or change the window's title.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import signal
import sys
import sysconfig
import textwrap
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
import trio
from attrs import frozen

from hearth import Client, connect
from hearth._util.exceptions import unwrapped
from hearth._util.text import clean as clean
from hearth._version import __version__
from hearth.errors import CarrierError, ConfigError, HearthError, InvalidParams, RpcError, ToolNotFound
from hearth.transport.address import looked_up, named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from hearth.audit.notes import NotAccepted
    from hearth.client.session import ClientSession
    from hearth.transport.address import Address, NamedBy

TOO_DEEP = "nested too deeply to be shown"
_SHOWN_BYTES = 64
_REGISTER = 2
"""Number of bytes up to which a value is more likely a number than letters."""
STATUS_COLOURS = {"SUCCESS": "green", "FAILED": "red", "CANCELLED": "yellow", "RUNNING": "cyan", "CANCELLING": "yellow"}


def compact(value: Any) -> str:
    """Return one line of JSON. A member of an object that orjson reads but cannot write is replaced by a note."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        members = value if isinstance(value, dict) else {}
        return orjson.dumps({name: _writable(member) for name, member in members.items()} or TOO_DEEP).decode()


def _writable(value: Any) -> Any:
    try:
        return orjson.Fragment(orjson.dumps(value))
    except TypeError:
        return TOO_DEEP


def pretty(value: Any) -> str:
    """Return JSON over several lines."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def status(word: str) -> str:
    """Return a status in its colour."""
    return click.style(clean(word), fg=STATUS_COLOURS.get(word), bold=True)


def width() -> int | None:
    """Return the columns of the terminal on stdout; None without a terminal: lines are then not wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> list[str]:
    """Return the lines of a table with aligned columns. The last column wraps at the terminal's edge, uncut."""
    headers = [clean(header) for header in headers]
    cells = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max([len(header), *(len(row[i]) for row in cells)]) for i, header in enumerate(headers)]
    before = len(indent) + sum(size + 2 for size in widths[:-1])
    columns = width()
    room = None if columns is None else max(columns - before, 20)
    padded = [header.ljust(size) for header, size in zip(headers[:-1], widths[:-1], strict=True)]
    lines = [indent + "  ".join(click.style(header, bold=True) for header in [*padded, headers[-1]])]
    for row in cells:
        start = indent + "".join(cell.ljust(size) + "  " for cell, size in zip(row[:-1], widths[:-1], strict=True))
        last = [row[-1]] if room is None else textwrap.wrap(row[-1], room) or [""]
        lines.append(_coloured(start + last[0]).rstrip())
        lines += [" " * before + more for more in last[1:]]
    return lines


def _coloured(line: str) -> str:
    return re.sub(r"\b(SUCCESS|FAILED|CANCELLED|RUNNING)\b", lambda match: status(match[0]), line, count=1)


def fields(values: Mapping[str, Any], *, binary: frozenset[str] = frozenset(), indent: str = "") -> list[str]:
    """Return lines of names and values; a nested object is below its name, a list or object of objects is a table.

    `binary` names the members that are base64: their decoded bytes are shown. Bytes that a result has in several forms
    are shown in hex and as text only.
    """
    shown = {**values}
    if (forms := forms_of_bytes(values)) is not None:
        del shown["data"]
        shown.update({"hex": " ".join(textwrap.wrap(forms["hex"], 2))} if "hex" in forms else {})
    lines: list[str] = []
    longest = max((len(clean(name)) for name, value in shown.items() if _rows(value) is None), default=0)
    for name, value in shown.items():
        label = indent + click.style(clean(name), bold=True)
        rows = _rows(value)
        if rows:
            lines += [label, *_tables(rows, indent + "  ")]
        elif rows is not None:
            lines += [label, *fields(value, indent=indent + "  ")]
        else:
            first, *more = shown_bytes(value) if name in binary and isinstance(value, str) else _lines(value)
            lines.append(f"{label}{' ' * (longest - len(clean(name)))}  {first}".rstrip())
            lines += [f"{indent}  {line}" for line in more]
    return lines


def forms_of_bytes(values: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the members `hex` and `text` if at least one is there and they are the bytes of `data`; else None."""
    forms = {name: values[name] for name in ("hex", "text") if values.get(name)}
    try:
        content = base64.b64decode(values["data"], validate=True)
        same = {"hex": content.hex(), "text": content.decode(errors="replace")}
    except (KeyError, TypeError, ValueError):
        return None
    return forms if forms and all(same[name] == form for name, form in forms.items()) else None


def _lines(value: Any) -> list[str]:
    """Return a value as one line; a text of several lines begins below its name."""
    line = clean(scalar(value))
    lines = line.splitlines()
    return ["", *lines] if len(lines) > 1 else [line.rstrip("\n")]


def _tables(rows: Sequence[Mapping[str, Any]], indent: str) -> list[str]:
    """Return a table of rows, and below it a table for each member of a row that has rows itself."""
    columns = dict.fromkeys(key for row in rows for key in row)
    inner = [key for key in columns if any(_is_table(row.get(key)) for row in rows)]
    outer = [key for key in columns if key not in inner]
    lines = table(outer, [[scalar(row.get(key)) for key in outer] for row in rows], indent=indent) if outer else []
    for row in rows:
        for key in filter(row.get, inner):
            title = click.style(clean(f"{key}{_of(row, outer)}"), bold=True)
            lines += [indent + title, *_tables(_rows(row[key]) or [], indent + "  ")]
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(_rows(value))


def _of(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the row to which an inner table belongs, in words: by its first column."""
    return f" of {columns[0]} {scalar(row[columns[0]])}" if columns and columns[0] in row else ""


def _rows(value: Any) -> list[Mapping[str, Any]] | None:
    """Return a value as the rows of a table; [] for an object to be shown as fields; None for a value of one line."""
    if isinstance(value, list):
        return value if any(value) and all(isinstance(item, Mapping) for item in value) else None
    if not isinstance(value, Mapping) or not value:
        return None
    if len(value) > 1 and all(isinstance(item, Mapping) and item for item in value.values()):
        return [{"name": name, **item} for name, item in value.items()]
    return []


def scalar(value: Any) -> str:
    """Return a value as one line: strings bare, None as "-", lists and flat objects joined by commas, else JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and _flat(value):
        return ", ".join(scalar(item) for item in value) or "-"
    if isinstance(value, Mapping) and _flat(value.values()):
        return ", ".join(f"{name} {scalar(item)}" for name, item in value.items()) or "-"
    return "-" if value is None else compact(value)


def _flat(items: Iterable[Any]) -> bool:
    return not any(isinstance(item, (list, Mapping)) for item in items)


def shown_bytes(data: str) -> list[str]:
    """Return lines with the bytes that base64 stands for: text as text, other bytes in hex; first their number."""
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError:  # binascii.Error is one
        return [clean(data)]
    count = f"{len(content)} byte{'' if len(content) == 1 else 's'}"
    text = _as_text(content)
    if text is not None:
        return [count, *(clean(line) for line in text.splitlines())]
    if len(content) <= _SHOWN_BYTES // 4:
        return [f"{content.hex(' ')}  ({count})" if content else count]
    shown = content[:_SHOWN_BYTES]
    rest = len(content) - len(shown)
    lines = [shown[at : at + 16].hex(" ") for at in range(0, len(shown), 16)]
    return [count, *lines, *([f"… and {rest} more; --json has them all"] if rest else [])]


def _as_text(content: bytes) -> str | None:
    """Return `content` as text if it is printable, else None: two bytes of a register are seldom letters."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) > _REGISTER and all(c.isprintable() or c in "\n\t\r" for c in text) else None


DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3

NOTICE_S = 3.0
"""Seconds without an answer after which a command says what it waits for."""


@asynccontextmanager
async def telling(says: Callable[[float], str]) -> AsyncIterator[None]:
    """Print on stderr, every NOTICE_S until the block ends, what `says` returns for the seconds so far, if anything."""

    async def tell() -> None:
        began = trio.current_time()
        while True:
            await trio.sleep(NOTICE_S)
            if said := says(trio.current_time() - began):
                click.echo(clean(said), err=True)

    async with unwrapped() as body, trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        async with body.watched():
            yield
        nursery.cancel_scope.cancel()


CURES = {
    "RPC_SESSION_INVALID": "the session has ended (closed, or idle for too long), or it is another user's",
    "RPC_TASK_NOT_FOUND": "the session keeps its last tasks only; `hearth audit tail` has the outcome of older ones",
    "RPC_TOOL_NOT_FOUND": "`hearth tools` lists what there is",
    "INVALID_PARAMS": "`hearth tools NAME` shows what a tool takes",
}
"""Error symbol -> advice that the daemon's own message does not have."""

SIGNAL_CURES = CURES | {"INVALID_PARAMS": "`hearth signal list` shows names, units and limits"}
"""The same for the commands of `hearth signal`."""

JOB_CURES = {
    "RPC_SESSION_INVALID": "`hearth hcp jobs` lists yours that are still remembered",
    "RPC_PERMISSION_DENIED": "`hcp` in the daemon's [[policy]] says who may do what",
    "METHOD_NOT_FOUND": "it may be older than HCP, or have it turned off: [hcp] serve = false",
}
"""The same for the commands of `hearth hcp`, for which a session is a job."""

DEVICE_EFFECTS = {
    "none": "nothing has happened to the hardware",
    "done": "it happened nonetheless",
    "unknown": "whether it happened is not known",
}


@frozen
class Options:
    """The global options, given before or after the subcommand."""

    where: str
    named_by: NamedBy
    json: bool

    @property
    def address(self) -> Address:
        """The daemon's address. Raises ConfigError; a command that needs no daemon does not read it."""
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
    """Make a command's function from one that takes Options first and returns its exit code (None: 0).

    The command gets --to, --socket and --json. An async function is run by `interruptible`. A HearthError or OSError
    becomes a message and an exit code.
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
            code = drop_output()
        except click.UsageError as error:
            if not options.json:
                raise
            click.echo(compact({"error": {"message": error.format_message()}}))
            code = USAGE
        except (HearthError, OSError) as error:
            code = report(options, error)
        context.exit(code or DONE)

    return run


def drop_output() -> int:
    """Drop further output after a broken pipe, as in `hearth tools | head -1`; return the exit code for it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + signal.SIGPIPE


def report(options: Options, error: HearthError | OSError) -> int:
    """Print an error; return its exit code."""
    if options.json:
        click.echo(compact({"error": error_json(error)}))
    else:
        for line in error_lines(error):
            click.echo(line, err=True)
    if isinstance(error, CarrierError):
        return UNREACHABLE
    # For a job, whether there is such an artifact or approval is known only to the daemon.
    asked_wrongly = isinstance(error, (InvalidParams, ToolNotFound)) and not _within("hcp")
    return USAGE if asked_wrongly or isinstance(error, ConfigError) else FAILED


def report_refusal(options: Options, error: NotAccepted, **more: str) -> int:
    """Print what was refused by its name, and what else to show; return the exit code."""
    told = {"ok": False, "refused": error.name, "reason": str(error), **more}
    click.echo(compact(told) if options.json else clean("\n\n".join([f"REFUSED  {error}", *more.values()])))
    return FAILED


def error_json(error: HearthError | OSError) -> dict[str, Any]:
    """Return an error for a program: code, symbol, message and data of an RpcError; only the message of others."""
    if isinstance(error, RpcError):
        return {**error.to_wire(), "symbol": error.symbol}
    return {"message": _message(error)}


def error_lines(error: HearthError | OSError) -> list[str]:
    """Return an error for a person: fault and place, the effect on the hardware, and advice."""
    first, *more = _message(error).splitlines() or [type(error).__name__]
    head = click.style("hearth:", fg="red", bold=True)
    lines = [f"{head} {clean(first)}", *(f"{head} {clean(line)}" for line in more)]
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
    """Return the advice for the command that is run."""
    return JOB_CURES if _within("hcp") else SIGNAL_CURES if _within("signal") else CURES


def _within(group: str) -> bool:
    """Return True in the commands of `hearth GROUP`."""
    context = click.get_current_context(silent=True)
    return context is not None and f" {group} " in f"{context.command_path} "


def _message(error: HearthError | OSError) -> str:
    if isinstance(error, RpcError) and error.message == error.title and error.data:
        # The title names only the kind of error.
        reason = error.data.get("reason")
        return f"{error.message}: {reason}" if isinstance(reason, str) else error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def as_typed(command: str) -> str:
    """Return `hearth` or `hearthd` as it can be typed in the shell that started this process: its name, or its path."""
    called = Path(sys.argv[0])
    path = called if called.name == "hearth" else Path(sysconfig.get_path("scripts")) / "hearth"
    path = Path.cwd() / path.with_name(command)
    if not os.access(path, os.X_OK):
        return command
    found = shutil.which(command)
    # `uvx` and `uv run` put the environment of the tool on the PATH, but not on that of the shell.
    if found is not None and "UV" not in os.environ and path.samefile(found):
        return command
    if path.is_relative_to(Path.cwd()):
        inside = path.relative_to(Path.cwd())
        return shlex.quote(str(inside) if len(inside.parts) > 1 else f"./{inside}")
    return shlex.quote(str(path))


def connected(options: Options) -> AbstractAsyncContextManager[Client]:
    """Return a connection to the daemon. Raises CarrierError if none answers."""
    return connect(options.address)


@asynccontextmanager
async def session(options: Options) -> AsyncIterator[tuple[Client, ClientSession]]:
    """Open a connection and a session on it, which ends with this context, or with this process if it is killed.

    Raises CarrierError (no daemon, or no answer) and the RpcError of session.open.
    """
    async with (
        connect(options.address) as client,
        client.open_session(client_name="hearth", client_version=__version__) as opened,
    ):
        yield client, opened


def interruptible(work: Callable[[], Awaitable[int | None]]) -> int:
    """Run `work` and return its exit code. SIGINT (Ctrl-C), SIGTERM and SIGHUP cancel it; the code is then 128 + n.

    The cancelled work closes its session. A second signal ends the process at once: the daemon then closes the session
    when the connection ends.
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
