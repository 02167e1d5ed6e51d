"""The refusal of a file that a newer release wrote.

Each file that outlives a run names its format once, as a number: in the first record of a log file, in a header, or in
SQLite's `user_version`. A file without one has format 1. A release reads its own format and all older ones, and refuses
a newer one before it changes anything, because it would lose what it does not know.
"""

from __future__ import annotations

from hearth.errors import ConfigError


def check_format(file: str, found: object, known: int, cure: str) -> None:
    """Raise ConfigError if `found`, the format that `file` names, is newer than `known`; `cure` is another way out."""
    if type(found) is int and found > known:
        raise ConfigError(
            f"{file}: a newer hearth wrote it, in format {found}, and this one reads formats up to {known}; "
            f"run that release, or {cure}"
        )
