"""What every job of a desk works with, and the records that a job leaves in the audit log.

Values and one-line helpers only: who decides is the desk, what is done is the job's.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from hearth.actors.bridges.hcp.artifacts import ArtifactStore
    from hearth.actors.bridges.hcp.store import JobStore
    from hearth.actors.journal import Journal
    from hearth.actors.refusals import Refusals
    from hearth.api import Session
    from hearth.config.model import HcpConfig
    from hearth.hcp.capability import Capability
    from hearth.hcp.inputs import LineName, PortName
    from hearth.policy.memory import MemoryBudget
    from hearth.policy.principal import Principal
    from hearth.policy.rules import PolicyEntry, Rate
    from hearth.tools import ToolRegistry


class OpenSession(Protocol):
    """Opens a HACP session of this principal, in which it may use these tools of those that it may use anyway.

    On the way out it is closed and its outputs are safe.
    """

    def __call__(
        self, principal: Principal, client_name: str, tools: frozenset[str]
    ) -> AbstractAsyncContextManager[Session]:
        """Raises PermissionDenied, QueueFull or ShuttingDown."""
        ...


@frozen(kw_only=True, eq=False)
class Services:
    """The surroundings of a desk."""

    capabilities: Mapping[str, Capability]
    settings: HcpConfig
    policy: Sequence[PolicyEntry]
    registry: ToolRegistry
    journal: Journal
    job_store: JobStore
    store: ArtifactStore
    open_session: OpenSession
    line_name: LineName
    """The board's one spelling of a line."""
    port_name: PortName
    """The board's one spelling of a serial port."""
    clock: Callable[[], float]
    """Epoch seconds."""
    idle_ttl_s: float
    """How long a HACP session lives that nobody names."""
    memory: MemoryBudget
    """What is kept for each principal."""
    refusals: Refusals
    """Which refusals are recorded one by one."""
    rate: Rate
    """How often one principal may begin a job, and how often read an artifact whose reading is on record."""

    @property
    def abort_timeout(self) -> timedelta:
        """How long ABORTING may last, as task_accepted says it."""
        return timedelta(seconds=self.settings.abort_timeout_s)

    def audit(self, event: str, **members: Any) -> None:
        """Record something that nobody waits for; members that are None are left out."""
        self.journal.post(record(event, members))


def record(event: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """An audit record, without the members that are None."""
    return {"event": event, **{name: value for name, value in members.items() if value is not None}}
