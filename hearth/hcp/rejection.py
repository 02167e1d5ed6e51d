"""The refusal of a message as a value: reason code, sentence, assessed risk, what to do about it (L3, TaskRejected).

It owns the codes there are and how a stranger's words are quoted. Who refuses, and when, is not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from hearth.errors import HearthError
from hearth.hcp.messages import TaskRejected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.hcp.values import Risk, State

ReasonCode: TypeAlias = Literal[
    # L3's own
    "unauthorized", "forbidden", "invalid_input", "risk_too_high",
    # what else the gate finds
    "unknown_capability", "version_mismatch", "safety_violation", "classification_too_high",
    # what is found before it or after it
    "invalid_message", "unsupported_version", "unknown_session", "message_id_reused", "approval_denied",
    "approval_timeout", "withdrawn", "session_ended", "resource_unavailable", "shutting_down", "internal_error",
]  # fmt: skip
"""Why a message was rejected: every `reason_code` that this daemon sends."""

LONGEST: Final = 600
"""Characters of a sentence to the caller, who may have sent a megabyte to quote from."""
_QUOTED = 80
_LISTED = 12


class Rejection(HearthError):
    """A message that is not acted upon: what task_rejected says, apart from what it answers."""

    def __init__(
        self,
        reason_code: ReasonCode,
        message: str,
        *,
        suggestion: str | None = None,
        risk: Risk | None = None,
        final_state: State | None = None,
    ) -> None:
        self.reason_code: ReasonCode = reason_code
        self.message = _clipped(message)
        self.suggestion = None if suggestion is None else _clipped(suggestion)
        self.risk: Risk | None = risk
        self.final_state: State | None = final_state
        super().__init__(f"{reason_code}: {self.message}")

    def payload(self, in_reply_to: str | None) -> TaskRejected:
        """The answer to the message of this id."""
        return TaskRejected(
            reason_code=self.reason_code,
            reason_message=self.message,
            assessed_risk_level=self.risk,
            suggestion=self.suggestion,
            in_reply_to=in_reply_to,
            final_state=self.final_state,
        )


def quoted(text: str) -> str:
    """A stranger's word for a sentence: what cannot be printed is escaped, what is long is cut."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…")


def listed(names: Iterable[str]) -> str:
    """Names, the first of them and how many more."""
    every = list(names)
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return (", ".join(every[:_LISTED]) or "none") + more


def one_of(names: Iterable[str]) -> str:
    """Names to choose from."""
    return " or ".join(map(quoted, names))


def _clipped(text: str) -> str:
    if not text.isprintable():
        text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
