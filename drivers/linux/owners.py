"""To whom a device node belongs, in names, and whether its group is the way in.

Owns what the three kinds of devices have in common there; the advice itself differs by kind and is given elsewhere.
"""

from __future__ import annotations

import contextlib
import grp
import pwd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os


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


def lets_group_in(node: os.stat_result) -> bool:
    """True if members of the node's group may read and write it, and that group is not root's own."""
    return node.st_gid != 0 and node.st_mode & 0o060 == 0o060
