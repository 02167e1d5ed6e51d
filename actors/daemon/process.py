"""The daemon as a process: its messages on stderr, its signals, and its service manager.

Signals. SIGTERM and SIGINT ask the daemon to end. Before the event loop runs, the process exits at once, because
nothing has begun. While the loop runs, `Signals.next` returns them. After the end they are ignored. SIGHUP asks it to
read policy and certificates again. If the terminal from which it was started has gone, SIGHUP asks it to end as the
others do, because closing a terminal must not leave outputs driven. A SIGHUP that was ignored at the start (nohup)
stays ignored.

Service manager. Readiness (sd_notify(3)), signs of life (sd_watchdog_enabled(3)) and socket activation
(sd_listen_fds(3)), over environment variables and a datagram socket; the priority of each line of the log, if stderr
is the system's journal (sd-daemon(3)).

This module does not decide how the daemon ends.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import socket
import threading
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Final, Literal

import orjson
import trio

from hearth._util.foreign import EndAsked
from hearth.actors.listeners.accept import MOST_HALTING, RESERVED
from hearth.audit.record import timestamp
from hearth.config.model import halt_socket
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
    from types import FrameType

# --- the log handler --------------------------------------------------------------------------------------------------

STDERR: Final = 2
MOST_LINES: Final = 1000
"""Messages that may wait to be written."""
FLUSH_TIMEOUT: Final = 1.0
"""Seconds that the end of the process waits until all messages are written."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Level of logging -> priority of syslog(3), highest first; what is below them all is debug (7)."""


JOURNAL: Final = "/run/systemd/journal/socket"
"""The socket of the system's journal, for messages with fields (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/)."""
FIELDS: Final = ("session", "task", "bus")
"""What a message may be about, given in `extra` of the call that logs it."""


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """Return what a message is about, by the names of `FIELDS`."""
    return {name: str(getattr(record, name)) for name in FIELDS if hasattr(record, name)}


def to_journal(message: str, level: int, logger: str, fields: Mapping[str, str]) -> bytes:
    """Return a message in the journal's native protocol: each value with its length, so that it may have line ends."""
    told = {"MESSAGE": message, "PRIORITY": str(_priority(level)), "SYSLOG_IDENTIFIER": "hearthd", "LOGGER": logger}
    told |= {name.upper(): value for name, value in fields.items()}
    encoded = ((name.encode(), value.encode(errors="backslashreplace")) for name, value in told.items())
    return b"".join(name + b"\n" + len(value).to_bytes(8, "little") + value + b"\n" for name, value in encoded)


def _priority(level: int) -> int:
    return next((number for least, number in _PRIORITIES if level >= least), 7)


