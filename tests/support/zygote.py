"""A program that is started many times and imported once: each start is a fork, on the caller's own three streams.

For tests in which another program starts ours again and again, where importing takes most of the time and is not what
is tested. `zygote.py serve SOCKET MODULE:FUNCTION` imports and waits; `python -I -S zygote.py call SOCKET ARGS…`
behaves as the program does with these arguments: it hands over its stdin, stdout and stderr, and ends as the fork ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def serve(path: str, target: str) -> None:
    """Import, say so in a line, and fork for every caller, for ever."""
    import importlib
    import signal

    name, _, function = target.partition(":")
    entry = getattr(importlib.import_module(name), function)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    # Nobody waits for the forks: their callers are told how they ended.
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
        sys.argv[1:] = json.loads(arguments)
        code = 1
        try:
            entry()
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        finally:
            sys.stdout.flush()
            caller.sendall(bytes([code]))
            os._exit(code)


def call(path: str, *arguments: str) -> None:
    """Be the program."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    socket.send_fds(server, [json.dumps(arguments).encode()], [0, 1, 2])
    # What the other end of a pipe sees must be up to the fork alone.
    for number in (0, 1, 2):
        os.close(number)
    code = server.recv(1)
    os._exit(code[0] if code else 1)


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
