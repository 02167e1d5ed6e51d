"""The Trio client: the Session interface over a carrier, and the messages of extras over the same connection.

It owns one connection with two background tasks. The reader gives each reply to its request and each event to its
followers. The writer sends whole lines, so that a request whose caller is cancelled never leaves half a line on the
wire. A caller that is alone on a Unix socket sends its line itself, and leaves to the writer what the kernel does not
take. `hearth.protocol.client` knows the protocol, and `hearth.client.session` has the interface for users.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import trio

from hearth._util.exceptions import unwrapped
from hearth.api import TERMINAL, TaskEvent
from hearth.client import halting
from hearth.client.events import Following, Subscription, Subscriptions, WholeFollowing
from hearth.client.extension import Extended, MessageLink
from hearth.client.session import ClientSession, SessionLink, TakeBack, require_trio, wrong_thread
from hearth.errors import CarrierError, HearthError, MethodNotFound, RpcError
from hearth.protocol.client import (
    Broken,
    ClientProtocol,
    HcpMessage,
    Notification,
    ProtocolViolation,
    RefusedByServer,
    Reply,
    TaskEventNotification,
    read_halt,
    read_task,
)
from hearth.protocol.jsonrpc import kind_of
from hearth.transport import open_stream
from hearth.transport.address import looked_up, named, parse
from hearth.transport.sockets import SocketTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from hearth.api import HaltStatus, Phase, StepResult
    from hearth.client.extension import Receiver
    from hearth.client.observing import Observation
    from hearth.transport.address import Address


# --- events by polling ----------------------------------------------------------------------------------------------
#
# Streaming is optional (draft §8): only the flag CAP_STREAMING_TASK_EVENTS says that a server has it. Every server has
# task.get, so `Polling` calls it again and again and makes events from the differences between the answers:
#
# - The waits between two requests double from `FIRST_WAIT` to `LONGEST_WAIT`, and restart after each change.
# - One request at a time: a caller that is cancelled during a request leaves it to the next call of `next`.
# - Every step that has begun gets two events, in order: `start` and `finish`, even if it began and ended between two
#   requests. `task_finish` comes last. There is no `progress`: task.get does not show it.
# - Events are numbered from 1 in that order, so `from_seq` means the same for each reader of one task.

FIRST_WAIT: Final = 0.01
"""Seconds between two requests right after a change of the task."""
LONGEST_WAIT: Final = 1.0
"""Seconds between two requests about a task that has not changed for long."""


class Polling(Following[TaskEvent]):
    """One reader of one task's events, made from the answers to task.get."""

    def __init__(self, connection: Client, session_id: str, task_id: str, from_seq: int) -> None:
        self._connection = connection
        self._params = {"session_id": session_id, "task_id": task_id}
        self._from_seq = from_seq
        self._seq = 0
        self._started: set[int] = set()
        self._finished: set[int] = set()
        self._events: deque[TaskEvent] = deque()
        self._asked: _Pending | None = None
        self._wait = FIRST_WAIT
        self._due = float("-inf")
        """Earliest time of the next request. A caller that stops waiting and calls again does not delay it."""
        self._over = False

    async def start(self) -> None:
        """Return at once: polling needs no subscription."""

    async def next(self) -> TaskEvent | None:
        """See Following. Raises the RpcError that task.get returns, or CarrierError."""
        while not self._events:
            if self._over:
                return None
            # No checkpoint without a reason to wait: a caller with a timeout of 0 must make progress too.
            if self._asked is None:
                if trio.current_time() < self._due:
                    await trio.sleep_until(self._due)
                self._asked = self._connection.ask("task.get", self._params)
            if not self._asked.answered.is_set():
                await self._asked.answered.wait()
            asked, self._asked = self._asked, None
            seq = self._seq
            try:
                self._compare(asked.result())
            finally:
                self._wait = FIRST_WAIT if self._seq > seq else min(2 * self._wait, LONGEST_WAIT)
                self._due = trio.current_time() + self._wait
        return self._events.popleft()

    def close(self) -> None:
        """Send no further request; see Following."""
        self._over = True
        self._events.clear()

    def _compare(self, shown: Mapping[str, Any]) -> None:
        task = read_task(shown)
        for index, step in enumerate(task.steps):
            members = shown["steps"][index]
            if index not in self._started and _has_begun(step):
                self._started.add(index)
                self._publish("start", {"tool": step.tool}, index)
            if index in self._started and index not in self._finished and step.status in TERMINAL:
                self._finished.add(index)
                self._publish("finish", members, index)
        if task.done:
            self._over = True
            members = ("status", "error", "error_code", "error_data")
            self._publish("task_finish", {name: shown[name] for name in members if shown.get(name) is not None})

    def _publish(self, phase: Phase, data: Mapping[str, Any], step_index: int | None = None) -> None:
        self._seq += 1
        if self._seq >= self._from_seq:
            seen = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            self._events.append(TaskEvent(self._params["task_id"], self._seq, phase, seen, step_index, data))


