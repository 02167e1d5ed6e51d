"""What signals ask of the daemon, from its first moment to its last.

SIGTERM and SIGINT ask it to end: before the event loop runs at once, for nothing has begun; while it runs by being
waited for; afterwards by nothing, because it is over and the exit status says how. SIGHUP asks it to read its
certificates again, unless the terminal that it was started from has gone: then it asks it to end as the others do,
since somebody who closes a terminal must not leave outputs driven. A SIGHUP that was ignored at the start (nohup)
stays ignored. It decides nothing else about how the daemon ends.

What a service manager wants of a daemon: readiness (sd_notify) and sockets it opened for us (socket activation).

Both are a few lines over environment variables and a datagram, defined by sd_notify(3) and sd_listen_fds(3).
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections import deque
from contextlib import asynccontextmanager, suppress
from queue import Full, Queue
from typing import TYPE_CHECKING, Final

import trio

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
    from types import FrameType

# --- voice ------------------------------------------------------------------------------------------------------------
# What the daemon says on stderr, written by a thread of its own.
#
# A terminal that is stopped, a pipe that nobody reads or a logging service that hangs takes what is written to it when
# it likes, and until then holds up whoever writes. Here that is a thread which does nothing else; lines that find the
# queue full are dropped and counted. It decides nothing about what is said.

STDERR: Final = 2
MOST_LINES: Final = 1000
"""Messages that may wait to be written."""
PATIENCE: Final = 1.0
"""Seconds that the end of the process waits for what has been said to be written."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class NonBlockingLogHandler(logging.Handler):
    """A logging handler that never waits; `say` takes a line as it is. What is said before `start` waits until then."""

    def __init__(self, descriptor: int = STDERR) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: Queue[bytes | None] = Queue(MOST_LINES)
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; not before the process is confined, or the thread would not be. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="hearth-voice", daemon=True)
            self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler. What a client had a hand in may try to look like another message, or paint screens."""
        record.msg, record.args = _CONTROL.sub(lambda found: repr(found[0])[1:-1], record.getMessage()), None
        self.say(self.format(record))

    def say(self, text: str) -> None:
        """Write a line, soon."""
        if self._dropped:
            text = f"({self._dropped} messages were dropped here: nobody took them)\n{text}"
        try:
            self._lines.put_nowait(text.encode(errors="backslashreplace") + b"\n")
        except Full:
            self._dropped += 1
        else:
            self._dropped = 0

    def end(self) -> None:
        """Wait a little until all is written."""
        self.start()
        with suppress(Full):
            self._lines.put_nowait(None)
            if self._thread is not None:
                self._thread.join(PATIENCE)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            rest = memoryview(line)
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:
                    # Somebody has made the open file non-blocking, which all who share it then are subject to.
                    os.set_blocking(self._descriptor, True)
                except OSError:
                    # Nobody is there any more. The next line is tried again: a terminal may come back.
                    break


def keep_standard_descriptors() -> None:
    """Open what is closed of stdin, stdout and stderr, so that no device or log gets the number that messages go to."""
    for descriptor in range(STDERR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


# --- signals ----------------------------------------------------------------------------------------------------------

RELOAD = "reload"
"""What `next` returns for a signal that asks for certificates to be read again."""


class Signals:
    """The signals of this process, taken over for good; made in the main thread."""

    def __init__(self) -> None:
        self._arrived: deque[str] = deque()
        self._had_terminal = _has_terminal()
        self._starting, self._over = True, False
        self._token: trio.lowlevel.TrioToken | None = None
        self._changed = trio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        asked = signal.Signals(number).name
        if number == signal.SIGHUP and not (self._had_terminal and not _has_terminal()):
            asked = RELOAD
        if self._starting:
            if asked is RELOAD:
                # Nothing has been read yet that could be out of date.
                return
            raise SystemExit(0)
        if not self._over:
            self._arrived.append(asked)
            if self._token is not None:
                self._token.run_sync_soon(self._wake)

    def _wake(self) -> None:
        self._changed.set()

    def started(self) -> None:
        """The event loop is about to run: from now on signals are kept for `next`."""
        self._starting = False

    async def next(self) -> str:
        """Wait for a signal and return its name, or RELOAD; those that came meanwhile come first."""
        self._token = trio.lowlevel.current_trio_token()
        while not self._arrived:
            self._changed = trio.Event()
            if not self._arrived:
                await self._changed.wait()
        return self._arrived.popleft()

    async def end(self) -> str:
        """Wait for a signal that asks to end, and return its name."""
        while (name := await self.next()) is RELOAD:
            pass
        return name

    def over(self) -> None:
        """The daemon has ended: signals no longer mean anything."""
        self._over = True


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal at this moment."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


# --- watchdog ---------------------------------------------------------------------------------------------------------
# Tells the service manager that the daemon is alive, for as long as it is (systemd's WatchdogSec=).
#
# By sd_watchdog_enabled(3). It owns when a sign of life is due and what it stands for: this task ran, so the event loop
# turns, and the journal's actor answered, so records are still taken. It refuses to vouch for anything else: a wedged
# bus or a full disk is told by health, and starting the daemon anew would mend neither.

ALIVE: Final = "WATCHDOG=1"
SHARE: Final = 3
"""Signs of life in one of the manager's periods: one that comes late is not the last."""

