"""A Debian of another release or architecture than this machine's, in which hearth is built and tried from its source.

It has the packages that docs/operations.md asks for, the source as git sees it, and the wheels of requirements.lock in
a directory: pip asks no index there, so that the root needs neither a network nor this machine's settings of pip.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from support.freshroot import FreshRoot, cache

ROOT = Path(__file__).parents[2]
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
"""Release of Debian -> its Python."""
FIXES = {"bookworm": 2, "trixie": 5}
"""Release of Debian -> the last number of its Python's version, which a wheel may ask for."""
GLIBC = {"bookworm": 36, "trixie": 41}
"""Release of Debian -> N of its glibc 2.N."""
MACHINES = {"": platform.machine(), "arm64": "aarch64"}
"""Debian's name of an architecture, empty for this machine's -> Python's name of it."""
BUILD = ["libseccomp2", "make", "python3-venv"]
"""What builds and runs hearth there."""
TEST = ["git", "linux-libc-dev", "openssh-client"]
"""What some of the fast tests start or read."""
BOOT = ["dbus", "iproute2", "procps", "systemd", "systemd-sysv"]
"""What it boots with, what the service recommends, and what a test arranges the network with."""
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_ROOT_USER_ACTION": "ignore"}


class Debian(FreshRoot):
    """A root with hearth's source in /src and the wheels that it needs in /wheels."""

    def __init__(self, path: Path, suite: str, architecture: str = "") -> None:
        packages = BUILD if architecture else BUILD + TEST + BOOT
        super().__init__(path, sorted(packages), suite=suite, architecture=architecture)
        self.suite = suite
        _copy_source(path / "src")
        shutil.copytree(_wheels(suite, MACHINES[architecture]), path / "wheels")

    def make(self, *targets: str, limit: float) -> str:
        """Make these targets of the Makefile there, as a user would; returns what it printed."""
        return self.run(f"cd /src && make {' '.join(targets)}", limit=limit, **OFFLINE)

    def package(self) -> str:
        """The place of the package there; it is built the first time."""
        if not (self.path / "src/dist").exists():
            self.make("deb", limit=3000 if self.emulated else 600)
        (built,) = (self.path / "src/dist").glob("*.deb")
        return f"/src/dist/{built.name}"


def _copy_source(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in listed.split("\0")[:-1]:
        if os.path.lexists(ROOT / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def _wheels(suite: str, machine: str) -> Path:
    """Return the directory of the wheels of requirements.lock for a machine; those that it lacks are downloaded."""
    lock = ROOT / "packaging" / "requirements.lock"
    # Markers are judged for this machine: atheris would be asked for where there is none of it.
    left_out = {"dev", "sbom", "site", "installers"} | (set() if machine == platform.machine() else {"fuzz"})
    sets = set(" ".join(re.findall(r"^# for (.+)$", lock.read_text("utf-8"), re.MULTILINE)).split()) - left_out
    command = [sys.executable, str(lock.with_name("lock.py")), *sorted(sets)]
    asked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    store = cache("wheels") / f"{suite}-{machine}"
    store.mkdir(exist_ok=True)
    wanted = dict(re.findall(r"^([\w.-]+)==([\w.]+)", asked.lower(), re.MULTILINE))
    for file in store.glob("*.whl"):
        name, version = file.name.lower().split("-")[:2]
        if wanted.get(name.replace("_", "-")) != version:
            file.unlink()  # of an earlier lock
    requirements = store / "requirements.txt"
    requirements.write_text(asked)
    tags = ["manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{n}" for n in range(5, GLIBC[suite] + 1))]
    python = PYTHONS[suite]
    fits = [f"--platform={tag}_{machine}" for tag in tags]
    fits += [f"--abi={abi}" for abi in (f"cp{python.replace('.', '')}", "abi3", "none")]
    fits += [f"--python-version={python}.{FIXES[suite]}", "--implementation=cp", "--only-binary=:all:"]
    download = [sys.executable, "-I", "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    download += ["--no-deps", "--require-hashes", *fits, f"--find-links={store}", f"--dest={store}"]
    done = subprocess.run([*download, "-r", requirements], capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr
    return store
