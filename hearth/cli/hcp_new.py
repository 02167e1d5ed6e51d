"""`hearth hcp new NAME`: the skeleton of a capability and of its test, for an author to change. It needs no daemon."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

import click

from hearth.cli import common
from hearth.cli.common import DONE, Options, standard
from hearth.errors import HearthError
from hearth.hcp import require

LONGEST_NAME = 64
"""Limit of a capability's name, in characters."""

SKELETON = Path(__file__).parent / "skeleton"
"""The directory of the skeleton's texts, which have CAPABILITY-NAME, FUNCTION_NAME and MODULE_NAME as placeholders."""


@click.command()
@click.argument("name")
@click.option("-d", "--directory", metavar="DIRECTORY", default=".", help="Where to write them; else here.")
@standard
def new(options: Options, name: str, directory: str) -> int:
    """Write the skeleton of the capability NAME, such as fan-check, and a test that passes. Overwrites nothing."""
    require("hearth hcp")
    function = _function_name(name)
    folder = Path(directory)
    files = {folder / f"{function}.py": "capability.txt", folder / f"test_{function}.py": "test.txt"}
    for file in files:
        if file.exists():
            raise HearthError(f"{file} exists, and nothing was written; choose another name, or remove it")
    for file, skeleton in files.items():
        filled = (SKELETON / skeleton).read_text("utf-8").replace("CAPABILITY-NAME", name)
        filled = filled.replace("FUNCTION_NAME", function).replace("MODULE_NAME", function)
        # "x": do not overwrite a file that was made after the check above.
        with file.open("x", encoding="utf-8") as opened:
            opened.write(filled)
    code, test = files
    if options.json:
        click.echo(common.compact({"name": name, "capability": str(code), "test": str(test)}))
    else:
        click.echo("\n".join(_next_steps(code, test)))
    return DONE


def _function_name(name: str) -> str:
    """Return the name of the function and its module. Raises UsageError if `name` cannot be a capability's name."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > LONGEST_NAME:
        raise click.UsageError(
            f"{name!r} is no name of a capability: expected lower-case letters and digits, in words joined by hyphens, "
            f'such as "bench-climate-survey", at most {LONGEST_NAME} characters, a letter first'
        )
    function = name.replace("-", "_")
    if keyword.iskeyword(function) or function in sys.stdlib_module_names:
        raise click.UsageError(f"{name!r} would hide a module of Python's own; add a word, such as {name}-check")
    return function


def _next_steps(code: Path, test: Path) -> list[str]:
    return [
        f"{code}  the capability",
        f"{test}  its test",
        "",
        "Next:",
        f"  1. change {code.name} to what you need",
        f"  2. pytest {test}",
        f'  3. in hearth.toml, under [hcp]: capabilities = ["{code.resolve()}"]',
        "  4. hearthd --check, and restart hearthd",
    ]
