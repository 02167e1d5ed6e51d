"""`hearth audit`: the audit log as a file, read without a daemon; proofs and a witness on another machine.

This module owns the printed text; `hearth.audit.verify` checks the log, `tree` makes proofs, `notes` has the witness.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import secrets
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import trio

from hearth.audit import notes, verify as reading
from hearth.audit.files import newest_records
from hearth.audit.keys import load_or_create, load_public
from hearth.audit.notes import Checkpoint
from hearth.audit.tree import Prover
from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, standard
from hearth.config.model import default_state_dir
from hearth.errors import ConfigError, HearthError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.audit.record import Head

POLL = 0.25
"""Seconds between two reads of a log that is followed."""
MOST_RECORD = 16 << 20
"""Bytes of a record that is read: more than any has."""
_HEAD = re.compile(r"([0-9]{1,18}):(sha256:[0-9a-f]{64})\Z")
_SHOWN_FIRST = ("seq", "ts", "event")
_CHAIN = ("prev", "args_hash", "principal")
"""Members that are not printed for a person; --json has them."""


@click.group()
def audit() -> None:
    """Verify the audit log, read its end, prove what is in it, or witness that it only grows.

    PATH is the log as [audit] path names it; the files it was rotated to are found beside it. Left out, it is the
    default one of this user's daemon.
    """


@audit.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--key", metavar="PUB", help="Check the checkpoints' signatures with this public key (<key>.pub).")
@click.option("--known", metavar="SEQ:HASH", help="A head noted earlier, as `audit head` prints it.")
@click.option(
    "--checkpoint-every",
    type=click.IntRange(1),
    default=reading.CHECKPOINT_EVERY,
    show_default=True,
    help="The daemon's [audit] checkpoint_every: with --key, a longer log without a checkpoint is bad.",
)
@standard
def verify(options: Options, paths: Sequence[str], key: str | None, known: str | None, checkpoint_every: int) -> int:
    """Check every record of the log against the one before it; exits with 1 at the first that is wrong.

    With --key, signatures prove who wrote it; with --known, that it still contains what it contained then.
    """
    report = reading.verify(
        list(paths) or [default_log()], key, known=parse_head(known), checkpoint_every=checkpoint_every
    )
    if options.json:
        click.echo(common.compact(report_json(report)))
    else:
        click.echo("\n".join(report_lines(report, signed=key is not None)))
    return DONE if report.ok else FAILED


@audit.command()
@click.argument("path", required=False)
@standard
def head(options: Options, path: str | None) -> int:
    """Print the last record's SEQ:HASH. Noted elsewhere, it lets `verify --known` find a log that was cut."""
    log = path or default_log()
    found = reading.head(log)
    if found is None:
        raise HearthError(f"{log}: there is no record in it yet")
    click.echo(common.compact({"seq": found[0], "hash": found[1]}) if options.json else f"{found[0]}:{found[1]}")
    return DONE


