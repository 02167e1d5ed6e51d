"""The Session interface over two primitives: call a method, follow a task's events.

A remote client implements the primitives (`SessionLink`) over a carrier, an embedded runtime in its process. This
module has the rest, once for both. See `hearth.api` for the contract.

Theory of operation. *Cancellation.* A caller that is cancelled gives up its wait, not the request: that has been sent,
and its effect may still come. So each call whose effect would then belong to no caller says how to take it back
(`compensate`): the link calls it when the late answer comes. A submission without an `idempotency_key` is cancelled;
one with a key can be found again, and goes on.

*One round trip.* A submission subscribes to its task in the same request, and the result comes from the events
(`protocol.client.TaskOutcome`). task.get is asked only if they do not suffice: for a dry run and a repeated
submission, of which there are no events of steps, after a rollback whose reports a slow reader has missed, and on a
server that sends no events, or whose `task.submit` does not subscribe. `hearth.client.events` has the subscriptions.

All of it runs in the Trio thread.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

import trio
from attrs import define, field

from hearth._util.text import suggest
from hearth.api import Plan, PlanSummary, Step, StepResult, TaskConstraints, TaskEvent, TaskResult
from hearth.audit.record import args_hash
from hearth.client.events import EventIterator
from hearth.errors import TaskFailed, from_wire
from hearth.protocol.client import ProtocolViolation, read_halt, read_plan, read_plan_summary, read_task
from hearth.protocol.jsonrpc import kind_of
from hearth.protocol.known import require_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from hearth import namespaces
    from hearth.api import HaltStatus
    from hearth.client.events import Following, WholeFollowing

TakeBack: TypeAlias = "Callable[[Mapping[str, Any]], tuple[str, Mapping[str, Any]] | None]"
"""A function for a result whose caller was cancelled: returns the method and params that undo its effect, or None."""


def require_trio(function: str) -> None:
    """Raise RuntimeError, which says what to use instead, where no Trio runs."""
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(f"hearth.{function} runs on Trio, {_instead(f'.{function}')}")


def wrong_thread(what: str) -> RuntimeError:
    """Return the error for the use of a Trio object outside the thread of its Trio."""
    if trio.lowlevel.in_trio_run():
        return RuntimeError(f"this {what} belongs to Trio in another thread: open one here, or use trio.from_thread")
    return RuntimeError(f"this {what} belongs to Trio, {_instead('')}")


def _instead(function: str) -> str:
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return f"and this is asyncio: use hearth.aio{function}"
    return f"and no event loop runs here: use hearth.sync{function}, or trio.run"


class SessionLink(ABC):
    """The primitives that a session needs from a connection or a runtime."""

    @abstractmethod
    async def call(
        self, method: str, params: Mapping[str, Any], *, compensate: TakeBack | None = None
    ) -> Mapping[str, Any]:
        """Call a method and return its result. Raises the RpcError of the answer, or CarrierError.

        If the caller is cancelled before the answer comes, `compensate` undoes the effect of that answer.
        """

    @abstractmethod
    async def begin(
        self, method: str, params: Mapping[str, Any], *, compensate: TakeBack | None = None
    ) -> tuple[Mapping[str, Any], WholeFollowing | None]:
        """Call task.submit or plan.execute, and subscribe to the task's events in the same request.

        The returned Following has started; it is None if the server did not subscribe. Raises as `call`.
        """

    @abstractmethod
    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Call a method without waiting for an answer."""

    @abstractmethod
    def observe(self, params: Mapping[str, Any]) -> Following[Mapping[str, Any]]:
        """Return a subscription to the runtime's events, by the params of observe.subscribe."""

    @abstractmethod
    def follow(self, session_id: str, task_id: str, from_seq: int) -> Following[TaskEvent]:
        """Return a subscription to a task: its events from `from_seq` on, of which `task_finish` is the last."""


