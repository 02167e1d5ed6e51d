"""One life of a hearthd that may kill itself at a change of its latch file: what `support.zygote` forks.

Its arguments are those of `crash.child`; a point is a call that changes the latch or the draft of it, and the sync of
the directory that follows such a call.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import Any

import cryptography.hazmat.primitives.asymmetric.ed25519
import jsonschema
from crash.syscalls import Calls, say

from hearth.actors import daemon

LOADED = (cryptography, jsonschema)
"""What the daemon would load when it is needed: loaded once, before the fork."""


class LatchCalls(Calls):
    """The calls that change the latch. All others are made as they are."""

    _renamed_in: int | None = None
    """The thread that has just given the latch its name, or taken it away: its next call syncs the directory."""

    def _point(self, kind: str, path: str, act: Any, entry: Any, half: Any = None) -> Any:
        thread = threading.get_ident()
        if ".halt" not in path and not (kind == "sync directory" and self._renamed_in == thread):
            return act()
        self._renamed_in = thread if kind in ("rename", "unlink") else None
        return super()._point(kind, path, act, entry, half)


def main() -> None:
    """Be hearthd."""
    config, tape_path, root, at, moment = sys.argv[1:]
    tape = os.open(tape_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    calls = LatchCalls(tape, root, int(at), moment)
    calls.install()
    say(tape, life=os.getpid())
    os.write(1, f"{os.getpid()}\n".encode())
    try:
        daemon.main(["--config", config])
    except Exception:
        traceback.print_exc()  # the zygote has no caller to raise this to
        raise
    finally:
        say(tape, ended=os.getpid(), points=calls.count)
