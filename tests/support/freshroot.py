"""A fresh Debian in a directory, as small as one gets, and shell scripts that run in it as its root.

debootstrap makes it: of this machine's release from where this machine has its own packages from, or of another release
and architecture. A root that was made is kept as an archive in `${XDG_CACHE_HOME:-~/.cache}/hearth/roots` and unpacked
the next time; one that is older than `LASTS` is made again. A script runs with mounts and processes of its own, so that
nothing is left mounted and nothing left running after it.

A root of another architecture runs by qemu's emulation of its processor, which the kernel starts (binfmt_misc). The
emulated processor is that of a Raspberry Pi 4: one with the first instruction set of its architecture, so that a wheel
which asks for a later one fails as it would there. qemu's own choice also has pointer authentication, whose arithmetic
takes Debian's programs up to fifty times as long.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

TOOLS = {"debootstrap": "debootstrap", "unshare": "util-linux", "dpkg-deb": "dpkg"}
"""Program -> the package that has it."""
BOUND = 540
"""Seconds for making a root of this machine's architecture: some 60 MB are downloaded."""
EMULATED = 5
"""How much longer anything may take that runs emulated."""
LASTS = 14 * 86_400
"""Seconds. A release gets its fixes in between."""
BINFMT = Path("/proc/sys/fs/binfmt_misc")
QEMU = {"arm64": ("qemu-aarch64", "cortex-a72")}
"""Debian's name of an architecture -> the emulator's entry in binfmt_misc, and the processor that it emulates."""


def lack(target: str, switch: str, tools: dict[str, str] = TOOLS) -> str | None:
    """Say why `make TARGET`, which sets the variable `switch`, cannot run its tests here, and the cure; None if it can.

    `tools` is program -> Debian package, as `TOOLS` is.
    """
    missing = sorted({package for tool, package in tools.items() if shutil.which(tool) is None})
    if missing:
        return f"`make {target}` takes {', '.join(missing)}: apt-get install {' '.join(missing)}"
    if os.geteuid() != 0:
        return f"a fresh root is made by root alone: sudo make {target}"
    if not os.environ.get(switch):
        return f"`make {target}` makes a fresh root and tries the package in it"
    return None


_LACK = lack("test-deb", "HEARTH_DEB")
needs_fresh_root = pytest.mark.skipif(_LACK is not None, reason=_LACK or "")


def emulation(architecture: str) -> str | None:
    """Have the kernel start programs of this architecture; None, or why it does not and the cure. Root only."""
    entry, _ = QEMU[architecture]
    if not (BINFMT / "register").exists():
        mounted = subprocess.run(
            ["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT], capture_output=True, text=True, check=False
        )
        if mounted.returncode != 0:
            return f"binfmt_misc cannot be mounted, which starts programs of {architecture}: {mounted.stderr.strip()}"
    if not (BINFMT / entry).exists():
        subprocess.run(["update-binfmts", "--enable", entry], capture_output=True, check=False)
    if not (BINFMT / entry).exists():
        return f"the kernel does not start programs of {architecture}: apt-get install --reinstall qemu-user-static"
    if "F" not in (BINFMT / entry).read_text().partition("flags:")[2].partition("\n")[0]:
        return f"{entry} is registered without the flag F, so no root has it: install qemu-user-static, not qemu-user"
    return None


def cache(kind: str) -> Path:
    """The directory of what is kept between runs, outside of the repository; it is made."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    place = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "hearth" / kind
    place.mkdir(parents=True, exist_ok=True)
    return place


_TAR = ["tar", "--numeric-owner", "--xattrs"]
_SETTING = """\
set -eu
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount -t sysfs -o ro sysfs "$1/sys"
exec chroot "$1" /bin/sh -eu -c "$2"
"""


class FreshRoot:
    """A root directory with Debian's minimal base and the packages that were asked for.

    Without `suite`, such as "trixie", it is of this machine's release. `architecture` is Debian's name of one that
    `emulation` has made ready; without it, it is of this machine's.
    """

    def __init__(self, path: Path, packages: list[str], *, suite: str = "", architecture: str = "") -> None:
        self.path = path
        self.emulated = bool(architecture)
        self._env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/"}
        self._env["DEBIAN_FRONTEND"] = "noninteractive"
        if architecture:
            self._env["QEMU_CPU"] = QEMU[architecture][1]
        sources = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
        site, release = sources.splitlines()[0].split()
        asked = ["--variant=minbase", f"--include={','.join(packages)}"]
        if architecture:
            asked.append(f"--arch={architecture}")
        key = hashlib.sha256("\n".join(asked).encode()).hexdigest()[:12]
        archive = cache("roots") / f"{suite or release}-{architecture or 'native'}-{key}.tar"
        for other in archive.parent.glob("*.tar"):
            if other != archive and time.time() - other.stat().st_mtime > LASTS:
                other.unlink(missing_ok=True)  # of packages that are no longer asked for
        with archive.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if archive.exists() and time.time() - archive.stat().st_mtime < LASTS:
                path.mkdir(parents=True)
                subprocess.run([*_TAR, "-C", path, "-xf", archive], check=True)
            else:
                self._bootstrap(["debootstrap", *asked, suite or release, str(path), site], archive)
        # An installed machine has it from its installer.
        (path / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")

    def _bootstrap(self, command: list[str], archive: Path) -> None:
        """Make the root, and keep it in the archive."""
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BOUND * (EMULATED if self.emulated else 1),
            env=self._env, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"debootstrap: {done.stdout[-2000:]}{done.stderr}"
        shutil.rmtree(self.path / "var/cache/apt/archives")
        # Whole before it has its name: a run that was ended half-way leaves no archive.
        made = archive.with_suffix(".new")
        subprocess.run([*_TAR, "-C", self.path, "-cf", made, "."], check=True)
        made.rename(archive)

    def run(self, script: str, *, code: int = 0, limit: float = 120, **variables: str) -> str:
        """Run a shell script in it, with these variables; returns what it printed."""
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _SETTING, "sh", str(self.path)]
        done = subprocess.run(
            [*own, script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=limit, env=self._env | variables, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout

    def demo(self, options: str = "") -> str:
        """Play the demo as a user without any rights, in a directory of all; returns what it printed."""
        user = "setpriv --reuid 65534 --regid 65534 --clear-groups"
        said = self.run(f"cd /tmp && HOME=/tmp {user} hearth demo --fast {options}")
        assert re.search(r"\d+ claims, each checked", said), said
        return said

    def files(self) -> set[str]:
        """Everything that is in it, as absolute paths there; directories with a slash behind."""
        found = set()
        for folder, folders, names in os.walk(self.path):
            place = "/" + os.path.relpath(folder, self.path)
            found |= {os.path.normpath(f"{place}/{name}") for name in names}
            found |= {os.path.normpath(f"{place}/{name}") + "/" for name in folders}
        return found
