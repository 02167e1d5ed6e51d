"""PWM: chips with channels, some of which are servos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Opening, late

if TYPE_CHECKING:
    from hearth.drivers.base import Driver
    from hearth.drivers.board import Board
    from hearth.drivers.pwm.spec import PwmSpec


def _open(spec: PwmSpec, opening: Opening) -> Driver:
    from hearth.drivers.base import Style

    if spec.driver == "pwm":
        from hearth.drivers.pwm.linux import LinuxPwm

        return LinuxPwm(spec.label, spec.channels, chardev=spec.chardev)
    from hearth.drivers.pwm.sim import SimPwm

    # A chip never waits: in virtual time it is INLINE.
    return SimPwm(spec.label, spec.channels, style=Style.THREAD if opening.style is Style.THREAD else Style.INLINE)


def _has_servo(board: Board) -> bool:
    return any(channel.servo is not None for spec in board.of("pwm") for channel in spec.channels)


KIND: Final = BusKind(
    name="pwm",
    key="label",
    discover="pwm",
    open=_open,
    families={"servo": _has_servo},
    outputs=late("channel_outputs:ChannelOutputs", 1),
)
