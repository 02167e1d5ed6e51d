"""A program that is started many times and imported once: each start is a fork, on the caller's own three streams.

For tests in which another program starts ours again and again, where importing takes most of the time and is not what
is tested. `zygote.py serve SOCKET MODULE:FUNCTION` imports and waits; `python -I -S zygote.py call SOCKET ARGS…`
behaves as the program does with these arguments: it hands over its directory, environment, stdin, stdout and stderr,
and ends as the fork ends. `Zygote` starts the server.
"""

from __future__ import annotations

import json
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Zygote:
    """The process that has everything imported, and forks."""

    def __init__(self, directory: Path, program: str) -> None:
        import subprocess

        self.path = directory / "zygote.sock"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.zygote", "serve", str(self.path), program],
            stdout=subprocess.PIPE,
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the zygote did not start"

    def command(self, path: Path) -> None:
        """Write an executable to `path` that behaves as the program does."""
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {os.path.abspath(__file__)} call {self.path} "$@"\n')
        path.chmod(0o755)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self._process.stdout.close()  # type: ignore[union-attr]


def serve(path: str, target: str) -> None:
    """Import, say so in a line, and fork for every caller, for ever."""
    import importlib
    import signal
    import traceback

    name, _, function = target.partition(":")
    entry = getattr(importlib.import_module(name), function)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    # The forks are not waited for: their callers get their exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        caller, _ = listener.accept()
        if os.fork():
            caller.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        arguments, streams, _, _ = socket.recv_fds(caller, 1 << 16, 3)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        # As the interpreter opens them: what they lead to may differ from what they led to when this began.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        start = json.loads(arguments)
        sys.argv[1:] = start["arguments"]
        if "directory" in start:
            os.chdir(start["directory"])
            os.environ.clear()
            os.environ.update(start["environ"])
        code = 1
        try:
            entry()
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        except Exception:
            traceback.print_exc()  # as the interpreter would
            raise
        finally:
            sys.stdout.flush()
            caller.sendall(bytes([code]))
            os._exit(code)


def call(path: str, *arguments: str) -> None:
    """Be the program."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    start = {"arguments": arguments, "directory": os.getcwd(), "environ": dict(os.environ)}
    socket.send_fds(server, [json.dumps(start).encode()], [0, 1, 2])
    # What the other end of a pipe sees must be up to the fork alone.
    for number in (0, 1, 2):
        os.close(number)
    code = server.recv(1)
    os._exit(code[0] if code else 1)


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
