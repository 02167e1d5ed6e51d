"""The interfaces that an embedded program and a remote client share, with their values: sessions and tasks.

`hearth.client` implements them over a carrier, and `hearth.actors.embedded` in the process; `hearth.aio` implements
them for asyncio. Code that is written against this module runs unchanged on each. Nothing here does I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict

from attrs import field, frozen

from hearth.errors import TaskFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import Unpack

    from hearth import namespaces

Status: TypeAlias = Literal["QUEUED", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"]
Phase: TypeAlias = Literal["start", "progress", "finish", "task_finish"]
OnBusy: TypeAlias = Literal["wait", "fail"]
Priority: TypeAlias = Literal["low", "normal", "high", "urgent"]

TERMINAL: frozenset[str] = frozenset(("SUCCESS", "FAILED", "CANCELLED"))
"""The statuses that a task can end in; each task reaches exactly one of them (draft §5)."""


WITHIN_MS = 1000
"""Default of `Expect.within_ms`."""


@frozen
class Expect:
    """The effect that a step must have: a read of risk 0 after the step, and the members that its result must have.

    `equals` gives members their values, `min` and `max` bound members that are numbers; all that is given must hold
    together, in one reading that begins at most `within_ms` after the step. Otherwise the step fails with
    EffectNotSeen.
    """

    tool: str
    args: Mapping[str, Any] = field(factory=dict)
    equals: Mapping[str, Any] = field(factory=dict)
    min: Mapping[str, float] = field(factory=dict)
    max: Mapping[str, float] = field(factory=dict)
    within_ms: int = WITHIN_MS

    def wanted(self) -> dict[str, Mapping[str, Any]]:
        """Return the conditions that are given, as JSON."""
        conditions = {"equals": self.equals, "min": self.min, "max": self.max}
        return {name: dict(members) for name, members in conditions.items() if members}

    def to_wire(self) -> dict[str, Any]:
        """Return the member `expect` of a step."""
        return {"tool": self.tool, "args": dict(self.args), **self.wanted(), "within_ms": self.within_ms}

    def named(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of a result that the conditions name."""
        return {name: result[name] for name in {**self.equals, **self.min, **self.max} if name in result}

    def holds(self, result: Mapping[str, Any]) -> bool:
        """Return True if a result fulfils every condition."""
        return (
            all(name in result and _same(result[name], value) for name, value in self.equals.items())
            and all(_is_number(result.get(name)) and result[name] >= low for name, low in self.min.items())
            and all(_is_number(result.get(name)) and result[name] <= high for name, high in self.max.items())
        )


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _same(one: Any, other: Any) -> bool:
    """Return True if two values are equal as JSON: 1 is 1.0, and is not true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return (type(one) is bool) == (type(other) is bool) and bool(one == other)


def expect(
    tool: str,
    /,
    *,
    equals: Mapping[str, Any] | None = None,
    min: Mapping[str, float] | None = None,  # noqa: A002  the name on the wire
    max: Mapping[str, float] | None = None,  # noqa: A002
    within_ms: int = WITHIN_MS,
    **args: Any,
) -> Expect:
    """Build what a step expects: `step(…, expect=expect("gpio.get", line=4, equals={"value": 1}, within_ms=200))`."""
    return Expect(tool, args, equals or {}, min or {}, max or {}, within_ms)


@frozen
class Step:
    """One tool invocation (draft §3.4), with the effect that it must have (docs/reference/methods.md)."""

    tool: str
    args: Mapping[str, Any] = field(factory=dict)
    expect: Expect | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the element of `task.steps`."""
        wire: dict[str, Any] = {"tool": self.tool, "args": dict(self.args)}
        if self.expect is not None:
            wire["expect"] = self.expect.to_wire()
        return wire


def step(tool: str, /, *, expect: Expect | None = None, **args: Any) -> Step:
    """Build a step: `step("gpio.set", line=17, value=1)`. `expect` is never an argument of the tool."""
    return Step(tool, args, expect)


class TaskConstraints(TypedDict, total=False):
    """The keyword arguments of `submit` and `prepare` that constrain a task; None is as if it were not given."""

    max_duration_ms: float | None
    abort_on_step_failure: bool | None
    max_risk_level: int | None
    rollback_on_failure: bool | None
    exclusive: bool | None
    on_busy: OnBusy | None
    dry_run: bool | None
    priority: Priority | None


@frozen
class StepResult:
    """The outcome of one step (draft §3.5). `error*` are set only when it failed; times are in milliseconds.

    `seen` has the members that `expect` names, from its last reading; None for a step without one, or if no reading
    succeeded.
    """

    tool: str
    status: Status
    result: Mapping[str, Any] | None = None
    latency_ms: float | None = None
    error: str | None = None
    error_code: int | None = None
    error_data: Mapping[str, Any] | None = None
    rolled_back: bool | None = None
    seen: Mapping[str, Any] | None = None


