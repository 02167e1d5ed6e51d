"""Approvals in advance (`hearth approvals approve --for`): calls of one tool, within bounds, so often, for so long.

An arg that is not named is not permitted.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import click

from hearth.cli import common
from hearth.cli.common import Options, session
from hearth.cli.run import parse_value
from hearth.cli.tools import entry_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)?\.\.(-?\d+(?:\.\d+)?)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


async def give(
    options: Options, call: str, within: str, confirmed: Callable[[], Awaitable[None]], **given: Any
) -> None:
    """Show what `call` would permit, await `confirmed`, which raises if the answer is no, and approve it."""
    found = re.fullmatch(r"(\d+)([smh])", within)
    if found is None:
        raise click.UsageError(f"--within {common.clean(within)!r}: expected a time such as 90s, 10m or 2h")
    try:
        tool, *words = shlex.split(call)
    except ValueError as error:
        raise click.UsageError(f"--for: {error}: name a tool and its args, such as 'servo.move ARM 0..90'") from None
    async with session(options) as (_client, opened):
        entry = entry_of(await opened.tools(), tool) or {}
        given |= {
            "args": read_bounds(words, entry.get("params_schema", {})),
            "within_s": int(found[1]) * _SECONDS[found[2]],
        }
        shown = await opened.grant_approval(tool, **given, dry_run=True)
        if not options.json:
            click.echo(f"{common.clean(str(shown['text']))}\nLimits, interlocks and the halt hold for each.")
        await confirmed()
        approval = await opened.grant_approval(tool, **given)
    hint = f"approved; `hearth approvals reject {common.clean(str(approval['approval_id']))}` ends it"
    click.echo(common.compact(approval) if options.json else hint)


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
