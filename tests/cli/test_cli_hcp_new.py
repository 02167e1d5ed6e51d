"""`hearth hcp new`: what it writes passes its own test, is accepted by hearthd, and overwrites nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hearth.cli.hcp_new import new

BIN = Path(sys.executable).parent


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HEARTH", "PYTEST"))}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.proof
def test_what_is_written_passes_its_test_and_is_offered_by_a_daemon(tmp_path):
    written = run(tmp_path, BIN / "hearth", "hcp", "new", "fan-check")
    assert written.returncode == 0, written.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fan_check.py", "test_fan_check.py"]
    tested = run(tmp_path, sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", ".")
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout
    # The configuration line of the next steps, as it was printed.
    (line,) = [line.partition("under [hcp]: ")[2] for line in written.stdout.splitlines() if "under [hcp]: " in line]
    config = tmp_path / "hearth.toml"
    config.write_text(
        f'[audit]\npath = "{tmp_path}/audit.log"\n[server]\nsocket = "{tmp_path}/s"\n[hcp]\nshipped = []\n{line}\n'
    )
    checked = run(tmp_path, BIN / "hearthd", "--config", config, "--check")
    assert checked.returncode == 0, checked.stderr
    assert " 1 capabilities" in checked.stdout


def test_json_names_the_files(tmp_path):
    done = CliRunner().invoke(new, ["fan-check", "-d", str(tmp_path), "--json"])
    assert json.loads(done.output) == {
        "name": "fan-check",
        "capability": f"{tmp_path}/fan_check.py",
        "test": f"{tmp_path}/test_fan_check.py",
    }


@pytest.mark.parametrize("there", ["fan_check.py", "test_fan_check.py"])
def test_a_file_that_is_there_is_left_alone_and_nothing_is_written(tmp_path, there):
    (tmp_path / there).write_text("mine")
    done = CliRunner().invoke(new, ["fan-check", "-d", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{tmp_path}/{there} exists" in done.output
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {there: "mine"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Fan-Check", "is no name of a capability"),
        ("fan_check", "is no name of a capability"),
        ("fan--check", "is no name of a capability"),
        ("-fan", "No such option"),
        ("3d-print", "a letter first"),
        ("../fan", "is no name of a capability"),
        ("x" * 65, "at most 64 characters"),
        ("json", "would hide a module of Python's own"),
        ("class", "would hide a module of Python's own"),
    ],
)
def test_a_name_that_is_none_is_a_usage_error_with_the_cure(tmp_path, name, why):
    done = CliRunner().invoke(new, [name, "-d", str(tmp_path)])
    assert done.exit_code == 2
    assert why in done.output
    assert not any(tmp_path.iterdir())
