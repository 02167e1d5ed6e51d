"""What a daemon that was killed left driven is made safe by the next one; a daemon at rest rests (design §4)."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from support.modbus_server import modbus_server

from hearth.audit.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

BUS = "gpio:sim"
LED, LATCH, OTHER = 17, 31, 18
"""LED goes to 0, OTHER becomes an input, LATCH holds its level."""


def outputs_file(running) -> Path:
    return Path(f"{running.audit}.outputs")


def driven(running) -> Any:
    return json.loads(outputs_file(running).read_text())["outputs"] if outputs_file(running).exists() else {}


def drive(running, *lines: int, **session: Any) -> str:
    peer = running.peer()
    opened = peer.open(**session)
    for line in lines:
        assert peer.run(opened, "gpio.set", line=line, value=1)["status"] == "SUCCESS"
    return str(opened)


def after_kill(running) -> list[dict[str, Any]]:
    """What the run that follows the last kill has written."""
    records = running.records()
    (recover,) = [number for number, record in enumerate(records) if record["event"] == "daemon.recover"]
    return list(records[recover:])


def test_what_a_killed_daemon_left_driven_is_made_safe_before_the_next_one_serves(hearthd) -> None:
    running = hearthd().start()
    drive(running, LED, LATCH)
    drive(running, OTHER)
    assert driven(running) == {BUS: [LED, LATCH, OTHER]}
    assert stat.S_IMODE(outputs_file(running).stat().st_mode) == 0o600
    running.kill()
    assert driven(running) == {BUS: [LED, LATCH, OTHER]}
    running.start()
    assert driven(running) == {}
    records = after_kill(running)
    assert [record["event"] for record in records[:3]] == ["daemon.recover", "outputs.safe", "daemon.start"]
    safe = records[1]
    assert (safe["bus"], safe["outputs"]) == (BUS, [LED, LATCH, OTHER])
    assert [(done["line"], done["safe"]) for done in safe["safe"]] == [(LED, 0), (OTHER, "input")]
    assert "session_id" not in safe
    assert f"bus {BUS}: outputs 17, 31, 18, driven by an earlier run, were brought to their safe state" in running.said
    assert running.stop() == 0
    assert verify([running.audit]).ok


def test_a_daemon_that_ends_in_order_leaves_no_debts(hearthd) -> None:
    running = hearthd().start()
    drive(running, LED, LATCH)
    assert driven(running) == {BUS: [LED, LATCH]}
    assert running.stop() == 0
    assert driven(running) == {}
    events = [record["event"] for record in running.records()]
    assert events.index("session.close") < events.index("daemon.stop")
    running.start()
    later = [record["event"] for record in running.records()][len(events) :]
    assert [event for event in later if event != "audit.checkpoint"] == ["daemon.start"]


def test_outputs_are_written_down_for_a_kill_in_the_middle_of_the_first_step(hearthd) -> None:
    running = hearthd().start()
    peer = running.peer()
    session = peer.open()
    peer.submit(session, ("gpio.pulse", {"line": LED, "value": 1, "duration_ms": 60_000}))
    running.until(lambda: driven(running) == {BUS: [LED]})
    running.kill()
    running.start()
    (safe,) = [record for record in after_kill(running) if record["event"] == "outputs.safe"]
    assert [done["line"] for done in safe["safe"]] == [LED]


@pytest.mark.parametrize("content", [b"", b'{"version":1,"outp', b'{"version":1,"outputs":{"gpio:gone":[1]}}'])
def test_an_unusable_file_keeps_no_daemon_from_starting_and_is_named(hearthd, content: bytes) -> None:
    running = hearthd()
    outputs_file(running).write_bytes(content)
    running.start()
    (unknown,) = [record for record in running.records() if record["event"] == "outputs.unknown"]
    if b"gone" in content:
        assert (unknown["bus"], unknown["outputs"]) == ("gpio:gone", [1])
        assert "gpio:gone" in running.said
    else:
        assert (outputs_file(running).parent / unknown["file"]).read_bytes() == content
        assert str(outputs_file(running)) in running.said
    assert not outputs_file(running).exists()
    drive(running, LED)
    assert driven(running) == {BUS: [LED]}
    assert running.stop() == 0
    assert verify([running.audit]).ok


def test_a_line_that_the_profile_does_not_have_is_left_alone_and_said_to_be(hearthd) -> None:
    running = hearthd()
    outputs_file(running).write_text(json.dumps({"version": 1, "outputs": {BUS: [LED, 99]}}))
    running.start()
    (safe,) = [record for record in running.records() if record["event"] == "outputs.safe"]
    known, unknown = safe["safe"]
    assert (known["line"], known["safe"]) == (LED, 0)
    assert unknown == {"line": 99, "note": "left alone: not in this board's profile"}
    assert driven(running) == {}


PLANT = """
name = "plant"
description = "a drive that is not ours"
[[modbus]]
line = "plant"
driver = "tcp"
host = "127.0.0.1"
tcp_port = {port}
[[modbus.device]]
unit = 3
name = "DRIVE"
registers = [{{ name = "run", table = "coil", reg = 0, safe = false }}, {{ name = "speed", reg = 1, safe = 5 }}]
"""


def test_registers_that_a_killed_daemon_left_are_made_safe_by_the_next_one(hearthd, tmp_path) -> None:
    with modbus_server("tcp") as port:
        profile = tmp_path / "plant.toml"
        profile.write_text(PLANT.format(port=port))
        running = hearthd(f'[board]\nprofile = "{profile}"\n').start()
        peer = running.peer()
        session = peer.open()
        for name, value in (("run", True), ("speed", 40)):
            given = {"device": "DRIVE", "name": name, "value": value}
            assert peer.run(session, "modbus.write", **given)["status"] == "SUCCESS"
        assert driven(running) == {"modbus:plant": [[3, "coil", 0], [3, "holding", 1]]}
        running.kill()
        running.start()
        assert driven(running) == {}
        (safe,) = [record for record in after_kill(running) if record["event"] == "outputs.safe"]
        assert [(done["name"], done["safe"]) for done in safe["safe"]] == [("run", False), ("speed", 5)]
        peer = running.peer()
        session = peer.open()
        for name, value in (("run", False), ("speed", 5)):
            assert peer.run(session, "modbus.read", device="DRIVE", name=name)["result"]["value"] == value
        assert running.stop() == 0
        assert verify([running.audit]).ok


def switches(pid: int) -> int:
    """How often the threads of a process have gone to sleep so far: a thread that is woken must sleep again."""
    count = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        status = Path(f"/proc/{pid}/task/{task}/status").read_text()
        count += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return count


@pytest.mark.proof
def test_an_idle_daemon_has_no_timers_whatever_was_done_before(hearthd) -> None:
    running = hearthd().start()
    drive(running, LED, LATCH)
    peer = running.peer()
    session = peer.open(heartbeat_ms=60_000)
    peer.run(session, "sys.uptime")
    peer.call("session.close", {"session_id": session})
    for other in running.peers:
        other.close()
    running.peers.clear()
    # What it still does after the last client has gone may take long on a busy disk, and Trio ends a thread that has
    # had nothing to do for 10 seconds. The time in which nothing may happen is what is measured.
    for _ in range(5):
        before = switches(running.pid)
        time.sleep(12)
        if switches(running.pid) == before:
            return
    raise AssertionError("it does not come to rest")