class NonBlockingLogHandler(logging.Handler):
    """A logging handler that never waits: a thread of its own writes the lines.

    A stopped terminal, a pipe that is not read or a logging service that hangs blocks the writer, which here is a
    thread that does nothing else. Lines that find the queue full are dropped and counted. Lines that come before
    `start` wait until then. If `environ` says that the descriptor is the system's journal, every line begins with its
    priority, `<6>` for example (sd-daemon(3)): the journal takes that off, and `journalctl -p warning` finds the line.

    `write_as` chooses another format than text: "json", one object a line, or "journald", which sends messages with
    their fields to the journal, and writes those that it does not take as text.
    """

    def __init__(self, descriptor: int = STDERR, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._in_journal = is_journal(descriptor, {} if environ is None else environ)
        self._lines: Queue[bytes | None] = Queue(MOST_LINES)
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._json = False
        self._journal: socket.socket | None = None

    def write_as(self, format_: Literal["text", "json", "journald"], journal: str = JOURNAL) -> None:
        """Choose the format; call it before the process is confined, after which no socket can be reached any more.

        Raises ConfigError if there is no journal here.
        """
        self._json = format_ == "json"
        if format_ == "journald":
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            connected.setblocking(False)
            try:
                connected.connect(journal)
            except OSError as error:
                connected.close()
                cure = 'use "text", which systemd takes too, or "json"'
                raise ConfigError(f'[log] format = "journald": {journal}: {error.strerror}; {cure}') from None
            self._journal = connected

    def start(self) -> None:
        """Start the thread; call it after the process is confined, or the thread would not be confined. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_lines, name="hearth-log", daemon=True)
            self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, with control characters escaped: a client must not forge a line or control a screen.

        See logging.Handler.
        """
        record.msg, record.args = _CONTROL.sub(lambda found: repr(found[0])[1:-1], record.getMessage()), None
        fields = fields_of(record)
        if self._json or self._journal is not None:
            told = record.getMessage()
            if record.exc_info:
                told += "\n" + logging.Formatter().formatException(record.exc_info)
            self._write(self.format(record), told, record.levelno, record.name, fields)
        else:
            self.write_line(self.format(record), record.levelno)

    def write_line(self, text: str, level: int = logging.INFO) -> None:
        """Queue a line as it is, or in the chosen format; never waits."""
        self._write(text, text.removeprefix("hearthd: "), level, "hearth.daemon", {})

    def _write(self, text: str, told: str, level: int, logger: str, fields: Mapping[str, str]) -> None:
        if self._journal is not None:
            with suppress(OSError):
                # Not a wait: a journal that has no room, or has gone, leaves the message to stderr.
                self._journal.send(to_journal(told, level, logger, fields))
                return
        if self._dropped:
            dropped = f"({self._dropped} messages were dropped here: stderr was not read)\n"
            text, told = dropped + text, dropped + told
        if self._json:
            name = logging.getLevelName(level).lower()
            text = orjson.dumps(
                {"ts": timestamp(time.time()), "level": name, "logger": logger, "message": _sendable(told), **fields}
            ).decode()
        elif self._in_journal:
            text = "\n".join(f"<{_priority(level)}>{line}" for line in text.split("\n"))
        try:
            self._lines.put_nowait(text.encode(errors="backslashreplace") + b"\n")
        except Full:
            self._dropped += 1
        else:
            self._dropped = 0

    def end(self) -> None:
        """Wait until all lines are written, for at most `FLUSH_TIMEOUT` seconds."""
        self.start()
        with suppress(Full):
            self._lines.put_nowait(None)
            if self._thread is not None:
                self._thread.join(FLUSH_TIMEOUT)
        if self._journal is not None:
            self._journal.close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            rest = memoryview(line)
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:
                    # Another process that shares the open file has made it non-blocking.
                    os.set_blocking(self._descriptor, True)
                except OSError:
                    # The reader has gone. Try again with the next line: a terminal may come back.
                    break


def _sendable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def is_journal(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Return True if the descriptor is the stream that the service manager connected to its journal (JOURNAL_STREAM).

    The variable alone does not say so: a process that the service started inherits it, and may write elsewhere.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def keep_standard_descriptors() -> None:
    """Open those of stdin, stdout and stderr that are closed, so that no device or log gets the number of stderr."""
    for descriptor in range(STDERR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


# --- signals ----------------------------------------------------------------------------------------------------------

RELOAD = "reload"
"""The value that `next` returns for a signal that asks for policy and certificates to be read again."""


class Signals:
    """The handler of SIGTERM, SIGINT and SIGHUP until the process ends; make it in the main thread."""

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
            raise EndAsked(0)
        if not self._over:
            self._arrived.append(asked)
            if self._token is not None:
                self._token.run_sync_soon(self._wake)

    def _wake(self) -> None:
        self._changed.set()

    def started(self) -> None:
        """Keep signals for `next` from now on, because the event loop is about to run."""
        self._starting = False

    async def next(self) -> str:
        """Wait for a signal and return its name, or RELOAD; signals that have come already are returned first."""
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
        """Ignore signals from now on, because the daemon has ended."""
        self._over = True


def _has_terminal() -> bool:
    """Return True if this process has a controlling terminal now."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


# --- the watchdog (systemd's WatchdogSec=) ----------------------------------------------------------------------------
# A sign of life means: this task ran, so the event loop runs; and the journal answered, so records are still taken.
# A wedged bus or a full disk does not stop it: health reports those, and a restart would repair neither.

ALIVE: Final = "WATCHDOG=1"
SHARE: Final = 3
"""Signs of life in one period of the manager: one that comes late does no harm."""

log = logging.getLogger("hearth.watchdog")


def period(environ: Mapping[str, str], pid: int) -> float | None:
    """Return the seconds within which the service manager expects a sign of life of this process, or None."""
    text = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid) or not environ.get("NOTIFY_SOCKET"):
        return None
    microseconds = int(text) if text.isascii() and text.isdecimal() else 0
    return microseconds / 1_000_000 or None


@asynccontextmanager
async def watched(
    environ: Mapping[str, str], notifier: Notifier, answers: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """While the body runs, send the service manager, if it asks, a sign of life each time that `answers` returns."""
    seconds = period(environ, os.getpid())
    if seconds is None:
        yield
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_keepalives, notifier, seconds, answers)
        yield
        nursery.cancel_scope.cancel()


async def _send_keepalives(notifier: Notifier, seconds: float, answers: Callable[[], Awaitable[None]]) -> None:
    while True:
        with trio.move_on_after(seconds) as waiting:
            await answers()
        if waiting.cancelled_caught:
            log.error("the journal has not answered for %g s, so the service manager gets no sign of life", seconds)
            continue
        # A manager that does not receive it must not hold the event loop; it gets the next one.
        notifier.notify(ALIVE, timeout=0)
        await trio.sleep(seconds / SHARE)


# --- the service manager ----------------------------------------------------------------------------------------------

FIRST_FD = 3
NOTIFY_TIMEOUT = 0.5
"""Seconds that a service manager may take to receive a state."""


class Notifier:
    """Sends states to the service manager, if there is one (NOTIFY_SOCKET); errors are ignored.

    The socket is made and connected at once, because a confined daemon can make no such socket.
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
        """Return the descriptor of the socket, or None."""
        return None if self._socket is None else self._socket.fileno()

    def notify(self, state: str, *, timeout: float = NOTIFY_TIMEOUT) -> None:
        """Send a state such as "READY=1", waiting at most `timeout` seconds: the manager may hang."""
        if self._socket is not None:
            self._socket.settimeout(timeout)
            with suppress(OSError):
                self._socket.send(state.encode())

    def close(self) -> None:
        """Close the socket; later states are dropped."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def activated_sockets(environ: MutableMapping[str, str]) -> tuple[socket.socket | None, socket.socket | None]:
    """Return the socket and the halt socket that the service manager passed, or None; remove the variables.

    Raises ConfigError unless one or both were passed, listening Unix stream sockets, the halt socket beside the other.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal() or count == "0":
        return None, None
    passed = [_activated(FIRST_FD + number) for number in range(min(int(count), 2))]
    passed.sort(key=lambda one: len(one.getsockname()))
    names = [Path(one.getsockname()) for one in passed]
    if int(count) > 2 or (len(names) == 2 and names[1] != halt_socket(names[0])):
        beside = f"one ListenStream= in the .socket unit, and one for {halt_socket(names[0])}"
        raise ConfigError(f"LISTEN_FDS={count}: hearthd takes a socket and its halt socket; keep {beside}")
    return passed[0], passed[1] if len(passed) == 2 else None


def _activated(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        passed = socket.socket(fileno=descriptor)
        listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"LISTEN_FDS: descriptor {descriptor} is not a socket: {error.strerror}") from None
    if not listening or passed.family != socket.AF_UNIX or passed.type != socket.SOCK_STREAM:
        reason = f"descriptor {descriptor} is not a listening Unix stream socket"
        raise ConfigError(f"LISTEN_FDS: {reason}; use ListenStream=/path")
    name = passed.getsockname()
    if not isinstance(name, str) or not name.startswith("/"):
        # An abstract name has no file, so no mode and no group: every user of the machine could connect.
        raise ConfigError("LISTEN_FDS: the socket has no path in the file system; use ListenStream=/path")
    passed.setblocking(False)
    return passed


# --- descriptors ------------------------------------------------------------------------------------------------------

OWN_DESCRIPTORS = 64
"""Descriptors that the daemon itself may need: devices, roots of the path guard, the audit log, Trio's."""


def allow_descriptors(connections: int) -> int:
    """Raise the limit of descriptors to the number that the connections need: a shell or systemd grants 1,024.

    Return the number of connections that it allows, which may be lower.
    """
    others = RESERVED + OWN_DESCRIPTORS + MOST_HALTING
    wanted = connections + others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    most = max(1, allowed - others)
    if most < connections:
        log.warning(
            "only %d descriptors are allowed: max_connections is %d, not %d as in [limits]; raise LimitNOFILE= to %d",
            allowed, most, connections, wanted,
        )  # fmt: skip
    return min(most, connections)
