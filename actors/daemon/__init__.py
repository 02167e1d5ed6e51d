"""hearthd, the daemon: its command line, its nursery tree, and its start and end.

    runtime (journal, buses, sessions)
      job server (jobs, and the job store)
        connections (one task each)
          listeners, signals

Components start top to bottom and stop bottom to top. On SIGTERM or SIGINT the listeners stop, jobs and sessions end,
transactions in flight finish, outputs go to their safe state, clients get the answers and events that are due, the
journal is flushed, and the process exits 0. A second signal ends the wait for transactions. On SIGHUP policy, tokens
and certificates are read again.

All listeners are opened before the first peer is served, so that a daemon which cannot have one of its addresses does
not start. A carrier that is not configured is not imported.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import resource
import sys
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, evolve, field, fields_dict

from hearth._util.files import noting, read_file
from hearth._util.inotify import watch_file
from hearth._util.threads import IMPORTING
from hearth._version import __version__
from hearth.actors.bridges.hcp.lazy import open_job_server, open_job_storage
from hearth.actors.build import build_parts, policy_entries, uids_of, unused_hardware
from hearth.actors.connection import Connection
from hearth.actors.daemon.process import (
    RELOAD,
    NonBlockingLogHandler,
    Notifier,
    Signals,
    activated_sockets,
    keep_standard_descriptors,
    watched,
)
from hearth.actors.daemon.sandbox import confine_daemon, missing_features, own_uid, places_of, plan_of
from hearth.actors.embedded import job_sessions
from hearth.actors.listeners import unix
from hearth.actors.listeners.accept import MOST_HALTING, RESERVED, ConnectionLimiter
from hearth.actors.runtime import Runtime
from hearth.actors.supervisor import contain
from hearth.audit.files import directory_fault
from hearth.config.model import Config, default_socket, halt_socket, load_config
from hearth.drivers.sandbox.cage import cannot_hold
from hearth.errors import ConfigError, InvalidParams, RpcError
from hearth.mcp.tools import BY_NAME as CARD_TOOLS
from hearth.policy.change import resets_halt
from hearth.policy.principal import from_uid, remember
from hearth.policy.rules import (
    default_policy,
    idle_conditions,
    idle_job_rules,
    in_force,
    owner_without_entry,
    unused_patterns,
)
from hearth.schema import check_schema

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from starlette.types import ASGIApp

    from hearth.actors.bridges.amqp.uplink import Uplink
    from hearth.actors.bridges.hcp.lazy import JobStorage, LazyJobServer
    from hearth.actors.listeners.accept import Listener
    from hearth.actors.listeners.tcp import Report
    from hearth.actors.listeners.tls import Certificates
    from hearth.actors.listeners.websocket import WebSocketHandshake
    from hearth.actors.runtime import RuntimeParts
    from hearth.actors.transport import Carrier
    from hearth.config.listen import Endpoint
    from hearth.drivers.sandbox.enforce import SandboxReport
    from hearth.errors import QueueFull
    from hearth.policy.change import PolicyChange
    from hearth.policy.principal import Principal, Tokens
    from hearth.policy.rules import PolicyEntry


log = logging.getLogger("hearth.daemon")

LATER = {"": ("difflib", "hearth.agentcard.signature"), "http": ("anyio._backends._trio",)}
"""Modules whose import waits for their first use, by the section of the configuration with which they are used."""

OWN_DESCRIPTORS = 64
"""Descriptors that the daemon itself may need: devices, roots of the path guard, the audit log, Trio's."""
DAY = 86_400.0
NO_RESET = 'no [[policy]] entry has "reset_halt" in its rights: nobody could end a halt'
FLUSH_TIMEOUT = 1.0
"""Seconds that connections have, after all sessions have ended, to send what is due."""


