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
its answer, by its error, or without one (a notification). However a request ends, `settle` is its end. An answer of
more than PIECE bytes is encoded in pieces, in turns of the principal; shorter ones overtake it.

Back-pressure. Only the reader waits, before it takes the next request:

- for the turn of its principal, if that is used up (see `turns`);
- for room in the send queue (HIGH_WATER bytes of answers wait);
- for one of `max_outstanding` requests in flight to be settled, or of WEIGHTY_AT_ONCE whose answers may be long;
- for almost all of them, when the principal's memory is used up.

A halt waits for none of these. The principal of the connection may halt; a session only adds its id to the record. The
halt acts in the turn in which its line is parsed, and `halt.status` is answered there. A halt behind other documents
overtakes them (`ServerProtocol.overtaking`). While the reader waits, `_look_ahead` goes on reading, up to AHEAD bytes,
so that a halt within these acts too. A halt behind more unread bytes than that has to use another connection.

A client that does not read its answers is thus no longer read from. If it then takes nothing for too long, its carrier
disconnects it (PeerGone). No other connection is affected.

The end. The peer closes its sending side: requests in flight still get their answers, for LINGER seconds. The peer has
closed both sides in order (a WebSocket): what it sent before is still done, and answers go nowhere. The peer has
gone, or its stream is invalid: the connection ends at once. In all cases the send queue is abandoned first, so that
late answers go nowhere, and then the sessions get a notice. They go on, unless their client asked for `on_disconnect:
"close"`: another connection of the same principal may use them.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import trio
from attrs import define, field

from hearth.actors.messages import Disconnected, Request
from hearth.actors.send_queue import HIGH_WATER, SendQueue
from hearth.actors.transport import RECEIVE_SIZE, Carrier, PeerClosed, PeerGone, Unreadable
from hearth.actors.turns import turns_of
from hearth.errors import InternalError, InvalidRequest, MethodNotFound, QueueFull, RpcError
from hearth.extras import OWN
from hearth.policy.memory import CONNECTION_BYTES, SMALL, unlimited
from hearth.protocol.framing import MAX_VALUES
from hearth.protocol.jsonrpc import PIECE, dump_error, json_size, pieces
from hearth.protocol.known import read_params, with_ignored
from hearth.protocol.methods import SessionOpen, read_session_id
from hearth.protocol.server import Answer, Call, Event, HcpDocument, ServerProtocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from hearth.actors.events import History
    from hearth.actors.messages import JobServer
    from hearth.actors.metrics import Metrics
    from hearth.actors.session import Session
    from hearth.actors.turns import Turns
    from hearth.errors import ConfigError
    from hearth.policy.memory import Account
    from hearth.policy.principal import Principal
    from hearth.protocol.methods import Params

LINGER = 5.0
"""Seconds that a client which has finished sending may wait for its answers."""
WEIGHTY = frozenset(
    (
        "task.get", "tool.list", "plan.list", "plan.get", "observe.state", "observe.audit", "mcp.tools",
        "hcp.capabilities", "hcp.artifact",
    )
)  # fmt: skip
"""Methods whose answers may be long: megabytes for a request of a few bytes."""
WEIGHTY_AT_ONCE = 8
"""Calls of these methods in flight on one connection: a client that does not read costs at most so many answers."""
LONGEST_ID = 26
"""Characters of a session's id: a longer text is looked at in detail."""
LOADING = frozenset(method for extra in OWN.values() for method in extra.methods)
"""Methods of extras that may have to be loaded first."""
HCP = OWN["hcp"]
HALTS = frozenset(("halt", "halt.status"))
"""Methods that wait for no bound, within twice the bounds: their answers cost memory too."""
AHEAD = 2 * RECEIVE_SIZE
"""Unread bytes up to which the reader goes on reading while it waits, in search of a halt."""
BATCH_BYTES = 16 << 20
"""Bytes of answers that a batch may hold before further weighty calls in it are refused."""


