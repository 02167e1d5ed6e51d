"""What the driver tests share: a double of the bus and the step context, benches of each kind, and a whole board."""

from __future__ import annotations

import inspect

import jsonschema
import pytest
import trio
from attrs import define, field
from support.driver_benches import (
    CAN_BENCHES,
    DAC_BENCHES,
    GPIO_BENCHES,
    I2C_BENCHES,
    MODBUS_BENCHES,
    PWM_BENCHES,
    SPI_BENCHES,
    UART_BENCHES,
    hang_up,
    modbus_line,
)

from hearth.drivers.base import Style, finish_now
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.can.tools import can_tools
from hearth.drivers.dac.tools import dac_tools
from hearth.drivers.gpio.tools import gpio_tools
from hearth.drivers.i2c.tools import i2c_tools
from hearth.drivers.iio.tools import sensor_tools
from hearth.drivers.modbus.tools import modbus_tools
from hearth.drivers.pwm.tools import pwm_tools
from hearth.drivers.serial_port.pty import EchoPeer
from hearth.drivers.spi.tools import spi_tools
from hearth.drivers.tools import board_tool
from hearth.drivers.uart.tools import uart_tools
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
    borrows: list = field(factory=list)
    gives_back: list = field(factory=list)
    limits: list = field(factory=list)
    must_runs: int = 0
    clamped: tuple = ()

    async def transact(
        self,
        op,
        *,
        limit_ms=None,
        drives=None,
        borrows=False,
        gives_back=None,
        instead=None,
        must_run=False,
        on_cancel=None,
    ):
        self.limits.append(limit_ms)
        drives = drives() if callable(drives) else drives
        if drives is not None:
            (self.borrows if borrows else self.drives).append(drives)
        gives_back = gives_back() if callable(gives_back) else gives_back
        if gives_back is not None:
            self.gives_back.append(gives_back)
        self.must_runs += must_run
        async with self.lock:
            return await run(self.driver, op)

    def health(self):
        return {"audit": "ok"}

    async def interlocks(self):
        return []

    def permits(self, _use):
        return True

    def progress(self, data):
        self.published.append(dict(data))


@pytest.fixture
def make_context():
    locks = {}

    def make(driver):
        return Context(driver, locks.setdefault(id(driver), trio.Lock()))

    return make


def bench_fixture(benches, **more):
    """A fixture that opens the driver of one bench after the other, and runs its pump."""

    @pytest.fixture(params=benches)
    async def bench(request, nursery):
        with benches[request.param](**more) as made:
            made.driver.open()
            nursery.start_soon(made.driver.pump)
            yield made
            made.driver.close()

    return bench


gpio_bench = bench_fixture(GPIO_BENCHES)
pwm_bench = bench_fixture(PWM_BENCHES)
i2c_bench = bench_fixture(I2C_BENCHES)
spi_loopback = bench_fixture(SPI_BENCHES, chip=False)
spi_registers = bench_fixture(SPI_BENCHES, chip=True)


@pytest.fixture(params=DAC_BENCHES)
def dac_bench(request):
    with DAC_BENCHES[request.param]() as bench:
        yield bench


@pytest.fixture
async def dac(dac_bench, nursery):
    """The bench's driver, open."""
    driver = dac_bench.make()
    driver.open()
    nursery.start_soon(driver.pump)
    yield driver
    driver.close()


@pytest.fixture(params=UART_BENCHES)
async def uart_bench(request, nursery):
    with UART_BENCHES[request.param]() as (driver, far):
        if far is not None:
            peer = EchoPeer(far)
            nursery.start_soon(peer.run)
        driver.open()
        nursery.start_soon(driver.pump)
        yield driver
        driver.close()
        if far is not None:
            peer.close()
            hang_up(far)


@pytest.fixture(params=CAN_BENCHES)
async def can_bench(request):
    with CAN_BENCHES[request.param]() as bench:
        bench.driver.open()
        yield bench
        bench.driver.close()


@pytest.fixture(params=MODBUS_BENCHES)
async def modbus_bench(request, nursery):
    with MODBUS_BENCHES[request.param]() as port:
        driver = modbus_line(port)
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
        kinds = (
            lambda _board: [board_tool()],
            sensor_tools,
            gpio_tools,
            i2c_tools,
            uart_tools,
            pwm_tools,
            can_tools,
            spi_tools,
            modbus_tools,
            dac_tools,
        )
        for tools in kinds:
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
