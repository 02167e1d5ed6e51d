"""Ports of the loopback address for a listener that a test starts later.

A port of the kernel's choice (a bind to port 0) may be in use again before the listener starts: outgoing connections
get theirs from the same range. These ports lie below that range.
"""

from __future__ import annotations

import random
import socket

RANGE = range(20_000, 32_768)


def free_port() -> int:
    """Return a port that can be bound now."""
    while True:
        port = random.SystemRandom().choice(RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def free_ports(count: int) -> list[int]:
    """Return so many different ports that can be bound now."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)
