"""The Unix domain socket (draft §10.1): file permissions decide who may connect, peer credentials who has connected.

The socket never has a wider mode than its final one, and lies in a directory to which no other user can write. A stale
socket is replaced; a live one never. The peer is known at once, so a connection that exceeds a limit gets an error
before it is closed.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
import stat
from typing import TYPE_CHECKING

from hearth._util.files import ownership_fault
from hearth.actors.listeners.accept import (
    BACKLOG,
    MOST_HALTING,
    MOST_HALTING_EACH,
    Places,
    Spares,
    each_accepted,
)
from hearth.actors.transport import SocketCarrier
from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.principal import from_peercred
from hearth.protocol.jsonrpc import dump_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import trio

    from hearth.actors.listeners.accept import ConnectionHandler, ConnectionLimiter, SessionHandler, Strangers
    from hearth.errors import RpcError
    from hearth.policy.principal import Principal


def bind(path: Path, mode: int = 0o660, group: str | None = None, user: int | None = None) -> socket.socket:
    """Return a listening socket at `path` with exactly this mode and group. Raises ConfigError with the cause.

    `user` is the uid that this process is about to take: its files count as the daemon's own.
    """
    _prepare_directory(path.parent, user)
    _remove_stale(path)
    gid = group_id(group)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The umask is the process's, so this must run before there are threads. Bind with a narrow mode first; chmod
        # to the requested mode follows.
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
    """Remove the socket from the file system, if it is still the one that was `bound`, and not a successor's.

    It stays if this process, perhaps under another user by now, cannot write to the directory: the next start replaces
    it.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):
        now = path.lstat()
        # A file system may give the successor's socket the same inode number.
        if os.path.samestat(now, bound) and now.st_mtime_ns == bound.st_mtime_ns:
            path.unlink()


def socket_gid(path: Path) -> int:
    """Return the gid of the group whose members may connect."""
    return path.stat().st_gid


def group_id(group: str | None) -> int | None:
    """Return the gid of [server] socket_group. Raises ConfigError if there is no such group."""
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(
            f"[server] socket_group: there is no group {group!r}; create it with `groupadd --system {group}`"
        ) from None


def check_directory(directory: Path, user: int | None = None) -> None:
    """Raise ConfigError if another user can write to the socket's directory, or replace a directory above it.

    Such a user could put another socket in its place, and clients would take that for the daemon. See
    `hearth._util.files`.
    """
    ours = {os.geteuid()} if user is None else {os.geteuid(), user}
    try:
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"[server] socket: {directory} is not a directory (or is a link to one); remove it")
        if status.st_uid not in (*ours, 0):
            raise ConfigError(
                f"[server] socket: {directory} belongs to uid {status.st_uid}, not to hearthd; choose another"
            )
        fault = ownership_fault(directory, ours)
    except OSError as error:
        raise ConfigError(f"[server] socket: cannot use the directory {directory}: {error.strerror}") from None
    if fault is not None:
        raise ConfigError(f"[server] socket: {fault}")


def _prepare_directory(directory: Path, user: int | None) -> None:
    try:
        for missing in reversed([place for place in (directory, *directory.parents) if not place.exists()]):
            # One by one: the directories above must not be writable by all users either, with any umask.
            missing.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"[server] socket: cannot use the directory {directory}: {error.strerror}") from None
    check_directory(directory, user)


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
            f"[server] socket: {path} is a stale socket of another user ({error.strerror}); remove it or choose "
            "another path"
        ) from None


class UnixListener:
    """The daemon's own socket, bound here or passed by a service manager."""

    def __init__(self, listening: socket.socket, path: Path, *, send_timeout: float) -> None:
        self._listening = listening
        self._send_timeout = send_timeout
        self.address = f"unix:{path}"

    async def accept_all(self, nursery: trio.Nursery, limiter: ConnectionLimiter, handler: SessionHandler) -> None:
        """See Listener."""

        async def serve(connected: socket.socket, principal: Principal) -> None:
            try:
                await handler(SocketCarrier(connected, send_timeout=self._send_timeout), principal)
            finally:
                limiter.leave(principal)

        def arrived(connected: socket.socket) -> None:
            principal = _peer(connected, lambda principal: limiter.refusal(connected, principal))
            if principal is None:
                return
            limiter.enter(principal)
            nursery.start_soon(serve, connected, principal)

        await each_accepted(self._listening, arrived)

    def reload(self) -> None:
        """Do nothing: there are no certificates. See Listener."""

    def warnings(self) -> list[str]:
        """Return no warnings: nothing expires. See Listener."""
        return []

    def close(self) -> None:
        """See Listener."""
        self._listening.close()

    def finish(self) -> None:
        """Do nothing: the daemon ends these connections. See Listener."""


class HaltListener:
    """The halt socket: few places of its own, and descriptors that are kept for them."""

    def __init__(self, listening: socket.socket, *, send_timeout: float) -> None:
        self._listening = listening
        self._send_timeout = send_timeout
        self._places = Places(MOST_HALTING, MOST_HALTING_EACH)
        self._spares = Spares(MOST_HALTING, listening)

    async def accept_all(self, nursery: trio.Nursery, stranger: Strangers, handler: ConnectionHandler) -> None:
        """Accept until cancelled; each connection is served in a task of `nursery`."""

        async def serve(connected: socket.socket, principal: Principal, leave: Callable[[], None]) -> None:
            try:
                await handler(SocketCarrier(connected, send_timeout=self._send_timeout), principal)
            finally:
                leave()
                self._spares.refill()

        def arrived(connected: socket.socket) -> None:
            principal = _peer(connected, stranger)
            if principal is None:
                return
            nursery.start_soon(serve, connected, principal, self._places.take(connected, principal.key))

        await each_accepted(self._listening, arrived, self._spares)

    def close(self) -> None:
        """Stop listening."""
        self._listening.close()
        self._spares.close()


def _peer(connected: socket.socket, refused: Callable[[Principal], RpcError | None]) -> Principal | None:
    """Return the principal of a new connection; None if it is refused or not known, after telling it why."""
    try:
        principal = from_peercred(connected)
    except PermissionDenied as error:
        _turn_away(connected, error)
        return None
    if (refusal := refused(principal)) is not None:
        _turn_away(connected, refusal)
        return None
    return principal


def _turn_away(connected: socket.socket, refusal: RpcError) -> None:
    with connected:
        try:
            connected.send(dump_error(None, refusal))
        except OSError:
            # The peer has gone already.
            return
