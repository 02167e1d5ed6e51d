"""Handles of jobs, and artifacts: an implementation of `hearth.hcp.api.JobHandle` over `hearth.client.job_stream`.

This module turns messages into values for users: events into `JobEvent`, the end into `JobResult`. The order of the
messages, without duplicates, is `job_stream`'s.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import time
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import trio
from attrs import evolve, frozen

from hearth.errors import ArtifactDamaged
from hearth.hcp.api import ENDED, JobEvent, JobResult
from hearth.hcp.codec import read_message, read_payload, read_submission, write_message
from hearth.hcp.messages import HCP_VERSION, Event, MessageError, TaskCompleted, TaskFailed, new_id, write_instant

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from hearth.client.job_stream import JobRouter, JobStream, Messages
    from hearth.hcp.messages import Message, State, TaskAccepted

    Ask = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


ELIDED = "..."
"""The placeholder for an id in the documentation's examples; it counts as no id."""


async def submit_payload(jobs: JobRouter, payload: Mapping[str, Any], message_id: str | None) -> ClientJob:
    """Submit a job, given the payload of its task_submit. Raises MessageError for a payload that HCP does not allow."""
    document = {
        "hcp_version": HCP_VERSION,
        "message_id": new_id() if message_id is None else message_id,
        "timestamp": write_instant(time.time()),
        "session_id": None,
        "type": "task_submit",
        "payload": payload,
    }
    return await _submit(jobs, read_message(document), keep=message_id is not None)


async def submit_document(jobs: JobRouter, document: Any, message_id: str | None) -> ClientJob:
    """Submit the document of a file: a task_submit, or its payload alone. Raises MessageError."""
    submit = read_submission(document, now=time.time())
    if message_id is not None:
        submit = read_message({**write_message(submit), "message_id": message_id})
    elif submit.message_id == ELIDED:
        submit = evolve(submit, message_id=new_id())
    return await _submit(jobs, submit, keep=submit.message_id in (message_id, document.get("message_id")))


async def _submit(jobs: JobRouter, submit: Message, *, keep: bool) -> ClientJob:
    job, messages = await jobs.submit(submit, keep=keep)
    return ClientJob(jobs, job, 1, messages)


async def attach(jobs: JobRouter, session_id: str, from_sequence: int) -> ClientJob:
    """Return the handle of a job that was submitted earlier. Raises SessionInvalid."""
    job, messages = await jobs.attach(session_id, from_sequence)
    return ClientJob(jobs, job, from_sequence, messages)


class JobEvents:
    """The iterator of `async for event in job.events()`."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def __aiter__(self) -> JobEvents:
        return self

    async def __anext__(self) -> JobEvent:
        async for message in self._messages:
            event = message.payload
            if isinstance(event, Event):
                return JobEvent(
                    session_id=cast("str", message.session_id),
                    sequence=event.sequence,
                    event_type=event.event_type,
                    data=event.data,
                    at=message.timestamp,
                )
        raise StopAsyncIteration


class ClientJob:
    """An implementation of `hearth.hcp.api.JobHandle`."""

    def __init__(self, jobs: JobRouter, job: JobStream, from_sequence: int, messages: Messages) -> None:
        self._jobs = jobs
        self._job = job
        self.session_id = job.session_id
        self._from_sequence = from_sequence
        self._unread: Messages | None = messages
        """The messages that came with the job, until the first reader takes them."""

    def __repr__(self) -> str:
        return f"<job {self.session_id} {self.state}>"

    @property
    def accepted(self) -> TaskAccepted | None:
        """See hearth.hcp.api.JobHandle."""
        return self._job.accepted

    @property
    def state(self) -> State:
        """See hearth.hcp.api.JobHandle."""
        return self._job.state

    @property
    def ended(self) -> bool:
        """True once the outcome of the job has come."""
        return self._job.ended

    @property
    def entry(self) -> Mapping[str, Any]:
        """The job's entry as in `jobs` at the time of the attachment; empty for a job that was submitted here."""
        return self._job.entry

    @property
    def last_processed_sequence(self) -> int:
        """See hearth.hcp.api.JobHandle."""
        return self._job.last_processed_sequence

    def events(self, *, from_sequence: int | None = None) -> JobEvents:
        """See hearth.hcp.api.JobHandle."""
        return JobEvents(self._read(from_sequence))

    def messages(self, *, from_sequence: int | None = None) -> Messages:
        """Return the messages: the events, with the acceptance and the outcome in their places."""
        return self._read(from_sequence)

    def _read(self, from_sequence: int | None) -> Messages:
        if from_sequence in (None, self._from_sequence) and self._unread is not None:
            unread, self._unread = self._unread, None
            return unread
        return self._job.read(self._from_sequence if from_sequence is None else from_sequence)

    async def wait(self) -> JobResult:
        """See hearth.hcp.api.JobHandle."""
        await self._job.end()
        return _result(self._job)

    async def abort(self, reason: str | None = None) -> State:
        """See hearth.hcp.api.JobHandle."""
        return await self._jobs.abort(self._job, reason)


