"""The section `[halt]` of a board profile: inputs that halt, the sequence of a stop, and the heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from attrs import frozen

from hearth.drivers.signals import Level, LineState  # noqa: TC001  attrs reads the annotations
from hearth.fields import Integer

if TYPE_CHECKING:
    from hearth.drivers.signals import SignalLevel


@frozen
class HaltLine:
    """A line that `[halt]` names: the label of its chip, its offset, and its name."""

    chip: str
    offset: int
    name: str

    @property
    def bus(self) -> str:
        """Return the id of its bus."""
        return f"gpio:{self.chip}"


@frozen
class HaltInput(HaltLine):
    """An input that halts: at the level `stop`, or, with `timeout_ms`, after so many milliseconds without an edge."""

    stop: Level = 1
    timeout_ms: Annotated[int, Integer(20, 3_600_000)] | None = None


@frozen
class StopEntry:
    """One entry of the stop sequence: `after_ms` after the entry before it, the output goes to `value`.

    `output` is its number on the chip of `bus`; `key` is "line" or "channel".
    """

    key: Literal["line", "channel"]
    bus: str
    output: int
    name: str
    value: LineState | SignalLevel = 0
    after_ms: int = 0


@frozen
class Heartbeat(HaltLine):
    """The output that toggles while the daemon is healthy and not halted: `hz` periods a second."""

    hz: float = 1.0


@frozen
class HaltSpec:
    """The section `[halt]` of a profile.

    With a `sequence` a halt is a stop of category 1 (IEC 60204-1), without one of category 0.
    """

    inputs: tuple[HaltInput, ...] = ()
    sequence: tuple[StopEntry, ...] = ()
    heartbeat: Heartbeat | None = None
