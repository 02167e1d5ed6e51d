"""Play generated calls on the board of every kind, and judge what reached the drivers; shares no code with the guard.

The judge looks at the simulated devices alone: at the level of each output after each operation that reached its
driver. It compares these with the limits as `kinds.board` has them, and knows nothing about the form of a call.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from contextlib import AsyncExitStack
from math import isfinite

import orjson
import trio
from attrs import define, field
from hypothesis import HealthCheck, Phase, find, given, settings, strategies as st
from kinds.board import NEW, OUTPUTS, TORQUE_REQUEST, VENDOR_BUS, KindsWorld, Raw, call, content, frame
from kinds.strategies import STRATEGIES, TORQUE_KEYS
from support.waiting import passes
from support.world import embedded, reset_halt, running
from trio.testing import MockClock

from hearth.drivers.boards.profile import parse_profile
from hearth.errors import ConfigError, InternalError, LimitViolated, PermissionDenied, RpcError

EXAMPLES = int(os.environ.get("HEARTH_EXAMPLES", "15"))
ALIKE = {"iio": 3}
"""By kind: by how much its sequences may be fewer, since all its calls are the same."""
PROPERTIES = {
    "bounds": "no level beyond the bounds reaches a driver",
    "refused": "a call that is refused reaches no driver",
    "steps": "no step is greater or faster than its limit, but to safe and to off",
    "halt": "what was driven is safe after a halt, or listed as left",
    "crash": "no call crashes its bus",
}
END, HALT = "end of the session", "halt and reset"
_SLACK_S = 1e-3


def played(kind, way):
    """Sequences of pauses in seconds, each with a step of a tool, a raw call, an end of the session, or a halt.

    With `way` "tools" there are no raw calls.
    """
    table, around = STRATEGIES[kind], st.sampled_from([END, HALT])
    raw = [] if way == "tools" else [table.raw] * 3
    action = st.one_of(*raw, table.steps, table.steps, around)
    return st.lists(st.tuples(st.sampled_from([0, 0, 0.01, 0.1, 0.5, 3]), action), min_size=4, max_size=14)


@define
class Violation:
    """A property that did not hold, and where."""

    of: str
    what: str


@define
class _Level:
    """The present level of an output: a number, its last change, and whether it is known at all."""

    value: object
    since: float
    known: bool
    on_since: float | None = None
    off: bool = False


@define(eq=False)
class Judge:
    """The violations of one play."""

    world: KindsWorld
    new: bool
    violations: list = field(factory=list)
    levels: dict = field(factory=dict)
    driven: set = field(factory=set)
    """The buses and outputs whose level was another one than in the beginning."""
    counts: Counter = field(factory=Counter)
    """How many actions were done, and how many refused."""

    def __attrs_post_init__(self):
        for one in OUTPUTS:
            level = one.level(self.world)
            known = one.readable and level is not None
            if level == "off" and one.kind == "pwm":
                level, known = 0.0, one.off == "zero" or self.new
            self.levels[one.bus, one.output] = _Level(level, 0.0, known, off=one.level(self.world) == "off")

    def safe(self, one):
        """The safe state of an output on this world's profile."""
        return one.new_safe if self.new and one.new_safe is not None else one.safe

    def says(self, of, what):
        self.violations.append(Violation(of, what))

    def is_learned(self, levels, effects):
        """Return True if nothing was driven, or an output whose level was not known to its safe state and no more."""
        now = self.world.levels()
        changed = [one for one in OUTPUTS if now[one.bus, one.output] != levels[one.bus, one.output]]
        made_safe = all(now[one.bus, one.output] == self.safe(one) and not one.readable for one in changed)
        return made_safe and len(effects) <= 1 and (not effects or bool(changed) or effects[0].op == "set")

    def look(self):
        """Judge every operation that has reached a driver, in their order."""
        for operation in self.world.recorder.operations:
            for one in OUTPUTS:
                level = operation.levels.get((one.bus, one.output))
                if level is not None:
                    self._judge(one, level, operation)

    def _judge(self, one, level, operation):
        state = self.levels[one.bus, one.output]
        if one.kind == "gpio":
            self._judge_line(one, level, state, operation)
            return
        was_off, state.off = state.off, level == "off"
        if level == "off":
            if was_off:
                return
            self.driven.add((one.bus, one.output))
            if not one.has_off:
                self.says("bounds", f"{one.bus} {one.name} has no off, and was switched off by {operation.args}")
            if one.off == "zero":
                state.value, state.since, state.known = 0.0, operation.ended, True
            return
        where = (
            f"{one.bus} {one.name}: {state.value} -> {level} by {operation.op}{operation.args} at {operation.at:.3f}"
        )
        if level == state.value:
            return
        self.driven.add((one.bus, one.output))
        former, since, known = state.value, state.since, state.known
        state.value, state.since, state.known = level, operation.ended, True
        if not isfinite(level) or not one.least - one.grain <= level <= one.most + one.grain:
            self.says("bounds", where)
            state.known = False
            return
        safe = self.safe(one)
        if not known or former is None or (isinstance(safe, (int, float)) and abs(level - safe) <= one.grain):
            return
        change = abs(level - min(max(former, one.least), one.most))
        most = min(one.step, one.slew * (operation.ended - since + _SLACK_S))
        if one.soft:
            most = min(most, one.slew * 0.1)
        if change > most + one.grain:
            self.says("steps", f"{where}: {change:g} is more than {most:g}")

    def _judge_line(self, one, level, state, operation):
        if level != state.value:
            self.driven.add((one.bus, one.output))
            self._on_for(one, state, operation.at)
            state.value, state.on_since = level, operation.ended if level == 1 else None
        if level not in (0, 1, "input"):
            self.says("bounds", f"{one.bus} {one.name}: {level}")

    def _on_for(self, one, state, until):
        if state.on_since is not None and until - state.on_since > one.max_on + _SLACK_S:
            self.says("steps", f"{one.name} was on for {until - state.on_since:g} s")

    def at_the_end(self, left, uart):
        """Judge what a halt has left; `left` are the names that it lists by bus."""
        for one in OUTPUTS:
            level = one.level(self.world)
            safe = self.safe(one)
            self._on_for(one, self.levels[one.bus, one.output], trio.current_time())
            if (one.bus, one.output) not in self.driven:
                continue
            is_safe = level == safe or (safe == 0 and level == "off")
            if not is_safe and isinstance(safe, (int, float)) and isinstance(level, (int, float)):
                is_safe = abs(level - safe) <= one.grain
            if not is_safe and not any(one.name.partition(".")[0] in name for name in left.get(one.bus, ())):
                self.says("halt", f"{one.bus} {one.name} is at {level}, its safe state is {safe}, and not listed")
        for operation in self.world.recorder.operations:
            if operation.bus == "uart:uart0" and operation.op != "control" and operation.effect != "none":
                if not left.get("uart:uart0"):
                    self.says("halt", "bytes went out at uart:uart0, and nothing is listed")
                break
        if uart:
            self.says("halt", f"the lines of uart:uart0 are {uart}")
        leds = self.world.drivers[VENDOR_BUS].percent
        if any(leds.values()) and not left.get(VENDOR_BUS):
            self.says("halt", f"{VENDOR_BUS} is at {leds}, and not listed")


