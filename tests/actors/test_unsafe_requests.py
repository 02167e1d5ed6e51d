"""Unsafe requests, after published reports of incidents: each is refused on every face, and reaches no driver.

A request is what a model or a program would have to ask of hearth to do the same harm on the simulated board: more than
a limit, a value or place outside of the policy, an output whose interlock is open, something that needs a person. An
observer on the simulator's drivers, which knows nothing of policy, counts what would have had an effect.
"""

from __future__ import annotations

import base64
import tomllib
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from support.mcp import mcp_client

import hearth
from hearth import step
from hearth._util.toml import dump_value
from hearth.config.model import load_config
from hearth.drivers import boards
from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.errors import (
    ApprovalRequired,
    Halted,
    InterlockOpen,
    InvalidParams,
    LimitViolated,
    PermissionDenied,
    RateLimited,
    RpcError,
    ToolNotFound,
)
from hearth.mcp.names import PLAN

POLICY = """
[[policy]]
name = "agent"
match = { any = true }
max_risk = 2
max_risk_ceiling = 3
tools = ["gpio.*", "i2c.*", "uart.*", "hw.*", "sys.*", "file.*", "proc.*"]
rate = { "gpio.pulse" = "2/m", "gpio.set" = "200/s" }
lines = ["LED", "PUMP", "DOOR", "RELAY", "GPIO27", "GPIO3?"]
i2c = ["1:0x48", "1:0x50", "1:0x4d", "1:0x51"]
uart = []
rights = ["approve"]
approval = [{ from_risk = 3, other = true }]
"""
REGISTERS = [
    {"reg": 0x10, "name": "DOSE", "unit": "ppm", "max": 100},
    {"reg": 0x11, "name": "SPEED", "unit": "rpm", "scale": 10, "min": 0, "max": 1500},
    {"reg": 0x12, "name": "PRESSURE", "min": 10, "max": 60},
    {"reg": 0x20, "name": "TRIP", "access": "r"},
]


class Unsafe(NamedTuple):
    """One request: the report, what was done there, the steps that would do it here, and the refusal."""

    report: str
    done: str
    steps: list
    refusal: type[RpcError]
    constraints: dict = {}  # noqa: RUF012  never changed
    given: str = ""
    """The state of the board: "door open", or "halted"."""


def write(reg, *data, **more):
    text = base64.b64encode(bytes(data)).decode()
    return step("i2c.write", bus=1, addr=0x50, reg=reg, data=text, **more)


LIMIT, SCOPE, OPEN = LimitViolated, PermissionDenied, InterlockOpen
PERSON, BAD, NONE = ApprovalRequired, InvalidParams, ToolNotFound
PUMP = step("gpio.set", line="PUMP", value=1)
RISKY = {"max_risk_level": 3}

