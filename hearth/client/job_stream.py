"""The jobs that are followed over one connection: the way from a received HCP message to its waiting task.

This module matches answers with submissions and aborts, and keeps each reader's position in its session's messages. An
unreadable message ends only the submission or job that it belongs to, with an error. It knows no carrier: a
`MessageLink` sends its messages and calls the hcp.* methods. The interface for users is in `hearth.client.job_handle`.

One `JobRouter` exists per connection, one `JobStream` per followed job, and one `Messages` per reader of a job:

    received line -> JobRouter.receive -> JobStream.take -> Messages.take -> `async for`

`receive` and `take` run in the task that reads the connection, and never wait. A waiting task waits for an event that
`wake` replaces and sets. A job's record is weak: without a reader or handle it is dropped.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

import trio

from hearth.client.extension import Receiver
from hearth.errors import InvalidParams, JobRejected
from hearth.hcp import require
from hearth.hcp.api import ENDED
from hearth.hcp.codec import dump, message as new_message, read_message
from hearth.hcp.messages import (
    Abort,
    Event,
    Message,
    MessageError,
    TaskAccepted,
    TaskCompleted,
    TaskFailed,
    TaskRejected,
)
from hearth.protocol.client import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.client.extension import MessageLink
    from hearth.errors import HearthError
    from hearth.hcp.messages import State


# --- the order of messages ------------------------------------------------------------------------------------------
#
# L2 (Integration with L1 Stream Continuity) requires of a caller: the last processed sequence, dropping of duplicates,
# and a buffer for events that come too early. Sans-IO.

log = logging.getLogger("hearth.client.jobs")

EARLY_KEPT = 64
"""Limit of the events that wait for a missing one; with one more, the missing one is given up."""


def closes(message: Message) -> bool:
    """Return True for the last message of a session."""
    return isinstance(message.payload, Event) and message.payload.event_type == "session_closed"


class ReorderBuffer:
    """One reader's position in the messages of a session: each message once, events in the order of `sequence`."""

    __slots__ = ("_early", "_ended", "_seen", "catching_up", "last_processed_sequence")

    def __init__(self, from_sequence: int = 1, *, catching_up: bool = False) -> None:
        self.last_processed_sequence = max(from_sequence, 1) - 1
        self.catching_up = catching_up
        """True while the history from there on was requested: a message that comes before it will be sent again."""
        self._early: dict[int, Message] = {}
        self._seen: set[str] = set()
        """The ids of the received messages that have no sequence: an acceptance, an outcome."""
        self._ended = False
        """True once an outcome has come: only the first counts, whatever a callee sends after it."""

    def take(self, message: Message) -> list[Message]:
        """Take a received message; return the messages that are due now, oldest first."""
        event = message.payload
        if not isinstance(event, Event):
            # While the history is being sent again, an outcome that comes ahead of it comes once more in its place.
            if message.message_id in self._seen or (self.catching_up and not isinstance(event, TaskAccepted)):
                return []
            if isinstance(event, TaskCompleted | TaskFailed):
                if self._ended:
                    return []
                self._ended = True
            self._seen.add(message.message_id)
            return [message]
        if event.sequence <= self.last_processed_sequence or event.sequence in self._early:
            return []
        if event.sequence == self.last_processed_sequence + 1:
            self.catching_up = False
            return [message, *self._next_early(event.sequence)]
        return [] if self.catching_up else self._too_early(message, event.sequence)

    def _next_early(self, sequence: int) -> list[Message]:
        """Return the buffered events that follow directly, and note this event and them as processed."""
        due: list[Message] = []
        while (following := self._early.pop(sequence + 1, None)) is not None:
            due.append(following)
            sequence += 1
        self.last_processed_sequence = sequence
        return due

    def _too_early(self, message: Message, sequence: int) -> list[Message]:
        if not self._early:
            log.warning(
                "HCP session %s: event %d has come, and %d has not",
                message.session_id,
                sequence,
                self.last_processed_sequence + 1,
            )
        self._early[sequence] = message
        if len(self._early) <= EARLY_KEPT and not closes(message):
            return []
        # The missing event will not come: deliver the buffered ones without it.
        due = [self._early[early] for early in sorted(self._early)]
        self.last_processed_sequence = max(self._early)
        self._early.clear()
        return due


