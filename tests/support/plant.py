"""A small plant on the simulated board, in virtual time, and an observer that sees everything that reaches a driver.

The observer shares no code with what refuses: it stands behind the guard, in place of the drivers' own methods. The
agents, each with a session of its own, differ in their policy entries.
"""

from __future__ import annotations

import base64
from contextlib import AsyncExitStack, asynccontextmanager

import trio
from attrs import evolve
from support.doubles import AllowedPaths, MemoryJournal, Observer as Journalled
from support.hcp import Caller
from support.mcp import mcp_client
from support.world import ALICE, BOB, NOON, World, running

from hearth import step
from hearth.actors.bridges.hcp.extra import HcpService
from hearth.actors.bridges.hcp.lazy import JobServerLifetime, open_job_storage
from hearth.actors.embedded import job_sessions
from hearth.actors.runtime import RuntimeParts
from hearth.config.hcp import HcpConfig
from hearth.config.model import LimitsConfig
from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.registers import Read, Write
from hearth.drivers.tools import build_tools
from hearth.errors import from_wire
from hearth.hcp.capability import CapabilitySet
from hearth.mcp.names import META_ERROR, PLAN, mcp_name
from hearth.policy.principal import Principal
from hearth.policy.rules import Match, PolicyEntry
from hearth.tools import ToolRegistry

CAROL, DAN, ERIN, FRANK, GRACE = [Principal(kind="unix", uid=uid, gid=uid) for uid in range(1003, 1008)]

NAMES = [
    "HEATER",
    "COMPRESSOR",
    "RELAY",
    "BURN_WIRE",
    "MOTOR",
    "LASER",
    "PUMP",
    "BEAM",
    "TARGET",
    "GATE",
    "LID",
    "ESTOP",
]
NAMES += ["LOCK", "GARAGE", "LAMP", "ALIVE", "SPARE", "OVEN"]
LINE = {name: offset for offset, name in enumerate(NAMES)}
CLOSED, OPENED = 0, 1
TANK, ROOM, ARM, CLOCK, MONITOR = 0x4D, 0x48, 0x50, 0x57, 0x60
DOSE, SPEED, ANGLE, RATE, JOINT, POSITION, CALIBRATION = 0x10, 0x11, 0x12, 0x13, 0x14, 0x16, 0x20

REGISTERS = [
    {"reg": DOSE, "name": "DOSE", "unit": "U", "scale": 0.1, "max": 10},
    {"reg": SPEED, "name": "SPEED", "unit": "mm/s", "scale": 10, "max": 1500},
    {"reg": ANGLE, "name": "ANGLE", "unit": "degree", "min": 5, "max": 85},
    {"reg": RATE, "name": "RATE", "unit": "ml/h", "max": 100, "max_step": 10},
    {"reg": JOINT, "name": "JOINT", "unit": "degree", "max": 200, "slew_per_s": 20},
    {"reg": POSITION, "width": 16, "signed": True, "name": "POSITION", "unit": "mm", "min": -100, "max": 100},
    {"reg": CALIBRATION, "access": "r", "name": "CALIBRATION"},
]
PROFILE = {
    "name": "plant",
    "description": "what the reports are about, on one simulated board",
    "gpio": [
        {
            "label": "plant",
            "driver": "sim",
            "names": NAMES,
            "contacts": {"GATE": CLOSED, "LID": CLOSED, "ESTOP": CLOSED},
            "lines": {
                "HEATER": {"safe": 0, "limit": {"min_on_ms": 1_000, "max_on_ms": 30_000}},
                "COMPRESSOR": {"safe": 0, "limit": {"min_off_ms": 300_000}},
                "RELAY": {"safe": 0, "limit": {"max_rate_hz": 1}},
                "BURN_WIRE": {"safe": 0, "limit": {"max_on_ms": 500}},
                **{name: {"safe": 0} for name in ("MOTOR", "LASER", "PUMP", "BEAM", "TARGET", "OVEN", "LAMP")},
                **{name: {"safe": 0} for name in ("LOCK", "GARAGE", "ALIVE")},
                **{name: {"direction": "input", "pull": "up"} for name in ("GATE", "LID", "ESTOP")},
                "SPARE": {"reserved": "the watchdog of the board"},
            },
        }
    ],
    "i2c": [
        {
            "bus": 1,
            "driver": "sim",
            "scope": "declared",
            "reserved": [CLOCK],
            "device": [
                {"addr": ROOM, "kind": "tmp102", "reg_width": 8},
                {"addr": TANK, "kind": "mcp3221", "tank": {"pump": "PUMP", "start": 40}},
                {"addr": ARM, "kind": "24c02", "reg_width": 8, "registers": REGISTERS},
            ],
        }
    ],
    "uart": [{"port": "printer", "driver": "sim", "baud": 115_200, "peer": "echo"}],
    "sensors": {
        "tank": {"kind": "mcp3221", "bus": 1, "addr": TANK},
        "room": {"kind": "tmp102", "bus": 1, "addr": ROOM},
    },
    "interlock": [
        {"drives": "MOTOR", "value": 1, "requires": [{"line": "GATE", "value": CLOSED}]},
        {"drives": "LASER", "value": 1, "requires": [{"line": "LID", "value": CLOSED}]},
        {"drives": "BEAM", "value": 1, "requires": [{"line": "TARGET", "value": 1}]},
        {"drives": "PUMP", "value": 1, "requires": [{"sensor": "tank", "max": 90}]},
        {"drives": "OVEN", "value": 1, "requires": [{"sensor": "room", "min": 1, "max": 60}]},
    ],
    "halt": {"inputs": ["ESTOP"], "heartbeat": {"line": "ALIVE", "hz": 0.1}},
}

