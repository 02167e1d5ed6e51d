"""From a configuration to open listeners: the one place that knows which section makes which.

All are opened before the first peer is served, so that a daemon which cannot have one of its addresses does not start.
A carrier that is not configured is not imported either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.actors.listeners import unix
from hearth.policy.rules import token_digests

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence, Set as AbstractSet
    from pathlib import Path

    from hearth.actors.listeners.accepting import Listener
    from hearth.actors.listeners.certificates import Certificates
    from hearth.actors.listeners.tcp import Report
    from hearth.config import Config, Endpoint
    from hearth.policy.rules import PolicyEntry


def read_certificates(config: Config) -> dict[str, Certificates]:
    """The certificates of each section that has some. Reads files, binds nothing. Raises ConfigError."""
    found: dict[str, Certificates] = {}
    if config.tls.listen is None and config.websocket.listen is None:
        return found
    from hearth.actors.listeners.certificates import Certificates

    tls, websocket = config.tls, config.websocket
    if tls.listen is not None and tls.cert is not None and tls.key is not None:
        found["tls"] = Certificates("tls", tls.cert, tls.key, tls.client_ca, client="required")
    if websocket.listen is not None and websocket.cert is not None and websocket.key is not None:
        client_ca = websocket.client_ca
        found["websocket"] = Certificates(
            "websocket", websocket.cert, websocket.key, client_ca, client="none" if client_ca is None else "optional"
        )
    return found


def open_listeners(
    config: Config, policy: Sequence[PolicyEntry], socket_: socket.socket, path: Path, report: Report
) -> list[Listener]:
    """The Unix socket, which is open already, and what else is configured. Raises ConfigError, and none stays open."""
    listeners: list[Listener] = [unix.UnixListener(socket_, path, send_timeout=config.limits.send_timeout_s)]
    try:
        certificates = read_certificates(config)
        if config.tls.listen is not None:
            listeners.append(_tls(config, certificates["tls"], config.tls.listen, report))
        if config.websocket.listen is not None:
            tokens = token_digests(policy)
            listeners.append(
                _websocket(config, tokens, certificates.get("websocket"), config.websocket.listen, report)
            )
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _tls(config: Config, certificates: Certificates, listen: Endpoint, report: Report) -> Listener:
    from hearth.actors.listeners.tcp import TcpListener, bind
    from hearth.actors.listeners.tls import TlsGreeter

    limits = config.limits
    greeter = TlsGreeter(
        certificates, handshake_timeout=limits.handshake_timeout_s, send_timeout=limits.send_timeout_s
    )
    listening = bind("tls", listen)
    return TcpListener(listening, greeter, certificates, send_timeout=limits.send_timeout_s, report=report)


def _websocket(
    config: Config,
    tokens: AbstractSet[str],
    certificates: Certificates | None,
    listen: Endpoint,
    report: Report,
) -> Listener:
    from hearth.actors.listeners.tcp import TcpListener, bind
    from hearth.actors.listeners.websocket import WebSocketGreeter
    from hearth.policy.tokens import Tokens

    section, limits = config.websocket, config.limits
    greeter = WebSocketGreeter(
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
    return TcpListener(listening, greeter, certificates, send_timeout=limits.send_timeout_s, report=report)
