"""Many clients and one adapter: their transactions take turns on the wire, and a wedged adapter stops nobody else.

The MCP2221's driver in the kernel gives up on an adapter that does not answer after 4 s; a bus counts as wedged well
before that (1.5 s for a short transaction).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import pytest
import trio
from support.cell import MEMORY, Cell

import hearth
from hearth.audit.verify import verify
from hearth.errors import ResourceBusy, TimedOut

pytestmark = pytest.mark.slow

CLIENTS = 50
ROUNDS = 4
BOUND = 60
"""Seconds for everything here; what is waited for usually takes a small part of a second."""


@pytest.fixture
def cell(tmp_path):
    with Cell(tmp_path, apart=True, uarts=True) as made:
        yield made


@asynccontextmanager
async def crowd(daemon, size=CLIENTS):
    """So many connections, each with a session."""
    with trio.fail_after(BOUND):
        async with AsyncExitStack() as stack:
            sessions = []
            for number in range(size):
                client = await stack.enter_async_context(hearth.connect(daemon.socket))
                sessions.append(await stack.enter_async_context(client.open_session(client_name=f"client {number}")))
            yield sessions


def b64(data: bytes) -> str:
    return b64encode(data).decode()


async def held(cell):
    """Wait until a transaction hangs in the adapter."""
    await trio.to_thread.run_sync(cell.apart.wait_held)


async def test_the_transactions_of_fifty_clients_never_interleave_on_the_wire(cell) -> None:
    daemon = cell.daemon().start()
    begun = len(cell.apart.log())

    async def work(number, session):
        for round_ in range(ROUNDS):
            # The register, then more than fits into one report.
            data = bytes((0, number, round_)) * 30
            answer = await session.run("i2c.transfer", bus=1, addr=MEMORY, write=b64(b"\x00" + data), read_len=3)
            assert len(b64decode(answer["data"])) == 3
            seen.append(data)

    seen: list[bytes] = []
    async with crowd(daemon) as sessions, trio.open_nursery() as nursery:
        for number, session in enumerate(sessions):
            nursery.start_soon(work, number, session)
    wire = cell.apart.log(begun)
    assert len(wire) == len(seen) == CLIENTS * ROUNDS
    assert cell.apart.strays() == []
    assert {exchange.end for exchange in wire} == {"stop"}
    # In each exchange one client's bytes and nobody else's; in no two of them the same.
    assert sorted(exchange.written for exchange in wire) == sorted(b"\x00" + data for data in seen)
    assert all([message.way for message in exchange.messages] == ["write", "read"] for exchange in wire)
    assert all(one.ended <= other.began for one, other in pairwise(wire))


async def test_a_full_queue_refuses_at_once_and_serves_whom_it_took(cell) -> None:
    room = 8
    daemon = cell.daemon(f"[limits]\nbus_queue = {room}\n").start()
    refused, served = [], []
    enough = trio.Event()

    async def ask(session, length=1):
        try:
            await session.run("i2c.read", bus=1, addr=MEMORY, reg=0, len=length)
        except ResourceBusy as error:
            refused.append(error.data)
            if len(refused) == CLIENTS - 1 - room:
                enough.set()
        else:
            served.append(session)

    async with crowd(daemon) as sessions, trio.open_nursery() as nursery:
        cell.apart.wedge()
        # A long one may take longer before it counts as wedged, and the others must be refused before that.
        nursery.start_soon(ask, sessions[0], 3000)
        await held(cell)
        for session in sessions[1:]:
            nursery.start_soon(ask, session)
        await enough.wait()
        assert cell.apart.log()[-1].end is None, "they were refused while the first stood in its transaction"
        cell.apart.release()
    assert len(served) == 1 + room
    assert len(refused) == CLIENTS - 1 - room
    assert {(data["bus"], data["reason"], data["effect"]) for data in refused} == {("i2c:1", "queue full", "none")}


async def bus_health(session):
    return (await session.run("hw.board"))["health"]["buses"]["i2c:1"]


async def assert_others_go_on(cell, session):
    for value in (1, 0):
        await session.run("gpio.set", line="lamp", value=value)
        assert cell.level("lamp") == value
    answer = await session.run("uart.exchange", port="instrument", data=b64(b"*idn?\n"), until="\n", timeout_ms=10_000)
    assert b64decode(answer["data"]) == b"*IDN?\n"


def assert_audited(daemon):
    """The log has the bus's trouble and its end, no other bus's, and is whole."""
    assert daemon.stop() == 0
    events = [(r["event"], r["bus"]) for r in daemon.records() if r["event"].startswith("bus.")]
    assert events[-2:] == [("bus.wedged", "i2c:1"), ("bus.reopened", "i2c:1")]
    assert {bus for _, bus in events} == {"i2c:1"}
    assert verify(daemon.audit).ok


async def wedged(cell, session, other, data):
    """A task that stands in a write of `data`, and what its bus says of itself once it counts as wedged.

    The kernel gives up after 4 s: on a machine that stands still for longer than the rest of them nobody sees it
    wedged, and it is tried again.
    """
    while True:
        cell.apart.wedge(after=5)
        stuck = await session.submit("stuck", [hearth.step("i2c.write", bus=1, addr=MEMORY, data=b64(data))])
        health = await bus_health(other)
        while health["state"] != "wedged" and not (await stuck.get()).done:
            await trio.sleep(0.02)
            health = await bus_health(other)
        if health["state"] == "wedged":
            return stuck, health
        cell.apart.release()


async def test_an_adapter_that_stops_answering_is_wedged_alone_and_recovers_when_it_answers_again(cell) -> None:
    data = bytes(range(20))
    daemon = cell.daemon().start()
    async with crowd(daemon, 2) as (session, other):
        while True:
            stuck, health = await wedged(cell, session, other, data)
            assert "has not returned within its limit" in health["reason"]
            refused = await other.submit("read", [hearth.step("i2c.read", bus=1, addr=MEMORY, len=1)])
            refused = (await refused.wait()).steps[0]
            await assert_others_go_on(cell, other)
            if not (await stuck.get()).done:
                break
            cell.apart.release()
        assert refused.error_code == ResourceBusy.code
        assert refused.error_data["reason"] == "wedged"
        # Nothing may kill what has begun.
        assert (await stuck.get()).steps[0].status == "RUNNING"

        cell.apart.release()
        done = await stuck.wait()
        assert done.steps[0].error_code == TimedOut.code
        assert done.steps[0].error_data["effect"] == "done"
        assert cell.apart.log()[-1].written == data
        assert (await bus_health(other))["state"] == "ready"
        assert b64decode((await other.run("i2c.read", bus=1, addr=MEMORY, reg=0, len=3))["data"]) == b"\x01\x02\x03"
    assert_audited(daemon)


async def test_an_adapter_that_never_answers_is_given_up_by_the_kernel_and_serves_the_next(cell) -> None:
    daemon = cell.daemon().start()
    async with crowd(daemon, 2) as (session, other):
        stuck, _ = await wedged(cell, session, other, b"\x00never")
        await assert_others_go_on(cell, other)
        step = (await stuck.wait()).steps[0]
        assert step.status == "FAILED"
        assert step.error_code == TimedOut.code
        assert step.error_data["errno"] == "ETIMEDOUT"
        assert step.error_data["effect"] == "unknown"
        cell.apart.release()
        assert (await bus_health(other))["state"] == "ready"
        await other.run("i2c.write", bus=1, addr=MEMORY, data=b64(b"\x00again"))
        assert cell.apart.cells(MEMORY)[:5] == b"again"
    assert_audited(daemon)
