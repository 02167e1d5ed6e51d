"""hearthd for measurements: `python -m benchmarks.hearthd [--style STYLE] [--profile FILE --how HOW] [--can FD]…`.

It is the daemon's own `main`, with what no configuration can say: `--style thread` gives the simulated board's drivers
threads of their own; `--profile` watches the daemon between SIGUSR1 (begin) and SIGUSR2 (end, and write FILE); with
`--can` the driver of CAN interfaces reads an inherited UDP socket in place of one. Other arguments are the daemon's.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from hearth.actors import daemon
from hearth.actors.build import build_parts
from hearth.drivers.base import Style
from hearth.drivers.can import linux as can

if TYPE_CHECKING:
    from benchmarks.watchers import Watcher


def main() -> None:
    """Change what is asked for, then be hearthd."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--style", type=Style)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--how", default="sample")
    parser.add_argument("--can", type=int)
    options, arguments = parser.parse_known_args()
    if options.profile is not None:
        from benchmarks.watchers import WATCHERS

        _on_signals(WATCHERS[options.how](), options.profile)
        # The daemon confines itself, and the profile is written from within.
        os.environ["HEARTH_SANDBOX_WRITE"] = str(options.profile.absolute().parent)
    # As the daemon's own main calls it, with the style that tests of the runtime may give it.
    with ExitStack() as stack:
        parts = functools.partial(build_parts, style=options.style)
        stack.enter_context(patch.object(daemon, "build_parts", parts))
        if options.can is not None:
            stack.enter_context(patch.object(can.LinuxCan, "open_sockets", lambda _: _inherited(options.can)))
        daemon.main(arguments)


def _inherited(number: int) -> tuple[socket.socket, socket.socket]:
    """Two sockets of an inherited descriptor, for receiving and for sending; nothing is sent."""
    rx, tx = (socket.socket(fileno=os.dup(number)) for _ in range(2))
    can.prepare(rx)
    return rx, tx


def _on_signals(watcher: Watcher, path: Path) -> None:
    def end(*_: Any) -> None:
        watcher.stop()
        # Whoever waits for the file must find it whole.
        draft = path.with_suffix(".draft")
        watcher.write(draft)
        draft.rename(path)

    signal.signal(signal.SIGUSR1, lambda *_: watcher.start())
    signal.signal(signal.SIGUSR2, end)


if __name__ == "__main__":
    main()
