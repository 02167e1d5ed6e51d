"""Checks that need no daemon: its socket as a file, its state directory, its TPM, its extras, the end of its log.

No check changes anything or raises for a finding.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hearth._util.files import ownership_fault
from hearth.audit.files import backward, parse
from hearth.audit.record import Record, digest
from hearth.cli.doctor.check import Check
from hearth.extras import extras_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.config.model import Config


LAST_RECORDS = 1000
"""Number of records at the end of the log that are checked; `hearth audit verify` checks all."""


def check_socket(path: Path, named_by: str) -> list[Check]:
    """Check the socket's file, and that this user may connect to it."""
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
        fault = ownership_fault(path.parent, {os.geteuid(), status.st_uid})
        if fault is not None:
            finding, _, cure = fault.partition("; ")
            found.append(Check("FAIL", "socket", f"{finding}: a socket there may be another user's", cure))
    if mode & stat.S_IWOTH:
        cure = 'set [server] socket_mode = "0660": a user who may connect is authenticated by that'
        found.append(Check("WARN", "socket", "every user of this machine may connect", cure))
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
    """Check that a daemon of this user could write its log in `directory`."""
    existing = next((path for path in (directory, *directory.parents) if _is_seen(path)), directory)
    if os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        made = "" if existing == directory else " (hearthd makes it)"
        return Check("OK", "state", f"{directory} can be written{made}")
    cure = "a daemon that runs as another user does not need you to; else set [audit] path to a place of yours"
    return Check("WARN", "state", f"{existing} cannot be written by {_user(os.geteuid())}", cure)


def check_tpm(tpm: str | None) -> Iterator[Check]:
    """Check that a daemon of this user could use its TPM, if one is configured; nothing is asked of it."""
    if tpm is None:
        return
    if find_spec("tpm2_pytss") is None:
        cure = "apt-get install libtss2-dev pkg-config gcc, and pip install 'hearthd[tpm]'"
        yield Check("FAIL", "tpm", "[attest] tpm: the library tpm2-pytss is not installed", cure)
    device = Path(tpm.removeprefix("device:"))
    if not device.is_absolute():
        yield Check("OK", "tpm", f"{tpm} is no device; hearthd tries it when it starts")
    elif not device.exists():
        cure = "`ls /dev/tpmrm*` shows those that there are; it may be off in the firmware"
        yield Check("FAIL", "tpm", f"{device} does not exist", cure)
    elif not os.access(device, os.R_OK | os.W_OK, effective_ids=True):
        cure = f"put the daemon's user into the group {_group(device.stat().st_gid)}"
        yield Check("WARN", "tpm", f"{device} cannot be used by {_user(os.geteuid())}", cure)
    else:
        yield Check("OK", "tpm", f"{device} can be used")


def check_extras(config: Config) -> Iterator[Check]:
    """Check that the packages of each extra that is configured are installed, where this runs."""
    for extra in extras_of(config.extras):
        if (lack := extra.lack(config)) is not None:
            finding, _, cure = lack.partition("; ")
            yield Check("FAIL" if extra.refuses else "WARN", "extra", finding, cure)


def _is_seen(path: Path) -> bool:
    """Return True if this user can see that `path` exists."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def check_log(path: Path, *, expected: bool) -> Check:
    """Check that the last records of the log are chained."""
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
            continue  # the line is being written, or was cut by a crash; the daemon repairs that when it starts
        record = parse(line)
        if record is None:
            return Check("FAIL", "log", f"{path}: a line among the last {count + 1} is no record", cure)
        if after is not None and (after["prev"] != digest(line[:-1]) or after["seq"] != record["seq"] + 1):
            return Check("FAIL", "log", f"{path}: record {after['seq']} does not follow from the one before it", cure)
        after = record
        count += 1
    return Check("OK", "log", f"{path}: the last {count} records are chained")
