"""The job server: accepts whole jobs over any carrier, and answers questions about them (HCP; decision 0076).

It reads each message, finds its principal and policy, and answers every message exactly once. A task_submit gets an
actor of its own (`submission`), which lives on as the job. So no message waits for another, and a job outlives the
connection that submitted it. The server owns the table of running jobs; the job store owns everything that survives a
restart.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import orjson
import trio
from attrs import frozen

from hearth.actors.approval import Decision
from hearth.actors.bridges.hcp.artifacts import ArtifactStore, NoSuchArtifact, StoreError
from hearth.actors.bridges.hcp.finish import recover
from hearth.actors.bridges.hcp.job import JobTable, StopRequest
from hearth.actors.bridges.hcp.services import Services, record
from hearth.actors.bridges.hcp.store import JobStore, JobStoreError
from hearth.actors.bridges.hcp.store.queries import parse_uri
from hearth.actors.bridges.hcp.submission import Submission
from hearth.actors.supervisor import contain
from hearth.audit.record import digest as digest_of
from hearth.errors import InternalError, InvalidParams, PermissionDenied, RpcError, SessionInvalid, ShuttingDown
from hearth.hcp.codec import TYPES, dump, message as message_of, message_id_of, read_message
from hearth.hcp.messages import Abort, MessageError, Rejection, TaskSubmit, write_instant
from hearth.hcp.rejections import (
    crashed,
    no_memory,
    no_policy,
    not_for_callers,
    reused,
    session_ended,
    shutting_down,
    unknown_session,
    wrong_token,
)
from hearth.hcp.safety import allowance, may_submit
from hearth.hcp.token import TokenError
from hearth.policy.memory import JOB_BYTES
from hearth.policy.rules import Buckets, Rate, too_often
from hearth.protocol.framing import parsed_bytes
from hearth.protocol.hcp_methods import (
    HcpArtifact,
    HcpAttach,
    HcpCapabilities,
    HcpDecide,
    HcpPending,
    HcpSessions,
    HcpWithdraw,
)
from hearth.shown import question_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from hearth.actors.approval import Question
    from hearth.actors.bridges.hcp.store.queries import SessionRow
    from hearth.actors.messages import HcpRequest, MessageSink, Request
    from hearth.actors.runtime import Runtime, RuntimeParts
    from hearth.actors.service import OpenSession
    from hearth.hcp.capability import Capability
    from hearth.hcp.messages import Message, ReasonCode
    from hearth.hcp.safety import Allowance
    from hearth.policy.principal import Principal

# --- What serves jobs: the job store, the artifact store and the job server -----------------------------------------
#
# This module's imports are slow. `lazy` imports it only when there is a job.


@frozen(eq=False)
class OpenStorage:
    """The open files that keep jobs."""

    job_store: JobStore
    store: ArtifactStore
    notes: tuple[str, ...]
    """Notes for the operator, one line each."""


def open_storage(parts: RuntimeParts, directory: Path, now: float) -> OpenStorage:
    """Lock and repair the last run's job files, or start empty ones. Blocking. `now` in epoch seconds.

    Raises ConfigError.
    """
    durability, jobs = parts.journal.settings.durability, parts.extras["hcp"]
    job_store = JobStore(directory, durability=durability, clock=parts.clock)
    store = ArtifactStore(
        directory,
        job_store,
        most_each=jobs.settings.max_artifact_bytes,
        most_all=jobs.settings.max_artifacts_bytes,
        durability=durability,
    )
    return OpenStorage(job_store, store, (*job_store.open(now), *store.open()))


async def serve_jobs(
    storage: OpenStorage,
    runtime: Runtime,
    open_session: OpenSession,
    opened: Callable[[HcpJobServer], None],
    over: trio.Event,
) -> None:
    """Run a job server until `over` is set; call `opened` with it once every session of the last run has an end."""
    parts, job_store, jobs = runtime.parts, storage.job_store, runtime.extras["hcp"]
    services = Services(
        capabilities=jobs.capabilities,
        settings=jobs.settings,
        model=jobs.model,
        policy=parts.policy,
        registry=parts.registry,
        journal=parts.journal,
        job_store=job_store,
        store=storage.store,
        open_session=open_session,
        line_name=parts.board.line_name,
        port_name=parts.board.port_name,
        clock=parts.clock,
        stamp=runtime.stamp,
        idle_ttl_s=parts.limits.idle_ttl_s,
        approvals=runtime.approvals,
        memory=runtime.memory,
        refusals=runtime.refusals,
        halt_flag=runtime.halt.flag,
        rate=Rate.parse(parts.limits.session_rate),
    )
    try:
        async with trio.open_nursery() as outer:
            # The store outlives the jobs, because it takes their last messages.
            await outer.start(job_store.run)
            await recover(services)
            async with trio.open_nursery() as running:
                job_server = HcpJobServer(services, running)
                running.start_soon(job_server.expire)
                opened(job_server)
                await over.wait()
                # Jobs that have not ended by now are torn down; the next start ends their sessions.
                running.cancel_scope.cancel()
                # Not after the last job has ended: on a disk that hangs, a job could wait for the store without end.
                await job_store.aclose()
    finally:
        await job_store.aclose()


NOT_FOR_CALLERS: Final = frozenset(TYPES) - {"task_submit", "abort"}
"""Types that only a callee sends; the server refuses them without reading their payloads."""
END_TIMEOUT: Final = 2.0
"""Seconds that jobs get to write their end, once their HACP sessions have been closed."""
EXPIRY_S: Final = 60.0
"""Seconds between two retention runs."""

log = logging.getLogger("hearth.hcp")


class HcpJobServer:
    """Implements `hearth.actors.messages.JobServer`. Its jobs run in `nursery`."""

    def __init__(self, services: Services, nursery: trio.Nursery) -> None:
        self.services = services
        self.jobs = JobTable(services)
        self._nursery = nursery
        self._methods = Methods(self.jobs, self.withdraw)
        self._underway: dict[tuple[str, str], Submission] = {}
        self._one_over = trio.Event()

    # --- messages -----------------------------------------------------------------------------------------------

    def receive(self, principal: Principal, request: HcpRequest) -> None:
        """See messages.JobServer. The policy comes first: without a matching entry the document is not read."""
        document = request.document
        allowed = allowance(self.services.policy, principal, self.services.registry)
        if allowed is None:
            # The refusal is not stored either: a principal without a policy entry must not be able to fill the job
            # store.
            self._refuse(principal, request, no_policy(), message_id_of(document))
            return
        kind = document.get("type")
        if type(kind) is str and kind in NOT_FOR_CALLERS:
            self._refuse(principal, request, not_for_callers(kind), message_id_of(document))
            return
        try:
            message = read_message(document)
        except MessageError as error:
            reason = f"{error.pointer}: {error.reason}" if error.pointer else error.reason
            rejection = Rejection(cast("ReasonCode", error.code), reason, suggestion=error.suggestion)
            self._refuse(principal, request, rejection, error.message_id)
            return
        if isinstance(message.payload, TaskSubmit):
            self._submit(principal, allowed, request, message, message.payload)
        else:
            assert isinstance(message.payload, Abort)
            self._start(
                f"HCP abort of {principal.key}",
                partial(self._abort, principal, request, message, message.payload),
                lambda error: self._refuse(principal, request, crashed(error), message.message_id),
            )

    def _submit(
        self, principal: Principal, allowed: Allowance, request: HcpRequest, message: Message, submit: TaskSubmit
    ) -> None:
        if self.jobs.closing:
            self._refuse(principal, request, shutting_down(), message.message_id)
            return
        # A digest of sorted bytes, not of the canonical form: that would hold the event loop for too long.
        payload = orjson.dumps(request.document["payload"], option=orjson.OPT_SORT_KEYS)
        digest = digest_of(payload)
        key = principal.key, message.message_id
        # The same message joins a submission under way; the job store knows only messages that were answered.
        submission = self._underway.get(key)
        if submission is None:
            account = self.services.memory.for_principal(principal.key)
            weight = JOB_BYTES + parsed_bytes(payload)
            if not account.fits(weight):
                self._refuse(principal, request, no_memory(account.refusal(weight)), message.message_id)
                return
            account.add(weight)
            submission = Submission(
                self.jobs,
                principal,
                allowed,
                message.message_id,
                submit,
                digest,
                account,
                weight,
                self.services.halt_flag.count,
                [request],
            )
            self._underway[key] = submission
            self._nursery.start_soon(self._attend, submission)
        elif submission.digest != digest:
            self._refuse(principal, request, reused(message.message_id), message.message_id)
        elif submission.session_id is not None and (job := self.jobs.running.get(submission.session_id)) is not None:
            request.follow(job.events.message_log, 1)
        else:
            submission.requests.append(request)

    async def _attend(self, submission: Submission) -> None:
        try:
            await submission.run()
        finally:
            # From here on the job store answers a repeated message.
            del self._underway[submission.principal.key, submission.message_id]
            submission.memory.release(submission.weight)
            self._one_over.set()

    async def _abort(self, principal: Principal, request: HcpRequest, message: Message, abort: Abort) -> None:
        session_id = message.session_id or ""
        job = self.jobs.running.get(session_id)
        try:
            row = job.row if job is not None else await self._row(session_id)
            if row is None or row.principal != principal.key:
                raise unknown_session(session_id)
            if job is None:
                raise session_ended(session_id, row.state)
            if abort.session_token is not None:
                job.check(abort.session_token)
        except TokenError as error:
            self._refuse(principal, request, wrong_token(str(error)), message.message_id)
            return
        except Rejection as rejection:
            self._refuse(principal, request, rejection, message.message_id)
            return
        # The session's messages report the rest.
        request.done()
        if self.services.refusals.admit("hcp.abort", principal.key, None):
            reason = (abort.reason or "")[:256] or None
            self.services.audit("hcp.abort", hcp_session=session_id, principal=principal.key, reason=reason)
        until = trio.current_time() + self.services.settings.abort_timeout_s
        job.stop(StopRequest(message=abort.reason or "aborted by the caller", until=until))

    async def _row(self, session_id: str) -> SessionRow | None:
        try:
            return await self.services.job_store.session(session_id)
        except JobStoreError as error:
            raise Rejection("resource_unavailable", str(error), suggestion="try again later") from None

    def _refuse(self, principal: Principal, request: HcpRequest, rejection: Rejection, message_id: str | None) -> None:
        """Refuse a message that is not a task_submit, or one that does not reach the safety gate."""
        if self.services.refusals.admit("hcp.reject", principal.key, rejection.reason_code):
            self.services.audit(
                "hcp.reject",
                principal=principal.key,
                message_id=message_id,
                reason_code=rejection.reason_code,
                reason=rejection.message[:256],
            )
        payload = rejection.payload(message_id)
        request.answer(dump(message_of(payload, session_id=None, now=self.services.clock())))

    # --- methods ------------------------------------------------------------------------------------------------

    def call(self, principal: Principal, request: Request, sink: MessageSink) -> None:
        """See messages.JobServer."""
        if self.jobs.closing:
            raise ShuttingDown
        self._start(
            f"{type(request.params).__name__} of {principal.key}",
            partial(self._methods.answer, principal, request, sink),
            lambda _error: request.error(InternalError()),
        )

    def halt(self) -> None:
        """See messages.JobServer. A submission that has not been accepted is refused (`Submission.halts`)."""
        reason = self.services.halt_flag.reason
        for submission in self._underway.values():
            submission.halt()
        for job in list(self.jobs.running.values()):
            job.halt(reason)

    def withdraw(self, principal: Principal, message_id: str, reason: str | None) -> bool:
        """Withdraw a principal's task_submit that has not been accepted; False if none is under way."""
        submission = self._underway.get((principal.key, message_id))
        return submission is not None and submission.withdraw(reason)

    # --- life ---------------------------------------------------------------------------------------------------

    def _start(
        self, name: str, actor: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]
    ) -> None:
        self._nursery.start_soon(contain, name, actor, on_crash)

    async def end(self, until: float) -> None:
        """Accept no more jobs, stop the running ones, and wait for their ends until this time (Trio's clock).

        A second call waits `END_TIMEOUT` seconds at most: by then no job waits for a step any more.
        """
        if self.jobs.closing:
            until = min(until, trio.current_time() + END_TIMEOUT)
        self.jobs.closing = True
        self.services.approvals.close()
        for job in list(self.jobs.running.values()):
            job.stop(StopRequest(message="the daemon is ending", until=until, aborts=False))
        with trio.move_on_at(until):
            while self._underway:
                self._one_over = trio.Event()
                await self._one_over.wait()
        if self.jobs.running:
            log.warning("%d HCP jobs have not ended; the next start ends them", len(self.jobs.running))

    async def expire(self) -> None:
        """Delete, once every `EXPIRY_S` seconds, sessions and artifacts past their retention."""
        while True:
            # Not at once: a start has more urgent work.
            await trio.sleep(EXPIRY_S)
            try:
                for session_id in await self.services.job_store.expire(
                    self.services.clock(), self.services.settings.retention_s
                ):
                    await self.services.store.forget(session_id)
            except (JobStoreError, StoreError) as error:
                log.warning("expired HCP sessions cannot be deleted: %s", error)


