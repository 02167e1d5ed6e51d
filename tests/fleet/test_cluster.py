"""Three nodes of RabbitMQ, as docs/explanation/fleet.md has them: one may be lost, and a halt arrives nevertheless."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
import trio
from fleet.bench import Device
from fleet.swarm import QUICK, connected, serving
from fleet.test_client import calling, ended, job
from support.rabbitmq import MISSING, RabbitMq, installed
from support.tcp_proxy import proxied

from hearth.amqp.errors import NoRoute

pytestmark = pytest.mark.proof


@pytest.fixture
def nodes(tmp_path):
    """A cluster of three nodes that run."""
    if not installed():
        pytest.skip(MISSING)
    first = RabbitMq(tmp_path / "node-1")
    made = [first, *(RabbitMq(tmp_path / f"node-{number}", beside=first) for number in (2, 3))]
    try:
        for node in made:
            node.start()
        yield made
    finally:
        for node in reversed(made):
            node.close()


async def heard(tell, halt, done):
    """Tell the fleet, and again if its device was away just then: with its queue's node down it has missed that."""
    while not done(halt):
        with suppress(NoRoute):  # then no queue of any device is there
            await tell()
        with trio.move_on_after(5):
            while not done(halt):
                await halt.changed.wait()


async def test_a_fleet_on_three_nodes_outlives_the_loss_of_any_one_and_can_be_halted(nodes, tmp_path) -> None:
    first, second, third = nodes
    assert first.evaluate("length(rabbit_nodes:all_running())") == "3"
    # The balancer in front of the nodes.
    async with proxied(second.port) as balancer:
        device = Device(first, tmp_path, "dev", callers=["caller"], port=balancer.port)
        async with (
            serving(device.config, settings=QUICK) as uplink,
            calling(third, "caller", bound=400, settings=QUICK) as client,
        ):
            await connected(uplink)
            for number, lost in enumerate((second, first)):
                await client.submit(["dev"], job("caller", "marks", device.inputs(f"before-{number}")), within_s=300)
                await ended(client)
                # The node that the device is connected to, where its queues were declared.
                await trio.to_thread.run_sync(lost.kill)
                balancer.target = third.port
                balancer.cut()
                await client.submit(["dev"], job("caller", "marks", device.inputs(f"after-{number}")), within_s=300)
                orders = await ended(client)
                assert {one.state for one in orders} == {"COMPLETED"}
                halt = uplink._runtime.halt
                await heard(partial(client.halt, "a node is gone"), halt, lambda halt: halt.flag.halted)
                await heard(client.reset, halt, lambda halt: not halt.flag.halted)
                await trio.to_thread.run_sync(lost.start)
                balancer.target = first.port
                balancer.cut()
    assert device.made() == ["after-0", "after-1", "before-0", "before-1"]
