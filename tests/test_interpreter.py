"""hearth/_util/python.py: no directory that somebody else wrote decides what a process of ours imports."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hearth._util import python
from hearth._util.python import python_module

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
SHIPPED = ("hearth", "actors", "drivers", "examples", "packaging")
MAY_NAME_THE_INTERPRETER = {"hearth/_util/python.py"}
"""The helper."""
HOSTILE = ("json", "asyncio", "trio", "mcp", "click", "hearth", "encodings", "sitecustomize", "usercustomize")
BRIDGE = "hearth.cli.mcp_bridge"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A directory whose modules leave a note in it when they are imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in HOSTILE:
        note = f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n"
        (folder / f"{name}.py").write_text(note)
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(note)
    return folder


def run(folder: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def imported(folder: Path) -> str:
    note = folder.parent / "imported"
    return note.read_text() if note.exists() else ""


@pytest.mark.proof
@pytest.mark.parametrize(
    "words",
    [
        pytest.param([str(BIN / "hearth"), "mcp", "--to", "unix:/nonexistent"], id="mcp"),
        pytest.param([str(BIN / "hearth"), "demo", "--fast"], id="demo", marks=pytest.mark.slow),
        pytest.param([str(BIN / "hearthd"), "--check"], id="hearthd"),
        pytest.param([*python_module("hearth.cli.main"), "--version"], id="the line for an MCP client"),
    ],
)
def test_nothing_is_imported_from_the_working_directory(hostile: Path, words: list[str]) -> None:
    done = run(hostile, *words)
    assert imported(hostile) == ""
    if words[-1] in ("--fast", "--version"):
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("has_user_site", [False, True])
def test_no_variable_says_where_a_child_imports_from(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, has_user_site: bool
) -> None:
    monkeypatch.setattr(python.site, "ENABLE_USER_SITE", has_user_site)
    done = run(hostile, *python_module(BRIDGE, "--help"), PYTHONPATH=f"{hostile}:", PYTHONSTARTUP=f"{hostile}/json.py")
    assert done.returncode == 0, done.stderr
    assert imported(hostile) == ""


@pytest.mark.slow
def test_the_same_without_isolation_imports_what_lies_there(hostile: Path) -> None:
    """The tests above could find something."""
    run(hostile, sys.executable, "-m", BRIDGE, "--help")
    assert imported(hostile)


def trees(word: str) -> Iterator[tuple[str, ast.Module]]:
    """The modules whose text has this word, by their paths."""
    for path in sorted(path for part in SHIPPED for path in (ROOT / part).rglob("*.py")):
        if word in (text := path.read_text("utf-8")):
            yield str(path.relative_to(ROOT)), ast.parse(text)


@pytest.mark.slow
def test_one_function_says_how_a_python_program_of_ours_is_started() -> None:
    naming = {
        name
        for name, tree in trees("executable")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "executable" and not name.startswith("packaging/")
    }
    assert naming == MAY_NAME_THE_INTERPRETER


@pytest.mark.slow
def test_no_command_names_a_module_without_isolation() -> None:
    found = 0
    for name, tree in trees("-m"):
        for node in ast.walk(tree):
            words = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
            constants = [word.value for word in words if isinstance(word, ast.Constant)]
            if "-m" in constants and name not in MAY_NAME_THE_INTERPRETER:
                found += 1
                assert "-I" in constants, f"{name}:{node.lineno}"
    assert found >= 4
