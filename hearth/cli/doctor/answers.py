"""Checks of what a running daemon answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.cli.common import Options, session
from hearth.cli.doctor.check import Check
from hearth.cli.doctor.confinement import daemon_checks, look_at_daemon
from hearth.errors import CarrierError, ConfigError, RpcError
from hearth.extras import RESERVED, extras_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.extras import Extra


DAEMON = "daemon"
"""The name of the check whose failure is exit code 3."""


async def ask_daemon(options: Options) -> list[Check]:
    """Open a session with the daemon and check its answers, or report why there is no session."""
    try:
        async with session(options) as (_client, opened):
            tools = await opened.tools()
            first = Check("OK", DAEMON, f"answers on {options.address.place}; {len(tools)} tools")
            if all(tool["name"] != "hw.board" for tool in tools):
                cure = 'add "hw.board" to the tools of your [[policy]] entry'
                return [first, Check("WARN", "board", "the policy does not let you see the health of the buses", cure)]
            board = await opened.run("hw.board")
            sandbox = (board.get("health") or {}).get("sandbox") or {}
            process = look_at_daemon(options.address)
            return [first, *board_checks(board), *daemon_checks(sandbox, process)]
    except CarrierError as error:
        cure = "where it is a service: `systemctl status hearth`; if it listens elsewhere: --to or HEARTH_ADDRESS"
        return [Check("WARN" if options.named_by == "default" else "FAIL", DAEMON, str(error), cure)]
    except RpcError as error:
        cure = "the daemon's [[policy]] entries say who may do what"
        return [Check("FAIL", "session", f"{error.message} ({error.symbol})", cure)]


def board_checks(board: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the checks of the answer of hw.board."""
    yield Check("OK", "board", f"{board['name']}: {board.get('description') or 'no description'}")
    health = board.get("health") or {}
    yield from _buses(health.get("buses", {}))
    yield from _halt(health.get("halt") or {})
    yield from map(_undriven, board.get("undriven", ()))
    for extra in extras_of(health.keys() - RESERVED):
        if extra.finding and (state := health.get(extra.name)) is not None:
            yield _found(extra, state)
    yield from _audit(health.get("audit") or {})


def _found(extra: Extra, state: Mapping[str, Any]) -> Check:
    if (crashed := state.get("crashed")) is not None:
        return Check("FAIL", extra.name, f"it crashed: {crashed}", "the daemon's log has the traceback")
    try:
        return Check(*extra.call("finding", state))
    except ConfigError as error:
        return Check("FAIL", extra.name, str(error), "tell its vendor")


def _buses(buses: Mapping[str, Any]) -> Iterator[Check]:
    for name, bus in buses.items():
        told = f"{name} is {bus.get('state')}"
        if bus.get("state") == "ready":
            yield Check("OK", "bus", f"{told}; {bus.get('transactions', 0)} transactions so far")
        else:
            yield Check("FAIL", "bus", f"{told}: {bus.get('reason') or 'no reason given'}", bus_cure(bus.get("state")))
        for seen in bus.get("advice", ()):
            yield Check("WARN", "bus", f"{name}: {seen.get('finding')}", seen.get("cure"))


def _halt(halt: Mapping[str, Any]) -> Iterator[Check]:
    if halt.get("halted"):
        cure = "when the cause is gone, a person with the right reset_halt ends it: `hearth halt reset`"
        yield Check("WARN", "halt", f"halted since {halt.get('since')}: {halt.get('reason')}", cure)
        if problem := halt.get("problem"):
            yield Check("FAIL", "halt", problem, "until it can be written, a restart does not come back halted")


def _undriven(missing: Mapping[str, Any]) -> Check:
    told = f"{missing.get('kind')} {missing.get('name')}: {missing.get('reason')}"
    if missing.get("left_alone"):
        return Check("OK", "bus", f"{told}; not driven")
    cure = missing.get("cure") or "hearth cannot serve it; the board's profile says what is wanted"
    return Check("WARN", "bus", told, cure)


def _audit(audit: Mapping[str, Any]) -> Iterator[Check]:
    if audit.get("ok"):
        yield Check("OK", "audit", f"records are written (durability {audit.get('durability')})")
        if warning := audit.get("warning"):
            yield Check("WARN", "audit", str(warning), "`hearth audit verify` examines the whole log")
    else:
        cure = "steps of risk 1 and above are refused until it can be written: look at disk space and permissions"
        yield Check("FAIL", "audit", f"the log cannot be written: {audit.get('reason')}", cure)


def bus_cure(state: Any) -> str:
    """Return the cure for a bus that does not work."""
    if state == "wedged":
        return "a transaction does not return: look at the device and its wiring; the bus comes back when it does"
    return "the daemon tries again by itself; look at the device and at the daemon's permissions on it"
