"""HTTP servers for agent cards on real sockets: the daemon's own routes, and hostile ones by hand."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio
from starlette.applications import Starlette
from support import http

from hearth.actors.listeners.tls import Certificates


@asynccontextmanager
async def hosting(routes, *, certificate=None):
    """Serves Starlette routes on a port of its own; gives the base URL."""
    certificates = None if certificate is None else Certificates("http", *certificate, None, client="none")
    async with http.hosting(Starlette(routes=routes), certificates=certificates) as listener:
        yield listener.address


@asynccontextmanager
async def answering(answer, *, tls=None):
    """Calls `answer(stream, head)` for every request, `head` its bytes to the empty line; gives the base URL.

    The connection ends with it, so that a server can do what no HTTP library would let it. What the peer does not want
    any more it need not take.
    """

    async def handle(stream):
        if tls is not None:
            stream = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        head = b""
        try:
            while b"\r\n\r\n" not in head:
                part = await stream.receive_some()
                if not part:
                    return
                head += part
            await answer(stream, head)
            await stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        try:
            yield f"http{'s' if tls is not None else ''}://127.0.0.1:{port}"
        finally:
            nursery.cancel_scope.cancel()


def response(status, body=b"", **headers):
    """The bytes of a response; "_" in a header's name stands for "-"."""
    lines = [f"HTTP/1.1 {status} Some Reason", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
