"""The manual pages: made from what they describe, complete, and clean by the word of man and mandoc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from hearth.actors.daemon import options_parser
from hearth.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
NAMES = ("hearth.1", "hearthd.8", "hearth.toml.5")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("man")
    script = ROOT / "packaging" / "manpages.py"
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1776638881"}
    subprocess.run([sys.executable, str(script), str(directory)], check=True, timeout=120, env=env)
    assert {page.name for page in directory.iterdir()} == set(NAMES)
    return directory


def plain(page: Path) -> str:
    """A page's words, without roff."""
    text = page.read_text("utf-8").replace("\\-", "-").replace("\\(ga", "`").replace("\\(ti", "~").replace("\\(ha", "^")
    return re.sub(r"\\f[BIR]", "", text).replace("\\e", "\\").replace("\\(dq", '"').replace("\\&", "")


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Every command that can be given, with its whole name."""
    if not isinstance(command, click.Group):
        yield context.command_path, command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, click.Context(inner, info_name=name, parent=context))


def test_every_command_with_every_option_is_in_hearth_1(pages: Path) -> None:
    text = plain(pages / "hearth.1")
    found = dict(commands(cli, click.Context(cli, info_name="hearth")))
    assert len(found) > len(cli.places)
    for path, command in found.items():
        assert f'.SS "{path} ' in text or f'.SS "{path}"' in text, path
        for parameter in command.params:
            for option in parameter.opts if isinstance(parameter, click.Option) and not parameter.hidden else ():
                assert option in text, f"{path} {option}"


def test_every_option_of_the_daemon_is_in_hearthd_8(pages: Path) -> None:
    text = plain(pages / "hearthd.8")
    for action in options_parser()._actions:
        for option in action.option_strings:
            assert option in text


def test_every_key_of_the_configuration_is_in_hearth_toml_5(pages: Path) -> None:
    text = plain(pages / "hearth.toml.5")
    page = (ROOT / "docs" / "reference" / "config.md").read_text("utf-8")
    keys = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    assert len(keys) > 60
    assert re.findall(r"^\.TP\n(\w+)$", text, re.MULTILINE) == keys
    sections = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert [section for section in sections if f'.SH "{section}"' not in text] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed: apt-get install man-db")
def test_man_shows_it_without_a_warning(pages: Path, name: str) -> None:
    env = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["man", "--warnings", "-l", str(pages / name)], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith(name.rpartition(".")[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed: apt-get install mandoc")
def test_mandoc_has_nothing_against_it(pages: Path, name: str) -> None:
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", str(pages / name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
