"""Approvals in advance (`hearth approvals approve --for`): calls of one tool, within bounds, so often, for so long.

An arg that is not named is not permitted.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import click

from hearth._util.text import suggest
from hearth.cli import common
from hearth.cli.common import Options, session
from hearth.cli.run import parse_value
from hearth.cli.tools import entry_of
from hearth.protocol.methods import LONGEST_WITHIN_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)?\.\.(-?\d+(?:\.\d+)?)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_PRINCIPAL = re.compile(r"embedded|(uid|cert|token|amqp):.+", re.DOTALL)


async def give(
    options: Options, call: str, within: str, confirmed: Callable[[], Awaitable[None]], **given: Any
) -> None:
    """Show what `call` would permit, await `confirmed`, which raises if the answer is no, and approve it."""
    within_s = _seconds(within)
    if given["principal"] is not None and _PRINCIPAL.fullmatch(given["principal"]) is None:
        cure = "expected a principal as `hearth status` shows yours, such as uid:1001, cert:CN=arm-7 or amqp:alpha"
        raise click.UsageError(f"--principal {common.clean(given['principal'])!r}: {cure}")
    tool, words = _call(call)
    async with session(options) as (_client, opened):
        entries = await opened.tools()
        entry = entry_of(entries, tool)
        if entry is None and not all("=" in word for word in words):
            # It may be a tool of others: the daemon knows, but not which args the words without a name are.
            cure = suggest(tool, [one["name"] for one in entries]) or "name each arg of another's tool: KEY=VALUE"
            raise click.UsageError(f"--for: {common.clean(tool)!r} is not among your tools; {cure}")
        given |= {"args": read_bounds(words, (entry or {}).get("params_schema", {})), "within_s": within_s}
        shown = await opened.grant_approval(tool, **given, dry_run=True)
        if not options.json:
            click.echo(f"{common.clean(str(shown['text']))}\nLimits, interlocks and the halt hold for each.")
        await confirmed()
        approval = await opened.grant_approval(tool, **given)
    hint = f"approved; `hearth approvals reject {common.clean(str(approval['approval_id']))}` ends it"
    click.echo(common.compact(approval) if options.json else hint)


def _seconds(within: str) -> int:
    found = re.fullmatch(r"(\d{1,6})([smh])", within)
    seconds = int(found[1]) * _SECONDS[found[2]] if found is not None else 0
    if not 1 <= seconds <= LONGEST_WITHIN_S:
        cure = "expected a time such as 90s, 10m or 2h, 24h at most"
        raise click.UsageError(f"--within {common.clean(within)!r}: {cure}")
    return seconds


def _call(call: str) -> tuple[str, list[str]]:
    fault = "it is empty"
    try:
        words = shlex.split(call)
    except ValueError as error:
        words, fault = [], str(error)
    if not words:
        raise click.UsageError(f"--for: {fault}: name a tool and its args, such as 'servo.move ARM 0..90'")
    return words[0], words[1:]


def read_bounds(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the bounds of args in words; those without a name are the required ones. Raises click.UsageError."""
    properties = schema.get("properties", {})
    bounds: dict[str, dict[str, Any]] = {}
    unnamed = iter(schema.get("required", ()))
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            name, text = next(unnamed, ""), word
        if not name or name in bounds:
            cure = f"say which arg it is, once: KEY={common.clean(text)}"
            raise click.UsageError(f"--for: {common.clean(word)!r}: {cure}")
        only_string = properties.get(name, {}).get("type") == "string"
        span = None if only_string else _RANGE.fullmatch(text)
        if text == "*":
            bounds[name] = {"any": True}
        elif span is not None and text != "..":
            ends = zip(("min", "max"), span.groups(), strict=True)
            bounds[name] = {end: parse_value(number) for end, number in ends if number is not None}
        else:
            bounds[name] = {"equals": parse_value(text, only_string=only_string)}
    return bounds