@audit.command()
@click.argument("path", required=False)
@click.option("-n", "--lines", type=click.IntRange(min=0), default=10, show_default=True, help="How many records.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@standard
def tail(options: Options, path: str | None, lines: int, follow: bool) -> int:
    """Print the last records, one a line, oldest first."""
    log = path or default_log()
    seen = 0
    for record in reading.tail(log, max(lines, 1)):
        seen = record["seq"]
        if lines:
            _print(record, options)
    while follow:
        time.sleep(POLL)
        for record in since(log, seen):
            seen = record["seq"]
            _print(record, options)
    return DONE


@audit.command()
@click.argument("seq", type=click.IntRange(0))
@click.argument("path", required=False)
@click.option("--consistency", is_flag=True, help="Prove that the log begins with its first SEQ records.")
@standard
def prove(options: Options, seq: int, path: str | None, *, consistency: bool) -> int:
    """Print the proof that record SEQ is in the log, as of its newest checkpoint (c2sp.org/tlog-proof).

    With --consistency: the proof that the log of that checkpoint continues one of SEQ records, as a request that a
    witness takes (c2sp.org/tlog-witness).
    """
    prover = Prover(Path(path or default_log()))
    note = newest_note(prover.path)
    size = Checkpoint.parse(note).size
    if consistency:
        proof = prover.consistency(seq, size)
        told: dict[str, Any] = {"old": seq}
        text = notes.witness_request(seq, proof, note)
    else:
        index = seq - prover.first
        proof = prover.inclusion(index, size)
        told = {"index": index, "line": prover.line(index).decode()}
        text = notes.inclusion_text(index, proof, note)
    told |= {"size": size, "proof": [base64.b64encode(each).decode() for each in proof], "checkpoint": note}
    click.echo(common.compact(told) if options.json else text, nl=options.json)
    return DONE


def newest_note(log: Path) -> str:
    """Return the newest signed note of a log. Raises HearthError if it has none."""
    for _, record in newest_records(log):
        if record.get("event") == "audit.checkpoint" and isinstance(record.get("note"), str):
            return str(record["note"])
    raise HearthError(f"{log}: there is no checkpoint with a signed note in it yet; hearthd writes one at its start")


@audit.command(name="verify-proof")
@click.argument("proof", type=click.File(encoding="utf-8", errors="replace"))
@click.argument("record", type=click.File("rb"))
@click.option("--key", metavar="PUB", type=click.Path(path_type=Path), required=True, help="The log's public key.")
@standard
def verify_proof(options: Options, proof: IO[str], record: IO[bytes], key: Path) -> int:
    """Verify that RECORD, a file with a line of the log, is in the log that PUB signed; exits with 1 if not.

    PROOF is what `audit prove` printed. The log itself is not needed. Either file may be - for stdin.
    """
    known, line = load_public(key), record.read(MOST_RECORD + 1).removesuffix(b"\n")
    if len(line) > MOST_RECORD or not line or b"\n" in line:
        raise ConfigError(f"{record.name}: expected one record, a line of the log")
    try:
        index, checkpoint, signer = notes.verify_inclusion(proof.read(notes.MOST_BYTES + 1), line, known)
    except notes.NotAccepted as refused:
        return common.report_refusal(options, refused)
    told = {"ok": True, "index": index, "size": checkpoint.size, "origin": checkpoint.origin, "key": signer}
    text = (
        f"OK   record {index + 1} of the log {checkpoint.origin}\n"
        f"     which had {checkpoint.size} records when {signer} signed its checkpoint"
    )
    click.echo(common.compact(told) if options.json else common.clean(text))
    return DONE


@audit.command()
@click.argument("request", required=False)
@click.option("--state", metavar="FILE", type=click.Path(path_type=Path), required=True, help="What was cosigned last.")
@click.option("--key", metavar="PUB", type=click.Path(path_type=Path), required=True, help="The log's public key.")
@click.option("--name", metavar="NAME", default="hearth-witness", show_default=True, help="The witness's name.")
@click.option("--new-log", is_flag=True, help="Take another log of the same key, in place of the one known so far.")
@standard
async def witness(options: Options, request: str | None, state: Path, key: Path, name: str, *, new_log: bool) -> int:
    """Cosign the daemon's checkpoint if it continues the last one cosigned; refuse a fork and a rollback.

    Of one key it knows one log: one that was begun again is refused until --new-log. Run it on another machine,
    regularly. It asks the daemon, or reads REQUEST (a file, or - for stdin) as `audit prove --consistency` prints it.
    The witness's own key is made beside FILE.
    """
    with locked(state):
        mine = await trio.to_thread.run_sync(load_or_create, state.with_name(f"{state.name}.key"))
        memory = notes.Witness(state, name, load_public(key), mine)
        last = memory.only()
        size = 0 if last is None or new_log else last.size
        if request is None:
            async with common.session(options) as (_, opened):
                answer = await opened.attest_quote(secrets.token_hex(16), since=size)
            proof = notes.decode_hashes(map(str, answer.get("consistency", ())))
            note = str(answer.get("checkpoint"))
        else:
            with click.open_file(request, encoding="utf-8", errors="replace") as file:
                size, proof, note = notes.read_witness_request(file.read(notes.MOST_BYTES + 1))
        try:
            cosigned = memory.cosign(size, proof, note, int(time.time()), new_log=new_log)
        except notes.NotAccepted as refused:
            return common.report_refusal(options, refused, checkpoint=note)
    vkey = notes.verifier_key(name, notes.COSIGNATURE, mine.raw)
    told = {"ok": True, "checkpoint": cosigned, "verifier_key": vkey}
    click.echo(common.compact(told) if options.json else cosigned, nl=options.json)
    return DONE


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the lock of a witness's memory. Raises ConfigError if another process has it."""
    try:
        with state.with_name(f"{state.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        raise ConfigError(f"{state}: another witness uses it; wait for it, or name another file") from None


def since(log: Path | str, seq: int) -> list[Mapping[str, Any]]:
    """Return the records after the one with that seq, oldest first, also across a rotation."""
    count = 16
    while True:
        records = reading.tail(log, count)
        if len(records) < count or records[0]["seq"] <= seq + 1:
            return [record for record in records if record["seq"] > seq]
        count *= 4


def default_log() -> Path:
    """Return the default path of the log of this user's daemon."""
    return default_state_dir(os.environ, os.geteuid()) / "audit.log"


def parse_head(text: str | None) -> Head | None:
    """Parse SEQ:HASH as `audit head` prints it. Raises ConfigError."""
    if text is None:
        return None
    match = _HEAD.match(text)
    if match is None:
        raise ConfigError(f"--known: expected SEQ:sha256:…, as `hearth audit head` prints it, got {text[:100]!r}")
    return int(match[1]), match[2]


def report_json(report: reading.Report) -> dict[str, Any]:
    """Return a report for a program."""
    bad = report.first_bad
    return {
        "ok": report.ok,
        "records": report.records,
        "files": [str(file) for file in report.files],
        "head": None if report.head is None else {"seq": report.head[0], "hash": report.head[1]},
        "first_seq": report.first_seq,
        "checkpoints": report.checkpoints,
        "signed_to": report.signed_to,
        "unsigned": report.unsigned,
        "lost": dict(report.lost),
        "uncounted": report.uncounted,
        "first_bad": None if bad is None else {"file": str(bad.file), "line": bad.line, "reason": bad.reason},
    }


def report_lines(report: reading.Report, *, signed: bool) -> list[str]:
    """Return a report for a person: the findings, and what they prove."""
    bad = report.first_bad
    found = _good_lines(report, signed=signed) if bad is None else _bad_lines(report, bad)
    return [common.clean(line) for line in found]


def _bad_lines(report: reading.Report, bad: reading.Bad) -> Iterator[str]:
    place = f"{bad.file}:{bad.line}" if bad.line else f"{bad.file}"
    yield f"BAD  {place}: {bad.reason}"
    if report.records:
        yield f"     good up to there: {report.records} records"


def _signature_lines(report: reading.Report, *, signed: bool) -> Iterator[str]:
    """Yield which records have a signature; `signed`: there is a key to check it with."""
    if signed and not report.checkpoints:
        yield "     no checkpoint yet: no signature covers a record"
        return
    if signed:
        yield f"     signed up to record {report.signed_to}, by {report.checkpoints} checkpoints"
    elif report.checkpoints:
        yield f"     {report.checkpoints} checkpoints, whose signatures --key would check"
    if report.unsigned:
        records = "record is" if report.unsigned == 1 else "records are"
        yield f"     the last {report.unsigned} {records} not covered by a signature yet"


def _good_lines(report: reading.Report, *, signed: bool) -> Iterator[str]:
    files = f"{len(report.files)} file{'' if len(report.files) == 1 else 's'}"
    yield f"OK   records: {report.records}, in {files}, each chained to the one before"
    if report.head is not None:
        yield f"     head {report.head[0]}:{report.head[1]}"
    if report.first_seq is not None and report.first_seq > 1:
        yield f"     begins at record {report.first_seq}: older files are not here"
    yield from _signature_lines(report, signed=signed)
    if report.lost:
        lost = ", ".join(f"{count} of {name}" for name, count in sorted(report.lost.items()))
        yield f"GAP  records that could not be written and were lost: {lost}; see audit.resume and audit.gap"
    if report.uncounted:
        runs = "run" if report.uncounted == 1 else "runs"
        yield f"GAP  {report.uncounted} {runs} ended while the disk was full; how many records were lost is not known"


def _print(record: Mapping[str, Any], options: Options) -> None:
    click.echo(common.compact(record) if options.json else record_line(record))


def record_line(record: Mapping[str, Any]) -> str:
    """Return a record as one line: number, time, event, and its other members."""
    rest = " ".join(
        f"{name}={_brief(value)}"
        for name, value in record.items()
        if name not in _SHOWN_FIRST and name not in _CHAIN and value is not None
    )
    seq, ts, event = (_brief(record.get(name, "-")) for name in _SHOWN_FIRST)
    # A record of hearth has no line ends, but the log may come from elsewhere.
    return common.clean(f"{seq:>6}  {ts}  {event.ljust(18)}  {rest}".rstrip()).replace("\n", "\\n")


def _brief(value: Any) -> str:
    """Return a value in few words; for a submission's steps, their tools."""
    if isinstance(value, list) and value and all(isinstance(item, dict) and "tool" in item for item in value):
        return ",".join(str(item["tool"]) for item in value)
    return common.scalar(value)