# --- one job --------------------------------------------------------------------------------------------------------
#
# A job is over once its outcome is known or it is in a final state. Its callee should then send an outcome and
# session_closed; readers and callers wait for them no longer than CLOSING_TIMEOUT.

CLOSING_TIMEOUT = 5.0
"""Seconds that a reader waits for session_closed, and a caller for an outcome, once the session is known to be over."""
MESSAGES_KEPT = 4096
"""Limit of the messages that wait for a slow reader; it has the rest sent again when it gets there."""
_TELLS_STATE = {"session_created": "state", "state_changed": "to_state", "session_closed": "final_state"}
"""Event type -> the member of its data that has the session's state."""


class JobStream:
    """The client's record of one session, with the readers of its messages."""

    def __init__(
        self, router: JobRouter, session_id: str, from_sequence: int = 1, *, catching_up: bool = False
    ) -> None:
        self.session_id = session_id
        self.accepted: TaskAccepted | None = None
        self.state: State = "PENDING"
        self.outcome: TaskCompleted | TaskFailed | None = None
        self.closed: Event | None = None
        self.entry: Mapping[str, Any] = {}
        """The answer to hcp.attach; empty if it was not called."""
        self.broken: ProtocolViolation | None = None
        """Set when an outcome came that could not be read."""
        self.over_at: float | None = None
        """The time at which the end became known: from the outcome, or from a final state."""
        self._router = router
        self._order = ReorderBuffer(from_sequence, catching_up=catching_up)
        self._readers: WeakSet[Messages] = WeakSet()
        self._changed = trio.Event()

    @property
    def ended(self) -> bool:
        """True once its outcome is known."""
        return self.outcome is not None or self.closed is not None

    @property
    def last_processed_sequence(self) -> int:
        """The number of the newest event that came in order (L2)."""
        return self._order.last_processed_sequence

    def read(self, from_sequence: int, *, from_now: bool = False) -> Messages:
        """Return a reader of the session's messages. `from_now`: the callee sends all of them without hcp.attach."""
        reader = Messages(self, from_sequence, live=from_now)
        self._readers.add(reader)
        return reader

    def take(self, message: Message) -> None:
        """Record a received message of this session, and pass it to all readers."""
        for due in self._order.take(message):
            self._learn(due)
        for reader in list(self._readers):
            reader.take(message)
        self.wake()

    def _learn(self, message: Message) -> None:
        payload = message.payload
        if isinstance(payload, TaskAccepted):
            self.accepted = payload
        elif isinstance(payload, TaskCompleted | TaskFailed):
            self.outcome = payload
            self.state = "COMPLETED" if isinstance(payload, TaskCompleted) else "FAILED"
        elif isinstance(payload, Event):
            state = payload.data.get(_TELLS_STATE.get(payload.event_type, ""))
            if isinstance(state, str) and not self.ended:
                self.state = state  # type: ignore[assignment]  # a newer callee may send others
            if closes(message):
                self.closed = payload
        if self.over_at is None and (self.ended or self.state in ENDED):
            self.over_at = trio.current_time()

    def wake(self) -> None:
        """Wake every task that waits for a change of this job."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        for reader in list(self._readers):
            reader.wake()

    def check(self, doing: str) -> None:
        """Raise the error that ended the connection (`doing` completes it), or why no more can be read of this job."""
        if self.broken is not None:
            raise self.broken
        if self._router.ended is not None:
            raise self._router.ended(doing)

    async def end(self) -> None:
        """Wait until the outcome is known, or the job is over and its callee sends none in time. Raises as `check`."""
        doing = f"before {self.session_id} had"
        await self.until(lambda: self.ended or self.over_at is not None, doing)
        if not self.ended and self.over_at is not None:
            with trio.move_on_at(self.over_at + CLOSING_TIMEOUT) as waiting:
                await self.until(lambda: self.ended, doing)
            if waiting.cancelled_caught:
                log.warning("HCP session %s: it ended %s, and no outcome has come", self.session_id, self.state)

    async def until(self, happened: Callable[[], bool], doing: str) -> None:
        """Wait until `happened` returns True. Raises as `check`."""
        while not happened():
            self.check(doing)
            await self._changed.wait()

    async def attach(self, from_sequence: int) -> bool:
        """Request the messages from `from_sequence` on, and all later ones; return True if some exist already.

        Raises SessionInvalid for an unknown job.
        """
        # The job has one history for all its readers: request it from a place that is early enough for each of them.
        wanted = min(from_sequence, self.last_processed_sequence + 1)
        entry = self.entry = await self._attach(wanted)
        last = entry.get("last_sequence")
        if entry.get("state") in ENDED and type(last) is int and 1 <= last < wanted and not self.ended:
            # The requested events will never exist, but the outcome of the job is not known here yet: request that.
            self._order = ReorderBuffer(last)
            await self._attach(last)
        coming = type(last) is int and last >= wanted
        self._order.catching_up = self._order.catching_up and coming
        return coming

    async def _attach(self, from_sequence: int) -> Mapping[str, Any]:
        # Sequence 0 is the acceptance, before the first event: a reader from the beginning gets it too.
        sequence = from_sequence if from_sequence > 1 else 0
        return await self._router.link.call("hcp.attach", {"session_id": self.session_id, "from_sequence": sequence})


class Messages:
    """A job's messages for one reader: each once and in order, however often they are sent.

    `async for message in job.messages()` reads it; a reader may stop early without closing it.
    """

    __slots__ = ("__weakref__", "_changed", "_job", "_live", "_order", "_over", "_ready", "_received_at")

    def __init__(self, job: JobStream, from_sequence: int, *, live: bool) -> None:
        self._job = job
        self._order = ReorderBuffer(from_sequence)
        self._ready: deque[Message] = deque()
        self._received_at = float("-inf")
        """The time at which the newest message came."""
        self._live = live
        """False while received messages are ignored and requested again later: before the first read, and after
        MESSAGES_KEPT unread ones."""
        self._over = False
        self._changed = trio.Event()

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Message:
        message = await self.next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def next(self) -> Message | None:
        """Return the next message, or None after session_closed. Cancelling this loses none.

        If a callee sends no session_closed after an outcome, the wait ends after `CLOSING_TIMEOUT`.
        """
        while not self._ready:
            if self._over:
                return None
            self._job.check(f"while {self._job.session_id} was followed")
            if not self._live:
                await self.catch_up()
                continue
            with trio.move_on_at(self._closing_by()) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught:
                log.warning("HCP session %s: it is over, and no session_closed has come", self._job.session_id)
                self._over = True
        return self._ready.popleft()

    def _closing_by(self) -> float:
        over_at = self._job.over_at
        return float("inf") if over_at is None else max(over_at, self._received_at) + CLOSING_TIMEOUT

    async def catch_up(self) -> None:
        """Request the messages after the last processed one. Raises SessionInvalid."""
        # Set before the request: the messages may come before its answer.
        self._live = self._order.catching_up = True
        try:
            coming = await self._job.attach(self._order.last_processed_sequence + 1)
        except BaseException:
            self._live = False
            raise
        self._order.catching_up = self._order.catching_up and coming

    def take(self, message: Message) -> None:
        """Queue a received message for the reader."""
        if not self._live:
            return
        self._received_at = trio.current_time()
        if len(self._ready) >= MESSAGES_KEPT:
            # Drop it, and all later ones: `next` requests them again once the reader has read what is queued.
            self._live = False
            return
        self._ready += self._order.take(message)
        if closes(message) and message.payload.sequence <= self._order.last_processed_sequence:  # type: ignore[union-attr]  # an Event
            self._over = True

    def wake(self) -> None:
        """Wake the reader."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()


