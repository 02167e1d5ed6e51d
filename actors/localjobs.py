"""A program of this process as a caller of whole jobs: its HCP messages go to the desk without a wire between.

It owns the way back: what the desk sends waits in an outbox, as for a connection, and one task takes it from there to
whoever waits for it. Documents pass through JSON both ways, so that what a program changes afterwards changes nothing.
What understands them is imported with the first job.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from hearth.actors.localasks import LocalAsk, LocalLetter
from hearth.actors.outbox import Outbox
from hearth.errors import CarrierError, InvalidParams, MethodNotFound, ParseError, RpcError
from hearth.protocol.jsonrpc import require_depth
from hearth.protocol.known import read_params
from hearth.protocol.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.actors.asks import Desk
    from hearth.actors.runtime import Runtime
    from hearth.delegation_jobs import Delegations
    from hearth.policy.principal import Principal


class LocalJobs:
    """Implements `delegation_jobs.Post`."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime = runtime
        self._principal = principal
        self._outbox = Outbox()
        self._jobs: Delegations | None = None

    @property
    def delegations(self) -> Delegations:
        """The jobs that are followed here."""
        if self._jobs is None:
            from hearth.delegation_jobs import Delegations

            self._jobs = Delegations(self)
            if self._outbox.gone:
                self._jobs.end(_ended)
        return self._jobs

    async def run(self) -> None:
        """Bring what the desk sends to whoever waits for it, until cancelled."""
        try:
            while lines := await self._outbox.batch():
                for line in lines:
                    self.delegations.receive(orjson.loads(line))
        finally:
            self._outbox.abandon()
            if self._jobs is not None:
                self._jobs.end(_ended)

    def send_message(self, line: bytes) -> None:
        """See Post."""
        self._desk().receive(self._principal, LocalLetter(orjson.loads(line), self._outbox))

    async def call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See Post."""
        read, ignored = read_params(method, orjson.loads(dumps(params)))
        ask = LocalAsk(read, ignored=ignored)
        self._desk().call(self._principal, ask, self._outbox)
        answer: Mapping[str, Any] = orjson.loads(orjson.dumps(await ask.slot.get()))
        return answer

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """See Post."""
        with suppress(RpcError):
            self._desk().call(self._principal, LocalAsk(METHODS[method](params)), self._outbox)

    def settled(self) -> None:
        """See Post. Nobody waits for it: with the runtime its jobs end."""

    def _desk(self) -> Desk:
        if self._runtime.desk is None:
            raise MethodNotFound("this runtime takes no whole jobs: [hcp] serve = false")
        return self._runtime.desk


def _ended(when: str) -> CarrierError:
    return CarrierError(f"the runtime ended {when}")


def dumps(params: Mapping[str, Any]) -> bytes:
    """A caller's parameters as JSON. Raises InvalidParams for what JSON cannot say, or not so deep."""
    try:
        require_depth(params)
        return orjson.dumps(params)
    except ParseError as error:
        raise InvalidParams(data=error.data) from None
    except orjson.JSONEncodeError as error:
        raise InvalidParams(f"Invalid params: not JSON: {error}", data={"reason": str(error)}) from None
