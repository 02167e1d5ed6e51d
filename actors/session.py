"""The session actor: one authenticated context, its grant, its tasks (draft §3, §5).

It alone owns the session's state: its tasks (`task_registry`), the checks of submissions (`admission`), its
`Subscribers`, and its `IdleTimer`.

Theory of operation. The states of a session:

    opening ----> serving ----> winding up ----> over
       |             |                            ^
       +-------------+----------------------------+     torn down: cancelled from outside, or a bug

- *Opening.* The record of session.open is written before its answer. If the log cannot be written, the session is open
  all the same, for reads.
- *Serving.* Messages are handled one at a time, in the order in which they came. Handling one never waits: neither for
  a task, a bus, the journal nor a disk. So a request about one task is answered while others run. What must wait runs
  in a child task, and comes back as a message (`Resumed`) or as an answer (`_permit`). While the session waits for a
  message, `ask` handles a request in the turn of the task that brings it, which saves two turns of the loop. That is
  the same as if the session's own task had handled it: no checkpoint is in between, and the mailbox is empty.
- *Winding up.* `reason` is set; every further request is answered with SESSION_INVALID. The tasks are cancelled, then
  the outputs that the session drove go to their safe state, then the end is recorded. Together the first two take no
  longer than `close_grace`; tasks that have not returned by then are reported as `yielding`.
- *Over.* The `finally` of `run` does what every end needs, whatever came before: it frees the memory, answers what is
  left, and asks once more for safe states.

Who may call what. Any task in the Trio thread calls `post` and `ask`, and reads `ended`. The tasks of the session run
in its nursery, and call `_task_ended` in their own turn, once each. All else runs in the session's own task, or in
`ask` while that task waits for a message.

What is guaranteed: every request that was posted is answered exactly once, also after a crash (`_handling` is the one
in hand); a repeated submission is answered with the same task; no event of a task is lost between its submission and
its subscription, because the followers are attached before the task runs.
"""

from __future__ import annotations

import math
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, evolve, field, frozen

from hearth._util.foreign import Raised, called
from hearth._util.ids import new_id
from hearth.actors.admission import Admission, Unchecked, all_missing, check_paths_blocking
from hearth.actors.approval.plans import PlanRequests
from hearth.actors.approval.standing import StandingRequests
from hearth.actors.bus.actor import make_safe
from hearth.actors.mailbox import Mailbox
from hearth.actors.messages import (
    TIMER_FIRED,
    CloseSession,
    Disconnected,
    NewGrant,
    Resumed,
    StopTasks,
    TimerFired,
    Verdicts,
    refuse,
)
from hearth.actors.observe import ObserveRequests
from hearth.actors.task_registry import TaskRegistry
from hearth.actors.turns import turns_of
from hearth.audit.record import timestamp
from hearth.drivers.base import BaseDriver
from hearth.errors import (
    AuditUnavailable,
    InternalError,
    PermissionDenied,
    RpcError,
    SessionInvalid,
    ShuttingDown,
    TaskNotFound,
)
from hearth.policy.memory import FEED_BYTES, SESSION_BYTES, text_bytes
from hearth.policy.rules import PrincipalRates, RateLimits
from hearth.policy.uses import BY_NAME as CARD_TOOLS
from hearth.protocol.methods import (
    SUPPORTED,
    ApprovalParams,
    AttestParams,
    AttestQuote,
    EventsSubscribe,
    EventsUnsubscribe,
    HaltReset,
    McpInfo,
    McpTools,
    McpUse,
    ObserveParams,
    PlanParams,
    PolicyReload,
    SessionClose,
    TaskCancel,
    TaskGet,
    ToolList,
)
from hearth.protocol.submissions import TaskSubmit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from hearth.actors.admission import Checks
    from hearth.actors.approval.plans import Plans
    from hearth.actors.approval.standing import Claim
    from hearth.actors.attestation import Attestation
    from hearth.actors.bus.halt import Halt
    from hearth.actors.catalogue import ToolCatalogue
    from hearth.actors.events import EventLog, History
    from hearth.actors.messages import EventSink, Message, Notice, Request
    from hearth.actors.step import StepRun, TaskServices
    from hearth.actors.task import TaskActor
    from hearth.actors.task_registry import IdempotencyEntry, IdempotencyKeys
    from hearth.actors.turns import Turns
    from hearth.policy.memory import Account
    from hearth.policy.principal import Principal
    from hearth.policy.rules import Grant
    from hearth.protocol.methods import SessionOpen

CLOSED = "closed by the client"
"""The reason, in the audit record, of a session that its client has closed in good order."""
NOTICES = (CloseSession, Disconnected, NewGrant, StopTasks, TimerFired)
"""Messages that are not requests: they do not wait for the principal's turn."""
NO_VERDICTS: Verdicts = MappingProxyType({})


