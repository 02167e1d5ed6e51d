"""hearthd: the composition root. The nursery tree, signals, readiness; nothing else (design §3, §9).

    runtime (journal, buses, sessions)
      connections (one task each)
        listener, signals

On SIGTERM, SIGINT or SIGHUP the listener stops, sessions end, transactions in flight finish, outputs go to their safe
state, clients get what is due to them, the journal is flushed, and the process exits 0. A second signal stops waiting.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import resource
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from attrs import evolve

from hearth._version import __version__
from hearth.actors.build import build_parts
from hearth.actors.carrier import SocketCarrier
from hearth.actors.connection import Connection
from hearth.actors.listeners import unix
from hearth.actors.runtime import Runtime, RuntimeParts
from hearth.actors.service import activated_socket, notify
from hearth.actors.signals import Signals
from hearth.actors.supervisor import contain
from hearth.actors.voice import Voice, keep_standard_descriptors
from hearth.config import Config, default_socket, load_config
from hearth.errors import ConfigError
from hearth.policy.rules import default_policy, idle_patterns
from hearth.schema import check_schema

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from hearth.policy.principal import Principal

log = logging.getLogger("hearth.daemon")

OWN_DESCRIPTORS = 64
"""Descriptors that the daemon itself may need: devices, roots of the path guard, the audit log, Trio's own."""
FLUSH_PATIENCE = 1.0
"""Seconds that connections get, once all sessions have ended, to take what is due to them."""


class Daemon:
    """One hearthd over one listening socket."""

    def __init__(
        self,
        config: Config,
        listening: socket.socket,
        path: Path,
        parts: RuntimeParts,
        *,
        signals: Signals,
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._signals = signals
        self._say = say
        self._listening = listening
        self._path = path
        self._parts = parts
        self._connections: set[Connection] = set()

    async def run(self) -> None:
        """Serve until a signal asks to end."""
        async with Runtime(self._parts).serve() as runtime, trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self._accept, runtime, connections)
                self._announce()
                accepting.start_soon(self._warm_up)
                log.info("%s: shutting down", await self._signals.next())
                accepting.cancel_scope.cancel()
            self._listening.close()
            notify(os.environ, "STOPPING=1")
            async with trio.open_nursery() as ending:
                ending.start_soon(self._stop_waiting, runtime)
                await runtime.end_sessions()
                ending.cancel_scope.cancel()
            for connection in self._connections:
                connection.finish()
            connections.cancel_scope.deadline = trio.current_time() + FLUSH_PATIENCE

    async def _accept(self, runtime: Runtime, connections: trio.Nursery) -> None:
        limits = self._config.limits
        serve = partial(self._serve, runtime)
        await unix.accept_all(self._listening, connections, serve, max_connections=limits.max_connections)

    async def _serve(self, runtime: Runtime, connected: socket.socket, principal: Principal) -> None:
        limits = self._config.limits
        connection = Connection(
            SocketCarrier(connected, send_timeout=limits.send_timeout_s),
            principal,
            runtime,
            max_outstanding=limits.max_outstanding,
            max_document_bytes=limits.max_document_bytes,
            max_batch=limits.max_batch,
        )
        self._connections.add(connection)
        try:
            await contain(f"connection of {principal.key}", connection.run, lambda _error: None)
        finally:
            self._connections.discard(connection)

    async def _stop_waiting(self, runtime: Runtime) -> None:
        log.warning("%s again: not waiting for transactions in flight", await self._signals.next())
        runtime.stop_waiting()

    async def _warm_up(self) -> None:
        """Import what explains refusals.

        It takes up to a second on a small board: else everybody would wait for it when somebody's argument is wrong.
        """
        await trio.to_thread.run_sync(import_module, "jsonschema", abandon_on_cancel=True)

    def _announce(self) -> None:
        # What exists now lives as long as the process: keep the collector from walking it, and let it look at young
        # objects less often, since actors free what they drop by reference counting.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 50, 100)
        self._say(f"hearthd: ready on {self._path}")
        notify(os.environ, f"READY=1\nSTATUS=ready on {self._path}")


