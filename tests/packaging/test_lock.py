"""packaging/requirements.lock: what is installed to build, test and package hearth, file by file, by its hash."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
LOCK = (PACKAGING / "requirements.lock").read_text("utf-8")
ALL = (
    "build", "run", "amqp", "ask", "can", "hcp", "mcp", "http", "plot", "tui", "test", "fuzz", "dev", "sbom", "site",
    "installers", "tpm", "tpm-build",
)  # fmt: skip
OURS_OR_PIPS = {"hearthd", "acme-beacon", "acme-lamp", "pip", "setuptools"}
"""The example is found in tree where the tests of kinds have run in this process. What `python -m venv` brings has its
own version; the setuptools that builds is looked at by itself."""


@pytest.fixture(scope="module")
def lock():
    return load("lock")


def load(name):
    """A script of packaging/, which is no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PACKAGING))
        sys.modules.pop(name, None)
        return __import__(name)


def names(text):
    """Name -> version of a requirements file."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, re.MULTILINE))


def test_the_lock_has_each_version_that_is_pinned_and_no_other(lock) -> None:
    assert names(LOCK) == lock.pins()
    assert names(lock.requirements(*ALL)) == lock.pins()


@pytest.mark.slow
def test_what_is_installed_here_is_what_the_lock_has(lock) -> None:
    installed = {lock.canonical(each.metadata["Name"]): each.version for each in distributions()}
    ours = {name: version for name, version in installed.items() if name not in OURS_OR_PIPS}
    assert len(ours) > 60
    assert ours.items() <= names(LOCK).items()


SETS = [
    ("run",),
    ("run", "amqp", "hcp", "mcp"),
    ("run", "ask", "can", "hcp", "mcp", "plot", "tui", "test", "fuzz", "dev"),
]


@pytest.mark.parametrize("sets", SETS, ids=" ".join)
def test_a_set_has_all_that_its_distributions_need_here(lock, sets) -> None:
    """pip resolves nothing by itself where it is to check hashes: one that is missing is an error."""
    found = names(lock.requirements(*sets))
    asked = [(root, True) for each in sets for root in lock.wanted()[each]]
    seen = set()
    while asked:
        requirement, here = asked.pop()
        name = lock.canonical(requirement.name)
        assert name in found, f"{requirement} of {sets}"
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                lines = requires(name) or []
            except PackageNotFoundError:
                if here and "dev" in sets:
                    pytest.skip(f"{name} is not installed: `make lint` installs it")
                assert not here, f"{name} of {sets} is not installed"
                continue
            for need in map(Requirement, lines):
                # By this Python and machine, and by each that the lock is for.
                where = [{"extra": extra}, *lock.environments(extra)]
                met = [need.marker is None or need.marker.evaluate(each) for each in where]
                asked += [(need, met[0])] if any(met) else []
    assert {name for name, _ in seen} == {*found}, "and nothing else"


def test_the_lock_names_no_index_and_no_machine() -> None:
    blocks = LOCK.strip().split("\n\n")[1:]
    assert len(blocks) > 100
    for block in blocks:
        first, requirement, *hashes = block.splitlines()
        assert re.fullmatch(r"# for [a-z -]+", first)
        assert re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.+!]+( ; [a-z_]+ [^:/]*)? \\", requirement)
        assert hashes
        for line in hashes:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line)


def test_the_build_backend_is_in_the_lock_as_pyproject_asks_for_it(lock) -> None:
    (backend,) = lock.wanted()["build"]
    assert names(lock.requirements("build"))[backend.name] in backend.specifier


def test_printing_needs_nothing_but_python() -> None:
    command = [sys.executable, "-I", "-S", str(PACKAGING / "lock.py"), "build", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert {"setuptools", "trio"} <= {*names(done.stdout)}
    assert "pytest" not in names(done.stdout)


def test_a_set_that_there_is_not_is_refused(lock) -> None:
    with pytest.raises(SystemExit, match="tests is no set of requirements; there are amqp, ask, build, can, dev"):
        lock.requirements("run", "tests")


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("a-1.tar.gz", True),
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-py2-none-any.whl", False),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp38-abi3-musllinux_1_2_aarch64.whl", True),
        ("a-1-1-cp314-cp314-linux_armv7l.whl", True),
        ("a-1-cp314-cp314t-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp312-cp312-macosx_11_0_arm64.whl", False),
        ("a-1-cp312-cp312-win_amd64.whl", False),
        ("a-1-pp311-pypy311_pp73-manylinux_2_17_x86_64.whl", False),
    ],
)
def test_the_files_are_those_that_linux_could_install(lock, filename: str, fits: bool) -> None:
    assert lock.fits(filename) is fits


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    made = tmp_path / "hearth_locked-1-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as content:
        content.writestr("hearth_locked.py", "")
        about = "Metadata-Version: 2.1\nName: hearth-locked\nVersion: 1\n"
        content.writestr("hearth_locked-1.dist-info/METADATA", about)
        content.writestr("hearth_locked-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        content.writestr("hearth_locked-1.dist-info/RECORD", "")
    return made


@pytest.mark.proof
def test_a_file_with_another_hash_is_not_installed(wheel: Path, tmp_path: Path) -> None:
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    runtime, target = load("runtime"), tmp_path / "site"
    python = Path(sys.executable)
    with pytest.raises(subprocess.CalledProcessError):
        runtime.install_locked(f"{wheel} --hash=sha256:{right[::-1]}\n", "--target", target, python=python)
    with pytest.raises(subprocess.CalledProcessError):
        runtime.install_locked(f"{wheel}\n", "--target", target, python=python)
    assert not target.exists()
    runtime.install_locked(f"{wheel} --hash=sha256:{right}\n", "--target", target, python=python)
    assert (target / "hearth_locked.py").exists()


def test_nothing_is_installed_without_its_hash_or_with_scripts_of_its_own() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    recipes = [line for line in makefile.splitlines() if line.startswith("\t")]
    installs = [line for line in recipes if "$(PIP)" in line or "pip install" in line]
    assert len(installs) >= 3
    for line in installs:
        # The second is hearth itself, from here, by the build backend that has been installed.
        assert "--require-hashes" in line or "--no-deps --no-build-isolation" in line, line
    for line in recipes:
        if "npm install" in line and "apt-get" not in line:
            assert "--ignore-scripts" in line
    for script in PACKAGING.glob("*.py"):
        for call in re.findall(r'pip\("install".*', script.read_text("utf-8")):
            assert "*checked" in call, f"{script.name}: {call}"
    assert "export PIP_ONLY_BINARY=:all:" in (ROOT / ".ci" / "run").read_text("utf-8")
