"""`hearth admin completion SHELL`: the script that a shell sources to complete hearth's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(hearth admin completion bash)"          in ~/.bashrc
    zsh:   eval "$(hearth admin completion zsh)"           in ~/.zshrc, after compinit
    fish:  hearth admin completion fish > ~/.config/fish/completions/hearth.fish
    """  # noqa: D301  click keeps lines as they are behind the character, not behind a backslash and a b
    kind = get_completion_class(shell)
    assert kind is not None, "click has a class for each of the three"
    # Not `source()`: it starts a shell to find its version.
    made = kind(ctx.find_root().command, {}, "hearth", "_HEARTH_COMPLETE")
    click.echo(made.source_template % made.source_vars())
