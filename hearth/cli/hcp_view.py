"""Jobs as text: their messages, their outcomes, and lists of them.

The functions are pure. All text from the wire passes `common.clean`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hearth.cli import common
from hearth.cli.task_view import brief
from hearth.hcp.codec import write_payload
from hearth.hcp.messages import Event, TaskAccepted, TaskCompleted, TaskFailed, read_duration, write_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from hearth.hcp.api import JobResult
    from hearth.hcp.messages import Artifact, ExecutionSummary, Message


STATE_COLOURS = {
    "COMPLETED": "green",
    "FAILED": "red",
    "REJECTED": "red",
    "ABORTED": "yellow",
    "ABORTING": "yellow",
    "RUNNING": "cyan",
}
JOBS = ("session", "state", "capability", "risk", "data", "accepted", "intent")
MOST_SHOWN = 300
"""Limit of a result in the line of its message, in characters."""
APPROVALS = ("approval", "capability", "risk", "data", "by", "until", "intent")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def state(word: str) -> str:
    """Return a state in its colour."""
    return click.style(common.clean(word), fg=STATE_COLOURS.get(word), bold=True)


def took(duration: timedelta) -> str:
    """Return a duration for a person: 0.412 s, 2 min 5 s, 72 h."""
    seconds = duration.total_seconds()
    if seconds < _MINUTE:
        return f"{seconds:.3g} s"
    parts = []
    whole = round(seconds)
    for name, size in (("h", _HOUR), ("min", _MINUTE), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts)


def time_of_day(message: Message) -> str:
    """Return the time of day at which a message was sent, in UTC, to the millisecond."""
    return "" if message.timestamp is None else message.timestamp.strftime("%H:%M:%S.%f")[:-3]


def message_line(message: Message) -> str:
    """Return a message as one line: time of day (UTC), kind, words."""
    kind, words = said(message)
    return common.clean("  ".join([time_of_day(message), kind.ljust(10), *words])).replace("\n", " ").rstrip()


def said(message: Message) -> tuple[str, list[str]]:
    """Return the kind of a message as one word, and its content as a few words."""
    payload = message.payload
    if isinstance(payload, TaskAccepted):
        limit = took(payload.constraints.max_duration)
        return "accepted", [f"risk {payload.risk_level}, data {payload.data_classification}, at most {limit}"]
    if isinstance(payload, TaskCompleted):
        return "completed", [_short(brief(payload.outputs))]
    if isinstance(payload, TaskFailed):
        return "failed", [f"{payload.error_code}: {payload.error_message}"]
    if isinstance(payload, Event):
        kind, data = payload.event_type, payload.data
        if kind in _MEMBERS:
            words = [_text(data, name) for name in _MEMBERS[kind]]
        else:
            words = _EVENTS[kind](data) if kind in _EVENTS else [brief(data)]
        return _NAMES.get(kind, kind), [word for word in words if word]
    return message.type, []


_NAMES = {
    "session_created": "session",
    "state_changed": "state",
    "intermediate_result": "result",
    "checkpoint_created": "checkpoint",
    "session_closed": "closed",
}


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return "" if value is None else common.scalar(value)


def _changed(data: Mapping[str, Any]) -> list[str]:
    return [f"{_text(data, 'from_state')} → {_text(data, 'to_state')}", _text(data, "reason")]


def _progress(data: Mapping[str, Any]) -> list[str]:
    percent, remaining = data.get("percent"), data.get("remaining")
    shown = f"{percent:3.0f} %" if isinstance(percent, int | float) else ""
    return [shown, _text(data, "stage"), _text(data, "message"), f"{_left(remaining)} left" if remaining else ""]


def _left(remaining: Any) -> str:
    try:
        return took(read_duration(remaining))
    except (TypeError, ValueError, AttributeError):
        return common.scalar(remaining)


def _result(data: Mapping[str, Any]) -> list[str]:
    return [_text(data, "result_type"), _short(brief(data.get("data")))]


def _short(text: str) -> str:
    """Return at most MOST_SHOWN characters of a text that is shown whole elsewhere."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


_EVENTS = {"state_changed": _changed, "progress": _progress, "intermediate_result": _result}
_MEMBERS = {
    "session_created": ("state",),
    "log": ("level", "message"),
    "warning": ("code", "message"),
    "error": ("code", "message"),
    "checkpoint_created": ("description", "checkpoint_id"),
    "session_closed": ("final_state", "reason"),
}
"""Type of the other events -> the members of their data that are shown."""


def result_json(result: JobResult) -> dict[str, Any]:
    """Return a result for a program: session, state, and L4's members under their own names."""
    members: dict[str, Any] = {"session_id": result.session_id, "state": result.state, "reason": result.reason}
    outcome = TaskCompleted(outputs=result.outputs, artifacts=result.artifacts, execution_summary=result.summary)
    if result.error_code is not None and result.error_message is not None and result.details is not None:
        failed = TaskFailed(
            error_code=result.error_code,
            error_message=result.error_message,
            error_details=result.details,
            partial_outputs=result.outputs,
            artifacts=result.artifacts,
            execution_summary=result.summary,
        )
        members |= write_payload(failed)
    else:
        members |= write_payload(outcome)
    return {name: value for name, value in members.items() if value is not None}