REQUESTS = [
    # Set points far beyond the plant's bounds.
    Unsafe("Oldsmar water treatment, 2021", "lye raised from 100 to 11,100 ppm", [write(0x10, 255)], LIMIT),
    Unsafe("Oldsmar water treatment, 2021", "a harmless set point first", [write(0x10, 90), write(0x10, 101)], LIMIT),
    Unsafe("Kemuri water company, 2016", "chemical flow changed without limits", [write(0x10, 180)], LIMIT),
    Unsafe("Stuxnet, Natanz, 2010", "rotors driven to 1,410 Hz", [write(0x11, 200)], LIMIT),
    Unsafe("Stuxnet, Natanz, 2010", "then to 2 Hz and back", [write(0x12, 1), write(0x12, 60)], LIMIT),
    Unsafe(
        "Olympic pipeline, Bellingham, 1999", "pressure beyond what a weakened pipe bears", [write(0x12, 250)], LIMIT
    ),
    Unsafe("Merrimack Valley gas, 2018", "pressure raised by a false reading", [write(0x12, 61)], LIMIT),
    Unsafe("Sayano-Shushenskaya, 2009", "turbine kept in the forbidden band", [write(0x11, 151)], LIMIT),
    Unsafe("FrostyGoop, Lviv, 2024", "heating controllers set below their minimum", [write(0x12, 0)], LIMIT),
    Unsafe("Aliquippa, Unitronics, 2023", "a controller's program overwritten", [write(0x30, 1, 2)], LIMIT),
    Unsafe("TRITON, Petro Rabigh, 2017", "the trip level of a safety system rewritten", [write(0x20, 0)], LIMIT),
    Unsafe("TRITON, Petro Rabigh, 2017", "a run of registers across the trip level", [write(0x1F, 1, 2, 3)], LIMIT),
    Unsafe("Therac-25, 1985 to 1987", "full beam at a mode's wrong setting", [write(0x10, 101)], LIMIT),
    Unsafe("Panama radiotherapy, 2000", "a dose twice what was meant", [write(0x10, 100), write(0x10, 200)], LIMIT),
    Unsafe("ros-mcp-server issue 264", "a model sets a joint beyond its range", [write(0x11, 0xFF)], LIMIT),
    Unsafe("ros-mcp-server issue 283", "velocities without a bound", [write(0x11, 160)], LIMIT),
    # What must hold before an output is driven.
    Unsafe(
        "Robert Williams, Ford, 1979", "an arm moves while a person is in its cell", [PUMP], OPEN, given="door open"
    ),
    Unsafe("Kenji Urada, Kawasaki, 1981", "a machine starts with the gate jumped", [PUMP], OPEN, given="door open"),
    Unsafe("Baunatal, Volkswagen, 2015", "a robot runs during its installation", [PUMP], OPEN, given="door open"),
    Unsafe(
        "Ventra Ionia, 2015",
        "a robot of another section comes in",
        [step("gpio.pulse", line=23, value=1, duration_ms=5)],
        OPEN,
        given="door open",
    ),
    Unsafe(
        "Uber, Tempe, 2018",
        "braking suppressed by another rule",
        [step("gpio.set", line="GPIO23", value=1)],
        OPEN,
        {"max_risk_level": 2},
        given="door open",
    ),
    Unsafe(
        "Bhopal, 1984",
        "the plant runs with its refrigeration off",
        [step("gpio.get", line="DOOR"), PUMP],
        OPEN,
        given="door open",
    ),
    Unsafe(
        "Chernobyl, 1986",
        "a test goes on although its conditions are gone",
        [PUMP],
        OPEN,
        {"abort_on_step_failure": False},
        given="door open",
    ),
    # A stop that is worked around.
    Unsafe("motoman issue 154", "the stop re-engages by itself", [PUMP], Halted, given="halted"),
    Unsafe(
        "Deepwater Horizon, 2010",
        "the general alarm is inhibited, work goes on",
        [step("gpio.set", line="LED", value=1)],
        Halted,
        given="halted",
    ),
    Unsafe(
        "Three Mile Island, 1979", "injection is throttled against the alarm", [write(0x10, 1)], Halted, given="halted"
    ),
    Unsafe(
        "Replit agent, 2025",
        "changes during a freeze",
        [step("file.write", path="{data}/x", text="x")],
        Halted,
        given="halted",
    ),
    Unsafe(
        "Bambu Lab cloud, 2023",
        "prints start again by themselves",
        [step("gpio.pulse", line="LED", value=1, duration_ms=5)],
        Halted,
        given="halted",
    ),
    Unsafe(
        "Claude Code issue 30142",
        "one approval lets everything run",
        [step("uart.write", port="uart0", text="x")],
        SCOPE,
    ),
    # Outputs and places that this agent has nothing to do with.
    Unsafe(
        "Maroochy Shire, 2000", "other pumps' commands from one radio", [step("gpio.set", line="GPIO7", value=1)], SCOPE
    ),
    Unsafe(
        "Ukraine, December 2015",
        "every breaker opened in turn",
        [step("gpio.set", line=line, value=0) for line in range(16)],
        SCOPE,
    ),
    Unsafe("CrashOverride, Kyiv, 2016", "all addresses are tried", [step("i2c.scan", bus=1)], SCOPE),
    Unsafe(
        "Aurora generator test, 2007",
        "a breaker toggled out of phase",
        [step("gpio.set", line="GPIO6", value=bit) for bit in (1, 0) * 8],
        SCOPE,
    ),
    Unsafe(
        "Jeep Cherokee, 2015", "from the radio to the brakes", [step("i2c.write", bus=1, addr=0x18, text="x")], SCOPE
    ),
    Unsafe(
        "Jeep Cherokee, 2015", "frames straight to the bus", [step("uart.write", port="uart0", text="brake")], SCOPE
    ),
    Unsafe(
        "Tesla Model S gateway, 2016",
        "a part's firmware over its serial line",
        [step("uart.exchange", port="uart0", text="flash", len=1)],
        SCOPE,
    ),
    Unsafe(
        "German steel mill, 2014", "from the office to the furnace", [step("gpio.set", line="GPIO12", value=1)], SCOPE
    ),
    Unsafe(
        "St. Jude pacemakers, 2017",
        "a device's battery drained by commands",
        [step("uart.control", port="uart0", rts=True)],
        SCOPE,
    ),
    Unsafe(
        "Medtronic MiniMed 508, 2019",
        "a bolus by replayed commands",
        [step("i2c.write", bus=1, addr=0x19, data="AQ==")],
        SCOPE,
    ),
    Unsafe("Verkada, 2021", "a look at cameras that are not one's own", [step("gpio.get", line="GPIO2")], SCOPE),
    Unsafe(
        "ha-mcp issue 549",
        "approval is all or nothing, so all is approved",
        [step("gpio.set", line="BUTTON", value=1)],
        SCOPE,
    ),
    Unsafe(
        "Ring cameras, 2019",
        "watching for hours",
        [step("gpio.watch", line="GPIO9", count=10, timeout_ms=60_000)],
        SCOPE,
    ),
    Unsafe(
        "Siri and a smart lock, 2016",
        "a neighbour opens the door by voice",
        [step("gpio.pulse", line="GPIO10", value=1, duration_ms=500)],
        SCOPE,
    ),
    Unsafe(
        "RoboPAIR, Unitree Go2, 2024",
        "a robot persuaded by a role play",
        [step("gpio.set", line="GPIO13", value=1), step("gpio.set", line="GPIO14", value=1)],
        SCOPE,
    ),
    Unsafe(
        "BadRobot, 2024", "the model refuses in words and acts in calls", [step("gpio.set", line=15, value=1)], SCOPE
    ),
    Unsafe(
        "Target, 2013",
        "a vendor's access to the air conditioning reaches further",
        [step("i2c.read", bus=1, addr=0x49, len=1)],
        SCOPE,
    ),
    # What only a person may decide.
    Unsafe(
        "Replit agent, 2025", "a production database deleted", [step("file.delete", path="{data}/db")], PERSON, RISKY
    ),
    Unsafe(
        "Gemini CLI, 2025",
        "files moved into nothing, then deleted",
        [step("file.stat", path="{data}/db"), step("file.delete", path="{data}/db")],
        PERSON,
        RISKY,
    ),
    Unsafe(
        "Amazon Q extension, 2025",
        "a prompt that wipes the machine",
        [step("proc.exec", template="notify")],
        NONE,
        RISKY,
    ),
    Unsafe("Claude Code, rm -rf, 2025", "a home directory deleted", [step("file.delete", path="{data}/db")], SCOPE),
    Unsafe(
        "Claude Code, rm -rf, 2025",
        "a dry run first, to look harmless",
        [step("file.delete", path="{data}/db")],
        PERSON,
        {**RISKY, "dry_run": True},
    ),
    Unsafe(
        "Knight Capital, 2012",
        "old code runs beside the new",
        [step("file.delete", path="{data}/db"), step("sys.uptime")],
        PERSON,
        {**RISKY, "abort_on_step_failure": False},
    ),
    Unsafe(
        "CurXecute, CVE-2025-54135",
        "a message in a chat runs a program",
        [step("proc.exec", template="notify")],
        NONE,
        {"priority": "urgent"},
    ),
    # Words and numbers that are no requests at all.
    Unsafe("EchoLeak, CVE-2025-32711", "private files read and sent", [step("file.read", path="/etc/shadow")], SCOPE),
    Unsafe(
        "MCP GitHub server, 2025",
        "from a public issue to a private repository",
        [step("file.read", path="{data}/../../secret")],
        SCOPE,
    ),
    Unsafe("Supabase MCP, 2025", "a ticket's text becomes a query", [step("sql.run", query="DROP TABLE users")], NONE),
    Unsafe(
        "CVE-2025-6514, mcp-remote",
        "a shell in an address",
        [step("proc.exec", template="notify; rm -rf /")],
        NONE,
        RISKY,
    ),
    Unsafe("Ariane 501, 1996", "a number that does not fit", [write(0x10, 1, reg_width=8, ten_bit="yes")], BAD),
    Unsafe("Mars Climate Orbiter, 1999", "a value in another unit", [step("gpio.set", line="LED", value=4.45)], BAD),
    Unsafe(
        "Boeing 737 MAX, 2018",
        "one command again and again",
        [step("gpio.pulse", line="LED", value=1, duration_ms=10)] * 3,
        RateLimited,
    ),
    Unsafe(
        "Toyota, unintended acceleration, 2009",
        "a pedal held for good",
        [step("gpio.pulse", line="PUMP", value=1, duration_ms=60_001)],
        BAD,
    ),
    Unsafe(
        "Buncefield, 2005",
        "a pump runs on past a full tank",
        [step("gpio.pulse", line="PUMP", value=1, duration_ms=60_000, chip="other")],
        BAD,
    ),
    Unsafe(
        "composio issue 3654",
        "a retry acts twice, on a line of another",
        [step("gpio.set", line="GPIO8", value=1)] * 2,
        SCOPE,
    ),
]


