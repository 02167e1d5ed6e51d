"""The parameters of the hcp.* methods, which are about whole jobs, beside HCP's own messages (decision 0067).

HCP's pages leave open how a caller finds capabilities, comes back to a session, fetches an artifact, and how a person
approves a job. These methods do that, without a HACP session. They are this project's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import frozen

from hearth.protocol.params import read_flag, read_integer, read_optional_text, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_READ = 512 * 1024
"""Bytes of an artifact in one answer, which base64 makes a third longer."""


@frozen
class HcpCapabilities:
    """hcp.capabilities: list the capabilities that this caller may submit."""


@frozen
class HcpSessions:
    """hcp.sessions: list the caller's own jobs, the newest first."""


@frozen
class HcpAttach:
    """hcp.attach: receive a session's messages from an event's sequence on, in whatever state its job is."""

    session_id: str
    from_sequence: int


@frozen
class HcpArtifact:
    """hcp.artifact: read a part of a file that a job produced."""

    uri: str
    offset: int
    length: int


@frozen
class HcpPending:
    """hcp.pending: list the jobs that wait for an approval which this caller may give."""


@frozen
class HcpDecide:
    """hcp.decide: approve a waiting job, or refuse it."""

    approval_id: str
    approve: bool
    reason: str | None


@frozen
class HcpWithdraw:
    """hcp.withdraw: withdraw a job of one's own that waits for its acceptance."""

    message_id: str
    reason: str | None


HcpParams: TypeAlias = HcpCapabilities | HcpSessions | HcpAttach | HcpArtifact | HcpPending | HcpDecide | HcpWithdraw

_CAPABILITIES, _SESSIONS, _PENDING = HcpCapabilities(), HcpSessions(), HcpPending()


def _attach(params: Mapping[str, Any]) -> HcpAttach:
    return HcpAttach(read_text(params, "session_id"), read_integer(params, "from_sequence", "", 0) or 0)


def _artifact(params: Mapping[str, Any]) -> HcpArtifact:
    length = read_integer(params, "len", "", 1, MOST_READ)
    return HcpArtifact(
        read_text(params, "uri"), read_integer(params, "offset", "", 0) or 0, MOST_READ if length is None else length
    )


def _decide(params: Mapping[str, Any]) -> HcpDecide:
    return HcpDecide(
        read_text(params, "approval_id"),
        read_flag(params, "approve", "", default=False),
        read_optional_text(params, "reason"),
    )


HCP_METHODS: Mapping[str, Callable[[Mapping[str, Any]], HcpParams]] = {
    "hcp.capabilities": lambda _params: _CAPABILITIES,
    "hcp.sessions": lambda _params: _SESSIONS,
    "hcp.attach": _attach,
    "hcp.artifact": _artifact,
    "hcp.pending": lambda _params: _PENDING,
    "hcp.decide": _decide,
    "hcp.withdraw": lambda params: HcpWithdraw(read_text(params, "message_id"), read_optional_text(params, "reason")),
}
"""Method name -> reader of its params object."""
