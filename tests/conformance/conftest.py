"""The daemons that the conformance tests talk to: one for all, and made-to-measure ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.daemon import Hearthd
from conformance.vendor import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conformance.daemon import Peer

CONFIG = """
[board]
profile = "{board}"
[files]
read = ["{files}"]
write = ["{files}"]
[tools]
enable = ["com.example"]
[limits]
max_sessions_per_principal = 10000
[[policy]]
name = "test"
match = {{ any = true }}
max_risk = 2
max_risk_ceiling = 3
rate = {{ "uart.write" = "2/h" }}
"""

BOARD = """
name = "slow-sim"
description = "A simulated board with a slow I2C bus."
[[gpio]]
label = "sim"
driver = "sim"
names = ["GPIO0", "GPIO1", "GPIO2", "GPIO3", "GPIO4", "RELAY", "GPIO6", "GPIO7"]
[gpio.lines.RELAY]
safe = 0
[[i2c]]
bus = 1
driver = "sim"
speed_hz = 1_000
[[i2c.device]]
addr = 0x48
kind = "tmp102"
[[i2c.device]]
addr = 0x50
kind = "24c02"
[[uart]]
port = "uart0"
driver = "sim"
peer = "echo"
[sensors.temperature]
kind = "tmp102"
bus = 1
addr = 0x48
"""
"""A simulated board whose I2C bus is so slow (9 ms a byte) that a test can meet a transaction in the middle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What talks to a process is slow."""
    for item in items:
        if "conformance" in item.path.parts and {"daemon", "hearthd"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", autouse=True)
def _unmeasured(unmeasured: None) -> None:
    """What the sentences are about is measured where the parts are tested."""


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hearthd]:
    """The daemon that most tests share; a test leaves it as it found it."""
    directory = tmp_path_factory.mktemp("hearthd")
    (directory / "board.toml").write_text(BOARD)
    (directory / "files").mkdir()
    (directory / "site").mkdir()
    install(directory / "site")
    running = Hearthd(directory, CONFIG.format(board=directory / "board.toml", files=directory / "files"))
    try:
        yield running.start(env={"PYTHONPATH": str(directory / "site")})
    finally:
        running.end()


@pytest.fixture
def peer(daemon: Hearthd) -> Iterator[Peer]:
    """A connection to it."""
    yield daemon.peer()
    daemon.hang_up()


@pytest.fixture
def session(daemon: Hearthd, peer: Peer) -> Iterator[str]:
    """A session on that connection, which ends before the next test begins."""
    session_id = peer.open(on_disconnect="close")
    yield session_id
    peer.close()
    daemon.recorded(event="session.close", session_id=session_id)


@pytest.fixture
def hearthd(tmp_path: Path) -> Iterator[Callable[..., Hearthd]]:
    """Starts daemons with configurations of their own."""
    made: list[Hearthd] = []

    def start(
        config: str = "", *, server: str = "", audit: str = "", directory: Path | None = None, **more: object
    ) -> Hearthd:
        if directory is None:
            directory = tmp_path / f"daemon{len(made)}"
            directory.mkdir()
        made.append(Hearthd(directory, config, server=server, audit=audit))
        return made[-1].start(**more)  # type: ignore[arg-type]

    yield start
    for running in made:
        running.end()
