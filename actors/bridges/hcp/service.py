"""The desk: where whole jobs are handed in, over any carrier, and asked about afterwards (HCP; decision 0076).

It reads each message, finds out whose business it is, and answers every one of them exactly once. A task_submit gets an
actor of its own (`submission`), which lives on as the job: nobody waits here for anybody, and a caller that goes takes
nothing with it. The desk owns which jobs there are; what is remembered is the book's.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

import orjson
import trio
from attrs import frozen

from hearth.actors.bridges.hcp.approvals import Approvals
from hearth.actors.bridges.hcp.artifacts import ArtifactStore, StoreError
from hearth.actors.bridges.hcp.event_stream import EventWriter, MessageLog
from hearth.actors.bridges.hcp.execution import checkpoint_id
from hearth.actors.bridges.hcp.finish import AFTER_ABORT
from hearth.actors.bridges.hcp.job import Cut
from hearth.actors.bridges.hcp.methods import Methods
from hearth.actors.bridges.hcp.rejections import (
    crashed,
    no_memory,
    no_policy,
    not_for_callers,
    reused,
    session_ended,
    shutting_down,
    unknown_session,
    wrong_token,
)
from hearth.actors.bridges.hcp.services import Services
from hearth.actors.bridges.hcp.store import Book, BookError
from hearth.actors.bridges.hcp.submission import Rooms, Submission
from hearth.actors.supervisor import contain
from hearth.audit.record import digest as digest_of
from hearth.errors import InternalError, ShuttingDown
from hearth.hcp.codec import (
    TYPES,
    MessageError,
    dump,
    message as message_of,
    message_id_of,
    read_message,
    write_payload,
)
from hearth.hcp.durable import unknown as unknown_of
from hearth.hcp.messages import Abort, ErrorDetails, Rejection, TaskFailed, TaskSubmit
from hearth.hcp.report import summary
from hearth.hcp.safety import allowance
from hearth.hcp.token import TokenError
from hearth.policy.memory import JOB_BYTES
from hearth.policy.rules import Rate
from hearth.protocol.size import parsed_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from hearth.actors.bridges.hcp.job import RunningJob
    from hearth.actors.bridges.hcp.services import OpenSession
    from hearth.actors.bridges.hcp.store.queries import SessionRow
    from hearth.actors.messages import Ask, Letter, Reading
    from hearth.actors.runtime import Runtime, RuntimeParts
    from hearth.hcp.messages import Message, ReasonCode
    from hearth.hcp.safety import Allowance
    from hearth.policy.principal import Principal

# --- Made of a runtime's parts, and kept while they last: the job store, the artifact store and the desk
#
# What is slow to import is imported by this module, which nobody imports before there is something to do.

@frozen(eq=False)
class Furniture:
    """What jobs are remembered in, opened."""

    book: Book
    store: ArtifactStore
    notes: tuple[str, ...]
    """For a person, one line each."""


def furnish(parts: RuntimeParts, directory: Path) -> Furniture:
    """Lock and repair what the last run's jobs left, or begin anew. Blocking. Raises ConfigError."""
    durability = parts.journal.settings.durability
    book = Book(directory, durability=durability, clock=parts.clock)
    store = ArtifactStore(
        directory,
        book,
        most_each=parts.hcp.max_artifact_bytes,
        most_all=parts.hcp.max_artifacts_bytes,
        durability=durability,
    )
    return Furniture(book, store, (*book.open(), *store.open()))


async def keep_house(
    furniture: Furniture,
    runtime: Runtime,
    open_session: OpenSession,
    opened: Callable[[HcpDesk], None],
    over: trio.Event,
) -> None:
    """Keep a desk until it is over; `opened` is told of it once what the last run left without an end has one."""
    parts, book = runtime.parts, furniture.book
    services = Services(
        capabilities=parts.capabilities,
        settings=parts.hcp,
        policy=parts.policy,
        registry=parts.registry,
        journal=parts.journal,
        book=book,
        store=furniture.store,
        open_session=open_session,
        line_name=parts.board.line_name,
        port_name=parts.board.port_name,
        clock=parts.clock,
        idle_ttl_s=parts.limits.idle_ttl_s,
        memory=runtime.memory,
        refusals=runtime.refusals,
        rate=Rate.parse(parts.limits.session_rate),
    )
    try:
        async with trio.open_nursery() as outer:
            await outer.start(book.run)
            await recover(services)
            async with trio.open_nursery() as jobs:
                desk = HcpDesk(services, jobs)
                jobs.start_soon(desk.expire)
                opened(desk)
                await over.wait()
                jobs.cancel_scope.cancel()
                # Before the last of them has gone: a disk that hangs would keep it.
                await book.aclose()
    finally:
        await book.aclose()


