"""`hearth fleet submit` and `watch`: orders to many devices, followed to their ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click
import trio
from attrs import evolve

from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, standard
from hearth.cli.fleet.broker import CONNECT_S, BrokerNotReached, FleetOptions, answered, calling, connected, seconds
from hearth.cli.hcp import read_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hearth.fleet.client import FleetClient
    from hearth.fleet.order_store import FleetOrder


REFRESH_S: Final = 0.2
"""Seconds between two looks at the order store."""
MOST_NAMED: Final = 10
"""Devices that are named while they have not answered."""


@click.command()
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

    within_s = None if any_time else seconds(within)
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


@click.command()
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