def load_ahead(config: Config, parts: RuntimeParts) -> None:
    """Import what would be imported with the first use, and look up who must get in, while waiting for a disk is fine.

    From here on the event loop makes no call that a disk can hold up.
    """
    for section, modules in LATER.items():
        if not section or getattr(config, section).listen:
            for name in modules:
                import_module(name)
    if config.http.listen:
        # The agent card and MCP list what jobs may use.
        parts.capabilities.loaded()
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
    socket_watches: dict[Path, tuple[os.stat_result, int]] = field(factory=dict, init=False)
    """The file of each Unix socket that this process has bound, and a watch on it (`_util.inotify`)."""
    _listeners: Sequence[Listener] = field(default=(), init=False)
    signals: Signals = field(kw_only=True)
    log_handler: NonBlockingLogHandler = field(kw_only=True)
    notifier: Notifier = field(kw_only=True)
    _runtime: Runtime | None = field(default=None, init=False)
    _reloading: trio.Lock = field(factory=trio.Lock, init=False)
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

    async def run(
        self, listeners: Sequence[Listener], halting: unix.HaltListener | None, path: Path, storage: JobStorage | None
    ) -> None:
        """Serve until a signal asks to end; serve jobs too, if `storage` is given."""
        # Only now: it reads the driven outputs of the last run, whose file must be open.
        self._runtime = Runtime(self._parts)
        limiter = ConnectionLimiter(self._max_connections, self._runtime.stranger)
        self._runtime.listeners = [listener.address for listener in listeners]
        self._runtime.serves_mcp = serves_mcp(self._config)
        self._runtime.reload = self._reload
        self._listeners = listeners
        async with (
            self._runtime.serve() as runtime,
            watched(os.environ, self.notifier, runtime.parts.journal.answer),
            open_job_server(storage, runtime, job_sessions(runtime)) as job_server,
            trio.open_nursery() as connections,
        ):
            uplink = None if job_server is None else await self._open_uplink(runtime, job_server, connections)
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    scheme = listener.address.partition(":")[0]
                    # Over HTTP only what has become a WebSocket is served by this handler.
                    handler = partial(self._serve_connection, runtime, scheme.replace("http", "ws"))
                    accepting.start_soon(listener.accept_all, connections, limiter, handler)
                if halting is not None:
                    handler = partial(self._serve_connection, runtime, "unix", halts_only=str(path))
                    accepting.start_soon(halting.accept_all, connections, runtime.stranger, handler)
                self._announce(path, runtime.listeners[1:])
                accepting.start_soon(self._warm_up)
                if self._parts.attestation is not None:
                    accepting.start_soon(self._parts.attestation.run)
                accepting.start_soon(self._remind, listeners)
                accepting.start_soon(self._watch_sockets, runtime)
                while (asked := await self.signals.next()) is RELOAD:
                    await self._reload_by_signal()
                log.info("%s: shutting down", asked)
                accepting.cancel_scope.cancel()
            for listener in listeners:
                listener.close()
            if halting is not None:
                halting.close()
            if uplink is not None:
                uplink.stop()
            self.notifier.notify("STOPPING=1")
            async with trio.open_nursery() as ending:
                ending.start_soon(self._stop_waiting, runtime)
                until = trio.current_time() + self._config.limits.shutdown_grace_s
                if job_server is not None:
                    await job_server.end(until - self._config.limits.shutdown_grace_s / 2)
                await runtime.end_sessions(until)
                ending.cancel_scope.cancel()
            for connection in self._connections:
                connection.finish()
            for listener in listeners:
                listener.finish()
            if uplink is not None:
                uplink.finish()
            connections.cancel_scope.deadline = trio.current_time() + FLUSH_TIMEOUT

    async def _open_uplink(self, runtime: Runtime, job_server: LazyJobServer, nursery: trio.Nursery) -> Uplink | None:
        """Start the uplink to the broker, if one is configured."""
        if not dials_broker(self._config):
            return None
        from hearth.actors.bridges.amqp.uplink import Uplink

        uplink = Uplink(self._config.amqp, runtime, await job_server.real())
        runtime.uplink = uplink.status
        nursery.start_soon(uplink.keep)
        return uplink

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

    async def _reload_by_signal(self) -> None:
        try:
            await self._reload()
        except RpcError as error:
            log.error("SIGHUP: %s", error.message)

    async def _reload(self, yes: bool = False) -> dict[str, Any]:
        """Read policy, tokens and certificates again; return the answer to policy.reload.

        Raises InvalidParams for a configuration that cannot be used, and, without `yes`, for a policy that has
        something no longer and by which a principal may do more: then the policy stays as it is. A listener whose files
        cannot be read keeps its certificates.
        """
        async with self._reloading:
            return await self._reload_alone(yes)

    async def _reload_alone(self, yes: bool) -> dict[str, Any]:
        self.notifier.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            try:
                config, entries, change = await trio.to_thread.run_sync(self._read_again)
            except ConfigError as error:
                reason = f"nothing has changed: {'; '.join(str(error).splitlines())}"
                raise InvalidParams(f"the configuration cannot be used, {reason}", data={"reason": reason}) from None
            if change.widens_silently and not yes:
                raise _widens(change)
            kept: list[str] = []
            for listener in self._listeners:
                try:
                    listener.reload()
                except ConfigError as error:
                    kept.append(listener.address)
                    log.error("%s keeps the certificates it had: %s", listener.address, error)
            runtime = self.runtime()
            closed = runtime.replace_policy(entries, change)
            sections = [name for name in fields_dict(Config) if _differs(self._config, config, name)]
            if not kept:
                log.info("certificates have been read again")
            log.info("the policy has been read again: %d entries; %d sessions are closed", len(entries), closed)
            if sections:
                log.warning("changes in %s take a restart", ", ".join(f"[{name}]" for name in sections))
            for line in change.allows:
                log.info("newly allowed: %s", line)
            warnings = owner_warning(entries, os.geteuid(), self._file)
            warnings += [] if resets_halt(entries) else [NO_RESET]
            for warning in warnings:
                log.warning("%s", warning)
            _warn(self._listeners)
            answer = {"ok": True, "entries": [entry.name for entry in entries], "closed": closed, "restart": sections}
            told = {"certificates_kept": kept, "allows": list(change.allows), "warnings": warnings}
            return {**answer, **{name: lines for name, lines in told.items() if lines}}
        finally:
            self.notifier.notify("READY=1")

    def _read_again(self) -> tuple[Config, Sequence[PolicyEntry], PolicyChange]:
        """Return configuration and policy as they are in the file now, and what changes. Blocking. Raises ConfigError.

        In a thread: comparing two long policies takes a while. `_reloading` keeps the policy in force as it is.
        """
        config = load_config(self._file, settled=True)
        settings = self._parts.journal.settings
        check_directories(settings.path, settings.key, os.geteuid())
        entries, former = policy_entries(config) or self._default_policy, tuple(self._parts.policy)
        change = self.runtime().compared(entries, uids_of((*former, *entries)))
        if not config.policy and former != tuple(entries):
            # Even where they allow nobody more: an empty file is too likely one that was cut.
            change = evolve(change, allows=change.allows or ("the built-in entries are in force again",))
        return config, entries, change

    async def _remind(self, listeners: Sequence[Listener]) -> None:
        """Log once a day the certificates that are about to expire."""
        while True:
            _warn(listeners)
            await trio.sleep(DAY)

    async def _stop_waiting(self, runtime: Runtime) -> None:
        log.warning("%s again: not waiting for transactions in flight", await self.signals.end())
        runtime.stop_waiting()

    async def _watch_sockets(self, runtime: Runtime) -> None:
        async with trio.open_nursery() as nursery:
            for path, (bound, watch) in self.socket_watches.items():
                nursery.start_soon(self._watch_socket, runtime, path, bound, watch)

    async def _watch_socket(self, runtime: Runtime, path: Path, bound: os.stat_result, watch: int) -> None:
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

    async def _warm_up(self) -> None:
        """Import the library that explains invalid args, in a thread.

        It takes up to a second on a small board: otherwise all clients would wait for the first invalid argument.
        """

        def load() -> None:
            with IMPORTING:
                import_module("jsonschema")

        await trio.to_thread.run_sync(load, abandon_on_cancel=True)

    def _announce(self, path: Path, elsewhere: Sequence[str]) -> None:
        # The objects that exist now live as long as the process: exclude them from garbage collection. Collect young
        # objects less often, since actors free theirs by reference counting. Older generations must still be collected:
        # a library's connection is a cycle, and once it has survived a collection only a later one frees it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 5, 5)
        for address in elsewhere:
            self.log_handler.write_line(f"hearthd: listening on {address}")
        load_ahead(self._config, self._parts)
        self.log_handler.write_line(f"hearthd: ready on {path}")
        self.notifier.notify(f"READY=1\nSTATUS=ready on {path}")


