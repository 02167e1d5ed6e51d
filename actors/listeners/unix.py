"""The Unix domain socket (draft §10.1): the file system says who may connect, the kernel says who connected.

The socket is bound with no wider moment than its final mode, in a directory nobody else can write to. A stale socket is
replaced, a live one never. A connection past the limit is told so and closed.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import logging
import os
import resource
import socket
import stat
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import trio

from hearth.errors import ConfigError, QueueFull
from hearth.policy.principal import from_peercred
from hearth.protocol.jsonrpc import dump_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from hearth.policy.principal import Principal

log = logging.getLogger("hearth.unix")

BACKLOG = 512
"""Connections that may wait to be accepted; beyond them a client that does not wait gets EAGAIN."""
NO_DESCRIPTORS_PAUSE = 0.1
"""Seconds to wait for descriptors to come free when the process or the machine has none left."""
RESERVED = 32
"""Descriptors that connections leave free: the audit log must rotate and tools must open files whoever connects."""

FOR_OTHERS = 8
"""Connections beyond the limit for principals who have none: one who takes them all must not lock the operator out."""

Serve: TypeAlias = "Callable[[socket.socket, Principal], Awaitable[None]]"


def bind(path: Path, mode: int = 0o660, group: str | None = None) -> socket.socket:
    """A listening socket at `path` with exactly this mode and group. Raises ConfigError: what is in the way."""
    _prepare_directory(path.parent)
    _remove_stale(path)
    gid = _gid(group)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The umask is the process's, so this belongs to the start, before there are threads. Narrower first, then as
        # asked.
        before = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        # At once: between bind and listen another daemon that starts would take this socket for a stale one.
        listening.listen(BACKLOG)
        if gid is not None:
            os.chown(path, -1, gid)
        path.chmod(mode)
    except OSError as error:
        listening.close()
        raise ConfigError(f"[server] socket: cannot listen on {path}: {error.strerror or error}") from None
    listening.setblocking(False)
    return listening


def remove(path: Path, bound: os.stat_result) -> None:
    """Take the socket out of the file system, if it is still the one that was `bound` and not a successor's."""
    with contextlib.suppress(FileNotFoundError):
        now = path.lstat()
        # A file system may give the successor the number that ours had.
        if os.path.samestat(now, bound) and now.st_mtime_ns == bound.st_mtime_ns:
            path.unlink()


def socket_gid(path: Path) -> int:
    """The group whose members may connect."""
    return path.stat().st_gid


def _gid(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(
            f"[server] socket_group: there is no group {group!r}; create it with `groupadd --system {group}`"
        ) from None


def _prepare_directory(directory: Path) -> None:
    try:
        for missing in reversed([place for place in (directory, *directory.parents) if not place.exists()]):
            # One by one: what is made on the way must not be open to everybody either, whatever the umask.
            missing.mkdir(mode=0o755, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise ConfigError(f"[server] socket: cannot use the directory {directory}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"[server] socket: {directory} is not a directory (or is a link to one); remove it")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"[server] socket: {directory} belongs to uid {status.st_uid}, not to us; choose another")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ConfigError(f"[server] socket: {directory} is writable by everybody; `chmod o-w {directory}`")


def _remove_stale(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigError(f"[server] socket: {path} exists and is not a socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            _unlink(path)
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise ConfigError(f"[server] socket: {path}: {error.strerror}") from None
    raise ConfigError(f"[server] socket: another daemon listens on {path}; stop it or choose another path")


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"[server] socket: {path} is a stale socket of somebody else's ({error.strerror}); remove it or choose "
            "another path"
        ) from None


async def accept_all(listening: socket.socket, nursery: trio.Nursery, serve: Serve, *, max_connections: int) -> None:
    """Accept until cancelled; each connection is served in a task of `nursery`, which has no others.

    The kernel gives out the lowest number that is free, so a connection whose number is high says that few are left.
    """
    most_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    last = most_descriptors - min(RESERVED, most_descriptors // 4)
    starved = False
    held: Counter[str] = Counter()

    async def count_and_serve(connected: socket.socket, principal: Principal) -> None:
        held[principal.key] += 1
        try:
            await serve(connected, principal)
        finally:
            held[principal.key] -= 1
            if not held[principal.key]:
                del held[principal.key]

    while True:
        await trio.lowlevel.wait_readable(listening)
        try:
            connected, _ = listening.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                if not starved:
                    # Once: whoever causes this must not fill a disk with complaints about it.
                    log.error("cannot accept connections at the moment: %s", error.strerror)
                starved = True
                await trio.sleep(NO_DESCRIPTORS_PAUSE)
                continue
            if error.errno in (errno.ECONNABORTED, errno.EPERM):
                continue
            raise
        starved = False
        count = len(nursery.child_tasks)
        principal = from_peercred(connected)
        if count >= max_connections + (0 if held[principal.key] else FOR_OTHERS):
            _turn_away(connected, count, {"max_connections": max_connections})
        elif connected.fileno() >= last:
            _turn_away(connected, count, {"reason": f"of {most_descriptors} descriptors the others are in use"})
        else:
            nursery.start_soon(count_and_serve, connected, principal)


def _turn_away(connected: socket.socket, count: int, data: dict[str, object]) -> None:
    refusal = QueueFull(f"Queue full: {count} connections are open", data=data)
    with connected:
        connected.setblocking(False)
        try:
            connected.send(dump_error(None, refusal))
        except OSError:
            # It has gone already, which is what we want of it.
            return
