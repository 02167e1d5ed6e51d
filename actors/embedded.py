"""A runtime in the caller's process: `async with hearth.open_runtime(board="sim") as runtime`.

The Session interface is that of the remote client, with the same policy, limits and audit: requests go to the same
session actors, and are answered through a slot, not through a socket.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import trio
from attrs import define, evolve, field

from hearth import extras
from hearth._util.exceptions import unwrapped
from hearth.actors.build import build_parts
from hearth.actors.events import EventReader, HistoryEnd
from hearth.actors.loop import ControlLoop, LoopSettings
from hearth.actors.mailbox import Slot
from hearth.actors.messages import CloseSession
from hearth.actors.runtime import Runtime
from hearth.client.events import Following, WholeFollowing
from hearth.client.extension import Extended
from hearth.client.session import ClientSession, SessionLink, TakeBack, require_trio, wrong_thread
from hearth.config.model import Config
from hearth.drivers.boards import Board
from hearth.errors import InvalidParams, MethodNotFound, ParseError, RpcError, from_wire
from hearth.policy.memory import SMALL
from hearth.policy.principal import embedded
from hearth.policy.rules import DEFAULT, RIGHTS, Match, PolicyEntry
from hearth.protocol.client import TaskOutcome, read_event, read_halt
from hearth.protocol.jsonrpc import require_depth
from hearth.protocol.known import read_params, with_ignored
from hearth.protocol.methods import METHODS, HaltNow, HaltQuery, SessionOpen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from hearth.actors.bus.loop_thread import LoopClock, LoopIO
    from hearth.actors.events import History
    from hearth.actors.messages import EventSink
    from hearth.actors.runtime import RuntimeParts
    from hearth.actors.service import OpenSession
    from hearth.actors.session import Session
    from hearth.api import HaltStatus, TaskEvent
    from hearth.client.extension import MessageLink
    from hearth.drivers.base import Style
    from hearth.loop import OnOverrun
    from hearth.policy.principal import Principal
    from hearth.protocol.methods import Params

log = logging.getLogger("hearth.journal")

EMBEDDED_POLICY = (
    PolicyEntry(
        name="embedded",
        match=Match(any=True),
        max_risk=2,
        max_risk_ceiling=3,
        rights=RIGHTS,
        rate={DEFAULT: "999999/s"},
    ),
)
"""The policy of an embedding program whose configuration has no [[policy]]: risk 3 only if a task asks for it.

