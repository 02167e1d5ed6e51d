"""Jobs between a program and the runtime that it has embedded: HCP's messages without a wire."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from hearth.actors.embedded import LocalRequest, dumps
from hearth.actors.send_queue import SendQueue
from hearth.client.extension import MessageLink
from hearth.errors import CarrierError, MethodNotFound, RpcError
from hearth.hcp import why_not_served
from hearth.protocol.known import read_params
from hearth.protocol.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.actors.events import History
    from hearth.actors.messages import JobServer
    from hearth.actors.runtime import Runtime
    from hearth.client.extension import Receiver
    from hearth.policy.principal import Principal


class LocalHcpRequest:
    """An HCP message of this process, answered into a send queue. Implements `messages.HcpRequest`."""

    __slots__ = ("_send_queue", "document")

    def __init__(self, document: Mapping[str, Any], send_queue: SendQueue) -> None:
        self.document = document
        self._send_queue = send_queue

    def check_time(self, *, moves: bool) -> None:
        """See HcpRequest."""

    def answer(self, line: bytes) -> None:
        """See HcpRequest."""
        self._send_queue.push(line)

    def follow(self, message_log: History, from_seq: int) -> None:
        """See HcpRequest."""
        if not self._send_queue.gone:
            self._send_queue.follow(message_log, from_seq)

    def done(self) -> None:
        """See HcpRequest."""


class LocalJobs(MessageLink):
    """The connection between a program and the job server of its own runtime.

    HCP messages go to the job server without a wire. The job server's messages wait in a send queue, as for a
    connection; `run` takes them to the receiver. Documents are encoded and parsed in both directions, so that later
    changes by the program have no effect.
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime = runtime
        self._principal = principal
        self._send_queue = SendQueue()

    def attach_receiver(self, receiver: Receiver) -> None:
        """See MessageLink."""
        self.receiver = receiver
        if self._send_queue.gone:
            receiver.end(_ended)

    async def run(self) -> None:
        """Pass the job server's messages to the receiver, until cancelled."""
        try:
            while lines := await self._send_queue.batch():
                for line in lines:
                    if self.receiver is not None:
                        self.receiver.receive(orjson.loads(line))
        finally:
            self.close()

    def close(self) -> None:
        """Note the end of the runtime."""
        self._send_queue.abandon()
        if self.receiver is not None:
            self.receiver.end(_ended)

    def send_message(self, line: bytes) -> None:
        """See MessageLink."""
        self._job_server().receive(self._principal, LocalHcpRequest(orjson.loads(line), self._send_queue))

    async def call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See MessageLink."""
        read, ignored = read_params(method, orjson.loads(dumps(params)))
        request = LocalRequest(read, ignored=ignored)
        self._job_server().call(self._principal, request, self._send_queue)
        answer: Mapping[str, Any] = orjson.loads(orjson.dumps(await request.slot.get()))
        return answer

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """See MessageLink."""
        with suppress(RpcError):
            self._job_server().call(self._principal, LocalRequest(METHODS[method](params)), self._send_queue)

    def settled(self) -> None:
        """Do nothing: the jobs end with the runtime. See MessageLink."""

    def _job_server(self) -> JobServer:
        server = self._runtime.server("hcp")
        if server is None:
            raise MethodNotFound(why_not_served("runtime"))
        return server


def _ended(when: str) -> CarrierError:
    return CarrierError(f"the runtime ended {when}")
