"""`make demo-fleet`: a RabbitMQ, twenty simulated devices and a caller; the broker is killed on stage, nothing is lost.

Run as a module: `python -m hearth.cli.demo.fleet`. The broker is the one that the machine has installed, started for
this demo alone: on loopback, unprivileged, with its own directory, ports and cookie. The devices are runtimes as
hearthd has them, ten in a process (`python -m hearth.cli.demo.fleet CONFIG…` is such a process). Users and permissions
at the broker are those of `hearth fleet enroll`, with passwords in place of certificates.

Every claim is checked, as in `hearth demo`. Without RabbitMQ it says how to install it, and exits with 2.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import click
import trio

from hearth._util.exceptions import unwrapped
from hearth.cli.common import interruptible
from hearth.cli.demo.fleet_broker import SERVER, DemoBroker
from hearth.cli.demo.fleet_devices import CALLER, DemoDevice, process, serve_devices
from hearth.cli.demo.stage import make_stage
from hearth.hcp import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.cli.demo.daemon import DemoFolder
    from hearth.cli.demo.stage import Stage
    from hearth.fleet.client import FleetClient
    from hearth.fleet.enrolment import Part
    from hearth.fleet.order_store import FleetOrder


MISSING: Final = "needs RabbitMQ on this machine: apt-get install --no-install-recommends rabbitmq-server"
DEVICES, PROCESSES, ROUNDS = 20, 2, 2
SCENE_S = 120.0


async def play(stage: Stage, place: DemoFolder) -> None:
    """Run all scenes. Raises DemoFailed with the first claim that does not hold, and ConfigError without the extras."""
    require("make demo-fleet")
    from hearth.actors.bridges.amqp.connection import BrokerSettings
    from hearth.amqp.address import parse_broker
    from hearth.fleet.client import FleetClient
    from hearth.fleet.order_store import OrderStore

    names = [f"arm-{number:02d}" for number in range(1, DEVICES + 1)]
    members: dict[str, Part] = {**dict.fromkeys(names, "device"), CALLER: "caller"}
    broker = DemoBroker(place.folder / "broker", members)
    devices = [DemoDevice(place.folder, name, broker) for name in names]
    stage.scene("A broker, twenty devices, one caller")
    await stage.say(
        "The devices dial out to a RabbitMQ on this machine. Each has a user of its own, which may read its own orders "
        "and nothing else. The boards are simulated; all else is what hearthd runs."
    )
    async with unwrapped() as body, AsyncExitStack() as stack, body.watched():
        stack.push_async_callback(broker.close)
        stage.happened(f"RabbitMQ (pid {await broker.start()}) serves on 127.0.0.1:{broker.port}")
        for number in range(PROCESSES):
            pid = await stack.enter_async_context(process(devices[number::PROCESSES], place.folder / "devices.log"))
            stage.happened(f"a process with {DEVICES // PROCESSES} devices (pid {pid}) is ready")
        order_store = OrderStore(place.folder / "order_store.sqlite3")
        stack.callback(order_store.close)
        address = parse_broker(f"amqp://{CALLER}@127.0.0.1:{broker.port}/?password_file={broker.password}")
        client = FleetClient(address, CALLER, order_store, settings=BrokerSettings(backoff_first=0.1, backoff_most=1.0))
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        nursery.start_soon(client.run)
        with trio.fail_after(SCENE_S):
            while len(found := await client.devices()) < DEVICES:  # noqa: ASYNC110  the stream tells of no change
                await trio.sleep(0.1)
        stage.claim(
            "all of them have announced themselves", {one.device for one in found} == set(names), f"{DEVICES} devices"
        )
        with trio.fail_after(SCENE_S):
            await _a_killed_broker(stage, broker, client, devices)
        _judge(stage, client, await client.orders(), devices)


async def _a_killed_broker(
    stage: Stage, broker: DemoBroker, client: FleetClient, devices: Sequence[DemoDevice]
) -> None:
    """Order jobs, kill the broker while they run, start it again, and wait for the end of all orders."""
    from hearth.fleet.order_store import ENDED
    from hearth.hcp.messages import TaskSubmit

    stage.scene("The broker is killed under load")
    await stage.say(f"Each device gets {ROUNDS} orders to move something. In the middle of it: kill -9 of the broker.")
    await broker.settle()
    for number in range(ROUNDS):
        for device in devices:
            stamps = [f"{number}-{name}" for name in ("first", "second", "third")]
            inputs = {"place": str(device.stamps), "names": stamps}
            submit = TaskSubmit(capability="stamp", caller_id=CALLER, intent="see that none is lost", inputs=inputs)
            await client.submit([device.name], submit, within_s=600)
    while not any(one.sequence > 1 for one in await client.orders()):
        await client.changed()
    await broker.kill()
    orders = await client.orders()
    states = Counter("ended" if one.state in ENDED else one.state for one in orders)
    stage.happened(f"SIGKILL. At this moment: {', '.join(f'{count} {state}' for state, count in states.items())}")
    stage.claim("it died in the middle of the work", states["ended"] < len(orders), f"{len(orders)} orders")
    while client.link is None or client.link.connected:
        await client.changed()
    stage.happened(f"the caller: {client.link.error}")
    stage.happened(f"RabbitMQ (pid {await broker.start()}) is back")
    await broker.elect()
    while not all(one.state in ENDED for one in await client.orders()):
        await client.changed()


def _judge(stage: Stage, client: FleetClient, orders: Sequence[FleetOrder], devices: Sequence[DemoDevice]) -> None:
    """Check what the caller and the devices have."""
    stage.scene("Nothing is lost, nothing is done twice")
    done = [one for one in orders if one.state == "COMPLETED"]
    stage.claim("every order was done", len(done) == len(orders) == ROUNDS * len(devices), f"{len(done)} orders")
    events = [
        [one["payload"]["sequence"] for one in client.order_store.events(order.session_id or "")] for order in orders
    ]
    stage.claim(
        "the caller has every event of each, in order, each once",
        all(each == list(range(1, len(each) + 1)) for each in events),
        f"{sum(map(len, events))} events; {client.duplicates} that came twice were dropped",
    )
    expected = sorted(f"{number}-{name}" for number in range(ROUNDS) for name in ("first", "second", "third"))
    stage.claim(
        "every effect happened once: by the files, which none may make twice",
        all(one.made() == expected for one in devices),
        f"{len(devices) * len(expected)} files",
    )
    pulses = [one.pulses() for one in devices]
    stage.claim(
        "and by the pulses in the devices' own audit logs",
        pulses == [len(expected)] * len(devices),
        f"{sum(pulses)} pulses",
    )


def main(arguments: Sequence[str]) -> int:
    """Play the demo, or with configurations be a process of devices; return the exit code."""
    from hearth.cli.demo import perform

    if arguments and not arguments[0].startswith("--"):
        trio.run(serve_devices, arguments)
        return 0
    if not os.access(SERVER, os.X_OK):
        click.echo(f"make demo-fleet {MISSING}")
        return 2
    stage = make_stage(as_json="--json" in arguments, terminal=sys.stdout.isatty(), fast="--fast" in arguments)
    return interruptible(
        lambda: perform(stage, play, as_json="--json" in arguments, then="fleet --help", no_sandbox=True)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
