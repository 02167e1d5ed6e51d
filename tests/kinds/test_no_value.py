"""A value that is none, of every kind that has codes for one: it is shown as none everywhere, and satisfies nothing.

Kinds without codes (lines, channels, ports) have no case: their levels are all values.
"""

from __future__ import annotations

import struct
from contextlib import asynccontextmanager
from math import nan

import pytest
import trio
from attrs import evolve, frozen
from support.world import OPEN, BoardWorld, running

from hearth import Expect, step
from hearth.cli import status
from hearth.drivers.can.driver import Frame
from hearth.errors import InterlockOpen

pytest.importorskip("mcp", reason="the faces that show a value: pip install 'hearthd[http,mcp]'")

from support.mcp import mcp_client

from hearth.actors.bridges.http.metrics import RuntimeCollector

DBC = """VERSION ""
NS_ :
BS_:
BU_: ECU
BO_ 256 TANK: 2 ECU
 SG_ Level : 0|8@1+ (1,0) [0|255] "percent" ECU
 SG_ Flow : 8|8@1+ (1,0) [0|255] "percent" ECU
"""
REGISTER = {"reg": 6, "name": "LEVEL", "width": 16, "unit": "percent", "none": [0xFFFF]}


def profile(dbc, *requires):
    """A board with a source of every kind that has codes, and PUMP, which needs what `requires` says."""
    holding = {"unit": "percent", "access": "r"}
    registers = [
        {"name": "level", "reg": 100, "none": [0x8000], **holding},
        {"name": "flow", "reg": 101, "valid": [0, 100], "sensor": "flow", **holding},
        {"name": "ph", "reg": 102, "type": "f32", **holding},
        {"name": "energy", "reg": 110, "type": "u64", **holding},
    ]
    lock = {"drives": "PUMP", "value": 1, "requires": list(requires)}
    return {
        "name": "cell",
        "description": "A cell.",
        "gpio": [{"label": "sim", "driver": "sim", "names": ["PUMP"]}],
        "i2c": [
            {
                "bus": 1,
                "driver": "sim",
                "device": [
                    {"addr": 0x50, "kind": "24c02", "reg_width": 8, "increment": "byte", "registers": [REGISTER]},
                    {"addr": 0x48, "kind": "tmp102"},
                ],
            }
        ],
        "spi": [{"name": "ADC", "driver": "sim", "kind": "registers", "registers": [REGISTER]}],
        "sensors": {"room": {"kind": "tmp102", "bus": 1, "addr": 0x48, "valid": [-40, 125]}},
        "can": [
            {
                "bus": "can0",
                "driver": "sim",
                "dbc": str(dbc),
                "signals": {"TANK.Level": {"none": [0xFF]}, "TANK.Flow": {"valid": [0, 100]}},
            }
        ],
        "modbus": [
            {
                "line": "plant",
                "driver": "sim",
                "device": [{"unit": 3, "name": "METER", "codes": "sunspec", "registers": registers}],
            }
        ],
        **({"interlock": [lock]} if requires else {}),
    }


@frozen(eq=False)
class Source:
    """A signal, the numbers of a value and of none, and what gives its simulated device a number."""

    name: str
    value: float
    none: float
    put: object
    sensor: str | None = None
    """Its name as a sensor, which an interlock may require."""


def _memory(world, number):
    world.drivers["i2c:1"].devices[0x50].memory[6:8] = struct.pack(">H", number)


def _cells(world, number):
    world.drivers["spi:ADC"].chip.cells[6:8] = struct.pack(">H", number)


def _celsius(world, number):
    world.drivers["i2c:1"].devices[0x48].temperature = lambda: number


def _words(reg, form):
    def put(world, number):
        data = struct.pack(form, number)
        words = struct.unpack(f">{len(data) // 2}H", data)
        memory = world.drivers["modbus:plant"].port.devices[3].memory
        memory |= {("holding", reg + at): word for at, word in enumerate(words)}

    return put


def _frame(at):
    def put(world, number):
        world.sent[at] = number

    return put


SOURCES = {
    "a code in an I2C register": Source("i2c:1:LEVEL", 7, 0xFFFF, _memory),
    "a code in an SPI register": Source("spi:ADC:LEVEL", 7, 0xFFFF, _cells),
    "an I2C sensor beyond its valid values": Source("room", 20, 127.9375, _celsius, "room"),
    "a code in a Modbus register": Source("METER.level", 7, 0x8000, _words(100, ">H")),
    "a Modbus register beyond its valid values": Source("METER.flow", 7, 200, _words(101, ">H")),
    "a Modbus register as a sensor": Source("flow", 7, 200, _words(101, ">H"), "flow"),
    "a float of Modbus that is not a number": Source("METER.ph", 7, nan, _words(102, ">f")),
    "a code of SunSpec": Source("METER.energy", 7, (1 << 64) - 1, _words(110, ">Q")),
    "a code of a CAN signal": Source("TANK.Level", 7, 0xFF, _frame(0)),
    "a CAN signal beyond its valid values": Source("TANK.Flow", 7, 200, _frame(1)),
}
every_source = pytest.mark.parametrize("case", SOURCES)


