"""Checks of confinement: the kernel's features, the plan of a daemon, the state of a running daemon.

The drivers examine them, and are imported by name; this module rates the findings and words them.
"""

from __future__ import annotations

import socket
import struct
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hearth.cli.doctor.check import Check
from hearth.cli.doctor.hardware import BOARDS
from hearth.transport.address import UnixAddress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.config.model import Config
    from hearth.transport.address import Address


_INIT = 1
_FILTER = "2"
"""The value of Seccomp in /proc for a thread with a seccomp filter."""


def look_at_confinement(config: Config) -> dict[str, Any]:
    """Return this kernel's features, and the sandbox plan of a daemon with this configuration."""
    found: dict[str, Any] = import_module(BOARDS).look_at_sandbox(config)
    return found


def look_at_daemon(address: Address) -> dict[str, Any] | None:
    """Return the kernel's data on the process that listens at `address`; None if it cannot be seen from here."""
    if not isinstance(address, UnixAddress):
        return None
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(1)
            asking.connect(str(address.path))
            pid = struct.unpack("=iII", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except OSError:
        return None
    # The pid is the service manager's (1) if that made the socket, and 0 for a process of another container.
    found: dict[str, Any] | None = import_module(BOARDS).process_sandbox(pid) if pid > _INIT else None
    return found


def machine_checks(found: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the checks of the kernel's features and of the sandbox plan."""
    kernel = found["kernel"]
    lacking = [part for part in kernel["parts"] if not part["can_be"]]
    if not lacking:
        yield Check(
            "OK", "kernel", f"can confine a daemon: Landlock {kernel['landlock']}, seccomp filters, no_new_privs"
        )
    causes: dict[str, list[str]] = {}
    for part in lacking:
        causes.setdefault(part["detail"], []).append(part["name"])
    for why, names in causes.items():
        reason, _, cure = why.partition("; ")
        yield Check("WARN", "kernel", f"cannot confine {', '.join(names)}: {reason}", cure or "see docs/sandbox.md")
    yield from _planned(found["planned"])


def _planned(planned: Mapping[str, Any]) -> Iterator[Check]:
    if "off" in planned:
        yield Check("WARN", "sandbox", f"would be off: {planned['off']}", "take it out of the configuration")
        return
    if "error" in planned:
        yield Check("WARN", "sandbox", f"cannot be planned: {planned['error']}", "correct that first")
        return
    paths = planned["paths"]
    devices = [entry["path"] for entry in paths if entry["access"] == "device"]
    written = [entry["path"] for entry in paths if entry["access"] == "write"]
    becomes = f"as {planned['user']}, " if "user" in planned else ""
    yield Check(
        "OK",
        "sandbox",
        f"started by you, {becomes}hearthd could write beneath {', '.join(written)}, open {len(devices)} device nodes, "
        f"start no program, make sockets {', '.join(planned['sockets']) or 'of no kind'}",
    )
    if planned.get("programs_refused"):
        reason, _, cure = planned["programs_refused"].partition(": set ")
        yield Check("FAIL", "programs", reason, f"set {cure}")
    elif planned.get("programs"):
        told = "run outside of it, each in a cage of its own, started by the launcher"
        yield Check("OK", "programs", f"{', '.join(planned['programs'])}: {told}")


def daemon_checks(told: Mapping[str, Any], process: Mapping[str, Any] | None) -> Iterator[Check]:
    """Yield the checks of a daemon's own report (`health.sandbox`) and of the kernel's data on its process."""
    state = told.get("state")
    if state == "off":
        cure = "start it without --no-sandbox, and with [sandbox] enable = true"
        yield Check("WARN", "sandbox", f"is off in the daemon: {told.get('reason')}", cure)
    elif state in ("in force", "in part"):
        yield Check("OK", "sandbox", f"in force in the daemon: {', '.join(told.get('in_force', ()))}")
    for name, why in told.get("missing", {}).items():
        reason, _, cure = str(why).partition("; ")
        yield Check("WARN", "sandbox", f"not in force in the daemon: {name}: {reason}", cure or "see docs/sandbox.md")
    for path in told.get("added", ()):
        yield Check(
            "WARN", "sandbox", f"{path} may be written besides", "the daemon's environment names it: take it out"
        )
    for note in told.get("notes", ()):
        yield Check("OK", "sandbox", f"but note: {note}")
    if process is not None:
        yield _process(told, process)


def _process(told: Mapping[str, Any], process: Mapping[str, Any]) -> Check:
    facts = (
        f"pid {process['pid']}: uid {_ids(process['Uid'])}, capabilities {_capabilities(process['CapEff'])}, "
        f"no_new_privs {'/'.join(process['NoNewPrivs'])}, seccomp {'/'.join(process['Seccomp'])}"
    )
    held = told.get("in_force", ())
    escaped = [
        name
        for name, expected, found in (
            ("no_new_privs", "1", process["NoNewPrivs"]),
            ("syscalls", _FILTER, process["Seccomp"]),
        )
        if name in held and found != [expected]
    ]
    if escaped:
        cure = "it says that this holds for all its threads, and the kernel says that it does not: report it as a bug"
        return Check("FAIL", "process", f"{facts}; {', '.join(escaped)} not in force in every thread", cure)
    return Check("OK", "process", facts)


def _ids(found: list[str]) -> str:
    return "/".join(sorted({number for line in found for number in line.split()}))


def _capabilities(found: list[str]) -> str:
    return "none" if all(int(bits, 16) == 0 for bits in found) else "/".join(bits.lstrip("0") for bits in found)
