"""A tools/call as the HACP task that it is, before anything of it has been submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.api import Step


@frozen(eq=False)
class Job:
    """A tools/call as the HACP task that it is."""

    tool: str
    """The MCP name of the tool that is called."""
    intent: str
    steps: Sequence[Step]
    entries: Sequence[Mapping[str, Any]]
    """The tool.list entry of each step."""
    constraints: Mapping[str, Any] = field(factory=dict)
    plan: bool = False
    """True where the result tells of every step, and not just of the one there is."""

    @property
    def risk(self) -> int:
        """The highest risk level of what would run; 0 for a dry run."""
        return 0 if self.constraints.get("dry_run") else max(entry["risk_level"] for entry in self.entries)
