"""`hearth halt`: halt the daemon, show the halt, and reset it; and how `/halt` in `hearth ask` reads its words.

A single word that neighbours have as a subcommand, such as "status", is not a reason: a person who asks to see the halt
must not cause one. Two words or more always halt, and so does a misspelt word: a halt too many does less harm.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import trio
from attrs import asdict

from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, session, standard
from hearth.client.connection import call_halt
from hearth.transport.address import UnixAddress
from hearth.transport.listener import listening_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from hearth.api import HaltStatus
    from hearth.transport.address import Address

SETTLE_S: Final = 1.0
"""Seconds after the stop sequence until an output counts as unsafe."""
LOOK_S: Final = 0.1
_MEANINGS: Final[Mapping[str, Literal["status", "reset", "unclear"]]] = {
    **dict.fromkeys(("status", "show", "state"), "status"),
    "reset": "reset",
    **dict.fromkeys(("clear", "end", "off"), "unclear"),
}  # fmt: skip


def meaning(reason: str) -> Literal["halt", "status", "reset", "unclear"]:
    """Return what the words after `halt` ask for."""
    return _MEANINGS.get(reason.strip().casefold(), "halt")


def unclear(word: str, command: str) -> str:
    """Return the answer to a word that `meaning` finds unclear."""
    cure = f"`{command} reset` ends a halt, `{command} status` shows it, two words or more halt"
    return f"nothing was halted: {common.clean(word)!r} alone is not a reason; {cure}"


async def until_safe(look: Callable[[], Awaitable[HaltStatus]], found: HaltStatus) -> HaltStatus:
    """Return the halt when its outputs are safe, or SETTLE_S after the end of its stop sequence.

    `look` reads its status.
    """
    patience = trio.CancelScope()
    with patience:
        while found.halted and (found.stopping or found.unsafe):
            if not found.stopping and patience.deadline == float("inf"):
                patience.deadline = trio.current_time() + SETTLE_S
            await trio.sleep(LOOK_S)
            found = await look()
    return found


def _named(places: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{name} ({place['bus']})" for place in places for name in place.get("names", place["outputs"]))


def outcome_lines(found: HaltStatus) -> list[str]:
    """Return which outputs are safe, by name, and what to do next."""
    if found.unsafe:
        lines = [f"NOT SAFE: {_named(found.unsafe)}; hearth tries again, so look at them or cut their power"]
    else:
        lines = ["every output that has a safe state is there" + (f": {_named(found.safe)}" if found.safe else "")]
    if found.left:
        lines.append(f"LEFT AS THEY ARE, without a safe state: {_named(found.left)}; look at them or cut their power")
    return [*lines, "next: when the cause is gone, `hearth halt reset`; `hearth halt status` shows who holds the halt"]


def hold_lines(holds: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each hold, where the first reason does not say it all."""
    if len(holds) == 1 and holds[0]["count"] == 1:
        return []
    return [
        f"held by {one.get('by', one['source'])}: {one['reason']}, {one['since']}"
        + (f"; {one['count']} times, last: {one['last_reason']}, {one['last']}" if one["count"] > 1 else "")
        for one in holds
    ]


def _facts(found: HaltStatus) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(found).items() if value not in (None, (), [], {})}
    return facts if found.halted else {name: facts[name] for name in ("halted", "inputs") if name in facts}


def halt_lines(found: HaltStatus) -> list[str]:
    """Return the screen of a halt."""
    shown = {
        name: value
        for name, value in _facts(found).items()
        if name not in ("holds", "unsafe", "safe", "left", "generation")
    }
    return [*common.fields(shown), *map(common.clean, hold_lines(found.holds))]


def unanswered(address: Address, waited_s: float) -> str:
    """Return the sentence that there is no answer yet, and whose it would be."""
    found = listening_process(address.path) if isinstance(address, UnixAddress) else None
    cure = f"; `kill -CONT {found.pid}` lets it go on" if found is not None and found.stopped else ""
    return f"{address.place}: {found or 'the daemon'} has not answered for {waited_s:.0f} s, still waiting{cure}"


@click.command()
@click.argument("reason", nargs=-1)
@click.option("--status", is_flag=True, help="Show the halt; exits with 1 if the daemon is halted.")
@click.option("--reset", is_flag=True, help="End the halt. Nothing that ran before it starts again.")
@standard
async def halt(options: Options, reason: tuple[str, ...], status: bool, reset: bool) -> int:
    """Halt the daemon: from now on nothing with an effect begins, tasks are cancelled, outputs go to their safe states.

    REASON is kept in the audit log. Reads go on. The halt outlives the daemon. Exits with 1 if the halt could not be
    written to the disk, or an output is not safe.

    `hearth halt status` shows the halt, and `hearth halt reset` ends it: it needs the right `reset_halt`, and clear
    halt inputs. Such a word halts only together with others.
    """
    words = " ".join(reason)
    if (status and reset) or (reason and (status or reset)):
        raise click.UsageError("give one of REASON, --status and --reset")
    means = "status" if status else "reset" if reset else meaning(words)
    if means == "unclear":
        raise click.UsageError(unclear(words, "hearth halt"))
    # Without a session: none of the limits of sessions may hold up a halt. Only a reset needs one, for its right.
    look = partial(call_halt, options.address, "halt.status", {})
    async with common.telling(partial(unanswered, options.address)):
        return await _halt(options, words, means, look)


async def _halt(options: Options, words: str, means: str, look: Callable[[], Awaitable[HaltStatus]]) -> int:
    if means == "reset":
        async with session(options) as (_client, opened):
            found = await opened.reset_halt()
    elif means == "status":
        found = await look()
    else:
        found = await call_halt(options.address, "halt", {"reason": words})
        if not options.json:
            click.echo("\n".join(halt_lines(found)))
        found = await until_safe(look, found)
    if options.json:
        click.echo(common.compact(_facts(found)))
    elif means == "halt":
        click.echo("\n".join(map(common.clean, outcome_lines(found))))
    else:
        click.echo("\n".join([*halt_lines(found), *(outcome_lines(found) if found.halted else ())]))
    if means == "status":
        return FAILED if found.halted else DONE
    return DONE if not found.halted or (found.latched and not found.unsafe) else FAILED
