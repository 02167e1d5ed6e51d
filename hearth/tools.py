"""Tools, and the fixed registry of them that a process offers (draft §3.3, §12.1).

A `Tool` declares everything that a caller, the policy and the runtime must know before it runs. Its coroutine `run`
does the work through a `StepContext`, the only way from a tool to hardware. This module knows no particular tool (they
are in `hearth.drivers.tools` and in vendors' packages) and does not know how a step is scheduled.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from attrs import Factory, field, frozen

from hearth.errors import ConfigError

Json: TypeAlias = Any
"""A JSON value as orjson reads it."""
Args: TypeAlias = Mapping[str, Any]
"""A step's args, already valid by the tool's `params_schema`."""

RISK_NAMES = ("safe", "low", "medium", "high")
"""Draft §3.3, Table 4: the names of risk levels 0 to 3."""

DEFAULT_RATES = ("1000/s", "200/s", "200/s", "1/s")
"""Rate limit of a principal by risk level, used if neither the policy nor the tool sets one."""

CARD_NAMESPACE = "tool."
"""The prefix of a tool's id in the AgentCard, the draft's namespace for executable tools (§2.4.1).

No tool's own name begins with it, so that an id never means another tool.
"""

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+\Z")


@frozen
class PathUse:
    """A path that a step will touch, so that the guard can check it at submit as well as at use (draft §12.2)."""

    path: str
    access: Literal["read", "write"]


@frozen(eq=False)
class Drive:
    """An output that a step will drive, so that the board profile's limits can refuse it at submit as well as at use.

    `output` on the bus of this id goes to `level`, for `duration_ms` if the step takes it back. A GPIO line is its
    offset, with the level 0, 1 or "input"; an I2C device is its address, with the messages of the transaction; a
    channel of a PWM chip or a DAC is its number, with a value in its unit or "off"; an SPI device is "data", with the
    bytes of the transfer; a Modbus register is its unit, table and address, with the values to write from there on.
    """

    bus: str
    output: Hashable
    level: Any
    duration_ms: float | None = None


@frozen
class Use:
    """A piece of hardware that a step uses, for policy entries that permit only some.

    `names` are its spellings, the usual one first: ("LED", "17", "gpiochip0:17"), ("1:0x48", "1:72"), ("uart0",),
    ("FAN",), ("can0:ENGINE_DATA", "can0:0x100"), ("FLASH",), ("PUMP", "plant:PUMP", "plant:3"). `kind` is the word of
    its kind in a policy: "lines" for GPIO, else the name of the kind.
    """

    kind: str
    names: tuple[str, ...]


Reached: TypeAlias = tuple[str, Hashable]
"""A signal that a step reads or drives: the id of its bus, and its name or its output there."""
SIGNALS = "signals"
"""The word for signals in a policy: a `Use` of this kind has all names of one."""

USE_FORMS: Mapping[str, tuple[str, str]] = {
    "i2c": ('BUS:ADDRESS such as "1:0x48" or "1:*"', r"[0-9*?]+:[0-9A-Fa-fxX*?\[\]!-]+"),
    "can": ('BUS:MESSAGE or BUS:ID such as "can0:ENGINE_*" or "can0:0x123"', r"[^:]+:.+"),
}
"""The form of a policy's patterns, in words and as a regular expression, for kinds whose uses are not plain names."""


def i2c_use(bus: int, addr: int, *, ten_bit: bool = False) -> Use:
    """Return the use of a device on an I2C bus; a ten-bit address has three hexadecimal digits."""
    if ten_bit:
        return Use("i2c", (f"{bus}:{addr:#05x}",))
    return Use("i2c", (f"{bus}:{addr:#04x}", f"{bus}:{addr}"))


