"""The `hearth` command: its subcommands, its global options, its exit codes, and `hearth completion`.

Each subcommand has its own module, which is imported when the command is invoked, so that `hearth --help` costs little
more than `import click`. Exit codes: 0 done, 1 the work failed, 2 usage, 3 the daemon cannot be reached, 128 + n ended
by signal n.

`hearth completion SHELL` prints the script that a shell sources to complete hearth's commands and options.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import click

from hearth._util.text import suggest
from hearth._version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from click.shell_completion import CompletionItem

COMMANDS = {
    "demo": ("hearth.cli.demo:demo", "See what hearth is: a real daemon, a real client, a simulated board."),
    "status": ("hearth.cli.status:status", "Show the whole daemon on one screen; the exit code says its health."),
    "top": ("hearth.cli.watching:top", "Watch the whole daemon live: lines, buses, tasks, sessions, approvals, halt."),
    "sessions": ("hearth.cli.status:sessions", "List all open sessions: whose they are, and what is open in them."),
    "tasks": ("hearth.cli.status:tasks", "List the tasks of all sessions that are under way, with their steps."),
    "ask": ("hearth.cli.ask:ask", "Ask in words: a model proposes a plan, you decide, it runs as one task."),
    "tools": ("hearth.cli.tools:tools", "List the tools a session may use, or show one with its schemas."),
    "run": ("hearth.cli.tasks:run", "Run one tool: hearth run gpio.set line=17 value=1"),
    "signal": ("hearth.cli.signal:signal", "List, read, set and watch signals by name: hearth signal set PUMP 1"),
    "submit": ("hearth.cli.tasks:submit", "Submit a plan of several steps and wait for it."),
    "get": ("hearth.cli.tasks:get", "Show a task as it stands."),
    "cancel": ("hearth.cli.tasks:cancel", "Ask a task to stop; what has begun on a bus finishes."),
    "watch": ("hearth.cli.tasks:watch", "Follow a task to its end."),
    "plan": ("hearth.cli.plan:plan", "Prepare, show, approve and execute exactly what runs."),
    "approve": ("hearth.cli.plan:approve_waiting", "Show what waits for an approval; approve or reject one."),
    "approvals": ("hearth.cli.approvals:approvals", "Approve calls in advance, within bounds; list and revoke that."),
    "reload": ("hearth.cli.tasks:reload", "Have the daemon read its policy, tokens and certificates again."),
    "halt": ("hearth.cli.halt:halt", "Stop all effects at once; show or reset the halt."),
    "hcp": ("hearth.cli.hcp:hcp", "Submit jobs, follow them, and show their outcomes (HCP)."),
    "fleet": (
        "hearth.cli.fleet:fleet",
        "Order jobs from many devices over a broker; enrol, watch and halt them.",
    ),
    "connect": ("hearth.cli.connect:connect", "Carry the protocol between stdin, stdout and the daemon, for ssh."),
    "mcp": ("hearth.cli.mcp:mcp", "Serve MCP on stdin and stdout, or print an MCP client's configuration."),
    "card": ("hearth.cli.card:card", "Show, validate or fetch an AgentCard: what an agent can do, and where."),
    "policy": ("hearth.cli.policy:policy", "Explain what a principal may do, and which policy entry says so."),
    "attest": ("hearth.cli.attest:attest", "Verify which daemon, policy and log answers, by its signed statement."),
    "audit": ("hearth.cli.audit:audit", "Verify the audit log, read its end, prove what is in it, or witness it."),
    "doctor": ("hearth.cli.doctor:doctor", "Check socket, daemon, buses and audit log, and say what to do."),
    "bundle": ("hearth.cli.bundle:bundle", "Write an archive for support: configuration, checks, state; no secrets."),
    "tls": ("hearth.cli.credentials:tls", "Make and show certificates for a test bench."),
    "token": ("hearth.cli.credentials:token", "Make a bearer token, and the policy line for it."),
    "completion": ("hearth.cli.main:completion", "Print the completion script for bash, zsh or fish."),
}
"""Name -> module and attribute of the click command, and its line in the help, which is shown without an import."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of `COMMANDS`."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None for an unknown name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names. Raises click.UsageError, with the nearest name or a cure."""
        name = args[0]
        if name not in COMMANDS and name[:1] not in ("-", "") and not ctx.resilient_parsing:
            # A tool's name has a dot, and no command's has.
            cure = f"a tool is run by `hearth run {name}`" if "." in name else suggest(name, COMMANDS)
            ctx.fail(f"there is no command {name!r}; {cure or '`hearth --help` lists them'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands in the help, from `COMMANDS` alone."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions; pressing TAB imports no command."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--to", metavar="ADDRESS", help="The daemon: unix:, tls://, ws://, wss:// or ssh:// (or HEARTH_ADDRESS).")
@click.option("--socket", metavar="PATH", help="The daemon's socket (or HEARTH_SOCKET; else the default one).")
@click.option("--json", "as_json", is_flag=True, help="Answer with JSON, errors included.")
@click.version_option(__version__, message="hearth %(version)s")
@click.pass_context
def cli(ctx: click.Context, to: str | None, socket: str | None, as_json: bool) -> None:
    """Safe, stable, audited access to real hardware.

    The daemon is `hearthd`; the commands here are its clients. Each takes --to, --socket and --json too.

    Exit codes: 0 done, 1 the work failed, 2 usage, 3 the daemon cannot be reached.
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


SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(hearth completion bash)"          in ~/.bashrc
    zsh:   eval "$(hearth completion zsh)"           in ~/.zshrc, after compinit
    fish:  hearth completion fish > ~/.config/fish/completions/hearth.fish
    """  # noqa: D301  click keeps lines as they are behind the character, not behind a backslash and a b
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click has a class for each of the three"
    # Not `source()`: it starts a shell to find its version.
    made = kind(cli, {}, "hearth", "_HEARTH_COMPLETE")
    click.echo(made.source_template % made.source_vars())