# --- all jobs of a connection ---------------------------------------------------------------------------------------

ACCEPTANCES_KEPT = 256
"""Limit of the acceptances that are recognised when they are sent again; needed for those that name no submission."""


class PendingSubmission:
    """A task_submit that waits for its answer."""

    __slots__ = ("abandoned", "answered", "error", "job", "messages")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.job: JobStream | None = None
        self.messages: Messages | None = None
        self.error: HearthError | None = None
        """The reason why there is no job."""
        self.abandoned = False
        """True if the caller was cancelled without a `message_id` to come back with."""


class SubmissionRefused:
    """A pending abort, and the refusal that may answer it."""

    __slots__ = ("answer", "job")

    def __init__(self, job: JobStream) -> None:
        self.job = job
        self.answer: TaskRejected | None = None


class JobRouter(Receiver):
    """The submissions, aborts and followed jobs of one connection. Raises ConfigError without the extra for HCP."""

    def __init__(self, link: MessageLink) -> None:
        require("jobs (HCP)")
        self.link = link
        self.ended: Callable[[str], HearthError] | None = None
        """Set when the connection has ended: returns the error for an operation, given its name."""
        self.abandoned = 0
        """Number of submissions whose caller was cancelled; a job that is accepted for one is to be aborted."""
        self._refusals: dict[str, SubmissionRefused] = {}
        self._submissions: dict[str, list[PendingSubmission]] = {}
        self._jobs: WeakValueDictionary[str, JobStream] = WeakValueDictionary()
        self._acceptances: deque[str] = deque(maxlen=ACCEPTANCES_KEPT)

    async def submit(self, submit: Message, *, keep: bool) -> tuple[JobStream, Messages]:
        """Send a task_submit and wait for its answer. Raises JobRejected, or the error that ended the connection.

        If the caller is cancelled during the wait, the job is withdrawn, or aborted if it is accepted all the same,
        except with `keep`.
        """
        submission = PendingSubmission()
        self.send(submit)
        self._submissions.setdefault(submit.message_id, []).append(submission)
        try:
            await submission.answered.wait()
        except BaseException:
            if keep:
                self._forget(submit.message_id, submission)
            else:
                submission.abandoned = True
                self.abandoned += 1
                self.link.notify("hcp.withdraw", {"message_id": submit.message_id, "reason": "its caller has gone"})
            raise
        if submission.error is not None:
            raise submission.error
        if submission.job is None or submission.messages is None:
            assert self.ended is not None, "only the end of the connection drops a submission without an answer"
            raise self.ended(f"before job {submit.message_id} was accepted")
        return submission.job, submission.messages

    def _forget(self, message_id: str, submission: PendingSubmission) -> None:
        others = self._submissions.get(message_id, [])
        if submission in others:
            others.remove(submission)
            if not others:
                del self._submissions[message_id]

    async def attach(self, session_id: str, from_sequence: int) -> tuple[JobStream, Messages]:
        """Return a job that was submitted earlier, and its messages from there on. Raises SessionInvalid."""
        job = self._jobs.get(session_id)
        if job is None:
            job = self._jobs[session_id] = JobStream(self, session_id, from_sequence, catching_up=True)
        messages = job.read(from_sequence)
        await messages.catch_up()
        return job, messages

    async def abort(self, job: JobStream, reason: str | None) -> State:
        """Abort a job; return its state once the abort is under way or the job has ended. Raises JobRejected."""
        if not job.ended:
            token = None if job.accepted is None else job.accepted.session_token
            abort = new_message(Abort(reason=reason, session_token=token), session_id=job.session_id, now=time.time())
            refusal = self._refusals[abort.message_id] = SubmissionRefused(job)
            try:
                self.send(abort)
                doing = f"before {job.session_id} was aborted"
                await job.until(lambda: refusal.answer is not None or job.ended or job.state == "ABORTING", doing)
            finally:
                del self._refusals[abort.message_id]
            # A job that ended before the abort arrived could not be aborted: return its final state instead.
            if refusal.answer is not None and not job.ended:
                if refusal.answer.final_state is not None:
                    return refusal.answer.final_state
                raise _rejection(refusal.answer)
        return job.state

    def send(self, message: Message) -> None:
        """Send a message. Raises InvalidParams if it is not JSON, or the error that ended the connection."""
        if self.ended is not None:
            raise self.ended("before it was used")
        try:
            line = dump(message)
        except TypeError as error:
            raise InvalidParams(f"Invalid params: not JSON: {error}", data={"reason": str(error)}) from None
        self.link.send_message(line)

    # --- received messages --------------------------------------------------------------------------------------

    def receive(self, document: Mapping[str, Any]) -> None:
        """See Receiver."""
        try:
            message = read_message(document)
        except MessageError as error:
            newer = _of_a_newer_callee(document)
            if newer is None:
                self._unreadable(document, error)
                return
            message = newer
        payload = message.payload
        if isinstance(payload, TaskRejected):
            self._rejected(payload)
            return
        if message.session_id is None:
            return
        job = self._jobs.get(message.session_id)
        if isinstance(payload, TaskAccepted):
            job = self._accepted(message, payload, job)
        if job is not None:
            job.take(message)

    def _unreadable(self, document: Mapping[str, Any], error: MessageError) -> None:
        """Handle an unreadable message: fail the wait for the answer or outcome that it was, or it would never end."""
        log.warning("an HCP message has come that cannot be read: %s", error)
        violation = ProtocolViolation(f"the server sent an HCP message that cannot be read: {error}")
        kind, payload, session_id = (document.get(name) for name in ("type", "payload", "session_id"))
        job = self._jobs.get(session_id) if isinstance(session_id, str) else None
        if kind in ("task_completed", "task_failed") and job is not None and not job.ended:
            job.broken = violation
            job.wake()
        elif kind in ("task_accepted", "task_rejected") and isinstance(payload, dict):
            in_reply_to = payload.get("in_reply_to")
            if isinstance(in_reply_to, str):
                self._refuse(self._submissions.pop(in_reply_to, []), violation)

    def _accepted(self, message: Message, accepted: TaskAccepted, job: JobStream | None) -> JobStream | None:
        assert message.session_id is not None
        sent_again = message.message_id in self._acceptances
        self._acceptances.append(message.message_id)
        if sent_again and accepted.in_reply_to is None:
            return job
        submissions = self._answered(accepted.in_reply_to)
        if submissions and all(submission.abandoned for submission in submissions):
            abort = Abort(reason="its caller has gone", session_token=accepted.session_token)
            self.send(new_message(abort, session_id=message.session_id, now=time.time()))
        for submission in submissions:
            if not submission.abandoned:
                if job is None:
                    job = self._jobs[message.session_id] = JobStream(self, message.session_id)
                submission.job, submission.messages = job, job.read(1, from_now=True)
                submission.answered.set()
        self._settle(submissions)
        return job

    def _rejected(self, rejected: TaskRejected) -> None:
        refusal = self._refusals.get(rejected.in_reply_to or "")
        if refusal is not None:
            refusal.answer = rejected
            refusal.job.wake()
            return
        self._refuse(self._answered(rejected.in_reply_to), _rejection(rejected))

    def _refuse(self, submissions: list[PendingSubmission], error: HearthError) -> None:
        for submission in submissions:
            submission.error = error
            submission.answered.set()
        self._settle(submissions)

    def _answered(self, in_reply_to: str | None) -> list[PendingSubmission]:
        """Return the submissions for an answer: those it names, or, if it names none, the oldest."""
        if in_reply_to is None:
            in_reply_to = next(iter(self._submissions), "")
        return self._submissions.pop(in_reply_to, [])

    def _settle(self, submissions: list[PendingSubmission]) -> None:
        abandoned = sum(submission.abandoned for submission in submissions)
        if abandoned:
            self.abandoned -= abandoned
            self.link.settled()

    def end(self, why: Callable[[str], HearthError]) -> None:
        """See Receiver; wakes every waiting task."""
        self.ended = why
        for submissions in self._submissions.values():
            for submission in submissions:
                submission.answered.set()
        self._submissions.clear()
        for job in list(self._jobs.values()):
            job.wake()


def _rejection(rejected: TaskRejected) -> JobRejected:
    return JobRejected(rejected.reason_code, rejected.reason_message, rejected.suggestion, rejected.assessed_risk_level)


def _of_a_newer_callee(document: Mapping[str, Any]) -> Message | None:
    """Return an event whose type or data this release does not know, to be passed on unchanged; None for others."""
    session_id, payload = document.get("session_id"), document.get("payload")
    if document.get("type") != "event" or not isinstance(session_id, str) or not isinstance(payload, dict):
        return None
    kind, sequence, data = payload.get("event_type"), payload.get("sequence"), payload.get("data", {})
    if not isinstance(kind, str) or type(sequence) is not int or sequence < 1 or not isinstance(data, dict):
        return None
    event = Event(event_type=kind, sequence=sequence, data=data)  # type: ignore[arg-type]
    return Message(message_id="", timestamp=None, session_id=session_id, type="event", payload=event)
