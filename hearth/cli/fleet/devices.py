"""`hearth fleet list` and `halt`: all devices, or those that selectors pick."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import trio

from hearth.cli import common
from hearth.cli.common import DONE, UNREACHABLE, Options, standard
from hearth.cli.fleet.broker import BrokerNotReached, FleetOptions, answered, calling, connected, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.fleet.selectors import FleetDevice


LOOK_S: Final = 1.0
"""Seconds between two looks at which devices have the halt."""


@click.command("list")
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@click.option("--within", default="15s", metavar="TIME", help="Give up after this time, and exit with 3.")
@standard
@calling
async def list_(options: Options, where: FleetOptions, selectors: Sequence[str], within: str) -> int:
    """List the devices that have announced themselves, by their ids and labels."""
    from hearth.fleet.selectors import select

    within_s = seconds(within)
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


@click.command()
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

    within_s = seconds(within)
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
