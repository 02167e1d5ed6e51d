"""PWM: chips with channels, some of which are servos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, late

if TYPE_CHECKING:
    from hearth.drivers.board import Board


def _has_servo(board: Board) -> bool:
    return any(channel.servo is not None for spec in board.of("pwm") for channel in spec.channels)


KIND: Final = BusKind(
    name="pwm",
    key="label",
    discover="pwm",
    families={"servo": _has_servo},
    outputs=late("channel_outputs:ChannelOutputs", 1),
    limits="a channel: `limit` with `min`, `max`, `max_step`, `slew_per_s`; a servo: `servo` with `min_angle`, "
    "`max_angle`, `slew`; both: `on_limit`, `off`",
    safe='a channel or servo: `safe` = a value or "off"; without it "off"',
)
