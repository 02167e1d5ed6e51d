"""Builds the wheel and the source distribution: the same source gives the same bytes.

    python packaging/dist.py [--out DIRECTORY]

It owns what is in the two files and in which order. setuptools builds them in a copy of the source in which every file
has the time of the last commit (SOURCE_DATE_EPOCH, if it is set) and one of two modes. The archive that setuptools
packs for the source has the builder's user and the time of day in it: it is packed again here.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from runtime import ROOT, copy_source, epoch

BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def prepare(source: Path, time: int) -> None:
    """Give every file of a copy its mode and its time: both are written into the archives."""
    for path in [source, *source.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (time, time), follow_symlinks=False)


def call(hook: str, source: Path, out: Path, time: int) -> Path:
    """Call a hook of the build backend (PEP 517) in a copy; return the file that it made. Raises CalledProcessError."""
    out.mkdir(parents=True)
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(time), "PYTHONHASHSEED": "0"}
    command = (sys.executable, "-I", "-c", BUILD, hook, str(out))
    subprocess.run(command, cwd=source, env=environ, umask=0o022, check=True, stdout=subprocess.DEVNULL)
    (made,) = out.iterdir()
    return made


def pack_again(archive: Path, target: Path, time: int) -> None:
    """Write a .tar.gz of the same files: sorted, root's, of one time, without a name or a time in the header."""
    with tarfile.open(archive) as given, target.open("wb") as file:
        compressed = gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=time)
        with compressed, tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as written:
            for member in sorted(given, key=lambda member: member.name):
                member.uid = member.gid = 0
                member.uname = member.gname = "root"
                member.mtime = time
                member.mode = 0o755 if member.isdir() else 0o644
                member.pax_headers = {}
                written.addfile(member, given.extractfile(member) if member.isfile() else None)


def build(out: Path) -> list[Path]:
    """Write both files into a directory, and return them. Raises CalledProcessError."""
    time = epoch()
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="hearth-dist-") as name:
        work = Path(name)
        # A copy for each: setuptools leaves files behind that it would find again.
        for hook in ("build_wheel", "build_sdist"):
            prepare(copy_source(work / hook / "source"), time)
        wheel = call("build_wheel", work / "build_wheel" / "source", work / "build_wheel" / "out", time)
        archive = call("build_sdist", work / "build_sdist" / "source", work / "build_sdist" / "out", time)
        made = [out / wheel.name, out / archive.name]
        shutil.copyfile(wheel, made[0])
        pack_again(archive, made[1], time)
    return made


def main() -> None:
    """Build both and say where they are."""
    parser = argparse.ArgumentParser(description="Build the wheel and the source distribution.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where they go (default: dist)")
    for made in build(parser.parse_args().out):
        sys.stdout.write(f"{made}\n")


if __name__ == "__main__":
    main()