def _has_begun(step: StepResult) -> bool:
    """Return True for a step that runs or has run. A cancelled step has run only if it has a latency or an outcome."""
    if step.status == "CANCELLED":
        return step.latency_ms is not None or step.result is not None or step.error is not None
    return step.status == "RUNNING" or step.status in TERMINAL


class Fallback(Following[TaskEvent]):
    """A subscription that polling replaces if the server knows no subscriptions."""

    def __init__(self, subscription: Following[TaskEvent], polling: Polling) -> None:
        self._following = subscription
        self._polling = polling

    async def start(self) -> None:
        """See Following."""
        try:
            await self._following.start()
        except MethodNotFound:
            self._following = self._polling

    async def next(self) -> TaskEvent | None:
        """See Following."""
        return await self._following.next()

    def close(self) -> None:
        """See Following."""
        self._following.close()


RECEIVE_SIZE = 1 << 16
DRAIN_TIMEOUT = 1.0
"""Seconds for which a connection is still read after a failed write."""
STREAMING = "CAP_STREAMING_TASK_EVENTS"
"""The flag of a server that sends a task's events (draft §8); without it the client polls."""
ANSWER_TIMEOUT = 5.0
"""Seconds that the daemon may take to open a session, or to confirm its close, when the caller is cancelled."""


class _Pending:
    """A request and its reply.

    States: waiting (`reply` is None, `answered` not set), answered (both set), and connection ended (`answered` set,
    `reply` is None). With `compensate` set, the caller was cancelled, and the reader undoes the result when it comes.
    """

    __slots__ = ("_ended", "answered", "compensate", "heard", "id", "method", "reply")

    def __init__(self, id_: int, method: str, ended: Callable[[str], HearthError]) -> None:
        self.id = id_
        self.method = method
        self.answered = trio.Event()
        self.heard: Callable[[Mapping[str, Any]], None] | None = None
        """Called with the result as soon as it is read, before anything after it is read."""
        self.reply: Reply | None = None
        self.compensate: TakeBack | None = None
        """Set when the caller was cancelled: undoes the effect of a result."""
        self._ended = ended

    def result(self) -> Mapping[str, Any]:
        """Return the result, once `answered` is set. Raises the RpcError of the answer, or CarrierError."""
        reply = self.reply
        if reply is None:
            raise self._ended(f"before {self.method} was answered")
        if reply.error is not None:
            raise reply.error
        if type(reply.result) is not dict:
            raise ProtocolViolation(f"the server answered {self.method} with {kind_of(reply.result)}, not an object")
        result: Mapping[str, Any] = reply.result
        return result


