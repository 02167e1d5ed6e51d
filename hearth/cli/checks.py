"""The doctor's checks that need no daemon: the socket as a file, the state directory, the end of the audit log.

Each looks and reports; none changes anything, and none raises for what it finds.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from typing import TYPE_CHECKING, Literal

from attrs import frozen

from hearth.audit.files import backward, parse
from hearth.audit.record import Record, digest
from hearth.directories import whose_hands

if TYPE_CHECKING:
    from pathlib import Path

LAST_RECORDS = 1000
"""How many records at the end of the log are checked; `hearth audit verify` checks all."""


@frozen
class Check:
    """One finding."""

    state: Literal["OK", "WARN", "FAIL"]
    name: str
    finding: str
    cure: str | None = None


def check_socket(path: Path, named_by: str) -> list[Check]:
    """Where the socket is, and whether this user may connect to it."""
    source = "the default" if named_by == "default" else f"from {named_by}"
    try:
        status = path.stat()
    except FileNotFoundError:
        return [Check("WARN", "socket", f"{path} ({source}) does not exist", "a daemon makes it when it starts")]
    except OSError as error:
        cure = f"`namei -l {path}` shows which directory does not let you through"
        return [Check("FAIL", "socket", f"{path} ({source}): {error.strerror}", cure)]
    if not stat.S_ISSOCK(status.st_mode):
        return [Check("FAIL", "socket", f"{path} ({source}) is not a socket", "name the daemon's socket with --socket")]
    owner, group = _user(status.st_uid), _group(status.st_gid)
    mode = stat.S_IMODE(status.st_mode)
    facts = f"{path} ({source}), mode {mode:04o}, user {owner}, group {group}"
    found = []
    if os.access(path, os.W_OK, effective_ids=True):
        found.append(Check("OK", "socket", facts))
    else:
        found.append(Check("FAIL", "socket", f"{facts}: you may not connect", _joining(group, status.st_gid)))
    with contextlib.suppress(OSError):
        hands = whose_hands(path.parent, {os.geteuid(), status.st_uid})
        if hands is not None:
            finding, _, cure = hands.partition("; ")
            found.append(Check("FAIL", "socket", f"{finding}: a socket there may be anybody's", cure))
    if mode & stat.S_IWOTH:
        cure = 'set [server] socket_mode = "0660": whoever may connect has authenticated by that'
        found.append(Check("WARN", "socket", "everybody on this machine may connect", cure))
    return found


def _joining(group: str, gid: int) -> str:
    me = _user(os.geteuid())
    if gid == 0:
        return "the group is root's; give the socket one of its own with [server] socket_group, then join that"
    return f"join its group: sudo usermod -aG {group} {me}, then log in again"


def _user(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _group(gid: int) -> str:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


def check_state(directory: Path) -> Check:
    """Whether a daemon of this user could write its log there."""
    existing = next((path for path in (directory, *directory.parents) if _is_seen(path)), directory)
    if os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        made = "" if existing == directory else " (hearthd makes it)"
        return Check("OK", "state", f"{directory} can be written{made}")
    cure = "a daemon that runs as another user does not need you to; else set [audit] path to a place of yours"
    return Check("WARN", "state", f"{existing} cannot be written by {_user(os.geteuid())}", cure)


def _is_seen(path: Path) -> bool:
    """Whether it is there, as far as this user may look."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def check_log(path: Path, *, expected: bool) -> Check:
    """Whether the last records of the log are chained."""
    try:
        with path.open("rb") as file:
            return _check_end(path, file.fileno())
    except FileNotFoundError:
        if expected:
            return Check("WARN", "log", f"{path} does not exist", "it is made when the daemon first writes to it")
        return Check("OK", "log", f"no audit log at {path}; --config tells where another daemon's is")
    except OSError as error:
        cure = "the log is its daemon's; read it as that user, or name the daemon's --config"
        return Check("WARN", "log", f"{path}: {error.strerror}", cure)


def _check_end(path: Path, fd: int) -> Check:
    cure = f"`hearth audit verify {path}` says more; keep the file as it is"
    after: Record | None = None
    count = 0
    for _, line in backward(fd, os.fstat(fd).st_size):
        if count == LAST_RECORDS:
            break
        if after is None and not line.endswith(b"\n"):
            continue  # being written at this moment, or torn by a crash, which the daemon mends when it starts
        record = parse(line)
        if record is None:
            return Check("FAIL", "log", f"{path}: a line among the last {count + 1} is no record", cure)
        if after is not None and (after["prev"] != digest(line[:-1]) or after["seq"] != record["seq"] + 1):
            return Check("FAIL", "log", f"{path}: record {after['seq']} does not follow from the one before it", cure)
        after = record
        count += 1
    return Check("OK", "log", f"{path}: the last {count} records are chained")
