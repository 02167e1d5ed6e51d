"""The connection actor: one carrier connection of one principal.

It owns no session and no task: it translates documents to messages and answers to documents, bounds the requests that
one client has in flight, and notifies the sessions it opened when it ends.

Theory of operation. Two tasks: the *reader* feeds the sans-IO protocol and passes each call to the session that it
names; the *writer* sends what is due, coalesced (see `send_queue`). Answers are made in the turn of the session that
gives them (`answer`, `refuse`, `settle`): encoded there, and put into the send queue. None of these waits.

A session that waits for a request handles a short one within the reader's turn (`Session.ask`). What has become due by
the end of the turn, answers and events together, the reader then sends itself, if its carrier can send without waiting
and the writer is idle. So a request that need not wait costs one turn of the loop. The writer sends everything else,
and the rest of what the kernel did not take at once.

Life of a request: received -> in flight (`_in_flight` counts it, its memory is charged) -> settled, exactly once, by
its answer, by its error, or without one (a notification). However a request ends, `settle` is its end.

Back-pressure. Only the reader waits, in `_take`, before it takes the next request:

- for room in the send queue (HIGH_WATER bytes of answers wait);
- for one of `max_outstanding` requests in flight to be settled, or of WEIGHTY_AT_ONCE whose answers may be long;
- for almost all of them, when the principal's memory is used up.

A client that does not read its answers is thus no longer read from. If it then takes nothing for too long, its carrier
disconnects it (PeerGone). No other connection is affected.

The end. The peer closes its sending side: requests in flight still get their answers, for LINGER seconds. The peer has
closed both sides in order (a WebSocket): what it sent before is still done, and answers go nowhere. The peer has
gone, or its stream is invalid: the connection ends at once. In all cases the send queue is abandoned first, so that
late answers go nowhere, and then the sessions get a notice. They go on, unless their client asked for `on_disconnect:
"close"`: another connection of the same principal may use them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import trio
from attrs import define, field

from hearth.actors.messages import Disconnected, Request
from hearth.actors.send_queue import HIGH_WATER, SendQueue
from hearth.actors.transport import Carrier, PeerClosed, PeerGone, Unreadable
from hearth.errors import InternalError, InvalidRequest, MethodNotFound, QueueFull, RpcError
from hearth.hcp import why_not_served
from hearth.policy.memory import CONNECTION_BYTES, SMALL, unlimited
from hearth.protocol.framing import MAX_VALUES
from hearth.protocol.jsonrpc import dump_error
from hearth.protocol.known import read_params, with_ignored
from hearth.protocol.methods import SessionOpen, read_session_id
from hearth.protocol.server import Answer, Call, Close, Event, HcpDocument, ServerProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from hearth.actors.events import History
    from hearth.actors.messages import JobServer
    from hearth.actors.metrics import Metrics
    from hearth.actors.session import Session
    from hearth.policy.memory import Account
    from hearth.policy.principal import Principal
    from hearth.protocol.methods import Params

LINGER = 5.0
"""Seconds that a client which has finished sending may wait for its answers."""
WEIGHTY = frozenset(
    (
        "task.get", "tool.list", "plan.list", "observe.state", "observe.audit", "mcp.tools", "hcp.capabilities",
        "hcp.artifact",
    )
)  # fmt: skip
"""Methods whose answers may be long: megabytes for a request of a few bytes."""
WEIGHTY_AT_ONCE = 8
"""Calls of these methods in flight on one connection: a client that does not read costs at most so many answers."""
LONGEST_ID = 26
"""Characters of a session's id: a longer text is looked at in detail."""
TURN = 0.002
"""Seconds of work on one read, which may hold thousands of requests, after which other tasks run."""
BATCH_BYTES = 16 << 20
"""Bytes of answers that a batch may hold before further weighty calls in it are refused."""


