"""The guarded driver: every effect asks the guard first, whichever way it comes; safe states are always permitted."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from support.world import running, simulated

from hearth import step
from hearth.actors.bus.face import VendorOutputs
from hearth.actors.bus.guard import BusGuard
from hearth.actors.step import StepScope
from hearth.drivers.base import BaseDriver
from hearth.drivers.kind import Signal, Times
from hearth.errors import Halted, LimitViolated, PermissionDenied
from hearth.tools import Tool

LINE = 17


@asynccontextmanager
async def a_session(directory):
    async with running(simulated(directory)) as world, world.sessions().open_session() as session:
        yield world.runtime, session


class Asked:
    """A plug that notes each question and refuses while `error` is set."""

    def __init__(self):
        self.questions = []
        self.error = None

    def __call__(self, output, level):
        self.questions.append((output, level))
        if self.error is not None:
            raise self.error

    check = __call__

    def note(self, output, level, *, certain=True):
        """Interlocks also learn what is driven."""


def halted():
    return Halted("the daemon is halted", data={"effect": "none"})


EFFECTS = {
    "gpio.set": ("gpio:sim", {"line": LINE, "value": 1}, (LINE, 1)),
    "gpio.pulse": ("gpio:sim", {"line": LINE, "value": 1, "duration_ms": 1}, (LINE, 1)),
    "i2c.write": ("i2c:1", {"bus": 1, "addr": 0x50, "reg": 0, "hex": "01"}, None),
    "i2c.transfer": ("i2c:1", {"bus": 1, "addr": 0x50, "hex": "00 01"}, None),
    "i2c.transfer: a register written, and read": (
        "i2c:1",
        {"bus": 1, "addr": 0x50, "messages": [{"hex": "0001"}, {"read": 1}]},
        None,
    ),
    "spi.transfer": ("spi:LOOP", {"device": "LOOP", "text": "x"}, ("any", b"x")),
    "spi.transfer: a register": ("spi:MOTOR", {"device": "MOTOR", "hex": "10 00 01"}, ((0, 0x10), 1)),
    "spi.write": ("spi:MOTOR", {"device": "MOTOR", "register": "SPEED", "value": 1}, ((0, 0x10), 1)),
    "spi.read: it clears": ("spi:MOTOR", {"device": "MOTOR", "register": "FAULTS"}, ("any", b"\xa0\0")),
    "uart.write": ("uart:uart0", {"port": "uart0", "text": "x"}, ("data", b"x")),
    "uart.exchange": ("uart:uart0", {"port": "uart0", "text": "x", "len": 1, "timeout_ms": 100}, ("data", b"x")),
    "uart.control": ("uart:uart0", {"port": "uart0", "break_ms": 10}, None),
}

READS = {
    "gpio.get": ("gpio:sim", {"line": LINE}),
    "gpio.watch": ("gpio:sim", {"line": LINE, "timeout_ms": 1}),
    "i2c.read": ("i2c:1", {"bus": 1, "addr": 0x50, "reg": 0, "len": 1}),
    "spi.read": ("spi:MOTOR", {"device": "MOTOR", "register": "SPEED"}),
    "hw.sensor.read": ("i2c:1", {"sensor": "temperature"}),
    "uart.read": ("uart:uart0", {"port": "uart0", "timeout_ms": 1}),
}


@pytest.mark.parametrize("plug", ["halt", "interlocks"])
@pytest.mark.parametrize("tool", EFFECTS)
async def test_a_tool_with_an_effect_asks_the_guard_before_the_driver(tmp_path, tool, plug):
    bus, args, question = EFFECTS[tool]
    async with a_session(tmp_path) as (runtime, session):
        asked = Asked()
        asked.error = halted()
        guard = runtime.buses[bus].guard
        setattr(guard, plug, asked)
        guard.foresee = lambda _drive: None  # what would refuse it at submit already
        task = await session.submit("effect", [step(tool.partition(":")[0], **args)])
        result = await task.wait()
        assert result.steps[0].error_code == Halted.code
        assert result.steps[0].error_data["effect"] == "none"
        assert len(asked.questions) == 1
        if question is not None:
            assert asked.questions == [question]
        assert runtime.parts.board.drivers["gpio:sim"].state(LINE) == "input"
        assert runtime.parts.board.drivers["i2c:1"].devices[0x50].memory[0] == 0xFF


@pytest.mark.parametrize("tool", EFFECTS)
async def test_a_step_of_risk_0_drives_nothing_whatever_its_tool_does(tmp_path, tool, monkeypatch):
    # As the tool of a vendor that has declared no risk.
    monkeypatch.setattr(Tool, "risk_of", lambda _tool, _args: 0)
    _, args, _ = EFFECTS[tool]
    async with a_session(tmp_path) as (runtime, session):
        task = await session.submit("effect", [step(tool.partition(":")[0], **args)])
        result = await task.wait()
        assert result.steps[0].error_code == PermissionDenied.code
        assert "a step of risk 0 only reads" in result.steps[0].error
        assert result.steps[0].error_data["effect"] == "none"
        assert runtime.parts.board.drivers["gpio:sim"].state(LINE) == "input"
        assert runtime.parts.board.drivers["i2c:1"].devices[0x50].memory[0] == 0xFF


@pytest.mark.parametrize("effect", [lambda d: d.set(LINE, 1), lambda d: d.make_safe([LINE]), lambda d: d.halt([LINE])])
async def test_a_step_of_risk_0_drives_nothing_although_its_transaction_must_run(tmp_path, effect, monkeypatch):
    # As the tool of a vendor that has declared no risk, and whose transactions take something back.
    asked = StepScope.transact
    monkeypatch.setattr(Tool, "risk_of", lambda _tool, _args: 0)
    monkeypatch.setattr(StepScope, "transact", lambda scope, _op, **_more: asked(scope, effect, must_run=True))
    async with a_session(tmp_path) as (runtime, session):
        task = await session.submit("effect", [step("gpio.watch", line=LINE, timeout_ms=1)])
        assert "a step of risk 0 only reads" in (await task.wait()).steps[0].error
        assert runtime.parts.board.drivers["gpio:sim"].state(LINE) == "input"


@pytest.mark.parametrize("tool", READS)
async def test_a_read_does_not_ask_the_guard(tmp_path, tool):
    bus, args = READS[tool]
    async with a_session(tmp_path) as (runtime, session):
        asked = Asked()
        asked.error = halted()
        runtime.buses[bus].guard.halt = runtime.buses[bus].guard.interlocks = asked
        await session.run(tool, **args)
        assert asked.questions == []


async def test_a_rollback_asks_the_guard(tmp_path):
    async with a_session(tmp_path) as (runtime, session):
        asked = Asked()
        await session.run("gpio.set", line=LINE, value=1)
        runtime.buses["gpio:sim"].guard.interlocks = asked
        steps = [step("gpio.set", line=LINE, value=0), step("i2c.read", bus=1, addr=0x20, len=1)]
        task = await session.submit("fails", steps, rollback_on_failure=True)
        await task.wait()
        assert asked.questions == [(LINE, 0), (LINE, 1)]


async def test_safe_states_are_permitted_while_everything_is_refused(tmp_path):
    async with running(simulated(tmp_path)) as world:
        gpio, guard = world.parts.board.drivers["gpio:sim"], world.runtime.buses["gpio:sim"].guard
        async with world.sessions().open_session() as session:
            await session.run("gpio.set", line=LINE, value=1)
            guard.halt = guard.interlocks = Asked()
            guard.halt.error = halted()
        assert gpio.state(LINE) == 0


async def test_the_safe_level_is_permitted_while_halted_and_still_asked_of_the_interlocks(tmp_path):
    async with a_session(tmp_path) as (runtime, session):
        guard = runtime.buses["gpio:sim"].guard
        guard.halt, guard.interlocks = Asked(), Asked()
        guard.halt.error = halted()
        await session.run("gpio.set", line=LINE, value=0)
        assert guard.halt.questions == []
        assert guard.interlocks.questions == [(LINE, 0)]


def test_a_driver_of_an_unknown_kind_is_passed_as_it_is():
    driver = BaseDriver()
    assert BusGuard("com.acme.leds", driver).face is driver


def test_an_output_that_is_limited_in_time_and_in_steps_is_noted_for_both():
    signal = Signal("BEAM", "BEAM", "the beam", least=0, most=10, step=2, safe=0, times=Times(min_off=1.0))
    outputs = VendorOutputs()
    outputs.signals = {"BEAM": signal}
    guard = BusGuard("laser:cutter", BaseDriver(), outputs)
    guard.clock = lambda: 5.0
    guard.drove("BEAM", 1)
    limit = guard.limits["BEAM"]
    assert (limit.level, limit.times.on) == (1, True)
    with pytest.raises(LimitViolated, match="max_step"):
        limit.check(4, 5.0)
