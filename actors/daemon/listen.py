"""Opens the listeners of a configuration; only this module knows which section makes which listener.

All are opened before the first peer is served, so that a daemon which cannot have one of its addresses does not start.
A carrier that is not configured is not imported.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hearth.actors.listeners import unix
from hearth.errors import ConfigError
from hearth.policy.rules import token_digests

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence, Set as AbstractSet
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from pathlib import Path

    from starlette.types import ASGIApp

    from hearth.actors.listeners.accept import Listener
    from hearth.actors.listeners.tcp import Report
    from hearth.actors.listeners.tls import Certificates
    from hearth.actors.runtime import Runtime
    from hearth.config.listen import Endpoint
    from hearth.config.model import Config
    from hearth.policy.rules import PolicyEntry


def read_certificates(config: Config) -> dict[str, Certificates]:
    """Return the certificates of each section that has some. Reads files, binds nothing. Raises ConfigError."""
    found: dict[str, Certificates] = {}
    tls, websocket, http = config.tls, config.websocket, config.http
    if tls.listen is None and websocket.listen is None and http.listen is None:
        return found
    from hearth.actors.listeners.tls import Certificates

    if tls.listen is not None and tls.cert is not None and tls.key is not None:
        found["tls"] = Certificates("tls", tls.cert, tls.key, tls.client_ca, client="required")
    for name, section in (("websocket", websocket), ("http", http)):
        if section.listen is not None and section.cert is not None and section.key is not None:
            client_ca = section.client_ca
            found[name] = Certificates(
                name, section.cert, section.key, client_ca, client="none" if client_ca is None else "optional"
            )
    return found


def serves_mcp(config: Config) -> bool:
    """Return True if [http] serves /mcp. Raises ConfigError if a configured extra is not installed."""
    section = config.http
    if section.listen is None:
        return False
    if any(find_spec(name) is None for name in ("hypercorn", "starlette", "prometheus_client")):
        raise ConfigError("[http] listen: the HTTP server is not installed; pip install 'hearthd[http]'")
    installed = find_spec("mcp") is not None
    if section.mcp and not installed:
        cure = "pip install 'hearthd[mcp]', or take mcp = true out"
        raise ConfigError(f"[http] mcp: the MCP SDK is not installed; {cure}")
    return installed and section.mcp is not False


def open_listeners(
    config: Config,
    policy: Sequence[PolicyEntry],
    socket_: socket.socket,
    path: Path,
    report: Report,
    runtime: Callable[[], Runtime] | None = None,
) -> list[Listener]:
    """Open the configured listeners; return them after the Unix socket, which is open already.

    `runtime` returns the runtime, once there is one, for listeners that serve more than sessions. Raises ConfigError;
    no listener is left open then.
    """
    listeners: list[Listener] = [unix.UnixListener(socket_, path, send_timeout=config.limits.send_timeout_s)]
    try:
        certificates = read_certificates(config)
        if config.tls.listen is not None:
            listeners.append(_tls(config, certificates["tls"], config.tls.listen, report))
        if config.websocket.listen is not None:
            tokens = token_digests(policy)
            listeners.append(_websocket(config, tokens, certificates.get("websocket"), config.websocket.listen, report))
        if config.http.listen is not None:
            assert runtime is not None, "[http] needs a runtime"
            listeners.append(_http(config, certificates.get("http"), config.http.listen, report, runtime))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _tls(config: Config, certificates: Certificates, listen: Endpoint, report: Report) -> Listener:
    from hearth.actors.listeners.tcp import TcpListener, bind
    from hearth.actors.listeners.tls import TlsHandshake

    limits = config.limits
    handshaker = TlsHandshake(
        certificates, handshake_timeout=limits.handshake_timeout_s, send_timeout=limits.send_timeout_s
    )
    listening = bind("tls", listen)
    return TcpListener(listening, handshaker, certificates, send_timeout=limits.send_timeout_s, report=report)


def _websocket(
    config: Config,
    tokens: AbstractSet[str],
    certificates: Certificates | None,
    listen: Endpoint,
    report: Report,
) -> Listener:
    from hearth.actors.listeners.tcp import TcpListener, bind
    from hearth.actors.listeners.websocket import WebSocketHandshake
    from hearth.policy.principal import Tokens

    section, limits = config.websocket, config.limits
    handshaker = WebSocketHandshake(
        certificates=certificates,
        origins=frozenset(section.origins),
        tokens=Tokens(tokens),
        max_document_bytes=limits.max_document_bytes,
        handshake_timeout=limits.handshake_timeout_s,
        send_timeout=limits.send_timeout_s,
        ping_interval=section.ping_interval_s,
        ping_timeout=section.ping_timeout_s,
        behind_proxy=section.plaintext,
    )
    listening = bind("websocket", listen)
    return TcpListener(listening, handshaker, certificates, send_timeout=limits.send_timeout_s, report=report)


def _http(
    config: Config,
    certificates: Certificates | None,
    listen: Endpoint,
    report: Report,
    runtime: Callable[[], Runtime],
) -> Listener:
    with_mcp = serves_mcp(config)
    from hearth.actors.listeners.tcp import bind

    listening = bind("http", listen)
    from hearth.actors.bridges.http.app import opened
    from hearth.actors.bridges.http.listener import HttpListener

    if with_mcp:
        # Import it before the daemon is ready: it takes most of a second.
        import_module("hearth.actors.bridges.mcp.http")

    def open_app() -> AbstractAsyncContextManager[ASGIApp]:
        return opened(
            config, runtime(), partial(report, "http" if certificates is None else "https"), with_mcp=with_mcp
        )

    def count(carrier: str) -> AbstractContextManager[None]:
        return runtime().parts.journal.metrics.connection(carrier)

    limits = config.limits
    return HttpListener(
        listening,
        certificates,
        open_app,
        handshake_timeout=limits.handshake_timeout_s,
        send_timeout=limits.send_timeout_s,
        report=report,
        count=count,
    )