It has no rates but those of the tools themselves: the program is the only caller, and sets the pace.
"""


class LocalFollower:
    """A receiver of one history. Implements `messages.EventSink`."""

    def __init__(self) -> None:
        self.gone = False
        self.log: History | None = None
        self._from_seq = 1
        self._reader: EventReader | None = None

    def follow(self, log: History, from_seq: int | None) -> None:
        """See EventSink."""
        if not self.gone:
            self.log, self._from_seq = log, 1 if from_seq is None else from_seq

    async def next(self) -> Mapping[str, Any] | None:
        """Return the next event, or None after the last."""
        if self._reader is None:
            # Only now: a caller that waits for the end alone is not to be woken for each event.
            assert self.log is not None, "read before the subscription"
            self._reader = EventReader(self.log, self._from_seq)
        return None if self._reader.gone else await anext(self._reader, None)

    def unfollow(self, log: History) -> None:
        """See EventSink."""
        self.close()

    def close(self) -> None:
        """Read no more."""
        self.gone = True
        if self._reader is not None:
            self._reader.close()


class LocalLink(SessionLink):
    """Methods and events of one embedded session."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime = runtime
        self._principal = principal
        self._thread = threading.get_ident()
        self._of_job = False

    async def open(
        self, opening: SessionOpen, tools: frozenset[str] | None = None, halts: int | None = None
    ) -> Mapping[str, Any]:
        """Call session.open, the one method without a session; with `tools` and `halts`, for a job."""
        request = LocalRequest(opening, LocalFollower())
        self._of_job = tools is not None
        session = self._runtime.open_session(self._principal, opening, request, tools, halts)
        try:
            opened: Mapping[str, Any] = await request.slot.get()
        except BaseException:
            # The caller has no session id, so no later call could close this session.
            session.post(CloseSession("its client never learned of it"))
            raise
        return opened

    async def call(
        self, method: str, params: Mapping[str, Any], *, compensate: TakeBack | None = None
    ) -> Mapping[str, Any]:
        """See SessionLink."""
        return await self._ask(method, params, compensate=compensate)

    async def begin(
        self, method: str, params: Mapping[str, Any], *, compensate: TakeBack | None = None
    ) -> tuple[Mapping[str, Any], WholeFollowing | None]:
        """See SessionLink."""
        following = LocalFollowing(self, {})
        follower = following.follower
        try:
            answer = await self._ask(method, {**params, "subscribe": True}, follower, compensate=compensate)
        except BaseException:
            follower.close()
            raise
        return answer, None if follower.log is None else following

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """See SessionLink."""
        with suppress(RpcError):
            self._session(params["session_id"]).post(LocalRequest(METHODS[method](params)))

    async def _ask(
        self,
        method: str,
        params: Mapping[str, Any],
        follower: EventSink | None = None,
        *,
        compensate: TakeBack | None = None,
    ) -> Mapping[str, Any]:
        if threading.get_ident() != self._thread:
            raise wrong_thread("session")
        # Encode and parse, as on a wire: later changes by the caller cannot reach the accepted request, and values
        # that are not JSON are refused with the same error.
        data = dumps(params)
        read, ignored = read_params(method, orjson.loads(data))
        request = LocalRequest(read, follower, ignored)
        if isinstance(read, (HaltNow, HaltQuery)):
            self._runtime.halts(self._principal, request, params.get("session_id"))
        else:
            session = self._session(params["session_id"])
            (session.ask if len(data) <= SMALL else session.post)(request)
        try:
            if request.slot.filled:
                # Answered at once. A caller that is cancelled gets no answer all the same.
                await trio.lowlevel.checkpoint()
            value = await request.slot.get()
        except BaseException:
            if compensate is not None:

                def abandoned(value: Any) -> None:
                    undo = compensate(value)
                    if undo is not None:
                        self.notify(*undo)

                request.abandoned = abandoned
                if request.slot.filled:
                    with suppress(RpcError):
                        abandoned(request.slot.get_nowait())
            raise
        answer: Mapping[str, Any] = orjson.loads(value if type(value) is bytes else orjson.dumps(value))
        return answer

    async def subscribe(self, params: Mapping[str, Any], follower: EventSink) -> None:
        """Subscribe `follower` to a task's history."""
        await self._ask("task.events.subscribe", params, follower)

    async def begin_observing(self, params: Mapping[str, Any], follower: EventSink) -> None:
        """Subscribe `follower` to the runtime's events."""
        await self._ask("observe.subscribe", params, follower)

    def observe(self, params: Mapping[str, Any]) -> Following[Mapping[str, Any]]:
        """See SessionLink."""
        return LocalObserving(self, params)

    def _session(self, session_id: str) -> Session:
        return self._runtime.find_session(session_id, self._principal.key, of_job=self._of_job)

    def follow(self, session_id: str, task_id: str, from_seq: int) -> Following[TaskEvent]:
        """See SessionLink."""
        return LocalFollowing(self, {"session_id": session_id, "task_id": task_id, "from_seq": from_seq})


