"""Requirements with hashes: what `make`, the Debian package and the bill of materials install.

    python packaging/lock.py build run mcp tui test    # print the requirements of these sets, for pip --require-hashes
    python packaging/lock.py --update                  # write requirements.lock anew, from the index that pip asks

It owns requirements.lock: for each version that constraints.txt pins, the sets that need it and the SHA-256 of every
file that Linux could install. The sets are `run` (hearth itself), each of its extras, `build` (the build backend) and
the dependency groups of pyproject.toml. Printing needs nothing but Python: `make` does it before anything is installed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = Path(__file__).with_name("requirements.lock")
HEAD = "# Written by `python packaging/lock.py --update` from constraints.txt: the files of each version, by SHA-256.\n"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64", "armv7l")


def canonical(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """The versions of constraints.txt, by canonical name."""
    lines = CONSTRAINTS.read_text("utf-8").splitlines()
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines) if version}


def blocks() -> dict[str, tuple[frozenset[str], str]]:
    """What requirements.lock has, by canonical name: the sets that need it, and the requirement with its hashes."""
    found = {}
    for block in LOCK.read_text("utf-8").removeprefix(HEAD).strip().split("\n\n"):
        first, _, requirement = block.partition("\n")
        sets = frozenset(first.removeprefix("# for ").split())
        found[canonical(requirement.partition("==")[0])] = sets, requirement
    return found


def requirements(*sets: str) -> str:
    """The requirements of these sets, as a file for pip. Raises SystemExit for a set that there is not."""
    found = blocks()
    known = frozenset().union(*(have for have, _ in found.values()))
    if strangers := sorted({*sets} - known):
        raise SystemExit(f"{strangers[0]} is no set of requirements; there are {', '.join(sorted(known))}")
    return "".join(f"{requirement}\n" for have, requirement in found.values() if have & {*sets})


# --- --update -------------------------------------------------------------------------------------------------------


class Index:
    """The package index that pip is configured to ask, in JSON (PEP 691)."""

    def __init__(self) -> None:
        import ssl
        import subprocess

        from pip._internal.models.index import PyPI

        listed = subprocess.run(
            [sys.executable, "-I", "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
        ).stdout
        settings = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
        self._base = settings.get("index-url", PyPI.simple_url).rstrip("/")
        self._trust = ssl.create_default_context(cafile=settings.get("cert"))

    def _get(self, url: str, accept: str = "*/*") -> bytes:
        from urllib.request import Request, urlopen

        with urlopen(Request(url, headers={"Accept": accept}), timeout=60, context=self._trust) as answer:
            content: bytes = answer.read()
        return content

    def files(self, name: str, version: str) -> list[dict[str, Any]]:
        """The files of a version. Raises OSError."""
        import json

        from packaging.utils import (
            InvalidSdistFilename,
            InvalidWheelFilename,
            parse_sdist_filename,
            parse_wheel_filename,
        )
        from packaging.version import Version

        page = json.loads(self._get(f"{self._base}/{name}/", "application/vnd.pypi.simple.v1+json"))
        wanted, found = Version(version), []
        for file in page["files"]:
            parse = parse_wheel_filename if file["filename"].endswith(".whl") else parse_sdist_filename
            try:
                this = parse(file["filename"])[1]
            except (InvalidWheelFilename, InvalidSdistFilename):
                continue
            if this == wanted:
                found.append(file)
        return found

    def needs(self, name: str, version: str, files: Iterable[Mapping[str, Any]]) -> list[str]:
        """What a version requires: by its installed metadata, by what lies beside a wheel (PEP 658), or within one."""
        import io
        import zipfile
        from email.parser import Parser
        from importlib.metadata import PackageNotFoundError, requires, version as installed

        try:
            if installed(name) == version:
                return requires(name) or []
        except PackageNotFoundError:
            pass
        wheels = [file for file in files if file["filename"].endswith(".whl")]
        if not wheels:
            raise SystemExit(f"{name} {version} has no wheel to learn from what it requires: install it first")
        wheel = min(wheels, key=lambda file: file.get("size", 0))
        if wheel.get("core-metadata"):
            text = self._get(f"{wheel['url']}.metadata")
        else:
            with zipfile.ZipFile(io.BytesIO(self._get(wheel["url"]))) as content:
                text = content.read(next(n for n in content.namelist() if n.endswith(".dist-info/METADATA")))
        return Parser().parsestr(text.decode("utf-8")).get_all("Requires-Dist", [])


def fits(filename: str) -> bool:
    """True for a source distribution, and for a wheel that CPython 3.11 or later could install on Linux."""
    if not filename.endswith(".whl"):
        return True
    pythons, abis, platforms = (part.split(".") for part in filename.removesuffix(".whl").split("-")[-3:])
    versions = [tuple(map(int, found)) for tag in pythons for found in re.findall(r"^cp(\d)(\d+)$", tag)]
    right_python = "py3" in pythons or (versions and ("abi3" in abis or max(versions) >= (3, 11)))
    right_machine = any(tag == "any" or ("linux" in tag and tag.endswith(MACHINES)) for tag in platforms)
    return bool(right_python and right_machine and not any(re.search(r"\dt$", abi) for abi in abis))


def environments(extra: str) -> Iterator[dict[str, str]]:
    """What markers are asked about: each Python and machine that hearth is for."""
    from packaging.markers import default_environment

    ours: Any = default_environment()
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    cpython = {"implementation_name": "cpython", "platform_python_implementation": "CPython", "extra": extra}
    for python in PYTHONS:
        for machine in MACHINES:
            full = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
            yield {**ours, **linux, **cpython, **full}


def wanted() -> dict[str, list[Requirement]]:
    """What each set asks for itself."""
    from packaging.requirements import Requirement

    document = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = document["project"]
    lines = {"run": project["dependencies"], "build": document["build-system"]["requires"]}
    lines |= project["optional-dependencies"] | document["dependency-groups"]
    found = {name: [Requirement(line) for line in some] for name, some in lines.items()}
    for some in found.values():  # an extra of ours that another one names
        for own in [each for each in some if each.name == project["name"]]:
            some.remove(own)
            some += [each for extra in own.extras for each in found[extra]]
    return found


def update() -> None:
    """Write requirements.lock. Raises SystemExit for what constraints.txt does not pin."""
    from packaging.requirements import Requirement

    index, pinned = Index(), pins()
    files = {name: index.files(name, version) for name, version in pinned.items()}
    needs = {
        name: [Requirement(line) for line in index.needs(name, version, files[name])]
        for name, version in pinned.items()
    }
    sets: dict[str, set[str]] = {name: set() for name in pinned}
    markers: dict[str, str] = {}
    for each, roots in wanted().items():
        markers |= {canonical(root.name): str(root.marker) for root in roots if root.marker is not None}
        open_ = [(root, "") for root in roots]
        done = set()
        while open_:
            requirement, extra = open_.pop()
            name = canonical(requirement.name)
            if requirement.marker and not any(map(requirement.marker.evaluate, environments(extra))):
                continue
            if name not in pinned:
                raise SystemExit(f"constraints.txt pins no {name}, which {each} needs")
            sets[name].add(each)
            for more in ("", *requirement.extras):
                if (name, more) not in done:
                    done.add((name, more))
                    open_ += [(need, more) for need in needs[name]]
    if idle := sorted(name for name, some in sets.items() if not some):
        raise SystemExit(f"nothing needs what constraints.txt pins: {', '.join(idle)}")
    written = []
    for name in sorted(pinned):
        marker = f" ; {markers[name]}" if name in markers else ""
        digests = sorted(file["hashes"]["sha256"] for file in files[name] if fits(file["filename"]))
        if not digests:
            raise SystemExit(f"the index has no file of {name} {pinned[name]}")
        lines = [f"{name}=={pinned[name]}{marker}", *(f"    --hash=sha256:{digest}" for digest in digests)]
        written.append(f"# for {' '.join(sorted(sets[name]))}\n" + " \\\n".join(lines) + "\n")
    LOCK.write_text(HEAD + "\n" + "\n".join(written), "utf-8")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="Print or update requirements with hashes.")
    parser.add_argument("sets", nargs="*", metavar="SET", help="run, build, an extra or a dependency group of hearth")
    parser.add_argument("--update", action="store_true", help="write requirements.lock from the index that pip asks")
    options = parser.parse_args()
    if options.update:
        update()
    else:
        sys.stdout.write(requirements(*options.sets))


if __name__ == "__main__":
    main()
