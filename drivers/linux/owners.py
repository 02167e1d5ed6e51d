"""To whom a device node belongs, in names, and whether its group is the way in.

Owns what the three kinds of devices have in common there; the advice itself differs by kind and is given elsewhere.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd


def user_name(uid: int) -> str:
    """A user's name, or the number where it has none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def group_name(gid: int) -> str:
    """A group's name, or the number where it has none."""
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


def kept_by_sandbox(path: str) -> str | None:
    """Why a node that was refused is refused although its owner and mode let this process in, with the cure; else None.

    A rule of the sandbox stands on the node that was there when the daemon started: one that came later is another.
    """
    from hearth.drivers.sandbox import landlock

    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True) or not landlock.in_force():
        return None
    return (
        f"the sandbox keeps hearthd from {path}, which is newer than the daemon or not of its board; for devices that "
        "come back set [sandbox] hotplug = true, and restart hearthd"
    )


def lets_group_in(node: os.stat_result) -> bool:
    """True if members of the node's group may read and write it, and that group is not root's own."""
    return node.st_gid != 0 and node.st_mode & 0o060 == 0o060