@define(eq=False, repr=False)
class ClientTask:
    """An implementation of `hearth.api.Task`."""

    _link: SessionLink
    _session_id: str
    task_id: str
    _following: WholeFollowing | None = None
    """The subscription that came with the submission."""
    _intent: str = ""
    _tools: Sequence[str] | None = None
    """The tools of the steps as submitted; None if the events do not have all of the result."""
    _events: EventIterator[TaskEvent] | None = field(default=None, init=False)
    """The events of `_following`, until the first reader takes them."""

    def __attrs_post_init__(self) -> None:
        if self._following is not None:
            self._events = EventIterator(self._following, started=True)

    def __repr__(self) -> str:
        return f"<task {self.task_id}>"

    def _params(self) -> dict[str, Any]:
        return {"session_id": self._session_id, "task_id": self.task_id}

    def events(self, *, from_seq: int = 1) -> EventIterator[TaskEvent]:
        """See hearth.api.Task."""
        # The first reader takes the submission's own subscription. Later ones need a replay: its events are read once.
        if from_seq == 1 and self._events is not None:
            events, self._events = self._events, None
            return events
        return EventIterator(self._link.follow(self._session_id, self.task_id, from_seq))

    async def wait(self) -> TaskResult:
        """See hearth.api.Task."""
        return read_task(await self.show())

    async def show(self) -> Mapping[str, Any]:
        """Wait until the task is terminal, and return what task.get answers then, unchecked."""
        outcome = None if self._following is None else await self._following.outcome()
        if outcome is None:
            async for _event in EventIterator(self._link.follow(self._session_id, self.task_id, 1)):
                pass
        elif self._tools is not None:
            shown = outcome.task(self.task_id, self._intent, self._tools)
            if shown is not None:
                return shown
        return await self._link.call("task.get", self._params())

    async def get(self) -> TaskResult:
        """See hearth.api.Task."""
        return read_task(await self._link.call("task.get", self._params()))

    async def cancel(self) -> str:
        """See hearth.api.Task."""
        answer = await self._link.call("task.cancel", self._params())
        return str(member(answer, "status", str, "task.cancel"))


def member(answer: Mapping[str, Any], name: str, kind: type, method: str) -> Any:
    """Return a required member of a result. Raises ProtocolViolation if it is missing or has another type."""
    value = answer.get(name)
    if not isinstance(value, kind):
        raise ProtocolViolation(f"the server answered {method} with {kind_of(value)} for {name}")
    return value


class WithNamespaces(ABC):
    """The namespaces of a session, as attributes. Their module is loaded on first use."""

    @abstractmethod
    async def run(self, tool: str, /, **args: Any) -> Mapping[str, Any]:
        """See hearth.api.Session."""

    @property
    def gpio(self) -> namespaces.GpioNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.GpioNamespace(self)

    @property
    def i2c(self) -> namespaces.I2cNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.I2cNamespace(self)

    @property
    def uart(self) -> namespaces.UartNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.UartNamespace(self)

    @property
    def pwm(self) -> namespaces.PwmNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.PwmNamespace(self)

    @property
    def dac(self) -> namespaces.DacNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.DacNamespace(self)

    @property
    def spi(self) -> namespaces.SpiNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.SpiNamespace(self)

    @property
    def can(self) -> namespaces.CanNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.CanNamespace(self)

    @property
    def modbus(self) -> namespaces.ModbusNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.ModbusNamespace(self)

    @property
    def files(self) -> namespaces.FilesNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.FilesNamespace(self)

    @property
    def sensors(self) -> namespaces.SensorsNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.SensorsNamespace(self)

    @property
    def signals(self) -> namespaces.SignalsNamespace:
        """See hearth.api.Session."""
        from hearth import namespaces

        return namespaces.SignalsNamespace(self)


