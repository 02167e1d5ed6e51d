"""An extra of another package that is broken: the daemon refuses it by name, or works on without it and says so."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from attrs import evolve, fields_dict
from support.world import BenchWorld, running
from trio.testing import wait_all_tasks_blocked

from hearth.actors.service import Figure, Service
from hearth.cli.doctor.answers import board_checks
from hearth.config.model import Config, load_config
from hearth.errors import ConfigError, InternalError
from hearth.extras import OWN, RESERVED, extras_of
from tests.test_extras import DAEMON, child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BOUND = 60


def with_services(**services: Any) -> BenchWorld:
    world = BenchWorld()
    world.parts = evolve(world.parts, extras=services)
    return world


# --- a service that breaks while it serves ----------------------------------------------------------------------------


class Lantern(Service):
    """A service of which one method raises."""

    def __init__(self, breaks: str) -> None:
        self.breaks = breaks
        self.ran = 0

    async def run(self) -> None:
        self.ran += 1
        self._break("run")
        await trio.sleep_forever()

    def halt(self) -> None:
        self._break("halt")

    def health(self) -> dict[str, Any]:
        self._break("health")
        return {"lit": {1} if self.breaks == "JSON" else True}

    def figures(self) -> list[Figure]:
        self._break("figures")
        return [Figure("lit", "1 while it is lit", "bright" if self.breaks == "numbers" else 1)]  # type: ignore[arg-type]

    def _break(self, method: str) -> None:
        if self.breaks == method:
            raise LookupError(f"no lamp in {method}")


async def test_a_service_that_breaks_in_a_halt_holds_up_neither_the_halt_nor_another_service(caplog) -> None:
    heard = []

    class Other(Service):
        def halt(self) -> None:
            heard.append("halt")

    world = with_services(lantern=Lantern("halt"), other=Other())
    with trio.fail_after(BOUND):
        async with running(world):
            runtime = world.runtime
            await world.connect().call("halt", reason="smoke")
            assert world.records("halt")
            assert runtime.halt.flag.halted
            health = runtime.health()
    assert heard == ["halt"]
    assert health["lantern"] == {"lit": True, "crashed": "LookupError: no lamp in halt"}
    assert "extra lantern crashed" in caplog.text


async def test_a_service_that_ends_with_an_exception_ends_alone(caplog) -> None:
    lantern = Lantern("run")
    world = with_services(lantern=lantern)
    with trio.fail_after(BOUND):
        async with running(world):
            runtime = world.runtime
            client = world.connect()
            await client.call("session.open")
            health = runtime.health()
    assert lantern.ran == 1
    assert health["ok"]
    assert health["lantern"] == {"lit": True, "crashed": "LookupError: no lamp in run"}
    assert "extra lantern crashed" in caplog.text


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [("health", "LookupError: no lamp in health"), ("JSON", "TypeError: Type is not JSON serializable: set")],
)
async def test_a_service_without_a_health_that_can_be_told_does_not_cost_that_of_the_others(
    breaks: str, reason: str, caplog
) -> None:
    world = with_services(lantern=Lantern(breaks), other=Lantern(""))
    with trio.fail_after(BOUND):
        async with running(world):
            runtime = world.runtime
            for _ in range(3):
                health = runtime.health()
    assert health["lantern"] == {"crashed": reason}
    assert health["other"] == {"lit": True}
    assert caplog.text.count("extra lantern crashed") == 1, "logged once, however often it is asked"


@pytest.mark.parametrize("breaks", ["figures", "numbers"])
async def test_figures_that_cannot_be_told_are_missing_alone(breaks: str) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from hearth.actors.bridges.http.metrics import RuntimeCollector

    world = with_services(lantern=Lantern(breaks), other=Lantern(""))
    registry = CollectorRegistry(auto_describe=False)
    with trio.fail_after(BOUND):
        async with running(world):
            runtime = world.runtime
            registry.register(RuntimeCollector(runtime))
            told = generate_latest(registry).decode()
            assert "lantern" in runtime.health()
    assert "hearth_other_lit 1.0" in told
    assert "hearth_lantern" not in told


# --- one that waits for its first use ---------------------------------------------------------------------------------


def world_with_card(make: Callable[[object], Any]) -> BenchWorld:
    world = BenchWorld()
    world.parts = evolve(world.parts, later={**world.parts.later, "card": make})
    return world


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ImportError("half installed"), ValueError("x")])
async def test_whatever_keeps_one_from_being_made_is_an_error_of_the_call_and_the_next_call_tries_again(error) -> None:
    tries = []

    class Card(Service):
        def card(self) -> None:
            return None

    def make(_parts: object) -> Card:
        tries.append(1)
        if len(tries) == 1:
            raise error
        return Card()

    world = world_with_card(make)
    with trio.fail_after(BOUND):
        async with running(world):
            client = world.connect()
            opened = await client.call("session.open")
            with pytest.raises(InternalError) as caught:
                await client.call("mcp.info", session_id=opened["session_id"])
            assert (await client.call("mcp.info", session_id=opened["session_id"]))["agent_card"] is None
    assert type(error).__name__ in caught.value.data["reason"]
    assert "card" in caught.value.data["reason"]


async def test_fifty_that_ask_at_once_while_the_disk_hangs_are_answered_and_those_who_leave_harm_nothing() -> None:
    made, may_go, begun, answered = [], threading.Event(), trio.Event(), []

    class Card(Service):
        def card(self) -> None:
            return None

    def make(_parts: object) -> Card:
        made.append(1)
        trio.from_thread.run_sync(begun.set)
        assert may_go.wait(BOUND)
        return Card()

    world = world_with_card(make)

    async def ask(client: Any) -> None:
        opened = await client.call("session.open")
        await client.call("mcp.info", session_id=opened["session_id"])
        answered.append(client)

    with trio.fail_after(BOUND):
        async with running(world):
            async with trio.open_nursery() as staying:
                async with trio.open_nursery() as leaving:
                    for number in range(50):
                        (leaving if number % 2 else staying).start_soon(ask, world.connect())
                    await begun.wait()
                    await wait_all_tasks_blocked()
                    leaving.cancel_scope.cancel()
                may_go.set()
            await world.connect().call("session.open")
    assert (len(answered), made) == (25, [1])


async def test_a_runtime_ends_while_the_disk_hangs_under_the_import_of_one() -> None:
    may_go, begun = threading.Event(), trio.Event()

    def make(_parts: object) -> Service:
        trio.from_thread.run_sync(begun.set)
        assert may_go.wait(BOUND)
        return Service()

    world = world_with_card(make)
    with trio.fail_after(BOUND):
        async with running(world):
            client = world.connect()
            opened = await client.call("session.open")
            world.nursery.start_soon(partial(client.call, "mcp.info", session_id=opened["session_id"]))
            await begun.wait()
        assert world.records("daemon.stop")
    may_go.set()


# --- what a package says of its extra ---------------------------------------------------------------------------------

PACKAGE = """
from contextlib import asynccontextmanager
from typing import Annotated
from attrs import frozen, field
from hearth.fields import Number, Text, checked
from hearth.actors.service import Service
from hearth.extras import Extra, Section

