"""The error tree, and the one table from an exception to its JSON-RPC code.

Everything that hearth raises on purpose is a `HearthError`. Errors that can cross the wire are `RpcError`s: each class
has one `code` and one `symbol`. `from_wire` turns a received error object back into the same class, so that a client
and an embedded program catch the same exceptions. The codes are those of the HACP draft §6; hearth adds a few, which
docs/reference/errors.md documents. A code never gets a second meaning (draft §2.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

Effect = Literal["none", "done", "unknown"]
"""The effect of a failed transaction on the hardware: none, done all the same, or unknown."""


class HearthError(Exception):
    """The root of every error that hearth raises on purpose. Each crosses a process (pickle) as it is."""

    # Exception would call the class with the message alone, and most of these classes take more.
    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[HearthError], args: tuple[Any, ...], members: dict[str, Any]) -> HearthError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(members)
    return error


class ConfigError(HearthError):
    """A configuration that cannot be used; the message names the file, the key path and the cure."""


class CarrierError(HearthError):
    """The peer cannot be reached, or the connection to it ended before it answered."""


class RpcError(HearthError):
    """An error that has a JSON-RPC code and can cross the wire (draft §6).

    `message` is one line for a person; `data` is a JSON object for a program, or None.
    """

    code: ClassVar[int] = -32603
    symbol: ClassVar[str] = "INTERNAL_ERROR"
    title: ClassVar[str] = "Internal error"

    def __init_subclass__(cls, code: int | None = None, symbol: str = "", title: str = "") -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code, cls.symbol, cls.title = code, symbol, title

    def __init__(self, message: str | None = None, *, data: Mapping[str, Any] | None = None) -> None:
        self.message = message or self.title
        self.data = dict(data) if data is not None else None
        super().__init__(self.message)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON-RPC error object: code, message and, if it is not None, data."""
        wire: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            wire["data"] = self.data
        return wire


class ParseError(RpcError, code=-32700, symbol="PARSE_ERROR", title="Parse error"):
    """The bytes are not one JSON document."""


class InvalidRequest(RpcError, code=-32600, symbol="INVALID_REQUEST", title="Invalid Request"):
    """JSON, but not a request object."""


class MethodNotFound(RpcError, code=-32601, symbol="METHOD_NOT_FOUND", title="Method not found"):
    """The server has no such method."""


class InvalidParams(RpcError, code=-32602, symbol="INVALID_PARAMS", title="Invalid params"):
    """A parameter is missing or wrong; `data` names the place."""


class InternalError(RpcError):
    """A bug in the server."""


class SessionInvalid(RpcError, code=-32000, symbol="RPC_SESSION_INVALID", title="Session unknown or expired"):
    """The session is unknown, has ended, or belongs to another principal."""


class TaskNotFound(RpcError, code=-32001, symbol="RPC_TASK_NOT_FOUND", title="Task unknown for this session"):
    """The session has no such task, or has forgotten it."""


class ToolNotFound(RpcError, code=-32002, symbol="RPC_TOOL_NOT_FOUND", title="Tool not found"):
    """A step names a tool that is not registered."""


class PermissionDenied(RpcError, code=-32003, symbol="RPC_PERMISSION_DENIED", title="Permission denied"):
    """The policy refuses: principal, allowlist, risk cap or path guard."""


class ResourceBusy(RpcError, code=-32004, symbol="RPC_RESOURCE_BUSY", title="Resource busy"):
    """The bus is busy: its queue is full, or it is leased, wedged, or held by another process."""


class QueueFull(RpcError, code=-32005, symbol="QUEUE_FULL", title="Queue full"):
    """A bounded queue of the server is full (draft §12)."""


class RateLimited(RpcError, code=-32006, symbol="RATE_LIMITED", title="Rate limited"):
    """Too many uses of a tool by this principal; `data.retry_after_ms` is the time to wait before the next."""


class ShuttingDown(RpcError, code=-32007, symbol="SHUTTING_DOWN", title="Shutting down"):
    """The daemon is stopping and takes no new work."""


class UnsupportedVersion(RpcError, code=-32008, symbol="UNSUPPORTED_VERSION", title="Unsupported protocol version"):
    """The client needs a major version of the protocol that this server does not speak."""


class DeviceError(RpcError, code=-32009, symbol="DEVICE_ERROR", title="Device error"):
    """The hardware, a file or the machine reported a failure. `data.effect` is the effect on the hardware."""

    def __init__(
        self,
        message: str | None = None,
        *,
        effect: Effect = "unknown",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, data={"effect": effect, **(data or {})})


class TimedOut(DeviceError, code=-32010, symbol="TIMED_OUT", title="Timed out"):
    """A transaction, step or task took longer than its limit."""


class AuditUnavailable(RpcError, code=-32011, symbol="AUDIT_UNAVAILABLE", title="Audit log cannot be written"):
    """The audit log, or the file of driven outputs, cannot be written, so nothing that has an effect may begin."""


