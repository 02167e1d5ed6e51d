"""The declaration of tools: the form that the tools of all kinds share.

The methods that are the tools of a kind (`typed_tools`) return plans: `Planned`, from the args to a step. A `Listing`
is the tool that lists the hardware of a kind, and `with_signals` adds the rows of the kind's signals to such a tool;
`asking` and `receive` are the runs of a step that is one transaction, and of a step that waits for input outside of its
bus. This module knows no kind: the module of a kind has the work of its tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import trio
from attrs import define, evolve, frozen

from hearth.drivers import schemas
from hearth.drivers.board import BOARD_BUS, BoardDriver
from hearth.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.named import BoardSignals, NamedSignal
    from hearth.drivers.schemas import Schema
    from hearth.tools import Args, Done, Drive, Preview, Reached, Run, StepContext, Use

LIMIT_MS: Final = 1_000.0
"""Milliseconds after which a transaction that only asks the driver for a moment counts as wedged."""
GRACE_MS: Final = 5_000
"""Time that a step may take beyond the time that its args ask for."""
DEFAULT_MS: Final = 1_000
"""Time that a step waits where its args do not say it."""


_R_co = TypeVar("_R_co", covariant=True)


@define(eq=False)
class Planned(Generic[_R_co]):
    """A step as its args say it: its bus, the hardware that it uses and drives, and its run.

    A plan is a function from args to this. It is called when a task is submitted, so it raises what hearth refuses
    before anything runs, and again when the step runs, so it has no effect and does not wait. What only some requests
    ask for is a function. `Planned[Shown]` says the result: a TypedDict.
    """

    bus: str
    uses: Callable[[], Sequence[Use]]
    run: Callable[[StepContext], Awaitable[Mapping[str, Any] | Done]]
    drives: Callable[[], Sequence[Drive]] = tuple
    preview: Callable[[], Preview | None] = lambda: None
    reaches: Callable[[], Sequence[Reached] | None] = lambda: None


def tool(name: str, description: str, takes: Mapping[str, Schema], gives: Mapping[str, Schema], **more: Any) -> Tool:
    """Return a tool that takes and gives these members; "name?" is a member that may be absent.

    `more` are its other fields. For tools whose members only a board knows; others are methods (`typed_tools`).
    """
    return Tool(
        name=name, description=description, params_schema=schemas.root(takes), result_schema=schemas.root(gives), **more
    )


def asking(bus: str, ask: Callable[[StepContext, Any], Any]) -> Planned[Any]:
    """Return the plan of a step that is one transaction and uses no hardware that a policy names.

    `ask` gets the context and the driver of the bus of this id, and its value is the result.
    """

    async def run(ctx: StepContext) -> Mapping[str, Any] | Done:
        result: Mapping[str, Any] | Done = await ctx.transact(lambda driver: ask(ctx, driver))
        return result

    return Planned(bus, tuple, run)


def facets(plan: Callable[[Args], Planned[Any]]) -> dict[str, Any]:
    """Return the fields of a tool that its plan has: `bus`, `uses`, `drives`, `preview`, `reaches` and `run`."""

    async def run(ctx: StepContext, args: Args) -> Mapping[str, Any] | Done:
        return await plan(args).run(ctx)

    return {
        "bus": lambda args: plan(args).bus,
        "uses": lambda args: plan(args).uses(),
        "drives": lambda args: plan(args).drives(),
        "preview": lambda args: plan(args).preview(),
        "reaches": lambda args: plan(args).reaches(),
        "run": run,
    }


def with_clamped(result: dict[str, Any], clamped: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a result with the reports of the values that were clamped, where there are any."""
    return {**result, "clamped": list(clamped)} if clamped else result


_UNDRIVEN: Final = schemas.listed(
    "what is there but cannot be used, each with the reason",
    schemas.json_object("kind, name, reason, cure, path, label"),
)
_INTERLOCKS: Final = schemas.listed(
    "outputs that may be driven to `value`, or `above` or `below` one, only while all of `requires` hold, with what "
    "each reads now",
    schemas.json_object("drives, value or above or below, open (true: refused now), driven, requires"),
)
COMMON: Final[Mapping[str, Schema]] = {"interlocks": _INTERLOCKS, "undriven": _UNDRIVEN}
"""The members that the tools which list hardware share."""


