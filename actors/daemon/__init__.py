"""hearthd, the daemon: its command line, its nursery tree, and its start and end.

    runtime (journal, buses, sessions)
      extras (`hearth.extras`: the job server, the uplink to a broker)
        connections (one task each)
          listeners, signals

Components start top to bottom and stop bottom to top. On SIGTERM or SIGINT the listeners stop, extras and sessions end,
transactions in flight finish, outputs go to their safe state, clients get the answers and events that are due, the
journal is flushed, and the process exits 0. A second signal ends the wait for transactions. On SIGHUP policy, tokens
and certificates are read again.

All listeners are opened before the first peer is served, so that a daemon which cannot have one of its addresses does
not start. An extra that is not configured is not imported.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from attrs import define, evolve, field

from hearth._util.files import noting
from hearth._util.threads import IMPORTING
from hearth._version import __version__
from hearth.actors.build import build_parts
from hearth.actors.connection import Connection
from hearth.actors.daemon.checks import check, check_credentials, check_directories, owner_warning
from hearth.actors.daemon.process import (
    RELOAD,
    NonBlockingLogHandler,
    Notifier,
    Signals,
    allow_descriptors,
    keep_standard_descriptors,
    watched,
)
from hearth.actors.daemon.reload import Reloader, warn_of
from hearth.actors.daemon.sandbox import confine_daemon, own_uid, places_of
from hearth.actors.daemon.sockets import open_sockets, watch_socket
from hearth.actors.embedded import job_sessions
from hearth.actors.listeners import unix
from hearth.actors.listeners.accept import ConnectionLimiter, Opening
from hearth.actors.runtime import Runtime
from hearth.actors.service import FLUSH_TIMEOUT
from hearth.actors.supervisor import contain, contain_now
from hearth.config.model import load_config
from hearth.errors import ConfigError
from hearth.extras import active
from hearth.policy.principal import remember
from hearth.policy.rules import default_policy, in_force

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from hearth.actors.daemon.sockets import UnixSockets
    from hearth.actors.listeners.accept import Listener
    from hearth.actors.runtime import RuntimeParts
    from hearth.actors.transport import Carrier
    from hearth.config.model import Config
    from hearth.drivers.sandbox.enforce import SandboxReport
    from hearth.errors import QueueFull
    from hearth.policy.principal import Principal
    from hearth.policy.rules import PolicyEntry

log = logging.getLogger("hearth.daemon")

DAY = 86_400.0


def load_ahead(runtime: Runtime) -> None:
    """Import what would be imported with the first use, and look up who must get in, while waiting for a disk is fine.

    From here on the event loop makes no call that a disk can hold up.
    """
    for name in ("difflib", "hearth.audit.verify"):
        import_module(name)
    runtime.tell_extras("ahead")
    remember(0, os.geteuid())


@define(eq=False)
class Daemon:
    """One hearthd with its listeners, the first of which is the Unix socket."""

    _config: Config
    _parts: RuntimeParts
    _file: Path | None = field(default=None, kw_only=True, alias="file")
    """The configuration's file, for a reload."""
    _default_policy: Sequence[PolicyEntry] = field(default=(), kw_only=True, alias="default_policy")
    _max_connections: int = field(kw_only=True, alias="max_connections")
    _sockets: UnixSockets | None = field(default=None, kw_only=True, alias="sockets")
    """The sockets whose files are watched."""
    signals: Signals = field(kw_only=True)
    log_handler: NonBlockingLogHandler = field(kw_only=True)
    notifier: Notifier = field(kw_only=True)
    _runtime: Runtime | None = field(default=None, init=False)
    _connections: set[Connection] = field(factory=set, init=False)

    def refused(self, carrier: str, peer: str, reason: str) -> None:
        """Record that a peer failed to authenticate; the listeners call it. See Runtime."""
        if self._runtime is not None:
            self._runtime.refused(carrier, peer, reason)

    def confined(self, report: SandboxReport) -> None:
        """Note, before `run`, the sandbox report, which health and the audit log contain."""
        self._parts = evolve(self._parts, sandbox=report.to_json())

    def runtime(self) -> Runtime:
        """Return the runtime, for listeners that serve more than sessions; called only while `run` runs."""
        assert self._runtime is not None
        return self._runtime

    async def run(self, listeners: Sequence[Listener], halting: unix.HaltListener | None, path: Path) -> None:
        """Serve until a signal asks to end."""
        # Only now: it reads the driven outputs of the last run, whose file must be open.
        self._runtime = Runtime(self._parts)
        limiter = ConnectionLimiter(self._max_connections, self._runtime.stranger)
        self._runtime.listeners = [listener.address for listener in listeners]
        reloader = Reloader(self._config, self._runtime, listeners, self.notifier, self._file, self._default_policy)
        self._runtime.reload = reloader.reload
        async with (
            self._runtime.serve() as runtime,
            watched(os.environ, self.notifier, runtime.parts.journal.answer),
            runtime.serve_extras(job_sessions(runtime)),
            trio.open_nursery() as connections,
        ):
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    scheme = listener.address.partition(":")[0]
                    # Over HTTP only what has become a WebSocket is served by this handler.
                    handler = partial(self._serve_connection, runtime, scheme.replace("http", "ws"))
                    accepting.start_soon(listener.accept_all, connections, limiter, handler)
                if halting is not None:
                    handler = partial(self._serve_connection, runtime, "unix", halts_only=str(path))
                    accepting.start_soon(halting.accept_all, connections, runtime.stranger, handler)
                self._announce(path, runtime)
                accepting.start_soon(self._warm_up)
                if self._parts.attestation is not None:
                    accepting.start_soon(self._parts.attestation.run)
                accepting.start_soon(self._remind, listeners)
                for file, (bound, watch) in ({} if self._sockets is None else self._sockets.watches).items():
                    accepting.start_soon(watch_socket, runtime, file, bound, watch)
                while (asked := await self.signals.next()) is RELOAD:
                    await reloader.by_signal()
                log.info("%s: shutting down", asked)
                accepting.cancel_scope.cancel()
            for listener in (*listeners, *(() if halting is None else (halting,))):
                listener.close()
            await self._end(runtime)
            for connection in self._connections:
                connection.finish()
            for listener in listeners:
                listener.finish()
            runtime.tell_extras("finish")
            connections.cancel_scope.deadline = trio.current_time() + FLUSH_TIMEOUT

    async def _end(self, runtime: Runtime) -> None:
        """End the work of the extras, then all sessions."""
        runtime.tell_extras("stop")
        self.notifier.notify("STOPPING=1")
        async with trio.open_nursery() as ending:
            ending.start_soon(self._stop_waiting, runtime)
            grace = self._config.limits.shutdown_grace_s
            until = trio.current_time() + grace
            for name, service in runtime.extras.items():
                # Half of the time is left for the sessions that end afterwards, and half of that if one hangs.
                with trio.move_on_at(until - grace / 4) as ending_one:
                    await runtime.contain_extra(name, partial(service.end, until - grace / 2))
                if ending_one.cancelled_caught:
                    log.warning("extra %s has not ended in time", name)
            await runtime.end_sessions(until)
            ending.cancel_scope.cancel()

    async def _serve_connection(
        self,
        runtime: Runtime,
        scheme: str,
        carrier: Carrier,
        principal: Principal,
        *,
        halts_only: str | QueueFull | None = None,
    ) -> None:
        limits = self._config.limits
        metrics = runtime.parts.journal.metrics
        connection = Connection(
            carrier,
            principal,
            runtime,
            max_outstanding=limits.max_outstanding,
            max_document_bytes=limits.max_document_bytes,
            max_batch=limits.max_batch,
            max_values=limits.max_values,
            metrics=metrics,
            account=runtime.memory.for_principal(principal.key),
            halts_only=halts_only,
        )
        self._connections.add(connection)
        try:
            with metrics.connection(scheme):
                await contain(f"connection of {principal.key}", connection.run, lambda _error: None)
        finally:
            self._connections.discard(connection)

    async def _remind(self, listeners: Sequence[Listener]) -> None:
        """Log once a day the certificates that are about to expire."""
        while True:
            warn_of(listeners)
            await trio.sleep(DAY)

    async def _stop_waiting(self, runtime: Runtime) -> None:
        log.warning("%s again: not waiting for transactions in flight", await self.signals.end())
        runtime.stop_waiting()

    async def _warm_up(self) -> None:
        """Import the library that explains invalid args, in a thread.

        It takes up to a second on a small board: otherwise all clients would wait for the first invalid argument.
        """

        def load() -> None:
            with IMPORTING:
                import_module("jsonschema")

        await trio.to_thread.run_sync(load, abandon_on_cancel=True)

    def _announce(self, path: Path, runtime: Runtime) -> None:
        # The objects that exist now live as long as the process: exclude them from garbage collection. Collect young
        # objects less often, since actors free theirs by reference counting. Older generations must still be collected:
        # a library's connection is a cycle, and once it has survived a collection only a later one frees it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 5, 5)
        for address in runtime.listeners[1:]:
            self.log_handler.write_line(f"hearthd: listening on {address}")
        load_ahead(runtime)
        self.log_handler.write_line(f"hearthd: ready on {path}")
        self.notifier.notify(f"READY=1\nSTATUS=ready on {path}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the `hearthd` command. Exits 0 after a signal, 2 when the configuration cannot be used."""
    keep_standard_descriptors()
    options = options_parser().parse_args(argv)
    log_handler = NonBlockingLogHandler(environ=os.environ)
    logging.basicConfig(level=logging.INFO, format="hearthd: %(levelname)s: %(message)s", handlers=[log_handler])
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
            check(config, options.config)
            return
        log_handler.write_as(config.log.format)
        with noting():
            _serve(config, options.config, log_handler, no_sandbox=options.no_sandbox)
    except ConfigError as error:
        for line in str(error).splitlines():
            log_handler.write_line(f"hearthd: {line}", logging.ERROR)
        raise SystemExit(2) from None
    finally:
        log_handler.end()


def options_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line of `hearthd`."""
    parser = argparse.ArgumentParser(
        "hearthd",
        description="The hearth daemon: hardware for agents, safe and audited.",
        epilog="SIGTERM and SIGINT end it: sessions are closed, transactions in flight finish, outputs go to their "
        "safe state, and it exits 0; a second one stops waiting for transactions. SIGHUP makes it read its "
        "policy, tokens and certificates again, as `hearth admin reload` does: a session that keeps a policy entry "
        "goes on; for anything else in the configuration, restart it. A "
        "terminal that closes ends what was started in it, except under nohup. It exits 2 where the configuration "
        "cannot be used.",
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="a hearth.toml (default: all defaults)")
    add("--board", metavar="NAME", help="the board profile: a shipped name or a TOML file")
    add("--socket", type=Path, metavar="PATH", help="listen here instead of [server] socket")
    add("--no-sandbox", action="store_true", help="do not confine the daemon; the log, the audit log and health say so")
    add("--check", action="store_true", help="check configuration, board and tools, then exit")
    add("--print-config", action="store_true", help="print the configuration with all defaults, then exit")
    add("--version", action="version", version=f"hearthd {__version__}")
    return parser


def _serve(config: Config, file: Path | None, log_handler: NonBlockingLogHandler, *, no_sandbox: bool) -> None:
    signals = Signals()
    max_connections = allow_descriptors(config.limits.max_connections)
    uid = own_uid(config)
    notifier = Notifier(os.environ)
    parts = None
    sockets = open_sockets(config, uid)
    path = sockets.path
    try:
        policy = default_policy(uid, unix.socket_gid(path))
        parts = build_parts(config, default_policy=policy, config_file=file, socket=path, daemon=True)
        check_directories(parts.journal.settings.path, parts.journal.settings.key, uid)
        check_credentials(config)
        daemon = Daemon(
            config,
            parts,
            file=file,
            default_policy=policy,
            max_connections=max_connections,
            sockets=sockets,
            signals=signals,
            log_handler=log_handler,
            notifier=notifier,
        )
        sockets.watch()
        assert sockets.listening is not None
        listeners = open_listeners(config, parts.policy, sockets.listening, path, daemon.refused, daemon.runtime)
        if parts.attestation is not None:
            parts.attestation.open()
        # Addresses are bound and devices known: from here on nothing is opened that the plan does not name.
        own = places_of(parts, sockets.own, file)
        daemon.confined(
            confine_daemon(config, parts, own, sockets.made, no_sandbox=no_sandbox, notifier=notifier.fileno())
        )
        log_handler.start()
        for note in (*owner_warning(parts.policy, uid, file), *parts.open_records()):
            log.warning("%s", note)
        signals.started()
        halting = sockets.halting
        halts = None if halting is None else unix.HaltListener(halting, send_timeout=config.limits.send_timeout_s)
        trio.run(daemon.run, listeners, halts, path)
    finally:
        signals.over()
        sockets.close()
        for name, service in () if parts is None else parts.extras.items():
            contain_now(f"extra {name}", service.close, lambda _error: None)
        for owned in () if parts is None else (parts.launcher, parts.attestation):
            if owned is not None:
                owned.close()
        notifier.close()
        sockets.remove()


def open_listeners(
    config: Config,
    policy: Sequence[PolicyEntry],
    socket_: socket.socket,
    path: Path,
    report: Callable[[str, str, str], None],
    runtime: Callable[[], Runtime],
) -> list[Listener]:
    """Open the configured listeners; return them after the Unix socket, which is open already.

    `runtime` returns the runtime, once there is one, for listeners that serve more than sessions. Raises ConfigError;
    no listener is left open then.
    """
    listeners: list[Listener] = [unix.UnixListener(socket_, path, send_timeout=config.limits.send_timeout_s)]
    opening = Opening(config, in_force(policy), report, runtime)
    try:
        for extra in (extra for extra in active(config) if extra.listen):
            listeners.append(extra.call("listen", opening))  # noqa: PERF401  those that are open must be closed
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners
