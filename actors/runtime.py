"""The runtime: the tree of actors that the daemon and an embedding program both run.

It owns the directory of sessions, and the order in which components start and stop. Journal and buses run in an outer
nursery, sessions in an inner one. At the end the sessions end first, then transactions in flight finish, outputs go to
their safe state, and the journal is flushed. It knows no socket: `connection` and `embedded` both use its directory.
"""

from __future__ import annotations

import logging
import math
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import trio
from attrs import field, frozen

from hearth._util.foreign import Raised, called, usable
from hearth._util.threads import IMPORTING
from hearth._version import __version__
from hearth.actors.admission import DRY_RUN_RATE, Checks
from hearth.actors.approval import Approvals
from hearth.actors.approval.plans import Plans
from hearth.actors.approval.standing import StandingApprovals
from hearth.actors.bus.actor import SAFE_STATE_LIMIT, Bus
from hearth.actors.bus.face import guard_of
from hearth.actors.bus.halt import Halt
from hearth.actors.bus.interlocks import Interlocks
from hearth.actors.bus.latch import Latch
from hearth.actors.bus.outputs_file import OutputsFile
from hearth.actors.bus.queue import HaltFlag
from hearth.actors.catalogue import ToolCatalogue
from hearth.actors.messages import TIMER_FIRED, CloseSession, NewGrant, Request, StopTasks
from hearth.actors.observe import Observer
from hearth.actors.refusals import Refusals
from hearth.actors.session import Session, SessionLimits, SessionServices, halt_status
from hearth.actors.step import TaskServices
from hearth.actors.supervisor import contain, keep_open
from hearth.actors.task_registry import IdempotencyKeys, KeysFile
from hearth.audit.record import timestamp
from hearth.config.model import TasksConfig
from hearth.drivers.profile import HaltSpec
from hearth.errors import ConfigError, PermissionDenied, QueueFull, SessionInvalid, ShuttingDown, TaskNotFound
from hearth.extras import OWN
from hearth.policy.change import compare
from hearth.policy.memory import MemoryBudget
from hearth.policy.principal import owns_process
from hearth.policy.rules import (
    RIGHTS,
    Buckets,
    Grant,
    PolicyEntry,
    PolicyInForce,
    Rate,
    decide,
    entry_of,
    in_force,
    strictest,
    too_often,
)
from hearth.policy.uses import BY_NAME as SERVED_TOOLS
from hearth.protocol.known import known_by
from hearth.protocol.methods import HaltNow
from hearth.schema import Validator, check_schema

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence

    from hearth.actors.attestation import Attestation
    from hearth.actors.journal import Journal
    from hearth.actors.messages import JobServer
    from hearth.audit.record import Head
    from hearth.config.model import Config
    from hearth.drivers.boards import Board
    from hearth.drivers.programs import LauncherClient
    from hearth.extras import Extra
    from hearth.policy.change import PolicyChange
    from hearth.policy.paths import PathGuard
    from hearth.policy.principal import Principal
    from hearth.policy.rules import ApprovalRule, Ranked
    from hearth.protocol.methods import SessionOpen
    from hearth.tools import ToolRegistry

T = TypeVar("T")

# --- all buses of a runtime: start and end

OPEN_TIMEOUT = 5.0
"""Seconds that the start waits for its buses, and for the safe states of outputs that an earlier run left driven. A bus
that opens later begins with those, and serves from then on."""

REOPEN_TIMEOUT = 1.0
"""Seconds that the end waits for a bus that is down and has safe states pending. A bus that has crashed is open again
by then. For a device that is not there, the next start makes them safe."""

MOST_OBSERVED = 1024
"""Steps of live tasks that observers see at once."""


def disown_outputs(outputs_file: OutputsFile, buses: Mapping[str, Bus], board: str, audit: Callable[..., None]) -> None:
    """Record, and then forget, outputs that an earlier run may have left driven and no bus here can make safe."""
    found = outputs_file.found
    if found.problem is not None:
        moved = {"file": found.aside.name} if found.aside is not None else {}
        audit("outputs.unknown", reason=found.problem, **moved)
    for bus_id, outputs in found.outputs.items():
        if bus_id not in buses:
            reason = f"board {board} has no such bus"
            log.warning("bus %s: %s: outputs %s are left as they are", bus_id, reason, list(outputs))
            audit("outputs.unknown", reason=reason, bus=bus_id, outputs=list(outputs))
            outputs_file.strike(bus_id, outputs)


async def start_buses(buses: Mapping[str, Bus], outer: trio.Nursery, audit: Callable[..., None]) -> None:
    """Open the buses, each in a task of `outer`; return when each serves or has failed once, or after OPEN_TIMEOUT."""
    # All at the same time: one device that hangs must not delay the others.
    opened = {bus_id: trio.Event() for bus_id in buses}
    for bus_id, bus in buses.items():
        outer.start_soon(keep_open, bus, audit, opened[bus_id].set)
    with trio.move_on_after(OPEN_TIMEOUT):
        for event in opened.values():
            await event.wait()
        for bus in buses.values():
            if bus.state == "ready":
                await bus.settle()
    for bus_id, event in opened.items():
        if not event.is_set():
            log.warning("bus %s is not open after %g s; starting without it", bus_id, OPEN_TIMEOUT)


async def settle_buses(buses: Mapping[str, Bus]) -> None:
    """Wait, within bounds, until outputs of ended sessions are in their safe state; then abandon the buses."""
    with trio.move_on_after(SAFE_STATE_LIMIT):
        async with trio.open_nursery() as nursery:
            for bus in buses.values():
                nursery.start_soon(_settle, bus)
    # A ready bus without a running transaction ignores this.
    for bus in buses.values():
        bus.abandon()


async def _settle(bus: Bus) -> None:
    with trio.move_on_after(REOPEN_TIMEOUT):
        await bus.settle()
        return
    if bus.state != "down":
        await bus.settle()


log = logging.getLogger("hearth.runtime")


def made_later(extra: Extra, config: Config | None, parts: RuntimeParts) -> Any:
    """Return the service of an extra at its first use, open. Blocking. Raises ConfigError."""
    with IMPORTING:
        service = extra.call("service", config, parts)
        service.ahead()
    for note in service.open(parts):
        log.warning("%s", note)
    return service


WITHOUT_SECTION: Mapping[str, Callable[[RuntimeParts], Any]] = {
    extra.name: partial(made_later, extra, None) for extra in OWN.values() if extra.methods and not extra.section
}
"""The extras that answer methods and need no configuration."""


@frozen(kw_only=True, eq=False)
class RuntimeParts:
    """The parts of a runtime; `hearth.actors.build` makes them."""

    board: Board
    drivers: Mapping[str, Any]
    registry: ToolRegistry
    policy: PolicyInForce = field(converter=in_force)
    paths: PathGuard
    journal: Journal
    limits: Any
    """`hearth.config.model.LimitsConfig`."""
    clock: Callable[[], float] = time.time
    uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    """Seconds, for ages: it goes on while the machine sleeps, and no step of the wall clock changes it."""
    outputs_file: OutputsFile = field(factory=OutputsFile)
    """The driven outputs; already opened if it has a file."""
    keys_file: KeysFile = field(factory=KeysFile)
    """The file of the idempotency keys; without a path they are kept in memory."""
    tasks: TasksConfig = field(factory=TasksConfig)
    halt: HaltSpec = field(factory=HaltSpec)
    """The section [halt] of the board's profile."""
    latch: Latch = field(factory=Latch)
    """The latch of the halt; already opened if it has a file."""
    launcher: LauncherClient | None = None
    """Starts programs, if proc.exec is a tool; the caller of the runtime closes it."""
    audit_head: Callable[[], Head] | None = None
    """Returns seq and hash of the newest audit record, if there is a chain."""
    attestation: Attestation | None = None
    """Answers attest.quote and attest.key; None: this runtime does not attest itself."""
    extras: Mapping[str, Any] = field(factory=dict)
    """By name: the `service.Service` of each extra that is configured."""
    later: Mapping[str, Callable[[RuntimeParts], Any]] = field(factory=lambda: {**WITHOUT_SECTION})
    """By name: makes the service of an extra that waits for its first use."""
    sandbox: Mapping[str, Any] | None = None
    """The sandbox report for health; None for a process that does not confine itself."""

    @property
    def initial(self) -> Mapping[str, list[Hashable]]:
        """The outputs that are driven from the opening of their bus, by bus id."""
        chips = getattr(self.board, "chips", {})
        return {
            f"gpio:{label}": [line.offset for line in chip.lines if line.initial is not None]
            for label, chip in chips.items()
        }

    def open_records(self) -> list[str]:
        """Lock and repair the audit log, and read the other files of the last run; return notes for a person.

        Blocking. Raises ConfigError.
        """
        notes = self.journal.open()
        now = self.clock()
        notes += self.keys_file.open(self.journal.found)
        notes += [*self.latch.open(now), *self.outputs_file.open(now)]
        for name, service in self.extras.items():
            notes += usable(partial(service.open, self), f"[{name}]")
        return notes


class Runtime:
    """Sessions over buses and a journal. Made by `serve`; implements `connection.Directory`."""

    def __init__(self, parts: RuntimeParts) -> None:
        self.parts = parts
        self.closing = False
        self._sessions: dict[str, Session] = {}
        self._openers: dict[str, tuple[Principal, frozenset[str] | None]] = {}
        """By session id: its principal, and the tools of the job that runs its steps in it."""
        self._per_principal: dict[str, int] = {}
        self._grants: dict[tuple[str, frozenset[str]], Grant] = {}
        self.refusals = Refusals(parts.journal, Rate.parse(parts.limits.reject_rate), parts.clock)
        """Decides which refusals are recorded one by one."""
        self._session_rate = Rate.parse(parts.limits.session_rate)
        self._openings = Buckets(self._session_rate)
        self.listeners: list[str] = []
        """Addresses at which clients may connect, for health."""
        self._policed: Mapping[str, Ranked] = {**parts.registry, **SERVED_TOOLS}
        self.reload: Callable[[bool], Awaitable[dict[str, Any]]] = _not_reloaded
        """Reads the configuration again, for policy.reload; returns its answer. Raises RpcError."""
        self.lost_sockets: list[str] = []
        """For each Unix socket of the daemon whose file was removed: what that means."""
        self.extras: dict[str, Any] = {}
        """By name: the `service.Service` of each extra that serves here."""
        self._crashed: dict[str, str] = {}
        """By name: the last exception of an extra's service."""
        self._loading: list[Callable[[ConfigError | None], None]] = []
        """Called when the extras that are being made are there."""
        self._nursery: trio.Nursery | None = None
        self._outer: trio.Nursery | None = None
        self._policy_read_at = timestamp(parts.clock())
        self._policy_readings = 0
        self._run_id = f"{parts.clock():.6f}.{os.getpid()}"
        self._running = 0
        self._one_ended = trio.Event()
        self._started = trio.Event()
        self._over = trio.Event()
        for name, service in parts.extras.items():
            self._add(name, service)
        self._timers = Timers(self._notify_timer)
        limits = parts.limits
        self.memory = MemoryBudget(limits.max_retained_bytes, limits.max_retained_total_bytes)
        """The memory charged to each principal."""
        halt_flag = HaltFlag()
        self.keys = IdempotencyKeys(
            parts.keys_file,
            days=parts.tasks.idempotency_days,
            most=parts.tasks.max_idempotency_keys,
            clock=parts.clock,
            uptime=parts.uptime,
            head=lambda: 0 if parts.audit_head is None else parts.audit_head()[0],
            memory=self.memory,
        )
        self.approvals = Approvals(self._may, self.audit, halt_flag)
        self.standing = StandingApprovals(self.approvals, halt_flag, parts.clock, parts.uptime, self._rule_of)
        timers = self._timers
        self.plans = Plans(self.approvals, self.standing, limits, parts.clock, parts.uptime, timers.set, timers.forget)
        self.buses = {
            bus_id: Bus(
                bus_id,
                driver,
                queue_bound=limits.bus_queue,
                audit=self.audit,
                outputs_file=parts.outputs_file,
                guard=guard_of(bus_id, driver, parts.board.outputs.get(bus_id)),
                halt_flag=halt_flag,
            )
            for bus_id, driver in parts.drivers.items()
        }
        for bus_id, bus in self.buses.items():
            bus.guard.remember(parts.outputs_file.found.levels.get(bus_id, ()))
        parts.outputs_file.levels = self._memory
        parts.outputs_file.touch_at = partial(self._timers.set, OUTPUTS_FILE)
        self.interlocks = Interlocks.of(parts.board, parts.outputs_file.found.outputs)
        self.halt = Halt(
            parts.halt,
            parts.latch,
            halt_flag,
            self.buses,
            initial=parts.initial,
            audit=self.audit,
            clock=parts.clock,
            stop_tasks=self._stop_tasks,
            healthy=lambda: bool(self.health()["ok"]),
            open_interlocks=None if self.interlocks is None else self.interlocks.halting,
        )
        if self.interlocks is not None:
            self.interlocks.plug(self.buses, self.audit, self.halt.halt)
        self.observer = Observer(
            parts.board,
            parts.halt,
            self.buses,
            self.halt,
            self.approvals.overview,
            parts.clock,
            self._overview,
            self.health,
            lambda: {"entries": [entry.name for entry in parts.policy], "read_at": self._policy_read_at},
            self._owner,
        )
        parts.journal.observer = self.observer
        validators, known = {}, {}
        for tool in parts.registry.values():
            check_schema(tool.params_schema, f"tool {tool.name}: params_schema")
            check_schema(tool.result_schema, f"tool {tool.name}: result_schema")
            validators[tool.name] = Validator(tool.params_schema)
            if (args := known_by(tool.params_schema)) is not None:
                known[tool.name] = args
        self._services = SessionServices(
            tasks=TaskServices(
                parts.journal,
                self.buses,
                parts.paths,
                parts.clock,
                self.health,
                self.refusals,
                halt_flag,
                Buckets(DRY_RUN_RATE),
                self.observer,
                self.interlocks,
            ),
            checks=Checks(
                parts.registry,
                validators,
                self.buses,
                parts.paths,
                limits.max_steps,
                known,
                self.interlocks,
                parts.board.signals or None,
            ),
            limits=SessionLimits(
                limits.idle_ttl_s, limits.close_grace_s, limits.max_tasks_per_session, limits.task_history
            ),
            manifests=ToolCatalogue(
                parts.registry,
                abilities=self._abilities,
                mcp=partial(self.extra, "mcp"),
            ),
            halt=self.halt,
            plans=self.plans,
            keys=self.keys,
            wake_at=self._timers.set,
            forget=self._forget,
            cancel_any=self._cancel_any,
            reload=self._reload,
            attestation=parts.attestation,
            # The list of tools has the names of chips that were found, and the kernel has given these.
            tainted_by="tool.list" if parts.board.profile.discover else None,
        )

    # --- the directory ------------------------------------------------------------------------------------------

    def open_session(
        self,
        principal: Principal,
        opening: SessionOpen,
        request: Request,
        tools: frozenset[str] | None = None,
        halts: int | None = None,
    ) -> Session:
        """Start a session for a principal; it answers `request` once its opening is on record.

        With `tools`, the session may use only those of them that its policy entry allows. With `halts`, all of its
        requests count as having come when the last halt had this number.

        Raises PermissionDenied (no policy entry matches), QueueFull (too many sessions), RateLimited (opened too
        often), ShuttingDown.
        """
        if self.closing or self._nursery is None:
            raise ShuttingDown
        grant = self._grant_of(principal, tools)
        if grant is None:
            raise self._no_entry(principal)
        count = self._per_principal.get(principal.key, 0)
        most = self.parts.limits.max_sessions_per_principal
        if count >= most:
            raise QueueFull(f"Queue full: {count} sessions are open", data={"max_sessions_per_principal": most})
        wait = self._openings.take(principal.key, trio.current_time())
        if wait:
            raise too_often("sessions", self._session_rate, wait)
        account = self.memory.for_principal(principal.key)
        session = Session(principal.key, grant, opening, self._services, account, who=principal, halts=halts)
        self._sessions[session.session_id] = session
        self._openers[session.session_id] = principal, tools
        self._per_principal[principal.key] = count + 1
        self._running += 1
        self._nursery.start_soon(self._run_session, session, request)
        return session

    def stamp(self) -> str:
        """Return what a person's answer depends on beside its time: this run, its halts, its readings of the policy.

        The board profile is read with the start of a run.
        """
        return f"{self._run_id}.{self.halt.flag.count}.{self._policy_readings}"

    def stranger(self, principal: Principal) -> PermissionDenied | None:
        """Return the error for a principal that no policy entry matches, or None for one that may connect.

        Root and the daemon's own user may always: for a halt.
        """
        if owns_process(principal) or entry_of(self.parts.policy, principal) is not None:
            return None
        return self._no_entry(principal)

    def _no_entry(self, principal: Principal) -> PermissionDenied:
        """Record, within bounds, that no policy entry matches a principal; return the error for it."""
        if self.refusals.admit("session.reject", principal.key, PermissionDenied.code):
            self.audit("session.reject", principal=principal.key, reason="no policy entry matches")
        return PermissionDenied(data={"reason": "no policy entry matches this principal"})

    def halts(self, principal: Principal, request: Request, session_id: object) -> None:
        """Execute halt or halt.status for a principal, at once, and answer it; a halt's answer waits for the latch.

        No session is needed. A valid one of this principal is noted in the record; it counts as alive. Root and the
        daemon's own user need no policy entry either. Raises PermissionDenied for other principals without one.
        """
        session = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if session is not None and session.principal == principal.key:
            status, members = session.halt_status, {"session_id": session.session_id}
        else:
            grant = self._grant_of(principal, None)
            if grant is None and (refusal := self.stranger(principal)) is not None:
                raise refusal
            status = partial(halt_status, self.halt, principal.key, RIGHTS if grant is None else grant.rights)
            members = {}
        if not isinstance(request.params, HaltNow):
            request.result(status())
            return
        self.halt.halt(request.params.reason or "", principal.key, **members)
        if self._nursery is None:
            # Not serving yet, or no more: nothing here could wait for the latch.
            request.result(status())
        else:
            self._nursery.start_soon(self._answer_halt, request, status)

    async def _answer_halt(self, request: Request, status: Callable[[], dict[str, Any]]) -> None:
        try:
            await self.halt.latched()
        finally:
            request.result(status())

    def _grant_of(self, principal: Principal, tools: frozenset[str] | None) -> Grant | None:
        grant = decide(self.parts.policy, principal, self._policed)
        if grant is None:
            return None
        if tools is None:
            return grant
        # One grant for all sessions of a policy entry: it is the largest thing an idle session would hold.
        narrowed = self._grants.get((grant.policy, tools))
        if narrowed is None:
            narrowed = self._grants[grant.policy, tools] = grant.narrowed(tools)
        return narrowed

    def _may(self, who: Principal, right: str) -> bool:
        """Return True if the policy in force gives a principal this right."""
        entry = entry_of(self.parts.policy, who)
        return entry is not None and right in entry.rights

    def _rule_of(self, principal: str, risk: int) -> ApprovalRule | None:
        """Return the rule for a risk of a principal that has a session; None if there is none, or none is known."""
        who = next((who for who, _ in self._openers.values() if who.key == principal), None)
        entry = None if who is None else entry_of(self.parts.policy, who)
        return None if entry is None else strictest(entry.approval, risk)

    def compared(self, entries: Sequence[PolicyEntry], uids: Mapping[str, int]) -> PolicyChange:
        """Return what would change if these entries decided; `uids` has the uids of users that conditions name."""
        return compare(self.parts.policy, entries, self._policed, uids)

    def replace_policy(self, entries: Sequence[PolicyEntry], change: PolicyChange | None = None) -> int:
        """Let these entries decide from now on; return the number of sessions that are closed because of it.

        A session whose principal still has an entry goes on, with what that permits from its next request on; its tasks
        go on in any case. One whose principal has none is closed.
        """
        former = {entry.name: entry for entry in self.parts.policy}
        self.parts.policy.replace(entries)
        self._policy_read_at = timestamp(self.parts.clock())
        self._policy_readings += 1
        self._grants.clear()
        self._services.manifests.forget()
        kept = {entry.name for entry in entries if former.get(entry.name) == entry}
        self._services.rates.forget_entries(former.keys() - kept)
        closed = 0
        for session in list(self._sessions.values()):
            grant = self._grant_of(*self._openers[session.session_id])
            closed += grant is None
            session.post(CloseSession("its policy entry was removed") if grant is None else NewGrant(grant))
        changed = {} if change is None else {"removed": change.removed, "allows": change.allows}
        told = {name: list(lines) for name, lines in changed.items() if lines}
        self.audit("policy.reload", entries=[entry.name for entry in entries], closed=closed, **told)
        self.approvals.recheck()
        self.standing.recheck()
        return closed

    async def _reload(self, yes: bool) -> dict[str, Any]:
        return await self.reload(yes)

    def refused(self, carrier: str, peer: str, reason: str) -> None:
        """Record that the peer at an address failed to authenticate, and the reason."""
        if self.refusals.admit_unauthenticated("auth.reject", carrier, peer):
            log.info("%s: refused %s: %s", carrier, peer, reason)
            self.audit("auth.reject", carrier=carrier, peer=peer, reason=reason)

    async def _run_session(self, session: Session, request: Request) -> None:
        try:
            await contain(
                f"session {session.session_id}", partial(session.run, request), partial(self._session_crashed, session)
            )
        finally:
            if not session.end_recorded:
                # It was torn down, because the process must end.
                self._session_over(session, session.reason or "shutting down")
            self._running -= 1
            self._one_ended.set()

    def find_session(self, session_id: str, principal: str, *, of_job: bool = False) -> Session:
        """Return a session of this principal by its id; `of_job`: one in which a job runs its steps, and no other.

        Raises SessionInvalid; the same for the session of another principal, so that its existence is not disclosed. A
        job's session takes requests from its job alone: what was approved is the job, and its steps need no approvals.
        """
        session = self._sessions.get(session_id)
        if session is None or session.principal != principal:
            raise SessionInvalid
        if (self._openers[session_id][1] is not None) != of_job:
            raise SessionInvalid
        return session

    @property
    def sessions(self) -> int:
        """The number of open sessions."""
        return len(self._sessions)

    def _forget(self, session: Session) -> None:
        if self._sessions.pop(session.session_id, None) is not None:
            self._timers.forget(session.session_id)
            del self._openers[session.session_id]
            count = self._per_principal[session.principal] - 1
            if count:
                self._per_principal[session.principal] = count
            else:
                del self._per_principal[session.principal]

    def _session_crashed(self, session: Session, error: BaseException) -> None:
        self._session_over(session, "internal error", error=type(error).__name__)

    def _session_over(self, session: Session, reason: str, **details: Any) -> None:
        session.end_recorded = True
        if session.made_safe:
            details["safe"] = session.made_safe
        self.audit(
            "session.close", session_id=session.session_id, principal=session.principal, reason=reason, **details
        )

    def _overview(self) -> dict[str, Any]:
        """Return the open sessions, and their live tasks, as observers see them: those of MOST_OBSERVED steps."""
        sessions = list(self._sessions.values())
        shown: dict[str, Any] = {"sessions": [session.overview() for session in sessions], "tasks": []}
        room = MOST_OBSERVED
        for task in (task for each in sessions for task in each.live_tasks()):
            if room <= 0:
                return {**shown, "more_tasks": True}
            shown["tasks"].append(task)
            room -= len(task["steps"])
        return shown

    def _owner(self, session_id: str) -> str | None:
        session = self._sessions.get(session_id)
        return None if session is None else session.principal

    def _cancel_any(self, task_id: str, by: Session) -> dict[str, Any]:
        """Cancel a task of whatever session, and record by whom. Raises TaskNotFound."""
        home = next((session for session in self._sessions.values() if session.has_live(task_id)), None)
        if home is None:
            raise TaskNotFound(data={"task_id": task_id[:64]})
        self.audit("task.cancel", session_id=by.session_id, task_id=task_id, principal=by.principal)
        return home.cancel_task(task_id)

    def _stop_tasks(self) -> None:
        for session in self._sessions.values():
            session.post(StopTasks(self.halt.flag.ended()))
        self.approvals.halt()
        self.tell_extras("halt")

    def _notify_timer(self, name: str) -> None:
        session = self._sessions.get(name)
        if session is not None:
            session.post(TIMER_FIRED)
        elif name == OUTPUTS_FILE:
            self.parts.outputs_file.touch_again()
        else:
            self.plans.expire(name)

    # --- health, capabilities, records --------------------------------------------------------------------------

    def _abilities(self) -> list[str]:
        """Return the capability flags that no single tool has."""
        flags = ["CAP_STREAMING_TASK_EVENTS"]
        if any(bus.driver.width == 1 for bus in self.buses.values()):
            flags.append("CAP_LEASE")
        if self.parts.attestation is not None:
            flags.append("CAP_ATTEST")
        return flags

    def _memory(self) -> dict[str, list[tuple[Hashable, float]]]:
        """Return the levels that the outputs file keeps, by bus."""
        return {bus_id: kept for bus_id, bus in self.buses.items() if (kept := bus.guard.memory())}

    def health(self) -> Mapping[str, Any]:
        """Return the state of every bus and of the audit log, as JSON."""
        failure = self.parts.journal.failure
        audit: dict[str, Any] = {"ok": failure is None, "durability": self.parts.journal.settings.durability}
        if failure is not None:
            audit["reason"] = failure
        if self.parts.journal.warning is not None:
            audit["warning"] = self.parts.journal.warning
        if self.parts.audit_head is not None:
            audit["seq"], audit["head"] = self.parts.audit_head()
        buses = {bus_id: bus.health() for bus_id, bus in self.buses.items()}
        outputs_file = self.parts.outputs_file
        outputs_file.flush()
        ok = (
            failure is None
            and outputs_file.failure is None
            and all(bus.state == "ready" for bus in self.buses.values())
        )
        health = {
            "ok": ok,
            "version": __version__,
            "sessions": len(self._sessions),
            "memory": {"retained_bytes": self.memory.used, "max_retained_total_bytes": self.memory.total},
            "audit": audit,
            "halt": self.halt.status(by=False),
            "buses": buses,
        }
        if self.listeners:
            health["listeners"] = self.listeners
        if self.lost_sockets:
            # Not a part of `ok`: what runs goes on, and so does the heartbeat.
            health["sockets"] = {"ok": False, "reason": "; ".join(self.lost_sockets)}
        health |= self._states()
        if self.parts.sandbox is not None:
            health["sandbox"] = self.parts.sandbox
        if outputs_file.failure is not None:
            health["outputs"] = {"ok": False, "reason": outputs_file.failure}
        return health

    def audit(self, event: str, **fields: Any) -> None:
        """Post an audit record without waiting for its receipt."""
        self.parts.journal.post({"event": event, **fields})

    # --- extras -------------------------------------------------------------------------------------------------

    def extra(self, name: str) -> Any:
        """Return the service of an extra, or None. One that waits for its first use is made, which may block."""
        if name not in self.extras and name in self.parts.later:
            self._add(name, self.parts.later[name](self.parts))
        return self.extras.get(name)

    def ask_extra(self, name: str, ask: Callable[[], T]) -> T | None:
        """Return what a service answers; None after an exception, which is logged once and told by health."""
        try:
            return called(ask)
        except Raised as raised:
            if self._crashed.get(name) != str(raised):
                log.error("extra %s crashed", name, exc_info=raised.error)
            self._crashed[name] = str(raised)
            return None

    def _states(self) -> dict[str, Any]:
        """Return the states of the extras for health: their own, and the last exception of one that crashed."""
        found = {name: self.ask_extra(name, partial(_state_of, service)) for name, service in self.extras.items()}
        for name, reason in self._crashed.items():
            found[name] = {**(found.get(name) or {}), "crashed": reason}
        return {name: state for name, state in found.items() if state is not None}

    def tell_extras(self, method: str) -> None:
        """Call this method of each service; one that raises keeps it from no other one."""
        for name, service in self.extras.items():
            self.ask_extra(name, getattr(service, method))

    async def contain_extra(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do work of a service; after an exception, which is logged and told by health, the others go on."""
        await contain(f"extra {name}", work, lambda error: self._crashed.update({name: str(Raised(error))}))

    def server(self, family: str) -> JobServer | None:
        """Return the server of an extra for its family of methods, such as "hcp", or None."""
        service = self.extras.get(family)
        server: JobServer | None = None if service is None else service.server
        return server

    def waits_for(self, method: str) -> bool:
        """Return True if an extra that answers this method is not there yet, and takes a while to be made."""
        later = (OWN[name] for name in self.parts.later if name not in self.extras)
        return any(method in extra.methods and (extra.section or not extra.imported) for extra in later)

    def load(self, then: Callable[[ConfigError | None], None]) -> None:
        """Make the extras that wait for a use, in a thread; then call `then`, with the reason if that failed."""
        if self._outer is None:
            then(None)
            return
        # Made once: two would write one file.
        self._loading.append(then)
        if len(self._loading) == 1:
            self._outer.start_soon(self._load)

    async def _load(self) -> None:
        failure = None
        try:
            for name in [name for name in self.parts.later if name not in self.extras]:
                make = partial(usable, partial(self.parts.later[name], self.parts), f"[{name}]")
                self._add(name, await trio.to_thread.run_sync(make, abandon_on_cancel=True))
        except ConfigError as error:
            log.error("%s", error)
            failure = error
        waiting, self._loading = self._loading, []
        for then in waiting:
            then(failure)

    def _add(self, name: str, service: Any) -> None:
        # Two may have been made at the same time, one here and one in a thread: the first one serves.
        if name not in self.extras:
            self.extras[name] = service
            service.runtime = self
            if self._outer is not None:
                self._outer.start_soon(self.contain_extra, name, service.run)

    @asynccontextmanager
    async def serve_extras(self, sessions: Callable[..., Any]) -> AsyncIterator[None]:
        """Have the extras serve until the block ends; `sessions` is a `service.OpenSession` for this runtime."""
        async with AsyncExitStack() as stack:
            for name, service in list(self.extras.items()):
                await self.contain_extra(name, partial(self._serve_extra, name, service, sessions, stack))
            yield

    async def _serve_extra(self, name: str, service: Any, sessions: Callable[..., Any], stack: AsyncExitStack) -> None:
        """Have one serve until `stack` is left, and for at most `shutdown_grace_s` from then on."""
        ending = trio.CancelScope()

        def begin_to_end() -> None:
            ending.deadline = trio.current_time() + self.parts.limits.shutdown_grace_s

        def ended() -> None:
            if ending.cancelled_caught:
                log.warning("extra %s has not ended in time", name)

        stack.callback(ended)
        stack.enter_context(ending)
        await stack.enter_async_context(service.serve(sessions))
        stack.callback(begin_to_end)

    # --- life ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Runtime]:
        """Start every actor; at the end stop them in order: sessions, transactions, safe states, journal.

        The order also holds if the body is cancelled from outside: that cancellation does not reach the actors.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve_actors)
                try:
                    await self._started.wait()
                    yield self
                finally:
                    with trio.CancelScope(shield=True):
                        await self.end_sessions()
                    self._over.set()
        finally:
            self.closing = True
            self.parts.paths.close()

    async def _serve_actors(self) -> None:
        """Run all actors until `_over`: journal, buses and timers in the outer nursery, sessions in the inner one."""
        journal = self.parts.journal
        try:
            with trio.CancelScope() as serving:
                async with trio.open_nursery() as outer:
                    await outer.start(journal.run)
                    await outer.start(self.keys.run)
                    disown_outputs(self.parts.outputs_file, self.buses, self.parts.board.name, self.audit)
                    await start_buses(self.buses, outer, self.audit)
                    if self.interlocks is not None:
                        outer.start_soon(self.interlocks.run)
                    # From here on only `_over` ends the actors: a cancellation from outside would skip the safe states.
                    # One that has come already may have reached some of the actors, so it still ends them all.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    serving.shield = True
                    confined = {} if self.parts.sandbox is None else {"sandbox": self.parts.sandbox}
                    self.audit("daemon.start", board=self.parts.board.name, buses=sorted(self.buses), **confined)
                    journal.checkpoint()
                    await outer.start(self.halt.run)
                    outer.start_soon(self._timers.run)
                    outer.start_soon(self.refusals.run)
                    outer.start_soon(self.observer.run)
                    self._outer = outer
                    for name, service in self.extras.items():
                        outer.start_soon(self.contain_extra, name, service.run)
                    async with trio.open_nursery() as sessions:
                        self._nursery = sessions
                        self._started.set()
                        await self._over.wait()
                    self._nursery = self._outer = None
                    await self.halt.end()
                    await settle_buses(self.buses)
                    # The last records, in this order: counted refusals, the stop, and the checkpoint that signs both.
                    await self.parts.outputs_file.aclose()
                    self.refusals.flush()
                    self.audit("daemon.stop")
                    journal.checkpoint()
                    await journal.aclose()
                    outer.cancel_scope.cancel()
        finally:
            self._nursery = self._outer = None
            await journal.aclose()

    async def end_sessions(self, until: float = math.inf) -> None:
        """Ask every session to end, and wait for `shutdown_grace_s`, or until an earlier time of Trio's clock.

        Then abandon the transactions of sessions that have not ended.
        """
        self.closing = True
        for session in list(self._sessions.values()):
            session.post(CloseSession("shutting down"))
        with trio.move_on_at(min(until, trio.current_time() + self.parts.limits.shutdown_grace_s)):
            while self._running:
                self._one_ended = trio.Event()
                await self._one_ended.wait()
        # The tasks of these sessions wait for transactions, which no cancellation reaches.
        if self._running:
            self.stop_waiting()

    def stop_waiting(self) -> None:
        """Abandon transactions that have not returned: the process must end. Their effect is recorded as unknown."""
        log.warning("%d sessions have not ended; abandoning their transactions", self._running)
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
        for bus in self.buses.values():
            bus.abandon()


def _state_of(service: Any) -> Any:
    """Return the health of a service. Raises TypeError if it is not JSON: then no health at all could be sent."""
    return orjson.loads(orjson.dumps(service.health()))


async def _not_reloaded(_yes: bool) -> dict[str, Any]:
    why = "this runtime was given its policy by a program, and not by a file that could be read again"
    raise PermissionDenied(f"Permission denied: {why}", data={"reason": why})


# --- timers

OUTPUTS_FILE = "outputs file"
"""The name of the outputs file's timer; all others are those of sessions and plans."""
SLACK = 64
"""Timers of forgotten names that may stay in the heap before it is swept."""


class Timers:
    """Timers by name, kept by one task; `fire` is called with a name when its time has come.

    Thousands of idle sessions cost one heap here, not one Trio timer each. A timer is a hint: the session compares its
    deadlines with the clock, and sets another timer if none has passed.
    """

    def __init__(self, fire: Callable[[str], None]) -> None:
        self._fire = fire
        self._heap: list[tuple[float, str]] = []
        self._names: dict[str, int] = {}
        """The number of timers of each name in the heap; a timer whose name is missing here is passed over."""
        self._changed = trio.Event()

    def set(self, name: str, when: float) -> None:
        """Fire for `name` at `when`, in seconds of Trio's clock."""
        self._names[name] = self._names.get(name, 0) + 1
        heappush(self._heap, (when, name))
        if self._heap[0][0] == when:
            self._changed.set()

    def forget(self, name: str) -> None:
        """Drop the timers of `name`, which is not used again."""
        if self._names.pop(name, None) and len(self._heap) > 2 * len(self._names) + SLACK:
            # Sessions that come and go must not leave their timers in the heap until their time would have come.
            self._heap = [timer for timer in self._heap if timer[1] in self._names]
            heapify(self._heap)

    async def run(self) -> None:
        """Fire timers until cancelled."""
        while True:
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                name = heappop(self._heap)[1]
                count = self._names.get(name, 0)
                if count > 1:
                    self._names[name] = count - 1
                elif count:
                    del self._names[name]
                if count:
                    self._fire(name)
            self._changed = trio.Event()
            with trio.move_on_at(self._heap[0][0] if self._heap else float("inf")):
                await self._changed.wait()
