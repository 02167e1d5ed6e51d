"""A watch over the system calls of a daemon's event loop: strace, attached to its main thread alone.

It sees each call that names a path or a descriptor, with the file behind the descriptor. What a disk can hold up is a
call on a file of a disk's file system: `on_disk` drops sockets, pipes and the file systems of the kernel itself.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

import pytest
from support.hearthd import eventually

_KERNEL = ("/proc", "/sys", "/dev")
_CALL = re.compile(r"(\w+)\((?:\w*(?:<([^>]*)>)?(?:, )?)?(?:\"([^\"]*)\")?")


class LoopTracer:
    """Attached on entry, detached on exit; then `on_disk` has the calls."""

    def __init__(self, pid: int, directory: Path) -> None:
        if shutil.which("strace") is None:
            pytest.skip("strace is not here (Debian: apt-get install strace)")
        self._pid = pid
        self._file = directory / "strace"
        self._said = directory / "strace.stderr"

    def __enter__(self) -> Self:
        # No -f: the other threads are not slowed down.
        traced = "trace=%file,%desc"
        command = ["strace", "-q", "-y", "-s", "200", "-e", traced, "-o", str(self._file), "-p", str(self._pid)]
        with self._said.open("wb") as said:
            self._strace = subprocess.Popen(command, stderr=said)
        status = Path(f"/proc/{self._pid}/status")
        eventually(lambda: "TracerPid:\t0\n" not in status.read_text() or self._strace.poll() is not None, "strace")
        if self._strace.poll() is not None:
            pytest.skip(f"strace cannot attach here: {self._said.read_text().strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._strace.send_signal(signal.SIGINT)
        self._strace.wait(60)

    def on_disk(self) -> list[str]:
        """The calls on files of disks, in their order."""
        return [line for line in self._file.read_text(errors="replace").splitlines() if _waits_for_disk(line)]


def _waits_for_disk(line: str) -> bool:
    found = _CALL.match(line)
    # The path guard asks the kernel for what it has in memory; what is open is closed and sought without a disk.
    if found is None or found[1] in ("close", "getcwd", "lseek") or "RESOLVE_CACHED" in line:
        return False
    _, behind, path = found.groups()
    if found[1] in ("read", "write", "pread64", "pwrite64", "writev", "readv"):
        path = None  # what is in quotes is data
    if path is not None and not path.startswith("/"):
        path = os.path.join(behind or "/", path) if path else behind
    place = path or behind or ""
    return place.startswith("/") and not place.startswith(_KERNEL) and "<" not in place