class Halted(RpcError, code=-32012, symbol="HALTED", title="Halted"):
    """The daemon is halted: nothing that has an effect begins until the halt is reset; reads go on."""


class LimitViolated(RpcError, code=-32013, symbol="LIMIT_VIOLATED", title="Limit violated"):
    """A limit of the board profile forbids this value, or this value now; `data.retry_after_ms` if waiting helps."""


class InterlockOpen(RpcError, code=-32014, symbol="INTERLOCK_OPEN", title="Interlock open"):
    """A condition that the board profile requires for driving this output does not hold, or cannot be read."""


class EffectNotSeen(DeviceError, code=-32015, symbol="EFFECT_NOT_SEEN", title="Effect not seen"):
    """A step was done, and the effect that it was to have (`expect`) could not be seen in time."""


class ApprovalRequired(RpcError, code=-32016, symbol="APPROVAL_REQUIRED", title="Approval required"):
    """The policy lets this run only as a plan that has been approved."""


class PlanStale(RpcError, code=-32017, symbol="PLAN_STALE", title="Plan stale"):
    """A plan can no longer be executed: it was used, has expired, or the hardware has changed since it was prepared."""


class TaskFailed(HearthError):
    """Raised by `TaskResult.raise_for_status`: the task ended FAILED or CANCELLED."""


class LoopStopped(HearthError):
    """Raised at the end of the block of a control loop that has ended by itself; its outputs are in their safe states.

    `reason` says why. An exception that the loop's function has raised is the cause (`__cause__`).
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class JobRejected(HearthError):
    """A job, or an abort of one, was not accepted (HCP L3, TaskRejected Response): nothing of it has been done.

    `reason_code` is for a program; `message` and `suggestion` are for a person, and `suggestion` may be None.
    `assessed_risk` is "R1" to "R5", or None if the risk was not assessed.
    """

    def __init__(
        self, reason_code: str, message: str, suggestion: str | None = None, assessed_risk: str | None = None
    ) -> None:
        super().__init__(f"{reason_code}: {message}" + (f" ({suggestion})" if suggestion else ""))
        self.reason_code = reason_code
        self.message = message
        self.suggestion = suggestion
        self.assessed_risk = assessed_risk


class JobFailed(HearthError):
    """Raised by `JobResult.raise_for_state`: the job ended FAILED or ABORTED. `error_code` is HCP's, or None."""

    def __init__(self, message: str, error_code: str | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code


class ArtifactDamaged(HearthError):
    """A fetched artifact does not have its announced size and checksum."""


ERROR_TABLE: Mapping[int, type[RpcError]] = {
    kind.code: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, RpcError) and kind is not RpcError
}
"""Code -> class, for each class above that can cross the wire."""


def no_value(text: str, **data: Any) -> DeviceError:
    """Return the error of a device that was read, and whose answer means that it has no value."""
    return DeviceError(text, effect="none", data={"errno": "ENODATA", **data, "quality": "none"})


def has_no_value(error: RpcError) -> bool:
    """Return True for an error of `no_value`."""
    return (error.data or {}).get("quality") == "none"


def denied(reason: str, cure: str | None = None) -> PermissionDenied:
    """Return the refusal of something that has had no effect on hardware."""
    told = reason if cure is None else f"{reason}; {cure}"
    return PermissionDenied(f"Permission denied: {told}", data={"reason": reason, "effect": "none"})


def effect_of(error: RpcError) -> Effect:
    """Return the effect on the hardware, as far as `error` tells.

    A refusal without `data.effect` came before any device was touched: "none". For a bug, or a code that this release
    does not know, it is "unknown".
    """
    effect: Effect | None = (error.data or {}).get("effect")
    if effect in ("none", "done", "unknown"):
        return effect
    return "unknown" if isinstance(error, InternalError) or error.code not in ERROR_TABLE else "none"


def from_wire(error: Mapping[str, Any]) -> RpcError:
    """Return the exception that a received error object stands for.

    A code that this release does not know (draft §2.5: codes are additive) becomes a plain `RpcError` with that code,
    and keeps the code when it is sent on. `data` that is not an object is kept as `data["value"]`.
    """
    code = error.get("code")
    message, data = error.get("message"), error.get("data")
    text = message if isinstance(message, str) else None
    details = data if isinstance(data, Mapping) or data is None else {"value": data}
    cls = ERROR_TABLE.get(code) if isinstance(code, int) else None
    if cls is None:
        unknown = RpcError(text or f"error {code}", data=details)
        if isinstance(code, int):
            unknown.code = code  # type: ignore[misc]  # the only place where an instance has a code of its own
            unknown.symbol = f"CODE_{code}"  # type: ignore[misc]
        return unknown
    if issubclass(cls, DeviceError):
        return cls(text, effect=(details or {}).get("effect", "unknown"), data=details)
    return cls(text, data=details)
