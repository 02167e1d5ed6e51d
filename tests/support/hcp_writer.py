"""A process that writes a job store as fast as it can, says what it was answered, and waits to be killed.

`hcp_writer.py DIRECTORY` imports once; for each line on its standard input it forks a writer, prints `begun PID`, and
`over` when that has ended. What a writer prints is one JSON array a line, after the job store has answered.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import trio
from support.hcp_job_store import ANN, event, line, row

from hearth.actors.bridges.hcp.artifacts import ArtifactStore
from hearth.actors.bridges.hcp.store import JobStore

AT_ONCE = 4
STEPS = 6


def say(*what: object) -> None:
    """One line, whole: nothing of it waits in this process."""
    os.write(1, json.dumps(what).encode() + b"\n")


async def job(job_store: JobStore, store: ArtifactStore, number: int) -> None:
    """One session from its submission to its end."""
    begun = row(number)
    session = begun.session_id
    if (await job_store.claim(ANN, begun.message_id, "digest")).kind != "new":
        raise AssertionError(f"{begun.message_id} is not new")
    await job_store.answer(ANN, begun.message_id, line("task_accepted", number), begun)
    say("answered", number)
    sequence = 0
    for step in range(1, STEPS + 1):
        sequence += 2
        await job_store.record(
            session, step, {"n": step}, [event(sequence - 1, number), event(sequence, number, step=step)]
        )
        say("recorded", number, step)
    artifact = await store.keep(session, "n", "n.csv", "text/csv", b"x" * (number * 997 % 200_000))
    say("kept", number, artifact.uri, artifact.checksum)
    await job_store.end(session, "COMPLETED", [line("task_completed", number), event(sequence + 1, number)])
    say("ended", number)


async def write(directory: Path, first: int) -> None:
    """Jobs from that number on, several at once, until somebody ends this process."""
    job_store = JobStore(directory)
    job_store.open()
    store = ArtifactStore(directory, job_store, most_each=1 << 20, most_all=1 << 30)
    store.open()

    async def jobs(number: int) -> None:
        while True:
            await job(job_store, store, number)
            number += AT_ONCE

    async with trio.open_nursery() as nursery:
        await nursery.start(job_store.run)
        for offset in range(AT_ONCE):
            nursery.start_soon(jobs, first + offset)


def main() -> None:
    for order in sys.stdin:
        pid = os.fork()
        if not pid:
            trio.run(write, Path(sys.argv[1]), int(order))
        say("begun", pid)
        os.waitpid(pid, 0)
        say("over")


if __name__ == "__main__":
    main()