class Client(SessionLink, MessageLink, Extended):
    """A connection to a hearth daemon; made by `connect`."""

    def __init__(self, stream: trio.abc.Stream, address: Address | None = None) -> None:
        self._stream = stream
        self._address = address
        self._thread = threading.get_ident()
        self._protocol = ClientProtocol()
        self._pending: dict[int, _Pending] = {}
        self._subscriptions = Subscriptions(self)
        self._streams: dict[str, bool] = {}
        """Session id -> True if the server sends events; for each session that was opened here and is still open."""
        self._observation: Observation | None = None
        self._send_nowait = stream.send_nowait if isinstance(stream, SocketTransport) else None
        """Sends as much of a line as the kernel takes at once; None for a carrier that has to wait for that."""
        self._outgoing, self._to_send = trio.open_memory_channel[bytes](float("inf"))
        self._unsent = 0
        """Number of lines that the writer has yet to send."""
        self._abandoned = 0
        """Number of requests whose caller was cancelled and whose effect is to be undone once it is known."""
        self._settled, self._written, self._read_all = trio.Event(), trio.Event(), trio.Event()
        self._broken: CarrierError | None = None

    # --- sessions -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open_session(
        self,
        *,
        client_name: str | None = None,
        client_version: str | None = None,
        on_disconnect: Literal["keep", "close"] = "close",
        heartbeat_ms: int | None = None,
        conversation: bool = False,
    ) -> AsyncIterator[ClientSession]:
        """Open a session (draft §3.1); the end of the block closes it, which cancels its tasks.

        Unlike on the wire, `on_disconnect` is "close" by default: a program that dies in this block must leave its
        outputs safe. Raises PermissionDenied, QueueFull, ShuttingDown or CarrierError.
        """
        if threading.get_ident() != self._thread:
            raise wrong_thread("client")
        members = {
            "client_name": client_name,
            "client_version": client_version,
            "protocol_version": "0.1.0",
            "on_disconnect": on_disconnect,
            "heartbeat_ms": heartbeat_ms,
            "conversation": conversation or None,
        }
        params = {name: value for name, value in members.items() if value is not None}
        session = ClientSession(self, await self._open_whole(params))
        self._streams[session.session_id] = STREAMING in session.capabilities
        try:
            yield session
        finally:
            try:
                await self._close_quietly(session)
            finally:
                self._streams.pop(session.session_id, None)

    async def _open_whole(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call session.open, shielded from cancellation: without the answer the new session could not be closed."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + ANSWER_TIMEOUT):
            return await self.call("session.open", params)
        raise CarrierError(f"no answer to session.open for {ANSWER_TIMEOUT:g} s; is it hearthd that listens there?")

    async def _close_quietly(self, session: ClientSession) -> None:
        if session.closed or self._broken is not None:
            return
        # Shielded, because a cancelled program must still release the hardware; bounded, because it must end.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + ANSWER_TIMEOUT):
            try:
                await session.close()
            except (RpcError, CarrierError):
                session.closed = True

    def attach(self, session_id: str) -> ClientSession:
        """Return a session of the same principal that was opened elsewhere; this client does not close it."""
        return ClientSession(self, {"session_id": session_id})

    # --- SessionLink --------------------------------------------------------------------------------------------

    async def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        compensate: TakeBack | None = None,
        heard: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Mapping[str, Any]:
        """See SessionLink; `heard` is called with the result before anything after it is read.

        A halt that is not answered at once goes to the halt socket too.
        """
        if method in halting.METHODS:
            return await halting.first_answer(
                partial(self._call, method, params, compensate, heard), self._address, method, params
            )
        return await self._call(method, params, compensate, heard)

    async def halt(self, reason: str = "") -> HaltStatus:
        """Halt the daemon; needs no session. See `hearth.api.Session.halt`."""
        return read_halt(await self.call("halt", {"reason": reason}))

    async def begin(
        self, method: str, params: Mapping[str, Any], *, compensate: TakeBack | None = None
    ) -> tuple[Mapping[str, Any], WholeFollowing | None]:
        """See SessionLink."""
        session_id = params["session_id"]
        # Unknown for a session that was opened elsewhere; a server ignores a member that it does not know (draft §2.5).
        if not self._streams.get(session_id, True):
            return await self.call(method, params, compensate=compensate), None
        following: list[Subscription] = []

        def heard(accepted: Mapping[str, Any]) -> None:
            # `subscribe` is hearthd's own member: another server that sends events may ignore it.
            task_id = accepted.get("task_id")
            # Of a repeated submission this connection may have had the first events already.
            if accepted.get("subscribed") is True and "repeated" not in accepted and type(task_id) is str:
                subscription = Subscription(self._subscriptions, session_id, task_id, 1)
                subscription.begin()
                following.append(subscription)

        def unsubscribing(accepted: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
            if accepted.get("subscribed") is not True:
                return None
            return "task.events.unsubscribe", {"session_id": session_id, "task_id": accepted.get("task_id")}

        answer = await self._call(method, {**params, "subscribe": True}, compensate or unsubscribing, heard)
        return answer, following[0] if following else None

    async def _call(
        self,
        method: str,
        params: Mapping[str, Any],
        compensate: TakeBack | None,
        heard: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Mapping[str, Any]:
        pending = self.ask(method, params)
        pending.heard = heard
        try:
            await pending.answered.wait()
        except BaseException:
            pending.heard = None
            if pending.reply is None and compensate is not None:
                # The request may already have taken effect at the daemon. Keep it: the reader undoes its effect when
                # the answer comes, and `_settle` waits for that before the connection is closed.
                pending.compensate = compensate
                self._abandoned += 1
            else:
                self._pending.pop(pending.id, None)
            raise
        return pending.result()

    def ask(self, method: str, params: Mapping[str, Any]) -> _Pending:
        """Send a request without waiting for its answer. Raises CarrierError if the connection has ended."""
        if threading.get_ident() != self._thread:
            raise wrong_thread("client")
        if self._broken is not None:
            raise self._ended("before it was used")
        id_, line = self._protocol.request(method, params)
        self._send(line)
        pending = self._pending[id_] = _Pending(id_, method, self._ended)
        return pending

    def _send(self, line: bytes) -> None:
        """Send a line: now if it has no company, else with the others that come in this turn. Never waits.

        Raises trio.ClosedResourceError while the connection is being closed.
        """
        if self._send_nowait is not None and not self._pending and not self._unsent:
            # A switch to the writer and back takes longer than all else that a request needs.
            try:
                line = line[self._send_nowait(line) :]
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                sent = False  # the writer finds the same error, and knows what it means
            else:
                sent = not line
            if sent:
                return
        self._outgoing.send_nowait(line)
        self._unsent += 1

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """See SessionLink."""
        if self._broken is None:
            # A notification while the connection is being closed is dropped.
            with suppress(trio.ClosedResourceError):
                self._send(self._protocol.notify(method, params))

    def _ended(self, when: str) -> HearthError:
        """Return the error to raise: the server's refusal if it ended the connection, else CarrierError."""
        if isinstance(self._broken, RefusedByServer):
            return self._broken.error
        return CarrierError(f"the connection ended {when}: {self._broken}")

    def follow(self, session_id: str, task_id: str, from_seq: int) -> Following[TaskEvent]:
        """See SessionLink."""
        polling = Polling(self, session_id, task_id, from_seq)
        streams = self._streams.get(session_id)
        if streams is False:
            return polling
        subscription = Subscription(self._subscriptions, session_id, task_id, from_seq)
        # None: the session was opened elsewhere, and the features of its server are unknown here.
        return subscription if streams else Fallback(subscription, polling)

    def observe(self, params: Mapping[str, Any]) -> Following[Mapping[str, Any]]:
        """See SessionLink."""
        from hearth.client.observing import Observation

        return Observation(self, params, self._begin_observation, self._end_observation)

    def _begin_observation(self, observation: Observation) -> None:
        # The server sends one stream on a connection: it is the newest one's.
        if self._observation is not None:
            self._observation.replaced()
        self._observation = observation

    def _end_observation(self, observation: Observation) -> None:
        if self._observation is observation:
            self._observation = None

    # --- messages of extras -------------------------------------------------------------------------------------

    def message_link(self) -> MessageLink:
        """See Extended."""
        return self

    def attach_receiver(self, receiver: Receiver) -> None:
        """See MessageLink."""
        self.receiver = receiver
        if self._broken is not None:
            receiver.end(self._ended)

    def send_message(self, line: bytes) -> None:
        """See MessageLink."""
        with suppress(trio.ClosedResourceError):
            self._send(line)

    def settled(self) -> None:
        """See MessageLink."""
        self._settled.set()

    # --- the connection -----------------------------------------------------------------------------------------

    async def _serve(self, background: trio.CancelScope) -> None:
        with background:
            async with trio.open_nursery() as both:
                both.start_soon(self._write)
                both.start_soon(self._read)

    async def _write(self) -> None:
        try:
            async for line in self._to_send:
                # All waiting lines go in one write: a send costs a system call, and with TLS or WebSocket a frame.
                lines = [line]
                while self._to_send.statistics().current_buffer_used:
                    lines.append(self._to_send.receive_nowait())
                await self._stream.send_all(b"".join(lines))
                self._unsent -= len(lines)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The daemon may have sent the reason before it closed: let the reader find it, or this error hides it.
            with trio.move_on_after(DRAIN_TIMEOUT):
                await self._read_all.wait()
            self._break(CarrierError("the daemon closed the connection"))
        finally:
            self._written.set()

    async def _read(self) -> None:
        try:
            while data := await self._stream.receive_some(RECEIVE_SIZE):
                for event in self._protocol.receive(bytes(data)):
                    if isinstance(event, Reply):
                        self._answered(event)
                    elif isinstance(event, TaskEventNotification):
                        self._subscriptions.take(event.event)
                    elif isinstance(event, Notification):
                        if event.method == "observe.event" and self._observation is not None:
                            self._observation.take(event.params)
                    elif isinstance(event, HcpMessage):
                        if self.receiver is not None:
                            self.receiver.receive(event.value)
                    elif isinstance(event, Broken):
                        self._break(event.error)
                        return
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._break(CarrierError(f"connection lost: {error}"))
        else:
            self._break(CarrierError("the daemon closed the connection"))

    def _answered(self, reply: Reply) -> None:
        pending = self._pending.pop(reply.id, None)
        if pending is None:
            return  # its caller was cancelled, and the answer needs no compensation
        # Here in the reader, not in the caller's task: the next events of this task may be in the same read, and the
        # subscription must exist before they are passed on.
        if pending.heard is not None and type(reply.result) is dict:
            pending.heard(reply.result)
        if pending.compensate is not None:
            undo = pending.compensate(reply.result) if type(reply.result) is dict else None
            if undo is not None:
                self.notify(*undo)
            self._abandoned -= 1
            self._settled.set()
        pending.reply = reply
        pending.answered.set()

    async def _settle(self) -> None:
        """Wait until the effects of abandoned requests are undone and all lines are sent, then mark the end.

        Called before the connection is closed. Each wait is shielded and bounded.
        """
        with trio.move_on_after(ANSWER_TIMEOUT, shield=True):
            while self._broken is None and (self._abandoned or (self.receiver is not None and self.receiver.abandoned)):
                self._settled = trio.Event()
                await self._settled.wait()
        self._outgoing.close()
        with trio.move_on_after(DRAIN_TIMEOUT, shield=True):
            await self._written.wait()
        self._break(CarrierError("it was closed here"))

    def _break(self, error: CarrierError) -> None:
        # Keep the first error: later ones are consequences of it.
        self._broken = self._broken or error
        self._read_all.set()
        self._settled.set()
        for pending in self._pending.values():
            pending.answered.set()
        self._subscriptions.end(self._ended)
        if self._observation is not None:
            self._observation.end(self._ended("while it was observed"))
        if self.receiver is not None:
            self.receiver.end(self._ended)


async def call_halt(address: Address, method: str, params: Mapping[str, Any]) -> HaltStatus:
    """Call halt or halt.status over a connection of its own, or the halt socket. Raises as `connect` and the method."""

    async def ask() -> Mapping[str, Any]:
        async with connect(address) as client:
            return await client._call(method, params, None)

    return read_halt(await halting.first_answer(ask, address, method, params))


def connect(
    address: str | os.PathLike[str] | Address | None = None, *, token: str | None = None
) -> AbstractAsyncContextManager[Client]:
    """Connect to a daemon: a socket's path, or an address of any carrier, such as "ssh://pi".

    None means HEARTH_ADDRESS, else HEARTH_SOCKET, else the default socket (draft §10.1). `token` is a bearer token for
    a ws:// or wss:// address without token_file; the default is HEARTH_TOKEN.
    Raises CarrierError if no daemon answers or it refuses the connection, and ConfigError for an address, a key or a
    token that cannot be used; RuntimeError outside Trio. An exception of the body passes unchanged.
    """
    require_trio("connect")
    return _connected(address, token)


@asynccontextmanager
async def _connected(address: str | os.PathLike[str] | Address | None, token: str | None) -> AsyncIterator[Client]:
    where = named(*looked_up(os.environ, os.geteuid())) if address is None else parse(address)
    async with unwrapped() as body, open_stream(where, token=token) as stream, trio.open_nursery() as nursery:
        client = Client(stream, where)
        # Shielded: when the body is cancelled from outside, it must still be able to close its sessions.
        background = trio.CancelScope(shield=True)
        nursery.start_soon(client._serve, background)
        try:
            async with body.watched():
                yield client
        finally:
            await client._settle()
            background.cancel()