class Directory(Protocol):
    """The part of the runtime that connections use."""

    def server(self, family: str) -> JobServer | None:
        """Return the server of an extra for its family of methods, such as "hcp"; None if that is not served."""
        ...

    def waits_for(self, method: str) -> bool:
        """Return True if an extra that answers this method is not there yet."""
        ...

    def load(self, then: Callable[[ConfigError | None], None]) -> None:
        """Load such extras, and then call `then`, with the reason if that failed."""

    def open_session(self, principal: Principal, opening: SessionOpen, request: Request) -> Session:
        """Start a session, which answers `request`. Raises RpcError."""
        ...

    def find_session(self, session_id: str, principal: str) -> Session:
        """Return a session of this principal. Raises SessionInvalid."""
        ...

    def halts(self, principal: Principal, request: Request, session_id: object) -> None:
        """Execute halt or halt.status, with or without a session, and answer it. Raises PermissionDenied."""
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
    _halts_only: str | QueueFull | None = field(default=None, kw_only=True, alias="halts_only")
    """Where other methods are served, or why they are not; None if they are served here."""
    _protocol: ServerProtocol = field(init=False)
    _in_flight: int = field(default=0, init=False)
    _weighty: int = field(default=0, init=False)
    _settled: trio.Event | None = field(default=None, init=False)
    _turns: Turns = field(init=False)
    # Trio's, bound once: `trio.current_time` takes three frames.
    _clock: Callable[[], float] = field(init=False)
    # Sessions that this connection opened: all of them, those whose answer is not there yet, and those whose answer is
    # in the send queue. The client of the last two may never learn the session's id.
    _opened: list[Session] = field(factory=list, init=False)
    _opening: dict[Call, Session] = field(factory=dict, init=False)
    _unanswered: list[Session] = field(factory=list, init=False)
    _partial: int = field(default=0, init=False)
    """Bytes charged for a document of which only a part has been received, and for what was read ahead."""
    _nursery: trio.Nursery | None = field(default=None, init=False)
    _waits: bool = field(default=False, init=False)
    """True while the reader waits for room, or for its principal's turn."""
    _ahead: trio.Event | None = field(default=None, init=False)
    """Set when `_look_ahead` has ended; None while it does not run."""
    _end: bool | None = field(default=None, init=False)
    """Once the peer sends no more: True if it still takes answers."""
    send_queue: SendQueue = field(init=False)
    _send_nowait: Callable[[bytes], int] | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._send_nowait = getattr(self._carrier, "send_nowait", None)
        self._turns = turns_of(self._account)
        self._clock = trio.lowlevel.current_clock().current_time
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
                self._nursery = nursery
                nursery.start_soon(self._write, nursery.cancel_scope)
                try:
                    # A writer that has ended cancels this nursery, and so the reader and this wait.
                    self._end = await self._read()
                    if self._end:
                        # The peer may have closed only its sending side: requests in flight still get their answers.
                        with trio.move_on_after(LINGER):
                            await self._fewer_than(1)
                    self.send_queue.finish()
                finally:
                    # It takes no more tasks.
                    self._nursery = None
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
        protocol, turns = self._protocol, self._turns
        while not protocol.closed:
            if self._ahead is not None:
                await self._ahead.wait()
            elif self._end is None:
                await self._receive()
            # Parsing is lazy: each turn of the loop below parses one document.
            events, event = protocol.waiting(), None
            while True:
                # Parsing a long document may have used up the turn.
                if turns.left < 0:
                    # What is read ahead is charged, and would take the memory that the next requests need.
                    await (turns.wait() if self._account.scarce else self._beside_look_ahead(turns.wait))
                if (event := self._take_ready(events, event)) is None:
                    break
                await self._room_for(event)
            try:
                partial_bytes = protocol.partial_bytes
                if partial_bytes or self._partial:
                    self._hold_partial(partial_bytes)
            except QueueFull as error:
                # The rest of the document cannot be skipped: its end is not known.
                self.send_queue.push(dump_error(None, error))
                return True
            if self._end is not None and self._ahead is None:
                return self._end
        return True

    async def _receive(self) -> None:
        """Receive and frame more, or note the end; then dispatch a halt that waits behind other documents."""
        protocol, whole = self._protocol, self._carrier.whole_documents
        try:
            data = await self._carrier.receive()
        except Unreadable as error:
            protocol.feed_unreadable(str(error))
        except PeerGone:
            self._end = False
        else:
            if data is None:
                # A carrier that frames is closed in both directions.
                self._end = not whole
            else:
                (protocol.feed_document if whole else protocol.feed)(data)
        for halt in protocol.overtaking(alone=self._waits or self._turns.left < 0):
            self._dispatch(halt)

    async def _look_ahead(self, ended: trio.Event) -> None:
        """Read on while the reader waits, for the sake of a halt."""
        while self._waits and self._end is None and self._protocol.unread_bytes < AHEAD:
            await self._receive()
            grown = self._protocol.unread_bytes - self._partial
            if grown > 0:
                self._account.add(grown)
                self._partial += grown
        self._ahead = None
        ended.set()

    def _take_ready(self, events: Iterator[Event], first: Event | None) -> Event | None:
        """Take `first`, for which there is room, and what comes behind it; return a document that has to wait.

        Then send what has become due.
        """
        queue, account, clock, turns = self.send_queue, self._account, self._clock, self._turns
        queue.corked = True
        began = clock()
        until = began + turns.left
        try:
            if first is not None:
                self._take(first)
            for event in events:
                if (
                    clock() > until
                    or type(event) is not Call
                    or self._in_flight >= self._max_outstanding
                    or queue.size > HIGH_WATER
                    or account.full
                ):
                    # Halts wait for no bound, but a flood of them must not make the turn longer either.
                    if type(event) is Call and self._presses(event) and clock() <= until:
                        self._dispatch(event)
                        continue
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
            turns.used(clock() - began)

    def _presses(self, call: Call) -> bool:
        """Return True for a call that waits for none of the bounds."""
        most = 2 * HIGH_WATER if call.method == "halt" else HIGH_WATER
        return call.method in HALTS and self._in_flight < 2 * self._max_outstanding and self.send_queue.size <= most

    def _flush(self) -> None:
        """Send what is due at once if the writer is idle and the carrier can; else wake the writer."""
        queue = self.send_queue
        if self._send_nowait is None or not queue.writable:
            queue.wake()
        elif documents := queue.take():
            data = documents[0] if len(documents) == 1 else b"".join(documents)
            if queue.sent(data, self._send_nowait(data)) and self._unanswered and not queue.size:
                self._unanswered.clear()

    def _take(self, event: Event) -> None:
        """Dispatch a received document."""
        if isinstance(event, Call):
            self._weighty += event.method in WEIGHTY
            self._dispatch(event)
        elif isinstance(event, Answer):
            self._refuse_document(event)
        elif isinstance(event, HcpDocument):
            self._receive_hcp(event)

    async def _room_for(self, event: Event) -> None:
        """Wait until there is room for a document's answer, and few enough requests are in flight.

        If the principal's memory is used up, few are at a time.
        """
        if isinstance(event, Call) and self._presses(event):
            return
        if self.send_queue.size > HIGH_WATER:
            await self._room(HIGH_WATER)
        # A principal without memory left has few requests in flight, and the next one only when all answers are taken.
        if self._account.full:
            await self._fewer_than(WEIGHTY_AT_ONCE)
            await self._room(0)
        if isinstance(event, (Call, HcpDocument)):
            await self._fewer_than(self._max_outstanding)
        if isinstance(event, Call) and event.method in WEIGHTY:
            while self._weighty >= WEIGHTY_AT_ONCE:
                await self._one_settled()
            if self.send_queue.size > HIGH_WATER:
                await self._room(HIGH_WATER)

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

    async def _one_settled(self) -> None:
        # Only the reader waits, and each caller tests its condition again: one event for all requests is enough.
        self._settled = trio.Event()
        await self._beside_look_ahead(self._settled.wait)
        self._settled = None

    async def _room(self, most: int) -> None:
        """Wait until no more than `most` bytes of answers wait."""
        await self._beside_look_ahead(partial(self.send_queue.room, most))

    async def _beside_look_ahead(self, wait: Callable[[], Awaitable[None]]) -> None:
        self._waits = True
        if self._ahead is None and self._end is None and self._nursery is not None:
            self._ahead = trio.Event()
            self._nursery.start_soon(self._look_ahead, self._ahead)
        try:
            await wait()
        finally:
            self._waits = False

    def _dispatch(self, call: Call) -> None:
        """Pass a call to its session or to the job server; answer it here if it is wrong."""
        # Counted before anything can fail: every way out of here ends in `settle`, which counts it down.
        self._in_flight += 1
        if call.id is not None and call.batch is not None and not call.batch.held:
            call.batch.held = True
            self.send_queue.hold()
        try:
            # 0 until it is charged: `settle` releases `call.weight`, also of a request that is refused here.
            weight = call.weight
            if call.method in HALTS:
                self._press(call)
                return
            if weight > SMALL:
                call.weight = 0
                self._account.charge(weight)
                call.weight = weight
            else:
                self._account.add(weight)
            if self._halts_only is not None:
                raise self._not_here(call.method)
            # A short request whose answer may be long is what a principal without memory must not ask for.
            if call.method in WEIGHTY and self._account.full:
                raise self._account.refusal(SMALL)
            if call.method == "session.open":
                self._open(call)
                return
            if call.method.startswith("hcp."):
                self._call_jobs(call)
                return
            if call.method in LOADING and self._directory.waits_for(call.method):
                self._directory.load(partial(self._loaded, call, weight))
                return
            self._to_session(call, weight)
        except RpcError as error:
            self.refuse(call, error)

    def _loaded(self, call: Call, weight: int, failure: ConfigError | None) -> None:
        try:
            if failure is not None:
                raise InternalError(data={"reason": str(failure)})
            self._to_session(call, weight)
        except RpcError as error:
            self.refuse(call, error)

    def _to_session(self, call: Call, weight: int) -> None:
        """Pass a call to its session. Raises RpcError."""
        params = call.params
        # Check the session id first, and then the shape of the other params: the order of errors on the wire.
        session_id = params.get("session_id")
        if type(session_id) is not str or len(session_id) > LONGEST_ID:
            session_id = read_session_id(params)
        session = self._directory.find_session(session_id, self._principal.key)
        request = ConnectionRequest(self, call, *read_params(call.method, params))
        # A long one has taken time to parse, and takes more to check: in another turn.
        (session.ask if weight <= SMALL else session.post)(request)

    def _press(self, call: Call) -> None:
        """Pass on a halt, or a question for its state."""
        self._account.add(call.weight)
        # Not refused for a member either that `strict` would refuse.
        read, ignored = read_params(call.method, {**call.params, "strict": False})
        request = ConnectionRequest(self, call, read, ignored)
        self._directory.halts(self._principal, request, call.params.get("session_id"))

    def _call_jobs(self, call: Call) -> None:
        """Pass a call to the job server. Raises RpcError."""
        server = self._directory.server(HCP.name)
        if server is None:
            raise MethodNotFound(data={"method": call.method, "reason": HCP.why_not_served()})
        request = ConnectionRequest(self, call, *read_params(call.method, call.params))
        server.call(self._principal, request, self.send_queue)

    def _not_here(self, what: str) -> RpcError:
        if isinstance(self._halts_only, QueueFull):
            return QueueFull(self._halts_only.message, data=self._halts_only.data)
        reason = f"this connection takes only halt and halt.status; {what} is served at {self._halts_only}"
        return MethodNotFound(reason, data={"method": what})

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
        server = self._directory.server(HCP.name)
        if server is None or self._halts_only is not None:
            why = HCP.why_not_served() if self._halts_only is None else self._not_here("HCP").message
            self.settle(dump_error(None, InvalidRequest(data={"reason": why})), 0)
            return
        try:
            weight = self._charged(event.weight)
        except QueueFull as error:
            self.settle(dump_error(None, error), 0)
            return
        server.receive(self._principal, ConnectionHcpRequest(self, event.value, weight))

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
        if type(value) is not bytes and self._nursery is not None and json_size(value) > PIECE:
            self._nursery.start_soon(self._answer_long, call, value)
        else:
            self._answer(call, value)

    async def _answer_long(self, call: Call, value: Any) -> None:
        """Send a call's result, whose JSON is made piece by piece, in turns of the principal."""
        made, turns, clock = [], self._turns, self._clock
        # Shielded: the request must be settled. What is not JSON is refused by `_answer`.
        with trio.CancelScope(shield=True), suppress(orjson.JSONEncodeError):
            began = clock()
            for piece in pieces(value):
                made.append(piece)
                turns.used(clock() - began)
                await turns.wait()
                began = clock()
            value = b"".join(made)
        self._answer(call, value)

    def _answer(self, call: Call, value: Any) -> None:
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
        if line is not None and not self.send_queue.gone:
            self.send_queue.push(line, weight)
        else:
            self._account.release(weight)
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
    halts: int = 0

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
