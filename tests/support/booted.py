"""A root directory that is booted: its own systemd as PID 1, in a container of systemd-nspawn, until it is powered off.

The container has a network of its own with nothing but loopback, so nothing outside is reached and no port collides. It
gets the system calls that a service on a real machine has and a container usually not: those of Landlock, with which
hearthd confines itself, and bpf, with which systemd enforces DevicePolicy= and IPAddressDeny=. systemd manages the
cgroups beneath one that is made for it; where this machine has hierarchies of version 1, the container sees only
version 2.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from support.hearthd import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOLS = {"systemd-nspawn": "systemd-container", "nsenter": "util-linux"}
"""Program -> the package that has it."""
CALLS = "bpf landlock_create_ruleset landlock_add_rule landlock_restrict_self"
GROUPS = Path("/sys/fs/cgroup")

_BOOT = """\
set -eu
mkdir "$1"
echo $$ >"$1/cgroup.procs"
shift
# The hierarchies of version 1: a systemd of today rules version 2, which then lies beside them.
if [ ! -e /sys/fs/cgroup/cgroup.procs ]; then
    umount -R /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
fi
exec systemd-nspawn "$@"
"""


class Booted:
    """A root directory whose systemd runs; `leader` is that systemd's pid on this machine."""

    def __init__(self, root: Path) -> None:
        name = f"hearth-{os.getpid()}"
        unified = GROUPS if (GROUPS / "cgroup.procs").exists() else GROUPS / "unified"
        self._group = unified / name
        # Where systemd rules this machine's cgroups, nspawn asks it for a scope; else it stays in the one made here.
        keep = [] if Path("/run/systemd/system").is_dir() else ["--keep-unit"]
        ours = ["unshare", "--mount", "sh", "-c", _BOOT, "sh", str(self._group)]
        boot = ["-D", str(root), "-M", name, "-b", "--register=no", *keep, "--console=pipe", "--private-network"]
        self._log = root.with_name(f"{root.name}.console")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                # Killed with the tests, and its systemd with it.
                ["setpriv", "--pdeathsig", "KILL", *ours, *boot, f"--system-call-filter={CALLS}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.leader = 0
        try:
            self.leader = eventually(self._init, "a systemd in the container")
            eventually(self._is_up, "the end of the boot")
        except BaseException:
            self.power_off()
            raise

    def _init(self) -> int | None:
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        pid = self._process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return int(child)
        return None

    def _is_up(self) -> bool:
        done = self._enter("systemctl is-system-running --wait")
        return done.stdout.strip() in ("running", "degraded")

    def _enter(self, script: str, limit: float = 60) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", f"--target={self.leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root", "SYSTEMD_COLORS": "0"}
        return subprocess.run(
            [*inside, "sh", "-eu", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=limit, env=env | {"SYSTEMD_PAGER": ""}, check=False,
        )  # fmt: skip

    def run(self, script: str, *, code: int = 0, limit: float = 60) -> str:
        """Run a shell script in it as root; returns what it printed."""
        done = self._enter(script, limit)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}"
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        """A property of a unit, as `systemctl show` has it."""
        return self.run(f"systemctl show --property={name} --value {unit}").strip()

    def path(self, place: str) -> Path:
        """A file there, as this machine reaches it; in directories that it mounted, too."""
        return Path(f"/proc/{self.leader}/root{place}")

    def power_off(self) -> None:
        """End it as a power switch does: units are stopped in order."""
        self._process.send_signal(signal.SIGTERM if self.leader else signal.SIGKILL)
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            if self._group.exists():
                # A cgroup goes when no other is beneath it.
                for group, _, _ in os.walk(self._group, topdown=False):
                    os.rmdir(group)


@contextlib.contextmanager
def booted(root: Path) -> Iterator[Booted]:
    """Boot a root directory; it is powered off at the end."""
    machine = Booted(root)
    try:
        yield machine
    finally:
        machine.power_off()
