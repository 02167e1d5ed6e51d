"""Which licence each bundled distribution has, as an SPDX expression; reads what its metadata declare, guesses nothing.

    python packaging/licences.py SITE-PACKAGES FILE

writes the list as a Markdown table and exits with 1 if a licence is not known. Where old metadata say it in words that
fit several licences ("BSD"), the table below has what the licence text of that distribution says.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from email.message import Message

OURS = "hearthd"
"""The distribution of hearth itself."""
KNOWN = frozenset(
    (
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "LGPL-2.1-only", "LGPL-2.1-or-later",
        "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
    )
)  # fmt: skip
"""Licences under which a bundled distribution may be passed on with hearth. A new one is for a person to decide on."""

_WORDS = {
    "mit": "MIT",
    "mit license": "MIT",
    "the mit license (mit)": "MIT",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "mpl 2.0": "MPL-2.0",
    "your choice of mit or apache license 2.0": "MIT OR Apache-2.0",
}
_CLASSIFIERS = {
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""Those that mean one licence; "BSD License" and "Apache Software License" do not."""
_BY_TEXT = {
    "isodate": "BSD-3-Clause",
    "pyserial": "BSD-3-Clause",
    "rfc8785": "Apache-2.0",
    "semantic-version": "BSD-2-Clause",
}
"""Distribution -> what its licence text says (pyserial: its source files), where its metadata do not."""
_FILES = re.compile(r"(?i)(licen[cs]e|copying|notice|authors)")


class Bundled(NamedTuple):
    """A distribution that comes with hearth."""

    name: str
    version: str
    licence: str | None
    texts: tuple[str, ...]
    """Its licence files, relative to site-packages."""


def licence_of(metadata: Message) -> str | None:
    """The SPDX expression of a distribution's licence; None if its metadata leave it open."""
    name = re.sub(r"[-_.]+", "-", metadata.get("Name", "")).lower()
    declared = metadata.get("License-Expression") or _BY_TEXT.get(name)
    if declared is None:
        text = (metadata.get("License") or "").strip()
        declared = text if is_expression(text) else _WORDS.get(text.lower())
    if declared is None:
        told = {_CLASSIFIERS[line] for line in metadata.get_all("Classifier", ()) if line in _CLASSIFIERS}
        declared = " OR ".join(sorted(told)) or None
    return declared


def is_expression(text: str) -> bool:
    """Whether text is an SPDX expression over known licences."""
    words = re.sub(r"[()]", " ", text).split()
    return len(words) % 2 == 1 and all(
        word in KNOWN if position % 2 == 0 else word in ("AND", "OR") for position, word in enumerate(words)
    )


def bundled(site: Path) -> list[Bundled]:
    """What is installed in a site-packages, by name."""
    found = []
    for each in distributions(path=[str(site)]):
        metadata: Message = each.metadata  # type: ignore[assignment]  its protocol lacks what a message has
        found.append(Bundled(metadata["Name"], each.version, licence_of(metadata), tuple(sorted(_texts(each, site)))))
    return sorted(found, key=lambda one: one.name.lower())


def _texts(distribution: Distribution, site: Path) -> Iterable[str]:
    for file in distribution.files or ():
        if ".dist-info" in file.parts[0] and _FILES.search(file.name) and (site / file).is_file():
            yield file.as_posix()


def unknown(found: Iterable[Bundled]) -> list[str]:
    """One line for each distribution whose licence is not known, or is none of those that may be passed on."""
    return [
        f"{one.name} {one.version}: {one.licence or 'its metadata name no licence'}; read its text, then name it in "
        f"{Path(__file__).name}"
        for one in found
        if one.licence is None or not is_expression(one.licence)
    ]


_HEAD = """\
# Third-party software

What is installed with hearth {version}, each under its own licence. The texts are in the distributions themselves,
beneath `site-packages`.

| Distribution | Version | Licence | Text |
| --- | --- | --- | --- |"""


def page(found: Iterable[Bundled]) -> str:
    """The list as a page of Markdown."""
    found = list(found)
    version = next((one.version for one in found if one.name == OURS), "")
    rows = [
        f"| {one.name} | {one.version} | {one.licence} | {', '.join(f'`{text}`' for text in one.texts)} |"
        for one in found
        if one.name != OURS
    ]
    return "\n".join((_HEAD.format(version=version), *rows, ""))


def main() -> int:
    """Write the list; 1 if it has a hole."""
    found = bundled(Path(sys.argv[1]))
    if wrong := unknown(found):
        sys.stderr.write("".join(f"licences: {line}\n" for line in wrong))
        return 1
    Path(sys.argv[2]).write_text(page(found), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
