"""Going on from a checkpoint: which one a submission names, whether it may, and what is on record of it (L2, Recovery).

A checkpoint belongs to its session's principal; another's is not told apart from none. What a job goes on with must be
the same work: same capability, same version, same inputs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import asdict, frozen

from hearth.audit.record import args_hash
from hearth.errors import HearthError
from hearth.hcp.planning import Do, Outcome, Tell, Wait
from hearth.hcp.rejection import Rejection
from hearth.hcp.values import CLASSIFICATIONS

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from hearth.actors.bridges.hcp.book import Book
    from hearth.actors.bridges.hcp.book_rows import SessionRow
    from hearth.hcp.gate import Approval
    from hearth.hcp.messages import TaskSubmit
    from hearth.hcp.planning import Action, Course

MEMBERS: Final = ("last_checkpoint", "resume_from")
"""Of `context`: where a submission names the checkpoint to go on from; error_details has it under the first name."""
_CHECKPOINT: Final = re.compile(r"ckpt-(.{1,200})-(\d{6,9})", re.DOTALL)


@frozen
class Recorded:
    """A step as it is on record: what it was, and what came of it."""

    tool: str
    name: str
    """As an account of the job calls it."""
    outcome: Outcome

    def write(self) -> dict[str, Any]:
        """For the book."""
        return {"tool": self.tool, "name": self.name, "outcome": asdict(self.outcome)}

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Recorded:
        """From the book."""
        return cls(written["tool"], written["name"], Outcome(**written["outcome"]))


class CannotGoOn(HearthError):
    """A course that does not follow the outcomes it is said to have had: its plan is not the one they are from."""


@frozen(kw_only=True)
class Resumption:
    """What a job goes on from."""

    checkpoint: str
    row: SessionRow
    steps: tuple[Recorded, ...]
    recorded: tuple[dict[str, Any], ...]
    """The same as the book has them."""


def checkpoint_id(session_id: str, number: int) -> str:
    """The name of the checkpoint after so many steps."""
    return f"ckpt-{session_id}-{number:06d}"


def number_of(checkpoint: str) -> int:
    """The steps done before a checkpoint of ours."""
    return int(checkpoint.rpartition("-")[2])


async def resumption(
    book: Book, principal: str, submit: TaskSubmit, approval: Approval, live: Container[str]
) -> Resumption | None:
    """What a submission goes on from, if it names a checkpoint. Raises Rejection (invalid_input), and BookError."""
    named = next(((name, given) for name in MEMBERS if (given := submit.context.get(name)) is not None), None)
    if named is None:
        return None
    at, checkpoint = named
    found = _CHECKPOINT.fullmatch(checkpoint) if isinstance(checkpoint, str) else None
    row = None if found is None else await book.session(found[1])
    if found is None or row is None or row.principal != principal:
        raise _no(at, "this is no checkpoint of a session of yours that is still kept", "leave it out to start anew")
    number = int(found[2])
    if not 1 <= number <= row.checkpoints:
        cure = f"name {checkpoint_id(row.session_id, row.checkpoints)}" if row.checkpoints else "leave it out"
        raise _no(at, f"session {row.session_id} has {row.checkpoints} checkpoints", cure)
    if row.session_id in live:
        raise _no(at, f"session {row.session_id} is still running", "abort it first, or wait for its end")
    capability = approval.capability
    if (row.capability, row.version) != (capability.name, capability.version):
        was = f"{row.capability} {row.version}"
        raise _no(at, f"the checkpoint is of {was}, not of {capability.name} {capability.version}", "start anew")
    if not row.resumable or not capability.plan.resumable:
        raise _no(at, f"jobs of {capability.name} cannot be resumed", "leave it out to start anew")
    if row.inputs_hash != args_hash(approval.inputs):
        raise _no(at, "the inputs are not those that the checkpoint was made with", "submit the same inputs")
    if CLASSIFICATIONS.index(approval.classification) < CLASSIFICATIONS.index(row.data_classification):
        was = row.data_classification
        raise _no(at, f"the checkpoint holds data of class {was}", f"submit it with data_classification {was}")
    recorded = tuple(await book.outcomes(row.session_id, number))
    steps = tuple(map(Recorded.read, recorded))
    return Resumption(checkpoint=checkpoint, row=row, steps=steps, recorded=recorded)


def _no(member: str, reason: str, cure: str) -> Rejection:
    return Rejection("invalid_input", f"/payload/context/{member}: {reason}", suggestion=cure)


async def catch_up(course: Course, recorded: Sequence[Recorded]) -> Outcome | None:
    """Bring a course to where what is on record ends, doing nothing; the last outcome is for it to be told next.

    Raises CannotGoOn.
    """
    told: Outcome | None = None
    for step in recorded:
        # There may be thousands, and others want their turn.
        await trio.lowlevel.checkpoint()
        elapsed = 0.0 if told is None else told.elapsed_s
        action: Action = await course.next(told, elapsed)
        while isinstance(action, (Wait, Tell)):
            action = await course.next(None, elapsed)
        if not isinstance(action, Do) or action.tool != step.tool:
            raise CannotGoOn(f"the plan is not the one that made checkpoint {len(recorded)}: its steps are others")
        told = step.outcome
    return told
