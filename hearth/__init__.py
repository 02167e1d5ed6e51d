"""hearth: safe, stable, audited access to real hardware for agents and programs, on Trio.

Public names are loaded on first use, so that a client never imports drivers and `hearth --help` imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from hearth._version import __version__ as __version__

if TYPE_CHECKING:
    from hearth import aio as aio, sync as sync
    from hearth.actors.bridges.hcp.capability_api import Job as Job
    from hearth.actors.bridges.hcp.execution import Answer as Answer
    from hearth.actors.bus.loop_thread import LoopIO as LoopIO
    from hearth.actors.embedded import EmbeddedRuntime as _EmbeddedRuntime, open_runtime as open_runtime
    from hearth.actors.loop import ControlLoop as ControlLoop
    from hearth.api import (
        Expect as Expect,
        HaltStatus as HaltStatus,
        Plan as Plan,
        PlanStep as PlanStep,
        PlanSummary as PlanSummary,
        Session as Session,
        Step as Step,
        StepResult as StepResult,
        Task as Task,
        TaskEvent as TaskEvent,
        TaskResult as TaskResult,
        expect as expect,
        step as step,
    )
    from hearth.client.connection import Client as Client, connect as connect
    from hearth.config.model import Config as Config, load_config as load_config
    from hearth.errors import (
        ApprovalRequired as ApprovalRequired,
        ArtifactDamaged as ArtifactDamaged,
        CarrierError as CarrierError,
        ConfigError as ConfigError,
        DeviceError as DeviceError,
        EffectNotSeen as EffectNotSeen,
        Halted as Halted,
        HearthError as HearthError,
        InterlockOpen as InterlockOpen,
        InvalidParams as InvalidParams,
        JobFailed as JobFailed,
        JobRejected as JobRejected,
        LimitViolated as LimitViolated,
        LoopStopped as LoopStopped,
        PermissionDenied as PermissionDenied,
        PlanStale as PlanStale,
        ResourceBusy as ResourceBusy,
        RpcError as RpcError,
        SessionInvalid as SessionInvalid,
        TaskFailed as TaskFailed,
        TimedOut as TimedOut,
    )
    from hearth.hcp.api import JobEvent as JobEvent, JobHandle as JobHandle, JobResult as JobResult
    from hearth.hcp.capability import Escalation as Escalation, Limit as Limit, capability as capability
    from hearth.hcp.durable import (
        CapabilityFailed as CapabilityFailed,
        OutcomeUnknown as OutcomeUnknown,
        ReplayMismatch as ReplayMismatch,
        SafetyViolation as SafetyViolation,
        StepFailed as StepFailed,
    )
    from hearth.hcp.inputs import I2cAddress as I2cAddress, InputRefused as InputRefused, Line as Line, Port as Port
    from hearth.loop import LoopStats as LoopStats, Sample as Sample
    from hearth.tools import (
        Done as Done,
        Drive as Drive,
        Preview as Preview,
        StepContext as StepContext,
        Tool as Tool,
        Undo as Undo,
        Use as Use,
    )

    Runtime: TypeAlias = _EmbeddedRuntime

_HOME = {
    "hearth.actors.bridges.hcp.capability_api": "Job",
    "hearth.actors.bridges.hcp.execution": "Answer",
    "hearth.actors.embedded": "EmbeddedRuntime=Runtime open_runtime",
    "hearth.actors.loop": "ControlLoop",
    "hearth.actors.bus.loop_thread": "LoopIO",
    "hearth.api": (
        "Expect HaltStatus Plan PlanStep PlanSummary Session Step StepResult Task TaskEvent TaskResult expect step"
    ),
    "hearth.client.connection": "Client connect",
    "hearth.config.model": "Config load_config",
    "hearth.errors": (
        "ApprovalRequired ArtifactDamaged CarrierError ConfigError DeviceError EffectNotSeen Halted HearthError "
        "InterlockOpen InvalidParams JobFailed JobRejected LimitViolated LoopStopped PermissionDenied PlanStale "
        "ResourceBusy RpcError SessionInvalid TaskFailed TimedOut"
    ),
    "hearth.hcp.api": "JobEvent JobHandle JobResult",
    "hearth.hcp.capability": "Escalation Limit capability",
    "hearth.hcp.durable": "CapabilityFailed OutcomeUnknown ReplayMismatch SafetyViolation StepFailed",
    "hearth.hcp.inputs": "I2cAddress InputRefused Line Port",
    "hearth.loop": "LoopStats Sample",
    "hearth.tools": "Done Drive Preview StepContext Tool Undo Use",
}
"""Module -> the public names that it defines, separated by spaces; NAME=PUBLIC for one that is public by another."""
_FACES = ("aio", "sync")
"""Modules that are attributes: `hearth.sync` needs no import of its own."""
_PLACE_OF = {
    public or name: (module, name)
    for module, names in _HOME.items()
    for name, _, public in (entry.partition("=") for entry in names.split())
}

if not TYPE_CHECKING:  # type checkers take the imports above, and so see a misspelt name
    __all__ = ["__version__", *_FACES, *_PLACE_OF]  # noqa: PLE0604  they are strings

    def __getattr__(name: str) -> Any:
        if name in _FACES:
            return import_module(f"hearth.{name}")
        if name not in _PLACE_OF:
            from hearth._util.text import suggest

            near = suggest(name, __all__)
            raise AttributeError(f"module 'hearth' has no attribute {name!r}{near and f'; {near}'}")
        module, defined = _PLACE_OF[name]
        value = globals()[name] = getattr(import_module(module), defined)
        return value

    def __dir__() -> list[str]:
        return list(__all__)
