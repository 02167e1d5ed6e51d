"""The daemon's two Unix sockets, bound or taken over, and the watch that notices if their files are removed."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from hearth._util.inotify import watch_file
from hearth.actors.daemon.process import activated_sockets
from hearth.actors.listeners import unix
from hearth.config.model import default_socket, halt_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from hearth.actors.runtime import Runtime
    from hearth.config.model import Config

log = logging.getLogger("hearth.daemon")

LONGEST_PATH = 107
"""Bytes of the path of a Unix socket (unix(7))."""


@define(eq=False)
class UnixSockets:
    """The socket of sessions at `path`, and the one that takes only a halt, where there can be one."""

    path: Path
    listening: socket.socket | None = None
    halting: socket.socket | None = None
    made: Sequence[Path] = ()
    """Directories that this process has made."""
    bound: dict[Path, os.stat_result] = field(factory=dict, init=False)
    """The files that this process has made."""
    watches: dict[Path, tuple[os.stat_result, int]] = field(factory=dict, init=False)
    """Each of these files, and a watch on it (`_util.inotify`)."""

    @property
    def own(self) -> Path | None:
        """The path, if this process has bound it."""
        return self.path if self.path in self.bound else None

    def bind(self, path: Path, config: Config, uid: int) -> socket.socket:
        """Bind another socket, with the mode and the group of [server]. Raises ConfigError."""
        listening = unix.bind(path, config.server.socket_mode, config.server.socket_group, uid)
        self.bound[path] = path.lstat()
        return listening

    def watch(self) -> None:
        """Watch the files, before this process is confined."""
        for path, status in self.bound.items():
            if (watch := watch_file(str(path))) is not None:
                self.watches[path] = (status, watch)

    def close(self) -> None:
        """Stop listening."""
        for listening in (self.listening, self.halting):
            if listening is not None:
                listening.close()

    def remove(self) -> None:
        """Remove the files that this process has made."""
        for path, status in self.bound.items():
            unix.remove(path, status)


def open_sockets(config: Config, uid: int) -> UnixSockets:
    """Bind the sockets, or take over those of the service manager. Raises ConfigError."""
    path = config.server.socket or default_socket(os.environ, os.geteuid())
    listening, halting = activated_sockets(os.environ)
    if listening is None:
        sockets = UnixSockets(path, made=() if path.parent.is_dir() else (path.parent,))
        sockets.listening = sockets.bind(path, config, uid)
    else:
        sockets = UnixSockets(Path(listening.getsockname()), listening)
        unix.check_directory(sockets.path.parent, uid)
    try:
        sockets.halting = halting or _bind_halt_socket(sockets, config, uid)
    except BaseException:
        sockets.close()
        sockets.remove()
        raise
    return sockets


def _bind_halt_socket(sockets: UnixSockets, config: Config, uid: int) -> socket.socket | None:
    """Return the halt socket beside the other one; None, with a warning, where it cannot be. Raises ConfigError."""
    place = halt_socket(sockets.path)
    if not sockets.bound:
        cure = f"add ListenStream={place} to the .socket unit"
    elif len(os.fsencode(place)) > LONGEST_PATH:
        cure = f"{place} is longer than {LONGEST_PATH} bytes; choose a shorter [server] socket"
    else:
        return sockets.bind(place, config, uid)
    log.warning("there is no halt socket, which takes a halt when all connections are in use: %s", cure)
    return None


async def watch_socket(runtime: Runtime, path: Path, bound: os.stat_result, watch: int) -> None:
    """Say in the log and in health that the file of a socket was removed: nobody can connect there any more."""

    def there() -> bool:
        try:
            return os.path.samestat(path.lstat(), bound)
        except OSError:
            return False

    try:
        while await trio.to_thread.run_sync(there):
            await trio.lowlevel.wait_readable(watch)
            with suppress(BlockingIOError):
                os.read(watch, 4096)
    finally:
        os.close(watch)
    # It is not bound again: the daemon may be another user by now, and confined.
    lost = f"the socket {path} was removed: nobody can connect there any more; restart hearthd"
    runtime.lost_sockets.append(lost)
    log.error("%s", lost)
