# The public names of hearth for type checkers; `__init__.py` loads each when it is first used. Clients and runtimes
# have the methods that extras add to them (`hearth.client.extension`).

import os
from contextlib import AbstractAsyncContextManager

from hearth import aio as aio, sync as sync
from hearth._version import __version__ as __version__
from hearth.actors.bridges.hcp.capability_api import Job as Job
from hearth.actors.bridges.hcp.execution import Answer as Answer
from hearth.actors.bus.loop_thread import LoopIO as LoopIO
from hearth.actors.embedded import EmbeddedRuntime as _EmbeddedRuntime
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
from hearth.client.connection import Client as _CoreClient
from hearth.client.jobs import JobsClient as _JobsClient
from hearth.config.model import Config as Config, load_config as load_config
from hearth.drivers.base import Style as _Style
from hearth.drivers.boards import Board as _Board
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
from hearth.transport.address import Address as _Address

class Client(_CoreClient, _JobsClient): ...
class Runtime(_EmbeddedRuntime, _JobsClient): ...

def connect(
    address: str | os.PathLike[str] | _Address | None = None, *, token: str | None = None
) -> AbstractAsyncContextManager[Client]: ...
def open_runtime(
    *, board: str | os.PathLike[str] | _Board = "sim", config: Config | None = None, style: _Style | None = None
) -> AbstractAsyncContextManager[Runtime]: ...
