"""Worlds of a fleet with a broker that loses, doubles and reorders: each promise holds, and catches its planted bug.

A world that fails says its seed: `python -m tests.fleet --seed 17` plays it, `--seeds 10000 --from 5000` plays more.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from fleet import worlds
from fleet.worlds import Violated, play
from support.amounts import amount

from hearth.actors.bridges.amqp.connection import Confirmation, Publisher
from hearth.actors.bridges.amqp.halts import FleetHalts
from hearth.actors.bridges.amqp.uplink import AmqpHcpRequest, Uplink
from hearth.actors.bridges.hcp.store import JobStore
from hearth.actors.bus.halt import Halt
from hearth.errors import RpcError
from hearth.fleet.order_store import OrderStore
from hearth.hcp import l1

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FAST = 60
WORLDS = amount("HEARTH_FLEET_WORLDS", 2000)
"""How many `make proof` plays."""
BLOCK = min(500, WORLDS)


def played(seeds):
    """What happened in these worlds."""
    figures = Counter()
    for seed in seeds:
        figures += play(seed)
    return figures


@pytest.mark.usefixtures("unmeasured_here")
def test_some_worlds_keep_every_promise() -> None:
    figures = played(range(FAST))
    # Everything that can go wrong does, and orders come to their end in spite of it.
    for what in (
        "fault: cut", "fault: kill", "fault: wipe", "fault: block", "fault: clock", "died: commit", "died: ack",
        "died: publish", "died: act", "died: time", "refused", "taken twice", "redelivered", "expired",
        "unconfirmed, and lost", "replaced by a newer one", "halts",
        "holds of its own: person", "holds of its own: input", "resets refused", "duplicates dropped", "resumed",
        "jobs with unknown steps", "COMPLETED", "FAILED",
        "REJECTED", "NOT SENT",
    ):  # fmt: skip
        assert figures[what], (what, figures)
    assert figures["effects"] > 2 * FAST


@pytest.mark.proof
@pytest.mark.parametrize("block", range(WORLDS // BLOCK))
def test_many_more_worlds_keep_every_promise(block) -> None:
    command = [sys.executable, "-m", "tests.fleet", "--jobs", "1", "--seeds", str(BLOCK)]
    command += ["--from", str(FAST + block * BLOCK)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert f"| seeds | {BLOCK} |" in ran.stdout


@pytest.mark.usefixtures("unmeasured_here")
def test_the_same_seed_is_the_same_world_again() -> None:
    first = [play(seed) for seed in range(4)]
    assert [play(seed) for seed in reversed(range(4))] == first[::-1]


# --- the promises catch what they are for ----------------------------------------------------------------------------


def orders_are_acknowledged_as_they_come(monkeypatch) -> None:
    take = Uplink._take

    def acknowledge_first(uplink, delivery, **named) -> None:
        delivery.ack()
        take(uplink, delivery, **named)

    monkeypatch.setattr(Uplink, "_take", acknowledge_first)
    monkeypatch.setattr(AmqpHcpRequest, "done", lambda _request: None)


def events_are_published_before_their_commit(monkeypatch) -> None:
    append = JobStore.append

    async def publish_first(job_store, session_id, lines, **more) -> None:
        uplink = getattr(job_store.on_lines, "__self__", None)
        if uplink is not None and uplink._publisher is not None:
            row = await job_store.session(session_id)
            for line in lines:
                await uplink._publisher.send(l1.event_message(line, row.caller_id, uplink.user))
        await append(job_store, session_id, lines, **more)

    monkeypatch.setattr(JobStore, "append", publish_first)


def a_publish_counts_as_confirmed_when_it_is_sent(monkeypatch) -> None:
    send = Publisher.send

    async def send_and_believe(publisher, *args, **named) -> Confirmation:
        await send(publisher, *args, **named)
        believed = Confirmation()
        believed.settle(None)
        return believed

    monkeypatch.setattr(Publisher, "send", send_and_believe)


def an_order_that_comes_again_counts_as_new(monkeypatch) -> None:
    claim = JobStore.claim

    async def forget_and_claim(job_store, principal, message_id, digest):
        query = "DELETE FROM answers WHERE message_id = ?"
        await job_store.write(lambda database: database.execute(query, (message_id,)))
        return await claim(job_store, principal, message_id, digest)

    monkeypatch.setattr(JobStore, "claim", forget_and_claim)


def late_orders_are_taken(monkeypatch) -> None:
    monkeypatch.setattr(l1.OrderTime, "check", lambda *_args, **_named: None)


def a_step_that_a_crash_interrupted_is_taken_for_none(monkeypatch) -> None:
    async def begun(*_args):
        return []

    monkeypatch.setattr(JobStore, "begun", begun)


def a_replay_begins_one_event_too_late(monkeypatch) -> None:
    rewind = JobStore.rewind
    monkeypatch.setattr(
        JobStore, "rewind", lambda store, session, who, sequence: rewind(store, session, who, sequence + 1)
    )


def a_caller_forgets_its_order_store(monkeypatch) -> None:
    begin = OrderStore.__init__

    def begin_again(order_store, path) -> None:
        for suffix in ("", "-wal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        begin(order_store, path)

    monkeypatch.setattr(OrderStore, "__init__", begin_again)


def orders_are_taken_before_halts_are_heard(monkeypatch) -> None:
    obey_all = FleetHalts._obey_all

    async def at_once(halts, connection, topology, hears) -> None:
        hears.set()
        await obey_all(halts, connection, topology, hears)

    monkeypatch.setattr(FleetHalts, "_obey_all", at_once)


def the_fleets_reset_ends_every_hold(monkeypatch) -> None:
    reset = Halt.reset
    monkeypatch.setattr(Halt, "reset", lambda halt, by, asked, source=None, **more: reset(halt, by, asked, **more))


def a_refused_reset_is_tried_again(monkeypatch) -> None:
    obey = FleetHalts._obey

    async def again(halts, delivery) -> None:
        while True:
            with suppress(RpcError):
                return await obey(halts, delivery)
            await trio.sleep(1)
            halts._resets.clear()

    monkeypatch.setattr(FleetHalts, "_obey", again)


BUGS = {
    orders_are_acknowledged_as_they_come: (worlds.STORED, 0),
    events_are_published_before_their_commit: (worlds.UNPUBLISHED, 0),
    a_publish_counts_as_confirmed_when_it_is_sent: (worlds.CONFIRMED, 0),
    an_order_that_comes_again_counts_as_new: (worlds.ONCE, 0),
    late_orders_are_taken: (worlds.IN_TIME, 44),
    a_step_that_a_crash_interrupted_is_taken_for_none: (worlds.UNKNOWN, 40),
    a_replay_begins_one_event_too_late: (worlds.ALL_EVENTS, 5),
    a_caller_forgets_its_order_store: (worlds.NONE_LOST, 1),
    orders_are_taken_before_halts_are_heard: (worlds.HALTED, 0),
    the_fleets_reset_ends_every_hold: (worlds.LOCAL, 0),
    a_refused_reset_is_tried_again: (worlds.DROPPED, 0),
}
"""Each with the promise that catches it, and the seed from which on worlds are played until one does."""
LONG = (orders_are_taken_before_halts_are_heard, a_refused_reset_is_tried_again)
"""Those that take many worlds."""


@pytest.mark.usefixtures("unmeasured_here")
@pytest.mark.parametrize(
    "plant",
    [pytest.param(one, id=one.__name__, marks=pytest.mark.proof if one in LONG else ()) for one in BUGS],
)
def test_a_planted_bug_is_caught_by_its_promise(plant, monkeypatch) -> None:
    promise, first = BUGS[plant]
    plant(monkeypatch)
    with pytest.raises(Violated) as violated:
        played(range(first, first + FAST))
    assert violated.value.promise == promise
    assert "again: python -m tests.fleet --seed" in violated.value.__notes__[0]


def test_every_promise_has_a_planted_bug() -> None:
    assert sorted(promise for promise, _ in BUGS.values()) == sorted(worlds.PROMISES)