class LocalFollowing(WholeFollowing):
    """A task's history, read in the same process."""

    def __init__(self, link: LocalLink, params: Mapping[str, Any]) -> None:
        self._link = link
        self._params = params
        self.follower = LocalFollower()

    async def start(self) -> None:
        """See Following."""
        await self._link.subscribe(self._params, self.follower)

    async def next(self) -> TaskEvent | None:
        """See Following."""
        params = await self.follower.next()
        return None if params is None else read_event(params)

    async def outcome(self) -> TaskOutcome | None:
        """See WholeFollowing."""
        log = self.follower.log
        assert log is not None, "asked before the subscription"
        if not log.ended:
            await HistoryEnd(log).wait()
        outcome = TaskOutcome()
        for line in log.lines(1, log.last_seq)[0]:
            outcome.take(read_event(orjson.loads(line)["params"]))
        return outcome

    def close(self) -> None:
        """See Following."""
        self.follower.close()


class LocalObserving(Following["Mapping[str, Any]"]):
    """The runtime's events, read in the same process."""

    def __init__(self, link: LocalLink, params: Mapping[str, Any]) -> None:
        self._link = link
        self._params = params
        self._follower = LocalFollower()

    async def start(self) -> None:
        """See Following."""
        await self._link.begin_observing(self._params, self._follower)

    async def next(self) -> Mapping[str, Any] | None:
        """See Following."""
        return await self._follower.next()

    def close(self) -> None:
        """See Following."""
        self._follower.close()


class EmbeddedRuntime(Extended):
    """A running runtime, in this process."""

    def __init__(self, runtime: Runtime, principal: Principal, background: trio.Nursery | None = None) -> None:
        self._runtime = runtime
        self._principal = principal
        self._thread = threading.get_ident()
        self._background = background
        """Runs the connection for the messages of extras; None if they are not taken from here."""
        self._link: MessageLink | None = None

    def message_link(self) -> MessageLink:
        """See Extended."""
        if self._background is None:
            raise MethodNotFound("this runtime delegates no jobs")
        if self._link is not None:
            return self._link
        made = extras.local_link(self._runtime, self._principal)
        if self._background.cancel_scope.cancel_called:
            made.close()
        else:
            self._background.start_soon(made.run)
        link: MessageLink = made
        self._link = link
        return link

    @property
    def audit_path(self) -> Path:
        """The path of the audit log."""
        return self._runtime.parts.journal.settings.path

    @property
    def board(self) -> Board:
        """The board; on a simulated one, its drivers are the test bench: `runtime.board.drivers["gpio:sim"]`."""
        return self._runtime.parts.board

    async def halt(self, reason: str = "") -> HaltStatus:
        """Halt the runtime; needs no session. See `hearth.api.Session.halt`."""
        return read_halt(await LocalLink(self._runtime, self._principal).call("halt", {"reason": reason}))

    def health(self) -> Mapping[str, Any]:
        """Return the state of every bus and of the audit log."""
        return self._runtime.health()

    @asynccontextmanager
    async def open_session(
        self,
        *,
        client_name: str | None = None,
        client_version: str | None = None,
        heartbeat_ms: int | None = None,
        conversation: bool = False,
    ) -> AsyncIterator[ClientSession]:
        """Open a session; at the end close it: its tasks are cancelled and its outputs made safe.

        Raises PermissionDenied, QueueFull or ShuttingDown.
        """
        if threading.get_ident() != self._thread:
            raise wrong_thread("runtime")
        params: dict[str, Any] = {"client_name": client_name, "client_version": client_version}
        params |= {"heartbeat_ms": heartbeat_ms, "conversation": conversation}
        async with _opened(self._runtime, self._principal, params) as session:
            yield session

    @asynccontextmanager
    async def loop(
        self,
        hz: float,
        function: Callable[[LoopIO], object],
        *,
        lines: Sequence[int | str],
        inputs: Sequence[int | str] = (),
        chip: str | None = None,
        name: str = "loop",
        on_overrun: OnOverrun = "skip",
        watchdog_ms: float = 250,
        realtime: bool = True,
        telemetry: int = 1024,
        clock: LoopClock | None = None,
    ) -> AsyncIterator[ControlLoop]:
        """Run `function(io)` `hz` times a second in a thread of its own, until the block ends or the loop does.

        It drives the output `lines` of one GPIO chip, and reads `inputs` and `lines`; nothing else uses these outputs
        meanwhile. At each end they go to their safe states. Where it is permitted and `realtime` is true the thread
        has SCHED_FIFO. A period that was missed is skipped, or stops the loop (`on_overrun`). A run that makes no
        progress for `watchdog_ms` beyond a period ends the loop. `telemetry` emitted values are kept for
        `ControlLoop.telemetry`. `clock` is for tests.

        Raises what a task with a gpio.set of each line would be refused with (PermissionDenied, ApprovalRequired,
        Halted, ResourceBusy, AuditUnavailable), InvalidParams, and LoopStopped at the end of the block if the loop has
        ended by itself.
        """
        settings = LoopSettings(
            name=name,
            hz=hz,
            lines=tuple(lines),
            inputs=tuple(inputs),
            chip=chip,
            on_overrun=on_overrun,
            watchdog_ms=watchdog_ms,
            realtime=realtime,
            telemetry=telemetry,
        )
        runtime = self._runtime
        parts = runtime.parts
        loop = ControlLoop.on(settings, function, parts.board, runtime.buses, parts.journal, runtime.interlocks, clock)
        async with self.open_session(client_name=name) as session:
            await self._begin(loop, session)
            try:
                yield loop
            finally:
                with trio.CancelScope(shield=True):
                    await loop.stop()
        loop.raise_if_failed()

    async def _begin(self, loop: ControlLoop, session: ClientSession) -> None:
        """Submit a loop's task, and wait until it has been granted its lines. Raises RpcError."""
        # It follows its own task: a session that is followed is not idle.
        follower = LocalFollower()
        request = LocalRequest(loop.submission(dumps), follower)
        self._runtime.find_session(session.session_id, self._principal.key).post(request)
        await request.slot.get()
        while (event := await follower.next()) is not None:
            if event["phase"] == "progress":
                return
            if event["phase"] in ("finish", "task_finish"):
                why = event.get("error") or f"the task of the control loop has ended: {event.get('status')}"
                raise from_wire({"code": event.get("error_code"), "message": why, "data": event.get("error_data")})

    def attach(self, session_id: str) -> ClientSession:
        """Return a session of this process that was opened elsewhere; its opener closes it."""
        return ClientSession(LocalLink(self._runtime, self._principal), {"session_id": session_id})


