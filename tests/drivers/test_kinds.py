"""The record of each kind of hardware: what loading the list costs, and what a profile and a package may do with it."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from attrs import evolve
from support.machine import FilesMachine

from hearth.drivers import kinds
from hearth.drivers.base import BaseDriver
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.dac import KIND as DAC
from hearth.drivers.kind import BusKind
from hearth.drivers.tools import build_tools
from hearth.errors import ConfigError
from hearth.tables import STRING


def profile(**content):
    return parse_profile({"name": "x", "description": "y", **content}, "x.toml")


def refused(**content):
    with pytest.raises(ConfigError) as caught:
        profile(**content)
    return str(caught.value).splitlines()


def test_the_list_of_kinds_loads_no_driver_no_tool_and_nothing_that_looks_at_the_machine():
    code = (
        "import sys\nimport hearth.drivers.kinds\n"
        "parts = [name.split('.') for name in sys.modules if name.startswith('hearth.drivers.')]\n"
        "last = {part[3] for part in parts if len(part) > 3}\n"
        "print(sorted(last & {'linux', 'sim', 'tools', 'machine', 'spec', 'driver'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", kinds.OWN, ids=lambda kind: kind.name)
def test_every_record_leads_to_its_parts(kind):
    assert kind.machine().nodes is not None
    assert kind.tables[0] == kind.name
    board = open_board(profile())
    assert all(tool.name for tool in kind.tools(board))
    assert not board.has(kind.name)


PORT = {"driver": "serial", "path": "/dev/ttyS0"}
PLANT = {"driver": "tcp", "device": [{"unit": 1, "name": "A", "raw": "r"}]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            {"uart": [{"port": "a", **PORT}, {"port": "b", **PORT}]},
            'uart[1].path: "/dev/ttyS0" is taken by uart[0].path',
        ),
        (
            {
                "modbus": [
                    {**PLANT, "line": "a", "host": "::1"},
                    {**PLANT, "line": "b", "host": "0:0:0:0:0:0:0:1", "device": [{**PLANT["device"][0], "name": "B"}]},
                ]
            },
            'modbus[1].host: port 502 of "0:0:0:0:0:0:0:1" is taken by modbus[0].host',
        ),
        (
            {"can": [{"bus": "a", "driver": "socketcan", "interface": "can0"}, {"bus": "can0", "driver": "socketcan"}]},
            'can[1].interface: "can0" is taken by can[0].interface',
        ),
        (
            {
                "spi": [
                    {"name": "A", "driver": "spidev", "path": "/dev/spidev0.0"},
                    {"name": "B", "driver": "spidev", "path": "/dev/../dev/spidev0.0"},
                ]
            },
            'spi[1].path: "/dev/../dev/spidev0.0" is taken by spi[0].path',
        ),
    ],
)
def test_two_names_for_one_device_are_refused_with_both_places(content, told):
    assert refused(**content) == [f"x.toml: {told}"]


def test_a_port_by_its_node_and_by_a_link_is_one_device(tmp_path):
    link = tmp_path / "gps"
    link.symlink_to("/dev/ttyS0")
    ports = [{"port": "a", **PORT}, {"port": "b", **PORT, "path": str(link)}]
    (told,) = refused(uart=ports)
    assert told.startswith("x.toml: uart[1].path: ")
    assert told.endswith(" is taken by uart[0].path")


def test_a_listed_device_is_opened_though_a_found_one_of_its_name_is_left_alone(tmp_path):
    files = FilesMachine(tmp_path)
    files.device("pci0000:00/usb1/1-2:1.0", "usb", driver="ftdi_sio")
    files.port("ttyUSB0", "188:0", "pci0000:00/usb1/1-2:1.0")
    listed = {"port": "ttyUSB0", "driver": "serial", "path": "/none/gps"}
    board = open_board(profile(uart=[listed], discover={"uart": True}), machine=files.machine)
    assert [(one.kind, one.name) for one in board.undriven] == [("uart", "ttyUSB0")]
    assert list(board.drivers) == ["uart:ttyUSB0", "board"]


class Point:
    """An entry point of a package."""

    dist = SimpleNamespace(name="acme-laser")
    value = "acme_laser:KIND"

    def __init__(self, load):
        self.name = "laser"
        self.load = load


@pytest.fixture
def package(monkeypatch):
    def install(load):
        monkeypatch.setattr(kinds, "vendor_entry_points", lambda _group: {"laser": Point(load)})
        kinds._load.cache_clear()

    yield install
    kinds._load.cache_clear()


class Laser(BaseDriver):
    simulated = True

    def describe(self):
        return {"kind": "laser"}


def test_a_packages_kind_is_loaded_only_for_its_table_and_has_a_bus_of_its_own(package):
    loaded = []

    def read(table):
        return SimpleNamespace(label=table.take("label", STRING), driver="sim")

    own = {"name": "laser", "read": read, "open": lambda _spec, _opening: Laser(), "outputs": None}
    laser = evolve(DAC, **own, tools=lambda _board: ())
    package(lambda: loaded.append(1) or laser)
    profile(uart=[{"port": "p", "driver": "sim"}])
    assert not loaded
    board = open_board(profile(laser=[{"label": "cutter"}]))
    assert list(board.drivers) == ["laser:cutter", "board"]
    assert board.has("laser")
    assert build_tools(board)


def test_a_package_whose_kind_cannot_be_used_is_named(package):
    package(lambda: 1 / 0)
    with pytest.raises(ConfigError, match=r"\[\[laser\]\]: the package 'acme-laser' .* ZeroDivisionError"):
        profile(laser=[{"label": "cutter"}])
    package(lambda: DAC)
    with pytest.raises(ConfigError, match="has no BusKind of this name"):
        profile(laser=[{"label": "cutter"}])


def test_a_table_of_no_kind_is_an_unknown_key_perhaps_that_of_another_package(package):
    (told,) = refused(lasr=[{"label": "cutter"}])
    assert told.startswith("x.toml: lasr: unknown key; expected tools, discover")
    assert told.endswith(", sensors, or the table of a kind whose package is installed where hearthd runs")
    package(lambda: 1 / 0)
    assert refused(lasr=[{"label": "cutter"}]) == ["x.toml: lasr: unknown key; did you mean laser?"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            {"name": "laser", "package": "acme_lasr", "key": "label"},
            "acme_lasr.spec:parse_laser, which .* ModuleNotFound",
        ),
        (
            {"name": "laser", "package": "hearth.drivers.dac", "key": "label"},
            "dac.spec:parse_laser, which .* AttributeErr",
        ),
    ],
)
def test_a_part_that_a_kind_does_not_have_is_named(package, kind, words):
    package(lambda: BusKind(**kind))
    with pytest.raises(ConfigError, match=words):
        profile(laser=[{"label": "cutter"}])


def test_packages_are_looked_up_only_for_a_table_or_a_word_that_no_own_kind_has(monkeypatch):
    asked = []
    monkeypatch.setattr(kinds, "vendor_entry_points", lambda group: asked.append(group) or {})
    profile(uart=[{"port": "p", "driver": "sim"}], tools={"allow": ["*"]}, discover={})
    assert {"lines", "modbus"} <= kinds.words(["lines"])
    assert not asked
    assert "laser" not in kinds.words(["laser"])
    assert asked == ["hearth.kinds"]