@frozen(field_transformer=checked)
class Lamp(Section):
    watts: Annotated[float, Number()] = 1
    breaks: Annotated[str, Text()] = "nothing"
    def __attrs_post_init__(self):
        if self.watts == 0:
            raise ValueError("no light without watts")
    def faults(self, config):
        if self.breaks == "faults":
            raise LookupError("no lamp")
        yield from ()

class Service(Service):
    def __init__(self, config, parts):
        self.breaks = config.lamp.breaks
        self.stops("make")
    def open(self, parts):
        self.stops("open")
        return []
    def ahead(self):
        self.stops("ahead")
    def serve(self, sessions):
        self.stops("serve")
        return self.lit()
    @asynccontextmanager
    async def lit(self):
        self.stops("enter")
        yield
        if self.breaks == "leave":
            import trio
            await trio.sleep_forever()
    def stop(self):
        self.stops("stop")
    async def end(self, until):
        self.stops("end")
        if self.breaks == "hang":
            import trio
            await trio.sleep_forever()
    def finish(self):
        self.stops("finish")
    def close(self):
        print("lamp closed", flush=True)
        self.stops("close")
    def stops(self, method):
        if self.breaks == method:
            raise LookupError(f"no lamp in {method}")

def listen(opening):
    if opening.config.lamp.breaks == "listen":
        raise LookupError("no lamp in listen")
    raise SystemExit("not asked for")