@frozen
class Preview:
    """The way to show what a step changes before it runs (plan.prepare).

    `tool` and `args` are a step of effective risk 0 that reads what the step changes. Of its result, `members` are
    shown. `after` has the same members as they are after the step; None: as they were before it, such as for a pulse.
    `during` has members as they are for `during_ms` milliseconds of a step that brings them back at its end.
    """

    tool: str
    args: Args
    members: tuple[str, ...]
    after: Mapping[str, Json] | None = None
    during: Mapping[str, Json] | None = None
    during_ms: float = 0


@frozen
class Undo:
    """The rollback of a completed step: one transaction on the step's own bus.

    `op` gets the bus's driver; `describe` is the text for the audit log and the caller ("gpio.set line 17 back to 0").
    """

    op: Callable[[Any], Any]
    describe: str
    drives: Hashable | None = None


@frozen
class Done:
    """A result with its rollback, returned by tools that support rollback."""

    result: Mapping[str, Json]
    undo: Undo | None = None


@frozen(eq=False)
class Resolved:
    """The step that a call of another tool means: `signal.set` of PUMP is `gpio.set` of its line.

    Everything that decides on the call (rights, hardware, rate, risk, approvals, plans) and every record of it is about
    the step `tool` with `args`; the record has the name `asked` too. `adapt` returns the tool of the step with the
    result of the tool that was asked for.
    """

    asked: str
    asked_args: Args
    tool: str
    args: Args
    adapt: Callable[[Tool], Tool]


NOT_ASKED: Final = "not known without asking the hardware"
"""Why a row of a signal has no value, where the hardware was not asked."""


class OutputState(NamedTuple):
    """What is known of an output: its level (None: nothing), who drove it last, and if it has no safe state now.

    `asked` is True if the driver holds the output and was asked for its level now; else the level is the last one that
    it was driven to, or that a transaction has read. `failed` is why asking failed. To a step `owner` is the id of its
    own session, or "another session". `left` is True for one that was driven and has no safe state: a halt leaves it.
    """

    level: Any = None
    owner: Any = None
    left: bool = False
    asked: bool = False
    failed: str | None = None


@frozen
class KnownOutputs:
    """What is known of the outputs of a bus. `failed` is why nothing of the bus is known: its device is not there."""

    failed: str | None = None
    outputs: Mapping[Hashable, OutputState] = field(factory=dict)


class GuardedPaths(Protocol):
    """The view of `hearth.policy.paths.GuardedPaths` that file tools use; raises PermissionDenied on a miss."""

    def check_nowait(self, path: str, access: Literal["read", "write"]) -> bool:
        """Check without blocking: return True if the check is done, False if a thread has to call `check`.

        Raises PermissionDenied.
        """
        ...

    def check(self, path: str, access: Literal["read", "write"]) -> None:
        """Raise PermissionDenied for a path that is not beneath an allowed root."""

    def open(self, path: str, flags: int, mode: int = 0o600, *, access: Literal["read", "write"]) -> int:
        """Open `path` beneath its allowed root and return the descriptor."""
        ...

    def open_parent(self, path: str, *, access: Literal["read", "write"]) -> tuple[int, str]:
        """Open the directory that holds `path`; return its descriptor and the last component."""
        ...


