"""The core knows no extra: it needs none of their packages, imports none, and serves those of other packages alike."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import grimp
import pytest
import trio
from attrs import evolve
from support import vendor
from support.world import BenchWorld, running

from hearth.actors.service import Service
from hearth.cli.doctor import check_extras
from hearth.cli.doctor.answers import board_checks
from hearth.config.ask import AskConfig
from hearth.config.hcp import HcpConfig
from hearth.config.model import Config, load_config
from hearth.errors import ConfigError, InternalError
from hearth.extras import OWN, active, extras_of

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = (
    *("mcp", "mcp_types", "pamqp", "httpx2", "starlette", "prometheus_client", "PIL", "textual"),
    *("cantools", "isodate", "semantic_version", "anthropic", "openai", "pydantic", "anyio", "tpm2_pytss"),
)
"""The packages that only extras need, by the names of import."""
OF_EXTRAS = re.compile(
    r"hearth\.(actors\.(agentcard|bridges|listeners\.(tcp|tls|websocket))|agentcard|aio|amqp|ask|fleet|gpiozero|hcp|mcp|otel|sync"
    r"|config\.(agentcard|amqp|ask|hcp|listen)|transport\.(tls|websocket|ssh)|client\.job\w*|testing)(\.|_|$)"
)
"""The modules of extras."""
JOBS = re.compile(r"hearth\.(hcp(\.capability)?|actors\.bridges(\.hcp(\.(extra|lazy))?)?|config\.(ask|hcp))")
"""The half of HCP that is loaded before the first job."""
KNOWS_ALL = re.compile(r"hearth\.cli(\.|$)")
"""Modules that are neither the core's nor an extra's: the command line may know everything."""
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({PACKAGES!r}))\n"
READ = """
import hearth, trio
async def main():
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session() as session:
        print(await session.run("i2c.read", bus=1, addr=0x48, len=2))
trio.run(main)
"""
DAEMON = """
import os, signal, threading
from hearth.actors.daemon import main
from hearth.actors.daemon.process import Notifier
def notify(self, text, said=Notifier.notify):
    if text.startswith("READY=1"):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    said(self, text)
Notifier.notify = notify
main(["--config", "hearth.toml"])
"""
LOADED = "\nimport sys, json; print(json.dumps(sorted(name for name in sys.modules if name.startswith('hearth'))))"


def modules_of_the_core() -> list[str]:
    """Every module that is neither an extra's nor one that may know everything."""
    graph = grimp.build_graph("hearth", include_external_packages=False)
    # A module that is run as a program serves when it is imported.
    names = (name for name in graph.modules if not name.endswith("__main__"))
    return sorted(name for name in names if not OF_EXTRAS.match(name) and not KNOWS_ALL.match(name))


