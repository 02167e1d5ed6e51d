"""One USB adapter that is two buses: what goes over the one does not disturb the other."""

from __future__ import annotations

import threading

from support.cell import MCP, MEMORY, Cell
from support.hearthd import Hearthd, eventually

SETS = 100


def test_a_line_that_was_set_is_driven_whatever_goes_over_the_same_adapters_i2c(tmp_path):
    with Cell(tmp_path, adapter=True) as cell:
        daemon = cell.daemon().start()
        arm, writer = daemon.peer(), daemon.peer()
        session, other = arm.open(), writer.open()
        enough = threading.Event()
        written = []

        def write():
            while not enough.is_set():
                written.append(writer.run(other, "i2c.write", bus=1, addr=MEMORY, data="A" * 400)["status"])

        beside = threading.Thread(target=write)
        beside.start()
        try:
            seen = []
            for number in range(SETS):
                done = arm.run(session, "gpio.set", chip=MCP, line="relay", value=number % 2)
                seen.append((done["status"], cell.level("relay", MCP)))
        finally:
            enough.set()
            beside.join()
        assert seen == [("SUCCESS", number % 2) for number in range(SETS)]
        assert written
        assert set(written) == {"SUCCESS"}
        assert cell.wire.strays == []


def test_a_second_hearthd_on_an_adapter_is_refused_until_the_first_has_gone(tmp_path):
    with Cell(tmp_path, adapter=True) as cell:
        first = cell.daemon().start()
        peer = first.peer()
        assert peer.run(peer.open(), "i2c.read", bus=1, addr=MEMORY, len=1)["status"] == "SUCCESS"
        (tmp_path / "second").mkdir()
        second = Hearthd(tmp_path / "second", f'[board]\nprofile = "{cell.profile}"\n').start()
        try:
            other = second.peer()
            session = other.open()
            refused = other.run(session, "i2c.read", bus=1, addr=MEMORY, len=1)
            assert (refused["error_code"], refused["error_data"]["effect"]) == (-32004, "none")
            assert "is in use by another hearthd (" in refused["error"]
            assert first.process.pid in [holder["pid"] for holder in refused["error_data"]["holders"]]
            first.end()
            read = eventually(lambda: served(other.run(session, "i2c.read", bus=1, addr=MEMORY, len=1)), "the adapter")
            assert read["status"] == "SUCCESS"
        finally:
            second.end()


def served(step):
    """The step if the bus took it up."""
    return None if step.get("error_code") == -32004 else step
