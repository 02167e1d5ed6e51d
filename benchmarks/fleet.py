"""The fleet before a real RabbitMQ: `python -m benchmarks.fleet [--devices N] [NAME...]`, or `make bench-fleet`.

Rows: how long an order takes to be accepted (synced store, quorum queue), how fast one device publishes the events of
its outbox over a bare publisher in the same run, how long N uplinks take to reconnect and what an idle one holds, and
how long 10,000 events take to be read again. The broker has the settings for many devices of docs/howto/run-a-fleet.md.
"""

# ruff: noqa: ASYNC110  what is measured has no event

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import trio

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fleet.bench import Device, documented, restart  # noqa: E402  the tests' folder is on the path from here on
from fleet.swarm import connected, serving  # noqa: E402
from support.rabbitmq import PASSWORD, RabbitMq, installed  # noqa: E402

from benchmarks import amqp_floors  # noqa: E402
from benchmarks.report import Row, table  # noqa: E402
from hearth.actors.bridges.amqp.connection import open_connection  # noqa: E402
from hearth.actors.bridges.amqp.uplink import Uplink  # noqa: E402
from hearth.actors.bridges.hcp.store import SessionRow  # noqa: E402
from hearth.config.amqp import AmqpConfig  # noqa: E402
from hearth.hcp import l1  # noqa: E402
from hearth.hcp.messages import new_id  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EVENTS = 10_000
ORDERS = 300


def accepted(broker: RabbitMq, place: Path) -> Iterator[Row]:
    """Order a job again and again, each when the one before has ended."""
    device = Device(broker, place, "accepts", callers=["orders"]).connect()
    harness = device.harness("orders")
    times = []
    try:
        for _ in range(ORDERS + 20):
            order = harness.submission("looks", {})
            began = time.perf_counter()
            harness.command(device.id, order)
            while harness.receive()["type"] != "task_accepted":
                pass
            times.append(1000 * (time.perf_counter() - began))
            harness.closed()
    finally:
        harness.close()
        device.end()
    times = sorted(times[20:])
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    what = "submit to task_accepted, one device, quorum queue, synced store"
    yield Row("accepted-p50", f"{what}: p50", p50, "ms", 15, "at most")
    yield Row("accepted-p99", f"{what}: p99", p99, "ms", 150, "at most")


async def _filled(uplink: Uplink, caller: str) -> str:
    """Put a session with `EVENTS` events into the job store; return its id."""
    session_id, job_store = new_id(), uplink._jobs.services.job_store
    now = time.time()
    row = SessionRow(
        session_id=session_id, principal=f"amqp:{caller}", message_id=new_id(), caller_id=caller, intent="",
        version="1", capability="looks", inputs_hash="", risk_level="R1", data_classification="T1", resumable=False,
        created_at=now, started_at=now, published=0,
    )  # fmt: skip
    await job_store.claim(row.principal, row.message_id, "d")
    lines = []
    for number in range(1, EVENTS + 1):
        event = {**amqp_floors.EVENT, "message_id": new_id(), "session_id": session_id}
        lines.append(orjson.dumps({**event, "payload": {**event["payload"], "sequence": number}}) + b"\n")
    await job_store.answer(row.principal, row.message_id, lines[0], row)
    await job_store.append(session_id, lines[1:])
    return session_id


def events(broker: RabbitMq, place: Path) -> Iterator[Row]:
    """Publish what is in an outbox, in turns with the bare publisher; then have it published again."""
    device = Device(broker, place, "publishes", callers=["hears"])
    harness = device.harness("hears")
    harness.close()

    async def outbox() -> tuple[float, float]:
        async with serving(device.config) as uplink:
            await connected(uplink)
            session_id = await _filled(uplink, "hears")
            began = time.perf_counter()
            while uplink.published < EVENTS:
                await trio.sleep(0.005)
            first = EVENTS / (time.perf_counter() - began)
            began = time.perf_counter()
            await uplink._jobs.services.job_store.rewind(session_id, "amqp:hears", 0)
            while uplink.published < 2 * EVENTS:
                await trio.sleep(0.005)
            return first, time.perf_counter() - began

    ours, bare, again = [], [], 0.0
    for _ in range(3):
        bare.append(trio.run(amqp_floors.rate, broker.port, "hearth", PASSWORD, "hcp.evt.hears", 3.0))
        rate, again = trio.run(outbox)
        ours.append(rate)
        broker.evaluate(
            'rabbit_amqqueue:purge(element(2, rabbit_amqqueue:lookup({resource, <<"/">>, queue, <<"hcp.evt.hears">>})))'
        )
    ratio = sorted(ours)[1] / sorted(bare)[1]
    note = f"{sorted(ours)[1]:.0f} events/s; bare {sorted(bare)[1]:.0f}"
    yield Row("events", "events of one device's outbox over a bare publisher with confirms", ratio, "", 0.6, note=note)
    yield Row("device-replay", f"hearth.replay of {EVENTS:,} events, until the broker has confirmed them", again, "s")