# --- The end of sessions that the daemon did not live to end: said at the next start (L2, Recovery; L4, Task Failure)
#
# What is said is what the book has: nothing is known of a step that was in flight. Nothing goes on by itself either,
# for nobody may be there who wants it: the caller resubmits with `last_checkpoint` if it does.

MESSAGE: Final = "the daemon ended while the job was under way"



async def recover(services: Services) -> None:
    """Bring every session that has none to its end; one that cannot be written to now is left to the next start."""
    for row in services.book.unfinished:
        try:
            await _end(services, row)
        except BookError as error:
            log.error("HCP session %s is still without an end: %s", row.session_id, error)


async def _end(services: Services, row: SessionRow) -> None:
    lines = await services.book.story(row.session_id)
    duration_s, made, warnings = _measured(row, lines)
    unknown = [str(unknown_of(operation).operation) for operation in await services.book.begun(row.session_id)]
    message = f"{MESSAGE}; unknown is what came of {', '.join(unknown)}" if unknown else MESSAGE
    last = checkpoint_id(row.session_id, row.checkpoints) if row.checkpoints or unknown else None
    aborting = row.state == "ABORTING"
    services.audit(
        "hcp.recover",
        hcp_session=row.session_id,
        principal=row.principal,
        last_checkpoint=last,
        unknown=unknown or None,
    )
    services.audit(
        "hcp.finish",
        hcp_session=row.session_id,
        principal=row.principal,
        state="ABORTED" if aborting else "FAILED",
        error_code=None if aborting else "internal_error",
        reason="daemon_ended",
        steps=made,
        checkpoints=made,
        duration_s=round(duration_s, 3),
    )
    failed = TaskFailed(
        error_code="internal_error",
        error_message=message,
        error_details=ErrorDetails(
            phase=row.phase or None,
            step=row.checkpoints + 1,
            last_checkpoint=last,
            recoverable=row.resumable,
            reason="daemon_ended",
        ),
        artifacts=tuple(await services.book.artifacts(row.session_id)),
        execution_summary=summary(
            duration_s=duration_s, steps=made, checkpoints=made, risk_events=(), warnings=warnings
        ),
    )
    account = EventWriter(
        row.session_id,
        services.book,
        MessageLog(lines),
        services.clock,
        state=row.state,
        sequence=row.sequence,
        phase=row.phase,
    )
    if row.state == "PAUSED":
        # L2 has no way from there to the end.
        await account.move("RUNNING", "the daemon ended")
    if aborting:
        said = write_payload(failed)
        left = {name: said[name] for name in AFTER_ABORT if said.get(name)}
        await account.close("ABORTED", "daemon ended", closing=left)
    else:
        await account.close("FAILED", "daemon ended", failed)
    log.warning("HCP session %s (%s) had not ended; its last checkpoint is %s", row.session_id, row.capability, last)


def _measured(row: SessionRow, lines: list[bytes]) -> tuple[float, int, tuple[str, ...]]:
    """For how long it is known to have run (seconds), its checkpoints, and what it was warned of: by its messages."""
    messages: list[dict[str, Any]] = [orjson.loads(line) for line in lines]
    newest = datetime.fromisoformat(messages[-1]["timestamp"]).timestamp() if messages else row.created_at
    events = [message["payload"] for message in messages if message["type"] == "event"]
    warnings = tuple(str(event["data"]["message"]) for event in events if event["event_type"] == "warning")
    made = sum(event["event_type"] == "checkpoint_created" for event in events)
    return max(0.0, newest - row.created_at), made, warnings


