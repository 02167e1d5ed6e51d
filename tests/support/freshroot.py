"""A fresh Debian in a directory, as small as one gets, and shell scripts that run in it as its root.

Made by debootstrap from where this machine has its own packages from. A script runs with mounts and processes of its
own, so that whatever becomes of it nothing is left mounted and nobody is left running.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = {"debootstrap": "debootstrap", "unshare": "util-linux", "dpkg-deb": "dpkg"}
"""Program -> the package that has it."""
BOUND = 540
"""Seconds for making one: it downloads some 60 MB."""

_MISSING = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
_LACK = (
    f"a fresh root takes {', '.join(_MISSING)}: apt-get install {' '.join(_MISSING)}"
    if _MISSING
    else "a fresh root is made by root alone"
    if os.geteuid() != 0
    else "`make test-deb` builds the package and tries it in a fresh root"
    if not os.environ.get("HEARTH_DEB")
    else None
)
needs_fresh_root = pytest.mark.skipif(_LACK is not None, reason=_LACK or "")

_SETTING = """\
set -eu
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
exec chroot "$1" /bin/sh -eu -c "$2"
"""


class FreshRoot:
    """A root directory with Debian's minimal base and the packages that were asked for."""

    def __init__(self, path: Path, packages: list[str]) -> None:
        self.path = path
        sources = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
        site, release = sources.splitlines()[0].split()
        include = f"--include={','.join(packages)}"
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", include, release, str(path), site],
            capture_output=True, text=True, timeout=BOUND, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"debootstrap: {done.stdout[-2000:]}{done.stderr}"

    def run(self, script: str, *, code: int = 0, limit: float = 120) -> str:
        """Run a shell script in it; returns what it printed."""
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _SETTING, "sh", str(self.path)]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/"}
        done = subprocess.run(
            [*own, script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=limit, env=env, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout

    def files(self) -> set[str]:
        """Everything that is in it, as absolute paths there; directories with a slash behind."""
        found = set()
        for folder, folders, names in os.walk(self.path):
            place = "/" + os.path.relpath(folder, self.path)
            found |= {os.path.normpath(f"{place}/{name}") for name in names}
            found |= {os.path.normpath(f"{place}/{name}") + "/" for name in folders}
        return found
