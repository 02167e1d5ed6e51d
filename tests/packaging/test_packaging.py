"""The package that people install is the tree that we see: one import package from three folders (decision 0001)."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hearth

if TYPE_CHECKING:
    from collections.abc import Callable

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
    private = {"build", "dist", "site", ".venv"}
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


@pytest.mark.slow
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


# --- what is built ----------------------------------------------------------------------------------------------------

WHEEL, SDIST = f"hearthd-{hearth.__version__}-py3-none-any.whl", f"hearthd-{hearth.__version__}.tar.gz"
COMMITTED = 1_776_638_881
"""Epoch seconds: when the commit was made that is built, for these tests."""


def packaging_script(name: str) -> Any:
    """A script of packaging/, which is no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "packaging"))
        return importlib.import_module(name)


def clean_copy(copy: Path) -> Path:
    """Copy what the wheel is built from, and what builds it."""
    packaging_script("runtime").copy_source(copy)
    shutil.copytree(ROOT / "packaging", copy / "packaging", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Makefile", copy)
    return copy


def built(copy: Path, time: int, *, umask: int, zone: str) -> dict[str, Path]:
    """The two files that a clean copy of the tree builds, by their names."""
    made = subprocess.run(
        [sys.executable, "packaging/dist.py", "--out", "out"],
        cwd=clean_copy(copy), umask=umask, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(time), "TZ": zone},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [f"out/{name}" for name in (WHEEL, SDIST)]
    return {file.name: file for file in (copy / "out").iterdir()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution, by their names."""
    return built(tmp_path_factory.mktemp("dist") / "source", COMMITTED, umask=0o022, zone="UTC")


@pytest.fixture(scope="module")
def wheel(dist: dict[str, Path]) -> Path:
    return dist[WHEEL]


def test_the_time_in_a_build_is_that_of_the_last_commit_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = packaging_script("runtime")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
    assert runtime.epoch() == 5
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    committed = run("git", "log", "-1", "--format=%ct").stdout
    changed = int((ROOT / "CHANGELOG.md").stat().st_mtime)
    assert runtime.epoch() == int(committed or changed)
    monkeypatch.setenv("PATH", "")
    assert runtime.epoch() == changed


@pytest.mark.proof
def test_the_same_source_gives_the_same_bytes(dist: dict[str, Path], tmp_path: Path) -> None:
    again = built(tmp_path / "elsewhere" / "copy", COMMITTED, umask=0o077, zone="Asia/Tokyo")
    assert [again[name].read_bytes() == dist[name].read_bytes() for name in (WHEEL, SDIST)] == [True, True]
    later = built(tmp_path / "later", COMMITTED + 86_400, umask=0o022, zone="UTC")
    assert [later[name].read_bytes() == dist[name].read_bytes() for name in (WHEEL, SDIST)] == [False, False]


@pytest.mark.proof
def test_the_source_distribution_builds_the_same_wheel_and_has_no_file_twice(
    dist: dict[str, Path], tmp_path: Path
) -> None:
    with tarfile.open(dist[SDIST]) as archive:
        members = archive.getmembers()
        archive.extractall(tmp_path, filter="data")
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert {(member.uid, member.gid, member.uname, member.mtime) for member in members} == {(0, 0, "root", COMMITTED)}
    (top,) = tmp_path.iterdir()
    inside = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert {"actors/runtime.py", "drivers/base.py", "hearth/py.typed", "LICENSE", "pyproject.toml"} <= inside
    assert not [name for name in inside if name.startswith(("hearth/actors", "hearth/drivers", "tests"))]
    script = packaging_script("dist")
    script.prepare(top, COMMITTED)
    again = script.call("build_wheel", top, tmp_path / "out", COMMITTED)
    assert again.read_bytes() == dist[WHEEL].read_bytes()


@pytest.mark.proof
def test_the_wheel_has_every_module_board_capability_and_the_marker_for_types_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = set()
    for name, file in modules().items():
        path = name.replace(".", "/")
        expected.add(f"{path}/__init__.py" if file.name == "__init__.py" else f"{path}.py")
    boards = {f"hearth/drivers/boards/{file.name}" for file in (ROOT / "drivers" / "boards").glob("*.[td][ob][mc]*")}
    assert {"hearth/drivers/boards/sim.toml", "hearth/drivers/boards/rpi5.toml"} <= boards
    assert "hearth/hcp/capabilities/bench_climate_survey.py" in expected
    skeleton = {f"hearth/cli/skeleton/{name}.txt" for name in ("capability", "test")}
    pages = ROOT / "actors" / "bridges" / "http" / "ui"
    page = {f"hearth/actors/bridges/http/ui/{file.relative_to(pages)}" for file in pages.rglob("*") if file.is_file()}
    assert names == expected | boards | skeleton | page | {
        "hearth/__init__.pyi",
        "hearth/py.typed",
        "hearth/mcp/families.json",
    }
    # A link in the tree, to the client that is published.
    client = zipfile.ZipFile(wheel).read("hearth/actors/bridges/http/ui/hacp.js")
    assert client == (ROOT / "packaging" / "npm" / "hacp.js").read_bytes()


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


# --- what is installed ------------------------------------------------------------------------------------------------

PROGRAMS = f"{ROOT / '.venv-installers' / 'bin'}{os.pathsep}{os.environ['PATH']}"
"""Where pipx and uv are looked for: `make installers` puts them into the first."""
PLAYED = re.compile(r"^\d\d claims, each checked, in [\d.]+ s\.$", re.MULTILINE)


@pytest.fixture
def do(tmp_path: Path, wheel: Path) -> Callable[..., str]:
    """Runs a command for a user who has nothing installed yet; returns what it printed."""
    told = python("-m", "pip", "config", "list").stdout
    settings = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", told, re.MULTILINE))
    variables = {
        # The index that pip asks.
        "UV_DEFAULT_INDEX": settings.get("index-url"),
        "SSL_CERT_FILE": settings.get("cert"),
        **os.environ,
        # The versions that hearth is tested with.
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "UV_CONSTRAINT": str(ROOT / "constraints.txt"),
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
        "PIPX_DEFAULT_PYTHON": sys.executable,
        # The wheel is beside the index, where the first release will be in it.
        "PIP_FIND_LINKS": f"{wheel.parent} {os.environ.get('PIP_FIND_LINKS', '')}",
        "UV_FIND_LINKS": str(wheel.parent),
        "HOME": str(tmp_path),
        "PATH": PROGRAMS,
        "NO_COLOR": "1",
    }
    unwanted = ("HEARTH", "XDG", "VIRTUAL_ENV", "PYTHONPATH")
    environ = {name: value for name, value in variables.items() if value and not name.startswith(unwanted)}

    def done(program: str, *words: str | Path, code: int = 0) -> str:
        found = shutil.which(tmp_path / program) if "/" in program else shutil.which(program, path=PROGRAMS)
        if found is None:
            pytest.skip(f"{program} is not here: make installers")
        ended = subprocess.run(
            [found, *map(str, words)],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    return done


@pytest.mark.proof
def test_pip_installs_it_alone_and_each_extra_that_is_missing_is_named(do: Callable[..., str], wheel: Path) -> None:
    do(sys.executable, "-m", "venv", "own")
    do("own/bin/pip", "install", "--quiet", wheel)
    assert do("own/bin/hearth", "--version") == f"hearth {hearth.__version__}\n"
    assert PLAYED.search(do("own/bin/hearth", "demo", "--fast"))
    assert "pip install 'hearthd[mcp]'" in do("own/bin/hearth", "mcp", code=2)
    assert "pip install 'hearthd[hcp]'" in do("own/bin/hearth", "hcp", "jobs", code=2)
    installed = do("own/bin/pip", "list", "--format", "freeze").lower()
    assert not re.search(r"^(mcp|isodate|semantic-version|pillow|pytest|starlette)==", installed, re.MULTILINE)


@pytest.mark.proof
def test_a_vendors_kind_passes_the_suite_of_all_kinds_from_its_own_wheel(
    do: Callable[..., str], wheel: Path, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "examples" / "acme_lamp", tmp_path / "source")
    for part in ("conftest.py", "kinds", "support"):
        copy = shutil.copy if part.endswith(".py") else shutil.copytree
        (tmp_path / "suite" / "tests").mkdir(parents=True, exist_ok=True)
        copy(ROOT / "tests" / part, tmp_path / "suite" / "tests" / part)
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "suite")
    do(sys.executable, "-m", "venv", "own")
    do("own/bin/pip", "install", "--quiet", f"hearthd[can,test] @ {wheel.as_uri()}")
    do("own/bin/pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "wheels", "./source")
    do("own/bin/pip", "install", "--quiet", *(tmp_path / "wheels").iterdir())
    told = do("own/bin/python", "-m", "pytest", "-q", "-k", "lamp or vendor", "suite/tests/kinds")
    assert int(re.findall(r"^(\d+) passed", told, re.MULTILINE)[0]) > 100, told
    assert str(tmp_path / "own") in do("own/bin/python", "-c", "import acme_lamp; print(acme_lamp.__file__)")


@pytest.mark.proof
def test_a_vendors_extra_is_served_from_its_own_wheel(do: Callable[..., str], wheel: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "acme_beacon", tmp_path / "source")
    do(sys.executable, "-m", "venv", "own")
    do("own/bin/pip", "install", "--quiet", wheel)
    do("own/bin/pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "wheels", "./source")
    do("own/bin/pip", "install", "--quiet", "--no-deps", *(tmp_path / "wheels").iterdir())
    (tmp_path / "hearth.toml").write_text(f'[audit]\npath = "{tmp_path}/audit.log"\n[beacon]\nevery_s = 0.05\n')
    assert "[beacon] every_s: 0.05 is a load" in do("own/bin/hearthd", "--config", "hearth.toml", "--check")
    assert '[beacon]\nmessage = "on air"' in do("own/bin/hearthd", "--config", "hearth.toml", "--print-config")
    served = (
        "import pathlib, trio, hearth\n"
        "async def main():\n"
        "    config = hearth.load_config(pathlib.Path('hearth.toml'))\n"
        "    async with hearth.open_runtime(config=config) as runtime, runtime.open_session() as session:\n"
        "        print((await session.run('hw.board'))['health']['beacon']['message'])\n"
        "trio.run(main)\n"
    )
    assert do("own/bin/python", "-c", served) == "on air\n"


@pytest.mark.proof
def test_pipx_installs_it_and_runs_it_without_installing_it(do: Callable[..., str], wheel: Path) -> None:
    assert PLAYED.search(do("pipx", "run", "--spec", wheel, "hearth", "demo", "--fast"))
    do("pipx", "install", wheel)
    assert PLAYED.search(do(".local/bin/hearth", "demo", "--fast"))


@pytest.mark.proof
def test_uv_installs_it_and_runs_it_without_installing_it(do: Callable[..., str], wheel: Path) -> None:
    assert PLAYED.search(do("uvx", "--from", wheel, "hearth", "demo", "--fast"))
    do("uv", "tool", "install", wheel)
    assert PLAYED.search(do(".local/bin/hearth", "demo", "--fast"))


INSTALLING = ("README.md", "docs/getting-started.md")
"""The pages that say how hearth is installed; what they run besides is played in tests/docs."""


@pytest.mark.proof
@pytest.mark.parametrize("page", INSTALLING)
def test_each_command_of_a_page_that_installs_hearth_does_so(do: Callable[..., str], page: str) -> None:
    commands = re.findall(r"^((?:uvx|pipx) .*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    assert {shlex.split(command)[0] for command in commands} == {"uvx", "pipx"}
    for command in commands:
        printed = do(*shlex.split(command))
        assert command.startswith("pipx install ") or PLAYED.search(printed), command
    assert do(".local/bin/hearth", "--version") == f"hearth {hearth.__version__}\n"
    assert "mcpServers" in do(".local/bin/hearth", "mcp", "--print-config", "claude")


@pytest.mark.proof
def test_the_demo_of_a_clean_copy_installs_what_it_needs_and_no_more(tmp_path: Path) -> None:
    copy = clean_copy(tmp_path / "copy")
    # As from a shell, also when the tests are run by make itself.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "demo", f"PYTHON={sys.executable}"], env=environ,
        cwd=copy, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[:8] for line in done.stdout.splitlines()[:3]] == ["1 of 3: ", "2 of 3: ", "3 of 3: "]
    assert PLAYED.search(done.stdout)
    assert "Next: `.venv/bin/hearthd --board sim`" in done.stdout
    (site,) = (copy / ".venv" / "lib").glob("python3.*/site-packages")
    names = {file.name.partition("-")[0].lower() for file in site.glob("*.dist-info")}
    assert "trio" in names
    assert not names & {"pytest", "hypothesis", "pillow", "mcp", "atheris", "mypy"}
