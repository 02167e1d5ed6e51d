"""The part of a runtime that belongs to an extra (`hearth.extras`): what the core asks of it, from start to end.

`build` makes the services of the extras that are configured, and `Runtime.extra` one that waits for its first use. The
core calls them in this order: `open` beside the audit log, before anything serves; `ahead` before the daemon says that
it is ready; `run` beside the buses, and `serve` around the connections; while it serves `health`, `figures` and `halt`;
at the end `stop` before sessions end, `end` with them, `finish` after them, and `close`. A service overrides what it
needs. This module knows no extra.

A service that cannot be made or opened keeps the daemon from its start, with the reason. A later exception is logged,
and health shows it as the member `crashed`: halts, the other services and the end of the daemon go on. Each wait at
the end is bounded. A call that blocks is not contained: it holds up the event loop, and so everything.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from hearth.actors.messages import JobServer
    from hearth.actors.runtime import Runtime, RuntimeParts
    from hearth.api import Session
    from hearth.policy.principal import Principal

FLUSH_TIMEOUT = 1.0
"""Seconds that connections have, after all sessions have ended, to send what is due."""


class OpenSession(Protocol):
    """Open a HACP session of a principal, restricted to these tools out of those that the policy allows.

    When the block ends, the session is closed and its outputs are in their safe state.
    """

    def __call__(
        self, principal: Principal, client_name: str, tools: frozenset[str], halts: int, *, conversation: bool = False
    ) -> AbstractAsyncContextManager[Session]:
        """Open the session of a job that came when the last halt had the number `halts`.

        `conversation` is as for session.open.

        Raises PermissionDenied, QueueFull, ShuttingDown.
        """
        ...


class Figure(NamedTuple):
    """A number for /metrics."""

    name: str
    """After "hearth_" and the name of the extra."""
    help: str
    value: float
    counter: bool = False


class Service:
    """One extra in one runtime."""

    runtime: Runtime
    """The runtime, from its start on."""
    server: JobServer | None = None
    """Takes the methods and messages of the extra's family: "hcp.*"."""

    def open(self, _parts: RuntimeParts) -> list[str]:
        """Read the files of the last run; return notes for a person. Blocking. Raises ConfigError."""
        return []

    def ahead(self) -> None:
        """Import what its first use would import. Blocking."""

    async def run(self) -> None:
        """Work beside the buses, until cancelled."""

    def serve(self, _sessions: OpenSession) -> AbstractAsyncContextManager[Any]:
        """Serve until the block ends."""
        return nullcontext()

    def halt(self) -> None:
        """End all work that may act: the daemon is being halted. Never waits."""

    def stop(self) -> None:
        """Take no more work from outside."""

    async def end(self, until: float) -> None:
        """End the work in progress, until this time of Trio's clock."""

    def finish(self) -> None:
        """Send what is due, within FLUSH_TIMEOUT: all sessions have ended."""

    def close(self) -> None:
        """Close its files. Blocking; idempotent."""

    def health(self) -> Mapping[str, Any] | None:
        """Return its state, for health, as JSON; None: it has none. It is not a part of `ok`."""
        return None

    def figures(self) -> Iterable[Figure]:
        """Return its numbers for /metrics."""
        return ()
