"""Writes the bill of materials (CycloneDX, JSON) and the licence list of what hearth needs at run time.

    python packaging/sbom.py [--out DIRECTORY] [--tools ENVIRONMENT]

Both speak of a clean environment with hearth's base installation: no extra, no tool of ours. The bill is written by
cyclonedx-py, which has an environment of its own, kept in `--tools`: what it brings along would change what jsonschema
checks in ours. A licence that is not known makes it exit with 1.

A licence is what the metadata declare as an SPDX expression. One table translates older words, and one has what the
licence text says where the metadata leave it open ("BSD"). Any other licence is an error: a list with a hole is read as
one without. The Debian package lists its extras in `/usr/share/doc/hearth/copyright`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from licences import bundled, page, unknown
from lock import requirements
from runtime import ROOT, clean_environment, copy_source, install, install_locked

BILL, LICENCES = "hearth.cdx.json", "THIRD-PARTY.md"
SCHEMA = "1.6"
"""Of CycloneDX."""


def tools(directory: Path) -> Path:
    """The interpreter of an environment that has cyclonedx-py; made if it is not there."""
    python = directory / "bin" / "python"
    if not (directory / ".installed").exists():
        clean_environment(directory)
        install_locked(requirements("sbom"), python=python)
        (directory / ".installed").touch()
    return python


def bill(environment: Path, source: Path, target: Path, *, python: Path) -> None:
    """Write the bill of what is in an environment, validated against its schema. Raises CalledProcessError."""
    options = ("--spec-version", SCHEMA, "--output-format", "JSON", "--output-reproducible", "--validate")
    about = ("--pyproject", source / "pyproject.toml", "--mc-type", "application", "--output-file", target)
    command = (python, "-I", "-m", "cyclonedx_py", "environment", *options, *about, environment)
    subprocess.run(list(map(str, command)), check=True)


def main() -> int:
    """Write both; 1 if a licence is not known."""
    parser = argparse.ArgumentParser(description="Write the bill of materials and the licence list.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where they go (default: dist)")
    parser.add_argument("--tools", type=Path, default=ROOT / ".venv-sbom", help="where cyclonedx-py is kept")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hearth-sbom-") as work:
        source = copy_source(Path(work) / "source")
        python = clean_environment(Path(work) / "environment")
        install(source, "--no-compile", python=python)
        asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = subprocess.run([python, "-I", "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
        found = bundled(Path(site))
        if wrong := unknown(found):
            sys.stderr.write("".join(f"licences: {line}\n" for line in wrong))
            return 1
        (options.out / LICENCES).write_text(page(found), "utf-8")
        bill(python, source, options.out / BILL, python=tools(options.tools))
    sys.stdout.write(f"{options.out / BILL}\n{options.out / LICENCES}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
