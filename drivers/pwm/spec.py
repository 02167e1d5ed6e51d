"""The PWM chips of a board profile: the table `[[pwm]]`, its channels and servos, each read with its faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from attrs import frozen

from hearth._util.toml import show
from hearth.drivers.channels import LevelField, SignalChipSpec, parse_channels
from hearth.drivers.pwm.driver import SERVO_PERIOD_US, ChannelSpec, ServoSpec
from hearth.drivers.signals import OFF, SignalLevel, SignalLimit
from hearth.fields import Choice, FieldType, Flag, Number, Text
from hearth.tables import Table, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.base import Driver
    from hearth.drivers.kind import Opening

_TEXT: Final = Text()
_DRIVER: Final = Choice("sim", "pwm")
_REAL_CHIP: Final[Mapping[str, FieldType]] = {"overlay": _TEXT, "chardev": Flag()}
_PULSE: Final = Number(gt=0, le=1_000_000)

_RESTS: Final[Mapping[str, str]] = {"pca9685-pwm": "low", "bcm2835-pwm": "low", "pwm-gpio": "inactive"}
"""By kernel driver: the level of a pin whose channel is not enabled; "inactive": its load gets nothing then."""


@frozen
class PwmSpec(SignalChipSpec[ChannelSpec]):
    """A PWM chip, found by the kernel's name of its device, which does not change as the number of its node does.

    `overlay` is the device-tree overlay that switches it on: a chip with one may be absent. `chardev` is false for a
    chip that must be used through /sys alone; None: its character device is used where there is one.
    """

    kind: ClassVar[str] = "pwm"
    overlay: str | None = None
    chardev: bool | None = None

    def make_driver(self, opening: Opening) -> Driver:
        """Return its driver, not opened; a simulated one is INLINE in virtual time, since a chip never waits."""
        if self.driver == "pwm":
            from hearth.drivers.pwm.linux import LinuxPwm

            return LinuxPwm(self.label, self.channels, chardev=self.chardev)
        from hearth.drivers.base import Style
        from hearth.drivers.pwm.sim import SimPwm

        style = Style.THREAD if opening.style is Style.THREAD else Style.INLINE
        return SimPwm(self.label, self.channels, style=style)


def parse_pwm(table: Table) -> PwmSpec:
    """Read one `[[pwm]]`; only where the table is `ok` is every value of its type."""
    label, driver, values = table.take("label", _TEXT), table.take("driver", _DRIVER), table.given(_REAL_CHIP)
    for key in values if driver == "sim" else ():
        table.fault(key, 'a simulated chip has none; it is for driver = "pwm"')
    channels = parse_channels(table, _channel)
    table.done()
    return PwmSpec(label, driver, channels, **values)


def resting_power(specs: Sequence[PwmSpec], found: Mapping[str, str | None]) -> Iterator[tuple[str, str, str]]:
    """Yield the chips whose channels give a load power while they are not enabled: key path, problem and cure.

    `found` has by chip its kernel driver. An inversed load has full power while its pin is low. Where it is not known
    how a chip rests, "off" of its normal channels is pulses of no length and then what that chip does.
    """
    for index, spec in enumerate(specs):
        if spec.driver == "sim" or spec.label not in found:
            continue
        driver = found[spec.label]
        usable = [channel for channel in spec.channels if channel.reserved is None]
        inversed = [channel.name for channel in usable if channel.polarity == "inversed"]
        rests = _RESTS.get(driver or "")
        if rests == "low" and inversed:
            names = ", ".join(inversed)
            told = (
                f"chip {spec.label}: inversed, so full power until hearth first drives it: {names}; the chip rests low"
            )
            yield f"pwm[{index}].polarity", told, "pull the input of its load to the side on which it has no power"
        elif rests is None and usable:
            told = f"chip {spec.label}: nothing is known of the level at which {driver} leaves a channel that is off"
            measure = "measure the pin while the channel is off, also after hearthd has ended"
            yield f"pwm[{index}].label", told, f'{measure}; where the load has power then, use safe = 0 and not "off"'


def _channel(number: int, name: str, table: Table) -> ChannelSpec:
    servo = _servo(table.table("servo")) if "servo" in table.content else None
    limit = _limit(table.table("limit")) if "limit" in table.content else None
    safe: SignalLevel = table.take("safe", LevelField(), OFF)
    values: dict[str, Any] = table.given(ChannelSpec)
    table.done()
    if "period_us" not in table.content and "servo" not in table.content:
        table.fault("period_us", f"missing; a channel needs one, and only a servo has a default ({SERVO_PERIOD_US:g})")
    if not table.ok:
        return ChannelSpec(number, name)
    spec = ChannelSpec(number, name, safe=safe, servo=servo, limit=limit, **values)
    _check(table, spec)
    return spec


def _servo(table: Table) -> ServoSpec | None:
    values = {key: table.take(key, _PULSE) for key in ("min_us", "max_us")} | table.given(ServoSpec)
    table.done()
    if not table.ok:
        return None
    servo = ServoSpec(**values)
    if servo.min_us == servo.max_us:
        table.fault("max_us", f"{servo.max_us:g} is the same as min_us, so that all angles would be one")
    if servo.min_angle == servo.max_angle:
        table.fault("min_angle", f"{servo.min_angle:g} is the same as max_angle, so that it would have one angle")
    elif servo.min_angle > servo.max_angle:
        cure = "exchange min_angle with max_angle, and min_us with max_us: min_us is the pulse at min_angle"
        table.fault("min_angle", f"{servo.min_angle:g} is greater than max_angle = {servo.max_angle:g}; {cure}")
    return servo


def _limit(table: Table) -> SignalLimit | None:
    values = table.given(SignalLimit)
    table.done()
    if table.ok and not values:
        table.fault("", f"no limit; give one of {', '.join(kinds_of(SignalLimit))}, or leave it out")
    return SignalLimit(**values) if table.ok else None


def _check(table: Table, spec: ChannelSpec) -> None:
    """Refuse what contradicts itself, and what could never be driven."""
    for key, bound, sign in (("min_period_us", spec.min_period_us, 1), ("max_period_us", spec.max_period_us, -1)):
        if bound is not None and bound * sign > spec.period_us * sign:
            table.fault(key, f"{bound:g} excludes period_us = {spec.period_us:g}")
    if spec.servo is None:
        _check_limit(Table({}, table.at("limit"), table.faults), spec)
    else:
        for key in ("limit", "unit", "min_period_us", "max_period_us"):
            if key in table.content:
                table.fault(key, "a servo has none: its `servo` table has its angles and its slew, in degrees")
        longest = max(spec.servo.min_us, spec.servo.max_us)
        if longest > spec.period_us:
            table.fault("period_us", f"{spec.period_us:g} is shorter than the servo's longest pulse, {longest:g}")
    levels: dict[str, SignalLevel | None] = {"safe": spec.safe, "start": spec.start}
    for key, level in levels.items():
        if table.ok and level is not None and (fault := spec.fault_of(level)) is not None:
            table.fault(key, fault)


def _check_limit(table: Table, spec: ChannelSpec) -> None:
    low, high = cast("tuple[float, float]", (spec.signal.limit.min, spec.signal.limit.max))  # it has both
    most = 1.0 if spec.unit == "duty" else spec.longest_us
    for key, bound in (("min", low), ("max", high)):
        if not 0 <= bound <= most:
            table.fault(key, f"{bound:g} is impossible: a channel with unit = {show(spec.unit)} has 0 to {most:g}")
    if low > high:
        table.fault("min", f"{low:g} is greater than max = {high:g}; exchange them")
