"""The tools of lamps (hw.lamp.list, lamp.get, lamp.set), and lamps as signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.drivers import schemas
from hearth.drivers.channel_tools import (
    CLAMPED,
    ChannelSignal,
    ChannelTools,
    channel_listing,
    channel_signals,
)
from hearth.drivers.declare import Planned, changing, reading, with_clamped
from hearth.tools import Done, Undo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from acme_lamp.spec import Lamp
    from hearth.drivers.boards import Board
    from hearth.drivers.named import NamedSignal
    from hearth.tools import Args, StepContext, Tool


def lamp_tools(board: Board) -> list[Tool]:
    """Return the tools of lamps for a board."""
    lamps = ChannelTools(board, "lamp")

    def shown(lamp: Lamp, percent: float) -> dict[str, Any]:
        return {"channel": lamp.name, "value": percent}

    def setting(args: Args) -> Planned:
        bus, lamp = lamps.find(args)
        percent = float(args["value"])

        async def run(ctx: StepContext) -> Done:
            former = await ctx.transact(lambda chip: chip.set(lamp.number, percent), drives=lamp.number)
            driven = ctx.clamped[-1]["written"] if ctx.clamped else percent
            undo = Undo(
                lambda chip: chip.set(lamp.number, former), f"lamp {lamp.name} back to {former:g} percent", lamp.number
            )
            return Done(with_clamped(shown(lamp, driven), ctx.clamped), undo)

        return lamps.plan(bus, lamp, run, percent, lambda: {"value": percent})

    channel = schemas.text("the name of the lamp")
    value = {"type": "number", "minimum": 0, "maximum": 100, "description": "the brightness in percent"}
    return [
        channel_listing("lamp", "cabinets", "cabinet").tool(
            "List the lamps: limits, safe states, and interlocks with what they read now. Drives nothing.",
            "the cabinets",
            "cabinet, bus, channels",
        ),
        reading("CAP_LAMP_READ", timeout_ms=1_000)(
            "lamp.get",
            "Read the brightness of a lamp.",
            {"channel": channel},
            {"channel": channel, "value": value},
            lamps.reads(lambda chip, number: chip.value(number), shown),
            logged=("channel",),
        ),
        changing("CAP_LAMP_RW", timeout_ms=1_000, idempotent=True, supports_rollback=True)(
            "lamp.set",
            "Set the brightness of a lamp. When the session ends it goes to its safe state.",
            {"channel": channel, "value": value},
            {"channel": channel, "value": value, "clamped?": CLAMPED},
            setting,
            logged=("channel", "value"),
        ),
    ]


def lamp_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the lamps of a board as signals: signal.set UV is lamp.set."""
    return channel_signals(board, "lamp", lambda _: ChannelSignal)