NOT_FOR_CALLERS: Final = frozenset(TYPES) - {"task_submit", "abort"}
"""Messages that only a callee sends; their payloads are not read here."""
LAST_WORDS: Final = 2.0
"""Seconds that jobs may still take to say how they ended, once their HACP sessions have been ended for them."""
EXPIRY_S: Final = 60.0
"""Seconds between two looks for what has been kept for long enough."""

log = logging.getLogger("hearth.hcp")


class HcpDesk:
    """Implements `hearth.actors.messages.Desk`. `nursery` is where its jobs live."""

    def __init__(self, services: Services, nursery: trio.Nursery) -> None:
        self.services = services
        self.approvals = Approvals(services.settings.approval_timeout_s)
        self.rooms = Rooms(services.settings.max_jobs, services.settings.max_jobs_per_principal, services.rate)
        self.jobs: dict[str, RunningJob] = {}
        """The jobs that are running, or coming to their end, by session."""
        self.closing = False
        self._nursery = nursery
        self._methods = Methods(self)
        self._underway: dict[tuple[str, str], Submission] = {}
        self._ended: WeakValueDictionary[str, MessageLog] = WeakValueDictionary()
        self._one_over = trio.Event()

    # --- messages -----------------------------------------------------------------------------------------------

    def receive(self, principal: Principal, letter: Letter) -> None:
        """See asks.Desk. The policy first: what comes from a principal that no entry matches is not looked at."""
        document = letter.document
        allowed = allowance(self.services.policy, principal, self.services.registry)
        if allowed is None:
            # Not remembered either: who may do nothing here shall not fill the book.
            self._refuse(principal, letter, no_policy(), message_id_of(document))
            return
        kind = document.get("type")
        if type(kind) is str and kind in NOT_FOR_CALLERS:
            self._refuse(principal, letter, not_for_callers(kind), message_id_of(document))
            return
        try:
            message = read_message(document)
        except MessageError as error:
            reason = f"{error.pointer}: {error.reason}" if error.pointer else error.reason
            rejection = Rejection(cast("ReasonCode", error.code), reason, suggestion=error.suggestion)
            self._refuse(principal, letter, rejection, error.message_id)
            return
        if isinstance(message.payload, TaskSubmit):
            self._submit(principal, allowed, letter, message, message.payload)
        else:
            assert isinstance(message.payload, Abort)
            self._start(
                f"HCP abort of {principal.key}",
                partial(self._abort, principal, letter, message, message.payload),
                lambda error: self._refuse(principal, letter, crashed(error), message.message_id),
            )

    def _submit(
        self, principal: Principal, allowed: Allowance, letter: Letter, message: Message, submit: TaskSubmit
    ) -> None:
        if self.closing:
            self._refuse(principal, letter, shutting_down(), message.message_id)
            return
        # The bytes, and not their canonical form: that takes longer than one turn of the loop may.
        payload = orjson.dumps(letter.document["payload"], option=orjson.OPT_SORT_KEYS)
        digest = digest_of(payload)
        key = principal.key, message.message_id
        submission = self._underway.get(key)
        if submission is None:
            account = self.services.memory.for_principal(principal.key)
            weight = JOB_BYTES + parsed_bytes(payload)
            if not account.fits(weight):
                self._refuse(principal, letter, no_memory(account.refusal(weight)), message.message_id)
                return
            account.add(weight)
            submission = Submission(
                self, principal, allowed, message.message_id, submit, digest, account, weight, [letter]
            )
            self._underway[key] = submission
            self._nursery.start_soon(self._attend, submission)
        elif submission.digest != digest:
            self._refuse(principal, letter, reused(message.message_id), message.message_id)
        elif submission.session_id is not None and (job := self.jobs.get(submission.session_id)) is not None:
            letter.follow(job.account.story, 1)
        else:
            submission.letters.append(letter)

    async def _attend(self, submission: Submission) -> None:
        try:
            await submission.run()
        finally:
            del self._underway[submission.principal.key, submission.message_id]
            submission.memory.release(submission.weight)
            self._one_over.set()

    async def _abort(self, principal: Principal, letter: Letter, message: Message, abort: Abort) -> None:
        session_id = message.session_id or ""
        job = self.jobs.get(session_id)
        try:
            row = job.row if job is not None else await self._row(session_id)
            if row is None or row.principal != principal.key:
                raise unknown_session(session_id)
            if job is None:
                raise session_ended(session_id, row.state)
            if abort.session_token is not None:
                job.check(abort.session_token)
        except TokenError as error:
            self._refuse(principal, letter, wrong_token(str(error)), message.message_id)
            return
        except Rejection as rejection:
            self._refuse(principal, letter, rejection, message.message_id)
            return
        # The story tells the rest.
        letter.done()
        if self.services.refusals.admit("hcp.abort", principal.key, None):
            reason = (abort.reason or "")[:256] or None
            self.services.audit("hcp.abort", hcp_session=session_id, principal=principal.key, reason=reason)
        patience = trio.current_time() + self.services.settings.abort_timeout_s
        job.stop(Cut(message=abort.reason or "aborted by the caller", until=patience))

    async def _row(self, session_id: str) -> SessionRow | None:
        try:
            return await self.services.book.session(session_id)
        except BookError as error:
            raise Rejection("resource_unavailable", str(error), suggestion="try again later") from None

    def _refuse(self, principal: Principal, letter: Letter, rejection: Rejection, message_id: str | None) -> None:
        """Answer what is no task_submit that has got as far as the gate."""
        if self.services.refusals.admit("hcp.reject", principal.key, rejection.reason_code):
            self.services.audit(
                "hcp.reject",
                principal=principal.key,
                message_id=message_id,
                reason_code=rejection.reason_code,
                reason=rejection.message[:256],
            )
        payload = rejection.payload(message_id)
        letter.answer(dump(message_of(payload, session_id=None, now=self.services.clock())))

    # --- methods ------------------------------------------------------------------------------------------------

    def call(self, principal: Principal, ask: Ask, reader: Reading) -> None:
        """See asks.Desk."""
        if self.closing:
            raise ShuttingDown
        self._start(
            f"{type(ask.params).__name__} of {principal.key}",
            partial(self._methods.answer, principal, ask, reader),
            lambda _error: ask.error(InternalError()),
        )

    def withdraw(self, principal: Principal, message_id: str, reason: str | None) -> bool:
        """Take back a task_submit of this principal's that has not been accepted; False where none is under way."""
        submission = self._underway.get((principal.key, message_id))
        return submission is not None and submission.withdraw(reason)

    async def story(self, session_id: str, owner: Principal) -> MessageLog | None:
        """A session's messages, running or ended; None where they are kept no longer.

        What is read of the book is charged to `owner`, whose session it is. Raises BookError.
        """
        job = self.jobs.get(session_id)
        if job is not None:
            return job.account.story
        if (story := self._ended.get(session_id)) is not None:
            return story
        lines = await self.services.book.story(session_id)
        if not lines:
            return None
        # One copy, however many follow it.
        account = self.services.memory.for_principal(owner.key)
        story = MessageLog(lines, ended=True, tally=self.services.journal.tally, account=account)
        return self._ended.setdefault(session_id, story)

    # --- life ---------------------------------------------------------------------------------------------------

    def _start(
        self, name: str, actor: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]
    ) -> None:
        self._nursery.start_soon(contain, name, actor, on_crash)

    async def end(self, until: float) -> None:
        """Take no more jobs, stop those that run, and wait for their ends until this time of Trio's clock.

        Called again, it waits for what is left, and briefly: by then no step is waited for any more.
        """
        if self.closing:
            until = min(until, trio.current_time() + LAST_WORDS)
        self.closing = True
        self.approvals.close()
        for job in list(self.jobs.values()):
            job.stop(Cut(message="the daemon is ending", until=until, aborts=False))
        with trio.move_on_at(until):
            while self._underway:
                self._one_over = trio.Event()
                await self._one_over.wait()
        if self.jobs:
            log.warning("%d HCP jobs have not come to their end; the next start will end them", len(self.jobs))

    async def expire(self) -> None:
        """Forget, from time to time, what has been kept for long enough."""
        while True:
            # Not at once: a start has more urgent things to do.
            await trio.sleep(EXPIRY_S)
            try:
                for session_id in await self.services.book.expire(
                    self.services.clock(), self.services.settings.retention_s
                ):
                    await self.services.store.forget(session_id)
            except (BookError, StoreError) as error:
                log.warning("what has been kept for long enough cannot be forgotten: %s", error)
