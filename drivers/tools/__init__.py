"""The tools of a process: the default set for a board, with the operator's additions and removals.

It decides which tools exist and in which order; it does not know what they do.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from hearth._util.foreign import usable
from hearth._util.python import package_of, vendor_entry_points
from hearth._util.text import suggest
from hearth.drivers import schemas
from hearth.drivers.board import BoardDriver
from hearth.drivers.declare import COMMON, list_tool, with_signals
from hearth.drivers.kinds import kinds_of
from hearth.drivers.named import BoardSignals
from hearth.drivers.tools.signals import NAMES, signal_tools
from hearth.errors import ConfigError
from hearth.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from importlib.metadata import EntryPoint

    from hearth.config.exec import ExecTemplate
    from hearth.drivers.board import Board
    from hearth.drivers.kind import BusKind
    from hearth.tools import Args, StepContext

ENTRY_POINTS = "hearth.tools"
"""The entry point group of vendors' tools: each is a callable that takes the Board and returns an iterable of Tool."""


def build_tools(
    board: Board,
    *,
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    exec_templates: Mapping[str, ExecTemplate | Sequence[str]] | None = None,
) -> list[Tool]:
    """Return the tools that this process offers, in the default order, vendors' last.

    A tool is there if its board has a bus of its kind (hw.* always) and the board's profile allows it. `enable` names
    opt-in tools and vendors' tools exactly, or a vendor's entry point for all of its tools that are not opt-in;
    `disable` takes patterns such as "uart.*". Raises ConfigError for a name or pattern that matches nothing, for an
    enabled tool that the profile does not allow, and for a vendor's package that cannot be used.
    """
    default = _default_tools(board, exec_templates or {})
    known = {tool.name: tool for tool in default}
    vendors = _vendor_tools(board, [name for name in enable if name not in known], known)
    offered = [tool for tool in default if not tool.opt_in or tool.name in enable] + vendors
    _check_names(board, enable, disable, [*NAMES, *known, *(tool.name for tool in vendors)])
    lacking = _lacking(board)

    def allowed(tool: Tool) -> bool:
        return _matches(tool.name, board.profile.tools) and not _matches(tool.name, disable)

    tools = [
        tool
        for tool in offered
        if not (tool.name in known and tool.name.partition(".")[0] in lacking) and allowed(tool)
    ]
    # What is named comes first: the tools of its kinds are for what a name does not say.
    return [*filter(allowed, signal_tools(board.signals, {tool.name: tool for tool in tools})), *tools]


def _check_names(board: Board, enable: Sequence[str], disable: Sequence[str], everything: Sequence[str]) -> None:
    for pattern in disable:
        if not any(fnmatchcase(name, pattern) for name in everything):
            raise ConfigError(f"[tools] disable: no tool matches {pattern!r}{_near(pattern, everything)}")
    for name in enable:
        if name in everything and not _matches(name, board.profile.tools):
            raise ConfigError(
                f"[tools] enable: {name!r} is not allowed by {board.profile.source} (tools.allow); change it there"
            )


def _default_tools(board: Board, exec_templates: Mapping[str, ExecTemplate | Sequence[str]]) -> list[Tool]:
    from hearth.drivers.tools.files import file_tools
    from hearth.drivers.tools.process import process_tools
    from hearth.drivers.tools.system import system_tools

    named = {kind.name: tuple(kind.signals(board)) for kind in kinds_of(board.profile.specs)}
    object.__setattr__(board, "signals", BoardSignals(board.name, tuple(chain(*named.values())), board.outputs))
    of_kinds = [
        with_signals(tool, board, named[kind.name]) if fnmatchcase(tool.name, "hw.*.list") else tool
        for kind in kinds_of(board.profile.specs)
        for tool in usable(partial(_listed, kind, board), f"the tools of kind {kind.name!r} ({kind.package})")
    ]
    of_kinds.sort(key=lambda tool: not tool.name.startswith("hw."))
    return [board_tool(), *of_kinds, *file_tools(), *system_tools(), *process_tools(exec_templates=exec_templates)]


def _listed(kind: BusKind, board: Board) -> list[Tool]:
    return list(kind.tools(board))


def board_tool() -> Tool:
    """Return hw.board."""

    async def run(ctx: StepContext, _args: Args) -> Mapping[str, Any]:
        answer: dict[str, Any] = await ctx.transact(BoardDriver.info)
        return {**answer, "interlocks": await ctx.interlocks(), "health": ctx.health()}

    return list_tool(
        "hw.board",
        "Describe the board: its buses, what is there but not driven, and the health of every bus and of the audit "
        "log, and its interlocks with what they read now. Drives nothing. A good first step.",
        {
            "name": schemas.text("the board profile's name"),
            "description": schemas.text("what the board is", most=1_000),
            "buses": schemas.listed("the buses in use", schemas.json_object("id, kind, driver and details")),
            "undriven": COMMON["undriven"],
            "interlocks": COMMON["interlocks"],
            "health": schemas.json_object("the state of every bus and of the audit log"),
        },
        run,
    )


def _lacking(board: Board) -> set[str]:
    """Return the prefixes of hearth's own tools that the board does not offer: it has no bus for them."""
    kinds = kinds_of(board.profile.specs)
    lacking = {kind.name for kind in kinds if not board.has(kind.name)}
    return lacking | {prefix for kind in kinds for prefix, offered in kind.families.items() if not offered(board)}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _near(name: str, names: Iterable[str]) -> str:
    return f"; {suggest(name, names, most=3) or '`hearth tools` lists them'}"


def _vendor_tools(board: Board, names: Sequence[str], known: Mapping[str, Tool]) -> list[Tool]:
    """Return the tools of the entry points that `names` ask for, whole ("com.acme") or singly ("com.acme.read")."""
    if not names:
        return []
    points = vendor_entry_points(ENTRY_POINTS)
    made: dict[str, list[Tool]] = {}
    chosen: list[Tool] = []
    for name in names:
        point = _point_for(name, points)
        if point is None:
            raise ConfigError(
                f"[tools] enable: there is no tool or vendor package {name!r}{_near(name, [*known, *points])}"
                " (patterns are for disable: dangerous tools are named one by one)"
            )
        if point.name not in made:
            made[point.name] = _load(point, board, known)
        tools = made[point.name]
        wanted = [tool for tool in tools if (not tool.opt_in if name == point.name else tool.name == name)]
        if not wanted:
            raise ConfigError(
                f"[tools] enable: {package_of(point)} has no tool {name!r}{_near(name, [tool.name for tool in tools])}"
            )
        chosen += [tool for tool in wanted if tool not in chosen]
    return chosen


def _point_for(name: str, points: Mapping[str, EntryPoint]) -> EntryPoint | None:
    """Return the entry point of that name, or else the longest one that the tool's name begins with."""
    fitting = [point for point in points if name == point or name.startswith(f"{point}.")]
    return points[max(fitting, key=len)] if fitting else None


def _load(point: EntryPoint, board: Board, known: Mapping[str, Tool]) -> list[Tool]:
    tools: list[Any] = usable(lambda: list(point.load()(board)), f"[tools] enable: {package_of(point)} ({point.value})")
    for tool in tools:
        if not isinstance(tool, Tool):
            raise ConfigError(
                f"[tools] enable: {package_of(point)} returned {tool!r}, which is not a hearth.tools.Tool"
            )
        if tool.name in known:
            raise ConfigError(
                f"[tools] enable: {package_of(point)} may not replace the tool {tool.name!r}; use its own prefix"
            )
    return tools
