"""Without the packages of the extra for HCP, everything but jobs works, and jobs are refused with the cure."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.world import BenchWorld, running

import hearth
import hearth.extras
from hearth.actors.build import build_parts
from hearth.config.hcp import HcpConfig
from hearth.config.model import AuditConfig, Config
from hearth.errors import ConfigError, MethodNotFound
from hearth.extras import OWN

if TYPE_CHECKING:
    from pathlib import Path

CURE = "pip install 'hearthd[hcp]'"
BLOCKED = "".join(f"sys.modules[{name!r}] = None; " for name in OWN["hcp"].packages)
FUNCTION = """
import hearth, hearth.testing

@hearth.capability("look-once", version="1.0.0", tools=["gpio.get"], risk_ceiling="R1")
async def look(job) -> dict:
    '''Look.'''
    return {}

try:
    hearth.testing.run_capability(look)
except hearth.ConfigError as error:
    print(error)
"""


def blocked(code: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that cannot import the packages of the extra."""
    command = [sys.executable, "-c", f"import sys; {BLOCKED}\n{code}"]
    environ = {**os.environ, "STATE_DIRECTORY": str(cwd)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd, env=environ)


def hearthd(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return blocked(f"from hearth.actors.daemon import main; main({[*words]})", cwd=cwd)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    found = hearth.extras.find_spec
    absent = OWN["hcp"].packages
    monkeypatch.setattr(hearth.extras, "find_spec", lambda name: None if name in absent else found(name))


@pytest.mark.proof
@pytest.mark.parametrize(
    ("key", "value"), [("serve", "true"), ("capabilities", '["acme-survey"]'), ("shipped", '["bench-*"]')]
)
def test_a_daemon_that_configures_jobs_does_not_start_and_names_the_cure(tmp_path: Path, key: str, value: str) -> None:
    (tmp_path / "hearth.toml").write_text(f"[hcp]\n{key} = {value}\n")
    for words in (["--check"], ["--config", "hearth.toml"]):
        done = hearthd("--config", "hearth.toml", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr == f"hearthd: [hcp] {key}: the packages for HCP are not installed; {CURE}\n"


@pytest.mark.slow
def test_a_daemon_that_configures_no_jobs_starts_without_them(tmp_path: Path) -> None:
    done = hearthd("--check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "capabilities" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", [["hcp", "jobs"], ["hcp", "new", "fan-check"], ["hcp", "submit", "x"]], ids=" ".join)
def test_each_command_about_jobs_ends_with_the_cure(tmp_path: Path, words: list[str]) -> None:
    done = blocked(f"from hearth.cli.main import main; main({words})", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"hearth: hearth hcp: the packages for HCP are not installed; {CURE}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_demo_of_jobs_ends_with_the_cure(tmp_path: Path) -> None:
    done = blocked("from hearth.cli.main import main; main(['demo', '--hcp'])", cwd=tmp_path)
    assert done.returncode == 1
    assert f"hearth demo --hcp: the packages for HCP are not installed; {CURE}" in done.stderr


@pytest.mark.slow
def test_a_test_of_a_capability_ends_with_the_cure(tmp_path: Path) -> None:
    done = blocked(FUNCTION, cwd=tmp_path)
    assert (done.stderr, done.stdout) == ("", f"run_capability: the packages for HCP are not installed; {CURE}\n")


async def test_a_runtime_without_the_packages_says_what_to_install(absent: None) -> None:
    async with hearth.open_runtime(board="sim") as runtime:
        with pytest.raises(ConfigError) as caught:
            await runtime.delegate("bench-climate-survey", "look", {})
        assert CURE in str(caught.value)
        async with runtime.open_session() as session:
            assert await session.run("gpio.get", line=17)


async def test_a_caller_hears_from_the_daemon_what_to_install_there(absent: None) -> None:
    async with running(BenchWorld()) as world:
        client = world.connect()
        answer = await client.ask("hcp.sessions", {})
        assert CURE in answer["error"]["data"]["reason"]
        assert answer["error"]["code"] == MethodNotFound.code


def test_jobs_that_are_switched_off_need_no_packages(absent: None, tmp_path: Path) -> None:
    off = HcpConfig(serve=False, capabilities=("acme-survey",))
    config = Config(audit=AuditConfig(path=tmp_path / "audit.log"), hcp=off)
    assert "hcp" not in build_parts(config, default_policy=()).extras