OUTPUTS = [name for name in NAMES if name not in ("LOCK", "GARAGE")]
SCOPED = {
    "lines": OUTPUTS,
    "i2c": [f"1:{addr:#04x}" for addr in (ROOM, TANK, ARM, CLOCK, MONITOR)],
    "uart": [],
    "tools": ["gpio.*", "i2c.*", "uart.read", "uart.write", "uart.exchange", "hw.*"],
}
POLICY = (
    PolicyEntry(
        name="agent",
        match=Match(uid=ALICE.uid),
        rate={"gpio.pulse": "2/m", "gpio.set": "200/s", "i2c.write": "8/s"},
        hcp={"capabilities": ["drive"], "max_risk": "R3"},
        **SCOPED,
    ),
    PolicyEntry(name="operators", match=[Match(uid=BOB.uid), Match(uid=CAROL.uid)], rights=["approve", "reset_halt"]),
    PolicyEntry(name="reader", match=Match(uid=ERIN.uid), max_risk=0, max_risk_ceiling=1),
    PolicyEntry(
        name="supervised", match=Match(uid=FRANK.uid), rights=["approve"], approval=[{"from_risk": 2, "other": True}]
    ),
    PolicyEntry(
        name="two persons", match=Match(uid=GRACE.uid), rights=["approve"], approval=[{"from_risk": 2, "persons": 2}]
    ),
    PolicyEntry(name="others", match=Match(any=True), lines=["LAMP"], i2c=[], uart=[]),
)


# --- the observer -----------------------------------------------------------------------------------------------------


class Observer:
    """Notes what the drivers are asked to do to the world (`effects`), and what they are asked to tell (`reads`).

    The heartbeat that hearth itself drives, and the reads for its own interlocks and inputs, are no part of a request.
    """

    OWN_LINES = tuple(LINE[name] for name in ("GATE", "LID", "ESTOP", "TARGET"))

    def __init__(self, drivers):
        self.effects = []
        self.reads = []
        gpio, i2c, uart = drivers["gpio:plant"], drivers["i2c:1"], drivers["uart:printer"]
        for name, note in {"set": self._set, "get": self._line, "watch": self._line}.items():
            self._stand_before(gpio, name, note)
        self._stand_before(i2c, "transfer", self._transfer)
        self._stand_before(i2c, "scan", lambda *_args, **_more: self.effects.append("a scan"))
        for name in ("write", "exchange", "control"):
            self._stand_before(uart, name, lambda *_args, **_more: self.effects.append("bytes to the printer"))

    @staticmethod
    def _stand_before(driver, name, note):
        real = getattr(driver, name)

        def watched(*args, **more):
            note(*args, **more)
            return real(*args, **more)

        setattr(driver, name, watched)

    def _set(self, line, state):
        if line != LINE["ALIVE"]:
            self.effects.append(f"{NAMES[line]} to {state}")

    def _line(self, line, *_args):
        if line not in self.OWN_LINES:
            self.reads.append(NAMES[line])

    def _transfer(self, addr, messages, **_more):
        only_selects = len(messages) == 2 and len(messages[0].data) == 1 if type(messages[0]) is Write else False
        if all(type(message) is Read for message in messages) or (only_selects and type(messages[1]) is Read):
            if addr not in (TANK, ROOM):
                self.reads.append(hex(addr))
        else:
            self.effects.append(f"a write to {addr:#x}")

    def forget(self):
        """Begin anew: what came before was permitted."""
        self.effects.clear()
        self.reads.clear()


# --- the plant --------------------------------------------------------------------------------------------------------


