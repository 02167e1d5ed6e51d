"""Halts, while the broker has not noticed yet that a device's last connection is gone, and holds a message for it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from fleet.bench import Device
from fleet.swarm import connected, serving
from fleet.test_client import calling
from support.tcp_proxy import proxied
from support.waiting import passes

from hearth.actors.bridges.amqp.connection import BrokerSettings, open_connection
from hearth.actors.bridges.amqp.halts import HELD
from hearth.hcp import l1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.tcp_proxy import TcpProxy

    from hearth.actors.bridges.amqp.uplink import Uplink
    from hearth.fleet.client import FleetClient

pytestmark = pytest.mark.slow
LEAVES = BrokerSettings(close_timeout=0.1)


@asynccontextmanager
async def half_open(rabbitmq, tmp_path, name) -> AsyncIterator[tuple[Uplink, FleetClient, TcpProxy]]:
    """A device that has come back while the broker holds a halt for its last connection, which `proxy.cut` ends."""
    caller = f"call-{name}"
    async with proxied(rabbitmq.port) as proxy:
        device = Device(rabbitmq, tmp_path, f"dev-{name}", callers=[caller], port=proxy.port)
        async with serving(device.config, settings=LEAVES) as uplink:
            await connected(uplink)
            proxy.freeze()
        async with calling(rabbitmq, caller) as client:
            await client.halt("smoke")
            async with open_connection(rabbitmq.address()) as connection:
                state = await connection.inspect(l1.halt_queue(device.id))
                assert (state.messages, state.consumers) == (0, 1)
            text = device.config.read_text()
            device.config.write_text(text.replace(f":{proxy.port}?", f":{rabbitmq.port}?"))
            async with serving(device.config) as uplink:
                await passes(lambda: uplink.status().get("reason") == HELD)
                yield uplink, client, proxy


async def test_a_halt_that_was_sent_to_a_dead_connection_is_obeyed_before_any_order_is_taken(
    rabbitmq, tmp_path, name
) -> None:
    async with half_open(rabbitmq, tmp_path, name) as (uplink, _, proxy):
        halt = uplink._runtime.halt
        assert not halt.flag.halted
        assert not uplink.status()["connected"]
        proxy.cut()
        await connected(uplink)
        assert halt.status()["reason"] == "the fleet: smoke"
        assert "reason" not in uplink.status()


async def test_meanwhile_newer_halts_are_heard_and_an_older_one_does_not_come_back(rabbitmq, tmp_path, name) -> None:
    async with half_open(rabbitmq, tmp_path, name) as (uplink, client, proxy):
        halt = uplink._runtime.halt
        # The queue that stands in may be bound a moment later.
        while not halt.flag.halted:
            await client.halt("fire")
            with trio.move_on_after(1):
                await halt.changed.wait()
        await passes(lambda: not halt.status()["stopping"])
        await client.reset()
        await passes(lambda: not halt.flag.halted)
        assert not uplink.status()["connected"]
        proxy.cut()
        await connected(uplink)
        assert not halt.flag.halted


async def test_of_two_daemons_with_one_id_the_second_takes_no_orders_while_the_first_is_there(
    rabbitmq, tmp_path, name
) -> None:
    (tmp_path / "other").mkdir()
    device, other = (Device(rabbitmq, place, f"dev-{name}", callers=[]) for place in (tmp_path, tmp_path / "other"))
    async with serving(device.config) as first:
        await connected(first)
        async with serving(other.config) as second:
            await passes(lambda: second.status().get("reason") == HELD)
            first.stop()
            first.finish()
            await connected(second)