log = logging.getLogger("hearth.watchdog")


def period(environ: Mapping[str, str], pid: int) -> float | None:
    """Seconds within which the service manager wants a sign of life of this process, or None if it wants none."""
    text = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid) or not environ.get("NOTIFY_SOCKET"):
        return None
    microseconds = int(text) if text.isascii() and text.isdecimal() else 0
    return microseconds / 1_000_000 or None


@asynccontextmanager
async def watched(
    environ: Mapping[str, str], notifier: Notifier, answers: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """While the body runs, tell the service manager so each time that `answers` returns, if it wants to be told."""
    seconds = period(environ, os.getpid())
    if seconds is None:
        yield
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell, notifier, seconds, answers)
        yield
        nursery.cancel_scope.cancel()


async def _tell(notifier: Notifier, seconds: float, answers: Callable[[], Awaitable[None]]) -> None:
    while True:
        with trio.move_on_after(seconds) as waiting:
            await answers()
        if waiting.cancelled_caught:
            log.error("the journal has not answered for %g s, so the service manager gets no sign of life", seconds)
            continue
        # One that does not receive it must not hold the event loop, and gets the next one.
        notifier.tell(ALIVE, patience=0)
        await trio.sleep(seconds / SHARE)


# --- service ----------------------------------------------------------------------------------------------------------

FIRST_FD = 3
NOTIFY_PATIENCE = 0.5
"""Seconds that a service manager may take to receive a state."""


class Notifier:
    """Tells the service manager states, if there is one that wants to be told (NOTIFY_SOCKET).

    Its socket is made and connected at once: a confined daemon makes no such socket, and sends to no address. A manager
    that has gone is not our trouble.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._socket: socket.socket | None = None
        address = environ.get("NOTIFY_SOCKET")
        if not address:
            return
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            made.connect("\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            made.close()
        else:
            self._socket = made

    def fileno(self) -> int | None:
        """The descriptor of the socket, if there is one."""
        return None if self._socket is None else self._socket.fileno()

    def tell(self, state: str, *, patience: float = NOTIFY_PATIENCE) -> None:
        """Send a state such as "READY=1". A manager that hangs must not take us along."""
        if self._socket is not None:
            self._socket.settimeout(patience)
            with suppress(OSError):
                self._socket.send(state.encode())

    def close(self) -> None:
        """Tell nothing any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def activated_socket(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The listening Unix socket that the service manager passed, or None; the variables are taken out of `environ`.

    Raises ConfigError when what was passed is not one listening Unix stream socket.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal() or count == "0":
        return None
    if count != "1":
        raise ConfigError(f"LISTEN_FDS={count}: hearthd takes one socket; keep one ListenStream= in the .socket unit")
    try:
        os.set_inheritable(FIRST_FD, False)
        passed = socket.socket(fileno=FIRST_FD)
        listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"LISTEN_FDS: descriptor 3 is not a socket: {error.strerror}") from None
    if not listening or passed.family != socket.AF_UNIX or passed.type != socket.SOCK_STREAM:
        raise ConfigError("LISTEN_FDS: descriptor 3 is not a listening Unix stream socket; use ListenStream=/path")
    name = passed.getsockname()
    if not isinstance(name, str) or not name.startswith("/"):
        # An abstract name has no file, so no mode and no group: everybody on the machine could connect.
        raise ConfigError("LISTEN_FDS: the socket has no path in the file system; use ListenStream=/path")
    passed.setblocking(False)
    return passed
