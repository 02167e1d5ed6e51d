"""Which programs of `proc.exec` run: a file that outlives the daemon, so that the next start can end what is left.

Programs end with the launcher that started them, and the launcher with the daemon. What remains is the case in which
the launcher itself is killed: its programs die at once (PR_SET_PDEATHSIG), but not what these have started. So each
program notes its process id and start time here before it executes anything, in a slot of its own; a whole slot is one
write, so a process that is killed leaves a slot whole or untouched. The file is locked for as long as its launcher
lives: who has the lock may end what it names.

What is ended is the group of processes that the program leads, which a confined program cannot leave. A process id can
be another's by then, so a leader must have the start time that was noted, and, where there is no leader any more, a
member must bear what it cannot take off: no_new_privs, or the environment that it was started with.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("hearth.programs")

MARK: Final = "HEARTH_EXEC"
"""Environment variable of every program: the launcher's process id, a slash, and the template's name."""
SLOT: Final = 96
"""Bytes of a slot: a boot's id, a process id, a start time, and room."""
_PATIENCE: Final = 5.0
"""Seconds that the launcher of a daemon that was killed gets to end."""
_PROC: Final = Path("/proc")


def open_record(path: Path, *, make: bool) -> int | None:
    """Open and lock the record; None where there is none and none is to be made. Blocking. Raises ConfigError."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
    try:
        record = os.open(path, flags, 0o600)
    except FileNotFoundError:
        if make:
            raise ConfigError(f"{path}: No such file or directory; see [audit] path") from None
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; remove it") from None
    try:
        if not stat.S_ISREG(os.fstat(record).st_mode):
            raise ConfigError(f"{path}: not a regular file; remove it")
        _lock(record, path)
    except BaseException:
        os.close(record)
        raise
    return record


def _lock(record: int, path: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise ConfigError(f"{path}: another hearthd runs programs with this audit log; stop it first") from None
            time.sleep(0.02)
        else:
            return


def note(record: int, slot: int, pid: int) -> None:
    """Write down that a program runs, by itself and before it executes anything. Raises OSError."""
    started = _stat(pid)[19]
    _write(record, slot, f"{_boot()} {pid} {started}")


def clear(record: int, slot: int) -> None:
    """Write down that a slot's program has ended, with all that it started. Raises OSError."""
    _write(record, slot, "")


def _write(record: int, slot: int, text: str) -> None:
    os.pwrite(record, text.ljust(SLOT - 1).encode() + b"\n", slot * SLOT)


def end_survivors(record: int) -> list[int]:
    """Kill what programs of an earlier run have left, and empty the record; the leaders' process ids."""
    ended = []
    for line in os.pread(record, 1 << 16, 0).decode("utf-8", "replace").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == _boot() and words[1].isdecimal():
            group = int(words[1])
            if _is_left(group, words[2]):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
                    ended.append(group)
                    log.warning("processes %d: a program of an earlier run, killed", group)
    os.ftruncate(record, 0)
    return ended


def _is_left(group: int, started: str) -> bool:
    """Whether the group of processes is the one whose leader started then."""
    try:
        return _stat(group)[19] == started
    except (OSError, IndexError):
        return any(_is_marked(pid) for pid in _members(group))


def _members(group: int) -> Iterator[int]:
    for pid in pids():
        with contextlib.suppress(OSError, IndexError):
            if int(_stat(pid)[2]) == group:
                yield pid


def _is_marked(pid: int) -> bool:
    with contextlib.suppress(OSError):
        if "\nNoNewPrivs:\t1\n" in (_PROC / str(pid) / "status").read_text("utf-8", "replace"):
            return True
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        return any(variable.startswith(f"{MARK}=".encode()) for variable in variables)
    return False


def pids() -> Iterator[int]:
    """All processes that can be seen."""
    return (int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal())


def _stat(pid: int) -> list[str]:
    """What follows the name in /proc/PID/stat: 1 parent, 2 group, 17 threads, 19 start time. Raises OSError."""
    text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    return text.rpartition(")")[2].split()


def parent_and_group(pid: int) -> tuple[int, int]:
    """The parent of a process, and its group. Raises OSError."""
    fields = _stat(pid)
    return int(fields[1]), int(fields[2])


def tasks_of(uid: int) -> int:
    """How many processes and threads a user has, as the kernel counts them for RLIMIT_NPROC."""
    count = 0
    for pid in pids():
        with contextlib.suppress(OSError, IndexError):
            if (_PROC / str(pid)).stat().st_uid == uid:
                count += int(_stat(pid)[17])
    return count


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text("utf-8").strip()