def main(argv: Sequence[str] | None = None) -> None:
    """The `hearthd` command. Exits 0 after a signal, 2 when the configuration cannot be used."""
    keep_standard_descriptors()
    options = _options(argv)
    voice = Voice()
    logging.basicConfig(level=logging.INFO, format="hearthd: %(levelname)s: %(message)s", handlers=[voice])
    try:
        config = load_config(options.config)
        if options.board is not None:
            config = evolve(config, board=evolve(config.board, profile=options.board))
        if options.socket is not None:
            config = evolve(config, server=evolve(config.server, socket=options.socket.absolute()))
        if options.print_config:
            sys.stdout.write(config.to_toml())
            return
        if options.check:
            _check(config)
            return
        _serve(config, voice.say)
    except ConfigError as error:
        for line in str(error).splitlines():
            voice.say(f"hearthd: {line}")
        raise SystemExit(2) from None
    finally:
        voice.end()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "hearthd",
        description="The hearth daemon: hardware for agents, safe and audited.",
        epilog="SIGTERM, SIGINT and SIGHUP end it: sessions are closed, transactions in flight finish, outputs go to "
        "their safe state, and it exits 0; a second one stops waiting for transactions. There is nothing to reload: "
        "restart it. Under nohup SIGHUP stays ignored. It exits 2 where the configuration cannot be used.",
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="a hearth.toml (default: all defaults)")
    add("--board", metavar="NAME", help="the board profile: a shipped name or a TOML file")
    add("--socket", type=Path, metavar="PATH", help="listen here instead of [server] socket")
    add("--check", action="store_true", help="check configuration, board and tools, then exit")
    add("--print-config", action="store_true", help="print the configuration with all defaults, then exit")
    add("--version", action="version", version=f"hearthd {__version__}")
    return parser.parse_args(argv)


def _check(config: Config) -> None:
    """Everything that can be checked without touching a device or the running daemon."""
    parts = build_parts(config, default_policy=default_policy(os.geteuid(), None))
    for tool in parts.registry.values():
        check_schema(tool.params_schema, f"tool {tool.name}: params_schema", by_authority=True)
        check_schema(tool.result_schema, f"tool {tool.name}: result_schema", by_authority=True)
    for warning in idle_patterns(parts.policy, parts.registry):
        sys.stdout.write(f"hearthd: warning: {warning}\n")
    sys.stdout.write(
        f"hearthd: configuration is good: board {parts.board.name}, {len(parts.registry)} tools, "
        f"{len(parts.drivers)} buses, {len(parts.policy)} policy entries\n"
    )


def _allow_descriptors(connections: int) -> None:
    """Ask for as many descriptors as the configuration's connections need: 1,024 is what a shell or systemd grants."""
    wanted = connections + unix.RESERVED + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            log.warning(
                "only %d descriptors are allowed, too few for [limits] max_connections = %d: raise LimitNOFILE= to %d",
                allowed, connections, wanted,
            )  # fmt: skip


def _serve(config: Config, say: Callable[[str], None]) -> None:
    signals = Signals()
    _allow_descriptors(config.limits.max_connections)
    path = config.server.socket or default_socket(os.environ, os.geteuid())
    listening = activated_socket(os.environ)
    bound = None
    if listening is None:
        listening = unix.bind(path, config.server.socket_mode, config.server.socket_group)
        bound = path.lstat()
    else:
        path = Path(listening.getsockname())
    try:
        parts = build_parts(config, default_policy=default_policy(os.geteuid(), unix.socket_gid(path)))
        for note in parts.open_records():
            log.warning("%s", note)
        daemon = Daemon(config, listening, path, parts, signals=signals, say=say)
        signals.started()
        trio.run(daemon.run)
    finally:
        signals.over()
        listening.close()
        if bound is not None:
            unix.remove(path, bound)


if __name__ == "__main__":
    main()
