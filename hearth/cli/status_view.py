"""The state of the daemon, as observe.state gives it, as the rows of tables and as words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.cli import common
from hearth.cli.task_view import brief
from hearth.tools import NOT_ASKED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Row = tuple[str, ...]
LINES = ("line", "name", "value", "owner or role", "session")
SIGNALS = ("signal", "bus", "value", "quality", "safe", "limit", "owner", "left")
BUSES = ("bus", "state", "queued", "transactions", "reason")
SESSIONS = ("principal", "policy", "client", "lines", "tasks", "opened", "session")
TASKS = ("status", "principal", "step", "intent", "session", "task")
APPROVALS = ("id", "kind", "by", "needs", "approved by", "expires")


def line_rows(state: Mapping[str, Any], *, driven: bool = False) -> list[Row]:
    """Return the cells under `LINES`; with `driven` only of the lines that a session drives."""
    return [
        (
            f"{line['bus']} {line['line']}",
            line["name"] or "",
            common.scalar(line["value"]),
            owner(line) or line["role"] or line["reserved"] or "",
            line["owner"]["session_id"] or "" if line["owner"] else "",
        )
        for line in state["lines"]
        if line["owner"] or not driven
    ]


def owner(line: Mapping[str, Any]) -> str:
    """Return the principal that drives a line; "the daemon" for a stop sequence, "" for a line that none drives."""
    return (line["owner"]["principal"] or "the daemon") if line["owner"] else ""


def signal_rows(state: Mapping[str, Any], *, known: bool = False) -> list[Row]:
    """Return the cells under `SIGNALS`; with `known` only of the signals that were driven or read.

    A daemon of an earlier release tells none.
    """
    return [
        (
            each["name"],
            each["bus"],
            _in_unit(each, "value"),
            each["quality"] + (f" ({each['why']})" if each["why"] else ""),
            _in_unit(each, "safe"),
            brief(each["limit"]),
            owner(each),
            "left by a halt" if each["left"] else "",
        )
        for each in state.get("named", ())
        if not known or each["owner"] or each["left"] or each["quality"] == "stale" or _was_none(each)
    ]


def _was_none(signal: Mapping[str, Any]) -> bool:
    """Return True for a signal that was read, and had no value."""
    return bool(signal["quality"] == "none" and signal["why"] != NOT_ASKED)


def _in_unit(signal: Mapping[str, Any], member: str) -> str:
    value, unit = signal[member], signal["unit"]
    return f"{value} {unit}" if unit and isinstance(value, (int, float)) else common.scalar(value)


def bus_rows(state: Mapping[str, Any]) -> list[Row]:
    """Return the cells under `BUSES`."""
    return [
        (name, bus["state"], str(bus["queued"]), str(bus["transactions"]), bus.get("reason") or "")
        for name, bus in state["buses"].items()
    ]


def session_rows(state: Mapping[str, Any]) -> list[Row]:
    """Return the cells under `SESSIONS`."""
    return [
        (
            each["principal"],
            each["policy"] or "",
            each["client_name"] or "",
            str(sum(1 for line in state["lines"] if _belongs(line["owner"], each))),
            str(sum(1 for task in state["tasks"] if _belongs(task, each))),
            each["opened_at"],
            each["session_id"],
        )
        for each in state["sessions"]
    ]


def _belongs(what: Mapping[str, Any] | None, to: Mapping[str, Any]) -> bool:
    return what is not None and what["session_id"] == to["session_id"]


def task_rows(state: Mapping[str, Any]) -> list[Row]:
    """Return the cells under `TASKS`."""
    return [
        (
            task["status"] + (" (dry run)" if task.get("dry_run") else ""),
            task["principal"],
            _present_step(task["steps"]),
            task["intent"],
            task["session_id"],
            task["task_id"],
        )
        for task in state["tasks"]
    ]


def _present_step(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the step that runs, or that is next, with its number."""
    for number, step in enumerate(steps, 1):
        if step["status"] in (None, "RUNNING"):
            return f"{number}/{len(steps)} {step['tool']} {brief(step['args'])}".rstrip()
    return f"{len(steps)}/{len(steps)}"


def approval_rows(state: Mapping[str, Any]) -> list[Row]:
    """Return the cells under `APPROVALS`."""
    return [
        (
            each["approval_id"],
            each["kind"],
            each["principal"],
            f"{each['needs']['persons']} with {each['needs']['right']!r}",
            ", ".join(each["approved_by"]) or "-",
            each["expires_at"],
        )
        for each in state["approvals"]
    ]


def faults(state: Mapping[str, Any]) -> list[str]:
    """Return what is wrong, in words: a halt, and whatever makes the daemon's health not ok; [] if all is well."""
    halt, health = state["halt"], state["health"]
    found = [halted_words(halt)] if halt["halted"] else []
    found += [
        f"bus {name} is {bus['state']}: {bus.get('reason') or 'no reason given'}"
        for name, bus in state["buses"].items()
        if bus["state"] != "ready"
    ]
    for name, what in (("audit", "the audit log cannot be written"), ("outputs", "the list of outputs")):
        member = health.get(name) or {"ok": True}
        if not member["ok"]:
            found.append(f"{what}: {member.get('reason') or 'no reason given'}")
    return found if found or health["ok"] else ["the daemon reports that it is not healthy"]


def halted_words(halt: Mapping[str, Any]) -> str:
    """Return a halt in one line."""
    by = halt.get("by") or {}
    who = by if isinstance(by, str) else by.get("principal")
    named = f" by {who}" if who else ""
    return f"halted since {halt.get('since')}{named}: {halt.get('reason') or 'no reason given'}"


def uplink_words(uplink: Mapping[str, Any]) -> str:
    """Return the state of the uplink to a broker, in words."""
    state = "connected" if uplink["connected"] else f"not connected ({uplink.get('reason', 'connecting')})"
    return f"{state}: {uplink['id']} at {uplink['broker']}; {uplink['outbox']} messages wait to be published"
