"""The drawer: a process that hearthd forks before it gives up its rights, to have plots drawn for it (decision 0089).

A confined daemon can start no program, and send no descriptor. What it may still ask for is one thing: that the program
which draws is started on three pipes, whose other ends it gets, and stopped. The drawer owns that: the program, the
directory it works in, and the end of both. It reads nothing of what is drawn, takes no name of a program, and ends when
the daemon does.

Messages, one datagram each: `draw N` and `stop N`; and back for each drawing `N pipes`, with the descriptors to write
to its stdin and to read its stdout and stderr, then `N CODE`. `N ! WORDS` comes instead where nothing could be started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from hearth.interpreter import python_module

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

    from hearth.actors.bridges.hcp.drawer_limits import Limits

COMMAND: Final = tuple(python_module("hearth.hcp.plotting"))
MOST_TOLD: Final = 1024
"""Bytes of a message."""
PATIENCE: Final = 1.0
"""Seconds that the daemon waits for the drawer's end, when it ends itself."""
_HANDED_ON: Final = ("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_HANDED_ON_BEGINNINGS: Final = ("LC_", "COVERAGE_", "HEARTH_SANDBOX_")
_STDERR: Final = 2
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


class Drawer:
    """The daemon's end. Made by `start_drawer`; used by `drawing.by`, for one drawing after the other."""

    def __init__(self, ours: socket.socket | None = None, pid: int = 0) -> None:
        self._socket = ours
        self._pid = pid
        if ours is not None:
            ours.setblocking(False)
            # Now, while it can be none but ours.
            self._pidfd = os.pidfd_open(pid)
        self._last = 0

    @property
    def can_draw(self) -> bool:
        """Whether there was something to draw with."""
        return self._socket is not None

    def fileno(self) -> int:
        """What can be waited for: readable means that something has been told."""
        return self._line.fileno()

    @property
    def _line(self) -> socket.socket:
        if self._socket is None:
            raise EOFError
        return self._socket

    def draw(self) -> int:
        """Ask for a drawing; its number. Raises OSError where nobody is there any more."""
        self._last += 1
        self._line.send(b"draw %d" % self._last)
        return self._last

    def stop(self, number: int) -> None:
        """Ask for the end of a drawing; it is told as any other."""
        with contextlib.suppress(OSError):
            self._line.send(b"stop %d" % number)

    def told(self) -> tuple[int, str, list[int]]:
        """What has been told: the number of a drawing, and its exit code or "! " and why there is none.

        First comes "pipes", with the descriptors of its stdin, stdout and stderr, which are the caller's to close.
        Raises BlockingIOError where nothing has been told, EOFError where nobody is there any more.
        """
        try:
            said, descriptors, _, _ = socket.recv_fds(self._line, MOST_TOLD, 3)
        except ConnectionResetError:
            said, descriptors = b"", []
        if not said:
            raise EOFError
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        number, _, outcome = said.decode("utf-8", "replace").partition(" ")
        return int(number), outcome, list(descriptors)

    def close(self) -> None:
        """Let it end, and wait for that a little. Blocking; idempotent."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if poll.poll(PATIENCE * 1000):
            os.waitpid(self._pid, 0)
        os.close(self._pidfd)


def start_drawer(limits: Limits | None = None, command: Sequence[str] = COMMAND) -> Drawer:
    """Fork the drawer, before there are threads; where there is no matplotlib to draw with, none is forked."""
    if find_spec("matplotlib") is None:
        return Drawer()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it is None where the descriptor was closed when Python started
            # What is buffered would be written by both.
            stream.flush()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _become_drawer(theirs)
            if limits is not None:
                limits.settle()
            _attend(theirs, command, limits)
            code = 0
        finally:
            # Whatever happened: nothing of the daemon's own ending is this process's to do.
            os._exit(code)
    theirs.close()
    return Drawer(ours, pid)


def environment(given: Mapping[str, str], folder: str) -> dict[str, str]:
    """What the program gets of an environment: how to run, and none of anybody's preferences or secrets."""
    kept = {name: value for name, value in given.items() if _is_handed_on(name)}
    return {**kept, "HOME": folder, "MPLCONFIGDIR": folder}


def _is_handed_on(name: str) -> bool:
    return name in _HANDED_ON or name.startswith(_HANDED_ON_BEGINNINGS)


# --- in the drawer --------------------------------------------------------------------------------------------------


def _become_drawer(line: socket.socket) -> None:
    """Let go of everything that is the daemon's: its descriptors, its signals, its terminal."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Meant for the daemon, which has drawings stopped in its own order; its end is ours.
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    with contextlib.suppress(PermissionError):
        os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(_STDERR + 1):
        os.dup2(nothing, descriptor)
    kept = line.fileno()
    os.closerange(_STDERR + 1, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    _prctl(_PR_SET_NAME, b"hearth-drawer")


def _prctl(option: int, value: int | bytes) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _attend(line: socket.socket, command: Sequence[str], limits: Limits | None) -> None:
    """Do what is asked until nobody can ask any more."""
    while True:
        asked = line.recv(MOST_TOLD)
        if not asked:
            return
        word, _, number = asked.partition(b" ")
        if word != b"draw":
            continue  # the end of one that had ended by itself
        outcome = _have_drawn(line, number, command, limits)
        with contextlib.suppress(OSError):
            line.send(b"%s %s" % (number, outcome.encode()[: MOST_TOLD // 2]))


def _have_drawn(line: socket.socket, number: bytes, command: Sequence[str], limits: Limits | None) -> str:
    import shutil
    import subprocess
    import tempfile

    drawer, folder = os.getpid(), None
    descriptors: list[int] = []
    try:
        folder = tempfile.mkdtemp(prefix="hearth-plot-")
        for _ in range(3):
            descriptors += os.pipe()
        stdin, to_stdin, from_stdout, stdout, from_stderr, stderr = descriptors
        socket.send_fds(line, [b"%s pipes" % number], [to_stdin, from_stdout, from_stderr])
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            env=environment(os.environ, folder),
            start_new_session=True,
            preexec_fn=lambda: _become_program(drawer, folder, limits),  # noqa: PLW1509  there are no threads here
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"! {command[0]} cannot be started: {getattr(error, 'strerror', None) or error}"
    else:
        _close(descriptors)
        return str(_until_its_end(line, process))
    finally:
        _close(descriptors)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _become_program(drawer: int, folder: str, limits: Limits | None) -> None:
    """Between fork and exec: nothing here has threads, so it may be Python."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != drawer:
        # It was killed before this could be asked for: whoever waits must not wait for its program.
        os._exit(1)
    if limits is not None:
        limits.restrict(folder)


def _until_its_end(line: socket.socket, process: subprocess.Popen[bytes]) -> int:
    """Wait for it, unless it is to be stopped or nobody is there any more; its exit code."""
    ended = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(line, select.POLLIN)
        poll.register(ended, select.POLLIN)
        if all(descriptor != ended for descriptor, _ in poll.poll()):
            # All that can come now is that it is to be stopped; an end of file is left for who reads next.
            line.recv(MOST_TOLD)
    finally:
        os.close(ended)
        # Before it is waited for: until then its number, and its group's, can be nobody else's.
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
