"""The compiled form of an operation that drives one output: as few calls as the gate allows, and the same as the whole.

A guard that compiles and one that does not get the same calls, halts and times; what they answer, refuse, clamp and
drive is compared after each.
"""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st

from hearth.actors.bus.face import guard_of
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.errors import Halted, RpcError

PROFILE = {
    "name": "bench",
    "description": "lines, a fan and a valve with limits",
    "gpio": [
        {
            "label": "sim",
            "driver": "sim",
            "names": ["PLAIN", "PUMP"],
            "lines": {"PLAIN": {"safe": 0}, "PUMP": {"safe": 0, "limit": {"min_off_ms": 300, "max_rate_hz": 2}}},
        }
    ],
    "pwm": [
        {
            "label": "sim",
            "driver": "sim",
            "channels": ["FAN", "ARM"],
            "channel": {
                "FAN": {"period_us": 40, "safe": 0, "limit": {"max": 0.8, "max_step": 0.3}, "on_limit": "clamp"},
                "ARM": {"servo": {"min_us": 1000, "max_us": 2000, "slew": 90}, "safe": 90},
            },
        }
    ],
    "dac": [{"label": "sim", "driver": "sim", "channels": ["V"], "channel": {"V": {"min": 0, "max": 10, "safe": 0}}}],
}
MOST_CALLS = 9


class Whole:
    """The outputs of a bus, of which nothing is compiled."""

    def __init__(self, outputs):
        self._outputs = outputs

    single = {}  # noqa: RUF012  as its Protocol has it

    def __getattr__(self, name):
        return getattr(self._outputs, name)


class Side:
    """A guard over drivers of its own, at a time of its own."""

    def __init__(self, *, compiled):
        self.board = open_board(parse_profile(PROFILE, "test"))
        self.now, self.halted, self.guards = 0.0, False, {}
        for bus, driver in self.board.drivers.items():
            if ":" in bus:
                driver.open()
                outputs = self.board.outputs[bus]
                guard = guard_of(bus, driver, outputs if compiled else Whole(outputs))
                guard.clock, guard.halt = (lambda: self.now), self._halt
                self.guards[bus] = guard

    def _halt(self, _output, _level):
        if self.halted:
            raise Halted("halted", data={"effect": "none"})

    def call(self, bus, output, level):
        guard = self.guards[bus]
        try:
            answer = guard.face.set(output, level)
        except RpcError as error:
            answer = type(error).__name__, error.message
        clamped, guard.clamped = guard.clamped, []
        return answer, clamped, dict(guard.levels), {o: (one.level, one.since) for o, one in guard.limits.items()}


LEVELS = {
    ("gpio:sim", 0): [0, 1, "input"],
    ("gpio:sim", 1): [0, 1, "input"],
    ("pwm:sim", 0): [0.0, 0.2, 0.5, 0.9, "off"],
    ("pwm:sim", 1): [0.0, 45.0, 90.0, 200.0, "off"],
    ("dac:sim", 0): [0.0, 5.0, 11.0, float("nan")],
}
ACTS = st.one_of(
    st.sampled_from([("call", *place, level) for place, levels in LEVELS.items() for level in levels]),
    st.sampled_from([("wait", 0.1), ("wait", 1.0), ("halt", True), ("halt", False)]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTS, max_size=30))
def test_a_compiled_operation_is_the_same_as_the_whole(acts):
    sides = [Side(compiled=True), Side(compiled=False)]
    for what, *args in acts:
        if what == "call":
            one, other = (side.call(*args) for side in sides)
            assert repr(one) == repr(other)
        for side in sides:
            if what == "wait":
                side.now += args[0]
            elif what == "halt":
                side.halted = args[0]


@pytest.mark.parametrize("line", [0, 1], ids=["plain", "limited"])
def test_a_guarded_set_of_a_line_takes_at_most_nine_calls(line):
    side = Side(compiled=True)
    guard = side.guards["gpio:sim"]
    guard.ticket = SimpleNamespace(drives=line)
    guard.face.set(line, 0)
    side.now += 10
    calls = []

    def count(frame, event, _arg):
        # The driver's own work is one call.
        if event == "call" and (frame.f_code.co_name == "set" or not frame.f_code.co_filename.endswith("gpio/sim.py")):
            calls.append(frame.f_code.co_name)

    operation = guard.face.set
    gc.collect()  # one that begins while they are counted calls Hypothesis
    sys.setprofile(count)
    try:
        operation(line, 1)
    finally:
        sys.setprofile(None)
    assert len(calls) <= MOST_CALLS, calls
    assert calls.count("set") == 1
