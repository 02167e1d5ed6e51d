"""One life of a hearthd that kills itself at a write of the job store: what `support.zygote` forks.

Its arguments are those of `crash.child`: the configuration, the tape, a directory (not used here), the number of the
write that it dies at (0: none) and the moment: before the transaction, in the middle (everything is done and not
committed), or after its commit. How many writes there were is on the tape when it ends properly.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

import cryptography.hazmat.primitives.asymmetric.ed25519
import jsonschema
from crash.syscalls import say

import hearth.actors.bridges.hcp.service
import hearth.hcp.library
from hearth.actors import daemon
from hearth.actors.bridges.hcp.store.database import JobDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOADED = (cryptography, jsonschema, hearth.actors.bridges.hcp.service, hearth.hcp.library)
"""What the daemon would load when it is needed: loaded once, before the fork."""


def main() -> None:
    """Be hearthd."""
    config, tape_path, _, at, moment = sys.argv[1:]
    tape = os.open(tape_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    real, writes = JobDatabase.write, 0

    def die(_job_store: object = None) -> None:
        say(tape, killed=writes, moment=moment)
        os.kill(os.getpid(), signal.SIGKILL)
        while True:
            signal.pause()

    def write(self: JobDatabase, operations: Sequence[Callable[[Any], Any]]) -> list[Any]:
        nonlocal writes
        writes += 1
        here = writes == int(at)
        if here and moment == "before":
            die()
        results = real(self, [*operations, die] if here and moment == "middle" else operations)
        if here:
            die()
        return results

    JobDatabase.write = write  # type: ignore[assignment]
    os.write(1, f"{os.getpid()}\n".encode())
    try:
        daemon.main(["--config", config])
    except Exception:
        traceback.print_exc()  # the zygote has no caller to raise this to
        raise
    finally:
        say(tape, ended=os.getpid(), writes=writes)
