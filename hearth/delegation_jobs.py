"""The jobs that are followed over one connection: from an HCP message that comes to whoever waits for it.

Owns the correlation of answers with submissions and aborts, and each job's place in its session's messages. A message
that cannot be read ends what it belongs to with an error, and nothing else. It knows no carrier: a `Post` sends its
messages, and is asked for the hcp.* methods. What a user sees of it is in `hearth.delegation_face`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

import trio

from hearth.delegation_job import Job
from hearth.errors import InvalidParams, JobRejected
from hearth.hcp.messages import Abort, Event, Message, TaskAccepted, TaskRejected
from hearth.hcp.reading import MessageError, dump, message as new_message, read_message
from hearth.protocol.client import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.delegation_job import Messages
    from hearth.errors import HearthError
    from hearth.hcp.values import State

log = logging.getLogger("hearth.delegation")

ACCEPTANCES_KEPT = 256
"""Acceptances that are known again when they come again; it matters for those that name no submission."""


class Post(Protocol):
    """A connection to where jobs are done."""

    def send_message(self, line: bytes) -> None:
        """Send an HCP message, a whole line."""

    async def call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call a method that needs no session. Raises the RpcError it is answered with, or CarrierError."""
        ...

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Call a method that needs no session, without waiting and without learning what comes of it."""

    def settled(self) -> None:
        """A submission whose caller has gone is answered by now: `Delegations.abandoned` has changed."""


class Submission:
    """A task_submit that waits for its answer."""

    __slots__ = ("abandoned", "answered", "error", "job", "messages")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.job: Job | None = None
        self.messages: Messages | None = None
        self.error: HearthError | None = None
        """Why there is no job."""
        self.abandoned = False
        """True when its caller has gone, and nobody would ever know of the job."""


class Refusal:
    """Where the refusal of an abort is put, if it is refused."""

    __slots__ = ("answer", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.answer: TaskRejected | None = None


class Delegations:
    """All of one connection's."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.ended: Callable[[str], HearthError] | None = None
        """Set when the connection has ended: from what was under way to the error that says why."""
        self.abandoned = 0
        """Submissions whose caller has gone and whose job, if there will be one, is to be aborted."""
        self._refusals: dict[str, Refusal] = {}
        self._submissions: dict[str, list[Submission]] = {}
        self._jobs: WeakValueDictionary[str, Job] = WeakValueDictionary()
        self._acceptances: deque[str] = deque(maxlen=ACCEPTANCES_KEPT)

    async def submit(self, submit: Message, *, keep: bool) -> tuple[Job, Messages]:
        """Hand a task_submit over and wait for its answer. Raises JobRejected, or what the connection ended with.

        If its caller is cancelled meanwhile, the job is withdrawn, or aborted if it is accepted all the same, unless it
        is one to `keep`.
        """
        submission = Submission()
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
                self.post.tell("hcp.withdraw", {"message_id": submit.message_id, "reason": "its caller has gone"})
            raise
        if submission.error is not None:
            raise submission.error
        if submission.job is None or submission.messages is None:
            assert self.ended is not None, "nobody else lets go of a submission without an answer"
            raise self.ended(f"before job {submit.message_id} was accepted")
        return submission.job, submission.messages

    def _forget(self, message_id: str, submission: Submission) -> None:
        others = self._submissions.get(message_id, [])
        if submission in others:
            others.remove(submission)
            if not others:
                del self._submissions[message_id]

    async def attach(self, session_id: str, from_sequence: int) -> tuple[Job, Messages]:
        """A job that was handed over earlier, and its messages from there on. Raises SessionInvalid."""
        job = self._jobs.get(session_id)
        if job is None:
            job = self._jobs[session_id] = Job(self, session_id, from_sequence, catching_up=True)
        messages = job.read(from_sequence)
        await messages.catch_up()
        return job, messages

    async def abort(self, job: Job, reason: str | None) -> State:
        """Have a job end; returns its state as soon as that is under way or it has ended. Raises JobRejected."""
        if not job.ended:
            token = None if job.accepted is None else job.accepted.session_token
            abort = new_message(Abort(reason=reason, session_token=token), session_id=job.session_id, now=time.time())
            refusal = self._refusals[abort.message_id] = Refusal(job)
            try:
                self.send(abort)
                doing = f"before {job.session_id} was aborted"
                await job.until(lambda: refusal.answer is not None or job.ended or job.state == "ABORTING", doing)
            finally:
                del self._refusals[abort.message_id]
            # One that has ended meanwhile is none that could be aborted; how it ended is told.
            if refusal.answer is not None and not job.ended:
                if refusal.answer.final_state is not None:
                    return refusal.answer.final_state
                raise _rejection(refusal.answer)
        return job.state

    async def call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See Post."""
        return await self.post.call(method, params)

    def send(self, message: Message) -> None:
        """Send a message. Raises InvalidParams: it has what JSON cannot say; or what the connection ended with."""
        if self.ended is not None:
            raise self.ended("before it was used")
        try:
            line = dump(message)
        except TypeError as error:
            raise InvalidParams(f"Invalid params: not JSON: {error}", data={"reason": str(error)}) from None
        self.post.send_message(line)

    # --- what comes ---------------------------------------------------------------------------------------------

    def receive(self, document: Mapping[str, Any]) -> None:
        """An HCP message has come. Never raises for anything a peer can send."""
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
        """A message that is none: whoever waits for an answer or an outcome must not do so for ever."""
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

    def _accepted(self, message: Message, accepted: TaskAccepted, job: Job | None) -> Job | None:
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
                    job = self._jobs[message.session_id] = Job(self, message.session_id)
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

    def _refuse(self, submissions: list[Submission], error: HearthError) -> None:
        for submission in submissions:
            submission.error = error
            submission.answered.set()
        self._settle(submissions)

    def _answered(self, in_reply_to: str | None) -> list[Submission]:
        """The submissions that an answer answers: those it names, else, from a callee that names none, the oldest."""
        if in_reply_to is None:
            in_reply_to = next(iter(self._submissions), "")
        return self._submissions.pop(in_reply_to, [])

    def _settle(self, submissions: list[Submission]) -> None:
        abandoned = sum(submission.abandoned for submission in submissions)
        if abandoned:
            self.abandoned -= abandoned
            self.post.settled()

    def end(self, why: Callable[[str], HearthError]) -> None:
        """No more will come."""
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
    """An event of a kind, or with data, that this release does not know: it is passed on as it is."""
    session_id, payload = document.get("session_id"), document.get("payload")
    if document.get("type") != "event" or not isinstance(session_id, str) or not isinstance(payload, dict):
        return None
    kind, sequence, data = payload.get("event_type"), payload.get("sequence"), payload.get("data", {})
    if not isinstance(kind, str) or type(sequence) is not int or sequence < 1 or not isinstance(data, dict):
        return None
    event = Event(event_type=kind, sequence=sequence, data=data)  # type: ignore[arg-type]
    return Message(message_id="", timestamp=None, session_id=session_id, type="event", payload=event)
