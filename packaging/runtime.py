"""A copy of the source, and an installation of it with what it needs at run time and nothing else.

It owns how the package, the bill of materials and the licence list get the distributions that they speak of: all three
the same way, by pip, as wheels whose hashes requirements.lock has. Building happens in the copy, since it leaves things
behind, and by the build backend of the environment that runs this.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from lock import requirements

ROOT = Path(__file__).parents[1]
PARTS = ("hearth", "actors", "drivers", "pyproject.toml", "README.md", "LICENSE")


def epoch() -> int:
    """Return the time that is written into what is built: SOURCE_DATE_EPOCH, or else that of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return int((ROOT / "CHANGELOG.md").stat().st_mtime)  # an unpacked archive


def copy_source(target: Path) -> Path:
    """The files that a wheel is built from. The links of the import package stay links (decision 0001).

    A link to a file, such as the page's to the client that npm gets, becomes that file: it may lead out of the copy.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    target.mkdir(parents=True)
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, target / name)
    for link in [path for path in target.rglob("*") if path.is_symlink() and not path.is_dir()]:
        link.unlink()
        shutil.copy2(ROOT / link.relative_to(target), link)
    return target


def pip(*arguments: str | Path, python: Path) -> None:
    """Run the pip of this interpreter for another one. Raises subprocess.CalledProcessError."""
    quiet = ("-qq", "--disable-pip-version-check", "--no-input")
    verb, *rest = map(str, arguments)
    subprocess.run([sys.executable, "-I", "-m", "pip", "--python", str(python), verb, *quiet, *rest], check=True)


def install_locked(text: str, *options: str | Path, python: Path) -> None:
    """Install what a requirements file says, if each file has one of its hashes. Raises CalledProcessError."""
    with TemporaryDirectory(prefix="hearth-lock-") as work:
        file = Path(work) / "requirements.txt"
        file.write_text(text, "utf-8")
        checked = ("--require-hashes", "--only-binary", ":all:", "--root-user-action=ignore")
        pip("install", *checked, *options, "-r", file, python=python)


def install(source: Path, *options: str | Path, python: Path, extras: tuple[str, ...] = ()) -> None:
    """Install hearth from a copy of its source, with `extras` such as "mcp", and what it needs."""
    with TemporaryDirectory(prefix="hearth-wheel-") as work:
        built = ("--no-deps", "--no-build-isolation", "--wheel-dir", work)
        pip("wheel", *built, source, python=Path(sys.executable))
        (wheel,) = Path(work).glob("*.whl")
        ours = f"{wheel} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
        install_locked(requirements("run", *extras) + ours, *options, python=python)


def clean_environment(directory: Path) -> Path:
    """A virtual environment without pip and setuptools, so that what is in it was asked for; its interpreter."""
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", str(directory)], check=True)
    return directory / "bin" / "python"
