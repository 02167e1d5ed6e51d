"""kill -9 of a caller: the next one goes on at the next sequence, and drops at most `prefetch` duplicates."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fleet.test_client import job
from support.amounts import amount

from hearth.fleet.order_store import FleetOrder, OrderStore
from hearth.hcp.codec import message, write_message

pytestmark = pytest.mark.proof
KILLS = amount("HEARTH_CALLER_KILLS", 20, least=5)
"""Kills; many in `make proof`."""
PREFETCH = 10


def start(device, caller, order_store):
    tests = str(Path(__file__).parents[1])
    broker = device.broker
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fleet.killed_caller",
            str(broker.port),
            str(broker.folder / "password"),
            caller,
            order_store,
        ],
        stdout=subprocess.PIPE,
        cwd=tests,
        env={**os.environ, "PYTHONPATH": tests},
    )


def test_a_caller_that_is_killed_goes_on_at_the_next_sequence(device, name, tmp_path) -> None:
    caller, path = f"call-{name}", str(tmp_path / "order store")
    made = write_message(
        message(job(caller, "looks", {"times": 100 * KILLS, "interval_s": 0.01}), session_id=None, now=1.8e9)
    )
    order_store = OrderStore(path)
    order_store.add(
        [FleetOrder(message_id=made["message_id"], device=device.id, document=made, not_after=None, made_at=0.0)]
    )
    order_store.close()
    rng = random.Random(3)
    seen = []
    for _ in range(KILLS):
        client = start(device, caller, path)
        seen += [client.stdout.readline() for _ in range(rng.randint(1, 60))]
        client.kill()
        client.communicate()
    client = start(device, caller, path)
    *rest, last = client.communicate(timeout=100 + 10 * KILLS)[0].splitlines()
    assert client.returncode == 0
    told = json.loads(last)
    assert told["duplicates"] <= PREFETCH
    assert told["foreign"] == 0
    order_store = OrderStore(path)
    (order,) = order_store.orders()
    assert (order.state, order.result["outputs"]) == ("COMPLETED", {"times": 100 * KILLS})
    sequences = [one["payload"]["sequence"] for one in order_store.events(order.session_id)]
    assert sequences == list(range(1, order.sequence + 1))
    assert rest, "the last one had something left to do"
    order_store.close()
