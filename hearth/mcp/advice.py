"""The effect of a failure on the hardware, and advice: a sentence each, for a model or the person that it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.errors import (
    ApprovalRequired,
    AuditUnavailable,
    CarrierError,
    DeviceError,
    Halted,
    HearthError,
    InternalError,
    InvalidParams,
    PermissionDenied,
    QueueFull,
    RateLimited,
    ResourceBusy,
    RpcError,
    SessionInvalid,
    ShuttingDown,
    TaskNotFound,
    TimedOut,
    effect_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


WORLD = {
    "none": "Nothing has happened to the hardware.",
    "done": "It has happened all the same: do not repeat it.",
    "unknown": "Whether it has happened is not known: read the state back before you repeat it.",
}


def world(error: HearthError, rolled_back: bool | None = None) -> str:
    """Return the effect on the hardware as a sentence; for a step with a rollback, the outcome of the rollback."""
    if rolled_back is not None:
        return "What it did was rolled back." if rolled_back else "What it did could NOT be rolled back: look at it."
    if isinstance(error, RpcError):
        return WORLD[effect_of(error)]
    # The connection broke before an answer.
    return WORLD["unknown"]


def advice(error: HearthError) -> str:
    """Return advice as a sentence, or "" if the error's own message needs none."""
    if isinstance(error, CarrierError):
        return "The daemon cannot be reached: a person has to look whether hearthd runs (`hearth doctor` says)."
    data = (error.data or {}) if isinstance(error, RpcError) else {}
    for kind, say in _ADVICE:
        if isinstance(error, kind):
            return say(data)
    return ""


def _busy(data: Mapping[str, Any]) -> str:
    if data.get("reason") == "wedged":
        return (
            "The bus hangs in a transaction that does not return, and everything on it waits: "
            "hw_board shows its health, and a person has to look at the device."
        )
    holder = data.get("holder_task")
    if isinstance(holder, str):
        who = f"Your own task {holder} holds it"
    elif "owner" in data or "consumer" in data or "holders" in data:
        return "Another program of the machine holds it: a person has to end that one, or use another device."
    else:
        who = "Another task uses it"
    held = data.get("held_ms")
    since = f", for {held:.0f} ms by now" if isinstance(held, (int, float)) else ""
    return f'{who}{since}. Try again shortly, or leave out on_busy "fail" to wait in its queue.'


def _rate(data: Mapping[str, Any]) -> str:
    wait = data.get("retry_after_ms")
    if isinstance(wait, int):
        return f"Wait {wait} ms, then call it again; nothing was counted."
    return "Waiting does not help: use the tool fewer times in one plan."


def _permission(data: Mapping[str, Any]) -> str:
    reason = str(data.get("reason", ""))
    if "ceiling" in reason or "max_risk_level" in reason:
        why = "It is riskier than this session may be. "
    elif "allowlist" in reason:
        why = "The policy does not let this session use the tool. "
    elif "addr" in data:
        why = "The board's profile does not allow the use of this address. "
    elif "path" in data:
        why = "The path is outside what the operator shares ([files] in the configuration). "
    else:
        why = ""
    return f"{why}Do not repeat it: do without, or ask the person who operates the machine to allow it in [[policy]]."


def _device(data: Mapping[str, Any]) -> str:
    if data.get("effect") == "unknown":
        return ""
    if data.get("errno") in ("ENXIO", "EREMOTEIO") or "addr" in data:
        return "Check the address with i2c_scan, then the wiring and power of the device."
    if "unit" in data:
        return "Check that the device is on, and its number, address and settings (hw_modbus_list has ours)."
    if "port" in data:
        return "Check that the device is connected and uses the same settings (hw_uart_list has ours)."
    if "path" in data:
        return "Check the path with file_stat or file_list."
    return "Check the name against the hw_… lists, then wiring and power."


def _timed_out(data: Mapping[str, Any]) -> str:
    if data.get("effect") == "done":
        return "`result`, where there is one, is what it returned. The device is slow: find out why."
    return "Allow more time (max_duration_ms of a plan), or find out why the device is slow."


def _bounded(data: Mapping[str, Any]) -> str:
    if "max_sessions_per_principal" in data:
        return "Too many sessions are open: close other clients of this user, then try again."
    if "max_tasks_per_session" in data:
        return "Wait for tasks of yours to end, or cancel some."
    if "retained_bytes" in data and isinstance(data.get("cure"), str):
        return f"{data['cure'][:1].upper()}{data['cure'][1:]}."
    return "Ask for less at once."


_ADVICE: tuple[tuple[type[RpcError], Callable[[Mapping[str, Any]], str]], ...] = (
    (Halted, lambda _: "Do not try it again: tell the person, who has to look at the machine. You can still read."),
    (ApprovalRequired, lambda _: "Tell the person. Once it is approved, make this very call again."),
    (ResourceBusy, _busy),
    (RateLimited, _rate),
    (PermissionDenied, _permission),
    (
        AuditUnavailable,
        lambda _: "Only what has no effect (risk 0) works until a person makes room for the audit log.",
    ),
    (TimedOut, _timed_out),
    (DeviceError, _device),
    (QueueFull, _bounded),
    (InvalidParams, lambda _: "Correct the argument as the tool's inputSchema says."),
    (
        SessionInvalid,
        lambda _: "The session has ended, and what it drove went to its safe state. Call again to open a new one.",
    ),
    (TaskNotFound, lambda _: "The last 256 tasks of a session are kept; the audit log has the outcome of older ones."),
    (ShuttingDown, lambda _: "The daemon is ending; try again when it is back."),
    (InternalError, lambda _: "This is a bug in hearth or in a tool: tell the person, with the daemon's log."),
)
"""The first match applies: a class is listed before its base classes."""
