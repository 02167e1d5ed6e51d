"""One life of a hearthd with an uplink that kills itself at a boundary: what `support.zygote` forks.

Its arguments are those of `crash.child`: the configuration, a tape, a directory (not used here), the number of the
boundary that it dies at (0: none), and the name of the boundaries that are counted, or "-" for all. A boundary is a
moment before or after a commit of the job store, an acknowledgement, or a publication.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cryptography.hazmat.primitives.asymmetric.ed25519
import jsonschema
from crash.syscalls import say
from fleet.bench import count_pulses

import hearth.actors.bridges.amqp.uplink
import hearth.actors.bridges.hcp.service
import hearth.hcp.library
from hearth.actors import daemon
from hearth.actors.bridges.amqp.connection import Confirmation, Publisher
from hearth.actors.bridges.hcp.store.database import JobDatabase
from hearth.amqp.channel import Delivery
from hearth.drivers.gpio.sim import SimGpio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOADED = (cryptography, jsonschema, hearth.actors.bridges.hcp.service, hearth.actors.bridges.amqp.uplink)
"""What the daemon would load when it is needed: loaded once, before the fork."""


def main() -> None:
    """Be hearthd."""
    config, tape_path, _, at, counted = sys.argv[1:]
    tape = os.open(tape_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_CREAT)
    passed = 0

    def boundary(name: str) -> None:
        nonlocal passed
        if counted not in ("-", name):
            return
        passed += 1
        if passed == int(at):
            say(tape, killed=passed, boundary=name)
            os.kill(os.getpid(), signal.SIGKILL)
            while True:
                signal.pause()

    def make_and_count(self: SimGpio, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        count_pulses(self, Path(config))

    make = SimGpio.__init__
    write, ack, send, wait = JobDatabase.write, Delivery.ack, Publisher.send, Confirmation.wait

    def write_and_count(self: JobDatabase, operations: Sequence[Callable[[Any], Any]]) -> list[Any]:
        boundary("before a commit")
        results = write(self, operations)
        boundary("after a commit")
        return results

    def ack_and_count(self: Delivery) -> None:
        boundary("before an ack")
        ack(self)
        boundary("after an ack")

    async def send_and_count(self: Publisher, *args: Any, **named: Any) -> Confirmation:
        boundary("before a publication")
        return await send(self, *args, **named)

    async def wait_and_count(self: Confirmation) -> None:
        await wait(self)
        boundary("after a confirmation")

    for owner, name, replaced in (
        (SimGpio, "__init__", make_and_count),
        (JobDatabase, "write", write_and_count),
        (Delivery, "ack", ack_and_count),
        (Publisher, "send", send_and_count),
        (Confirmation, "wait", wait_and_count),
    ):
        setattr(owner, name, replaced)
    os.write(1, f"{os.getpid()}\n".encode())
    try:
        daemon.main(["--config", config])
    except Exception:
        traceback.print_exc()  # the zygote has no caller to raise this to
        raise
    finally:
        say(tape, ended=os.getpid(), passed=passed)
