"""The audit log: whatever is in its files, `verify` gives a verdict, and recovery leaves a log to go on with, or
refuses.

The oracle verifies once more, in the fewest words that do it, and must name the same first bad record. Recovery may
move aside what follows the last record and nothing else; what is written after it must be chained to that record.

An input is the current file; what stands before a FS character (0x1c) is a file that was rotated.
"""

# ruff: noqa: PT017 - outside of pytest, an oracle looks at an error where it is caught

from __future__ import annotations

import atexit
import base64
import hashlib
import os
import re
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hearth.audit import AuditSettings
from hearth.audit.files import first_seq
from hearth.audit.keys import PublicKeys, Signer, checkpoint_message
from hearth.audit.log import AuditLog
from hearth.audit.record import GENESIS, Chain
from hearth.audit.verify import head, tail, verify
from hearth.errors import ConfigError

from ..mutation import bytes_of, parts, tree

if TYPE_CHECKING:
    import random

    from hearth.audit.verify import Report

NOON = 1_776_638_881.234
_SEPARATOR = b"\x1c"
_SHM = Path("/dev/shm")
_DIRECTORY = Path(tempfile.mkdtemp(prefix="hearth-fuzz-", dir=_SHM if os.access(_SHM, os.W_OK) else None))
atexit.register(shutil.rmtree, _DIRECTORY, ignore_errors=True)
_LOG = _DIRECTORY / "audit.log"
_PRIVATE = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
_SIGNER = Signer(_PRIVATE)
_PUBLIC = PublicKeys({_SIGNER.key_id: _PRIVATE.public_key()})
_HASH = re.compile("sha256:[0-9a-f]{64}")
DICTIONARY = (
    b'{"seq":', b',"ts":"', b'","event":"', b'"prev":"sha256:', b'"task.submit"', b'"task.step.start"',
    b'"daemon.start"', b'"daemon.stop"',
    b'"audit.checkpoint"', b'"head":{', b'"sig":"', GENESIS.encode(), b"\x1c", b"\x00" * 8, b"}\n", b'"task_id":"',
)  # fmt: skip


def check(data: bytes) -> None:
    """See the package."""
    files = _laid_out(data)
    # One of the two for each, to be twice as fast: a byte more or less makes it the other.
    try:
        if len(data) & 1:
            _recovered(files)
        else:
            _verified(files)
    finally:
        for name in os.listdir(_DIRECTORY):
            os.unlink(_DIRECTORY / name)


