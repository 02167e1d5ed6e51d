"""/metrics of hearthd itself, as a process: what its clients did is what it tells."""

from __future__ import annotations

import re
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.hearthd import Hearthd, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]


def scraped(running: Hearthd) -> dict[tuple[str, ...], float]:
    (address,) = re.findall(r"listening on (http://\S+)", running.said)
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_the_clients_of_a_daemon_did_is_what_it_tells(tmp_path) -> None:
    running = Hearthd(tmp_path, '[http]\nlisten = "127.0.0.1:0"\n').start()
    try:
        peer = running.peer()
        session = peer.open()
        for value in (1, 0):
            assert peer.run(session, "gpio.set", line=17, value=value)["status"] == "SUCCESS"
        found = scraped(running)
        assert found["hearth_steps_total", "SUCCESS", "gpio.set"] == 2
        assert found["hearth_tasks_total", "SUCCESS"] == 2
        assert found["hearth_requests_total", "task.submit", "ok"] == 2
        assert found["hearth_requests_total", "session.open", "ok"] == 1
        assert found["hearth_connections", "unix"] == 1
        assert found["hearth_sessions",] == 1
        assert found["hearth_bus_state", "gpio:sim", "ready"] == 1
        peer.close()
        eventually(lambda: scraped(running)["hearth_connections", "unix"] == 0, "the connection's end")
        assert scraped(running)["hearth_connections_opened_total", "unix"] == 1
    finally:
        running.end()