@frozen
class TaskResult:
    """A task as task.get shows it (draft §3.5)."""

    task_id: str
    status: Status
    intent: str
    steps: Sequence[StepResult] = ()
    error: str | None = None
    error_code: int | None = None

    @property
    def done(self) -> bool:
        """True once the status is terminal."""
        return self.status in TERMINAL

    def raise_for_status(self) -> TaskResult:
        """Return self if the task succeeded; otherwise raise TaskFailed naming the first step that did not."""
        if self.status == "SUCCESS":
            return self
        for index, result in enumerate(self.steps):
            if result.status != "SUCCESS":
                why = result.error or result.status.lower()
                raise TaskFailed(f"task {self.task_id} {self.status}: step {index} ({result.tool}): {why}")
        raise TaskFailed(f"task {self.task_id} {self.status}: {self.error or 'no step failed'}")


@frozen
class TaskEvent:
    """One task.event notification (draft §8). `data` holds the fields beyond those of the draft.

    If the server sends no events, the client makes them from task.get: `ts` is then the time at which this client saw
    the change, and there is no `progress`.
    """

    task_id: str
    seq: int
    phase: Phase
    ts: str
    step_index: int | None = None
    data: Mapping[str, Any] = field(factory=dict)


@frozen
class HaltStatus:
    """The halt of a daemon (halt.status). All but `halted` and `inputs` is empty while it is not halted."""

    halted: bool
    since: str | None = None
    """The time of the halt, in UTC."""
    reason: str | None = None
    by: str | None = None
    """The principal or input behind it; None if this session may not know."""
    latched: bool = False
    """True if the halt is on the disk, so that it outlives the daemon; else `problem` says why, if that is known."""
    problem: str | None = None
    stopping: bool = False
    """True while the stop sequence runs."""
    unsafe: Sequence[Mapping[str, Any]] = ()
    """The outputs that are not in their safe state yet, by bus."""
    safe: Sequence[Mapping[str, Any]] = ()
    """The outputs that the halt has brought to their safe state, by bus."""
    left: Sequence[Mapping[str, Any]] = ()
    """The outputs that were driven and have no safe state, by bus: the halt leaves them as they are."""
    inputs: Mapping[str, str] = field(factory=dict)
    """Halt input to "clear", or why it is not: a reset needs all of them clear."""
    holds: Sequence[Mapping[str, Any]] = ()
    """What holds the daemon halted, one for each principal, oldest first; the halt ends with the last."""
    generation: int = 0
    """The number of the last halt, also of one that is over: nothing that was asked for before it acts any more."""


@frozen(kw_only=True)
class PlanStep:
    """One step of a plan, with what it changes: as it was when the plan was prepared, and as it is after the step.

    `before` and `after` are None for a step that does not say what it changes. `during` is there for a step that brings
    back what it changes: `members` as they are for `for_ms`. `asked` has the `tool` and `args` of the call that means
    this step, where that was a call of another tool.
    """

    tool: str
    args: Mapping[str, Any]
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    during: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] | None = None
    expect: Mapping[str, Any] | None = None
    """The effect that the step must have, as submitted."""


@frozen(kw_only=True)
class PlanSummary:
    """A plan as plan.list shows it: without its contents, and with the beginning of its intent."""

    plan_id: str
    hash: str
    effective_risk: int
    intent: str
    step_count: int
    expires_at: str
    """RFC 3339, in UTC."""
    needs: Mapping[str, Any] | None = None
    """What the policy asks for: `right`, `persons`, `other` (another principal than its own); None: nothing."""
    approved_by: Sequence[str] = ()
    state: str = "ready"
    """waiting (for approvals), ready, executed or rejected."""
    may_approve: bool = False
    """True if this principal's approval would count now."""
    principal: str = ""
    own: bool = True
    task_id: str | None = None
    """The task that it became."""
    rejected_by: str | None = None
    reason: str | None = None
    tainted_by: str | None = None
    """The tool through which foreign text had entered the conversation of a model that prepared it."""


@frozen(kw_only=True)
class Plan(PlanSummary):
    """A prepared task (plan.prepare, plan.get). `hash`: over the RFC 8785 form of `intent`, `constraints`, `steps`."""

    constraints: Mapping[str, Any]
    steps: Sequence[PlanStep]
    shown: Sequence[str] = ()
    """The lines that a person reads before deciding: every value, quoted and escaped."""


