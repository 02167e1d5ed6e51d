"""Orders from a broker as an extra: the uplink's part of a runtime and its numbers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from hearth._util.exceptions import unwrapped
from hearth.actors.bridges.amqp.uplink import Uplink
from hearth.actors.service import FLUSH_TIMEOUT, Figure, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from hearth.actors.runtime import RuntimeParts
    from hearth.actors.service import OpenSession
    from hearth.config.model import Config


class AmqpService(Service):
    """The uplink of one runtime. `uplink` is given by a program that runs one itself."""

    def __init__(self, config: Config, _parts: RuntimeParts | None = None, uplink: Uplink | None = None) -> None:
        self._config = config.amqp
        self._uplink = uplink
        self._over = trio.CancelScope()

    @asynccontextmanager
    async def serve(self, _sessions: OpenSession) -> AsyncIterator[None]:
        """See Service."""
        job_server = await self.runtime.extras["hcp"].server.real()
        uplink = self._uplink = Uplink(self._config, self.runtime, job_server)
        async with unwrapped() as body, trio.open_nursery() as nursery, body.watched():
            self._over = nursery.cancel_scope
            nursery.start_soon(uplink.keep)
            try:
                yield
            finally:
                self.finish()

    def stop(self) -> None:
        """See Service: orders that are in the queue stay there."""
        if self._uplink is not None:
            self._uplink.stop()

    def finish(self) -> None:
        """See Service. Idempotent."""
        if self._uplink is not None:
            self._uplink.finish()
        self._over.deadline = min(self._over.deadline, trio.current_time() + FLUSH_TIMEOUT)

    def health(self) -> Mapping[str, Any] | None:
        """See Service: a device without its broker works on, and its heartbeat goes on."""
        return None if self._uplink is None else self._uplink.status()

    def figures(self) -> Iterable[Figure]:
        """See Service."""
        return figures(self.health() or {})


def figures(status: Mapping[str, Any]) -> Iterable[Figure]:
    """Return the numbers in the state of an uplink."""
    figures = (
        Figure("connected", "1 while orders can come from the broker", status.get("connected", 0)),
        Figure("outbox", "Messages that the broker has not confirmed yet", status.get("outbox", 0)),
        Figure("outbox_bytes", "Their bytes", status.get("outbox_bytes", 0)),
        Figure("published", "Messages that the broker has confirmed", status.get("published", 0), counter=True),
        Figure("taken", "Messages that the broker has delivered", status.get("taken", 0), counter=True),
        Figure("reconnects", "Connections after the first one", status.get("reconnects", 0), counter=True),
    )
    return figures if status else ()