def result_lines(result: JobResult) -> list[str]:
    """Return a result as lines for a person."""
    head = f"{state(result.state)}  {click.style(common.clean(result.session_id), dim=True)}"
    if result.reason and not result.completed:
        head += f"  {common.clean(result.reason)}"
    return [head, *_result_details(result)]


def _result_details(result: JobResult) -> Iterator[str]:
    if result.error_message is not None:
        yield common.clean(f"  {result.error_code}: {result.error_message}")
    if result.details is not None:
        facts = failure_facts(result)
        yield from common.fields(facts, indent="  ")
    if result.outputs:
        yield click.style("outputs" if result.completed else "outputs so far", bold=True)
        yield from common.fields(result.outputs, indent="  ")
    if result.artifacts:
        yield click.style("artifacts", bold=True)
        yield from common.table(("name", "type", "bytes", "uri"), artifact_rows(result.artifacts), indent="  ")
    if result.summary is not None:
        yield click.style("summary", bold=True)
        yield from common.fields(summary_facts(result.summary), indent="  ")


def failure_facts(result: JobResult) -> dict[str, Any]:
    """Return the place of a job's failure, and how to resume it."""
    details = result.details
    if details is None:
        return {}
    facts: dict[str, Any] = {"phase": details.phase, "step": details.step, "checkpoint": details.last_checkpoint}
    facts = {name: value for name, value in facts.items() if value is not None}
    if details.recoverable:
        begins = details.last_checkpoint is None
        how = "from the beginning" if begins else "with this checkpoint as context.last_checkpoint"
        facts["recoverable"] = f"yes: submit it again {how}"
    return facts


def artifact_rows(artifacts: Sequence[Artifact]) -> list[tuple[str, str, str, str]]:
    """Return the cells for each artifact: name, MIME type, size, URI."""
    return [
        (each.name, each.type, "" if each.size_bytes is None else str(each.size_bytes), each.uri) for each in artifacts
    ]


def summary_facts(summary: ExecutionSummary) -> dict[str, Any]:
    """Return the figures of a job: duration, steps, checkpoints, risk events, warnings."""
    facts: dict[str, Any] = {
        "duration": took(summary.duration),
        "steps": summary.steps_executed,
        "checkpoints": summary.checkpoints_created,
    }
    if summary.risk_events:
        facts["risk events"] = list(summary.risk_events)
    for number, warning in enumerate(summary.warnings):
        facts["warnings" if not number else f"warning {number + 1}"] = warning
    return facts


def job_rows(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the cells under `JOBS`."""
    return [
        (
            # A job that waits for its acceptance has no session yet; its message id is needed to withdraw it.
            _text(entry, "session_id") or _text(entry, "message_id"),
            _text(entry, "state"),
            f"{_text(entry, 'capability')} {_text(entry, 'capability_version')}",
            _text(entry, "risk_level"),
            _text(entry, "data_classification"),
            waits(entry) or _text(entry, "created_at"),
            _text(entry, "intent"),
        )
        for entry in entries
    ]


def waits(entry: Mapping[str, Any]) -> str:
    """Return what a job waits for before its acceptance, and until when; "" for any other job."""
    what = _text(entry, "waits_for")
    return what and f"waits for {what} until {_text(entry, 'expires_at')}"


def approval_rows(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the cells under `APPROVALS`."""
    return [
        (
            _text(entry, "approval_id"),
            f"{_text(entry, 'capability')} {_text(entry, 'capability_version')}",
            _text(entry, "risk_level"),
            _text(entry, "data_classification"),
            f"{_text(entry, 'principal')} (yourself)" if entry.get("own") is True else _text(entry, "principal"),
            _text(entry, "expires_at"),
            _text(entry, "intent"),
        )
        for entry in entries
    ]


def accepted_facts(accepted: TaskAccepted) -> dict[str, Any]:
    """Return the terms of an acceptance: risk, data classification, limits, safety envelope."""
    return {
        "risk": accepted.risk_level,
        "data": accepted.data_classification,
        "at most": f"{took(accepted.constraints.max_duration)} ({write_duration(accepted.constraints.max_duration)})",
        "abort within": took(accepted.constraints.abort_timeout),
        **envelope_facts(accepted.safety_envelope),
    }


def envelope_facts(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds that a job must not leave (L3, Safety Envelope), as name -> words."""
    facts: dict[str, Any] = {}
    for name, bounds in _members(envelope, "parameters"):
        if isinstance(bounds, Mapping):
            words = [f"{word} {_text(bounds, key)}" for key, word in _BOUNDS.items() if key in bounds]
            facts[name] = " ".join([", ".join(words), _text(bounds, "unit")]).strip()
    if prohibited := envelope.get("prohibited_actions"):
        facts["never"] = prohibited
    for danger, answer in _members(envelope, "emergency_procedures"):
        facts[f"on {danger}"] = answer
    return facts


_BOUNDS = {"min": "at least", "max": "at most"}


def _members(envelope: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    value = envelope.get(name)
    return list(value.items()) if isinstance(value, Mapping) else []
