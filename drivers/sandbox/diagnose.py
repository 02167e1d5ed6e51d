"""The confinement that this kernel offers, that a daemon would use, and that a running one has: for a person.

It gathers one JSON object for `hearth doctor`. It puts nothing in force, opens no device but as a plan does, and raises
for nothing that it finds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.config.model import default_socket, default_state_dir
from hearth.drivers.boards.profile import load_profile
from hearth.drivers.sandbox import landlock, seccomp
from hearth.drivers.sandbox.cage import cannot_hold, program_notes
from hearth.drivers.sandbox.enforce import available
from hearth.drivers.sandbox.plan import Places, make_plan
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from hearth.config.model import Config

_SHOWN = ("Uid", "Gid", "NoNewPrivs", "Seccomp", "CapPrm", "CapEff", "CapBnd", "CapAmb")
"""Fields of /proc/PID/status that show confinement. The kernel does not show a process's Landlock rules."""


def look(config: Config) -> dict[str, Any]:
    """Return the kernel's confinement, part by part, and a plan for a daemon that this user starts."""
    try:
        abi = landlock.version()
    except OSError:
        abi = 0
    return {
        "kernel": {
            "landlock": abi,
            "seccomp": Path("/proc/sys/kernel/seccomp/actions_avail").exists(),
            "libseccomp": _has_library(),
            "parts": [{"name": part.name, "can_be": part.in_force, "detail": part.detail} for part in available()],
        },
        "planned": _planned(config),
    }


def _has_library() -> bool:
    try:
        seccomp.library()
    except seccomp.NoFilter:
        return False
    return True


def _planned(config: Config) -> dict[str, Any]:
    """Return the plan, as far as it can be known without opening the board; the reason for none in `off` or `error`."""
    if not config.sandbox.enable:
        return {"off": "[sandbox] enable = false"}
    audit = config.audit.path or default_state_dir(os.environ, os.geteuid()) / "audit.log"
    places = Places(
        audit=audit,
        key=config.audit.key or Path(f"{audit}.key"),
        socket=config.server.socket or default_socket(os.environ, os.geteuid()),
    )
    # Shipped tools need no more than this, unless they are enabled by name.
    tools = ({"sys.network"} | set(config.tools.enable)) - set(config.tools.disable)
    try:
        profile = load_profile(config.board.profile)
        plan = make_plan(config, profile, places, tools=tools, environ=os.environ, uid=os.geteuid())
    except ConfigError as error:
        return {"error": str(error)}
    runs = "proc.exec" in tools
    programs = {
        "programs": sorted(config.tools.exec) if runs else [],
        "programs_refused": cannot_hold(config),
        "notes": [*plan.notes, *(program_notes(config, os.geteuid()) if runs else ())],
    }
    return {**plan.to_json(), **programs, "require": config.sandbox.require}


def process(pid: int) -> dict[str, Any] | None:
    """Return the kernel's view of a process and all its threads; None where there is none, or nothing may be seen."""
    facts: dict[str, set[str]] = {name: set() for name in _SHOWN}
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for line in (thread / "status").read_text("ascii", "replace").splitlines():
                name, _, value = line.partition(":")
                if name in facts:
                    facts[name].add(" ".join(value.split()))
    except OSError:
        return None
    return {"pid": pid, **{name: sorted(values) for name, values in facts.items()}}
