"""`hearth admin attest show|enroll|verify`: what the daemon states of itself, and the check of it.

This module owns the commands, the enrolment's file and the printed text; `hearth.attest.statement` verifies.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from hearth._util.files import replace_file
from hearth.attest.statement import Enrolment, enrolled, statement_of, verify as verify_answer
from hearth.audit.notes import Checkpoint, NotAccepted
from hearth.cli import common
from hearth.cli.common import DONE, Options, session, standard
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DAY: float = 86_400.0


@click.group()
def attest() -> None:
    """Show, enrol and verify the daemon's signed statement of itself.

    `enroll` notes keys, measurements and the state of the audit log, once, where you trust the way to the daemon.
    `verify` then tells whether it is still the same, and its log a continuation.
    """


@attest.command()
@click.option("--nonce", metavar="HEX", help="16 to 64 bytes in hex (default: random ones).")
@standard
async def show(options: Options, nonce: str | None) -> None:
    """Show the daemon's statement. Nothing of it is verified; --json has all that a verifier needs."""
    async with session(options) as (_, opened):
        answer = await opened.attest_quote(nonce or secrets.token_hex(32))
    statement = statement_of(answer)
    shown = {**statement, "signed by": answer["signatures"][0]["keyid"], "TPM quote": "tpm" in answer}
    click.echo(common.compact(answer) if options.json else "\n".join(common.fields(shown)))


@attest.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--days", type=click.IntRange(1), default=365, show_default=True, help="How long the keys are accepted.")
@click.option("--renew", is_flag=True, help="Replace FILE: accept what the daemon runs with now, and its keys.")
@standard
async def enroll(options: Options, file: Path, days: int, *, renew: bool) -> None:
    """Note in FILE the keys and measurements of the daemon, as they are now.

    The daemon that answers now is trusted from now on: compare the printed key, by another way, with the machine's.
    """
    if not renew:
        _require_new(file)
    nonce = secrets.token_hex(32)
    async with session(options) as (_, opened):
        key, answer = await opened.attest_key(), await opened.attest_quote(nonce)
    found = enrolled(answer, key, nonce, time.time() + days * DAY)
    _write(file, found)
    told = {"key": key["key"], "verifier_key": key["verifier_key"], "tpm_key": found.ak_name}
    click.echo(common.compact(told) if options.json else "\n".join(common.fields(told)))


@attest.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--quote", metavar="JSON", type=click.Path(path_type=Path), help="Verify this answer, and ask no daemon.")
@click.option("--nonce", metavar="HEX", help="The nonce for which that answer was asked.")
@standard
async def verify(options: Options, file: Path, quote: Path | None, nonce: str | None) -> int:
    """Ask the daemon for a statement and compare it with FILE, which `enroll` wrote; exits with 1 if it is refused.

    FILE then has the new state of the log, so that a later rollback or fork is found.
    """
    if (quote is None) != (nonce is None):
        raise ConfigError("--quote and --nonce go together: the answer, and the nonce for which it was asked")
    enrolment = Enrolment.load(_content(file))
    if quote is not None and nonce is not None:
        answer = _answer(quote)
    else:
        nonce = secrets.token_hex(32)
        async with session(options) as (_, opened):
            answer = await opened.attest_quote(nonce, since=Checkpoint.parse(enrolment.checkpoint).size)
    try:
        kept = verify_answer(answer, enrolment, str(nonce), time.time())
    except NotAccepted as refused:
        return common.report_refusal(options, refused)
    _write(file, kept)
    statement = statement_of(answer)
    if options.json:
        click.echo(common.compact({"ok": True, "statement": statement}))
    else:
        click.echo("\n".join(_lines(statement, enrolment)))
    return DONE


def _require_new(file: Path) -> None:
    if file.exists():
        raise ConfigError(f"{file}: exists; verify with it, or give --renew to accept what the daemon runs with now")


def _lines(statement: Mapping[str, Any], enrolment: Enrolment) -> Iterator[str]:
    audit = statement["audit"]
    by = "the audit key" if enrolment.ak is None else f"the audit key, and the TPM over PCR {enrolment.pcr}"
    yield f"OK   signed by {by}, for this nonce"
    yield f"     hearth {common.clean(str(statement['measured'].get('version')))}, measurements as enrolled"
    yield f"     the log has {audit['size']} records, and begins with those of the last time"


def _content(file: Path) -> bytes:
    """Return the bytes of a file. Raises ConfigError."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; `hearth admin attest enroll {file}` writes it") from None


def _answer(quote: Path) -> Mapping[str, Any]:
    try:
        answer = orjson.loads(_content(quote))
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ConfigError(f"{quote}: is no answer of attest.quote; `hearth --json attest show` prints one")
    return answer


def _write(file: Path, enrolment: Enrolment) -> None:
    try:
        replace_file(file, enrolment.save(), 0o600, sync=True)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
