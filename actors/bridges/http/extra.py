"""HTTP as an extra: opens the listener of [http], with the dashboard, /metrics, the agent card and, if asked, MCP."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from hearth.actors.bridges.http import dashboard
from hearth.actors.bridges.http.app import HACP, Hosts, opened
from hearth.actors.bridges.http.listener import HttpListener
from hearth.actors.listeners.tcp import bind
from hearth.actors.listeners.tls import certificates_of
from hearth.extras import OWN

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from starlette.types import ASGIApp

    from hearth.actors.listeners.accept import Listener, Opening
    from hearth.actors.runtime import Runtime


def open_http(opening: Opening) -> Listener:
    """Open the listener of [http]. See Extra."""
    section, limits, runtime = opening.config.http, opening.config.limits, opening.runtime
    certificates, websocket = certificates_of("http", section), None
    with_mcp = OWN["mcp"].active(opening.config)
    listening = bind("http", section.listen)
    if with_mcp:
        # Import them before the daemon is ready: it takes most of a second.
        for name in ("hearth.actors.bridges.mcp.http", "anyio._backends._trio"):
            import_module(name)
    page = dashboard.load() if section.ui else {}
    if page:
        from hearth.actors.listeners.websocket import handshaker_of

        # The origin is checked against the request's own Host, by `hosts`.
        websocket = handshaker_of(opening, certificates, origins=None, behind_proxy=section.plaintext, path=HACP)
    hosts = Hosts(section.hosts, section.origins, encrypted=section.cert is not None, behind_proxy=section.plaintext)

    def open_app() -> AbstractAsyncContextManager[ASGIApp]:
        reporting = partial(opening.report, "http" if certificates is None else "https")
        return opened(opening.config, runtime(), hosts, reporting, with_mcp=with_mcp, page=page)

    def count(carrier: str) -> AbstractContextManager[None]:
        serving: Runtime = runtime()
        return serving.parts.journal.metrics.connection(carrier)

    return HttpListener(
        listening,
        certificates,
        open_app,
        handshake_timeout=limits.handshake_timeout_s,
        send_timeout=limits.send_timeout_s,
        report=opening.report,
        count=count,
        hosts=hosts,
        websocket=websocket,
    )
