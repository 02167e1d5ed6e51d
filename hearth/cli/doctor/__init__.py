"""`hearth doctor`: checks of the daemon and of this machine, with cures. It needs no daemon and changes nothing.

It also checks the machine's own devices, with those that no daemon serves: the devices that exist, the processes that
use them, missing permissions of this user, the fit of a board profile (--board, or the one of --config), and the gaps
in its physical safety. And it checks confinement: the kernel's features, the plan of a daemon with this configuration,
and the state of the running daemon.

Each check is OK, WARN or FAIL and, unless it is OK, has a cure. Exit code: 0 if no check failed, 1 if one failed, and
3 if a daemon was named (--to, --socket, HEARTH_ADDRESS, HEARTH_SOCKET, --config) and does not answer. Without a named
daemon, a default socket without a daemon is only a WARN.
"""

from __future__ import annotations

import contextlib
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from attrs import asdict, evolve

from hearth._util.files import ownership_fault
from hearth._version import __version__
from hearth.audit.files import directory_fault
from hearth.cli import common
from hearth.cli.common import DONE, FAILED, UNREACHABLE, Options, interruptible, standard
from hearth.cli.doctor.answers import DAEMON, ask_daemon
from hearth.cli.doctor.check import Check
from hearth.cli.doctor.confinement import look_at_confinement, machine_checks
from hearth.cli.doctor.files import check_extras, check_log, check_socket, check_state, check_tpm
from hearth.cli.doctor.hardware import hardware_checks, look_at_hardware
from hearth.config.model import Config, default_socket, default_state_dir, load_config
from hearth.errors import ConfigError
from hearth.policy.principal import from_uid
from hearth.policy.rules import owner_without_entry
from hearth.transport.address import UnixAddress, WebSocketAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.transport.address import Address


COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@click.command()
@click.option("--config", metavar="FILE", help="The daemon's hearth.toml: its socket, its log, its board.")
@click.option("--board", metavar="NAME", help="A board profile: does it fit this machine? (Else that of --config.)")
@standard
def doctor(options: Options, config: str | None, board: str | None) -> int:
    """Check this machine's hardware, socket, daemon, buses, confinement and audit log, each with what to do about it.

    Exits with 1 if a check failed, and with 3 if a daemon was named and none answers there.
    """
    examination = Examination(options, config, board)

    async def work() -> int:
        checks = await examination.run()
        failed = any(check.state == "FAIL" for check in checks)
        if options.json:
            click.echo(common.compact(examination.to_json(checks)))
        else:
            click.echo("\n".join(lines(checks)))
        unreachable = any(check.name == DAEMON and check.state == "FAIL" for check in checks)
        return UNREACHABLE if unreachable else FAILED if failed else DONE

    return interruptible(work)


class Examination:
    """All checks for one daemon, its configuration and this machine. Raises ConfigError for a bad file or profile."""

    def __init__(self, options: Options, config: str | None, board: str | None) -> None:
        self.config = Config() if config is None else load_config(Path(config), any_owner=True)
        self._file = None if config is None else Path(config)
        if config is not None and options.named_by == "default":
            socket = self.config.server.socket or default_socket(os.environ, os.geteuid())
            options = evolve(options, where=str(socket), named_by="--config")
        self.options = options
        self.address = options.address
        # Before the daemon is contacted: an invalid profile is a usage error, not a finding.
        self.hardware = look_at_hardware(board or (None if config is None else self.config.board.profile))
        self.confinement = look_at_confinement(self.config)

    @property
    def log(self) -> Path:
        """Return the path of the audit log. Raises ConfigError for a user without a home, where none is configured."""
        return self.config.audit.path or default_state_dir(os.environ, os.geteuid()) / "audit.log"

    async def run(self) -> list[Check]:
        """Return the findings. Contacts the daemon, if there is one."""
        checks = [Check("OK", "hearth", f"version {__version__}")]
        checks += check_address(self.address, self.options.named_by)
        checks += await ask_daemon(self.options)
        try:
            checks += [check_state(self.log.parent), check_log(self.log, expected=self._file is not None)]
        except ConfigError as error:  # a user without a home
            finding, _, cure = str(error).partition("; ")
            checks.append(Check("WARN", "state", finding, cure))
        checks += [*self._trust(), *self._owner()]
        checks += [*check_tpm(self.config.attest.tpm), *check_extras(self.config)]
        return [*checks, *hardware_checks(self.hardware), *machine_checks(self.confinement)]

    def _trust(self) -> Iterator[Check]:
        """Yield a finding for each place where users other than root and the daemon's could change what it does."""
        trusted = {os.geteuid()}
        state: Literal["WARN", "FAIL"] = "WARN"  # without a daemon: it may be for another user
        with contextlib.suppress(OSError):
            if isinstance(self.address, UnixAddress):
                trusted.add(self.address.path.stat().st_uid)
                state = "FAIL"
        faults: list[str | None] = []
        with contextlib.suppress(ConfigError):
            faults.append(directory_fault(self.log, self.config.audit.key or Path(f"{self.log}.key"), trusted))
        profile = import_module("hearth.drivers.boards").profile_file(self.config.board.profile)
        for path in (self._file, profile, *(path for _, path in self.config.named_files())):
            if path is None:
                continue
            with contextlib.suppress(OSError):  # one that is missing is the finding of another check
                faults.append(ownership_fault(path, trusted))
        for finding, _, cure in (fault.partition("; ") for fault in dict.fromkeys(faults) if fault is not None):
            yield Check(state, "trust", f"{finding}: hearthd refuses to start", cure)

    def _owner(self) -> Iterator[Check]:
        """Yield a finding if no policy entry of the configuration matches the daemon's own user or root."""
        if self._file is None or not self.config.policy:
            return
        uid = os.geteuid()
        with contextlib.suppress(OSError):
            if isinstance(self.address, UnixAddress):
                uid = self.address.path.stat().st_uid
        try:
            entries = import_module("hearth.actors.build").policy_entries(self.config)
        except ConfigError:
            return  # `hearthd --check` names the fault
        for warning in owner_without_entry(entries, (from_uid(uid), from_uid(0)), str(self._file)):
            finding, _, cure = warning.partition("; ")
            yield Check("WARN", "policy", finding, cure)

    def to_json(self, checks: list[Check]) -> dict[str, Any]:
        """Return the findings and all that they are about, for a program."""
        return {
            "ok": all(check.state != "FAIL" for check in checks),
            "checks": [asdict(check) for check in checks],
            "hardware": self.hardware,
            "confinement": self.confinement,
        }


def lines(checks: list[Check]) -> list[str]:
    """Return the findings as lines for a person."""
    longest = max(len(check.name) for check in checks)
    told = []
    for check in checks:
        state = click.style(check.state.ljust(4), fg=COLOURS[check.state], bold=True)
        told.append(f"{state}  {check.name.ljust(longest)}  {common.clean(check.finding)}")
        for number, step in enumerate((check.cure or "").splitlines()):
            told.append(f"      {' ' * longest}  {'→' if number == 0 else ' '} {common.clean(step)}")
    return told


def check_address(address: Address, named_by: str) -> list[Check]:
    """Check the daemon's address without connecting to it."""
    if isinstance(address, UnixAddress):
        return check_socket(address.path, named_by)
    told = f"{address.place} (from {named_by})"
    if isinstance(address, WebSocketAddress) and not address.secure and not _is_here(address.host):
        cure = "use wss://, or a network that is itself encrypted: machines on the way can read all, the token too"
        return [Check("WARN", "address", f"{told} is not encrypted", cure)]
    return [Check("OK", "address", told)]


def _is_here(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"