class Directory(Protocol):
    """The part of the runtime that connections use."""

    @property
    def job_server(self) -> JobServer | None:
        """The receiver of jobs, or None if HCP is not served."""
        ...

    def open_session(self, principal: Principal, opening: SessionOpen, request: Request) -> Session:
        """Start a session, which answers `request`. Raises RpcError."""
        ...

    def find_session(self, session_id: str, principal: str) -> Session:
        """Return a session of this principal. Raises SessionInvalid."""
        ...


@define(eq=False)
class Connection:
    """One connection; `run` it until it ends."""

    _carrier: Carrier
    _principal: Principal
    _directory: Directory
    _max_outstanding: int = field(default=256, kw_only=True, alias="max_outstanding")
    _max_document_bytes: int = field(default=1 << 20, kw_only=True, alias="max_document_bytes")
    _max_batch: int = field(default=64, kw_only=True, alias="max_batch")
    _max_values: int = field(default=MAX_VALUES, kw_only=True, alias="max_values")
    _metrics: Metrics | None = field(default=None, kw_only=True, alias="metrics")
    _account: Account = field(factory=unlimited, kw_only=True, alias="account")
    _protocol: ServerProtocol = field(init=False)
    _in_flight: int = field(default=0, init=False)
    _batch: object = field(default=None, init=False)
    _weighty: int = field(default=0, init=False)
    _settled: trio.Event | None = field(default=None, init=False)
    # Sessions that this connection opened: all of them, those whose answer is not there yet, and those whose answer is
    # in the send queue. The client of the last two may never learn the session's id.
    _opened: list[Session] = field(factory=list, init=False)
    _opening: dict[Call, Session] = field(factory=dict, init=False)
    _unanswered: list[Session] = field(factory=list, init=False)
    _partial: int = field(default=0, init=False)
    """Bytes charged for a document of which only a part has been received."""
    send_queue: SendQueue = field(init=False)
    _send_nowait: Callable[[bytes], int] | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._send_nowait = getattr(self._carrier, "send_nowait", None)
        self._protocol = ServerProtocol(
            max_document_bytes=self._max_document_bytes, max_batch=self._max_batch, max_values=self._max_values
        )
        self.send_queue = SendQueue(self._account)

    # --- the actor ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the peer has gone or its stream is invalid; the carrier is closed in any case."""
        self._account.add(CONNECTION_BYTES)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, nursery.cancel_scope)
                # A writer that has ended cancels this nursery, and so the reader and this wait.
                if await self._read():
                    # The peer may have closed only its sending side: requests in flight still get their answers.
                    with trio.move_on_after(LINGER):
                        await self._fewer_than(1)
                self.send_queue.finish()
        finally:
            # Abandon the queue before the sessions hear of it: their answers then do nothing.
            followed = self.send_queue.follows
            self.send_queue.abandon()
            self._account.release(CONNECTION_BYTES + self._partial)
            self._partial = 0
            unanswered = {*self._opening.values(), *self._unanswered}
            for session in self._opened:
                session.post(Disconnected(self.send_queue, session in unanswered, followed))
            with trio.CancelScope(shield=True):
                await self._carrier.aclose()

    def finish(self) -> None:
        """Send what is due, then close, because the server is ending."""
        self.send_queue.finish()

    async def _write(self, connection: trio.CancelScope) -> None:
        batch, send = self.send_queue.batch, self._carrier.send
        try:
            while documents := await batch():
                await send(documents)
                # No answer waits any more, so those to session.open have been sent.
                if self._unanswered and not self.send_queue.size:
                    self._unanswered.clear()
        except PeerClosed:
            # What it sent before may still wait for the reader, a halt perhaps. The reader ends with the last of it.
            while await batch():
                pass
        except PeerGone:
            pass
        # Either everything has been sent, or nothing more can be sent.
        connection.cancel()

    async def _read(self) -> bool:
        """Take what the peer sends until there is no more; return False if it takes no answers any more either."""
        protocol, receive = self._protocol, self._carrier.receive
        parse = protocol.receive_document if self._carrier.whole_documents else protocol.events
        while not protocol.closed:
            try:
                data = await receive()
                if data is None:
                    # A carrier that frames is closed in both directions.
                    return not self._carrier.whole_documents
                # Parsing is lazy for a stream: each turn of the loop below parses one document.
                until = trio.current_time() + TURN
                events: Iterable[Event] = parse(data)
            except Unreadable as error:
                events, until = protocol.unreadable(str(error)), math.inf
            except PeerGone:
                return False
            events = iter(events)
            while (event := self._take_ready(events, until)) is not None:
                # Parsing a long document may have used up the turn.
                if trio.current_time() > until:
                    await trio.lowlevel.checkpoint()
                    until = trio.current_time() + TURN
                await self._take(event)
            try:
                self._hold_partial(protocol.partial_bytes)
            except QueueFull as error:
                # The rest of the document cannot be skipped: its end is not known.
                self.send_queue.push(dump_error(None, error))
                return True
        return True

    def _take_ready(self, events: Iterator[Event], until: float) -> Event | None:
        """Dispatch documents as long as none has to wait, and send what has become due; return one that must wait."""
        queue, account = self.send_queue, self._account
        queue.corked = True
        try:
            for event in events:
                if (
                    type(event) is not Call
                    or self._in_flight >= self._max_outstanding
                    or queue.size > HIGH_WATER
                    or account.full
                    or trio.current_time() > until
                ):
                    return event
                if event.method in WEIGHTY:
                    if self._weighty >= WEIGHTY_AT_ONCE:
                        return event
                    self._weighty += 1
                self._dispatch(event)
            return None
        finally:
            queue.corked = False
            self._flush()

    def _flush(self) -> None:
        """Send what is due at once if the writer is idle and the carrier can; else wake the writer."""
        queue = self.send_queue
        if self._send_nowait is None or not queue.writable:
            queue.wake()
        elif documents := queue.take():
            data = documents[0] if len(documents) == 1 else b"".join(documents)
            if queue.sent(data, self._send_nowait(data)) and self._unanswered and not queue.size:
                self._unanswered.clear()

    async def _take(self, event: Event) -> None:
        """Dispatch a received document once there is room for its answer and few enough requests are in flight."""
        await self._turn()
        if isinstance(event, Answer):
            self._refuse_document(event)
        elif not isinstance(event, Close):
            if self._in_flight >= self._max_outstanding:
                await self._fewer_than(self._max_outstanding)
            if isinstance(event, HcpDocument):
                self._receive_hcp(event)
                return
            if event.method in WEIGHTY:
                await self._weighty_turn()
            self._dispatch(event)

    async def _turn(self) -> None:
        """Wait until the next document may be handled; if the principal's memory is used up, few at a time."""
        if self.send_queue.size > HIGH_WATER:
            await self.send_queue.room(HIGH_WATER)
        # A principal without memory left has few requests in flight, and the next one only when all answers are taken.
        if self._account.full:
            await self._fewer_than(WEIGHTY_AT_ONCE)
            await self.send_queue.room(0)

    def _hold_partial(self, size: int) -> None:
        """Charge `size` bytes of a document of which only a part has been received. Raises QueueFull."""
        grown, self._partial = size - self._partial, size
        if grown <= 0:
            self._account.release(-grown)
        elif size <= SMALL or self._account.fits(grown):
            self._account.add(grown)
        else:
            self._partial -= grown
            raise self._account.refusal(grown)

    def _refuse_document(self, answer: Answer) -> None:
        if self._metrics is not None:
            self._metrics.refused_documents += 1
        self.send_queue.push(answer.data)

    async def _fewer_than(self, bound: int) -> None:
        """Wait until fewer than `bound` requests are in flight."""
        while self._in_flight >= bound:
            await self._one_settled()

    async def _weighty_turn(self) -> None:
        """Wait until another weighty call may be in flight, and count it."""
        while self._weighty >= WEIGHTY_AT_ONCE:
            await self._one_settled()
        if self.send_queue.size > HIGH_WATER:
            await self.send_queue.room(HIGH_WATER)
        self._weighty += 1

    async def _one_settled(self) -> None:
        # Only the reader waits, and each caller tests its condition again: one event for all requests is enough.
        self._settled = trio.Event()
        await self._settled.wait()
        self._settled = None

    def _dispatch(self, call: Call) -> None:
        """Pass a call to its session or to the job server; answer it here if it is wrong."""
        # Counted before anything can fail: every way out of here ends in `settle`, which counts it down.
        self._in_flight += 1
        if call.id is not None and call.batch is not None and call.batch is not self._batch:
            # The calls of a batch come one after the other, so comparing with the last one seen is enough.
            self._batch = call.batch
            self.send_queue.hold()
        try:
            # 0 until it is charged: `settle` releases `call.weight`, also of a request that is refused here.
            weight = call.weight
            if weight > SMALL:
                call.weight = 0
                self._account.charge(weight)
                call.weight = weight
            else:
                self._account.add(weight)
            # A short request whose answer may be long is what a principal without memory must not ask for.
            if call.method in WEIGHTY and self._account.full:
                raise self._account.refusal(SMALL)
            if call.method == "session.open":
                self._open(call)
                return
            params = call.params
            if call.method.startswith("hcp."):
                if self._directory.job_server is None:
                    raise MethodNotFound(data={"method": call.method, "reason": why_not_served()})
                request = ConnectionRequest(self, call, *read_params(call.method, call.params))
                self._directory.job_server.call(self._principal, request, self.send_queue)
                return
            # Check the session id first, and then the shape of the other params: the order of errors on the wire.
            session_id = params.get("session_id")
            if type(session_id) is not str or len(session_id) > LONGEST_ID:
                session_id = read_session_id(params)
            session = self._directory.find_session(session_id, self._principal.key)
            request = ConnectionRequest(self, call, *read_params(call.method, call.params))
            # A long one has taken time to parse, and takes more to check: in another turn.
            (session.ask if weight <= SMALL else session.post)(request)
        except RpcError as error:
            self.refuse(call, error)

    def _charged(self, weight: int) -> int:
        """Charge a request until it is answered; a small one is always accepted. Raises QueueFull."""
        if weight > SMALL:
            self._account.charge(weight)
        else:
            self._account.add(weight)
        return weight

    def _receive_hcp(self, event: HcpDocument) -> None:
        """Pass an HCP message to the job server, which answers later."""
        self._in_flight += 1
        if self._directory.job_server is None:
            self.settle(dump_error(None, InvalidRequest(data={"reason": why_not_served()})), 0)
            return
        try:
            weight = self._charged(event.weight)
        except QueueFull as error:
            self.settle(dump_error(None, error), 0)
            return
        self._directory.job_server.receive(self._principal, ConnectionHcpRequest(self, event.value, weight))

    def _open(self, call: Call) -> None:
        opening, ignored = read_params(call.method, call.params)
        assert isinstance(opening, SessionOpen)
        session = self._directory.open_session(
            self._principal, opening, ConnectionRequest(self, call, opening, ignored)
        )
        # Ended ones leave the list here, or it would grow for as long as the connection lives.
        self._opened = [other for other in self._opened if not other.ended]
        self._opened.append(session)
        self._opening[call] = session

    # --- answers, called in the session's turn ------------------------------------------------------------------

    def answer(self, call: Call, value: Any) -> None:
        """Send a call's result."""
        if call.batch is not None and call.method in WEIGHTY and sum(map(len, call.batch.lines)) > BATCH_BYTES:
            # One line answers a batch, so no part of it can be sent before the whole is there.
            reason = f"the answers of this batch are longer than {BATCH_BYTES} bytes; ask for fewer at once"
            self.refuse(call, QueueFull(f"Queue full: {reason}", data={"reason": reason}))
            return
        try:
            line = self._protocol.result(call, value)
        except orjson.JSONEncodeError as error:
            self.refuse(call, InternalError(data={"reason": f"the result is not JSON: {error}"}))
            return
        self._answered(call, line, "ok")

    def refuse(self, call: Call, error: RpcError) -> None:
        """Send a call's error."""
        self._answered(call, self._protocol.error(call, error), error.symbol)

    def _answered(self, call: Call, line: bytes | None, outcome: str) -> None:
        # `line` is None for a notification, and while other calls of the batch have no answer yet.
        if self._metrics is not None:
            self._metrics.requests[call.method, outcome] += 1
        if call.method in WEIGHTY:
            self._weighty -= 1
        elif call.method == "session.open" and (session := self._opening.pop(call, None)) is not None:
            self._unanswered.append(session)
        if (batch := call.batch) is not None and call.id is not None:
            # The answers of a batch wait for each other: charge those that are there.
            kept, batch.kept = batch.kept, 0 if line is not None else sum(map(len, batch.lines))
            self._account.release(kept)
            self._account.add(batch.kept)
        self.settle(line, call.weight)
        if line is not None and batch is not None and not self.send_queue.gone:
            self.send_queue.unhold()

    def settle(self, line: bytes | None, weight: int) -> None:
        """End a request that was in flight: release its `weight` in bytes, and send its answer, if it has one."""
        # `gone`: the answer goes nowhere, but the request must still be counted down and its memory released.
        self._in_flight -= 1
        self._account.release(weight)
        if line is not None and not self.send_queue.gone:
            self.send_queue.push(line)
        if self._settled is not None:
            self._settled.set()


