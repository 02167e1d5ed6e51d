"""File systems that a test may ruin: mounted in a name space of their own, so that nobody else ever sees them.

`Mounts` gives the command that a daemon is started with (`prefix`), which mounts what is asked for and becomes the
daemon, and runs commands beside it in its name space. Needs root; what a test needs beyond that it is told it lacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def need_root() -> None:
    """Skip where nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    lacking = [tool for tool in ("unshare", "nsenter", "mount") if shutil.which(tool) is None]
    if lacking:
        pytest.skip(f"{', '.join(lacking)}: not here (Debian: apt-get install util-linux mount)")
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"unshare -m: {tried.stderr.decode().strip()}")


class Image:
    """A small ext4 that goes read-only when it finds an error, in a file, on a loop device."""

    def __init__(self, file: Path) -> None:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not here (Debian: apt-get install e2fsprogs)")
        file.write_bytes(b"")
        os.truncate(file, 8 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(file)], check=True)
        made = subprocess.run(["losetup", "-f", "--show", str(file)], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no loop device: {made.stderr.strip()}")
        self.device = made.stdout.strip()

    def fail(self) -> None:
        """Have the kernel meet an error in it: from then on nothing can be written."""
        trigger = Path("/sys/fs/ext4") / Path(self.device).name / "trigger_fs_error"
        if not trigger.exists():
            pytest.skip(f"{trigger} is not here: this kernel does not let an error be made")
        trigger.write_text("a test")

    def repair(self) -> None:
        """What an operator does before it is mounted again; 1: errors were corrected."""
        done = subprocess.run(["e2fsck", "-fy", self.device], capture_output=True, check=False)
        assert done.returncode in (0, 1), done.stdout

    def close(self) -> None:
        subprocess.run(["losetup", "-d", self.device], check=False, capture_output=True)


def mounted(*mount: str) -> list[str]:
    """The command that mounts this in a name space of its own and then becomes the rest of its arguments."""
    return ["unshare", "-m", "sh", "-ec", 'mount $0; exec "$@"', " ".join(mount)]


def beside(pid: int, *command: str) -> None:
    """Run a command in the mount name space of a process."""
    subprocess.run(["nsenter", "-t", str(pid), "-m", "--", *command], check=True, capture_output=True)


def seen_by(pid: int, path: Path) -> Path:
    """The file that this process finds at a path."""
    return Path(f"/proc/{pid}/root") / path.relative_to("/")
