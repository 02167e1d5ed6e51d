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

from support.freshroot import EMULATED, FreshRoot, cache

ROOT = Path(__file__).parents[2]
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
"""Release of Debian -> its Python."""
SUITES = [suite for suite in PYTHONS if suite in os.environ.get("HEARTH_DEBIAN", suite)]
"""Those that `make test-debian SUITES=` names; all, where it is not set."""
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
ALONE = ["linux-libc-dev", "systemd-standalone-sysusers", "systemd-standalone-tmpfiles"]
"""What a root has that does not boot: it makes the package's users and directories all the same."""
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_ROOT_USER_ACTION": "ignore"}
PIP = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "-q"]


class Debian(FreshRoot):
    """A root with hearth's source in /src and the wheels that it needs in /wheels.

    Where it runs emulated, so is the build of the package, but this machine unpacks what `make` would install before.
    """

    def __init__(self, path: Path, suite: str, architecture: str = "") -> None:
        packages = BUILD + (ALONE if architecture else TEST + BOOT)
        super().__init__(path, sorted(packages), suite=suite, architecture=architecture)
        self.suite = suite
        _copy_source(path / "src")
        wheels = _Wheels(suite, MACHINES[architecture])
        shutil.copytree(wheels.store, path / "wheels")
        if self.emulated:
            self.run("python3 -I -m venv --without-pip /src/.venv")
            site = path / f"src/.venv/lib/python{PYTHONS[suite]}/site-packages"
            wheels.unpack(site)
            (pip,) = (path / "usr/share/python-wheels").glob("pip-*.whl")
            shutil.unpack_archive(pip, site, "zip")
            (site / "hearth.pth").write_text("/src\n")
            for stamp in (".runtime", ".installed"):
                (path / "src/.venv" / stamp).touch()

    def make(self, *targets: str, limit: float) -> str:
        """Make these targets of the Makefile there, as a user would; returns what it printed."""
        return self.run(f"cd /src && make {' '.join(targets)}", limit=limit, **OFFLINE)

    def package(self) -> str:
        """The place of the package there; it is built the first time."""
        if not (self.path / "src/dist").exists():
            self.make("deb", limit=600 * (EMULATED if self.emulated else 1))
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


class _Wheels:
    """The wheels of requirements.lock for a release and a machine: from the cache, else from the index that pip asks.

    `store` is their directory.
    """

    def __init__(self, suite: str, machine: str) -> None:
        lock = ROOT / "packaging" / "requirements.lock"
        left_out = {"dev", "sbom", "site", "installers", "tpm", "tpm-build"}
        if machine != platform.machine():
            left_out.add("fuzz")  # pip would judge its marker for this machine
        sets = set(" ".join(re.findall(r"^# for (.+)$", lock.read_text("utf-8"), re.MULTILINE)).split()) - left_out
        command = [sys.executable, str(lock.with_name("lock.py")), *sorted(sets)]
        asked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.store = cache("wheels") / f"{suite}-{machine}"
        self.store.mkdir(exist_ok=True)
        wanted = dict(re.findall(r"^([\w.-]+)==([\w.]+)", asked.lower(), re.MULTILINE))
        for file in self.store.glob("*.whl"):
            name, version = file.name.lower().split("-")[:2]
            if wanted.get(name.replace("_", "-")) != version:
                file.unlink()  # of an earlier lock
        requirements = self.store / "requirements.txt"
        requirements.write_text(asked)
        manylinux = (f"manylinux_2_{n}" for n in range(5, GLIBC[suite] + 1))
        python = PYTHONS[suite]
        self._asked = ["--no-deps", "--require-hashes", "--only-binary=:all:", f"--find-links={self.store}"]
        self._asked += [f"--platform={tag}_{machine}" for tag in ("manylinux1", "manylinux2014", *manylinux)]
        self._asked += [f"--abi={abi}" for abi in (f"cp{python.replace('.', '')}", "abi3", "none")]
        self._asked += [f"--python-version={python}.{FIXES[suite]}", "--implementation=cp", "-r", str(requirements)]
        self._pip("download", f"--dest={self.store}")

    def _pip(self, verb: str, *options: str) -> None:
        done = subprocess.run(
            [*PIP, verb, *options, *self._asked], capture_output=True, text=True, timeout=540, check=False
        )
        assert done.returncode == 0, done.stderr

    def unpack(self, site: Path) -> None:
        """Install them into a directory site-packages of that machine."""
        self._pip("install", "--no-index", "--no-compile", f"--target={site}", "--root-user-action=ignore")
