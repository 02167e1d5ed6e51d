"""The tools hw.dac.list, dac.get and dac.set: the outputs of converters, in their units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.drivers import schemas
from hearth.drivers.channel_tools import CLAMPED, ChannelSignal, ChannelTools, channel_listing, channel_signals
from hearth.drivers.declare import Planned, changing, reading, with_clamped
from hearth.drivers.moves import longest_move_ms
from hearth.drivers.signals import OFF
from hearth.tools import Args, Done, StepContext, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.drivers.board import Board
    from hearth.drivers.dac.driver import DacChannelSpec
    from hearth.drivers.named import NamedSignal
    from hearth.drivers.signals import SignalLevel

listed: Final = channel_listing("dac", "devices", "device")


class _Dac(ChannelTools):
    """The tools of one board."""

    def set(self, args: Args) -> Planned:
        """dac.set."""
        bus, spec = self.find(args)
        value = float(args["value"])

        async def run(ctx: StepContext) -> Done:
            moved = await self._moves.run(ctx, spec.signal, value)
            return Done(
                with_clamped(_shown(spec, moved.target), moved.clamped), self._moves.undo(spec.signal, moved.former)
            )

        return self.plan(bus, spec, run, value, lambda: {"value": value})


def _shown(spec: DacChannelSpec, level: SignalLevel) -> dict[str, Any]:
    return {"channel": spec.name, "value": None if level == OFF else level, "unit": spec.signal.unit}


def dac_tools(board: Board) -> list[Tool]:
    """Return the tools of converters for a board, in the default order."""
    dac = _Dac(board, "dac")
    specs = [channel for device in board.of("dac") for channel in device.channels]
    channel = schemas.text(f"the channel's name, one of: {', '.join(spec.name for spec in specs) or 'none'}")
    value = {"type": "number", "description": "in the channel's unit (hw.dac.list)"}
    value_or_off = {"type": ["number", "null"], "description": "null if the channel is off"}
    unit = schemas.text("the unit of the value, such as volt")
    get = dac.reads(lambda driver, number: driver.value(number), _shown)
    drives = changing("CAP_DAC_RW", plain_result=True, idempotent=True, supports_rollback=True)
    return [
        listed.tool(
            "List the converters (DAC) with their channels: name, quantity, unit, limits, slew, and the safe state "
            "that each goes to when the session that drove it ends. Also the interlocks, with what they read now. "
            "Drives nothing.",
            "the converters",
            "device, bus, path, channels",
        ),
        reading("CAP_DAC_READ", timeout_ms=1_000, plain_result=True)(
            "dac.get",
            "Read the value that a DAC channel is set to, in its unit. It is not a measurement of what the output has.",
            {"channel": channel},
            {"channel": channel, "value": value_or_off, "unit": unit},
            get,
            logged=("channel",),
        ),
        drives(
            "dac.set",
            "Bring a DAC channel to a value, in its unit (hw.dac.list), and return when it has it: at its "
            "slew, if it has one. It stays so until it is set again; when the session ends it goes to its safe state, "
            "unless its `hold` is keep. One that is cancelled stops on its way; a later one replaces it.",
            {"channel": channel, "value": value},
            {"channel": channel, "value": value, "unit": unit, "clamped?": CLAMPED},
            dac.set,
            timeout_ms=longest_move_ms((spec.max - spec.min, spec.slew) for spec in specs),
            logged=("channel", "value"),
        ),
    ]


def dac_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the channels of the converters of a board as signals."""
    return channel_signals(board, "dac", lambda _: ChannelSignal)
