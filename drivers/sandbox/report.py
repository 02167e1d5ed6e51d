"""What of a plan is in force, part by part, and why what is not is not: for the log, the audit log, health and doctor.

Owns the shape and the words; puts nothing in force.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Name: TypeAlias = Literal["user", "capabilities", "no_new_privs", "files", "devices", "network", "scopes", "syscalls"]


class Part(NamedTuple):
    """A part of the confinement: `detail` is what it amounts to, or why there is none, with the cure."""

    name: Name
    in_force: bool
    detail: str


def by_cause(parts: Iterable[Part]) -> dict[str, list[Name]]:
    """The parts that are not in force, by the reason: what one cause keeps from being in force is told once."""
    causes: dict[str, list[Name]] = {}
    for part in parts:
        if not part.in_force:
            causes.setdefault(part.detail, []).append(part.name)
    return causes


@frozen(kw_only=True)
class Report:
    """All parts, of a daemon that is confined; or why it is not, in `off`."""

    parts: tuple[Part, ...] = ()
    off: str | None = None
    user: str | None = None
    added: tuple[str, ...] = ()
    hotplug: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> Literal["in force", "in part", "off"]:
        """In a word or two."""
        if self.off is not None:
            return "off"
        return "in force" if all(part.in_force for part in self.parts) else "in part"

    @property
    def missing(self) -> dict[str, str]:
        """The parts that are not in force, and why."""
        return {part.name: part.detail for part in self.parts if not part.in_force}

    def to_json(self) -> dict[str, Any]:
        """As health and the audit log have it."""
        told: dict[str, Any] = {"state": self.state}
        if self.off is not None:
            return {**told, "reason": self.off, **({"user": self.user} if self.user else {})}
        told["in_force"] = [part.name for part in self.parts if part.in_force]
        optional = {
            "missing": self.missing, "user": self.user, "added": list(self.added), "hotplug": self.hotplug,
            "notes": list(self.notes),
        }  # fmt: skip
        return told | {name: value for name, value in optional.items() if value}

    def lines(self) -> Iterator[tuple[Literal["info", "warning"], str]]:
        """As the log has it: one line for what is in force, one for each thing that is not."""
        if self.off is not None:
            yield "warning", f"sandbox: off: {self.off}"
            return
        held = [f"{part.name} ({part.detail})" for part in self.parts if part.in_force]
        yield "info", f"sandbox: in force: {', '.join(held) or 'nothing'}"
        for why, names in by_cause(self.parts).items():
            yield "warning", f"sandbox: not in force: {', '.join(names)}: {why}"
        if self.added:
            yield "warning", f"sandbox: the environment added to what may be written: {', '.join(self.added)}"
        if self.hotplug is not None:
            yield "info", f"sandbox: all of /dev may be opened: {self.hotplug}"
        for note in self.notes:
            yield "warning", f"sandbox: {note}"
