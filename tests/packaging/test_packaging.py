"""The package that people install is the tree that we see: one import package from three folders (decision 0001)."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import hearth

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FOLDERS = {"hearth": "hearth", "actors": "hearth.actors", "drivers": "hearth.drivers"}
"""Folder -> the package it is."""


def python(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, *arguments, cwd=cwd, **env)


def run(*command: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def modules() -> dict[str, Path]:
    """Every module of the three folders by its dotted name, the links not followed."""
    found = {}
    for folder, package in FOLDERS.items():
        for file in (ROOT / folder).rglob("*.py"):
            inside = file.relative_to(ROOT / folder)
            if folder == "hearth" and inside.parts[0] in FOLDERS:
                continue
            parts = [package, *inside.with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def test_the_list_of_packages_is_complete() -> None:
    packages = {name for name, file in modules().items() if file.name == "__init__.py"}
    assert sorted(packages) == PROJECT["tool"]["setuptools"]["packages"]


def test_every_module_is_in_a_package_of_the_list() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]
    inner = [name for name, file in modules().items() if file.name != "__init__.py"]
    assert not [name for name in inner if name.rpartition(".")[0] not in listed]


def test_the_mapping_and_the_two_links_agree() -> None:
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {package: folder for folder, package in FOLDERS.items()}
    for folder in ("actors", "drivers"):
        link = ROOT / "hearth" / folder
        assert link.is_symlink()
        assert link.readlink() == Path("..") / folder, "relative, so that it holds wherever the tree is"
        assert link.resolve() == ROOT / folder


@pytest.mark.slow
def test_every_folder_stands_at_the_top_and_there_are_no_others_with_code() -> None:
    private = {"build", "dist", ".venv"}
    code = {file.relative_to(ROOT).parts[0] for file in ROOT.glob("*/**/*.py")} - private
    visible = {name for name in code if not name.startswith(".") and not name.endswith(".egg-info")}
    assert visible == {"hearth", "actors", "drivers", "tests", "docs", "examples", "benchmarks", "packaging"}
    assert not list(ROOT.glob("*.py"))


@pytest.mark.parametrize("folder", ["actors", "drivers"])
def test_a_folder_is_not_importable_by_its_own_name(folder: str) -> None:
    done = python("-c", f"import {folder}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert f"hearth.{folder}" in done.stderr.splitlines()[-1], "the message names the cure"


@pytest.mark.slow
def test_a_robots_own_folder_of_that_name_is_left_alone(tmp_path: Path) -> None:
    for folder in ("actors", "drivers"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("mine = True\n")
    code = "import actors, drivers, hearth.drivers.base; assert actors.mine and drivers.mine"
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_client_imports_neither_actors_nor_drivers_nor_hardware_libraries() -> None:
    code = (
        "import sys, json, hearth; hearth.connect, hearth.step, hearth.RpcError; print(json.dumps(sorted(sys.modules)))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    ours = ("hearth.actors", "hearth.drivers")
    heavy = ("gpiod", "smbus2", "serial", "cattrs", "jsonschema", "cryptography", "psutil")
    assert "trio" in loaded
    assert not [name for name in loaded if name.startswith(ours + heavy)]


def test_the_version_is_said_once() -> None:
    assert importlib.metadata.version("hearthd") == hearth.__version__
    assert f"## {hearth.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def texts() -> dict[str, str]:
    """Every file of text that people read or run, by its path."""
    folders = ("hearth", "actors", "drivers", "tests", "docs", "examples", "benchmarks", "packaging", ".ci")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    kinds = (".py", ".md", ".toml", ".txt", ".html", ".js", ".json", ".in", ".conf", ".service", "")
    files += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    outside = {"corpus", "__pycache__", "node_modules"}
    return {
        str(file.relative_to(ROOT)): file.read_text("utf-8", errors="replace")
        for file in files
        if file.suffix in kinds and outside.isdisjoint(file.parts) and file != Path(__file__)
    }


def test_every_text_names_the_distribution_and_not_a_strangers() -> None:
    assert PROJECT["project"]["name"] == "hearthd"
    extras = "|".join(PROJECT["project"]["optional-dependencies"])
    stranger = re.compile(
        rf"""(?x) hearth \\? \[ (?:{extras}) \b          # an extra of hearth, in an expression too
        | (?: pip[ ]install | pipx[ ]install | uv[ ]tool[ ]install | uv[ ]add | uvx | --from | --spec )
          (?: [ ] -[\w=-]+ )* [ ] ['"]? hearth (?![\w./-])
        """
    )
    wrong = {f"{name}: {found[0]}" for name, text in texts().items() for found in stranger.finditer(text)}
    assert not wrong
    for text in ("pip install 'hearth[mcp]'", "pip install --user hearth", "uvx hearth", "pipx run --spec hearth x"):
        assert stranger.search(text)
    for text in ("pip install 'hearthd[mcp]'", "uvx --from hearthd hearth demo", "pip install hearth-acme"):
        assert not stranger.search(text)
    named = {extra for text in texts().values() for extra in re.findall(r"hearthd\\?\[(\w+)", text)}
    assert named <= {*PROJECT["project"]["optional-dependencies"]}


def test_types_are_shipped() -> None:
    assert (ROOT / "hearth" / "py.typed").exists()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["hearth"]


def test_the_constraints_name_versions_and_no_index() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+(\s*;.*)?", pin) for pin in pins)
    pinned = {normal(pin.partition("==")[0]) for pin in pins}
    needed = {normal(re.split(r"[\[><=;]", dependency)[0]) for dependency in PROJECT["project"]["dependencies"]}
    assert needed <= pinned


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower().strip()


@pytest.mark.slow
def test_imports_run_one_way() -> None:
    done = run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = len(PROJECT["tool"]["importlinter"]["contracts"])
    assert f"Contracts: {contracts} kept, 0 broken." in done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree, since building leaves things beside the source."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    for name in ("hearth", "actors", "drivers"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    built = python(
        *("-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--wheel-dir", str(directory), str(source)),
        cwd=directory,
    )
    if built.returncode and "No matching distribution found for setuptools" in built.stderr:
        pytest.skip("building a wheel needs a package index here")
    assert built.returncode == 0, built.stderr
    (file,) = directory.glob("hearthd-*.whl")
    return file


@pytest.mark.proof
def test_the_wheel_has_every_module_board_capability_and_the_marker_for_types_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = set()
    for name, file in modules().items():
        path = name.replace(".", "/")
        expected.add(f"{path}/__init__.py" if file.name == "__init__.py" else f"{path}.py")
    boards = {f"hearth/drivers/boards/{file.name}" for file in (ROOT / "drivers" / "boards").glob("*.toml")}
    assert {"hearth/drivers/boards/sim.toml", "hearth/drivers/boards/rpi5.toml"} <= boards
    assert "hearth/hcp/capabilities/bench_climate_survey.py" in expected
    skeleton = {f"hearth/cli/skeleton/{name}.txt" for name in ("capability", "test")}
    assert names == expected | boards | skeleton | {"hearth/py.typed"}


@pytest.mark.proof
def test_what_the_wheel_installs_runs(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    installed = python(*install, "--target", str(site), str(wheel))
    assert installed.returncode == 0, installed.stderr
    assert {"hearth", "hearthd"} <= {script.name for script in (site / "bin").iterdir()}
    for board in ("sim", "rpi4", "rpi5", "generic-linux"):
        code = (
            "import hearth, sys; from hearth.actors.daemon import main; "
            f"assert hearth.__file__.startswith({str(site)!r}); main(['--check', '--board', '{board}'])"
        )
        done = python("-c", code, cwd=tmp_path, PYTHONPATH=str(site), STATE_DIRECTORY=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert f"configuration is good: board {board}" in done.stdout
