"""One task_submit: from the message to an accepted job, or to the rejection with its reason (L3, Approval Flow).

The steps, in order: look up an earlier answer to this message; the safety gate; the checkpoint to resume from; the job
quota; a person's approval; the job's HACP session; the audit record; the answer. The same message, sent again in that
time, gets the same answer. A rejection is stored, unless its reason may not hold later (`PASSING`) and it came over a
connection: over a broker every rejection is final.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field

from hearth.actors.approval import Question
from hearth.actors.bridges.hcp.event_stream import EventWriter, MessageLog
from hearth.actors.bridges.hcp.finish import JobFinisher, Resumption, resumption
from hearth.actors.bridges.hcp.job import RunningJob, StopRequest, about_job
from hearth.actors.bridges.hcp.services import record
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.actors.bridges.hcp.store.queries import SessionRow
from hearth.actors.supervisor import contain
from hearth.audit.record import args_hash
from hearth.errors import AuditUnavailable, RpcError
from hearth.hcp.codec import dump, message
from hearth.hcp.messages import AcceptedConstraints, Rejection, TaskAccepted, new_id, write_duration
from hearth.hcp.rejections import crashed, no_hacp_session, reused, shutting_down, withdrawn
from hearth.hcp.safety import assess
from hearth.hcp.token import issue
from hearth.shown import prose

if TYPE_CHECKING:
    from hearth.actors.bridges.hcp.job import JobTable
    from hearth.actors.messages import HcpRequest
    from hearth.api import Session
    from hearth.hcp.messages import TaskSubmit
    from hearth.hcp.safety import Allowance, Approval
    from hearth.policy.memory import Account
    from hearth.policy.principal import Principal
    from hearth.policy.rules import ApprovalRule

PASSING: Final = frozenset(("resource_unavailable", "shutting_down", "internal_error"))
"""Reasons that may not hold later: on a connection such a rejection is not stored, so the message can be sent again."""


MOST_INTENT: Final = 1000
"""Characters of an intent that are stored, for lists of jobs."""
_LOST: Final = "a principal that had approved it may no longer do so"


@define(eq=False)
class Submission:
    """A task_submit, and every request that has sent it."""

    jobs: JobTable
    principal: Principal
    allowed: Allowance
    message_id: str
    submit: TaskSubmit
    digest: str
    """The digest of its payload."""
    memory: Account
    """The memory account of the principal."""
    weight: int
    """Bytes charged for it and its job until the job has ended."""
    halts: int
    """The number of halts when it came: a job that may act starts only if none has come since."""
    requests: list[HcpRequest] = field(factory=list)
    """The requests that have no answer yet."""
    session_id: str | None = None
    """The HCP session's id, once the job is accepted."""
    _waiting: trio.CancelScope = field(factory=trio.CancelScope)
    """Cancelled by `withdraw` while the submission waits for an approval."""
    _taken_back: bool = False
    _why: str | None = None
    _starting: bool = False
    """True once it can no longer be withdrawn: an acceptance or a refusal follows."""
    _claimed: bool = False
    _question: Question | None = None
    """The question whose approvals let the job start."""
    _on_record: bool = False
    """True once the audit log has its hcp.submit record.

    A submission refused at the gate gets one only as often as the `refusals` limit admits.
    """

    async def run(self) -> None:
        """Answer the submission; if it is accepted, run the job to its end. A bug here ends no other job."""
        try:
            await contain(f"HCP task_submit of {self.principal.key}", self._run, self._crashed)
        finally:
            if self.requests:
                self._answer(self._refusal(shutting_down()))

    def withdraw(self, why: str | None) -> bool:
        """Withdraw the submission for its caller; False if it is being accepted already."""
        if self._starting:
            return False
        if not self._taken_back:
            self._taken_back, self._why = True, why
            self._waiting.cancel()
        return True

    def _crashed(self, error: BaseException) -> None:
        self._answer(self._refusal(crashed(error)))

    async def _run(self) -> None:
        services = self.jobs.services
        try:
            if not await self._is_new():
                return
            approval = assess(
                self.submit,
                services.capabilities,
                self.allowed,
                default_classification=services.settings.default_classification,
                line_name=services.line_name,
                port_name=services.port_name,
            )
            self._check_time(approval)
            self._require_not_halted(approval)
            resumed = await resumption(services, self.principal.key, self.submit, approval, self.jobs)
            with nullcontext() if resumed is None else self.jobs.resumes(resumed.row.session_id):
                await self._admit(approval, resumed)
        except Rejection as rejection:
            await self._reject(rejection)
        except JobStoreError as error:
            await self._reject(Rejection("resource_unavailable", str(error), suggestion="try again later"))

    def _check_time(self, approval: Approval) -> None:
        """Raise Rejection if the order is too late by now; of one that was sent several times, the latest counts."""
        self.requests[-1].check_time(moves=approval.acts)

    def halt(self) -> None:
        """End its wait for an approval, because the daemon is being halted."""
        if self._question is not None and self._question.acts:
            self._waiting.cancel()

    def _require_not_halted(self, approval: Approval) -> None:
        """Raise Rejection if the job may act, and the daemon is halted or was halted since the submission came."""
        self.jobs.services.require_not_halted(self.halts, acts=approval.acts)

    async def _is_new(self) -> bool:
        """Claim the message; False if it has been answered before: then that answer is sent again."""
        job_store = self.jobs.services.job_store
        claim = await job_store.claim(self.principal.key, self.message_id, self.digest)
        if claim.kind == "conflict":
            raise reused(self.message_id)
        self._claimed = claim.kind == "new"
        if claim.answer is None:
            return True
        message_log = (
            None if claim.session_id is None else await self.jobs.messages_of(claim.session_id, self.principal)
        )
        if message_log is None:
            self._answer(claim.answer)
        else:
            self._follow(message_log)
        return False

    async def _admit(self, approval: Approval, resumed: Resumption | None) -> None:
        """Admit the submission under the job quota, have it approved if needed, and start the job."""
        quota = self.jobs.quota
        # The slot is held to the job's end, also while a person is asked.
        with quota.for_principal(self.principal.key):
            quota.check(approval.capability)
            self._audit("hcp.submit", payload_hash=self.digest)
            self._on_record = True
            if approval.rule is not None:
                with self._waiting:
                    await self._have_approved(approval, approval.rule, resumed)
            # `withdraw` may have come after the decision: it counts until `_starting` is set.
            if self._taken_back:
                raise withdrawn(self._why, approval.risk)
            self._require_not_halted(approval)
            self._starting = True
            with quota.for_capability(approval.capability):
                await self._start(approval, resumed)

    async def _have_approved(self, approval: Approval, rule: ApprovalRule, resumed: Resumption | None) -> None:
        capability = approval.capability
        about = {**_about(approval, self.submit, self.message_id), **({} if resumed is None else resumed.shown)}
        question = Question("job", self.principal.key, rule, about, halts=self.halts, acts=approval.acts)
        self._question = question
        decision = await self.jobs.services.ask(question)
        self._audit(
            "hcp.approve" if decision.approved else "hcp.deny",
            by=decision.by,
            approved_by=list(question.approved_by) if rule.persons > 1 else None,
            capability=capability.name,
            reason=decision.reason,
        )
        if not decision.approved:
            why = f": {prose(decision.reason)}" if decision.reason else ""
            raise Rejection("approval_denied", f"a person has not approved it{why}", risk=approval.risk)

    async def _start(self, approval: Approval, resumed: Resumption | None) -> None:
        """Open the job's HACP session, accept, and run the job.

        The job's end is written when that session has closed.
        """
        services = self.jobs.services
        if self.jobs.closing:
            raise shutting_down()
        # Again: a person's approval may have taken long.
        self._check_time(approval)
        self._require_not_halted(approval)
        job: RunningJob | None = None
        try:
            capability = approval.capability
            opening = services.open_session(self.principal, f"hcp:{capability.name}", capability.tools, self.halts)
            async with opening as session:
                job = await self._accept(approval, resumed, session)
                await job.run(session)
        except RpcError as error:
            # Only opening the HACP session raises RpcError here: `job.run` contains its own errors.
            raise no_hacp_session(error) from None
        finally:
            if job is not None:
                await self._finish(job)

    async def _finish(self, job: RunningJob) -> None:
        try:
            # A job without an outcome was torn down because the process must end. The next start writes its end.
            if job.end is not None:
                await JobFinisher(job).run()
        finally:
            del self.jobs.running[job.row.session_id]

    async def _accept(self, approval: Approval, resumed: Resumption | None, session: Session) -> RunningJob:
        """Audit the acceptance, store the session and answer task_accepted. Raises Rejection, JobStoreError."""
        services, submit, capability = self.jobs.services, self.submit, approval.capability
        now = services.clock()
        row = SessionRow(
            session_id=new_id(),
            principal=self.principal.key,
            message_id=self.message_id,
            caller_id=submit.caller_id,
            intent=submit.intent[:MOST_INTENT],
            capability=capability.name,
            version=capability.version,
            inputs_hash=args_hash(approval.inputs),
            published=0 if self.principal.kind == "amqp" else None,
            risk_level=approval.risk,
            data_classification=approval.classification,
            resumable=True,
            created_at=now,
            started_at=now if resumed is None else resumed.row.started_at,
            resumed_from=None if resumed is None else resumed.checkpoint,
        )
        token = issue(
            services.job_store.key,
            session_id=row.session_id,
            now=now,
            max_duration=approval.max_duration,
            risk=approval.risk,
            classification=approval.classification,
            constraints=_approved(approval),
        )
        try:
            # Write-ahead: the acceptance is audited, then stored, and only then answered.
            await services.journal.post(self._accepted(row, session)).get()
        except AuditUnavailable as error:
            cure = "try again when the audit log can be written"
            raise Rejection("resource_unavailable", error.message, suggestion=cure) from None
        # Again: the policy may have been read again since the decision.
        self._require_not_halted(approval)
        if not self._still_approved():
            raise Rejection("approval_denied", _LOST, risk=approval.risk)
        accepted = TaskAccepted(
            session_token=token,
            risk_level=approval.risk,
            data_classification=approval.classification,
            constraints=AcceptedConstraints(max_duration=approval.max_duration, abort_timeout=services.abort_timeout),
            safety_envelope=approval.safety_envelope,
            in_reply_to=self.message_id,
        )
        line = dump(message(accepted, session_id=row.session_id, now=now))
        self.session_id = row.session_id
        recorded = () if resumed is None else resumed.recorded
        await services.job_store.answer(self.principal.key, self.message_id, line, row, outcomes=recorded)
        self._claimed = False
        message_log = MessageLog((line,), metrics=services.journal.metrics, account=self.memory)
        events = EventWriter(row.session_id, services.job_store, message_log, services.clock)
        replayed = () if resumed is None else resumed.steps
        opening = (self.principal, f"hcp:{capability.name}:plan", capability.tools, self.halts)
        planning = partial(services.open_session, *opening, conversation=True)
        shown = {} if resumed is None else resumed.shown
        job = RunningJob(services, approval, submit, row, token, events, planning, self.halts, replayed, shown)
        self.jobs.running[row.session_id] = job
        self._follow(message_log)
        # And while the job store was written: the caller has been told that it is accepted, and so it ends as a job.
        if services.halt_flag.stops(self.halts):
            job.halt(services.halt_flag.reason)
        elif not self._still_approved():
            job.stop(StopRequest(message=_LOST, until=trio.current_time()))
        return job

    def _still_approved(self) -> bool:
        return self._question is None or self.jobs.services.approvals.holds(self._question)

    def _accepted(self, row: SessionRow, session: Session) -> dict[str, Any]:
        members = {
            "hcp_session": row.session_id,
            "session_id": session.session_id,
            "principal": row.principal,
            "policy": self.allowed.policy,
            "message_id": row.message_id,
            "capability": row.capability,
            "version": row.version,
            "risk": row.risk_level,
            "data_classification": row.data_classification,
            "inputs_hash": row.inputs_hash,
            "resumed_from": row.resumed_from,
        }
        return record("hcp.accept", members)

    # --- answers ------------------------------------------------------------------------------------------------

    async def _reject(self, rejection: Rejection) -> None:
        services = self.jobs.services
        if not self._on_record and services.refusals.admit("hcp.reject", self.principal.key, rejection.reason_code):
            self._audit("hcp.submit", payload_hash=self.digest)
            self._on_record = True
        if self._on_record:
            self._audit("hcp.reject", reason_code=rejection.reason_code, reason=rejection.message[:256])
        line = self._refusal(rejection)
        job_store = services.job_store
        if self._claimed:
            self._claimed = False
            try:
                # Over a broker every rejection is final: a copy of the order may still be in the queue, and must not
                # run after the caller was told no.
                if rejection.reason_code in PASSING and self.principal.kind != "amqp":
                    await job_store.release(self.principal.key, self.message_id)
                else:
                    await job_store.answer(self.principal.key, self.message_id, line, None)
            except JobStoreError as error:
                line = self._refusal(Rejection("resource_unavailable", str(error), suggestion="try again later"))
        self._answer(line)

    def _refusal(self, rejection: Rejection) -> bytes:
        payload = rejection.payload(self.message_id)
        return dump(message(payload, session_id=None, now=self.jobs.services.clock()))

    def _answer(self, line: bytes) -> None:
        requests, self.requests = self.requests, []
        for request in requests:
            request.answer(line)

    def _follow(self, message_log: MessageLog) -> None:
        requests, self.requests = self.requests, []
        for request in requests:
            request.follow(message_log, 1)

    def _audit(self, event: str, **members: Any) -> None:
        self.jobs.services.audit(
            event,
            principal=self.principal.key,
            message_id=self.message_id,
            caller_id=self.submit.caller_id,
            **({"capability": self.submit.capability[:100]} | members),
            hcp_session=self.session_id,
        )


def _about(approval: Approval, submit: TaskSubmit, message_id: str) -> dict[str, Any]:
    """Return what a person must know of a job that has passed the gate."""
    capability = approval.capability
    about = {"message_id": message_id, **about_job(approval, submit), "inputs": approval.inputs}
    if capability.safety.hazard_categories:
        about["hazard_categories"] = list(capability.safety.hazard_categories)
    return about


def _approved(approval: Approval) -> dict[str, Any]:
    """Return a token's constraints (L3): the duration, and a hash of the safety envelope, which itself may be long."""
    return {
        "max_duration": write_duration(approval.max_duration),
        "safety_envelope": args_hash(approval.safety_envelope),
    }
