"""The tools hw.board, hw.*.list and hw.sensor.read (design §4): what is there, and what it measures.

Owns the discovery that touches nothing; hw.sensor.read is the one exception, a transaction on the sensor's
own bus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.drivers.boards import BOARD_BUS, Board, BoardDriver
from hearth.drivers.boards.sensors import SENSOR_KINDS
from hearth.drivers.i2c import limit_ms
from hearth.drivers.tools import schemas
from hearth.tools import Args, Run, StepContext, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _board_bus(_args: Args) -> str:
    return BOARD_BUS


def _answering(ask: Callable[[BoardDriver], dict[str, Any]]) -> Run:
    async def run(ctx: StepContext, _args: Args) -> Mapping[str, Any]:
        answer: dict[str, Any] = await ctx.transact(ask)
        return answer

    return run


async def _board(ctx: StepContext, _args: Args) -> Mapping[str, Any]:
    answer: dict[str, Any] = await ctx.transact(BoardDriver.info)
    return {**answer, "health": ctx.health()}


def hardware_tools(board: Board) -> list[Tool]:
    """The hw tools for a board, in the order of design §4."""

    def sensor_bus(args: Args) -> str:
        return board.sensor(args["sensor"]).bus

    async def read_sensor(ctx: StepContext, args: Args) -> Mapping[str, Any]:
        sensor = board.sensor(args["sensor"])
        raw = await ctx.transact(sensor.read, limit_ms=limit_ms(SENSOR_KINDS[sensor.kind].messages))
        return {"sensor": sensor.name, "value": sensor.value(raw), "unit": sensor.unit}

    def listing(name: str, description: str, result: Mapping[str, schemas.Schema], run: Run) -> Tool:
        return Tool(
            name=name,
            risk_level=0,
            timeout_ms=1_000,
            description=description,
            params_schema=schemas.args({}),
            result_schema=schemas.result(result),
            capability="CAP_SYS_READ",
            bus=_board_bus,
            run=run,
        )

    undriven = schemas.listed(
        "what is there but cannot be used, each with the reason", schemas.json_object("kind, name, reason, path")
    )
    return [
        listing(
            "hw.board",
            "Describe the board: its buses, what is there but not driven, and the health of every bus and "
            "of the audit "
            "log. Touches no hardware. A good first step.",
            {
                "name": schemas.text("the board profile's name"),
                "description": schemas.text("what the board is", most=1_000),
                "buses": schemas.listed("the buses in use", schemas.json_object("id, kind, driver and details")),
                "undriven": undriven,
                "health": schemas.json_object("the state of every bus and of the audit log"),
            },
            _board,
        ),
        listing(
            "hw.gpio.list",
            "List the GPIO chips and their lines: offset, name, aliases, what may be done with each, and "
            "the safe state "
            "it goes to when the session that drove it ends. Touches no hardware.",
            {
                "chips": schemas.listed("the chips; the first is the default", schemas.json_object("chip, bus, lines")),
                "undriven": undriven,
            },
            _answering(BoardDriver.gpio),
        ),
        listing(
            "hw.i2c.list",
            "List the I2C buses and the devices known to sit on them. Touches no hardware; i2c.scan asks the bus.",
            {
                "buses": schemas.listed("the buses", schemas.json_object("bus, speed_hz, devices")),
                "undriven": undriven,
            },
            _answering(BoardDriver.i2c),
        ),
        listing(
            "hw.uart.list",
            "List the serial ports: name, baud rate, device path. Touches no hardware.",
            {"ports": schemas.listed("the ports", schemas.json_object("port, baud, path")), "undriven": undriven},
            _answering(BoardDriver.uart),
        ),
        listing(
            "hw.sensor.list",
            "List the sensors that hw.sensor.read can read, with their units. Touches no hardware.",
            {"sensors": schemas.listed("the sensors", schemas.json_object("sensor, kind, unit, bus"))},
            _answering(BoardDriver.sensors),
        ),
        Tool(
            name="hw.sensor.read",
            risk_level=0,
            timeout_ms=5_000,
            description="Read a sensor by its name and return its value with the unit (for example celsius).",
            params_schema=schemas.args(
                {"sensor": schemas.text(f"one of: {', '.join(board.sensors) or 'none'}")}, required=["sensor"]
            ),
            result_schema=schemas.result(
                {
                    "sensor": schemas.text("the sensor's name"),
                    "value": {"type": "number", "description": "what it measures now"},
                    "unit": schemas.text("the unit of the value"),
                }
            ),
            capability="CAP_SYS_READ",
            bus=sensor_bus,
            run=read_sensor,
        ),
    ]
