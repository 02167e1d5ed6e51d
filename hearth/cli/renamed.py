"""The names that commands had before the present ones. In this release each still runs, and stderr names the new one.

Most run as the new command, whose output is the same. Where the new command asks for more, or answers otherwise, the
old one is kept in `renamed_commands`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Renamed(NamedTuple):
    """An old name: its words, the words that replace them, and where the old command is if it is kept."""

    words: str
    new: str
    command: str | None = None
    hint: bool = True


_KEPT = "hearth.cli.renamed_commands:"
_OLD = (
    Renamed("submit", "plan submit"),
    Renamed("get", "tasks show"),
    Renamed("cancel", "tasks cancel"),
    Renamed("watch", "tasks watch"),
    Renamed("tasks", "tasks list"),
    *(
        Renamed(name, f"admin {name}")
        for name in ["sessions", "reload", "policy", "attest", "card", "tls", "token", "bundle", "completion"]
    ),
    Renamed("plan approve", "approvals approve", f"{_KEPT}approve_plan"),
    Renamed("plan reject", "approvals reject", f"{_KEPT}reject_plan"),
    Renamed("hcp pending", "approvals list", f"{_KEPT}pending_jobs"),
    Renamed("hcp approve", "approvals approve", f"{_KEPT}approve_job"),
    Renamed("hcp deny", "approvals reject", f"{_KEPT}deny_job"),
    Renamed("approvals revoke", "approvals reject", f"{_KEPT}revoke"),
    # These two stay: the first is short for a person, and ssh transports of every release run the second.
    Renamed("approve", "approvals approve", hint=False),
    Renamed("connect", "admin connect", hint=False),
)
_BY_WORDS = {one.words: one for one in _OLD}


def find(args: Sequence[str]) -> Renamed | None:
    """Return the old name with which the words of a command line begin; None if they begin with a present one."""
    found = _BY_WORDS.get(" ".join(args[:2])) or _BY_WORDS.get(args[0])
    # `tasks` is a group now; alone, or with options, it was the list.
    grouped = found is not None and found.words == "tasks" and len(args) > 1
    return None if grouped and (args[1][:1] != "-" or args[1] in ("-h", "--help")) else found
