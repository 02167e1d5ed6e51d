"""Whether this process may use a device node, and the exact commands that give the permission.

Owns the advice about groups and udev rules; changes nothing.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from hearth.drivers.linux.device_users import group_name, lets_group_in, user_name

if TYPE_CHECKING:
    from hearth.drivers.boards.profile import BusKind

GROUPS = {"gpio": "gpio", "i2c": "i2c", "uart": "dialout"}
"""The groups that distributions use for each kind, where they have one."""

_RULES = {
    "gpio": 'SUBSYSTEM=="gpio", KERNEL=="gpiochip*", GROUP="gpio", MODE="0660"',
    "i2c": 'SUBSYSTEM=="i2c-dev", KERNEL=="i2c-[0-9]*", GROUP="i2c", MODE="0660"',
    "uart": 'SUBSYSTEM=="tty", KERNEL=="{node}", GROUP="dialout", MODE="0660"',
}
_SUBSYSTEMS = {"gpio": "gpio", "i2c": "i2c-dev", "uart": "tty"}


@frozen
class Lack:
    """A permission that is lacking: what is the matter, and the commands that mend it, one a line."""

    reason: str
    cure: str


def lack_of(path: str, kind: BusKind) -> Lack | None:
    """What this process lacks to open a node for reading and writing; None if nothing, or if the node is gone."""
    if os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        return None
    try:
        node = Path(path).stat()
    except OSError:
        return None
    user, owner, group = user_name(os.geteuid()), user_name(node.st_uid), group_name(node.st_gid)
    reason = f"{user} may not open {path} ({owner}:{group}, mode {stat.S_IMODE(node.st_mode):04o})"
    if lets_group_in(node):
        return Lack(reason, join(group, user))
    return Lack(reason, "\n".join((*rule(path, kind), join(GROUPS[kind], user))))


def join(group: str, user: str) -> str:
    """The command that makes `user` a member of `group`."""
    return f"sudo usermod -aG {group} {user}   # then log in again"


def rule(path: str, kind: BusKind) -> list[str]:
    """The commands that give a node that is root's alone to the kind's group, now and at each start."""
    group, subsystem = GROUPS[kind], _SUBSYSTEMS[kind]
    text = _RULES[kind].format(node=Path(path).resolve().name)
    return [
        f"sudo groupadd --system --force {group}",
        f"echo '{text}' | sudo tee -a /etc/udev/rules.d/60-hearth.rules",
        f"sudo udevadm control --reload && sudo udevadm trigger --subsystem-match={subsystem}",
    ]
