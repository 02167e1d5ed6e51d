"""A tools/call as the HACP task that it is, before anything of it has been submitted."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

import mcp_types as types
import orjson
from attrs import field, frozen
from mcp.shared.exceptions import MCPError

from hearth.errors import ParseError
from hearth.protocol.jsonrpc import require_depth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.api import Step


def arguments_of(params: types.CallToolRequestParams) -> dict[str, Any]:
    """The arguments of a call.

    Raises MCPError for those that HACP takes from nobody, whatever the risk of the call, so that whatever is shown,
    hashed and submitted later can be: the SDK reads NaN, Infinity, integers of any length and lone surrogates, and
    nests more deeply.
    """
    arguments = params.arguments or {}
    try:
        require_depth(arguments)
        orjson.dumps(arguments)
        _require_finite(arguments)
    except ParseError as error:
        reason = (error.data or {})["reason"]
    except orjson.JSONEncodeError as error:
        reason = f"{error}; integers have 64 bits at most, and text is Unicode without lone surrogates"
    except ValueError:
        reason = "NaN and Infinity are no JSON; give numbers that a double holds"
    else:
        return arguments
    raise MCPError(
        code=types.INVALID_PARAMS,
        message=f"Invalid arguments for {params.name[:100]}: {reason}. Nothing has run.",
        data={"path": "", "reason": reason},
    )


def _require_finite(arguments: dict[str, Any]) -> None:
    """Refuse NaN and infinities, which orjson writes as null. Raises ValueError."""
    level: list[Any] = [arguments]
    while level:
        if not all(map(math.isfinite, [part for part in level if type(part) is float])):
            raise ValueError("not finite")
        arrays = chain.from_iterable(part for part in level if isinstance(part, list))
        objects = chain.from_iterable(part.values() for part in level if isinstance(part, dict))
        level = [*arrays, *objects]


@frozen(eq=False)
class Job:
    """A tools/call as the HACP task that it is."""

    tool: str
    """The MCP name of the tool that is called."""
    intent: str
    steps: Sequence[Step]
    entries: Sequence[Mapping[str, Any]]
    """The tool.list entry of each step; its `risk_level` is the declared one until the step's own is known."""
    constraints: Mapping[str, Any] = field(factory=dict)
    plan: bool = False
    """True where the result tells of every step, and not just of the one there is."""

    @property
    def risk(self) -> int:
        """The highest risk level of what would run; 0 for a dry run."""
        return 0 if self.constraints.get("dry_run") else max(entry["risk_level"] for entry in self.entries)

    @property
    def least_risk(self) -> int:
        """The least that `risk` can be, whatever the arguments are."""
        least: int = max(entry.get("least_risk", entry["risk_level"]) for entry in self.entries)
        return least