class StepContext(Protocol):
    """The operations of a running step. The task actor implements it."""

    @property
    def session_id(self) -> str:
        """The session on whose behalf the step runs."""
        ...

    @property
    def every_s(self) -> float:
        """Seconds between two uses of the step's tool at the rate that the policy gives it: no step reads faster."""
        ...

    @property
    def paths(self) -> GuardedPaths:
        """The principal's path guard."""
        ...

    @property
    def clamped(self) -> Sequence[Mapping[str, Json]]:
        """The values that the last transaction wrote in place of those it was asked for, by the profile's limits."""
        ...

    async def transact(
        self,
        op: Callable[[Any], Any],
        *,
        limit_ms: float | None = None,
        drives: Hashable | Callable[[], Hashable | None] | None = None,
        borrows: bool = False,
        gives_back: Hashable | Callable[[], Hashable | None] | None = None,
        instead: Callable[[], None] | None = None,
        must_run: bool = False,
        on_cancel: Callable[[], None] | None = None,
    ) -> Any:
        """Run `op(driver)` as one transaction on the step's bus and return its value.

        The transaction waits in the bus's queue. If the step is cancelled during that wait, the transaction never
        begins. Once begun, it always finishes, and this call returns its value even if the step is cancelled before
        then. The bus counts as wedged after `limit_ms` (default: the tool's `timeout_ms`). `drives` names an output (a
        GPIO offset) that the bus must bring to its safe state when the session ends; a callable is called for it at the
        begin of the transaction. `must_run` is for undoing a started effect: it bypasses the queue's bound and leases.

        A step that undoes its own effect, as a pulse does, sets `borrows` in its first transaction and names the output
        in `gives_back` in its last: the output then stays with the session that held it before. If that session has
        ended since, the output goes to its safe state: `instead` is called in place of `op`, and the call returns None.

        `on_cancel` is called once if the step is cancelled after the transaction has begun. It is for a transaction
        that can be asked to end early and that then still returns its outcome.

        Raises ResourceBusy, DeviceError, AuditUnavailable, LimitViolated, InterlockOpen or Halted. A transaction that
        `must_run` waits while a limit with `data.retry_after_ms` refuses it; the end of an effect that is refused for
        good brings its output to the safe state.
        """
        ...

    def permits(self, use: Use) -> bool:
        """Return True if the session's policy entry permits this piece of hardware."""
        ...

    def allows(self, tool: str) -> bool:
        """Return True if the session may use a tool. Only for the step of a tool with `resolves_to`."""
        ...

    def health(self) -> Mapping[str, Json]:
        """Return the state of every bus and of the audit log, for `hw.board`."""
        ...

    async def interlocks(self) -> Sequence[Mapping[str, Json]]:
        """Return the interlocks of the board with their present state, for `hw.board` and `hw.gpio.list`."""
        ...

    def now(self, at: float | None = None) -> str:
        """Return the time, or a time in seconds since 1970, as records have it."""
        ...

    def outputs(self, bus: str) -> KnownOutputs:
        """Return what is known of the outputs of a bus, without asking its hardware."""
        ...

    def progress(self, data: Mapping[str, Json]) -> None:
        """Publish a progress event; under back-pressure a subscriber may see only the newest ones."""


Run: TypeAlias = Callable[[StepContext, Args], Awaitable["Mapping[str, Json] | Done"]]


_R_co = TypeVar("_R_co", covariant=True)


@frozen(eq=False)
class Transaction(Generic[_R_co]):
    """One transaction: its operation, the making of the step's result from its value, and the output that it drives."""

    op: Callable[[Any], Any]
    result: Callable[[Any], Mapping[str, Json] | Done]
    drives: Hashable | None = None


class OneTransaction:
    """The `run` of a tool whose step is exactly one transaction, and waits for nothing else.

    `make` returns the transaction for given args. If nothing is in its way, hearth runs such a step on a bus that does
    not wait (`Style.INLINE`) at once, within the request that asks for it. So neither `make` nor the transaction's
    `result` may use Trio. Otherwise it is a coroutine function as any other `run`.
    """

    __slots__ = ("make",)

    def __init__(self, make: Callable[[Args], Transaction[Any]]) -> None:
        self.make = make

    async def __call__(self, ctx: StepContext, args: Args) -> Mapping[str, Json] | Done:
        """Run the transaction in a step's context."""
        one = self.make(args)
        return one.result(await ctx.transact(one.op, drives=one.drives))


def no_paths(_args: Args) -> Sequence[PathUse]:
    """Return no paths: the default of `Tool.paths`."""
    return ()


def _no_drives(_args: Args) -> Sequence[Drive]:
    return ()