@frozen(eq=False)
class SessionLimits:
    """The bounds of one session; times in seconds."""

    idle_ttl: float
    close_grace: float
    max_tasks: int
    history: int


@frozen(eq=False)
class SessionServices:
    """The services that every session of a runtime uses."""

    tasks: TaskServices
    checks: Checks
    limits: SessionLimits
    manifests: ToolCatalogue
    halt: Halt
    plans: Plans
    keys: IdempotencyKeys
    wake_at: Callable[[str, float], None]
    """Asks for a TIMER_FIRED at a time of Trio's clock."""
    forget: Callable[[Session], None]
    """Removes the session from the directory, so that no request finds it. Idempotent."""
    cancel_any: Callable[[str, Session], dict[str, Any]]
    """Cancels a task of whatever session, for this one. Raises TaskNotFound."""
    reload: Callable[[bool], Awaitable[dict[str, Any]]]
    """Reads policy and certificates again (True: also if that widens the policy); returns the answer to policy.reload.
    Raises RpcError."""
    attestation: Attestation | None = None
    """Answers attest.quote and attest.key, if the runtime attests itself."""
    tainted_by: str | None = None
    """What taints a conversation from its beginning: the names that the kernel has given to what the board has."""
    rates: PrincipalRates = field(factory=PrincipalRates)
    """The tokens that each principal has used, over all its sessions."""


def halt_status(halt: Halt, principal: str, rights: Collection[str]) -> dict[str, Any]:
    """Return the halt as a principal may see it: without these rights it does not learn of other principals."""
    status = halt.status(by="observe" in rights or "reset_halt" in rights or principal)
    return {"halted": status.pop("halted"), "generation": halt.flag.count, **status}


