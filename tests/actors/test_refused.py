"""Peers that could not prove who they are: on record, and not without end."""

from __future__ import annotations

import pytest
import trio.testing
from support.world import BenchWorld, running

from hearth.policy.rules import MOST_NAMES


@pytest.fixture
async def world():
    made = BenchWorld()
    async with running(made):
        yield made


async def recorded(world):
    await trio.testing.wait_all_tasks_blocked()
    return world.journal.of("auth.reject")


async def test_a_peer_that_could_not_prove_who_it_is_is_on_record(world) -> None:
    world.runtime.refused("tls", "192.0.2.7", "the certificate has expired")
    [record] = await recorded(world)
    assert (record["carrier"], record["peer"], record["reason"]) == ("tls", "192.0.2.7", "the certificate has expired")


async def test_one_address_cannot_fill_the_log_nor_keep_another_out_of_it(world) -> None:
    for _ in range(1000):
        world.runtime.refused("ws", "192.0.2.7", "unknown token")
    assert len(await recorded(world)) == 10
    world.runtime.refused("ws", "192.0.2.8", "unknown token")
    assert (await recorded(world))[-1]["peer"] == "192.0.2.8"


@pytest.mark.proof
async def test_many_addresses_cannot_fill_the_log_either(world) -> None:
    begun = trio.current_time()
    for number in range(3 * MOST_NAMES):
        world.runtime.refused("ws", f"192.0.{number // 256}.{number % 256}", "unknown token")
    # One more for each second that a busy machine takes over it.
    assert 60 <= len(await recorded(world)) <= 60 + (trio.current_time() - begun)
