"""Values as a person reads them: aligned columns, lines of name and value, bytes; and as a program does: JSON.

Pure but for the width of the terminal. It owns one rule: what comes from elsewhere is shown, never obeyed, so that no
tool's answer and no file's content can move the cursor or retitle the window.
"""

from __future__ import annotations

import base64
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import click
import orjson

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
TOO_DEEP = "nested too deeply to be shown"
_SHOWN_BYTES = 64
_REGISTER = 2
"""Bytes that are more likely a number than letters."""
STATUS_COLOURS = {"SUCCESS": "green", "FAILED": "red", "CANCELLED": "yellow", "RUNNING": "cyan", "CANCELLING": "yellow"}


def clean(text: str) -> str:
    """`text` without anything that a terminal would obey: control and direction characters show as escapes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def compact(value: Any) -> str:
    """One line of JSON. Of an object, members that orjson reads but does not write are only said to be there."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        members = value if isinstance(value, dict) else {}
        return orjson.dumps({name: _writable(member) for name, member in members.items()} or TOO_DEEP).decode()


def _writable(value: Any) -> Any:
    try:
        return orjson.Fragment(orjson.dumps(value))
    except TypeError:
        return TOO_DEEP


def pretty(value: Any) -> str:
    """JSON over several lines."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def status(word: str) -> str:
    """A status in its colour."""
    return click.style(clean(word), fg=STATUS_COLOURS.get(word), bold=True)


def width() -> int | None:
    """Columns of the terminal on stdout; None where there is none, and lines are as long as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> list[str]:
    """Aligned columns under bold headers. The last column wraps at the terminal's edge; nothing is cut off."""
    headers = [clean(header) for header in headers]
    cells = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max([len(header), *(len(row[i]) for row in cells)]) for i, header in enumerate(headers)]
    before = len(indent) + sum(size + 2 for size in widths[:-1])
    columns = width()
    room = None if columns is None else max(columns - before, 24)
    padded = [header.ljust(size) for header, size in zip(headers[:-1], widths[:-1], strict=True)]
    lines = [indent + "  ".join(click.style(header, bold=True) for header in [*padded, headers[-1]])]
    for row in cells:
        start = indent + "".join(cell.ljust(size) + "  " for cell, size in zip(row[:-1], widths[:-1], strict=True))
        last = [row[-1]] if room is None else textwrap.wrap(row[-1], room) or [""]
        lines.append(_coloured(start + last[0]).rstrip())
        lines += [" " * before + more for more in last[1:]]
    return lines


def _coloured(line: str) -> str:
    return re.sub(r"\b(SUCCESS|FAILED|CANCELLED|RUNNING)\b", lambda match: status(match[0]), line, count=1)


def fields(values: Mapping[str, Any], *, binary: frozenset[str] = frozenset(), indent: str = "") -> list[str]:
    """Names and values, one a line; what is nested below its name, lists of objects (or objects of objects) as tables.

    `binary` names the members that are base64: they are shown as the bytes they stand for.
    """
    lines: list[str] = []
    longest = max((len(clean(name)) for name, value in values.items() if _rows(value) is None), default=0)
    for name, value in values.items():
        label = indent + click.style(clean(name), bold=True)
        rows = _rows(value)
        if rows:
            columns = list(dict.fromkeys(key for row in rows for key in row))
            cells = [[scalar(row.get(key)) for key in columns] for row in rows]
            lines += [label, *table(columns, cells, indent=indent + "  ")]
        elif rows is not None:
            lines += [label, *fields(value, indent=indent + "  ")]
        else:
            first, *more = shown_bytes(value) if name in binary and isinstance(value, str) else [clean(scalar(value))]
            lines.append(f"{label}{' ' * (longest - len(clean(name)))}  {first}")
            lines += [f"{indent}  {line}" for line in more]
    return lines


def _rows(value: Any) -> list[Mapping[str, Any]] | None:
    """A value as the rows of a table; [] for an object that is none, to be shown as fields; None for one line."""
    if isinstance(value, list):
        return value if any(value) and all(isinstance(item, Mapping) for item in value) else None
    if not isinstance(value, Mapping) or not value:
        return None
    if len(value) > 1 and all(isinstance(item, Mapping) and item for item in value.values()):
        return [{"name": name, **item} for name, item in value.items()]
    return []


def scalar(value: Any) -> str:
    """A value in one line: strings bare, nothing as "-", lists joined by commas, objects as JSON."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and not any(isinstance(item, (list, Mapping)) for item in value):
        return ", ".join(scalar(item) for item in value) or "-"
    return compact(value)


def shown_bytes(data: str) -> list[str]:
    """The bytes that base64 stands for: text as text, anything else in hex; the first line says how many there are."""
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError:  # binascii.Error is one
        return [clean(data)]
    count = f"{len(content)} byte{'' if len(content) == 1 else 's'}"
    text = _as_text(content)
    if text is not None:
        return [count, *(clean(line) for line in text.splitlines())]
    if len(content) <= _SHOWN_BYTES // 4:
        return [f"{content.hex(' ')}  ({count})" if content else count]
    shown = content[:_SHOWN_BYTES]
    rest = len(content) - len(shown)
    lines = [shown[at : at + 16].hex(" ") for at in range(0, len(shown), 16)]
    return [count, *lines, *([f"… and {rest} more; --json has them all"] if rest else [])]


def _as_text(content: bytes) -> str | None:
    """`content` if it reads as text, else None: a register's two bytes are seldom meant as letters."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) > _REGISTER and all(c.isprintable() or c in "\n\t\r" for c in text) else None