class Cell(BoardWorld):
    """A world over the board; a node sends `sent` on its CAN bus all the time."""

    def __init__(self, content):
        super().__init__(content, policy=(evolve(OPEN, rights=("observe",)),))
        self.drivers = self.parts.drivers
        self.sent = bytearray(2)

    async def send(self):
        while True:
            self.drivers["can:can0"].inject(Frame(256, bytes(self.sent)))
            await trio.sleep(0.02)


@pytest.fixture
def open_cell(tmp_path):
    """`async with open_cell(*requires) as (world, session)`: the board, with what PUMP requires."""
    path = tmp_path / "cell.dbc"
    path.write_text(DBC)

    @asynccontextmanager
    async def opened(*requires):
        made = Cell(profile(path, *requires))
        async with running(made) as world, world.client() as client, client.open_session() as session:
            world.nursery.start_soon(world.send)
            yield world, session

    return opened


async def told(session, name):
    """The rows of a signal in signal.list and for observers, and its cells in `hearth status` and `hearth top`."""
    rows = (await session.run("signal.list", name=name))["signals"]
    state = await session.observe_state()
    row, named = rows[0], next(row for row in state["named"] if row["name"] == rows[0]["name"])
    return row, named, status.signal_rows({"named": [named]}, known=True)


async def read(session, source, world, number):
    source.put(world, number)
    return await session.run("signal.read", name=source.name)


@every_source
async def test_none_is_shown_as_none_in_every_list_and_a_value_again_when_there_is_one(case, open_cell):
    source = SOURCES[case]
    async with open_cell() as (world, session):
        await anext(session.observe())
        for _ in range(2):
            found = await read(session, source, world, source.value)
            assert (found["value"], found["quality"]) == (source.value, "good")
            await trio.sleep(1)  # a sample of the observer
            ((_, _, shown, *_),) = (await told(session, source.name))[2]
            assert float(shown.split()[0]) == source.value
            found = await read(session, source, world, source.none)
            assert (found["value"], found["quality"]) == (None, "none")
            assert found["why"]
            await trio.sleep(1)
            listed, named, cells = await told(session, source.name)
            assert (listed["value"], listed["quality"]) == (None, "none")
            assert (named["value"], named["quality"]) == (None, "none")
            assert [(cell[2], cell[3][:6]) for cell in cells] == [("-", "none (")]


@every_source
async def test_none_is_a_change_for_a_watch(case, open_cell):
    source = SOURCES[case]
    async with open_cell() as (world, session):
        source.put(world, source.value)
        watch = await session.submit("watch", [step("signal.watch", name=source.name, count=2, timeout_ms=5_000)])
        await trio.sleep(1)
        source.put(world, source.none)
        await trio.sleep(1.5)
        source.put(world, source.value)
        (done,) = (await watch.wait()).steps
        assert [change["value"] for change in done.result["changes"]] == [None, source.value]


@every_source
async def test_none_is_null_for_a_model_and_no_metric(case, open_cell):
    source = SOURCES[case]
    async with open_cell() as (world, session):
        await read(session, source, world, source.none)
        async with mcp_client(world.sessions(), "auto") as client:
            result = await client.call_tool("signal_read", {"name": source.name})
        assert not result.is_error
        found = result.structured_content
        assert (found["value"], found["quality"]) == (None, "none")
        samples = [sample for metric in RuntimeCollector(world.runtime).collect() for sample in metric.samples]
        assert samples
        assert not [one for one in samples if source.name.rpartition(":")[2] in (one.name, *one.labels.values())]


# To wait for a CAN frame is no read of risk 0, which an expectation wants.
@pytest.mark.parametrize("case", [case for case in SOURCES if "CAN" not in case])
async def test_none_satisfies_no_expectation(case, open_cell):
    source = SOURCES[case]
    wanted = Expect("signal.read", {"name": source.name}, min={"value": -1e30}, within_ms=2_000)
    async with open_cell() as (world, session):
        for number, status_ in ((source.value, "SUCCESS"), (source.none, "FAILED")):
            source.put(world, number)
            task = await session.submit("look", [step("gpio.set", line="PUMP", value=0, expect=wanted)])
            (done,) = (await task.wait()).steps
            assert done.status == status_
        assert done.error_data["seen"] == {"value": None}


@pytest.mark.parametrize("case", [case for case, one in SOURCES.items() if one.sensor])
@pytest.mark.parametrize("bound", [{"min": -1e9}, {"max": 1e9}], ids=["min", "max"])
async def test_none_satisfies_no_interlock(case, bound, open_cell):
    source = SOURCES[case]
    async with open_cell({"sensor": source.sensor, **bound}) as (world, session):
        source.put(world, source.value)
        await session.run("gpio.set", line="PUMP", value=1)
        await session.run("gpio.set", line="PUMP", value=0)
        source.put(world, source.none)
        await trio.sleep(2)
        with pytest.raises(InterlockOpen):
            await session.run("gpio.set", line="PUMP", value=1)
        assert world.level(0) == 0
