"""hearth: safe, stable, audited access to real hardware for agents and programs, on Trio.

Public names are loaded on first use, so that a client never imports drivers and `hearth --help` imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hearth._version import __version__ as __version__

if TYPE_CHECKING:
    from hearth.actors.bridges.hcp.capability_api import Job as Job
    from hearth.actors.bridges.hcp.execution import Answer as Answer
    from hearth.actors.embedded import open_runtime as open_runtime
    from hearth.api import (
        JobEvent as JobEvent,
        JobHandle as JobHandle,
        JobResult as JobResult,
        Step as Step,
        StepResult as StepResult,
        Task as Task,
        TaskEvent as TaskEvent,
        TaskResult as TaskResult,
        step as step,
    )
    from hearth.client.connection import connect as connect
    from hearth.config.model import Config as Config, load_config as load_config
    from hearth.errors import (
        ArtifactDamaged as ArtifactDamaged,
        CarrierError as CarrierError,
        ConfigError as ConfigError,
        DeviceError as DeviceError,
        HearthError as HearthError,
        InvalidParams as InvalidParams,
        JobFailed as JobFailed,
        JobRejected as JobRejected,
        PermissionDenied as PermissionDenied,
        ResourceBusy as ResourceBusy,
        RpcError as RpcError,
        SessionInvalid as SessionInvalid,
        TaskFailed as TaskFailed,
        TimedOut as TimedOut,
    )
    from hearth.hcp.capability import Escalation as Escalation, Limit as Limit, capability as capability
    from hearth.hcp.durable import (
        CapabilityFailed as CapabilityFailed,
        OutcomeUnknown as OutcomeUnknown,
        ReplayMismatch as ReplayMismatch,
        SafetyViolation as SafetyViolation,
        StepFailed as StepFailed,
    )
    from hearth.hcp.inputs import I2cAddress as I2cAddress, InputRefused as InputRefused, Line as Line, Port as Port
    from hearth.tools import Done as Done, StepContext as StepContext, Tool as Tool, Undo as Undo

_HOME = {
    "hearth.actors.bridges.hcp.capability_api": "Job",
    "hearth.actors.bridges.hcp.execution": "Answer",
    "hearth.actors.embedded": "open_runtime",
    "hearth.api": "JobEvent JobHandle JobResult Step StepResult Task TaskEvent TaskResult step",
    "hearth.client.connection": "connect",
    "hearth.config.model": "Config load_config",
    "hearth.errors": (
        "ArtifactDamaged CarrierError ConfigError DeviceError HearthError InvalidParams JobFailed "
        "JobRejected PermissionDenied ResourceBusy RpcError SessionInvalid TaskFailed TimedOut"
    ),
    "hearth.hcp.capability": "Escalation Limit capability",
    "hearth.hcp.durable": "CapabilityFailed OutcomeUnknown ReplayMismatch SafetyViolation StepFailed",
    "hearth.hcp.inputs": "I2cAddress InputRefused Line Port",
    "hearth.tools": "Done StepContext Tool Undo",
}
"""Module -> the public names that it defines, separated by spaces."""
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

if not TYPE_CHECKING:  # type checkers take the imports above
    __all__ = ["__version__", *_MODULE_OF]  # noqa: PLE0604  they are strings


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'hearth' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *_MODULE_OF]
