"""HCP messages: any document is a message, or a refusal with a code, a place in the document, a reason and a cure.

What is read is written, and read as the same again; nothing is written that was not in the document. A refusal
becomes a task_rejected that can be sent. Tokens that were not issued here are refused, whatever they are made of.
"""

# ruff: noqa: PT017 - outside of pytest, an oracle looks at an error where it is caught

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from hearth.errors import InvalidRequest, ParseError
from hearth.hcp.codec import dump, message, read_declaration, read_message, read_submission, write_message
from hearth.hcp.messages import LONGEST, MessageError, Rejection, read_duration, read_instant
from hearth.hcp.token import TokenError, issue, verify
from hearth.protocol.jsonrpc import load

from .. import HERE
from ..mutation import bytes_of, json_of, parts

if TYPE_CHECKING:
    import random

    from hearth.hcp.messages import Message

_PAGES = HERE.parent / "hcp/pages"
_KEY = b"k" * 32
_NOON = 1_776_638_881.25
_TOKEN = issue(_KEY, session_id="s", now=_NOON, max_duration=read_duration("PT1M"), risk="R2", classification="T1")
_CODES = {"invalid_message", "unsupported_version"}
DICTIONARY = (
    b'"hcp_version":"1.0"', b'"message_id":', b'"timestamp":"..."', b'"session_id":null', b'"payload":{',
    b'"task_submit"', b'"abort"',
    b'"event"', b'"task_completed"', b'"task_failed"', b'"task_accepted"', b'"task_rejected"', b'"PT10M"', b'"P1W"',
    b'"PT0.000001S"',
    b'"2025-01-15T08:30:00.000Z"', b'"R1"', b'"T4"', b'"max_duration":', b'"data":{}',
)  # fmt: skip


def check(data: bytes) -> None:
    """See the package."""
    if data[:1] == b"t":
        _token(data[1:])
        return
    try:
        document = load(data)
    except (ParseError, InvalidRequest) as error:
        assert error.data
        assert error.data["reason"]
        return
    try:
        read = read_message(document)
    except MessageError as error:
        _refused(document, error)
    else:
        assert type(document) is dict
        _same(document, read)
    try:
        submission = read_submission(document, now=_NOON)
    except MessageError as error:
        _refused(document, error)
    else:
        assert submission.type == "task_submit"
        assert submission.session_id is None
        assert load(dump(submission))["payload"] == orjson.loads(orjson.dumps(write_message(submission)["payload"]))
    try:
        assert read_declaration(document) is document
    except MessageError as error:
        _refused(document, error)


def _same(document: dict[str, Any], read: Message) -> None:
    line = dump(read)
    assert line.count(b"\n") == 1
    written = load(line)
    again = read_message(written)
    assert again == read, "what was read does not read back equal"
    assert dump(again) == line
    _invented(written, document, "")


_NORMALISED = ("duration", "timestamp", "max_duration", "abort_timeout")
_ALWAYS: dict[str, Any] = {
    "session_id": None, "data": {}, "safety_envelope": {}, "error_details": {"recoverable": False},
    "recoverable": False, "checkpoints_created": 0, "risk_events": [], "warnings": [],
}  # fmt: skip


def _invented(written: Any, given: Any, at: str) -> None:
    """Every member that is written was given, with the same value, but for the spelling of times."""
    waiting = [(written, given, at)]
    while waiting:
        one, other, where = waiting.pop()
        name = where.rpartition("/")[2]
        if type(one) is dict and type(other) is dict:
            for member, value in one.items():
                if other.get(member) is None and member in _ALWAYS and value == _ALWAYS[member]:
                    continue
                assert member in other, f"{where}/{member} was not in the document"
                waiting.append((value, other[member], f"{where}/{member}"))
        elif type(one) is list and type(other) is list:
            assert len(one) == len(other), where
            waiting += [(mine, its, f"{where}/-") for mine, its in zip(one, other, strict=True)]
        elif one != other:
            assert name in _NORMALISED, f"{where}: {other!r} became {one!r}"
            read = read_instant if name == "timestamp" else partial(read_duration, least=timedelta(0))
            assert read(one) == read(other)


def _refused(document: Any, error: MessageError) -> None:
    assert error.code in _CODES
    assert error.reason
    assert error.suggestion
    assert error.message_id is None or error.message_id == document["message_id"]
    value, names = document, [name.replace("~1", "/").replace("~0", "~") for name in error.pointer.split("/")[1:]]
    assert not error.pointer or names
    for index, name in enumerate(names):
        if type(value) is list:
            value = value[int(name)]
            continue
        assert type(value) is dict
        if name not in value:
            assert index == len(names) - 1, f"{error.pointer} leads nowhere"
            break
        value = value[name]
    # As the job server answers it (L3).
    reason = f"{error.pointer}: {error.reason}" if error.pointer else error.reason
    rejection = Rejection(error.code, reason, suggestion=error.suggestion)  # type: ignore[arg-type]
    assert len(rejection.message) <= LONGEST
    assert rejection.message.isprintable()
    answer = message(rejection.payload(error.message_id), session_id=None, now=_NOON)
    assert read_message(load(dump(answer))) == answer


def _token(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    try:
        claims = verify(_KEY, text, _NOON + 1, session_id="s")
    except TokenError as error:
        assert len(text) < 8 or text not in str(error)
        assert text != _TOKEN
    else:
        assert text == _TOKEN
        assert claims.expires_at == _NOON + 60


def seeds() -> list[bytes]:
    """The pages' examples, and a token."""
    pages = [orjson.dumps(orjson.loads(Path(path).read_bytes())) for path in sorted(_PAGES.glob("*.json"))]
    return [*pages, b"t" + _TOKEN.encode()]


_POOL = parts([orjson.loads(seed) for seed in seeds()[:-1]])


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The document's tree changed; a token by its bytes."""
    return b"t" + bytes_of(data[1:], rng) if data[:1] == b"t" else json_of(data, rng, _POOL)
