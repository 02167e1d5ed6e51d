"""What a person is shown before deciding: a plan, or another question, as lines of text.

One renderer for the terminal, the dashboard, MCP and `hearth ask`: the daemon makes the lines, the clients print them.
It is pure, and holds these promises, whatever a program has put into a plan:

- Nothing is left out: every argument, condition and constraint is there, and two different documents never look alike.
- A string is quoted. Outside of prose it has ASCII and the letters, digits and symbols of left-to-right scripts; all
  else is an escape: controls, format and zero-width characters, marks, quotation marks, letters that are written from
  right to left, and a space after a space. So no value looks like two, and none moves or hides its neighbours.
- Prose (an intent, a person's question) is quoted too, on a line of its own, and keeps all letters and punctuation.
- Bytes are shown as hex, with their length, and as text where they are text. Numbers are exact.
- A line that is longer than WIDTH goes on in rows that begin with `|`, and no other row does: a terminal need not wrap.

What is base64 is known from `contentEncoding` in a tool's schemas. Steps are numbered from 0, as in errors.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from unicodedata import bidirectional, category, east_asian_width

from attrs import frozen

from hearth._util.text import BLANK_LETTERS, escape
from hearth.audit.record import canonical
from hearth.tools import RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hearth.tools import Json

WIDTH: Final = 78
"""Columns of a row."""
MOST_HEX: Final = 64
"""Bytes up to which text is shown in hex, too: longer text says enough."""
PROSE: Final = frozenset(("intent", "question", "reason"))
"""The members of a question that are sentences of a program or a person."""
_DEFAULTS: Final = {
    "abort_on_step_failure": True,
    "rollback_on_failure": False,
    "exclusive": False,
    "on_busy": "wait",
    "dry_run": False,
    "priority": "normal",
}
_GOES_ON: Final = "     | "
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

Schema = Mapping[str, Any]
_ANY: Final[Schema] = MappingProxyType({})
_NOTHING: Final = {"for_ms": 0, "members": {}}


@frozen
class StepNotes:
    """What a step's tools say of it: the risk, whether it can be rolled back, and the schemas of what is shown."""

    risk: int
    rollback: bool
    params: Schema
    reads: Schema = _ANY
    """The schema of the result of the tool that shows what the step changes."""
    expect_params: Schema = _ANY
    expect_result: Schema = _ANY


def plan_lines(document: Mapping[str, Any], notes: Sequence[StepNotes]) -> list[str]:
    """Return the lines of a plan's document (`intent`, `constraints`, `steps`), with the notes on its steps.

    A step without the member `before` is shown without what it changes.
    """
    lines = [*_rows(f"intent {prose(document['intent'])}")]
    given = {name: one for name, one in document["constraints"].items() if _DEFAULTS.get(name) != one}
    if given:
        lines += _rows(f"constraints {_members(given)}")
    for index, (step, note) in enumerate(zip(document["steps"], notes, strict=True)):
        lines += _rows(f"{index}. {_call(step, note.params)}", ends="\\n")
        back = "" if not note.risk else "; can be rolled back" if note.rollback else "; cannot be rolled back"
        under = [f"[risk {note.risk}, {RISK_NAMES[note.risk]}{back}]"]
        if "before" in step and (note.risk or step["before"] is not None):
            under.insert(0, _change(step, note.reads))
            if len(one := "  ".join(under)) < WIDTH - 2:
                under = [one]
        for one in under:
            lines += _rows(f"   {one}", ends="\\n")
        if (expect := step.get("expect")) is not None:
            lines += _rows(f"   then {_call(expect, note.expect_params)} must show {_conditions(expect, note)}")
    return lines


def question_lines(about: Mapping[str, Any]) -> list[str]:
    """Return the lines of another question, such as one about a job: each member on a line of its own."""
    lines: list[str] = []
    for name, one in about.items():
        says = name in PROSE and isinstance(one, str)
        lines += _rows(f"{_name(name)} {prose(one) if says else _value(one, _ANY)}")
    return lines


def prose(text: str) -> str:
    """Return a sentence in quotes, for a line on which nothing comes after it."""
    return _quoted(text, _keeps_in_prose)


def _call(step: Mapping[str, Any], schema: Schema) -> str:
    return f"{_name(step['tool'])} {_members(step.get('args') or {}, schema)}".rstrip()


