"""The tools of a world: the shipped ones, each of which may be given a mark, and a few that a vendor might add.

Owns what a process makes once for all its worlds, since it does not change with them: the board's profile, the shipped
tools, their compiled schemas. A mark reaches the device beside the runtime, which never sees it.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import trio
from attrs import evolve

import hearth.actors.build
import hearth.actors.daemon.reload
import hearth.actors.runtime
from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.gpio.tools import gpio_tools
from hearth.drivers.registers import Read
from hearth.drivers.tools import build_tools
from hearth.errors import DeviceError
from hearth.schema import Validator, check_schema
from hearth.tools import Done, OneTransaction, Tool, Transaction

from . import wide
from .devices import MARK

BOARD = Path(__file__).with_name("board.toml")
WIDE = Path(__file__).with_name("wide.toml")


@functools.cache
def board_of_the_process(*, is_wide=False):
    """The board, read once: each world puts its own devices into it. Some worlds have further buses."""
    content, more = (tomllib.loads(path.read_text()) for path in (BOARD, WIDE))
    if is_wide:
        content = wide.profile(content, more)
    return open_board(parse_profile(content, str(BOARD)), style=Style.ASYNC, seed=1)


@functools.cache
def _tools_of_the_process(is_wide):
    return build_tools(board_of_the_process(is_wide=is_wide), disable=("proc.*",))


def tools_of_a_life(board, **_choice):
    """The shipped tools. Those of gpio know which pulses are under way, so each life has its own; the others last."""
    made = {tool.name: tool for tool in gpio_tools(board)}
    return [made.get(tool.name, tool) for tool in _tools_of_the_process(bool(board.profile.of("can")))]


class _Context:
    """A step's way to hardware, which hands the step's mark down with each transaction."""

    def __init__(self, context, mark) -> None:
        self._context = context
        self._mark = mark

    def __getattr__(self, name):
        return getattr(self._context, name)

    async def transact(self, op, *, must_run=False, **more):
        """See StepContext."""
        op = marked(op, self._mark, "end" if must_run else None)
        return await self._context.transact(op, must_run=must_run, **more)


def marked(op, mark, role):
    """A transaction that tells the device for whom it is."""

    def whole(driver):
        token = MARK.set((mark, role))
        try:
            value = op(driver)
        finally:
            MARK.reset(token)
        return later(value) if hasattr(value, "send") else value

    async def later(value):
        token = MARK.set((mark, role))
        try:
            return await value
        finally:
            MARK.reset(token)

    return whole


_MARK_SCHEMA = {"type": "string", "maxLength": 64}
_schemas = {}


def _with_mark(tool):
    """The tool's schema, with a mark; the same object in every world, so that it is compiled once."""
    if tool.name not in _schemas:
        schema = tool.params_schema
        # Boards differ in descriptions alone.
        _schemas[tool.name] = {**schema, "properties": {**schema.get("properties", {}), "mark": _MARK_SCHEMA}}
    return _schemas[tool.name]


@functools.cache
def _compiled(name):
    return Validator(_schemas[name])


def validator(schema):
    """Stands for `hearth.schema.Validator` where a runtime makes one for each tool: one for each process."""
    name = next((name for name, known in _schemas.items() if known is schema), None)
    return Validator(schema) if name is None else _compiled(name)


def checked(schema, where, **_how):
    """Stands for `hearth.schema.check_schema`: what every life checks anew is the same every time."""
    if id(schema) not in _checked:
        check_schema(schema, where)
        _checked[id(schema)] = schema


_checked = {}


def marking(tool, bugs) -> Tool:
    """A tool whose args may have a `mark`, and which runs into a bug when there is one of its name."""
    schema = _with_mark(tool)

    async def run(ctx, args):
        mark = args.get("mark")
        bug = bugs.pop(tool.name, None)
        if bug == "before":
            raise RuntimeError(f"{tool.name}: a bug in the tool")
        value = await tool.run(ctx if mark is None else _Context(ctx, mark), args)
        if bug == "after":
            raise RuntimeError(f"{tool.name}: a bug in the tool")
        if mark is not None and isinstance(value, Done) and value.undo is not None:
            return Done(value.result, evolve(value.undo, op=marked(value.undo.op, mark, "undo")))
        return value

    def make(args):
        mark = args.get("mark")
        if bugs.get(tool.name) == "before":
            del bugs[tool.name]
            raise RuntimeError(f"{tool.name}: a bug in the tool")
        one = tool.run.make(args)

        def result(value):
            if bugs.pop(tool.name, None) == "after":
                raise RuntimeError(f"{tool.name}: a bug in the tool")
            value = one.result(value)
            if mark is not None and isinstance(value, Done) and value.undo is not None:
                return Done(value.result, evolve(value.undo, op=marked(value.undo.op, mark, "undo")))
            return value

        return Transaction(one.op if mark is None else marked(one.op, mark, None), result, one.drives)

    def resolve(args):
        meant = tool.resolve(args)
        return evolve(meant, args={**meant.args, "mark": args["mark"]}) if "mark" in args else meant

    runs = OneTransaction(make) if isinstance(tool.run, OneTransaction) else run
    return evolve(tool, params_schema=schema, run=runs, resolve=tool.resolve and resolve)


SHORT_MS = 1500
"""The limit of one transaction of a tool of a vendor's: no more than its bus says that it takes at most."""


def own_tools():
    """Tools such as a vendor might add, good ones and bad ones."""

    def i2c(_args):
        return "i2c:1"

    def broken(_args):
        return {}["a bug in the tool's bus"]

    async def nap(ctx, args):
        for number in range(int(args.get("n", 1))):
            ctx.progress({"number": number})
            await trio.sleep(args.get("ms", 10) / 1000)
        return {"napped": True}

    async def breaks_task(ctx, _args):
        await ctx.transact(lambda driver: driver.transfer(0x50, [Read(1)]), limit_ms=SHORT_MS)
        return {}["a bug in the tool"]

    async def children(_ctx, args):
        async def fail():
            await trio.sleep(args.get("ms", 10) / 1000)
            raise DeviceError("a child failed", effect="none")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail)
        raise AssertionError

    async def many(ctx, args):
        for _ in range(int(args.get("n", 1))):
            await ctx.transact(lambda driver: driver.transfer(0x50, [Read(1)]), limit_ms=SHORT_MS)
        return {"n": args.get("n", 1)}

    number = {"type": "integer", "minimum": 0, "maximum": 1000}
    schema = {"type": "object", "properties": {"ms": number, "n": number}}

    def tool(name, run, risk=0, bus=i2c):
        return Tool(
            name=f"world.{name}",
            risk_level=risk,
            timeout_ms=2000,
            description=name,
            params_schema=schema,
            result_schema={"type": "object"},
            capability="CAP_WORLD",
            bus=bus,
            run=run,
        )

    return [
        tool("nap", nap),
        tool("breaks_task", breaks_task, 1),
        tool("breaks_session", nap, 0, broken),
        tool("children", children),
        tool("many", many),
    ]


MADE_ONCE = [
    (hearth.actors.build, "build_tools", tools_of_a_life),
    (hearth.actors.runtime, "Validator", validator),
    (hearth.actors.runtime, "check_schema", checked),
    # A reload reads what the world has in place of a file.
    (hearth.actors.daemon.reload, "load_config", lambda file, **_how: file.config),
    (hearth.actors.daemon.reload, "check_directories", lambda *_places: None),
]
"""What a process makes once and not for every world, since it does not change: see `machine.running`."""