def _reaches_driven(_args: Args) -> Sequence[Reached] | None:
    return None


def _check_name(_instance: Any, _attribute: Any, value: str) -> None:
    if not _NAME.match(value):
        raise ConfigError(f"tool name {value!r}: expected dot-separated lower-case segments such as 'gpio.set'")
    if value.startswith(CARD_NAMESPACE):
        raise ConfigError(f"tool name {value!r}: {CARD_NAMESPACE!r} begins ids of the AgentCard; choose another family")


def _check_risk(tool: Tool, _attribute: Any, value: object) -> None:
    if value not in range(len(RISK_NAMES)):
        raise ConfigError(f"tool {tool.name!r}: risk_level is {value!r}; expected 0, 1, 2 or 3")


def _check_least_risk(tool: Tool, _attribute: Any, value: int) -> None:
    least = tool.risk_level if tool.effective_risk is None else 0
    if not least <= value <= tool.risk_level:
        cure = "give effective_risk too" if tool.effective_risk is None else "it is at most risk_level"
        raise ConfigError(f"tool {tool.name!r}: least_risk is {value!r} and risk_level {tool.risk_level}; {cure}")


@frozen(kw_only=True, eq=False)
class Tool:
    """One named capability (draft §3.3).

    `params_schema` is flat at its root: the interfaces of models refuse allOf, anyOf, oneOf, if and not there. `bus`
    returns the id of the bus that a step with these args runs on ("gpio:gpiochip0"). At submit, before anything runs,
    it raises InvalidParams for a bus that the board does not have, and for args that only such a keyword would refuse;
    `data` then has `path`, a JSON pointer into the args, and `reason`.

    `default_rate` is "N/s", "N/m", or None for the rate of its risk level (DEFAULT_RATES). `capability` is the flag
    that session.open advertises when the session may use this tool. `paths` lists the paths that the path guard must
    check.

    `risk_level` is the greatest risk that a step of this tool can have, whatever its args; `effective_risk` may compute
    a lower one for given args (docs/decisions/0101). A value above `risk_level` or below 0 is a bug in the tool, and
    the declared level applies.
    """

    name: str = field(validator=_check_name)
    version: int = 1
    risk_level: Literal[0, 1, 2, 3] = field(validator=_check_risk)
    timeout_ms: int
    supports_rollback: bool = False
    description: str
    params_schema: Mapping[str, Json]
    result_schema: Mapping[str, Json]
    capability: str
    bus: Callable[[Args], str]
    run: Run
    default_rate: str | None = None
    paths: Callable[[Args], Sequence[PathUse]] = no_paths
    drives: Callable[[Args], Sequence[Drive]] = _no_drives
    """Lists the outputs that a step with these args will drive; what a limit could never permit is refused at submit.

    Limits hold without it too: they are checked at each drive.
    """
    idempotent: bool = False
    """True if a second run with the same args changes nothing more than the first; a tool of risk 0 need not set it."""
    discloses: bool = False
    """True if each read must be recorded: files, processes, addresses, and data that a read consumes.

    Like a tool that changes something, it is refused while the audit log cannot be written.
    """
    opt_in: bool = False
    """True for a tool that is registered only if the operator names it in [tools] enable."""
    effective_risk: Callable[[Args], int] | None = None
    """Returns the risk of a step with these args, which fit `params_schema`; None: always `risk_level`."""
    least_risk: int = field(
        default=Factory(lambda tool: tool.risk_level if tool.effective_risk is None else 0, takes_self=True),
        validator=_check_least_risk,
    )
    """The least risk that `effective_risk` returns. Default: 0, or `risk_level` without `effective_risk`."""

    preview: Callable[[Args], Preview | None] | None = None
    """Returns the way to show what a step with these args changes, which fit `params_schema`; None: it is not shown."""

    plain_result: bool = False
    """True if its results have only numbers, flags and words of the board's profile: no text, no bytes, no names from a
    device, a file, another program or the kernel. Any other tool taints a conversation that uses it."""

    logged: tuple[str, ...] = ()
    """The names of the args that the audit log and observers may have in clear: never payload data, never a secret.

    Only scalars are shown, and of a long text its beginning. Of all other args the log has the hash alone.
    """

    uses: Callable[[Args], Sequence[Use]] | None = None
    """Returns the lines, I2C devices and ports that a step with these args uses; None: the tool does not say.

    A policy entry that permits only some hardware then refuses the step if its bus is a bus of hardware.
    """

    reaches: Callable[[Args], Sequence[Reached] | None] = _reaches_driven
    """Returns the signals that a step with these args reads or drives; None: the outputs of `drives`.

    A policy entry with `signals` refuses a step of hardware that names none by either.
    """

    resolve: Callable[[Args], Resolved] | None = None
    """Returns the step that a call with these args means, of another tool; None: it is a step itself.

    Raises InvalidParams. Such a tool is never run; its risk and its schemas are what callers see of it.
    """
    resolves_to: frozenset[str] = frozenset()
    """The tools of which it is about: who may use one of them may use this tool, and nobody else.

    `resolve` returns steps of these only.
    """

    def risk_of(self, args: Args) -> int:
        """Return the effective risk of a step with these args, which fit `params_schema`; every check uses it."""
        if self.effective_risk is None:
            return self.risk_level
        risk = self.effective_risk(args)
        # Anything but a level between the two declared ones is a bug in the tool: use the higher one.
        return risk if type(risk) is int and self.least_risk <= risk <= self.risk_level else self.risk_level

    @property
    def rate(self) -> str:
        """The rate limit of one principal, used if the policy sets none."""
        return self.default_rate or DEFAULT_RATES[self.risk_level]

    def logged_args(self, args: Args) -> dict[str, Json]:
        """Return the args that may be shown in clear."""
        shown: dict[str, Json] = {}
        for name in self.logged:
            if name in args and isinstance(value := args[name], (str, int, float)):
                brief = isinstance(value, str) and len(value) > LONGEST_LOGGED
                shown[name] = f"{value[:LONGEST_LOGGED]}…" if brief else value  # type: ignore[index]
        return shown

    def to_wire(self) -> dict[str, Json]:
        """Return the entry of tool.list (draft §3.3), plus result_schema, capability, idempotent and least_risk.

        `least_risk` is present only if it is lower than `risk_level`: it is the risk of the tool's harmless arguments.
        """
        wire: dict[str, Json] = {
            "name": self.name,
            "version": self.version,
            "risk_level": self.risk_level,
            "timeout_ms": self.timeout_ms,
            "supports_rollback": self.supports_rollback,
            "description": self.description,
            "params_schema": dict(self.params_schema),
            "result_schema": dict(self.result_schema),
            "capability": self.capability,
        }
        if self.idempotent:
            wire["idempotent"] = True
        if self.least_risk < self.risk_level:
            wire["least_risk"] = self.least_risk
        return wire


LONGEST_LOGGED = 128
"""Characters of a logged text, such as a path."""


class ToolRegistry(Mapping[str, Tool]):
    """The tools of this process by name, in the order given; it never changes (draft §12.1)."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        self.by_name: Mapping[str, Tool] = MappingProxyType(self._tools)
        """The same, for a look-up on the path of every request."""
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"tool {tool.name!r} is registered twice; give the second one another name")
            self._tools[tool.name] = tool

    @property
    def resolved(self) -> list[str]:
        """The tools whose calls mean steps of other tools."""
        return [tool.name for tool in self._tools.values() if tool.resolve is not None]

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def items(self) -> ItemsView[str, Tool]:
        """See Mapping: without a call for each tool."""
        return self._tools.items()

    def values(self) -> ValuesView[Tool]:
        """See Mapping: without a call for each tool."""
        return self._tools.values()
