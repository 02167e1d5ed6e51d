"""hearth for programs without an event loop: scripts, threads and notebooks.

`connect` and `open_runtime` return an open `Client` or `Runtime`. All methods are those of the Trio interface without
`await`: they block the calling thread. Several threads may use an object at once, but an iterator of events belongs to
one. KeyboardInterrupt ends a wait, never a transaction that has begun on a bus. What is open when the program ends is
closed then: tasks are cancelled, and outputs go to their safe state. A session, client or runtime that is
garbage-collected is closed with a ResourceWarning, unless an object made from it is in use.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from hearth import api, namespaces
from hearth._util.portal import EventsFace, Face, OwningFace, Portal, block
from hearth.client.connection import Client as TrioClient, connect as trio_connect
from hearth.client.jobs import JobsClient
from hearth.client.session import ClientSession
from hearth.hcp import api as hcp_api

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from types import TracebackType
    from typing import Literal, Self, Unpack

    from hearth._util.portal import Held
    from hearth.actors.bus.loop_thread import LoopIO
    from hearth.actors.embedded import EmbeddedRuntime
    from hearth.actors.loop import ControlLoop
    from hearth.config.model import Config
    from hearth.drivers.base import Style
    from hearth.drivers.boards import Board
    from hearth.hcp.messages import State, TaskAccepted
    from hearth.loop import LoopArguments, LoopStats, Sample
    from hearth.transport.address import Address

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")

__all__ = ["Client", "Events", "Job", "Loop", "Runtime", "Session", "Task", "connect", "open_runtime"]


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the method that calls this one of the Trio object and blocks until it returns."""
    name = method.__name__

    @functools.wraps(method)
    def blocking(self: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = block(self._call(name, args, kwargs))
        return result

    return blocking


def _making(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], kind: Callable[[Face[Any], T], W]
) -> Callable[Concatenate[Any, P], W]:
    """Return a method as `_blocking`, whose result gets a face of its own."""
    call = _blocking(method)

    @functools.wraps(method)
    def making(self: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return kind(self, call(self, *args, **kwargs))

    return making


class Events(EventsFace[T], Iterator[T]):
    """An iterator over the events of a task or a job; `close` or the end of the object ends its subscription."""

    def __next__(self) -> T:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def next(self, timeout: float | None = None) -> T | None:
        """Return the next event, or None after the last; raise TimeoutError after `timeout` seconds, which loses none.

        Raises CarrierError when the connection ends.
        """
        coming = self._next()
        coming.outcome.exception(timeout)
        return self._taken(coming)

    def close(self) -> None:
        """End the subscription."""
        self._end()


class Task(Face[api.Task]):
    """A submitted task; see `hearth.Task`."""

    @property
    def task_id(self) -> str:
        """The identifier that task.submit returned."""
        return self._inner.task_id

    def events(self, *, from_seq: int = 1) -> Events[api.TaskEvent]:
        """Return an iterator over the events from `from_seq` on, which ends after `task_finish`."""
        return Events(self, partial(self._inner.events, from_seq=from_seq))

    def wait(self, timeout: float | None = None) -> api.TaskResult:
        """Wait until the task is terminal and return its result; does not raise for a failed task.

        Raises TimeoutError after `timeout` seconds; the task goes on.
        """
        return block(self._portal.call(self._inner.wait), timeout)

    get = _blocking(api.Task.get)
    cancel = _blocking(api.Task.cancel)


class BlockingGpio(Face[namespaces.GpioNamespace]):
    """GPIO lines; see `hearth.namespaces.GpioNamespace`."""

    get = _blocking(namespaces.GpioNamespace.get)
    set = _blocking(namespaces.GpioNamespace.set)
    pulse = _blocking(namespaces.GpioNamespace.pulse)
    watch = _blocking(namespaces.GpioNamespace.watch)


class BlockingI2c(Face[namespaces.I2cNamespace]):
    """I2C devices; see `hearth.namespaces.I2cNamespace`."""

    read = _blocking(namespaces.I2cNamespace.read)
    write = _blocking(namespaces.I2cNamespace.write)
    transfer = _blocking(namespaces.I2cNamespace.transfer)
    scan = _blocking(namespaces.I2cNamespace.scan)


class BlockingUart(Face[namespaces.UartNamespace]):
    """Serial ports; see `hearth.namespaces.UartNamespace`."""

    read = _blocking(namespaces.UartNamespace.read)
    write = _blocking(namespaces.UartNamespace.write)
    exchange = _blocking(namespaces.UartNamespace.exchange)


class BlockingPwm(Face[namespaces.PwmNamespace]):
    """PWM channels and servos; see `hearth.namespaces.PwmNamespace`."""

    get = _blocking(namespaces.PwmNamespace.get)
    set = _blocking(namespaces.PwmNamespace.set)
    off = _blocking(namespaces.PwmNamespace.off)
    move = _blocking(namespaces.PwmNamespace.move)


class BlockingDac(Face[namespaces.DacNamespace]):
    """Channels of converters (DAC); see `hearth.namespaces.DacNamespace`."""

    get = _blocking(namespaces.DacNamespace.get)
    set = _blocking(namespaces.DacNamespace.set)


class BlockingSpi(Face[namespaces.SpiNamespace]):
    """SPI devices; see `hearth.namespaces.SpiNamespace`."""

    transfer = _blocking(namespaces.SpiNamespace.transfer)
    read = _blocking(namespaces.SpiNamespace.read)
    write = _blocking(namespaces.SpiNamespace.write)


class BlockingCan(Face[namespaces.CanNamespace]):
    """CAN buses; see `hearth.namespaces.CanNamespace`."""

    send = _blocking(namespaces.CanNamespace.send)
    read = _blocking(namespaces.CanNamespace.read)
    watch = _blocking(namespaces.CanNamespace.watch)
    isotp = _blocking(namespaces.CanNamespace.isotp)


class BlockingModbus(Face[namespaces.ModbusNamespace]):
    """Modbus devices; see `hearth.namespaces.ModbusNamespace`."""

    read = _blocking(namespaces.ModbusNamespace.read)
    read_many = _blocking(namespaces.ModbusNamespace.read_many)
    write = _blocking(namespaces.ModbusNamespace.write)


class BlockingFiles(Face[namespaces.FilesNamespace]):
    """Files; see `hearth.namespaces.FilesNamespace`."""

    listdir = _blocking(namespaces.FilesNamespace.listdir)
    stat = _blocking(namespaces.FilesNamespace.stat)
    read = _blocking(namespaces.FilesNamespace.read)
    write = _blocking(namespaces.FilesNamespace.write)


class BlockingSensors(Face[namespaces.SensorsNamespace]):
    """Sensors; see `hearth.namespaces.SensorsNamespace`."""

    names = _blocking(namespaces.SensorsNamespace.names)
    read = _blocking(namespaces.SensorsNamespace.read)
    capture = _blocking(namespaces.SensorsNamespace.capture)


class BlockingSignals(Face[namespaces.SignalsNamespace]):
    """Signals; see `hearth.namespaces.SignalsNamespace`."""

    list = _blocking(namespaces.SignalsNamespace.list)
    read = _blocking(namespaces.SignalsNamespace.read)
    set = _blocking(namespaces.SignalsNamespace.set)
    watch = _blocking(namespaces.SignalsNamespace.watch)


class Session(OwningFace[ClientSession]):
    """An open session; see `hearth.Session`. The end of its `with` block, or `close`, closes it."""

    @property
    def session_id(self) -> str:
        """The identifier that session.open returned."""
        return self._inner.session_id

    @property
    def capabilities(self) -> Sequence[str]:
        """The capability flags that the policy lets this session use."""
        return self._inner.capabilities

    @property
    def gpio(self) -> BlockingGpio:
        """GPIO lines: `session.gpio.set("LED", 1)`."""
        return BlockingGpio(self, self._inner.gpio)

    @property
    def i2c(self) -> BlockingI2c:
        """I2C devices: `session.i2c.read(1, 0x48, reg=0, length=2)` returns bytes."""
        return BlockingI2c(self, self._inner.i2c)

    @property
    def uart(self) -> BlockingUart:
        """Serial ports: `session.uart.read("uart0", length=64)` returns bytes."""
        return BlockingUart(self, self._inner.uart)

    @property
    def pwm(self) -> BlockingPwm:
        """PWM channels and servos: `session.pwm.set("FAN", duty=0.5)`, `session.pwm.move("ARM", 45)`."""
        return BlockingPwm(self, self._inner.pwm)

    @property
    def dac(self) -> BlockingDac:
        """DAC channels: `session.dac.set("LEVEL", 1.5)` brings one to 1.5 volts, or what its unit is."""
        return BlockingDac(self, self._inner.dac)

    @property
    def spi(self) -> BlockingSpi:
        """SPI devices: `session.spi.transfer("FLASH", command)` returns as many bytes."""
        return BlockingSpi(self, self._inner.spi)

    @property
    def can(self) -> BlockingCan:
        """CAN buses: `session.can.send("can0", "FAN_COMMAND", {"Speed": 40})`, `session.can.read("can0")`."""
        return BlockingCan(self, self._inner.can)

    @property
    def modbus(self) -> BlockingModbus:
        """Modbus devices: `session.modbus.read("FAN", "speed")`, `session.modbus.write("FAN", "speed", 12.5)`."""
        return BlockingModbus(self, self._inner.modbus)

    @property
    def files(self) -> BlockingFiles:
        """Files on the machine of the daemon: `session.files.read("/srv/notes.txt")` returns bytes."""
        return BlockingFiles(self, self._inner.files)

    @property
    def sensors(self) -> BlockingSensors:
        """Sensors: `session.sensors.read("temperature")` returns a `SensorReading`."""
        return BlockingSensors(self, self._inner.sensors)

    @property
    def signals(self) -> BlockingSignals:
        """Signals: `session.signals.set("PUMP", 1)` sets whatever the board names so."""
        return BlockingSignals(self, self._inner.signals)

    tools = _blocking(api.Session.tools)
    call = _blocking(api.Session.call)
    run = _blocking(api.Session.run)
    submit = _making(api.Session.submit, Task)
    task = _making(api.Session.task, Task)
    halt = _blocking(api.Session.halt)
    halt_status = _blocking(api.Session.halt_status)
    reset_halt = _blocking(api.Session.reset_halt)
    observe_state = _blocking(api.Session.observe_state)
    observe_audit = _blocking(api.Session.observe_audit)
    attest_quote = _blocking(api.Session.attest_quote)
    attest_key = _blocking(api.Session.attest_key)

    def observe(self, *, stream: str | None = None, from_seq: int | None = None) -> Events[Mapping[str, Any]]:
        """Return an iterator over the runtime's events; see `hearth.Session`."""
        return Events(self, partial(self._inner.observe, stream=stream, from_seq=from_seq))

    prepare = _blocking(api.Session.prepare)
    execute = _making(api.Session.execute, Task)
    plans = _blocking(api.Session.plans)
    plan = _blocking(api.Session.plan)
    approve = _blocking(api.Session.approve)
    reject = _blocking(api.Session.reject)
    grant_approval = _blocking(api.Session.grant_approval)
    standing_approvals = _blocking(api.Session.standing_approvals)
    revoke_approval = _blocking(api.Session.revoke_approval)

    def close(self) -> int:
        """Close the session; return the number of its tasks that have not ended yet."""
        try:
            yielding: int = block(self._call("close", (), {}))
        finally:
            block(self._end())
        return yielding

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block(self._end())


class Loop(Face["ControlLoop"]):
    """A control loop; see `hearth.ControlLoop`. The end of its `with` block, or `stop`, ends it."""

    @property
    def name(self) -> str:
        """The name of the loop, in records and messages."""
        return self._inner.name

    @property
    def ended(self) -> str | None:
        """The reason why the loop has ended; None while it runs."""
        return self._inner.ended

    def stats(self) -> LoopStats:
        """Return counts and the histogram of lateness."""
        return self._inner.stats()

    def telemetry(self) -> Events[Sample]:
        """Return an iterator over the values that the function emits; see `hearth.ControlLoop`."""
        return Events(self, self._inner.telemetry)

    def wait(self, timeout: float | None = None) -> LoopStats:
        """Wait until the loop has ended and its outputs are safe; return its last counts.

        Raises TimeoutError after `timeout` seconds; the loop goes on.
        """
        return block(self._portal.call(self._inner.wait), timeout)

    def stop(self) -> LoopStats:
        """End the loop, make its outputs safe, and return its last counts. Raises LoopStopped if it ended by itself."""
        stats = block(self._portal.call(self._inner.stop))
        block(self._end())
        return stats

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block(self._end())


class Job(Face[hcp_api.JobHandle]):
    """A submitted and accepted job; see `hearth.JobHandle`."""

    @property
    def session_id(self) -> str:
        """The identifier of the job on any connection of the same principal."""
        return self._inner.session_id

    @property
    def accepted(self) -> TaskAccepted | None:
        """The terms of acceptance; None for a job that was attached to later."""
        return self._inner.accepted

    @property
    def state(self) -> State:
        """The newest state that the job's messages have reported."""
        return self._inner.state

    @property
    def last_processed_sequence(self) -> int:
        """The number of the newest event that arrived in order."""
        return self._inner.last_processed_sequence

    def events(self, *, from_sequence: int | None = None) -> Events[hcp_api.JobEvent]:
        """Return an iterator over the events from `from_sequence` on (default: from the attachment on)."""
        return Events(self, partial(self._inner.events, from_sequence=from_sequence))

    def wait(self, timeout: float | None = None) -> hcp_api.JobResult:
        """Wait until the job has ended; does not raise for one that failed. Raises CarrierError.

        Raises TimeoutError after `timeout` seconds; the job goes on.
        """
        return block(self._portal.call(self._inner.wait), timeout)

    abort = _blocking(hcp_api.JobHandle.abort)


class _Opener(OwningFace[T]):
    """A connection or a runtime: what a portal runs around."""

    def _open(self, manager: Callable[[], AbstractAsyncContextManager[ClientSession]]) -> Session:
        held: Held[ClientSession] = self._portal.enter(manager)
        return Session(self, block(held.entering()), held)

    def attach(self, session_id: str) -> Session:
        """Return a session of the same principal that was opened elsewhere, and is closed there."""
        return Session(self, block(self._look(methodcaller("attach", session_id))))

    halt = _blocking(TrioClient.halt)
    delegate = _making(JobsClient.delegate, Job)
    hand_over = _making(JobsClient.hand_over, Job)
    attach_job = _making(JobsClient.attach_job, Job)
    capabilities = _blocking(JobsClient.capabilities)
    jobs = _blocking(JobsClient.jobs)
    withdraw = _blocking(JobsClient.withdraw)
    pending_approvals = _blocking(JobsClient.pending_approvals)
    decide = _blocking(JobsClient.decide)
    artifact = _blocking(JobsClient.artifact)
    artifact_to = _blocking(JobsClient.artifact_to)

    def close(self) -> None:
        """Close every session that is open here, and then this; calls of other threads raise CarrierError."""
        block(self._portal.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(_Opener[TrioClient]):
    """A connection to a daemon; see `hearth.Client`. The end of its `with` block, or `close`, closes it."""

    def open_session(
        self,
        *,
        client_name: str | None = None,
        client_version: str | None = None,
        on_disconnect: Literal["keep", "close"] = "close",
        heartbeat_ms: int | None = None,
        conversation: bool = False,
    ) -> Session:
        """Open a session (draft §3.1). Raises PermissionDenied, QueueFull, ShuttingDown or CarrierError."""
        return self._open(
            partial(
                self._inner.open_session,
                client_name=client_name,
                client_version=client_version,
                on_disconnect=on_disconnect,
                heartbeat_ms=heartbeat_ms,
                conversation=conversation,
            )
        )


class Runtime(_Opener[Any]):
    """A running runtime, in this process; see `hearth.Runtime`. The end of its `with` block, or `close`, ends it."""

    _inner: EmbeddedRuntime

    @property
    def audit_path(self) -> Path:
        """The path of the audit log."""
        return self._inner.audit_path

    def health(self) -> Mapping[str, Any]:
        """Return the state of every bus and of the audit log."""
        return block(self._look(methodcaller("health")))

    def open_session(
        self,
        *,
        client_name: str | None = None,
        client_version: str | None = None,
        heartbeat_ms: int | None = None,
        conversation: bool = False,
    ) -> Session:
        """Open a session. Raises PermissionDenied, QueueFull or ShuttingDown."""
        return self._open(
            partial(
                self._inner.open_session,
                client_name=client_name,
                client_version=client_version,
                heartbeat_ms=heartbeat_ms,
                conversation=conversation,
            )
        )

    def loop(
        self,
        hz: float,
        function: Callable[[LoopIO], object],
        *,
        lines: Sequence[int | str],
        **arguments: Unpack[LoopArguments],
    ) -> Loop:
        """Run a control loop: `with runtime.loop(100, control, lines=["PUMP"]) as loop:`.

        The arguments are those of `hearth.Runtime.loop`, which says what is raised.
        """
        held: Held[ControlLoop] = self._portal.enter(partial(self._inner.loop, hz, function, lines=lines, **arguments))
        return Loop(self, block(held.entering()), held)


def connect(address: str | os.PathLike[str] | Address | None = None, *, token: str | None = None) -> Client:
    """Connect to a daemon and return the open client: `with hearth.sync.connect("ssh://pi") as client:`.

    The arguments are those of `hearth.connect`. Raises CarrierError if no daemon answers, and ConfigError for an
    address, a key or a token that cannot be used.
    """
    portal = Portal("hearth.sync.connect")
    return Client(portal, block(portal.open(partial(trio_connect, address, token=token))))


def open_runtime(
    *, board: str | os.PathLike[str] | Board = "sim", config: Config | None = None, style: Style | None = None
) -> Runtime:
    """Run a hearth in a thread of this process: `with hearth.sync.open_runtime(board="rpi5") as runtime:`.

    The arguments are those of `hearth.open_runtime`. Raises ConfigError before anything runs.
    """
    from hearth.actors.embedded import open_runtime as trio_open_runtime

    portal = Portal("hearth.sync.open_runtime")
    return Runtime(portal, block(portal.open(partial(trio_open_runtime, board=board, config=config, style=style))))