def _widens(change: PolicyChange) -> InvalidParams:
    """Return the refusal of a policy that widens silently."""
    gone, more = (", ".join(change.removed), "; ".join(change.allows))
    reason = f"{gone} removed or changed, and by that principals may do more: {more}"
    cure = "nothing has changed; if it is meant: `hearth reload --yes`"
    details = {"reason": reason, "removed": list(change.removed), "allows": list(change.allows)}
    return InvalidParams(f"the policy is not taken: {reason}; {cure}", data=details)


def _differs(running: Config, read: Config, section: str) -> bool:
    """Return True if a section of the file is not what the daemon runs with."""
    now, then = getattr(running, section), getattr(read, section)
    # What options of the command line may have replaced is not compared.
    if section == "board":
        then = evolve(then, profile=now.profile)
    elif section == "server":
        then = evolve(then, socket=now.socket)
    return section != "policy" and bool(now != then)


def _warn(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        for warning in listener.warnings():
            log.warning("%s", warning)


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
            _check(config, options.config)
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
        "policy, tokens and certificates again, as `hearth reload` does: a session that keeps a policy entry goes on; "
        "for anything else in the configuration, restart it. A "
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


def _check(config: Config, file: Path | None) -> None:
    """Check everything that needs no device, no address and no running daemon. Raises ConfigError."""
    socket = config.server.socket or default_socket(os.environ, os.geteuid())
    policy = default_policy(os.geteuid(), unix.group_id(config.server.socket_group))
    parts = build_parts(config, default_policy=policy, config_file=file, socket=socket)
    settings = parts.journal.settings
    check_directories(settings.path, settings.key, _user_of(config, settings.path))
    check_credentials(config)
    for tool in parts.registry.values():
        check_schema(tool.params_schema, f"tool {tool.name}: params_schema", by_authority=True)
        check_schema(tool.result_schema, f"tool {tool.name}: result_schema", by_authority=True)
    for capability in parts.capabilities.values():
        check_schema(capability.input_schema, f"{capability.place}: input_schema", by_authority=True)
        check_schema(capability.output_schema, f"{capability.place}: output_schema", by_authority=True)
    for certificates in read_certificates(config).values():
        for warning in certificates.warnings():
            sys.stdout.write(f"hearthd: warning: {warning}\n")
    serves_mcp(config)
    sections = [section for section in (config.websocket, config.http) if section.listen is not None]
    takes_certificates = config.tls.listen is not None or any(section.client_ca is not None for section in sections)
    broker = dials_broker(config)
    idle = idle_conditions(parts.policy, certificates=takes_certificates, tokens=bool(sections), broker=broker)
    jobs = idle_job_rules(parts.policy, parts.capabilities) if parts.hcp.serve else []
    owner = owner_warning(parts.policy, own_uid(config), file)
    unused = [
        *unused_patterns(parts.policy, (*parts.registry, *CARD_TOOLS)),
        *unused_hardware(parts.policy, parts.board),
    ]
    for warning in [*owner, *unused, *idle, *jobs]:
        sys.stdout.write(f"hearthd: warning: {warning}\n")
    plan_of(config, parts, places_of(parts, None, file), 0 if config.sandbox.user else os.geteuid())
    if (reason := cannot_hold(config)) is not None:
        raise ConfigError(reason)
    for line in missing_features(config):
        sys.stdout.write(f"hearthd: warning: {line}\n")
    from hearth.drivers.boards.diagnose import cautions

    for problem in cautions(parts.board.profile):
        sys.stdout.write(f"hearthd: note: board: {problem.key}: {problem.problem}; {problem.cure}\n")
    for note in parts.capabilities.notes:
        sys.stdout.write(f"hearthd: note: {note}\n")
    sys.stdout.write(
        f"hearthd: configuration is good: board {parts.board.name}, {len(parts.registry)} tools, "
        f"{len(parts.drivers)} buses, {len(parts.capabilities)} capabilities, {len(parts.policy)} policy entries\n"
    )


def _user_of(config: Config, log: Path) -> int:
    """Return the uid to check for: root checks for the user to whom the package has given /var/lib/hearth."""
    uid = own_uid(config)
    if uid == 0 and config.audit.path is None:
        with suppress(OSError):
            return log.parent.stat().st_uid
    return uid


def owner_warning(entries: Sequence[PolicyEntry], uid: int, file: Path | None) -> list[str]:
    """Return a warning if no entry matches the daemon's own user or root."""
    return owner_without_entry(entries, (from_uid(uid), from_uid(0)), str(file or "hearth.toml"))


def check_directories(log: Path, key: Path, uid: int) -> None:
    """Raise ConfigError if users other than root, ours and `uid` could replace the log, the halt's latch or the key."""
    if (fault := directory_fault(log, key, {os.geteuid(), uid})) is not None:
        raise ConfigError(f"[audit] path: others could remove the log and the latch of a halt: {fault}")


def check_credentials(config: Config) -> None:
    """Raise ConfigError if other users could change a credential with which the daemon connects elsewhere."""
    files = {"[ask] api_key_file": config.ask.api_key_file}
    if config.amqp.url is not None:
        address = config.amqp.broker()
        names = ("ca", "cert", "key", "password_file")
        files |= {f"[amqp] {name}": getattr(address, name) for name in names}
    for name, path in files.items():
        try:
            # One that cannot be read is reported where it is used: it may come later.
            with suppress(OSError):
                if path is not None:
                    read_file(path.expanduser(), trusted={os.geteuid()}, secret=True)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None


def _allow_descriptors(connections: int) -> int:
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


LONGEST_PATH = 107
"""Bytes of the path of a Unix socket (unix(7))."""


def _bind_halt_socket(config: Config, path: Path, uid: int, *, activated: bool) -> socket.socket | None:
    """Return the halt socket beside the one at `path`; None, with a warning, where it cannot be. Raises ConfigError."""
    place = halt_socket(path)
    if activated:
        cure = f"add ListenStream={place} to the .socket unit"
    elif len(os.fsencode(place)) > LONGEST_PATH:
        cure = f"{place} is longer than {LONGEST_PATH} bytes; choose a shorter [server] socket"
    else:
        return unix.bind(place, config.server.socket_mode, config.server.socket_group, uid)
    log.warning("there is no halt socket, which takes a halt when all connections are in use: %s", cure)
    return None


def _serve(config: Config, file: Path | None, log_handler: NonBlockingLogHandler, *, no_sandbox: bool) -> None:
    signals = Signals()
    dials_broker(config)
    max_connections = _allow_descriptors(config.limits.max_connections)
    path = config.server.socket or default_socket(os.environ, os.geteuid())
    uid = own_uid(config)
    listening, halting = activated_sockets(os.environ)
    bound: dict[Path, os.stat_result] = {}
    parts = None
    notifier = Notifier(os.environ)
    made = [] if listening is not None or path.parent.is_dir() else [path.parent]
    if listening is None:
        listening = unix.bind(path, config.server.socket_mode, config.server.socket_group, uid)
        bound[path] = path.lstat()
    else:
        path = Path(listening.getsockname())
        unix.check_directory(path.parent, uid)
    try:
        if halting is None:
            halting = _bind_halt_socket(config, path, uid, activated=not bound)
            if halting is not None:
                bound[halt_socket(path)] = halt_socket(path).lstat()
        policy = default_policy(uid, unix.socket_gid(path))
        parts = build_parts(config, default_policy=policy, config_file=file, socket=path)
        check_directories(parts.journal.settings.path, parts.journal.settings.key, uid)
        check_credentials(config)
        daemon = Daemon(
            config,
            parts,
            file=file,
            default_policy=policy,
            max_connections=max_connections,
            signals=signals,
            log_handler=log_handler,
            notifier=notifier,
        )
        found = [(each, status, watch_file(str(each))) for each, status in bound.items()]
        daemon.socket_watches |= {each: (status, watch) for each, status, watch in found if watch is not None}
        listeners = open_listeners(config, parts.policy, listening, path, daemon.refused, daemon.runtime)
        if parts.attestation is not None:
            parts.attestation.open()
        # Addresses are bound and devices known: from here on nothing is opened that the plan does not name.
        own = places_of(parts, path if path in bound else None, file)
        daemon.confined(confine_daemon(config, parts, own, made, no_sandbox=no_sandbox, notifier=notifier.fileno()))
        log_handler.start()
        if config.hcp.capabilities:
            # These are loaded by now; shipped capabilities are loaded with the first job.
            for note in parts.capabilities.notes:
                log.info("%s", note)
        notes = [*owner_warning(parts.policy, uid, file), *parts.open_records()]
        storage = open_job_storage(parts)
        for note in notes if storage is None else (*notes, *storage.notes):
            log.warning("%s", note)
        signals.started()
        halts = None if halting is None else unix.HaltListener(halting, send_timeout=config.limits.send_timeout_s)
        trio.run(daemon.run, listeners, halts, path, storage)
    finally:
        signals.over()
        listening.close()
        if halting is not None:
            halting.close()
        if parts is not None and parts.launcher is not None:
            parts.launcher.close()
        if parts is not None and parts.attestation is not None:
            parts.attestation.close()
        notifier.close()
        for place, status in bound.items():
            unix.remove(place, status)


# --- listeners --------------------------------------------------------------------------------------------------------


def read_certificates(config: Config) -> dict[str, Certificates]:
    """Return the certificates of each section that has some. Reads files, binds nothing. Raises ConfigError."""
    found: dict[str, Certificates] = {}
    tls, websocket, http = config.tls, config.websocket, config.http
    if tls.listen is None and websocket.listen is None and http.listen is None:
        return found
    from hearth.actors.listeners.tls import Certificates

    if tls.listen is not None and tls.cert is not None and tls.key is not None:
        found["tls"] = Certificates("tls", tls.cert, tls.key, tls.client_ca, client="required")
    for name, section in (("websocket", websocket), ("http", http)):
        if section.listen is not None and section.cert is not None and section.key is not None:
            client_ca = section.client_ca
            found[name] = Certificates(
                name, section.cert, section.key, client_ca, client="none" if client_ca is None else "optional"
            )
    return found


def serves_mcp(config: Config) -> bool:
    """Return True if [http] serves /mcp. Raises ConfigError if a configured extra is not installed."""
    section = config.http
    if section.listen is None:
        return False
    if any(find_spec(name) is None for name in ("starlette", "prometheus_client")):
        raise ConfigError("[http] listen: the HTTP server is not installed; pip install 'hearthd[http]'")
    installed = find_spec("mcp") is not None
    if section.mcp and not installed:
        cure = "pip install 'hearthd[mcp]', or take mcp = true out"
        raise ConfigError(f"[http] mcp: the MCP SDK is not installed; {cure}")
    return installed and section.mcp is not False


def dials_broker(config: Config) -> bool:
    """Return True if [amqp] names a broker. Raises ConfigError if an extra that it needs is not installed."""
    if config.amqp.url is None:
        return False
    if missing := [name for name in ("pamqp", "isodate", "semantic_version") if find_spec(name) is None]:
        cure = "pip install 'hearthd[amqp,hcp]', or take [amqp] out"
        raise ConfigError(f"[amqp] url: {missing[0]} is not installed, and orders from a broker need it; {cure}")
    return True


def open_listeners(
    config: Config,
    policy: Sequence[PolicyEntry],
    socket_: socket.socket,
    path: Path,
    report: Report,
    runtime: Callable[[], Runtime] | None = None,
) -> list[Listener]:
    """Open the configured listeners; return them after the Unix socket, which is open already.

    `runtime` returns the runtime, once there is one, for listeners that serve more than sessions. Raises ConfigError;
    no listener is left open then.
    """
    listeners: list[Listener] = [unix.UnixListener(socket_, path, send_timeout=config.limits.send_timeout_s)]
    try:
        certificates = read_certificates(config)
        if config.tls.listen is not None:
            listeners.append(_tls(config, certificates["tls"], config.tls.listen, report))
        if config.websocket.listen is not None:
            tokens = in_force(policy).tokens
            listeners.append(_websocket(config, tokens, certificates.get("websocket"), config.websocket.listen, report))
        if config.http.listen is not None:
            assert runtime is not None, "[http] needs a runtime"
            tokens = in_force(policy).tokens
            listeners.append(_http(config, tokens, certificates.get("http"), config.http.listen, report, runtime))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _tls(config: Config, certificates: Certificates, listen: Endpoint, report: Report) -> Listener:
    from hearth.actors.listeners.tcp import TcpListener, bind
    from hearth.actors.listeners.tls import TlsHandshake

    limits = config.limits
    handshaker = TlsHandshake(
        certificates, handshake_timeout=limits.handshake_timeout_s, send_timeout=limits.send_timeout_s
    )
    listening = bind("tls", listen)
    return TcpListener(listening, handshaker, certificates, send_timeout=limits.send_timeout_s, report=report)


def _websocket(
    config: Config,
    tokens: Tokens,
    certificates: Certificates | None,
    listen: Endpoint,
    report: Report,
) -> Listener:
    from hearth.actors.listeners.tcp import TcpListener, bind

    section = config.websocket
    handshaker = _handshaker(
        config, tokens, certificates, origins=frozenset(section.origins), behind_proxy=section.plaintext
    )
    listening = bind("websocket", listen)
    return TcpListener(listening, handshaker, certificates, send_timeout=config.limits.send_timeout_s, report=report)


def _handshaker(config: Config, tokens: Tokens, certificates: Certificates | None, **more: Any) -> WebSocketHandshake:
    from hearth.actors.listeners.websocket import WebSocketHandshake

    section, limits = config.websocket, config.limits
    return WebSocketHandshake(
        certificates=certificates,
        tokens=tokens,
        max_document_bytes=limits.max_document_bytes,
        handshake_timeout=limits.handshake_timeout_s,
        send_timeout=limits.send_timeout_s,
        ping_interval=section.ping_interval_s,
        ping_timeout=section.ping_timeout_s,
        **more,
    )


def _http(
    config: Config,
    tokens: Tokens,
    certificates: Certificates | None,
    listen: Endpoint,
    report: Report,
    runtime: Callable[[], Runtime],
) -> Listener:
    with_mcp = serves_mcp(config)
    from hearth.actors.listeners.tcp import bind

    listening = bind("http", listen)
    from hearth.actors.bridges.http import dashboard
    from hearth.actors.bridges.http.app import HACP, Hosts, opened
    from hearth.actors.bridges.http.listener import HttpListener

    if with_mcp:
        # Import it before the daemon is ready: it takes most of a second.
        import_module("hearth.actors.bridges.mcp.http")

    section, websocket = config.http, None
    page = dashboard.load() if section.ui else {}
    if page:
        # The origin is checked against the request's own Host, by `hosts`.
        websocket = _handshaker(config, tokens, certificates, origins=None, behind_proxy=section.plaintext, path=HACP)
    hosts = Hosts(section.hosts, section.origins, encrypted=section.cert is not None, behind_proxy=section.plaintext)

    def open_app() -> AbstractAsyncContextManager[ASGIApp]:
        reporting = partial(report, "http" if certificates is None else "https")
        return opened(config, runtime(), hosts, reporting, with_mcp=with_mcp, page=page)

    def count(carrier: str) -> AbstractContextManager[None]:
        return runtime().parts.journal.metrics.connection(carrier)

    limits = config.limits
    return HttpListener(
        listening,
        certificates,
        open_app,
        handshake_timeout=limits.handshake_timeout_s,
        send_timeout=limits.send_timeout_s,
        report=report,
        count=count,
        hosts=hosts,
        websocket=websocket,
    )
