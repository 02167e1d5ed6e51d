"""One world: the real daemon over simulated devices, a disk that fails, and clients in memory.

Owns how the parts are put together and what belongs to the surroundings of the daemon: its signals, the listener by
which clients come in, its lives (a daemon that was ended or killed is started again on the same log, outputs and
devices). Who does what, and what goes wrong when, is the scenario's.
"""

from __future__ import annotations

import base64
import errno
import logging
import os
import random
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import trio
from attrs import evolve

from hearth.actors.build import build_parts
from hearth.actors.bus.outputs_file import OutputsFile
from hearth.actors.daemon import Daemon
from hearth.actors.daemon.process import Notifier
from hearth.actors.journal import Journal
from hearth.config.model import AuditConfig, BoardConfig, Config, FilesConfig, LimitsConfig, ToolsConfig
from hearth.drivers.system import SystemDriver
from hearth.tools import ToolRegistry

from . import devices, machine, wide
from .carriers import MemoryListener, MemorySignals, Pipe
from .devices import Wire
from .disk import WorldDisk
from .terms import BUSES, policy_of
from .tools import BOARD, board_of_the_process, marking, own_tools

LOG = machine.PLACE / "log/audit.log"
OUTPUTS = Path("log/audit.log.outputs")
KEYS = Path("log/audit.log.idempotency")
LATCH = Path("log/audit.log.halt")
FILES = machine.PLACE / "files"
KEY = machine.PLACE / "log/audit.key"
KEY_PEM = f"""-----BEGIN PRIVATE KEY-----
{base64.b64encode(bytes.fromhex("302e020100300506032b657004220420") + bytes(range(32))).decode()}
-----END PRIVATE KEY-----
"""