def _laid_out(data: bytes) -> dict[str, bytes]:
    """The files of the log, oldest first, on the disk and as a dict."""
    *older, current = data.split(_SEPARATOR)[-3:]
    files = {}
    for index, content in enumerate(older):
        named = re.match(rb'\{"seq":([0-9]{1,15}),', content)
        files[f"audit.log.{int(named[1]) if named else index + 1:012d}"] = content
    files = {name: files[name] for name in sorted(files, key=lambda name: int(name.rpartition(".")[2]))}
    files["audit.log"] = current
    for name, content in files.items():
        fd = os.open(_DIRECTORY / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(fd, content)
        os.close(fd)
    return files


# --- verification ---------------------------------------------------------------------------------------------------


def _verified(files: dict[str, bytes]) -> None:
    whole = zlib.crc32(files["audit.log"])
    signed = bool(whole & 1)  # now with the key, now without
    report = verify(_LOG, _PUBLIC if signed else None)
    bad, records, last = _verify(_newest_apart(files), signed=signed)
    _agree(report, bad, records, last)
    if whole & 6:
        return
    there = head(_LOG)
    assert there is None or (_HASH.fullmatch(there[1]) and there[0] > 0)
    ends = tail(_LOG, 2)
    assert len(ends) <= 2
    assert bool(ends) == (there is not None)


def _newest_apart(files: dict[str, bytes]) -> dict[str, bytes]:
    """A rotated file that begins after the current one was rotated while somebody looked: it is not read."""
    begins = re.match(rb'\{"seq":([0-9]{1,18}),', files["audit.log"][:64])
    return {
        name: content
        for name, content in files.items()
        if name == "audit.log" or begins is None or int(name.rpartition(".")[2]) < int(begins[1])
    }


def _agree(report: Report, bad: tuple[str, int] | None, records: int, last: tuple[int, str] | None) -> None:
    first = report.first_bad
    found = None if first is None else (first.file.name, first.line)
    assert found == bad, f"verify says {first}, the oracle {bad}"
    assert report.records == records
    assert report.head == last
    assert report.ok == (bad is None)
    if first is not None:
        assert first.reason
        assert first.reason.isprintable(), f"a reason of more than one line: {first.reason!r}"
        assert len(first.reason) < 2000, "a reason too long to read"


def _verify(files: dict[str, bytes], *, signed: bool) -> tuple[tuple[str, int] | None, int, Any]:
    """The first bad (file, line), how many records are good before it, and the last of them."""
    seq, prev, records = 0, "", 0
    for name, content in files.items():
        lines = re.findall(rb"[^\n]*\n|[^\n]+\Z", content)
        for number, line in enumerate(lines, 1):
            record = _good(line, seq, prev, signed=signed)
            if record is None:
                return (name, number), records, (seq, prev) if records else None
            seq, prev, records = record["seq"], "sha256:" + hashlib.sha256(line[:-1]).hexdigest(), records + 1
            if number == 1 and name != "audit.log" and int(name.rpartition(".")[2]) != seq:
                return (name, number), records, (seq, prev)
        if name != "audit.log" and not lines:
            return (name, 0), records, (seq, prev) if records else None
    return None, records, (seq, prev) if records else None


def _good(line: bytes, seq: int, prev: str, *, signed: bool) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line) if line.endswith(b"\n") else None
    except orjson.JSONDecodeError:
        return None
    if type(record) is not dict or type(record.get("seq")) is not int or type(record.get("prev")) is not str:
        return None
    if not seq and (record["seq"] < 1 or (record["seq"] == 1 and record["prev"] != GENESIS)):
        return None
    if seq and (record["seq"], record["prev"]) != (seq + 1, prev):
        return None
    if record.get("event") == "audit.checkpoint":
        here = {"seq": record["seq"] - 1, "hash": record["prev"]}
        if type(record.get("head")) is not dict or record["head"] != here or (signed and not _signed(record)):
            return None
    return record


