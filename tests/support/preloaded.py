"""hearthd, imported once for all daemons that a test process starts: each daemon is a fork, and a child as any other.

Importing takes most of the time of a start. `Daemon` is a `subprocess.Popen` in all but its beginning: a zygote, which
has imported what every daemon imports before it is ready, forks twice and ends the process between, so the daemon is
adopted by this process. From then on nothing differs from a daemon of its own interpreter: signals, the exit status,
the threads and handlers that the end of an interpreter waits for.

Tests about the interpreter itself (its arguments, a variable that it reads, what it imports) start one: see `serves`.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import posix
import resource
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMAND = ("-m", "hearth.actors.daemon")
"""What a daemon is started with otherwise, after the interpreter."""
_OF_THE_INTERPRETER = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LANG", "LC_", "TZ")
_SET_CHILD_SUBREAPER = 36
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_LONGEST = 1 << 18
"""Bytes of a request: arguments and environment."""

_zygotes: dict[bool, _Zygote] = {}
"""One whose forks are measured, one whose forks are not: each when it is first needed."""


def serves(environ: Mapping[str, str]) -> bool:
    """Return whether an interpreter with these variables would begin as one with ours does."""
    ours, theirs = (
        {name: value for name, value in each.items() if name.startswith(_OF_THE_INTERPRETER)}
        for each in (os.environ, environ)
    )
    return ours == theirs


class _Zygote:
    """The process that has everything imported, and forks until this one ends."""

    _one_at_a_time = threading.Lock()

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([sys.executable, __file__], stdin=theirs, env=environ)
        assert self.socket.recv(8) == b"ready", "the zygote did not start"
        atexit.register(self._end)

    def _end(self) -> None:
        self.socket.close()
        self.process.wait(60)

    def fork(self, arguments: list[str], directory: str, environ: Mapping[str, str], streams: list[int]) -> int:
        start = json.dumps(
            {
                "arguments": arguments,
                "directory": directory,
                "environ": dict(environ),
                "limits": [(number, resource.getrlimit(number)) for number in _LIMITS],
            }
        )
        prctl = ctypes.CDLL(None).prctl
        with self._one_at_a_time:
            prctl(_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self.socket, [start.encode()], streams)
                return int(self.socket.recv(32))
            finally:
                prctl(_SET_CHILD_SUBREAPER, 0)


class Daemon(subprocess.Popen[str]):
    """A hearthd with these arguments."""

    def __init__(self, arguments: list[str], *, env: Mapping[str, str], **more: Any) -> None:
        measured = "COVERAGE_PROCESS_CONFIG" in env
        if measured not in _zygotes:
            _zygotes[measured] = _Zygote(env)
        self._zygote = _zygotes[measured]
        super().__init__(arguments, env=env, text=True, **more)

    def _execute_child(self, args, _executable, _preexec_fn, _close_fds, _pass_fds, cwd, env, *more: Any) -> None:  # type: ignore[no-untyped-def]
        ends = more[3:9]  # after startupinfo, creationflags and shell: stdin's, stdout's and stderr's two ends
        streams = [number if end == -1 else end for number, end in enumerate((ends[0], ends[3], ends[5]))]
        self.pid = self._zygote.fork(args, cwd or os.getcwd(), env, streams)
        self._child_created = True
        self._close_pipe_fds(*ends)


def _serve() -> Any:
    """Import, say so, and fork for each request; returns in a fork, as the daemon's main function."""
    import gc

    from hearth.actors import build, daemon
    from hearth.config.model import Config

    server = socket.socket(fileno=os.dup(0))
    # It imports what a start does, and leaves nothing behind.
    build.build_parts(Config(), default_policy=())
    gc.collect()
    gc.freeze()
    server.sendall(b"ready")
    while True:
        request, streams, _, _ = socket.recv_fds(server, _LONGEST, 3)
        if not request:
            posix._exit(0)
        reading, writing = os.pipe()
        if (between := os.fork()) == 0:
            if pid := os.fork():
                os.write(writing, str(pid).encode())
                posix._exit(0)  # not that of `os`, with which coverage writes what it has measured
            break
        # Ended, it has given its child away.
        os.waitpid(between, 0)
        server.sendall(os.read(reading, 32))
        for number in (reading, writing, *streams):
            os.close(number)
    os.close(reading)
    os.close(writing)
    server.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    gc.unfreeze()
    # As the interpreter opens them: what they lead to may differ from what they led to when this began.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    start = json.loads(request)
    os.chdir(start["directory"])
    for number, limits in start["limits"]:
        resource.setrlimit(number, tuple(limits))
    os.environ.clear()
    os.environ.update(start["environ"])
    sys.path[0] = os.getcwd()
    sys.argv = [daemon.__file__, *start["arguments"]]
    return daemon.main


if __name__ == "__main__":
    _serve()()