class ClientSession(WithNamespaces):
    """An implementation of `hearth.api.Session`."""

    def __init__(self, link: SessionLink, opened: Mapping[str, Any]) -> None:
        self._link = link
        self.session_id: str = member(opened, "session_id", str, "session.open")
        flags = opened.get("capabilities")
        self.capabilities: tuple[str, ...] = tuple(flags) if isinstance(flags, list) else ()  # optional (draft §3.1)
        self.closed = False

    def __repr__(self) -> str:
        return f"<session {self.session_id}>"

    async def tools(self) -> list[dict[str, Any]]:
        """See hearth.api.Session."""
        answer = await self._link.call("tool.list", {"session_id": self.session_id})
        tools: list[dict[str, Any]] = member(answer, "tools", list, "tool.list")
        return tools

    async def call(self, method: str, /, **params: Any) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        return await self._link.call(method, {"session_id": self.session_id, "strict": True, **params})

    async def submit(
        self,
        /,
        intent: str,
        steps: Sequence[Step | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        follow: bool = True,
        **constraints: Unpack[TaskConstraints],
    ) -> ClientTask:
        """See hearth.api.Session."""
        task = _task("submit", intent, steps, constraints, "idempotency_key", "follow")
        if idempotency_key is not None:
            task["idempotency_key"] = idempotency_key
        # With a key the caller can find the task again. Without one, a task whose answer is lost must be cancelled.
        compensate = self._cancelling if idempotency_key is None else None
        # The members of a step are checked here; only the server knows the arguments of its tools.
        params = {"session_id": self.session_id, "task": task, "strict": True}
        require_known("task.submit", params)
        if follow:
            return await self._begin("task.submit", params, compensate, task)
        answer = await self._link.call("task.submit", params, compensate=compensate)
        return ClientTask(self._link, self.session_id, member(answer, "task_id", str, "task.submit"))

    async def submit_task(self, task: Mapping[str, Any]) -> ClientTask:
        """Submit a task as it is on the wire, such as that of a file, and follow it. Raises as `submit`."""
        compensate = self._cancelling if task.get("idempotency_key") is None else None
        params = {"session_id": self.session_id, "task": task, "strict": True}
        return await self._begin("task.submit", params, compensate, task)

    async def _begin(
        self,
        method: str,
        params: Mapping[str, Any],
        compensate: TakeBack | None,
        task: Mapping[str, Any] | None,
    ) -> ClientTask:
        """Call a method that begins a task, and follow that; `task` is its content as on the wire, if it is known."""
        answer, following = await self._link.begin(method, params, compensate=compensate)
        task_id = member(answer, "task_id", str, method)
        # A dry run has no events of its steps, and a repeated submission may have had its events long ago.
        if following is None or task is None or "repeated" in answer or (task.get("constraints") or {}).get("dry_run"):
            return ClientTask(self._link, self.session_id, task_id, following)
        tools = [step["tool"] for step in task["steps"]]
        return ClientTask(self._link, self.session_id, task_id, following, task["intent"], tools)

    def _cancelling(self, submitted: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        task_id = submitted.get("task_id")
        return ("task.cancel", {"session_id": self.session_id, "task_id": task_id}) if task_id else None

    async def prepare(
        self,
        /,
        intent: str,
        steps: Sequence[Step | Mapping[str, Any]],
        **constraints: Unpack[TaskConstraints],
    ) -> Plan:
        """See hearth.api.Session."""
        task = _task("prepare", intent, steps, constraints)
        params = {"session_id": self.session_id, "task": task, "strict": True}
        require_known("plan.prepare", params)
        return _plan(await self._link.call("plan.prepare", params))

    async def execute(self, plan: Plan | str, *, wait_ms: int | None = None) -> ClientTask:
        """See hearth.api.Session."""
        named = {"plan_id": plan} if isinstance(plan, str) else {"plan_id": plan.plan_id, "hash": plan.hash}
        params = {"session_id": self.session_id, "strict": True, **named}
        if wait_ms is not None:
            params["wait_ms"] = wait_ms
        task: Mapping[str, Any] | None = None
        if isinstance(plan, Plan):
            steps = [{"tool": step.tool} for step in plan.steps]
            task = {"intent": plan.intent, "steps": steps, "constraints": plan.constraints}
        return await self._begin("plan.execute", params, self._cancelling, task)

    async def plans(self) -> list[PlanSummary]:
        """See hearth.api.Session."""
        return [read_plan_summary(plan) for plan in member(await self.call("plan.list"), "plans", list, "plan.list")]

    async def plan(self, plan_id: str) -> Plan:
        """See hearth.api.Session."""
        return _plan(await self.call("plan.get", plan_id=plan_id))

    async def approve(self, plan: Plan, *, reason: str | None = None) -> int:
        """See hearth.api.Session."""
        answer = await self.call("plan.approve", plan_id=plan.plan_id, hash=plan.hash, reason=reason)
        missing: int = member(answer, "missing", int, "plan.approve")
        return missing

    async def reject(self, plan: Plan | str, *, reason: str | None = None) -> bool:
        """See hearth.api.Session."""
        plan_id = plan if isinstance(plan, str) else plan.plan_id
        return (await self.call("plan.reject", plan_id=plan_id, reason=reason)).get("taken_back") is True

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
        """See hearth.api.Session."""
        bounds = {"tool": tool, "args": args, "times": times, "within_s": within_s, "dry_run": dry_run}
        return await self.call("approval.grant", **bounds, principal=principal, reason=reason)

    async def standing_approvals(self) -> list[Mapping[str, Any]]:
        """See hearth.api.Session."""
        given: list[Mapping[str, Any]] = member(await self.call("approval.list"), "approvals", list, "approval.list")
        return given

    async def revoke_approval(self, approval_id: str) -> None:
        """See hearth.api.Session."""
        await self.call("approval.revoke", approval_id=approval_id)

    async def run(self, tool: str, /, **args: Any) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        # Every member is known, so there is nothing for `require_known` to find.
        task: dict[str, Any] = {"intent": f"run {tool}", "steps": [{"tool": tool, "args": args}]}
        params = {"session_id": self.session_id, "task": task, "strict": True}
        answer, following = await self._link.begin("task.submit", params, compensate=self._cancelling)
        task_id = member(answer, "task_id", str, "task.submit")
        try:
            outcome = None if following is None else await following.outcome()
            if outcome is not None and (result := outcome.result_of(tool)) is not None:
                return result
            done = await ClientTask(self._link, self.session_id, task_id, following, task["intent"], [tool]).wait()
        except BaseException:
            # Only this caller has the id of the task, so no other could cancel it.
            self._link.notify("task.cancel", {"session_id": self.session_id, "task_id": task_id})
            raise
        finally:
            if following is not None:
                following.close()
        step = done.steps[0] if done.steps else StepResult(tool, done.status)
        if step.status == "SUCCESS":
            return step.result or {}
        if step.error_code is not None:
            raise from_wire({"code": step.error_code, "message": step.error, "data": step.error_data})
        raise TaskFailed(f"task {task_id} {done.status}: {done.error or step.error or tool}")

    async def task(self, task_id: str) -> ClientTask:
        """See hearth.api.Session."""
        task = ClientTask(self._link, self.session_id, task_id)
        await task.get()
        return task

    async def halt(self, reason: str = "") -> HaltStatus:
        """See hearth.api.Session."""
        # No compensation: a caller that gave up waiting has not changed its mind.
        return read_halt(await self._link.call("halt", {"session_id": self.session_id, "reason": reason}))

    async def halt_status(self) -> HaltStatus:
        """See hearth.api.Session."""
        return read_halt(await self._link.call("halt.status", {"session_id": self.session_id}))

    async def reset_halt(self, holds: Sequence[int] | None = None) -> HaltStatus:
        """See hearth.api.Session."""
        params = {"session_id": self.session_id} | ({} if holds is None else {"holds": list(holds)})
        return read_halt(await self._link.call("halt.reset", params))

    async def observe_state(self) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        return await self._link.call("observe.state", {"session_id": self.session_id})

    def observe(self, *, stream: str | None = None, from_seq: int | None = None) -> EventIterator[Mapping[str, Any]]:
        """See hearth.api.Session."""
        given = {"session_id": self.session_id, "stream": stream, "from_seq": from_seq}
        return EventIterator(self._link.observe({name: value for name, value in given.items() if value is not None}))

    async def observe_audit(self, *, from_seq: int | None = None, limit: int = 100) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        return await self._link.call(
            "observe.audit", {"session_id": self.session_id, "from_seq": from_seq, "limit": limit}
        )

    async def attest_quote(self, nonce: str, *, since: int | None = None) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        return await self._link.call("attest.quote", {"session_id": self.session_id, "nonce": nonce, "since": since})

    async def attest_key(self) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        return await self._link.call("attest.key", {"session_id": self.session_id})

    async def close(self) -> int:
        """See hearth.api.Session."""
        self.closed = True
        answer = await self._link.call("session.close", {"session_id": self.session_id})
        yielding = answer.get("yielding", 0)
        return yielding if type(yielding) is int else 0


def _task(
    method: str,
    intent: str,
    steps: Sequence[Step | Mapping[str, Any]],
    constraints: TaskConstraints,
    *others: str,
) -> dict[str, Any]:
    """Return the `task` of a request. Raises TypeError for an unknown constraint."""
    known = [*TaskConstraints.__annotations__, *others]
    for name in constraints.keys() - {*known}:
        raise TypeError(f"{method}() has no constraint {name!r}; {suggest(name, known) or f'there are {known}'}")
    given = {name: value for name, value in constraints.items() if value is not None}
    task: dict[str, Any] = {
        "intent": intent,
        "steps": [step.to_wire() if isinstance(step, Step) else dict(step) for step in steps],
    }
    if given:
        task["constraints"] = given
    return task


def _plan(answer: Mapping[str, Any]) -> Plan:
    """Return a plan. Raises ProtocolViolation if its hash is not that of what it shows: something else would run."""
    plan = read_plan(answer)
    shown = {name: answer.get(name) for name in ("intent", "constraints", "steps")}
    if plan.hash != args_hash(shown):
        raise ProtocolViolation("the server sent a plan whose hash is not that of what it shows")
    return plan
