"""Where a request ends, and how many bytes it may spend besides its body.

h11 parses. Its own bound holds only while an event is incomplete: a head that arrives in one segment passes it,
whatever its size. Here both bounds are exact, however the bytes are cut into segments: `HEADER_BYTES` for request line
and headers, as much again for what frames a chunked body (chunk lines with their extensions, and trailers). That holds
as long as the connection is never given more than `room` bytes before its events are taken.

A request that a proxy before us may have ended elsewhere is refused: one with both Content-Length and
Transfer-Encoding, and one of HTTP/1.0 with Transfer-Encoding (RFC 9112, section 6.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import h11

if TYPE_CHECKING:
    from h11 import Event

HEADER_BYTES: Final = 16 << 10
"""A request's line and headers at most; beyond it is answered 431."""
FRAMING_EACH: Final = 8
"""Bytes of framing that each byte of a chunked body may add: a chunk of one byte takes five."""


class Framing(h11.Connection):
    """The server's end of one connection."""

    def __init__(self) -> None:
        # h11 refuses what is incomplete beyond this size: a head of HEADER_BYTES without its end is already too long.
        super().__init__(h11.SERVER, max_incomplete_event_size=HEADER_BYTES - 1)
        self._unread = 0
        """Bytes received and not yet parsed."""
        self._framing = 0
        self._body = 0
        self.answers_head = False
        """Whether the request is a HEAD, so that its answer has no body."""

    @property
    def room(self) -> int:
        """How many bytes to give it next, at most."""
        return max(1, HEADER_BYTES - self._unread)

    def receive_data(self, data: bytes) -> None:
        """See h11.Connection."""
        self._unread += len(data)
        super().receive_data(data)

    def next_event(self) -> Event | type[h11.NEED_DATA | h11.PAUSED]:
        """See h11.Connection. Raises RemoteProtocolError for what is too long or has no clear end."""
        before = self._unread
        event = super().next_event()
        self._unread = len(self.trailing_data[0])
        parsed = before - self._unread
        if isinstance(event, h11.Request):
            self._framing = self._body = 0
            self.answers_head = event.method == b"HEAD"
            _require_one_length(event)
            return event
        carried = len(event.data) if isinstance(event, h11.Data) else 0
        self._framing += parsed - carried
        # Compared before its data are added: each line has to fit what came before it, wherever the segments end.
        if self._framing > HEADER_BYTES + FRAMING_EACH * self._body:
            raise h11.RemoteProtocolError("too much framing for the body", error_status_hint=431)
        self._body += carried
        return event


def _require_one_length(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
        raise h11.RemoteProtocolError("the request's length is given in two ways", error_status_hint=400)
