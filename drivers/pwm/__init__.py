"""PWM: chips with channels, some of which are servos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Opening

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.drivers.base import Driver
    from hearth.drivers.board import Board
    from hearth.drivers.kind import Outputs
    from hearth.drivers.linux.survey import OnMachine
    from hearth.drivers.pwm.spec import PwmSpec
    from hearth.fields import Table
    from hearth.tools import Tool


def _read(table: Table) -> PwmSpec:
    from hearth.drivers.pwm.spec import parse_pwm

    return parse_pwm(table)


def _open(spec: PwmSpec, opening: Opening) -> Driver:
    from hearth.drivers.base import Style

    if spec.driver == "pwm":
        from hearth.drivers.pwm.linux import LinuxPwm

        return LinuxPwm(spec.label, spec.channels, chardev=spec.chardev)
    from hearth.drivers.pwm.sim import SimPwm

    # A chip never waits: in virtual time it is INLINE.
    return SimPwm(spec.label, spec.channels, style=Style.THREAD if opening.style is Style.THREAD else Style.INLINE)


def _tools(board: Board) -> Iterable[Tool]:
    from hearth.drivers.pwm.tools import pwm_tools

    return pwm_tools(board)


def _machine() -> OnMachine:
    from hearth.drivers.pwm.machine import MACHINE

    return MACHINE


def _has_servo(board: Board) -> bool:
    return any(channel.servo is not None for spec in board.of("pwm") for channel in spec.channels)


def _outputs(spec: PwmSpec, _driver: object) -> Outputs:
    from hearth.drivers.channel_outputs import ChannelOutputs

    return ChannelOutputs(spec)


KIND: Final = BusKind(
    name="pwm",
    key="label",
    discover="pwm",
    read=_read,
    open=_open,
    tools=_tools,
    families={"servo": _has_servo},
    machine=_machine,
    outputs=_outputs,
)
