"""What is said about a faulty card: the findings, and the sentences for values that are not of their type.

This module owns the words and how many findings there may be; it refuses to know the fields of a card.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import frozen

MAX_FINDINGS = 100
"""A card with more faults than this is told so, and no more of them: nobody corrects a million by hand."""
LONGEST_POINTER = 300
"""Characters of a pointer: a schema's member may have a name of a megabyte."""
SHOWN = 60
"""Characters of a refused value that a problem quotes."""


@frozen
class Finding:
    """One thing that is wrong with a card.

    `pointer` is the JSON pointer (RFC 6901) of the place, "" for the whole; `rule` the part of the draft that it breaks
    ("§5 rule 7", "§2.8"); `problem` what is there, `cure` what to put there, each a sentence without its full stop.
    """

    pointer: str
    rule: str
    problem: str
    cure: str

    def __str__(self) -> str:
        # One line on anybody's terminal: a member may be called what it likes.
        told = f"{self.pointer or 'the card'}: {self.problem} ({self.rule}); {self.cure}"
        if told.isprintable():
            return told
        return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in told)

    def to_json(self) -> dict[str, str]:
        """The four fields by name, for `--json` and for MCP."""
        return {"pointer": self.pointer, "rule": self.rule, "problem": self.problem, "cure": self.cure}


class Enough(Exception):
    """There are as many findings as anybody wants."""


class Book:
    """Takes findings down, at most MAX_FINDINGS, and knows the sentences for a value of the wrong type."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings

    def add(self, pointer: str, rule: str, problem: str, cure: str) -> None:
        """Take one finding down. Raises Enough when there are MAX_FINDINGS."""
        if len(self._findings) >= MAX_FINDINGS:
            raise Enough
        if len(pointer) > LONGEST_POINTER:
            pointer = f"{pointer[:LONGEST_POINTER]}…"
        # A stranger's names may be no Unicode text (lone surrogates), and what is said of them must go anywhere.
        self._findings.append(Finding(_text(pointer), rule, _text(problem), cure))

    def fields(self, holder: Mapping[str, Any], where: str, rule: str, fields: Sequence[Field]) -> None:
        """Check each field that is there, and miss each that must be."""
        for name, check, cure in fields:
            if name in holder:
                check(holder[name], f"{where}/{name}", self)
            elif cure is not None:
                self.add(f"{where}/{name}", rule, "is missing", cure)

    def text(self, value: object, where: str, rule: str, cure: str) -> str | None:
        """The value, if it is a string."""
        if isinstance(value, str):
            return value
        self.add(where, rule, f"is {kind(value)}, not a string", cure)
        return None

    def table(self, value: object, where: str, rule: str, cure: str) -> Mapping[str, Any] | None:
        """The value, if it is an object."""
        if isinstance(value, Mapping):
            return value
        self.add(where, rule, f"is {kind(value)}, not an object", cure)
        return None

    def entries(self, value: object, where: str, rule: str, cure: str) -> Sequence[Any] | None:
        """The value, if it is an array."""
        if isinstance(value, (list, tuple)):
            return value
        self.add(where, rule, f"is {kind(value)}, not an array", cure)
        return None

    def number(self, value: object, where: str, rule: str, cure: str) -> int | float | None:
        """The value, if it is a finite number; a truth value is none."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.add(where, rule, f"is {kind(value)}, not a number", cure)
        elif not isinstance(value, int) and not math.isfinite(value):
            self.add(where, rule, f"{value} is no number that JSON can hold", cure)
        else:
            return value
        return None

    def word(self, value: object, where: str, rule: str, words: Sequence[str]) -> str | None:
        """The value, if it is one of a few words."""
        cure = f"use {', '.join(words[:-1])} or {words[-1]}"
        if not isinstance(value, str):
            self.add(where, rule, f"is {kind(value)}, not a string", cure)
        elif value not in words:
            self.add(where, rule, f"{shown(value)} is not among the values that there are", cure)
        else:
            return value
        return None


Check: TypeAlias = Callable[[Any, str, Book], object]
Field: TypeAlias = tuple[str, Check, str | None]
"""A field's name, what is asked of it, and, if it must be there, what to do when it is not."""


def kind(value: object) -> str:
    """What a JSON value is, for a problem: "a string", "null"."""
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
    """A value as a problem quotes it: one line of JSON, short, escaped. Objects and arrays are only named."""
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


def escaped(member: str) -> str:
    """A member's name as a part of a JSON pointer (RFC 6901)."""
    return member.replace("~", "~0").replace("/", "~1")