def child(code: str, directory: Path, *, blocked: bool = True) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own, that can import none of the packages if they are `blocked`."""
    environ = {**os.environ, "STATE_DIRECTORY": str(directory), "XDG_STATE_HOME": str(directory)}
    command = [sys.executable, "-c", (BLOCKED if blocked else "") + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=directory, env=environ)


def loaded(code: str, directory: Path, **how: bool) -> set[str]:
    """The modules of extras that are loaded once this code has run."""
    done = child(code + LOADED, directory, **how)
    assert done.returncode == 0, done.stderr
    return {name for name in json.loads(done.stdout.splitlines()[-1]) if OF_EXTRAS.match(name)}


# --- the core without extras ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_module_of_the_core_is_imported_without_the_packages_of_extras(tmp_path: Path) -> None:
    modules = modules_of_the_core()
    assert len(modules) > 200
    code = (
        "import importlib\n"
        f"for name in {modules!r}:\n"
        "    try:\n        importlib.import_module(name)\n"
        "    except ImportError as error:\n        print(name, 'needs', error.name)\n"
    )
    done = child(code, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.slow
def test_importing_hearth_loads_no_module_of_an_extra(tmp_path: Path) -> None:
    assert loaded("import hearth", tmp_path) == set()


@pytest.mark.slow
def test_a_program_that_reads_a_sensor_loads_no_module_of_an_extra(tmp_path: Path) -> None:
    assert loaded(READ, tmp_path) == set()


@pytest.mark.slow
def test_where_the_packages_are_installed_it_loads_no_more_than_the_light_half_of_jobs(tmp_path: Path) -> None:
    # Jobs are served by default. Their job server and the capabilities come with the first job.
    assert {name for name in loaded(READ, tmp_path, blocked=False) if not JOBS.fullmatch(name)} == set()


@pytest.mark.slow
def test_a_daemon_without_configured_extras_loads_no_module_of_one(tmp_path: Path) -> None:
    (tmp_path / "hearth.toml").write_text(
        f'[server]\nsocket = "{tmp_path}/h.sock"\n[audit]\npath = "{tmp_path}/audit.log"\n'
    )
    code = f"import atexit\natexit.register(lambda: exec({LOADED!r}))\n{DAEMON}"
    done = child(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ready on" in done.stderr + done.stdout
    names = json.loads(done.stdout.splitlines()[-1])
    assert "hearth.actors.daemon" in names
    assert {name for name in names if OF_EXTRAS.match(name)} == set()


# --- what is not installed --------------------------------------------------------------------------------------------

ASKING = {
    "http": ('listen = "127.0.0.1:0"', "starlette", "[http] listen: the HTTP server is not installed"),
    "amqp": ('url = "amqp://arm@127.0.0.1?password_file=/p"\nid = "d"', "pamqp", "[amqp] url: pamqp is not installed"),
    "hcp": ("serve = true", "isodate", "[hcp] serve: the packages for HCP are not installed"),
    "ask": ('api = "anthropic"\nmodel = "m"', "anthropic", "[ask] api: anthropic is not installed"),
    "mcp": ('listen = "127.0.0.1:0"\nmcp = true', "mcp", "[http] mcp: the MCP SDK is not installed"),
}
"""By extra: a section that asks for it, a package of it, and the finding."""


@pytest.mark.parametrize("name", ASKING)
def test_a_section_that_asks_for_an_extra_is_told_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, package, finding = ASKING[name]
    extra = OWN[name]
    file = tmp_path / "hearth.toml"
    file.write_text(f"[{extra.place or name}]\n{keys}\n")
    config = load_config(file)
    assert list(check_extras(config)) == []
    monkeypatch.setattr("hearth.extras.find_spec", lambda asked: None if asked == package else asked)
    (found,) = check_extras(config)
    assert (found.finding, found.cure) == (finding, f"pip install 'hearthd[{extra.pip}]'")
    assert found.state == ("FAIL" if extra.refuses else "WARN")
    if extra.refuses:
        with pytest.raises(ConfigError, match=re.escape(f"{finding}; {found.cure}")):
            active(config)
    else:
        active(config)


def test_every_extra_that_the_distribution_has_packages_for_names_them() -> None:
    assert {extra.name for extra in OWN.values() if extra.pip} == ASKING.keys()


def test_nothing_is_asked_for_by_a_section_of_defaults() -> None:
    sections = {name: extra.load("section")() for name, extra in OWN.items() if extra.section and name != "card"}
    assert [extra.name for extra in active(Config(**sections))] == ["hcp"]
    assert active(Config(hcp=HcpConfig(serve=False), ask=AskConfig())) == []


# --- an extra that waits for its first use ----------------------------------------------------------------------------


async def test_it_is_made_once_in_a_thread_and_all_that_ask_meanwhile_are_answered() -> None:
    made, may_go, begun = [], threading.Event(), trio.Event()

    class Card(Service):
        def card(self) -> dict[str, str]:
            return {"name": "late"}

    def make(_parts: object) -> Card:
        made.append(threading.current_thread())
        trio.from_thread.run_sync(begun.set)
        assert may_go.wait(30)
        return Card()

    world = BenchWorld()
    world.parts = evolve(world.parts, later={**world.parts.later, "card": make})
    answers = []

    async def ask(client: Any) -> None:
        opened = await client.call("session.open")
        answers.append((await client.call("mcp.info", session_id=opened["session_id"]))["agent_card"])

    with trio.fail_after(60):
        async with running(world), trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, world.connect())
            other = world.connect()
            await begun.wait()
            # The loop serves others while the thread works.
            await other.call("session.open")
            assert answers == []
            may_go.set()
    assert answers == [{"name": "late"}] * 3
    assert made == [one for one in made if one is not threading.main_thread()][:1]


async def test_one_that_cannot_be_made_is_an_error_of_the_call_with_the_reason() -> None:
    def make(_parts: object) -> None:
        raise ConfigError("the card's file is a directory")

    world = BenchWorld()
    world.parts = evolve(world.parts, later={**world.parts.later, "card": make})
    with trio.fail_after(60):
        async with running(world):
            client = world.connect()
            opened = await client.call("session.open")
            with pytest.raises(InternalError) as caught:
                await client.call("mcp.info", session_id=opened["session_id"])
    assert caught.value.data["reason"] == "the card's file is a directory"


# --- another package's ------------------------------------------------------------------------------------------------


@pytest.fixture
def beacon(tmp_path: Path) -> Path:
    """A hearth.toml with the section of `examples/acme_beacon`, which is installed."""
    vendor.install("acme_beacon")
    file = tmp_path / "hearth.toml"
    file.write_text(f'[audit]\npath = "{tmp_path}/audit.log"\n[beacon]\nmessage = "here"\nevery_s = 0.01\n')
    return file


def test_the_section_of_another_package_is_read_printed_and_checked_by_its_own_rules(beacon: Path) -> None:
    config = load_config(beacon)
    assert (config.beacon.message, config.beacon.every_s) == ("here", 0.01)
    assert '\n[beacon]\nmessage = "here"\nevery_s = 0.01\n' in config.to_toml()
    assert [extra.name for extra in active(config)] == ["hcp", "beacon"]
    beacon.write_text("[beacon]\nevery_s = 0\nmesage = 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(beacon)
    assert "[beacon] every_s: " in str(caught.value)
    assert "[beacon] mesage: unknown key; did you mean message?" in str(caught.value)


def test_a_table_of_no_extra_is_an_unknown_key(tmp_path: Path) -> None:
    (tmp_path / "hearth.toml").write_text("[zigbee]\n")
    with pytest.raises(ConfigError, match=r"\[zigbee\]: unknown key; expected .*, or the table of an extra") as caught:
        load_config(tmp_path / "hearth.toml")
    assert "whose package is installed where hearthd runs" in str(caught.value)


def test_a_misspelt_table_of_another_package_is_answered_with_its_name(beacon: Path) -> None:
    beacon.write_text("[becon]\n")
    with pytest.raises(ConfigError, match=r"\[becon\]: unknown key; did you mean beacon\?"):
        load_config(beacon)


async def test_the_service_of_another_package_runs_and_is_a_member_of_health(beacon: Path) -> None:
    import hearth

    async with hearth.open_runtime(config=load_config(beacon)) as runtime, runtime.open_session() as session:
        health = (await session.run("hw.board"))["health"]["beacon"]
    assert health["message"] == "here"
    assert health["beats"] >= 1


@pytest.mark.slow
def test_check_shows_what_another_package_has_to_say(beacon: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from hearth.actors.daemon import main

    main(["--config", str(beacon), "--check"])
    assert "hearthd: warning: [beacon] every_s: 0.01 is a load; 0.1 is enough for most\n" in capfd.readouterr().out


def test_installing_a_package_loads_nothing_of_it(tmp_path: Path) -> None:
    places = vendor.install("acme_beacon")
    code = f"import sys; sys.path += {places!r}\nfrom hearth.config.model import Config; Config(); Config().to_toml()\n"
    done = child(f"{code}print('acme_beacon' in sys.modules)", tmp_path)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_an_entry_point_without_a_record_is_refused_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "acme_lantern-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-lantern\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hearth.extras]\nlantern = json:dumps\ntorch = no.such:EXTRA\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"\[lantern\]: the package 'acme-lantern' has no Extra of this name"):
        extras_of(["lantern"])
    with pytest.raises(ConfigError, match=r"\[torch\]: the package 'acme-lantern' .* cannot be used: ModuleNotFound"):
        extras_of(["torch"])


LAMP = """
from attrs import frozen
from hearth.extras import Section

