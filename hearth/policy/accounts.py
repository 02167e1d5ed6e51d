"""The check that the users and groups which policy conditions name exist on this machine.

A name that is misspelt would match nobody without a word. Numbers (`uid`, `gid`) are taken as they are.
"""

from __future__ import annotations

import grp
import pwd
from typing import TYPE_CHECKING

from hearth.suggestions import suggest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.policy.rules import PolicyEntry


def unknown_accounts(entries: Iterable[PolicyEntry]) -> list[str]:
    """A sentence for each user or group that a condition names and the machine's user database does not have."""
    return [
        said
        for entry in entries
        for match in entry.match
        for said in (
            _unknown(entry.name, "user", match.user, "uid"),
            _unknown(entry.name, "group", match.group, "gid"),
        )
        if said is not None
    ]


def _unknown(policy: str, key: str, name: str | None, number: str) -> str | None:
    if name is None or _exists(key, name):
        return None
    said = suggest(name, _names(key), show=repr)
    cure = f"{said} Else create the {key}" if said else f"create the {key}"
    return f"policy {policy!r}: match.{key}: this machine has no {key} {name!r}; {cure}, or give its number as {number}"


def _exists(key: str, name: str) -> bool:
    try:
        if key == "user":
            pwd.getpwnam(name)
        else:
            grp.getgrnam(name)
    except (KeyError, ValueError):  # ValueError: a NUL or half a character, which no name has
        return False
    return True


def _names(key: str) -> list[str]:
    return [one.pw_name for one in pwd.getpwall()] if key == "user" else [one.gr_name for one in grp.getgrall()]
