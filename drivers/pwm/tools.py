"""The tools hw.pwm.list, pwm.get, pwm.set, pwm.off and servo.move: channels by pulses, servos by angles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.drivers import schemas
from hearth.drivers.board import INTERLOCKS, BoardDriver, list_tool, listing
from hearth.drivers.moves import Moves, longest_move_ms, with_clamped
from hearth.drivers.signals import OFF
from hearth.tools import Args, Done, Drive, Preview, StepContext, Tool, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.pwm.driver import ChannelSpec, Wave


class _Pwm:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._moves = Moves("servo")

    # --- what a step is about -------------------------------------------------------------------------------------

    def bus(self, args: Args) -> str:
        """Return the bus of a channel."""
        return self._board.channel("pwm", args["channel"])[0]

    def bus_to_set(self, args: Args) -> str:
        """Return the bus of a channel that pwm.set may drive; refuse what could never be driven."""
        return self._asked(args)[0]

    def bus_of_servo(self, args: Args) -> str:
        """Return the bus of a servo."""
        return self._servo(args["servo"])[0]

    def drives(self, args: Args) -> Sequence[Drive]:
        """Return the channel that pwm.set will drive."""
        bus, spec, value, _ = self._asked(args)
        return (Drive(bus, spec.number, value),)

    def drives_off(self, args: Args) -> Sequence[Drive]:
        """Return the channel that pwm.off will switch off."""
        bus, spec = self._board.channel("pwm", args["channel"])
        return (Drive(bus, spec.number, OFF),)

    def drives_servo(self, args: Args) -> Sequence[Drive]:
        """Return the servo that servo.move will drive."""
        bus, spec = self._servo(args["servo"])
        return (Drive(bus, spec.number, float(args["angle"])),)

    def uses(self, args: Args) -> Sequence[Use]:
        """Return the channel that a step uses."""
        return (Use("pwm", (args["channel"] if "channel" in args else args["servo"],)),)

    def _servo(self, name: str) -> tuple[str, ChannelSpec]:
        bus, spec = self._board.channel("pwm", name)
        if spec.servo is None:
            raise schemas.wrong("/servo", f"{name} is a pwm channel without a servo; use pwm.set")
        return bus, spec

    def _asked(self, args: Args) -> tuple[str, ChannelSpec, float, float]:
        """Return bus, channel, value in the channel's unit and period. Raises InvalidParams, LimitViolated."""
        bus, spec = self._board.channel("pwm", args["channel"])
        if spec.servo is not None:
            raise schemas.wrong("/channel", f"{spec.name} is a servo; servo.move takes its angle, pwm.off stops it")
        given = schemas.only_one(args, ("duty", "pulse_us"))
        period_us = float(args.get("period_us", spec.period_us))
        if "period_us" in args:
            spec.check_period(period_us)
        value = float(args[given])
        if given == "pulse_us" and value > period_us:
            raise schemas.wrong("/pulse_us", f"{value:g} us does not fit into the period of {period_us:g} us")
        unit = "us" if given == "pulse_us" else "duty"
        if unit != spec.unit:
            value = value / period_us if spec.unit == "duty" else value * period_us
        return bus, spec, value, period_us

    # --- steps ----------------------------------------------------------------------------------------------------

    async def get(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """pwm.get."""
        _, spec = self._board.channel("pwm", args["channel"])
        pulses = await ctx.transact(lambda driver: driver.get(spec.number))
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

    async def set(self, ctx: StepContext, args: Args) -> Done:
        """pwm.set."""
        _, spec, value, period_us = self._asked(args)
        former: Wave = await ctx.transact(lambda driver: driver.set(spec.number, value, period_us), drives=spec.number)
        if ctx.clamped:
            value = ctx.clamped[-1]["written"]
        pulse_us = spec.pulse_us(value, period_us)
        result = {
            "channel": spec.name,
            "duty": round(pulse_us / period_us, 6),
            "pulse_us": round(pulse_us, 3),
            "period_us": period_us,
        }
        return Done(with_clamped(result, ctx.clamped), self._undo(spec, former))

    async def off(self, ctx: StepContext, args: Args) -> Done:
        """pwm.off."""
        _, spec = self._board.channel("pwm", args["channel"])

        def op(driver: Any) -> Wave:
            self._moves.end(spec.name)
            return driver.set(spec.number, OFF)  # type: ignore[no-any-return]

        former = await ctx.transact(op, drives=spec.number)
        return Done({"channel": spec.name}, self._undo(spec, former))

    async def move(self, ctx: StepContext, args: Args) -> Done:
        """servo.move."""
        _, spec = self._servo(args["servo"])
        moved = await self._moves.run(ctx, spec.signal, float(args["angle"]))
        result = {"servo": spec.name, "angle": moved.target}
        return Done(with_clamped(result, moved.clamped), self._undo(spec, moved.former))

    def _undo(self, spec: ChannelSpec, former: Wave) -> Undo:
        """Return the undo to what a channel gave out before."""
        number, value = spec.number, former.value

        def op(driver: Any) -> None:
            self._moves.end(spec.name)
            if value == OFF:
                driver.set(number, OFF)
            elif spec.servo is None:
                driver.set(number, value, former.period_us)
            else:
                self._moves.back(driver, spec.signal, value)

        back = OFF if value == OFF else f"{value:g} {spec.signal.unit}"
        return Undo(op, f"{spec.signal.what} back to {back}", number)

    # --- previews -------------------------------------------------------------------------------------------------

    def preview_set(self, args: Args) -> Preview:
        """Show duty and period of a channel before a pwm.set, and after it."""
        _, spec, value, period_us = self._asked(args)
        duty = round(spec.pulse_us(value, period_us) / period_us, 6)
        after = {"duty": duty, "period_us": period_us}
        return Preview("pwm.get", {"channel": spec.name}, ("duty", "period_us"), after)

    def preview_off(self, args: Args) -> Preview:
        """Show if a channel gives out something before a pwm.off."""
        return Preview("pwm.get", {"channel": args["channel"]}, ("on",), {"on": False})

    def preview_move(self, args: Args) -> Preview:
        """Show the angle of a servo before a servo.move, and after it."""
        return Preview("pwm.get", {"channel": args["servo"]}, ("angle",), {"angle": float(args["angle"])})


def _longest_move_ms(board: Board) -> int:
    """Return the longest time of a move: from one end to the other of the slowest servo."""
    servos = [channel.servo for channel in _channels(board) if channel.servo is not None]
    return longest_move_ms((servo.max_angle - servo.min_angle, servo.slew) for servo in servos)


def _channels(board: Board) -> list[ChannelSpec]:
    return [channel for chip in board.of("pwm") for channel in chip.channels]


def listed(board: BoardDriver) -> dict[str, Any]:
    """Return the result of hw.pwm.list."""
    chips = [
        {
            "chip": chip.label,
            "bus": chip.bus,
            "driven": True,
            **path,
            "channels": [channel.to_json() for channel in chip.channels],
        }
        for chip, _, path in board.of("pwm")
    ]
    return {"chips": chips, "undriven": board.missing("pwm")}


def pwm_tools(board: Board) -> list[Tool]:
    """Return the tools of PWM channels and servos for a board, in the default order."""
    pwm = _Pwm(board)
    channels = _channels(board)
    servos = ", ".join(channel.name for channel in channels if channel.servo is not None) or "none"
    channel = schemas.text(f"the channel's name, one of: {', '.join(one.name for one in channels) or 'none'}")
    servo = schemas.text(f"the servo's name, one of: {servos}")
    duty = {"type": "number", "minimum": 0, "maximum": 1, "description": "share of the period that is pulse: 0 to 1"}
    pulse = {"type": "number", "minimum": 0, "description": "length of the pulse in microseconds"}
    period = {"type": "number", "exclusiveMinimum": 0, "description": "period in microseconds"}
    angle = {"type": "number", "description": "in degrees"}
    clamped = schemas.listed(
        "by the board's limits, driven in place of what was asked for", schemas.json_object("channel, asked, written")
    )
    wave = {"channel": channel, "duty": duty, "pulse_us": pulse, "period_us": period}
    return [
        list_tool(
            "hw.pwm.list",
            "List the PWM chips with their channels and servos: name, unit, limits, period, and the safe state that "
            "each goes to when the session that drove it ends. Also the interlocks, with what they read now. Drives "
            "nothing.",
            {
                "chips": schemas.listed("the chips", schemas.json_object("chip, bus, path, channels")),
                "interlocks": INTERLOCKS,
                "undriven": schemas.UNDRIVEN,
            },
            listing(listed, "chips", "channels", lambda _, one: Use("pwm", (one["channel"],)), interlocks=True),
        ),
        Tool(
            name="pwm.get",
            plain_result=True,
            logged=("channel",),
            risk_level=0,
            timeout_ms=1_000,
            description="Read what a PWM channel gives out: duty, pulse and period, and of a servo its angle. An "
            "angle is what the servo was told, not where its arm is.",
            params_schema=schemas.args({"channel": channel}, required=["channel"]),
            result_schema=schemas.result(
                {
                    **wave,
                    "on": schemas.flag("false if it gives out no pulses; duty and pulse are 0 then"),
                    "angle": {"type": ["number", "null"], "description": "of a servo, in degrees; null if it is off"},
                },
                optional=["angle"],
            ),
            capability="CAP_PWM_READ",
            bus=pwm.bus,
            uses=pwm.uses,
            run=pwm.get,
        ),
        Tool(
            name="pwm.set",
            plain_result=True,
            logged=("channel", "duty", "pulse_us", "period_us"),
            risk_level=2,
            timeout_ms=1_000,
            supports_rollback=True,
            idempotent=True,
            description="Make a PWM channel give out pulses: exactly one of `duty` and `pulse_us`. It stays so "
            "until it is set again; when the session ends it goes to its safe state (hw.pwm.list), unless its `hold` "
            "is keep. `period_us` only where hw.pwm.list has min_period_us or max_period_us. Servos: servo.move.",
            params_schema=schemas.args(wave, required=["channel"]),
            result_schema=schemas.result({**wave, "clamped": clamped}, optional=["clamped"]),
            capability="CAP_PWM_RW",
            bus=pwm.bus_to_set,
            uses=pwm.uses,
            drives=pwm.drives,
            run=pwm.set,
            preview=pwm.preview_set,
        ),
        Tool(
            name="pwm.off",
            plain_result=True,
            logged=("channel",),
            risk_level=2,
            timeout_ms=1_000,
            supports_rollback=True,
            idempotent=True,
            description="Make a PWM channel or a servo give out nothing. A servo without pulses does not hold its arm.",
            params_schema=schemas.args({"channel": channel}, required=["channel"]),
            result_schema=schemas.result({"channel": channel}),
            capability="CAP_PWM_RW",
            bus=pwm.bus,
            uses=pwm.uses,
            drives=pwm.drives_off,
            run=pwm.off,
            preview=pwm.preview_off,
        ),
        Tool(
            name="servo.move",
            plain_result=True,
            logged=("servo", "angle"),
            risk_level=2,
            timeout_ms=_longest_move_ms(board),
            supports_rollback=True,
            idempotent=True,
            description="Move a servo to an angle, and return when it has been told that angle: at its slew, in "
            "degrees a second (hw.pwm.list), if it has one. A move that is cancelled stops on its way; a later one "
            "replaces it. When the session ends the servo goes to its safe state. Rollback moves it back.",
            params_schema=schemas.args({"servo": servo, "angle": angle}, required=["servo", "angle"]),
            result_schema=schemas.result({"servo": servo, "angle": angle, "clamped": clamped}, optional=["clamped"]),
            capability="CAP_PWM_RW",
            bus=pwm.bus_of_servo,
            uses=pwm.uses,
            drives=pwm.drives_servo,
            run=pwm.move,
            preview=pwm.preview_move,
        ),
    ]
