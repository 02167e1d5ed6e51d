"""A device that is unplugged and comes back: what a whole hearthd makes of it, its debts included.

The adapter keeps the levels of its lines while it is unplugged, as one with a supply of its own does: so what was
driven stays driven until somebody makes it safe.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.cell import CHIPS, DRIVEN, MCP, MEMORY, SAFE, SIM, Cell, closes, drive

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.hearthd import Hearthd

pytestmark = pytest.mark.slow

BUS = f"gpio:{MCP}"
I2C = "i2c:1"
PULSE_MS = 10_000
"""Long enough to unplug the adapter meanwhile, on a busy machine too."""
RETURN_S = 90
"""A device that returns is noticed 30 s later at the latest; its nodes come one by one, so a second look may be due."""


@pytest.fixture
def cell(tmp_path):
    with Cell(tmp_path, adapter=True) as made:
        yield made


def states(daemon: Hearthd) -> dict[str, Any]:
    peer = daemon.peer()
    try:
        return {bus: health["state"] for bus, health in peer.health()["buses"].items()}
    finally:
        peer.close()
        daemon.peers.remove(peer)


def are(daemon: Hearthd, state: str) -> bool:
    """True when both buses of the adapter are in this state."""
    now = states(daemon)
    return bool(now[BUS] == now[I2C] == state)


def driven(daemon: Hearthd) -> Any:
    outputs_file = Path(f"{daemon.audit}.outputs")
    return json.loads(outputs_file.read_text())["outputs"] if outputs_file.exists() else {}


def when_back(condition: Callable[[], bool]) -> None:
    """Wait for what follows the return of the adapter, and fail if it does not."""
    limit = time.monotonic() + RETURN_S
    while not condition():
        assert time.monotonic() < limit, f"not within {RETURN_S} s of its return"
        time.sleep(0.02)


def told(daemon: Hearthd, event: str, count: int, member: str = "event") -> list[dict[str, Any]]:
    """The records of an event that have a member, once there are as many: the file is written after the fact."""

    def found() -> list[dict[str, Any]]:
        return [record for record in daemon.records() if record["event"] == event and member in record]

    when_back(lambda: len(found()) >= count)
    return found()


def unplug(cell: Cell, daemon: Hearthd) -> None:
    """The daemon lets go by itself: else the kernel would wait for it, and the test would fail here."""
    cell.adapter.unplug()
    daemon.until(lambda: are(daemon, "down"))


def test_unplugged_says_why_spares_the_others_and_serves_again_when_it_is_back(cell) -> None:
    daemon = cell.daemon().start()
    peer = daemon.peer()
    session = peer.open()
    # This adapter reports no edges: what lasts on it is a pulse, whose end must run.
    pulse = peer.submit(session, ("gpio.pulse", {"chip": MCP, "line": "brake", "value": 0, "duration_ms": PULSE_MS}))
    daemon.until(lambda: cell.level("brake", MCP) == 0)
    unplug(cell, daemon)
    for tool, args in [
        ("gpio.set", {"chip": MCP, "line": "relay", "value": 1}),
        ("i2c.read", {"bus": 1, "addr": MEMORY, "reg": 0, "len": 1}),
    ]:
        step = peer.run(session, tool, **args)
        assert (step["error_code"], step["error_data"]["effect"]) == (-32009, "none"), step
        assert step["error_data"]["state"] == "down"
    assert peer.run(session, "gpio.set", chip=SIM, line="lamp", value=1)["status"] == "SUCCESS"
    cell.adapter.replug()
    when_back(lambda: are(daemon, "ready"))
    # It waited for the device: nobody else can bring the line back.
    assert peer.wait(session, pulse)["steps"][0]["result"]["restored"] is True
    assert cell.level("brake", MCP) == "input"
    assert peer.run(session, "gpio.set", chip=MCP, line="relay", value=1)["status"] == "SUCCESS"
    assert peer.run(session, "i2c.read", bus=1, addr=MEMORY, reg=0, len=1)["status"] == "SUCCESS"
    # Each at least once: an adapter that is just coming back may go once more.
    when_back(lambda: {record["bus"] for record in daemon.records(event="bus.reopened")} == {BUS, I2C})


def test_lines_of_a_session_that_ended_while_the_chip_was_unplugged_are_safe_when_it_is_back(cell) -> None:
    daemon = cell.daemon().start()
    peer = daemon.peer()
    session = peer.open()
    for chip in CHIPS:
        drive(peer, session, chip)
    unplug(cell, daemon)
    assert peer.call("session.close", {"session_id": session})["result"] == {"ok": True}
    assert cell.levels(SIM) == SAFE[SIM]
    [close] = closes(daemon, session)
    assert {report["line"] for report in close["safe"]} == {0, 1, 2}, "those of the chip that is there"
    assert list(driven(daemon)) == [BUS]
    cell.adapter.replug()
    when_back(lambda: not driven(daemon))
    assert cell.levels(MCP) == SAFE[MCP]
    [safe] = told(daemon, "outputs.safe", 1)
    assert (safe["bus"], safe["session_id"], safe["outputs"]) == (BUS, session, [0, 1, 2, 3])


def test_sigterm_does_not_wait_for_a_chip_that_is_gone_and_the_next_start_makes_it_safe(cell) -> None:
    daemon = cell.daemon().start()
    peer = daemon.peer()
    drive(peer, peer.open(), MCP)
    unplug(cell, daemon)
    assert daemon.stop() == 0
    assert list(driven(daemon)) == [BUS]
    # The next one starts without the chip, serves the others, and keeps in mind what is owed.
    daemon.start()
    assert states(daemon)[BUS] == "down"
    assert states(daemon)[f"gpio:{SIM}"] == "ready"
    assert list(driven(daemon)) == [BUS]
    cell.adapter.replug()
    when_back(lambda: not driven(daemon))
    assert cell.levels(MCP) == SAFE[MCP]
    assert cell.levels(MCP) != DRIVEN
    [safe] = told(daemon, "outputs.safe", 1, "safe")
    assert "session_id" not in safe