def check(name, config, parts):
    if config.lamp.breaks == "check":
        raise LookupError("no lamp in check")
    yield "note", "a lamp"

def finding(state):
    return "OK", "lamp", state["lit"], None

class NoSection:
    pass

@frozen
class Odd(Section):
    colour: complex = 0j

LAMP = Extra(
    name="lamp",
    section="acme_lamps:Lamp",
    service="acme_lamps:Service",
    check="acme_lamps:check",
    finding="acme_lamps:finding",
)
EAR = Extra(name="ear", section="acme_lamps:Lamp", listen="acme_lamps:listen")
PLAIN = Extra(name="plain", section="acme_lamps:NoSection")
ODD = Extra(name="odd", section="acme_lamps:Odd")
GONE = Extra(name="gone", section="acme_lamps:Gone")
NOWHERE = Extra(name="nowhere", section="acme_lamps:Lamp", after="nothing")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an installed package of extras."""
    place = tmp_path / "site"
    info = place / "acme_lamps-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "acme_lamps.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-lamps\nVersion: 1.0\n")
    names = {name: f"acme_lamps:{name.upper()}" for name in ("lamp", "ear", "plain", "odd", "gone", "nowhere")}
    names |= dict.fromkeys((*sorted(RESERVED), "my-lamp", "class"), "acme_lamps:LAMP")
    points = "".join(f"{name} = {where}\n" for name, where in names.items())
    (info / "entry_points.txt").write_text(f"[hearth.extras]\n{points}")
    monkeypatch.syspath_prepend(place)
    return place


def read(directory: Path, text: str) -> Config:
    file = directory / "hearth.toml"
    file.write_text(text)
    return load_config(file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[plain]\n", r"\[plain\]: acme_lamps:NoSection is not an attrs class"),
        ("[odd]\ncolour = 1\n", r"hearth.toml: .*complex"),
        ("[gone]\n", r"\[gone\]: section='acme_lamps:Gone' of the Extra cannot be used: AttributeError"),
        ("[nowhere]\n", r"\[nowhere\]: it is written after \[nothing\], which is no section"),
        ("[lamp]\nwatts = 0\n", r"\[lamp\].*ValueError: no light without watts"),
        ('[lamp]\nbreaks = "faults"\n', r"\[lamp\].*LookupError: no lamp"),
        ("[my-lamp]\n", r"\[my-lamp\]: .*not a name"),
        ("[class]\n", r"\[class\]: .*not a name"),
    ],
)
def test_a_section_that_breaks_is_a_fault_of_the_configuration_with_its_place(
    text: str, told: str, package: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        read(tmp_path, text)


def test_no_package_gives_its_extra_a_name_that_means_something_else(package: Path) -> None:
    members = {name for name in dir(Config) if not name.startswith("_")} | fields_dict(Config).keys()
    assert members <= RESERVED | OWN.keys() | set(fields_dict(Config))
    for name in sorted(RESERVED):
        with pytest.raises(ConfigError, match=rf"\[{name}\]: .*its name means something else"):
            extras_of([name])


async def test_no_member_of_health_is_a_name_that_is_left_for_an_extra() -> None:
    world = BenchWorld()
    async with running(world):
        world.runtime.listeners = ["unix:///x"]
        world.runtime.lost_sockets = ["gone"]
        names = world.runtime.health().keys()
    assert names - OWN.keys() <= RESERVED


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"crashed": "LookupError: no lamp"}, ("FAIL", "lamp", "it crashed: LookupError: no lamp")),
        ({}, ("FAIL", "lamp", "[lamp]: finding='acme_lamps:finding' of the Extra cannot be used: KeyError: 'lit'")),
        ({"lit": "it is lit"}, ("OK", "lamp", "it is lit")),
    ],
)
def test_doctor_shows_a_service_that_crashed_and_a_finding_that_cannot_be_made(
    state: dict[str, Any], told: tuple[str, ...], package: Path
) -> None:
    health = {"ok": True, "version": "1", "audit": {"ok": True}, "lamp": state}
    found = [check for check in board_checks({"name": "sim", "health": health}) if check.name == "lamp"]
    assert [(check.state, check.name, check.finding) for check in found] == [told]


def serve(directory: Path, package: Path, text: str, how: str = DAEMON) -> tuple[int, str]:
    """Run hearthd until it is asked to end, half a second after it is ready; return its status and what it said."""
    where = f'[server]\nsocket = "{directory}/h.sock"\n[audit]\npath = "{directory}/audit.log"\n'
    (directory / "hearth.toml").write_text(f"{where}[limits]\nshutdown_grace_s = 1\n{text}")
    done = child(f"import sys; sys.path.insert(0, {str(package)!r})\n{how}", directory, blocked=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("breaks", ["ahead", "serve", "enter", "leave", "stop", "end", "finish", "close", "hang"])
def test_a_daemon_serves_and_ends_in_order_though_a_service_breaks_or_hangs(
    breaks: str, package: Path, tmp_path: Path
) -> None:
    status, told = serve(tmp_path, package, f'[lamp]\nbreaks = "{breaks}"\n')
    assert (status, "ready on" in told) == (0, True), told
    assert ("extra lamp crashed" in told) != ("extra lamp has not ended in time" in told), told
    assert "lamp closed" in told
    assert '"event":"daemon.stop"' in (tmp_path / "audit.log").read_text().replace(" ", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '[lamp]\nbreaks = "make"\n',
            "[lamp]: service='acme_lamps:Service' of the Extra cannot be used: LookupError: no lamp in make",
        ),
        ('[lamp]\nbreaks = "open"\n', "[lamp] cannot be used: LookupError: no lamp in open"),
        (
            '[ear]\n[lamp]\nbreaks = "listen"\n',
            "[ear]: listen='acme_lamps:listen' of the Extra cannot be used: LookupError: no lamp in listen",
        ),
        ("[ear]\n[lamp]\n", "[ear]: listen='acme_lamps:listen' of the Extra cannot be used: SystemExit: not asked for"),
    ],
)
def test_no_daemon_starts_with_a_service_that_cannot_be_made(
    text: str, reason: str, package: Path, tmp_path: Path
) -> None:
    status, told = serve(tmp_path, package, text)
    assert (status, "Traceback" in told) == (2, False), told
    assert reason in told
    assert not (tmp_path / "h.sock").exists()


@pytest.mark.slow
def test_a_check_of_a_package_that_breaks_is_a_fault_of_the_configuration(package: Path, tmp_path: Path) -> None:
    checking = 'from hearth.actors.daemon import main\nmain(["--config", "hearth.toml", "--check"])\n'
    status, told = serve(tmp_path, package, '[lamp]\nbreaks = "check"\n', checking)
    assert (status, "Traceback" in told) == (2, False), told
    assert "[lamp]: check='acme_lamps:check' of the Extra cannot be used: LookupError: no lamp in check" in told