@asynccontextmanager
async def _opened(
    runtime: Runtime,
    principal: Principal,
    params: Mapping[str, Any],
    tools: frozenset[str] | None = None,
    halts: int | None = None,
) -> AsyncIterator[ClientSession]:
    """Open a session of this process, close it at the end; `tools` and `halts` are as for `Runtime.open_session`."""
    opening = METHODS["session.open"](params)
    assert isinstance(opening, SessionOpen)
    link = LocalLink(runtime, principal)
    session = ClientSession(link, await link.open(opening, tools, halts))
    try:
        yield session
    finally:
        await close_quietly(session)


def job_sessions(runtime: Runtime) -> OpenSession:
    """Return the function with which a job (HCP) opens the session of its steps, for its caller's principal."""

    def open_session(
        principal: Principal, client_name: str, tools: frozenset[str], halts: int, *, conversation: bool = False
    ) -> AbstractAsyncContextManager[ClientSession]:
        return _opened(runtime, principal, {"client_name": client_name, "conversation": conversation}, tools, halts)

    return open_session


async def close_quietly(session: ClientSession) -> None:
    """Close a session that may have ended already, also in a task that is cancelled."""
    if not session.closed:
        # Bounded by the session's own grace; a cancelled program must still leave its outputs safe.
        with trio.CancelScope(shield=True):
            try:
                await session.close()
            except RpcError:
                session.closed = True