@define(eq=False)
class Session:
    """One session. Connections use only its `session_id`, its `principal`, `ended` and `post`."""

    principal: str
    _grant: Grant
    _opening: SessionOpen
    _services: SessionServices
    _account: Account
    who: Principal = field(kw_only=True)
    """The principal, of which `principal` is the key."""
    _halts: int | None = field(default=None, kw_only=True, alias="halts")
    """The number of halts when what it works for came; None: each request has its own."""
    session_id: str = field(factory=new_id, init=False)
    _charged: int = field(init=False)
    _turns: Turns = field(init=False)
    # Trio's, bound once: `trio.current_time` takes three frames.
    _clock: Callable[[], float] = field(init=False)
    _opener: EventSink | None = field(default=None, init=False)
    _inbox: Mailbox[Message] = field(factory=Mailbox, init=False)
    _task_registry: TaskRegistry = field(init=False)
    _admission: Admission = field(init=False)
    _subscribers: Subscribers = field(init=False)
    _plan_requests: PlanRequests = field(init=False)
    _observing: ObserveRequests | None = field(default=None, init=False)
    # Scopes of requests that wait: `_wind_up` cancels them, since a disk or a person may not answer for long.
    _waits: set[trio.CancelScope] = field(factory=set, init=False)
    _idle_timer: IdleTimer = field(init=False)
    # The request that is being executed: a crash must answer it, too.
    _handling: Request | None = field(default=None, init=False)
    # True while the session's task waits for a message and there is none: then `ask` may handle a request.
    _waiting: bool = field(default=False, init=False)
    # Set by `ask`: the session crashes on it in its own task, and not in that of the caller.
    _bug: BaseException | None = field(default=None, init=False)
    # Requests of session.close, answered when the end is on record.
    _closers: list[Request] = field(factory=list, init=False)
    reason: str | None = field(default=None, init=False)
    """The reason why the session takes no more requests; None while it does."""
    _nursery: trio.Nursery | None = field(default=None, init=False)
    _winding_up: bool = field(default=False, init=False)
    _unrecorded: bool = field(default=False, init=False)
    end_recorded: bool = field(default=False, init=False)
    """True once the record of the end has been posted to the journal."""
    made_safe: list[Any] = field(factory=list, init=False)
    """The reports of outputs that were made safe last, for the record of a session that was torn down."""

    def __attrs_post_init__(self) -> None:
        """Charge the memory. Raises QueueFull."""
        services, opening = self._services, self._opening
        if opening.conversation:
            self._grant = self._grant.for_conversation(services.tainted_by)
        principal, grant, account = self.principal, self._grant, self._account
        self._clock = trio.lowlevel.current_clock().current_time
        self._turns = turns_of(account)
        self._charged = SESSION_BYTES + text_bytes(
            opening.client_name, opening.client_version, opening.protocol_version
        )
        account.charge(self._charged)
        self._task_registry = TaskRegistry(
            principal, services.limits.max_tasks, services.limits.history, account, services.keys
        )
        self._admission = Admission(
            self.session_id,
            principal,
            grant,
            RateLimits(grant, principal, services.rates),
            self._task_registry,
            services.tasks,
            services.checks,
            account,
            self._clock,
            deadman=opening.heartbeat_ms is not None or opening.on_disconnect == "close",
        )
        self._subscribers = Subscribers(self._task_registry, account)
        self._plan_requests = PlanRequests(
            self,
            self.session_id,
            self.who,
            grant,
            services.plans,
            services.checks.registry,
            services.tasks.halt_flag,
            account,
        )
        self._idle_timer = IdleTimer(services.limits.idle_ttl, opening.heartbeat_ms, trio.current_time())

    def post(self, message: Message) -> None:
        """Add a message to the session's mailbox; never waits."""
        if not isinstance(message, (*NOTICES, Resumed)):
            self._heard(message)
        self._waiting = False
        self._inbox.post(message)

    def _heard(self, request: Request) -> None:
        """Note a request when it comes: the session may have to wait for its principal's turn."""
        # A sign of life, and older than a halt that comes meanwhile: no reset of that one, and nothing to run after it.
        self._idle_timer.heard_at = self._clock()
        request.halts = self._services.tasks.halt_flag.count if self._halts is None else self._halts

    @trio.lowlevel.enable_ki_protection
    def ask(self, request: Request) -> None:
        """Handle a request at once if the session waits for one, else post it; never waits, never raises.

        For requests that take little time: the caller's turn becomes longer by it. A bug crashes the session, not the
        caller; nor can a Ctrl-C end it half-way in an embedding program.
        """
        # A reset has its turn after the stop sequence of a halt that has only just been asked for.
        if not self._waiting or self._handling is not None or type(request.params) is HaltReset:
            self.post(request)
            return
        self._heard(request)
        if type(request.params) is SessionClose:
            # Now, and not only in the session's own turn: a task that has not begun by then begins nothing.
            self._take(request)
            for task in self._task_registry.all_live():
                task.cancel("session closed")
            self.post(TIMER_FIRED)
            return
        try:
            called(self._handle, request, None)
        except Raised as raised:  # the session must crash on it, and not its caller
            self._bug = raised.error
            self.post(TIMER_FIRED)

    @property
    def ended(self) -> bool:
        """True once the session takes no more requests."""
        return self.reason is not None

    # --- the actor ----------------------------------------------------------------------------------------------

    async def run(self, opener: Request) -> None:
        """Open the session, serve until something ends it, cancel its tasks and make its outputs safe."""
        self._opener = opener.follower
        self._handling = opener
        try:
            try:
                self._unrecorded = not await self._record(
                    "session.open",
                    minor=self._services.tasks.journal.failure is not None,
                    client_name=self._opening.client_name,
                    policy=self._grant.policy,
                    conversation=self._opening.conversation or None,
                    tainted_by=self._grant.tainted_by,
                )
            except trio.Cancelled:
                # Answered here, and not in the `finally` below: it is no bug, and the client may try again elsewhere.
                self._handling = None
                opener.error(ShuttingDown())
                raise
            opener.result(self._opened())
            self._handling = None
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._check_idle()
                await self._serve()
                # First out of the directory, so that no new request comes while the session winds up.
                self._services.forget(self)
                await self._wind_up()
        finally:
            # Again, for a session that was torn down and has not come to its winding up.
            self._services.forget(self)
            if self._observing is not None:
                self._observing.close()
            self._task_registry.close()
            self._account.release(self._charged)
            if self._handling is not None:
                self._handling.error(InternalError())
            for message in (*self._closers, *self._inbox.drain()):
                refuse(message, SessionInvalid())
            # Drivers keep state for each session, such as its place in a serial port's input.
            for bus in self._services.checks.buses.values():
                if getattr(bus.driver.forget, "__func__", None) is not BaseDriver.forget:
                    bus.driver.forget(self.session_id)
            # Once more, whatever happened above: tasks that were still yielding may have driven outputs since.
            with trio.CancelScope(shield=True):
                # Wait only if the outcome is still to be recorded here; else the buses record it.
                grace = 0.0 if self.end_recorded else self._services.limits.close_grace
                self.made_safe = await self._make_safe(trio.current_time() + grace)
            # They lead back here: its memory is free now, and not only when the garbage collector has been round.
            self._nursery = None
            del self._plan_requests

    def _opened(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "capabilities": self._services.manifests.capabilities(self._grant),
            "protocol_version": SUPPORTED,
        }

    async def _serve(self) -> None:
        """Answer messages until the session is to close."""
        while self.reason is None:
            self._waiting = self._inbox.empty
            try:
                messages = iter(await self._inbox.batch())
            finally:
                self._waiting = False
            try:
                if self._bug is not None:
                    raise self._bug
                for message in messages:
                    # 256 large requests may take seconds.
                    if self._turns.left < 0 and not isinstance(message, NOTICES):
                        await self._turn()
                    began = self._clock()
                    self._take(message)
                    self._turns.used(self._clock() - began)
            except BaseException:
                # A bug, which the supervisor will contain once the tasks have yielded. Answer all requests before that.
                self._services.forget(self)
                if self._handling is not None:
                    handling, self._handling = self._handling, None
                    handling.error(InternalError())
                for message in messages:
                    refuse(message, SessionInvalid())
                for task in self._task_registry.all_live():
                    task.cancel("session crashed")
                raise

    async def _turn(self) -> None:
        """Wait for the principal's turn; the deadman, which has a deadline, does not wait for it."""
        while self.reason is None and trio.current_effective_deadline() > -math.inf:
            # Shielded: the requests of this batch must be answered.
            with trio.CancelScope(shield=True, deadline=self._idle_timer.until):
                await self._turns.wait()
                return
            # The timer's notice, which asks for the next timer, is still in the mailbox.
            self._check_idle(again=False)

    def _take(self, message: Message) -> None:
        if isinstance(message, NOTICES):
            self._notice(message)
        elif self.reason is not None:
            # An earlier message of the same batch has ended the session.
            refuse(message, SessionInvalid())
        elif isinstance(message, Resumed):
            self._handle(message.request, message.resume)
        elif isinstance(message.params, SessionClose):
            # Answered in `_wind_up`, when the end is on record and the outputs are safe.
            self.reason = CLOSED
            self._closers.append(message)
        else:
            self._handle(message, None)

    def _notice(self, message: Notice) -> None:
        if isinstance(message, CloseSession):
            self.reason = self.reason or message.reason
        elif isinstance(message, NewGrant):
            self._take_grant(message.grant)
        elif isinstance(message, StopTasks):
            for task in self._task_registry.all_live():
                if task.acts:
                    task.cancel("halted", message.error)
                    # Its result quotes the reason.
                    self.taint("the reason of a halt")
        elif isinstance(message, Disconnected):
            self._note_disconnected(message)
        elif self.reason is None:
            self._check_idle()

    def _note_disconnected(self, message: Disconnected) -> None:
        observed = self._observing is not None and self._observing.forget(message.follower)
        if observed or self._subscribers.had(message.follower, message.followed):
            self._idle_timer.followed_at = trio.current_time()
        self._subscribers.forget(message.follower)
        if message.follower is self._opener and self._opening.on_disconnect == "close":
            self.reason = self.reason or "its client disconnected"
        elif message.open_unanswered and self._idle_timer.unbroken:
            # No client will use it. Clients that give up while they wait must not use up their principal's share.
            self.reason = self.reason or "its client never learned of it"

    def _take_grant(self, grant: Grant) -> None:
        """Let a new grant decide from the next request on; what has been accepted goes on."""
        if self._opening.conversation:
            grant = grant.for_conversation(grant.tainted_by or self._grant.tainted_by)
        self._grant = grant
        self._admission.take_grant(grant, RateLimits(grant, self.principal, self._services.rates))
        self._plan_requests.take_grant(grant)
        if self._observing is not None and "observe" not in grant.rights:
            self._observing.close()

    def _handle(self, request: Request, resume: Callable[[], None] | None) -> None:
        """Execute one request, or go on with it. An RpcError is its answer; anything else is a bug and is raised."""
        self._handling = request
        try:
            if resume is None:
                self._execute(request, NO_VERDICTS)
            else:
                resume()
        except Unchecked as question:
            # Nothing was charged or counted yet: the whole request is executed again with the verdicts.
            self.wait_beside(request, partial(self._look_up, request, question))
        except RpcError as error:
            self._refuse(request, error)
        self._handling = None

    def _execute(self, request: Request, verdicts: Verdicts) -> None:
        params = request.params
        if isinstance(params, TaskSubmit):
            self._submit(request, params, verdicts)
        elif isinstance(params, TaskGet):
            request.result(self._task_registry.get(params.task_id))
        elif isinstance(params, TaskCancel):
            request.result(self._cancel(params.task_id))
        elif isinstance(params, EventsSubscribe):
            self._subscribers.subscribe(request, params)
        elif isinstance(params, EventsUnsubscribe):
            self._subscribers.unsubscribe(request, params)
        elif isinstance(params, (ToolList, McpTools, McpInfo, McpUse)):
            self._offer(request, params)
        elif isinstance(params, HaltReset):
            self._reset_halt(request)
        elif isinstance(params, PlanParams | ApprovalParams):
            self._approve(request, params, verdicts)
        elif isinstance(params, ObserveParams):
            self._observe(request, params)
        elif isinstance(params, AttestParams):
            self.wait_beside(request, partial(self._attest, request, params))
        elif isinstance(params, PolicyReload):
            assert self._nursery is not None
            self._grant.require("admin")
            self._nursery.start_soon(self._answer, request, partial(self._services.reload, params.yes))

    def _offer(self, request: Request, params: ToolList | McpTools | McpInfo | McpUse) -> None:
        """Answer what the session may use. Raises RpcError."""
        manifests = self._services.manifests
        if isinstance(params, ToolList):
            request.result(manifests.tool_list(self._grant))
        elif isinstance(params, McpTools):
            request.result(manifests.mcp_tools(self._grant))
        elif isinstance(params, McpInfo):
            request.result(manifests.mcp_info(self._grant))
        else:
            assert self._nursery is not None
            if self._opening.conversation:
                raise PermissionDenied("Permission denied: a conversation declares and fetches no AgentCards")
            record = self._admission.permit(params.tool, trio.current_time())
            self._nursery.start_soon(self._answer, request, partial(self._permit, record))

    # --- requests that wait -------------------------------------------------------------------------------------

    def wait_beside(self, request: Request, wait: Callable[[], Awaitable[Callable[[], None]]]) -> None:
        """See plans.Host."""
        assert self._nursery is not None
        self._nursery.start_soon(self._wait_beside, request, wait)

    def recorded(self, request: Request, record: Mapping[str, Any], then: Callable[[], None]) -> None:
        """See plans.Host."""
        receipt = self._services.tasks.journal.post(record)

        async def written() -> Callable[[], None]:
            await receipt.get()
            return then

        self.wait_beside(request, written)

    async def _wait_beside(self, request: Request, wait: Callable[[], Awaitable[Callable[[], None]]]) -> None:
        answer: RpcError | None = SessionInvalid()
        with trio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                # Resumed by a message: this is another task, and the session may have changed during the wait.
                self.resume(request, await wait())
                answer = None
            except RpcError as error:
                answer = error
            finally:
                self._waits.discard(scope)
                # Cancelled by `_wind_up`, or torn down.
                if answer is not None:
                    self._refuse(request, answer)

    async def _answer(self, request: Request, work: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Answer with what `work` returns, which the end of the session waits for, unless it is torn down."""
        answer: RpcError | dict[str, Any] = SessionInvalid()
        try:
            answer = await work()
        except RpcError as error:
            answer = error
        finally:
            if isinstance(answer, RpcError):
                self._refuse(request, answer)
            else:
                request.result(answer)

    def resume(self, request: Request, then: Callable[[], None]) -> None:
        """See plans.Host."""
        self.post(Resumed(request, then))

    async def _look_up(self, request: Request, question: Unchecked) -> Callable[[], None]:
        """Find the verdicts that took time; a thread may still wait for its disk when this has ended."""
        checks, verdicts = self._services.checks, dict(question.verdicts)
        if question.uses:
            verdicts |= await trio.to_thread.run_sync(
                check_paths_blocking, question.uses, checks.paths, abandon_on_cancel=True
            )
        if checks.interlocks is not None:
            verdicts |= await checks.interlocks.verdicts(question.locks)
        return partial(self._execute, request, verdicts)

    # --- observers ----------------------------------------------------------------------------------------------

    def _approve(self, request: Request, params: PlanParams | ApprovalParams, verdicts: Verdicts) -> None:
        """Execute a plan.* or approval.* method. Raises RpcError, Unchecked."""
        if isinstance(params, PlanParams):
            self._plan_requests.handle(request, params, verdicts)
        else:
            services = self._services
            parts = (services.plans.standing, services.checks, self._account)
            StandingRequests(self, self._grant, *parts).handle(request, params)

    def _observe(self, request: Request, params: ObserveParams) -> None:
        """Execute an observe.* method. Raises PermissionDenied, QueueFull."""
        self._grant.require("observe")
        if self._observing is None:
            tasks = self._services.tasks
            path = tasks.journal.settings.path
            self._observing = ObserveRequests(tasks.observer, path, self._account, self.wait_beside)
        grant = self._grant
        you = {"principal": self.principal, "policy": grant.policy, "rights": sorted(grant.rights)}
        self._observing.handle(request, params, you)

    async def _attest(self, request: Request, params: AttestParams) -> Callable[[], None]:
        """Make the answer to attest.quote or attest.key. Raises RpcError."""
        attestation = self._services.attestation
        if attestation is None:
            raise PermissionDenied("Permission denied: this runtime does not attest itself")
        if isinstance(params, AttestQuote):
            answer = await attestation.quote(params, self.session_id, self.principal)
        else:
            answer = await attestation.key()
        return partial(request.result, answer)

    def overview(self) -> dict[str, Any]:
        """Return the session as observers see it."""
        opened = self._services.tasks.clock() - (trio.current_time() - self._idle_timer.opened_at)
        return {
            "session_id": self.session_id,
            "principal": self.principal,
            "policy": self._grant.policy,
            "client_name": self._opening.client_name,
            "opened_at": timestamp(opened),
        }

    def live_tasks(self) -> Iterator[dict[str, Any]]:
        """Yield the live tasks as observers see them."""
        for task in self._task_registry.all_live():
            if (view := task.overview()) is not None:
                yield view

    def has_live(self, task_id: str) -> bool:
        """Return True if this is a live task of this session."""
        return any(task.task_id == task_id for task in self._task_registry.all_live())

    def cancel_task(self, task_id: str) -> dict[str, Any]:
        """Cancel a task; return the result of task.cancel. Raises TaskNotFound."""
        return self._task_registry.cancel(task_id)

    def _cancel(self, task_id: str) -> dict[str, Any]:
        try:
            return self.cancel_task(task_id)
        except TaskNotFound:
            if "admin" not in self._grant.rights:
                raise
            return self._services.cancel_any(task_id, self)

    # --- submissions --------------------------------------------------------------------------------------------

    def _submit(self, request: Request, submit: TaskSubmit, verdicts: Verdicts) -> None:
        if self._opening.conversation:
            # What does more than read runs only as a prepared plan.
            submit = evolve(submit, constraints=evolve(submit.constraints, max_risk_level=0))
        submit = self._admission.resolve(submit)
        first = None if submit.idempotency_key is None else self._task_registry.repeat(submit)
        if first is not None:
            if first.waiting is None:
                self._repeat(request, submit, first, None)
            else:
                # A repeat, too, is answered only when the task is on record.
                first.waiting.append(partial(self._repeat, request, submit, first))
            return
        self.start_task(submit, verdicts, request, at_once=True)

    def resolve_steps(self, submit: TaskSubmit) -> TaskSubmit:
        """See plans.Host."""
        return self._admission.resolve(submit)

    def check_plan(self, submit: TaskSubmit, verdicts: Verdicts, request: Request) -> Sequence[StepRun]:
        """See plans.Host."""
        return self._admission.prepare(submit, verdicts, request, trio.current_time())

    def start_task(
        self,
        submit: TaskSubmit,
        verdicts: Verdicts,
        request: Request,
        *,
        on_end: Callable[[TaskActor], None] | None = None,
        claim: Claim | None = None,
        first: Mapping[str, Any] | None = None,
        at_once: bool = False,
    ) -> TaskActor:
        """See plans.Host. With `at_once` the task may have ended when this returns."""
        assert self._nursery is not None

        ended = self._task_ended
        if on_end is not None:

            def ended(task: TaskActor) -> None:
                self._task_ended(task)
                on_end(task)

        followers = len(self._subscribers.followers)
        if claim is None and self._grant.approval:
            tainted = self._grant.tainted_by is not None
            claim = self._services.plans.standing.claim(submit, self.principal, tainted=tainted)
        missing = all_missing if claim is None else claim.missing
        task = self._admission.accept(submit, verdicts, request, self._clock(), ended, followers, missing)
        if claim is not None and (uses := claim.spend()):
            by = {"session_id": self.session_id, "principal": self.principal}
            first = {**(first or {"event": "approval.use", **by}), "uses": uses}
        if first is not None:
            task.record_first({**first, "task_id": task.task_id})
        if self._opening.conversation and self._grant.tainted_by is None:
            self._note_taint(submit)
        # In this order: a follower that is attached later could miss the first event.
        if followers:
            self._subscribers.follow(task.log)
        if not (at_once and task.run_now()):
            self._nursery.start_soon(task.run)
        return task

    def _note_taint(self, submit: TaskSubmit) -> None:
        """Taint the conversation if a step may bring foreign text into it: from now on, before the step has a result.

        What fails taints too: its error may quote the device.
        """
        registry = self._services.checks.registry
        names = [name for spec in submit.steps for name in (spec.tool, spec.expect and spec.expect.tool) if name]
        foreign = next((name for name in names if not registry[name].plain_result), None)
        if foreign is not None and not submit.constraints.dry_run:
            self.taint(foreign)

    def taint(self, source: str) -> None:
        """See plans.Host: from now on a person decides on what this session proposes, if it is a conversation."""
        if self._opening.conversation and self._grant.tainted_by is None:
            tainted = {"session_id": self.session_id, "principal": self.principal, "tool": source}
            self._services.tasks.journal.post({"event": "session.taint", **tainted}, minor=True)
            self._take_grant(self._grant.for_conversation(source))

    def _refuse(self, request: Request, error: RpcError) -> None:
        """Answer with an error, which may quote another principal (`data.quotes`)."""
        if (error.data or {}).get("quotes"):
            self.taint("the reason of an error")
        request.error(error)

    def _repeat(self, request: Request, submit: TaskSubmit, first: IdempotencyEntry, error: RpcError | None) -> None:
        """Answer a submission that repeats the first one of its key."""
        if error is not None or self.reason is not None:
            # The first submission may be of another session; this one may have ended before it was on record.
            request.error(error or SessionInvalid())
            return
        self._admission.name_ignored(request, submit)
        answer = self._task_registry.repeated(first)
        # A task of a session without a history is forgotten with its end, and has no events to follow.
        follows = submit.subscribe and self._task_registry.has(first.task_id)
        follower = request.follower if follows else None
        request.result(answer if follower is None else {**answer, "subscribed": True})
        if follower is not None:
            follower.follow(self._task_registry.log_of(first.task_id), None)

    async def _permit(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return when the use is on record, so that none begins before; reads go on if the log cannot be written."""
        try:
            await self._services.tasks.journal.post(record).get()
        except AuditUnavailable:
            if CARD_TOOLS[record["tool"]].risk_level:
                raise
        return {"ok": True}

    def _reset_halt(self, request: Request) -> None:
        """Execute halt.reset. Raises PermissionDenied. The runtime executes halt and halt.status."""
        assert self._nursery is not None
        params = request.params
        assert isinstance(params, HaltReset)
        self._grant.require("reset_halt")
        self._nursery.start_soon(self._answer, request, partial(self._reset, request.halts, params.holds))

    async def _reset(self, asked: int, holds: frozenset[int] | None) -> dict[str, Any]:
        await self._services.halt.reset(self.principal, asked, holds=holds, session_id=self.session_id)
        return self.halt_status()

    def halt_status(self) -> dict[str, Any]:
        """Return the halt as this session may see it, and count the request as a sign of life."""
        self._idle_timer.heard_at = self._clock()
        if self._services.halt.flag.halted:
            self.taint("halt.status")
        return halt_status(self._services.halt, self.principal, self._grant.rights)

    def _task_ended(self, task: TaskActor) -> None:
        if task.log.was_followed:
            self._idle_timer.followed_at = self._clock()
        self._task_registry.ended(task)
        # `_wind_up` waits in the mailbox for its tasks to end.
        if self._winding_up:
            self.post(TIMER_FIRED)

    def _check_idle(self, *, again: bool = True) -> None:
        """Close a session that has been silent for too long; otherwise ask for a timer at the next deadline."""
        followed = self._subscribers.listening or (self._observing is not None and self._observing.listening)
        self.reason = self._idle_timer.too_long(trio.current_time(), followed=followed)
        if self.reason is None and again:
            # One timer at a time: it is asked for again each time it has fired, and requests do not move it.
            self._services.wake_at(self.session_id, self._idle_timer.until)

    # --- the end ------------------------------------------------------------------------------------------------

    async def _wind_up(self) -> None:
        """Cancel the tasks, wait for them, make outputs safe, record the end, answer session.close.

        Tasks and outputs together take no longer than `close_grace`, whatever the buses are doing.
        """
        self._winding_up = True
        until = trio.current_time() + self._services.limits.close_grace
        for scope in self._waits:
            scope.cancel()
        for task in self._task_registry.all_live():
            task.cancel("shutting down" if self.reason == "shutting down" else "session closed")
        # Tasks whose transactions have not returned by then are counted as `yielding` in the record and the answer.
        with trio.move_on_at(until):
            while self._task_registry.all_live():
                # The mailbox brings both: requests that come too late, and the notice that a task has ended.
                for message in await self._inbox.batch():
                    refuse(message, SessionInvalid())
        yielding = len(self._task_registry.all_live())
        # After the tasks: one that has not ended could drive an output again.
        safe = await self._make_safe(until)
        # Before the record is written: from here on a bus that makes an output safe records that itself.
        self.end_recorded = True
        # A session that began while the log could not be written has only read, unless it has driven outputs.
        minor = self._unrecorded and not safe
        await self._record(
            "session.close", minor=minor, reason=self.reason, yielding=yielding or None, safe=safe or None
        )
        # Taken out first, so that the `finally` of `run` answers none of them twice.
        closers, self._closers = self._closers, []
        for request in closers:
            request.result({"ok": True, "yielding": yielding} if yielding else {"ok": True})

    async def _make_safe(self, until: float) -> list[Any]:
        """Bring every output that this session drove to its safe state; return the reports, for the audit log.

        Once the end is on record, the buses record the outcome.
        """
        buses = self._services.checks.buses.values()
        # A client asks for a heartbeat if any end of the session, also one in good order, must stop its outputs.
        hands_over = self.reason == CLOSED and self._opening.heartbeat_ms is None
        return await make_safe(buses, self.session_id, until, unattended=self.end_recorded, hands_over=hands_over)

    async def _record(self, event: str, *, minor: bool, **members: Any) -> bool:
        """Write a record about the session; return False if that fails, after which reads are still served."""
        record: Mapping[str, Any] = {
            "event": event,
            "session_id": self.session_id,
            "principal": self.principal,
            **{name: value for name, value in members.items() if value is not None},
        }
        try:
            await self._services.tasks.journal.post(record, minor=minor).get()
        except AuditUnavailable:
            return False
        return True


# --- the idle timer


class IdleTimer:
    """The deadlines of a silent session: the deadman (`heartbeat_ms`; None: no deadman) and the idle time-to-live.

    The deadman counts requests only. The idle time-to-live also counts from the end of the last subscription. A running
    task alone does not keep a session open. Times are Trio's, in seconds. It computes; `runtime.Timers` wakes the
    session.
    """

    __slots__ = ("_heartbeat_ms", "_ttl", "followed_at", "heard_at", "opened_at", "until")

    def __init__(self, ttl: float, heartbeat_ms: float | None, now: float) -> None:
        self._ttl = ttl
        self._heartbeat_ms = heartbeat_ms
        self.opened_at = self.heard_at = self.followed_at = now
        """The time of the last request, and the last time at which a subscriber was known."""
        self.until = now
        """The time of the next check, set by `too_long`."""

    @property
    def unbroken(self) -> bool:
        """True if no request has come since the session was opened."""
        return self.heard_at == self.opened_at

    def too_long(self, now: float, *, followed: bool) -> str | None:
        """Return the reason why the session must be closed, or None. `followed`: there is a subscriber now."""
        # `due` is the deadman's deadline; without a deadman only `idle_at` counts.
        heartbeat = self._heartbeat_ms
        due = self.heard_at + (self._ttl if heartbeat is None else heartbeat / 1000)
        # Subscriptions do not count here: a client that only listens cannot show that it would still act.
        if heartbeat is not None and now >= due:
            return f"no heartbeat within {heartbeat} ms"
        if followed:
            self.followed_at = now
        idle_at = max(self.heard_at, self.followed_at) + self._ttl
        if now >= idle_at:
            return "idle"
        self.until = idle_at if heartbeat is None else min(due, idle_at)
        return None


# --- subscriptions


class Subscribers:
    """The subscriptions to a session's tasks (draft §8).

    Owns the list of followers of the whole session, future tasks included. A task's event log owns its own list of
    readers. The follower decides when events are sent.
    """

    __slots__ = ("_account", "_task_registry", "followers")

    def __init__(self, task_registry: TaskRegistry, account: Account) -> None:
        self._account = account
        self._task_registry = task_registry
        self.followers: list[EventSink] = []
        """The followers of the whole session."""

    @property
    def listening(self) -> bool:
        """True while a connected follower follows the session or a live task of it."""
        return any(not follower.gone for follower in self.followers) or any(
            task.log.followed for task in self._task_registry.all_live()
        )

    def had(self, follower: EventSink, followed: Collection[History]) -> bool:
        """Return True if a follower that has gone, with these histories, followed the session or a task of it."""
        return any(other is follower for other in self.followers) or any(
            log in followed for log in self._task_registry.logs()
        )

    def follow(self, log: EventLog) -> None:
        """Let all followers of the session follow a new task."""
        for follower in self.followers:
            if not follower.gone:
                follower.follow(log, None)

    def forget(self, follower: EventSink) -> None:
        """Remove a follower of the whole session."""
        self.followers = [other for other in self.followers if other is not follower]

    def subscribe(self, request: Request, params: EventsSubscribe) -> None:
        """Answer, then send the history and what follows. Raises TaskNotFound, PermissionDenied, QueueFull."""
        follower = request.follower
        if follower is None:
            raise PermissionDenied("this carrier takes no notifications")
        if params.task_id is not None:
            log = self._task_registry.log_of(params.task_id)
            # Before the answer, after which nothing may fail. The answer before the events: see `send_queue`, Order.
            self._account.require(FEED_BYTES)
            request.result({"ok": True, "task_id": params.task_id, "last_seq": log.last_seq})
            follower.follow(log, params.from_seq)
            return
        logs = list(self._task_registry.logs())
        self._account.require(FEED_BYTES * (1 + len(logs)))
        request.result({"ok": True})
        # Followers that have gone leave the list here too: their notice (`Disconnected`) may still be in the mailbox.
        self.followers = [other for other in self.followers if other is not follower and not other.gone]
        self.followers.append(follower)
        for log in logs:
            follower.follow(log, None)

    def unsubscribe(self, request: Request, params: EventsUnsubscribe) -> None:
        """Send no more events, then answer. Raises TaskNotFound."""
        follower = request.follower
        if follower is not None:
            if params.task_id is not None:
                follower.unfollow(self._task_registry.log_of(params.task_id))
            else:
                self.forget(follower)
                for log in self._task_registry.logs():
                    follower.unfollow(log)
        request.result({"ok": True})
