"""A session that ends, however it ends, leaves the lines that it drove as the profile says, on two kinds of chips.

gpio-sim is driven in place, the MCP2221 from a thread and through USB's HID; `support.cell` chooses pulls and levels
such that driven, safe and released can be told apart on every line.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.cell import CHIPS, DRIVEN, SAFE, Cell, closes, drive
from support.saboteur import bug, install

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A cell and its daemon, for the tests that end sessions and not the daemon."""
    directory = tmp_path_factory.mktemp("shared")
    install(directory)
    with Cell(directory, adapter=True) as cell:
        env = {"PYTHONPATH": str(directory)}
        cell.running = cell.daemon('[tools]\nenable = ["com.example"]\n', env=env).start()
        yield cell
        assert cell.running.stop() == 0


def closed_by_its_client(_cell, peer, session):
    assert peer.call("session.close", {"session_id": session})["result"] == {"ok": True}


def silent(_cell, _peer, _session):
    """Nothing: the deadman's time runs."""


def disconnected(_cell, peer, _session):
    peer.close()


def crashed(_cell, peer, session):
    """A bug in a vendor's tool, met in the session's own code."""
    assert peer.refusal("task.submit", bug(session))["code"] == -32603


ENDS = {
    "its client": (closed_by_its_client, {}, "closed by the client"),
    "its silence": (silent, {"heartbeat_ms": 1500}, "no heartbeat within 1500 ms"),
    "its connection": (disconnected, {"on_disconnect": "close"}, "its client disconnected"),
    "its crash": (crashed, {}, "internal error"),
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("by", ENDS)
def test_lines_that_a_session_drove_are_as_the_profile_says_when_it_is_ended_by(by, chip, shared) -> None:
    end, opening, reason = ENDS[by]
    peer = shared.running.peer()
    session = peer.open(**opening)
    drive(peer, session, chip)
    assert by == "its silence" or shared.levels(chip) == DRIVEN
    end(shared, peer, session)
    shared.running.until(lambda: bool(closes(shared.running, session)))
    assert shared.levels(chip) == SAFE[chip]
    [close] = closes(shared.running, session)
    assert close["reason"] == reason


_CONTROLLER = """
import hearth, sys, trio
async def main():
    async with hearth.connect(sys.argv[1]) as client, client.open_session() as session:
        for setting in sys.argv[3:]:
            line, value = setting.split("=")
            await session.run("gpio.set", chip=sys.argv[2], line=line, value=int(value))
        print("driving", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.mark.parametrize("chip", CHIPS)
def test_lines_are_as_the_profile_says_when_the_program_that_drove_them_is_killed(chip, shared) -> None:
    settings = [f"{line}={level}" for line, level in DRIVEN.items()]
    controller = subprocess.Popen(
        [sys.executable, "-c", _CONTROLLER, str(shared.running.socket), chip, *settings], stdout=subprocess.PIPE
    )
    with controller, controller.stdout:
        assert controller.stdout.readline() == b"driving\n"
        assert shared.levels(chip) == DRIVEN
        controller.kill()
    shared.running.until(lambda: shared.levels(chip) == SAFE[chip])


def test_a_line_that_was_not_driven_is_not_touched(shared) -> None:
    assert not shared.user_of("lamp").used
