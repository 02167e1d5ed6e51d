"""The services that every job of a job server uses, and the audit records that a job writes.

Values and one-line helpers only. The job server decides; the job acts.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.hcp.messages import Rejection
from hearth.hcp.rejections import shutting_down

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hearth.actors.approval import Approvals, Decision, Question
    from hearth.actors.bridges.hcp.artifacts import ArtifactStore
    from hearth.actors.bridges.hcp.store import JobStore
    from hearth.actors.bus.queue import HaltFlag
    from hearth.actors.journal import Journal
    from hearth.actors.refusals import Refusals
    from hearth.actors.service import OpenSession
    from hearth.config.ask import AskConfig
    from hearth.config.hcp import HcpConfig
    from hearth.hcp.capability import Capability
    from hearth.hcp.inputs import LineName, PortName
    from hearth.policy.memory import MemoryBudget
    from hearth.policy.rules import PolicyEntry, Rate
    from hearth.tools import ToolRegistry


@frozen(kw_only=True, eq=False)
class Services:
    """The services of one job server."""

    capabilities: Mapping[str, Capability]
    settings: HcpConfig
    model: AskConfig
    """The model that `job.plan` asks."""
    policy: Sequence[PolicyEntry]
    registry: ToolRegistry
    journal: Journal
    job_store: JobStore
    store: ArtifactStore
    open_session: OpenSession
    line_name: LineName
    """Return the board's canonical spelling of a line."""
    port_name: PortName
    """Return the board's canonical spelling of a serial port."""
    clock: Callable[[], float]
    """Epoch seconds."""
    stamp: Callable[[], str]
    """Return what a person's answer depends on: this run of the daemon, its halts, its readings of the policy."""
    idle_ttl_s: float
    """Seconds after which a HACP session without requests ends."""
    approvals: Approvals
    """The questions to persons, of plans and jobs alike."""
    memory: MemoryBudget
    """The memory budget, per principal."""
    refusals: Refusals
    """The limit on refusals that get an audit record of their own."""
    halt_flag: HaltFlag
    """The halt: it ends every job that may act, and what came before it starts no more."""
    rate: Rate
    """The rate at which one principal may begin jobs, and read artifacts whose reading is audited."""

    @property
    def abort_timeout(self) -> timedelta:
        """Return the longest time in state ABORTING, as task_accepted announces it."""
        return timedelta(seconds=self.settings.abort_timeout_s)

    def require_not_halted(self, halts: int, *, acts: bool) -> None:
        """Raise Rejection for a job that may act, if the daemon is halted, or was since halt number `halts`."""
        if acts and self.halt_flag.stops(halts):
            cure = "submit it again when a person has reset the halt"
            raise Rejection("resource_unavailable", self.halt_flag.error().message, suggestion=cure)

    async def ask(self, question: Question) -> Decision:
        """Wait for a person's decision. Raises Rejection: approval_timeout, shutting_down, or what a halt has ended."""
        timeout_s = self.settings.approval_timeout_s
        question.asked_at = self.clock()
        question.expires_at = question.asked_at + timeout_s
        decision = await self.approvals.ask(question, timeout_s)
        if decision is not None:
            return decision
        if self.approvals.closed:
            raise shutting_down()
        self.require_not_halted(question.halts, acts=question.acts)
        reason = f"no person approved it within {timeout_s:g} s"
        cure = "make sure that a person who may approve jobs is there, then submit it again under a new message_id"
        raise Rejection("approval_timeout", reason, suggestion=cure)

    def audit(self, event: str, **members: Any) -> None:
        """Post an audit record without waiting for it; members that are None are left out."""
        self.journal.post(record(event, members))


def record(event: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return an audit record without the members that are None."""
    return {"event": event, **{name: value for name, value in members.items() if value is not None}}
