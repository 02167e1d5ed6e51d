"""The tools of chips with numbered channels: what those of every kind share, from the row of a list to the undo.

It knows a channel by its signal (`hearth.drivers.signals.SignalChannel`); what a tool reads and sets is its kind's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from annotated_types import Len

from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.declare import Listing, Planned
from hearth.drivers.moves import Moves
from hearth.drivers.named import NamedSignal
from hearth.drivers.signals import OFF
from hearth.tools import Drive, Preview, Use

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.signals import SignalLevel
    from hearth.tools import Args, Done, StepContext

Channel: TypeAlias = Annotated[str, Len(1, 64), "the channel's name, one of: {channels}"]
"""The arg that names a channel; `channels` are the names that a board has (`names_of`)."""
CLAMPED: Final = schemas.clamped("channel", "by the board's limits, driven in place of what was asked for")


def names_of(specs: Iterable[Any]) -> str:
    """Return the names of channels for a description."""
    return ", ".join(spec.name for spec in specs) or "none"


def channel_listing(kind: str, rows: str, key: str) -> Listing:
    """Return the list of the chips of a kind, each with its channels; `key` is the member with its label."""

    def row(chip: Any, _described: Mapping[str, Any], path: dict[str, Any]) -> dict[str, Any]:
        channels = [channel.to_json() for channel in chip.channels]
        return {key: chip.label, "bus": chip.bus, "driven": True, **path, "channels": channels}

    common = ("interlocks", "undriven")
    return Listing(kind, rows, row, "channels", common, lambda _, channel: Use(kind, (channel["channel"],)))


class ChannelTools:
    """The tools of one kind on one board; `moved` is what errors call a channel that moves."""

    def __init__(self, board: Board, kind: str, moved: str = "channel") -> None:
        self._board = board
        self._kind = kind
        self._moves = Moves(moved)

    def find(self, name: str) -> tuple[str, Any]:
        """Return the bus and the spec of a channel by its name. Raises InvalidParams, PermissionDenied."""
        return self._board.channel(self._kind, name)

    def reading(
        self, name: str, op: Callable[[Any, int], Any], result: Callable[[Any, Any], dict[str, Any]]
    ) -> Planned[Any]:
        """Return the plan of a step that reads a channel.

        `op` gets the driver and the channel's number, `result` the spec of the channel and the operation's value.
        """
        bus, spec = self.find(name)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            return result(spec, await ctx.transact(lambda driver: op(driver, spec.number)))

        return self.plan(bus, spec, run)

    def plan(
        self,
        bus: str,
        spec: Any,
        run: Callable[[StepContext], Awaitable[Mapping[str, Any] | Done]],
        level: SignalLevel | None = None,
        after: Callable[[], Mapping[str, Any]] | None = None,
    ) -> Planned[Any]:
        """Return the plan of a step on a channel.

        `level` is the one that the step drives the channel to; `after` returns the members of the kind's `get` then.
        """

        def uses() -> Sequence[Use]:
            return (Use(self._kind, (spec.name,)),)

        def drives() -> Sequence[Drive]:
            return () if level is None else (Drive(bus, spec.number, level),)

        def preview() -> Preview | None:
            if after is None:
                return None
            members = after()
            return Preview(f"{self._kind}.get", {"channel": spec.name}, tuple(members), members)

        return Planned(bus, uses, run, drives, preview, lambda: ((bus, spec.number),))


class ChannelSignal(NamedSignal):
    """A channel as a signal: a number in its unit, or "off"."""

    def read(self) -> Step:
        """See NamedSignal."""
        return Step(f"{self.kind}.get", {"channel": self.name})

    def write(self, value: Any) -> Step:
        """See NamedSignal."""
        return Step(f"{self.kind}.set", {"channel": self.name, "value": value})

    def value(self, result: Mapping[str, Any], args: Args) -> Any:
        """See NamedSignal."""
        del args
        return OFF if result["value"] is None else result["value"]


def channel_signals(board: Board, kind: str, form: Callable[[Any], type[NamedSignal]]) -> Iterator[NamedSignal]:
    """Yield the channels of a kind as signals of the class that `form` returns for a channel's spec."""
    for chip in board.of(kind):
        signals = board.outputs[chip.bus].signals
        for spec in chip.channels:
            signal, access = signals[spec.number], "rw" if spec.reserved is None else ""
            yield form(spec)(bus=chip.bus, name=spec.name, unit=signal.unit, signal=signal, access=access)