# --- the hcp.* methods ------------------------------------------------------------------------------------------------
#
# Questions about whole jobs, beside HCP's own messages (hearth.protocol.methods). Each is answered from the job table
# and the job store, within the caller's rights: a session and its messages belong to its principal; an artifact of
# class T1 or T2 can also be read by those that may use the capability that made it.

MOST_SESSIONS: Final = 200
"""Sessions in one answer, at most: the newest."""
SHARED: Final = frozenset(("T1", "T2"))
"""Classes whose artifacts can be read by every principal that may use the capability; higher classes are private."""


class Methods:
    """The hcp.* methods over one job table. `withdraw` takes back a task_submit that has not been accepted."""

    def __init__(self, jobs: JobTable, withdraw: Callable[[Principal, str, str | None], bool]) -> None:
        self._jobs = jobs
        self._withdraw_submission = withdraw
        self._reads = Buckets(jobs.services.rate)

    async def answer(self, principal: Principal, request: Request, sink: MessageSink) -> None:
        """Run one method call and answer it."""
        params = request.params
        try:
            allowed = self._allowed(principal)
            if isinstance(params, HcpCapabilities):
                request.result(self._capabilities(allowed))
            elif isinstance(params, HcpSessions):
                request.result(await self._sessions(principal))
            elif isinstance(params, HcpAttach):
                await self._attach(principal, request, params, sink)
            elif isinstance(params, HcpArtifact):
                request.result(await self._artifact(principal, allowed, params))
            elif isinstance(params, HcpPending):
                request.result(self._pending(principal, allowed))
            elif isinstance(params, HcpDecide):
                request.result(self._decide(principal, allowed, params))
            elif isinstance(params, HcpWithdraw):
                request.result(self._withdraw(principal, params))
        except RpcError as error:
            request.error(error)
        except (JobStoreError, StoreError) as error:
            request.error(InternalError(data={"reason": str(error)}))

    def _allowed(self, principal: Principal) -> Allowance:
        services = self._jobs.services
        allowed = allowance(services.policy, principal, services.registry)
        if allowed is None:
            raise PermissionDenied(data={"reason": "no policy entry matches this principal"})
        return allowed

    def _capabilities(self, allowed: Allowance) -> dict[str, Any]:
        offered = (
            capability for capability in self._jobs.services.capabilities.values() if may_submit(capability, allowed)
        )
        return {"capabilities": [_declared(capability) for capability in offered]}

    # --- sessions -----------------------------------------------------------------------------------------------

    async def _sessions(self, principal: Principal) -> dict[str, Any]:
        rows = await self._jobs.services.job_store.sessions(principal.key, MOST_SESSIONS)
        questions = reversed(self._questions())
        waiting = [one for one in questions if one.session_id is None and one.principal == principal.key]
        return {"sessions": [*map(_waiting_entry, waiting), *map(entry_of, rows)]}

    async def _attach(self, principal: Principal, request: Request, params: HcpAttach, sink: MessageSink) -> None:
        row = await self._jobs.services.job_store.session(params.session_id)
        owned = row is not None and row.principal == principal.key
        message_log = await self._jobs.messages_of(params.session_id, principal) if owned else None
        if row is None or message_log is None:
            raise SessionInvalid(data={"reason": "there is no such session of yours"})
        request.result(entry_of(row))
        sink.follow(message_log, message_log.index_of(params.from_sequence) if params.from_sequence else 1)

    # --- artifacts ----------------------------------------------------------------------------------------------

    async def _artifact(self, principal: Principal, allowed: Allowance, params: HcpArtifact) -> dict[str, Any]:
        services = self._jobs.services
        try:
            session_id = parse_uri(params.uri).session_id
            row = await services.job_store.session(session_id)
            if row is None or not self._may_read(principal, allowed, row):
                raise _no_artifact()
            on_record = row.data_classification != "T1"
            if on_record and (wait := self._reads.take(principal.key, trio.current_time())):
                raise too_often("reads of artifacts", services.rate, wait)
            found = await services.store.read(params.uri, params.offset, params.length)
        except NoSuchArtifact:
            raise _no_artifact() from None
        except ValueError as error:
            raise InvalidParams(data={"path": "/uri", "reason": str(error)}) from None
        artifact = found.artifact
        if on_record:
            read = {
                "hcp_session": session_id,
                "principal": principal.key,
                "uri": artifact.uri,
                "offset": found.offset,
                "size": len(found.data),
                "data_classification": row.data_classification,
            }
            # Reading discloses data: without an audit record it is refused.
            await services.journal.post(record("hcp.artifact.read", read)).get()
        return {
            "name": artifact.name,
            "type": artifact.type,
            "size_bytes": artifact.size_bytes,
            "checksum": artifact.checksum,
            "offset": found.offset,
            "data": b64encode(found.data).decode(),
        }

    def _may_read(self, principal: Principal, allowed: Allowance, row: SessionRow) -> bool:
        if row.principal == principal.key:
            return True
        return row.data_classification in SHARED and allowed.rules.allows(row.capability)

    def _withdraw(self, principal: Principal, params: HcpWithdraw) -> dict[str, Any]:
        if not self._withdraw_submission(principal, params.message_id, params.reason):
            reason = "no task_submit of yours with this message_id waits; one that was accepted is ended by abort"
            raise InvalidParams(data={"path": "/message_id", "reason": reason})
        return {"message_id": params.message_id, "state": "REJECTED"}

    # --- approvals ----------------------------------------------------------------------------------------------

    def _pending(self, principal: Principal, allowed: Allowance) -> dict[str, Any]:
        _check_approver(allowed)
        may_decide = [one for one in self._questions() if one.rule.right in allowed.rights]
        return {"approvals": [_question_entry(one, principal.key) for one in may_decide]}

    def _questions(self) -> list[Question]:
        return [question for question in self._jobs.services.approvals if question.kind == "job"]

    def _decide(self, principal: Principal, allowed: Allowance, params: HcpDecide) -> dict[str, Any]:
        _check_approver(allowed)
        approvals = self._jobs.services.approvals
        question = approvals.find(params.approval_id, "job")
        if question is None or question.rule.right not in allowed.rights:
            why = f"no such approval is open: {approvals.gone(params.approval_id)}"
            raise InvalidParams(data={"path": "/approval_id", "reason": why})
        if not params.approve and principal.key in question.approved_by:
            approvals.end_approval(question, principal.key)
            about = {"principal": question.principal, "by": principal.key, "reason": params.reason}
            self._jobs.services.audit("hcp.deny", message_id=question.about["message_id"], taken_back=True, **about)
            return {"approval_id": params.approval_id, "approved": False, "taken_back": True}
        approvals.check(question, principal.key, approves=params.approve)
        approvals.decide(question, Decision(params.approve, principal, params.reason))
        return {"approval_id": params.approval_id, "approved": params.approve}