@frozen
class LampConfig(Section):
    pass

@frozen
class NoSection:
    pass

class NoFields(Section):
    __init__ = None

def check(name, config, parts):
    yield "warning", config.no_such_table

def finding(state):
    return "OK", "lamp", state["no such member"], None
"""


@pytest.mark.parametrize(
    ("name", "parts", "words"),
    [
        ("lamp_a", "section='NAME:Lamp'", "section='lamp_a:Lamp' of the Extra cannot be used: AttributeError: "),
        ("lamp_b", "section='lampe:Lamp'", "section='lampe:Lamp' of the Extra cannot be used: ModuleNotFoundError: "),
        ("lamp_c", "section='NAME:NoSection'", "lamp_c:NoSection is not an attrs class that derives from hearth"),
        ("lamp_d", "section='NAME:finding'", "lamp_d:finding is not an attrs class that derives from hearth"),
        (
            "lamp_e",
            "section='NAME:LampConfig', service='NAME:Lamp'",
            "service='lamp_e:Lamp' of the Extra cannot be used",
        ),
        (
            "lamp_f",
            "section='NAME:LampConfig', check='NAME:check'",
            "check='lamp_f:check' of the Extra cannot be used: A",
        ),
    ],
)
def test_a_wrong_part_of_another_package_is_an_error_that_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    parts: str,
    words: str,
) -> None:
    from hearth.actors.daemon import main

    lamp(tmp_path, monkeypatch, name, parts)
    (tmp_path / "hearth.toml").write_text(f'[audit]\npath = "{tmp_path}/audit.log"\n[{name}]\n')
    with pytest.raises(SystemExit) as ended:
        main(["--config", str(tmp_path / "hearth.toml"), "--check"])
    assert ended.value.code == 2
    assert f"[{name}]: {words}" in capfd.readouterr().err


def test_a_finding_of_another_package_that_raises_is_a_finding_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lamp(tmp_path, monkeypatch, "lamp_g", "section='NAME:LampConfig', finding='NAME:finding'")
    (found,) = [one for one in board_checks({"name": "sim", "health": {"lamp_g": {}}}) if one.name == "lamp_g"]
    assert found.state == "FAIL"
    assert "finding='lamp_g:finding' of the Extra cannot be used: KeyError: 'no such member'" in found.finding


def lamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, parts: str) -> None:
    """Make the package `name` importable, with an extra of these parts."""
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hearth.extras]\n{name} = {name}:EXTRA\n")
    record = f"from hearth.extras import Extra\nEXTRA = Extra(name='{name}', {parts.replace('NAME', name)})\n"
    (tmp_path / f"{name}.py").write_text(LAMP + record)
    monkeypatch.syspath_prepend(tmp_path)
