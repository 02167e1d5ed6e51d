"""The tools hw.dac.list, dac.get and dac.set: the outputs of converters, in their units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypeAlias, TypedDict

from hearth.drivers.channel_tools import (
    CLAMPED,
    Channel,
    ChannelSignal,
    ChannelTools,
    channel_listing,
    channel_signals,
    names_of,
)
from hearth.drivers.declare import Planned, with_clamped
from hearth.drivers.moves import longest_move_ms
from hearth.drivers.signals import OFF
from hearth.drivers.typed_tools import changes, reads, tools_of
from hearth.tools import Done, StepContext, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.drivers.board import Board
    from hearth.drivers.dac.driver import DacChannelSpec
    from hearth.drivers.named import NamedSignal
    from hearth.drivers.signals import SignalLevel

listed: Final = channel_listing("dac", "devices", "device")


Value: TypeAlias = Annotated[float, "in the channel's unit (hw.dac.list)"]
Unit: TypeAlias = Annotated[str, "the unit of the value, such as volt"]


class _DacShown(TypedDict):
    channel: Channel
    value: Annotated[float | None, "null if the channel is off"]
    unit: Unit


class _DacSet(TypedDict):
    channel: Channel
    value: Value
    unit: Unit
    clamped: NotRequired[Annotated[list[Any], CLAMPED]]


class _Dac(ChannelTools):
    """The tools of one board."""

    @reads("dac.get", "CAP_DAC_READ", logged=("channel",), plain_result=True)
    def get(self, channel: Channel) -> Planned[_DacShown]:
        """Read the value that a DAC channel is set to, in its unit. It is not a measurement of what the output has."""
        return self.reading(channel, lambda driver, number: driver.value(number), _shown)

    @changes(
        "dac.set",
        "CAP_DAC_RW",
        logged=("channel", "value"),
        plain_result=True,
        idempotent=True,
        supports_rollback=True,
    )
    def set(self, channel: Channel, value: Value) -> Planned[_DacSet]:
        """Bring a DAC channel to a value, in its unit (hw.dac.list), and return when it has it.

        It goes there at its slew, if it has one, and stays until it is set again; when the session ends it goes to its
        safe state, unless its `hold` is keep. One that is cancelled stops on its way; a later one replaces it.
        """
        bus, spec = self.find(channel)

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
    specs = [channel for device in board.of("dac") for channel in device.channels]
    longest_ms = longest_move_ms((spec.max - spec.min, spec.slew) for spec in specs)
    return [
        listed.tool(
            "List the converters (DAC) with their channels: name, quantity, unit, limits, slew, and the safe state "
            "that each goes to when the session that drove it ends. Also the interlocks, with what they read now. "
            "Drives nothing.",
            "the converters",
            "device, bus, path, channels",
        ),
        *tools_of(_Dac(board, "dac"), {"channels": names_of(specs)}, set={"timeout_ms": longest_ms}),
    ]


def dac_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the channels of the converters of a board as signals."""
    return channel_signals(board, "dac", lambda _: ChannelSignal)