def history(broker: RabbitMq, place: Path) -> Iterator[Row]:
    """Read the stream of all events from its beginning."""

    async def read() -> float:
        async with open_connection(broker.address()) as connection:
            await connection.declare(l1.callee_topology("history"))
            await connection.declare(l1.history_topology())
            async with connection.publisher() as publisher:
                sent = []
                for number in range(EVENTS):
                    event = {**amqp_floors.EVENT, "message_id": new_id(), "n": number}
                    sent.append(await publisher.send(l1.event_message(orjson.dumps(event), "none", "hearth")))
                for one in sent:
                    await one.wait()
            began, arguments = time.perf_counter(), {"x-stream-offset": "first"}
            async with connection.consume(l1.HISTORY, prefetch=1000, arguments=arguments) as consumer:
                for number in range(EVENTS):
                    delivery = await consumer.receive()
                    assert orjson.loads(delivery.message.body)["n"] == number
                    delivery.ack()
            return time.perf_counter() - began

    del place
    yield Row("history", f"{EVENTS:,} events from hearth.history, in order", trio.run(read), "s", 2, "at most")
    broker.evaluate('rabbit_binding:remove({binding, {resource, <<"/">>, exchange, <<"hcp.events">>}, <<"#">>,'
                    ' {resource, <<"/">>, queue, <<"hearth.history">>}, []}, <<"bench">>)')  # fmt: skip


def reconnect(broker: RabbitMq, place: Path, devices: int = 1000) -> Iterator[Row]:
    """Restart the broker under many idle uplinks, which share one runtime: each has its own user, queues and link."""
    device = Device(broker, place, "many", callers=["orders"])
    address = f"amqp://many@127.0.0.1:{broker.port}?password_file={broker.folder / 'password'}"

    async def measure() -> tuple[float, float, float]:
        async with serving(device.config) as first, trio.open_nursery() as nursery:
            await connected(first)
            gc.collect()
            before = _memory("self")
            uplinks: list[Any] = []
            for number in range(devices):
                config = AmqpConfig(url=address, id=f"many-{number}")
                one = Uplink(config, first._runtime, first._jobs)
                uplinks.append(one)
                nursery.start_soon(one.run)
                if number >= 20:
                    await connected(uplinks[-20])
            for one in uplinks:
                await connected(one)
            await trio.sleep(2)
            gc.collect()
            each = (_memory("self") - before) / devices
            await trio.to_thread.run_sync(broker.stop)
            await trio.to_thread.run_sync(restart, broker)
            began = trio.current_time()
            for one in uplinks:
                await connected(one)
            took = trio.current_time() - began
            # The broker collects what the connecting has left within its interval.
            await trio.sleep(20)
            pid = await trio.to_thread.run_sync(broker.evaluate, "os:getpid()")
            holds = _memory(pid.strip('"')) / 1024
            nursery.cancel_scope.cancel()
        return took, each, holds

    took, each, holds = trio.run(measure)
    yield Row("reconnect", f"{devices:,} uplinks reconnect after a restart of the broker", took, "s", 30, "at most")
    yield Row("idle-uplink", "memory of an idle uplink", each, "KiB", 64, "at most")
    yield Row("broker-memory", "resident memory of the broker with them, 20 s later", holds, "MiB", 400, "at most")


def _memory(pid: str) -> float:
    """Return the resident memory of a process, in KiB."""
    return float(Path(f"/proc/{pid}/status").read_text(encoding="ascii").split("VmRSS:")[1].split()[0])


MEASURES = {"accepted": accepted, "events": events, "history": history, "reconnect": reconnect}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table. Returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser("benchmarks.fleet", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MEASURES, []], metavar="NAME")
    parser.add_argument("--devices", type=int, default=1000)
    options = parser.parse_args(argv)
    if not installed():
        print("needs RabbitMQ: apt-get install --no-install-recommends rabbitmq-server", file=sys.stderr)
        return 1
    rows: list[Row] = []
    for name in options.names or MEASURES:
        with tempfile.TemporaryDirectory() as folder:
            broker = RabbitMq(Path(folder) / "broker", **documented())
            try:
                broker.start()
                more = {"devices": options.devices} if name == "reconnect" else {}
                rows += MEASURES[name](broker, Path(folder), **more)
            finally:
                broker.close()
    print("\n".join(table(rows)))
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