class Task(Protocol):
    """A submitted task."""

    @property
    def task_id(self) -> str:
        """The identifier that task.submit returned."""
        ...

    def events(self, *, from_seq: int = 1) -> AsyncIterator[TaskEvent]:
        """Yield every event from `from_seq` on; the iterator ends after `task_finish`.

        Leaving the loop early ends the subscription; a timeout around one event loses none.
        """
        ...

    async def wait(self) -> TaskResult:
        """Wait until the task is terminal and return its result; does not raise for a failed task."""
        ...

    async def get(self) -> TaskResult:
        """Return the present state of the task (task.get)."""
        ...

    async def cancel(self) -> str:
        """Ask for cooperative cancellation (task.cancel).

        Returns "CANCELLING", or the final status of a task that had already ended.
        """
        ...


class Session(Protocol):
    """An open session: `async with ....open_session(client_name="arm") as session`."""

    @property
    def session_id(self) -> str:
        """The identifier that session.open returned."""
        ...

    @property
    def capabilities(self) -> Sequence[str]:
        """The capability flags that the policy lets this session use."""
        ...

    @property
    def gpio(self) -> namespaces.GpioNamespace:
        """GPIO lines: `await session.gpio.set("LED", 1)`."""
        ...

    @property
    def i2c(self) -> namespaces.I2cNamespace:
        """I2C devices: `await session.i2c.read(1, 0x48, reg=0, length=2)` returns bytes."""
        ...

    @property
    def uart(self) -> namespaces.UartNamespace:
        """Serial ports: `await session.uart.read("uart0", length=64)` returns bytes."""
        ...

    @property
    def pwm(self) -> namespaces.PwmNamespace:
        """PWM channels and servos: `await session.pwm.set("FAN", duty=0.5)`, `await session.pwm.move("ARM", 45)`."""
        ...

    @property
    def dac(self) -> namespaces.DacNamespace:
        """DAC channels: `await session.dac.set("LEVEL", 1.5)` brings one to 1.5 volts, or what its unit is."""
        ...

    @property
    def spi(self) -> namespaces.SpiNamespace:
        """SPI devices: `await session.spi.transfer("FLASH", command)` returns as many bytes."""
        ...

    @property
    def can(self) -> namespaces.CanNamespace:
        """CAN buses: `await session.can.read("can0")`, `session.can.send("can0", "FAN_COMMAND", {"Speed": 40})`."""
        ...

    @property
    def modbus(self) -> namespaces.ModbusNamespace:
        """Modbus devices: `await session.modbus.read("FAN", "speed")`, `session.modbus.write("FAN", "speed", 12.5)`."""
        ...

    @property
    def files(self) -> namespaces.FilesNamespace:
        """Files on the machine of the daemon: `await session.files.read("/srv/notes.txt")` returns bytes."""
        ...

    @property
    def sensors(self) -> namespaces.SensorsNamespace:
        """Sensors: `await session.sensors.read("temperature")` returns a `SensorReading`."""
        ...

    @property
    def signals(self) -> namespaces.SignalsNamespace:
        """Signals: `await session.signals.set("PUMP", 1)` sets whatever the board names so."""
        ...

    async def tools(self) -> list[dict[str, Any]]:
        """Return the entries of tool.list."""
        ...

    async def call(self, method: str, /, **params: Any) -> Mapping[str, Any]:
        """Call a method of the server that has no coroutine here, and return its result. Raises RpcError.

        The server refuses params that it does not know (`strict`, docs/reference/methods.md); with strict=False it
        ignores them.
        """
        ...

    async def submit(
        self,
        /,
        intent: str,
        steps: Sequence[Step | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        follow: bool = True,
        **constraints: Unpack[TaskConstraints],
    ) -> Task:
        """Submit a task (draft §3.4) with its constraints; None leaves a constraint to the server's default.

        `max_duration_ms` is the deadline, counted from the submission; `abort_on_step_failure=False` runs the steps
        after a failed one too; `max_risk_level` (0 to 3) lowers or raises the risk within the policy's bounds;
        `rollback_on_failure` undoes the completed steps of a task that does not succeed; `exclusive` leases all its
        buses; `on_busy="fail"` does not wait for a bus; `dry_run` checks everything and touches nothing; `priority` is
        the place in the queues.

        A repeat with the same `idempotency_key` returns the first task. The same request subscribes to the task's
        events, so that `events` and `wait` make none of their own; `follow=False` is for a task that is left to itself.

        Raises TypeError for an unknown constraint, InvalidParams for an unknown argument of a tool, and the RpcError
        subclass for the server's answer.
        """
        ...

    async def prepare(
        self,
        /,
        intent: str,
        steps: Sequence[Step | Mapping[str, Any]],
        **constraints: Unpack[TaskConstraints],
    ) -> Plan:
        """Prepare a plan: check a task as `submit` does, read what it would change, and run nothing (plan.prepare).

        Raises as `submit`, and QueueFull if this principal has too many plans.
        """
        ...

    async def execute(self, plan: Plan | str, *, wait_ms: int | None = None) -> Task:
        """Execute a plan of one's own, or the one with this id: at most once, and only as it was prepared.

        `wait_ms` (up to 60,000) waits for its approval. Raises PlanStale if it was executed, has expired, or what it
        changes is not as it was; ApprovalRequired if it is not approved in time; PermissionDenied if it was rejected.
        """
        ...

    async def plans(self) -> Sequence[PlanSummary]:
        """Return one's own plans, and with the right to approve also those of others that wait (plan.list)."""
        ...

    async def plan(self, plan_id: str) -> Plan:
        """Return one of these plans with its contents (plan.get). Raises PlanStale if there is none with this id."""
        ...

    async def approve(self, plan: Plan, *, reason: str | None = None) -> int:
        """Approve a plan exactly as it is shown here; return how many approvals are still missing.

        Raises PermissionDenied without the right, or for one's own plan that another must approve; PlanStale if no
        such plan waits.
        """
        ...

    async def reject(self, plan: Plan | str, *, reason: str | None = None) -> bool:
        """Reject a plan, withdraw one's own, or take back one's approval of it, which counts until the plan runs.

        Returns True if an approval was taken back: the plan waits for another one. Raises as `approve`.
        """
        ...

    async def grant_approval(
        self,
        tool: str,
        args: Mapping[str, Mapping[str, Any]],
        *,
        times: int,
        within_s: int,
        principal: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Approve calls of one tool in advance, each within these bounds, for a principal (approval.grant).

        `args` has a bound for each arg: `{"equals": value}`, `{"min": number, "max": number}` or `{"any": True}`. An
        arg without one may not be there. `principal` is one's own unless given. The answer says in `text` what it
        permits; with `dry_run` that is all. Raises PermissionDenied as `approve`, and QueueFull.
        """
        ...

    async def standing_approvals(self) -> Sequence[Mapping[str, Any]]:
        """Return the standing approvals that one has given, may revoke, or may use (approval.list)."""
        ...

    async def revoke_approval(self, approval_id: str) -> None:
        """End a standing approval at once (approval.revoke). Raises PermissionDenied if one may not."""
        ...

    async def run(self, tool: str, /, **args: Any) -> Mapping[str, Any]:
        """Submit one step, wait for its end, and return its result; raise the error's class if the step failed."""
        ...

    async def task(self, task_id: str) -> Task:
        """Return a handle on a task that was submitted earlier. Raises TaskNotFound."""
        ...

    async def halt(self, reason: str = "") -> HaltStatus:
        """Halt the daemon: no effect begins from now on, tasks with effects are cancelled, outputs go to safe states.

        Any session may. Returns when the halt is on the disk, cannot be written to it, or after a second (`latched`).
        """
        ...

    async def halt_status(self) -> HaltStatus:
        """Return the state of the halt."""
        ...

    async def reset_halt(self, holds: Sequence[int] | None = None) -> HaltStatus:
        """Remove all holds of the halt, or those of these generations; nothing that ran before it starts again.

        Raises PermissionDenied without the right `reset_halt`, and Halted if some remain: the others, that of an input
        which is not clear, and one that has come or was renewed since the call.
        """
        ...

    async def observe_state(self) -> Mapping[str, Any]:
        """Return the whole runtime as it is now: lines, buses, sessions, tasks, approvals, halt (observe.state).

        Raises PermissionDenied without the right `observe`, as the two methods below.
        """
        ...

    def observe(self, *, stream: str | None = None, from_seq: int | None = None) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the runtime's events in order, each as the params of observe.event; the first is a snapshot.

        With the `stream` of an earlier event and the number after it as `from_seq` it goes on from there, if that is
        still kept. A reader that falls behind gets a snapshot, which says how many events it `missed`. A connection
        has one such subscription; another one ends it. Raises CarrierError when the connection ends.
        """
        ...

    async def observe_audit(self, *, from_seq: int | None = None, limit: int = 100) -> Mapping[str, Any]:
        """Return up to `limit` (1 to 500) audit records from number `from_seq` on, or the newest (observe.audit)."""
        ...

    async def attest_quote(self, nonce: str, *, since: int | None = None) -> Mapping[str, Any]:
        """Return a signed statement of what the daemon runs with (attest.quote); `hearth.attest` verifies it.

        `nonce` is 16 to 64 random bytes in hex, made for this call. With `since`, the size of an earlier checkpoint,
        the answer proves that the log still begins with those records.
        """
        ...

    async def attest_key(self) -> Mapping[str, Any]:
        """Return the public keys that statements are verified with (attest.key)."""
        ...

    async def close(self) -> int:
        """Close the session; return the number of its tasks that have not ended yet."""
        ...
