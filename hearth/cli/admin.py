"""`hearth admin`: what an operator needs now and then."""

from __future__ import annotations

import click

from hearth.cli.groups import LazyGroup

SECTIONS = {
    "Commands": {
        "sessions": ("hearth.cli.status:sessions", "List all open sessions: whose they are, and what is open in them."),
        "reload": ("hearth.cli.reload:reload", "Have the daemon read policy, tokens and certificates again."),
        "policy": ("hearth.cli.policy:policy", "Explain what a principal may do, and which entry says so."),
        "token": ("hearth.cli.token:token", "Make a bearer token, and the policy line for it."),
        "tls": ("hearth.cli.tls:tls", "Make and show certificates for a test bench."),
        "attest": ("hearth.cli.attest:attest", "Verify the daemon, its policy and its log by its signed statement."),
        "card": ("hearth.cli.card:card", "Show, validate or fetch an AgentCard: what an agent can do, where."),
        "bundle": ("hearth.cli.bundle:bundle", "Write an archive for support: configuration, checks, state."),
        "connect": ("hearth.cli.connect:connect", "Carry the protocol between stdin, stdout and the daemon."),
        "completion": ("hearth.cli.completion:completion", "Print the completion script for bash, zsh or fish."),
    }
}


@click.group(cls=LazyGroup, sections=SECTIONS)
def admin() -> None:
    """Set up access, certificates and policy, and look into a daemon: for operators."""