class World:
    """The surroundings of all lives of one daemon."""

    def __init__(self, seed, tape, system, terms) -> None:
        self.seed = seed
        self.tape = tape
        self.machine = system
        self.terms = terms
        self.hot = random.Random(f"{seed}/hot").random() < 0.35
        """Most of what is done is done on one slow bus."""
        self.is_wide = wide.is_wide(seed)
        """It has the buses of `wide` too."""
        self.mute = False
        self.disk = WorldDisk(self.tell)
        self.bugs: dict[str, str] = {}
        """Tools that run into a bug the next time: before or after their work."""
        self.wires: dict[str, Wire] = {}
        self._transactions = 0
        self.drivers = None
        self.file: SimpleNamespace | None = None
        """Stands for the configuration's file: `config` is what a reload reads."""
        self.daemon: Daemon | None = None
        self.listener: MemoryListener | None = None
        self.signals: MemorySignals | None = None
        self.up = trio.Event()
        self.halting = trio.Lock()
        """Held by whoever halts or resets, so that the tape has their order."""
        self.killed = trio.CancelScope()
        self.snapshot: dict[Path, bytes | None] = {}
        """Files as they were when the machine went off."""
        self.pipes: list[tuple[Pipe, Pipe]] = []
        self._descriptors = len(os.listdir("/proc/self/fd"))
        FILES.mkdir()
        LOG.parent.mkdir()
        (FILES / "read.txt").write_bytes(b"something to read\n")
        (FILES / "b").write_bytes(b"")
        devices.lay_out_telemetry(Path())
        # A key that is made would be another one in every run.
        KEY.touch(mode=0o600)
        KEY.write_text(KEY_PEM)

    # --- telling

    def tell(self, kind, **what) -> None:
        """Put something on the tape, unless the machine is off."""
        if not self.mute:
            self.tape.tell(kind, **what)

    def _number(self) -> int:
        self._transactions += 1
        return self._transactions

    def _wire(self, bus) -> Wire:
        wire = self.wires[bus] = Wire(bus, self.tell, random.Random(f"{self.seed}/{bus}"), self._number)
        return wire

    # --- one life

    def _config(self) -> Config:
        terms = self.terms
        return Config(
            board=BoardConfig(profile=str(BOARD)),
            audit=AuditConfig(
                path=LOG,
                durability=terms["durability"],
                rotate_bytes=terms["rotate_bytes"],
                checkpoint_every=terms["checkpoint_every"],
                key=KEY,
            ),
            files=FilesConfig(read=(FILES,), write=(FILES,)),
            tools=ToolsConfig(disable=("proc.*",)),
            limits=LimitsConfig(**terms["limits"]),
            policy=policy_of(terms),
        )

    def _drivers(self, board, found):
        """The devices, made once: they are there whatever becomes of the daemon."""
        if self.drivers is None:
            self.drivers = {}
            for bus in BUSES:
                driver, wire = found[bus], self._wire(bus)
                if bus.startswith("gpio:"):
                    driver = devices.Gpio(board.chips[bus.removeprefix("gpio:")], wire)
                elif bus.startswith("i2c:"):
                    driver = devices.I2c(
                        next(spec for spec in board.profile.of("i2c") if f"i2c:{spec.bus}" == bus), wire
                    )
                elif bus.startswith("uart:"):
                    driver = devices.Uart(next(spec for spec in board.profile.of("uart")), wire)
                elif bus == "system":
                    driver = devices.Pool(SystemDriver(root=Path(), clock=trio.current_time), wire)
                elif bus == "files":
                    driver = devices.Pool(driver, wire)
                self.drivers[bus] = driver
            if self.is_wide:
                self.drivers |= wide.drivers(board, found, self._wire)
        return self.drivers

    def _parts(self, config):
        board = board_of_the_process(is_wide=self.is_wide)
        clock = self.machine.clock
        parts = build_parts(config, default_policy=(), board=board, clock=clock)
        # The board has a driver of its own for what is listed; the others are the world's.
        drivers = {**self._drivers(board, parts.drivers), "board": parts.drivers["board"]}
        for bus, driver in drivers.items():
            if bus in board.drivers:
                board.drivers[bus] = driver
        tools = [marking(tool, self.bugs) for tool in parts.registry.values()]
        journal = Journal(parts.journal.settings, clock=clock, disk=self.disk)
        return evolve(
            parts,
            drivers=drivers,
            registry=ToolRegistry([*tools, *(marking(tool, self.bugs) for tool in own_tools())]),
            journal=journal,
            uptime=trio.current_time,
            audit_head=lambda: journal.head,
            outputs_file=OutputsFile(machine.PLACE / OUTPUTS),
            attestation=None,
            # The card describes the machine it is made on, and takes longer than a world. There are no jobs.
            extras={},
            later={},
        )

    async def live(self) -> None:
        """One life of the daemon, from its start to its end."""
        self.mute = self.disk.dead = False
        for wire in self.wires.values():
            wire.dead = False
        if self.is_wide and self.drivers is not None:
            self.drivers[wide.CAN].fresh()
        self.signals = MemorySignals()
        self.listener = listener = MemoryListener(self.terms["limits"]["send_timeout_s"])
        self.killed = trio.CancelScope()
        error: str | None = None
        self.tell("daemon.starts")
        config = self._config()
        self.file = SimpleNamespace(config=config)
        parts = self._parts(config)
        parts.open_records()
        self.disk.found(LOG)
        journal, outlast = parts.journal, parts.journal._outlast

        def silent(written, *, own):
            """A disk that does not answer for long has failed, although no call has."""
            self.tell("disk.fails", file=LOG.name, call="none", errno=errno.ETIMEDOUT)
            return outlast(written, own=own)

        journal._outlast = silent
        log_handler = SimpleNamespace(write_line=lambda _line: self.up.set())
        self.daemon = Daemon(
            config,
            parts,
            file=self.file,
            max_connections=config.limits.max_connections,
            signals=self.signals,
            log_handler=log_handler,
            notifier=Notifier({}),
        )
        try:
            async with trio.open_nursery() as threads:
                self.machine.nursery = threads
                try:
                    with self.killed:
                        await self.daemon.run([listener], None, Path("/run/world.sock"))
                finally:
                    threads.cancel_scope.cancel()
        except Exception as failure:  # noqa: BLE001  whatever comes out of a daemon is for the tape
            error = repr(failure)
        listener.close()
        log = parts.journal._log
        if log.is_open:
            # A disk that did not answer was left to its thread, with the log open: the kernel closes it now.
            os.close(log._writer.fd)
        self.up = trio.Event()
        if self.mute:
            self._restore()
            self.mute = False
            self.tell("daemon.ends", error="killed")
        else:
            self.tell("daemon.ends", error=error)
        self.daemon = None

    def kill(self) -> None:
        """The machine is off: from now on nothing that this life does reaches anything."""
        self.tell("daemon.told", signal="SIGKILL")
        self.mute = self.disk.dead = True
        for wire in self.wires.values():
            wire.dead = True
            wire.open = False
        self.snapshot = {file: file.read_bytes() if file.exists() else None for file in (OUTPUTS, KEYS, LATCH)}
        for pipes in self.pipes:
            for pipe in pipes:
                pipe.end()
        self.pipes.clear()
        assert self.listener is not None
        self.listener.close()
        assert self.daemon is not None
        self.daemon.runtime().stop_waiting()
        self.killed.cancel()

    def _restore(self) -> None:
        """What the dying process wrote after it was dead was never written."""
        for file, content in self.snapshot.items():
            if content is None:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(content)
        for path, content in self.snapshot.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)

    # --- what leaks

    def counts(self, *, inside: bool):
        """What must be as it was: of the process, and of a daemon that serves."""
        counts = {
            "process.tasks": trio.lowlevel.current_statistics().tasks_living,
            "process.descriptors": len(os.listdir("/proc/self/fd")) - self._descriptors,
            "process.threads": self.machine.underway,
        }
        if inside and self.daemon is not None:
            runtime = self.daemon.runtime()
            counts |= {
                "daemon.sessions": runtime.sessions,
                "daemon.connections": len(self.daemon._connections),
                "daemon.principals": len(runtime._per_principal),
                "daemon.running": runtime._running,
                "daemon.queued": sum(bus.health()["queued"] for bus in runtime.buses.values()),
                "daemon.leased": sum("leased" in bus.health() for bus in runtime.buses.values()),
                "daemon.alarms": len(runtime._timers._names),
                "daemon.audit_lag": runtime.parts.journal.lag,
            }
        return counts


@contextmanager
def quiet():
    """The daemon's own log is for an operator; the tape has what counts. Afterwards it is as loud as before."""
    loggers = [logging.getLogger(name) for name in ("hearth", "hearth.daemon")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