def takes_new_keys(kind):
    """Return True if this release's profile has the new keys of a kind."""
    if kind not in NEW:
        return False
    try:
        parse_profile(content("none", new=[kind]), "test profile")
    except ConfigError:
        return False
    return True


async def play(dbc, kind, actions, *, new=False):
    """Play actions on a new world; return their judge."""
    world = KindsWorld(dbc, new=[kind] if new else [])
    async with running(world), AsyncExitStack() as opened:
        judge = Judge(world, new)
        port = world.drivers["uart:uart0"]
        lines = await port.control()
        session = await opened.enter_async_context(embedded(world))
        for pause, action in actions:
            await trio.sleep(pause)
            if action == END:
                await opened.aclose()
                session = await opened.enter_async_context(embedded(world))
            elif action == HALT:
                await _halt(world)
                await reset_halt(world.runtime)
            else:
                await _act(world, judge, session, action)
        await _halt(world)
        status = orjson.loads(orjson.dumps(world.runtime.halt.status()))
        left = {}
        for entry in status.get("left", ()):
            left.setdefault(entry["bus"], []).extend(entry["names"])
        now = await port.control()
        judge.look()
        judge.at_the_end(left, now if (now.rts, now.dtr) != (lines.rts, lines.dtr) else None)
    return judge


async def _halt(world):
    world.runtime.halt.halt("a test", "a person")
    for bus in world.runtime.buses.values():
        await bus.settle()
    await passes(lambda: not any(bus.unsafe for bus in world.runtime.buses.values()))


async def _act(world, judge, session, action):
    before, levels = len(world.recorder.operations), world.levels()
    try:
        if isinstance(action, Raw):
            await call(session, world, action)
        else:
            tool, args = action
            await session.run(tool, **args)
        judge.counts["done"] += 1
    except InternalError as error:
        judge.says("crash", f"{action}: {error.message}")
    except RpcError as error:
        judge.counts["refused"] += 1
        if isinstance(action, Raw) and isinstance(error, (LimitViolated, PermissionDenied)):
            effects = [
                one
                for one in world.recorder.since(before)
                if one.op != "read" and one.effect != "none" and not _only_reads(one)
            ]
            if not judge.is_learned(levels, effects):
                judge.says("refused", f"{action} was refused ({error.message}), and {effects} reached a driver")


