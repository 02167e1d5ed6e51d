"""Processes of this machine: list them, and signal the few that may be signalled.

It owns the safety of signals: process ids are pinned by a pidfd, so that none is mistaken for its successor. Tools,
risk levels and policy decide who may send them.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hearth.drivers.base import BaseDriver
from hearth.errors import DeviceError, PermissionDenied, denied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.drivers.programs import LauncherClient

SortKey = Literal["cpu", "memory", "pid"]

MAX_LISTED = 500
"""Most processes in one answer."""
SIGNALS: Mapping[str, signal.Signals] = {
    name: signal.Signals[name] for name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGKILL", "SIGUSR1", "SIGUSR2")
}
"""Signals that may be sent. SIGSTOP is not among them: a controller that is frozen leaves its outputs driven."""
_ARGV_BYTES = 4096
_STATES = {
    "R": "running", "S": "sleeping", "D": "disk-sleep", "I": "idle", "T": "stopped", "t": "tracing-stop",
    "Z": "zombie", "X": "dead",
}  # fmt: skip


class ProcessDriver(BaseDriver):
    """Lists and signals processes.

    `signal_executables` are programs whose processes may be signalled beside those that `launcher` started;
    `show_argv` lists command lines, which often carry secrets, `show_users` the names of users (draft §13).
    """

    width = 2

    def __init__(
        self,
        *,
        show_argv: bool = False,
        show_users: bool = False,
        signal_executables: Sequence[Path] = (),
        launcher: LauncherClient | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._show_users = show_users
        self._show_argv, self._signal_executables = show_argv, tuple(signal_executables)
        self._launcher, self._proc = launcher, proc
        self._ticks_per_s, self._page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")

    def describe(self) -> Mapping[str, Any]:
        """Return the description of this bus, for health."""
        return {"kind": "processes"}

    def processes(
        self, *, sort: SortKey = "cpu", limit: int = 50, name: str | None = None, user: str | None = None
    ) -> dict[str, Any]:
        """Return the processes that this user may see, the biggest first (by pid: the lowest).

        `name` keeps those whose name contains it, `user` those of one user. At most `limit` rows, never more than
        MAX_LISTED. Raises DeviceError with effect "none" when /proc cannot be read, and PermissionDenied for `user`
        where users are not shown: a match would reveal the name.
        """
        if user is not None and not self._show_users:
            cure = 'leave `user` out, or let the operator add [tools] disclose = ["users"]'
            raise denied(f"user names are not shown here; {cure}")
        users: dict[int, str] = {}
        rows = list(self._rows(users))
        found = [row for row in rows if (name or "") in row["name"] and user in (None, row.get("user"))]
        keys: dict[str, Callable[[dict[str, Any]], Any]] = {
            "cpu": lambda row: (-row["cpu_s"], row["pid"]),
            "memory": lambda row: (-row["rss_bytes"], row["pid"]),
            "pid": lambda row: row["pid"],
        }
        found.sort(key=keys[sort])
        shown = found[: min(limit, MAX_LISTED)]
        if self._show_argv:
            shown = [{**row, "argv": self._argv(row["pid"])} for row in shown]
        return {"processes": shown, "total": len(rows), "matched": len(found), "truncated": len(shown) < len(found)}

    def _rows(self, users: dict[int, str]) -> Iterator[dict[str, Any]]:
        try:
            pids = [int(entry.name) for entry in os.scandir(self._proc) if entry.name.isdecimal()]
        except OSError as error:
            reason = f"{self._proc}: {error.strerror}; is /proc mounted and readable by this user?"
            raise DeviceError(reason, effect="none") from error
        for pid in pids:
            stat = self._stat(pid)
            uid = self._uid(pid)
            if stat is None or uid is None:
                continue  # it ended while we were looking
            comm, fields = stat
            if self._show_users and uid not in users:
                users[uid] = _user_name(uid)
            yield {
                "pid": pid,
                "ppid": int(fields[1]),
                "name": comm,
                **({"user": users[uid]} if self._show_users else {}),
                "state": _STATES.get(fields[0], fields[0]),
                "cpu_s": (int(fields[11]) + int(fields[12])) / self._ticks_per_s,
                "rss_bytes": int(fields[21]) * self._page,
            }

    def _stat(self, pid: int) -> tuple[str, list[str]] | None:
        """Return the name, and the fields after it in /proc/PID/stat: 0 state, 1 ppid, 11 utime, 12 stime, 21 rss."""
        try:
            text = (self._proc / str(pid) / "stat").read_bytes().decode(errors="replace")
        except OSError:
            return None
        head, _, tail = text.rpartition(")")  # the name may hold spaces and parentheses
        return head.partition("(")[2], tail.split()

    def _uid(self, pid: int) -> int | None:
        try:
            text = (self._proc / str(pid) / "status").read_text(errors="replace")
        except OSError:
            return None
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Uid:")), None)

    def _argv(self, pid: int) -> list[str]:
        try:
            with (self._proc / str(pid) / "cmdline").open("rb") as file:
                data = file.read(_ARGV_BYTES)
        except OSError:
            return []
        return data.rstrip(b"\0").decode(errors="replace").split("\0") if data else []

    def send_signal(self, pid: int, name: str) -> dict[str, Any]:
        """Send a signal of SIGNALS to one process.

        The process is pinned before it is checked, so the signal reaches the checked process or none. Raises
        PermissionDenied for a process that may not be signalled, DeviceError with effect "none" when there is none.
        """
        if pid in (1, os.getpid()):
            raise self._denied(pid, "this is hearth itself" if pid == os.getpid() else "this is init")
        try:
            pinned = os.pidfd_open(pid)
        except OSError as error:
            raise DeviceError(f"process {pid}: {error.strerror}", effect="none", data={"pid": pid}) from error
        try:
            if (stat := self._stat(pid)) is None:
                raise ProcessLookupError(pid)
            if self._launcher is None or not self._launcher.signal(pid, name):
                if not self._is_listed(pid):
                    why = "it was not started by proc.exec, and [tools] signal does not list its executable"
                    raise self._denied(pid, why)
                signal.pidfd_send_signal(pinned, SIGNALS[name])
        except ProcessLookupError as error:
            raise DeviceError(f"process {pid} has ended", effect="none", data={"pid": pid}) from error
        except PermissionError as error:
            raise self._denied(pid, "the kernel does not let this user signal it") from error
        finally:
            os.close(pinned)
        return {"pid": pid, "name": stat[0], "signal": name}

    def _is_listed(self, pid: int) -> bool:
        """Return True if it runs a listed executable: the file itself is compared, since names can be chosen freely."""
        with contextlib.suppress(OSError):
            running = (self._proc / str(pid) / "exe").stat()
            for path in self._signal_executables:
                with contextlib.suppress(OSError):
                    if os.path.samestat(running, path.stat()):
                        return True
        return False

    def _denied(self, pid: int, reason: str) -> PermissionDenied:
        return PermissionDenied(f"process {pid} may not be signalled: {reason}", data={"pid": pid, "reason": reason})


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
