"""Resuming from a checkpoint: which one a submission names, whether it may, what is on record of it (L2, Recovery).

A checkpoint belongs to its session's principal; another principal's is answered as an unknown one. A resumed job must
be the same work: same capability, same version, same inputs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.actors.bridges.hcp.execution import checkpoint_id
from hearth.audit.record import args_hash
from hearth.hcp.durable import ANNOUNCED, Recorded, unknown
from hearth.hcp.messages import CLASSIFICATIONS, Rejection

if TYPE_CHECKING:
    from collections.abc import Container

    from hearth.actors.bridges.hcp.store import JobStore
    from hearth.actors.bridges.hcp.store.queries import SessionRow
    from hearth.hcp.messages import TaskSubmit
    from hearth.hcp.safety import Approval

MEMBERS: Final = ("last_checkpoint", "resume_from")
"""Of `context`: where a submission names the checkpoint to go on from; error_details has it under the first name."""
_CHECKPOINT: Final = re.compile(r"ckpt-(.{1,200})-(\d{6,9})", re.DOTALL)


@frozen(kw_only=True)
class Resumption:
    """What a job goes on from."""

    checkpoint: str
    row: SessionRow
    steps: tuple[Recorded, ...]
    recorded: tuple[dict[str, Any], ...]
    """The same as the job store has them."""


async def resumption(
    job_store: JobStore, principal: str, submit: TaskSubmit, approval: Approval, live: Container[str]
) -> Resumption | None:
    """What a submission goes on from, if it names a checkpoint. Raises Rejection (invalid_input), and JobStoreError."""
    named = next(((name, given) for name in MEMBERS if (given := submit.context.get(name)) is not None), None)
    if named is None:
        return None
    at, checkpoint = named
    found = _CHECKPOINT.fullmatch(checkpoint) if isinstance(checkpoint, str) else None
    row = None if found is None else await job_store.session(found[1])
    if found is None or row is None or row.principal != principal:
        raise _no(at, "this is no checkpoint of a session of yours that is still kept", "leave it out to start anew")
    number = int(found[2])
    recorded = await job_store.outcomes(row.session_id, row.checkpoints)
    while 0 < number < row.checkpoints and recorded[number]["kind"] not in ANNOUNCED:
        # No checkpoint was told of what is no step: it goes with the step before it.
        number += 1
    # Of what was under way when the daemon died the outcome will never be known, and from now on that is on record.
    begun = await job_store.begun(row.session_id) if number == row.checkpoints else []
    if number > row.checkpoints or not (number or begun):
        cure = f"name {checkpoint_id(row.session_id, row.checkpoints)}" if row.checkpoints else "leave it out"
        raise _no(at, f"session {row.session_id} has {row.checkpoints} checkpoints", cure)
    if row.session_id in live:
        raise _no(at, f"session {row.session_id} is still running", "abort it first, or wait for its end")
    capability = approval.capability
    if (row.capability, row.version) != (capability.name, capability.version):
        was = f"{row.capability} {row.version}"
        raise _no(at, f"the checkpoint is of {was}, not of {capability.name} {capability.version}", "start anew")
    if row.inputs_hash != args_hash(approval.inputs):
        raise _no(at, "the inputs are not those that the checkpoint was made with", "submit the same inputs")
    if CLASSIFICATIONS.index(approval.classification) < CLASSIFICATIONS.index(row.data_classification):
        was = row.data_classification
        raise _no(at, f"the checkpoint holds data of class {was}", f"submit it with data_classification {was}")
    recorded = recorded[:number] + [unknown(operation).write() for operation in begun]
    steps = tuple(map(Recorded.read, recorded))
    return Resumption(checkpoint=checkpoint, row=row, steps=steps, recorded=tuple(recorded))


def _no(member: str, reason: str, cure: str) -> Rejection:
    return Rejection("invalid_input", f"/payload/context/{member}: {reason}", suggestion=cure)
