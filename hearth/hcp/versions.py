"""Versions of capabilities: semver ranges by npm's rules (L4; https://github.com/npm/node-semver).

It also has the messages for a range that cannot be read and for a version outside a range.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeAlias

from semantic_version import Version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


LONGEST_RANGE: Final = 200
"""Characters of a range; real ranges are far shorter."""
GRAMMAR: Final = (
    'Write a range as npm does: "1.x", "^1.2", "~1.2.3", ">=1.0.0 <2.0.0" (a space between two bounds), '
    '"1.x || 3.x", or leave capability_version out for any version'
)
"""The cure for a range that cannot be read."""


def read_version(text: str) -> str:
    """Return a semver version, unchanged. Raises ValueError that says what was expected."""
    try:
        Version(text)
    except ValueError:
        raise ValueError(f'expected a semver version such as "1.0.0", got {text[:60]!r}') from None
    return text


def satisfies(version: str, accepted: str) -> bool:
    """Return True if `version` lies within the range `accepted`. Raises ValueError for a range that cannot be read.

    A pre-release is in a range only where the range names a pre-release of the same version, as in npm.
    """
    if len(accepted) > LONGEST_RANGE:
        raise ValueError(f"a range of {len(accepted)} characters; at most {LONGEST_RANGE} are read")
    here = Version(version).truncate("prerelease")
    try:
        sets = [_comparators(one.strip()) for one in accepted.split("||")]
    except ValueError:
        raise ValueError(f"{accepted[:60]!r} is not a range of semver versions") from None
    return any(_within(here, one) for one in sets)


_ID = "[0-9A-Za-z-]+"
_PART = r"(0|[1-9][0-9]*|[xX*])"
_PARTIAL = rf"[v=\s]*{_PART}(?:\.{_PART}(?:\.{_PART}(?:-({_ID}(?:\.{_ID})*))?(?:\+{_ID}(?:\.{_ID})*)?)?)?"
_COMPARATOR = re.compile(rf"(\^|~>?|[<>]=?|=|)\s*{_PARTIAL}(?:\s+|\Z)")
_HYPHEN = re.compile(r"(\S.*?)\s+-\s+(\S.*)", re.DOTALL)
Comparator: TypeAlias = "tuple[str, Version]"
"""One of "<", "<=", ">", ">=" and "=", and a version."""


def _comparators(text: str) -> list[Comparator]:
    """Return what a version must fulfil, all of it, to be in a set of a range. Raises ValueError."""
    if hyphen := _HYPHEN.fullmatch(text):
        text = f">={hyphen[1]} <={hyphen[2]}"
    found: list[Comparator] = []
    at = 0
    while at < len(text):
        one = _COMPARATOR.match(text, at)
        if one is None:
            raise ValueError(text)
        found += _bounds(one[1], *one.groups()[1:])
        at = one.end()
    return found


def _bounds(op: str, *parts: str | None) -> Iterator[Comparator]:
    """Yield the comparators of an operator with a version, of which "x", "*" or nothing leaves parts open."""
    known = [int(part) for part in takewhile(str.isdigit, (part or "x" for part in parts[:3]))]
    pre = parts[3].split(".") if parts[3] and len(known) == 3 else ()
    major, minor, patch = [*known, 0, 0, 0][:3]
    low = Version(major=major, minor=minor, patch=patch, prerelease=pre)
    if not known:
        if op in ("<", ">"):
            yield "<", _before(0, 0, 0)
        return
    # The number that grows at the end of what the known parts, "~" or "^" stand for.
    first = next((at for at, number in enumerate(known) if number), len(known) - 1)
    grows = {"^": first, "~": min(len(known), 2) - 1, "~>": min(len(known), 2) - 1}.get(op, len(known) - 1)
    high = [*known[:grows], known[grows] + 1, 0, 0][:3]
    whole = len(known) == 3 and op not in ("^", "~", "~>")
    if whole:
        yield op or "=", low
    else:
        beyond = Version(major=high[0], minor=high[1], patch=high[2])
        part: dict[str, list[Comparator]] = {
            ">": [(">=", beyond)],
            ">=": [(">=", low)],
            "<": [("<", _before(major, minor, patch))],
            "<=": [("<", _before(*high))],
        }
        yield from part.get(op, [(">=", low), ("<", _before(*high))])


def _before(major: int, minor: int, patch: int) -> Version:
    """Return the lowest pre-release of a version."""
    return Version(major=major, minor=minor, patch=patch, prerelease=("0",))


def _within(here: Version, comparators: Sequence[Comparator]) -> bool:
    key = here.precedence_key
    for op, there in comparators:
        other = there.precedence_key
        if not ((key == other and "=" in op) or (key < other and "<" in op) or (key > other and ">" in op)):
            return False
    release = here.truncate()
    return not here.prerelease or any(each.prerelease and each.truncate() == release for _, each in comparators)


def how_to_accept(version: str) -> str:
    """Return a sentence for a caller whose range excludes `version`, the only one."""
    there = Version(version)
    if there.prerelease:
        return f'The version here is {version}, a pre-release: name it exactly, capability_version "{version}"'
    fitting = f"{there.major}.x" if there.major else f"~{there.major}.{there.minor}.{there.patch}"
    return f'The version here is {version}: "{fitting}" accepts it, and so does leaving capability_version out'