def open_runtime(
    *,
    board: str | os.PathLike[str] | Board = "sim",
    config: Config | None = None,
    style: Style | None = None,
) -> AbstractAsyncContextManager[EmbeddedRuntime]:
    """Run a hearth in this process: `board` is a profile's name or path, or a Board; `config` is as for hearthd.

    If the configuration names no audit log, one is written to a new file in the temporary directory, named by
    `audit_path`. Raises ConfigError before anything runs, and RuntimeError outside Trio. An exception of the body is
    raised as it is.
    """
    require_trio("open_runtime")
    return _running(board, config, style)


@asynccontextmanager
async def _running(
    board: str | os.PathLike[str] | Board, config: Config | None, style: Style | None
) -> AsyncIterator[EmbeddedRuntime]:
    parts = embedded_parts(board, config, style)
    async with serve_parts(open_all(parts)) as runtime:
        yield runtime


def embedded_parts(
    board: str | os.PathLike[str] | Board, config: Config | None = None, style: Style | None = None
) -> RuntimeParts:
    """Return the parts that `open_runtime` runs, before anything of them is open. Raises ConfigError, TypeError."""
    config = config or Config()
    if isinstance(board, os.PathLike):
        # Without a "/" it would be taken for the name of a shipped profile.
        board = str(Path(board).absolute())
    if not isinstance(board, str | Board):
        # It would be the board of the configuration, by default a simulated one.
        raise TypeError(
            f"board: expected a profile's name or path, or a Board (open_board), got {type(board).__name__}"
        )
    if config.audit.path is None:
        directory = Path(tempfile.mkdtemp(prefix=f"hearth-{os.getpid()}-"))
        config = evolve(config, audit=evolve(config.audit, path=directory / "audit.log", reserve_bytes=0))
    if isinstance(board, str):
        config = evolve(config, board=evolve(config.board, profile=board))
    return build_parts(
        config, default_policy=EMBEDDED_POLICY, board=board if isinstance(board, Board) else None, style=style
    )


def open_all(parts: RuntimeParts) -> RuntimeParts:
    """Lock and repair the files of the last run; return the parts. Blocking. Raises ConfigError."""
    for note in parts.open_records():
        log.warning("%s", note)
    return parts


@asynccontextmanager
async def serve_parts(parts: RuntimeParts) -> AsyncIterator[EmbeddedRuntime]:
    """Run the parts of a runtime in this process, once `open_all` has opened them."""
    with ExitStack() as closed:
        for owned in (*parts.extras.values(), parts.launcher):
            if owned is not None:
                closed.enter_context(closing(owned))
        async with unwrapped() as body, Runtime(parts).serve() as runtime, trio.open_nursery() as nursery:
            async with runtime.serve_extras(job_sessions(runtime)), body.watched():
                yield EmbeddedRuntime(runtime, embedded(), nursery)
            nursery.cancel_scope.cancel()


# --- requests of this process


@define(eq=False)
class LocalRequest:
    """A request of this process, answered through its slot. Implements `messages.Request`."""

    params: Params
    follower: EventSink | None = None
    ignored: tuple[str, ...] = ()
    halts: int = 0
    slot: Slot[Any] = field(factory=Slot, init=False)
    abandoned: Callable[[Any], None] | None = field(default=None, init=False)
    """Set when the caller has gone: called with the result, to take it back."""

    def result(self, value: Any) -> None:
        """See Request."""
        value = with_ignored(value, self.ignored)
        self.slot.fill(value)
        if self.abandoned is not None:
            self.abandoned(value)

    def error(self, error: RpcError) -> None:
        """See Request."""
        self.slot.fail(error)


def dumps(params: Mapping[str, Any]) -> bytes:
    """Return a caller's parameters as JSON. Raises InvalidParams for values that are not JSON, or nested too deep."""
    try:
        require_depth(params)
        return orjson.dumps(params)
    except ParseError as error:
        raise InvalidParams(data=error.data) from None
    except orjson.JSONEncodeError as error:
        raise InvalidParams(f"Invalid params: not JSON: {error}", data={"reason": str(error)}) from None
