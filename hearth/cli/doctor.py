"""`hearth doctor`: is everything in place, and if not, what to do. It needs no daemon and changes nothing.

It looks at the machine's own devices too, also those that no daemon serves: what is there, who uses it, what this user
may not open, and whether a board profile fits (--board, or the one of --config); and at confinement: what this kernel
can, what a daemon of the configuration would put in force, and what is in force in the one that answers.

Each check says OK, WARN or FAIL and, unless it is OK, the cure. Exit code: 0 if nothing failed, 1 if something did,
and 3 if a daemon was named (--to, --socket, HEARTH_ADDRESS, HEARTH_SOCKET, --config) and none answers there. When none
was named, no daemon at the default socket is a WARN: there may simply be none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import asdict, evolve

from hearth._version import __version__
from hearth.address import UnixAddress, WebSocketAddress
from hearth.cli import confinement, hardware, render
from hearth.cli.checks import Check, check_log, check_socket, check_state
from hearth.cli.common import DONE, FAILED, UNREACHABLE, Options, interruptible, session, standard
from hearth.config import Config, default_socket, default_state_dir, load_config
from hearth.errors import CarrierError, RpcError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.address import Address

COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}
DAEMON = "daemon"
"""The name of the check whose failure is exit code 3."""


@click.command()
@click.option("--config", metavar="FILE", help="The daemon's hearth.toml: its socket, its log, its board.")
@click.option("--board", metavar="NAME", help="A board profile: does it fit this machine? (Else that of --config.)")
@standard
def doctor(options: Options, config: str | None, board: str | None) -> int:
    """Check this machine's hardware, socket, daemon, buses, confinement and audit log, each with what to do about it.

    Exits with 1 if a check failed, and with 3 if a daemon was named and none answers there.
    """
    loaded = Config() if config is None else load_config(Path(config))
    if config is not None and options.named_by == "default":
        socket = loaded.server.socket or default_socket(os.environ, os.geteuid())
        options = evolve(options, where=str(socket), named_by="--config")
    address = options.address
    log = loaded.audit.path or default_state_dir(os.environ, os.geteuid()) / "audit.log"
    # Before the daemon is asked: it would be a finding itself, and a profile that is no profile is a usage error.
    found = hardware.look(board or (None if config is None else loaded.board.profile))
    confines = confinement.look(loaded)

    async def work() -> int:
        checks = [Check("OK", "hearth", f"version {__version__}")]
        checks += check_way(address, options.named_by)
        daemon = await _ask_daemon(options)
        checks += [*daemon, check_state(log.parent), check_log(log, expected=config is not None)]
        checks += [*hardware.checks(found), *confinement.machine_checks(confines)]
        failed = any(check.state == "FAIL" for check in checks)
        if options.json:
            told = {"ok": not failed, "checks": [asdict(check) for check in checks], "hardware": found}
            told["confinement"] = confines
            click.echo(render.compact(told))
        else:
            click.echo("\n".join(lines(checks)))
        unreachable = any(check.name == DAEMON and check.state == "FAIL" for check in daemon)
        return UNREACHABLE if unreachable else FAILED if failed else DONE

    return interruptible(work)


def lines(checks: list[Check]) -> list[str]:
    """The findings for a person."""
    longest = max(len(check.name) for check in checks)
    told = []
    for check in checks:
        state = click.style(check.state.ljust(4), fg=COLOURS[check.state], bold=True)
        told.append(f"{state}  {check.name.ljust(longest)}  {render.clean(check.finding)}")
        for number, step in enumerate((check.cure or "").splitlines()):
            told.append(f"      {' ' * longest}  {'→' if number == 0 else ' '} {render.clean(step)}")
    return told


def check_way(address: Address, named_by: str) -> list[Check]:
    """What can be said of the way to the daemon without going it."""
    if isinstance(address, UnixAddress):
        return check_socket(address.path, named_by)
    told = f"{address.place} (from {named_by})"
    if isinstance(address, WebSocketAddress) and not address.secure and not _is_here(address.host):
        cure = "use wss://, or a network that is itself encrypted: whoever is between reads all, the token too"
        return [Check("WARN", "address", f"{told} is not encrypted", cure)]
    return [Check("OK", "address", told)]


def _is_here(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


async def _ask_daemon(options: Options) -> list[Check]:
    """What a session with the daemon tells, or why there is none."""
    try:
        async with session(options) as (_client, opened):
            tools = await opened.tools()
            first = Check("OK", DAEMON, f"answers on {options.address.place}; {len(tools)} tools")
            if all(tool["name"] != "hw.board" for tool in tools):
                cure = 'add "hw.board" to the tools of your [[policy]] entry'
                return [first, Check("WARN", "board", "the policy does not let you see the health of the buses", cure)]
            board = await opened.run("hw.board")
            sandbox = (board.get("health") or {}).get("sandbox") or {}
            process = confinement.look_at(options.address)
            return [first, *board_checks(board), *confinement.daemon_checks(sandbox, process)]
    except CarrierError as error:
        cure = "where it is a service: `systemctl status hearth`; if it listens elsewhere: --to or HEARTH_ADDRESS"
        return [Check("WARN" if options.named_by == "default" else "FAIL", DAEMON, str(error), cure)]
    except RpcError as error:
        cure = "the daemon's [[policy]] entries say who may do what"
        return [Check("FAIL", "session", f"{error.message} ({error.symbol})", cure)]


def board_checks(board: Mapping[str, Any]) -> Iterator[Check]:
    """The checks on what hw.board answers."""
    yield Check("OK", "board", f"{board['name']}: {board.get('description') or 'no description'}")
    health = board.get("health") or {}
    for name, bus in health.get("buses", {}).items():
        told = f"{name} is {bus.get('state')}"
        if bus.get("state") == "ready":
            yield Check("OK", "bus", f"{told}; {bus.get('transactions', 0)} transactions so far")
        else:
            yield Check("FAIL", "bus", f"{told}: {bus.get('reason') or 'no reason given'}", bus_cure(bus.get("state")))
    for missing in board.get("undriven", ()):
        told = f"{missing.get('kind')} {missing.get('name')}: {missing.get('reason')}"
        if missing.get("left_alone"):
            yield Check("OK", "bus", f"{told}; not driven")
        else:
            cure = missing.get("cure") or "nobody can use it through hearth; the board's profile says what is wanted"
            yield Check("WARN", "bus", told, cure)
    audit = health.get("audit") or {}
    if audit.get("ok"):
        yield Check("OK", "audit", f"records are written (durability {audit.get('durability')})")
    else:
        cure = "steps of risk 1 and above are refused until it can be written: look at disk space and permissions"
        yield Check("FAIL", "audit", f"the log cannot be written: {audit.get('reason')}", cure)


def bus_cure(state: Any) -> str:
    """What to do about a bus that serves nobody."""
    if state == "wedged":
        return "a transaction does not return: look at the device and its wiring; the bus comes back when it does"
    return "the daemon tries again by itself; look at the device and at the daemon's permissions on it"