def entry_of(row: SessionRow) -> dict[str, Any]:
    """Return a session as hcp.sessions and hcp.attach show it."""
    entry: dict[str, Any] = {
        "session_id": row.session_id,
        "message_id": row.message_id,
        "capability": row.capability,
        "capability_version": row.version,
        "caller_id": row.caller_id,
        "intent": row.intent,
        "state": row.state,
        "risk_level": row.risk_level,
        "data_classification": row.data_classification,
        "created_at": write_instant(row.created_at),
        "updated_at": write_instant(row.updated_at),
        "last_sequence": row.sequence,
        "checkpoints": row.checkpoints,
    }
    if row.resumed_from is not None:
        entry["resumed_from"] = row.resumed_from
    return entry


def _waiting_entry(question: Question) -> dict[str, Any]:
    """Return the entry of a job without a session, with the same members as one that has a session."""
    about, since = question.about, write_instant(question.asked_at)
    names = ("capability", "capability_version", "caller_id", "intent", "risk_level", "data_classification")
    return {
        "session_id": None,
        "message_id": about["message_id"],
        "state": "PENDING",
        **{name: about[name] for name in names},
        "created_at": since,
        "updated_at": since,
        "last_sequence": 0,
        "checkpoints": 0,
        "waits_for": "approval",
        "approval_id": question.question_id,
        "expires_at": write_instant(question.expires_at),
    }


def _question_entry(question: Question, by: str) -> dict[str, Any]:
    """Return the entry of an open question; `own` marks one that `by` asked."""
    return {
        "approval_id": question.question_id,
        "principal": question.principal,
        **question.about,
        "submitted_at": write_instant(question.asked_at),
        "expires_at": write_instant(question.expires_at),
        "own": question.principal == by,
        "shown": question_lines(question.about),
    }


def _declared(capability: Capability) -> dict[str, Any]:
    envelope = capability.envelope.to_wire()
    return {**capability.declaration(), **({"safety_envelope": envelope} if envelope else {})}


def _check_approver(allowed: Allowance) -> None:
    if "approve" not in allowed.rights:
        reason = f'policy {allowed.policy!r} does not allow approving jobs: its rights have no "approve"'
        raise PermissionDenied(data={"reason": reason, "policy": allowed.policy})


def _no_artifact() -> InvalidParams:
    return InvalidParams(data={"path": "/uri", "reason": "there is no such artifact, or it is not for you"})
