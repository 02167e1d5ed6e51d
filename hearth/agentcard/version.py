"""The version of a card, which follows from what has changed since the last one (draft §2.3). Pure.

MAJOR when a capability is gone or takes or gives something else than before (another schema), or the endpoint has moved
or wants other credentials; MINOR when there is a new capability; PATCH for anything else. `version` itself is not
compared.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST = "1.0.0"

_PLAIN = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_CONTRACT = ("input_schema", "output_schema")


def next_version(former: Mapping[str, Any] | None, card: Mapping[str, Any]) -> str:
    """The version for `card`, which follows `former`; FIRST where there was none, the former's if nothing changed.

    Raises ValueError if the former has a version that is not of this module's making, or is no card.
    """
    if former is None:
        return FIRST
    match = _PLAIN.fullmatch(str(former.get("version")))
    if match is None:
        raise ValueError(f"no version of three numbers: {former.get('version')!r}")
    major, minor, patch = map(int, match.groups())
    then, now = _contracts(former), _contracts(card)
    if former.get("endpoint") != card.get("endpoint") or any(now.get(name) != then[name] for name in then):
        return f"{major + 1}.0.0"
    if now.keys() - then.keys():
        return f"{major}.{minor + 1}.0"
    if _unversioned(former) != _unversioned(card):
        return f"{major}.{minor}.{patch + 1}"
    return f"{major}.{minor}.{patch}"


def _contracts(card: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What each capability takes and gives, by id."""
    try:
        return {each["id"]: [each.get(name) for name in _CONTRACT] for each in card["capabilities"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no capabilities: {error!r}") from None


def _unversioned(card: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in card.items() if name != "version"}
