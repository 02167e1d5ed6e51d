"""What becomes of driven lines when hearthd itself ends: with SIGTERM, and with kill -9 until the next start.

Nothing but the kernel holds a line once its user is dead, and what becomes of one that nobody holds is the chip's
affair: gpio-sim lets it go back to its pull, the MCP2221 leaves it driven as it was, as many chips do.
"""

from __future__ import annotations

import random
import signal

import pytest
from support.cell import CHIPS, DRIVEN, MCP, MEMORY, RELEASED, SAFE, SIM, Cell, SlowLines, closes, drive
from support.hearthd import submission

from hearth.audit.verify import verify

pytestmark = pytest.mark.slow

AFTER_DEATH = {SIM: RELEASED, MCP: DRIVEN}
"""What the kernel makes of lines whose user was killed while it drove them."""
AFTER_START = {chip: {**SAFE[chip], "latch": AFTER_DEATH[chip]["latch"]} for chip in CHIPS}
"""A line with hold = "keep" is not touched: it stays as the kernel has made it."""


@pytest.fixture
def cell(tmp_path):
    with Cell(tmp_path, adapter=True) as made:
        yield made


@pytest.mark.parametrize("chip", CHIPS)
def test_sigterm_brings_lines_to_their_safe_state_before_the_process_lets_them_go(chip, cell) -> None:
    daemon = cell.daemon().start()
    peer = daemon.peer()
    session = peer.open()
    drive(peer, session, chip)
    assert daemon.stop() == 0
    [close] = closes(daemon, session)
    assert close["reason"] == "shutting down"
    safe = {report["line"]: report["safe"] for report in close["safe"]}
    assert safe == {0: 0, 1: 1, 2: "input"}
    # The levels hold for as long as their requests live, which is until the process has ended.
    assert cell.levels(chip) == {SIM: RELEASED, MCP: SAFE[MCP]}[chip]
    assert not cell.user_of("relay").used


@pytest.mark.parametrize("chip", CHIPS)
def test_after_kill_9_lines_are_what_the_kernel_makes_of_them_until_the_next_start_makes_them_safe(chip, cell) -> None:
    daemon = cell.daemon().start()
    peer = daemon.peer()
    drive(peer, peer.open(), chip)
    assert cell.levels(chip) == DRIVEN
    daemon.kill()
    assert cell.levels(chip) == AFTER_DEATH[chip]
    assert not cell.user_of("relay").used
    daemon.start()
    # Whoever connects finds it done: nobody has asked for anything yet.
    assert cell.levels(chip) == AFTER_START[chip]
    [made_safe] = [r for r in daemon.records() if r["event"] == "outputs.safe"]
    assert made_safe["bus"] == f"gpio:{chip}"


def test_a_line_that_was_being_driven_when_kill_9_came_is_made_safe_by_the_next_start(cell) -> None:
    """The output is written down before it is driven: here the daemon dies while the adapter is about to do that."""
    lines = SlowLines(cell.wire)
    daemon = cell.daemon().start()
    peer = daemon.peer()
    session = peer.open()
    lines.hold()
    peer.submit(session, ("gpio.set", {"chip": MCP, "line": "relay", "value": 1}))
    assert lines.reached.wait(60)
    assert cell.level("relay", MCP) == "input"
    daemon.signal(signal.SIGKILL)
    # What is in the kernel goes on there, though whoever asked for it is dead.
    lines.let_go()
    daemon.wait()
    assert cell.level("relay", MCP) == 1
    daemon.start()
    assert cell.level("relay", MCP) == 0


def test_lines_are_safe_after_every_start_whenever_kill_9_came(cell) -> None:
    rng = random.Random(9)
    safe = {line: level for line, level in SAFE[MCP].items() if line != "latch"}
    daemon = cell.daemon().start()
    for _ in range(6):
        peer = daemon.peer()
        session = peer.open()
        # At first every line to where it is not safe, then any line anywhere.
        settings = [*DRIVEN.items(), *((rng.choice(list(safe)), rng.randrange(2)) for _ in range(100))]
        steps = [("gpio.set", {"chip": MCP, "line": line, "value": value}) for line, value in settings]
        peer.start("task.submit", {**submission(session, *steps), "subscribe": True})
        for _ in range(rng.randrange(2, 150)):
            assert peer.line() is not None
        daemon.kill()
        daemon.start()
        assert {line: cell.level(line, MCP) for line in safe} == safe
    assert daemon.stop() == 0
    assert verify(daemon.audit).ok


def test_a_hanging_adapter_does_not_keep_sigterm_from_making_other_lines_safe(cell) -> None:
    daemon = cell.daemon("[limits]\nclose_grace_s = 0.2\n").start()
    peer = daemon.peer()
    session = peer.open()
    drive(peer, session, SIM)
    cell.wire.wedge()
    peer.submit(session, ("i2c.write", {"bus": 1, "addr": MEMORY, "data": "AAAA"}))
    cell.wire.wait_held()
    daemon.signal(signal.SIGTERM)
    daemon.until(lambda: cell.levels(SIM) == SAFE[SIM])
    cell.wire.release()
    assert daemon.wait() == 0
    assert cell.wire.log[-1].whole
    [close] = closes(daemon, session)
    assert close["yielding"] == 1