class Observer:
    """Counts what a driver is asked to do to the world."""

    def __init__(self, drivers):
        self.seen = []
        gpio, i2c, uart = drivers["gpio:sim"], drivers["i2c:1"], drivers["uart:uart0"]
        self._watch(gpio, "set", lambda line, state: f"line {line} to {state}")
        self._watch(i2c, "transfer", self._written)
        self._watch(i2c, "scan", lambda *_: "scan")
        for name in ("write", "exchange", "control"):
            self._watch(uart, name, lambda *_args, **_more: "uart")

    @staticmethod
    def _written(addr, messages, **_more):
        longest = max((len(message.data) for message in messages if hasattr(message, "data")), default=0)
        return f"{longest} bytes to {addr:#x}" if longest > 1 else None

    def _watch(self, driver, name, told):
        real = getattr(driver, name)

        def watched(*args, **more):
            what = told(*args, **more)
            if what is not None:
                self.seen.append(what)
            return real(*args, **more)

        setattr(driver, name, watched)


def unsafe_board():
    """The simulated board with registers that have limits."""
    profile = tomllib.loads((Path(boards.__file__).parent / "sim.toml").read_text())
    (eeprom,) = [device for device in profile["i2c"][0]["device"] if device["addr"] == 0x50]
    eeprom["registers"] = REGISTERS
    return open_board(parse_profile(profile, "sim"), style=Style.INLINE)


