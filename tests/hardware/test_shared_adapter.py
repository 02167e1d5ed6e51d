"""One USB adapter that is two buses: what goes over the one does not disturb the other."""

from __future__ import annotations

import threading

from support.cell import MCP, MEMORY, Cell

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
