"""The connection of a command to the broker: its options, its order store, and what it says while it waits."""

from __future__ import annotations

import os
import re
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import trio
from attrs import frozen

from hearth._util.exceptions import unwrapped
from hearth.cli import common
from hearth.errors import CarrierError, ConfigError
from hearth.hcp.messages import read_duration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hearth.fleet.client import FleetClient


T = TypeVar("T")

CONNECT_S: Final = 15.0
"""Seconds that a command waits for the broker."""
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")


@frozen
class FleetOptions:
    """The options of commands that talk to the broker."""

    broker: str | None
    caller: str | None
    state: str | None


class BrokerNotReached(CarrierError):
    """The broker cannot be reached, or lets this caller not in."""


def calling(work: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that talk to the broker, given to the command as one FleetOptions."""

    @click.option("--broker", envvar="HEARTH_BROKER", metavar="URL", help="The broker (or HEARTH_BROKER).")
    @click.option("--caller", metavar="ID", help="This caller's id; else the user, or the certificate's common name.")
    @click.option("--state", metavar="FILE", help="The order store; else one in ~/.local/state/hearth/fleet.")
    @wraps(work)
    def run(*args: Any, broker: str | None, caller: str | None, state: str | None, **named: Any) -> Any:
        return work(*args, FleetOptions(broker, caller, state), **named)

    return run


@asynccontextmanager
async def connected(where: FleetOptions, within_s: float = CONNECT_S) -> AsyncIterator[FleetClient]:
    """Run a caller with its orders, once it is connected. Raises ConfigError, OrderStoreError, BrokerNotReached."""
    try:
        from hearth.actors.bridges.amqp.connection import BrokerSettings
        from hearth.fleet.client import FleetClient
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'hearthd[amqp,hcp]'") from None
    from hearth.amqp.address import parse_broker
    from hearth.fleet.order_store import OrderStore

    if where.broker is None:
        raise ConfigError("no broker is named; give --broker URL, or set HEARTH_BROKER")
    address = parse_broker(where.broker)
    caller = where.caller or address.user or _common_name(address.cert)
    order_store = OrderStore(where.state or _default_order_store(caller))
    try:
        client = FleetClient(address, caller, order_store, settings=BrokerSettings(backoff_most=5.0))
        async with unwrapped() as body, trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            async with body.watched():
                await answered(client, client.connected, within_s)
                yield client
            nursery.cancel_scope.cancel()
    finally:
        order_store.close()


async def answered(client: FleetClient, work: Callable[[], Awaitable[T]], within_s: float) -> T:
    """Return the outcome of what needs the broker; until then, say what stands between. Raises BrokerNotReached."""
    async with common.telling(lambda _waited_s: client.standing):
        with trio.move_on_after(within_s):
            return await work()
    raise BrokerNotReached(f"{client.standing}, within {within_s:g} s")


def _common_name(cert: Path | None) -> str:
    from cryptography import x509

    assert cert is not None, "an address without a user has a certificate"
    try:
        subject = x509.load_pem_x509_certificate(cert.read_bytes()).subject
    except (OSError, ValueError) as error:
        raise ConfigError(f"{cert}: {error}") from None
    names = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    if len(names) != 1:
        raise ConfigError(f"{cert}: has no common name; give --caller ID")
    return str(names[0].value)


def _default_order_store(caller: str) -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    folder = base / "hearth" / "fleet"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"{caller}.sqlite3"


def seconds(text: str) -> float:
    """Return the seconds of a time such as 90s, 10m, 2h or PT5M. Raises click.UsageError, which names --within."""
    found = _AGE.fullmatch(text)
    if found is None:
        try:
            return read_duration(text).total_seconds()
        except ValueError:
            raise click.UsageError(f"--within {common.clean(text)!r}: expected a time such as 90s, 10m or 2h") from None
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]