# --- requests of a connection (draft §2.1; HCP L1): each is settled exactly once; without effect if it has gone


class ReplyPath(Protocol):
    """The methods of a connection that settle its requests."""

    send_queue: SendQueue

    def answer(self, call: Call, value: Any) -> None:
        """Send a call's result."""

    def refuse(self, call: Call, error: RpcError) -> None:
        """Send a call's error."""

    def settle(self, line: bytes | None, weight: int) -> None:
        """End a request that was in flight: release its `weight` in bytes, and send its answer, if it has one."""


@define(eq=False)
class ConnectionRequest:
    """A call and the connection to answer it on. Implements `messages.Request`."""

    _connection: ReplyPath
    _call: Call
    params: Params
    ignored: tuple[str, ...] = ()

    @property
    def follower(self) -> SendQueue:
        """The send queue that gets the events this request subscribes to."""
        return self._connection.send_queue

    def result(self, value: Any) -> None:
        """See Request."""
        self._connection.answer(self._call, with_ignored(value, self.ignored) if self.ignored else value)

    def error(self, error: RpcError) -> None:
        """See Request."""
        self._connection.refuse(self._call, error)


@define(eq=False)
class ConnectionHcpRequest:
    """An HCP message and the connection it came on. Implements `messages.HcpRequest`."""

    _connection: ReplyPath
    document: Mapping[str, Any]
    _weight: int

    def check_time(self, *, moves: bool) -> None:
        """See HcpRequest: what comes over a connection is never late."""

    def answer(self, line: bytes) -> None:
        """See HcpRequest."""
        self._connection.settle(line, self._weight)

    def follow(self, message_log: History, from_seq: int) -> None:
        """See HcpRequest."""
        # The messages of the session are the answer; the first of them is task_accepted.
        if not self._connection.send_queue.gone:
            self._connection.send_queue.follow(message_log, from_seq)
        self._connection.settle(None, self._weight)

    def done(self) -> None:
        """See HcpRequest."""
        self._connection.settle(None, self._weight)
