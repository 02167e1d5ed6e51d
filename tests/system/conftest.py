"""Daemons to try things on; what they are is in tests/support/hearthd.py."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from support.hearthd import Hearthd, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hearthd]:
    """One daemon for the tests of a module that leave it as they found it."""
    directory = tmp_path_factory.mktemp("shared")
    daemon = Hearthd(directory, "[limits]\nmax_sessions_per_principal = 1000\n").start()
    yield daemon
    for peer in daemon.peers:
        peer.close()
    assert daemon.stop() == 0
    assert "crashed" not in daemon.said, daemon.said


@pytest.fixture
def peer(shared: Hearthd) -> Iterator[Peer]:
    """A connection to the shared daemon."""
    connected = Peer(shared.socket)
    yield connected
    connected.close()


@pytest.fixture
def hearthd(tmp_path: Path) -> Iterator[Callable[..., Hearthd]]:
    """Makes daemons, and ends those that are left."""
    made: list[Hearthd] = []

    def make(config: str = "", *, env: dict[str, str] | None = None, directory: Path | None = None) -> Hearthd:
        daemon = Hearthd(directory or tmp_path, config, env)
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        for peer in daemon.peers:
            peer.close()
        if daemon.process is not None and daemon.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                daemon.kill()