class Plant(World):
    """The world over the plant, in virtual time, and its outside. `job_directory`: it also serves `capabilities`."""

    def __init__(self, job_directory=None, capabilities=()):
        board = open_board(parse_profile(PROFILE, "the plant"), style=Style.ASYNC)
        self.watched = Observer(board.drivers)
        super().__init__(
            RuntimeParts(
                board=board,
                drivers=board.drivers,
                registry=ToolRegistry(build_tools(board, enable=(), disable=("file.*", "sys.*", "proc.*"))),
                policy=POLICY,
                paths=AllowedPaths(),
                journal=MemoryJournal(Journalled()),
                limits=evolve(LimitsConfig(), plan_ttl_s=100),
                halt=board.profile.halt,
                clock=lambda: NOON + trio.current_time(),
            )
        )
        if job_directory is not None:
            self.parts = evolve(
                self.parts,
                extras={"hcp": HcpService(HcpConfig(serve=True), CapabilitySet(capabilities), job_directory)},
            )
        self.gpio, self.i2c = board.drivers["gpio:plant"], board.drivers["i2c:1"]
        self.tank, self.room = 40.0, 20.0
        self.i2c.devices[TANK].percent = lambda: self.tank
        self.i2c.devices[ROOM].temperature = lambda: self.room
        self._entered = AsyncExitStack()

    def _records(self):
        return self.journal.records

    def release(self):
        """Let go what a request left hanging."""
        self.i2c.faults.clear()

    async def session(self, principal=ALICE):
        """Return a session of this principal; it ends with the plant."""
        return await self._entered.enter_async_context(self.sessions(principal).open_session())

    async def tools(self, principal=ALICE):
        """Return an MCP client of this principal; it ends with the plant."""
        return await self._entered.enter_async_context(mcp_client(self.sessions(principal), "auto"))

    def push(self, name, level):
        """Put a level on an input from outside."""
        self.gpio.push(LINE[name], level)


@asynccontextmanager
async def plant(job_directory=None, capabilities=()):
    """Run a plant; what it has done by itself at its start is not observed."""
    made = Plant(job_directory, capabilities)
    storage = None if job_directory is None else open_job_storage(made.parts)
    with trio.fail_after(10_000):
        async with running(made):
            if storage is not None:
                lifetime = JobServerLifetime(storage, made.runtime, job_sessions(made.runtime))
                made.nursery.start_soon(lifetime.run)
                made.parts.extras["hcp"].server = await lifetime.ready()
            try:
                async with made._entered:
                    made.watched.forget()
                    yield made
            finally:
                made.release()
                if storage is not None:
                    await lifetime.end()


# --- requests ---------------------------------------------------------------------------------------------------------


def turn(name, value, **more):
    """A step that drives a line."""
    return step("gpio.set", line=name, value=value, **more)


def pulse(name, duration_ms, **more):
    """A step that drives a line to 1 for a time."""
    return step("gpio.pulse", line=name, value=1, duration_ms=duration_ms, **more)


def put(reg, *data, addr=ARM, **more):
    """A step that writes bytes to a register."""
    return step("i2c.write", bus=1, addr=addr, reg=reg, data=base64.b64encode(bytes(data)).decode(), **more)


async def ended(task):
    """Wait for a task; raise the error of the first step that failed, as its own class."""
    result = await task.wait()
    for one in result.steps:
        if one.error_code is not None:
            raise from_wire({"code": one.error_code, "message": one.error, "data": one.error_data})
    if result.error_code is not None:
        raise from_wire({"code": result.error_code, "message": result.error})


async def called(client, name, arguments, **more):
    """Call an MCP tool; raise the error that it returns."""
    result = await client.call_tool(name, arguments, **more)
    if result.is_error:
        # Of a plan whose step has failed, the result says which.
        steps = () if META_ERROR in result.meta else result.structured_content["steps"]
        failed = [one for one in steps if "error_code" in one]
        raise from_wire(
            {"code": failed[0]["error_code"], "message": failed[0]["error"]} if failed else result.meta[META_ERROR]
        )


def asks(*steps, principal=ALICE, **constraints):
    """A request on every face: submitted, as a plan that is executed, as calls of tools over MCP."""
    intent = "what the report is about"

    async def submitted(made):
        session = await made.session(principal)
        await ended(await session.submit(intent, steps, **constraints))

    async def planned(made):
        session = await made.session(principal)
        await ended(await session.execute(await session.prepare(intent, steps, **constraints)))

    async def over_mcp(made):
        wire = [one.to_wire() for one in steps]
        await called(await made.tools(principal), PLAN, {"intent": intent, "steps": wire, **constraints})

    async def as_tool(made):
        (only,) = steps
        await called(await made.tools(principal), mcp_name(only.tool), dict(only.args))

    faces = [submitted, planned, over_mcp]
    return [*faces, as_tool] if len(steps) == 1 and not constraints else faces


def caller(made, principal=ALICE):
    """Return a caller that speaks HCP to the plant."""
    speaks = Caller(made.pipes(principal))
    made.nursery.start_soon(speaks.run)
    return speaks
