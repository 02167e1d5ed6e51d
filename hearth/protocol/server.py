"""The server's end of a connection: bytes to calls, answers to bytes. Sans-IO.

Theory of operation. `ServerProtocol` takes the bytes that a peer sent and returns events; it never raises for anything
a peer can send, and does no I/O. The attacker is the peer, before and after authentication: any sequence of bytes must
end in events, bounded memory and bounded work.

- Framing bounds a document's bytes. A longer one is answered once with an error, then comes `Close`: where the next
  document begins cannot be known, so all further bytes are ignored.
- Before parsing, the number of values is bounded (`framing`); the parser bounds the depth and refuses bytes that are
  not JSON, and names that are repeated (`jsonrpc`). Each failure is answered with an error of JSON-RPC, and the
  connection goes on.
- A document with `hcp_version` is passed on as `HcpDocument`. Every valid request to a known method becomes a `Call`.
  A document that is not a request, an unknown method, and params that are no object become an `Answer` at once (a
  notification: nothing).
- The executor answers each call exactly once, through `result` or `error`, in any order. For a notification both return
  None, because it has no answer.
- An id is outstanding from its call until the bytes of its answer exist. A request that uses an outstanding id again is
  refused with id null: an error with that id would pass for the answer of the first request. So no answer is ever
  taken for that of another request.
- A batch has one answer. `_Batch` collects the lines, refusals first; the last one joins them, and only then its ids
  are free. A batch of notifications has no answer.
- Documents wait in order until their events are taken (`waiting`); only `overtaking` takes one out of turn, a halt. It
  never passes a reset, which would then end the halt that its client sent later.
- `weight` is an upper bound of a request's memory. The connection charges it to the principal until the answer is
  made; the calls of a batch share it, because they hold parts of one document.

This module does not know what a method does, who the peer is, or how bytes travel. The methods read their own params
(`methods`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import define

from hearth.errors import InvalidParams, InvalidRequest, MethodNotFound, ParseError, RpcError
from hearth.protocol.framing import MAX_VALUES, TOO_MANY, DocumentTooLong, LineFramer, has_more_values, parsed_bytes
from hearth.protocol.jsonrpc import (
    Id,
    JsonRpcRequest,
    dump_error,
    dump_result,
    join_batch,
    kind_of,
    load,
    read_request,
    reply_id_in,
    reply_id_of,
)
from hearth.protocol.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator


@define(slots=True, eq=False)
class Call:
    """A request to execute. `params` is its params object, as received; `id` is None for a notification."""

    id: Id | None
    method: str
    params: dict[str, Any]
    batch: _Batch | None = None
    weight: int = 0
    """Upper bound of its memory in bytes, as long as it is not answered."""


@define(slots=True, eq=False)
class Answer:
    """Bytes to send: the answer to a document that is not a request, or a refusal that needs no executor."""

    data: bytes


@define(slots=True, eq=False)
class Close:
    """The stream can no longer be trusted: send what is due, then close."""

    reason: str


@define(slots=True, eq=False)
class HcpDocument:
    """An object with a version of HCP: the other protocol of a connection (decision 0067)."""

    value: dict[str, Any]
    weight: int
    """See Call."""


Event: TypeAlias = "Call | HcpDocument | Answer | Close"

MOST_OVERTAKING: Final = 4096
"""Bytes of a document that may overtake others: looking into a longer one would take time from what it overtakes."""
MOST_TRIED: Final = 16
"""Documents that are parsed in one search for a halt."""


class _Batch:
    """One batch in progress: the answers that are ready, refusals first, then in the order of completion.

    Its ids stay outstanding until the line that answers them all is made, because until then the peer has no answer.
    """

    __slots__ = ("held", "ids", "kept", "lines", "open")

    def __init__(self) -> None:
        self.ids: list[Id] = []
        self.lines: list[bytes] = []
        self.open = 0
        self.kept = 0
        """Bytes of `lines` that are charged to the principal."""
        self.held = False
        """True once the executor holds events back until this batch is answered."""


def _size(item: bytes | DocumentTooLong | Event) -> int:
    """Return about how many bytes an item that waits takes; an event counts as much as the shortest answer."""
    return len(item) + 1 if type(item) is bytes else 128


def _may_reset(document: bytes) -> bool:
    """Return True unless a document surely asks for no reset of the halt: an escape could hide its name."""
    return b"reset" in document or b"\\u" in document


def _halts(document: bytes) -> bool:
    """Return True if a document, or a part of a batch, asks for a halt."""
    try:
        value = load(document)
    except (ParseError, InvalidRequest):
        return False
    requests = value if type(value) is list else [value]
    return any(type(one) is dict and one.get("method") == "halt" for one in requests)


class ServerProtocol:
    """One connection. `receive` and the two answering methods never raise for anything a peer can send."""

    __slots__ = (
        "_framer", "_max_batch", "_max_document_bytes", "_max_values", "_outstanding", "_searched", "_taking",
        "_waiting", "_waiting_bytes", "closed",
    )  # fmt: skip

    def __init__(self, *, max_document_bytes: int = 1 << 20, max_batch: int = 64, max_values: int = MAX_VALUES) -> None:
        self._framer = LineFramer(max_document_bytes)
        self._max_document_bytes = max_document_bytes
        self._max_batch = max_batch
        self._max_values = max_values
        self._outstanding: set[Id] = set()
        self._waiting: deque[bytes | DocumentTooLong | Event] = deque()
        self._waiting_bytes = 0
        """The bytes of `_waiting`, counted as it changes: a peer may send thousands of documents of one byte."""
        self._searched = 0
        """Of `_waiting`, the number from its beginning that are neither a halt nor a reset."""
        self._taking: bytes = b""
        """The document whose events `waiting` yields; empty between two."""
        self.closed = False

    @property
    def partial_bytes(self) -> int:
        """The bytes held of an incomplete document."""
        return self._framer.partial_bytes

    @property
    def outstanding(self) -> int:
        """The number of requests without an answer. Notifications do not count: they have none."""
        return len(self._outstanding)

    @property
    def unread_bytes(self) -> int:
        """The bytes held of documents that are incomplete, or whose events have not been taken, about."""
        return self.partial_bytes + self._waiting_bytes

    def receive(self, data: bytes) -> list[Event]:
        """Take received bytes; return their events, in order. After a Close all further bytes are ignored."""
        self.feed(data)
        return list(self.waiting())

    def receive_document(self, document: bytes) -> list[Event]:
        """Take one whole document, as `receive` takes bytes."""
        self.feed_document(document)
        return list(self.waiting())

    def feed(self, data: bytes) -> None:
        """Take received bytes; `waiting` yields their events. After a document that is too long, ignore them."""
        if self.closed or (self._waiting and type(self._waiting[-1]) is DocumentTooLong):
            return
        documents: list[bytes | DocumentTooLong]
        try:
            documents = [*self._framer.feed(data)]
        except DocumentTooLong as error:
            # Documents that were complete before the long one still get their answers.
            documents = [*error.documents, error]
        self._waiting += documents
        # HOT: as `_size` has it of bytes, which most are.
        for document in documents:
            self._waiting_bytes += len(document) + 1 if type(document) is bytes else 128

    def feed_document(self, document: bytes) -> None:
        """Take one whole document from a carrier that frames by itself (draft §2.2)."""
        too_long = len(document) > self._max_document_bytes
        self._add(DocumentTooLong(self._max_document_bytes, []) if too_long else document)

    def feed_unreadable(self, reason: str) -> None:
        """Take a message of such a carrier that is not a document at all."""
        self._add(Answer(dump_error(None, ParseError(data={"reason": reason}))))

    def _add(self, item: bytes | DocumentTooLong | Event) -> None:
        self._waiting.append(item)
        self._waiting_bytes += _size(item)

    def waiting(self) -> Iterator[Event]:
        """Yield the events of what was fed, in order. Each document is read after the events before it are taken.

        There may be thousands: a caller can let other tasks run between two, and feed more.
        """
        waiting = self._waiting
        while waiting and not self.closed:
            item = waiting.popleft()
            self._waiting_bytes -= len(item) + 1 if type(item) is bytes else 128
            self._searched = max(0, self._searched - 1)
            if type(item) is bytes:
                self._taking = item
                yield from self._document(item)
                self._taking = b""
            elif type(item) is DocumentTooLong:
                yield from self._too_long(item)
            else:
                yield item  # type: ignore[misc]

    def overtaking(self, *, alone: bool = False) -> list[Call]:
        """Take the first halt that waits behind other documents, or other calls of its batch, out of turn.

        With `alone`, also one behind nothing.

        Not one that waits behind a reset, or behind what may be one: their order decides whether the halt lasts.
        """
        waiting = self._waiting
        if len(waiting) == 1 and not self._taking and not alone:
            # HOT: a document alone, which is read at once.
            first = waiting[0]
            if type(first) is not bytes or first[:1] != b"[":
                return []
        return [] if _may_reset(self._taking) else self._first_halt()

    def _first_halt(self) -> list[Call]:
        """Take out the first halt that is waiting; the next search goes on where this one ends."""
        waiting = self._waiting
        tried = 0
        while (place := self._searched) < len(waiting):
            item = waiting[place]
            if type(item) is bytes and _may_reset(item):
                return []
            looks = type(item) is bytes and b'"halt"' in item and len(item) <= MOST_OVERTAKING
            if looks and (tried := tried + 1) > MOST_TRIED:
                # Texts that only look like a halt must not take a turn of the loop.
                return []
            if type(item) is not bytes or not looks or not _halts(item):
                self._searched = place + 1
                continue
            if halts := self._read_at(place, item):
                return halts
        return []

    def _read_at(self, place: int, document: bytes) -> list[Call]:
        """Read a document that is waiting; return its halts, and leave its other events in its place."""
        events = self._document(document)
        halts = [event for event in events if type(event) is Call and event.method == "halt"]
        others = [event for event in events if event not in halts]
        del self._waiting[place]
        for event in reversed(others):
            self._waiting.insert(place, event)
        self._searched = place + len(others)
        self._waiting_bytes += sum(map(_size, others)) - _size(document)
        return halts

    def _too_long(self, error: DocumentTooLong) -> list[Event]:
        # Where the next document begins is unknown, so nothing after this one can be read.
        self.closed = True
        data = {"reason": str(error), "max_document_bytes": error.limit}
        refusal = InvalidRequest("Invalid Request: document too long", data=data)
        return [Answer(dump_error(None, refusal)), Close("a document was too long")]

    def _document(self, document: bytes) -> list[Event]:
        # Before parsing, because the bound is on the work and memory of parsing itself. A value takes a byte at least.
        if len(document) > self._max_values and has_more_values(document, self._max_values):
            data = {"reason": TOO_MANY.format(self._max_values), "max_values": self._max_values}
            return [self._unread(document, InvalidRequest("Invalid Request: too many values", data=data))]
        try:
            value = load(document)
        except ParseError as error:
            return [Answer(dump_error(None, error))]
        except InvalidRequest as error:
            return [self._unread(document, error)]
        weight = parsed_bytes(document)
        if type(value) is list:
            return self._batch(value, weight)
        if type(value) is dict and "hcp_version" in value:
            return [HcpDocument(value, weight)]
        event = self._request(value, None)
        if isinstance(event, Call):
            event.weight = weight
        return [] if event is None else [event]

    def _unread(self, document: bytes, error: InvalidRequest) -> Answer:
        """Refuse a document whose value is not used, with its id, if that is found."""
        id_ = reply_id_in(document)
        return Answer(dump_error(None if id_ in self._outstanding else id_, error))

    def _request(self, value: Any, batch: _Batch | None) -> Call | Answer | None:
        """Return a call, or the answer to a request that cannot become one; None for a notification that cannot."""
        # A peer would take an answer with an outstanding id for that of the outstanding request, so a request that uses
        # such an id again is answered with id null.
        if type(value) is dict and value.get("jsonrpc") == "2.0":
            # HOT: a good request. Everything else is looked at in detail.
            id_: Id | None
            id_, method, params = value.get("id"), value.get("method"), value.get("params")
            if (
                type(method) is str
                and method in METHODS
                and type(params) is dict
                and (type(id_) is str or type(id_) is int)
                and id_ not in self._outstanding
            ):
                self._outstanding.add(id_)
                return Call(id_, method, params, batch)
        return self._other_request(value, batch)

    def _other_request(self, value: Any, batch: _Batch | None) -> Call | Answer | None:
        """Do the same for a notification, and for a request that is wrong."""
        try:
            request = read_request(value)
        except InvalidRequest as error:
            id_ = reply_id_of(value)
            if id_ in self._outstanding:
                id_ = None
            return self._refused(id_, error, batch)
        id_ = request.id
        if id_ is not None and id_ in self._outstanding:
            reused = InvalidRequest(data={"reason": "this id is outstanding on this connection", "id": id_})
            return Answer(dump_error(None, reused))
        if request.method not in METHODS or type(request.params) is not dict:
            # A notification that is wrong is dropped: without an id nothing can answer it (JSON-RPC 2.0, section 4.1).
            return None if id_ is None else self._refused(id_, _refusal(request), batch)
        if id_ is not None:
            self._outstanding.add(id_)
        return Call(id_, request.method, request.params, batch)

    def _refused(self, id_: Id | None, error: RpcError, batch: _Batch | None) -> Answer:
        # In a batch even a refused id is outstanding until the batch is answered: its answer is sent with the others.
        if batch is not None and id_ is not None:
            self._outstanding.add(id_)
            batch.ids.append(id_)
        return Answer(dump_error(id_, error))

    def _batch(self, values: list[Any], weight: int) -> list[Event]:
        if not values or len(values) > self._max_batch:
            reason = f"a batch holds 1 to {self._max_batch} requests, not {len(values)}"
            refusal = InvalidRequest(data={"reason": reason, "max_batch": self._max_batch})
            return [Answer(dump_error(None, refusal))]
        batch = _Batch()
        calls: list[Event] = []
        for value in values:
            event = self._request(value, batch)
            if isinstance(event, Answer):
                batch.lines.append(event.data)
            elif event is not None:
                # The calls hold parts of one document, which is kept until the last of them has been answered.
                event.weight = weight // len(values)
                calls.append(event)
                # A notification of the batch is executed, but no line waits for it.
                batch.open += event.id is not None
        # No call is left to complete the batch, so it is answered now. Without lines it had only notifications.
        if not batch.open and batch.lines:
            calls.append(Answer(self._joined(batch)))
        return calls

    def result(self, call: Call, result: Any) -> bytes | None:
        """Return the bytes that answer a call; None for a notification, or a batch that waits for other answers.

        Raises TypeError for a result that is not JSON: a bug in the server, before anything was answered.
        """
        if call.id is None:
            return None
        # Encoded first: after a TypeError the call is still unanswered, and the executor can answer it with an error.
        line = dump_result(call.id, result)
        if call.batch is None:
            # HOT: as `_answered` has it.
            self._outstanding.discard(call.id)
            return line
        return self._answered(call, line)

    def error(self, call: Call, error: RpcError) -> bytes | None:
        """Return the bytes that answer a failed request, as `result` does."""
        if call.id is None:
            return None
        return self._answered(call, dump_error(call.id, error))

    def _answered(self, call: Call, line: bytes) -> bytes | None:
        batch = call.batch
        if batch is None:
            # Free again: these bytes leave before any answer that is made later, so the peer can tell the two apart.
            self._outstanding.discard(call.id)
            return line
        batch.ids.append(call.id)  # type: ignore[arg-type]
        batch.lines.append(line)
        batch.open -= 1
        return None if batch.open else self._joined(batch)

    def _joined(self, batch: _Batch) -> bytes:
        # All at once, because one line answers them all.
        self._outstanding.difference_update(batch.ids)
        return join_batch(batch.lines)


def _refusal(request: JsonRpcRequest) -> RpcError:
    """Return the error for a request that `_request` cannot turn into a call, whatever its principal."""
    method = request.method
    if method not in METHODS:
        return MethodNotFound(f"Method not found: {method[:200]}", data={"method": method[:200]})
    reason = f"params must be an object, not {kind_of(request.params)}"
    return InvalidParams(f"Invalid params: {reason}", data={"path": "", "reason": reason})
