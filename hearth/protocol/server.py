"""The server's end of a connection: bytes to calls, answers to bytes. Sans-IO.

Theory of operation. `ServerProtocol` takes the bytes that a peer sent and returns events; it never raises for anything
a peer can send, and does no I/O. The attacker is the peer, before and after authentication: any sequence of bytes must
end in events, bounded memory and bounded work.

- Framing bounds a document's bytes. A longer one is answered once with an error, then comes `Close`: where the next
  document begins cannot be known, so all further bytes are ignored.
- Before parsing, the number of values is bounded (`framing`); the parser bounds the depth and refuses bytes that are
  not JSON (`jsonrpc`). Each failure is answered with an error of JSON-RPC, and the connection goes on.
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
- `weight` is an upper bound of a request's memory. The connection charges it to the principal until the answer is
  made; the calls of a batch share it, because they hold parts of one document.

This module does not know what a method does, who the peer is, or how bytes travel. The methods read their own params
(`methods`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

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


class _Batch:
    """One batch in progress: the answers that are ready, refusals first, then in the order of completion.

    Its ids stay outstanding until the line that answers them all is made, because until then the peer has no answer.
    """

    __slots__ = ("ids", "kept", "lines", "open")

    def __init__(self) -> None:
        self.ids: list[Id] = []
        self.lines: list[bytes] = []
        self.open = 0
        self.kept = 0
        """Bytes of `lines` that are charged to the principal."""


class ServerProtocol:
    """One connection. `receive` and the two answering methods never raise for anything a peer can send."""

    __slots__ = ("_framer", "_max_batch", "_max_document_bytes", "_max_values", "_outstanding", "closed")

    def __init__(self, *, max_document_bytes: int = 1 << 20, max_batch: int = 64, max_values: int = MAX_VALUES) -> None:
        self._framer = LineFramer(max_document_bytes)
        self._max_document_bytes = max_document_bytes
        self._max_batch = max_batch
        self._max_values = max_values
        self._outstanding: set[Id] = set()
        self.closed = False

    @property
    def partial_bytes(self) -> int:
        """The bytes held of an incomplete document."""
        return self._framer.partial_bytes

    @property
    def outstanding(self) -> int:
        """The number of requests without an answer. Notifications do not count: they have none."""
        return len(self._outstanding)

    def receive(self, data: bytes) -> list[Event]:
        """Take received bytes; return their events, in order. After a Close all further bytes are ignored."""
        return list(self.events(data))

    def events(self, data: bytes) -> Iterator[Event]:
        """Yield the events of received bytes, in order. Each document is read after the events before it are taken.

        There may be thousands: a caller can let other tasks run between two. It must take all events before it passes
        more bytes.
        """
        if self.closed:
            return
        try:
            documents = self._framer.feed(data)
        except DocumentTooLong as error:
            # Documents that were complete before the long one still get their answers.
            for document in error.documents:
                yield from self._document(document)
            yield from self._too_long(error)
            return
        for document in documents:
            yield from self._document(document)

    def receive_document(self, document: bytes) -> list[Event]:
        """Take one whole document from a carrier that frames by itself (draft §2.2); after a Close, nothing."""
        if self.closed:
            return []
        if len(document) > self._max_document_bytes:
            return self._too_long(DocumentTooLong(self._max_document_bytes, []))
        return self._document(document)

    def unreadable(self, reason: str) -> list[Event]:
        """Return the answer to a message of such a carrier that is not a document at all."""
        return [] if self.closed else [Answer(dump_error(None, ParseError(data={"reason": reason})))]

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
            return [Answer(dump_error(None, InvalidRequest("Invalid Request: too many values", data=data)))]
        try:
            value = load(document)
        except ParseError as error:
            return [Answer(dump_error(None, error))]
        weight = parsed_bytes(document)
        if type(value) is list:
            return self._batch(value, weight)
        if type(value) is dict and "hcp_version" in value:
            return [HcpDocument(value, weight)]
        event = self._request(value, None)
        if isinstance(event, Call):
            event.weight = weight
        return [] if event is None else [event]

    def _request(self, value: Any, batch: _Batch | None) -> Call | Answer | None:
        """Return a call, or the answer to a request that cannot become one; None for a notification that cannot."""
        # A peer would take an answer with an outstanding id for that of the outstanding request, so a request that uses
        # such an id again is answered with id null.
        if type(value) is dict and value.get("jsonrpc") == "2.0":
            # HOT: a good request. Everything else is looked at in detail below.
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
