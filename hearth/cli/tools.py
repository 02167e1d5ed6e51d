"""`hearth tools [PATTERN]`: a table of the tools that a session may use, or one tool with all its declarations."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from hearth._util.text import suggest
from hearth.cli import common
from hearth.cli.common import Options, session, standard
from hearth.errors import HearthError
from hearth.protocol.known import known_by
from hearth.protocol.submissions import CONSTRAINTS
from hearth.tools import RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@click.command()
@click.argument("pattern", required=False)
@standard
async def tools(options: Options, pattern: str | None) -> None:
    """List the tools, or those that PATTERN fits ("gpio.*", "read"); a whole name shows its args and schemas.

    The list is what the daemon's policy allows you; tools whose risk is above your cap are in it, and are refused.
    """
    async with session(options) as (_client, opened):
        entries = await opened.tools()
    chosen = choose(entries, pattern)
    whole = pattern is not None and len(chosen) == 1 and chosen[0]["name"] == pattern
    if options.json:
        click.echo(common.compact(chosen[0] if whole else chosen))
    else:
        click.echo("\n".join(details(chosen[0]) if whole else overview(chosen)))


def choose(entries: Sequence[Mapping[str, Any]], pattern: str | None) -> list[Mapping[str, Any]]:
    """Return the entries for a pattern: the tool of that name, else the names that match it as a glob or contain it.

    Raises HearthError if there is none.
    """
    if pattern is None:
        return list(entries)
    names = [entry["name"] for entry in entries]
    exact = [entry for entry in entries if entry["name"] == pattern]
    fitting = exact or [entry for entry in entries if fnmatchcase(entry["name"], pattern) or pattern in entry["name"]]
    if not fitting:
        cure = suggest(pattern, names, most=3) or "`hearth tools` lists them all"
        raise HearthError(f"no tool fits {pattern!r}; {cure}")
    return fitting


def entry_of(entries: Sequence[Mapping[str, Any]], name: object) -> Mapping[str, Any] | None:
    """Return the entry of the tool of that name, or None."""
    return next((entry for entry in entries if entry["name"] == name), None)


def require_known_args(entry: Mapping[str, Any], args: Any, where: str) -> None:
    """Raise click.UsageError for an arg that the tool's schema does not name; `where` comes before its JSON pointer."""
    known = known_by(entry.get("params_schema"))
    unknown_members = [] if known is None else known.unknown_members(args)
    if not unknown_members:
        return
    first = unknown_members[0]
    constraint = "" if first.within else suggest(first.name, CONSTRAINTS)
    cure = suggest(first.name, first.known)
    if constraint and not cure:
        cure = f"a constraint is not an arg (`hearth run -c`): {constraint}"
    reason = cure or f"it takes {', '.join(sorted(first.known)) or 'none'}"
    place = common.clean(first.pointer) if where else common.clean(first.pointer)[1:]
    raise click.UsageError(f"{where}{place}: {entry['name']} takes no such arg; {reason}")


def overview(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table: name, risk, rollback, and the first sentence of the description."""
    rows = [
        (
            entry["name"],
            risk(entry),
            "yes" if entry.get("supports_rollback") else "-",
            entry.get("description", "").partition(". ")[0].removesuffix("."),
        )
        for entry in entries
    ]
    return common.table(("name", "risk", "rollback", "description"), rows)


def risk(entry: Mapping[str, Any]) -> str:
    """Return a risk level with its name (draft §3.3, Table 4)."""
    return _level(entry["risk_level"])


def _level(level: int) -> str:
    return f"{level} {RISK_NAMES[level]}" if 0 <= level < len(RISK_NAMES) else str(level)


def details(entry: Mapping[str, Any]) -> list[str]:
    """Return the lines with everything that a tool declares."""
    facts = {
        "risk": risk(entry) + (f", {_level(entry['least_risk'])} for some args" if "least_risk" in entry else ""),
        "version": entry.get("version"),
        "timeout": f"{entry.get('timeout_ms')} ms",
        "rollback": bool(entry.get("supports_rollback")),
        "capability": entry.get("capability"),
    }
    lines = [click.style(common.clean(entry["name"]), bold=True), common.clean(entry.get("description", "")), ""]
    lines += common.fields(facts)
    params, result = entry.get("params_schema") or {}, entry.get("result_schema")
    required = params.get("required", ())
    rows = [
        (name, kind(schema), "required" if name in required else "", str(schema.get("description", "")))
        for name, schema in params.get("properties", {}).items()
    ]
    lines += ["", *(common.table(("arg", "type", "", "description"), rows) if rows else ["takes no args"])]
    lines += ["", click.style("params_schema", bold=True), common.clean(common.pretty(params))]
    if result is not None:
        lines += ["", click.style("result_schema", bold=True), common.clean(common.pretty(result))]
    return lines


def kind(schema: Mapping[str, Any]) -> str:
    """Return a schema's type in a word or two."""
    if "enum" in schema:
        return " | ".join(common.scalar(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(kind(option) for option in schema["anyOf"])
    types = schema.get("type", "any")
    return " | ".join(types) if isinstance(types, list) else str(types)
