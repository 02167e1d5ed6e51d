"""What a tool is, and the fixed set of them that a process offers (draft §3.3, §12.1).

A `Tool` declares everything a caller, the policy and the runtime must know before it runs, and has one coroutine,
`run`, that does the work through a `StepContext`: the only door from a tool to hardware. This module refuses to know
any particular tool (those live in `hearth.drivers.tools` and in vendors' packages) and how a step is scheduled.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from attrs import Factory, field, frozen

from hearth.errors import ConfigError

Json: TypeAlias = Any
"""A JSON value as orjson reads it."""
Args: TypeAlias = Mapping[str, Any]
"""A step's args, already valid by the tool's `params_schema`."""

RISK_NAMES = ("safe", "low", "medium", "high")
"""Draft §3.3, Table 4: the names of risk levels 0 to 3."""

DEFAULT_RATES = ("1000/s", "200/s", "200/s", "1/s")
"""By risk level, how often a principal may use a tool where neither the policy nor the tool says."""

CARD_NAMESPACE = "tool."
"""What a tool's id begins with in the AgentCard, the draft's namespace for executable tools (§2.4.1).

No tool's own name does, so that an id never means another tool.
"""

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+\Z")


@frozen
class PathUse:
    """A path that a step will touch, so that the guard can look at it at submit as well as at use (draft §12.2)."""

    path: str
    access: Literal["read", "write"]


@frozen
class Undo:
    """How to take a completed step back: one transaction on the step's own bus.

    `op` gets the bus's driver; `describe` is what the audit and the caller are told ("gpio.set line 17 back to 0").
    """

    op: Callable[[Any], Any]
    describe: str
    drives: Hashable | None = None


@frozen
class Done:
    """A result together with the way back, returned by tools that support rollback."""

    result: Mapping[str, Json]
    undo: Undo | None = None


class PathGuard(Protocol):
    """The view of `hearth.policy.paths.PathGuard` that file tools use; raises PermissionDenied on a miss."""

    def check_nowait(self, path: str, access: Literal["read", "write"]) -> bool:
        """`check` for one who must not wait: True if that was all, False if a thread has to call `check`."""
        ...

    def check(self, path: str, access: Literal["read", "write"]) -> None:
        """Refuse a path that is not beneath an allowed root."""

    def open(self, path: str, flags: int, mode: int = 0o600, *, access: Literal["read", "write"]) -> int:
        """Open `path` beneath its allowed root and return the descriptor."""
        ...

    def open_parent(self, path: str, *, access: Literal["read", "write"]) -> tuple[int, str]:
        """Open the directory that holds `path`; return its descriptor and the last component."""
        ...


class StepContext(Protocol):
    """What a running step may do. The task actor implements it."""

    @property
    def session_id(self) -> str:
        """The session on whose behalf the step runs."""
        ...

    @property
    def paths(self) -> PathGuard:
        """The principal's path guard."""
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

        It waits its turn; cancelled while waiting, it never begins; once begun, it always finishes and this call
        returns its value even if the step was cancelled meanwhile. `limit_ms` (default: the tool's `timeout_ms`) is
        when the bus counts as wedged. `drives` names an output (a GPIO offset) that the bus must bring to its safe
        state when the session ends; a callable is asked for it when the turn has come. `must_run` is for taking a
        started effect back: it passes the queue's bound and leases.

        A step that takes its own effect back, as a pulse does, says `borrows` when it begins, and names the output in
        `gives_back` when it ends: the output then stays with the session that held it before. If that session has ended
        since, the output goes to its safe state: `instead` is called in place of `op`, and the call returns None.

        `on_cancel` is called once if the step is cancelled after the transaction has begun, for one that can be asked
        to end early and then still returns what became of it.

        Raises ResourceBusy, DeviceError, or AuditUnavailable.
        """
        ...

    def health(self) -> Mapping[str, Json]:
        """The state of every bus and of the audit log, for `hw.board`."""
        ...

    def progress(self, data: Mapping[str, Json]) -> None:
        """Publish a progress event; under back-pressure a subscriber may see only the newest ones."""


Run: TypeAlias = Callable[[StepContext, Args], Awaitable["Mapping[str, Json] | Done"]]


def _no_paths(_args: Args) -> Sequence[PathUse]:
    return ()


def _check_name(_instance: Any, _attribute: Any, value: str) -> None:
    if not _NAME.match(value):
        raise ConfigError(f"tool name {value!r}: expected dot-separated lower-case segments such as 'gpio.set'")
    if value.startswith(CARD_NAMESPACE):
        raise ConfigError(f"tool name {value!r}: {CARD_NAMESPACE!r} begins ids of the AgentCard; choose another family")


def _check_least_risk(tool: Tool, _attribute: Any, value: int) -> None:
    least = tool.risk_level if tool.effective_risk is None else 0
    if not least <= value <= tool.risk_level:
        cure = "give effective_risk too" if tool.effective_risk is None else "it is at most risk_level"
        raise ConfigError(f"tool {tool.name!r}: least_risk is {value!r} and risk_level {tool.risk_level}; {cure}")


@frozen(kw_only=True, eq=False)
class Tool:
    """One named capability (draft §3.3).

    `bus` gives the id of the bus a step with these args runs on ("gpio:gpiochip0"); it may raise InvalidParams for a
    bus that the board does not have. `default_rate` is "N/s", "N/m" or, for what is usual at its risk
    (DEFAULT_RATES), None. `capability` is the flag that session.open advertises when the session may use this tool.
    `paths` lists what the path guard must see.

    `risk_level` is the greatest risk that a step of this tool can have, whatever its args; `effective_risk` may compute
    a lower one for given args (docs/decisions/0101). What it returns beyond `risk_level` or below 0 is a bug, and then
    the declared level holds.
    """

    name: str = field(validator=_check_name)
    version: int = 1
    risk_level: Literal[0, 1, 2, 3]
    timeout_ms: int
    supports_rollback: bool = False
    description: str
    params_schema: Mapping[str, Json]
    result_schema: Mapping[str, Json]
    capability: str
    bus: Callable[[Args], str]
    run: Run
    default_rate: str | None = None
    paths: Callable[[Args], Sequence[PathUse]] = _no_paths
    idempotent: bool = False
    """Whether doing it twice with the same args changes nothing more than doing it once; risk 0 need not say so."""
    discloses: bool = False
    """Whether it reads what must not be read unrecorded: files, processes, addresses, what is then gone for others.

    It is refused, as what changes something is, while the audit log cannot be written.
    """
    opt_in: bool = False
    """Registered only when the operator names it under [tools] enable."""
    effective_risk: Callable[[Args], int] | None = None
    """The risk of a step with these args, which fit `params_schema`; None: always `risk_level`."""
    least_risk: int = field(
        default=Factory(lambda tool: tool.risk_level if tool.effective_risk is None else 0, takes_self=True),
        validator=_check_least_risk,
    )
    """The least that `effective_risk` returns; without one `risk_level`, with one 0 unless it is given."""

    def risk_of(self, args: Args) -> int:
        """The effective risk of a step with these args, which fit `params_schema`; every check uses it."""
        if self.effective_risk is None:
            return self.risk_level
        risk = self.effective_risk(args)
        # What is not a level between the two that are declared is a bug in the tool: the declared level is safe.
        return risk if type(risk) is int and self.least_risk <= risk <= self.risk_level else self.risk_level

    @property
    def rate(self) -> str:
        """How often one principal may use it where the policy does not say."""
        return self.default_rate or DEFAULT_RATES[self.risk_level]

    def to_wire(self) -> dict[str, Json]:
        """The entry of tool.list (draft §3.3), with result_schema, capability, idempotent and least_risk besides.

        `least_risk` is there where it is lower than `risk_level`: what the tool's harmless arguments need.
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


class ToolRegistry(Mapping[str, Tool]):
    """The tools of this process, by name, in the order they were given; fixed once made (draft §12.1)."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"tool {tool.name!r} is registered twice; give the second one another name")
            self._tools[tool.name] = tool

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)
