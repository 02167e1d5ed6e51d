"""HCP as an extra: the capabilities that jobs may use, the files that keep jobs, and the job server behind them."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from hearth.actors.bridges.hcp.lazy import open_job_server, open_job_storage
from hearth.actors.service import Service
from hearth.audit.files import real
from hearth.config.ask import AskConfig
from hearth.config.hcp import HcpConfig
from hearth.hcp.capability import CapabilitySet
from hearth.policy.rules import idle_job_rules
from hearth.schema import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager

    from hearth.actors.bridges.hcp.lazy import JobStorage
    from hearth.actors.runtime import RuntimeParts
    from hearth.actors.service import OpenSession
    from hearth.config.model import Config
    from hearth.tools import ToolRegistry

log = logging.getLogger("hearth.hcp")


@define(eq=False, slots=False)
class HcpService(Service):
    """Jobs of one runtime."""

    settings: HcpConfig = field(factory=HcpConfig)
    capabilities: CapabilitySet = field(factory=CapabilitySet)
    """The capabilities that jobs may use."""
    directory: Path | None = None
    """The directory of the job store and of artifacts, or None."""
    model: AskConfig = field(factory=AskConfig)
    """The model that `job.plan` asks."""
    storage: JobStorage | None = field(default=None, init=False)
    server: Any = field(default=None, init=False)
    """The `lazy.LazyJobServer`, while it serves."""

    def open(self, parts: RuntimeParts) -> list[str]:
        """See Service."""
        if self.settings.capabilities:
            # These are loaded by now; shipped capabilities are loaded with the first job.
            for note in self.capabilities.notes:
                log.info("%s", note)
        storage = open_job_storage(parts)
        return [] if storage is None else [*storage.notes]

    def serve(self, sessions: OpenSession) -> AbstractAsyncContextManager[Any]:
        """See Service."""
        return open_job_server(self.storage, self.runtime, sessions)

    def halt(self) -> None:
        """See Service."""
        if self.server is not None:
            self.server.halt()

    async def end(self, until: float) -> None:
        """See Service."""
        if self.server is not None:
            await self.server.end(until)

    def close(self) -> None:
        """See Service."""
        if self.storage is not None:
            self.storage.close()


def hcp_service(config: Config, parts: RuntimeParts) -> HcpService:
    """Return the jobs that a configuration asks for. Raises ConfigError."""
    settings: HcpConfig = config.hcp
    if settings.capabilities or settings.chosen:
        capabilities = _load(settings, parts.registry)
    else:
        # Only shipped capabilities, which are known to be valid: load them with the first job.
        capabilities = CapabilitySet.later(partial(_load, settings, parts.registry))
    directory = Path(f"{real(parts.journal.settings.path)}.hcp")
    return HcpService(settings, capabilities, directory, config.ask)


def _load(settings: HcpConfig, registry: ToolRegistry) -> CapabilitySet:
    # Imported here: it takes a tenth of a second on a small board, which a daemon without jobs saves.
    from hearth.hcp.library import load_capabilities

    return load_capabilities(settings.capabilities, shipped=settings.shipped, registry=registry)


def check(_name: str, _config: Config, parts: RuntimeParts) -> Iterator[tuple[str, str]]:
    """Check every capability. See Extra."""
    capabilities: CapabilitySet = parts.extras["hcp"].capabilities
    for capability in capabilities.values():
        check_schema(capability.input_schema, f"{capability.place}: input_schema", by_authority=True)
        check_schema(capability.output_schema, f"{capability.place}: output_schema", by_authority=True)
    asking = {name: one.safety.requires_human_approval for name, one in capabilities.items()}
    yield from (("warning", line) for line in idle_job_rules(parts.policy, asking))
    yield from (("note", line) for line in capabilities.notes)
    yield "summary", f"{len(capabilities)} capabilities"
