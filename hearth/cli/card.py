"""`hearth admin card show|validate|fetch`: the daemon's own AgentCard, and the cards of other agents.

This module owns the commands and the printed text. `hearth.agentcard` validates cards, and `hearth.agentcard.fetch`
fetches and caches them. The claims of a card are only shown: no command acts on them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, interruptible, session, standard
from hearth.errors import ConfigError, HearthError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.agentcard.document import Finding
    from hearth.agentcard.fetch import Fetched
    from hearth.agentcard.signature import CardSignature

MAX_FILE = 16 << 20
"""Limit of a file to validate, in bytes."""


@click.group()
def card() -> None:
    """Show this machine's AgentCard, validate one, or fetch another agent's.

    An AgentCard says what an agent can do, where it is, and at what cost.
    """


@card.command()
@standard
async def show(options: Options) -> None:
    """Show the card of the daemon, as it gives it to others."""
    async with session(options) as (client, opened):
        info = await client.call("mcp.info", {"session_id": opened.session_id})
    found = info.get("agent_card")
    if not isinstance(found, dict):
        raise HearthError("the daemon has no valid card to show; its log says why")
    click.echo(_json(found) if options.json else "\n".join(_lines(found)))


@card.command()
@click.argument("file")
@standard
def validate(options: Options, file: str) -> int:
    """Check the card in FILE ("-" is stdin) against every rule of the draft, and tell all that is wrong.

    Exit codes: 0 valid, 1 not valid, 2 no such file.
    """
    from hearth.agentcard.validate import read_card

    found, findings = read_card(_content(file))
    signature, wrong = _signature(found)
    findings = [*findings, *wrong]
    if options.json:
        whose = None if signature is None else {"did": signature.did, "key": signature.key}
        listed = [finding.to_json() for finding in findings]
        click.echo(_json({"valid": not findings, "findings": listed, "signature": whose}))
    elif findings:
        click.echo("\n".join(_finding_lines(findings)), err=True)
    else:
        assert found is not None
        click.echo(common.clean(f"valid: {found['name']} {found['version']}, {_counted(len(found['capabilities']))}"))
        click.echo("not signed" if signature is None else f"signed by {signature.did} ({signature.key})")
    return FAILED if findings else DONE


@card.command()
@click.argument("url")
@click.option(
    "--ca", metavar="FILE", type=Path, help="The CA that signed the server's certificate, if not the system's."
)
@click.option("--insecure-http", is_flag=True, help="Ask over plain http beyond this machine too.")
@click.option("--any-scheme", is_flag=True, help="Take a card whose endpoint is neither http nor https.")
@click.option("--refresh", is_flag=True, help="Ask even if what was fetched before has not expired.")
@click.option("--cache", metavar="DIR", type=Path, help="Where fetched cards are kept (default ~/.cache/hearth/cards).")
@standard
def fetch(options: Options, url: str, **how: Any) -> int:
    """Fetch the card of the agent at URL, and show it if it is valid and leads where it came from.

    The path /.well-known/agentcard is added to a bare origin. Until it expires the card is not asked for again. The
    claims of a card are not verified: do not trust an agent because of its card.
    """
    try:
        from hearth.agentcard import fetch as fetching
    except ModuleNotFoundError as error:
        raise ConfigError(f"`hearth admin card fetch` needs {error.name}; pip install 'hearthd[http]'") from None
    asked = fetching.card_url(url, insecure_http=how["insecure_http"])
    fetched: list[Fetched] = []

    async def work() -> int:
        fetched.append(await _fetched(asked, **how))
        return DONE

    try:
        code = interruptible(work)
        if code != DONE:
            return code
        found = fetching.examine(fetched[0], any_scheme=how["any_scheme"])
    except fetching.CardNotFetched as refused:
        if options.json:
            findings = [finding.to_json() for finding in refused.findings]
            click.echo(_json({"error": {"message": str(refused)}, "findings": findings}))
            return FAILED
        click.echo("\n".join(_finding_lines(refused.findings)), err=True)
        raise
    click.echo(_json(found) if options.json else "\n".join(_lines(found)))
    return DONE


async def _fetched(
    url: str, *, ca: Path | None, insecure_http: bool, refresh: bool, cache: Path | None, **_more: object
) -> Fetched:
    """Return the card from the cache if it is fresh, else from its server; a valid one is then cached."""
    from hearth.agentcard.fetch import CardCache, default_directory, examine, fetch_card

    directory = cache or default_directory(os.environ)
    kept = CardCache(directory) if directory is not None else None
    known = kept.find(url, time.time()) if kept is not None else None
    if known is not None and known[1] and not refresh:
        return known[0]
    fetched = await fetch_card(
        url, ca=ca, insecure_http=insecure_http, known=known[0] if known is not None and not refresh else None
    )
    examine(fetched, any_scheme=True)
    if kept is not None:
        kept.keep(url, fetched, time.time())
    return fetched


def _signature(found: Mapping[str, Any] | None) -> tuple[CardSignature | None, list[Finding]]:
    """Return whose signature a card has, and what is wrong with it."""
    from hearth.agentcard.signature import CardSignature, examine_signature

    signature = None if found is None else examine_signature(found)
    if isinstance(signature, CardSignature):
        return signature, []
    return None, [] if signature is None else [signature]


def _content(file: str) -> bytes:
    """Return the bytes of a file, or of stdin. Raises ConfigError."""
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_FILE + 1)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; give a file with a card, or - for stdin") from None
    if len(content) > MAX_FILE:
        raise ConfigError(f"{file}: longer than {MAX_FILE} bytes; no card is so large")
    return content


def _json(value: Any) -> str:
    # Not by orjson, which refuses values that a fetched card may have. In ASCII, so without control characters.
    return json.dumps(value)


def _finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield common.clean(f"{finding.pointer or 'the card'}: {finding.problem}  ({finding.rule})")
        yield common.clean(f"        {finding.cure}")


def _counted(capabilities: int) -> str:
    return f"{capabilities} capabilit{'y' if capabilities == 1 else 'ies'}"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a valid card for a person."""
    endpoint, metadata = found["endpoint"], found.get("metadata", {})
    scheme = endpoint.get("auth", {}).get("scheme", "none")
    yield click.style(common.clean(found["name"]), bold=True) + common.clean(f"  {found['version']}")
    yield from (
        f"  {name:<10}{common.clean(text)}"
        for name, text in (
            ("agent", found["agent_id"]),
            ("endpoint", f"{endpoint['protocol']} {endpoint['url']}  (auth: {scheme})"),
            ("price", _price(found.get("pricing", {}))),
            ("trust", f"{metadata.get('pacr:trust_tier', 'untrusted')}, by its own claim"),
            ("signed", _signed_by(found)),
        )
    )
    goals = [str(goal["goal_id"]) for goal in found.get("goal_subscriptions", ())]
    if goals:
        yield common.clean(f"  {'goals':<10}{', '.join(goals)}")
    yield ""
    rows = [
        (each["id"], each.get("description", "").partition(". ")[0].removesuffix(".")) for each in found["capabilities"]
    ]
    yield from common.table(("capability", "description"), rows)


def _signed_by(found: Mapping[str, Any]) -> str:
    signature, wrong = _signature(found)
    return f"by {signature.did}" if signature is not None else "wrong: " + wrong[0].problem if wrong else "not signed"


def _price(pricing: Mapping[str, Any]) -> str:
    told = [f"{pricing['base_cost_joules']} J a call"] if "base_cost_joules" in pricing else []
    if "per_token_joules" in pricing:
        told.append(f"{pricing['per_token_joules']} J a token")
    return ", ".join(told) or "not told"