def _signed(record: dict[str, Any]) -> bool:
    if record.get("key") != _SIGNER.key_id:
        return False
    text = f"hearth audit checkpoint\n{record['seq'] - 1}\n{record['prev']}\n{record.get('ts')}\n"
    try:
        _PRIVATE.public_key().verify(base64.b64decode(str(record.get("sig")), validate=True), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


# --- recovery -------------------------------------------------------------------------------------------------------


def _recovered(files: dict[str, bytes]) -> None:
    before = files["audit.log"]
    log = AuditLog(AuditSettings(path=_LOG, key=_DIRECTORY / "audit.key", checkpoint_every=10**9))
    try:
        found = log.open(NOON)
    except ConfigError as error:
        assert "\n" not in str(error)
        assert str(_LOG) in str(error)
        assert _LOG.read_bytes() == before, "refused, and changed"
        return
    try:
        kept = _LOG.read_bytes()
        assert before.startswith(kept)
        assert len(kept) == found.size
        aside = b"" if found.torn is None else found.torn.read_bytes()
        assert kept + aside == before, "bytes are lost"
        assert found.torn_bytes == len(aside)
        notice = found.record()
        assert (notice is None) == (not (aside or found.in_flight or found.unclean))
        assert all(note and "\n" not in note for note in found.notes())
        log.append([(NOON, {"event": "daemon.start"}), *([(NOON, notice)] if notice else [])], NOON)
    finally:
        log.close()
    after = dict(files)
    after["audit.log"] = _LOG.read_bytes()
    assert after["audit.log"].startswith(kept)
    still_bad, _, _ = _verify({**files, "audit.log": kept}, signed=False)
    now_bad, _, _ = _verify(after, signed=False)
    if kept or len(files) == 1:
        # What was good stays good, what was bad stays found, and what is new is chained to it.
        assert now_bad == still_bad, f"recovery leaves {now_bad}, there was {still_bad}"
    opened = os.open(_LOG, os.O_RDONLY)
    try:
        assert first_seq(opened) == found.first_seq or not kept
    finally:
        os.close(opened)


# --- inputs ---------------------------------------------------------------------------------------------------------

_RECORDS: list[dict[str, Any]] = [
    {"event": "daemon.start", "version": "0.1.0"},
    {"event": "session.open", "session_id": "01A", "principal": "unix:1"},
    {"event": "task.submit", "session_id": "01A", "task_id": "01B", "intent": "i", "steps": 2},
    {"event": "task.step.start", "session_id": "01A", "task_id": "01B", "step_index": 0, "tool": "gpio.set",
    "args_hash": "sha256:0"},
    {"event": "task.step.finish", "session_id": "01A", "task_id": "01B", "step_index": 0, "status": "SUCCESS"},
    {"event": "task.finish", "session_id": "01A", "task_id": "01B", "status": "SUCCESS"},
    {"event": "session.close", "session_id": "01A", "reason": "client"},
    {"event": "daemon.stop"},
]  # fmt: skip
_POOL = parts(_RECORDS)


def _sealed(records: list[dict[str, Any]], chain: Chain, *, sign: bool = False) -> bytes:
    lines = b"".join(chain.seal(record, NOON) for record in records)
    if sign:
        lines += chain.seal(_checkpoint(chain), NOON)
    return lines


def _checkpoint(chain: Chain) -> dict[str, Any]:
    seq, last = chain.head
    signature = _SIGNER.sign(checkpoint_message(seq, last, "2026-04-19T22:48:01.234Z"))
    return {"event": "audit.checkpoint", "head": {"seq": seq, "hash": last}, "key": _SIGNER.key_id, "sig": signature}


def seeds() -> list[bytes]:
    """Logs: ended well, torn, with a task in flight, of several files, with checkpoints, of zeros."""
    whole = _sealed(_RECORDS, Chain())
    flight = _sealed(_RECORDS[:4], Chain(), sign=True)
    chain = Chain()
    rotated = (
        _sealed(_RECORDS[:3], chain)
        + _SEPARATOR
        + _sealed([{"event": "audit.rotate"}, *_RECORDS[3:5]], chain, sign=True)
    )
    later = _sealed(_RECORDS, Chain(41, "sha256:" + "a" * 64))
    return [
        whole,
        flight,
        rotated,
        later,
        whole[:-20],
        whole + b"\x00" * 40,
        b"",
        b"\x00" * 16,
        _sealed(_RECORDS[:1], Chain()),
    ]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Bytes, lines or a record's members changed; then, often, everything chained and signed anew."""
    if rng.random() < 0.2:
        return bytes_of(data, rng)
    files = [content.split(b"\n") for content in data.split(_SEPARATOR)]
    lines = rng.choice(files)
    at = rng.randrange(len(lines))
    match rng.randrange(7):
        case 0:
            lines[at] = bytes_of(lines[at], rng)
        case 1 if len(lines) > 1:
            del lines[at]
        case 2:
            lines.insert(at, orjson.dumps({"seq": 1, "ts": "", **rng.choice(_RECORDS), "prev": GENESIS}))
        case 3:
            lines.insert(at, rng.choice(rng.choice(files)))
        case 4 if len(files) < 3:
            files.append([lines.pop() if len(lines) > 2 else b"", b""])
        case _:
            lines[at] = _changed(lines[at], rng)
    if rng.random() < 0.7:
        _chain_anew(files, rng)
    return _SEPARATOR.join(b"\n".join(lines) for lines in files)


def _changed(line: bytes, rng: random.Random) -> bytes:
    try:
        return orjson.dumps(tree(orjson.loads(line), rng, _POOL))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, OverflowError):
        return bytes_of(line, rng)


def _chain_anew(files: list[list[bytes]], rng: random.Random) -> None:
    """Number and chain the records once more, from some record on: the change is then all that is wrong."""
    chain, skip = Chain(), rng.choice((0, 0, 0, 1, 3))
    for lines in files:
        for index, line in enumerate(lines):
            if skip > 0 or not line:
                skip -= 1
                continue
            record = _readable(line)
            if record is None:
                continue
            if record.get("event") == "audit.checkpoint" and rng.random() < 0.9:
                record = _checkpoint(chain)
            for name in ("seq", "ts", "prev"):
                record.pop(name, None)
            lines[index] = chain.seal(record, NOON)[:-1]


def _readable(line: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if type(record) is dict else None
