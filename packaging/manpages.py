"""Writes the manual pages hearth(1), hearthd(8) and hearth.toml(5) from what they describe.

    python packaging/manpages.py DIRECTORY

The commands' options come from their own definitions (click, argparse), the configuration's keys from
docs/reference/config.md, which a test compares with the code. So no page is kept here, and none can be out of date.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from roff import escaped, literal, markdown, quoted

from hearth._version import __version__
from hearth.actors.daemon import options_parser
from hearth.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]

_SHARED = {"--to", "--socket", "--json", "--help"}
"""What each command takes, and the page says once."""

_ENVIRONMENT = {
    "HEARTH_ADDRESS": "Where the daemon is, unless --to says so.",
    "HEARTH_SOCKET": "The daemon's socket, unless --socket says so or HEARTH_ADDRESS is set.",
    "HEARTH_TRACEBACK": "Set to 1: show the traceback of a bug in the command itself.",
    "NO_COLOR": "Set: no colours.",
}
_DAEMON_ENVIRONMENT = {
    "NOTIFY_SOCKET": "Where a service manager wants to be told of the daemon's state: sd_notify(3).",
    "WATCHDOG_USEC": "With WATCHDOG_PID: how often it wants a sign of life. hearthd gives three in that time, "
    "while its event loop and the writer of its audit log answer.",
    "LISTEN_FDS": "With LISTEN_PID: the Unix socket that a service manager has opened for it, sd_listen_fds(3).",
    "RUNTIME_DIRECTORY": "Where the socket is, unless it was passed or the configuration says where.",
    "STATE_DIRECTORY": "Where the audit log is, unless the configuration says where.",
}
_FILES = {
    "/etc/hearth/hearth.toml": "The configuration of the service: hearth.toml(5).",
    "/run/hearth/hearth.sock": "The socket of the service.",
    "/var/lib/hearth/audit.log": "Its audit log, which it rotates by itself; beside it the key and the job store.",
}


def head(name: str, section: int, summary: str) -> Iterator[str]:
    """The title and NAME. The date is SOURCE_DATE_EPOCH's, where there is one."""
    day = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0")) or None))
    yield f'.TH {escaped(name)} {section} {day} "hearth {__version__}" "hearth"'
    yield ".SH NAME"
    yield f"{escaped(name)} \\- {escaped(summary)}"


def entries(title: str, table: dict[str, str]) -> Iterator[str]:
    """A section of names, each with what it is."""
    yield f".SH {title}"
    for name, text in table.items():
        yield ".TP"
        yield f"\\fB{escaped(name)}\\fR"
        yield escaped(text)


def prose(text: str | None) -> Iterator[str]:
    """The paragraphs of a help text."""
    for paragraph in click.formatting.wrap_text(text or "", 10_000, preserve_paragraphs=True).split("\n\n"):
        if paragraph.strip():
            yield ".PP"
            yield re.sub(r"\\\(ga(.+?)\\\(ga", r"\\fB\1\\fR", escaped(paragraph))


def hearth() -> Iterator[str]:
    """Make the page of `hearth` from its click commands."""
    yield from head("hearth", 1, "discover, run and watch operations on hardware through hearthd")
    context = click.Context(cli, info_name="hearth")
    yield ".SH SYNOPSIS"
    yield "\\fBhearth\\fR [\\fIoptions\\fR] \\fIcommand\\fR [\\fIargument\\fR ...]"
    yield ".SH DESCRIPTION"
    yield from prose(cli.help)
    yield ".SH OPTIONS"
    yield from _options(cli, context)
    yield ".SH COMMANDS"
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield from _command(command, click.Context(command, info_name=name, parent=context))
    yield from entries("ENVIRONMENT", _ENVIRONMENT)
    yield ".SH SEE ALSO"
    yield ".BR hearthd (8),"
    yield ".BR hearth.toml (5)"


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    path = context.command_path
    if isinstance(command, click.Group):
        yield f".SS {quoted(escaped(path))}"
        yield from prose(command.help)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _command(inner, click.Context(inner, info_name=name, parent=context))
        return
    yield f".SS {quoted(escaped(' '.join((path, *command.collect_usage_pieces(context)))))}"
    yield from prose(command.help)
    yield from _options(command, context)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        shared = context.parent is not None and set(parameter.opts) & _SHARED
        if record is not None and record[1] and not shared:
            yield ".TP"
            yield f"\\fB{escaped(record[0])}\\fR"
            yield escaped(record[1])


def hearthd() -> Iterator[str]:
    """Make the page of `hearthd` from its argument parser."""
    parser = options_parser()
    assert parser.description is not None
    yield from head("hearthd", 8, "the hearth daemon: hardware for agents and programs, safe and audited")
    yield ".SH SYNOPSIS"
    yield escaped(parser.format_usage().removeprefix("usage: "))
    yield ".SH DESCRIPTION"
    yield from prose(parser.description)
    yield from prose(parser.epilog)
    yield ".SH OPTIONS"
    for action in parser._actions:
        takes = f" \\fI{escaped(action.metavar)}\\fR" if isinstance(action.metavar, str) else ""
        yield ".TP"
        yield ", ".join(f"\\fB{escaped(word)}\\fR{takes}" for word in action.option_strings)
        yield escaped(action.help or "")
    yield from entries("FILES", _FILES)
    yield from entries("ENVIRONMENT", _DAEMON_ENVIRONMENT)
    yield ".SH SEE ALSO"
    yield ".BR hearth (1),"
    yield ".BR hearth.toml (5),"
    yield ".BR systemd.exec (5)"


def configuration() -> Iterator[str]:
    """Make the page of hearth.toml from the one in the documentation."""
    page = (ROOT / "docs" / "reference" / "config.md").read_text("utf-8")
    introduction, _, sections = page.partition("\n## ")
    yield from head("hearth.toml", 5, "the configuration of hearthd")
    yield ".SH DESCRIPTION"
    yield from markdown(introduction)
    yield from markdown(f"## {sections}")
    yield ".SH EXAMPLE"
    yield from literal('[board]\nprofile = "rpi5"\n\n[[policy]]\nname = "all"\nmatch = { group = "hearth-users" }')
    yield ".SH SEE ALSO"
    yield ".BR hearth (1),"
    yield ".BR hearthd (8)"


PAGES = {"hearth.1": hearth, "hearthd.8": hearthd, "hearth.toml.5": configuration}


def text(lines: Iterable[str]) -> str:
    """A page. What follows a heading is a paragraph without being told so, and mandoc minds if it is."""
    kept: list[str] = []
    for line in lines:
        if line != ".PP" or not kept[-1].startswith((".SH", ".SS")):
            kept.append(line)
    return "\n".join((*kept, ""))


def main() -> None:
    """Write all pages into a directory."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (directory / name).write_text(text(page()), "utf-8")


if __name__ == "__main__":
    main()
