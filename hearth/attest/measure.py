"""The hashes of what a daemon runs with: hearth's files, its dependencies, their bytecode, and the operator's files.

The hash of several files is that of a manifest: the lines that `sha256sum` prints for them, sorted by name. So a reader
can make it again from the files of a release, with nothing of hearth.

Blocking: some thousands of files are read. What was loaded before, the standard library, shared libraries of the system
and the kernel are not measured; docs/attestation.md says what follows from that.
"""

from __future__ import annotations

import hashlib
import os
import re
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hearth._util.python import interpreter_file
from hearth.audit.record import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import Distribution

VENDORS: Final = ("hearth.tools", "hearth.capabilities", "hearth.kinds", "hearth.extras")
"""Groups of entry points whose packages run in the daemon too."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA: Final = re.compile(r"extra == ['\"]([\w-]+)")
_NOT_IN_A_DAEMON: Final = ("test", "fuzz", "dev", "tui")
_OF_AN_INSTALLATION: Final = re.compile(r"\.\.?/|bin/|.*__pycache__/|.*\.dist-info/(?!METADATA|entry_points\.txt)")
"""Files that differ between two installations of the same package, and are not run."""


def sha256_of(value: Any) -> str:
    """Return the hash of a JSON value: "sha256:" and the hex digits over its RFC 8785 form."""
    return f"sha256:{hashlib.sha256(canonical(value)).hexdigest()}"


def sha256_of_bytes(data: bytes) -> str:
    """Return the hash of bytes, in the same form."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest(files: Iterable[tuple[str, Path]]) -> bytes:
    """Return the lines of `sha256sum` for these files, by their names; one that cannot be read has the reason."""
    lines = []
    for name, path in sorted({*files}):
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            found = f"({error.strerror})".ljust(64)
        lines.append(f"{found}  {name}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def own_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of hearth itself: the name that the release's wheel has for each, and its path."""
    root = Path(__file__).parents[1]
    for directory, subdirectories, names in os.walk(root, followlinks=True):
        subdirectories[:] = [name for name in subdirectories if name != "__pycache__"]
        for name in names:
            path = Path(directory, name)
            yield str(path.relative_to(root.parent)), path


def dependencies() -> Iterator[tuple[str, Path]]:
    """Yield the files of the packages that hearth needs, of vendors' packages, and the interpreter."""
    yield "python", interpreter_file()
    waiting = ["hearthd", *(point.dist.name for group in VENDORS for point in entry_points(group=group) if point.dist)]
    seen: set[str] = set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        found = _distribution(name)
        if found is None:
            continue
        waiting += [match[0] for each in found.requires or () if (match := _NAME.match(each)) and _runs(name, each)]
        for file in found.files or ():
            if not _OF_AN_INSTALLATION.match(str(file)):
                yield str(file), Path(str(found.locate_file(file)))


def _runs(package: str, requirement: str) -> bool:
    """Return True for a requirement that is always there, or of an extra of hearth's that a daemon may use."""
    extra = _EXTRA.search(requirement)
    return extra is None or (package == "hearthd" and extra[1] not in _NOT_IN_A_DAEMON)


def _distribution(name: str) -> Distribution | None:
    """Return an installed package; None for one of an extra that is not installed."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def bytecode(files: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
    """Yield the compiled form of each Python file that has one: that is what Python runs."""
    for name, path in files:
        if path.suffix == ".py" and (compiled := Path(cache_from_source(str(path)))).exists():
            yield f"{name}c", compiled


def measure_files() -> dict[str, str]:
    """Return the hashes of all that is installed."""
    own, needed = [*own_files()], [*dependencies()]
    return {
        "hearth": sha256_of_bytes(manifest(own)),
        "dependencies": sha256_of_bytes(manifest(needed)),
        "bytecode": sha256_of_bytes(manifest(bytecode([*own, *needed]))),
    }
