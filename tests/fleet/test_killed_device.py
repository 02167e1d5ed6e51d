"""kill -9 of a device at every boundary of store, ack and publish: nothing is lost, doubled, or unknown without a name.

A real hearthd (a fork of one that has everything imported) kills itself at the nth boundary; the next one goes on. The
caller outlives all of them.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
import trio
from crash.deployment import Life
from fleet.bench import Device
from fleet.swarm import QUICK
from fleet.test_client import calling, ended, job
from support.amounts import amount
from support.zygote import Zygote

pytestmark = pytest.mark.proof
KILLS = amount("HEARTH_DEVICE_KILLS", 64, least=16)
"""Kills, spread over the boundaries."""
BOUNDARIES = 60
"""More than a life with one order has."""
NAMES = (
    "before a commit", "after a commit", "before an ack", "after an ack", "before a publication",
    "after a confirmation",
)  # fmt: skip
"""The first kills are each at the first boundary of a name; the others are at numbers, whatever is there."""


@pytest.fixture(scope="module")
def zygote(tmp_path_factory, unmeasured):
    zygote = Zygote(tmp_path_factory.mktemp("zygote"), "fleet.killed_device:main")
    yield zygote
    zygote.close()


def life_of(zygote, device, at, name="-"):
    """One run of the device, which dies at a boundary, of a name or of all; 0: at none."""
    places = {"directory": device.directory, "config": device.config, "socket": device.socket}
    return Life(SimpleNamespace(zygote=zygote, tape=device.directory / "tape", logs="-", **places), at, name)


def tape(device):
    path = device.directory / "tape"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def judge_order(client, order, device, names):
    """Check one order: done once, or ended as failed with its unknown steps named; its events without a gap."""
    sequences = [one["payload"]["sequence"] for one in client.order_store.events(order.session_id)]
    assert sequences == list(range(1, len(sequences) + 1))
    made = [name for name in device.made() if name in names]
    begun = {tool: device.records(event="task.step.start", tool=tool) for tool in ("gpio.pulse", "file.write")}
    for records in begun.values():
        assert len({record["task_id"] for record in records}) == len(records)
    # Each pulse of the line has the record of its step; the one before a mark was made before it.
    assert len(device.made()) <= device.pulses() <= len(begun["gpio.pulse"])
    if order.state == "COMPLETED":
        assert made == names
        return
    assert order.state == "FAILED", (order.state, order.said)
    failed = order.result
    assert failed["error_details"]["reason"] == "daemon_ended"
    done = len([one for one in client.order_store.events(order.session_id) if _is_mark(one)])
    unknown = re.findall(r'file\.write .*?/(\w+)"', failed["error_message"])
    # What was recorded as done is there, and what is there beyond it is named as unknown.
    assert set(made) - set(names[:done]) <= set(unknown)
    assert made[:done] == names[:done]


def _is_mark(event):
    payload = event["payload"]
    return payload["event_type"] == "checkpoint_created" and payload["data"]["description"].startswith("file.write")


async def test_a_device_that_is_killed_at_any_boundary_loses_and_doubles_nothing(
    rabbitmq, tmp_path, zygote, name
) -> None:
    caller, spread = f"call-{name}", max(1, BOUNDARIES // KILLS)
    device = Device(rabbitmq, tmp_path, f"dev-{name}", callers=[caller], amqp="")
    async with calling(rabbitmq, caller, bound=60 + 20 * KILLS, settings=QUICK) as client:
        for kill in range(KILLS):
            if kill < len(NAMES):
                boundary = (1, NAMES[kill])
            else:
                boundary = (1 + kill * spread % BOUNDARIES + kill * spread // BOUNDARIES, "-")
            life = await trio.to_thread.run_sync(life_of, zygote, device, *boundary)
            names = [f"k{kill}a", f"k{kill}b"]
            await client.submit([device.id], job(caller, "marks", device.inputs(*names)), within_s=600)
            last = None
            with trio.fail_after(90):
                while not life.dead():
                    orders = await client.orders()
                    if orders[-1].state in ("COMPLETED", "FAILED"):
                        break
                    await trio.sleep(0.01)
                if life.dead():
                    await trio.to_thread.run_sync(life.end)
                    last = await trio.to_thread.run_sync(life_of, zygote, device, 0)
                else:
                    last = life
                orders = await ended(client)
            judge_order(client, orders[-1], device, names)
            # Before it serves, a signal would end it without its handler.
            await trio.to_thread.run_sync(last.ready)
            last.signal(15)
            # One that was to die may do so while it ends.
            assert await trio.to_thread.run_sync(last.end) in ((0, None) if last is life else (0,))
        killed = [one["boundary"] for one in tape(device) if "killed" in one]
        assert len(killed) >= KILLS * 0.6, tape(device)
        assert set(killed) == set(NAMES)
