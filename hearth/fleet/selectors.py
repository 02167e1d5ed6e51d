"""Devices by their announcements, and the selectors that pick some of them. Pure.

A selector is a device's id, or LABEL=PATTERN ("site=lab3", "board=rpi*"). Selectors of different labels must all hold;
of several with the same label, one must; ids are added. They are resolved by the caller: an order goes to ids only.
"""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from hearth._util.text import suggest
from hearth.errors import HearthError
from hearth.hcp.l1 import is_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


class SelectorError(HearthError):
    """A selector that cannot be read, or that no device fits."""


@frozen
class FleetDevice:
    """A device as it announced itself last."""

    device: str
    labels: Mapping[str, str] = field(factory=dict)
    announced_at: str = ""
    """By the device's own clock."""
    halted: bool = False
    agent_card: Mapping[str, Any] = field(factory=dict)
    halted_by: tuple[str, ...] = ()
    """The kinds of holds of its halt: "fleet", "input", "interlock", "person"."""
    reset_refused: str | None = None
    """Why it has refused the fleet's last reset."""

    @classmethod
    def read(cls, document: Mapping[str, Any], user: str | None) -> FleetDevice | None:
        """Return the device of an announcement; None for one that is not its own, or is none."""
        payload: Any = document.get("payload")
        if not isinstance(payload, dict) or payload.get("id") != user or not isinstance(user, str) or not is_id(user):
            return None
        labels, card = payload.get("labels"), payload.get("agent_card")
        if not isinstance(labels, dict) or not isinstance(card, dict):
            return None
        texts = {str(name): value for name, value in labels.items() if isinstance(value, str)}
        by, refused = payload.get("halted_by"), payload.get("reset_refused")
        sources = tuple(map(str, by)) if isinstance(by, list) else ()
        halted, announced_at = payload.get("halted") is True, str(document.get("timestamp", ""))
        return cls(user, texts, announced_at, halted, card, sources, None if refused is None else str(refused))

    def fits(self, labels: Mapping[str, Iterable[str]]) -> bool:
        """Return True if each of these labels of the device matches one of its patterns."""
        return all(
            any(fnmatchcase(self.labels.get(label, ""), pattern) for pattern in patterns)
            for label, patterns in labels.items()
        )


def select(devices: Iterable[FleetDevice], selectors: Sequence[str]) -> list[FleetDevice]:
    """Return the devices that the selectors pick, by id. Raises SelectorError.

    An id is picked also if no such device has been announced: it may come later.
    """
    known = {one.device: one for one in devices}
    labels: defaultdict[str, list[str]] = defaultdict(list)
    picked: dict[str, FleetDevice] = {}
    for selector in selectors:
        label, equals, pattern = selector.partition("=")
        if equals and label and pattern:
            labels[label].append(pattern)
        elif is_id(selector):
            picked[selector] = known.get(selector, FleetDevice(selector))
        else:
            raise SelectorError(f"{selector[:80]!r}: expected a device's id, or LABEL=PATTERN such as site=lab3")
    if labels:
        _check_labels(labels, known.values())
        found = {name: one for name, one in known.items() if one.fits(labels)}
        if not found:
            raise SelectorError(f"no device fits {' '.join(selectors)}; `hearth fleet list` shows those there are")
        picked |= found
    return [picked[name] for name in sorted(picked)]


def _check_labels(wanted: Iterable[str], devices: Collection[FleetDevice]) -> None:
    names = {name for one in devices for name in one.labels}
    for label in wanted:
        if devices and label not in names:
            near = suggest(label, names) or f"the labels are {', '.join(sorted(names))}"
            raise SelectorError(f"no device has a label {label!r}; {near}")