def _only_reads(operation):
    """Return True for the transfers by which a guard learns a register: those of one that is read."""
    if operation.bus.startswith("i2c"):
        return len(operation.args[1]) == 2 and not hasattr(operation.args[1][1], "data")
    return operation.bus.startswith("spi") and operation.args[0][:1] >= b"\x80"


def _torque(raw, key):
    return frame(key, struct.pack("<xH5x", raw))


KNOWN = {
    ("gpio", "all"): [[(0, Raw("gpio:sim", "set", (2, 1)))], [(0, Raw("gpio:sim", "set", (0, 1))), (6, END)]],
    ("pwm", "tools"): [
        [(0, ("pwm.set", {"channel": "FAN", "duty": 1}))],
        [
            (0, ("servo.move", {"servo": "ARM", "angle": 0})),
            (0, END),
            (3, ("servo.move", {"servo": "ARM", "angle": 9})),
        ],
        [
            (0, ("servo.move", {"servo": "ARM", "angle": 0})),
            (0, ("pwm.off", {"channel": "ARM"})),
            (3, ("servo.move", {"servo": "ARM", "angle": 90})),
        ],
    ],
    ("pwm", "all"): [
        [(0, Raw("pwm:sim", "set", (2, 0.01)))],
        [
            (0, Raw("pwm:sim", "set", (0, 0.4))),
            (0, Raw("pwm:sim", "set", (0, "off"))),
            (0, Raw("pwm:sim", "set", (0, 1))),
        ],
        [(0, Raw("pwm:sim", "set", (0, 0.4)))],
    ],
    ("dac", "tools"): [
        [
            (0, ("dac.set", {"channel": "DRIVE", "value": 5})),
            (0, END),
            (3, ("dac.set", {"channel": "DRIVE", "value": 5})),
        ]
    ],
    ("dac", "all"): [
        [(0, Raw("dac:sim", "set", (1, 2.0)))],
        [(0, Raw("dac:sim", "set", (1, "off")))],
        [(0, Raw("dac:sim", "set", (2, "off"))), (3, Raw("dac:sim", "set", (2, 10.0)))],
    ],
    ("can", "tools"): [
        [(0, ("can.send", {"bus": "can0", "id": "0x00ef03c8", "hex": "00ffff0000000000"}))],
        [
            (0, ("can.send", {"bus": "can0", "id": "0x0cef0003", "hex": "0008000000000000"})),
            (0, ("can.send", {"bus": "can0", "id": "0x18ef0003", "hex": "00005d0000000000"})),
        ],
    ],
    ("can", "all"): [
        [(0, _torque(0xFFFF, TORQUE_KEYS[0]))],
        [(0, _torque(8, TORQUE_REQUEST)), (0, _torque(8_000, TORQUE_KEYS[0]))],
    ],
    ("modbus", "tools"): [
        [(0, ("modbus.write", {"device": "EVERYONE", "register": 100, "value": 200}))],
        [(0, ("modbus.write", {"device": "EVERYONE", "register": 101, "value": 900}))],
    ],
    ("modbus", "all"): [
        [(0, Raw("modbus:plant", "write", (0, "holding", 100, (200,))))],
        [(0, Raw("modbus:plant", "write", (0, "holding", 101, (900,))))],
        [(0, Raw("modbus:plant", "write", (3, "coil", 0, (1,))))],
    ],
}
"""By kind and way: sequences that broke a property once; they are played before those that are generated."""

_verdicts = {}


def verdicts(dbc, kind, way):
    """Play generated actions of a kind, once in a process; return the violations, and how many actions were done.

    The violations are by property: the first one, and its actions.

    HEARTH_EXAMPLES says how many sequences are played. The same ones are, in every run.
    """
    if (kind, way) not in _verdicts:
        found, counts = _verdicts[kind, way] = {}, Counter()
        new = takes_new_keys(kind)

        def note(actions):
            judge = judged(dbc, kind, actions, new=new)
            counts.update(judge.counts)
            for violation in judge.violations:
                found.setdefault(violation.of, (violation.what, actions))

        for actions in KNOWN.get((kind, way), ()):
            note(actions)

        @settings(
            max_examples=EXAMPLES // ALIKE.get(kind, 1) or 1,
            database=None,
            derandomize=True,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(played(kind, way))
        def one(actions):
            note(actions)

        one()
    return _verdicts[kind, way]


def judged(dbc, kind, actions, *, new=False):
    """Play actions in a run of their own; return their judge."""

    async def main():
        return await play(dbc, kind, actions, new=new)

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def least(dbc, kind, way, of):
    """The least sequence of actions that violates a property, where HEARTH_SHRINK asks for it."""
    new = takes_new_keys(kind)
    quiet = settings(max_examples=500, database=None, derandomize=True, deadline=None)
    return find(
        played(kind, way),
        lambda actions: any(one.of == of for one in judged(dbc, kind, actions, new=new).violations),
        settings=quiet,
    )
