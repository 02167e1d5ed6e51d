"""Changes to inputs that keep their structure: JSON trees, lines of TOML, and bytes; all drawn from a `random.Random`.

Raw bytes hardly ever get past a parser; these reach what lies behind it. Nothing here knows what an input means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from hearth.protocol.jsonrpc import MAX_DEPTH, is_deeper

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 0.5, 1.0, -0.0, 1e300, 1e-320, 2**31, 2**53 - 1, 2**53, 2**63, 2**64 - 1, "",
    " ", "a",
    "0", "1", "true", "0x48", "\x00", "\n", "a\n", "\u009b", "\u202e", "é", "\U0001f9ea", "٣", "..", "/", "~", "%",
    "*", "{}", [], {},
    [None], [[]], [{}], {"": None}, {"a": {"a": {}}}, "P1D", "PT0S", "...", "0.1.0", "1.0",
)  # fmt: skip
"""Values at the edges of what a schema, a reader or a printer may have thought of."""
_RAW = (
    b"NaN", b"1e999", b"-1e999", b'"\\ud800"', b'"\\u0000"', b"1" * 400, b"9" * 20, b"[" * 127 + b"]" * 127,
    b"[" * 200 + b"]" * 200,
    b"[" * 1020 + b"]" * 1020, b'{"a":' * 250 + b"1" + b"}" * 250, b'{"a":1,"a":2}', b"0.1e1", b"-0",
    b"1.0000000000000000001",
)  # fmt: skip
"""What no Python value is written as."""
_BYTES = (
    b"\n",
    b"\r\n",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b'"',
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"\\",
    b"=",
    b"#",
    b" ",
    b"'",
)
_MOST = 12_000


def bytes_of(data: bytes, rng: random.Random) -> bytes:
    """A few bytes flipped, put in, doubled, moved or cut out."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(6):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                made[at:at] = rng.choice(_BYTES)
            case 2:
                del made[at : at + rng.randrange(1, 20)]
            case 3:
                made[at:at] = made[at : at + rng.randrange(1, 40)]
            case 4 if rng.random() < 0.1:
                made[at:at] = made[at : at + 1] * rng.choice((100, 1000, 5000))
            case _:
                del made[rng.randrange(len(made) + 1) :]
    return bytes(made)


def _holders(value: Any) -> list[Any]:
    """Every object and array that has something in it, the outermost first."""
    found, waiting = [], [value]
    while waiting:
        one = waiting.pop()
        if one and type(one) in (dict, list):
            found.append(one)
            waiting += one.values() if type(one) is dict else one
    return found


def _scalar(value: Any, rng: random.Random) -> Any:
    if type(value) is str:
        at = rng.randrange(len(value) + 1)
        match rng.randrange(6):
            case 0:
                return value[:at] + rng.choice(("\n", "\x00", "é", "0", "a", "/", "-", ".", "\u009b", "~")) + value[at:]
            case 1:
                return value[:at] + value[at + 1 :]
            case 2:
                return (value * rng.choice((2, 2, 3, 30, 130)))[:5000]
            case 3:
                return value.swapcase()
            case _:
                return value[:at]
    if type(value) in (int, float):
        return rng.choice((value + 1, value - 1, -value, value * 2, float(value), str(value), value * 10**6, value / 3))
    return _copied(rng.choice(STRANGE))


def tree(value: Any, rng: random.Random, pool: Sequence[Any]) -> Any:
    """`value`, changed in one place or a few; `pool` has values of other inputs to put there."""
    grown = False
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holders = _holders(value)
        if not holders:
            return _other(value, rng, pool)
        holder = rng.choice(holders)
        where = rng.choice(list(holder)) if type(holder) is dict else rng.randrange(len(holder))
        match rng.randrange(9):
            case 0:
                del holder[where]
            case 1 if type(holder) is dict:
                holder[rng.choice(("", "a", "x\n", "~/", where + "s", where[:-1], where.upper()))] = holder.pop(where)
            case 2 if type(holder) is dict:
                other = rng.choice(holders)
                if type(other) is dict:
                    holder[rng.choice(list(other))] = _other(None, rng, pool)
            case 3 if type(holder) is list:
                holder.insert(where, _copied(holder[where]))
            case 4:
                held = holder[where]
                holder[where] = [held] if rng.random() < 0.5 else {"a": held}
            case 5 if type(holder) is list and not grown:
                # Once only: what is repeated twice over has grown past any memory.
                grown, holder[:] = True, (holder * rng.choice((2, 3, 20)))[:64]
            case _:
                holder[where] = _other(holder[where], rng, pool)
    return value


def _other(value: Any, rng: random.Random, pool: Sequence[Any]) -> Any:
    match rng.randrange(6):
        case 0:
            return orjson.Fragment(rng.choice(_RAW))
        case 1 | 2:
            return _copied(rng.choice(pool or STRANGE))
        case 3:
            return _copied(rng.choice(STRANGE))
        case _:
            return _scalar(value, rng)


def _copied(value: Any) -> Any:
    """Two places must not hold one container: a change of the one would make a ring."""
    return orjson.loads(orjson.dumps(value)) if type(value) in (dict, list) else value


def parts(values: Sequence[Any]) -> list[Any]:
    """Everything that is inside some values, for a pool."""
    found: list[Any] = []
    for value in values:
        for holder in _holders(value):
            found += holder.values() if type(holder) is dict else holder
    return found


def json_of(data: bytes, rng: random.Random, pool: Sequence[Any]) -> bytes:
    """A JSON document with its tree changed; bytes that are none, and what is deeper than the wire reads, as bytes."""
    if rng.random() < 0.1:
        return bytes_of(data, rng)
    try:
        value = orjson.loads(data)
        # orjson writes past the end of its buffer where arrays are much deeper (decision 0096).
        return bytes_of(data, rng) if is_deeper(value, MAX_DEPTH) else orjson.dumps(tree(value, rng, pool))[:_MOST]
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, OverflowError):
        return bytes_of(data, rng)


_LITERALS = (
    b"true", b"false", b"0", b"1", b"-1", b"1.5", b"inf", b"nan", b'""', b'"a"', b'"/a"', b"'x'", b'"\\n"', b"[]",
    b"{}", b"[{}]", b'["a"]',
    b"1979-05-27", b"07:32:00", b"0x10", b"0o17", b"99999999999", b"1_000", b'"\\u001b[31m"', b'"0660"', b"[[]]",
    b"{a = 1}",
    b'"127.0.0.1:7118"', b'"[::1]:0"', b'"\\u0000"', b"1e400", b'"input"', b"0x" + b"f" * 4500, b"9" * 4400,
    b"[" * 400 + b"]" * 400,
)  # fmt: skip


def lines_of(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """TOML, and what else is lines: some put in, taken out, swapped, given another value or key."""
    if rng.random() < 0.15:
        return bytes_of(data, rng)
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        line = lines[at]
        key, equals, value = line.partition(b"=")
        match rng.randrange(8):
            case 0:
                lines.insert(at, rng.choice(pool))
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], line
            case 3 if equals:
                lines[at] = key + b"= " + (rng.choice(pool).partition(b"=")[2] or b"1")
            case 4 if equals:
                lines[at] = bytes_of(key, rng) + b"=" + value
            case 5 if line:
                lines[at] = bytes_of(line, rng)
            case _ if equals:
                lines[at] = key + b"= " + rng.choice(_LITERALS)
            case _:
                lines.insert(at, rng.choice(pool))
    return b"\n".join(lines)[:_MOST]
