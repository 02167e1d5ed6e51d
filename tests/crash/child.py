"""One life of a hearthd that may be made to kill itself: what `support.zygote` forks, with everything imported.

Its arguments are the configuration, the tape, the directory whose changes are points, the number of the point it dies
at (0: none) and the moment. What the simulated devices are made to do is put on the tape before they do it.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import cryptography.hazmat.primitives.asymmetric.ed25519
import jsonschema
from crash.syscalls import Calls, say

import hearth.drivers.gpio.sim as sim_gpio
import hearth.drivers.i2c.sim as sim_i2c
from hearth.actors import daemon
from hearth.actors.bus.face import Face
from hearth.audit.writer import Disk
from hearth.drivers.registers import Write

LOADED = (cryptography, jsonschema)
"""What the daemon would load when it is needed: loaded once, before the fork."""


def main() -> None:
    """Be hearthd."""
    config, tape_path, root, at, moment = sys.argv[1:]
    tape = os.open(tape_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    trace_devices(tape)
    calls = Calls(tape, root, int(at), moment)
    calls.install()
    Disk.write, Disk.sync, Disk.truncate = map(staticmethod, (calls.write, calls.fdatasync, calls.ftruncate))
    say(tape, life=os.getpid())
    os.write(1, f"{os.getpid()}\n".encode())
    try:
        daemon.main(["--config", config])
    except Exception:
        traceback.print_exc()  # the zygote has no caller to raise this to
        raise
    finally:
        say(tape, ended=os.getpid(), points=calls.count)


def trace_devices(tape: int) -> None:
    """Have each write to a simulated device told to the tape first; safe states are not a step's doing."""
    transfer, drive, make_safe = sim_i2c.SimI2c._transfer, sim_gpio.SimGpio.set, Face._to_safe
    making_safe = False

    async def traced_transfer(self: Any, addr: int, messages: Any, **more: Any) -> bytes:
        written = b"".join(message.data for message in messages if isinstance(message, Write))
        if written:
            say(tape, device="i2c", data=written.hex())
        return await transfer(self, addr, messages, **more)

    def traced_drive(self: Any, line: int, state: Any) -> Any:
        if not making_safe:
            say(tape, device="gpio", line=line)
        return drive(self, line, state)

    def traced_make_safe(self: Face, outputs: Any, *, kept: bool) -> Any:
        nonlocal making_safe
        if not isinstance(self._driver, sim_gpio.SimGpio):
            return make_safe(self, outputs, kept=kept)
        making_safe = True
        say(tape, safe="gpio")
        try:
            return make_safe(self, outputs, kept=kept)
        finally:
            making_safe = False

    sim_i2c.SimI2c._transfer = traced_transfer
    sim_gpio.SimGpio.set = traced_drive
    Face._to_safe = traced_make_safe  # type: ignore[method-assign]
