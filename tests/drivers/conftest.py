"""What the driver tests share: a double of the bus and the step context, benches of each kind, and a whole board."""

from __future__ import annotations

import inspect

import jsonschema
import pytest
import trio
from attrs import define, field, frozen

from hearth.drivers.base import Style, finish_now
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.gpio import LineSpec
from hearth.drivers.sim.devices import Eeprom, SlowTemperature, Tmp102
from hearth.drivers.sim.gpio import SimGpio
from hearth.drivers.sim.i2c import SimI2c, clock_for
from hearth.drivers.sim.uart import SimUart
from hearth.drivers.tools.gpio import gpio_tools
from hearth.drivers.tools.hardware import hardware_tools
from hearth.drivers.tools.i2c import i2c_tools
from hearth.drivers.tools.uart import uart_tools
from hearth.tools import Done


async def run(driver, op):
    """Run one transaction as a bus does: where the driver's style says, shielded once begun."""
    with trio.CancelScope(shield=True):
        if driver.style is Style.THREAD:

            def call():
                value = op(driver)
                return finish_now(value) if inspect.iscoroutine(value) else value

            return await trio.to_thread.run_sync(call)
        value = op(driver)
        return await value if inspect.iscoroutine(value) else value


@define(eq=False, slots=False)
class Context:
    """A `StepContext` over one driver: one transaction at a time, and a record of what was asked."""

    driver: object
    lock: trio.Lock
    session_id: str = "session"
    paths: object = None
    published: list = field(factory=list)
    drives: list = field(factory=list)
    limits: list = field(factory=list)
    must_runs: int = 0

    async def transact(self, op, *, limit_ms=None, drives=None, must_run=False):
        self.limits.append(limit_ms)
        if drives is not None:
            self.drives.append(drives)
        self.must_runs += must_run
        async with self.lock:
            return await run(self.driver, op)

    def health(self):
        return {"audit": "ok"}

    def progress(self, data):
        self.published.append(dict(data))


@pytest.fixture
def make_context():
    locks = {}

    def make(driver):
        return Context(driver, locks.setdefault(id(driver), trio.Lock()))

    return make


@frozen(eq=False)
class GpioBench:
    """A chip under test, and the world outside it."""

    driver: object
    line: int
    other: int
    push: object
    """push(line, level): drive the line from outside, a `level` of None lets go."""
    seen: object
    """seen(line): the level that a voltmeter shows."""


def sim_gpio(style):
    specs = [LineSpec(n, f"GPIO{n}") for n in range(5)]
    specs += [LineSpec(5, "GPIO5", safe=1), LineSpec(6, "GPIO6", hold="keep")]
    driver = SimGpio("bench", specs, style=style)
    return GpioBench(
        driver, 3, 5, lambda n, level: driver.let_go(n) if level is None else driver.push(n, level), driver.level
    )


GPIO_BENCHES = {
    "sim-inline": lambda: sim_gpio(Style.INLINE),
    "sim-thread": lambda: sim_gpio(Style.THREAD),
}


@pytest.fixture(params=GPIO_BENCHES)
def gpio_bench(request):
    bench = GPIO_BENCHES[request.param]()
    bench.driver.open()
    yield bench
    bench.driver.close()


@frozen(eq=False)
class I2cBench:
    """An adapter under test: a memory with an 8-bit pointer at one address, nobody at another."""

    driver: object
    memory: int = 0x50
    nobody: int = 0x23


def sim_i2c(style):
    clock = clock_for(style)
    devices = {0x48: Tmp102(SlowTemperature(1, clock)), 0x50: Eeprom(clock)}
    return I2cBench(SimI2c(1, devices, style=style))


I2C_BENCHES = {f"sim-{style.value}": lambda style=style: sim_i2c(style) for style in Style}


@pytest.fixture(params=I2C_BENCHES)
def i2c_bench(request):
    bench = I2C_BENCHES[request.param]()
    bench.driver.open()
    yield bench
    bench.driver.close()


UART_BENCHES = {"sim-pty": lambda: SimUart("bench")}
"""Ports with an instrument at the other end that echoes lines and answers *IDN?."""


@pytest.fixture(params=UART_BENCHES)
async def uart_bench(request, nursery):
    driver = UART_BENCHES[request.param]()
    driver.open()
    nursery.start_soon(driver.pump)
    yield driver
    driver.close()


@define(eq=False)
class BoardBench:
    """An open board and its hardware tools. Every result is checked against its tool's result_schema."""

    board: object
    make_context: object
    tools: dict = field(factory=dict)

    def __attrs_post_init__(self):
        for tools in (hardware_tools, gpio_tools, i2c_tools, uart_tools):
            self.tools |= {tool.name: tool for tool in tools(self.board)}

    def driver(self, bus):
        return self.board.drivers[bus]

    def context(self, tool, args):
        return self.make_context(self.driver(self.tools[tool].bus(args)))

    async def done(self, tool, *, context=None, **args):
        """Run a step and return what the tool returned."""
        jsonschema.validate(args, self.tools[tool].params_schema)
        returned = await self.tools[tool].run(context or self.context(tool, args), args)
        result = returned.result if isinstance(returned, Done) else returned
        jsonschema.validate(result, self.tools[tool].result_schema)
        return returned

    async def run(self, tool, *, context=None, **args):
        """Run a step and return its result."""
        returned = await self.done(tool, context=context, **args)
        return returned.result if isinstance(returned, Done) else returned


@pytest.fixture
def make_board_bench(make_context):
    def make(content):
        return BoardBench(open_board(parse_profile(content, "test profile"), style=Style.INLINE), make_context)

    return make


@pytest.fixture
async def bench(make_context, nursery):
    board = open_board(load_profile("sim"), style=Style.ASYNC)
    for driver in board.drivers.values():
        driver.open()
        nursery.start_soon(driver.pump)
    yield BoardBench(board, make_context)
    for driver in board.drivers.values():
        driver.close()


@pytest.fixture
def transact():
    """`await transact(driver, op)`: one transaction."""
    return run
