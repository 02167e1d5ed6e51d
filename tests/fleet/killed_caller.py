"""A caller that is killed: follows the orders of an order store until all have ended.

Its arguments are the broker's port, the password's file, the caller and the order store. It prints each new message as
a line, and at its end how many duplicates it has dropped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio
from fleet.swarm import QUICK

from hearth.amqp.address import BrokerAddress
from hearth.fleet.client import FleetClient
from hearth.fleet.order_store import ENDED, OrderStore


def show(message: dict[str, object]) -> None:
    """Print a message that is in the order store."""
    print(json.dumps([message["session_id"], message["type"]]), flush=True)


async def main() -> None:
    """Follow."""
    port, password, caller, path = sys.argv[1:]
    address = BrokerAddress("127.0.0.1", int(port), False, user=caller, password_file=Path(password))
    client = FleetClient(address, caller, OrderStore(path), on_message=show, prefetch=10, settings=QUICK)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        while not all(one.state in ENDED for one in await client.orders()):
            with trio.move_on_after(0.5):
                await client.changed()
        nursery.cancel_scope.cancel()
    print(json.dumps({"duplicates": client.duplicates, "foreign": client.foreign}), flush=True)


if __name__ == "__main__":
    trio.run(main)
