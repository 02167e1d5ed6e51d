"""`hearth fleet`: orders to many devices over a RabbitMQ broker, and the enrolment of its users.

The orders and all that was heard of them are in an order store (--state), so a command that was killed is followed up
by `hearth fleet watch`. A command that waits says on stderr what stands between (`common.telling`). Exit codes: 0 done,
1 an order was not completed, 2 usage, 3 the broker cannot be reached, or a device has not got the halt in time.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import orjson
import trio
from attrs import evolve, frozen

from hearth._util.exceptions import unwrapped
from hearth.cli import common
from hearth.cli.common import DONE, FAILED, UNREACHABLE, Options, standard
from hearth.cli.hcp import read_job
from hearth.errors import CarrierError, ConfigError
from hearth.hcp.messages import read_duration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from hearth.fleet.client import FleetClient
    from hearth.fleet.enrolment import Part
    from hearth.fleet.order_store import FleetOrder
    from hearth.fleet.selectors import FleetDevice

T = TypeVar("T")

CONNECT_S: Final = 15.0
"""Seconds that a command waits for the broker."""
LOOK_S: Final = 1.0
"""Seconds between two looks at which devices have the halt."""
REFRESH_S: Final = 0.2
"""Seconds between two looks at the order store."""
MOST_NAMED: Final = 10
"""Devices that are named while they have not answered."""
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


@click.group()
def fleet() -> None:
    """Order jobs from many devices over a RabbitMQ broker.

    A SELECTOR is a device's id, or LABEL=PATTERN such as site=lab3 or board=rpi*. Selectors of different labels must
    all hold.
    """


# --- devices ----------------------------------------------------------------------------------------------------------


@fleet.command("list")
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@click.option("--within", default="15s", metavar="TIME", help="Give up after this time, and exit with 3.")
@standard
@calling
async def list_(options: Options, where: FleetOptions, selectors: Sequence[str], within: str) -> int:
    """List the devices that have announced themselves, by their ids and labels."""
    from hearth.fleet.selectors import select

    within_s = _seconds(within)
    async with connected(where, within_s) as client:
        devices = sorted(await answered(client, client.devices, within_s), key=lambda one: one.device)
        if selectors:
            devices = select(devices, selectors)
    if options.json:
        told = [
            {
                "id": one.device,
                "labels": dict(one.labels),
                "halted": one.halted,
                "halted_by": list(one.halted_by),
                "reset_refused": one.reset_refused,
                "announced_at": one.announced_at,
            }
            for one in devices
        ]
        click.echo(common.compact(told))
        return DONE
    rows = [[one.device, halt_words(one), one.announced_at, _labels(one.labels)] for one in devices]
    click.echo("\n".join(common.table(["device", "halt", "announced", "labels"], rows)))
    return DONE


def halt_words(one: FleetDevice) -> str:
    """Return what halts a device, and why it refused the last reset."""
    if not one.halted:
        return "-"
    by = f" by {', '.join(one.halted_by)}" if one.halted_by else ""
    return f"HALTED{by}" + (f"; reset refused: {one.reset_refused}" if one.reset_refused else "")


def _labels(labels: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


@fleet.command()
@click.option("--reason", default="", help="The reason, for the devices' logs.")
@click.option("--reset", is_flag=True, help="End the fleet's halt on the devices that it halted.")
@click.option("--within", default="15s", metavar="TIME", help="How long to wait for the broker, and for the devices.")
@standard
@calling
async def halt(options: Options, where: FleetOptions, reason: str, reset: bool, within: str) -> int:
    """Halt every device: those that are connected at once, the others when they connect; or reset that halt.

    It reaches a device that is away as long as it has not been reset. A halt that a person or an input has caused on
    the device itself stays. Says which devices have it; exits with 3 if the broker, or one of them, has not got it
    within the time.
    """
    from hearth.amqp.errors import AmqpError

    within_s = _seconds(within)
    async with connected(where, within_s) as client:
        await answered(client, client.reset if reset else partial(client.halt, reason), within_s)
        if not options.json:
            told = "the reset of" if reset else "the halt for"
            click.echo(f"The broker has {told} every device.")
        have: list[str] = []
        not_yet: list[str] = []
        looked = False

        async def look() -> None:
            """Ask for the devices until all have it."""
            nonlocal have, not_yet, looked
            while not looked or not_yet:
                with suppress(AmqpError):
                    devices = await client.devices()
                    by = {one.device: "fleet" in one.halted_by or (one.halted and not one.halted_by) for one in devices}
                    have = sorted(device for device, halted in by.items() if halted is not reset)
                    not_yet, looked = sorted(by.keys() - set(have)), True
                if not looked or not_yet:
                    await trio.sleep(LOOK_S)

        try:
            await answered(client, look, within_s)
        except BrokerNotReached as error:
            if not looked:
                raise BrokerNotReached(f"{error}; which devices have it is not known") from None
    what = "the reset" if reset else "the halt"
    if options.json:
        click.echo(common.compact({"ok": not not_yet, "have": have, "not_yet": not_yet}))
    else:
        click.echo(f"have {what}: {', '.join(have) or 'none'}")
        if not_yet:
            click.echo(f"not yet: {', '.join(not_yet)}; one that is away gets it when it connects")
    return UNREACHABLE if not_yet else DONE


# --- orders -----------------------------------------------------------------------------------------------------------


@fleet.command()
@click.argument("file")
@click.argument("selectors", nargs=-1, required=True, metavar="SELECTOR...")
@click.option("--within", default="60s", metavar="TIME", help="It must begin within this time: 90s, 10m, 2h.")
@click.option("--any-time", is_flag=True, help="It may begin at any time; only for what moves nothing.")
@click.option("--detach", is_flag=True, help="Do not wait for the ends; `hearth fleet watch` shows them.")
@standard
@calling
async def submit(
    options: Options,
    where: FleetOptions,
    file: str,
    selectors: Sequence[str],
    within: str,
    any_time: bool,
    detach: bool,
) -> int:
    """Order the job in FILE (- for stdin) from each device that the SELECTORs pick, and wait for the ends.

    FILE is JSON: the payload of a task_submit; its caller_id is this caller's. An order to many is a list of single
    orders. One that cannot begin within the time is not begun later. Exits with 1 unless all are completed.
    """
    from hearth.fleet.selectors import select
    from hearth.hcp.codec import read_submission

    within_s = None if any_time else _seconds(within)
    async with connected(where, CONNECT_S if within_s is None else min(CONNECT_S, within_s)) as client:
        payload = {**read_job(file), "caller_id": client.caller}
        asked: Any = read_submission(payload, now=0).payload
        needed = [one for one in selectors if "=" in one]
        devices = select(await answered(client, client.devices, CONNECT_S) if needed else [], selectors)
        made = await client.submit([one.device for one in devices], evolve(asked), within_s=within_s)
        if detach:
            await _orders_once(client, frozenset(made), lambda orders: all(one.published for one in orders))
            click.echo(common.compact(made) if options.json else f"{len(made)} orders are on their way.")
            return DONE
        return await _follow(options, client, frozenset(made))


def _seconds(text: str) -> float:
    found = _AGE.fullmatch(text)
    if found is None:
        try:
            return read_duration(text).total_seconds()
        except ValueError:
            raise click.UsageError(f"--within {common.clean(text)!r}: expected a time such as 90s, 10m or 2h") from None
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


@fleet.command()
@click.option("--all", "every", is_flag=True, help="Show ended orders too.")
@standard
@calling
async def watch(options: Options, where: FleetOptions, every: bool) -> int:
    """Follow the stored orders that have not ended, to their ends: also those of a command that was killed."""
    async with connected(where) as client:
        orders = await client.orders(open_only=not every)
        return await _follow(options, client, frozenset(one.message_id for one in orders))


async def _orders_once(
    client: FleetClient, made: frozenset[str], done: Callable[[Sequence[FleetOrder]], bool]
) -> Sequence[FleetOrder]:
    """Return these orders once they are `done`, which is asked after each change; until then, say what stands between.

    Raises BrokerNotReached if the broker cannot be reached, or takes no messages, when none of them may begin any more.
    """
    orders: Sequence[FleetOrder] = ()

    def stands(_waited_s: float) -> str:
        if client.hindered:
            return client.standing
        unanswered = [one.device for one in orders if one.state == "NEW"]
        more = f" and {len(unanswered) - MOST_NAMED} more" if len(unanswered) > MOST_NAMED else ""
        named = ", ".join(unanswered[:MOST_NAMED])
        return f"{client.address.place} is connected; no answer yet from {named}{more}" if unanswered else ""

    async with common.telling(stands):
        while True:
            orders = [one for one in await client.orders() if one.message_id in made]
            if done(orders):
                return orders
            late = all(one.not_after is not None and one.not_after < client.clock() for one in orders)
            if client.hindered and late:
                kept = "the orders are kept, and none may begin any more; `hearth fleet watch` follows them"
                raise BrokerNotReached(f"{client.standing}; {kept}")
            with trio.move_on_after(REFRESH_S):
                await client.changed()
            await trio.sleep(REFRESH_S / 4)


async def _follow(options: Options, client: FleetClient, made: frozenset[str]) -> int:
    """Show the progress of orders until all have ended; return the exit code."""
    from hearth.fleet.order_store import ENDED

    def show(orders: Sequence[FleetOrder]) -> list[str]:
        rows = [[one.device, one.state, str(one.sequence), one.said] for one in orders]
        return common.table(["device", "state", "events", "last"], rows)

    shown: dict[str, str] = {}
    with Screen(live=sys.stdout.isatty() and not options.json) as draw:

        def ended(orders: Sequence[FleetOrder]) -> bool:
            if draw is not None:
                draw("\n".join(show(orders)))
            elif not options.json:
                for one in orders:
                    if shown.get(one.message_id) != one.state:
                        shown[one.message_id] = one.state
                        click.echo(f"{one.device}  {one.state}  {common.clean(one.said)}".rstrip())
            return all(one.state in ENDED for one in orders)

        orders = await _orders_once(client, made, ended)
    if options.json:
        told = [
            {"device": one.device, "message_id": one.message_id, "session_id": one.session_id, "state": one.state,
             "result": one.result}
            for one in orders
        ]  # fmt: skip
        click.echo(common.compact(told))
    else:
        done = sum(one.state == "COMPLETED" for one in orders)
        click.echo("\n".join([*(show(orders) if draw is None else []), f"{done} of {len(orders)} completed"]))
    return DONE if all(one.state == "COMPLETED" for one in orders) else FAILED


class Screen:
    """A terminal whose lines are drawn again and again, or None where there is none."""

    def __init__(self, *, live: bool) -> None:
        self._live: Any = None
        if live:
            from rich.live import Live

            self._live = Live(refresh_per_second=8)

    def __enter__(self) -> Callable[[str], None] | None:
        if self._live is None:
            return None
        from rich.text import Text

        live = self._live.__enter__()
        return lambda text: live.update(Text.from_ansi(text))

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.__exit__(*exception)


# --- enrolment --------------------------------------------------------------------------------------------------------


@fleet.command()
@click.argument("directory", metavar="DIR")
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@click.option("--as", "part", type=click.Choice(("device", "caller", "operator")), default="device", show_default=True)
@click.option("--vhost", default="/", show_default=True, help="The virtual host of the fleet.")
@click.option("--history", is_flag=True, help="Also make the stream hearth.history, of all events.")
@click.option("--rabbitmqctl", default="rabbitmqctl", show_default=True, help="The broker's command, with options.")
@click.option("--no-import", is_flag=True, help="Only write the files; import them where the broker runs.")
@click.option("--days", default=398, show_default=True, help="Days that the certificates hold.")
@standard
def enroll(
    options: Options,
    directory: str,
    names: Sequence[str],
    part: Part,
    vhost: str,
    history: bool,
    rabbitmqctl: str,
    no_import: bool,
    days: int,
) -> int:
    """Give each ID a user at the broker with permissions for its part, its queues, and a certificate by the CA in DIR.

    `hearth admin tls init DIR` makes the CA, and a server's certificate for the broker. A device reads its own orders
    only, and publishes as itself only; a caller hears its own events only; an operator is a caller that may halt the
    fleet. Which caller may order what is the policy of each device.
    """
    from hearth.cli.certificate_files import authority_in, write_all
    from hearth.fleet.enrolment import definitions, policy_lines
    from hearth.transport import certificates

    made = definitions(dict.fromkeys(names, part), vhost, history=history)
    folder, now = Path(directory).absolute(), dt.datetime.now(dt.UTC)
    authority = authority_in(folder, now)
    write_all(folder, {name: certificates.issue_client(authority, name, now, days) for name in names})
    file = folder / f"{names[0]}.definitions.json"
    file.write_bytes(orjson.dumps(made, option=orjson.OPT_INDENT_2))
    if not no_import:
        _run(rabbitmqctl, "import_definitions", str(file))
    policy = "\n".join(line for name in names for line in (*policy_lines(name, part), ""))
    told = {} if part == "device" else {"policy": policy}
    if options.json:
        click.echo(common.compact({"ids": list(names), "definitions": str(file), "imported": not no_import, **told}))
        return DONE
    done = "are enrolled" if not no_import else f"are prepared; run `rabbitmqctl import_definitions {file}`"
    click.echo(f"{', '.join(names)} {done}. Certificates: {folder}/ID.pem and ID.key, with {folder}/ca.pem")
    if told:
        click.echo(
            f"In the hearth.toml of each device that takes these orders, beside an entry for its own user:\n\n{policy}"
        )
    return DONE


@fleet.command()
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@click.option("--vhost", default="/", show_default=True, help="The virtual host of the fleet.")
@click.option("--rabbitmqctl", default="rabbitmqctl", show_default=True, help="The broker's command, with options.")
@standard
def revoke(options: Options, names: Sequence[str], vhost: str, rabbitmqctl: str) -> int:
    """Delete the users of these IDs at the broker, close their connections, and delete their queues.

    Their certificates are good for nothing here from then on. A device goes on with the jobs that it has accepted.
    """
    from hearth.hcp import l1

    for name in names:
        if not l1.is_id(name):
            raise ConfigError(f"{common.clean(name)!r} is no id")
        _run(rabbitmqctl, "delete_user", name)
        _run(rabbitmqctl, "close_all_user_connections", name, "revoked by hearth fleet revoke")
        for queue in (l1.command_queue(name), l1.halt_queue(name), l1.event_queue(name)):
            _run(rabbitmqctl, "delete_queue", "--vhost", vhost, queue, missing="not found")
    click.echo(common.compact({"revoked": list(names)}) if options.json else f"{', '.join(names)} revoked")
    return DONE


def _run(rabbitmqctl: str, *words: str, missing: str | None = None) -> None:
    """Run rabbitmqctl. Raises ConfigError with what it says, unless that is what may be missing."""
    command = [*shlex.split(rabbitmqctl), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        cure = "run this where the broker is, or name its command with --rabbitmqctl"
        raise ConfigError(f"{command[0]}: {error.strerror}; {cure}") from None
    said = (done.stderr or done.stdout).strip()
    if done.returncode and not (missing is not None and missing in said.lower()):
        raise ConfigError(f"{shlex.join(command)}: {common.clean(said[:500])}")