async def signal_rows(
    ctx: StepContext,
    signals: BoardSignals,
    wanted: Iterable[NamedSignal],
    interlocks: Sequence[Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of those signals that the session's policy permits, without asking the hardware."""
    permitted = [one for one in wanted if ctx.permits(one.use) and ctx.permits(one.named_use)]
    known = {bus: ctx.outputs(bus) for bus in {one.bus for one in permitted}}
    locks = interlocks if interlocks is not None or not permitted else await ctx.interlocks()
    now = ctx.now()
    return [signals.row(one, known[one.bus], locks or (), now) for one in permitted]


def with_signals(listing: Tool, board: Board, signals: Sequence[NamedSignal]) -> Tool:
    """Return a tool that lists the hardware of a kind with the rows of the kind's signals in the member `signals`."""

    async def run(ctx: StepContext, args: Args) -> Mapping[str, Any]:
        answer: Any = await listing.run(ctx, args)
        rows = await signal_rows(ctx, board.signals, signals, answer.get("interlocks"))
        return {**answer, "signals": rows}

    shown = listing.result_schema
    members = {**shown["properties"], "signals": _SIGNALS}
    schema = {**shown, "properties": members, "required": [*shown["required"], "signals"]}
    return evolve(listing, run=run, result_schema=schema)


_SIGNALS: Final = schemas.listed("their signals, as in signal.list", schemas.json_object("name, value, unit, …"))


def list_tool(name: str, description: str, gives: Mapping[str, Schema], run: Run, *, timeout_ms: int = 1_000) -> Tool:
    """Return a tool without arguments that runs on the board's own bus."""
    return tool(
        name,
        description,
        {},
        gives,
        risk_level=0,
        timeout_ms=timeout_ms,
        capability="CAP_SYS_READ",
        bus=lambda _args: BOARD_BUS,
        uses=lambda _args: (),
        run=run,
    )


@frozen(eq=False)
class Listing:
    """The hardware of a kind as its tool hw.KIND.list shows it: a row for each driven bus, in the member `rows`.

    `row` gets the spec of a bus, what its driver says of itself, and the path of its device as a member. With `parts`
    each row has parts in the member of that name. `common` are the members of `COMMON` that it has. A session sees the
    parts, or else rows, that its policy permits: `use` gets a row and its part, and returns its use.
    """

    kind: str
    rows: str
    row: Callable[[Any, Mapping[str, Any], dict[str, Any]], dict[str, Any]]
    parts: str = ""
    common: Sequence[str] = ("undriven",)
    use: Callable[[Any, Any], Use] | None = None

    def __call__(self, board: BoardDriver) -> dict[str, Any]:
        """Return the whole list, without interlocks: an operation of the board's own bus."""
        answer: dict[str, Any] = {self.rows: [self.row(*one) for one in board.of(self.kind)]}
        return {**answer, "undriven": board.missing(self.kind)} if "undriven" in self.common else answer

    def tool(
        self,
        description: str,
        title: str,
        members: str,
        *,
        use: Callable[[Any, Any], Use] | None = None,
        run: Run | None = None,
        timeout_ms: int = 1_000,
    ) -> Tool:
        """Return the tool; `title` and `members` are what its schema says of the rows.

        `use` is for a list whose uses only a board knows; a `run` does all itself.
        """
        used = use or self.use

        async def listed(ctx: StepContext, _args: Args) -> Mapping[str, Any]:
            assert used is not None
            answer: dict[str, Any] = await ctx.transact(self)
            if not self.parts:
                answer[self.rows] = [row for row in answer[self.rows] if ctx.permits(used(row, row))]
            for row in answer[self.rows] if self.parts else ():
                row[self.parts] = [one for one in row[self.parts] if ctx.permits(used(row, one))]
            return {**answer, "interlocks": await ctx.interlocks()} if "interlocks" in self.common else answer

        gives = {self.rows: schemas.listed(title, schemas.json_object(members))}
        gives |= {name: COMMON[name] for name in self.common}
        return list_tool(f"hw.{self.kind}.list", description, gives, run or listed, timeout_ms=timeout_ms)


class _Intake(Protocol):
    @property
    def complete(self) -> bool:
        """True if it is all that was wanted."""
        ...


_Input = TypeVar("_Input", bound=_Intake)


async def receive(
    timeout_s: float, take: Callable[[bool], Awaitable[_Input]], arrival: Callable[[_Input], Awaitable[None]]
) -> _Input:
    """Return the input of a session once it is complete, or the input so far when the time is over.

    `take` is a transaction: it takes all that is wanted, or nothing and returns that it is not complete; with True it
    takes the input so far. `arrival` waits beside the bus until there may be more.
    """
    deadline = trio.current_time() + timeout_s
    taken = await take(False)
    while not taken.complete:
        with trio.move_on_at(deadline) as waiting:
            await arrival(taken)
        # Another step of this session may have taken it: then wait for more.
        taken = await take(waiting.cancelled_caught)
        if waiting.cancelled_caught:
            break
    return taken
