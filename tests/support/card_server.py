"""HTTP servers for agent cards on real sockets: the daemon's own routes under hypercorn, and hostile ones by hand."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette


@asynccontextmanager
async def hosting(routes, *, certificate=None):
    """Serves Starlette routes over hypercorn's Trio worker on a port of its own; gives the base URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.accesslog = config.errorlog = None
    config.graceful_timeout = 1
    if certificate is not None:
        config.certfile, config.keyfile = map(str, certificate)
    over = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run(*, task_status):
            await serve(
                Starlette(routes=routes), config, shutdown_trigger=over.wait, task_status=task_status, mode="asgi"
            )

        (bound,) = await nursery.start(run)
        try:
            yield bound if certificate is None else bound.replace("http://", "https://")
        finally:
            over.set()


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
