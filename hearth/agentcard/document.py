"""An AgentCard as received: an object, or JSON text of one, once or twice (draft-aevum-agentcard-00 §3).

This module owns the JSON of a card, the limits on it, the findings, and the grammar of URIs (RFC 3986, Appendix A). The
required content of a card, schemes and existing hosts are not known here.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from attrs import frozen

# The findings about a faulty card, their number, and the sentences for values of a wrong type.

MAX_FINDINGS = 100
"""Findings of a card. One more says that there are others, which are not listed."""
LONGEST_POINTER = 300
"""Characters of a pointer: a schema's member may have a name of a megabyte."""
SHOWN = 60
"""Characters of a refused value that a problem quotes."""


@frozen
class Finding:
    """One fault of a card.

    `pointer` is the JSON pointer (RFC 6901) of the place, "" for the whole; `rule` the part of the draft that it breaks
    ("§5 rule 7", "§2.8"); `problem` the fault, `cure` the value to put there, each a sentence without its full stop.
    """

    pointer: str
    rule: str
    problem: str
    cure: str

    def __str__(self) -> str:
        # One printable line: a member of an untrusted card may have any name.
        line = f"{self.pointer or 'the card'}: {self.problem} ({self.rule}); {self.cure}"
        if line.isprintable():
            return line
        return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)

    def to_json(self) -> dict[str, str]:
        """The four fields by name, for `--json` and for MCP."""
        return {"pointer": self.pointer, "rule": self.rule, "problem": self.problem, "cure": self.cure}


class Enough(Exception):
    """The list of findings is full."""


class FindingList:
    """At most MAX_FINDINGS findings, with the sentences for values of a wrong type."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings

    def add(self, pointer: str, rule: str, problem: str, cure: str) -> None:
        """Add a finding. Raises Enough when there are MAX_FINDINGS."""
        if len(self._findings) >= MAX_FINDINGS:
            raise Enough
        if len(pointer) > LONGEST_POINTER:
            pointer = f"{pointer[:LONGEST_POINTER]}…"
        # Names of an untrusted card may be no Unicode text (lone surrogates), and the finding must be printable
        # everywhere.
        self._findings.append(Finding(_text(pointer), rule, _text(problem), cure))

    def fields(self, holder: Mapping[str, Any], where: str, rule: str, fields: Sequence[Field]) -> None:
        """Check each field that is present, and report each required one that is absent."""
        for name, check, cure in fields:
            if name in holder:
                check(holder[name], f"{where}/{name}", self)
            elif cure is not None:
                self.add(f"{where}/{name}", rule, "is missing", cure)

    def text(self, value: object, where: str, rule: str, cure: str) -> str | None:
        """Return the value, if it is a string."""
        if isinstance(value, str):
            return value
        self.add(where, rule, f"is {kind(value)}, not a string", cure)
        return None

    def table(self, value: object, where: str, rule: str, cure: str) -> Mapping[str, Any] | None:
        """Return the value, if it is an object."""
        if isinstance(value, Mapping):
            return value
        self.add(where, rule, f"is {kind(value)}, not an object", cure)
        return None

    def entries(self, value: object, where: str, rule: str, cure: str) -> Sequence[Any] | None:
        """Return the value, if it is an array."""
        if isinstance(value, (list, tuple)):
            return value
        self.add(where, rule, f"is {kind(value)}, not an array", cure)
        return None

    def number(self, value: object, where: str, rule: str, cure: str) -> int | float | None:
        """Return the value, if it is a finite number; a boolean is none."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.add(where, rule, f"is {kind(value)}, not a number", cure)
        elif not isinstance(value, int) and not math.isfinite(value):
            self.add(where, rule, f"{value} is no number that JSON can hold", cure)
        else:
            return value
        return None

    def word(self, value: object, where: str, rule: str, words: Sequence[str]) -> str | None:
        """Return the value, if it is one of a few words."""
        cure = f"use {', '.join(words[:-1])} or {words[-1]}"
        if not isinstance(value, str):
            self.add(where, rule, f"is {kind(value)}, not a string", cure)
        elif value not in words:
            self.add(where, rule, f"{shown(value)} is not among the values that there are", cure)
        else:
            return value
        return None


Check: TypeAlias = Callable[[Any, str, FindingList], object]
Field: TypeAlias = tuple[str, Check, str | None]
"""A field's name, its check, and, if it is required, the cure when it is absent."""