def _change(step: Mapping[str, Any], schema: Schema) -> str:
    """Return what a step changes: each member before and after it, and what it is in between, if that is other."""
    before, after, during = step["before"], step["after"], step.get("during", _NOTHING)
    if before is None:
        return "what it changes cannot be read beforehand"
    between = during["members"]
    parts = []
    for name in sorted({*before, *after, *between}):
        here = _property(schema, name)
        values = [_value(one[name], here) if name in one else "-" for one in (before, after)]
        if name in between:
            values.insert(1, f"{_value(between[name], here)} for {_time(during['for_ms'])}")
        parts.append(f"{_name(name)}: {' -> '.join(values)}")
    same = before == after and not any(before.get(name) != one for name, one in between.items())
    return ", ".join(parts) + (" (it is so already)" if same else "")


def _conditions(expect: Mapping[str, Any], note: StepNotes) -> str:
    given = [name for name in ("equals", "min", "max") if expect.get(name)]
    parts = [f"{name} {_members(expect[name], note.expect_result)}" for name in given]
    return f"{', '.join(parts)} within {_time(expect.get('within_ms'))}"


def _time(milliseconds: Any) -> str:
    if type(milliseconds) is int and milliseconds >= 1000 and milliseconds % 1000 == 0:
        return f"{milliseconds // 1000} s"
    return f"{_value(milliseconds, _ANY)} ms"


def _members(values: Mapping[str, Json], schema: Schema = _ANY) -> str:
    return " ".join(f"{_name(name)}={_value(one, _property(schema, name))}" for name, one in values.items())


def _property(schema: Schema, name: str) -> Schema:
    found = schema.get("properties", {}).get(name)
    return found if isinstance(found, Mapping) else _ANY


def _value(value: Any, schema: Schema) -> str:
    if isinstance(value, str):
        return (_bytes(value) if schema.get("contentEncoding") == "base64" else None) or _quoted(value, _keeps)
    if isinstance(value, Mapping):
        return f"{{{_members(value, schema)}}}"
    if isinstance(value, Sequence):
        items = schema.get("items")
        return f"[{', '.join(_value(one, items if isinstance(items, Mapping) else _ANY) for one in value)}]"
    return str(value) if type(value) is int else canonical(value).decode()


def _bytes(text: str) -> str | None:
    """Return the bytes that base64 stands for; None for what is not base64, or not in its one form."""
    try:
        content = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return None
    if binascii.b2a_base64(content, newline=False).decode("ascii") != text:
        return None
    count = f"{len(content)} byte{'' if len(content) == 1 else 's'}"
    try:
        words = content.decode()
    except UnicodeDecodeError:
        words = ""
    if not words.replace("\n", "").replace("\r", "").replace("\t", "").isprintable():
        words = ""
    forms = [content.hex(" ")] if content and (not words or len(content) <= MOST_HEX) else []
    forms += [_quoted(words, _keeps)] if words else []
    return f"bytes({': '.join([count, ', '.join(forms)])})" if forms else f"bytes({count})"


def _name(name: str) -> str:
    return name if _NAME.fullmatch(name) else _quoted(name, _keeps)


def _quoted(text: str, keeps: Callable[[str], bool]) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("  ", " \\x20")
    return f'"{escape(text, keeps)}"'


def _keeps_in_prose(one: str) -> bool:
    return category(one)[0] in "LNPS" and one not in BLANK_LETTERS


def _keeps(one: str) -> bool:
    """Return True for a letter, digit or symbol that cannot be taken for a quotation mark, or move its neighbours."""
    kind = category(one)
    return (
        ((kind[0] in "LN" and kind != "Lm") or kind in ("Sc", "Sm", "So"))
        and bidirectional(one) not in ("R", "AL", "AN")
        and one not in BLANK_LETTERS
    )


_WHOLE: Final = re.compile(r"(?:[^\\]|\\(?:x..|u.{4}|U.{8}|[^xuU]))*")


def _rows(line: str, ends: str = "") -> Iterator[str]:
    """Yield the rows of a line: each has WIDTH columns at most, and ends after a space, or after the escape `ends`."""
    at, head = 0, ""
    while at < len(line):
        piece = line[at : at + WIDTH - len(head)]
        while (wide := _columns(piece) + len(head) - WIDTH) > 0:
            piece = piece[: -(wide + 1) // 2]
        if ends and ends in piece:
            piece = piece[: piece.index(ends) + len(ends)]
        elif at + len(piece) < len(line):
            # At a space; where there is none, not inside of an escape.
            piece = piece[: piece.rfind(" ") + 1] or _WHOLE.findall(piece)[0]
        yield head + piece
        at, head = at + len(piece), _GOES_ON


def _columns(text: str) -> int:
    return len(text) if text.isascii() else sum(2 if east_asian_width(one) in "WF" else 1 for one in text)