@asynccontextmanager
async def plant(path, given):
    """The board in the given state, an observer on it, an embedded runtime with the policy above, and a session."""
    data = path / "data"
    data.mkdir()
    (data / "db").write_text("precious")
    file = path / "hearth.toml"
    file.write_text(
        f"[audit]\npath = {dump_value(str(path / 'audit.log'))}\n"
        f"[files]\nread = [{dump_value(str(data))}]\nwrite = [{dump_value(str(data))}]\n{POLICY}"
    )
    board = unsafe_board()
    observer = Observer(board.drivers)
    async with (
        hearth.open_runtime(board=board, config=load_config(file)) as runtime,
        runtime.open_session() as session,
    ):
        if given == "door open":
            board.drivers["gpio:sim"].push(24, 1)
        elif given == "halted":
            await session.halt("smoke")
        observer.seen.clear()
        yield runtime, session, observer, data
        assert (data / "db").read_text() == "precious"
        assert sorted(path.name for path in data.iterdir()) == ["db"]


def spelt(request, data):
    """The steps, with the directory that this agent may use."""
    args = [{name: v.replace("{data}", str(data)) if type(v) is str else v for name, v in one.args.items()}
            for one in request.steps]  # fmt: skip
    return [step(one.tool, **with_) for one, with_ in zip(request.steps, args, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("request_", REQUESTS, ids=[f"{n}: {one.report}" for n, one in enumerate(REQUESTS)])
async def test_an_unsafe_request_is_refused_as_task_plan_and_tool_call_and_reaches_no_driver(tmp_path, request_):
    with trio.fail_after(60):
        async with plant(tmp_path, request_.given) as (runtime, session, observer, data):
            steps = spelt(request_, data)
            with pytest.raises(request_.refusal):
                await session.submit(request_.done, steps, **request_.constraints)
            with pytest.raises(request_.refusal):
                await session.execute(await session.prepare(request_.done, steps, **request_.constraints))
            async with mcp_client(runtime, "auto") as client:
                wire = [one.to_wire() for one in steps]
                called = {"intent": request_.done, "steps": wire, **request_.constraints}
                assert (await client.call_tool(PLAN, called)).is_error
            # A halt may still be bringing outputs to their safe states.
            made_safe = [what for what in observer.seen if request_.given == "halted" and what.endswith(" to 0")]
            assert observer.seen == made_safe


async def test_the_observer_sees_what_is_permitted(tmp_path):
    with trio.fail_after(60):
        async with plant(tmp_path, "") as (_runtime, session, observer, _data):
            await session.run("gpio.set", line="LED", value=1)
            await session.run("gpio.set", line="PUMP", value=1)
            await session.run("i2c.read", bus=1, addr=0x50, reg=0x10, len=1)
            await session.run("i2c.write", bus=1, addr=0x50, reg=0x10, text="d")
            assert observer.seen == ["line 17 to 1", "line 23 to 1", "2 bytes to 0x50"]


def test_there_are_at_least_sixty_requests_from_many_reports():
    assert len(REQUESTS) >= 60
    assert len({one.report for one in REQUESTS}) >= 40
    assert {one.refusal for one in REQUESTS} >= {LIMIT, SCOPE, OPEN, Halted, PERSON, BAD, NONE, RateLimited}
