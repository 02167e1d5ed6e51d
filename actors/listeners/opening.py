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
    from collections.abc import Sequence
    from pathlib import Path

    from hearth.actors.listeners.accepting import Listener
    from hearth.actors.listeners.tcp import Report
    from hearth.config import Config
    from hearth.policy.rules import PolicyEntry


def open_listeners(
    config: Config, policy: Sequence[PolicyEntry], socket_: socket.socket, path: Path, report: Report
) -> list[Listener]:
    """The Unix socket, which is open already, and what else is configured. Raises ConfigError, and none stays open."""
    send_timeout = config.limits.send_timeout_s
    listeners: list[Listener] = [unix.UnixListener(socket_, path, send_timeout=send_timeout)]
    try:
        if config.tls.listen is not None:
            listeners.append(_tls(config, report))
        if config.websocket.listen is not None:
            listeners.append(_websocket(config, policy, report))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _tls(config: Config, report: Report) -> Listener:
    from hearth.actors.listeners.certificates import Certificates
    from hearth.actors.listeners.tcp import TcpListener, bind
    from hearth.actors.listeners.tls import TlsGreeter

    section, limits = config.tls, config.limits
    assert section.listen is not None
    assert section.cert is not None
    assert section.key is not None
    certificates = Certificates("tls", section.cert, section.key, section.client_ca, client="required")
    greeter = TlsGreeter(
        certificates, handshake_timeout=limits.handshake_timeout_s, send_timeout=limits.send_timeout_s
    )
    listening = bind("tls", section.listen)
    return TcpListener(listening, greeter, certificates, send_timeout=limits.send_timeout_s, report=report)


def _websocket(config: Config, policy: Sequence[PolicyEntry], report: Report) -> Listener:
    from hearth.actors.listeners.certificates import Certificates
    from hearth.actors.listeners.tcp import TcpListener, bind
    from hearth.actors.listeners.websocket import WebSocketGreeter
    from hearth.policy.tokens import Tokens

    section, limits = config.websocket, config.limits
    assert section.listen is not None
    certificates = None
    if section.cert is not None and section.key is not None:
        ca = section.client_ca
        certificates = Certificates(
            "websocket", section.cert, section.key, ca, client="none" if ca is None else "optional"
        )
    greeter = WebSocketGreeter(
        certificates=certificates,
        origins=frozenset(section.origins),
        tokens=Tokens(token_digests(policy)),
        max_document_bytes=limits.max_document_bytes,
        handshake_timeout=limits.handshake_timeout_s,
        send_timeout=limits.send_timeout_s,
        ping_interval=section.ping_interval_s,
        ping_timeout=section.ping_timeout_s,
        behind_proxy=section.plaintext,
    )
    listening = bind("websocket", section.listen)
    return TcpListener(listening, greeter, certificates, send_timeout=limits.send_timeout_s, report=report)
