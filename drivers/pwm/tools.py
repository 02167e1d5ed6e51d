"""The tools hw.pwm.list, pwm.get, pwm.set, pwm.off and servo.move: channels by pulses, servos by angles."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NotRequired, TypeAlias, TypedDict

from annotated_types import Ge, Gt, Le, Len

from hearth.api import Step
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
from hearth.drivers.schemas import given, only_one, wrong
from hearth.drivers.signals import OFF
from hearth.drivers.typed_tools import changes, reads, tools_of
from hearth.tools import Args, Done, StepContext, Tool, Undo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.drivers.board import Board
    from hearth.drivers.named import NamedSignal
    from hearth.drivers.pwm.driver import ChannelSpec, Pulses, Wave

listed: Final = channel_listing("pwm", "chips", "chip")


Duty: TypeAlias = Annotated[float, Ge(0), Le(1), "share of the period that is pulse: 0 to 1"]
PulseUs: TypeAlias = Annotated[float, Ge(0), "length of the pulse in microseconds"]
PeriodUs: TypeAlias = Annotated[float, Gt(0), "period in microseconds"]
Servo: TypeAlias = Annotated[str, Len(1, 64), "the servo's name, one of: {servos}"]
Angle: TypeAlias = Annotated[float, "in degrees"]


class _Off(TypedDict):
    channel: Channel


class _Pulsing(TypedDict):
    channel: Channel
    duty: Duty
    pulse_us: PulseUs
    period_us: PeriodUs


class _PulsingNow(_Pulsing):
    on: Annotated[bool, "false if it gives out no pulses; duty and pulse are 0 then"]
    angle: NotRequired[Annotated[float | None, "of a servo, in degrees; null if it is off"]]


class _PulsesSet(_Pulsing):
    clamped: NotRequired[Annotated[list[Any], CLAMPED]]


class _ServoMoved(TypedDict):
    servo: Servo
    angle: Angle
    clamped: NotRequired[Annotated[list[Any], CLAMPED]]


_drives = partial(changes, capability="CAP_PWM_RW", plain_result=True, idempotent=True, supports_rollback=True)


class _Pwm(ChannelTools):
    """The tools of one board."""

    @reads("pwm.get", "CAP_PWM_READ", logged=("channel",), plain_result=True)
    def get(self, channel: Channel) -> Planned[_PulsingNow]:
        """Read what a PWM channel gives out: duty, pulse and period, and of a servo its angle.

        An angle is what the servo was told, not where its arm is.
        """
        return self.reading(channel, lambda driver, number: driver.get(number), _shown)

    @_drives("pwm.set", logged=("channel", "duty", "pulse_us", "period_us"))
    def set(
        self,
        channel: Channel,
        duty: Duty | None = None,
        pulse_us: PulseUs | None = None,
        period_us: PeriodUs | None = None,
    ) -> Planned[_PulsesSet]:
        """Make a PWM channel give out pulses: exactly one of `duty` and `pulse_us`.

        It stays so until it is set again; when the session ends it goes to its safe state (hw.pwm.list), unless its
        `hold` is keep. `period_us` only where hw.pwm.list has min_period_us or max_period_us. Servos: servo.move.
        """
        bus, spec = self.find(channel)
        value, period = _asked(spec, duty, pulse_us, period_us)

        def shown(value: float) -> dict[str, Any]:
            length_us = spec.pulse_us(value, period)
            return {"duty": round(length_us / period, 6), "pulse_us": round(length_us, 3), "period_us": period}

        async def run(ctx: StepContext) -> Done:
            former = await ctx.transact(lambda driver: driver.set(spec.number, value, period), drives=spec.number)
            written = ctx.clamped[-1]["written"] if ctx.clamped else value
            result = {"channel": spec.name, **shown(written)}
            return Done(with_clamped(result, ctx.clamped), self._undo(spec, former))

        def after() -> dict[str, Any]:
            wave = shown(value)
            return {name: wave[name] for name in ("duty", "period_us")}

        return self.plan(bus, spec, run, value, after)

    @_drives("pwm.off", logged=("channel",))
    def off(self, channel: Channel) -> Planned[_Off]:
        """Make a PWM channel or a servo give out nothing. A servo without pulses does not hold its arm."""
        bus, spec = self.find(channel)

        def op(driver: Any) -> Wave:
            self._moves.end(spec.name)
            return driver.set(spec.number, OFF)  # type: ignore[no-any-return]

        async def run(ctx: StepContext) -> Done:
            former = await ctx.transact(op, drives=spec.number)
            return Done({"channel": spec.name}, self._undo(spec, former))

        return self.plan(bus, spec, run, OFF, lambda: {"on": False})

    @_drives("servo.move", logged=("servo", "angle"))
    def move(self, servo: Servo, angle: Angle) -> Planned[_ServoMoved]:
        """Move a servo to an angle, and return when it has been told that angle.

        It goes there at its slew, in degrees a second (hw.pwm.list), if it has one. A move that is cancelled stops on
        its way; a later one replaces it. When the session ends the servo goes to its safe state. Rollback moves it
        back.
        """
        bus, spec = self.find(servo)
        if spec.servo is None:
            raise wrong("/servo", f"{spec.name} is a pwm channel without a servo; use pwm.set")

        async def run(ctx: StepContext) -> Done:
            moved = await self._moves.run(ctx, spec.signal, angle)
            result = {"servo": spec.name, "angle": moved.target}
            return Done(with_clamped(result, moved.clamped), self._undo(spec, moved.former))

        return self.plan(bus, spec, run, angle, lambda: {"angle": angle})

    def _undo(self, spec: ChannelSpec, former: Wave) -> Undo:
        """Return the undo to what a channel gave out before: a servo moves back."""
        value, period_us = former.value, former.period_us
        return self._moves.undo(
            spec.signal, value, None if spec.servo else lambda driver: driver.set(spec.number, value, period_us)
        )


def _shown(spec: ChannelSpec, pulses: Pulses) -> dict[str, Any]:
    wave = spec.wave(pulses)
    result: dict[str, Any] = {
        "channel": spec.name,
        "on": pulses.enabled and pulses.length_ns > 0,
        "duty": round(pulses.length_ns / pulses.period_ns, 6) if pulses.enabled else 0,
        "pulse_us": pulses.length_ns / 1000 if pulses.enabled else 0,
        "period_us": wave.period_us,
    }
    if spec.servo is not None:
        result["angle"] = None if wave.value == OFF else round(wave.value, 3)
    return result


def _asked(
    spec: ChannelSpec, duty: float | None, pulse_us: float | None, period_us: float | None
) -> tuple[float, float]:
    """Return the value that a pwm.set asks for, in the channel's unit, and the period.

    Raises InvalidParams, LimitViolated.
    """
    if spec.servo is not None:
        raise wrong("/channel", f"{spec.name} is a servo; servo.move takes its angle, pwm.off stops it")
    asked = given(duty=duty, pulse_us=pulse_us)
    unit = "us" if only_one(asked, ("duty", "pulse_us")) == "pulse_us" else "duty"
    if period_us is None:
        period_us = float(spec.period_us)
    else:
        spec.check_period(period_us)
    (value,) = asked.values()
    if unit == "us" and value > period_us:
        raise wrong("/pulse_us", f"{value:g} us does not fit into the period of {period_us:g} us")
    if unit != spec.unit:
        value = value / period_us if spec.unit == "duty" else value * period_us
    return value, period_us


def pwm_tools(board: Board) -> list[Tool]:
    """Return the tools of PWM channels and servos for a board, in the default order."""
    channels: list[ChannelSpec] = [channel for chip in board.of("pwm") for channel in chip.channels]
    servos = {channel.name: channel.servo for channel in channels if channel.servo is not None}
    longest_ms = longest_move_ms((one.max_angle - one.min_angle, one.slew) for one in servos.values())
    return [
        listed.tool(
            "List the PWM chips with their channels and servos: name, unit, limits, period, and the safe state that "
            "each goes to when the session that drove it ends. Also the interlocks, with what they read now. Drives "
            "nothing.",
            "the chips",
            "chip, bus, path, channels",
        ),
        *tools_of(
            _Pwm(board, "pwm", "servo"),
            {"channels": names_of(channels), "servos": ", ".join(servos) or "none"},
            move={"timeout_ms": longest_ms},
        ),
    ]


class WaveSignal(ChannelSignal):
    """A channel as a signal: its duty, or the length of its pulse in microseconds."""

    sets: ClassVar[tuple[str, ...]] = ("pwm.set", "pwm.off")

    @property
    def _member(self) -> str:
        return {"duty": "duty", "us": "pulse_us"}[self.unit]

    def write(self, value: Any) -> Step:
        """See NamedSignal."""
        named = {"channel": self.name}
        return Step("pwm.off", named) if value == OFF else Step("pwm.set", {**named, self._member: value})

    def value(self, result: Mapping[str, Any], args: Args) -> Any:
        """See NamedSignal."""
        return result.get(self._member) if result.get("on", True) else OFF


class ServoSignal(WaveSignal):
    """A servo as a signal: its angle in degrees."""

    sets: ClassVar[tuple[str, ...]] = ("servo.move", "pwm.off")

    @property
    def _member(self) -> str:
        return "angle"

    def write(self, value: Any) -> Step:
        """See NamedSignal."""
        return super().write(value) if value == OFF else Step("servo.move", {"servo": self.name, "angle": value})


def pwm_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the channels and servos of a board as signals."""
    return channel_signals(board, "pwm", lambda spec: WaveSignal if spec.servo is None else ServoSignal)
