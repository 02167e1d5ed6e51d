"""The tools hw.dac.list, dac.get and dac.set: the outputs of converters, in their units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.drivers import schemas
from hearth.drivers.board import INTERLOCKS, BoardDriver, list_tool, listing
from hearth.drivers.moves import Moves, longest_move_ms, with_clamped
from hearth.drivers.signals import OFF
from hearth.tools import Args, Done, Drive, Preview, StepContext, Tool, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.dac.driver import DacChannelSpec
    from hearth.drivers.signals import SignalLevel


class _Dac:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._moves = Moves("channel")

    def bus(self, args: Args) -> str:
        """Return the bus of a channel."""
        return self._board.channel("dac", args["channel"])[0]

    def drives(self, args: Args) -> Sequence[Drive]:
        """Return the channel that dac.set will drive."""
        bus, spec = self._board.channel("dac", args["channel"])
        return (Drive(bus, spec.number, float(args["value"])),)

    def uses(self, args: Args) -> Sequence[Use]:
        """Return the channel that a step uses."""
        return (Use("dac", (args["channel"],)),)

    async def get(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """dac.get."""
        _, spec = self._board.channel("dac", args["channel"])
        level: SignalLevel = await ctx.transact(lambda driver: driver.value(spec.number))
        return {"channel": spec.name, "value": None if level == OFF else level, "unit": spec.signal.unit}

    async def set(self, ctx: StepContext, args: Args) -> Done:
        """dac.set."""
        _, spec = self._board.channel("dac", args["channel"])
        moved = await self._moves.run(ctx, spec.signal, float(args["value"]))
        result = {"channel": spec.name, "value": moved.target, "unit": spec.signal.unit}
        return Done(with_clamped(result, moved.clamped), self._undo(spec, moved.former))

    def _undo(self, spec: DacChannelSpec, former: SignalLevel) -> Undo:
        """Return the undo to what a channel gave out before."""

        def op(driver: Any) -> None:
            self._moves.end(spec.name)
            if former == OFF:
                driver.set(spec.number, OFF)
            else:
                self._moves.back(driver, spec.signal, former)

        back = OFF if former == OFF else f"{former:g} {spec.signal.unit}"
        return Undo(op, f"{spec.signal.what} back to {back}", spec.number)

    def preview_set(self, args: Args) -> Preview:
        """Show the value of a channel before a dac.set, and after it."""
        return Preview("dac.get", {"channel": args["channel"]}, ("value",), {"value": float(args["value"])})


def listed(board: BoardDriver) -> dict[str, Any]:
    """Return the result of hw.dac.list."""
    devices = [
        {
            "device": device.label,
            "bus": device.bus,
            "driven": True,
            **path,
            "channels": [channel.to_json() for channel in device.channels],
        }
        for device, _, path in board.of("dac")
    ]
    return {"devices": devices, "undriven": board.missing("dac")}


def dac_tools(board: Board) -> list[Tool]:
    """Return the tools of converters for a board, in the default order."""
    dac = _Dac(board)
    specs = [channel for device in board.of("dac") for channel in device.channels]
    channel = schemas.text(f"the channel's name, one of: {', '.join(spec.name for spec in specs) or 'none'}")
    value = {"type": "number", "description": "in the channel's unit (hw.dac.list)"}
    unit = schemas.text("the unit of the value, such as volt")
    clamped = schemas.listed(
        "by the board's limits, driven in place of what was asked for", schemas.json_object("channel, asked, written")
    )
    return [
        list_tool(
            "hw.dac.list",
            "List the converters (DAC) with their channels: name, quantity, unit, limits, slew, and the safe state "
            "that each goes to when the session that drove it ends. Also the interlocks, with what they read now. "
            "Drives nothing.",
            {
                "devices": schemas.listed("the converters", schemas.json_object("device, bus, path, channels")),
                "interlocks": INTERLOCKS,
                "undriven": schemas.UNDRIVEN,
            },
            listing(listed, "devices", "channels", lambda _, one: Use("dac", (one["channel"],)), interlocks=True),
        ),
        Tool(
            name="dac.get",
            plain_result=True,
            logged=("channel",),
            risk_level=0,
            timeout_ms=1_000,
            description="Read the value that a DAC channel is set to, in its unit. It is not a measurement of what the "
            "output has.",
            params_schema=schemas.args({"channel": channel}, required=["channel"]),
            result_schema=schemas.result(
                {
                    "channel": channel,
                    "value": {"type": ["number", "null"], "description": "null if the channel is off"},
                    "unit": unit,
                }
            ),
            capability="CAP_DAC_READ",
            bus=dac.bus,
            uses=dac.uses,
            run=dac.get,
        ),
        Tool(
            name="dac.set",
            plain_result=True,
            logged=("channel", "value"),
            risk_level=2,
            timeout_ms=longest_move_ms((spec.max - spec.min, spec.slew) for spec in specs),
            supports_rollback=True,
            idempotent=True,
            description="Bring a DAC channel to a value, in its unit (hw.dac.list), and return when it has it: at its "
            "slew, if it has one. It stays so until it is set again; when the session ends it goes to its safe state, "
            "unless its `hold` is keep. One that is cancelled stops on its way; a later one replaces it.",
            params_schema=schemas.args({"channel": channel, "value": value}, required=["channel", "value"]),
            result_schema=schemas.result(
                {"channel": channel, "value": value, "unit": unit, "clamped": clamped}, optional=["clamped"]
            ),
            capability="CAP_DAC_RW",
            bus=dac.bus,
            uses=dac.uses,
            drives=dac.drives,
            run=dac.set,
            preview=dac.preview_set,
        ),
    ]
