"""The hcp.* methods: questions about whole jobs, beside HCP's own messages (hearth.protocol.methods).

Each is answered from the job table and the job store, within the caller's rights: a session and its messages belong to
its principal; an artifact of class T1 or T2 can also be read by those that may use the capability that made it.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

import trio

from hearth.actors.bridges.hcp.artifacts import NoSuchArtifact, StoreError
from hearth.actors.bridges.hcp.services import record
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.actors.bridges.hcp.store.queries import parse_uri
from hearth.errors import InternalError, InvalidParams, PermissionDenied, RpcError, SessionInvalid
from hearth.hcp.messages import write_instant
from hearth.hcp.safety import allowance, may_submit
from hearth.policy.rules import Buckets, too_often
from hearth.protocol.methods import (
    HcpArtifact,
    HcpAttach,
    HcpCapabilities,
    HcpDecide,
    HcpPending,
    HcpSessions,
    HcpWithdraw,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.actors.bridges.hcp.job_table import JobTable
    from hearth.actors.bridges.hcp.store.queries import SessionRow
    from hearth.actors.messages import MessageSink, Request
    from hearth.hcp.capability import Capability
    from hearth.hcp.safety import Allowance
    from hearth.policy.principal import Principal

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

    async def answer(self, principal: Principal, ask: Request, reader: MessageSink) -> None:
        """Run one method call and answer it."""
        params = ask.params
        try:
            allowed = self._allowed(principal)
            if isinstance(params, HcpCapabilities):
                ask.result(self._capabilities(allowed))
            elif isinstance(params, HcpSessions):
                ask.result(await self._sessions(principal))
            elif isinstance(params, HcpAttach):
                await self._attach(principal, ask, params, reader)
            elif isinstance(params, HcpArtifact):
                ask.result(await self._artifact(principal, allowed, params))
            elif isinstance(params, HcpPending):
                ask.result(self._pending(principal, allowed))
            elif isinstance(params, HcpDecide):
                ask.result(self._decide(principal, allowed, params))
            elif isinstance(params, HcpWithdraw):
                ask.result(self._withdraw(principal, params))
        except RpcError as error:
            ask.error(error)
        except (JobStoreError, StoreError) as error:
            ask.error(InternalError(data={"reason": str(error)}))

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
        waiting = self._jobs.approvals.waiting(principal.key)
        return {"sessions": [*waiting, *(entry_of(row) for row in rows)]}

    async def _attach(self, principal: Principal, ask: Request, params: HcpAttach, reader: MessageSink) -> None:
        row = await self._jobs.services.job_store.session(params.session_id)
        owned = row is not None and row.principal == principal.key
        message_log = await self._jobs.messages_of(params.session_id, principal) if owned else None
        if row is None or message_log is None:
            raise SessionInvalid(data={"reason": "there is no such session of yours"})
        ask.result(entry_of(row))
        reader.follow(message_log, message_log.index_of(params.from_sequence) if params.from_sequence else 1)

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
        return {"approvals": self._jobs.approvals.pending(principal.key)}

    def _decide(self, principal: Principal, allowed: Allowance, params: HcpDecide) -> dict[str, Any]:
        _check_approver(allowed)
        self._jobs.approvals.decide(params.approval_id, approved=params.approve, by=principal.key, reason=params.reason)
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


def _declared(capability: Capability) -> dict[str, Any]:
    envelope = capability.envelope.to_wire()
    return {**capability.declaration(), **({"safety_envelope": envelope} if envelope else {})}


def _check_approver(allowed: Allowance) -> None:
    if not allowed.rules.approve:
        reason = f"policy {allowed.policy!r} does not allow approving jobs: hcp.approve = false"
        raise PermissionDenied(data={"reason": reason, "policy": allowed.policy})


def _no_artifact() -> InvalidParams:
    return InvalidParams(data={"path": "/uri", "reason": "there is no such artifact, or it is not for you"})
