"""The `hearth` command: its subcommands, its global options, its exit codes.

Each subcommand has its own module, which is imported when the command is invoked. Exit codes: 0 done, 1 the work
failed, 2 usage, 3 the daemon cannot be reached, 128 + n ended by signal n.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from hearth._version import __version__
from hearth.cli.groups import Hearth

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

SECTIONS = {
    "Run": {
        "run": ("hearth.cli.run:run", "Run one tool: hearth run gpio.set line=17 value=1"),
        "signal": ("hearth.cli.signal:signal", "List, read, set, watch signals: hearth signal set PUMP 1"),
        "tools": ("hearth.cli.tools:tools", "List the tools you may use, or show one with its args."),
        "plan": ("hearth.cli.plan:plan", "Prepare several steps, see what they change, run them."),
        "ask": ("hearth.cli.ask:ask", "Ask in words: a model proposes a plan, you decide."),
        "hcp": ("hearth.cli.hcp:hcp", "Submit jobs, follow them, show their outcomes (HCP)."),
        "fleet": ("hearth.cli.fleet:fleet", "Order jobs from many devices over a broker; halt them all."),
    },
    "Watch": {
        "status": ("hearth.cli.status:status", "Show the daemon on one screen; exits with its health."),
        "top": ("hearth.cli.watching:top", "Watch it live: signals, buses, tasks, approvals, halt."),
        "tasks": ("hearth.cli.tasks:tasks", "List the tasks under way; show, watch or cancel one."),
    },
    "Approve": {
        "approvals": ("hearth.cli.approvals:approvals", "Show, approve, reject what waits for you: hearth approve ID"),
    },
    "Stop": {
        "halt": ("hearth.cli.halt:halt", "Stop all effects at once; show or reset the halt."),
    },
    "Look back": {
        "audit": ("hearth.cli.audit:audit", "Read, verify, prove and witness the audit log."),
    },
    "Set up": {
        "demo": ("hearth.cli.demo:demo", "See what hearth does, on a simulated board."),
        "doctor": ("hearth.cli.doctor:doctor", "Check socket, daemon, buses and log, and say what to do."),
        "mcp": ("hearth.cli.mcp:mcp", "Serve MCP to a model's client, or print its configuration."),
        "admin": ("hearth.cli.admin:admin", "Operators' commands: policy, tokens, certificates, support."),
    },
}
"""What people do -> the commands for it."""


@click.group(cls=Hearth, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--to", metavar="ADDRESS", help="The daemon, such as ssh://pi (or HEARTH_ADDRESS).")
@click.option("--socket", metavar="PATH", help="Its socket (or HEARTH_SOCKET; else the default one).")
@click.option("--json", "as_json", is_flag=True, help="Answer with JSON, errors included.")
@click.version_option(__version__, message="hearth %(version)s")
@click.pass_context
def cli(ctx: click.Context, to: str | None, socket: str | None, as_json: bool) -> None:
    """Safe, stable, audited access to real hardware, through the daemon hearthd.

    Each command takes --to, --socket and --json too. Exit codes: 0 done, 1 the work failed, 2 usage, 3 the daemon
    cannot be reached.
    """
    ctx.obj = {"to": to, "socket": socket, "json": as_json}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit the process. An error is one line, never a traceback."""
    sys.excepthook = _report_bug
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show must not abort the command in the middle of its output.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    color = False if os.environ.get("NO_COLOR") else None
    try:
        code = cli.main(argv, prog_name="hearth", standalone_mode=False, color=color)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = 130
    sys.exit(code or 0)


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an unexpected exception as a bug: its name and place in one line, the traceback only on request."""
    if os.environ.get("HEARTH_TRACEBACK"):
        sys.__excepthook__(kind, error, trace)
        return
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119
    sys.stderr.write(
        f"hearth: a bug in hearth: {kind.__name__}: {error}{place}; "
        "please report it with what HEARTH_TRACEBACK=1 shows\n"
    )


if __name__ == "__main__":
    main()
