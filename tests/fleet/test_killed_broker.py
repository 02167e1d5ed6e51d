"""kill -9 of the broker under load: no confirmed order is lost, no event is missing, no effect is doubled."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio
from fleet.bench import Device, restart
from fleet.swarm import QUICK
from fleet.test_client import calling, ended, job
from support.amounts import amount

pytestmark = pytest.mark.proof
KILLS, DEVICES = amount("HEARTH_BROKER_KILLS", 10, least=3), int(os.environ.get("HEARTH_FLEET_DEVICES", "25"))
EACH = 25
"""Devices of one process."""


class Swarm:
    """Many devices in few processes."""

    def __init__(self, broker, directory, count, caller, prefix="dev"):
        self.devices = [Device(broker, directory, f"{prefix}-{n}", callers=[caller]) for n in range(count)]
        self.processes = []
        for start in range(0, count, EACH):
            configs = [str(one.config) for one in self.devices[start : start + EACH]]
            tests = str(Path(__file__).parents[1])
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "fleet.swarm", *configs],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=tests,
                    env={**os.environ, "PYTHONPATH": tests},
                )
            )
        for process in self.processes:
            assert process.stdout.readline() == b"ready\n"

    def close(self):
        for process in self.processes:
            process.stdin.close()
            assert process.wait(60) == 0
            process.stdout.close()


def judge(client, orders, devices):
    """Check what a caller and the devices have: every order done once, its events without a gap."""
    by_id = {one.id: one for one in devices}
    expected = Counter()
    for order in orders:
        assert order.state == "COMPLETED", (order.state, order.said, order.result)
        sequences = [one["payload"]["sequence"] for one in client.order_store.events(order.session_id)]
        assert sequences == list(range(1, len(sequences) + 1))
        names = order.document["payload"]["inputs"]["names"]
        assert order.result["outputs"] == {"marks": len(names)}
        expected.update((order.device, name) for name in names)
    assert set(expected.values()) <= {1}
    for device in devices:
        made = device.made()
        assert made == sorted(name for one, name in expected if one == device.id)
        # Effects, counted on the simulated line, and what the audit log says of them.
        pulses = device.records(event="task.step.start", tool="gpio.pulse")
        assert device.pulses() == len(pulses) == len(made), by_id[device.id]


async def test_a_broker_that_is_killed_under_load_loses_and_doubles_nothing(killable, tmp_path) -> None:
    swarm = await trio.to_thread.run_sync(Swarm, killable, tmp_path, DEVICES, "caller")
    rng = random.Random(7)
    try:
        async with calling(killable, "caller", tmp_path / "order store", bound=math.inf, settings=QUICK) as client:
            for kill in range(KILLS):
                with trio.fail_after(180 + DEVICES):
                    for device in swarm.devices:
                        inputs = device.inputs(f"k{kill}a", f"k{kill}b")
                        await client.submit([device.id], job("caller", "marks", inputs), within_s=600)
                    await trio.sleep(rng.uniform(0, 0.1 * DEVICES**0.5))
                    await trio.to_thread.run_sync(killable.kill)
                    await trio.to_thread.run_sync(restart, killable)
                    orders = await ended(client)
            assert len(orders) == KILLS * DEVICES
            # Not judged: `foreign`, which counts an event too whose task_accepted the broker has lost; it comes again.
            judge(client, orders, swarm.devices)
    finally:
        await trio.to_thread.run_sync(swarm.close)
