"""The tools of lamps (hw.lamp.list, lamp.get, lamp.set), and lamps as signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypeAlias, TypedDict

from annotated_types import Ge, Le

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
from hearth.drivers.typed_tools import changes, reads, tools_of
from hearth.tools import Done, Undo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from acme_lamp.spec import Lamp
    from hearth.drivers.boards import Board
    from hearth.drivers.named import NamedSignal
    from hearth.tools import StepContext, Tool

Percent: TypeAlias = Annotated[float, Ge(0), Le(100), "the brightness in percent"]


class _Shown(TypedDict):
    channel: Channel
    value: Percent
    clamped: NotRequired[Annotated[list[Any], CLAMPED]]


class Lamps(ChannelTools):
    """The tools of the lamps of one board."""

    @reads("lamp.get", "CAP_LAMP_READ", logged=("channel",))
    def get(self, channel: Channel) -> Planned[_Shown]:
        """Read the brightness of a lamp."""
        return self.reading(channel, lambda chip, number: chip.value(number), _shown)

    @changes("lamp.set", "CAP_LAMP_RW", logged=("channel", "value"), idempotent=True, supports_rollback=True)
    def set(self, channel: Channel, value: Percent) -> Planned[_Shown]:
        """Set the brightness of a lamp. When the session ends it goes to its safe state."""
        bus, lamp = self.find(channel)

        async def run(ctx: StepContext) -> Done:
            former = await ctx.transact(lambda chip: chip.set(lamp.number, value), drives=lamp.number)
            driven = ctx.clamped[-1]["written"] if ctx.clamped else value
            undo = Undo(
                lambda chip: chip.set(lamp.number, former), f"lamp {lamp.name} back to {former:g} percent", lamp.number
            )
            return Done(with_clamped(_shown(lamp, driven), ctx.clamped), undo)

        return self.plan(bus, lamp, run, value, lambda: {"value": value})


def _shown(lamp: Lamp, percent: float) -> dict[str, Any]:
    return {"channel": lamp.name, "value": percent}


def lamp_tools(board: Board) -> list[Tool]:
    """Return the tools of lamps for a board."""
    lamps = [lamp for cabinet in board.of("lamp") for lamp in cabinet.channels]
    return [
        channel_listing("lamp", "cabinets", "cabinet").tool(
            "List the lamps: limits, safe states, and interlocks with what they read now. Drives nothing.",
            "the cabinets",
            "cabinet, bus, channels",
        ),
        *tools_of(Lamps(board, "lamp"), {"channels": names_of(lamps)}),
    ]


def lamp_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the lamps of a board as signals: signal.set UV is lamp.set."""
    return channel_signals(board, "lamp", lambda _: ChannelSignal)