def _result(job: JobStream) -> JobResult:
    closing: Mapping[str, Any] = {} if job.closed is None else job.closed.data
    reason, outcome = closing.get("reason"), job.outcome
    if isinstance(outcome, TaskCompleted):
        return JobResult(
            session_id=job.session_id,
            state="COMPLETED",
            outputs=outcome.outputs,
            artifacts=outcome.artifacts,
            summary=outcome.execution_summary,
            reason=reason,
        )
    if isinstance(outcome, TaskFailed):
        return JobResult(
            session_id=job.session_id,
            state="FAILED",
            outputs=outcome.partial_outputs,
            artifacts=outcome.artifacts,
            summary=outcome.execution_summary,
            reason=reason or outcome.error_details.reason,
            error_code=outcome.error_code,
            error_message=outcome.error_message,
            details=outcome.error_details,
        )
    left = _left_behind(closing)
    state: State = job.state if job.state in ENDED else "FAILED"
    return JobResult(
        session_id=job.session_id,
        state=state,
        outputs=left.outputs,
        artifacts=left.artifacts,
        summary=left.execution_summary,
        reason=reason,
    )


def _left_behind(closing: Mapping[str, Any]) -> TaskCompleted:
    """Return the outputs and files in an aborted job's session_closed: HCP has no message of its own for them."""
    said = {
        "outputs": closing.get("partial_outputs") or {},
        "artifacts": closing.get("artifacts"),
        "execution_summary": closing.get("execution_summary"),
    }
    try:
        return cast("TaskCompleted", read_payload("task_completed", said))
    except MessageError:
        return TaskCompleted(outputs={})


# --- artifacts --------------------------------------------------------------------------------------------------------
#
# An artifact is fetched slice by slice and checked against the size and checksum that the daemon announces. A fetched
# file is whole or does not exist.

KINDS = {"sha256": hashlib.sha256}
"""Kind of checksum -> its hash function."""


@frozen
class _ArtifactSlice:
    """A part of an artifact, with the size and checksum of the whole."""

    data: bytes
    size: int
    checksum: str


async def read_slices(ask: Ask, uri: str) -> AsyncGenerator[bytes]:
    """Yield the artifact's bytes in order; the last part only after size and checksum have been found right.

    Raises ArtifactDamaged, InvalidParams (this caller has no artifact with this URI) or CarrierError.
    """
    offset, promised, digest = 0, None, None
    held: bytes = b""
    while True:
        part = _read(await ask("hcp.artifact", {"uri": uri, "offset": offset}), uri)
        if promised is None:
            promised = (part.size, part.checksum)
            digest = _digest(part.checksum, uri)
        elif promised != (part.size, part.checksum):
            raise ArtifactDamaged(f"{uri}: it became another file while it was fetched")
        offset += len(part.data)
        if offset > part.size or (not part.data and offset < part.size):
            raise ArtifactDamaged(f"{uri}: {offset} bytes have come of a file of {part.size}")
        assert digest is not None
        digest.update(part.data)
        if held:
            yield held
        held = part.data
        if offset == part.size:
            break
    if digest.hexdigest() != promised[1].partition(":")[2].lower():
        raise ArtifactDamaged(f"{uri}: what has come is not what its checksum promises ({promised[1]})")
    yield held


def _digest(checksum: str, uri: str) -> Any:
    kind = KINDS.get(checksum.partition(":")[0])
    if kind is None:
        raise ArtifactDamaged(f"{uri}: a checksum of a kind that is not known here: {checksum[:80]!r}")
    return kind()


def _read(answer: Mapping[str, Any], uri: str) -> _ArtifactSlice:
    data, size, checksum = (answer.get(name) for name in ("data", "size_bytes", "checksum"))
    if isinstance(data, str) and type(size) is int and isinstance(checksum, str):
        with suppress(ValueError):  # binascii.Error is one
            return _ArtifactSlice(base64.b64decode(data, validate=True), size, checksum)
    raise ArtifactDamaged(f"{uri}: the server's answer is no part of a file")


async def fetch(ask: Ask, uri: str) -> bytes:
    """Return the whole artifact. Raises as `read_slices`."""
    async with aclosing(read_slices(ask, uri)) as parts:
        return b"".join([part async for part in parts])


async def fetch_to(ask: Ask, uri: str, path: Path) -> int:
    """Write the artifact to a file and return its size in bytes; on an error `path` stays as it was.

    A file at `path` is replaced; only the owner can read the new one. Raises as `read_slices`, and OSError.
    """
    part = await trio.to_thread.run_sync(_PartialFile.make, path)
    try:
        async with aclosing(read_slices(ask, uri)) as slices:
            async for data in slices:
                await trio.to_thread.run_sync(part.write, data)
        return await trio.to_thread.run_sync(part.finish)
    finally:
        # After `finish` this removes nothing: the file has been renamed.
        part.discard()


class _PartialFile:
    """A temporary file in the directory of its final path."""

    def __init__(self, path: Path, fd: int, name: str) -> None:
        self._path = path
        self._file = os.fdopen(fd, "wb")
        self._name = name

    @classmethod
    def make(cls, path: Path) -> _PartialFile:
        if path.exists() and not path.is_file():
            raise FileExistsError(17, "there is something that is no file", str(path))
        return cls(path, *tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent))

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> int:
        size = self._file.tell()
        self._file.flush()
        os.fsync(self._file.fileno())
        Path(self._name).replace(self._path)
        return size

    def discard(self) -> None:
        self._file.close()
        Path(self._name).unlink(missing_ok=True)
