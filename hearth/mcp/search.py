"""The search for tools: a name that a model makes up, and the words of a task, lead to the tools that were meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hearth.mcp.arguments import same
from hearth.mcp.families import MEANS
from hearth.mcp.names import LONGEST_SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_CLOSE_ENOUGH: Final = 2.2
"""The least score of a tool that is suggested: one word of its name, or most of its letters."""
_MOST_WORDS: Final = 32


def search(query: str, tools: Iterable[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return up to `most` of the tools (MCP Tool objects) that fit the words of a query, the best first.

    A word counts where it is in a tool's name, more if it begins the name, and a little in its description; letters
    that the whole query and a name have in common count too, for a misspelt name.
    """
    from difflib import SequenceMatcher  # 5 ms, and only when something is searched for

    asked = _words(query)[:_MOST_WORDS]
    means = [(word, *MEANS.get(word, ())) for word in asked]
    alike = SequenceMatcher(b="_".join(asked))
    scored: list[tuple[float, Mapping[str, Any]]] = []
    for tool in tools:
        name, told = _words(tool["name"]), frozenset(_words(str(tool.get("description", ""))))
        alike.set_seq1("_".join(name))
        score = 2.0 * alike.ratio()
        for group in means:
            score += max(_worth(word, name, told) for word in group)
        scored.append((score, tool))
    close = [pair for pair in scored if pair[0] >= _CLOSE_ENOUGH + _worth_of_few(asked)]
    return [tool for _, tool in sorted(close, key=lambda pair: -pair[0])[:most]]


NEAR: Final = 3
"""Tools that are suggested for an unknown name."""


def near_tools(name: str, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the MCP names of the tools that an unknown name may stand for, the nearest first."""
    equal = same(name[:LONGEST_SHOWN], [tool["name"] for tool in tools])
    return [equal] if equal else [tool["name"] for tool in search(name[:LONGEST_SHOWN], tools, NEAR)]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+[0-9]*[a-z]*|[0-9]+", text[:4096].lower())


def _worth(word: str, name: Sequence[str], told: frozenset[str]) -> float:
    if name and word == name[0]:
        return 3.0
    if word in name:
        return 2.0
    long = [part for part in name if len(part) > _SHORT]
    if len(word) > _SHORT and any(part.startswith(word) or word.startswith(part) for part in long):
        return 1.5
    return 0.5 if word in told else 0.0


_SHORT: Final = 2


def _worth_of_few(asked: Sequence[str]) -> float:
    """Return what the threshold is lowered by for a query of one word, whose letters then count alone."""
    return -0.8 if len(asked) < _SHORT else 0.0
