"""Builds the Debian package of hearth.

    python packaging/build_deb.py [--out DIRECTORY] [--python /usr/bin/python3]

It owns what is in the package and where. It is for one release of Python and one architecture, those of the machine it
is built on: the dependencies are wheels in a tree of the package's own, bound to the system's Python.
dpkg-deb does the rest; the same source, Python and SOURCE_DATE_EPOCH give the same tree.

Why a tree of its own: a stable Debian lacks a third of the dependencies and has the rest in versions that hearth was
never tested with. It is a virtual environment, because hearth starts children by `sys.executable -m`, which must find
the same tree without an environment variable. The system's packages are seen behind it, so an administrator's vendor
tools have a place and cannot replace a dependency. The bytecode is in the package (`unchecked-hash`): compiling takes a
minute on a Raspberry Pi, and dpkg removes only files that it knows. `/run/hearth` is root's, made by the socket unit: a
daemon that owned it could put another socket in the place of its own. debhelper is not used, since it needs 60 packages
for four maintainer scripts; one Debian package for each dependency would be another project.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from licences import OURS, bundled, unknown
from runtime import ROOT, copy_source, epoch, install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from licences import Bundled

HERE = Path(__file__).parent
EXTRAS = ("amqp", "hcp", "mcp")
"""What a service needs. Not drawing and the TPM: Pillow and tpm2-pytss are Debian's own (Suggests), and are found where
installed; nor `ask` and `tui`, a person's programs; nor `can`, which brings a library under the LGPL."""
HOME = Path("usr/lib/hearth")
MAINTAINER = "The hearth maintainers <hearth@hearth.invalid>"
SCRIPTS = {"hearth": "hearth.cli.main", "hearthd": "hearth.actors.daemon"}
FILES = {
    "systemd/hearth.service": "usr/lib/systemd/system/hearth.service",
    "systemd/hearth.socket": "usr/lib/systemd/system/hearth.socket",
    "sysusers.d/hearth.conf": "usr/lib/sysusers.d/hearth.conf",
    "tmpfiles.d/hearth.conf": "usr/lib/tmpfiles.d/hearth.conf",
    "udev/60-hearth.rules": "usr/lib/udev/rules.d/60-hearth.rules",
    "debian/lintian-overrides": "usr/share/lintian/overrides/hearth",
    "hearth.toml": "etc/hearth/hearth.toml",
    "../examples/hearth.toml": "usr/share/doc/hearth/examples/hearth.toml",
}
"""File here -> where the package has it."""


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command; what it prints. Raises subprocess.CalledProcessError."""
    env = {**os.environ, **variables}
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, cwd=cwd, env=env).stdout.decode()


class Build:
    """One package in the making: `tree` is its root."""

    def __init__(self, work: Path, python: Path, epoch: int) -> None:
        self.tree = work / "tree"
        self.tree.mkdir(mode=0o755)
        self._work = work
        self._python = python
        self._epoch = epoch
        asked = "import sys; print('%d.%d %d.%d.%d' % (*sys.version_info[:2], *sys.version_info[:3]))"
        self.release, self._exact = run(python, "-I", "-c", asked).split()
        self.site = HOME / "lib" / f"python{self.release}" / "site-packages"
        self.version = version()
        self.architecture = run("dpkg", "--print-architecture").strip()

    def write(self, place: str | Path, text: str, mode: int = 0o644) -> None:
        """Write a file of the package."""
        path = self.tree / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(mode)

    def compressed(self, place: str, text: str) -> None:
        """Write a file of the package, compressed as Debian has its documentation."""
        path = self.tree / f"{place}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))

    def application(self) -> None:
        """Write the virtual environment: the system's interpreter by a link, and everything in site-packages."""
        site = self.tree / self.site
        source = copy_source(self._work / "source")
        install(source, "--no-compile", "--target", site, python=self._python, extras=EXTRAS)
        shutil.rmtree(site / "bin", ignore_errors=True)  # scripts that name the builder's interpreter
        for info in site.glob("*.dist-info"):
            for name in ("INSTALLER", "REQUESTED", "direct_url.json"):  # they tell of the build, not of what was built
                (info / name).unlink(missing_ok=True)
            record = info / "RECORD"
            gone = re.compile(r"(\.\./|bin/|.*\.dist-info/(INSTALLER|REQUESTED|direct_url\.json),)")
            kept = [line for line in record.read_text("utf-8").splitlines(keepends=True) if not gone.match(line)]
            record.write_text("".join(sorted(kept)), "utf-8")
        # A start by an ordinary user cannot write them, and one by root must not leave files that dpkg does not know.
        compile_ = ("-I", "-m", "compileall", "-q", "-j1", "--invalidation-mode", "unchecked-hash")
        run(self._python, *compile_, "-s", self.tree, "-p", "/", site, PYTHONHASHSEED="0")
        home = self.tree / HOME
        (home / "bin").mkdir()
        (home / "bin" / "python3").symlink_to(os.path.relpath(self._python, f"/{HOME}/bin"))
        # What an administrator installs for the system is seen: vendors' tools, Pillow. Ours comes first.
        settings = {"home": self._python.parent, "include-system-site-packages": "true", "version": self._exact}
        self.write(HOME / "pyvenv.cfg", "".join(f"{key} = {value}\n" for key, value in settings.items()))
        for name, module in SCRIPTS.items():
            # Isolated: neither the caller's directory nor PYTHONPATH decides what a root's hearthd imports.
            code = f"#!/{HOME}/bin/python3 -I\nfrom {module} import main\n\nmain()\n"
            self.write(f"usr/bin/{name}", code, 0o755)

    def papers(self) -> None:
        """Write the manual pages, completion, copyright and changelog."""
        pages = self._work / "man"
        run(sys.executable, HERE / "manpages.py", pages, SOURCE_DATE_EPOCH=str(self._epoch))
        for page in pages.iterdir():
            self.compressed(f"usr/share/man/man{page.suffix[1:]}/{page.name}", page.read_text("utf-8"))
        complete = run(sys.executable, "-I", "-m", "hearth.cli.main", "admin", "completion", "bash")
        self.write("usr/share/bash-completion/completions/hearth", complete)
        found = bundled(self.tree / self.site)
        if wrong := unknown(found):
            raise SystemExit("\n".join(wrong))
        self.write("usr/share/doc/hearth/copyright", copyright_(found, self.site))
        self.compressed("usr/share/doc/hearth/changelog", changelog(self.version, self._epoch))

    def control(self) -> None:
        """Write DEBIAN/: what dpkg has to know."""
        low, high = map(int, self.release.split("."))
        size = sum(path.lstat().st_size for path in self.tree.rglob("*") if not path.is_dir())
        values = {
            "VERSION": self.version,
            "ARCHITECTURE": self.architecture,
            "MAINTAINER": MAINTAINER,
            "SIZE": str(size // 1024),
            "PYTHON": self.release,
            "NEXT_PYTHON": f"{low}.{high + 1}",
            "LIBC": ".".join(map(str, max(self._libc_versions()))),
        }
        template = (HERE / "debian" / "control.in").read_text("utf-8")
        self.write("DEBIAN/control", re.sub(r"@(\w+)@", lambda match: values[match[1]], template))
        self.write("DEBIAN/conffiles", "".join(f"/{place}\n" for place in FILES.values() if place.startswith("etc/")))
        for name in ("postinst", "prerm", "postrm"):
            self.write(f"DEBIAN/{name}", (HERE / "debian" / name).read_text("utf-8"), 0o755)
        files = (path for path in self.tree.rglob("*") if path.is_file() and not path.is_symlink())
        inside = sorted(str(path.relative_to(self.tree)) for path in files if "DEBIAN" not in path.parts)
        sums = run("md5sum", *inside, cwd=self.tree)
        self.write("DEBIAN/md5sums", sums)

    def _libc_versions(self) -> Iterator[tuple[int, ...]]:
        """For each wheel with machine code, the oldest C library that it says it runs on."""
        yield (2, 17)
        for each in distributions(path=[str(self.tree / self.site)]):
            told = re.findall(r"manylinux_(\d+)_(\d+)_", each.read_text("WHEEL") or "")
            if told:
                yield min((int(major), int(minor)) for major, minor in told)

    def finish(self, out: Path) -> Path:
        """Give everything its mode and time, and pack it."""
        for path in [self.tree, *self.tree.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or (path.stat().st_mode & 0o100 and not _is_data(path)) else 0o644)
            os.utime(path, (self._epoch, self._epoch), follow_symlinks=False)
        out.mkdir(parents=True, exist_ok=True)
        package = out / f"hearth_{self.version}_{self.architecture}.deb"
        pack = ("dpkg-deb", "--root-owner-group", "-Zxz", "-z2", "--build", self.tree, package)
        run(*pack, SOURCE_DATE_EPOCH=str(self._epoch))
        return package


def _is_data(path: Path) -> bool:
    """What is imported and never run: wheels are careless about its mode."""
    return path.suffix in (".py", ".pyc", ".so", ".pyi", ".toml", ".txt")


def version() -> str:
    """The package's version: with ~pre, which sorts before, where the changelog says that it is not released."""
    number = re.search(r'"(.+)"', (ROOT / "hearth" / "_version.py").read_text("utf-8").partition("__version__")[2])
    assert number is not None
    heading = re.search(rf"^## {re.escape(number[1])}(.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    return f"{number[1]}~pre" if heading is None or "not yet released" in heading[1] else number[1]


def changelog(number: str, epoch: int) -> str:
    """The package's changelog in Debian's form, which points at the project's own."""
    date = run("date", "--utc", "--rfc-email", f"--date=@{epoch}", LC_ALL="C").strip()
    told = "  * See the changelog of the source for what is in this release."
    return f"hearth ({number}) stable; urgency=medium\n\n{told}\n\n -- {MAINTAINER}  {date}\n"


def copyright_(found: list[Bundled], site: Path) -> str:
    """The licences of all that is in the package, in Debian's machine-readable form."""
    common = {"Apache-2.0", "LGPL-2.1", "MPL-2.0"}
    head = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: hearth\n"
    own = "Files: *\nCopyright: 2026 the contributors of hearth\nLicense: Apache-2.0\n"
    stanzas = [f"{head}\n{own} The text is in /usr/share/common-licenses/Apache-2.0.\n"]
    for one in found:
        if one.name == OURS:
            continue
        texts = [f" /{site / text}" for text in one.texts] or [f" named by the metadata in /{site}"]
        also = [f" /usr/share/common-licenses/{name}" for name in sorted(common) if name in (one.licence or "")]
        folder = f"{one.name.replace('-', '_')}-{one.version}.dist-info"
        stanzas.append(
            f"Files: {site}/{folder}/*\nComment: {one.name} {one.version}, and the modules that its RECORD names\n"
            f"Copyright: its authors, whom its text names\nLicense: {one.licence}\n"
            + "\n".join((" The text is in", *texts, *also, ""))
        )
    return "\n".join(stanzas)


def main() -> None:
    """Build the package and say where it is."""
    parser = argparse.ArgumentParser(description="Build the Debian package of hearth.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where it goes (default: dist)")
    parser.add_argument("--python", type=Path, default=Path("/usr/bin/python3"), help="the interpreter that it is for")
    options = parser.parse_args()
    for tool in ("dpkg-deb", options.python):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is missing: the package is built on Debian, with its dpkg and python3")
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="hearth-deb-") as work:
        build = Build(Path(work), options.python, epoch())
        build.application()
        for source, place in FILES.items():
            build.write(place, (HERE / source).read_text("utf-8"))
        build.papers()
        build.control()
        package = build.finish(options.out)
    sys.stdout.write(f"{package}\n")


if __name__ == "__main__":
    main()