def kind(value: object) -> str:
    """Return a JSON value's type, for a problem: "a string", "null"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    for types, words in _KINDS:
        if isinstance(value, types):
            return words
    return "no JSON value"


_KINDS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((str,), "a string"),
    ((int, float), "a number"),
    ((Mapping,), "an object"),
    ((list, tuple), "an array"),
)


def shown(value: object) -> str:
    """Return a value as a problem quotes it: one line of JSON, short, escaped. Objects and arrays are only named."""
    if isinstance(value, str):
        text = json.dumps(value[:SHOWN])
        if len(text) > SHOWN:  # an escape has up to six characters, and none is cut through
            text = json.dumps(value[: SHOWN // 6])
        return text if json.loads(text) == value else f'{text[:-1]}…"'
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else kind(value)


_SHOWN_BITS = 192


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class NoCardText(Exception):
    """A text that is no JSON document; the message is a problem, `cure` its cure. Never leaves this package."""

    def __init__(self, problem: str, cure: str = "give one JSON object, encoded in UTF-8") -> None:
        super().__init__(problem)
        self.cure = cure


def read_object(document: object) -> tuple[Mapping[str, Any] | None, list[Finding]]:
    """Return the object that a document is or contains, and the findings.

    Takes an object as it is, text or UTF-8 bytes with the JSON of an object, and either of these embedded in a JSON
    string, as MCP tools pass cards on (§3). A name that occurs twice counts with its last value, as in every common
    reader. No input raises.
    """
    try:
        value = document
        # Bytes of a file may hold a JSON string that holds the card: two readings, and never a third.
        for _ in range(2):
            if not isinstance(value, (str, bytes, bytearray, memoryview)):
                break
            value = _parse(value)
    except NoCardText as error:
        return None, [Finding("", "§3", str(error), error.cure)]
    if not isinstance(value, Mapping):
        return None, [
            Finding("", "§3", f"is {kind(value)}, not an object", "give one JSON object with the card's fields")
        ]
    return value, []


def _parse(document: str | bytes | bytearray | memoryview) -> Any:
    try:
        text = document if isinstance(document, str) else bytes(document).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NoCardText(f"is not UTF-8 at byte {error.start}", "encode the card in UTF-8") from None
    if text.startswith("\ufeff"):
        raise NoCardText("begins with a byte order mark", "save it as UTF-8 without one (RFC 8259 §8.1)")
    try:
        return json.loads(text, parse_int=_integer, parse_float=_double, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NoCardText(f"is not JSON: {error.msg} at {where}", "correct the JSON there") from None
    except RecursionError:
        raise NoCardText(
            "is nested too deeply to be read", "nest it less deeply: a card needs some ten levels"
        ) from None


def _integer(digits: str) -> int | float:
    # Python reads at most 4300 digits as an integer; other readers take a JSON number as a double (RFC 8259 §6).
    return int(digits) if len(digits) <= _MOST_DIGITS else _double(digits)


def _double(text: str) -> float:
    """Return the double for a number; for one that no double reaches the largest, or the least that is not 0."""
    value = max(-sys.float_info.max, min(float(text), sys.float_info.max))
    if value == 0 and re.match("-?[0.]*[1-9]", text):
        value = math.copysign(math.ulp(0.0), value)
    return value


_MOST_DIGITS = 400


def _no_constant(word: str) -> NoReturn:
    raise NoCardText(f"is not JSON: it has {word}, which is no JSON number", "leave the field out, or give a number")


_PCT = r"%[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9\-._~"
_SUB_DELIMS = r"!$&'()*+,;="
_PCHAR = rf"(?:[{_UNRESERVED}{_SUB_DELIMS}:@]|{_PCT})"
_REG_NAME = rf"(?:[{_UNRESERVED}{_SUB_DELIMS}]|{_PCT})*"
_USERINFO = rf"(?:[{_UNRESERVED}{_SUB_DELIMS}:]|{_PCT})*"

_URI = re.compile(
    rf"""
    (?P<scheme> [A-Za-z][A-Za-z0-9+\-.]* ) :
    (?: // (?: {_USERINFO} @ )?
           (?P<host> \[ (?: (?P<ipv6> [0-9A-Fa-f:.]+ ) | [vV][0-9A-Fa-f]+\.[{_UNRESERVED}{_SUB_DELIMS}:]+ ) \]
                   | {_REG_NAME} )
           (?: : (?P<port> [0-9]* ) )?
           (?: / {_PCHAR}* )*
      | / (?: {_PCHAR}+ (?: / {_PCHAR}* )* )?
      | (?: {_PCHAR}+ (?: / {_PCHAR}* )* )?
    )
    (?: \? (?: {_PCHAR} | [/?] )* )?
    (?: \# (?: {_PCHAR} | [/?] )* )?
    """,
    re.VERBOSE,
)


@frozen
class Uri:
    """The parts of a URI that identify its target. `host` is None without an authority, "" where that names none."""

    scheme: str
    """In lower case: schemes are compared without it (§3.1)."""
    host: str | None
    port: str | None


def parse_uri(text: str) -> Uri | None:
    """Return the URI that `text` is, or None: a relative reference is none either."""
    match = _URI.fullmatch(text)
    if match is None:
        return None
    if match["ipv6"] is not None:
        try:
            ipaddress.IPv6Address(match["ipv6"])
        except ValueError:
            return None
    return Uri(match["scheme"].lower(), match["host"], match["port"])
