"""Text and Markdown as roff for man(7): owns the escaping and the few macros that the manual pages need.

It knows paragraphs, lists, code, headings and tables of Markdown, and refuses the rest (NotImplementedError): a page
must not lose what its source says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

_BLANKS = re.compile(r"\s+")
_SPECIAL = str.maketrans({"\\": "\\e", "-": "\\-", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"})


def escaped(text: str) -> str:
    """Text that roff prints as it is, on one line."""
    return _safe(_BLANKS.sub(" ", text).strip().translate(_SPECIAL))


def _safe(line: str) -> str:
    """A line that roff does not take for a request."""
    return f"\\&{line}" if line.startswith((".", "'")) else line


def literal(text: str) -> Iterator[str]:
    """Lines that keep their breaks and blanks."""
    yield ".PP"
    yield ".RS 4"
    yield ".nf"
    for line in text.rstrip("\n").split("\n"):
        yield _safe(line.translate(_SPECIAL)) or "\\&"
    yield ".fi"
    yield ".RE"


def quoted(text: str) -> str:
    """A macro's argument that is already roff."""
    return '"' + text.replace('"', "\\(dq") + '"'


def markdown(text: str) -> Iterator[str]:
    """A page of Markdown without its title. Tables become lists: the first column is what each entry is about."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token.type == "heading_open":
            if token.tag != "h1":
                yield f"{'.SH' if token.tag == 'h2' else '.SS'} {quoted(inline(tokens[position + 1]))}"
            position += 3
        elif token.type == "paragraph_open":
            yield ".PP"
            yield inline(tokens[position + 1])
            position += 3
        elif token.type in ("fence", "code_block"):
            yield from literal(token.content)
            position += 1
        elif token.type == "bullet_list_open":
            position = yield from _items(tokens, position + 1)
        elif token.type == "table_open":
            position = yield from _table(tokens, position + 1)
        else:
            raise NotImplementedError(f"{token.type}: this Markdown has no roff yet")


def _items(tokens: Sequence[Token], position: int) -> Iterator[str]:
    while tokens[position].type != "bullet_list_close":
        token = tokens[position]
        if token.type == "list_item_open":
            yield ".IP \\(bu 2"
        elif token.type == "inline":
            yield inline(token)
        elif token.type not in ("paragraph_open", "paragraph_close", "list_item_close"):
            raise NotImplementedError(f"{token.type}: only paragraphs stand in lists")
        position += 1
    return position + 1


def _table(tokens: Sequence[Token], position: int) -> Iterator[str]:
    heads: list[str] = []
    row: list[str] = []
    while tokens[position].type != "table_close":
        token = tokens[position]
        if token.type == "inline":
            (row if tokens[position - 1].type == "td_open" else heads).append(inline(token))
        elif token.type == "tr_close" and row:
            yield ".TP"
            yield row[0] or "\\&"
            told = [f"{head}: {cell}." for head, cell in zip(heads[1:-1], row[1:-1], strict=True) if cell]
            yield " ".join((*told, row[-1]))
            row = []
        position += 1
    return position + 1


def inline(token: Token) -> str:
    """The text of a paragraph, a heading or a cell: code in bold, emphasis in italics, links by their text."""
    parts = []
    for child in token.children or ():
        if child.type in ("text", "text_special"):
            parts.append(_BLANKS.sub(" ", _kept(child.content)))
        elif child.type == "code_inline":
            parts.append(f"\\fB{_kept(child.content)}\\fR")
        elif child.type in ("em_open", "strong_open"):
            parts.append("\\fI" if child.type == "em_open" else "\\fB")
        elif child.type in ("em_close", "strong_close"):
            parts.append("\\fR")
        elif child.type in ("softbreak", "hardbreak"):
            parts.append(" ")
        elif child.type not in ("link_open", "link_close"):
            raise NotImplementedError(f"{child.type}: this Markdown has no roff yet")
    return _safe("".join(parts).strip())


def _kept(text: str) -> str:
    return text.translate(_SPECIAL)
