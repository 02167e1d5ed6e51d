"""Text for people: escapes for what a terminal or a page would act upon or hide, and the nearest known names.

A caller chooses the unknown name and the event loop compares it, so the work is bounded: a long name has no near ones,
and of many known names only those with nearly the same letters are compared. That takes less than 1 ms for the names of
a board, and about 10 ms at the worst: a thousand names of the greatest length with one set of letters.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Final
from unicodedata import category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BLANK_LETTERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Characters that are letters or symbols, and look like a space or like nothing."""


def escape(text: str, keeps: Callable[[str], bool]) -> str:
    """Return `text` with an escape for each character but those of printable ASCII, and those that `keeps` permits."""
    return text if text.isascii() and text.isprintable() else text.translate(_Escapes(keeps))


class _Escapes(dict[int, str]):
    """The table of one translation, made as the characters come: a text has few different ones."""

    def __init__(self, keeps: Callable[[str], bool]) -> None:
        self._keeps = keeps

    def __missing__(self, code: int) -> str:
        one = chr(code)
        shown = " " <= one <= "~" or self._keeps(one)
        self[code] = one = one if shown else one.encode("unicode_escape").decode("ascii")
        return one


def clean(text: str) -> str:
    """Return `text` with an escape for what a terminal acts upon or does not show, but for tabs and line ends.

    Such are controls (C0 and C1), format characters (Cf: zero-width ones, those of bidirectional text, tags), the
    separators of lines and paragraphs, lone surrogates, and characters that Unicode does not assign.
    """
    return escape(text, _is_shown)


def _is_shown(one: str) -> bool:
    kind = category(one)
    return one in "\n\t" or ((kind[0] != "C" and kind not in ("Zl", "Zp")) and one not in BLANK_LETTERS)


LONGEST_COMPARED = 48
"""Characters of a name up to which it is compared."""
MOST_COMPARED = 16
"""Known names that one name is compared with."""


def nearest(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to `most` known names that are as close to `name` as `cutoff` (0 to 1) asks, the nearest first.

    Upper and lower case are the same.
    """
    if len(name) > LONGEST_COMPARED:
        return []
    from difflib import get_close_matches  # 5 ms, and only when something is misspelt

    name = name.lower()
    letters = set(name)
    folded = {one.lower(): one for one in known if len(one) <= LONGEST_COMPARED}
    alike = nsmallest(
        MOST_COMPARED, folded, key=lambda one: (len(letters.symmetric_difference(one)), abs(len(one) - len(name)))
    )
    return [folded[one] for one in get_close_matches(name, alike, most, cutoff)]


def suggest(name: str, known: Iterable[str], *, most: int = 1, show: Callable[[str], str] = str) -> str:
    """Return "did you mean NAME?", with up to `most` near names, each as `show` writes it; "" where none is near."""
    near = nearest(name, known, most)
    return f"did you mean {', '.join(map(show, near))}?" if near else ""


def suggestions(name: object, known: Iterable[str]) -> tuple[str, dict[str, list[str]]]:
    """Return the nearest names for an error: the end of its message, and `suggestions` for its data; both may be empty.

    A name that is not a string has no near ones.
    """
    near = nearest(name, known, 3) if isinstance(name, str) else []
    return (f"; did you mean {', '.join(near)}?", {"suggestions": near}) if near else ("", {})
