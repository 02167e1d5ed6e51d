"""Puts a process into as much of a systemd unit's cage as can be had without systemd, then runs a command in it.

    python caged.py UNIT COMMAND…

What systemd would do, done by hand from the same lines of the unit: SystemCallFilter= with systemd's own groups,
RestrictAddressFamilies=, RestrictNamespaces=, MemoryDenyWriteExecute=, NoNewPrivileges=, CapabilityBoundingSet= and
UMask=. `prefix` gives the command line, which for root begins with a mount namespace where ProtectSystem=strict holds.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, PR_SET_MDWE = 38, 24, 65
NAMESPACES = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""

_STRICT = 'mount --bind "$1" "$1" && mount -o remount,bind,ro / && shift && exec "$@"'


class Unit:
    """A [Service] section, in which a setting may come several times."""

    def __init__(self, path: Path) -> None:
        self.settings: dict[str, list[str]] = {}
        section = ""
        for line in path.read_text("utf-8").splitlines():
            if line.startswith("["):
                section = line
            elif section == "[Service]" and line and not line.startswith("#"):
                name, _, value = line.partition("=")
                self.settings.setdefault(name, []).append(value)

    def one(self, name: str) -> str:
        """The last value of a setting."""
        return self.settings[name][-1]

    def calls(self) -> set[str]:
        """The system calls that SystemCallFilter= leaves: the first line allows, one that begins with ~ takes away."""
        allowed: set[str] = group("@default")
        for line in self.settings["SystemCallFilter"]:
            names = set().union(*(group(word) for word in line.removeprefix("~").split()))
            allowed = allowed - names if line.startswith("~") else allowed | names
        return allowed


def group(name: str) -> set[str]:
    """A group of system calls by systemd's own word; a call is a group of itself."""
    if not name.startswith("@"):
        return {name}
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, timeout=60, check=True
    )
    words = [line.strip() for line in told.stdout.splitlines()[1:] if line.startswith("    ")]
    return set().union(*(group(word) for word in words if not word.startswith("#")))


def prefix(unit: Path, writable: Path) -> list[str]:
    """What stands before a command that shall run in the cage; only `writable` may be written to, where we are root."""
    caged = [sys.executable, str(Path(__file__)), str(unit)]
    if os.geteuid() != 0:
        return caged
    return ["unshare", "--mount", "sh", "-c", _STRICT, "sh", str(writable), *caged]


def prctl(*arguments: int) -> None:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    padded = (*arguments, 0, 0, 0, 0)[:5]
    if libc.prctl(*map(ctypes.c_ulong, padded)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl{arguments}: {os.strerror(number)}")


def main() -> None:
    """Enter the cage; the process becomes the command."""
    unit = Unit(Path(sys.argv[1]))
    calls = unit.calls()
    import pyseccomp as seccomp  # before there is a filter: it asks ldconfig where the library is

    cage = seccomp.SyscallFilter(seccomp.ERRNO(getattr(errno, unit.one("SystemCallErrorNumber"))))
    checked = {"socket", "clone", "clone3", "unshare", "setns"}
    for name in sorted(calls - checked):
        if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) >= 0:  # else a call of another architecture
            cage.add_rule(seccomp.ALLOW, name)
    for family in unit.one("RestrictAddressFamilies").split():
        cage.add_rule(seccomp.ALLOW, "socket", seccomp.Arg(0, seccomp.EQ, getattr(socket, family)))
    cage.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, NAMESPACES, 0))
    # Its flags are in memory, where a filter cannot look: as systemd does it, whoever tries takes clone instead.
    cage.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    os.umask(int(unit.one("UMask"), 8))
    if os.geteuid() == 0 and not unit.one("CapabilityBoundingSet"):
        for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            prctl(PR_CAPBSET_DROP, capability)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_MDWE, 1)
    cage.load()
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
