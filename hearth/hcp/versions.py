"""Whether a capability's version is one of those that a caller takes: semver ranges, in npm's grammar (L4).

The grammar is a library's. This module knows what to say of a range that is none, and of a version that is outside.
"""

from __future__ import annotations

from typing import Final

from semantic_version import NpmSpec, Version

LONGEST_RANGE: Final = 200
"""Characters of a range; the longest that somebody means is far shorter."""
GRAMMAR: Final = (
    'Write a range as npm does: "1.x", "^1.2", "~1.2.3", ">=1.0.0 <2.0.0" (a space between two bounds, none after an '
    'operator), "1.x || 3.x", or leave capability_version out for any version'
)
"""The cure for a range that cannot be read."""


def read_version(text: str) -> str:
    """A semver version, as it was given. Raises ValueError that says what was expected."""
    try:
        Version(text)
    except ValueError:
        raise ValueError(f'expected a semver version such as "1.0.0", got {text[:60]!r}') from None
    return text


def satisfies(version: str, accepted: str) -> bool:
    """Whether `version` lies within the range `accepted`. Raises ValueError for a range that cannot be read.

    A pre-release is in a range only where the range names a pre-release of the same version, as npm has it.
    """
    if len(accepted) > LONGEST_RANGE:
        raise ValueError(f"a range of {len(accepted)} characters; at most {LONGEST_RANGE} are read")
    try:
        spec = NpmSpec(accepted)
    except ValueError:
        raise ValueError(f"{accepted[:60]!r} is not a range of semver versions") from None
    return bool(spec.match(Version(version)))


def how_to_accept(version: str) -> str:
    """A sentence for a caller whose range leaves out `version`, the one there is."""
    there = Version(version)
    if there.prerelease:
        return f'The version here is {version}, a pre-release: name it exactly, capability_version "{version}"'
    fitting = f"{there.major}.x" if there.major else f"~{there.major}.{there.minor}.{there.patch}"
    return f'The version here is {version}: "{fitting}" accepts it, and so does leaving capability_version out'
